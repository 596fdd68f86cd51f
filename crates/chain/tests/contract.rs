//! The contract suite on a chain of three, through its head.

mod support;

use std::sync::Arc;

use esker_memory::MemoryStore;
use esker_store::ObjectStore;
use esker_store::contract::{Harness, Opened};
use support::Chain;

struct Three;

struct OpenChain(Chain);

impl Harness for Three {
    fn fresh(&self) -> Box<dyn Opened> {
        let store = || Arc::new(MemoryStore::new()) as Arc<dyn ObjectStore>;
        Box::new(OpenChain(Chain::over((0..3).map(|_| store()).collect())))
    }
}

impl Opened for OpenChain {
    fn store(&self) -> &dyn ObjectStore {
        self.0.store(0)
    }
}

esker_store::contract_suite!(Three);

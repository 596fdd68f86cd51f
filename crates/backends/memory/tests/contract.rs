//! The contract suite on the memory backend.

use esker_memory::MemoryStore;
use esker_store::ObjectStore;
use esker_store::contract::{Harness, Opened};

struct Memory;

struct OpenMemory(MemoryStore);

impl Harness for Memory {
    fn fresh(&self) -> Box<dyn Opened> {
        Box::new(OpenMemory(MemoryStore::new()))
    }
}

impl Opened for OpenMemory {
    fn store(&self) -> &dyn ObjectStore {
        &self.0
    }
}

esker_store::contract_suite!(Memory);

//! A store that is restarted as another one: as if its last changes had been taken back, and others been made.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Forward, Incarnation, ObjectStore};

/// Two lives of a store.
pub struct Restored {
    lives: [Arc<dyn ObjectStore>; 2],
    life: AtomicUsize,
}

impl Restored {
    /// In its first life.
    pub fn new(first: Arc<dyn ObjectStore>, second: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self { lives: [first, second], life: AtomicUsize::new(0) })
    }

    /// From now on it is in its second life.
    pub fn restart(&self) {
        self.life.store(1, Ordering::SeqCst);
    }
}

impl Forward for Restored {
    fn behind(&self) -> &dyn ObjectStore {
        &*self.lives[self.life.load(Ordering::SeqCst)]
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.life.load(Ordering::SeqCst) as u64 + 1)
    }
}

//! Who watches which object.
//!
//! Invariants:
//! 1. Nothing is locked while those who watch are called.
//! 2. Where the store's state is locked as well, it is locked first.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_store::{Changed, ObjectId};
use parking_lot::Mutex;

/// One who watches.
pub(crate) struct Watched {
    pub(crate) object: ObjectId,
    changed: Changed,
    /// The object is there.
    pub(crate) live: AtomicBool,
    ended: AtomicBool,
}

impl Watched {
    pub(crate) fn call(&self) {
        if !self.ended.load(Ordering::SeqCst) {
            (self.changed)();
        }
    }
}

/// All who watch, by the number of each.
#[derive(Default)]
pub(crate) struct Watches(Mutex<Table>);

#[derive(Default)]
struct Table {
    last: u64,
    by_number: BTreeMap<u64, Arc<Watched>>,
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watches").field(&self.0.lock().by_number.len()).finish()
    }
}

impl Watches {
    pub(crate) fn add(&self, object: &ObjectId, changed: Changed) -> (u64, Arc<Watched>) {
        let (live, ended) = (AtomicBool::new(true), AtomicBool::new(false));
        let watched = Arc::new(Watched { object: object.clone(), changed, live, ended });
        let mut table = self.0.lock();
        table.last += 1;
        let number = table.last;
        table.by_number.insert(number, Arc::clone(&watched));
        (number, watched)
    }

    pub(crate) fn remove(&self, number: u64) {
        if let Some(watched) = self.0.lock().by_number.remove(&number) {
            watched.ended.store(true, Ordering::SeqCst);
        }
    }

    fn all(&self, mut of: impl FnMut(&Watched) -> bool) -> Vec<Arc<Watched>> {
        self.0.lock().by_number.values().filter(|watched| of(watched)).cloned().collect()
    }

    pub(crate) fn notify(&self, object: &ObjectId) {
        for watched in self.all(|watched| watched.object == *object) {
            watched.call();
        }
    }

    /// Those who watch an object that was there and is not, or is there again. To be called.
    pub(crate) fn turned(&self, is_there: impl Fn(&ObjectId) -> bool) -> Vec<Arc<Watched>> {
        self.all(|watched| {
            let is_there = is_there(&watched.object);
            watched.live.swap(is_there, Ordering::SeqCst) != is_there
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().by_number.is_empty()
    }
}

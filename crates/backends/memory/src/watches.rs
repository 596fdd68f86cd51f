//! Who watches which object.
//!
//! Invariants:
//! 1. Nothing is locked while those who watch are called.
//! 2. Where the store's state is locked as well, it is locked first.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
pub(crate) struct Watches {
    table: Mutex<Table>,
    /// How many there are.
    count: AtomicUsize,
}

#[derive(Default)]
struct Table {
    last: u64,
    objects: BTreeMap<u64, ObjectId>,
    by_object: HashMap<ObjectId, BTreeMap<u64, Arc<Watched>>>,
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watches").field("count", &self.count).finish()
    }
}

impl Watches {
    pub(crate) fn add(&self, object: &ObjectId, changed: Changed) -> (u64, Arc<Watched>) {
        let (live, ended) = (AtomicBool::new(true), AtomicBool::new(false));
        let watched = Arc::new(Watched { object: object.clone(), changed, live, ended });
        let mut table = self.table.lock();
        table.last += 1;
        let number = table.last;
        table.objects.insert(number, object.clone());
        table.by_object.entry(object.clone()).or_default().insert(number, Arc::clone(&watched));
        self.count.store(table.objects.len(), Ordering::SeqCst);
        (number, watched)
    }

    pub(crate) fn remove(&self, number: u64) {
        let mut table = self.table.lock();
        let Some(object) = table.objects.remove(&number) else { return };
        let Some(those) = table.by_object.get_mut(&object) else { return };
        if let Some(watched) = those.remove(&number) {
            watched.ended.store(true, Ordering::SeqCst);
        }
        if those.is_empty() {
            table.by_object.remove(&object);
        }
        self.count.store(table.objects.len(), Ordering::SeqCst);
    }

    fn of(&self, object: &ObjectId) -> Vec<Arc<Watched>> {
        let table = self.table.lock();
        table.by_object.get(object).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    pub(crate) fn notify(&self, object: &ObjectId) {
        if self.is_empty() {
            return;
        }
        for watched in self.of(object) {
            watched.call();
        }
    }

    /// Those who watch one of these objects, if it was there and is not, or is there again. To be called.
    pub(crate) fn turned(&self, objects: &[ObjectId], is_there: impl Fn(&ObjectId) -> bool) -> Vec<Arc<Watched>> {
        let turns = |watched: &Arc<Watched>| {
            let is_there = is_there(&watched.object);
            watched.live.swap(is_there, Ordering::SeqCst) != is_there
        };
        objects.iter().flat_map(|object| self.of(object)).filter(turns).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }
}

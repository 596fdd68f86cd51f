//! What commands ask before they touch keys while slots go from one chain to another; and who notes which keys there
//! are in slots that are going to.
//!
//! close: records say so → commands that hold a key's lock are waited for → none of its slots is written or read
//! → records say where it is → those who waited are run anew
//!
//! Invariants:
//! 1. A command that changes keys asks while it holds their locks; one that only reads asks again when it has read.
//! 2. Who waits is woken by every change of the records.
//! 3. While slots are gathered every key that comes to be in one of them is noted before it is written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use esker_kv::slot_of;
use esker_store::{Completion, Promise, promised};
use parking_lot::Mutex;

use crate::resp::moving::records::{SlotRecords, SlotState};

/// What holds a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Space {
    /// A database of the Redis protocol.
    Database(u8),
    /// The namespace that is served by Thrift.
    Thrift,
}

/// A key where it is; an int key of Thrift's namespace as eight bytes, the highest first.
pub(crate) type Located = (Space, Bytes);

/// What becomes of a command with a key in a slot that is going.
pub(crate) enum Held {
    /// It waits for this, and is run anew.
    Wait(Completion<()>),
    /// It is not known how long: its client is told.
    Refused(u16),
}

/// Keys of slots, as far as there is room for them.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    slots: BTreeSet<u16>,
    keys: BTreeMap<u16, BTreeSet<Located>>,
    bytes: usize,
    bytes_max: usize,
}

impl Gathered {
    fn weight(key: &[u8]) -> usize {
        // What a key takes in a set, about.
        key.len() + 96
    }

    fn add(&mut self, space: Space, slot: u16, key: &[u8]) {
        if !self.slots.contains(&slot) {
            return;
        }
        if self.keys.entry(slot).or_default().insert((space, Bytes::copy_from_slice(key))) {
            self.bytes += Self::weight(key);
        }
        // Of one slot all keys are kept, however many.
        while self.bytes > self.bytes_max && self.slots.len() > 1 {
            let Some(last) = self.slots.pop_last() else { break };
            let gone = self.keys.remove(&last).unwrap_or_default();
            self.bytes -= gone.iter().map(|(_, key)| Self::weight(key)).sum::<usize>();
        }
    }

    /// The first of its slots, which is gathered no more, and its keys.
    pub(crate) fn take(&mut self, slot: u16) -> Option<BTreeSet<Located>> {
        if !self.slots.remove(&slot) {
            return None;
        }
        let keys = self.keys.remove(&slot).unwrap_or_default();
        self.bytes -= keys.iter().map(|(_, key)| Self::weight(key)).sum::<usize>();
        Some(keys)
    }

    /// How many keys there are of a slot that it has.
    pub(crate) fn count(&self, slot: u16) -> Option<usize> {
        self.slots.contains(&slot).then(|| self.keys.get(&slot).map_or(0, BTreeSet::len))
    }
}

/// What commands ask.
pub(crate) struct Gate {
    /// Held by who puts other records in their place, from the look at those that there are.
    pub(crate) changing: Mutex<()>,
    records: ArcSwap<SlotRecords>,
    /// Some slots are leaving.
    closed: AtomicBool,
    /// Those of them whose commands do not wait, but are told that it may last.
    refused: Mutex<BTreeSet<u16>>,
    /// One more with each change of the records.
    generation: AtomicU64,
    waiting: Mutex<Vec<Promise<()>>>,
    gathers: AtomicBool,
    gathered: Mutex<Option<Gathered>>,
    /// Held by reads that wait for the device; another one after each time that they were waited for.
    reading: ArcSwap<()>,
    /// How often all keys of a database were removed.
    clears: AtomicU64,
}

fn leaves(records: &SlotRecords, slot: u16) -> bool {
    records.get(&slot).is_some_and(|record| record.state == SlotState::Leaving)
}

fn closes(records: &SlotRecords) -> bool {
    records.values().any(|record| record.state == SlotState::Leaving)
}

impl Gate {
    /// With these records.
    pub(crate) fn new(records: SlotRecords) -> Self {
        Self {
            changing: Mutex::default(),
            closed: AtomicBool::new(closes(&records)),
            records: ArcSwap::from_pointee(records),
            refused: Mutex::default(),
            generation: AtomicU64::new(0),
            waiting: Mutex::default(),
            gathers: AtomicBool::new(false),
            gathered: Mutex::default(),
            reading: ArcSwap::default(),
            clears: AtomicU64::new(0),
        }
    }

    /// What is recorded.
    pub(crate) fn records(&self) -> Arc<SlotRecords> {
        self.records.load_full()
    }

    /// Changes with the records.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Whether some slots are leaving.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Puts other records in their place.
    pub(crate) fn set(&self, records: Arc<SlotRecords>) {
        let closed = closes(&records);
        if closed {
            self.closed.store(true, Ordering::SeqCst);
        }
        self.refused.lock().retain(|slot| leaves(&records, *slot));
        self.records.store(records);
        if !closed {
            self.closed.store(false, Ordering::SeqCst);
        }
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    /// Tells those who wait for slots that are closed now, and would, that it may last.
    pub(crate) fn refuse(&self) {
        // None of them is opened between the look and the note.
        let alone = self.changing.lock();
        let records = self.records.load();
        let closed = records.keys().copied().filter(|slot| leaves(&records, *slot));
        self.refused.lock().extend(closed);
        drop(alone);
        self.wake();
    }

    fn wake(&self) {
        for waiting in std::mem::take(&mut *self.waiting.lock()) {
            waiting.fulfil((Ok(()), None));
        }
    }

    /// What becomes of a command with keys of these slots; `None`: it is run. `all`: it is about all keys.
    pub(crate) fn hold(&self, mut slots: impl Iterator<Item = u16>, all: bool) -> Option<Held> {
        if !self.is_closed() {
            return None;
        }
        // Changes wake under the same lock, after they are made.
        let mut waiting = self.waiting.lock();
        let records = self.records.load();
        let refused = self.refused.lock();
        let mut waits = false;
        let mut look = |slot: u16| {
            waits |= leaves(&records, slot);
            (leaves(&records, slot) && refused.contains(&slot)).then_some(slot)
        };
        let lasts = if all { records.keys().copied().find_map(&mut look) } else { slots.find_map(&mut look) };
        if let Some(slot) = lasts {
            return Some(Held::Refused(slot));
        }
        if !waits {
            return None;
        }
        drop(refused);
        let (promise, woken) = promised("a slot that goes to another chain");
        waiting.push(promise);
        Some(Held::Wait(woken))
    }

    /// From now on keys of these slots are noted when they are written, as far as `bytes_max` bytes go: then those of
    /// the highest slots are forgotten. Writers that are under way are for the caller to wait for.
    pub(crate) fn gather(&self, slots: impl IntoIterator<Item = u16>, bytes_max: usize) {
        let slots = slots.into_iter().collect();
        *self.gathered.lock() = Some(Gathered { slots, bytes_max, ..Gathered::default() });
        self.gathers.store(true, Ordering::SeqCst);
    }

    /// Whether keys are noted.
    pub(crate) fn gathers(&self) -> bool {
        self.gathers.load(Ordering::SeqCst)
    }

    /// Notes a key of a slot that is written, or found.
    pub(crate) fn note(&self, space: Space, slot: impl FnOnce() -> u16, key: &[u8]) {
        if self.gathers()
            && let Some(gathered) = &mut *self.gathered.lock()
        {
            gathered.add(space, slot(), key);
        }
    }

    /// Notes a key of a database.
    pub(crate) fn note_in(&self, database: u8, key: &[u8]) {
        self.note(Space::Database(database), || slot_of(key), key);
    }

    /// What is gathered.
    pub(crate) fn gathered<T>(&self, look: impl FnOnce(&mut Gathered) -> T) -> Option<T> {
        self.gathered.lock().as_mut().map(look)
    }

    /// No key is noted any more.
    pub(crate) fn end_gathering(&self) {
        self.gathers.store(false, Ordering::SeqCst);
        *self.gathered.lock() = None;
    }

    /// Held by a read that waits for the device: who closes a slot waits for it.
    pub(crate) fn reading(&self) -> Arc<()> {
        self.reading.load_full()
    }

    /// The reads that wait for the device now, and those that begin before this returns.
    pub(crate) fn readers(&self) -> std::sync::Weak<()> {
        Arc::downgrade(&self.reading.swap(Arc::default()))
    }

    /// All keys of a database are about to be removed.
    pub(crate) fn note_clear(&self) {
        self.clears.fetch_add(1, Ordering::SeqCst);
    }

    /// How often all keys of a database were removed.
    pub(crate) fn clears(&self) -> u64 {
        self.clears.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::moving::records::SlotRecord;

    fn records(slot: u16, state: SlotState) -> Arc<SlotRecords> {
        Arc::new([(slot, SlotRecord { state, epoch: 1, chain: "b".into() })].into())
    }

    #[test]
    fn who_has_a_key_of_a_slot_that_leaves_waits_until_that_changes() {
        let gate = Gate::new(SlotRecords::new());
        // foo is of slot 12182, bar of 5061.
        let hold = |key: &'static [u8]| gate.hold([slot_of(key)].into_iter(), false);
        assert!(hold(b"foo").is_none());
        gate.set(records(12_182, SlotState::Leaving));
        assert!(hold(b"bar").is_none() && gate.hold(std::iter::empty(), true).is_some());
        let Some(Held::Wait(woken)) = hold(b"foo") else { panic!("it does not wait") };
        assert!(!woken.is_here());
        gate.set(records(12_182, SlotState::Gone));
        woken.wait().unwrap();
        assert!(hold(b"foo").is_none() && gate.hold(std::iter::empty(), true).is_none());
        gate.set(records(12_182, SlotState::Leaving));
        let Some(Held::Wait(woken)) = hold(b"foo") else { panic!("it does not wait") };
        gate.refuse();
        woken.wait().unwrap();
        assert!(matches!(hold(b"foo"), Some(Held::Refused(12_182))));
        // Others that are closed later do not last because these do.
        let both = [5_061, 12_182].map(|slot| (slot, records(slot, SlotState::Leaving)[&slot].clone()));
        gate.set(Arc::new(both.into()));
        assert!(matches!((hold(b"bar"), hold(b"foo")), (Some(Held::Wait(_)), Some(Held::Refused(12_182)))));
        assert!(matches!(gate.hold(std::iter::empty(), true), Some(Held::Refused(12_182))));
        gate.set(records(1, SlotState::Leaving));
        gate.set(records(12_182, SlotState::Leaving));
        assert!(matches!(hold(b"foo"), Some(Held::Wait(_))), "it was open meanwhile");
        gate.set(records(1, SlotState::Leaving));
        assert!(gate.hold([&b"bar"[..], b"foo"].map(slot_of).into_iter(), false).is_none());
    }

    #[test]
    fn what_does_not_fit_is_forgotten_from_the_highest_slot_on() {
        let gate = Gate::new(SlotRecords::new());
        gate.note_in(0, b"foo");
        gate.gather([5_061, 12_182], 250);
        for (database, key) in [(0, &b"foo"[..]), (0, b"bar"), (0, b"hello"), (0, b"foo"), (1, b"bar")] {
            gate.note_in(database, key);
        }
        let counts = gate.gathered(|gathered| (gathered.count(5_061), gathered.count(12_182), gathered.bytes));
        assert_eq!(counts, Some((Some(2), None, 2 * 99)));
        // The last one is kept whole.
        for number in 0..10 {
            gate.note_in(0, format!("{{bar}}{number}").as_bytes());
        }
        let keys = gate.gathered(|gathered| gathered.take(5_061)).unwrap().unwrap();
        assert_eq!((keys.len(), gate.gathered(|gathered| gathered.bytes)), (12, Some(0)));
        gate.note_in(0, b"bar");
        assert_eq!(gate.gathered(|gathered| gathered.count(5_061)), Some(None));
        gate.end_gathering();
        assert!(!gate.gathers() && gate.gathered(|_| ()).is_none());
    }

    #[test]
    fn reads_that_wait_are_waited_for_and_later_ones_are_not() {
        let gate = Gate::new(SlotRecords::new());
        let early = gate.reading();
        let readers = gate.readers();
        let _late = gate.reading();
        assert!(readers.upgrade().is_some());
        drop(early);
        assert!(readers.upgrade().is_none());
    }
}

//! What was applied and is not yet in the ordered store: readable by all, and each value says whose sync it waits for.
//!
//! submit → publish (under the queue's lock, in commit order) → read by all → retired when its group is durable
//!
//! Invariants:
//! 1. Overlay over store is the state after the last published transaction, at every moment at which the overlay's lock
//!    is held: a group leaves the overlay only after it is in the store.
//! 2. A value's `waits_for` is at least the last transaction that asked for durable and that the value shows.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

/// A value that is applied.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The value; `None` if the key was removed.
    pub value: Option<Bytes>,
    /// The transaction that wrote it.
    pub seq: u64,
    /// Position that readers of the value wait for; 0 for none.
    pub waits_for: u64,
    /// The same for readers of an object's head who only need to know which spaces it has.
    pub spaces_wait_for: u64,
}

/// Values by key.
#[derive(Debug, Default)]
pub struct Overlay {
    map: BTreeMap<Bytes, Applied>,
}

impl Overlay {
    /// The applied value of a key.
    pub fn get(&self, key: &[u8]) -> Option<&Applied> {
        self.map.get(key)
    }

    /// Applied values with `start <= key < end`.
    pub fn range<'a>(&'a self, start: &[u8], end: &[u8]) -> impl Iterator<Item = (&'a Bytes, &'a Applied)> {
        let bounds = if start < end { (start, end) } else { (end, end) };
        self.map.range::<[u8], _>((Bound::Included(bounds.0), Bound::Excluded(bounds.1)))
    }

    /// Shows what transaction `seq` wrote. `shows` is the last transaction that asked for durable and that the value
    /// may show: `seq` itself if it did, else whatever it saw before it wrote; 0 for none. Spaces that stay the same
    /// show nothing new.
    pub fn publish(&mut self, key: &Bytes, value: &Option<Bytes>, seq: u64, shows: u64, same_spaces: bool) {
        let before = self.map.get(key).map_or((0, 0), |before| (before.waits_for, before.spaces_wait_for));
        let waits_for = before.0.max(shows);
        let spaces_wait_for = if same_spaces { before.1 } else { before.1.max(shows) };
        self.map.insert(key.clone(), Applied { value: value.clone(), seq, waits_for, spaces_wait_for });
    }

    /// Forgets the keys that no transaction after `seq` has written.
    pub fn retire<'a>(&mut self, keys: impl Iterator<Item = &'a Bytes>, seq: u64) {
        for key in keys {
            if self.map.get(key).is_some_and(|applied| applied.seq <= seq) {
                self.map.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_applied_write_over_a_durable_one_still_waits_for_it() {
        let mut overlay = Overlay::default();
        let key = Bytes::from_static(b"k");
        overlay.publish(&key, &Some(key.clone()), 7, 7, false);
        overlay.publish(&key, &None, 8, 0, true);
        let applied = overlay.get(b"k").unwrap();
        assert_eq!((applied.seq, applied.waits_for, applied.spaces_wait_for), (8, 7, 7));
        overlay.publish(&key, &None, 9, 9, true);
        assert_eq!(overlay.get(b"k").map(|applied| (applied.waits_for, applied.spaces_wait_for)), Some((9, 7)));
        overlay.retire([&key].into_iter(), 8);
        assert!(overlay.get(b"k").is_some(), "a later write was forgotten");
        overlay.retire([&key].into_iter(), 9);
        assert!(overlay.get(b"k").is_none());
    }

    /// Failure: an applied clone or rename showed a durable writer's data before it was durable. Cause: only what stood
    /// under the same key was waited for, and a copy stands under keys of its own. Fix: what the writer saw is a floor.
    #[test]
    fn an_applied_copy_waits_for_what_its_writer_saw() {
        let mut overlay = Overlay::default();
        let key = Bytes::from_static(b"copy");
        overlay.publish(&key, &Some(key.clone()), 8, 7, false);
        assert_eq!(overlay.get(b"copy").map(|applied| (applied.waits_for, applied.spaces_wait_for)), Some((7, 7)));
        overlay.publish(&key, &Some(key.clone()), 9, 5, false);
        assert_eq!(overlay.get(b"copy").map(|applied| (applied.waits_for, applied.spaces_wait_for)), Some((7, 7)));
    }
}

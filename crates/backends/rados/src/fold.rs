//! What the changes of a transaction come to, for one object: RADOS does not see in an operation what the same
//! operation has changed.
//!
//! changes, in order → [`Fold`] → what is removed, then what is set, each key once → parts of an operation
//!
//! Invariants:
//! 1. A key is removed or set, not both; ranges are removed before keys are set.
//! 2. After a removal of the object only what came later is left.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use esker_store::Change;

use crate::encode::{self, Xattr, kind};

/// Writes that are joined come to so many bytes at most: each joining copies what was there.
const JOINED_BYTES_MAX: usize = 32 << 10;

/// A step in the bytes of an object. They are done in their order, and each sees those before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Write { offset: u64, data: Bytes },
    Zero { offset: u64, len: u64 },
    Truncate { size: u64 },
}

/// What a transaction makes of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fold {
    /// What was there before is gone.
    pub(crate) removed: bool,
    /// It is there afterwards, also if it was missing.
    pub(crate) creates: bool,
    pub(crate) xattrs: BTreeMap<Bytes, Option<Bytes>>,
    /// Encoded omap keys: from the first on, before the second.
    pub(crate) ranges: BTreeSet<(Vec<u8>, Vec<u8>)>,
    /// Encoded omap keys with encoded values.
    pub(crate) omap: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    pub(crate) data: Vec<Data>,
}

impl Fold {
    /// What these changes come to; `None` if one of them is of several objects.
    pub(crate) fn of<'c>(changes: impl Iterator<Item = &'c Change>) -> Option<Self> {
        let mut fold = Self::default();
        for change in changes {
            fold.add(change)?;
        }
        Some(fold)
    }

    fn add(&mut self, change: &Change) -> Option<()> {
        self.creates |= change.creates();
        match change {
            Change::Touch => {}
            Change::Write { offset, data } if data.is_empty() => {
                let _ = offset;
            }
            Change::Write { offset, data } => self.write(*offset, data),
            Change::Zero { len: 0, .. } => {}
            Change::Zero { offset, len } => self.data.push(Data::Zero { offset: *offset, len: *len }),
            // All of it is cut off, or nothing is there: only what comes later counts.
            Change::Truncate { size } => {
                if *size == 0 {
                    self.data.clear();
                }
                self.data.push(Data::Truncate { size: *size });
            }
            Change::Remove => *self = Self { removed: true, ..Self::default() },
            Change::XattrSet { name, value } => {
                self.xattrs.insert(name.clone(), Some(value.clone()));
            }
            Change::XattrRemove { name } => {
                self.xattrs.insert(name.clone(), None);
            }
            Change::OmapSet { key, value } => self.set(encode::omap(key), value),
            Change::OmapRemove { key } => {
                self.omap.insert(encode::omap(key), None);
            }
            Change::OmapRemoveRange { start, end } => {
                let from = encode::before_omap(start).into_bytes();
                let end = end
                    .as_ref()
                    .map_or_else(|| encode::end_of(kind::OMAP), |end| encode::before_omap(end).into_bytes());
                self.clear(from, end);
            }
            Change::OmapClear => self.clear(vec![kind::OMAP], encode::end_of(kind::OMAP)),
            Change::SlotSet { index, value } => self.set(encode::slot(*index), value),
            Change::SlotRemove { index } => {
                self.omap.insert(encode::slot(*index), None);
            }
            Change::SlotRemoveRange { start, end } => {
                // They stand the other way round.
                let first = if *end == u64::MAX { vec![kind::SLOT] } else { encode::slot(*end) };
                // Behind the one of the end, which stays.
                let from = if *end == u64::MAX { first } else { [first, vec![0]].concat() };
                self.clear(from, [encode::slot(*start), vec![0]].concat());
            }
            Change::CloneTo { .. } | Change::CloneRange { .. } | Change::Rename { .. } => return None,
        }
        Some(())
    }

    /// Bytes that it writes.
    pub(crate) fn bytes(&self) -> usize {
        let data = self.data.iter().map(|step| if let Data::Write { data, .. } = step { data.len() } else { 0 });
        let xattrs = self.xattrs.values().flatten().map(Bytes::len);
        data.chain(xattrs).sum::<usize>() + self.key_bytes()
    }

    /// Whether it may be done in one operation with others.
    pub(crate) fn joins(&self) -> bool {
        let cuts = self.data.iter().any(|step| matches!(step, Data::Truncate { .. }));
        !self.removed && self.ranges.is_empty() && !cuts
    }

    /// Adds what comes after it. Both are such that [`Fold::joins`] holds of them.
    pub(crate) fn join(&mut self, later: &Self) {
        self.creates |= later.creates;
        self.xattrs.extend(later.xattrs.iter().map(|(name, value)| (name.clone(), value.clone())));
        self.omap.extend(later.omap.iter().map(|(key, value)| (key.clone(), value.clone())));
        for step in &later.data {
            match step {
                Data::Write { offset, data } => self.write(*offset, data),
                other => self.data.push(other.clone()),
            }
        }
    }

    /// Short writes that follow each other become one: an OSD takes time for each that grows with their number.
    fn write(&mut self, offset: u64, data: &Bytes) {
        match self.data.last_mut() {
            Some(Data::Write { offset: from, data: before })
                if *from + before.len() as u64 == offset && before.len() + data.len() <= JOINED_BYTES_MAX =>
            {
                *before = [&before[..], data].concat().into();
            }
            _ => self.data.push(Data::Write { offset, data: data.clone() }),
        }
    }

    fn set(&mut self, key: Vec<u8>, value: &Bytes) {
        self.omap.insert(key, Some(encode::value(value)));
    }

    fn clear(&mut self, from: Vec<u8>, end: Vec<u8>) {
        if from >= end {
            return;
        }
        let gone: Vec<Vec<u8>> = self.omap.range(from.clone()..end.clone()).map(|(key, _)| key.clone()).collect();
        for key in gone {
            self.omap.remove(&key);
        }
        self.ranges.insert((from, end));
    }

    /// Whether nothing of it needs an object to be there, and nothing is left of one that was.
    pub(crate) fn only_takes_away(&self) -> bool {
        !self.creates
    }

    /// Whether the object is missing afterwards.
    pub(crate) fn ends_missing(&self) -> bool {
        self.removed && !self.creates
    }

    /// Whether it changes nothing at all.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Bytes of keys and values that it adds.
    pub(crate) fn key_bytes(&self) -> usize {
        let added =
            |(key, value): (&Vec<u8>, &Option<Vec<u8>>)| value.as_ref().map_or(0, |value| key.len() + value.len());
        self.omap.iter().map(added).sum()
    }

    /// Whether it is of bytes and short xattrs only.
    pub(crate) fn has_no_keys(&self) -> bool {
        let is_own = |(place, _): (Xattr, _)| matches!(place, Xattr::Own(_));
        self.omap.is_empty() && self.ranges.is_empty() && self.placed_xattrs().all(is_own)
    }

    /// The xattrs that stand as such, and those that stand in the omap, by where they stand.
    pub(crate) fn placed_xattrs(&self) -> impl Iterator<Item = (Xattr, Option<&Bytes>)> {
        self.xattrs.iter().map(|(name, value)| (encode::xattr(name), value.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold(changes: &[Change]) -> Fold {
        Fold::of(changes.iter()).expect("of one object")
    }

    fn set(key: &'static str) -> Change {
        Change::OmapSet { key: key.into(), value: "v".into() }
    }

    #[test]
    fn a_key_is_removed_or_set_as_the_last_of_its_changes_says() {
        let range = |start: &'static str, end: &'static str| Change::OmapRemoveRange {
            start: start.into(),
            end: Some(end.into()),
        };
        let found =
            fold(&[set("a"), set("b"), set("c"), range("a", "c"), set("b"), Change::OmapRemove { key: "c".into() }]);
        let value = Some(encode::value(b"v"));
        assert_eq!(found.omap, [(encode::omap(b"b"), value), (encode::omap(b"c"), None)].into());
        assert_eq!(found.ranges.len(), 1);
        assert!(found.creates && !found.removed);
        assert!(fold(&[range("b", "b"), range("c", "a")]).is_empty());
        let slots = |start, end| {
            fold(&[Change::SlotSet { index: 7, value: "v".into() }, Change::SlotRemoveRange { start, end }])
        };
        for (start, end, left) in [(0, 7, 1), (7, 8, 0), (8, 20, 1), (0, u64::MAX, 0), (7, 7, 1), (8, 7, 1)] {
            assert_eq!(slots(start, end).omap.len(), left, "{start}..{end}");
        }
        let last = fold(&[
            Change::SlotSet { index: u64::MAX, value: "v".into() },
            Change::SlotRemoveRange { start: 3, end: u64::MAX },
        ]);
        assert!(last.omap.is_empty() && last.creates);
    }

    #[test]
    fn what_is_joined_comes_to_what_both_come_to() {
        let number = |value: u64| Change::number(b"n", value);
        let write = |offset, data: &'static str| Change::Write { offset, data: data.into() };
        let (one, other) = (
            [set("a"), number(1), write(0, "ab")],
            [Change::OmapRemove { key: "a".into() }, set("b"), number(2), write(2, "c")],
        );
        let (mut joined, later) = (fold(&one), fold(&other));
        assert!(joined.joins() && later.joins());
        joined.join(&later);
        assert_eq!(joined, Fold::of(one.iter().chain(&other)).unwrap());
        assert_eq!((later.bytes(), later.key_bytes()), (14, 5));
        for alone in [Change::Remove, Change::OmapClear, Change::Truncate { size: 1 }] {
            assert!(!fold(&[set("a"), alone]).joins());
        }
    }

    #[test]
    fn a_removal_leaves_only_what_comes_later() {
        let gone = fold(&[set("a"), Change::Remove]);
        assert!(gone.ends_missing() && gone.omap.is_empty());
        let anew = fold(&[set("a"), Change::Remove, Change::Touch]);
        assert!(anew.removed && anew.creates && !anew.ends_missing() && anew.omap.is_empty());
        assert!(Fold::of([Change::CloneTo { to: esker_store::ObjectId::new("c".into(), "o") }].iter()).is_none());
        let cut = fold(&[Change::Write { offset: 3, data: "x".into() }, Change::Truncate { size: 0 }]);
        assert_eq!(cut.data, [Data::Truncate { size: 0 }]);
        let write = |offset, data: &'static str| Change::Write { offset, data: data.into() };
        let joined = fold(&[write(3, "ab"), write(5, "c"), write(5, "d"), write(6, "e")]).data;
        let step = |offset, data: &'static str| Data::Write { offset, data: data.into() };
        assert_eq!(joined, [step(3, "abc"), step(5, "de")]);
    }
}

//! What stands in a span of a store, and its digest.
//!
//! span → [`read`] (either store) → [`Content`] → [`Content::digest`]
//!
//! Invariant: two contents of one span have the same digest exactly when they are the same, but for collisions of 128
//! bits: each part is preceded by its length.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use esker_store::{DataRun, Error, ObjectId, ObjectStore, Result};
use xxhash_rust::xxh3::Xxh3;

use super::keyed::Keyed;
use super::page::Span;

/// Length of a chunk of bytes; chunks begin at its multiples.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;
/// Entries that are asked for at once.
pub(super) const SCAN_ENTRIES: usize = 1_024;

/// What a page holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The xattrs of an object, all of them, by name.
    Xattrs(Vec<(Bytes, Bytes)>),
    /// The data of a chunk.
    Bytes {
        /// The runs of data in the chunk, in order; offsets are those in the object.
        runs: Vec<DataRun>,
        /// Their bytes, one run after the other.
        data: Bytes,
    },
    /// Omap entries by key.
    Omap(Vec<(Bytes, Bytes)>),
    /// Filled slots by index.
    Slots(Vec<(u64, Bytes)>),
}

fn feed<K: Keyed>(hash: &mut Xxh3, entries: &[(K, Bytes)]) {
    let mut part = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for (key, value) in entries {
        key.with_bytes(&mut part);
        part(value);
    }
}

/// About the bytes that these entries take.
pub(super) fn entries_bytes<K: Keyed>(entries: &[(K, Bytes)]) -> u64 {
    entries.iter().map(|(key, value)| key.entry_bytes(value)).sum()
}

impl Content {
    /// A digest of it, 128 bits of XXH3: for differences, not against forgery. The same on every machine.
    pub fn digest(&self) -> u128 {
        let mut hash = Xxh3::new();
        match self {
            Self::Xattrs(entries) => {
                hash.update(b"X");
                feed(&mut hash, entries);
            }
            Self::Bytes { runs, data } => {
                hash.update(b"B");
                hash.update(&(runs.len() as u64).to_le_bytes());
                for run in runs {
                    hash.update(&run.offset.to_le_bytes());
                    hash.update(&run.len.to_le_bytes());
                }
                hash.update(data);
            }
            Self::Omap(entries) => {
                hash.update(b"O");
                feed(&mut hash, entries);
            }
            Self::Slots(entries) => {
                hash.update(b"S");
                feed(&mut hash, entries);
            }
        }
        hash.digest128()
    }

    /// About the bytes that it takes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Xattrs(entries) | Self::Omap(entries) => entries_bytes(entries),
            Self::Bytes { runs, data } => data.len() as u64 + 16 * runs.len() as u64,
            Self::Slots(entries) => entries_bytes(entries),
        }
    }

    /// Whether it can be what stands in this span: nothing lies outside, everything is in order.
    pub(super) fn fits(&self, span: &Span) -> bool {
        match (self, span) {
            (Self::Xattrs(entries), Span::Object { .. }) => ascend(entries),
            (Self::Bytes { runs, data }, Span::Bytes { range, .. }) => {
                let (mut at, mut len) = (range.start, 0u64);
                for run in runs {
                    let Some(end) = run.offset.checked_add(run.len) else { return false };
                    if run.offset < at || end > range.end {
                        return false;
                    }
                    (at, len) = (end, len + run.len);
                }
                len == data.len() as u64
            }
            (Self::Omap(entries), Span::Omap { after, to, .. }) => within(entries, after.as_ref(), to),
            (Self::Slots(entries), Span::Slots { after, to, .. }) => within(entries, after.as_ref(), to),
            _ => false,
        }
    }
}

fn ascend<K: Ord>(entries: &[(K, Bytes)]) -> bool {
    entries.is_sorted_by(|(one, _), (next, _)| one < next)
}

/// A page of keys ends with the last key that it holds.
fn within<K: Ord>(entries: &[(K, Bytes)], after: Option<&K>, to: &K) -> bool {
    let above = after.is_none_or(|after| entries.first().is_some_and(|(first, _)| first > after));
    above && entries.last().is_some_and(|(last, _)| last == to) && ascend(entries)
}

/// What the store holds in this span; `None`: keys and values of more than `bytes_max` bytes, whatever they are.
pub(super) fn read(store: &dyn ObjectStore, span: &Span, bytes_max: u64) -> Result<Option<Content>> {
    Ok(match span {
        Span::Collection(collection) => {
            let why = format!("collection {collection} itself holds nothing that could be read");
            return Err(Error::Invalid { what: "page", why });
        }
        Span::Object { object, .. } => Some(Content::Xattrs(store.xattrs(object).wait()?)),
        Span::Bytes { object, range } => Some(read_bytes(store, object, range.clone())?),
        Span::Omap { object, after, to } => {
            read_keyed(store, object, after.as_ref(), to, bytes_max)?.map(Content::Omap)
        }
        Span::Slots { object, after, to } => {
            read_keyed(store, object, after.as_ref(), to, bytes_max)?.map(Content::Slots)
        }
    })
}

/// The data of a chunk.
pub(super) fn read_bytes(store: &dyn ObjectStore, object: &ObjectId, range: Range<u64>) -> Result<Content> {
    let runs = store.extents(object, range).wait()?;
    let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
        return Ok(Content::Bytes { runs, data: Bytes::new() });
    };
    let (start, end) = (first.offset, last.offset + last.len);
    let all = store.read(object, start..end).wait()?;
    if all.len() as u64 != end - start {
        let why = format!("{object} gave {} of the {} bytes from {start}", all.len(), end - start);
        return Err(Error::Invalid { what: "read", why });
    }
    if runs.len() == 1 {
        return Ok(Content::Bytes { runs, data: all });
    }
    let mut data = BytesMut::with_capacity(all.len());
    for run in &runs {
        let at = (run.offset - start) as usize;
        data.extend_from_slice(&all[at..at + run.len as usize]);
    }
    Ok(Content::Bytes { runs, data: data.freeze() })
}

/// The entries `after < key <= to`; `None`: they have more than `bytes_max` bytes.
pub(super) fn read_keyed<K: Keyed>(
    store: &dyn ObjectStore,
    object: &ObjectId,
    after: Option<&K>,
    to: &K,
    bytes_max: u64,
) -> Result<Option<Vec<(K, Bytes)>>> {
    let (mut found, mut bytes, mut above) = (Vec::new(), 0, after.cloned());
    loop {
        let more = K::scan(store, object, above.as_ref(), Some(to), SCAN_ENTRIES, false)?;
        let Some((last, _)) = more.last() else { return Ok(Some(found)) };
        above = Some(last.clone());
        bytes += entries_bytes(&more);
        if bytes > bytes_max {
            return Ok(None);
        }
        found.extend(more);
    }
}

/// The first run of data in the range. A hole is passed in steps that double, so that one answer of the store tells at
/// most of the runs that follow a hole over the length of that hole.
pub(super) fn first_data(store: &dyn ObjectStore, object: &ObjectId, mut range: Range<u64>) -> Result<Option<DataRun>> {
    let mut step = CHUNK_BYTES;
    while range.start < range.end {
        let end = range.end.min(range.start.saturating_add(step));
        if let Some(first) = store.extents(object, range.start..end).wait()?.first() {
            return Ok(Some(*first));
        }
        (range.start, step) = (end, step.saturating_mul(2));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use esker_memory::MemoryStore;
    use esker_store::{Change, Collection, Transaction};

    use super::*;
    use crate::copy::keyed::ENTRY_BYTES;

    #[test]
    fn contents_that_differ_have_other_digests() {
        let entries = |entries: &[(&'static str, &'static str)]| {
            entries.iter().map(|(key, value)| (Bytes::from(*key), Bytes::from(*value))).collect::<Vec<_>>()
        };
        let run = |offset, len| DataRun { offset, len };
        let bytes = |runs: &[DataRun]| Content::Bytes { runs: runs.to_vec(), data: "data".into() };
        let all = [
            Content::Xattrs(Vec::new()),
            Content::Omap(Vec::new()),
            Content::Slots(Vec::new()),
            Content::Omap(entries(&[("ab", "c")])),
            Content::Omap(entries(&[("a", "bc")])),
            Content::Xattrs(entries(&[("a", "bc")])),
            Content::Omap(entries(&[("a", "b"), ("", "c")])),
            Content::Slots(vec![(1, "bc".into())]),
            Content::Slots(vec![(2, "bc".into())]),
            bytes(&[run(0, 4)]),
            bytes(&[run(1, 4)]),
            bytes(&[run(0, 1), run(2, 3)]),
            bytes(&[run(0, 2), run(3, 2)]),
        ];
        for (at, one) in all.iter().enumerate() {
            assert_eq!(one.digest(), one.clone().digest());
            all[..at].iter().for_each(|other| assert_ne!(one.digest(), other.digest(), "{one:?} {other:?}"));
        }
    }

    /// What stores agree on when they are of different builds.
    #[test]
    fn a_digest_stays_what_it_is() {
        assert_eq!(
            Content::Omap(vec![("key".into(), "value".into())]).digest(),
            0xf12d_95c8_eee2_3b59_4a49_f2a8_66c7_8122
        );
    }

    #[test]
    fn what_does_not_fit_a_span_is_told() {
        let object = ObjectId::new(Collection::from("c"), "o");
        let slots = |after, to| Span::Slots { object: object.clone(), after, to };
        let of = |indexes: &[u64]| Content::Slots(indexes.iter().map(|index| (*index, Bytes::new())).collect());
        assert!(of(&[3, 5]).fits(&slots(Some(2), 5)) && of(&[0, 5]).fits(&slots(None, 5)));
        for (content, span) in [
            (of(&[3, 5]), slots(Some(3), 5)),
            (of(&[3, 5]), slots(None, 6)),
            (of(&[3, 3, 5]), slots(None, 5)),
            (of(&[4, 3, 5]), slots(None, 5)),
            (of(&[]), slots(None, 5)),
            (of(&[5]), Span::Object { object: object.clone(), size: 0 }),
        ] {
            assert!(!content.fits(&span), "{content:?} {span:?}");
        }
        let runs = |runs: &[(u64, u64)], len: usize| Content::Bytes {
            runs: runs.iter().map(|(offset, len)| DataRun { offset: *offset, len: *len }).collect(),
            data: vec![0; len].into(),
        };
        let chunk = Span::Bytes { object: object.clone(), range: 10..20 };
        assert!(runs(&[(10, 2), (13, 7)], 9).fits(&chunk));
        for (wrong, len) in
            [(&[(9, 2)][..], 2), (&[(10, 11)], 11), (&[(12, 2), (10, 1)], 3), (&[(10, 2)], 3), (&[(u64::MAX, 2)], 2)]
        {
            assert!(!runs(wrong, len).fits(&chunk), "{wrong:?}");
        }
    }

    #[test]
    fn no_more_is_read_of_keys_than_was_asked_for() {
        let (store, object) = (MemoryStore::new(), ObjectId::new(Collection::from("c"), "o"));
        let mut txn = Transaction::new().create_collection(object.collection());
        for index in 0..10 {
            txn.push(&object, Change::SlotSet { index, value: vec![0; 100].into() });
        }
        store.submit(txn).wait().unwrap();
        let read = |to, bytes_max| read_keyed::<u64>(&store, &object, Some(&1), &to, bytes_max).unwrap();
        let bytes = 100 + 8 + ENTRY_BYTES;
        assert_eq!(read(4, 3 * bytes).map(|found| found.len()), Some(3));
        assert_eq!(read(4, 3 * bytes - 1), None);
        assert_eq!(read(9, 3 * bytes), None);
    }
}

//! Reads of an open store, each on a draft without changes.
//!
//! read → lock of the object, shared → draft → value, and a barrier if it shows what is not yet durable
//!
//! Invariant: what a read may return is limited before it is gathered.

use std::ops::Range;

use bytes::Bytes;
use esker_store::limits::{SCAN_BYTES_MAX, SCAN_ENTRIES_MAX, TRANSACTION_BYTES_MAX, Together};
use esker_store::{Collection, CommitSeq, Completion, DataRun, Error, ObjectId, OmapScan, Result, SlotScan, Stat};

use crate::draft::Draft;
use crate::keys::{self, Tag};
use crate::records::Head;
use crate::store::Open;

/// Gathers what a scan returns, within its limits.
struct Gathered<K> {
    entries: Vec<(K, Bytes)>,
    bytes: usize,
    limit: usize,
    keys_only: bool,
}

impl<K> Gathered<K> {
    fn new(limit: usize, keys_only: bool) -> Self {
        Self { entries: Vec::new(), bytes: 0, limit: limit.min(SCAN_ENTRIES_MAX), keys_only }
    }

    /// Takes an entry; whether there is room for more.
    fn take(&mut self, key: K, key_len: usize, value: &[u8]) -> bool {
        let value = if self.keys_only { Bytes::new() } else { Bytes::copy_from_slice(value) };
        self.bytes += key_len + value.len();
        self.entries.push((key, value));
        self.entries.len() < self.limit && self.bytes < SCAN_BYTES_MAX
    }
}

impl Open {
    fn shown<R>(&self, found: Result<R>, seen: u64) -> Completion<R> {
        Completion::after(found, self.barrier(seen))
    }

    /// Looks at an object; a missing one looks like `R::default()`.
    fn look<R: Default>(
        &self,
        object: &ObjectId,
        only_spaces: bool,
        look: impl FnOnce(&Draft<'_>, Head) -> Result<R>,
    ) -> Completion<R> {
        let _lock = self.stripes[self.stripe(object)].read();
        let draft = Draft::new(&self.state);
        let found = match draft.head(object, only_spaces) {
            Ok(Some(head)) => look(&draft, head),
            Ok(None) => Ok(R::default()),
            Err(error) => Err(error),
        };
        self.shown(found, draft.seen())
    }

    pub fn sync(&self) -> Completion<CommitSeq> {
        let seq = self.commit.seq();
        if let Some(failure) = self.commit.mark().failure() {
            return Completion::ready(Err(failure));
        }
        Completion::after(Ok(CommitSeq(seq)), self.barrier(seq))
    }

    pub fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        self.look(object, false, |_, head| Ok(Some(head.stat)))
    }

    pub fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        if range.start > range.end {
            let why = format!("{}..{} ends before it starts", range.start, range.end);
            return Completion::ready(Err(Error::Invalid { what: "byte range", why }));
        }
        self.look(object, false, |draft, head| {
            let end = range.end.min(head.stat.size);
            let (len, max) = (end.saturating_sub(range.start), TRANSACTION_BYTES_MAX as u64);
            if len > max {
                return Err(Error::TooLarge { what: "read", len, limit: "TRANSACTION_BYTES_MAX", max });
            }
            draft.read_bytes(head.bytes, range.start, end)
        })
    }

    pub fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        self.look(object, false, |draft, head| draft.data_runs(head.bytes, range.start, range.end.min(head.stat.size)))
    }

    pub fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        self.look(object, true, |draft, head| draft.get(&keys::entry(Tag::Xattrs, head.xattrs, name)))
    }

    pub fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>> {
        self.look(object, true, |draft, head| {
            let (start, end) = (keys::entry(Tag::Xattrs, head.xattrs, &[]), keys::space_end(Tag::Xattrs, head.xattrs));
            let mut found = Vec::new();
            draft.scan(&start, &end, false, &mut |key, value| {
                found.push((Bytes::copy_from_slice(keys::rest(key)), Bytes::copy_from_slice(value)));
                Ok(true)
            })?;
            Ok(found)
        })
    }

    pub fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        self.look(object, true, |draft, head| draft.get(&keys::entry(Tag::Omap, head.omap, key)))
    }

    pub fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        let len = keys.len();
        self.look(object, true, |draft, head| {
            Together::gather(keys.iter().map(|key| draft.get(&keys::entry(Tag::Omap, head.omap, key))))
        })
        .map(move |found: Vec<_>| if found.is_empty() { vec![None; len] } else { found })
    }

    pub fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        self.look(object, true, |draft, head| {
            let start = keys::entry(Tag::Omap, head.omap, scan.start.as_deref().unwrap_or_default());
            let end = match &scan.end {
                Some(end) => keys::entry(Tag::Omap, head.omap, end),
                None => keys::space_end(Tag::Omap, head.omap),
            };
            let mut found = Gathered::new(scan.limit, scan.keys_only);
            if found.limit > 0 {
                draft.scan(&start, &end, scan.reverse, &mut |key, value| {
                    let key = Bytes::copy_from_slice(keys::rest(key));
                    let len = key.len();
                    Ok(found.take(key, len, value))
                })?;
            }
            Ok(found.entries)
        })
    }

    pub fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        self.look(object, true, |draft, head| draft.get(&keys::numbered(Tag::Slots, head.slots, index)))
    }

    pub fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>> {
        let len = indexes.len();
        self.look(object, true, |draft, head| {
            Together::gather(indexes.iter().map(|index| draft.get(&keys::numbered(Tag::Slots, head.slots, *index))))
        })
        .map(move |found: Vec<_>| if found.is_empty() { vec![None; len] } else { found })
    }

    pub fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        self.look(object, true, |draft, head| {
            let start = keys::numbered(Tag::Slots, head.slots, scan.range.start);
            let end = match scan.range.end {
                u64::MAX => keys::space_end(Tag::Slots, head.slots),
                end => keys::numbered(Tag::Slots, head.slots, end),
            };
            let mut found = Gathered::new(scan.limit, scan.keys_only);
            if found.limit > 0 {
                draft.scan(&start, &end, scan.reverse, &mut |key, value| {
                    let index = keys::rest_number(key).ok_or_else(|| crate::records::corrupt("slot", key))?;
                    Ok(found.take(index, 8, value))
                })?;
            }
            Ok(found.entries)
        })
    }

    pub fn collections(&self) -> Completion<Vec<Collection>> {
        let draft = Draft::new(&self.state);
        let mut found = Vec::new();
        let scanned = draft.scan(b"c", b"d", false, &mut |key, _| {
            found.push(Collection::new(Bytes::copy_from_slice(&key[1..])));
            Ok(true)
        });
        self.shown(scanned.map(|()| found), draft.seen())
    }

    pub fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        let draft = Draft::new(&self.state);
        let found = (|| {
            if !draft.has_collection(collection)? {
                return Err(Error::NoCollection { collection: collection.to_string() });
            }
            let prefix = keys::names(collection);
            let start = after.map_or_else(|| prefix.clone(), |after| keys::next(&[&prefix[..], after].concat()));
            let limit = limit.min(SCAN_ENTRIES_MAX);
            let mut found = Vec::new();
            if limit > 0 {
                draft.scan(&start, &keys::after_all(&prefix), false, &mut |key, _| {
                    found.push(Bytes::copy_from_slice(&key[prefix.len()..]));
                    Ok(found.len() < limit)
                })?;
            }
            Ok(found)
        })();
        self.shown(found, draft.seen())
    }
}

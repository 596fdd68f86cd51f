//! Entries in their objects: what each layout writes, reads and removes. One place for all three, so that nothing above
//! knows them.
//!
//! entry → changes of one object, with the guards that make a position write-once
//! local positions → stored bytes → [`Found`]
//!
//! Every change of a position guards, in the same transaction, that the object was not sealed by a newer epoch, that
//! the position was not trimmed, and that nothing stands there.
//!
//! Invariant: a guard's number tells what it means ([`Guarded`]), so that a refusal is understood without a second
//! look.

use std::ops::Range;

use bytes::Bytes;
use esker_store::{
    Barrier, Change, Compare, Condition, Error as StoreError, ObjectId, ObjectStore, OmapScan, SlotScan, Transaction,
    prefix,
};
use smallvec::SmallVec;

use crate::Result;
use crate::format::{self, EPOCH, Kind, Placed, Stored, Streams, TRIM, entry_key};
use crate::nonce::Nonce;
use crate::options::Layout;

/// What a guard of a transaction stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guarded {
    /// The object was sealed by a newer epoch, or does not exist.
    Epoch,
    /// The position is trimmed.
    Trim,
    /// The position is taken.
    Absent,
    /// The object's bytes do not end where they did.
    Size,
    /// Something that the caller added.
    Other,
}

/// A transaction with the meaning of its guards.
#[derive(Default)]
pub(crate) struct Guards {
    pub txn: Transaction,
    pub meaning: SmallVec<[Guarded; 8]>,
}

impl Guards {
    pub(crate) fn add(&mut self, object: &ObjectId, meaning: Guarded, condition: Condition) {
        self.txn.push_guard(object, condition);
        self.meaning.push(meaning);
    }

    /// No newer epoch has sealed the object, and it exists.
    pub(crate) fn epoch(&mut self, object: &ObjectId, epoch: u64) {
        let condition = Condition::compare(EPOCH, Compare::LessOrEqual, epoch, false);
        self.add(object, Guarded::Epoch, condition);
    }

    /// The local position is not trimmed.
    pub(crate) fn untrimmed(&mut self, object: &ObjectId, local: u64) {
        let condition = Condition::compare(TRIM, Compare::LessOrEqual, local, true);
        self.add(object, Guarded::Trim, condition);
    }

    pub(crate) fn absent(&mut self, object: &ObjectId, layout: Layout, local: u64) {
        let condition = match layout {
            Layout::Slots => Condition::SlotAbsent { index: local },
            Layout::Omap | Layout::Stream => Condition::OmapAbsent { key: entry_key(local) },
        };
        self.add(object, Guarded::Absent, condition);
    }

    /// The object's bytes end at `size`.
    pub(crate) fn size(&mut self, object: &ObjectId, size: u64) {
        self.add(object, Guarded::Size, Condition::SizeEquals { size });
    }
}

/// Sets what stands at a local position.
pub(crate) fn set(layout: Layout, local: u64, value: Bytes) -> Change {
    match layout {
        Layout::Slots => Change::SlotSet { index: local, value },
        Layout::Omap | Layout::Stream => Change::OmapSet { key: entry_key(local), value },
    }
}

/// Removes what stands at the local positions below `end`.
pub(crate) fn remove_below(layout: Layout, end: u64) -> Change {
    match layout {
        Layout::Slots => Change::SlotRemoveRange { start: 0, end },
        Layout::Omap | Layout::Stream => Change::OmapRemoveRange { start: entry_key(0), end: Some(entry_key(end)) },
    }
}

/// The bytes at some local positions, all at one moment.
pub(crate) fn get_many(
    store: &dyn ObjectStore,
    layout: Layout,
    object: &ObjectId,
    locals: &[u64],
) -> (esker_store::Result<Vec<Option<Bytes>>>, Option<Barrier>) {
    match layout {
        Layout::Slots if locals.len() == 1 => {
            let (found, barrier) = store.slot_get(object, locals[0]).into_parts();
            (found.map(|value| vec![value]), barrier)
        }
        Layout::Slots => store.slot_get_many(object, locals).into_parts(),
        Layout::Omap | Layout::Stream if locals.len() == 1 => {
            let (found, barrier) = store.omap_get(object, &entry_key(locals[0])).into_parts();
            (found.map(|value| vec![value]), barrier)
        }
        Layout::Omap | Layout::Stream => {
            let keys: Vec<_> = locals.iter().map(|local| entry_key(*local)).collect();
            store.omap_get_many(object, &keys).into_parts()
        }
    }
}

/// The highest local position that holds something.
pub(crate) fn last(store: &dyn ObjectStore, layout: Layout, object: &ObjectId) -> Result<Option<u64>> {
    Ok(match layout {
        Layout::Slots => prefix::last_slot(store, object, 0..u64::MAX)?,
        Layout::Omap | Layout::Stream => {
            let last = prefix::last_omap(store, object, OmapScan::of(b"e").keys())?;
            last.and_then(|(key, _)| format::key_number(&key))
        }
    })
}

/// Local positions of `range` that hold something, at most `limit` of them, in order, with what they hold unless only
/// they are asked for.
pub(crate) fn scan(
    store: &dyn ObjectStore,
    layout: Layout,
    object: &ObjectId,
    range: Range<u64>,
    limit: usize,
    keys_only: bool,
) -> Result<Vec<(u64, Bytes)>> {
    Ok(match layout {
        Layout::Slots => store.slot_scan(object, &SlotScan { range, reverse: false, limit, keys_only }).wait()?,
        Layout::Omap | Layout::Stream => {
            let (start, end) = (Some(entry_key(range.start)), Some(entry_key(range.end)));
            let found = store.omap_scan(object, &OmapScan { start, end, reverse: false, limit, keys_only }).wait()?;
            found.into_iter().filter_map(|(key, value)| Some((format::key_number(&key)?, value))).collect()
        }
    })
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its position.
    pub position: u64,
    /// What was appended.
    pub data: Bytes,
    /// The streams it belongs to.
    pub streams: Streams,
    /// Who wrote it.
    pub nonce: Nonce,
    /// When, by the writer's clock, in unix milliseconds.
    pub time_ms: u64,
}

/// What is found at a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// An entry.
    Entry(Entry),
    /// Nothing yet, though positions above were handed out: it may still be written, or filled.
    Hole,
    /// It was given up, and will never hold an entry.
    Filled,
    /// Its entry was given up.
    Trimmed,
    /// Nothing yet: it is at the tail or past it.
    BeyondTail,
    /// An entry stood here and cannot be read: why. Data loss.
    Lost(String),
}

/// What the bytes of a position mean, with the barrier of what had to be read for it.
pub(crate) fn understand(
    store: &dyn ObjectStore,
    object: &ObjectId,
    position: u64,
    value: &Bytes,
) -> Result<(Found, Option<Barrier>)> {
    let stored = match Stored::decode(position, value) {
        Ok(stored) => stored,
        Err(why) => return Ok((Found::Lost(why), None)),
    };
    let entry = |data| {
        let Stored { position, nonce, time_ms, streams, .. } = stored.clone();
        Found::Entry(Entry { position, data, streams, nonce, time_ms })
    };
    match stored.kind {
        Kind::Filled => Ok((Found::Filled, None)),
        Kind::Trimmed => Ok((Found::Trimmed, None)),
        Kind::Data => Ok((entry(stored.body.clone()), None)),
        Kind::Placed => {
            let Some(placed) = Placed::decode(&stored.body) else {
                return Ok((Found::Lost("its place does not make sense".into()), None));
            };
            let end = placed.offset + u64::from(placed.len);
            let (read, barrier) = store.read(object, placed.offset..end).into_parts();
            Ok(match read {
                Ok(data) if data.len() as u64 == u64::from(placed.len) && crc32c::crc32c(&data) == placed.crc => {
                    (entry(data), barrier)
                }
                Ok(data) => {
                    let why = format!("{} of {} bytes at offset {} of {object}", data.len(), placed.len, placed.offset);
                    (Found::Lost(format!("{why} do not match their checksum")), barrier)
                }
                Err(StoreError::Corrupt { offset, what }) => {
                    (Found::Lost(format!("corrupt at device offset {offset}: {what}")), barrier)
                }
                Err(error) => return Err(error.into()),
            })
        }
    }
}

/// The stored bytes of some local positions; what is damaged does not hide the others.
pub(crate) type Stands = std::result::Result<Option<Bytes>, String>;

/// As [`get_many`], but where something is damaged each position is looked at by itself.
pub(crate) fn get_each(
    store: &dyn ObjectStore,
    layout: Layout,
    object: &ObjectId,
    locals: &[u64],
) -> Result<(Vec<Stands>, Option<Barrier>)> {
    match get_many(store, layout, object, locals) {
        (Ok(values), barrier) => Ok((values.into_iter().map(Ok).collect(), barrier)),
        (Err(StoreError::Corrupt { .. }), _) => {
            let (mut all, mut latest) = (Vec::with_capacity(locals.len()), None);
            for local in locals {
                let (one, barrier) = get_many(store, layout, object, std::slice::from_ref(local));
                latest = Barrier::later(latest, barrier);
                all.push(match one {
                    Ok(mut value) => Ok(value.pop().flatten()),
                    Err(StoreError::Corrupt { offset, what }) => {
                        Err(format!("corrupt at device offset {offset}: {what}"))
                    }
                    Err(error) => return Err(error.into()),
                });
            }
            Ok((all, latest))
        }
        (Err(error), _) => Err(error.into()),
    }
}

/// The epoch at which an object was sealed; `None` if it does not exist.
pub(crate) fn epoch_of(store: &dyn ObjectStore, object: &ObjectId) -> Result<Option<u64>> {
    Ok(store.xattr(object, EPOCH).wait()?.as_deref().and_then(format::number_from))
}

/// Raises an object's epoch, or makes the object with it.
pub(crate) fn seal_change(epoch: u64) -> Change {
    Change::number(EPOCH, epoch)
}

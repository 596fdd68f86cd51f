//! Replay: does to the index what the log says.
//!
//! record → operations → objects: one after another ([`Replayer`]), or in parallel by object ([`parallel`])
//!
//! Invariant: an operation that makes no sense after what came before is an error, and changes nothing.

pub(crate) mod parallel;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use esker_store::limits::{COLLECTION_BYTES_MAX, OBJECT_BYTES_MAX, OMAP_KEY_BYTES_MAX};
use esker_store::{Collection, Error, Result};

use crate::buffer::SegmentBuffer;
use crate::format::{
    Kind, Loc, OBJECT_NUMBER_MAX, OpHeader, RecordHeader, Relocated, SegmentHeader, clone_range_words, decode_name,
    each_relocated, place_of, raw_len, relocated_entries,
};
use crate::index::Missing;
use crate::objects::{Object, Objects, Step};
use crate::pages::bring;
use crate::reader::Reader;
use crate::recover::Replay;
use crate::segments::{Lsn, Segments};
use crate::spaces::{Spaces, walk_ns};

/// The epoch of what is replayed: the first checkpoint after opening takes it.
const EPOCH: u32 = 1;

/// What operations change.
#[derive(Clone, Copy)]
struct Index<'a> {
    objects: &'a Objects,
    segments: &'a Segments,
    reader: Option<&'a Reader>,
}

/// Does to the index what the log says.
pub(crate) struct Replayer<'a> {
    index: Index<'a>,
    base_lsn: Lsn,
    last: Option<Arc<SegmentBuffer>>,
    next_number: u64,
    /// How long it was to be expected to take so far, in nanoseconds.
    pub(crate) expected_ns: u64,
}

impl Replay for Replayer<'_> {
    fn segment(&mut self, header: &SegmentHeader, buffer: &Arc<SegmentBuffer>) {
        if self.last.is_some() {
            self.base_lsn += self.index.segments.segment_bytes;
        }
        let segments = self.index.segments;
        segments.place(header.segment, header.generation, self.base_lsn, header.first_seq, false);
        segments.publish_buffer(header.segment, Arc::clone(buffer));
        segments.evict_buffers(Lsn::MAX);
        self.last = Some(Arc::clone(buffer));
    }

    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    fn record(&mut self, record: &RecordHeader, offset: u64, operations: &[u8]) -> Result<()> {
        let mut rest = operations;
        let mut at = offset + record.header_bytes() as u64;
        // The walk has verified every operation of the record.
        for _ in 0..record.op_count {
            let Some(header) = OpHeader::decode_trusted(rest) else { break };
            let total = header.total_bytes() as usize;
            self.whole(&header, &rest[..total], at)?;
            rest = &rest[total..];
            at += total as u64;
        }
        Ok(())
    }
}

impl<'a> Replayer<'a> {
    /// One that goes on with these objects. Without a reader all pages of their index are in memory.
    pub(crate) fn new(
        objects: &'a Objects,
        segments: &'a Segments,
        reader: Option<&'a Reader>,
        base_lsn: Lsn,
        next_number: u64,
    ) -> Self {
        Self { index: Index { objects, segments, reader }, base_lsn, last: None, next_number, expected_ns: 0 }
    }

    /// The buffer of the last segment, its log position, and the number of the next object.
    pub(crate) fn finish(self) -> (Option<Arc<SegmentBuffer>>, Lsn, u64) {
        (self.last, self.base_lsn, self.next_number)
    }

    /// Does what a whole operation at device offset `at` says, and counts what that takes.
    fn whole(&mut self, header: &OpHeader, operation: &[u8], at: u64) -> Result<()> {
        let objects = self.index.objects;
        self.expected_ns += expected_ns(header, || objects.numbered(header.object));
        let payload = &operation[header.payload_start()..header.payload_end()];
        self.operation(header, header.key(operation).0, payload, at)
    }

    /// Does what the operation at device offset `at` says.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when it makes no sense after what came before; nothing has changed then.
    pub(crate) fn operation(&mut self, header: &OpHeader, key: &[u8], payload: &[u8], at: u64) -> Result<()> {
        self.value(header, key, payload, value_of(header, payload, at)?)
    }

    /// The same, if the length of the value and its place are known. Only what holds no value of a space needs its
    /// payload.
    ///
    /// # Errors
    /// As [`Replayer::operation`].
    pub(crate) fn value(
        &mut self,
        header: &OpHeader,
        key: &[u8],
        payload: &[u8],
        (payload_len, loc): (u32, Loc),
    ) -> Result<()> {
        let at = loc.offset();
        let Index { objects, segments, .. } = self.index;
        let nonsense = |what: &str| nonsense(header, at, what);
        sound(header, key, payload, payload_len).map_err(nonsense)?;
        let find = |number: u64| objects.numbered(number).ok_or_else(|| nonsense(NO_OBJECT));
        match header.kind {
            Kind::CreateCollection => {
                objects.names.write().entry(Collection::new(key.to_vec())).or_default();
            }
            Kind::RemoveCollection => {
                let collection = Collection::new(key.to_vec());
                if objects.names.read().get(&collection).is_some_and(|objects| !objects.is_empty()) {
                    return Err(nonsense("its collection holds objects"));
                }
                objects.names.write().remove(&Collection::new(key.to_vec()));
            }
            Kind::CreateObject => {
                let id = decode_name(key).ok_or_else(|| nonsense("name is short"))?;
                let object = objects.get_or_insert(&id);
                if objects.numbered(header.object).is_some() || object.state.read().exists() {
                    return Err(nonsense("its number or its name is taken"));
                }
                {
                    let mut state = object.state.write();
                    state.number = header.object;
                    state.touched = EPOCH;
                }
                objects.note(header.object, EPOCH);
                objects.set_number(header.object, Some(&object));
                // A checkpoint may know of a collection's removal before the log comes to it.
                let mut names = objects.names.write();
                names.entry(id.collection().clone()).or_default().insert(id.name().clone(), object);
                self.next_number = self.next_number.max(header.object + 1);
            }
            Kind::Rename => {
                let to_id = decode_name(key).ok_or_else(|| nonsense("name is short"))?;
                let from = find(header.object)?;
                let to = objects.get_or_insert(&to_id);
                if Arc::ptr_eq(&from, &to) || to.state.read().exists() {
                    return Err(nonsense("its new name is taken"));
                }
                let mut state = from.state.write();
                objects.enter(&from.id, &mut state, EPOCH);
                state.move_to(&mut to.state.write());
                let mut names = objects.names.write();
                if let Some(collection) = names.get_mut(from.id.collection()) {
                    collection.remove(from.id.name());
                }
                names.entry(to_id.collection().clone()).or_default().insert(to_id.name().clone(), Arc::clone(&to));
                objects.unlink(&from.id, &mut state);
                objects.set_number(header.object, Some(&to));
            }
            Kind::Clone => {
                let (from, to) = (find(header.object)?, find(header.argument)?);
                if Arc::ptr_eq(&from, &to) {
                    return Err(nonsense("it is a copy of itself"));
                }
                self.index.bring(&from, |spaces, missing| spaces.all_missing(missing))?;
                self.index.bring(&to, |spaces, missing| spaces.all_missing(missing))?;
                let mut copy = from.state.read().spaces.clone();
                copy.shares = true;
                from.state.write().lent = true;
                let mut state = to.state.write();
                objects.enter(&to.id, &mut state, EPOCH);
                state.put(copy, segments);
                objects.count(&mut state);
            }
            Kind::CloneRange => {
                let [number, offset, len, to_offset] =
                    clone_range_words(payload).ok_or_else(|| nonsense("payload is short"))?;
                let (from, to) = (find(header.object)?, find(number)?);
                let range = offset..offset.saturating_add(len);
                self.index.bring(&from, |spaces, missing| spaces.extents.missing_for(offset, len, missing))?;
                self.index.bring(&to, |spaces, missing| spaces.extents.missing_for(to_offset, len, missing))?;
                let (parts, shifted): (Vec<_>, bool) = {
                    let mut state = from.state.write();
                    state.lent = true;
                    (state.extents.lookup(range).flatten().collect(), state.shifted)
                };
                let mut state = to.state.write();
                objects.enter(&to.id, &mut state, EPOCH);
                state.take_range((&parts, shifted), offset, len, to_offset, 0, segments);
                objects.count(&mut state);
            }
            Kind::Index => return Err(nonsense("has no place in the log")),
            _ => {
                self.index.change(&*find(header.object)?, header, key, payload, (payload_len, loc))?;
            }
        }
        Ok(())
    }
}

impl Index<'_> {
    /// Reads the pages that are missing for what comes next.
    fn bring(&self, object: &Object, of: impl FnOnce(&Spaces, &mut Vec<Missing>)) -> Result<()> {
        let Some(reader) = self.reader else { return Ok(()) };
        let mut missing = Vec::new();
        {
            let state = object.state.read();
            if state.cold_pages() > 0 {
                of(&state.spaces, &mut missing);
            }
        }
        if missing.is_empty() { Ok(()) } else { bring(reader, self.objects, object, &missing) }
    }

    /// Does what an operation says that changes one object, and is within the limits.
    ///
    /// # Errors
    /// As [`Replayer::operation`].
    fn change(
        &self,
        object: &Object,
        header: &OpHeader,
        key: &[u8],
        payload: &[u8],
        (payload_len, loc): (u32, Loc),
    ) -> Result<()> {
        let (kind, argument) = (header.kind, header.argument);
        self.bring(object, |spaces, missing| {
            spaces.missing(kind, argument, key, payload, payload_len.into(), missing);
        })?;
        let mut state = object.state.write();
        if state.number != header.object {
            // It was there when it was looked up, and was removed before its turn came.
            return Err(nonsense(header, loc.offset(), NO_OBJECT));
        }
        self.objects.enter(&object.id, &mut state, EPOCH);
        state.apply(&Step { kind, argument, key, payload, payload_len, loc }, 0, self.segments);
        self.objects.count(&mut state);
        if kind == Kind::RemoveObject {
            if let Some(collection) = self.objects.names.write().get_mut(object.id.collection()) {
                collection.remove(object.id.name());
            }
            self.objects.unlink(&object.id, &mut state);
            self.objects.set_number(header.object, None);
        }
        Ok(())
    }
}

const NO_OBJECT: &str = "its object does not exist";

fn nonsense(header: &OpHeader, at: u64, what: &str) -> Error {
    Error::Corrupt { offset: at, what: format!("{:?}: {what}", header.kind) }
}

/// The length of the value that an operation at device offset `at` has, and its place.
fn value_of(header: &OpHeader, payload: &[u8], at: u64) -> Result<(u32, Loc)> {
    let raw_len = raw_len(header, payload).ok_or_else(|| nonsense(header, at, "its payload is not compressed"))?;
    Ok((raw_len, place_of(header, payload, at, header.payload_end() as u64)))
}

/// How long replaying an operation is to be expected to take, in nanoseconds.
fn expected_ns(header: &OpHeader, object: impl FnOnce() -> Option<Arc<Object>>) -> u64 {
    let total = header.total_bytes();
    let entries = match header.kind {
        Kind::RelocateSlots | Kind::RelocateOmap | Kind::RelocateExtents => {
            relocated_entries(header.argument, u64::from(header.payload_len))
        }
        _ => 1,
    };
    let walked = if header.kind.walks_all() { object() } else { None };
    let walk = walked.map_or(0, |object| walk_ns(header.kind, &object.state.read().spaces));
    entries * header.kind.replay_ns() + total + walk
}

/// Whether an operation is within the limits that every program keeps; what is not, as an error. Checksums have held:
/// only a program that wrote nonsense can break these, and the index relies on them.
fn sound(header: &OpHeader, key: &[u8], payload: &[u8], payload_len: u32) -> std::result::Result<(), &'static str> {
    let within = |offset: u64, len: u64| offset.checked_add(len).is_some_and(|end| end <= OBJECT_BYTES_MAX);
    let word = || payload.try_into().map(u64::from_le_bytes);
    let names = matches!(header.kind, Kind::CreateCollection | Kind::RemoveCollection);
    if !names && !(1..OBJECT_NUMBER_MAX).contains(&header.object) {
        return Err("its object has a number that no object has");
    }
    match header.kind {
        Kind::CreateCollection | Kind::RemoveCollection if key.len() > COLLECTION_BYTES_MAX => {
            Err("its name is too long")
        }
        Kind::Write if !within(header.argument, payload_len.into()) => Err("it reaches past the largest object"),
        Kind::Zero if !word().is_ok_and(|len| within(header.argument, len)) => {
            Err("it reaches past the largest object")
        }
        Kind::Truncate if header.argument > OBJECT_BYTES_MAX => Err("it is above the largest object"),
        Kind::OmapSet | Kind::OmapRemove | Kind::OmapRemoveRange if key.len() > OMAP_KEY_BYTES_MAX => {
            Err("its key is too long")
        }
        Kind::SlotRemoveRange if word().is_err() => Err("its payload is no number"),
        Kind::CloneRange => match clone_range_words(payload) {
            Some([_, from, len, to]) if within(from, len) && within(to, len) => Ok(()),
            _ => Err("it reaches past the largest object"),
        },
        Kind::RelocateSlots | Kind::RelocateOmap | Kind::RelocateExtents => {
            let mut holds = true;
            holds &= each_relocated(header.kind, header.argument, payload, |entry| {
                holds &= match entry {
                    Relocated::Slot(_, place) => Loc::from_raw(place).is_some(),
                    Relocated::Omap(key, place) => Loc::from_raw(place).is_some() && key.len() <= OMAP_KEY_BYTES_MAX,
                    Relocated::Extent { offset, place, len, skip } => {
                        Loc::from_raw(place).is_some() && within(offset, len.into()) && skip.checked_add(len).is_some()
                    }
                }
            });
            if holds { Ok(()) } else { Err("one of its entries is none") }
        }
        _ => Ok(()),
    }
}

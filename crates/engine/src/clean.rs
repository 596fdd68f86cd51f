//! The cleaner's one step: what still lives in a segment is copied to a cold one, and the log says so.
//!
//! ```text
//! segment → records → does the index still point here? → copy (verified) → [`Batch`] → cold segment, written
//!   → synced → object's lock: those that still are where they were → one record of relocations → index
//! ```
//!
//! Invariants:
//! 1. A copy is made only of what has been verified.
//! 2. A relocation is written and applied under the object's lock, for entries that still point to the old place: what
//!    was deleted or overwritten meanwhile stays so, whatever the order of crash and cleaning.
//! 3. Data that several objects share is copied once in a run, but for that of a clone which is made meanwhile.
//! 4. What is compressed is moved as it stands, in whole units; only where that would take more than the bytes of them
//!    that live is it decompressed first. So a copy never takes more than what lives, but for where it comes from:
//!    eight bytes, or twelve, for each value.
//! Source: Rosenblum and Ousterhout, The Design and Implementation of a Log-Structured File System (1992), section 3.

mod sharers;

pub use sharers::learn_sharers;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use esker_device::Device;
use esker_store::{Error, ObjectId, Result};

use crate::buffer::{BufferSlice, SegmentBuffer};
use crate::checkpoint::{Parts, Saved};
use crate::cold::{Cold, Writes};
use crate::commit::{Class, Refused, record_header};
use crate::format::{
    Compressed, Kind, Loc, OP_FLAG_COMPRESSED, OpHeader, Payload, RECORD_HEADER_BYTES, Relocated, Relocations, Role,
    SegmentHeader, checksum_payload, encode_operation, operation_bytes, raw_len, verify_payload,
};
use crate::index::{Extent, Missing, offset_of};
use crate::objects::{Object, ObjectState, Spaces, Step};
use crate::pages::{Page, bring, each_page};
use crate::reader::{Asked, SegmentView, Sought, each_operation};
use crate::segments::{DamageLevel, Usage};
use crate::watch::{FAILED_READS_MAX, read_readable};

/// So much is read at a time: clients' reads and syncs wait for no more.
const READ_BYTES: usize = 1 << 20;
/// The same beside clients, past the operating system's cache.
const SMALL_READ_BYTES: usize = 256 << 10;
/// Copies are handed on when so many bytes have gathered.
const BATCH_BYTES: u64 = 4 << 20;
/// At most so many entries are relocated under one lock and in one record.
const RELOCATIONS_MAX: usize = 512;

/// What cleaning a segment came to.
#[derive(Clone, Debug, Default)]
pub struct Cleaned {
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Values copied.
    pub copied: u64,
    /// Places that do not hold: what stands there stays, and so does the segment.
    pub damaged: u64,
    /// What is lost of them, by name, the first of them.
    pub lost: Vec<Damaged>,
}

/// A value that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Device offset.
    pub offset: u64,
    /// Whose it is, and what is wrong.
    pub what: String,
}

/// Where pieces of the newest checkpoint stand where damage was found, so many checkpoints are due: the first writes
/// these pieces again, and after the second the one before the newest holds as well.
pub const RENEWALS: u8 = 2;
/// So many losses of a segment are named.
pub const NAMED_MAX: usize = 100;

/// One segment being cleaned.
pub struct Clean<'a> {
    /// The engine's parts.
    pub parts: &'a Parts,
    /// The device.
    pub device: &'a dyn Device,
    /// Seed of all checksums.
    pub seed: u32,
    /// Where copies go.
    pub cold: &'a mut Cold,
    /// The last checkpoint.
    pub saved: &'a mut Saved,
    /// Where it is read to.
    pub scratch: &'a mut Option<SegmentBuffer>,
    /// Takes what was copied.
    pub mover: &'a dyn Mover,
    /// Checkpoints that are due because of damage.
    pub renew: &'a mut u8,
}

/// Gives copies their places.
pub trait Mover {
    /// So many bytes were copied that are not handed on yet.
    fn copied(&self, bytes: u64);

    /// Between two reads, or records: no lock is held but that of the keeper's work.
    fn rest(&self);

    /// Whether it rests. Then segments are read in small pieces, past the operating system's cache: its reads ahead, of
    /// megabytes, would hold up what clients read and sync.
    fn rests(&self) -> bool;

    /// Takes a batch, in order, with the copies, which are not written. It may be moved later.
    ///
    /// # Errors
    /// What went wrong with this batch or one before it.
    fn hand(&self, batch: Batch, copies: Writes) -> Result<()>;

    /// Returns when all batches are moved.
    ///
    /// # Errors
    /// What went wrong with one of them.
    fn wait(&self) -> Result<()>;
}

enum Entry {
    Slot(u64),
    Omap(Vec<u8>),
    /// Offset in the object, length, and first byte in the old payload.
    Extent(u64, u32, u32),
}

struct Moved {
    entry: Entry,
    old: Loc,
    new: Loc,
    /// The copy begins at this byte of the old payload.
    skip: u32,
}

/// A stretch of an old payload, once decompressed, and where its copy is.
#[derive(Clone, Copy)]
struct Stretch {
    skip: u32,
    len: u32,
    new: Loc,
}

/// Copies whose entries still point to the old places.
#[derive(Default)]
pub struct Batch {
    objects: BTreeMap<u64, (Arc<Object>, Vec<Moved>)>,
    /// Bytes copied.
    pub bytes: u64,
}

impl Clean<'_> {
    /// Moves all that lives in a segment, which is sealed and covered by a checkpoint.
    ///
    /// # Errors
    /// [`Error::Full`](esker_store::Error::Full) without room for copies;
    /// [`Error::Stopped`](esker_store::Error::Stopped); [`Error::Io`](esker_store::Error::Io). What was moved stays
    /// moved.
    pub fn segment(&mut self, victim: Usage) -> Result<Cleaned> {
        let _span = tracing::trace_span!(target: "esker_trace", "clean", bytes = victim.live).entered();
        let mut cleaned = Cleaned::default();
        if self.mover.rests() {
            if self.segment_as_read(victim, true, &mut cleaned)? {
                return Ok(cleaned);
            }
            // What the medium has lost the operating system's cache may still hold.
            (cleaned.damaged, cleaned.lost) = (0, Vec::new());
        }
        self.segment_as_read(victim, false, &mut cleaned)?;
        Ok(cleaned)
    }

    /// Reads the segment, past the operating system's cache or not, and moves what lives there. Whether that is all:
    /// past the cache nothing is done about damage.
    fn segment_as_read(&mut self, victim: Usage, past_cache: bool, cleaned: &mut Cleaned) -> Result<bool> {
        let segment_bytes = self.parts.segments.segment_bytes;
        let base = victim.segment * segment_bytes;
        // Sealed, so no writer writes there any more.
        let buffer = self.parts.segments.buffer(victim.segment);
        let buffer = buffer.map(|buffer| BufferSlice { start: buffer.from, len: buffer.len() - buffer.from, buffer });
        let mut scratch = self.scratch.take();
        let mut unread = 0;
        let bytes = match &buffer {
            Some(buffer) if buffer.start == 0 => buffer.as_ref(),
            buffer => {
                let scratch = match &mut scratch {
                    Some(scratch) => scratch,
                    none => {
                        let mapped = SegmentBuffer::new(segment_bytes as usize);
                        none.insert(mapped.map_err(|error| Error::io("reading a segment to clean it", error))?)
                    }
                };
                let scratch = scratch.whole_mut();
                let block_bytes = self.device.geometry().block_bytes;
                let read = |at, bytes: &mut [u8]| {
                    if past_cache { self.device.read_medium(at, bytes) } else { self.device.read(at, bytes) }
                };
                let at_once = if past_cache { SMALL_READ_BYTES } else { READ_BYTES };
                for (piece, at) in scratch.chunks_mut(at_once).zip((base..).step_by(at_once)) {
                    if unread >= FAILED_READS_MAX {
                        // Of a device that fails no more is asked.
                        piece.fill(0);
                        unread += 1;
                        continue;
                    }
                    unread += read_readable(block_bytes, at, piece, read);
                    self.mover.rest();
                }
                if let Some(buffer) = buffer {
                    // The device may have lost what still stands in memory.
                    scratch[buffer.start..].copy_from_slice(buffer.as_ref());
                }
                &*scratch
            }
        };
        let view = SegmentView {
            bytes,
            base,
            generation: victim.generation,
            end: victim.end,
            block: u64::from(self.device.geometry().block_bytes),
            seed: self.seed,
        };
        let mut batch = Batch::default();
        let mut copies: HashMap<u64, Vec<Stretch>> = HashMap::new();
        self.learn_sharers()?;
        let shared = self.parts.segments.sharing.is_shared(victim.segment);
        for (record, at, body) in view.records() {
            let mut failed = None;
            let mut number = 0;
            let walked = each_operation(&record, at, body, self.seed, |header, operation, place| {
                let origin = (record.seq, number);
                number += 1;
                if failed.is_none() {
                    let live = self.operation(
                        header,
                        operation,
                        place,
                        origin,
                        &mut batch,
                        cleaned,
                        shared.then_some(&mut copies),
                    );
                    failed = live.err();
                }
                Ok(())
            });
            cleaned.damaged += u64::from(walked.is_err());
            failed.map_or(Ok(()), Err)?;
            if batch.bytes >= BATCH_BYTES {
                self.hand(&mut batch)?;
            }
            self.mover.rest();
        }
        self.hand(&mut batch)?;
        if past_cache && (cleaned.damaged > 0 || unread > 0) {
            self.mover.wait()?;
            *self.scratch = scratch;
            return Ok(false);
        }
        let damaged = cleaned.damaged > 0 || unread > 0 || victim.damage != DamageLevel::None;
        // A clone may have been made meanwhile, of what was not moved yet.
        if damaged || self.parts.segments.sharing.is_shared(victim.segment) {
            self.mover.wait()?;
            let left = self.parts.segments.usage(victim.segment).unwrap_or(victim);
            if damaged {
                // Where a record cannot be walked, what it holds is found by what points to it.
                cleaned.damaged = 0;
                self.index_pieces(&view)?;
            }
            if left.live > 0 {
                let objects = if damaged { self.all_objects() } else { self.sharers(victim.segment) };
                for object in objects {
                    self.pointed_to(&view, &object, &mut batch, &mut copies, cleaned)?;
                }
                self.hand(&mut batch)?;
            }
        }
        *self.scratch = scratch;
        Ok(true)
    }

    fn all_objects(&self) -> Vec<Arc<Object>> {
        let mut all = Vec::new();
        self.parts.objects.for_each(|object| all.push(Arc::clone(object)));
        // What shares data may have a copy that is another's, and nothing else may: so it comes last.
        all.sort_by_key(|object| object.state.read().shares);
        all
    }

    #[expect(clippy::too_many_arguments, reason = "an operation, its place, and what gathers")]
    fn operation(
        &mut self,
        header: &OpHeader,
        operation: &[u8],
        place: u64,
        origin: (u64, u32),
        batch: &mut Batch,
        cleaned: &mut Cleaned,
        copies: Option<&mut HashMap<u64, Vec<Stretch>>>,
    ) -> Result<()> {
        if header.kind == Kind::Index {
            let Some(role) = Role::from_argument(header.argument) else { return Ok(()) };
            return if self.saved.holds(header.object, role, place) {
                self.index_piece(header.object, role)
            } else {
                Ok(())
            };
        }
        if !matches!(header.kind, Kind::SlotSet | Kind::OmapSet | Kind::Write) {
            return Ok(());
        }
        let objects = &self.parts.objects;
        let Some(object) = objects.numbered(header.object) else { return Ok(()) };
        let (key, moved_from) = header.key(operation);
        let origin = moved_from.unwrap_or(origin);
        let payload = &operation[header.payload_start()..header.payload_end()];
        let live = loop {
            let state = object.state.read();
            if state.number != header.object {
                return Ok(());
            }
            match live_entries(&state, header, key, payload, place) {
                Ok(live) => break live,
                Err(missing) => {
                    drop(state);
                    bring(&self.parts.reader, objects, &object, &[missing])?;
                }
            }
        };
        if live.is_empty() {
            return Ok(());
        }
        let Some(value) = Value::new(header, operation) else {
            cleaned.damaged += 1;
            return Ok(());
        };
        let stretches: Vec<(u32, u32)> = live.iter().map(|(entry, _)| stretch(entry, value.raw_len)).collect();
        if stretches.iter().any(|(skip, len)| u64::from(*skip) + u64::from(*len) > u64::from(value.raw_len)) {
            cleaned.damaged += 1;
            return Ok(());
        }
        let runs = value.runs(&stretches);
        let mut made: Vec<Stretch> = Vec::new();
        for ((entry, old), wanted) in live.into_iter().zip(stretches) {
            let known = made.iter().find(|made| made.covers(wanted)).copied();
            let copy = match known {
                Some(copy) => copy,
                None => {
                    let units = value.run(&runs, wanted);
                    let copy = self.copy(header, &entry, &value, units, origin, batch, cleaned)?;
                    let Some(copy) = copy else { continue };
                    made.push(copy);
                    copy
                }
            };
            let moved = &mut batch.objects.entry(header.object).or_insert_with(|| (Arc::clone(&object), Vec::new())).1;
            moved.push(Moved { entry, old, new: copy.new, skip: copy.skip });
        }
        if let Some(copies) = copies {
            copies.entry(place).or_default().extend(made);
        }
        Ok(())
    }

    /// Copies a value to the cold segment, or the stretch of it that an entry has: of a compressed one these units, or
    /// the decompressed bytes. `None` if it does not decompress.
    #[expect(clippy::too_many_arguments, reason = "a value, what of it is wanted, and what gathers")]
    fn copy(
        &mut self,
        header: &OpHeader,
        entry: &Entry,
        value: &Value<'_>,
        units: Option<Range<u32>>,
        origin: (u64, u32),
        batch: &mut Batch,
        cleaned: &mut Cleaned,
    ) -> Result<Option<Stretch>> {
        let (skip, len) = stretch(entry, value.raw_len);
        let made;
        let (payload, flags, first, raw_len) = match (&value.table, entry) {
            (Some(table), Entry::Extent(..)) => match units {
                Some(units) => {
                    let raw = table.raw_range(units.clone());
                    made = table.cut(units, value.payload);
                    (&made[..], header.flags, raw.start, raw.len() as u32)
                }
                None => {
                    let Some(raw) = value.decompressed(skip..skip + len) else {
                        cleaned.damaged += 1;
                        return Ok(None);
                    };
                    made = raw;
                    (&made[..], header.flags & !OP_FLAG_COMPRESSED, skip, len)
                }
            },
            (Some(_), _) => (value.payload, header.flags, 0, value.raw_len),
            (None, _) => (&value.payload[skip as usize..(skip + len) as usize], header.flags, skip, len),
        };
        let own;
        let sums = if std::ptr::eq(payload, value.payload) {
            &value.sums
        } else {
            own = checksum_payload(payload);
            &own
        };
        let (argument, key): (u64, &[u8]) = match entry {
            Entry::Slot(slot) => (*slot, &[]),
            Entry::Omap(key) => (0, key),
            // Where the copy's first byte was written to, which is not where an object has it that took a range.
            Entry::Extent(..) => (header.argument.saturating_add(first.into()), &[]),
        };
        let mut header = OpHeader { flags, argument, ..*header };
        let long_key = header.move_from(origin, key, payload.len());
        let new = self.cold.queue(header, &long_key, payload, sums, origin.0)?;
        cleaned.copied += 1;
        cleaned.copied_bytes += new.span_bytes();
        batch.bytes += new.span_bytes();
        self.mover.copied(batch.bytes);
        Ok(Some(Stretch { skip: first, len: raw_len, new }))
    }

    /// Has the next checkpoint write all pieces of the last one again that stand in a segment; those that are read for
    /// that and do not hold, or cannot be read, stay.
    fn index_pieces(&mut self, victim: &SegmentView<'_>) -> Result<()> {
        let range = victim.base..victim.base + victim.bytes.len() as u64;
        for (object, role, _) in self.saved.pieces_in(&range) {
            match self.index_piece(object, role) {
                Err(error @ (Error::Corrupt { .. } | Error::Io { .. })) => {
                    tracing::error!(%error, "a piece of the checkpoint does not hold, and is not in memory");
                }
                other => {
                    other?;
                    *self.renew = RENEWALS;
                }
            }
        }
        Ok(())
    }

    /// A piece of the last checkpoint is moved by having the next one write it again.
    fn index_piece(&mut self, number: u64, role: Role) -> Result<()> {
        if let Role::Table(part) = role {
            self.saved.dirty_parts.insert(part);
        }
        let objects = &self.parts.objects;
        let Some(object) = objects.numbered(number) else { return Ok(()) };
        let epoch = self.parts.log.epoch();
        let mut state = object.state.write();
        if let Role::Page(space, page) = role
            && let Some(loc) = state.cold_page(space, page)
        {
            drop(state);
            bring(&self.parts.reader, objects, &object, &[Missing { space, page, loc }])?;
            state = object.state.write();
        }
        if state.number != number {
            return Ok(());
        }
        objects.enter(&object.id, &mut state, epoch);
        if let Role::Page(space, page) = role {
            state.mark_dirty(space, page);
        }
        Ok(())
    }

    /// Hands on what was copied.
    fn hand(&mut self, batch: &mut Batch) -> Result<()> {
        if batch.objects.is_empty() {
            return Ok(());
        }
        self.mover.hand(std::mem::take(batch), self.cold.take_queue())
    }

    /// Where in commit order the operations of a segment come from, by their offsets, as far as their headers hold; and
    /// where its records begin and end, with their sequence numbers.
    fn origins(&self, victim: &SegmentView<'_>) -> Origins {
        let mut origins = Origins::default();
        for (record, at, body) in victim.records() {
            if origins.records.is_empty() {
                // Sequence numbers begin with 1.
                origins.first_seq = record.seq.saturating_sub(1).max(1);
            }
            origins.records.push((at, at + u64::from(record.len), record.seq));
            let (mut rest, mut place) = (body, at + record.header_bytes() as u64);
            for number in 0..record.op_count {
                let Some(header) = OpHeader::decode(rest, self.seed, victim.generation, place) else { break };
                origins.known.insert(place, (record.seq, number));
                let Some(after) = rest.get(header.total_bytes() as usize..) else { break };
                rest = after;
                place += header.total_bytes();
            }
        }
        let header = SegmentHeader::decode(
            victim.bytes,
            &self.parts.superblocks.newest().uuid,
            victim.base / victim.bytes.len() as u64,
        );
        if let Some(header) = header.filter(|header| header.generation == victim.generation) {
            origins.first_seq = header.first_seq;
        }
        origins
    }

    /// Moves what an object still has in the segment, found by its index: of one that shares data the walk over the
    /// records finds an entry only where it was written, and of damaged records it finds none.
    fn pointed_to(
        &mut self,
        victim: &SegmentView<'_>,
        object: &Arc<Object>,
        batch: &mut Batch,
        copies: &mut HashMap<u64, Vec<Stretch>>,
        cleaned: &mut Cleaned,
    ) -> Result<()> {
        let inside = |loc: Loc| (victim.base..victim.base + victim.bytes.len() as u64).contains(&loc.offset());
        let mut origins = None;
        let (sharing, segment) = (&self.parts.segments.sharing, self.parts.segments.segment_of(victim.base));
        // Before it is looked at: what it gets from now on is noted again.
        let asked = object.numbered_spaces().0;
        let noted = sharing.remove(asked, Some(segment));
        // As it is now, page by page: what is not in memory is looked at and left where it is.
        let (number, spaces) = object.numbered_spaces();
        if number == 0 {
            // What has another name by now is found by its number the next time.
            sharing.note(asked, noted.then_some(segment));
            return Ok(());
        }
        let mut entries: Vec<(Entry, Loc)> = Vec::new();
        let walked = each_page(&self.parts.reader, number, &spaces, &mut |page| {
            each_entry(page, &mut |entry, loc| {
                if inside(loc) {
                    entries.push((entry, loc));
                }
            });
            Ok(())
        });
        // If its index could not be read, the cleaner does not know what the object has there: it stays noted.
        if noted && (walked.is_err() || !entries.is_empty()) {
            sharing.note(number, Some(segment));
        }
        walked?;
        for (entry, old) in entries {
            let operation = &victim.bytes[(old.offset() - victim.base) as usize..];
            let (header, value, wanted) = match verified(victim, operation, old, &entry, number, &spaces) {
                Ok(verified) => verified,
                Err(error) => {
                    cleaned.damaged += 1;
                    if cleaned.lost.len() < NAMED_MAX {
                        let what = match error {
                            Error::Corrupt { what, .. } => what,
                            other => other.to_string(),
                        };
                        let what = format!("{}: {what}", entry.describe(&object.id));
                        cleaned.lost.push(Damaged { offset: old.offset(), what });
                    }
                    continue;
                }
            };
            let known = copies.get(&old.offset()).and_then(|copies| copies.iter().find(|copy| copy.covers(wanted)));
            let copy = match known {
                Some(known) => *known,
                None => {
                    let origins = origins.get_or_insert_with(|| self.origins(victim));
                    let origin = header.key(operation).1.unwrap_or_else(|| origins.of(old.offset()));
                    let owned = OpHeader { object: number, ..header };
                    let units = value.run(&value.runs(&[wanted]), wanted);
                    let copy = self.copy(&owned, &entry, &value, units, origin, batch, cleaned)?;
                    let Some(copy) = copy else { continue };
                    copies.entry(old.offset()).or_default().push(copy);
                    copy
                }
            };
            let moved = &mut batch.objects.entry(number).or_insert_with(|| (Arc::clone(object), Vec::new())).1;
            moved.push(Moved { entry, old, new: copy.new, skip: copy.skip });
            if batch.bytes >= BATCH_BYTES {
                self.hand(batch)?;
            }
        }
        Ok(())
    }
}

/// Where in commit order operations come from.
#[derive(Default)]
struct Origins {
    known: HashMap<u64, (u64, u32)>,
    records: Vec<(u64, u64, u64)>,
    /// What the first record had, as far as that is known.
    first_seq: u64,
}

impl Origins {
    /// Of an operation behind one whose header does not hold the place among those of its record is not known, of one
    /// in a record whose header does not hold that it comes after the record before: both keep their order among
    /// themselves and towards all records that hold.
    fn of(&self, offset: u64) -> (u64, u32) {
        if let Some(known) = self.known.get(&offset) {
            return *known;
        }
        let number = u32::MAX / 2 + (offset / 8 % (1 << 28)) as u32;
        let before = self.records.partition_point(|(begins, ..)| *begins <= offset);
        match before.checked_sub(1).map(|at| self.records[at]) {
            Some((_, ends, seq)) => (if offset < ends { seq } else { seq + 1 }, number),
            None => (self.first_seq, number),
        }
    }
}

impl Entry {
    fn describe(&self, id: &ObjectId) -> String {
        match self {
            Self::Slot(slot) => format!("slot {slot} of {id}"),
            Self::Omap(key) => format!("key {} of {id}", key.escape_ascii()),
            Self::Extent(at, len, _) => format!("{len} bytes at {at} of {id}"),
        }
    }
}

/// What an entry has at its place: the operation's header, its value, and the stretch of that.
fn verified<'a>(
    victim: &SegmentView<'_>,
    operation: &'a [u8],
    place: Loc,
    entry: &Entry,
    number: u64,
    spaces: &Spaces,
) -> Result<(OpHeader, Value<'a>, (u32, u32))> {
    let damaged = |what: &str| Error::Corrupt { offset: place.offset(), what: what.into() };
    let header = OpHeader::decode(operation, victim.seed, victim.generation, place.offset());
    let header = header.ok_or_else(|| damaged("operation header checksum mismatch"))?;
    let what = match entry {
        Entry::Slot(slot) => Sought::Slot(*slot),
        Entry::Omap(key) => Sought::Omap(key),
        Entry::Extent(at, len, skip) => {
            Sought::Data(spaces.written_at(*at, &Extent { loc: place, len: *len, skip: *skip }))
        }
    };
    Asked { object: spaces.owner(number), what }.compare(place, &header, operation)?;
    if header.payload_end() > operation.len() || !verify_payload(&header, operation) {
        return Err(damaged("payload checksum mismatch"));
    }
    let value = Value::new(&header, operation).ok_or_else(|| damaged("its payload is not compressed as it says"))?;
    let wanted = stretch(entry, value.raw_len);
    if u64::from(wanted.0) + u64::from(wanted.1) > u64::from(value.raw_len) {
        return Err(damaged("its payload is shorter than the index says"));
    }
    Ok((header, value, wanted))
}

impl Batch {
    /// Points the index to the copies, which are durable. Returns the bytes of log that say so.
    ///
    /// # Errors
    /// [`Error::Full`](esker_store::Error::Full), [`Error::Stopped`](esker_store::Error::Stopped); of the index's pages
    /// [`Error::Io`](esker_store::Error::Io) and [`Error::Corrupt`](esker_store::Error::Corrupt). What was moved stays
    /// moved.
    pub fn relocate(self, parts: &Parts, seed: u32, between: &mut dyn FnMut()) -> Result<u64> {
        let mut logged = 0;
        for (number, (object, moved)) in self.objects {
            for moved in moved.chunks(RELOCATIONS_MAX) {
                for kind in [Kind::RelocateSlots, Kind::RelocateOmap, Kind::RelocateExtents] {
                    logged += relocate_some(parts, seed, number, &object, moved, kind)?;
                }
                between();
            }
        }
        Ok(logged)
    }
}

/// The bytes of log that it took.
fn relocate_some(
    parts: &Parts,
    seed: u32,
    number: u64,
    object: &Arc<Object>,
    moved: &[Moved],
    kind: Kind,
) -> Result<u64> {
    let of_kind = |entry: &Entry| match entry {
        Entry::Slot(_) => Kind::RelocateSlots,
        Entry::Omap(_) => Kind::RelocateOmap,
        Entry::Extent(..) => Kind::RelocateExtents,
    };
    if !moved.iter().any(|moved| of_kind(&moved.entry) == kind) {
        return Ok(0);
    }
    let log = &parts.log;
    loop {
        // It may have got another name, which is another entry of the table.
        let object = parts.objects.numbered(number).unwrap_or_else(|| Arc::clone(object));
        let mut state = object.state.write();
        if state.number != number {
            if parts.objects.numbered(number).is_some_and(|now| !Arc::ptr_eq(&now, &object)) {
                continue;
            }
            return Ok(0);
        }
        let mut relocations = Relocations::default();
        let mut missing = Vec::new();
        moved.iter().filter(|moved| of_kind(&moved.entry) == kind).for_each(|moved| {
            missing.extend(still_there(&state, moved, &mut relocations).err());
        });
        let (argument, payload) = (relocations.argument(), relocations.payload());
        if missing.is_empty() {
            state.missing(kind, argument, &[], payload, 0, &mut missing);
        }
        if !missing.is_empty() {
            drop(state);
            bring(&parts.reader, &parts.objects, &object, &missing)?;
            continue;
        }
        if payload.is_empty() {
            return Ok(0);
        }
        let len = RECORD_HEADER_BYTES as u64 + operation_bytes(0, payload.len());
        let mut reservation = match log.reserve(len, 0, relocations.entries() * kind.replay_ns(), Class::Keep) {
            Ok(reservation) => reservation,
            Err(Refused::Error(error)) => return Err(error),
            Err(Refused::Busy) => {
                drop(state);
                log.make_room()?;
                continue;
            }
        };
        parts.objects.enter(&object.id, &mut state, reservation.epoch);
        let (generation, offset) = (reservation.generation, reservation.device_offset);
        let record = record_header(&reservation, 1, false, 0);
        let bytes = reservation.bytes();
        record.encode(bytes, seed, offset);
        let header = OpHeader { kind, flags: 0, key_len: 0, payload_len: 0, object: number, argument, payload_crc: 0 };
        let sums = checksum_payload(payload);
        let rest = &mut bytes[RECORD_HEADER_BYTES..];
        let at = offset + RECORD_HEADER_BYTES as u64;
        encode_operation(header, &[], payload, &sums, rest, seed, generation, at);
        reservation.whole();
        let loc = Loc::new(at, 8, 0);
        let step = Step { kind, argument, key: &[], payload, payload_len: payload.len() as u32, loc };
        state.apply(&step, 0, &parts.segments);
        parts.objects.count(&mut state);
        return Ok(len);
    }
}

impl Stretch {
    fn covers(&self, (skip, len): (u32, u32)) -> bool {
        self.skip <= skip && skip + len <= self.skip + self.len
    }
}

/// A verified payload, and its table if it is compressed.
struct Value<'a> {
    payload: &'a [u8],
    sums: Payload,
    table: Option<Compressed>,
    raw_len: u32,
}

impl<'a> Value<'a> {
    fn new(header: &OpHeader, operation: &'a [u8]) -> Option<Self> {
        let payload = &operation[header.payload_start()..header.payload_end()];
        let compressed = header.flags & OP_FLAG_COMPRESSED != 0;
        let table = if compressed { Some(Compressed::decode(payload, payload.len())?) } else { None };
        Some(Self { payload, sums: header.sums(operation), table, raw_len: raw_len(header, payload)? })
    }

    /// The units that these stretches touch, neighbours together, if moving them takes no more than the stretches
    /// would, decompressed; else none.
    fn runs(&self, stretches: &[(u32, u32)]) -> Vec<Range<u32>> {
        let Some(table) = &self.table else { return Vec::new() };
        let mut runs: Vec<Range<u32>> = Vec::new();
        let mut touched: Vec<_> = stretches.iter().map(|(skip, len)| table.units_of(*skip..skip + len)).collect();
        touched.sort_unstable_by_key(|units| units.start);
        for units in touched {
            match runs.last_mut() {
                Some(last) if units.start <= last.end => last.end = last.end.max(units.end),
                _ => runs.push(units),
            }
        }
        let stored: usize = runs.iter().map(|run| table.stored_range(run.clone()).len() + run.len() * 4).sum();
        let raw: usize = stretches.iter().map(|(_, len)| *len as usize).sum();
        if stored <= raw { runs } else { Vec::new() }
    }

    /// The run that a stretch is in.
    fn run(&self, runs: &[Range<u32>], (skip, len): (u32, u32)) -> Option<Range<u32>> {
        let units = self.table.as_ref()?.units_of(skip..skip + len);
        runs.iter().find(|run| run.start <= units.start && units.end <= run.end).cloned()
    }

    fn decompressed(&self, range: Range<u32>) -> Option<Vec<u8>> {
        let table = self.table.as_ref()?;
        let units = table.units_of(range.clone());
        let (stored, base) = (table.stored_range(units.clone()), table.raw_range(units.clone()).start);
        let raw = table.unpack(units, &self.payload[stored.start as usize..stored.end as usize])?;
        Some(raw[(range.start - base) as usize..(range.end - base) as usize].to_vec())
    }
}

/// First byte and length of what an entry has of its value.
fn stretch(entry: &Entry, raw_len: u32) -> (u32, u32) {
    match entry {
        Entry::Extent(_, len, skip) => (*skip, *len),
        Entry::Slot(_) | Entry::Omap(_) => (0, raw_len),
    }
}

/// What the operation at `place` has brought that the object still has there.
fn live_entries(
    state: &ObjectState,
    header: &OpHeader,
    key: &[u8],
    payload: &[u8],
    place: u64,
) -> std::result::Result<Vec<(Entry, Loc)>, Missing> {
    let here = |loc: &Loc| loc.offset() == place;
    Ok(match header.kind {
        Kind::SlotSet => {
            let loc = state.slots.get(header.argument)?.filter(here);
            loc.into_iter().map(|loc| (Entry::Slot(header.argument), loc)).collect()
        }
        Kind::OmapSet => {
            let loc = state.omap.get(key)?.filter(here);
            loc.into_iter().map(|loc| (Entry::Omap(key.to_vec()), loc)).collect()
        }
        _ => {
            let mut live = Vec::new();
            let Some(raw_len) = raw_len(header, payload) else { return Ok(live) };
            let range = header.argument..header.argument.saturating_add(raw_len.into());
            for piece in state.extents.lookup(range) {
                let (at, extent) = piece?;
                if here(&extent.loc) {
                    live.push((Entry::Extent(at, extent.len, extent.skip), extent.loc));
                }
            }
            live
        }
    })
}

fn each_entry(page: &Page, f: &mut dyn FnMut(Entry, Loc)) {
    match page {
        Page::Slots(slots) => slots.iter().for_each(|(slot, loc)| f(Entry::Slot(*slot), *loc)),
        Page::Omap(leaf) => leaf.entries().for_each(|(key, loc)| f(Entry::Omap(key.to_vec()), loc)),
        Page::Extents(leaf) => leaf.entries().for_each(|(key, extent)| {
            f(Entry::Extent(offset_of(key), extent.len, extent.skip), extent.loc);
        }),
    }
}

/// Adds the relocations of what still points to the old place.
fn still_there(state: &ObjectState, moved: &Moved, relocations: &mut Relocations) -> std::result::Result<(), Missing> {
    let place = moved.new.raw();
    match &moved.entry {
        Entry::Slot(slot) => {
            if state.slots.get(*slot)? == Some(moved.old) {
                relocations.push(Relocated::Slot(*slot, place));
            }
        }
        Entry::Omap(key) => {
            if state.omap.get(key)? == Some(moved.old) {
                relocations.push(Relocated::Omap(key, place));
            }
        }
        Entry::Extent(at, len, skip) => {
            for piece in state.extents.lookup(*at..*at + u64::from(*len)) {
                let (offset, extent) = piece?;
                if extent.loc == moved.old && u64::from(extent.skip) == u64::from(*skip) + (offset - at) {
                    let skip = extent.skip - moved.skip;
                    relocations.push(Relocated::Extent { offset, place, len: extent.len, skip });
                }
            }
        }
    }
    Ok(())
}

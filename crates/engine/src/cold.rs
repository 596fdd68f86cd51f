//! Cold segments: where the cleaner puts what it moves, and checkpoints their pages. Apart from the log, so that what
//! lives long is not moved again and again with what dies young.
//!
//! operations → a batch in memory → one record → cold segment → the log's next sync: durable
//!                                      or, while cleaning, queued → the mover writes the queue, in order
//!
//! Invariants:
//! 1. A cold segment is never replayed: it counts for nothing until the log or a superblock, written after a sync of
//!    the device, points into it.
//! 2. One writer at a time, in order. A record lies in one segment and starts at a block.
//! 3. Batches stand in memory of their own pages, so that the device takes them past the page cache: what the cleaner
//!    writes is not left to be flushed by the next sync of a client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_device::Device;
use esker_store::{Error, Result};
use parking_lot::Mutex;

use crate::buffer::SegmentBuffer;
use crate::commit::{Log, stopped};
use crate::format::{
    Kind, Loc, OpHeader, PARTS, Payload, RECORD_HEADER_BYTES, RecordHeader, Role, SegmentHeader, Stream, WEIGHT_WHOLE,
    checksum_payload, encode_operation, place_of, raw_len, round_up,
};
use crate::segments::Segments;

/// A batch is written when it has grown to this.
const BATCH_BYTES: u64 = 1 << 20;
/// A batch takes so much memory, unless its only operation is larger: one that does not fit begins the next.
const BATCH_ROOM: u64 = BATCH_BYTES + BATCH_BYTES / 8;
/// So many buffers of batches that were written are kept to be filled again: 4.5 MiB.
const SPARES_MAX: usize = 4;

/// Counters of the cold writer.
#[derive(Default)]
pub struct ColdCounters {
    /// Bytes written, headers and pads included.
    pub written_bytes: AtomicU64,
    /// Device writes.
    pub writes: AtomicU64,
}

/// Generations of cold segments from which on something may not be written yet: one entry for each [`Writes`] that is
/// under way.
pub type Unwritten = Arc<Mutex<Vec<u32>>>;

/// Buffers of batches that were written. A fresh one for each batch had a good part of the cleaner's time go into pages
/// that the system clears.
type Spares = Arc<Mutex<Vec<SegmentBuffer>>>;

/// Bytes that gather for one write.
struct Gathered {
    memory: SegmentBuffer,
    len: usize,
}

impl Gathered {
    /// # Errors
    /// [`Error::Io`] when memory is short.
    fn new(room: u64) -> Result<Self> {
        let memory = SegmentBuffer::of_small_pages(room as usize);
        Ok(Self { memory: memory.map_err(|error| Error::io("allocating memory to write from", error))?, len: 0 })
    }

    /// So many zeros more, for the caller to fill.
    fn grow(&mut self, by: usize) -> &mut [u8] {
        let added = &mut self.memory.whole_mut()[self.len..self.len + by];
        added.fill(0);
        self.len += by;
        added
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: nothing is written while it is borrowed, for that takes `&mut self`.
        unsafe { self.memory.range(0, self.len) }
    }
}

/// What is to be written to cold segments. While it lives, readers know that it is not there yet.
pub struct Writes {
    list: Vec<(u64, Gathered)>,
    /// Generation of the oldest segment that it is for; 0: it is empty.
    oldest: u32,
    unwritten: Unwritten,
    spares: Spares,
}

impl Writes {
    fn new(unwritten: &Unwritten, spares: &Spares) -> Self {
        Self { list: Vec::new(), oldest: 0, unwritten: Arc::clone(unwritten), spares: Arc::clone(spares) }
    }

    fn push(&mut self, generation: u32, offset: u64, bytes: Gathered) {
        if self.oldest == 0 {
            self.oldest = generation;
            self.unwritten.lock().push(generation);
        }
        self.list.push((offset, bytes));
    }

    fn is_written(&mut self) {
        let oldest = std::mem::take(&mut self.oldest);
        let mut unwritten = self.unwritten.lock();
        if let Some(at) = unwritten.iter().position(|known| *known == oldest) {
            unwritten.swap_remove(at);
        }
    }

    /// Writes it.
    ///
    /// # Errors
    /// [`Error::Stopped`] when the device failed.
    pub fn write(&mut self, device: &dyn Device, counters: &ColdCounters) -> Result<()> {
        for (offset, gathered) in self.list.drain(..) {
            device.write(offset, gathered.bytes()).map_err(|error| stopped("writing a cold segment", &error))?;
            counters.writes.fetch_add(1, Ordering::Relaxed);
            counters.written_bytes.fetch_add(gathered.len as u64, Ordering::Relaxed);
            let mut spares = self.spares.lock();
            if spares.len() < SPARES_MAX && gathered.memory.len() as u64 == BATCH_ROOM {
                spares.push(gathered.memory);
            }
        }
        self.is_written();
        Ok(())
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        self.is_written();
    }
}

struct Open {
    segment: u64,
    generation: u32,
    /// Where the batch begins in the segment.
    start: u64,
    batch: Option<Gathered>,
    op_count: u32,
}

/// Writes cold segments.
pub struct Cold {
    device: Arc<dyn Device>,
    segments: Arc<Segments>,
    log: Arc<Log>,
    uuid: [u8; 16],
    seed: u32,
    block: u64,
    open: Option<Open>,
    queue: Writes,
    spares: Spares,
    /// See [`Unwritten`].
    pub unwritten: Unwritten,
    /// The segment that is being written, `u64::MAX` for none; as soon as anything is written to it.
    pub writes: Arc<AtomicU64>,
    /// Bytes that it can still take.
    pub room: Arc<AtomicU64>,
    /// What was written.
    pub counters: Arc<ColdCounters>,
}

impl Cold {
    /// A writer that has no segment yet.
    pub fn new(device: Arc<dyn Device>, segments: Arc<Segments>, log: Arc<Log>, uuid: [u8; 16], seed: u32) -> Self {
        let block = u64::from(device.geometry().block_bytes);
        let (writes, counters, unwritten) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::default(), Unwritten::default());
        let spares = Spares::default();
        Self {
            device,
            segments,
            log,
            uuid,
            seed,
            block,
            open: None,
            queue: Writes::new(&unwritten, &spares),
            spares,
            unwritten,
            writes,
            room: Arc::default(),
            counters,
        }
    }

    /// The segment that is being written.
    pub fn open_segment(&self) -> Option<u64> {
        self.open.as_ref().map(|open| open.segment)
    }

    /// Its generation; none that is opened later has a lower one.
    pub fn open_generation(&self) -> Option<u32> {
        self.open.as_ref().map(|open| open.generation)
    }

    /// Largest payload of one operation in bytes.
    pub fn payload_bytes_max(&self) -> u64 {
        self.segments.segment_bytes / 4
    }

    /// Adds an operation; `age` tells how old what it holds is. It is durable after the device's next sync.
    ///
    /// # Errors
    /// [`Error::Full`] when there is no segment left, and nothing was added; [`Error::Stopped`] when the device failed.
    pub fn append(&mut self, header: OpHeader, key: &[u8], payload: &[u8], age: u64) -> Result<Loc> {
        let queued = self.queue(header, key, payload, &checksum_payload(payload), age);
        // What was added before is not left behind by a failure.
        self.write_queue()?;
        queued
    }

    /// As [`Cold::append`], with the payload's checksums, and writes nothing: see [`Cold::take_queue`].
    ///
    /// # Errors
    /// As [`Cold::append`].
    pub fn queue(&mut self, header: OpHeader, key: &[u8], payload: &[u8], sums: &Payload, age: u64) -> Result<Loc> {
        let len = header.bytes_with(key.len(), payload.len());
        let outgrows = |open: &Open| open.batch.as_ref().is_some_and(|batch| batch.len as u64 + len > BATCH_ROOM);
        if self.open.as_ref().is_some_and(outgrows) {
            self.queue_batch();
        }
        let left = self.open.as_ref().map_or(0, |open| {
            let batch = open.batch.as_ref().map_or(RECORD_HEADER_BYTES, |batch| batch.len) as u64;
            self.segments.segment_bytes.saturating_sub(open.start + batch)
        });
        if left < len {
            self.queue_batch();
            self.open_next(age)?;
        }
        let Some(open) = &mut self.open else { return Err(Error::Full { needed: len, free: 0 }) };
        let mut batch = match open.batch.take() {
            Some(batch) => batch,
            None => {
                let room = round_up(RECORD_HEADER_BYTES as u64 + len, self.block);
                let spare = if room <= BATCH_ROOM { self.spares.lock().pop() } else { None };
                let mut batch = match spare {
                    Some(memory) => Gathered { memory, len: 0 },
                    None => Gathered::new(BATCH_ROOM.max(room))?,
                };
                batch.grow(RECORD_HEADER_BYTES);
                batch
            }
        };
        let offset = open.segment * self.segments.segment_bytes + open.start + batch.len as u64;
        let bytes = batch.grow(len as usize);
        encode_operation(header, key, payload, sums, bytes, self.seed, open.generation, offset);
        open.op_count += 1;
        let batched = batch.len as u64;
        open.batch = Some(batch);
        let taken = open.start + batched;
        self.room.store(self.segments.segment_bytes.saturating_sub(taken), Ordering::Relaxed);
        let loc = place_of(&header, payload, offset, len);
        // What is compressed counts as it does while it lives.
        let weight = match raw_len(&header, payload) {
            Some(raw) if loc.is_compressed() => u64::from(raw) * loc.weight() / WEIGHT_WHOLE,
            _ => len,
        };
        self.segments.add_filled(open.segment, weight);
        if batched >= BATCH_BYTES {
            self.queue_batch();
        }
        Ok(loc)
    }

    /// What was added and not written. The caller that takes it writes it before it takes or writes anything else.
    pub fn take_queue(&mut self) -> Writes {
        self.queue_batch();
        std::mem::replace(&mut self.queue, Writes::new(&self.unwritten, &self.spares))
    }

    /// Adds a piece of a checkpoint, a large one in parts; returns where it is, and all places that it takes.
    ///
    /// # Errors
    /// As [`Cold::append`].
    pub fn append_index(&mut self, object: u64, role: Role, payload: &[u8], age: u64) -> Result<(Loc, Vec<Loc>)> {
        let argument = role.argument();
        let header =
            OpHeader { kind: Kind::Index, flags: 0, key_len: 0, payload_len: 0, object, argument, payload_crc: 0 };
        let max = self.payload_bytes_max() as usize;
        if payload.len() <= max {
            let loc = self.append(header, &[], payload, age)?;
            return Ok((loc, vec![loc]));
        }
        let (mut places, mut list) = (Vec::new(), Vec::new());
        for part in payload.chunks(max) {
            let loc = self.append(header, &[], part, age)?;
            list.extend_from_slice(&loc.raw().to_le_bytes());
            places.push(loc);
        }
        let loc = self.append(header, &[], &list, age)?;
        places.push(loc);
        Ok((loc.with_flags(PARTS), places))
    }

    /// Writes what was added, so that it can be read. It is durable after the device's next sync.
    ///
    /// # Errors
    /// [`Error::Stopped`] when the device failed.
    pub fn write_batch(&mut self) -> Result<()> {
        self.queue_batch();
        self.write_queue()
    }

    fn write_queue(&mut self) -> Result<()> {
        self.queue.write(&*self.device, &self.counters)
    }

    fn queue_batch(&mut self) {
        let Some(open) = &mut self.open else { return };
        let Some(mut batch) = open.batch.take() else { return };
        let offset = open.segment * self.segments.segment_bytes + open.start;
        let header = RecordHeader {
            len: batch.len as u32,
            seq: 0,
            group: 0,
            generation: open.generation,
            op_count: open.op_count,
            flags: 0,
        };
        let len = batch.len;
        header.encode(&mut batch.memory.whole_mut()[..len], self.seed, offset);
        batch.grow(round_up(len as u64, self.block) as usize - len);
        open.start += batch.len as u64;
        open.op_count = 0;
        let generation = open.generation;
        self.queue.push(generation, offset, batch);
    }

    /// Writes what was added, and nothing more to the segment that is open: the next operation begins another.
    ///
    /// # Errors
    /// [`Error::Stopped`] when the device failed.
    pub fn seal(&mut self) -> Result<()> {
        self.write_batch()?;
        if let Some(sealed) = self.open.take() {
            self.segments.set_end(sealed.segment, sealed.start);
            self.writes.store(u64::MAX, Ordering::Release);
            self.room.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Generation of the segment that is being written, and up to where it was given out, as an offset in it.
    pub fn reached(&self) -> Option<(u32, u64)> {
        self.open.as_ref().map(|open| (open.generation, open.start))
    }

    fn open_next(&mut self, age: u64) -> Result<()> {
        let segment_bytes = self.segments.segment_bytes;
        let full = Error::Full { needed: segment_bytes, free: 0 };
        let mut block = Gathered::new(self.block)?;
        let taken = self.segments.take_reserved(&*self.device, false);
        let taken = taken.map_err(|error| stopped("reserving a cold segment", &error))?;
        let segment = taken.or_else(|| self.log.take_ready()).ok_or(full)?;
        let offset = segment * segment_bytes;
        let failed = |error| stopped("opening a cold segment", &error);
        if self.device.geometry().zone_bytes.is_some() {
            self.device.discard(offset, segment_bytes).map_err(failed)?;
        }
        if let Some(sealed) = &self.open {
            self.segments.set_end(sealed.segment, sealed.start);
        }
        // What was just moved counts as new: by the age of its values it would soon be moved again.
        let age = age.max(self.log.last_seq());
        let generation = self.log.next_generation();
        let header = SegmentHeader {
            generation,
            uuid: self.uuid,
            segment,
            previous_end: 0,
            first_seq: age,
            group: 0,
            previous_generation: 0,
            stream: Stream::Cold,
        };
        header.encode(block.grow(self.block as usize));
        self.queue.push(generation, offset, block);
        self.writes.store(segment, Ordering::Release);
        // Whatever points here stands on the device before: no reader has to wait.
        self.segments.place(segment, generation, 0, age, true);
        self.open = Some(Open { segment, generation, start: self.block, batch: None, op_count: 0 });
        Ok(())
    }
}

//! Reading values: from a segment's buffer, from the cache, or verified from the device.
//!
//! place → buffer in memory (no system call) → cache → one device read, verified, decompressed, then cached
//! part of a compressed write → its head and table, cached → the units that it touches
//! `…_now` → the same, unless the device would have to be waited for
//!
//! Whatever is found is compared with what was [`Asked`] for, wherever it was found.
//!
//! Invariants:
//! 1. No byte from the device is handed out before its checksums held, for this place and this life of the segment.
//! 2. The cache keeps to its budget; what it holds has been verified. What it does not use of its budget is lent to the
//!    buffers of recent segments, and taken back as it fills, to within [`LEND_EVERY`].
//! 3. Nothing is handed out that was written for another object, space, slot, key or offset.
//! 4. The keeper lets a segment be used again only when no thread reads it any more: a thread that takes places from
//!    the index keeps what [`Segments::pin`] returns until it has read them. What is brought ahead is not pinned: its
//!    reader asks for one life of the segment.

mod asked;
mod bringing;
mod brought;
mod records;
mod uses;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use esker_device::{BlockPool, Blocks, Device};
use esker_store::{Error, Result};
use smallvec::SmallVec;

use crate::buffer::SegmentBuffer;
use crate::cache::{Cache, CachePolicy, Weigh};
use crate::format::{
    COMPRESSED_HEADER_BYTES, CRC_BLOCK_BYTES, Compressed, Kind, OP_FLAG_APPLIED, OP_FLAG_COMPRESSED, OP_HEADER_BYTES,
    OpHeader, decompress_payload, verify_payload, verify_payload_part,
};
use crate::index::Loc;
use crate::segments::{Lsn, Segments};
use crate::stages::{Times, sampled};
use crate::superblocks::device_error;
pub use asked::{Asked, Sought};
use bringing::Bringing;
pub use bringing::{Next, Part};
use brought::{Brought, Place};
pub use records::{SegmentView, each_operation};
pub use uses::CacheUses;
use uses::UseTable;

/// Payloads up to this are read whole, verified and cached; of larger ones only the blocks that are asked for.
const WHOLE_PAYLOAD_BYTES_MAX: usize = 128 << 10;
/// Longest payload that a hint has the device read, in bytes.
const HINT_BYTES_MAX: u64 = 256 << 10;

/// A compressed write of up to so many bytes is read at once.
const HEAD_READ_MAX: u64 = 64 << 10;
/// What is read first of a larger one, beside its block checksums: header, key, and the block with the table of units.
const WRITE_HEAD_BYTES: usize = OP_HEADER_BYTES + 12 + 8 + CRC_BLOCK_BYTES;

/// Neighbours are read together if no more than this lies between them, in bytes.
const RUN_GAP_MAX: u64 = 32 << 10;
/// At most so many bytes are read together.
const RUN_BYTES_MAX: u64 = 1 << 20;

/// When so many bytes have come into the cache, recent buffers are told how much is left of it.
const LEND_EVERY: u64 = 1 << 20;

/// A place and the generation of its segment: a segment that is used again holds something else.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Payload(u64, u32),
    Head(u64, u32),
    /// A unit of a compressed payload, decompressed.
    Unit(u64, u32, u32),
}

#[derive(Clone)]
struct Cached {
    header: OpHeader,
    /// The operation's key, to be compared with what is asked for.
    key: Bytes,
    bytes: Bytes,
}

impl Weigh for Cached {
    fn weight(&self) -> u64 {
        (self.bytes.len() + self.key.len()) as u64 + 128
    }
}

/// A value and whether a reader has to wait for it.
pub struct Found {
    /// The payload, or the part of it that was asked for.
    pub value: Bytes,
    /// Position that has to be durable before the value is shown; 0 if it is already, or its writer did not ask.
    pub wait_to: Lsn,
}

/// Whether a read may wait for the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Wait,
    Now,
}

/// Why there is no value.
enum Miss {
    /// A caller that asked for it [now](How::Now) would have to wait for the device.
    Cold,
    Failed(Error),
}

impl From<Error> for Miss {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Miss {
    /// Of a read that waits.
    fn error(self) -> Error {
        match self {
            Self::Failed(error) => error,
            Self::Cold => unreachable!("only reads that do not wait find something cold"),
        }
    }

    /// Of a read that does not.
    fn now(found: std::result::Result<Found, Self>) -> Result<Option<Found>> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(Self::Cold) => Ok(None),
            Err(Self::Failed(error)) => Err(error),
        }
    }
}

type Looked<T> = std::result::Result<T, Miss>;

/// Counters of reads that left the buffers.
#[derive(Default)]
pub struct ReadCounters {
    /// Reads of the device.
    pub device_reads: AtomicU64,
    /// Bytes read from the device.
    pub device_read_bytes: AtomicU64,
    /// Values that were looked for in the cache.
    pub cache_uses: UseTable,
    /// Raw bytes that were decompressed for readers.
    pub unpacked_bytes: AtomicU64,
    /// How long verifying what was read from the device took, one time in many.
    pub verify: Times,
    /// How long decompressing took, one time in many.
    pub decompress: Times,
}

/// Told an operation's header and bytes, or why it does not hold.
pub type Verified<'a> = dyn FnMut(Result<(OpHeader, &[u8])>) -> Result<()> + 'a;

/// Reads what the index points to.
pub struct Reader {
    device: Arc<dyn Device>,
    segments: Arc<Segments>,
    store_seed: u32,
    cache: Cache<Key, Cached>,
    /// Bytes that came into it.
    came: AtomicU64,
    /// What the device reads into.
    memory: Arc<BlockPool>,
    /// What it has read for readers that come next.
    brought: Brought,
    /// What was read.
    pub counters: ReadCounters,
}

impl Reader {
    /// A reader with a cache of so many bytes.
    pub fn new(
        device: Arc<dyn Device>,
        segments: Arc<Segments>,
        store_seed: u32,
        (policy, cache_bytes): (CachePolicy, u64),
    ) -> Self {
        let cache = Cache::new(policy, cache_bytes);
        segments.lend(|| cache_bytes);
        Self {
            device,
            segments,
            store_seed,
            cache,
            came: AtomicU64::new(0),
            memory: Arc::default(),
            brought: Brought::default(),
            counters: ReadCounters::default(),
        }
    }

    /// Puts what was read and verified into the cache.
    fn keep(&self, key: Key, cached: Cached) {
        let weight = cached.weight();
        self.cache.insert(key, cached);
        let before = self.came.fetch_add(weight, Ordering::Relaxed);
        if before / LEND_EVERY != (before + weight) / LEND_EVERY {
            self.segments.lend(|| self.cache.bytes_max().saturating_sub(self.cache.bytes()));
        }
    }

    /// Bytes in the cache, and the most that there may be.
    pub fn cached_bytes(&self) -> (u64, u64) {
        (self.cache.bytes(), self.cache.bytes_max())
    }

    /// Which values stay in the cache.
    pub fn cache_policy(&self) -> CachePolicy {
        self.cache.policy()
    }

    fn wait_to(&self, loc: Loc, header: &OpHeader, durable: Lsn) -> Lsn {
        if header.flags & OP_FLAG_APPLIED != 0 {
            return 0;
        }
        let lsn = self.segments.lsn_of(loc.offset());
        if lsn < durable { 0 } else { lsn + 1 }
    }

    /// The payload at `loc` if it is in memory and not compressed there.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is not what was asked for; [`Error::Stopped`] if its writer panicked before it was
    /// whole.
    pub fn peek(&self, loc: Loc, asked: &Asked<'_>, durable: Lsn) -> Result<Option<Found>> {
        let from_buffer = self.segments.with_whole(loc.offset(), |buffer, start| {
            let header = buffered(buffer, start, loc, asked)?;
            if header.flags & OP_FLAG_COMPRESSED != 0 {
                return Ok(None);
            }
            let value =
                self.segments.handed_out.value_of(buffer, start + header.payload_start(), header.payload_len as usize);
            Ok(Some(Found { value, wait_to: self.wait_to(loc, &header, durable) }))
        });
        if let Some(found) = from_buffer.transpose()?.flatten() {
            return Ok(Some(found));
        }
        let Some(cached) = self.cached(&Key::Payload(loc.raw(), self.generation(loc)), loc, asked)? else {
            return Ok(None);
        };
        self.counters.cache_uses.hit(cached.header.object);
        Ok(Some(Found { wait_to: self.wait_to(loc, &cached.header, durable), value: cached.bytes }))
    }

    /// Has the processor fetch what stands at `loc`, if it is in a buffer: its header, and the beginning of what is
    /// long.
    #[inline]
    pub fn prefetch(&self, loc: Loc) {
        self.segments.with_unwaited(loc.offset(), |buffer, start| buffer.prefetch(start));
    }

    /// Whether what stands at `loc` is this value, if it is in memory: compared where it stands.
    ///
    /// # Errors
    /// As [`Reader::peek`].
    pub fn is_here(&self, loc: Loc, asked: &Asked<'_>, value: &[u8]) -> Result<Option<bool>> {
        let in_buffer = self.segments.with_whole(loc.offset(), |buffer, start| {
            let header = buffered(buffer, start, loc, asked)?;
            if header.flags & OP_FLAG_COMPRESSED != 0 {
                return Ok(None);
            }
            // SAFETY: as in `buffered`, which has looked at its end.
            Ok(Some(unsafe { buffer.range(start + header.payload_start(), header.payload_len as usize) } == value))
        });
        if let Some(equal) = in_buffer.transpose()?.flatten() {
            return Ok(Some(equal));
        }
        let cached = self.cached(&Key::Payload(loc.raw(), self.generation(loc)), loc, asked)?;
        Ok(cached.map(|cached| {
            self.counters.cache_uses.hit(cached.header.object);
            cached.bytes == *value
        }))
    }

    /// What the cache has, if it is what was asked for.
    fn cached(&self, key: &Key, loc: Loc, asked: &Asked<'_>) -> Result<Option<Cached>> {
        let Some(cached) = self.cache.get(key) else { return Ok(None) };
        if asked.is(&cached.header, &cached.key) {
            return Ok(Some(cached));
        }
        Err(asked.mismatch(loc, &cached.header, &cached.key))
    }

    /// The whole payload at `loc`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the place, [`Error::Io`]; [`Error::Stopped`] as [`Reader::peek`].
    pub fn fetch(&self, loc: Loc, asked: &Asked<'_>, durable: Lsn) -> Result<Found> {
        self.whole(loc, asked, durable, How::Wait).map_err(Miss::error)
    }

    /// As [`Reader::fetch`], if that needs no wait for the device.
    ///
    /// # Errors
    /// As [`Reader::fetch`].
    pub fn fetch_now(&self, loc: Loc, asked: &Asked<'_>, durable: Lsn) -> Result<Option<Found>> {
        Miss::now(self.whole(loc, asked, durable, How::Now))
    }

    /// Whether a buffer or the cache has something for `loc`; it is not compared with what is asked for.
    pub fn is_in_memory(&self, loc: Loc) -> bool {
        self.segments.with_unwaited(loc.offset(), |_, _| ()).is_some()
            || self.cache.contains(&Key::Payload(loc.raw(), self.generation(loc)))
    }

    /// The device begins to read what stands at `loc`, as far as it can.
    pub fn begin(&self, loc: Loc) {
        self.device.will_read(loc.offset(), self.clamp_span(loc));
    }

    /// As [`Reader::begin`], but for what is longer than [`HINT_BYTES_MAX`]: who asked may never come for it.
    pub fn begin_hinted(&self, loc: Loc) {
        if self.clamp_span(loc) <= HINT_BYTES_MAX {
            self.begin(loc);
        }
    }

    /// The device begins to read the blocks of a payload that [`Reader::fetch_part`] will ask for, as far as it can.
    pub fn begin_part(&self, loc: Loc, skip: u32, len: u32) {
        let span = self.clamp_span(loc);
        if span as usize <= WHOLE_PAYLOAD_BYTES_MAX || loc.is_compressed() || self.is_most(loc, len as usize) {
            return self.begin(loc);
        }
        // Headers and checksums stand before the payload: about where the part is, with a block on either side.
        let block = CRC_BLOCK_BYTES as u64;
        let start = (u64::from(skip) / block * block).min(span);
        let end = (u64::from(skip) + u64::from(len) + (1 << 16) + 2 * block).min(span);
        self.device.will_read(loc.offset() + start, end - start);
    }

    fn whole(&self, loc: Loc, asked: &Asked<'_>, durable: Lsn, how: How) -> Looked<Found> {
        if let Some(found) = self.peek(loc, asked, durable)? {
            return Ok(found);
        }
        if let Some((header, stored)) = self.in_buffer(loc, asked)? {
            let value = self.unpacked(loc, &header, stored)?;
            return Ok(Found { value, wait_to: self.wait_to(loc, &header, durable) });
        }
        let operation = self.read_device(self.place(loc, 0, self.clamp_span(loc)), how)?;
        let began = sampled();
        let header = self.decode(&operation, loc)?;
        self.counters.cache_uses.miss(header.object);
        asked.compare(loc, &header, &operation)?;
        if !verify_payload(&header, &operation) {
            return Err(corrupt(loc, &header, "payload").into());
        }
        self.counters.verify.add_since(began);
        let wait_to = self.wait_to(loc, &header, durable);
        let operation = operation.into_bytes(true);
        let key = key_of(&operation, &header);
        let value = self.unpacked(loc, &header, operation.slice(header.payload_start()..header.payload_end()))?;
        let cached = Cached { header, key, bytes: value.clone() };
        self.keep(Key::Payload(loc.raw(), self.generation(loc)), cached);
        Ok(Found { value, wait_to })
    }

    /// Header and stored payload of the operation at `loc` if it is in a buffer.
    fn in_buffer(&self, loc: Loc, asked: &Asked<'_>) -> Result<Option<(OpHeader, Bytes)>> {
        let found = self.segments.with_whole(loc.offset(), |buffer, start| {
            let header = buffered(buffer, start, loc, asked)?;
            Ok((
                header,
                self.segments.handed_out.value_of(buffer, start + header.payload_start(), header.payload_len as usize),
            ))
        });
        found.transpose()
    }

    /// The value that a verified payload holds.
    fn unpacked(&self, loc: Loc, header: &OpHeader, stored: Bytes) -> Result<Bytes> {
        if header.flags & OP_FLAG_COMPRESSED == 0 {
            return Ok(stored);
        }
        let began = sampled();
        let raw = decompress_payload(&stored).ok_or_else(|| not_compressed(loc, header))?;
        self.counters.decompress.add_since(began);
        self.counters.unpacked_bytes.fetch_add(raw.len() as u64, Ordering::Relaxed);
        Ok(raw.into())
    }

    /// The whole stored payloads at places that are sorted by offset and lie on the device: neighbours are read
    /// together, and nothing is kept in the cache.
    ///
    /// # Errors
    /// As [`Reader::fetch`].
    pub fn fetch_run(&self, locs: &[Loc], asked: &[Asked<'_>]) -> Result<Vec<Bytes>> {
        let mut values = Vec::with_capacity(locs.len());
        self.verify_run(locs, &mut |found| {
            let (header, operation) = found?;
            let at = values.len();
            asked[at].compare(locs[at], &header, operation)?;
            values.push(Bytes::copy_from_slice(&operation[header.payload_start()..header.payload_end()]));
            Ok(())
        })?;
        Ok(values)
    }

    /// Reads what stands at places that are sorted by offset and lie on the device, neighbours together, and gives each
    /// operation's header and bytes to `f`, or the [`Error::Corrupt`] that it is.
    ///
    /// # Errors
    /// [`Error::Io`]; those of `f`.
    pub fn verify_run(&self, locs: &[Loc], f: &mut Verified<'_>) -> Result<()> {
        let mut rest = locs;
        while let Some(first) = rest.first() {
            let start = first.offset();
            let end_of = |loc: &Loc| loc.offset() + self.clamp_span(*loc);
            let mut end = end_of(first);
            let mut together = 1;
            for loc in &rest[1..] {
                let same_segment = self.segments.segment_of(loc.offset()) == self.segments.segment_of(start);
                if !same_segment || loc.offset() > end + RUN_GAP_MAX || end_of(loc) - start > RUN_BYTES_MAX {
                    break;
                }
                end = end.max(end_of(loc));
                together += 1;
            }
            let bytes = self.read_device(self.place(*first, 0, end - start), How::Wait).map_err(Miss::error)?;
            for loc in &rest[..together] {
                let at = (loc.offset() - start) as usize;
                let operation = &bytes[at..at + self.clamp_span(*loc) as usize];
                f(self.decode(operation, *loc).and_then(|header| {
                    let holds = verify_payload(&header, operation);
                    if holds { Ok((header, operation)) } else { Err(corrupt(*loc, &header, "payload")) }
                }))?;
            }
            rest = &rest[together..];
        }
        Ok(())
    }

    /// `len` bytes from `skip` on of the payload at `loc`.
    ///
    /// # Errors
    /// As [`Reader::fetch`].
    pub fn fetch_part(&self, loc: Loc, asked: &Asked<'_>, skip: u32, len: u32, durable: Lsn) -> Result<Found> {
        self.part(loc, asked, (skip, len), durable, How::Wait).map_err(Miss::error)
    }

    /// As [`Reader::fetch_part`], if that needs no wait for the device.
    ///
    /// # Errors
    /// As [`Reader::fetch`].
    pub fn fetch_part_now(
        &self,
        loc: Loc,
        asked: &Asked<'_>,
        skip: u32,
        len: u32,
        durable: Lsn,
    ) -> Result<Option<Found>> {
        Miss::now(self.part(loc, asked, (skip, len), durable, How::Now))
    }

    fn part(&self, loc: Loc, asked: &Asked<'_>, (skip, len): (u32, u32), durable: Lsn, how: How) -> Looked<Found> {
        let range = skip as usize..skip as usize + len as usize;
        if loc.is_compressed() {
            return self.fetch_units(loc, asked, skip..skip + len, durable, how);
        }
        let in_buffer = self.segments.with_whole(loc.offset(), |buffer, start| {
            let header = buffered(buffer, start, loc, asked)?;
            if range.end > header.payload_len as usize || header.flags & OP_FLAG_COMPRESSED != 0 {
                return Err(short_payload(loc));
            }
            let value =
                self.segments.handed_out.value_of(buffer, start + header.payload_start() + range.start, range.len());
            Ok(Found { value, wait_to: self.wait_to(loc, &header, durable) })
        });
        if let Some(found) = in_buffer {
            return Ok(found?);
        }
        if (self.clamp_span(loc) as usize) <= WHOLE_PAYLOAD_BYTES_MAX {
            let found = self.whole(loc, asked, durable, how)?;
            if range.end > found.value.len() {
                return Err(short_payload(loc).into());
            }
            return Ok(Found { value: found.value.slice(range), ..found });
        }
        self.fetch_blocks(loc, asked, range, durable, how)
    }

    /// Reads only the blocks of a large payload that `range` touches, but where these are most of it.
    fn fetch_blocks(&self, loc: Loc, asked: &Asked<'_>, range: Range<usize>, durable: Lsn, how: How) -> Looked<Found> {
        let head = match self.cached(&Key::Head(loc.raw(), self.generation(loc)), loc, asked)? {
            Some(head) => head,
            None => {
                if self.is_most(loc, range.len()) {
                    match self.fetch_most(loc, asked, range.clone(), durable, how) {
                        // Perhaps of a part that was not asked for.
                        Err(Miss::Failed(error)) if !matches!(error, Error::Corrupt { .. }) => {}
                        most => return most,
                    }
                }
                // A write has no key but the few bytes that moving adds; any other may have one of 64 KiB.
                let is_write = matches!(asked.what, Sought::Data(_));
                let more = if is_write { WRITE_HEAD_BYTES } else { OP_HEADER_BYTES + (1 << 16) + 8 };
                self.read_head(loc, asked, more, how)?.0
            }
        };
        let header = head.header;
        if range.end > header.payload_len as usize || header.flags & OP_FLAG_COMPRESSED != 0 {
            return Err(short_payload(loc).into());
        }
        let wait_to = self.wait_to(loc, &header, durable);
        Ok(Found { value: self.stored_part(loc, &head, range, &[], how)?, wait_to })
    }

    /// Whether a part of a payload of so many bytes is most of what stands there: all of that is read at once then.
    fn is_most(&self, loc: Loc, len: usize) -> bool {
        len as u64 * 4 >= self.clamp_span(loc) * 3
    }

    /// As [`Reader::fetch_blocks`], with one read of all that stands there.
    fn fetch_most(&self, loc: Loc, asked: &Asked<'_>, range: Range<usize>, durable: Lsn, how: How) -> Looked<Found> {
        let (head, operation) = self.read_head(loc, asked, usize::MAX, how)?;
        let header = head.header;
        let is_there = range.end <= header.payload_len as usize && header.payload_end() <= operation.len();
        if !is_there || header.flags & OP_FLAG_COMPRESSED != 0 {
            return Err(short_payload(loc).into());
        }
        let blocks = operation.into_bytes(false).slice(blocks_of(&header, &range));
        let value = self.verified_part(loc, &head, range, &blocks)?;
        Ok(Found { value, wait_to: self.wait_to(loc, &header, durable) })
    }

    /// Bytes of a stored payload: the blocks that they stand in are read, as far as they are not among `known`, the
    /// operation's first bytes, and verified.
    fn stored_part(&self, loc: Loc, head: &Cached, range: Range<usize>, known: &[u8], how: How) -> Looked<Bytes> {
        let header = &head.header;
        let place = blocks_of(header, &range);
        let blocks = match known.get(place.clone()) {
            Some(known) => Bytes::copy_from_slice(known),
            None => {
                let place = self.place(loc, place.start as u64, place.len() as u64);
                self.read_device(place, how)?.into_bytes(false)
            }
        };
        Ok(self.verified_part(loc, head, range, &blocks)?)
    }

    /// A range of a stored payload, of the blocks that it touches, once these hold.
    fn verified_part(&self, loc: Loc, head: &Cached, range: Range<usize>, blocks: &Bytes) -> Result<Bytes> {
        let header = &head.header;
        let first_block = range.start / CRC_BLOCK_BYTES;
        let blocks_start = first_block * CRC_BLOCK_BYTES;
        let began = sampled();
        let holds = if header.crcs_bytes() == 0 {
            crc32c::crc32c(blocks) == header.payload_crc
        } else {
            verify_payload_part(&head.bytes, first_block, blocks)
        };
        if !holds {
            return Err(corrupt(loc, header, "payload"));
        }
        self.counters.verify.add_since(began);
        Ok(blocks.slice(range.start - blocks_start..range.end - blocks_start))
    }

    /// Part of a compressed write: reads and decompresses only the units that `range` touches. Those that it does not
    /// cover are kept in the cache, since their rest is probably read next.
    fn fetch_units(&self, loc: Loc, asked: &Asked<'_>, range: Range<u32>, durable: Lsn, how: How) -> Looked<Found> {
        let buffered = self.in_buffer(loc, asked)?;
        let mut known = None;
        let head = match &buffered {
            Some((header, _)) => Cached { header: *header, key: Bytes::new(), bytes: Bytes::new() },
            None => match self.cached(&Key::Head(loc.raw(), self.generation(loc)), loc, asked)? {
                Some(head) => head,
                None => {
                    // A write has no key but the few bytes that moving adds. Of a small one everything is read at once.
                    let more =
                        if self.clamp_span(loc) <= HEAD_READ_MAX { HEAD_READ_MAX as usize } else { WRITE_HEAD_BYTES };
                    let (head, bytes) = self.read_head(loc, asked, more, how)?;
                    known = Some(bytes);
                    head
                }
            },
        };
        let header = head.header;
        let payload_len = header.payload_len as usize;
        let nonsense = || not_compressed(loc, &header);
        let table = match &buffered {
            Some((_, stored)) => Compressed::decode(stored, payload_len),
            // Checksums of blocks come first, then what was verified of the payload.
            None => Compressed::decode(&head.bytes[header.crcs_bytes()..], payload_len),
        };
        let is_packed = header.kind == Kind::Write && header.flags & OP_FLAG_COMPRESSED != 0;
        let table = table.filter(|_| is_packed).ok_or_else(nonsense)?;
        if range.end > table.raw_len {
            return Err(short_payload(loc).into());
        }
        let wait_to = self.wait_to(loc, &header, durable);
        let key = |unit| Key::Unit(loc.raw(), self.generation(loc), unit);
        let units = table.units_of(range.clone());
        let mut parts: SmallVec<[Option<Bytes>; 2]> = SmallVec::new();
        // Units are kept with the head that they were found by, which was compared.
        parts.extend(units.clone().map(|unit| self.cache.get(&key(unit)).map(|cached| cached.bytes)));
        let missing = |part: &Option<Bytes>| part.is_none();
        if let Some(first) = parts.iter().position(missing) {
            let last = parts.iter().rposition(missing).unwrap_or(first);
            let read = units.start + first as u32..units.start + last as u32 + 1;
            let place = table.stored_range(read.clone());
            let place = place.start as usize..place.end as usize;
            let stored = match &buffered {
                Some((_, stored)) => stored.slice(place),
                None => self.stored_part(loc, &head, place, known.as_deref().unwrap_or_default(), how)?,
            };
            self.counters.cache_uses.miss(header.object);
            let began = sampled();
            let raw = Bytes::from(table.unpack(read.clone(), &stored).ok_or_else(nonsense)?);
            self.counters.decompress.add_since(began);
            self.counters.unpacked_bytes.fetch_add(raw.len() as u64, Ordering::Relaxed);
            if units.len() == 1 && range == table.raw_range(units.clone()) {
                return Ok(Found { value: raw, wait_to });
            }
            let base = table.raw_range(read.clone()).start;
            for unit in read {
                let within = table.raw_range(unit..unit + 1);
                let part = raw.slice((within.start - base) as usize..(within.end - base) as usize);
                if within.start < range.start || within.end > range.end {
                    // A copy: a slice would keep its neighbours in memory as well.
                    let bytes = if part.len() == raw.len() { part.clone() } else { Bytes::copy_from_slice(&part) };
                    self.keep(key(unit), Cached { header, key: Bytes::new(), bytes });
                }
                parts[(unit - units.start) as usize] = Some(part);
            }
        } else {
            self.counters.cache_uses.hit(header.object);
        }
        let base = table.raw_range(units).start;
        let wanted = (range.start - base) as usize..(range.end - base) as usize;
        if let [Some(part)] = &parts[..] {
            return Ok(Found { value: part.slice(wanted), wait_to });
        }
        let mut value = BytesMut::with_capacity(wanted.len());
        let mut at = 0;
        for part in parts.into_iter().flatten() {
            let from = wanted.start.saturating_sub(at).min(part.len());
            let to = wanted.end.saturating_sub(at).min(part.len());
            value.extend_from_slice(&part[from..to]);
            at += part.len();
        }
        Ok(Found { value: value.freeze(), wait_to })
    }

    /// Reads and verifies a large operation's header, key and block checksums, and of a compressed payload its table;
    /// returns the operation's first bytes as well. `more` is what to read beyond the checksums.
    fn read_head(&self, loc: Loc, asked: &Asked<'_>, more: usize, how: How) -> Looked<(Cached, Blocks)> {
        let bytes = self.read_device(self.head_place(loc, more), how)?;
        let header = self.decode(&bytes, loc)?;
        asked.compare(loc, &header, &bytes)?;
        let crcs_start = header.key_end();
        let crcs = bytes.get(crcs_start..header.payload_start()).ok_or_else(|| corrupt(loc, &header, "length"))?;
        if header.crcs_bytes() > 0 && crc32c::crc32c(crcs) != header.payload_crc {
            return Err(corrupt(loc, &header, "block checksums").into());
        }
        let key = Bytes::copy_from_slice(&bytes[header.key_start()..crcs_start]);
        let mut head = Cached { header, key, bytes: Bytes::copy_from_slice(crcs) };
        if header.flags & OP_FLAG_COMPRESSED != 0 {
            let nonsense = || not_compressed(loc, &header);
            let payload_len = header.payload_len as usize;
            let start = self.stored_part(loc, &head, 0..COMPRESSED_HEADER_BYTES.min(payload_len), &bytes, how)?;
            let table_bytes = Compressed::head_bytes(&start).filter(|len| *len <= payload_len).ok_or_else(nonsense)?;
            let table = self.stored_part(loc, &head, 0..table_bytes, &bytes, how)?;
            head.bytes = [crcs, &table].concat().into();
        }
        self.keep(Key::Head(loc.raw(), self.generation(loc)), head.clone());
        Ok((head, bytes))
    }

    fn decode(&self, operation: &[u8], loc: Loc) -> Result<OpHeader> {
        OpHeader::decode(operation, self.store_seed, self.generation(loc), loc.offset())
            .ok_or_else(|| Error::Corrupt { offset: loc.offset(), what: "operation header checksum mismatch".into() })
    }

    /// Which life of its segment what stands at `loc` is of.
    pub fn generation(&self, loc: Loc) -> u32 {
        self.segments.generation(self.segments.segment_of(loc.offset()))
    }

    /// The span that the index remembers is rounded up: it must not reach past the segment.
    fn clamp_span(&self, loc: Loc) -> u64 {
        let left = self.segments.segment_bytes - self.segments.within(loc.offset());
        loc.span_bytes().min(left)
    }

    /// So many bytes of what stands at `loc`, after the first `skip`.
    fn place(&self, loc: Loc, skip: u64, len: u64) -> Place {
        Place { offset: loc.offset() + skip, len, generation: self.generation(loc) }
    }

    /// Where a large operation's header, key and block checksums stand, with `more` bytes.
    fn head_place(&self, loc: Loc, more: usize) -> Place {
        let span = self.clamp_span(loc);
        self.place(loc, 0, span.min((more as u64).saturating_add(span / 1024)))
    }

    /// What of a write's payload would be read of the device for a part of it.
    fn missing_of(&self, (loc, generation, skip, len): Part) -> Option<Place> {
        let place = |skip: u64, len: u64| Place { offset: loc.offset() + skip, len, generation };
        if loc.is_compressed() || self.is_in_memory(loc) {
            return None;
        }
        if (self.clamp_span(loc) as usize) <= WHOLE_PAYLOAD_BYTES_MAX {
            return Some(place(0, self.clamp_span(loc)));
        }
        let Some(head) = self.cache.get(&Key::Head(loc.raw(), generation)) else {
            let more = if self.is_most(loc, len as usize) { usize::MAX } else { WRITE_HEAD_BYTES };
            return Some(Place { generation, ..self.head_place(loc, more) });
        };
        let blocks = blocks_of(&head.header, &(skip as usize..skip as usize + len as usize));
        (blocks.end as u64 <= self.clamp_span(loc)).then(|| place(blocks.start as u64, blocks.len() as u64))
    }

    /// Reads what is not in memory of parts of writes, many under way together, for who reads them next: `next` gives
    /// the parts of the next that is asked for, once for each until it gives none; `came` is told of each, by its place
    /// among them, when all its parts are there. What fails is told to who reads it.
    pub fn bring(&self, next: &mut Next<'_>, waits: &mut dyn FnMut(), came: &mut dyn FnMut(u64)) {
        let missing = |part| self.missing_of(part);
        let parts = (&self.memory, self.device.geometry().len, &self.brought);
        self.device.read_stream(&mut Bringing::new(&missing, parts, next, (waits, came)));
    }

    fn read_device(&self, place: Place, how: How) -> Looked<Blocks> {
        let Place { offset, len, .. } = place;
        let failed = || format!("reading {len} bytes at device offset {offset}");
        let brought = self.brought.take(place);
        let is_brought = brought.is_some();
        let mut blocks = match brought {
            Some(blocks) => blocks,
            None => {
                let memory = self.memory.take(offset, len, self.device.geometry().len);
                memory.map_err(|error| Error::io(failed(), error))?
            }
        };
        if !is_brought && how == How::Now && !self.device.read_now(offset, blocks.place_mut()) {
            return Err(Miss::Cold);
        }
        self.counters.device_reads.fetch_add(1, Ordering::Relaxed);
        self.counters.device_read_bytes.fetch_add(len, Ordering::Relaxed);
        if !is_brought && how == How::Wait {
            let read = self.device.read_value(blocks.first(), blocks.whole_mut());
            read.map_err(|error| device_error(&failed(), error))?;
        }
        Ok(blocks)
    }
}

/// The blocks that a range of a payload touches, as they stand in their operation.
fn blocks_of(header: &OpHeader, range: &Range<usize>) -> Range<usize> {
    let start = range.start / CRC_BLOCK_BYTES * CRC_BLOCK_BYTES;
    let end = range.end.next_multiple_of(CRC_BLOCK_BYTES).min(header.payload_len as usize);
    header.payload_start() + start..header.payload_start() + end
}

/// The header of an operation in a segment's buffer, if the operation is what was asked for.
#[inline]
fn buffered(buffer: &SegmentBuffer, start: usize, loc: Loc, asked: &Asked<'_>) -> Result<OpHeader> {
    let nonsense = |what: &str| Error::Corrupt { offset: loc.offset(), what: what.into() };
    let len = (loc.span_bytes() as usize).min(buffer.len() - start);
    // SAFETY: the caller has waited until what the index points at is whole (`Segments::with_whole`); an index that
    // points elsewhere is told by what it finds.
    let rest = unsafe { buffer.range(start, len) };
    let header = OpHeader::decode_trusted(rest).ok_or_else(|| nonsense("no operation stands there in memory"))?;
    asked.compare(loc, &header, rest)?;
    if header.payload_end() > rest.len() {
        return Err(nonsense("the operation there reaches past its place"));
    }
    Ok(header)
}

/// An operation's key. A short one shares the operation's memory with its value.
fn key_of(operation: &Bytes, header: &OpHeader) -> Bytes {
    let key = header.key_start()..header.key_end();
    // What is decompressed leaves the operation behind.
    if header.flags & OP_FLAG_COMPRESSED == 0 { operation.slice(key) } else { Bytes::copy_from_slice(&operation[key]) }
}

fn corrupt(loc: Loc, header: &OpHeader, part: &str) -> Error {
    Error::Corrupt {
        offset: loc.offset(),
        what: format!("{part} checksum mismatch in a {:?} of object number {}", header.kind, header.object),
    }
}

fn not_compressed(loc: Loc, header: &OpHeader) -> Error {
    let what = format!("the payload of a {:?} of object number {} does not decompress", header.kind, header.object);
    Error::Corrupt { offset: loc.offset(), what }
}

fn short_payload(loc: Loc) -> Error {
    Error::Corrupt { offset: loc.offset(), what: "payload is shorter than the index says".into() }
}

#[cfg(test)]
mod tests {
    use esker_device::MemoryDevice;

    use super::*;
    use crate::format::{Role, Space, checksum_payload, encode_operation};

    const SEGMENT_BYTES: u64 = 64 << 10;
    const BASE: u64 = SEGMENT_BYTES;

    fn header(kind: Kind, object: u64, argument: u64) -> OpHeader {
        OpHeader { kind, flags: 0, key_len: 0, payload_len: 0, object, argument, payload_crc: 0 }
    }

    /// One operation each of what readers ask for, in a buffer (or not) and on the device; and their places.
    fn operations(in_memory: bool) -> (Reader, Vec<Loc>) {
        let device = Arc::new(MemoryDevice::new(4 * SEGMENT_BYTES));
        let segments = Arc::new(Segments::new(SEGMENT_BYTES, 1..4, 0, 0));
        segments.place(1, 7, 0, 0, false);
        let buffer = segments.new_buffer().unwrap();
        let (mut at, mut locs) = (4096, Vec::new());
        let page = Role::Page(Space::Omap, 3).argument();
        let ops = [
            (header(Kind::SlotSet, 1, 9), &b""[..]),
            (header(Kind::OmapSet, 1, 0), b"key"),
            (header(Kind::Write, 1, 4096), b""),
            (header(Kind::Index, 1, page), b""),
        ];
        for (header, key) in ops {
            let payload = [header.kind as u8; 100];
            let sums = checksum_payload(&payload);
            // SAFETY: only this test knows of the buffer.
            let bytes = unsafe { buffer.range_mut(at, SEGMENT_BYTES as usize - at) };
            let len = encode_operation(header, key, &payload, &sums, bytes, 5, 7, BASE + at as u64);
            locs.push(Loc::new(BASE + at as u64, len, 0));
            at += len as usize;
        }
        // SAFETY: as above.
        device.write(BASE, unsafe { buffer.range(0, SEGMENT_BYTES as usize) }).unwrap();
        if in_memory {
            segments.publish_buffer(1, Arc::new(buffer));
        }
        (Reader::new(device, segments, 5, (CachePolicy::default(), 1 << 20)), locs)
    }

    fn asked(object: u64, what: Sought<'_>) -> Asked<'_> {
        Asked { object: Some(object), what }
    }

    #[test]
    fn what_was_not_asked_for_is_never_handed_out() {
        for in_memory in [true, false] {
            let (reader, locs) = operations(in_memory);
            let right = [
                asked(1, Sought::Slot(9)),
                asked(1, Sought::Omap(b"key")),
                asked(1, Sought::Data(Some(4096))),
                Asked::piece(1, Role::Page(Space::Omap, 3)),
            ];
            let wrong = [
                asked(1, Sought::Slot(8)),
                asked(2, Sought::Slot(9)),
                asked(1, Sought::Omap(b"kez")),
                asked(1, Sought::Omap(b"ke")),
                asked(2, Sought::Omap(b"key")),
                asked(1, Sought::Data(Some(0))),
                asked(2, Sought::Data(Some(4096))),
                Asked::piece(1, Role::Page(Space::Omap, 4)),
                Asked::piece(1, Role::Page(Space::Slots, 3)),
                Asked::piece(2, Role::Page(Space::Omap, 3)),
            ];
            // Twice: the second time from the cache, if not from memory.
            for round in 0..2 {
                for (number, loc) in locs.iter().enumerate() {
                    for (other, wanted) in right.iter().enumerate() {
                        let holds = other == number;
                        assert_eq!(reader.fetch(*loc, wanted, 0).is_ok(), holds, "{round} {number} {other}");
                        assert_eq!(reader.fetch_part(*loc, wanted, 10, 20, 0).is_ok(), holds, "{number} {other}");
                        assert_eq!(reader.fetch_run(&[*loc], &[*wanted]).is_ok(), holds, "{number} {other}");
                    }
                    for wanted in &wrong {
                        let Err(error) = reader.fetch(*loc, wanted, 0) else { panic!("{wanted} is {number}") };
                        assert!(matches!(error, Error::Corrupt { offset, .. } if offset == loc.offset()), "{error}");
                        assert!(reader.fetch_part(*loc, wanted, 0, 100, 0).is_err(), "{wanted} is {number}");
                        assert!(reader.fetch_run(&[*loc], &[*wanted]).is_err(), "{wanted} is {number}");
                    }
                }
            }
            let Err(error) = reader.fetch(locs[1], &wrong[2], 0) else { panic!("another key") };
            let both = ["key kez of object number 1 was asked for", "key key of object number 1 stands there"];
            assert!(both.iter().all(|part| error.to_string().contains(part)), "{error}");
            // A clone may have what was written for another object, but not another slot.
            let shared = |what| Asked { object: None, what };
            assert!(reader.fetch(locs[0], &shared(Sought::Slot(9)), 0).is_ok());
            assert!(reader.fetch(locs[0], &shared(Sought::Slot(8)), 0).is_err());
            assert!(reader.fetch(locs[2], &shared(Sought::Data(None)), 0).is_ok());
            assert!(reader.fetch(locs[0], &shared(Sought::Data(None)), 0).is_err());
        }
    }
}

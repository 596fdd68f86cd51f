//! Segments: which parts of the device are free, open or sealed, and the buffers that hold recent ones in memory.
//!
//! A segment's buffer is filled by many writers at once, each in a range of its own; it is written out by the
//! commit thread, and stays in memory for readers until newer segments push it out: see [`recent`].
//!
//! Invariants:
//! 1. `base_lsn + offset in the segment` grows along the log: a place is durable exactly if that is below the durable
//!    mark.

mod filling;
mod kept;
mod recent;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use esker_device::Device;
use esker_store::{Error, Result};
use parking_lot::Mutex;

use crate::buffer::{HandedOut, PageChoice, SegmentBuffer};
use crate::format::{Loc, WEIGHT_WHOLE};
use crate::pool::Pool;
use crate::readers::{Pinned, Readers, StillPinned};
use crate::sharing::Sharing;
pub use filling::{Filler, Filling};
use kept::Recent;

/// A log position: bytes laid down since the store was opened, pads included.
pub type Lsn = u64;

/// What is looked at with every read and write stands apart from what writers count.
#[repr(align(64))]
struct Entry {
    generation: AtomicU32,
    base_lsn: AtomicU64,
    /// Age of what it holds: a commit sequence number.
    age: AtomicU64,
    cold: AtomicBool,
    /// Where the log left it: what stands behind counts for nothing.
    end: AtomicU64,
    /// A [`DamageLevel`].
    damage: AtomicU8,
    buffer: ArcSwapOption<SegmentBuffer>,
    counts: Counts,
}

#[derive(Default)]
#[repr(align(64))]
struct Counts {
    /// Bytes that objects point to, in 4096ths: see [`WEIGHT_WHOLE`].
    live: AtomicI64,
    /// Of these, those that count more than once because several objects point to them, as far as known.
    again: AtomicI64,
    /// Bytes of the last checkpoint.
    index: AtomicI64,
    /// Of a cold segment: bytes of the operations in it, living or not.
    filled: AtomicU64,
    /// First and last transaction that a cold segment holds something of, once a caller has walked it.
    range: Mutex<(u32, u64, u64)>,
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            generation: AtomicU32::new(0),
            base_lsn: AtomicU64::new(0),
            age: AtomicU64::new(0),
            cold: AtomicBool::new(false),
            end: AtomicU64::new(u64::MAX),
            damage: AtomicU8::new(DamageLevel::None as u8),
            buffer: ArcSwapOption::empty(),
            counts: Counts::default(),
        }
    }
}

/// What is known of damage in a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum DamageLevel {
    /// None.
    #[default]
    None = 0,
    /// Something in it does not hold.
    Part = 1,
    /// Its header does not hold: its generation is known from elsewhere.
    Header = 2,
    /// Neither its header nor anything that tells its generation: nothing of it can be read.
    Whole = 3,
}

impl DamageLevel {
    fn from_u8(damage: u8) -> Self {
        match damage {
            0 => Self::None,
            1 => Self::Part,
            2 => Self::Header,
            _ => Self::Whole,
        }
    }
}

/// The generation that a segment counts as whose own is lost: nothing that stands anywhere has it.
pub const GENERATION_LOST: u32 = u32::MAX - 1;

/// When the device has had no blocks for so many segments in one call (about a millisecond each), it is not asked for
/// those of all others of which nothing is known.
const REFUSED_MAX: u64 = 4096;

/// Free segments of a store that holds nothing whose blocks are reserved.
const BACKED_MIN: u64 = 2;

/// How often the table can double: from the smallest device of the smallest segments to the largest.
const DOUBLINGS: usize = 32;

/// The entries of all segments: those of the device as it was opened in one piece, and one more piece for each doubling
/// since, so that a look takes no lock and nothing ever moves.
struct Table {
    first: Box<[Entry]>,
    /// Piece n has the entries from `first.len() << n` on, as many as come before it.
    more: [OnceLock<Box<[Entry]>>; DOUBLINGS],
    count: AtomicU64,
}

impl Table {
    fn new(count: u64) -> Self {
        let first = (0..count).map(|_| Entry::default()).collect();
        Self { first, more: [const { OnceLock::new() }; DOUBLINGS], count: AtomicU64::new(count) }
    }

    fn len(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    #[inline]
    fn get(&self, segment: u64) -> Option<&Entry> {
        self.first.get(segment as usize).or_else(|| self.get_later(segment))
    }

    #[cold]
    fn get_later(&self, segment: u64) -> Option<&Entry> {
        let first = self.first.len() as u64;
        let piece = segment.checked_div(first)?.checked_ilog2()?;
        let at = segment - (first << piece);
        self.more.get(piece as usize)?.get()?.get(at as usize)
    }

    /// Makes room for `count` entries; one caller at a time.
    fn grow(&self, count: u64) {
        let first = self.first.len() as u64;
        for (piece, entries) in self.more.iter().enumerate() {
            let begins = first << piece;
            if begins >= count {
                break;
            }
            entries.get_or_init(|| (0..begins).map(|_| Entry::default()).collect());
        }
        self.count.fetch_max(count, Ordering::AcqRel);
    }
}

/// A segment in use, as the cleaner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Its number.
    pub segment: u64,
    /// Its generation.
    pub generation: u32,
    /// Whether it holds what was moved, and checkpoints; else log.
    pub cold: bool,
    /// Age of what it holds: a commit sequence number.
    pub age: u64,
    /// Bytes that objects point to; a byte that two objects share counts twice.
    pub live: u64,
    /// Of these, each byte once, as far as is known: what moving them would write.
    pub once: u64,
    /// Bytes of the last checkpoint.
    pub index: u64,
    /// Of a cold segment: bytes of the operations in it, living or not, as far as known.
    pub filled: u64,
    /// Where the log left it, as an offset in the segment: what stands behind counts for nothing.
    pub end: u64,
    /// What is known of damage in it.
    pub damage: DamageLevel,
}

/// All segments of a device.
pub struct Segments {
    /// Segment size in bytes, a power of two.
    pub segment_bytes: u64,
    shift: u32,
    entries: Table,
    /// First segment that holds log, not superblocks.
    first: u64,
    lists: Mutex<Lists>,
    /// So many free segments with blocks are left alone while there are others, at most.
    kept_backed: AtomicU64,
    recent: Recent,
    /// What new buffers are made of.
    pub page_choice: PageChoice,
    readers: Readers,
    /// Which ranges of the log are being filled.
    pub filling: Filling,
    /// Where reads are that no caller waits for yet.
    pool: OnceLock<Arc<Pool>>,
    index_bytes: AtomicI64,
    /// Buffers that only values keep.
    pub handed_out: Arc<HandedOut>,
    /// Who shares what stands in them.
    pub sharing: Sharing,
}

struct Lists {
    /// Free segments whose blocks are reserved on the device.
    backed: VecDeque<u64>,
    /// Free segments of which that is not known.
    unbacked: VecDeque<u64>,
    /// Free segments whose blocks the store has given back.
    given: VecDeque<u64>,
    /// Segments that hold nothing and that the device had no blocks for when it was asked: not free.
    bare: VecDeque<u64>,
}

impl Lists {
    /// The device is taken to have no blocks for any of those of which it is not known that it has.
    fn all_bare(&mut self) {
        self.bare.append(&mut self.unbacked);
        self.bare.append(&mut self.given);
    }

    /// Takes a free segment that may have no blocks.
    fn pop_unbacked(&mut self) -> Option<u64> {
        self.unbacked.pop_front().or_else(|| self.given.pop_front())
    }

    fn free(&self) -> u64 {
        (self.backed.len() + self.unbacked.len() + self.given.len()) as u64
    }
}

impl AsRef<Readers> for Arc<Segments> {
    fn as_ref(&self) -> &Readers {
        &self.readers
    }
}

impl Segments {
    /// A table of the segments that can hold log and of those below, which belong to the superblocks. Buffers of at
    /// most `recent_bytes` (and at least of two segments) stay in memory, of what [is lent](Segments::lend) beside them
    /// unless `recent_bytes` is 0, and of `pinned_bytes_max` for values.
    pub fn new(segment_bytes: u64, log_segments: Range<u64>, recent_bytes: u64, pinned_bytes_max: u64) -> Self {
        let lists =
            Lists { backed: VecDeque::new(), unbacked: VecDeque::new(), given: VecDeque::new(), bare: VecDeque::new() };
        Self {
            segment_bytes,
            shift: segment_bytes.trailing_zeros(),
            entries: Table::new(log_segments.end.max(log_segments.start)),
            first: log_segments.start,
            lists: Mutex::new(lists),
            kept_backed: AtomicU64::new(0),
            recent: Recent::new(recent_bytes, segment_bytes),
            page_choice: PageChoice::default(),
            readers: Readers::default(),
            filling: Filling::default(),
            pool: OnceLock::new(),
            index_bytes: AtomicI64::new(0),
            handed_out: HandedOut::new(pinned_bytes_max),
            sharing: Sharing::default(),
        }
    }

    /// Taken before places are looked up in the index, kept until what stands there was read.
    pub fn pin(&self) -> Pinned<'_> {
        self.readers.pin()
    }

    /// The same, for work that goes on when the call has returned.
    pub fn keep_pinned(self: &Arc<Self>, pinned: Pinned<'_>) -> StillPinned<Arc<Self>> {
        pinned.keep(Arc::clone(self))
    }

    /// Tells the pool that reads are offered to.
    pub fn read_by(&self, pool: &Arc<Pool>) {
        // Told once, when the store is opened.
        let _ = self.pool.set(Arc::clone(pool));
    }

    /// Waits until no reader reads what was in the index before now.
    pub fn wait_for_readers(&self) {
        self.readers.wait(|| {
            if let Some(pool) = self.pool.get() {
                pool.hurry();
            }
        });
    }

    fn entry(&self, segment: u64) -> &Entry {
        self.entries.get(segment).expect("only segments of the device are placed")
    }

    /// Takes in the segments up to number `count` of a device that has become longer, all of them free; how many there
    /// are. One caller at a time.
    pub fn grow(&self, count: u64) -> u64 {
        let before = self.entries.len();
        self.entries.grow(count);
        self.lists.lock().unbacked.extend(before..count.max(before));
        count.saturating_sub(before)
    }

    /// Number of segments that can hold log.
    pub fn log_segments(&self) -> u64 {
        self.entries.len() - self.first
    }

    /// Bytes of the device, superblocks included.
    pub fn device_bytes(&self) -> u64 {
        self.entries.len() * self.segment_bytes
    }

    /// Number of free segments.
    pub fn free_segments(&self) -> u64 {
        self.lists.lock().free()
    }

    /// Number of segments that can hold log and that the device has blocks for, as far as is known.
    pub fn usable_segments(&self) -> u64 {
        let bare = self.bare_segments();
        self.log_segments().saturating_sub(bare)
    }

    /// Number of segments that the device had no blocks for when it was asked.
    pub fn bare_segments(&self) -> u64 {
        self.lists.lock().bare.len() as u64
    }

    /// Says that a segment holds this generation of the log, or with `cold` of what was moved; `age` tells how old it
    /// is.
    pub fn place(&self, segment: u64, generation: u32, base_lsn: Lsn, age: u64, cold: bool) {
        let entry = self.entry(segment);
        entry.base_lsn.store(base_lsn, Ordering::Release);
        entry.age.store(age, Ordering::Release);
        entry.cold.store(cold, Ordering::Release);
        entry.generation.store(generation, Ordering::Release);
    }

    /// An object points to `bytes` at this device offset from now on.
    #[inline]
    pub fn add_live(&self, offset: u64, bytes: u64) {
        self.add_live_weight(offset, bytes * WEIGHT_WHOLE);
    }

    /// An object has `raw` bytes more of an extent at this place.
    #[inline]
    pub fn add_live_part(&self, loc: Loc, raw: u64) {
        self.add_live_weight(loc.offset(), raw * loc.weight());
    }

    /// As [`Segments::add_live`], in 4096ths of a byte.
    #[inline]
    pub fn add_live_weight(&self, offset: u64, weight: u64) {
        if let Some(entry) = self.entries.get(self.segment_of(offset)) {
            entry.counts.live.fetch_add(weight as i64, Ordering::Relaxed);
        }
    }

    /// An object no longer points to so much at this device offset, in 4096ths of a byte.
    #[inline]
    pub fn sub_live_weight(&self, offset: u64, weight: u64) {
        if let Some(entry) = self.entries.get(self.segment_of(offset)) {
            // The thread that sees that nothing is left also sees everything that was done before.
            entry.counts.live.fetch_sub(weight as i64, Ordering::Release);
        }
    }

    /// Another object points to what one points to already, in 4096ths of a byte.
    pub fn add_again_weight(&self, offset: u64, weight: u64) {
        if let Some(entry) = self.entries.get(self.segment_of(offset)) {
            entry.counts.again.fetch_add(weight as i64, Ordering::Relaxed);
            entry.counts.live.fetch_add(weight as i64, Ordering::Relaxed);
        }
    }

    /// As [`Segments::sub_live_weight`], for an object that shares data or whose data others share: what others still
    /// point to is what counts less often now. By how much, in 4096ths of a byte.
    pub fn sub_shared_weight(&self, offset: u64, weight: u64) -> u64 {
        let Some(entry) = self.entries.get(self.segment_of(offset)) else { return 0 };
        let mut taken = 0;
        // The closure always gives a value.
        let _ = entry.counts.again.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |again| {
            taken = again.clamp(0, weight as i64);
            Some(again - taken)
        });
        entry.counts.live.fetch_sub(weight as i64, Ordering::Release);
        taken as u64
    }

    /// What counts more than once moves with what it counts for, in 4096ths of a byte.
    pub fn move_again_weight(&self, offset: u64, weight: u64) {
        if let Some(entry) = self.entries.get(self.segment_of(offset)) {
            entry.counts.again.fetch_add(weight as i64, Ordering::Relaxed);
        }
    }

    /// So much at least counts more than once in a segment, in 4096ths of a byte.
    pub fn counts_again(&self, segment: u64, weight: u64) {
        if let Some(entry) = self.entries.get(segment) {
            entry.counts.again.fetch_max(weight as i64, Ordering::Relaxed);
        }
    }

    /// The checkpoint holds so many bytes more, or fewer, at this device offset.
    pub fn add_index(&self, offset: u64, bytes: i64) {
        if let Some(entry) = self.entries.get(self.segment_of(offset)) {
            entry.counts.index.fetch_add(bytes, Ordering::AcqRel);
            self.index_bytes.fetch_add(bytes, Ordering::AcqRel);
        }
    }

    /// A cold segment has got `bytes` of operations more.
    pub fn add_filled(&self, segment: u64, bytes: u64) {
        if let Some(entry) = self.entries.get(segment) {
            entry.counts.filled.fetch_add(bytes, Ordering::AcqRel);
        }
    }

    /// A cold segment that is sealed holds something of these transactions, first and last.
    pub fn set_range(&self, segment: u64, generation: u32, first: u64, last: u64) {
        if let Some(entry) = self.entries.get(segment) {
            *entry.counts.range.lock() = (generation, first, last);
        }
    }

    /// First and last transaction of which a cold segment holds something, as far as that is known.
    pub fn range(&self, usage: &Usage) -> (u64, u64) {
        let known = self.entries.get(usage.segment).map(|entry| *entry.counts.range.lock());
        known.filter(|known| known.0 == usage.generation).map_or((0, u64::MAX), |(_, first, last)| (first, last))
    }

    /// Bytes of the checkpoint in all segments.
    pub fn index_bytes(&self) -> u64 {
        self.index_bytes.load(Ordering::Acquire).max(0) as u64
    }

    /// The log left the segment at this offset in it.
    pub fn set_end(&self, segment: u64, end: u64) {
        if let Some(entry) = self.entries.get(segment) {
            entry.end.store(end, Ordering::Release);
        }
    }

    /// One segment, if it is in use.
    pub fn usage(&self, segment: u64) -> Option<Usage> {
        let entry = self.entries.get(segment)?;
        let generation = entry.generation.load(Ordering::Acquire);
        let bytes = |weight: i64| (weight.max(0) as u64).div_ceil(WEIGHT_WHOLE);
        let live = entry.counts.live.load(Ordering::Acquire);
        (generation != 0).then(|| Usage {
            segment,
            generation,
            cold: entry.cold.load(Ordering::Acquire),
            age: entry.age.load(Ordering::Acquire),
            live: bytes(live),
            once: bytes(live - entry.counts.again.load(Ordering::Acquire)),
            index: entry.counts.index.load(Ordering::Acquire).max(0) as u64,
            filled: entry.counts.filled.load(Ordering::Acquire),
            end: entry.end.load(Ordering::Acquire).min(self.segment_bytes),
            damage: DamageLevel::from_u8(entry.damage.load(Ordering::Acquire)),
        })
    }

    /// Notes damage in a segment, whose life of `generation` goes on; whether that is worse than what was known.
    pub fn note_damage(&self, segment: u64, generation: u32, damage: DamageLevel) -> bool {
        let entry = self.entries.get(segment).filter(|entry| entry.generation.load(Ordering::Acquire) == generation);
        entry.is_some_and(|entry| entry.damage.fetch_max(damage as u8, Ordering::AcqRel) < damage as u8)
    }

    /// Segments that opening has not placed and that something points to all the same.
    pub fn pointed_to_unplaced(&self) -> Vec<u64> {
        let points = |entry: &Entry| {
            entry.counts.live.load(Ordering::Acquire) > 0 || entry.counts.index.load(Ordering::Acquire) > 0
        };
        let lost = |segment: &u64| self.generation(*segment) == 0 && self.entries.get(*segment).is_some_and(points);
        (self.first..self.entries.len()).filter(lost).collect()
    }

    /// All segments in use.
    pub fn in_use(&self) -> Vec<Usage> {
        (self.first..self.entries.len()).filter_map(|segment| self.usage(segment)).collect()
    }

    /// Makes a segment free that nothing points to any more, and that no reader reads. One that is `warm` still has its
    /// blocks on the device, and is taken again first.
    pub fn release(&self, segment: u64, warm: bool) {
        let entry = self.entry(segment);
        entry.generation.store(0, Ordering::Release);
        entry.counts.live.store(0, Ordering::Release);
        entry.counts.again.store(0, Ordering::Release);
        self.index_bytes.fetch_sub(entry.counts.index.swap(0, Ordering::AcqRel), Ordering::AcqRel);
        entry.counts.filled.store(0, Ordering::Release);
        entry.end.store(u64::MAX, Ordering::Release);
        entry.damage.store(DamageLevel::None as u8, Ordering::Release);
        self.forget_buffer(segment);
        self.sharing.forget(segment);
        let mut lists = self.lists.lock();
        if warm {
            lists.backed.push_front(segment);
        } else {
            lists.given.push_back(segment);
        }
    }

    /// Makes every segment that holds no log free. Those in which something `stands` are taken first: they have blocks.
    pub fn free_unplaced(&self, stands: impl Fn(u64) -> bool) {
        let free = (self.first..self.entries.len()).filter(|segment| self.generation(*segment) == 0);
        let (first, then): (VecDeque<u64>, VecDeque<u64>) = free.partition(|segment| stands(*segment));
        let mut lists = self.lists.lock();
        lists.unbacked = first;
        lists.unbacked.extend(then);
        lists.backed.clear();
    }

    /// Takes a free segment and reserves its blocks on the device. Those that the device has none for are not free any
    /// more. With `sparing` the last ones that are known to have blocks are taken only when there are no others.
    ///
    /// # Errors
    /// The device's, but for a want of space.
    pub fn take_reserved(&self, device: &dyn Device, sparing: bool) -> esker_device::Result<Option<u64>> {
        let mut refused = 0;
        if sparing {
            // First: a caller that takes many in a row might come to the end of the device before another thread has
            // looked.
            self.back(device)?;
        }
        loop {
            let taken = {
                let mut lists = self.lists.lock();
                let kept = if sparing { self.backed_wanted(&lists) } else { 0 };
                let spared = lists.backed.len() as u64 <= kept && lists.free() > lists.backed.len() as u64;
                if spared { None } else { lists.backed.pop_front() }.or_else(|| lists.pop_unbacked())
            };
            let Some(segment) = taken else { return Ok(None) };
            match self.reserve(device, segment) {
                Ok(true) => return Ok(Some(segment)),
                Ok(false) => refused += 1,
                Err(error) => {
                    self.lists.lock().unbacked.push_front(segment);
                    return Err(error);
                }
            }
            if refused == REFUSED_MAX {
                self.lists.lock().all_bare();
            }
        }
    }

    /// The device has no blocks for a segment that was taken.
    pub fn set_bare(&self, segment: u64) {
        self.lists.lock().bare.push_back(segment);
    }

    /// Reserves the blocks of a segment that was taken; it is bare if there are none.
    fn reserve(&self, device: &dyn Device, segment: u64) -> esker_device::Result<bool> {
        let offset = segment * self.segment_bytes;
        match device.reserve(offset, self.segment_bytes) {
            Err(esker_device::Error::NoSpace { .. }) => {
                // A file system may have found blocks for a part of it. If they cannot be given back, they are there
                // when it is asked again.
                if let Err(error) = device.discard(offset, self.segment_bytes) {
                    tracing::debug!(segment, %error, "the blocks for a part of a segment were not given back");
                }
                self.set_bare(segment);
                Ok(false)
            }
            other => other.map(|()| true),
        }
    }

    /// So many free segments are to have blocks from now on, at most, and are spared: see [`Segments::back`] and
    /// [`Segments::take_reserved`].
    pub fn keep_backed(&self, most: u64) {
        self.kept_backed.store(most, Ordering::Relaxed);
    }

    /// Free segments that are to have blocks: a small store keeps as many as its reserve would be if the device had no
    /// more than it has used.
    fn backed_wanted(&self, lists: &Lists) -> u64 {
        let used = self.log_segments().saturating_sub(lists.free() + lists.bare.len() as u64);
        self.kept_backed.load(Ordering::Relaxed).min(BACKED_MIN + used / 2)
    }

    /// Sees to it that as many free segments have blocks as are to be kept, as far as the device has them. What it has
    /// none for is not free any more.
    ///
    /// # Errors
    /// As for [`Segments::take_reserved`].
    pub fn back(&self, device: &dyn Device) -> esker_device::Result<()> {
        let mut refused = 0;
        loop {
            let taken = {
                let mut lists = self.lists.lock();
                let enough = lists.backed.len() as u64 >= self.backed_wanted(&lists);
                if enough { None } else { lists.pop_unbacked() }
            };
            let Some(segment) = taken else { return Ok(()) };
            match self.reserve(device, segment) {
                Ok(true) => self.lists.lock().backed.push_back(segment),
                Ok(false) => refused += 1,
                Err(error) => {
                    self.lists.lock().unbacked.push_front(segment);
                    return Err(error);
                }
            }
            if refused == REFUSED_MAX {
                self.lists.lock().all_bare();
                return Ok(());
            }
        }
    }

    /// Gives the device back the blocks of up to `most` free segments that are more than are to be kept. They stay
    /// free, and are taken last.
    ///
    /// # Errors
    /// Those of a discard: the segment keeps its blocks, as far as is known.
    pub fn give_back(&self, device: &dyn Device, most: u64) -> esker_device::Result<()> {
        for _ in 0..most {
            let surplus = {
                let mut lists = self.lists.lock();
                if lists.backed.len() as u64 > self.backed_wanted(&lists) { lists.backed.pop_back() } else { None }
            };
            let Some(segment) = surplus else { return Ok(()) };
            let given = device.discard(segment * self.segment_bytes, self.segment_bytes);
            let mut lists = self.lists.lock();
            match given {
                Ok(()) => lists.given.push_back(segment),
                Err(error) => {
                    // Another one is tried the next time.
                    lists.backed.push_front(segment);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Free segments whose blocks the store has given back.
    pub fn given_segments(&self) -> u64 {
        self.lists.lock().given.len() as u64
    }

    /// Takes the blocks of up to `most` segments again that were given back. What others have taken meanwhile is not
    /// free any more.
    ///
    /// # Errors
    /// As for [`Segments::take_reserved`].
    pub fn take_back(&self, device: &dyn Device, most: u64) -> esker_device::Result<()> {
        for _ in 0..most {
            let Some(segment) = self.lists.lock().given.pop_front() else { return Ok(()) };
            match self.reserve(device, segment) {
                Ok(true) => self.lists.lock().backed.push_back(segment),
                Ok(false) => {}
                Err(error) => {
                    self.lists.lock().given.push_front(segment);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Asks the device for the blocks of one segment that it had none for. If it has them, this one is free, and so are
    /// up to `more` others, whose blocks it is asked for when they are taken. Whether it had.
    ///
    /// # Errors
    /// As for [`Segments::take_reserved`].
    pub fn ask_again(&self, device: &dyn Device, more: u64) -> esker_device::Result<bool> {
        let Some(segment) = self.lists.lock().bare.pop_front() else { return Ok(false) };
        match self.reserve(device, segment) {
            Ok(true) => {
                let mut lists = self.lists.lock();
                let Lists { backed, unbacked, bare, .. } = &mut *lists;
                backed.push_back(segment);
                unbacked.extend(bare.drain(..(more as usize).min(bare.len())));
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(error) => {
                self.lists.lock().bare.push_back(segment);
                Err(error)
            }
        }
    }

    /// Takes a segment out of the free ones, if it is among them.
    pub fn take(&self, segment: u64) {
        let mut lists = self.lists.lock();
        lists.backed.retain(|free| *free != segment);
        lists.unbacked.retain(|free| *free != segment);
        lists.given.retain(|free| *free != segment);
        lists.bare.retain(|bare| *bare != segment);
    }

    /// Number of the segment that holds this device offset.
    pub fn segment_of(&self, offset: u64) -> u64 {
        offset >> self.shift
    }

    /// Offset inside its segment.
    pub fn within(&self, offset: u64) -> u64 {
        offset & (self.segment_bytes - 1)
    }

    /// Generation of a segment; 0 if it holds no log.
    pub fn generation(&self, segment: u64) -> u32 {
        self.entries.get(segment).map_or(0, |entry| entry.generation.load(Ordering::Acquire))
    }

    fn base_lsn(&self, segment: u64) -> Lsn {
        // A place outside the device reads as an error, whatever is said of its position.
        self.entries.get(segment).map_or(0, |entry| entry.base_lsn.load(Ordering::Acquire))
    }

    /// Log position of a device offset.
    pub fn lsn_of(&self, offset: u64) -> Lsn {
        self.base_lsn(self.segment_of(offset)) + self.within(offset)
    }

    /// The buffer of a segment, if it is in memory, from `from` on.
    pub fn buffer(&self, segment: u64) -> Option<Arc<SegmentBuffer>> {
        self.entries.get(segment)?.buffer.load_full()
    }

    /// As [`Segments::with_unwaited`], of a place that the index has: when `f` runs what stands there is whole.
    ///
    /// # Errors
    /// [`Error::Stopped`] if it will never be, since its writer panicked.
    #[inline]
    pub fn with_whole<R>(
        &self,
        offset: u64,
        f: impl FnOnce(&Arc<SegmentBuffer>, usize) -> Result<R>,
    ) -> Option<Result<R>> {
        self.with_unwaited(offset, |buffer, start| match self.filling.wait_at(self.lsn_of(offset)) {
            true => f(buffer, start),
            false => Err(never_whole()),
        })
    }

    /// Runs `f` on the buffer of the segment that holds `offset`, if it is in memory. Only what the log has written is
    /// sure to be whole.
    pub fn with_unwaited<R>(&self, offset: u64, f: impl FnOnce(&Arc<SegmentBuffer>, usize) -> R) -> Option<R> {
        let entry = self.entries.get(self.segment_of(offset))?;
        let guard = entry.buffer.load();
        let within = self.within(offset) as usize;
        guard.as_ref().filter(|buffer| within >= buffer.from).map(|buffer| f(buffer, within))
    }
}

#[cold]
fn never_whole() -> Error {
    Error::Stopped { cause: "the thread that wrote it panicked before it was whole".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_that_are_taken_in_leave_the_others_where_they_are() {
        let segments = Segments::new(1 << 16, 1..3, 0, 0);
        segments.free_unplaced(|_| false);
        let all: Vec<u64> = (0..3).chain([4, 7, 40, 41, 1_000]).collect();
        for count in all {
            let before = segments.log_segments();
            assert_eq!(segments.grow(count), (count.max(before + 1) - 1).saturating_sub(before));
            assert_eq!(segments.free_segments(), segments.log_segments());
        }
        for segment in 1..1_000 {
            segments.place(segment, segment as u32, segment << 16, 0, false);
        }
        (1..1_000).for_each(|segment| assert_eq!(segments.generation(segment), segment as u32));
        assert_eq!((segments.generation(1_000), segments.generation(u64::MAX >> 16)), (0, 0));
        assert_eq!(segments.in_use().len(), 999);
    }
}

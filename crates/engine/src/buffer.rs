//! Buffers: the memory that recent segments stand in, and the values that are handed out of it.
//!
//! a segment's buffer → a small value, or a lent buffer: copied | a large one: a slice that keeps the buffer, as
//! long as few do
//!
//! Invariants:
//! 1. A range of a buffer is written by one reservation, once per life of the buffer; readers that know of it before it
//!    is whole wait (`Segments::with_whole`).
//! 2. Memory of buffers that only values keep is bounded: above [`HandedOut::max`] values are copied.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::prefetch::prefetch_at;

/// What [`SegmentBuffer::touch`] touches at a time: a huge page.
const TOUCH_BYTES: usize = 2 << 20;
/// The smallest page that a processor maps.
const PAGE_BYTES: usize = 4 << 10;

/// Most records of small values reach no further than the second cache line.
const PREFETCH_BYTES: usize = 128;

/// Where the first touch of a huge page takes longer, small ones are had sooner: those take some 0.25 to 0.5 s for a
/// GiB, huge ones 0.15 s, but over 3 s where a hypervisor has taken free memory away and gives it back in small pieces.
const HUGE_TOUCH_MAX: Duration = Duration::from_millis(2);
/// So many buffers are of small pages then, before huge ones are tried again.
const SMALL_BUFFERS: u32 = 64;

/// Which pages new buffers are made of: huge ones, unless the last that were touched came slowly.
#[derive(Default)]
pub struct PageChoice {
    /// Buffers that are still to be of small pages.
    small: AtomicU32,
}

impl PageChoice {
    /// Maps a buffer of `len` bytes.
    ///
    /// # Errors
    /// As [`SegmentBuffer::new`].
    pub fn new_buffer(&self, len: usize) -> std::io::Result<SegmentBuffer> {
        let is_small =
            self.small.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        SegmentBuffer::of_pages(len, !is_small)
    }

    /// So many bytes of a buffer were touched first, in that time.
    pub fn note(&self, buffer: &SegmentBuffer, touched: usize, took: Duration) {
        let pieces = u32::try_from(touched / TOUCH_BYTES).unwrap_or(u32::MAX);
        if buffer.is_huge && pieces > 0 && took / pieces > HUGE_TOUCH_MAX {
            self.small.store(SMALL_BUFFERS, Ordering::Relaxed);
        }
    }
}

/// Memory for one segment: zeroed, page-aligned, shared between writers of disjoint ranges.
pub struct SegmentBuffer {
    start: NonNull<u8>,
    len: usize,
    /// What stands before was not read from the device.
    pub from: usize,
    /// What stands before was touched.
    touched: usize,
    /// Huge pages were asked for.
    is_huge: bool,
    /// It stands in memory that is to be had back at any time: no value may keep it.
    lent: AtomicBool,
    /// Where it is counted, once only values keep it.
    counted: OnceLock<Arc<HandedOut>>,
}

// SAFETY: the memory is plain bytes owned by this value; ranges are handed out disjointly (see `range_mut`), and
// readers only look at ranges whose writers have finished (published through a lock or a release store).
unsafe impl Send for SegmentBuffer {}
// SAFETY: as above.
unsafe impl Sync for SegmentBuffer {}

impl SegmentBuffer {
    /// Maps `len` bytes of zeros.
    ///
    /// # Errors
    /// The operating system's, when memory is short.
    pub fn new(len: usize) -> std::io::Result<Self> {
        Self::of_pages(len, true)
    }

    /// The same of small pages, for what is too little for a huge one.
    ///
    /// # Errors
    /// As [`SegmentBuffer::new`].
    pub fn of_small_pages(len: usize) -> std::io::Result<Self> {
        Self::of_pages(len, false)
    }

    fn of_pages(len: usize, is_huge: bool) -> std::io::Result<Self> {
        // SAFETY: a fresh anonymous private mapping at an address that the kernel chooses.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        // Huge pages mostly make first touches cheaper; the engine works as well without them.
        let pages = if is_huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: the range is the mapping made above.
        let _ = unsafe { rustix::mm::madvise(start, len, pages) };
        let start = NonNull::new(start.cast()).ok_or_else(|| std::io::Error::other("mapped at address zero"))?;
        Ok(Self { start, len, from: 0, touched: 0, is_huge, lent: AtomicBool::new(false), counted: OnceLock::new() })
    }

    /// Has the processor fetch two cache lines from here on.
    #[inline]
    pub fn prefetch(&self, start: usize) {
        prefetch_at(self.start.as_ptr().wrapping_add(start), PREFETCH_BYTES);
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Says that what stands before `from` is not there: readers have to look on the device.
    pub fn begins_at(&mut self, from: usize) {
        self.from = from;
    }

    /// For another segment: all of it is there, and may be handed out.
    pub fn begin_again(&mut self) {
        self.from = 0;
        *self.lent.get_mut() = false;
    }

    /// No value may keep it from now on.
    pub fn set_lent(&self) {
        self.lent.store(true, Ordering::SeqCst);
    }

    /// Whether [`SegmentBuffer::set_lent`] was said.
    pub fn is_lent(&self) -> bool {
        self.lent.load(Ordering::SeqCst)
    }

    /// Touches all of it now, so that writers do not have to, a piece at a time as long as it `goes_on`. By writing:
    /// a call that has the kernel do it keeps the whole process from mapping memory meanwhile. Returns the bytes that
    /// were touched now.
    pub fn touch(&mut self, mut goes_on: impl FnMut() -> bool) -> usize {
        let before = self.touched;
        while self.touched < self.len && goes_on() {
            let piece = TOUCH_BYTES.min(self.len - self.touched);
            for at in (self.touched..self.touched + piece).step_by(PAGE_BYTES) {
                // SAFETY: inside the mapping; exclusive by `&mut self`.
                unsafe { self.start.add(at).write_volatile(0) };
            }
            self.touched += piece;
        }
        self.touched - before
    }

    /// Whether all of it was touched.
    pub fn is_touched(&self) -> bool {
        self.touched == self.len
    }

    /// All of it, while only the caller knows of it.
    pub fn whole_mut(&mut self) -> &mut [u8] {
        // SAFETY: inside the mapping; exclusive by `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// A range for its one writer.
    ///
    /// # Safety
    /// No other thread reads or writes the range until the caller has finished with it: one that knows of it waits.
    #[expect(clippy::mut_from_ref, reason = "disjoint ranges of a shared buffer are the point of this type")]
    pub unsafe fn range_mut(&self, start: usize, len: usize) -> &mut [u8] {
        assert!(start <= self.len && len <= self.len - start, "range {start}+{len} outside a buffer of {}", self.len);
        // SAFETY: inside the mapping by the assertion; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(start), len) }
    }

    /// A range whose writers have finished.
    ///
    /// # Safety
    /// The writer of the range has finished and published that, and no writer gets it again while it is borrowed.
    pub unsafe fn range(&self, start: usize, len: usize) -> &[u8] {
        assert!(start <= self.len && len <= self.len - start, "range {start}+{len} outside a buffer of {}", self.len);
        // SAFETY: inside the mapping by the assertion; not written by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(start), len) }
    }
}

impl Drop for SegmentBuffer {
    fn drop(&mut self) {
        if let Some(handed_out) = self.counted.get() {
            handed_out.bytes.fetch_sub(self.len as u64, Ordering::Relaxed);
        }
        // SAFETY: the mapping made in `new`; no borrow outlives the value that is dropped.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A range of a buffer that keeps the buffer alive: values are handed out this way without a copy.
pub struct BufferSlice {
    /// The buffer.
    pub buffer: Arc<SegmentBuffer>,
    /// First byte.
    pub start: usize,
    /// Length in bytes.
    pub len: usize,
}

impl AsRef<[u8]> for BufferSlice {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: slices are only made of ranges found through the index, which the maker has waited for until they
        // were whole (`Segments::with_whole`) and which are never written again in this life of the buffer, and of
        // whole buffers while the log is replayed, which nothing writes until then; the buffer is not reused while this
        // slice holds it.
        unsafe { self.buffer.range(self.start, self.len) }
    }
}

/// Values from this size on are handed out as slices of the segment's buffer; smaller ones are copied, so that a
/// small value that a caller keeps does not keep a whole segment in memory.
pub const SHARED_VALUE_BYTES_MIN: usize = 16 << 10;

/// Buffers that left the memory for recent segments and that values keep all the same.
pub struct HandedOut {
    /// Length of these in bytes.
    bytes: AtomicU64,
    /// From so many bytes on values are copied, so that no more buffers are kept than those, and the recent ones.
    pub max: u64,
}

impl HandedOut {
    /// None are kept, and values keep buffers of so many bytes at most, and those that are recent now.
    pub fn new(max: u64) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicU64::new(0), max })
    }

    /// Bytes of buffers that only values keep.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// A value out of a buffer: copied or shared, by its size and by what is kept already.
    pub fn value_of(&self, buffer: &Arc<SegmentBuffer>, start: usize, len: usize) -> Bytes {
        if len >= SHARED_VALUE_BYTES_MIN && self.bytes() < self.max && !buffer.is_lent() {
            let slice = BufferSlice { buffer: Arc::clone(buffer), start, len };
            // The thread that lends says so, then counts; this one keeps the buffer, then looks: one sees the other.
            fence(Ordering::SeqCst);
            if !buffer.is_lent() {
                return Bytes::from_owner(slice);
            }
        }
        // SAFETY: as in `BufferSlice::as_ref`.
        Bytes::copy_from_slice(unsafe { buffer.range(start, len) })
    }

    /// A buffer is not recent any more: given back if no value keeps it, else counted until its last value goes.
    pub fn leaves(self: &Arc<Self>, buffer: Arc<SegmentBuffer>) -> Option<SegmentBuffer> {
        let kept = match Arc::try_unwrap(buffer) {
            Ok(alone) => return Some(alone),
            Err(kept) => kept,
        };
        if kept.counted.set(Arc::clone(self)).is_ok() {
            self.bytes.fetch_add(kept.len as u64, Ordering::Relaxed);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_ends_when_it_is_told_to_and_goes_on_where_it_ended() {
        let mut buffer = SegmentBuffer::new(3 * TOUCH_BYTES + PAGE_BYTES).unwrap();
        buffer.whole_mut().fill(9);
        let mut pieces = 0;
        let mut touch = |buffer: &mut SegmentBuffer, most: usize| {
            buffer.touch(|| {
                pieces += 1;
                pieces <= most
            });
            // The first byte of each page tells.
            buffer.whole_mut().iter().step_by(PAGE_BYTES).take_while(|byte| **byte == 0).count() * PAGE_BYTES
        };
        assert_eq!(touch(&mut buffer, 1), TOUCH_BYTES);
        assert_eq!(touch(&mut buffer, 100), 3 * TOUCH_BYTES + PAGE_BYTES);
        assert_eq!(pieces, 5, "asked before each piece, and once when it was to end");
    }

    #[test]
    fn after_a_slow_touch_of_huge_pages_some_buffers_are_of_small_ones() {
        let choice = PageChoice::default();
        let of_huge = |count: usize| (0..count).filter(|_| choice.new_buffer(TOUCH_BYTES).unwrap().is_huge).count();
        let mut buffer = choice.new_buffer(4 * TOUCH_BYTES).unwrap();
        let touched = buffer.touch(|| true);
        assert_eq!((touched, buffer.touch(|| true)), (4 * TOUCH_BYTES, 0));
        // Quick, or none at all: a spare buffer is touched already.
        choice.note(&buffer, touched, 4 * HUGE_TOUCH_MAX);
        choice.note(&buffer, 0, 9 * HUGE_TOUCH_MAX);
        assert_eq!(of_huge(3), 3);
        choice.note(&buffer, touched, 5 * HUGE_TOUCH_MAX);
        let mut small = choice.new_buffer(4 * TOUCH_BYTES).unwrap();
        assert!(!small.is_huge);
        // That small ones are slow as well says nothing of huge ones.
        let touched = small.touch(|| true);
        choice.note(&small, touched, 9 * HUGE_TOUCH_MAX);
        assert_eq!(of_huge(SMALL_BUFFERS as usize), 1);
    }

    #[test]
    fn a_shared_value_outlives_the_eviction_of_its_buffer() {
        let buffer = Arc::new(SegmentBuffer::new(1 << 20).unwrap());
        // SAFETY: only this test knows of the buffer.
        unsafe { buffer.range_mut(100, 20_000) }.fill(7);
        let handed_out = HandedOut::new(u64::MAX);
        let large = handed_out.value_of(&buffer, 100, 20_000);
        let small = handed_out.value_of(&buffer, 100, 20);
        drop(buffer);
        assert!(large.iter().chain(&small[..]).all(|byte| *byte == 7));
    }

    #[test]
    fn values_keep_no_more_buffers_than_they_may() {
        const LEN: usize = 1 << 20;
        let handed_out = HandedOut::new(2 * LEN as u64);
        let mut values = Vec::new();
        for round in 0..5 {
            let buffer = Arc::new(SegmentBuffer::new(LEN).unwrap());
            values.push(handed_out.value_of(&buffer, 0, 20_000));
            let back = handed_out.leaves(buffer);
            assert_eq!(back.is_some(), round >= 2, "what was copied keeps no buffer");
            assert_eq!(handed_out.bytes(), (round + 1).min(2) * LEN as u64);
        }
        // A buffer with several values counts once, and until the last of them goes.
        let buffer = Arc::new(SegmentBuffer::new(LEN).unwrap());
        values.remove(0);
        let (one, other) = (handed_out.value_of(&buffer, 0, 20_000), handed_out.value_of(&buffer, 40_000, 20_000));
        assert!(handed_out.leaves(buffer).is_none());
        drop(one);
        assert_eq!(handed_out.bytes(), 2 * LEN as u64);
        drop(other);
        values.clear();
        assert_eq!(handed_out.bytes(), 0);
    }
}

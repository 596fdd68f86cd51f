//! Buffers of recent segments: which stay in memory, and what becomes of those that leave.
//!
//! ready → published → among the newest that memory is set for → lent → evicted → spare, or kept by values
//!
//! A lent buffer stands in memory that is set for the cache and that the cache does not use.
//!
//! Invariants:
//! 1. A buffer leaves memory only when all of it has been written to the device.
//! 2. Recent buffers and spare ones take no more memory than is set for them, two segments at least, and what the cache
//!    lends; log that is not written, and two spare ones, may be beside.
//! 3. Values keep few lent buffers, so that the cache has its memory at any time: what is read there is copied, and of
//!    those that a value kept before all but two leave, and are counted.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use super::{Lsn, Segments};
use crate::buffer::SegmentBuffer;

/// References to a buffer that no value keeps: the table's, and that of the thread that looks.
const ALONE: usize = 2;
/// So many buffers that came to stand in lent memory may still be kept by a value.
const DRAINING_MAX: usize = 2;
/// Memory of spare buffers that were not needed for so long is given back.
const SPARE_MAX: Duration = Duration::from_secs(10);

impl Segments {
    /// Number of segments whose buffers are in memory.
    pub fn buffers(&self) -> u64 {
        self.recent.kept.lock().recent.len() as u64
    }

    /// Number of buffers in memory, with those for segments to come.
    pub fn buffers_with_spares(&self) -> u64 {
        let kept = self.recent.kept.lock();
        (kept.recent.len() + kept.spare.len()) as u64
    }

    /// Gives the memory of a spare buffer back if none has come or been taken for a while, and there are more than are
    /// always kept.
    pub fn give_up_spares(&self, now: Instant) {
        let mut kept = self.recent.kept.lock();
        let rest = kept.turned.is_none_or(|turned| now.saturating_duration_since(turned) > SPARE_MAX);
        let unneeded = if rest && kept.spare.len() > self.recent.spares_max { kept.spare.pop() } else { None };
        drop(kept);
        drop(unneeded);
    }

    /// Memory for a segment: a spare one, or new.
    ///
    /// # Errors
    /// The operating system's, when memory is short.
    pub fn new_buffer(&self) -> std::io::Result<SegmentBuffer> {
        {
            let mut kept = self.recent.kept.lock();
            if let Some(mut spare) = kept.spare.pop() {
                kept.turned = Some(Instant::now());
                spare.begin_again();
                return Ok(spare);
            }
        }
        self.page_choice.new_buffer(self.segment_bytes as usize)
    }

    /// Shows a segment's buffer to readers.
    pub fn publish_buffer(&self, segment: u64, buffer: Arc<SegmentBuffer>) {
        self.entry(segment).buffer.store(Some(buffer));
        self.recent.kept.lock().recent.push_back(segment);
    }

    /// The cache says how much `free` memory it has: recent buffers may take it, unless none is set for them at all.
    /// What is too much now leaves at once, as far as the log [is written](Segments::log_is_written).
    pub fn lend(&self, free: impl FnOnce() -> u64) {
        if self.recent.bytes == 0 {
            return;
        }
        {
            // Two that say so at once: the later one knows what the earlier one knew.
            let _kept = self.recent.kept.lock();
            self.recent.lent_bytes.store(free(), Ordering::Relaxed);
        }
        self.evict_buffers(self.recent.written.load(Ordering::Acquire));
    }

    /// The most bytes of recent buffers, as it is now.
    pub fn recent_bytes_max(&self) -> u64 {
        let most = self.recent.bytes.saturating_add(self.recent.lent_bytes.load(Ordering::Relaxed));
        most.max(2 * self.segment_bytes)
    }

    /// How many buffers so many bytes are.
    fn buffers_of(&self, bytes: u64) -> usize {
        usize::try_from(bytes / self.segment_bytes).unwrap_or(usize::MAX)
    }

    /// The log is on the device below this: buffers that are too many and wholly below leave memory.
    pub fn log_is_written(&self, written: Lsn) {
        self.recent.written.fetch_max(written, Ordering::AcqRel);
        self.evict_buffers(written);
    }

    /// Drops the oldest buffers above the budget whose segments are wholly below `written`.
    pub fn evict_buffers(&self, written: Lsn) {
        let is_written = |segment: u64| self.base_lsn(segment) + self.segment_bytes <= written;
        let (mut leave, mut unneeded) = (Vec::new(), Vec::new());
        let mut kept = self.recent.kept.lock();
        let own = self.buffers_of(self.recent.bytes).max(2);
        let mut kept_by_values = Vec::new();
        // Those that have come to stand in lent memory are the newest in it.
        let mut at = kept.recent.len().saturating_sub(own);
        while at > 0 {
            at -= 1;
            let segment = kept.recent[at];
            let Some(buffer) = self.buffer(segment) else { continue };
            if buffer.is_lent() {
                break;
            }
            if !is_written(segment) {
                continue;
            }
            buffer.set_lent();
            // The thread that lends says so, then counts; one that hands out a value keeps the buffer, then looks
            // whether it is lent: at least one sees the other.
            fence(Ordering::SeqCst);
            if Arc::strong_count(&buffer) > ALONE {
                kept_by_values.push(segment);
            }
        }
        kept.draining.extend(kept_by_values.into_iter().rev());
        // Most values are on their way to a client, and gone soon.
        let is_kept = |buffer: Arc<SegmentBuffer>| buffer.is_lent() && Arc::strong_count(&buffer) > ALONE;
        kept.draining.retain(|segment| self.buffer(*segment).is_some_and(is_kept));
        while kept.draining.len() > DRAINING_MAX {
            let Some(segment) = kept.draining.pop_front() else { break };
            kept.recent.retain(|recent| *recent != segment);
            leave.push(self.entry(segment).buffer.swap(None));
        }
        let most = self.buffers_of(self.recent_bytes_max());
        while kept.recent.len() > most {
            let Some(oldest) = kept.recent.front().copied().filter(|oldest| is_written(*oldest)) else { break };
            kept.recent.pop_front();
            kept.draining.retain(|draining| *draining != oldest);
            leave.push(self.entry(oldest).buffer.swap(None));
        }
        while kept.spare.len() > self.recent.spares_max && kept.recent.len() + kept.spare.len() > most {
            unneeded.push(kept.spare.pop());
        }
        drop(kept);
        leave.into_iter().flatten().for_each(|buffer| self.keep_spare(buffer));
    }

    /// A segment holds nothing any more: nor does its buffer.
    pub(super) fn forget_buffer(&self, segment: u64) {
        let buffer = {
            let mut kept = self.recent.kept.lock();
            // Its number may name another life of the segment soon.
            kept.draining.retain(|draining| *draining != segment);
            let buffer = self.entry(segment).buffer.swap(None);
            if buffer.is_some() {
                kept.recent.retain(|recent| *recent != segment);
            }
            buffer
        };
        if let Some(buffer) = buffer {
            self.keep_spare(buffer);
        }
    }

    /// A buffer that has left is kept for a segment to come, if it is not kept by a value and there is room for it.
    fn keep_spare(&self, buffer: Arc<SegmentBuffer>) {
        let Some(buffer) = self.handed_out.leaves(buffer) else { return };
        let most = self.buffers_of(self.recent_bytes_max());
        let mut kept = self.recent.kept.lock();
        if kept.spare.len() < self.recent.spares_max || kept.recent.len() + kept.spare.len() < most {
            kept.spare.push(buffer);
            kept.turned = Some(Instant::now());
            return;
        }
        // Giving memory back takes a while: not under the lock.
        drop(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::SHARED_VALUE_BYTES_MIN;

    const LEN: u64 = 1 << 16;

    /// Segments 1 to 8 of the log, from its start on.
    fn filled(recent_bytes: u64, lent: u64) -> Segments {
        let segments = Segments::new(LEN, 1..9, recent_bytes, u64::MAX);
        segments.lend(|| lent);
        segments.free_unplaced(|_| false);
        (1..9).for_each(|segment| publish(&segments, segment));
        segments
    }

    fn publish(segments: &Segments, segment: u64) {
        segments.take(segment);
        segments.place(segment, segment as u32, (segment - 1) * LEN, 0, false);
        segments.publish_buffer(segment, Arc::new(segments.new_buffer().unwrap()));
        segments.evict_buffers(0);
    }

    /// A value that keeps the segment's buffer, if one may.
    fn value_of(segments: &Segments, segment: u64) -> bytes::Bytes {
        let value = segments.with_unwaited(segment * LEN, |buffer, at| {
            segments.handed_out.value_of(buffer, at, SHARED_VALUE_BYTES_MIN)
        });
        value.unwrap()
    }

    fn spares(segments: &Segments) -> usize {
        segments.recent.kept.lock().spare.len()
    }

    #[test]
    fn a_buffer_leaves_memory_only_when_it_is_written() {
        let segments = filled(0, 0);
        segments.evict_buffers(6 * LEN - 1);
        assert_eq!(segments.buffers(), 3);
        segments.evict_buffers(6 * LEN);
        assert_eq!(segments.buffers(), 2);
        assert!(segments.with_unwaited(6 << 16, |_, _| ()).is_none());
        assert!(segments.with_unwaited(7 << 16, |_, _| ()).is_some());
    }

    #[test]
    fn recent_buffers_have_what_the_cache_does_not_use() {
        let segments = filled(2 * LEN, 4 * LEN + LEN / 2);
        assert_eq!((segments.buffers(), segments.recent_bytes_max()), (8, 6 * LEN + LEN / 2), "nothing is written");
        segments.log_is_written(7 * LEN);
        assert_eq!(segments.buffers(), 6);
        segments.lend(|| 5 * LEN);
        assert_eq!(segments.buffers(), 6);
        segments.lend(|| 3 * LEN);
        assert_eq!(segments.buffers(), 5, "the cache has its memory at once");
        assert!(segments.buffer(3).is_none() && segments.buffer(4).is_some(), "the oldest leave");
        segments.lend(|| 0);
        assert_eq!((segments.buffers(), spares(&segments)), (2, 2), "two are kept for segments to come");

        let unwritten = filled(2 * LEN, 6 * LEN);
        unwritten.log_is_written(2 * LEN - 1);
        unwritten.lend(|| 0);
        assert_eq!(unwritten.buffers(), 7, "only the first segment is written");

        let none = filled(0, 8 * LEN);
        none.log_is_written(8 * LEN);
        assert_eq!(none.buffers(), 2, "where none are wanted, none are lent");
    }

    #[test]
    fn buffers_of_segments_that_are_free_again_are_filled_again() {
        let segments = filled(2 * LEN, 6 * LEN);
        segments.log_is_written(8 * LEN);
        (1..6).for_each(|segment| segments.release(segment, true));
        assert_eq!((segments.buffers(), spares(&segments)), (3, 5));
        (1..3).for_each(|segment| publish(&segments, segment));
        assert_eq!((segments.buffers(), spares(&segments)), (5, 3), "without new memory");
        segments.lend(|| 2 * LEN);
        assert_eq!((segments.buffers(), spares(&segments)), (4, 2), "the cache has that of spare ones too");
    }

    #[test]
    fn values_keep_few_lent_buffers() {
        let segments = filled(2 * LEN, 6 * LEN);
        let value = |segment: u64| value_of(&segments, segment);
        let early: Vec<_> = (3..7).map(value).collect();
        segments.log_is_written(8 * LEN);
        assert_eq!((segments.buffers(), segments.handed_out.bytes()), (6, 2 * LEN), "two may wait for their clients");
        assert!([5, 6].iter().all(|segment| segments.buffer(*segment).is_some()), "the newest of them");
        let late: Vec<_> = (1..9).filter(|segment| segments.buffer(*segment).is_some()).map(value).collect();
        segments.lend(|| 0);
        let waited_for = 2 * LEN;
        assert_eq!((segments.buffers(), segments.handed_out.bytes()), (2, 2 * LEN + waited_for), "others were copied");
        // The two that are set were handed out, and are counted when they leave.
        segments.release(8, true);
        assert_eq!((segments.buffers(), segments.handed_out.bytes()), (1, 3 * LEN + waited_for));
        drop((early, late));
        assert_eq!(segments.handed_out.bytes(), 0);
        // A spare buffer that was lent is not lent in its next life.
        publish(&segments, 1);
        assert!(!segments.buffer(1).unwrap().is_lent());
    }

    /// Failure: the buffer of the segment that the log is in left memory before it was written. Cause: the segment had
    /// been waited for in its life before, and was released and filled again before the next look.
    #[test]
    fn a_segment_that_is_filled_again_is_not_taken_for_what_it_was() {
        let segments = filled(2 * LEN, 6 * LEN);
        let value = |segment: u64| value_of(&segments, segment);
        let _kept: Vec<_> = (5..8).map(value).collect();
        segments.log_is_written(8 * LEN);
        assert_eq!(segments.recent.kept.lock().draining, [5, 6]);
        segments.release(5, true);
        segments.take(5);
        segments.place(5, 9, 8 * LEN, 0, false);
        let open = Arc::new(segments.new_buffer().unwrap());
        segments.publish_buffer(5, Arc::clone(&open));
        segments.log_is_written(8 * LEN);
        assert_eq!(segments.recent.kept.lock().draining, [6, 7]);
        assert!(segments.buffer(5).is_some_and(|buffer| Arc::ptr_eq(&buffer, &open)));
        assert!(segments.buffer(6).is_some() && segments.buffer(7).is_some());
    }

    #[test]
    fn values_on_their_way_take_no_buffer_from_memory() {
        let segments = Segments::new(LEN, 1..9, 2 * LEN, u64::MAX);
        segments.lend(|| 6 * LEN);
        segments.free_unplaced(|_| false);
        let mut on_their_way = Vec::new();
        for segment in 1..9 {
            publish(&segments, segment);
            on_their_way.push(value_of(&segments, segment));
            // Each is sent while the third after it is written.
            if on_their_way.len() > 3 {
                on_their_way.remove(0);
            }
            segments.log_is_written(segment * LEN);
        }
        assert_eq!((segments.buffers(), segments.handed_out.bytes()), (8, 0));
    }

    #[test]
    fn a_value_is_never_handed_out_of_a_buffer_that_was_found_alone() {
        for _ in 0..2_000 {
            let segments = filled(2 * LEN, 6 * LEN);
            let both = std::sync::Barrier::new(2);
            let (value, alone) = std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    both.wait();
                    value_of(&segments, 1)
                });
                both.wait();
                segments.log_is_written(LEN);
                let alone = segments.recent.kept.lock().draining.is_empty();
                (reader.join().unwrap(), alone)
            });
            let keeps = Arc::strong_count(&segments.buffer(1).unwrap()) > ALONE;
            assert!(!(alone && keeps), "the buffer was lent, and a value keeps it");
            drop(value);
        }
    }

    #[test]
    fn spare_buffers_are_given_back_after_a_while() {
        let segments = filled(2 * LEN, 6 * LEN);
        segments.log_is_written(8 * LEN);
        (1..6).for_each(|segment| segments.release(segment, true));
        let now = Instant::now();
        segments.give_up_spares(now);
        assert_eq!((spares(&segments), segments.buffers_with_spares()), (5, 8));
        (0..9).for_each(|_| segments.give_up_spares(now + 2 * SPARE_MAX));
        assert_eq!(spares(&segments), 2);
    }
}

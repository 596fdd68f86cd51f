//! Reservations: a range of the open group for each record, given under the log's lock, filled outside of it.
//!
//! class, gate and credit (see `room`) → end of the open segment, or the next one → [`Reservation`] → filled → dropped
//!
//! Invariant: a reservation that is refused has taken nothing, and what it had spent of the writers' credit comes back.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::time::Instant;

use esker_store::Error;

use super::{APPEND_BYTES, Class, Gate, Log};
use crate::buffer::SegmentBuffer;
use crate::format::{RECORD_FLAG_APPLIED, RecordHeader};
use crate::segments::{Filler, Lsn};

/// Why a reservation was not given.
pub enum Refused {
    /// Wait with [`Log::wait_for_room`] and try again.
    Busy,
    /// It will not be given.
    Error(Error),
}

/// A range of the open group that one writer fills, and says so with [`Reservation::whole`]. Dropped without that it
/// stops the log.
pub struct Reservation<'a> {
    log: &'a Log,
    /// The segment's buffer, without a count of references that all writers would share.
    buffer: NonNull<SegmentBuffer>,
    filler: Filler<'a>,
    /// Where the range starts in the buffer.
    pub start: usize,
    /// Length in bytes.
    pub len: usize,
    /// Where the range starts on the device.
    pub device_offset: u64,
    /// Log position of the range's start.
    pub lsn: Lsn,
    /// Header fields of the record.
    pub generation: u32,
    /// Commit sequence number of the record.
    pub seq: u64,
    /// Group of the record.
    pub group: u64,
    /// Epoch of checkpoints that the record belongs to.
    pub epoch: u32,
}

impl Reservation<'_> {
    /// The range to fill.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the log keeps the buffer until it has written this range, and writes it when `filler` lets it.
        let buffer = unsafe { self.buffer.as_ref() };
        // SAFETY: `Log::reserve` gives every range to one reservation. Who learns of it before that is dropped goes by
        // `Segments::with_whole`, which waits until then; the commit thread waits by `Filling::wait_below`.
        unsafe { buffer.range_mut(self.start, self.len) }
    }

    /// The range is filled: readers and the commit thread need not wait for it any more.
    #[inline]
    pub fn whole(self) {
        self.filler.set_whole();
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if !self.filler.is_whole() {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("a thread without a name");
            let how = if std::thread::panicking() { "panicked" } else { "ended" };
            self.log.fail(Error::Stopped { cause: format!("{name} {how} before its record was whole").into() });
        }
    }
}

impl Log {
    /// Takes `len` bytes (a multiple of 8, at most what a segment has room for) of the open group and the next
    /// sequence number. `payload_bytes` of them, of a transaction, are keys and payloads.
    pub fn reserve(
        &self,
        len: u64,
        payload_bytes: u64,
        replay_ns: u64,
        class: Class,
    ) -> std::result::Result<Reservation<'_>, Refused> {
        if class == Class::Write && self.gate.load(Ordering::Relaxed) != Gate::Open as u8 {
            let full = self.gate.load(Ordering::Relaxed) == Gate::Full as u8;
            return Err(match full {
                true if self.has_stopped() => self.ended(),
                true => Refused::Error(Error::Full { needed: len, free: 0 }),
                false => self.busy(),
            });
        }
        let paced = class == Class::Write && self.is_paced();
        if paced && !self.spend(len) {
            return Err(self.busy());
        }
        let given = self.reserve_at_end(len, payload_bytes, replay_ns, class);
        if paced && given.is_err() {
            self.unspend(len);
        }
        given
    }

    /// No writer is to wait for a log that takes no more.
    #[cold]
    fn busy(&self) -> Refused {
        if self.has_stopped() { self.ended() } else { Refused::Busy }
    }

    fn ended(&self) -> Refused {
        Refused::Error(self.mark().failure().unwrap_or(Error::Closed))
    }

    fn reserve_at_end(
        &self,
        len: u64,
        payload_bytes: u64,
        replay_ns: u64,
        class: Class,
    ) -> std::result::Result<Reservation<'_>, Refused> {
        let Some(filler) = self.segments.filling.enter(|| self.has_stopped()) else { return Err(self.ended()) };
        let mut state = self.state.0.lock();
        if state.stopping {
            return Err(self.ended());
        }
        if class == Class::GiveBack && self.gate.load(Ordering::Relaxed) != Gate::Open as u8 {
            // What only takes away has a segment to itself.
            let left = self.segments.free_segments() + state.next.len() as u64;
            if left < self.giving_leaves(len) {
                self.giving_refused.fetch_add(1, Ordering::Relaxed);
                return Err(Refused::Error(Error::Full { needed: len, free: 0 }));
            }
        }
        if self.unwritten.0.load(Ordering::Relaxed) > self.shape.pending_bytes_max {
            return Err(Refused::Busy);
        }
        let usable = self.segments.segment_bytes - 2 * self.shape.block_bytes;
        if state.tail + len > usable {
            let left = self.segments.free_segments() + state.next.len() as u64;
            let refused = match class {
                Class::Write => left <= self.reserve[0].load(Ordering::Relaxed) + self.grown()[0],
                // One of what is between is left to what only takes away.
                Class::GiveBack => left <= self.giving_leaves(len) + self.grown()[1],
                Class::TakeAway => left <= self.reserve[1].load(Ordering::Relaxed) + self.grown()[1],
                Class::Keep => false,
            };
            if refused && self.keeper.get().is_some() {
                drop(state);
                self.giving_refused.fetch_add(u64::from(class == Class::GiveBack), Ordering::Relaxed);
                self.wake_keeper();
                let shut = self.gate.fetch_max(Gate::Wait as u8, Ordering::Relaxed) == Gate::Full as u8;
                return Err(if shut { Refused::Error(Error::Full { needed: len, free: 0 }) } else { Refused::Busy });
            }
            let Some(ready) = state.next.pop_front() else {
                if !state.full {
                    return Err(Refused::Busy);
                }
                let free = usable.saturating_sub(state.tail);
                return Err(Refused::Error(Error::Full { needed: len, free }));
            };
            self.note_ready(&state);
            self.enter_segment(&mut state, ready);
            self.wanted_segment.notify_one();
            self.wake_keeper();
        }
        let start = state.tail;
        filler.begin(state.base_lsn + start, state.base_lsn + start + len);
        state.tail += len;
        state.seq += 1;
        state.group_open = true;
        state.records += u64::from(class != Class::Keep);
        state.record_bytes += len;
        // A byte is read and verified in about a nanosecond.
        state.replay_ns += replay_ns + len;
        match class {
            Class::Keep => state.relocation_bytes += len,
            Class::Write | Class::GiveBack | Class::TakeAway => state.payload_bytes += payload_bytes,
        }
        if class == Class::GiveBack {
            self.given.fetch_add(len, Ordering::Relaxed);
        }
        if state.oldest_unsynced.is_none() {
            state.oldest_unsynced = Some(Instant::now());
        }
        let unwritten = self.unwritten.0.load(Ordering::Relaxed) + len;
        self.unwritten.0.store(unwritten, Ordering::Relaxed);
        let (segment, lsn) = (state.segment, state.base_lsn + start);
        let buffer = NonNull::from(&*state.buffer);
        let (generation, seq, group, epoch) = (state.generation, state.seq, state.group, state.epoch);
        drop(state);
        let reservation = Reservation {
            log: self,
            buffer,
            filler,
            start: start as usize,
            len: len as usize,
            device_offset: segment * self.segments.segment_bytes + start,
            lsn,
            generation,
            seq,
            group,
            epoch,
        };
        let append_bytes = self.append_bytes();
        if unwritten >= append_bytes && unwritten - len < append_bytes {
            self.nudge();
        }
        Ok(reservation)
    }

    /// Goes on in the next segment, if most of the open one is used and another is ready; whether it does. For the
    /// cleaner: what takes away may not enter one, and the open one is not made free while it is open.
    pub fn leave_segment(&self) -> bool {
        let mut state = self.state.0.lock();
        let usable = self.segments.segment_bytes - 2 * self.shape.block_bytes;
        if state.stopping || state.tail < usable / 4 * 3 {
            return false;
        }
        let Some(ready) = state.next.pop_front() else { return false };
        self.note_ready(&state);
        self.enter_segment(&mut state, ready);
        self.wanted_segment.notify_one();
        true
    }

    /// So many pending bytes are appended without waiting for a sync.
    pub(super) fn append_bytes(&self) -> u64 {
        APPEND_BYTES.min(self.shape.pending_bytes_max / 2)
    }
}

/// Header of a transaction's record; `short` is 0 or [`RECORD_FLAG_SHORT`](crate::format::RECORD_FLAG_SHORT).
pub fn record_header(reservation: &Reservation<'_>, op_count: usize, applied_only: bool, short: u32) -> RecordHeader {
    RecordHeader {
        len: reservation.len as u32,
        seq: reservation.seq,
        group: reservation.group,
        generation: reservation.generation,
        op_count: op_count as u32,
        flags: short | if applied_only { RECORD_FLAG_APPLIED } else { 0 },
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use esker_device::MemoryDevice;
    use esker_store::DurableMark;

    use super::*;
    use crate::commit::{LogEnd, LogShape};
    use crate::policy::CommitPolicy;
    use crate::segments::Segments;

    const SEGMENT_BYTES: u64 = 64 << 10;

    /// A log in its first segment, with no other ready.
    fn log() -> Log {
        log_of(false)
    }

    /// The same; with `threaded` a commit thread may run it.
    pub(in crate::commit) fn log_of(threaded: bool) -> Log {
        let device = Arc::new(MemoryDevice::new(8 * SEGMENT_BYTES));
        let segments = Arc::new(Segments::new(SEGMENT_BYTES, 1..8, 0, 0));
        let buffer = Arc::new(segments.new_buffer().unwrap());
        segments.publish_buffer(1, Arc::clone(&buffer));
        let shape = LogShape {
            uuid: [7; 16],
            seed: 7,
            block_bytes: 4096,
            pending_bytes_max: 1 << 20,
            threaded,
            async_flush: Duration::from_secs(1),
        };
        let end = LogEnd {
            segment: 1,
            generation: 1,
            buffer,
            base_lsn: 0,
            tail: 4096,
            start: 0,
            seq: 0,
            group: 1,
            generation_max: 1,
        };
        let log = Log::new(device, shape, segments, end, CommitPolicy::default());
        log.set_mark(DurableMark::new(0, Box::new(|| {})));
        log
    }

    /// Failure: one client's every write waited a millisecond, though there was credit for all. Cause: who was told of
    /// room kept its place for its whole turn, and its own next write came behind that.
    #[test]
    fn those_who_come_now_are_behind_those_who_were_told_only_until_they_have_come() {
        let log = log();
        log.pace(Some(1 << 20), 0);
        let come = |waited| {
            log.note_waited(waited);
            log.reserve(4 << 10, 0, 0, Class::Write).map(Reservation::whole).is_ok()
        };
        assert!(come(false));
        log.expect(2);
        assert!(!come(false) && come(true), "one of both has come");
        assert!(!come(false) && come(true), "both have");
        assert!(come(false) && come(false));
        // Such as do not come are waited for no longer than their turn.
        log.expect(1);
        assert!(!come(false));
        log.expect(0);
        assert!(come(false));
    }

    #[test]
    fn a_full_store_is_busy_while_the_cleaner_may_make_room_and_not_for_want_of_it() {
        let log = log();
        assert!(!log.is_busy_when_full());
        log.set_gate(Gate::Wait, 1, [1, 1]);
        assert!(log.is_busy_when_full());
        log.set_gate(Gate::Full, 1, [1, 1]);
        assert!(!log.is_busy_when_full());
        log.pace(Some(0), 0);
        assert!(!log.is_busy_when_full(), "credit may never come");
    }

    #[test]
    fn credit_of_a_reservation_that_is_not_given_comes_back() {
        let log = log();
        log.pace(Some(100 << 10), 0);
        assert!(log.reserve(40 << 10, 0, 0, Class::Write).map(Reservation::whole).is_ok());
        // What is left of the segment is too small, and no other is ready.
        for _ in 0..10 {
            assert!(matches!(log.reserve(40 << 10, 0, 0, Class::Write), Err(Refused::Busy)));
        }
        assert_eq!(log.credit.load(Ordering::Relaxed), 60 << 10);
        let small = log.reserve(1 << 10, 0, 0, Class::Write);
        assert!(small.is_ok(), "credit that was never used keeps no writer out");
    }
}

//! Segments made ready before the log needs them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use esker_store::{Error, Result};

use super::state::{Ready, State};
use super::{HURRY, Log, stopped};
use crate::buffer::SegmentBuffer;
use crate::format::round_up;
use crate::segments::Lsn;

/// What the log comes to is filled ahead if no segment was needed for so long, ...
const PREFILL_AGE_MIN: Duration = Duration::from_millis(100);
/// ... but only if there were so many syncs meanwhile: a load that hardly syncs gains nothing from it.
const PREFILL_SYNCS_MIN: u64 = 16;
/// Under a load that fills segments quickly, so many are ready at most.
const READY_SEGMENTS_MAX: usize = 3;
/// So much is filled at a time: the log waits for no more, and no sync of it for more than this with its own.
const PIECE_BYTES: u64 = 4 << 20;
/// In the open segment so much is left to the log, which goes on meanwhile, ...
const MARGIN_BYTES: u64 = 1 << 20;
/// ... but at most this part of the segment.
const MARGIN_PART: u64 = 16;

/// Memory of the next segment is touched when this part of the open one is used, or of what was free of it when the
/// store was opened: a store that little is written to does without.
const TOUCH_PART: u64 = 8;

/// A piece to fill.
struct Unfilled {
    lsn: Lsn,
    device_offset: u64,
    len: u64,
}

impl Log {
    /// Sees to it that the next segment is ready before it is needed, or the next few under a load that fills them
    /// quickly.
    pub(super) fn prepare_segment(&self) -> Result<()> {
        {
            let state = self.state.0.lock();
            if state.next.len() >= if state.hurried { self.ready_max() } else { 1 } {
                return Ok(());
            }
        }
        let segment_bytes = self.segments.segment_bytes;
        let taken = self.segments.take_reserved(&*self.device, true);
        let prepared = match taken.map_err(|error| stopped("reserving the next segment", &error))? {
            None => None,
            Some(segment) => {
                if self.device.geometry().zone_bytes.is_some() {
                    let discarded = self.device.discard(segment * segment_bytes, segment_bytes);
                    discarded.map_err(|error| stopped("resetting the next segment's zones", &error))?;
                }
                let buffer = self.segments.new_buffer();
                let mut buffer = buffer.map_err(|error| Error::io("allocating a segment buffer", error))?;
                if self.is_written_to() {
                    self.touch(&mut buffer);
                }
                Some(Ready { segment, buffer: Arc::new(buffer), filled: 0 })
            }
        };
        let mut state = self.state.0.lock();
        // The store may have grown since the look at what is free.
        state.full = prepared.is_none() && self.segments.free_segments() == 0;
        state.starved = false;
        state.next.extend(prepared);
        self.note_ready(&state);
        self.room.notify_all();
        Ok(())
    }

    /// Whether so much is written that the next segment will be needed.
    fn is_written_to(&self) -> bool {
        let state = self.state.0.lock();
        let free = self.segments.segment_bytes - state.opened_at;
        state.entered.is_some() || state.tail - state.opened_at > free / TOUCH_PART
    }

    /// Touches the memory of a segment to come. What the writers reach first they touch, if they cannot wait.
    fn touch(&self, buffer: &mut SegmentBuffer) {
        if self.shape.threaded {
            let began = Instant::now();
            let touched = buffer.touch(|| !self.is_awaited());
            self.segments.page_choice.note(buffer, touched, began.elapsed());
        }
    }

    /// Touches memory for the next segment if that was not done when it was readied, and puts it in place of what it
    /// has: it stays among those that are ready, and writers do not wait meanwhile.
    fn touch_next(&self) {
        let untouched =
            |state: &State| state.next.front().filter(|next| !next.buffer.is_touched()).map(|it| it.segment);
        if !self.is_written_to() {
            return;
        }
        let Some(segment) = untouched(&self.state.0.lock()) else { return };
        // Where memory is short the writers take what they reach.
        let Ok(mut buffer) = self.segments.new_buffer() else { return };
        self.touch(&mut buffer);
        let mut buffer = Arc::new(buffer);
        let mut state = self.state.0.lock();
        if untouched(&state) == Some(segment)
            && let Some(next) = state.next.front_mut()
        {
            std::mem::swap(&mut next.buffer, &mut buffer);
        }
        // What is left over is given back without the lock.
        drop(state);
    }

    /// So many segments are readied at most: no more than writers may be ahead of the device.
    fn ready_max(&self) -> usize {
        let ahead = self.shape.pending_bytes_max / self.segments.segment_bytes;
        READY_SEGMENTS_MAX.min(usize::try_from(ahead).unwrap_or(usize::MAX)).max(1)
    }

    /// Gives one of several readied segments to the cold stream, for which none is free. One stays with the log; the
    /// first, which may be filled ahead just now, is never given.
    pub fn take_ready(&self) -> Option<u64> {
        let ready = {
            let mut state = self.state.0.lock();
            let taken = if state.next.len() < 2 { None } else { state.next.pop_back() };
            self.note_ready(&state);
            taken
        };
        // Its memory is given back without the lock.
        ready.map(|ready| ready.segment)
    }

    /// Whether a writer waits for the next segment, or [`Log::stop`] for the end.
    fn is_awaited(&self) -> bool {
        let state = self.state.0.lock();
        state.starved || state.stopping
    }

    /// The preparing thread's life: readies segments ahead, until [`Log::stop`].
    ///
    /// While the log is synced often and does not fill segments quickly, what it comes to is filled ahead. Under a load
    /// that fills them quickly it is not, because writing twice would cost more than it saves.
    pub fn run_preparer(&self) {
        let mut syncs_before = 0;
        loop {
            if let Err(error) = self.prepare_segment() {
                return self.fail(error);
            }
            let mut state = self.state.0.lock();
            // Taken already, or more are needed? Then there is no time to wait.
            let enough = !state.next.is_empty() && (!state.hurried || state.next.len() >= self.ready_max());
            if !state.stopping && !enough && !state.full {
                continue;
            }
            let woken = !state.stopping && !self.wanted_segment.wait_for(&mut state, PREFILL_AGE_MIN).timed_out();
            if state.stopping {
                return;
            }
            if state.entered.is_none_or(|entered| entered.elapsed() > HURRY) {
                state.hurried = false;
            }
            drop(state);
            if !woken {
                self.segments.give_up_spares(Instant::now());
                self.touch_next();
            }
            let syncs = self.counters.syncs.load(Ordering::Relaxed);
            let often_synced = syncs - syncs_before >= PREFILL_SYNCS_MIN;
            syncs_before = syncs;
            if woken || !often_synced {
                continue;
            }
            if let Err(error) = self.fill_ahead() {
                return self.fail(error);
            }
        }
    }

    /// Fills ahead until all is filled, or another segment is needed.
    fn fill_ahead(&self) -> Result<()> {
        loop {
            let state = self.state.0.lock();
            if state.hurried || state.next.is_empty() {
                return Ok(());
            }
            drop(state);
            if !self.fill_piece()? {
                return Ok(());
            }
        }
    }

    /// Fills the next piece ahead, first of the open segment and then of the next; whether there was one. Only the
    /// preparing thread may call this.
    fn fill_piece(&self) -> Result<bool> {
        let piece = {
            let mut state = self.state.0.lock();
            let Some(piece) = self.next_piece(&mut state) else { return Ok(false) };
            self.fill.begin(piece.lsn);
            piece
        };
        // A writer that waits for the piece must not do so for ever.
        let fill = || self.device.prefill(piece.device_offset, piece.len);
        let filled = catch_unwind(AssertUnwindSafe(fill));
        self.fill.end(self.state.0.lock());
        let filled = filled.unwrap_or_else(|panic| resume_unwind(panic));
        filled.map(|()| true).map_err(|error| stopped("filling a segment ahead", &error))
    }

    fn next_piece(&self, state: &mut State) -> Option<Unfilled> {
        let segment_bytes = self.segments.segment_bytes;
        if state.stopping {
            return None;
        }
        let margin = MARGIN_BYTES.min(segment_bytes / MARGIN_PART);
        let from = state.filled.max(round_up(state.tail + margin, self.shape.block_bytes)).min(segment_bytes);
        let (segment, base_lsn, from, filled) = if from < segment_bytes {
            (state.segment, state.base_lsn, from, &mut state.filled)
        } else {
            state.filled = segment_bytes;
            let next = state.next.front_mut()?;
            if next.filled >= segment_bytes {
                return None;
            }
            (next.segment, state.base_lsn + segment_bytes, next.filled, &mut next.filled)
        };
        let len = PIECE_BYTES.min(segment_bytes - from);
        *filled = from + len;
        Some(Unfilled { lsn: base_lsn + from, device_offset: segment * segment_bytes + from, len })
    }
}

#[cfg(test)]
mod tests {
    use crate::commit::reserve::tests::log_of;

    #[test]
    fn the_next_segment_has_memory_only_where_it_will_be_needed() {
        let log = log_of(true);
        log.segments.free_unplaced(|_| false);
        log.segments.take(1);
        let is_touched = || log.state.0.lock().next[0].buffer.is_touched();
        log.prepare_segment().unwrap();
        log.touch_next();
        assert!(!is_touched(), "nothing is written");
        // Not all of what stands before was written since.
        let half = log.segments.segment_bytes / 2;
        for (opened_at, tail) in [(0, half / 8), (half, half), (half, half + half / 8)] {
            let mut state = log.state.0.lock();
            (state.opened_at, state.tail) = (opened_at, tail);
            drop(state);
            log.touch_next();
            assert!(!is_touched(), "from {opened_at} to {tail}");
        }
        log.state.0.lock().tail = half + half / 4;
        log.touch_next();
        assert!(is_touched() && log.state.0.lock().next.len() == 1);
        // One that is readied from now on has it at once.
        let mut state = log.state.0.lock();
        state.next.clear();
        log.note_ready(&state);
        drop(state);
        log.prepare_segment().unwrap();
        assert!(is_touched());
    }
}

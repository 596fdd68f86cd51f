//! Segments made ready before the log needs them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use esker_store::{Error, Result};

use super::{HURRY, Log, Ready, stopped};

/// What the log comes to is filled ahead if no segment was needed for so long, ...
const PREFILL_AGE_MIN: Duration = Duration::from_millis(100);
/// ... but only if there were so many syncs meanwhile: a load that hardly syncs gains nothing from it.
const PREFILL_SYNCS_MIN: u64 = 16;
/// Under a load that fills segments quickly, so many are ready at most.
const READY_SEGMENTS_MAX: usize = 3;

impl Log {
    /// Sees to it that the next segment is ready before it is needed, or the next few under a load that fills them
    /// quickly.
    pub(super) fn prepare_segment(&self) -> Result<()> {
        {
            let state = self.state.lock();
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
                // Memory that they reach first is touched by the writers, if they cannot wait.
                if self.shape.threaded {
                    buffer.touch(|| !self.is_awaited());
                }
                Some(Ready { segment, buffer: Arc::new(buffer), filled: 0 })
            }
        };
        let mut state = self.state.lock();
        // The store may have grown since the look at what is free.
        state.full = prepared.is_none() && self.segments.free_segments() == 0;
        state.starved = false;
        state.next.extend(prepared);
        self.room.notify_all();
        Ok(())
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
            let mut state = self.state.lock();
            if state.next.len() < 2 { None } else { state.next.pop_back() }
        };
        // Its memory is given back without the lock.
        ready.map(|ready| ready.segment)
    }

    /// Whether somebody waits for the next segment, or for the end.
    fn is_awaited(&self) -> bool {
        let state = self.state.lock();
        state.starved || state.stopping
    }

    /// The preparing thread's life: readies segments ahead, until [`Log::stop`].
    ///
    /// While the log is synced often and does not fill segments quickly, what it comes to is filled ahead. Under a load that
    /// fills them quickly it is not, because writing twice would cost more than it saves.
    pub fn run_preparer(&self) {
        let mut syncs_before = 0;
        loop {
            if let Err(error) = self.prepare_segment() {
                return self.fail(error);
            }
            let mut state = self.state.lock();
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
            let state = self.state.lock();
            if state.hurried || state.next.is_empty() {
                return Ok(());
            }
            drop(state);
            if !self.fill_piece()? {
                return Ok(());
            }
        }
    }
}

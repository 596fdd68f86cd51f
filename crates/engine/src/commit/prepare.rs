//! Segments made ready before the log needs them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use esker_store::{Error, Result};

use super::{HURRY, Log, stopped};

/// A segment that was ready for so long without being needed is filled ahead.
const PREFILL_AGE_MIN: Duration = Duration::from_millis(100);
/// But only if there were so many syncs meanwhile: a load that hardly syncs gains nothing from it.
const PREFILL_SYNCS_MIN: u64 = 16;
/// So many at most.
const READY_SEGMENTS_MAX: usize = 3;
/// So much is filled ahead at a time: who comes to need the segment meanwhile waits for no more, and no sync of the log
/// for more than this with its own.
const PREFILL_BYTES: u64 = 4 << 20;

impl Log {
    /// Sees to it that the next segment is ready before it is needed, or the next few under a load that fills them
    /// quickly; whether it readied one.
    pub(super) fn prepare_segment(&self) -> Result<bool> {
        {
            let state = self.state.lock();
            if state.next.len() >= if state.hurried { READY_SEGMENTS_MAX } else { 1 } {
                return Ok(false);
            }
        }
        let segment_bytes = self.segments.segment_bytes;
        let mut no_space = false;
        let prepared = match self.segments.take_free() {
            None => None,
            Some(segment) => match self.device.reserve(segment * segment_bytes, segment_bytes) {
                Err(esker_device::Error::NoSpace { .. }) => {
                    self.segments.give_back(segment);
                    no_space = true;
                    None
                }
                Err(error) => return Err(stopped("reserving the next segment", &error)),
                Ok(()) => {
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
                    Some((segment, Arc::new(buffer)))
                }
            },
        };
        let mut state = self.state.lock();
        // The store may have grown since the look at what is free.
        state.full = prepared.is_none() && (no_space || self.segments.free_segments() == 0);
        state.starved = false;
        state.next.extend(prepared);
        self.room.notify_all();
        Ok(true)
    }

    /// Whether somebody waits for the next segment, or for the end.
    fn is_awaited(&self) -> bool {
        let state = self.state.lock();
        state.starved || state.stopping
    }

    /// Fills a segment with zeros, or the first part of it if somebody comes to wait for it.
    fn prefill(&self, segment: u64) -> Result<()> {
        let segment_bytes = self.segments.segment_bytes;
        for from in (0..segment_bytes).step_by(PREFILL_BYTES as usize) {
            if self.is_awaited() {
                break;
            }
            let prefilled = self.device.prefill(segment * segment_bytes + from, PREFILL_BYTES.min(segment_bytes - from));
            prefilled.map_err(|error| stopped("filling the next segment ahead", &error))?;
        }
        Ok(())
    }

    /// The preparing thread's life: readies one segment ahead, until [`Log::stop`].
    ///
    /// A segment that nobody needs soon is filled ahead: the first syncs of fresh space cost a file system more than
    /// those of space that was written before. One that is needed at once is not, because writing it twice would
    /// cost more than it saves.
    pub fn run_preparer(&self) {
        let mut filled = false;
        let mut syncs_before = 0;
        loop {
            let fresh = match self.prepare_segment() {
                Ok(fresh) => fresh,
                Err(error) => return self.fail(error),
            };
            filled &= !fresh;
            let syncs = self.counters.syncs.load(Ordering::Relaxed);
            let often_synced = syncs - syncs_before >= PREFILL_SYNCS_MIN;
            syncs_before = syncs;
            let mut state = self.state.lock();
            // Taken already, or more are needed? Then there is no time to wait.
            let enough = !state.next.is_empty() && (!state.hurried || state.next.len() >= READY_SEGMENTS_MAX);
            if !state.stopping && (enough || state.full) {
                self.wanted_segment.wait_for(&mut state, PREFILL_AGE_MIN);
            }
            if state.stopping {
                return;
            }
            let in_no_hurry = state.tail < self.segments.segment_bytes / 2;
            if state.entered.is_none_or(|entered| entered.elapsed() > HURRY) {
                state.hurried = false;
            }
            if !filled
                && in_no_hurry
                && !state.hurried
                && often_synced
                && state.next.len() == 1
                && let Some((segment, buffer)) = state.next.pop_front()
            {
                drop(state);
                // Not needed while the open segment is half empty; should it be, the fill ends early.
                if let Err(error) = self.prefill(segment) {
                    return self.fail(error);
                }
                filled = true;
                let mut state = self.state.lock();
                state.next.push_front((segment, buffer));
                state.starved = false;
                drop(state);
                self.room.notify_all();
            }
        }
    }
}

//! Freeing: segments that nothing points to any more are used again.
//!
//! Invariant: what emptied a segment is durable, and no reader reads it, before it is free.

use std::sync::atomic::Ordering;

use esker_device::Device;
use esker_store::Result;

use super::work::Work;
use super::{Keeper, WARM_SEGMENTS};
use crate::segments::Usage;

/// Blocks of free segments stay where they were: nothing is lost by that, but a device that fails is to be heard of.
pub(super) fn not_given_back(error: &esker_device::Error) {
    match error {
        esker_device::Error::NoSpace { .. } => tracing::debug!(%error, "free blocks were not given back"),
        _ => tracing::warn!(%error, "free blocks were not given back"),
    }
}

impl Keeper {
    /// Makes segments free that nothing points to, if the log that says so is durable, or after it was made so with
    /// `sync`. Whether there was one.
    pub(super) fn free_dead(&self, work: &mut Work, sync: bool) -> Result<bool> {
        self.give_up_before(work)?;
        let (open, flying, held) = (work.cold.open_segment(), self.moving.flying(), self.holds.now());
        let mut dead: Vec<Usage> = self
            .parts
            .segments
            .in_use()
            .into_iter()
            .filter(|usage| usage.live == 0 && usage.index == 0 && !flying.touches(usage))
            .filter(|usage| if usage.cold { Some(usage.segment) != open } else { usage.generation < work.floor_before })
            .filter(|usage| !work.kept.contains(&usage.generation) && !held.contains_key(&usage.generation))
            .collect();
        if dead.is_empty() {
            return Ok(false);
        }
        // What emptied them must be durable, or a power cut would bring back entries that point there.
        if sync || !self.threaded {
            self.parts.log.commit(true);
        } else {
            let (end, durable) = (self.parts.log.end(), self.parts.log.mark().durable());
            dead.retain(|usage| *work.dying.entry(usage.generation).or_insert(end) <= durable);
        }
        if let Some(failure) = self.parts.log.mark().failure() {
            return Err(failure);
        }
        if dead.is_empty() {
            return Ok(false);
        }
        self.parts.segments.wait_for_readers();
        for usage in &dead {
            let warm = self.device_keeps(usage.segment);
            work.spent.remove(&usage.generation);
            work.unread.remove(&usage.generation);
            work.shared_tries.remove(&usage.generation);
            work.dying.remove(&usage.generation);
            self.moving.forget(usage.generation);
            self.parts.segments.release(usage.segment, warm);
            self.counters.freed.fetch_add(1, Ordering::Relaxed);
        }
        // The log may have found none to go on in, and would say so to the next writer.
        self.parts.log.has_grown();
        Ok(true)
    }

    /// Gives a free segment's blocks back, unless it is one of a few that are kept for what comes next. Whether it
    /// still has them; what the device does not take stays, for a hole may need blocks itself.
    pub(super) fn device_keeps(&self, segment: u64) -> bool {
        let zoned = self.device.geometry().zone_bytes.is_some();
        if zoned || self.parts.segments.free_segments() < self.low(self.reserve()).max(WARM_SEGMENTS) {
            return true;
        }
        let bytes = self.parts.segments.segment_bytes;
        let discarded = self.device.discard(segment * bytes, bytes);
        discarded.inspect_err(not_given_back).is_err()
    }
}

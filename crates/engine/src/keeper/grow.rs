//! Growing: the segments of a device that has become longer are taken in while the store serves.
//!
//! length → heads of the new segments cleared → synced → superblock with the new length, durable → free segments →
//! writers
//!
//! Invariants:
//! 1. A superblock that tells the new length is durable before anything is written to the new segments: a later opening
//!    of the store looks there.
//! 2. What stood behind the old end is never taken for a part of the log.

use esker_device::Device;
use esker_store::{Error, Result};

use super::Keeper;
use super::work::Work;
use crate::commit::{Gate, stopped};
use crate::format::DEVICE_BYTES_MAX;
use crate::superblocks::device_error;

/// What growing came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrowReport {
    /// Length that the store used before, in bytes.
    pub before_bytes: u64,
    /// Length that it uses now, in bytes.
    pub after_bytes: u64,
    /// Segments that it has gained.
    pub added_segments: u64,
}

impl Keeper {
    /// Takes in what the device has gained since it was opened or grown last. Writes that were refused for want of room
    /// go on afterwards.
    ///
    /// # Errors
    /// [`Error::Io`]: the device could not be measured or read, and nothing has changed. [`Error::Stopped`]: a write or
    /// sync of the superblock failed, and the log has stopped.
    pub fn grow(&self) -> Result<GrowReport> {
        // The keeper waits: nothing is freed or cleaned by the old figures meanwhile.
        let report = self.working(|work| self.grow_alone(work))?;
        if report.added_segments > 0 {
            self.wake();
        }
        Ok(report)
    }

    fn grow_alone(&self, work: &mut Work) -> Result<GrowReport> {
        let log = &self.parts.log;
        let segments = &self.parts.segments;
        let segment_bytes = segments.segment_bytes;
        let before_bytes = self.parts.superblocks.newest().device_len;
        let measured = self.device.refresh_len().map_err(|error| device_error("measuring the device", error))?;
        let after_bytes = measured.min(DEVICE_BYTES_MAX).max(before_bytes);
        let (old, new) = (before_bytes / segment_bytes, after_bytes / segment_bytes);
        if old == new {
            return Ok(GrowReport { before_bytes, after_bytes: before_bytes, added_segments: 0 });
        }
        (old..new).try_for_each(|segment| self.clear_head(segment))?;
        self.sync().map_err(|error| self.stop_if_failed(error))?;
        let written = self.parts.superblocks.write(|superblock| superblock.device_len = after_bytes);
        written.map_err(|error| self.stop_if_failed(Error::Stopped { cause: error.to_string().into() }))?;
        let added_segments = segments.grow(new);
        (work.full_at, work.effort) = (None, 0);
        let reserve = self.reserve();
        log.set_gate(Gate::Open, reserve[0], reserve);
        self.pace(false);
        log.has_grown();
        tracing::info!(before_bytes, after_bytes, added_segments, "the store has grown");
        Ok(GrowReport { before_bytes, after_bytes, added_segments })
    }

    /// Whatever the new space has held must not be taken for a segment of this store.
    fn clear_head(&self, segment: u64) -> Result<()> {
        let geometry = self.device.geometry();
        let offset = segment * self.parts.segments.segment_bytes;
        let mut head = vec![0; 2 * geometry.block_bytes as usize];
        let read = self.device.read(offset, &mut head);
        read.map_err(|error| device_error(&format!("reading the start of segment {segment} at {offset}"), error))?;
        if geometry.zone_bytes.is_none() && head.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let discarded = self.device.discard(offset, self.parts.segments.segment_bytes);
        discarded.map_err(|error| self.stop_if_failed(stopped("clearing a new segment", &error)))
    }

    fn sync(&self) -> Result<()> {
        self.device.sync().map_err(|error| stopped("syncing new segments", &error))
    }
}

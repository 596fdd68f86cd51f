//! What a crash has torn at the log's end is cleared before the log goes on in the same segment.
//!
//! Invariants:
//! 1. Nothing of a torn record is ever taken for a continuation of the log, nor for a record that stands in it.
//! 2. The bytes of whole records are written again as they are: whichever of two writes of a sector stands, they stand.

use esker_device::Device;
use esker_store::Result;

use crate::buffer::SegmentBuffer;
use crate::engine::Engine;
use crate::recover::End;
use crate::superblocks::device_error;

/// Cleared in pieces of so many bytes.
const PIECE_BYTES: u64 = 1 << 20;

impl Engine {
    /// Writes zeros over what stands behind the log's end in its segment, of which `buffer` is the memory. The log goes
    /// on at `tail`, the next block.
    ///
    /// # Errors
    /// [`Error::Io`](esker_store::Error::Io): the device's.
    pub(super) fn clear_torn_end(&self, end: End, buffer: Option<&SegmentBuffer>, tail: u64) -> Result<()> {
        let failed = |error| device_error("clearing a torn end", error);
        let segment_bytes = self.segments.segment_bytes;
        let base = end.segment * segment_bytes;
        let block = u64::from(self.device.geometry().block_bytes);
        if let Some(buffer) = buffer
            && end.offset < tail
        {
            // The head of a torn record may stand in the block of the last whole one.
            let start = tail - block;
            // SAFETY: the log is not running yet: no other thread writes this buffer, and nothing points past its end.
            let bytes = unsafe { buffer.range_mut(start as usize, block as usize) };
            bytes[(end.offset - start) as usize..].fill(0);
            self.device.write(base + start, bytes).map_err(failed)?;
        }
        let zeros = vec![0; (segment_bytes - tail).min(PIECE_BYTES) as usize];
        let mut at = tail;
        while at < segment_bytes {
            let piece = &zeros[..(segment_bytes - at).min(PIECE_BYTES) as usize];
            self.device.write(base + at, piece).map_err(failed)?;
            at += piece.len() as u64;
        }
        self.device.sync().map_err(failed)
    }
}

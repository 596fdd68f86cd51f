//! Room that is kept back: for a checkpoint, for cleaning, and for what takes away.
//!
//! Invariant: writes stop while so many segments are still free as a checkpoint, the cleaner and deletes need.

use super::{Keeper, RESCUE_SEGMENTS};

impl Keeper {
    /// Says how many free segments each class of writes leaves alone.
    pub fn set_reserve(&self) {
        let reserve = self.reserve();
        self.parts.log.set_gate(self.parts.log.gate(), reserve);
    }

    /// Free segments that writes leave alone, and that what takes away leaves alone.
    ///
    /// A checkpoint may have to write the whole index again while the last one still stands; the cleaner needs an open
    /// segment and one more; relocations need log; and an opening after a crash begins one segment of each kind. Writes
    /// leave four more. What takes away leaves only what a checkpoint needs with the cleaning before it, and a segment
    /// of each kind: closing and opening a full store may use up some of the rest, and deletes must go on. On a device
    /// of few segments writes leave two fifths of them.
    pub(super) fn reserve(&self) -> [u64; 2] {
        let checkpoint = self.checkpoint_segments();
        let most = self.parts.segments.log_segments() * 2 / 5;
        let writes = (checkpoint + 8).min(most);
        [writes, (checkpoint + RESCUE_SEGMENTS + 2).min(writes.saturating_sub(1))]
    }

    /// With fewer free segments than this it is time to clean.
    pub(super) fn low(&self, reserve: [u64; 2]) -> u64 {
        reserve[0] + 2 + self.parts.segments.log_segments() / 20
    }

    /// Segments that a checkpoint of the whole index takes at most; an eighth more for what does not fit at their ends.
    pub(super) fn checkpoint_segments(&self) -> u64 {
        let segments = &self.parts.segments;
        // What the last one has, or what is in memory by now.
        let index = segments.index_bytes().max(self.parts.objects.page_bytes());
        (index + index / 8).div_ceil(segments.segment_bytes)
    }

    /// Whether cleaning one segment after the other might take what a checkpoint needs, without which some of them do
    /// not become free.
    pub(super) fn is_tight(&self) -> bool {
        self.parts.log.segments_left() <= self.checkpoint_segments() + RESCUE_SEGMENTS + 1
    }
}

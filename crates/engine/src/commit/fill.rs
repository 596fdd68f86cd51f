//! Filling ahead: space that the log comes to is written with zeros first, because the syncs of fresh space cost a file
//! system more than those of space that was written before. It is done while the log goes on, in the open segment and in
//! the next.
//!
//! Invariant: nothing of the log is written where zeros are being written, or before they are. A piece begins behind
//! all that was given to writers, and is told under the lock that guards that; whatever is cut later and reaches it waits
//! for it to end.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use esker_store::Result;
use parking_lot::Condvar;

use super::{Log, State, round_up, stopped};
use crate::segments::Lsn;

/// So much is filled at a time: the log waits for no more, and no sync of it for more than this with its own.
const PIECE_BYTES: u64 = 4 << 20;
/// In the open segment so much is left to the log, which goes on meanwhile, ...
const MARGIN_BYTES: u64 = 1 << 20;
/// ... but at most this part of the segment.
const MARGIN_PART: u64 = 16;

/// What is being filled.
pub(super) struct Fill {
    /// Where the piece begins; beyond the log's end while there is none.
    from: AtomicU64,
    ended: Condvar,
}

impl Default for Fill {
    fn default() -> Self {
        Self { from: AtomicU64::new(u64::MAX), ended: Condvar::new() }
    }
}

/// A piece to fill.
struct Piece {
    lsn: Lsn,
    device_offset: u64,
    len: u64,
}

impl Log {
    /// Fills the next piece ahead, first of the open segment and then of the next; whether there was one. Only the preparing
    /// thread may call this.
    pub(super) fn fill_piece(&self) -> Result<bool> {
        let piece = {
            let mut state = self.state.lock();
            let Some(piece) = self.next_piece(&mut state) else { return Ok(false) };
            self.fill.from.store(piece.lsn, Ordering::Release);
            piece
        };
        // A writer that waits for the piece must not do so for ever.
        let fill = || self.device.prefill(piece.device_offset, piece.len);
        let filled = catch_unwind(AssertUnwindSafe(fill));
        let state = self.state.lock();
        self.fill.from.store(u64::MAX, Ordering::Release);
        drop(state);
        self.fill.ended.notify_all();
        let filled = filled.unwrap_or_else(|panic| resume_unwind(panic));
        filled.map(|()| true).map_err(|error| stopped("filling a segment ahead", &error))
    }

    fn next_piece(&self, state: &mut State) -> Option<Piece> {
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
        Some(Piece { lsn: base_lsn + from, device_offset: segment * segment_bytes + from, len })
    }

    /// Waits until nothing that stands before `end` is being filled.
    pub(super) fn wait_for_fill(&self, end: Lsn) {
        if self.fill.from.load(Ordering::Acquire) >= end {
            return;
        }
        let mut state = self.state.lock();
        while self.fill.from.load(Ordering::Acquire) < end {
            self.fill.ended.wait(&mut state);
        }
    }
}

//! Filling ahead: space that the log comes to is written with zeros first, because the syncs of fresh space cost a file
//! system more than those of space that was written before. It is done while the log goes on, in the open segment and
//! in the next.
//!
//! Invariant: nothing of the log is written where zeros are being written, or before they are. A piece begins behind
//! all that was given to writers, and is told under the lock that guards that; whatever is cut later and reaches it
//! waits for it to end.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::segments::Lsn;

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

impl Fill {
    /// Tells, under the lock of the log's state, that what stands from `from` on is being filled.
    pub fn begin(&self, from: Lsn) {
        self.from.store(from, Ordering::Release);
    }

    /// Tells, under the lock of the log's state, that nothing is being filled any more.
    pub fn end<T>(&self, state: MutexGuard<'_, T>) {
        self.from.store(u64::MAX, Ordering::Release);
        drop(state);
        self.ended.notify_all();
    }

    /// Waits until nothing that stands before `end` is being filled. `state` is the log's.
    pub fn wait_for<T>(&self, end: Lsn, state: &Mutex<T>) {
        if self.from.load(Ordering::Acquire) >= end {
            return;
        }
        let mut state = state.lock();
        while self.from.load(Ordering::Acquire) < end {
            self.ended.wait(&mut state);
        }
    }
}

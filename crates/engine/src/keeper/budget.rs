//! The index's memory budget, as the keeper sees to it.

use std::sync::atomic::Ordering;

use super::{CROWDED_WAKE_US, Keeper, Work};

impl Keeper {
    /// Has index pages leave memory as the budget asks; whether it is still exceeded.
    pub(super) fn drop_pages(&self, work: &mut Work) -> bool {
        let objects = &self.parts.objects;
        if objects.page_bytes() > self.index_bytes && work.whole {
            let dropped = work.hand.sweep(&work.saved, objects, self.index_bytes - self.index_bytes / 8);
            self.counters.pages_dropped.fetch_add(dropped, Ordering::Relaxed);
        }
        objects.page_bytes() > self.index_bytes
    }

    /// Has all index pages leave memory that can, whatever the budget. How many left.
    pub fn drop_all_pages(&self) -> u64 {
        let mut work = self.work.lock();
        let work = &mut *work;
        if !work.whole {
            return 0;
        }
        let dropped = work.hand.sweep(&work.saved, &self.parts.objects, 0);
        self.counters.pages_dropped.fetch_add(dropped, Ordering::Relaxed);
        dropped
    }

    /// Wakes the thread if the index takes more than its budget.
    #[inline]
    pub fn index_has_grown(&self) {
        if self.threaded && self.parts.objects.page_bytes() > self.index_bytes {
            // Not at every call, in case nothing can leave.
            let now = self.since.elapsed().as_micros() as u64;
            let before = self.crowded_at.load(Ordering::Relaxed);
            if now.saturating_sub(before) >= CROWDED_WAKE_US {
                self.crowded_at.store(now, Ordering::Relaxed);
                self.wake();
            }
        }
    }
}

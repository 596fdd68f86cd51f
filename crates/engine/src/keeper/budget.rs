//! The index's memory budget, as the keeper sees to it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::work::Work;
use super::{CROWDED_WAKE_US, Keeper};

/// Index pages may take a quarter more than their budget, and so many bytes: then calls wait until some have left.
const OVER_BYTES: u64 = 2 << 20;
/// A call waits for so long at most.
const WAIT_MAX: Duration = Duration::from_millis(250);
/// And for so many looks of the thread, the first of which may have begun before.
const LOOKS: u64 = 2;

/// When a wait for memory began.
#[derive(Clone, Copy)]
pub struct CrowdedSince {
    began: Instant,
    /// How often the thread had looked then.
    looks: u64,
}

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
        let mut work = self.lock_work();
        let work = &mut *work;
        if !work.whole {
            return 0;
        }
        let dropped = work.hand.sweep(&work.saved, &self.parts.objects, 0);
        self.counters.pages_dropped.fetch_add(dropped, Ordering::Relaxed);
        dropped
    }

    /// Bytes of index pages above which calls wait. Where none could leave after a checkpoint beside which nothing was
    /// written, it is so much more: callers do not wait again and again for what does not leave.
    pub(super) fn index_bytes_wait(&self) -> u64 {
        let part = (self.index_bytes / 4).saturating_add(OVER_BYTES);
        self.index_bytes.max(self.index_stays.load(Ordering::Relaxed)).saturating_add(part)
    }

    /// Has pages leave after a checkpoint, and notes what stays if none could: not where something was written since it
    /// began, for what has changed leaves after the next one.
    pub(super) fn drop_saved_pages(&self, work: &mut Work) {
        let before = self.counters.pages_dropped.load(Ordering::Relaxed);
        let over = self.drop_pages(work);
        let unchanged = work.covered == Some(self.parts.log.last_seq()) || self.parts.objects.is_gathering();
        let none_left = unchanged && self.counters.pages_dropped.load(Ordering::Relaxed) == before;
        let stays = if over && none_left { self.parts.objects.page_bytes() } else { 0 };
        self.index_stays.store(stays, Ordering::Relaxed);
        self.pages_leave.notify_all();
    }

    /// Whether calls wait for index pages to leave, and a checkpoint would make some fit to.
    pub(super) fn is_far_over(&self, work: &Work) -> bool {
        work.whole && self.parts.objects.page_bytes() > self.index_bytes_wait()
    }

    /// Whether index pages take far more than their budget, so that calls that change something wait.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.threaded && self.parts.objects.page_bytes() > self.index_bytes_wait()
    }

    /// Waits while index pages take far more than their budget: until some have left, or the thread has tried. The
    /// caller holds no lock, and is not pinned: the thread may wait for those who are.
    #[inline]
    pub fn wait_for_index_room(&self) {
        if self.is_crowded() {
            self.wait_for_fewer_pages();
        }
    }

    /// The beginning of a wait while index pages take far more than their budget.
    pub fn crowded_since(&self) -> CrowdedSince {
        let since = CrowdedSince { began: Instant::now(), looks: self.looks.load(Ordering::Acquire) };
        self.wake();
        since
    }

    /// Whether such a wait goes on: until some have left, or the thread has tried.
    pub fn is_crowded_still(&self, since: CrowdedSince) -> bool {
        self.is_crowded()
            && self.looks.load(Ordering::Acquire) < since.looks + LOOKS
            && since.began.elapsed() < WAIT_MAX
            && !self.stopping.load(Ordering::Acquire)
            && self.parts.log.mark().failure().is_none()
    }

    #[cold]
    fn wait_for_fewer_pages(&self) {
        let since = self.crowded_since();
        let mut left = self.pages_left.lock();
        while self.is_crowded_still(since) {
            self.pages_leave.wait_for(&mut left, Duration::from_millis(5));
            self.wake();
        }
    }

    /// The thread has looked once more, and those who wait for memory may look as well.
    pub(super) fn has_looked(&self) {
        self.looks.fetch_add(1, Ordering::AcqRel);
        self.pages_leave.notify_all();
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

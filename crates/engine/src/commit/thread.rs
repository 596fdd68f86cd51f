//! The commit thread: when it appends, when it syncs, and how long it sleeps in between.
//!
//! Invariant: the thread says that it is parked before it looks for waiters, so a client that begins to wait after that
//! look nudges it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Log;
use crate::policy::CommitPolicy;

/// An idle thread sleeps at least so long.
const IDLE_MIN: Duration = Duration::from_millis(1);

impl Log {
    /// Stops taking records. The commit thread ends, and makes durable what is pending only if a client waits for it:
    /// [`Log::commit_rest`] does for the others.
    pub fn stop(&self) {
        self.take_no_more();
        self.nudge();
        self.room.notify_all();
        self.wanted_segment.notify_all();
    }

    /// The commit thread's life: sleeps, appends, syncs, until [`Log::stop`].
    pub fn run(&self) {
        // Gathering sleeps for less than the kernel's usual slack of 50 us. Where that can't be set, groups are
        // smaller.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000));
        let thread = std::thread::current();
        assert!(self.thread.set(thread).is_ok(), "a log has one commit thread");
        let mut first_waiter: Option<Instant> = None;
        loop {
            self.parked.store(true, Ordering::SeqCst);
            std::sync::atomic::fence(Ordering::SeqCst);
            let step = self.next_step(&mut first_waiter);
            match step {
                Step::Stop => {
                    self.parked.store(false, Ordering::SeqCst);
                    if self.is_waited_for() {
                        self.commit_rest();
                    }
                    return;
                }
                Step::Commit { sync } => {
                    self.parked.store(false, Ordering::SeqCst);
                    self.commit_if_left(sync);
                    if self.mark().failure().is_some() {
                        return;
                    }
                }
                Step::Sleep(time) => std::thread::park_timeout(time),
            }
        }
    }

    /// The log takes no records any more, and no writer is to wait for it.
    pub fn has_stopped(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(super) fn take_no_more(&self) {
        let mut state = self.state.0.lock();
        state.stopping = true;
        self.stopping.store(true, Ordering::Release);
    }

    /// Makes durable what is not yet, if there is anything.
    pub fn commit_rest(&self) {
        if self.has_rest() {
            self.commit(true);
        }
    }

    /// Whether there is anything that is not durable.
    pub(super) fn has_rest(&self) -> bool {
        let state = self.state.0.lock();
        state.group_open || state.tail > state.start || !state.sealed.is_empty() || state.oldest_unsynced.is_some()
    }

    /// How long the thread waits for the writers that the last sync woke to come back; zero when there are none to
    /// wait for. While the thread gathers, a writer that waits for a sync may leave it asleep, so the thread asks this
    /// before every sleep.
    fn gathering(&self) -> Duration {
        let to = self.gather_to.load(Ordering::Relaxed);
        if to == 0 {
            return Duration::ZERO;
        }
        let mut gather = self.gather.lock();
        let left = gather.left(self.mark().arrivals() >= to, Instant::now());
        if left.is_zero() {
            self.gather_to.store(0, Ordering::SeqCst);
            std::sync::atomic::fence(Ordering::SeqCst);
        }
        left
    }

    /// Whether the commit thread asks.
    pub(super) fn is_commit_thread(&self) -> bool {
        self.thread.get().is_some_and(|thread| thread.id() == std::thread::current().id())
    }

    pub(super) fn is_waited_for(&self) -> bool {
        self.mark().wanted() > self.mark().durable()
    }

    fn next_step(&self, first_waiter: &mut Option<Instant>) -> Step {
        let (pending, oldest, stopping) = {
            let state = self.state.0.lock();
            let pending = state.tail > state.start || !state.sealed.is_empty();
            (pending, state.oldest_unsynced, state.stopping)
        };
        if stopping {
            return Step::Stop;
        }
        // The end of gathering comes before the look at who waits: a waiter that did not nudge this thread until then
        // is seen here.
        let gathering = self.gathering();
        let waited_for = self.is_waited_for();
        let policy = self.policy();
        let mut sleep = Duration::from_secs(1);
        if !gathering.is_zero() {
            sleep = gathering;
        }
        if waited_for {
            let since = *first_waiter.get_or_insert_with(Instant::now);
            let window = match policy {
                CommitPolicy::Group { window } => window,
                CommitPolicy::Adaptive | CommitPolicy::Batch | CommitPolicy::Periodic { .. } => Duration::ZERO,
            };
            let waited = since.elapsed();
            if waited >= window {
                if gathering.is_zero() {
                    *first_waiter = None;
                    return Step::Commit { sync: true };
                }
            } else {
                sleep = window - waited;
            }
        } else {
            *first_waiter = None;
        }
        // What no caller waits for is made durable after so long.
        let limit = match policy {
            CommitPolicy::Periodic { interval } => interval,
            CommitPolicy::Adaptive | CommitPolicy::Batch | CommitPolicy::Group { .. } => self.shape.async_flush,
        };
        if let Some(oldest) = oldest {
            let age = oldest.elapsed();
            if age >= limit {
                return Step::Commit { sync: true };
            }
            sleep = sleep.min(limit - age);
        } else if !waited_for {
            // Nothing unsynced: the next record without a waiter starts a flush time that must not be overslept.
            sleep = sleep.min(limit.max(IDLE_MIN));
        }
        if pending && self.unwritten.0.load(Ordering::Relaxed) >= self.append_bytes() {
            return Step::Commit { sync: false };
        }
        Step::Sleep(sleep)
    }

    /// Commits in the calling thread, which is about to wait, if it is the only one that does and the commit thread
    /// sleeps: then there is no other writer to be grouped with, and two changes of threads cost as much as a fast
    /// device's sync. Whether it did.
    pub fn commit_alone(&self) -> bool {
        let at_once = self.at_once.load(Ordering::Relaxed) && self.gather_to.load(Ordering::SeqCst) == 0;
        let clients = self.mark().arrivals().wrapping_sub(self.arrived.load(Ordering::Relaxed));
        if !at_once || clients > 1 || !self.parked.load(Ordering::SeqCst) || self.mark().waiters() > 1 {
            return false;
        }
        let Some(committing) = self.committing.try_lock() else { return false };
        if let Err(error) = self.append_and_sync(true, |_| ()) {
            self.fail(error);
        }
        drop(committing);
        true
    }

    /// Wakes the commit thread for a caller that waits for the mark, unless it gathers and more are to come.
    pub fn nudge_for_waiter(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
        let to = self.gather_to.load(Ordering::SeqCst);
        if to == 0 || self.mark().arrivals() >= to {
            self.nudge();
        }
    }

    /// Wakes the commit thread if it sleeps; without one (`commit_thread: false`) does nothing.
    pub fn nudge(&self) {
        // Orders the caller's change before the look at `parked`, as `run` orders the two the other way round.
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.parked.load(Ordering::SeqCst)
            && self.parked.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}

enum Step {
    Stop,
    Commit { sync: bool },
    Sleep(Duration),
}

#[cfg(test)]
mod tests {
    use esker_store::Barrier;

    use super::*;
    use crate::commit::reserve::tests::log_of;

    /// Failure: after a checkpoint or a step of the cleaner a durable write stood for up to a second. Cause: their
    /// commits left word that the next group was to be gathered, and a writer that came then did not wake the commit
    /// thread, which slept and knew nothing of it.
    #[test]
    fn only_the_commit_thread_puts_a_group_off() {
        let log = log_of(true);
        let come = |clients: u64| Barrier::new(log.mark(), u64::MAX).count(clients);
        for _ in 0..20 {
            come(8);
            log.commit(true);
            assert_eq!(log.gather_to.load(Ordering::SeqCst), 0, "no thread looks at the time");
        }
        std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                log.thread.set(std::thread::current()).unwrap();
                (0..20).any(|_| {
                    come(8);
                    log.commit(true);
                    log.gather_to.swap(0, Ordering::SeqCst) > 0
                })
            });
            assert!(run.join().unwrap(), "of those who come together some are waited for");
            assert!(log.mark().failure().is_none());
        });
    }

    /// A writer leaves the thread asleep while it puts a group off; a thread that breaks that wait off wakes it for
    /// such a writer.
    #[test]
    fn a_wait_that_is_broken_off_ends() {
        let log = log_of(true);
        log.thread.set(std::thread::current()).unwrap();
        let sleeps = || log.parked.load(Ordering::SeqCst);
        let break_off = || {
            log.parked.store(true, Ordering::SeqCst);
            log.gather_to.store(u64::MAX, Ordering::SeqCst);
            std::thread::scope(|scope| scope.spawn(|| log.commit(true)).join().unwrap());
            assert_eq!(log.gather_to.load(Ordering::SeqCst), 0);
        };
        break_off();
        assert!(sleeps(), "no writer waits");
        // What this one waits for is in no group yet.
        log.mark().want(log.mark().durable() + 1);
        break_off();
        assert!(!sleeps());
    }
}

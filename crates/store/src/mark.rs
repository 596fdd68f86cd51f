//! The durable mark: how far the log has reached stable storage, and who waits for it.
//!
//! commit thread → [`DurableMark::advance`] → waiting threads (one wake for all) and tasks
//!
//! Invariants:
//! 1. The mark only grows; after [`DurableMark::fail`] it grows no more.
//! 2. A failed mark answers every waiter above it with the first cause, and goes on answering those below it with success.
//! 3. `wanted` tells the commit thread how far somebody waits, so that it need not sync what nobody waits for.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

use crate::{Error, Result};

/// How far a store's log is durable. Positions are the store's own, growing numbers.
pub struct DurableMark {
    durable: AtomicU64,
    wanted: AtomicU64,
    failed: AtomicBool,
    cause: OnceLock<Error>,
    waiters: Mutex<Waiters>,
    threads: Condvar,
    /// Called when somebody begins to wait for a position that is not durable: wakes the commit thread.
    nudge: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Waiters {
    threads: usize,
    tasks: Vec<(u64, Waker)>,
}

impl DurableMark {
    /// A mark at `durable`. `nudge` is called (cheaply, often) when a waiter arrives.
    pub fn new(durable: u64, nudge: Box<dyn Fn() + Send + Sync>) -> Arc<Self> {
        Arc::new(Self {
            durable: AtomicU64::new(durable),
            wanted: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            cause: OnceLock::new(),
            waiters: Mutex::default(),
            threads: Condvar::new(),
            nudge,
        })
    }

    /// Everything up to this position is durable.
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// The highest position that anybody has waited for.
    pub fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::Acquire)
    }

    /// The first failure, if the store has stopped.
    pub fn failure(&self) -> Option<Error> {
        if self.failed.load(Ordering::Acquire) { self.cause.get().cloned() } else { None }
    }

    /// Says that somebody waits, or will wait, for `position`.
    pub fn want(&self, position: u64) {
        if self.wanted.load(Ordering::Relaxed) < position {
            self.wanted.fetch_max(position, Ordering::AcqRel);
        }
        if self.durable() < position {
            (self.nudge)();
        }
    }

    /// Moves the mark to `position` and wakes whoever waited for it.
    pub fn advance(&self, position: u64) {
        if self.failed.load(Ordering::Acquire) {
            return;
        }
        self.durable.fetch_max(position, Ordering::AcqRel);
        self.wake(position);
    }

    /// Stops the mark for good and answers all waiters above it with `cause`. The first cause stays.
    pub fn fail(&self, cause: Error) {
        // A second failure is not news: the first cause is the one that operators need.
        let _ = self.cause.set(cause);
        self.failed.store(true, Ordering::Release);
        self.wake(u64::MAX);
    }

    fn wake(&self, position: u64) {
        let mut ready = Vec::new();
        {
            let mut waiters = self.waiters.lock();
            if waiters.threads > 0 {
                self.threads.notify_all();
            }
            waiters.tasks.retain_mut(|(at, waker)| {
                if *at <= position {
                    ready.push(std::mem::replace(waker, Waker::noop().clone()));
                    return false;
                }
                true
            });
        }
        for waker in ready {
            waker.wake();
        }
    }

    fn state(&self, position: u64) -> Option<Result<()>> {
        if self.durable() >= position {
            return Some(Ok(()));
        }
        // The mark may have moved between the two loads, before the failure: look once more.
        let failure = self.failure()?;
        Some(if self.durable() >= position { Ok(()) } else { Err(failure) })
    }

    fn wait(&self, position: u64) -> Result<()> {
        if let Some(state) = self.state(position) {
            return state;
        }
        self.want(position);
        let mut waiters = self.waiters.lock();
        waiters.threads += 1;
        let state = loop {
            if let Some(state) = self.state(position) {
                break state;
            }
            self.threads.wait(&mut waiters);
        };
        waiters.threads -= 1;
        state
    }

    fn poll(&self, position: u64, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if let Some(state) = self.state(position) {
            return Poll::Ready(state);
        }
        self.want(position);
        let mut waiters = self.waiters.lock();
        if let Some(state) = self.state(position) {
            return Poll::Ready(state);
        }
        waiters.tasks.push((position, cx.waker().clone()));
        Poll::Pending
    }
}

impl std::fmt::Debug for DurableMark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DurableMark").field("durable", &self.durable()).field("wanted", &self.wanted()).finish()
    }
}

/// A point in a store's log that something waits for. Of two barriers of one store the higher implies the lower.
#[derive(Clone, Debug)]
pub struct Barrier {
    mark: Arc<DurableMark>,
    position: u64,
}

impl Barrier {
    /// The point `position` of the log that `mark` follows.
    pub fn new(mark: &Arc<DurableMark>, position: u64) -> Self {
        Self { mark: Arc::clone(mark), position }
    }

    /// The position waited for.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Whether it has been reached: success, failure, or `None` while it has not.
    pub fn state(&self) -> Option<Result<()>> {
        self.mark.state(self.position)
    }

    /// Asks for the point to be made durable soon, without waiting.
    pub fn want(&self) {
        self.mark.want(self.position);
    }

    /// Blocks the thread until the point is durable.
    ///
    /// # Errors
    /// [`Error::Stopped`] when the store failed before.
    pub fn wait(&self) -> Result<()> {
        self.mark.wait(self.position)
    }

    /// Polls, registering the task to be woken.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.mark.poll(self.position, cx)
    }

    /// The later of two barriers of the same store.
    pub fn later(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        match (a, b) {
            (Some(a), Some(b)) => Some(if a.position >= b.position { a } else { b }),
            (a, b) => a.or(b),
        }
    }
}

impl Future for Barrier {
    type Output = Result<()>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.mark.poll(self.position, cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_is_woken_by_the_mark_and_failed_by_a_failure() {
        let mark = DurableMark::new(0, Box::new(|| {}));
        let waiter = {
            let barrier = Barrier::new(&mark, 5);
            std::thread::spawn(move || barrier.wait())
        };
        mark.advance(4);
        assert!(!waiter.is_finished());
        mark.advance(5);
        waiter.join().unwrap().unwrap();
        mark.fail(Error::Stopped { cause: "test".into() });
        assert!(Barrier::new(&mark, 5).wait().is_ok());
        assert!(matches!(Barrier::new(&mark, 6).wait(), Err(Error::Stopped { .. })));
        mark.advance(9);
        assert_eq!(mark.durable(), 5);
    }

    #[test]
    fn the_later_barrier_wins() {
        let mark = DurableMark::new(0, Box::new(|| {}));
        let later = Barrier::later(Some(Barrier::new(&mark, 3)), Some(Barrier::new(&mark, 2)));
        assert_eq!(later.unwrap().position(), 3);
        assert!(Barrier::later(None, None).is_none());
    }
}

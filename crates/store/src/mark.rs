//! The durable mark: how far the log has reached stable storage, and who waits for it.
//!
//! commit thread → [`DurableMark::advance`] → waiting threads (one wake for all) and tasks
//!
//! Invariants:
//! 1. The mark only grows; after [`DurableMark::fail`] it grows no more.
//! 2. A failed mark answers every waiter above it with the first cause, and goes on answering those below it with
//!    success.
//! 3. Threads are woken in two turns: those who wait for what is being made durable, and those who wait for what comes
//!    after.
//! 4. A task whose waker panics keeps no other from being woken; the panic goes on in the thread that moved the
//!    mark.
//! 5. `wanted` tells the commit thread how far callers wait, so that it need not sync what no caller waits for.

use std::future::Future;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use rustix::thread::futex;

use crate::{Error, Result};

/// How far a store's log is durable. Positions are the store's own, growing numbers.
pub struct DurableMark {
    durable: AtomicU64,
    wanted: AtomicU64,
    failed: AtomicBool,
    cause: OnceLock<Error>,
    tasks: Mutex<Vec<(u64, Waker)>>,
    /// Changes whenever the mark does: sleeping threads wait for that.
    moves: AtomicU32,
    /// Up to where what is being made durable goes, twice; the last bit is its turn.
    cut: AtomicU64,
    /// Threads and tasks that wait.
    waiters: AtomicU32,
    arrivals: AtomicU64,
    /// Called when a caller begins to wait for a position that is not durable: wakes the commit thread.
    nudge: Box<dyn Fn() + Send + Sync>,
    /// Called by a thread that is about to sleep until the mark moves: it may move it itself.
    commit: Option<Box<dyn Fn() -> bool + Send + Sync>>,
}

impl DurableMark {
    /// A mark at `durable`. `nudge` is called (cheaply, often) when a waiter arrives.
    pub fn new(durable: u64, nudge: Box<dyn Fn() + Send + Sync>) -> Arc<Self> {
        Self::with(durable, nudge, None)
    }

    /// The same, where a thread that would sleep may do the work: `commit` makes everything durable in the calling
    /// thread, or returns false, and then `nudge` is called. Two changes of threads less for a caller that waits alone.
    pub fn with_commit(
        durable: u64,
        nudge: Box<dyn Fn() + Send + Sync>,
        commit: Box<dyn Fn() -> bool + Send + Sync>,
    ) -> Arc<Self> {
        Self::with(durable, nudge, Some(commit))
    }

    fn with(
        durable: u64,
        nudge: Box<dyn Fn() + Send + Sync>,
        commit: Option<Box<dyn Fn() -> bool + Send + Sync>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            durable: AtomicU64::new(durable),
            wanted: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            cause: OnceLock::new(),
            tasks: Mutex::default(),
            moves: AtomicU32::new(0),
            cut: AtomicU64::new(0),
            waiters: AtomicU32::new(0),
            arrivals: AtomicU64::new(0),
            nudge,
            commit,
        })
    }

    /// Everything up to this position is durable.
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::SeqCst)
    }

    /// The highest position that any caller has waited for.
    pub fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::Acquire)
    }

    /// The first failure, if the store has stopped.
    pub fn failure(&self) -> Option<Error> {
        if self.failed.load(Ordering::SeqCst) { self.cause.get().cloned() } else { None }
    }

    /// Says that a caller waits, or will wait, for `position`.
    pub fn want(&self, position: u64) {
        if self.wanted.load(Ordering::Relaxed) < position {
            self.wanted.fetch_max(position, Ordering::AcqRel);
        }
        if self.durable() < position {
            (self.nudge)();
        }
    }

    /// Threads and tasks that wait.
    pub fn waiters(&self) -> u32 {
        self.waiters.load(Ordering::SeqCst)
    }

    /// Says that the mark will move to `position` next, or fail: who waits for more need not be woken by that.
    pub fn cut(&self, position: u64) {
        let turn = (self.cut.load(Ordering::Relaxed) & 1) ^ 1;
        self.cut.store(position << 1 | turn, Ordering::SeqCst);
    }

    /// The turn of those who wait for `position`, as a bit.
    fn turn(&self, position: u64) -> NonZeroU32 {
        let cut = self.cut.load(Ordering::SeqCst);
        let later = u64::from(position > cut >> 1);
        if (cut & 1) ^ later == 0 { NonZeroU32::MIN } else { NonZeroU32::MIN.saturating_add(1) }
    }

    /// Moves the mark to `position` and wakes the threads and tasks that waited for it.
    pub fn advance(&self, position: u64) {
        if self.failed.load(Ordering::Acquire) {
            return;
        }
        self.raise(position);
        self.wake(position);
    }

    /// Moves the mark to `position` and wakes no waiter: for a caller that holds a lock, and calls
    /// [`DurableMark::advance`] when it has let go of it.
    pub fn raise(&self, position: u64) {
        if !self.failed.load(Ordering::Acquire) {
            self.durable.fetch_max(position, Ordering::SeqCst);
        }
    }

    /// Stops the mark for good and answers all waiters above it with `cause`. The first cause stays.
    pub fn fail(&self, cause: Error) {
        // A second failure is not news: the first cause is the one that operators need.
        let _ = self.cause.set(cause);
        self.failed.store(true, Ordering::SeqCst);
        // The thread that stops a store has more to do than to hear of a waker that panics.
        let _ = catch_unwind(AssertUnwindSafe(|| self.wake(u64::MAX)));
    }

    /// How many times a caller has begun to wait: threads, and the callers that [`Barrier::want_for`] was called for. A
    /// task that polls is not counted by itself: it may stand for many, or poll often.
    pub fn arrivals(&self) -> u64 {
        self.arrivals.load(Ordering::Relaxed)
    }

    /// Returns how many threads it has woken.
    fn wake(&self, position: u64) -> usize {
        self.moves.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) == 0 {
            return 0;
        }
        let cut = self.cut.load(Ordering::SeqCst) >> 1;
        let turns = if position <= cut { self.turn(position) } else { NonZeroU32::MAX };
        // One call for all threads, which then need no lock. A futex word that is ours alone cannot be refused.
        let woken = futex::wake_bitset(&self.moves, futex::Flags::PRIVATE, i32::MAX as u32, turns).unwrap_or(0);
        let mut ready = Vec::new();
        self.tasks.lock().retain_mut(|(at, waker)| {
            if *at <= position {
                ready.push(std::mem::replace(waker, Waker::noop().clone()));
                return false;
            }
            true
        });
        self.waiters.fetch_sub(ready.len() as u32, Ordering::SeqCst);
        // A waker that panics keeps none of the others from being called.
        let mut panicked = None;
        for waker in ready {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
                panicked.get_or_insert(panic);
            }
        }
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
        woken
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
        self.arrivals.fetch_add(1, Ordering::Relaxed);
        self.waiters.fetch_add(1, Ordering::SeqCst);
        self.wanted.fetch_max(position, Ordering::AcqRel);
        if !self.commit.as_ref().is_some_and(|commit| commit()) {
            (self.nudge)();
        }
        let state = loop {
            let moves = self.moves.load(Ordering::SeqCst);
            if let Some(state) = self.state(position) {
                break state;
            }
            // Interrupted, or the mark has moved already, or it was another's turn: look again. A cut between here and
            // the sleep makes the later turn the one that is next, and this one may wake once too often.
            let turn = self.turn(position);
            let _ = futex::wait_bitset(&self.moves, futex::Flags::PRIVATE, moves, None, turn);
        };
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        state
    }

    fn poll(&self, position: u64, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if let Some(state) = self.state(position) {
            return Poll::Ready(state);
        }
        self.waiters.fetch_add(1, Ordering::SeqCst);
        self.want(position);
        let mut tasks = self.tasks.lock();
        if let Some(state) = self.state(position) {
            self.waiters.fetch_sub(1, Ordering::SeqCst);
            return Poll::Ready(state);
        }
        tasks.push((position, cx.waker().clone()));
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

    /// As [`Barrier::want`], on behalf of so many clients that have begun to wait for this or an earlier point since
    /// the last call. A store may put off a sync until as many have come back as the last one answered.
    pub fn want_for(&self, clients: u64) {
        self.mark.arrivals.fetch_add(clients, Ordering::Relaxed);
        self.mark.want(self.position);
    }

    /// So many clients have begun to wait for this or an earlier point since the last call, beside the caller, who
    /// waits next ([`Barrier::wait`]).
    pub fn count(&self, clients: u64) {
        self.mark.arrivals.fetch_add(clients, Ordering::Relaxed);
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
    fn a_waiting_thread_commits_itself_where_it_may() {
        let place: Arc<OnceLock<Arc<DurableMark>>> = Arc::default();
        let (nudges, may) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(true)));
        let nudge = {
            let (nudges, place) = (Arc::clone(&nudges), Arc::clone(&place));
            move || {
                nudges.fetch_add(1, Ordering::SeqCst);
                place.get().unwrap().advance(8);
            }
        };
        let commit = {
            let (place, may) = (Arc::clone(&place), Arc::clone(&may));
            move || {
                let may = may.load(Ordering::SeqCst);
                if may {
                    place.get().unwrap().advance(5);
                }
                may
            }
        };
        let mark = DurableMark::with_commit(0, Box::new(nudge), Box::new(commit));
        assert!(place.set(Arc::clone(&mark)).is_ok());
        Barrier::new(&mark, 5).wait().unwrap();
        assert_eq!((mark.durable(), nudges.load(Ordering::SeqCst)), (5, 0));
        may.store(false, Ordering::SeqCst);
        Barrier::new(&mark, 8).wait().unwrap();
        assert_eq!((mark.durable(), nudges.load(Ordering::SeqCst), mark.waiters()), (8, 1, 0));
    }

    #[test]
    fn who_waits_for_what_comes_after_sleeps_on() {
        let mark = DurableMark::new(0, Box::new(|| {}));
        mark.cut(5);
        let waiters: Vec<_> = [4, 5, 6, 9]
            .map(|position| {
                let barrier = Barrier::new(&mark, position);
                std::thread::spawn(move || barrier.wait())
            })
            .into();
        while mark.waiters() < 4 {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
        mark.durable.fetch_max(5, Ordering::SeqCst);
        assert!(mark.wake(5) <= 2, "those who wait for 6 and 9 were woken");
        mark.cut(9);
        mark.advance(9);
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap().unwrap());
    }

    #[test]
    fn no_thread_sleeps_through_its_turn() {
        let mark = DurableMark::new(0, Box::new(|| {}));
        let next = Arc::new(AtomicU64::new(0));
        let (done, ends) = std::sync::mpsc::channel();
        for _ in 0..8 {
            let (mark, next, done) = (Arc::clone(&mark), Arc::clone(&next), done.clone());
            std::thread::spawn(move || {
                for _ in 0..5_000 {
                    let position = next.fetch_add(1, Ordering::SeqCst) + 1;
                    Barrier::new(&mark, position).wait().unwrap();
                }
                done.send(()).unwrap();
            });
        }
        let committer = {
            let (mark, next) = (Arc::clone(&mark), Arc::clone(&next));
            std::thread::spawn(move || {
                let mut round = 0u32;
                while mark.durable() < 40_000 {
                    round += 1;
                    let end = next.load(Ordering::SeqCst);
                    // Sometimes the mark moves further than it was said, or in two steps.
                    if !round.is_multiple_of(5) {
                        mark.cut(end);
                        std::thread::yield_now();
                    }
                    if round.is_multiple_of(3) {
                        mark.advance(end / 2);
                    }
                    mark.advance(end);
                }
            })
        };
        for _ in 0..8 {
            ends.recv_timeout(std::time::Duration::from_secs(60)).expect("a thread sleeps for ever");
        }
        committer.join().unwrap();
    }

    #[test]
    fn the_later_barrier_wins() {
        let mark = DurableMark::new(0, Box::new(|| {}));
        let later = Barrier::later(Some(Barrier::new(&mark, 3)), Some(Barrier::new(&mark, 2)));
        assert_eq!(later.unwrap().position(), 3);
        assert!(Barrier::later(None, None).is_none());
    }
}

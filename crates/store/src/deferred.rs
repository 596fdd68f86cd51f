//! Outcomes that come later: work that its waiter or a thread of the store does (the first to come), and promises.
//!
//! ```text
//! deferred(work) → Task → first poll() → queue of a thread: run()  ─┐
//!               └→ Completion → wait(): run() here                ─┴→ outcome → waiting thread or waker
//! promised()     → Promise → fulfil()               ───→ outcome → waiting thread or waker
//! ```
//!
//! Invariants:
//! 1. The work is done once at most, and not at all if its caller stops wanting the outcome before it is begun.
//! 2. Every waiter is answered: by a panic of the work, and by a promise that is dropped, with an error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

use crate::{Applied, Completion, Error, Later};

/// What gives the outcome.
type Work<T> = Box<dyn FnOnce() -> Applied<T> + Send>;

enum State<T> {
    /// Not begun. A promise is begun from the first.
    Todo(Work<T>, Option<Waker>),
    Underway(Option<Waker>),
    Done(Applied<T>),
    /// Taken, or its caller does not want it any more.
    Over,
}

struct Cell<T> {
    /// Whose work it is, for the message after a panic.
    who: &'static str,
    state: Mutex<State<T>>,
    done: Condvar,
}

/// Work to be done by any thread.
pub trait Task: Send + Sync {
    /// Does the work, unless it is done, under way, or not wanted any more.
    fn run(&self);

    /// Whether there is nothing left to be begun.
    fn is_begun(&self) -> bool;
}

/// Threads that run tasks.
pub trait Runner: Send + Sync {
    /// Has a thread run the task, soon.
    fn give(&self, task: Arc<dyn Task>);
}

/// Work whose outcome is waited for as a completion. A thread that waits for it does it; `runner` is given it when the
/// completion is polled first, so that a caller that waits at once wakes no other thread. `who` names it if it panics.
pub fn deferred<T: Send + 'static>(
    who: &'static str,
    runner: Option<Arc<dyn Runner>>,
    work: impl FnOnce() -> Applied<T> + Send + 'static,
) -> (Arc<dyn Task>, Completion<T>) {
    let state = Mutex::new(State::Todo(Box::new(work), None));
    let cell = Arc::new(Cell { who, state, done: Condvar::new() });
    (Arc::clone(&cell) as Arc<dyn Task>, Completion::later(Box::new(Waiting { cell, runner })))
}

/// A promise, and the completion that waits for it.
pub fn promised<T: Send + 'static>(who: &'static str) -> (Promise<T>, Completion<T>) {
    let cell = Arc::new(Cell { who, state: Mutex::new(State::Underway(None)), done: Condvar::new() });
    (Promise(Arc::clone(&cell)), Completion::later(Box::new(Waiting { cell, runner: None })))
}

/// An outcome that its holder has promised. Dropping it unfulfilled answers with [`Error::Stopped`].
pub struct Promise<T>(Arc<Cell<T>>);

impl<T> Promise<T> {
    /// Gives the outcome.
    pub fn fulfil(self, outcome: Applied<T>) {
        self.0.finish(outcome);
    }

    /// Whether a caller still waits, or will.
    pub fn is_wanted(&self) -> bool {
        !matches!(*self.0.state.lock(), State::Over)
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if matches!(*self.0.state.lock(), State::Underway(_)) {
            let cause = format!("{} ended without an outcome", self.0.who).into();
            self.0.finish((Err(Error::Stopped { cause }), None));
        }
    }
}

impl<T> Cell<T> {
    fn finish(&self, outcome: Applied<T>) {
        let mut state = self.state.lock();
        let waker = match &mut *state {
            State::Underway(waker) => waker.take(),
            // No caller wants it; what it holds is dropped without the lock.
            _ => return,
        };
        *state = State::Done(outcome);
        drop(state);
        self.done.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn do_it(&self) {
        let mut state = self.state.lock();
        if !matches!(*state, State::Todo(..)) {
            return;
        }
        let State::Todo(work, waker) = std::mem::replace(&mut *state, State::Over) else { return };
        *state = State::Underway(waker);
        drop(state);
        let outcome = catch_unwind(AssertUnwindSafe(work));
        self.finish(outcome.unwrap_or_else(|panic| (Err(Error::panicked(self.who, &*panic)), None)));
    }
}

impl<T: Send> Task for Cell<T> {
    fn run(&self) {
        self.do_it();
    }

    fn is_begun(&self) -> bool {
        !matches!(*self.state.lock(), State::Todo(..))
    }
}

struct Waiting<T> {
    cell: Arc<Cell<T>>,
    /// The threads that are given the work once a task polls for it.
    runner: Option<Arc<dyn Runner>>,
}

impl<T: Send + 'static> Later<T> for Waiting<T> {
    fn wait(self: Box<Self>) -> Applied<T> {
        self.cell.do_it();
        let mut state = self.cell.state.lock();
        while matches!(*state, State::Underway(_)) {
            self.cell.done.wait(&mut state);
        }
        match std::mem::replace(&mut *state, State::Over) {
            State::Done(outcome) => outcome,
            _ => (Err(Error::Closed), None),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Applied<T>> {
        let mut state = self.cell.state.lock();
        match &mut *state {
            State::Todo(_, waker) | State::Underway(waker) => {
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                drop(state);
                if let Some(runner) = self.runner.take() {
                    runner.give(Arc::clone(&self.cell) as Arc<dyn Task>);
                }
                Poll::Pending
            }
            _ => Poll::Ready(match std::mem::replace(&mut *state, State::Over) {
                State::Done(outcome) => outcome,
                _ => (Err(Error::Closed), None),
            }),
        }
    }
}

impl<T> Drop for Waiting<T> {
    fn drop(&mut self) {
        // What is dropped may be large, or the last of a store: without the lock.
        let dropped = std::mem::replace(&mut *self.cell.state.lock(), State::Over);
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::{Barrier, DurableMark};

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn work_is_done_once_by_its_waiter_or_by_a_thread() {
        let count = Arc::new(AtomicU32::new(0));
        let work = |count: &Arc<AtomicU32>| {
            let count = Arc::clone(count);
            move || (Ok(count.fetch_add(1, Ordering::SeqCst)), None)
        };
        let (task, completion) = deferred("work", None, work(&count));
        assert!(!completion.is_here());
        // The waiter does it itself.
        assert_eq!(completion.map(|value| value + 10).wait().unwrap(), 10);
        task.run();
        assert_eq!(count.load(Ordering::SeqCst), 1);
        let (task, completion) = deferred("work", None, work(&count));
        task.run();
        task.run();
        assert_eq!(completion.wait().unwrap(), 1);
        // No caller wants it.
        let (task, completion) = deferred("work", None, work(&count));
        drop(completion);
        task.run();
        assert_eq!(count.load(Ordering::SeqCst), 2);
        assert_eq!(Arc::strong_count(&count), 1, "work that no caller wants is kept");
    }

    #[test]
    fn work_is_given_to_a_runner_when_it_is_polled_for_and_only_then() {
        #[derive(Default)]
        struct Given(Mutex<Vec<Arc<dyn Task>>>);
        impl Runner for Given {
            fn give(&self, task: Arc<dyn Task>) {
                self.0.lock().push(task);
            }
        }
        let given = Arc::new(Given::default());
        let runner = || Some(Arc::clone(&given) as Arc<dyn Runner>);
        let (task, completion) = deferred("work", runner(), || (Ok(1), None));
        assert!(!task.is_begun());
        assert_eq!(completion.wait().unwrap(), 1);
        assert!(task.is_begun() && given.0.lock().is_empty());
        let (_, completion) = deferred("work", runner(), || (Ok(2), None));
        let woken = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut completion = std::pin::pin!(completion);
        for _ in 0..3 {
            assert!(completion.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        let task = given.0.lock().pop().expect("given once");
        assert!(given.0.lock().is_empty());
        task.run();
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert!(matches!(completion.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(2))));
        // Of several all are given at the first poll, so that they are done at the same time.
        let several = (0..3).map(|number| deferred("work", runner(), move || (Ok(number), None)).1).collect();
        let mut all = std::pin::pin!(Completion::all(several));
        for _ in 0..2 {
            assert!(all.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        let tasks = std::mem::take(&mut *given.0.lock());
        assert_eq!(tasks.len(), 3);
        tasks.iter().for_each(|task| task.run());
        assert!(
            matches!(all.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(found)) if found == [0, 1, 2])
        );
    }

    #[test]
    fn a_task_is_woken_when_the_outcome_is_here_and_then_waits_for_its_barrier() {
        let mark = DurableMark::new(0, Box::new(|| {}));
        let woken = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        let (promise, completion) = promised::<u32>("a promise");
        let mut completion = std::pin::pin!(completion.map(|value| value * 2));
        assert!(completion.as_mut().poll(&mut cx).is_pending());
        promise.fulfil((Ok(4), Some(Barrier::new(&mark, 7))));
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert!(completion.as_mut().poll(&mut cx).is_pending(), "its barrier is not reached");
        mark.advance(7);
        assert!(matches!(completion.as_mut().poll(&mut cx), Poll::Ready(Ok(8))));
    }

    #[test]
    fn whoever_waits_is_answered_though_the_work_panics_or_the_promise_is_dropped() {
        let (_, completion) = deferred::<u32>("reading", None, || panic!("on purpose"));
        let Err(Error::Stopped { cause }) = completion.wait() else { panic!("no error") };
        assert_eq!(&*cause, "reading panicked: on purpose");
        let (promise, completion) = promised::<u32>("a call");
        let waiter = std::thread::spawn(move || completion.wait());
        assert!(promise.is_wanted());
        drop(promise);
        assert!(matches!(waiter.join().unwrap(), Err(Error::Stopped { .. })));
        let (promise, completion) = promised::<u32>("a call");
        drop(completion);
        assert!(!promise.is_wanted());
        promise.fulfil((Ok(1), None));
    }

    #[test]
    fn several_are_all_there_or_none() {
        let (promise, late) = promised::<u32>("a call");
        let all = Completion::all(vec![Completion::ready(Ok(1)), late, Completion::ready(Ok(3))]);
        assert!(!all.is_here());
        let waiter = std::thread::spawn(move || all.wait());
        promise.fulfil((Ok(2), None));
        assert_eq!(waiter.join().unwrap().unwrap(), [1, 2, 3]);
        let all = Completion::all(vec![Completion::ready(Ok(1)), Completion::ready(Err(Error::Closed))]);
        assert!(all.is_here());
        assert!(matches!(all.wait(), Err(Error::Closed)));
    }
}

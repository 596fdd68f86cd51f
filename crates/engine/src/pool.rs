//! The reading pool: threads for reads that have to wait for the device, so that no caller has to.
//!
//! read that is not in memory → [`Pool::offer`] → a thread waits for its outcome, and reads
//!                                              → a task polls for it → [`Pool::give`] → queue → a thread reads
//!                                              → the cleaner waits for it → [`Pool::hurry`] → the same
//! a thread that reads          → [`Pool::begin_others`]: the device is told of what is offered and not begun
//! reads that will be asked for → [`Pool::hint`] → hints → a thread without a task tells the device of them
//!
//! Threads are started when they are needed, up to a number, and stay. A caller that waits for an outcome does the read
//! itself, and wakes no thread: with two processors that cost a sixth of the reads of a busy store.
//!
//! Invariants:
//! 1. What was given is run, also when the pool is closed meanwhile, and when no thread can be started. What is offered
//! and neither waited nor polled for is run when the cleaner waits for it, or the pool is closed.
//! 2. A task waits for the device only: never for room, for another task, or for a lock that is held over I/O. Those
//!    that need index pages wait for memory too: they have a pool of their own, and hold nothing before they run.
//! 3. Only threads that wait for a read, and those of the pool, tell the device of reads: that can take as long as a
//!    read, where many are under way or the device hangs.
//! 4. A task waits for one place of a hint at most: few threads are at hints, and go to tasks between two places.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use esker_store::{Runner, Task};
use parking_lot::{Condvar, Mutex};

/// Threads at most. So many reads are under way at the device at least, when so many callers read one value each; a
/// call that reads many begins them all.
pub const THREADS_MAX: usize = 16;
/// Threads at most for calls that need index pages: they may wait for memory first, and are pinned only while they run.
pub const PAGE_THREADS_MAX: usize = 8;

/// Fewer that are offered are not looked through.
const OFFERED_MIN: usize = 256;
/// The pool keeps so many offered calls to tell the device of. Of the others the device is told when they are read.
const UNTOLD_MAX: usize = 1_024;
/// A thread tells the device of so many places of other calls, or a few more, before it reads for its own.
const TOLD_AT_ONCE: usize = 128;
/// Hints are kept for so many places; more are dropped.
const HINTED_MAX: usize = 2_048;
/// Threads at most that tell the device of hints.
const TELLERS_MAX: usize = 2;

/// Tells the device of the reads of a call.
type Begin = Box<dyn FnOnce() + Send>;

/// A call that is offered, and of which the device was not told.
struct Untold {
    task: Arc<dyn Task>,
    places: usize,
    begin: Begin,
}

/// Reads that will be asked for.
struct Hint {
    places: usize,
    /// Tells the device of the next of them, if there is one.
    tell: Box<dyn FnMut() -> bool + Send>,
}

struct Gives(Arc<Pool>);

impl Runner for Gives {
    fn give(&self, task: Arc<dyn Task>) {
        self.0.give(task);
    }
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Arc<dyn Task>>,
    /// Tasks that no thread was given; the next offer drops those at the front that their waiters have begun.
    offered: VecDeque<Arc<dyn Task>>,
    /// With so many offered, all that are begun are dropped.
    offered_max: usize,
    /// Those of them that the device is to be told of.
    untold: VecDeque<Untold>,
    hints: VecDeque<Hint>,
    /// Places of those.
    hinted: usize,
    /// Threads that tell the device of hints.
    telling: usize,
    threads: Vec<JoinHandle<()>>,
    /// Threads that wait and have not been told of a task.
    idle: usize,
    closed: bool,
}

/// See the module.
pub struct Pool {
    threads_max: usize,
    queue: Mutex<Queue>,
    given: Condvar,
}

impl Pool {
    /// A pool of up to so many threads.
    pub fn new(threads_max: usize) -> Arc<Self> {
        Arc::new(Self { threads_max, queue: Mutex::default(), given: Condvar::new() })
    }

    /// What does the reads of completions that are polled for.
    pub fn runner(self: &Arc<Self>) -> Arc<dyn Runner> {
        Arc::new(Gives(Arc::clone(self)))
    }

    /// Keeps the task for [`Pool::hurry`]; its completion has others do it sooner. `begin` tells the device of its
    /// reads, so many, if another is read before.
    pub fn offer(&self, task: Arc<dyn Task>, begin: Option<(usize, Begin)>) {
        let mut queue = self.queue.lock();
        if queue.closed {
            drop(queue);
            return task.run();
        }
        let mut begun = Vec::new();
        while queue.offered.front().is_some_and(|first| first.is_begun()) {
            begun.extend(queue.offered.pop_front());
        }
        if queue.offered.len() >= queue.offered_max.max(OFFERED_MIN) {
            let all = std::mem::take(&mut queue.offered);
            let (over, left): (VecDeque<_>, VecDeque<_>) = all.into_iter().partition(|task| task.is_begun());
            begun.extend(over);
            queue.offered_max = 2 * left.len();
            queue.offered = left;
        }
        queue.offered.push_back(Arc::clone(&task));
        if let Some((places, begin)) = begin.filter(|_| queue.untold.len() < UNTOLD_MAX) {
            queue.untold.push_back(Untold { task, places, begin });
        }
        drop(queue);
        // What they hold may be the last of something large.
        drop(begun);
    }

    /// Tells the device of some that are offered and not begun: to be called before a read, by a thread that may wait
    /// for the device. `own` is called before, if there are others: that read is to be begun first.
    pub fn begin_others(&self, own: impl FnOnce()) {
        let mut places = 0;
        let mut others = Vec::new();
        let mut begun = Vec::new();
        let mut queue = self.queue.lock();
        while places < TOLD_AT_ONCE
            && let Some(untold) = queue.untold.pop_front()
        {
            if untold.task.is_begun() {
                begun.push(untold);
            } else {
                places += untold.places;
                others.push(untold);
            }
        }
        drop(queue);
        drop(begun);
        if !others.is_empty() {
            own();
        }
        for untold in others {
            (untold.begin)();
        }
    }

    /// Keeps a hint: a thread without a task calls `tell`, which tells the device of one place, until it answers that
    /// there are no more. The pool drops the hint if it keeps hints for [`HINTED_MAX`] places already.
    pub fn hint(self: &Arc<Self>, places: usize, tell: impl FnMut() -> bool + Send + 'static) {
        let mut queue = self.queue.lock();
        if queue.closed || queue.hinted >= HINTED_MAX {
            return;
        }
        queue.hinted += places;
        queue.hints.push_back(Hint { places, tell: Box::new(tell) });
        // The thread that was called for the hint before comes to this one too.
        if queue.hints.len() > 1 || queue.telling == TELLERS_MAX {
            return;
        }
        if queue.idle > 0 {
            queue.idle -= 1;
            drop(queue);
            self.given.notify_one();
        } else if queue.threads.len() < self.threads_max {
            // Without a thread it waits for one that is started for a task.
            drop(self.start(&mut queue));
        }
    }

    fn start(self: &Arc<Self>, queue: &mut Queue) -> std::io::Result<()> {
        let pool = Arc::clone(self);
        let thread = std::thread::Builder::new().name("esker-read".into()).spawn(move || pool.work())?;
        queue.threads.push(thread);
        Ok(())
    }

    /// Has threads run all that is offered.
    pub fn hurry(self: &Arc<Self>) {
        let offered = std::mem::take(&mut self.queue.lock().offered);
        for task in offered {
            if !task.is_begun() {
                self.give(task);
            }
        }
    }

    /// Has a thread run the task, soon.
    pub fn give(self: &Arc<Self>, task: Arc<dyn Task>) {
        let mut queue = self.queue.lock();
        if queue.closed {
            drop(queue);
            return task.run();
        }
        queue.tasks.push_back(task);
        if queue.idle > 0 {
            queue.idle -= 1;
            drop(queue);
            self.given.notify_one();
        } else if queue.threads.len() < self.threads_max {
            match self.start(&mut queue) {
                Ok(()) => {}
                // The threads that there are will come to it.
                Err(_) if !queue.threads.is_empty() => {}
                Err(error) => {
                    tracing::warn!(%error, "no thread can be started for reading; the caller reads");
                    let task = queue.tasks.pop_back();
                    drop(queue);
                    task.into_iter().for_each(|task| task.run());
                }
            }
        }
    }

    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(task) = queue.tasks.pop_front() {
                drop(queue);
                // What it holds may be the last of something large, and is dropped here. A waker that panics, or a
                // drop, is no reason to read no more.
                if catch_unwind(AssertUnwindSafe(move || task.run())).is_err() {
                    tracing::error!("a waker, or a drop, of a finished read panicked");
                }
                queue = self.queue.lock();
            } else if queue.closed {
                return;
            } else if queue.telling < TELLERS_MAX
                && let Some(hint) = queue.hints.pop_front()
            {
                queue.hinted -= hint.places;
                queue.telling += 1;
                drop(queue);
                // As above: what is left of a hint that panics is dropped.
                let told = catch_unwind(AssertUnwindSafe(|| self.tell(hint)));
                let rest = told.unwrap_or_else(|_| {
                    tracing::error!("telling the device of reads panicked");
                    None
                });
                queue = self.queue.lock();
                queue.telling -= 1;
                if let Some(rest) = rest.filter(|_| !queue.closed) {
                    queue.hinted += rest.places;
                    queue.hints.push_front(rest);
                }
            } else {
                queue.idle += 1;
                self.given.wait(&mut queue);
            }
        }
    }

    /// Tells the device of a hint; what is left of it where a task waits.
    fn tell(&self, mut hint: Hint) -> Option<Hint> {
        while (hint.tell)() {
            hint.places = hint.places.saturating_sub(1);
            let queue = self.queue.lock();
            if queue.closed || !queue.tasks.is_empty() {
                return Some(hint);
            }
        }
        None
    }

    /// Ends the threads when all that was given is run. What is given later is run by its giver.
    pub fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        let threads = std::mem::take(&mut queue.threads);
        let offered = std::mem::take(&mut queue.offered);
        let hints = std::mem::take(&mut queue.hints);
        drop(queue);
        drop(hints);
        self.given.notify_all();
        for task in offered {
            // As in `work`.
            let run = AssertUnwindSafe(move || {
                self.begin_others(|| {});
                task.run();
            });
            if catch_unwind(run).is_err() {
                tracing::error!("a waker of a read panicked");
            }
        }
        for thread in threads {
            // A waker that drops the store may do it on one of these threads, which cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a reading thread panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use esker_store::deferred;

    use super::*;

    #[test]
    fn everything_that_is_given_is_run_by_as_many_threads_as_there_may_be() {
        let pool = Pool::new(3);
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let all: Vec<_> = (0..60)
            .map(|number| {
                let (running, most) = (Arc::clone(&running), Arc::clone(&most));
                let (task, completion) = deferred("counting", None, move || {
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(1));
                    running.fetch_sub(1, Ordering::SeqCst);
                    (Ok(number), None)
                });
                pool.give(task);
                completion
            })
            .collect();
        pool.close();
        assert!((1..=3).contains(&most.load(Ordering::SeqCst)), "{most:?} at a time");
        for (number, completion) in all.into_iter().enumerate() {
            assert_eq!(completion.wait().unwrap(), number);
        }
        // Closed: its giver runs it.
        let (task, completion) = deferred("counting", None, || (Ok(7), None));
        pool.give(task);
        assert_eq!(completion.wait().unwrap(), 7);
    }

    #[test]
    fn what_is_offered_is_left_to_its_waiter_until_somebody_is_in_a_hurry() {
        let pool = Pool::new(1);
        let count = Arc::new(AtomicUsize::new(0));
        let offer = || {
            let count = Arc::clone(&count);
            let (task, completion) = deferred("counting", Some(pool.runner()), move || {
                count.fetch_add(1, Ordering::SeqCst);
                (Ok(()), None)
            });
            pool.offer(task, None);
            completion
        };
        let held = offer();
        for _ in 0..10 * OFFERED_MIN {
            offer().wait().unwrap();
        }
        assert_eq!(count.load(Ordering::SeqCst), 10 * OFFERED_MIN, "no caller waits for the first");
        {
            let queue = pool.queue.lock();
            assert!(queue.threads.is_empty() && queue.offered.len() <= OFFERED_MIN, "{} kept", queue.offered.len());
        }
        pool.hurry();
        while count.load(Ordering::SeqCst) == 10 * OFFERED_MIN {
            std::thread::yield_now();
        }
        held.wait().unwrap();
        // One that is left when the pool is closed is run, as is one that comes later.
        let (left, _) = (offer(), pool.close());
        let later = offer();
        assert_eq!(count.load(Ordering::SeqCst), 10 * OFFERED_MIN + 3);
        left.wait().and(later.wait()).unwrap();
    }

    #[test]
    fn a_waker_that_panics_does_not_end_the_reading() {
        struct Panics;
        impl std::task::Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("on purpose");
            }
        }
        let pool = Pool::new(1);
        let waker = std::task::Waker::from(Arc::new(Panics));
        for number in 0..3 {
            let (task, mut completion) = deferred("counting", None, move || (Ok(number), None));
            assert!(completion.poll_arrived(&mut std::task::Context::from_waker(&waker)).is_pending());
            pool.give(task);
            while completion.poll_arrived(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_pending() {
                std::thread::yield_now();
            }
            assert_eq!(completion.wait().unwrap(), number);
        }
        pool.close();
    }
}

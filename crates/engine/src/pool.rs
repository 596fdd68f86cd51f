//! The reading pool: threads for reads that have to wait for the device, so that no caller has to.
//!
//! read that is not in memory → [`Pool::offer`] → a thread waits for its outcome, and reads
//!                                              → a task polls for it → [`Pool::give`] → queue → a thread reads
//!                                              → the cleaner waits for it → [`Pool::hurry`] → the same
//! a thread that reads        → [`Pool::begin`]: the device begins all that was offered and is not begun
//! reads that will be asked for → [`Pool::hint`] → queue, unless much waits there → a thread has the device begin them
//!
//! Threads are started when they are needed, up to a number, and stay. A caller that waits for an outcome does the read
//! itself, and wakes no thread: with two processors that cost a sixth of the reads of a busy store.
//!
//! Invariants:
//! 1. What was given is run, also when the pool is closed meanwhile, and when no thread can be started. What is offered
//! and neither waited nor polled for is run when the cleaner waits for it, or the pool is closed.
//! 2. A task waits for the device only: never for room, for another task, or for a lock that is held over I/O. Those
//!    that need index pages wait for memory too: they have a pool of their own, and hold nothing before they run.
//! 3. Only threads that wait for a read, and those of the pool, ask the device for anything: telling it of a read can
//!    take as long as the read, where many are under way or the device hangs.

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
/// Of so many that are offered the device is told before they are read; of more they are read as they come.
const TOLD_MAX: usize = 1_024;

/// Has the device begin a read.
type Begin = Box<dyn FnOnce() + Send>;

/// What the device may begin ahead of reads that are not asked for yet. It is done once.
struct Hint(Mutex<Option<Begin>>);

impl Task for Hint {
    fn run(&self) {
        let begin = self.0.lock().take();
        if let Some(begin) = begin {
            begin();
        }
    }

    fn is_begun(&self) -> bool {
        self.0.lock().is_none()
    }
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
    /// What nobody was given; of what is begun by its waiter the first are dropped by the next that is offered.
    offered: VecDeque<Arc<dyn Task>>,
    /// With so many offered, all that are begun are dropped.
    offered_max: usize,
    /// What has the device begin those of them that it was not told of.
    untold: Vec<(Arc<dyn Task>, Begin)>,
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

    /// Keeps the task for [`Pool::hurry`]; its completion has others do it sooner. `begin` has the device begin its
    /// read, if another is read before.
    pub fn offer(&self, task: Arc<dyn Task>, begin: Option<Begin>) {
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
        if let Some(begin) = begin.filter(|_| queue.untold.len() < TOLD_MAX) {
            queue.untold.push((task, begin));
        }
        drop(queue);
        // What they hold may be the last of something large.
        drop(begun);
    }

    /// Has the device begin all that is offered, but for what is read already: to be called before a read, by a thread
    /// that may wait for the device.
    pub fn begin(&self) {
        let untold = std::mem::take(&mut self.queue.lock().untold);
        for (task, begin) in untold {
            if !task.is_begun() {
                begin();
            }
        }
    }

    /// Has a thread call `begin` soon, which has the device begin reads; it is dropped where as many tasks wait as there
    /// may be threads.
    pub fn hint(self: &Arc<Self>, begin: impl FnOnce() + Send + 'static) {
        if self.queue.lock().tasks.len() < self.threads_max {
            self.give(Arc::new(Hint(Mutex::new(Some(Box::new(begin))))));
        }
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
            let pool = Arc::clone(self);
            match std::thread::Builder::new().name("esker-read".into()).spawn(move || pool.work()) {
                Ok(thread) => queue.threads.push(thread),
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
                    tracing::error!("somebody who was told of a read panicked");
                }
                queue = self.queue.lock();
            } else if queue.closed {
                return;
            } else {
                queue.idle += 1;
                self.given.wait(&mut queue);
            }
        }
    }

    /// Ends the threads when all that was given is run. What is given later is run by its giver.
    pub fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        let threads = std::mem::take(&mut queue.threads);
        let offered = std::mem::take(&mut queue.offered);
        let untold = std::mem::take(&mut queue.untold);
        drop(queue);
        drop(untold);
        self.given.notify_all();
        for task in offered {
            // As in `work`.
            if catch_unwind(AssertUnwindSafe(move || task.run())).is_err() {
                tracing::error!("a waker of a read panicked");
            }
        }
        for thread in threads {
            // Whoever drops a store in a waker may do it on one of these threads, which cannot wait for itself.
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
        assert_eq!(count.load(Ordering::SeqCst), 10 * OFFERED_MIN, "nobody waits for the first");
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

//! The reading pool: threads for reads that have to wait for the device, so that no caller has to.
//!
//! read that is not in memory → [`Pool::give`] → queue → a thread → outcome → whoever waits for it
//!
//! Threads are started when they are needed, up to a number, and stay. Whoever waits for an outcome and finds its read
//! not begun does it himself, so that a thread that waits at once is not slower for the pool.
//!
//! Invariants:
//! 1. What was given is run, also when the pool is closed meanwhile, and when no thread can be started.
//! 2. A task waits for the device only: never for room, for another task, or for a lock that is held over I/O.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use esker_store::Task;
use parking_lot::{Condvar, Mutex};

/// Threads at most. So many reads are under way at the device at least, when so many callers read one value each; a call
/// that reads many begins them all.
pub const THREADS_MAX: usize = 16;

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Arc<dyn Task>>,
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
                // What it holds may be the last of something large, and is dropped here. A waker that panics, or a drop, is
                // no reason to read no more.
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
        drop(queue);
        self.given.notify_all();
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
                let (task, completion) = deferred("counting", move || {
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
        let (task, completion) = deferred("counting", || (Ok(7), None));
        pool.give(task);
        assert_eq!(completion.wait().unwrap(), 7);
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
            let (task, mut completion) = deferred("counting", move || (Ok(number), None));
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

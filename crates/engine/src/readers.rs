//! Readers: who may still be reading places that the index no longer has, so that a segment is not used again too
//! early.
//!
//! [`Readers::pin`] before looking at the index … value in hand → drop; the cleaner: [`Readers::wait`]
//!
//! There are two counts. Readers enter the one that is current; a wait makes the other one current, and returns when
//! the former is empty: a reader that comes later looks at the index as it is now.
//!
//! Invariants:
//! 1. [`Readers::wait`] returns only after all readers that were pinned when it was called have finished. One waits at
//!    a time.
//! 2. No pinned reader waits for room in the log: the cleaner makes that room.

use std::sync::atomic::{AtomicUsize, Ordering, fence};

const SHARDS: usize = 16;

#[repr(align(64))]
#[derive(Default)]
struct Shard([AtomicUsize; 2]);

/// See the module.
#[derive(Default)]
pub struct Readers {
    current: AtomicUsize,
    shards: [Shard; SHARDS],
}

/// While this lives no segment that was in use when it was made is used again.
pub struct Pinned<'a> {
    readers: &'a Readers,
    shard: usize,
    count: usize,
}

impl Pinned<'_> {
    /// Goes on without the borrow: `of` has the readers that this was pinned by.
    pub fn keep<R: AsRef<Readers>>(self, of: R) -> StillPinned<R> {
        debug_assert!(std::ptr::eq(of.as_ref(), self.readers), "pinned by other readers");
        let kept = StillPinned { of, shard: self.shard, count: self.count };
        std::mem::forget(self);
        kept
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.readers.leave(self.shard, self.count);
    }
}

/// As [`Pinned`], for work that goes on when the call has returned.
pub struct StillPinned<R: AsRef<Readers>> {
    of: R,
    shard: usize,
    count: usize,
}

impl<R: AsRef<Readers>> Drop for StillPinned<R> {
    fn drop(&mut self) {
        self.of.as_ref().leave(self.shard, self.count);
    }
}

fn shard_of_thread() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: usize = THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    SHARD.with(|shard| *shard)
}

impl Readers {
    /// Counts the caller as a reader.
    pub fn pin(&self) -> Pinned<'_> {
        let number = shard_of_thread();
        let shard = &self.shards[number].0;
        loop {
            let current = self.current.load(Ordering::Relaxed);
            shard[current].fetch_add(1, Ordering::SeqCst);
            // A wait that began meanwhile may not have seen this.
            fence(Ordering::SeqCst);
            if self.current.load(Ordering::SeqCst) == current {
                return Pinned { readers: self, shard: number, count: current };
            }
            shard[current].fetch_sub(1, Ordering::Release);
        }
    }

    fn leave(&self, shard: usize, count: usize) {
        self.shards[shard % SHARDS].0[count & 1].fetch_sub(1, Ordering::Release);
    }

    /// Waits until all have finished that may have looked at the index before now. `hurry` begins the reads that no
    /// caller waits for yet.
    pub fn wait(&self, hurry: impl Fn()) {
        let former = self.current.load(Ordering::Relaxed);
        self.current.store(1 - former, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut rounds = 0u32;
        while self.shards.iter().any(|shard| shard.0[former].load(Ordering::Acquire) != 0) {
            rounds += 1;
            if rounds < 100 {
                std::thread::yield_now();
            } else {
                hurry();
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    use super::*;

    #[test]
    fn a_wait_ends_only_when_those_before_it_have_finished() {
        let readers = Arc::new(Readers::default());
        let (life, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (readers, life, stop) = (Arc::clone(&readers), Arc::clone(&life), Arc::clone(&stop));
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let _pinned = readers.pin();
                        let began = life.load(Ordering::SeqCst);
                        std::thread::yield_now();
                        // One change of life may be under way, but it cannot have ended and another begun.
                        assert!(life.load(Ordering::SeqCst) <= began + 1);
                    }
                })
            })
            .collect();
        for _ in 0..2_000 {
            readers.wait(|| {});
            life.fetch_add(1, Ordering::SeqCst);
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

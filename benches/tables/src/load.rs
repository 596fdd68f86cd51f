//! The load: threads that write and read, and what they reached.
//!
//! threads wait at a line → start → each claims keys in runs from one counter → last one home stops the clock
//!
//! Invariants:
//! 1. Every value read is as long as it was written and begins with its key; anything else ends the run.
//! 2. All peers get the same keys and values from the same seed.
//! 3. Keys are claimed in runs, so that the counter is no bottleneck; what was claimed is written.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::keys::Keys;
use crate::peer::{Peer, Session};

/// What a phase reached.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    /// Calls that were answered.
    pub ops: u64,
    /// From the start to the last thread's end.
    pub elapsed: Duration,
}

impl Reached {
    /// Calls per second.
    pub fn ops_per_s(&self) -> f64 {
        self.ops as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// One data set and how it is used.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The keys.
    pub keys: Keys,
    /// How many.
    pub count: u32,
    /// Size of every value in bytes, at least 4.
    pub value_bytes: usize,
    /// Seed of values and of the readers' choice.
    pub seed: u64,
}

impl Load {
    /// Writes keys from `threads` threads until all are written or `time_max` is over. Says also how many keys, from
    /// the first on, are there now.
    pub fn write(&self, peer: &dyn Peer, threads: u32, run: u32, time_max: Duration) -> Result<(Reached, u32)> {
        let next = AtomicU32::new(0);
        let reached = together(peer, threads, |thread, session, start| {
            let mut value = self.filler(thread);
            let mut ops = 0;
            loop {
                let first = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |first| {
                    (first < self.count).then(|| self.count.min(first.saturating_add(run)))
                });
                let Ok(first) = first else { return Ok(ops) };
                for index in first..self.count.min(first.saturating_add(run)) {
                    let key = self.keys.key(index);
                    value[..4].copy_from_slice(&key.to_le_bytes());
                    session.put(key, &value)?;
                    ops += 1;
                }
                if start.elapsed() > time_max {
                    return Ok(ops);
                }
            }
        })?;
        Ok((reached, next.into_inner()))
    }

    /// Reads keys at random among the first `written` until `time` is over.
    pub fn read(&self, peer: &dyn Peer, threads: u32, written: u32, time: Duration) -> Result<Reached> {
        ensure!(written > 0, "nothing was written");
        together(peer, threads, |thread, session, start| {
            let mut choice = fastrand::Rng::with_seed(self.seed ^ u64::from(thread + 1) << 32);
            let mut buffer = vec![0; self.value_bytes];
            let mut ops = 0;
            while start.elapsed() < time {
                for _ in 0..16 {
                    self.read_one(session, choice.u32(..written), &mut buffer)?;
                    ops += 1;
                }
            }
            Ok(ops)
        })
    }

    /// Reads the first `written` keys once, or as many as `time_max` allows: warms caches and proves the data.
    pub fn read_all(&self, peer: &dyn Peer, threads: u32, written: u32, time_max: Duration) -> Result<Reached> {
        let next = AtomicU32::new(0);
        together(peer, threads, |_, session, start| {
            let mut buffer = vec![0; self.value_bytes];
            let mut ops = 0;
            while start.elapsed() < time_max {
                let first = next.fetch_add(64, Ordering::Relaxed);
                if first >= written {
                    break;
                }
                for index in first..written.min(first + 64) {
                    self.read_one(session, index, &mut buffer)?;
                    ops += 1;
                }
            }
            Ok(ops)
        })
    }

    fn read_one(&self, session: &mut dyn Session, index: u32, buffer: &mut [u8]) -> Result<()> {
        let key = self.keys.key(index);
        let mut right = false;
        let found = session.get(key, buffer, &mut |value| {
            right = value.len() == self.value_bytes && value[..4] == key.to_le_bytes();
        })?;
        ensure!(found, "key {key} was written and is not there");
        ensure!(right, "key {key} has another value than was written");
        Ok(())
    }

    /// A value that does not compress.
    fn filler(&self, thread: u32) -> Vec<u8> {
        let mut rng = fastrand::Rng::with_seed(self.seed ^ u64::from(thread));
        let mut value = vec![0; self.value_bytes];
        rng.fill(&mut value);
        value
    }
}

/// Runs `work` on several threads, each with a session, started together; it returns the number of its calls.
fn together(
    peer: &dyn Peer,
    threads: u32,
    work: impl Fn(u32, &mut dyn Session, Instant) -> Result<u64> + Sync,
) -> Result<Reached> {
    let line = Barrier::new(threads as usize + 1);
    let (line, work) = (&line, &work);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || -> Result<(u64, Instant)> {
                    let session = peer.session();
                    line.wait();
                    let start = Instant::now();
                    let ops = work(thread, &mut *session?, start)?;
                    Ok((ops, Instant::now()))
                })
            })
            .collect();
        line.wait();
        let start = Instant::now();
        let (mut ops, mut end) = (0, start);
        for thread in threads {
            match thread.join() {
                Ok(done) => {
                    let (thread_ops, thread_end) = done?;
                    ops += thread_ops;
                    end = end.max(thread_end);
                }
                Err(_) => bail!("a thread of the load panicked"),
            }
        }
        Ok(Reached { ops, elapsed: end - start })
    })
}

//! Drives one store through loading, overwriting and checking.
//!
//! each thread owns every n-th key → loads them → overwrites one at random, again and again → all is read back
//!
//! Invariants:
//! 1. A key has one writer, which knows its last version: what is read back has to be exactly that.
//! 2. A value that the store refuses for want of room is offered again; the time of all attempts is its latency.
//! 3. Latencies are counted in the second in which the call ends.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;

use crate::peer::{Peer, Session};

/// Between two attempts to write what was refused.
const RETRY: Duration = Duration::from_millis(2);

/// What is written.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of keys.
    pub keys: u32,
    /// Size of every value in bytes, at least 16.
    pub value_bytes: usize,
    /// Writing threads.
    pub threads: u32,
    /// Seed of keys and values.
    pub seed: u64,
    /// A write that is refused for so long ends the run.
    pub refused_max: Duration,
}

/// What the threads tell while they run.
pub struct Progress {
    /// Calls that were answered.
    pub ops: AtomicU64,
    /// Attempts that were refused because the device is full.
    pub refused: AtomicU64,
    /// Latencies in nanoseconds since the last look, one per thread.
    latencies: Vec<std::sync::Mutex<Histogram<u64>>>,
    stop: AtomicBool,
    /// A thread was refused for too long.
    gave_up: AtomicBool,
}

/// How a phase ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As planned.
    Done,
    /// The store took nothing any more.
    Full,
}

/// One store under load.
pub struct Drive<'a> {
    peer: &'a dyn Peer,
    shape: Shape,
    /// Per thread, the version of each of its keys.
    versions: Vec<Vec<u32>>,
}

fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).context("histogram")
}

impl Progress {
    fn new(threads: u32) -> Result<Self> {
        let latencies = (0..threads).map(|_| histogram().map(std::sync::Mutex::new)).collect::<Result<_>>()?;
        let (stop, gave_up) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { ops: AtomicU64::new(0), refused: AtomicU64::new(0), latencies, stop, gave_up })
    }

    /// Latencies since the last call.
    pub fn take_latencies(&self) -> Result<Histogram<u64>> {
        let mut all = histogram()?;
        for one in &self.latencies {
            let mut one = one.lock().expect("no thread panics while it counts");
            all.add(&*one).context("histogram")?;
            one.reset();
        }
        Ok(all)
    }
}

impl<'a> Drive<'a> {
    /// Nothing is written yet.
    pub fn new(peer: &'a dyn Peer, shape: Shape) -> Self {
        let count = |thread: u32| (shape.keys - thread).div_ceil(shape.threads) as usize;
        Self { peer, shape, versions: (0..shape.threads).map(|thread| vec![0; count(thread)]).collect() }
    }

    /// Writes every key once, in ascending order. `watch` is called from this thread until all is written.
    pub fn load(&mut self, watch: impl FnMut(&Progress, Duration) -> Result<bool>) -> Result<End> {
        self.phase(watch, |_, versions, put| {
            for (own, version) in versions.iter_mut().enumerate() {
                if !put(own, 1)? {
                    break;
                }
                *version = 1;
            }
            Ok(())
        })
    }

    /// Overwrites keys at random until `watch`, which is called from this thread every few milliseconds, says false.
    pub fn overwrite(&mut self, watch: impl FnMut(&Progress, Duration) -> Result<bool>) -> Result<End> {
        let seed = self.shape.seed;
        self.phase(watch, |thread, versions, put| {
            let mut choice = fastrand::Rng::with_seed(seed ^ u64::from(thread + 1) << 32);
            loop {
                let own = choice.usize(..versions.len());
                if !put(own, versions[own] + 1)? {
                    return Ok(());
                }
                versions[own] += 1;
            }
        })
    }

    /// Runs `work` on all threads. Its `put` takes a thread's n-th key and a version, and says false when it wrote
    /// nothing and the thread has to end.
    fn phase(
        &mut self,
        mut watch: impl FnMut(&Progress, Duration) -> Result<bool>,
        work: impl Fn(u32, &mut [u32], &mut dyn FnMut(usize, u32) -> Result<bool>) -> Result<()> + Sync,
    ) -> Result<End> {
        let (peer, shape) = (self.peer, self.shape);
        let progress = Progress::new(shape.threads)?;
        let line = Barrier::new(shape.threads as usize + 1);
        let (shared, line, work) = (&progress, &line, &work);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..shape.threads)
                .zip(&mut self.versions)
                .map(|(thread, versions)| {
                    scope.spawn(move || -> Result<()> {
                        let session = peer.session();
                        line.wait();
                        let mut session = session?;
                        let mut writer = Writer::new(shape, thread, &mut *session, shared);
                        work(thread, versions, &mut |own, version| writer.put(own, version))
                    })
                })
                .collect();
            line.wait();
            let start = Instant::now();
            let mut watched = Ok(true);
            let over = || shared.gave_up.load(Ordering::Relaxed) || threads.iter().all(|thread| thread.is_finished());
            while matches!(watched, Ok(true)) && !over() {
                std::thread::sleep(Duration::from_millis(2));
                watched = watch(shared, start.elapsed());
            }
            shared.stop.store(true, Ordering::Relaxed);
            for thread in threads {
                match thread.join() {
                    Ok(done) => done?,
                    Err(_) => bail!("a thread of the load panicked"),
                }
            }
            watched.map(|_| if shared.gave_up.load(Ordering::Relaxed) { End::Full } else { End::Done })
        })
    }

    /// Reads keys at random until `time` is over or as many were read as there are; every one has to be what was
    /// written last. Says how many were read.
    pub fn check(&self, time: Duration) -> Result<u64> {
        let shape = self.shape;
        let each = self.versions.iter().map(Vec::len).max().unwrap_or(0) as u64;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..shape.threads)
                .zip(&self.versions)
                .map(|(thread, versions)| {
                    scope.spawn(move || -> Result<u64> {
                        let mut session = self.peer.session()?;
                        let mut choice = fastrand::Rng::with_seed(shape.seed ^ u64::from(thread + 77) << 32);
                        let mut buffer = vec![0; shape.value_bytes];
                        let start = Instant::now();
                        let mut read = 0;
                        while read < each && start.elapsed() < time {
                            let own = choice.usize(..versions.len());
                            if versions[own] != 0 {
                                check_one(
                                    &mut *session,
                                    shape,
                                    key_of(shape, thread, own),
                                    versions[own],
                                    &mut buffer,
                                )?;
                            }
                            read += 1;
                        }
                        Ok(read)
                    })
                })
                .collect();
            let mut read = 0;
            for thread in threads {
                read += thread.join().map_err(|_| anyhow::anyhow!("a reading thread panicked"))??;
            }
            Ok(read)
        })
    }
}

fn key_of(shape: Shape, thread: u32, own: usize) -> u32 {
    own as u32 * shape.threads + thread
}

/// A value names its key and version at both ends.
fn stamp(value: &mut [u8], key: u32, version: u32) {
    let stamp = (u64::from(key) << 32 | u64::from(version)).to_le_bytes();
    value[..8].copy_from_slice(&stamp);
    let tail = value.len() - 8;
    value[tail..].copy_from_slice(&stamp);
}

fn check_one(session: &mut dyn Session, shape: Shape, key: u32, version: u32, buffer: &mut [u8]) -> Result<()> {
    let mut found = (0, [0; 8], [0; 8]);
    let there = session.get(key, buffer, &mut |value| {
        found.0 = value.len();
        if let (Some(head), Some(tail)) = (value.first_chunk(), value.last_chunk()) {
            (found.1, found.2) = (*head, *tail);
        }
    })?;
    let stamp = (u64::from(key) << 32 | u64::from(version)).to_le_bytes();
    ensure!(there, "key {key}, version {version}, is not there");
    ensure!(
        found == (shape.value_bytes, stamp, stamp),
        "key {key}, version {version}: {} bytes of key and version {:x}, {:x} were read",
        found.0,
        u64::from_le_bytes(found.1),
        u64::from_le_bytes(found.2)
    );
    Ok(())
}

struct Writer<'a> {
    shape: Shape,
    thread: u32,
    session: &'a mut dyn Session,
    progress: &'a Progress,
    value: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn new(shape: Shape, thread: u32, session: &'a mut dyn Session, progress: &'a Progress) -> Self {
        let mut value = vec![0; shape.value_bytes];
        fastrand::Rng::with_seed(shape.seed ^ u64::from(thread)).fill(&mut value);
        Self { shape, thread, session, progress, value }
    }

    /// Writes; false, and nothing written, if the phase is over or the store full for good.
    fn put(&mut self, own: usize, version: u32) -> Result<bool> {
        let progress = self.progress;
        if progress.stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let key = key_of(self.shape, self.thread, own);
        stamp(&mut self.value, key, version);
        let start = Instant::now();
        while let Err(error) = self.session.put(key, &self.value) {
            if !is_full(&error) {
                return Err(error.context(format!("key {key}")));
            }
            progress.refused.fetch_add(1, Ordering::Relaxed);
            if start.elapsed() > self.shape.refused_max {
                progress.gave_up.store(true, Ordering::Relaxed);
                return Ok(false);
            }
            if progress.stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            std::thread::sleep(RETRY);
        }
        let nanoseconds = start.elapsed().as_nanos() as u64;
        let mut latencies = progress.latencies[self.thread as usize].lock().expect("no thread panics while counting");
        latencies.saturating_record(nanoseconds.max(1));
        drop(latencies);
        progress.ops.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }
}

/// Whether a peer says that there is no room.
fn is_full(error: &anyhow::Error) -> bool {
    let full = |error: &esker_store::Error| matches!(error, esker_store::Error::Full { .. });
    error.chain().any(|cause| {
        matches!(cause.downcast_ref::<esker_kv::Error>(), Some(esker_kv::Error::Store(store)) if full(store))
            || cause.downcast_ref::<esker_store::Error>().is_some_and(full)
    })
}

//! The device as the engine uses it: every call timed, slow ones logged, failed reads tried once more.
//!
//! engine → `Watched` → device
//!
//! Invariants:
//! 1. Writes and syncs are never repeated: what a failed one covered is in doubt. Only reads are.
//! 2. Watching costs two looks at the clock per call, and takes no lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use esker_device::{Device, Error, Geometry, Result};

use crate::stages::Times;

/// A device with its figures.
pub struct Watched {
    device: Arc<dyn Device>,
    slow: Duration,
    /// Calls that took longer than `Options::slow_io`.
    pub slow_calls: AtomicU64,
    /// Reads that failed and were tried again.
    pub read_retries: AtomicU64,
    /// Times of reads.
    pub reads: Times,
    /// Times of writes.
    pub writes: Times,
    /// Times of syncs.
    pub syncs: Times,
}

impl Watched {
    /// Watches `device`; calls that take longer than `slow` are logged.
    pub fn new(device: Arc<dyn Device>, slow: Duration) -> Self {
        Self {
            device,
            slow,
            slow_calls: AtomicU64::new(0),
            read_retries: AtomicU64::new(0),
            reads: Times::default(),
            writes: Times::default(),
            syncs: Times::default(),
        }
    }

    fn timed<T>(
        &self,
        stage: &str,
        times: Option<&Times>,
        offset: u64,
        len: u64,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let began = Instant::now();
        let answer = call();
        let elapsed = began.elapsed();
        if let Some(times) = times {
            times.add(elapsed);
        }
        if elapsed > self.slow {
            self.slow_calls.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(stage, offset, len, elapsed_ms = elapsed.as_millis() as u64, "the device is slow");
        }
        answer
    }
}

impl Device for Watched {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let len = buffer.len() as u64;
        let first = self.timed("read", Some(&self.reads), offset, len, || self.device.read(offset, buffer));
        let Err(error @ Error::Io { .. }) = first else { return first };
        self.read_retries.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%error, offset, len, "a read failed and is tried once more");
        self.timed("read", Some(&self.reads), offset, len, || self.device.read(offset, buffer))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let write = || self.device.write(offset, data);
        self.timed("write", Some(&self.writes), offset, data.len() as u64, write)
    }

    fn sync(&self) -> Result<()> {
        self.timed("sync", Some(&self.syncs), 0, 0, || self.device.sync())
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        self.timed("reserve", None, offset, len, || self.device.reserve(offset, len))
    }

    fn prefill(&self, offset: u64, len: u64) -> Result<()> {
        self.timed("fill ahead", None, offset, len, || self.device.prefill(offset, len))
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.device.will_read(offset, len);
    }

    fn refresh_len(&self) -> Result<u64> {
        self.device.refresh_len()
    }

    fn name(&self) -> String {
        self.device.name()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.timed("discard", None, offset, len, || self.device.discard(offset, len))
    }
}

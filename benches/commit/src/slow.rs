//! A file whose syncs take a chosen time.
//!
//! Writes go to the file, past the page cache as ever. A sync sleeps in place of the file's own, so that it takes what
//! it is told to and no more. What is written is never looked at again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use esker_device::{Device, FileDevice, Geometry, Result};
use parking_lot::Mutex;

use crate::cell::Disk;

/// The file.
pub struct SlowDevice {
    file: FileDevice,
    disk: Disk,
    /// When the last sync began, where syncs are limited.
    began: Mutex<Option<Instant>>,
    syncs: AtomicU64,
    sync_ns: AtomicU64,
}

impl SlowDevice {
    /// `file` with the syncs of `disk`.
    pub fn new(file: FileDevice, disk: Disk) -> Self {
        Self { file, disk, began: Mutex::default(), syncs: AtomicU64::new(0), sync_ns: AtomicU64::new(0) }
    }

    /// Number of syncs so far.
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Mean time that a sync took, in microseconds.
    pub fn mean_sync_us(&self) -> f64 {
        self.sync_ns.load(Ordering::Relaxed) as f64 / 1e3 / self.syncs().max(1) as f64
    }
}

/// Sleeps until `end`, to within the kernel's timer slack of the thread.
pub fn sleep_until(end: Instant) {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left);
    }
}

impl Device for SlowDevice {
    fn geometry(&self) -> Geometry {
        self.file.geometry()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.file.read(offset, buffer)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.file.write(offset, data)
    }

    fn sync(&self) -> Result<()> {
        let now = Instant::now();
        match self.disk {
            Disk::Takes(us) => sleep_until(now + Duration::from_micros(us)),
            Disk::Limited { per_second, takes_us } => {
                let mut began = self.began.lock();
                let apart = Duration::from_micros(1_000_000 / per_second);
                let begin = began.map_or(now, |last| now.max(last + apart));
                *began = Some(begin);
                drop(began);
                sleep_until(begin + Duration::from_micros(takes_us));
            }
            Disk::Own => self.file.sync()?,
        }
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_ns.fetch_add(now.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        self.file.reserve(offset, len)
    }

    // `prefill` does nothing: it helps the file's own syncs, and its writes would be in the way of the measurement.

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.file.discard(offset, len)
    }

    fn name(&self) -> String {
        self.file.name()
    }
}

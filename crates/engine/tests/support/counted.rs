//! A device that counts what is read from it, and long writes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use esker_device::{Device, Geometry, MemoryDevice};

/// The device, how often it was read, and how often written more than a block at a time; of those writes so many that a
/// file would not take past the page cache. And what was read past it: bytes, and those of the longest of these reads
/// that a file would do so.
#[allow(dead_code, reason = "not every suite that uses this file looks at all of them")]
pub struct Counted {
    pub device: MemoryDevice,
    pub reads: AtomicU64,
    pub long: AtomicU64,
    pub unaligned: AtomicU64,
    pub medium: AtomicU64,
    pub medium_longest: AtomicU64,
    /// What is read past the cache has a flipped bit.
    pub medium_rots: AtomicBool,
}

impl Counted {
    pub fn new(device: MemoryDevice) -> Self {
        let [reads, long, unaligned, medium, medium_longest] = [const { AtomicU64::new(0) }; 5];
        Self { device, reads, long, unaligned, medium, medium_longest, medium_rots: AtomicBool::new(false) }
    }
}

impl Device for Counted {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> esker_device::Result<()> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.device.read(offset, buffer)
    }
    fn read_medium(&self, offset: u64, buffer: &mut [u8]) -> esker_device::Result<()> {
        let (len, block) = (buffer.len() as u64, u64::from(self.geometry().block_bytes));
        if [offset, len, buffer.as_ptr() as u64].iter().all(|number| number.is_multiple_of(block)) {
            self.medium.fetch_add(len, Ordering::SeqCst);
            self.medium_longest.fetch_max(len, Ordering::SeqCst);
        }
        self.device.read(offset, buffer)?;
        if self.medium_rots.load(Ordering::SeqCst) {
            let middle = buffer.len() / 2;
            buffer[middle] ^= 1;
        }
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> esker_device::Result<()> {
        let block = self.geometry().block_bytes as usize;
        if data.len() > block {
            self.long.fetch_add(1, Ordering::SeqCst);
            let is_aligned = (data.as_ptr() as usize).is_multiple_of(block) && data.len().is_multiple_of(block);
            self.unaligned.fetch_add(u64::from(!is_aligned), Ordering::SeqCst);
        }
        self.device.write(offset, data)
    }
    fn sync(&self) -> esker_device::Result<()> {
        self.device.sync()
    }
    fn reserve(&self, offset: u64, len: u64) -> esker_device::Result<()> {
        self.device.reserve(offset, len)
    }
    fn discard(&self, offset: u64, len: u64) -> esker_device::Result<()> {
        self.device.discard(offset, len)
    }
    fn name(&self) -> String {
        self.device.name()
    }
}

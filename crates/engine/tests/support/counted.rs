//! A device that counts what is read from it.

use std::sync::atomic::{AtomicU64, Ordering};

use esker_device::{Device, Geometry, MemoryDevice};

/// The device, and how often it was read.
pub struct Counted {
    pub device: MemoryDevice,
    pub reads: AtomicU64,
}

impl Device for Counted {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> esker_device::Result<()> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.device.read(offset, buffer)
    }
    fn write(&self, offset: u64, data: &[u8]) -> esker_device::Result<()> {
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

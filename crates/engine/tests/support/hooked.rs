//! A memory device that asks a test before each call, which may wait, count, or say that the call fails.

use std::ops::Range;

use esker_device::{Device, Geometry, MemoryDevice, Result};

/// What is about to be done, and to which bytes.
#[allow(dead_code, reason = "not every test that uses this file looks at every call")]
pub enum Call {
    Read(Range<u64>),
    Write(Range<u64>),
    Prefill(Range<u64>),
    Sync,
    Other,
}

/// The device; `before` is asked before each call.
pub struct Hooked<F> {
    pub device: MemoryDevice,
    pub before: F,
}

impl<F: Fn(Call) -> Result<()> + Send + Sync> Device for Hooked<F> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        (self.before)(Call::Read(offset..offset + buffer.len() as u64))?;
        self.device.read(offset, buffer)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        (self.before)(Call::Write(offset..offset + data.len() as u64))?;
        self.device.write(offset, data)
    }

    fn sync(&self) -> Result<()> {
        (self.before)(Call::Sync)?;
        self.device.sync()
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        (self.before)(Call::Other)?;
        self.device.reserve(offset, len)
    }

    /// Zeros, whatever stood there: a file would leave alone what was written before.
    fn prefill(&self, offset: u64, len: u64) -> Result<()> {
        (self.before)(Call::Prefill(offset..offset + len))?;
        self.device.write(offset, &vec![0; len as usize])
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        (self.before)(Call::Other)?;
        self.device.discard(offset, len)
    }

    fn name(&self) -> String {
        "hooked".into()
    }
}

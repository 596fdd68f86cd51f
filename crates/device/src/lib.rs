//! Bytes at offsets and a barrier: what the engine needs of a disk, and no more.
//!
//! engine → [`Device::write`] … [`Device::sync`] → stable storage
//!
//! Invariants:
//! 1. What was written before a [`Device::sync`] that returned `Ok` survives power loss. Before that, any part of
//!    it, at the grain of a sector, may or may not be there.
//! 2. A failed sync is never retried by the device; what it covered is in doubt for good.
//! 3. A zoned device refuses every write that is not at its zone's write pointer.

#![deny(unsafe_code)]

mod allocator;
mod blocks;
mod error;
mod file;
mod memory;
mod places;
mod slow;
mod together;

pub use allocator::{give_freed_memory_back, give_kept_memory_back};
pub use blocks::{BlockPool, Blocks};
pub use error::{Error, Result};
pub use file::{FileDevice, OpenMode};
pub use memory::MemoryDevice;
pub use slow::{Pace, SlowDevice};

/// The shape of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Writes start at and are multiples of this, a power of two, in bytes (4,096 for files).
    pub block_bytes: u32,
    /// Length of the device in bytes.
    pub len: u64,
    /// Size of a zone in bytes, where the device only takes sequential writes inside zones.
    pub zone_bytes: Option<u64>,
}

/// Where a device's bytes are to be found by now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Whereabouts {
    /// Where they were when it was opened.
    #[default]
    InPlace = 0,
    /// Its name is gone: what is written is lost when the process ends.
    Removed = 1,
    /// Another process has given its name to another file: the next process that opens the name finds that one.
    Replaced = 2,
}

/// Reads that a thread has under way together: a device asks for the next while others are on their way.
pub trait ReadStream {
    /// The next read to begin, with a number that says which it is; `None` if there is none now. The device asks again
    /// whenever one has come, and ends when none is under way and there is no next.
    fn next(&mut self) -> Option<(u64, Blocks)>;

    /// The device is about to wait.
    fn waits(&mut self) {}

    /// The device has done a read of this number; it comes next, with others that are done.
    fn arrived(&mut self, number: u64) {
        let _ = number;
    }

    /// The read of this number has come, in any order: its memory, or why it could not be read.
    fn came(&mut self, number: u64, blocks: Blocks, outcome: Result<()>);
}

/// A place to keep bytes.
pub trait Device: Send + Sync {
    /// The device's shape. It does not change while the device is open, but for the length by [`Device::refresh_len`].
    fn geometry(&self) -> Geometry;

    /// Fills `buffer` from `offset`. Any alignment. What was never written, or was discarded, reads as zeros.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] past the end; [`Error::Io`] names the offset.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// As [`Device::read`], past the operating system's cache where that can be done: what the medium holds, not what
    /// was read from it before. Only with `offset` and length in whole blocks and memory that is aligned to them.
    ///
    /// # Errors
    /// As [`Device::read`].
    fn read_medium(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.read(offset, buffer)
    }

    /// As [`Device::read`], of one value among many: where nothing tells that the place, or what follows it, is read
    /// again, the read may go past the operating system's cache. It can with `offset` and length in whole blocks and
    /// memory that is aligned to them.
    ///
    /// # Errors
    /// As [`Device::read`].
    fn read_value(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.read(offset, buffer)
    }

    /// As [`Device::read_value`] of each that `reads` gives, as many under way at the same time as the device can have.
    fn read_stream(&self, reads: &mut dyn ReadStream) {
        while let Some((number, mut blocks)) = reads.next() {
            reads.waits();
            let outcome = self.read_value(blocks.first(), blocks.whole_mut());
            reads.arrived(number);
            reads.came(number, blocks, outcome);
        }
    }

    /// As [`Device::read_value`], if that needs no wait for the medium, as for what the operating system has in its
    /// cache.
    /// False, and `buffer` holds anything, where it does, or fails, or the device cannot tell: [`Device::read_value`]
    /// says.
    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let _ = (offset, buffer);
        false
    }

    /// Whether the device's name still leads to it.
    fn whereabouts(&self) -> Whereabouts {
        Whereabouts::InPlace
    }

    /// Writes `data` at `offset`. Both are multiples of `geometry().block_bytes`. Durable only after the next
    /// [`Device::sync`] that begins after this call has returned.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Unaligned`]; [`Error::NotSequential`] on a zoned device;
    /// [`Error::NoSpace`] when the file system under a file is full; [`Error::Io`] names the offset.
    fn write(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// Makes everything written so far durable.
    ///
    /// # Errors
    /// [`Error::Io`]: what was not yet durable is in doubt.
    fn sync(&self) -> Result<()>;

    /// Makes sure that `len` bytes from `offset` can be written without running out of space.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; nothing has changed then.
    fn reserve(&self, offset: u64, len: u64) -> Result<()>;

    /// Touches space that [`Device::reserve`] gave, so that the syncs of later writes there need not change what
    /// the file system knows of the file. May take long; must not be used on space that holds anything. Does
    /// nothing where it would not help, as on space that was written before.
    ///
    /// # Errors
    /// As [`Device::write`].
    fn prefill(&self, offset: u64, len: u64) -> Result<()> {
        // Most devices gain nothing.
        let _ = (offset, len);
        Ok(())
    }

    /// All of these bytes will soon be read: a device that can begins with it now. The call seldom waits, but it may
    /// take as long as a read: where many are under way, or the device hangs. No promise; what is out of range or fails
    /// is told by the read.
    fn will_read(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// Gives up the content of `len` bytes from `offset` (multiples of the block, or whole zones on a zoned
    /// device, whose write pointers go back to their starts). They read as zeros, or as before after a power cut.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Unaligned`], [`Error::Io`]; [`Error::NoSpace`] where a hole takes space itself.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;

    /// Looks how long the device is by now: where it has become longer, [`Device::geometry`] tells the new length from
    /// then on. Returns the length in bytes, in whole blocks. A device that has become shorter keeps its length here:
    /// what is past its end fails when it is used.
    ///
    /// # Errors
    /// [`Error::Io`]: the length could not be found out, and stays what it was.
    fn refresh_len(&self) -> Result<u64> {
        // Most devices stay as they are.
        Ok(self.geometry().len)
    }

    /// What the device is called in messages: a path, or `memory`.
    fn name(&self) -> String;
}

impl<D: Device + ?Sized> Device for std::sync::Arc<D> {
    fn geometry(&self) -> Geometry {
        (**self).geometry()
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        (**self).read(offset, buffer)
    }
    fn read_medium(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        (**self).read_medium(offset, buffer)
    }
    fn read_value(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        (**self).read_value(offset, buffer)
    }
    fn read_stream(&self, reads: &mut dyn ReadStream) {
        (**self).read_stream(reads);
    }
    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> bool {
        (**self).read_now(offset, buffer)
    }
    fn whereabouts(&self) -> Whereabouts {
        (**self).whereabouts()
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        (**self).write(offset, data)
    }
    fn sync(&self) -> Result<()> {
        (**self).sync()
    }
    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        (**self).reserve(offset, len)
    }
    fn prefill(&self, offset: u64, len: u64) -> Result<()> {
        (**self).prefill(offset, len)
    }
    fn will_read(&self, offset: u64, len: u64) {
        (**self).will_read(offset, len);
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        (**self).discard(offset, len)
    }
    fn refresh_len(&self) -> Result<u64> {
        (**self).refresh_len()
    }
    fn name(&self) -> String {
        (**self).name()
    }
}

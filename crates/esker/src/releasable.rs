//! A device that can be let go while a caller still holds the engine above it.
//!
//! [`Store::close`](crate::Store::close) → [`Releasable::release`] → its lock is gone
//!                                       → no stream of reads holds the file → it is closed
//!
//! Invariants:
//! 1. After the release every call is an error; nothing is written to the file any more, so that the next owner of the
//!    store has it alone even if a face of the last one is still alive.
//! 2. The release waits for no caller's own work: a stream of reads holds no lock while its caller is asked or told. It
//!    is given no read after the release; those that it had been given may still be read, and are answered as reads of
//!    a closed device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_device::{Blocks, Device, Error, FileDevice, Geometry, ReadStream, Result, Whereabouts};
use parking_lot::RwLock;

/// A file or block device with an end.
pub(crate) struct Releasable {
    name: String,
    geometry: RwLock<Geometry>,
    device: RwLock<Option<Arc<FileDevice>>>,
    /// Reads under way together begin no more.
    releasing: AtomicBool,
}

/// A stream that ends when the device is let go.
struct UntilReleased<'r> {
    of: &'r Releasable,
    reads: &'r mut dyn ReadStream,
}

impl ReadStream for UntilReleased<'_> {
    fn next(&mut self) -> Option<(u64, Blocks)> {
        if self.of.releasing.load(Ordering::SeqCst) { None } else { self.reads.next() }
    }

    fn waits(&mut self) {
        self.reads.waits();
    }

    fn arrived(&mut self, number: u64) {
        self.reads.arrived(number);
    }

    fn came(&mut self, number: u64, blocks: Blocks, outcome: Result<()>) {
        // The next owner may have written there by now.
        let is_gone = self.of.releasing.load(Ordering::SeqCst);
        let outcome = if is_gone { Err(self.of.closed("read", blocks.first())) } else { outcome };
        self.reads.came(number, blocks, outcome);
    }
}

impl Releasable {
    pub fn new(device: FileDevice) -> Self {
        let (name, geometry) = (device.name(), RwLock::new(device.geometry()));
        let device = RwLock::new(Some(Arc::new(device)));
        Self { name, geometry, device, releasing: AtomicBool::new(false) }
    }

    fn closed(&self, what: &'static str, offset: u64) -> Error {
        let source = std::io::Error::other("the store is closed");
        Error::Io { name: self.name.clone(), what, offset, source }
    }

    /// Lets the device go, once the calls under way are done but for streams of reads: another may have it.
    pub fn release(&self) {
        self.releasing.store(true, Ordering::SeqCst);
        let device = self.device.write().take();
        if let Some(device) = device {
            device.unlock();
        }
    }

    fn with<T>(&self, what: &'static str, offset: u64, call: impl FnOnce(&FileDevice) -> Result<T>) -> Result<T> {
        match self.device.read().as_deref() {
            Some(device) => call(device),
            None => Err(self.closed(what, offset)),
        }
    }
}

impl Device for Releasable {
    fn geometry(&self) -> Geometry {
        *self.geometry.read()
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.with("read", offset, |device| device.read(offset, buffer))
    }
    fn read_medium(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.with("read", offset, |device| device.read_medium(offset, buffer))
    }
    fn read_value(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.with("read", offset, |device| device.read_value(offset, buffer))
    }
    fn read_stream(&self, reads: &mut dyn ReadStream) {
        let device = self.device.read().clone();
        if let Some(device) = device {
            return device.read_stream(&mut UntilReleased { of: self, reads });
        }
        while let Some((number, mut blocks)) = reads.next() {
            let outcome = self.read_value(blocks.first(), blocks.whole_mut());
            reads.arrived(number);
            reads.came(number, blocks, outcome);
        }
    }
    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> bool {
        self.device.read().as_ref().is_some_and(|device| device.read_now(offset, buffer))
    }
    fn whereabouts(&self) -> Whereabouts {
        // After the release the engine is not told where the device was.
        self.device.read().as_ref().map_or_else(Whereabouts::default, |device| device.whereabouts())
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.with("write", offset, |device| device.write(offset, data))
    }
    fn sync(&self) -> Result<()> {
        self.with("sync", 0, |device| device.sync())
    }
    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        self.with("reserve", offset, |device| device.reserve(offset, len))
    }
    fn prefill(&self, offset: u64, len: u64) -> Result<()> {
        self.with("prefill", offset, |device| device.prefill(offset, len))
    }
    fn will_read(&self, offset: u64, len: u64) {
        // One that was let go of reads nothing any more.
        let _ = self.with("read", offset, |device| {
            device.will_read(offset, len);
            Ok(())
        });
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.with("discard", offset, |device| device.discard(offset, len))
    }
    fn refresh_len(&self) -> Result<u64> {
        let len = self.with("measure", 0, |device| device.refresh_len())?;
        self.geometry.write().len = len;
        Ok(len)
    }
    fn name(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use esker_device::OpenMode;

    use super::*;

    /// What had not been handed on: the scrubber read the page cache instead of the medium, and no operator was told
    /// of a file that was removed under its server.
    #[test]
    fn everything_is_handed_on_until_it_is_let_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device");
        let device = Releasable::new(FileDevice::open(&path, OpenMode::Create { len: 1 << 20 }).unwrap());
        device.write(4096, &[7; 4096]).unwrap();
        let mut read = [0; 100];
        device.read(5000, &mut read).unwrap();
        assert_eq!(read, [7; 100]);
        // It was just read: the page cache has it, where the file system can say so.
        let mut now = [0; 100];
        assert!(!device.read_now(5000, &mut now) || now == [7; 100]);
        assert_eq!(device.whereabouts(), Whereabouts::InPlace);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(device.whereabouts(), Whereabouts::Removed);
        device.release();
        assert!(device.read(0, &mut read).is_err() && !device.read_now(0, &mut read));
        assert_eq!(device.whereabouts(), Whereabouts::InPlace);
    }
}

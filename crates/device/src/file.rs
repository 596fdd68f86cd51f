//! Regular files and raw block devices.
//!
//! write → direct I/O from the engine's aligned buffers, past the page cache → sync → fdatasync
//! read → the page cache
//!
//! Invariants:
//! 1. One process has a device open at a time, for reading too: the lock is taken before anything is looked at.
//! 2. A read past the end of a file that was cut short is an error, never zeros.
//! 3. Both ways lead to the same file, even if another takes over the path meanwhile; a creation that fails leaves no file.
//! Why direct: docs/decisions/0001-log-io.md

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Advice, FallocateFlags, FlockOperation, OFlags, SeekFrom};

use crate::{Device, Error, Geometry, Result};

const BLOCK_BYTES: u32 = 4096;
const FILL_BYTES: usize = 1 << 20;

#[repr(align(4096))]
struct Zeros([u8; FILL_BYTES]);

static ZEROS: Zeros = Zeros([0; FILL_BYTES]);

/// How to open a [`FileDevice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Make a sparse file of `len` bytes, a multiple of 4,096; refuse if it exists.
    Create {
        /// Length in bytes.
        len: u64,
    },
    /// Open what exists.
    ReadWrite,
    /// Open what exists and never write.
    ReadOnly,
}

/// A regular file or a raw block device.
#[derive(Debug)]
pub struct FileDevice {
    path: PathBuf,
    file: File,
    /// The same file past the page cache, where the file system can.
    direct: Option<File>,
    len: AtomicU64,
    regular: bool,
    read_only: bool,
}

impl Drop for FileDevice {
    /// Gives the lock up by name: a process that is being started by another thread has a copy of the file until it runs its program, and closing
    /// alone would leave the lock with it.
    fn drop(&mut self) {
        // Closing does it otherwise.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl FileDevice {
    /// Opens or creates the device at `path` and locks it against other processes.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::InUse`]; [`Error::NoSpace`] when the file system cannot take the new file;
    /// [`Error::Io`], also for what is neither a regular file nor a block device.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<Self> {
        let path = path.as_ref();
        let failed = |what, source| Error::Io { name: path.display().to_string(), what, offset: 0, source };
        let mut options = OpenOptions::new();
        options.read(true).write(mode != OpenMode::ReadOnly).create_new(matches!(mode, OpenMode::Create { .. }));
        // So that opening a pipe by mistake does not wait for its other end; no change for files and devices.
        options.custom_flags(OFlags::NONBLOCK.bits() as i32);
        let file = match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::Exists { name: path.display().to_string() });
            }
            other => other.map_err(|error| failed("open", error))?,
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(Error::InUse { name: path.display().to_string() }),
            other => other.map_err(|error| failed("lock", error.into()))?,
        }
        if let OpenMode::Create { len } = mode
            && let Err(error) = lay_out(&file, path, len)
        {
            // Only the first cause matters; what cannot be removed is told as `Exists` next time.
            let _ = std::fs::remove_file(path);
            if is_no_space(&error) {
                return Err(Error::NoSpace { name: path.display().to_string(), offset: 0, len });
            }
            return Err(failed("create", error));
        }
        let metadata = file.metadata().map_err(|error| failed("open", error))?;
        let regular = metadata.file_type().is_file();
        if !regular && !metadata.file_type().is_block_device() {
            return Err(failed("open", io::Error::other("neither a regular file nor a block device")));
        }
        let len = length(&file, regular).map_err(|error| failed("open", error))?;
        let mut direct = None;
        if mode != OpenMode::ReadOnly {
            let flags = OFlags::DIRECT.bits() as i32;
            direct = OpenOptions::new().write(true).custom_flags(flags).open(path).ok();
        }
        if let Some(direct) = &direct {
            let again = direct.metadata().map_err(|error| failed("open", error))?;
            if (again.dev(), again.ino()) != (metadata.dev(), metadata.ino()) {
                return Err(failed("open", io::Error::other("the path was given to another file while it was opened")));
            }
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            direct,
            len: AtomicU64::new(len),
            regular,
            read_only: mode == OpenMode::ReadOnly,
        })
    }

    /// Where the device is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn failed(&self, what: &'static str, offset: u64, source: io::Error) -> Error {
        Error::Io { name: self.name(), what, offset, source }
    }

    fn write_zeros(&self, offset: u64, len: u64) -> Result<()> {
        for at in (offset..offset + len).step_by(FILL_BYTES) {
            let take = (offset + len - at).min(FILL_BYTES as u64);
            self.write(at, &ZEROS.0[..take as usize])?;
        }
        Ok(())
    }

    /// Whether all of the range has been written, as far as the file system tells.
    fn is_written(&self, offset: u64, len: u64) -> bool {
        let first = rustix::fs::seek(&self.file, SeekFrom::Data(offset));
        let hole = || rustix::fs::seek(&self.file, SeekFrom::Hole(offset));
        first.is_ok_and(|first| first == offset) && hole().is_ok_and(|hole| hole >= offset + len)
    }

    /// Checks the range; of changes (`aligned`) also that they are allowed and are whole blocks.
    fn check(&self, offset: u64, len: u64, aligned: bool) -> Result<()> {
        check_range(self, self.len.load(Ordering::Acquire), offset, len)?;
        if aligned {
            if self.read_only {
                return Err(Error::ReadOnly { name: self.name() });
            }
            check_alignment(self, offset, len)?;
        }
        Ok(())
    }
}

/// Length of a file or block device in whole blocks: a partial last block is of no use.
fn length(mut file: &File, regular: bool) -> io::Result<u64> {
    let len = if regular { file.metadata()?.len() } else { io::Seek::seek(&mut file, io::SeekFrom::End(0))? };
    Ok(len - len % u64::from(BLOCK_BYTES))
}

/// Gives a new file its length and makes its name durable.
fn lay_out(file: &File, path: &Path, len: u64) -> io::Result<()> {
    file.set_len(len)?;
    file.sync_all()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Refuses what reaches past the end of a device.
pub(crate) fn check_range(device: &dyn Device, device_len: u64, offset: u64, len: u64) -> Result<()> {
    if offset.checked_add(len).is_none_or(|end| end > device_len) {
        return Err(Error::OutOfRange { name: device.name(), offset, len, device_len });
    }
    Ok(())
}

/// Refuses what is not whole blocks.
pub(crate) fn check_alignment(device: &dyn Device, offset: u64, len: u64) -> Result<()> {
    let block_bytes = device.geometry().block_bytes;
    if !offset.is_multiple_of(u64::from(block_bytes)) || !len.is_multiple_of(u64::from(block_bytes)) {
        return Err(Error::Unaligned { name: device.name(), offset, len, block_bytes });
    }
    Ok(())
}

impl Device for FileDevice {
    fn geometry(&self) -> Geometry {
        Geometry { block_bytes: BLOCK_BYTES, len: self.len.load(Ordering::Acquire), zone_bytes: None }
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.check(offset, buffer.len() as u64, false)?;
        self.file.read_exact_at(buffer, offset).map_err(|error| self.failed("read", offset, error))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check(offset, data.len() as u64, true)?;
        let aligned = (data.as_ptr() as usize).is_multiple_of(BLOCK_BYTES as usize);
        let mut written = match self.direct.as_ref().filter(|_| aligned) {
            Some(direct) => direct.write_all_at(data, offset),
            None => self.file.write_all_at(data, offset),
        };
        if written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput) {
            // Some file systems open a file for direct I/O and then refuse it.
            written = self.file.write_all_at(data, offset);
        }
        match written {
            Err(error) if is_no_space(&error) => {
                Err(Error::NoSpace { name: self.name(), offset, len: data.len() as u64 })
            }
            other => other.map_err(|error| self.failed("write", offset, error)),
        }
    }

    fn sync(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.file.sync_data().map_err(|error| self.failed("sync", 0, error))
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len, true)?;
        if !self.regular {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, len) {
            Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => {
                Err(Error::NoSpace { name: self.name(), offset, len })
            }
            // The file system cannot promise space: writes will tell.
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            other => other.map_err(|error| self.failed("reserve", offset, error.into())),
        }
    }

    fn prefill(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len, true)?;
        if !self.regular {
            return Ok(());
        }
        if self.is_written(offset, len) {
            return Ok(());
        }
        self.write_zeros(offset, len)?;
        // Moves the change of the file's metadata out of the way of the syncs to come.
        self.sync()
    }

    fn will_read(&self, offset: u64, len: u64) {
        // Of a file system that does not know of it nothing is expected.
        let _ = rustix::fs::fadvise(&self.file, offset, NonZeroU64::new(len), Advice::WillNeed);
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len, true)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, flags, offset, len) {
            Ok(()) => Ok(()),
            // No holes here: zeros say the same, and cost their space.
            Err(rustix::io::Errno::OPNOTSUPP) => self.write_zeros(offset, len),
            Err(error) => Err(self.failed("discard", offset, error.into())),
        }
    }

    fn refresh_len(&self) -> Result<u64> {
        let len = length(&self.file, self.regular).map_err(|error| self.failed("measure", 0, error))?;
        Ok(self.len.fetch_max(len, Ordering::AcqRel).max(len))
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_device_may_be_opened_at_once_while_processes_are_started() {
        // Failure: a store that was closed was found in use. Cause: a child between fork and exec still had the file, and with it the lock.
        // Fix: closing unlocks.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device");
        let device = FileDevice::open(&path, OpenMode::Create { len: 1 << 20 }).unwrap();
        let copy_of_a_child = device.file.try_clone().unwrap();
        assert!(matches!(FileDevice::open(&path, OpenMode::ReadWrite), Err(Error::InUse { .. })));
        drop(device);
        FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
        drop(copy_of_a_child);
    }
}

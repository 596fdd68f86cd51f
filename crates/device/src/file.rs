//! Regular files and raw block devices.
//!
//! write → direct I/O from the engine's aligned buffers, past the page cache → sync → fdatasync
//! read → the page cache, or past it where the medium itself is to be looked at
//! of one value → past it the first time, then through it (`places`); `read_now` takes what the page cache has
//!
//! The kernel tells of a failed write-back once to each open description of the file, and not again. So every sync that
//! is under way has a description of its own, and the first failure stays.
//!
//! Invariants:
//! 1. One process has a device open at a time, for reading too: the lock is taken before anything is looked at.
//! 2. A read past the end of a file that was cut short is an error, never zeros.
//! 3. After a failed sync every sync fails: whatever thread saw it, no caller is told that what it covered is durable.
//! 4. Both ways lead to the same file, even if another takes over the path meanwhile; a creation that fails leaves no
//!    file. Why direct: docs/decisions/0001-log-io.md

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{Advice, FallocateFlags, FlockOperation, OFlags, SeekFrom};
use rustix::io::{ReadWriteFlags, retry_on_intr};

use crate::places::{Places, Way};
use crate::together::Rings;
use crate::{Device, Error, Geometry, ReadStream, Result, Whereabouts};

const BLOCK_BYTES: u32 = 4096;
const FILL_BYTES: usize = 1 << 20;
/// So many syncs go on at the same time at most: the log's, the cleaner's, that of filling ahead, and one more.
const SYNCS_MAX: usize = 4;
/// Of a longer range that the device is told of, in bytes, the first and the last block are noted: it is read whole.
const TOLD_BYTES_MAX: u64 = 2 << 20;
/// Of so many reads the kernel is told, of one thread.
const TOLD_MAX: usize = 64;

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
    /// The same file, of which the kernel reads no more than is asked for; where it could not be opened, as the first.
    alone: File,
    /// What was read before.
    places: Places,
    /// What has several reads under way.
    rings: Rings,
    len: AtomicU64,
    regular: bool,
    /// Whether its file system keeps files in memory: no read waits for a device.
    in_memory: bool,
    read_only: bool,
    /// Descriptions for syncs that no sync uses now, and what waits for one.
    syncing: Mutex<Vec<File>>,
    returned: Condvar,
    /// The first failure of a sync.
    failed: OnceLock<(io::ErrorKind, String)>,
}

impl Drop for FileDevice {
    /// Gives the lock up by name: a process that is being started by another thread has a copy of the file until it
    /// runs its program, and closing alone would leave the lock with it.
    fn drop(&mut self) {
        self.unlock();
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
        let mut flags = OFlags::NONBLOCK;
        if std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device()) {
            // Refused while it is mounted, or part of something that is.
            flags |= OFlags::EXCL;
        }
        options.custom_flags(flags.bits() as i32);
        let file = match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                return Err(Error::InUse { name: path.display().to_string() });
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::Exists { name: path.display().to_string() });
            }
            other => other.map_err(|error| failed("open", error))?,
        };
        match retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)) {
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
        let writes = mode != OpenMode::ReadOnly;
        let flags = OFlags::DIRECT.bits() as i32;
        let direct = OpenOptions::new().read(true).write(writes).custom_flags(flags).open(path).ok();
        if let Some(direct) = &direct {
            let again = direct.metadata().map_err(|error| failed("open", error))?;
            if (again.dev(), again.ino()) != (metadata.dev(), metadata.ino()) {
                return Err(failed("open", io::Error::other("the path was given to another file while it was opened")));
            }
        }
        let again = |writes: bool| {
            // By its number, and so the same file whatever the path leads to by now.
            let same = format!("/proc/self/fd/{}", file.as_raw_fd());
            let opened = match OpenOptions::new().read(true).write(writes).open(same) {
                // Without /proc the one there is has to do.
                Err(error) if error.kind() == io::ErrorKind::NotFound => file.try_clone().map(|same| (same, false)),
                other => other.map(|opened| (opened, true)),
            };
            opened.map_err(|error| failed("open", error))
        };
        let mut syncing = Vec::new();
        for _ in 0..if writes { SYNCS_MAX } else { 0 } {
            syncing.push(again(true)?.0);
        }
        // It only makes reads quicker: no reason not to open.
        let (alone, is_own) =
            again(false).or_else(|error| file.try_clone().map(|same| (same, false)).map_err(|_| error))?;
        if is_own {
            // Of a file system that does not know of it nothing is expected.
            let _ = rustix::fs::fadvise(&alone, 0, None, Advice::Random);
        }
        Ok(Self {
            path: path.to_owned(),
            direct,
            alone,
            places: Places::new(len),
            rings: Rings::default(),
            len: AtomicU64::new(len),
            regular,
            in_memory: is_in_memory(&file, regular),
            file,
            read_only: mode == OpenMode::ReadOnly,
            syncing: Mutex::new(syncing),
            returned: Condvar::new(),
            failed: OnceLock::new(),
        })
    }

    /// An open description of the same file that no other sync uses: they are made when the device is opened, so that a
    /// process that may open no more files can still sync.
    fn description(&self) -> File {
        let mut idle = self.syncing.lock();
        loop {
            if let Some(description) = idle.pop() {
                return description;
            }
            self.returned.wait(&mut idle);
        }
    }

    /// Without a ring: the kernel is told of what there is, and begins with it.
    fn read_told(&self, reads: &mut dyn ReadStream) {
        let mut told = VecDeque::new();
        loop {
            while told.len() < TOLD_MAX
                && let Some((number, mut blocks)) = reads.next()
            {
                if !told.is_empty() {
                    self.will_read(blocks.first(), blocks.whole_mut().len() as u64);
                }
                told.push_back((number, blocks));
            }
            let Some((number, mut blocks)) = told.pop_front() else { return };
            reads.waits();
            let outcome = self.read_value(blocks.first(), blocks.whole_mut());
            reads.arrived(number);
            reads.came(number, blocks, outcome);
        }
    }

    fn failed_before(&self) -> Result<()> {
        match self.failed.get() {
            None => Ok(()),
            Some((kind, why)) => {
                let why = format!("a sync before has failed: {why}");
                Err(self.failed("sync", 0, io::Error::new(*kind, why)))
            }
        }
    }

    /// Gives the lock up: another may open the device, though this one is still there. Nothing may be written to this
    /// one any more.
    pub fn unlock(&self) {
        // Closing does it otherwise.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
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

/// Whether a read can go past the page cache.
fn is_aligned(offset: u64, buffer: &[u8]) -> bool {
    let all = [offset, buffer.len() as u64, buffer.as_ptr() as u64];
    all.iter().all(|number| number.is_multiple_of(u64::from(BLOCK_BYTES)))
}

/// Whether what a file holds is in memory, by its file system. Such a one does not know reads that do not wait, and
/// needs none. Of a device only the name is there.
fn is_in_memory(file: &File, regular: bool) -> bool {
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58f6;
    regular && rustix::fs::fstatfs(file).is_ok_and(|stat| [TMPFS, RAMFS].contains(&(stat.f_type as u32)))
}

impl Device for FileDevice {
    fn geometry(&self) -> Geometry {
        Geometry { block_bytes: BLOCK_BYTES, len: self.len.load(Ordering::Acquire), zone_bytes: None }
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.check(offset, buffer.len() as u64, false)?;
        self.file.read_exact_at(buffer, offset).map_err(|error| self.failed("read", offset, error))
    }

    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> bool {
        if self.check(offset, buffer.len() as u64, false).is_err() {
            return false;
        }
        if self.in_memory {
            return self.file.read_exact_at(buffer, offset).is_ok();
        }
        let len = buffer.len();
        let file = match self.direct {
            // Asking the kernel would have it begin with the read.
            Some(_) => match self.places.way_now(offset, len as u64) {
                Way::Past => return false,
                Way::Alone => &self.alone,
                Way::Ahead => &self.file,
            },
            None => &self.file,
        };
        let mut buffers = [io::IoSliceMut::new(buffer)];
        // Where the kernel or the file system does not know the flag it fails, and the read is one that may wait.
        rustix::io::preadv2(file, &mut buffers, offset, ReadWriteFlags::NOWAIT).is_ok_and(|read| read == len)
    }

    fn read_value(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if self.direct.is_none() || self.in_memory {
            return self.read(offset, buffer);
        }
        let file = match self.places.way_noted(offset, buffer.len() as u64) {
            Way::Past => return self.read_medium(offset, buffer),
            Way::Alone => &self.alone,
            Way::Ahead => &self.file,
        };
        self.check(offset, buffer.len() as u64, false)?;
        file.read_exact_at(buffer, offset).map_err(|error| self.failed("read", offset, error))
    }

    fn read_stream(&self, reads: &mut dyn ReadStream) {
        let Some(direct) = self.direct.as_ref().filter(|_| !self.in_memory) else { return self.read_told(reads) };
        let Some(mut ring) = self.rings.take() else { return self.read_told(reads) };
        let mut done = Vec::new();
        loop {
            while ring.has_room()
                && let Some((number, mut blocks)) = reads.next()
            {
                let (offset, len) = (blocks.first(), blocks.whole_mut().len() as u64);
                if let Err(error) = self.check(offset, len, false) {
                    reads.arrived(number);
                    reads.came(number, blocks, Err(error));
                    continue;
                }
                let file = match self.places.way_noted(offset, len) {
                    Way::Past if is_aligned(offset, blocks.whole_mut()) => direct,
                    Way::Past | Way::Alone => &self.alone,
                    Way::Ahead => &self.file,
                };
                ring.begin(file, number, blocks);
            }
            if ring.is_idle() {
                return self.rings.give_back(ring);
            }
            reads.waits();
            ring.wait();
            while let Some(read) = ring.next_done() {
                reads.arrived(read.0);
                done.push(read);
            }
            for (number, mut blocks, read) in done.drain(..) {
                let (offset, whole) = (blocks.first(), blocks.whole_mut());
                let outcome = match read {
                    Ok(read) if read == whole.len() => Ok(()),
                    // In part, or by a file system that refuses: what counts is the usual way.
                    _ => self.read_value(offset, whole),
                };
                reads.came(number, blocks, outcome);
            }
        }
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
        self.failed_before()?;
        let description = self.description();
        let synced = description.sync_data();
        self.syncing.lock().push(description);
        self.returned.notify_one();
        if let Err(error) = synced {
            // Only the first counts.
            let _ = self.failed.set((error.kind(), error.to_string()));
            return Err(self.failed("sync", 0, error));
        }
        // Another may have failed meanwhile, for what this one covers too.
        self.failed_before()
    }

    fn read_medium(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let Some(direct) = self.direct.as_ref().filter(|_| is_aligned(offset, buffer)) else {
            return self.read(offset, buffer);
        };
        self.check(offset, buffer.len() as u64, false)?;
        match direct.read_exact_at(buffer, offset) {
            // Some file systems open a file for direct I/O and then refuse it.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => self.read(offset, buffer),
            other => other.map_err(|error| self.failed("read", offset, error)),
        }
    }

    fn whereabouts(&self) -> Whereabouts {
        let here = self.file.metadata().map(|metadata| (metadata.dev(), metadata.ino(), metadata.nlink()));
        let there = std::fs::metadata(&self.path).map(|metadata| (metadata.dev(), metadata.ino()));
        match (here, there) {
            (Ok((_, _, 0)), _) if self.regular => Whereabouts::Removed,
            (Ok((dev, ino, _)), Ok(there)) if (dev, ino) != there => Whereabouts::Replaced,
            (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => Whereabouts::Removed,
            _ => Whereabouts::InPlace,
        }
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len, true)?;
        if !self.regular {
            return Ok(());
        }
        match retry_on_intr(|| rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, len)) {
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
        // None would mean: up to the end of the file.
        let Some(len) = NonZeroU64::new(len) else { return };
        if len.get() > TOLD_BYTES_MAX {
            self.places.note(offset, len.get());
        } else {
            // A read within it may begin and end at any of its blocks.
            let blocks = offset / u64::from(BLOCK_BYTES)..=(offset + len.get() - 1) / u64::from(BLOCK_BYTES);
            blocks.for_each(|block| self.places.note(block * u64::from(BLOCK_BYTES), 1));
        }
        // Of a file system that does not know of it nothing is expected.
        let _ = rustix::fs::fadvise(&self.file, offset, Some(len), Advice::WillNeed);
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len, true)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| rustix::fs::fallocate(&self.file, flags, offset, len)) {
            Ok(()) => Ok(()),
            // No holes here: zeros say the same, and cost their space.
            Err(rustix::io::Errno::OPNOTSUPP) => self.write_zeros(offset, len),
            // Where the hole is has to be written down, which may take blocks.
            Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => {
                Err(Error::NoSpace { name: self.name(), offset, len })
            }
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
    use std::sync::Arc;

    use super::*;
    use crate::{BlockPool, Blocks};

    #[repr(align(4096))]
    struct Aligned([u8; 4096]);

    #[test]
    fn a_failed_sync_is_seen_by_every_sync_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let device = FileDevice::open(folder.path().join("device"), OpenMode::Create { len: 1 << 20 }).unwrap();
        device.sync().unwrap();
        // A description that cannot be synced stands for one that the kernel tells of a failed write-back.
        *device.syncing.lock() = vec![File::open("/proc/self/mem").unwrap()];
        let first = device.sync().unwrap_err();
        assert!(matches!(first, Error::Io { what: "sync", .. }), "{first}");
        for _ in 0..3 {
            let Err(Error::Io { source, .. }) = device.sync() else { panic!("a sync after a failed one") };
            assert!(source.to_string().contains("before"), "{source}");
        }
        device.write(0, &[1; 4096]).unwrap();
    }

    /// Failure: reads of a block device that were not to wait did. Cause: the file system that its name stands on,
    /// which is one of memory, was taken for where its data stands.
    #[test]
    fn a_device_is_not_in_memory_because_its_name_is() {
        assert!(!is_in_memory(&File::open("/dev/zero").unwrap(), false));
    }

    /// Failure: on a file system of memory each read that missed the cache of the store went to other threads, at an
    /// eighth of the rate. Cause: it does not know reads that do not wait. Fix: there, none waits.
    #[test]
    fn what_stands_in_memory_is_read_now() {
        // Without it, or where it is something else, the page cache has what was written.
        let shm = Path::new("/dev/shm");
        let folder = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap();
        let device = FileDevice::open(folder.path().join("device"), OpenMode::Create { len: 1 << 20 }).unwrap();
        device.file.write_all_at(&[7; 4096], 8192).unwrap();
        let mut found = [0; 4096];
        // Elsewhere the first read of a place does not look there.
        assert!(device.in_memory || !device.read_now(8192, &mut found));
        device.read_value(8192, &mut found).unwrap();
        assert!(device.read_now(8192, &mut found));
        assert_eq!(found, [7; 4096]);
        assert!(!device.read_now(1 << 20, &mut found));
    }

    #[test]
    fn syncs_at_the_same_time_have_descriptions_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let device = FileDevice::open(folder.path().join("device"), OpenMode::Create { len: 1 << 20 }).unwrap();
        let (a, b) = (device.description(), device.description());
        assert_ne!(a.as_raw_fd(), b.as_raw_fd());
        // Not copies of one: those share what the kernel has told, and their offset.
        std::io::Seek::seek(&mut &a, io::SeekFrom::Start(7)).unwrap();
        assert_eq!(std::io::Seek::stream_position(&mut &b).unwrap(), 0);
    }

    #[test]
    fn a_file_that_is_removed_or_replaced_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device");
        let device = FileDevice::open(&path, OpenMode::Create { len: 1 << 20 }).unwrap();
        assert_eq!(device.whereabouts(), Whereabouts::InPlace);
        std::fs::rename(&path, folder.path().join("elsewhere")).unwrap();
        assert_eq!(device.whereabouts(), Whereabouts::Removed);
        std::fs::write(&path, b"another").unwrap();
        assert_eq!(device.whereabouts(), Whereabouts::Replaced);
        std::fs::remove_file(folder.path().join("elsewhere")).unwrap();
        assert_eq!(device.whereabouts(), Whereabouts::Removed);
    }

    #[test]
    fn what_is_read_from_the_medium_is_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let device = FileDevice::open(folder.path().join("device"), OpenMode::Create { len: 1 << 20 }).unwrap();
        device.write(8192, &[7; 8192]).unwrap();
        for offset in [4096, 8192, 9000] {
            let (mut cached, mut medium) = ([0; 8192], vec![0; 8192]);
            device.read(offset, &mut cached).unwrap();
            device.read_medium(offset, &mut medium).unwrap();
            assert!(cached[..] == medium[..]);
        }
        assert!(device.read_medium(1 << 20, &mut [0; 4096]).is_err());
    }

    /// Gives reads of blocks by number, and looks at what comes.
    struct Asks {
        pool: Arc<BlockPool>,
        numbers: VecDeque<u64>,
        came: Vec<u64>,
        refused: Vec<u64>,
    }

    impl ReadStream for Asks {
        fn next(&mut self) -> Option<(u64, Blocks)> {
            let number = self.numbers.pop_front()?;
            Some((number, self.pool.take(number * 4096 + 7, 3, u64::MAX).unwrap()))
        }

        fn came(&mut self, number: u64, blocks: Blocks, outcome: Result<()>) {
            match outcome {
                Ok(()) => {
                    assert_eq!(blocks[..], [number as u8; 3]);
                    self.came.push(number);
                }
                Err(Error::OutOfRange { .. }) => self.refused.push(number),
                Err(error) => panic!("{error}"),
            }
            // Some come up only now.
            if number % 100 == 50 && number < 1000 {
                self.numbers.extend([number + 1000, number + 1001]);
            }
        }
    }

    #[test]
    fn what_streams_is_what_was_written_whichever_way_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut device = FileDevice::open(folder.path().join("device"), OpenMode::Create { len: 8 << 20 }).unwrap();
        for number in 0..2048 {
            device.write(number * 4096, &Aligned([number as u8; 4096]).0).unwrap();
        }
        for rings in [Rings::default(), Rings::refused()] {
            device.rings = rings;
            device.places = Places::new(8 << 20);
            for numbers in [vec![3], vec![900, 7, 500], vec![900, 8, 7, 2048, 5000], (0..1000).collect()] {
                let more = numbers.iter().filter(|number| **number % 100 == 50 && **number < 1000);
                let more: Vec<u64> = more.flat_map(|number| [number + 1000, number + 1001]).collect();
                let mut expected = [&numbers[..], &more].concat();
                let numbers = VecDeque::from(numbers);
                let mut asks = Asks { pool: Arc::default(), numbers, came: Vec::new(), refused: Vec::new() };
                device.read_stream(&mut asks);
                asks.came.append(&mut asks.refused);
                asks.came.sort_unstable();
                expected.sort_unstable();
                assert_eq!(asks.came, expected);
            }
        }
    }

    #[test]
    fn a_stream_that_panics_leaves_no_read_under_way() {
        struct Panics(Asks);
        impl ReadStream for Panics {
            fn next(&mut self) -> Option<(u64, Blocks)> {
                self.0.next()
            }
            fn came(&mut self, _: u64, _: Blocks, _: Result<()>) {
                panic!("on purpose");
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let device = FileDevice::open(folder.path().join("device"), OpenMode::Create { len: 8 << 20 }).unwrap();
        for _ in 0..20 {
            let numbers = (0..60).map(|number| number * 30 % 2048).collect();
            let asks = Asks { pool: Arc::default(), numbers, came: Vec::new(), refused: Vec::new() };
            let mut panics = std::panic::AssertUnwindSafe(Panics(asks));
            let device = std::panic::AssertUnwindSafe(&device);
            assert!(std::panic::catch_unwind(move || device.read_stream(&mut *panics)).is_err());
        }
    }

    /// Reads told what was read, or why not.
    struct Told(Arc<BlockPool>, VecDeque<u64>, Vec<(u64, bool)>);

    impl ReadStream for Told {
        fn next(&mut self) -> Option<(u64, Blocks)> {
            let number = self.1.pop_front()?;
            Some((number, self.0.take(number * 4096, 4096, u64::MAX).unwrap()))
        }

        fn came(&mut self, number: u64, _: Blocks, outcome: Result<()>) {
            self.2.push((number, outcome.is_ok()));
        }
    }

    #[test]
    fn what_a_file_has_lost_is_no_read_that_succeeded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device");
        let mut device = FileDevice::open(&path, OpenMode::Create { len: 1 << 20 }).unwrap();
        for number in 0..256 {
            device.write(number * 4096, &Aligned([1; 4096]).0).unwrap();
        }
        OpenOptions::new().write(true).open(&path).unwrap().set_len(8 * 4096 + 100).unwrap();
        for rings in [Rings::default(), Rings::refused()] {
            device.rings = rings;
            let mut told = Told(Arc::default(), VecDeque::from([3, 7, 8, 100]), Vec::new());
            device.read_stream(&mut told);
            told.2.sort_unstable();
            assert_eq!(told.2, [(3, true), (7, true), (8, false), (100, false)]);
        }
    }

    #[test]
    fn a_closed_device_may_be_opened_at_once_while_processes_are_started() {
        // Failure: a store that was closed was found in use. Cause: a child between fork and exec still had the file,
        // and with it the lock. Fix: closing unlocks.
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

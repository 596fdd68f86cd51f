//! The file operations that the store needs, and the ones of the operating system.
//!
//! store → [`Files`] (names) and [`FileIo`] (contents) → [`FolderFiles`], or a version in tests that forgets, tears and
//! fails
//!
//! Paths are relative to the store's folder, with `/` between parts, and made of ASCII only.
//!
//! Invariants that every implementation keeps:
//! 1. What was written to a file survives power loss once [`FileIo::sync`] has returned; its name, once
//!    [`Files::sync_folder`] of the folder has. Nothing else is promised, in any order.
//! 2. A rename is atomic: after a crash the file has the old name or the new one.

use std::fmt::Debug;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};

/// Names in a store's folder.
pub trait Files: Send + Sync + Debug {
    /// Opens a file for reading and writing. `None` if it is not there and is not to be made.
    ///
    /// # Errors
    /// The operating system's.
    fn open(&self, path: &str, create: bool) -> Result<Option<Arc<dyn FileIo>>>;

    /// Gives a file another name; what had that name is gone.
    ///
    /// # Errors
    /// The operating system's.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Removes a file; one that is not there is no error.
    ///
    /// # Errors
    /// The operating system's.
    fn remove(&self, path: &str) -> Result<()>;

    /// Makes a folder; one that is there already is no error. The folder above it must exist.
    ///
    /// # Errors
    /// The operating system's.
    fn make_folder(&self, path: &str) -> Result<()>;

    /// Names of the files in a folder, not of the folders in it, in no order. A folder that is not there has none.
    ///
    /// # Errors
    /// The operating system's.
    fn list(&self, path: &str) -> Result<Vec<String>>;

    /// Makes the names in a folder durable. The empty path is the store's folder.
    ///
    /// # Errors
    /// The operating system's; which of the names are durable is then unknown.
    fn sync_folder(&self, path: &str) -> Result<()>;

    /// Takes the folder for this process; false if another has it. It stays taken until [`Files::unlock`].
    ///
    /// # Errors
    /// The operating system's.
    fn lock(&self) -> Result<bool>;

    /// Lets go of the folder.
    fn unlock(&self);
}

/// The content of one file. Offsets and lengths are bytes.
pub trait FileIo: Send + Sync + Debug {
    /// Length of the file.
    ///
    /// # Errors
    /// The operating system's.
    fn len(&self) -> Result<u64>;

    /// Whether the file holds nothing.
    ///
    /// # Errors
    /// The operating system's.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads into `buffer` from `offset`; returns how much, which is less only at the end of the file.
    ///
    /// # Errors
    /// The operating system's.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize>;

    /// Writes all of `data` at `offset`, growing the file.
    ///
    /// # Errors
    /// The operating system's; how much was written is then unknown.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;

    /// Sets the length; what is added reads as zeros.
    ///
    /// # Errors
    /// The operating system's.
    fn set_len(&self, len: u64) -> Result<()>;

    /// Gives space back: the range reads as zeros or as before, and the length stays. A hint.
    ///
    /// # Errors
    /// The operating system's, save that it cannot do this.
    fn punch(&self, offset: u64, len: u64) -> Result<()>;

    /// Forgets what the system keeps in memory of the file and takes for durable, so that reads show what is on the
    /// device. For files whose last sync may have failed: after that the system takes for clean what it could not
    /// write.
    ///
    /// # Errors
    /// The operating system's.
    fn forget(&self) -> Result<()>;

    /// Makes content and length durable.
    ///
    /// # Errors
    /// The operating system's; what it should have covered is then in doubt for good.
    fn sync(&self) -> Result<()>;
}

/// The files of a real folder.
#[derive(Debug)]
pub struct FolderFiles {
    root: PathBuf,
    lock: Mutex<Option<File>>,
    syncs: Arc<AtomicU64>,
}

impl FolderFiles {
    /// Files in `root`, which exists. Syncs are counted in `syncs`.
    pub fn new(root: &Path, syncs: Arc<AtomicU64>) -> Self {
        Self { root: root.to_path_buf(), lock: Mutex::new(None), syncs }
    }

    fn real(&self, file: File) -> Arc<dyn FileIo> {
        Arc::new(RealFile { file, syncs: Arc::clone(&self.syncs) })
    }
}

#[derive(Debug)]
struct RealFile {
    file: File,
    syncs: Arc<AtomicU64>,
}

fn missing_is_none<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

impl Files for FolderFiles {
    fn open(&self, path: &str, create: bool) -> Result<Option<Arc<dyn FileIo>>> {
        let file = OpenOptions::new().read(true).write(true).create(create).truncate(false).open(self.root.join(path));
        if create {
            return Ok(Some(self.real(file?)));
        }
        Ok(missing_is_none(file)?.map(|file| self.real(file)))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        std::fs::rename(self.root.join(from), self.root.join(to))
    }

    fn remove(&self, path: &str) -> Result<()> {
        missing_is_none(std::fs::remove_file(self.root.join(path))).map(drop)
    }

    fn make_folder(&self, path: &str) -> Result<()> {
        match std::fs::create_dir(self.root.join(path)) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }

    fn list(&self, path: &str) -> Result<Vec<String>> {
        let Some(entries) = missing_is_none(std::fs::read_dir(self.root.join(path)))? else { return Ok(Vec::new()) };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_file()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn sync_folder(&self, path: &str) -> Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        File::open(self.root.join(path))?.sync_all()
    }

    fn lock(&self) -> Result<bool> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(self.root.join("lock"))?;
        match file.try_lock() {
            Ok(()) => *self.lock.lock() = Some(file),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(true)
    }

    fn unlock(&self) {
        if let Some(file) = self.lock.lock().take() {
            // By name: a process that is just being started has a copy of the file, which closing leaves the lock to.
            let _ = file.unlock();
        }
    }
}

impl FileIo for RealFile {
    fn len(&self) -> Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.file, flags, offset, len) {
            // File systems without holes keep the space; nothing else changes.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            other => other.map_err(Error::from),
        }
    }

    fn forget(&self) -> Result<()> {
        Ok(fadvise(&self.file, 0, None, Advice::DontNeed)?)
    }

    fn sync(&self) -> Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.file.sync_data()
    }
}

//! Files for large data (newstore): one file per large write, named by a number, in a folder of their own. The names of
//! objects have nothing to do with it, so no folder is ever split or renamed.
//!
//! write → create, write, fdatasync → (the folder is synced before the commit that names the file) → read → removed
//! when unnamed
//!
//! Invariants:
//! 1. A file is durable before the transaction that names it is; it is never written again.
//! 2. A file that no record names is removed when the store is opened.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_store::{Error, Result};
use parking_lot::Mutex;

/// Files that are kept open for reading.
const OPEN_FILES_MAX: usize = 256;

/// The folder of files.
pub struct Files {
    folder: PathBuf,
    open: Mutex<HashMap<u64, Arc<File>>>,
}

impl Files {
    /// Opens the folder, making it if it does not exist.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn open(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        Ok(Self { folder: folder.to_path_buf(), open: Mutex::default() })
    }

    fn path(&self, file: u64) -> PathBuf {
        self.folder.join(format!("{file:016x}"))
    }

    /// Makes a file with this content. Its content is durable when this returns; its name after [`Files::sync_folder`].
    ///
    /// # Errors
    /// [`Error::Io`] names the file; nothing is left of it.
    pub fn create(&self, file: u64, data: &[u8]) -> Result<()> {
        let path = self.path(file);
        let made = OpenOptions::new().write(true).create_new(true).open(&path).and_then(|mut made| {
            made.write_all(data)?;
            made.sync_data()
        });
        made.map_err(|error| {
            self.remove(file);
            Error::io(format!("writing {}", path.display()), error)
        })
    }

    /// Makes the names of files durable.
    ///
    /// # Errors
    /// [`Error::Io`] names the folder.
    pub fn sync_folder(&self) -> Result<()> {
        File::open(&self.folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|error| Error::io(format!("syncing {}", self.folder.display()), error))
    }

    /// Fills `into` from a file, from `offset` on.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the file is missing or too short, else [`Error::Io`].
    pub fn read(&self, file: u64, offset: u64, into: &mut [u8]) -> Result<()> {
        let path = self.path(file);
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof => {
                Error::Corrupt { offset, what: format!("{}: {error}", path.display()) }
            }
            _ => Error::io(format!("reading {}", path.display()), error),
        };
        let opened = self.open.lock().get(&file).cloned();
        let opened = match opened {
            Some(opened) => opened,
            None => {
                let opened = Arc::new(File::open(&path).map_err(failed)?);
                let mut open = self.open.lock();
                if open.len() >= OPEN_FILES_MAX {
                    open.clear();
                }
                open.insert(file, Arc::clone(&opened));
                opened
            }
        };
        opened.read_exact_at(into, offset).map_err(failed)
    }

    /// Removes a file, if it is there. One that cannot be removed is taken away at the next opening.
    pub fn remove(&self, file: u64) {
        self.open.lock().remove(&file);
        match std::fs::remove_file(self.path(file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, path = %self.path(file).display(), "a file that is no longer used stays until the next opening");
            }
            _ => {}
        }
    }

    /// Removes all files but those named. Returns how many.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn keep_only(&self, named: &HashSet<u64>) -> io::Result<u64> {
        let mut removed = 0;
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| u64::from_str_radix(name, 16).ok());
            if !number.is_some_and(|number| named.contains(&number)) {
                std::fs::remove_file(entry.path())?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

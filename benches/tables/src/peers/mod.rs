//! The stores under comparison, by name, with how each is set up.

pub mod esker;
mod kyoto;
mod leveldb;
mod lmdb;
pub mod rocksdb;

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Result, bail};

use crate::peer::{Peer, Settings};

/// A store under comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
pub enum Kind {
    /// LevelDB.
    Leveldb,
    /// Kyoto Cabinet's file hash database.
    Kyoto,
    /// RocksDB, values in the tree.
    Rocksdb,
    /// RocksDB, values from 512 bytes on in blob files.
    RocksdbBlob,
    /// LMDB.
    Lmdb,
    /// Esker: kv on the engine on a file.
    Esker,
    /// Esker's kv on the memory backend: what the faces cost without an engine. Keeps nothing.
    EskerMemory,
}

impl Kind {
    /// Everything that is compared when nothing is chosen.
    pub const DEFAULT: [Self; 6] =
        [Self::Leveldb, Self::Kyoto, Self::Rocksdb, Self::RocksdbBlob, Self::Lmdb, Self::Esker];

    /// The name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Leveldb => "leveldb",
            Self::Kyoto => "kyoto",
            Self::Rocksdb => "rocksdb",
            Self::RocksdbBlob => "rocksdb-blob",
            Self::Lmdb => "lmdb",
            Self::Esker => "esker",
            Self::EskerMemory => "esker-memory",
        }
    }

    /// How it is set up, for the report.
    pub fn setup(self) -> &'static str {
        match self {
            Self::Leveldb => leveldb::SETUP,
            Self::Kyoto => kyoto::SETUP,
            Self::Rocksdb => rocksdb::SETUP,
            Self::RocksdbBlob => rocksdb::SETUP_BLOB,
            Self::Lmdb => lmdb::SETUP,
            Self::Esker => esker::SETUP,
            Self::EskerMemory => esker::SETUP_MEMORY,
        }
    }

    /// Whether it is one of those that Esker is measured against.
    pub fn is_rival(self) -> bool {
        !matches!(self, Self::Esker | Self::EskerMemory)
    }

    /// Whether it keeps what it acknowledges in this way.
    pub fn is_durable(self) -> bool {
        self != Self::EskerMemory
    }

    /// Opens a fresh store in `settings.dir`.
    pub fn open(self, settings: &Settings<'_>) -> Result<Box<dyn Peer>> {
        match self {
            Self::Leveldb => leveldb::open(settings),
            Self::Kyoto => kyoto::open(settings),
            Self::Rocksdb => rocksdb::open(settings, None),
            Self::RocksdbBlob => rocksdb::open(settings, Some(rocksdb::BlobFiles::default())),
            Self::Lmdb => lmdb::open(settings),
            Self::Esker => esker::open(settings),
            Self::EskerMemory => esker::open_memory(settings),
        }
    }
}

/// A path for a C library.
fn c_path(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Turns the error text that LevelDB and RocksDB leave behind a pointer into an error, and frees it.
///
/// # Safety
/// `error` is null or a C string that `free` takes.
unsafe fn c_error(error: *mut c_char, free: unsafe extern "C" fn(*mut c_void)) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the caller says that it is a C string.
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: the caller says that `free` takes it; it is not used any more.
    unsafe { free(error.cast()) };
    bail!(text)
}

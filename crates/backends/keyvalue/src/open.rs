//! Opening a folder: its lock, what it is, and what it is kept by.
//!
//! lock → kind file (made last-but-one: before the database, so a folder with a database always says what it is) →
//! database → (newstore: files, those that nothing names are removed) → [`KeyValueStore`]
//!
//! ```text
//! FOLDER/kind     "esker-keyvalue", then lines `kind`, `version`, `strip`, each with its value
//! FOLDER/lock     locked while the store is open
//! FOLDER/db       the database
//! FOLDER/files    large data (newstore)
//! ```
//!
//! Invariant: nothing is written to a folder that is locked, of another kind, or newer.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::RwLock;

use crate::draft::{Draft, State};
use crate::error::{Error, Result};
use crate::files::Files;
use crate::keys;
use crate::ordered::Ordered;
use crate::records::{corrupt, decode_meta};
use crate::store::KeyValueStore;
use crate::strip::StripLen;

/// Version of the format that is written; older ones are opened.
pub const FORMAT_VERSION: u32 = 1;
/// Shortest strip in bytes.
pub const STRIP_BYTES_MIN: u64 = 512;
/// Longest strip in bytes (1 MiB).
pub const STRIP_BYTES_MAX: u64 = 1 << 20;
/// Name of the file that says what a folder holds.
pub const KIND_FILE: &str = "kind";
/// What a kind file begins with.
const TITLE: &str = "esker-keyvalue";
/// A kind file is no longer than this, in bytes.
const KIND_FILE_BYTES_MAX: u64 = 4_096;

/// What a folder is kept by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// RocksDB.
    RocksDb,
    /// LevelDB.
    LevelDb,
    /// RocksDB, and files for large data.
    NewStore,
}

impl Kind {
    /// Its name in locations, messages and kind files.
    pub fn name(self) -> &'static str {
        match self {
            Self::RocksDb => "rocksdb",
            Self::LevelDb => "leveldb",
            Self::NewStore => "newstore",
        }
    }

    /// Whether this build can open it.
    pub fn is_built_in(self) -> bool {
        match self {
            Self::RocksDb | Self::NewStore => cfg!(feature = "rocksdb"),
            Self::LevelDb => cfg!(feature = "leveldb"),
        }
    }
}

impl StripLen {
    fn bytes(self) -> Result<u64> {
        match self {
            Self::None => Ok(u64::MAX),
            Self::Bytes(bytes) if bytes.is_power_of_two() && (STRIP_BYTES_MIN..=STRIP_BYTES_MAX).contains(&bytes) => {
                Ok(bytes)
            }
            Self::Bytes(found) => Err(Error::BadStrip { found, min: STRIP_BYTES_MIN, max: STRIP_BYTES_MAX }),
        }
    }
}

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// How bytes are cut. Said once, when the store is made; later it has to be the same, or left out. 4 KiB by
    /// default.
    pub strip: Option<StripLen>,
    /// Memory for blocks that were read, in bytes. 256 MiB by default.
    pub cache_bytes: usize,
    /// Longest time that an applied transaction that no caller waits for stays unwritten. 1 s by default.
    pub applied_flush: Duration,
    /// newstore: writes of at least so many bytes go to a file of their own. 64 KiB by default.
    pub large_bytes: usize,
    /// Whether a store that does not exist is made. True by default.
    pub create: bool,
}

/// The strip of stores that are made without saying it.
const STRIP_DEFAULT: StripLen = StripLen::Bytes(4 << 10);

impl Default for Options {
    fn default() -> Self {
        Self {
            strip: None,
            cache_bytes: 256 << 20,
            applied_flush: Duration::from_secs(1),
            large_bytes: 64 << 10,
            create: true,
        }
    }
}

impl KeyValueStore {
    /// Opens the store of this kind in the folder `path`, making it if it does not exist.
    ///
    /// # Errors
    /// See [`Error`]; a kind that this build leaves out is [`esker_store::Error::Unsupported`] in [`Error::Store`].
    pub fn open(kind: Kind, path: &Path, options: &Options) -> Result<Self> {
        if !kind.is_built_in() {
            let what = "be opened: this build leaves it out (features `rocksdb` and `leveldb`)";
            return Err(esker_store::Error::Unsupported { backend: kind.name(), what }.into());
        }
        if let Some(strip) = options.strip {
            strip.bytes()?;
        }
        let (lock, strip) = claim(kind, path, options)?;
        let store = database(kind, &path.join("db"), options)?;
        let files = match kind {
            Kind::NewStore => Some(Files::open(&path.join("files")).map_err(at(&path.join("files")))?),
            _ => None,
        };
        // The names of both.
        sync_folder(path).map_err(at(path))?;
        Self::on(store, files, strip.bytes()?, options, kind.name(), Some(lock), path)
    }

    /// A store on an ordered key-value store of the caller's, which holds nothing or what such a store has left in it.
    ///
    /// # Errors
    /// [`Error::Store`] if what is there does not hold.
    pub fn over(store: Box<dyn Ordered>, options: &Options) -> Result<Self> {
        let strip = options.strip.unwrap_or(STRIP_DEFAULT).bytes()?;
        Self::on(store, None, strip, options, "keyvalue", None, Path::new("keyvalue"))
    }

    fn on(
        store: Box<dyn Ordered>,
        files: Option<Files>,
        strip_bytes: u64,
        options: &Options,
        backend: &'static str,
        lock: Option<File>,
        path: &Path,
    ) -> Result<Self> {
        let (seq, number) = store.get(keys::META)?.map(|value| decode_meta(&value)).transpose()?.unwrap_or((0, 0));
        let state = State {
            store,
            overlay: RwLock::default(),
            files,
            strip_bytes,
            large_bytes: options.large_bytes.max(1),
            numbers: AtomicU64::new(number),
        };
        if let Some(files) = &state.files {
            let removed = files.keep_only(&named_files(&state)?).map_err(at(path))?;
            if removed > 0 {
                tracing::info!(removed, "removed files that nothing names");
            }
        }
        Self::start(state, seq, options.applied_flush, backend, lock).map_err(at(path))
    }
}

/// The kind of store that a folder says it holds; `None` if it is no folder of this crate's.
pub fn kind_of(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path.join(KIND_FILE)).ok()?.take(KIND_FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    let mut lines = text.lines();
    let ours = lines.next() == Some(TITLE);
    lines.next()?.strip_prefix("kind ").filter(|_| ours).map(str::to_string)
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_path_buf();
    move |source| Error::Io { path, source }
}

/// The files that records name.
fn named_files(state: &State) -> Result<HashSet<u64>> {
    let mut named = HashSet::new();
    Draft::new(state).scan(b"f", b"g", false, &mut |key, _| {
        let number = key[1..].try_into().map_err(|_| corrupt("file record", key))?;
        named.insert(u64::from_be_bytes(number));
        Ok(true)
    })?;
    Ok(named)
}

#[allow(unused_variables, reason = "without features there is no kind")]
fn database(kind: Kind, path: &Path, options: &Options) -> Result<Box<dyn Ordered>> {
    let engine = |why: String| Error::Engine { path: path.to_path_buf(), why };
    match kind {
        #[cfg(feature = "rocksdb")]
        Kind::RocksDb | Kind::NewStore => {
            let opened = crate::engines::rocksdb::RocksDb::open(path, options.cache_bytes).map_err(engine)?;
            Ok(Box::new(opened))
        }
        #[cfg(feature = "leveldb")]
        Kind::LevelDb => {
            let opened = crate::engines::leveldb::LevelDb::open(path, options.cache_bytes).map_err(engine)?;
            Ok(Box::new(opened))
        }
        #[allow(unreachable_patterns, reason = "with all features every kind is above")]
        _ => Err(engine("this build leaves the kind out".into())),
    }
}

/// Locks the folder and reads, or writes, what it is.
fn claim(kind: Kind, path: &Path, options: &Options) -> Result<(File, StripLen)> {
    let kind_path = path.join(KIND_FILE);
    if !kind_path.exists() {
        if !options.create {
            return Err(Error::NotFound { path: path.to_path_buf() });
        }
        make_folder(path).map_err(at(path))?;
        // Before the lock's file is made: a foreign folder stays as it is.
        refuse_foreign(path, &kind_path)?;
    }
    let lock = lock(path)?;
    // Only now: another process may have made a store before it let go of the lock.
    if kind_path.exists() {
        let strip = read_kind(kind, path, &kind_path)?;
        return match options.strip {
            Some(expected) if expected != strip => {
                Err(Error::OtherStrip { path: path.to_path_buf(), found: strip, expected })
            }
            _ => Ok((lock, strip)),
        };
    }
    if !options.create {
        return Err(Error::NotFound { path: path.to_path_buf() });
    }
    refuse_foreign(path, &kind_path)?;
    let strip = options.strip.unwrap_or(STRIP_DEFAULT);
    let text = format!("{TITLE}\nkind {}\nversion {FORMAT_VERSION}\nstrip {strip}\n", kind.name());
    let new = path.join("kind.new");
    let written = (|| {
        let mut file = File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &kind_path)?;
        sync_folder(path)?;
        // The folder's own name, even if another process made it.
        sync_folder(&parent(path))
    })();
    written.map_err(at(&kind_path))?;
    Ok((lock, strip))
}

/// Refuses a folder with something in it and no kind file.
fn refuse_foreign(path: &Path, kind_path: &Path) -> Result<()> {
    for entry in fs::read_dir(path).map_err(at(path))? {
        let name = entry.map_err(at(path))?.file_name();
        // What an opening that was cut short leaves. A kind file may have come meanwhile.
        if name != "lock" && name != "kind.new" && !kind_path.exists() {
            let why = format!("it holds {} and no kind file", name.display());
            return Err(Error::NoStore { path: path.to_path_buf(), why });
        }
    }
    Ok(())
}

/// The folder that holds a path's last name.
fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        Some(_) => ".".into(),
        None => path.to_path_buf(),
    }
}

/// The folders that get a new name when `path` is made.
fn growing_folders(path: &Path) -> Vec<PathBuf> {
    path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).map(parent).collect()
}

fn sync_folder(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

/// Makes a folder and those above it, and makes their names durable.
fn make_folder(path: &Path) -> std::io::Result<()> {
    let growing = growing_folders(path);
    fs::create_dir_all(path)?;
    growing.iter().try_for_each(|folder| sync_folder(folder))
}

fn lock(path: &Path) -> Result<File> {
    let lock_path = path.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&lock_path).map_err(at(&lock_path))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(error) if error == rustix::io::Errno::WOULDBLOCK => Err(Error::InUse { path: path.to_path_buf() }),
        Err(error) => Err(at(&lock_path)(error.into())),
    }
}

/// The strip that the kind file tells, if the rest is as expected.
fn read_kind(kind: Kind, path: &Path, kind_path: &PathBuf) -> Result<StripLen> {
    let mut text = String::new();
    let no_store = |why: String| Error::NoStore { path: path.to_path_buf(), why };
    let file = File::open(kind_path).map_err(at(kind_path))?;
    file.take(KIND_FILE_BYTES_MAX).read_to_string(&mut text).map_err(at(kind_path))?;
    let mut lines = text.lines();
    if lines.next() != Some(TITLE) {
        return Err(no_store(format!("its kind file does not begin with {TITLE}")));
    }
    let mut field = |name: &str| {
        let line = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map(str::to_string).ok_or_else(|| no_store(format!("its kind file has no line `{name}` in its place")))
    };
    let (found, version) = (field("kind")?, field("version")?);
    let version: u32 = version.parse().map_err(|_| no_store(format!("its version is {version:?}, not a number")))?;
    // The version first: what follows may mean something else there.
    if version > FORMAT_VERSION {
        return Err(Error::NewerVersion { path: path.to_path_buf(), found: version, newest: FORMAT_VERSION });
    }
    if found != kind.name() {
        return Err(Error::OtherKind { path: path.to_path_buf(), found, expected: kind.name() });
    }
    let strip = field("strip")?;
    let parsed: Option<StripLen> = strip.parse().ok();
    parsed.filter(|strip| strip.bytes().is_ok()).ok_or_else(|| no_store(format!("its strip is {strip:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_folder_that_gets_a_new_name_is_synced() {
        let there = tempfile::tempdir().expect("a folder for the test");
        let at = |name: &str| there.path().join(name);
        assert_eq!(growing_folders(&at("a/b/c")), [at("a/b"), at("a"), there.path().to_path_buf()]);
        assert!(growing_folders(there.path()).is_empty());
        assert_eq!(growing_folders(Path::new("no-such-folder/b")), [Path::new("no-such-folder"), Path::new(".")]);
        make_folder(&at("a/b/c")).expect("made");
        assert!(at("a/b/c").is_dir());
    }
}

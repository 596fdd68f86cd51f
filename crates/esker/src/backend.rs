//! Backends other than the engine and memory: what they are called in a URL, which options they take, how they are
//! opened.
//!
//! `file:PATH?checkpoint=16m` → [`Scheme`] → [`Scheme::open`] → [`Opened`]
//!
//! This is the one place where a backend is added: a line in [`SCHEMES`] and a function that opens it. Those with
//! native dependencies stand behind a cargo feature of the same name, off by default.
//!
//! Invariants:
//! 1. A folder that holds a store of another kind is never written to: [`refuse_foreign`] looks before any backend
//!    does.
//! 2. Every option of a scheme is named in its list, and an option that is not is an error before anything is opened.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use esker_engine::Engine;
use esker_file::{FileStore, MARKER, Marker};
use esker_keyvalue::Kind::{self, LevelDb, NewStore, RocksDb};
use esker_keyvalue::{KIND_FILE, KeyValueStore, StripLen};
use esker_store::ObjectStore;

use crate::place::DEVICE_FILE;
use crate::{ByteSize, Error, Period, Result};

/// Options as they stand in a location.
pub(crate) type Pairs = Vec<(String, String)>;

/// An open store of a backend.
pub(crate) struct Opened {
    pub objects: Arc<dyn ObjectStore>,
    /// The engine below it, in this process.
    pub engine: Option<Arc<Engine>>,
    /// Makes everything durable and lets go of the folder.
    pub close: Box<dyn Fn() -> esker_store::Result<()> + Send + Sync>,
    /// Syncs since it was opened.
    pub syncs: Box<dyn Fn() -> u64 + Send + Sync>,
    pub path: PathBuf,
    pub created: bool,
    /// Whether other processes may have the store open at the same time.
    pub shared: bool,
    /// How the server was reached whose store this is; sequencers are reached so too.
    pub remote: Option<esker_remote::Options>,
}

/// A backend's name in a URL, and what it takes.
#[derive(Debug)]
pub(crate) struct Scheme {
    pub name: &'static str,
    /// Names of its options, `create` and `expire` apart, which all have.
    options: &'static [&'static str],
    open: fn(&Path, bool, &Pairs) -> Result<Opened>,
}

impl PartialEq for Scheme {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Scheme {}

/// What a location may begin with, as messages name it.
pub(crate) const SCHEMES_SHOWN: &str = "esker:PATH, file:PATH, rocksdb:PATH, leveldb:PATH, newstore:PATH, rados:POOL/NAME, grpc://HOST:PORT, grpc+unix:PATH, memory:, or a plain path";

const SCHEMES: &[Scheme] = &[
    Scheme { name: "file", options: &["checkpoint", "folder_files", "cache"], open: open_file },
    Scheme {
        name: "rocksdb",
        options: &["strip", "cache"],
        open: |path, create, pairs| open_keyvalue(RocksDb, path, create, pairs),
    },
    Scheme {
        name: "leveldb",
        options: &["strip", "cache"],
        open: |path, create, pairs| open_keyvalue(LevelDb, path, create, pairs),
    },
    Scheme {
        name: "newstore",
        options: &["strip", "cache", "large"],
        open: |path, create, pairs| open_keyvalue(NewStore, path, create, pairs),
    },
    Scheme { name: "rados", options: &["conf", "user", "timeout", "data_pool"], open: open_rados },
    Scheme { name: "grpc", options: REMOTE_OPTIONS, open: |path, _, pairs| open_remote("", path, pairs) },
    Scheme {
        name: "grpc+unix",
        options: REMOTE_OPTIONS,
        open: |path, _, pairs| open_remote("grpc+unix:", path, pairs),
    },
];

/// Options of a server's store.
const REMOTE_OPTIONS: &[&str] = &["token_file", "authorities", "certificate", "key", "timeout"];

impl Scheme {
    /// The scheme of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        SCHEMES.iter().find(|scheme| scheme.name == name)
    }

    /// Whether it takes this option.
    pub fn takes(&self, option: &str) -> bool {
        self.options.contains(&option)
    }

    /// The names of its options, for messages.
    pub fn options_shown(&self) -> String {
        [self.options, &["create", "expire", "map_sweep"]].concat().join(", ")
    }

    /// The map of the running server at `path`; `None` where the scheme is of no server.
    ///
    /// # Errors
    /// [`Error::BadOption`], [`Error::Remote`].
    pub fn map_of_server(&self, path: &Path, options: &Pairs) -> Result<Option<esker_remote::RemoteMap>> {
        let prefix = match self.name {
            "grpc" => "",
            "grpc+unix" => "grpc+unix:",
            _ => return Ok(None),
        };
        let (place, options) = remote(prefix, path, options)?;
        esker_remote::RemoteMap::connect(place, &options).map(Some).map_err(Error::Remote)
    }

    /// Opens the store at `path`.
    ///
    /// # Errors
    /// [`Error::OtherBackend`], [`Error::BadOption`], and those of the backend.
    pub fn open(&self, path: &Path, create: bool, options: &Pairs) -> Result<Opened> {
        if self.name != "rados" {
            refuse_foreign(path, self.name)?;
        }
        (self.open)(path, create, options)
    }
}

/// Refuses a folder that holds a store of another kind than `wanted`.
pub(crate) fn refuse_foreign(path: &Path, wanted: &'static str) -> Result<()> {
    match found_in(path) {
        Some(found) if found != wanted => {
            Err(Error::OtherBackend { path: path.to_path_buf(), found, expected: wanted })
        }
        _ => Ok(()),
    }
}

/// What kind of store a folder holds, as far as it can be told without opening it.
fn found_in(path: &Path) -> Option<String> {
    if path.join(DEVICE_FILE).exists() {
        return Some("esker".into());
    }
    if let Ok(line) = std::fs::read_to_string(path.join(MARKER)) {
        return Marker::parse(&line).map(|marker| marker.kind);
    }
    if let Some(kind) = esker_keyvalue::kind_of(path) {
        return Some(kind);
    }
    let names: Vec<String> = path
        .read_dir()
        .ok()?
        .flatten()
        .take(1_000)
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let any = |prefix: &str| names.iter().any(|name| name.starts_with(prefix));
    let is_log_tree = any("CURRENT") && any("MANIFEST-");
    // Only RocksDB writes its options down.
    is_log_tree.then(|| if any("OPTIONS-") { "rocksdb".into() } else { "leveldb".into() })
}

fn read<T: FromStr<Err: std::fmt::Display>>(key: &str, value: &str) -> Result<T> {
    value.parse().map_err(|error: T::Err| Error::BadOption {
        key: key.to_string(),
        found: value.to_string(),
        why: error.to_string(),
    })
}

fn open_file(path: &Path, create: bool, pairs: &Pairs) -> Result<Opened> {
    let mut options = esker_file::Options { create, ..Default::default() };
    for (key, value) in pairs {
        match key.as_str() {
            "checkpoint" => options.checkpoint_bytes = read::<ByteSize>(key, value)?.0,
            "cache" => options.cache_bytes = read::<ByteSize>(key, value)?.0,
            _ => options.folder_files_max = read(key, value)?,
        }
    }
    let store = Arc::new(FileStore::open(path, options).map_err(file_error)?);
    let created = store.made();
    let objects = Arc::clone(&store) as Arc<dyn ObjectStore>;
    let counted = Arc::clone(&store);
    let syncs = Box::new(move || counted.syncs());
    Ok(Opened {
        objects,
        engine: None,
        close: Box::new(move || store.close()),
        syncs,
        path: path.to_path_buf(),
        created,
        shared: false,
        remote: None,
    })
}

fn open_keyvalue(kind: Kind, path: &Path, create: bool, pairs: &Pairs) -> Result<Opened> {
    if !kind.is_built_in() {
        let feature = if kind == LevelDb { "leveldb" } else { "rocksdb" };
        return Err(Error::NotBuilt { scheme: kind.name(), feature });
    }
    let mut options = esker_keyvalue::Options { create, ..Default::default() };
    for (key, value) in pairs {
        match key.as_str() {
            "strip" if value == "none" => options.strip = Some(StripLen::None),
            "strip" => options.strip = Some(StripLen::Bytes(read::<ByteSize>(key, value)?.0)),
            "cache" => options.cache_bytes = read::<ByteSize>(key, value)?.0 as usize,
            _ => options.large_bytes = read::<ByteSize>(key, value)?.0 as usize,
        }
    }
    let created = !path.join(KIND_FILE).exists();
    let store = Arc::new(KeyValueStore::open(kind, path, &options).map_err(|error| keyvalue_error(kind, error))?);
    let objects = Arc::clone(&store) as Arc<dyn ObjectStore>;
    let counted = Arc::clone(&store);
    let syncs = Box::new(move || counted.figures().syncs);
    Ok(Opened {
        objects,
        engine: None,
        close: Box::new(move || store.close()),
        syncs,
        path: path.to_path_buf(),
        created,
        shared: false,
        remote: None,
    })
}

/// Where a server is, and how it is reached, as a location says.
fn remote(scheme: &str, path: &Path, pairs: &Pairs) -> Result<(esker_remote::Place, esker_remote::Options)> {
    let mut options = esker_remote::Options::default();
    let (mut certificate, mut own_key) = (None, None);
    for (key, value) in pairs {
        match key.as_str() {
            "token_file" => {
                let io = |source| Error::Io { what: "read", path: value.into(), source };
                let text = std::fs::read_to_string(value).map_err(io)?;
                options.token = Some(text.lines().next().unwrap_or_default().to_string());
            }
            "authorities" => options.authorities = Some(value.into()),
            "certificate" => certificate = Some(value.into()),
            "key" => own_key = Some(value.into()),
            _ => options.timeout = read::<Period>(key, value)?.0,
        }
    }
    options.identity = match (certificate, own_key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (certificate, _) => {
            let (given, lacking) = if certificate.is_some() { ("certificate", "key") } else { ("key", "certificate") };
            let why = format!("only of use together with {lacking}");
            return Err(Error::Remote(esker_remote::Error::Option { what: given, why }));
        }
    };
    let place = format!("{scheme}{}", path.to_string_lossy()).parse().map_err(Error::Remote)?;
    Ok((place, options))
}

/// The store of a running server, at an address that takes the place of a path.
fn open_remote(scheme: &str, path: &Path, pairs: &Pairs) -> Result<Opened> {
    let (place, options) = remote(scheme, path, pairs)?;
    let store = Arc::new(esker_remote::RemoteStore::connect(place, &options).map_err(Error::Remote)?);
    let objects = Arc::clone(&store) as Arc<dyn ObjectStore>;
    let close = Box::new(move || store.sync().wait().map(drop));
    Ok(Opened {
        objects,
        engine: None,
        close,
        syncs: Box::new(|| 0),
        path: path.to_path_buf(),
        created: false,
        shared: true,
        remote: Some(options),
    })
}

#[cfg(not(feature = "rados"))]
fn open_rados(_: &Path, _: bool, _: &Pairs) -> Result<Opened> {
    Err(Error::NotBuilt { scheme: "rados", feature: "rados" })
}

/// The store in a pool of Ceph: a pool and a name take the place of a path.
#[cfg(feature = "rados")]
fn open_rados(path: &Path, create: bool, pairs: &Pairs) -> Result<Opened> {
    let mut options = esker_rados::Options { create, ..Default::default() };
    for (key, value) in pairs {
        match key.as_str() {
            "conf" => options.conf = Some(value.into()),
            "user" => options.user = Some(value.clone()),
            "data_pool" => {
                let holds = vec![(esker_volume::COLLECTION.into(), esker_volume::DATA_NAMES.to_vec())];
                options.data = Some(esker_rados::DataPool { pool: value.clone(), holds });
            }
            _ => options.timeout = read::<Period>(key, value)?.0,
        }
    }
    let place = path.to_string_lossy();
    let store = esker_rados::RadosStore::connect(&place, &options).map_err(|error| match error {
        esker_rados::OpenError::Place { found } => Error::Location { found, expected: "rados:POOL/NAME" },
        esker_rados::OpenError::Missing { .. } => Error::NotFound { path: path.to_path_buf() },
        esker_rados::OpenError::Store(error) => Error::Store(error),
        // A pool, a file or a setting that is not there, or no answer: told by its text.
        other => Error::Store(esker_store::Error::io(format!("opening rados:{place}"), std::io::Error::other(other))),
    })?;
    Ok(Opened {
        objects: Arc::new(store),
        engine: None,
        close: Box::new(|| Ok(())),
        syncs: Box::new(|| 0),
        path: path.to_path_buf(),
        created: false,
        shared: true,
        remote: None,
    })
}

fn keyvalue_error(kind: Kind, error: esker_keyvalue::Error) -> Error {
    use esker_keyvalue::Error as E;
    let bad = |key: &str, found: String, why: String| Error::BadOption { key: key.into(), found, why };
    match error {
        E::OtherKind { path, found, .. } => Error::OtherBackend { path, found, expected: kind.name() },
        E::NewerVersion { path, found, newest } => Error::Newer { path, found, known: newest },
        E::InUse { path } => Error::InUse { path },
        E::NotFound { path } => Error::NotFound { path },
        E::OtherStrip { found, expected, .. } => {
            bad("strip", expected.to_string(), format!("the store was made with strip={found}"))
        }
        E::BadStrip { found, min, max } => {
            bad("strip", found.to_string(), format!("expected none, or a power of two from {min} to {max}"))
        }
        E::Store(error) => Error::Store(error),
        // Both engines begin their messages with the kind of failure, and tell it in no other way.
        E::Engine { path, why } if why.starts_with("Corruption") => {
            Error::Store(esker_store::Error::Corrupt { offset: 0, what: format!("{}: {why}", path.display()) })
        }
        E::Io { path, source } => Error::Io { what: "open", path, source },
        // What is not told apart here is told by its text.
        other => Error::Store(esker_store::Error::io("opening the store", std::io::Error::other(other))),
    }
}

fn file_error(error: esker_file::Error) -> Error {
    match error {
        esker_file::Error::NotFound { path } => Error::NotFound { path },
        esker_file::Error::InUse { path } => Error::InUse { path },
        esker_file::Error::Foreign { path, found } => Error::OtherBackend { path, found, expected: "file" },
        esker_file::Error::Newer { path, found, known } => Error::Newer { path, found, known },
        esker_file::Error::HalfMade { path } => Error::HalfMade { path },
        esker_file::Error::Io { what, path, source } => Error::Io { what, path, source },
        esker_file::Error::Store(error) => Error::Store(error),
        // The enum may grow; what is not told apart here is told by its text.
        other => Error::Store(esker_store::Error::io("opening the store", std::io::Error::other(other))),
    }
}

#[cfg(test)]
mod tests {
    use esker_keyvalue::Error as E;
    use esker_store::Error as StoreError;

    use super::*;

    #[test]
    fn damage_met_at_opening_stays_damage() {
        let corrupt = StoreError::Corrupt { offset: 0, what: "object head".into() };
        let engine = |why: &str| E::Engine { path: "/data/db".into(), why: why.into() };
        let damaged = |error| matches!(error, Error::Store(StoreError::Corrupt { .. }));
        assert!(damaged(keyvalue_error(LevelDb, E::Store(corrupt))));
        let told = keyvalue_error(LevelDb, engine("Corruption: checksum mismatch"));
        assert!(told.to_string().contains("/data/db: Corruption: checksum mismatch"), "{told}");
        assert!(damaged(told));
        assert!(!damaged(keyvalue_error(RocksDb, engine("IO error: no space left"))));
        let stopped = keyvalue_error(RocksDb, E::Store(StoreError::Closed));
        assert!(matches!(stopped, Error::Store(StoreError::Closed)), "{stopped}");
    }
}

//! How a store is opened: settings in code, overridden by the options of its location.
//!
//! [`Builder`] + `path?size=1g&policy=group:2ms` → [`Store`]
//!
//! Invariant: every setting has the same name and meaning in both, and an option that does not exist is an error.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use esker_device::Device;
use esker_engine::{
    CachePolicy, CheckReport, CommitPolicy, CompressOptions, DumpItem, DumpOptions, Engine, GrowReport, Lost, Options,
    RepairHooks, RepairReport, RestoreReport, ScrubReport, What, segment_bytes_within,
};
use esker_kv::{Clock, SystemClock};
use esker_store::{ObjectId, ObjectStore};

use crate::backend::{Opened, Pairs, refuse_foreign};
use crate::location::{Location, Place};
use crate::memory::{MemorySize, default_segment_bytes, engine_options, memory_bytes};
use crate::place::{
    Made, device_path, fill_file, format_device, is_block_device, is_same_file, lengthen, make_file, open_device,
    random_id, random_number, remove, take_space,
};
use crate::store::{Background, Backing};
use crate::{ByteSize, Error, Period, Result, Store};

/// The options that a location may carry, as messages name them.
const OPTIONS: &str = "size, segment, policy, memory, recent, cache, cache_policy, index, pending, pinned, async_flush, recovery, scrub, compress, compress_min, \
     compress_unit, compress_ratio, expire, map_sweep, read_only, create";

/// Settings for opening a store. Made by [`Store::builder`].
///
/// ```
/// use std::time::Duration;
/// use esker::{CommitPolicy, Store};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data");
/// # let path = path.to_str().unwrap();
/// let store = Store::builder()
///     .size(1 << 30)
///     .policy(CommitPolicy::Group { window: Duration::from_millis(2) })
///     .open(path)?;
/// store.close()?;
///
/// // The same, in the location.
/// let store = Store::open(&format!("{path}?size=1g&policy=group:2ms"))?;
/// # store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Builder {
    size: Option<u64>,
    segment_bytes: u64,
    create: bool,
    expire_interval: Duration,
    map_sweep: u64,
    options: Options,
    /// What was said of all memory, ...
    memory_bytes: Option<u64>,
    /// That the process opens.
    stores: u64,
    /// ... and of which parts something was said.
    said: Said,
    clock: Arc<dyn Clock>,
    sequencers: Option<esker_remote::Options>,
    /// Options of the location that belong to its backend.
    backend_options: Pairs,
}

/// Of which settings of memory something was said.
#[derive(Clone, Copy, Default)]
struct Said {
    recent: bool,
    cache: bool,
    index: bool,
    pending: bool,
    pinned: bool,
    segment: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            size: None,
            segment_bytes: default_segment_bytes(),
            create: true,
            expire_interval: Duration::from_secs(1),
            map_sweep: 0,
            options: engine_options(),
            memory_bytes: None,
            stores: 1,
            said: Said::default(),
            clock: Arc::new(SystemClock),
            sequencers: None,
            backend_options: Pairs::new(),
        }
    }
}

impl Store {
    /// Opens the store at `location`, making it if it does not exist.
    ///
    /// `location` is a path, `esker:PATH`, `file:PATH` or another backend's, or `memory:`. A path that is a folder (or
    /// does not exist and does not end in `.esker`) means the file `store.esker` in it; any other is the store's file
    /// or block device itself. Behind a `?` come options, joined by `&`: see [`Builder`], whose methods name them.
    ///
    /// # Errors
    /// See [`Builder::open`].
    pub fn open(location: &str) -> Result<Self> {
        Self::builder().open(location)
    }

    /// Settings for opening a store.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Builder {
    /// Length in bytes of a store that is made (option `size`). By default 64 GiB, or 90 % of the free disk if that
    /// is less; the file is sparse, so it takes only what is written.
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = Some(bytes);
        self
    }

    /// Segment size in bytes of a store that is made, a power of two from 64 KiB to 1 GiB (option `segment`).
    /// By default 64 MiB, or a 64th of the memory that this process may have if that is less, but at least 1 MiB. A
    /// transaction has to fit into a segment.
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        (self.segment_bytes, self.said.segment) = (bytes, true);
        self
    }

    /// This store is one of so many that the process opens, which share the memory that it may have: settings of memory
    /// are made as large as fits into its part, before those that are given. 1 by default; 0 is taken for 1.
    pub fn one_of(mut self, stores: u64) -> Self {
        self.stores = stores.max(1);
        if let Some(bytes) = memory_bytes().filter(|_| stores > 1) {
            self.options = self.options.within(bytes / stores);
        }
        self
    }

    /// Memory for this store, in bytes (option `memory`), shared out among what was just written, what was read, the
    /// index and what writers may be ahead: see [`Options::sharing`]. Segments of a store that is made are a 64th of it
    /// at most. What is said of any of these itself counts, before or after. At least [`MemorySize::MIN`].
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = Some(bytes.max(MemorySize::MIN.0));
        self
    }

    /// Shares out what was said of all memory among the settings of which nothing was said.
    fn share_memory(&mut self) {
        let Some(bytes) = self.memory_bytes else { return };
        let shared = Options::default().sharing(bytes);
        let (said, own) = (self.said, &mut self.options);
        for (said, own, shared) in [
            (said.recent, &mut own.recent_bytes, shared.recent_bytes),
            (said.cache, &mut own.cache_bytes, shared.cache_bytes),
            (said.index, &mut own.index_bytes, shared.index_bytes),
            (said.pending, &mut own.pending_bytes_max, shared.pending_bytes_max),
            (said.pinned, &mut own.pinned_bytes_max, shared.pinned_bytes_max),
            (said.segment, &mut self.segment_bytes, segment_bytes_within(bytes).min(default_segment_bytes())),
        ] {
            if !said {
                *own = shared;
            }
        }
    }

    /// When commits are synced (option `policy`: `adaptive`, `batch`, `group:WINDOW` or
    /// `periodic:INTERVAL`). `adaptive` by default.
    pub fn policy(mut self, policy: CommitPolicy) -> Self {
        self.options.policy = policy;
        self
    }

    /// Memory for data that was just written, in bytes (option `recent`), which has what the cache does not use beside
    /// it, unless this is 0. 128 MiB by default; as all settings of memory less where this process may not have 4 GiB,
    /// by the limit of its cgroup or by the machine's memory: see [`Options::within`].
    pub fn recent_bytes(mut self, bytes: u64) -> Self {
        (self.options.recent_bytes, self.said.recent) = (bytes, true);
        self
    }

    /// Memory for pages of the index, in bytes, at least 1 MiB (option `index`): above it pages that were not used
    /// lately leave memory and are read back when they are needed. By default a third of the memory that this process
    /// may have, an eighth of less than 8 GiB. See [`Options::index_bytes`].
    pub fn index_bytes(mut self, bytes: u64) -> Self {
        (self.options.index_bytes, self.said.index) = (bytes, true);
        self
    }

    /// Bytes that writers may be ahead of the device (option `pending`). 256 MiB by default.
    pub fn pending_bytes(mut self, bytes: u64) -> Self {
        (self.options.pending_bytes_max, self.said.pending) = (bytes, true);
        self
    }

    /// Memory, in bytes, that values which were handed out may keep beside what was just written (option `pinned`):
    /// above it they are copied. 256 MiB by default.
    pub fn pinned_bytes(mut self, bytes: u64) -> Self {
        (self.options.pinned_bytes_max, self.said.pinned) = (bytes, true);
        self
    }

    /// How long opening after a crash may take (option `recovery`): checkpoints are written so often that it does. 3 s
    /// by default; a shorter time writes more. See [`Options::recovery_time`].
    pub fn recovery_time(mut self, time: Duration) -> Self {
        self.options.recovery_time = time;
        self
    }

    /// Has `progress` told how far opening has come, from several threads: see [`Options::progress`].
    pub fn opening(mut self, progress: esker_engine::Progress) -> Self {
        self.options.progress = Some(progress);
        self
    }

    /// Memory for data that was read from the device, in bytes (option `cache`). 256 MiB by default.
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        (self.options.cache_bytes, self.said.cache) = (bytes, true);
        self
    }

    /// Which of that data stays when there is more of it (option `cache_policy`: `clock`, `lru`, `arc`, `s3-fifo` or
    /// `w-tinylfu`). `clock` by default.
    pub fn cache_policy(mut self, policy: CachePolicy) -> Self {
        self.options.cache_policy = policy;
        self
    }

    /// Bytes per second that are read and verified in the background (option `scrub`); 0 is off. 8 MiB by default.
    pub fn scrub_bytes_per_s(mut self, rate: u64) -> Self {
        self.options.scrub_bytes_per_s = rate;
        self
    }

    /// Longest time that a write stays unsynced while no caller waits for it (option `async_flush`). Default: 1 s.
    pub fn async_flush(mut self, longest: Duration) -> Self {
        self.options.async_flush = longest;
        self
    }

    /// What is compressed of transactions that ask for it, and what of that is kept (options `compress`: the hint of
    /// those that do not ask, `none`, `lz4` or `zstd`; `compress_min` and `compress_unit` in bytes; `compress_ratio`).
    /// By default only what asks for it, from 512 bytes on, in units of 64 KiB, if it gets to 0.875 of its length or
    /// less.
    pub fn compress(mut self, options: CompressOptions) -> Self {
        self.options.compress = options;
        self
    }

    /// How sequencers are reached that hand out positions of logs ([`Store::logs`]). By default as the server whose
    /// store this is; where this process opens it itself, without TLS and token.
    pub fn sequencers(mut self, options: esker_remote::Options) -> Self {
        self.sequencers = Some(options);
        self
    }

    /// How often expired keys are removed in the background, once the key-value face is in use (option `expire`).
    /// One second by default; zero means never. It only decides when their space comes back: an expired key is never
    /// returned.
    pub fn expire_interval(mut self, interval: Duration) -> Self {
        self.expire_interval = interval;
        self
    }

    /// How many expired rows of the map are removed per second in the background, at most, once the map is in use
    /// (option `map_sweep`). 0 by default: none are, until [`Waist::sweep`](esker_map::Waist::sweep) is called. It only
    /// decides when their space comes back: an expired row is never returned.
    pub fn map_sweep(mut self, rows_per_s: u64) -> Self {
        self.map_sweep = rows_per_s;
        self
    }

    /// Opens without writing a byte; writes are refused (option `read_only=true`). Nothing is made.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.options.read_only = read_only;
        self
    }

    /// Whether a store that does not exist is made (option `create`). True by default.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// The clock that expiry goes by. The system's by default.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Opens the store at `location`: a path, `esker:PATH`, `file:PATH` or another backend's, or `memory:`, with
    /// options behind a `?`. Of the settings made by methods, other backends than the engine heed [`Builder::create`],
    /// [`Builder::expire_interval`], [`Builder::map_sweep`] and [`Builder::clock`].
    ///
    /// # Errors
    /// [`Error::Location`], [`Error::UnknownOption`], [`Error::BadOption`] say what was found and what is expected;
    /// [`Error::InUse`] if another process has it open; [`Error::NotFound`] if it is not to be made;
    /// [`Error::Store`] if what is there is no store, a newer one, or damaged; [`Error::OtherBackend`],
    /// [`Error::HalfMade`], [`Error::Newer`] where a folder is not what the location says; [`Error::NotBuilt`].
    pub fn open(self, location: &str) -> Result<Store> {
        let (builder, place) = self.at(location)?;
        let path = match place {
            Place::Path(path) => path,
            Place::Backend(scheme, path) => {
                let opened = scheme.open(&path, builder.create, &builder.backend_options)?;
                return Ok(Store::new(Backing::Backend(opened), builder.background()));
            }
            Place::Memory => {
                let store = Arc::new(esker_memory::MemoryStore::new());
                return Ok(Store::new(Backing::Memory(store), builder.background()));
            }
        };
        refuse_foreign(&path, "esker")?;
        let path = device_path(&path);
        let read_only = builder.options.read_only;
        let (device, created) = match open_device(&path, read_only) {
            Err(Error::NotFound { .. }) if builder.create && !read_only => {
                let (_, device) = make_file(&path, builder.size, builder.segment_bytes, false, &mut |_, _| {})?;
                (device, true)
            }
            other => (other?, false),
        };
        let background = builder.background();
        let engine = Arc::new(Engine::open(Arc::clone(&device) as Arc<dyn Device>, builder.options)?);
        let there_is = memory_bytes().map_or(u64::MAX, |bytes| bytes / builder.stores);
        let memory = builder.memory_bytes.unwrap_or(there_is);
        if memory > there_is {
            tracing::warn!(memory_bytes = memory, there_is, "the store may take more memory than there is for it");
        }
        let segment_bytes = engine.stats().segment_bytes;
        if segment_bytes > segment_bytes_within(memory).max(1 << 20) * 2 {
            tracing::warn!(
                segment_bytes,
                memory_bytes = memory,
                "the segments of this store are large for the memory there is: eight or more of them may be in memory at a time"
            );
        }
        Ok(Store::new(Backing::Engine { engine, device, path, created }, background))
    }

    /// The faces of a store that is open already, such as a replicated one: of the settings those count that
    /// [`Builder::open`] heeds for other backends. `engine` and `path` are told of by [`Store::engine`] and
    /// [`Store::path`]; who opened the store closes it.
    pub fn over(self, objects: Arc<dyn ObjectStore>, engine: Option<Arc<Engine>>, path: &Path) -> Store {
        let syncs: Box<dyn Fn() -> u64 + Send + Sync> = match &engine {
            Some(engine) => {
                let engine = Arc::clone(engine);
                Box::new(move || engine.stats().syncs)
            }
            None => Box::new(|| 0),
        };
        let opened = Opened {
            objects,
            engine,
            close: Box::new(|| Ok(())),
            syncs,
            path: path.to_path_buf(),
            created: false,
            shared: false,
            remote: None,
        };
        Store::new(Backing::Backend(opened), self.background())
    }

    /// What the store does by itself: nothing where it is not to be written.
    fn background(&self) -> Background {
        let idle = self.options.read_only;
        Background {
            clock: Arc::clone(&self.clock),
            expire_interval: if idle { Duration::ZERO } else { self.expire_interval },
            map_sweep: if idle { 0 } else { self.map_sweep },
            sequencers: self.sequencers.clone(),
        }
    }

    /// The map of the running server that `location` names (`grpc://HOST:PORT`, `grpc+unix:PATH`), which serves it to
    /// the clients that it lets in; `None` where `location` names no server: then open the store, which has a
    /// [map](Store::map) too.
    ///
    /// # Errors
    /// [`Error::Location`], [`Error::BadOption`]; [`Error::Remote`] if the server does not answer.
    pub fn map_of_server(self, location: &str) -> Result<Option<esker_remote::RemoteMap>> {
        match self.at(location)? {
            (builder, Place::Backend(scheme, path)) => scheme.map_of_server(&path, &builder.backend_options),
            _ => Ok(None),
        }
    }

    /// Makes a store without opening it. Unlike [`Builder::open`] it also formats block devices, and with `force` it
    /// overwrites what is there. With `preallocate` the file's space is taken now, reported to `progress` as (bytes
    /// done, bytes in all).
    ///
    /// # Errors
    /// [`Error::Exists`] if something is there and `force` is not given; [`Error::InUse`]; [`Error::NoRoom`].
    pub fn format(
        self,
        location: &str,
        force: bool,
        preallocate: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Made> {
        let (builder, place) = self.at(location)?;
        let path = device_of(place, "formatting")?;
        if is_block_device(&path) {
            let device = open_device(&path, false)?;
            if !force && !is_blank(&*device)? {
                return Err(Error::Exists { path });
            }
            if preallocate {
                take_space(&*device, device.geometry().len, progress)?;
            }
            return format_device(&path, &*device, builder.segment_bytes);
        }
        if path.exists() {
            if !force {
                return Err(Error::Exists { path });
            }
            // Refused while another process has it open.
            drop(open_device(&path, false)?);
            remove(&path)?;
        }
        let (made, _) = make_file(&path, builder.size, builder.segment_bytes, preallocate, progress)?;
        Ok(made)
    }

    /// Makes the store at `location` from the backup `sequence` of `folder`, or from the newest, without opening it. It
    /// is as long as the store that was backed up, or as [`Builder::size`] says; a block device must be so long.
    /// `progress(done, total)` is told bytes. Returns the path of its device as well.
    ///
    /// # Errors
    /// [`Error::Exists`] if something is there and `force` is not given; [`Error::InUse`]; [`Error::Store`] names the
    /// file of the backup that does not hold. A file appears under its name only when it is whole.
    pub fn restore(
        self,
        folder: &Path,
        sequence: Option<u64>,
        location: &str,
        force: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(PathBuf, RestoreReport)> {
        let (builder, place) = self.at(location)?;
        let path = device_of(place, "restoring")?;
        let salt = random_number()?;
        if is_block_device(&path) {
            let device = open_device(&path, false)?;
            if !force && !is_blank(&*device)? {
                return Err(Error::Exists { path });
            }
            let report = esker_engine::restore(folder, sequence, &*device, salt, progress)?;
            return Ok((path, report));
        }
        let needed = esker_engine::restored_len(folder, sequence)?;
        if path.exists() {
            if !force {
                return Err(Error::Exists { path });
            }
            // Refused while another process has it open. It stays until the restored store is whole.
            drop(open_device(&path, false)?);
        }
        let len = builder.size.unwrap_or(needed);
        let (report, _) = fill_file(&path, len, force, |device| {
            Ok(esker_engine::restore(folder, sequence, device, salt, progress)?)
        })?;
        Ok((path, report))
    }

    /// Copies what can be read of the damaged store at `from` into a new store at `to`, and tells `lost` what cannot
    /// be. The new store is as long as the damaged one, or `size` bytes; a file appears under its name only when the
    /// store on it is whole and was checked. `progress(what is done, done, total)` is told how far it is. `from` is
    /// only read. Returns the path of the new store's device as well.
    ///
    /// # Errors
    /// [`Error::SameStore`]; [`Error::Exists`] if something is at `to`; [`Error::NotFound`], [`Error::InUse`] of
    /// `from`; [`Error::Store`] if `from` is no store at all, or a newer one, or `to` is too short.
    pub fn repair(
        self,
        from: &str,
        to: &str,
        size: Option<u64>,
        lost: &mut dyn FnMut(&Lost),
        progress: &mut dyn FnMut(&'static str, u64, u64),
    ) -> Result<(PathBuf, RepairReport)> {
        let (builder, from) = self.at(from)?;
        let (_, to) = builder.at(to)?;
        let (from, to) = (device_of(from, "repairing")?, device_of(to, "repairing")?);
        if is_same_file(&from, &to) {
            return Err(Error::SameStore { path: to });
        }
        let damaged = open_device(&from, true)? as Arc<dyn Device>;
        let shape = esker_engine::shape(&*damaged)?;
        let uuid = random_id()?;
        if is_block_device(&to) {
            let device = open_device(&to, false)?;
            if !is_blank(&*device)? {
                return Err(Error::Exists { path: to });
            }
            let hooks = RepairHooks { lost, progress, mark: &mark_lost, lengthen: &mut || false };
            let report = esker_engine::repair(&damaged, &(device as Arc<dyn Device>), uuid, hooks)?;
            return Ok((to, report));
        }
        if to.exists() {
            return Err(Error::Exists { path: to });
        }
        let len = size.unwrap_or(shape.device_len);
        let (report, _) = fill_file(&to, len, false, |device| {
            let path = device.path().to_path_buf();
            // What was asked for is what there is; else what shares no data any more may need more than before.
            let mut longer = || {
                let len = device.geometry().len;
                size.is_none() && lengthen(&path, len + len / 2).is_ok()
            };
            let hooks = RepairHooks { lost, progress, mark: &mark_lost, lengthen: &mut longer };
            Ok(esker_engine::repair(&damaged, &(Arc::clone(device) as Arc<dyn Device>), uuid, hooks)?)
        })?;
        Ok((to, report))
    }

    /// Has the store at `location`, which no process has open, take in the space that its device has gained; with
    /// `size` its file is made that long first, in bytes. A block device is made longer elsewhere.
    ///
    /// # Errors
    /// [`Error::BadOption`] if the file is longer than `size`, or is none; those of opening.
    pub fn grow(self, location: &str, size: Option<u64>) -> Result<GrowReport> {
        let (mut builder, place) = self.at(location)?;
        let path = device_of(place, "growing")?;
        builder.create = false;
        let device = open_device(&path, false)?;
        if let Some(size) = size {
            let refuse = |why: String| Err(Error::BadOption { key: "size".into(), found: size.to_string(), why });
            let len = device.geometry().len;
            if is_block_device(&path) {
                return refuse(format!("{} is a block device, whose length is not Esker's to change", path.display()));
            }
            if size < len {
                return refuse(format!("{} is {len} bytes long already, and never made shorter", path.display()));
            }
            lengthen(&path, size)?;
        }
        let before_bytes = esker_engine::used_bytes(&*device)?;
        // Opening takes in what there is, and says so in the superblocks.
        device.refresh_len()?;
        let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, builder.options)?;
        let stats = engine.stats();
        engine.close()?;
        let after_bytes = esker_engine::used_bytes(&*device)?;
        let added_segments = after_bytes / stats.segment_bytes - before_bytes / stats.segment_bytes;
        Ok(GrowReport { before_bytes, after_bytes, added_segments })
    }

    /// Checks the store at `location` without changing it and reports every damage; `deep` reads all values as well.
    /// `progress` is told (entries done, entries in all).
    ///
    /// # Errors
    /// Those of opening; damage is in the report, unless it hides the store altogether.
    pub fn check(self, location: &str, deep: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
        let (_, place) = self.at(location)?;
        let device = open_device(&device_of(place, "checking")?, true)?;
        Ok(esker_engine::check(device, deep, progress)?)
    }

    /// Reads and verifies everything that stands on the device at `location`, without changing it, from the medium
    /// where that can be done. `progress` is told (bytes done, bytes in all) and returns false to end early.
    ///
    /// # Errors
    /// Those of opening; damage is in the report, unless it hides the store altogether.
    pub fn scrub(self, location: &str, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<ScrubReport> {
        let (builder, place) = self.at(location)?;
        let device = open_device(&device_of(place, "scrubbing")?, true)?;
        let options = Options { read_only: true, ..builder.options };
        Ok(Engine::open(device, options)?.scrub_once(progress)?)
    }

    /// Shows what stands on the device at `location`, item by item.
    ///
    /// # Errors
    /// Those of opening.
    pub fn dump(self, location: &str, what: DumpOptions, sink: &mut dyn FnMut(DumpItem)) -> Result<()> {
        let (_, place) = self.at(location)?;
        let device = open_device(&device_of(place, "dumping")?, true)?;
        Ok(esker_engine::dump(&*device, what, sink)?)
    }

    /// Parses the location and takes its options over.
    fn at(mut self, location: &str) -> Result<(Self, Place)> {
        let Location { place, options } = Location::parse(location)?;
        for (key, value) in options {
            match &place {
                Place::Backend(scheme, _) if scheme.takes(&key) => self.backend_options.push((key, value)),
                Place::Backend(scheme, _) if !["create", "expire", "map_sweep"].contains(&&*key) => {
                    return Err(Error::UnknownOption { key, expected: scheme.options_shown() });
                }
                _ => self.set(&key, &value)?,
            }
        }
        self.share_memory();
        Ok((self, place))
    }

    /// Sets an option by its name in a location.
    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        fn read<T: std::str::FromStr<Err: std::fmt::Display>>(key: &str, value: &str) -> Result<T> {
            value.parse().map_err(|error: T::Err| Error::BadOption {
                key: key.to_string(),
                found: value.to_string(),
                why: error.to_string(),
            })
        }
        let bytes = |key, value| read::<ByteSize>(key, value).map(|size| size.0);
        let small = |key, value| bytes(key, value).map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        let period = |key, value| read::<Period>(key, value).map(|period| period.0);
        match key {
            "size" => self.size = Some(bytes(key, value)?),
            "policy" => self.options.policy = read(key, value)?,
            "segment" => (self.segment_bytes, self.said.segment) = (bytes(key, value)?, true),
            "recent" => (self.options.recent_bytes, self.said.recent) = (bytes(key, value)?, true),
            "cache" => (self.options.cache_bytes, self.said.cache) = (bytes(key, value)?, true),
            "index" => (self.options.index_bytes, self.said.index) = (bytes(key, value)?, true),
            "pending" => (self.options.pending_bytes_max, self.said.pending) = (bytes(key, value)?, true),
            "pinned" => (self.options.pinned_bytes_max, self.said.pinned) = (bytes(key, value)?, true),
            "memory" => {
                let MemorySize(ByteSize(bytes)) = read(key, value)?;
                self.memory_bytes = Some(bytes).filter(|bytes| *bytes > 0);
            }
            "cache_policy" => self.options.cache_policy = read(key, value)?,
            "recovery" => self.options.recovery_time = period(key, value)?,
            "scrub" => self.options.scrub_bytes_per_s = read::<ByteSize>(key, value)?.0,
            "async_flush" => self.options.async_flush = period(key, value)?,
            "compress" => self.options.compress.default = read(key, value)?,
            "compress_min" => self.options.compress.bytes_min = small(key, value)?,
            "compress_unit" => self.options.compress.unit_bytes = small(key, value)?,
            "compress_ratio" => self.options.compress.ratio_max = read(key, value)?,
            "expire" => self.expire_interval = period(key, value)?,
            "map_sweep" => self.map_sweep = read(key, value)?,
            "read_only" => self.options.read_only = read(key, value)?,
            "create" => self.create = read(key, value)?,
            _ => return Err(Error::UnknownOption { key: key.to_string(), expected: OPTIONS.to_string() }),
        }
        Ok(())
    }
}

fn device_of(place: Place, what: &'static str) -> Result<PathBuf> {
    match place {
        Place::Path(path) => {
            refuse_foreign(&path, "esker")?;
            Ok(device_path(&path))
        }
        Place::Memory => Err(Error::NoEngine { what, backend: "memory" }),
        Place::Backend(scheme, _) => Err(Error::NoEngine { what, backend: scheme.name }),
    }
}

/// Whether a device's start is all zeros, so that nothing is lost by formatting it.
fn is_blank(device: &dyn Device) -> Result<bool> {
    let mut start = vec![0; (1 << 20).min(device.geometry().len as usize)];
    device.read(0, &mut start)?;
    Ok(start.iter().all(|byte| *byte == 0))
}

/// What a repair puts where a value was that is lost, in the faces where its absence would mean something else.
fn mark_lost(object: &ObjectId, what: &What) -> Option<Bytes> {
    match what {
        What::Slot(_) => esker_log::lost_mark(object, None),
        What::OmapKey(key) => esker_log::lost_mark(object, Some(key)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_part_of_memory_counts_wherever_it_is_said() {
        let resolved = |builder: Builder, location: &str| builder.at(location).unwrap().0;
        let shared = Options::default().sharing(8 << 30);
        let parts =
            |builder: &Builder| (builder.options.cache_bytes, builder.options.recent_bytes, builder.segment_bytes);
        let all = resolved(Store::builder(), "esker:data?memory=8g");
        assert_eq!(parts(&all), (shared.cache_bytes, shared.recent_bytes, default_segment_bytes()));
        let given = Store::builder().cache_bytes(7 << 20).segment_bytes(1 << 20);
        let before = resolved(given.clone(), "esker:data?memory=8g");
        assert_eq!(parts(&before), (7 << 20, shared.recent_bytes, 1 << 20));
        let after = resolved(given.memory_bytes(1 << 30), "esker:data?recent=9m&memory=8g&cache=5m");
        assert_eq!(parts(&after), (5 << 20, 9 << 20, 1 << 20), "the later size, whatever the earlier was");
        let none = resolved(Store::builder().memory_bytes(1 << 30), "esker:data?memory=0");
        assert_eq!(parts(&none), parts(&Store::builder()));
        let small = resolved(Store::builder(), "esker:data?memory=64m");
        assert_eq!(small.segment_bytes, 1 << 20);
        let error = Store::builder().at("esker:data?memory=63m").err().unwrap().to_string();
        assert!(error.contains("63m") && error.contains("64m"), "{error}");
    }
}

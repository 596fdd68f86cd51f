//! An open store and the faces that it hands out.
//!
//! [`Store::open`] → [`Store::kv`] → … → [`Store::close`]
//!
//! Invariants:
//! 1. All clones of a store are one store; it is closed by [`Store::close`] or with the last clone. A face does not
//!    keep it open.
//! 2. The background removal of expired keys and rows ends before the store closes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use esker_engine::{BackupReport, Engine};
use esker_kv::{Clock, Kv};
use esker_log::{Connect, Logs, Session};
use esker_map::Waist;
use esker_memory::MemoryStore;
use esker_remote::Sequencers;
use esker_store::ObjectStore;
use esker_transaction::{Options as TransactionOptions, Transactions};
use esker_volume::Volumes;
use parking_lot::Mutex;

use crate::backend::Opened;
use crate::releasable::Releasable;
use crate::sweep::{Repeated, Sweep, SweepFigures, expire};
use crate::{Error, Result};

/// What a store is kept by.
pub(crate) enum Backing {
    Memory(Arc<MemoryStore>),
    Backend(Opened),
    Engine { engine: Arc<Engine>, device: Arc<Releasable>, path: PathBuf, created: bool },
}

/// An open store. Cheap to clone.
///
/// ```
/// let store = esker::Store::open("memory:")?;
/// let users = store.kv()?.namespace("users", esker::kv::Kind::Int)?;
/// users.put(7, "Ada").wait()?;
/// assert_eq!(users.get(7).wait()?.as_deref(), Some(&b"Ada"[..]));
/// store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    backing: Backing,
    background: Background,
    kv: Mutex<Option<Kv>>,
    logs: Mutex<Option<Logs>>,
    map: Mutex<Option<Waist>>,
    expiry: Mutex<Option<Repeated>>,
    sweep: Mutex<Option<Sweep>>,
}

/// What a store does by itself, the clock it goes by, and how it asks sequencers.
pub(crate) struct Background {
    pub clock: Arc<dyn Clock>,
    /// How often expired keys are removed; zero: never.
    pub expire_interval: Duration,
    /// Expired rows of the map that are removed per second, at most; 0: none.
    pub map_sweep: u64,
    /// How sequencers of logs are reached.
    pub sequencers: Option<esker_remote::Options>,
}

impl Store {
    pub(crate) fn new(backing: Backing, background: Background) -> Self {
        let inner = Inner {
            backing,
            background,
            kv: Mutex::new(None),
            logs: Mutex::new(None),
            map: Mutex::new(None),
            expiry: Mutex::new(None),
            sweep: Mutex::new(None),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The key-value face. All calls hand out the same one. It works as long as the store is open, so keep the store.
    ///
    /// # Errors
    /// Those of reading its catalogue, or of writing it the first time (so not on a new store that is read-only).
    pub fn kv(&self) -> Result<Kv> {
        let mut slot = self.inner.kv.lock();
        if let Some(kv) = &*slot {
            return Ok(kv.clone());
        }
        let kv = Kv::open(self.objects(), Arc::clone(&self.inner.background.clock))?;
        if !self.inner.background.expire_interval.is_zero() {
            *self.inner.expiry.lock() = expire(kv.clone(), self.inner.background.expire_interval);
        }
        *slot = Some(kv.clone());
        Ok(kv)
    }

    /// The volumes: virtual disks with snapshots and clones. Works as long as the store is open, so keep the store.
    ///
    /// ```
    /// let store = esker::Store::open("memory:")?;
    /// let disk = store.volumes()?.create("disk", 1 << 30, esker::volume::Layout::default(), 0)?;
    /// disk.write(4096, "block".into(), esker::Durability::Durable)?.wait()?;
    /// assert_eq!(disk.read_bytes(4096, 5)?, "block");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Volume`]: those of the store when the face is used for the first time.
    pub fn volumes(&self) -> Result<Volumes> {
        Ok(Volumes::open(self.objects())?)
    }

    /// The shared logs. All calls hand out the same ones, so that all who append in this process get their positions in
    /// one place. They work as long as the store is open, so keep the store.
    ///
    /// ```
    /// use esker::log::{Found, Options};
    ///
    /// let store = esker::Store::open("memory:")?;
    /// let orders = store.logs()?.create("orders", Options::default())?;
    /// let position = orders.append("a book")?.wait()?;
    /// let Found::Entry(entry) = orders.read(position)?.wait()? else { panic!("no entry") };
    /// assert_eq!(entry.data, "a book");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Log`]: those of the store when the face is used for the first time.
    pub fn logs(&self) -> Result<Logs> {
        let mut slot = self.inner.logs.lock();
        if let Some(logs) = &*slot {
            return Ok(logs.clone());
        }
        // A log whose positions are handed out by a sequencer elsewhere is written with its help.
        let session = self.log_session(None);
        let lease = Duration::from_millis(session.lease_ms);
        let options = self.inner.background.sequencers.clone().or_else(|| self.server_options());
        let connect = Arc::new(Sequencers::new(options.unwrap_or_default(), lease));
        let logs = Logs::open(self.objects(), Session { connect: Some(connect), ..session })?;
        *slot = Some(logs.clone());
        Ok(logs)
    }

    /// The map: tables of records, addressed by partition key, clustering key and column. All calls hand out the same
    /// one; it works as long as the store is open, so keep the store.
    ///
    /// ```
    /// use esker::Durability;
    /// use esker::map::{DataType, Get, Key, MapStorage, Mutation, Schema, TableName};
    ///
    /// let store = esker::Store::open("memory:")?;
    /// let map = store.map()?;
    /// map.create_namespace("shop")?;
    /// let users = TableName::new("shop", "users");
    /// let schema = Schema::new().column("id", DataType::Int).column("name", DataType::Text).partition("id");
    /// map.create_table(&users, &schema)?;
    /// let put = Mutation::put(&users, Key::of("id", 7), vec![("name".into(), "Ada".into())]);
    /// map.mutate(&[put], Durability::Durable)?.wait()?;
    /// let user = map.get(&Get::new(&users, Key::of("id", 7)))?.ok_or("no such user")?;
    /// assert_eq!(user.value("name"), Some(&"Ada".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Map`]: those of the store when the face is used for the first time.
    pub fn map(&self) -> Result<Waist> {
        let mut slot = self.inner.map.lock();
        if let Some(map) = &*slot {
            return Ok(map.clone());
        }
        let clock = Arc::clone(&self.inner.background.clock);
        // Tokens are to be told from forged ones: the system's randomness, not a generator's.
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| Error::Random { why: error.to_string() })?;
        let map = Waist::open(self.objects(), Arc::new(move || clock.now_ms()), secret)?;
        if self.inner.background.map_sweep > 0 {
            *self.inner.sweep.lock() = Sweep::start(map.clone(), self.inner.background.map_sweep);
        }
        *slot = Some(map.clone());
        Ok(map)
    }

    /// What the removal of expired rows of the map has done ([`Builder::map_sweep`](crate::Builder::map_sweep)); all 0
    /// where there is none, or the map is not in use.
    pub fn sweep_figures(&self) -> SweepFigures {
        self.inner.sweep.lock().as_ref().map(Sweep::figures).unwrap_or_default()
    }

    /// Transactions over tables of the map. Each call hands out one with options of its own; what they commit they see
    /// of each other.
    ///
    /// ```
    /// use esker::map::{DataType, Get, Key, MapStorage, Schema, TableName};
    /// use esker::transaction::Options;
    ///
    /// let store = esker::Store::open("memory:")?;
    /// store.map()?.create_namespace("shop")?;
    /// let transactions = store.transactions(Options::default())?;
    /// let stock = TableName::new("shop", "stock");
    /// let schema = Schema::new().column("item", DataType::Text).column("left", DataType::Int).partition("item");
    /// transactions.create_table(&stock, &schema)?;
    /// let mut delivery = transactions.begin();
    /// delivery.put(&stock, Key::of("item", "tea"), vec![("left".into(), 5.into())])?;
    /// delivery.put(&stock, Key::of("item", "cup"), vec![("left".into(), 9.into())])?;
    /// delivery.commit()?; // durable, both or none
    /// let tea = transactions.begin().get(&Get::new(&stock, Key::of("item", "tea")))?.ok_or("none")?;
    /// assert_eq!(tea.value("left"), Some(&5.into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Map`] and [`Error::Transaction`]: those of the store, when the table of decisions is made.
    pub fn transactions(&self, options: TransactionOptions) -> Result<Transactions> {
        let clock = Arc::clone(&self.inner.background.clock);
        // Numbers that no other process has: counted from a random one.
        let mut first = [0; 16];
        getrandom::fill(&mut first).map_err(|error| Error::Random { why: error.to_string() })?;
        let (first, next) = (u128::from_le_bytes(first), AtomicU64::new(0));
        let random = Arc::new(move || first.wrapping_add(next.fetch_add(1, Ordering::Relaxed).into()));
        Ok(Transactions::open(Arc::new(self.map()?), Arc::new(move || clock.now_ms()), random, options)?)
    }

    /// How the server is reached whose store this is; `None` for a store that this process has opened itself.
    pub fn server_options(&self) -> Option<esker_remote::Options> {
        match &self.inner.backing {
            Backing::Backend(opened) => opened.remote.clone(),
            Backing::Memory(_) | Backing::Engine { .. } => None,
        }
    }

    /// A session of logs of its own, with the store's clock and a random number; `connect` finds sequencers of other
    /// processes.
    pub fn log_session(&self, connect: Option<Arc<dyn Connect>>) -> Session {
        let clock = Arc::clone(&self.inner.background.clock);
        Session { connect, ..Session::new(Arc::new(move || clock.now_ms()), fastrand::u64(..)) }
    }

    /// The objects below all faces.
    pub fn objects(&self) -> Arc<dyn ObjectStore> {
        match &self.inner.backing {
            Backing::Memory(store) => Arc::clone(store) as Arc<dyn ObjectStore>,
            Backing::Backend(opened) => Arc::clone(&opened.objects),
            Backing::Engine { engine, .. } => Arc::clone(engine) as Arc<dyn ObjectStore>,
        }
    }

    /// Syncs of the device or of files since the store was opened; `None` for a store in memory.
    pub fn syncs(&self) -> Option<u64> {
        match &self.inner.backing {
            Backing::Memory(_) => None,
            Backing::Backend(opened) => Some((opened.syncs)()),
            Backing::Engine { engine, .. } => {
                let stats = engine.stats();
                Some(stats.syncs)
            }
        }
    }

    /// The store as it is now, read-only: it stays so whatever happens to this one. While it lives the space of what is
    /// deleted does not come back.
    ///
    /// ```
    /// let store = esker::Store::open("memory:")?;
    /// let users = store.kv()?.namespace("users", esker::kv::Kind::Int)?;
    /// users.put(7, "Ada").wait()?;
    /// let then = store.snapshot()?;
    /// users.put(7, "Grace").wait()?;
    /// let users = then.kv()?.namespace("users", esker::kv::Kind::Int)?;
    /// assert_eq!(users.get(7).wait()?.as_deref(), Some(&b"Ada"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] where the backend cannot, without room for a checkpoint, or if the device failed.
    pub fn snapshot(&self) -> Result<Self> {
        let snapshot = self.objects().snapshot()?;
        let opened = Opened {
            objects: snapshot.store,
            engine: None,
            close: Box::new(|| Ok(())),
            syncs: Box::new(|| 0),
            path: self.path().unwrap_or(Path::new("")).to_path_buf(),
            created: false,
            shared: false,
            remote: None,
        };
        let clock = Arc::clone(&self.inner.background.clock);
        let background = Background { clock, expire_interval: Duration::ZERO, map_sweep: 0, sequencers: None };
        Ok(Self::new(Backing::Backend(opened), background))
    }

    /// Name of the backend: `esker` for the engine, else as in the store's [`Capability`](esker_store::Capability).
    pub fn backend(&self) -> &'static str {
        match &self.inner.backing {
            Backing::Memory(_) => "memory",
            Backing::Backend(opened) => opened.objects.capability().backend,
            Backing::Engine { .. } => "esker",
        }
    }

    /// The engine: its figures, its policy, what recovery did. `None` for a store of another backend.
    pub fn engine(&self) -> Option<&Arc<Engine>> {
        match &self.inner.backing {
            Backing::Memory(_) => None,
            Backing::Backend(opened) => opened.engine.as_ref(),
            Backing::Engine { engine, .. } => Some(engine),
        }
    }

    /// The store's file, block device or (other backends) folder. `None` for a store in memory.
    pub fn path(&self) -> Option<&Path> {
        match &self.inner.backing {
            Backing::Memory(_) => None,
            Backing::Backend(opened) => Some(&opened.path),
            Backing::Engine { path, .. } => Some(path),
        }
    }

    /// Whether other processes may have it open at the same time: it is another server's (`grpc://`), or on Ceph. Each
    /// other kind of store is opened by one process at a time.
    pub fn is_shared(&self) -> bool {
        matches!(&self.inner.backing, Backing::Backend(opened) if opened.shared)
    }

    /// Whether opening made the store.
    pub fn created(&self) -> bool {
        match &self.inner.backing {
            Backing::Memory(_) => true,
            Backing::Backend(opened) => opened.created,
            Backing::Engine { created, .. } => *created,
        }
    }

    /// Cleans every segment of which more than a twentieth is dead, and gives the space back. `progress(done, total)`
    /// is told segments, and returns false to stop early: what was gained until then stays so. The engine cleans by
    /// itself when space runs short; this is for a program that wants the space now.
    ///
    /// # Errors
    /// [`Error::NoEngine`] for a store of another backend; [`Error::Store`] if it is open read-only, if there is no
    /// room for copies, or if the device failed.
    pub fn compact(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        Ok(self.engine_for("compacting")?.compact(progress)?)
    }

    /// Copies the store as it is now into `folder`, while it goes on being read and written. Later backups into the
    /// folder copy only what is new. `progress(done, total)` is told bytes.
    /// [`Builder::restore`](crate::Builder::restore) is the way back.
    ///
    /// # Errors
    /// [`Error::NoEngine`] for a store of another backend; [`Error::Store`] names the place of damage, or says why the
    /// folder does not do.
    pub fn backup(&self, folder: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<BackupReport> {
        Ok(self.engine_for("a backup")?.backup(folder, progress)?)
    }

    fn engine_for(&self, what: &'static str) -> Result<&Arc<Engine>> {
        self.engine().ok_or(Error::NoEngine { what, backend: self.backend() })
    }

    /// Makes everything durable, closes the store and lets go of its device, so that it may be opened again at once.
    /// Faces that are still around refuse writes, and reads of what is not in memory. Does nothing the second time.
    /// Dropping the last clone does the same but cannot tell of a failure.
    ///
    /// # Errors
    /// The first failure of a write or sync, if there was one.
    pub fn close(&self) -> Result<()> {
        self.inner.close()
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl Inner {
    fn close(&self) -> Result<()> {
        if let Some(expiry) = self.expiry.lock().take() {
            expiry.stop();
        }
        if let Some(sweep) = self.sweep.lock().take() {
            sweep.stop();
        }
        match &self.backing {
            Backing::Memory(_) => Ok(()),
            Backing::Backend(opened) => Ok((opened.close)()?),
            Backing::Engine { engine, device, .. } => {
                let closed = engine.close();
                device.release();
                Ok(closed?)
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "closing the store failed");
        }
    }
}

//! Formatting, opening and closing a store.
//!
//! open: superblock → chain → replay → sync → new superblock → commit thread
//!
//! Invariants:
//! 1. What was replayed is synced before anything is read or written, so that it cannot be taken back later.
//! 2. The log goes on in the last segment only where nothing but zeros follows and no later generation exists;
//!    else in a new one, whose header says where the log left the old one.

mod layout;
mod loading;
mod log_end;
mod torn;

pub use layout::FormatOptions;
use log_end::{begin_in, end_at};

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use esker_device::Device;
use esker_store::limits::TRANSACTION_BYTES_MAX;
use esker_store::{DurableMark, Error, Result};
use parking_lot::Mutex;

use crate::checkpoint::{Parts, Saved};
use crate::cold::Cold;
use crate::commit::Log;
use crate::compress::{Compress, CompressOptions};
use crate::format::{DEVICE_BYTES_MAX, ReplayFrom, store_seed};
use crate::keeper::{GrowReport, Held, Keeper, RecoveryTime};
use crate::objects::Objects;
use crate::policy::CommitPolicy;
use crate::reader::Reader;
use crate::readers::Pinned;
use crate::recover::RecoveryReport;
use crate::scrub::{Scrub, Scrubber};
use crate::segments::{DamageLevel, Lsn, Segments, Usage};
use crate::stats::CallTimes;
use crate::superblocks::{Superblocks, device_error, find_superblock};
use crate::watch::Watched;

/// How an engine runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// When the log is synced. `adaptive` by default; may be changed with [`Engine::set_policy`].
    pub policy: CommitPolicy,
    /// Memory for the newest segments, in bytes; at least two segments. 128 MiB by default.
    pub recent_bytes: u64,
    /// Memory for values read from the device, in bytes. 256 MiB by default.
    pub cache_bytes: u64,
    /// Memory for index pages, in bytes, at least 1 MiB: above it pages that were not used lately leave memory and are read
    /// back when they are needed. Pages that changed since the last checkpoint stay, and checkpoints are written more often
    /// for that. Names, attributes, and the inner pages and directories that lead to pages are not counted. No limit by default.
    pub index_bytes: u64,
    /// Open without writing a byte; `submit` answers [`Error::ReadOnly`]. Off by default.
    pub read_only: bool,
    /// Longest time that a write which nobody waits for stays unsynced under `adaptive`, `batch` and `group`. 1 s by default.
    pub async_flush: Duration,
    /// Bytes that writers may be ahead of the device; above it they wait. 256 MiB by default.
    pub pending_bytes_max: u64,
    /// Values of 16 KiB and more that were just written are handed out where they stand, and keep their segment in
    /// memory. When so many bytes are kept beside [`Options::recent_bytes`], values are copied. 256 MiB by default.
    pub pinned_bytes_max: u64,
    /// Calls of the device that take longer are logged with their stage and counted. 1 s by default.
    pub slow_io: Duration,
    /// What is compressed of transactions that ask for it, and what of that is kept.
    pub compress: CompressOptions,
    /// Bytes per second that are read and verified in the background; 0 is off. 8 MiB by default. May be changed with
    /// [`Engine::set_scrub_rate`].
    pub scrub_bytes_per_s: u64,
    /// How long after opening the scrubber begins. 30 s by default.
    pub scrub_after: Duration,
    /// A checkpoint is written when replaying the log after the last one would take so long, with the loading of it:
    /// opening after a crash takes about that. 3 s by default; a shorter time writes more. Zero: only the log's length counts.
    pub recovery_time: Duration,
    /// Is told how far opening has come, from several threads. Nobody by default.
    pub progress: Option<Progress>,
    /// Run a commit thread (default). Without one, whoever waits commits: for deterministic simulation.
    pub commit_thread: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: CommitPolicy::default(),
            recent_bytes: 128 << 20,
            cache_bytes: 256 << 20,
            index_bytes: u64::MAX,
            read_only: false,
            async_flush: Duration::from_secs(1),
            pending_bytes_max: 256 << 20,
            pinned_bytes_max: 256 << 20,
            slow_io: Duration::from_secs(1),
            compress: CompressOptions::default(),
            scrub_bytes_per_s: 8 << 20,
            scrub_after: Duration::from_secs(30),
            recovery_time: Duration::from_secs(3),
            progress: None,
            commit_thread: true,
        }
    }
}

impl Options {
    /// These, with no setting larger than what fits into so many bytes of memory together with the others: a sixteenth
    /// each for [`Options::recent_bytes`], [`Options::pending_bytes_max`], [`Options::pinned_bytes_max`] and
    /// [`Options::cache_bytes`], and for [`Options::index_bytes`] an eighth, or a third from 8 GiB on: pages that change
    /// while a checkpoint is written are there twice. The engine takes a few segments beside: they should have
    /// [`segment_bytes_within`] at most.
    pub fn within(mut self, memory_bytes: u64) -> Self {
        const MIB: u64 = 1 << 20;
        let part = |parts: u64| (memory_bytes / parts / MIB).max(1) * MIB;
        let Self { recent_bytes, pending_bytes_max, pinned_bytes_max, cache_bytes, .. } = &mut self;
        for bytes in [recent_bytes, pending_bytes_max, pinned_bytes_max, cache_bytes] {
            *bytes = (*bytes).min(part(16));
        }
        self.index_bytes = self.index_bytes.min(if memory_bytes >= 8 << 30 { part(3) } else { part(8) });
        self
    }
}

/// The largest segments, in bytes, that an engine with so many bytes of memory should have: a 64th, at least 1 MiB.
pub fn segment_bytes_within(memory_bytes: u64) -> u64 {
    1 << (memory_bytes / 64).max(1 << 20).ilog2()
}

/// What opening is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Loading the checkpoint.
    Checkpoint,
    /// Replaying the log after it.
    Log,
}

/// Is told how far opening has come: the stage, and how much of it is done, of how much.
#[derive(Clone)]
pub struct Progress(pub Arc<dyn Fn(Stage, u64, u64) + Send + Sync>);

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress")
    }
}

/// Fewer records than this, replayed at opening, tell nothing of how fast the machine is.
const RECORDS_TELL: u64 = 100_000;

/// By cold segment whose end the checkpoint does not tell: its generation, and the furthest place that something
/// pointed to in it when that was looked for.
pub(crate) type Furthest = Arc<Mutex<Option<HashMap<u64, (u32, u64)>>>>;

/// An open store.
pub struct Engine {
    pub(crate) device: Arc<Watched>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) reader: Arc<Reader>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) log: Option<Arc<Log>>,
    pub(crate) keeper: Option<Arc<Keeper>>,
    pub(crate) mark: Arc<DurableMark>,
    pub(crate) compress: Compress,
    pub(crate) times: CallTimes,
    pub(crate) seed: u32,
    pub(crate) next_number: Arc<AtomicU64>,
    /// End of the last change of names that a reader has to wait for.
    pub(crate) names_lsn: AtomicU64,
    pub(crate) record_bytes_max: u64,
    /// The log cannot go on for want of a segment; only reads work.
    pub(crate) full_since_open: bool,
    pub(crate) superblocks: Arc<Superblocks>,
    pub(crate) recovery: RecoveryReport,
    pub(crate) scrub: Arc<Scrub>,
    /// Of a store that is open read-only: where its checkpoint has what.
    pub(crate) saved: Option<Saved>,
    /// See [`Engine::find_cold_ends`].
    pub(crate) furthest: Furthest,
    /// Of a snapshot: what keeps its segments.
    pub(crate) _held: Option<Held>,
    pub(crate) closed: AtomicBool,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Engine {
    /// Opens the store on `device`: loads its checkpoint and replays what came after it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no store of a known version; [`Error::Corrupt`] for damage, with its place;
    /// [`Error::Io`].
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Self> {
        let began = std::time::Instant::now();
        let compress = Compress::new(options.compress)?;
        let device = Arc::new(Watched::new(device, options.slow_io));
        let mut found = find_superblock(&*device)?;
        if !options.read_only {
            // A device that has grown is used whole; the next superblock says so.
            found.superblock.device_len = device.geometry().len.min(DEVICE_BYTES_MAX);
        }
        let device_dyn = Arc::clone(&device) as Arc<dyn Device>;
        let loading::Found {
            superblock,
            segments,
            reader,
            objects,
            saved,
            next_number,
            chain,
            end,
            last,
            base_lsn,
            mut recovery,
            free_later,
        } = loading::find(&device_dyn, &found, &options)?;
        recovery.elapsed = began.elapsed();
        let superblock_lost = found.damaged > 0;
        let superblocks = Arc::new(Superblocks::new(device_dyn, found));
        // Unless room is short, what only an older checkpoint may need is kept for it until the next one: what nothing
        // points to any more, and pieces of it that stand beside what lives.
        let roomy = segments.free_segments() * 5 > segments.log_segments() * 2;
        let mut keep = !options.read_only && roomy;
        // A superblock that is lost may have named a later checkpoint, after which nothing was kept for this one's.
        let floor_before = superblocks.floor_before().unwrap_or(0);
        let broken =
            |usage: &Usage| !usage.cold && usage.damage >= DamageLevel::Header && usage.generation > floor_before;
        let before_kept = keep && !superblock_lost && !segments.in_use().iter().any(broken);
        if !options.read_only {
            // What was read may still be in a cache of the operating system: from here on it counts as durable.
            device.sync().map_err(|error| device_error("syncing the replayed log", error))?;
            superblocks.go_on_from(&superblock);
            let offset = end.segment * superblock.segment_bytes + end.offset;
            superblocks.write(|superblock| {
                superblock.before_kept &= before_kept;
                if let Some(first) = chain.links.first() {
                    begin_in(superblock, first.header.segment, first.header.generation);
                }
                end_at(superblock, false, end.generation, offset, end.seq);
            })?;
        }
        if !keep {
            free_later.iter().for_each(|segment| segments.release(*segment, true));
        }
        let mut kept: HashSet<u32> = free_later.iter().map(|segment| segments.generation(*segment)).collect();
        kept.extend(segments.in_use().into_iter().filter(|usage| usage.cold).map(|usage| usage.generation));
        let record_bytes_max = superblock.segment_bytes - 3 * u64::from(superblock.block_bytes);
        let mut engine = Self {
            superblocks,
            device,
            segments,
            reader,
            objects,
            log: None,
            keeper: None,
            mark: DurableMark::new(Lsn::MAX, Box::new(|| {})),
            compress,
            times: CallTimes::default(),
            seed: store_seed(&superblock.uuid),
            next_number: Arc::new(AtomicU64::new(next_number)),
            names_lsn: AtomicU64::new(0),
            record_bytes_max,
            full_since_open: false,
            recovery,
            scrub: Arc::new(Scrub::new(options.scrub_bytes_per_s, saved.scrub)),
            saved: None,
            furthest: Arc::default(),
            _held: None,
            closed: AtomicBool::new(false),
            threads: Mutex::default(),
        };
        if options.read_only {
            engine.saved = Some(saved);
        } else {
            engine.start_log(&chain, end, last.clone(), base_lsn, &options)?;
            if engine.full_since_open && keep {
                // What only the checkpoint before needs may have the only blocks that are left.
                engine.superblocks.write(|superblock| superblock.before_kept = false)?;
                free_later.iter().for_each(|segment| engine.segments.release(*segment, true));
                (keep, engine.full_since_open) = (false, false);
                engine.start_log(&chain, end, last, base_lsn, &options)?;
            }
            engine.start_keeper(saved, keep.then_some(kept), &options)?;
            if options.commit_thread {
                engine.start_scrub(options.scrub_after)?;
                engine.start_watch()?;
            }
        }
        if let Some(keeper) = engine.keeper.as_ref().filter(|_| recovery.checkpoints_passed_over > 0)
            && let Err(error) = keeper.checkpoint()
        {
            // The next one will do: the log is kept until then.
            tracing::warn!(%error, "no checkpoint was written in place of one that does not hold");
        }
        let report = engine.recovery;
        tracing::info!(
            records = report.records,
            segments = report.segments,
            torn_bytes = report.torn_bytes,
            elapsed_ms = report.elapsed.as_millis() as u64,
            clean = report.clean,
            "store opened"
        );
        Ok(engine)
    }

    /// Starts the cleaner.
    fn start_keeper(&mut self, saved: Saved, kept: Option<HashSet<u32>>, options: &Options) -> Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let superblock = self.superblocks.newest();
        let device = Arc::clone(&self.device) as Arc<dyn Device>;
        let cold =
            Cold::new(Arc::clone(&device), Arc::clone(&self.segments), Arc::clone(log), superblock.uuid, self.seed);
        let parts = Parts {
            segments: Arc::clone(&self.segments),
            reader: Arc::clone(&self.reader),
            objects: Arc::clone(&self.objects),
            log: Arc::clone(log),
            superblocks: Arc::clone(&self.superblocks),
            next_number: Arc::clone(&self.next_number),
        };
        let report = &self.recovery;
        // What opening has met tells how fast this machine is; without threads everything is to be the same each time.
        let told = options.commit_thread && report.records >= RECORDS_TELL;
        let recovery = RecoveryTime {
            most: options.recovery_time,
            load: if options.commit_thread { report.load } else { Duration::ZERO },
            replayed: (report.bytes, report.replay_ns),
            slowness: if told { report.replay.as_nanos() as f64 / report.replay_ns.max(1) as f64 } else { 1.0 },
        };
        let keeper = Keeper::new(
            parts,
            device,
            self.seed,
            cold,
            (saved, kept),
            options.commit_thread,
            options.index_bytes,
            recovery,
        );
        let keeper = Arc::new(keeper);
        let weak = Arc::downgrade(&keeper);
        log.set_keeper(Box::new(move || {
            if let Some(keeper) = weak.upgrade() {
                keeper.wake();
            }
        }));
        keeper.set_reserve();
        // Before the threads: what was started is ended with it, should one of them not start.
        self.keeper = Some(Arc::clone(&keeper));
        if options.commit_thread {
            self.spawn("esker-move", &keeper, Keeper::run_moving)?;
            self.spawn("esker-clean", &keeper, Keeper::run)?;
        }
        Ok(())
    }

    /// Starts the scrubber, which has the store without a way to end it.
    fn start_scrub(&mut self, after: Duration) -> Result<()> {
        let engine = Self {
            device: Arc::clone(&self.device),
            segments: Arc::clone(&self.segments),
            reader: Arc::clone(&self.reader),
            objects: Arc::clone(&self.objects),
            log: self.log.clone(),
            keeper: self.keeper.clone(),
            mark: Arc::clone(&self.mark),
            compress: Compress::new(self.compress.options())?,
            times: CallTimes::default(),
            seed: self.seed,
            next_number: Arc::clone(&self.next_number),
            names_lsn: AtomicU64::new(0),
            record_bytes_max: self.record_bytes_max,
            full_since_open: self.full_since_open,
            superblocks: Arc::clone(&self.superblocks),
            recovery: self.recovery,
            scrub: Arc::clone(&self.scrub),
            saved: None,
            furthest: Arc::clone(&self.furthest),
            _held: None,
            closed: AtomicBool::new(true),
            threads: Mutex::default(),
        };
        let scrubber = Arc::new(Scrubber { engine, scrub: Arc::clone(&self.scrub), after });
        self.spawn_and("esker-scrub", &scrubber, Scrubber::run, |error| tracing::error!(%error, "scrubbing has ended"))
    }

    /// Starts what looks whether the device still answers, and is where it was.
    fn start_watch(&self) -> Result<()> {
        self.spawn_and("esker-watch", &self.device, Watched::run, |error| {
            tracing::error!(%error, "nobody looks any more whether the device answers");
        })
    }

    /// Starts a thread that writing needs. Should it panic, the log stops, and everybody who waits is told what it
    /// said.
    fn spawn<T: Send + Sync + 'static>(&self, name: &'static str, what: &Arc<T>, run: fn(&T)) -> Result<()> {
        let log = self.log.as_ref().map(Arc::downgrade);
        self.spawn_and(name, what, run, move |error| {
            if let Some(log) = log.and_then(|log| log.upgrade()) {
                log.stop_for(error);
            }
        })
    }

    /// Starts a thread, and calls `failed` should it panic.
    fn spawn_and<T: Send + Sync + 'static>(
        &self,
        name: &'static str,
        what: &Arc<T>,
        run: fn(&T),
        failed: impl FnOnce(Error) + Send + 'static,
    ) -> Result<()> {
        let what = Arc::clone(what);
        let run = move || {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(&what))) {
                failed(Error::panicked(&format!("the thread {name}"), &*panic));
            }
        };
        let spawned = std::thread::Builder::new().name(name.into()).spawn(run);
        let handle = spawned.map_err(|error| Error::io(format!("starting the thread {name}"), error))?;
        self.threads.lock().push(handle);
        Ok(())
    }

    /// Writes a checkpoint now, so that opening costs only what comes after. The engine writes them by itself; this is
    /// for tests and for whoever is about to copy the device.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Stopped`], [`Error::Io`].
    pub fn checkpoint(&self) -> Result<()> {
        self.keeper()?.checkpoint()
    }

    /// Writes a checkpoint; `during` is called after each piece of it, for tests of what happens meanwhile.
    ///
    /// # Errors
    /// As [`Engine::checkpoint`].
    #[doc(hidden)]
    pub fn checkpoint_while(&self, during: &mut dyn FnMut()) -> Result<()> {
        self.keeper()?.checkpoint_while(during)
    }

    /// Cleans the segment that is worth most now; whether there was one. The engine cleans by itself when space runs short.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::Full`] without room for copies, [`Error::Stopped`], [`Error::Io`].
    pub fn clean(&self) -> Result<bool> {
        self.keeper()?.clean()
    }

    /// Cleans every segment of which more than a twentieth is dead, but for those that a snapshot or a backup holds.
    /// `progress(done, total)` is told segments, and returns false to stop early.
    ///
    /// # Errors
    /// As [`Engine::clean`].
    pub fn compact(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        self.keeper()?.compact(progress)
    }

    /// Takes in the space of a device that has become longer since it was opened, while reads and writes go on: writes that were
    /// refused with [`Error::Full`] fit again. Does nothing where the device is as long as it was.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Invalid`] for a store that found no free segment when it was opened: open it again,
    /// which takes the space in as well. [`Error::Io`], and nothing has changed; [`Error::Stopped`].
    pub fn grow(&self) -> Result<GrowReport> {
        if self.full_since_open {
            let why = "it was full when it was opened: close it and open it again".into();
            return Err(Error::Invalid { what: "store that cannot grow while it is open", why });
        }
        self.keeper()?.grow()
    }

    pub(crate) fn keeper(&self) -> Result<&Arc<Keeper>> {
        self.keeper.as_ref().ok_or(Error::ReadOnly)
    }

    /// What opening did.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.recovery
    }

    /// The commit policy in force.
    pub fn policy(&self) -> CommitPolicy {
        self.log.as_ref().map_or_else(CommitPolicy::default, |log| log.policy())
    }

    /// Changes the commit policy; the next group obeys it.
    pub fn set_policy(&self, policy: CommitPolicy) {
        if let Some(log) = &self.log {
            log.set_policy(policy);
        }
    }

    /// Makes everything durable and stops writing. The next opening finds a clean end. Does nothing the second time.
    ///
    /// # Errors
    /// [`Error::Stopped`] with the first cause if the store failed before or fails now.
    pub fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        catch_unwind(AssertUnwindSafe(|| self.close_once())).unwrap_or_else(|panic| {
            let panicked = Error::panicked("closing the store", &*panic);
            self.mark.fail(panicked.clone());
            Err(panicked)
        })
    }

    fn close_once(&self) -> Result<()> {
        self.scrub.stop();
        self.device.stop_watching();
        let Some(log) = &self.log else { return Ok(()) };
        // Without a checkpoint the next opening replays the log: slower, but nothing is lost.
        let put_off = |error: Error| tracing::warn!(%error, "no checkpoint was written at the end");
        if let Some(keeper) = &self.keeper {
            keeper.end().unwrap_or_else(put_off);
        }
        log.stop();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                self.mark.fail(Error::Stopped { cause: "a thread of the log panicked".into() });
            }
        }
        if self.mark.failure().is_none() {
            if let Some(keeper) = &self.keeper {
                // The rest of the log is durable with it.
                keeper.last_checkpoint().unwrap_or_else(put_off);
            }
            log.commit_rest();
        }
        if let Some(failure) = self.mark.failure() {
            return Err(failure);
        }
        let (generation, offset, seq) = log.clean_end();
        let newest = self.superblocks.newest();
        if newest.clean && (newest.end_generation, newest.end_offset, newest.end_seq) == (generation, offset, seq) {
            // The one that names the last checkpoint says so.
            tracing::info!(seq, "store closed");
            return Ok(());
        }
        let checkpoint = self.keeper.as_ref().and_then(|keeper| keeper.covered(seq));
        let written = self.superblocks.write(|superblock| {
            end_at(superblock, true, generation, offset, seq);
            if checkpoint.is_some() {
                let group = log.last_group();
                superblock.replay = ReplayFrom { generation, offset, seq, group };
            }
        });
        tracing::info!(seq, "store closed");
        written
    }

    /// For a call that looks at the index: waits until there is memory for its pages, and pins what they point to.
    #[inline]
    pub(crate) fn pin_with_room(&self) -> Pinned<'_> {
        if let Some(keeper) = &self.keeper {
            keeper.wait_for_index_room();
        }
        self.segments.pin()
    }

    /// Has index pages leave memory if they take more than their budget.
    #[inline]
    pub(crate) fn index_has_grown(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.index_has_grown();
        }
    }

    /// Has every index page leave memory that stands in the last checkpoint as it is and was not used since the last
    /// call, whatever the budget says. How many left.
    pub fn drop_index_pages(&self) -> u64 {
        self.keeper.as_ref().map_or(0, |keeper| keeper.drop_all_pages())
    }

    /// Largest transaction in bytes of names, keys and payload.
    pub(crate) fn transaction_bytes_max(&self) -> u64 {
        (self.record_bytes_max - (1 << 12)).min(TRANSACTION_BYTES_MAX as u64)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "closing the store failed");
        }
    }
}

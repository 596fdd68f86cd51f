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
mod options;
mod torn;

pub use layout::FormatOptions;
pub use options::{Options, Progress, Stage, segment_bytes_within};

use log_end::{begin_in, end_at};

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use esker_device::Device;
use esker_store::{DurableMark, Error, Result};
use parking_lot::Mutex;

use crate::checkpoint::{Parts, Saved};
use crate::cold::Cold;
use crate::compress::Compress;
use crate::engine::Engine;
use crate::format::{DEVICE_BYTES_MAX, ReplayFrom, store_seed};
use crate::keeper::{Keeper, RecoveryTime};
use crate::pool::{self, Pool};
use crate::rooms::Rooms;
use crate::scrub::{Scrub, Scrubber};
use crate::segments::{DamageLevel, Lsn, Usage};
use crate::superblocks::{Superblocks, device_error, find_superblock};
use crate::watch::Watched;

/// Fewer records than this, replayed at opening, tell nothing of how fast the machine is.
const RECORDS_TELL: u64 = 100_000;

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
        let pool = options.commit_thread.then(|| Pool::new(pool::THREADS_MAX));
        pool.iter().for_each(|pool| segments.read_by(pool));
        let mut engine = Self {
            superblocks,
            device,
            segments,
            reader,
            objects,
            log: None,
            keeper: None,
            rooms: None,
            mark: DurableMark::new(Lsn::MAX, Box::new(|| {})),
            compress,
            reads_ahead: pool.is_some(),
            page_pool: pool.is_some().then(|| Pool::new(pool::PAGE_THREADS_MAX)),
            pool,
            twin: None,
            readings: Arc::default(),
            times: Arc::default(),
            seed: store_seed(&superblock.uuid),
            next_number: Arc::new(AtomicU64::new(next_number)),
            names_lsn: Arc::default(),
            record_bytes_max,
            full_since_open: false,
            recovery,
            scrub: Arc::new(Scrub::new(options.scrub_bytes_per_s, saved.scrub)),
            saved: None,
            furthest: Arc::default(),
            held: None,
            closed: AtomicBool::new(false),
            threads: Mutex::default(),
        };
        if options.read_only {
            engine.make_twin()?;
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
            engine.make_twin()?;
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
        // What opening has met tells how fast this machine is with a log of one object; without threads everything is
        // to be the same each time.
        let told = options.commit_thread && report.records >= RECORDS_TELL;
        let recovery = RecoveryTime {
            most: options.recovery_time,
            load: if options.commit_thread { report.load } else { Duration::ZERO },
            replayed: (report.bytes, report.replay_ns),
            slowness: if told { report.replay_work.as_nanos() as f64 / report.replay_ns.max(1) as f64 } else { 1.0 },
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
        log.set_keeper(Box::new(Arc::downgrade(&keeper)));
        keeper.set_reserve();
        // Before the threads: what was started is ended with it, should one of them not start.
        self.keeper = Some(Arc::clone(&keeper));
        if options.commit_thread {
            self.spawn("esker-move", &keeper, Keeper::run_moving)?;
            self.spawn("esker-clean", &keeper, Keeper::run)?;
            let rooms = Rooms::new(log, &keeper);
            self.rooms = Some(Arc::clone(&rooms));
            self.spawn("esker-room", &rooms, Rooms::run)?;
        }
        Ok(())
    }

    /// Starts the scrubber.
    fn start_scrub(&self, after: Duration) -> Result<()> {
        let Some(engine) = self.twin.clone() else { return Ok(()) };
        let scrubber = Arc::new(Scrubber { engine, scrub: Arc::clone(&self.scrub), after });
        self.spawn_and("esker-scrub", &scrubber, Scrubber::run, |error| tracing::error!(%error, "scrubbing has ended"))
    }

    /// Starts what looks whether the device still answers, and is where it was.
    fn start_watch(&self) -> Result<()> {
        self.spawn_and("esker-watch", &self.device, Watched::run, |error| {
            tracing::error!(%error, "the store does not look any more whether the device answers");
        })
    }

    /// Starts a thread that writing needs. Should it panic, the log stops, and all callers that wait are told what it
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
        if let Some(pool) = self.pool.as_ref().filter(|_| self.held.is_none()) {
            // That of a snapshot is its store's.
            pool.close();
        }
        if let Some(pool) = self.page_pool.as_ref().filter(|_| self.held.is_none()) {
            pool.close();
        }
        let Some(log) = &self.log else { return Ok(()) };
        // Without a checkpoint the next opening replays the log: slower, but nothing is lost.
        let put_off = |error: Error| tracing::warn!(%error, "no checkpoint was written at the end");
        if let Some(keeper) = &self.keeper {
            keeper.end().unwrap_or_else(put_off);
        }
        if let Some(rooms) = &self.rooms {
            rooms.stop();
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
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "closing the store failed");
        }
    }
}

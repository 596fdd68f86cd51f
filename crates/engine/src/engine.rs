//! An open store: what its parts share, and the calls that only hand on.
//!
//! open → [`Engine`] → submit, read, walk, view, check, scrub, backup, stats

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::JoinHandle;

use esker_store::limits::TRANSACTION_BYTES_MAX;
use esker_store::{DurableMark, Error, Result};
use parking_lot::Mutex;

use crate::checkpoint::Saved;
use crate::commit::Log;
use crate::compress::Compress;
use crate::keeper::{GrowReport, Held, Keeper};
use crate::objects::Objects;
use crate::policy::CommitPolicy;
use crate::pool::Pool;
use crate::reader::Reader;
use crate::readers::Pinned;
use crate::readings::Readings;
use crate::recover::RecoveryReport;
use crate::rooms::Rooms;
use crate::scrub::Scrub;
use crate::segments::Segments;
use crate::stages::CallTimes;
use crate::superblocks::Superblocks;
use crate::watch::Watched;

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
    /// Waits for room in place of callers that must not. None without threads.
    pub(crate) rooms: Option<Arc<Rooms>>,
    pub(crate) mark: Arc<DurableMark>,
    /// Reads what is not in memory. None without threads: then callers do.
    pub(crate) pool: Option<Arc<Pool>>,
    /// Whether reads that are not in memory are begun ahead, also by the twin.
    pub(crate) reads_ahead: bool,
    /// Does the calls that need index pages which are not in memory. There with the twin.
    pub(crate) page_pool: Option<Arc<Pool>>,
    /// The same store for calls that go on when they have returned: without a pool, and without a way to end it.
    pub(crate) twin: Option<Arc<Engine>>,
    /// What is read for writers that do not wait for it.
    pub(crate) readings: Arc<Readings>,
    pub(crate) compress: Compress,
    pub(crate) times: Arc<CallTimes>,
    pub(crate) seed: u32,
    pub(crate) next_number: Arc<AtomicU64>,
    /// End of the last change of names that a reader has to wait for.
    pub(crate) names_lsn: Arc<AtomicU64>,
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
    pub(crate) held: Option<Arc<Held>>,
    pub(crate) closed: AtomicBool,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Engine {
    /// Writes a checkpoint now, so that opening costs only what comes after. The engine writes them by itself; this is
    /// for tests and for a program that is about to copy the device.
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

    /// Cleans the segment that is worth most now; whether there was one. The engine cleans by itself when space runs
    /// short.
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
    /// As [`Engine::clean`]; [`Error::Closed`] if the store is closed meanwhile.
    pub fn compact(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        self.keeper()?.compact(false, progress)
    }

    /// The same beside clients: while other threads of the process are at work it rests five times as long as it
    /// works, a millisecond at a time; but not where writers wait for what it makes free.
    ///
    /// # Errors
    /// As [`Engine::compact`].
    pub fn compact_beside_clients(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        self.keeper()?.compact(true, progress)
    }

    /// Takes in the space of a device that has become longer since it was opened, while reads and writes go on: writes
    /// that were refused with [`Error::Full`] fit again. Does nothing where the device is as long as it was.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Invalid`] for a store that found no free segment when it was opened: open it
    /// again, which takes the space in as well. [`Error::Io`], and nothing has changed; [`Error::Stopped`].
    pub fn grow(&self) -> Result<GrowReport> {
        if self.full_since_open {
            let why = "it was full when it was opened: close it and open it again".into();
            return Err(Error::Invalid { what: "store that cannot grow while it is open", why });
        }
        self.keeper()?.grow()
    }

    /// Makes the twin, if there is a pool whose threads can use it.
    pub(crate) fn make_twin(&mut self) -> Result<()> {
        if self.pool.is_none() {
            return Ok(());
        }
        let twin = Self {
            device: Arc::clone(&self.device),
            segments: Arc::clone(&self.segments),
            reader: Arc::clone(&self.reader),
            objects: Arc::clone(&self.objects),
            log: self.log.clone(),
            keeper: self.keeper.clone(),
            rooms: self.rooms.clone(),
            mark: Arc::clone(&self.mark),
            pool: None,
            reads_ahead: self.reads_ahead,
            page_pool: None,
            twin: None,
            readings: Arc::clone(&self.readings),
            compress: Compress::new(self.compress.options())?,
            times: Arc::clone(&self.times),
            seed: self.seed,
            next_number: Arc::clone(&self.next_number),
            names_lsn: Arc::clone(&self.names_lsn),
            record_bytes_max: self.record_bytes_max,
            full_since_open: self.full_since_open,
            superblocks: Arc::clone(&self.superblocks),
            recovery: self.recovery,
            scrub: Arc::clone(&self.scrub),
            saved: None,
            furthest: Arc::clone(&self.furthest),
            held: self.held.clone(),
            closed: AtomicBool::new(true),
            threads: Mutex::default(),
        };
        self.twin = Some(Arc::new(twin));
        Ok(())
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

    /// For a call that looks at the index: pins what its pages point to, and waits before until there is memory for
    /// pages, unless it is the twin that reads those that are not there.
    #[inline]
    pub(crate) fn pin_with_room(&self) -> Pinned<'_> {
        if let (Some(keeper), None) = (&self.keeper, &self.twin) {
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

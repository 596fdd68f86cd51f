//! Formatting, opening and closing a store.
//!
//! open: superblock → chain → replay → sync → new superblock → commit thread
//!
//! Invariants:
//! 1. What was replayed is synced before anything is read or written, so that it cannot be taken back later.
//! 2. The log goes on in the last segment only where nothing but zeros follows and no later generation exists;
//!    else in a new one, whose header says where the log left the old one.

mod torn;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use esker_device::Device;
use esker_store::limits::TRANSACTION_BYTES_MAX;
use esker_store::{Collection, DurableMark, Error, ObjectId, Result};
use parking_lot::Mutex;

use crate::checkpoint::{Parts, Saved};
use crate::cold::Cold;
use crate::commit::{Log, LogEnd, LogShape};
use crate::compress::{Compress, CompressOptions};
use crate::format::{
    DEVICE_BYTES_MAX, Kind, Loc, OpHeader, RECORD_FLAG_GROUP_END, RECORD_HEADER_BYTES, RecordHeader, ReplayFrom,
    SegmentHeader, Stream, Superblock, place_of, raw_len, round_up, store_seed,
};
use crate::index::Missing;
use crate::keeper::{GrowReport, Held, Keeper};
use crate::load::load;
use crate::objects::{Object, Objects, Step};
use crate::pages::bring;
use crate::policy::CommitPolicy;
use crate::reader::Reader;
use crate::recover::{Chain, End, RecoveryReport, Replay, Walk, find_chain};
use crate::segments::{Lsn, SegmentBuffer, Segments};
use crate::spaces::{Spaces, clone_range_words};
use crate::stats::CallTimes;
use crate::superblocks::{SUPERBLOCK_SEGMENT_BYTES, Superblocks, device_error, find_superblock, first_segment};
use crate::watch::Watched;

/// How a store is laid out. Fixed when it is formatted.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Segment size in bytes, a power of two, 64 KiB to 1 GiB; 64 MiB by default. A transaction must fit in one.
    pub segment_bytes: u64,
    /// The store's id: random, so that another store's leftovers are told from this one's data.
    pub uuid: [u8; 16],
}

impl FormatOptions {
    /// Default layout with this id.
    pub fn new(uuid: [u8; 16]) -> Self {
        Self { segment_bytes: 64 << 20, uuid }
    }
}

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
    /// Calls of the device that take longer are logged with their stage and counted. 1 s by default.
    pub slow_io: Duration,
    /// What is compressed of transactions that ask for it, and what of that is kept.
    pub compress: CompressOptions,
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
            slow_io: Duration::from_secs(1),
            compress: CompressOptions::default(),
            commit_thread: true,
        }
    }
}

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
    /// Of a snapshot: what keeps its segments.
    pub(crate) _held: Option<Held>,
    pub(crate) closed: AtomicBool,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Engine {
    /// Makes an empty store on `device`, which is overwritten.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the setting that does not fit; [`Error::Io`].
    pub fn format(device: &dyn Device, options: &FormatOptions) -> Result<()> {
        let geometry = device.geometry();
        let invalid = |why: String| Err(Error::Invalid { what: "format option", why });
        let segment_bytes = options.segment_bytes;
        if !segment_bytes.is_power_of_two() || !(64 << 10..=1 << 30).contains(&segment_bytes) {
            return invalid(format!("segment_bytes is {segment_bytes}: expected a power of two from 64 KiB to 1 GiB"));
        }
        if segment_bytes < 8 * u64::from(geometry.block_bytes) {
            return invalid(format!(
                "segment_bytes is {segment_bytes}: less than 8 blocks of {}",
                geometry.block_bytes
            ));
        }
        if geometry.len > DEVICE_BYTES_MAX {
            return invalid(format!("the device has {} bytes; DEVICE_BYTES_MAX is {DEVICE_BYTES_MAX}", geometry.len));
        }
        if let Some(zone) = geometry.zone_bytes
            && !segment_bytes.is_multiple_of(zone)
        {
            return invalid(format!("segment_bytes is {segment_bytes}: not a multiple of the zone size {zone}"));
        }
        let superblock_segment_bytes = geometry.zone_bytes.unwrap_or(SUPERBLOCK_SEGMENT_BYTES);
        let superblock = Superblock {
            block_bytes: geometry.block_bytes,
            uuid: options.uuid,
            sequence: 1,
            segment_bytes,
            superblock_segment_bytes,
            device_len: geometry.len,
            end_generation: 0,
            clean: true,
            end_offset: 0,
            end_seq: 0,
            root: 0,
            root_generation: 0,
            replay: ReplayFrom::default(),
        };
        let segments = geometry.len / segment_bytes;
        let first = first_segment(&superblock);
        if segments < first + 2 {
            return invalid(format!(
                "the device has {} bytes: too short for superblocks and two segments of {segment_bytes}",
                geometry.len
            ));
        }
        let block = u64::from(geometry.block_bytes);
        // Old headers must not be taken for this store's; ids differ, but zeros are cheaper to tell.
        for segment in first..segments {
            let mut head = vec![0; block as usize];
            let offset = segment * segment_bytes;
            device.read(offset, &mut head).map_err(|error| device_error("formatting", error))?;
            if head.iter().any(|byte| *byte != 0) || geometry.zone_bytes.is_some() {
                device.discard(offset, segment_bytes).map_err(|error| device_error("formatting", error))?;
            }
        }
        for half in 0..2 {
            let start = half * superblock_segment_bytes;
            device.discard(start, superblock_segment_bytes).map_err(|error| device_error("formatting", error))?;
            let mut bytes = vec![0; superblock_segment_bytes.min(1 << 20) as usize];
            Superblock { sequence: 1 + half, ..superblock }.encode(&mut bytes);
            // On a zoned device the rest of the zone has to stay unwritten.
            let len = if geometry.zone_bytes.is_some() { block as usize } else { bytes.len() };
            device.write(start, &bytes[..len]).map_err(|error| device_error("formatting", error))?;
        }
        device.sync().map_err(|error| device_error("formatting", error))
    }

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
        let chain = find_chain(&*device, &found.superblock)?;
        let superblock = found.superblock;
        let seed = store_seed(&superblock.uuid);
        let first = first_segment(&superblock);
        let count = superblock.device_len / superblock.segment_bytes;
        let segments = Arc::new(Segments::new(superblock.segment_bytes, first, count, options.recent_bytes));
        for other in &chain.others {
            segments.place(other.segment, other.generation, 0, other.first_seq, other.stream == Stream::Cold);
        }
        for link in &chain.links {
            segments.place(link.header.segment, link.header.generation, 0, link.header.first_seq, false);
        }
        let headers = || chain.others.iter().chain(chain.links.iter().map(|link| &link.header));
        for next in headers().filter(|header| header.stream == Stream::Log && header.previous_generation != 0) {
            let before = segments.segment_of(next.previous_end);
            if segments.generation(before) == next.previous_generation {
                segments.set_end(before, segments.within(next.previous_end));
            }
        }
        let device_dyn = Arc::clone(&device) as Arc<dyn Device>;
        let reader = Arc::new(Reader::new(Arc::clone(&device_dyn), Arc::clone(&segments), seed, options.cache_bytes));
        let objects = Arc::new(Objects::default());
        let (saved, next_number) = if superblock.root == 0 {
            (Saved::default(), 1)
        } else {
            let loaded = load(&superblock, &reader, &segments, &objects, options.index_bytes, &|_, _| ())?;
            (loaded.saved, loaded.next_number)
        };
        // Positions of what is replayed stand above those of everything else, which is durable.
        let base_lsn = superblock.segment_bytes;
        let mut replayer = Replayer::new(&objects, &segments, Some(&reader), base_lsn, next_number);
        let (end, mut recovery) = Walk::new(&*device, &found).run(&chain, &mut replayer, &mut |_, _| {})?;
        let Replayer { last, base_lsn, next_number, .. } = replayer;
        recovery.elapsed = began.elapsed();
        if end.generation > 0 {
            // What a torn end has left behind this place counts for nothing, even if the log goes on elsewhere.
            segments.set_end(end.segment, end.offset);
        }
        segments.evict_buffers(Lsn::MAX);
        for usage in segments.in_use() {
            let tail = usage.generation >= superblock.replay.generation.max(1) && !usage.cold;
            if !tail && usage.live == 0 && usage.index == 0 {
                segments.release(usage.segment, true);
            } else if usage.cold {
                // What has died in it is not known: it was probably nearly full.
                let filled = (usage.live + usage.index).max(superblock.segment_bytes / 4 * 3);
                segments.add_filled(usage.segment, filled);
            }
        }
        segments.free_unplaced();
        let record_bytes_max = superblock.segment_bytes - 3 * u64::from(superblock.block_bytes);
        let mut engine = Self {
            superblocks: Arc::new(Superblocks::new(device_dyn, found)),
            device,
            segments,
            reader,
            objects,
            log: None,
            keeper: None,
            mark: DurableMark::new(Lsn::MAX, Box::new(|| {})),
            compress,
            times: CallTimes::default(),
            seed,
            next_number: Arc::new(AtomicU64::new(next_number)),
            names_lsn: AtomicU64::new(0),
            record_bytes_max,
            full_since_open: false,
            recovery,
            _held: None,
            closed: AtomicBool::new(false),
            threads: Mutex::default(),
        };
        if !options.read_only {
            engine.start_log(&chain, end, last, base_lsn, &options)?;
            engine.start_keeper(saved, &options)?;
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

    /// Readies the end of the log for appending.
    fn start_log(
        &mut self,
        chain: &Chain,
        end: End,
        last: Option<Arc<SegmentBuffer>>,
        base_lsn: Lsn,
        options: &Options,
    ) -> Result<()> {
        let superblock = self.superblocks.newest();
        let block = u64::from(superblock.block_bytes);
        let segment_bytes = superblock.segment_bytes;
        let device = &*self.device;
        // What was read may still be in a cache of the operating system: from here on it counts as durable.
        device.sync().map_err(|error| device_error("syncing the replayed log", error))?;
        let tail = round_up(end.offset, block);
        // Without a free segment the last one has to do, even if it has room for nothing but the end of a group.
        let needed = if self.segments.free_segments() == 0 { u64::from(!end.group_ended) } else { 2 };
        let room = tail + needed * block <= segment_bytes;
        let last_link =
            chain.links.last().filter(|link| end.generation > 0 && link.header.generation == end.generation);
        // What a torn end has left can be cleared, which costs a write of what is left of the segment: a device that is nearly
        // full must not lose a segment with every crash.
        let scarce = self.segments.free_segments() <= self.segments.log_segments() * 2 / 5;
        let zoned = device.geometry().zone_bytes.is_some();
        let goes_on = last_link.is_some()
            && (end.clean_after || scarce && !zoned)
            && room
            && (!zoned || (superblock.clean && end.group_ended));
        let mut begins_after = end;
        if !goes_on
            && let Some(link) = last_link
            && end.offset == block
            && end.generation != superblock.replay.generation
            && link.header.previous_generation != 0
        {
            // Nothing came into it: it is begun again, in place of another.
            begins_after.generation = link.header.previous_generation;
            begins_after.segment = self.segments.segment_of(link.header.previous_end);
            begins_after.offset = self.segments.within(link.header.previous_end);
            self.segments.release(end.segment, true);
        }
        if goes_on {
            // A crash may have taken back what was reserved of it: to run out of space in the middle would stop the log.
            match device.reserve(end.segment * segment_bytes, segment_bytes) {
                Err(esker_device::Error::NoSpace { .. }) => {
                    self.full_since_open = true;
                    return Ok(());
                }
                other => other.map_err(|error| device_error("reserving the log's last segment", error))?,
            }
            if !end.clean_after {
                self.clear_torn_end(end, last.as_deref(), tail)?;
            }
        }
        // Headers of the segments that were being opened may be lost: their generations must not come back.
        let generation_max = chain.generation_max + if superblock.clean { 0 } else { GENERATIONS_IN_FLIGHT };
        let mut log_end = match last {
            Some(buffer) if goes_on => LogEnd {
                segment: end.segment,
                generation: end.generation,
                buffer,
                base_lsn,
                tail,
                start: tail,
                seq: end.seq,
                group: end.group + 1,
                generation_max,
            },
            _ => match self.new_segment(chain, generation_max + 1, begins_after, base_lsn, &superblock) {
                Ok(log_end) => log_end,
                Err(Error::Full { .. }) => {
                    // Nothing can be appended after a torn end without a segment: what is there can be read.
                    self.full_since_open = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            },
        };
        if !end.group_ended {
            // The last group was cut short; it is durable now, and its end must say so before a later group begins.
            self.end_group(&mut log_end, end, block)?;
        }
        self.segments.take(log_end.segment);
        self.segments.set_end(log_end.segment, u64::MAX);
        let shape = LogShape {
            uuid: superblock.uuid,
            seed: self.seed,
            block_bytes: block,
            pending_bytes_max: options.pending_bytes_max,
            threaded: options.commit_thread,
            async_flush: options.async_flush,
        };
        let offset = log_end.segment * segment_bytes + log_end.tail;
        let generation = log_end.generation;
        self.superblocks.write(|superblock| end_at(superblock, false, generation, offset, end.seq))?;
        let durable = log_end.base_lsn + log_end.tail;
        let log = Log::new(
            Arc::clone(&self.device) as Arc<dyn Device>,
            shape,
            Arc::clone(&self.segments),
            log_end,
            options.policy,
        );
        let log = Arc::new(log);
        let weak = Arc::downgrade(&log);
        let threaded = options.commit_thread;
        let nudge = move || {
            if let Some(log) = weak.upgrade() {
                if threaded { log.nudge_for_waiter() } else { log.commit(true) }
            }
        };
        self.mark = if threaded {
            let weak = Arc::downgrade(&log);
            let commit = move || weak.upgrade().is_some_and(|log| log.commit_alone());
            DurableMark::with_commit(durable, Box::new(nudge), Box::new(commit))
        } else {
            DurableMark::new(durable, Box::new(nudge))
        };
        log.set_mark(Arc::clone(&self.mark));
        if threaded {
            self.spawn("esker-commit", &log, Log::run)?;
            self.spawn("esker-prepare", &log, Log::run_preparer)?;
        }
        self.log = Some(log);
        Ok(())
    }

    /// Starts the cleaner.
    fn start_keeper(&mut self, saved: Saved, options: &Options) -> Result<()> {
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
        let keeper =
            Arc::new(Keeper::new(parts, device, self.seed, cold, saved, options.commit_thread, options.index_bytes));
        let weak = Arc::downgrade(&keeper);
        log.set_keeper(Box::new(move || {
            if let Some(keeper) = weak.upgrade() {
                keeper.wake();
            }
        }));
        keeper.set_reserve();
        if options.commit_thread {
            self.spawn("esker-clean", &keeper, Keeper::run)?;
            self.spawn("esker-move", &keeper, Keeper::run_moving)?;
        }
        self.keeper = Some(keeper);
        Ok(())
    }

    fn spawn<T: Send + Sync + 'static>(&self, name: &str, what: &Arc<T>, run: fn(&T)) -> Result<()> {
        let what = Arc::clone(what);
        let spawned = std::thread::Builder::new().name(name.into()).spawn(move || run(&what));
        let handle = spawned.map_err(|error| Error::io(format!("starting the thread {name}"), error))?;
        self.threads.lock().push(handle);
        Ok(())
    }

    /// A new segment for the log to go on in, its header written and durable.
    fn new_segment(
        &self,
        chain: &Chain,
        generation: u32,
        end: End,
        base_lsn: Lsn,
        superblock: &Superblock,
    ) -> Result<LogEnd> {
        let segment_bytes = superblock.segment_bytes;
        let block = u64::from(superblock.block_bytes);
        let full = Error::Full { needed: segment_bytes, free: 0 };
        let segment = self.segments.peek_free().ok_or(full.clone())?;
        let offset = segment * segment_bytes;
        let written = chain.headless.contains(&segment) || self.device.geometry().zone_bytes.is_some();
        if written {
            // Before it is reserved: this gives its blocks back.
            self.device.discard(offset, segment_bytes).map_err(|error| device_error("clearing a segment", error))?;
        }
        match self.device.reserve(offset, segment_bytes) {
            Err(esker_device::Error::NoSpace { .. }) => return Err(full),
            other => other.map_err(|error| device_error("reserving a segment", error))?,
        }
        self.device.prefill(offset, segment_bytes).map_err(|error| device_error("filling a segment ahead", error))?;
        let group = end.group + 1;
        let header = SegmentHeader {
            generation,
            uuid: superblock.uuid,
            segment,
            previous_end: if end.generation == 0 { 0 } else { end.segment * segment_bytes + end.offset },
            first_seq: end.seq + 1,
            group,
            previous_generation: end.generation,
            stream: Stream::Log,
        };
        let mut buffer = self.segments.new_buffer().map_err(|error| Error::io("allocating a segment buffer", error))?;
        header.encode(&mut buffer.whole_mut()[..block as usize]);
        let head = &buffer.whole_mut()[..block as usize];
        self.device.write(offset, head).map_err(|error| device_error("writing a segment header", error))?;
        self.device.sync().map_err(|error| device_error("syncing a segment header", error))?;
        let base_lsn = if end.generation == 0 { base_lsn } else { base_lsn + segment_bytes };
        let buffer = Arc::new(buffer);
        self.segments.place(segment, generation, base_lsn, end.seq, false);
        self.segments.publish_buffer(segment, Arc::clone(&buffer));
        Ok(LogEnd {
            segment,
            generation,
            buffer,
            base_lsn,
            tail: block,
            start: block,
            seq: end.seq,
            group,
            generation_max: generation,
        })
    }

    /// Writes the end of a group that a crash cut short.
    fn end_group(&self, log_end: &mut LogEnd, end: End, block: u64) -> Result<()> {
        let header = RecordHeader {
            len: RECORD_HEADER_BYTES as u32,
            seq: end.seq,
            group: end.group,
            generation: log_end.generation,
            op_count: 0,
            flags: RECORD_FLAG_GROUP_END,
        };
        let offset = log_end.segment * self.segments.segment_bytes + log_end.tail;
        // SAFETY: the log is not running yet: nobody else writes this buffer, and nothing in the index points here.
        let bytes = unsafe { log_end.buffer.range_mut(log_end.tail as usize, block as usize) };
        bytes.fill(0);
        header.encode(bytes, self.seed, offset);
        self.device.write(offset, bytes).map_err(|error| device_error("ending a group", error))?;
        self.device.sync().map_err(|error| device_error("ending a group", error))?;
        log_end.tail += block;
        log_end.start = log_end.tail;
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

    /// Cleans every segment of which more than a tenth is dead. `progress(done, total)` is told segments, and returns
    /// false to stop early.
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
        let Some(log) = &self.log else { return Ok(()) };
        if let Some(keeper) = &self.keeper {
            // Without a checkpoint the next opening replays the log: slower, but nothing is lost.
            if let Err(error) = keeper.close() {
                tracing::warn!(%error, "no checkpoint was written at the end");
            }
        }
        log.stop();
        let threads = std::mem::take(&mut *self.threads.lock());
        if threads.is_empty() {
            log.commit(true);
        }
        for thread in threads {
            if thread.join().is_err() {
                self.mark.fail(Error::Stopped { cause: "a thread of the log panicked".into() });
            }
        }
        if let Some(failure) = self.mark.failure() {
            return Err(failure);
        }
        let (generation, offset, seq) = log.clean_end();
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

fn end_at(superblock: &mut Superblock, clean: bool, generation: u32, offset: u64, seq: u64) {
    superblock.clean = clean;
    superblock.end_generation = generation;
    superblock.end_offset = offset;
    superblock.end_seq = seq;
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "closing the store failed");
        }
    }
}

/// More segments than this are never open or ready at a time.
const GENERATIONS_IN_FLIGHT: u32 = 16;
/// The epoch of what is replayed: the first checkpoint after opening takes it.
const EPOCH: u32 = 1;

/// Does to the index what the log says.
pub(crate) struct Replayer<'a> {
    objects: &'a Objects,
    segments: &'a Segments,
    reader: Option<&'a Reader>,
    base_lsn: Lsn,
    last: Option<Arc<SegmentBuffer>>,
    next_number: u64,
}

impl Replay for Replayer<'_> {
    fn segment(&mut self, header: &SegmentHeader, buffer: &Arc<SegmentBuffer>) {
        if self.last.is_some() {
            self.base_lsn += self.segments.segment_bytes;
        }
        self.segments.place(header.segment, header.generation, self.base_lsn, header.first_seq, false);
        self.segments.publish_buffer(header.segment, Arc::clone(buffer));
        self.segments.evict_buffers(Lsn::MAX);
        self.last = Some(Arc::clone(buffer));
    }

    fn record(&mut self, record: &RecordHeader, offset: u64, operations: &[u8]) -> Result<()> {
        let mut rest = operations;
        let mut at = offset + RECORD_HEADER_BYTES as u64;
        // The walk has verified every operation of the record.
        for _ in 0..record.op_count {
            let Some(header) = OpHeader::decode_trusted(rest) else { break };
            let total = header.total_bytes() as usize;
            let operation = &rest[..total];
            let payload = &operation[header.payload_start()..header.payload_end()];
            self.operation(&header, header.key(operation).0, payload, at)?;
            rest = &rest[total..];
            at += total as u64;
        }
        Ok(())
    }
}

impl<'a> Replayer<'a> {
    /// One that goes on with these objects. Without a reader all pages of their index are in memory.
    pub(crate) fn new(
        objects: &'a Objects,
        segments: &'a Segments,
        reader: Option<&'a Reader>,
        base_lsn: Lsn,
        next_number: u64,
    ) -> Self {
        Self { objects, segments, reader, base_lsn, last: None, next_number }
    }

    /// Reads the pages that are missing for what comes next.
    fn bring(&self, object: &Object, of: impl FnOnce(&Spaces, &mut Vec<Missing>)) -> Result<()> {
        let Some(reader) = self.reader else { return Ok(()) };
        let mut missing = Vec::new();
        {
            let state = object.state.read();
            if state.cold_pages() > 0 {
                of(&state.spaces, &mut missing);
            }
        }
        if missing.is_empty() { Ok(()) } else { bring(reader, self.objects, object, &missing) }
    }

    /// Does what the operation at device offset `at` says.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when it makes no sense after what came before; nothing has changed then.
    pub(crate) fn operation(&mut self, header: &OpHeader, key: &[u8], payload: &[u8], at: u64) -> Result<()> {
        let what = || format!("{:?}: its payload is not compressed", header.kind);
        let raw_len = raw_len(header, payload).ok_or_else(|| Error::Corrupt { offset: at, what: what() })?;
        self.value(header, key, payload, (raw_len, place_of(header, payload, at, header.payload_end() as u64)))
    }

    /// The same, if the length of the value and its place are known. Only what holds no value of a space needs its
    /// payload.
    ///
    /// # Errors
    /// As [`Replayer::operation`].
    pub(crate) fn value(
        &mut self,
        header: &OpHeader,
        key: &[u8],
        payload: &[u8],
        (payload_len, loc): (u32, Loc),
    ) -> Result<()> {
        let at = loc.offset();
        let nonsense = |what: &str| Error::Corrupt { offset: at, what: format!("{:?}: {what}", header.kind) };
        let find = |number: u64| self.objects.numbered(number).ok_or_else(|| nonsense("its object does not exist"));
        match header.kind {
            Kind::CreateCollection => {
                self.objects.names.write().entry(Collection::new(key.to_vec())).or_default();
            }
            Kind::RemoveCollection => {
                self.objects.names.write().remove(&Collection::new(key.to_vec()));
            }
            Kind::CreateObject => {
                let id = full_name(key).ok_or_else(|| nonsense("name is short"))?;
                let object = self.objects.get_or_insert(&id);
                {
                    let mut state = object.state.write();
                    state.number = header.object;
                    state.touched = EPOCH;
                }
                self.objects.note(header.object, EPOCH);
                self.objects.set_number(header.object, Some(&object));
                // A checkpoint may know of a collection's removal before the log comes to it.
                let mut names = self.objects.names.write();
                names.entry(id.collection().clone()).or_default().insert(id.name().clone(), object);
                self.next_number = self.next_number.max(header.object + 1);
            }
            Kind::Rename => {
                let to_id = full_name(key).ok_or_else(|| nonsense("name is short"))?;
                let from = find(header.object)?;
                let to = self.objects.get_or_insert(&to_id);
                let mut state = from.state.write();
                self.objects.enter(&from.id, &mut state, EPOCH);
                state.move_to(&mut to.state.write());
                let mut names = self.objects.names.write();
                if let Some(collection) = names.get_mut(from.id.collection()) {
                    collection.remove(from.id.name());
                }
                names.entry(to_id.collection().clone()).or_default().insert(to_id.name().clone(), Arc::clone(&to));
                self.objects.unlink(&from.id, &mut state);
                self.objects.set_number(header.object, Some(&to));
            }
            Kind::Clone => {
                let (from, to) = (find(header.object)?, find(header.argument)?);
                self.bring(&from, |spaces, missing| spaces.all_missing(missing))?;
                self.bring(&to, |spaces, missing| spaces.all_missing(missing))?;
                let mut copy = from.state.read().spaces.clone();
                copy.shares = true;
                let mut state = to.state.write();
                self.objects.enter(&to.id, &mut state, EPOCH);
                state.put(copy, self.segments);
                self.objects.count(&mut state);
            }
            Kind::CloneRange => {
                let [number, offset, len, to_offset] =
                    clone_range_words(payload).ok_or_else(|| nonsense("payload is short"))?;
                let (from, to) = (find(header.object)?, find(number)?);
                let range = offset..offset.saturating_add(len);
                self.bring(&from, |spaces, missing| spaces.extents.missing_for(offset, len, missing))?;
                self.bring(&to, |spaces, missing| spaces.extents.missing_for(to_offset, len, missing))?;
                let parts: Vec<_> = from.state.read().extents.lookup(range).flatten().collect();
                let mut state = to.state.write();
                self.objects.enter(&to.id, &mut state, EPOCH);
                state.take_range(&parts, offset, len, to_offset, 0, self.segments);
                self.objects.count(&mut state);
            }
            Kind::Index => return Err(nonsense("has no place in the log")),
            kind => {
                let object = find(header.object)?;
                let argument = header.argument;
                self.bring(&object, |spaces, missing| {
                    spaces.missing(kind, argument, key, payload, payload_len.into(), missing);
                })?;
                let mut state = object.state.write();
                self.objects.enter(&object.id, &mut state, EPOCH);
                state.apply(&Step { kind, argument, key, payload, payload_len, loc }, 0, self.segments);
                self.objects.count(&mut state);
                if kind == Kind::RemoveObject {
                    if let Some(collection) = self.objects.names.write().get_mut(object.id.collection()) {
                        collection.remove(object.id.name());
                    }
                    self.objects.unlink(&object.id, &mut state);
                    self.objects.set_number(header.object, None);
                }
            }
        }
        Ok(())
    }
}

/// The name that a key holds: length of the collection's name, that name, and the object's.
pub(crate) fn full_name(key: &[u8]) -> Option<ObjectId> {
    let (len, names) = key.split_first()?;
    let (collection, name) = names.split_at_checked(usize::from(*len))?;
    Some(ObjectId::new(Collection::new(collection.to_vec()), name.to_vec()))
}

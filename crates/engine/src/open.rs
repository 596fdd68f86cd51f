//! Formatting, opening and closing a store.
//!
//! open: superblock → chain → replay → sync → new superblock → commit thread
//!
//! Invariants:
//! 1. What was replayed is synced before anything is read or written, so that it cannot be taken back later.
//! 2. The log goes on in the last segment only where nothing but zeros follows and no later generation exists;
//!    else in a new one, whose header says where the log left the old one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use esker_device::Device;
use esker_store::limits::TRANSACTION_BYTES_MAX;
use esker_store::{Collection, DurableMark, Error, ObjectId, Result};
use parking_lot::Mutex;

use crate::commit::{Log, LogEnd, LogShape};
use crate::format::{
    Kind, OpHeader, RECORD_FLAG_GROUP_END, RECORD_HEADER_BYTES, RecordHeader, SegmentHeader, Superblock, round_up,
    store_seed,
};
use crate::index::{DEVICE_BYTES_MAX, Loc};
use crate::objects::{Object, Objects, Step};
use crate::policy::CommitPolicy;
use crate::reader::{Reader, device_error};
use crate::recover::{
    Chain, End, FoundSuperblock, RecoveryReport, Replay, SUPERBLOCK_SEGMENT_BYTES, Walk, find_chain, find_superblock,
    first_segment,
};
use crate::segments::{Lsn, SegmentBuffer, Segments};
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
    /// Memory for the newest segments, in bytes; at least two segments. 512 MiB by default.
    pub recent_bytes: u64,
    /// Memory for values read from the device, in bytes. 256 MiB by default.
    pub cache_bytes: u64,
    /// Open without writing a byte; `submit` answers [`Error::ReadOnly`]. Off by default.
    pub read_only: bool,
    /// Longest time that a write which nobody waits for stays unsynced under `adaptive`, `batch` and `group`. 1 s by default.
    pub async_flush: Duration,
    /// Bytes that writers may be ahead of the device; above it they wait. 256 MiB by default.
    pub pending_bytes_max: u64,
    /// Calls of the device that take longer are logged with their stage and counted. 1 s by default.
    pub slow_io: Duration,
    /// Run a commit thread (default). Without one, whoever waits commits: for deterministic simulation.
    pub commit_thread: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: CommitPolicy::default(),
            recent_bytes: 512 << 20,
            cache_bytes: 256 << 20,
            read_only: false,
            async_flush: Duration::from_secs(1),
            pending_bytes_max: 256 << 20,
            slow_io: Duration::from_secs(1),
            commit_thread: true,
        }
    }
}

/// An open store.
pub struct Engine {
    pub(crate) device: Arc<Watched>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) reader: Reader,
    pub(crate) objects: Objects,
    pub(crate) log: Option<Arc<Log>>,
    pub(crate) mark: Arc<DurableMark>,
    pub(crate) seed: u32,
    pub(crate) next_number: AtomicU64,
    /// End of the last change of names that a reader has to wait for.
    pub(crate) names_lsn: AtomicU64,
    pub(crate) record_bytes_max: u64,
    /// The log cannot go on for want of a segment; only reads work.
    pub(crate) full_since_open: bool,
    superblock: Mutex<FoundSuperblock>,
    recovery: RecoveryReport,
    closed: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
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

    /// Opens the store on `device`, replaying its log.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no store of a known version; [`Error::Corrupt`] for damage, with its place;
    /// [`Error::Io`].
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Self> {
        let device = Arc::new(Watched::new(device, options.slow_io));
        let found = find_superblock(&*device)?;
        let chain = find_chain(&*device, &found.superblock)?;
        let superblock = found.superblock;
        let seed = store_seed(&superblock.uuid);
        let first = first_segment(&superblock);
        let count = superblock.device_len / superblock.segment_bytes;
        let segments = Arc::new(Segments::new(superblock.segment_bytes, first, count, options.recent_bytes));
        let mut replayer = Replayer {
            objects: Objects::default(),
            by_number: std::collections::HashMap::new(),
            segments: &segments,
            base_lsn: 0,
            last: None,
            next_number: 1,
        };
        let (end, recovery) = Walk::new(&*device, &found).run(&chain, &mut replayer, &mut |_, _| {})?;
        let Replayer { objects, last, base_lsn, next_number, .. } = replayer;
        segments.evict_buffers(Lsn::MAX);
        segments.free_unplaced();
        let reader =
            Reader::new(Arc::clone(&device) as Arc<dyn Device>, Arc::clone(&segments), seed, options.cache_bytes);
        let record_bytes_max = superblock.segment_bytes - 3 * u64::from(superblock.block_bytes);
        let mut engine = Self {
            device,
            segments,
            reader,
            objects,
            log: None,
            mark: DurableMark::new(Lsn::MAX, Box::new(|| {})),
            seed,
            next_number: AtomicU64::new(next_number),
            names_lsn: AtomicU64::new(0),
            record_bytes_max,
            full_since_open: false,
            superblock: Mutex::new(found),
            recovery,
            closed: AtomicBool::new(false),
            threads: Mutex::default(),
        };
        if !options.read_only {
            engine.start_log(&chain, end, last, base_lsn, &options)?;
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
        let superblock = self.superblock.lock().superblock;
        let block = u64::from(superblock.block_bytes);
        let segment_bytes = superblock.segment_bytes;
        let device = &*self.device;
        // What was read may still be in a cache of the operating system: from here on it counts as durable.
        device.sync().map_err(|error| device_error("syncing the replayed log", error))?;
        let tail = round_up(end.offset, block);
        // Without a free segment the last one has to do, even if it has room for nothing but the end of a group.
        let needed = if self.segments.free_segments() == 0 { u64::from(!end.group_ended) } else { 2 };
        let room = tail + needed * block <= segment_bytes;
        let goes_on = end.generation > 0
            && end.generation == chain.generation_max
            && end.clean_after
            && room
            && (device.geometry().zone_bytes.is_none() || (superblock.clean && end.group_ended));
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
                generation_max: chain.generation_max,
            },
            _ => match self.new_segment(chain, end, base_lsn, &superblock) {
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
        let shape = LogShape {
            uuid: superblock.uuid,
            seed: self.seed,
            block_bytes: block,
            pending_bytes_max: options.pending_bytes_max,
            threaded: options.commit_thread,
            async_flush: options.async_flush,
        };
        let offset = log_end.segment * segment_bytes + log_end.tail;
        self.write_superblock(false, log_end.generation, offset, end.seq)?;
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
        self.mark = DurableMark::new(durable, Box::new(nudge));
        log.set_mark(Arc::clone(&self.mark));
        if threaded {
            self.spawn("esker-commit", &log, Log::run)?;
            self.spawn("esker-prepare", &log, Log::run_preparer)?;
        }
        self.log = Some(log);
        Ok(())
    }

    fn spawn(&self, name: &str, log: &Arc<Log>, run: fn(&Log)) -> Result<()> {
        let log = Arc::clone(log);
        let spawned = std::thread::Builder::new().name(name.into()).spawn(move || run(&log));
        let handle = spawned.map_err(|error| Error::io(format!("starting the thread {name}"), error))?;
        self.threads.lock().push(handle);
        Ok(())
    }

    /// A new segment for the log to go on in, its header written and durable.
    fn new_segment(&self, chain: &Chain, end: End, base_lsn: Lsn, superblock: &Superblock) -> Result<LogEnd> {
        let segment_bytes = superblock.segment_bytes;
        let block = u64::from(superblock.block_bytes);
        let full = Error::Full { needed: segment_bytes, free: 0 };
        let segment = self.segments.peek_free().ok_or(full.clone())?;
        let offset = segment * segment_bytes;
        match self.device.reserve(offset, segment_bytes) {
            Err(esker_device::Error::NoSpace { .. }) => return Err(full),
            other => other.map_err(|error| device_error("reserving a segment", error))?,
        }
        let written = chain.headless.contains(&segment) || self.device.geometry().zone_bytes.is_some();
        if written {
            self.device.discard(offset, segment_bytes).map_err(|error| device_error("clearing a segment", error))?;
        }
        self.device.prefill(offset, segment_bytes).map_err(|error| device_error("filling a segment ahead", error))?;
        let generation = chain.generation_max + 1;
        let group = end.group + 1;
        let header = SegmentHeader {
            generation,
            uuid: superblock.uuid,
            segment,
            previous_end: if end.generation == 0 { 0 } else { end.segment * segment_bytes + end.offset },
            first_seq: end.seq + 1,
            group,
            previous_generation: end.generation,
        };
        let mut buffer = self.segments.new_buffer().map_err(|error| Error::io("allocating a segment buffer", error))?;
        header.encode(&mut buffer.whole_mut()[..block as usize]);
        let head = &buffer.whole_mut()[..block as usize];
        self.device.write(offset, head).map_err(|error| device_error("writing a segment header", error))?;
        self.device.sync().map_err(|error| device_error("syncing a segment header", error))?;
        let base_lsn = if end.generation == 0 { 0 } else { base_lsn + segment_bytes };
        let buffer = Arc::new(buffer);
        self.segments.place(segment, generation, base_lsn);
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

    /// Appends a superblock to the half that does not hold the newest.
    fn write_superblock(&self, clean: bool, end_generation: u32, end_offset: u64, end_seq: u64) -> Result<()> {
        let mut found = self.superblock.lock();
        let sequence = found.superblock.sequence + 1;
        let block = u64::from(found.superblock.block_bytes);
        let segment_bytes = found.superblock.superblock_segment_bytes;
        let half = (sequence + 1) % 2;
        let start = half * segment_bytes;
        let failed = |error| device_error("writing a superblock", error);
        let free = match found.free_blocks[half as usize] {
            Some(free) => free,
            None => {
                self.device.discard(start, segment_bytes).map_err(failed)?;
                if self.device.geometry().zone_bytes.is_none() {
                    let zeros = vec![0; segment_bytes as usize];
                    self.device.write(start, &zeros).map_err(failed)?;
                }
                self.device.sync().map_err(failed)?;
                0
            }
        };
        found.superblock = Superblock { sequence, clean, end_generation, end_offset, end_seq, ..found.superblock };
        let mut bytes = vec![0; block as usize];
        found.superblock.encode(&mut bytes);
        self.device.write(start + free * block, &bytes).map_err(failed)?;
        self.device.sync().map_err(failed)?;
        let blocks = segment_bytes.min(1 << 20) / block;
        found.free_blocks[half as usize] = (free + 1 < blocks).then_some(free + 1);
        Ok(())
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
        let written = self.write_superblock(true, generation, offset, seq);
        tracing::info!(seq, "store closed");
        written
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

struct Replayer<'a> {
    objects: Objects,
    by_number: std::collections::HashMap<u64, Arc<Object>>,
    segments: &'a Segments,
    base_lsn: Lsn,
    last: Option<Arc<SegmentBuffer>>,
    next_number: u64,
}

impl Replay for Replayer<'_> {
    fn segment(&mut self, header: &SegmentHeader, buffer: &Arc<SegmentBuffer>) {
        if self.last.is_some() {
            self.base_lsn += self.segments.segment_bytes;
        }
        self.segments.place(header.segment, header.generation, self.base_lsn);
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
            self.operation(&header, &rest[..total], at)?;
            rest = &rest[total..];
            at += total as u64;
        }
        Ok(())
    }
}

impl Replayer<'_> {
    fn operation(&mut self, header: &OpHeader, operation: &[u8], at: u64) -> Result<()> {
        let nonsense = |what: &str| Error::Corrupt { offset: at, what: format!("{:?}: {what}", header.kind) };
        let key = &operation[header.key_start()..header.key_start() + usize::from(header.key_len)];
        let payload = &operation[header.payload_start()..header.payload_end()];
        match header.kind {
            Kind::CreateCollection => {
                self.objects.names.write().entry(Collection::new(key.to_vec())).or_default();
            }
            Kind::RemoveCollection => {
                self.objects.names.write().remove(&Collection::new(key.to_vec()));
            }
            Kind::CreateObject => {
                let Some((len, names)) = key.split_first() else { return Err(nonsense("no name")) };
                let Some((collection, name)) = names.split_at_checked(usize::from(*len)) else {
                    return Err(nonsense("name is short"));
                };
                let collection = Collection::new(collection.to_vec());
                let id = ObjectId::new(collection.clone(), name.to_vec());
                let object = self.objects.get_or_insert(&id);
                object.state.write().number = header.object;
                let mut names = self.objects.names.write();
                let Some(collection) = names.get_mut(&collection) else {
                    return Err(nonsense("its collection does not exist"));
                };
                collection.insert(id.name().clone(), Arc::clone(&object));
                self.by_number.insert(header.object, object);
                self.next_number = self.next_number.max(header.object + 1);
            }
            kind => {
                let Some(object) = self.by_number.get(&header.object).cloned() else {
                    return Err(nonsense("its object does not exist"));
                };
                let loc = Loc::new(at, header.payload_end() as u64, 0);
                let mut state = object.state.write();
                let (argument, payload_len) = (header.argument, header.payload_len);
                state.apply(&Step { kind, argument, key, payload, payload_len, loc }, 0);
                if kind == Kind::RemoveObject {
                    if let Some(collection) = self.objects.names.write().get_mut(object.id.collection()) {
                        collection.remove(object.id.name());
                    }
                    self.objects.unlink(&object.id, &mut state);
                    self.by_number.remove(&header.object);
                }
            }
        }
        Ok(())
    }
}

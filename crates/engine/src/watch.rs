//! The device as the engine uses it: every call timed, slow ones logged, failed reads tried once more.
//!
//! engine → `Watched` → device
//!
//! A call that has not come back is known while it is under way: a thread looks, says so in the log, and tells INFO.
//!
//! Invariants:
//! 1. Writes and syncs are never repeated: what a failed one covered is in doubt. Only reads are.
//! 2. Watching costs two looks at the clock and two atomic changes per call, and takes no lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use esker_device::{Blocks, Device, Error, Geometry, ReadStream, Result, Whereabouts};
use parking_lot::{Condvar, Mutex};

use crate::stages::Times;

/// So many calls under way are watched at most.
const SLOTS: usize = 64;
/// How often the thread looks.
const LOOK: Duration = Duration::from_secs(1);

/// A call under way.
#[repr(align(64))]
#[derive(Default)]
struct Slot {
    /// When it began, in microseconds since the device was opened, plus one; 0: none.
    began: AtomicU64,
    offset: AtomicU64,
    len: AtomicU64,
    stage: AtomicU8,
    /// The thread has told of it.
    told: AtomicBool,
}

const STAGES: [&str; 6] = ["read", "write", "sync", "reserve", "fill ahead", "discard"];

/// Calls that have not come back, and where the device is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hanging {
    /// Calls under way for longer than `Options::slow_io`.
    pub calls: u64,
    /// How long the oldest of all that are under way has been, in milliseconds.
    pub oldest_ms: u64,
}

/// So much is read at a time where one read has failed, ...
const PIECE_BYTES: usize = 256 << 10;
/// ... and a block at a time in pieces that cannot be read, as long as no more reads than this have failed.
pub const FAILED_READS_MAX: u64 = 256;

/// Reads all that can be read with `read`, which is given device offsets: where one read fails, piece by piece and
/// block by block. Blocks that are not read are zeros then; how many there are.
pub fn read_readable(
    block_bytes: u32,
    offset: u64,
    buffer: &mut [u8],
    mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> u64 {
    let Err(error) = read(offset, buffer) else { return 0 };
    tracing::warn!(offset, len = buffer.len(), %error, "not all of it can be read");
    let (mut at, mut unread) = (offset, 0);
    for piece in buffer.chunks_mut(PIECE_BYTES) {
        let whole = read(at, piece).is_ok();
        for block in piece.chunks_mut(block_bytes as usize) {
            if !whole && (unread >= FAILED_READS_MAX || read(at, block).is_err()) {
                block.fill(0);
                unread += 1;
            }
            at += block.len() as u64;
        }
    }
    unread
}

/// A device with its figures.
pub struct Watched {
    device: Arc<dyn Device>,
    slow: Duration,
    opened: Instant,
    slots: [Slot; SLOTS],
    whereabouts: AtomicU8,
    stopped: Mutex<bool>,
    changed: Condvar,
    /// Calls that took longer than `Options::slow_io`.
    pub slow_calls: AtomicU64,
    /// Reads that failed and were tried again.
    pub read_retries: AtomicU64,
    /// Times of reads.
    pub reads: Times,
    /// Times of writes.
    pub writes: Times,
    /// Times of syncs.
    pub syncs: Times,
}

impl Watched {
    /// Watches `device`; calls that take longer than `slow` are logged.
    pub fn new(device: Arc<dyn Device>, slow: Duration) -> Self {
        Self {
            device,
            slow,
            opened: Instant::now(),
            slots: std::array::from_fn(|_| Slot::default()),
            whereabouts: AtomicU8::new(0),
            stopped: Mutex::default(),
            changed: Condvar::new(),
            slow_calls: AtomicU64::new(0),
            read_retries: AtomicU64::new(0),
            reads: Times::default(),
            writes: Times::default(),
            syncs: Times::default(),
        }
    }

    /// Notes a call; `None` if too many are under way.
    fn begin(&self, stage: &str, offset: u64, len: u64, now: Instant) -> Option<&Slot> {
        let began = (now - self.opened).as_micros() as u64 + 1;
        let free = |slot: &&Slot| slot.began.compare_exchange(0, began, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let slot = self.slots.iter().find(free)?;
        slot.offset.store(offset, Ordering::Relaxed);
        slot.len.store(len, Ordering::Relaxed);
        let number = STAGES.iter().position(|known| *known == stage).unwrap_or_default();
        slot.stage.store(number as u8, Ordering::Relaxed);
        slot.told.store(false, Ordering::Relaxed);
        Some(slot)
    }

    /// Runs `f` on every call under way, with its age.
    fn each_call(&self, mut f: impl FnMut(&Slot, Duration)) {
        let now = self.opened.elapsed();
        for slot in &self.slots {
            let Some(began) = slot.began.load(Ordering::Acquire).checked_sub(1) else { continue };
            f(slot, now.saturating_sub(Duration::from_micros(began)));
        }
    }

    /// What has not come back.
    pub fn hanging(&self) -> Hanging {
        let mut hanging = Hanging::default();
        self.each_call(|_, age| {
            hanging.calls += u64::from(age > self.slow);
            hanging.oldest_ms = hanging.oldest_ms.max(age.as_millis() as u64);
        });
        hanging
    }

    /// Where the device was found at the last look: see [`Whereabouts`].
    pub fn whereabouts_seen(&self) -> u64 {
        self.whereabouts.load(Ordering::Relaxed).into()
    }

    /// The thread's life: looks, until [`Watched::stop_watching`].
    pub fn run(&self) {
        let mut stopped = self.stopped.lock();
        while !*stopped {
            self.changed.wait_for(&mut stopped, LOOK);
            if !*stopped {
                parking_lot::MutexGuard::unlocked(&mut stopped, || self.look());
            }
        }
    }

    /// Ends the thread.
    pub fn stop_watching(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }

    fn look(&self) {
        self.each_call(|slot, age| {
            if age > self.slow && !slot.told.swap(true, Ordering::Relaxed) {
                let stage = STAGES[usize::from(slot.stage.load(Ordering::Relaxed)) % STAGES.len()];
                let (offset, len) = (slot.offset.load(Ordering::Relaxed), slot.len.load(Ordering::Relaxed));
                let elapsed_ms = age.as_millis() as u64;
                tracing::warn!(stage, offset, len, elapsed_ms, "a call of the device has not come back");
            }
        });
        let whereabouts = self.device.whereabouts();
        if self.whereabouts.swap(whereabouts as u8, Ordering::Relaxed) != whereabouts as u8 {
            let name = self.device.name();
            match whereabouts {
                Whereabouts::InPlace => tracing::info!(name, "the store's file is where it was again"),
                Whereabouts::Removed => tracing::error!(
                    name,
                    "the store's file was removed: what is written is lost when this process ends; make a backup before that"
                ),
                Whereabouts::Replaced => tracing::error!(
                    name,
                    "the store's path leads to another file: what is written is not found there when it is opened again"
                ),
            }
        }
    }

    fn read_by(
        &self,
        offset: u64,
        buffer: &mut [u8],
        read: impl Fn(&Arc<dyn Device>, u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let len = buffer.len() as u64;
        let mut timed =
            || self.timed("read", Some(&self.reads), offset, len, || read(&self.device, offset, &mut *buffer));
        let first = timed();
        let Err(error @ Error::Io { .. }) = first else { return first };
        self.read_retries.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%error, offset, len, "a read failed and is tried once more");
        timed()
    }

    fn timed<T>(
        &self,
        stage: &str,
        times: Option<&Times>,
        offset: u64,
        len: u64,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let began = Instant::now();
        let slot = self.begin(stage, offset, len, began);
        let answer = call();
        self.end(stage, times, (offset, len), (began, slot));
        answer
    }

    /// A call has come back.
    fn end(
        &self,
        stage: &str,
        times: Option<&Times>,
        (offset, len): (u64, u64),
        (began, slot): (Instant, Option<&Slot>),
    ) {
        if let Some(slot) = slot {
            slot.began.store(0, Ordering::Release);
        }
        let elapsed = began.elapsed();
        if let Some(times) = times {
            times.add(elapsed);
        }
        if elapsed > self.slow {
            self.slow_calls.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(stage, offset, len, elapsed_ms = elapsed.as_millis() as u64, "the device is slow");
        }
    }
}

/// Reads under way together: what is watched is each wait for them, since a client may be waited for in between.
struct Streamed<'w> {
    watched: &'w Watched,
    reads: &'w mut dyn ReadStream,
    /// By number, when they began, offset and length.
    begun: Vec<(u64, Instant, (u64, u64))>,
    waits: Option<(Instant, Option<&'w Slot>)>,
}

impl Streamed<'_> {
    /// The device is not waited for any more.
    fn end_wait(&mut self) {
        let Some((since, slot)) = self.waits.take() else { return };
        let place = self.begun.first().map_or((0, 0), |(_, _, place)| *place);
        self.watched.end("read", None, place, (since, slot));
    }
}

impl ReadStream for Streamed<'_> {
    fn next(&mut self) -> Option<(u64, Blocks)> {
        let (number, mut blocks) = self.reads.next()?;
        let place = (blocks.first(), blocks.whole_mut().len() as u64);
        self.begun.push((number, Instant::now(), place));
        Some((number, blocks))
    }

    fn waits(&mut self) {
        self.reads.waits();
        let now = Instant::now();
        let (offset, len) = self.begun.first().map_or((0, 0), |(_, _, place)| *place);
        self.waits = Some((now, self.watched.begin("read", offset, len, now)));
    }

    fn arrived(&mut self, number: u64) {
        self.end_wait();
        if let Some(at) = self.begun.iter().position(|(begun, ..)| *begun == number) {
            self.watched.reads.add(self.begun.swap_remove(at).1.elapsed());
        }
        self.reads.arrived(number);
    }

    fn came(&mut self, number: u64, mut blocks: Blocks, mut outcome: Result<()>) {
        if let Err(error @ Error::Io { .. }) = &outcome {
            self.watched.read_retries.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, offset = blocks.first(), "a read failed and is tried once more");
            outcome =
                self.watched.timed("read", Some(&self.watched.reads), blocks.first(), blocks.len() as u64, || {
                    self.watched.device.read_value(blocks.first(), blocks.whole_mut())
                });
        }
        self.reads.came(number, blocks, outcome);
    }
}

impl Drop for Streamed<'_> {
    fn drop(&mut self) {
        // Of a stream that panicked.
        self.end_wait();
    }
}

impl Device for Watched {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.read_by(offset, buffer, Device::read)
    }

    fn read_value(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.read_by(offset, buffer, Device::read_value)
    }

    fn read_stream(&self, reads: &mut dyn ReadStream) {
        self.device.read_stream(&mut Streamed { watched: self, reads, begun: Vec::new(), waits: None });
    }

    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let began = Instant::now();
        let read = self.device.read_now(offset, buffer);
        if read {
            self.reads.add(began.elapsed());
        }
        read
    }

    fn read_medium(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let len = buffer.len() as u64;
        // Not among the times of what readers wait for.
        self.timed("read", None, offset, len, || self.device.read_medium(offset, buffer))
    }

    fn whereabouts(&self) -> Whereabouts {
        self.device.whereabouts()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let write = || self.device.write(offset, data);
        self.timed("write", Some(&self.writes), offset, data.len() as u64, write)
    }

    fn sync(&self) -> Result<()> {
        self.timed("sync", Some(&self.syncs), 0, 0, || self.device.sync())
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        self.timed("reserve", None, offset, len, || self.device.reserve(offset, len))
    }

    fn prefill(&self, offset: u64, len: u64) -> Result<()> {
        self.timed("fill ahead", None, offset, len, || self.device.prefill(offset, len))
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.device.will_read(offset, len);
    }

    fn refresh_len(&self) -> Result<u64> {
        self.device.refresh_len()
    }

    fn name(&self) -> String {
        self.device.name()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.timed("discard", None, offset, len, || self.device.discard(offset, len))
    }
}

//! A clean stop: what it costs, and that a power cut at any call of it loses nothing.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

#[path = "support/hooked.rs"]
mod hooked;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_device::{Device, Geometry, MemoryDevice, Result};
use esker_engine::{CommitPolicy, Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Durability, ObjectId, ObjectStore, Transaction};
use hooked::{Call, Hooked};
use parking_lot::Mutex;

const DEVICE_BYTES: u64 = 64 << 20;

fn object() -> ObjectId {
    ObjectId::new(Collection::from("c"), "o")
}

fn set_keys(engine: &Engine, keys: std::ops::Range<u64>) {
    for first in keys.clone().step_by(100) {
        let mut txn = Transaction::with(Durability::Applied);
        for key in first..(first + 100).min(keys.end) {
            txn.push(&object(), Change::OmapSet { key: key.to_be_bytes().to_vec().into(), value: vec![1; 8].into() });
        }
        engine.submit(txn).wait().unwrap();
    }
}

/// A store of 1,000 keys, all of them durable.
fn filled(device: Arc<dyn Device>, options: Options) -> Engine {
    Engine::format(&*device, &FormatOptions { segment_bytes: 1 << 20, uuid: [5; 16] }).unwrap();
    let engine = Engine::open(device, options).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    set_keys(&engine, 0..1_000);
    engine.sync().wait().unwrap();
    engine
}

/// A device of so many bytes, and how often it was synced.
fn counting(bytes: u64) -> (Arc<dyn Device>, Arc<AtomicU64>) {
    let syncs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&syncs);
    let before = move |call| {
        counted.fetch_add(u64::from(matches!(call, Call::Sync)), Ordering::Relaxed);
        Ok(())
    };
    (Arc::new(Hooked { device: MemoryDevice::new(bytes), before }), syncs)
}

#[test]
fn a_stop_does_not_make_writes_wait_for_a_checkpoint_longer_than_their_bound() {
    let periodic = CommitPolicy::Periodic { interval: std::time::Duration::from_secs(60) };
    // A policy with a bound, and a checkpoint that takes long: the log's end has a sync of its own. So has the segment
    // before, where what is not synced takes two.
    for (policy, keys, expected) in [(periodic, 1_000, 3), (CommitPolicy::Batch, 400_000, 4)] {
        let (device, syncs) = counting(4 * DEVICE_BYTES);
        let async_flush = std::time::Duration::from_secs(60);
        let options = Options { policy, commit_thread: false, async_flush, ..Options::default() };
        let engine = filled(Arc::clone(&device), options);
        set_keys(&engine, 1_000..1_000 + keys);
        let (before, checkpoints) = (syncs.load(Ordering::Relaxed), engine.stats().checkpoints);
        engine.close().unwrap();
        assert_eq!(syncs.load(Ordering::Relaxed) - before, expected, "{policy}, after {checkpoints} checkpoints");
    }
}

#[test]
fn a_clean_stop_syncs_twice() {
    for (threaded, unsynced) in [(true, 0), (true, 1_000), (false, 0), (false, 1_000)] {
        let (device, syncs) = counting(DEVICE_BYTES);
        // Nothing is synced by the clock.
        let options =
            Options { commit_thread: threaded, async_flush: std::time::Duration::from_secs(60), ..Options::default() };
        let engine = filled(Arc::clone(&device), options);
        set_keys(&engine, 1_000..1_000 + unsynced);
        let before = syncs.load(Ordering::Relaxed);
        engine.close().unwrap();
        // The log and the checkpoint; the superblock that names it and says that the stop was clean.
        let synced = syncs.load(Ordering::Relaxed) - before;
        assert_eq!(synced, 2, "{unsynced} keys that were not synced, threads: {threaded}");
        drop(engine);
        let engine = Engine::open(Arc::clone(&device), Options::default()).unwrap();
        assert!(engine.recovery().clean);
        assert_eq!(engine.recovery().records, 0, "the checkpoint covers the log");
        assert_eq!(engine.stats().omap_keys, 1_000 + unsynced);
        // Nothing has changed: there is no checkpoint to write.
        let before = syncs.load(Ordering::Relaxed);
        engine.close().unwrap();
        assert_eq!(syncs.load(Ordering::Relaxed) - before, 1, "the superblock of a stop without a checkpoint");
    }
}

/// What changes the device.
#[derive(Clone)]
enum Done {
    Write(u64, Vec<u8>),
    Discard(u64, u64),
    Sync,
}

/// A memory device that keeps a list of what was done to it.
struct Listed {
    device: MemoryDevice,
    done: Mutex<Vec<Done>>,
}

impl Device for Listed {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.device.read(offset, buffer)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.done.lock().push(Done::Write(offset, data.to_vec()));
        self.device.write(offset, data)
    }

    fn sync(&self) -> Result<()> {
        self.done.lock().push(Done::Sync);
        self.device.sync()
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        self.device.reserve(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.done.lock().push(Done::Discard(offset, len));
        self.device.discard(offset, len)
    }

    fn name(&self) -> String {
        "listed".into()
    }
}

/// Does again what was done, but for the unsynced calls that `lost` names.
fn after_power_cut(base: &MemoryDevice, done: &[Done], mut lost: impl FnMut(usize) -> bool) -> MemoryDevice {
    let device = base.snapshot();
    let synced = done.iter().rposition(|done| matches!(done, Done::Sync)).unwrap_or(0);
    for (number, done) in done.iter().enumerate() {
        match done {
            Done::Sync => {}
            _ if number > synced && lost(number) => {}
            Done::Write(offset, data) => device.write(*offset, data).unwrap(),
            Done::Discard(offset, len) => device.discard(*offset, *len).unwrap(),
        }
    }
    device
}

#[test]
fn a_power_cut_during_a_clean_stop_loses_nothing_that_was_synced() {
    let device = Arc::new(Listed { device: MemoryDevice::new(DEVICE_BYTES), done: Mutex::default() });
    let threadless = || Options { commit_thread: false, ..Options::default() };
    let engine = filled(Arc::clone(&device) as Arc<dyn Device>, threadless());
    // Most of what the last checkpoint has changes, and some is not synced.
    engine.checkpoint().unwrap();
    set_keys(&engine, 500..2_000);
    engine.sync().wait().unwrap();
    set_keys(&engine, 2_000..2_500);
    let base = device.device.snapshot();
    device.done.lock().clear();
    engine.close().unwrap();
    let done = std::mem::take(&mut *device.done.lock());
    let count = done.len();
    assert_eq!(done.iter().filter(|done| matches!(done, Done::Sync)).count(), 2);
    let mut named = 0;
    for cut in 0..=count {
        let mut random = fastrand::Rng::with_seed(cut as u64);
        for kept in 0..8 {
            let lost = |number: usize| match kept {
                0 => false,
                1 => true,
                // Writes come to the medium in any order: the last one alone.
                2 => number + 1 < cut,
                _ => random.bool(),
            };
            let device = Arc::new(after_power_cut(&base, &done[..cut], lost)) as Arc<dyn Device>;
            let engine = Engine::open(Arc::clone(&device), threadless())
                .unwrap_or_else(|error| panic!("cut after call {cut} of {count}, case {kept}: {error}"));
            let report = *engine.recovery();
            let keys = engine.stats().omap_keys;
            assert!(keys == 2_500 || keys >= 2_000 && !report.clean, "cut after call {cut}: {keys} keys, {report:?}");
            assert_eq!(report.checkpoints_passed_over, 0, "cut after call {cut}, case {kept}: what is named holds");
            assert_eq!(report.clean, report.records == 0, "cut after call {cut}: a clean stop has nothing to replay");
            named += u32::from(report.clean);
            // What was opened goes on.
            set_keys(&engine, 2_500..2_600);
            engine.close().unwrap();
            drop(engine);
            let engine = Engine::open(device, threadless()).unwrap();
            assert!(engine.recovery().clean && engine.stats().omap_keys == keys + 100);
        }
    }
    assert!(named >= 8, "the last call is the sync of the superblock");
}

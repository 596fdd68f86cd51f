//! Reads that have to wait for the device: begun when they are asked for, and waited for only by their readers.
//!
//! A device that holds up reads shows who waits, and what was begun before the first of them is let go.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_device::{Device, Geometry, MemoryDevice, Result};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{
    Change, Collection, Completion, Compression, Condition, Error, ObjectId, ObjectStore, OmapScan, SlotScan, Soon,
    Stall, Transaction, Waits, WhenBusy,
};
use parking_lot::{Condvar, Mutex};

const SEGMENT_BYTES: u64 = 1 << 20;
const LATE: Duration = Duration::from_secs(30);

/// A device on which reads that may wait do wait while it is held.
struct Held {
    device: MemoryDevice,
    held: Mutex<bool>,
    released: Condvar,
    /// Whether reads are answered at once where that can be done.
    cached: AtomicBool,
    /// Whether only the reading pool is held up.
    keeper_reads: AtomicBool,
    /// Whether it is held up also where it is only told of a read.
    telling_waits: AtomicBool,
    reading: AtomicU64,
    begun: AtomicU64,
    /// Threads that tell it of a read now.
    telling: AtomicU64,
}

impl Held {
    fn new(device: MemoryDevice) -> Arc<Self> {
        let (held, released) = (Mutex::new(false), Condvar::new());
        let [cached, keeper_reads, telling_waits] = [false; 3].map(AtomicBool::new);
        Arc::new(Self {
            device,
            held,
            released,
            cached,
            keeper_reads,
            telling_waits,
            reading: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            telling: AtomicU64::new(0),
        })
    }

    fn hold(&self, hold: bool) {
        *self.held.lock() = hold;
        self.released.notify_all();
    }
}

impl Device for Held {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut held = self.held.lock();
        self.reading.fetch_add(1, Ordering::SeqCst);
        let reads_for_others = std::thread::current().name() == Some("esker-read");
        while *held && (reads_for_others || !self.keeper_reads.load(Ordering::SeqCst)) {
            self.released.wait(&mut held);
        }
        drop(held);
        self.reading.fetch_sub(1, Ordering::SeqCst);
        self.device.read(offset, buffer)
    }

    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> bool {
        self.cached.load(Ordering::SeqCst) && self.device.read(offset, buffer).is_ok()
    }

    fn will_read(&self, _: u64, _: u64) {
        let mut held = self.held.lock();
        self.telling.fetch_add(1, Ordering::SeqCst);
        while *held && self.telling_waits.load(Ordering::SeqCst) {
            self.released.wait(&mut held);
        }
        self.telling.fetch_sub(1, Ordering::SeqCst);
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.device.write(offset, data)
    }

    fn sync(&self) -> Result<()> {
        self.device.sync()
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        self.device.reserve(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.device.discard(offset, len)
    }

    fn name(&self) -> String {
        "held".into()
    }
}

#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LATE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Has a task ask whether it is here, which it is not; then the pool comes to it.
fn ask<T>(completion: &mut Completion<T>) {
    assert!(completion.poll_arrived(&mut Context::from_waker(Waker::noop())).is_pending());
}

fn object() -> ObjectId {
    ObjectId::new(Collection::from("c"), "o")
}

fn value(number: u64) -> Bytes {
    Bytes::from(vec![(number % 255) as u8 + 1; 5_000])
}

fn key(number: u64) -> Bytes {
    format!("key{number:04}").into()
}

const KEYS: u64 = 100;

/// A store with keys, slots and data that are on the device only.
fn filled() -> (Arc<Held>, Engine) {
    let memory = MemoryDevice::new(64 * SEGMENT_BYTES);
    Engine::format(&memory, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [5; 16] }).unwrap();
    let device = Held::new(memory);
    let engine = reopened(&device);
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    for number in 0..KEYS {
        let mut txn = Transaction::new();
        txn.push(&object(), Change::OmapSet { key: key(number), value: value(number) });
        txn.push(&object(), Change::SlotSet { index: number, value: value(number) });
        txn.push(&object(), Change::Write { offset: number * 10_000, data: value(number) });
        engine.submit(txn).wait().unwrap();
    }
    drop(engine);
    let engine = reopened(&device);
    (device, engine)
}

fn reopened(device: &Arc<Held>) -> Engine {
    with_cache(device, 16 << 20)
}

fn with_cache(device: &Arc<Held>, cache_bytes: u64) -> Engine {
    let options = Options { recent_bytes: 0, cache_bytes, scrub_bytes_per_s: 0, ..Options::default() };
    Engine::open(Arc::clone(device) as Arc<dyn Device>, options).unwrap()
}

/// Asks while the device is held, shows that the call comes back and its value does not, and gives the value when the
/// device is let go.
fn late<T: std::fmt::Debug>(device: &Held, ask: impl FnOnce() -> Completion<T>) -> T {
    device.hold(true);
    let mut completion = std::pin::pin!(ask());
    assert!(!completion.is_here(), "the reader did not have to wait for the device");
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    assert!(completion.as_mut().poll(&mut cx).is_pending());
    assert_eq!(woken.0.load(Ordering::SeqCst), 0);
    device.hold(false);
    until("no task is woken", || woken.0.load(Ordering::SeqCst) > 0);
    match completion.as_mut().poll(&mut cx) {
        Poll::Ready(value) => value.unwrap(),
        Poll::Pending => panic!("woken for nothing"),
    }
}

#[test]
fn a_read_that_waits_for_the_device_holds_up_nobody() {
    let (device, engine) = filled();
    let id = object();
    // Something that is in memory.
    assert_eq!(engine.omap_get(&id, &key(7)).wait().unwrap(), Some(value(7)));
    assert_eq!(late(&device, || engine.omap_get(&id, &key(1))), Some(value(1)));
    assert_eq!(late(&device, || engine.slot_get(&id, 1)), Some(value(1)));
    assert_eq!(late(&device, || engine.read(&id, 10_000..15_000)), value(1));
    // Several parts with holes between them.
    let part = late(&device, || engine.read(&id, 20_100..40_000));
    assert_eq!((&part[..4_900], &part[4_900..9_900]), (&value(2)[100..], &[0; 5_000][..]));
    assert_eq!((&part[9_900..14_900], &part[14_900..]), (&value(3)[..], &[0; 5_000][..]));
    let keys = [key(5), "none".into(), key(7), key(6)];
    let wanted = vec![Some(value(5)), None, Some(value(7)), Some(value(6))];
    assert_eq!(late(&device, || engine.omap_get_many(&id, &keys)), wanted);
    assert_eq!(late(&device, || engine.slot_get_many(&id, &[8, KEYS, 9])), [Some(value(8)), None, Some(value(9))]);
    let scan = OmapScan { start: Some(key(20)), limit: 3, ..OmapScan::default() };
    let wanted: Vec<_> = (20..23).map(|number| (key(number), value(number))).collect();
    assert_eq!(late(&device, || engine.omap_scan(&id, &scan)), wanted);
    let scan = SlotScan { range: 30..40, limit: 2, reverse: true, keys_only: false };
    assert_eq!(late(&device, || engine.slot_scan(&id, &scan)), [(39, value(39)), (38, value(38))]);
    // While one waits for the device, others are answered, and write.
    device.hold(true);
    let waits = engine.omap_get(&id, &key(50));
    assert!(!waits.is_here());
    let again = engine.omap_get(&id, &key(7));
    assert!(again.is_here());
    assert_eq!(again.wait().unwrap(), Some(value(7)));
    let txn = Transaction::new().change(&id, Change::OmapSet { key: key(7), value: value(77) });
    engine.submit(txn).wait().unwrap();
    device.hold(false);
    assert_eq!(waits.wait().unwrap(), Some(value(50)));
}

const MANY: u64 = 5_000;

/// A store whose index has many pages, with values of a few bytes.
fn with_many_pages(cache_bytes: u64) -> (Arc<Held>, Engine) {
    let (device, engine) = filled();
    for first in (0..MANY).step_by(100) {
        let mut txn = Transaction::new();
        for number in first..first + 100 {
            txn.push(&object(), Change::OmapSet { key: key(number), value: few(number) });
            txn.push(&object(), Change::SlotSet { index: number, value: few(number) });
            txn.push(&object(), Change::Write { offset: number * 10_000, data: few(number) });
        }
        engine.submit(txn).wait().unwrap();
    }
    drop(engine);
    let engine = with_cache(&device, cache_bytes);
    (device, engine)
}

fn few(number: u64) -> Bytes {
    Bytes::from(number.to_be_bytes().to_vec())
}

/// Has all index pages leave memory.
fn without_pages(engine: &Engine) {
    engine.checkpoint().unwrap();
    // The first calls only note that they were used.
    // The first calls only note that they were used.
    (0..4).for_each(|_| {
        engine.drop_index_pages();
    });
    assert_eq!(engine.stats().index_page_bytes, 0);
}

/// Failure: with an index larger than its budget a read waited for the device on the thread that asked, which served
/// thousands of others. Fix: the call is made again by a thread that may wait.
#[test]
fn a_read_of_index_pages_holds_up_nobody() {
    let (device, engine) = with_many_pages(0);
    let id = object();
    let cold = || {
        without_pages(&engine);
        &*device
    };
    assert_eq!(late(cold(), || engine.omap_get(&id, &key(1))), Some(few(1)));
    assert_eq!(late(cold(), || engine.omap_get(&id, b"key0001x")), None);
    assert_eq!(late(cold(), || engine.slot_get(&id, 1)), Some(few(1)));
    assert_eq!(late(cold(), || engine.read(&id, 10_000..10_008)), few(1));
    assert_eq!(late(cold(), || engine.extents(&id, 40_000_000..40_000_008)).len(), 1);
    assert_eq!(late(cold(), || engine.omap_get_many(&id, &[key(5), key(6)])), [Some(few(5)), Some(few(6))]);
    assert_eq!(late(cold(), || engine.slot_get_many(&id, &[8, MANY])), [Some(few(8)), None]);
    let scan = OmapScan { start: Some(key(20)), limit: 1, ..OmapScan::default() };
    assert_eq!(late(cold(), || engine.omap_scan(&id, &scan)), [(key(20), few(20))]);
    let scan = SlotScan { range: 30..40, limit: 1, reverse: true, keys_only: false };
    assert_eq!(late(cold(), || engine.slot_scan(&id, &scan)), [(39, few(39))]);
    // What needs no pages is here all the while, and who waits at once reads itself.
    cold().hold(true);
    let waits = engine.slot_get(&id, 3);
    assert!(engine.stat(&id).is_here() && engine.xattrs(&id).is_here() && !waits.is_here());
    device.hold(false);
    assert_eq!(waits.wait().unwrap(), Some(few(3)));
    // Its values are begun ahead as those of any other.
    let before = device.begun.load(Ordering::SeqCst);
    let keys: Vec<_> = (0..KEYS).map(|number| key(number * 50)).collect();
    let wanted: Vec<_> = (0..KEYS).map(|number| Some(few(number * 50))).collect();
    assert_eq!(late(cold(), || engine.omap_get_many(&id, &keys)), wanted);
    assert!(device.begun.load(Ordering::SeqCst) >= before + KEYS);
    // Closing leaves no caller without an answer, nor does an answer that no caller came for keep the store.
    without_pages(&engine);
    let unasked = engine.slot_get(&id, 5);
    assert!(!unasked.is_here());
    cold().hold(true);
    let mut waits = engine.slot_get(&id, 4);
    assert!(waits.poll_arrived(&mut Context::from_waker(Waker::noop())).is_pending());
    let releasing = std::thread::spawn({
        let device = Arc::clone(&device);
        move || {
            std::thread::sleep(Duration::from_millis(20));
            device.hold(false);
        }
    });
    drop(engine);
    assert_eq!(Arc::strong_count(&device), 1 + usize::from(!releasing.is_finished()));
    releasing.join().unwrap();
    assert_eq!((waits.wait().unwrap(), unasked.wait().unwrap()), (Some(few(4)), Some(few(5))));
}

/// Refused until what it needs is read, without waiting for it; how often. What it then answers.
fn refused_then(device: &Held, engine: &Engine, txn: &Transaction) -> (u32, esker_store::Result<()>) {
    let mut waits = Waits::default();
    loop {
        device.hold(true);
        let mut txn = txn.clone();
        txn.when_busy = WhenBusy::Refuse(waits);
        let answer = engine.submit(txn).into_parts().0;
        let Err(Error::Busy { stall }) = answer else {
            device.hold(false);
            return (waits.reading(), answer.map(drop));
        };
        assert!(matches!(stall, Stall::Reading { .. }), "{stall}");
        let mut room = engine.room(stall);
        assert!(room.poll_arrived(&mut Context::from_waker(Waker::noop())).is_pending(), "no thread reads");
        device.hold(false);
        room.wait().unwrap();
        waits.note(stall);
    }
}

/// The same of writes that are refused where the store would have to wait.
#[test]
fn a_write_that_needs_index_pages_or_values_is_refused_until_they_are_read() {
    let (device, engine) = with_many_pages(16 << 20);
    let id = object();
    let put = |number| Transaction::new().change(&id, Change::OmapSet { key: key(number), value: few(number + 1) });
    let equals = |number, value| Condition::OmapEquals { key: key(number), value };
    without_pages(&engine);
    let (refused, done) = refused_then(&device, &engine, &put(1));
    assert!(done.is_ok() && refused == 1, "{done:?} after {refused}");
    // The pages that a guard looks at, the value that it compares, and no more for what is changed on the same page.
    without_pages(&engine);
    let (refused, done) = refused_then(&device, &engine, &put(2).guard(&id, equals(2, few(2))));
    assert!(done.is_ok() && refused == 2, "{done:?} after {refused}");
    without_pages(&engine);
    let (refused, done) = refused_then(&device, &engine, &put(4).guard(&id, equals(3, few(4))));
    assert!(matches!(done, Err(Error::GuardFailed { index: 0 })) && refused == 2, "{done:?} after {refused}");
    assert_eq!(engine.omap_get_many(&id, &[key(2), key(4)]).wait().unwrap(), [Some(few(3)), Some(few(4))]);
    // Many that need one page have it read a few times: as often as is begun before it is there.
    without_pages(&engine);
    device.hold(true);
    let before = engine.stats().index_page_reads;
    let rooms: Vec<_> = (0..100)
        .map(|_| {
            let mut txn = put(6);
            txn.when_busy = WhenBusy::Refuse(Waits::default());
            let refused = engine.submit(txn).into_parts().0;
            let Err(Error::Busy { stall }) = refused else { panic!("{refused:?}") };
            engine.room(stall)
        })
        .collect();
    device.hold(false);
    rooms.into_iter().for_each(|room| room.wait().unwrap());
    let read = engine.stats().index_page_reads - before;
    assert!((1..=16).contains(&read), "{read} times");
    // One that has waited for it often enough reads itself: what is read for it may leave again and again.
    without_pages(&engine);
    let mut waits = Waits::default();
    (0..4).for_each(|_| waits.note(Stall::Reading { number: 0 }));
    let mut txn = put(5);
    txn.when_busy = WhenBusy::Refuse(waits);
    engine.submit(txn).wait().unwrap();
    assert_eq!(engine.omap_get(&id, &key(5)).wait().unwrap(), Some(few(6)));
}

/// Failure: a change of a value that stood compressed in memory was put off four times. Cause: nothing that is read
/// brings it where guards looked. Fix: they look where readers do.
#[test]
fn a_guard_on_a_compressed_value_in_memory_puts_nothing_off() {
    let (_, engine) = filled();
    let (id, value) = (object(), Bytes::from(vec![7; 50_000]));
    let mut txn = Transaction::new().change(&id, Change::OmapSet { key: key(1), value: value.clone() });
    txn.compression = Compression::Lz4;
    engine.submit(txn).wait().unwrap();
    assert!(engine.stats().compressed_kept > 0);
    let mut txn = Transaction::new().change(&id, Change::OmapSet { key: key(2), value: "changed".into() });
    txn.push_guard(&id, Condition::OmapEquals { key: key(1), value });
    txn.when_busy = WhenBusy::Refuse(Waits::default());
    engine.submit(txn).wait().unwrap();
}

#[test]
fn all_reads_of_one_call_are_begun_before_one_is_waited_for() {
    let (device, engine) = filled();
    device.hold(true);
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let mut all = engine.omap_get_many(&object(), &keys);
    let mut scanned = engine
        .slot_scan(&object(), &SlotScan { range: 0..KEYS, limit: KEYS as usize, reverse: false, keys_only: false });
    ask(&mut all);
    ask(&mut scanned);
    until("not all are begun", || device.begun.load(Ordering::SeqCst) == 2 * KEYS);
    device.hold(false);
    let wanted: Vec<_> = (0..KEYS).map(|number| Some(value(number))).collect();
    assert_eq!(all.wait().unwrap(), wanted);
    assert_eq!(scanned.wait().unwrap().len() as u64, KEYS);
}

/// However many are asked for, some of them are begun only; the others follow while these are read.
#[test]
fn a_call_for_very_many_values_begins_some_and_the_rest_as_they_come() {
    let (device, engine) = filled();
    device.hold(true);
    let keys: Vec<_> = (0..50 * KEYS).map(|number| key(number % KEYS)).collect();
    let mut all = engine.omap_get_many(&object(), &keys);
    ask(&mut all);
    until("few are begun", || device.begun.load(Ordering::SeqCst) >= KEYS);
    until("no thread reads", || device.reading.load(Ordering::SeqCst) == 1);
    let begun = device.begun.load(Ordering::SeqCst);
    assert!((KEYS..2 * KEYS).contains(&begun), "{begun}");
    device.hold(false);
    let wanted: Vec<_> = (0..50 * KEYS).map(|number| Some(value(number % KEYS))).collect();
    assert_eq!(all.wait().unwrap(), wanted);
    assert_eq!(device.begun.load(Ordering::SeqCst), 50 * KEYS);
}

/// Failure: of a scan of thousands of values the first were read at the same time and the others one by one. Cause:
/// only those were begun. Fix: each that is read begins one further on.
#[test]
fn a_scan_of_many_values_begins_them_all_ahead() {
    const MANY: u64 = 400;
    let (device, engine) = filled();
    for number in KEYS..MANY {
        engine
            .submit(Transaction::new().change(&object(), Change::SlotSet { index: number, value: value(number) }))
            .wait()
            .unwrap();
    }
    drop(engine);
    let engine = reopened(&device);
    device.hold(true);
    let scan = SlotScan { range: 0..MANY, limit: MANY as usize, reverse: false, keys_only: false };
    let mut scanned = engine.slot_scan(&object(), &scan);
    ask(&mut scanned);
    until("no thread reads", || device.reading.load(Ordering::SeqCst) == 1);
    let begun = device.begun.load(Ordering::SeqCst);
    assert!((KEYS..2 * KEYS).contains(&begun), "{begun}");
    device.hold(false);
    assert_eq!(scanned.wait().unwrap().len() as u64, MANY);
    assert_eq!(device.begun.load(Ordering::SeqCst), MANY);
}

#[test]
fn what_the_device_has_at_once_is_here_when_the_call_returns() {
    let (device, engine) = filled();
    device.cached.store(true, Ordering::SeqCst);
    device.hold(true);
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let all = engine.omap_get_many(&object(), &keys);
    assert!(all.is_here() && engine.slot_get(&object(), 3).is_here() && engine.read(&object(), 0..900_000).is_here());
    assert_eq!(all.wait().unwrap().len() as u64, KEYS);
    device.hold(false);
}

#[test]
fn reads_that_nobody_wants_any_more_are_not_made_and_a_store_ends_with_those_that_are_wanted() {
    let (device, engine) = filled();
    device.hold(true);
    let mut wanted: Vec<_> = (0..KEYS).map(|number| engine.slot_get(&object(), number)).collect();
    // Tasks poll for some of them, and no caller waits for the others yet.
    for completion in wanted.iter_mut().step_by(2) {
        assert!(completion.poll_arrived(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    until("no thread reads", || device.reading.load(Ordering::SeqCst) > 0);
    let busy = device.reading.load(Ordering::SeqCst);
    let dropped: Vec<_> = (0..KEYS).map(|number| engine.omap_get(&object(), &key(number))).collect();
    drop(dropped);
    let closing = std::thread::spawn({
        let device = Arc::clone(&device);
        move || {
            std::thread::sleep(Duration::from_millis(20));
            device.hold(false);
        }
    });
    // Closing runs what was given.
    drop(engine);
    closing.join().unwrap();
    assert!(busy <= 16, "{busy} threads read");
    for (number, completion) in wanted.into_iter().enumerate() {
        assert_eq!(completion.wait().unwrap(), Some(value(number as u64)));
    }
    // Nothing holds the device any more: no read is left behind.
    let engine = reopened(&device);
    assert_eq!(engine.slot_get(&object(), 1).wait().unwrap(), Some(value(1)));
}

/// Goes round the device more than once, if it is let.
fn go_round(engine: &Engine) {
    engine.submit(Transaction::new().change(&object(), Change::Remove)).wait().unwrap();
    let _ = engine.checkpoint();
    for number in 0..(160 * SEGMENT_BYTES / 500_000) {
        let data = Bytes::from(vec![0xee; 500_000]);
        engine.submit(Transaction::new().change(&object(), Change::Write { offset: 0, data })).wait().unwrap();
        if number % 20 == 0 {
            let _ = engine.checkpoint();
        }
    }
}

/// A caller that waits at once asks the device once; one that asks for several first has the others begun meanwhile.
#[test]
fn single_reads_are_begun_where_several_are_asked_for_before_one_is_waited_for() {
    let (device, engine) = filled();
    for number in 0..10 {
        assert_eq!(engine.slot_get(&object(), number).wait().unwrap(), Some(value(number)));
    }
    assert_eq!(device.begun.load(Ordering::SeqCst), 0);
    let several: Vec<_> = (10..20).map(|number| engine.slot_get(&object(), number)).collect();
    let parts: Vec<_> =
        (30..40).map(|number| engine.read(&object(), number * 10_000..number * 10_000 + 5_000)).collect();
    for (number, completion) in parts.into_iter().enumerate() {
        assert_eq!(completion.wait().unwrap(), value(30 + number as u64));
        assert_eq!(device.begun.load(Ordering::SeqCst), 10 + 10, "with the first, since others are told of");
    }
    for (number, completion) in several.into_iter().enumerate() {
        assert_eq!(completion.wait().unwrap(), Some(value(10 + number as u64)));
    }
}

/// Failure: telling a file system in user space of a read took as long as the read once some dozens were under way, or
/// for ever where it hung: an event loop that told it stood still, with all its clients. Fix: threads that wait for a
/// read tell it, and those of the pool.
#[test]
fn a_device_that_hangs_where_it_is_told_of_reads_holds_up_no_caller() {
    let (device, engine) = filled();
    let engine = Arc::new(engine);
    device.telling_waits.store(true, Ordering::SeqCst);
    device.hold(true);
    let (called, calls) = std::sync::mpsc::channel();
    let caller = std::thread::spawn({
        let engine = Arc::clone(&engine);
        move || {
            let keys: Vec<_> = (0..KEYS).map(key).collect();
            let slots: Vec<_> = (0..KEYS).collect();
            let mut values = [engine.omap_get_many(&object(), &keys), engine.slot_get_many(&object(), &slots)];
            let mut parts = engine.read(&object(), 0..KEYS * 10_000);
            let mut scanned = engine.omap_scan(&object(), &OmapScan { limit: KEYS as usize, ..OmapScan::default() });
            let mut single: Vec<_> = (0..KEYS).map(|number| engine.slot_get(&object(), number)).collect();
            values.iter_mut().for_each(ask);
            ask(&mut parts);
            ask(&mut scanned);
            single.iter_mut().for_each(ask);
            for number in 0..KEYS {
                engine.will_get(&object(), Soon::Slots(&[number]));
            }
            called.send((values, parts, scanned, single)).unwrap();
        }
    });
    let (values, parts, scanned, single) = calls.recv_timeout(LATE).expect("the caller waits for the device");
    until("no thread tells the device", || device.telling.load(Ordering::SeqCst) > 0);
    device.hold(false);
    caller.join().unwrap();
    let wanted: Vec<_> = (0..KEYS).map(|number| Some(value(number))).collect();
    for all in values {
        assert_eq!(all.wait().unwrap(), wanted);
    }
    assert_eq!(scanned.wait().unwrap().len() as u64, KEYS);
    assert_eq!(parts.wait().unwrap()[..5_000], value(0)[..]);
    for (number, completion) in single.into_iter().enumerate() {
        assert_eq!(completion.wait().unwrap(), Some(value(number as u64)));
    }
}

/// A read that a caller waits for does not stand behind what others will ask for.
#[test]
fn no_read_waits_for_hints() {
    let (device, engine) = filled();
    device.telling_waits.store(true, Ordering::SeqCst);
    device.hold(true);
    for number in 0..KEYS {
        engine.will_get(&object(), Soon::Slots(&[number]));
    }
    until("no thread tells the device", || device.telling.load(Ordering::SeqCst) > 0);
    let mut read = engine.omap_get(&object(), &key(3));
    ask(&mut read);
    until("the read waits for hints", || device.reading.load(Ordering::SeqCst) == 1);
    assert!(device.telling.load(Ordering::SeqCst) <= 2, "more than two threads are at hints");
    device.hold(false);
    assert_eq!(read.wait().unwrap(), Some(value(3)));
}

/// The device is told of a call's own reads first, and then of some of others'.
#[test]
fn who_reads_first_does_not_tell_the_device_of_all_that_others_read() {
    let (device, engine) = filled();
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let all: Vec<_> = (0..10).map(|_| engine.omap_get_many(&object(), &keys)).collect();
    let mut first = engine.slot_get(&object(), 3);
    device.hold(true);
    ask(&mut first);
    until("no thread reads", || device.reading.load(Ordering::SeqCst) == 1);
    assert_eq!(device.begun.load(Ordering::SeqCst), 1 + 2 * KEYS);
    device.hold(false);
    assert_eq!(first.wait().unwrap(), Some(value(3)));
    all.into_iter().for_each(|all| assert_eq!(all.wait().unwrap().len() as u64, KEYS));
}

/// What is only said to come is begun as well, but for what is in memory, and not however much is said.
#[test]
fn what_will_be_asked_for_is_begun() {
    let (device, engine) = filled();
    let told = |begun: u64| until("not all are begun", || device.begun.load(Ordering::SeqCst) == begun);
    for number in 0..10 {
        engine.slot_get(&object(), number).wait().unwrap();
    }
    engine.will_get(&object(), Soon::Slots(&(0..KEYS + 5).collect::<Vec<_>>()));
    told(KEYS - 10);
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    engine.will_get(&object(), Soon::Omap(&keys.iter().map(|key| &key[..]).chain([&b"none"[..]]).collect::<Vec<_>>()));
    told(2 * KEYS - 10);
    engine.will_get(&ObjectId::new(Collection::from("c"), "none"), Soon::Slots(&[1]));
    // While the device hangs only so many are kept.
    device.telling_waits.store(true, Ordering::SeqCst);
    device.hold(true);
    for _ in 0..100 {
        (50..KEYS).for_each(|number| engine.will_get(&object(), Soon::Slots(&[number])));
    }
    device.hold(false);
    let more = || device.begun.load(Ordering::SeqCst) - (2 * KEYS - 10);
    until("few are kept", || more() >= 2_048);
    drop(engine);
    // With one in the hands of each thread that tells.
    assert!(more() <= 2_050, "{} of 5000", more());
}

/// What is asked for and not waited for yet is read when the cleaner comes to it: else a caller that asks, writes and
/// then waits would wait for room that its own read keeps.
#[test]
fn a_caller_that_asks_writes_and_then_waits_finds_what_it_asked_for() {
    let (_device, engine) = filled();
    let (one, ten) =
        (engine.slot_get(&object(), 1), engine.omap_get_many(&object(), &(10..20).map(key).collect::<Vec<_>>()));
    assert!(!one.is_here() && !ten.is_here());
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            go_round(&engine);
            ended.store(true, Ordering::SeqCst);
        });
        let began = Instant::now();
        while !ended.load(Ordering::SeqCst) && began.elapsed() < LATE {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Lets the writer end, if it hangs.
        let in_time = ended.load(Ordering::SeqCst);
        assert_eq!(one.wait().unwrap(), Some(value(1)));
        assert_eq!(ten.wait().unwrap(), (10..20).map(|number| Some(value(number))).collect::<Vec<_>>());
        assert!(in_time, "the writer waits for a read that no thread makes");
    });
}

/// Failure: a read of a snapshot said that what it read was damaged. Cause: the snapshot was dropped before the read
/// had come to the device, and its segments were used again. Fix: a read on its way keeps them.
#[test]
fn a_read_of_a_snapshot_that_is_dropped_meanwhile_finds_what_the_snapshot_had() {
    let (device, engine) = filled();
    let snapshot = engine.snapshot().unwrap().store;
    device.hold(true);
    let waits: Vec<_> = (0..10).map(|number| snapshot.omap_get(&object(), &key(number))).collect();
    let several = snapshot.slot_get_many(&object(), &[7, 8, 9]);
    assert!(!several.is_here() && waits.iter().all(|read| !read.is_here()));
    drop(snapshot);
    device.keeper_reads.store(true, Ordering::SeqCst);
    go_round(&engine);
    device.hold(false);
    for (number, read) in waits.into_iter().enumerate() {
        assert_eq!(read.wait().unwrap(), Some(value(number as u64)), "key {number}");
    }
    assert_eq!(several.wait().unwrap(), [7, 8, 9].map(|number| Some(value(number))));
}

/// A read that is on its way has found its place in the index: its segment is not used again before it was read, though
/// the value was removed and the cleaner wants the segment.
#[test]
fn no_segment_is_used_again_under_a_read_that_is_on_its_way() {
    let (device, engine) = filled();
    let engine = Arc::new(engine);
    device.hold(true);
    let waits: Vec<_> = (0..10).map(|number| engine.omap_get(&object(), &key(number))).collect();
    assert!(waits.iter().all(|read| !read.is_here()));
    let done = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (engine, done) = (Arc::clone(&engine), Arc::clone(&done));
        move || {
            go_round(&engine);
            done.store(true, Ordering::SeqCst);
        }
    });
    std::thread::sleep(Duration::from_millis(300));
    device.hold(false);
    for (number, read) in waits.into_iter().enumerate() {
        assert_eq!(read.wait().unwrap(), Some(value(number as u64)), "key {number}");
    }
    until("the writer stands still", || done.load(Ordering::SeqCst));
    writer.join().unwrap();
}

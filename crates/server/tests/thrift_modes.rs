//! Asynchronous writes by Thrift stay within their bounds, and safe ones are never acknowledged early, on a store whose
//! syncs end when the test says so.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use esker_kv::{Kv, SystemClock};
use esker_memory::MemoryStore;
use esker_server::http::Value;
use esker_server::thrift::{Address, Config, DIRTY_KEY_BYTES, Handle, KeptMode, Server, WriteMode};
use esker_store::{
    Barrier, Change, CommitSeq, Completion, Durability, DurableMark, Error, Forward, Incarnation, ObjectStore, Op,
    Transaction,
};
use esker_wire::proto::chain::{AskKeysRequest, KeyMethod};
use parking_lot::Mutex;
use support::PATIENCE;
use support::by_thrift::{Client, EXCEPTION, REPLY, contains, text};

/// Fields of `setMode`.
const SAFE: [u8; 7] = [8, 0, 1, 0, 0, 0, 1];
const ASYNCHRONOUS: [u8; 7] = [8, 0, 1, 0, 0, 0, 2];

/// What a store was asked to write.
#[derive(Default)]
struct Seen {
    /// Position, and bytes of keys and values: acknowledged when they are applied.
    early: Vec<(u64, u64)>,
    /// Others, acknowledged when they are durable: by the key with which each ends, its position.
    durable: Vec<(Vec<u8>, u64)>,
    /// The most bytes of the former that were ever not durable.
    most: u64,
}

/// A store in memory whose syncs end when the test says so, and which knows what a crash would take.
struct Slow {
    store: MemoryStore,
    mark: Arc<DurableMark>,
    /// The last position that was applied.
    last: AtomicU64,
    /// Until then everything is durable at once.
    begun: AtomicBool,
    syncs: AtomicU64,
    life: AtomicU64,
    /// What writes are refused with, and syncs.
    refuses: Mutex<Option<Error>>,
    does_not_sync: Mutex<Option<Error>>,
    seen: Mutex<Seen>,
}

impl Slow {
    fn new() -> Self {
        Self {
            store: MemoryStore::default(),
            mark: DurableMark::new(0, Box::new(|| {})),
            last: AtomicU64::new(0),
            begun: AtomicBool::new(false),
            syncs: AtomicU64::new(0),
            life: AtomicU64::new(Incarnation::LOCAL.0),
            refuses: Mutex::default(),
            does_not_sync: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    /// Everything that is applied is durable.
    fn sync_all(&self) {
        self.mark.advance(self.last.load(Ordering::SeqCst));
    }

    fn writes(&self) -> usize {
        let seen = self.seen.lock();
        seen.early.len() + seen.durable.len()
    }

    /// That the write of this key is durable, if it was to be when it was acknowledged.
    fn is_kept(&self, key: &[u8]) -> bool {
        let seen = self.seen.lock();
        let found = seen.durable.iter().find(|(name, _)| name.ends_with(key));
        found.is_some_and(|(_, position)| *position <= self.mark.durable())
    }
}

/// A key that a transaction sets, if it does, and the bytes of all of them and their values.
fn written(txn: &Transaction) -> (Vec<u8>, u64) {
    let mut all = (Vec::new(), 0);
    for op in &txn.ops {
        if let Op::Object(_, Change::OmapSet { key, value }) = op {
            all = (key.to_vec(), all.1 + (key.len() + value.len()) as u64);
        }
    }
    all
}

impl Forward for Slow {
    fn behind(&self) -> &dyn ObjectStore {
        &self.store
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.life.load(Ordering::SeqCst))
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        if !self.begun.load(Ordering::SeqCst) {
            return self.store.submit(txn);
        }
        if let Some(error) = self.mark.failure().or_else(|| self.refuses.lock().clone()) {
            return Completion::ready(Err(error));
        }
        let mut seen = self.seen.lock();
        let (durability, (key, bytes)) = (txn.durability, written(&txn));
        let (applied, _) = self.store.submit(txn).into_parts();
        if applied.is_err() {
            return Completion::ready(applied);
        }
        let position = self.last.fetch_add(1, Ordering::SeqCst) + 1;
        if durability == Durability::Applied {
            seen.early.push((position, bytes));
            let durable = self.mark.durable();
            let lost = seen.early.iter().filter(|(at, _)| *at > durable).map(|(_, bytes)| bytes).sum();
            seen.most = seen.most.max(lost);
            return Completion::ready(applied);
        }
        seen.durable.push((key, position));
        Completion::after(applied, Some(Barrier::new(&self.mark, position)))
    }

    fn sync(&self) -> Completion<CommitSeq> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        if let Some(error) = self.does_not_sync.lock().clone() {
            return Completion::ready(Err(error));
        }
        let last = self.last.load(Ordering::SeqCst);
        Completion::after(Ok(CommitSeq(last)), Some(Barrier::new(&self.mark, last)))
    }
}

struct Running {
    store: Arc<Slow>,
    address: SocketAddr,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// What a put of such a key and value counts.
fn weight(key: &str, value_bytes: usize) -> u64 {
    DIRTY_KEY_BYTES + (key.len() + value_bytes) as u64
}

impl Running {
    /// One thread that answers, so that a call which held it up would hold up all.
    fn start(mode: WriteMode, async_bytes_max: u64, async_age_max: Duration) -> Self {
        let store = Arc::new(Slow::new());
        let kv = Kv::open(Arc::clone(&store) as Arc<dyn ObjectStore>, Arc::new(SystemClock)).unwrap();
        let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        let kept = KeptMode::default();
        let config = Config { listen, threads: 1, async_bytes_max, async_age_max, ..Config::default() };
        let config = Config { mode: kept.clone(), linger: Duration::from_millis(300), ..config };
        let server = Server::bind(config, kv, None).unwrap();
        let Address::Tcp(address) = server.addresses()[0] else { panic!("{:?}", server.addresses()) };
        let handle = server.handle();
        let running = Self { store, address, handle, thread: Some(std::thread::spawn(move || server.run())) };
        // The object of the namespace is made by the first write.
        running.client().put("first", b"");
        running.store.begun.store(true, Ordering::SeqCst);
        kept.set(mode);
        running
    }

    fn client(&self) -> Client {
        Client::connect(self.address)
    }

    fn figure(&self, name: &str) -> f64 {
        let name = format!("esker_thrift_{name}");
        let figure = self.handle.figures().into_iter().find(|figure| figure.name == name);
        match figure.unwrap_or_else(|| panic!("no figure {name}")).value {
            Value::Gauge(value) | Value::Counter(value) => value,
            other => panic!("{other:?}"),
        }
    }

    fn dirty(&self) -> (u64, u64) {
        (self.figure("dirty_keys") as u64, self.figure("dirty_bytes") as u64)
    }

    fn eventually(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so() {
            let (figures, writes) = (self.dirty(), self.store.writes());
            assert!(Instant::now() < until, "{what}: {figures:?}, {writes} writes");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Until so many calls wait for asynchronous writes to be durable.
    fn waiting(&self, calls: usize) {
        self.eventually(&format!("{calls} wait"), || self.figure("async_waiting") == calls as f64);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        *self.store.does_not_sync.lock() = None;
        self.store.mark.advance(u64::MAX);
        self.handle.shutdown();
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            thread.join().unwrap();
        }
    }
}

fn put(client: &mut Client, key: &str, value: &[u8]) {
    client.send("put", &[text(1, key.as_bytes()), text(2, value)].concat());
}

/// That a call was not answered in a moment.
fn is_not_answered(client: &mut Client) {
    client.0.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let read = client.0.read(&mut [0]);
    assert!(matches!(&read, Err(error) if error.kind() == ErrorKind::WouldBlock), "{read:?}");
    client.0.set_read_timeout(Some(PATIENCE)).unwrap();
}

const LONG: Duration = Duration::from_secs(3_600);

#[test]
fn no_more_is_acknowledged_and_not_durable_than_the_bound_however_many_write() {
    const CLIENTS: u64 = 8;
    const EACH: u64 = 8;
    // Room for ten writes, and for all but a byte of one more.
    let one = weight("c0k0", 100);
    let running = Running::start(WriteMode::Asynchronous, 11 * one - 1, LONG);
    assert_eq!(running.figure("async_bytes_max"), (11 * one - 1) as f64);
    let acknowledged = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (mut client, acknowledged) = (running.client(), Arc::clone(&acknowledged));
            std::thread::spawn(move || {
                for key in 0..EACH {
                    client.put(&format!("c{number}k{key}"), &[b'v'; 100]);
                    acknowledged.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let mut durable = 0;
    while durable + 10 < CLIENTS * EACH {
        running.eventually("as many as the bound lets", || running.store.writes() as u64 == durable + 10);
        running.eventually("they are acknowledged", || acknowledged.load(Ordering::SeqCst) == durable + 10);
        // Some are done, the others wait, and no more than these is even applied.
        running.eventually("the others wait", || {
            let left = writers.iter().filter(|writer| !writer.is_finished()).count();
            running.figure("async_waiting") == left as f64
        });
        assert_eq!((running.dirty(), running.store.writes() as u64), ((10, 10 * one), durable + 10));
        durable += 10;
        running.store.sync_all();
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    running.eventually("the last", || acknowledged.load(Ordering::SeqCst) == CLIENTS * EACH);
    running.store.sync_all();
    // Less than half of the bound is left, which nothing asks to be synced for an hour: who asks for safety does.
    assert_eq!(running.client().call("setMode", &SAFE).0, REPLY);
    assert_eq!((running.dirty(), running.figure("async_waiting")), ((0, 0), 0.0));
}

#[test]
fn the_bound_holds_while_sizes_modes_and_refusals_change() {
    const BOUND: u64 = 4 << 10;
    let running = Arc::new(Running::start(WriteMode::Asynchronous, BOUND, Duration::from_millis(40)));
    let over = Arc::new(AtomicBool::new(false));
    let syncing = {
        let (store, over) = (Arc::clone(&running.store), Arc::clone(&over));
        let mut random = fastrand::Rng::with_seed(1);
        std::thread::spawn(move || {
            while !over.load(Ordering::SeqCst) {
                let (durable, last) = (store.mark.durable(), store.last.load(Ordering::SeqCst));
                store.mark.advance(random.u64(durable..=last.max(durable)));
                let refuses = random.u8(..) < 20;
                *store.refuses.lock() = refuses.then_some(Error::Full { needed: 1, free: 0 });
                let fails = random.u8(..) < 20;
                let cause = || Error::NotServing { cause: "for a moment".into() };
                *store.does_not_sync.lock() = fails.then(cause);
                std::thread::sleep(Duration::from_micros(random.u64(0..2_000)));
            }
        })
    };
    let switching = {
        let (mut client, over) = (running.client(), Arc::clone(&over));
        std::thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(2);
            while !over.load(Ordering::SeqCst) {
                // An exception where a sync fails meanwhile; the mode is set all the same.
                client.call("setMode", if random.u8(..) < 80 { &SAFE } else { &ASYNCHRONOUS });
                std::thread::sleep(Duration::from_millis(random.u64(0..20)));
            }
        })
    };
    let writers: Vec<_> = (0..8)
        .map(|number| {
            let (mut client, running) = (running.client(), Arc::clone(&running));
            let mut random = fastrand::Rng::with_seed(number + 10);
            std::thread::spawn(move || {
                let mut done = 0;
                for turn in 0..150 {
                    let (key, large) = (format!("c{number}k{turn}."), random.u8(..) < 10);
                    let len = if large { BOUND as usize } else { random.usize(..700) };
                    let fields = [text(1, key.as_bytes()), text(2, &vec![b'v'; len])].concat();
                    let (kind, answer) = client.call(if random.bool() { "put" } else { "add" }, &fields);
                    let refused = contains(&answer, "full") || contains(&answer, "for a moment");
                    assert!(kind == REPLY || refused, "{}", String::from_utf8_lossy(&answer));
                    // Larger than the bound: acknowledged when it is durable, in either mode.
                    assert!(kind == EXCEPTION || !large || running.store.is_kept(key.as_bytes()), "{key}");
                    done += u32::from(kind == REPLY);
                }
                done
            })
        })
        .collect();
    let done: u32 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
    over.store(true, Ordering::SeqCst);
    syncing.join().unwrap();
    switching.join().unwrap();
    *running.store.refuses.lock() = None;
    *running.store.does_not_sync.lock() = None;
    running.store.sync_all();
    running.eventually("nothing is left", || running.dirty() == (0, 0) && running.figure("async_waiting") == 0.0);
    let seen = running.store.seen.lock();
    assert!(done > 200 && seen.early.len() > 100 && seen.durable.len() > 20, "{done} done");
    assert!(seen.most > BOUND / 4 && seen.most <= BOUND, "{} of {BOUND} bytes", seen.most);
}

#[test]
fn a_safe_write_and_one_larger_than_the_bound_are_acknowledged_when_they_are_durable() {
    for (mode, len) in [(WriteMode::Safe, 10), (WriteMode::Asynchronous, 1 << 10)] {
        let running = Running::start(mode, 1 << 10, LONG);
        let mut client = running.client();
        put(&mut client, "k", &vec![b'v'; len]);
        running.eventually("it is applied", || running.store.writes() == 1);
        is_not_answered(&mut client);
        assert_eq!((running.dirty(), running.store.seen.lock().early.len()), ((0, 0), 0));
        running.store.sync_all();
        assert_eq!(client.answer().0, REPLY);
    }
}

#[test]
fn what_is_not_written_gives_its_room_back() {
    let running = Running::start(WriteMode::Asynchronous, 1 << 10, LONG);
    let mut client = running.client();
    let whole = vec![b'v'; (1 << 10) - weight("k", 0) as usize];
    let fields = |key: &str| [text(1, key.as_bytes()), text(2, &whole)].concat();
    *running.store.refuses.lock() = Some(Error::Full { needed: 1, free: 0 });
    for _ in 0..5 {
        assert_eq!(client.call("put", &fields("k")).0, EXCEPTION);
    }
    *running.store.refuses.lock() = None;
    // And what changes nothing: no such key, or there is one.
    let keys = [&[15, 0, 1, 11, 0, 0, 0, 2][..], b"\0\0\0\x01x\0\0\0\x01y"].concat();
    for _ in 0..40 {
        assert_eq!(client.call("update", &fields("k")).0, REPLY);
        assert_eq!(client.call("remove", &text(1, b"k")).0, REPLY);
        assert_eq!(client.call("removeMany", &keys).0, REPLY);
    }
    assert_eq!((running.dirty(), running.store.writes()), ((0, 0), 0));
    // Of several keys those count that were there.
    client.put("x", b"v");
    assert_eq!(client.call("removeMany", &keys).0, REPLY);
    assert_eq!(running.dirty(), (2, weight("x", 1) + weight("x", 0)));
    assert_eq!(client.call("multiGet", &keys).0, REPLY);
    running.store.sync_all();
    client.call("setMode", &SAFE);
    client.call("setMode", &ASYNCHRONOUS);
    // As much as there is room for goes at once: nothing of it is missing.
    client.put("k", &whole);
    assert_eq!(running.dirty(), (1, 1 << 10));
}

#[test]
fn who_asks_for_the_safe_mode_is_answered_when_what_was_acknowledged_is_durable() {
    let running = Running::start(WriteMode::Asynchronous, 1 << 20, LONG);
    let (mut operator, mut writer) = (running.client(), running.client());
    for key in 0..20 {
        writer.put(&format!("k{key}"), b"v");
    }
    operator.send("setMode", &SAFE);
    running.waiting(1);
    is_not_answered(&mut operator);
    // It counts meanwhile.
    put(&mut writer, "safe", b"v");
    running.eventually("it is applied", || running.store.writes() == 21);
    is_not_answered(&mut writer);
    assert_eq!((running.dirty().0, running.figure("asynchronous")), (20, 0.0));
    assert_eq!(running.store.syncs.load(Ordering::SeqCst), 1);
    running.store.sync_all();
    assert_eq!((operator.answer().0, writer.answer().0), (REPLY, REPLY));
    assert_eq!(running.dirty(), (0, 0));
    assert!(running.store.is_kept(b"safe"));
}

#[test]
fn a_write_that_has_waited_for_room_goes_by_the_mode_that_holds_then() {
    let running = Running::start(WriteMode::Asynchronous, 1 << 10, LONG);
    let (mut first, mut second, mut operator) = (running.client(), running.client(), running.client());
    first.put("k1", &[b'v'; 800]);
    put(&mut second, "k2", &[b'v'; 800]);
    running.waiting(1);
    operator.send("setMode", &SAFE);
    running.waiting(2);
    running.store.sync_all();
    assert_eq!(operator.answer().0, REPLY);
    running.eventually("it is applied", || running.store.writes() == 2);
    is_not_answered(&mut second);
    assert_eq!((running.dirty(), running.store.seen.lock().early.len()), ((0, 0), 1));
    running.store.sync_all();
    assert_eq!(second.answer().0, REPLY);
}

#[test]
fn a_write_that_is_not_durable_in_time_holds_up_all_that_come_after_it() {
    let running = Running::start(WriteMode::Asynchronous, 1 << 20, Duration::from_millis(100));
    let mut client = running.client();
    client.put("old", b"v");
    let since = Instant::now();
    // No call waits, and it is synced all the same.
    running.eventually("a sync is asked for", || running.store.syncs.load(Ordering::SeqCst) > 0);
    while since.elapsed() < Duration::from_millis(120) {
        std::thread::sleep(Duration::from_millis(5));
    }
    put(&mut client, "new", b"v");
    running.waiting(1);
    is_not_answered(&mut client);
    // Who only reads does not wait.
    assert_eq!(running.client().get("old"), b"v");
    running.store.sync_all();
    assert_eq!(client.answer().0, REPLY);
}

#[test]
fn a_safe_write_is_not_answered_after_a_later_one_that_is_not_durable_in_time() {
    // What a crash takes would be older than is stated, beside the last that was answered.
    for fails in [false, true] {
        let running = Running::start(WriteMode::Safe, 1 << 20, Duration::from_millis(100));
        let (mut safe, mut early) = (running.client(), running.client());
        put(&mut safe, "safe", b"v");
        running.eventually("it is applied", || running.store.writes() == 1);
        early.call("setMode", &ASYNCHRONOUS);
        early.put("early", b"v");
        let since = Instant::now();
        while since.elapsed() < Duration::from_millis(120) {
            std::thread::sleep(Duration::from_millis(5));
        }
        running.store.mark.advance(1);
        is_not_answered(&mut safe);
        if fails {
            running.store.mark.fail(Error::Stopped { cause: "the device is gone".into() });
            let (kind, answer) = safe.answer();
            assert!(kind == EXCEPTION && contains(&answer, "written, and durable"), "{answer:?}");
        } else {
            running.store.sync_all();
            assert_eq!(safe.answer().0, REPLY);
        }
    }
}

#[test]
fn what_changes_nothing_is_answered_while_older_writes_are_late() {
    let running = Running::start(WriteMode::Asynchronous, 1 << 20, Duration::from_millis(100));
    let mut client = running.client();
    client.put("k", b"v");
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(120) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (there, missing) = (text(1, b"k"), text(1, b"missing"));
    let no = b"\x02\0\0\0\0";
    let calls = [
        ("add", [there.clone(), text(2, b"w")].concat(), &no[..]),
        ("compareAndSet", [there, text(2, b"other"), text(3, b"w")].concat(), no),
        ("update", [missing.clone(), text(2, b"w")].concat(), no),
        ("remove", missing, b"\x08\0\0\0\0\0\x01\0"),
    ];
    for fails in [None, Some(Error::NotServing { cause: "for a moment".into() })] {
        *running.store.does_not_sync.lock() = fails;
        for (method, fields, answered) in &calls {
            let (kind, answer) = client.call(method, fields);
            assert!(kind == REPLY && answer.ends_with(answered), "{method}: {}", String::from_utf8_lossy(&answer));
        }
    }
    assert_eq!(running.dirty(), (1, weight("k", 1)));
}

#[test]
fn those_who_wait_are_told_when_the_store_has_failed() {
    let running = Running::start(WriteMode::Asynchronous, 1 << 10, LONG);
    let mut client = running.client();
    client.put("k", &[b'v'; 800]);
    let mut waiting: Vec<_> = (0..4).map(|_| running.client()).collect();
    waiting.iter_mut().enumerate().for_each(|(number, client)| put(client, &format!("k{number}"), &[b'v'; 800]));
    let mut operator = running.client();
    running.waiting(4);
    operator.send("setMode", &SAFE);
    running.waiting(5);
    running.store.mark.fail(Error::Stopped { cause: "the device is gone".into() });
    for client in &mut waiting {
        let (kind, answer) = client.answer();
        assert!(kind == EXCEPTION && contains(&answer, "not written"), "{}", String::from_utf8_lossy(&answer));
        assert!(contains(&answer, "the device is gone"), "{}", String::from_utf8_lossy(&answer));
    }
    let (kind, answer) = operator.answer();
    assert!(kind == EXCEPTION && contains(&answer, "the mode is SAFE"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(running.figure("async_waiting"), 0.0);
    for mode in [ASYNCHRONOUS, SAFE] {
        operator.call("setMode", &mode);
        put(&mut client, "k", &[b'v'; 800]);
        let (kind, answer) = client.answer();
        assert!(kind == EXCEPTION && contains(&answer, "the device is gone"), "{}", String::from_utf8_lossy(&answer));
    }
    // What is in doubt stays counted.
    assert_eq!(running.dirty(), (1, weight("k", 800)));
}

#[test]
fn another_server_is_told_that_it_is_not_known_what_became_of_its_write() {
    let running = Running::start(WriteMode::Safe, 1 << 20, LONG);
    let put = |key: &'static str| {
        let (keys, values) = (vec![key.into()], vec!["v".into()]);
        let method = KeyMethod::Put.into();
        let put = AskKeysRequest { namespace: "zdb:bytes".into(), method, keys, values, ..AskKeysRequest::default() };
        let handle = running.handle.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        std::thread::spawn(move || runtime.block_on(handle.answer(put)).error.unwrap())
    };
    *running.store.refuses.lock() = Some(Error::Full { needed: 1, free: 0 });
    let refused = put("k").join().unwrap();
    assert!(!refused.unknown && !refused.undone && refused.message.contains("full"), "{refused:?}");
    *running.store.refuses.lock() = Some(Error::NotServing { cause: "the lease has run out".into() });
    let refused = put("k").join().unwrap();
    assert!(!refused.unknown && refused.undone && refused.message.contains("the lease"), "{refused:?}");
    *running.store.refuses.lock() = None;
    // Applied, and not durable when the server ends.
    let under_way = put("k");
    running.eventually("it is applied", || running.store.writes() == 1);
    running.handle.shutdown();
    let told = under_way.join().unwrap();
    assert!(told.unknown && !told.undone && told.message.contains("not known"), "{told:?}");
}

#[test]
fn a_sync_that_fails_for_a_moment_covers_what_it_was_to_cover_later() {
    let running = Running::start(WriteMode::Asynchronous, 1 << 10, Duration::from_millis(100));
    let (mut client, mut waiting) = (running.client(), running.client());
    let error = Error::NotServing { cause: "cut off for a moment".into() };
    *running.store.does_not_sync.lock() = Some(error);
    client.put("k", &[b'v'; 800]);
    put(&mut waiting, "k2", &[b'v'; 800]);
    let (kind, answer) = waiting.answer();
    assert!(kind == EXCEPTION && contains(&answer, "cut off"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!((running.dirty(), running.store.writes()), ((1, weight("k", 800)), 1));
    running.store.sync_all();
    *running.store.does_not_sync.lock() = None;
    running.eventually("it is durable", || running.dirty() == (0, 0));
    client.put("k3", &[b'v'; 800]);
}

#[test]
fn what_a_restart_of_the_store_has_lost_is_waited_for_no_longer() {
    let running = Running::start(WriteMode::Asynchronous, 1 << 10, LONG);
    let (mut client, mut waiting) = (running.client(), running.client());
    running.store.life.store(7, Ordering::SeqCst);
    client.put("k", &[b'v'; 400]);
    running.store.life.store(8, Ordering::SeqCst);
    put(&mut waiting, "k2", &[b'v'; 800]);
    running.waiting(1);
    running.store.sync_all();
    assert_eq!(waiting.answer().0, REPLY);
    assert_eq!(running.dirty(), (1, weight("k2", 800)));
}

#[test]
fn what_a_restart_of_the_store_has_lost_is_never_told_as_durable() {
    let running = Running::start(WriteMode::Asynchronous, 1 << 20, LONG);
    let (mut client, mut operator) = (running.client(), running.client());
    running.store.life.store(7, Ordering::SeqCst);
    client.put("k", b"v");
    running.store.life.store(8, Ordering::SeqCst);
    running.store.sync_all();
    // Who asks is told once, and then it is known.
    let (kind, answer) = operator.call("setMode", &SAFE);
    assert!(kind == EXCEPTION && contains(&answer, "restarted"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!((running.dirty(), running.figure("asynchronous")), ((0, 0), 0.0));
    assert_eq!(operator.call("setMode", &SAFE).0, REPLY);
    // Also where it was found before.
    operator.call("setMode", &ASYNCHRONOUS);
    // Less than half of the room: it is not synced before the store has restarted.
    client.put("k", &vec![b'v'; 500 << 10]);
    running.store.life.store(9, Ordering::SeqCst);
    put(&mut client, "k2", &vec![b'v'; 600 << 10]);
    running.waiting(1);
    running.store.sync_all();
    assert_eq!(client.answer().0, REPLY);
    running.store.sync_all();
    let (kind, answer) = operator.call("setMode", &SAFE);
    assert!(kind == EXCEPTION && contains(&answer, "restarted"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(operator.call("setMode", &SAFE).0, REPLY);
}

#[test]
fn a_write_that_waits_for_older_ones_is_told_when_they_are_lost() {
    let running = Running::start(WriteMode::Asynchronous, 1 << 20, Duration::from_millis(100));
    let mut client = running.client();
    *running.store.does_not_sync.lock() = Some(Error::NotServing { cause: "for a moment".into() });
    running.store.life.store(7, Ordering::SeqCst);
    client.put("old", b"v");
    let since = Instant::now();
    running.store.life.store(8, Ordering::SeqCst);
    let syncs = running.store.syncs.load(Ordering::SeqCst);
    *running.store.does_not_sync.lock() = None;
    // One that finds the loss, and does not end.
    running.eventually("a sync is asked for", || running.store.syncs.load(Ordering::SeqCst) > syncs);
    while since.elapsed() < Duration::from_millis(120) {
        std::thread::sleep(Duration::from_millis(5));
    }
    put(&mut client, "new", b"v");
    running.waiting(1);
    running.store.sync_all();
    let (kind, answer) = client.answer();
    assert!(kind == EXCEPTION && contains(&answer, "may be lost"), "{}", String::from_utf8_lossy(&answer));
    assert!(contains(&answer, "restarted"), "{}", String::from_utf8_lossy(&answer));
}

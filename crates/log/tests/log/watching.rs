//! Followers that are told of what other processes do, on stores that watch.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use esker_log::{Delivery, Follow, GapKind, Layout, Log, Logs, Record, Start};
use esker_memory::MemoryStore;
use esker_store::{Changed, Forward, ObjectId, ObjectStore, Watching};

use crate::support::{Time, append, everywhere, log, session};

const LONG: Duration = Duration::from_secs(20);
/// Nothing is found by looking in these tests.
const SELDOM: Follow = Follow { ahead_bytes: 1 << 20, fill_after_ms: None, look_ms: 60_000 };

/// As [`everywhere`], on stores that watch.
fn where_watched(test: impl Fn(Arc<dyn ObjectStore>, Layout)) {
    everywhere(|store, layout| {
        if store.capability().watches {
            test(store, layout);
        } else {
            println!("skipped: it cannot watch objects");
        }
    });
}

fn reader(store: &Arc<dyn ObjectStore>) -> (Logs, Log) {
    let logs = session(store, 2, &Time::default());
    let log = logs.log("test").unwrap();
    (logs, log)
}

fn ignore(_position: u64) {}

/// Does something a little later in another thread, and waits here meanwhile.
#[track_caller]
fn waited<T: std::fmt::Debug>(act: impl FnOnce() + Send, wait: impl FnOnce() -> Option<T>) -> T {
    let began = Instant::now();
    let found = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            act();
        });
        wait()
    });
    assert!(began.elapsed() < LONG / 2, "found by looking, or not at all: {found:?}");
    found.expect("something comes")
}

#[test]
fn a_follower_is_woken_by_what_another_process_does() {
    where_watched(|store, layout| {
        let (_logs, log) = log(&store, layout);
        let (_others, reader) = reader(&store);
        let mut follower = reader.follow(Start::First, SELDOM).unwrap();
        let mut woken = |act: &(dyn Fn() + Sync)| waited(act, || follower.next(LONG).unwrap());
        let is_entry = |delivery: &Delivery, at| matches!(delivery, Delivery::Entry(entry) if entry.position == at);
        for position in 0..3 {
            assert!(is_entry(&woken(&|| ignore(append(&log, "x"))), position));
        }
        let batch = || ignore(log.append_at(3, &["y".into()]).unwrap().wait().unwrap());
        assert!(is_entry(&woken(&batch), 3));
        let in_bytes = || ignore(append(&log, vec![7; 100]));
        assert!(is_entry(&woken(&in_bytes), 4));
        // What was handed out and not written holds the follower up until it is filled.
        log.lead("").unwrap().next(1, None).unwrap();
        append(&log, "behind");
        let gap = |positions, kind| Delivery::Gap { positions, kind };
        assert_eq!(woken(&|| log.fill(5).unwrap()), gap(5..6, GapKind::Filled));
        assert!(is_entry(&woken(&|| ()), 6));
        log.lead("").unwrap().next(1, None).unwrap();
        append(&log, "behind");
        assert_eq!(woken(&|| log.trim(7).unwrap()), gap(7..8, GapKind::Trimmed));
        assert!(is_entry(&woken(&|| ()), 8));
        log.lead("").unwrap().next(1, None).unwrap();
        append(&log, "behind");
        assert_eq!(woken(&|| ignore(log.trim_to(10).unwrap())), gap(9..10, GapKind::Trimmed));
        assert!(is_entry(&woken(&|| ()), 10));
        assert_eq!(woken(&|| ignore(log.seal().unwrap())), Delivery::End { tail: 11 });
    });
}

#[test]
fn a_follower_of_a_stream_is_woken_by_another_process() {
    where_watched(|store, layout| {
        let (_logs, log) = log(&store, layout);
        let (_others, reader) = reader(&store);
        let mut stream = reader.follow_stream("s", 0, SELDOM);
        for position in (1..7).step_by(2) {
            append(&log, "of no stream");
            let act = || ignore(log.append(Record::from("x").stream("s")).unwrap().wait().unwrap());
            let delivery = waited(act, || stream.next(LONG).unwrap());
            assert!(matches!(delivery, Delivery::Entry(entry) if entry.position == position));
        }
    });
}

#[test]
fn no_entry_waits_for_a_look_however_it_falls() {
    where_watched(|store, layout| {
        let (_logs, log) = log(&store, layout);
        let (_others, reader) = reader(&store);
        let mut followers: Vec<_> = (0..2).map(|_| reader.follow(Start::First, SELDOM).unwrap()).collect();
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..60u64 {
                    append(&log, "x");
                    std::thread::sleep(Duration::from_micros(number * 137 % 2_000));
                }
            });
            for follower in &mut followers {
                scope.spawn(|| {
                    for number in 0..60 {
                        let delivery = follower.next(LONG).unwrap();
                        assert!(matches!(delivery, Some(Delivery::Entry(entry)) if entry.position == number));
                    }
                });
            }
        });
        assert!(began.elapsed() < LONG);
    });
}

#[test]
fn who_hands_out_positions_finds_another_who_took_over() {
    where_watched(|store, layout| {
        let (_logs, log) = log(&store, layout);
        append(&log, "x");
        let mut follower = log.follow(Start::Tail, Follow::default()).unwrap();
        assert_eq!(follower.poll().unwrap(), None);
        let (_others, other) = reader(&store);
        let position = append(&other, "y");
        let delivery = waited(|| (), || follower.next(LONG).unwrap());
        assert!(matches!(delivery, Delivery::Entry(entry) if entry.position == position));
    });
}

/// A store whose watchings the test makes live and not, and that tells of nothing.
struct Cut {
    store: MemoryStore,
    live: Arc<AtomicBool>,
    refuses: AtomicBool,
    /// Watchings that were made, and that there are.
    made: AtomicUsize,
    there: Arc<AtomicUsize>,
    changed: Mutex<Option<Changed>>,
}

struct CutWatching(Arc<AtomicBool>, Arc<AtomicUsize>);

impl Watching for CutWatching {
    fn is_live(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Drop for CutWatching {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Forward for Cut {
    fn behind(&self) -> &dyn ObjectStore {
        &self.store
    }

    fn watch(&self, object: &ObjectId, changed: Changed) -> esker_store::Result<Box<dyn Watching>> {
        if self.refuses.load(Ordering::SeqCst) {
            return Err(esker_store::Error::NoObject { object: object.to_string() });
        }
        *self.changed.lock().unwrap() = Some(changed);
        self.made.fetch_add(1, Ordering::SeqCst);
        self.there.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(CutWatching(Arc::clone(&self.live), Arc::clone(&self.there))))
    }

    fn notify(&self, _: &ObjectId) {}
}

#[test]
fn a_watching_that_is_lost_or_refused_leaves_a_follower_to_look() {
    let cut = Arc::new(Cut {
        store: MemoryStore::new(),
        live: Arc::new(AtomicBool::new(true)),
        refuses: AtomicBool::new(false),
        made: AtomicUsize::new(0),
        there: Arc::default(),
        changed: Mutex::default(),
    });
    let store: Arc<dyn ObjectStore> = Arc::clone(&cut) as _;
    let (_logs, log) = log(&store, Layout::Slots);
    let (_others, reader) = reader(&store);
    let there = || cut.there.load(Ordering::SeqCst);
    let millis = Duration::from_millis;
    let often = Follow { look_ms: 3, ..SELDOM };
    let mut follower = reader.follow(Start::First, often).unwrap();
    assert_eq!(follower.patience(), millis(3), "it is not watched before it is looked at");
    assert_eq!((follower.poll().unwrap(), there()), (None, 1));
    assert_eq!(follower.patience(), millis(500));
    // One watching for all who follow, until the last.
    let mut stream = reader.follow_stream("s", 0, SELDOM);
    assert_eq!((stream.poll().unwrap(), there()), (None, 1));
    assert_eq!(stream.patience(), millis(60_000), "longer than where it is watched");
    drop(stream);
    assert_eq!(there(), 1);
    cut.live.store(false, Ordering::SeqCst);
    assert_eq!(follower.patience(), millis(3));
    let delivery = waited(|| ignore(append(&log, "x")), || follower.next(LONG).unwrap());
    assert!(matches!(delivery, Delivery::Entry(_)));
    // Live again: what is told wakes, though nothing looks.
    cut.live.store(true, Ordering::SeqCst);
    let mut seldom = reader.follow(Start::Tail, SELDOM).unwrap();
    assert_eq!(seldom.poll().unwrap(), None);
    let changed = cut.changed.lock().unwrap().clone().unwrap();
    let act = || {
        append(&log, "y");
        changed();
    };
    assert!(matches!(waited(act, || seldom.next(LONG).unwrap()), Delivery::Entry(_)));
    assert_eq!(cut.made.load(Ordering::SeqCst), 1);
    drop((seldom, follower));
    assert_eq!(there(), 0, "who follows no more watches no more");
    changed();
    cut.refuses.store(true, Ordering::SeqCst);
    let mut follower = reader.follow(Start::Tail, often).unwrap();
    assert_eq!((follower.poll().unwrap(), follower.patience()), (None, millis(3)));
    let delivery = waited(|| ignore(append(&log, "z")), || follower.next(LONG).unwrap());
    assert!(matches!(delivery, Delivery::Entry(_)));
}

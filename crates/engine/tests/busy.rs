//! Writes that would have to wait for room, of callers that must not sleep: refused at once, let in when there is some.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

#[path = "support/hooked.rs"]
mod hooked;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_device::{Device, Error as DeviceError, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{
    Change, Collection, CommitSeq, Durability, Error, ObjectId, ObjectStore, Result, Stall, Transaction, Waits,
    WhenBusy,
};
use hooked::{Call, Hooked};
use parking_lot::{Condvar, Mutex};

const SEGMENT_BYTES: u64 = 1 << 20;
const VALUE_BYTES: usize = 32 << 10;
/// Less than a segment takes: whether the next one is ready makes no difference.
const PENDING_BYTES: u64 = 256 << 10;
const LATE: Duration = Duration::from_secs(30);

/// Holds up writes and syncs while it is shut, and has them fail once it is broken.
#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
    broken: AtomicBool,
}

impl Gate {
    fn shut(&self, shut: bool) {
        *self.shut.lock() = shut;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut shut = self.shut.lock();
        while *shut {
            self.opened.wait(&mut shut);
        }
    }
}

/// Opens the gate where a test ends early: the store could not be closed otherwise.
struct Opens(Arc<Gate>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.shut(false);
    }
}

fn object() -> ObjectId {
    ObjectId::new(Collection::from("c"), "o")
}

fn put(index: u64, waits: Waits) -> Transaction {
    let change = Change::SlotSet { index, value: Bytes::from(vec![index as u8; VALUE_BYTES]) };
    let mut txn = Transaction::with(Durability::Applied).change(&object(), change);
    txn.when_busy = WhenBusy::Refuse(waits);
    txn
}

fn remove(indexes: std::ops::Range<u64>) -> Transaction {
    let change = Change::SlotRemoveRange { start: indexes.start, end: indexes.end };
    Transaction::with(Durability::Applied).change(&object(), change)
}

/// Submits without waiting on this thread's time: it is asked once more each time there is room.
fn patiently(engine: &Engine, index: u64) -> Result<CommitSeq> {
    let (began, mut waits) = (Instant::now(), Waits::default());
    loop {
        match engine.submit(put(index, waits)).into_parts().0 {
            Err(Error::Busy { stall }) => {
                waits.note(stall);
                engine.room(stall).wait()?;
            }
            done => return done,
        }
        assert!(began.elapsed() < LATE, "busy for ever");
    }
}

/// So many waits for this.
fn waited(times: u32, stall: Stall) -> Waits {
    let mut waits = Waits::default();
    (0..times).for_each(|_| waits.note(stall));
    waits
}

fn open(segments: u64, gate: &Arc<Gate>, options: Options) -> Arc<Engine> {
    open_with(SEGMENT_BYTES, segments, gate, options)
}

fn open_with(segment_bytes: u64, segments: u64, gate: &Arc<Gate>, options: Options) -> Arc<Engine> {
    let device = MemoryDevice::new(segments * segment_bytes);
    Engine::format(&device, &FormatOptions { segment_bytes, uuid: [5; 16] }).unwrap();
    let before = {
        let gate = Arc::clone(gate);
        move |call| {
            if !matches!(call, Call::Sync | Call::Write(_) | Call::Other) {
                return Ok(());
            }
            gate.pass();
            if gate.broken.load(Ordering::SeqCst) {
                let source = std::io::Error::other("broken");
                return Err(DeviceError::Io { name: "hooked".into(), what: "write", offset: 0, source });
            }
            Ok(())
        }
    };
    let device = Arc::new(Hooked { device, before }) as Arc<dyn Device>;
    let engine = Arc::new(Engine::open(device, options).unwrap());
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    engine.submit(Transaction::new().change(&object(), Change::Touch)).wait().unwrap();
    engine
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LATE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Writes until one is refused as busy, and for good: the device has held up all that was on its way to it. How many
/// were let in.
fn fill_what_is_pending(engine: &Engine) -> u64 {
    let is_busy = |index: u64| {
        let refused = engine.submit(put(index, Waits::default())).into_parts().0;
        matches!(refused, Err(Error::Busy { stall: Stall::Backlog }))
    };
    let (mut let_in, mut in_turn) = (0, 0);
    while in_turn < 20 {
        if is_busy(let_in) {
            in_turn += 1;
            std::thread::sleep(Duration::from_millis(5));
        } else {
            (let_in, in_turn) = (let_in + 1, 0);
        }
    }
    let_in
}

#[test]
fn a_write_that_would_wait_for_a_device_that_hangs_is_refused_at_once_and_let_in_when_it_goes_on() {
    let gate = Arc::new(Gate::default());
    let engine = open(64, &gate, Options { pending_bytes_max: PENDING_BYTES, ..Options::default() });
    until("there is room", || engine.room(Stall::Backlog).is_here());
    gate.shut(true);
    let _opens = Opens(Arc::clone(&gate));
    let let_in = fill_what_is_pending(&engine);
    assert!(let_in > 0, "some of it is pending");
    // Each of a thousand callers is answered, though nothing goes on.
    for times in 0..1_000 {
        let waits = waited(times, Stall::Backlog);
        assert!(matches!(engine.submit(put(9_999, waits)).into_parts().0, Err(Error::Busy { .. })));
        assert_eq!(engine.stall(waits), Some(Stall::Backlog));
    }
    // What does not wait for the device is not kept waiting with them.
    engine.room(Stall::Memory).wait().unwrap();
    let rooms: Vec<_> = (0..100).map(|_| engine.room(Stall::Backlog)).collect();
    assert!(rooms.iter().all(|room| !room.is_here()), "there is no room");
    // One gives up; the others are told all the same.
    let mut rooms = rooms.into_iter();
    drop(rooms.next());
    gate.shut(false);
    rooms.for_each(|room| room.wait().unwrap());
    patiently(&engine, 9_999).unwrap();
    assert_eq!(engine.slot_get(&object(), 9_999).wait().unwrap().unwrap().len(), VALUE_BYTES);
    assert_eq!(engine.slot_get(&object(), let_in).wait().unwrap(), None, "a refused write has changed something");
    engine.close().unwrap();
}

#[test]
fn those_who_wait_for_room_are_answered_when_the_store_is_closed_or_stops() {
    for fails in [false, true] {
        let gate = Arc::new(Gate::default());
        let engine = open(64, &gate, Options { pending_bytes_max: PENDING_BYTES, ..Options::default() });
        gate.shut(true);
        let _opens = Opens(Arc::clone(&gate));
        fill_what_is_pending(&engine);
        let stalls = [Stall::Backlog, Stall::Full, Stall::Memory];
        let rooms: Vec<_> = (0..12).map(|nth| engine.room(stalls[nth % 3])).collect();
        let closing = {
            let engine = Arc::clone(&engine);
            std::thread::spawn(move || engine.close())
        };
        gate.broken.store(fails, Ordering::SeqCst);
        gate.shut(false);
        for room in rooms {
            // An error of the store is the submit's to tell.
            room.wait().unwrap();
        }
        let _ = closing.join().unwrap();
        let refused = engine.submit(put(1, waited(1, Stall::Backlog))).into_parts().0.unwrap_err();
        assert!(matches!(refused, Error::Closed | Error::Stopped { .. }), "{refused}");
        assert!(
            stalls.iter().all(|stall| engine.room(*stall).is_here()),
            "no caller waits for a store that takes no more"
        );
        assert_eq!(engine.stall(Waits::default()), None);
    }
}

/// Failure: in a steady backlog no write was kept waiting for memory. Cause: who had waited for the log counted as one
/// who had waited for memory. Fix: each is counted by what was awaited.
#[test]
fn who_has_waited_for_the_log_waits_for_memory_all_the_same() {
    let gate = Arc::new(Gate::default());
    let engine = open_with(32 << 20, 8, &gate, Options { index_bytes: 1 << 20, ..Options::default() });
    // No page leaves memory before it is on the device.
    gate.shut(true);
    let _opens = Opens(Arc::clone(&gate));
    let put = |number: u64, waits| {
        let key = Bytes::from(format!("{number:0200}"));
        let change = Change::OmapSet { key, value: Bytes::from_static(b"value") };
        let mut txn = Transaction::with(Durability::Applied).change(&object(), change);
        txn.when_busy = WhenBusy::Refuse(waits);
        engine.submit(txn).into_parts().0
    };
    let has_waited = waited(1, Stall::Backlog);
    let refused = (0..60_000).find_map(|number| put(number, has_waited).err());
    assert!(matches!(refused, Some(Error::Busy { stall: Stall::Memory })), "{refused:?}");
    assert_eq!(engine.stall(has_waited), Some(Stall::Memory));
    // Once is enough.
    let mut waits = has_waited;
    waits.note(Stall::Memory);
    put(60_000, waits).unwrap();
    assert_eq!(engine.stall(waits), None);
    gate.shut(false);
    engine.close().unwrap();
}

#[test]
fn a_full_store_says_so_to_those_who_do_not_wait_and_takes_writes_again_after_deletes() {
    let gate = Arc::new(Gate::default());
    let engine = open(48, &gate, Options::default());
    for round in 0..3 {
        let mut written = 0;
        let full = loop {
            match patiently(&engine, written) {
                Ok(_) => written += 1,
                Err(error) => break error,
            }
            assert!(written < 10_000, "a store of 48 MiB is never full");
        };
        assert!(matches!(full, Error::Full { .. }), "{full}");
        assert!(written > 500, "round {round}: full at {written} values of 32 KiB in 48 MiB");
        engine.submit(remove(0..written / 2)).wait().unwrap();
        // Failure: a write that had waited for something else was told that the store is full, though the cleaner had
        // not looked since the delete. Cause: all waits counted as looks. Fix: each is counted by what was awaited.
        let refused = engine.submit(put(0, waited(9, Stall::Backlog))).into_parts().0;
        assert!(!matches!(refused, Err(Error::Full { .. })), "{refused:?}");
        until("writes resume", || patiently(&engine, 0).is_ok());
        engine.submit(remove(0..written)).wait().unwrap();
    }
    // Failure: a store that was closed while it was full said that it is full. Fix: whether it is closed is looked at
    // first.
    let full = (0..10_000).find_map(|index| patiently(&engine, index).err());
    assert!(matches!(full, Some(Error::Full { .. })), "{full:?}");
    engine.close().unwrap();
    let refused = patiently(&engine, 0).unwrap_err();
    assert!(matches!(refused, Error::Closed), "{refused}");
    assert_eq!(engine.stall(Waits::default()), None);
}

/// While the cleaner can hardly keep up, writers that wait on their own threads share the room with writers that submit
/// again.
#[test]
fn those_who_do_not_wait_are_not_kept_out_by_those_who_do() {
    let gate = Arc::new(Gate::default());
    let engine = open(64, &gate, Options { pending_bytes_max: PENDING_BYTES, ..Options::default() });
    let written = [0; 4].map(|_| AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (number, count) in written.iter().enumerate() {
            let (engine, stop) = (&engine, &stop);
            scope.spawn(move || {
                let mut index = 0;
                while !stop.load(Ordering::Relaxed) {
                    // 800 values of 32 KiB live of 1,500 that fit.
                    let key = number as u64 * 200 + index % 200;
                    if number < 3 {
                        let mut txn = put(key, Waits::default());
                        txn.when_busy = WhenBusy::Wait;
                        engine.submit(txn).into_parts().0.unwrap();
                    } else {
                        patiently(engine, key).unwrap();
                    }
                    index += 1;
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        until("all write", || written.iter().all(|count| count.load(Ordering::Relaxed) > 2_000));
        stop.store(true, Ordering::Relaxed);
    });
    engine.close().unwrap();
}

//! What was told stays true: tails, trims, ages, fences, whichever process, handle or crash comes next.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use esker_device::MemoryDevice;
use esker_engine::{CommitPolicy, Engine, FormatOptions, Options as EngineOptions};
use esker_log::{Delivery, Error, Follow, Found, GapKind, Layout, Log, Machine, Options, Record, Replica, Start};
use esker_store::{CommitSeq, Completion, Durability, Error as StoreError, Forward, ObjectStore, Transaction};

use crate::support::{Time, append, everywhere, log, options, session, sound};

fn found(log: &Log, position: u64) -> Found {
    log.read(position).unwrap().wait().unwrap()
}

// Failure: entries below what was trimmed were read for as long as a client followed the log. Cause: what is kept for
// followers was answered from before the view was looked at. Fix: it is let go before the trim is answered.
#[test]
fn no_read_gives_what_is_trimmed_though_it_is_kept_for_followers() {
    everywhere(|store, layout| {
        let (logs, log) = log(&store, layout);
        let mut follower = log.follow(Start::First, Follow::default()).unwrap();
        (0..10).for_each(|number| assert_eq!(append(&log, vec![number; 20]), u64::from(number)));
        assert!(matches!(follower.poll().unwrap(), Some(Delivery::Entry(_))));
        // Of the same process, with a view of its own.
        let owner = logs.log("test").unwrap().own("me").unwrap();
        owner.trim_to(7).unwrap();
        for reader in [&log, &owner] {
            (0..7).for_each(|position| assert_eq!(found(reader, position), Found::Trimmed, "{position}"));
            assert!(matches!(found(reader, 7), Found::Entry(_)));
        }
        // What was read ahead is delivered, or told as a gap; nothing is passed over.
        let mut next = 1;
        while let Some(delivery) = follower.poll().unwrap() {
            match delivery {
                Delivery::Entry(entry) => assert_eq!(entry.position, next),
                Delivery::Gap { positions, kind } => assert_eq!((positions.start, kind), (next, GapKind::Trimmed)),
                Delivery::End { .. } => panic!("it is not sealed"),
            }
            next = follower.position();
        }
        assert_eq!(next, 10);
    });
}

fn engine_with(device: &Arc<MemoryDevice>, policy: CommitPolicy) -> Engine {
    Engine::open(Arc::clone(device) as _, EngineOptions { policy, ..EngineOptions::default() }).unwrap()
}

// Failure: a tail was told, the power went, and the next append got a position far below. Cause: it was the position to
// be handed out next. Fix: a tail is told when what stands below it is durable.
#[test]
fn no_crash_takes_a_tail_back_that_was_told() {
    for (layout, name) in Layout::ALL {
        println!("layout {name}");
        let device = Arc::new(MemoryDevice::new(512 << 20));
        Engine::format(&*device, &FormatOptions { segment_bytes: 8 << 20, uuid: [7; 16] }).unwrap();
        let policy = CommitPolicy::Group { window: Duration::from_millis(20) };
        let engine: Arc<dyn ObjectStore> = Arc::new(engine_with(&device, policy));
        let log = log(&engine, layout).1;
        // Under way: applied, and no caller waits for them.
        let under_way: Vec<_> = (0..9u8).map(|number| log.append(vec![number; 30]).unwrap()).collect();
        let told = log.tail().unwrap().position;
        let crashed = Arc::new(device.snapshot());
        assert_eq!(told, 9);
        drop(under_way);
        let engine: Arc<dyn ObjectStore> = Arc::new(engine_with(&crashed, CommitPolicy::default()));
        let next = session(&engine, 2, &Time::default()).log("test").unwrap();
        assert!(append(&next, "next") >= told, "the tail fell below {told}");
        let mut follower = next.follow(Start::Position(told), Follow::default()).unwrap();
        assert!(matches!(follower.poll().unwrap(), Some(Delivery::Entry(entry)) if &entry.data[..] == b"next"));
    }
}

#[test]
fn positions_that_were_handed_out_and_not_written_do_not_move_the_tail() {
    everywhere(|store, layout| {
        let log = log(&store, layout).1;
        (0..5).for_each(|_| assert!(append(&log, "x") < 100));
        log.lead("").unwrap().next(4, None).unwrap();
        assert_eq!(log.tail().unwrap().position, 5);
        let next = session(&store, 2, &Time::default()).log("test").unwrap();
        assert_eq!(next.tail().unwrap().position, 5);
        assert_eq!(append(&next, "y"), 5);
        // Entries above what was left open show that it is below the tail.
        let token = next.lead("").unwrap().next(2, None).unwrap();
        assert_eq!((token.position, append(&next, "z")), (6, 8));
        assert_eq!(next.tail().unwrap().position, 9);
        next.fill(6).unwrap();
        next.fill(7).unwrap();
        sound(&next);
    });
}

// Failure: a leader that had been deposed refused a conditional append by its own count, below appends that others had
// been answered. Fix: the head is read again, and the tail that is told is written.
#[test]
fn a_refused_conditional_append_tells_a_tail_that_stands() {
    everywhere(|store, layout| {
        let stale = log(&store, layout).1;
        (0..3).for_each(|_| assert!(append(&stale, "x") < 100));
        let next = session(&store, 2, &Time::default()).log("test").unwrap();
        (0..4).for_each(|_| assert!(append(&next, "y") < 100));
        let refused = stale.append_at(9, &[Record::from("z")]).err().unwrap();
        assert!(matches!(refused, Error::NotTail { expected: 9, tail: 7 }), "{refused}");
        // What was handed out and stays open is filled, so that the tail that is told can be appended at.
        let open = stale.lead("").unwrap().next(2, None).unwrap().position;
        let refused = stale.append_at(open, &[Record::from("z")]).err().unwrap();
        let Error::NotTail { tail, .. } = refused else { panic!("{refused}") };
        assert_eq!(tail, open + 2);
        assert_eq!(stale.tail().unwrap().position, tail);
        assert_eq!(stale.append_at(tail, &[Record::from("z")]).unwrap().wait().unwrap(), tail);
    });
}

#[derive(Default, Debug, PartialEq, Eq)]
struct All(Vec<u8>);

impl Machine for All {
    type Output = usize;

    fn apply(&mut self, _: u64, command: &[u8]) -> usize {
        self.0.extend_from_slice(command);
        self.0.len()
    }

    fn save(&self) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }

    fn load(&mut self, saved: &[u8]) -> Result<(), String> {
        self.0 = saved.to_vec();
        Ok(())
    }
}

// Failure: a replica that came late to a stream counted what had been trimmed as applied, answered with the empty
// state, and saved it. Cause: who follows a stream was not told of what was trimmed. Fix: it is, and the replica loads
// the checkpoint that holds it, or fails.
#[test]
fn a_late_replica_never_answers_without_what_was_trimmed() {
    everywhere(|store, layout| {
        for stream in [None, Some("s")] {
            let name = format!("state of {stream:?}").replace(['"', '(', ')'], "");
            let logs = session(&store, 1, &Time::default());
            let log = logs.create(&name, options(layout)).unwrap();
            let open = || Replica::open(&log, "all", stream, All::default()).unwrap();
            let (mut late, mut early) = (open(), open());
            for number in 0..20u8 {
                early.propose(vec![number]).unwrap();
                if stream.is_some() {
                    append(&log, "between");
                }
            }
            // Nothing holds what goes: it has to fail.
            log.trim_to(5).unwrap();
            assert!(matches!(late.read(), Err(Error::Damaged { .. })), "it has not seen the first");
            assert!(matches!(late.read(), Err(Error::Damaged { .. })), "nor has it now");
            early.checkpoint().unwrap();
            early.trim().unwrap();
            for number in 20..25u8 {
                early.propose(vec![number]).unwrap();
            }
            let expected: Vec<u8> = (0..25).collect();
            assert_eq!(late.read().unwrap().0, expected);
            assert_eq!(late.propose(vec![25]).unwrap(), 26);
            // One that was trimmed by itself, and that no checkpoint holds.
            let mut slow = open();
            slow.read().unwrap();
            let record =
                Record { streams: stream.map(|_| Bytes::from("s")).into_iter().collect(), ..Record::from(vec![26]) };
            let position = log.append(record).unwrap().wait().unwrap();
            log.trim(position).unwrap();
            assert!(matches!(slow.read(), Err(Error::Damaged { .. })));
        }
    });
}

#[test]
fn who_follows_a_stream_is_told_of_what_was_trimmed() {
    everywhere(|store, layout| {
        let log = log(&store, layout).1;
        for number in 0..12u8 {
            let record = Record::from(vec![number]);
            let record = if number % 2 == 0 { record.stream("even") } else { record };
            log.append(record).unwrap().wait().unwrap();
        }
        let mut follower = log.follow_stream("even", 0, Follow::default());
        assert!(matches!(follower.poll().unwrap(), Some(Delivery::Entry(entry)) if entry.position == 0));
        log.trim(8).unwrap();
        log.trim_to(5).unwrap();
        let mut met = Vec::new();
        while let Some(delivery) = follower.poll().unwrap() {
            met.push(match delivery {
                Delivery::Entry(entry) => (entry.position..entry.position + 1, true),
                Delivery::Gap { positions, kind: GapKind::Trimmed } => (positions, false),
                other => panic!("{other:?}"),
            });
        }
        // Its first positions were found already: the gap begins at the first of them.
        assert_eq!(met, [(2..5, false), (6..7, true), (8..9, false), (10..11, true)]);
        let mut again = log.follow_stream("even", 0, Follow::default());
        let gap = Delivery::Gap { positions: 0..5, kind: GapKind::Trimmed };
        assert_eq!(again.poll().unwrap(), Some(gap));
        sound(&log);
    });
}

// Failure: entries that were younger than what is kept were trimmed, because one above them was older. Cause: the first
// young position was searched for by halves, as if writers' clocks went on together. Fix: all are looked at.
#[test]
fn retention_by_time_keeps_what_is_young_whatever_stands_above_it() {
    everywhere(|store, layout| {
        let time = Time::default();
        let behind = Time::default();
        let options = Options { retain_ms: 1_000, ..options(layout) };
        let right = session(&store, 1, &time).create("test", options).unwrap();
        let late = session(&store, 2, &behind).log("test").unwrap();
        (0..3).for_each(|_| assert!(append(&right, "old") < 100));
        time.pass(5_000);
        (0..4).for_each(|_| assert!(append(&right, "young") < 100));
        // By a clock that stands where it stood: old by what it says.
        (0..40).for_each(|_| assert!(append(&late, "behind") < 100));
        assert_eq!(right.retain().unwrap(), 3);
        (3..7).for_each(|position| assert!(matches!(found(&right, position), Found::Entry(_)), "{position}"));
        time.pass(5_000);
        assert_eq!(right.retain().unwrap(), 47);
        // A position that is handed out may still be written, unless what stands above it is old: then it is given up.
        let open = right.lead("").unwrap().next(3, None).unwrap().position;
        let above = append(&right, "above");
        assert_eq!((open, above), (47, 50));
        let last = right.lead("").unwrap().next(1, None).unwrap().position;
        assert_eq!(right.retain().unwrap(), open);
        time.pass(5_000);
        assert_eq!(right.retain().unwrap(), last);
        let next = append(&right, "young");
        assert_eq!((right.retain().unwrap(), next), (last, last + 1));
        sound(&right);
    });
}

// Failure: what another process had trimmed was read here for as long as this process followed the log and did not
// happen to look at the head.
// Fix: it does so twice a second, if anything is answered from what it keeps.
#[test]
fn what_another_process_trims_is_not_read_here_for_long() {
    everywhere(|store, layout| {
        let here = log(&store, layout).1;
        let mut polled = here.follow(Start::First, Follow::default()).unwrap();
        let _never_polled = here.follow(Start::First, Follow::default()).unwrap();
        (0..10).for_each(|number| assert_eq!(append(&here, vec![number; 20]), u64::from(number)));
        let there = session(&store, 2, &Time::default()).log("test").unwrap();
        there.trim_to(7).unwrap();
        std::thread::sleep(Duration::from_millis(600));
        (0..7).for_each(|position| assert_eq!(found(&here, position), Found::Trimmed, "{position}"));
        let gap = Delivery::Gap { positions: 0..7, kind: GapKind::Trimmed };
        assert_eq!(polled.poll().unwrap(), Some(gap));
        // A position that is trimmed before its writer has noted it here.
        there.trim(8).unwrap();
        std::thread::sleep(Duration::from_millis(600));
        assert!(matches!(polled.poll().unwrap(), Some(Delivery::Entry(entry)) if entry.position == 7));
    });
}

/// Keeps a transaction back, answers for it and all that come that the outcome is not known, and lets it through when
/// it is told to.
struct Late {
    store: Arc<dyn ObjectStore>,
    holds: AtomicBool,
    kept: Mutex<Option<Transaction>>,
}

impl Forward for Late {
    fn behind(&self) -> &dyn ObjectStore {
        &*self.store
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        if !self.holds.load(Ordering::SeqCst) {
            return self.store.submit(txn);
        }
        self.kept.lock().unwrap().get_or_insert(txn);
        Completion::ready(Err(StoreError::Unknown { cause: "kept back".into() }))
    }
}

// Failure: an append of a named writer ended as uncertain and was still on its way when the log's owner opened the
// writer again; the number was
// written anew, and then the late one came. Fix: the doubt is of all openings by the owner, and decided by the next.
#[test]
fn a_number_that_is_in_doubt_is_decided_before_the_writer_is_opened_again() {
    everywhere(|store, layout| {
        let late = Arc::new(Late { store: Arc::clone(&store), holds: AtomicBool::new(false), kept: Mutex::default() });
        let held: Arc<dyn ObjectStore> = Arc::clone(&late) as _;
        let owner = log(&held, layout).1.own("me").unwrap();
        let first = owner.writer("w").unwrap();
        assert!(first.append(0, "0").unwrap().wait().unwrap().1);
        late.holds.store(true, Ordering::SeqCst);
        assert!(matches!(first.append(1, "1"), Err(Error::Uncertain { .. })));
        late.holds.store(false, Ordering::SeqCst);
        let second = owner.writer("w").unwrap();
        assert_eq!(second.next_number(), 1);
        let (position, new) = second.append(1, "1 again").unwrap().wait().unwrap();
        assert!(new);
        let kept = late.kept.lock().unwrap().take().unwrap();
        assert!(matches!(store.submit(kept).wait(), Err(StoreError::GuardFailed { .. })), "the late one came");
        let of_number =
            |position: &u64| matches!(found(&owner, *position), Found::Entry(entry) if entry.data.starts_with(b"1"));
        assert_eq!((0..owner.tail().unwrap().position).filter(of_number).collect::<Vec<_>>(), [position]);
    });
}

/// A store whose transactions take a while.
struct Slow(Arc<dyn ObjectStore>);

impl Forward for Slow {
    fn behind(&self) -> &dyn ObjectStore {
        &*self.0
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        std::thread::sleep(Duration::from_millis(3));
        self.0.submit(txn)
    }
}

// Failure: a conditional append was not refused for as long as others had positions open, and filled theirs. Fix: it
// waits for what had been handed
// out when it was looked at.
#[test]
fn a_refused_conditional_append_ends_though_others_append_all_the_time() {
    let store: Arc<dyn ObjectStore> = Arc::new(Slow(Arc::new(esker_memory::MemoryStore::new())));
    let log = log(&store, Layout::Slots).1;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    append(&log, "x");
                }
            });
        }
        for _ in 0..5 {
            let refused = log.append_at(1 << 40, &[Record::from("z")]).err().unwrap();
            assert!(matches!(refused, Error::NotTail { .. }), "{refused}");
        }
        stop.store(true, Ordering::SeqCst);
    });
    let filled = (0..log.tail().unwrap().position).filter(|position| found(&log, *position) == Found::Filled).count();
    // Of a writer that the machine has stopped for 200 ms one may be.
    assert!(filled <= 5 * 6, "{filled} positions of living writers were filled");
}

// Failure: two writers of one name wrote the same number. Cause: under one epoch, that of a log's only writer, an
// opening was noted and not looked at. Fix: openings by one handle are told to each other.
#[test]
fn a_writer_that_the_owner_opened_again_is_fenced() {
    everywhere(|store, layout| {
        let owner = log(&store, layout).1.own("me").unwrap();
        let (first, other) = (owner.writer("w").unwrap(), owner.writer("v").unwrap());
        assert!(first.append(0, "0").unwrap().wait().unwrap().1);
        let second = owner.writer("w").unwrap();
        assert_eq!(second.next_number(), 1);
        assert!(matches!(first.append(1, "1"), Err(Error::Fenced { .. })));
        assert!(second.append(1, "1").unwrap().wait().unwrap().1);
        assert!(matches!(first.append(0, "0"), Err(Error::Fenced { .. })));
        assert!(other.append(0, "0").unwrap().wait().unwrap().1);
        assert_eq!(owner.append_with(&[Record::from("x")], Durability::Applied).unwrap().wait().unwrap(), 3);
        assert_eq!(sound(&owner).entries, 4);
    });
}

//! Epochs: who is deposed does no harm and recovers, who is fenced is refused, what is sealed stays so.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use esker_log::{Connect, Error, Found, Logs, Record, Sequencer, Session};

use crate::support::{Time, append, everywhere, log, options, session, sound};

#[test]
fn a_new_leader_counts_on_from_the_last_entry() {
    everywhere(|store, layout| {
        let (_logs, first) = log(&store, layout);
        for number in 0..20 {
            assert_eq!(append(&first, "x"), number);
        }
        // A position that is handed out and never written.
        let leader = first.lead("").unwrap();
        assert_eq!(leader.next(1, None).unwrap().position, 20);
        let second = session(&store, 2, &Time::default()).log("test").unwrap();
        assert_eq!(append(&second, "y"), 20);
        assert!(second.view().epoch > leader.epoch());
        // The deposed one recovers by itself.
        assert_eq!(append(&first, "z"), 21);
        assert_eq!(append(&second, "w"), 22);
        sound(&first);
    });
}

#[test]
fn a_read_only_handle_changes_nothing() {
    everywhere(|store, layout| {
        let (_logs, writer) = log(&store, layout);
        append(&writer, "x");
        let epoch = writer.view().epoch;
        let reader = session(&store, 2, &Time::default()).log("test").unwrap();
        assert_eq!(reader.tail().unwrap().position, 1);
        assert!(matches!(reader.read(0).unwrap().wait().unwrap(), Found::Entry(_)));
        assert!(reader.check(true, |_, _| true).unwrap().problems.is_empty());
        assert_eq!(reader.refresh().unwrap().epoch, epoch);
    });
}

#[test]
fn the_shape_changes_under_writers_and_no_entry_is_lost() {
    everywhere(|store, layout| {
        let time = Time::default();
        let logs = session(&store, 1, &time);
        logs.create("test", options(layout)).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..3u64)
            .map(|writer| {
                let (store, time, stop) = (Arc::clone(&store), time.clone(), Arc::clone(&stop));
                std::thread::spawn(move || {
                    let log = session(&store, 10 + writer, &time).log("test").unwrap();
                    let mut positions = BTreeSet::new();
                    let mut number = 0;
                    // The views of stripes as small as these have room for some thousands.
                    while (!stop.load(Ordering::Relaxed) || number < 30) && number < 400 {
                        assert!(positions.insert(append(&log, format!("{writer}-{number}"))));
                        number += 1;
                    }
                    positions
                })
            })
            .collect();
        let log = logs.log("test").unwrap();
        for (width, slots) in [(1, 3), (5, 2), (2, 7), (4, 4), (3, 1), (1, 1)] {
            log.reshape(width, slots).unwrap();
            append(&log, "between");
        }
        stop.store(true, Ordering::Relaxed);
        let mut all = BTreeSet::new();
        for writer in writers {
            for position in writer.join().unwrap() {
                assert!(all.insert(position), "position {position} twice");
            }
        }
        assert!(matches!(log.reshape(0, 1), Err(Error::Invalid { .. })));
        let view = log.refresh().unwrap();
        assert_eq!((view.options.width, view.options.slots), (1, 1));
        for position in &all {
            assert!(matches!(log.read(*position).unwrap().wait().unwrap(), Found::Entry(_)), "position {position}");
        }
        assert_eq!(sound(&log).entries, all.len() as u64 + 6);
    });
}

#[test]
fn objects_that_grow_too_large_are_left_for_new_ones() {
    let store = crate::support::engine();
    let logs = session(&store, 1, &Time::default());
    let options = esker_log::Options {
        object_bytes_max: 10_000,
        entry_bytes_max: 2_000,
        slots: 1_000,
        ..options(esker_log::Layout::Stream)
    };
    let log = logs.create("test", options).unwrap();
    for number in 0..200u32 {
        append(&log, vec![number as u8; 1_000]);
    }
    assert!(log.view().runs.len() > 3, "{:?}", log.view().runs);
    let checked = sound(&log);
    assert_eq!((checked.entries, checked.bytes), (200, 200_000));
}

#[test]
fn a_sealed_log_takes_no_more_and_says_where_it_ends() {
    everywhere(|store, layout| {
        let (_logs, log) = log(&store, layout);
        append(&log, "x");
        append(&log, "y");
        let other = session(&store, 2, &Time::default()).log("test").unwrap();
        assert_eq!(other.seal().unwrap(), 2);
        assert_eq!(other.seal().unwrap(), 2);
        for handle in [&log, &other] {
            assert!(matches!(handle.append("z"), Err(Error::Sealed { tail: 2, .. })));
            assert_eq!(handle.seal().unwrap(), 2);
            assert_eq!(handle.tail().unwrap().position, 2);
        }
        assert!(matches!(other.read(2).unwrap().wait().unwrap(), Found::BeyondTail));
        other.trim_to(1).unwrap();
        sound(&other);
    });
}

#[test]
fn the_only_writer_fences_all_others() {
    everywhere(|store, layout| {
        let (_logs, log) = log(&store, layout);
        append(&log, "x");
        let mine = log.own("me").unwrap();
        assert!(mine.fencing_token() > 0);
        assert_eq!(append(&mine, "a"), 1);
        assert!(matches!(log.append("b"), Err(Error::Fenced { held: 0, .. })));
        let other = session(&store, 2, &Time::default()).log("test").unwrap();
        assert!(matches!(other.append("b"), Err(Error::Fenced { .. })));
        let theirs = other.own("you").unwrap();
        assert_eq!(append(&theirs, "c"), 2);
        let error = mine.append("late").unwrap_err();
        assert!(matches!(&error, Error::Fenced { owner, .. } if owner == "you"), "{error}");
        assert!(mine.release().is_err());
        theirs.release().unwrap();
        assert!(theirs.append("after").is_err());
        assert_eq!(append(&log, "d"), 3);
        assert_eq!(sound(&log).entries, 4);
    });
}

#[test]
fn a_numbered_entry_is_in_the_log_once_whoever_retries_it() {
    everywhere(|store, layout| {
        let time = Time::default();
        let (_logs, log) = log(&store, layout);
        let writer = log.writer("w").unwrap();
        let mut positions = Vec::new();
        for number in 0..20 {
            let (position, new) = writer.append(number, format!("{number}")).unwrap().wait().unwrap();
            assert!(new);
            positions.push(position);
            append(&log, "between");
        }
        assert_eq!(writer.append(3, "3").unwrap().wait().unwrap(), (positions[3], false));
        assert!(matches!(writer.append(25, "?"), Err(Error::Invalid { .. })));
        // Another process under the same name.
        let other = session(&store, 2, &time).log("test").unwrap();
        let again = other.writer("w").unwrap();
        assert_eq!(again.next_number(), 20);
        assert_eq!(again.append(19, "19").unwrap().wait().unwrap(), (positions[19], false));
        assert!(again.append(20, "20").unwrap().wait().unwrap().1);
        assert_eq!(other.writer("else").unwrap().next_number(), 0);
        // What was trimmed away is not written again.
        let tail = other.tail().unwrap().position;
        other.trim_to(tail).unwrap();
        let after = session(&store, 3, &time).log("test").unwrap().writer("w").unwrap();
        assert_eq!(after.next_number(), 21);
        assert!(matches!(after.append(4, "4"), Err(Error::Trimmed { .. })));
        sound(&other);
    });
}

#[test]
fn whether_an_uncertain_entry_is_there_is_decided_for_good() {
    everywhere(|store, layout| {
        let (_logs, log) = log(&store, layout);
        append(&log, "x");
        let Found::Entry(entry) = log.read(0).unwrap().wait().unwrap() else { panic!("no entry") };
        assert!(log.resolve(0, entry.nonce).unwrap());
        let leader = log.lead("").unwrap();
        let lost = leader.next(1, None).unwrap();
        append(&log, "y");
        assert!(!log.resolve(lost.position, entry.nonce).unwrap());
        assert_eq!(log.read(lost.position).unwrap().wait().unwrap(), Found::Filled);
        let batch: Vec<Record> = vec!["z".into()];
        assert_eq!(log.append_batch(&batch).unwrap().wait().unwrap(), 3);
    });
}

/// No sequencer is ever reached.
struct Nobody;

impl Connect for Nobody {
    fn connect(&self, address: &str) -> esker_log::Result<Arc<dyn Sequencer>> {
        Err(Error::NoSequencer { log: "test".into(), why: format!("{address} does not answer") })
    }
}

#[test]
fn a_log_whose_sequencer_is_gone_and_that_nobody_stands_by_for_goes_on() {
    const LEASE_MS: u64 = 10;
    everywhere(|store, layout| {
        let (_logs, first) = log(&store, layout);
        first.lead("nowhere").unwrap();
        assert_eq!(append(&first, "x"), 0);
        let began = Instant::now();
        let clock = Arc::new(move || began.elapsed().as_millis() as u64);
        let session = Session { connect: Some(Arc::new(Nobody)), lease_ms: LEASE_MS, ..Session::new(clock, 2) };
        let writer = Logs::open(Arc::clone(&store), session).unwrap().log("test").unwrap();
        // The tail needs no sequencer, and takes nothing over.
        assert_eq!(writer.tail().unwrap().position, 1);
        assert_eq!(writer.refresh().unwrap().sequencer, "nowhere");
        assert_eq!(append(&writer, "y"), 1);
        assert!(began.elapsed() > Duration::from_millis(4 * LEASE_MS), "taken over after {:?}", began.elapsed());
        assert_eq!(writer.refresh().unwrap().sequencer, "");
        // Who was there before goes on as well.
        assert_eq!(append(&first, "z"), 2);
        assert_eq!(sound(&first).entries, 3);
    });
}

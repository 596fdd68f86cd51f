//! What damage to one structure costs: headers, roots and superblocks that rot after cleaning, after opening again and
//! after many lives, and scrubbing and scans beside a cleaner at work, which must name nothing.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/hooked.rs"]
mod hooked;
#[path = "support/rotten.rs"]
mod rotten;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use esker_device::{Device, MemoryDevice};
use esker_engine::format::{Loc, SegmentHeader, Stream};
use esker_engine::{DumpItem, DumpOptions, Engine, FormatOptions, Options, dump};
use esker_store::{Change, CommitCursor, CommitEntry, Error, ObjectStore, SlotScan};
use hooked::{Call, Hooked};
use rotten::*;

#[test]
fn one_bit_in_the_header_of_a_cleaned_segment_costs_no_value() {
    let image = cleaned(96);
    let cold = cold_segments(&image, 96);
    assert!(!cold.is_empty());
    for segment in cold {
        let damaged = Arc::new(image.snapshot());
        flip(&damaged, segment * SEGMENT_BYTES + 20, 3);
        let engine = open(&damaged).unwrap();
        assert_eq!(right(&engine, &object("old"), 0..KEYS, 1), KEYS, "segment {segment}");
        for key in (0..KEYS).step_by(4) {
            assert_eq!(right(&engine, &object("new"), key..key + 1, 1), 1, "segment {segment}, key {key}");
        }
    }
}

#[test]
fn one_bit_in_the_header_of_a_reused_segment_costs_no_other_value() {
    let (device, engine) = fresh(48);
    write(&engine, &object("old"), 0..KEYS, 1);
    let mut rng = fastrand::Rng::with_seed(7);
    let mut tries = 0;
    for round in 0..30 {
        (0..400).for_each(|_| {
            let key = rng.u64(0..KEYS);
            change(&engine, &object("new"), Change::SlotSet { index: key, value: value(key, 1) });
        });
        engine.sync().wait().unwrap();
        let image = device.snapshot();
        for segment in cold_segments(&image, 48) {
            let damaged = Arc::new(image.snapshot());
            flip(&damaged, segment * SEGMENT_BYTES + 20, 3);
            let right = right(&open(&damaged).unwrap(), &object("old"), 0..KEYS, 1);
            assert_eq!(right, KEYS, "round {round}, segment {segment}");
            tries += 1;
        }
    }
    assert!(tries > 30, "{tries}");
}

#[test]
fn a_store_with_a_lost_segment_is_written_and_opened_again() {
    let image = cleaned(96);
    let mut opened = 0;
    for segment in cold_segments(&image, 96) {
        let damaged = Arc::new(image.snapshot());
        damaged.write(segment * SEGMENT_BYTES, &vec![0; SEGMENT_BYTES as usize]).unwrap();
        // One that holds pages of the index, as well, is one that a store cannot be opened without.
        let engine = match open(&damaged) {
            Ok(engine) => engine,
            Err(Error::Corrupt { .. }) => continue,
            Err(error) => panic!("segment {segment}: {error}"),
        };
        opened += 1;
        right(&engine, &object("old"), 0..KEYS, 1);
        engine.checkpoint().unwrap();
        engine.close().unwrap();
        drop(engine);
        let engine = open(&damaged).unwrap();
        (2..5).for_each(|life| write(&engine, &object("new"), 0..KEYS / 2, life));
        let crashed = Arc::new(damaged.snapshot());
        let engine = open(&crashed).unwrap();
        assert_eq!(right(&engine, &object("new"), 0..KEYS / 2, 4), KEYS / 2, "segment {segment}");
    }
    assert!(opened > 0);
}

#[test]
fn the_checkpoint_before_serves_also_in_a_store_that_was_opened_again() {
    for closed in [false, true] {
        // With room: where it is short, only the newest checkpoint is kept.
        let (device, engine) = fresh(160);
        write(&engine, &object("old"), 0..KEYS, 1);
        write(&engine, &object("other"), 0..KEYS, 1);
        engine.checkpoint().unwrap();
        write(&engine, &object("other"), 0..KEYS, 2);
        engine.checkpoint().unwrap();
        let device = if closed {
            engine.close().unwrap();
            device
        } else {
            Arc::new(device.snapshot())
        };
        drop(engine);
        let engine = open(&device).unwrap();
        for life in 3..8 {
            write(&engine, &object("other"), 0..KEYS, life);
            let fallen = open(&without_newest_root(&device))
                .unwrap_or_else(|error| panic!("closed {closed}, life {life}: {error}"));
            assert!(fallen.recovery().checkpoints_passed_over > 0, "closed {closed}, life {life}");
            assert_eq!(right(&fallen, &object("old"), 0..KEYS, 1), KEYS, "closed {closed}, life {life}");
            assert_eq!(right(&fallen, &object("other"), 0..KEYS, life), KEYS, "closed {closed}, life {life}");
        }
    }
}

#[test]
fn superblocks_name_two_checkpoints_after_any_number_of_lives() {
    let (device, engine) = fresh(96);
    write(&engine, &object("old"), 0..KEYS, 1);
    engine.checkpoint().unwrap();
    write(&engine, &object("other"), 0..10, 1);
    engine.close().unwrap();
    drop(engine);
    for life in 0..12 {
        let engine = open(&device).unwrap();
        write(&engine, &object("other"), life * 10..life * 10 + 10, 1);
        engine.close().unwrap();
        drop(engine);
        let engine = open(&without_newest_root(&device)).unwrap();
        assert!(engine.recovery().checkpoints_passed_over > 0, "life {life}");
        assert_eq!(right(&engine, &object("old"), 0..KEYS, 1), KEYS, "life {life}");
    }
}

#[test]
fn a_superblock_that_points_outside_the_device_is_refused() {
    let (device, engine) = fresh(96);
    write(&engine, &object("old"), 0..100, 1);
    engine.close().unwrap();
    for offset in [96 * SEGMENT_BYTES, u64::MAX - 4096] {
        let image = Arc::new(device.snapshot());
        let mut superblock = newest(&image);
        superblock.sequence += 1;
        superblock.replay.offset = offset;
        (superblock.replay.generation, superblock.end_generation, superblock.clean) = (1000, 1000, false);
        let mut block = vec![0; BLOCK_BYTES as usize];
        superblock.encode(&mut block);
        image.write(15 * BLOCK_BYTES, &block).unwrap();
        // Another superblock may serve; what this one says is never followed.
        match open(&image) {
            Ok(engine) => assert_eq!(right(&engine, &object("old"), 0..100, 1), 100, "{offset}"),
            Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{offset}: {error}"),
        }
    }
}

#[test]
fn a_store_of_which_only_the_first_superblocks_stand_does_not_open_as_an_empty_one() {
    let (device, engine) = fresh(96);
    write(&engine, &object("old"), 0..KEYS, 1);
    engine.close().unwrap();
    for blocks in 1..8 {
        let image = Arc::new(device.snapshot());
        let from = blocks * BLOCK_BYTES;
        image.write(from, &vec![0; (96 * SEGMENT_BYTES - from) as usize]).unwrap();
        match open(&image) {
            Ok(_) => panic!("{blocks} blocks: it opened"),
            Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{blocks} blocks: {error}"),
        }
    }
    // One that was only made is empty, and opens.
    let empty = Arc::new(MemoryDevice::new(96 * SEGMENT_BYTES));
    Engine::format(&*empty, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: UUID }).unwrap();
    open(&empty).unwrap();
}

#[test]
fn a_store_opens_past_blocks_that_cannot_be_read() {
    let (device, engine) = fresh(96);
    write(&engine, &object("old"), 0..1000, 1);
    engine.checkpoint().unwrap();
    write(&engine, &object("old"), 1000..1010, 1);
    engine.checkpoint().unwrap();
    let root = Loc::from_raw(newest(&device).root).unwrap().offset() / BLOCK_BYTES * BLOCK_BYTES;
    for (what, at) in [("half of the superblocks", SEGMENT_BYTES), ("root of the newest checkpoint", root)] {
        let before = move |call| match call {
            Call::Read(range) if range.start < at + 512 && range.end > at => Err(unreadable(range.start)),
            _ => Ok(()),
        };
        let device = Arc::new(Hooked { device: device.snapshot(), before });
        let engine = Engine::open(device as Arc<dyn Device>, Options { cache_bytes: 0, ..Options::default() });
        let engine = engine.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(right(&engine, &object("old"), 0..1000, 1), 1000, "{what}");
    }
}

/// The slots of the collection in commit order.
fn commits(engine: &Engine) -> Vec<u64> {
    let (mut found, mut cursor) = (Vec::new(), CommitCursor::default());
    loop {
        let (entries, next) = engine.commit_scan(&collection(), b"", cursor, 1000).wait().unwrap();
        found.extend(entries.into_iter().map(|entry| match entry {
            CommitEntry::Slot(_, slot, _) => slot,
            other => panic!("{other:?}"),
        }));
        match next {
            Some(next) => cursor = next,
            None => return found,
        }
    }
}

#[test]
fn scrubbing_and_scans_beside_a_cleaner_name_nothing() {
    let (device, engine) = fresh(160);
    engine.close().unwrap();
    drop(engine);
    let options = Options { recent_bytes: 0, cache_bytes: 0, scrub_bytes_per_s: 0, ..Options::default() };
    let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options).unwrap();
    write(&engine, &object("old"), 0..KEYS, 1);
    let stop = AtomicBool::new(false);
    let (mut damage, mut rounds) = (Vec::new(), 0);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (engine, stop) = (&engine, &stop);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                while !stop.load(Ordering::Relaxed) {
                    let key = rng.u64(0..6000);
                    change(engine, &object("new"), Change::SlotSet { index: key, value: value(key, 1) });
                }
            });
        }
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(5) {
            // A panic here would leave the writers at work.
            damage.extend(engine.scrub_once(&mut |_, _| true).map(|report| report.damage));
            rounds += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(rounds > 0 && damage.iter().all(Vec::is_empty), "{rounds}: {damage:?}");
    engine.sync().wait().unwrap();
    let stats = engine.stats();
    assert!(stats.cleaned_segments > 10 && stats.damaged_segments == 0, "{stats:?}");
    let scan = SlotScan { range: 0..u64::MAX, reverse: false, limit: usize::MAX, keys_only: true };
    let held: usize =
        ["old", "new"].map(|name| engine.slot_scan(&object(name), &scan).wait().unwrap().len()).iter().sum();
    assert_eq!(commits(&engine).len(), held);
    assert_eq!(engine.check(true, &mut |_, _| ()).unwrap().damage, vec![]);
    engine.close().unwrap();
    drop(engine);
    assert_eq!(commits(&open(&device).unwrap()).len(), held);
}

/// Failure: damage in the newest checkpoint was not found as long as the segment that it stands in was open, and a
/// store that was closed after it did not open. Cause: scrubbing left the open segment out. Fix: it is read up to where
/// the last checkpoint ends, and nothing more is written to it when damage is found.
#[test]
fn the_newest_checkpoint_is_scrubbed_although_its_segment_is_open() {
    let (device, engine) = fresh(96);
    write(&engine, &object("old"), 0..1000, 1);
    engine.checkpoint().unwrap();
    assert_eq!(engine.scrub_once(&mut |_, _| true).unwrap().damaged, 0);
    let root = Loc::from_raw(newest(&device).root).unwrap().offset();
    flip(&device, root + 60, 1);
    assert!(engine.scrub_once(&mut |_, _| true).unwrap().damaged > 0);
    engine.clean().unwrap();
    engine.checkpoint().unwrap();
    assert_eq!(engine.scrub_once(&mut |_, _| true).unwrap().damaged, 0);
    engine.close().unwrap();
    drop(engine);
    let engine = open(&device).unwrap();
    assert_eq!(engine.recovery().checkpoints_passed_over, 0);
    assert_eq!(right(&engine, &object("old"), 0..1000, 1), 1000);
}

/// Failure: zeros over what an open store had written last, and a scan in commit order left it out, without an error.
/// Cause: the scan read the whole segment from the device, where what stood there before this opening has no memory,
/// and took a gap at the end for the log's end, as memory has no rot. Fix: what stands in memory is taken from there.
#[test]
fn a_scan_sees_what_was_written_last_although_the_device_has_lost_it() {
    let (device, engine) = fresh(96);
    write(&engine, &object("old"), 0..20, 1);
    drop(engine);
    // The log goes on in the segment that was open, each of these in a block of its own.
    let engine = open(&device).unwrap();
    for key in 20..23 {
        write(&engine, &object("old"), key..key + 1, 1);
    }
    let block = place_of(&device, &value(22, 1)).unwrap() / BLOCK_BYTES * BLOCK_BYTES;
    device.write(block, &[0; BLOCK_BYTES as usize]).unwrap();
    assert_eq!(commits(&engine).len(), 23);
    assert!(engine.scrub_once(&mut |_, _| true).unwrap().damaged > 0);
}

/// Failure: the cleaner gave values up, and others a place in commit order behind the record before, that still stood
/// in memory. Cause: it took a segment of which only the end is in memory from the device alone, which had lost a
/// block. Fix: what stands in memory is taken from there.
#[test]
fn the_cleaner_takes_from_memory_what_the_device_has_lost() {
    let (device, engine) = fresh(96);
    write(&engine, &object("old"), 0..20, 1);
    drop(engine);
    // Many segments stay in memory, of the one in which the log goes on the end.
    let options = Options { recent_bytes: 96 * SEGMENT_BYTES, commit_thread: false, ..Options::default() };
    let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options).unwrap();
    (20..100).for_each(|key| write(&engine, &object("old"), key..key + 1, 1));
    engine.checkpoint().unwrap();
    let at = place_of(&device, &value(22, 1)).unwrap();
    device.write(at / BLOCK_BYTES * BLOCK_BYTES, &[0; BLOCK_BYTES as usize]).unwrap();
    assert!(engine.scrub_once(&mut |_, _| true).unwrap().damaged > 0);
    (0..40).take_while(|_| engine.clean().unwrap()).for_each(drop);
    assert!(engine.stats().cleaned_segments > 0);
    let expected = commits(&engine);
    assert!(expected.is_sorted() && expected.len() == 100, "{expected:?}");
    engine.checkpoint().unwrap();
    drop(engine);
    let engine = open(&device).unwrap();
    assert_eq!(right(&engine, &object("old"), 0..100, 1), 100);
    assert_eq!(commits(&engine), expected);
}

/// Failure: the last checkpoint's last record was zeroed in a store that was opened again, and scrubbing took the place
/// for the end of the segment. Cause: how far it had been written was told by the entries alone. Fix: by the pieces of
/// the checkpoint as well.
#[test]
fn the_last_record_of_the_checkpoint_is_missed_when_it_is_gone() {
    let (device, engine) = fresh(96);
    write(&engine, &object("old"), 0..1000, 1);
    engine.close().unwrap();
    drop(engine);
    let engine = open(&device).unwrap();
    assert_eq!(engine.scrub_once(&mut |_, _| true).unwrap().damaged, 0);
    drop(engine);
    let engine = open(&device).unwrap();
    let root = Loc::from_raw(newest(&device).root).unwrap().offset();
    let mut record = 0;
    let options = DumpOptions { records: true, ..DumpOptions::default() };
    dump(&*device, options, &mut |item| match item {
        DumpItem::Record(header, at) if (at..at + u64::from(header.len)).contains(&root) => record = at,
        _ => {}
    })
    .unwrap();
    device.write(record, &vec![0; ((root - record) / BLOCK_BYTES + 1) as usize * BLOCK_BYTES as usize]).unwrap();
    assert!(engine.scrub_once(&mut |_, _| true).unwrap().damaged > 0);
}

/// Failure: one checkpoint after another, for ever, in a store that no client writes to. Cause: the header of the
/// segment that the log goes on in had rotted, and a checkpoint was due as long as one at or after the newest
/// checkpoint had. Fix: after it.
#[test]
fn a_lost_header_of_the_open_segment_asks_for_no_checkpoint_without_end() {
    let (device, engine) = fresh(96);
    write(&engine, &object("old"), 0..10, 1);
    drop(engine);
    let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, Options::default()).unwrap();
    write(&engine, &object("old"), 10..20, 1);
    engine.checkpoint().unwrap();
    for base in (2..96).map(|segment| segment * SEGMENT_BYTES) {
        let mut block = vec![0; BLOCK_BYTES as usize];
        device.read(base, &mut block).unwrap();
        let header = SegmentHeader::decode(&block, &UUID, base / SEGMENT_BYTES);
        if header.is_some_and(|header| header.stream == Stream::Log) {
            flip(&device, base + 20, 1);
        }
    }
    assert!(engine.scrub_once(&mut |_, _| true).unwrap().damaged > 0);
    // The thread looks once a second when nothing wakes it.
    let before = engine.stats().checkpoints;
    std::thread::sleep(Duration::from_millis(4_500));
    let written = engine.stats().checkpoints - before;
    assert!(written < 3, "{written} checkpoints");
    assert_eq!(right(&engine, &object("old"), 0..20, 1), 20);
}

/// Failure: a store that was opened again did not open after its newest checkpoint had rotted. Cause: a cold segment
/// with values and with pieces that only the checkpoint before has was made free when the values had died: only
/// segments that were dead at the opening were kept for it. Fix: all cold segments are kept until the next checkpoint.
#[test]
fn pieces_of_the_checkpoint_before_stay_beside_values_that_die_after_an_opening() {
    let (device, engine) = fresh(160);
    write(&engine, &object("old"), 0..KEYS, 1);
    write(&engine, &object("new"), 0..KEYS, 1);
    engine.checkpoint().unwrap();
    for key in (0..KEYS).filter(|key| key % 8 != 0) {
        change(&engine, &object("new"), Change::SlotRemove { index: key });
    }
    engine.sync().wait().unwrap();
    engine.checkpoint().unwrap();
    (0..40).take_while(|_| engine.clean().unwrap()).for_each(drop);
    assert!(engine.stats().cleaned_segments > 0);
    // The first stands where the cleaner has moved values to, the second elsewhere, and replaces all its pieces.
    engine.checkpoint().unwrap();
    let first = segment_of_root(&device);
    for key in 0..KEYS {
        if key % 4 != 0 {
            change(&engine, &object("old"), Change::SlotRemove { index: key });
        }
        if key % 64 == 0 {
            change(&engine, &object("new"), Change::SlotSet { index: key, value: value(key, 1) });
        }
    }
    engine.sync().wait().unwrap();
    (0..40).take_while(|_| engine.clean().unwrap()).for_each(drop);
    engine.checkpoint().unwrap();
    assert_ne!(segment_of_root(&device), first);
    engine.close().unwrap();
    drop(engine);
    let engine = open(&device).unwrap();
    assert_eq!(engine.stats().checkpoint_before_kept, 1);
    write(&engine, &object("new"), 0..KEYS, 2);
    write(&engine, &object("old"), 0..KEYS, 2);
    // It would make free what is not kept.
    (0..4).for_each(|_| drop(engine.clean()));
    write(&engine, &object("other"), 0..KEYS, 2);
    let fallen = open(&without_newest_root(&device)).unwrap();
    assert!(fallen.recovery().checkpoints_passed_over > 0);
    for name in ["old", "new", "other"] {
        assert_eq!(right(&fallen, &object(name), 0..KEYS, 2), KEYS, "{name}");
    }
}

/// Failure: INFO said that the checkpoint before was kept, and it was not. Cause: only this life's memory knew that it
/// had been given up for want of room. Fix: the superblock says so, before anything of it is used again.
#[test]
fn what_was_given_up_stays_given_up_after_a_crash() {
    let (device, engine) = fresh(64);
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut written = 0;
    while written < 2 || engine.stats().checkpoint_before_kept == 1 {
        write(&engine, &object(names[written]), 0..KEYS, 1);
        engine.checkpoint().unwrap();
        written += 1;
    }
    let root = newest(&device).root;
    // There is room again, but no other checkpoint.
    for name in &names[..written - 1] {
        change(&engine, &object(name), Change::Remove);
    }
    engine.sync().wait().unwrap();
    let image = Arc::new(device.snapshot());
    drop(engine);
    let engine = open(&image).unwrap();
    assert_eq!(newest(&image).root, root);
    assert!(engine.stats().free_segments > 40);
    assert_eq!(engine.stats().checkpoint_before_kept, 0);
    assert_eq!(right(&engine, &object(names[written - 1]), 0..KEYS, 1), KEYS);
    engine.checkpoint().unwrap();
    assert_eq!(engine.stats().checkpoint_before_kept, 1);
}

/// Failure: a crash left a store that did not open, although scrubbing had found the newest checkpoint's root to be
/// rotten long before. Cause: nothing made a checkpoint due. Fix: pieces that stand where damage was found do.
#[test]
fn a_rotten_checkpoint_that_scrubbing_finds_is_written_again() {
    let (device, engine) = fresh(96);
    write(&engine, &object("old"), 0..KEYS, 1);
    engine.close().unwrap();
    drop(engine);
    let options = Options { cache_bytes: 0, scrub_bytes_per_s: 0, ..Options::default() };
    let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options).unwrap();
    let (before, written) = (newest(&device).root, engine.stats().checkpoints);
    flip(&device, Loc::from_raw(before).unwrap().offset() + 40, 3);
    assert!(engine.scrub_once(&mut |_, _| true).unwrap().damaged > 0);
    let until = Instant::now() + Duration::from_secs(20);
    while engine.stats().checkpoints < written + 2 || engine.stats().checkpoint_before_kept == 0 {
        assert!(Instant::now() < until, "no two checkpoints are written");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The one before the newest is not the rotten one any more.
    let fallen = open(&without_newest_root(&device)).unwrap();
    assert!(fallen.recovery().checkpoints_passed_over > 0);
    assert_eq!(right(&fallen, &object("old"), 0..KEYS, 1), KEYS);
    // As a crash leaves it.
    let engine = open(&Arc::new(device.snapshot())).unwrap();
    assert_eq!(engine.recovery().checkpoints_passed_over, 0);
    assert_eq!(right(&engine, &object("old"), 0..KEYS, 1), KEYS);
}

/// Failure: opening had no older checkpoint to go back to. Cause: a crash had kept the superblock that names it from
/// one of the two segments, and the other was cleared. Fix: before the first superblock of a life both are made whole.
#[test]
fn a_superblock_that_stands_only_once_is_written_again_before_the_other_segment_is_cleared() {
    let (device, engine) = fresh(160);
    write(&engine, &object("old"), 0..KEYS, 1);
    engine.checkpoint().unwrap();
    write(&engine, &object("old"), 0..KEYS, 2);
    engine.checkpoint().unwrap();
    drop(engine);
    // Whether each of the two segments names another checkpoint than the newest.
    let names_before = |image: &MemoryDevice| {
        let root = newest(image).root;
        [0, SEGMENT_BYTES].map(|half| {
            (half..half + SEGMENT_BYTES)
                .step_by(BLOCK_BYTES as usize)
                .filter_map(|at| superblock_at(image, at))
                .any(|superblock| superblock.root != root && superblock.root != 0)
        })
    };
    assert_eq!(names_before(&device), [true, true]);
    for (number, half) in [0, SEGMENT_BYTES].into_iter().enumerate() {
        let image = Arc::new(device.snapshot());
        let root = newest(&image).root;
        for at in (half..half + SEGMENT_BYTES).step_by(BLOCK_BYTES as usize) {
            if superblock_at(&image, at).is_some_and(|superblock| superblock.root != root) {
                image.write(at, &[0; BLOCK_BYTES as usize]).unwrap();
            }
        }
        assert!(!names_before(&image)[number]);
        for life in 0..20 {
            drop(open(&image).unwrap());
            assert_eq!(names_before(&image), [true, true], "{half} {life}");
            let fallen = open(&without_newest_root(&image)).unwrap_or_else(|error| panic!("{half} {life}: {error}"));
            assert!(fallen.recovery().checkpoints_passed_over > 0, "{half} {life}");
            assert_eq!(right(&fallen, &object("old"), 0..KEYS, 2), KEYS, "{half} {life}");
        }
    }
}

/// Failure: the only superblock that named the newest checkpoint was gone after a crash. Cause: its copy in the one
/// segment had rotted, the other was cleared because both were full. Fix: the one that lacks something is cleared
/// first.
#[test]
fn a_segment_of_superblocks_is_cleared_only_while_the_other_has_the_newest() {
    let (device, engine) = fresh(96);
    let last = SEGMENT_BYTES - BLOCK_BYTES;
    let fill = |engine: &Engine, device: &MemoryDevice, until: u64, mut key: u64| {
        while superblock_at(device, until).is_none() {
            write(engine, &object("old"), key..key + 1, 1);
            engine.checkpoint().unwrap();
            key += 1;
        }
        key
    };
    let written = fill(&engine, &device, last - 4 * BLOCK_BYTES, 0);
    drop(engine);
    let mut stopped_at = 0;
    for calls in 0.. {
        let left = Arc::new(AtomicU64::new(u64::MAX));
        let counted = Arc::clone(&left);
        let before = move |call| match call {
            Call::Write(_) | Call::Other | Call::Sync if counted.fetch_sub(1, Ordering::Relaxed) == 0 => {
                Err(unreadable(0))
            }
            _ => Ok(()),
        };
        let hooked = Arc::new(Hooked { device: device.snapshot(), before });
        let options = Options { commit_thread: false, ..Options::default() };
        let engine = Engine::open(Arc::clone(&hooked) as Arc<dyn Device>, options).unwrap();
        let key = fill(&engine, &hooked.device, last, written);
        let root = newest(&hooked.device).root;
        assert_eq!(superblock_at(&hooked.device, SEGMENT_BYTES + last).unwrap().root, root);
        flip(&hooked.device, SEGMENT_BYTES + last + 40, 3);
        write(&engine, &object("old"), key..key + 1, 1);
        left.store(calls, Ordering::Relaxed);
        let written = engine.checkpoint();
        left.store(u64::MAX, Ordering::Relaxed);
        drop(engine);
        let image = Arc::new(hooked.device.snapshot());
        if written.is_ok() {
            assert!(newest(&image).root != root && calls > 8, "{calls}");
            break;
        }
        stopped_at += 1;
        assert!(superblocks(&image).iter().any(|superblock| superblock.root == root), "{calls} calls");
        assert_eq!(right(&open(&image).unwrap(), &object("old"), 0..key + 1, 1), key + 1);
    }
    assert!(stopped_at > 8);
}

/// Failure: opening made the checkpoint before unfit to go back to, and said that it is kept. Cause: a segment that
/// only it needs, with a rotten header, was taken for one that had been given back to the device. Fix: in such a one
/// nothing stands.
#[test]
fn a_rotten_header_of_what_only_the_checkpoint_before_needs_does_not_give_it_up() {
    let (device, engine) = fresh(160);
    engine.checkpoint().unwrap();
    for life in 1..8 {
        write(&engine, &object("old"), 0..KEYS, life);
        engine.checkpoint().unwrap();
        for segment in cold_segments(&device, 160) {
            let image = Arc::new(device.snapshot());
            flip(&image, segment * SEGMENT_BYTES + 20, 3);
            let engine = open(&image).unwrap();
            assert_eq!(engine.stats().checkpoint_before_kept, 1);
            write(&engine, &object("new"), 0..3 * KEYS, 1);
            let fallen = open(&without_newest_root(&image));
            let fallen = fallen.unwrap_or_else(|error| panic!("life {life}, segment {segment}: {error}"));
            assert!(fallen.recovery().checkpoints_passed_over > 0);
            assert_eq!(right(&fallen, &object("old"), 0..KEYS, life), KEYS, "life {life}, segment {segment}");
            assert_eq!(right(&fallen, &object("new"), 0..3 * KEYS, 1), 3 * KEYS);
        }
    }
}

/// Failure: nothing was moved out of a segment of which one block could not be read. Cause: it was read in one call.
/// Fix: a block at a time, where that fails.
#[test]
fn the_cleaner_moves_what_can_be_read_of_a_segment() {
    let (device, engine) = fresh(96);
    write(&engine, &object("old"), 0..KEYS, 1);
    engine.close().unwrap();
    drop(engine);
    let block = place_of(&device, &value(KEYS / 2, 1)).unwrap() / BLOCK_BYTES * BLOCK_BYTES;
    let segment = block / SEGMENT_BYTES * SEGMENT_BYTES;
    let whole = Arc::new(AtomicBool::new(false));
    let all = Arc::clone(&whole);
    let before = move |call| {
        let bad =
            if all.load(Ordering::Relaxed) { segment..segment + SEGMENT_BYTES } else { block..block + BLOCK_BYTES };
        match call {
            Call::Read(range) if range.start < bad.end && range.end > bad.start => Err(unreadable(range.start)),
            _ => Ok(()),
        }
    };
    let hooked = Arc::new(Hooked { device: device.snapshot(), before });
    let options = Options { recent_bytes: 0, cache_bytes: 0, commit_thread: false, ..Options::default() };
    let engine = Engine::open(hooked as Arc<dyn Device>, options).unwrap();
    assert!(engine.scrub_once(&mut |_, _| true).unwrap().damaged > 0);
    (0..40).take_while(|_| engine.clean().unwrap()).for_each(drop);
    // Now none of it can be read.
    whole.store(true, Ordering::Relaxed);
    let mut lost = 0;
    for key in 0..KEYS {
        match engine.slot_get(&object("old"), key).wait() {
            Ok(found) => assert_eq!(found, Some(value(key, 1)), "key {key}"),
            Err(Error::Io { .. } | Error::Corrupt { .. }) => lost += 1,
            Err(error) => panic!("key {key}: {error}"),
        }
    }
    // What stands in one block, and in the record that it belongs to.
    assert!((1..=2 * BLOCK_BYTES / value(0, 1).len() as u64).contains(&lost), "{lost}");
}

fn wait_for_checkpoints(engine: &Engine, count: u64) {
    let until = Instant::now() + Duration::from_secs(20);
    while engine.stats().checkpoints < count {
        assert!(Instant::now() < until, "{} checkpoints of {count}", engine.stats().checkpoints);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Failure: the newest checkpoint was not written again from memory although its segment could not be read. Cause:
/// cleaning ended when nothing could be read. Fix: what cannot be read counts as lost.
#[test]
fn a_checkpoint_that_cannot_be_read_is_written_again() {
    let (device, engine) = fresh(96);
    write(&engine, &object("old"), 0..KEYS, 1);
    engine.close().unwrap();
    drop(engine);
    let bad = segment_of_root(&device) * SEGMENT_BYTES;
    let gone = Arc::new(AtomicBool::new(false));
    let is_gone = Arc::clone(&gone);
    let before = move |call| match call {
        Call::Read(range)
            if is_gone.load(Ordering::Relaxed) && range.start < bad + SEGMENT_BYTES && range.end > bad =>
        {
            Err(unreadable(range.start))
        }
        _ => Ok(()),
    };
    let hooked = Arc::new(Hooked { device: device.snapshot(), before });
    let options = Options { cache_bytes: 0, scrub_bytes_per_s: 0, ..Options::default() };
    let engine = Engine::open(Arc::clone(&hooked) as Arc<dyn Device>, options).unwrap();
    gone.store(true, Ordering::Relaxed);
    let written = engine.stats().checkpoints;
    assert!(engine.scrub_once(&mut |_, _| true).unwrap().damaged > 0);
    wait_for_checkpoints(&engine, written + 2);
    assert_ne!(segment_of_root(&hooked.device) * SEGMENT_BYTES, bad);
    let engine = open(&Arc::new(hooked.device.snapshot())).unwrap();
    assert_eq!(engine.recovery().checkpoints_passed_over, 0);
    assert_eq!(right(&engine, &object("old"), 0..KEYS, 1), KEYS);
}

/// Failure: INFO said that the checkpoint before is kept, which could not be gone back to. Cause: the log after it
/// passes through a segment whose header had rotted. Fix: scrubbing that finds it asks for another checkpoint.
#[test]
fn a_rotten_header_between_two_checkpoints_asks_for_another_one() {
    let (device, engine) = fresh(160);
    engine.close().unwrap();
    drop(engine);
    let options = Options { cache_bytes: 0, recent_bytes: 0, scrub_bytes_per_s: 0, ..Options::default() };
    let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options).unwrap();
    engine.checkpoint().unwrap();
    write(&engine, &object("old"), 0..KEYS, 1);
    engine.checkpoint().unwrap();
    let at = place_of(&device, &value(KEYS / 2, 1)).unwrap();
    flip(&device, at / SEGMENT_BYTES * SEGMENT_BYTES + 20, 3);
    let written = engine.stats().checkpoints;
    assert!(engine.scrub_once(&mut |_, _| true).unwrap().damaged > 0);
    wait_for_checkpoints(&engine, written + 1);
    assert_eq!(engine.stats().checkpoint_before_kept, 1);
    let fallen = open(&without_newest_root(&device)).unwrap();
    assert!(fallen.recovery().checkpoints_passed_over > 0);
    assert_eq!(right(&fallen, &object("old"), 0..KEYS, 1), KEYS);
}

/// Failure: one read of an index page that failed kept a segment from being cleaned until the next opening. Cause: it
/// was taken for damage. Fix: it is tried again after the next checkpoint, a few times.
#[test]
fn cleaning_goes_on_when_what_could_not_be_read_can_be() {
    let (device, engine) = fresh(96);
    write(&engine, &object("old"), 0..KEYS, 1);
    write(&engine, &object("new"), 0..KEYS, 1);
    engine.checkpoint().unwrap();
    engine.close().unwrap();
    drop(engine);
    let failing = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&failing);
    let before = move |call| match call {
        // Segments are read whole, pages of the index are not.
        Call::Read(range) if fails.load(Ordering::Relaxed) && range.end - range.start < SEGMENT_BYTES / 2 => {
            Err(unreadable(range.start))
        }
        _ => Ok(()),
    };
    let hooked = Arc::new(Hooked { device: device.snapshot(), before });
    let options = Options { recent_bytes: 0, cache_bytes: 0, commit_thread: false, ..Options::default() };
    let engine = Engine::open(hooked as Arc<dyn Device>, options).unwrap();
    for key in (0..KEYS).filter(|key| key % 4 != 0) {
        change(&engine, &object("new"), Change::SlotRemove { index: key });
    }
    engine.checkpoint().unwrap();
    engine.checkpoint().unwrap();
    // What was used since the last look leaves at the second.
    let drop_pages = || (engine.drop_index_pages(), engine.drop_index_pages());
    drop_pages();
    assert!(engine.stats().index_cold_pages > 0);
    failing.store(true, Ordering::Relaxed);
    let mut failed = 0;
    while let Err(error) = engine.clean() {
        assert!(matches!(error, Error::Io { .. }), "{error}");
        failed += 1;
        assert!(failed < 200);
    }
    assert!(failed > 1);
    failing.store(false, Ordering::Relaxed);
    engine.checkpoint().unwrap();
    assert!(engine.clean().unwrap());
    assert_eq!(right(&engine, &object("old"), 0..KEYS, 1), KEYS);
    // Where it stays like that, it ends.
    engine.checkpoint().unwrap();
    engine.checkpoint().unwrap();
    failing.store(true, Ordering::Relaxed);
    for _ in 0..4 {
        drop_pages();
        (0..200).take_while(|_| engine.clean().is_err()).for_each(drop);
        failing.store(false, Ordering::Relaxed);
        engine.checkpoint().unwrap();
        failing.store(true, Ordering::Relaxed);
    }
    assert!(!engine.clean().unwrap());
}

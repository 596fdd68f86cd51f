//! Where the log begins and how far it goes, when the headers that say so have rotted: opening knows it from the
//! superblock, or refuses by name.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/rotten.rs"]
mod rotten;

use std::sync::Arc;

use esker_device::{Device, MemoryDevice};
use esker_engine::format::{ReplayFrom, Superblock};
use esker_engine::{Engine, FormatOptions, Lost, RepairHooks, What, repair};
use esker_store::{Change, Error, ObjectStore, Transaction};
use rotten::*;

/// Failure: a store that had crashed before its first checkpoint opened empty. Cause: the header of the first segment
/// had rotted, and no other said where the log begins. Fix: the superblock does.
#[test]
fn a_rotten_header_of_the_first_segment_before_the_first_checkpoint_costs_nothing() {
    for keys in [5, 100, 1_000] {
        let (device, engine) = fresh(96);
        (0..keys).for_each(|key| write(&engine, &object("old"), key..key + 1, 1));
        let image = Arc::new(device.snapshot());
        drop(engine);
        assert_eq!(newest(&image).root, 0);
        flip(&image, newest(&image).end_offset / SEGMENT_BYTES * SEGMENT_BYTES + 20, 3);
        for life in 2..5 {
            let engine = open(&image).unwrap();
            assert_eq!(right(&engine, &object("old"), 0..keys, 1), keys);
            write(&engine, &object("new"), 0..100, life);
            drop(engine);
            let engine = open(&image).unwrap();
            assert_eq!(right(&engine, &object("old"), 0..keys, 1), keys);
            assert_eq!(right(&engine, &object("new"), 0..100, life), 100);
        }
    }
}

/// Failure: a store without a checkpoint whose first header had rotted opened once, and after a crash not again. Cause:
/// only the end that the superblock tells said where the log begins, and opening moves it on. Fix: the superblock says
/// where the log begins until a checkpoint says where it goes on.
#[test]
fn a_rotten_header_of_the_first_segment_costs_nothing_however_often_it_crashes() {
    for (keys, filled) in [(5, false), (1_000, false), (1_000, true)] {
        let (device, engine) = fresh(128);
        (0..keys).for_each(|key| write(&engine, &object("old"), key..key + 1, 1));
        let mut image = Arc::new(device.snapshot());
        drop(engine);
        assert_eq!(newest(&image).root, 0);
        let first = newest(&image).replay;
        assert_ne!(first.generation, 0);
        flip(&image, first.offset / SEGMENT_BYTES * SEGMENT_BYTES + 20, 3);
        for life in 1..8 {
            // As soon as it is open, or after a little was written: before any checkpoint.
            let engine = open(&image).unwrap_or_else(|error| panic!("{keys} keys, life {life}: {error}"));
            assert_eq!(right(&engine, &object("old"), 0..keys, 1), keys);
            if filled {
                assert_eq!(right(&engine, &object("new"), 0..life - 1, 1), life - 1);
                write(&engine, &object("new"), life - 1..life, 1);
            }
            image = Arc::new(image.snapshot());
            assert_eq!((newest(&image).root, newest(&image).replay), (0, first));
        }
    }
}

/// The same of a store that a program has left which did not say where the log begins.
#[test]
fn where_the_log_begins_is_told_by_the_first_opening_that_knows_it() {
    let (device, engine) = fresh(96);
    write(&engine, &object("old"), 0..KEYS, 1);
    let mut image = Arc::new(device.snapshot());
    drop(engine);
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    for at in (0..2 * SEGMENT_BYTES).step_by(BLOCK_BYTES as usize) {
        if let Some(superblock) = superblock_at(&image, at) {
            Superblock { replay: ReplayFrom::default(), ..superblock }.encode(&mut bytes);
            image.write(at, &bytes).unwrap();
        }
    }
    flip(&image, newest(&image).end_offset / SEGMENT_BYTES * SEGMENT_BYTES + 20, 3);
    for life in 0..4 {
        let engine = open(&image).unwrap_or_else(|error| panic!("life {life}: {error}"));
        assert_eq!(right(&engine, &object("old"), 0..KEYS, 1), KEYS);
        image = Arc::new(image.snapshot());
    }
}

/// What repair makes of a store, and what it names as lost.
fn repaired(device: &MemoryDevice) -> (Engine, Vec<Lost>) {
    let from = Arc::new(device.snapshot()) as Arc<dyn Device>;
    let to = Arc::new(MemoryDevice::new(2 * device.geometry().len));
    let mut named = Vec::new();
    let hooks = RepairHooks {
        lost: &mut |loss| named.push(loss.clone()),
        progress: &mut |_, _, _| (),
        mark: &|_, _| None,
        lengthen: &mut || false,
    };
    repair(&from, &(Arc::clone(&to) as Arc<dyn Device>), [8; 16], hooks).unwrap();
    (open(&to).unwrap(), named)
}

/// Failure: an acknowledged value was gone without a word. Cause: it was alone in the segment that the log had gone on
/// in, whose header had rotted, and looked like a torn end. Fix: the superblock was written after that header.
/// Failure: of such a store repair left out a value and named nothing. Cause: the end of a group that a crash had cut
/// short, which the segment begins with, has the number of the record before it. Fix: what follows has the next one.
#[test]
fn a_single_group_behind_a_rotten_header_that_the_superblock_knows_is_not_cut_off() {
    let (device, engine) = fresh(96);
    (0..11).for_each(|key| write(&engine, &object("old"), key..key + 1, 1));
    let last = place_of(&device, &value(10, 1)).unwrap();
    let whole = device.snapshot();
    drop(engine);
    let mut segment = vec![0; SEGMENT_BYTES as usize];
    whole.read(last / SEGMENT_BYTES * SEGMENT_BYTES, &mut segment).unwrap();
    let after = &segment[(last % SEGMENT_BYTES) as usize..];
    let group_end = last + after.windows(4).position(|bytes| bytes == b"ESKR").unwrap() as u64;
    // The last group is torn, or its end is.
    for (torn_at, held) in [(last + 3, 10), (group_end + 9, 11)] {
        for (keys, two) in [(0, false), (1, true), (1, false), (3, false)] {
            let what = format!("{held} held, {keys} keys, {two}");
            let image = Arc::new(whole.snapshot());
            flip(&image, torn_at, 3);
            let engine = open(&image).unwrap();
            assert_eq!(right(&engine, &object("old"), 0..held, 1), held, "{what}");
            if two {
                // Two records of one group.
                change(&engine, &object("new"), Change::SlotSet { index: 11, value: value(11, 1) });
            }
            (0..keys).for_each(|key| write(&engine, &object("new"), key..key + 1, 1));
            let image = Arc::new(image.snapshot());
            drop(engine);
            let superblock = newest(&image);
            assert_ne!(superblock.end_generation, superblock.replay.generation);
            let header = superblock.end_offset / SEGMENT_BYTES * SEGMENT_BYTES;
            flip(&image, header + 20, 3);
            let (engine, named) = repaired(&image);
            // Where nothing follows, nothing tells that no writer was told of what is torn.
            let torn = |lost: &Lost| matches!(lost.what, What::Transaction(12) | What::Slot(10));
            assert!(named.iter().all(|lost| held == 10 && keys == 0 && torn(lost)), "{what}: {named:?}");
            assert_eq!(right(&engine, &object("old"), 0..held, 1), held, "{what}");
            if keys > 0 {
                let found = engine.slot_get(&object("new"), keys - 1).wait().unwrap();
                assert_eq!(found, Some(value(keys - 1, 1)), "{what}: repaired");
            }
            match open(&image) {
                // Nothing came into it: nothing is lost. Its generation may be seen again one day.
                Ok(engine) => {
                    assert_eq!(keys, 0, "{what}: opened without them");
                    assert_eq!(right(&engine, &object("old"), 0..held, 1), held, "{what}");
                    assert!(newest(&image).end_generation > superblock.end_generation, "{what}");
                }
                Err(Error::Corrupt { .. }) => assert!(keys > 0, "{what}: refused"),
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }
}

/// Failure: a store opened empty. Cause: nothing stood in the first blocks of its first segment, and the superblock
/// from before anything was written was tried as well. Fix: one that names a segment of the log was written after its
/// header.
#[test]
fn a_first_segment_whose_beginning_is_gone_does_not_open_as_an_empty_store() {
    let (device, engine) = fresh(96);
    (0..5).for_each(|key| write(&engine, &object("old"), key..key + 1, 1));
    let image = Arc::new(device.snapshot());
    drop(engine);
    let first = newest(&image).replay.offset / SEGMENT_BYTES * SEGMENT_BYTES;
    image.write(first, &vec![0; 2 * BLOCK_BYTES as usize]).unwrap();
    match open(&image) {
        Ok(_) => panic!("it opened"),
        Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
    }
}

/// Failure: a store was refused of which nothing was lost. Cause: the first segment, into which nothing had come, had
/// only zeros in place of its header. Fix: the next header says that the log went past it.
#[test]
fn a_first_segment_that_nothing_came_into_may_be_gone() {
    let device = Arc::new(MemoryDevice::new(96 * SEGMENT_BYTES));
    Engine::format(&*device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: UUID }).unwrap();
    let engine = open(&device).unwrap();
    let image = Arc::new(device.snapshot());
    drop(engine);
    // Left by a torn write, so that the log goes on in another segment.
    let first = newest(&image).replay.offset;
    image.write(first + BLOCK_BYTES, &[7; BLOCK_BYTES as usize]).unwrap();
    let engine = open(&image).unwrap();
    engine.submit(Transaction::new().create_collection(&collection())).wait().unwrap();
    write(&engine, &object("old"), 0..10, 1);
    let image = Arc::new(image.snapshot());
    drop(engine);
    assert_ne!(newest(&image).end_generation, newest(&image).replay.generation);
    image.write(first - BLOCK_BYTES, &vec![0; 3 * BLOCK_BYTES as usize]).unwrap();
    let engine = open(&image).unwrap();
    assert_eq!(right(&engine, &object("old"), 0..10, 1), 10);
    assert_eq!(engine.recovery().checkpoints_passed_over, 0);
}

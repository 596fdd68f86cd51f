//! Structures whose checksums hold and that contradict each other: a superblock and the checkpoint it names, the
//! checkpoint and the header of a segment, two headers of the log. A checkpoint that its superblock does not fit is
//! passed over, a header that its checkpoint or superblock does not fit counts as lost, and where the two say different
//! things of how far the log went, opening refuses.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::format::{SegmentHeader, Stream, Superblock};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Durability, Error, ObjectId, ObjectStore, Transaction};

const SEGMENT_BYTES: u64 = 64 << 10;
const SEGMENTS: u64 = 160;
const BLOCK_BYTES: u64 = 4096;
/// Superblocks stand twice: in each half of so many bytes.
const HALF_BYTES: u64 = 64 << 10;
const UUID: [u8; 16] = [5; 16];
const KEYS: u64 = 1_000;
/// Written first, and never again.
const OLD: u64 = 5_000;

fn id() -> ObjectId {
    ObjectId::new(Collection::from("c"), "object")
}

fn value(key: u64, life: u64) -> Bytes {
    Bytes::from(format!("value {key} of life {life} ").repeat(8))
}

fn open(device: &Arc<MemoryDevice>) -> Result<Engine, Error> {
    let options = Options { recent_bytes: 0, cache_bytes: 0, commit_thread: false, ..Options::default() };
    Engine::open(Arc::clone(device) as Arc<dyn Device>, options)
}

fn write(engine: &Engine, life: u64) {
    for index in 0..KEYS {
        let change = Change::SlotSet { index, value: value(index, life) };
        engine.submit(Transaction::with(Durability::Applied).change(&id(), change)).wait().unwrap();
    }
    engine.sync().wait().unwrap();
}

/// A store with two checkpoints, and log after the second, as a crash leaves it.
fn with_two_checkpoints() -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(SEGMENTS * SEGMENT_BYTES));
    Engine::format(&*device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: UUID }).unwrap();
    let engine = open(&device).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    let change = Change::SlotSet { index: OLD, value: value(OLD, 0) };
    engine.submit(Transaction::new().change(&id(), change)).wait().unwrap();
    for life in 1..4 {
        write(&engine, life);
        if life < 3 {
            engine.checkpoint().unwrap();
        }
    }
    device.snapshot()
}

fn block(device: &MemoryDevice, at: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES as usize];
    device.read(at, &mut block).unwrap();
    block
}

/// The superblocks that hold and where they stand, newest first.
fn superblocks(device: &MemoryDevice) -> Vec<(Superblock, u64)> {
    let places = (0..2 * HALF_BYTES).step_by(BLOCK_BYTES as usize);
    let decoded = places.filter_map(|at| Some((Superblock::decode(&block(device, at)).ok()?, at)));
    let mut found: Vec<_> = decoded.collect();
    found.sort_by_key(|(superblock, _)| std::cmp::Reverse(superblock.sequence));
    found
}

/// Changes all superblocks that name the newest checkpoint, which are checksummed again; `change` is also told the
/// newest one that names the checkpoint before.
fn change_newest(device: &MemoryDevice, change: impl Fn(&mut Superblock, &Superblock)) {
    let found = superblocks(device);
    let root = found[0].0.root;
    let older = found.iter().find(|(superblock, _)| superblock.root != root && superblock.root != 0).unwrap().0;
    for (mut superblock, at) in found.into_iter().filter(|(superblock, _)| superblock.root == root) {
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        change(&mut superblock, &older);
        superblock.encode(&mut bytes);
        device.write(at, &bytes).unwrap();
    }
}

/// Changes the header of a segment, which is checksummed again.
fn change_header(device: &MemoryDevice, segment: u64, change: impl Fn(&mut SegmentHeader)) {
    let mut bytes = block(device, segment * SEGMENT_BYTES);
    let mut header = SegmentHeader::decode(&bytes, &UUID, segment).unwrap();
    change(&mut header);
    header.encode(&mut bytes);
    device.write(segment * SEGMENT_BYTES, &bytes).unwrap();
}

/// The headers of all segments, by generation.
fn headers(device: &MemoryDevice) -> Vec<SegmentHeader> {
    let header = |segment| SegmentHeader::decode(&block(device, segment * SEGMENT_BYTES), &UUID, segment);
    let mut headers: Vec<_> = (1..SEGMENTS).filter_map(header).collect();
    headers.sort_by_key(|header| header.generation);
    headers
}

/// Segments of the log, in its order.
fn log(device: &MemoryDevice) -> Vec<SegmentHeader> {
    headers(device).into_iter().filter(|header| header.stream == Stream::Log).collect()
}

fn all_right(engine: &Engine) {
    assert_eq!(engine.slot_get(&id(), OLD).wait().unwrap(), Some(value(OLD, 0)));
    for key in 0..KEYS {
        assert_eq!(engine.slot_get(&id(), key).wait().unwrap(), Some(value(key, 3)), "key {key}");
    }
}

#[test]
fn untouched_it_opens_with_the_newest_checkpoint() {
    let device = Arc::new(with_two_checkpoints());
    let engine = open(&device).unwrap();
    assert_eq!(engine.recovery().checkpoints_passed_over, 0);
    all_right(&engine);
}

#[test]
fn a_checkpoint_of_another_generation_than_the_superblock_says_is_passed_over() {
    is_passed_over_after(|newest, _| newest.root_generation += 1);
}

#[test]
fn a_checkpoint_of_a_later_moment_than_the_superblock_says_is_passed_over() {
    is_passed_over_after(|newest, older| newest.replay = older.replay);
}

/// Opening passes over the newest checkpoint after this change of the superblocks that name it, and loses nothing.
fn is_passed_over_after(change: impl Fn(&mut Superblock, &Superblock)) {
    let device = Arc::new(with_two_checkpoints());
    change_newest(&device, change);
    let engine = open(&device).unwrap();
    assert!(engine.recovery().checkpoints_passed_over > 0);
    all_right(&engine);
}

#[test]
fn a_header_that_says_otherwise_where_the_log_left_a_segment_is_refused_by_name() {
    let device = Arc::new(with_two_checkpoints());
    let log = log(&device);
    let follows = |pair: &&[SegmentHeader]| pair[1].previous_generation == pair[0].generation;
    let [left, next] = log.windows(2).find(follows).unwrap() else { unreachable!() };
    change_header(&device, next.segment, |header| header.previous_end -= BLOCK_BYTES);
    let error = open(&device).err().unwrap().to_string();
    let segment = format!("segment {}", left.segment);
    assert!(error.contains("the log left it at") && error.contains(&segment), "{error}");
}

#[test]
fn a_header_that_calls_the_segment_cold_in_which_the_log_goes_on_counts_as_lost() {
    let device = Arc::new(with_two_checkpoints());
    let goes_on_in = superblocks(&device)[0].0.replay.offset / SEGMENT_BYTES;
    change_header(&device, goes_on_in, |header| header.stream = Stream::Cold);
    lives_on(&device);
}

/// Failure: a store opened, was written and closed, and then did not open. Cause: a header that calls a cold segment
/// log was refused beside the checkpoint, but not where it stands behind the place where an older checkpoint has the
/// log go on: there nothing asked for it. Fix: it counts as lost, like one that does not hold.
#[test]
fn a_header_that_calls_a_cold_segment_log_counts_as_lost() {
    let device = Arc::new(with_two_checkpoints());
    let cold = headers(&device).into_iter().find(|header| header.stream == Stream::Cold).unwrap();
    change_header(&device, cold.segment, |header| header.stream = Stream::Log);
    lives_on(&device);
}

#[test]
fn a_header_that_calls_a_segment_of_log_cold_counts_as_lost() {
    let device = Arc::new(with_two_checkpoints());
    let first = log(&device)[0].segment;
    change_header(&device, first, |header| header.stream = Stream::Cold);
    lives_on(&device);
}

/// It opens with the newest checkpoint and one segment that is counted as damaged, holds everything, and opens again
/// after it was written and closed.
fn lives_on(device: &Arc<MemoryDevice>) {
    let engine = open(device).unwrap();
    assert_eq!(engine.recovery().checkpoints_passed_over, 0);
    assert_eq!(engine.recovery().damaged_segments, 1);
    all_right(&engine);
    write(&engine, 3);
    engine.checkpoint().unwrap();
    engine.close().unwrap();
    drop(engine);
    all_right(&open(device).unwrap());
}

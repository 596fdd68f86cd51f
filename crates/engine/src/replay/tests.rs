//! Logs made by hand, replayed by one thread and by several: the same index, and the same error.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use esker_store::{Collection, ObjectId, Result};

use super::Replayer;
use super::parallel::{Parallel, Workers};
use crate::buffer::SegmentBuffer;
use crate::format::{
    Kind, OP_FLAG_SHORT, OpHeader, RecordHeader, SegmentHeader, Stream, checksum_payload, encode_name,
    encode_operation, push_slot, record_bytes, short_flag,
};
use crate::index::Loc;
use crate::objects::Objects;
use crate::recover::Replay;
use crate::segments::Segments;

const SEGMENT_BYTES: u64 = 64 << 10;
const SEGMENTS: u64 = 64;

/// Records and their device offsets.
type Records = Vec<(RecordHeader, u64)>;

/// A log: segments with their bytes and records.
struct Written {
    segments: Vec<(SegmentHeader, Vec<u8>, Records)>,
    at: usize,
}

impl Written {
    fn new() -> Self {
        let mut log = Self { segments: Vec::new(), at: 0 };
        log.open();
        log
    }

    fn open(&mut self) {
        let segment = self.segments.len() as u64 + 1;
        let header = SegmentHeader {
            generation: segment as u32,
            uuid: [1; 16],
            segment,
            previous_end: 0,
            first_seq: 0,
            group: 0,
            previous_generation: segment as u32 - 1,
            stream: Stream::Log,
        };
        self.segments.push((header, vec![0; SEGMENT_BYTES as usize], Vec::new()));
        self.at = 4096;
    }

    /// Adds a record of one operation; its device offset.
    fn push(&mut self, kind: Kind, object: u64, argument: u64, key: &[u8], payload: &[u8]) -> u64 {
        // Both forms of headers, one beside the other.
        let flags = if self.at.is_multiple_of(16) { OP_FLAG_SHORT } else { 0 };
        let header = OpHeader { kind, flags, key_len: 0, payload_len: 0, object, argument, payload_crc: 0 };
        let short = self.at.is_multiple_of(48);
        let len = record_bytes(short, 1, header.bytes_with(key.len(), payload.len())) as usize;
        if self.at + len > SEGMENT_BYTES as usize {
            self.open();
        }
        let (segment, bytes, records) = self.segments.last_mut().unwrap();
        let offset = segment.segment * SEGMENT_BYTES + self.at as u64;
        let record = RecordHeader {
            len: len as u32,
            seq: 0,
            group: 0,
            generation: segment.generation,
            op_count: 1,
            flags: short_flag(short, 1, len as u64),
        };
        let bytes = &mut bytes[self.at + record.header_bytes()..];
        let place = offset + record.header_bytes() as u64;
        encode_operation(header, key, payload, &checksum_payload(payload), bytes, 0, segment.generation, place);
        records.push((record, offset));
        self.at += len;
        place
    }
}

fn buffer_of(bytes: &[u8]) -> Arc<SegmentBuffer> {
    let mut buffer = SegmentBuffer::new(bytes.len()).unwrap();
    buffer.whole_mut().copy_from_slice(bytes);
    Arc::new(buffer)
}

fn name(number: u64) -> ObjectId {
    ObjectId::new(Collection::from("c"), format!("name {number}").into_bytes())
}

/// A log of many objects that come, change, share, change their names and go.
fn random_log(seed: u64) -> Written {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut log = Written::new();
    log.push(Kind::CreateCollection, 0, 0, b"c", b"");
    // By name: the object's number.
    let mut named: BTreeMap<u64, u64> = BTreeMap::new();
    let mut next = 1;
    let mut create = |log: &mut Written, named: &mut BTreeMap<u64, u64>, at: u64| {
        log.push(Kind::CreateObject, next, 0, &encode_name(&name(at)), b"");
        named.insert(at, next);
        next += 1;
        next - 1
    };
    for _ in 0..20_000 {
        let at = random.u64(0..24);
        let free = random.u64(0..24);
        let Some(object) = named.get(&at).copied() else {
            create(&mut log, &mut named, at);
            continue;
        };
        let slot = random.u64(0..3_000);
        let key = format!("key {}", random.u64(0..300)).into_bytes();
        let value = vec![7; random.usize(0..40)];
        match random.u32(0..1_000) {
            0..4 => {
                log.push(Kind::RemoveObject, object, 0, b"", b"");
                named.remove(&at);
            }
            4..7 if !named.contains_key(&free) => {
                log.push(Kind::Rename, object, 0, &encode_name(&name(free)), b"");
                named.remove(&at);
                named.insert(free, object);
            }
            7..9 if !named.contains_key(&free) => {
                let copy = create(&mut log, &mut named, free);
                log.push(Kind::Clone, object, copy, b"", b"");
            }
            9..11 if named.contains_key(&free) => {
                let words = [named[&free], random.u64(0..9_000), random.u64(0..9_000), random.u64(0..9_000)];
                log.push(Kind::CloneRange, object, 0, b"", words.map(u64::to_le_bytes).as_flattened());
            }
            11 => drop(log.push(Kind::OmapClear, object, 0, b"", b"")),
            12..20 => drop(log.push(Kind::OmapRemoveRange, object, 1, &key, b"key 9")),
            20..30 => drop(log.push(Kind::SlotRemoveRange, object, slot, b"", &(slot + 50).to_le_bytes())),
            30..40 => drop(log.push(Kind::Truncate, object, slot, b"", b"")),
            40..60 => drop(log.push(Kind::Zero, object, slot * 3, b"", &100u64.to_le_bytes())),
            60..70 => drop(log.push(Kind::XattrSet, object, 0, &key, &value)),
            70..100 => {
                let mut moved = Vec::new();
                let place = (1 + random.u64(0..3)) * SEGMENT_BYTES + 4096 + random.u64(0..500) * 8;
                push_slot(&mut moved, slot, Loc::new(place, 40, 0));
                log.push(Kind::RelocateSlots, object, 0, b"", &moved);
            }
            100..500 => drop(log.push(Kind::OmapSet, object, 0, &key, &value)),
            500..560 => drop(log.push(Kind::OmapRemove, object, 0, &key, b"")),
            560..760 => drop(log.push(Kind::SlotSet, object, slot, b"", &value)),
            760..800 => drop(log.push(Kind::SlotRemove, object, slot, b"", b"")),
            _ => drop(log.push(Kind::Write, object, slot * 3, b"", &value)),
        }
    }
    log
}

/// What a log has made, in words; or the error.
fn replayed(log: &Written, workers: Option<Workers>) -> Result<String> {
    let segments = Segments::new(SEGMENT_BYTES, 1..SEGMENTS, 0, 0);
    let objects = Objects::default();
    let replayer = Replayer::new(&objects, &segments, None, SEGMENT_BYTES, 1);
    let walk = |replay: &mut dyn Replay| -> Result<()> {
        let (mut walked, mut buffers) = (Ok(()), Vec::new());
        'log: for (header, bytes, records) in &log.segments {
            let buffer = buffer_of(bytes);
            replay.segment(header, &buffer);
            buffers.push(Arc::downgrade(&buffer));
            drop(buffer);
            let held = buffers.iter().filter(|buffer| buffer.strong_count() > 0).count();
            assert!(held <= 2, "{held} segments are in memory when the next one is read");
            for (record, offset) in records {
                let at = (offset - header.segment * SEGMENT_BYTES) as usize;
                let operations = &bytes[at + record.header_bytes()..at + record.len as usize];
                walked = replay.record(record, *offset, operations);
                if walked.is_err() {
                    break 'log;
                }
            }
        }
        replay.settle()?;
        walked
    };
    let replayer = match workers {
        None => {
            let mut replayer = replayer;
            walk(&mut replayer)?;
            replayer
        }
        Some(workers) => std::thread::scope(|scope| {
            let mut parallel = Parallel::new(scope, replayer, workers);
            walk(&mut parallel)?;
            parallel.finish().map(|(replayer, _)| replayer)
        })?,
    };
    let mut said = format!("expected {} ns\n", replayer.expected_ns);
    let (_, base_lsn, next_number) = replayer.finish();
    said += &format!("at {base_lsn}, next {next_number}, {} bytes of pages\n", objects.page_bytes());
    for (collection, names) in &*objects.names.read() {
        for (name, object) in names {
            let state = object.state.read();
            let numbered = objects.numbered(state.number).is_some_and(|same| Arc::ptr_eq(&same, object));
            let known = objects.get(&object.id).is_some_and(|same| Arc::ptr_eq(&same, object));
            assert!(numbered && known && !state.unlinked, "{:?}", object.id);
            let spaces = &state.spaces;
            said += &format!(
                "{collection:?} {name:?} {} {} {:?} {} {} {}\n{:?}\n{:?}\n{:?}\n",
                state.number,
                spaces.size,
                spaces.xattrs,
                spaces.shares,
                spaces.shifted,
                spaces.lent,
                spaces.slots.scan(0..u64::MAX, false).map(|entry| entry.unwrap()).collect::<Vec<_>>(),
                spaces
                    .omap
                    .scan(Bound::Unbounded, Bound::Unbounded, false)
                    .map(|entry| entry.map(|(key, loc)| (key.to_vec(), loc)).unwrap())
                    .collect::<Vec<_>>(),
                spaces.extents.iter().map(|entry| entry.unwrap()).collect::<Vec<_>>(),
            );
        }
    }
    for usage in segments.in_use() {
        said += &format!("{usage:?} shared by {:?}\n", segments.sharing.of(usage.segment));
    }
    let mut touched = objects.take_touched(super::EPOCH);
    touched.sort_unstable();
    touched.dedup();
    said += &format!("touched {touched:?}, {} objects", objects.len());
    Ok(said)
}

#[test]
fn several_threads_make_the_same_index_as_one() {
    for seed in 0..12 {
        let log = random_log(seed);
        let alone = replayed(&log, None).unwrap();
        assert!(log.segments.len() > 10 && alone.len() > 10_000, "the log is long enough to tell");
        for (count, first, after) in [(2, 0, 0), (4, 0, 0), (3, 5_000, 0), (2, 100, 300)] {
            let parallel = replayed(&log, Some(Workers { count, first, after, ..Workers::NONE })).unwrap();
            assert!(alone == parallel, "seed {seed}: {count} workers made another index");
        }
    }
}

#[test]
fn what_several_objects_point_to_is_counted_in_the_order_of_the_log() {
    const PAIRS: u64 = 1_000;
    let mut log = Written::new();
    log.push(Kind::CreateCollection, 0, 0, b"c", b"");
    for pair in 0..PAIRS {
        log.push(Kind::CreateObject, 2 * pair + 1, 0, &encode_name(&name(2 * pair)), b"");
        log.push(Kind::SlotSet, 2 * pair + 1, 0, b"", b"value");
        log.push(Kind::CreateObject, 2 * pair + 2, 0, &encode_name(&name(2 * pair + 1)), b"");
        log.push(Kind::Clone, 2 * pair + 1, 2 * pair + 2, b"", b"");
    }
    // Those of a pair move to different segments: what counts twice goes with the one that moves first.
    for number in 1..=2 * PAIRS {
        let mut moved = Vec::new();
        push_slot(&mut moved, 0, Loc::new((1 + number % 3) * SEGMENT_BYTES + 4096 + number * 8, 40, 0));
        log.push(Kind::RelocateSlots, number, 0, b"", &moved);
    }
    let alone = replayed(&log, None).unwrap();
    for count in [2, 3, 4] {
        let parallel = replayed(&log, Some(Workers { count, first: 0, after: 0, ..Workers::NONE })).unwrap();
        assert!(alone == parallel, "{count} workers have counted otherwise");
    }
}

#[test]
fn the_first_error_of_the_log_is_told_by_several_threads_too() {
    let workers = Workers { count: 3, first: 0, after: 0, ..Workers::NONE };
    for seed in 0..24 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut log = random_log(seed % 4);
        // Some operations, near one another and of several workers, make no sense.
        let count: usize = log.segments.iter().map(|(.., records)| records.len()).sum();
        let first = random.usize(1_000..count - 200);
        let spoilt: Vec<usize> = (0..4).map(|_| first + random.usize(0..200)).collect();
        let mut number = 0;
        for (header, bytes, records) in &mut log.segments {
            for (record, offset) in &*records {
                number += 1;
                if spoilt.contains(&number) {
                    let at = (offset - header.segment * SEGMENT_BYTES) as usize + record.header_bytes();
                    let bytes = &mut bytes[at..];
                    let short = bytes[0] & 0x80 != 0;
                    let object = if short { 4 } else { 8 };
                    match random.u32(0..3) {
                        // An object that does not exist, one that has no number, and a range whose end is no number.
                        0 => bytes[object..object + 4].copy_from_slice(&9_999_999u32.to_le_bytes()),
                        1 => bytes[object..object + 4].copy_from_slice(&0u32.to_le_bytes()),
                        _ if short => bytes[0] = bytes[0] & 0xf0 | (Kind::SlotRemoveRange as u8 - 1),
                        _ => bytes[0] = Kind::SlotRemoveRange as u8,
                    }
                }
            }
        }
        let error = replayed(&log, None).unwrap_err().to_string();
        for _ in 0..5 {
            assert_eq!(replayed(&log, Some(workers)).unwrap_err().to_string(), error, "seed {seed}");
        }
    }
}

#[test]
fn an_operation_before_its_object_is_made_is_an_error_for_several_threads_too() {
    let workers = Workers { count: 2, first: 0, after: 0, ..Workers::NONE };
    let mut log = Written::new();
    log.push(Kind::CreateCollection, 0, 0, b"c", b"");
    log.push(Kind::CreateObject, 1, 0, &encode_name(&name(1)), b"");
    log.push(Kind::SlotSet, 1, 0, b"", b"value");
    log.push(Kind::RemoveObject, 1, 0, b"", b"");
    let at = log.push(Kind::SlotSet, 1, 0, b"", b"value");
    log.push(Kind::CreateObject, 1, 0, &encode_name(&name(1)), b"");
    let (alone, parallel) = (replayed(&log, None).unwrap_err(), replayed(&log, Some(workers)).unwrap_err());
    assert_eq!(alone.to_string(), parallel.to_string());
    assert!(alone.to_string().contains(&at.to_string()), "{alone}");
}

#[test]
fn a_log_is_replayed_where_no_thread_can_be_started() {
    let log = random_log(1);
    let alone = replayed(&log, None).unwrap();
    // No machine has room for such a stack.
    let workers = Workers { count: 3, stack_bytes: 1 << 60, ..Workers::NONE };
    assert!(alone == replayed(&log, Some(workers)).unwrap());
}

#[test]
fn a_panic_of_a_worker_is_an_error() {
    let workers = Workers { count: 2, first: 0, after: 0, ..Workers::NONE };
    let mut log = Written::new();
    log.push(Kind::CreateObject, 1, 0, &encode_name(&name(1)), b"");
    log.push(Kind::SlotRemove, 1, 0, b"", b"");
    let (header, bytes, records) = log.segments.remove(0);
    let (segments, objects) = (Segments::new(SEGMENT_BYTES, 1..SEGMENTS, 0, 0), Objects::default());
    let replayer = Replayer::new(&objects, &segments, None, SEGMENT_BYTES, 1);
    let error = std::thread::scope(|scope| {
        let mut parallel = Parallel::new(scope, replayer, workers);
        parallel.segment(&header, &buffer_of(&bytes));
        // The walk says that the second stands behind the segment's end.
        let past = (header.segment + 1) * SEGMENT_BYTES;
        for ((record, offset), said) in records.iter().zip([records[0].1, past]) {
            let at = (offset - header.segment * SEGMENT_BYTES) as usize;
            let operations = &bytes[at + record.header_bytes()..at + record.len as usize];
            parallel.record(record, said, operations).unwrap();
        }
        parallel.settle().unwrap_err()
    });
    assert!(error.to_string().contains("panicked"), "{error}");
}

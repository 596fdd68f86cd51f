//! Target `structure`: a store whose structures say what no program would write, with every checksum right.
//!
//! real image → superblocks, segment headers, records, operations, pieces of checkpoints, each found
//! → some fields or bytes changed → the checksums of all that is around them made again
//! → open → read, write, clean, scrub → close → open
//!
//! Damage never gets past a checksum; a program that wrote nonsense, or a person who wants a crash, does.
//!
//! Invariants:
//! 1. Whatever the image says, opening, reading and writing end, with an answer or an error.
//! 2. No allocation is larger than the image could hold (the process has a limit).

use std::sync::Arc;

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::format::{
    CRC_BLOCK_BYTES, Kind, OpHeader, RECORD_HEADER_BYTES, RecordHeader, SEGMENT_HEADER_BYTES, SHORT_OP_HEADER_BYTES,
    SHORT_RECORD_HEADER_BYTES, SUPERBLOCK_BYTES, Superblock, place_seed, store_seed,
};
use esker_engine::{Engine, Options, check};
use esker_store::{Change, Collection, CommitCursor, ObjectId, ObjectStore, Transaction};

use crate::Target;
use crate::recovery::{SEGMENT_BYTES, SEGMENTS, UUID, read_everything, real_images};

const BLOCK_BYTES: usize = 4_096;

/// Values at which lengths, offsets and numbers break.
const EDGES: &[u64] = &[
    0,
    1,
    2,
    7,
    8,
    255,
    4_095,
    4_096,
    4_097,
    65_535,
    65_536,
    1 << 20,
    1 << 31,
    u32::MAX as u64,
    1 << 44,
    1 << 60,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// Where an operation stands.
#[derive(Clone, Copy)]
struct Operation {
    at: usize,
    record: usize,
    generation: u32,
    kind: Kind,
}

struct Image {
    bytes: Vec<u8>,
    superblocks: Vec<usize>,
    segments: Vec<usize>,
    records: Vec<usize>,
    operations: Vec<Operation>,
}

pub struct Structure {
    images: Vec<Image>,
}

fn options() -> Options {
    Options { commit_thread: false, recent_bytes: 0, cache_bytes: 1 << 20, ..Options::default() }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

impl Image {
    fn new(bytes: Vec<u8>) -> Self {
        let seed = store_seed(&UUID);
        let holds = |at: &usize| Superblock::decode(&bytes[*at..*at + BLOCK_BYTES]).is_ok();
        let superblocks = (0..2 * SEGMENT_BYTES as usize).step_by(BLOCK_BYTES).filter(holds).collect();
        let starts = |at: &usize| bytes[*at..].starts_with(b"ESKERSEG");
        let segments: Vec<usize> = (0..bytes.len()).step_by(SEGMENT_BYTES as usize).filter(starts).collect();
        let (mut records, mut operations) = (Vec::new(), Vec::new());
        for segment in &segments {
            let generation = word(&bytes, segment + 12);
            let end = segment + SEGMENT_BYTES as usize;
            let mut at = segment + BLOCK_BYTES;
            while at + SHORT_RECORD_HEADER_BYTES <= end {
                let record = RecordHeader::decode(&bytes[at..end], seed, at as u64);
                let Some(record) = record.filter(|record| record.generation == generation) else {
                    at = (at + 1).next_multiple_of(BLOCK_BYTES);
                    continue;
                };
                records.push(at);
                let mut op_at = at + record.header_bytes();
                for _ in 0..record.op_count {
                    let Some(op) = OpHeader::decode(&bytes[op_at..end], seed, generation, op_at as u64) else { break };
                    operations.push(Operation { at: op_at, record: at, generation, kind: op.kind });
                    op_at += op.total_bytes() as usize;
                }
                at += record.len as usize;
            }
        }
        Self { bytes, superblocks, segments, records, operations }
    }
}

/// Changes a field of `width` bytes: an edge, near what it was, a flipped bit, or anything.
fn change(bytes: &mut [u8], at: usize, width: usize, random: &mut fastrand::Rng) {
    let mut old = [0; 8];
    old[..width].copy_from_slice(&bytes[at..at + width]);
    let old = u64::from_le_bytes(old);
    let new = match random.u8(0..5) {
        0 | 1 => EDGES[random.usize(0..EDGES.len())],
        2 => old.wrapping_add(random.u64(0..17)).wrapping_sub(8),
        3 => old ^ 1 << random.usize(0..width * 8),
        _ => random.u64(..),
    };
    bytes[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
}

fn put_crc(bytes: &mut [u8], at: usize, crc: u32) {
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Makes the checksums of an operation right again, as far as it lies in the image.
fn mend_operation(bytes: &mut [u8], at: usize, generation: u32) {
    let Some(header) = OpHeader::decode_trusted(&bytes[at..]) else { return };
    if at + header.payload_end() <= bytes.len() {
        let payload = bytes[at + header.payload_start()..at + header.payload_end()].to_vec();
        let crc = if payload.len() <= CRC_BLOCK_BYTES {
            crc32c::crc32c(&payload)
        } else {
            let sums: Vec<u8> =
                payload.chunks(CRC_BLOCK_BYTES).flat_map(|block| crc32c::crc32c(block).to_le_bytes()).collect();
            let from = at + header.payload_start() - sums.len();
            bytes[from..from + sums.len()].copy_from_slice(&sums);
            crc32c::crc32c(&sums)
        };
        put_crc(bytes, at + header.key_start() - 8, crc);
    }
    let (key_start, key_end) = (at + header.key_start(), at + header.key_end());
    if key_end <= bytes.len() {
        let place = place_seed(store_seed(&UUID), generation, at as u64);
        let crc = crc32c::crc32c_append(place, &bytes[at..key_start - 4]);
        put_crc(bytes, key_start - 4, crc32c::crc32c_append(crc, &bytes[key_start..key_end]));
    }
}

fn mend_record(bytes: &mut [u8], at: usize) {
    let (generation_at, crc_at) = if is_long(bytes, at) { (24, 36) } else { (4, SHORT_RECORD_HEADER_BYTES - 4) };
    let generation = word(bytes, at + generation_at);
    let crc = crc32c::crc32c_append(place_seed(store_seed(&UUID), generation, at as u64), &bytes[at..at + crc_at]);
    put_crc(bytes, at + crc_at, crc);
}

/// Whether the record header there is a long one.
fn is_long(bytes: &[u8], at: usize) -> bool {
    bytes[at..].starts_with(b"ESKR") && at + RECORD_HEADER_BYTES <= bytes.len()
}

impl Structure {
    pub fn new() -> Self {
        Self { images: real_images().into_iter().map(Image::new).collect() }
    }
}

impl Image {
    fn mutate(&self, bytes: &mut [u8], random: &mut fastrand::Rng) {
        match random.u8(0..10) {
            0 => {
                // All of one number, or one of them.
                let newest = random.choice(&self.superblocks).copied().unwrap_or(0);
                let sequence = bytes[newest + 32..newest + 40].to_vec();
                let fields = [
                    (12, 4),
                    (32, 8),
                    (40, 8),
                    (48, 8),
                    (56, 8),
                    (64, 4),
                    (68, 4),
                    (72, 8),
                    (80, 8),
                    (88, 8),
                    (96, 4),
                    (100, 4),
                    (104, 8),
                    (112, 8),
                    (120, 8),
                ];
                let (field, width) = fields[random.usize(0..fields.len())];
                change(bytes, newest + field, width, random);
                let value = bytes[newest + field..newest + field + width].to_vec();
                for at in self.superblocks.iter().copied() {
                    if bytes[at + 32..at + 40] == sequence[..] || at == newest || random.u8(0..3) == 0 {
                        bytes[at + field..at + field + width].copy_from_slice(&value);
                        let crc = crc32c::crc32c(&bytes[at..at + SUPERBLOCK_BYTES - 4]);
                        put_crc(bytes, at + SUPERBLOCK_BYTES - 4, crc);
                    }
                }
            }
            1 => {
                let Some(at) = random.choice(&self.segments).copied() else { return };
                let fields = [(12, 4), (32, 8), (40, 8), (48, 8), (56, 8), (64, 4), (68, 4)];
                let (field, width) = fields[random.usize(0..fields.len())];
                change(bytes, at + field, width, random);
                let crc = crc32c::crc32c(&bytes[at..at + SEGMENT_HEADER_BYTES - 4]);
                put_crc(bytes, at + SEGMENT_HEADER_BYTES - 4, crc);
            }
            2 => {
                let Some(at) = random.choice(&self.records).copied() else { return };
                let long = [(4, 4), (8, 8), (16, 8), (28, 4), (32, 4)];
                let short = [(1, 1), (2, 2), (4, 4), (8, 6), (14, 6)];
                let fields = if is_long(bytes, at) { long } else { short };
                let (field, width) = fields[random.usize(0..fields.len())];
                change(bytes, at + field, width, random);
                mend_record(bytes, at);
            }
            which => {
                // Pieces of checkpoints as often as all the rest.
                let pieces = which < 7;
                let some = self.operations.iter().filter(|op| !pieces || op.kind == Kind::Index);
                let Some(op) = random.choice(some.collect::<Vec<_>>()).copied() else { return };
                let Some(header) = OpHeader::decode_trusted(&bytes[op.at..]) else { return };
                let (key_len, payload_len) = (usize::from(header.key_len), header.payload_len as usize);
                match random.u8(0..8) {
                    0 => bytes[op.at] = if random.bool() { random.u8(0..30) } else { random.u8(..) },
                    1 => bytes[op.at + 1] = random.u8(..),
                    2 => change(bytes, op.at + 2, 2, random),
                    3 => change(bytes, op.at + 4, 4, random),
                    4 if header.key_start() == SHORT_OP_HEADER_BYTES => change(bytes, op.at + 8, 4, random),
                    4 => change(bytes, op.at + 8, 8, random),
                    5 if header.key_start() > SHORT_OP_HEADER_BYTES => change(bytes, op.at + 16, 8, random),
                    6 if key_len > 0 => {
                        let at = op.at + header.key_start() + random.usize(0..key_len);
                        bytes[at] = random.u8(..);
                    }
                    _ if payload_len > 0 => {
                        let from = op.at + header.payload_start();
                        let width = [1, 2, 4, 8][random.usize(0..4)].min(payload_len);
                        // Structures have their words near the start, and in steps.
                        let at = if random.bool() {
                            random.usize(0..payload_len.min(96))
                        } else {
                            random.usize(0..payload_len)
                        };
                        let at = at.min(payload_len - width);
                        if from + at + width <= bytes.len() {
                            change(bytes, from + at, width, random);
                        }
                    }
                    _ => {}
                }
                mend_operation(bytes, op.at, op.generation);
                mend_record(bytes, op.record);
            }
        }
    }
}

impl Target for Structure {
    fn input(&mut self, random: &mut fastrand::Rng) -> Vec<u8> {
        let image = &self.images[random.usize(0..self.images.len())];
        let mut bytes = image.bytes.clone();
        for _ in 0..1 + random.usize(0..3) {
            image.mutate(&mut bytes, random);
        }
        bytes
    }

    fn run(&mut self, input: &[u8]) -> bool {
        let mut image = input.to_vec();
        image.resize((SEGMENT_BYTES * SEGMENTS) as usize, 0);
        let device = Arc::new(MemoryDevice::from_image(&image));
        let _ = check(Arc::clone(&device) as Arc<dyn Device>, true, &mut |_, _| {});
        let Ok(engine) = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options()) else { return false };
        read_everything(&engine);
        let _ = engine.scrub_once(&mut |_, _| true);
        for collection in engine.collections().wait().unwrap_or_default() {
            let _ = engine.commit_scan(&collection, b"", CommitCursor::default(), 1_000).wait();
        }
        let object = ObjectId::new(Collection::from("fuzz"), "object-1");
        for number in 0..40u64 {
            let value = Bytes::from(vec![number as u8; 900]);
            let txn = Transaction::new()
                .change(&object, Change::SlotSet { index: number * 37, value: value.clone() })
                .change(&object, Change::OmapSet { key: format!("key-{number}").into(), value: value.clone() })
                .change(&object, Change::Write { offset: number * 800, data: value });
            let _ = engine.submit(txn).wait();
        }
        let _ = engine.clean();
        let _ = engine.checkpoint();
        let _ = engine.drop_index_pages();
        let _ = engine.clean();
        read_everything(&engine);
        let closed = engine.close();
        drop(engine);
        let again = Engine::open(device, options());
        if closed.is_ok() {
            assert!(
                again.is_ok(),
                "a store that opened, was written and closed does not open again: {:?}",
                again.err()
            );
        }
        true
    }
}

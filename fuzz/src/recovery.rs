//! Target `recovery`: opening, checking and reading a store whose image was damaged anywhere.
//!
//! real image (made once, through the engine) → a few mutations → open → scan everything → check
//!
//! Invariants:
//! 1. An image that opens may be read from end to end and written to; whatever does not hold is an error.
//! 2. `check` and opening agree about every image.

use std::sync::Arc;

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options, check};
use esker_store::{Change, Collection, ObjectId, ObjectStore, OmapScan, SlotScan, Transaction};

use crate::Target;
use crate::mutate::overwrite;

/// Segment size of the image: small, so that a small image has several.
pub const SEGMENT_BYTES: u64 = 64 << 10;
/// Segments of the image.
pub const SEGMENTS: u64 = 24;
/// The store's id.
pub const UUID: [u8; 16] = [0x5e; 16];

/// A real image, and where it is not empty, in pieces of 64 bytes.
struct Image {
    bytes: Vec<u8>,
    used: Vec<usize>,
}

pub struct Recovery {
    /// As after a clean close, and as after a power cut.
    images: [Image; 2],
}

fn options() -> Options {
    Options { commit_thread: false, recent_bytes: 0, cache_bytes: 1 << 20, ..Options::default() }
}

fn object(number: u64) -> ObjectId {
    ObjectId::new(Collection::from("fuzz"), format!("object-{number}"))
}

/// The device's bytes after some ordinary work, closed cleanly.
pub fn real_image() -> Vec<u8> {
    real_images()[0].clone()
}

/// The device's bytes after some ordinary work: closed cleanly, and as they were just before.
pub fn real_images() -> [Vec<u8>; 2] {
    let device = Arc::new(MemoryDevice::new(SEGMENT_BYTES * SEGMENTS));
    let format = FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: UUID };
    Engine::format(&*device, &format).expect("a memory device can be formatted");
    let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options()).expect("a fresh store opens");
    let mut random = fastrand::Rng::with_seed(7);
    let submit = |txn| {
        engine.submit(txn).wait().expect("the image has room for this");
    };
    submit(Transaction::new().create_collection(&Collection::from("fuzz")));
    for number in 0..120u64 {
        let object = object(number % 5);
        let mut value = vec![0; random.usize(0..3_000)];
        random.fill(&mut value);
        let value = Bytes::from(value);
        let mut txn = Transaction::new();
        txn.push(&object, Change::SlotSet { index: random.u64(0..2_000), value: value.clone() });
        txn.push(
            &object,
            Change::OmapSet { key: format!("key-{}", number % 40).into(), value: value.slice(..value.len() / 2) },
        );
        if number % 3 == 0 {
            txn.push(&object, Change::Write { offset: random.u64(0..100_000), data: value });
            txn.push(&object, Change::XattrSet { name: "epoch".into(), value: number.to_string().into() });
        }
        if number % 11 == 0 {
            txn.push(&object, Change::OmapRemove { key: format!("key-{}", number % 7).into() });
            txn.push(&object, Change::SlotRemoveRange { start: 10, end: 50 });
            txn.push(&object, Change::Truncate { size: 50_000 });
        }
        submit(txn);
    }
    submit(Transaction::new().change(&object(4), Change::Remove));
    submit(Transaction::new().change(&object(1), Change::CloneTo { to: object(7) }));
    let range = Change::CloneRange { to: object(8), from_offset: 0, len: 9_000, to_offset: 4_096 };
    submit(Transaction::new().change(&object(2), range));
    engine.checkpoint().expect("there is room for a checkpoint");
    engine.clean().expect("there is room to clean");
    for number in 0..30u64 {
        let value = Bytes::from(vec![number as u8; 700]);
        let txn = Transaction::new()
            .change(&object(number % 3), Change::SlotSet { index: number * 5, value: value.clone() })
            .change(&object(9), Change::OmapSet { key: format!("late-{number}").into(), value: value.clone() })
            .change(&object(9), Change::Write { offset: number * 500, data: value });
        submit(txn);
    }
    submit(Transaction::new().change(&object(9), Change::Rename { to: object(10) }));
    engine.clean().expect("there is room to clean");
    let running = device.image();
    engine.close().expect("the image closes");
    [device.image(), running]
}

impl Recovery {
    pub fn new() -> Self {
        let images = real_images().map(|bytes| {
            let used = (0..bytes.len()).step_by(64).filter(|at| bytes[*at..at + 64].iter().any(|byte| *byte != 0));
            let used = used.collect();
            Image { bytes, used }
        });
        Self { images }
    }
}

impl Image {
    /// Somewhere in what is used: at the end of the log one time in three, where a crash leaves its traces.
    fn place(&self, random: &mut fastrand::Rng) -> usize {
        let first = if random.u8(0..3) == 0 { self.used.len() - self.used.len() / 20 } else { 0 };
        self.used[random.usize(first..self.used.len())]
    }
}

impl Target for Recovery {
    /// The image with damages, mostly where it is not empty. Its length stays the device's.
    fn input(&mut self, random: &mut fastrand::Rng) -> Vec<u8> {
        let source = &self.images[random.usize(0..2)];
        let mut image = source.bytes.clone();
        for _ in 0..1 + random.usize(0..3) {
            let at = source.place(random) + random.usize(0..64);
            let len = (1usize << random.usize(0..13)).min(image.len() - at);
            match random.u8(0..8) {
                0..=2 => image[at] ^= 1 << random.u8(0..8),
                3 => random.fill(&mut image[at..at + len]),
                4 => image[at..at + len].fill(0),
                5 => {
                    let from = source.place(random);
                    let end = (from + len).min(source.bytes.len());
                    overwrite(&mut image, at, &source.bytes[from..end]);
                }
                6 => {
                    // A whole block from elsewhere: a misdirected or stale write.
                    let from = source.place(random) / 4_096 * 4_096;
                    overwrite(&mut image, at / 4_096 * 4_096, &source.bytes[from..from + 4_096]);
                }
                _ => image[at / 4_096 * 4_096..].fill(0),
            }
        }
        image
    }

    fn run(&mut self, input: &[u8]) -> bool {
        let mut image = input.to_vec();
        image.resize((SEGMENT_BYTES * SEGMENTS) as usize, 0);
        let device = Arc::new(MemoryDevice::from_image(&image));
        let checked = check(Arc::clone(&device) as Arc<dyn Device>, true, &mut |_, _| {}).is_ok();
        let opened = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options());
        assert_eq!(checked, opened.is_ok(), "check and opening disagree about the same image: {:?}", opened.err());
        let Ok(engine) = opened else { return false };
        read_everything(&engine);
        // It goes on from there.
        let more = Transaction::new().create_collection(&Collection::from("more"));
        if engine.submit(more).wait().is_ok() && engine.close().is_ok() {
            let again = Engine::open(device, options());
            assert!(
                again.is_ok(),
                "a store that opened, was written and closed does not open again: {:?}",
                again.err()
            );
        }
        true
    }
}

/// Errors are answers too; only a panic is not.
pub fn read_everything(engine: &Engine) {
    let Ok(collections) = engine.collections().wait() else { return };
    for collection in collections {
        for name in engine.list(&collection, None, 1_000).wait().unwrap_or_default() {
            let object = ObjectId::new(collection.clone(), name);
            let _ = engine.stat(&object).wait();
            let _ = engine.read(&object, 0..1 << 20).wait();
            let _ = engine.xattrs(&object).wait();
            let _ = engine.omap_scan(&object, &OmapScan { limit: 10_000, ..OmapScan::default() }).wait();
            let _ = engine
                .slot_scan(&object, &SlotScan { range: 0..u64::MAX, reverse: false, limit: 10_000, keys_only: false })
                .wait();
        }
    }
}

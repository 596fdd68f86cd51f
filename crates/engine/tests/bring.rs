//! Parts of objects that are brought into memory, many under way, for the thread that reads them next.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use esker_device::{Device, FileDevice, Geometry, MemoryDevice, OpenMode};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, Error, ObjectId, ObjectStore, Parts, Transaction};

const SEGMENT_BYTES: u64 = 1 << 20;
const PARTS: u64 = 300;
const SMALL: u64 = 5_000;
const LARGE: u64 = 500_000;

fn object(name: &'static str) -> ObjectId {
    ObjectId::new("c".into(), name)
}

fn value(number: u64, len: u64) -> Bytes {
    (0..len).map(|at| (at / 100 + 7 * number) as u8).collect::<Vec<_>>().into()
}

fn open(device: &Arc<dyn Device>) -> Engine {
    let options = Options { recent_bytes: 0, cache_bytes: 64 << 10, scrub_bytes_per_s: 0, ..Options::default() };
    Engine::open(Arc::clone(device), options).unwrap()
}

/// Small and large writes that are on the device only.
fn filled(device: &Arc<dyn Device>) -> Engine {
    Engine::format(&**device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [5; 16] }).unwrap();
    let engine = open(device);
    engine.submit(Transaction::new().create_collection(&"c".into())).wait().unwrap();
    for number in 0..PARTS {
        let change = Change::Write { offset: number * 2 * SMALL, data: value(number, SMALL) };
        engine.submit(Transaction::new().change(&object("small"), change)).wait().unwrap();
    }
    for number in 0..8 {
        let change = Change::Write { offset: number * LARGE, data: value(number, LARGE) };
        engine.submit(Transaction::new().change(&object("large"), change)).wait().unwrap();
    }
    drop(engine);
    open(device)
}

/// Reads each part as it comes, and says what it found.
struct Reads<'e> {
    engine: &'e Engine,
    parts: VecDeque<(ObjectId, Range<u64>)>,
    given: Vec<(ObjectId, Range<u64>)>,
    here: usize,
    found: Vec<(ObjectId, Range<u64>, esker_store::Result<Bytes>)>,
    /// What is done to the store when the first has come.
    then: Option<Box<dyn FnOnce() + 'e>>,
}

impl<'e> Reads<'e> {
    fn of(engine: &'e Engine, parts: impl Iterator<Item = (ObjectId, Range<u64>)>) -> Self {
        Self { engine, parts: parts.collect(), given: Vec::new(), here: 0, found: Vec::new(), then: None }
    }

    fn bring(mut self) -> Self {
        let engine = self.engine;
        assert!(engine.bring(&mut self));
        assert!(self.parts.is_empty() && self.found.len() == self.given.len(), "each is told of once");
        self
    }
}

impl Parts for Reads<'_> {
    fn next(&mut self) -> Option<(ObjectId, Range<u64>)> {
        let part = self.parts.pop_front()?;
        self.given.push(part.clone());
        Some(part)
    }

    fn came(&mut self, number: u64) {
        self.then.take().into_iter().for_each(|then| then());
        let (object, range) = self.given[number as usize].clone();
        let read = self.engine.read(&object, range.clone());
        self.here += usize::from(read.is_here());
        self.found.push((object, range, read.wait()));
    }
}

fn small(number: u64) -> (ObjectId, Range<u64>) {
    (object("small"), number * 2 * SMALL..number * 2 * SMALL + SMALL)
}

fn devices() -> Vec<(tempfile::TempDir, Arc<dyn Device>)> {
    let folder = || tempfile::tempdir().unwrap();
    let file = folder();
    let on_file = FileDevice::open(file.path().join("device"), OpenMode::Create { len: 64 * SEGMENT_BYTES }).unwrap();
    vec![(file, Arc::new(on_file)), (folder(), Arc::new(MemoryDevice::new(64 * SEGMENT_BYTES)))]
}

#[test]
fn what_is_brought_is_read_without_waiting_and_is_what_was_written() {
    for (_folder, device) in devices() {
        let engine = filled(&device);
        let reads = Reads::of(&engine, (0..PARTS).map(|number| small(number * 7 % PARTS))).bring();
        assert_eq!(reads.here as u64, PARTS);
        for (_, range, found) in reads.found {
            assert_eq!(found.unwrap(), value(range.start / (2 * SMALL), SMALL));
        }
        // Parts of large writes, over their borders, holes, past the end, and of what is not there.
        let large = |at: u64, len: u64| (object("large"), at..at + len);
        let parts =
            [large(0, 100), large(4_090, 10), large(LARGE - 7, 14), large(3 * LARGE, LARGE), large(8 * LARGE - 5, 10)];
        let others = [(object("small"), SMALL - 5..2 * SMALL + 5), (object("none"), 0..10), (object("small"), 9..9)];
        let all = || parts.iter().chain(&others).cloned().cycle().take(40);
        let whole = engine.read(&object("large"), 0..9 * LARGE).wait().unwrap();
        let reads = Reads::of(&engine, all()).bring();
        for (id, range, found) in reads.found {
            let found = found.unwrap();
            if id == object("large") {
                assert_eq!(found, whole[range.start as usize..(range.end as usize).min(whole.len())]);
            } else if range.end > 10 {
                assert_eq!(
                    (&found[..5], &found[5..SMALL as usize + 5]),
                    (&value(0, SMALL)[SMALL as usize - 5..], &[0; SMALL as usize][..])
                );
                assert_eq!(found[SMALL as usize + 5..], value(1, SMALL)[..5]);
            } else {
                assert!(found.is_empty());
            }
        }
        assert!(engine.bring(&mut Reads::of(&engine, std::iter::empty())));
    }
}

/// Of a large write that is read whole, or by most of it, all is read at once, by who waits and by who has it brought.
#[test]
fn a_large_write_is_one_read_of_the_device() {
    for range in [0..LARGE, 100..LARGE - 7, LARGE / 5..LARGE] {
        for (_folder, device) in devices() {
            let engine = filled(&device);
            let reads = || engine.stats().device_reads;
            let of = |number: u64| number * LARGE + range.start..number * LARGE + range.end;
            let expected = |number: u64| value(number, LARGE).slice(range.start as usize..range.end as usize);
            let before = reads();
            assert_eq!(engine.read(&object("large"), of(1)).wait().unwrap(), expected(1));
            assert_eq!(reads() - before, 1, "{range:?}");
            let brought = Reads::of(&engine, (2..6).map(|number| (object("large"), of(number)))).bring();
            assert_eq!((brought.here, reads() - before), (4, 5), "{range:?}");
            for (number, (_, _, found)) in (2..6).zip(brought.found) {
                assert_eq!(found.unwrap(), expected(number));
            }
        }
    }
}

#[test]
fn rot_is_found_anywhere_in_a_large_write_that_is_read_at_once() {
    for from_end in [1, LARGE / 2, LARGE - 1, LARGE + 40, LARGE + 300, LARGE + 510] {
        let device = Arc::new(MemoryDevice::new(64 * SEGMENT_BYTES)) as Arc<dyn Device>;
        let engine = filled(&device);
        let at = place_of(&device, &value(3, LARGE)) + LARGE - from_end;
        let mut block = vec![0; 4096];
        device.read(at / 4096 * 4096, &mut block).unwrap();
        block[(at % 4096) as usize] ^= 1;
        device.write(at / 4096 * 4096, &block).unwrap();
        let whole = |number: u64| (object("large"), number * LARGE..(number + 1) * LARGE);
        let reads = Reads::of(&engine, (0..8).map(whole)).bring();
        for (number, (_, _, found)) in (0..8).zip(reads.found) {
            match number {
                3 => assert!(matches!(found, Err(Error::Corrupt { .. })), "{from_end}: {found:?}"),
                _ => assert_eq!(found.unwrap(), value(number, LARGE)),
            }
        }
    }
}

/// A device of which one place cannot be read, if there is one.
struct Scratched(MemoryDevice, AtomicU64);

impl Device for Scratched {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> esker_device::Result<()> {
        if (offset..offset + buffer.len() as u64).contains(&self.1.load(Ordering::SeqCst)) {
            let source = std::io::Error::other("the platter is scratched");
            return Err(esker_device::Error::Io { name: self.name(), what: "read", offset, source });
        }
        self.0.read(offset, buffer)
    }
    fn write(&self, offset: u64, data: &[u8]) -> esker_device::Result<()> {
        self.0.write(offset, data)
    }
    fn sync(&self) -> esker_device::Result<()> {
        self.0.sync()
    }
    fn reserve(&self, offset: u64, len: u64) -> esker_device::Result<()> {
        self.0.reserve(offset, len)
    }
    fn discard(&self, offset: u64, len: u64) -> esker_device::Result<()> {
        self.0.discard(offset, len)
    }
    fn name(&self) -> String {
        self.0.name()
    }
}

/// What is read at once with what is asked for does not keep that from being read.
#[test]
fn a_place_that_cannot_be_read_fails_reads_of_it_alone() {
    let scratched = Arc::new(Scratched(MemoryDevice::new(64 * SEGMENT_BYTES), AtomicU64::new(u64::MAX)));
    let device = Arc::clone(&scratched) as Arc<dyn Device>;
    let engine = filled(&device);
    let at = place_of(&device, &value(3, LARGE));
    scratched.1.store(at + LARGE - 100, Ordering::SeqCst);
    let of = |len: u64| (object("large"), 3 * LARGE..3 * LARGE + len);
    let reads = Reads::of(&engine, [of(LARGE / 5 * 4), of(LARGE), of(LARGE / 2)].into_iter()).bring();
    for (_, range, found) in reads.found {
        match range.end - 3 * LARGE {
            LARGE => assert!(matches!(found, Err(Error::Io { .. })), "{found:?}"),
            len => assert_eq!(found.unwrap(), value(3, LARGE).slice(..len as usize)),
        }
    }
    // Before what is asked for, of a write whose header was not read yet.
    scratched.1.store(u64::MAX, Ordering::SeqCst);
    let at = place_of(&device, &value(5, LARGE));
    scratched.1.store(at + 30_000, Ordering::SeqCst);
    let end = (object("large"), 5 * LARGE + LARGE / 5..6 * LARGE);
    let reads = Reads::of(&engine, std::iter::once(end)).bring();
    assert_eq!(*reads.found[0].2.as_ref().unwrap(), value(5, LARGE).slice(LARGE as usize / 5..));
}

/// Where these bytes stand.
fn place_of(device: &Arc<dyn Device>, wanted: &[u8]) -> u64 {
    let mut segment = vec![0; SEGMENT_BYTES as usize];
    let at = (0..64).find_map(|number| {
        device.read(number * SEGMENT_BYTES, &mut segment).unwrap();
        let within = segment.windows(wanted.len()).position(|window| window == wanted)?;
        Some(number * SEGMENT_BYTES + within as u64)
    });
    at.unwrap()
}

#[test]
fn rot_is_found_in_what_is_brought() {
    let memory = Arc::new(MemoryDevice::new(64 * SEGMENT_BYTES));
    let device = Arc::clone(&memory) as Arc<dyn Device>;
    let engine = filled(&device);
    let at = place_of(&device, &value(9, SMALL));
    let block = at / 4096 * 4096;
    let mut bytes = vec![0; 4096];
    device.read(block, &mut bytes).unwrap();
    bytes[(at % 4096) as usize] ^= 1;
    device.write(block, &bytes).unwrap();
    let reads = Reads::of(&engine, (0..20).map(small)).bring();
    for (_, range, found) in reads.found {
        match range.start / (2 * SMALL) {
            9 => assert!(matches!(found, Err(Error::Corrupt { .. })), "{found:?}"),
            number => assert_eq!(found.unwrap(), value(number, SMALL)),
        }
    }
}

#[test]
fn what_is_written_and_cleaned_after_it_was_brought_is_read_as_it_is_then() {
    for (_folder, device) in devices() {
        let engine = filled(&device);
        let mut reads = Reads::of(&engine, (0..100).map(small));
        reads.then = Some(Box::new(|| {
            for number in 0..PARTS {
                let change = Change::Write { offset: number * 2 * SMALL, data: value(number + 1_000, SMALL) };
                engine.submit(Transaction::new().change(&object("small"), change)).wait().unwrap();
            }
            // What was brought stood in segments that are free now, and are written again.
            engine.checkpoint().unwrap();
            for round in 0..60 {
                let change = Change::Write { offset: 0, data: value(round, LARGE) };
                engine.submit(Transaction::new().change(&object("other"), change)).wait().unwrap();
            }
            engine.checkpoint().unwrap();
        }));
        let reads = reads.bring();
        for (_, range, found) in reads.found {
            assert_eq!(found.unwrap(), value(range.start / (2 * SMALL) + 1_000, SMALL));
        }
    }
}

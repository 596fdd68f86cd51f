//! Measures what shared data and snapshots cost: `cargo run --release -p esker-engine --example sharing --`
//!
//! - `clones FILE SIZE SECONDS`: clones are made, written to and removed beside the cleaner in a store of SIZE MiB that
//!   is 85 % full; then all are removed, everything is read back, and what is free is compared with what was.
//! - `cost FILE CLONES…`: what cleaning one segment takes while each object has so many clones.
//! - `held FILE SECONDS`: a snapshot is held while everything is overwritten; what only it keeps, against time.

#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on ends")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_device::{Device, FileDevice, OpenMode};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, Collection, Durability, Error, ObjectId, ObjectStore, Transaction};

/// An object has so many pieces of so many bytes.
const PIECES: u64 = 64;
const PIECE_BYTES: u64 = 4 << 10;
/// So many clones are there at once in `clones`.
const CLONES: usize = 32;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rest = arguments.get(2..).unwrap_or_default();
    let numbers = || rest.iter().map(|number| number.parse::<u64>().expect("a number"));
    match arguments.first().map(String::as_str) {
        Some("clones") => {
            let [mib, seconds] = numbers().collect::<Vec<_>>()[..] else { panic!("clones FILE SIZE SECONDS") };
            clones(&Store::make(&arguments[1], mib << 20), seconds);
        }
        Some("cost") if !rest.is_empty() => {
            println!("| clones of each object | first | segments cleaned | median | worst |\n|---|---|---|---|---|");
            numbers().for_each(|count| cost(&Store::make(&arguments[1], 1 << 30), count));
        }
        Some("held") if !rest.is_empty() => {
            numbers().for_each(|seconds| held(&Store::make(&arguments[1], 1 << 30), seconds))
        }
        _ => panic!("clones FILE SIZE SECONDS | cost FILE CLONES… | held FILE SECONDS"),
    }
}

struct Store {
    engine: Engine,
    bytes: u64,
    path: String,
}

impl Drop for Store {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).unwrap();
    }
}

impl Store {
    fn make(path: &str, bytes: u64) -> Self {
        let device = FileDevice::open(path, OpenMode::Create { len: bytes }).unwrap();
        let layout = FormatOptions { segment_bytes: 2 << 20, ..FormatOptions::new([9; 16]) };
        Engine::format(&device, &layout).unwrap();
        let options = Options { cache_bytes: 64 << 20, recent_bytes: 16 << 20, ..Options::default() };
        let engine = Engine::open(Arc::new(device) as Arc<dyn Device>, options).unwrap();
        engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
        Self { engine, bytes, path: path.to_owned() }
    }

    /// Objects that fill so many hundredths of the store.
    fn objects(&self, percent: u64) -> u64 {
        self.bytes / 100 * percent / (PIECES * PIECE_BYTES)
    }

    fn submit(&self, id: &ObjectId, change: Change) -> Result<(), Error> {
        self.engine.submit(Transaction::with(Durability::Applied).change(id, change)).wait().map(drop)
    }

    fn write(&self, id: &ObjectId, piece: u64, mark: u64) -> Result<(), Error> {
        self.submit(id, Change::Write { offset: piece * PIECE_BYTES, data: content(piece, mark) })
    }

    fn fill(&self, objects: u64) {
        for number in 0..objects {
            (0..PIECES).for_each(|piece| self.write(&object(number), piece, number).unwrap());
        }
    }

    /// Segments that are used beside what lives.
    fn slack(&self) -> i64 {
        let stats = self.engine.stats();
        let lives = (stats.live_bytes + stats.checkpoint_bytes).div_ceil(stats.segment_bytes);
        (stats.segments - stats.free_segments) as i64 - lives as i64
    }
}

fn object(number: u64) -> ObjectId {
    ObjectId::new(Collection::from("c"), format!("object {number}"))
}

fn clone_of(number: u64) -> ObjectId {
    ObjectId::new(Collection::from("c"), format!("clone {number}"))
}

fn content(piece: u64, mark: u64) -> Bytes {
    let mut bytes = vec![piece as u8; PIECE_BYTES as usize];
    bytes[..8].copy_from_slice(&mark.to_le_bytes());
    bytes.into()
}

fn clones(store: &Store, seconds: u64) {
    let objects = store.objects(85);
    store.fill(objects);
    store.engine.checkpoint().unwrap();
    let (before, mut random) = (store.slack(), fastrand::Rng::with_seed(1));
    let mut marks: Vec<Vec<u64>> = (0..objects).map(|number| vec![number; PIECES as usize]).collect();
    // The clones that are there, and what each holds.
    let mut there: VecDeque<(u64, Vec<u64>)> = VecDeque::new();
    let (mut made, mut written, mut refused, mut mark) = (0u64, 0u64, 0u64, objects);
    println!("| second | clones made | pieces written | refused | free segments | used beside what lives | cleaned |");
    println!("|---|---|---|---|---|---|---|");
    let (began, mut told) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(seconds) {
        let source = random.u64(..objects);
        match store.submit(&object(source), Change::CloneTo { to: clone_of(made) }) {
            Ok(()) => there.push_back((made, marks[source as usize].clone())),
            Err(Error::Full { .. }) => refused += 1,
            Err(other) => panic!("clone {made}: {other}"),
        }
        made += 1;
        for _ in 0..16 {
            // The source, another object, or a clone.
            let piece = random.u64(..PIECES);
            let (id, held) = match (random.u8(..3), there.len()) {
                (0, 1..) => {
                    let at = random.usize(..there.len());
                    (clone_of(there[at].0), &mut there[at].1)
                }
                (1, _) => (object(source), &mut marks[source as usize]),
                _ => {
                    let other = random.u64(..objects);
                    (object(other), &mut marks[other as usize])
                }
            };
            mark += 1;
            match store.write(&id, piece, mark) {
                Ok(()) => (held[piece as usize], written) = (mark, written + 1),
                Err(Error::Full { .. }) => refused += 1,
                Err(other) => panic!("{id}: {other}"),
            }
        }
        while there.len() > CLONES {
            let (oldest, held) = there.pop_front().unwrap();
            verify(store, &clone_of(oldest), &held);
            store.submit(&clone_of(oldest), Change::Remove).unwrap();
        }
        if began.elapsed().as_secs() >= told {
            let stats = store.engine.stats();
            println!(
                "| {} | {made} | {written} | {refused} | {} | {} | {} |",
                began.elapsed().as_secs(),
                stats.free_segments,
                store.slack(),
                stats.cleaned_segments
            );
            told += seconds.div_ceil(20);
        }
    }
    for (number, held) in there {
        verify(store, &clone_of(number), &held);
        store.submit(&clone_of(number), Change::Remove).unwrap();
    }
    (0..objects).for_each(|number| verify(store, &object(number), &marks[number as usize]));
    store.engine.compact(&mut |_, _| true).unwrap();
    println!(
        "used beside what lives: {before} segments before, {} when all clones are gone and all is clean",
        store.slack()
    );
}

fn verify(store: &Store, id: &ObjectId, marks: &[u64]) {
    let found = store.engine.read(id, 0..PIECES * PIECE_BYTES).wait().unwrap();
    for (piece, mark) in (0u64..).zip(marks) {
        let at = (piece * PIECE_BYTES) as usize;
        assert!(found[at..at + PIECE_BYTES as usize] == content(piece, *mark), "{id}, piece {piece}");
    }
}

fn cost(store: &Store, count: u64) {
    let objects = store.objects(20);
    // Each segment has pieces of the 16 objects that will have clones, about one in fifty.
    for piece in 0..PIECES {
        (0..objects).for_each(|number| store.write(&object(number), piece, number).unwrap());
    }
    // A clone has the whole index of its source and one piece of its own.
    for number in 0..count {
        for source in 0..objects.min(16) {
            let id = clone_of(number * 16 + source);
            store.submit(&object(source), Change::CloneTo { to: id.clone() }).unwrap();
            store.write(&id, number % PIECES, u64::MAX).unwrap();
        }
    }
    // Half of every segment goes: of objects that share nothing.
    for number in 16..objects {
        (0..PIECES).step_by(2).for_each(|piece| store.write(&object(number), piece + number % 2, 0).unwrap());
    }
    store.engine.checkpoint().unwrap();
    // The first finds out which objects share.
    let began = Instant::now();
    store.engine.clean().unwrap();
    let first = began.elapsed();
    let mut times = Vec::new();
    while times.len() < 40 {
        let began = Instant::now();
        if !store.engine.clean().unwrap() {
            break;
        }
        times.push(began.elapsed());
    }
    times.sort_unstable();
    let (Some(median), Some(worst)) = (times.get(times.len() / 2), times.last()) else {
        println!("| {count} | {first:.1?} | none | | |");
        return;
    };
    println!("| {count} | {first:.1?} | {} | {median:.1?} | {worst:.1?} |", times.len());
}

fn held(store: &Store, seconds: u64) {
    let objects = store.objects(30);
    store.fill(objects);
    let snapshot = store.engine.snapshot().unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    println!("| second | overwritten, times | kept by the snapshot alone, MB | free segments | refused |");
    println!("|---|---|---|---|---|");
    let (began, mut told, mut written, mut refused) = (Instant::now(), 0, 0u64, 0u64);
    while began.elapsed() < Duration::from_secs(seconds) {
        match store.write(&object(random.u64(..objects)), random.u64(..PIECES), written) {
            Ok(()) => written += 1,
            Err(Error::Full { .. }) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        // An hour of it is to leave the device to others.
        if written.is_multiple_of(256) {
            std::thread::sleep(Duration::from_millis(50));
        }
        if began.elapsed().as_secs() >= told {
            let stats = store.engine.stats();
            println!(
                "| {} | {:.1} | {} | {} | {refused} |",
                began.elapsed().as_secs(),
                written as f64 / (objects * PIECES) as f64,
                stats.pinned_bytes / 1_000_000,
                stats.free_segments
            );
            told += seconds.div_ceil(20);
        }
    }
    drop(snapshot);
    store.engine.compact(&mut |_, _| true).unwrap();
    println!("after its end: {} segments used beside what lives", store.slack());
}

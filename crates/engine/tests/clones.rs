//! Clones beside the cleaner: what is shared is found where it stands, and goes when the last that shares it goes.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

#[path = "support/hooked.rs"]
mod hooked;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options, check};
use esker_store::{Change, Collection, Durability, Error, ObjectId, ObjectStore, Transaction};
use hooked::{Call, Hooked};

const SEGMENT_BYTES: u64 = 64 << 10;
const PIECE: u64 = 1_000;

fn device(bytes: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(bytes));
    Engine::format(&*device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [5; 16] }).unwrap();
    device
}

fn open(device: &Arc<MemoryDevice>) -> Engine {
    let options = Options { recent_bytes: 0, cache_bytes: 0, ..Options::default() };
    let engine = Engine::open(Arc::clone(device) as Arc<dyn Device>, options).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    engine
}

fn object(name: &str) -> ObjectId {
    ObjectId::new(Collection::from("c"), name.to_owned())
}

fn submit(engine: &Engine, id: &ObjectId, change: Change) -> Result<(), Error> {
    engine.submit(Transaction::with(Durability::Applied).change(id, change)).wait().map(drop)
}

fn write(engine: &Engine, id: &ObjectId, piece: u64, fill: u8) -> Result<(), Error> {
    let data: Bytes = vec![fill; PIECE as usize].into();
    submit(engine, id, Change::Write { offset: piece * PIECE, data })
}

fn shows(engine: &Engine, id: &ObjectId, pieces: &[u8]) {
    let found = engine.read(id, 0..pieces.len() as u64 * PIECE).wait().unwrap();
    for (number, fill) in pieces.iter().enumerate() {
        let piece = &found[number * PIECE as usize..][..PIECE as usize];
        assert!(piece.iter().all(|byte| byte == fill), "{id}, piece {number}: {} instead of {fill}", piece[0]);
    }
}

/// Ends what runs beside the test, however that ends.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// All of it is free but what lives, in sealed segments, and what has been begun.
fn space_returns(engine: &Engine) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        engine.compact(&mut |_, _| true).unwrap();
        let stats = engine.stats();
        let used = stats.segments - stats.free_segments;
        let needed = (stats.live_bytes + stats.checkpoint_bytes) * 6 / 5 / SEGMENT_BYTES + 12;
        if used <= needed {
            return;
        }
        assert!(Instant::now() < until, "{used} segments are used, {needed} would do: {stats:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn clones_that_are_made_while_their_source_is_cleaned_leave_nothing_behind() {
    for seed in 0..3 {
        let device = device(16 << 20);
        let engine = open(&device);
        let (ended, mut rng) = (AtomicBool::new(false), fastrand::Rng::with_seed(seed));
        const PIECES: u64 = 1_000;
        let mut sources: Vec<(ObjectId, Vec<u8>)> = Vec::new();
        for number in 0..5 {
            let id = object(&format!("source{number}"));
            (0..PIECES).for_each(|piece| write(&engine, &id, piece, 1).unwrap());
            sources.push((id, vec![1; PIECES as usize]));
        }
        std::thread::scope(|scope| {
            let _end = End(&ended);
            // What is overwritten all the time, so that the cleaner has something to do.
            scope.spawn(|| {
                let mut rng = fastrand::Rng::with_seed(seed + 100);
                let id = object("churn");
                while !ended.load(Ordering::Relaxed) {
                    if let Err(Error::Full { .. }) = write(&engine, &id, rng.u64(..2_000), rng.u8(..)) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
            let end = Instant::now() + Duration::from_millis(1_500);
            let mut clones: Vec<(ObjectId, Vec<u8>)> = Vec::new();
            let mut made = 0;
            while Instant::now() < end {
                let source = rng.usize(..sources.len());
                if clones.len() >= 20 || !clones.is_empty() && rng.u8(..4) == 0 {
                    let (gone, pieces) = clones.swap_remove(rng.usize(..clones.len()));
                    shows(&engine, &gone, &pieces);
                    submit(&engine, &gone, Change::Remove).unwrap();
                } else {
                    let to = object(&format!("clone{made}"));
                    made += 1;
                    let change = Change::CloneTo { to: to.clone() };
                    match submit(&engine, &sources[source].0, change) {
                        Ok(()) => clones.push((to, sources[source].1.clone())),
                        Err(Error::Full { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                for _ in 0..5 {
                    let (piece, fill) = (rng.u64(..PIECES), rng.u8(..));
                    if write(&engine, &sources[source].0, piece, fill).is_ok() {
                        sources[source].1[piece as usize] = fill;
                    }
                }
            }
            for (id, pieces) in &clones {
                shows(&engine, id, pieces);
                submit(&engine, id, Change::Remove).unwrap();
            }
            assert!(made > 50, "{made} clones");
        });
        sources.iter().for_each(|(id, pieces)| shows(&engine, id, pieces));
        assert!(engine.stats().cleaned_segments > 20);
        space_returns(&engine);
        sources.iter().for_each(|(id, pieces)| shows(&engine, id, pieces));
        engine.close().unwrap();
        drop(engine);
        let report = check(Arc::clone(&device) as Arc<dyn Device>, true, &mut |_, _| {}).unwrap();
        assert_eq!(report.damaged, 0, "{report:?}");
    }
}

#[test]
fn what_was_shared_before_the_store_was_opened_is_cleaned_after_it() {
    let device = device(8 << 20);
    let engine = open(&device);
    let pieces: Vec<u8> = (0..1_000).map(|piece| piece as u8).collect();
    let source = object("source");
    for (piece, fill) in pieces.iter().enumerate() {
        write(&engine, &source, piece as u64, *fill).unwrap();
    }
    let range = Change::CloneRange { from_offset: 100 * PIECE, len: 500 * PIECE, to: object("shifted"), to_offset: 0 };
    for change in [Change::CloneTo { to: object("whole") }, Change::CloneTo { to: object("second") }, range] {
        submit(&engine, &source, change).unwrap();
    }
    submit(&engine, &source, Change::Remove).unwrap();
    engine.close().unwrap();
    drop(engine);

    let engine = open(&device);
    // All that they stand in is emptied of the rest, and moved.
    for round in 0..40 {
        (0..2_000).for_each(|piece| write(&engine, &object("churn"), piece, round).unwrap());
    }
    submit(&engine, &object("churn"), Change::Remove).unwrap();
    space_returns(&engine);
    for name in ["whole", "second"] {
        shows(&engine, &object(name), &pieces);
    }
    shows(&engine, &object("shifted"), &pieces[100..600]);
    for name in ["whole", "shifted"] {
        submit(&engine, &object(name), Change::Remove).unwrap();
    }
    shows(&engine, &object("second"), &pieces);
    submit(&engine, &object("second"), Change::Remove).unwrap();
    space_returns(&engine);
    assert!(engine.stats().live_bytes < 1_000);
    engine.close().unwrap();
}

/// Segments that a clone of a quarter of a segment's content takes, if that segment is cleaned, and the clone is made
/// before that or while copies are written.
fn segments_for_a_clone(meanwhile: bool) -> u64 {
    let device = MemoryDevice::new(8 << 20);
    Engine::format(&device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [5; 16] }).unwrap();
    let opened: Arc<OnceLock<Arc<Engine>>> = Arc::default();
    let armed = Arc::new(AtomicBool::new(false));
    let clone = |engine: &Engine| submit(engine, &object("source"), Change::CloneTo { to: object("clone") }).unwrap();
    let before = {
        let (opened, armed) = (Arc::clone(&opened), Arc::clone(&armed));
        move |call| {
            if let Call::Write(_) | Call::Other | Call::Sync = call
                && armed.swap(false, Ordering::SeqCst)
            {
                clone(opened.get().unwrap());
            }
            Ok(())
        }
    };
    let hooked = Arc::new(Hooked { device, before }) as Arc<dyn Device>;
    let options = Options { recent_bytes: 0, cache_bytes: 0, commit_thread: false, ..Options::default() };
    let engine = opened.get_or_init(|| Arc::new(Engine::open(hooked, options).unwrap()));
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    let pieces = SEGMENT_BYTES / (PIECE + 100) - 4;
    for piece in 0..pieces {
        let id = if piece % 4 == 0 { object("source") } else { object("rest") };
        write(engine, &id, piece, 7).unwrap();
    }
    // What follows is in other segments, and goes.
    for piece in 0..4 * pieces {
        write(engine, &object("rest"), piece, 0).unwrap();
    }
    submit(engine, &object("rest"), Change::Remove).unwrap();
    engine.checkpoint().unwrap();
    if meanwhile {
        armed.store(true, Ordering::SeqCst);
        while armed.load(Ordering::SeqCst) {
            assert!(engine.clean().unwrap(), "a clone was made while copies were written");
        }
    } else {
        clone(engine);
    }
    submit(engine, &object("source"), Change::Remove).unwrap();
    for _ in 0..3 {
        engine.compact(&mut |_, _| true).unwrap();
    }
    for piece in (0..pieces).step_by(4) {
        let found = engine.read(&object("clone"), piece * PIECE..(piece + 1) * PIECE).wait().unwrap();
        assert!(found.iter().all(|byte| *byte == 7), "piece {piece}");
    }
    let stats = engine.stats();
    stats.segments - stats.free_segments
}

#[test]
fn a_clone_that_is_made_while_copies_are_written_does_not_keep_their_segment() {
    assert_eq!(segments_for_a_clone(true), segments_for_a_clone(false));
}

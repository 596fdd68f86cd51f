//! A writer shows a value before it has copied it into the log: a thread that reads it then waits until it is whole.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, Condition, Durability, Error, Guard, ObjectId, ObjectStore, Transaction};

const SEGMENT_BYTES: u64 = 4 << 20;
/// From small values to those that are handed out without a copy.
const LENGTHS: [usize; 4] = [24, 1_000, 16 << 10, 200_000];
const WRITERS: u64 = 2;

fn object() -> ObjectId {
    ObjectId::new("c".into(), "o")
}

/// Of a writer's version: the number in every word, so that a part of another version is seen.
fn value(number: u64, len: usize) -> Bytes {
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

/// The number of a value that is whole.
fn number_of(found: &[u8]) -> u64 {
    let number = u64::from_le_bytes(*found.first_chunk().unwrap());
    assert!(number > 0, "{} bytes of zeros", found.len());
    assert!(LENGTHS.contains(&found.len()), "{} bytes", found.len());
    assert!(value(number, found.len()) == found, "of {number} and others, {} bytes", found.len());
    number
}

fn opened(device: &Arc<dyn Device>) -> Engine {
    // Buffers are used again and again: what is not written yet is what another segment held.
    let options = Options { recent_bytes: 2 * SEGMENT_BYTES, cache_bytes: 0, ..Options::default() };
    Engine::open(Arc::clone(device), options).unwrap()
}

fn set(change: Change, durability: Durability) -> Transaction {
    Transaction { durability, ..Transaction::new().change(&object(), change) }
}

/// Values in slots, under keys and at offsets, each written again and again by several threads, in all lengths.
fn changes(number: u64) -> [Change; 3] {
    // Each place has all lengths.
    let value = value(number, LENGTHS[number as usize / 2 % LENGTHS.len()]);
    [
        Change::SlotSet { index: number % 2, value: value.clone() },
        Change::OmapSet { key: Bytes::from(vec![b'k', (number % 2) as u8]), value },
        // One length: a read of bytes does not tell where one write ends.
        Change::Write { offset: (number % 2) * 16_384, data: self::value(number, 16_384) },
    ]
}

/// `written`: places of the bytes at which something was found before.
fn read_all(engine: &Engine, written: &mut [bool; 2]) {
    for at in 0..2u64 {
        if let Some(found) = engine.slot_get(&object(), at).wait().unwrap() {
            assert_eq!(number_of(&found) % 2, at);
        }
        if let Some(found) = engine.omap_get(&object(), &[b'k', at as u8]).wait().unwrap() {
            assert_eq!(number_of(&found) % 2, at);
        }
        let found = engine.read(&object(), at * 16_384..(at + 1) * 16_384).wait().unwrap();
        if found.len() == 16_384 && (written[at as usize] || found.iter().any(|byte| *byte != 0)) {
            written[at as usize] = true;
            assert_eq!(number_of(&found) % 2, at);
        }
    }
}

#[test]
fn what_is_read_while_it_is_written_is_whole() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    Engine::format(&*device, &FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [6; 16] }).unwrap();
    let engine = opened(&device);
    engine.submit(Transaction::new().create_collection(&"c".into())).wait().unwrap();
    engine.submit(set(Change::Touch, Durability::Durable)).wait().unwrap();
    let (next, ends) = (AtomicU64::new(1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let write = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number > 2_000 {
                    return;
                }
                let durability = if number.is_multiple_of(64) { Durability::Durable } else { Durability::Applied };
                for change in changes(number) {
                    engine.submit(set(change, durability)).wait().unwrap();
                }
            }
        };
        let writers: Vec<_> = (0..WRITERS).map(|_| scope.spawn(write)).collect();
        for _ in 0..2 {
            scope.spawn(|| {
                let mut written = [false; 2];
                while !ends.load(Ordering::Relaxed) {
                    read_all(&engine, &mut written);
                }
            });
        }
        // A guard compares the value where it stands.
        scope.spawn(|| {
            let mut held = 0;
            for index in (0..2).cycle() {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                let Some(found) = engine.slot_get(&object(), index).wait().unwrap() else { continue };
                let condition = Condition::SlotEquals { index, value: found };
                let guard = Guard { object: object(), condition };
                let mark = Change::XattrSet { name: "held".into(), value: "".into() };
                let mut txn = set(mark, Durability::Applied);
                txn.guards.push(guard);
                match engine.submit(txn).wait() {
                    Ok(_) => held += 1,
                    Err(Error::GuardFailed { .. }) => {}
                    Err(error) => panic!("{held} held, then {error}"),
                }
            }
            assert!(held > 0, "no guard ever held");
        });
        // Whatever becomes of the writers, the others end.
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        ends.store(true, Ordering::Relaxed);
        written.into_iter().for_each(|written| written.unwrap());
    });
    read_all(&engine, &mut [true; 2]);
    drop(engine);
    read_all(&opened(&device), &mut [true; 2]);
}

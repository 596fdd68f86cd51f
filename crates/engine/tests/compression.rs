//! Compression by hint: what is kept, what a small read costs, that what moves stays as it stands, and that damage is
//! told.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::{CompressOptions, DumpItem, DumpOptions, Engine, FormatOptions, Options, check, dump};
use esker_store::{Change, Collection, Compression, Error, ObjectId, ObjectStore, Transaction};

const CODECS: [Compression; 2] = [Compression::Lz4, Compression::Zstd];

fn device(bytes: u64, segment_bytes: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(bytes));
    Engine::format(&*device, &FormatOptions { segment_bytes, uuid: [6; 16] }).unwrap();
    device
}

/// Nothing stays in memory but what the cache holds.
fn open(device: &Arc<MemoryDevice>, cache_bytes: u64) -> Engine {
    let options = Options { recent_bytes: 0, cache_bytes, ..Options::default() };
    let engine = Engine::open(Arc::clone(device) as Arc<dyn Device>, options).unwrap();
    engine.submit(Transaction::new().create_collection(&Collection::from("c"))).wait().unwrap();
    engine
}

fn object(name: &'static str) -> ObjectId {
    ObjectId::new(Collection::from("c"), name)
}

/// Lines as a service would log them: about a third of their length once compressed.
fn lines(rng: &mut fastrand::Rng, len: usize) -> Bytes {
    let mut text = String::with_capacity(len + 100);
    while text.len() < len {
        let (id, ms, ok) = (rng.u64(..), rng.u32(..5_000), rng.bool());
        text += &format!("{{\"request\":\"{id:016x}\",\"elapsed_ms\":{ms},\"ok\":{ok},\"path\":\"/objects/read\"}}\n");
    }
    text.truncate(len);
    text.into()
}

fn noise(rng: &mut fastrand::Rng, len: usize) -> Bytes {
    std::iter::repeat_with(|| rng.u8(..)).take(len).collect()
}

/// Writes enough of something else for what was written before to leave memory.
fn push_out(engine: &Engine, segment_bytes: u64) {
    for at in 0..4 {
        let data = Bytes::from(vec![at as u8; segment_bytes as usize / 2]);
        engine.submit(Transaction::new().change(&object("filler"), Change::Write { offset: 0, data })).wait().unwrap();
    }
}

/// Stored payloads of all operations of a kind that hold compressed values, as (kind, object, payload length).
fn stored(device: &MemoryDevice) -> Vec<(u64, u32)> {
    let mut found = Vec::new();
    let all = DumpOptions { records: true, operations: true, ..DumpOptions::default() };
    dump(device, all, &mut |item| {
        if let DumpItem::Operation(header, ..) = item
            && header.flags & 4 != 0
        {
            found.push((header.object, header.payload_len));
        }
    })
    .unwrap();
    found
}

#[test]
fn values_come_back_whatever_the_hint_and_from_wherever_they_are() {
    for codec in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let device = device(64 << 20, 4 << 20);
        let mut rng = fastrand::Rng::with_seed(2);
        let lens = [0, 1, 511, 512, 5_000, 65_535, 65_536, 65_537, 300_000, 1 << 20];
        let values: Vec<Bytes> = lens.iter().map(|len| lines(&mut rng, *len)).collect();
        let engine = open(&device, 8 << 20);
        for (slot, value) in values.iter().enumerate() {
            let txn = Transaction::new()
                .compress(codec)
                .change(&object("o"), Change::SlotSet { index: slot as u64, value: value.clone() })
                .change(&object("o"), Change::OmapSet { key: vec![slot as u8].into(), value: value.clone() })
                .change(&object("o"), Change::Write { offset: slot as u64 * (2 << 20), data: value.clone() });
            engine.submit(txn).wait().unwrap();
        }
        let verify = |engine: &Engine| {
            for (slot, value) in values.iter().enumerate() {
                let found = engine.slot_get(&object("o"), slot as u64).wait().unwrap();
                assert!(found.as_ref() == Some(value), "{codec}: slot of {} bytes", value.len());
                let found = engine.omap_get(&object("o"), &[slot as u8]).wait().unwrap();
                assert!(found.as_ref() == Some(value), "{codec}: key of {} bytes", value.len());
                let start = slot as u64 * (2 << 20);
                let found = engine.read(&object("o"), start..start + value.len() as u64).wait().unwrap();
                assert!(found == value, "{codec}: write of {} bytes", value.len());
            }
        };
        verify(&engine);
        let stats = engine.stats();
        // From 512 bytes on, in three spaces.
        assert_eq!(stats.compressed_kept, if codec == Compression::None { 0 } else { 21 }, "{codec}");
        push_out(&engine, 4 << 20);
        verify(&engine);
        verify(&engine);
        engine.checkpoint().unwrap();
        while engine.clean().unwrap() {}
        verify(&engine);
        engine.close().unwrap();
        drop(engine);
        assert_eq!(check(Arc::clone(&device) as Arc<dyn Device>, true, &mut |_, _| {}).unwrap().damage, vec![]);
        let engine = open(&device, 0);
        verify(&engine);
    }
}

#[test]
fn what_does_not_get_small_enough_is_stored_as_it_is() {
    for codec in CODECS {
        let device = device(16 << 20, 1 << 20);
        let engine = open(&device, 0);
        let mut rng = fastrand::Rng::with_seed(4);
        let value = noise(&mut rng, 100_000);
        let set = Change::SlotSet { index: 1, value: value.clone() };
        engine.submit(Transaction::new().compress(codec).change(&object("o"), set)).wait().unwrap();
        let stats = engine.stats();
        assert_eq!((stats.compressed_kept, stats.compressed_refused), (0, 1));
        assert!(stats.record_bytes >= 100_000);
        assert_eq!(engine.slot_get(&object("o"), 1).wait().unwrap(), Some(value));
        engine.close().unwrap();
        assert_eq!(stored(&device), vec![]);
    }
}

#[test]
fn guards_compare_what_was_written_not_what_is_stored() {
    for codec in CODECS {
        let device = device(16 << 20, 1 << 20);
        let engine = open(&device, 0);
        let value = lines(&mut fastrand::Rng::with_seed(5), 40_000);
        let set = Change::SlotSet { index: 1, value: value.clone() };
        engine.submit(Transaction::new().compress(codec).change(&object("o"), set)).wait().unwrap();
        for _ in 0..2 {
            let is = |value: Bytes| {
                let condition = esker_store::Condition::SlotEquals { index: 1, value };
                engine.submit(Transaction::new().guard(&object("o"), condition)).wait()
            };
            assert!(is(value.clone()).is_ok());
            assert!(matches!(is(value.slice(1..)), Err(Error::GuardFailed { index: 0 })));
            push_out(&engine, 1 << 20);
        }
    }
}

#[test]
fn a_small_read_of_a_large_value_reads_and_decompresses_a_little() {
    for codec in CODECS {
        let device = device(256 << 20, 32 << 20);
        let engine = open(&device, 1 << 20);
        let mut rng = fastrand::Rng::with_seed(6);
        let data = lines(&mut rng, 16 << 20);
        let write = Change::Write { offset: 0, data: data.clone() };
        engine.submit(Transaction::new().compress(codec).change(&object("o"), write)).wait().unwrap();
        push_out(&engine, 30 << 20);
        let mut reads = 0;
        for seed in 0..50 {
            let start = rng.u64(..(16 << 20) - 4096);
            let before = engine.stats();
            let found = engine.read(&object("o"), start..start + 4096).wait().unwrap();
            assert!(found == data[start as usize..start as usize + 4096], "{codec}: read {seed} at {start}");
            let after = engine.stats();
            let read = after.device_read_bytes - before.device_read_bytes;
            let unpacked = after.unpacked_bytes - before.unpacked_bytes;
            // Two units if the read lies across their border; the first read brings checksums and table as well.
            let head = if seed == 0 { 32 << 10 } else { 0 };
            assert!(read <= 2 * (64 << 10) + head, "{codec}: {read} bytes read from the device");
            assert!(unpacked <= 2 * (64 << 10), "{codec}: {unpacked} bytes decompressed");
            reads += after.device_reads - before.device_reads;
        }
        assert!(reads <= 50 + 2, "{codec}: {reads} device reads for 50");
        // The rest of a unit is in the cache.
        let start = 65_536 * 17;
        engine.read(&object("o"), start..start + 100).wait().unwrap();
        let before = engine.stats();
        engine.read(&object("o"), start + 100..start + 60_000).wait().unwrap();
        let after = engine.stats();
        assert_eq!(after.device_reads, before.device_reads);
        assert_eq!(after.unpacked_bytes, before.unpacked_bytes);
    }
}

#[test]
fn the_cleaner_keeps_stored_bytes_equal() {
    for codec in CODECS {
        let device = device(8 << 20, 256 << 10);
        let engine = open(&device, 0);
        let mut rng = fastrand::Rng::with_seed(7);
        let values: Vec<Bytes> = (0..40).map(|_| lines(&mut rng, 20_000)).collect();
        for (slot, value) in values.iter().enumerate() {
            // Every other one is overwritten, so that there is something to clean.
            for index in [slot as u64, 1_000 + slot as u64 % 2] {
                let txn = Transaction::new()
                    .compress(codec)
                    .change(&object("o"), Change::SlotSet { index, value: value.clone() });
                engine.submit(txn).wait().unwrap();
            }
            let write = Change::Write { offset: slot as u64 * 20_000, data: value.clone() };
            engine.submit(Transaction::new().compress(codec).change(&object("b"), write)).wait().unwrap();
        }
        let unpacked = engine.stats().unpacked_bytes;
        engine.checkpoint().unwrap();
        engine.compact(&mut |_, _| true).unwrap();
        let stats = engine.stats();
        assert!(stats.cleaned_segments > 0, "{stats:?}");
        assert_eq!((stats.unpacked_bytes, stats.compressed_kept), (unpacked, 120), "nothing was made anew");
        for (slot, value) in values.iter().enumerate() {
            assert!(engine.slot_get(&object("o"), slot as u64).wait().unwrap().as_ref() == Some(value), "{slot}");
            let start = slot as u64 * 20_000;
            assert!(engine.read(&object("b"), start..start + 20_000).wait().unwrap() == value, "{slot}");
        }
        engine.close().unwrap();
        drop(engine);
        assert_eq!(check(Arc::clone(&device) as Arc<dyn Device>, true, &mut |_, _| {}).unwrap().damage, vec![]);
        let lens: std::collections::HashSet<u32> = stored(&device).iter().map(|(_, len)| *len).collect();
        assert!(lens.iter().all(|len| *len < 15_000), "moved as they stood: {lens:?}");
    }
}

#[test]
fn large_writes_that_are_overwritten_in_places_are_cleaned_into_no_more_than_lives() {
    for codec in CODECS {
        let device = device(8 << 20, 512 << 10);
        let engine = open(&device, 1 << 20);
        let mut rng = fastrand::Rng::with_seed(8);
        let len = 512 << 10;
        let mut expected = vec![0; len];
        // Several times the device, in pieces of all sizes, over one object and a clone of part of it.
        for round in 0..3_000 {
            let size = match round {
                0 => len,
                _ if round % 8 == 0 => rng.usize(100_000..500_000),
                _ => rng.usize(1..9_000),
            };
            let at = rng.usize(..=len - size);
            let data = lines(&mut rng, size);
            expected[at..at + size].copy_from_slice(&data);
            let write = Change::Write { offset: at as u64, data };
            let mut txn = Transaction::new().compress(codec).change(&object("o"), write);
            if round % 100 == 50 {
                let to = object("copy");
                let (from_offset, to_offset) = (rng.u64(..1_000), rng.u64(..1_000));
                txn = txn.change(&object("o"), Change::CloneRange { to, from_offset, len: 200_000, to_offset });
            }
            engine.submit(txn).wait().unwrap();
        }
        let copy = engine.read(&object("copy"), 0..400_000).wait().unwrap();
        engine.compact(&mut |_, _| true).unwrap();
        let stats = engine.stats();
        assert!(stats.cleaned_segments > 10, "{stats:?}");
        assert!(engine.read(&object("o"), 0..len as u64).wait().unwrap() == expected, "{codec}");
        assert!(engine.read(&object("copy"), 0..400_000).wait().unwrap() == copy, "{codec}");
        engine.close().unwrap();
        drop(engine);
        let report = check(Arc::clone(&device) as Arc<dyn Device>, true, &mut |_, _| {}).unwrap();
        assert_eq!(report.damage, vec![]);
        let engine = open(&device, 0);
        assert!(engine.read(&object("o"), 0..len as u64).wait().unwrap() == expected, "{codec}");
        assert!(engine.read(&object("copy"), 0..400_000).wait().unwrap() == copy, "{codec}");
    }
}

#[test]
fn a_flipped_bit_of_a_compressed_value_is_an_error_with_its_place() {
    for codec in CODECS {
        let device = device(8 << 20, 1 << 20);
        let engine = open(&device, 0);
        let value = lines(&mut fastrand::Rng::with_seed(9), 200_000);
        let txn = Transaction::new()
            .compress(codec)
            .change(&object("o"), Change::SlotSet { index: 1, value: value.clone() })
            .change(&object("b"), Change::Write { offset: 0, data: value.clone() });
        engine.submit(txn).wait().unwrap();
        engine.checkpoint().unwrap();
        engine.close().unwrap();
        drop(engine);
        let image = device.image();
        let places: Vec<(u64, u32)> = {
            let mut found = Vec::new();
            let all = DumpOptions { records: true, operations: true, ..DumpOptions::default() };
            dump(&*device, all, &mut |item| {
                if let DumpItem::Operation(header, offset, _) = item
                    && header.flags & 4 != 0
                {
                    found.push((offset, header.payload_end() as u32));
                }
            })
            .unwrap();
            found
        };
        assert_eq!(places.len(), 2);
        let mut rng = fastrand::Rng::with_seed(10);
        for flip in 0..200 {
            let (offset, len) = places[flip % 2];
            let at = offset as usize + rng.usize(..len as usize);
            let mut bad = image.clone();
            bad[at] ^= 1 << rng.u8(..8);
            let engine = open(&Arc::new(MemoryDevice::from_image(&bad)), 0);
            if flip % 2 == 0 {
                let found = engine.slot_get(&object("o"), 1).wait();
                let told = matches!(found, Err(Error::Corrupt { offset: place, .. }) if place == offset);
                assert!(told, "flip {flip} at {at}: {:?}", found.map(|value| value.map(|value| value.len())));
            } else {
                // Every part of it is right or an error, and one of them is the error.
                let mut errors = 0;
                for start in (0..200_000).step_by(20_000) {
                    match engine.read(&object("b"), start..start + 20_000).wait() {
                        Ok(found) => assert!(found == value[start as usize..start as usize + 20_000], "flip {flip}"),
                        Err(Error::Corrupt { offset: place, .. }) => {
                            assert_eq!(place, offset);
                            errors += 1;
                        }
                        Err(other) => panic!("flip {flip}: {other}"),
                    }
                }
                assert!(errors > 0, "flip {flip} at {at}");
            }
        }
    }
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let device = device(8 << 20, 1 << 20);
    let compress = CompressOptions { unit_bytes: 1_000, ..CompressOptions::default() };
    let options = Options { compress, ..Options::default() };
    let refused = Engine::open(device as Arc<dyn Device>, options).err().unwrap().to_string();
    assert!(refused.contains("unit_bytes is 1000"), "{refused}");
}

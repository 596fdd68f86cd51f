//! Exports and imports: what comes back, and what a damaged stream does.

use std::io::Cursor;
use std::sync::Arc;

use bytes::Bytes;
use esker_memory::MemoryStore;
use esker_store::ObjectStore;
use esker_volume::{Durability, Error, IMPORT_OWNER, Image, Volumes};
use fastrand::Rng;

use crate::hooked::{Call, Hooked};
use crate::support::{SMALL, STRIPED, both, memory, write};

fn all(image: &Image) -> Bytes {
    image.read_bytes(0, image.size()).unwrap()
}

fn exported(image: &Image, from: Option<&str>, to: Option<&str>) -> Vec<u8> {
    let mut stream = Vec::new();
    image.export(from, to, &mut stream, &mut |_, _| true).unwrap();
    stream
}

fn import(volumes: &Volumes, name: &str, stream: &[u8]) -> Result<Image, Error> {
    volumes.import(name, &mut Cursor::new(stream), 0, &mut |_, _| true).map(|(image, _)| image)
}

fn change(image: &Image, rng: &mut Rng) {
    for _ in 0..8 {
        let offset = rng.u64(..image.size());
        let len = rng.u64(..=50_000.min(image.size() - offset));
        if rng.u8(..3) == 0 {
            image.discard(offset, len, Durability::Applied).unwrap().wait().unwrap();
        } else {
            let mut data = vec![0; len as usize];
            rng.fill(&mut data);
            write(image, offset, data);
        }
    }
}

#[test]
fn full_and_incremental_exports_carry_an_image_to_another_store() {
    for (seed, layout) in [(1, SMALL), (2, STRIPED), (3, SMALL)] {
        for (volumes, other) in both().into_iter().zip([memory(), memory()]) {
            let mut rng = Rng::with_seed(seed);
            let image = volumes.create("disk", 900_000, layout, 0).unwrap();
            change(&image, &mut rng);
            image.snapshot_create("a", 0).unwrap();
            let copy = import(&other, "copy", &exported(&image, None, Some("a"))).unwrap();
            assert_eq!(all(&copy), all(&image), "seed {seed}");
            let mut before = String::from("a");
            for name in ["b", "c", "d"] {
                change(&image, &mut rng);
                image.resize(rng.u64(400_000..1_200_000), true).unwrap();
                image.snapshot_create(name, 0).unwrap();
                let stream = exported(&image, Some(&before), Some(name));
                assert!(stream.len() < 800_000, "an increment of {} bytes", stream.len());
                let copy = import(&other, "copy", &stream).unwrap();
                assert_eq!(all(&copy), all(&image), "seed {seed}, {name}");
                // A second time it is refused: the image has gone on.
                assert!(matches!(import(&other, "copy", &stream), Err(Error::Refused { .. })));
                before = name.into();
            }
            let copy = other.image("copy").unwrap();
            for name in ["a", "b", "c", "d"] {
                let (one, two) = (image.snapshot(name).unwrap(), copy.snapshot(name).unwrap());
                assert_eq!(one.size(), two.size());
                assert_eq!(one.read_bytes(0, one.size()).unwrap(), two.read_bytes(0, two.size()).unwrap());
            }
            assert!(matches!(import(&other, "copy", &exported(&image, None, None)), Err(Error::Exists { .. })));
            assert!(matches!(import(&other, "none", &exported(&image, Some("a"), None)), Err(Error::NoImage { .. })));
        }
    }
}

#[test]
fn damaged_exports_are_refused_wherever_they_are_damaged_and_leave_nothing() {
    let volumes = memory();
    let image = volumes.create("disk", 300_000, SMALL, 0).unwrap();
    write(&image, 0, vec![7; 5000]);
    write(&image, 100_000, vec![8; 9000]);
    image.snapshot_create("a", 0).unwrap();
    write(&image, 100_000, vec![9; 100]);
    image.discard(0, 4096, Durability::Applied).unwrap().wait().unwrap();
    image.snapshot_create("b", 0).unwrap();
    let other = memory();
    let full = exported(&image, None, Some("a"));
    import(&other, "copy", &full).unwrap();
    let increment = exported(&image, Some("a"), Some("b"));
    let before = all(&other.image("copy").unwrap());
    for (stream, name) in [(&full, "new"), (&increment, "copy")] {
        let step = stream.len() / 150 + 1;
        for at in (0..100).chain((0..stream.len()).step_by(step)).chain(stream.len() - 30..stream.len()) {
            let mut bad = stream.clone();
            bad[at] ^= 0x41;
            assert!(import(&other, name, &bad).is_err(), "{name}: a flipped bit at {at} of {} passed", bad.len());
            assert!(import(&other, name, &stream[..at]).is_err(), "{name}: cut at {at}");
            assert!(all(&other.image("copy").unwrap()) == before, "{name}: half an import is left, byte {at}");
            assert_eq!(other.list().unwrap(), ["copy"]);
        }
    }
    import(&other, "copy", &increment).unwrap();
    assert_eq!(all(&other.image("copy").unwrap()), all(&image));

    let mut huge = full.clone();
    let head = 56 + 1 + 4;
    huge[head + 16..head + 24].copy_from_slice(&u64::MAX.to_le_bytes());
    let refused = import(&other, "new", &huge).unwrap_err().to_string();
    assert!(refused.contains("CHUNK_BYTES_MAX"), "{refused}");
    let mut newer = full.clone();
    newer[8] = 9;
    assert!(matches!(import(&other, "new", &newer), Err(Error::Newer { found: 9, .. })));
}

#[test]
fn raw_images_go_in_and_out_and_stay_thin() {
    for volumes in both() {
        let mut raw = vec![0u8; 700_000];
        raw[10_000..20_000].fill(3);
        raw[400_000..400_001].fill(4);
        let image = volumes.create("disk", 700_000, STRIPED, 0).unwrap();
        let done = image.import_raw(&mut Cursor::new(&raw), &mut |_, _| true).unwrap();
        assert_eq!(done.data_bytes, 12_288 + 4_096);
        assert!(image.stored_bytes().unwrap() <= 20_480);
        assert_eq!(all(&image), raw);
        image.snapshot_create("s", 0).unwrap();
        write(&image, 0, vec![5; 700_000]);
        let mut out = vec![0u8; 700_000];
        let mut put = |at: u64, data: &Bytes| {
            out[at as usize..at as usize + data.len()].copy_from_slice(data);
            Ok(())
        };
        image.export_raw(Some("s"), &mut put, &mut |_, _| true).unwrap();
        assert!(out == raw);
        let long = image.import_raw(&mut Cursor::new(vec![0u8; 700_001]), &mut |_, _| true);
        assert!(matches!(long, Err(Error::PastEnd { .. })));
    }
}

/// Failure: what followed the end of an export was not looked at, so that a file with two of them, or with a copy's
/// remains,
/// passed for one.
#[test]
fn what_follows_the_end_of_an_export_is_refused_and_nothing_is_imported() {
    let volumes = memory();
    let image = volumes.create("disk", 300_000, SMALL, 0).unwrap();
    write(&image, 0, vec![7; 5_000]);
    image.snapshot_create("a", 0).unwrap();
    write(&image, 90_000, vec![8; 5_000]);
    image.snapshot_create("b", 0).unwrap();
    let other = memory();
    let (full, increment) = (exported(&image, None, Some("a")), exported(&image, Some("a"), Some("b")));
    import(&other, "copy", &full).unwrap();
    let before = all(&other.image("copy").unwrap());
    for (stream, name) in [(&full, "new"), (&increment, "copy")] {
        for more in [&[0][..], &increment] {
            let refused = import(&other, name, &[&stream[..], more].concat()).unwrap_err().to_string();
            assert!(refused.contains("bytes follow its end"), "{refused}");
        }
    }
    assert_eq!((other.list().unwrap(), all(&other.image("copy").unwrap())), (vec!["copy".to_owned()], before));
    assert!(other.image("copy").unwrap().lock_info().is_none());
}

/// Failure: an import that was killed left an image that nothing told from a whole one. It is unfinished until it is
/// whole.
#[test]
fn an_image_whose_import_was_interrupted_is_read_by_nobody_and_can_be_removed() {
    let source = memory().create("disk", 600_000, SMALL, 0).unwrap();
    (0..9).for_each(|n| write(&source, n * 64_000, vec![1; 4_096]));
    let (full, raw) = (exported(&source, None, None), all(&source).to_vec());
    for from_raw in [false, true] {
        let mut interrupted = 0;
        for submits in 0.. {
            let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
            let volumes = Volumes::open(Arc::clone(&store)).unwrap();
            let hooked = Hooked::over(store);
            let dying = Volumes::open(Arc::clone(&hooked) as Arc<dyn ObjectStore>).unwrap();
            hooked.dies_after(submits);
            let bring = |volumes: &Volumes| match from_raw {
                true => {
                    volumes.import_raw("disk", 600_000, SMALL, &mut Cursor::new(&raw), 0, &mut |_, _| true).map(drop)
                }
                false => import(volumes, "disk", &full).map(drop),
            };
            let done = bring(&dying);
            if done.is_ok() {
                assert!(submits > 3, "{submits}");
                assert_eq!(all(&volumes.image("disk").unwrap()), raw);
                break;
            }
            if volumes.list().unwrap().is_empty() {
                continue;
            }
            interrupted += 1;
            assert!(matches!(volumes.image("disk"), Err(Error::Unfinished { .. })), "after {submits}");
            assert!(matches!(bring(&volumes), Err(Error::Unfinished { .. })), "after {submits}");
            assert!(matches!(volumes.create("disk", 1, SMALL, 0), Err(Error::Unfinished { .. })));
            assert!(volumes.work(&mut |_, _| true).unwrap());
            volumes.remove("disk").unwrap();
            assert!(volumes.work(&mut |_, _| true).unwrap());
            bring(&volumes).unwrap();
            assert_eq!(all(&volumes.image("disk").unwrap()), raw);
        }
        assert!(interrupted > 3, "{interrupted}");
    }
}

/// Failure: a killed import of an increment left the image half of one state and half of another, and said nothing.
#[test]
fn an_increment_is_there_whole_or_is_taken_back_wherever_its_import_ends() {
    let source = memory();
    let image = source.create("disk", 600_000, SMALL, 0).unwrap();
    fill(&image, 1);
    image.snapshot_create("a", 0).unwrap();
    let full = exported(&image, None, Some("a"));
    for size in [600_000, 400_000, 900_000] {
        image.rollback("a", &mut |_, _| true).unwrap();
        image.resize(size, true).unwrap();
        fill(&image, 2);
        let name = format!("to {size}");
        image.snapshot_create(&name, 0).unwrap();
        let increment = exported(&image, Some("a"), Some(&name));
        let mut interrupted = 0;
        for submits in 0.. {
            let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
            let volumes = Volumes::open(Arc::clone(&store)).unwrap();
            let before = all(&import(&volumes, "copy", &full).unwrap());
            let hooked = Hooked::over(store);
            let dying = Volumes::open(Arc::clone(&hooked) as Arc<dyn ObjectStore>).unwrap();
            hooked.dies_after(submits);
            let done = import(&dying, "copy", &increment);
            let copy = volumes.image("copy").unwrap();
            if let Some(lock) = copy.lock_info() {
                assert_eq!(lock.owner, IMPORT_OWNER);
                copy.break_lock(lock.epoch).unwrap();
            }
            match copy.read_bytes(0, copy.size()) {
                Ok(found) if found == before => assert!(done.is_err(), "after {submits}"),
                // All of it, though its process may not have lived to hear that.
                Ok(found) => {
                    assert!(found == all(&image) && copy.snapshot(&name).is_ok(), "after {submits}: half of it");
                }
                Err(Error::Refused { why }) => {
                    assert!(why.contains("roll it back"), "{why}");
                    interrupted += 1;
                    assert!(copy.rollback("a", &mut |_, _| true).unwrap());
                    assert_eq!(all(&copy), before, "after {submits}");
                    import(&volumes, "copy", &increment).unwrap();
                    copy.refresh().unwrap();
                    assert_eq!(all(&copy), all(&image), "after {submits}");
                }
                Err(error) => panic!("after {submits}: {error}"),
            }
            if done.is_ok() {
                break;
            }
        }
        assert!(interrupted > 3, "{interrupted}");
    }
}

fn fill(image: &Image, byte: u8) {
    write(image, 0, vec![byte; image.size() as usize]);
}

/// Failure: an increment was applied to an image that others wrote meanwhile, without a lock.
#[test]
fn nobody_else_writes_while_an_increment_is_imported() {
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
    let volumes = Volumes::open(Arc::clone(&store)).unwrap();
    let image = volumes.create("disk", 300_000, SMALL, 0).unwrap();
    image.snapshot_create("a", 0).unwrap();
    write(&image, 0, vec![2; 200_000]);
    image.snapshot_create("b", 0).unwrap();
    let (full, increment) = (exported(&image, None, Some("a")), exported(&image, Some("a"), Some("b")));
    let copy = import(&volumes, "copy", &full).unwrap();
    let hooked = Hooked::over(store);
    let importing = Volumes::open(Arc::clone(&hooked) as Arc<dyn ObjectStore>).unwrap();
    let (met, other) = (Arc::new(std::sync::atomic::AtomicU32::new(0)), copy.clone());
    let (asked, told) = (Arc::clone(&met), Arc::clone(&met));
    // The lock is taken by the first, the state says so with the second, data comes with the third.
    hooked.before(
        move |call| matches!(call, Call::Submit) && asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 2,
        move || {
            let refused = other.write(0, "x".into(), Durability::Applied).unwrap_err();
            assert!(matches!(&refused, Error::Locked { owner, .. } if owner == IMPORT_OWNER), "{refused}");
            assert!(matches!(other.lock("ada"), Err(Error::Locked { .. })));
            assert!(matches!(other.read(0, 1).map(drop), Err(Error::Refused { .. })), "half of an increment is read");
            told.store(100, std::sync::atomic::Ordering::SeqCst);
        },
    );
    import(&importing, "copy", &increment).unwrap();
    assert!(met.load(std::sync::atomic::Ordering::SeqCst) >= 100);
    copy.refresh().unwrap();
    assert_eq!(all(&copy), all(&image));
    write(&copy, 0, "x");
    // One that another handle has locked takes none.
    volumes.image("copy").unwrap().rollback("a", &mut |_, _| true).unwrap();
    volumes.image("copy").unwrap().snapshot_remove("b").unwrap();
    volumes.image("copy").unwrap().lock("ada").unwrap();
    assert!(matches!(import(&volumes, "copy", &increment), Err(Error::Locked { .. })));
}

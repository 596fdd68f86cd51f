//! Exports and imports: what comes back, and what a damaged stream does.

use std::io::Cursor;

use bytes::Bytes;
use esker_volume::{Durability, Error, Image, Volumes};
use fastrand::Rng;

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

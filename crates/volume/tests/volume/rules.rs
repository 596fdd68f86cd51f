//! What is refused and why, what things cost, and what a store that was tampered with answers.

use std::time::Instant;

use bytes::Bytes;
use esker_store::{Change, Collection, ObjectId, Transaction};
use esker_volume::{CHAIN_DEPTH_MAX, Durability, Error, IMAGE_BYTES_MAX, Layout, REQUEST_BYTES_MAX};

use crate::support::{SMALL, both, engine, memory, write};

#[test]
fn bad_input_is_refused_with_what_is_wrong() {
    let volumes = memory();
    for name in ["", ".", "..", "a/b", "a@b", "a\n", &"x".repeat(129)] {
        let refused = volumes.create(name, 1, SMALL, 0).unwrap_err();
        assert!(matches!(refused, Error::Invalid { what: "image name", .. }), "{refused}");
    }
    let refused = volumes.create("big", IMAGE_BYTES_MAX + 1, SMALL, 0).unwrap_err().to_string();
    assert!(refused.contains("IMAGE_BYTES_MAX"), "{refused}");
    let image = volumes.create("disk", 1000, SMALL, 0).unwrap();
    assert!(matches!(volumes.create("disk", 1, SMALL, 0), Err(Error::Exists { what: "image", .. })));
    assert!(matches!(volumes.image("none"), Err(Error::NoImage { .. })));
    for (offset, len) in [(0, 1001), (1001, 0), (1000, 1), (u64::MAX, 1), (u64::MAX, u64::MAX), (1, u64::MAX)] {
        assert!(matches!(image.read(offset, len), Err(Error::PastEnd { size: 1000, .. })), "{offset} {len}");
        assert!(matches!(image.discard(offset, len, Durability::Applied), Err(Error::PastEnd { .. })));
        assert!(matches!(image.extents(offset, len), Err(Error::PastEnd { .. })));
    }
    for offset in [1000, u64::MAX] {
        assert!(matches!(image.write(offset, "x".into(), Durability::Applied), Err(Error::PastEnd { .. })));
    }
    image.resize(REQUEST_BYTES_MAX + 1, false).unwrap();
    let refused = image.read(0, REQUEST_BYTES_MAX + 1).unwrap_err().to_string();
    assert!(refused.contains("REQUEST_BYTES_MAX"), "{refused}");
    assert!(matches!(image.snapshot("none"), Err(Error::NoSnapshot { .. })));
    assert!(matches!(image.snapshot_create("a@b", 0), Err(Error::Invalid { .. })));
    image.snapshot_create("s", 0).unwrap();
    assert!(matches!(image.snapshot_create("s", 0), Err(Error::Exists { what: "snapshot", .. })));
    assert!(matches!(image.lock(""), Err(Error::Invalid { .. })));
    assert!(matches!(volumes.rename("disk", "x/y"), Err(Error::Invalid { .. })));
    volumes.rename("disk", "disc").unwrap();
    assert!(matches!(volumes.rename("disk", "other"), Err(Error::NoImage { .. })));
    volumes.create("other", 1, SMALL, 0).unwrap();
    assert!(matches!(volumes.rename("disc", "other"), Err(Error::Exists { .. })));
    assert_eq!(volumes.list().unwrap(), ["disc", "other"]);
}

#[test]
fn a_write_of_another_handles_growth_is_seen() {
    for volumes in both() {
        let one = volumes.create("disk", 100, SMALL, 0).unwrap();
        let two = volumes.image("disk").unwrap();
        one.resize(300_000, false).unwrap();
        write(&two, 200_000, "past the old end");
        one.resize(50, true).unwrap();
        assert!(matches!(two.write(60, "x".into(), Durability::Applied), Err(Error::PastEnd { size: 50, .. })));
    }
}

#[test]
fn chains_of_clones_are_bounded_and_flattening_shortens_them() {
    let volumes = memory();
    let mut image = volumes.create("i0", 200_000, SMALL, 0).unwrap();
    for depth in 0..=CHAIN_DEPTH_MAX {
        write(&image, depth as u64 * 1000, format!("layer {depth:02}"));
        image.snapshot_create("s", 0).unwrap();
        image.snapshot_protect("s").unwrap();
        let (name, child) = (format!("i{depth}"), format!("i{}", depth + 1));
        match volumes.clone_image(&name, "s", &child, 0) {
            Ok(next) => image = next,
            Err(error) => {
                assert_eq!(depth, CHAIN_DEPTH_MAX);
                assert!(error.to_string().contains("CHAIN_DEPTH_MAX"), "{error}");
            }
        }
    }
    assert_eq!(image.info().unwrap().depth, CHAIN_DEPTH_MAX);
    for depth in 0..=CHAIN_DEPTH_MAX {
        assert_eq!(image.read_bytes(depth as u64 * 1000, 8).unwrap(), format!("layer {depth:02}"));
    }
    assert_eq!(volumes.children("i0", "s").unwrap(), ["i1"]);
    let refused = volumes.image("i0").unwrap().snapshot_unprotect("s").unwrap_err().to_string();
    assert!(refused.contains("1 clones"), "{refused}");
    assert!(image.flatten(&mut |_, _| true).unwrap());
    assert_eq!(image.info().unwrap().depth, 0);
    for depth in 0..=CHAIN_DEPTH_MAX {
        assert_eq!(image.read_bytes(depth as u64 * 1000, 8).unwrap(), format!("layer {depth:02}"));
    }
}

/// Flattening copies for the image as it is. What was snapshotted before stays on the parent, which says so until those
/// snapshots are gone.
#[test]
fn snapshots_from_before_flattening_keep_their_parent() {
    for volumes in both() {
        let image = volumes.create("disk", 200_000, SMALL, 0).unwrap();
        write(&image, 0, vec![1; 200_000]);
        image.snapshot_create("base", 0).unwrap();
        image.snapshot_protect("base").unwrap();
        let child = volumes.clone_image("disk", "base", "child", 0).unwrap();
        write(&child, 70_000, vec![2; 100]);
        child.snapshot_create("old", 0).unwrap();
        write(&child, 70_050, vec![3; 100]);
        let old = child.snapshot("old").unwrap().read_bytes(0, 200_000).unwrap();
        assert!(child.flatten(&mut |_, _| true).unwrap());
        assert_eq!(child.info().unwrap().parent, None);
        write(&image, 0, vec![9; 200_000]);
        child.discard(0, 200_000, Durability::Applied).unwrap().wait().unwrap();
        assert_eq!(child.snapshot("old").unwrap().read_bytes(0, 200_000).unwrap(), old);
        assert!((old[0], old[70_000], old[70_099], old[70_100]) == (1, 2, 2, 1));
        assert_eq!(volumes.children("disk", "base").unwrap(), ["child"]);
        let refused = image.snapshot_unprotect("base").unwrap_err().to_string();
        assert!(refused.contains("(child)") && refused.contains("their snapshots from before"), "{refused}");
        child.snapshot_remove("old").unwrap();
        assert!(volumes.work(&mut |_, _| true).unwrap());
        image.snapshot_unprotect("base").unwrap();
        image.snapshot_remove("base").unwrap();
    }
}

#[test]
fn discarding_gives_space_back_and_hides_the_parent() {
    for volumes in both() {
        let image = volumes.create("disk", 1 << 20, SMALL, 0).unwrap();
        write(&image, 0, vec![1; 1 << 20]);
        assert_eq!(image.stored_bytes().unwrap(), 1 << 20);
        image.discard(0, 512 << 10, Durability::Applied).unwrap().wait().unwrap();
        assert_eq!(image.stored_bytes().unwrap(), 512 << 10);
        image.snapshot_create("s", 0).unwrap();
        image.snapshot_protect("s").unwrap();
        let child = volumes.clone_image("disk", "s", "child", 0).unwrap();
        assert_eq!(child.stored_bytes().unwrap(), 0);
        child.discard(0, 1 << 20, Durability::Applied).unwrap().wait().unwrap();
        assert_eq!(child.stored_bytes().unwrap(), 0);
        assert!(child.read_bytes(0, 1 << 20).unwrap().iter().all(|byte| *byte == 0));
        let extents = child.extents(0, 1 << 20).unwrap();
        assert!(matches!(&extents[..], [only] if !only.data && only.len == 1 << 20), "{extents:?}");
        assert_eq!(image.read_bytes((1 << 20) - 1, 1).unwrap(), Bytes::from_static(&[1]));
    }
}

#[test]
fn a_removed_snapshot_is_not_read_as_something_else() {
    for volumes in both() {
        let image = volumes.create("disk", 1 << 20, SMALL, 0).unwrap();
        write(&image, 0, "before");
        let snapshot = image.snapshot_create("s", 0).unwrap();
        write(&image, 0, "after!");
        assert_eq!(snapshot.read_bytes(0, 6).unwrap(), "before");
        image.snapshot_remove("s").unwrap();
        assert!(volumes.work(&mut |_, _| true).unwrap());
        assert!(matches!(snapshot.read_bytes(0, 6), Err(Error::NoSnapshot { .. })));
        assert!(matches!(snapshot.extents(0, 6), Err(Error::NoSnapshot { .. })));
        // The name may be given again, to something else.
        image.snapshot_create("s", 0).unwrap();
        assert!(matches!(snapshot.read_bytes(0, 6), Err(Error::NoSnapshot { .. })));
        let names = volumes.store().list(&"volume".into(), None, 100).wait().unwrap();
        assert!(!names.iter().any(|name| name.starts_with(b"s/")), "the clone is still there: {names:?}");
    }
}

/// The first write after a snapshot costs a clone; a thousand snapshots cost later reads and writes nothing, since none
/// of them is looked at.
#[test]
fn snapshots_of_a_huge_thin_image_cost_no_more_than_of_a_small_one() {
    let volumes = engine();
    let small = volumes.create("small", 1 << 20, Layout::default(), 0).unwrap();
    let huge = volumes.create("huge", 1 << 40, Layout::default(), 0).unwrap();
    for image in [&small, &huge] {
        write(image, 0, vec![1; 64 << 10]);
        let before = volumes.store().list(&"volume".into(), None, 100_000).wait().unwrap().len();
        let began = Instant::now();
        for number in 0..1_000 {
            image.snapshot_create(&format!("s{number}"), 0).unwrap();
        }
        println!("{}: 1,000 snapshots in {:?}", image.name(), began.elapsed());
        let after = volumes.store().list(&"volume".into(), None, 100_000).wait().unwrap().len();
        assert_eq!(before, after, "snapshots made objects");
        write(image, 0, vec![2; 4 << 10]);
        write(image, 4096, vec![2; 4 << 10]);
        let after = volumes.store().list(&"volume".into(), None, 100_000).wait().unwrap().len();
        assert_eq!(after - before, 2, "the clone and the list of clones, once for all snapshots");
        assert_eq!(image.snapshot("s0").unwrap().read_bytes(0, 1).unwrap(), Bytes::from_static(&[1]));
        assert_eq!(image.snapshot("s999").unwrap().read_bytes(0, 1).unwrap(), Bytes::from_static(&[1]));
    }
    huge.snapshot_protect("s7").unwrap();
    let began = Instant::now();
    let child = volumes.clone_image("huge", "s7", "child", 0).unwrap();
    println!("a clone of 1 TiB in {:?}", began.elapsed());
    assert_eq!(child.read_bytes(0, 1).unwrap(), Bytes::from_static(&[1]));
}

#[test]
fn damaged_headers_are_errors_that_name_the_place() {
    let volumes = memory();
    volumes.create("disk", 1 << 20, SMALL, 0).unwrap();
    let header = ObjectId::new(Collection::from("volume"), format!("h/{:016x}", 1));
    let set = |name: &'static str, value: Vec<u8>| {
        let change = Change::XattrSet { name: Bytes::from_static(name.as_bytes()), value: value.into() };
        volumes.store().submit(Transaction::new().change(&header, change)).wait().unwrap();
    };
    let good = volumes.store().xattr(&header, b"state").wait().unwrap().unwrap();
    for (at, byte, expected) in [(0, 7u8, "version 7"), (26, 3, "object size"), (23, 0x7f, "damaged")] {
        let mut bad = good.to_vec();
        bad[at] = byte;
        set("state", bad);
        let error = volumes.image("disk").unwrap_err().to_string();
        assert!(error.contains(expected), "byte {at}: {error}");
    }
    set("state", good[..50].to_vec());
    let error = volumes.image("disk").unwrap_err().to_string();
    assert!(error.contains("header of image 0000000000000001") && error.contains("50 bytes"), "{error}");
    // A parent that is the image itself: no endless chain.
    let mut bad = good.to_vec();
    bad[88] = 1;
    bad[96] = 1;
    set("state", bad);
    assert!(matches!(volumes.image("disk"), Err(Error::Damaged { .. })));
}

#[test]
fn what_a_clone_cut_off_does_not_come_back_from_its_parent() {
    for volumes in both() {
        let image = volumes.create("disk", 300_000, SMALL, 0).unwrap();
        write(&image, 0, vec![1; 300_000]);
        image.snapshot_create("s", 0).unwrap();
        image.snapshot_protect("s").unwrap();
        let child = volumes.clone_image("disk", "s", "child", 0).unwrap();
        child.resize(100_000, true).unwrap();
        child.resize(300_000, false).unwrap();
        let cut = |child: &esker_volume::Image| {
            assert!(child.read_bytes(0, 99_000).unwrap().iter().all(|byte| *byte == 1));
            assert!(child.read_bytes(100_000, 200_000).unwrap().iter().all(|byte| *byte == 0));
        };
        cut(&child);
        // The object in which the end was is copied by this write, and only its part below the end.
        write(&child, 99_999, vec![2]);
        cut(&child);
        assert!(child.flatten(&mut |_, _| true).unwrap());
        cut(&child);
    }
}

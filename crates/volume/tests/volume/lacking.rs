//! A backend that is not atomic across objects and clones nothing: what works, and what is refused by name.

use std::sync::Arc;

use esker_memory::MemoryStore;
use esker_store::Error as StoreError;
use esker_store::contract::{PerObject, Sessions};
use esker_volume::{Durability, Error, Layout, Volumes};
use fastrand::Rng;

use crate::support::{SMALL, write};

#[test]
fn what_a_backend_cannot_do_is_refused_by_name_and_the_rest_works() {
    let volumes = Volumes::open(Arc::new(PerObject(MemoryStore::new()))).unwrap();
    let abilities = volumes.abilities();
    assert!(!abilities.atomic_writes && !abilities.locks && !abilities.snapshots && !abilities.persistent);
    let large = Layout { object_bytes: 16 << 20, ..Layout::default() };
    let refused = volumes.create("large", 1 << 20, large, 0).unwrap_err().to_string();
    assert!(refused.contains("16777216") && refused.contains("8388608 (object_bytes_max)"), "{refused}");
    let image = volumes.create("disk", 1 << 20, SMALL, 0).unwrap();
    let unsupported = |result: Result<(), Error>, what: &str| match result {
        Err(Error::Store(error @ StoreError::Unsupported { .. })) => {
            let text = error.to_string();
            assert!(text.starts_with("lacking cannot ") && text.contains(what), "{text}");
        }
        other => panic!("{other:?}"),
    };
    unsupported(image.snapshot_create("s", 0).map(drop), "snapshots");
    unsupported(image.lock("me").map(drop), "exclusive lock");
    unsupported(image.take_over("me").map(drop), "exclusive lock");
    unsupported(volumes.clone_image("disk", "s", "child", 0).map(drop), "clones");

    let mut model = vec![0u8; 1 << 20];
    let mut rng = Rng::with_seed(5);
    for _ in 0..300 {
        let offset = rng.u64(..1 << 20);
        let len = rng.u64(..=(200_000).min((1 << 20) - offset));
        let range = offset as usize..(offset + len) as usize;
        if rng.u8(..3) == 0 {
            image.discard(offset, len, Durability::Applied).unwrap().wait().unwrap();
            model[range].fill(0);
        } else {
            let byte = rng.u8(1..);
            write(&image, offset, vec![byte; len as usize]);
            model[range].fill(byte);
        }
    }
    assert!(image.read_bytes(0, 1 << 20).unwrap() == model);
    image.resize(100_000, true).unwrap();
    image.resize(1 << 20, false).unwrap();
    model[100_000..].fill(0);
    assert!(image.read_bytes(0, 1 << 20).unwrap() == model);
    volumes.rename("disk", "disc").unwrap();
    volumes.remove("disc").unwrap();
    assert!(volumes.work(&mut |_, _| true).unwrap());
    let left = volumes.store().list(&"volume".into(), None, 10).wait().unwrap();
    assert_eq!(left, ["directory"]);
}

/// Images on a store that changes one object at a time, and whose openings can be shut out.
fn with_sessions() -> Volumes {
    Volumes::open(Arc::new(Sessions::new(Arc::new(PerObject(MemoryStore::new()))))).unwrap()
}

#[test]
fn sessions_fence_where_a_write_cannot_guard_the_header() {
    let volumes = with_sessions();
    let abilities = volumes.abilities();
    assert!(!abilities.atomic_writes && abilities.locks);
    let first = volumes.create("disk", 1 << 20, SMALL, 0).unwrap();
    let second = volumes.image("disk").unwrap();
    let epoch = first.lock("one").unwrap();
    write(&first, 0, "mine");
    second.refresh().unwrap();
    assert!(matches!(second.write(0, "other".into(), Durability::Applied), Err(Error::Locked { .. })));
    assert!(matches!(second.lock("two"), Err(Error::Locked { .. })));
    // Who may not take the lock shuts nobody out.
    write(&first, 0, "mine");

    let taken = second.take_over("two").unwrap();
    assert!(taken > epoch);
    write(&second, 0, "new!");
    // The first one has not been told: its session is shut out, and then it knows.
    let late = first.write(0, "late".into(), Durability::Applied).err().unwrap();
    assert!(matches!(&late, Error::Store(StoreError::Stopped { .. })), "{late}");
    for _ in 0..2 {
        let late = first.write(0, "late".into(), Durability::Applied).err().unwrap();
        assert!(matches!(late, Error::Fenced { held, found, .. } if held == epoch && found == taken), "{late}");
    }
    assert!(matches!(first.unlock(), Err(Error::Fenced { .. })));
    assert_eq!(second.read_bytes(0, 4).unwrap(), "new!");
    second.resize(2 << 20, false).unwrap();
    second.resize(1 << 19, true).unwrap();

    first.break_lock(taken).unwrap();
    let late = second.write(0, "gone".into(), Durability::Applied).err().unwrap();
    assert!(matches!(&late, Error::Store(StoreError::Stopped { .. })), "{late}");
    assert!(matches!(second.write(0, "gone".into(), Durability::Applied), Err(Error::Fenced { .. })));

    let third = volumes.image("disk").unwrap();
    write(&third, 0, "free");
    third.lock("three").unwrap();
    write(&third, 0, "held");
    third.unlock().unwrap();
    third.unlock().unwrap();
    write(&third, 0, "free");
    assert_eq!(volumes.image("disk").unwrap().lock_info(), None);
    // A session that was given back is shut out by nobody: the handle goes on.
    second.take_over("four").unwrap();
    second.unlock().unwrap();
    third.refresh().unwrap();
    write(&third, 0, "open");
    assert_eq!(third.read_bytes(0, 4).unwrap(), "open");
}

#[test]
fn who_has_lost_the_lock_is_told_so_though_there_is_nothing_to_change() {
    let volumes = with_sessions();
    let first = volumes.create("disk", 1 << 20, SMALL, 0).unwrap();
    first.lock("one").unwrap();
    first.discard(0, 4096, Durability::Durable).unwrap().wait().unwrap();
    volumes.image("disk").unwrap().take_over("two").unwrap();
    let late = first.discard(0, 4096, Durability::Durable);
    assert!(matches!(late, Err(Error::Fenced { .. })), "{late:?}");
}

/// Each writer takes the lock over, fills the image with its own number, and reads it back before another has taken it:
/// what it reads is its own, or it is told that it has lost the lock.
#[test]
fn writers_that_take_over_from_each_other_mix_nothing() {
    let volumes = with_sessions();
    let blocks = 8u64;
    volumes.create("disk", blocks * 65_536, SMALL, 0).unwrap();
    let (seen, last) = (std::sync::atomic::AtomicU64::new(0), std::sync::Mutex::new((0u64, 0u8)));
    std::thread::scope(|scope| {
        for writer in 1..=4u8 {
            let (volumes, seen, last) = (&volumes, &seen, &last);
            scope.spawn(move || {
                for _ in 0..25 {
                    let image = volumes.image("disk").unwrap();
                    let epoch = image.take_over(&writer.to_string()).unwrap();
                    let fill = (0..blocks).try_for_each(|block| {
                        std::thread::yield_now();
                        image.write(block * 65_536, vec![writer; 100].into(), Durability::Durable)?.wait()?;
                        Ok::<_, Error>(())
                    });
                    if let Err(error) = fill {
                        let lost = matches!(&error, Error::Fenced { .. } | Error::Store(StoreError::Stopped { .. }));
                        assert!(lost, "{error}");
                        continue;
                    }
                    seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    let mut last = last.lock().unwrap();
                    *last = (epoch, writer).max(*last);
                }
            });
        }
    });
    // The last who took it wrote all of it, and nobody wrote after that.
    assert!(seen.into_inner() > 0);
    let image = volumes.image("disk").unwrap();
    let (epoch, writer) = last.into_inner().unwrap();
    if image.lock_info().unwrap().epoch == epoch {
        for block in 0..blocks {
            assert_eq!(image.read_bytes(block * 65_536, 1).unwrap(), vec![writer]);
        }
    }
}

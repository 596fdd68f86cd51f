//! The exclusive lock, and what happens to those who come late.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use esker_memory::MemoryStore;
use esker_store::contract::deaf::Deaf;
use esker_store::{Error as StoreError, Forward, Incarnation, ObjectStore};
use esker_volume::{Durability, Error, Image, Volumes};

use crate::support::{SMALL, both, engine, write};

#[test]
fn a_second_writer_is_refused_and_a_late_one_is_fenced() {
    for volumes in both() {
        let first = volumes.create("disk", 1 << 20, SMALL, 0).unwrap();
        let second = volumes.image("disk").unwrap();
        let epoch = first.lock("one").unwrap();
        write(&first, 0, "mine");
        let refused = second.write(0, "other".into(), Durability::Applied).err().unwrap();
        assert!(matches!(&refused, Error::Locked { owner, .. } if owner == "one"), "{refused}");
        assert!(matches!(second.discard(0, 4096, Durability::Applied), Err(Error::Locked { .. })));
        assert!(matches!(second.resize(0, true), Err(Error::Locked { .. })));
        assert!(matches!(second.rollback("s", &mut |_, _| true), Err(Error::Locked { .. } | Error::NoSnapshot { .. })));
        assert!(matches!(second.lock("two"), Err(Error::Locked { .. })));
        assert!(matches!(second.lock("one"), Err(Error::Locked { .. })), "a name is no proof");
        assert!(matches!(volumes.remove("disk"), Err(Error::Locked { .. })));

        let taken = second.take_over("two").unwrap();
        assert!(taken > epoch);
        write(&second, 0, "new!");
        // The first one has not been told, and finds out by its guard.
        let late = first.write(0, "late".into(), Durability::Applied).err().unwrap();
        assert!(matches!(late, Error::Fenced { held, found, .. } if held == epoch && found == taken), "{late}");
        assert!(matches!(first.snapshot_create("s", 0), Err(Error::Fenced { .. })));
        assert!(matches!(first.unlock(), Err(Error::Fenced { .. })));
        assert_eq!(second.read_bytes(0, 4).unwrap(), "new!");

        assert!(matches!(first.break_lock(epoch), Err(Error::Refused { .. })));
        first.break_lock(taken).unwrap();
        assert!(matches!(second.write(0, "gone".into(), Durability::Applied), Err(Error::Fenced { .. })));
        // Fenced for good, even where no handle has the lock now.
        assert!(matches!(first.write(0, "late".into(), Durability::Applied), Err(Error::Fenced { .. })));
        let third = volumes.image("disk").unwrap();
        write(&third, 0, "free");
        let last = third.lock("three").unwrap();
        assert!(last > taken);
        third.unlock().unwrap();
        third.unlock().unwrap();
        assert_eq!(volumes.image("disk").unwrap().lock_info(), None);
    }
}

/// Failure: who had lost the lock was told that his discard of what was not there was done, though the new owner had
/// written there by then. Cause: where nothing is to be written nothing was guarded. Fix: the guard alone is submitted.
#[test]
fn who_has_lost_the_lock_is_told_so_though_nothing_is_to_be_written() {
    for durability in [Durability::Applied, Durability::Durable] {
        let volumes = engine();
        let first = volumes.create("disk", 1 << 20, SMALL, 0).unwrap();
        first.lock("one").unwrap();
        first.discard(0, 4096, durability).unwrap().wait().unwrap();
        let second = volumes.image("disk").unwrap();
        second.take_over("two").unwrap();
        let late = first.discard(0, 4096, durability);
        assert!(matches!(late, Err(Error::Fenced { .. })), "{late:?}");
        write(&second, 0, "new");
        assert_eq!(second.read_bytes(0, 3).unwrap(), "new");
        // Nor is one who has no lock told so where another has it.
        let third = volumes.image("disk").unwrap();
        second.unlock().unwrap();
        third.discard(8192, 4096, durability).unwrap().wait().unwrap();
        second.lock("two").unwrap();
        assert!(matches!(third.discard(8192, 4096, durability), Err(Error::Locked { .. })));
    }
}

#[test]
fn snapshots_are_taken_beside_a_writer_that_has_the_image_locked() {
    let volumes = engine();
    let writer = volumes.create("disk", 1 << 20, SMALL, 0).unwrap();
    writer.lock("writer").unwrap();
    let other = volumes.image("disk").unwrap();
    for number in 0..5u8 {
        let name = number.to_string();
        write(&writer, 0, name.clone());
        let taken = other.snapshot_create(&name, 0).unwrap();
        assert_eq!(taken.read_bytes(0, 1).unwrap(), name);
        // The writer sees it by its guard, and clones first.
        write(&writer, 0, "x");
        assert_eq!(other.snapshot(&name).unwrap().read_bytes(0, 1).unwrap(), name);
    }
    other.snapshot_protect("1").unwrap();
    assert!(matches!(writer.snapshot_remove("1"), Err(Error::Refused { .. })));
    other.snapshot_unprotect("1").unwrap();
    other.snapshot_remove("1").unwrap();
    assert!(matches!(other.rollback("2", &mut |_, _| true), Err(Error::Locked { .. })));
    write(&writer, 0, "last");
    assert_eq!(other.snapshot("2").unwrap().read_bytes(0, 1).unwrap(), "2");
    // One that has lost the lock changes nothing any more.
    other.take_over("other").unwrap();
    assert!(matches!(writer.snapshot_remove("2"), Err(Error::Fenced { .. })));
    assert!(matches!(writer.snapshot_protect("2"), Err(Error::Fenced { .. })));
}

#[test]
fn no_write_of_a_taken_over_writer_lands_after_the_take_over() {
    for round in 0..20 {
        let volumes = engine();
        let old = volumes.create("disk", 1 << 20, SMALL, 0).unwrap();
        old.lock("old").unwrap();
        let new = volumes.image("disk").unwrap();
        let written = Arc::new(AtomicU64::new(0));
        let taken = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..3u64)
            .map(|thread| {
                let (old, written, taken) = (old.clone(), Arc::clone(&written), Arc::clone(&taken));
                std::thread::spawn(move || {
                    loop {
                        let late = taken.load(Ordering::SeqCst);
                        let data = Bytes::from(vec![b'o'; 512]);
                        match old.write(thread * 4096, data, Durability::Applied) {
                            Ok(_) if late => panic!("a write that began after the take-over was let through"),
                            Ok(_) => written.fetch_add(1, Ordering::Relaxed),
                            Err(Error::Fenced { .. }) => return,
                            Err(error) => panic!("{error}"),
                        };
                    }
                })
            })
            .collect();
        while written.load(Ordering::Relaxed) < 50 + round * 10 {
            std::thread::yield_now();
        }
        new.take_over("new").unwrap();
        taken.store(true, Ordering::SeqCst);
        write(&new, 0, vec![b'n'; 16 << 10]);
        for thread in threads {
            thread.join().unwrap();
        }
        let found = new.read_bytes(0, 16 << 10).unwrap();
        assert!(found.iter().all(|byte| *byte == b'n'), "round {round}: a late write landed");
    }
}

/// Two threads write the same number to two places; a snapshot between them must never show the second without the
/// first.
#[test]
fn a_snapshot_is_one_moment_for_all_writers() {
    for volumes in both() {
        let image = volumes.create("disk", 1 << 20, SMALL, 0).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..2u64)
            .map(|thread| {
                let (image, stop) = (volumes.image("disk").unwrap(), Arc::clone(&stop));
                std::thread::spawn(move || {
                    let mut number = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        number += 1;
                        // The second place is in another object, and written when the first is.
                        for at in [thread * 4096, 512 * 1024 + thread * 4096] {
                            let data = Bytes::copy_from_slice(&number.to_le_bytes());
                            drop(image.write(at, data, Durability::Applied).unwrap());
                        }
                    }
                    number
                })
            })
            .collect();
        for round in 0..60 {
            image.snapshot_create(&format!("s{round}"), 0).unwrap();
            std::thread::sleep(std::time::Duration::from_micros(300));
        }
        stop.store(true, Ordering::Relaxed);
        let last: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        let mut before = [0; 2];
        for round in 0..60 {
            let snapshot = image.snapshot(&format!("s{round}")).unwrap();
            for thread in 0..2u64 {
                let number = |at| u64::from_le_bytes(snapshot.read_bytes(at, 8).unwrap()[..].try_into().unwrap());
                let (first, second) = (number(thread * 4096), number(512 * 1024 + thread * 4096));
                assert!(first == second || first == second + 1, "snapshot {round}: {first} and {second}");
                assert!(first >= before[thread as usize] && first <= last[thread as usize]);
                before[thread as usize] = first;
            }
        }
        assert!(before[0] > 0 && before[1] > 0, "nothing was written between the snapshots");
    }
}

/// The first write of each object after a snapshot moves what the snapshot sees to a clone, under its readers.
#[test]
fn a_snapshot_reads_the_same_while_it_is_written_over() {
    for volumes in both() {
        let image = volumes.create("disk", 64 << 10, SMALL, 0).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        write(&image, 0, 0u64.to_le_bytes().to_vec());
        let writer = {
            let (image, stop) = (volumes.image("disk").unwrap(), Arc::clone(&stop));
            std::thread::spawn(move || {
                for number in 1u64.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    write(&image, 0, number.to_le_bytes().to_vec());
                }
            })
        };
        for round in 0..150 {
            let snapshot = image.snapshot_create(&format!("s{round}"), 0).unwrap();
            let first = snapshot.read_bytes(0, 8).unwrap();
            for _ in 0..20 {
                assert_eq!(snapshot.read_bytes(0, 8).unwrap(), first, "snapshot {round} changed");
            }
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    }
}

/// Failure: an image that a server had attached could neither grow nor be flattened: its holder did not know how, and
/// all others were
/// refused.
#[test]
fn a_locked_image_grows_and_is_flattened_beside_its_writer() {
    for volumes in both() {
        let parent = volumes.create("parent", 300_000, SMALL, 0).unwrap();
        write(&parent, 0, vec![1; 300_000]);
        parent.snapshot_create("s", 0).unwrap();
        parent.snapshot_protect("s").unwrap();
        let held = volumes.clone_image("parent", "s", "disk", 0).unwrap();
        held.lock("server").unwrap();
        write(&held, 10, "mine");
        let beside = volumes.image("disk").unwrap();
        let mut told = 0;
        let between = |done: u64, _: u64| {
            // Its writer goes on meanwhile.
            write(&held, 70_000 + done, "beside");
            told = done;
            true
        };
        assert!(beside.flatten(&mut { between }).unwrap());
        assert!(told > 3, "{told}");
        assert!(held.info().unwrap().parent.is_none());
        beside.resize(500_000, false).unwrap();
        assert!(matches!(beside.resize(100_000, true), Err(Error::Locked { .. })));
        write(&held, 400_000, "behind the old end");
        let mut expected = vec![1; 300_000];
        expected.resize(500_000, 0);
        expected[10..14].copy_from_slice(b"mine");
        (1..=told as usize).for_each(|done| expected[70_000 + done..70_006 + done].copy_from_slice(b"beside"));
        expected[400_000..400_018].copy_from_slice(b"behind the old end");
        assert!(held.read_bytes(0, 500_000).unwrap() == expected);
        held.unlock().unwrap();
        parent.snapshot_unprotect("s").unwrap();
    }
}

/// Failure: an image was resized, unlocked, or had a snapshot made, protected or removed, and the answer was an error
/// as if it were not. Cause: the state was looked at behind the change, and that answer was lost. Fix: the handle has
/// seen what it wrote itself.
#[test]
fn what_was_changed_is_told_as_changed_though_nothing_can_be_read_then() {
    type Changes = fn(&Image) -> Result<(), Error>;
    let all: [(&str, Changes); 9] = [
        ("grow", |image| image.resize(2 << 20, false)),
        ("shrink", |image| image.resize(1 << 19, true)),
        ("unlock", Image::unlock),
        ("break", |image| image.break_lock(image.lock_info().unwrap().epoch)),
        ("take over", |image| image.take_over("other").map(drop)),
        ("protect", |image| image.snapshot_protect("there")),
        ("remove", |image| image.snapshot_remove("there")),
        ("make", |image| image.snapshot_create("new", 0).map(drop)),
        ("flatten", |image| image.flatten(&mut |_, _| true).map(drop)),
    ];
    for (what, change) in all {
        let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
        let deaf = Deaf::over(Arc::clone(&store));
        let (deafened, other) = (Volumes::open(Arc::clone(&deaf) as _).unwrap(), Volumes::open(store).unwrap());
        let image = deafened.create("disk", 1 << 20, SMALL, 0).unwrap();
        write(&image, 900_000, "end");
        image.snapshot_create("there", 0).unwrap();
        image.lock("owner").unwrap();
        deaf.after_writes(1);
        change(&image).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(deaf.is_deaf() || what == "flatten", "{what}");
        let seen = |image: &Image| (image.size(), image.lock_info());
        let own = seen(&image);
        deaf.hears();
        let found = other.image("disk").unwrap();
        assert_eq!(own, seen(&found), "{what}");
        let names: Vec<String> = found.snapshots().unwrap().into_iter().map(|snapshot| snapshot.name).collect();
        let expected: &[&str] = match what {
            "remove" => &[],
            "make" => &["there", "new"],
            _ => &["there"],
        };
        assert_eq!(names, expected, "{what}");
        if what == "shrink" {
            assert!(other.work(&mut |_, _| true).is_ok());
            image.resize(1 << 20, false).unwrap();
            assert_eq!(image.read_bytes(900_000, 3).unwrap(), vec![0; 3]);
        }
    }
}

/// The same of images that are made.
#[test]
fn an_image_that_was_made_is_told_as_made_though_nothing_can_be_read_then() {
    let deaf = Deaf::over(Arc::new(MemoryStore::new()));
    let volumes = Volumes::open(Arc::clone(&deaf) as _).unwrap();
    deaf.after_writes(1);
    let image = volumes.create("disk", 1 << 20, SMALL, 7).unwrap();
    assert!(deaf.is_deaf());
    deaf.hears();
    write(&image, 5, "data");
    image.snapshot_create("s", 0).unwrap();
    image.snapshot_protect("s").unwrap();
    deaf.after_writes(1);
    let clone = volumes.clone_image("disk", "s", "clone", 0).unwrap();
    assert!(deaf.is_deaf());
    deaf.hears();
    write(&clone, 20, "own");
    for clone in [clone, volumes.image("clone").unwrap()] {
        assert_eq!((clone.read_bytes(5, 4).unwrap(), clone.read_bytes(20, 3).unwrap()), ("data".into(), "own".into()));
        assert_eq!(clone.info().unwrap().parent, Some(("disk".into(), "s".into(), 1 << 20)));
    }
}

/// A store that is restarted once, and loses nothing but says so.
struct Restarts(MemoryStore, AtomicU64);

impl Forward for Restarts {
    fn behind(&self) -> &dyn ObjectStore {
        &self.0
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.1.load(Ordering::SeqCst))
    }
}

/// Failure: what was written before a restart of the store was lost, and no flush said so. Cause: it was told to the
/// flush in a resize, which made nothing of it. Fix: the resize says so.
#[test]
fn a_restart_is_told_by_the_resize_that_meets_it() {
    let store = Arc::new(Restarts(MemoryStore::new(), AtomicU64::new(1)));
    let volumes = Volumes::open(Arc::clone(&store) as _).unwrap();
    let image = volumes.create("disk", 1 << 20, SMALL, 0).unwrap();
    write(&image, 0, "data");
    write(&image, 900_000, "end");
    store.1.store(2, Ordering::SeqCst);
    let told = image.resize(1 << 19, true);
    assert!(matches!(told, Err(Error::Store(StoreError::Restarted))), "{told:?}");
    assert_eq!(volumes.image("disk").unwrap().size(), 1 << 19);
}

//! Changes that meet at the worst moment, and processes that end between two steps: each is put exactly where it hurts
//! by a store that waits for it ([`Hooked`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use esker_memory::MemoryStore;
use esker_store::{Change, ObjectId, ObjectStore, Op, Transaction};
use esker_volume::{Durability, Error, IMAGE_BYTES_MAX, Image, Volumes};

use crate::hooked::{Call, Hooked};
use crate::support::{SMALL, device, engine_on, write};

const OBJECT: u64 = 64 << 10;

/// Volumes whose calls can be met, and others beside them on the same store.
fn two() -> (Arc<Hooked>, Volumes, Volumes) {
    let store: Arc<dyn ObjectStore> = Arc::new(MemoryStore::new());
    let hooked = Hooked::over(Arc::clone(&store));
    let met = Volumes::open(Arc::clone(&hooked) as Arc<dyn ObjectStore>).unwrap();
    (hooked, met, Volumes::open(store).unwrap())
}

fn is_named(object: &ObjectId, prefix: &str) -> bool {
    object.name().starts_with(prefix.as_bytes())
}

fn fill(image: &Image, byte: u8) {
    write(image, 0, vec![byte; image.size() as usize]);
}

fn all(image: &Image) -> Vec<u8> {
    image.read_bytes(0, image.size()).unwrap().to_vec()
}

fn is_all(bytes: &[u8], byte: u8) -> bool {
    bytes.iter().all(|found| *found == byte)
}

/// Failure: looking through the clones for removed snapshots took the clone of a snapshot made meanwhile.
/// Cause: clones were judged by a list of snapshots that was older than they were.
/// Fix: what is above the newest snapshot of that list is left alone.
#[test]
fn giving_space_back_spares_snapshots_that_are_made_meanwhile() {
    let (hooked, met, beside) = two();
    let image = beside.create("disk", 4 * OBJECT, SMALL, 0).unwrap();
    fill(&image, 1);
    image.snapshot_create("old", 0).unwrap();
    fill(&image, 2);
    image.snapshot_remove("old").unwrap();
    hooked.before(
        |call| matches!(call, Call::Scan(object) if is_named(object, "c/")),
        move || {
            image.snapshot_create("new", 0).unwrap();
            fill(&image, 3);
        },
    );
    assert!(met.work(&mut |_, _| true).unwrap());
    assert!(hooked.ran());
    let image = met.image("disk").unwrap();
    assert!(is_all(&image.snapshot("new").unwrap().read_bytes(0, 4 * OBJECT).unwrap(), 2));
    assert!(is_all(&all(&image), 3));
    // And nothing of the old one is left.
    let names = met.store().list(&"volume".into(), None, 100).wait().unwrap();
    assert_eq!(names.iter().filter(|name| name.starts_with(b"s/")).count(), 4, "{names:?}");
}

/// Failure: the snapshot below a flattened clone could never be unprotected.
/// Cause: the process ended between the change of the clone's header and that of the parent's, and nothing came back to
/// it. Fix: both headers change in one transaction.
#[test]
fn a_parent_is_let_go_of_whenever_the_process_ends() {
    for what in ["flatten", "rollback", "snapshot_remove", "remove"] {
        for submits in 0.. {
            let (hooked, met, beside) = two();
            let image = beside.create("disk", 2 * OBJECT, SMALL, 0).unwrap();
            fill(&image, 1);
            image.snapshot_create("base", 0).unwrap();
            image.snapshot_protect("base").unwrap();
            let child = beside.clone_image("disk", "base", "child", 0).unwrap();
            match what {
                // The image stands on the parent no more, its snapshot does.
                "snapshot_remove" => {
                    child.snapshot_create("s", 0).unwrap();
                    assert!(child.flatten(&mut |_, _| true).unwrap());
                }
                // The other way round: only the image does, until it is rolled back.
                "rollback" => {
                    child.snapshot_create("with", 0).unwrap();
                    assert!(child.flatten(&mut |_, _| true).unwrap());
                    child.snapshot_create("without", 0).unwrap();
                    assert!(child.rollback("with", &mut |_, _| true).unwrap());
                    child.snapshot_remove("with").unwrap();
                }
                _ => {}
            }
            let run = |volumes: &Volumes| -> esker_volume::Result<()> {
                let child = match volumes.image("child") {
                    Err(Error::NoImage { .. }) => return Ok(()),
                    other => other?,
                };
                match what {
                    "flatten" => child.flatten(&mut |_, _| true).map(drop),
                    "rollback" => child.rollback("without", &mut |_, _| true).map(drop),
                    "snapshot_remove" => match child.snapshot_remove("s") {
                        Err(Error::NoSnapshot { .. }) => Ok(()),
                        other => other,
                    },
                    _ => volumes.remove("child"),
                }
            };
            hooked.dies_after(submits);
            let ended = run(&met).is_err();
            run(&beside).unwrap();
            assert!(beside.work(&mut |_, _| true).unwrap());
            let base = beside.image("disk").unwrap();
            base.snapshot_unprotect("base").unwrap_or_else(|error| panic!("{what} ended after {submits}: {error}"));
            base.snapshot_remove("base").unwrap();
            if !ended {
                assert!(submits > 0);
                break;
            }
        }
    }
}

/// Failure: a parent's snapshot lost its protection while a clone stood on it.
/// Cause: whether the clone needs it was looked up before the change, and a rollback came between.
/// Fix: it is looked up under the generation that the change guards.
#[test]
fn a_parent_that_a_rollback_brings_back_is_not_let_go_of() {
    let (hooked, met, beside) = two();
    let image = beside.create("disk", 2 * OBJECT, SMALL, 0).unwrap();
    fill(&image, 1);
    image.snapshot_create("base", 0).unwrap();
    image.snapshot_protect("base").unwrap();
    let child = beside.clone_image("disk", "base", "child", 0).unwrap();
    child.snapshot_create("one", 0).unwrap();
    child.snapshot_create("two", 0).unwrap();
    assert!(child.flatten(&mut |_, _| true).unwrap());
    // While `one` goes, the image is rolled back to `two`, and then that goes as well.
    hooked.before(
        |call| matches!(call, Call::Scan(object) if is_named(object, "h/")),
        move || {
            assert!(child.rollback("two", &mut |_, _| true).unwrap());
            child.snapshot_remove("two").unwrap();
        },
    );
    met.image("child").unwrap().snapshot_remove("one").unwrap();
    assert!(hooked.ran());
    let child = beside.image("child").unwrap();
    let stands = child.info().unwrap().parent.is_some();
    let listed = !beside.children("disk", "base").unwrap().is_empty();
    assert_eq!(stands, listed, "whether the clone stands on the parent, and whether the parent knows");
}

/// Failure: a rollback that was done twice at once took writes back that came after it.
/// Cause: the slower client went on with the objects though the other had finished.
/// Fix: objects are rolled back under the generation in which the rollback was in force, and no other.
#[test]
fn a_rollback_that_another_finished_takes_nothing_back() {
    let (hooked, met, beside) = two();
    let image = beside.create("disk", 4 * OBJECT, SMALL, 0).unwrap();
    fill(&image, 1);
    image.snapshot_create("s", 0).unwrap();
    fill(&image, 2);
    let first = AtomicBool::new(true);
    let finished = met
        .image("disk")
        .unwrap()
        .rollback("s", &mut |_, _| {
            if first.swap(false, Ordering::SeqCst) {
                assert!(image.rollback("s", &mut |_, _| true).unwrap());
                assert!(is_all(&all(&image), 1));
                fill(&image, 3);
            }
            true
        })
        .unwrap();
    assert!(finished && hooked.ran());
    assert!(is_all(&all(&image), 3), "a write was taken back that came after the rollback");
}

/// Failure: an image refused all writes for good.
/// Cause: the snapshot to roll back to was removed, and its name given again, before the mark was made; the mark named
/// the old one. Fix: the name is looked up under the generation that the mark guards.
#[test]
fn a_rollback_means_the_snapshot_that_has_the_name_when_it_begins() {
    let (hooked, met, beside) = two();
    let image = beside.create("disk", 2 * OBJECT, SMALL, 0).unwrap();
    fill(&image, 1);
    image.snapshot_create("s", 0).unwrap();
    let other = image.clone();
    hooked.before(
        |call| matches!(call, Call::Submit),
        move || {
            other.snapshot_remove("s").unwrap();
            other.resize(OBJECT, true).unwrap();
            fill(&other, 2);
            other.snapshot_create("s", 0).unwrap();
            other.resize(3 * OBJECT, true).unwrap();
            fill(&other, 3);
        },
    );
    assert!(met.image("disk").unwrap().rollback("s", &mut |_, _| true).unwrap());
    assert!(hooked.ran());
    image.refresh().unwrap();
    assert_eq!(image.size(), OBJECT);
    assert!(is_all(&all(&image), 2));
    fill(&image, 4);
}

/// Failure: reading while an image was rolled back showed objects from before and after side by side.
/// Cause: reads looked at no header.
/// Fix: what was read counts only if the header is the one that was known, and names no rollback.
#[test]
fn a_read_during_a_rollback_is_an_error_or_one_of_the_two_states() {
    let (_, met, beside) = two();
    let image = beside.create("disk", 4 * OBJECT, SMALL, 0).unwrap();
    fill(&image, 1);
    image.snapshot_create("s", 0).unwrap();
    fill(&image, 2);
    let reader = met.image("disk").unwrap();
    let mut refused = 0;
    let finished = image
        .rollback("s", &mut |_, _| {
            match reader.read_bytes(0, 4 * OBJECT) {
                Ok(found) => assert!(is_all(&found, 1) || is_all(&found, 2), "a mixture was read"),
                Err(Error::Refused { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
            assert!(matches!(reader.extents(0, OBJECT), Err(Error::Refused { .. })));
            true
        })
        .unwrap();
    assert!(finished && refused > 0);
    assert!(is_all(&reader.read_bytes(0, 4 * OBJECT).unwrap(), 1), "the reader sees what is there afterwards");

    // The whole rollback inside one read.
    fill(&image, 3);
    let (hooked, met) = {
        let hooked = Hooked::over(Arc::clone(beside.store()));
        let met = Volumes::open(Arc::clone(&hooked) as Arc<dyn ObjectStore>).unwrap();
        (hooked, met)
    };
    let reader = met.image("disk").unwrap();
    let last = format!("{:016x}", 3);
    hooked.before(
        move |call| matches!(call, Call::Read(object) if object.name().ends_with(last.as_bytes())),
        move || assert!(image.rollback("s", &mut |_, _| true).unwrap()),
    );
    assert!(is_all(&reader.read_bytes(0, 4 * OBJECT).unwrap(), 1), "a mixture was read");
    assert!(hooked.ran());
}

/// Failure: what one connection had discarded another still read, from the parent of an image that had been flattened.
/// Cause: the other handle knew the parent, and reads looked at no header.
/// Fix: as above.
#[test]
fn a_handle_that_knows_an_old_parent_does_not_read_it() {
    let (_, met, beside) = two();
    let image = beside.create("disk", 4 * OBJECT, SMALL, 0).unwrap();
    fill(&image, 1);
    image.snapshot_create("base", 0).unwrap();
    image.snapshot_protect("base").unwrap();
    let child = beside.clone_image("disk", "base", "child", 0).unwrap();
    let reader = met.image("child").unwrap();
    assert!(is_all(&all(&reader), 1));
    assert!(child.flatten(&mut |_, _| true).unwrap());
    child.discard(0, 2 * OBJECT, Durability::Applied).unwrap().wait().unwrap();
    assert!(is_all(&reader.read_bytes(0, 2 * OBJECT).unwrap(), 0), "what was discarded is read from the parent");

    // The same for what a shrinking cut off.
    let other = beside.clone_image("disk", "base", "other", 0).unwrap();
    let reader = met.image("other").unwrap();
    other.resize(OBJECT, true).unwrap();
    other.resize(4 * OBJECT, true).unwrap();
    assert!(is_all(&reader.read_bytes(OBJECT, OBJECT).unwrap(), 0), "what was cut off is read from the parent");
    // And growth is seen.
    other.resize(5 * OBJECT, true).unwrap();
    assert!(is_all(&reader.read_bytes(4 * OBJECT, OBJECT).unwrap(), 0));
}

/// Failure: what a shrinking took away came back by growing.
/// Cause: who finished an older shrinking to the same size said that nothing lay past the end, though a newer one had
/// not been worked off. Fix: the mark is taken away only under the generation under which everything was looked at.
#[test]
fn an_older_shrinking_does_not_vouch_for_a_newer_one() {
    let (hooked, met, beside) = two();
    let dying = Hooked::over(Arc::clone(beside.store()));
    let ends = Volumes::open(Arc::clone(&dying) as Arc<dyn ObjectStore>).unwrap();
    let image = beside.create("disk", 4 * OBJECT, SMALL, 0).unwrap();
    fill(&image, 1);
    // Shrunk, and nothing more.
    dying.dies_after(1);
    ends.image("disk").unwrap().resize(OBJECT, true).unwrap();
    // One process works that off; before it says so another process finishes it, grows, writes, shrinks and ends.
    hooked.before(
        |call| matches!(call, Call::Sync),
        move || {
            image.refresh().unwrap();
            image.resize(4 * OBJECT, true).unwrap();
            fill(&image, 2);
            dying.dies_after(1);
            ends.image("disk").unwrap().resize(OBJECT, true).unwrap();
        },
    );
    assert!(met.work(&mut |_, _| true).unwrap());
    assert!(hooked.ran());
    let image = beside.image("disk").unwrap();
    image.resize(4 * OBJECT, true).unwrap();
    assert!(is_all(&image.read_bytes(OBJECT, 3 * OBJECT).unwrap(), 0), "what was cut off came back");
}

/// Failure: a discard with FUA was answered before the discard that had made it unnecessary was durable.
/// Cause: without anything to change nothing was waited for.
/// Fix: it waits for what is applied.
#[test]
fn a_durable_discard_of_what_is_discarded_already_is_durable() {
    for last in [0, OBJECT + 4096] {
        let device = device(16 << 20);
        let volumes = Volumes::open(engine_on(&device) as Arc<dyn ObjectStore>).unwrap();
        let image = volumes.create("disk", 4 * OBJECT, SMALL, 0).unwrap();
        // Either the object is not there any more, or it ends before the range.
        write(&image, 0, vec![1; 4 * OBJECT as usize]);
        image.flush().wait().unwrap();
        image.discard(0, 2 * OBJECT, Durability::Applied).unwrap().wait().unwrap();
        image.discard(last, 4096, Durability::Durable).unwrap().wait().unwrap();
        let after = Arc::new(esker_device::MemoryDevice::from_image(&device.image()));
        let after = Volumes::open(engine_on(&after) as Arc<dyn ObjectStore>).unwrap();
        let found = after.image("disk").unwrap().read_bytes(last, 4096).unwrap();
        assert!(is_all(&found, 0), "a discard was answered as durable, and is not there after a power cut");
    }
}

/// Failure: an export whose snapshot was removed, and its name given again, ended as if all were well.
/// Cause: whether the snapshot was still there was asked by its name.
/// Fix: it is asked by its number.
#[test]
fn a_diff_of_a_snapshot_whose_name_was_given_again_fails() {
    let (_, _, beside) = two();
    let image = beside.create("disk", 4 * OBJECT, SMALL, 0).unwrap();
    fill(&image, 1);
    image.snapshot_create("s", 0).unwrap();
    fill(&image, 2);
    let mut once = true;
    let outcome = image.diff(None, Some("s"), &mut |_| {
        if std::mem::take(&mut once) {
            image.snapshot_remove("s")?;
            beside.work(&mut |_, _| true)?;
            image.snapshot_create("s", 0)?;
        }
        Ok(true)
    });
    assert!(matches!(outcome, Err(Error::NoSnapshot { .. })), "{outcome:?}");
}

/// Failure: discarding (or importing zeros over) a huge thin image took days.
/// Cause: every object that there could be was looked for.
/// Fix: those that are there are listed.
#[test]
fn discarding_a_huge_thin_range_costs_what_is_there() {
    let (_, _, beside) = two();
    let image = beside.create("disk", IMAGE_BYTES_MAX, SMALL, 0).unwrap();
    for at in [0, 100, 7 << 40, IMAGE_BYTES_MAX - 10] {
        write(&image, at, "data");
    }
    let began = Instant::now();
    image.discard(50, IMAGE_BYTES_MAX - 58, Durability::Durable).unwrap().wait().unwrap();
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
    assert_eq!(image.read_bytes(0, 4).unwrap(), "data");
    assert_eq!(image.read_bytes(100, 4).unwrap(), Bytes::from_static(&[0; 4]));
    assert_eq!(image.read_bytes(7 << 40, 4).unwrap(), Bytes::from_static(&[0; 4]));
    assert_eq!(image.read_bytes(IMAGE_BYTES_MAX - 10, 4).unwrap(), Bytes::from_static(b"\0\0ta"));
    assert!(matches!(image.discard(1, IMAGE_BYTES_MAX, Durability::Applied), Err(Error::PastEnd { .. })));
    image.lock("me").unwrap();
    let refused = beside.image("disk").unwrap().discard(0, IMAGE_BYTES_MAX, Durability::Applied);
    assert!(matches!(refused, Err(Error::Locked { .. })), "{refused:?}");
}

/// Failure: zeros that take space were refused above 64 MiB, which the protocol of disks allows, and took that much
/// memory below. Cause: they were made and written like data of that length. Fix: they are written in parts from one
/// run of zeros.
#[test]
fn zeros_that_take_space_may_be_long() {
    let (_, _, beside) = two();
    let image = beside.create("disk", 200 << 20, esker_volume::Layout::default(), 0).unwrap();
    write(&image, 1000, "data");
    image.zero(10, (200 << 20) - 20, true, Durability::Durable).unwrap().wait().unwrap();
    assert_eq!(image.stored_bytes().unwrap(), (200 << 20) - 20);
    assert_eq!(image.read_bytes(1000, 4).unwrap(), Bytes::from_static(&[0; 4]));
}

/// Failure: a header whose counters are at their end made the next change panic.
/// Cause: they were counted up unchecked.
/// Fix: such a header is damaged.
#[test]
fn counters_at_their_end_are_damage() {
    for at in [8, 56, 112] {
        let (_, _, beside) = two();
        beside.create("disk", OBJECT, SMALL, 0).unwrap();
        let header = ObjectId::new("volume".into(), format!("h/{:016x}", 1));
        let mut state = beside.store().xattr(&header, b"state").wait().unwrap().unwrap().to_vec();
        state[at..at + 8].fill(0xff);
        let change = Change::XattrSet { name: Bytes::from_static(b"state"), value: state.into() };
        let txn = Transaction { ops: [Op::Object(header, change)].into_iter().collect(), ..Transaction::default() };
        beside.store().submit(txn).wait().unwrap();
        assert!(matches!(beside.image("disk"), Err(Error::Damaged { .. })), "byte {at}");
    }
}

#[test]
fn an_image_that_is_being_removed_takes_no_changes() {
    let (_, _, beside) = two();
    let image = beside.create("disk", OBJECT, SMALL, 0).unwrap();
    beside.remove("disk").unwrap();
    assert!(matches!(image.snapshot_create("s", 0), Err(Error::NoImage { .. })));
    assert!(matches!(image.lock("me"), Err(Error::NoImage { .. })));
    assert!(matches!(image.resize(0, true), Err(Error::NoImage { .. })));
    assert!(matches!(image.read(0, 1), Err(Error::NoImage { .. })));
    assert!(beside.work(&mut |_, _| true).unwrap());
    let left = beside.store().list(&"volume".into(), None, 10).wait().unwrap();
    assert_eq!(left, ["directory"]);
}

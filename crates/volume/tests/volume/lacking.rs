//! A backend that is not atomic across objects and clones nothing: what works, and what is refused by name.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use esker_memory::MemoryStore;
use esker_store::contract::{PerObject, Sessions};
use esker_store::{CommitSeq, Completion, Error as StoreError, Forward, ObjectId, ObjectStore, Session, Transaction};
use esker_volume::{Durability, Error, Layout, Volumes};
use fastrand::Rng;
use parking_lot::Mutex;

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
    // A client that may not take the lock shuts no other out.
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
    // No client shuts out a session that was given back: the handle goes on.
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
    let (seen, last) = (std::sync::atomic::AtomicU64::new(0), Mutex::new((0u64, 0u8)));
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
                    seen.fetch_add(1, Ordering::SeqCst);
                    let mut last = last.lock();
                    *last = (epoch, writer).max(*last);
                }
            });
        }
    });
    // The last client that took it wrote all of it, and no client wrote after that.
    assert!(seen.into_inner() > 0);
    let image = volumes.image("disk").unwrap();
    let (epoch, writer) = last.into_inner();
    if image.lock_info().unwrap().epoch == epoch {
        for block in 0..blocks {
            assert_eq!(image.read_bytes(block * 65_536, 1).unwrap(), vec![writer]);
        }
    }
}

type Act = Box<dyn FnOnce() + Send>;

/// Something happens before it is read whose session the header names.
struct AtSession(Arc<dyn ObjectStore>, Mutex<Option<Act>>);

impl Forward for AtSession {
    fn behind(&self) -> &dyn ObjectStore {
        &*self.0
    }

    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        let act = (name == b"session").then(|| self.1.lock().take()).flatten();
        if let Some(act) = act {
            act();
        }
        self.0.xattr(object, name)
    }
}

// Failure: of two that lock at once the one who comes too late shut out the one who has the lock. Cause: the session
// was read after the state, and taken for that of the state's owner. Fix: the generation is looked at behind it.
#[test]
fn who_comes_too_late_shuts_nobody_out() {
    let store: Arc<dyn ObjectStore> = Arc::new(Sessions::new(Arc::new(PerObject(MemoryStore::new()))));
    let volumes = Volumes::open(Arc::clone(&store)).unwrap();
    for (name, breaks) in [("lock", false), ("break", true)] {
        let winner = volumes.create(name, 1 << 20, SMALL, 0).unwrap();
        let first = volumes.image(name).unwrap();
        let epoch = if breaks { first.lock("first").unwrap() } else { 0 };
        let wins = winner.clone();
        let act: Act = Box::new(move || assert!(wins.take_over("winner").unwrap() > 0));
        let late = Volumes::open(Arc::new(AtSession(Arc::clone(&store), Mutex::new(Some(act))))).unwrap();
        let late = late.image(name).unwrap();
        let told = if breaks { late.break_lock(epoch) } else { late.lock("late").map(drop) };
        let expected =
            if breaks { matches!(told, Err(Error::Refused { .. })) } else { matches!(told, Err(Error::Locked { .. })) };
        assert!(expected, "{name}: {told:?}");
        write(&winner, 0, "still");
        assert_eq!(winner.read_bytes(0, 5).unwrap(), "still");
    }
}

// Failure: a client that took the lock over read, through its handle, what a late write of the former owner changed
// afterwards. Cause: only the client that writes had shut that owner out. Fix: the one that reads does so too.
#[test]
fn the_client_that_reads_has_shut_the_former_owner_out_too() {
    let store = Arc::new(Sessions::new(Arc::new(PerObject(MemoryStore::new()))));
    let volumes = Volumes::open(Arc::clone(&store) as Arc<dyn ObjectStore>).unwrap();
    let image = volumes.create("disk", 1 << 20, SMALL, 0).unwrap();
    image.lock("one").unwrap();
    write(&image, 0, "first");
    let next = volumes.image("disk").unwrap();
    next.take_over("two").unwrap();
    assert!(image.write(0, "late".into(), Durability::Durable).is_err());
    assert!(store.knows_all());
    assert_eq!(next.read_bytes(0, 5).unwrap(), "first");
}

// Failure: who unlocked after a write of unknown outcome left that write to be done later, when another had the lock.
// Fix: the own session is shut out first.
#[test]
fn a_write_of_unknown_outcome_is_not_done_once_the_lock_was_given_back() {
    /// Transactions that are on their way, with what they go through.
    type OnTheWay = Arc<Mutex<Vec<(Arc<dyn ObjectStore>, Transaction)>>>;
    struct Loses(Arc<dyn ObjectStore>, OnTheWay, Arc<AtomicBool>);
    impl Forward for Loses {
        fn behind(&self) -> &dyn ObjectStore {
            &*self.0
        }
        fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
            if !self.2.load(Ordering::SeqCst) {
                return self.0.submit(txn);
            }
            self.1.lock().push((Arc::clone(&self.0), txn));
            Completion::ready(Err(StoreError::Unknown { cause: "no answer".into() }))
        }
        fn session(&self) -> esker_store::Result<Session> {
            let Session { store, name } = self.0.session()?;
            Ok(Session { store: Arc::new(Self(store, Arc::clone(&self.1), Arc::clone(&self.2))), name })
        }
    }
    let store: Arc<dyn ObjectStore> = Arc::new(Sessions::new(Arc::new(PerObject(MemoryStore::new()))));
    let (on_the_way, loses) = (OnTheWay::default(), Arc::new(AtomicBool::new(false)));
    let lossy = Loses(store, Arc::clone(&on_the_way), Arc::clone(&loses));
    let volumes = Volumes::open(Arc::new(lossy)).unwrap();
    let image = volumes.create("disk", 1 << 20, SMALL, 0).unwrap();
    image.lock("one").unwrap();
    write(&image, 0, "first");
    loses.store(true, Ordering::SeqCst);
    assert!(image.write(0, "later".into(), Durability::Durable).is_err());
    loses.store(false, Ordering::SeqCst);
    image.unlock().unwrap();
    let next = volumes.image("disk").unwrap();
    next.lock("two").unwrap();
    write(&next, 0, "other");
    let (session, late) = on_the_way.lock().pop().unwrap();
    assert!(matches!(session.submit(late).wait(), Err(StoreError::Stopped { .. })));
    assert_eq!(next.read_bytes(0, 5).unwrap(), "other");
}

//! Transactions that are applied once however many answers are lost, and what the key-value face makes of it.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use esker_kv::{Durability, Entry, Kind, Kv, ManualClock};
use esker_memory::MemoryStore;
use esker_remote::Place;
use esker_store::{
    Change, Collection, CommitSeq, Compare, Completion, Condition, Error, Forward, ObjectId, ObjectStore, Transaction,
};
use support::{Running, Wire, open};

fn object() -> ObjectId {
    ObjectId::new("home".into(), "object")
}

fn home(store: &dyn ObjectStore) {
    store.submit(Transaction::new().create_collection(&"home".into()).change(&object(), Change::Touch)).wait().unwrap();
}

/// Adds one to a number that is `count` now: what is applied twice is refused the second time.
fn count_on(count: u64) -> Transaction {
    let name = Bytes::from("count");
    let condition =
        Condition::XattrCompare { name: name.clone(), compare: Compare::Equal, value: count, absent_holds: count == 0 };
    let value = Bytes::copy_from_slice(&(count + 1).to_le_bytes());
    Transaction::new().once().guard(&object(), condition).change(&object(), Change::XattrSet { name, value })
}

fn clients(store: &dyn ObjectStore) -> Vec<Bytes> {
    store.list(&Collection::from("operations"), None, 10_000).wait().unwrap()
}

#[test]
fn what_is_to_be_applied_once_is_however_many_answers_are_lost() {
    let memory = Arc::new(MemoryStore::new());
    let server = Running::start(0, Some(Arc::clone(&memory) as _), None);
    let wire = Wire::to(&server);
    let store = open(Place::Tcp(wire.address.clone()));
    home(&*memory);
    for count in 0..12 {
        wire.lose.store(count as u32 % 4, Ordering::SeqCst);
        store.submit(count_on(count)).wait().unwrap();
        assert_eq!(wire.lose.load(Ordering::SeqCst), 0, "answers of {count} were not lost");
    }
    // A guard of its own is told as it was given.
    let of_two = count_on(12).guard(&object(), Condition::Absent);
    for lost in [0, 1] {
        wire.lose.store(lost, Ordering::SeqCst);
        assert!(matches!(store.submit(of_two.clone()).wait(), Err(Error::GuardFailed { index: 1 })));
        wire.lose.store(lost, Ordering::SeqCst);
        assert!(matches!(store.submit(count_on(3)).wait(), Err(Error::GuardFailed { index: 0 })));
    }
    assert_eq!(clients(&*memory).len(), 1);
}

#[test]
fn many_threads_of_a_client_lose_nothing() {
    let memory = Arc::new(MemoryStore::new());
    let server = Running::start(0, Some(Arc::clone(&memory) as _), None);
    let wire = Wire::to(&server);
    let store = open(Place::Tcp(wire.address.clone()));
    home(&*memory);
    std::thread::scope(|scope| {
        for thread in 0..24 {
            let (store, wire) = (&store, &wire);
            scope.spawn(move || {
                for n in 0..10 {
                    let index = thread * 10 + n;
                    if n == 5 && thread % 6 == 0 {
                        wire.lose.fetch_add(1, Ordering::SeqCst);
                    }
                    let absent = Condition::SlotAbsent { index };
                    let set = Change::SlotSet { index, value: "v".into() };
                    let txn = Transaction::new().once().guard(&object(), absent).change(&object(), set);
                    store.submit(txn).wait().unwrap();
                }
            });
        }
    });
    assert_eq!(memory.stat(&object()).wait().unwrap().unwrap().slots, 240);
    assert_eq!(clients(&*memory).len(), 1);
}

#[test]
fn a_client_whose_object_was_removed_takes_another() {
    let memory = Arc::new(MemoryStore::new());
    let server = Running::start(0, Some(Arc::clone(&memory) as _), None);
    let store = open(server.place());
    home(&*memory);
    store.submit(count_on(0)).wait().unwrap();
    let first = clients(&*memory);
    memory.submit(Transaction::new().change(&client(&first[0]), Change::Remove)).wait().unwrap();
    store.submit(count_on(1)).wait().unwrap();
    store.submit(count_on(2)).wait().unwrap();
    assert_eq!(clients(&*memory).len(), 1);
}

fn client(name: &Bytes) -> ObjectId {
    ObjectId::new("operations".into(), name.clone())
}

#[test]
fn objects_of_the_oldest_clients_are_removed() {
    let memory = Arc::new(MemoryStore::new());
    home(&*memory);
    let mut txn = Transaction::new().create_collection(&"operations".into());
    (1..=5_000u64).for_each(|n| txn.push(&client(&n.to_be_bytes().to_vec().into()), Change::Touch));
    memory.submit(txn).wait().unwrap();
    let server = Running::start(0, Some(Arc::clone(&memory) as _), None);
    open(server.place()).submit(count_on(0)).wait().unwrap();
    let left = clients(&*memory);
    assert_eq!((left.len(), &left[4_095][..]), (4_096, &5_001u64.to_be_bytes()[..]));
}

/// Removes the objects of clients after each transaction that it is told to.
struct Forgetful {
    memory: Arc<MemoryStore>,
    forget: AtomicBool,
}

impl Forward for Forgetful {
    fn behind(&self) -> &dyn ObjectStore {
        &*self.memory
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        let done = self.memory.submit(txn);
        if self.forget.load(Ordering::SeqCst) {
            for name in clients(&*self.memory) {
                self.memory.submit(Transaction::new().change(&client(&name), Change::Remove)).wait().unwrap();
            }
        }
        done
    }
}

#[test]
fn where_nothing_tells_any_more_the_outcome_is_unknown() {
    let store = Arc::new(Forgetful { memory: Arc::new(MemoryStore::new()), forget: AtomicBool::new(false) });
    let server = Running::start(0, Some(Arc::clone(&store) as _), None);
    let wire = Wire::to(&server);
    let remote = open(Place::Tcp(wire.address.clone()));
    home(&*store.memory);
    remote.submit(count_on(0)).wait().unwrap();
    store.forget.store(true, Ordering::SeqCst);
    wire.lose.store(1, Ordering::SeqCst);
    let unknown = remote.submit(count_on(1)).wait();
    assert!(matches!(unknown, Err(Error::Unknown { .. })), "{unknown:?}");
    store.forget.store(false, Ordering::SeqCst);
    remote.submit(count_on(2)).wait().unwrap();
}

#[test]
fn changes_of_keys_are_told_as_they_were_though_answers_are_lost() {
    for kind in [Kind::Int, Kind::Bytes] {
        let server = Running::start(0, Some(Arc::new(MemoryStore::new())), None);
        let wire = Wire::to(&server);
        let store = open(Place::Tcp(wire.address.clone()));
        let kv = Kv::open(Arc::new(store), Arc::new(ManualClock::new(1_000))).unwrap();
        let lossy = || wire.lose.store(1, Ordering::SeqCst);
        lossy();
        let namespace = kv.namespace("n", kind).unwrap();
        let key = if kind == Kind::Int { esker_kv::Key::Int(7) } else { esker_kv::Key::Bytes(b"seven") };
        for lose in 0..3 {
            let lose = || wire.lose.store(lose, Ordering::SeqCst);
            lose();
            assert!(namespace.add(key, "a".into()).wait().unwrap());
            lose();
            assert!(namespace.compare_and_set(key, Some(b"a"), "b".into()).wait().unwrap());
            lose();
            assert!(!namespace.add(key, "c".into()).wait().unwrap());
            let append = |txn: &mut esker_kv::Txn<'_>| -> esker_kv::Result<()> {
                let old = txn.get(&namespace, key)?.unwrap();
                txn.put(&namespace, key, Entry::new([&old.value[..], b"+"].concat()));
                Ok(())
            };
            lose();
            kv.transact(&[(&namespace, key)], Durability::Durable, append).unwrap();
            assert_eq!(namespace.get(key).wait().unwrap().unwrap(), "b+");
            lose();
            assert!(namespace.remove(key).wait().unwrap());
            assert!(!namespace.remove(key).wait().unwrap());
        }
        lossy();
        kv.remove_namespace("n").unwrap();
        assert!(kv.namespaces().unwrap().is_empty());
    }
}

/// Refuses, or stops answering, once so many transactions came.
struct Refusing {
    store: Arc<dyn ObjectStore>,
    /// Transactions that are let through before one is refused with `Full`.
    before: std::sync::atomic::AtomicI64,
}

impl Forward for Refusing {
    fn behind(&self) -> &dyn ObjectStore {
        &*self.store
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        if self.before.fetch_sub(1, Ordering::SeqCst) == 0 {
            return Completion::ready(Err(Error::Full { needed: 1, free: 0 }));
        }
        self.store.submit(txn)
    }
}

/// Failure: a transaction was applied, its answer was lost, and the second attempt was refused for another reason: its
/// caller was told
/// that nothing had been applied. Fix: after a lost answer a refusal is told only once the lane says that the first
/// attempt never
/// will be.
#[test]
fn a_refusal_after_a_lost_answer_is_not_taken_for_the_first_answer() {
    let memory = Arc::new(MemoryStore::new());
    home(&*memory);
    let refusing = Arc::new(Refusing { store: Arc::clone(&memory) as _, before: i64::MAX.into() });
    let server = Running::start(0, Some(Arc::clone(&refusing) as _), None);
    let wire = Wire::to(&server);
    let store = open(Place::Tcp(wire.address.clone()));
    store.submit(count_on(0)).wait().unwrap();
    for count in 1..4 {
        wire.lose.store(1, Ordering::SeqCst);
        refusing.before.store(1, Ordering::SeqCst);
        store.submit(count_on(count)).wait().unwrap();
        assert!(refusing.before.load(Ordering::SeqCst) < 0, "the second attempt was refused");
    }
    // One whose first attempt was refused, unheard, and whose second is refused too: nothing was applied, and that is
    // told.
    wire.lose.store(1, Ordering::SeqCst);
    refusing.before.store(1, Ordering::SeqCst);
    let of_two = count_on(4).guard(&object(), Condition::Absent);
    let refused = store.submit(of_two).wait().unwrap_err();
    assert!(!refused.is_unknown(), "{refused}");
    let name = b"count";
    let count = memory.xattr(&object(), name).wait().unwrap().unwrap();
    assert_eq!(count[..], 4u64.to_le_bytes());
    store.submit(count_on(4)).wait().unwrap();
}

/// Failure: the number of an operation made a transaction that only takes away one that adds, so that a full store
/// could not be emptied
/// over a network.
#[test]
fn a_full_store_is_emptied_by_operations_that_are_applied_once() {
    let device = Arc::new(esker_device::MemoryDevice::new(32 << 20));
    let layout = esker_engine::FormatOptions { segment_bytes: 256 << 10, uuid: [9; 16] };
    esker_engine::Engine::format(&*device, &layout).unwrap();
    let engine = Arc::new(esker_engine::Engine::open(device, esker_engine::Options::default()).unwrap());
    let server = Running::start(0, Some(Arc::clone(&engine) as _), None);
    let store: Arc<dyn ObjectStore> = Arc::new(open(server.place()));
    let kv = Kv::open(Arc::clone(&store), Arc::new(ManualClock::new(1_000))).unwrap();
    for kind in [Kind::Bytes, Kind::Int] {
        let namespace = kv.namespace("n", kind).unwrap();
        let key = |n: u64| match kind {
            Kind::Int => esker_kv::OwnedKey::Int(n),
            Kind::Bytes => esker_kv::OwnedKey::Bytes(n.to_string().into()),
        };
        let (mut keys, mut refused) = (0, 0);
        while refused < 3 {
            let bytes = [40_000, 1_000, 20][refused];
            match namespace.put_with(&key(keys), Entry::new(vec![7; bytes]), Durability::Applied).wait() {
                Ok(()) => keys += 1,
                Err(Error::Full { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(keys > 200, "{keys}");
        for n in keys - 20..keys {
            assert!(namespace.remove(&key(n)).wait().unwrap(), "{kind} {n} of {keys}");
        }
        let many: Vec<_> = (0..20).map(key).collect();
        let many: Vec<_> = many.iter().map(|key| key.as_key()).collect();
        assert_eq!(namespace.remove_many(&many).wait().unwrap(), 20);
        if kind == Kind::Bytes {
            namespace.clear().wait().unwrap();
        }
        kv.remove_namespace("n").unwrap();
        assert!(kv.namespaces().unwrap().is_empty());
    }
}

/// Failure: the answer of `lock` was lost, the second attempt met the first one's lock, and its owner was told that
/// another has it.
#[test]
fn locks_and_snapshots_of_volumes_are_made_once_though_answers_are_lost() {
    let memory = Arc::new(MemoryStore::new());
    let server = Running::start(0, Some(Arc::clone(&memory) as _), None);
    let wire = Wire::to(&server);
    let store = open(Place::Tcp(wire.address.clone()));
    let volumes = esker_volume::Volumes::open(Arc::new(store)).unwrap();
    volumes.create("first", 1, esker_volume::Layout::default(), 0).unwrap();
    for round in 0..4u64 {
        let lost = || wire.lose.store(round as u32 % 3, Ordering::SeqCst);
        let name = format!("disk {round}");
        lost();
        let image = volumes.create(&name, 1 << 20, esker_volume::Layout::default(), 0).unwrap();
        assert_eq!(image.id(), round + 2, "an id is given once");
        lost();
        assert_eq!(image.lock("me").unwrap(), 1);
        lost();
        image.snapshot_create("s", 0).unwrap();
        assert_eq!(image.snapshots().unwrap().len(), 1);
        lost();
        image.unlock().unwrap();
    }
    assert_eq!(volumes.list().unwrap().len(), 5);
}

/// Answers as its script says: whether a transaction is applied, and whether that is told.
struct Scripted {
    store: Arc<MemoryStore>,
    script: std::sync::Mutex<Vec<(bool, Option<Error>)>>,
}

impl Forward for Scripted {
    fn behind(&self) -> &dyn ObjectStore {
        &*self.store
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        let mut script = self.script.lock().unwrap();
        if script.is_empty() {
            return self.store.submit(txn);
        }
        let (applied, answer) = script.remove(0);
        let done = if applied { Some(self.store.submit(txn)) } else { None };
        match (answer, done) {
            (Some(error), _) => Completion::ready(Err(error)),
            (None, Some(done)) => done,
            (None, None) => panic!("nothing is told of nothing"),
        }
    }
}

/// Failure: what was put to keep a late attempt out was the operation's own number. Its answer was lost too, and the
/// next look at the lane
/// took it for the operation: acknowledged, and never applied.
#[test]
fn a_fence_whose_answer_is_lost_is_not_taken_for_what_it_fences() {
    let unknown = || Some(Error::Unknown { cause: "lost".into() });
    let full = || Some(Error::Full { needed: 1, free: 0 });
    for (script, expected) in [
        // Never arrived, refused, fence applied and unheard.
        (vec![(false, unknown()), (false, full()), (true, unknown())], false),
        // The same, and the fence is lost on its way at first.
        (vec![(false, unknown()), (false, full()), (false, unknown()), (false, full()), (true, unknown())], false),
        // Applied and unheard, refused: the fence finds that.
        (vec![(true, unknown()), (false, full())], true),
        (vec![(true, unknown()), (false, full()), (false, unknown()), (false, full())], true),
    ] {
        let memory = Arc::new(MemoryStore::new());
        home(&*memory);
        let scripted = Arc::new(Scripted { store: Arc::clone(&memory), script: std::sync::Mutex::default() });
        let server = Running::start(0, Some(Arc::clone(&scripted) as _), None);
        let store = open(server.place());
        store.submit(count_on(0)).wait().unwrap();
        let count =
            || u64::from_le_bytes(memory.xattr(&object(), b"count").wait().unwrap().unwrap()[..].try_into().unwrap());
        let shown = format!("{script:?}");
        *scripted.script.lock().unwrap() = script;
        match store.submit(count_on(1)).wait() {
            Ok(_) => assert!(expected && count() == 2, "{shown}: acknowledged, {}", count()),
            Err(error) => assert!(!expected && !error.is_unknown() && count() == 1, "{shown}: {error}"),
        }
        assert!(scripted.script.lock().unwrap().is_empty(), "{shown}");
        // The lane goes on.
        store.submit(count_on(count())).wait().unwrap();
    }
}

/// Notes what is asked of it.
#[derive(Default)]
struct Asked {
    memory: MemoryStore,
    durabilities: parking_lot::Mutex<Vec<Durability>>,
}

impl Forward for Asked {
    fn behind(&self) -> &dyn ObjectStore {
        &self.memory
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        self.durabilities.lock().push(txn.durability);
        ObjectStore::submit(&self.memory, txn)
    }
}

/// Failure: a client was told that its write was applied, and it was not. Cause: a crash of a store that
/// acknowledges what is applied took back the object of a client, and another got the same, and the same numbers.
#[test]
fn what_is_asked_of_a_write_is_told_the_server_and_clients_are_durable_always() {
    let asked = Arc::new(Asked::default());
    let server = Running::start(0, Some(Arc::clone(&asked) as _), None);
    let store = open(server.place());
    home(&asked.memory);
    for durability in [Durability::Durable, Durability::Always, Durability::Applied] {
        asked.durabilities.lock().clear();
        store.submit(Transaction::with(durability).change(&object(), Change::Touch)).wait().unwrap();
        assert_eq!(*asked.durabilities.lock(), [durability]);
    }
    asked.durabilities.lock().clear();
    store.submit(count_on(0)).wait().unwrap();
    assert_eq!(*asked.durabilities.lock(), [Durability::Always, Durability::Always, Durability::Durable]);
}

//! Transactions that are applied once although their answers are lost ([`Transaction::once`]).
//!
//! transaction → a free lane, its next number → guard "the lane's number is lower" + the number → submit · answer lost → again, the same ·
//! refused by that guard → does the lane hold this number? then it was applied
//!
//! Each client has an object of its own in collection `operations`, named by a number as 8 bytes (big-endian); its xattr `l/INDEX` holds
//! the number of the last operation of that lane (u64, little-endian).
//!
//! Invariants:
//! 1. A lane has one operation at a time, and its numbers rise: one that is late on its way is refused once the next was applied.
//! 2. Lanes are made before they are used: where one is missing, its object was removed, and nothing of this client is applied by it.
//! 3. Names of clients' objects rise and are never used again; only the newest [`CLIENTS_MAX`] are kept.

use bytes::Bytes;
use esker_store::{
    Change, Collection, CommitSeq, Compare, Condition, Error, Guard, ObjectId, ObjectStore, Op, Result, Transaction,
};
use parking_lot::Mutex;

/// Clients whose objects are kept.
const CLIENTS_MAX: usize = 4_096;
/// Names asked for: more than there are.
const NAMES: usize = 2 * CLIENTS_MAX;
/// Lanes that are made at once.
const LANES: u64 = 8;
/// How often a transaction is sent, how long is waited before the second time, and the longest wait. In all about 4 s.
const TRIES: u32 = 8;
const AGAIN: std::time::Duration = std::time::Duration::from_millis(50);
const AGAIN_MAX: std::time::Duration = std::time::Duration::from_secs(1);

fn collection() -> Collection {
    Collection::from("operations")
}

/// What is used for one operation at a time.
#[derive(Debug)]
struct Lane {
    object: ObjectId,
    name: Bytes,
    /// Of its last operation.
    number: u64,
}

/// The lanes of a client.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    own: Mutex<Own>,
}

#[derive(Debug, Default)]
struct Own {
    object: Option<ObjectId>,
    made: u64,
    free: Vec<Lane>,
}

impl Operations {
    /// Submits `txn` to `store`, which sends each transaction once, until an answer tells what became of it.
    ///
    /// # Errors
    /// Those of [`ObjectStore::submit`]; `Unknown` after [`TRIES`] lost answers, or where another removed this client's object.
    pub(crate) fn submit(&self, store: &dyn ObjectStore, txn: Transaction) -> Result<CommitSeq> {
        let txn = Transaction { once: false, ..txn };
        loop {
            let lane = self.take(store);
            // A store that cannot take a lane, or a transaction without room for one, is asked once.
            let Ok(mut lane) = lane else { return store.submit(txn).wait() };
            lane.number += 1;
            let Some(numbered) = lane.number(&txn) else {
                self.own.lock().free.push(lane);
                return store.submit(txn).wait();
            };
            match lane.submit(store, numbered) {
                Done::Told(outcome) => {
                    self.own.lock().free.push(lane);
                    return outcome;
                }
                Done::Unknown(error) => return Err(error),
                // Its object was removed before anything of this transaction was applied.
                Done::NoLane => self.own.lock().forget(&lane.object),
            }
        }
    }

    fn take(&self, store: &dyn ObjectStore) -> Result<Lane> {
        let mut own = self.own.lock();
        if let Some(lane) = own.free.pop() {
            return Ok(lane);
        }
        let object = match &own.object {
            Some(object) => object.clone(),
            None => register(store)?,
        };
        let first = own.made;
        if let Err(error) = make_lanes(store, &object, first) {
            own.forget(&object);
            return Err(error);
        }
        let end = first + LANES;
        own.free.extend((first..end).map(|index| Lane { object: object.clone(), name: lane_name(index), number: 0 }));
        (own.object, own.made) = (Some(object), end);
        own.free.pop().ok_or(Error::Closed)
    }
}

impl Own {
    /// Uses another object from now on than this one.
    fn forget(&mut self, object: &ObjectId) {
        self.free.retain(|lane| lane.object != *object);
        if self.object.as_ref() == Some(object) {
            (self.object, self.made) = (None, 0);
        }
    }
}

/// What became of a numbered transaction.
enum Done {
    Told(Result<CommitSeq>),
    Unknown(Error),
    NoLane,
}

impl Lane {
    /// The transaction with this operation's number; `None` if it has no room for it.
    fn number(&self, txn: &Transaction) -> Option<Transaction> {
        let mut numbered = txn.clone();
        let condition = Condition::XattrCompare {
            name: self.name.clone(),
            compare: Compare::Less,
            value: self.number,
            absent_holds: false,
        };
        numbered.guards.insert(0, Guard { object: self.object.clone(), condition });
        let change = Change::XattrSet { name: self.name.clone(), value: encode(self.number) };
        numbered.ops.push(Op::Object(self.object.clone(), change));
        numbered.check().is_ok().then_some(numbered)
    }

    fn submit(&self, store: &dyn ObjectStore, numbered: Transaction) -> Done {
        let mut lost: Option<Error> = None;
        let mut wait = AGAIN;
        for _ in 0..TRIES {
            match store.submit(numbered.clone()).wait() {
                Err(error @ Error::Unknown { .. }) => lost = Some(error),
                Err(Error::GuardFailed { index: 0 }) => match (self.held(store), lost.take()) {
                    // The read is answered once what it shows is durable. The number that the store gave is lost; this is not lower.
                    (Ok(Some(number)), _) if number == self.number => return Done::Told(store.sync().wait()),
                    (Ok(_), None) => return Done::NoLane,
                    (Ok(_), Some(error)) => return Done::Unknown(error),
                    (Err(error), _) => lost = Some(Error::Unknown { cause: error.to_string() }),
                },
                Err(Error::GuardFailed { index }) => return Done::Told(Err(Error::GuardFailed { index: index - 1 })),
                told => return Done::Told(told),
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(AGAIN_MAX);
        }
        Done::Unknown(lost.unwrap_or(Error::Closed))
    }

    fn held(&self, store: &dyn ObjectStore) -> Result<Option<u64>> {
        let stored = store.xattr(&self.object, &self.name).wait()?;
        Ok(stored.and_then(|stored| Some(u64::from_le_bytes(stored[..].try_into().ok()?))))
    }
}

/// Makes the lanes from index `first` on.
fn make_lanes(store: &dyn ObjectStore, object: &ObjectId, first: u64) -> Result<()> {
    // Once only: made again late, they would forget their numbers.
    let absent = Condition::XattrAbsent { name: lane_name(first) };
    let mut txn = Transaction::new().guard(object, Condition::Exists).guard(object, absent);
    for index in first..first + LANES {
        txn.push(object, Change::XattrSet { name: lane_name(index), value: encode(0) });
    }
    let mut tries = 1;
    loop {
        match store.submit(txn.clone()).wait() {
            Ok(_) | Err(Error::GuardFailed { index: 1 }) => return Ok(()),
            Err(Error::Unknown { .. }) if tries < TRIES => tries += 1,
            Err(error) => return Err(error),
        }
        std::thread::sleep(AGAIN);
    }
}

/// Makes the object of a new client, and removes those of the oldest.
fn register(store: &dyn ObjectStore) -> Result<ObjectId> {
    let collection = collection();
    let mut tries = 1;
    loop {
        let mut names = match store.list(&collection, None, NAMES).wait() {
            Err(Error::NoCollection { .. }) => Vec::new(),
            names => names?,
        };
        let last = names.last().and_then(|name| Some(u64::from_be_bytes(name[..].try_into().ok()?)));
        let object = ObjectId::new(collection.clone(), (last.unwrap_or(0) + 1).to_be_bytes().to_vec());
        let mut txn = Transaction::new().create_collection(&collection).guard(&object, Condition::Absent);
        txn.push(&object, Change::Touch);
        names.truncate((names.len() + 1).saturating_sub(CLIENTS_MAX));
        for name in names {
            txn.push(&ObjectId::new(collection.clone(), name), Change::Remove);
        }
        match store.submit(txn).wait() {
            Ok(_) => return Ok(object),
            Err(Error::GuardFailed { .. }) => {}
            // It may be there; the next number is as good.
            Err(Error::Unknown { .. }) if tries < TRIES => tries += 1,
            Err(error) => return Err(error),
        }
        std::thread::sleep(AGAIN);
    }
}

fn lane_name(index: u64) -> Bytes {
    format!("l/{index}").into()
}

fn encode(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

//! Transactions that are applied once although their answers are lost ([`Transaction::once`]).
//!
//! transaction → a free lane, its next number → guard "the lane's number is lower" + the number → submit · answer lost
//! → again, the same · refused by that guard → does the lane hold this number? then it was applied · refused otherwise
//! after a lost answer → the next number is put by itself, a fence: then what was lost is never applied, and the
//! refusal is the answer
//!
//! Each client has an object of its own in collection `operations`, named by a number as 8 bytes (big-endian); its
//! xattr `l/INDEX` holds the number of the last operation of that lane (u64, little-endian).
//!
//! Invariants:
//! 1. A lane has one operation at a time, and its numbers rise: one that is late on its way is refused once the next
//!    was applied. So a lane is used again even if the client does not know what became of its last operation.
//! 2. Lanes are made before they are used: where one is missing, its object was removed, and nothing of this client is
//!    applied by it.
//! 3. Names of clients' objects rise and are never used again; only the newest [`CLIENTS_MAX`] are kept.

use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_store::{
    Change, Collection, CommitSeq, Compare, Condition, Durability, Error, Guard, ObjectId, ObjectStore, Op, Result,
    Retry, Transaction,
};
use parking_lot::Mutex;

/// Clients whose objects are kept.
const CLIENTS_MAX: usize = 4_096;
/// Names asked for: more than there are.
const NAMES: usize = 2 * CLIENTS_MAX;
/// Lanes that are made at once.
const LANES: u64 = 8;
/// How often a transaction is sent, how long is waited before the second time, and the longest wait. In all about 4 s,
/// where the
/// server refuses connections.
const TRIES: u32 = 8;
const AGAIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_secs(1);
/// Nothing is sent again when so much time has passed: a server that does not answer costs a time-out more at most.
const PATIENCE: Duration = Duration::from_secs(10);

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
    /// Never held over a call.
    own: Mutex<Own>,
    /// Held by the caller that makes lanes, while it asks the server.
    making: Mutex<()>,
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
    /// Those of [`ObjectStore::submit`]; `Unknown` after [`TRIES`] lost answers, or where another removed this client's
    /// object.
    pub(crate) fn submit(&self, store: &dyn ObjectStore, txn: Transaction) -> Result<CommitSeq> {
        let txn = Transaction { once: false, ..txn };
        loop {
            let lane = self.take(store);
            // A store that cannot take a lane, or a transaction without room for one, is asked once.
            let Ok(mut lane) = lane else { return store.submit(txn).wait() };
            lane.number += 1;
            let Some(numbered) = lane.numbered(&txn) else {
                self.own.lock().free.push(lane);
                return store.submit(txn).wait();
            };
            match lane.submit(store, numbered) {
                Done::Told(outcome) => {
                    self.own.lock().free.push(lane);
                    if matches!(outcome, Err(Error::Full { .. })) && only_takes_away(&txn) {
                        // Without a number it goes by the room that is left for what takes away.
                        return store.submit(txn).wait();
                    }
                    return outcome;
                }
                // Its object was removed before anything of this transaction was applied; or the client cannot tell.
                Done::NoLane(lost) => {
                    self.own.lock().forget(&lane.object);
                    if let Some(error) = lost {
                        return Err(error);
                    }
                }
            }
        }
    }

    fn free(&self) -> Option<Lane> {
        self.own.lock().free.pop()
    }

    fn take(&self, store: &dyn ObjectStore) -> Result<Lane> {
        if let Some(lane) = self.free() {
            return Ok(lane);
        }
        let _making = self.making.lock();
        // Another has made some, or given one back, meanwhile.
        if let Some(lane) = self.free() {
            return Ok(lane);
        }
        let (object, first) = {
            let own = self.own.lock();
            (own.object.clone(), own.made)
        };
        let object = object.map_or_else(|| register(store), Ok)?;
        if let Err(error) = make_lanes(store, &object, first) {
            self.own.lock().forget(&object);
            return Err(error);
        }
        let end = first + LANES;
        let lane = |index| Lane { object: object.clone(), name: lane_name(index), number: 0 };
        let mut own = self.own.lock();
        own.free.extend((first + 1..end).map(lane));
        own.made = end;
        let lane = lane(first);
        own.object = Some(object);
        Ok(lane)
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
    /// The lane may be used again.
    Told(Result<CommitSeq>),
    /// The lane is gone; with an error if something may have been applied before it went.
    NoLane(Option<Error>),
}

impl Lane {
    /// The transaction with this operation's number; `None` if it has no room for it.
    fn numbered(&self, txn: &Transaction) -> Option<Transaction> {
        let mut numbered = txn.clone();
        let condition = Condition::XattrCompare {
            name: self.name.clone(),
            compare: Compare::Less,
            value: self.number,
            absent_holds: false,
        };
        numbered.guards.insert(0, Guard { object: self.object.clone(), condition });
        // What only takes away does so with the number too.
        numbered.gives_back |= only_takes_away(txn);
        numbered.ops.push(Op::Object(self.object.clone(), self.put_number()));
        numbered.check().is_ok().then_some(numbered)
    }

    fn put_number(&self) -> Change {
        Change::XattrSet { name: self.name.clone(), value: encode(self.number) }
    }

    fn submit(&mut self, store: &dyn ObjectStore, numbered: Transaction) -> Done {
        let number = self.number;
        // How an answer was lost, and what a later attempt was refused with.
        let (mut lost, mut refused): (Option<Error>, Option<Error>) = (None, None);
        let mut pause = Pause::new();
        loop {
            match store.submit(numbered.clone()).wait() {
                Ok(seq) => return Done::Told(Ok(seq)),
                Err(error @ Error::Unknown { .. }) => lost = Some(error),
                Err(Error::GuardFailed { index: 0 }) => match self.look(store, number) {
                    Ok(Looked::Applied(seq)) => return Done::Told(Ok(seq)),
                    // The fence was put, though its answer was lost: none is put before there is a refusal.
                    Ok(Looked::Fenced) => return Done::Told(Err(refused.unwrap_or(Error::Closed))),
                    Ok(Looked::Gone) => return Done::NoLane(lost),
                    Err(error) => lost = Some(Error::Unknown { cause: error.to_string() }),
                },
                Err(error) => {
                    let error = match error {
                        Error::GuardFailed { index } => Error::GuardFailed { index: index - 1 },
                        other => other,
                    };
                    if lost.is_none() {
                        // Nothing that was sent before can still be applied.
                        return Done::Told(Err(error));
                    }
                    refused = Some(error);
                    match self.fence(store, number) {
                        Ok(Looked::Applied(seq)) => return Done::Told(Ok(seq)),
                        Ok(Looked::Fenced) => return Done::Told(Err(refused.unwrap_or(Error::Closed))),
                        Ok(Looked::Gone) => return Done::NoLane(lost),
                        // The next attempt finds out.
                        Err(_) => {}
                    }
                }
            }
            if !pause.again() {
                return Done::Told(Err(lost.unwrap_or(Error::Closed)));
            }
        }
    }

    /// After the guard of the lane has failed: what its number says of operation `number`.
    fn look(&self, store: &dyn ObjectStore, number: u64) -> Result<Looked> {
        // It is answered once what it shows is durable.
        match self.held(store)? {
            // The sequence number that the store gave is lost; this one is not lower.
            Some(held) if held == number => Ok(Looked::Applied(store.sync().wait()?)),
            Some(held) if held == number + 1 => Ok(Looked::Fenced),
            _ => Ok(Looked::Gone),
        }
    }

    /// Puts the number after `number`, which no operation has, so that what is on its way with `number` is never
    /// applied.
    fn fence(&mut self, store: &dyn ObjectStore, number: u64) -> Result<Looked> {
        self.number = number + 1;
        let condition = Condition::XattrCompare {
            name: self.name.clone(),
            compare: Compare::Less,
            value: number,
            absent_holds: false,
        };
        let txn = Transaction::with(Durability::Always).giving_back().guard(&self.object, condition);
        match store.submit(txn.change(&self.object, self.put_number())).wait() {
            Ok(_) => Ok(Looked::Fenced),
            Err(Error::GuardFailed { .. }) => self.look(store, number),
            Err(error) => Err(error),
        }
    }

    fn held(&self, store: &dyn ObjectStore) -> Result<Option<u64>> {
        let stored = store.xattr(&self.object, &self.name).wait()?;
        Ok(stored.and_then(|stored| Some(u64::from_le_bytes(stored[..].try_into().ok()?))))
    }
}

/// What the lane of an operation says of it.
enum Looked {
    Applied(CommitSeq),
    /// It was not applied, and never will be.
    Fenced,
    /// There is no such lane any more, or it is another's.
    Gone,
}

/// Waits between attempts.
struct Pause {
    began: Instant,
    tries: u32,
    wait: Duration,
}

impl Pause {
    fn new() -> Self {
        Self { began: Instant::now(), tries: 1, wait: AGAIN }
    }

    /// Waits before the next attempt, if there is to be one.
    fn again(&mut self) -> bool {
        if self.tries == TRIES || self.began.elapsed() > PATIENCE {
            return false;
        }
        self.tries += 1;
        std::thread::sleep(self.wait);
        self.wait = (self.wait * 2).min(AGAIN_MAX);
        true
    }
}

fn only_takes_away(txn: &Transaction) -> bool {
    !txn.ops.is_empty() && !txn.ops.iter().any(adds)
}

/// Whether an operation needs room.
fn adds(op: &Op) -> bool {
    match op {
        Op::CreateCollection(_) => true,
        Op::RemoveCollection(_) => false,
        Op::Object(_, change) => {
            change.creates()
                || matches!(change, Change::CloneTo { .. } | Change::CloneRange { .. } | Change::Rename { .. })
        }
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
    txn.gives_back = true;
    // Numbers that a crash took back would be used again, by another.
    txn.be_relied_on();
    let mut pause = Pause::new();
    loop {
        match store.submit(txn.clone()).wait() {
            Ok(_) | Err(Error::GuardFailed { index: 1 }) => return Ok(()),
            Err(Error::Unknown { .. }) if pause.again() => {}
            Err(error) => return Err(error),
        }
    }
}

/// Makes the object of a new client, and removes those of the oldest.
fn register(store: &dyn ObjectStore) -> Result<ObjectId> {
    let collection = collection();
    let (mut pause, mut retry) = (Pause::new(), Retry::default());
    loop {
        let mut names = match store.list(&collection, None, NAMES).wait() {
            Err(Error::NoCollection { .. }) => Vec::new(),
            names => names?,
        };
        let last = names.last().and_then(|name| Some(u64::from_be_bytes(name[..].try_into().ok()?)));
        let object = ObjectId::new(collection.clone(), (last.unwrap_or(0) + 1).to_be_bytes().to_vec());
        // A client that comes to empty a full store needs it.
        let mut txn = Transaction::new().giving_back().create_collection(&collection);
        txn = txn.guard(&object, Condition::Absent);
        txn.push(&object, Change::Touch);
        txn.be_relied_on();
        names.truncate((names.len() + 1).saturating_sub(CLIENTS_MAX));
        for name in names {
            txn.push(&ObjectId::new(collection.clone(), name), Change::Remove);
        }
        match store.submit(txn).wait() {
            Ok(_) => return Ok(object),
            Err(Error::GuardFailed { .. }) => retry.again(|| "the list of clients".into())?,
            // It may be there; the next number is as good.
            Err(Error::Unknown { .. }) if pause.again() => {}
            Err(error) => return Err(error),
        }
    }
}

fn lane_name(index: u64) -> Bytes {
    format!("l/{index}").into()
}

fn encode(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

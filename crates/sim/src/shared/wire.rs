//! The line from one process to the server: calls take turns, requests and answers are lost or late.
//!
//! call → turn (others run, or it is killed) → [`Net::happen`] → request → the server → turn → answer · a loss: unknown
//! for a change, an error for a read
//!
//! Invariants:
//! 1. Without a breakage a transaction reaches the server as it was made, once at most, or once only where it asks for
//!    that.
//! 2. Without a breakage an error of a submit that is not unknown means that nothing was applied.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use esker_store::{
    Capability, Collection, CommitCursor, CommitEntry, CommitSeq, Completion, DataRun, Error, Incarnation, ObjectId,
    ObjectStore, OmapScan, Result, SlotScan, Stat, Transaction,
};
use parking_lot::Mutex;

use crate::shared::baton::Gone;
use crate::shared::breakage::Sabotage;
use crate::shared::net::Net;
use crate::shared::once::{Lane, Looked, TRIES, unnumbered};

/// The line of one life of a process.
pub(crate) struct Wire {
    net: Arc<Net>,
    me: usize,
    /// Nothing happens on it: the end of the run looks at the store.
    quiet: bool,
    /// Calls that go unanswered still, while it is down.
    down: Mutex<u64>,
    lane: Mutex<Option<Lane>>,
    /// The life of the server that answered last.
    life: AtomicU64,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Nothing,
    Request,
    Late,
    Answer,
}

/// A number for a name, for the trace.
fn hash(name: &[u8]) -> u64 {
    name.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0193) & 0xffff_ffff)
}

fn no_answer() -> Error {
    Error::io("asking", std::io::Error::other("no answer"))
}

impl Wire {
    /// A line for a process that begins.
    pub(crate) fn new(net: &Arc<Net>, me: usize) -> Arc<Self> {
        Self::with(net, me, false)
    }

    /// A line on which nothing happens.
    pub(crate) fn quiet(net: &Arc<Net>) -> Arc<Self> {
        Self::with(net, usize::MAX, true)
    }

    fn with(net: &Arc<Net>, me: usize, quiet: bool) -> Arc<Self> {
        let life = AtomicU64::new(net.server.life());
        Arc::new(Self { net: Arc::clone(net), me, quiet, down: Mutex::new(0), lane: Mutex::default(), life })
    }

    /// A turn: others may run, the server may restart, and who is killed unwinds.
    fn turn(&self, what: u64) {
        if self.quiet {
            return self.net.revive();
        }
        if !self.net.baton.step(self.me, what) {
            std::panic::resume_unwind(Box::new(Gone));
        }
        self.net.happen();
    }

    fn loss(&self) -> Loss {
        let draw = |end| self.net.baton.draw(end);
        if self.quiet || self.net.weather.fails == 0 {
            return Loss::Nothing;
        }
        let mut down = self.down.lock();
        if *down > 0 {
            *down -= 1;
        } else if draw(10_000) >= self.net.weather.fails {
            return Loss::Nothing;
        } else if draw(3) == 0 {
            *down = 1 + draw(12);
        }
        [Loss::Request, Loss::Late, Loss::Answer][draw(3) as usize]
    }

    fn answered(&self) {
        self.life.store(self.net.server.life(), Ordering::Relaxed);
    }

    /// What a change is answered with whose answer was lost.
    fn lost(&self) -> Error {
        if self.net.broken_by(Sabotage::LostToldAsRefused) {
            return no_answer();
        }
        Error::Unknown { cause: "no answer".into() }
    }

    /// Sends a transaction once.
    fn send(&self, txn: Transaction) -> Completion<CommitSeq> {
        self.turn(1 + (txn.ops.len() as u64) * 16 + (txn.guards.len() as u64) * 256);
        let loss = self.loss();
        match loss {
            Loss::Request => return Completion::ready(Err(self.lost())),
            Loss::Late => {
                self.net.delay(txn);
                self.turn(4);
                return Completion::ready(Err(self.lost()));
            }
            Loss::Answer | Loss::Nothing => {}
        }
        let answer = if self.net.broken_by(Sabotage::TornTransactions) && txn.ops.len() > 1 && !self.quiet {
            self.torn(txn)
        } else {
            self.net.submit(txn)
        };
        // What is durable already is so for a process that is told of it after the server's end.
        self.turn(3);
        if loss == Loss::Answer {
            return Completion::ready(Err(self.lost()));
        }
        self.answered();
        answer
    }

    /// Applies a transaction in two parts, the second whatever comes between.
    fn torn(&self, mut txn: Transaction) -> Completion<CommitSeq> {
        let rest = txn.ops.drain(txn.ops.len() / 2..).collect();
        let second = Transaction { guards: Default::default(), ops: rest, ..txn.clone() };
        let (first, barrier) = self.net.submit(txn).into_parts();
        if let Err(error) = first {
            return Completion::after(Err(error), barrier);
        }
        self.turn(5);
        self.net.submit(second).behind(barrier)
    }

    /// Sends a transaction until it is known what became of it, in a way that applies it once.
    fn once(&self, txn: Transaction) -> Result<CommitSeq> {
        if self.net.broken_by(Sabotage::SentAgainAsNew) {
            let mut told = self.send(txn.clone()).wait();
            for _ in 0..TRIES {
                if !matches!(told, Err(Error::Unknown { .. })) {
                    break;
                }
                told = self.send(txn.clone()).wait();
            }
            return told;
        }
        let mut held = self.lane.lock();
        let mut lane = match held.take() {
            Some(lane) => lane,
            None => {
                let (lane, make) = Lane::new(self.net.client());
                if self.send(make).wait().is_err() {
                    // Without a lane it is asked once.
                    return self.send(txn).wait();
                }
                lane
            }
        };
        lane.number += 1;
        let told = self.numbered(&mut lane, &txn);
        if let Some(told) = told {
            *held = Some(lane);
            return told;
        }
        Err(Error::Unknown { cause: "the lane is gone".into() })
    }

    /// What became of a transaction under the lane's next number; `None` if the lane is gone.
    fn numbered(&self, lane: &mut Lane, txn: &Transaction) -> Option<Result<CommitSeq>> {
        let number = lane.number;
        let numbered = lane.numbered(txn);
        let (mut lost, mut refused) = (None, None);
        for _ in 0..TRIES {
            let looked = match self.send(numbered.clone()).wait() {
                Ok(seq) => return Some(Ok(seq)),
                Err(error @ Error::Unknown { .. }) => {
                    lost = Some(error);
                    continue;
                }
                Err(Error::GuardFailed { index: 0 }) => self.look(lane, number),
                Err(error) => {
                    let error = unnumbered(error);
                    if lost.is_none() {
                        return Some(Err(error));
                    }
                    refused = Some(error);
                    match self.send(lane.fence(number)).wait() {
                        Ok(_) => Ok(Looked::Fenced),
                        Err(Error::GuardFailed { .. }) => self.look(lane, number),
                        Err(_) => continue,
                    }
                }
            };
            match looked {
                Ok(Looked::Applied(seq)) => return Some(Ok(seq)),
                Ok(Looked::Fenced) => return Some(Err(refused.unwrap_or(Error::Closed))),
                Ok(Looked::Gone) => return None,
                Err(error) => lost = Some(Error::Unknown { cause: error.to_string() }),
            }
        }
        Some(Err(lost.unwrap_or(Error::Closed)))
    }

    fn look(&self, lane: &Lane, number: u64) -> Result<Looked> {
        let stored = self.xattr(&lane.object, &lane.xattr()).wait()?;
        Ok(match lane.looked(stored, number) {
            // The number that the store gave is lost; this one is not lower.
            Looked::Applied(_) => Looked::Applied(self.sync().wait()?),
            other => other,
        })
    }

    fn ask<T>(&self, name: &[u8], read: impl Fn(&dyn ObjectStore) -> Completion<T>) -> Completion<T> {
        self.turn(2 + (hash(name) << 8));
        if self.loss() != Loss::Nothing {
            return Completion::ready(Err(no_answer()));
        }
        let engine = self.net.server.engine();
        let answer = read(&*engine);
        let answer = if self.net.broken_by(Sabotage::ShownBeforeDurable) && !self.quiet {
            Completion::ready(answer.into_parts().0)
        } else {
            // A read that cannot be answered changed nothing: it is an error like any other.
            let (told, barrier) = self.net.answer(answer).into_parts();
            let told = match told {
                Err(error @ Error::Unknown { .. }) => {
                    Err(Error::io("asking", std::io::Error::other(error.to_string())))
                }
                told => told,
            };
            Completion::after(told, barrier)
        };
        self.answered();
        answer
    }

    /// As it was answered before, sometimes, if that is what is broken.
    fn perhaps_old(
        &self,
        object: &ObjectId,
        key: &[u8],
        answer: Completion<Option<Bytes>>,
    ) -> Completion<Option<Bytes>> {
        if !self.net.broken_by(Sabotage::OldAnswers) || self.quiet {
            return answer;
        }
        let place = (object.clone(), key.to_vec());
        let (now, barrier) = answer.into_parts();
        let perhaps = |now: Option<Bytes>| {
            let mut old = self.net.old.lock();
            match old.get(&place) {
                Some(before) if self.net.baton.draw(3) == 0 => before.clone(),
                _ => {
                    old.insert(place.clone(), now.clone());
                    now
                }
            }
        };
        Completion::after(now.map(perhaps), barrier)
    }

    fn tears(&self) -> bool {
        self.net.broken_by(Sabotage::TornReads) && !self.quiet
    }

    /// The first half of one answer, and the other half of a later one.
    fn halves<T>(
        &self,
        read: impl Fn() -> Completion<Vec<T>>,
        first: impl Fn(usize, &T) -> bool,
    ) -> Completion<Vec<T>> {
        let (before, barrier) = read().into_parts();
        self.turn(6);
        self.turn(7);
        let after = read().behind(barrier);
        let Ok(before) = before else { return after };
        let (after, barrier) = after.into_parts();
        let joined = |after: Vec<T>| {
            let mut both: Vec<T> =
                before.into_iter().enumerate().filter(|(at, one)| first(*at, one)).map(|(_, one)| one).collect();
            both.extend(after.into_iter().enumerate().filter(|(at, one)| !first(*at, one)).map(|(_, one)| one));
            both
        };
        Completion::after(after.map(joined), barrier)
    }
}

impl ObjectStore for Wire {
    fn capability(&self) -> Capability {
        self.net.server.engine().capability()
    }

    fn submit(&self, mut txn: Transaction) -> Completion<CommitSeq> {
        if let Some(breakage) = self.net.breakage.filter(|_| !self.quiet) {
            breakage.change(&mut txn);
        }
        if txn.once && self.net.weather.far && !self.quiet { Completion::ready(self.once(txn)) } else { self.send(txn) }
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.life.load(Ordering::Relaxed))
    }

    fn sync(&self) -> Completion<CommitSeq> {
        self.turn(8);
        if self.loss() != Loss::Nothing {
            return Completion::ready(Err(no_answer()));
        }
        let answer = self.net.answer(self.net.server.engine().sync());
        self.answered();
        answer
    }

    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        self.ask(object.name(), |store| store.stat(object))
    }

    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        self.ask(object.name(), |store| store.read(object, range.clone()))
    }

    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        self.ask(object.name(), |store| store.extents(object, range.clone()))
    }

    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        self.ask(object.name(), |store| store.xattr(object, name))
    }

    fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>> {
        self.ask(object.name(), |store| store.xattrs(object))
    }

    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        self.perhaps_old(object, key, self.ask(object.name(), |store| store.omap_get(object, key)))
    }

    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        let read = || self.ask(object.name(), |store| store.omap_get_many(object, keys));
        if self.tears() { self.halves(read, |at, _| at < keys.len() / 2) } else { read() }
    }

    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        let read = || self.ask(object.name(), |store| store.omap_scan(object, scan));
        let middle = Mutex::new(None);
        // By key, since there may be more of them the second time.
        let first = |_: usize, (key, _): &(Bytes, Bytes)| key <= middle.lock().get_or_insert_with(|| key.clone());
        if self.tears() { self.halves(read, first) } else { read() }
    }

    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        let key = index.to_be_bytes();
        self.perhaps_old(object, &key, self.ask(object.name(), |store| store.slot_get(object, index)))
    }

    fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>> {
        let read = || self.ask(object.name(), |store| store.slot_get_many(object, indexes));
        if self.tears() { self.halves(read, |at, _| at < indexes.len() / 2) } else { read() }
    }

    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        self.ask(object.name(), |store| store.slot_scan(object, scan))
    }

    fn commit_scan(
        &self,
        collection: &Collection,
        prefix: &[u8],
        after: CommitCursor,
        limit: usize,
    ) -> Completion<(Vec<CommitEntry>, Option<CommitCursor>)> {
        self.ask(prefix, |store| store.commit_scan(collection, prefix, after, limit))
    }

    fn collections(&self) -> Completion<Vec<Collection>> {
        self.ask(b"collections", |store| store.collections())
    }

    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        self.ask(b"list", |store| store.list(collection, after, limit))
    }
}

//! A node: a replica with its store.
//!
//! ```text
//! head: transaction → guards, applied by the store with its number → sent on → durable on all → acknowledged
//! others: operation → applied with its number → sent on; durable here → acknowledged to the one before
//! ```
//!
//! Invariants:
//! 1. The store holds the number of the last operation that it has applied, changed in the transaction that applies it
//!    and guarded by the number before: no operation is applied twice, or over a gap.
//! 2. What is on its way to one server is sent in the order of the steps.
//! 3. A change is told to none before it is acknowledged, but to its writer, if that asked for no more than applied.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use esker_store::{
    Barrier, Change, Collection, CommitSeq, Completion, Durability, DurableMark, Error, ObjectId, ObjectStore, Op,
    Result, Snapshot, Stall, Transaction, Waits, WhenBusy,
};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

use crate::dirty::Dirty;
use crate::lease::Lease;
use crate::making::Making;
use crate::operation::Operation;
use crate::replica::{Effect, Event, Message, Regard, Replica};
use crate::standing::{
    COLLECTION, Standing, distrust, number_of, numbered, put_by, stand_at, taken_by, trust, was_put_by,
};
use crate::table::{Incarnation, Place, ServerId, Table};

/// What becomes of a copy that is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copying {
    /// The store is the caller's, until [`Node::copied`] or [`Node::copy_failed`].
    Begins,
    /// The node has what it holds.
    Here,
    /// It is of another table than the node goes by, or of another server.
    Refused,
}

const FAILED: &str = "it has failed, or ended";

/// Operations that were put by are applied so many at a time.
const PUT_BY_AT_ONCE: u64 = 256;

/// How a node reaches others. Nothing here waits, or calls the node.
pub trait Links: Send + Sync {
    /// Sends a message, in the order of the calls for each server; it may be lost, and then all that come later on the
    /// connection, of which the node is told by [`Node::reconnected`].
    fn send(&self, to: ServerId, message: Message<Operation>);

    /// Has the coordinator asked for the table.
    fn refresh(&self);

    /// Has the coordinator told that this server is in step, in this version of the table.
    fn tell_in_step(&self, server: ServerId, version: u64);

    /// Has this server told that it is to put a copy in place of what it has: of this store, which does not change, and
    /// is the state after operation `seq`. Where that fails, [`Node::reconnected`] begins anew, after a pause; the node
    /// waits longer each time.
    fn copy(&self, to: ServerId, version: u64, seq: u64, store: Arc<dyn ObjectStore>);

    /// An operation as a message.
    fn encode(&self, operation: &Operation) -> Bytes;

    /// The operation that a message of [`Links::encode`] is.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: it is none.
    fn decode(&self, message: Bytes) -> Result<Operation>;

    /// Has [`Node::reconnected`] called for this server, after a pause.
    fn again(&self, server: ServerId);
}

/// Time that goes on while the machine sleeps.
fn clock() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// How a node stands that may answer readers, under its lease: with what was put in place so often; 0: it may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Serving(u64);

/// What has to be done until an operation is durable here.
enum Until {
    /// It is when this is reached.
    Behind(Barrier),
    /// A sync is.
    Unasked,
}

/// The lease, and that of the table that comes next: which of them counts is said by the version.
#[derive(Default)]
struct Leases {
    own: Lease,
    next: Lease,
}

struct Core {
    replica: Replica<Operation>,
    /// Applied, and not known to be durable here.
    unsynced: Option<(u64, Until)>,
    /// The store has applied this operation already, which the replica takes in the step that is under way.
    ahead: Option<u64>,
    /// Acknowledged, and told those who wait.
    settled: u64,
    /// What is here was put in the place of what was so often: what is begun before says nothing of it.
    round: u64,
    making: Making,
    /// The copy that was made, and is offered in the step that is under way.
    made: Option<Arc<dyn ObjectStore>>,
    ended: bool,
}

/// A replica of a chain with its store.
pub struct Node {
    pub(crate) store: Arc<dyn ObjectStore>,
    links: Arc<dyn Links>,
    kept_bytes_max: usize,
    /// Held while the store decides and applies, which may take as long as the store takes. Before the lease's.
    core: Mutex<Core>,
    lease: Mutex<Leases>,
    /// Of the table that it goes by.
    version: AtomicU64,
    /// How it stands.
    serves: AtomicU64,
    /// Held exclusively while it applies what others have decided.
    moment: Arc<RwLock<()>>,
    /// Bytes of operations that are kept for the one behind.
    kept: AtomicUsize,
    /// Since when a sync is under way, in milliseconds of its clock and one more; 0: none is.
    syncing: AtomicU64,
    failed: OnceLock<Error>,
    /// There is something to make durable.
    applied: Condvar,
    /// There is a copy to make.
    wanted: Condvar,
    pub(crate) dirty: Dirty,
    /// How far nothing is open, in places of what is not acknowledged.
    pub(crate) mark: Arc<DurableMark>,
    began: Duration,
}

/// Where its thread panics the node fails: the other one goes on until the node is ended, and would hide it.
struct Falls<'n>(&'n Node);

impl Drop for Falls<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(Error::Stopped { cause: "a thread of it has panicked".into() });
        }
    }
}

impl Node {
    /// A node over a store that no other process writes to, and that stands so. `incarnation` is that of this start of
    /// the server; `kept_bytes_max` bytes of operations are kept at most for a member that is brought up, and while so
    /// many wait for one that serves, writers wait.
    pub fn new(
        store: Arc<dyn ObjectStore>,
        standing: &Standing,
        server: ServerId,
        incarnation: Incarnation,
        kept_bytes_max: usize,
        links: Arc<dyn Links>,
    ) -> Arc<Self> {
        let replica = Replica::new(server, incarnation, standing.applied.unwrap_or(0), kept_bytes_max);
        Arc::new(Self {
            store,
            links,
            kept_bytes_max,
            core: Mutex::new(Core {
                replica: if standing.applied.is_some() { replica } else { replica.unbased() },
                unsynced: None,
                ahead: None,
                settled: 0,
                round: 0,
                making: Making::default(),
                made: None,
                ended: false,
            }),
            lease: Mutex::default(),
            version: AtomicU64::new(0),
            serves: AtomicU64::new(0),
            moment: Arc::default(),
            kept: AtomicUsize::new(0),
            syncing: AtomicU64::new(0),
            failed: OnceLock::new(),
            applied: Condvar::new(),
            wanted: Condvar::new(),
            dirty: Dirty::default(),
            mark: DurableMark::new(0, Box::new(|| {})),
            began: clock(),
        })
    }

    /// Makes durable what is applied, and tells of it, and makes copies, until [`Node::end`]. To be called by one
    /// thread of its own.
    pub fn run(&self) {
        std::thread::scope(|threads| {
            // What is made durable does not wait for a copy.
            let makes = std::thread::Builder::new().name("esker-snapshot".into());
            let make_copies = || {
                let _falls = Falls(self);
                self.make_copies();
            };
            if let Err(error) = makes.spawn_scoped(threads, make_copies) {
                self.fail(Error::io("beginning the thread that makes copies", error));
            }
            let _falls = Falls(self);
            self.make_durable();
        });
    }

    /// Makes copies for who is brought up. A snapshot of an engine is a checkpoint, or two: none waits for it.
    fn make_copies(&self) {
        let mut core = self.core.lock();
        while !core.ended {
            match core.making.due(self.now()) {
                Some(Duration::ZERO) => {}
                Some(left) => {
                    self.wanted.wait_for(&mut core, left);
                    continue;
                }
                None => {
                    self.wanted.wait(&mut core);
                    continue;
                }
            }
            let is_failed = self.failed.get().is_some();
            let to = core.making.begin().filter(|to| !is_failed && core.replica.wants_copy(*to));
            let Some(to) = to else { continue };
            let version = core.replica.table().version;
            self.step(core, Event::CopyBegins(to));
            let made = self.store.snapshot().and_then(|snapshot| {
                // Which state it is of only it can say.
                Ok((number_of(&*snapshot.store)?, snapshot.store))
            });
            core = self.core.lock();
            match made {
                Ok((seq, store)) => {
                    core.made = Some(store);
                    let place = self.take(&mut core, Event::CopyMade { to, version, seq });
                    // It may be of no use any more.
                    let unused = core.made.take();
                    self.let_go(core, place);
                    drop(unused);
                }
                // Nothing may be written that would find it: this server leaves, and another brings `to` up.
                Err(error @ Error::Stopped { .. }) => {
                    drop(core);
                    self.fail(error);
                }
                Err(error) => {
                    tracing::error!(%error, server = %to, "no copy can be made for a server now");
                    self.step(core, Event::CopyNotMade(to));
                    self.links.again(to);
                }
            }
            core = self.core.lock();
        }
    }

    fn make_durable(&self) {
        let mut core = self.core.lock();
        while !core.ended {
            let Some((seq, sync)) = core.unsynced.take() else {
                self.applied.wait(&mut core);
                continue;
            };
            let round = core.round;
            drop(core);
            self.syncing.store(self.now().as_millis() as u64 + 1, Ordering::SeqCst);
            let done = match sync {
                Until::Behind(barrier) => barrier.wait(),
                Until::Unasked => self.store.sync().wait().map(|_| ()),
            };
            self.syncing.store(0, Ordering::SeqCst);
            core = self.core.lock();
            match done {
                Ok(()) if core.round != round => {}
                Ok(()) => {
                    self.step(core, Event::Durable(seq));
                    core = self.core.lock();
                }
                Err(error) => self.fail(error),
            }
        }
    }

    /// Has [`Node::run`] return.
    pub fn end(&self) {
        let mut core = self.core.lock();
        core.ended = true;
        // It may have failed before.
        let _ = self.failed.set(Error::Closed);
        self.stand(&core);
        drop(core);
        self.applied.notify_all();
        self.wanted.notify_all();
        // What was sent on may be acknowledged by others.
        self.mark.fail(Error::Unknown { cause: "this replica of the chain has ended".into() });
    }

    /// The steady clock that this node's lease goes by. It goes on while the machine sleeps.
    pub fn now(&self) -> Duration {
        clock().saturating_sub(self.began)
    }

    /// A renewal of the lease under this version of the table, sent at `sent`, was taken; leases last `period`.
    pub fn renewed(&self, version: u64, sent: Duration, period: Duration) {
        self.lease.lock().own.renewed(version, sent, period);
    }

    /// From now on a member that is brought up is waited for so.
    pub fn regard(&self, regard: Regard) {
        self.step(self.core.lock(), Event::Regard(regard));
    }

    /// Before the first table: see [`Replica::resume`].
    pub fn resume(&self) {
        self.core.lock().replica.resume();
    }

    /// Gives the lease up: nothing is answered from now on, until the next.
    pub fn give_up(&self) {
        let mut leases = self.lease.lock();
        leases.own.give_up(self.now());
        leases.next.give_up(self.now());
    }

    /// How long the lease lasts still.
    pub fn lease_left(&self) -> Duration {
        let (leases, version, now) = (self.lease.lock(), self.version(), self.now());
        leases.own.left(version, now).max(leases.next.left(version, now))
    }

    /// Goes by this table, if it is newer.
    pub fn go_by(&self, table: Table) {
        self.step(self.core.lock(), Event::Table(table));
    }

    /// Goes by this table, if it is newer, under a lease that was renewed for it at `sent` and lasts `period`: between
    /// the two nothing is refused.
    pub fn go_by_renewed(&self, table: Table, sent: Duration, period: Duration) {
        let version = table.version;
        self.lease.lock().next.renewed(version, sent, period);
        let mut core = self.core.lock();
        let place = self.take(&mut core, Event::Table(table));
        self.lease.lock().own.renewed(version, sent, period);
        self.let_go(core, place);
    }

    /// A server has sent this.
    pub fn hear(&self, from: ServerId, message: Message<Operation>) {
        self.step(self.core.lock(), Event::Message(from, message));
    }

    /// As [`Node::hear`], but it waits for nothing: the message comes back where the node does not serve, where another
    /// step is under way, where a reader holds its moment, or where the store has no room for an operation or has to
    /// read first. An operation is applied before it is heard, so that one that comes back has changed nothing.
    ///
    /// # Errors
    /// The message, unheard.
    pub fn try_hear(&self, from: ServerId, message: Message<Operation>) -> std::result::Result<(), Message<Operation>> {
        if !matches!(message, Message::Forward { .. } | Message::Ack { .. } | Message::Committed { .. }) {
            return Err(message);
        }
        let core = self.core.try_lock().filter(|_| self.serves() != Serving(0));
        let Some(mut core) = core else { return Err(message) };
        if let Message::Forward { version, seq, operation, .. } = &message
            && core.replica.is_next(from, *version, *seq)
            && let Err(place) = self.try_apply(&mut core, *seq, operation)
        {
            self.let_go(core, place);
            return Err(message);
        }
        let place = self.take(&mut core, Event::Message(from, message));
        self.let_go(core, place);
        Ok(())
    }

    /// Has the store apply an operation, which is the next, if that waits for nothing.
    ///
    /// # Errors
    /// It was not applied: up to where nothing is open.
    fn try_apply(&self, core: &mut Core, seq: u64, operation: &Operation) -> std::result::Result<(), Option<u64>> {
        if self.store.stall(Waits::default()).is_some() {
            return Err(None);
        }
        let Some(held) = self.moment.try_write() else { return Err(None) };
        let place = self.dirty.note(seq, operation.transaction());
        let when_busy = WhenBusy::Refuse(Waits::default());
        let txn = Transaction { when_busy, ..operation.transaction().clone() };
        let (applied, barrier) = self.store.submit(numbered(txn, seq)).into_parts();
        drop(held);
        match applied {
            Ok(_) => {
                Self::note_unsynced(core, seq, barrier);
                core.ahead = Some(seq);
            }
            Err(Error::Busy { .. }) => {
                let settled = self.dirty.withdraw(place, core.replica.committed(), |place| self.mark.raise(place));
                return Err(Some(settled));
            }
            Err(error) => self.fail(error),
        }
        Ok(())
    }

    /// The connection to this server is new: what was sent before may be lost.
    pub fn reconnected(&self, server: ServerId) {
        self.step(self.core.lock(), Event::Reconnected(server));
    }

    /// A copy that a server has told of is to be put in place of what is here.
    pub fn copying(&self, from: ServerId, version: u64, seq: u64) -> Copying {
        let mut core = self.core.lock();
        let (round, has_it) = (core.round, core.replica.is_based() && core.replica.next() > seq);
        let is_for_it = core.replica.is_brought_up_by(from, version);
        let place = self.take(&mut core, Event::Copying { from, version, seq });
        let begins = core.round != round && self.failed.get().is_none();
        self.let_go(core, place);
        match begins {
            true => Copying::Begins,
            false if has_it && is_for_it => Copying::Here,
            false => Copying::Refused,
        }
    }

    /// The copy is here: the store is the state after operation `seq`. What was put by behind it is applied now, and
    /// the node goes on from there.
    ///
    /// # Errors
    /// Those of the store; then the node has failed.
    pub fn copied(&self, from: ServerId, version: u64, seq: u64) -> Result<()> {
        let round = self.core.lock().round;
        let done = stand_at(&*self.store, seq).and_then(|()| self.catch_up(from, version, seq, round));
        if let Err(error) = &done {
            self.fail(error.clone());
        }
        done
    }

    /// The copy that was begun does not come to its end.
    pub fn copy_failed(&self) {
        self.step(self.core.lock(), Event::CopyFailed);
    }

    /// Applies what was put by, some at a time, so that the node hears and is heard meanwhile.
    fn catch_up(&self, from: ServerId, version: u64, seq: u64, round: u64) -> Result<()> {
        let mut at = seq;
        loop {
            let core = self.core.lock();
            let over = self.failed.get().is_some() || core.round != round;
            let Some(next) = core.replica.next_by().filter(|_| !over) else { return Ok(()) };
            if at + 1 == next {
                trust(&*self.store, at)?;
                // What of it is not acknowledged yet is not known by object; where all is, nothing would tell of it.
                if core.replica.committed() < at {
                    self.dirty.note_all(at);
                }
                self.step(core, Event::Copied { from, version, seq: at });
                return Ok(());
            }
            drop(core);
            let last = (next - 1).min(at + PUT_BY_AT_ONCE);
            for number in at + 1..=last {
                let operation = self.links.decode(was_put_by(&*self.store, number)?)?;
                self.store.submit(numbered(operation.transaction().clone(), number)).into_parts().0?;
            }
            at = last;
            taken_by(&*self.store, at)?;
        }
    }

    /// The member that it has brought up, and that serves once the manager hears of it, in which version of the table.
    pub fn in_step(&self) -> Option<(ServerId, u64)> {
        self.core.try_lock()?.replica.in_step()
    }

    /// Whether it serves by its table, and yet has no state to serve: then it has to go.
    pub fn is_hollow(&self) -> bool {
        let core = self.core.try_lock();
        core.is_some_and(|core| core.replica.place() == Some(Place::Serving) && !core.replica.is_based())
    }

    /// Whether what it has is a state, and not part of a copy.
    pub fn is_based(&self) -> bool {
        self.core.lock().replica.is_based()
    }

    /// For how long the sync that is under way has been.
    pub fn syncs_since(&self) -> Duration {
        match self.syncing.load(Ordering::SeqCst) {
            0 => Duration::ZERO,
            since => self.now().saturating_sub(Duration::from_millis(since - 1)),
        }
    }

    /// Why it takes no part any more, if so.
    pub fn failure(&self) -> Option<Error> {
        self.failed.get().cloned()
    }

    /// The version of the table that it goes by.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// How it stands, if its store does not keep it: place, last operation applied, last known to be acknowledged,
    /// bytes kept for the one behind.
    pub fn look(&self) -> Option<(Option<Place>, u64, u64, usize)> {
        let replica = &self.core.try_lock()?.replica;
        Some((replica.place(), replica.next() - 1, replica.committed(), replica.kept_bytes()))
    }

    /// Up to where the one behind has everything, durably, if its store does not keep it; 0: nothing is known of it.
    pub fn acked(&self) -> Option<u64> {
        Some(self.core.try_lock()?.replica.acked().unwrap_or(0))
    }

    /// The last operation that it has applied, and the last that it knows to be acknowledged.
    pub fn progress(&self) -> (u64, u64) {
        let core = self.core.lock();
        (core.replica.next() - 1, core.replica.committed())
    }

    /// The number of the first operation that it keeps for the one behind, or would keep.
    pub fn first_kept(&self) -> u64 {
        self.core.lock().replica.first_kept()
    }

    /// How it stands in the table that it goes by.
    pub fn place(&self) -> Option<Place> {
        self.core.lock().replica.place()
    }

    /// See [`ChainStore::moment`](crate::ChainStore::moment).
    pub(crate) fn moment(&self) -> &Arc<RwLock<()>> {
        &self.moment
    }

    /// How it stands, to be asked before a read is begun.
    pub(crate) fn serves(&self) -> Serving {
        Serving(self.serves.load(Ordering::SeqCst))
    }

    /// Whether it may answer what was read since it stood so: it serves, under a lease, and what it had was not put in
    /// the place of something else meanwhile.
    ///
    /// # Errors
    /// [`Error::NotServing`]: it may not, and why.
    pub(crate) fn check_serves(&self, since: Serving) -> Result<()> {
        // The node's lock is not waited for: what is applied meanwhile waits for readers that hold its moment.
        let why = match self.serves() {
            _ if self.failed.get().is_some() => FAILED,
            Serving(0) => "it does not serve",
            _ if self.lease_left().is_zero() => "its lease has run out",
            serves if serves == since => return Ok(()),
            _ => "it was brought up while it read",
        };
        Err(Self::not_serving(why))
    }

    /// As [`ObjectStore::sync`]: everything that was applied before is on all copies, once what is returned is reached.
    pub(crate) fn sync(&self) -> Completion<CommitSeq> {
        let place = match self.serving() {
            Ok(core) if core.replica.is_head() => self.dirty.last(),
            Ok(_) => {
                let cause = "this replica is not the head of its chain: what the head has applied it may not have yet";
                return Completion::ready(Err(Error::NotServing { cause: cause.into() }));
            }
            Err(error) => return Completion::ready(Err(error)),
        };
        let (done, _) = self.store.sync().into_parts();
        let barrier = self.barrier(place).filter(|_| done.is_ok());
        Completion::after(done, barrier)
    }

    fn serving(&self) -> Result<MutexGuard<'_, Core>> {
        let core = self.core.lock();
        self.may_answer(&core)?;
        Ok(core)
    }

    /// Whether it may answer by what it has.
    fn may_answer(&self, core: &Core) -> Result<()> {
        let why = match core.replica.place() {
            _ if self.failed.get().is_some() => FAILED,
            Some(Place::Serving) if !core.replica.is_based() => "what it holds is part of a copy",
            Some(Place::Serving) if !self.lease_left().is_zero() => return Ok(()),
            Some(Place::Serving) => "its lease has run out",
            Some(_) | None => "it does not serve",
        };
        Err(Self::not_serving(why))
    }

    /// What the store has decided and not applied: under a lease that ran out before it decided, another head may have
    /// changed what it looked at. So the lease is looked at again behind it.
    fn unchanged<T>(&self, core: &Core, decided: Result<T>) -> Result<T> {
        match decided {
            Err(error) if error.is_unknown() => Err(error),
            decided => self.may_answer(core).and(decided),
        }
    }

    fn not_serving(why: &str) -> Error {
        Error::NotServing { cause: format!("this replica of the chain answers nothing: {why}").into() }
    }

    /// Once what is kept for the one behind is acknowledged, where that is too much; `None` where it is not.
    pub(crate) fn backlog(&self) -> Option<Barrier> {
        let is_long = self.kept.load(Ordering::Relaxed) > self.kept_bytes_max;
        self.barrier(self.dirty.last()).filter(|_| is_long)
    }

    /// Waits while too much is kept for the one behind.
    fn await_room(&self, when_busy: WhenBusy) -> Result<()> {
        let Some(backlog) = self.backlog() else { return Ok(()) };
        if matches!(when_busy, WhenBusy::Refuse(_)) {
            return Err(Error::Busy { stall: Stall::Backlog });
        }
        backlog.wait().map_err(|error| match error.is_unknown() {
            // It was not begun, whatever became of those before it.
            true => Error::NotServing { cause: format!("this replica takes no writes: {error}").into() },
            false => error,
        })
    }

    /// Decides a transaction, applies it and sends it on.
    pub(crate) fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        let mut core = loop {
            let core = match self.serving() {
                Ok(core) if core.replica.is_head() => core,
                Ok(core) => {
                    let head = core.replica.table().head().map(|head| head.server);
                    let head = head.map_or_else(|| "no server".to_owned(), |head| format!("server {head}"));
                    return Completion::ready(Err(Error::NotServing {
                        cause: format!("this replica is not the head of its chain, which is {head}").into(),
                    }));
                }
                Err(error) => return Completion::ready(Err(error)),
            };
            if core.replica.kept_bytes() <= self.kept_bytes_max {
                break core;
            }
            drop(core);
            if let Err(error) = self.await_room(txn.when_busy) {
                return Completion::ready(Err(error));
            }
        };
        // What it is refused by, guards or what operations find, is told like what is read.
        let mut looked_at: Vec<ObjectId> = txn.guards.iter().map(|guard| guard.object.clone()).collect();
        looked_at.extend(txn.objects_changed());
        let sees_all = txn.ops.iter().any(|op| matches!(op, Op::RemoveCollection(_)));
        if txn.ops.is_empty() {
            let decided = self.unchanged(&core, self.store.submit(txn).into_parts().0);
            return Completion::after(decided, self.barrier(self.dirty.last_of_all(&looked_at)));
        }
        let (seq, durability, own) = (core.replica.next(), txn.durability, txn.guards.len());
        let operation = Operation::of(txn.clone());
        let place = self.dirty.note(seq, &txn);
        let (decided, barrier) = self.store.submit(numbered(txn, seq)).into_parts();
        match decided {
            Ok(at) => {
                Self::note_unsynced(&mut core, seq, barrier);
                self.step(core, Event::Applied(operation));
                Completion::after(Ok(at), self.barrier(place).filter(|_| durability != Durability::Applied))
            }
            Err(error) => {
                let settled = self.dirty.withdraw(place, core.replica.committed(), |place| self.mark.raise(place));
                if error.is_unknown() || matches!(error, Error::GuardFailed { index } if index >= own) {
                    self.fail(error.clone());
                }
                let refused = self.unchanged(&core, Err(error));
                drop(core);
                self.mark.advance(settled);
                // The place that it had itself is settled with those before it.
                let behind = if sees_all { self.dirty.last() } else { self.dirty.last_of_all(&looked_at) };
                Completion::after(refused, self.barrier(behind))
            }
        }
    }

    /// As [`ObjectStore::snapshot`]: of what is applied meanwhile, once that is acknowledged.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        let serving = self.serves();
        self.check_serves(serving)?;
        // The lock of the node is not held meanwhile: it takes long. What it shows was noted before it was applied.
        let (snapshot, place) = (self.store.snapshot()?, self.dirty.last());
        let barrier = self.barrier(place);
        self.check_serves(serving)?;
        barrier.map_or(Ok(()), |barrier| barrier.wait())?;
        Ok(snapshot)
    }

    /// Waits until nothing is open up to this place of what is not acknowledged.
    pub(crate) fn barrier(&self, place: u64) -> Option<Barrier> {
        (place > self.mark.durable()).then(|| Barrier::new(&self.mark, place))
    }

    fn note_unsynced(core: &mut Core, seq: u64, barrier: Option<Barrier>) {
        let sync = barrier.map_or(Until::Unasked, Until::Behind);
        core.unsynced = Some((seq, sync));
    }

    /// Takes a step, and what follows from it, and lets go of the lock.
    fn step(&self, mut core: MutexGuard<'_, Core>, event: Event<Operation>) {
        let place = self.take(&mut core, event);
        self.let_go(core, place);
    }

    /// Lets go of the lock, and then tells that nothing is open up to this place: those who are woken may call.
    fn let_go(&self, core: MutexGuard<'_, Core>, place: Option<u64>) {
        drop(core);
        if let Some(place) = place {
            self.mark.advance(place);
        }
    }

    /// Takes a step, and what follows from it; up to where nothing is open, if that has moved: see [`Node::let_go`].
    fn take(&self, core: &mut Core, event: Event<Operation>) -> Option<u64> {
        if self.failed.get().is_some() {
            return None;
        }
        let effects = core.replica.step(event);
        if let Some((by, acked)) = core.replica.acked_by() {
            core.making.acknowledged(by, acked);
        }
        self.version.store(core.replica.table().version, Ordering::SeqCst);
        self.stand(core);
        self.kept.store(core.replica.kept_bytes(), Ordering::Relaxed);
        for effect in effects {
            if self.failed.get().is_some() {
                // What it could not apply it does not send on, nor what comes after it.
                break;
            }
            match effect {
                Effect::Apply(seq, _) if core.ahead.take_if(|ahead| *ahead == seq).is_some() => {}
                Effect::Apply(seq, operation) => self.apply(core, seq, &operation),
                Effect::PutBy(seq, operation) => {
                    if let Err(error) = put_by(&*self.store, seq, &self.links.encode(&operation)) {
                        self.fail(error);
                    }
                }
                Effect::Send(to, message) => self.links.send(to, message),
                Effect::Committed(_) => {}
                Effect::Copy(to) => {
                    core.making.want(to, core.replica.table().version, self.now());
                    self.wanted.notify_all();
                }
                Effect::Offer { to, seq } => {
                    core.making.offered(to, seq);
                    if let Some(store) = core.made.take() {
                        self.links.copy(to, core.replica.table().version, seq, store);
                    }
                }
                Effect::Distrust => {
                    core.round += 1;
                    (core.unsynced, core.settled) = (None, 0);
                    let place = self.dirty.clear();
                    self.mark.advance(place);
                    if let Err(error) = distrust(&*self.store) {
                        self.fail(error);
                    }
                }
                Effect::Refresh => self.links.refresh(),
                Effect::InStep(server, version) => self.links.tell_in_step(server, version),
            }
        }
        if core.unsynced.is_some() {
            self.applied.notify_one();
        }
        let committed = core.replica.committed();
        (committed > core.settled).then(|| {
            core.settled = committed;
            self.dirty.settle(committed, |place| self.mark.raise(place))
        })
    }

    /// Tells readers how it stands.
    fn stand(&self, core: &Core) {
        let serves = core.replica.place() == Some(Place::Serving) && core.replica.is_based() && !core.ended;
        let serves = serves && self.failed.get().is_none();
        self.serves.store(if serves { core.round + 1 } else { 0 }, Ordering::SeqCst);
    }

    fn apply(&self, core: &mut Core, seq: u64, operation: &Operation) {
        self.dirty.note(seq, operation.transaction());
        let mut waits = Waits::default();
        loop {
            // Readers wait for it, and so it waits for room without it.
            let held = self.moment.write();
            let txn = Transaction { when_busy: WhenBusy::Refuse(waits), ..operation.transaction().clone() };
            let (applied, barrier) = self.store.submit(numbered(txn, seq)).into_parts();
            drop(held);
            match applied {
                Ok(_) => return Self::note_unsynced(core, seq, barrier),
                Err(Error::Busy { stall }) => {
                    waits.note(stall);
                    if let Err(error) = self.store.room(stall).wait() {
                        return self.fail(error);
                    }
                }
                Err(error) => return self.fail(error),
            }
        }
    }

    /// It takes no part any more.
    fn fail(&self, error: Error) {
        tracing::error!(%error, "a replica of a chain has failed");
        let cause = Error::Stopped { cause: format!("this replica has failed: {error}").into() };
        // What was sent on may be acknowledged by others.
        self.mark.fail(Error::Unknown { cause: format!("this replica has failed: {error}") });
        self.give_up();
        // The first cause stays.
        let _ = self.failed.set(cause);
        self.serves.store(0, Ordering::SeqCst);
    }

    /// Whether a transaction names what is the chain's own.
    pub(crate) fn is_own(collection: &Collection) -> bool {
        collection.name().as_ref() == COLLECTION.as_bytes()
    }

    /// The collection that a step of a transaction is in.
    pub(crate) fn collections_of(op: &Op) -> impl Iterator<Item = &Collection> {
        let (first, second) = match op {
            Op::CreateCollection(collection) | Op::RemoveCollection(collection) => (collection, None),
            Op::Object(object, change) => {
                let to = match change {
                    Change::CloneTo { to } | Change::CloneRange { to, .. } | Change::Rename { to } => {
                        Some(to.collection())
                    }
                    _ => None,
                };
                (object.collection(), to)
            }
        };
        std::iter::once(first).chain(second)
    }
}

//! The one way in: submitted transactions → a group → the journal → rows and files → answers.
//!
//! submit → queue → (a writer that finds no leader leads) → guards and names against the table
//! → rows, not committed yet → one journal record, one sync → files → rows committed
//! → every writer of the group is answered → checkpoint if due
//!
//! A checkpoint is what the journal waits for: files are synced, then their folders, then the table; only then does the
//! journal begin anew, and files that nothing uses go.
//!
//! Invariants:
//! 1. Nothing is done to files, and no row is shown, before the journal record that says so is synced. So no client,
//!    not even the writer, is shown what a power cut could take back; *applied* and *durable* are one moment here.
//! 2. Every answer of a group, refusals too, waits for the group's sync: a guard may have failed on a row of it.
//! 3. After the first failure nothing is written any more, and the failure is the answer to everything that writes.
//!
//! Source: the double write of Ceph's FileStore (Aghayev et al., SOSP 2019).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use esker_store::{CommitSeq, Error, Result, Transaction};
use parking_lot::{Condvar, Mutex, RwLock, RwLockWriteGuard};
use redb::{Database, Durability, WriteTransaction};

use crate::apply::{FileOp, apply, holds};
use crate::codec;
use crate::data::Data;
use crate::journal::{Journal, Record};
use crate::names::try_names;
use crate::options::Options;
use crate::table::{self, Position, Read, Rows, TABLE, failed};

/// A group takes no further transaction once its record has this many bytes, or this many transactions.
const GROUP_BYTES: usize = 8 << 20;
const GROUP_TRANSACTIONS: u32 = 1_024;
/// A checkpoint is due once so many files wait to be synced: all of them are open.
const DIRTY_FILES_MAX: usize = 256;
/// Unused files that one checkpoint removes before it looks for more.
const DEAD_FILES: usize = 1_000;

/// A submitted transaction and its answer.
#[derive(Debug)]
struct Slot {
    txn: Transaction,
    answer: OnceLock<Result<CommitSeq>>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Arc<Slot>>,
    leading: bool,
}

/// What only the leader touches.
#[derive(Debug)]
struct Leader {
    journal: Journal,
    position: Position,
}

/// An open store: the table, the files, and the way in.
pub struct Core {
    pub db: Database,
    pub data: RwLock<Data>,
    options: Options,
    frozen: Arc<AtomicBool>,
    queue: Mutex<Queue>,
    answered: Condvar,
    leader: Mutex<Leader>,
    cause: OnceLock<Arc<str>>,
    /// Files may hold half a group.
    torn: AtomicBool,
}

impl Core {
    /// Brings table and files to where the journal ends.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where a journal record is damaged; [`Error::Io`].
    pub fn recover(
        db: Database,
        mut data: Data,
        mut journal: Journal,
        position: Position,
        options: Options,
        frozen: Arc<AtomicBool>,
    ) -> Result<Self> {
        let mut position = position;
        // Before the table is closed: what it holds by now is ahead of the files.
        replay_all(&db, &mut data, &mut journal, &mut position)
            .inspect_err(|_| frozen.store(true, Ordering::SeqCst))?;
        let core = Self {
            db,
            data: RwLock::new(data),
            options,
            frozen,
            queue: Mutex::default(),
            answered: Condvar::new(),
            leader: Mutex::new(Leader { journal, position }),
            cause: OnceLock::new(),
            torn: AtomicBool::new(false),
        };
        core.checkpoint(&mut core.leader.lock())?;
        Ok(core)
    }

    /// The failure that stopped the store, if one has.
    pub fn stopped(&self) -> Option<Error> {
        self.cause.get().map(|cause| Error::Stopped { cause: Arc::clone(cause) })
    }

    /// As [`Core::stopped`], for reads of files: those are in order while no group was left half done.
    pub fn torn(&self) -> Option<Error> {
        if self.torn.load(Ordering::SeqCst) { self.stopped() } else { None }
    }

    /// Transactions applied so far.
    pub fn seq(&self) -> CommitSeq {
        CommitSeq(self.leader.lock().position.seq)
    }

    fn stop(&self, error: &Error) -> Error {
        self.frozen.store(true, Ordering::SeqCst);
        let mut text = error.to_string();
        match error {
            Error::Io { source, .. } => text = format!("{text}: {source}"),
            Error::Stopped { cause } => text = cause.to_string(),
            _ => {}
        }
        // The first cause stays.
        if self.cause.set(text.into()).is_ok() {
            tracing::error!(%error, "the store stopped writing");
        }
        self.stopped().unwrap_or(Error::Closed)
    }

    /// Applies a transaction; returns once it is durable and readable.
    pub fn submit(&self, txn: Transaction) -> Result<CommitSeq> {
        txn.check()?;
        let slot = Arc::new(Slot { txn, answer: OnceLock::new() });
        let mut queue = self.queue.lock();
        queue.waiting.push_back(Arc::clone(&slot));
        loop {
            if let Some(answer) = slot.answer.get() {
                return answer.clone();
            }
            if queue.leading {
                self.answered.wait(&mut queue);
                continue;
            }
            queue.leading = true;
            drop(queue);
            self.lead();
            queue = self.queue.lock();
            queue.leading = false;
            self.answered.notify_all();
        }
    }

    /// Does one group, and a checkpoint if one is due.
    fn lead(&self) {
        let mut leader = self.leader.lock();
        let mut group = Vec::new();
        let outcome = match self.stopped() {
            Some(error) => Err(error),
            None => catch_unwind(AssertUnwindSafe(|| self.group(&mut leader, &mut group))).unwrap_or_else(|panic| {
                // How far it came is not known.
                self.torn.store(true, Ordering::SeqCst);
                Err(self.stop(&Error::panicked("writing a group", &*panic)))
            }),
        };
        if let Err(error) = outcome {
            group.extend(self.queue.lock().waiting.drain(..).map(|slot| (slot, Ok(CommitSeq(0)))));
            for (_, answer) in &mut group {
                // Refusals too: they may rest on what is now in doubt.
                *answer = Err(error.clone());
            }
        }
        for (slot, answer) in group {
            // No other thread answers it.
            let _ = slot.answer.set(answer);
        }
        {
            // Under the lock, so that no writer goes to sleep between looking and being woken.
            let _queue = self.queue.lock();
            self.answered.notify_all();
        }
        let due =
            leader.journal.len() >= self.options.checkpoint_bytes || self.data.read().dirty_files() >= DIRTY_FILES_MAX;
        if due && self.stopped().is_none() {
            // The next writer is told.
            let _ = self.checkpoint(&mut leader);
        }
    }

    /// One group: what is waiting is tried, journalled, applied. An error is the store's end.
    fn group(&self, leader: &mut Leader, group: &mut Vec<(Arc<Slot>, Result<CommitSeq>)>) -> Result<()> {
        let mut position = leader.position;
        let mut write = self.db.begin_write().map_err(|error| self.stop(&failed(error)))?;
        write.set_durability(Durability::None).map_err(|error| self.stop(&failed(error)))?;
        // Held until the failure is known, if there is one: readers of files ask for it once they have the lock.
        let mut data = None;
        // Dropped before the lock.
        let _torn = TornByPanic(&self.torn);
        let torn = |error: Error| {
            self.torn.store(true, Ordering::SeqCst);
            self.stop(&error)
        };
        match self.try_group(&write, leader, group, &mut position, &mut data) {
            Ok(0) => return write.abort().map_err(|error| self.stop(&failed(error))),
            Ok(_) => write.commit().map_err(|error| torn(failed(error)))?,
            Err(error) => {
                // Before the table's file is frozen; a second failure is not news.
                let _ = write.abort();
                return Err(if data.is_some() { torn(error) } else { self.stop(&error) });
            }
        }
        leader.position = position;
        Ok(())
    }

    /// All of a group but the commit of its rows; returns how many transactions are in it. `data` is locked from where
    /// the group is in the journal: then it will happen, if not now then on reopening.
    fn try_group<'a>(
        &'a self,
        write: &WriteTransaction,
        leader: &mut Leader,
        group: &mut Vec<(Arc<Slot>, Result<CommitSeq>)>,
        position: &mut Position,
        data: &mut Option<RwLockWriteGuard<'a, Data>>,
    ) -> Result<u32> {
        let mut table = write.open_table(TABLE).map_err(failed)?;
        let mut record = Journal::begin();
        let (mut ops, mut count) = (Vec::new(), 0);
        while record.len() < GROUP_BYTES && count < GROUP_TRANSACTIONS {
            let Some(slot) = self.queue.lock().waiting.pop_front() else { break };
            // Before anything is tried: all of a group are answered, whatever happens.
            group.push((Arc::clone(&slot), Ok(CommitSeq(position.seq))));
            let txn = &slot.txn;
            let tried = match admit(&table, txn) {
                Ok(()) if txn.ops.is_empty() => Ok(CommitSeq(position.seq)),
                Ok(()) => {
                    codec::encode(txn, &mut record);
                    apply(&mut table, position, txn, &mut ops)?;
                    count += 1;
                    Ok(CommitSeq(position.seq))
                }
                Err(error) => Err(error),
            };
            if let Some((_, answer)) = group.last_mut() {
                *answer = tried;
            }
        }
        if count > 0 {
            let journalled = leader.journal.append(record, leader.position.seq + 1, count);
            journalled.map_err(|error| Error::io("writing the journal", error))?;
            let data = data.insert(self.data.write());
            finish(data, &mut table, *position, &ops)?;
        }
        Ok(count)
    }

    /// Makes everything durable where it belongs, and lets the journal begin anew.
    fn checkpoint(&self, leader: &mut Leader) -> Result<()> {
        catch_unwind(AssertUnwindSafe(|| self.try_checkpoint(leader)))
            .unwrap_or_else(|panic| {
                self.torn.store(true, Ordering::SeqCst);
                Err(Error::panicked("a checkpoint", &*panic))
            })
            .map_err(|error| self.stop(&error))
    }

    fn try_checkpoint(&self, leader: &mut Leader) -> Result<()> {
        let mut data = self.data.write();
        data.sync()?;
        let full = data.mark_full_folders(self.options.folder_files_max);
        let mut position = leader.position;
        position.generation = leader.journal.generation() + 1;
        let mut write = self.db.begin_write().map_err(failed)?;
        // So that opening after a crash costs the journal and not the whole table.
        write.set_quick_repair(true);
        {
            let mut table = write.open_table(TABLE).map_err(failed)?;
            data.save_folders(&mut table)?;
            position.write(&mut table)?;
        }
        write.commit().map_err(failed)?;
        leader.position = position;
        leader.journal.reset(position.generation);

        // What follows may be interrupted: the rows say what is left to do.
        data.clear_staging()?;
        for folder in &full {
            data.split(folder)?;
        }
        loop {
            let mut write = self.db.begin_write().map_err(failed)?;
            write.set_durability(Durability::None).map_err(failed)?;
            let mut table = write.open_table(TABLE).map_err(failed)?;
            let dead = dead_files(&table)?;
            for (number, part) in &dead {
                data.unlink((*number, *part))?;
            }
            // Durably gone before their rows go, or a power cut would bring back files that no row knows.
            data.sync_unlinked()?;
            for (number, part) in &dead {
                table::unset(&mut table, &table::key(b'D', *number, &part.to_be_bytes()))?;
            }
            data.save_folders(&mut table)?;
            drop(table);
            write.commit().map_err(failed)?;
            if dead.len() < DEAD_FILES {
                return Ok(());
            }
        }
    }

    /// A last checkpoint, once no writer is writing.
    ///
    /// # Errors
    /// The failure that stopped the store, if one has.
    pub fn finish(&self) -> Result<()> {
        let mut leader = self.leader.lock();
        match self.stopped() {
            Some(error) => Err(error),
            None => self.checkpoint(&mut leader),
        }
    }
}

/// Whether a transaction is accepted.
fn admit(table: &impl Read, txn: &Transaction) -> Result<()> {
    for (index, guard) in txn.guards.iter().enumerate() {
        if !holds(table, &guard.object, &guard.condition)? {
            return Err(Error::GuardFailed { index });
        }
    }
    try_names(table, &txn.ops)
}

/// Does what a group says to files, and writes down how far the store is.
fn finish(data: &mut Data, table: &mut Rows<'_>, position: Position, ops: &[FileOp]) -> Result<()> {
    ops.iter().try_for_each(|op| data.execute(op))?;
    data.save_folders(table)?;
    position.write(table)
}

/// Ends what was begun, and applies all of the journal again.
fn replay_all(db: &Database, data: &mut Data, journal: &mut Journal, position: &mut Position) -> Result<()> {
    for folder in data.half_split() {
        data.split(&folder)?;
    }
    // Files are written only after the record that says so is durable, now as before.
    journal.settle().map_err(|error| Error::io("syncing the journal", error))?;
    let first = position.seq;
    while let Some(record) = journal.next(position.seq + 1)? {
        replay(db, data, position, record)?;
    }
    if position.seq > first {
        tracing::info!(transactions = position.seq - first, "replayed the journal");
    }
    Ok(())
}

/// Applies a journal record again.
fn replay(db: &Database, data: &mut Data, position: &mut Position, record: Record) -> Result<()> {
    let mut write = db.begin_write().map_err(failed)?;
    write.set_durability(Durability::None).map_err(failed)?;
    let mut table = write.open_table(TABLE).map_err(failed)?;
    let mut ops = Vec::new();
    let mut payload = record.payload;
    for _ in 0..record.count {
        let damaged = |why: String| {
            let what = format!("journal record of transaction {}: {why}", record.first_seq);
            Error::Corrupt { offset: 0, what }
        };
        let txn = codec::decode(&mut payload).map_err(damaged)?;
        // It was accepted once; an unsound one must not get past here.
        try_names(&table, &txn.ops).map_err(|error| damaged(error.to_string()))?;
        apply(&mut table, position, &txn, &mut ops)?;
    }
    finish(data, &mut table, *position, &ops)?;
    drop(table);
    write.commit().map_err(failed)
}

/// Some files that nothing uses.
fn dead_files(table: &impl Read) -> Result<Vec<(u64, u64)>> {
    use std::ops::Bound::{Excluded, Included};
    let mut dead = Vec::new();
    table.rows((Included(b"D"), Excluded(b"E")), false, &mut |key, _| {
        let number = |at: usize| key.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
        if let (Some(object), Some(part)) = (number(1), number(9)) {
            dead.push((object, part));
        }
        Ok(dead.len() < DEAD_FILES)
    })?;
    Ok(dead)
}

/// Says that files and rows may not fit together, should its scope end with a panic.
struct TornByPanic<'a>(&'a AtomicBool);

impl Drop for TornByPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::SeqCst);
        }
    }
}

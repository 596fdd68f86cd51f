//! Group commit: transactions that are applied become one batch of the ordered store and one sync.
//!
//! submit → queue (and overlay, under one lock: commit order) → commit thread takes all that waits → one batch, one
//! sync → durable mark → overlay forgets → files and spaces that died are cleared
//!
//! While a group is on its way, the next gathers by itself. Transactions that asked only for applied do not wake the
//! thread; they go with the next that does, at the latest after [`Options::applied_flush`](crate::Options), or when
//! they are many.
//!
//! Every group is synced. To leave out the sync of groups that no caller waits for would save little, and LevelDB does
//! not sync a log that it has filled before it goes on to the next: a later sync would not cover them.
//!
//! Invariants:
//! 1. Groups are written in commit order by one thread, so what a crash leaves is a prefix.
//! 2. After a failed write nothing more is written: the mark fails with the first cause.
//! 3. At most about [`QUEUE_BYTES_MAX`] wait; submitters beyond wait before they take any lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_store::{DurableMark, Error, Result};
use parking_lot::{Condvar, Mutex};

use crate::draft::{Outcome, State};
use crate::keys;
use crate::ordered::Batch;
use crate::records::encode_meta;

/// Bytes of changes that may wait for the commit thread (64 MiB, and one transaction more).
pub const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Bytes of applied changes that wake the commit thread though no caller waits for them.
const LAZY_BYTES_MAX: usize = 4 << 20;

/// Applied transactions on their way.
#[derive(Default)]
struct Queue {
    waiting: Vec<Outcome>,
    bytes: usize,
    /// The last transaction that was given a place.
    seq: u64,
    /// A caller needs the group now.
    urgent: bool,
    /// Since when something waits.
    since: Option<Instant>,
    closing: bool,
}

/// Answers those who wait if the commit thread panics.
struct FailsOnPanic<'a>(&'a Commit);

impl Drop for FailsOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.mark.fail(Error::Stopped { cause: "the commit thread panicked".into() });
            self.0.room.notify_all();
        }
    }
}

/// Figures of a store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Transactions committed.
    pub transactions: u64,
    /// Groups, each one synced write to the ordered store.
    pub groups: u64,
    /// Syncs asked for here: of groups, of files, of their folder. Those of the engine's own background work are not
    /// among them.
    pub syncs: u64,
}

/// The queue and the thread's side of it.
pub struct Commit {
    state: Arc<State>,
    /// No caller has asked for the group that is open: a waiter has to. Always changed under the queue's lock.
    calm: Arc<AtomicBool>,
    queue: Mutex<Queue>,
    work: Condvar,
    room: Condvar,
    mark: Arc<DurableMark>,
    applied_flush: Duration,
    transactions: AtomicU64,
    groups: AtomicU64,
    syncs: AtomicU64,
}

impl Commit {
    /// A queue behind transaction `seq`.
    pub fn new(state: Arc<State>, seq: u64, applied_flush: Duration) -> Arc<Self> {
        Arc::new_cyclic(|commit: &std::sync::Weak<Self>| {
            let calm = Arc::new(AtomicBool::new(true));
            let (nudged, still_calm) = (commit.clone(), Arc::clone(&calm));
            let nudge = move || {
                if still_calm.load(Ordering::Relaxed)
                    && let Some(commit) = nudged.upgrade()
                {
                    commit.hurry();
                }
            };
            let mark = DurableMark::new(seq, Box::new(nudge));
            Self {
                state,
                calm,
                queue: Mutex::new(Queue { seq, ..Queue::default() }),
                work: Condvar::new(),
                room: Condvar::new(),
                mark,
                applied_flush,
                transactions: AtomicU64::new(0),
                groups: AtomicU64::new(0),
                syncs: AtomicU64::new(0),
            }
        })
    }

    /// The durable mark.
    pub fn mark(&self) -> &Arc<DurableMark> {
        &self.mark
    }

    /// The last transaction that was applied.
    pub fn seq(&self) -> u64 {
        self.queue.lock().seq
    }

    /// Figures since the store was opened.
    pub fn figures(&self) -> Figures {
        Figures {
            transactions: self.transactions.load(Ordering::Relaxed),
            groups: self.groups.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
        }
    }

    /// A caller waits for what is applied.
    fn hurry(&self) {
        let mut queue = self.queue.lock();
        if !queue.urgent && !queue.waiting.is_empty() {
            self.ask(&mut queue);
        }
    }

    fn ask(&self, queue: &mut Queue) {
        queue.urgent = true;
        self.calm.store(false, Ordering::Relaxed);
        self.work.notify_one();
    }

    /// Blocks while too much waits.
    ///
    /// # Errors
    /// [`Error::Closed`], or the failure that stopped the store.
    pub fn wait_for_room(&self) -> Result<()> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(failure) = self.mark.failure() {
                return Err(failure);
            }
            if queue.closing {
                return Err(Error::Closed);
            }
            if queue.bytes < QUEUE_BYTES_MAX {
                return Ok(());
            }
            self.room.wait(&mut queue);
        }
    }

    /// Applies what a draft leaves and returns its place. `durable`: its writer asked for that. `seen` is what the
    /// draft saw (see [`Draft::seen`](crate::draft::Draft::seen)): what it wrote may be a copy of that.
    ///
    /// # Errors
    /// As for [`Commit::wait_for_room`]; the outcome is dropped then.
    pub fn publish(&self, outcome: Outcome, durable: bool, seen: u64) -> Result<u64> {
        let len = |value: &Option<Bytes>| value.as_ref().map_or(0, Bytes::len);
        let bytes: usize = outcome.changed.iter().map(|change| 64 + change.key.len() + len(&change.value)).sum();
        let files = outcome.new_files.len() as u64;
        let mut queue = self.queue.lock();
        let refused = if queue.closing { Some(Error::Closed) } else { self.mark.failure() };
        if let Some(error) = refused {
            drop(queue);
            if let Some(files) = &self.state.files {
                outcome.new_files.iter().for_each(|file| files.remove(*file));
            }
            return Err(error);
        }
        queue.seq += 1;
        let seq = queue.seq;
        {
            let mut overlay = self.state.overlay.write();
            let shows = if durable { seq } else { seen };
            for change in &outcome.changed {
                overlay.publish(&change.key, &change.value, seq, shows, change.same_spaces);
            }
        }
        queue.waiting.push(outcome);
        queue.bytes += bytes;
        let first = queue.since.is_none();
        if first {
            queue.since = Some(Instant::now());
        }
        if !queue.urgent && (durable || queue.bytes >= LAZY_BYTES_MAX) {
            self.ask(&mut queue);
        } else if first {
            // The thread begins to count the time.
            self.work.notify_one();
        }
        drop(queue);
        self.syncs.fetch_add(files, Ordering::Relaxed);
        Ok(seq)
    }

    /// The commit thread: until the store is closed and nothing waits. Calls `wake` when a group let a space die.
    pub fn run(&self, wake: &dyn Fn()) {
        let _fails = FailsOnPanic(self);
        while let Some((group, seq, bytes)) = self.take() {
            if self.mark.failure().is_none() {
                match self.write(&group, seq) {
                    Ok(keys) => {
                        self.transactions.fetch_add(group.len() as u64, Ordering::Relaxed);
                        self.mark.advance(seq);
                        self.state.overlay.write().retire(keys.iter(), seq);
                        self.clear(group, wake);
                    }
                    Err(error) => {
                        let mut cause = error.to_string();
                        if let Some(source) = std::error::Error::source(&error) {
                            cause = format!("{cause}: {source}");
                        }
                        tracing::error!(%cause, "the store stops writing");
                        self.mark.fail(Error::Stopped { cause: cause.into() });
                    }
                }
            }
            self.queue.lock().bytes -= bytes;
            self.room.notify_all();
        }
    }

    /// The next group; `None` once the store is closed and nothing waits.
    fn take(&self) -> Option<(Vec<Outcome>, u64, usize)> {
        let mut queue = self.queue.lock();
        loop {
            let ripe = queue.since.is_some_and(|since| since.elapsed() >= self.applied_flush);
            if !queue.waiting.is_empty() && (queue.urgent || queue.closing || ripe) {
                break;
            }
            if queue.closing {
                return None;
            }
            match queue.since {
                Some(since) => {
                    let left = self.applied_flush.saturating_sub(since.elapsed());
                    self.work.wait_for(&mut queue, left);
                }
                None => self.work.wait(&mut queue),
            }
        }
        queue.urgent = false;
        self.calm.store(true, Ordering::Relaxed);
        queue.since = None;
        // What waits now goes; its bytes count until it is written.
        let bytes = queue.bytes;
        Some((std::mem::take(&mut queue.waiting), queue.seq, bytes))
    }

    /// Writes a group; returns the keys that it has set or removed.
    fn write(&self, group: &[Outcome], seq: u64) -> Result<Vec<Bytes>> {
        if group.iter().any(|pending| !pending.new_files.is_empty())
            && let Some(files) = &self.state.files
        {
            files.sync_folder()?;
            self.syncs.fetch_add(1, Ordering::Relaxed);
        }
        // Of a key that several transactions have set, the last value counts.
        let mut last: BTreeMap<&Bytes, (usize, &Option<Bytes>)> = BTreeMap::new();
        let mut ranges: Vec<(usize, &(Bytes, Bytes))> = Vec::new();
        for (at, outcome) in group.iter().enumerate() {
            ranges.extend(outcome.ranges.iter().map(|range| (at, range)));
            last.extend(outcome.changed.iter().map(|change| (&change.key, (at, &change.value))));
        }
        let keys: Vec<Bytes> = last.keys().map(|key| (*key).clone()).collect();
        // The batch removes ranges before it sets entries: an entry that a later transaction's range takes away is left
        // out, and a removal that a range covers needs no word of its own.
        let taken = |key: &Bytes, at: usize, value: &Option<Bytes>| {
            let covers = |(start, end): &(Bytes, Bytes)| start <= key && key < end;
            ranges.iter().any(|(later, range)| (value.is_none() || *later > at) && covers(range))
        };
        let kept = last.into_iter().filter(|(key, (at, value))| !taken(key, *at, value));
        let mut entries: Vec<_> = kept.map(|(key, (_, value))| (key.clone(), value.clone())).collect();
        let ranges = ranges.into_iter().map(|(_, range)| range.clone()).collect();
        let meta = encode_meta(seq, self.state.numbers.load(Ordering::Relaxed));
        entries.push((Bytes::from_static(keys::META), Some(meta)));
        self.state.store.write(&Batch { ranges, entries }, true)?;
        self.groups.fetch_add(1, Ordering::Relaxed);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(keys)
    }

    /// Takes away what nothing names any more.
    fn clear(&self, group: Vec<Outcome>, wake: &dyn Fn()) {
        if group.iter().any(|pending| pending.deaths) {
            wake();
        }
        if let Some(files) = &self.state.files {
            group.iter().flat_map(|pending| &pending.unused_files).for_each(|file| files.remove(*file));
        }
    }

    /// Refuses further transactions; [`Commit::run`] ends when what waits is written.
    pub fn close(&self) {
        self.queue.lock().closing = true;
        self.work.notify_all();
        self.room.notify_all();
    }
}

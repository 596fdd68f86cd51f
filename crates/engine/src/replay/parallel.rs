//! Parallel replay: the thread that walks the log verifies it and hands operations on; workers apply them, each those
//! of its objects.
//!
//! ```text
//! walk: segment → record → operation ─┬─ of one object → batch of that object's worker → index
//!                                     └─ of names, or of several objects → all workers are idle → index
//! ```
//!
//! Invariants:
//! 1. The operations of one object are applied in the order of the log: one worker has all of them. So are those of
//!    all objects that share data, because the count of what several point to depends on their order: the first worker
//!    has them.
//! 2. An object is made by the thread that walks, before any operation of it is handed on, and not while the removal of
//!    one of its name or number waits to be applied.
//! 3. The error that is told is the first in the order of the log, as if operations were applied one by one.
//! 4. At most the segment that was read last and the one before it wait to be applied while the next one is read.
//! 5. No worker outlives the walk.

use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use esker_store::{Error, Result};
use parking_lot::Mutex;

use super::{Index, Replayer, expected_ns, nonsense, sound, value_of};
use crate::buffer::{BufferSlice, SegmentBuffer};
use crate::format::{Kind, OpHeader, RecordHeader, SegmentHeader, clone_range_words, decode_name};
use crate::objects::Object;
use crate::recover::{Chain, End, RecoveryReport, Replay, Walk};

/// More workers than this would wait for the thread that walks.
const WORKERS_MAX: usize = 4;
/// See [`Workers::first`].
const ALONE_FIRST: u64 = 4_096;
/// Operations in a batch.
const BATCH: usize = 512;
/// Batches that wait for a worker, at most.
const BATCHES_MAX: usize = 8;
/// See [`Workers::after`]: to wait for a worker costs as much as a hundred operations or more.
const ALONE_AFTER: u64 = 1_000;
/// So many times [`Workers::after`] the walking thread applies itself where it had to wait again and again.
const PATIENCE_MAX: u64 = 64;
/// So many removals are remembered.
const GONE_MAX: usize = 1 << 16;
const STACK_BYTES: usize = 2 << 20;
const WHO: &str = "a thread that replays the log";

/// The workers that apply, and what the walking thread applies itself.
#[derive(Clone, Copy, Debug)]
pub struct Workers {
    /// Fewer than two: the walking thread applies all operations itself.
    pub count: usize,
    /// The walking thread applies so many operations itself before it starts workers.
    pub first: u64,
    /// After an operation for which all workers had to be idle it applies so many itself, if it had handed on fewer
    /// since the last such operation; twice as many each time that this happens again.
    pub after: u64,
    /// The stack of a worker.
    pub stack_bytes: usize,
}

impl Workers {
    /// None.
    pub const NONE: Self = Self { count: 0, first: 0, after: 0, stack_bytes: STACK_BYTES };

    /// Those that this machine has processors for.
    pub fn of_machine() -> Self {
        let count = std::thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX);
        Self { count, first: ALONE_FIRST, after: ALONE_AFTER, stack_bytes: STACK_BYTES }
    }
}

/// Walks the log, and has it applied.
///
/// # Errors
/// Those of [`Walk::run`]; [`Error::Stopped`] if a worker panics.
pub(crate) fn replay<'a>(
    walk: Walk<'_>,
    chain: &Chain,
    mut replayer: Replayer<'a>,
    workers: Workers,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(End, RecoveryReport, Replayer<'a>)> {
    if workers.count < 2 {
        let (end, report) = walk.run(chain, &mut replayer, progress)?;
        return Ok((end, report, replayer));
    }
    std::thread::scope(|scope| {
        let mut parallel = Parallel::new(scope, replayer, workers);
        let (end, mut report) = walk.run(chain, &mut parallel, progress)?;
        let (replayer, work) = parallel.finish()?;
        report.replay_work = work.of_workers + report.replay.saturating_sub(work.waited);
        Ok((end, report, replayer))
    })
}

/// How long replaying took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// How long the workers applied operations, one and all.
    of_workers: Duration,
    /// How long the walking thread waited for them.
    waited: Duration,
}

/// The first operation that failed, by its number in the log.
#[derive(Default)]
struct Failures {
    first: Mutex<Option<(u64, Error)>>,
    /// Its number plus one; 0 for none.
    failed: AtomicU64,
}

impl Failures {
    fn note(&self, number: u64, error: Error) {
        let mut first = self.first.lock();
        if first.as_ref().is_none_or(|(before, _)| number < *before) {
            *first = Some((number, error));
            self.failed.store(number + 1, Ordering::Release);
        }
    }

    /// Whether an operation before this one has failed.
    fn before(&self, number: u64) -> bool {
        let failed = self.failed.load(Ordering::Relaxed);
        failed != 0 && failed <= number
    }

    fn first(&self) -> Result<()> {
        self.first.lock().as_ref().map_or(Ok(()), |(_, error)| Err(error.clone()))
    }
}

/// An operation on its way to its object.
struct Item {
    header: OpHeader,
    /// Where it stands in the batch's bytes.
    at: usize,
    /// Its object's place in the batch.
    object: usize,
    /// Its number in the log.
    number: u64,
}

/// Operations of one segment for one worker.
struct Batch {
    bytes: BufferSlice,
    /// Device offset of the bytes.
    base: u64,
    objects: Vec<Arc<Object>>,
    items: Vec<Item>,
}

enum Message {
    Batch(Batch),
    /// The worker answers it when everything before it is done.
    Mark,
}

struct Worker<'scope> {
    queue: SyncSender<Message>,
    thread: ScopedJoinHandle<'scope, (u64, Duration)>,
    /// Marks that it has answered.
    answered: u64,
    /// Nothing was handed to it since it answered the last mark.
    idle: bool,
    batch: Option<Batch>,
}

/// The object that an operation was for last, and its worker.
struct Last {
    number: u64,
    object: Arc<Object>,
    worker: usize,
}

/// See the module.
pub(super) struct Parallel<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    replayer: Replayer<'env>,
    how: Workers,
    workers: Vec<Worker<'scope>>,
    answers: (Sender<usize>, Receiver<usize>),
    failures: Arc<Failures>,
    /// Marks sent.
    marks: u64,
    /// By segment that may not be applied yet: the mark behind it.
    segments: VecDeque<u64>,
    /// The segment that is walked, and its device offset.
    walked: Option<(Arc<SegmentBuffer>, u64)>,
    /// Number of the next operation.
    number: u64,
    /// The walking thread still applies so many operations itself.
    alone: u64,
    /// So many it applies itself the next time that it had to wait for few.
    patience: u64,
    /// Operations handed on since all workers were idle.
    handed: u64,
    work: Work,
    last: Option<Last>,
    /// Objects that share data, by number.
    sharers: HashSet<u64>,
    /// Objects whose removal was handed on since all workers were idle: their numbers, and their names by hash.
    gone: (HashSet<u64>, HashSet<u64>),
}

impl Replay for Parallel<'_, '_> {
    fn segment(&mut self, header: &SegmentHeader, buffer: &Arc<SegmentBuffer>) {
        if self.handed > 0 {
            self.mark();
            self.segments.push_back(self.marks);
            while self.segments.len() > 1 {
                let before = self.segments.pop_front().unwrap_or(0);
                self.wait_for(before);
            }
        }
        self.replayer.segment(header, buffer);
        let base = header.segment * self.replayer.index.segments.segment_bytes;
        self.walked = Some((Arc::clone(buffer), base));
    }

    fn record(&mut self, record: &RecordHeader, offset: u64, operations: &[u8]) -> Result<()> {
        if self.failures.before(self.number) {
            self.settle()?;
        }
        let mut rest = operations;
        let mut at = offset + record.header_bytes() as u64;
        // The walk has verified every operation of the record.
        for _ in 0..record.op_count {
            let Some(header) = OpHeader::decode_trusted(rest) else { break };
            let total = header.total_bytes() as usize;
            self.operation(&header, &rest[..total], at)?;
            self.number += 1;
            rest = &rest[total..];
            at += total as u64;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        self.mark();
        self.wait_for(self.marks);
        self.workers.iter_mut().for_each(|worker| worker.idle = true);
        self.handed = 0;
        self.last = None;
        self.gone.0.clear();
        self.gone.1.clear();
        self.failures.first()
    }
}

impl<'scope, 'env> Parallel<'scope, 'env> {
    pub(super) fn new(scope: &'scope Scope<'scope, 'env>, replayer: Replayer<'env>, workers: Workers) -> Self {
        let sharers = replayer.index.segments.sharing.unknown().into_iter().collect();
        Self {
            scope,
            replayer,
            how: workers,
            workers: Vec::new(),
            answers: channel(),
            failures: Arc::default(),
            marks: 0,
            segments: VecDeque::new(),
            walked: None,
            number: 0,
            alone: workers.first,
            patience: workers.after,
            handed: 0,
            work: Work::default(),
            last: None,
            sharers,
            gone: Default::default(),
        }
    }

    /// Whether there are workers; if there can be none, the walking thread applies everything itself from now on.
    fn has_workers(&mut self) -> bool {
        if self.workers.is_empty()
            && let Err(error) = self.start()
        {
            tracing::warn!(%error, "the log is replayed by one thread");
            // Those that were started end.
            self.workers.clear();
            self.alone = u64::MAX;
        }
        !self.workers.is_empty()
    }

    fn start(&mut self) -> std::io::Result<()> {
        for number in 0..self.how.count {
            let (queue, messages) = sync_channel(BATCHES_MAX);
            let (answers, failures) = (self.answers.0.clone(), Arc::clone(&self.failures));
            let index = self.replayer.index;
            // The thread that walks takes answers for as long as there are workers.
            let answer = move || answers.send(number).unwrap_or_default();
            let run = move || work(index, &messages, &failures, &answer);
            let builder = Builder::new().name("esker-replay".into()).stack_size(self.how.stack_bytes);
            let thread = builder.spawn_scoped(self.scope, run)?;
            self.workers.push(Worker { queue, thread, answered: self.marks, idle: true, batch: None });
        }
        Ok(())
    }

    /// Ends the workers, after what they were handed is done.
    pub(super) fn finish(mut self) -> Result<(Replayer<'env>, Work)> {
        self.settle()?;
        for Worker { queue, thread, .. } in std::mem::take(&mut self.workers) {
            drop(queue);
            let (expected_ns, worked) = thread.join().map_err(|panic| Error::panicked(WHO, &*panic))?;
            self.replayer.expected_ns += expected_ns;
            self.work.of_workers += worked;
        }
        Ok((self.replayer, self.work))
    }

    fn operation(&mut self, header: &OpHeader, operation: &[u8], at: u64) -> Result<()> {
        match header.kind {
            Kind::Clone => self.sharers.extend([header.object, header.argument]),
            Kind::CloneRange => {
                let words = clone_range_words(&operation[header.payload_start()..header.payload_end()]);
                self.sharers.extend(words.iter().flat_map(|[other, ..]| [header.object, *other]));
            }
            _ => {}
        }
        if self.alone > 0 {
            self.alone -= 1;
            return self.here(header, operation, at);
        }
        match header.kind {
            Kind::CreateCollection => return self.here(header, operation, at),
            Kind::CreateObject if !self.is_gone(header, operation) => return self.here(header, operation, at),
            Kind::CreateObject | Kind::RemoveCollection | Kind::Rename | Kind::Clone | Kind::CloneRange => {}
            // What has no object, or no place in the log, is an error.
            Kind::Index => {}
            _ => {
                if self.find(header.object) && self.has_workers() {
                    return self.hand(header, at);
                }
            }
        }
        if self.handed > 0 {
            if self.handed < self.how.after {
                self.alone = self.patience;
                self.patience = (self.patience * 2).min(self.how.after * PATIENCE_MAX);
            } else {
                self.patience = self.how.after;
            }
            self.settle()?;
        }
        self.here(header, operation, at)
    }

    /// Applies an operation in this thread.
    fn here(&mut self, header: &OpHeader, operation: &[u8], at: u64) -> Result<()> {
        let done = self.replayer.whole(header, operation, at);
        if done.is_err() {
            // What is wrong with one before it is said first.
            self.settle()?;
        }
        done
    }

    /// Whether the object that is to be made has the name or the number of one whose removal may not be applied yet.
    fn is_gone(&self, header: &OpHeader, operation: &[u8]) -> bool {
        let (numbers, names) = &self.gone;
        !numbers.is_empty()
            && (numbers.contains(&header.object)
                || decode_name(header.key(operation).0).is_none_or(|id| names.contains(&id.hash64())))
    }

    /// Finds the object of this number and its worker; whether it is there.
    fn find(&mut self, number: u64) -> bool {
        if self.last.as_ref().is_some_and(|last| last.number == number) {
            return true;
        }
        let Some(object) = self.replayer.index.objects.numbered(number) else { return false };
        let shares = !self.sharers.is_empty() && self.sharers.contains(&number);
        let spread = (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize;
        let worker = if shares { 0 } else { spread % self.how.count };
        self.last = Some(Last { number, object, worker });
        true
    }

    /// Hands an operation to the worker of the object that was found last.
    fn hand(&mut self, header: &OpHeader, at: u64) -> Result<()> {
        let (Some(Last { object, worker, .. }), Some((buffer, base))) = (&self.last, &self.walked) else {
            return Ok(());
        };
        if header.kind == Kind::RemoveObject {
            self.gone.0.insert(header.object);
            self.gone.1.insert(object.id.hash64());
        }
        let (number, base) = (self.number, *base);
        let worker = &mut self.workers[*worker];
        worker.idle = false;
        let batch = worker.batch.get_or_insert_with(|| Batch {
            bytes: BufferSlice { buffer: Arc::clone(buffer), start: 0, len: buffer.len() },
            base,
            objects: Vec::new(),
            items: Vec::with_capacity(BATCH),
        });
        if !batch.objects.last().is_some_and(|last| Arc::ptr_eq(last, object)) {
            batch.objects.push(Arc::clone(object));
        }
        let at = (at - base) as usize;
        batch.items.push(Item { header: *header, at, object: batch.objects.len() - 1, number });
        self.handed += 1;
        if batch.items.len() == BATCH {
            // It may have to wait until there is room for one.
            let began = Instant::now();
            worker.flush(&self.failures);
            self.work.waited += began.elapsed();
        }
        if self.gone.0.len() > GONE_MAX { self.settle() } else { Ok(()) }
    }

    /// Has every worker answer when it has done what it was handed so far.
    fn mark(&mut self) {
        let began = Instant::now();
        self.marks += 1;
        for worker in &mut self.workers {
            if worker.idle {
                worker.answered = worker.answered.max(self.marks);
            } else {
                worker.flush(&self.failures);
                worker.send(Message::Mark, &self.failures);
            }
        }
        self.work.waited += began.elapsed();
    }

    /// Waits until every worker has answered so many marks.
    fn wait_for(&mut self, mark: u64) {
        let began = Instant::now();
        while self.workers.iter().any(|worker| worker.answered < mark) {
            let Ok(number) = self.answers.1.recv() else { break };
            let worker = &mut self.workers[number];
            worker.answered = worker.answered.saturating_add(1);
        }
        self.work.waited += began.elapsed();
    }
}

impl Worker<'_> {
    fn flush(&mut self, failures: &Failures) {
        if let Some(batch) = self.batch.take() {
            self.send(Message::Batch(batch), failures);
        }
    }

    fn send(&mut self, message: Message, failures: &Failures) {
        if self.queue.send(message).is_err() {
            // It is not waited for.
            self.answered = u64::MAX;
            failures.note(0, Error::Stopped { cause: format!("{WHO} has ended").into() });
        }
    }
}

/// A worker's life: how long its operations were to be expected to take, in nanoseconds, and how long they took.
fn work(index: Index<'_>, messages: &Receiver<Message>, failures: &Failures, answer: &dyn Fn()) -> (u64, Duration) {
    let (mut expected_ns, mut worked) = (0, Duration::ZERO);
    for message in messages {
        match message {
            Message::Mark => answer(),
            Message::Batch(batch) => {
                let (mut number, began) = (0, Instant::now());
                let applied = AssertUnwindSafe(|| apply(index, &batch, failures, &mut number, &mut expected_ns));
                let applied = catch_unwind(applied).unwrap_or_else(|panic| Err(Error::panicked(WHO, &*panic)));
                if let Err(error) = applied {
                    failures.note(number, error);
                }
                worked += began.elapsed();
            }
        }
    }
    (expected_ns, worked)
}

/// Applies a batch, as far as no operation before has failed. `number` is of the operation that it has come to.
fn apply(index: Index<'_>, batch: &Batch, failures: &Failures, number: &mut u64, expected: &mut u64) -> Result<()> {
    let bytes = batch.bytes.as_ref();
    for item in &batch.items {
        if failures.before(item.number) {
            break;
        }
        *number = item.number;
        let (header, object) = (&item.header, &batch.objects[item.object]);
        let operation = &bytes[item.at..item.at + header.total_bytes() as usize];
        let payload = &operation[header.payload_start()..header.payload_end()];
        let key = header.key(operation).0;
        let at = batch.base + item.at as u64;
        *expected += expected_ns(header, || Some(Arc::clone(object)));
        let value = value_of(header, payload, at)?;
        sound(header, key, payload, value.0).map_err(|what| nonsense(header, at, what))?;
        index.change(object, header, key, payload, value)?;
    }
    Ok(())
}

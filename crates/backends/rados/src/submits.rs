//! Submits under way: begun and not waited for.
//!
//! ```text
//! submit → lane of its object → one operation, if that can decide it → told by a thread of librados
//!                                  │ others come meanwhile: one operation for all of them
//!                             → it says that the object is missing: an entry, and an operation that makes it
//!                             → it says that a guard may have failed: a thread of our own looks
//! ```
//!
//! Small submits of one object go together: an operation costs an OSD much the same whatever it holds, and many times
//! as much in a pool of erasure codes. Where one of them is refused, or the object is missing, each is tried by itself.
//!
//! Invariants:
//! 1. Submits of one object are begun in the order of their calls, and one that takes several operations ends before
//!    later ones are begun. Those that are under way already when it turns out to need them are not called back: they
//!    may come before it.
//! 2. A sync is done when all submits are that were begun before it: what is acknowledged is durable.
//! 3. Threads of librados only tell, and begin operations: they wait for nothing.
//! 4. A lane that a thread has worked for stands behind the others that wait for one.
//! 5. A failed guard is told only where no operation of the submit may have been done: one that was refused late
//!    ([`Link::sure`]) may.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use esker_store::{Collection, CommitSeq, Completion, Condition, Error, Guard, ObjectId, Promise, Result, promised};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::change;
use crate::encode::{self, Entry};
use crate::entries::Entries;
use crate::fold::Fold;
use crate::fullness::Fullness;
use crate::link::{Link, code, write_error};
use crate::native::{Failed, Write, flags};

thread_local! {
    static WORKS: Cell<bool> = const { Cell::new(false) };
}

/// Threads that do what takes several operations, at most.
const THREADS_MAX: usize = 32;
/// A submit of at most so many bytes is small: it waits for the operation that is under way on its object, and goes
/// with others.
const SMALL_BYTES: usize = 64 << 10;
/// Submits that go together, and their bytes and parts, at most.
const TOGETHER_MAX: usize = 128;
const TOGETHER_BYTES_MAX: usize = 1 << 20;
const TOGETHER_PARTS_MAX: usize = 1_024;
/// So many submits of an object go alone after some that went together were refused, unless none is left before.
const ALONE_AFTER_REFUSAL: u32 = 256;
/// Where so many objects of a collection one after the other were missing, the next is taken for missing too, and made
/// without a look.
const MISSING_ENOUGH: u32 = 4;
/// Collections of which that is counted, at most.
const COUNTED_MAX: usize = 1_024;

/// A submit of one object.
struct Job {
    ticket: Ticket,
    object: ObjectId,
    guards: Vec<Guard>,
    fold: Fold,
    /// What is known of it: what its operation has told, if nothing was done to the object since.
    known: Known,
    /// It went together with others, and is tried by itself now.
    alone: bool,
    /// An operation of it was answered late as one that was not done, and may have been ([`Link::sure`]).
    doubtful: bool,
    began: Instant,
    promise: Promise<CommitSeq>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    /// The object is missing.
    Missing,
    /// A guard fails, or there is a tomb.
    Refused,
    /// Something was found where it was to be made under this entry.
    Found(Entry),
}

/// The submits of one object that are under way.
#[derive(Default)]
struct Lane {
    /// Begun as one operation, or with others in one, and not told of.
    begun: BTreeSet<u64>,
    /// These operations.
    operations: usize,
    /// One of them is of several submits: none is begun behind it, which would come before those if they were refused.
    together: bool,
    /// So many more go alone.
    go_alone: u32,
    /// Those that wait, by their tickets.
    jobs: BTreeMap<u64, Job>,
    /// One is worked for that takes several operations.
    taken: bool,
    /// A thread begins operations: no other does, so that they keep their order.
    beginning: bool,
}

impl Job {
    fn is_small(&self) -> bool {
        self.fold.bytes() + change::guard_bytes(&self.guards) <= SMALL_BYTES
    }

    /// Whether it can go behind those whose guards and changes these are, in one operation with them.
    fn goes_with(&self, guards: &[Guard], fold: &Fold) -> bool {
        self.known == Known::Nothing
            && !self.alone
            && self.is_small()
            && self.fold.joins()
            && self.guards.iter().all(|guard| !change::touches(fold, &guard.condition))
            && change::parts_of(guards, fold) + change::parts_of(&self.guards, &self.fold) <= TOGETHER_PARTS_MAX
            && fold.bytes() + self.fold.bytes() <= TOGETHER_BYTES_MAX
            && change::goes_at_once(&self.guards, &self.fold)
    }
}

impl Lane {
    /// Takes the first submit out, with others that can go together with it where it is small, and makes the operation.
    fn take_next(&mut self, is_small: bool) -> (Vec<Job>, Write) {
        let mut joined: Option<(Vec<Guard>, Fold)> = None;
        let mut count = 1;
        let mut waiting = self.jobs.values();
        let first = waiting.next().filter(|first| is_small && self.go_alone == 0 && !first.alone && first.fold.joins());
        if let Some(first) = first {
            for job in waiting.take(TOGETHER_MAX - 1) {
                let (guards, fold) =
                    joined.as_ref().map_or((&first.guards, &first.fold), |(guards, fold)| (guards, fold));
                if !job.goes_with(guards, fold) {
                    break;
                }
                let (guards, fold) = joined.get_or_insert_with(|| (first.guards.clone(), first.fold.clone()));
                for guard in &job.guards {
                    // That of an epoch is the same for many.
                    if !matches!(guard.condition, Condition::XattrCompare { .. }) || !guards.contains(guard) {
                        guards.push(guard.clone());
                    }
                }
                fold.join(&job.fold);
                count += 1;
            }
        }
        self.go_alone = self.go_alone.saturating_sub(1);
        let jobs: Vec<Job> = (0..count).filter_map(|_| self.jobs.pop_first()).map(|(_, job)| job).collect();
        let write = match (&joined, jobs.first()) {
            (Some((guards, fold)), _) => change::at_once(guards, fold),
            (None, Some(job)) => change::at_once(&job.guards, &job.fold),
            (None, None) => Write::new(),
        };
        (jobs, write)
    }
}

#[derive(Default)]
struct State {
    lanes: HashMap<ObjectId, Lane>,
    /// Lanes that no thread has taken up.
    ready: VecDeque<ObjectId>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    closed: bool,
    last_ticket: u64,
    under_way: BTreeSet<u64>,
    /// Those who wait for all up to a ticket.
    syncs: Vec<(u64, Promise<CommitSeq>)>,
    /// How many objects of a collection were missing of late, one after the other.
    missing: HashMap<Collection, u32>,
}

impl State {
    /// Notes whether an object was there that a submit came to.
    fn note(&mut self, collection: &Collection, missing: bool) {
        if !missing {
            // Most collections are not counted.
            if !self.missing.is_empty() {
                self.missing.remove(collection);
            }
        } else if let Some(count) = self.missing.get_mut(collection) {
            *count = count.saturating_add(1);
        } else {
            if self.missing.len() == COUNTED_MAX {
                self.missing.clear();
            }
            self.missing.insert(collection.clone(), 1);
        }
    }
}

fn is_likely_missing(missing: &HashMap<Collection, u32>, collection: &Collection) -> bool {
    missing.get(collection).is_some_and(|count| *count >= MISSING_ENOUGH)
}

/// What a lane has to do.
enum Step {
    /// Nothing, or another is at it.
    None,
    /// These are begun as one operation.
    Begin(Vec<Job>, Write),
    /// The object is made.
    Make(Job),
    /// It ends with this, never begun.
    Fail(Job, Error),
}

/// The submits of a store.
pub(crate) struct Submits {
    link: Link,
    entries: Arc<Entries>,
    fullness: Arc<Fullness>,
    state: Mutex<State>,
    given: Condvar,
    last_seq: AtomicU64,
}

impl Submits {
    pub(crate) fn new(link: Link, entries: Arc<Entries>) -> Arc<Self> {
        let fullness = Fullness::new(link.clone());
        let (state, given, last_seq) = (Mutex::default(), Condvar::new(), AtomicU64::new(0));
        Arc::new(Self { link, entries, fullness, state, given, last_seq })
    }

    /// The next number: later than all of this client, and than those of clients whose clocks were not ahead.
    #[allow(clippy::disallowed_methods, reason = "numbers of a client come after those of clients before it")]
    pub(crate) fn next_seq(&self) -> CommitSeq {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let last = self.last_seq.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |last| Some(now.max(last + 1)));
        CommitSeq(now.max(last.unwrap_or(0) + 1))
    }

    /// Begins a submit of one object. `gives_back`: it leads to giving space back, and a full pool takes it.
    pub(crate) fn begin(
        self: &Arc<Self>,
        object: ObjectId,
        guards: Vec<Guard>,
        fold: Fold,
        gives_back: bool,
    ) -> Completion<CommitSeq> {
        if guards.is_empty() && fold.is_empty() {
            return Completion::ready(Ok(self.next_seq()));
        }
        let key_bytes = fold.key_bytes();
        let admitted = if key_bytes == 0 || gives_back { Ok(()) } else { self.fullness.admit(key_bytes) };
        if let Err(error) = change::check(&guards, &fold).and(admitted) {
            return Completion::ready(Err(error));
        }
        let (promise, completion) = promised("a write to Ceph");
        let mut state = self.state.lock();
        state.last_ticket += 1;
        let number = state.last_ticket;
        state.under_way.insert(number);
        let ticket = Ticket { submits: Arc::clone(self), number };
        let (known, began) = (Known::Nothing, Instant::now());
        let job =
            Job { ticket, object: object.clone(), guards, fold, known, alone: false, doubtful: false, began, promise };
        state.lanes.entry(object.clone()).or_default().jobs.insert(number, job);
        drop(state);
        self.go_on(&object);
        completion
    }

    /// Has the lane of an object do what it has to.
    fn go_on(self: &Arc<Self>, object: &ObjectId) {
        loop {
            let step = self.next_step(&mut self.state.lock(), object);
            match step {
                Step::None => return,
                Step::Begin(jobs, write) => {
                    let begun = Instant::now();
                    self.operate(object, write, move |own, outcome| own.told(jobs, outcome, begun.elapsed()));
                    if let Some(lane) = self.state.lock().lanes.get_mut(object) {
                        lane.beginning = false;
                    }
                }
                Step::Make(job) => {
                    let own = Arc::clone(self);
                    self.entries.add(object, move |added| match added {
                        Ok(entry) => {
                            let write = change::making(entry, None, &job.fold);
                            let (object, begun) = (job.object.clone(), Instant::now());
                            own.operate(&object, write, move |own, outcome| {
                                own.made(job, entry, outcome, begun.elapsed());
                            });
                        }
                        Err(error) => own.end_worked(job, Err(error)),
                    });
                }
                Step::Fail(job, error) => self.end(job, Err(error)),
            }
        }
    }

    fn next_step(self: &Arc<Self>, state: &mut State, object: &ObjectId) -> Step {
        let Some(lane) = state.lanes.get_mut(object) else { return Step::None };
        if lane.taken || lane.beginning {
            return Step::None;
        }
        let Some((first, job)) = lane.jobs.first_key_value() else {
            if lane.begun.is_empty() {
                state.lanes.remove(object);
            }
            return Step::None;
        };
        let first = *first;
        if job.known == Known::Nothing && !job.alone && job.began.elapsed() >= change::PATIENCE {
            // It has waited for others that were not answered.
            let error = late(object);
            return lane.jobs.remove(&first).map_or(Step::None, |job| Step::Fail(job, error));
        }
        let earlier_are_under_way = lane.begun.first().is_some_and(|begun| *begun < first);
        let makes = change::of_missing(&job.guards, &job.fold).is_none();
        let is_guessed = makes
            && job.known == Known::Nothing
            && lane.begun.is_empty()
            && is_likely_missing(&state.missing, object.collection());
        if is_guessed || job.known == Known::Missing && makes && !earlier_are_under_way {
            lane.taken = true;
            return lane.jobs.remove(&first).map_or(Step::None, Step::Make);
        }
        if job.known == Known::Nothing && change::goes_at_once(&job.guards, &job.fold) {
            let is_small = job.is_small();
            let gathers = is_small && !job.alone && lane.go_alone == 0;
            if lane.together || gathers && lane.operations > 0 {
                return Step::None;
            }
            let (jobs, write) = lane.take_next(is_small);
            lane.together = jobs.len() > 1;
            lane.begun.extend(jobs.iter().map(|job| job.ticket.number));
            (lane.beginning, lane.operations) = (true, lane.operations + 1);
            return Step::Begin(jobs, write);
        }
        if earlier_are_under_way {
            return Step::None;
        }
        lane.taken = true;
        if state.idle > 0 {
            state.idle -= 1;
            self.given.notify_one();
        } else if state.threads.len() < THREADS_MAX {
            let own = Arc::clone(self);
            match std::thread::Builder::new().name("esker-ceph".into()).spawn(move || own.work()) {
                Ok(thread) => state.threads.push(thread),
                Err(error) if state.threads.is_empty() => {
                    lane.taken = false;
                    let error = Error::io("a thread for writing to Ceph cannot be started", error);
                    return lane.jobs.remove(&first).map_or(Step::None, |job| Step::Fail(job, error));
                }
                // Those that there are come to it.
                Err(_) => {}
            }
        }
        state.ready.push_back(object.clone());
        Step::None
    }

    /// Begins an operation on an object. `told` is called once, by this thread or one of librados.
    fn operate(
        self: &Arc<Self>,
        object: &ObjectId,
        write: Write,
        told: impl FnOnce(&Arc<Self>, std::result::Result<u64, Failed>) + Send + 'static,
    ) {
        let (own, name) = (Arc::clone(self), encode::object(object));
        let pool = self.link.of(object).pool.clone();
        pool.write(&name, write, flags::FULL_TRY, move |outcome| told(&own, outcome));
    }

    /// The one operation of these submits has ended, so long after it was begun.
    fn told(self: &Arc<Self>, mut jobs: Vec<Job>, outcome: std::result::Result<u64, Failed>, took: Duration) {
        let Some(object) = jobs.first().map(|job| job.object.clone()) else { return };
        let mut state = self.state.lock();
        if let Some(lane) = state.lanes.get_mut(&object) {
            lane.operations -= 1;
            lane.together &= jobs.len() == 1;
            for job in &jobs {
                lane.begun.remove(&job.ticket.number);
            }
        }
        let is_missing = matches!(outcome, Err(Failed { code: code::NOT_THERE, .. }));
        let is_refused = matches!(outcome, Err(Failed { code: code::CANCELED, .. }));
        if outcome.is_ok() || is_missing {
            state.note(object.collection(), is_missing);
        }
        if is_refused && took > self.link.sure() {
            // None of them is tried again, by itself or with others: it may be there.
            drop(state);
            self.go_on(&object);
            for job in jobs {
                self.end(Job { doubtful: true, ..job }, Err(change::doubtful(&object)));
            }
            return;
        }
        if is_missing && took > self.link.sure() {
            // What it has changed may have been removed since: it is made, and no failed guard is told.
            jobs.iter_mut().for_each(|job| job.doubtful = true);
        }
        if jobs.len() > 1 && outcome.is_err_and(|failed| !failed.is_unknown()) {
            // Because of which of them, only each by itself can tell.
            let lane = state.lanes.entry(object.clone()).or_default();
            lane.go_alone = if is_refused { ALONE_AFTER_REFUSAL } else { lane.go_alone };
            for job in jobs {
                lane.jobs.insert(job.ticket.number, Job { alone: true, ..job });
            }
            drop(state);
            return self.go_on(&object);
        }
        if is_missing || is_refused {
            let job = jobs.pop();
            // There is one: several were put back.
            let Some(job) = job else { return };
            return self.not_done(state, job, is_missing);
        }
        drop(state);
        self.go_on(&object);
        for job in jobs {
            self.end(job, outcome.map(|_| ()).map_err(|failed| write_error(failed, &encode::object(&object))));
        }
    }

    /// The object of a submit is missing, or a guard of it may fail.
    fn not_done(self: &Arc<Self>, mut state: MutexGuard<'_, State>, job: Job, is_missing: bool) {
        let lane = state.lanes.entry(job.object.clone()).or_default();
        let first = lane.jobs.first_key_value().map(|(first, _)| *first);
        if lane.taken || first.is_some_and(|first| first < job.ticket.number) {
            // One before it is still to be done: what it finds then counts.
            return self.put_back(state, Job { known: Known::Nothing, ..job });
        }
        if !is_missing {
            return self.put_back(state, Job { known: Known::Refused, ..job });
        }
        let Some(done) = change::of_missing(&job.guards, &job.fold) else {
            return self.put_back(state, Job { known: Known::Missing, ..job });
        };
        drop(state);
        self.go_on(&job.object);
        self.end(job, done);
    }

    fn put_back(self: &Arc<Self>, mut state: MutexGuard<'_, State>, job: Job) {
        let object = job.object.clone();
        state.lanes.entry(object.clone()).or_default().jobs.insert(job.ticket.number, job);
        drop(state);
        self.go_on(&object);
    }

    /// The operation that makes an object has ended.
    fn made(self: &Arc<Self>, job: Job, entry: Entry, outcome: std::result::Result<u64, Failed>, took: Duration) {
        match outcome {
            Ok(_) => self.end_worked(job, Ok(())),
            Err(Failed { code: code::THERE, .. }) => {
                let mut state = self.state.lock();
                state.note(job.object.collection(), false);
                if let Some(lane) = state.lanes.get_mut(&job.object) {
                    lane.taken = false;
                }
                let doubtful = job.doubtful || took > self.link.sure();
                self.put_back(state, Job { known: Known::Found(entry), doubtful, ..job });
            }
            Err(failed) => {
                if !failed.is_unknown() {
                    self.entries.drop_entry(&job.object, entry, || ());
                }
                let error = write_error(failed, &encode::object(&job.object));
                self.end_worked(job, Err(error));
            }
        }
    }

    /// Whether this is a thread that works on submits.
    pub(crate) fn works() -> bool {
        WORKS.get()
    }

    fn work(self: Arc<Self>) {
        WORKS.set(true);
        let mut state = self.state.lock();
        loop {
            let Some(object) = state.ready.pop_front() else {
                if state.closed {
                    return;
                }
                state.idle += 1;
                self.given.wait(&mut state);
                continue;
            };
            let job = state.lanes.get_mut(&object).and_then(|lane| lane.jobs.pop_first());
            drop(state);
            if let Some((_, job)) = job {
                // A panic, of a waker too, is no reason to write no more.
                if catch_unwind(AssertUnwindSafe(|| self.run(job))).is_err() {
                    tracing::error!("writing {object} to Ceph, or the waker of who waits for it, panicked");
                }
            }
            self.give_back(&object);
            state = self.state.lock();
        }
    }

    fn run(&self, job: Job) {
        let tried = if let Known::Found(entry) = job.known { Some(entry) } else { None };
        let done = if job.began.elapsed() < change::PATIENCE {
            change::change(&self.link, &self.entries, &job.object, &job.guards, &job.fold, tried)
        } else if tried.is_some() {
            // What was found may be what it has made.
            Err(change::doubtful(&job.object))
        } else {
            // Nothing of it was done.
            Err(late(&job.object))
        };
        self.end(job, done);
    }

    /// Ends a submit that its lane was taken for.
    fn end_worked(self: &Arc<Self>, job: Job, done: Result<()>) {
        let object = job.object.clone();
        self.give_back(&object);
        self.end(job, done);
    }

    /// The lane of an object is not taken any more.
    fn give_back(self: &Arc<Self>, object: &ObjectId) {
        let mut state = self.state.lock();
        if let Some(lane) = state.lanes.get_mut(object) {
            lane.taken = false;
            // What they were told was before this.
            for job in lane.jobs.values_mut().filter(|job| !matches!(job.known, Known::Found(_))) {
                job.known = Known::Nothing;
            }
        }
        drop(state);
        self.go_on(object);
    }

    fn end(&self, job: Job, outcome: Result<()>) {
        let seq = self.next_seq();
        let Job { ticket, promise, object, doubtful, .. } = job;
        let outcome = match outcome {
            // It may have been done before, all the same.
            Err(error) if doubtful && !error.is_unknown() => Err(change::doubtful(&object)),
            other => other.map(|()| seq),
        };
        // First: a waker may drop the store, which waits for all that is under way.
        drop(ticket);
        fulfil(promise, outcome);
    }

    /// Ends once all that is under way has ended.
    pub(crate) fn sync(&self) -> Completion<CommitSeq> {
        let mut state = self.state.lock();
        if state.under_way.is_empty() {
            return Completion::ready(Ok(CommitSeq(self.last_seq.load(Ordering::SeqCst))));
        }
        let (promise, completion) = promised("a sync of Ceph");
        let upto = state.last_ticket;
        state.syncs.push((upto, promise));
        completion
    }

    /// Ends the threads when they have done what they were given.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        (state.closed, state.idle) = (true, 0);
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.given.notify_all();
        for thread in threads {
            // A waker that drops a store may run on one of these, which cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread that writes to Ceph panicked");
            }
        }
    }
}

/// Tells the caller. Its waker may panic, which must not end the work of a lane, nor keep others from being told.
fn fulfil(promise: Promise<CommitSeq>, outcome: Result<CommitSeq>) {
    if catch_unwind(AssertUnwindSafe(|| promise.fulfil((outcome, None)))).is_err() {
        tracing::error!("the waker of a caller that waits for a write to Ceph panicked");
    }
}

/// Why a submit was not done.
fn late(object: &ObjectId) -> Error {
    let cause = std::io::Error::from(std::io::ErrorKind::TimedOut);
    Error::io(format!("writing {object} to Ceph, behind others that were not answered"), cause)
}

/// A submit that is under way. When it ends, those syncs are told that waited for it.
struct Ticket {
    submits: Arc<Submits>,
    number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.submits.state.lock();
        state.under_way.remove(&self.number);
        let first = state.under_way.first().copied().unwrap_or(u64::MAX);
        let done: Vec<_> = state.syncs.extract_if(.., |(upto, _)| *upto < first).collect();
        drop(state);
        for (_, sync) in done {
            fulfil(sync, Ok(self.submits.next_seq()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Wake, Waker};

    use esker_store::Change;

    use super::*;
    use crate::link::SURE;
    use crate::native::Pool;

    fn object() -> ObjectId {
        ObjectId::new("c".into(), "o")
    }

    fn submits() -> Arc<Submits> {
        let link = Link::new(Pool::nowhere());
        Submits::new(link.clone(), Entries::new(link))
    }

    /// One whose operation is under way.
    fn job(submits: &Arc<Submits>, index: u64) -> (Job, Completion<CommitSeq>) {
        let (promise, completion) = promised("a test");
        let mut state = submits.state.lock();
        state.last_ticket += 1;
        let number = state.last_ticket;
        state.under_way.insert(number);
        let lane = state.lanes.entry(object()).or_default();
        lane.begun.insert(number);
        lane.operations = 1;
        let ticket = Ticket { submits: Arc::clone(submits), number };
        let guards = vec![Guard { object: object(), condition: Condition::SlotAbsent { index } }];
        let fold = Fold::of([Change::SlotSet { index, value: "v".into() }].iter()).expect("of one object");
        let (known, began) = (Known::Nothing, Instant::now());
        let (alone, doubtful) = (false, false);
        (Job { ticket, object: object(), guards, fold, known, alone, doubtful, began, promise }, completion)
    }

    // Failure: a write that was done was answered with a failed guard, and one that went with it was done twice.
    // Cause: the answer was lost with the connection, and the OSD had forgotten the operation when the library sent it
    // again. Fix: what is refused late is unknown.
    #[test]
    fn what_is_refused_late_is_unknown_and_is_not_tried_again() {
        for count in [1, 3] {
            let submits = submits();
            let (jobs, told): (Vec<_>, Vec<_>) = (0..count).map(|index| job(&submits, index)).unzip();
            let refused = Err(Failed { code: code::CANCELED, guard: None });
            submits.told(jobs, refused, SURE + Duration::from_millis(1));
            for told in told {
                let outcome = told.wait();
                assert!(matches!(outcome, Err(Error::Unknown { .. })), "{outcome:?}");
            }
            assert!(submits.state.lock().under_way.is_empty());
        }
        // It is missing, and a guard of it fails.
        let submits = submits();
        let (mut job, told) = job(&submits, 1);
        job.guards[0].condition = Condition::Exists;
        let missing = Err(Failed { code: code::NOT_THERE, guard: None });
        submits.told(vec![job], missing, SURE + Duration::from_millis(1));
        let outcome = told.wait();
        assert!(matches!(outcome, Err(Error::Unknown { .. })), "{outcome:?}");
    }

    #[test]
    fn what_was_found_where_a_submit_was_to_be_made_may_be_its_own_however_late() {
        let submits = submits();
        for (known, is_unknown) in
            [(Known::Refused, false), (Known::Found(Entry { shard: 0, token: 7, on_tomb: false }), true)]
        {
            let (mut job, told) = job(&submits, 1);
            (job.known, job.began) = (known, Instant::now() - change::PATIENCE);
            submits.run(job);
            let outcome = told.wait();
            assert_eq!(outcome.as_ref().is_err_and(Error::is_unknown), is_unknown, "{outcome:?}");
        }
    }

    #[test]
    fn a_waker_that_panics_keeps_no_other_from_being_told() {
        struct Panics(AtomicUsize);
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::SeqCst);
                panic!("a waker");
            }
        }
        let submits = submits();
        let panics = Arc::new(Panics(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&panics));
        let (jobs, mut told): (Vec<_>, Vec<_>) = (0..3).map(|index| job(&submits, index)).unzip();
        let mut synced = submits.sync();
        for told in told.iter_mut().chain([&mut synced]) {
            assert!(told.poll_arrived(&mut Context::from_waker(&waker)).is_pending());
        }
        submits.told(jobs, Ok(1), Duration::ZERO);
        for told in told.into_iter().chain([synced]) {
            told.wait().unwrap();
        }
        assert_eq!(panics.0.load(Ordering::SeqCst), 4);
    }
}

//! The transmission: requests of one connection, many at a time, answered as they are done.
//!
//! One thread at a time **leads**: it receives requests and carries out itself what takes no longer than handing it
//! over would: small writes, which only go to the log's memory, and reads while they are answered from memory. Before
//! anything slower (reads of the device, large payloads, waiting for a sync) it gives the lead away to another thread
//! of the connection and does that itself, so no request changes threads on its way:
//!
//! Replies are sent by one thread at a time, which takes along what the others have ready meanwhile (`sending`).
//!
//! Reads of the device gather for few threads (`reads`), each of which has the export bring all that it takes, many at
//! the same time.
//!
//! lead: receive → carry out → replies of the batch → receive …      │ gives the lead away, then:
//!                        └─ not durable yet → `waiting`              ├─ carries them out, sends the replies
//!                                                                    └─ settles: waits for the first barrier, sends
//!                                                                    all that reached theirs
//!                        └─ only begun by the store → `pending` → a thread tells it when it ends
//!
//! Invariants:
//! 1. No thread waits with a reply in hand: before the lead waits for the socket it sends its replies, and sees to it
//!    that a thread settles what is waiting.
//! 2. Requests under way, their payload, and threads are bounded by the configuration. Above the bounds nothing is
//!    received.
//! 3. A client that does not read its replies holds up threads of its own connection only.
//! 4. While requests may be received a client that does not read yet does not keep them from being received: it may
//!    send much before it reads (`sending`).

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_store::Barrier;
use esker_volume::Ranges;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::nbd::config::{Config, PAYLOAD_BYTES_MAX};
use crate::nbd::counts::RequestCounts;
use crate::nbd::export::{Done, Fault};
use crate::nbd::negotiate::Chosen;
use crate::nbd::pending::Pending;
use crate::nbd::reads::{Reads, Taken};
use crate::nbd::reply::Replies;
use crate::nbd::request::{Answer, carry_out, check};
use crate::nbd::sending::Sending;
use crate::nbd::stream::{Input, Output};
use crate::nbd::wire::{REQUEST_BYTES, Request, command};
use crate::trace::{self, Traced};

/// Requests with this much payload are carried out without the lead.
const LARGE_BYTES: u32 = 64 << 10;
/// Ranges of this length are zeroed and discarded without the lead.
const LONG_BYTES: u32 = 16 << 20;
/// Replies of a batch are sent when they come to this.
const BATCH_BYTES: usize = 128 << 10;
/// Small reads that take longer than this on average are carried out without the lead: giving it away costs less.
const SLOW_READ: Duration = Duration::from_micros(25);
/// And small writes: of a store on this machine they are in memory, of one behind a network they are waited for.
const SLOW_WRITE: Duration = Duration::from_micros(150);

/// The thread that leads leaves it to those that read to receive, for so long: what else comes waits as long at most.
const LEFT_RECEIVING: Duration = Duration::from_micros(200);
/// So many reads are given to the export in one call.
const GIVEN_MAX: u64 = 1_024;
/// Who waits for fewer pending answers looks again after this.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The transmission of one connection.
pub(crate) struct Transmission<'t> {
    config: &'t Config,
    counts: &'t RequestCounts,
    chosen: Chosen,
    output: &'t Output,
    input: Mutex<Input>,
    waiting: Mutex<Waiting>,
    sending: Sending<'t>,
    /// Payload bytes of what was begun without the lead and is not answered yet.
    payload_bytes: Mutex<usize>,
    /// Answers of what the store has only begun.
    pending: Pending<(Begun, Answer)>,
    /// Whether there is a thread that tells them.
    tells_pending: AtomicBool,
    /// Payload or waiting replies became fewer.
    room: Condvar,
    threads: AtomicUsize,
    reads: Reads,
    /// Reads that have gathered, or are carried out without the lead.
    reads_begun: AtomicUsize,
    /// The thread that leads has given `input` away for a moment; others do not take the lead then.
    leaves_receiving: AtomicBool,
    /// A thread has read, and there is something to receive.
    read_some: Condvar,
    /// The lead was given away.
    led: Condvar,
    /// Threads that wait for the lead.
    idle: AtomicUsize,
    closing: AtomicBool,
    /// Smoothed time of a small read.
    read_ns: AtomicU64,
    /// And of a small write.
    write_ns: AtomicU64,
}

/// A request that is carried out, or waits to be answered.
struct Begun {
    request: Request,
    /// Bytes of memory that were reserved for it, as long as it is answered with them.
    held: usize,
    began: Instant,
    traced: Option<Traced>,
}

/// Answers that wait for their barriers, in the order of their requests.
#[derive(Default)]
struct Waiting {
    answers: VecDeque<(Barrier, Begun, Answer)>,
    /// Whether a thread is settling.
    settling: bool,
    /// How many came since a sync was last asked for.
    unasked: u64,
}

/// What a thread does when it has given the lead away.
enum Next {
    CarryOut(Request, Bytes),
    Read(Taken),
    Settle,
    Send,
    End,
}

/// A smoothed time, in nanoseconds, after one more.
fn smoothed(old_ns: u64, took: Duration) -> u64 {
    old_ns - old_ns / 8 + took.as_nanos() as u64 / 8
}

fn is_slow(smoothed_ns: &AtomicU64, limit: Duration) -> bool {
    smoothed_ns.load(Ordering::Relaxed) > limit.as_nanos() as u64
}

impl<'t> Transmission<'t> {
    pub(crate) fn new(
        (config, counts): (&'t Config, &'t RequestCounts),
        chosen: Chosen,
        input: Input,
        output: &'t Output,
    ) -> Self {
        Self {
            config,
            counts,
            chosen,
            output,
            input: Mutex::new(input),
            waiting: Mutex::default(),
            sending: Sending::new(output),
            payload_bytes: Mutex::new(0),
            pending: Pending::new(),
            tells_pending: AtomicBool::new(false),
            room: Condvar::new(),
            threads: AtomicUsize::new(1),
            reads: Reads::new(config.threads_per_connection),
            reads_begun: AtomicUsize::new(0),
            leaves_receiving: AtomicBool::new(false),
            read_some: Condvar::new(),
            led: Condvar::new(),
            idle: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            read_ns: AtomicU64::new(0),
            write_ns: AtomicU64::new(0),
        }
    }

    /// Answers requests until the client leaves, or the input ends. Everything that was begun is answered then.
    pub(crate) fn run(&self) {
        std::thread::scope(|scope| self.work(scope));
    }

    fn work<'s>(&'s self, scope: &'s Scope<'s, '_>) {
        let _end = EndOnPanic(self);
        let mut replies = Replies::default();
        loop {
            self.idle.fetch_add(1, Ordering::SeqCst);
            let mut input = self.input.lock();
            while self.leaves_receiving.load(Ordering::SeqCst) && !self.closing.load(Ordering::SeqCst) {
                // One that panics may not tell.
                self.led.wait_for(&mut input, LOOK_AGAIN);
            }
            self.idle.fetch_sub(1, Ordering::SeqCst);
            let next = self.lead(&mut input, &mut replies, scope).unwrap_or_else(|error| {
                self.fail(&error);
                Next::End
            });
            if matches!(next, Next::End) {
                // Before the lead is given away: its next thread must not wait for a client that has said its last.
                self.closing.store(true, Ordering::SeqCst);
            }
            drop(input);
            self.led.notify_one();
            self.send(&mut replies);
            match next {
                Next::CarryOut(request, payload) => {
                    let held = payload_held(&request);
                    self.answer((&request, held), payload, &mut replies, scope);
                    self.send(&mut replies);
                    if self.may_settle() {
                        self.settle(&mut replies);
                    }
                }
                Next::Read(taken) => self.read(taken, &mut replies, scope),
                Next::Settle => self.settle(&mut replies),
                Next::Send => {
                    self.sending.finish(&mut replies, &|held, outcome| self.has_sent(held, outcome));
                }
                Next::End => {
                    if self.threads.fetch_sub(1, Ordering::SeqCst) == 1 {
                        // The last: nothing more is begun.
                        self.pending.close();
                    }
                    self.room.notify_all();
                    if self.may_settle() {
                        self.settle(&mut replies);
                    }
                    return;
                }
            }
        }
    }

    /// Leads until there is something to do without the lead. `replies` may hold some then.
    fn lead<'s>(
        &'s self,
        input: &mut MutexGuard<'_, Input>,
        replies: &mut Replies,
        scope: &'s Scope<'s, '_>,
    ) -> io::Result<Next> {
        loop {
            if self.closing.load(Ordering::SeqCst) {
                return Ok(Next::End);
            }
            let request = match input.buffered().first_chunk::<REQUEST_BYTES>() {
                Some(header) => Some(Request::decode(header).map_err(io::Error::other)?),
                None => None,
            };
            let whole = request.as_ref().is_some_and(|request| {
                let payload = if request.command == command::WRITE { request.len as usize } else { 0 };
                input.buffered().len() - REQUEST_BYTES >= payload
            });
            // The rest may be long in coming.
            if (!whole || replies.len() > BATCH_BYTES) && !self.send_leading(replies) {
                self.ensure_follower(scope);
                return Ok(Next::Send);
            }
            if !whole && self.may_settle() {
                self.ensure_follower(scope);
                return Ok(Next::Settle);
            }
            if !whole && let Some(taken) = self.reads.gather([]) {
                // What another thread has left: it may wait for its reads for long.
                self.ensure_follower(scope);
                return Ok(Next::Read(taken));
            }
            let Some(request) = request else {
                if !input.fill(REQUEST_BYTES)? {
                    return Ok(Next::End);
                }
                continue;
            };
            input.header::<REQUEST_BYTES>();
            if request.command == command::DISC {
                return Ok(Next::End);
            }
            if let Err(fault) = check(&request, &self.chosen) {
                if request.command == command::WRITE && !input.skip(request.len.into())? {
                    return Ok(Next::End);
                }
                self.counts.refused(&request);
                if let Some(traced) = if trace::is_on() { trace::request(&request) } else { None } {
                    traced.failed(trace::errno(fault.code()));
                }
                replies.failed(request.cookie, self.chosen.structured, &fault);
                continue;
            }
            self.reads.note();
            let alone = self.goes_alone(&request);
            if alone && request.command == command::READ {
                self.keep_reads_bounded(replies);
                self.reserve(payload_held(&request), replies);
                if request.len < LARGE_BYTES && self.reads.is_lone() && input.buffered().is_empty() {
                    self.answer((&request, payload_held(&request)), Bytes::new(), replies, scope);
                    if self.reads.looks() && input.has_more() {
                        self.reads.came_together();
                    }
                    continue;
                }
                self.reads_begun.fetch_add(1, Ordering::SeqCst);
                let more: Vec<_> = std::iter::from_fn(|| self.next_read(input)).collect();
                if let Some(taken) = self.reads.gather(std::iter::once(request).chain(more)) {
                    self.ensure_follower(scope);
                    return Ok(Next::Read(taken));
                }
                if input.buffered().is_empty() && !input.is_encrypted() && !self.has_to_settle() {
                    if !self.send_leading(replies) {
                        self.ensure_follower(scope);
                        return Ok(Next::Send);
                    }
                    self.leave_receiving(input);
                }
                continue;
            }
            if alone && payload_held(&request) > 0 {
                self.reserve(payload_held(&request), replies);
            }
            let mut payload = Bytes::new();
            if request.command == command::WRITE {
                match input.payload(request.len as usize)? {
                    Some(bytes) => payload = bytes,
                    None => return Ok(Next::End),
                }
            }
            if alone {
                self.ensure_follower(scope);
                return Ok(Next::CarryOut(request, payload));
            }
            self.answer((&request, 0), payload, replies, scope);
            self.keep_waiting_bounded(replies);
        }
    }

    /// Leaves it for a moment to the threads that read to receive: each does when it is done, and takes what has come
    /// meanwhile. Receiving each read as it comes would wake a thread for each.
    fn leave_receiving(&self, input: &mut MutexGuard<'_, Input>) {
        self.leaves_receiving.store(true, Ordering::SeqCst);
        self.read_some.wait_for(input, LEFT_RECEIVING);
        self.leaves_receiving.store(false, Ordering::SeqCst);
    }

    /// Receives what has come and takes the reads of it, if no thread is at that. A thread that leads comes to others.
    fn receive_reads(&self) -> Vec<Request> {
        if !self.leaves_receiving.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let Some(mut input) = self.input.try_lock() else { return Vec::new() };
        if input.buffered().is_empty() {
            input.fill_now();
        }
        let reads = std::iter::from_fn(|| self.next_read(&mut input)).collect();
        if !input.buffered().is_empty() {
            self.read_some.notify_one();
        }
        reads
    }

    /// The next request, if it has come, is a read, and need not wait for memory.
    fn next_read(&self, input: &mut Input) -> Option<Request> {
        let request = Request::decode(input.buffered().first_chunk::<REQUEST_BYTES>()?).ok()?;
        if request.command != command::READ || check(&request, &self.chosen).is_err() {
            return None;
        }
        let mut under_way = self.payload_bytes.lock();
        let all = *under_way + payload_held(&request);
        let are_many = self.reads_begun.load(Ordering::SeqCst) >= self.config.in_flight_max;
        if are_many || all > self.config.in_flight_bytes_max {
            return None;
        }
        *under_way = all;
        self.reads_begun.fetch_add(1, Ordering::SeqCst);
        drop(under_way);
        input.header::<REQUEST_BYTES>();
        self.reads.note();
        Some(request)
    }

    /// Carries out reads, and those that gather meanwhile.
    fn read<'s>(&'s self, mut taken: Taken, replies: &mut Replies, scope: &'s Scope<'s, '_>) {
        loop {
            let mut reads: VecDeque<Request> = taken.reads.iter().copied().collect();
            let mut is_first = true;
            if !self.reads.is_apart() {
                let mut bringing = Bringing::new(self, replies, scope, &taken, reads);
                if !self.chosen.export.bring(&mut bringing) {
                    self.reads.brought_none();
                }
                // What it was not told of, if anything: all, where that is not done.
                (reads, is_first) = (bringing.left(), bringing.first.is_some());
            } else {
                self.reads.spend(reads.len());
            }
            for request in &reads {
                self.answer((request, payload_held(request)), Bytes::new(), replies, scope);
            }
            self.reads_begun.fetch_sub(reads.len(), Ordering::SeqCst);
            if is_first {
                self.reads.answered(&taken);
            }
            self.send(replies);
            if self.may_settle() {
                self.settle(replies);
            }
            match self.reads.more(self.receive_reads()) {
                Some(more) => taken = more,
                None => break,
            }
        }
        // It has to receive again.
        if self.leaves_receiving.load(Ordering::SeqCst) {
            self.read_some.notify_one();
        }
    }

    /// Whether answers wait to be durable and no thread settles them.
    fn has_to_settle(&self) -> bool {
        let waiting = self.waiting.lock();
        !waiting.settling && !waiting.answers.is_empty()
    }

    /// Waits, with the lead, until fewer reads are under way than may be.
    fn keep_reads_bounded(&self, replies: &mut Replies) {
        let are_many = || self.reads_begun.load(Ordering::SeqCst) >= self.config.in_flight_max;
        if are_many() {
            self.send(replies);
            let mut waiting = self.waiting.lock();
            while are_many() && !self.closing.load(Ordering::SeqCst) {
                // Not told with this lock: it is looked at again all the same.
                self.room.wait_for(&mut waiting, LOOK_AGAIN);
            }
        }
    }

    /// Whether a request is better carried out without the lead.
    fn goes_alone(&self, request: &Request) -> bool {
        match request.command {
            command::READ => request.len >= LARGE_BYTES || is_slow(&self.read_ns, SLOW_READ),
            command::WRITE => request.len >= LARGE_BYTES || is_slow(&self.write_ns, SLOW_WRITE),
            command::TRIM | command::WRITE_ZEROES => request.len >= LONG_BYTES,
            command::CACHE | command::BLOCK_STATUS => true,
            _ => false,
        }
    }

    /// Sees to it that a thread takes the lead when it is given away: one that waits for it, a new one, or the next
    /// that has done its part.
    fn ensure_follower<'s>(&'s self, scope: &'s Scope<'s, '_>) {
        let threads = self.threads.load(Ordering::SeqCst);
        if self.idle.load(Ordering::SeqCst) > 0 || threads >= self.config.threads_per_connection {
            return;
        }
        // Before it may end.
        self.threads.fetch_add(1, Ordering::SeqCst);
        match Builder::new().name("esker-nbd".into()).spawn_scoped(scope, move || self.work(scope)) {
            Ok(_) => {}
            Err(error) => {
                self.threads.fetch_sub(1, Ordering::SeqCst);
                tracing::warn!(%error, "cannot start a thread; the connection goes on with those that it has")
            }
        }
    }

    /// Carries out a request, for which `held` bytes were reserved; its answer goes to `replies`, or waits for its
    /// barrier. What was read stays reserved until its reply is sent.
    fn answer<'s>(
        &'s self,
        (request, held): (&Request, usize),
        payload: Bytes,
        replies: &mut Replies,
        scope: &'s Scope<'s, '_>,
    ) {
        let traced = if trace::is_on() { trace::request(request) } else { None };
        let mut begun = Begun { request: *request, held, began: Instant::now(), traced };
        let outcome = carry_out(request, payload, &self.chosen);
        let is_pending = matches!(&outcome, Ok((_, waits)) if waits.later.is_some());
        if request.command == command::WRITE && !is_pending {
            // What was written is the store's by now.
            replies.held += std::mem::take(&mut begun.held);
        }
        let usual = match request.command {
            command::READ => Some(&self.read_ns),
            command::WRITE => Some(&self.write_ns),
            _ => None,
        };
        if let Some(usual) = usual.filter(|_| request.len < LARGE_BYTES) {
            usual.store(smoothed(usual.load(Ordering::Relaxed), begun.began.elapsed()), Ordering::Relaxed);
        }
        match outcome {
            Ok((answer, Done { later: Some(later), .. })) => {
                self.pending.put(later, (begun, answer));
                self.ensure_teller(scope);
            }
            Ok((answer, Done { barrier, .. })) => self.tell_behind(barrier, begun, answer, replies),
            Err(fault) => self.tell(begun, Err(fault), replies),
        }
    }

    /// Writes a reply, or has it wait for its barrier.
    fn tell_behind(&self, barrier: Option<Barrier>, begun: Begun, answer: Answer, replies: &mut Replies) {
        let Some(barrier) = barrier else { return self.tell(begun, Ok(answer), replies) };
        match barrier.state() {
            Some(reached) => self.tell(begun, reached.map(|()| answer).map_err(Fault::from), replies),
            None => {
                let mut waiting = self.waiting.lock();
                waiting.answers.push_back((barrier, begun, answer));
                waiting.unasked += 1;
            }
        }
    }

    /// A thread tells the answers that the store has only begun, as they come.
    fn ensure_teller<'s>(&'s self, scope: &'s Scope<'s, '_>) {
        if self.tells_pending.swap(true, Ordering::SeqCst) {
            return;
        }
        let started = Builder::new().name("esker-nbd".into()).spawn_scoped(scope, move || {
            let _end = EndOnPanic(self);
            self.tell_pending(&mut Replies::default(), true);
        });
        if let Err(error) = started {
            self.tells_pending.store(false, Ordering::SeqCst);
            tracing::warn!(%error, "cannot start a thread; this one waits for what the store has begun");
            let mut replies = Replies::default();
            while self.pending.len() > 0 {
                self.tell_pending(&mut replies, false);
                std::thread::yield_now();
            }
        }
    }

    /// Tells answers as they arrive: until the connection has ended and none is left, or no more than have arrived.
    fn tell_pending(&self, replies: &mut Replies, waits: bool) {
        let mut next = self.pending.next(waits);
        while let Some((result, barrier, (mut begun, answer))) = next {
            replies.held += std::mem::take(&mut begun.held);
            match result {
                Ok(()) => self.tell_behind(barrier, begun, answer, replies),
                Err(error) => self.tell(begun, Err(error.into()), replies),
            }
            next = self.pending.next(false);
            if next.is_none() || replies.len() > BATCH_BYTES {
                self.room.notify_all();
                self.send(replies);
                if self.may_settle() {
                    self.settle(replies);
                }
            }
            if next.is_none() && waits {
                next = self.pending.next(true);
            }
        }
        self.room.notify_all();
    }

    /// Writes a reply, which ends the span of the request.
    fn tell(&self, begun: Begun, outcome: Result<Answer, Fault>, replies: &mut Replies) {
        let Begun { request, held, began, traced } = begun;
        replies.held += held;
        let request = &request;
        self.counts.note(request, began.elapsed(), outcome.is_err());
        if let (Some(traced), Err(fault)) = (&traced, &outcome) {
            traced.failed(trace::errno(fault.code()));
        }
        let structured = self.chosen.structured;
        match outcome {
            Ok(Answer::Done) => replies.done(request.cookie),
            Ok(Answer::Read(pieces)) => replies.read(request, structured, pieces),
            Ok(Answer::Extents(extents)) => replies.extents(request, &extents),
            Err(fault) if self.config.cut_when_gone && matches!(fault, Fault::Gone(_)) => {
                // The client sends what it was not answered again, to the server that goes on.
                self.fail(&io::Error::other(fault));
            }
            Err(fault) => {
                if matches!(fault, Fault::Io(_) | Fault::Gone(_)) {
                    tracing::error!(export = self.chosen.name, %fault, ?request, "a request failed");
                }
                replies.failed(request.cookie, structured, &fault);
            }
        }
    }

    /// Sends replies, or leaves them to the thread that is sending.
    fn send(&self, replies: &mut Replies) {
        if replies.is_empty() {
            // What was written is the store's by now, what was read waits with its answer.
            return self.release(std::mem::take(&mut replies.held));
        }
        self.sending.send(replies, &self.closing, &|held, outcome| self.has_sent(held, outcome));
    }

    /// The same with the lead, as far as nothing has to be waited for. Whether that is done: if not, the caller returns
    /// [`Next::Send`].
    fn send_leading(&self, replies: &mut Replies) -> bool {
        if replies.is_empty() {
            self.release(std::mem::take(&mut replies.held));
        }
        self.sending.send_now(replies, &|held, outcome| self.has_sent(held, outcome))
    }

    fn has_sent(&self, held: usize, outcome: io::Result<()>) {
        if let Err(error) = outcome {
            self.fail(&error);
        }
        self.release(held);
    }

    /// So much less payload is under way.
    fn release(&self, bytes: usize) {
        if bytes > 0 {
            *self.payload_bytes.lock() -= bytes;
            self.room.notify_all();
        }
    }

    /// The connection is lost: nothing more can be received or sent.
    fn fail(&self, error: &io::Error) {
        if !self.closing.swap(true, Ordering::SeqCst) {
            tracing::debug!(export = self.chosen.name, %error, "connection lost");
        }
        self.output.socket.shutdown(Shutdown::Both);
        // A thread that looked before waits by now.
        drop(self.payload_bytes.lock());
        drop(self.waiting.lock());
        self.room.notify_all();
        self.sending.wake();
    }

    /// Whether answers wait and no thread settles them; the caller does then, having asked for the sync.
    fn may_settle(&self) -> bool {
        let mut waiting = self.waiting.lock();
        let unasked = std::mem::take(&mut waiting.unasked);
        let settles = !waiting.settling && !waiting.answers.is_empty();
        if let Some((last, ..)) = waiting.answers.back() {
            if settles {
                // The caller waits for one of them, which counts by itself and asks for the sync.
                last.count(unasked.saturating_sub(1));
            } else {
                last.want_for(unasked);
            }
        }
        waiting.settling |= settles;
        settles
    }

    /// Sends answers as they become durable, until none waits.
    fn settle(&self, replies: &mut Replies) {
        loop {
            let first = {
                let mut waiting = self.waiting.lock();
                match waiting.answers.front() {
                    Some((barrier, ..)) => barrier.clone(),
                    None => {
                        waiting.settling = false;
                        return;
                    }
                }
            };
            // Its state tells the same again, for it and for all that the sync covered.
            let _ = first.wait();
            loop {
                let mut waiting = self.waiting.lock();
                let Some((reached, begun, answer)) = ({
                    let reached = waiting.answers.front().and_then(|(barrier, ..)| barrier.state());
                    reached.and_then(|reached| {
                        waiting.answers.pop_front().map(|(_, begun, answer)| (reached, begun, answer))
                    })
                }) else {
                    break;
                };
                drop(waiting);
                self.tell(begun, reached.map(|()| answer).map_err(Fault::from), replies);
                if replies.len() > BATCH_BYTES {
                    self.send(replies);
                }
            }
            self.room.notify_all();
            self.send(replies);
        }
    }

    /// Waits, with the lead, until fewer answers wait than may.
    fn keep_waiting_bounded(&self, replies: &mut Replies) {
        if self.pending.len() >= self.config.in_flight_max {
            self.send(replies);
            let mut waiting = self.waiting.lock();
            while self.pending.len() >= self.config.in_flight_max && !self.closing.load(Ordering::SeqCst) {
                // Not told with this lock: it is looked at again all the same.
                self.room.wait_for(&mut waiting, LOOK_AGAIN);
            }
        }
        if self.waiting.lock().answers.len() < self.config.in_flight_max {
            return;
        }
        self.send(replies);
        if self.may_settle() {
            return self.settle(replies);
        }
        let mut waiting = self.waiting.lock();
        while waiting.answers.len() >= self.config.in_flight_max && !self.closing.load(Ordering::SeqCst) {
            self.room.wait(&mut waiting);
        }
    }

    /// Waits, with the lead, until so much more payload may be under way.
    fn reserve(&self, bytes: usize, replies: &mut Replies) {
        let fits = |under_way: usize| under_way == 0 || under_way + bytes <= self.config.in_flight_bytes_max;
        let mut under_way = self.payload_bytes.lock();
        if !fits(*under_way) {
            drop(under_way);
            self.send(replies);
            if self.may_settle() {
                self.settle(replies);
            }
            under_way = self.payload_bytes.lock();
            while !fits(*under_way) && !self.closing.load(Ordering::SeqCst) {
                self.room.wait(&mut under_way);
            }
        }
        *under_way += bytes;
    }
}

/// Reads of one thread while the export brings them: each is answered as it comes, and what the client sends meanwhile
/// is taken too. It ends after [`GIVEN_MAX`] reads, so that it sees what has changed of the disk, and when answers are
/// to be settled.
struct Bringing<'a, 't, 's, 'e> {
    connection: &'s Transmission<'t>,
    replies: &'a mut Replies,
    scope: &'s Scope<'s, 'e>,
    /// What the thread took, until it has answered one.
    first: Option<&'a Taken>,
    /// Not given to the export yet.
    reads: VecDeque<Request>,
    /// Given, with when; none where it was answered.
    given: VecDeque<Option<(Request, Instant)>>,
    /// So many were given before these.
    before: u64,
}

impl<'a, 't, 's, 'e> Bringing<'a, 't, 's, 'e> {
    fn new(
        connection: &'s Transmission<'t>,
        replies: &'a mut Replies,
        scope: &'s Scope<'s, 'e>,
        first: &'a Taken,
        reads: VecDeque<Request>,
    ) -> Self {
        Self { connection, replies, scope, first: Some(first), reads, given: VecDeque::new(), before: 0 }
    }

    /// What was not answered.
    fn left(&mut self) -> VecDeque<Request> {
        let given = self.given.drain(..).flatten().map(|(request, _)| request);
        given.chain(self.reads.drain(..)).collect()
    }
}

impl Ranges for Bringing<'_, '_, '_, '_> {
    fn next(&mut self) -> Option<(u64, u64)> {
        let given = self.before + self.given.len() as u64;
        if self.reads.is_empty() && given > 0 {
            let ends = given >= GIVEN_MAX || self.connection.has_to_settle() || self.connection.reads.is_apart();
            if ends {
                return None;
            }
            // Answered, the client sends more.
            self.connection.send(self.replies);
            self.reads.extend(self.connection.reads.more_yet(self.connection.receive_reads()));
        }
        let request = self.reads.pop_front()?;
        self.given.push_back(Some((request, Instant::now())));
        Some((request.offset, request.len.into()))
    }

    fn waits(&mut self) {
        self.connection.send(self.replies);
    }

    fn came(&mut self, number: u64) {
        let at = number.checked_sub(self.before).and_then(|at| usize::try_from(at).ok());
        let given = at.and_then(|at| self.given.get_mut(at)).and_then(Option::take);
        let Some((request, since)) = given else { return };
        while self.given.front().is_some_and(Option::is_none) {
            self.given.pop_front();
            self.before += 1;
        }
        let (usual, began) = (self.connection.read_ns.load(Ordering::Relaxed), Instant::now());
        self.connection.answer((&request, payload_held(&request)), Bytes::new(), self.replies, self.scope);
        self.connection.reads_begun.fetch_sub(1, Ordering::SeqCst);
        self.connection.reads.took(request.len, began.elapsed());
        if request.len < LARGE_BYTES {
            // What was brought takes no time; alone it would have waited for so long.
            self.connection.read_ns.store(smoothed(usual, since.elapsed()), Ordering::Relaxed);
        }
        if let Some(first) = self.first.take() {
            self.connection.reads.answered(first);
        }
        if self.replies.len() > BATCH_BYTES {
            self.connection.send(self.replies);
        }
    }
}

/// Bytes of memory that are held for a request which is carried out without the lead, until its answer is sent.
fn payload_held(request: &Request) -> usize {
    let carries = matches!(request.command, command::READ | command::WRITE) && request.len <= PAYLOAD_BYTES_MAX;
    if carries { request.len as usize } else { 0 }
}

/// A thread that panics ends its connection; that is a defect, and the others must not wait for it.
struct EndOnPanic<'t, 's>(&'s Transmission<'t>);

impl Drop for EndOnPanic<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(&io::Error::other("a thread of the connection panicked"));
            // The one that tells waits for no more.
            self.0.pending.close();
        }
    }
}

//! One connection: bytes in, commands run, replies out, both sides bounded.
//!
//! read → parse in place → execute → output → (barrier) → write
//!
//! Invariants:
//! 1. Commands are looked for in the bytes as they were read; only the rest of a half command is copied.
//! 2. While more than `output_bytes_soft` wait to be sent, nothing is read: a client that does not read is not read
//!    from.
//! 3. A connection that ends is closed only once its replies are sent, if it still takes them.

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;

use esker_kv::Barrier;

use crate::front::audit;
use crate::resp::ahead::Ahead;
use crate::resp::awaited::{Answered, Awaited};
use crate::resp::away::{self, Away};
use crate::resp::commands::Executor;
use crate::resp::commands::connection::TOO_MANY_CLIENTS;
use crate::resp::foreseen::Foresight;
use crate::resp::gets;
use crate::resp::joint::{self, Ended, Join, Joint};
use crate::resp::output::{Batch, Output};
use crate::resp::parse::{Limits, Parser, Step};
use crate::resp::reply::ReplyWriter;
use crate::resp::session::Session;
use crate::resp::shared::Shared;
use crate::resp::transport::{Arrived, Transport};

/// Reads of one connection before others have their turn.
const READS_PER_TURN: usize = 8;
/// How often commands that waited for output to drain are gone on with before others have their turn.
const DRAINS_PER_TURN: usize = 8;
/// How often a command that waits is run before others have their turn.
const TRIES_PER_TURN: usize = 8;
/// Memory that the input of a quiet connection keeps.
const KEEP_BYTES: usize = 16 << 10;

/// What becomes of a connection after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It waits for the poll, or for a barrier.
    Wait,
    /// It has more to do at once.
    Again,
    /// It is over.
    Close,
}

/// What becomes of a reply that waits for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Late {
    /// There is none, or none any more.
    Nothing,
    /// It waits, and the loop is woken when it may be written.
    Reply,
    /// It may be written, and others have their turn first.
    Turn,
}

/// A connected client.
pub(crate) struct Connection {
    transport: Transport,
    /// Gives it a turn.
    task: Waker,
    pub(crate) session: Session,
    parser: Parser,
    /// The rest of a half command, or commands that wait until output drains.
    input: Vec<u8>,
    pub(crate) output: Output,
    /// `input` may hold whole commands.
    stalled: bool,
    /// Commands that begin within so many bytes of what comes next could not go as one transaction, and are run alone.
    alone_bytes: usize,
    /// How far into it the store has been told.
    ahead: Ahead,
    foresight: Foresight,
    /// The stream may have more bytes.
    readable: bool,
    /// The other side closed, as far as the poll knows: read until it shows.
    hung_up: bool,
    ended: bool,
    pub(crate) active: Instant,
    /// In the event loop's list of those that wait for a barrier.
    pub(crate) waiting: bool,
    /// In its list of those that are told every command.
    pub(crate) monitoring: bool,
}

impl Connection {
    /// `task` is woken once what the session waits for is here.
    pub(crate) fn new(transport: Transport, session: Session, task: Waker, now: Instant) -> Self {
        Self {
            transport,
            task,
            session,
            parser: Parser::new(),
            input: Vec::new(),
            output: Output::default(),
            stalled: false,
            alone_bytes: 0,
            ahead: Ahead::default(),
            foresight: Foresight::default(),
            readable: true,
            hung_up: false,
            ended: false,
            active: now,
            waiting: false,
            monitoring: false,
        }
    }

    pub(crate) fn transport(&mut self) -> &mut Transport {
        &mut self.transport
    }

    /// The poll says that there is something to read.
    pub(crate) fn note_readable(&mut self, hung_up: bool) {
        self.readable = true;
        self.hung_up |= hung_up;
    }

    /// Reads, runs and replies, as far as that goes without waiting.
    pub(crate) fn turn(&mut self, executor: &mut Executor<'_>, space: &mut [u8], now: Instant) -> Fate {
        match self.try_turn(executor, space, now) {
            Ok(fate) => fate,
            Err(error) => {
                tracing::debug!(client = %self.session.client.address, %error, "connection lost");
                Fate::Close
            }
        }
    }

    fn try_turn(&mut self, executor: &mut Executor<'_>, space: &mut [u8], now: Instant) -> io::Result<Fate> {
        if !self.take_lines(executor.shared) {
            tracing::warn!(client = %self.session.client.address, "disconnecting a monitor that cannot keep up");
            return Ok(Fate::Close);
        }
        let mut again = true;
        for _ in 0..DRAINS_PER_TURN {
            again = self.pump(executor, space, now)?;
            self.flush(executor)?;
            if again || !self.may_go_on(executor.shared) {
                break;
            }
            // More can be done: now, or if this was the last time, in its next turn.
            again = true;
        }
        if self.output.len() > executor.shared.config.output_bytes_max {
            tracing::warn!(client = %self.session.client.address, "disconnecting a client that does not read its replies");
            return Ok(Fate::Close);
        }
        let over = self.session.awaited.is_none() && (self.session.closing || self.ended && !self.stalled);
        if over && self.output.is_empty() && self.transport.flush()? {
            return Ok(Fate::Close);
        }
        Ok(if again && !over { Fate::Again } else { Fate::Wait })
    }

    /// Takes over what there is to tell a monitor; false if it missed some, because more would have waited than may.
    fn take_lines(&mut self, shared: &Shared) -> bool {
        if self.session.closing {
            self.session.monitor = None;
        }
        let Some(monitor) = &self.session.monitor else { return true };
        let from = self.output.bytes.len();
        let whole = monitor.take_into(&mut self.output.bytes);
        // Its user may have changed since the last look: a line that was told after that was taken after it, too.
        if !self.session.renew(shared) {
            self.output.bytes.truncate(from);
            self.session.monitor = None;
            return true;
        }
        if self.output.bytes.len() > from {
            let mut batch = Batch::default();
            batch.add(from, None);
            self.output.end_batch(batch);
        }
        whole
    }

    /// Whether output has drained so far that commands which waited for it can run.
    fn may_go_on(&self, shared: &Shared) -> bool {
        (self.stalled || self.readable)
            && !self.session.closing
            && self.session.awaited.is_none()
            && self.output.len() <= shared.config.output_bytes_soft
    }

    /// Reads and runs commands; whether there may be more at once.
    fn pump(&mut self, executor: &mut Executor<'_>, space: &mut [u8], now: Instant) -> io::Result<bool> {
        let soft = executor.shared.config.output_bytes_soft;
        match self.reply_if_here(executor) {
            Late::Nothing => {}
            Late::Reply => return Ok(false),
            Late::Turn => return Ok(true),
        }
        if self.stalled && !self.session.closing {
            let input = std::mem::take(&mut self.input);
            let used = self.run(&input, executor);
            self.keep(input, used);
        }
        for _ in 0..READS_PER_TURN {
            if self.session.awaited.is_some() {
                break;
            }
            if self.stalled || self.session.closing || !self.readable || self.output.len() > soft {
                return Ok(false);
            }
            match self.transport.read(space)? {
                Arrived::Nothing => {
                    self.readable = false;
                    return Ok(false);
                }
                Arrived::End => {
                    self.readable = false;
                    self.ended = true;
                    return Ok(false);
                }
                Arrived::Bytes(len, more) => {
                    self.active = now;
                    self.readable = more || self.hung_up;
                    executor.tally.input_bytes += len as u64;
                    self.take(&space[..len], executor);
                }
            }
        }
        // No waker would wake the loop for a reply that was not asked for since its command was run.
        Ok(match self.reply_if_here(executor) {
            Late::Nothing => self.stalled || self.readable,
            Late::Reply => false,
            Late::Turn => true,
        })
    }

    /// Writes the reply that was waited for, if it is here.
    fn reply_if_here(&mut self, executor: &mut Executor<'_>) -> Late {
        for _ in 0..TRIES_PER_TURN {
            let Some(mut awaited) = self.session.awaited.take() else { return Late::Nothing };
            if awaited.poll(&mut Context::from_waker(&self.task)).is_pending() {
                self.session.awaited = Some(awaited);
                return Late::Reply;
            }
            // It may wait for something else then: that has to be asked for too, so that the loop is woken.
            self.reply(awaited, executor);
        }
        if self.session.awaited.is_some() { Late::Turn } else { Late::Nothing }
    }

    /// Writes the reply that has come, or runs the command that waited for it.
    fn reply(&mut self, awaited: Awaited, executor: &mut Executor<'_>) {
        // What it waited for was not its client's time.
        self.active = Instant::now();
        let from = self.output.bytes.len();
        let errors = executor.tally.errors;
        let mut reply = ReplyWriter::new(&mut self.output.bytes, self.session.resp3);
        let barrier = match awaited.reply(&mut reply, &mut executor.tally, executor.shared.config.output_bytes_max) {
            Answered::Reply(barrier) => {
                executor.observer.arrived(&mut self.session, executor.tally.errors > errors);
                barrier
            }
            Answered::WrongPassword => {
                let (client, user) = (&self.session.client, self.session.logging_in.take().unwrap_or_default());
                audit::login_failed(&client.address, &user);
                executor.shared.denials.note("auth", false, "AUTH", &user, client.line("auth"));
                executor.observer.failed_late(&mut self.session);
                None
            }
            Answered::Back(away) => match self.come_back(away, executor) {
                Some(barrier) => barrier,
                None => return,
            },
            Answered::Again(queued) => {
                if !self.session.renew(executor.shared) {
                    return;
                }
                self.session.again = Some(Arc::clone(&queued));
                let barrier = executor.execute(&mut self.session, queued.args(), &mut self.output.bytes);
                self.session.again = None;
                self.leave_if_asked(executor);
                if self.session.awaited.is_some() {
                    return;
                }
                barrier
            }
        };
        if let Some(traced) = self.session.traced.take() {
            self.output.trace(traced, from, barrier.as_ref());
        }
        let mut batch = Batch::default();
        batch.add(from, barrier);
        self.output.end_batch(batch);
        // What it kept to be run it keeps no more.
        self.session.publish();
    }

    /// Sends the session away, if the command that it was to run has to wait for the store.
    fn leave_if_asked(&mut self, executor: &Executor<'_>) {
        let Some(queued) = self.session.leaves.take() else { return };
        let stand_in = self.session.stand_in();
        let session = std::mem::replace(&mut self.session, stand_in);
        self.session.awaited = Some(Awaited::Away(away::send(executor.shared, session, queued)));
    }

    /// Puts the session in its place again, and its reply behind those before it. `None`: it waits for something else,
    /// or is lost.
    fn come_back(&mut self, away: Option<Box<dyn Any>>, executor: &mut Executor<'_>) -> Option<Option<Barrier>> {
        let away = away.and_then(|away| away.downcast::<Away>().ok());
        let Some((mut away, session)) = away.and_then(|mut away| away.take().map(|session| (away, session))) else {
            // The server stops, or its thread has ended by a defect: what it did is not known, so that there is no
            // reply.
            self.session.closing = true;
            return None;
        };
        let stand_in = std::mem::replace(&mut self.session, session);
        self.session.closing |= stand_in.closing;
        executor.tally.add(away.tally);
        // Where its user is gone meanwhile it has to go, once it has its reply.
        self.session.renew(executor.shared);
        if self.session.awaited.is_some() {
            return None;
        }
        self.output.bytes.append(&mut away.reply);
        Some(away.barrier.take())
    }

    fn take(&mut self, bytes: &[u8], executor: &mut Executor<'_>) {
        if self.input.is_empty() {
            let used = self.run(bytes, executor);
            self.input.extend_from_slice(&bytes[used..]);
            return;
        }
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(bytes);
        let used = self.run(&input, executor);
        self.keep(input, used);
    }

    fn keep(&mut self, mut input: Vec<u8>, used: usize) {
        input.drain(..used);
        if input.is_empty() {
            input.shrink_to(KEEP_BYTES);
        }
        self.input = input;
    }

    /// Runs the commands in `bytes`; returns how many bytes they took.
    fn run(&mut self, bytes: &[u8], executor: &mut Executor<'_>) -> usize {
        let shared = executor.shared;
        let may_join = joint::may_join(shared);
        // Commands that were run and are not committed.
        let mut joint = None;
        // Commands that begin before this place are run alone.
        let mut alone_to = std::mem::take(&mut self.alone_bytes);
        let soft = shared.config.output_bytes_soft;
        let mut limits = Limits {
            arg_bytes_max: shared.settings.arg_bytes_max.load(std::sync::atomic::Ordering::Relaxed),
            command_bytes_max: shared.settings.command_bytes_max.load(std::sync::atomic::Ordering::Relaxed),
            unauthenticated: !self.session.is_authenticated(),
        };
        let mut used = 0;
        let mut batch = Batch::default();
        self.stalled = false;
        executor.observer.begin_batch();
        loop {
            let rest = &bytes[used..];
            let stops = self.session.closing || self.output.len() > soft;
            let step = if stops { Ok(Step::Incomplete) } else { self.parser.next(rest, &limits) };
            let joined = match step {
                Ok(Step::Command(len)) if may_join && used >= alone_to => {
                    self.join(executor, &mut joint, (rest, &limits), (used, len), &mut batch)
                }
                _ => Join::Alone,
            };
            match joined {
                Join::Joined(len) | Join::Answered(len) => {
                    used += len;
                    continue;
                }
                Join::Apart(from) => {
                    (alone_to, used) = (used + 1, from);
                    continue;
                }
                Join::CommitFirst | Join::Alone if joint.is_some() => {
                    if let Some(from) = self.end_joint(executor, joint.take(), (bytes, &limits), &mut batch) {
                        (alone_to, used) = (used, from);
                        // It may be within a command that is not whole.
                        self.parser = Parser::new();
                        continue;
                    }
                    if matches!(joined, Join::CommitFirst) {
                        continue;
                    }
                }
                Join::CommitFirst | Join::Alone => {}
            }
            match step {
                Ok(Step::Incomplete) => {
                    if self.session.closing {
                        used = bytes.len();
                    } else if stops {
                        self.stalled = used < bytes.len();
                    }
                    break;
                }
                Ok(Step::Nothing(len)) => used += len,
                Ok(Step::Command(len)) => {
                    let from = self.output.bytes.len();
                    // With TLS and without a password it is known by having sent a command.
                    if !self.session.admit(shared) {
                        ReplyWriter::new(&mut self.output.bytes, false).error(TOO_MANY_CLIENTS.as_bytes());
                        batch.add(from, None);
                        continue;
                    }
                    // It is found out once, perhaps where the command might have joined others.
                    if self.session.closing || !self.session.renew(shared) {
                        used = bytes.len();
                        break;
                    }
                    let args = self.parser.args(rest);
                    executor.observer.expect(self.parser.is_repeated(rest, len));
                    let barrier = executor.execute(&mut self.session, args, &mut self.output.bytes);
                    used += len;
                    limits.unauthenticated = !self.session.is_authenticated();
                    self.leave_if_asked(executor);
                    if self.session.awaited.is_some() {
                        self.stalled = used < bytes.len();
                        break;
                    }
                    if let Some(traced) = self.session.traced.take() {
                        self.output.trace(traced, from, barrier.as_ref());
                    }
                    batch.add(from, barrier);
                }
                Err(error) => {
                    let from = self.output.bytes.len();
                    ReplyWriter::new(&mut self.output.bytes, false).error(format!("ERR {error}").as_bytes());
                    batch.add(from, None);
                    self.session.closing = true;
                }
            }
        }
        executor.observer.end_batch(&self.session);
        self.output.end_batch(batch);
        self.session.publish();
        self.alone_bytes = alone_to.saturating_sub(used);
        self.ahead.ran(used);
        if self.stalled && self.session.awaited.as_ref().is_some_and(Awaited::lets_look_ahead) {
            self.ahead.look(&bytes[used..], &limits, &self.session, shared, executor.table);
        }
        used
    }

    /// Runs the command of `len` bytes that `rest` begins with, and which stands at `used`, together with those before
    /// it, or has it begin such a set where more has arrived behind it, or answers it with those.
    fn join<'e>(
        &mut self,
        executor: &mut Executor<'e>,
        joint: &mut Option<Joint<'e>>,
        (rest, limits): (&[u8], &Limits),
        (used, len): (usize, usize),
        batch: &mut Batch,
    ) -> Join {
        let session = &mut self.session;
        let goes_on = joint.is_some() || rest.len() > len;
        if !goes_on || session.stranger.is_some() || !session.renew(executor.shared) {
            return Join::Alone;
        }
        let repeated = self.parser.is_repeated(rest, len);
        let args = self.parser.args(rest);
        if repeated
            && joint.is_none()
            && let Some((index, command)) = executor.table.find_near(args.get(0), executor.before)
            && command.name == "get"
        {
            let shared = executor.shared;
            let Some(database) = shared.keyspace.database_if_open(session.database) else { return Join::Alone };
            if !joint::lets_go_together(executor, session, command, args) {
                return Join::Alone;
            }
            executor.before = index;
            let of = (index, joint::wanted(&shared.keyspace, database, command), args.get(1));
            let from = self.output.bytes.len();
            let out_max = from - self.output.len() + shared.config.output_bytes_soft;
            let out = (&mut self.output.bytes, out_max);
            return match gets::answer(executor, session, of, (&mut self.foresight, rest, limits), out) {
                Some(answered) => {
                    batch.add(from, answered.barrier);
                    (1..answered.replies).for_each(|_| batch.add(from, None));
                    Join::Answered(answered.used)
                }
                None => Join::Alone,
            };
        }
        let ahead = (&mut self.foresight, rest, limits);
        Joint::join(joint, executor, session, args, (used, len, repeated), ahead, &mut self.output.bytes)
    }

    /// Commits the commands that were joined. `Some`: they are to be run alone, from this place of the input on.
    fn end_joint<'e>(
        &mut self,
        executor: &mut Executor<'e>,
        joint: Option<Joint<'e>>,
        input: (&[u8], &Limits),
        batch: &mut Batch,
    ) -> Option<usize> {
        match joint?.end(executor, &self.session, input, &mut self.output.bytes) {
            Ended::Apart(from) => Some(from),
            Ended::Replies(from, replies, barrier) => {
                batch.add(from, barrier);
                (1..replies).for_each(|_| batch.add(from, None));
                None
            }
        }
    }

    /// Sends what may be sent.
    pub(crate) fn flush(&mut self, executor: &mut Executor<'_>) -> io::Result<()> {
        self.output.release();
        loop {
            let sendable = self.output.sendable();
            if sendable.is_empty() {
                break;
            }
            let len = self.transport.write(sendable)?;
            if len == 0 {
                break;
            }
            executor.tally.output_bytes += len as u64;
            self.output.sent(len);
        }
        self.transport.flush()?;
        let client = &self.session.client;
        client.input_bytes.store(self.input.len(), std::sync::atomic::Ordering::Relaxed);
        client.output_bytes.store(self.output.len(), std::sync::atomic::Ordering::Relaxed);
        client.input_capacity.store(self.input.capacity(), std::sync::atomic::Ordering::Relaxed);
        client.output_capacity.store(self.output.bytes.capacity(), std::sync::atomic::Ordering::Relaxed);
        executor.shared.clients.count(client);
        Ok(())
    }
}

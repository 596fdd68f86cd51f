//! What is noted of each command that a loop runs: statistics, the slow log, latency spikes, lines for monitors.
//!
//! [`Observer::begin`] → the command is run → [`Observer::ran`], or [`Observer::refused`] → once the values that it
//! waits for are here, [`Observer::arrived`]
//!
//! Invariants:
//! 1. The clock is read once before the first command of a batch and once after each, commands of EXEC included; but
//!    [brief](BRIEF) ones with short replies, two to [`TOGETHER_MAX`] of one name that follow one another, are timed
//!    together, and each counts as its share. If together they took so long that one would be noted as slow, the slow
//!    log gets one entry with that time and the name alone. Where the one behind them is refused or not brief after
//!    all, they have what brief ones took last, and that one the rest.
//! 2. Commands that go as one transaction are timed together in the same way, whatever their names; where they are run
//!    anew one by one, only that counts.
//! 3. A command that was refused before it was run, or queued by MULTI, is neither timed nor told to monitors.
//! 4. What EXEC ran is noted once its transaction is committed, before EXEC itself.

use std::time::{Duration, Instant};

use crate::resp::command_stats::LoopCommands;
use crate::resp::commands::{ADMIN, BRIEF, Command, FAST};
use crate::resp::monitors;
use crate::resp::parse::Args;
use crate::resp::queued::Begun;
use crate::resp::session::Session;
use crate::resp::shared::Shared;
use crate::resp::slowlog::KeptArgs;

/// Subcommands of CLIENT that monitors are not told, as in Redis. No other command for operators is told either.
const CLIENT_ADMIN: &[&str] = &["kill", "list", "no-evict", "pause", "unpause"];

/// Brief commands that are timed together at most.
const TOGETHER_MAX: u64 = 16;
/// A brief command whose reply is longer is the last of those that are timed together, in bytes.
const SHORT_REPLY: usize = 1_024;
/// Where a command is noted as slow that took less, in nanoseconds, all are timed one by one: brief ones together do
/// not come near it. The default of the slow log is not less. The latency monitor, off by default, shows commands only,
/// so that as many as are timed together are to stay below its threshold with this time each.
const CLOSE_LOOK_NS: u64 = 10_000_000;
/// What a brief command is held to take before any were timed, in nanoseconds.
const USUAL_NS: u64 = 2_000;

/// Brief commands of one name that are timed together.
struct Together {
    command: usize,
    began: Instant,
    calls: u64,
}

/// Commands of one name that went as one transaction, perhaps with others.
pub(crate) struct Runs {
    pub(crate) command: usize,
    pub(crate) calls: u64,
    /// How many of them were refused by their handlers.
    pub(crate) failed: u64,
}

/// How a command was run.
pub(crate) struct Timed {
    /// When it began, or the first of those that are timed with it.
    pub(crate) began: Instant,
    pub(crate) failed: bool,
    /// Bytes of its reply, if that is written.
    pub(crate) replied: usize,
}

/// Notes the commands of one event loop, or of one thread beside them.
pub(crate) struct Observer<'e> {
    shared: &'e Shared,
    stats: &'e LoopCommands,
    commands: &'static [Command],
    /// When the command before ended, if it was of the same batch.
    ended: Option<Instant>,
    /// What was run since, if it is brief.
    together: Option<Together>,
    /// What each of those took that were timed together last, in nanoseconds.
    usual_ns: u64,
    /// Another of the same name stands behind the command under way.
    repeated: bool,
}

impl<'e> Observer<'e> {
    pub(crate) fn new(shared: &'e Shared, event_loop: usize, commands: &'static [Command]) -> Self {
        Self {
            shared,
            stats: shared.command_stats.of_loop(event_loop),
            commands,
            ended: None,
            together: None,
            usual_ns: USUAL_NS,
            repeated: false,
        }
    }

    /// A batch begins: the time since the command before counts for none.
    pub(crate) fn begin_batch(&mut self) {
        self.ended = None;
    }

    /// All commands of the batch were run.
    pub(crate) fn end_batch(&mut self, session: &Session) {
        self.repeated = false;
        self.end_together(session);
    }

    /// Whether behind the next command another of its name stands.
    #[inline]
    pub(crate) fn expect(&mut self, repeated: bool) {
        self.repeated = repeated;
    }

    /// A command begins.
    #[inline]
    pub(crate) fn begin(&mut self, session: &Session, command: Option<usize>) -> Instant {
        if let Some(together) = &self.together {
            if Some(together.command) == command && together.calls < TOGETHER_MAX {
                return together.began;
            }
            self.end_together(session);
        }
        self.ended.take().unwrap_or_else(Instant::now)
    }

    /// What began then is begun anew, and has taken the time since.
    pub(crate) fn has_not_begun(&mut self, began: Instant) {
        self.ended = Some(began);
    }

    /// Notes the brief commands that were run since the clock was read.
    fn end_together(&mut self, session: &Session) {
        let Some(Together { command, began, calls }) = self.together.take() else { return };
        let ended = Instant::now();
        self.ended = Some(ended);
        let took = ended - began;
        self.note_together(session, command, took, calls);
        self.usual_ns = took.as_nanos() as u64 / calls;
    }

    /// Whether commands may go as one transaction, which are timed together: none is looked at closely.
    #[inline]
    pub(crate) fn lets_join(&self) -> bool {
        self.shared.slowlog.slow_from_ns() >= CLOSE_LOOK_NS
            && self.shared.spikes.long_from_ns() >= CLOSE_LOOK_NS * TOGETHER_MAX
            && !self.shared.monitors.any()
    }

    /// Commands that went as one transaction were run. `args`: of the first of them.
    pub(crate) fn ran_jointly(
        &mut self,
        session: &Session,
        began: Instant,
        runs: &[Runs],
        args: impl FnOnce(&'static str) -> KeptArgs,
    ) {
        let ended = Instant::now();
        self.ended = Some(ended);
        let took = ended - began;
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let all: u64 = runs.iter().map(|runs| runs.calls).sum();
        for Runs { command, calls, failed } in runs {
            self.stats.count_several(*command, took_ns / all.max(1) * calls, *calls, *failed);
        }
        if let [first, ..] = runs
            && took_ns >= self.slow_from_ns()
        {
            self.note_slow(session, first.command, took, args);
        }
    }

    /// Notes them where a command came behind them that is not timed with them, and answers when that began.
    fn end_before(&mut self, session: &Session, together: Together, ended: Instant) -> Instant {
        let Together { command, began, calls } = together;
        let share = (ended - began) / (calls as u32 + 1);
        let took = share.min(Duration::from_nanos(self.usual_ns)) * calls as u32;
        self.note_together(session, command, took, calls);
        began + took
    }

    fn note_together(&self, session: &Session, command: usize, took: Duration, calls: u64) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.stats.count_several(command, took_ns, calls, 0);
        if took_ns >= self.slow_from_ns() {
            self.note_slow(session, command, took, KeptArgs::of_name);
        }
    }

    /// From this time on a command is noted as slow, in nanoseconds.
    #[inline]
    fn slow_from_ns(&self) -> u64 {
        self.shared.slowlog.slow_from_ns().min(self.shared.spikes.long_from_ns())
    }

    /// Whether what took so long is noted as slow.
    pub(crate) fn is_slow(&self, took: Duration) -> bool {
        u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) >= self.slow_from_ns()
    }

    /// Whether a command that was run is timed with those before or behind it.
    #[inline]
    fn is_brief(&self, session: &Session, index: usize, failed: bool, replied: usize) -> bool {
        (self.repeated || self.together.is_some())
            && self.commands[index].flags & BRIEF != 0
            && !failed
            && replied <= SHORT_REPLY
            && session.awaited.is_none()
            && session.ran.is_empty()
            && self.shared.slowlog.slow_from_ns() >= CLOSE_LOOK_NS
            && self.shared.spikes.long_from_ns() >= CLOSE_LOOK_NS * TOGETHER_MAX
    }

    /// A command was refused before it was run.
    pub(crate) fn refused(&mut self, session: &Session, command: usize) {
        if let Some(together) = self.together.take() {
            self.end_before(session, together, Instant::now());
        }
        self.ended = None;
        self.stats.reject(command);
    }

    /// A command was run, and replied so many bytes; its values may still be on their way.
    #[inline]
    pub(crate) fn ran(&mut self, session: &mut Session, index: usize, args: Args<'_>, timed: Timed) {
        let Timed { began, failed, replied } = timed;
        if self.is_brief(session, index, failed, replied) {
            match &mut self.together {
                Some(together) => together.calls += 1,
                None => self.together = Some(Together { command: index, began, calls: 1 }),
            }
            self.tell_monitors(session, session.database, index, args);
            return;
        }
        let ended = Instant::now();
        self.ended = Some(ended);
        let began = match self.together.take() {
            Some(together) => self.end_before(session, together, ended),
            None => began,
        };
        if !session.ran.is_empty() {
            self.note_exec(session);
        }
        if session.awaited.is_some() {
            let args = self.shared.slowlog.is_on().then(|| KeptArgs::new(self.commands[index].name, args));
            session.begun = Some(Begun { command: index, began, args });
        } else {
            self.note(session, index, ended - began, failed, |name| KeptArgs::new(name, args));
        }
        self.tell_monitors(session, session.database, index, args);
    }

    /// Notes what EXEC ran.
    #[cold]
    fn note_exec(&self, session: &mut Session) {
        for ran in std::mem::take(&mut session.ran) {
            let (index, args) = (ran.queued.command, ran.queued.args());
            self.note(session, index, ran.took, ran.failed, |name| KeptArgs::new(name, args));
            self.tell_monitors(session, ran.database, index, args);
        }
    }

    /// The values that the session waited for are here.
    pub(crate) fn arrived(&self, session: &mut Session, failed: bool) {
        let Some(begun) = session.begun.take() else { return };
        let took = begun.began.elapsed();
        // Nothing is kept of a command that began while the slow log was off.
        let args = begun.args;
        self.note(session, begun.command, took, failed, |name| args.unwrap_or_else(|| KeptArgs::of_name(name)));
    }

    /// The login that the session waited for has failed.
    pub(crate) fn failed_late(&self, session: &mut Session) {
        let (Some(began), Some(auth)) = (session.began.take(), self.commands.iter().position(|it| it.name == "auth"))
        else {
            return;
        };
        self.note(session, auth, began.elapsed(), true, KeptArgs::of_name);
    }

    #[inline]
    fn note(
        &self,
        session: &Session,
        index: usize,
        took: Duration,
        failed: bool,
        args: impl FnOnce(&'static str) -> KeptArgs,
    ) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.stats.count(index, took_ns, failed);
        if took_ns >= self.slow_from_ns() {
            self.note_slow(session, index, took, args);
        }
    }

    #[cold]
    fn note_slow(&self, session: &Session, index: usize, took: Duration, args: impl FnOnce(&'static str) -> KeptArgs) {
        let (shared, command) = (self.shared, &self.commands[index]);
        let now_s = || shared.keyspace.kv.clock().now_ms() / 1_000;
        // What EXEC ran is there by itself, as in Redis.
        if shared.slowlog.is_slow(took) && command.name != "exec" {
            let name = session.client.names.lock().name.clone();
            shared.slowlog.add(now_s(), took, args(command.name), &session.client.address, &name);
        }
        shared.spikes.add(command.flags & FAST != 0, took, now_s);
    }

    #[inline]
    fn tell_monitors(&self, session: &Session, database: u8, index: usize, args: Args<'_>) {
        if self.shared.monitors.any() {
            self.tell_those(session, database, index, args);
        }
    }

    #[cold]
    fn tell_those(&self, session: &Session, database: u8, index: usize, args: Args<'_>) {
        let shared = self.shared;
        let command = &self.commands[index];
        let is_client = command.name == "client";
        let hidden = if is_client {
            CLIENT_ADMIN.iter().any(|name| args.get(1).eq_ignore_ascii_case(name.as_bytes()))
        } else {
            command.flags & ADMIN != 0
        };
        if hidden {
            return;
        }
        let now_ms = shared.keyspace.kv.clock().now_ms();
        let line = monitors::line(now_ms, database, &session.client.address, command.name, args);
        shared.monitors.tell(&line, |event_loop| shared.wake(event_loop));
    }
}

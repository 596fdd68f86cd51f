//! Commands of one pipeline that only write go as one transaction.
//!
//! ```text
//! command → may it join? → the stripes of its keys, if they are free → its handler, in one transaction with
//!         those before it → … → one that may not, or the end of what has arrived → one commit → replies wait
//! error of the store, value not in memory, no room → nothing was written → each is run alone, from the first
//! ```
//!
//! What a command says to its client is the same as if it were run alone: handlers of data are those that EXEC runs,
//! and what a handler refuses with a text has written nothing. What others see changes in one step where it would have
//! changed in several.
//!
//! Invariants:
//! 1. While commands are joined nothing is waited for: not for a lock, a value or room. Only the first waits for the
//!    stripes of its keys, before anything is held. The commit may wait as that of a single command does: for the
//!    catalogue, where a database is written for the first time. And where index memory runs short between a command's
//!    look and its reads, each of these waits a quarter of a second at most.
//! 2. A key's stripe is held from before its command reads it until all of them are committed, so that watchers are
//!    told and hashes are expected as by any other writer.
//! 3. No reply is sent before the commit has answered; where it has written nothing the replies are taken back, with
//!    what was counted.
//! 4. Of the joined commands no other kind of command is run before they are committed.

use std::time::Instant;

use esker_kv::{Barrier, Key, Namespace, Txn};
use esker_store::{Error, Waits, WhenBusy};
use smallvec::SmallVec;

use crate::resp::commands::{Call, Command, Executor, JOINS, MAKES_HASH, Run, Table};
use crate::resp::foreseen::{Foresight, Wanted};
use crate::resp::keyspace::{Database, Keyspace};
use crate::resp::observer::Runs;
use crate::resp::parse::{Args, Limits, Parser, Step};
use crate::resp::refusal::{Refusal, store_error_line};
use crate::resp::reply::ReplyWriter;
use crate::resp::session::Session;
use crate::resp::shared::{Shared, Tally};
use crate::resp::slowlog::KeptArgs;
use crate::trace;

/// Longest command that joins, in bytes with its framing: one whose key or value may be too long is run alone.
const COMMAND_BYTES_MAX: usize = 2 << 10;
/// Commands that go together at most, so that others who want their keys wait for microseconds.
const COMMANDS_MAX: u64 = 64;
/// Keys that they name together at most, but those of the last command.
const KEYS_MAX: usize = 64;
/// Bytes that they write together at most, but what the last command writes: APPEND makes much of little.
const WRITTEN_BYTES_MAX: usize = 256 << 10;
/// Bytes that they find together at most, but what the last command finds: they are compared again at the commit.
const FOUND_BYTES_MAX: usize = 256 << 10;

/// Commands that were run and are not committed.
pub(crate) struct Joint<'e> {
    txn: Txn<'e>,
    /// Of what handlers read besides it.
    barrier: Option<Barrier>,
    /// Where the first of them begins in the input, and its reply in the output.
    used: usize,
    from: usize,
    began: Instant,
    /// What was counted before.
    tally: Tally,
    runs: SmallVec<[Runs; 2]>,
    commands: u64,
    keys: usize,
    /// Commands that come next, of which what they read was looked at.
    foreseen: usize,
}

/// What became of a command that might join.
pub(crate) enum Join {
    /// It was run with those before it, and took so many bytes of the input.
    Joined(usize),
    /// It was answered with those behind it, and they took so many.
    Answered(usize),
    /// Those before it have to be committed first. Then it may be asked again.
    CommitFirst,
    /// It was not looked at, and is to be run alone, once those before it are committed.
    Alone,
    /// Nothing is left of it and of those before it: they are to be run alone, from this place of the input on.
    Apart(usize),
}

/// What became of commands that were joined.
pub(crate) enum Ended {
    /// Their replies begin here in the output, are so many, and wait for this.
    Replies(usize, u64, Option<Barrier>),
    /// Nothing is left of them: they are to be run alone, from this place of the input on.
    Apart(usize),
}

/// Whether commands of this server may join: where nothing else has to be asked while their locks are held, and nothing
/// is far away.
pub(crate) fn may_join(shared: &Shared) -> bool {
    let (config, kv) = (&shared.config, &shared.keyspace.kv);
    config.cluster.is_none() && config.reading.is_none() && !shared.line.is_used() && !kv.is_afar() && kv.is_whole()
}

impl<'e> Joint<'e> {
    /// Runs a command with those of its pipeline before it, if it may go with them. `len`: its bytes, with framing;
    /// `used`: where it begins in the input; `repeated`: behind it another of its name stands, so that it is worth
    /// while to look at the input from it on.
    pub(crate) fn join(
        joint: &mut Option<Self>,
        executor: &mut Executor<'e>,
        session: &mut Session,
        args: Args<'_>,
        (used, len, repeated): (usize, usize, bool),
        (foresight, input, limits): (&mut Foresight, &[u8], &Limits),
        out: &mut Vec<u8>,
    ) -> Join {
        let shared: &'e Shared = executor.shared;
        let Some((index, command)) = executor.table.find_near(args.get(0), executor.before) else { return Join::Alone };
        executor.before = index;
        // One that has a short way goes that way, unless others are likely to come with it.
        let begins = repeated || joint.is_some() || matches!(command.run, Run::Data(_));
        if len > COMMAND_BYTES_MAX
            || !begins
            || command.flags & JOINS == 0
            || !lets_go_together(executor, session, command, args)
        {
            return Join::Alone;
        }
        let Some(database) = shared.keyspace.database_if_open(session.database) else { return Join::Alone };
        if shared.keyspace.kv.stall(Waits::default()).is_some() {
            // The store would refuse them all, or have a read wait for memory while stripes are held.
            return if joint.is_some() { Join::CommitFirst } else { Join::Alone };
        }
        if command.flags & MAKES_HASH != 0 {
            for key in command.keys_of(args) {
                if joint.is_none() {
                    shared.keyspace.expect_hash(key);
                } else if !shared.keyspace.expect_hash_now(key) {
                    return Join::CommitFirst;
                }
            }
        }
        let keys: SmallVec<[(&Namespace, Key<'_>); 4]> =
            command.keys_of(args).map(|key| database.locate(key)).collect();
        if joint.as_mut().is_some_and(|joint| joint.is_full() || !joint.txn.try_hold(&keys)) {
            return Join::CommitFirst;
        }
        let own = match joint {
            Some(own) => own,
            None => {
                let began = executor.observer.begin(session, None);
                let mut txn = shared.keyspace.kv.begin(&keys);
                txn.do_not_wait();
                txn.when_busy(WhenBusy::Refuse(Waits::default()));
                let (barrier, runs, from) = (None, SmallVec::new(), out.len());
                let tally = executor.tally;
                joint.insert(Self { txn, barrier, used, from, began, tally, runs, commands: 0, keys: 0, foreseen: 0 })
            }
        };
        if own.foreseen > 0 {
            own.foreseen -= 1;
        } else if repeated {
            let mut wanted = wanted(&shared.keyspace, database, command);
            // Each of them has one key.
            wanted.commands_max = (wanted.commands_max - own.commands as usize).min(KEYS_MAX - own.keys);
            own.foreseen = foresight.read(&mut own.txn, wanted, input, limits).saturating_sub(1);
        }
        own.keys += keys.len();
        executor.tally.commands += 1;
        session.client.last_command.store(index, std::sync::atomic::Ordering::Relaxed);
        let (start, resp3) = (out.len(), session.resp3);
        let mut call = Call {
            shared,
            session,
            index,
            commands: Table::commands(),
            args,
            reply: ReplyWriter::new(out, resp3),
            barrier: &mut own.barrier,
            tally: &mut executor.tally,
        };
        let (Run::Data(handler) | Run::Fast(_, handler)) = command.run else { unreachable!("it has no transaction") };
        let failed = match handler(&mut call, &mut own.txn).and_then(|()| call.check_output()) {
            Ok(()) if !own.txn.has_failed() => false,
            Err(Refusal::Text(line)) => {
                call.tally.errors += 1;
                call.reply.rewind(start);
                call.reply.error(line.as_bytes());
                true
            }
            Ok(()) | Err(Refusal::Store(_) | Refusal::OnItsWay) => return Self::fall_apart(joint, executor, out),
        };
        own.count(index, failed);
        Join::Joined(len)
    }

    /// Takes back what was joined.
    fn fall_apart(joint: &mut Option<Self>, executor: &mut Executor<'_>, out: &mut Vec<u8>) -> Join {
        let Some(Self { used, from, tally, .. }) = joint.take() else { return Join::Alone };
        out.truncate(from);
        executor.tally = tally;
        Join::Apart(used)
    }

    /// Commits the commands that were joined, which began in `input`.
    pub(crate) fn end(
        self,
        executor: &mut Executor<'_>,
        session: &Session,
        (input, limits): (&[u8], &Limits),
        out: &mut Vec<u8>,
    ) -> Ended {
        let Self { txn, barrier, used, from, began, tally, mut runs, commands, .. } = self;
        let (committed, behind) = txn.commit(executor.shared.durability()).into_parts();
        let barrier = Barrier::later(barrier, behind);
        match committed {
            Ok(()) => {}
            Err(error @ (Error::Stopped { .. } | Error::Unknown { .. })) => {
                // What became of them is not known: they are not run again.
                out.truncate(from);
                let line = store_error_line(&error);
                (0..commands).for_each(|_| ReplyWriter::new(out, false).error(line.as_bytes()));
                executor.tally.errors = tally.errors + commands;
                runs.iter_mut().for_each(|run| run.failed = run.calls);
            }
            Err(_) => {
                out.truncate(from);
                executor.tally = tally;
                return Ended::Apart(used);
            }
        }
        executor.observer.ran_jointly(session, began, &runs, |name| {
            let (mut parser, first) = (Parser::new(), &input[used..]);
            match parser.next(first, limits) {
                Ok(Step::Command(_)) if commands == 1 => KeptArgs::new(name, parser.args(first)),
                _ => KeptArgs::of_name(name),
            }
        });
        Ended::Replies(from, commands, barrier)
    }

    fn is_full(&self) -> bool {
        self.commands >= COMMANDS_MAX
            || self.keys >= KEYS_MAX
            || self.txn.written_bytes() > WRITTEN_BYTES_MAX
            || self.txn.found_bytes() > FOUND_BYTES_MAX
    }

    fn count(&mut self, command: usize, failed: bool) {
        self.commands += 1;
        match self.runs.last_mut() {
            Some(runs) if runs.command == command => {
                runs.calls += 1;
                runs.failed += u64::from(failed);
            }
            _ => self.runs.push(Runs { command, calls: 1, failed: failed.into() }),
        }
    }
}

/// What is looked ahead for from a command on.
pub(crate) fn wanted<'e>(keyspace: &'e Keyspace, database: &'e Database, command: &'static Command) -> Wanted<'e> {
    Wanted {
        keyspace,
        database,
        command,
        commands_max: COMMANDS_MAX as usize,
        command_bytes_max: COMMAND_BYTES_MAX,
        found_bytes_max: FOUND_BYTES_MAX,
    }
}

/// Whether the command, of this session, may be run with others at once.
pub(crate) fn lets_go_together(executor: &Executor<'_>, session: &Session, command: &Command, args: Args<'_>) -> bool {
    command.accepts(args.len())
        && session.rights.as_ref().is_some_and(|rights| rights.has_all())
        && session.queue.is_none()
        && session.monitor.is_none()
        && executor.observer.lets_join()
        && !trace::is_on()
}

//! Commands: from arguments to a reply, inside a transaction that holds the keys named.
//!
//! arguments → [`Table::find`] → arity, authentication, rights, slots, MULTI → locks of the keys → handler
//! → commit → barrier
//!
//! Invariants:
//! 1. A handler that refuses with a text has written nothing, so that committing what it read is harmless; after an
//!    error of the store nothing is committed.
//! 2. A reply, an error too, waits for the barrier of everything that it was made from.
//! 3. Handlers of data take no locks of their own: they run under EXEC as well.

pub(crate) mod acl;
mod call;
pub(crate) mod clients;
pub(crate) mod cluster;
pub(crate) mod configuration;
pub(crate) mod connection;
pub(crate) mod expiry;
pub(crate) mod hash_numbers;
pub(crate) mod hashes;
pub(crate) mod info;
pub(crate) mod keys;
pub(crate) mod latency;
pub(crate) mod monitor;
pub(crate) mod numbers;
mod permit;
mod redirect;
pub(crate) mod scans;
pub(crate) mod server;
pub(crate) mod set;
pub(crate) mod slowlog;
pub(crate) mod strings;
pub(crate) mod table;
pub(crate) mod transactions;

use esker_kv::{Barrier, Key, Namespace, Txn};
use esker_store::Waits;
use smallvec::SmallVec;

pub(crate) use self::call::{
    Call, Command, NO_SUCH_KEY, NOT_AN_INTEGER, Outcome, Run, SYNTAX, WRONG_TYPE, again, finish, help, is,
    may_wait_again, shown, subcommand, suspend, suspend_for_room, tell_of_rest, wake_loop_of, when_busy,
};
pub(crate) use self::permit::permit;
pub(crate) use self::redirect::{reads_then_looks, redirect, redirect_queue, still_here};
pub(crate) use self::table::Table;
pub(crate) use crate::resp::flags::{
    ADMIN, ASKS, BRIEF, FAST, GIVES, JOINS, MAKES_HASH, NO_AUTH, NO_MULTI, NOT_QUEUED, READ, SWEEPS, WRITE,
};
use crate::resp::moment::Moment;
use crate::resp::observer::{Observer, Timed};
use crate::resp::parse::Args;
use crate::resp::queued::Queued;
pub(crate) use crate::resp::refusal::Refusal;
use crate::resp::reply::ReplyWriter;
use crate::resp::session::Session;
use crate::resp::shared::{Shared, Tally};
use crate::trace;

/// What a call needs besides its session.
pub(crate) struct Executor<'e> {
    pub(crate) shared: &'e std::sync::Arc<Shared>,
    pub(crate) table: &'static Table,
    /// The place of the command before: often the next is the same.
    pub(crate) before: usize,
    pub(crate) tally: Tally,
    pub(crate) observer: Observer<'e>,
    /// Commands that wait for the store are run elsewhere.
    pub(crate) sends_away: bool,
}

impl Executor<'_> {
    /// Runs one command and writes its reply, unless the session then waits for values or leaves; returns what the
    /// reply has to wait for.
    pub(crate) fn execute(&mut self, session: &mut Session, args: Args<'_>, out: &mut Vec<u8>) -> Option<Barrier> {
        self.tally.commands += 1;
        session.draws = 0;
        let start = out.len();
        let mut barrier = None;
        let generation = self.shared.keyspace.gate.generation();
        session.slots_seen = generation;
        let resp3 = session.resp3;
        let again = session.began.take();
        let first = again.is_none();
        let found = self.table.find_near(args.get(0), self.before);
        if let Some((index, _)) = found {
            self.before = index;
        }
        let began = again.unwrap_or_else(|| self.observer.begin(session, found.map(|(index, _)| index)));
        // One that is begun anew goes on with the span that it has, or without one.
        if first && trace::is_on() {
            session.traced = trace::command(found.map(|(_, command)| command.name), session.database);
        }
        let mut call = Call {
            shared: self.shared,
            session,
            index: found.map_or(0, |(index, _)| index),
            commands: Table::commands(),
            args,
            reply: ReplyWriter::new(out, resp3),
            barrier: &mut barrier,
            tally: &mut self.tally,
        };
        let (ran, outcome) = match admit(&mut call, found) {
            Ok(Some(command)) => {
                let outcome = run(&mut call, command, self.sends_away);
                (true, outcome.and_then(|()| read_here(&mut call, command, (generation, start))))
            }
            Ok(None) => (false, Ok(())),
            Err(refusal) => (false, Err(refusal)),
        };
        if matches!(outcome, Err(Refusal::OnItsWay))
            && (call.session.awaited.is_some() || call.session.leaves.is_some())
        {
            // It is run again when what it waits for is here, and counts then.
            call.tally.commands -= 1;
            call.session.began = Some(began);
            return barrier;
        }
        (call.session.waits, call.session.room_waits, call.session.seeds) = (0, Waits::default(), None);
        let failed = outcome.is_err();
        if let Err(refusal) = outcome {
            call.tally.errors += 1;
            call.reply.rewind(start);
            call.reply.error(refusal.line().as_bytes());
        }
        let out_len = call.reply.position();
        match found {
            Some((index, _)) if ran => {
                let replied = out_len.saturating_sub(start);
                self.observer.ran(session, index, args, Timed { began, failed, replied });
            }
            Some((index, _)) if failed => self.observer.refused(session, index),
            _ => {}
        }
        barrier
    }
}

/// What a command has read counts only if its keys were not given to another chain meanwhile.
fn read_here(call: &mut Call<'_>, command: &Command, (generation, start): (u64, usize)) -> Outcome {
    let may_be_gone = call.shared.config.reading.is_some() || call.shared.keyspace.gate.generation() != generation;
    if !may_be_gone || command.flags & (READ | WRITE) != READ {
        return Ok(());
    }
    let read = still_here(call, command);
    if read.is_err() {
        call.reply.rewind(start);
        if matches!(read, Err(Refusal::Text(_))) {
            // It waits for nothing.
            call.session.awaited = None;
        }
    }
    read
}

/// Checks what comes before any handler, then queues the command, or returns it to be run.
fn admit(call: &mut Call<'_>, found: Option<(usize, &'static Command)>) -> Result<Option<&'static Command>, Refusal> {
    let refusal = match found {
        None => Some(unknown(call)),
        Some((_, command)) if !command.accepts(call.args.len()) => Some(call.wrong_args(command.name)),
        Some((_, command)) if !call.session.is_authenticated() && command.flags & NO_AUTH == 0 => {
            Some("NOAUTH Authentication required.".into())
        }
        Some((_, command)) if call.session.queue.is_some() && command.flags & NO_MULTI != 0 => {
            Some("ERR Command not allowed inside a transaction".into())
        }
        Some((_, command)) if call.session.monitor.is_some() && command.flags & (READ | WRITE) != 0 => {
            Some("ERR Replica can't interact with the keyspace".into())
        }
        Some((index, command)) => {
            permit(call, index, command, call.args, false).and_then(|()| redirect(call, command)).err()
        }
    };
    let (index, command) = match (refusal, found) {
        (None, Some((index, command))) => {
            call.session.client.last_command.store(index, std::sync::atomic::Ordering::Relaxed);
            (index, command)
        }
        (refusal, found) => {
            let refusal = refusal.unwrap_or_else(|| SYNTAX.into());
            if found.is_some_and(|(_, command)| command.name == "exec") {
                return Err(transactions::abort(call, &refusal));
            }
            if let Some(queue) = &mut call.session.queue {
                queue.broken = true;
            }
            return Err(refusal);
        }
    };
    if command.flags & NOT_QUEUED == 0
        && let Some(queue) = &mut call.session.queue
    {
        let queued = Queued::new(index, call.args);
        queue.bytes += queued.bytes();
        if queue.bytes > call.shared.config.command_bytes_max {
            queue.broken = true;
            queue.commands = Vec::new();
            return Err("ERR transaction exceeds the query buffer limit (command_bytes_max)".into());
        }
        if !queue.broken {
            queue.commands.push(queued);
        }
        call.reply.simple("QUEUED");
        return Ok(None);
    }
    Ok(Some(command))
}

fn unknown(call: &mut Call<'_>) -> Refusal {
    let name = call.arg(0);
    if is(name, "post") || is(name, "host:") {
        tracing::warn!(client = %call.session.client.address, "disconnecting a client that speaks HTTP");
        call.session.closing = true;
    }
    let mut args = String::new();
    for arg in call.args.from(1) {
        if args.len() >= 128 {
            break;
        }
        let room = 128 - args.len();
        args += &format!("'{}' ", String::from_utf8_lossy(&arg[..arg.len().min(room)]));
    }
    format!("ERR unknown command '{}', with args beginning with: {args}", shown(name)).into()
}

/// Runs a command outside EXEC, or says that it has to be run where it may wait.
fn run(call: &mut Call<'_>, command: &'static Command, sends_away: bool) -> Outcome {
    let shared = call.shared;
    if sends_away && may_wait(call, command) {
        call.session.leaves = Some(again(call));
        return Err(Refusal::OnItsWay);
    }
    let _moment = shared.config.reading.as_ref().filter(|_| reads_several(command, call.args)).map(Moment::hold);
    if command.flags & MAKES_HASH != 0 {
        command.keys_of(call.args).for_each(|key| shared.keyspace.expect_hash(key));
    }
    match command.run {
        Run::Plain(handler) => handler(call),
        Run::Exclusive(handler) => {
            let handler = |call: &mut Call<'_>, txn: &mut Txn<'_>| {
                still_here_to_write(call, command)?;
                handler(call, txn)
            };
            finish(call, || giving(shared.keyspace.kv.begin_exclusive(), command), handler)
        }
        Run::Fast(fast, _) if fast(call)? => Ok(()),
        Run::Data(handler) | Run::Fast(_, handler) => {
            let database = call.database()?;
            let keys: SmallVec<[(&Namespace, Key<'_>); 4]> =
                command.keys_of(call.args).map(|key| database.locate(key)).collect();
            let waited = call.session.waits;
            let handler = |call: &mut Call<'_>, txn: &mut Txn<'_>| {
                still_here_to_write(call, command)?;
                handler(call, txn)
            };
            let outcome = finish(call, || giving(shared.keyspace.kv.begin(&keys), command), handler);
            tell_of_rest(call, waited, &keys);
            outcome
        }
    }
}

/// The same of one that writes, which holds the locks of its keys.
fn still_here_to_write(call: &mut Call<'_>, command: &Command) -> Outcome {
    if command.flags & WRITE == 0 || call.shared.config.cluster.is_none() { Ok(()) } else { still_here(call, command) }
}

/// Whether a command may wait for the store, which is far away: all but those that have no data, and reads of one key,
/// which are begun.
fn may_wait(call: &Call<'_>, command: &Command) -> bool {
    let keyspace = &call.shared.keyspace;
    let is_open = |index| keyspace.database_if_open(index).is_some();
    match (command.name, command.run) {
        // A database that is not open yet is made.
        ("select", _) => call.int_arg(1).is_ok_and(|index| u8::try_from(index).is_ok_and(|index| !is_open(index))),
        ("shutdown", _) => !call.args.from(1).any(|word| is(word, "nosave")),
        (_, Run::Plain(_)) => command.flags & ASKS != 0,
        (_, Run::Fast(..)) => {
            let keys = command.keys_of(call.args).take(2).count();
            command.flags & WRITE != 0 || keys != 1 || !is_open(call.session.database)
        }
        (_, Run::Data(_) | Run::Exclusive(_)) => true,
    }
}

/// Whether it reads several times what its keys lead to: what is read once is of one moment by itself. What goes
/// through all keys may take long, and what is applied meanwhile would wait.
fn reads_several(command: &Command, args: Args<'_>) -> bool {
    command.flags & READ != 0 && (command.group == "hash" || command.keys_of(args).nth(1).is_some())
}

fn giving<'a>(mut txn: Txn<'a>, command: &Command) -> Txn<'a> {
    if command.flags & GIVES != 0 {
        txn.give_back();
    }
    txn
}

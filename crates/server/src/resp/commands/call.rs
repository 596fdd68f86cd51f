//! What a handler is given and what it returns: the call, its command, replies and refusals that many share.
//!
//! Invariant: nothing here names a handler.

use std::collections::HashSet;
use std::sync::Arc;

use esker_kv::{Barrier, Entry, Key, Namespace, Seen, Txn};
use esker_store::{Completion, Retry, Stall, WhenBusy};

use crate::resp::awaited::{Awaited, check_output};
use crate::resp::keyspace::{Database, HASH};
use crate::resp::number::parse_i64;
use crate::resp::parse::Args;
use crate::resp::queued::Queued;
use crate::resp::refusal::Refusal;
pub(crate) use crate::resp::refusal::WRONG_TYPE;
use crate::resp::reply::ReplyWriter;
use crate::resp::session::Session;
use crate::resp::shared::{Shared, Tally};

/// What a handler returns; its reply is written.
pub(crate) type Outcome = Result<(), Refusal>;

pub(crate) const SYNTAX: &str = "ERR syntax error";
pub(crate) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
pub(crate) const NO_SUCH_KEY: &str = "ERR no such key";

/// How a command is run.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// Without data.
    Plain(fn(&mut Call<'_>) -> Outcome),
    /// In a transaction that holds the stripes of its keys.
    Data(fn(&mut Call<'_>, &mut Txn<'_>) -> Outcome),
    /// In a transaction that keeps all other clients out.
    Exclusive(fn(&mut Call<'_>, &mut Txn<'_>) -> Outcome),
    /// Outside MULTI by the first, if that answers true; else as `Data`.
    Fast(fn(&mut Call<'_>) -> Result<bool, Refusal>, fn(&mut Call<'_>, &mut Txn<'_>) -> Outcome),
}

/// A command.
pub(crate) struct Command {
    /// Lower case.
    pub(crate) name: &'static str,
    /// Number of arguments with the name; negative: at least so many.
    pub(crate) arity: i16,
    pub(crate) flags: u16,
    /// First key, last key (negative: counted from the end), step; 0 for none.
    pub(crate) keys: (i16, i16, i16),
    pub(crate) group: &'static str,
    pub(crate) run: Run,
}

impl Command {
    pub(crate) fn accepts(&self, args: usize) -> bool {
        let args = i64::try_from(args).unwrap_or(i64::MAX);
        let arity = i64::from(self.arity);
        if arity >= 0 { args == arity } else { args >= -arity }
    }

    /// The keys among the arguments.
    pub(crate) fn keys_of<'a>(&self, args: Args<'a>) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (first, last, step) = self.keys;
        let last = if last < 0 { args.len() as i64 + i64::from(last) } else { i64::from(last) };
        let last = last.min(args.len() as i64 - 1);
        let last = if first == 0 { -1 } else { last };
        (i64::from(first)..=last).step_by(step.max(1) as usize).map(move |index| args.get(index as usize))
    }
}

/// One command under way.
pub(crate) struct Call<'c> {
    pub(crate) shared: &'c Shared,
    pub(crate) session: &'c mut Session,
    /// The place of its command among all; of one that is unknown, that of the first.
    pub(crate) index: usize,
    /// All commands there are.
    pub(crate) commands: &'static [Command],
    pub(crate) args: Args<'c>,
    pub(crate) reply: ReplyWriter<'c>,
    pub(crate) barrier: &'c mut Option<Barrier>,
    pub(crate) tally: &'c mut Tally,
}

impl<'c> Call<'c> {
    /// The session's database.
    pub(crate) fn database(&self) -> Result<&'c Database, Refusal> {
        Ok(self.shared.keyspace.database(self.session.database)?)
    }

    pub(crate) fn arg(&self, index: usize) -> &'c [u8] {
        self.args.get(index)
    }

    /// The name of the command at this place among all.
    pub(crate) fn command_name(&self, index: usize) -> &'static str {
        self.commands.get(index).map_or("NULL", |command| command.name)
    }

    /// An argument that is an integer.
    pub(crate) fn int_arg(&self, index: usize) -> Result<i64, Refusal> {
        parse_i64(self.arg(index)).ok_or_else(|| NOT_AN_INTEGER.into())
    }

    /// The reply waits for this, too.
    pub(crate) fn behind(&mut self, barrier: Option<Barrier>) {
        if barrier.is_some() {
            *self.barrier = Barrier::later(self.barrier.take(), barrier);
        }
    }

    pub(crate) fn wrong_args(&self, name: &str) -> Refusal {
        format!("ERR wrong number of arguments for '{name}' command").into()
    }

    /// The entry of a key, if it is a string.
    pub(crate) fn string(&self, txn: &mut Txn<'_>, key: &[u8]) -> Result<Option<Entry>, Refusal> {
        match self.shared.keyspace.get(txn, self.database()?, key)? {
            Some(entry) if entry.tag == HASH => Err(WRONG_TYPE.into()),
            entry => Ok(entry),
        }
    }

    /// As [`Call::string`], where a look at it is enough.
    pub(crate) fn look_at_string<T>(
        &self,
        txn: &mut Txn<'_>,
        key: &[u8],
        look: impl FnOnce(Seen<'_>) -> T,
    ) -> Result<Option<T>, Refusal> {
        let (namespace, key) = self.database()?.locate(key);
        let look = |seen: Seen<'_>| if seen.tag == HASH { Err(WRONG_TYPE) } else { Ok(look(seen)) };
        Ok(txn.look(namespace, key, look)?.transpose()?)
    }

    pub(crate) fn count_hit(&mut self, hit: bool) {
        if hit { self.tally.hits += 1 } else { self.tally.misses += 1 }
    }

    /// Refuses replies that no client could be sent.
    pub(crate) fn check_output(&self) -> Outcome {
        check_output(&self.reply, self.shared.config.output_bytes_max)
    }
}

/// Whether an argument is this word, in any case.
pub(crate) fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// An argument as text for messages: at most 128 bytes of it.
pub(crate) fn shown(arg: &[u8]) -> String {
    String::from_utf8_lossy(&arg[..arg.len().min(128)]).into_owned()
}

/// How often a command is begun anew because something that it reads is not in memory, beside once for each argument;
/// then it waits. Each time it finds in memory what was awaited before, unless that was so much that it is gone again.
const WAITS_MAX: usize = 64;

/// Whether a command is begun anew for what it reads, or waits: as it does where the store is elsewhere, which would
/// have nothing in memory the next time either.
pub(crate) fn may_wait_again(call: &Call<'_>) -> bool {
    !call.shared.keyspace.kv.is_afar() && (call.session.waits as usize) < WAITS_MAX + call.args.len()
}

/// Has the session wait for this, and then run its command again.
pub(crate) fn suspend(call: &mut Call<'_>, awaited: Option<Completion<()>>) {
    if let Some(awaited) = awaited {
        call.session.waits += 1;
        call.session.awaited = Some(Awaited::Value(awaited, again(call)));
    }
}

/// What the store does with what a command writes while it has no room: it does not wait on the loop.
pub(crate) fn when_busy(call: &Call<'_>) -> WhenBusy {
    WhenBusy::Refuse(call.session.room_waits)
}

/// Has the session wait until the store has room, and then run its command again.
pub(crate) fn suspend_for_room(call: &mut Call<'_>, stall: Stall) {
    call.session.room_waits.note(stall);
    let room = call.shared.keyspace.kv.room(stall);
    call.session.awaited = Some(Awaited::Value(room, again(call)));
}

/// The command as it is kept to be run again: what was kept of it before, if it was.
pub(crate) fn again(call: &mut Call<'_>) -> Arc<Queued> {
    call.session.again.take().unwrap_or_else(|| Arc::new(Queued::new(call.index, call.args)))
}

/// Runs a handler in a transaction and commits; again from the beginning where another process changed what it read,
/// and when there is room where there was none.
pub(crate) fn finish<'t>(
    call: &mut Call<'_>,
    begin: impl Fn() -> Txn<'t>,
    mut handler: impl FnMut(&mut Call<'_>, &mut Txn<'_>) -> Outcome,
) -> Outcome {
    let start = call.reply.position();
    let mut retry = Retry::default();
    loop {
        let mut txn = begin();
        if may_wait_again(call) {
            txn.do_not_wait();
        }
        txn.when_busy(when_busy(call));
        let before = *call.tally;
        let outcome = handler(call, &mut txn);
        if outcome.is_ok() {
            // Before what it does is done: a client that cannot be told what it took away would have lost it.
            call.check_output()?;
        }
        match outcome {
            Err(Refusal::Store(_)) => return outcome,
            Err(Refusal::OnItsWay) => {
                call.reply.rewind(start);
                *call.tally = before;
                suspend(call, txn.take_awaited());
                return outcome;
            }
            _ => {}
        }
        let (committed, barrier) = txn.commit(call.shared.durability()).into_parts();
        call.behind(barrier);
        match committed {
            Err(esker_store::Error::Busy { stall }) => {
                call.reply.rewind(start);
                *call.tally = before;
                suspend_for_room(call, stall);
                return Err(Refusal::OnItsWay);
            }
            Err(esker_store::Error::GuardFailed { .. }) => {
                retry.again(|| "the keys of a command".into())?;
                call.reply.rewind(start);
            }
            committed => {
                outcome?;
                return committed.map_err(Refusal::Store);
            }
        }
    }
}

/// A command tells the store of the keys that it will come to each time that it has waited so often.
const TOLD_EVERY: usize = 64;

/// Tells the store of keys that a command will come to which waits for one of them, if it has waited less often before
/// this run: about once for each of those ahead.
pub(crate) fn tell_of_rest(call: &Call<'_>, before: u32, keys: &[(&Namespace, Key<'_>)]) {
    let waited = call.session.waits as usize;
    if keys.len() < 2 || call.session.waits <= before || waited % TOLD_EVERY != 1 {
        return;
    }
    let mut rest: Vec<_> = keys.iter().skip(waited - 1).take(4 * TOLD_EVERY).copied().collect();
    let mut known = HashSet::new();
    rest.retain(|(namespace, key)| known.insert((std::ptr::from_ref(*namespace), *key)));
    call.shared.keyspace.kv.will_get(&rest);
}

/// Arguments that select a container's subcommand: its name, arity as in [`Command`], handler.
pub(crate) type Subcommand = (&'static str, i16, fn(&mut Call<'_>) -> Outcome);

/// Runs the subcommand that the second argument names.
pub(crate) fn subcommand(call: &mut Call<'_>, container: &str, list: &[Subcommand]) -> Outcome {
    let name = call.arg(1);
    let Some((name, arity, handler)) = list.iter().find(|(known, ..)| is(name, known)) else {
        let upper = container.to_ascii_uppercase();
        return Err(format!("ERR unknown subcommand '{}'. Try {upper} HELP.", shown(name)).into());
    };
    let args = call.args.len() as i64;
    let arity = i64::from(*arity);
    if if arity >= 0 { args != arity } else { args < -arity } {
        return Err(call.wrong_args(&format!("{container}|{name}")));
    }
    handler(call)
}

/// Replies with lines of help.
pub(crate) fn help(call: &mut Call<'_>, container: &str, lines: &[&str]) -> Outcome {
    call.reply.array(lines.len() + 3);
    call.reply.simple(&format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for line in lines {
        call.reply.simple(line);
    }
    call.reply.simple("HELP");
    call.reply.simple("    Prints this help.");
    Ok(())
}

/// Wakes the event loop of a client.
pub(crate) fn wake_loop_of(shared: &Shared, client: &Arc<crate::resp::clients::ClientEntry>) {
    if let Some(waker) = shared.wakers.get().and_then(|wakers| wakers.get(client.event_loop)) {
        // A loop that cannot be woken is one that has ended, and its clients with it.
        let _ = waker.wake();
    }
}

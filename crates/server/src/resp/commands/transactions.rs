//! MULTI, EXEC, DISCARD, WATCH.
//!
//! EXEC: exclusive transaction → nothing watched has changed → queued commands, each in the same one → commit
//!
//! Invariant: what EXEC does is one transaction of the store; if it cannot be committed, none of its commands counts
//! and its only reply is the error. (Redis would go on; there a command cannot fail for want of room in a log.)

use std::sync::atomic::Ordering;
use std::time::Instant;

use esker_kv::{KEY_BYTES_MAX, Txn};
use esker_store::{Stall, WhenBusy};

use crate::resp::commands::{
    Call, GIVES, MAKES_HASH, Outcome, Refusal, Run, WRITE, finish, may_wait_again, permit, redirect_queue, suspend,
    suspend_for_room, tell_of_rest,
};
use crate::resp::config::DATABASES;
use crate::resp::number::parse_i64;
use crate::resp::queued::{Queued, Ran};
use crate::resp::reply::ReplyWriter;
use crate::resp::session::{Queue, Watched};

pub(crate) fn multi(call: &mut Call<'_>) -> Outcome {
    if call.session.queue.is_some() {
        return Err("ERR MULTI calls can not be nested".into());
    }
    call.session.queue = Some(Queue::default());
    call.reply.ok();
    Ok(())
}

pub(crate) fn discard(call: &mut Call<'_>) -> Outcome {
    if call.session.queue.take().is_none() {
        return Err("ERR DISCARD without MULTI".into());
    }
    call.session.unwatch(&call.shared.keyspace);
    call.reply.ok();
    Ok(())
}

pub(crate) fn watch(call: &mut Call<'_>) -> Outcome {
    if call.session.queue.is_some() {
        return Err("ERR WATCH inside MULTI is not allowed".into());
    }
    let (keyspace, database) = (&call.shared.keyspace, call.database()?);
    for key in call.args.from(1) {
        if call.session.watched.iter().any(|known| known.database == database.index && known.key == key) {
            continue;
        }
        let (namespace, located) = database.locate(key);
        keyspace.expect_watcher(key);
        let mut txn = keyspace.kv.begin(&[(namespace, located)]);
        if may_wait_again(call) {
            txn.do_not_wait();
        }
        let entry = match txn.get(namespace, located) {
            Ok(entry) => entry,
            Err(error) => {
                keyspace.forget_watcher(key);
                let refusal = Refusal::from(error);
                if matches!(refusal, Refusal::OnItsWay) {
                    // Keys that are watched by now are passed over then.
                    suspend(call, txn.take_awaited());
                }
                return Err(refusal);
            }
        };
        keyspace.watches.add(database.index, key, &call.session.dirty);
        let seen = keyspace.watches.seen(entry.as_ref());
        let expires_ms = entry.and_then(|entry| entry.expires_ms);
        call.session.watched.push(Watched { database: database.index, key: key.to_vec(), expires_ms, seen });
    }
    call.reply.ok();
    Ok(())
}

pub(crate) fn unwatch(call: &mut Call<'_>) -> Outcome {
    call.session.unwatch(&call.shared.keyspace);
    call.reply.ok();
    Ok(())
}

pub(crate) fn exec(call: &mut Call<'_>) -> Outcome {
    let Some(queue) = call.session.queue.take() else { return Err("ERR EXEC without MULTI".into()) };
    let keyspace = &call.shared.keyspace;
    if queue.broken {
        call.session.unwatch(keyspace);
        return Err("EXECABORT Transaction discarded because of previous errors.".into());
    }
    // The slots may have gone to another node since the commands were queued.
    match redirect_queue(call, &queue.commands) {
        Ok(()) => {}
        Err(Refusal::OnItsWay) => {
            // It is run again, with all that it has.
            call.session.queue = Some(queue);
            return Err(Refusal::OnItsWay);
        }
        Err(moved) => {
            call.session.unwatch(keyspace);
            return Err(moved);
        }
    }
    let commands = call.commands;
    let flags = |queued: &Queued| commands[queued.command].flags;
    for queued in queue.commands.iter().filter(|queued| flags(queued) & MAKES_HASH != 0) {
        commands[queued.command].keys_of(queued.args()).for_each(|key| keyspace.expect_hash(key));
    }
    let database = call.session.database;
    let adds = |queued: &Queued| flags(queued) & WRITE != 0 && flags(queued) & GIVES == 0;
    let gives_back = !queue.commands.iter().any(adds);
    let writes = queue.commands.iter().any(|queued| flags(queued) & WRITE != 0);
    let (keys, all_told) = keys_of(call, &queue);
    let alone = !all_told || keys.is_empty();
    // No client writes what is watched between the look at it and the commit.
    let seen: Vec<(u8, Vec<u8>)> =
        call.session.watched.iter().map(|watched| (watched.database, watched.key.clone())).collect();
    let watched = seen.iter().map(|(index, key)| (&key[..], *index));
    // A command with a key that is too long is refused by itself.
    let keys = keys.into_iter().filter(|(key, _)| key.len() <= KEY_BYTES_MAX);
    let databases = keys.chain(watched).map(|(key, index)| Ok((keyspace.database(index)?, key)));
    let opened: Vec<_> = match databases.collect::<Result<_, Refusal>>() {
        Ok(opened) => opened,
        Err(refusal) => {
            call.session.unwatch(keyspace);
            return Err(refusal);
        }
    };
    let located: Vec<_> = opened.iter().map(|(database, key)| database.locate(key)).collect();
    let begin = || {
        let mut txn = if alone { keyspace.kv.begin_exclusive() } else { keyspace.kv.begin(&located) };
        if gives_back {
            txn.give_back();
        }
        txn.run_once();
        txn
    };
    let watching = !call.session.watched.is_empty();
    // What commands do beside the transaction they must not do twice.
    let acts = |queued: &Queued| {
        let command = &commands[queued.command];
        matches!(command.run, Run::Plain(_)) && !HARMLESS.contains(&command.name)
    };
    let once = queue.commands.iter().any(acts);
    let (mut tried, mut acted) = (false, false);
    // Of each command of the last try: how long it took, whether it failed, and the database after it.
    let mut notes = Vec::new();
    let waited = call.session.waits;
    let outcome = finish(call, begin, |call, txn| {
        call.session.database = database;
        notes.clear();
        redirect_queue(call, &queue.commands)?;
        if std::mem::replace(&mut tried, true) && watching {
            // Another process changed a key meanwhile: perhaps one that is watched.
            call.reply.null_array();
            return Ok(());
        }
        // It may be over before anything is read.
        let is_over = |call: &Call<'_>, now_ms| {
            let mut watched = call.session.watched.iter();
            call.session.dirty.load(Ordering::SeqCst)
                || watched.any(|watched| watched.expires_ms.is_some_and(|at| at <= now_ms))
        };
        if is_over(call, txn.now_ms()) {
            call.reply.null_array();
            return Ok(());
        }
        if once || watching {
            // All is read before anything is done: what is done beside the transaction is not done again, and what is
            // watched is guarded.
            let first_watched = located.len() - seen.len();
            for (index, (namespace, key)) in located.iter().enumerate() {
                let entry = txn.get(namespace, *key)?;
                // Another process may have changed it, of which no watcher here is told.
                let watched = index.checked_sub(first_watched).and_then(|index| call.session.watched.get(index));
                if watched.is_some_and(|watched| watched.seen != keyspace.watches.seen(entry.as_ref())) {
                    call.reply.null_array();
                    return Ok(());
                }
            }
        }
        if is_over(call, txn.now_ms()) {
            call.reply.null_array();
            return Ok(());
        }
        if once {
            let waits = call.session.room_waits;
            if writes && let Some(stall) = keyspace.kv.stall(waits) {
                suspend_for_room(call, stall);
                return Err(Refusal::OnItsWay);
            }
            acted = true;
            txn.do_wait();
            txn.when_busy(WhenBusy::Refuse(waits.told_if_full()));
        }
        call.reply.array(queue.commands.len());
        notes.reserve_exact(queue.commands.len());
        let mut began = Instant::now();
        let ran = queue.commands.iter().try_for_each(|queued| {
            let failed = run_queued(call, txn, queued)?;
            let ended = Instant::now();
            notes.push((ended - began, failed, call.session.database));
            began = ended;
            Ok(())
        });
        // Its own commands have told it so: no other client changes what it watches meanwhile.
        call.session.dirty.store(false, Ordering::SeqCst);
        ran
    });
    let outcome = match outcome {
        // Others took the room that there was before it acted, or the log came to what it keeps back.
        Err(Refusal::OnItsWay) if acted => {
            call.session.awaited = None;
            Err(esker_store::Error::Busy { stall: Stall::Backlog }.into())
        }
        outcome => outcome,
    };
    tell_of_rest(call, waited, &located);
    if matches!(outcome, Err(Refusal::OnItsWay)) {
        // It is run again, with all that it has.
        call.session.database = database;
        call.session.queue = Some(queue);
        return outcome;
    }
    call.session.unwatch(keyspace);
    if outcome.is_err() {
        call.session.database = database;
    } else {
        let ran = queue.commands.into_iter().zip(notes);
        call.session.ran =
            ran.map(|(queued, (took, failed, database))| Ran { queued, took, failed, database }).collect();
    }
    outcome
}

/// Commands without data that may be run again.
const HARMLESS: &[&str] = &["ping", "echo", "select", "time", "command", "lastsave", "role", "info", "dbsize"];

/// The keys that the commands of a transaction name, and whether that is all they touch; if not, it keeps all other
/// clients out.
fn keys_of<'q>(call: &Call<'_>, queue: &'q Queue) -> (Vec<(&'q [u8], u8)>, bool) {
    let mut database = call.session.database;
    let (mut keys, mut all_told) = (Vec::new(), true);
    for queued in &queue.commands {
        let command = &call.commands[queued.command];
        match command.run {
            Run::Data(_) | Run::Fast(..) | Run::Exclusive(_) if command.keys.0 > 0 => {
                all_told &= !matches!(command.run, Run::Exclusive(_));
                keys.extend(command.keys_of(queued.args()).map(|key| (key, database)));
            }
            // What it selects counts for those behind it.
            Run::Plain(_) if command.name == "select" => {
                let allowed = call.session.rights.as_ref();
                let refused = allowed.is_some_and(|rights| {
                    rights.check(queued.command, queued.args(), command.keys_of(queued.args())).is_err()
                });
                let index = parse_i64(queued.args().get(1)).and_then(|index| u8::try_from(index).ok());
                match index.filter(|index| !refused && usize::from(*index) < DATABASES) {
                    Some(index) => database = index,
                    // It is refused, and what is behind it is for the database as before.
                    None => all_told = false,
                }
            }
            Run::Plain(_) if command.keys.0 == 0 && command.group == "connection" => {}
            _ => all_told = false,
        }
    }
    (keys, all_told)
}

/// Ends MULTI because EXEC itself was refused.
pub(crate) fn abort(call: &mut Call<'_>, refusal: &Refusal) -> Refusal {
    call.session.queue = None;
    call.session.unwatch(&call.shared.keyspace);
    let line = refusal.line();
    format!("EXECABORT Transaction discarded because of: {}", line.strip_prefix("ERR ").unwrap_or(&line)).into()
}

/// Runs one queued command and returns whether it failed: its refusal is its reply, an error of the store ends EXEC.
fn run_queued(call: &mut Call<'_>, txn: &mut Txn<'_>, queued: &Queued) -> Result<bool, Refusal> {
    let resp3 = call.session.resp3;
    let mut barrier = None;
    let command = &call.commands[queued.command];
    let mut inner = Call {
        shared: call.shared,
        session: &mut *call.session,
        index: queued.command,
        commands: call.commands,
        args: queued.args(),
        reply: ReplyWriter::new(call.reply.buffer(), resp3),
        barrier: &mut barrier,
        tally: &mut *call.tally,
    };
    let start = inner.reply.position();
    let too_long = command.keys_of(inner.args).find(|key| key.len() > KEY_BYTES_MAX);
    let permitted = permit(&inner, queued.command, command, inner.args, true);
    let outcome = match command.run {
        _ if let Err(refusal) = permitted => Err(refusal),
        _ if let Some(key) = too_long => {
            Err(format!("ERR key of {} bytes exceeds esker_kv::KEY_BYTES_MAX = {KEY_BYTES_MAX}", key.len()).into())
        }
        Run::Plain(_) if command.name == "monitor" => Err("ERR MONITOR isn't allowed for DENY BLOCKING client".into()),
        Run::Plain(handler) => handler(&mut inner),
        Run::Data(handler) | Run::Exclusive(handler) | Run::Fast(_, handler) => handler(&mut inner, txn),
    };
    if let Err(Refusal::Text(text)) = &outcome {
        inner.reply.rewind(start);
        inner.reply.error(text.as_bytes());
    }
    call.behind(barrier);
    match outcome {
        Err(refusal @ (Refusal::Store(_) | Refusal::OnItsWay)) => Err(refusal),
        outcome => call.check_output().map(|()| outcome.is_err()),
    }
}

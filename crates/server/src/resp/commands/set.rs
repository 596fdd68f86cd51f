//! SET and its older spellings.

use esker_kv::Txn;

use crate::resp::commands::expiry::{ExpiryOption, expiry_option};
use crate::resp::commands::{Call, Outcome, Refusal, SYNTAX, WRONG_TYPE, is, suspend_for_room, when_busy};
use crate::resp::keyspace::HASH;

/// Options of SET.
#[derive(Default)]
struct Options {
    only_new: bool,
    only_old: bool,
    get: bool,
    keep_ttl: bool,
    expires_ms: Option<u64>,
}

/// SET without options: one blind write, where the key cannot hold what has to go with it and no client watches it.
pub(crate) fn set_fast(call: &mut Call<'_>) -> Result<bool, Refusal> {
    if call.args.len() != 3 {
        return Ok(false);
    }
    let database = call.database()?;
    let (namespace, key) = database.locate(call.arg(1));
    let value = call.arg(2);
    let when_busy = when_busy(call);
    let put = || namespace.put_when(key, value, when_busy);
    let written = call.shared.keyspace.blindly((database.index, call.arg(1)), call.session.slots_seen, put);
    let Some(written) = written else { return Ok(false) };
    let (written, barrier) = written.into_parts();
    call.behind(barrier);
    if let Err(esker_store::Error::Busy { stall }) = written {
        suspend_for_room(call, stall);
        return Err(Refusal::OnItsWay);
    }
    written?;
    call.reply.ok();
    Ok(true)
}

pub(crate) fn set(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let mut options = Options::default();
    // Where the expiry stands: its value is looked at only once all options are known to be well formed.
    let mut timed = None;
    let mut at = 3;
    while at < call.args.len() {
        let word = call.arg(at);
        if is(word, "nx") && !options.only_old {
            options.only_new = true;
        } else if is(word, "xx") && !options.only_new {
            options.only_old = true;
        } else if is(word, "get") {
            options.get = true;
        } else if is(word, "keepttl") && timed.is_none() {
            options.keep_ttl = true;
        } else if let Some(option) = ExpiryOption::of(word)
            && !options.keep_ttl
            && timed.is_none()
            && at + 1 < call.args.len()
        {
            at += 1;
            timed = Some((option, call.arg(at)));
        } else {
            return Err(SYNTAX.into());
        }
        at += 1;
    }
    if let Some((option, value)) = timed {
        options.expires_ms = Some(expiry_option(option, value, txn.now_ms(), "set")?);
    }
    put(call, txn, call.arg(1), call.arg(2), &options)
}

fn put(call: &mut Call<'_>, txn: &mut Txn<'_>, key: &[u8], value: &[u8], options: &Options) -> Outcome {
    let (keyspace, database) = (&call.shared.keyspace, call.database()?);
    let looks = options.only_new || options.only_old || options.get || options.keep_ttl;
    let old = if looks { keyspace.get(txn, database, key)? } else { None };
    if options.get && old.as_ref().is_some_and(|old| old.tag == HASH) {
        return Err(WRONG_TYPE.into());
    }
    if options.only_new && old.is_some() || options.only_old && old.is_none() {
        call.reply.maybe(old.filter(|_| options.get).as_ref().map(|old| &old.value[..]));
        return Ok(());
    }
    let kept = old.as_ref().and_then(|old| old.expires_ms).filter(|_| options.keep_ttl);
    match options.expires_ms {
        Some(at) if at <= txn.now_ms() => {
            keyspace.remove(txn, database, key)?;
        }
        at => keyspace.put_string(txn, database, key, value, at.or(kept))?,
    }
    if options.get {
        call.reply.maybe(old.as_ref().map(|old| &old.value[..]));
    } else {
        call.reply.ok();
    }
    Ok(())
}

pub(crate) fn setnx(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let (keyspace, database, key) = (&call.shared.keyspace, call.database()?, call.arg(1));
    if keyspace.get(txn, database, key)?.is_some() {
        call.reply.int(0);
        return Ok(());
    }
    keyspace.put_string(txn, database, key, call.arg(2), None)?;
    call.reply.int(1);
    Ok(())
}

fn set_for(call: &mut Call<'_>, txn: &mut Txn<'_>, option: ExpiryOption, name: &str) -> Outcome {
    let expires_ms = Some(expiry_option(option, call.arg(2), txn.now_ms(), name)?);
    put(call, txn, call.arg(1), call.arg(3), &Options { expires_ms, ..Options::default() })
}

pub(crate) fn setex(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    set_for(call, txn, ExpiryOption::Seconds, "setex")
}

pub(crate) fn psetex(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    set_for(call, txn, ExpiryOption::Milliseconds, "psetex")
}

pub(crate) fn getset(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    put(call, txn, call.arg(1), call.arg(2), &Options { get: true, ..Options::default() })
}

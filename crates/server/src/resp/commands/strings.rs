//! Strings: GET and its kin, parts of strings, several at once. SET has its own file, numbers too.

use esker_kv::{Key, Namespace, Seen, Txn, VALUE_BYTES_MAX};
use smallvec::SmallVec;

use crate::resp::awaited::{Awaited, reply_one, reply_several};
use crate::resp::commands::expiry::{ExpiryOption, expiry_option};
use crate::resp::commands::{Call, Outcome, Refusal, SYNTAX, is, reads_then_looks};
use crate::resp::keyspace::HASH;
use crate::resp::number::parse_i64;

const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";

/// GET without a transaction: one read.
pub(crate) fn get_fast(call: &mut Call<'_>) -> Result<bool, Refusal> {
    let (namespace, key) = call.database()?.locate(call.arg(1));
    let entry = namespace.entry(key);
    if !entry.is_here() {
        if reads_then_looks(call) {
            return Ok(false);
        }
        call.session.awaited = Some(Awaited::One(entry, call.shared.keyspace.gate.reading()));
        return Ok(true);
    }
    let (entry, barrier) = entry.into_parts();
    call.behind(barrier);
    reply_one(entry?, &mut call.reply, call.tally, call.shared.config.output_bytes_max)?;
    Ok(true)
}

pub(crate) fn get(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let entry = call.string(txn, call.arg(1))?;
    call.count_hit(entry.is_some());
    call.reply.maybe(entry.as_ref().map(|entry| &entry.value[..]));
    Ok(())
}

pub(crate) fn getdel(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    get(call, txn)?;
    call.shared.keyspace.remove(txn, call.database()?, call.arg(1))?;
    Ok(())
}

pub(crate) fn getex(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let key = call.arg(1);
    let now_ms = txn.now_ms();
    let change = match call.args.len() {
        2 => None,
        3 if is(call.arg(2), "persist") => Some(None),
        4 if let Some(option) = ExpiryOption::of(call.arg(2)) => {
            Some(Some(expiry_option(option, call.arg(3), now_ms, "getex")?))
        }
        _ => return Err(SYNTAX.into()),
    };
    let Some(entry) = call.string(txn, key)? else {
        call.count_hit(false);
        call.reply.null();
        return Ok(());
    };
    call.count_hit(true);
    call.reply.bulk(&entry.value);
    let (keyspace, database) = (&call.shared.keyspace, call.database()?);
    match change {
        None => {}
        Some(Some(at)) if at <= now_ms => {
            keyspace.remove(txn, database, key)?;
        }
        Some(expires_ms) if expires_ms != entry.expires_ms => {
            keyspace.set_expiry(txn, database, key, entry, expires_ms)?;
        }
        Some(_) => {}
    }
    Ok(())
}

pub(crate) fn strlen(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let entry = call.string(txn, call.arg(1))?;
    call.count_hit(entry.is_some());
    call.reply.int(entry.map_or(0, |entry| entry.value.len() as i64));
    Ok(())
}

pub(crate) fn append(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let (database, key, more) = (call.database()?, call.arg(1), call.arg(2));
    let joined = |old: Seen<'_>| {
        let fits = old.value.len() + more.len() <= VALUE_BYTES_MAX;
        fits.then(|| ([old.value, more].concat(), old.expires_ms))
    };
    let old = call.look_at_string(txn, key, joined)?;
    let (value, expires_ms) = match &old {
        Some(joined) => joined.as_ref().map(|(value, expires_ms)| (&value[..], *expires_ms)).ok_or(TOO_LONG)?,
        None if more.len() > VALUE_BYTES_MAX => return Err(TOO_LONG.into()),
        None => (more, None),
    };
    call.reply.int(value.len() as i64);
    call.shared.keyspace.rewrite_string(txn, database, key, value, expires_ms);
    Ok(())
}

pub(crate) fn getrange(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let (start, end) = (call.int_arg(2)?, call.int_arg(3)?);
    let value = call.string(txn, call.arg(1))?.unwrap_or_default().value;
    let len = value.len() as i64;
    let place = |index: i64| if index < 0 { (len + index.max(-len - 1)).max(0) } else { index };
    let backwards = start < 0 && end < 0 && start > end;
    let (start, end) = (place(start), place(end).min(len - 1));
    if backwards || len == 0 || start > end {
        call.reply.bulk(b"");
    } else {
        call.reply.bulk(&value[start as usize..=end as usize]);
    }
    Ok(())
}

pub(crate) fn setrange(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let (key, patch) = (call.arg(1), call.arg(3));
    let offset = call.int_arg(2)?;
    if offset < 0 {
        return Err("ERR offset is out of range".into());
    }
    let old = call.string(txn, key)?.unwrap_or_default();
    if patch.is_empty() {
        call.reply.int(old.value.len() as i64);
        return Ok(());
    }
    let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(patch.len()));
    let end = end.filter(|end| *end <= VALUE_BYTES_MAX).ok_or(TOO_LONG)?;
    let mut value = old.value.to_vec();
    if value.len() < end {
        value.resize(end, 0);
    }
    value[end - patch.len()..end].copy_from_slice(patch);
    call.reply.int(value.len() as i64);
    let entry = esker_kv::Entry { value: value.into(), ..old };
    call.shared.keyspace.rewrite(txn, call.database()?, key, entry);
    Ok(())
}

/// MGET without a transaction: one read of all keys, where they are of one namespace.
pub(crate) fn mget_fast(call: &mut Call<'_>) -> Result<bool, Refusal> {
    let database = call.database()?;
    let mut keys = SmallVec::<[Key<'_>; 16]>::new();
    let mut of: Option<&Namespace> = None;
    for key in call.args.from(1) {
        let (namespace, key) = database.locate(key);
        if of.is_some_and(|of| !std::ptr::eq(of, namespace)) {
            return Ok(false);
        }
        of = Some(namespace);
        keys.push(key);
    }
    let Some(namespace) = of else { return Ok(false) };
    let entries = namespace.entries(&keys);
    if !entries.is_here() {
        if reads_then_looks(call) {
            return Ok(false);
        }
        call.session.awaited = Some(Awaited::Several(entries, call.shared.keyspace.gate.reading()));
        return Ok(true);
    }
    let (entries, barrier) = entries.into_parts();
    call.behind(barrier);
    reply_several(entries?, &mut call.reply, call.tally, call.shared.config.output_bytes_max)?;
    Ok(true)
}

pub(crate) fn mget(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let database = call.database()?;
    call.reply.array(call.args.len() - 1);
    for key in call.args.from(1) {
        let entry = call.shared.keyspace.get(txn, database, key)?.filter(|entry| entry.tag != HASH);
        call.count_hit(entry.is_some());
        call.reply.maybe(entry.as_ref().map(|entry| &entry.value[..]));
        call.check_output()?;
    }
    Ok(())
}

fn put_pairs(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let database = call.database()?;
    for at in (1..call.args.len()).step_by(2) {
        call.shared.keyspace.put_string(txn, database, call.arg(at), call.arg(at + 1), None)?;
    }
    Ok(())
}

pub(crate) fn mset(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    if call.args.len().is_multiple_of(2) {
        return Err(call.wrong_args("mset"));
    }
    put_pairs(call, txn)?;
    call.reply.ok();
    Ok(())
}

pub(crate) fn msetnx(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    if call.args.len().is_multiple_of(2) {
        return Err(call.wrong_args("msetnx"));
    }
    let database = call.database()?;
    for at in (1..call.args.len()).step_by(2) {
        if call.shared.keyspace.get(txn, database, call.arg(at))?.is_some() {
            call.reply.int(0);
            return Ok(());
        }
    }
    put_pairs(call, txn)?;
    call.reply.int(1);
    Ok(())
}

/// OBJECT: what clients look at when they are curious.
pub(crate) fn object(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let what = call.arg(1);
    if is(what, "help") && call.args.len() == 2 {
        return crate::resp::commands::help(
            call,
            "OBJECT",
            &["ENCODING <key>", "    Return the kind of internal representation used."],
        );
    }
    if !["encoding", "refcount", "idletime", "freq", "help"].iter().any(|known| is(what, known)) {
        let what = crate::resp::commands::shown(what);
        return Err(format!("ERR unknown subcommand '{what}'. Try OBJECT HELP.").into());
    }
    if call.args.len() != 3 || is(what, "help") {
        let what = String::from_utf8_lossy(what).to_ascii_lowercase();
        return Err(call.wrong_args(&format!("object|{what}")));
    }
    let database = call.database()?;
    let Some(entry) = call.shared.keyspace.get(txn, database, call.arg(2))? else {
        call.reply.null();
        return Ok(());
    };
    if is(what, "refcount") {
        call.reply.int(1);
    } else if is(what, "idletime") {
        call.reply.int(0);
    } else if is(what, "freq") {
        return Err(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
                    switching between policies at runtime LRU and LFU data will take some time to adjust."
                .into(),
        );
    } else if entry.tag == HASH {
        let small = crate::resp::keyspace::Head::decode(&entry.value)?.fields <= 128;
        call.reply.bulk(if small { b"listpack" } else { b"hashtable" });
    } else if parse_i64(&entry.value).is_some() {
        call.reply.bulk(b"int");
    } else {
        call.reply.bulk(if entry.value.len() <= 44 { b"embstr" } else { b"raw" });
    }
    Ok(())
}

//! Keys of any type: DEL, EXISTS, TYPE, RENAME, COPY and the like.

use bytes::Bytes;
use esker_kv::{Entry, Scan, Txn};

use crate::resp::commands::{Call, NO_SUCH_KEY, Outcome, Refusal, SYNTAX, is};
use crate::resp::config::DATABASES;
use crate::resp::keyspace::{Database, HASH, Head};
use crate::resp::number::parse_i64;

pub(crate) fn del(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let database = call.database()?;
    let mut removed = 0;
    for key in call.args.from(1) {
        removed += i64::from(call.shared.keyspace.remove(txn, database, key)?);
    }
    call.reply.int(removed);
    Ok(())
}

pub(crate) fn exists(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let database = call.database()?;
    let mut found = 0;
    for key in call.args.from(1) {
        let there = call.shared.keyspace.get(txn, database, key)?.is_some();
        call.count_hit(there);
        found += i64::from(there);
    }
    call.reply.int(found);
    Ok(())
}

pub(crate) fn type_of(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let entry = call.shared.keyspace.get(txn, call.database()?, call.arg(1))?;
    call.reply.simple(entry.as_ref().map_or("none", type_name));
    Ok(())
}

/// The type as TYPE and SCAN name it.
pub(crate) fn type_name(entry: &Entry) -> &'static str {
    if entry.tag == HASH { "hash" } else { "string" }
}

/// Moves a key; false if `only_new` and the new name is taken.
fn rename_key(call: &mut Call<'_>, txn: &mut Txn<'_>, only_new: bool) -> Result<bool, Refusal> {
    let (keyspace, database) = (&call.shared.keyspace, call.database()?);
    let (from, to) = (call.arg(1), call.arg(2));
    let entry = keyspace.get(txn, database, from)?.ok_or(NO_SUCH_KEY)?;
    if from == to {
        return Ok(!only_new);
    }
    if only_new && keyspace.get(txn, database, to)?.is_some() {
        return Ok(false);
    }
    keyspace.remove(txn, database, to)?;
    if entry.tag == HASH && !database.are_together(from, to) {
        // Its fields go to where its new name is.
        let head = Head::decode(&entry.value)?;
        let moved = Head { id: keyspace.new_id(database, to)?, ..head };
        for (name, field) in fields(txn, database, head)? {
            txn.put(&database.fields, &moved.field_key(&name)[..], field);
        }
        keyspace.remove(txn, database, from)?;
        keyspace.place(txn, database, to, moved.entry(entry.expires_ms))?;
        return Ok(true);
    }
    keyspace.take(txn, database, from, &entry)?;
    keyspace.place(txn, database, to, entry)?;
    Ok(true)
}

pub(crate) fn rename(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    rename_key(call, txn, false)?;
    call.reply.ok();
    Ok(())
}

pub(crate) fn renamenx(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let renamed = rename_key(call, txn, true)?;
    call.reply.int(i64::from(renamed));
    Ok(())
}

fn other_database<'c>(call: &Call<'c>, number: &[u8]) -> Result<&'c Database, Refusal> {
    let index = parse_i64(number).ok_or("ERR value is not an integer or out of range")?;
    let index = u8::try_from(index).ok().filter(|index| usize::from(*index) < DATABASES);
    Ok(call.shared.keyspace.database(index.ok_or("ERR DB index is out of range")?)?)
}

/// COPY; runs alone, since its second key may be in another database.
pub(crate) fn copy(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let (keyspace, source) = (&call.shared.keyspace, call.database()?);
    let (mut target, mut replace, mut at) = (source, false, 3);
    while at < call.args.len() {
        if is(call.arg(at), "replace") {
            replace = true;
        } else if is(call.arg(at), "db") && at + 1 < call.args.len() {
            target = other_database(call, call.arg(at + 1))?;
            at += 1;
        } else {
            return Err(SYNTAX.into());
        }
        at += 1;
    }
    let (from, to) = (call.arg(1), call.arg(2));
    if from == to && source.index == target.index {
        return Err("ERR source and destination objects are the same".into());
    }
    let entry = keyspace.get(txn, source, from)?;
    let taken = keyspace.get(txn, target, to)?.is_some();
    let Some(entry) = entry.filter(|_| replace || !taken) else {
        call.reply.int(0);
        return Ok(());
    };
    keyspace.remove(txn, target, to)?;
    let entry = if entry.tag == HASH {
        let head = Head::decode(&entry.value)?;
        let copy = Head { id: keyspace.new_id(target, to)?, ..head };
        for (key, field) in fields(txn, source, head)? {
            txn.put(&target.fields, &copy.field_key(&key)[..], field);
        }
        copy.entry(entry.expires_ms)
    } else {
        entry
    };
    keyspace.place(txn, target, to, entry)?;
    call.reply.int(1);
    Ok(())
}

/// MOVE; runs alone for the same reason.
pub(crate) fn move_key(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let (keyspace, source) = (&call.shared.keyspace, call.database()?);
    let (key, target) = (call.arg(1), other_database(call, call.arg(2))?);
    if source.index == target.index {
        return Err("ERR source and destination objects are the same".into());
    }
    let entry = keyspace.get(txn, source, key)?;
    let taken = keyspace.get(txn, target, key)?.is_some();
    let Some(mut entry) = entry.filter(|_| !taken) else {
        call.reply.int(0);
        return Ok(());
    };
    if entry.tag == HASH {
        let head = Head::decode(&entry.value)?;
        let moved = Head { id: keyspace.new_id(target, key)?, ..head };
        for (name, field) in fields(txn, source, head)? {
            txn.put(&target.fields, &moved.field_key(&name)[..], field);
        }
        entry = moved.entry(entry.expires_ms);
    }
    keyspace.remove(txn, source, key)?;
    keyspace.place(txn, target, key, entry)?;
    call.reply.int(1);
    Ok(())
}

/// All fields of a hash with their names.
pub(crate) fn fields(txn: &mut Txn<'_>, database: &Database, head: Head) -> Result<Vec<(Bytes, Entry)>, Refusal> {
    let found = txn.scan(&database.fields, &Scan::prefix(Bytes::copy_from_slice(&head.id.to_be_bytes())))?;
    let named = found.into_iter().filter_map(|(key, entry)| Some((key.as_bytes()?.slice(8..), entry)));
    Ok(named.collect())
}

pub(crate) fn randomkey(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    use std::hash::{BuildHasher, Hasher};
    let database = call.database()?;
    // Randomness for people, not for secrets: the hash map's own seeds will do.
    let random = std::hash::RandomState::new().build_hasher().finish();
    let mut found = None;
    let spaces: Vec<_> = database.namespaces().collect();
    let turn = if spaces.len() > 1 && random % 2 == 1 { 1 } else { 0 };
    for at in 0..spaces.len() {
        let namespace = spaces[(at + turn) % spaces.len()];
        let edge = |txn: &mut Txn<'_>, reverse| -> Result<_, Refusal> {
            let scan = Scan { reverse, limit: 1, keys_only: true, ..Scan::default() };
            Ok(txn.scan(namespace, &scan)?.pop().map(|(key, _)| key))
        };
        if namespace.partition(b"").is_some() {
            // The last key is dear to find: one of the first of some partition.
            let (some, barrier) = namespace.some_key(random).into_parts();
            call.behind(barrier);
            found = some?;
            break;
        }
        let (Some(first), Some(last)) = (edge(txn, false)?, edge(txn, true)?) else { continue };
        let start = between(&first, &last, random);
        let after = txn.scan(namespace, &Scan { start: Some(start), limit: 1, keys_only: true, ..Scan::default() })?;
        found = Some(after.into_iter().next().map_or(first, |(key, _)| key));
        break;
    }
    call.reply.maybe(found.as_ref().map(crate::resp::keyspace::key_text).as_deref());
    Ok(())
}

/// A key between two others, which they need not hold: their common start and a random number behind it.
fn between(first: &esker_kv::OwnedKey, last: &esker_kv::OwnedKey, random: u64) -> esker_kv::OwnedKey {
    use esker_kv::OwnedKey;
    let scaled = |low: u64, high: u64| {
        let span = u128::from(high - low) + 1;
        low + ((u128::from(random) * span) >> 64) as u64
    };
    match (first, last) {
        (OwnedKey::Int(low), OwnedKey::Int(high)) => OwnedKey::Int(scaled(*low, *high)),
        (OwnedKey::Bytes(low), OwnedKey::Bytes(high)) => {
            let common = low.iter().zip(high).take_while(|(a, b)| a == b).count();
            let number = |key: &Bytes| {
                let mut word = [0; 8];
                let rest = &key[common..];
                word[..rest.len().min(8)].copy_from_slice(&rest[..rest.len().min(8)]);
                u64::from_be_bytes(word)
            };
            let mut key = low[..common].to_vec();
            key.extend_from_slice(&scaled(number(low), number(high).max(number(low))).to_be_bytes());
            OwnedKey::Bytes(key.into())
        }
        _ => first.clone(),
    }
}

pub(crate) fn dbsize(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let len = call.database()?.len(txn)?;
    call.reply.int(i64::try_from(len).unwrap_or(i64::MAX));
    Ok(())
}

fn check_flush_mode(call: &Call<'_>) -> Outcome {
    let known = call.args.len() == 1 || call.args.len() == 2 && (is(call.arg(1), "async") || is(call.arg(1), "sync"));
    if known { Ok(()) } else { Err(SYNTAX.into()) }
}

pub(crate) fn flushdb(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    check_flush_mode(call)?;
    call.shared.keyspace.clear(txn, call.database()?)?;
    call.reply.ok();
    Ok(())
}

pub(crate) fn flushall(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    check_flush_mode(call)?;
    for database in call.shared.keyspace.open_databases() {
        call.shared.keyspace.clear(txn, database)?;
    }
    call.reply.ok();
    Ok(())
}

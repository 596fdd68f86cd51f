//! Hashes: a head under the key, an entry per field.
//!
//! Invariant: the number of fields in the head is the number of entries under its id; both change in one transaction.

use bytes::Bytes;
use esker_kv::{Entry, Key, OwnedKey, Scan, Seen, Txn};

use crate::resp::commands::{Call, NOT_AN_INTEGER, Outcome, Refusal, SYNTAX, WRONG_TYPE, is};
use crate::resp::cursors::Resume;
use crate::resp::keyspace::{Database, HASH, Head};
use crate::resp::number::parse_i64;

/// Fields fetched at once, and bytes of them above which no further one is.
const PAGE_FIELDS: usize = 1_024;
const PAGE_BYTES: usize = 8 << 20;

/// The head of a hash and when it expires; `None` if there is no key.
pub(crate) fn load(call: &Call<'_>, txn: &mut Txn<'_>, key: &[u8]) -> Result<Option<(Head, Option<u64>)>, Refusal> {
    let (namespace, key) = call.database()?.locate(key);
    let head = |seen: Seen<'_>| match seen.tag {
        HASH => Ok((Head::decode(seen.value)?, seen.expires_ms)),
        _ => Err(Refusal::from(WRONG_TYPE)),
    };
    txn.look(namespace, key, head)?.transpose()
}

/// The head, or that of a hash to be made.
pub(crate) fn load_or_new(call: &Call<'_>, txn: &mut Txn<'_>, key: &[u8]) -> Result<(Head, Option<u64>), Refusal> {
    match load(call, txn, key)? {
        Some(found) => Ok(found),
        None => Ok((Head { id: call.shared.keyspace.new_id(call.database()?, key)?, fields: 0 }, None)),
    }
}

/// The value of a field.
pub(crate) fn field(txn: &mut Txn<'_>, database: &Database, head: Head, name: &[u8]) -> Result<Option<Bytes>, Refusal> {
    Ok(txn.get(&database.fields, &head.field_key(name)[..])?.map(|entry| entry.value))
}

/// Writes a field, and the head if the hash grew.
pub(crate) fn put_field(
    call: &Call<'_>,
    txn: &mut Txn<'_>,
    key: &[u8],
    (head, expires_ms): (&mut Head, Option<u64>),
    name: &[u8],
    value: Bytes,
    is_new: bool,
) -> Outcome {
    let database = call.database()?;
    txn.put(&database.fields, &head.field_key(name)[..], Entry::new(value));
    head.fields += u64::from(is_new);
    if is_new {
        call.shared.keyspace.rewrite(txn, database, key, head.entry(expires_ms));
    } else {
        call.shared.keyspace.watches.touch(database.index, key);
    }
    Ok(())
}

/// The fields of a hash, page by page.
pub(crate) struct Fields<'d> {
    database: &'d Database,
    scan: Scan,
    done: bool,
}

impl<'d> Fields<'d> {
    /// Of all fields, or from a place among their names on.
    pub(crate) fn new(database: &'d Database, head: Head, place: Option<Resume>) -> Self {
        let prefix = Some(Bytes::copy_from_slice(&head.id.to_be_bytes()));
        let key = |name: OwnedKey| name.as_bytes().map(|name| OwnedKey::from(&head.field_key(name)[..]));
        let (after, start) = match place {
            None => (None, None),
            Some(Resume::After(name)) => (key(name), None),
            Some(Resume::From(name)) => (None, key(name)),
        };
        Self { database, scan: Scan { prefix, after, start, ..Scan::default() }, done: false }
    }

    /// Of the names alone: values are left empty.
    pub(crate) fn names(database: &'d Database, head: Head) -> Self {
        let all = Self::new(database, head, None);
        Self { scan: Scan { keys_only: true, ..all.scan }, ..all }
    }

    /// The next fields, at most `limit`: names and values; `None` at the end.
    pub(crate) fn page(&mut self, txn: &mut Txn<'_>, limit: usize) -> Result<Option<Vec<(Bytes, Bytes)>>, Refusal> {
        if self.done {
            return Ok(None);
        }
        (self.scan.limit, self.scan.bytes_max) = (limit, PAGE_BYTES);
        let page = txn.scan(&self.database.fields, &self.scan)?;
        let bytes: usize =
            page.iter().map(|(key, entry)| key.as_bytes().map_or(0, Bytes::len) + entry.value.len()).sum();
        self.done = page.len() < limit && bytes < PAGE_BYTES;
        let Some((last, _)) = page.last() else { return Ok(None) };
        self.scan.after = Some(last.clone());
        let named = page.into_iter().filter_map(|(key, entry)| Some((key.as_bytes()?.slice(8..), entry.value)));
        Ok(Some(named.collect()))
    }
}

/// Reads the fields that these arguments name, all at once: what is not in memory is waited for together.
fn read_ahead(call: &Call<'_>, txn: &mut Txn<'_>, head: Head, at: impl ExactSizeIterator<Item = usize>) -> Outcome {
    if at.len() > 1 && head.fields > 0 {
        let keys: Vec<_> = at.map(|at| head.field_key(call.arg(at))).collect();
        let keys: Vec<Key<'_>> = keys.iter().map(|key| Key::Bytes(key)).collect();
        txn.get_many(&call.database()?.fields, &keys)?;
    }
    Ok(())
}

/// The same where only whether they are there is asked for.
fn look_ahead(call: &Call<'_>, txn: &mut Txn<'_>, head: Head, at: impl ExactSizeIterator<Item = usize>) -> Outcome {
    if at.len() > 1 && head.fields > 0 {
        let keys: Vec<_> = at.map(|at| head.field_key(call.arg(at))).collect();
        let keys: Vec<Key<'_>> = keys.iter().map(|key| Key::Bytes(key)).collect();
        txn.has_many(&call.database()?.fields, &keys)?;
    }
    Ok(())
}

/// Whether the field of this key is there; fields do not expire by themselves.
fn has(txn: &mut Txn<'_>, database: &Database, field_key: &[u8]) -> Result<bool, Refusal> {
    Ok(txn.has_many(&database.fields, &[Key::Bytes(field_key)])?[0])
}

fn set_pairs(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Result<i64, Refusal> {
    let (key, database) = (call.arg(1), call.database()?);
    let (mut head, expires_ms) = load_or_new(call, txn, key)?;
    let before = head.fields;
    look_ahead(call, txn, head, (2..call.args.len()).step_by(2))?;
    for at in (2..call.args.len()).step_by(2) {
        let field_key = head.field_key(call.arg(at));
        head.fields += u64::from(!has(txn, database, &field_key)?);
        txn.put_value(&database.fields, &field_key[..], call.arg(at + 1), None, 0);
    }
    if head.fields == before {
        call.shared.keyspace.watches.touch(database.index, key);
    } else {
        call.shared.keyspace.rewrite(txn, database, key, head.entry(expires_ms));
    }
    Ok((head.fields - before) as i64)
}

pub(crate) fn hset(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    if !call.args.len().is_multiple_of(2) {
        return Err(call.wrong_args("hset"));
    }
    let added = set_pairs(call, txn)?;
    call.reply.int(added);
    Ok(())
}

pub(crate) fn hmset(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    if !call.args.len().is_multiple_of(2) {
        return Err(call.wrong_args("hmset"));
    }
    set_pairs(call, txn)?;
    call.reply.ok();
    Ok(())
}

pub(crate) fn hsetnx(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let (key, name) = (call.arg(1), call.arg(2));
    let (mut head, expires_ms) = load_or_new(call, txn, key)?;
    if has(txn, call.database()?, &head.field_key(name))? {
        call.reply.int(0);
        return Ok(());
    }
    put_field(call, txn, key, (&mut head, expires_ms), name, Bytes::copy_from_slice(call.arg(3)), true)?;
    call.reply.int(1);
    Ok(())
}

/// The field that the second and third arguments name.
fn named_field(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Result<Option<Bytes>, Refusal> {
    let found = match load(call, txn, call.arg(1))? {
        Some((head, _)) => field(txn, call.database()?, head, call.arg(2))?,
        None => None,
    };
    call.count_hit(found.is_some());
    Ok(found)
}

pub(crate) fn hget(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let found = named_field(call, txn)?;
    call.reply.maybe(found.as_deref());
    Ok(())
}

pub(crate) fn hexists(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let found = named_field(call, txn)?;
    call.reply.int(i64::from(found.is_some()));
    Ok(())
}

pub(crate) fn hstrlen(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let found = named_field(call, txn)?;
    call.reply.int(found.map_or(0, |value| value.len() as i64));
    Ok(())
}

pub(crate) fn hmget(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let head = load(call, txn, call.arg(1))?.map(|(head, _)| head);
    let database = call.database()?;
    if let Some(head) = head {
        read_ahead(call, txn, head, 2..call.args.len())?;
    }
    call.reply.array(call.args.len() - 2);
    for name in call.args.from(2) {
        let found = match head {
            Some(head) => field(txn, database, head, name)?,
            None => None,
        };
        call.reply.maybe(found.as_deref());
        call.check_output()?;
    }
    Ok(())
}

pub(crate) fn hlen(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let found = load(call, txn, call.arg(1))?;
    call.reply.int(found.map_or(0, |(head, _)| head.fields as i64));
    Ok(())
}

pub(crate) fn hdel(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let key = call.arg(1);
    let Some((mut head, expires_ms)) = load(call, txn, key)? else {
        call.reply.int(0);
        return Ok(());
    };
    let (keyspace, database) = (&call.shared.keyspace, call.database()?);
    let before = head.fields;
    look_ahead(call, txn, head, 2..call.args.len())?;
    for name in call.args.from(2) {
        let field_key = head.field_key(name);
        if head.fields > 0 && has(txn, database, &field_key)? {
            txn.remove(&database.fields, &field_key[..]);
            head.fields -= 1;
        }
    }
    if head.fields == 0 {
        keyspace.take(txn, database, key, &head.entry(expires_ms))?;
    } else if head.fields < before {
        keyspace.rewrite(txn, database, key, head.entry(expires_ms));
    }
    call.reply.int((before - head.fields) as i64);
    Ok(())
}

/// Replies with names, values or both.
fn reply_all(call: &mut Call<'_>, txn: &mut Txn<'_>, names: bool, values: bool) -> Outcome {
    let found = load(call, txn, call.arg(1))?;
    let len = found.map_or(0, |(head, _)| head.fields as usize);
    if names && values {
        call.reply.map(len)
    } else {
        call.reply.array(len)
    }
    let Some((head, _)) = found else { return Ok(()) };
    let mut fields = Fields::new(call.database()?, head, None);
    let mut shown = 0;
    while let Some(page) = fields.page(txn, PAGE_FIELDS)? {
        shown += page.len();
        for (name, value) in page {
            if names {
                call.reply.bulk(&name);
            }
            if values {
                call.reply.bulk(&value);
            }
        }
        call.check_output()?;
    }
    if shown != len {
        let what = format!("hash {}: its head counts {len} fields, {shown} are there", head.id);
        return Err(esker_store::Error::Corrupt { offset: 0, what }.into());
    }
    Ok(())
}

pub(crate) fn hgetall(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    reply_all(call, txn, true, true)
}

pub(crate) fn hkeys(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    reply_all(call, txn, true, false)
}

pub(crate) fn hvals(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    reply_all(call, txn, false, true)
}

/// HRANDFIELD: all fields are read, some shown.
pub(crate) fn hrandfield(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    use std::hash::{BuildHasher, Hasher};
    // A command that is begun anew for what it reads draws the same again.
    let seeds = call.session.seeds.get_or_insert_with(std::hash::RandomState::new).clone();
    // Several within one EXEC do not draw alike.
    call.session.draws += 1;
    let mut drawn = call.session.draws << 32;
    let mut draw = |below: usize| {
        drawn += 1;
        let mut hasher = seeds.build_hasher();
        hasher.write_u64(drawn);
        (hasher.finish() % below as u64) as usize
    };
    let with_values = call.args.len() == 4 && is(call.arg(3), "withvalues");
    if call.args.len() > 4 || call.args.len() == 4 && !with_values {
        return Err(SYNTAX.into());
    }
    let count = if call.args.len() > 2 { Some(parse_i64(call.arg(2)).ok_or(NOT_AN_INTEGER)?) } else { None };
    if count.is_some_and(|count| count < -(1 << 20)) {
        return Err("ERR value is out of range".into());
    }
    let found = load(call, txn, call.arg(1))?;
    let mut all = Vec::new();
    if let Some((head, _)) = found {
        let mut fields = Fields::names(call.database()?, head);
        let (mut len, max) = (0, call.shared.config.output_bytes_max as u64);
        while let Some(page) = fields.page(txn, PAGE_FIELDS)? {
            len += page.iter().map(|(name, _)| (name.len() + size_of::<Bytes>()) as u64).sum::<u64>();
            if len > max {
                let what = "names of fields";
                return Err(esker_store::Error::TooLarge { what, len, limit: "output_bytes_max", max }.into());
            }
            all.extend(page.into_iter().map(|(name, _)| name));
        }
    }
    let Some(count) = count else {
        let chosen = if all.is_empty() { None } else { Some(draw(all.len())) };
        call.reply.maybe(chosen.map(|at| &all[at][..]));
        return Ok(());
    };
    let repeats = count < 0;
    let wanted = if all.is_empty() { 0 } else { count.unsigned_abs() as usize };
    let wanted = if repeats { wanted } else { wanted.min(all.len()) };
    let nested = with_values && call.reply.is_resp3();
    call.reply.array(if with_values && !nested { 2 * wanted } else { wanted });
    let mut shown = 0;
    while shown < wanted {
        let mut names = Vec::new();
        for nth in shown..wanted.min(shown + PAGE_FIELDS) {
            let at = if repeats { draw(all.len()) } else { nth + draw(all.len() - nth) };
            if !repeats {
                all.swap(nth, at);
            }
            names.push(all[if repeats { at } else { nth }].clone());
        }
        shown += names.len();
        let mut values = Vec::new();
        if let (true, Some((head, _))) = (with_values, found) {
            let keys: Vec<_> = names.iter().map(|name| head.field_key(name)).collect();
            let keys: Vec<Key<'_>> = keys.iter().map(|key| Key::Bytes(key)).collect();
            values = txn.get_many(&call.database()?.fields, &keys)?;
        }
        for (nth, name) in names.iter().enumerate() {
            if nested {
                call.reply.array(2);
            }
            call.reply.bulk(name);
            if with_values {
                let value = values.get_mut(nth).and_then(Option::take);
                call.reply.maybe(value.as_ref().map(|entry| &entry.value[..]));
            }
            call.check_output()?;
        }
    }
    Ok(())
}

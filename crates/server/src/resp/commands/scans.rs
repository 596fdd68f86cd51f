//! Walks over keys and fields: KEYS, SCAN, HSCAN.
//!
//! Invariant: a key or field that is there during the whole scan is shown, once unless the server forgot where the scan
//! was (see [`crate::resp::cursors`]), and each call looks at about COUNT of them.

use bytes::Bytes;
use esker_kv::{OwnedKey, Scan, Txn};

use crate::front::pattern::{literal_prefix, matches};
use crate::resp::commands::hashes::{Fields, load};
use crate::resp::commands::keys::type_name;
use crate::resp::commands::{Call, NOT_AN_INTEGER, Outcome, Refusal, SYNTAX, is};
use crate::resp::cursors::Resume;
use crate::resp::keyspace::key_text;
use crate::resp::number::{i64_text, parse_i64};
use crate::resp::parse::Args;

/// Keys looked at between two checks of the reply's size.
const PAGE_ENTRIES: usize = 4_096;
/// A hash of at most so many fields is shown whole, whatever COUNT says, as a small hash of Redis is.
const SMALL_FIELDS: u64 = 128;
const INVALID_CURSOR: &str = "ERR invalid cursor";

pub(crate) fn keys(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let pattern = call.arg(1);
    let database = call.database()?;
    let prefix = literal_prefix(pattern);
    let all = pattern == b"*";
    let mut found: Vec<Bytes> = Vec::new();
    let mut bytes = call.reply.position();
    for namespace in database.namespaces() {
        let mut scan = Scan { limit: PAGE_ENTRIES, keys_only: true, ..Scan::default() };
        if namespace.kind() == esker_kv::Kind::Bytes && !prefix.is_empty() {
            scan.prefix = Some(Bytes::copy_from_slice(&prefix[..prefix.len().min(esker_kv::KEY_BYTES_MAX)]));
        }
        loop {
            let page = txn.scan(namespace, &scan)?;
            let full = page.len() == PAGE_ENTRIES;
            scan.after = page.last().map(|(key, _)| key.clone());
            for (key, _) in page {
                let text = key_text(&key);
                if all || matches(pattern, &text, false) {
                    bytes += text.len() + 16;
                    found.push(text);
                }
            }
            if bytes > call.shared.config.output_bytes_max {
                return Err("ERR reply exceeds the limit of the output buffer (output_bytes_max): use SCAN".into());
            }
            if !full {
                break;
            }
        }
    }
    call.reply.array(found.len());
    for key in found {
        call.reply.bulk(&key);
    }
    Ok(())
}

/// What may follow the cursor.
struct Options<'a> {
    pattern: Option<&'a [u8]>,
    count: usize,
    kind: Option<&'a [u8]>,
}

fn options<'a>(args: Args<'a>, first: usize, takes_type: bool) -> Result<Options<'a>, Refusal> {
    let mut options = Options { pattern: None, count: 10, kind: None };
    let mut at = first;
    while at < args.len() {
        let (word, value) = (args.get(at), args.get(at + 1));
        let has_value = at + 1 < args.len();
        if is(word, "count") && has_value {
            let count = parse_i64(value).ok_or(NOT_AN_INTEGER)?;
            options.count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or(SYNTAX)?;
        } else if is(word, "match") && has_value {
            options.pattern = Some(value).filter(|pattern| *pattern != b"*");
        } else if is(word, "type") && has_value && takes_type {
            options.kind = Some(value);
        } else {
            return Err(SYNTAX.into());
        }
        at += 2;
    }
    Ok(options)
}

/// The cursor as a number; blanks and signs are refused, as in Redis.
fn cursor_number(text: &[u8]) -> Result<u64, Refusal> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(text).ok().filter(|_| digits).and_then(|text| text.parse().ok());
    number.ok_or_else(|| INVALID_CURSOR.into())
}

fn resume(call: &Call<'_>, cursor: u64, hash: Option<u64>) -> Result<Option<Resume>, Refusal> {
    if cursor == 0 {
        return Ok(None);
    }
    let place = call.shared.cursors.place((call.session.database, hash), cursor);
    Ok(Some(place.ok_or(INVALID_CURSOR)?))
}

fn reply_cursor(call: &mut Call<'_>, hash: Option<u64>, after: Option<OwnedKey>) {
    let (of, client) = ((call.session.database, hash), call.session.client.id);
    let cursor = after.map_or(0, |after| call.shared.cursors.put(client, of, after));
    call.reply.array(2);
    call.reply.bulk(&i64_text(cursor as i64));
}

pub(crate) fn scan(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let cursor = cursor_number(call.arg(1))?;
    let options = options(call.args, 2, true)?;
    let (mut after, from) = match resume(call, cursor, None)? {
        None => (None, None),
        Some(Resume::After(key)) => (Some(key), None),
        Some(Resume::From(key)) => (None, Some(key)),
    };
    let database = call.database()?;
    let mut seen = 0;
    let mut found = Vec::new();
    let mut bytes = 0;
    'spaces: for namespace in database.namespaces() {
        // Int keys come first: a byte key to go on from means that they are done, an int key that bytes start afresh.
        let here = |key: &OwnedKey| matches!(key, OwnedKey::Int(_)) == (namespace.kind() == esker_kv::Kind::Int);
        if matches!(after.as_ref().or(from.as_ref()), Some(OwnedKey::Bytes(_)))
            && namespace.kind() == esker_kv::Kind::Int
        {
            continue;
        }
        let (behind, start) = (after.clone().filter(here), from.clone().filter(here));
        let keys_only = options.kind.is_none();
        let mut scan = Scan { limit: 0, keys_only, after: behind, start, ..Scan::default() };
        loop {
            scan.limit = (options.count - seen).min(PAGE_ENTRIES);
            let page = txn.scan(namespace, &scan)?;
            let full = page.len() == scan.limit;
            seen += page.len();
            if let Some((last, _)) = page.last() {
                after = Some(last.clone());
                scan.after = Some(last.clone());
            }
            for (key, entry) in page {
                let text = key_text(&key);
                if options.pattern.is_none_or(|pattern| matches(pattern, &text, false))
                    && options.kind.is_none_or(|kind| is(kind, type_name(&entry)))
                {
                    bytes += text.len() + 16;
                    found.push(text);
                }
            }
            if seen == options.count || bytes > call.shared.config.output_bytes_soft {
                break 'spaces;
            }
            if !full {
                break;
            }
        }
        if namespace.kind() == esker_kv::Kind::Bytes {
            after = None;
        }
    }
    reply_cursor(call, None, after);
    call.reply.array(found.len());
    for key in found {
        call.reply.bulk(&key);
    }
    Ok(())
}

pub(crate) fn hscan(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let cursor = cursor_number(call.arg(2))?;
    let options = options(call.args, 3, false)?;
    let Some((head, _)) = load(call, txn, call.arg(1))? else {
        call.reply.array(2);
        call.reply.bulk(b"0");
        call.reply.array(0);
        return Ok(());
    };
    let resumed = resume(call, cursor, Some(head.id))?;
    let count = if head.fields <= SMALL_FIELDS { SMALL_FIELDS as usize } else { options.count };
    let database = call.database()?;
    let mut fields = Fields::new(database, head, resumed);
    let (mut seen, mut bytes, mut found, mut last) = (0, 0, Vec::new(), None);
    while seen < count && bytes <= call.shared.config.output_bytes_soft {
        let Some(page) = fields.page(txn, (count - seen).min(PAGE_ENTRIES))? else {
            last = None;
            break;
        };
        seen += page.len();
        last = page.last().map(|(name, _)| OwnedKey::Bytes(name.clone()));
        for (name, value) in page {
            if options.pattern.is_none_or(|pattern| matches(pattern, &name, false)) {
                bytes += name.len() + value.len() + 32;
                found.push((name, value));
            }
        }
    }
    if seen as u64 >= head.fields {
        last = None;
    }
    reply_cursor(call, Some(head.id), last);
    call.reply.array(2 * found.len());
    for (name, value) in found {
        call.reply.bulk(&name);
        call.reply.bulk(&value);
    }
    Ok(())
}

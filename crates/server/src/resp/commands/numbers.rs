//! Strings that are numbers: INCR and its kin.

use bytes::Bytes;
use esker_kv::{Entry, Txn};

use crate::resp::commands::{Call, NOT_AN_INTEGER, Outcome};
use crate::resp::number::{Decimal, I64_DIGITS_MAX, i64_in, parse_i64};

const OVERFLOW: &str = "ERR increment or decrement would overflow";
pub(crate) const NOT_A_FLOAT: &str = "ERR value is not a valid float";
pub(crate) const NOT_FINITE: &str = "ERR increment would produce NaN or Infinity";

fn add(call: &mut Call<'_>, txn: &mut Txn<'_>, by: i64) -> Outcome {
    let (database, key) = (call.database()?, call.arg(1));
    let old = call.look_at_string(txn, key, |old| (parse_i64(old.value), old.expires_ms))?;
    let (value, expires_ms) = old.unwrap_or((Some(0), None));
    let sum = value.ok_or(NOT_AN_INTEGER)?.checked_add(by).ok_or(OVERFLOW)?;
    let mut digits = [0; I64_DIGITS_MAX];
    let text = i64_in(&mut digits, sum);
    call.shared.keyspace.rewrite_string(txn, database, key, text, expires_ms);
    call.reply.int(sum);
    Ok(())
}

pub(crate) fn incr(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    add(call, txn, 1)
}

pub(crate) fn decr(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    add(call, txn, -1)
}

pub(crate) fn incrby(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let by = call.int_arg(2)?;
    add(call, txn, by)
}

pub(crate) fn decrby(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let by = call.int_arg(2)?.checked_neg().ok_or("ERR decrement would overflow")?;
    add(call, txn, by)
}

pub(crate) fn incrbyfloat(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let key = call.arg(1);
    let old = call.string(txn, key)?;
    let value = old.as_ref().map_or(Some(Decimal::Exact(0)), |old| Decimal::parse(&old.value)).ok_or(NOT_A_FLOAT)?;
    let by = Decimal::parse(call.arg(2)).ok_or(NOT_A_FLOAT)?;
    let text = value.sum(by).ok_or(NOT_FINITE)?.text();
    call.reply.bulk(text.as_bytes());
    let entry = Entry { value: Bytes::from(text), ..old.unwrap_or_default() };
    call.shared.keyspace.rewrite(txn, call.database()?, key, entry);
    Ok(())
}

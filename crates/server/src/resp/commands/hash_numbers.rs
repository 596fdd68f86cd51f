//! Fields of hashes that are numbers: HINCRBY, HINCRBYFLOAT.

use bytes::Bytes;
use esker_kv::Txn;

use crate::resp::commands::hashes::{field, load_or_new, put_field};
use crate::resp::commands::numbers::{NOT_A_FLOAT, NOT_FINITE};
use crate::resp::commands::{Call, Outcome};
use crate::resp::number::{Decimal, i64_text, parse_i64};

pub(crate) fn hincrby(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let (key, name) = (call.arg(1), call.arg(2));
    let by = call.int_arg(3)?;
    let (mut head, expires_ms) = load_or_new(call, txn, key)?;
    let old = field(txn, call.database()?, head, name)?;
    let value = old.as_deref().map_or(Some(0), parse_i64).ok_or("ERR hash value is not an integer")?;
    let sum = value.checked_add(by).ok_or("ERR increment or decrement would overflow")?;
    put_field(call, txn, key, (&mut head, expires_ms), name, i64_text(sum).into(), old.is_none())?;
    call.reply.int(sum);
    Ok(())
}

pub(crate) fn hincrbyfloat(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let (key, name) = (call.arg(1), call.arg(2));
    let by = Decimal::parse(call.arg(3)).ok_or(NOT_A_FLOAT)?;
    if !by.is_finite() {
        return Err("ERR value is NaN or Infinity".into());
    }
    let (mut head, expires_ms) = load_or_new(call, txn, key)?;
    let old = field(txn, call.database()?, head, name)?;
    let value =
        old.as_deref().map_or(Some(Decimal::Exact(0)), Decimal::parse).ok_or("ERR hash value is not a float")?;
    let text = value.sum(by).ok_or(NOT_FINITE)?.text();
    call.reply.bulk(text.as_bytes());
    put_field(call, txn, key, (&mut head, expires_ms), name, Bytes::from(text), old.is_none())?;
    Ok(())
}

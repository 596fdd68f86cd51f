//! When keys go: EXPIRE and its kin, TTL and its kin.

use esker_kv::Txn;

use crate::resp::commands::{Call, NOT_AN_INTEGER, Outcome, Refusal, is, shown};
use crate::resp::number::parse_i64;

/// How an expiry is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpiryOption {
    Seconds,
    Milliseconds,
    AtSeconds,
    AtMilliseconds,
}

impl ExpiryOption {
    /// The option that a word of SET or GETEX names.
    pub(crate) fn of(word: &[u8]) -> Option<Self> {
        let known = [
            ("ex", Self::Seconds),
            ("px", Self::Milliseconds),
            ("exat", Self::AtSeconds),
            ("pxat", Self::AtMilliseconds),
        ];
        known.into_iter().find(|(name, _)| is(word, name)).map(|(_, option)| option)
    }

    fn in_seconds(self) -> bool {
        matches!(self, Self::Seconds | Self::AtSeconds)
    }

    fn is_relative(self) -> bool {
        matches!(self, Self::Seconds | Self::Milliseconds)
    }

    /// The unix millisecond that `value` means; `None` if it does not fit.
    fn at_ms(self, value: i64, now_ms: u64) -> Option<i64> {
        let value = if self.in_seconds() { value.checked_mul(1_000)? } else { value };
        if self.is_relative() { value.checked_add(i64::try_from(now_ms).ok()?) } else { Some(value) }
    }
}

fn invalid(command: &str) -> Refusal {
    format!("ERR invalid expire time in '{command}' command").into()
}

/// The unix millisecond that an option of SET and its kin means: must be positive.
pub(crate) fn expiry_option(option: ExpiryOption, value: &[u8], now_ms: u64, command: &str) -> Result<u64, Refusal> {
    let value = parse_i64(value).ok_or(NOT_AN_INTEGER)?;
    if value <= 0 {
        return Err(invalid(command));
    }
    option.at_ms(value, now_ms).and_then(|at| u64::try_from(at).ok()).ok_or_else(|| invalid(command))
}

fn expire_with(call: &mut Call<'_>, txn: &mut Txn<'_>, option: ExpiryOption, name: &str) -> Outcome {
    let (mut only_unset, mut only_set, mut only_later, mut only_earlier) = (false, false, false, false);
    for word in call.args.from(3) {
        match word {
            _ if is(word, "nx") => only_unset = true,
            _ if is(word, "xx") => only_set = true,
            _ if is(word, "gt") => only_later = true,
            _ if is(word, "lt") => only_earlier = true,
            _ => return Err(format!("ERR Unsupported option {}", shown(word)).into()),
        }
    }
    if only_unset && (only_set || only_later || only_earlier) {
        return Err("ERR NX and XX, GT or LT options at the same time are not compatible".into());
    }
    if only_later && only_earlier {
        return Err("ERR GT and LT options at the same time are not compatible".into());
    }
    let (keyspace, database, key) = (&call.shared.keyspace, call.database()?, call.arg(1));
    let value = call.int_arg(2)?;
    let at = option.at_ms(value, txn.now_ms()).ok_or_else(|| invalid(name))?;
    let Some(entry) = keyspace.get(txn, database, key)? else {
        call.reply.int(0);
        return Ok(());
    };
    let old = entry.expires_ms.map(|old| i64::try_from(old).unwrap_or(i64::MAX));
    let refused = only_unset && old.is_some()
        || only_set && old.is_none()
        || only_later && old.is_none_or(|old| at <= old)
        || only_earlier && old.is_some_and(|old| at >= old);
    if refused {
        call.reply.int(0);
        return Ok(());
    }
    match u64::try_from(at) {
        Ok(at) if at > txn.now_ms() => keyspace.set_expiry(txn, database, key, entry, Some(at))?,
        _ => {
            keyspace.remove(txn, database, key)?;
        }
    }
    call.reply.int(1);
    Ok(())
}

pub(crate) fn expire(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    expire_with(call, txn, ExpiryOption::Seconds, "expire")
}

pub(crate) fn pexpire(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    expire_with(call, txn, ExpiryOption::Milliseconds, "pexpire")
}

pub(crate) fn expireat(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    expire_with(call, txn, ExpiryOption::AtSeconds, "expireat")
}

pub(crate) fn pexpireat(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    expire_with(call, txn, ExpiryOption::AtMilliseconds, "pexpireat")
}

/// Replies with what `show` makes of expiry and present time; -2 without key, -1 without expiry.
fn show(call: &mut Call<'_>, txn: &mut Txn<'_>, show: fn(u64, u64) -> u64) -> Outcome {
    let entry = call.shared.keyspace.get(txn, call.database()?, call.arg(1))?;
    call.reply.int(match entry.map(|entry| entry.expires_ms) {
        None => -2,
        Some(None) => -1,
        Some(Some(at)) => i64::try_from(show(at, txn.now_ms())).unwrap_or(i64::MAX),
    });
    Ok(())
}

pub(crate) fn ttl(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    show(call, txn, |at, now| (at.saturating_sub(now) + 500) / 1_000)
}

pub(crate) fn pttl(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    show(call, txn, u64::saturating_sub)
}

pub(crate) fn expiretime(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    show(call, txn, |at, _| at.saturating_add(500) / 1_000)
}

pub(crate) fn pexpiretime(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    show(call, txn, |at, _| at)
}

pub(crate) fn persist(call: &mut Call<'_>, txn: &mut Txn<'_>) -> Outcome {
    let (keyspace, database, key) = (&call.shared.keyspace, call.database()?, call.arg(1));
    match keyspace.get(txn, database, key)? {
        Some(entry) if entry.expires_ms.is_some() => {
            keyspace.set_expiry(txn, database, key, entry, None)?;
            call.reply.int(1);
        }
        _ => call.reply.int(0),
    }
    Ok(())
}

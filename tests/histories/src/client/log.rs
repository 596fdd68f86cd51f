//! A client of the log: appends, one and several and under the condition of a tail, reads, tails, fills and trims.
//!
//! Two logs: one in slots round several objects, whose positions a sequencer hands out, and one in a byte stream,
//! whose writers hand out positions themselves and depose each other.
//!
//! What stands at a position is noted as its value, or `hole`, `filled`, `trimmed`, `beyond`.

use esker::Store;
use esker::log::{Error, Found, Layout, Log, Options, Record};

use super::actor::{Client, outcome_of, text};
use crate::notes::{Answer, Call, Outcome};
use crate::terms::Failure;

/// The log with a sequencer.
pub const SEQUENCED: &str = "sequenced";
const STREAM: &str = "stream";
/// Positions below the tail that are read most.
const NEAR: u64 = 30;
/// A trim leaves about so many positions, and comes once in so many calls.
const LEFT: u64 = 200;
const TRIMS: u32 = 300;
/// Positions that the last client reads at a time.
const AT_ONCE: u64 = 64;

pub(super) fn prepare(store: &Store) -> Result<(), Failure> {
    let logs = store.logs()?;
    logs.create(SEQUENCED, Options { width: 3, slots: 200, ..Options::default() })?;
    logs.create(STREAM, Options { width: 1, slots: 500, layout: Layout::Stream, ..Options::default() })?;
    Ok(())
}

fn failed(error: &Error) -> Answer {
    let outcome = match error {
        Error::Uncertain { .. } => Outcome::Unknown,
        Error::Store(error) => outcome_of(error),
        Error::Damaged { .. } | Error::Invalid { .. } | Error::Exists { .. } | Error::NoLog { .. } => Outcome::Fault,
        Error::Unsupported { .. } | Error::Sealed { .. } | Error::Fenced { .. } => Outcome::Fault,
        _ => Outcome::Error,
    };
    Answer::failed(outcome, error)
}

/// What stands at a position, as it is noted.
pub fn shown(found: &Found) -> String {
    match found {
        Found::Entry(entry) => text(&entry.data),
        Found::Hole => "hole".into(),
        Found::Filled => "filled".into(),
        Found::Trimmed => "trimmed".into(),
        Found::BeyondTail => "beyond".into(),
        Found::Lost(why) => format!("lost: {why}"),
    }
}

fn call(log: &Log, name: &str) -> Call {
    Call { call: name.into(), place: log.name().into(), ..Call::default() }
}

fn read(log: &Log, from: u64, until: u64) -> Answer {
    let found = if until == from + 1 {
        log.read(from).and_then(|found| Ok(vec![found.wait()?]))
    } else {
        log.read_range(from..until, 1 << 20).and_then(|found| Ok(found.wait()?))
    };
    found.map_or_else(|error| failed(&error), |found| Answer::found(found.iter().map(|one| Some(shown(one))).collect()))
}

fn tail(log: &Log) -> Answer {
    log.tail().map_or_else(|error| failed(&error), |tail| Answer::number(tail.position))
}

pub(super) fn play(client: &mut Client) -> Result<(), Failure> {
    let location = client.role.location.clone();
    let opened = client.opened(|| -> Result<_, Failure> {
        let store = Store::open(&location)?;
        let logs = [SEQUENCED, STREAM].map(|name| store.logs()?.log(name).map_err(Failure::from));
        let [sequenced, stream] = logs;
        Ok((sequenced?, stream?, store))
    });
    let Some((sequenced, stream, _store)) = opened? else { return Ok(()) };
    let logs = [sequenced, stream];
    if client.role.last {
        return logs.iter().try_for_each(|log| look_back(client, log));
    }
    // The highest tail that was seen of each.
    let mut tails = [0; 2];
    while client.goes_on() {
        // A client that writes to the second deposes the others, each time.
        let which = usize::from(client.rng.u8(0..5) == 0);
        step(client, &logs[which], &mut tails[which])?;
    }
    Ok(())
}

fn look_back(client: &mut Client, log: &Log) -> Result<(), Failure> {
    client.must(&call(log, "tail"), || tail(log))?;
    let (mut at, end) = (0, log.tail()?.position);
    while at < end {
        let until = end.min(at + AT_ONCE);
        let mut read_here = 0;
        client.must(&Call { held: at, ..call(log, "read") }, || {
            let answer = read(log, at, until);
            read_here = answer.found.len() as u64;
            answer
        })?;
        at += read_here.max(1);
    }
    client.must(&Call { held: end, ..call(log, "read") }, || read(log, end, end + 1))
}

fn step(client: &mut Client, log: &Log, seen: &mut u64) -> Result<(), Failure> {
    if client.rng.u32(0..TRIMS) == 0 && *seen > LEFT {
        let to = *seen - client.rng.u64(LEFT / 2..LEFT);
        client.note(&Call { held: to, ..call(log, "trim_to") }, || {
            log.trim_to(to).map_or_else(|error| failed(&error), |_| Answer::ok())
        })?;
        return Ok(());
    }
    let near = seen.saturating_sub(client.rng.u64(0..NEAR));
    match client.rng.u8(0..100) {
        chance @ 0..45 => {
            let count = if chance < 35 { 1 } else { client.rng.usize(2..=3) };
            append(client, log, count, None, seen)?;
        }
        45..52 => append(client, log, 1, Some(*seen), seen)?,
        52..74 => {
            let at = near + client.rng.u64(0..2);
            client.note(&Call { held: at, ..call(log, "read") }, || read(log, at, at + 1))?;
        }
        74..80 => {
            let at = client.rng.u64(0..=*seen);
            client.note(&Call { held: at, ..call(log, "read") }, || read(log, at, at + 8))?;
        }
        80..96 => {
            let answer = client.note(&call(log, "tail"), || tail(log))?;
            *seen = answer.number.max(*seen);
        }
        96..98 => {
            let trimmed = || log.trim(near).map_or_else(|error| failed(&error), |()| Answer::ok());
            client.note(&Call { held: near, ..call(log, "trim") }, trimmed)?;
        }
        _ => {
            client.note(&Call { held: near, ..call(log, "fill") }, || match log.fill(near) {
                Ok(()) => Answer::ok(),
                Err(Error::Taken { .. }) => Answer::refused(),
                Err(error) => failed(&error),
            })?;
        }
    }
    Ok(())
}

/// Appends `count` entries, at `expected` if that is given. Where the answer is lost, it asks what became of it in
/// half of the cases.
fn append(client: &mut Client, log: &Log, count: usize, expected: Option<u64>, seen: &mut u64) -> Result<(), Failure> {
    let values: Vec<String> = (0..count).map(|_| client.value()).collect();
    let records: Vec<Record> = values.iter().map(|value| Record::from(value.clone())).collect();
    let resolves = client.rng.bool();
    let name = if expected.is_some() { "append_at" } else { "append" };
    let values = values.into_iter().map(Some).collect();
    let call = Call { values, held: expected.unwrap_or_default(), ..call(log, name) };
    // There one transaction changes one object, and entries that come together may stand in several.
    let in_one_object = client.role.location.starts_with("rados:");
    let answer = client.note(&call, || {
        let appended = match expected {
            Some(expected) => log.append_at(expected, &records),
            None => log.append_batch(&records),
        };
        match appended.and_then(|appended| Ok(appended.wait()?)) {
            Ok(position) => Answer::number(position),
            Err(Error::NotTail { tail, .. }) => Answer { number: tail, ..Answer::refused() },
            Err(error @ Error::Unsupported { .. }) if in_one_object && count > 1 => {
                Answer::failed(Outcome::Error, &error)
            }
            Err(error @ Error::Uncertain { position, nonce, .. }) if resolves => match log.resolve(position, nonce) {
                // That it is durable only a read says.
                Ok(true) if log.read(position).is_ok_and(|found| found.wait().is_ok()) => Answer::number(position),
                Ok(false) => Answer::failed(Outcome::Error, &"it is not there, and never will be"),
                _ => failed(&error),
            },
            Err(error) => failed(&error),
        }
    })?;
    match answer.outcome {
        Outcome::Ok => *seen = (answer.number + count as u64).max(*seen),
        Outcome::Refused => *seen = answer.number.max(*seen),
        _ => {}
    }
    Ok(())
}

//! A client of the map: conditional puts and deletes, several rows at once, gets and scans of a partition.
//!
//! Clients with even numbers use the map that the server has for all, the others one of their own on the server's
//! store: both work on the same rows.
//!
//! A row is noted as `A|B`, the values of its two columns, `-` for a column that is not set.

use std::sync::Arc;

use esker::map::{
    Compare, Condition, DataType, Error, Filter, Get, Key, MapStorage, Mutation, Order, Record, Scan, Schema,
    TableName, Value,
};
use esker::remote::{Options, RemoteMap};
use esker::{Durability, Store};

use super::actor::{Client, KEYS, outcome_of, text};
use crate::notes::{Answer, Call, Held, Outcome};
use crate::terms::Failure;

const PARTITION: &str = "p";
const CLUSTERING: &str = "c";
const COLUMNS: [&str; 2] = ["a", "b"];

fn table() -> TableName {
    TableName::new("histories", "rows")
}

pub(super) fn prepare(store: &Store) -> Result<(), Failure> {
    let map = store.map()?;
    map.create_namespace("histories")?;
    let schema = COLUMNS
        .iter()
        .fold(Schema::new().column(PARTITION, DataType::BigInt).column(CLUSTERING, DataType::Int), |schema, column| {
            schema.column(*column, DataType::Text)
        });
    map.create_table(&table(), &schema.partition(PARTITION).clustering(CLUSTERING, Order::Asc))?;
    Ok(())
}

fn key(place: u64, row: u64) -> Key {
    Key::of(PARTITION, place as i64).and(CLUSTERING, row as i32)
}

/// The two columns, as they are noted.
fn row(columns: [Option<String>; 2]) -> String {
    columns.map(|column| column.unwrap_or_else(|| "-".into())).join("|")
}

fn shown(record: &Record) -> String {
    row(COLUMNS.map(|column| match record.get(column) {
        Some(Some(Value::Text(value))) => Some(text(value.as_bytes())),
        Some(other) => Some(format!("no text: {other:?}")),
        None => None,
    }))
}

fn failed(error: &Error) -> Answer {
    let outcome = match error {
        Error::Unknown { .. } => Outcome::Unknown,
        Error::Store(error) => outcome_of(error),
        Error::Contended { .. } | Error::Unavailable { .. } => Outcome::Error,
        _ => Outcome::Fault,
    };
    Answer::failed(outcome, error)
}

struct Table {
    map: Arc<dyn MapStorage>,
    /// What the map stands on, for as long as it is used.
    _store: Option<Store>,
}

fn open(client: &Client) -> Result<Option<Table>, Failure> {
    let location = client.role.location.clone();
    let server =
        location.strip_prefix("grpc://").and_then(|rest| rest.split('?').next()).unwrap_or_default().to_owned();
    client.opened(|| -> Result<_, Failure> {
        if client.role.me.is_multiple_of(2) {
            let options = Options { timeout: std::time::Duration::from_secs(2), ..Options::default() };
            let map = RemoteMap::connect(server.parse()?, &options)?;
            return Ok(Table { map: Arc::new(map), _store: None });
        }
        let store = Store::open(&location)?;
        Ok(Table { map: Arc::new(store.map()?), _store: Some(store) })
    })
}

fn call(name: &str, place: u64, keys: &[u64]) -> Call {
    Call { call: name.into(), place: place.to_string(), keys: keys.to_vec(), ..Call::default() }
}

impl Table {
    fn get(&self, place: u64, row: u64) -> Answer {
        let got = self.map.get(&Get::new(&table(), key(place, row)));
        got.map_or_else(|error| failed(&error), |got| Answer::found(vec![got.as_ref().map(shown)]))
    }

    /// All rows of a partition, those that are not there too.
    fn scan(&self, place: u64, reverse: bool) -> Answer {
        let mut scan = Scan { reverse, ..Scan::partition(&table(), Key::of(PARTITION, place as i64)) };
        let mut found: Vec<Held> = vec![None; KEYS as usize];
        let mut before = None;
        loop {
            let page = match self.map.scan(&scan) {
                Ok(page) => page,
                Err(error) => return failed(&error),
            };
            if scan.page.is_some() && !page.records.is_empty() {
                return Answer::failed(Outcome::Error, &"in several pages: not of one moment");
            }
            for record in &page.records {
                let Some(Value::Int(number)) = record.value(CLUSTERING) else {
                    return Answer::failed(Outcome::Fault, &format!("a row without its key: {record:?}"));
                };
                let ordered = before.is_none_or(|before| if reverse { *number < before } else { *number > before });
                let Some(slot) = found.get_mut(*number as usize).filter(|_| ordered) else {
                    return Answer::failed(
                        Outcome::Fault,
                        &format!("rows that no client wrote, or out of order: {page:?}"),
                    );
                };
                *slot = Some(shown(record));
                before = Some(*number);
            }
            scan.page = page.next;
            if scan.page.is_none() {
                return Answer::found(found);
            }
        }
    }

    fn mutate(&self, mutations: &[Mutation]) -> Answer {
        let done = self.map.mutate(mutations, Durability::Durable);
        match done.and_then(|done| done.wait().map_err(Error::from)) {
            Ok(()) => Answer::ok(),
            Err(Error::ConditionFailed { mutation, current }) => {
                Answer { number: mutation as u64, found: vec![current.as_deref().map(shown)], ..Answer::refused() }
            }
            Err(error) => failed(&error),
        }
    }
}

/// A condition, as it is noted: always, exists, absent, or the value that column a has.
fn condition(client: &mut Client, known: &Held) -> (Held, Condition) {
    match client.rng.u8(0..10) {
        0..4 => (None, Condition::Always),
        4..6 => (Some("exists".into()), Condition::Exists),
        6..8 => (Some("absent".into()), Condition::NotExists),
        _ => {
            let value = known.as_ref().and_then(|row| row.split('|').next()).unwrap_or("nothing").to_owned();
            let filter = Filter::Compare(COLUMNS[0].into(), Compare::Equal, value.clone().into());
            (Some(format!("={value}")), Condition::If(filter))
        }
    }
}

/// A put of one column or both, or a delete.
fn mutation(client: &mut Client, place: u64, number: u64) -> (Held, Mutation) {
    if client.rng.u8(0..4) == 0 {
        return (None, Mutation::delete(&table(), key(place, number)));
    }
    let chosen = client.rng.u8(1..4);
    let columns = [chosen & 1 > 0, chosen & 2 > 0].map(|sets| sets.then(|| client.value()));
    let values = COLUMNS.iter().zip(&columns);
    let values = values.filter_map(|(name, value)| Some(((*name).to_owned(), Value::from(value.clone()?)))).collect();
    (Some(row(columns)), Mutation::put(&table(), key(place, number), values))
}

pub(super) fn play(client: &mut Client) -> Result<(), Failure> {
    let Some(table) = open(client)? else { return Ok(()) };
    let all: Vec<u64> = (0..KEYS).collect();
    if client.role.last {
        for place in 0..client.places() {
            client.must(&call("scan", place, &all), || table.scan(place, false))?;
        }
        return Ok(());
    }
    // What was read last, of which place.
    let mut known: (u64, Vec<Held>) = (0, vec![None; KEYS as usize]);
    while client.goes_on() {
        let old = client.old_place();
        let place = old.unwrap_or_else(|| client.place());
        let number = client.rng.u64(0..KEYS);
        if place != known.0 {
            known = (place, vec![None; KEYS as usize]);
        }
        match client.rng.u8(0..100) {
            _ if old.is_some() => drop(client.note(&call("scan", place, &all), || table.scan(place, false))?),
            0..25 => {
                let answer = client.note(&call("get", place, &[number]), || table.get(place, number))?;
                if let Some(found) = answer.found.into_iter().next() {
                    known.1[number as usize] = found;
                }
            }
            25..45 => {
                let reverse = client.rng.bool();
                let answer = client.note(&call("scan", place, &all), || table.scan(place, reverse))?;
                if answer.outcome == Outcome::Ok {
                    known.1 = answer.found;
                }
            }
            chance => {
                let rows = if chance < 80 { vec![number] } else { client.some_keys(2..=3) };
                let (mut values, mut when, mut mutations) = (Vec::new(), Vec::new(), Vec::new());
                for number in &rows {
                    let (condition_noted, condition) = condition(client, &known.1[*number as usize]);
                    let (value, mutation) = mutation(client, place, *number);
                    values.push(value);
                    when.push(condition_noted);
                    mutations.push(mutation.when(condition));
                }
                let call = Call { values, when, ..call("mutate", place, &rows) };
                let answer = client.note(&call, || table.mutate(&mutations))?;
                if answer.outcome == Outcome::Refused
                    && let (Some(row), Some(found)) = (rows.get(answer.number as usize), answer.found.first())
                {
                    known.1[*row as usize] = found.clone();
                }
            }
        }
    }
    Ok(())
}

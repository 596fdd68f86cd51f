//! Runs of the map face: several processes on one store, killed, paused and left without answers at any call, each with
//! a clock of its own; the server restarts under them, and the table changes.
//!
//! seed → `Setting` → a table → processes → power cut → everything read once more → `check_by_key` of `Tables`
//! under power cuts
//!
//! Checked: the history of each row, and of all that one call touches at once, is linearizable, as in [`crate::kvs`]; a
//! list of mutations is made whole, or tells the row of the first condition that does not hold; a page of a partition
//! is of one moment; a scan by an index, also while one is built or dropped, leaves no row out that was among its rows
//! all the time, and shows none as it never was; rows of before are gone when a table was truncated or dropped, and so
//! is what a dropped column held; at the end indexes lead to the rows that there are, and to all of them.
//!
//! Invariant: the same seed gives the same calls in the same order.

pub mod model;
mod process;
mod schema;

use std::sync::Arc;

use esker_map::{Get, MapStorage, Waist};
use esker_store::ObjectStore;

use crate::lasting::{Deed, Lasting, Lasts};
use crate::linear::{Interval, SEARCH_STEPS_MAX, check_by_key};
use crate::outcome::Outcome;
use crate::shared::notes::Diary;
use crate::shared::setting::{NOBODY, NOON_MS, Setting};
use crate::shared::wire::Wire;
use model::{Row, TableAsk, TableCall, TableTold};
use process::{GROUPS, SECRET, TableHabits, TableProcess, TableWorld, key_of, name, row_of};

pub use crate::shared::breakage::Sabotage;

/// Runs one seed.
///
/// # Errors
/// The promise that was broken, and how.
pub fn run(seed: u64, breakage: Option<Sabotage>) -> Result<Outcome, String> {
    let mut setting = Setting::new(seed, breakage)?;
    let habits = TableHabits::new(&mut setting.rng);
    let indexed = setting.rng.bool();
    make(Wire::quiet(&setting.net), indexed).map_err(|error| format!("making the table: {error}"))?;
    setting.net.server.endanger();
    let world = TableWorld { setting: &setting, notes: Diary::default(), habits };
    let live = |me: usize, acts: &mut u32| {
        let Some(mut process) = TableProcess::open(&world, me)? else {
            *acts = acts.saturating_sub(1);
            return Ok(false);
        };
        process.live(acts).map(|()| true)
    };
    setting.inhabited(live, |why| world.notes.broken(why))?;
    let TableWorld { notes, habits, .. } = world;
    let mut events = notes.history()?;
    let line = setting.last_life();
    look(&setting, &habits, line, &mut events)?;
    events.extend(setting.ends(|| TableTold::Done)?);
    let calls = events.len();
    check_by_key(&Lasting(habits.tables), &events, SEARCH_STEPS_MAX).map_err(|fault| fault.with(&events))?;
    Ok(setting.outcome(calls))
}

fn make(line: Arc<dyn ObjectStore>, indexed: bool) -> esker_map::Result<()> {
    let map = Waist::open(line, Arc::new(|| NOON_MS), SECRET)?;
    map.create_namespace("n")?;
    map.create_table(&name(), &schema::schema(indexed))
}

/// Reads everything, undisturbed.
fn look(
    setting: &Setting,
    habits: &TableHabits,
    line: Arc<dyn ObjectStore>,
    events: &mut Vec<Interval<Deed<TableCall>, TableTold>>,
) -> Result<(), String> {
    let said = |error: esker_map::Error| format!("at the end: {error}");
    let map = Waist::open(line, Arc::new(|| NOON_MS), SECRET).map_err(said)?;
    let mut rows: Vec<Option<Row>> = Vec::new();
    for row in 0..habits.tables.partitions * habits.tables.rows {
        let begin = setting.baton.time();
        let told = match map.get(&Get::new(&name(), key_of(&habits.tables, row))) {
            Ok(found) => {
                let found = found.as_ref().map(row_of).transpose()?;
                rows.push(found);
                TableTold::Row(found)
            }
            Err(esker_map::Error::Missing { .. }) => TableTold::Missing,
            Err(error) => return Err(said(error)),
        };
        let call = Deed::Ask(TableCall { ask: TableAsk::Get(row), now_ms: NOON_MS }, Lasts::Durably);
        events.push(Interval { process: NOBODY, begin, end: setting.baton.time(), call, answer: Some(told) });
    }
    for g in 1..=GROUPS {
        let among = match process::scan_index(&map, g) {
            Ok(among) => among,
            // There is no table, no index, or one that was not built to its end.
            Err(esker_map::Error::Missing { .. } | esker_map::Error::Invalid { .. }) => continue,
            Err(error) => return Err(said(error)),
        };
        let mut found = among.iter().map(|record| Ok((process::number_of(&habits.tables, record)?, row_of(record)?)));
        let found = found.by_ref().collect::<Result<Vec<_>, String>>()?;
        let rows = rows.iter().enumerate().filter_map(|(number, row)| Some((number, (*row)?)));
        let mut expected: Vec<(usize, Row)> = rows.filter(|(_, row)| row.g == g).collect();
        expected.sort_by_key(|(number, _)| *number);
        let mut sorted = found.clone();
        sorted.sort_by_key(|(number, _)| *number);
        if sorted != expected {
            return Err(format!("at the end: the index leads to {found:?} for {g}, there are {expected:?}"));
        }
    }
    Ok(())
}

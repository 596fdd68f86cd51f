//! Runs of the key-value face: several processes on one store, killed, paused and left without answers at any call,
//! each with a clock of its own; the server restarts under them.
//!
//! seed → `Setting` → processes → power cut → everything read once more → `check_by_key` of `Keys` under power
//! cuts
//!
//! Checked: the history of each key, and of all that one call touches at once, is linearizable: a change whose answer
//! was lost was made once, at any time after it was asked for, or never; one that was refused was not made; one that
//! was acknowledged as durable survives every power cut, and one that was only applied goes with all that came after
//! it. What one call of the store reads is of one moment. An entry is shown up to its expiry by the clock of who reads,
//! and not from it on; that clock never goes back. What is written to a namespace that was removed is refused, and one
//! that is made again is empty.
//!
//! Invariant: the same seed gives the same calls in the same order.

pub mod model;
mod process;

use std::sync::Arc;

use esker_kv::{Clock, Kv, ManualClock};
use esker_store::ObjectStore;

use crate::lasting::{Deed, Lasting, Lasts};
use crate::linear::{Interval, SEARCH_STEPS_MAX, check_by_key};
use crate::outcome::Outcome;
use crate::shared::notes::Diary;
use crate::shared::setting::{NOBODY, NOON_MS, Setting};
use model::{KeyAsk, KeyCall, KeyTold, Keys};
use process::{KeyHabits, KeyProcess, KeyWorld};

pub use crate::shared::breakage::Sabotage;

/// Runs one seed.
///
/// # Errors
/// The promise that was broken, and how.
pub fn run(seed: u64, breakage: Option<Sabotage>) -> Result<Outcome, String> {
    let mut setting = Setting::new(seed, breakage)?;
    let habits = KeyHabits::new(&mut setting.rng);
    setting.net.server.endanger();
    let world = KeyWorld { setting: &setting, notes: Diary::default(), habits };
    let live = |me: usize, acts: &mut u32| {
        let Some(mut process) = KeyProcess::open(&world, me)? else {
            *acts = acts.saturating_sub(1);
            return Ok(false);
        };
        process.live(acts).map(|()| true)
    };
    setting.inhabited(live, |why| world.notes.broken(why))?;
    let KeyWorld { notes, habits, .. } = world;
    let mut events = swept_again(notes.history()?);
    let line = setting.last_life();
    look(&setting, &habits, line, &mut events)?;
    events.extend(setting.ends(|| KeyTold::Done)?);
    let calls = events.len();
    let keys = Keys { space_of: habits.space_of(), spaces: process::SPACES.len(), drops: habits.drops };
    check_by_key(&Lasting(keys), &events, SEARCH_STEPS_MAX).map_err(|fault| fault.with(&events))?;
    Ok(setting.outcome(calls))
}

/// The history with each sweep of a key as often as it may have removed it: once more for each write that gave the key
/// an expiry meanwhile which had passed already by the sweep's clock.
fn swept_again(events: Vec<Interval<Deed<KeyCall>, KeyTold>>) -> Vec<Interval<Deed<KeyCall>, KeyTold>> {
    let mut more = Vec::new();
    for sweep in &events {
        let Deed::Ask(KeyCall { ask: KeyAsk::Sweep(key), now_ms }, _) = &sweep.call else { continue };
        let meanwhile = |other: &Interval<Deed<KeyCall>, KeyTold>| {
            let Deed::Ask(KeyCall { ask, .. }, _) = &other.call else { return false };
            let passed = ask.expiry_of(*key).is_some_and(|expires_ms| expires_ms <= *now_ms);
            passed && other.begin < sweep.end && sweep.begin < other.end
        };
        let again = events.iter().filter(|other| meanwhile(other)).take(process::SWEPT_MAX - 1).count();
        more.extend((0..again).map(|_| sweep.clone()));
    }
    events.into_iter().chain(more).collect()
}

/// Reads everything, undisturbed.
fn look(
    setting: &Setting,
    habits: &KeyHabits,
    line: Arc<dyn ObjectStore>,
    events: &mut Vec<Interval<Deed<KeyCall>, KeyTold>>,
) -> Result<(), String> {
    let said = |error: &dyn std::fmt::Display| format!("at the end: {error}");
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(NOON_MS));
    let kv = Kv::open(line, clock).map_err(|error| said(&error))?;
    let there = kv.namespaces().map_err(|error| said(&error))?;
    for (key, (space, place)) in habits.keys.iter().enumerate() {
        let begin = setting.baton.time();
        let (name, kind) = process::SPACES[*space];
        let found = if there.contains(&(name.to_owned(), kind)) {
            let namespace = kv.namespace(name, kind).map_err(|error| said(&error))?;
            namespace.entry(place).wait().map_err(|error| said(&error))?
        } else {
            None
        };
        let item = found.map(|entry| process::item_of(&entry)).transpose()?;
        let call = Deed::Ask(KeyCall { ask: KeyAsk::Entry(key), now_ms: NOON_MS }, Lasts::Durably);
        let (end, answer) = (setting.baton.time(), Some(KeyTold::Entry(item)));
        events.push(Interval { process: NOBODY, begin, end, call, answer });
    }
    Ok(())
}

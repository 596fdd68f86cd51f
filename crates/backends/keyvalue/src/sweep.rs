//! The sweeper: takes away the entries of spaces that died with their object, by a clear or a truncation to nothing.
//!
//! commit → wake → dead spaces, one after another → their keys, in pieces → the commit queue → the record of the dead
//! space goes
//!
//! No reader scans a dead space, so what the engine keeps in place of removed keys is in no reader's way; an engine
//! that removes only key by key is told to compact the numbers between which much was removed.
//!
//! Invariants:
//! 1. A dead space's record goes with its last keys or after them, so a crash leaves work, not litter.
//! 2. Files that extents of a dead space name are removed after the records that name them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use esker_store::Result;
use parking_lot::{Condvar, Mutex};

use crate::commit::Commit;
use crate::draft::{Changed, Draft, Outcome, State};
use crate::keys::{self, Tag};
use crate::records::Extent;

/// Keys that are removed in one go.
const PIECE_KEYS: usize = 4_096;
/// From so many keys on, an engine that can removes the space as a range.
const RANGE_KEYS_MIN: usize = 64;
/// So many keys removed one by one call for a compaction.
const COMPACT_KEYS: usize = 50_000;

/// What was removed one by one since the last compaction: how many keys, of spaces from which number to which.
struct Removed {
    keys: usize,
    first: u64,
    last: u64,
}

impl Default for Removed {
    fn default() -> Self {
        Self { keys: 0, first: u64::MAX, last: 0 }
    }
}

impl Removed {
    fn count(&mut self, number: u64, keys: usize) {
        self.keys += keys;
        self.first = self.first.min(number);
        self.last = self.last.max(number);
    }
}

/// Wakes and ends the sweeping thread.
#[derive(Default)]
pub struct Sweeper {
    ended: AtomicBool,
    woken: Mutex<bool>,
    wakes: Condvar,
}

impl Sweeper {
    /// Some space died.
    pub fn wake(&self) {
        *self.woken.lock() = true;
        self.wakes.notify_one();
    }

    /// Ends [`Sweeper::run`] soon.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
    }

    /// The sweeping thread.
    pub fn run(&self, state: &State, commit: &Arc<Commit>) {
        let mut removed = Removed::default();
        while !self.ended.load(Ordering::Acquire) {
            {
                let mut woken = self.woken.lock();
                while !*woken {
                    self.wakes.wait(&mut woken);
                }
                *woken = false;
            }
            if let Err(error) = self.sweep(state, commit, &mut removed) {
                // A store that stopped or closed says so to those who use it; the records stay for the next opening.
                tracing::debug!(%error, "sweeping stopped");
            }
        }
    }

    fn sweep(&self, state: &State, commit: &Arc<Commit>, removed: &mut Removed) -> Result<()> {
        let mut after = Bytes::from_static(b"d");
        loop {
            let mut dead: Vec<Bytes> = Vec::new();
            Draft::new(state).scan(&after, b"e", false, &mut |key, _| {
                dead.push(Bytes::copy_from_slice(key));
                Ok(dead.len() < PIECE_KEYS)
            })?;
            let Some(last) = dead.last() else { return Ok(()) };
            after = keys::next(last);
            let mut outcome = Outcome::default();
            for record in &dead {
                if self.ended.load(Ordering::Acquire) {
                    return Ok(());
                }
                if let Some((tag, number)) = keys::dead_space(record) {
                    let keys = self.empty(state, commit, tag, number, &mut outcome)?;
                    removed.count(number, keys);
                }
                outcome.changed.push(Changed { key: record.clone(), value: None, same_spaces: false });
                hand_in(commit, &mut outcome, PIECE_KEYS)?;
            }
            hand_in(commit, &mut outcome, 1)?;
            if removed.keys >= COMPACT_KEYS && !state.store.removes_ranges() {
                // What was removed is in the engine by then.
                esker_store::Barrier::new(commit.mark(), commit.seq()).wait()?;
                for tag in [Tag::Strips, Tag::Omap, Tag::Slots] {
                    state.store.compact(&keys::entry(tag, removed.first, &[]), &keys::space_end(tag, removed.last));
                }
                *removed = Removed::default();
            }
        }
    }

    /// Removes a space's keys; returns how many one by one.
    fn empty(
        &self,
        state: &State,
        commit: &Arc<Commit>,
        tag: Tag,
        number: u64,
        outcome: &mut Outcome,
    ) -> Result<usize> {
        let (mut start, end) = (keys::entry(tag, number, &[]), keys::space_end(tag, number));
        let mut removed = 0;
        loop {
            let mut found: Vec<Bytes> = Vec::new();
            let mut files = Vec::new();
            Draft::new(state).scan(&start, &end, false, &mut |key, value| {
                found.push(Bytes::copy_from_slice(key));
                if tag == Tag::Extents {
                    files.push(Extent::decode(key, value)?.file);
                }
                Ok(found.len() < PIECE_KEYS)
            })?;
            if tag != Tag::Extents && found.len() >= RANGE_KEYS_MIN && state.store.removes_ranges() {
                outcome.ranges.push((start, end));
                return Ok(removed);
            }
            let Some(last) = found.last() else { return Ok(removed) };
            start = keys::next(last);
            removed += found.len();
            let full = found.len() >= PIECE_KEYS;
            files.sort_unstable();
            files.dedup();
            let gone = found.into_iter().chain(files.iter().map(|file| keys::file(*file)));
            outcome.changed.extend(gone.map(|key| Changed { key, value: None, same_spaces: false }));
            outcome.unused_files.extend(files);
            if !full {
                return Ok(removed);
            }
            hand_in(commit, outcome, PIECE_KEYS)?;
        }
    }
}

/// Queues what was gathered if it is at least `keys_min` keys.
fn hand_in(commit: &Commit, outcome: &mut Outcome, keys_min: usize) -> Result<()> {
    if outcome.changed.len() >= keys_min {
        commit.wait_for_room()?;
        // It removes what no reader reads.
        commit.publish(std::mem::take(outcome), false, 0)?;
    }
    Ok(())
}

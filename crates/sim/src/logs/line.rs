//! The way from a process to the store: calls take turns, fail, and lose their answers; and rules of the protocol are
//! broken on purpose.
//!
//! process → [`Line`] (turn, failure, breakage) → one object per transaction → the engine on the faulty device
//!
//! Invariant: without a [`Breakage`] a transaction reaches the store as it was made.

use std::cell::Cell;
use std::sync::Arc;

use esker_store::contract::{Call, Watch};
use esker_store::{Change, Condition, Error, ObjectStore, Op, Result, Transaction};
use parking_lot::Mutex;

use crate::shared::baton::{Baton, Gone};

thread_local! {
    /// The process that this thread is.
    pub(crate) static ME: Cell<usize> = const { Cell::new(0) };
}

/// A rule of the protocol that is broken, for the rules of histories to find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breakage {
    /// Writes do not guard the epoch.
    NoEpochGuard,
    /// A sequencer that comes back goes on with the positions that it last knew of.
    SequencerReuses,
    /// Filling does not look whether something stands there.
    FillOverEntry,
    /// Trimming a position leaves no mark.
    TrimLeavesNoMark,
    /// Taking over takes the tail from before the seal: the seal comes later than its answer.
    SealWithoutMax,
    /// Appending does not look whether something stands there.
    WriteOverEntry,
    /// Views are replaced whatever they are by now.
    ViewWithoutCompare,
    /// Taking over does not seal.
    TakeOverWithoutSeal,
    /// Writes do not look at what is trimmed.
    NoTrimGuard,
    /// The numbers of writers are not remembered when their entries go.
    NumbersForgotten,
}

impl Breakage {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::NoEpochGuard,
        Self::SequencerReuses,
        Self::FillOverEntry,
        Self::TrimLeavesNoMark,
        Self::SealWithoutMax,
        Self::WriteOverEntry,
        Self::ViewWithoutCompare,
        Self::TakeOverWithoutSeal,
        Self::NoTrimGuard,
        Self::NumbersForgotten,
    ];
}

/// What the line of all processes does.
pub(crate) struct Line {
    pub baton: Arc<Baton>,
    pub breakage: Option<Breakage>,
    /// Of 10,000 calls, so many fail or lose their answer.
    pub fails: u32,
    /// Nothing happens on it any more: the end of the run looks at the store.
    pub quiet: bool,
    /// The store, for seals that come too late.
    pub store: Arc<dyn ObjectStore>,
    /// Seals that were answered and not made yet, with the calls that they still wait for.
    pub late: Mutex<Vec<(u32, Transaction)>>,
}

/// A seal that comes too late does so after this many calls.
const LATE_CALLS: u32 = 12;

fn no_answer() -> Error {
    Error::io("asking", std::io::Error::other("no answer"))
}

/// The kind of the entry that a change sets, if it sets one.
fn kind_set(change: &Change) -> Option<u8> {
    match change {
        Change::SlotSet { value, .. } => value.first().copied(),
        Change::OmapSet { key, value } if key.starts_with(b"e") => value.first().copied(),
        _ => None,
    }
}

fn sets(txn: &Transaction, kinds: &[u8]) -> bool {
    txn.ops.iter().any(|op| match op {
        Op::Object(_, change) => kind_set(change).is_some_and(|kind| kinds.contains(&kind)),
        _ => false,
    })
}

fn compares(condition: &Condition, xattr: &[u8]) -> bool {
    matches!(condition, Condition::XattrCompare { name, .. } if name.as_ref() == xattr)
}

fn absent(condition: &Condition) -> bool {
    matches!(condition, Condition::SlotAbsent { .. } | Condition::OmapAbsent { .. })
}

/// What makes an object asks nothing of it; a seal asks that it exists.
fn is_seal(txn: &Transaction) -> bool {
    let seals = |op: &Op| matches!(op, Op::Object(_, Change::XattrSet { name, .. }) if name.as_ref() == b"epoch");
    txn.guards.iter().any(|guard| guard.condition == Condition::Exists) && txn.ops.iter().any(seals)
}

impl Line {
    fn come_late(&self) {
        let mut late = self.late.lock();
        for (calls, _) in late.iter_mut() {
            *calls -= 1;
        }
        for (_, txn) in late.extract_if(.., |(calls, _)| *calls == 0) {
            // Too late even for an answer.
            drop(self.store.submit(txn).into_parts());
        }
    }

    fn broken(&self, txn: &mut Transaction) {
        let Some(breakage) = self.breakage else { return };
        let entries: &[u8] = &[1, 2, 3, 4];
        match breakage {
            Breakage::NoEpochGuard if sets(txn, entries) => {
                txn.guards.retain(|guard| !compares(&guard.condition, b"epoch"));
            }
            Breakage::FillOverEntry if sets(txn, &[2]) => txn.guards.retain(|guard| !absent(&guard.condition)),
            Breakage::WriteOverEntry if sets(txn, &[1, 4]) => txn.guards.retain(|guard| !absent(&guard.condition)),
            Breakage::NoTrimGuard => txn.guards.retain(|guard| !compares(&guard.condition, b"trim")),
            Breakage::ViewWithoutCompare => txn.guards.retain(|guard| !compares(&guard.condition, b"version")),
            Breakage::TrimLeavesNoMark if sets(txn, &[3]) => {
                for op in &mut txn.ops {
                    if let Op::Object(_, change) = op
                        && kind_set(change) == Some(3)
                    {
                        *change = match &*change {
                            Change::SlotSet { index, .. } => Change::SlotRemove { index: *index },
                            Change::OmapSet { key, .. } => Change::OmapRemove { key: key.clone() },
                            other => other.clone(),
                        };
                    }
                }
            }
            Breakage::TakeOverWithoutSeal if is_seal(txn) => txn.ops.clear(),
            Breakage::SealWithoutMax if is_seal(txn) => {
                self.late.lock().push((LATE_CALLS, txn.clone()));
                txn.ops.clear();
            }
            Breakage::NumbersForgotten => {
                let numbers = |op: &Op| matches!(op, Op::Object(object, Change::OmapSet { key, .. }) if object.name().starts_with(b"h/") && key.starts_with(b"w"));
                txn.ops.retain(|op| !numbers(op));
            }
            _ => {}
        }
    }
}

impl Watch for Line {
    fn before(&self, call: Call<'_>) -> Result<()> {
        if self.quiet {
            return Ok(());
        }
        let what = match &call {
            Call::Submit(txn) => 1 + (txn.ops.len() as u64) * 16 + (txn.guards.len() as u64) * 256,
            Call::Read(object) => 2 + object.map_or(0, |object| u64::from(crc(object.name()))),
        };
        if !self.baton.step(ME.get(), what) {
            std::panic::resume_unwind(Box::new(Gone));
        }
        self.come_late();
        if let Call::Submit(txn) = call {
            self.broken(txn);
        }
        if self.baton.draw(10_000) < u64::from(self.fails) { Err(no_answer()) } else { Ok(()) }
    }

    fn after(&self, submit: bool) -> Result<()> {
        if self.quiet || !submit {
            return Ok(());
        }
        if !self.baton.step(ME.get(), 3) {
            std::panic::resume_unwind(Box::new(Gone));
        }
        if self.baton.draw(10_000) < u64::from(self.fails) { Err(no_answer()) } else { Ok(()) }
    }
}

/// A number for a name, for the trace.
fn crc(name: &[u8]) -> u32 {
    name.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

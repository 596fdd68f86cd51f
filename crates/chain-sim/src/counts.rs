//! What a run counts: what happened, what it cost, and which faults came.
//!
//! run → [`Counts`] → sums over seeds, lines for who runs them by hand

use std::collections::BTreeMap;
use std::fmt;

use crate::setting::Fault;

/// Counts of a run, or of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Steps of the simulation.
    pub events: u64,
    /// Writes that were acknowledged to their clients.
    pub acknowledged: u64,
    /// Writes of which clients do not know.
    pub unknown: u64,
    /// Reads that were answered.
    pub reads: u64,
    /// Of them, at replicas other than the head.
    pub reads_behind: u64,
    /// Reads that waited for what they saw to be acknowledged.
    pub waited: u64,
    /// Messages between replicas.
    pub messages: u64,
    /// Their bytes: payloads, and a header each.
    pub bytes: u64,
    /// Of replicas' stores, of what was applied.
    pub syncs: u64,
    /// Writes that heads have applied.
    pub applied: u64,
    /// Calls of the coordinator.
    pub calls: u64,
    /// Tables that were set.
    pub tables: u64,
    /// Changes of tables that came too late.
    pub tables_refused: u64,
    /// Heads that followed another.
    pub heads: u64,
    /// Copies that were begun.
    pub copies: u64,
    /// Those that came to their end.
    pub copied: u64,
    /// Messages that were lost.
    pub lost: u64,
    /// Operations that a restart took from a store.
    pub taken_back: u64,
    /// Nodes that failed.
    pub failed: u64,
    /// Faults, by kind.
    pub faults: BTreeMap<Fault, u64>,
    /// From the last fault until all had settled, in microseconds; the longest.
    pub settled_in: u64,
}

impl Counts {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        let Self { settled_in, faults, .. } = other;
        let pairs = [
            (&mut self.events, other.events),
            (&mut self.acknowledged, other.acknowledged),
            (&mut self.unknown, other.unknown),
            (&mut self.reads, other.reads),
            (&mut self.reads_behind, other.reads_behind),
            (&mut self.waited, other.waited),
            (&mut self.messages, other.messages),
            (&mut self.bytes, other.bytes),
            (&mut self.syncs, other.syncs),
            (&mut self.applied, other.applied),
            (&mut self.calls, other.calls),
            (&mut self.tables, other.tables),
            (&mut self.tables_refused, other.tables_refused),
            (&mut self.heads, other.heads),
            (&mut self.copies, other.copies),
            (&mut self.copied, other.copied),
            (&mut self.lost, other.lost),
            (&mut self.taken_back, other.taken_back),
            (&mut self.failed, other.failed),
        ];
        for (sum, more) in pairs {
            *sum += more;
        }
        self.settled_in = self.settled_in.max(*settled_in);
        for (fault, count) in faults {
            *self.faults.entry(*fault).or_default() += count;
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} writes acknowledged, {} unknown; {} reads, {} not at the head, {} waited",
            self.acknowledged, self.unknown, self.reads, self.reads_behind, self.waited
        )?;
        writeln!(
            f,
            "{} events, {} messages, {} lost, {} syncs, {} calls of the coordinator",
            self.events, self.messages, self.lost, self.syncs, self.calls
        )?;
        writeln!(
            f,
            "{} tables, {} too late, {} heads followed, {} copies, {} whole, {} operations taken back, {} nodes failed",
            self.tables, self.tables_refused, self.heads, self.copies, self.copied, self.taken_back, self.failed
        )?;
        let faults: Vec<_> = self.faults.iter().map(|(fault, count)| format!("{fault:?} {count}")).collect();
        write!(f, "faults: {}; settled within {} ms", faults.join(", "), self.settled_in / 1_000)
    }
}

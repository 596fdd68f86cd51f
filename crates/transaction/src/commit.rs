//! Committing: in one mutation where one covers everything, otherwise in two phases.
//!
//! ```text
//! before-images of rows that were written unread
//!   → (snapshot) what was read is still there
//!   → one mutation covers it: all writes, committed at once, each on what was found
//!   → otherwise: prepare every row on what was found, group by group
//!              → (serializable) what was read is still there, and no other transaction has it prepared
//!              → the coordinator's record: committed     ← here it is decided
//!              → rows forward
//! ```
//!
//! Why that is serializable: at the instant between the last prepare and the first look at what was read, all that was
//! read is there as it was read, and all that will be written is held. A transaction that writes what this one has read
//! prepares it after that look, so comes later in the order of these instants too. Read-only transactions look for
//! prepared rows as well: a transaction that has one may have its instant behind it.
//!
//! Reads carry what identifies each row, deleted ones and those of a range that a filter kept out included: what is
//! found again held from when it was read.
//!
//! Invariants:
//! 1. No row goes forward before the record is durable.
//! 2. A row goes back only after an aborted record is durable.
//! 3. An error other than [`Error::Unknown`] means that the transaction is not committed and never will be.

use std::sync::Arc;

use esker_map::{Atomicity, Durability, Error as MapError, MUTATIONS_MAX, Mutation};

use crate::coordinator::{Decision, Wish};
use crate::layout::{Layout, Place, State};
use crate::row::{self, Image, Write, identity};
use crate::shared::Isolation;
use crate::transaction::Transaction;
use crate::{Error, Result};

/// A row to be written, on what was found.
struct Target {
    layout: Arc<Layout>,
    place: Place,
    image: Option<Image>,
    write: Write,
}

impl Target {
    fn state(&self) -> State {
        if self.write.set.is_some() { State::Prepared } else { State::Deleted }
    }

    fn forward(&self, id: &str, at_ms: i64) -> Mutation {
        row::forward(&self.layout, &self.place.key, id, self.state(), at_ms)
    }

    fn back(&self, id: &str) -> Mutation {
        row::back(&self.layout, &self.place.key, id, self.state(), self.image.as_ref())
    }
}

/// Whether the storage leaves open what became of a mutation.
fn is_unknown(error: &MapError) -> bool {
    matches!(error, MapError::Unknown { .. })
}

/// What the caller gets when nothing was committed.
fn refused(error: MapError) -> Error {
    match error {
        MapError::ConditionFailed { current, .. } => {
            let others = current.and_then(|row| row.value(crate::layout::ID).map(|id| format!(" by transaction {id}")));
            Error::conflict(format!("a row to be written was changed{}", others.unwrap_or_default()))
        }
        MapError::Unknown { cause } => Error::conflict(format!("the storage failed, and it was taken back: {cause}")),
        error => error.into(),
    }
}

impl Transaction {
    /// Commits: everything that was written becomes visible at once, and durable, or nothing does.
    ///
    /// # Errors
    /// [`Error::Conflict`] and [`Error::Expired`]: begin anew. [`Error::Unknown`]: find out. [`Error::Map`]: see there;
    /// nothing was committed.
    pub fn commit(mut self) -> Result<()> {
        self.check_age()?;
        let targets = self.targets()?;
        let apart: Vec<Place> = self
            .reads
            .iter()
            .filter(|(place, read)| read.by_key && targets.binary_search_by(|target| target.place.cmp(place)).is_err())
            .map(|(place, _)| place.clone())
            .collect();
        let covered = apart.is_empty() && self.scans.is_empty();
        let serializable = self.isolation == Isolation::Serializable;
        if targets.is_empty() {
            // What was at one place was there at one instant.
            if self.scans.is_empty() && apart.len() <= 1 {
                return Ok(());
            }
            // As below: what was validated by traces counts only as long as they stay.
            return self.validate(&apart, serializable).and_then(|()| self.check_age());
        }
        if !covered && !serializable {
            self.validate(&apart, false)?;
        }
        let groups = self.groups(&targets);
        let whole = self.shared.capability.atomicity == Atomicity::Storage;
        let looks = if serializable { apart.len() } else { 0 };
        let one = groups.len() == 1
            && (covered || !serializable || whole && self.scans.is_empty())
            && targets.len() + looks <= MUTATIONS_MAX;
        if one {
            return self.commit_at_once(&targets, if serializable { &apart } else { &[] });
        }
        self.prepare(&targets, &groups)?;
        let valid = if !covered && serializable { self.validate(&apart, true) } else { Ok(()) };
        // What it has read was compared with traces of deleted rows, which do not stay for longer.
        if let Err(error) = valid.and_then(|()| self.check_age()) {
            self.abort(&targets, &groups);
            return Err(match error {
                Error::Map(error) => refused(error),
                error => error,
            });
        }
        self.decide(&targets, &groups)
    }

    fn check_age(&self) -> Result<()> {
        let age_ms = self.shared.now_ms().saturating_sub(self.began_ms).max(0) as u64;
        let limit_ms = self.shared.options.lifetime_ms;
        if age_ms > limit_ms { Err(Error::Expired { age_ms, limit_ms }) } else { Ok(()) }
    }

    /// What will be written, by key, with what was found under each: rows that were not read are looked at now. Deletes
    /// of nothing become reads of it.
    fn targets(&mut self) -> Result<Vec<Target>> {
        let writes = std::mem::take(&mut self.writes);
        for (name, layout) in &self.layouts {
            let written = writes.keys().any(|place| place.table == *name);
            if written && self.shared.storage.table(name)?.generation != layout.generation {
                return Err(Error::conflict(format!("the schema of table {name} was changed")));
            }
        }
        let mut targets = Vec::with_capacity(writes.len());
        for (place, write) in writes {
            let layout = self.layout(&place.table)?;
            let image = match self.reads.get(&place) {
                Some(read) => read.image.clone(),
                None => {
                    let found = self.shared.fetch(&layout, &place.key)?;
                    let found = found.map(|row| self.shared.settle(&layout, &place.key, row)).transpose()?;
                    found.and_then(crate::shared::Settled::into_image)
                }
            };
            if write.set.is_none() && image.as_ref().is_none_or(|image| image.gone) {
                self.remember(&place, image, true)?;
                continue;
            }
            targets.push(Target { layout, place, image, write });
        }
        Ok(targets)
    }

    /// Which targets one mutation takes, by what the storage is atomic in.
    fn groups(&self, targets: &[Target]) -> Vec<std::ops::Range<usize>> {
        let together = |a: &Target, b: &Target| match self.shared.capability.atomicity {
            Atomicity::Storage => true,
            Atomicity::Partition => {
                let parts = a.layout.partition_columns;
                a.place.table == b.place.table && a.place.key[..parts] == b.place.key[..parts]
            }
            Atomicity::Record => false,
        };
        let mut groups: Vec<std::ops::Range<usize>> = Vec::new();
        for number in 0..targets.len() {
            match groups.last_mut() {
                Some(group) if group.len() < MUTATIONS_MAX && together(&targets[group.start], &targets[number]) => {
                    group.end = number + 1;
                }
                _ => groups.push(number..number + 1),
            }
        }
        groups
    }

    /// Looks whether what was read is still there; under `strict` no other transaction may have it prepared either.
    fn validate(&self, apart: &[Place], strict: bool) -> Result<()> {
        for scanned in &self.scans {
            if !self.holds_scan(scanned, strict)? {
                return Err(Error::conflict(format!(
                    "rows of table {} changed since they were read",
                    scanned.layout.name
                )));
            }
        }
        for place in apart {
            let (Some(read), Some(layout)) = (self.reads.get(place), self.layouts.get(&place.table)) else { continue };
            if !self.holds(layout, place, &identity(read.image.as_ref()), strict)? {
                return Err(Error::conflict(format!("{place} changed since it was read")));
            }
        }
        Ok(())
    }

    fn unknown(&self, asked_of_coordinator: bool, cause: &dyn std::fmt::Display) -> Error {
        Error::Unknown { transaction: self.id.clone(), asked_of_coordinator, cause: cause.to_string() }
    }

    /// One mutation writes all of it; rows that were only read stand beside with their conditions.
    fn commit_at_once(&self, targets: &[Target], apart: &[Place]) -> Result<()> {
        let now_ms = self.shared.now_ms();
        let mut mutations: Vec<Mutation> = targets
            .iter()
            .map(|target| {
                let Target { layout, place, image, write } = target;
                row::direct(layout, &place.key, image.as_ref(), write, &self.id, now_ms)
            })
            .collect();
        for place in apart {
            let (Some(read), Some(layout)) = (self.reads.get(place), self.layouts.get(&place.table)) else { continue };
            mutations.push(row::look(layout, &place.key, read.image.as_ref()));
        }
        let storage = &self.shared.storage;
        let mut done = storage.mutate(&mutations, Durability::Durable);
        if let Err(error) = &done
            && is_unknown(error)
        {
            let cause = error.clone();
            // Its conditions hold at most once, so it may be tried again: if it was applied then, a row tells.
            done = storage.mutate(&mutations, Durability::Durable);
            match &done {
                Ok(_) => {}
                Err(MapError::ConditionFailed { .. }) => {
                    let first = &targets[0];
                    return match self.shared.fetch(&first.layout, &first.place.key) {
                        Ok(Some(row)) if row.image.id.as_ref() == Some(&self.id) => Ok(()),
                        _ => Err(self.unknown(false, &cause)),
                    };
                }
                Err(_) => return Err(self.unknown(false, &cause)),
            }
        }
        done.map_err(refused)?.wait().map_err(|error| self.unknown(false, &error))
    }

    fn prepare(&self, targets: &[Target], groups: &[std::ops::Range<usize>]) -> Result<()> {
        let now_ms = self.shared.now_ms();
        let mut begun = Vec::new();
        let mut failed = None;
        for group in groups {
            let mutations: Vec<Mutation> = targets[group.clone()]
                .iter()
                .map(|target| {
                    let Target { layout, place, image, write } = target;
                    row::prepare(layout, &place.key, image.as_ref(), write, &self.id, now_ms)
                })
                .collect();
            match self.shared.storage.mutate(&mutations, Durability::Always) {
                // They become durable together.
                Ok(done) => begun.push((group.clone(), Some(done))),
                Err(error) => {
                    if is_unknown(&error) {
                        begun.push((group.clone(), None));
                    }
                    failed = Some(error);
                    break;
                }
            }
        }
        for (_, done) in &mut begun {
            if let Some(Err(error)) = done.take().map(|done| done.wait()) {
                failed.get_or_insert(error.into());
            }
        }
        let Some(error) = failed else { return Ok(()) };
        if !begun.is_empty() {
            let begun: Vec<_> = begun.into_iter().map(|(group, _)| group).collect();
            self.abort(targets, &begun);
        }
        Err(refused(error))
    }

    /// Decides that it is not committed, and takes rows back. If that fails, others will find no record and do the
    /// same: only [`Transaction::decide`] ever puts a committed one.
    fn abort(&self, targets: &[Target], groups: &[std::ops::Range<usize>]) {
        if let Ok(decision) = self.shared.coordinator.decide(&self.id, Wish::Abort, self.shared.now_ms())
            && !decision.committed
        {
            self.back(targets, groups);
            self.has_seen(decision);
        }
    }

    fn back(&self, targets: &[Target], groups: &[std::ops::Range<usize>]) {
        for group in groups {
            let mutations: Vec<_> = targets[group.clone()].iter().map(|target| target.back(&self.id)).collect();
            self.shared.mutate_each(&mutations);
        }
    }

    fn forward(&self, targets: &[Target], groups: &[std::ops::Range<usize>], at_ms: i64) {
        for group in groups {
            let mutations: Vec<_> =
                targets[group.clone()].iter().map(|target| target.forward(&self.id, at_ms)).collect();
            self.shared.mutate_each(&mutations);
        }
    }

    /// It is not committed, and no client will try that again.
    fn has_seen(&self, decision: Decision) {
        if decision.by_others {
            self.shared.coordinator.seen(&self.id, decision);
        }
    }

    /// Puts the record, and does to the rows what it says.
    fn decide(&self, targets: &[Target], groups: &[std::ops::Range<usize>]) -> Result<()> {
        // The record is swept by its time, of which the id tells the lowest.
        let now_ms = self.shared.now_ms().max(self.began_ms);
        let (decision, cause) = match self.shared.coordinator.decide(&self.id, Wish::Commit, now_ms) {
            Ok(decision) => {
                let cause =
                    || Error::conflict("it was prepared for long, and another took it out of the way (expire_ms)");
                (decision, cause())
            }
            // It may have been put nevertheless: this finds out, or settles that it was not.
            Err(error) => match self.shared.outcome(&self.id, Wish::Abort) {
                Ok(decision) => {
                    let cause = match error {
                        Error::Map(error) => refused(error),
                        error => error,
                    };
                    (decision, cause)
                }
                Err(Error::Unknown { cause, .. }) => return Err(self.unknown(false, &cause)),
                Err(_) => return Err(self.unknown(true, &error)),
            },
        };
        if decision.committed {
            self.forward(targets, groups, decision.at_ms);
            Ok(())
        } else {
            self.back(targets, groups);
            self.has_seen(decision);
            Err(cause)
        }
    }
}

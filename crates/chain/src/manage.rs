//! What the manager makes of a table: one change at a time, by what it has heard.
//!
//! table, who is heard of → first rule that applies → the table after it
//!
//! Invariants:
//! 1. A member that serves stops serving only once its lease has run out: [`Heard::Silent`] says that it has.
//! 2. The last that served is the only one that may serve next, and others are brought up to it anew: a power cut may
//!    have taken from it what they have.
//! 3. A server that was started again is a new member: what its last start was, is taken from it first.

use crate::table::{Incarnation, Member, Place, ServerId, Table};

/// What the manager knows of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heard {
    /// It is there, in this start.
    Here(Incarnation),
    /// It was heard of lately, or its lease may not have run out.
    Unsure,
    /// It holds no lease: it was not heard of for as long as one lasts, by the manager's own clock, or gave it up.
    Silent,
}

impl Heard {
    fn is_here(self, incarnation: Incarnation) -> bool {
        self == Self::Here(incarnation)
    }
}

/// The table that is to come after this one; `None` where nothing changes.
///
/// `heard` is of the server and the start of it that the table knows: [`Heard::Here`] with another start is told only
/// once the lease of that one has run out. `in_step` says whether the tail has told that the member which is syncing is
/// in step with it, in this version of the table.
pub fn next_table(table: &Table, heard: impl Fn(&Member) -> Heard, in_step: bool) -> Option<Table> {
    let mut next = table.clone();
    let version = table.version + 1;
    let serving = table.serving().count();
    let lost = |member: &&mut Member| match heard(member) {
        Heard::Here(incarnation) => incarnation != member.incarnation,
        Heard::Silent => true,
        Heard::Unsure => false,
    };
    let mut members = next.members.iter_mut();
    if let Some(member) =
        members.find(|member| !matches!(member.place, Place::Offline | Place::LastServing) && lost(member))
    {
        let is_last = member.place == Place::Serving && serving == 1;
        member.stand(if is_last { Place::LastServing } else { Place::Offline }, version);
        if is_last {
            // What one that is brought up has of it may be more than what is left of it.
            let syncing = next.members.iter_mut().filter(|member| member.place == Place::Syncing);
            syncing.for_each(|member| member.stand(Place::Waiting, version));
        }
        return Some(finished(next));
    }
    for member in &mut next.members {
        let here = match heard(member) {
            Heard::Here(incarnation) => incarnation,
            Heard::Unsure | Heard::Silent => continue,
        };
        let (place, incarnation) = match member.place {
            Place::LastServing => (Place::Serving, here),
            Place::Offline => (Place::Waiting, here),
            _ => continue,
        };
        member.incarnation = incarnation;
        member.stand(place, version);
        return Some(finished(next));
    }
    if in_step && let Some(member) = next.members.iter_mut().find(|member| member.place == Place::Syncing) {
        member.stand(Place::Serving, version);
        return Some(finished(next));
    }
    let syncs = next.members.iter().any(|member| member.place == Place::Syncing);
    if serving > 0 && !syncs {
        let waits = |member: &&mut Member| member.place == Place::Waiting && heard(member).is_here(member.incarnation);
        if let Some(member) = next.members.iter_mut().find(waits) {
            member.stand(Place::Syncing, version);
            return Some(finished(next));
        }
    }
    None
}

impl Member {
    fn stand(&mut self, place: Place, version: u64) {
        (self.place, self.since) = (place, version);
    }
}

fn finished(mut table: Table) -> Table {
    table.version += 1;
    table.arrange();
    table
}

impl Table {
    /// This table with one more member, which is not there yet; `None` if it is a member already.
    pub fn with(&self, server: ServerId) -> Option<Self> {
        if self.member(server).is_some() {
            return None;
        }
        let mut next = self.clone();
        let (incarnation, since) = (Incarnation(0), self.version + 1);
        next.members.push(Member { server, incarnation, place: Place::Offline, since });
        Some(finished(next))
    }
}

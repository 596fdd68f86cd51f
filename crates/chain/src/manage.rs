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

    /// This table without a member; `None` if it is none, takes part in what is written, or is the last that served.
    pub fn without(&self, server: ServerId) -> Option<Self> {
        let place = self.member(server)?.place;
        if !matches!(place, Place::Offline | Place::Waiting) {
            return None;
        }
        let mut next = self.clone();
        next.members.retain(|member| member.server != server);
        Some(finished(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVERS: [ServerId; 3] = [ServerId(0), ServerId(1), ServerId(2)];

    fn first() -> Table {
        Table::first(SERVERS.map(|server| (server, Incarnation(1))))
    }

    fn places(table: &Table) -> Vec<(u32, Place)> {
        table.members.iter().map(|member| (member.server.0, member.place)).collect()
    }

    /// Changes the table as long as something changes, with these servers silent and the others in their first start.
    fn settled(mut table: Table, silent: &[u32], in_step: bool) -> Table {
        let heard = |member: &Member| {
            if silent.contains(&member.server.0) { Heard::Silent } else { Heard::Here(Incarnation(1)) }
        };
        while let Some(next) = next_table(&table, heard, in_step) {
            assert_eq!(next.version, table.version + 1);
            table = next;
        }
        table
    }

    #[test]
    fn while_all_are_there_or_may_be_nothing_changes() {
        for heard in [Heard::Here(Incarnation(1)), Heard::Unsure] {
            assert_eq!(next_table(&first(), |_| heard, false), None);
        }
    }

    #[test]
    fn who_is_silent_goes_and_the_last_is_waited_for() {
        use Place::{LastServing, Offline, Serving};
        assert_eq!(places(&settled(first(), &[0], false)), [(1, Serving), (2, Serving), (0, Offline)]);
        let none = settled(first(), &[0, 1, 2], false);
        assert_eq!(places(&none), [(1, Offline), (0, Offline), (2, LastServing)]);
        // The others may come back as often as they like.
        let others = |member: &Member| if member.server.0 == 2 { Heard::Unsure } else { Heard::Here(Incarnation(7)) };
        let mut table = none;
        while let Some(next) = next_table(&table, others, true) {
            assert!(next.serving().next().is_none(), "{next:?}");
            table = next;
        }
        // Nor does it help them to be there in the start that the manager hears of.
        let nine = |member: &Member| Heard::Here(Incarnation(if member.server.0 == 2 { 9 } else { 7 }));
        let back = next_table(&table, nine, false).unwrap();
        let serving: Vec<_> = back.serving().map(|member| (member.server.0, member.incarnation)).collect();
        assert_eq!(serving, [(2, Incarnation(9))]);
    }

    #[test]
    fn who_comes_back_is_brought_up_one_at_a_time_and_serves_once_in_step() {
        use Place::{Serving, Syncing, Waiting};
        let gone = settled(first(), &[1, 2], false);
        let back = settled(gone, &[], false);
        assert_eq!(places(&back), [(0, Serving), (2, Syncing), (1, Waiting)]);
        let one = next_table(&back, |_| Heard::Here(Incarnation(1)), true).unwrap();
        assert_eq!(places(&one), [(0, Serving), (2, Serving), (1, Waiting)]);
        // What was said of another version counts for nothing: who manages asks anew.
        assert_eq!(places(&settled(one, &[], false)), [(0, Serving), (2, Serving), (1, Syncing)]);
    }

    #[test]
    fn a_new_start_is_another_member() {
        let heard = |member: &Member| Heard::Here(Incarnation(if member.server.0 == 1 { 2 } else { 1 }));
        let next = next_table(&first(), heard, false).unwrap();
        assert_eq!(next.member(ServerId(1)).map(|member| (member.place, member.since)), Some((Place::Offline, 2)));
        let waits = next_table(&next, heard, false).unwrap();
        assert_eq!(waits.start(ServerId(1), Incarnation(2)).map(|member| member.place), Some(Place::Waiting));
    }

    #[test]
    fn the_others_are_brought_up_anew_once_the_last_was_gone() {
        let syncing = settled(settled(first(), &[1, 2], false), &[], false);
        let brought_up = |table: &Table| table.members.iter().find(|member| member.place == Place::Syncing).copied();
        let before = brought_up(&syncing).unwrap();
        let last_gone =
            |member: &Member| if member.server.0 == 0 { Heard::Silent } else { Heard::Here(Incarnation(1)) };
        let gone = next_table(&syncing, last_gone, false).unwrap();
        assert_eq!((brought_up(&gone), gone.serving().count()), (None, 0));
        let after = brought_up(&settled(gone, &[], false)).unwrap();
        assert!(after.since > before.since, "{after:?}");
    }

    #[test]
    fn a_server_is_added_once() {
        let more = first().with(ServerId(9)).unwrap();
        assert_eq!((more.version, more.with(ServerId(9))), (2, None));
        assert_eq!(more.member(ServerId(9)).map(|member| member.place), Some(Place::Offline));
    }

    #[test]
    fn a_server_is_removed_where_it_takes_no_part() {
        let away = settled(first(), &[2], false);
        let less = away.without(ServerId(2)).unwrap();
        assert_eq!((less.version, less.member(ServerId(2))), (away.version + 1, None));
        assert_eq!(less.without(ServerId(2)), None);
        assert_eq!(first().without(ServerId(0)), None, "it serves");
        let none = settled(first(), &[0, 1, 2], false);
        assert_eq!(none.without(ServerId(2)), None, "it is the last that served");
        let syncing = settled(away, &[], false);
        assert_eq!(syncing.without(ServerId(2)), None, "it is brought up");
    }
}

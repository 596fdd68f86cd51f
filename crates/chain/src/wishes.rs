//! What operators have asked of a chain: who is to leave, who is to stay away, who is to head it.
//!
//! ```text
//! wish of a member that takes part → it leaves by itself, as at a planned stop ([`Wishes::leaver`]) → offline
//! wish of one that does not        → the manager's next table ([`Wishes::next_table`])
//! what has come true               → no wish any more ([`Wishes::open`])
//! ```
//!
//! The order of members that serve is never changed: one that is nearer to the tail holds a prefix of what the one
//! before it holds, and put before that one it would decide other operations of the same numbers. So a server comes to
//! head the chain by the leaving of those before it, one after the other, each of which is brought up again behind it.
//!
//! Invariants:
//! 1. By one table at most one member leaves, and only where another serves.
//! 2. For who is to head the chain no member leaves while another may soon serve.

use std::collections::{BTreeMap, BTreeSet};

use crate::manage::{Heard, next_table};
use crate::table::{Member, Place, ServerId, Table};

/// What has been asked of a chain and has not come true.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// These are to be no members any more.
    pub remove: BTreeSet<ServerId>,
    /// These are to stay members that do not serve, until they are wanted back.
    pub drain: BTreeSet<ServerId>,
    /// This one is to head the chain.
    pub promote: Option<ServerId>,
    /// These cannot be reached by the member before them, in this version of the table: they are to come back behind
    /// another.
    pub apart: BTreeMap<ServerId, u64>,
}

impl Wishes {
    fn sends_away(&self, server: ServerId) -> bool {
        self.remove.contains(&server) || self.drain.contains(&server)
    }

    /// Who is to leave the line next, if any is. `has_stood` says that the table has been in place for as long as a
    /// lease lasts: who was taken out by it and is not back by then is not waited for.
    pub fn leaver(&self, table: &Table, has_stood: bool) -> Option<Member> {
        let away = |member: &&Member| self.sends_away(member.server);
        if let Some(member) = table.members.iter().filter(|member| member.place == Place::Syncing).find(away) {
            return Some(*member);
        }
        let [head, second, ..] = table.serving().collect::<Vec<_>>()[..] else { return None };
        if let Some(member) = table.serving().filter(away).last() {
            return Some(*member);
        }
        let is_apart = |member: &&Member| self.apart.get(&member.server) == Some(&table.version);
        if let Some(member) = table.serving().skip(1).find(is_apart) {
            return Some(*member);
        }
        let promoted = self.promote.and_then(|server| table.member(server))?;
        if promoted.place != Place::Serving || promoted.server == head.server {
            return None;
        }
        let comes = |member: &Member| match member.place {
            Place::Syncing | Place::Waiting => true,
            Place::Offline => member.since == table.version && !has_stood && !self.sends_away(member.server),
            Place::Serving | Place::LastServing => false,
        };
        if table.members.iter().any(comes) {
            return None;
        }
        Some(if promoted.server == second.server { *head } else { *second })
    }

    /// As [`next_table`], with what is wished for those that take no part.
    pub fn next_table(&self, table: &Table, heard: impl Fn(&Member) -> Heard, in_step: bool) -> Option<Table> {
        let takes_no_part = |member: &Member| matches!(member.place, Place::Offline | Place::Waiting);
        let mut gone = table.members.iter().filter(|member| takes_no_part(member));
        if let Some(member) = gone.find(|member| self.remove.contains(&member.server)) {
            return table.without(member.server);
        }
        let heard = |member: &Member| {
            // As if it were not there: it comes no nearer.
            if takes_no_part(member) && self.drain.contains(&member.server) { Heard::Silent } else { heard(member) }
        };
        next_table(table, heard, in_step)
    }

    /// What of this has not come true by this table, and still can.
    pub fn open(&self, table: &Table) -> Self {
        let is_member = |server: &&ServerId| table.member(**server).is_some();
        let remove: BTreeSet<_> = self.remove.iter().filter(is_member).copied().collect();
        let drain = self.drain.iter().filter(is_member).filter(|server| !remove.contains(server)).copied().collect();
        let promote = self.promote.filter(|server| {
            let serves = table.member(*server).is_some_and(|member| member.place == Place::Serving);
            serves && !self.sends_away(*server) && table.head().is_some_and(|head| head.server != *server)
        });
        let is_now = |(_, version): &(&ServerId, &u64)| **version == table.version;
        let apart = self.apart.iter().filter(is_now).map(|(server, version)| (*server, *version)).collect();
        Self { remove, drain, promote, apart }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use Place::{LastServing, Offline, Serving, Syncing, Waiting};

    use super::*;
    use crate::table::Incarnation;

    /// Servers 1, 2, … stand so, since version 1; the table has version 5.
    fn table(places: &[Place]) -> Table {
        let member = |(number, place): (usize, &Place)| Member {
            server: ServerId(number as u32 + 1),
            incarnation: Incarnation(1),
            place: *place,
            since: 1,
        };
        Table { version: 5, members: places.iter().enumerate().map(member).collect() }
    }

    #[test]
    fn who_cannot_be_reached_leaves_in_that_table_alone_and_never_as_the_head() {
        let apart = |server, version| Wishes { apart: [(ServerId(server), version)].into(), ..Wishes::default() };
        let three = table(&[Serving, Serving, Serving]);
        let leaver = |wishes: &Wishes| wishes.leaver(&three, true).map(|member| member.server.0);
        assert_eq!(leaver(&apart(2, 5)), Some(2));
        assert_eq!((leaver(&apart(2, 4)), leaver(&apart(1, 5))), (None, None));
        assert_eq!(apart(2, 4).open(&three), Wishes::default());
        assert_eq!(apart(2, 5).open(&three), apart(2, 5));
        assert_eq!(apart(1, 5).leaver(&table(&[Serving]), true), None);
    }

    fn remove(servers: &[u32]) -> Wishes {
        Wishes { remove: servers.iter().copied().map(ServerId).collect(), ..Wishes::default() }
    }

    fn drain(servers: &[u32]) -> Wishes {
        Wishes { drain: servers.iter().copied().map(ServerId).collect(), ..Wishes::default() }
    }

    fn promote(server: u32) -> Wishes {
        Wishes { promote: Some(ServerId(server)), ..Wishes::default() }
    }

    fn leaver(wishes: &Wishes, table: &Table) -> Option<u32> {
        wishes.leaver(table, false).map(|member| member.server.0)
    }

    fn here(_: &Member) -> Heard {
        Heard::Here(Incarnation(1))
    }

    #[test]
    fn one_leaves_at_a_time_and_never_the_last_that_serves() {
        let three = table(&[Serving, Serving, Serving]);
        for wishes in [remove(&[1, 3]), drain(&[1, 3])] {
            assert_eq!(leaver(&wishes, &three), Some(3));
            assert_eq!(leaver(&wishes, &table(&[Serving, Serving, Offline])), Some(1));
            assert_eq!(leaver(&wishes, &table(&[Serving, Syncing, Offline])), None);
            assert_eq!(leaver(&wishes, &table(&[Waiting, Offline, LastServing])), None);
        }
        assert_eq!(leaver(&remove(&[2]), &table(&[Serving, Syncing])), Some(2), "one that is brought up serves none");
        assert_eq!(leaver(&remove(&[9]), &three), None);
    }

    #[test]
    fn those_before_the_one_that_is_to_head_the_chain_leave_one_after_the_other() {
        let wishes = promote(3);
        let mut now = table(&[Serving, Serving, Serving, Serving]);
        let mut left = Vec::new();
        // One that leaves is brought up at once.
        while let Some(member) = wishes.leaver(&now, false) {
            let at = now.members.iter().position(|other| *other == member).unwrap();
            let member = now.members.remove(at);
            now.members.push(member);
            left.push(member.server.0);
        }
        assert_eq!((left, now.head().unwrap().server), (vec![2, 1], ServerId(3)));
        assert_eq!(leaver(&promote(9), &now), None, "it is no member");
        assert_eq!(leaver(&promote(1), &table(&[Serving])), None);
    }

    #[test]
    fn for_the_one_that_is_to_head_the_chain_it_never_has_fewer_members_than_can_be_had() {
        assert_eq!(leaver(&promote(2), &table(&[Serving, Serving, Syncing])), None);
        assert_eq!(leaver(&promote(2), &table(&[Serving, Serving, Waiting])), None);
        assert_eq!(leaver(&promote(2), &table(&[Serving, Serving, Offline])), Some(1), "it was gone before");
        let mut gone = table(&[Serving, Serving, Offline]);
        gone.members[2].since = gone.version;
        assert_eq!(leaver(&promote(2), &gone), None, "it may come back at once");
        assert_eq!(promote(2).leaver(&gone, true).unwrap().server, ServerId(1));
        let wishes = Wishes { promote: Some(ServerId(2)), ..drain(&[3]) };
        assert_eq!(leaver(&wishes, &gone), Some(1), "it is not to come back");
        assert_eq!(leaver(&promote(3), &table(&[Serving, Serving, Offline])), None, "it does not serve");
    }

    #[test]
    fn who_takes_no_part_is_removed_or_kept_from_coming_nearer() {
        let waits = table(&[Serving, Waiting]);
        assert_eq!(remove(&[2]).next_table(&waits, here, false).unwrap().members.len(), 1);
        let mut now = waits;
        while let Some(next) = drain(&[2]).next_table(&now, here, true) {
            now = next;
        }
        assert_eq!(now.member(ServerId(2)).unwrap().place, Offline);
        // Who serves is not touched: it leaves by itself.
        let serves = table(&[Serving, Serving]);
        assert_eq!(remove(&[2]).next_table(&serves, here, false), None);
        let silent = |member: &Member| if member.server.0 == 2 { Heard::Silent } else { here(member) };
        let out = remove(&[2]).next_table(&serves, silent, false).unwrap();
        assert_eq!(out.member(ServerId(2)).unwrap().place, Offline);
        assert_eq!(remove(&[2]).next_table(&out, silent, false).unwrap().member(ServerId(2)), None);
        // Nor who is waited for.
        let last = table(&[Offline, LastServing]);
        let next = remove(&[1, 2]).next_table(&last, here, false).unwrap();
        assert_eq!(next.member(ServerId(2)).unwrap().place, LastServing);
        let next = remove(&[1, 2]).next_table(&next, here, false).unwrap();
        assert_eq!(next.head().unwrap().server, ServerId(2));
    }

    #[test]
    fn what_has_come_true_is_no_wish() {
        let now = table(&[Serving, Serving, Offline]);
        let all = |server: u32| Wishes { promote: Some(ServerId(server)), ..Wishes::default() };
        assert_eq!(all(2).open(&now), all(2));
        for server in [1, 3, 4] {
            assert_eq!(all(server).open(&now), Wishes::default(), "server {server} heads it, or cannot");
        }
        assert_eq!(remove(&[3, 4]).open(&now), remove(&[3]));
        assert_eq!(drain(&[3, 4]).open(&now), drain(&[3]));
        let both = Wishes { promote: Some(ServerId(2)), ..drain(&[2]) };
        assert_eq!(both.open(&now), drain(&[2]));
    }
}

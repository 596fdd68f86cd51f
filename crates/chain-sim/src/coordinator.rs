//! A coordinator in memory: tables, leases and starts, compared and set as `esker_cluster::Coordinator` has it done.
//!
//! call → [`Coordinator`], at one moment → answer
//!
//! Invariants: those of `esker_cluster`: a table is taken only in place of the one before it, while each renewal that
//! its maker counted upon is the last; a renewal only under the table that the server goes by, and of its last start.

use std::collections::BTreeMap;

use esker_chain::{Heard, Incarnation, Member, Place, ServerId, Table, Wishes, next_table};
use esker_cluster::{LeaseRecord, Progress, Proposal, Renewed, Served, ServerRecord, View};

use crate::setting::Micros;

/// What stands of one chain.
#[derive(Clone, Debug)]
pub struct Coordinator {
    /// What a manager sees.
    pub view: View,
    /// The table before this one, and until when it stood.
    before: Option<(Table, Micros)>,
}

impl Coordinator {
    /// A chain of these servers, with these stores: all serve, or the first alone was the last that did.
    pub fn new(members: &[(ServerId, String)], begins_alone: bool) -> Self {
        let mut table = Table::first(members.iter().map(|(server, _)| (*server, Incarnation(1))));
        let (mut leases, mut stores) = (BTreeMap::new(), BTreeMap::new());
        if begins_alone {
            for (at, member) in table.members.iter_mut().enumerate() {
                let place = if at == 0 { Place::LastServing } else { Place::Offline };
                (member.place, member.incarnation) = (place, Incarnation(0));
            }
            table.arrange();
        } else {
            for (server, store) in members {
                let record = lease(Incarnation(1), 1, 0);
                leases.insert(*server, record);
                stores.insert(*server, store.clone());
            }
        }
        let view = View { table, leases, in_step: None, servers: BTreeMap::new(), stores, wishes: Wishes::default() };
        Self { view, before: None }
    }

    /// The table, or the one before it where that stood until less than `lag` ago.
    pub fn table(&self, now: Micros, lag: Micros) -> Table {
        let before = self.before.as_ref().filter(|(_, until)| now < until + lag);
        before.map_or_else(|| self.view.table.clone(), |(table, _)| table.clone())
    }

    /// Registers a start. `goes_on`: as the start before it, which is wrong.
    pub fn register(&mut self, server: ServerId, store: &str, goes_on: bool) -> Incarnation {
        let before = self.view.servers.get(&server).map(|record| record.incarnation.0);
        let incarnation = Incarnation(before.map_or(1, |before| if goes_on { before } else { before + 1 }));
        let served = Served {
            store: store.to_owned(),
            peer: String::new(),
            resp: None,
            grpc: None,
            nbd: None,
            http: None,
            thrift: None,
        };
        self.view.servers.insert(server, ServerRecord { incarnation, served });
        incarnation
    }

    /// Renews a lease.
    pub fn renew(&mut self, server: ServerId, incarnation: Incarnation, version: u64) -> Renewed {
        if self.view.servers.get(&server).is_none_or(|record| record.incarnation != incarnation) {
            return Renewed::Superseded;
        }
        if self.view.table.version != version {
            return Renewed::TableChanged;
        }
        let renewal = self.view.leases.get(&server).map_or(0, |lease| lease.renewal + 1);
        let record = lease(incarnation, version, renewal);
        self.view.leases.insert(server, record);
        Renewed::Taken
    }

    /// Gives a lease up.
    pub fn give_up(&mut self, server: ServerId, incarnation: Incarnation) {
        if let Some(lease) = self.view.leases.get_mut(&server)
            && lease.incarnation == incarnation
            && !lease.gave_up
        {
            (lease.gave_up, lease.renewal) = (true, lease.renewal + 1);
        }
    }

    /// A server that has given its lease up makes the table that is without it.
    pub fn hand_over(&mut self, server: ServerId, incarnation: Incarnation, now: Micros) -> bool {
        let gave_up = self.view.leases.get(&server).is_some_and(|lease| lease.gave_up);
        if !gave_up || self.view.table.start(server, incarnation).is_none() {
            return false;
        }
        let heard = |member: &Member| if member.server == server { Heard::Silent } else { Heard::Unsure };
        let Some(table) = next_table(&self.view.table, heard, false) else { return false };
        self.set(table, now);
        true
    }

    /// Tells who is in step.
    pub fn tell_in_step(&mut self, server: ServerId, version: u64) {
        if self.view.in_step.is_none_or(|(_, last)| last <= version) {
            self.view.in_step = Some((server, version));
        }
    }

    /// Puts a table in place of the one before it.
    pub fn change(&mut self, proposal: &Proposal, now: Micros) -> bool {
        let Proposal { table, standing, stores } = proposal;
        let stands = standing
            .iter()
            .all(|(server, renewal)| self.view.leases.get(server).map(|lease| lease.renewal) == *renewal);
        if table.version != self.view.table.version + 1 || !stands {
            return false;
        }
        self.set(table.clone(), now);
        self.view.stores.extend(stores.iter().cloned());
        true
    }

    fn set(&mut self, table: Table, now: Micros) {
        self.before = Some((std::mem::replace(&mut self.view.table, table), now));
    }
}

/// A lease that was renewed.
fn lease(incarnation: Incarnation, table_version: u64, renewal: u64) -> LeaseRecord {
    LeaseRecord { incarnation, gave_up: false, table_version, renewal, at_ms: 0, progress: Progress::default() }
}

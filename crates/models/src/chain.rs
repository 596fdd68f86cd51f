//! A chain of replicas under a coordinator: servers that stop, pause, lose messages and come back, and a manager that
//! changes who is in the chain.
//!
//! init → every step of every party, in every order ([`ChainModel::actions`]) → [`ChainState`] → [`ChainRule`]s
//!
//! Replicas and manager are the code itself: `esker_chain::Replica` and `next_table`. What stands around them here is
//! what a server does with the effects: a store that applies at once and is durable later, connections that keep the
//! order and may break, a lease.
//!
//! What it leaves out:
//! - Time. A lease may run out at any moment, and a manager finds a server silent only once its lease has run out: that
//!   this is so at any rate of clocks is shown beside `Lease`.
//! - Managers that follow one another: a table is compared and set, so that they cannot be told from one.
//! - What operations do: each adds its name to the state, once, which is how a writer that tries again finds its
//!   outcome.
//! - Copies that come by pieces: a copy comes whole, in order with what else is sent, and is put in place later.
//!
//! Invariants: see [`ChainRule`].

mod bounds;
mod server;
mod state;

use esker_chain::{Heard, Incarnation, ServerId, Table, next_table};
use stateright::{Model, Property};

pub use bounds::{ChainModel, Flaw, SERVERS_MAX};
pub use server::{Parcel, Server};
pub use state::{ChainRule, ChainState};

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChainAction {
    /// A writer sends this operation to a server, perhaps again.
    Write(u8, u8),
    /// What a server has applied becomes durable.
    Sync(u8),
    /// The copy that a server is to make is made, of what it has then.
    Make(u8),
    /// The copy that a server puts in place is whole.
    Put(u8),
    /// The next of what the first has sent arrives at the second.
    Deliver(u8, u8),
    /// The connection between two breaks; what is on its way is lost.
    Cut(u8, u8),
    /// A server loses what is not durable, and is started again.
    Restart(u8),
    /// It reads the table, and renews its lease by it.
    Look(u8),
    /// Its lease runs out.
    Expire(u8),
    /// The manager changes the table, if there is something to change.
    Manage,
    /// It does so having found this server silent.
    ManageWithout(u8),
}

impl ChainModel {
    fn heard(&self, state: &ChainState, silent: Option<usize>, server: ServerId) -> Heard {
        let number = server.0 as usize;
        if silent == Some(number) {
            return Heard::Silent;
        }
        if self.breakage == Some(Flaw::OldStart) {
            // What it was, it goes on to be.
            let member = state.table.member(server);
            return member.map_or(Heard::Unsure, |member| Heard::Here(member.incarnation));
        }
        Heard::Here(state.servers[number].incarnation)
    }

    fn manage(&self, state: &mut ChainState, silent: Option<usize>) -> Option<()> {
        let in_step = state.in_step.is_some_and(|(_, version)| version == state.table.version);
        let in_step = in_step || self.breakage == Some(Flaw::NotInStep);
        let next = next_table(&state.table, |member| self.heard(state, silent, member.server), in_step);
        let mut next = next?;
        if self.breakage == Some(Flaw::StaleServes)
            && next.serving().next().is_none()
            && let Some(member) = next.members.iter_mut().find(|member| {
                silent != Some(member.server.0 as usize) && member.place != esker_chain::Place::LastServing
            })
        {
            member.place = esker_chain::Place::Serving;
            next.arrange();
        }
        if next.version > self.versions {
            return None;
        }
        state.table = next;
        Some(())
    }

    fn holds(&self, rule: ChainRule, state: &ChainState) -> bool {
        if state.broken == Some(rule) {
            return false;
        }
        match rule {
            ChainRule::OneOrder => true,
            ChainRule::Once => {
                let decided = &state.decided;
                decided.iter().enumerate().all(|(at, operation)| !decided[..at].contains(operation))
            }
            ChainRule::NothingLost => state.serving().all(|server| server.lasting().starts_with(&state.decided)),
            ChainRule::Settles => {
                let knows = |server: &Server| server.replica.committed() == server.content.len() as u64;
                !state.is_quiet() || state.table.serving().next().is_none() || state.serving().all(knows)
            }
            ChainRule::ReadsLatest => {
                state.servers().all(|server| server.read(self).is_none_or(|read| read == state.decided))
            }
        }
    }
}

impl Model for ChainModel {
    type State = ChainState;
    type Action = ChainAction;

    fn init_states(&self) -> Vec<ChainState> {
        let members = (0..self.servers).map(|number| (ServerId(number.into()), Incarnation(1)));
        let table = Table::first(members);
        vec![ChainState::new(self, table)]
    }

    fn actions(&self, state: &ChainState, actions: &mut Vec<ChainAction>) {
        if state.broken.is_some() {
            return;
        }
        for number in 0..self.servers {
            let server = &state.servers[usize::from(number)];
            for operation in 0..self.operations {
                if !state.decided.contains(&operation) && server.may_decide() {
                    actions.push(ChainAction::Write(number, operation));
                }
            }
            if server.durable < server.content.len() {
                actions.push(ChainAction::Sync(number));
            }
            if server.making.is_some() {
                actions.push(ChainAction::Make(number));
            }
            if server.putting.is_some() {
                actions.push(ChainAction::Put(number));
            }
            if state.restarts > 0 {
                actions.push(ChainAction::Restart(number));
            }
            if server.replica.table().version < state.table.version || !server.has_lease() {
                actions.push(ChainAction::Look(number));
            }
            if server.has_lease() && state.expiries > 0 {
                actions.push(ChainAction::Expire(number));
            }
            if state::may_find_silent(self, server) {
                actions.push(ChainAction::ManageWithout(number));
            }
            for other in 0..self.servers {
                if !state.net(number, other).is_empty() {
                    actions.push(ChainAction::Deliver(number, other));
                }
                let busy = !state.net(number, other).is_empty() || !state.net(other, number).is_empty();
                if number < other && busy && state.cuts > 0 {
                    actions.push(ChainAction::Cut(number, other));
                }
            }
        }
        actions.push(ChainAction::Manage);
    }

    fn next_state(&self, state: &ChainState, action: ChainAction) -> Option<ChainState> {
        let mut next = state.clone();
        match action {
            ChainAction::Write(server, operation) => next.write(self, server.into(), operation),
            ChainAction::Sync(server) => next.sync(self, server.into()),
            ChainAction::Make(server) => next.make(self, server.into()),
            ChainAction::Put(server) => next.put(self, server.into()),
            ChainAction::Deliver(from, to) => next.deliver(self, from.into(), to.into())?,
            ChainAction::Cut(one, other) => {
                next.cuts -= 1;
                next.cut(self, one.into(), other.into());
            }
            ChainAction::Restart(server) => next.restart(self, server.into()),
            ChainAction::Look(server) => next.look(self, server.into()),
            ChainAction::Expire(server) => {
                next.expiries -= 1;
                next.servers[usize::from(server)].lease = None;
            }
            ChainAction::Manage => self.manage(&mut next, None)?,
            ChainAction::ManageWithout(server) => self.manage(&mut next, Some(server.into()))?,
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ChainRule::OneOrder.name(), |model: &Self, state: &ChainState| {
                model.holds(ChainRule::OneOrder, state)
            }),
            Property::always(ChainRule::Once.name(), |model: &Self, state| model.holds(ChainRule::Once, state)),
            Property::always(ChainRule::NothingLost.name(), |model: &Self, state| {
                model.holds(ChainRule::NothingLost, state)
            }),
            Property::always(ChainRule::ReadsLatest.name(), |model: &Self, state| {
                model.holds(ChainRule::ReadsLatest, state)
            }),
            Property::always(ChainRule::Settles.name(), |model: &Self, state: &ChainState| {
                model.holds(ChainRule::Settles, state)
            }),
            Property::sometimes("all is done", |model: &Self, state: &ChainState| {
                state.decided.len() == usize::from(model.operations)
            }),
            Property::sometimes("one has come back", |_: &Self, state: &ChainState| {
                state.table.serving().any(|member| member.incarnation != Incarnation(1))
            }),
        ]
    }
}

//! The state of the model, and what its steps do.

use std::collections::VecDeque;

use esker_chain::{Effect, Event, Incarnation, Member, Message, Place, Replica, ServerId, Table};

use super::bounds::{ChainModel, Flaw, SERVERS_MAX};
use super::server::{Parcel, Putting, Server};

/// What is to be so in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChainRule {
    /// What is acknowledged is in one order, which only grows.
    OneOrder,
    /// No operation is in it twice.
    Once,
    /// A power cut leaves all of it on every member that serves, or is the last that did.
    NothingLost,
    /// A reader at any replica is told all of it, and nothing else.
    ReadsLatest,
    /// Once nothing is on its way and all have synced, everything is acknowledged, and all who serve know it.
    Settles,
}

impl ChainRule {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::OneOrder, Self::Once, Self::NothingLost, Self::ReadsLatest, Self::Settles];

    /// What it says.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneOrder => "what is acknowledged is in one order",
            Self::Once => "each operation is done once",
            Self::NothingLost => "what is acknowledged is on every member that serves",
            Self::Settles => "what is applied is acknowledged in the end",
            Self::ReadsLatest => "readers are told what is acknowledged, and no less",
        }
    }
}

/// A state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChainState {
    /// The coordinator's.
    pub table: Table,
    /// Who is told to be in step, and in which version of the table.
    pub in_step: Option<(ServerId, u64)>,
    /// The servers.
    pub servers: Vec<Server>,
    /// What is on its way, by sender and receiver.
    net: Vec<VecDeque<Parcel>>,
    /// What is acknowledged, in order.
    pub decided: Vec<u8>,
    /// A rule that a step has broken.
    pub broken: Option<ChainRule>,
    /// Left of [`ChainModel::restarts`].
    pub restarts: u8,
    /// Left of [`ChainModel::cuts`].
    pub cuts: u8,
    /// Left of [`ChainModel::expiries`].
    pub expiries: u8,
}

/// Whether the manager may take a server for silent.
pub(crate) fn may_find_silent(model: &ChainModel, server: &Server) -> bool {
    server.lease.is_none() || model.breakage == Some(Flaw::EphemeralFence)
}

impl ChainState {
    /// The first state: every server has read the first table.
    pub fn new(protocol: &ChainModel, table: Table) -> Self {
        let server = |number: u8| Server {
            incarnation: Incarnation(1),
            replica: Replica::new(ServerId(number.into()), Incarnation(1), 0, protocol.kept_max),
            content: Vec::new(),
            durable: 0,
            lease: None,
            putting: None,
            making: None,
            by: Vec::new(),
        };
        let mut state = Self {
            table,
            in_step: None,
            servers: (0..protocol.servers).map(server).collect(),
            net: vec![VecDeque::new(); SERVERS_MAX * SERVERS_MAX],
            decided: Vec::new(),
            broken: None,
            restarts: protocol.restarts,
            cuts: protocol.cuts,
            expiries: protocol.expiries,
        };
        for number in 0..state.servers.len() {
            state.look(protocol, number);
        }
        state
    }

    /// What the first has sent to the second.
    pub fn net(&self, from: u8, to: u8) -> &VecDeque<Parcel> {
        &self.net[usize::from(from) * SERVERS_MAX + usize::from(to)]
    }

    fn net_mut(&mut self, from: usize, to: usize) -> &mut VecDeque<Parcel> {
        &mut self.net[from * SERVERS_MAX + to]
    }

    /// The servers that run.
    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter()
    }

    /// Whether nothing happens any more of itself: nothing is on its way, and who serves has read the table and synced.
    pub fn is_quiet(&self) -> bool {
        let is_done = |member: &Member| {
            let server = &self.servers[member.server.0 as usize];
            server.replica.table().version == self.table.version
                && server.incarnation == member.incarnation
                && server.durable == server.content.len()
                && server.putting.is_none()
                && server.making.is_none()
        };
        let serves = |member: &&Member| matches!(member.place, Place::Serving | Place::Syncing);
        self.net.iter().all(VecDeque::is_empty) && self.table.members.iter().filter(serves).all(is_done)
    }

    /// The stores of those that serve, or are the last that did, by the coordinator's table.
    pub fn serving(&self) -> impl Iterator<Item = &Server> {
        let members = self.table.members.iter();
        let serving = members.filter(|member| matches!(member.place, Place::Serving | Place::LastServing));
        serving.map(|member| &self.servers[member.server.0 as usize])
    }

    /// A writer sends an operation to a server.
    pub fn write(&mut self, protocol: &ChainModel, number: usize, operation: u8) {
        let server = &mut self.servers[number];
        let known = server.content.contains(&operation) && protocol.breakage != Some(Flaw::NoOutcomes);
        if known || server.content.iter().filter(|known| **known == operation).count() > 1 {
            // Its outcome stands there; it is acknowledged once it is on every copy.
            return;
        }
        server.content.push(operation);
        self.step(protocol, number, Event::Applied(operation));
    }

    /// What a server has applied becomes durable.
    pub fn sync(&mut self, protocol: &ChainModel, number: usize) {
        let server = &mut self.servers[number];
        server.durable = server.content.len();
        let durable = Event::Durable(server.durable as u64);
        self.step(protocol, number, durable);
    }

    /// The next of what is on its way from the first arrives at the second.
    pub fn deliver(&mut self, protocol: &ChainModel, from: usize, to: usize) -> Option<()> {
        let parcel = self.net_mut(from, to).pop_front()?;
        let sender = ServerId(from as u32);
        match parcel {
            Parcel::Message(mut message) => {
                if protocol.breakage == Some(Flaw::AnyVersion) {
                    set_version(&mut message, self.servers[to].replica.table().version);
                }
                let effects = self.servers[to].replica.step(Event::Message(sender, message));
                self.carry_out(protocol, to, effects);
            }
            Parcel::Copy { version, seq, content } => {
                let before = self.servers[to].replica.clone();
                self.step(protocol, to, Event::Copying { from: sender, version, seq });
                let server = &mut self.servers[to];
                // One that is refused changes nothing; another takes the place of one that is not whole yet.
                let begins = before.is_based() != server.replica.is_based()
                    || !before.is_based() && server.replica.is_brought_up_by(sender, version);
                if begins {
                    server.putting = Some(Putting { from: sender, version, seq, content });
                    server.by.clear();
                }
            }
        }
        Some(())
    }

    /// The copy that a server puts in place is whole.
    pub fn put(&mut self, protocol: &ChainModel, number: usize) {
        let server = &mut self.servers[number];
        let Some(Putting { from, version, seq, mut content }) = server.putting.take() else { return };
        let seq = seq + server.by.len() as u64;
        content.append(&mut server.by);
        let before = server.replica.clone();
        let effects = server.replica.step(Event::Copied { from, version, seq });
        if server.replica != before {
            server.durable = content.len();
            server.content = content;
        }
        self.carry_out(protocol, number, effects);
    }

    /// The copy that a server is to make is made.
    pub fn make(&mut self, protocol: &ChainModel, number: usize) {
        let server = &mut self.servers[number];
        let Some(to) = server.making.take() else { return };
        let (version, seq) = (server.replica.table().version, server.content.len() as u64);
        self.step(protocol, number, Event::CopyMade { to, version, seq });
    }

    /// A connection breaks.
    pub fn cut(&mut self, protocol: &ChainModel, one: usize, other: usize) {
        self.net_mut(one, other).clear();
        self.net_mut(other, one).clear();
        self.step(protocol, one, Event::Reconnected(ServerId(other as u32)));
        self.step(protocol, other, Event::Reconnected(ServerId(one as u32)));
    }

    /// A server loses what is not durable, and is started again.
    pub fn restart(&mut self, protocol: &ChainModel, number: usize) {
        self.restarts -= 1;
        let server = &mut self.servers[number];
        server.content.truncate(server.durable);
        let incarnation = match protocol.breakage {
            Some(Flaw::OldStart) => server.incarnation,
            _ => Incarnation(server.incarnation.0 + 1),
        };
        server.incarnation = incarnation;
        server.replica = Replica::new(ServerId(number as u32), incarnation, server.durable as u64, protocol.kept_max);
        (server.lease, server.putting, server.making) = (None, None, None);
        server.by.clear();
        for other in (0..self.servers.len()).filter(|other| *other != number) {
            self.net_mut(number, other).clear();
            self.net_mut(other, number).clear();
            self.step(protocol, other, Event::Reconnected(ServerId(number as u32)));
        }
    }

    /// A server reads the table and renews its lease by it.
    pub fn look(&mut self, protocol: &ChainModel, number: usize) {
        let table = self.table.clone();
        let version = table.version;
        let server = &mut self.servers[number];
        if protocol.breakage == Some(Flaw::Forgets) && version > server.replica.table().version.max(1) {
            let kept = server.replica.committed();
            server.content.truncate(kept as usize);
            server.durable = server.durable.min(server.content.len());
            server.replica = Replica::new(ServerId(number as u32), server.incarnation, kept, protocol.kept_max);
        }
        self.step(protocol, number, Event::Table(table));
        let server = &mut self.servers[number];
        server.lease = server.replica.place().map(|_| version);
    }

    fn step(&mut self, protocol: &ChainModel, number: usize, event: Event<u8>) {
        let effects = self.servers[number].replica.step(event);
        self.carry_out(protocol, number, effects);
    }

    fn carry_out(&mut self, protocol: &ChainModel, number: usize, effects: Vec<Effect<u8>>) {
        for effect in effects {
            match effect {
                Effect::Apply(seq, operation) => {
                    let server = &mut self.servers[number];
                    let is_next = seq == server.content.len() as u64 + 1;
                    assert!(is_next || protocol.breakage.is_some(), "operations are applied in order");
                    server.content.push(operation);
                }
                Effect::PutBy(seq, operation) => {
                    let server = &mut self.servers[number];
                    let before = server.putting.as_ref().map_or(0, |putting| putting.seq);
                    assert_eq!(seq, before + server.by.len() as u64 + 1, "operations are put by in order");
                    server.by.push(operation);
                }
                Effect::Send(to, message) => {
                    self.net_mut(number, to.0 as usize).push_back(Parcel::Message(message));
                }
                Effect::Committed(seq) => self.decide(number, seq as usize),
                Effect::Copy(to) => {
                    self.servers[number].making = Some(to);
                    self.step(protocol, number, Event::CopyBegins(to));
                }
                Effect::Offer { to, seq } => {
                    let version = self.servers[number].replica.table().version;
                    let mut content = self.servers[number].content.clone();
                    assert!(seq == content.len() as u64 || protocol.breakage.is_some(), "a copy is of now");
                    if protocol.breakage == Some(Flaw::OldCopy) {
                        content.pop();
                    }
                    let copy = Parcel::Copy { version, seq, content };
                    self.net_mut(number, to.0 as usize).push_back(copy);
                }
                Effect::Distrust => {
                    let server = &mut self.servers[number];
                    (server.content, server.durable) = (Vec::new(), 0);
                }
                Effect::Refresh => {}
                Effect::InStep(server, version) => self.in_step = Some((server, version)),
            }
        }
    }

    fn decide(&mut self, number: usize, seq: usize) {
        let content = &self.servers[number].content;
        let done = &content[..seq.min(content.len())];
        let (shorter, longer) =
            if done.len() < self.decided.len() { (done, &self.decided[..]) } else { (&self.decided[..], done) };
        if !longer.starts_with(shorter) {
            self.broken = Some(ChainRule::OneOrder);
        }
        self.decided = longer.to_vec();
    }
}

fn set_version(message: &mut Message<u8>, to: u64) {
    let (Message::Begin { version, .. }
    | Message::At { version, .. }
    | Message::Forward { version, .. }
    | Message::Ack { version, .. }
    | Message::Committed { version, .. }) = message;
    *version = to;
}

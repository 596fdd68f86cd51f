//! Everything that there is in a run, and what happens in which order.
//!
//! [`World::run`]: the next event → its server runs? → what it does → events that follow, later
//!
//! Invariants:
//! 1. Two events at one time happen in the order in which they were made: the same setting gives the same run.
//! 2. What happens at a server that stands still happens, in order, when that goes on.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::time::Duration;

use esker_chain::{Incarnation, ServerId, Table};
use esker_cluster::{Proposal, Renewed, Sight, View};
use fastrand::Rng;

use crate::coordinator::Coordinator;
use crate::counts::Counts;
use crate::history::History;
use crate::setting::{COPIES, Fault, Micros, Setting};
use crate::slot::{Answer, Parcel, Slot};

/// Steps after which a run is given up.
const EVENTS_MAX: u64 = 60_000_000;
/// Lines of the trace that are kept.
const LINES_MAX: usize = 4_000;

/// What a slot or a manager asks of the coordinator.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Register,
    Table,
    Renew(Incarnation, u64),
    InStep(ServerId, u64),
    /// Gives the lease up, and makes the table without it.
    HandOver(Incarnation),
}

/// What it answers.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    Registered(Incarnation),
    Table(Table),
    Renewed(Renewed, u64),
    Noted,
    HandedOver,
}

/// What a manager asks.
#[derive(Clone, Debug)]
pub(crate) enum Look {
    Table,
    Rest(Table),
    Change(Proposal),
}

/// What it is told.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    Table(Table),
    View(Box<View>, bool),
    Changed(bool),
}

/// What a client asks of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    Write(u32),
    Read(usize),
}

/// What happens.
#[derive(Clone, Debug)]
pub(crate) enum Happens {
    Deliver { way: usize, number: u64, parcel: Parcel },
    Open { way: usize, number: u64 },
    Alive { way: usize, number: u64 },
    Opened { slot: usize, life: u64 },
    Synced { slot: usize, life: u64, round: u64, seq: u64, upto: (u64, usize) },
    Round { slot: usize, life: u64, timer: u64 },
    Asks { slot: usize, life: u64, call: u64, ask: Ask },
    Told { slot: usize, life: u64, call: u64, told: Told },
    NotTold { slot: usize, life: u64, call: u64 },
    Begin { slot: usize, life: u64 },
    Changed { slot: usize, life: u64 },
    Part { slot: usize, life: u64, offer: u64 },
    CopyEnded { slot: usize, life: u64, offer: u64, failed: bool },
    CopyBegins { slot: usize, life: u64, to: ServerId },
    CopyHolds { slot: usize, life: u64, to: ServerId, version: u64 },
    CopyMade { slot: usize, life: u64, to: ServerId, version: u64, content: Vec<u32> },
    Manage { server: usize, boot: u64, chain: usize, timer: u64 },
    Looks { server: usize, boot: u64, chain: usize, call: u64, look: Look },
    Sees { server: usize, boot: u64, chain: usize, call: u64, seen: Seen },
    SeesNot { server: usize, boot: u64, chain: usize, call: u64 },
    Client { client: usize, call: u64 },
    Request { client: usize, call: u64, slot: usize, request: Request },
    Answered { client: usize, call: u64, slot: usize, answer: Answer },
    Impatient { client: usize, call: u64 },
    Fault,
    Heal(Healing),
    Quiet,
    Check,
}

/// What ends by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Healing {
    Cut(usize, usize),
    Coordinator(usize),
    Resume(usize),
    Boot(usize),
    Disk(usize),
    Reopen(usize),
}

/// The way from one slot to another of its chain.
#[derive(Debug, Default)]
pub(crate) struct Way {
    pub from: usize,
    pub to: usize,
    /// Something was to be sent on it.
    pub made: bool,
    pub open: bool,
    /// Grows with each stream.
    pub number: u64,
    /// When the last that was sent arrives.
    pub last: Micros,
    /// What does not get through.
    pub held: VecDeque<Parcel>,
}

/// What a manager knows of a chain.
#[derive(Debug, Default)]
pub(crate) struct Looking {
    pub sight: Sight,
    pub due: Option<(u64, Micros)>,
    pub call: u64,
    pub calling: bool,
    pub timer: u64,
    pub in_a_row: u32,
}

/// A server.
#[derive(Debug)]
pub(crate) struct Server {
    pub up: bool,
    pub paused: bool,
    /// Grows with each start and end of its process.
    pub boot: u64,
    /// How fast its clock runs, in thousandths.
    pub rate: u64,
    pub offset: Micros,
    pub slots: Vec<usize>,
    /// It does not reach the coordinator.
    pub cut_off: bool,
    /// What happened while it stood still.
    pub unheard: VecDeque<Happens>,
    /// By chain, where it manages.
    pub looks: Vec<Looking>,
}

/// A client.
#[derive(Debug)]
pub(crate) struct Client {
    pub chain: usize,
    pub left: usize,
    /// The table that it knows.
    pub table: Table,
    pub call: u64,
    pub request: Option<Request>,
    pub called: Micros,
    pub tries: u32,
    /// It has written since everything was quiet.
    pub probed: bool,
    pub done: bool,
}

/// A run.
pub struct World {
    pub(crate) setting: Setting,
    pub(crate) rng: Rng,
    pub(crate) now: Micros,
    made: u64,
    queue: BinaryHeap<Reverse<(Micros, u64)>>,
    events: std::collections::HashMap<u64, Happens>,
    pub(crate) servers: Vec<Server>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) ways: Vec<Way>,
    /// Messages from the first server to the second do not arrive.
    pub(crate) cuts: BTreeSet<(usize, usize)>,
    /// One for each chain.
    pub(crate) coordinators: Vec<Coordinator>,
    /// Who holds the office, and when it was last heard of.
    pub(crate) office: Option<(usize, u64, Micros)>,
    pub(crate) clients: Vec<Client>,
    pub(crate) history: History,
    /// What is acknowledged of each chain, in order.
    pub(crate) decided: Vec<Vec<u32>>,
    pub(crate) counts: Counts,
    pub(crate) faulty: bool,
    pub(crate) quiet_since: Micros,
    pub(crate) offers: u64,
    pub(crate) violation: Option<String>,
    pub(crate) settled: bool,
    hash: u64,
    /// Lines are kept of what happens until then.
    tells: Option<Micros>,
    pub(crate) lines: VecDeque<String>,
}

impl World {
    /// The world of this setting, before anything has happened. `tells`: lines are kept of what happens until then.
    pub fn new(setting: Setting, tells: Option<Micros>) -> Self {
        let mut rng = Rng::with_seed(setting.seed);
        let count = setting.servers;
        let chains = count;
        let mut server = |number: usize| Server {
            up: true,
            paused: false,
            boot: 1,
            rate: if setting.skewed {
                *[800, 1_250, 1_000, rng.u64(800..=1_250)].get(rng.usize(0..4)).unwrap_or(&1_000)
            } else {
                1_000
            },
            offset: rng.u64(1..1_000_000_000),
            slots: (0..COPIES).map(|copy| (number + count - copy) % count * COPIES + copy).collect(),
            cut_off: false,
            unheard: VecDeque::new(),
            looks: (0..chains).map(|_| Looking::default()).collect(),
        };
        let servers: Vec<_> = (0..count).map(&mut server).collect();
        let slots: Vec<_> = (0..chains * COPIES)
            .map(|slot| Slot {
                chain: slot / COPIES,
                server: (slot / COPIES + slot % COPIES) % count,
                ..Slot::default()
            })
            .collect();
        let ways = (0..slots.len() * COPIES)
            .map(|way| Way { from: way / COPIES, to: way / COPIES / COPIES * COPIES + way % COPIES, ..Way::default() })
            .collect();
        let members = |chain: usize| -> Vec<_> {
            let of = |slot: usize| (ServerId(slots[slot].server as u32), format!("store-{slot}"));
            (chain * COPIES..(chain + 1) * COPIES).map(of).collect()
        };
        let coordinators: Vec<_> =
            (0..chains).map(|chain| Coordinator::new(&members(chain), setting.begins_alone)).collect();
        let client = |number: usize| Client {
            chain: number % chains,
            left: setting.operations,
            table: coordinators[number % chains].view.table.clone(),
            call: 0,
            request: None,
            called: 0,
            tries: 0,
            probed: false,
            done: false,
        };
        let clients = (0..chains * setting.clients).map(client).collect();
        Self {
            rng,
            now: 0,
            made: 0,
            queue: BinaryHeap::new(),
            events: std::collections::HashMap::new(),
            servers,
            slots,
            ways,
            cuts: BTreeSet::new(),
            coordinators,
            office: None,
            clients,
            history: History::default(),
            decided: vec![Vec::new(); chains],
            counts: Counts::default(),
            faulty: true,
            quiet_since: 0,
            offers: 0,
            violation: None,
            settled: false,
            hash: 0xcbf2_9ce4_8422_2325,
            tells,
            lines: VecDeque::new(),
            setting,
        }
    }

    /// Runs until all has settled, or a promise is found broken.
    pub fn run(&mut self) {
        for server in 0..self.servers.len() {
            self.start(server);
        }
        for client in 0..self.clients.len() {
            let at = self.rng.u64(0..self.setting.period);
            self.after(at, Happens::Client { client, call: 0 });
        }
        if !self.setting.faults.is_empty() {
            let first = self.rng.u64(0..self.setting.between_faults * 4);
            self.after(first, Happens::Fault);
        }
        self.after(self.setting.faulty_for, Happens::Quiet);
        while self.violation.is_none() && !self.settled {
            let Some(Reverse((at, number))) = self.queue.pop() else {
                self.violates("nothing happens any more".into());
                return;
            };
            let Some(event) = self.events.remove(&number) else { continue };
            self.now = at;
            self.counts.events += 1;
            if self.counts.events > EVENTS_MAX {
                self.violates(format!("no end after {EVENTS_MAX} steps"));
            }
            self.happen(event);
        }
    }

    /// What was counted.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The promise that was found broken.
    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    /// The last of what happened, line by line.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    /// A digest of everything that happened, in its order.
    pub fn trace(&self) -> u64 {
        self.hash
    }

    pub(crate) fn violates(&mut self, what: String) {
        self.say(|| format!("VIOLATION: {what}"));
        self.violation.get_or_insert(what);
    }

    pub(crate) fn after(&mut self, delay: Micros, event: Happens) {
        self.made += 1;
        self.queue.push(Reverse((self.now + delay, self.made)));
        self.events.insert(self.made, event);
    }

    pub(crate) fn at(&mut self, at: Micros, event: Happens) {
        self.after(at.saturating_sub(self.now), event);
    }

    pub(crate) fn say(&mut self, line: impl FnOnce() -> String) {
        if self.tells.is_some_and(|until| self.now <= until) {
            if self.lines.len() == LINES_MAX {
                self.lines.pop_front();
            }
            self.lines.push_back(format!("{:>12.3} ms  {}", self.now as f64 / 1e3, line()));
        }
    }

    /// Takes note of what happens, for the digest.
    pub(crate) fn note(&mut self, what: u64, where_: u64, which: u64) {
        for part in [self.now, what, where_, which] {
            self.hash = (self.hash ^ part).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
    }

    /// The time by a server's clock.
    pub(crate) fn clock(&self, server: usize) -> Duration {
        let Server { rate, offset, .. } = &self.servers[server];
        Duration::from_micros(offset + self.now * rate / 1_000)
    }

    /// How long it takes until a server's clock has gone on by so much.
    pub(crate) fn by_clock(&self, server: usize, own: Micros) -> Micros {
        own * 1_000 / self.servers[server].rate + 1
    }

    pub(crate) fn up_to(&mut self, max: Micros) -> Micros {
        // Mostly soon, at times late.
        let max = if self.rng.u32(0..8) == 0 { max } else { max / 4 };
        self.rng.u64(0..=max) + 20
    }

    pub(crate) fn period(&self) -> Duration {
        Duration::from_micros(self.setting.period)
    }

    pub(crate) fn slot_of(&self, chain: usize, server: ServerId) -> usize {
        let slots = chain * COPIES..(chain + 1) * COPIES;
        slots.clone().find(|slot| self.slots[*slot].server == server.0 as usize).unwrap_or(slots.start)
    }

    pub(crate) fn is_life(&self, slot: usize, life: u64) -> bool {
        self.slots[slot].number == life && self.servers[self.slots[slot].server].up
    }

    /// The server at which something happens.
    fn place_of(&self, event: &Happens) -> Option<usize> {
        match event {
            Happens::Deliver { way, .. } => Some(self.slots[self.ways[*way].to].server),
            Happens::Open { way, .. } => Some(self.slots[self.ways[*way].from].server),
            Happens::Opened { slot, .. }
            | Happens::Synced { slot, .. }
            | Happens::Round { slot, .. }
            | Happens::Told { slot, .. }
            | Happens::NotTold { slot, .. }
            | Happens::Begin { slot, .. }
            | Happens::Changed { slot, .. }
            | Happens::Part { slot, .. }
            | Happens::CopyEnded { slot, .. }
            | Happens::CopyBegins { slot, .. }
            | Happens::CopyHolds { slot, .. }
            | Happens::CopyMade { slot, .. }
            | Happens::Request { slot, .. } => Some(self.slots[*slot].server),
            Happens::Manage { server, .. } | Happens::Sees { server, .. } | Happens::SeesNot { server, .. } => {
                Some(*server)
            }
            _ => None,
        }
    }

    pub(crate) fn happen(&mut self, event: Happens) {
        let arrives = match &event {
            Happens::Deliver { way, number, .. } => {
                let Way { from, to, number: present, held, .. } = &self.ways[*way];
                let is_cut = self.is_cut(self.slots[*from].server, self.slots[*to].server);
                present == number && held.is_empty() && !is_cut
            }
            _ => true,
        };
        if let Some(server) = self.place_of(&event).filter(|_| arrives)
            && self.servers[server].paused
        {
            // What has arrived is heard later, whatever becomes of its stream.
            self.servers[server].unheard.push_back(event);
            return;
        }
        self.carry_out(event, false);
    }

    /// `heard`: it has arrived before, at a server that stood still.
    pub(crate) fn carry_out(&mut self, event: Happens, heard: bool) {
        match event {
            Happens::Deliver { way, number, parcel } => self.deliver(way, number, parcel, heard),
            Happens::Open { way, number } => self.open(way, number),
            Happens::Alive { way, number } => self.alive(way, number),
            Happens::Opened { slot, life } => self.opened(slot, life),
            Happens::Synced { slot, life, round, seq, upto } => self.synced(slot, life, (round, seq, upto)),
            Happens::Round { slot, life, timer } => {
                if self.is_life(slot, life) && self.slots[slot].timer == timer {
                    self.round(slot);
                }
            }
            Happens::Asks { slot, life, call, ask } => self.asked(slot, life, call, ask),
            Happens::Told { slot, life, call, told } => self.told(slot, life, call, told),
            Happens::NotTold { slot, life, call } => self.not_told(slot, life, call),
            Happens::Begin { slot, life } => self.begin_life(slot, life),
            Happens::Changed { slot, life } => {
                if self.is_life(slot, life) {
                    self.hasten(slot);
                }
            }
            Happens::Part { slot, life, offer } => self.part(slot, life, offer),
            Happens::CopyEnded { slot, life, offer, failed } => self.copy_ended(slot, life, offer, failed),
            Happens::CopyBegins { slot, life, to } => self.copy_begins(slot, life, to),
            Happens::CopyHolds { slot, life, to, version } => self.copy_holds(slot, life, to, version),
            Happens::CopyMade { slot, life, to, version, content } => {
                self.copy_made(slot, life, (to, version), content)
            }
            Happens::Manage { server, boot, chain, timer } => self.manage(server, boot, chain, timer),
            Happens::Looks { server, boot, chain, call, look } => self.looked(server, boot, chain, call, look),
            Happens::Sees { server, boot, chain, call, seen } => self.sees(server, boot, chain, call, seen),
            Happens::SeesNot { server, boot, chain, call } => self.sees_not(server, boot, chain, call),
            Happens::Client { client, call } => self.client(client, call),
            Happens::Request { client, call, slot, request } => self.requested(client, call, slot, request),
            Happens::Answered { client, call, slot, answer } => self.answered(client, call, slot, answer),
            Happens::Impatient { client, call } => self.impatient(client, call),
            Happens::Fault => self.fault(),
            Happens::Heal(healing) => self.heal(healing),
            Happens::Quiet => self.quiet(),
            Happens::Check => self.check(),
        }
    }

    /// Takes note that a kind of fault has come.
    pub(crate) fn count_fault(&mut self, fault: Fault) {
        *self.counts.faults.entry(fault).or_default() += 1;
    }
}

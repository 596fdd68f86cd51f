//! Streams between servers: each carries what one replica sends to another, in order, or breaks.
//!
//! send → open? → after a while, at the other → heard; cut → held → through later, or the stream ends
//! a stream ends → what is on its way is lost → another is opened → the sender is told
//!
//! As in `esker-peers`: what is sent without a stream is lost, and only the server whose stream it was is told of the
//! next one.

use esker_chain::{Event, ServerId};

use crate::setting::{COPIES, MS, Micros};
use crate::slot::Parcel;
use crate::world::{Happens, World};

/// A header of a message, in bytes.
pub(crate) const HEADER_BYTES: u64 = 64;

impl World {
    /// How long a peer may say nothing before its stream is given up.
    fn alive_after(&self) -> Micros {
        self.setting.period
    }

    pub(crate) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.contains(&(from, to))
    }

    /// Whether one server can call another and hear its answer.
    pub(crate) fn reaches(&self, from: usize, to: usize) -> bool {
        let is_there = self.servers[to].up && !self.servers[to].paused && self.servers[from].up;
        is_there && !self.is_cut(from, to) && !self.is_cut(to, from)
    }

    pub(crate) fn send(&mut self, slot: usize, to: ServerId, parcel: Parcel) {
        let other = self.slot_of(self.slots[slot].chain, to);
        let way = slot * COPIES + other % COPIES;
        if !self.ways[way].made {
            self.ways[way].made = true;
            let (number, delay) = (self.ways[way].number, self.up_to(self.setting.delay_max));
            self.after(delay, Happens::Open { way, number });
        }
        if !self.ways[way].open {
            return;
        }
        self.counts.messages += 1;
        self.counts.bytes += HEADER_BYTES;
        if let Parcel::Message(esker_chain::Message::Forward { operation, .. }) = &parcel {
            self.counts.bytes += u64::from(operation.bytes);
        }
        let at = (self.now + self.up_to(self.setting.delay_max)).max(self.ways[way].last + 1);
        self.ways[way].last = at;
        let number = self.ways[way].number;
        self.at(at, Happens::Deliver { way, number, parcel });
    }

    pub(crate) fn deliver(&mut self, way: usize, number: u64, parcel: Parcel, heard: bool) {
        let (from, to) = (self.ways[way].from, self.ways[way].to);
        let (sender, server) = (self.slots[from].server, self.slots[to].server);
        let is_lost = !heard && (self.ways[way].number != number || !self.servers[server].up);
        if is_lost {
            self.counts.lost += 1;
            return;
        }
        if !heard && (self.is_cut(sender, server) || !self.ways[way].held.is_empty()) {
            self.ways[way].held.push_back(parcel);
            return;
        }
        self.note(1, way as u64, number);
        self.say(|| format!("chain {} {sender} → {server}: {}", from / COPIES, shown(&parcel)));
        match parcel {
            Parcel::Message(message) => {
                let message = self.as_broken(to, message);
                self.step(to, Event::Message(ServerId(sender as u32), message));
            }
            Parcel::Copy(offer) => self.offered(to, from, offer),
        }
    }

    /// A stream is to be opened.
    pub(crate) fn open(&mut self, way: usize, number: u64) {
        let (from, to) = (self.ways[way].from, self.ways[way].to);
        let (sender, server) = (self.slots[from].server, self.slots[to].server);
        if self.ways[way].number != number || self.ways[way].open || !self.servers[sender].up {
            return;
        }
        if !self.reaches(sender, server) {
            let again = self.rng.u64(50 * MS..1_000 * MS).min(self.setting.period / 2);
            self.after(again, Happens::Open { way, number });
            return;
        }
        self.ways[way].open = true;
        self.note(2, way as u64, number);
        self.say(|| format!("chain {} {sender} → {server}: a stream", from / COPIES));
        if self.slots[from].life.is_some() {
            let other = self.me(to);
            self.step(from, Event::Reconnected(other));
        }
    }

    /// A stream ends: what is on its way is lost.
    pub(crate) fn break_way(&mut self, way: usize) {
        let made = self.ways[way].made;
        let Self { ways, .. } = self;
        ways[way].number += 1;
        ways[way].open = false;
        self.counts.lost += ways[way].held.len() as u64;
        ways[way].held.clear();
        if made {
            let number = self.ways[way].number;
            let pause = self.up_to(self.setting.delay_max + 50 * MS);
            self.after(pause, Happens::Open { way, number });
        }
    }

    /// The ways between two servers, in both directions.
    pub(crate) fn ways_between(&self, one: usize, other: usize) -> Vec<usize> {
        let of = |slot: &usize| (*slot * COPIES..(*slot + 1) * COPIES).collect::<Vec<_>>();
        let slots = [one, other].into_iter().flat_map(|server| self.servers[server].slots.iter().flat_map(of));
        let ends = |way: &usize| (self.slots[self.ways[*way].from].server, self.slots[self.ways[*way].to].server);
        slots.filter(|way| ends(way) == (one, other) || ends(way) == (other, one)).collect()
    }

    /// Whether a peer was silent for too long.
    pub(crate) fn alive(&mut self, way: usize, number: u64) {
        let (from, to) = (self.ways[way].from, self.ways[way].to);
        let (sender, server) = (self.slots[from].server, self.slots[to].server);
        if self.ways[way].number == number && self.ways[way].open && !self.reaches(sender, server) {
            self.break_way(way);
        }
    }

    /// Peers will find out that these do not answer.
    pub(crate) fn watch_ways(&mut self, one: usize, other: usize) {
        for way in self.ways_between(one, other) {
            let number = self.ways[way].number;
            let after = self.alive_after() + self.rng.u64(0..self.alive_after());
            self.after(after, Happens::Alive { way, number });
        }
    }

    /// What was held between two servers gets through.
    pub(crate) fn release(&mut self, from: usize, to: usize) {
        for way in self.ways_between(from, to) {
            let of = |slot: usize| self.slots[slot].server;
            if (of(self.ways[way].from), of(self.ways[way].to)) != (from, to) {
                continue;
            }
            let number = self.ways[way].number;
            let held = std::mem::take(&mut self.ways[way].held);
            for parcel in held {
                self.happen(Happens::Deliver { way, number, parcel });
            }
        }
    }
}

fn shown(parcel: &Parcel) -> String {
    match parcel {
        Parcel::Message(message) => format!("{message:?}"),
        Parcel::Copy(offer) => format!("copy {} of version {}, after {}", offer.number, offer.version, offer.seq),
    }
}

//! Clients: each asks one thing after the other, and tries again elsewhere where it is not answered.
//!
//! pause → write or read → a server by the table that it knows → answered → noted; not → the table anew
//! → again
//!
//! Invariant: what a client was told is noted at the time when it heard it, and what it does not know stays open.

use esker_chain::{Place, ServerId};

use crate::history::{Asked, Looked};
use crate::setting::{COPIES, Micros};
use crate::slot::Answer;
use crate::world::{Happens, Request, World};

/// A client gives up after so many tries, while things go wrong.
const TRIES_MAX: u32 = 12;

impl World {
    /// A client's turn.
    pub(crate) fn client(&mut self, client: usize, call: u64) {
        if self.clients[client].call != call || self.clients[client].done {
            return;
        }
        if self.clients[client].request.is_some() {
            self.ask(client);
            return;
        }
        let probes = !self.faulty;
        if probes && std::mem::replace(&mut self.clients[client].probed, true) {
            self.clients[client].done = true;
            return;
        }
        if !probes && self.clients[client].left == 0 {
            return;
        }
        self.clients[client].left = self.clients[client].left.saturating_sub(1);
        let (chain, keys) = (self.clients[client].chain, self.setting.keys);
        let key = self.rng.usize(0..keys);
        let reads = !probes && self.rng.u32(0..100) < self.setting.reads;
        let request = if reads {
            Request::Read(key)
        } else {
            let guards = !probes && self.rng.u32(0..4) == 0;
            // What it was told last, by anyone: it may be another by now.
            let last = |looked: &&Looked| (looked.chain, looked.key) == (chain, key);
            let recent = self.history.reads.iter().rev().take(200).find(last).map(|looked| looked.last);
            let expects = recent.filter(|_| guards);
            self.history.writes.push(Asked { chain, key, expects, called: self.now, told: None });
            Request::Write(self.history.writes.len() as u32)
        };
        let record = &mut self.clients[client];
        (record.request, record.tries) = (Some(request), 0);
        self.ask(client);
    }

    /// Asks a server.
    fn ask(&mut self, client: usize) {
        let chain = self.clients[client].chain;
        let Some(request) = self.clients[client].request else { return };
        let table = &self.clients[client].table;
        let serving: Vec<ServerId> = table.serving().map(|member| member.server).collect();
        let any = self.rng.usize(0..COPIES);
        let to = match request {
            Request::Write(_) if self.rng.u32(0..20) != 0 => serving.first().copied(),
            _ if serving.is_empty() => None,
            _ => Some(serving[any % serving.len()]),
        };
        let slot = to.map_or(chain * COPIES + any, |server| self.slot_of(chain, server));
        let patience = self.setting.period / 2 + self.rng.u64(0..self.setting.period / 2);
        let delay = self.up_to(self.setting.delay_max);
        let record = &mut self.clients[client];
        record.call += 1;
        record.called = self.now;
        let call = record.call;
        self.after(delay, Happens::Request { client, call, slot, request });
        self.after(patience, Happens::Impatient { client, call });
    }

    /// A server answers a client.
    pub(crate) fn tell(&mut self, slot: usize, client: usize, call: u64, answer: Answer) {
        if self.faulty && !self.setting.faults.is_empty() && self.rng.u32(0..100) == 0 {
            // Lost.
            return;
        }
        let delay = self.up_to(self.setting.delay_max);
        self.after(delay, Happens::Answered { client, call, slot, answer });
    }

    /// A client is answered.
    pub(crate) fn answered(&mut self, client: usize, call: u64, slot: usize, answer: Answer) {
        if self.clients[client].call != call {
            return;
        }
        let Some(request) = self.clients[client].request else { return };
        self.note(9, client as u64, slot as u64);
        let (chain, called, now) = (self.clients[client].chain, self.clients[client].called, self.now);
        let server = self.slots[slot].server;
        self.say(|| format!("client {client} at slot {slot}: {request:?} → {answer:?}"));
        match (request, answer) {
            (Request::Write(id), Answer::Done(count)) => {
                if let Some(write) = self.history.writes.get_mut(id as usize - 1) {
                    write.told = Some((now, count));
                }
                self.counts.acknowledged += 1;
                self.next_operation(client);
            }
            (Request::Write(id), Answer::Refused(last)) => {
                let key = self.history.write(id).map_or(0, |write| write.key);
                self.history.reads.push(Looked { chain, key, last, called, told: now, server });
                self.next_operation(client);
            }
            (Request::Read(key), Answer::Value(last)) => {
                self.history.reads.push(Looked { chain, key, last, called, told: now, server });
                self.counts.reads += 1;
                let head = self.coordinators[chain].view.table.head().map(|head| head.server);
                self.counts.reads_behind += u64::from(head != Some(ServerId(server as u32)));
                self.next_operation(client);
            }
            _ => self.try_again(client),
        }
    }

    /// No answer came.
    pub(crate) fn impatient(&mut self, client: usize, call: u64) {
        if self.clients[client].call == call && self.clients[client].request.is_some() {
            self.try_again(client);
        }
    }

    fn try_again(&mut self, client: usize) {
        let chain = self.clients[client].chain;
        let lag = if self.rng.u32(0..4) == 0 { self.setting.lag } else { 0 };
        let table = self.coordinators[chain].table(self.now, lag);
        let record = &mut self.clients[client];
        record.table = table;
        record.tries += 1;
        // What comes to this call is not heard any more.
        record.call += 1;
        if self.faulty && record.tries > TRIES_MAX {
            self.counts.unknown += u64::from(matches!(record.request, Some(Request::Write(_))));
            self.next_operation(client);
            return;
        }
        let is_served = record.table.members.iter().any(|member| member.place == Place::Serving);
        let pause = if is_served { self.setting.period / 16 } else { self.setting.period / 2 };
        self.turn_after(client, pause);
    }

    fn next_operation(&mut self, client: usize) {
        self.clients[client].request = None;
        self.clients[client].call += 1;
        let pause = self.rng.u64(0..self.setting.think_max);
        self.turn_after(client, if self.faulty { pause } else { 1 });
    }

    fn turn_after(&mut self, client: usize, pause: Micros) {
        let (call, pause) = (self.clients[client].call, pause + self.rng.u64(1..2_000));
        self.after(pause, Happens::Client { client, call });
    }
}

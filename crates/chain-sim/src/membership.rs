//! A server as a member of its chains: it registers, reads the table, renews; as `esker-member` does.
//!
//! store opened → registered → round: table → goes by it → renewal → in step? told → … → over
//!
//! Invariant: one call of the coordinator is under way for a replica at a time, and ends.

use std::time::Duration;

use esker_chain::{Event, Place, Replica, ServerId};
use esker_cluster::Renewed;

use crate::setting::{Breakage, COPIES};
use crate::slot::Life;
use crate::world::{Ask, Happens, Told, World};

/// Leases are renewed so often in one period.
const RENEWALS: u64 = 8;

impl World {
    pub(crate) fn me(&self, slot: usize) -> ServerId {
        ServerId(self.slots[slot].server as u32)
    }

    /// A process starts.
    pub(crate) fn start(&mut self, server: usize) {
        let record = &mut self.servers[server];
        (record.up, record.paused) = (true, false);
        record.boot += 1;
        record.unheard.clear();
        for slot in self.servers[server].slots.clone() {
            self.slots[slot].number += 1;
            self.slots[slot].superseded = false;
            let life = self.slots[slot].number;
            self.after(0, Happens::Begin { slot, life });
        }
        self.begin_to_manage(server);
    }

    /// A process is gone, at once. What is not durable may be.
    pub(crate) fn kill(&mut self, server: usize) {
        let record = &mut self.servers[server];
        if !record.up {
            return;
        }
        (record.up, record.paused) = (false, false);
        record.boot += 1;
        record.unheard.clear();
        self.say(|| format!("server {server} is gone"));
        for slot in self.servers[server].slots.clone() {
            let Self { slots, history, rng, .. } = self;
            let key_of = |id: u32| history.write(id).map_or(0, |write| write.key);
            self.counts.taken_back += slots[slot].disk.crash(rng, key_of) as u64;
            self.slots[slot].life = None;
            self.slots[slot].number += 1;
            self.slots[slot].calling = false;
            for other in 0..COPIES {
                let out = slot * COPIES + other;
                self.break_way(out);
                self.ways[out].made = false;
                let back = (slot / COPIES * COPIES + other) * COPIES + slot % COPIES;
                self.break_way(back);
            }
            self.check_lasting(slot / COPIES);
        }
    }

    /// A life begins: the store is opened, and synced.
    pub(crate) fn begin_life(&mut self, slot: usize, number: u64) {
        if !self.is_life(slot, number) || self.slots[slot].life.is_some() {
            return;
        }
        if self.slots[slot].disk.full {
            let again = self.by_clock(self.slots[slot].server, self.setting.period / RENEWALS);
            self.after(again, Happens::Begin { slot, life: number });
            return;
        }
        if self.slots[slot].disk.poisoned {
            // An operator has to open it anew.
            let Self { slots, history, rng, .. } = self;
            let key_of = |id: u32| history.write(id).map_or(0, |write| write.key);
            self.counts.taken_back += slots[slot].disk.crash(rng, key_of) as u64;
            self.check_lasting(slot / COPIES);
        }
        let delay = self.up_to(self.setting.sync_max);
        self.after(delay, Happens::Opened { slot, life: number });
    }

    /// The store is open: everything that it has is durable.
    pub(crate) fn opened(&mut self, slot: usize, number: u64) {
        if !self.is_life(slot, number) || self.slots[slot].life.is_some() {
            return;
        }
        let disk = &mut self.slots[slot].disk;
        disk.synced(disk.sync());
        self.call(slot, Ask::Register);
    }

    /// Asks the coordinator, and waits for its answer for half a period.
    pub(crate) fn call(&mut self, slot: usize, ask: Ask) {
        let server = self.slots[slot].server;
        self.slots[slot].call += 1;
        self.slots[slot].calling = true;
        let (life, call) = (self.slots[slot].number, self.slots[slot].call);
        let patience = self.call_time(server);
        self.after(patience, Happens::NotTold { slot, life, call });
        if !self.servers[server].cut_off {
            let delay = self.up_to(self.setting.call_max);
            self.after(delay, Happens::Asks { slot, life, call, ask });
        }
    }

    /// The coordinator is asked.
    pub(crate) fn asked(&mut self, slot: usize, life: u64, call: u64, ask: Ask) {
        let (server, chain, me) = (self.slots[slot].server, self.slots[slot].chain, self.me(slot));
        let cut_off = self.servers[server].cut_off;
        // Registering takes two steps, compared and set: one that is overtaken changes nothing.
        let overtaken = matches!(ask, Ask::Register) && !self.is_life(slot, life);
        if overtaken || cut_off && self.rng.bool() {
            return;
        }
        self.counts.calls += 1;
        self.note(6, slot as u64, call);
        let (now, lag) = (self.now, self.setting.lag);
        let goes_on = self.setting.breakage == Some(Breakage::OldStart);
        let coordinator = &mut self.coordinators[chain];
        let told = match ask {
            Ask::Register => Told::Registered(coordinator.register(me, &format!("store-{slot}"), goes_on)),
            Ask::Table => Told::Table(coordinator.table(now, if self.rng.bool() { lag } else { 0 })),
            Ask::Renew(incarnation, version) => Told::Renewed(coordinator.renew(me, incarnation, version), version),
            Ask::InStep(server, version) => {
                coordinator.tell_in_step(server, version);
                self.wake(chain);
                Told::Noted
            }
            Ask::HandOver(incarnation) => {
                coordinator.give_up(me, incarnation);
                if coordinator.hand_over(me, incarnation, now) {
                    self.table_set(chain);
                }
                Told::HandedOver
            }
        };
        if !self.servers[server].cut_off {
            let delay = self.up_to(self.setting.call_max);
            self.after(delay, Happens::Told { slot, life, call, told });
        }
    }

    /// The coordinator has answered.
    pub(crate) fn told(&mut self, slot: usize, number: u64, call: u64, told: Told) {
        if !self.is_life(slot, number) || self.slots[slot].call != call || !self.slots[slot].calling {
            return;
        }
        self.slots[slot].calling = false;
        let (me, server) = (self.me(slot), self.slots[slot].server);
        match told {
            Told::Registered(incarnation) => {
                let disk = &self.slots[slot].disk;
                let (applied, is_part) = (disk.content().len() as u64, disk.is_part());
                let replica = Replica::new(me, incarnation, applied, self.setting.kept_bytes_max);
                let replica = if is_part { replica.unbased() } else { replica };
                self.say(|| {
                    format!("slot {slot} is {incarnation:?} of server {server}, with {applied}, part: {is_part}")
                });
                self.slots[slot].life = Some(Life::new(incarnation, replica));
                self.round(slot);
            }
            Told::Table(table) => {
                let Some(life) = self.slots[slot].life.as_mut() else { return };
                let place = table.start(me, life.incarnation).map(|member| member.place);
                if life.served && place != Some(Place::Serving) {
                    self.end_life(slot, false);
                    return;
                }
                let version = table.version;
                let is_new = version > life.replica.table().version;
                if is_new {
                    self.say(|| format!("slot {slot} goes by {}", shown(&table)));
                }
                self.step(slot, Event::Table(table));
                let sent = self.clock(server).as_micros() as u64;
                let Some(life) = self.slots[slot].life.as_mut() else { return };
                life.served |= place == Some(Place::Serving);
                if life.failed {
                    self.end_life(slot, true);
                    return;
                }
                life.sent = sent;
                let incarnation = life.incarnation;
                self.call(slot, Ask::Renew(incarnation, version));
            }
            Told::Renewed(Renewed::Taken, version) => {
                self.renewed(slot, version);
                self.tidy(slot);
                if !self.slots[slot].calling {
                    self.round_later(slot);
                }
            }
            Told::Renewed(Renewed::TableChanged, _) => self.round(slot),
            Told::Renewed(Renewed::Superseded, _) => {
                self.say(|| format!("slot {slot} is superseded"));
                self.slots[slot].superseded = true;
                if self.setting.breakage.is_none() {
                    self.violates(format!("slot {slot} is superseded, and no other start has registered"));
                }
                self.answer_all_unknown(slot);
                self.slots[slot].life = None;
                self.slots[slot].number += 1;
            }
            Told::Noted => self.round_later(slot),
            Told::HandedOver => self.next_life(slot, true),
        }
    }

    /// It has not, in time.
    pub(crate) fn not_told(&mut self, slot: usize, number: u64, call: u64) {
        if !self.is_life(slot, number) || self.slots[slot].call != call || !self.slots[slot].calling {
            return;
        }
        self.slots[slot].calling = false;
        match &self.slots[slot].life {
            None => {
                let pause = self.by_clock(self.slots[slot].server, self.setting.period / RENEWALS);
                self.after(pause, Happens::Begin { slot, life: number });
            }
            Some(life) if life.failed => self.next_life(slot, true),
            Some(_) => self.round_later(slot),
        }
    }

    /// Reads the table, now.
    pub(crate) fn round(&mut self, slot: usize) {
        if self.slots[slot].calling || self.slots[slot].life.is_none() {
            self.slots[slot].again = true;
            return;
        }
        self.slots[slot].again = false;
        self.call(slot, Ask::Table);
    }

    fn round_later(&mut self, slot: usize) {
        let again = std::mem::take(&mut self.slots[slot].again);
        self.slots[slot].timer += 1;
        let (life, timer) = (self.slots[slot].number, self.slots[slot].timer);
        let pause = if again { 1 } else { self.by_clock(self.slots[slot].server, self.setting.period / RENEWALS) };
        self.after(pause, Happens::Round { slot, life, timer });
    }

    /// The next round is due at once.
    pub(crate) fn hasten(&mut self, slot: usize) {
        self.slots[slot].again = true;
        if !self.slots[slot].calling && self.slots[slot].life.is_some() {
            self.round_later(slot);
        }
    }

    /// A life is over. `hands_over`: others go on at once.
    pub(crate) fn end_life(&mut self, slot: usize, hands_over: bool) {
        self.say(|| format!("slot {slot}: a life is over"));
        let now = self.clock(self.slots[slot].server);
        self.answer_all_unknown(slot);
        let Some(life) = self.slots[slot].life.as_mut() else { return };
        life.lease.give_up(now);
        if hands_over {
            life.failed = true;
            let incarnation = life.incarnation;
            self.call(slot, Ask::HandOver(incarnation));
        } else {
            self.next_life(slot, false);
        }
    }

    /// The store stays open: what it has applied it has.
    fn next_life(&mut self, slot: usize, later: bool) {
        self.slots[slot].life = None;
        self.slots[slot].number += 1;
        let (life, server) = (self.slots[slot].number, self.slots[slot].server);
        let pause = if later { self.by_clock(server, self.setting.period) } else { 0 };
        self.after(pause, Happens::Begin { slot, life });
    }

    /// A process is told to stop: each of its replicas hands over.
    pub(crate) fn stop(&mut self, server: usize) {
        for slot in self.servers[server].slots.clone() {
            if self.slots[slot].life.as_ref().is_some_and(|life| !life.failed) {
                self.end_life(slot, true);
            }
        }
    }

    /// A chain has a new table.
    pub(crate) fn table_set(&mut self, chain: usize) {
        self.counts.tables += 1;
        let table = self.coordinators[chain].view.table.clone();
        self.note(7, chain as u64, table.version);
        self.say(|| format!("chain {chain}: {}", shown(&table)));
        self.check_lasting(chain);
        for slot in chain * COPIES..(chain + 1) * COPIES {
            // A watch, which may be lost: the next round sees it as well.
            if self.servers[self.slots[slot].server].cut_off || self.rng.u32(0..10) == 0 {
                continue;
            }
            let (life, delay) = (self.slots[slot].number, self.up_to(self.setting.call_max));
            self.after(delay, Happens::Changed { slot, life });
        }
        self.wake(chain);
    }
}

pub(crate) fn shown(table: &esker_chain::Table) -> String {
    let member = |member: &esker_chain::Member| {
        format!("{}.{} {:?} since {}", member.server, member.incarnation.0, member.place, member.since)
    };
    let members: Vec<_> = table.members.iter().map(member).collect();
    format!("table {}: {}", table.version, members.join(", "))
}

/// A clock's time as a number.
pub(crate) fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

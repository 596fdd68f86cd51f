//! Faults: which comes when, and when it ends.
//!
//! a moment → one of the setting's faults → servers, streams and stores suffer it → healed after a while
//! → everything is quiet: all are healed

use crate::setting::{Fault, Micros};
use crate::world::{Happens, Healing, World};

impl World {
    /// A fault comes.
    pub(crate) fn fault(&mut self) {
        if !self.faulty {
            return;
        }
        let fault = self.setting.faults[self.rng.usize(0..self.setting.faults.len())];
        let next = self.rng.u64(0..=2 * self.setting.between_faults);
        self.after(next + 1, Happens::Fault);
        self.count_fault(fault);
        let server = self.rng.usize(0..self.servers.len());
        let time = self.time();
        self.note(10, fault as u64, server as u64);
        self.say(|| format!("FAULT {fault:?} of server {server} for {} ms", time / 1_000));
        match fault {
            Fault::Break => self.break_some(server),
            Fault::OneWayCut => {
                let other = self.neighbour(server);
                self.cut(server, other, time);
            }
            Fault::Cut => {
                let other = self.neighbour(server);
                self.cut(server, other, time);
                self.cut(other, server, time);
            }
            Fault::Isolation => {
                for other in self.neighbours(server) {
                    self.cut(server, other, time);
                    self.cut(other, server, time);
                }
                if self.rng.bool() {
                    self.cut_off(server, time);
                }
            }
            Fault::NoCoordinator => self.cut_off(server, time),
            Fault::Pause => self.pause(server, time),
            Fault::Kill => self.kill_for(server, time),
            Fault::FastRestart => {
                let soon = self.rng.u64(0..self.setting.period / 4);
                self.kill_for(server, soon);
            }
            Fault::Stop => {
                if self.servers[server].up && !self.servers[server].paused {
                    self.stop(server);
                    let soon = self.rng.u64(0..self.setting.period);
                    self.after(soon, Happens::Heal(Healing::Reopen(server)));
                }
            }
            Fault::PowerLoss => {
                let mut all = self.neighbours(server);
                all.push(server);
                self.rng.shuffle(&mut all);
                all.truncate(self.rng.usize(2..=all.len().max(2)));
                for one in all {
                    let time = self.time();
                    self.kill_for(one, time);
                }
            }
            Fault::FullDisk | Fault::SyncFails | Fault::SlowDisk => {
                let slots = self.servers[server].slots.clone();
                for slot in slots {
                    let disk = &mut self.slots[slot].disk;
                    match fault {
                        Fault::FullDisk => disk.full = true,
                        Fault::SyncFails => disk.failing = true,
                        _ => disk.slow = 20,
                    }
                }
                self.after(time, Happens::Heal(Healing::Disk(server)));
            }
            Fault::Office => self.office = None,
        }
    }

    /// How long a fault lasts.
    fn time(&mut self) -> Micros {
        let max = [self.setting.period / 8, self.setting.period, self.setting.period * 3][self.rng.usize(0..3)];
        self.rng.u64(1..max)
    }

    /// Servers that share a chain with this one.
    pub(crate) fn neighbours(&self, server: usize) -> Vec<usize> {
        let chains = self.servers[server].slots.iter().map(|slot| self.slots[*slot].chain);
        let of = |chain: usize| self.slots.iter().filter(move |slot| slot.chain == chain).map(|slot| slot.server);
        let mut all: Vec<_> = chains.flat_map(of).filter(|other| *other != server).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn neighbour(&mut self, server: usize) -> usize {
        let all = self.neighbours(server);
        all[self.rng.usize(0..all.len())]
    }

    fn break_some(&mut self, server: usize) {
        let other = self.neighbour(server);
        let ways = self.ways_between(server, other);
        let one_direction = self.rng.bool();
        for way in ways {
            let is_out = self.slots[self.ways[way].from].server == server;
            if self.ways[way].open && (is_out || !one_direction) {
                self.break_way(way);
            }
        }
    }

    fn cut(&mut self, from: usize, to: usize, time: Micros) {
        self.cuts.insert((from, to));
        self.watch_ways(from, to);
        self.after(time, Happens::Heal(Healing::Cut(from, to)));
    }

    fn cut_off(&mut self, server: usize, time: Micros) {
        self.servers[server].cut_off = true;
        self.after(time, Happens::Heal(Healing::Coordinator(server)));
    }

    fn pause(&mut self, server: usize, time: Micros) {
        if !self.servers[server].up {
            return;
        }
        self.servers[server].paused = true;
        for other in self.neighbours(server) {
            self.watch_ways(server, other);
        }
        self.after(time, Happens::Heal(Healing::Resume(server)));
    }

    fn kill_for(&mut self, server: usize, time: Micros) {
        self.kill(server);
        self.after(time, Happens::Heal(Healing::Boot(server)));
    }

    /// A fault ends.
    pub(crate) fn heal(&mut self, healing: Healing) {
        self.say(|| format!("heals: {healing:?}"));
        match healing {
            Healing::Cut(from, to) => {
                if self.cuts.remove(&(from, to)) {
                    self.release(from, to);
                }
            }
            Healing::Coordinator(server) => self.servers[server].cut_off = false,
            Healing::Resume(server) => self.resume(server),
            Healing::Boot(server) => {
                if !self.servers[server].up {
                    self.start(server);
                }
            }
            Healing::Disk(server) => {
                for slot in self.servers[server].slots.clone() {
                    let disk = &mut self.slots[slot].disk;
                    (disk.full, disk.failing, disk.slow) = (false, false, 1);
                }
            }
            Healing::Reopen(server) => {
                self.kill(server);
                let time = if self.faulty { self.time() } else { 1 };
                self.after(time, Happens::Heal(Healing::Boot(server)));
            }
        }
    }

    fn resume(&mut self, server: usize) {
        if !std::mem::replace(&mut self.servers[server].paused, false) {
            return;
        }
        let unheard = std::mem::take(&mut self.servers[server].unheard);
        for event in unheard {
            self.carry_out(event, true);
        }
    }

    /// No faults come any more, and those that are there end.
    pub(crate) fn quiet(&mut self) {
        self.say(|| "all is quiet".to_owned());
        self.faulty = false;
        self.quiet_since = self.now;
        for (from, to) in self.cuts.clone() {
            self.heal(Healing::Cut(from, to));
        }
        for server in 0..self.servers.len() {
            self.heal(Healing::Coordinator(server));
            self.heal(Healing::Resume(server));
            self.heal(Healing::Boot(server));
            self.heal(Healing::Disk(server));
        }
        for client in 0..self.clients.len() {
            if self.clients[client].request.is_none() {
                self.clients[client].call += 1;
                let call = self.clients[client].call;
                self.after(1, Happens::Client { client, call });
            }
        }
        self.after(1, Happens::Check);
    }
}

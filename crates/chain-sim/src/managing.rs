//! Managers: several servers have one, which looks at each chain and changes its table, by `esker_cluster::Sight`.
//!
//! a timer, or a change → table → leases and the rest → seen → next table → compared and set → next look
//!
//! Invariant: as in `esker-cluster`: nothing rests on who holds the office.

use esker_chain::Place;
use esker_cluster::View;

use crate::membership::micros;
use crate::setting::Breakage;
use crate::world::{Happens, Look, Looking, Seen, World};

/// Servers that have a manager, by number from 0.
const MANAGERS: usize = 3;
/// Looks at a chain in one period.
const LOOKS: u64 = 8;
/// Changes of a chain's table in a row.
const CHANGES_IN_A_ROW_MAX: u32 = 16;
/// Who does not hold the office changes a table that was due for this part of a period.
const DEPUTY: u64 = 4;

impl World {
    fn manages(&self, server: usize) -> bool {
        server < MANAGERS
    }

    pub(crate) fn begin_to_manage(&mut self, server: usize) {
        if !self.manages(server) {
            return;
        }
        for chain in 0..self.coordinators.len() {
            self.servers[server].looks[chain] = Looking::default();
            self.look_later(server, chain, true);
        }
    }

    fn look_later(&mut self, server: usize, chain: usize, soon: bool) {
        let boot = self.servers[server].boot;
        let pause = self.by_clock(server, self.setting.period / LOOKS);
        // Chains are looked at one after the other.
        let pause = if soon { self.rng.u64(1..1_000) } else { pause + self.rng.u64(0..pause / 4) };
        let looking = &mut self.servers[server].looks[chain];
        looking.timer += 1;
        looking.in_a_row = 0;
        let timer = looking.timer;
        self.after(pause, Happens::Manage { server, boot, chain, timer });
    }

    /// Managers are told that something has changed.
    pub(crate) fn wake(&mut self, chain: usize) {
        for server in 0..MANAGERS.min(self.servers.len()) {
            let is_idle = self.servers[server].up && !self.servers[server].looks[chain].calling;
            if is_idle && !self.servers[server].cut_off {
                let boot = self.servers[server].boot;
                let looking = &mut self.servers[server].looks[chain];
                looking.timer += 1;
                let timer = looking.timer;
                let delay = self.up_to(self.setting.call_max);
                self.after(delay, Happens::Manage { server, boot, chain, timer });
            }
        }
    }

    pub(crate) fn manage(&mut self, server: usize, boot: u64, chain: usize, timer: u64) {
        let Some(looking) = self.looking(server, boot, chain) else { return };
        if looking.timer == timer && !looking.calling {
            self.look(server, chain, Look::Table);
        }
    }

    fn looking(&mut self, server: usize, boot: u64, chain: usize) -> Option<&mut Looking> {
        let record = self.servers.get_mut(server).filter(|record| record.up && record.boot == boot)?;
        record.looks.get_mut(chain)
    }

    fn look(&mut self, server: usize, chain: usize, look: Look) {
        let boot = self.servers[server].boot;
        let looking = &mut self.servers[server].looks[chain];
        looking.call += 1;
        looking.calling = true;
        let call = looking.call;
        let patience = self.call_time(server);
        self.after(patience, Happens::SeesNot { server, boot, chain, call });
        if !self.servers[server].cut_off {
            let delay = self.up_to(self.setting.call_max);
            self.after(delay, Happens::Looks { server, boot, chain, call, look });
        }
    }

    /// The coordinator is asked by a manager.
    pub(crate) fn looked(&mut self, server: usize, boot: u64, chain: usize, call: u64, look: Look) {
        if self.servers[server].cut_off && self.rng.bool() {
            return;
        }
        self.counts.calls += 1;
        self.note(8, server as u64 * 1_000 + chain as u64, call);
        let now = self.now;
        let seen = match look {
            Look::Table => {
                self.stand_for_manager(server, boot);
                Seen::Table(self.coordinators[chain].view.table.clone())
            }
            Look::Rest(table) => {
                let view = View { table, ..self.coordinators[chain].view.clone() };
                let in_office = self.office.is_some_and(|(holder, of, _)| (holder, of) == (server, boot));
                Seen::View(Box::new(view), in_office)
            }
            Look::Change(proposal) => {
                let heads = |world: &Self| world.coordinators[chain].view.table.head().map(|head| head.server);
                let before = heads(self);
                let changed = self.coordinators[chain].change(&proposal, now);
                if changed {
                    self.counts.heads += u64::from(before != heads(self));
                    self.table_set(chain);
                } else {
                    self.counts.tables_refused += 1;
                }
                Seen::Changed(changed)
            }
        };
        if !self.servers[server].cut_off {
            let delay = self.up_to(self.setting.call_max);
            self.after(delay, Happens::Sees { server, boot, chain, call, seen });
        }
    }

    fn stand_for_manager(&mut self, server: usize, boot: u64) {
        let (now, session) = (self.now, self.setting.period);
        let holds = self.office.filter(|(_, _, heard)| now - heard < session);
        if holds.is_none_or(|(holder, of, _)| (holder, of) == (server, boot)) {
            self.office = Some((server, boot, now));
        }
    }

    /// It has answered a manager.
    pub(crate) fn sees(&mut self, server: usize, boot: u64, chain: usize, call: u64, seen: Seen) {
        let (now, period) = (self.clock(server), self.period());
        // Once all is quiet it is found by what it has done, and not by its going on.
        let early = self.setting.breakage == Some(Breakage::ManagerEarly) && self.faulty;
        let not_in_step = self.setting.breakage == Some(Breakage::NotInStep);
        let Some(looking) = self.looking(server, boot, chain) else { return };
        if looking.call != call || !looking.calling {
            return;
        }
        looking.calling = false;
        match seen {
            Seen::Table(table) => self.look(server, chain, Look::Rest(table)),
            Seen::View(mut view, in_office) => {
                if not_in_step {
                    let syncing = view.table.members.iter().find(|member| member.place == Place::Syncing);
                    view.in_step = syncing.map(|member| (member.server, view.table.version));
                }
                looking.sight.see(&view.leases, now, period);
                let patience = if early { period * 3 / 8 } else { period };
                let Some(next) = looking.sight.next(&view, now, patience) else {
                    looking.due = None;
                    self.look_later(server, chain, false);
                    return;
                };
                let now = micros(now);
                let (version, since) = *looking.due.get_or_insert((view.table.version, now));
                let waited = if version == view.table.version { now - since } else { 0 };
                if waited == 0 {
                    looking.due = Some((view.table.version, now));
                }
                looking.in_a_row += 1;
                let may = looking.in_a_row <= CHANGES_IN_A_ROW_MAX;
                if may && (in_office || waited >= micros(period) / DEPUTY) {
                    self.look(server, chain, Look::Change(next));
                } else {
                    self.look_later(server, chain, false);
                }
            }
            Seen::Changed(true) => self.look(server, chain, Look::Table),
            Seen::Changed(false) => self.look_later(server, chain, false),
        }
    }

    /// It has not, in time.
    pub(crate) fn sees_not(&mut self, server: usize, boot: u64, chain: usize, call: u64) {
        let Some(looking) = self.looking(server, boot, chain) else { return };
        if looking.call == call && looking.calling {
            looking.calling = false;
            self.look_later(server, chain, false);
        }
    }
}

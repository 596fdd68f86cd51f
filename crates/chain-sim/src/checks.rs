//! What has to be so at every moment, and in the end.
//!
//! acknowledged by a head → one order · a table, a crash → nothing acknowledged is lost · quiet → all settles
//! → judged

use esker_chain::Place;

use crate::setting::{COPIES, Micros};
use crate::world::World;

/// Everything settles within so many periods once nothing goes wrong.
const SETTLED_PERIODS_MAX: Micros = 40;

impl World {
    /// A head tells that operations up to this one are acknowledged.
    pub(crate) fn decide(&mut self, slot: usize, seq: u64) {
        let chain = self.slots[slot].chain;
        let (content, decided) = (self.slots[slot].disk.content(), &self.decided[chain]);
        let done = &content[..content.len().min(seq as usize)];
        let common = done.len().min(decided.len());
        if done[..common] != decided[..common] {
            let at = (0..common).find(|at| done[*at] != decided[*at]).unwrap_or(0);
            let (one, other) = (decided[at], done[at]);
            self.violates(format!("chain {chain}: operation {} is acknowledged as {one} and as {other}", at + 1));
            return;
        }
        if done.len() > common {
            self.decided[chain] = done.to_vec();
        }
    }

    /// What is acknowledged is, durably, on every member that serves or is the last that did.
    pub(crate) fn check_lasting(&mut self, chain: usize) {
        let table = &self.coordinators[chain].view.table;
        let serves = |place: Place| matches!(place, Place::Serving | Place::LastServing);
        let members: Vec<_> = table.members.iter().filter(|member| serves(member.place)).copied().collect();
        for member in members {
            let slot = self.slot_of(chain, member.server);
            let (disk, decided) = (&self.slots[slot].disk, &self.decided[chain]);
            let (has, has_all) = (disk.lasting().len(), disk.lasting().starts_with(decided));
            if !decided.is_empty() && (disk.is_part() || !has_all) {
                let (len, part) = (decided.len(), disk.is_part());
                self.violates(format!(
                    "chain {chain}: server {} is {:?} with {has} durable operations, part: {part}, and {len} are \
                     acknowledged",
                    member.server, member.place
                ));
            }
        }
    }

    /// Why a chain has not settled.
    fn unsettled(&self, chain: usize) -> Option<String> {
        let table = &self.coordinators[chain].view.table;
        if table.serving().count() != COPIES {
            return Some(format!("chain {chain}: {}", crate::membership::shown(table)));
        }
        for slot in chain * COPIES..(chain + 1) * COPIES {
            let record = &self.slots[slot];
            let Some(life) = record.life.as_ref() else {
                return Some(format!("slot {slot} has not begun, superseded: {}", record.superseded));
            };
            let (has, decided) = (record.disk.content(), &self.decided[chain]);
            let is_even = has == decided && record.disk.lasting() == decided && !record.disk.is_part();
            let knows = life.replica.committed() == has.len() as u64 && life.waiting.is_empty();
            let goes_by = life.replica.table().version;
            if life.failed || goes_by != table.version || !is_even || !knows || !life.replica.is_based() {
                return Some(format!(
                    "slot {slot} goes by table {goes_by} of {}, has {} of {} acknowledged, knows of {}, waiting {}, \
                     failed: {}, part: {}",
                    table.version,
                    has.len(),
                    decided.len(),
                    life.replica.committed(),
                    life.waiting.len(),
                    life.failed,
                    record.disk.is_part(),
                ));
            }
        }
        let waits = self.clients.iter().position(|client| client.chain == chain && !client.done);
        waits.map(|client| format!("client {client} waits: {:?}", self.clients[client].request))
    }

    /// Whether all has settled; then the histories are judged.
    pub(crate) fn check(&mut self) {
        let unsettled = (0..self.decided.len()).find_map(|chain| self.unsettled(chain));
        if let Some(why) = unsettled {
            if self.now - self.quiet_since > SETTLED_PERIODS_MAX * self.setting.period {
                self.violates(format!("it does not settle: {why}"));
            } else {
                self.after(self.setting.period / 4, crate::world::Happens::Check);
            }
            return;
        }
        self.counts.settled_in = self.now - self.quiet_since;
        for chain in 0..self.decided.len() {
            self.check_lasting(chain);
            if let Err(why) = self.history.judge(chain, &self.decided[chain]) {
                self.violates(format!("chain {chain}: {why}"));
            }
        }
        self.settled = true;
    }
}

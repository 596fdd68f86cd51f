//! What a server does with the effects of a replica, and what it answers clients: as `esker_chain::Node` does.
//!
//! event → [`World::step`] → applied, sent, offered, … → a sync → durable → the next step
//! client → may it answer? → applied or read → at once, or once it is acknowledged
//!
//! Invariant: a node that has failed does nothing more.

use std::rc::Rc;
use std::time::Duration;

use esker_chain::{Effect, Event, Message, Place, ServerId};

use crate::disk::{Disk, KEYS_MAX};
use crate::operation::Write;
use crate::setting::{Breakage, Micros};
use crate::slot::{Answer, Offer, Parcel, Waiting};
use crate::world::{Ask, Happens, Request, World};

impl World {
    fn is_broken(&self, breakage: Breakage) -> bool {
        self.setting.breakage == Some(breakage)
    }

    /// Takes a step, and what follows from it.
    pub(crate) fn step(&mut self, slot: usize, event: Event<Write>) {
        let asks_for_more = matches!(&event, Event::Message(_, Message::At { .. }));
        let Some(life) = self.slots[slot].life.as_mut().filter(|life| !life.failed) else { return };
        let effects = life.replica.step(event);
        let version = life.replica.table().version;
        let mut distrusted = false;
        for effect in effects {
            if self.slots[slot].life.as_ref().is_none_or(|life| life.failed) {
                // What it could not apply it does not send on.
                return;
            }
            match effect {
                Effect::Apply(seq, write) => self.apply(slot, seq, write),
                Effect::PutBy(_, write) => {
                    if let Some(life) = self.slots[slot].life.as_mut() {
                        life.by.push(write);
                    }
                }
                Effect::Send(_, Message::Forward { .. }) if asks_for_more && self.is_broken(Breakage::KeptDropped) => {}
                Effect::Send(to, message) => self.send(slot, to, Parcel::Message(message)),
                Effect::Committed(seq) => self.decide(slot, seq),
                Effect::Copy(to) => {
                    let (life, delay) = (self.slots[slot].number, self.up_to(self.setting.delay_max));
                    self.after(delay, Happens::CopyBegins { slot, life, to });
                }
                Effect::Offer { to, seq } => self.offer(slot, to, version, seq),
                Effect::Distrust => {
                    distrusted = true;
                    self.distrust(slot);
                }
                Effect::Refresh => self.hasten(slot),
                Effect::InStep(..) => self.hasten(slot),
            }
        }
        self.begin_sync(slot);
        self.settle(slot);
        if distrusted && self.is_broken(Breakage::DistrustIgnored) {
            self.trust_again(slot);
        }
    }

    /// A copy is to be made: of what is here at some time between now and when it is made.
    pub(crate) fn copy_begins(&mut self, slot: usize, life: u64, to: ServerId) {
        if !self.is_life(slot, life) {
            return;
        }
        let Some(replica) = self.slots[slot].life.as_ref().map(|life| &life.replica) else { return };
        if !replica.wants_copy(to) {
            return;
        }
        let version = replica.table().version;
        self.step(slot, Event::CopyBegins(to));
        let delay = self.up_to(self.setting.copy_max / 4);
        self.after(delay, Happens::CopyHolds { slot, life, to, version });
    }

    /// What the copy holds is known.
    pub(crate) fn copy_holds(&mut self, slot: usize, life: u64, to: ServerId, version: u64) {
        if self.is_life(slot, life) {
            let (content, delay) = (self.slots[slot].disk.content().to_vec(), self.up_to(self.setting.copy_max / 4));
            self.after(delay, Happens::CopyMade { slot, life, to, version, content });
        }
    }

    /// The copy is made, or cannot be.
    pub(crate) fn copy_made(&mut self, slot: usize, life: u64, (to, version): (ServerId, u64), content: Vec<u32>) {
        if !self.is_life(slot, life) {
            return;
        }
        if self.slots[slot].disk.full {
            self.step(slot, Event::CopyNotMade(to));
            // It is tried again, after a pause.
            self.step(slot, Event::Reconnected(to));
            return;
        }
        let seq = content.len() as u64;
        if let Some(life) = self.slots[slot].life.as_mut() {
            life.made = Some(content);
        }
        self.step(slot, Event::CopyMade { to, version, seq });
        if let Some(life) = self.slots[slot].life.as_mut() {
            life.made = None;
        }
    }

    fn offer(&mut self, slot: usize, to: ServerId, version: u64, seq: u64) {
        let made = self.slots[slot].life.as_mut().and_then(|life| life.made.take());
        let Some(mut content) = made else { return };
        if !self.slots[slot].disk.content().starts_with(&content) {
            self.violates(format!("slot {slot} offers {seq} operations that are not those that it has"));
        }
        if self.is_broken(Breakage::OldCopy)
            && let [.., other, last] = &mut content[..]
        {
            *last = *other;
        }
        self.offers += 1;
        let number = self.offers;
        let offer = Offer { number, version, seq, content: Rc::new(content) };
        let other = self.slot_of(self.slots[slot].chain, to);
        let now = self.now;
        if let Some(life) = self.slots[slot].life.as_mut() {
            life.offered.retain(|_, (to, _)| *to != other);
            life.offered.insert(number, (other, now));
        }
        self.counts.copies += 1;
        self.send(slot, to, Parcel::Copy(offer));
    }

    fn distrust(&mut self, slot: usize) {
        if !self.is_broken(Breakage::DistrustIgnored) {
            self.slots[slot].disk.distrust();
            self.counts.syncs += 1;
            self.check_lasting(self.slots[slot].chain);
        }
        let Some(life) = self.slots[slot].life.as_mut() else { return };
        life.round += 1;
        life.by.clear();
        (life.unsynced, life.settled) = (None, 0);
        life.dirty.clear();
        // Their places are behind what is open now.
        let waiting = std::mem::take(&mut life.waiting);
        waiting.into_iter().for_each(|waiting| self.tell(slot, waiting.client, waiting.call, waiting.answer));
    }

    /// Wrong on purpose: what it has counts for what the one before it has sent.
    fn trust_again(&mut self, slot: usize) {
        let me = self.me(slot);
        let Some(life) = self.slots[slot].life.as_ref() else { return };
        let table = life.replica.table();
        let (Some(before), version) = (table.predecessor(me), table.version) else { return };
        let (from, seq) = (before.server, self.slots[slot].disk.content().len() as u64);
        self.step(slot, Event::Copied { from, version, seq });
    }

    fn apply(&mut self, slot: usize, seq: u64, write: Write) {
        let disk = &self.slots[slot].disk;
        if disk.full || disk.poisoned {
            self.fail(slot);
            return;
        }
        if disk.content().len() as u64 + 1 != seq {
            let has = disk.content().len();
            if self.setting.breakage.is_none() {
                self.violates(format!("slot {slot} has {has} operations, and is to apply number {seq}"));
            }
            self.fail(slot);
            return;
        }
        let key = self.history.write(write.id).map_or(0, |write| write.key);
        self.slots[slot].disk.apply(write.id, key);
        self.note_applied(slot, seq, key);
    }

    fn note_applied(&mut self, slot: usize, seq: u64, key: usize) {
        let Some(life) = self.slots[slot].life.as_mut() else { return };
        life.dirty.insert(key, seq);
        life.unsynced = Some(seq);
    }

    fn begin_sync(&mut self, slot: usize) {
        let slow = self.slots[slot].disk.slow.max(1);
        let delay = self.up_to(self.setting.sync_max * slow);
        let early = self.is_broken(Breakage::AckBeforeDurable);
        let Some(life) = self.slots[slot].life.as_mut().filter(|life| !life.failed && !life.syncing) else { return };
        let Some(seq) = life.unsynced.take() else { return };
        life.syncing = true;
        let round = life.round;
        self.counts.syncs += 1;
        let (life, upto) = (self.slots[slot].number, self.slots[slot].disk.sync());
        self.after(delay, Happens::Synced { slot, life, round, seq, upto });
        if early {
            self.step(slot, Event::Durable(seq));
        }
    }

    /// A sync has ended.
    pub(crate) fn synced(&mut self, slot: usize, number: u64, (round, seq, upto): (u64, u64, (u64, usize))) {
        if !self.is_life(slot, number) {
            return;
        }
        self.note(3, slot as u64, seq);
        let disk = &mut self.slots[slot].disk;
        if disk.failing || disk.poisoned {
            (disk.failing, disk.poisoned) = (false, true);
            self.say(|| format!("slot {slot}: a sync fails"));
            self.fail(slot);
            return;
        }
        disk.synced(upto);
        let Some(life) = self.slots[slot].life.as_mut() else { return };
        life.syncing = false;
        if life.round == round {
            self.step(slot, Event::Durable(seq));
        }
        self.begin_sync(slot);
    }

    fn settle(&mut self, slot: usize) {
        let Some(life) = self.slots[slot].life.as_mut() else { return };
        let committed = life.replica.committed();
        if committed <= life.settled {
            return;
        }
        life.settled = committed;
        life.dirty.retain(|_, seq| *seq > committed);
        let (done, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut life.waiting).into_iter().partition(|waiting| waiting.seq <= committed);
        life.waiting = waiting;
        done.into_iter().for_each(|done| self.tell(slot, done.client, done.call, done.answer));
    }

    /// It takes no part any more.
    pub(crate) fn fail(&mut self, slot: usize) {
        let now = self.clock(self.slots[slot].server);
        let Some(life) = self.slots[slot].life.as_mut() else { return };
        life.lease.give_up(now);
        if !std::mem::replace(&mut life.failed, true) {
            self.counts.failed += 1;
            self.say(|| format!("slot {slot} fails"));
        }
        self.answer_all_unknown(slot);
    }

    pub(crate) fn answer_all_unknown(&mut self, slot: usize) {
        let Some(life) = self.slots[slot].life.as_mut() else { return };
        let waiting = std::mem::take(&mut life.waiting);
        waiting.into_iter().for_each(|waiting| self.tell(slot, waiting.client, waiting.call, Answer::Unknown));
    }

    /// A copy is offered: what is pulled for the chain already is given up.
    pub(crate) fn offered(&mut self, slot: usize, from: usize, offer: Offer) {
        if self.slots[slot].life.is_none() {
            return;
        }
        // It may have come to its end just then.
        let ends = self.rng.u32(0..4) == 0;
        let before = self.slots[slot].life.as_ref().and_then(|life| life.pull.clone());
        if let Some(before) = before {
            self.end_pull(slot, &before, !ends);
        }
        if let Some(life) = self.slots[slot].life.as_mut() {
            life.pull = None;
        }
        let round = |world: &Self| world.slots[slot].life.as_ref().map(|life| (life.round, life.failed));
        let replica = self.slots[slot].life.as_ref().map(|life| &life.replica);
        let has_it = replica.is_some_and(|replica| {
            let is_for_it = replica.is_brought_up_by(self.me(from), offer.version);
            is_for_it && replica.is_based() && replica.next() > offer.seq
        });
        let (before, source, number) = (round(self), self.me(from), offer.number);
        self.step(slot, Event::Copying { from: source, version: offer.version, seq: offer.seq });
        let after = round(self);
        if before == after || after.is_none_or(|(_, failed)| failed) {
            if !has_it {
                // It is of another table.
                self.tell_copy_ended(slot, &crate::slot::Pull { from, offer, parts: 0 }, true);
            }
            return;
        }
        self.say(|| format!("slot {slot}: copy {number} begins"));
        if let Some(life) = self.slots[slot].life.as_mut() {
            life.pull = Some(crate::slot::Pull { from, offer, parts: 4 });
        }
        let (life, delay) = (self.slots[slot].number, self.up_to(self.setting.delay_max));
        self.after(delay, Happens::Part { slot, life, offer: number });
    }

    /// The next part of a copy is due.
    pub(crate) fn part(&mut self, slot: usize, number: u64, offer: u64) {
        if !self.is_life(slot, number) {
            return;
        }
        let Some(mut pull) = self.slots[slot].life.as_ref().and_then(|life| life.pull.clone()) else { return };
        if pull.offer.number != offer {
            return;
        }
        self.note(4, slot as u64, offer);
        let (here, there) = (self.slots[slot].server, self.slots[pull.from].server);
        let reaches = self.reaches(here, there);
        let now = self.now;
        let offered = self.slots[pull.from].life.as_mut().and_then(|life| life.offered.get_mut(&offer));
        let is_there = reaches && offered.is_some();
        if let Some((_, asked)) = offered.filter(|_| reaches) {
            *asked = now;
        }
        if !is_there || self.slots[slot].disk.full {
            if let Some(life) = self.slots[slot].life.as_mut() {
                life.pull = None;
            }
            self.say(|| format!("slot {slot}: copy {offer} is given up"));
            self.end_pull(slot, &pull, true);
            return;
        }
        if pull.parts == 0 {
            if let Some(life) = self.slots[slot].life.as_mut() {
                life.pull = None;
            }
            self.end_pull(slot, &pull, false);
            return;
        }
        pull.parts -= 1;
        let delay = self.up_to(self.setting.copy_max / 4);
        if let Some(life) = self.slots[slot].life.as_mut() {
            life.pull = Some(pull);
        }
        self.after(delay, Happens::Part { slot, life: number, offer });
    }

    /// A copy that was begun ends.
    fn end_pull(&mut self, slot: usize, pull: &crate::slot::Pull, failed: bool) {
        if failed {
            self.step(slot, Event::CopyFailed);
        } else {
            self.counts.copied += 1;
            self.counts.bytes += u64::from(self.setting.payload_bytes) * pull.offer.seq;
            self.counts.syncs += 1;
            let Self { slots, history, .. } = self;
            let key_of = |id: u32| history.write(id).map_or(0, |write| write.key);
            let by = slots[slot].life.as_mut().map(|life| std::mem::take(&mut life.by)).unwrap_or_default();
            let mut content = pull.offer.content.to_vec();
            content.extend(by.iter().map(|write| write.id));
            slots[slot].disk.put_whole(content, key_of);
            let Offer { version, seq, number, .. } = pull.offer;
            // What was put by is applied before the node goes on.
            let seq = seq + by.len() as u64;
            self.say(|| format!("slot {slot}: copy {number} is here, after {seq}"));
            if let Some(life) = self.slots[slot].life.as_mut().filter(|life| seq > life.replica.committed()) {
                // Its source may have applied operations that it waited for still.
                life.dirty.extend((0..KEYS_MAX).map(|key| (key, seq)));
            }
            let from = self.me(pull.from);
            self.step(slot, Event::Copied { from, version, seq });
        }
        self.tell_copy_ended(slot, pull, failed);
    }

    fn tell_copy_ended(&mut self, slot: usize, pull: &crate::slot::Pull, failed: bool) {
        let (here, there) = (self.slots[slot].server, self.slots[pull.from].server);
        if self.reaches(here, there) {
            let (slot, offer) = (pull.from, pull.offer.number);
            let (life, delay) = (self.slots[slot].number, self.up_to(self.setting.delay_max));
            self.after(delay, Happens::CopyEnded { slot, life, offer, failed });
        }
    }

    /// A copy that was offered has ended.
    pub(crate) fn copy_ended(&mut self, slot: usize, number: u64, offer: u64, failed: bool) {
        if !self.is_life(slot, number) {
            return;
        }
        let Some(life) = self.slots[slot].life.as_mut() else { return };
        if let Some((to, _)) = life.offered.remove(&offer).filter(|_| failed) {
            let other = self.me(to);
            self.step(slot, Event::Reconnected(other));
        }
    }

    /// Ends what was offered and not asked for lately.
    pub(crate) fn tidy(&mut self, slot: usize) {
        let (now, idle) = (self.now, self.setting.period * 4);
        let Some(life) = self.slots[slot].life.as_mut() else { return };
        let idle: Vec<_> =
            life.offered.extract_if(.., |_, (_, asked)| now - *asked >= idle).map(|(_, (to, _))| to).collect();
        for to in idle {
            let other = self.me(to);
            self.step(slot, Event::Reconnected(other));
        }
    }

    /// Whether it may answer now.
    pub(crate) fn may_answer(&self, slot: usize) -> bool {
        let now = self.clock(self.slots[slot].server);
        let lease_ignored = self.is_broken(Breakage::LeaseIgnored);
        self.slots[slot].life.as_ref().is_some_and(|life| {
            let has_lease = life.lease.holds(life.replica.table().version, now) || lease_ignored;
            !life.failed && life.replica.place() == Some(Place::Serving) && life.replica.is_based() && has_lease
        })
    }

    /// A client asks.
    pub(crate) fn requested(&mut self, client: usize, call: u64, slot: usize, request: Request) {
        if !self.servers[self.slots[slot].server].up {
            return;
        }
        self.note(5, slot as u64, client as u64);
        let answer = match request {
            Request::Read(key) => self.read(client, call, slot, key),
            Request::Write(id) => self.write(client, call, slot, id),
        };
        if let Some(answer) = answer {
            self.tell(slot, client, call, answer);
        }
    }

    fn read(&mut self, client: usize, call: u64, slot: usize, key: usize) -> Option<Answer> {
        if !self.may_answer(slot) {
            return Some(Answer::Elsewhere);
        }
        let answer = Answer::Value(self.slots[slot].disk.key(key).0);
        if self.is_broken(Breakage::DirtyReads) {
            return Some(answer);
        }
        self.once_acknowledged(client, call, slot, key, answer)
    }

    /// At once, or once what the key was last changed by is acknowledged.
    fn once_acknowledged(
        &mut self,
        client: usize,
        call: u64,
        slot: usize,
        key: usize,
        answer: Answer,
    ) -> Option<Answer> {
        let life = self.slots[slot].life.as_mut()?;
        match life.dirty.get(&key) {
            Some(&seq) if seq > life.settled => {
                life.waiting.push(Waiting { seq, client, call, answer });
                self.counts.waited += 1;
                None
            }
            _ => Some(answer),
        }
    }

    fn write(&mut self, client: usize, call: u64, slot: usize, id: u32) -> Option<Answer> {
        let is_head = self.slots[slot].life.as_ref().is_some_and(|life| life.replica.is_head());
        let Some(asked) = self.history.write(id).copied().filter(|_| is_head && self.may_answer(slot)) else {
            return Some(Answer::Elsewhere);
        };
        let (last, count) = self.slots[slot].disk.key(asked.key);
        if let Some(seq) = self.slots[slot].disk.number_of(id) {
            // Its outcome stands there.
            let of_key = |one: &&u32| self.history.write(**one).is_some_and(|write| write.key == asked.key);
            let count = self.slots[slot].disk.content()[..seq as usize].iter().filter(of_key).count() as u32;
            let life = self.slots[slot].life.as_mut()?;
            if seq <= life.settled {
                return Some(Answer::Done(count));
            }
            life.waiting.push(Waiting { seq, client, call, answer: Answer::Done(count) });
            return None;
        }
        if asked.expects.is_some_and(|expects| expects != last) {
            return self.once_acknowledged(client, call, slot, asked.key, Answer::Refused(last));
        }
        let kept_bytes_max = self.setting.kept_bytes_max;
        let Disk { full, poisoned, .. } = self.slots[slot].disk;
        let life = self.slots[slot].life.as_mut()?;
        if full || poisoned || life.replica.kept_bytes() > kept_bytes_max {
            return Some(Answer::Elsewhere);
        }
        let seq = life.replica.next();
        let has = self.slots[slot].disk.content().len() as u64;
        if has + 1 != seq {
            self.violates(format!("the head, slot {slot}, has {has} operations, and the next is {seq}"));
            return None;
        }
        self.slots[slot].disk.apply(id, asked.key);
        self.counts.applied += 1;
        self.note_applied(slot, seq, asked.key);
        if let Some(life) = self.slots[slot].life.as_mut() {
            life.waiting.push(Waiting { seq, client, call, answer: Answer::Done(count + 1) });
        }
        let bytes = self.setting.payload_bytes;
        self.say(|| format!("slot {slot} takes write {id} as {seq}"));
        self.step(slot, Event::Applied(Write { id, bytes }));
        None
    }

    /// A message as it is heard.
    pub(crate) fn as_broken(&self, slot: usize, mut message: Message<Write>) -> Message<Write> {
        if self.is_broken(Breakage::OldVersions) {
            let here = self.slots[slot].life.as_ref().map_or(0, |life| life.replica.table().version);
            let (Message::Begin { version, .. }
            | Message::At { version, .. }
            | Message::Forward { version, .. }
            | Message::Ack { version, .. }
            | Message::Committed { version, .. }) = &mut message;
            *version = here;
        }
        message
    }

    /// A renewal that was sent then was taken.
    pub(crate) fn renewed(&mut self, slot: usize, version: u64) {
        let period = self.period();
        let Some(life) = self.slots[slot].life.as_mut() else { return };
        life.lease.renewed(version, Duration::from_micros(life.sent), period);
        let in_step = life.replica.in_step();
        if let Some((server, version)) = in_step {
            self.call(slot, Ask::InStep(server, version));
        }
    }

    /// How long a call may take at most, by a server's clock.
    pub(crate) fn call_time(&self, server: usize) -> Micros {
        self.by_clock(server, self.setting.period / 2)
    }
}

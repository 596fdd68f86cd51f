//! Slots of keys that go from the chain that this server heads to others, as the plan in the coordinator has it.
//!
//! ```text
//! plan → slots of the own chain that another is to keep → gathered → begun at the other chain's head
//!      → a few at a time: closed → their keys put there → taken → given → the coordinator is told → …
//! what was left closed → the other chain: did it take them? → given, or opened again
//! what was to come, and does not any more → removed
//! ```
//!
//! Invariants:
//! 1. It works for one term as head, and no end of a term waits for it: what it leaves is for the next head.
//! 2. How many keys are closed at once goes by how long those before took to be put, beside which syncs take what
//!    they take.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_cluster::Slots;
use esker_member::{Answer, Host, IsOver, MoveCalls, Takes, messages as proto};
use esker_server::resp::{Closed, MoveError, Moving, SlotEpoch, SlotState};

/// The plan is looked at so often.
const LOOK: Duration = Duration::from_millis(200);
/// After something failed it is tried again so much later.
const AGAIN: Duration = Duration::from_secs(1);
/// Clients of closed slots wait so long until they are told that it may last.
const WAIT: Duration = Duration::from_secs(2);
/// So long, about, the keys of closed slots are to be put.
const CLOSED: Duration = Duration::from_millis(25);
/// Keys that are moved together at first, and at most; of one slot all are.
const KEYS: usize = 64;
const KEYS_MAX: usize = 4_096;
/// Slots that are moved together at most.
const SLOTS_MAX: usize = 256;
/// While others go, it is looked so much later, measured by how long that took, what was left closed before.
const LOOK_PARTS: u32 = 8;
/// How often a batch is put again because a database was cleared meanwhile.
const PUTS_MAX: usize = 8;

/// Moves slots of one chain.
struct Mover {
    chain: String,
    host: Arc<Host>,
    moving: Moving,
}

/// Slots of a chain come and go for as long as this is there.
pub(super) struct Moves {
    chain: String,
    host: Arc<Host>,
}

/// What takes slots that come.
struct Taker(Moving);

/// Why a batch, or all, does not go on.
#[derive(Debug)]
struct Stuck(String);

impl From<MoveError> for Stuck {
    fn from(error: MoveError) -> Self {
        Self(error.to_string())
    }
}

impl From<String> for Stuck {
    fn from(why: String) -> Self {
        Self(why)
    }
}

fn told(slots: &[SlotEpoch]) -> Vec<proto::SlotEpoch> {
    slots.iter().map(|(slot, epoch)| proto::SlotEpoch { slot: u32::from(*slot), epoch: *epoch }).collect()
}

fn heard(slots: &[proto::SlotEpoch]) -> Result<Vec<SlotEpoch>, String> {
    let slot = |slot: &proto::SlotEpoch| {
        let number = u16::try_from(slot.slot).ok().filter(|slot| *slot < esker_cluster::SLOTS);
        Ok((number.ok_or_else(|| MoveError::NoSlot(slot.slot).to_string())?, slot.epoch))
    };
    slots.iter().map(slot).collect()
}

impl Takes for Taker {
    fn begin(&self, request: proto::BeginMoveRequest) -> Answer<()> {
        let slots = heard(&request.slots)?;
        tracing::info!(from = request.from, to = request.chain, slots = slots.len(), "slots are to come");
        self.0.begin(request.r#move, (&request.from, &request.thrift), &slots).map_err(|error| error.to_string())
    }

    fn put(&self, request: proto::PutKeysRequest) -> Answer<()> {
        self.0.put(request.r#move, request.first, &request.parts).map_err(|error| error.to_string())
    }

    fn take(&self, request: proto::TakeSlotsRequest) -> Answer<bool> {
        self.0.take(request.r#move, &heard(&request.slots)?).map_err(|error| error.to_string())
    }

    fn settle(&self, request: proto::SettleEachSlotRequest) -> Answer<Vec<u32>> {
        let kept = self.0.settle(&heard(&request.slots)?).map_err(|error| error.to_string())?;
        Ok(kept.into_iter().map(|(slot, _)| u32::from(slot)).collect())
    }
}

impl Moves {
    /// Begins, for as long as the server does not stop.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn begin(chain: &str, host: &Arc<Host>, moving: Moving) -> std::io::Result<Self> {
        let (chain, host) = (chain.to_owned(), Arc::clone(host));
        let mover = Mover { chain: chain.clone(), host: Arc::clone(&host), moving: moving.clone() };
        std::thread::Builder::new().name("esker-mover".into()).spawn(move || mover.run())?;
        host.set_taker(&chain, Some(Arc::new(Taker(moving))));
        Ok(Self { chain, host })
    }
}

impl Drop for Moves {
    fn drop(&mut self) {
        self.host.set_taker(&self.chain, None);
    }
}

impl Mover {
    fn goes_on(&self) -> bool {
        !self.moving.is_over()
    }

    fn calls(&self, chain: &str) -> Answer<MoveCalls> {
        self.host.calls(chain, self.is_over())
    }

    fn is_over(&self) -> IsOver {
        let moving = self.moving.clone();
        Arc::new(move || moving.is_over())
    }

    /// Moves what is to be moved until the server stops.
    fn run(&self) {
        let mut last_why = String::new();
        while self.goes_on() {
            let pause = match self.round() {
                Ok(()) => {
                    last_why.clear();
                    LOOK
                }
                Err(Stuck(why)) => {
                    // What is closed now is left from before, and may stay so.
                    self.moving.tell_that_it_lasts();
                    if why != last_why && self.goes_on() {
                        tracing::warn!(chain = self.chain.as_str(), why, "slots do not go on to other chains");
                        last_why = why;
                    }
                    AGAIN
                }
            };
            self.moving.wait(pause);
        }
        // Those who wait for closed slots wait for the next head.
        self.moving.tell_that_it_lasts();
    }

    fn round(&self) -> Result<(), Stuck> {
        let settled = self.settle_left(WAIT);
        let given_up = self.moving.give_up()?;
        if given_up > 0 {
            let chain = self.chain.as_str();
            tracing::info!(chain, slots = given_up, "slots that were to come do not: what they left is removed");
        }
        let Some(slots) = self.host.seen().and_then(|seen| seen.slots.clone()) else { return settled };
        self.publish(&slots)?;
        let records = self.moving.records();
        let is_told = |slot: &u16, epoch| records.get(slot).is_none_or(|record| record.epoch <= epoch);
        let mut due = BTreeMap::<&str, Vec<SlotEpoch>>::new();
        for next in slots.due_of(&self.chain).filter(|next| is_told(&next.slot, next.epoch)) {
            due.entry(next.to).or_default().push((next.slot, next.epoch + 1));
        }
        // What a chain was sent before is settled first, so that one batch at most is in doubt.
        let in_doubt = self.moving.left_closed();
        due.retain(|to, _| in_doubt.iter().all(|(of, _)| of != to));
        // A chain that takes none keeps no other from it.
        let moved = due.into_iter().map(|(to, slots)| {
            let moved = self.go(to, &slots);
            self.moving.end_gathering();
            moved
        });
        settled.and(moved.collect::<Vec<_>>().into_iter().collect())
    }

    /// Settles what was left closed; each chain that does not say is asked for so long. One that does not answer keeps
    /// no other from going on.
    fn settle_left(&self, patience: Duration) -> Result<(), Stuck> {
        let left = self.moving.left_closed().into_iter();
        let settled = left.map(|(to, slots)| self.settle(slots, to, None, patience).map(drop));
        settled.collect::<Vec<_>>().into_iter().collect()
    }

    /// Tells the coordinator of slots that have gone, or come, and that it does not know of.
    fn publish(&self, slots: &Slots) -> Result<(), Stuck> {
        let mut gone = BTreeMap::<&str, Vec<SlotEpoch>>::new();
        let records = self.moving.records();
        for (slot, record) in records.iter() {
            let keeper = match record.state {
                SlotState::Gone => record.chain.as_str(),
                SlotState::Here => self.chain.as_str(),
                SlotState::Leaving | SlotState::Coming => continue,
            };
            if slots.part_of(*slot).is_none_or(|part| part.epoch < record.epoch) {
                gone.entry(keeper).or_default().push((*slot, record.epoch));
            }
        }
        for (to, gone) in gone {
            self.tell(&gone, to)?;
        }
        Ok(())
    }

    fn tell(&self, gone: &[SlotEpoch], to: &str) -> Result<(), Stuck> {
        let (gone, to) = (gone.to_vec(), to.to_owned());
        let changed = self.host.change_slots(move |slots| Some(slots.with_moved(&gone, &to)), self.is_over());
        changed.map(drop).map_err(Stuck)
    }

    /// Whether these slots are still to go there.
    fn are_due(&self, slots: &[SlotEpoch], to: &str) -> bool {
        let Some(seen) = self.host.seen() else { return false };
        let Some(planned) = &seen.slots else { return false };
        let due: std::collections::BTreeSet<u16> =
            planned.due_of(&self.chain).filter(|due| due.to == to).map(|due| due.slot).collect();
        slots.iter().all(|(slot, _)| due.contains(slot))
    }

    /// Moves slots to a chain, as many as can be gathered at once.
    fn go(&self, to: &str, due: &[SlotEpoch]) -> Result<(), Stuck> {
        let mut calls = self.calls(to)?;
        let slots: Vec<u16> = due.iter().map(|(slot, _)| *slot).collect();
        tracing::info!(chain = self.chain.as_str(), to, slots = slots.len(), "slots are to go to another chain");
        self.moving.gather(&slots, &|| self.goes_on())?;
        let gathered: Vec<SlotEpoch> =
            due.iter().copied().filter(|(slot, _)| self.moving.gathered(*slot).is_some()).collect();
        let called = fastrand::u64(1..);
        calls.begin((&self.chain, &self.moving.thrift()), called, told(&gathered))?;
        let (mut rest, mut keys_max) = (&gathered[..], KEYS);
        let (began, mut bytes) = (Instant::now(), 0);
        let mut look_at = began + AGAIN;
        while let Some(((slot, _), _)) = rest.split_first() {
            // Keys come to be, and what is gathered may be less by then.
            let Some(first) = self.moving.gathered(*slot) else { break };
            let (mut count, mut keys) = (1, first);
            while count < rest.len().min(SLOTS_MAX) {
                let Some(more) = self.moving.gathered(rest[count].0) else { break };
                if keys + more > keys_max {
                    break;
                }
                (count, keys) = (count + 1, keys + more);
            }
            let (batch, others) = rest.split_at(count);
            if !self.goes_on() || !self.are_due(batch, to) {
                return Ok(());
            }
            let (put, took) = self.go_closed(batch, to, called, &mut calls)?;
            bytes += put;
            let took = took.max(Duration::from_micros(100));
            let fits = (keys.max(1) as f64 * CLOSED.as_secs_f64() / took.as_secs_f64()) as usize;
            keys_max = fits.clamp(1, keys_max * 2).min(KEYS_MAX);
            self.tell(batch, to)?;
            self.keep_to_rate(began, bytes);
            rest = others;
            // What is closed for another chain does not stay so until all of these have gone.
            let looked = Instant::now();
            if looked >= look_at {
                if let Err(Stuck(why)) = self.settle_left(Duration::ZERO) {
                    tracing::debug!(chain = self.chain.as_str(), why, "slots stay closed while others go");
                }
                look_at = Instant::now() + AGAIN.max(looked.elapsed() * LOOK_PARTS);
            }
        }
        tracing::info!(chain = self.chain.as_str(), to, slots = gathered.len(), bytes, "slots went to another chain");
        Ok(())
    }

    fn keep_to_rate(&self, began: Instant, bytes: u64) {
        let rate = self.host.copy_bytes_per_s();
        if rate == 0 {
            return;
        }
        let due = Duration::from_secs_f64(bytes as f64 / rate as f64);
        while self.goes_on() && began.elapsed() < due {
            self.moving.wait(due.saturating_sub(began.elapsed()));
        }
    }

    /// Closes slots and has the other chain take them; bytes of their keys, and how long those took to be put.
    fn go_closed(
        &self,
        batch: &[SlotEpoch],
        to: &str,
        called: u64,
        calls: &mut MoveCalls,
    ) -> Result<(u64, Duration), Stuck> {
        let closed = self.moving.close(batch, to)?;
        match self.put(&closed, called, calls) {
            Ok(put) => {
                self.moving.give(&closed)?;
                Ok(put)
            }
            Err(Stuck(why)) => {
                let slots = closed.slots().to_vec();
                if self.settle(slots, to.to_owned(), Some(closed), WAIT)? { Ok((0, CLOSED)) } else { Err(Stuck(why)) }
            }
        }
    }

    fn put(&self, closed: &Closed, called: u64, calls: &mut MoveCalls) -> Result<(u64, Duration), Stuck> {
        let slots = told(closed.slots());
        for _ in 0..PUTS_MAX {
            let since = Instant::now();
            let bytes = self.moving.read(closed, &mut |first, parts| {
                if !self.goes_on() {
                    return Err(Stuck::from(MoveError::Over));
                }
                calls.put(called, first, parts).map_err(Stuck)
            })?;
            let took = since.elapsed();
            if calls.take(called, slots.clone())? {
                return Ok((bytes, took));
            }
        }
        Err(Stuck(format!("the other chain was cleared {PUTS_MAX} times while keys came to it")))
    }

    /// Asks the other chain which slots that are closed it took, and has them given, or opened again; whether it took
    /// all. Where it does not say so for a while, or is to be asked once, they stay closed, for the next time.
    fn settle(
        &self,
        slots: Vec<SlotEpoch>,
        to: String,
        closed: Option<Closed>,
        patience: Duration,
    ) -> Result<bool, Stuck> {
        let since = Instant::now();
        let kept = loop {
            match self.calls(&to).and_then(|mut calls| calls.settle(told(&slots))) {
                Ok(kept) => break kept,
                Err(_) if !self.goes_on() => return Err(MoveError::Over.into()),
                Err(why) if since.elapsed() >= patience => {
                    self.moving.tell_that_it_lasts();
                    let count = slots.len();
                    return Err(Stuck(format!("{count} slots stay closed, since the chain {to} does not say: {why}")));
                }
                Err(_) => self.moving.wait(LOOK),
            }
        };
        // Of two batches that were left by one after the other, one may have been taken.
        let (kept, others): (Vec<_>, Vec<_>) =
            slots.into_iter().partition(|(slot, _)| kept.contains(&u32::from(*slot)));
        if !others.is_empty() {
            self.moving.reopen(&others, &to)?;
        }
        if kept.is_empty() {
            return Ok(false);
        }
        let closed = match closed.filter(|_| others.is_empty()) {
            Some(closed) => closed,
            None => self.moving.find(kept, to, &|| self.goes_on())?,
        };
        self.moving.give(&closed)?;
        Ok(others.is_empty())
    }
}

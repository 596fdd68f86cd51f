//! One life of the store: transactions, reads, failing guards, syncs, maintenance, space that runs out.
//!
//! step → what the model expects → the engine's answer → owed, or why the store has stopped
//!
//! Invariant: an answer that the model does not expect needs a cause that the device knows of; else it breaks the run.

use esker_engine::Engine;
use esker_store::{Change, Collection, Completion, Durability, Error, ObjectStore, Transaction};

use crate::crash::Run;
use crate::fault::FaultyDevice;
use crate::generate::{in_words, lasting_collections, one_write, removal, transaction};
use crate::history::{Probe, Unread, whole_state};
use crate::kind::{self, Kind, SEGMENT_BYTES};
use crate::model::difference;
use crate::outcome::maintain;

/// Segments that never hold log: room for superblocks.
const SUPERBLOCK_SEGMENTS: u64 = 2;
/// The write that a device with room must take, in bytes.
const RESUMING_WRITE_BYTES: usize = 8_000;

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Applied,
    /// The model refuses it too, or a read that it needed failed.
    Refused,
    Full,
    /// The store has stopped, because the device failed.
    Stopped,
}

impl Run {
    /// Runs steps until the store stops; whether it still lives.
    pub(crate) fn live(&mut self, engine: &Engine, device: &FaultyDevice, steps: usize) -> Result<bool, String> {
        let mut txn = Transaction::new();
        for collection in lasting_collections() {
            txn = txn.create_collection(&collection);
        }
        if self.submit(engine, device, txn)? == Answer::Stopped {
            return Ok(false);
        }
        for _ in 0..steps {
            if !self.step(engine, device)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// One step; false if the store has stopped.
    fn step(&mut self, engine: &Engine, device: &FaultyDevice) -> Result<bool, String> {
        if self.kind == Kind::Errors && self.rng.u8(0..5) == 0 {
            device.fail_reads(self.rng.u64(0..3), self.rng.u64(0..4));
        }
        if self.kind == Kind::Thin && self.rng.u8(0..12) == 0 {
            device.set_space(Some(device.used_bytes() + SEGMENT_BYTES * self.rng.u64(0..6)));
        }
        if self.rng.u8(0..100) < self.maintain_percent {
            return self.maintenance(engine, device);
        }
        match self.rng.u8(0..80) {
            0 => {
                let policy = kind::policy(&mut self.rng);
                self.acknowledges_applied = policy.acknowledges_applied();
                engine.set_policy(policy);
                Ok(true)
            }
            1 => self.unchanged(engine, device, "between two transactions").map(|()| true),
            2..42 => self.transact(engine, device),
            42..64 => self.probe(engine, device),
            64..72 => self.failing_guard(engine, device),
            _ => {
                let all = self.history.len();
                match engine.sync().wait() {
                    Ok(_) => self.owed = all,
                    Err(_) if device.has_failed() => return Ok(false),
                    Err(error) => return Err(format!("sync: {error}")),
                }
                Ok(true)
            }
        }
    }

    /// A random transaction; where the device is full, what has to be possible then.
    fn transact(&mut self, engine: &Engine, device: &FaultyDevice) -> Result<bool, String> {
        let removes = self.kind.fills() && self.rng.u8(0..8) == 0;
        let now = self.history.now();
        let txn = if removes { removal(&mut self.rng, now) } else { transaction(&mut self.rng, now, self.taste) };
        match self.submit(engine, device, txn)? {
            Answer::Applied | Answer::Refused => Ok(true),
            Answer::Stopped => Ok(false),
            Answer::Full => {
                if self.rng.u8(0..4) == 0 {
                    self.unchanged(engine, device, "after a transaction that did not fit")?;
                }
                // On a thin device the reserve is not there when another user of the file system has taken the space.
                if self.kind == Kind::Thin || device.is_rotten() {
                    Ok(true)
                } else {
                    self.full_device_recovers(engine, device)
                }
            }
        }
    }

    /// A random transaction, inside a checkpoint: where it does not fit nothing is asked of the store, which cannot
    /// clean now.
    fn transact_simply(&mut self, engine: &Engine, device: &FaultyDevice) -> Result<bool, String> {
        let txn = transaction(&mut self.rng, self.history.now(), self.taste);
        Ok(!matches!(self.submit(engine, device, txn)?, Answer::Stopped))
    }

    /// Submits, compares with the model, and sometimes waits.
    pub(crate) fn submit(
        &mut self,
        engine: &Engine,
        device: &FaultyDevice,
        txn: Transaction,
    ) -> Result<Answer, String> {
        let mut order = self.history.order;
        let expected = self.history.now().after(&txn, &mut order);
        let records = engine.stats().records;
        let recorded;
        let (result, barrier) = engine.submit(txn.clone()).into_parts();
        let seq = match (result, expected) {
            (Ok(seq), Ok(state)) => {
                let before = self.history.seqs.last().map_or(0, |seq| seq.0);
                let changed = state != **self.history.now();
                if changed && seq.0 <= before {
                    let txn = in_words(&txn);
                    return Err(format!("{txn} changed something, but its number {} is not above {before}", seq.0));
                }
                // A transaction that changes nothing has no record and no number of its own.
                recorded = seq.0 > before && engine.stats().records > records;
                if recorded {
                    let applied_only = match txn.durability {
                        Durability::Applied => true,
                        Durability::Durable => self.acknowledges_applied,
                        Durability::Always => false,
                    };
                    self.history.order = order;
                    self.history.push(state, seq, applied_only);
                    self.outcome.transactions += 1;
                }
                seq
            }
            (Err(Error::Full { .. }), _) => {
                self.outcome.full += 1;
                return Ok(Answer::Full);
            }
            (Err(Error::Stopped { .. }), _) if device.has_failed() => return Ok(Answer::Stopped),
            (Err(Error::Io { .. }), _) if device.power_is_off() => return Ok(Answer::Stopped),
            (Err(Error::Io { .. }), _) if device.counts().failed_reads > 0 => return Ok(Answer::Refused),
            (Err(Error::Corrupt { .. }), _) if device.is_rotten() => return Ok(Answer::Refused),
            (Err(error), Err(refusal)) if refusal.is(&error) => {
                self.outcome.refused += 1;
                return Ok(Answer::Refused);
            }
            (Ok(_), Err(refusal)) => return Err(format!("{} should be refused: {refusal:?}", in_words(&txn))),
            (Err(error), expected) => {
                let expected = expected.map(|_| ());
                return Err(format!("refused with `{error}`, expected {expected:?}: {}", in_words(&txn)));
            }
        };
        if self.rng.bool() {
            // One without a record waits for what its objects depend on, not for all before it.
            let all = if recorded { self.history.len() } else { self.owed };
            match barrier.map(|barrier| barrier.wait()) {
                Some(Ok(())) => self.owed = self.owed.max(all),
                Some(Err(_)) if device.has_failed() => return Ok(Answer::Stopped),
                Some(Err(error)) => return Err(format!("waiting for {seq:?}: {error}")),
                None => {}
            }
        }
        Ok(Answer::Applied)
    }

    /// A snapshot shows what there was when it was taken, whatever is done beside it.
    fn beside_a_snapshot(&mut self, engine: &Engine, device: &FaultyDevice) -> Result<bool, String> {
        let then = self.history.now().clone();
        let all = self.history.len();
        let view = match engine.view(0, self.rng.choice([0, u64::MAX]).unwrap_or(0)) {
            Ok((_, view)) => view,
            Err(Error::Stopped { .. } | Error::Io { .. }) if device.has_failed() => return Ok(false),
            Err(Error::Io { .. }) if device.counts().failed_reads > 0 => return Ok(!device.power_is_off()),
            Err(Error::Corrupt { .. }) if device.is_rotten() => return Ok(true),
            // A store without any commit has nothing to show.
            Err(Error::Invalid { .. }) if all == 0 => return Ok(true),
            Err(error) => return Err(format!("snapshot: {error}")),
        };
        // All of it is durable.
        self.owed = self.owed.max(all);
        for _ in 0..self.rng.u8(0..8) {
            let goes_on = match self.rng.u8(0..4) {
                0 => maintain(engine, &mut self.rng).is_ok(),
                _ => self.transact_simply(engine, device)?,
            };
            if !goes_on {
                break;
            }
        }
        match whole_state(&view) {
            Ok(found) => match difference(&then, &found) {
                Some(why) => Err(format!("a snapshot has changed: {why}")),
                None => Ok(!device.has_failed() && !device.power_is_off()),
            },
            Err(unread) if may_fail(unread.error.as_ref(), device) => {
                Ok(!device.has_failed() && !device.power_is_off())
            }
            Err(unread) => Err(format!("in a snapshot: {unread}")),
        }
    }

    /// Maintenance changes nothing that can be read.
    fn maintenance(&mut self, engine: &Engine, device: &FaultyDevice) -> Result<bool, String> {
        if !self.kind.fills() && self.rng.u8(0..8) == 0 {
            return self.beside_a_snapshot(engine, device);
        }
        let maintained = if self.rng.u8(0..3) == 0 {
            // Transactions go on while the checkpoint is written.
            let (mut left, mut outcome) = (self.rng.u8(0..4), Ok(true));
            let written = engine.checkpoint_while(&mut || {
                let stats = engine.stats();
                // Without threads a write that has to wait for room here would wait for ever: the reserve is two
                // fifths of the device at most. Where space comes and goes no client knows beforehand what is left.
                let roomy = stats.gate == 0 && stats.free_segments > stats.segments * 2 / 5 + 2;
                let roomy = roomy && self.kind != Kind::Thin;
                if left > 0 && roomy && matches!(outcome, Ok(true)) {
                    left -= 1;
                    outcome = self.transact_simply(engine, device);
                }
            });
            if !outcome? {
                return Ok(false);
            }
            written.map(|()| true)
        } else {
            maintain(engine, &mut self.rng)
        };
        match maintained {
            Ok(done) => self.outcome.maintained += u64::from(done),
            Err(Error::Stopped { .. } | Error::Io { .. }) if device.has_failed() => return Ok(false),
            Err(Error::Io { .. }) if device.counts().failed_reads > 0 => {}
            Err(Error::Corrupt { .. }) if device.is_rotten() => {}
            // There may be no room to move anything to, or no log since the store opened full.
            Err(Error::Full { .. } | Error::ReadOnly) if self.kind.fills() || device.is_rotten() => {}
            Err(error) => return Err(format!("maintenance: {error}")),
        }
        if self.rng.u8(0..3) == 0 {
            self.unchanged(engine, device, "after maintenance")?;
        }
        Ok(true)
    }

    /// The store shows what the model holds.
    fn unchanged(&mut self, engine: &Engine, device: &FaultyDevice, when: &str) -> Result<(), String> {
        let look = whole_state(engine).and_then(|found| match difference(self.history.now(), &found) {
            Some(why) => Err(Unread { why, error: None }),
            None if self.rng.u8(0..4) == 0 => self.in_commit_order(engine),
            None => Ok(()),
        });
        match look {
            Err(unread) if !may_fail(unread.error.as_ref(), device) => Err(format!("{when}: {unread}")),
            _ => Ok(()),
        }
    }

    /// Bytes of log that the device has room for at most.
    fn capacity(device: &FaultyDevice) -> u64 {
        let shape = device.shape();
        let bytes = shape.space_bytes.unwrap_or(u64::MAX).min(shape.len);
        (bytes / SEGMENT_BYTES).saturating_sub(SUPERBLOCK_SEGMENTS) * SEGMENT_BYTES
    }

    /// `full_device_recovers`: deletes go through, and once at most a quarter of the device is alive, writes do.
    fn full_device_recovers(&mut self, engine: &Engine, device: &FaultyDevice) -> Result<bool, String> {
        while self.history.now().weight() > Self::capacity(device) / 4 {
            let objects = &self.history.now().objects;
            let Some((heaviest, _)) = objects.iter().max_by_key(|(_, object)| object.weight()) else { break };
            let txn = Transaction::new().change(&heaviest.clone(), Change::Remove);
            match self.submit_with_help(engine, device, txn)? {
                Answer::Applied | Answer::Refused => {}
                Answer::Stopped => return Ok(false),
                Answer::Full => return Err(self.stuck(engine, device, "takes no deletes")),
            }
        }
        let txn = one_write(&mut self.rng, RESUMING_WRITE_BYTES);
        match self.submit_with_help(engine, device, txn)? {
            Answer::Applied | Answer::Refused => Ok(true),
            Answer::Stopped => Ok(false),
            Answer::Full => Err(self.stuck(engine, device, "takes no writes, though most of it is dead")),
        }
    }

    fn stuck(&self, engine: &Engine, device: &FaultyDevice, what: &str) -> String {
        let (weight, capacity) = (self.history.now().weight(), Self::capacity(device));
        let stats = engine.stats();
        format!(
            "full_device_recovers: the device {what}: {weight} bytes live of {capacity}, {} of {} segments free",
            stats.free_segments, stats.segments
        )
    }

    /// Without threads the engine cleans only when asked: submits again after maintenance and a sync.
    fn submit_with_help(&mut self, engine: &Engine, device: &FaultyDevice, txn: Transaction) -> Result<Answer, String> {
        for _ in 0..4 {
            match self.submit(engine, device, txn.clone())? {
                Answer::Full => {}
                answer => return Ok(answer),
            }
            for _ in 0..2 * Self::capacity(device) / SEGMENT_BYTES {
                if !self.maintenance(engine, device)? {
                    return Ok(Answer::Stopped);
                }
            }
            let all = self.history.len();
            match engine.sync().wait() {
                Ok(_) => self.owed = all,
                Err(_) if device.has_failed() => return Ok(Answer::Stopped),
                Err(error) => return Err(format!("sync: {error}")),
            }
        }
        Ok(Answer::Full)
    }

    /// Takes the value as applied or waits for its barrier; the second is false if that failed.
    fn shown<T>(
        &mut self,
        device: &FaultyDevice,
        completion: Completion<T>,
        depends_on: usize,
    ) -> Result<(Result<T, Error>, bool), String> {
        let (result, barrier) = completion.into_parts();
        let Some(barrier) = barrier else {
            self.owed = self.owed.max(depends_on);
            return Ok((result, true));
        };
        if self.rng.bool() {
            return Ok((result, true));
        }
        match barrier.wait() {
            Ok(()) => {
                self.owed = self.owed.max(depends_on);
                Ok((result, true))
            }
            Err(_) if device.has_failed() => Ok((result, false)),
            Err(error) => Err(format!("waiting for what a read depends on: {error}")),
        }
    }

    fn probe(&mut self, engine: &Engine, device: &FaultyDevice) -> Result<bool, String> {
        let probe = Probe::random(&mut self.rng, self.history.now());
        let depends_on = self.history.depends_on(&probe);
        let completion = probe.read(engine);
        let failed = device.counts().failed_reads > 0 || device.power_is_off();
        let (result, lived) = match completion.into_parts() {
            // An error shows nothing.
            (Err(Error::Io { .. }), _) if failed => return Ok(!device.power_is_off()),
            (result, barrier) => self.shown(device, Completion::after(result, barrier), depends_on)?,
        };
        match result {
            Ok(value) if value == probe.expected(self.history.now()) => Ok(lived),
            Ok(value) => {
                let expected = probe.expected(self.history.now());
                let [value, expected] =
                    [value, expected].map(|value| value.map(|value| value.slice(..value.len().min(32))));
                Err(format!("{probe:?} is {value:?}, expected {expected:?} (cut to 32 bytes)"))
            }
            Err(Error::Corrupt { .. }) if device.is_rotten() => Ok(lived),
            Err(error) => Err(format!("{probe:?}: {error}")),
        }
    }

    fn failing_guard(&mut self, engine: &Engine, device: &FaultyDevice) -> Result<bool, String> {
        let now = self.history.now().clone();
        let probe = Probe::random_for_guard(&mut self.rng, &now);
        let depends_on = self.history.depends_on(&probe);
        let Some((object, condition)) = probe.false_guard(&now) else { return Ok(true) };
        let mut txn = transaction(&mut self.rng, &now, self.taste).guard(&object, condition);
        // It stands behind the guards that hold, or alone.
        if self.rng.bool() {
            let last = txn.guards.pop();
            txn.guards.clear();
            txn.guards.extend(last);
        }
        let index = txn.guards.len() - 1;
        let completion = engine.submit(txn);
        let (result, lived) = match completion.into_parts() {
            (result @ Err(Error::GuardFailed { .. }), barrier) => {
                self.shown(device, Completion::after(result, barrier), depends_on)?
            }
            (result, _) => (result, true),
        };
        match result {
            Err(Error::GuardFailed { index: found }) if found == index => Ok(lived),
            Err(Error::Stopped { .. }) if device.has_failed() => Ok(false),
            Err(Error::Io { .. }) if device.power_is_off() => Ok(false),
            Err(Error::Io { .. }) if device.counts().failed_reads > 0 => Ok(true),
            Err(Error::Corrupt { .. }) if device.is_rotten() => Ok(true),
            // A store that opened full looks at no guards.
            Err(Error::Full { .. }) if self.kind.fills() => Ok(true),
            other => Err(format!("a guard on {probe:?} that does not hold: {other:?}")),
        }
    }

    /// After a failed write or sync: writes are refused with the cause, what was durable is still readable.
    pub(crate) fn after_failure(&mut self, engine: &Engine, device: &FaultyDevice) -> Result<(), String> {
        let txn = Transaction::new().create_collection(&Collection::new("late"));
        match engine.submit(txn).wait() {
            Err(Error::Stopped { .. } | Error::Full { .. }) => {}
            other => return Err(format!("after a failure, submit: {other:?}")),
        }
        for _ in 0..10 {
            let probe = Probe::random(&mut self.rng, self.history.now());
            let (result, barrier) = probe.read(engine).into_parts();
            if barrier.is_some_and(|barrier| barrier.state().is_none_or(|state| state.is_err())) {
                continue;
            }
            let expected = probe.expected(self.history.now());
            match result {
                Ok(value) if value == expected => {}
                Err(error) if may_fail(Some(&error), device) => {}
                other => return Err(format!("after a failure {probe:?} is {other:?}, expected {expected:?}")),
            }
        }
        Ok(())
    }
}

/// Whether the device gave a cause for a read to fail so.
fn may_fail(error: Option<&Error>, device: &FaultyDevice) -> bool {
    match error {
        Some(Error::Io { .. }) => device.power_is_off() || device.counts().failed_reads > 0,
        Some(Error::Corrupt { .. }) => device.is_rotten(),
        // A scan in commit order needs what was never written.
        Some(Error::Stopped { .. }) => device.has_failed(),
        _ => false,
    }
}

//! Crash runs: random transactions, a power cut or a failure at any I/O, recovery, and the promises of DESIGN §5.
//!
//! open → transactions, reads, waits → power cut at the n-th I/O → what survives → open → equal to a prefix? → again
//!
//! Checked in every run:
//! - `acknowledged_writes_survive`: the recovered prefix holds every transaction whose completion was waited for.
//! - `recovery_is_a_prefix` and `transactions_are_atomic`: the recovered state equals the model after some number of
//!   transactions, in all spaces of all objects of both collections.
//! - `nothing_unwritten_is_read`: whatever a read or a failed guard showed without a pending barrier is in the prefix.
//! - `reads_are_verified`: after a clean stop one flipped bit gives an error or changes nothing.

use std::sync::Arc;

use esker_device::{Device, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Collection, Completion, Error, ObjectStore, Transaction};

use crate::fault::{Faults, FaultyDevice, Survival};
use crate::history::{History, Probe, transaction, whole_state};

const DEVICE_BYTES: u64 = 3 << 20;
const SEGMENT_BYTES: u64 = 64 << 10;
/// Power cuts in one run.
const ROUNDS: usize = 4;
const STEPS_MAX: usize = 60;

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Transactions applied.
    pub transactions: u64,
    /// Power cuts and failures survived.
    pub crashes: u64,
    /// Transactions that a crash took back, none of them acknowledged.
    pub taken_back: u64,
    /// Hash of every I/O of the run.
    pub trace: u64,
}

struct Run {
    rng: fastrand::Rng,
    /// Values are large: segments fill quickly.
    large: bool,
    history: History,
    /// So many transactions must be there after the next crash.
    owed: usize,
    outcome: Outcome,
}

/// Runs one seed.
///
/// # Errors
/// The promise that was broken, and how.
pub fn run(seed: u64) -> Result<Outcome, String> {
    let blank = MemoryDevice::new(DEVICE_BYTES);
    let format = FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [seed as u8; 16] };
    Engine::format(&blank, &format).map_err(|error| error.to_string())?;
    let mut image = blank.image();
    let rng = fastrand::Rng::with_seed(seed);
    let mut run =
        Run { rng, large: seed.is_multiple_of(3), history: History::new(), owed: 0, outcome: Outcome::default() };
    for round in 0..ROUNDS {
        let device = Arc::new(FaultyDevice::new(image, run.rng.u64(..)));
        image = run.round(&device).map_err(|broken| format!("round {round}: {broken}"))?;
        run.outcome.trace ^= device.counts().trace.rotate_left(round as u32);
    }
    run.flip(image)?;
    Ok(run.outcome)
}

fn open(device: &Arc<FaultyDevice>, rng: &mut fastrand::Rng) -> Result<Engine, Error> {
    let options = Options {
        commit_thread: false,
        recent_bytes: if rng.bool() { 0 } else { 1 << 20 },
        cache_bytes: 1 << 16,
        // Little room makes the log append without a sync, much lets segments be sealed before they are written.
        pending_bytes_max: rng.choice([4 << 10, 32 << 10, 4 * SEGMENT_BYTES]).unwrap_or(4 << 10),
        ..Options::default()
    };
    Engine::open(Arc::clone(device) as Arc<dyn Device>, options)
}

impl Run {
    /// One life of the store; returns what the crash leaves of the device.
    fn round(&mut self, device: &Arc<FaultyDevice>) -> Result<Vec<u8>, String> {
        // Sometimes power goes again while the store recovers.
        if self.rng.u8(0..4) == 0 {
            let at = self.rng.u64(1..6);
            device.set_faults(Faults { power_cut_at: Some(at), ..Faults::default() });
            if let Err(error) = open(device, &mut self.rng).map(|engine| engine.close())
                && !device.power_is_off()
            {
                return Err(format!("opening failed: {error}"));
            }
            self.outcome.crashes += 1;
            let survival = self.survival();
            let again = FaultyDevice::new(device.image_after_power_cut(survival), self.rng.u64(..));
            return self.life(&Arc::new(again));
        }
        self.life(device)
    }

    fn survival(&mut self) -> Survival {
        let all = [Survival::None, Survival::All, Survival::Prefix, Survival::Writes, Survival::Sectors];
        all[self.rng.usize(0..all.len())]
    }

    fn life(&mut self, device: &Arc<FaultyDevice>) -> Result<Vec<u8>, String> {
        let engine = open(device, &mut self.rng).map_err(|error| format!("opening after a crash failed: {error}"))?;
        self.recovered(&engine)?;
        let mut faults = Faults::default();
        match self.rng.u8(0..8) {
            0 => faults.failed_write_at = Some(self.rng.u64(1..30)),
            1 => faults.failed_sync_at = Some(self.rng.u64(1..20)),
            2 => {}
            _ => faults.power_cut_at = Some(self.rng.u64(1..60)),
        }
        device.set_faults(faults);
        let steps = self.rng.usize(1..STEPS_MAX);
        let mut lived = self.collections(&engine);
        for _ in 0..steps {
            if !lived {
                break;
            }
            lived = self.step(&engine)?;
        }
        if lived && self.rng.u8(0..4) == 0 && engine.close().is_ok() {
            self.owed = self.history.len();
        }
        if !lived && !device.power_is_off() {
            self.after_failure(&engine)?;
        }
        let survival = self.survival();
        let image = device.image_after_power_cut(survival);
        // The process is gone: what the engine would still do as it closes no longer counts.
        device.set_faults(Faults { power_cut_at: Some(1), ..Faults::default() });
        drop(engine);
        self.outcome.crashes += 1;
        Ok(image)
    }

    /// The recovered state must be a prefix that holds everything owed.
    fn recovered(&mut self, engine: &Engine) -> Result<(), String> {
        let found = whole_state(engine)?;
        let seq = engine.stats().last_seq;
        let by_seq = self.history.seqs.iter().take_while(|known| known.0 <= seq).count();
        if by_seq < self.owed {
            return Err(format!(
                "acknowledged_writes_survive: {} transactions were acknowledged or shown, {by_seq} are there",
                self.owed
            ));
        }
        if *self.history.states[by_seq] != found {
            let near = self.history.states.iter().position(|state| **state == found);
            return Err(format!(
                "recovery_is_a_prefix: sequence number {seq} is transaction {by_seq}, but the state is that after {near:?} (of {})",
                self.history.len()
            ));
        }
        self.outcome.taken_back += (self.history.len() - by_seq) as u64;
        self.history.truncate(by_seq);
        self.owed = self.history.len();
        Ok(())
    }

    /// Makes the collections; false if the device failed meanwhile.
    fn collections(&mut self, engine: &Engine) -> bool {
        let txn =
            Transaction::new().create_collection(&Collection::new("even")).create_collection(&Collection::new("odd"));
        engine.submit(txn).wait().is_ok()
    }

    /// One step; false if the store has stopped.
    fn step(&mut self, engine: &Engine) -> Result<bool, String> {
        match self.rng.u8(0..10) {
            0..5 => self.submit(engine),
            5..8 => self.probe(engine),
            8 => self.failing_guard(engine),
            _ => {
                let all = self.history.len();
                let synced = engine.sync().wait().is_ok();
                if synced {
                    self.owed = all;
                }
                Ok(synced)
            }
        }
    }

    fn submit(&mut self, engine: &Engine) -> Result<bool, String> {
        let txn = transaction(&mut self.rng, self.large);
        let completion = engine.submit(txn.clone());
        let (result, barrier) = completion.into_parts();
        match result {
            Ok(seq) => {
                let before = self.history.seqs.last().map_or(0, |seq| seq.0);
                // A transaction that changes nothing has no record and no number of its own.
                if seq.0 > before && engine.stats().last_seq == seq.0 {
                    self.history.push(&txn, seq);
                    self.outcome.transactions += 1;
                }
            }
            Err(Error::Full { .. }) => return Ok(false),
            Err(Error::Stopped { .. }) => return Ok(false),
            Err(other) => return Err(format!("submit: {other}")),
        }
        if self.rng.bool() {
            let all = self.history.len();
            match barrier.map(|barrier| barrier.wait()) {
                Some(Ok(())) => self.owed = self.owed.max(all),
                Some(Err(_)) => return Ok(false),
                None => {}
            }
        }
        Ok(true)
    }

    /// Which transactions the value of a probe depends on: the last one that changed it and asked for durability.
    fn depends_on(&self, probe: &Probe) -> usize {
        let states = &self.history.states;
        let now = probe.expected(self.history.now());
        (1..states.len())
            .rev()
            .find(|n| probe.expected(&states[n - 1]) != now)
            .filter(|n| !self.history.applied_only[n - 1])
            .unwrap_or(0)
    }

    fn shown<T>(&mut self, completion: Completion<T>, depends_on: usize) -> (Result<T, Error>, bool) {
        let (result, barrier) = completion.into_parts();
        let Some(barrier) = barrier else {
            self.owed = self.owed.max(depends_on);
            return (result, true);
        };
        if self.rng.bool() {
            return (result, true);
        }
        let reached = barrier.wait().is_ok();
        if reached {
            self.owed = self.owed.max(depends_on);
        }
        (result, reached)
    }

    fn probe(&mut self, engine: &Engine) -> Result<bool, String> {
        let probe = Probe::random(&mut self.rng);
        let depends_on = self.depends_on(&probe);
        let (result, lived) = self.shown(probe.read(engine), depends_on);
        match result {
            Ok(value) if value == probe.expected(self.history.now()) => Ok(lived),
            Ok(value) => {
                let expected = probe.expected(self.history.now());
                Err(format!("{probe:?} is {value:?}, expected {expected:?}"))
            }
            Err(Error::Io { .. }) => Ok(false),
            Err(other) => Err(format!("{probe:?}: {other}")),
        }
    }

    fn failing_guard(&mut self, engine: &Engine) -> Result<bool, String> {
        let probe = Probe::random(&mut self.rng);
        let depends_on = self.depends_on(&probe);
        // The opposite of what holds.
        let wrong = match probe.expected(self.history.now()) {
            Some(_) => None,
            None => Some(bytes::Bytes::from_static(b"never stored by a transaction of the model")),
        };
        let (object, condition) = probe.guard(wrong);
        let txn = transaction(&mut self.rng, self.large).guard(&object, condition);
        let (result, lived) = self.shown(engine.submit(txn), depends_on);
        match result {
            Err(Error::GuardFailed { index: 0 }) => Ok(lived),
            Err(Error::Stopped { .. } | Error::Io { .. }) => Ok(false),
            other => Err(format!("a guard on {probe:?} that does not hold: {other:?}")),
        }
    }

    /// After a failed write or sync: writes are refused with the cause, what was durable is still readable.
    fn after_failure(&mut self, engine: &Engine) -> Result<(), String> {
        let txn = Transaction::new().create_collection(&Collection::new("late"));
        match engine.submit(txn).wait() {
            Err(Error::Stopped { .. } | Error::Full { .. }) => {}
            other => return Err(format!("after a failure, submit: {other:?}")),
        }
        for _ in 0..10 {
            let probe = Probe::random(&mut self.rng);
            let (result, barrier) = probe.read(engine).into_parts();
            if barrier.is_some_and(|barrier| barrier.state().is_none_or(|state| state.is_err())) {
                continue;
            }
            let expected = probe.expected(self.history.now());
            if !matches!(&result, Ok(value) if *value == expected) {
                return Err(format!("after a failure {probe:?} is {result:?}, expected {expected:?}"));
            }
        }
        Ok(())
    }

    /// One flipped bit after a clean stop: an error, or no change.
    fn flip(&mut self, image: Vec<u8>) -> Result<(), String> {
        let device = Arc::new(FaultyDevice::new(image, 1));
        let engine = open(&device, &mut self.rng).map_err(|error| format!("last opening: {error}"))?;
        self.recovered(&engine)?;
        if engine.close().is_err() {
            return Ok(());
        }
        drop(engine);
        let mut image = device.image_after_power_cut(Survival::None);
        let at = loop {
            let at = self.rng.usize(0..image.len());
            if image[at / 512 * 512..at / 512 * 512 + 512].iter().any(|byte| *byte != 0) {
                break at;
            }
        };
        image[at] ^= 1 << self.rng.u8(0..8);
        let device = Arc::new(FaultyDevice::new(image, 1));
        let Ok(engine) = open(&device, &mut self.rng) else { return Ok(()) };
        match whole_state(&engine) {
            Err(_) => Ok(()),
            Ok(found) if found == *self.history.now() => Ok(()),
            Ok(_) => {
                Err(format!("reads_are_verified: byte {at} was flipped, and other data was read without an error"))
            }
        }
    }
}

//! Crash runs: random transactions, power cuts and failures at any I/O, recovery, and the promises of DESIGN §5.
//!
//! open → transactions, reads, maintenance, waits → power cut, failure or clean stop → what survives → open → equal to
//! a prefix? → again; at the end one flipped bit
//!
//! Checked in every run:
//! - `acknowledged_writes_survive`: the recovered prefix holds every transaction whose completion was waited for.
//! - `recovery_is_a_prefix`, `transactions_are_atomic` and `deleted_stays_deleted`: the recovered state equals the
//!   model after some number of transactions, in all spaces of all objects of all collections; commit order as well.
//! - `nothing_unwritten_is_read`: whatever a read or a failed guard showed without a pending barrier is in the prefix.
//! - `reads_are_verified`: one flipped bit, under an open store or a stopped one, gives an error or changes nothing.
//! - `full_device_recovers`: a refused transaction changes nothing; then deletes go through, and once at most a
//!   quarter of the device is alive, writes do.
//! - No error without a cause: the store refuses and stops only when the model, the room or the device says why.
//! - [`esker_engine::check`] finds nothing on an undamaged image, and something wherever reading finds damage.
//!
//! What happens during one life of the store stands in `life.rs`; which devices and failures in [`crate::kind`].

use std::sync::Arc;

use esker_device::Device;
use esker_engine::{Engine, FormatOptions, Options, check};
use esker_store::{CommitEntry, Error, ObjectStore};

use crate::fault::{FaultyDevice, Image, Survival};
use crate::generate::Taste;
use crate::history::{History, Unread, commit_order, whole_state};
use crate::kind::{self, Kind, SEGMENT_BYTES};
use crate::model::{ModelState, difference};
use crate::outcome::{Outcome, maintain};
use crate::{full, threaded, volume};

/// Lives of the store in one run.
const ROUNDS: usize = 4;

pub(crate) struct Run {
    pub(crate) kind: Kind,
    pub(crate) rng: fastrand::Rng,
    pub(crate) taste: Taste,
    pub(crate) history: History,
    /// So many transactions must be there after the next crash.
    pub(crate) owed: usize,
    /// The store was stopped cleanly, and the device not touched since.
    pub(crate) stopped_cleanly: bool,
    /// The policy in force acknowledges before the sync.
    pub(crate) acknowledges_applied: bool,
    /// Of 100 steps, so many are maintenance.
    pub(crate) maintain_percent: u8,
    pub(crate) outcome: Outcome,
}

/// Runs one seed, as the kind that it chooses.
///
/// # Errors
/// The promise that was broken, and how.
pub fn run(seed: u64) -> Result<Outcome, String> {
    run_as(Kind::of_seed(seed), seed)
}

/// Runs one seed as this kind.
///
/// # Errors
/// The promise that was broken, and how.
pub fn run_as(kind: Kind, seed: u64) -> Result<Outcome, String> {
    match kind {
        Kind::Volume => return volume::run(seed),
        Kind::Log => return crate::logs::run(seed, None),
        Kind::Clones => return threaded::clones::run(seed),
        Kind::Panics => return threaded::panics::run(seed),
        Kind::Opening => return Run::with_cut_openings(seed),
        Kind::Full => return full::run(seed),
        Kind::Kv => return crate::kvs::run(seed, None),
        Kind::Map => return crate::maps::run(seed, None),
        _ => {}
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    let blank = FaultyDevice::new(Image::blank(kind.shape(&mut rng)), rng.u64(..));
    let format = FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [seed as u8; 16] };
    Engine::format(&blank, &format).map_err(|error| format!("formatting: {error}"))?;
    let mut image = blank.image_after_power_cut(Survival::None);
    let mut run = Run::new(kind, rng);
    if kind == Kind::Rot {
        return if run.rng.u8(0..4) == 0 { run.rot_superblocks(image) } else { run.rot_anything(image) };
    }
    for round in 0..ROUNDS {
        image = run.round(image).map_err(|broken| format!("round {round}: {broken}"))?;
    }
    run.damage(image).map_err(|broken| format!("damage: {broken}"))?;
    Ok(run.outcome)
}

impl Run {
    pub(crate) fn new(kind: Kind, mut rng: fastrand::Rng) -> Self {
        let large = kind.fills() || rng.u8(0..3) == 0;
        Self {
            kind,
            rng,
            taste: Taste { large, hoards: false, copies: false, payload_bytes_max: 36 << 10 },
            history: History::new(),
            owed: 0,
            stopped_cleanly: false,
            acknowledges_applied: false,
            maintain_percent: 0,
            outcome: Outcome::default(),
        }
    }

    fn device(&mut self, image: Image) -> Arc<FaultyDevice> {
        Arc::new(FaultyDevice::new(image, self.rng.u64(..)))
    }

    /// The device is not used any more.
    pub(crate) fn done(&mut self, device: &FaultyDevice) {
        let counts = device.counts();
        self.outcome.trace = self.outcome.trace.rotate_left(7) ^ counts.trace;
        self.outcome.open_zones = self.outcome.open_zones.max(counts.open_zones as u64);
    }

    pub(crate) fn open(&mut self, device: &Arc<FaultyDevice>) -> Result<Engine, Error> {
        let options = kind::options(&mut self.rng);
        self.acknowledges_applied = options.policy.acknowledges_applied();
        Engine::open(Arc::clone(device) as Arc<dyn Device>, options)
    }

    pub(crate) fn survival(&mut self) -> Survival {
        let all = [Survival::None, Survival::All, Survival::Prefix, Survival::Writes, Survival::Sectors];
        all[self.rng.usize(0..all.len())]
    }

    /// One opening, perhaps after some that failed, and one life; returns what is left of the device.
    pub(crate) fn round(&mut self, image: Image) -> Result<Image, String> {
        let mut device = self.device(image);
        while let Some(faults) = self.kind.opening_faults(&mut self.rng) {
            device.set_faults(faults);
            match self.open(&device).and_then(|engine| engine.close()) {
                Err(error) if !device.has_failed() && device.counts().failed_reads == 0 => {
                    return Err(format!("opening failed: {error}"));
                }
                _ => {}
            }
            self.stopped_cleanly = false;
            self.outcome.crashes += 1;
            let survival = self.survival();
            self.done(&device);
            device = self.device(device.image_after_power_cut(survival));
        }
        if self.rng.u8(0..6) == 0 {
            self.checked(&device, "before opening")?;
        }
        let seen = if self.rng.u8(0..8) == 0 { Some(self.read_only(&device)?) } else { None };
        let engine = self.open(&device).map_err(|error| format!("opening after a crash failed: {error}"))?;
        if self.stopped_cleanly && !engine.recovery().clean {
            return Err("the store was stopped cleanly, and its opening does not say so".into());
        }
        self.stopped_cleanly = false;
        self.recovered(&engine, seen.as_ref())?;
        if self.rng.u8(0..6) == 0 {
            self.checked(&device, "after opening")?;
        }
        self.taste.copies = engine.capability().clone;
        let survivor = self.life(&engine, &device)?;
        // The process is gone: what the engine would still do as it closes no longer counts.
        device.cut_power();
        drop(engine);
        self.done(&device);
        Ok(survivor)
    }

    fn life(&mut self, engine: &Engine, device: &FaultyDevice) -> Result<Image, String> {
        let faults = self.kind.faults(&mut self.rng);
        device.set_faults(faults);
        self.taste.hoards = self.kind.fills() && self.rng.u8(0..4) != 0;
        self.maintain_percent = self.rng.choice([2, 10, 40]).unwrap_or(2);
        let steps = self.rng.usize(1..self.kind.steps_max());
        let lived = self.live(engine, device, steps)?;
        if lived && self.rng.u64(0..16) < self.kind.clean_stops() {
            // A store that found itself full as it opened has no log to end.
            let has_log = engine.stats().last_seq > 0;
            match engine.close() {
                Ok(()) => {
                    self.owed = self.history.len();
                    self.stopped_cleanly = has_log;
                }
                Err(_) if device.has_failed() => {}
                Err(error) => return Err(format!("closing failed: {error}")),
            }
        }
        if !lived && !device.power_is_off() {
            self.after_failure(engine, device)?;
        }
        self.outcome.crashes += u64::from(!self.stopped_cleanly);
        let survival = self.survival();
        Ok(device.image_after_power_cut(survival))
    }

    /// A deep check of what is on the device: nothing is damaged, and nothing is written.
    pub(crate) fn checked(&mut self, device: &Arc<FaultyDevice>, when: &str) -> Result<(), String> {
        let before = device.counts();
        let report = check(Arc::clone(device) as Arc<dyn Device>, true, &mut |_, _| {})
            .map_err(|error| format!("the check {when} finds: {error}"))?;
        if let Some(damage) = report.damage.first() {
            return Err(format!("the check {when} finds at {}: {}", damage.offset, damage.what));
        }
        let after = device.counts();
        if (before.writes, before.discards) != (after.writes, after.discards) {
            return Err(format!("the check {when} wrote: {after:?}"));
        }
        Ok(())
    }

    /// Opens read-only: nothing is written; returns what is read.
    fn read_only(&mut self, device: &Arc<FaultyDevice>) -> Result<ModelState, String> {
        let options = Options { read_only: true, ..kind::options(&mut self.rng) };
        let engine = Engine::open(Arc::clone(device) as Arc<dyn Device>, options);
        let engine = engine.map_err(|error| format!("opening read-only failed: {error}"))?;
        let found = whole_state(&engine).map_err(|unread| format!("read-only: {unread}"))?;
        drop(engine);
        let counts = device.counts();
        if counts.writes + counts.discards > 0 {
            return Err(format!("opened read-only, the engine wrote: {counts:?}"));
        }
        Ok(found)
    }

    /// The recovered state must be a prefix that holds everything owed, and what a read-only opening showed before.
    pub(crate) fn recovered(&mut self, engine: &Engine, seen: Option<&ModelState>) -> Result<(), String> {
        let found = whole_state(engine).map_err(|unread| unread.to_string())?;
        if let Some(difference) = seen.and_then(|seen| difference(seen, &found)) {
            return Err(format!("after a read-only opening: {difference}"));
        }
        let states = &self.history.states;
        // A store that is full as it opens has no log, but knows where it ended.
        let prefix = self.history.up_to(engine.recovery().last_seq);
        if self.history.up_to_change(prefix) < self.owed {
            return Err(format!(
                "acknowledged_writes_survive: {} transactions were acknowledged or shown, {prefix} are there",
                self.owed
            ));
        }
        if let Some(difference) = difference(&states[prefix], &found) {
            let near = states.iter().position(|state| **state == found);
            return Err(format!(
                "recovery_is_a_prefix: {prefix} of {} transactions are there by sequence number {}, but {difference}; the state is that after {near:?}",
                self.history.len(),
                engine.recovery().last_seq,
            ));
        }
        self.outcome.taken_back += (self.history.len() - prefix) as u64;
        self.history.truncate(prefix);
        self.owed = self.history.len();
        if self.rng.u8(0..3) == 0 { self.in_commit_order(engine).map_err(|unread| unread.to_string()) } else { Ok(()) }
    }

    /// Entries come in the order of the commits that wrote them.
    pub(crate) fn in_commit_order(&mut self, engine: &Engine) -> Result<(), Unread> {
        if !engine.capability().commit_order {
            return Ok(());
        }
        let limit = self.rng.usize(1..40);
        let now = self.history.now();
        for collection in &now.collections {
            let found = commit_order(engine, collection, limit)?;
            // Copies are all there, once each; the order is that of what was written.
            let apart = |entries: Vec<CommitEntry>| {
                let (mut copied, own): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| now.is_copied(entry));
                copied.sort_by_cached_key(|entry| format!("{entry:?}"));
                copied.into_iter().chain(own).collect::<Vec<_>>()
            };
            let (found, expected) = (apart(found), apart(now.commit_order(collection)));
            if found != expected {
                let at = found.iter().zip(&expected).position(|(a, b)| a != b);
                let missing = expected.iter().find(|entry| !found.contains(entry));
                let missing: String = format!("{missing:?}").chars().take(120).collect();
                let (found, expected) = (found.len(), expected.len());
                let why = format!(
                    "commit order of {collection} differs at {at:?}: {found} entries, expected {expected}; missing {missing}"
                );
                return Err(Unread { why, error: None });
            }
        }
        Ok(())
    }

    /// One flipped bit, under the open store or after a clean stop: an error, or no change.
    fn damage(&mut self, image: Image) -> Result<(), String> {
        let device = self.device(image);
        let engine = self.open(&device).map_err(|error| format!("last opening: {error}"))?;
        self.recovered(&engine, None)?;
        // Without a log (it opened full) nothing says where the log ended: damage there looks like a torn end.
        let has_log = engine.stats().last_seq > 0;
        if has_log && self.rng.bool() {
            engine.close().map_err(|error| format!("closing: {error}"))?;
            drop(engine);
            self.done(&device);
            return self.damaged_at_rest(device.image_after_power_cut(Survival::None));
        }
        let image = device.image();
        let Some(at) = image.place_with_content(&mut self.rng) else { return Ok(()) };
        device.flip_bit(at, self.rng.u8(0..8));
        let now = Arc::clone(self.history.now());
        let still_right = |store: &Engine, when: &str| match whole_state(store) {
            Ok(found) => match difference(&now, &found) {
                None => Ok(()),
                Some(difference) => Err(format!("reads_are_verified: byte {at} was flipped {when}: {difference}")),
            },
            Err(unread) if unread.error.is_none() => Err(format!("byte {at} was flipped {when}: {unread}")),
            Err(_) => Ok(()),
        };
        still_right(&engine, "under the open store")?;
        // Moving damaged data must not make it good.
        for _ in 0..4 {
            if maintain(&engine, &mut self.rng).is_err() {
                break;
            }
        }
        still_right(&engine, "before maintenance")?;
        // It may stop for the damage that it met.
        let _ = engine.close();
        drop(engine);
        let options = kind::options(&mut self.rng);
        if has_log && let Ok(engine) = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options) {
            still_right(&engine, "before reopening")?;
        }
        self.done(&device);
        Ok(())
    }

    fn damaged_at_rest(&mut self, mut image: Image) -> Result<(), String> {
        let Some(at) = image.place_with_content(&mut self.rng) else { return Ok(()) };
        image.flip_bit(at, self.rng.u8(0..8));
        let device = self.device(image);
        let checked = check(Arc::clone(&device) as Arc<dyn Device>, true, &mut |_, _| {});
        let read = match self.open(&device) {
            Ok(engine) => whole_state(&engine).map_err(|unread| (unread.why, unread.error)),
            Err(error) => Err((format!("opening: {error}"), Some(error))),
        };
        self.done(&device);
        match read {
            Err((why, None)) => Err(format!("reads_are_verified: byte {at} was flipped: {why}")),
            Err((why, _)) if checked.as_ref().is_ok_and(|report| report.damaged == 0) => {
                Err(format!("byte {at} was flipped: reading says {why}, but the check finds nothing"))
            }
            Err(_) => Ok(()),
            Ok(found) => match difference(self.history.now(), &found) {
                None => Ok(()),
                Some(difference) => Err(format!("reads_are_verified: byte {at} was flipped: {difference}")),
            },
        }
    }
}

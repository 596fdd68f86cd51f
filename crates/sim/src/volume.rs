//! Crash runs of volumes: images on the real engine on the faulty device, against plain bytes.
//!
//! open → steps on images through two handles each ([`steps`]) → power cut or failure → open → equal to a prefix? →
//! again; at the end everything is removed, and nothing may be left
//!
//! Every write carries its number in every byte of it, so a state that no prefix of the steps leaves is seen, a torn
//! write too.
//!
//! Checked in every run:
//! - After a crash all images, sizes, locks, snapshots and their content are what some prefix of the transactions
//!   leaves, one for all of them together, that holds what was flushed, written with FUA, or answered as durable
//!   (snapshots and all other changes of headers).
//! - What a handle reads is what was written, whichever handle wrote it; nothing is read or written during a rollback.
//! - Snapshots never change. What is refused is refused by name.
//!
//! Invariant: the states of a step are noted before it begins, so a crash inside it finds them.

mod disks;
mod steps;

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_device::Device;
use esker_engine::{Engine, FormatOptions};
use esker_store::{Error as StoreError, ObjectStore};
use esker_volume::{Error, Image as Volume, Snapshot, Volumes};

use crate::fault::{FaultyDevice, Image, Survival};
use crate::kind::{self, Kind, SEGMENT_BYTES};
use crate::outcome::Outcome;
use disks::{World, difference, found};

/// Openings of the store in one run.
const ROUNDS: usize = 4;
/// So many of the last steps are told with what broke.
const TOLD: usize = 40;
/// Most steps of one life.
const STEPS_MAX: usize = 90;

/// A run, and the store of its present life.
pub(crate) struct DisksRun {
    rng: fastrand::Rng,
    outcome: Outcome,
    /// States after each transaction since the last opening.
    past: Vec<Arc<World>>,
    /// The state that must be there after the next crash, or a later one.
    owed: usize,
    /// The policy in force acknowledges before the sync.
    acknowledges_applied: bool,
    /// The number of the last write, and of the last name.
    number: u32,
    named: u32,
    /// What was done, in words.
    told: Vec<String>,
}

/// An open store.
pub(crate) struct Open {
    engine: Arc<Engine>,
    device: Arc<FaultyDevice>,
    volumes: Volumes,
    /// Two handles of each image.
    handles: BTreeMap<String, [Volume; 2]>,
    /// Which of them holds the lock.
    holders: BTreeMap<String, usize>,
    /// Snapshots that a client has open, perhaps longer than they live: image, name.
    snapshots: Vec<(String, String, Snapshot)>,
    /// Bytes of a write that are one transaction.
    atomic_bytes: u64,
}

/// Runs one seed.
///
/// # Errors
/// The promise that was broken, and how.
pub(crate) fn run(seed: u64) -> Result<Outcome, String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let blank = FaultyDevice::new(Image::blank(Kind::Volume.shape(&mut rng)), rng.u64(..));
    let format = FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [seed as u8; 16] };
    Engine::format(&blank, &format).map_err(|error| format!("formatting: {error}"))?;
    let mut image = blank.image_after_power_cut(Survival::None);
    let mut run = DisksRun {
        rng,
        outcome: Outcome::default(),
        past: vec![Arc::default()],
        owed: 0,
        acknowledges_applied: false,
        number: 0,
        named: 0,
        told: Vec::new(),
    };
    for round in 0..ROUNDS {
        image = run.round(image).map_err(|broken| run.in_words(&format!("round {round}: {broken}")))?;
    }
    run.end(image).map_err(|broken| run.in_words(&format!("at the end: {broken}")))?;
    Ok(run.outcome)
}

impl DisksRun {
    /// What broke, and what was done before.
    fn in_words(&self, broken: &str) -> String {
        let last = self.told.len().saturating_sub(TOLD);
        format!("{broken}\n  before that: {}", self.told[last..].join("; "))
    }

    fn now(&self) -> World {
        self.past.last().map_or_else(World::default, |world| World::clone(world))
    }

    fn device(&mut self, image: Image) -> Arc<FaultyDevice> {
        Arc::new(FaultyDevice::new(image, self.rng.u64(..)))
    }

    fn open(&mut self, device: Arc<FaultyDevice>) -> Result<Open, String> {
        let options = kind::options(&mut self.rng);
        self.acknowledges_applied = options.policy.acknowledges_applied();
        let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options);
        let engine = Arc::new(engine.map_err(|error| format!("opening after a crash failed: {error}"))?);
        let atomic_bytes = engine.capability().transaction_bytes_max / 2;
        let volumes = Volumes::open(Arc::clone(&engine) as Arc<dyn ObjectStore>);
        let volumes = volumes.map_err(|error| format!("opening volumes: {error}"))?;
        let mut open = Open {
            engine,
            device,
            volumes,
            handles: BTreeMap::new(),
            holders: BTreeMap::new(),
            snapshots: Vec::new(),
            atomic_bytes,
        };
        self.recovered(&mut open)?;
        Ok(open)
    }

    /// One opening and one life; returns what is left of the device.
    fn round(&mut self, image: Image) -> Result<Image, String> {
        let device = self.device(image);
        let mut open = self.open(Arc::clone(&device))?;
        device.set_faults(Kind::Volume.faults(&mut self.rng));
        let steps = self.rng.usize(1..STEPS_MAX);
        let mut lives = true;
        for _ in 0..steps {
            lives = self.step(&mut open)?;
            if !lives {
                break;
            }
        }
        if lives && self.rng.u8(0..8) == 0 && open.engine.close().is_ok() {
            self.owed = self.past.len() - 1;
        }
        self.outcome.crashes += 1;
        let all = [Survival::None, Survival::All, Survival::Prefix, Survival::Writes, Survival::Sectors];
        let survival = all[self.rng.usize(0..all.len())];
        let left = device.image_after_power_cut(survival);
        // The process is gone: what it would still do as it closes no longer counts.
        device.cut_power();
        drop(open);
        self.done(&device);
        Ok(left)
    }

    fn done(&mut self, device: &FaultyDevice) {
        let counts = device.counts();
        self.outcome.trace = self.outcome.trace.rotate_left(7) ^ counts.trace;
        self.outcome.open_zones = self.outcome.open_zones.max(counts.open_zones as u64);
    }

    /// What is there must be one of the states since what is owed; from there it goes on.
    fn recovered(&mut self, open: &mut Open) -> Result<(), String> {
        self.told.push("opened".into());
        let world = found(&open.volumes).map_err(|error| format!("reading everything after a crash: {error}"))?;
        let last = self.past.len() - 1;
        let Some(prefix) = (self.owed..=last).rev().find(|at| difference(&self.past[*at], &world).is_none()) else {
            let near = (0..self.owed).rev().find(|at| difference(&self.past[*at], &world).is_none());
            let owed = difference(&self.past[self.owed], &world).unwrap_or_default();
            let newest = difference(&self.past[last], &world).unwrap_or_default();
            return Err(format!(
                "after a crash no state from {} (owed) to {last} is there; the state is that after {near:?}. From the owed one: {owed}. From the last: {newest}",
                self.owed
            ));
        };
        self.outcome.taken_back += (last - prefix) as u64;
        self.past = vec![Arc::clone(&self.past[prefix])];
        self.owed = 0;
        // The handles that held locks are gone.
        for (name, disk) in &*Arc::clone(&self.past[0]) {
            let image = || open.volumes.image(name).map_err(|error| format!("opening {name}: {error}"));
            open.handles.insert(name.clone(), [image()?, image()?]);
            if disk.locked {
                let image = image()?;
                let epoch = image.lock_info().ok_or_else(|| format!("{name} is not locked any more"))?.epoch;
                image.break_lock(epoch).map_err(|error| format!("breaking the lock of {name}: {error}"))?;
                self.change(name, |disk| disk.locked = false);
                self.owe();
            }
        }
        if self.rng.u8(0..3) == 0 {
            self.finish(open)?;
            self.unchanged(open, "after finishing what was begun")?;
        }
        Ok(())
    }

    /// Finishes rollbacks, then what is left for the background.
    fn finish(&mut self, open: &mut Open) -> Result<(), String> {
        for (name, disk) in &self.now() {
            if let Some(snapshot) = &disk.rolling {
                let done = open.handles[name][0].rollback(snapshot, &mut |_, _| true);
                if !done.map_err(|error| format!("finishing the rollback of {name}: {error}"))? {
                    return Err(format!("the rollback of {name} does not end"));
                }
                self.change(name, |disk| disk.roll_back());
                self.owe();
            }
        }
        match open.volumes.work(&mut |_, _| true) {
            Ok(true) => Ok(()),
            other => Err(format!("the work left over: {other:?}")),
        }
    }

    /// The newest state, with one image changed, is a new one.
    fn change(&mut self, name: &str, change: impl FnOnce(&mut disks::Disk)) {
        let mut world = self.now();
        if let Some(disk) = world.get_mut(name) {
            change(Arc::make_mut(disk));
        }
        self.past.push(Arc::new(world));
    }

    /// Everything so far was answered as durable.
    fn owe(&mut self) {
        if !self.acknowledges_applied {
            self.owed = self.past.len() - 1;
        }
    }

    fn unchanged(&mut self, open: &Open, when: &str) -> Result<(), String> {
        let world = found(&open.volumes).map_err(|error| format!("reading everything {when}: {error}"))?;
        match difference(&self.now(), &world) {
            Some(why) => Err(format!("{when}: {why}")),
            None => Ok(()),
        }
    }

    /// Removes everything, and nothing is left.
    fn end(&mut self, image: Image) -> Result<(), String> {
        let device = self.device(image);
        let mut open = self.open(Arc::clone(&device))?;
        self.finish(&mut open)?;
        self.unchanged(&open, "at the end")?;
        self.remove_all(&open).map_err(|error| format!("removing everything: {error}"))?;
        let left =
            open.volumes.store().list(&"volume".into(), None, 1_000).wait().map_err(|error| error.to_string())?;
        if left.iter().any(|name| &name[..] != b"directory") {
            return Err(format!("left after removing everything: {left:?}"));
        }
        let closed = open.engine.close();
        self.done(&device);
        closed.map_err(|error| format!("closing: {error}"))
    }

    fn remove_all(&mut self, open: &Open) -> Result<(), Error> {
        let mut names = open.volumes.list()?;
        for name in &names {
            open.volumes.image(name)?.flatten(&mut |_, _| true)?;
            self.make_room(open);
        }
        // Snapshots may stand on snapshots of other images: those go first.
        while !names.is_empty() {
            let mut last = Ok(());
            let before = names.len();
            names.retain(|name| {
                let removed = open.volumes.image(name).and_then(|image| {
                    for snapshot in image.snapshots()? {
                        image.snapshot_unprotect(&snapshot.name)?;
                        image.snapshot_remove(&snapshot.name)?;
                    }
                    open.volumes.remove(name)
                });
                let stays = removed.is_err();
                if stays {
                    last = removed;
                }
                stays
            });
            if names.len() == before {
                return last;
            }
        }
        while !open.volumes.work(&mut |done, _| done % 2 == 0)? {}
        Ok(())
    }

    /// Cleans until half of the device is free, as far as that is possible.
    fn make_room(&mut self, open: &Open) {
        let stats = open.engine.stats();
        if stats.free_segments > stats.segments / 2 {
            return;
        }
        // Where it cannot, the next write says why.
        if open.engine.checkpoint().is_ok() {
            for _ in 0..stats.segments {
                let stats = open.engine.stats();
                match open.engine.clean() {
                    Ok(true) if stats.free_segments < stats.segments * 2 / 3 => self.outcome.maintained += 1,
                    _ => return,
                }
            }
        }
    }

    /// Whether an error is one that a store gives whose device failed, or is full.
    fn ends_life(&mut self, error: &Error, device: &FaultyDevice) -> bool {
        match error {
            Error::Store(StoreError::Full { .. }) => {
                self.outcome.full += 1;
                true
            }
            Error::Store(StoreError::Stopped { .. }) => device.has_failed(),
            Error::Store(StoreError::Io { .. }) => device.power_is_off(),
            _ => false,
        }
    }
}

//! Openings that are cut off at any of their calls, one after the other, and then one that is not.
//!
//! lives → image that a crash leaves → opened in peace: what there is → the same image, opened and cut at a write, a
//! sync, a discard or a read that the seed says, one to four times → opened: the same as in peace
//!
//! Checked in every run, beside what [`crate::crash`] checks of lives and openings:
//! - An opening that was cut changes nothing of what the next one finds: not the state, not the last number, also
//!   where a checkpoint, cleaning or a clean stop came after it and was cut.
//! - Opening fails only if the device did.
//! - The deep check finds nothing in what a cut opening leaves.
//!
//! Invariant: where an opening is cut is drawn from the calls that it makes in peace, so any of them may be the one.

use std::sync::Arc;

use esker_device::Device;
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Error, ObjectStore};

use crate::crash::Run;
use crate::fault::{Counts, Faults, FaultyDevice, Image, Survival};
use crate::history::whole_state;
use crate::kind::{self, Kind, SEGMENT_BYTES};
use crate::model::{ModelState, difference};
use crate::outcome::{Outcome, maintain};

/// Lives of the store in one run, each followed by openings that are cut.
const LIVES: u64 = 3;
/// Most openings of one image that are cut.
const CUTS_MAX: u64 = 4;
/// Of the calls that an opening makes in peace, so many more may be counted: cut after its end, as work begins.
const BEYOND: u64 = 6;

/// What an opening in peace finds, and what it needs for that.
struct Peace {
    state: ModelState,
    last_seq: u64,
    counts: Counts,
    /// What has been done since beyond opening: the cleaner's records have numbers as well.
    numbered: bool,
    /// The store had been stopped cleanly, or has been since.
    clean: bool,
}

impl Run {
    /// Runs one seed of the kind `opening`.
    ///
    /// # Errors
    /// The promise that was broken.
    pub(crate) fn with_cut_openings(seed: u64) -> Result<Outcome, String> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let lives = [Kind::Plain, Kind::Zoned, Kind::Small, Kind::SmallZoned, Kind::Thin, Kind::Errors, Kind::Remount];
        let kind = lives[rng.usize(..lives.len())];
        let blank = FaultyDevice::new(Image::blank(kind.shape(&mut rng)), rng.u64(..));
        let format = FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [seed as u8; 16] };
        Engine::format(&blank, &format).map_err(|error| format!("formatting: {error}"))?;
        let mut image = blank.image_after_power_cut(Survival::None);
        let mut run = Run::new(kind, rng);
        for life in 0..run.rng.u64(1..=LIVES) {
            image = run.round(image).map_err(|broken| format!("life {life} as {}: {broken}", kind.name()))?;
            image =
                run.cut_openings(image).map_err(|broken| format!("after life {life} as {}: {broken}", kind.name()))?;
        }
        // What follows goes on from there.
        run.round(image).map_err(|broken| format!("the last life as {}: {broken}", kind.name()))?;
        Ok(run.outcome)
    }

    /// Opens an image in peace, and looks.
    fn in_peace(&mut self, image: &Image, options: Options, first: bool) -> Result<Peace, String> {
        let device = Arc::new(FaultyDevice::new(image.clone(), self.rng.u64(..)));
        let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options);
        let engine = engine.map_err(|error| format!("opening in peace failed: {error}"))?;
        let counts = device.counts();
        let state = whole_state(&engine).map_err(|unread| format!("opened in peace: {unread}"))?;
        let (last_seq, clean) = (engine.recovery().last_seq, engine.recovery().clean);
        if first {
            // From here on what the crash took back is gone for good.
            self.recovered(&engine, None)?;
            self.stopped_cleanly = false;
        }
        device.cut_power();
        drop(engine);
        self.done(&device);
        Ok(Peace { state, last_seq, counts, numbered: false, clean })
    }

    /// Cuts openings of this image, and compares what is there then; returns what is left.
    fn cut_openings(&mut self, mut image: Image) -> Result<Image, String> {
        let options = kind::options(&mut self.rng);
        let mut peace = self.in_peace(&image, options, true)?;
        for cut in 0..self.rng.u64(1..=CUTS_MAX) {
            image = self.cut_opening(image, &mut peace).map_err(|broken| format!("cut {cut}: {broken}"))?;
            self.outcome.crashes += 1;
            if self.rng.u8(0..4) == 0 {
                let options = kind::options(&mut self.rng);
                self.same_as_in_peace(&image, &peace, options)
                    .map_err(|broken| format!("after cut {cut}: {broken}"))?;
            }
        }
        let options = kind::options(&mut self.rng);
        self.same_as_in_peace(&image, &peace, options)?;
        Ok(image)
    }

    fn same_as_in_peace(&mut self, image: &Image, peace: &Peace, options: Options) -> Result<(), String> {
        let found = self.in_peace(image, options, false)?;
        if let Some(why) = difference(&peace.state, &found.state) {
            return Err(format!("an opening that was cut has changed what is there: {why}"));
        }
        if found.last_seq < peace.last_seq || !peace.numbered && found.last_seq > peace.last_seq {
            let (found, peace) = (found.last_seq, peace.last_seq);
            return Err(format!("the store ends at {found} after an opening that was cut, at {peace} without"));
        }
        if found.clean && !peace.clean {
            return Err("the store says that it was stopped cleanly, after an opening that was cut".into());
        }
        Ok(())
    }

    /// One opening, cut at one of its calls or as something is done after it that changes nothing.
    fn cut_opening(&mut self, image: Image, peace: &mut Peace) -> Result<Image, String> {
        let device = Arc::new(FaultyDevice::new(image, self.rng.u64(..)));
        let Counts { reads, writes, syncs, discards, .. } = peace.counts;
        let changes = writes + syncs + discards;
        let mut faults = Faults::default();
        match self.rng.u8(0..8) {
            0 => {
                // A process that is killed as it reads, or a read that fails.
                faults.failed_read_at = Some(self.rng.u64(1..=reads + BEYOND));
                faults.failed_reads_more = if self.rng.bool() { u64::MAX / 2 } else { 0 };
            }
            1 => faults.failed_write_at = Some(self.rng.u64(1..=writes + BEYOND)),
            2 => faults.failed_sync_at = Some(self.rng.u64(1..=syncs + BEYOND)),
            _ => faults.power_cut_at = Some(self.rng.u64(1..=changes + BEYOND)),
        }
        device.set_faults(faults);
        let options = kind::options(&mut self.rng);
        match Engine::open(Arc::clone(&device) as Arc<dyn Device>, options) {
            Ok(engine) => {
                let done = self.something_after(&engine, peace);
                if let Err(error) = done
                    && !failed(&device)
                    && !matches!(error, Error::Full { .. } | Error::ReadOnly if self.kind.fills())
                {
                    return Err(format!("after an opening: {error}"));
                }
                let image = self.left(&device);
                device.cut_power();
                drop(engine);
                self.done(&device);
                self.looked_at(image)
            }
            Err(_) if failed(&device) => {
                let image = self.left(&device);
                self.done(&device);
                self.looked_at(image)
            }
            Err(error) => Err(format!("opening failed, and the device did not: {error}")),
        }
    }

    /// What is done after an opening that changes nothing of what is there.
    fn something_after(&mut self, engine: &Engine, peace: &mut Peace) -> Result<(), Error> {
        match self.rng.u8(0..6) {
            0 => engine.checkpoint(),
            1 => {
                peace.clean = true;
                engine.close()
            }
            2 => engine.sync().wait().map(drop),
            3 => {
                peace.numbered = true;
                for _ in 0..4 {
                    maintain(engine, &mut self.rng)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What a power cut leaves; or a kill, after which all that was written is there.
    fn left(&mut self, device: &FaultyDevice) -> Image {
        if self.rng.u8(0..4) == 0 {
            return device.image_after_power_cut(Survival::All);
        }
        let survival = self.survival();
        device.image_after_power_cut(survival)
    }

    fn looked_at(&mut self, image: Image) -> Result<Image, String> {
        if self.rng.u8(0..6) == 0 {
            let device = Arc::new(FaultyDevice::new(image.clone(), 0));
            self.checked(&device, "of what a cut opening leaves")?;
        }
        Ok(image)
    }
}

/// Whether the device gave a cause for anything to fail.
fn failed(device: &FaultyDevice) -> bool {
    device.has_failed() || device.counts().failed_reads > 0
}

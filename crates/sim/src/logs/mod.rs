//! Runs of the shared log: several processes on one store, killed, paused and left without answers at any call; power
//! lost under all of them.
//!
//! seed → log, processes, temper → lives (processes take turns call by call, see `shared/baton.rs`) → power loss →
//! engine reopened → … → at the end one undisturbed process reads all → [`history::check`], `Log::check`
//!
//! Checked: what an acknowledged append says stands at its position for ever, unless it is trimmed; positions have one
//! value over time; what is filled or trimmed stays so; the order of positions is that of time; the tail is above all
//! that was decided; numbered entries are there once; followers skip nothing and agree; a sealed log has ended; while
//! one owns the log no other process writes; an append that was refused is not there.
//!
//! Invariant: the same seed gives the same calls in the same order.

pub mod history;
mod line;
mod process;

use std::cell::Cell;
use std::sync::Arc;

use esker_device::Device;
use esker_engine::{CommitPolicy, Engine, FormatOptions, Options as EngineOptions};
use esker_log::{Layout, Log, Logs, Options};
use esker_store::ObjectStore;
use esker_store::contract::{PerObject, Watched};
use parking_lot::Mutex;

use crate::fault::{FaultyDevice, Image, Shape, Survival};
use crate::kind::{self, SEGMENT_BYTES};
use crate::outcome::Outcome;
use crate::shared::baton::{Baton, Temper};
use crate::shared::inhabit::inhabit;
use history::{Act, Event, Seen};
use line::{Line, ME};
use process::{Desk, Notes, Process, World};

pub use line::Breakage;

/// Segments of the device.
const SEGMENTS: u64 = 128;
/// Steps of one life at most: a run that needs more stands still.
const STEPS_MAX: u64 = 200_000;
/// The process that looks at the end.
const LAST: usize = usize::MAX;

/// Runs one seed.
///
/// # Errors
/// The rule that was broken, and how.
pub fn run(seed: u64, breakage: Option<Breakage>) -> Result<Outcome, String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let blank = FaultyDevice::new(Image::blank(Shape::plain(SEGMENTS * SEGMENT_BYTES)), rng.u64(..));
    let format = FormatOptions { segment_bytes: SEGMENT_BYTES, uuid: [seed as u8; 16] };
    Engine::format(&blank, &format).map_err(|error| format!("formatting: {error}"))?;
    let mut image = blank.image_after_power_cut(Survival::None);
    let mut run = Run { rng, breakage, notes: Arc::default(), time: 1, outcome: Outcome::default() };
    let lives = run.rng.usize(1..4);
    for life in 0..lives {
        let last = life + 1 == lives;
        image = run.life(image, life == 0, last).map_err(|broken| format!("life {life}: {broken}"))?;
    }
    Ok(run.outcome)
}

struct Run {
    rng: fastrand::Rng,
    breakage: Option<Breakage>,
    notes: Arc<Mutex<Notes>>,
    time: u64,
    outcome: Outcome,
}

fn layout(rng: &mut fastrand::Rng) -> Options {
    let layout = rng.choice([Layout::Omap, Layout::Stream, Layout::Slots]).unwrap_or_default();
    Options {
        layout,
        width: rng.u32(1..4),
        slots: rng.u32(1..6),
        inline_bytes_max: 16,
        entry_bytes_max: 200,
        object_bytes_max: rng.choice([200, 1 << 20]).unwrap_or(200),
        ..Options::default()
    }
}

impl Run {
    fn life(&mut self, image: Image, first: bool, last: bool) -> Result<Image, String> {
        let device = Arc::new(FaultyDevice::new(image, self.rng.u64(..)));
        let options = EngineOptions { policy: CommitPolicy::Batch, ..kind::options(&mut self.rng) };
        let engine = Engine::open(Arc::clone(&device) as Arc<dyn Device>, options);
        let engine = Arc::new(engine.map_err(|error| format!("opening after a power loss: {error}"))?);
        let processes = self.rng.usize(2..6);
        let temper = Temper {
            stay: self.rng.choice([30, 70, 90]).unwrap_or(70),
            kill: self.rng.choice([0, 20, 60]).unwrap_or(0),
            pause: self.rng.choice([0, 100, 300]).unwrap_or(0),
            alone_after: STEPS_MAX / 2,
            // Power is lost after so many calls, if not before.
            steps_max: if last { STEPS_MAX } else { self.rng.u64(50..2_500) },
        };
        let baton = Arc::new(Baton::new(processes, temper, self.time, self.rng.u64(..)));
        let fails = self.rng.choice([0, 30, 150]).unwrap_or(0);
        let line = |fails: u32, quiet: bool| -> Arc<dyn ObjectStore> {
            let (store, breakage) = (Arc::clone(&engine) as Arc<dyn ObjectStore>, self.breakage.filter(|_| !quiet));
            let line = Line {
                baton: Arc::clone(&baton),
                breakage,
                fails,
                quiet,
                store: Arc::clone(&store),
                late: Mutex::default(),
            };
            Arc::new(PerObject(Watched { store, watch: Arc::new(line) }))
        };
        let calm = line(0, true);
        if first {
            let logs = Logs::open(Arc::clone(&calm), process::session(&baton, None));
            let made = logs.and_then(|logs| logs.create("log", layout(&mut self.rng)));
            made.map_err(|error| format!("making the log: {error}"))?;
        }
        let store = line(fails, false);
        let with_desk = self.rng.u8(0..2) == 0 || self.breakage == Some(Breakage::SequencerReuses);
        let sequencer = with_desk.then(|| Desk::new(Arc::clone(&store), Arc::clone(&baton), self.breakage));
        let world = World {
            baton: Arc::clone(&baton),
            store,
            notes: Arc::clone(&self.notes),
            sequencer,
            seals: last && self.rng.u8(0..4) == 0,
            owns: self.rng.u8(0..3) == 0,
        };
        let acts = self.rng.u32(4..40);
        std::thread::scope(|scope| {
            for me in 0..processes {
                let world = &world;
                scope.spawn(move || {
                    ME.set(me);
                    // What it was at when it was killed is not done again.
                    let acts = Cell::new(acts);
                    let broken = |why| _ = world.notes.lock().broken.get_or_insert(why);
                    inhabit(&world.baton, me, || live(world, me, &acts), broken);
                });
            }
            baton.run();
        });
        let (steps, kills, trace) = baton.told();
        self.time = baton.time() + 1;
        self.outcome.crashes += kills;
        self.outcome.trace = self.outcome.trace.rotate_left(7) ^ trace ^ device.counts().trace;
        self.outcome.transactions += self.notes.lock().events.len() as u64;
        if let Some(broken) = self.notes.lock().broken.take() {
            return Err(broken);
        }
        if last && steps >= STEPS_MAX {
            return Err(format!("after {steps} calls no end is seen"));
        }
        drop(world);
        if last {
            self.look(&calm, &baton)?;
            history::check(&self.notes.lock().events)?;
        }
        let now = self.time;
        self.time += 1;
        self.notes.lock().events.push(Event { process: LAST, begin: now, end: now, act: Act::PowerLoss });
        self.outcome.crashes += 1;
        device.cut_power();
        drop((calm, engine));
        let survivals = [Survival::None, Survival::All, Survival::Prefix, Survival::Writes, Survival::Sectors];
        let survival = survivals[self.rng.usize(0..survivals.len())];
        Ok(device.image_after_power_cut(survival))
    }

    /// Reads everything, undisturbed.
    fn look(&mut self, store: &Arc<dyn ObjectStore>, baton: &Arc<Baton>) -> Result<(), String> {
        let said = |error: esker_log::Error| format!("at the end: {error}");
        let log = Logs::open(Arc::clone(store), process::session(baton, None))
            .and_then(|logs| logs.log("log"))
            .map_err(said)?;
        let notes = Arc::clone(&self.notes);
        let note = |begin, act| {
            let end = baton.time();
            notes.lock().events.push(Event { process: LAST, begin, end, act });
        };
        let begin = baton.time();
        let tail = log.tail().map_err(said)?.position;
        note(begin, Act::Tail(tail));
        let known = self.notes.lock().known;
        for position in 0..tail.max(known) + 2 {
            let begin = baton.time();
            let found = log.read(position).map_err(said)?.wait().map_err(|error| said(error.into()))?;
            let seen: Seen = process::seen(&found).map_err(|why| format!("position {position}: {why}"))?;
            note(begin, Act::Read { position, seen, keeps: false });
        }
        self.time = baton.time() + 1;
        sound(&log)
    }
}

/// `Log::check` finds nothing.
fn sound(log: &Log) -> Result<(), String> {
    let checked = log.check(true, |_, _| true).map_err(|error| format!("checking the log: {error}"))?;
    match checked.problems.first() {
        Some(problem) => Err(format!("checking the log: {problem}")),
        None => Ok(()),
    }
}

/// Lives until there is nothing more to do, or the store did not let it begin.
fn live(world: &World, me: usize, acts: &Cell<u32>) -> Result<bool, String> {
    let Some(mut process) = Process::open(world, me)? else {
        acts.set(acts.get().saturating_sub(1));
        return Ok(false);
    };
    process.live(acts).map(|()| true)
}

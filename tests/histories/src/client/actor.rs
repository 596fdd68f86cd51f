//! What clients of all faces have: a role, chance, places that come and go, notes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use esker::objects::Error as StoreError;

use crate::notes::{Answer, Call, Notes, Outcome, now};
use crate::terms::{Breakage, Face, Failure};

/// How long places are used, and how many there are at a time.
const PERIOD_NS: u64 = 4_000_000_000;
pub(super) const PLACES: u64 = 4;
/// Keys of a place.
pub(super) const KEYS: u64 = 4;
/// One of so many calls reads an old place.
const OLD: u32 = 20;
/// Where a call fails, the next one waits.
const AFTER_ERROR: Duration = Duration::from_millis(20);
/// How often the sums of a client are printed.
const TOLD_EVERY: Duration = Duration::from_millis(500);

/// What one client is.
#[derive(Args, Clone, Debug)]
pub struct Role {
    /// What it works on.
    pub face: Face,
    /// Number of the client, and how often it was begun before.
    #[arg(long)]
    pub me: u64,
    #[arg(long)]
    pub life: u64,
    /// Location of the store.
    #[arg(long)]
    pub location: String,
    /// File that it notes in.
    #[arg(long)]
    pub notes: PathBuf,
    /// When the run began, in nanoseconds of the monotonic clock.
    #[arg(long)]
    pub begin: u64,
    #[arg(long)]
    pub seed: u64,
    /// Pause between two calls, in milliseconds.
    #[arg(long, default_value_t = 0)]
    pub pause_ms: u64,
    #[arg(long)]
    pub broken: Option<Breakage>,
    /// Reads everything back, and ends.
    #[arg(long)]
    pub last: bool,
}

/// What all faces' clients have.
pub struct Client {
    pub(super) role: Role,
    pub(super) rng: fastrand::Rng,
    notes: Notes,
    stop: Arc<AtomicBool>,
    next_value: u64,
    told: Instant,
}

impl Client {
    /// A client, which stops when its standard input ends.
    pub(super) fn begin(role: Role) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        if !role.last {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                // Ends with the run, however that ends.
                let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
                stop.store(true, Ordering::Relaxed);
            });
        }
        let seed = role.seed.wrapping_mul(31).wrapping_add(role.me).wrapping_mul(31).wrapping_add(role.life);
        Ok(Self {
            rng: fastrand::Rng::with_seed(seed),
            notes: Notes::create(&role.notes)?,
            stop,
            next_value: 0,
            told: Instant::now(),
            role,
        })
    }

    pub(super) fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// What `open` gives, as soon as the server answers; none if the run ends before.
    pub(super) fn opened<T, E: std::fmt::Display>(
        &self,
        mut open: impl FnMut() -> Result<T, E>,
    ) -> Result<Option<T>, Failure> {
        let began = Instant::now();
        while self.goes_on() {
            match open() {
                Ok(opened) => return Ok(Some(opened)),
                Err(error) if began.elapsed() > Duration::from_secs(60) => return Err(error.to_string().into()),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
        Ok(None)
    }

    /// How many places there were so far, those in use included.
    pub(super) fn places(&self) -> u64 {
        (now().saturating_sub(self.role.begin) / PERIOD_NS + 1) * PLACES
    }

    /// A place that is in use now.
    pub(super) fn place(&mut self) -> u64 {
        self.places() - 1 - self.rng.u64(0..PLACES)
    }

    /// One of those before, now and then.
    pub(super) fn old_place(&mut self) -> Option<u64> {
        let old = self.places() - PLACES;
        (old > 0 && self.rng.u32(0..OLD) == 0).then(|| self.rng.u64(0..old))
    }

    /// A value that no other client writes.
    pub(super) fn value(&mut self) -> String {
        self.next_value += 1;
        format!("{}.{}.{}", self.role.me, self.role.life, self.next_value)
    }

    /// Some keys of a place, in order.
    pub(super) fn some_keys(&mut self, count: std::ops::RangeInclusive<usize>) -> Vec<u64> {
        let count = self.rng.usize(count);
        let mut keys: Vec<u64> = (0..KEYS).collect();
        self.rng.shuffle(&mut keys);
        keys.truncate(count);
        keys.sort_unstable();
        keys
    }

    pub(super) fn broken(&self, breakage: Breakage) -> bool {
        self.role.broken == Some(breakage)
    }

    /// Makes a call, and notes it and its answer.
    pub(super) fn note(&mut self, call: &Call, act: impl FnOnce() -> Answer) -> Result<Answer, Failure> {
        let forgets = self.broken(Breakage::Forgotten);
        let answer = self.notes.note(call, || {
            let answer = act();
            let forgotten = forgets && answer.outcome == Outcome::Unknown;
            if forgotten { Answer { outcome: Outcome::Error, ..answer } } else { answer }
        })?;
        if !matches!(answer.outcome, Outcome::Ok | Outcome::Refused) {
            std::thread::sleep(AFTER_ERROR);
        }
        std::thread::sleep(Duration::from_millis(self.role.pause_ms));
        if self.told.elapsed() > TOLD_EVERY {
            self.tell();
        }
        Ok(answer)
    }

    /// Makes a call that must be answered: by the last client, undisturbed.
    pub(super) fn must(&mut self, call: &Call, act: impl FnOnce() -> Answer) -> Result<(), Failure> {
        let answer = self.note(call, act)?;
        if answer.outcome != Outcome::Ok {
            return Err(format!("{} of {} at the end: {}", call.call, call.place, answer.why).into());
        }
        Ok(())
    }

    /// Prints the sums, for `record`.
    pub(super) fn tell(&mut self) {
        let tally = self.notes.tally;
        println!("{} {} {} {} {}", tally.ok, tally.refused, tally.errors, tally.unknown, tally.faults);
        self.told = Instant::now();
    }
}

/// What an error of the store says of the call.
pub(super) fn outcome_of(error: &StoreError) -> Outcome {
    match error {
        error if error.is_unknown() => Outcome::Unknown,
        StoreError::Corrupt { .. } | StoreError::Invalid { .. } | StoreError::TooLarge { .. } => Outcome::Fault,
        StoreError::Full { .. } | StoreError::ReadOnly | StoreError::Unsupported { .. } => Outcome::Fault,
        _ => Outcome::Error,
    }
}

/// The answer where the store's call failed.
pub(super) fn failed(error: &StoreError) -> Answer {
    Answer::failed(outcome_of(error), error)
}

/// A value as text. One that is none of ours is shown as such, and matches nothing.
pub(super) fn text(value: &[u8]) -> String {
    String::from_utf8(value.to_vec()).unwrap_or_else(|_| format!("no text: {value:?}"))
}

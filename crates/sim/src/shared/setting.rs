//! A run from its seed to its history: server, lines, processes, and the clocks that they go by.
//!
//! seed → server, weather, temper → [`Setting`] → processes → what the server has gone through → outcome
//!
//! Invariant: the same seed gives the same calls in the same order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_store::{ObjectStore, Transaction};

use crate::lasting::Deed;
use crate::linear::Interval;
use crate::outcome::Outcome;
use crate::shared::baton::{Baton, Temper};
use crate::shared::breakage::Sabotage;
use crate::shared::inhabit::inhabit;
use crate::shared::net::{Net, Weather};
use crate::shared::once;
use crate::shared::server::{End, Server};
use crate::shared::wire::Wire;

/// Steps at most: a run that needs more stands still.
const STEPS_MAX: u64 = 60_000;
/// Who did what no process did.
pub(crate) const NOBODY: usize = usize::MAX;

/// What a run goes on in.
pub(crate) struct Setting {
    pub rng: fastrand::Rng,
    pub baton: Arc<Baton>,
    pub net: Arc<Net>,
    pub processes: usize,
    /// How often a process does something, at most.
    pub acts: u32,
    /// Whether the clocks of processes jump.
    pub clocks_jump: bool,
}

impl Setting {
    /// What the seed says.
    ///
    /// # Errors
    /// The store cannot be made.
    pub(crate) fn new(seed: u64, breakage: Option<Sabotage>) -> Result<Self, String> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let server = Server::new(&mut rng)?;
        let far = rng.u8(0..4) > 0;
        let weather = Weather {
            far,
            fails: if far { rng.choice([0, 100, 400]).unwrap_or(0) } else { 0 },
            restarts: rng.choice([0, 20, 80]).unwrap_or(0),
            maintains: rng.choice([0, 100]).unwrap_or(0),
        };
        let processes = rng.usize(2..6);
        let temper = Temper {
            stay: rng.choice([30, 70, 90]).unwrap_or(70),
            kill: rng.choice([0, 20, 60]).unwrap_or(0),
            pause: rng.choice([0, 100, 300]).unwrap_or(0),
            alone_after: STEPS_MAX / 2,
            steps_max: STEPS_MAX,
        };
        let baton = Arc::new(Baton::new(processes, temper, 1, rng.u64(..)));
        let net = Net::new(Arc::clone(&baton), server, weather, breakage);
        let operations = Transaction::new().create_collection(&once::collection());
        let made = Wire::quiet(&net).submit(operations).wait();
        made.map_err(|error| format!("making a collection: {error}"))?;
        let acts = rng.u32(4..24);
        let clocks_jump = rng.u8(0..3) > 0;
        Ok(Self { rng, baton, net, processes, acts, clocks_jump })
    }

    /// Lets all processes live until they are done.
    ///
    /// # Errors
    /// No end was seen.
    pub(crate) fn inhabited(
        &self,
        live: impl Fn(usize, &mut u32) -> Result<bool, String> + Sync,
        broken: impl Fn(String) + Sync,
    ) -> Result<(), String> {
        std::thread::scope(|scope| {
            for me in 0..self.processes {
                let (live, broken) = (&live, &broken);
                scope.spawn(move || {
                    // What it was at when it was killed is not done again.
                    let mut acts = self.acts;
                    inhabit(&self.baton, me, || live(me, &mut acts), broken);
                });
            }
            self.baton.run();
        });
        let (steps, ..) = self.baton.told();
        if steps >= STEPS_MAX { Err(format!("after {steps} calls no end is seen")) } else { Ok(()) }
    }

    /// The end of the last life, from which a line begins on which nothing happens.
    pub(crate) fn last_life(&mut self) -> Arc<Wire> {
        self.net.restart(if self.rng.u8(0..4) == 0 { End::Stop } else { End::PowerLoss });
        self.net.server.calm();
        Wire::quiet(&self.net)
    }

    /// What the server has gone through, as events.
    ///
    /// # Errors
    /// It broke a promise.
    pub(crate) fn ends<C, A>(&self, answer: impl Fn() -> A) -> Result<Vec<Interval<Deed<C>, A>>, String> {
        let event = |(begin, end, how)| {
            let call = if how == End::Stop { Deed::Stop } else { Deed::PowerLoss };
            Interval { process: NOBODY, begin, end, call, answer: Some(answer()) }
        };
        Ok(self.net.told()?.into_iter().map(event).collect())
    }

    /// What the run did.
    pub(crate) fn outcome(&self, calls: usize) -> Outcome {
        let (_, kills, trace) = self.baton.told();
        let lives = self.net.server.life() - 1;
        Outcome {
            transactions: calls as u64,
            crashes: kills + lives,
            trace: trace ^ self.net.server.trace(),
            ..Outcome::default()
        }
    }
}

/// A process' clock, in unix milliseconds: it stands still while the process is at something, goes on between, and
/// jumps.
pub(crate) struct SimClock {
    now_ms: AtomicU64,
    stands: bool,
    jumps: bool,
}

/// Where clocks begin.
pub(crate) const NOON_MS: u64 = 1_000_000;
/// Further than this no clock jumps at once.
const JUMP_MS: u64 = 400;

impl SimClock {
    pub(crate) fn new(setting: &Setting) -> Arc<Self> {
        let stands = setting.net.broken_by(Sabotage::ClockStands);
        Arc::new(Self { now_ms: AtomicU64::new(NOON_MS), stands, jumps: setting.clocks_jump })
    }

    /// What the face is told.
    pub(crate) fn told_ms(&self) -> u64 {
        if self.stands { NOON_MS } else { self.now_ms() }
    }

    /// What it is.
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }

    /// Time passes, about as for all.
    pub(crate) fn pass(&self, rng: &mut fastrand::Rng, baton: &Baton) {
        let now_ms = self.now_ms();
        let next = match rng.u8(0..12) {
            0 if self.jumps => now_ms + rng.u64(0..JUMP_MS),
            1 if self.jumps => now_ms.saturating_sub(rng.u64(0..JUMP_MS)),
            // Set right.
            2 => NOON_MS + baton.time() / 4,
            _ => now_ms + rng.u64(0..20),
        };
        self.now_ms.store(next, Ordering::Relaxed);
    }
}

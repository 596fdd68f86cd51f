//! Opening a store while the server listens already: clients are told `-LOADING`, the terminal how far it is, and a
//! signal is obeyed.
//!
//! sockets → a thread opens the store → until it has: answer, print a line a second, look for a signal
//!
//! Invariant: until the store is open nothing of it has been promised to a client, so the process may end at any time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use esker::engine::{Progress, Stage};
use esker_server::resp::{Config, Loading};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::shared::failure;
use super::stopping::supervisor;
use crate::exit::Failure;

/// Clients are answered, and signals looked for, so often.
const TICK: Duration = Duration::from_millis(10);
/// A store that is open sooner tells no client that it was not: one that connects meanwhile is answered then.
const SOON: Duration = Duration::from_millis(300);
/// A line is printed so often; none where opening takes less.
const LINE: Duration = Duration::from_secs(1);

/// What a supervisor is asked for each time that it is told how far opening is.
const MORE: Duration = Duration::from_secs(30);

/// How far opening has come.
#[derive(Clone, Copy)]
struct At {
    stage: Stage,
    since: Instant,
    done: u64,
    total: u64,
}

impl At {
    fn words(&self) -> String {
        let what = match self.stage {
            Stage::Checkpoint => "loading the checkpoint",
            Stage::Log => "replaying the log",
        };
        if self.total == 0 || self.done == 0 {
            return format!("{what}, 0 %");
        }
        let part = self.done.min(self.total) as f64 / self.total as f64;
        let left = self.since.elapsed().as_secs_f64() * (1.0 - part) / part;
        format!("{what}, {:.0} %, about {} s left", part * 100.0, left.ceil())
    }
}

/// What is listened on, and the store behind it.
pub type Opened = (Loading, esker::Store);

/// Binds the server's addresses, and opens the store. `None` if a signal came before it was open. Signals that come
/// later are the caller's: once this function has asked for them, the process does not end by them any more.
pub fn open(config: &Config, builder: esker::Builder, location: &str) -> Result<Option<(Opened, Signals)>, Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    // Users and certificates were read before: once it serves, it takes them anew.
    let mut anew = false;
    let opened = open_until(config, builder, (location, None), &mut || {
        let mut stops = None;
        for signal in signals.pending() {
            match signal {
                SIGHUP => anew = true,
                signal => stops = stops.or(Some(signal)),
            }
        }
        stops.map(|signal| format!("by signal {signal}"))
    })?;
    if anew {
        signal_hook::low_level::raise(SIGHUP)?;
    }
    Ok(opened.map(|opened| (opened, signals)))
}

/// The same until `stops` says by what it is to end; of a chain, where the process has several.
pub fn open_until(
    config: &Config,
    builder: esker::Builder,
    (location, chain): (&str, Option<&str>),
    stops: &mut dyn FnMut() -> Option<String>,
) -> Result<Option<Opened>, Failure> {
    let of = chain.map(|chain| format!("chain {chain}: ")).unwrap_or_default();
    let mut loading = Loading::bind(config).map_err(failure)?;
    let began = Instant::now();
    let at = Arc::new(Mutex::new(At { stage: Stage::Checkpoint, since: began, done: 0, total: 0 }));
    let told = {
        let at = Arc::clone(&at);
        move |stage, done, total| {
            let mut at = at.lock().unwrap_or_else(PoisonError::into_inner);
            let since = if at.stage == stage { at.since } else { Instant::now() };
            *at = At { stage, since, done, total };
        }
    };
    let builder = builder.opening(Progress(Arc::new(told)));
    let location = location.to_owned();
    let opening = std::thread::Builder::new().name("esker-open".into()).spawn(move || builder.open(&location))?;
    let mut printed = began;
    while !opening.is_finished() {
        let words = at.lock().unwrap_or_else(PoisonError::into_inner).words();
        if began.elapsed() < SOON {
            std::thread::sleep(TICK / 10);
        } else {
            loading.wait(TICK, &format!("Esker is opening its store: {words}")).map_err(failure)?;
        }
        if let Some(why) = stops() {
            say!("stopped    {of}{why}, before the store was open");
            return Ok(None);
        }
        if printed.elapsed() >= LINE && !opening.is_finished() {
            printed = Instant::now();
            say!("opening    {of}{words}");
            supervisor::opening(&words, MORE);
        }
    }
    let opened = opening.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    Ok(Some((loading, opened?)))
}

//! What a running server does in the background when it is asked: checks, scrubs, compaction, and taking in new space.
//!
//! ESKER.CHECK, ESKER.SCRUB, ESKER.COMPACT, ESKER.GROW → one thread each, at most one at a time → INFO tells
//! how far it is, ESKER.CHECK STATUS what it found
//!
//! Invariant: an event loop only starts these and reads their figures.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use esker::engine::{Damage, Engine};
use esker::objects::Error;

use super::compact::gained;
use crate::exit::Failure;

/// One kind of work, and how its last run ended.
#[derive(Default)]
struct Task {
    running: AtomicBool,
    done: AtomicU64,
    total: AtomicU64,
    /// `ok`, or why it failed; empty before the first.
    ended: Mutex<String>,
    /// What the last one found, line by line.
    report: Mutex<String>,
}

fn set(place: &Mutex<String>, text: String) {
    *place.lock().unwrap_or_else(PoisonError::into_inner) = text;
}

fn get(place: &Mutex<String>) -> String {
    place.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// When it is dropped the run is over: after a panic too, which is told.
struct Ends<'a>(&'a Task);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            set(&self.0.ended, "panicked: see the log".into());
            set(&self.0.report, String::new());
        }
        self.0.running.store(false, Ordering::Release);
    }
}

impl Task {
    fn start(
        self: &Arc<Self>,
        name: &'static str,
        work: impl FnOnce(&Self) -> Result<String, Error> + Send + 'static,
    ) -> Result<(), String> {
        if self.running.swap(true, Ordering::AcqRel) {
            return Err(format!("a {name} is under way; INFO esker tells how far it is"));
        }
        self.done.store(0, Ordering::Relaxed);
        self.total.store(0, Ordering::Relaxed);
        let task = Arc::clone(self);
        let run = move || {
            let _ends = Ends(&task);
            let (ended, report) = match work(&task) {
                Ok(report) => ("ok".to_string(), report),
                Err(error) => {
                    let closed = matches!(error, Error::Closed);
                    let failure = Failure::from(error).to_string();
                    if closed {
                        tracing::info!("the {name} ended with the server");
                    } else {
                        tracing::error!(error = failure, "the {name} failed");
                    }
                    (failure.replace(['\r', '\n'], " "), String::new())
                }
            };
            set(&task.ended, ended);
            set(&task.report, report);
        };
        let spawned = std::thread::Builder::new().name(format!("esker-{name}")).spawn(run);
        spawned.map(drop).map_err(|error| {
            self.running.store(false, Ordering::Release);
            format!("no thread for a {name}: {error}")
        })
    }

    /// How the last one ended and what it found.
    fn told(&self) -> String {
        let (ended, report) = (get(&self.ended), get(&self.report));
        let status = match &ended[..] {
            "" => "none",
            ended => ended,
        };
        format!("status {status}\n{report}")
    }

    fn figures(&self, name: &str) -> [(String, String); 4] {
        let ended = get(&self.ended);
        [
            (format!("{name}_in_progress"), u64::from(self.running.load(Ordering::Acquire)).to_string()),
            (format!("{name}_done"), self.done.load(Ordering::Relaxed).to_string()),
            (format!("{name}_total"), self.total.load(Ordering::Relaxed).to_string()),
            (format!("{name}_last_status"), if ended.is_empty() { "none".into() } else { ended }),
        ]
    }
}

/// The background work of a server.
#[derive(Default)]
pub struct Tasks {
    check: Arc<Task>,
    scrub: Arc<Task>,
    compact: Arc<Task>,
    grow: Arc<Task>,
}

impl Tasks {
    /// Starts a check.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn check(&self, engine: &Arc<Engine>, deep: bool) -> Result<(), String> {
        let engine = Arc::clone(engine);
        self.check.start("check", move |task| {
            let report = engine.check(deep, &mut |done, total| {
                task.done.store(done, Ordering::Relaxed);
                task.total.store(total, Ordering::Relaxed);
            })?;
            if report.damaged > 0 {
                tracing::error!(damaged = report.damaged, "the check found damage");
            }
            Ok(lines(report.entries(), &report.damage))
        })
    }

    /// What the last check found.
    pub fn check_report(&self) -> String {
        self.check.told()
    }

    /// Starts a scrub of everything, once, as fast as the device can.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn scrub(&self, engine: &Arc<Engine>) -> Result<(), String> {
        let engine = Arc::clone(engine);
        self.scrub.start("scrub", move |task| {
            let report = engine.scrub_once(&mut |done, total| {
                task.done.store(done, Ordering::Relaxed);
                task.total.store(total, Ordering::Relaxed);
                true
            })?;
            Ok(lines(report.entries(), &report.damage))
        })
    }

    /// What the last scrub that was asked for found.
    pub fn scrub_report(&self) -> String {
        self.scrub.told()
    }

    /// Starts cleaning every segment that holds dead data, once, beside clients.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn compact(&self, engine: &Arc<Engine>) -> Result<(), String> {
        let engine = Arc::clone(engine);
        self.compact.start("compaction", move |task| {
            let compact = || {
                engine.compact_beside_clients(&mut |done, total| {
                    task.done.store(done, Ordering::Relaxed);
                    task.total.store(total, Ordering::Relaxed);
                    true
                })
            };
            let gained = gained(&|| engine.stats(), compact)?;
            let figures = gained.map(|(name, value)| (name, value.to_string()));
            Ok(lines(figures.into(), &[]))
        })
    }

    /// What the last compaction gained.
    pub fn compact_report(&self) -> String {
        self.compact.told()
    }

    /// Starts taking in what the device has gained.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn grow(&self, engine: &Arc<Engine>) -> Result<(), String> {
        let engine = Arc::clone(engine);
        self.grow.start("grow", move |task| {
            let report = engine.grow()?;
            task.total.store(report.after_bytes, Ordering::Relaxed);
            task.done.store(report.added_segments, Ordering::Relaxed);
            Ok(String::new())
        })
    }

    /// Lines for INFO.
    pub fn figures(&self) -> impl Iterator<Item = (String, String)> {
        let [running, added, bytes, ended] = self.grow.figures("grow");
        let grow = [running, ("grow_added_segments".into(), added.1), ("grow_device_bytes".into(), bytes.1), ended];
        let others = [self.check.figures("check"), self.scrub.figures("scrub_once"), self.compact.figures("compact")];
        others.into_iter().flatten().chain(grow)
    }
}

/// A report as lines: a name and a figure each, then the damage, a line for each place.
fn lines(figures: Vec<(&'static str, String)>, damage: &[Damage]) -> String {
    let mut text = String::new();
    for (name, value) in figures {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name} {value}");
    }
    for damage in damage {
        let _ = writeln!(text, "damage {} {}", damage.offset, damage.what.replace(['\r', '\n'], " "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_panics_is_over_and_says_so() {
        let task = Arc::new(Task::default());
        let end = |task: &Task| {
            while task.running.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            task.told()
        };
        task.start("compaction", |_| panic!("on purpose")).unwrap();
        assert_eq!(end(&task), "status panicked: see the log\n");
        task.start("compaction", |_| Ok("done\n".into())).unwrap();
        assert_eq!(end(&task), "status ok\ndone\n");
    }
}

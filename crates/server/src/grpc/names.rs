//! The logs that clients name, and their named writers: opened once, kept while they are used.
//!
//! name → handle (checked again after a second) → [`Log`] · (log, writer) → [`Writer`], with the number of its opening
//!
//! Invariants:
//! 1. At most [`LOGS_MAX`] handles and [`WRITERS_MAX`] writers are kept: what was not used for the longest time goes
//!    first.
//! 2. Of a writer that was opened again, no append of an earlier opening is written.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_log::{Completion, Log, Logs, Record, Writer};
use parking_lot::Mutex;

use super::lags::{self, Lags};
use super::status::Told;
use crate::http::Figure;

/// Most logs that are kept open.
const LOGS_MAX: usize = 4_096;
/// Most named writers that are kept open.
const WRITERS_MAX: usize = 4_096;
/// A name is looked up again after so long: another process may have renamed or deleted its log.
const FRESH: Duration = Duration::from_secs(1);

/// Open logs and writers.
pub(crate) struct Names {
    pub(crate) logs: Logs,
    open: Mutex<HashMap<String, (Log, Instant)>>,
    writers: Mutex<HashMap<(u64, String), Kept>>,
    pub(crate) lags: Lags,
}

struct Kept {
    writer: Arc<Named>,
    used: Instant,
}

/// A writer, once it is open, and which opening that was.
struct Named {
    state: Mutex<State>,
}

struct State {
    writer: Option<Writer>,
    session: u64,
}

impl Names {
    pub(crate) fn new(logs: Logs) -> Self {
        Self { logs, open: Mutex::default(), writers: Mutex::default(), lags: Lags::default() }
    }

    /// A handle that was looked up a moment ago; needs no I/O.
    pub(crate) fn kept(&self, name: &str) -> Option<Log> {
        let open = self.open.lock();
        open.get(name).filter(|(_, since)| since.elapsed() < FRESH).map(|(log, _)| log.clone())
    }

    /// A handle. May read.
    pub(crate) fn log(&self, name: &str) -> Result<Log, Told> {
        if let Some(log) = self.kept(name) {
            return Ok(log);
        }
        let log = self.logs.log(name).inspect_err(|_| self.forget(name))?;
        let mut open = self.open.lock();
        if open.len() >= LOGS_MAX && !open.contains_key(name) {
            let oldest = open.iter().min_by_key(|(_, (_, since))| *since).map(|(name, _)| name.clone());
            oldest.and_then(|name| open.remove(&name));
        }
        open.insert(name.to_owned(), (log.clone(), Instant::now()));
        Ok(log)
    }

    /// The figures of the logs that are open here, and of their followers.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let open = self.open.lock();
        let open: Vec<(String, Log)> = open.iter().map(|(name, (log, _))| (name.clone(), log.clone())).collect();
        lags::figures(&open, &self.lags)
    }

    /// Forgets what a name led to.
    pub(crate) fn forget(&self, name: &str) {
        self.open.lock().remove(name);
    }

    fn named(&self, log: &Log, name: &str) -> Arc<Named> {
        let mut writers = self.writers.lock();
        let key = (log.id(), name.to_owned());
        if writers.len() >= WRITERS_MAX && !writers.contains_key(&key) {
            // One that is in use stays: the calls that hold it keep the order of its appends.
            let idle = writers.iter().filter(|(_, kept)| Arc::strong_count(&kept.writer) == 1);
            let oldest = idle.min_by_key(|(_, kept)| kept.used).map(|(key, _)| key.clone());
            oldest.and_then(|key| writers.remove(&key));
        }
        let now = Instant::now();
        let kept = writers.entry(key).or_insert_with(|| Kept {
            writer: Arc::new(Named { state: Mutex::new(State { writer: None, session: 0 }) }),
            used: now,
        });
        kept.used = now;
        Arc::clone(&kept.writer)
    }

    /// Opens a writer anew: what is under way is finished, later appends of earlier openings are refused. Its next
    /// number, and the opening's.
    pub(crate) fn open_writer(&self, log: &Log, name: &str) -> Result<(u64, u64), Told> {
        let named = self.named(log, name);
        let mut state = named.state.lock();
        let writer = log.writer(name)?;
        let next = writer.next_number();
        state.writer = Some(writer);
        // Epochs grow with every opening, of whichever process, so that no number comes again.
        state.session = state.session.max(log.view().epoch) + 1;
        Ok((next, state.session))
    }

    /// Appends the entry of a number once. Its position, and whether it was there already.
    pub(crate) fn append(
        &self,
        log: &Log,
        (name, session, number): (&str, u64, u64),
        record: Record,
    ) -> Result<Completion<(u64, bool)>, Told> {
        let named = self.named(log, name);
        let mut state = named.state.lock();
        if session != 0 && (state.writer.is_none() || state.session != session) {
            let why = format!("writer {name} was opened again since (session {session} is over): open it anew");
            return Err(Told::fenced(why));
        }
        let writer = match &state.writer {
            Some(writer) => writer,
            None => {
                let writer = log.writer(name)?;
                state.session = state.session.max(log.view().epoch) + 1;
                state.writer.insert(writer)
            }
        };
        Ok(writer.append(number, record)?.map(|(position, new)| (position, !new)))
    }
}

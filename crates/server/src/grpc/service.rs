//! The state of the service `esker.log.v1.Log`: its logs, its limits, and how a call reaches a log.
//!
//! name → handle that is kept → call of the face, on a thread that may wait unless the call need not → outcome

use std::sync::Arc;

use esker_log::{Completion, Durability, Error as LogError, Log as Handle, Logs, Nonce, Record};
use esker_wire::log::{decode_durability, decode_record};
use esker_wire::proto::log as proto;
use tokio::sync::{Semaphore, watch};

use super::names::Names;
use super::status::Told;
use super::waiting::{applies_at_once, waiting};

/// What an append came to: its position, and whether it was there already.
pub(crate) type Done = Result<Completion<(u64, bool)>, Told>;

/// What appends that came together came to, in their order: how many of them at consecutive positions, or with the same
/// failure.
pub(crate) type Each = Vec<(usize, Done)>;

/// Applies appends that came together with one transaction. Where that cannot be, each by itself: so the outcome of
/// each is its own. `None`: there is no such log any more, and nothing was appended.
fn each(log: &Handle, records: &[Record], durability: Durability) -> Option<Each> {
    let new = |applied: Completion<u64>| applied.map(|position| (position, false));
    match log.append_with(records, durability) {
        Ok(applied) => Some(vec![(records.len(), Ok(new(applied)))]),
        Err(LogError::NoLog { .. }) => None,
        // All of them may be there, or none.
        Err(LogError::Uncertain { position, nonce, cause }) => {
            let uncertain = |place: u64| {
                let nonce = Nonce { number: nonce.number + place, ..nonce };
                LogError::Uncertain { position: position + place, nonce, cause: cause.clone() }
            };
            Some((0..records.len() as u64).map(|place| (1, Err(uncertain(place).into()))).collect())
        }
        Err(error) if records.len() == 1 => Some(vec![(1, Err(error.into()))]),
        Err(_) => {
            let mut all = Vec::with_capacity(records.len());
            let mut is_any_applied = false;
            for record in records {
                let done = log.append_with(std::slice::from_ref(record), durability);
                // Refused before the log was looked for is not applied.
                if matches!(done, Err(LogError::NoLog { .. })) && !is_any_applied {
                    return None;
                }
                is_any_applied |= done.is_ok();
                all.push((1, done.map(new).map_err(Told::from)));
            }
            Some(all)
        }
    }
}

/// The service. Cloning gives the same one.
#[derive(Clone)]
pub(crate) struct LogService {
    pub(crate) names: Arc<Names>,
    pub(crate) in_flight_max: usize,
    pub(crate) followers: Arc<Semaphore>,
    pub(crate) stopping: watch::Receiver<bool>,
    at_once: bool,
}

impl LogService {
    pub(crate) fn new(logs: Logs, in_flight_max: usize, followers_max: usize, stopping: watch::Receiver<bool>) -> Self {
        let at_once = applies_at_once(&**logs.store());
        let followers = Arc::new(Semaphore::new(followers_max));
        Self { names: Arc::new(Names::new(logs)), in_flight_max, followers, stopping, at_once }
    }

    /// Does something with a log, on a thread that may wait. Where the name led to a log that is gone, once more with
    /// what it leads to now.
    pub(crate) async fn with<T: Send + 'static>(
        &self,
        name: String,
        work: impl Fn(&Handle) -> Result<T, Told> + Send + 'static,
    ) -> Result<T, Told> {
        let names = Arc::clone(&self.names);
        waiting(move || match names.log(&name).and_then(|log| work(&log)) {
            Err(error) if error.is_no_log() => {
                names.forget(&name);
                names.log(&name).and_then(|log| work(&log))
            }
            other => other,
        })
        .await
    }

    /// The log, if an append to it waits for nothing but the sync at its end.
    fn ready(&self, name: &str) -> Option<Handle> {
        self.names.kept(name).filter(|log| self.at_once && log.leads())
    }

    /// Applies an append; what is left is to await it.
    pub(crate) async fn apply(
        &self,
        name: &str,
        records: Vec<Record>,
        durability: Durability,
    ) -> Result<Completion<u64>, Told> {
        if let Some(log) = self.ready(name) {
            match log.append_with(&records, durability) {
                Err(LogError::NoLog { .. }) => self.names.forget(name),
                other => return Ok(other?),
            }
        }
        self.with(name.to_owned(), move |log| Ok(log.append_with(&records, durability)?)).await
    }

    /// Applies the append of one request, if that waits for nothing.
    pub(crate) fn apply_at_once(&self, request: &proto::AppendRequest) -> Option<Done> {
        let ready = if request.writer.is_none() { self.ready(&request.log) } else { None };
        let (log, records) = (ready?, [decode_record(request.record.clone())]);
        match log.append_with(&records, decode_durability(request.applied_only)) {
            Err(LogError::NoLog { .. }) => {
                self.names.forget(&request.log);
                None
            }
            done => Some(done.map(|applied| applied.map(|position| (position, false))).map_err(Told::from)),
        }
    }

    /// Applies appends that came together, if that waits for nothing.
    pub(crate) fn apply_each_at_once(&self, name: &str, records: &[Record], durability: Durability) -> Option<Each> {
        let each = each(&self.ready(name)?, records, durability);
        if each.is_none() {
            self.names.forget(name);
        }
        each
    }

    /// Applies appends that came together, under the numbers of `writer` if there is one.
    pub(crate) async fn apply_each(
        &self,
        name: String,
        records: Vec<Record>,
        writer: Option<proto::WriterNumber>,
        durability: Durability,
    ) -> Each {
        let (names, count) = (Arc::clone(&self.names), records.len());
        let gone = |log: &Handle| Told::from(LogError::NoLog { name: log.name().to_owned() });
        let applied = self.with(name, move |log| {
            let Some(writer) = &writer else { return each(log, &records, durability).ok_or_else(|| gone(log)) };
            let mut all = Vec::with_capacity(records.len());
            for (place, record) in records.iter().enumerate() {
                let number = writer.number.saturating_add(place as u64);
                match names.append(log, (&writer.writer, writer.session, number), record.clone()) {
                    Err(told) if place == 0 && told.is_no_log() => return Err(told),
                    done => all.push((1, done)),
                }
            }
            Ok(all)
        });
        applied.await.unwrap_or_else(|told| vec![(count, Err(told))])
    }

    /// Applies the append of one request.
    pub(crate) async fn apply_one(&self, request: proto::AppendRequest) -> Result<Completion<(u64, bool)>, Told> {
        let (name, record) = (request.log, decode_record(request.record));
        let Some(writer) = request.writer else {
            let applied = self.apply(&name, vec![record], decode_durability(request.applied_only)).await?;
            return Ok(applied.map(|position| (position, false)));
        };
        let names = Arc::clone(&self.names);
        self.with(name, move |log| names.append(log, (&writer.writer, writer.session, writer.number), record.clone()))
            .await
    }
}

//! The state of the service `esker.log.v1.Log`: its logs, its limits, and how a call reaches a log.
//!
//! name → handle that is kept → call of the face, on a thread that may wait unless the call need not → outcome

use std::sync::Arc;

use esker_log::{Completion, Log as Handle, Logs, Record};
use esker_wire::log::{decode_durability, decode_record};
use esker_wire::proto::log as proto;
use tokio::sync::{Semaphore, watch};

use super::names::Names;
use super::status::Told;
use super::waiting::{applies_at_once, waiting};

/// What an append came to: its position, and whether it was there already.
pub(crate) type Done = Result<Completion<(u64, bool)>, Told>;

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
        durability: esker_log::Durability,
    ) -> Result<Completion<u64>, Told> {
        if let Some(log) = self.ready(name) {
            match log.append_with(&records, durability) {
                Err(esker_log::Error::NoLog { .. }) => self.names.forget(name),
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
            Err(esker_log::Error::NoLog { .. }) => {
                self.names.forget(&request.log);
                None
            }
            done => Some(done.map(|applied| applied.map(|position| (position, false))).map_err(Told::from)),
        }
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

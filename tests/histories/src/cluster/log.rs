//! A client of logs of a cluster: the service `esker.log.v1.Log`, through any server, which appends for it.
//!
//! call → connection, by any server → answer, or a status → what that says of the call
//!
//! Invariants:
//! 1. An append that was sent is of unknown outcome if its status does not name a reason by which nothing was written.
//! 2. After a call that failed a client only reads until it is answered, so that outages leave few calls open.

use std::time::{Duration, Instant};

use esker_wire::Named;
use esker_wire::log::decode_found;
use esker_wire::proto::log as proto;
use esker_wire::proto::log::log_client::LogClient;
use tokio::runtime::Runtime;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Response, Status};

use super::door::{AFTER_ERROR, ANSWER, Door};
use crate::client::shown;
use crate::notes::{Answer, Call, Held, Notes, Outcome};
use crate::terms::Failure;

/// In slots, whose entries stand in objects in turn, and in a stream of bytes.
pub const LOGS: [(&str, proto::Layout); 2] = [("slots", proto::Layout::Slots), ("stream", proto::Layout::Stream)];
/// Positions below the tail that are read most.
const NEAR: u64 = 30;
/// A trim leaves about so many positions, and comes once in so many calls.
const LEFT: u64 = 200;
const TRIMS: u32 = 300;
/// Positions that are read at a time at the end.
const AT_ONCE: u64 = 256;
/// After so many calls another server is gone to.
const STAYS: u32 = 200;

/// Why there is no answer.
enum Lost {
    /// Nothing was sent.
    Unsent(String),
    /// It was sent, and not answered.
    Sent(String),
    /// It was answered with an error.
    Refused(Status),
}

/// Connections, one at a time.
struct Caller {
    door: Door,
    runtime: Runtime,
    rng: fastrand::Rng,
    client: Option<LogClient<Channel>>,
}

/// A client.
pub struct LogWorker {
    me: u64,
    rng: fastrand::Rng,
    notes: Notes,
    caller: Caller,
    pause: Duration,
    next_value: u64,
    /// The highest tail that was seen of each log.
    seen: [u64; LOGS.len()],
    /// It was not answered.
    fails: bool,
}

fn named(status: &Status) -> Option<&str> {
    status.metadata().get(Named::NAME)?.to_str().ok()
}

fn position(status: &Status) -> Option<u64> {
    status.metadata().get(Named::POSITION)?.to_str().ok()?.parse().ok()
}

/// What an error says of a call that changes something.
fn outcome_of(status: &Status) -> Outcome {
    match named(status) {
        Some("taken" | "contended" | "no-sequencer" | "full" | "busy" | "fenced" | "trimmed" | "past-tail") => {
            Outcome::Error
        }
        Some("damaged" | "invalid" | "exists" | "no-log" | "sealed" | "unsupported") => Outcome::Fault,
        // By name: uncertain, stopping, store. Those without a name are of the connection.
        _ => Outcome::Unknown,
    }
}

/// The answer to a call that was not answered, which `changes` something or only reads.
fn failed(lost: &Lost, changes: bool) -> Answer {
    let (outcome, why) = match lost {
        Lost::Unsent(why) => (Outcome::Error, why.clone()),
        Lost::Sent(why) => (Outcome::Unknown, why.clone()),
        Lost::Refused(status) => {
            (outcome_of(status), format!("{}: {}", named(status).unwrap_or("no name"), status.message()))
        }
    };
    // Who was shown nothing has nothing to say.
    let outcome = if !changes && outcome == Outcome::Unknown { Outcome::Error } else { outcome };
    Answer::failed(outcome, &why)
}

impl Caller {
    fn new(door: Door, seed: u64) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { door, runtime, rng: fastrand::Rng::with_seed(seed), client: None })
    }

    fn connected(&mut self) -> Result<LogClient<Channel>, Lost> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let unsent = |error: &dyn std::fmt::Display| Lost::Unsent(error.to_string());
        let pem = |name: &str| std::fs::read(self.door.certificates.join(name)).map_err(|error| unsent(&error));
        let tls = ClientTlsConfig::new()
            .domain_name(self.door.host.clone())
            .ca_certificate(Certificate::from_pem(pem("ca-cert.pem")?))
            .identity(Identity::from_pem(pem("client-cert.pem")?, pem("client-key.pem")?));
        let node = self.door.node(&mut self.rng);
        let endpoint = Endpoint::from_shared(format!("https://{node}")).and_then(|endpoint| endpoint.tls_config(tls));
        let endpoint = endpoint.map_err(|error| unsent(&error))?.connect_timeout(ANSWER);
        let connected = async { tokio::time::timeout(ANSWER, endpoint.connect()).await };
        match self.runtime.block_on(connected) {
            Ok(Ok(channel)) => Ok(self.client.insert(LogClient::new(channel)).clone()),
            Ok(Err(error)) => Err(unsent(&error)),
            Err(late) => Err(unsent(&late)),
        }
    }

    /// What a call is answered.
    fn ask<T, F>(&mut self, call: impl FnOnce(LogClient<Channel>) -> F) -> Result<T, Lost>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let client = self.connected()?;
        let asked = async { tokio::time::timeout(ANSWER, call(client)).await };
        let lost = match self.runtime.block_on(asked) {
            Ok(Ok(response)) => return Ok(response.into_inner()),
            Ok(Err(status)) => Lost::Refused(status),
            Err(late) => Lost::Sent(late.to_string()),
        };
        let is_told = matches!(&lost, Lost::Refused(status) if named(status).is_some());
        if !is_told {
            self.client = None;
        }
        Err(lost)
    }
}

/// What stands at these positions, as it is noted.
fn found(answer: Result<Vec<proto::Found>, Lost>) -> Answer {
    match answer {
        Ok(found) => {
            let shown = found.into_iter().map(|found| Ok(Some(shown(&decode_found(found)?))));
            let shown: Result<Vec<Held>, esker_wire::Error> = shown.collect();
            shown.map_or_else(|error| Answer::failed(Outcome::Fault, &error), Answer::found)
        }
        Err(lost) => failed(&lost, false),
    }
}

fn call(name: &str, log: usize) -> Call {
    Call { call: name.into(), place: LOGS[log].0.into(), ..Call::default() }
}

impl LogWorker {
    /// A client of these servers; `me` is its number, and not that of another.
    pub fn new(me: u64, seed: u64, notes: Notes, door: Door, pause: Duration) -> Result<Self, Failure> {
        let seed = seed.wrapping_mul(37).wrapping_add(me);
        let (rng, caller) = (fastrand::Rng::with_seed(seed), Caller::new(door, seed)?);
        Ok(Self { me, rng, notes, caller, pause, next_value: 0, seen: [0; LOGS.len()], fails: false })
    }

    /// Makes the logs, which may take until then.
    pub fn prepare(&mut self, until: Instant) -> Result<(), Failure> {
        for (log, layout) in LOGS {
            loop {
                let options = proto::Options { layout: layout.into(), ..proto::Options::default() };
                let request = proto::CreateRequest { log: log.into(), options: Some(options) };
                match self.caller.ask(|mut client| async move { client.create(request).await }) {
                    Ok(_) => break,
                    // By a try whose answer was lost.
                    Err(Lost::Refused(status)) if named(&status) == Some("exists") => break,
                    Err(lost) if Instant::now() >= until => {
                        return Err(format!("log {log} cannot be made: {}", failed(&lost, true).why).into());
                    }
                    Err(_) => std::thread::sleep(AFTER_ERROR),
                }
            }
        }
        Ok(())
    }

    /// Works until then.
    pub fn work(&mut self, until: Instant) -> Result<(), Failure> {
        while Instant::now() < until {
            let log = self.rng.usize(0..LOGS.len());
            if self.rng.u32(0..STAYS) == 0 {
                self.caller.client = None;
            }
            let answer = if self.fails { self.tail(log)? } else { self.step(log)? };
            self.fails = !matches!(answer.outcome, Outcome::Ok | Outcome::Refused);
            if self.fails {
                std::thread::sleep(AFTER_ERROR);
            }
            std::thread::sleep(self.pause);
        }
        Ok(())
    }

    /// Reads all positions of all logs; each is tried again until it is answered, or it is `until`.
    pub fn read_back(&mut self, until: Instant) -> Result<(), Failure> {
        for log in 0..LOGS.len() {
            let end = self.must(until, |worker| worker.tail(log))?.number;
            let mut at = 0;
            while at < end {
                let read = self.must(until, |worker| worker.read(log, at, end.min(at + AT_ONCE)))?;
                at += (read.found.len() as u64).max(1);
            }
        }
        Ok(())
    }

    fn must(
        &mut self,
        until: Instant,
        mut act: impl FnMut(&mut Self) -> Result<Answer, Failure>,
    ) -> Result<Answer, Failure> {
        loop {
            let answer = act(self)?;
            if answer.outcome == Outcome::Ok {
                return Ok(answer);
            }
            if Instant::now() >= until {
                return Err(format!("what logs hold is not told at the end: {}", answer.why).into());
            }
            std::thread::sleep(AFTER_ERROR);
        }
    }

    fn tail(&mut self, log: usize) -> Result<Answer, Failure> {
        let caller = &mut self.caller;
        let request = proto::TailRequest { log: LOGS[log].0.into() };
        let answer = self.notes.note(&call("tail", log), || {
            let told = caller.ask(|mut client| async move { client.tail(request).await });
            told.map_or_else(|lost| failed(&lost, false), |tail| Answer::number(tail.position))
        })?;
        self.seen[log] = self.seen[log].max(answer.number);
        Ok(answer)
    }

    fn read(&mut self, log: usize, start: u64, end: u64) -> Result<Answer, Failure> {
        let (caller, name) = (&mut self.caller, LOGS[log].0.to_owned());
        self.notes.note(&Call { held: start, ..call("read", log) }, || {
            found(if end == start + 1 {
                let request = proto::ReadRequest { log: name, position: start };
                let read = caller.ask(|mut client| async move { client.read(request).await });
                read.map(|read| read.found.into_iter().collect())
            } else {
                let request = proto::ReadRangeRequest { log: name, start, end, bytes_max: 0 };
                caller.ask(|mut client| async move { client.read_range(request).await }).map(|read| read.found)
            })
        })
    }

    fn step(&mut self, log: usize) -> Result<Answer, Failure> {
        let seen = self.seen[log];
        let near = seen.saturating_sub(self.rng.u64(0..NEAR));
        if self.rng.u32(0..TRIMS) == 0 && seen > LEFT {
            let to = seen - self.rng.u64(LEFT / 2..LEFT);
            let (caller, request) = (&mut self.caller, proto::TrimToRequest { log: LOGS[log].0.into(), position: to });
            return self.notes.note(&Call { held: to, ..call("trim_to", log) }, || {
                let told = caller.ask(|mut client| async move { client.trim_to(request).await });
                told.map_or_else(|lost| failed(&lost, true), |_| Answer::ok())
            });
        }
        match self.rng.u8(0..100) {
            chance @ 0..45 => {
                let count = if chance < 35 { 1 } else { self.rng.usize(2..=3) };
                self.append(log, count, None)
            }
            45..52 => self.append(log, 1, Some(seen)),
            52..74 => {
                let at = near + self.rng.u64(0..2);
                self.read(log, at, at + 1)
            }
            74..80 => {
                let at = self.rng.u64(0..=seen);
                self.read(log, at, at + 8)
            }
            80..96 => self.tail(log),
            96..98 => {
                let (caller, request) =
                    (&mut self.caller, proto::TrimRequest { log: LOGS[log].0.into(), position: near });
                self.notes.note(&Call { held: near, ..call("trim", log) }, || {
                    let told = caller.ask(|mut client| async move { client.trim(request).await });
                    told.map_or_else(|lost| failed(&lost, true), |_| Answer::ok())
                })
            }
            _ => {
                let (caller, request) =
                    (&mut self.caller, proto::FillRequest { log: LOGS[log].0.into(), position: near });
                self.notes.note(&Call { held: near, ..call("fill", log) }, || {
                    match caller.ask(|mut client| async move { client.fill(request).await }) {
                        Ok(_) => Answer::ok(),
                        Err(Lost::Refused(status)) if named(&status) == Some("taken") => Answer::refused(),
                        Err(lost) => failed(&lost, true),
                    }
                })
            }
        }
    }

    /// Appends `count` entries, at `expected` if that is given.
    fn append(&mut self, log: usize, count: usize, expected: Option<u64>) -> Result<Answer, Failure> {
        let values: Vec<String> = (0..count as u64).map(|at| format!("{}.{}", self.me, self.next_value + at)).collect();
        self.next_value += count as u64;
        let record = |value: &String| proto::Record { data: value.clone().into(), ..proto::Record::default() };
        let records: Vec<proto::Record> = values.iter().map(record).collect();
        let name = if expected.is_some() { "append_at" } else { "append" };
        let values = values.into_iter().map(Some).collect();
        let noted = Call { values, held: expected.unwrap_or_default(), ..call(name, log) };
        let (caller, log_name) = (&mut self.caller, LOGS[log].0.to_owned());
        let answer = self.notes.note(&noted, || {
            let appended = match expected {
                Some(expected) => {
                    let request = proto::AppendAtRequest { log: log_name, expected, records };
                    caller.ask(|mut client| async move { client.append_at(request).await })
                }
                None if count == 1 => {
                    let record = records.into_iter().next();
                    let request = proto::AppendRequest { log: log_name, record, ..proto::AppendRequest::default() };
                    caller.ask(|mut client| async move { client.append(request).await })
                }
                None => {
                    let request = proto::AppendBatchRequest { log: log_name, records, applied_only: false };
                    caller.ask(|mut client| async move { client.append_batch(request).await })
                }
            };
            match appended {
                Ok(appended) => Answer::number(appended.position),
                Err(Lost::Refused(status)) if named(&status) == Some("not-tail") => match position(&status) {
                    Some(tail) => Answer { number: tail, ..Answer::refused() },
                    None => Answer::failed(Outcome::Fault, &"refused without a tail"),
                },
                Err(lost) => failed(&lost, true),
            }
        })?;
        let above = match answer.outcome {
            Outcome::Ok => answer.number + count as u64,
            Outcome::Refused => answer.number,
            _ => 0,
        };
        self.seen[log] = self.seen[log].max(above);
        Ok(answer)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use tonic::Code;

    use super::*;

    fn status(name: Option<&'static str>) -> Lost {
        let mut status = Status::new(Code::Unavailable, "why");
        if let Some(name) = name {
            status.metadata_mut().insert(Named::NAME, name.parse().unwrap());
        }
        Lost::Refused(status)
    }

    #[test]
    fn an_append_is_of_unknown_outcome_but_where_the_answer_says_that_nothing_was_written() {
        for (lost, outcome) in [
            (status(None), Outcome::Unknown),
            (status(Some("uncertain")), Outcome::Unknown),
            (status(Some("store")), Outcome::Unknown),
            (status(Some("stopping")), Outcome::Unknown),
            (Lost::Sent("late".into()), Outcome::Unknown),
            (Lost::Unsent("refused".into()), Outcome::Error),
            (status(Some("contended")), Outcome::Error),
            (status(Some("full")), Outcome::Error),
            (status(Some("damaged")), Outcome::Fault),
        ] {
            let answer = failed(&lost, true);
            assert_eq!(answer.outcome, outcome, "{}", answer.why);
            assert_ne!(failed(&lost, false).outcome, Outcome::Unknown);
        }
    }
}

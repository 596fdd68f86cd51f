//! The processes that append and follow: this test's own program, begun again with a role.
//!
//! role from the environment → store of the server (`grpc://`), or the service of logs as any other language has it →
//! notes, until stdin ends
//!
//! Invariant: what an actor is told that no log may say ends it with an error.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use esker::Bytes;
use esker::log::{Delivery, Error, Follow, Follower, Found, GapKind, Log, Start};
use esker_sim::logs::history::{Appended, Payload, Seen};
use esker_wire::proto::log as proto;
use esker_wire::proto::log::delivery::What;
use esker_wire::proto::log::log_client::LogClient;
use tonic::transport::{Channel, Endpoint};

use crate::notes::{Notes, now};

/// The log of the test.
pub const LOG: &str = "orders";
/// Where a process finds its role.
pub const ROLE: &str = "ESKER_ACTOR";
/// Bytes of an entry.
const ENTRY_BYTES: usize = 64;
/// Between two appends of a writer.
const BETWEEN: Duration = Duration::from_millis(3);
/// A call of a client is given up after this.
const CALL: Duration = Duration::from_secs(2);

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Appends by the store of the server: guards, seals and reads by itself, and asks the sequencer.
    WriterByStore,
    /// Appends by the service of logs.
    WriterByService,
    /// Follows by the store of the server.
    ReaderByStore,
    /// Follows by the service of logs.
    ReaderByService,
}

impl Kind {
    pub fn writes(self) -> bool {
        matches!(self, Self::WriterByStore | Self::WriterByService)
    }
}

/// A role, as it stands in the environment.
#[derive(Clone, Debug)]
pub struct Role {
    pub kind: Kind,
    /// Number of the process.
    pub me: usize,
    /// How often it was begun before.
    pub life: u64,
    /// `HOST:PORT` of the server, as it is reached from here.
    pub server: String,
    pub notes: PathBuf,
}

impl Role {
    pub fn text(&self) -> String {
        format!("{:?} {} {} {} {}", self.kind, self.me, self.life, self.server, self.notes.display())
    }

    fn parse(text: &str) -> Option<Self> {
        let [kind, me, life, server, notes] = text.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let kind = match kind {
            "WriterByStore" => Kind::WriterByStore,
            "WriterByService" => Kind::WriterByService,
            "ReaderByStore" => Kind::ReaderByStore,
            "ReaderByService" => Kind::ReaderByService,
            _ => return None,
        };
        let (me, life) = (me.parse().ok()?, life.parse().ok()?);
        Some(Self { kind, me, life, server: server.into(), notes: notes.into() })
    }

    /// A number that no other actor gives. They are even: odd ones stand for a stream.
    fn payload(&self, number: u64) -> Payload {
        2 * ((self.me as u64) << 52 | self.life << 40 | number)
    }
}

/// Plays the role of this process, if it has one; whether it has.
pub fn played() -> bool {
    let Ok(role) = std::env::var(ROLE) else { return false };
    let role = Role::parse(&role).unwrap_or_else(|| panic!("{ROLE}={role}"));
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    std::thread::spawn(move || {
        // Ends with the test, however that ends.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        stopped.store(true, Ordering::SeqCst);
    });
    let mut actor = Actor { notes: Notes::create(&role.notes), role, stop };
    match actor.role.kind {
        Kind::WriterByStore => actor.write_by_store(),
        Kind::WriterByService => actor.write_by_service(),
        Kind::ReaderByStore => actor.read_by_store(),
        Kind::ReaderByService => actor.read_by_service(),
    }
    actor.notes.flush();
    true
}

struct Actor {
    role: Role,
    notes: Notes,
    stop: Arc<AtomicBool>,
}

/// Whether an actor that did nothing wrong may be told of it.
fn excused(error: &Error) {
    let fault = matches!(error, Error::Damaged { .. } | Error::Invalid { .. } | Error::Exists { .. });
    assert!(!fault, "{error}");
}

fn data(payload: Payload) -> Bytes {
    let mut data = payload.to_le_bytes().to_vec();
    data.resize(ENTRY_BYTES, payload as u8);
    data.into()
}

fn payload_of(bytes: &[u8]) -> Payload {
    let payload = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes, data(payload), "an entry that no actor wrote");
    payload
}

/// What stands at a position.
pub fn seen(found: &Found) -> Seen {
    match found {
        Found::Entry(entry) => Seen::Entry(payload_of(&entry.data)),
        Found::Filled => Seen::Filled,
        Found::Trimmed => Seen::Trimmed,
        Found::Hole | Found::BeyondTail => Seen::Nothing,
        Found::Lost(why) => panic!("data loss: {why}"),
    }
}

impl Actor {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }

    /// The log by the store of the server, as soon as that answers.
    fn open(&self) -> Option<(esker::Store, Log)> {
        while self.goes_on() {
            let location = format!("grpc://{}?timeout={}s", self.role.server, CALL.as_secs());
            if let Ok(store) = esker::Store::open(&location)
                && let Ok(Ok(log)) = store.logs().map(|logs| logs.log(LOG))
            {
                return Some((store, log));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        None
    }

    fn write_by_store(&mut self) {
        let Some((_store, log)) = self.open() else { return };
        for number in 0.. {
            if !self.goes_on() {
                return;
            }
            let payload = self.role.payload(number);
            self.notes.begins(payload);
            let result = match log.append(data(payload)) {
                Ok(done) => done.wait().map_or(Appended::Unknown, Appended::At),
                Err(Error::Uncertain { position, nonce, .. }) => match log.resolve(position, nonce) {
                    // That it is durable only a read says.
                    Ok(true) if log.read(position).is_ok_and(|found| found.wait().is_ok()) => Appended::At(position),
                    Ok(false) => Appended::Refused,
                    _ => Appended::Unknown,
                },
                Err(error) => {
                    excused(&error);
                    Appended::Refused
                }
            };
            self.notes.answered(payload, result);
            std::thread::sleep(BETWEEN);
        }
    }

    fn read_by_store(&mut self) {
        let Some((_store, log)) = self.open() else { return };
        let how = Follow { fill_after_ms: Some(100), look_ms: 5, ..Follow::default() };
        let (mut follower, mut next): (Option<Follower>, u64) = (None, 0);
        for round in 0u64.. {
            if !self.goes_on() {
                return;
            }
            if follower.is_none() {
                follower = log.follow(Start::Position(next), how).ok();
            }
            let Some(reader) = &mut follower else { continue };
            let begin = now();
            match reader.next(Duration::from_millis(20)) {
                Ok(None) => {}
                Ok(Some(delivery)) => {
                    let (positions, seen) = match delivery {
                        Delivery::Entry(entry) => (entry.position..entry.position + 1, seen(&Found::Entry(entry))),
                        Delivery::Gap { positions, kind: GapKind::Filled } => (positions, Seen::Filled),
                        Delivery::Gap { positions, kind: GapKind::Trimmed } => (positions, Seen::Trimmed),
                        other => panic!("{other:?}"),
                    };
                    next = self.delivered(begin, next, positions, &seen);
                }
                Err(error) => {
                    excused(&error);
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            if round.is_multiple_of(50) {
                let begin = now();
                if let Ok(tail) = log.tail() {
                    self.notes.tail(begin, now(), tail.position);
                }
            }
        }
    }

    /// Notes what was delivered; the next position.
    fn delivered(&mut self, begin: u64, next: u64, positions: std::ops::Range<u64>, seen: &Seen) -> u64 {
        let end = now();
        assert_eq!(positions.start, next, "handed {positions:?}");
        for position in positions.clone() {
            self.notes.read(begin, end, position, seen);
        }
        positions.end
    }

    /// Does `act` with a client of the service of logs.
    fn with_client(&mut self, act: impl AsyncFnOnce(&mut Self, LogClient<Channel>)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let endpoint = Endpoint::from_shared(format!("http://{}", self.role.server)).unwrap();
            let endpoint = endpoint
                .connect_timeout(CALL)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(Duration::from_secs(1))
                .keep_alive_timeout(CALL)
                .keep_alive_while_idle(true);
            act(self, LogClient::new(endpoint.connect_lazy())).await;
        });
    }

    fn write_by_service(&mut self) {
        self.with_client(async |actor, mut client| {
            for number in 0.. {
                if !actor.goes_on() {
                    return;
                }
                let payload = actor.role.payload(number);
                let record = Some(proto::Record { data: data(payload), streams: Vec::new() });
                let request = proto::AppendRequest { log: LOG.into(), record, ..Default::default() };
                actor.notes.begins(payload);
                if let Ok(Ok(answer)) = tokio::time::timeout(CALL, client.append(request)).await {
                    actor.notes.answered(payload, Appended::At(answer.into_inner().position));
                }
                tokio::time::sleep(BETWEEN).await;
            }
        });
    }

    fn read_by_service(&mut self) {
        self.with_client(async |actor, mut client| {
            let mut next = 0;
            while actor.goes_on() {
                let start = Some(proto::follow_request::Start::Position(next));
                let fill_after_ms = Some(100);
                let request = proto::FollowRequest { log: LOG.into(), start, fill_after_ms, ..Default::default() };
                if let Ok(Ok(stream)) = tokio::time::timeout(CALL, client.follow(request)).await {
                    next = actor.follow(stream.into_inner(), next).await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }

    /// Reads a stream until it ends; the next position.
    async fn follow(&mut self, mut stream: tonic::Streaming<proto::FollowResponse>, mut next: u64) -> u64 {
        while self.goes_on() {
            let begin = now();
            let message = match tokio::time::timeout(Duration::from_millis(200), stream.message()).await {
                // Nothing came; whether the server is there the connection finds out.
                Err(_) => continue,
                Ok(Ok(Some(message))) => message,
                Ok(_) => return next,
            };
            for delivery in message.deliveries {
                let (positions, seen) = match delivery.what.unwrap() {
                    What::Entry(entry) => (entry.position..entry.position + 1, Seen::Entry(payload_of(&entry.data))),
                    What::Gap(gap) if gap.gap() == proto::Gap::Filled => (gap.start..gap.end, Seen::Filled),
                    What::Gap(gap) if gap.gap() == proto::Gap::Trimmed => (gap.start..gap.end, Seen::Trimmed),
                    other => panic!("{other:?}"),
                };
                next = self.delivered(begin, next, positions, &seen);
            }
        }
        next
    }
}

//! A process on the log: opens it, does what its randomness says, and notes all that it did and was told.
//!
//! open → append, read, fill, trim, follow, take over, … → [`Event`]s; killed at any call, it opens the log anew
//!
//! Invariants:
//! 1. An event is noted as unanswered before its first call, so that a process that is killed leaves it so.
//! 2. An answer that the interface does not allow breaks the run.

use std::cell::Cell;
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use esker_log::{
    Completion, Connect, Delivery, Durability, Error, Follow, Follower, Found, GapKind, Log, Logs, Nonce, Record,
    Sequencer, Session, Start, StreamFollower, Tail, Token, Writer,
};
use esker_store::{Error as StoreError, ObjectStore};
use parking_lot::Mutex;

use crate::logs::history::{Act, Appended, Event, Payload, Seen};
use crate::logs::line::Breakage;
use crate::shared::baton::Baton;

/// The stream of all entries with an odd payload.
const STREAM: &str = "odd";
/// Where the sequencer is.
const ADDRESS: &str = "sequencer";

/// What all processes note.
#[derive(Default)]
pub(crate) struct Notes {
    pub events: Vec<Event>,
    pub payloads: Payload,
    /// One above the highest position that any process knows of.
    pub known: u64,
    /// What was broken, first.
    pub broken: Option<String>,
    pub uncertain: u64,
}

/// What processes share, beside the store.
pub(crate) struct World {
    pub baton: Arc<Baton>,
    pub store: Arc<dyn ObjectStore>,
    pub notes: Arc<Mutex<Notes>>,
    pub sequencer: Option<Arc<Desk>>,
    /// Whether logs may be sealed for good.
    pub seals: bool,
    /// Whether processes own the log.
    pub owns: bool,
}

/// The sequencer, wherever it is: asked by the process that runs, one at a time.
pub(crate) struct Desk {
    store: Arc<dyn ObjectStore>,
    baton: Arc<Baton>,
    breakage: Option<Breakage>,
    log: Mutex<Option<Log>>,
    /// The position that it last knew of.
    last: Mutex<u64>,
}

impl Desk {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, baton: Arc<Baton>, breakage: Option<Breakage>) -> Arc<Self> {
        Arc::new(Self { store, baton, breakage, log: Mutex::new(None), last: Mutex::new(0) })
    }

    fn ask<T>(&self, epoch: u64, answer: impl FnOnce(&esker_log::Leader) -> Result<T, Error>) -> Result<T, Error> {
        let refused = |why: &str| Error::NoSequencer { log: "log".into(), why: why.to_owned() };
        let mut held = self.log.try_lock().ok_or_else(|| refused("it is busy"))?;
        // Taken out: if the process that asks is killed here, the sequencer is gone with it, and another one begins.
        let lead = |log: Option<Log>| -> Result<_, Error> {
            let log = match log {
                Some(log) => log,
                None => Logs::open(Arc::clone(&self.store), session(&self.baton, None))?.log("log")?,
            };
            let mut leader = log.lead(ADDRESS)?;
            if leader.epoch() < epoch {
                log.refresh()?;
                leader = log.lead(ADDRESS)?;
            }
            Ok((log, leader))
        };
        let (log, leader) = lead(held.take()).map_err(|error| match error {
            Error::Sealed { .. } | Error::Fenced { .. } => error,
            other => refused(&other.to_string()),
        })?;
        *held = Some(log);
        answer(&leader)
    }
}

impl Sequencer for Desk {
    fn next(&self, _: u64, epoch: u64, count: u32, expected: Option<u64>) -> Result<Token, Error> {
        let mut token = self.ask(epoch, |leader| leader.next(count, expected))?;
        if self.breakage == Some(Breakage::SequencerReuses) {
            let mut last = self.last.lock();
            token.position = *last;
            *last += u64::from(count);
        }
        Ok(token)
    }

    fn tail(&self, _: u64, epoch: u64) -> Result<Tail, Error> {
        self.ask(epoch, |leader| Ok(leader.tail()))
    }
}

struct Directions(Arc<Desk>);

impl Connect for Directions {
    fn connect(&self, _: &str) -> Result<Arc<dyn Sequencer>, Error> {
        Ok(Arc::clone(&self.0) as Arc<dyn Sequencer>)
    }
}

/// A session that no other is like.
pub(crate) fn session(baton: &Arc<Baton>, desk: Option<&Arc<Desk>>) -> Session {
    let clock = Arc::clone(baton);
    let connect = desk.map(|desk| Arc::new(Directions(Arc::clone(desk))) as Arc<dyn Connect>);
    Session { lease_ms: 0, connect, ..Session::new(Arc::new(move || clock.time()), baton.draw(u64::MAX)) }
}

/// Whether an error may be told to a process that did nothing wrong.
fn excused(error: &Error) -> bool {
    match error {
        // Sessions here have no lease, so no process steps back: processes may depose each other for ever, in turn.
        Error::Store(StoreError::Contended { what, .. }) if what.starts_with("taking over") => true,
        Error::Store(error) => {
            matches!(
                error,
                StoreError::Io { .. } | StoreError::Stopped { .. } | StoreError::Full { .. } | StoreError::Closed
            )
        }
        Error::NoLog { .. } | Error::Exists { .. } | Error::Invalid { .. } | Error::Damaged { .. } => false,
        _ => true,
    }
}

/// What a position's data says.
pub(crate) fn payload_of(data: &[u8]) -> Option<Payload> {
    data.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

pub(crate) fn seen(found: &Found) -> Result<Seen, String> {
    Ok(match found {
        Found::Entry(entry) => {
            let payload =
                payload_of(&entry.data).ok_or_else(|| format!("an entry that no process wrote: {entry:?}"))?;
            Seen::Entry(payload)
        }
        Found::Filled => Seen::Filled,
        Found::Trimmed => Seen::Trimmed,
        Found::Hole | Found::BeyondTail => Seen::Nothing,
        Found::Lost(why) => return Err(format!("data loss: {why}")),
    })
}

/// One life of a process.
pub(crate) struct Process<'a> {
    pub world: &'a World,
    pub me: usize,
    pub rng: fastrand::Rng,
    log: Log,
    writer: Option<(u64, Writer)>,
    follower: Option<(Follower, u64)>,
    stream: Option<StreamFollower>,
}

type Step = Result<(), String>;

impl<'a> Process<'a> {
    /// Opens the log. `None`: the store did not answer.
    pub(crate) fn open(world: &'a World, me: usize) -> Result<Option<Self>, String> {
        let rng = fastrand::Rng::with_seed(world.baton.draw(u64::MAX));
        let session = session(&world.baton, world.sequencer.as_ref());
        match Logs::open(Arc::clone(&world.store), session).and_then(|logs| logs.log("log")) {
            Ok(log) => Ok(Some(Self { world, me, rng, log, writer: None, follower: None, stream: None })),
            Err(error) if excused(&error) => Ok(None),
            Err(error) => Err(format!("opening the log: {error}")),
        }
    }

    /// Notes an act that begins; where it is noted.
    fn begin(&self, act: Act) -> usize {
        let mut notes = self.world.notes.lock();
        let begin = self.world.baton.time();
        notes.events.push(Event { process: self.me, begin, end: u64::MAX, act });
        notes.events.len() - 1
    }

    fn end(&self, at: usize, act: Act) {
        let mut notes = self.world.notes.lock();
        let end = self.world.baton.time();
        if let Act::Read { position, seen: Seen::Entry(_) | Seen::Filled, .. } | Act::Known { position, .. } = &act {
            notes.known = notes.known.max(position + 1);
        }
        if let Act::Append { result: Appended::At(first), payloads, .. } = &act {
            notes.known = notes.known.max(first + payloads.len() as u64);
        }
        notes.events[at].end = end;
        notes.events[at].act = act;
    }

    /// Notes an act that needs no note if no answer comes.
    fn noted(&self, begin: u64, act: Act) {
        let at = self.begin(act.clone());
        self.end(at, act);
        self.world.notes.lock().events[at].begin = begin;
    }

    fn now(&self) -> u64 {
        self.world.baton.time()
    }

    fn keeps(&self) -> bool {
        self.follower.is_some() || self.stream.is_some()
    }

    fn position(&mut self) -> u64 {
        let known = self.world.notes.lock().known;
        // Mostly near the end, where things happen.
        let low = if self.rng.u8(0..3) == 0 { 0 } else { known.saturating_sub(8) };
        self.rng.u64(low..known + 3)
    }

    fn record(&mut self) -> (Payload, Record) {
        let mut notes = self.world.notes.lock();
        notes.payloads += 1;
        let payload = notes.payloads;
        drop(notes);
        let mut data = BytesMut::new();
        data.put_u64_le(payload);
        data.put_bytes(payload as u8, if self.rng.bool() { 0 } else { self.rng.usize(0..60) });
        let record = Record::from(data.freeze());
        (payload, if payload % 2 == 1 { record.stream(STREAM) } else { record })
    }

    /// Goes on until nothing of `acts` is left.
    pub(crate) fn live(&mut self, acts: &Cell<u32>) -> Step {
        while acts.get() > 0 {
            acts.set(acts.get() - 1);
            match self.rng.u32(0..100) {
                0..28 => self.append(Durability::Durable, 1, false)?,
                28..34 => self.append(Durability::Applied, 1, false)?,
                34..39 => {
                    let count = self.rng.usize(2..4);
                    self.append(Durability::Durable, count, false)?;
                }
                39..43 => self.append(Durability::Durable, 1, true)?,
                43..54 => self.append_numbered()?,
                54..62 => self.read()?,
                62..68 => self.tail()?,
                68..72 => self.fill()?,
                72..75 => self.trim(false)?,
                75..78 => self.trim(true)?,
                78..81 => self.reshape()?,
                81..90 => self.follow()?,
                90..94 => self.follow_stream()?,
                94..96 if self.world.owns => self.own()?,
                96 if self.world.seals => self.seal()?,
                97..99 => self.take_over()?,
                _ => self.forget(),
            }
        }
        Ok(())
    }

    fn allow<T>(&self, what: &str, answer: Result<T, Error>) -> Result<Option<T>, String> {
        match answer {
            Ok(value) => Ok(Some(value)),
            Err(error) if excused(&error) => Ok(None),
            Err(error) => Err(format!("{what}: {error}")),
        }
    }

    fn append(&mut self, durability: Durability, count: usize, at_tail: bool) -> Step {
        let log = self.log.clone();
        let expected = if at_tail {
            let Some(tail) = self.allow("tail", log.tail())? else { return Ok(()) };
            Some(tail.position)
        } else {
            None
        };
        self.append_to(
            &log,
            0,
            |log, records| match expected {
                Some(expected) => log.append_at(expected, records),
                None => log.append_with(records, durability),
            },
            count,
            durability == Durability::Durable,
        )
    }

    fn append_to(
        &mut self,
        log: &Log,
        under: u64,
        append: impl FnOnce(&Log, &[Record]) -> Result<Completion<u64>, Error>,
        count: usize,
        durable: bool,
    ) -> Step {
        let (payloads, records): (Vec<_>, Vec<_>) = (0..count).map(|_| self.record()).unzip();
        let act = |result| Act::Append { payloads: payloads.clone(), durable, number: None, under, result };
        let at = self.begin(act(Appended::Unknown));
        match append(log, &records) {
            Ok(done) => match done.wait() {
                Ok(first) => self.end(at, act(Appended::At(first))),
                Err(StoreError::Stopped { .. } | StoreError::Io { .. }) => {}
                Err(error) => return Err(format!("waiting for an append: {error}")),
            },
            Err(Error::Uncertain { position, nonce, .. }) => {
                self.world.notes.lock().uncertain += 1;
                self.resolve(log, at, position, nonce, act)?;
            }
            Err(error) if excused(&error) => self.end(at, act(Appended::Refused)),
            Err(error) => return Err(format!("append: {error}")),
        }
        Ok(())
    }

    fn resolve(&self, log: &Log, at: usize, position: u64, nonce: Nonce, act: impl Fn(Appended) -> Act) -> Step {
        for _ in 0..3 {
            match log.resolve(position, nonce) {
                Ok(true) => {
                    // That it is durable only a read says.
                    if let Ok(found) = log.read(position)
                        && found.wait().is_ok()
                    {
                        self.end(at, act(Appended::At(position)));
                    }
                    return Ok(());
                }
                Ok(false) => {
                    self.end(at, act(Appended::Refused));
                    return Ok(());
                }
                Err(Error::Trimmed { .. }) => return Ok(()),
                Err(error) if excused(&error) => {}
                Err(error) => return Err(format!("resolving {position}: {error}")),
            }
        }
        Ok(())
    }

    fn append_numbered(&mut self) -> Step {
        if self.writer.is_none() {
            let name = self.rng.u64(0..2);
            let Some(writer) = self.allow("opening a writer", self.log.writer(&format!("w{name}")))? else {
                return Ok(());
            };
            self.writer = Some((name, writer));
        }
        let (payload, record) = self.record();
        let Some((name, writer)) = &self.writer else { return Ok(()) };
        let next = writer.next_number();
        // Mostly the next, sometimes one that was used.
        let number = if next > 0 && self.rng.u8(0..4) == 0 { self.rng.u64(next.saturating_sub(3)..next) } else { next };
        let by = Some((*name, number));
        let act = |result| Act::Append { payloads: vec![payload], durable: true, number: by, under: 0, result };
        let at = self.begin(act(Appended::Unknown));
        match writer.append(number, record) {
            Ok(done) => match done.wait() {
                Ok((position, true)) => self.end(at, act(Appended::At(position))),
                Ok((position, false)) => {
                    // Whose it is only its data says.
                    let begin = self.now();
                    self.end(at, act(Appended::Unknown));
                    self.noted(begin, Act::Known { number: (*name, number), position });
                }
                Err(StoreError::Stopped { .. } | StoreError::Io { .. }) => {}
                Err(error) => return Err(format!("waiting for an append: {error}")),
            },
            Err(Error::Uncertain { .. }) => self.world.notes.lock().uncertain += 1,
            Err(Error::Fenced { .. }) => {
                self.end(at, act(Appended::Refused));
                self.writer = None;
            }
            Err(error) if excused(&error) => self.end(at, act(Appended::Refused)),
            Err(error) => return Err(format!("numbered append: {error}")),
        }
        Ok(())
    }

    fn read(&mut self) -> Step {
        let position = self.position();
        let begin = self.now();
        let Some(found) = self.allow("read", self.log.read(position))? else { return Ok(()) };
        let keeps = self.keeps();
        if let Ok(found) = found.wait() {
            let seen = seen(&found).map_err(|why| format!("position {position}: {why}"))?;
            self.noted(begin, Act::Read { position, seen, keeps });
        }
        Ok(())
    }

    fn tail(&mut self) -> Step {
        let begin = self.now();
        if let Some(tail) = self.allow("tail", self.log.tail())? {
            self.noted(begin, Act::Tail(tail.position));
        }
        Ok(())
    }

    fn fill(&mut self) -> Step {
        let position = self.position();
        let begin = self.now();
        if self.allow("fill", self.log.fill(position))?.is_some() {
            self.noted(begin, Act::Read { position, seen: Seen::Filled, keeps: self.keeps() });
        }
        Ok(())
    }

    fn trim(&mut self, all_below: bool) -> Step {
        let position = self.position();
        let (from, to) = if all_below { (0, position.saturating_sub(4)) } else { (position, position + 1) };
        let at = self.begin(Act::Trim { from, to, done: false });
        let answer = if all_below { self.log.trim_to(to).map(|_| ()) } else { self.log.trim(position) };
        if self.allow("trim", answer)?.is_some() {
            self.end(at, Act::Trim { from, to, done: true });
        }
        Ok(())
    }

    fn reshape(&mut self) -> Step {
        let (width, slots) = (self.rng.u32(1..4), self.rng.u32(1..6));
        self.allow("reshape", self.log.reshape(width, slots)).map(drop)
    }

    fn follow(&mut self) -> Step {
        if self.follower.is_none() {
            let start = if self.rng.bool() { Start::First } else { Start::Position(self.position()) };
            let how = Follow { ahead_bytes: self.rng.usize(1..400), fill_after_ms: Some(40), look_ms: 1 };
            let Some(follower) = self.allow("follow", self.log.follow(start, how))? else { return Ok(()) };
            let next = follower.position();
            self.follower = Some((follower, next));
        }
        for _ in 0..self.rng.u32(1..6) {
            let begin = self.now();
            let Some((follower, next)) = &mut self.follower else { return Ok(()) };
            let (delivery, expected) = (follower.poll(), *next);
            let Some(Some(delivery)) = self.allow("following", delivery)? else { return Ok(()) };
            let (positions, seen) = match delivery {
                Delivery::Entry(entry) => {
                    let positions = entry.position..entry.position + 1;
                    (positions, seen(&Found::Entry(entry))?)
                }
                Delivery::Gap { positions, kind: GapKind::Filled } => (positions, Seen::Filled),
                Delivery::Gap { positions, kind: GapKind::Trimmed } => (positions, Seen::Trimmed),
                Delivery::Gap { positions, kind: GapKind::Lost(why) } => return Err(format!("{positions:?}: {why}")),
                Delivery::End { tail } => {
                    // It may have begun past it.
                    if tail > expected {
                        return Err(format!("a follower at {expected} was told of the end at {tail}"));
                    }
                    return Ok(());
                }
            };
            if positions.start != expected {
                return Err(format!("a follower at {expected} was handed {positions:?}"));
            }
            // What was read ahead was read before it was asked for: its reading began when the follower was last asked,
            // at the latest.
            for position in positions.clone() {
                self.noted(begin, Act::Read { position, seen: seen.clone(), keeps: true });
            }
            if let Some((_, next)) = &mut self.follower {
                *next = positions.end;
            }
        }
        Ok(())
    }

    fn follow_stream(&mut self) -> Step {
        if self.stream.is_none() {
            let from = self.position();
            let how = Follow { ahead_bytes: 1, fill_after_ms: Some(40), look_ms: 1 };
            self.stream = Some(self.log.follow_stream(STREAM, from, how));
        }
        for _ in 0..self.rng.u32(1..4) {
            let begin = self.now();
            let Some(stream) = &mut self.stream else { return Ok(()) };
            let from = stream.position();
            let delivery = stream.poll();
            let at = stream.position();
            let Some(delivery) = self.allow("following a stream", delivery)? else { return Ok(()) };
            let to = match &delivery {
                Some(Delivery::Entry(entry)) => entry.position,
                Some(Delivery::Gap { positions, kind: GapKind::Trimmed }) if positions.start >= from => positions.start,
                Some(_) => return Err(format!("a stream at {from} was handed {delivery:?}")),
                None => at,
            };
            if let Some(Delivery::Gap { positions, .. }) = &delivery {
                for position in positions.clone() {
                    self.noted(begin, Act::Read { position, seen: Seen::Trimmed, keeps: true });
                }
            }
            if let Some(Delivery::Entry(entry)) = delivery {
                let position = entry.position;
                if position < from {
                    return Err(format!("a stream at {from} was handed position {position}"));
                }
                let seen = seen(&Found::Entry(entry))?;
                self.noted(begin, Act::Read { position, seen, keeps: true });
            }
            self.noted(begin, Act::Passed { from, to });
        }
        Ok(())
    }

    fn own(&mut self) -> Step {
        let id = self.now();
        let at = self.begin(Act::Own { id, done: false });
        let Some(mine) = self.allow("own", self.log.own(&format!("p{}", self.me)))? else { return Ok(()) };
        self.end(at, Act::Own { id, done: true });
        for _ in 0..self.rng.u32(0..4) {
            self.append_to(&mine, id, |log, records| log.append_batch(records), 1, true)?;
        }
        let at = self.begin(Act::Release);
        if self.allow("release", mine.release())?.is_some() {
            self.end(at, Act::Release);
        }
        Ok(())
    }

    fn seal(&mut self) -> Step {
        let begin = self.now();
        if let Some(tail) = self.allow("seal", self.log.seal())? {
            self.noted(begin, Act::Seal(tail));
        }
        Ok(())
    }

    fn take_over(&mut self) -> Step {
        match &self.world.sequencer {
            Some(desk) => self.allow("asking the sequencer", desk.tail(0, self.log.view().epoch)).map(drop),
            None => self.allow("lead", self.log.lead("")).map(drop),
        }
    }

    /// Begins anew with what is remembered.
    fn forget(&mut self) {
        match self.rng.u8(0..3) {
            0 => self.writer = None,
            1 => self.follower = None,
            _ => self.stream = None,
        }
    }
}

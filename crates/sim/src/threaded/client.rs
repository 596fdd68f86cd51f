//! One client beside others: it changes, clones, removes and reads its own objects, and takes snapshots.
//!
//! rng → [`Step`]s → store → world after them, what is owed → crash → [`Client::recovered`]
//!
//! A client alone writes its collection, so it always knows what is there, whatever the others do. Segments, log and
//! cleaner are those of all.
//!
//! Invariants:
//! 1. A step whose outcome is not known ends the client's life, and is its doubt: it is there after a crash or not.
//! 2. An error without an excuse is a violation.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_engine::Engine;
use esker_store::{Collection, Durability, Error, ObjectId, ObjectStore, Transaction};

use super::world::{Misread, PIECE_BYTES, Step, World, difference, found, thing};

/// Names of a client's objects.
const NAMES: u64 = 20;
/// Most pieces of an object.
const PIECES_MAX: usize = 90;
/// Slots to choose from.
const SLOTS: u64 = 40;
/// Most snapshots that a client has at once.
const VIEWS_MAX: usize = 2;
/// So many of the last steps are told with what broke.
const TOLD: usize = 12;
/// A delete that a full store refuses for so long is refused for good.
const REFUSED_FOR_GOOD: Duration = Duration::from_secs(12);

/// Whether there is a reason for the store to answer with this error.
pub(super) type Excuse = Arc<dyn Fn(&Error) -> bool + Send + Sync>;

/// How a client behaves during one life.
#[derive(Clone)]
pub(super) struct Manner {
    pub steps: usize,
    /// Of 100 bytes of the device so many live: above that it removes.
    pub level: u64,
    pub snapshots: bool,
    pub excuse: Excuse,
    /// The store answers before the sync.
    pub acknowledges_applied: bool,
}

/// A client, and what it knows.
pub(super) struct Client {
    rng: fastrand::Rng,
    collection: Collection,
    /// After each transaction since the last opening: its number, and what is there.
    worlds: Vec<(u64, World)>,
    /// The number up to which everything must be there after a crash.
    owed: u64,
    doubt: Option<World>,
    /// The number of the last value.
    number: u32,
    /// So many of the next steps remove something.
    pressure: u32,
    told: VecDeque<String>,
    pub transactions: u64,
    pub full: u64,
    pub taken_back: u64,
}

/// A snapshot, and what it must show.
struct Seen {
    view: Engine,
    world: World,
    at: u64,
    last: u64,
}

impl Client {
    pub fn new(number: u64, rng: &mut fastrand::Rng) -> Self {
        Self {
            rng: rng.fork(),
            collection: Collection::new(format!("client{number}")),
            worlds: vec![(0, World::new())],
            owed: 0,
            doubt: None,
            number: 0,
            pressure: 0,
            told: VecDeque::new(),
            transactions: 0,
            full: 0,
            taken_back: 0,
        }
    }

    fn now(&self) -> &World {
        &self.worlds.last().expect("a client begins with an empty world").1
    }

    fn id(&self, name: &str) -> ObjectId {
        ObjectId::new(self.collection.clone(), name.to_owned())
    }

    /// What broke, and what the client did before.
    fn in_words(&self, broken: String) -> String {
        let told: Vec<&str> = self.told.iter().map(String::as_str).collect();
        format!("{}: {broken}\n  before that: {}", self.collection, told.join("; "))
    }

    /// What is there after an opening must be what the transactions up to the store's last number leave.
    ///
    /// # Errors
    /// The promise that was broken.
    pub fn recovered(&mut self, engine: &Engine) -> Result<(), String> {
        self.compared(engine).map_err(|broken| self.in_words(broken))
    }

    fn compared(&mut self, engine: &Engine) -> Result<(), String> {
        let last = engine.recovery().last_seq;
        if self.owed > last {
            let owed = self.owed;
            return Err(format!(
                "acknowledged_writes_survive: {owed} was answered as durable, the store ends at {last}"
            ));
        }
        let world = found(engine, &self.collection).map_err(|why| format!("after a crash: {why}"))?;
        let at = self.worlds.iter().rposition(|(seq, _)| *seq <= last).unwrap_or(0);
        let is_last = at + 1 == self.worlds.len();
        let doubted = is_last && self.doubt.as_ref().is_some_and(|doubt| difference(doubt, &world).is_none());
        if !doubted && let Some(why) = difference(&self.worlds[at].1, &world) {
            let near = self.worlds.iter().rposition(|(_, known)| difference(known, &world).is_none());
            let near = near.map(|near| self.worlds[near].0);
            return Err(format!(
                "recovery_is_a_prefix: the store ends at {last}, what is owed at {}, but {why}; it is what {near:?} left",
                self.owed
            ));
        }
        self.taken_back += (self.worlds.len() - 1 - at) as u64;
        self.told.push_back(format!("reopened at {last}"));
        self.worlds = vec![(last, world)];
        (self.owed, self.doubt) = (last, None);
        Ok(())
    }

    /// The store says that everything is durable.
    pub fn is_owed_everything(&mut self) {
        self.owed = self.worlds.last().map_or(self.owed, |(seq, _)| *seq);
    }

    /// Makes the client's collection, if it is not there.
    fn makes_its_collection(&mut self, engine: &Engine, manner: &Manner) -> Result<bool, String> {
        let txn = Transaction::new().create_collection(&self.collection);
        match engine.submit(txn).wait() {
            Ok(_) => Ok(true),
            Err(Error::Full { .. }) => Ok(false),
            Err(error) if (manner.excuse)(&error) => Ok(false),
            Err(error) => Err(format!("making a collection: {error}")),
        }
    }

    /// One life.
    ///
    /// # Errors
    /// The promise that was broken.
    pub fn live(&mut self, engine: &Engine, manner: &Manner) -> Result<(), String> {
        self.lives(engine, manner).map_err(|broken| self.in_words(broken))
    }

    fn lives(&mut self, engine: &Engine, manner: &Manner) -> Result<(), String> {
        if !self.makes_its_collection(engine, manner)? {
            return Ok(());
        }
        let mut views: Vec<Seen> = Vec::new();
        for step in 0..manner.steps {
            if step % 8 == 0 {
                let stats = engine.stats();
                if stats.live_bytes * 100 > manner.level * stats.segments * stats.segment_bytes {
                    self.pressure = self.pressure.max(2);
                }
            }
            let goes_on = match self.rng.u8(0..100) {
                0..3 if manner.snapshots && views.len() < VIEWS_MAX => {
                    self.takes_a_snapshot(engine, manner, &mut views)?
                }
                3..7 if !views.is_empty() => {
                    let seen = views.swap_remove(self.rng.usize(..views.len()));
                    self.looks_at(seen, manner)?
                }
                7..17 => self.reads(engine, manner)?,
                17 => {
                    let written = engine.checkpoint();
                    self.excused(manner, written, "a checkpoint")?
                }
                _ => self.changes(engine, manner)?,
            };
            if !goes_on {
                return Ok(());
            }
        }
        // Those that are left go with the client's life, half of them unseen.
        while let Some(seen) = views.pop() {
            if self.rng.bool() && !self.looks_at(seen, manner)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether the store lives; one that is full may say so.
    fn excused<T>(&mut self, manner: &Manner, outcome: Result<T, Error>, what: &str) -> Result<bool, String> {
        match outcome {
            Ok(_) | Err(Error::Full { .. }) => Ok(true),
            Err(error) if (manner.excuse)(&error) => Ok(false),
            Err(error) => Err(format!("{what}: {error}")),
        }
    }

    fn takes_a_snapshot(&mut self, engine: &Engine, manner: &Manner, views: &mut Vec<Seen>) -> Result<bool, String> {
        let world = self.now().clone();
        let cache_bytes = self.rng.choice([0, 1 << 20]).unwrap_or(0);
        let index_bytes = self.rng.choice([0, u64::MAX]).unwrap_or(0);
        let taken = engine.view(cache_bytes, index_bytes);
        self.told.push_back(format!("snapshot {}", if taken.is_ok() { "taken" } else { "refused" }));
        match taken {
            Ok((seq, view)) => {
                let last = self.worlds.last().map_or(0, |(seq, _)| *seq);
                if seq.0 < last {
                    return Err(format!("a snapshot at {} is older than {last}, which was applied", seq.0));
                }
                if !manner.acknowledges_applied {
                    self.owed = self.owed.max(last);
                }
                views.push(Seen { view, world, at: seq.0, last });
                Ok(true)
            }
            other => self.excused(manner, other, "a snapshot"),
        }
    }

    /// A snapshot shows what there was when it was taken.
    fn looks_at(&mut self, seen: Seen, manner: &Manner) -> Result<bool, String> {
        self.told.push_back("snapshot dropped".into());
        match found(&seen.view, &self.collection) {
            Ok(world) => match difference(&seen.world, &world) {
                Some(why) => Err(format!("a snapshot of {} at {} has changed: {why}", seen.at, seen.last)),
                None => Ok(true),
            },
            Err(Misread::Refused(error)) if (manner.excuse)(&error) => Ok(false),
            Err(why) => Err(format!("in a snapshot: {why}")),
        }
    }

    fn reads(&mut self, engine: &Engine, manner: &Manner) -> Result<bool, String> {
        let name = self.name();
        match thing(engine, &self.id(&name)) {
            Ok(thing) => {
                let expected = self.now().get(&name);
                let one = |thing: &Arc<_>| World::from([(name.clone(), Arc::clone(thing))]);
                let expected = expected.map(one).unwrap_or_default();
                let found = thing.map(|thing| World::from([(name.clone(), Arc::new(thing))])).unwrap_or_default();
                match difference(&expected, &found) {
                    Some(why) => Err(format!("reading: {why}")),
                    None => Ok(true),
                }
            }
            Err(Misread::Refused(error)) if (manner.excuse)(&error) => Ok(false),
            Err(why) => Err(format!("reading: {why}")),
        }
    }

    fn name(&mut self) -> String {
        format!("o{}", self.rng.u64(..NAMES))
    }

    /// An object that is there.
    fn known(&mut self) -> Option<String> {
        let count = self.now().len();
        let at = if count > 0 { self.rng.usize(..count) } else { return None };
        self.now().keys().nth(at).cloned()
    }

    fn step(&mut self, world: &World) -> Step {
        let known = self.known().filter(|name| world.contains_key(name));
        let draw = if self.pressure > 0 { 100 } else { self.rng.u8(0..100) };
        self.pressure = self.pressure.saturating_sub(1);
        let name = self.name();
        let piece = self.rng.usize(..PIECES_MAX - 45);
        let few = self.rng.usize(1..12);
        match (draw, known) {
            (100, Some(name)) => Step::Remove { name },
            (45..50, Some(name)) => Step::Unset { name, slot: self.rng.u64(..SLOTS) },
            (50..54, Some(name)) => Step::Zero { name, piece, pieces: few },
            (54..57, Some(name)) => Step::Truncate { name, pieces: piece },
            (57..62, Some(name)) => Step::Remove { name },
            (62..76, Some(known)) if known != name => Step::Clone { name: known, to: name },
            (76..88, Some(known)) => {
                let from = self.rng.usize(..PIECES_MAX / 2);
                Step::CloneRange { name: known, to: name, from, pieces: self.rng.usize(1..45), at: piece }
            }
            (88..91, Some(known)) if !world.contains_key(&name) => Step::Rename { name: known, to: name },
            (20..45, _) => {
                self.number += 1;
                Step::Set { name, slot: self.rng.u64(..SLOTS), number: self.number }
            }
            _ => {
                self.number += 1;
                let pieces = if self.rng.u8(0..3) == 0 { self.rng.usize(12..45) } else { few };
                Step::Write { name, piece, number: self.number, pieces }
            }
        }
    }

    /// One transaction of one or two steps.
    fn changes(&mut self, engine: &Engine, manner: &Manner) -> Result<bool, String> {
        let durability = if self.rng.bool() { Durability::Applied } else { Durability::Durable };
        let mut world = self.now().clone();
        let mut txn = Transaction::with(durability);
        let (mut takes_away, mut words) = (true, Vec::new());
        for at in 0..if self.rng.u8(0..6) == 0 { 2 } else { 1 } {
            let step = self.step(&world);
            // Two large writes may be more than a transaction takes.
            if at > 0 && matches!(step, Step::Write { .. }) {
                break;
            }
            let (id, change) = step.change(&self.collection);
            txn.push(&id, change);
            takes_away &= step.takes_away();
            words.push(format!("{step:?}"));
            world = step.after(&world);
        }
        let asked = Instant::now();
        // Until the store has answered; should the call panic, it stays so.
        self.doubt = Some(world.clone());
        loop {
            let (result, barrier) = engine.submit(txn.clone()).into_parts();
            match result {
                Ok(seq) => {
                    self.doubt = None;
                    if self.told.len() >= TOLD {
                        self.told.pop_front();
                    }
                    self.told.push_back(format!("{} as {}", words.join(" and "), seq.0));
                    self.transactions += 1;
                    self.worlds.push((seq.0, world));
                    let Some(barrier) = barrier else { return Ok(true) };
                    return match barrier.wait() {
                        Ok(()) => {
                            if !manner.acknowledges_applied {
                                self.owed = self.owed.max(seq.0);
                            }
                            Ok(true)
                        }
                        Err(error) if (manner.excuse)(&error) => Ok(false),
                        Err(error) => Err(format!("waiting for {}: {error}", words.join(" and "))),
                    };
                }
                Err(Error::Full { .. }) if takes_away => {
                    if asked.elapsed() > REFUSED_FOR_GOOD {
                        let (words, stats) = (words.join(" and "), engine.stats());
                        return Err(format!("full_device_recovers: {words} is refused for good; {}", room(&stats)));
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(Error::Full { .. }) => {
                    self.doubt = None;
                    self.full += 1;
                    self.pressure = 2;
                    return Ok(true);
                }
                Err(error) if (manner.excuse)(&error) => return Ok(false),
                Err(error) => return Err(format!("{}: {error}", words.join(" and "))),
            }
        }
    }

    /// Removes all that the client has.
    ///
    /// # Errors
    /// Something is refused.
    pub fn removes_everything(&mut self, engine: &Engine) -> Result<(), String> {
        for name in self.now().clone().into_keys() {
            let asked = Instant::now();
            let txn = || Transaction::new().change(&self.id(&name), esker_store::Change::Remove);
            while let Err(error) = engine.submit(txn()).wait() {
                let full = matches!(error, Error::Full { .. });
                if !full || asked.elapsed() > REFUSED_FOR_GOOD {
                    return Err(format!("full_device_recovers: removing {name}: {error}; {}", room(&engine.stats())));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.worlds = vec![(0, World::new())];
        Ok(())
    }

    /// Writes objects, of 40 pieces each, until the store is full; how many bytes it took. Reads them back.
    ///
    /// # Errors
    /// An error but `Full`, or another content.
    pub fn fills(&mut self, engine: &Engine) -> Result<u64, String> {
        let txn = Transaction::new().create_collection(&self.collection);
        engine.submit(txn).wait().map_err(|error| format!("making a collection: {error}"))?;
        let mut names = Vec::new();
        loop {
            self.number += 1;
            let name = format!("fill{}", self.number);
            let step = Step::Write { name: name.clone(), piece: 0, number: self.number, pieces: 40 };
            let (id, change) = step.change(&self.collection);
            match engine.submit(Transaction::with(Durability::Applied).change(&id, change)).wait() {
                Ok(_) => names.push((name, self.number)),
                Err(Error::Full { .. }) => break,
                Err(error) => return Err(format!("filling: {error}")),
            }
        }
        let mut world = self.now().clone();
        for (name, number) in &names {
            world = Step::Write { name: name.clone(), piece: 0, number: *number, pieces: 40 }.after(&world);
        }
        let found = found(engine, &self.collection).map_err(|why| format!("reading what filled the store: {why}"))?;
        if let Some(why) = difference(&world, &found) {
            return Err(format!("what filled the store: {why}"));
        }
        self.worlds = vec![(0, world)];
        Ok(names.len() as u64 * 40 * PIECE_BYTES)
    }
}

/// How much room there is, in words.
pub(super) fn room(stats: &esker_engine::Stats) -> String {
    format!(
        "{} of {} segments free, {} bare, {} bytes live, {} in the checkpoint, {} snapshots, gate {}",
        stats.free_segments,
        stats.segments,
        stats.bare_segments,
        stats.live_bytes,
        stats.checkpoint_bytes,
        stats.snapshots,
        stats.gate
    )
}

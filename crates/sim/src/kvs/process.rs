//! A process on the key-value face: opens it, does what its randomness says, and notes all that it did and was told.
//!
//! open → get, put, swap, transact, remove a namespace, … → notes; killed at any call, it opens the face anew
//!
//! Invariants:
//! 1. A change is noted as unanswered before its first call.
//! 2. An answer that the interface does not allow breaks the run.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use esker_kv::{Clock, Durability, Entry, Error, Key, Kind, Kv, Namespace, OwnedKey, Scan, Txn};
use esker_store::{Error as StoreError, ObjectStore};

use crate::kvs::model::{Item, KeyAsk, KeyCall, KeyTold, Number};
use crate::lasting::{Deed, Lasts};
use crate::shared::notes::Diary;
use crate::shared::setting::{Setting, SimClock};
use crate::shared::wire::Wire;

/// The namespaces.
pub(crate) const SPACES: [(&str, Kind); 2] = [("numbers", Kind::Int), ("words", Kind::Bytes)];
/// The namespace whose entries one call of the store counts.
const WORDS: usize = 1;
/// Entries that one sweep removes, at most.
pub(super) const SWEPT_MAX: usize = 4;

/// What the processes of a run do.
pub(crate) struct KeyHabits {
    /// Namespace and key, by number.
    pub keys: Vec<(usize, OwnedKey)>,
    /// Whether several keys are read and written at once.
    pub many: bool,
    /// Whether entries expire.
    pub expire: bool,
    /// Whether namespaces are removed.
    pub drops: bool,
    /// Whether some writes are only applied.
    pub applied: bool,
}

impl KeyHabits {
    pub(crate) fn new(rng: &mut fastrand::Rng) -> Self {
        let mut keys: Vec<(usize, OwnedKey)> = Vec::new();
        // Two in one range, one in another.
        for key in &[3, 70_000, 5 << 20][..rng.usize(1..4)] {
            keys.push((0, OwnedKey::Int(*key)));
        }
        for word in &["a", "bb", "c"][..rng.usize(1..4)] {
            keys.push((WORDS, OwnedKey::from(*word)));
        }
        let mut one_in = |n: u8| rng.u8(0..n) == 0;
        Self { keys, many: one_in(2), expire: one_in(2), drops: one_in(3), applied: one_in(2) }
    }

    pub(crate) fn space_of(&self) -> Vec<usize> {
        self.keys.iter().map(|(space, _)| *space).collect()
    }
}

/// What processes share.
pub(crate) struct KeyWorld<'a> {
    pub setting: &'a Setting,
    pub notes: Diary<Deed<KeyCall>, KeyTold>,
    pub habits: KeyHabits,
}

/// What stands in an entry.
pub(crate) fn item_of(entry: &Entry) -> Result<Item, String> {
    let value = value_of(&entry.value)?;
    Ok(Item { value, expires_ms: entry.expires_ms.unwrap_or(0) })
}

fn value_of(bytes: &Bytes) -> Result<u32, String> {
    let first = bytes.first_chunk().ok_or_else(|| format!("a value that no process wrote: {bytes:?}"))?;
    let value = u32::from_le_bytes(*first);
    if *bytes == bytes_of(value) { Ok(value) } else { Err(format!("a value that is not one: {bytes:?}")) }
}

/// A value of a length of its own.
fn bytes_of(value: u32) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u32_le(value);
    bytes.put_bytes(value as u8, (value.wrapping_mul(37) % 90) as usize);
    bytes.freeze()
}

fn entry_of(item: Item) -> Entry {
    Entry::new(bytes_of(item.value)).expiring((item.expires_ms != 0).then_some(item.expires_ms))
}

fn durability(lasts: Lasts) -> Durability {
    if lasts == Lasts::Durably { Durability::Durable } else { Durability::Applied }
}

/// One life of a process.
pub(crate) struct KeyProcess<'a> {
    world: &'a KeyWorld<'a>,
    me: usize,
    rng: fastrand::Rng,
    clock: Arc<SimClock>,
    kv: Kv,
    spaces: [Option<Namespace>; SPACES.len()],
    /// What the face took for the time last.
    last_ms: u64,
    /// And what it may take for it at most.
    most_ms: u64,
}

type Step = Result<(), String>;

struct FaceClock(Arc<SimClock>);

impl Clock for FaceClock {
    fn now_ms(&self) -> u64 {
        self.0.told_ms()
    }
}

/// An answer, sorted by what its caller knows then.
enum Sorted<T> {
    Told(T),
    Refused,
    Unknown,
}

impl<'a> KeyProcess<'a> {
    /// Opens the face. `None`: the store did not answer.
    pub(crate) fn open(world: &'a KeyWorld<'a>, me: usize) -> Result<Option<Self>, String> {
        let rng = fastrand::Rng::with_seed(world.setting.baton.draw(u64::MAX));
        let clock = SimClock::new(world.setting);
        let store: Arc<dyn ObjectStore> = Wire::new(&world.setting.net, me);
        match Kv::open(store, Arc::new(FaceClock(Arc::clone(&clock)))) {
            Ok(kv) => {
                let (spaces, last_ms, most_ms) = (Default::default(), 0, clock.now_ms());
                Ok(Some(Self { world, me, rng, clock, kv, spaces, last_ms, most_ms }))
            }
            Err(Error::Store(error)) if excused(&error) => Ok(None),
            Err(error) => Err(format!("opening: {error}")),
        }
    }

    /// Goes on until nothing of `acts` is left.
    pub(crate) fn live(&mut self, acts: &mut u32) -> Step {
        while *acts > 0 {
            *acts -= 1;
            self.time_passes()?;
            self.act()?;
        }
        Ok(())
    }

    fn time(&self) -> u64 {
        self.world.setting.baton.time()
    }

    /// The clock goes on; what the face makes of it is checked.
    fn time_passes(&mut self) -> Step {
        let before = self.clock.now_ms();
        self.clock.pass(&mut self.rng, &self.world.setting.baton);
        let (now_ms, told) = (self.clock.now_ms(), self.kv.clock().now_ms());
        // After a step back it goes on at half speed.
        self.most_ms = self.most_ms.max(now_ms).max(self.most_ms + now_ms.saturating_sub(before).div_ceil(2));
        if told < self.last_ms || told > self.most_ms {
            return Err(format!("the clock says {told} after {}, of {now_ms}, at most {}", self.last_ms, self.most_ms));
        }
        self.last_ms = told;
        Ok(())
    }

    /// A call at this process' time: what the face takes for it, and not less than its clock says.
    fn call(&self, ask: KeyAsk) -> KeyCall {
        KeyCall { ask, now_ms: self.last_ms.max(self.clock.now_ms()) }
    }

    fn lasts(&mut self) -> Lasts {
        if self.world.habits.applied && self.rng.u8(0..3) == 0 { Lasts::UntilPowerLoss } else { Lasts::Durably }
    }

    fn item(&mut self) -> Item {
        // Times are unique, and so are values.
        let value = self.time() as u32;
        let fades = self.world.habits.expire && self.rng.bool();
        Item { value, expires_ms: if fades { self.expiry() } else { 0 } }
    }

    fn expiry(&mut self) -> u64 {
        (self.clock.now_ms() + self.rng.u64(0..200)).saturating_sub(20)
    }

    fn number(&mut self) -> Number {
        self.rng.usize(0..self.world.habits.keys.len())
    }

    fn key(&self, number: Number) -> (usize, &'a OwnedKey) {
        let (space, key) = &self.world.habits.keys[number];
        (*space, key)
    }

    fn keys_of(&self, space: usize) -> Vec<Number> {
        (0..self.world.habits.keys.len()).filter(|number| self.key(*number).0 == space).collect()
    }

    /// Some keys that are in one object of the store.
    fn together(&mut self) -> (usize, Vec<Number>) {
        let space = self.rng.usize(0..SPACES.len());
        let mut all = self.keys_of(space);
        if space != WORDS {
            all.retain(|number| !matches!(self.key(*number).1, OwnedKey::Int(key) if *key >= 1 << 20));
        }
        self.rng.shuffle(&mut all);
        let count = self.rng.usize(1..all.len() + 1);
        all.truncate(count);
        (space, all)
    }

    /// The namespace, opened if it is not.
    fn space(&mut self, space: usize) -> Result<Option<Namespace>, String> {
        if let Some(open) = &self.spaces[space] {
            return Ok(Some(open.clone()));
        }
        let (name, kind) = SPACES[space];
        let at = self.begin(KeyAsk::Open(space), Lasts::Durably);
        match self.face(self.kv.namespace(name, kind))? {
            Sorted::Told(open) => {
                self.told(at, KeyTold::Done);
                self.spaces[space] = Some(open.clone());
                Ok(Some(open))
            }
            Sorted::Refused => {
                self.world.notes.refuse(at);
                Ok(None)
            }
            Sorted::Unknown => Ok(None),
        }
    }

    fn begin(&self, ask: KeyAsk, lasts: Lasts) -> usize {
        self.world.notes.begin(self.me, self.time(), Deed::Ask(self.call(ask), lasts))
    }

    fn told(&self, at: usize, told: KeyTold) {
        self.world.notes.end(at, self.time(), told);
    }

    fn face<T>(&self, answer: Result<T, Error>) -> Result<Sorted<T>, String> {
        match answer {
            Ok(value) => Ok(Sorted::Told(value)),
            Err(Error::Store(error)) => self.sorted(Err(error)),
            Err(error) => Err(error.to_string()),
        }
    }

    fn sorted<T>(&self, answer: Result<T, StoreError>) -> Result<Sorted<T>, String> {
        match answer {
            Ok(value) => Ok(Sorted::Told(value)),
            Err(error) if error.is_unknown() => Ok(Sorted::Unknown),
            Err(error) if excused(&error) => Ok(Sorted::Refused),
            // It was removed.
            Err(StoreError::Invalid { what: "namespace", .. }) if self.world.habits.drops => Ok(Sorted::Refused),
            Err(error) => Err(error.to_string()),
        }
    }

    /// A change: asked for, and noted as it was answered.
    fn change(&mut self, ask: KeyAsk, lasts: Lasts, answer: impl FnOnce(&Self) -> Result<KeyTold, StoreError>) -> Step {
        let at = self.begin(ask.clone(), lasts);
        match self.sorted(answer(self)).map_err(|why| format!("{ask:?}: {why}"))? {
            Sorted::Told(told) => self.told(at, told),
            Sorted::Unknown => {}
            Sorted::Refused => {
                self.world.notes.refuse(at);
                if self.world.habits.drops && self.rng.bool() {
                    self.spaces = Default::default();
                }
            }
        }
        Ok(())
    }

    /// A read: noted if it was answered.
    fn look<T>(
        &mut self,
        what: &str,
        answer: impl FnOnce(&Self) -> Result<T, StoreError>,
        told: impl FnOnce(T) -> Result<Vec<(KeyAsk, KeyTold)>, String>,
    ) -> Step {
        let begin = self.time();
        let Sorted::Told(found) = self.sorted(answer(self)).map_err(|why| format!("{what}: {why}"))? else {
            return Ok(());
        };
        let end = self.time();
        for (ask, told) in told(found)? {
            self.world.notes.note(self.me, (begin, end), Deed::Ask(self.call(ask), Lasts::Durably), told);
        }
        Ok(())
    }

    fn act(&mut self) -> Step {
        let number = self.number();
        let (space, key) = self.key(number);
        let many = self.world.habits.many;
        match self.rng.u8(0..100) {
            0..3 if self.world.habits.drops => return self.drop_space(space),
            3..5 if self.world.habits.expire => return self.expire_due(),
            5..9 if many => return self.transact(),
            9..13 if many => return self.put_many(),
            13..17 if many => return self.remove_many(),
            17..22 if many => return self.get_many(),
            22..24 if many => return self.clear(space),
            24..27 if many => return self.len(),
            27..30 => return self.scan(space),
            30 => {
                self.spaces = Default::default();
                return Ok(());
            }
            _ => {}
        }
        let Some(open) = self.space(space)? else { return Ok(()) };
        let (lasts, item) = (self.lasts(), self.item());
        let (how, value) = (durability(lasts), bytes_of(item.value));
        let said = |done: bool| KeyTold::Said(done);
        match self.rng.u8(0..16) {
            0..4 => self.look(
                "get",
                |_| open.get(key).wait(),
                |found| {
                    let value = found.map(|found| value_of(&found)).transpose()?;
                    Ok(vec![(KeyAsk::Get(vec![number]), KeyTold::Values(vec![value]))])
                },
            ),
            4 => self.look(
                "entry",
                |_| open.entry(key).wait(),
                |found| {
                    let item = found.map(|entry| item_of(&entry)).transpose()?;
                    Ok(vec![(KeyAsk::Entry(number), KeyTold::Entry(item))])
                },
            ),
            5 => self.look("has", |_| open.has(key).wait(), |has| Ok(vec![(KeyAsk::Has(number), said(has))])),
            6..10 => self.change(KeyAsk::Put(vec![(number, item)]), lasts, |_| {
                if item.expires_ms == 0 && lasts == Lasts::Durably {
                    return open.put(key, &value).wait().map(|()| KeyTold::Done);
                }
                open.put_with(key, entry_of(item), how).wait().map(|()| KeyTold::Done)
            }),
            10 => self.change(KeyAsk::Remove(number), lasts, |_| open.remove_with(key, how).wait().map(said)),
            11 => self
                .change(KeyAsk::Add(number, item), lasts, |_| open.add_with(key, entry_of(item), how).wait().map(said)),
            12 => self.change(KeyAsk::Update(number, item.value), lasts, |_| {
                open.update_with(key, value, how).wait().map(said)
            }),
            13 if self.world.habits.expire => {
                let at = if self.rng.u8(0..3) == 0 { 0 } else { self.expiry() };
                let expires = (at != 0).then_some(at);
                self.change(KeyAsk::Expire(number, at), lasts, |_| {
                    open.expire_at_with(key, expires, how).wait().map(said)
                })
            }
            _ => {
                let seen = open.get(key).wait();
                let Sorted::Told(seen) = self.sorted(seen)? else { return Ok(()) };
                let from = if self.rng.u8(0..5) == 0 { None } else { seen };
                let expected = from.as_ref().map(value_of).transpose()?;
                self.change(KeyAsk::Swap(number, expected, item.value), lasts, |_| {
                    open.compare_and_set_with(key, from.as_deref(), value, how).wait().map(said)
                })
            }
        }
    }

    fn get_many(&mut self) -> Step {
        let (space, numbers) = self.together();
        let Some(open) = self.space(space)? else { return Ok(()) };
        let keys: Vec<Key<'_>> = numbers.iter().map(|number| self.key(*number).1.as_key()).collect();
        self.look(
            "get_many",
            |_| open.get_many(&keys).wait(),
            |found| {
                let values = found.iter().map(|found| found.as_ref().map(value_of).transpose());
                Ok(vec![(KeyAsk::Get(numbers.clone()), KeyTold::Values(values.collect::<Result<_, _>>()?))])
            },
        )
    }

    fn put_many(&mut self) -> Step {
        let space = self.rng.usize(0..SPACES.len());
        let Some(open) = self.space(space)? else { return Ok(()) };
        let (lasts, mut written) = (self.lasts(), Vec::new());
        for number in self.keys_of(space) {
            if self.rng.u8(0..3) > 0 {
                written.push((number, Item { value: self.time() as u32, expires_ms: 0 }));
            }
        }
        let entries: Vec<(Key<'_>, Bytes)> =
            written.iter().map(|(number, item)| (self.key(*number).1.as_key(), bytes_of(item.value))).collect();
        self.change(KeyAsk::Put(written), lasts, |_| {
            open.put_many_with(&entries, durability(lasts)).wait().map(|()| KeyTold::Done)
        })
    }

    fn remove_many(&mut self) -> Step {
        let (space, numbers) = self.together();
        let Some(open) = self.space(space)? else { return Ok(()) };
        let lasts = self.lasts();
        let keys: Vec<Key<'_>> = numbers.iter().map(|number| self.key(*number).1.as_key()).collect();
        self.change(KeyAsk::RemoveMany(numbers.clone()), lasts, |_| {
            open.remove_many_with(&keys, durability(lasts)).wait().map(KeyTold::Count)
        })
    }

    fn clear(&mut self, space: usize) -> Step {
        let Some(open) = self.space(space)? else { return Ok(()) };
        let lasts = self.lasts();
        self.change(KeyAsk::Clear(space), lasts, |_| open.clear_with(durability(lasts)).wait().map(|()| KeyTold::Done))
    }

    fn len(&mut self) -> Step {
        let Some(open) = self.space(WORDS)? else { return Ok(()) };
        self.look("len", |_| open.len().wait(), |len| Ok(vec![(KeyAsk::Len(WORDS), KeyTold::Count(len))]))
    }

    /// A scan takes several calls of the store: each key of it is of a moment of its own.
    fn scan(&mut self, space: usize) -> Step {
        let Some(open) = self.space(space)? else { return Ok(()) };
        let numbers = self.keys_of(space);
        let places: Vec<_> = numbers.iter().map(|number| (*number, self.key(*number).1)).collect();
        let (reverse, keys_only) = (self.rng.bool(), self.rng.u8(0..3) == 0);
        let scan = Scan { reverse, keys_only, ..Scan::all() };
        self.look(
            "scan",
            |_| open.scan(&scan).wait(),
            |found| {
                let mut told = Vec::new();
                for (number, key) in places {
                    let entry = found.iter().find(|(each, _)| each == key).map(|(_, entry)| entry);
                    told.push(if keys_only {
                        (KeyAsk::Listed(number), KeyTold::Said(entry.is_some()))
                    } else {
                        (KeyAsk::Entry(number), KeyTold::Entry(entry.map(item_of).transpose()?))
                    });
                }
                if told.len() < found.len() {
                    return Err(format!("a scan shows keys that no process wrote: {found:?}"));
                }
                Ok(told)
            },
        )
    }

    fn drop_space(&mut self, space: usize) -> Step {
        let at = self.begin(KeyAsk::Drop(space), Lasts::Durably);
        match self.kv.remove_namespace(SPACES[space].0) {
            Err(Error::NoNamespace { .. }) => self.told(at, KeyTold::Missing),
            other => match self.face(other).map_err(|why| format!("removing a namespace: {why}"))? {
                Sorted::Told(()) => {
                    self.told(at, KeyTold::Done);
                    self.spaces[space] = None;
                }
                Sorted::Refused => self.world.notes.refuse(at),
                Sorted::Unknown => {}
            },
        }
        Ok(())
    }

    fn expire_due(&mut self) -> Step {
        let numbers: Vec<Number> = (0..self.world.habits.keys.len()).collect();
        let sweep = |number| self.begin(KeyAsk::Sweep(number), Lasts::UntilPowerLoss);
        let noted: Vec<usize> = numbers.into_iter().map(sweep).collect();
        let limit = self.rng.usize(1..SWEPT_MAX + 1);
        let answer = self.kv.expire_due(limit);
        // What an error leaves open may come later, too.
        if let Sorted::Told(_) = self.face(answer).map_err(|why| format!("expire_due: {why}"))? {
            noted.into_iter().for_each(|at| self.told(at, KeyTold::Done));
        }
        Ok(())
    }

    /// Reads some keys, and writes some that depend on them.
    fn transact(&mut self) -> Step {
        let (from, to) = (self.number(), self.number());
        let mut open = Vec::new();
        for number in [from, to] {
            let Some(space) = self.space(self.key(number).0)? else { return Ok(()) };
            open.push((number, space, self.key(number).1));
        }
        let (lasts, item, moves) = (self.lasts(), self.item(), self.rng.bool());
        let at = self.begin(KeyAsk::Transact(Vec::new(), Vec::new()), lasts);
        let locked: Vec<(&Namespace, Key<'_>)> = open.iter().map(|(_, space, key)| (space, key.as_key())).collect();
        let mut unreadable = None;
        let change = |txn: &mut Txn<'_>| -> Result<(), Error> {
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            for (number, space, key) in &open {
                let seen = txn.get(space, *key)?;
                match seen.as_ref().map(item_of).transpose() {
                    Ok(seen) if !reads.contains(&(*number, seen)) => reads.push((*number, seen)),
                    Ok(_) => {}
                    Err(why) => unreadable = Some(why),
                }
            }
            // What stands under one key goes to another, and that to the first; or both get something new.
            let last = reads.len() - 1;
            let (first, second) = (reads[0].1, reads[last].1);
            let (new, other) = if moves { (second, first) } else { (Some(item), None) };
            for ((number, space, key), item) in open.iter().zip([new, other]) {
                match item {
                    Some(item) => txn.put(space, *key, entry_of(item)),
                    None => txn.remove(space, *key),
                }
                writes.retain(|(other, _)| other != number);
                writes.push((*number, item));
            }
            let ask = KeyAsk::Transact(reads, writes);
            self.world.notes.asks(at, Deed::Ask(self.call(ask), lasts));
            Ok(())
        };
        let answer = self.kv.transact(&locked, durability(lasts), change);
        if let Some(why) = unreadable {
            return Err(why);
        }
        match self.face(answer).map_err(|why| format!("transact: {why}"))? {
            Sorted::Told(()) => self.told(at, KeyTold::Done),
            Sorted::Refused => self.world.notes.refuse(at),
            Sorted::Unknown => {}
        }
        Ok(())
    }
}

/// Whether a store may say so to a process that did nothing wrong.
fn excused(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Io { .. }
            | StoreError::Unknown { .. }
            | StoreError::Stopped { .. }
            | StoreError::Full { .. }
            | StoreError::Contended { .. }
            | StoreError::Closed
    )
}

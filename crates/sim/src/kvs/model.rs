//! What the key-value face is, as a model: namespaces that are there or not, and keys with a value and an expiry.
//!
//! call, with the time that its process went by → the states that it may leave
//!
//! Invariants:
//! 1. A call goes by one reading of its process' clock, and sees an entry if it expires after that, whatever the clocks
//!    of others say.
//! 2. What a namespace that is not there holds is nothing, and nothing is written to it.

use crate::lasting::Parted;
use crate::linear::Model;

/// An entry: a value that no other write has, and when it goes (unix milliseconds; 0: never).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Item {
    /// The value.
    pub value: u32,
    /// When it goes.
    pub expires_ms: u64,
}

impl Item {
    /// What a process sees at a time.
    fn at(self, now_ms: u64) -> Option<Self> {
        (self.expires_ms == 0 || self.expires_ms > now_ms).then_some(self)
    }
}

/// A number for a key, whatever its namespace.
pub type Number = usize;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The values of keys, at one moment.
    Get(Vec<Number>),
    /// The entry of a key.
    Entry(Number),
    /// Whether a key is there.
    Has(Number),
    /// Entries written, whatever was there.
    Put(Vec<(Number, Item)>),
    /// A key removed.
    Remove(Number),
    /// Keys removed, those that have expired too.
    RemoveMany(Vec<Number>),
    /// An entry written if there is none.
    Add(Number, Item),
    /// A value replaced if there is one.
    Update(Number, u32),
    /// A value replaced if it is this one.
    Swap(Number, Option<u32>, u32),
    /// An expiry set.
    Expire(Number, u64),
    /// Keys written, if others are what was read of them.
    Transact(Vec<(Number, Option<Item>)>, Vec<(Number, Option<Item>)>),
    /// A key removed if it has expired.
    Sweep(Number),
    /// All keys of a namespace removed.
    Clear(usize),
    /// How many entries a namespace holds, those that have expired too.
    Len(usize),
    /// A namespace made if it is not there.
    Open(usize),
    /// A namespace removed.
    Drop(usize),
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is done.
    Done,
    /// Yes or no.
    Said(bool),
    /// So many.
    Count(u64),
    /// These values.
    Values(Vec<Option<u32>>),
    /// This entry.
    Entry(Option<Item>),
    /// There is no such namespace.
    Missing,
}

/// What is asked, and when by the clock of who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What.
    pub ask: Ask,
    /// When, in unix milliseconds.
    pub now_ms: u64,
}

/// Namespaces, and keys by number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spaces {
    there: Vec<bool>,
    items: Vec<Option<Item>>,
}

/// The face: which namespace each key is of.
pub struct Keys {
    /// By key.
    pub space_of: Vec<usize>,
    /// Namespaces.
    pub spaces: usize,
    /// Whether namespaces come and go: then what is in one is judged together.
    pub drops: bool,
}

impl Keys {
    fn of_space(&self, space: usize) -> Vec<Number> {
        (0..self.space_of.len()).filter(|key| self.space_of[*key] == space).collect()
    }

    /// The part that says whether a namespace is there.
    fn there(&self, space: usize) -> usize {
        self.space_of.len() + space
    }

    fn asked(&self, ask: &Ask) -> Vec<Number> {
        match ask {
            Ask::Get(keys) | Ask::RemoveMany(keys) => keys.clone(),
            Ask::Entry(key)
            | Ask::Has(key)
            | Ask::Remove(key)
            | Ask::Add(key, _)
            | Ask::Update(key, _)
            | Ask::Swap(key, ..)
            | Ask::Expire(key, _)
            | Ask::Sweep(key) => vec![*key],
            Ask::Put(entries) => entries.iter().map(|(key, _)| *key).collect(),
            Ask::Transact(reads, writes) => reads.iter().chain(writes).map(|(key, _)| *key).collect(),
            Ask::Clear(space) | Ask::Len(space) => self.of_space(*space),
            Ask::Open(_) | Ask::Drop(_) => Vec::new(),
        }
    }
}

impl Model for Keys {
    type State = Spaces;
    type Call = Call;
    type Answer = Told;

    fn start(&self) -> Spaces {
        // Where none is removed, all are made before anything is written: see `Parted::touched`.
        Spaces { there: vec![!self.drops; self.spaces], items: vec![None; self.space_of.len()] }
    }

    fn step(&self, state: &Spaces, call: &Call, answer: Option<&Told>) -> Vec<Spaces> {
        let live = |key: &Number| state.items[*key].and_then(|item| item.at(call.now_ms));
        let mut next = state.clone();
        // What is written to a namespace that is not there is refused.
        let mut set = |key: Number, item: Option<Item>| {
            next.items[key] = item;
            item.is_none() || state.there[self.space_of[key]]
        };
        let (told, allowed) = match &call.ask {
            Ask::Get(keys) => (Told::Values(keys.iter().map(|key| live(key).map(|item| item.value)).collect()), true),
            Ask::Entry(key) => (Told::Entry(live(key)), true),
            Ask::Has(key) => (Told::Said(live(key).is_some()), true),
            Ask::Put(entries) => {
                let mut allowed = true;
                for (key, item) in entries {
                    allowed &= set(*key, Some(*item));
                }
                (Told::Done, allowed)
            }
            Ask::Remove(key) => {
                let found = live(key).is_some();
                if found {
                    set(*key, None);
                }
                (Told::Said(found), true)
            }
            Ask::RemoveMany(keys) => {
                let count = keys.iter().filter(|key| live(key).is_some()).count();
                keys.iter().for_each(|key| _ = set(*key, None));
                (Told::Count(count as u64), true)
            }
            Ask::Add(key, item) => match live(key) {
                Some(_) => (Told::Said(false), true),
                None => (Told::Said(true), set(*key, Some(*item))),
            },
            Ask::Update(key, value) => match live(key) {
                Some(old) => (Told::Said(true), set(*key, Some(Item { value: *value, ..old }))),
                None => (Told::Said(false), true),
            },
            Ask::Swap(key, from, to) => {
                let old = live(key);
                if old.map(|old| old.value) == *from {
                    let expires_ms = old.map_or(0, |old| old.expires_ms);
                    (Told::Said(true), set(*key, Some(Item { value: *to, expires_ms })))
                } else {
                    (Told::Said(false), true)
                }
            }
            Ask::Expire(key, expires_ms) => match live(key) {
                Some(old) => (Told::Said(true), set(*key, Some(Item { expires_ms: *expires_ms, ..old }))),
                None => (Told::Said(false), true),
            },
            Ask::Transact(reads, writes) => {
                let mut allowed = reads.iter().all(|(key, seen)| live(key) == *seen);
                for (key, item) in writes {
                    allowed &= set(*key, *item);
                }
                (Told::Done, allowed)
            }
            Ask::Sweep(key) => {
                if state.items[*key].is_none_or(|item| item.at(call.now_ms).is_some()) {
                    return vec![next];
                }
                // Or it is left for later.
                let left = next.clone();
                next.items[*key] = None;
                return vec![left, next];
            }
            Ask::Clear(space) => {
                self.of_space(*space).into_iter().for_each(|key| _ = set(key, None));
                (Told::Done, true)
            }
            Ask::Len(space) => {
                let count = self.of_space(*space).into_iter().filter(|key| state.items[*key].is_some()).count();
                (Told::Count(count as u64), true)
            }
            Ask::Open(space) => {
                next.there[*space] = true;
                (Told::Done, true)
            }
            Ask::Drop(space) => {
                if answer == Some(&Told::Missing) {
                    return if state.there[*space] { Vec::new() } else { vec![next] };
                }
                self.of_space(*space).into_iter().for_each(|key| _ = set(key, None));
                next.there[*space] = false;
                (Told::Done, state.there[*space])
            }
        };
        if allowed && answer.is_none_or(|answer| *answer == told) { vec![next] } else { Vec::new() }
    }
}

impl Parted for Keys {
    fn shown(&self, call: &Call, _: &Told) -> Vec<usize> {
        match &call.ask {
            // What is written whatever was there shows nothing of it.
            Ask::Put(_) | Ask::Clear(_) | Ask::Sweep(_) | Ask::Open(_) | Ask::Drop(_) => Vec::new(),
            Ask::Transact(reads, _) => reads.iter().map(|(key, _)| *key).collect(),
            ask => self.asked(ask),
        }
    }

    fn same(&self, part: usize, one: &Spaces, other: &Spaces) -> bool {
        match part.checked_sub(self.space_of.len()) {
            None => one.items[part] == other.items[part],
            Some(space) => one.there[space] == other.there[space],
        }
    }

    fn touched(&self, call: &Call) -> Vec<usize> {
        let mut touched = self.asked(&call.ask);
        if self.drops {
            let mut spaces: Vec<usize> = touched.iter().map(|key| self.there(self.space_of[*key])).collect();
            if let Ask::Open(space) | Ask::Drop(space) = call.ask {
                spaces.push(self.there(space));
            }
            touched.extend(spaces);
        } else if touched.is_empty() {
            // It is there from the beginning, as far as anybody can tell.
            touched.extend(match call.ask {
                Ask::Open(space) | Ask::Drop(space) => Some(self.there(space)),
                _ => None,
            });
        }
        touched
    }
}

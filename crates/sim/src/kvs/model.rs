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
pub enum KeyAsk {
    /// The values of keys, at one moment.
    Get(Vec<Number>),
    /// The entry of a key.
    Entry(Number),
    /// Whether a key is there.
    Has(Number),
    /// Whether a key is listed; one that has expired may be, if others make and remove entries that expire meanwhile.
    Listed(Number),
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

impl KeyAsk {
    /// The expiry that it gives a key (unix milliseconds), if it gives it one.
    pub(super) fn expiry_of(&self, key: Number) -> Option<u64> {
        let items: &[(Number, Item)] = match self {
            Self::Put(entries) => entries,
            Self::Add(number, item) => &[(*number, *item)],
            Self::Expire(number, expires_ms) => return (*number == key && *expires_ms != 0).then_some(*expires_ms),
            Self::Transact(_, writes) => {
                let (_, item) = writes.iter().find(|(number, _)| *number == key)?;
                return item.map(|item| item.expires_ms).filter(|expires_ms| *expires_ms != 0);
            }
            _ => return None,
        };
        let (_, item) = items.iter().find(|(number, _)| *number == key)?;
        (item.expires_ms != 0).then_some(item.expires_ms)
    }
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyTold {
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
pub struct KeyCall {
    /// What.
    pub ask: KeyAsk,
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

    fn asked(&self, ask: &KeyAsk) -> Vec<Number> {
        match ask {
            KeyAsk::Get(keys) | KeyAsk::RemoveMany(keys) => keys.clone(),
            KeyAsk::Entry(key)
            | KeyAsk::Has(key)
            | KeyAsk::Listed(key)
            | KeyAsk::Remove(key)
            | KeyAsk::Add(key, _)
            | KeyAsk::Update(key, _)
            | KeyAsk::Swap(key, ..)
            | KeyAsk::Expire(key, _)
            | KeyAsk::Sweep(key) => vec![*key],
            KeyAsk::Put(entries) => entries.iter().map(|(key, _)| *key).collect(),
            KeyAsk::Transact(reads, writes) => reads.iter().chain(writes).map(|(key, _)| *key).collect(),
            KeyAsk::Clear(space) | KeyAsk::Len(space) => self.of_space(*space),
            KeyAsk::Open(_) | KeyAsk::Drop(_) => Vec::new(),
        }
    }
}

impl Model for Keys {
    type State = Spaces;
    type Call = KeyCall;
    type Answer = KeyTold;

    fn start(&self) -> Spaces {
        // Where none is removed, all are made before anything is written: see `Parted::touched`.
        Spaces { there: vec![!self.drops; self.spaces], items: vec![None; self.space_of.len()] }
    }

    fn step(&self, state: &Spaces, call: &KeyCall, answer: Option<&KeyTold>) -> Vec<Spaces> {
        let live = |key: &Number| state.items[*key].and_then(|item| item.at(call.now_ms));
        let mut next = state.clone();
        // What is written to a namespace that is not there is refused.
        let mut set = |key: Number, item: Option<Item>| {
            next.items[key] = item;
            item.is_none() || state.there[self.space_of[key]]
        };
        let (told, allowed) = match &call.ask {
            KeyAsk::Get(keys) => {
                (KeyTold::Values(keys.iter().map(|key| live(key).map(|item| item.value)).collect()), true)
            }
            KeyAsk::Entry(key) => (KeyTold::Entry(live(key)), true),
            KeyAsk::Has(key) => (KeyTold::Said(live(key).is_some()), true),
            KeyAsk::Listed(key) => {
                let listed = live(key).is_some() || state.items[*key].is_some() && answer == Some(&KeyTold::Said(true));
                (KeyTold::Said(listed), true)
            }
            KeyAsk::Put(entries) => {
                let mut allowed = true;
                for (key, item) in entries {
                    allowed &= set(*key, Some(*item));
                }
                (KeyTold::Done, allowed)
            }
            KeyAsk::Remove(key) => {
                let found = live(key).is_some();
                if found {
                    set(*key, None);
                }
                (KeyTold::Said(found), true)
            }
            KeyAsk::RemoveMany(keys) => {
                let mut count = keys.iter().filter(|key| live(key).is_some()).count() as u64;
                // One that was put meanwhile, past its expiry already, may count as what it replaced.
                let there = keys.iter().filter(|key| state.items[**key].is_some()).count() as u64;
                if let Some(KeyTold::Count(told)) = answer {
                    count = (*told).clamp(count, there);
                }
                keys.iter().for_each(|key| _ = set(*key, None));
                (KeyTold::Count(count), true)
            }
            KeyAsk::Add(key, item) => match live(key) {
                Some(_) => (KeyTold::Said(false), true),
                None => (KeyTold::Said(true), set(*key, Some(*item))),
            },
            KeyAsk::Update(key, value) => match live(key) {
                Some(old) => (KeyTold::Said(true), set(*key, Some(Item { value: *value, ..old }))),
                None => (KeyTold::Said(false), true),
            },
            KeyAsk::Swap(key, from, to) => {
                let old = live(key);
                if old.map(|old| old.value) == *from {
                    let expires_ms = old.map_or(0, |old| old.expires_ms);
                    (KeyTold::Said(true), set(*key, Some(Item { value: *to, expires_ms })))
                } else {
                    (KeyTold::Said(false), true)
                }
            }
            KeyAsk::Expire(key, expires_ms) => match live(key) {
                Some(old) => (KeyTold::Said(true), set(*key, Some(Item { expires_ms: *expires_ms, ..old }))),
                None => (KeyTold::Said(false), true),
            },
            KeyAsk::Transact(reads, writes) => {
                let mut allowed = reads.iter().all(|(key, seen)| live(key) == *seen);
                for (key, item) in writes {
                    allowed &= set(*key, *item);
                }
                (KeyTold::Done, allowed)
            }
            KeyAsk::Sweep(key) => {
                if state.items[*key].is_none_or(|item| item.at(call.now_ms).is_some()) {
                    return vec![next];
                }
                // Or it is left for later.
                let left = next.clone();
                next.items[*key] = None;
                return vec![left, next];
            }
            KeyAsk::Clear(space) => {
                self.of_space(*space).into_iter().for_each(|key| _ = set(key, None));
                (KeyTold::Done, true)
            }
            KeyAsk::Len(space) => {
                let count = self.of_space(*space).into_iter().filter(|key| state.items[*key].is_some()).count();
                (KeyTold::Count(count as u64), true)
            }
            KeyAsk::Open(space) => {
                next.there[*space] = true;
                (KeyTold::Done, true)
            }
            KeyAsk::Drop(space) => {
                if answer == Some(&KeyTold::Missing) {
                    return if state.there[*space] { Vec::new() } else { vec![next] };
                }
                self.of_space(*space).into_iter().for_each(|key| _ = set(key, None));
                next.there[*space] = false;
                (KeyTold::Done, state.there[*space])
            }
        };
        if allowed && answer.is_none_or(|answer| *answer == told) { vec![next] } else { Vec::new() }
    }

    fn only_reads(&self, call: &KeyCall, answer: &KeyTold) -> bool {
        use KeyAsk as A;
        matches!(call.ask, A::Get(_) | A::Entry(_) | A::Has(_) | A::Listed(_) | A::Len(_))
            || matches!(answer, KeyTold::Said(false) | KeyTold::Missing)
    }

    fn may_do_nothing(&self, call: &KeyCall, _: &KeyTold) -> bool {
        matches!(call.ask, KeyAsk::Sweep(_))
    }
}

impl Parted for Keys {
    fn shown(&self, call: &KeyCall, _: &KeyTold) -> Vec<usize> {
        match &call.ask {
            // What is written whatever was there shows nothing of it.
            KeyAsk::Put(_) | KeyAsk::Clear(_) | KeyAsk::Sweep(_) | KeyAsk::Open(_) | KeyAsk::Drop(_) => Vec::new(),
            KeyAsk::Transact(reads, _) => reads.iter().map(|(key, _)| *key).collect(),
            ask => self.asked(ask),
        }
    }

    fn same(&self, part: usize, one: &Spaces, other: &Spaces) -> bool {
        match part.checked_sub(self.space_of.len()) {
            None => one.items[part] == other.items[part],
            Some(space) => one.there[space] == other.there[space],
        }
    }

    fn touched(&self, call: &KeyCall) -> Vec<usize> {
        let mut touched = self.asked(&call.ask);
        if self.drops {
            let mut spaces: Vec<usize> = touched.iter().map(|key| self.there(self.space_of[*key])).collect();
            if let KeyAsk::Open(space) | KeyAsk::Drop(space) = call.ask {
                spaces.push(self.there(space));
            }
            touched.extend(spaces);
        } else if touched.is_empty() {
            // It is there from the beginning, as far as any process can tell.
            touched.extend(match call.ask {
                KeyAsk::Open(space) | KeyAsk::Drop(space) => Some(self.there(space)),
                _ => None,
            });
        }
        touched
    }
}

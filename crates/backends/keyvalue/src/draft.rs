//! A transaction in the making: its own changes over the applied ones over the ordered store. A reader is a draft
//! without changes.
//!
//! get, scan → own changes, else overlay, else store → what was seen says which sync the answer waits for
//!
//! Invariants:
//! 1. Nothing outside the draft changes before it is published; a draft that is dropped takes its files away.
//! 2. The thread that makes one holds the locks of the objects that it looks at, so what it saw holds until it is
//!    published.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use esker_store::{Collection, ObjectId, ObjectMap, Result};
use parking_lot::RwLock;

use crate::files::Files;
use crate::keys::{self, Tag};
use crate::ordered::Ordered;
use crate::overlay::Overlay;
use crate::records::Head;

/// What all calls of a store share.
pub struct State {
    /// What is durable.
    pub store: Box<dyn Ordered>,
    /// What is applied and not yet durable.
    pub overlay: RwLock<Overlay>,
    /// Files for large data (newstore).
    pub files: Option<Files>,
    /// Length of a strip in bytes; `u64::MAX` keeps an object's bytes in one value.
    pub strip_bytes: u64,
    /// Writes of at least so many bytes go to a file, where there are files.
    pub large_bytes: usize,
    /// Last number given to a space or file.
    pub numbers: AtomicU64,
}

impl State {
    /// A number that was never given before.
    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// A key's new value, for the overlay and the store.
#[derive(Clone, Debug)]
pub struct Changed {
    /// The key.
    pub key: Bytes,
    /// The new value; `None` removes it.
    pub value: Option<Bytes>,
    /// It is the head of an object whose spaces stay the same.
    pub same_spaces: bool,
}

/// What a draft leaves when it is done.
#[derive(Debug, Default)]
pub struct Outcome {
    /// New values.
    pub changed: Vec<Changed>,
    /// Ranges of which every key is removed by `changed`, before any key in them is set.
    pub ranges: Vec<(Bytes, Bytes)>,
    /// Files that the changes name, and that are durable save for their folder.
    pub new_files: Vec<u64>,
    /// Files that nothing names once the changes are durable.
    pub unused_files: Vec<u64>,
    /// Some space died.
    pub deaths: bool,
}

#[derive(Clone, Copy, Debug)]
struct Headed {
    before: Option<Head>,
    now: Option<Head>,
}

/// Told keys and values of a scan; false ends it.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<bool> + 'a;

/// See the module's documentation.
pub struct Draft<'a> {
    /// What all share.
    pub state: &'a State,
    puts: BTreeMap<Bytes, Option<Bytes>>,
    heads: ObjectMap<Headed>,
    seen: Cell<u64>,
    same_spaces: Vec<Bytes>,
    /// What is gathered for [`Outcome`].
    pub outcome: Outcome,
}

impl<'a> Draft<'a> {
    /// An empty draft.
    pub fn new(state: &'a State) -> Self {
        Self {
            state,
            puts: BTreeMap::new(),
            heads: ObjectMap::default(),
            seen: Cell::new(0),
            same_spaces: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    /// The last transaction that asked for durable among those that showed in what was looked at; 0 for none.
    pub fn seen(&self) -> u64 {
        self.seen.get()
    }

    fn saw(&self, position: u64) {
        self.seen.set(self.seen.get().max(position));
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.look(key, false)
    }

    fn look(&self, key: &[u8], only_spaces: bool) -> Result<Option<Bytes>> {
        if let Some(own) = self.puts.get(key) {
            return Ok(own.clone());
        }
        if let Some(applied) = self.state.overlay.read().get(key) {
            self.saw(if only_spaces { applied.spaces_wait_for } else { applied.waits_for });
            return Ok(applied.value.clone());
        }
        self.state.store.get(key)
    }

    /// Sets a key, or removes it.
    pub fn put(&mut self, key: Bytes, value: Option<Bytes>) {
        self.puts.insert(key, value);
    }

    /// Calls `visit` for the entries with `start <= key < end`, in either direction, until it returns false.
    /// Heads must have been flushed if the range holds any.
    pub fn scan(&self, start: &[u8], end: &[u8], reverse: bool, visit: &mut Visit<'_>) -> Result<()> {
        if start >= end {
            return Ok(());
        }
        // Overlay and cursor are taken at one moment; see the overlay's first invariant. The cursor reads nothing
        // before its first step.
        let (mut upper, mut lower) = {
            let overlay = self.state.overlay.read();
            let mut upper: Vec<(Bytes, Option<Bytes>)> = Vec::new();
            for (key, applied) in overlay.range(start, end) {
                self.saw(if key[0] == b'n' { applied.spaces_wait_for } else { applied.waits_for });
                upper.push((key.clone(), applied.value.clone()));
            }
            (upper, self.state.store.cursor(start, end, reverse)?)
        };
        let mut own = self.puts.range::<[u8], _>((Bound::Included(start), Bound::Excluded(end))).peekable();
        if own.peek().is_some() {
            let mut merged: BTreeMap<Bytes, Option<Bytes>> = upper.into_iter().collect();
            merged.extend(own.map(|(key, value)| (key.clone(), value.clone())));
            upper = merged.into_iter().collect();
        }
        if reverse {
            upper.reverse();
        }
        let mut upper = upper.into_iter().peekable();
        while let Some((key, value)) = lower.next()? {
            let before = |upper: &[u8]| if reverse { upper > key } else { upper < key };
            while let Some((own, value)) = upper.next_if(|(own, _)| before(own)) {
                if let Some(value) = value
                    && !visit(&own, &value)?
                {
                    return Ok(());
                }
            }
            let go_on = match upper.next_if(|(own, _)| own == key) {
                Some((own, Some(value))) => visit(&own, &value)?,
                Some((_, None)) => true,
                None => visit(key, value)?,
            };
            if !go_on {
                return Ok(());
            }
        }
        for (key, value) in upper {
            if let Some(value) = value
                && !visit(&key, &value)?
            {
                break;
            }
        }
        Ok(())
    }

    /// The keys of a range, in order.
    pub fn keys(&self, start: &[u8], end: &[u8]) -> Result<Vec<Bytes>> {
        let mut found = Vec::new();
        self.scan(start, end, false, &mut |key, _| {
            found.push(Bytes::copy_from_slice(key));
            Ok(true)
        })?;
        Ok(found)
    }

    /// An object's head. With `only_spaces` the caller looks at nothing but the numbers of its spaces.
    pub fn head(&self, object: &ObjectId, only_spaces: bool) -> Result<Option<Head>> {
        if let Some(headed) = self.heads.get(object) {
            return Ok(headed.now);
        }
        let key = keys::name(object);
        self.look(&key, only_spaces)?.map(|value| Head::decode(&key, &value)).transpose()
    }

    /// Sets an object's head, or removes it.
    pub fn set_head(&mut self, object: &ObjectId, now: Option<Head>) -> Result<()> {
        if let Some(headed) = self.heads.get_mut(object) {
            headed.now = now;
            return Ok(());
        }
        let before = self.head(object, false)?;
        self.heads.insert(object.clone(), Headed { before, now });
        Ok(())
    }

    /// Puts changed heads among the other changes.
    pub fn flush_heads(&mut self) {
        // Anew: what was flushed before may have changed since.
        self.same_spaces.clear();
        for (object, headed) in &self.heads {
            if headed.before != headed.now {
                let key = keys::name(object);
                if let (Some(before), Some(now)) = (headed.before, headed.now)
                    && before.same_spaces(&now)
                {
                    self.same_spaces.push(key.clone());
                }
                self.puts.insert(key, headed.now.as_ref().map(Head::encode));
            } else {
                // It may have been flushed with another value before.
                self.puts.remove(&keys::name(object));
            }
        }
    }

    /// Whether a collection exists.
    pub fn has_collection(&self, collection: &Collection) -> Result<bool> {
        Ok(self.get(&keys::collection(collection))?.is_some())
    }

    /// Leaves a space to the sweeper.
    pub fn bury(&mut self, tag: Tag, number: u64) {
        self.put(keys::dead(tag, number), Some(Bytes::new()));
        self.outcome.deaths = true;
    }

    /// Ends the draft.
    pub fn finish(mut self) -> Outcome {
        self.flush_heads();
        let mut outcome = std::mem::take(&mut self.outcome);
        let same = std::mem::take(&mut self.same_spaces);
        let puts = std::mem::take(&mut self.puts);
        outcome.changed = puts
            .into_iter()
            .map(|(key, value)| {
                let same_spaces = value.is_some() && key[0] == b'n' && same.contains(&key);
                Changed { key, value, same_spaces }
            })
            .collect();
        outcome
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if let Some(files) = &self.state.files {
            self.outcome.new_files.iter().for_each(|file| files.remove(*file));
        }
    }
}

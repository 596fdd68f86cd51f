//! Histories: the state after every transaction, and reading a store to compare it with one of them.
//!
//! Invariant: `states[n]` is the state after the first n transactions; a recovered store must equal one of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use esker_store::{
    Collection, CommitCursor, CommitEntry, CommitSeq, Completion, Condition, Error, ObjectId, ObjectStore, OmapScan,
    SlotScan,
};

use crate::generate;
use crate::model::{Entry, ModelObject, ModelState};

/// All states so far and what is known of each transaction.
#[derive(Clone, Default)]
pub struct History {
    /// `states[n]`: after n transactions.
    pub states: Vec<Arc<ModelState>>,
    /// Sequence numbers that the engine gave, one for each transaction.
    pub seqs: Vec<CommitSeq>,
    /// Whether each transaction asked only for applied.
    pub applied_only: Vec<bool>,
    /// Slot and omap entries ever written: places in commit order.
    pub order: u64,
}

impl History {
    /// The history of an empty store.
    pub fn new() -> Self {
        Self { states: vec![Arc::default()], ..Self::default() }
    }

    /// The newest state.
    pub fn now(&self) -> &Arc<ModelState> {
        self.states.last().expect("a history has at least the empty state")
    }

    /// Number of transactions.
    pub fn len(&self) -> usize {
        self.seqs.len()
    }

    /// Whether nothing has happened.
    pub fn is_empty(&self) -> bool {
        self.seqs.is_empty()
    }

    /// Adds a transaction that the engine has applied, and the state after it.
    pub fn push(&mut self, state: ModelState, seq: CommitSeq, applied_only: bool) {
        self.states.push(Arc::new(state));
        self.seqs.push(seq);
        self.applied_only.push(applied_only);
    }

    /// Forgets everything after the first `len` transactions.
    pub fn truncate(&mut self, len: usize) {
        self.states.truncate(len + 1);
        self.seqs.truncate(len);
        self.applied_only.truncate(len);
    }

    /// Number of transactions up to this sequence number.
    pub fn up_to(&self, seq: u64) -> usize {
        self.seqs.iter().take_while(|known| known.0 <= seq).count()
    }

    /// Number of transactions from which the first `len` cannot be told: those after them that changed nothing count.
    pub fn up_to_change(&self, len: usize) -> usize {
        let same = self.states[len + 1..].iter().take_while(|next| **next == self.states[len]);
        len + same.count()
    }

    /// Which transactions the value of a probe depends on: up to the last one that changed it, if that asked for
    /// durability.
    pub fn depends_on(&self, probe: &Probe) -> usize {
        let now = probe.expected(self.now());
        (1..self.states.len())
            .rev()
            .find(|n| probe.expected(&self.states[n - 1]) != now)
            .filter(|n| !self.applied_only[n - 1])
            .unwrap_or(0)
    }
}

/// Something in the store, for reading it at random.
#[derive(Clone, Debug)]
pub enum Probe {
    /// A slot.
    Slot(ObjectId, u64),
    /// An omap key.
    Omap(ObjectId, Bytes),
    /// An xattr.
    Xattr(ObjectId, Bytes),
    /// Whether the object exists, and its size.
    Size(ObjectId),
    /// A range of bytes.
    Bytes(ObjectId, u64, u64),
    /// All omap keys from this one.
    Keys(ObjectId, Bytes),
}

impl Probe {
    /// A random one.
    pub fn random(rng: &mut fastrand::Rng, state: &ModelState) -> Self {
        let id = generate::object(rng, state);
        match rng.u8(0..9) {
            0..2 => Self::Slot(id, generate::slot(rng)),
            2..4 => Self::Omap(id, generate::key(rng)),
            4..6 => Self::Xattr(id, generate::name(rng)),
            6 => Self::Size(id),
            7 => Self::Bytes(id, rng.u64(0..14_000), rng.u64(0..9_000)),
            _ => Self::Keys(id, generate::key(rng)),
        }
    }

    /// A random one that [`Probe::false_guard`] can deny.
    pub fn random_for_guard(rng: &mut fastrand::Rng, state: &ModelState) -> Self {
        loop {
            let probe = Self::random(rng, state);
            if !matches!(probe, Self::Bytes(..) | Self::Keys(..)) {
                return probe;
            }
        }
    }

    /// What it is in a state of the model, as bytes.
    pub fn expected(&self, state: &ModelState) -> Option<Bytes> {
        let object = |id: &ObjectId| state.objects.get(id);
        match self {
            Self::Slot(id, index) => object(id)?.slots.get(index).map(|entry| entry.value.clone()),
            Self::Omap(id, key) => object(id)?.omap.get(key).map(|entry| entry.value.clone()),
            Self::Xattr(id, name) => object(id)?.xattrs.get(name).cloned(),
            Self::Size(id) => Some(size_as_bytes(object(id)?.bytes.len() as u64)),
            Self::Bytes(id, offset, len) => {
                let bytes = object(id).map_or(&[][..], |object| &object.bytes);
                let end = bytes.len().min((offset + len) as usize);
                Some(Bytes::copy_from_slice(bytes.get(*offset as usize..end).unwrap_or_default()))
            }
            Self::Keys(id, start) => {
                let omap = object(id).into_iter().flat_map(|object| &object.omap);
                let from = omap.filter(|(key, _)| *key >= start);
                Some(joined(from.map(|(key, entry)| (key.clone(), entry.value.clone()))))
            }
        }
    }

    /// Reads it.
    pub fn read(&self, store: &dyn ObjectStore) -> Completion<Option<Bytes>> {
        match self {
            Self::Slot(id, index) => store.slot_get(id, *index),
            Self::Omap(id, key) => store.omap_get(id, key),
            Self::Xattr(id, name) => store.xattr(id, name),
            Self::Size(id) => store.stat(id).map(|stat| stat.map(|stat| size_as_bytes(stat.size))),
            Self::Bytes(id, offset, len) => store.read(id, *offset..offset + len).map(Some),
            Self::Keys(id, start) => {
                let scan = OmapScan { start: Some(start.clone()), limit: usize::MAX, ..OmapScan::default() };
                store.omap_scan(id, &scan).map(|found| Some(joined(found)))
            }
        }
    }

    /// A guard that does not hold in `state`, if the probe has one.
    pub fn false_guard(&self, state: &ModelState) -> Option<(ObjectId, Condition)> {
        let there = self.expected(state).is_some();
        let wrong = Bytes::from_static(b"never stored by a transaction of the model");
        let (id, condition) = match self {
            Self::Slot(id, index) if there => (id, Condition::SlotAbsent { index: *index }),
            Self::Slot(id, index) => (id, Condition::SlotEquals { index: *index, value: wrong }),
            Self::Omap(id, key) if there => (id, Condition::OmapAbsent { key: key.clone() }),
            Self::Omap(id, key) => (id, Condition::OmapEquals { key: key.clone(), value: wrong }),
            Self::Xattr(id, name) if there => (id, Condition::XattrAbsent { name: name.clone() }),
            Self::Xattr(id, name) => (id, Condition::XattrEquals { name: name.clone(), value: wrong }),
            Self::Size(id) if there => (id, Condition::Absent),
            Self::Size(id) => (id, Condition::Exists),
            Self::Bytes(..) | Self::Keys(..) => return None,
        };
        Some((id.clone(), condition))
    }
}

fn size_as_bytes(size: u64) -> Bytes {
    Bytes::copy_from_slice(&size.to_le_bytes())
}

fn joined(entries: impl IntoIterator<Item = (Bytes, Bytes)>) -> Bytes {
    let mut all = Vec::new();
    for (key, value) in entries {
        for part in [key, value] {
            all.extend_from_slice(&(part.len() as u32).to_le_bytes());
            all.extend_from_slice(&part);
        }
    }
    all.into()
}

/// Everything that the store holds, as applied: barriers are not waited for.
///
/// # Errors
/// The store's, with what was being read; or what two ways of reading disagree about.
pub fn whole_state(store: &dyn ObjectStore) -> Result<ModelState, Unread> {
    let mut state = ModelState::default();
    for collection in applied("listing collections", store.collections())? {
        for name in applied("listing objects", store.list(&collection, None, usize::MAX))? {
            let id = ObjectId::new(collection.clone(), name);
            let object = whole_object(store, &id)?;
            state.objects.insert(id, Arc::new(object));
        }
        state.collections.insert(collection);
    }
    Ok(state)
}

/// Why a store could not be read.
#[derive(Debug)]
pub struct Unread {
    /// What was read, and what happened.
    pub why: String,
    /// The store's error; none if it contradicted itself.
    pub error: Option<Error>,
}

impl std::fmt::Display for Unread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

fn applied<T>(what: impl std::fmt::Display, completion: Completion<T>) -> Result<T, Unread> {
    let (result, _) = completion.into_parts();
    result.map_err(|error| Unread { why: format!("{what}: {error}"), error: Some(error) })
}

fn whole_object(store: &dyn ObjectStore, id: &ObjectId) -> Result<ModelObject, Unread> {
    let nonsense = |why: String| Unread { why: format!("{id}: {why}"), error: None };
    let Some(stat) = applied(format_args!("stat of {id}"), store.stat(id))? else {
        return Err(nonsense("it is listed, but does not exist".into()));
    };
    let scan = OmapScan { limit: usize::MAX, ..OmapScan::default() };
    let slots = SlotScan { range: 0..u64::MAX, reverse: false, limit: usize::MAX, keys_only: false };
    let entry = |value| Entry { value, order: 0, copied: false };
    let bytes = applied(format_args!("reading {id}"), store.read(id, 0..u64::MAX))?.to_vec();
    let mut filled = vec![false; bytes.len()];
    for run in applied(format_args!("extents of {id}"), store.extents(id, 0..u64::MAX))? {
        let Some(part) = filled.get_mut(run.offset as usize..(run.offset + run.len) as usize) else {
            return Err(nonsense(format!("{run:?} lies past the end, {}", bytes.len())));
        };
        part.fill(true);
    }
    let xattrs: BTreeMap<_, _> = applied(format_args!("xattrs of {id}"), store.xattrs(id))?.into_iter().collect();
    let omap = applied(format_args!("omap of {id}"), store.omap_scan(id, &scan))?;
    let omap: BTreeMap<_, _> = omap.into_iter().map(|(key, value)| (key, entry(value))).collect();
    let slots = applied(format_args!("slots of {id}"), store.slot_scan(id, &slots))?;
    let slots: BTreeMap<_, _> = slots.into_iter().map(|(index, value)| (index, entry(value))).collect();
    let told = (stat.size, stat.omap_keys, stat.slots, stat.xattrs);
    let counted = (bytes.len() as u64, omap.len() as u64, slots.len() as u64, xattrs.len() as u64);
    if told != counted {
        return Err(nonsense(format!("stat says {told:?}, reading finds {counted:?}")));
    }
    Ok(ModelObject { bytes, filled, xattrs, omap, slots })
}

/// The entries of a collection in commit order, `limit` at a time.
///
/// # Errors
/// The store's, with what was being read.
pub fn commit_order(
    store: &dyn ObjectStore,
    collection: &Collection,
    limit: usize,
) -> Result<Vec<CommitEntry>, Unread> {
    let mut after = CommitCursor::default();
    let mut found = Vec::new();
    loop {
        let page = store.commit_scan(collection, b"", after, limit);
        let (entries, next) = applied(format_args!("commit order of {collection}"), page)?;
        found.extend(entries);
        match next {
            Some(next) if next > after => after = next,
            Some(_) => {
                return Err(Unread { why: format!("the cursor stands still at {after:?}"), error: None });
            }
            None => return Ok(found),
        }
    }
}

//! What a store may be: a plain model of its objects, and the state after every transaction.
//!
//! Invariant: `states[n]` is the state after the first n transactions; a recovered store must equal one of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use esker_store::{
    Change, Collection, CommitSeq, Condition, Durability, ObjectId, ObjectStore, OmapScan, Op, SlotScan, Transaction,
};

/// Objects of the model, spread over two collections.
pub const OBJECTS: usize = 5;
const KEYS: u64 = 12;

/// One object of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelObject {
    bytes: Vec<u8>,
    xattrs: BTreeMap<Bytes, Bytes>,
    omap: BTreeMap<Bytes, Bytes>,
    slots: BTreeMap<u64, Bytes>,
}

/// A state of the whole store: the objects that exist, by number.
pub type ModelState = BTreeMap<usize, ModelObject>;

/// Name of the model's object `number`.
pub fn object(number: usize) -> ObjectId {
    let collection = Collection::new(if number.is_multiple_of(2) { "even" } else { "odd" });
    ObjectId::new(collection, format!("object{number}"))
}

/// All states so far and what is known of each transaction.
#[derive(Clone, Default)]
pub struct History {
    /// `states[n]`: after n transactions.
    pub states: Vec<Arc<ModelState>>,
    /// Sequence numbers that the engine gave, one for each transaction.
    pub seqs: Vec<CommitSeq>,
    /// Whether each transaction asked only for applied.
    pub applied_only: Vec<bool>,
}

impl History {
    /// The history of an empty store.
    pub fn new() -> Self {
        Self { states: vec![Arc::default()], ..Self::default() }
    }

    /// The newest state.
    pub fn now(&self) -> &ModelState {
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

    /// Adds a transaction that the engine has applied.
    pub fn push(&mut self, txn: &Transaction, seq: CommitSeq) {
        let mut state = self.now().clone();
        for op in &txn.ops {
            if let Op::Object(id, change) = op {
                apply(&mut state, number_of(id), change);
            }
        }
        self.states.push(Arc::new(state));
        self.seqs.push(seq);
        self.applied_only.push(txn.durability == Durability::Applied);
    }

    /// Forgets everything after the first `len` transactions.
    pub fn truncate(&mut self, len: usize) {
        self.states.truncate(len + 1);
        self.seqs.truncate(len);
        self.applied_only.truncate(len);
    }
}

fn number_of(id: &ObjectId) -> usize {
    usize::from(id.name().last().copied().unwrap_or(b'0') - b'0')
}

fn apply(state: &mut ModelState, number: usize, change: &Change) {
    let takes_away = matches!(
        change,
        Change::Remove
            | Change::XattrRemove { .. }
            | Change::OmapRemove { .. }
            | Change::OmapRemoveRange { .. }
            | Change::OmapClear
            | Change::SlotRemove { .. }
            | Change::SlotRemoveRange { .. }
            | Change::Truncate { size: 0 }
    );
    if takes_away && !state.contains_key(&number) {
        return;
    }
    if matches!(change, Change::Remove) {
        state.remove(&number);
        return;
    }
    let object = state.entry(number).or_default();
    match change {
        Change::Write { offset, data } => {
            let end = *offset as usize + data.len();
            if !data.is_empty() {
                object.bytes.resize(object.bytes.len().max(end), 0);
                object.bytes[*offset as usize..end].copy_from_slice(data);
            }
        }
        Change::Zero { offset, len } => {
            let end = (*offset + *len) as usize;
            if *len > 0 {
                object.bytes.resize(object.bytes.len().max(end), 0);
                object.bytes[*offset as usize..end].fill(0);
            }
        }
        Change::Truncate { size } => object.bytes.resize(*size as usize, 0),
        Change::XattrSet { name, value } => {
            object.xattrs.insert(name.clone(), value.clone());
        }
        Change::XattrRemove { name } => {
            object.xattrs.remove(name);
        }
        Change::OmapSet { key, value } => {
            object.omap.insert(key.clone(), value.clone());
        }
        Change::OmapRemove { key } => {
            object.omap.remove(key);
        }
        Change::OmapRemoveRange { start, end } => {
            object.omap.retain(|key, _| key < start || end.as_ref().is_some_and(|end| key >= end));
        }
        Change::OmapClear => object.omap.clear(),
        Change::SlotSet { index, value } => {
            object.slots.insert(*index, value.clone());
        }
        Change::SlotRemove { index } => {
            object.slots.remove(index);
        }
        Change::SlotRemoveRange { start, end } => object.slots.retain(|index, _| index < start || index >= end),
        _ => {}
    }
}

/// A value of the store's, for reading one thing at random.
#[derive(Clone, Debug)]
pub enum Probe {
    /// A slot.
    Slot(usize, u64),
    /// An omap key.
    Omap(usize, Bytes),
    /// An xattr.
    Xattr(usize, Bytes),
}

impl Probe {
    /// A random one.
    pub fn random(rng: &mut fastrand::Rng) -> Self {
        let number = rng.usize(0..OBJECTS);
        match rng.u8(0..3) {
            0 => Self::Slot(number, rng.u64(0..KEYS)),
            1 => Self::Omap(number, key(rng)),
            _ => Self::Xattr(number, key(rng)),
        }
    }

    /// What it is in a state of the model.
    pub fn expected(&self, state: &ModelState) -> Option<Bytes> {
        match self {
            Self::Slot(number, index) => state.get(number)?.slots.get(index).cloned(),
            Self::Omap(number, key) => state.get(number)?.omap.get(key).cloned(),
            Self::Xattr(number, name) => state.get(number)?.xattrs.get(name).cloned(),
        }
    }

    /// Reads it.
    pub fn read(&self, store: &dyn ObjectStore) -> esker_store::Completion<Option<Bytes>> {
        match self {
            Self::Slot(number, index) => store.slot_get(&object(*number), *index),
            Self::Omap(number, key) => store.omap_get(&object(*number), key),
            Self::Xattr(number, name) => store.xattr(&object(*number), name),
        }
    }

    /// A guard that holds exactly if the probe has this value.
    pub fn guard(&self, value: Option<Bytes>) -> (ObjectId, Condition) {
        match (self, value) {
            (Self::Slot(n, index), Some(value)) => (object(*n), Condition::SlotEquals { index: *index, value }),
            (Self::Slot(n, index), None) => (object(*n), Condition::SlotAbsent { index: *index }),
            (Self::Omap(n, key), Some(value)) => (object(*n), Condition::OmapEquals { key: key.clone(), value }),
            (Self::Omap(n, key), None) => (object(*n), Condition::OmapAbsent { key: key.clone() }),
            (Self::Xattr(n, name), Some(value)) => (object(*n), Condition::XattrEquals { name: name.clone(), value }),
            (Self::Xattr(n, name), None) => (object(*n), Condition::XattrAbsent { name: name.clone() }),
        }
    }
}

fn key(rng: &mut fastrand::Rng) -> Bytes {
    Bytes::from(format!("key{:02}", rng.u64(0..KEYS)))
}

fn value(rng: &mut fastrand::Rng, large: bool) -> Bytes {
    let len = match rng.u8(0..20) {
        0..10 if large => rng.usize(4_000..12_000),
        0..=1 => rng.usize(4_000..9_000),
        2..=5 => rng.usize(100..900),
        _ => rng.usize(0..40),
    };
    let fill = rng.u8(..);
    Bytes::from((0..len).map(|i| fill.wrapping_add(i as u8)).collect::<Vec<_>>())
}

/// A random transaction of one to four changes; with `large` values that fill segments quickly.
pub fn transaction(rng: &mut fastrand::Rng, large: bool) -> Transaction {
    let durability = if rng.u8(0..4) == 0 { Durability::Applied } else { Durability::Durable };
    let mut txn = Transaction::with(durability);
    let changes = if rng.bool() { 1 } else { rng.usize(1..=4) };
    for _ in 0..changes {
        let change = match rng.u8(0..100) {
            0..20 => Change::SlotSet { index: rng.u64(0..KEYS), value: value(rng, large) },
            20..40 => Change::OmapSet { key: key(rng), value: value(rng, large) },
            40..50 => Change::XattrSet { name: key(rng), value: value(rng, large) },
            50..65 => Change::Write { offset: rng.u64(0..12_000), data: value(rng, large) },
            65..69 => Change::Zero { offset: rng.u64(0..12_000), len: rng.u64(0..5_000) },
            69..72 => Change::Truncate { size: rng.u64(0..14_000) },
            72..79 => Change::SlotRemove { index: rng.u64(0..KEYS) },
            79..86 => Change::OmapRemove { key: key(rng) },
            86..90 => Change::XattrRemove { name: key(rng) },
            90..92 => {
                let start = key(rng);
                let end = rng.bool().then(|| key(rng)).filter(|end| *end >= start);
                Change::OmapRemoveRange { start, end }
            }
            92..94 => {
                let start = rng.u64(0..KEYS);
                Change::SlotRemoveRange { start, end: rng.u64(start..=KEYS) }
            }
            94..95 => Change::OmapClear,
            95..97 => Change::Touch,
            _ => Change::Remove,
        };
        txn.push(&object(rng.usize(0..OBJECTS)), change);
    }
    txn
}

/// Everything that the store holds.
///
/// # Errors
/// The store's, with what was being read.
pub fn whole_state(store: &dyn ObjectStore) -> Result<ModelState, String> {
    let mut state = ModelState::new();
    for number in 0..OBJECTS {
        let id = object(number);
        let say = |error: esker_store::Error| format!("reading {id}: {error}");
        let Some(stat) = store.stat(&id).into_parts().0.map_err(say)? else { continue };
        let scan = OmapScan { limit: usize::MAX, ..OmapScan::default() };
        let slots = SlotScan { range: 0..u64::MAX, reverse: false, limit: usize::MAX, keys_only: false };
        let found = ModelObject {
            bytes: store.read(&id, 0..u64::MAX).into_parts().0.map_err(say)?.to_vec(),
            xattrs: store.xattrs(&id).into_parts().0.map_err(say)?.into_iter().collect(),
            omap: store.omap_scan(&id, &scan).into_parts().0.map_err(say)?.into_iter().collect(),
            slots: store.slot_scan(&id, &slots).into_parts().0.map_err(say)?.into_iter().collect(),
        };
        let told = (stat.size, stat.omap_keys, stat.slots, stat.xattrs);
        let counted =
            (found.bytes.len() as u64, found.omap.len() as u64, found.slots.len() as u64, found.xattrs.len() as u64);
        if told != counted {
            return Err(format!("{id}: stat says {told:?}, reading finds {counted:?}"));
        }
        state.insert(number, found);
    }
    Ok(state)
}

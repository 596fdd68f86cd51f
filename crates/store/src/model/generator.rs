//! Seeded transactions over all four spaces, some refused on purpose.
//!
//! The generator keeps its own model, so that most of what it makes hits something that exists: ranges that overlap,
//! keys that are overwritten, guards that hold. Where the store under test has gone another way (a device that filled
//! up, a power cut), [`Generator::reset`] tells it; without that it only makes more refused transactions.
//!
//! Invariants:
//! 1. Same seed, same options, same resets: same transactions.
//! 2. A transaction holds at most about [`GeneratorOptions::transaction_bytes_max`] of payload, and once the model
//!    holds [`GeneratorOptions::live_bytes_max`] the next transactions only take away.

use bytes::Bytes;
use fastrand::Rng;

use super::object::Object;
use super::state::Model;
use crate::limits::{OBJECT_BYTES_MAX, OBJECT_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use crate::{Change, Collection, Compare, Compression, Condition, Durability, Guard, ObjectId, Op, Transaction};

/// What is generated, and how much of it.
#[derive(Clone, Debug)]
pub struct GeneratorOptions {
    /// Make clones, clone-ranges and renames. On by default; turn off where the store has no
    /// [`Capability::clone`](crate::Capability::clone).
    pub clone: bool,
    /// Transactions of several objects, and of objects and collections at once. On by default; turn off where the store
    /// has no [`Capability::atomic_across_objects`](crate::Capability::atomic_across_objects): then a transaction is of
    /// one object, and may make its collection first.
    pub several: bool,
    /// About the largest object, in bytes. [`OBJECT_BYTES_MAX`] by default.
    pub object_bytes_max: u64,
    /// Payload bytes that may be alive at once, counted like [`Model::live_bytes`]: above it, only removals. One
    /// transaction may overshoot it by its own size (a clone: by its source's). 1 MiB by default.
    pub live_bytes_max: u64,
    /// Payload bytes in one transaction. 256 KiB by default.
    pub transaction_bytes_max: usize,
    /// Largest single value or write. 100 KiB by default; most are below 300 bytes.
    pub value_bytes_max: usize,
    /// Of 100 transactions, how many ask only for [`Durability::Applied`]. 25 by default.
    pub applied_percent: u8,
    /// Of 100 transactions, how many are meant to be refused (failing guards, missing names, bad input). 12 by default.
    pub refused_percent: u8,
    /// Names of collections to choose from, 1 to 16. 3 by default.
    pub collections: u8,
    /// Names of objects to choose from, spread over the collections, 1 to 255. 8 by default.
    pub objects: u8,
}

impl Default for GeneratorOptions {
    fn default() -> Self {
        Self {
            clone: true,
            several: true,
            object_bytes_max: OBJECT_BYTES_MAX,
            live_bytes_max: 1 << 20,
            transaction_bytes_max: 256 << 10,
            value_bytes_max: 100 << 10,
            applied_percent: 25,
            refused_percent: 12,
            collections: 3,
            objects: 8,
        }
    }
}

/// An endless source of transactions.
#[derive(Clone, Debug)]
pub struct Generator {
    rng: Rng,
    options: GeneratorOptions,
    model: Model,
    /// Payload bytes left for the transaction in the making.
    room: usize,
}

impl Generator {
    /// A generator that expects an empty store.
    pub fn new(seed: u64, options: GeneratorOptions) -> Self {
        Self { rng: Rng::with_seed(seed), options, model: Model::new(), room: 0 }
    }

    /// Tells the generator what the store holds now.
    pub fn reset(&mut self, model: Model) {
        self.model = model;
    }

    /// What the generator believes that the store holds.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The next transaction.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator would wrap every transaction in an Option that is never None"
    )]
    pub fn next(&mut self) -> Transaction {
        let durability = match self.percent(self.options.applied_percent) {
            true => Durability::Applied,
            false if self.percent(10) => Durability::Always,
            false => Durability::Durable,
        };
        let mut txn = Transaction::with(durability).compress(Compression::ALL[self.rng.usize(..3)].0);
        self.room = self.options.transaction_bytes_max;
        if self.model.live_bytes() >= self.options.live_bytes_max {
            self.take_away(&mut txn);
        } else {
            let refused = self.percent(self.options.refused_percent);
            self.guards(&mut txn, false);
            let careless = refused && self.rng.bool();
            self.operations(&mut txn, careless);
            if refused {
                self.spoil(&mut txn);
            }
        }
        if !self.options.several {
            leave_one(&mut txn);
        }
        // A refused transaction leaves the model alone, as it leaves the store.
        let _ = self.model.apply(&txn);
        txn
    }

    fn percent(&mut self, percent: u8) -> bool {
        self.rng.u8(..100) < percent
    }

    fn collection(&mut self) -> Collection {
        let number = self.rng.u8(..self.options.collections.clamp(1, 16));
        Collection::new(format!("collection {number}"))
    }

    fn any_object(&mut self) -> ObjectId {
        let number = self.rng.u8(..self.options.objects.max(1));
        let collection = number % self.options.collections.clamp(1, 16);
        ObjectId::new(Collection::new(format!("collection {collection}")), format!("object {number}"))
    }

    /// An object, more often one that exists.
    fn object(&mut self, model: &Model) -> ObjectId {
        let existing = model.objects.len();
        if existing > 0 && self.percent(70) {
            let at = self.rng.usize(..existing);
            if let Some(id) = model.objects.keys().nth(at) {
                return id.clone();
            }
        }
        self.any_object()
    }

    fn len(&mut self) -> usize {
        let len = match self.rng.u8(..100) {
            0..=4 => 0,
            5..=69 => self.rng.usize(1..40),
            70..=91 => self.rng.usize(40..400),
            92..=96 => self.rng.usize(3000..9000),
            _ => self.rng.usize(10 << 10..=100 << 10),
        };
        len.min(self.options.value_bytes_max).min(self.room)
    }

    fn value(&mut self) -> Bytes {
        let len = self.len();
        self.room -= len;
        // One that compresses, whole or in stretches, now and then.
        if self.percent(20) {
            let mut value = vec![self.rng.u8(..); len];
            let noise = if self.rng.bool() { self.rng.usize(..=len) } else { 0 };
            self.rng.fill(&mut value[..noise]);
            return value.into();
        }
        let mut value = vec![0; len];
        self.rng.fill(&mut value);
        value.into()
    }

    fn xattr_value(&mut self) -> Bytes {
        if self.percent(60) {
            return Bytes::copy_from_slice(&self.rng.u64(..8).to_le_bytes());
        }
        let value = self.value();
        value.slice(..value.len().min(XATTR_VALUE_BYTES_MAX))
    }

    fn xattr_name(&mut self) -> Bytes {
        Bytes::from(format!("attribute {}", self.rng.u8(..5)))
    }

    fn fresh_key(&mut self) -> Bytes {
        match self.rng.u8(..100) {
            0..=2 => Bytes::new(),
            3..=79 => format!("key {}", self.rng.u8(..40)).into(),
            80..=94 => {
                (0..self.rng.usize(1..6)).map(|_| *self.rng.choice(&[0, 1, 0x7f, 0x80, 0xff]).unwrap_or(&0)).collect()
            }
            _ => vec![self.rng.u8(b'a'..b'd'); self.rng.usize(200..1200)].into(),
        }
    }

    fn key(&mut self, object: &Object) -> Bytes {
        if !object.omap.is_empty() && self.rng.bool() {
            let at = self.rng.usize(..object.omap.len());
            if let Some(key) = object.omap.keys().nth(at) {
                return key.clone();
            }
        }
        self.fresh_key()
    }

    fn slot(&mut self, object: &Object) -> u64 {
        if !object.slots.is_empty() && self.percent(40) {
            let at = self.rng.usize(..object.slots.len());
            if let Some(index) = object.slots.keys().nth(at) {
                return *index;
            }
        }
        match self.rng.u8(..100) {
            0..=59 => self.rng.u64(..32),
            60..=89 => self.rng.u64(..6000),
            90..=93 => u64::MAX - self.rng.u64(..3),
            94..=96 => 1 << self.rng.u8(..64),
            _ => self.rng.u64(..),
        }
    }

    /// An offset: inside the object, at its edges, at a round place, or past its end.
    fn offset(&mut self, object: &Object) -> u64 {
        let far = object.size.saturating_mul(2).min(1 << 20) + 400;
        let offset = match self.rng.u8(..100) {
            0..=9 => 0,
            10..=19 => object.size,
            20..=34 => (self.rng.u64(1..=16) << 12).saturating_add_signed(self.rng.i64(-2..=2)),
            35..=98 => self.rng.u64(..far),
            _ => self.rng.u64(1 << 32..1 << 50),
        };
        offset.min(self.options.object_bytes_max / 2)
    }

    fn span(&mut self, object: &Object) -> u64 {
        let span = match self.rng.u8(..100) {
            0..=3 => 0,
            4..=59 => self.rng.u64(1..600),
            60..=89 => self.rng.u64(1..20_000),
            90..=97 => object.size.min(1 << 50),
            _ => self.rng.u64(1..1 << 50),
        };
        span.min(self.options.object_bytes_max / 4)
    }

    fn operations(&mut self, txn: &mut Transaction, careless: bool) {
        let count = if self.percent(5) { self.rng.usize(10..40) } else { self.rng.usize(1..7) };
        let mut tried = self.model.clone();
        for _ in 0..count {
            let op = self.operation(&tried);
            if let Op::Object(id, _) = &op
                && !tried.collections.contains(id.collection())
                && self.percent(85)
            {
                let create = Op::CreateCollection(id.collection().clone());
                // Creating a collection cannot fail in the model.
                let _ = tried.op(&create);
                txn.ops.push(create);
            }
            let outcome = tried.op(&op);
            if outcome.is_ok() || careless {
                txn.ops.push(op);
            }
            if outcome.is_err() && careless {
                return;
            }
        }
    }

    fn operation(&mut self, model: &Model) -> Op {
        match self.rng.u8(..100) {
            0..=2 => return Op::CreateCollection(self.collection()),
            3..=4 => return Op::RemoveCollection(self.collection()),
            _ => {}
        }
        let id = self.object(model);
        let empty = Object::default();
        let object = model.objects.get(&id).map_or(&empty, |object| &**object);
        let change = self.change(model, &id, object);
        Op::Object(id, change)
    }

    fn change(&mut self, model: &Model, id: &ObjectId, object: &Object) -> Change {
        let clone = self.options.clone;
        match self.rng.u8(..100) {
            0..=2 => Change::Touch,
            3..=21 => Change::Write { offset: self.offset(object), data: self.value() },
            22..=27 => Change::Zero { offset: self.offset(object), len: self.span(object) },
            28..=33 => Change::Truncate { size: if self.percent(20) { 0 } else { self.offset(object) } },
            34..=36 => Change::Remove,
            37..=42 => Change::XattrSet { name: self.xattr_name(), value: self.xattr_value() },
            43..=45 => Change::XattrRemove { name: self.xattr_name() },
            46..=58 => Change::OmapSet { key: self.key(object), value: self.value() },
            59..=63 => Change::OmapRemove { key: self.key(object) },
            64..=66 => {
                let (a, b) = (self.key(object), self.key(object));
                let end = if self.percent(15) { None } else { Some(a.clone().max(b.clone())) };
                Change::OmapRemoveRange { start: a.min(b), end }
            }
            67 => Change::OmapClear,
            68..=80 => Change::SlotSet { index: self.slot(object), value: self.value() },
            81..=85 => Change::SlotRemove { index: self.slot(object) },
            86..=88 => {
                let (a, b) = (self.slot(object), self.slot(object));
                Change::SlotRemoveRange { start: a.min(b), end: a.max(b) }
            }
            89..=92 if clone => Change::CloneTo { to: self.object(model) },
            93..=96 if clone => Change::CloneRange {
                to: if self.percent(20) { id.clone() } else { self.object(model) },
                from_offset: self.offset(object),
                len: self.span(object),
                to_offset: self.offset(object),
            },
            97..=98 if clone => Change::Rename { to: self.any_object() },
            _ => Change::Write { offset: self.offset(object), data: self.value() },
        }
    }

    /// Some guards: holding ones, or any.
    fn guards(&mut self, txn: &mut Transaction, any: bool) {
        let count = if any { 1 } else { [0, 0, 0, 1, 1, 2, 3][self.rng.usize(..7)] };
        for _ in 0..count {
            let model = self.model.clone();
            let id = self.object(&model);
            let object = model.objects.get(&id).map(|object| &**object);
            for _ in 0..8 {
                let condition = self.condition(object);
                if any || super::object::holds(&condition, object) {
                    txn.guards.push(Guard { object: id, condition });
                    break;
                }
            }
        }
    }

    fn condition(&mut self, object: Option<&Object>) -> Condition {
        let empty = Object::default();
        let exists = object.is_some();
        let object = object.unwrap_or(&empty);
        let wrong = Bytes::from_static(b"wrong");
        match self.rng.u8(..13) {
            0 | 1 if exists => Condition::Exists,
            0 | 1 => Condition::Absent,
            2 => {
                let name = self.xattr_name();
                let value = object.xattrs.get(&name).cloned().unwrap_or(wrong);
                Condition::XattrEquals { name, value }
            }
            3 => Condition::XattrAbsent { name: self.xattr_name() },
            4 | 5 => {
                let compares =
                    [Compare::Less, Compare::LessOrEqual, Compare::Equal, Compare::GreaterOrEqual, Compare::Greater];
                Condition::XattrCompare {
                    name: self.xattr_name(),
                    compare: compares[self.rng.usize(..compares.len())],
                    value: self.rng.u64(..8),
                    absent_holds: self.rng.bool(),
                }
            }
            6 => Condition::OmapAbsent { key: self.key(object) },
            7 => Condition::OmapPresent { key: self.key(object) },
            8 => {
                let key = self.key(object);
                let value = object.omap.get(&key).cloned().unwrap_or(wrong);
                Condition::OmapEquals { key, value }
            }
            9 => Condition::SlotAbsent { index: self.slot(object) },
            10 => Condition::SlotPresent { index: self.slot(object) },
            11 => {
                let index = self.slot(object);
                let value = object.slots.get(&index).cloned().unwrap_or(wrong);
                Condition::SlotEquals { index, value }
            }
            _ => Condition::SizeEquals { size: object.size },
        }
    }

    /// Makes the transaction one that is (most often) refused.
    fn spoil(&mut self, txn: &mut Transaction) {
        let id = self.any_object();
        let at = self.rng.usize(..=txn.ops.len());
        match self.rng.u8(..20) {
            0..=10 => {
                // Several tries, since a condition made at random may hold.
                for _ in 0..4 {
                    self.guards(txn, true);
                }
            }
            11 => {
                let id = ObjectId::new(id.collection().clone(), vec![b'n'; OBJECT_NAME_BYTES_MAX + 1]);
                txn.ops.insert(at, Op::Object(id, Change::Touch));
            }
            12 => {
                let id = ObjectId::new(id.collection().clone(), Bytes::new());
                txn.ops.insert(at, Op::Object(id, Change::Touch));
            }
            13 => {
                let value = vec![7; XATTR_VALUE_BYTES_MAX + 1].into();
                txn.ops.insert(at, Op::Object(id, Change::XattrSet { name: self.xattr_name(), value }));
            }
            14 => txn.ops.insert(at, Op::Object(id, Change::SlotRemoveRange { start: 9, end: 3 })),
            15..=16 => {
                let id = ObjectId::new("no such collection".into(), "object");
                txn.ops.insert(at, Op::Object(id, Change::Touch));
            }
            17 if self.options.clone => {
                let from = ObjectId::new(id.collection().clone(), "no such object");
                txn.ops.insert(at, Op::Object(from, Change::CloneTo { to: id }));
            }
            _ => {
                txn.ops.push(Op::CreateCollection(id.collection().clone()));
                txn.ops.push(Op::Object(id.clone(), Change::Touch));
                txn.ops.push(Op::RemoveCollection(id.collection().clone()));
            }
        }
    }

    /// Removes what is largest.
    fn take_away(&mut self, txn: &mut Transaction) {
        let largest = self.model.objects.iter().max_by_key(|(_, object)| object.live_bytes());
        let Some((id, object)) = largest else { return };
        let (id, pages, omap) = (id.clone(), object.pages.len() as u64, object.omap.len());
        let change = match self.rng.u8(..4) {
            0 if pages > 4 => Change::Truncate { size: 0 },
            1 if omap > 4 => Change::OmapClear,
            2 if !object.slots.is_empty() => Change::SlotRemoveRange { start: 0, end: u64::MAX },
            _ => Change::Remove,
        };
        txn.push(&id, change);
    }
}

/// Leaves only what is of the first object, or else the first operation of a collection.
fn leave_one(txn: &mut Transaction) {
    let of = |op: &Op| if let Op::Object(id, _) = op { Some(id.clone()) } else { None };
    let Some(id) = txn.ops.iter().find_map(of) else {
        txn.ops.truncate(1);
        if !txn.ops.is_empty() {
            txn.guards.clear();
        } else if let Some(first) = txn.guards.first().map(|guard| guard.object.clone()) {
            txn.guards.retain(|guard| guard.object == first);
        }
        return;
    };
    let mut begun = false;
    txn.ops.retain(|op| match op {
        Op::Object(object, _) => {
            begun |= *object == id;
            *object == id
        }
        Op::CreateCollection(collection) => !begun && collection == id.collection(),
        Op::RemoveCollection(_) => false,
    });
    txn.guards.retain(|guard| guard.object == id);
}

//! Transactions: guards, then operations, applied together or not at all.
//!
//! Guards read the state before the transaction. Operations see the operations before them in the same
//! transaction, in every space. Whatever adds, creates the object; whatever takes away from a missing object
//! does nothing; clone, clone-range and rename of a missing source refuse the whole transaction. An object can
//! only be created in a collection that exists (or that an earlier operation creates).
//!
//! Invariant: [`Transaction::check`] is called by every store where a transaction enters, so that limits hold
//! everywhere.

use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::limits::{
    COLLECTION_BYTES_MAX, GUARDS_BYTES_MAX, OBJECT_BYTES_MAX, OBJECT_NAME_BYTES_MAX, OMAP_KEY_BYTES_MAX,
    TRANSACTION_BYTES_MAX, TRANSACTION_OPS_MAX, VALUE_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX,
};
use crate::{Collection, Error, ObjectId, Result, Waits};

/// When a submit counts as done, and what its readers may see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Acknowledged when it survives power loss (ZDB's safe mode). Readers other than the writer wait for that too.
    #[default]
    Durable,
    /// As durable, also where a store's commit policy acknowledges durable writes when they are applied. For what
    /// others rely on when they change something: names and ids, states that writes are guarded by, locks and fences. A
    /// crash that took it back would take it back under those who have seen it.
    Always,
    /// Acknowledged when applied (ZDB's asynchronous mode): a power cut may take back the last moments. Readers need
    /// not wait.
    Applied,
}

/// A hint: what is written would gain from this. A store that cannot, or that gains nothing by it, stores it as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Store it as it is.
    #[default]
    None,
    /// LZ4: quick both ways.
    Lz4,
    /// Zstandard: smaller, slower to write.
    Zstd,
}

impl Compression {
    /// All of them, with the names that they are written with.
    pub const ALL: [(Self, &'static str); 3] = [(Self::None, "none"), (Self::Lz4, "lz4"), (Self::Zstd, "zstd")];

    /// The name that it is written with.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(one, _)| *one == self).map_or("none", |(_, name)| name)
    }
}

impl std::fmt::Display for Compression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Compression {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(_, known)| *known == name);
        let why = || format!("{name:?}: expected none, lz4 or zstd");
        found.map(|(one, _)| *one).ok_or_else(|| Error::Invalid { what: "compression", why: why() })
    }
}

/// How a number in an xattr is compared: `stored OP value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compare {
    /// stored < value
    Less,
    /// stored <= value
    LessOrEqual,
    /// stored = value
    Equal,
    /// stored >= value
    GreaterOrEqual,
    /// stored > value
    Greater,
}

impl Compare {
    /// Whether `stored OP value` holds.
    pub fn holds(self, stored: u64, value: u64) -> bool {
        match self {
            Self::Less => stored < value,
            Self::LessOrEqual => stored <= value,
            Self::Equal => stored == value,
            Self::GreaterOrEqual => stored >= value,
            Self::Greater => stored > value,
        }
    }
}

/// A condition on the state before the transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The object that is looked at.
    pub object: ObjectId,
    /// What must hold.
    pub condition: Condition,
}

/// What a [`Guard`] asks of its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The object exists.
    Exists,
    /// The object does not exist.
    Absent,
    /// The xattr exists and has this value.
    XattrEquals {
        /// Name of the xattr.
        name: Bytes,
        /// The value that it must have.
        value: Bytes,
    },
    /// The xattr (or the object) does not exist.
    XattrAbsent {
        /// Name of the xattr.
        name: Bytes,
    },
    /// The xattr, 8 bytes little-endian, compares so: `stored OP value`. A value of another length fails the guard.
    XattrCompare {
        /// Name of the xattr.
        name: Bytes,
        /// The comparison.
        compare: Compare,
        /// The right-hand side.
        value: u64,
        /// Whether the guard holds where the xattr (or the object) is absent.
        absent_holds: bool,
    },
    /// The omap key (or the object) does not exist.
    OmapAbsent {
        /// The key.
        key: Bytes,
    },
    /// The omap key exists.
    OmapPresent {
        /// The key.
        key: Bytes,
    },
    /// The omap key exists and has this value.
    OmapEquals {
        /// The key.
        key: Bytes,
        /// The value that it must have.
        value: Bytes,
    },
    /// The slot (or the object) is empty.
    SlotAbsent {
        /// The slot.
        index: u64,
    },
    /// The slot is filled.
    SlotPresent {
        /// The slot.
        index: u64,
    },
    /// The slot is filled with this value.
    SlotEquals {
        /// The slot.
        index: u64,
        /// The value that it must have.
        value: Bytes,
    },
    /// The object exists and has this many bytes.
    SizeEquals {
        /// Bytes.
        size: u64,
    },
}

impl Condition {
    /// The xattr `name` compares so: `stored OP value`; `absent_holds` says whether it may be absent.
    pub fn compare(name: &'static [u8], compare: Compare, value: u64, absent_holds: bool) -> Self {
        Self::XattrCompare { name: Bytes::from_static(name), compare, value, absent_holds }
    }

    /// The omap key holds what was read there.
    pub fn omap_is(key: Bytes, read: Option<Bytes>) -> Self {
        match read {
            Some(value) => Self::OmapEquals { key, value },
            None => Self::OmapAbsent { key },
        }
    }

    /// The slot holds what was read there.
    pub fn slot_is(index: u64, read: Option<Bytes>) -> Self {
        match read {
            Some(value) => Self::SlotEquals { index, value },
            None => Self::SlotAbsent { index },
        }
    }
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Creates a collection; does nothing if it exists.
    CreateCollection(Collection),
    /// Removes an empty collection; does nothing if it is missing, refuses the transaction if it holds objects.
    RemoveCollection(Collection),
    /// A change of one object.
    Object(ObjectId, Change),
}

/// What an [`Op::Object`] does to its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Creates the object if it is missing.
    Touch,
    /// Writes bytes, growing the object as needed; a gap before `offset` becomes a hole. Empty data only creates.
    Write {
        /// Where, in bytes.
        offset: u64,
        /// What.
        data: Bytes,
    },
    /// Makes `len` bytes from `offset` read as zeros and returns their space; grows the object like a write.
    Zero {
        /// Where, in bytes.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// Sets the size: cuts bytes off, or adds a hole. Creates the object only if `size` > 0.
    Truncate {
        /// New size in bytes.
        size: u64,
    },
    /// Removes the object with all four spaces.
    Remove,
    /// Sets an xattr.
    XattrSet {
        /// Name.
        name: Bytes,
        /// Value.
        value: Bytes,
    },
    /// Removes an xattr.
    XattrRemove {
        /// Name.
        name: Bytes,
    },
    /// Sets an omap key.
    OmapSet {
        /// Key.
        key: Bytes,
        /// Value; an empty value is a value.
        value: Bytes,
    },
    /// Removes an omap key.
    OmapRemove {
        /// Key.
        key: Bytes,
    },
    /// Removes the omap keys `start <= key < end`; without `end`, all from `start`.
    OmapRemoveRange {
        /// First key.
        start: Bytes,
        /// First key that stays.
        end: Option<Bytes>,
    },
    /// Removes all omap keys.
    OmapClear,
    /// Fills a slot.
    SlotSet {
        /// The slot.
        index: u64,
        /// Value; an empty value is a value.
        value: Bytes,
    },
    /// Empties a slot.
    SlotRemove {
        /// The slot.
        index: u64,
    },
    /// Empties the slots `start <= index < end`.
    SlotRemoveRange {
        /// First slot.
        start: u64,
        /// First slot that stays; `u64::MAX` means that slot too is emptied.
        end: u64,
    },
    /// Makes `to` a copy of this object, in all four spaces; what `to` held is replaced. `to` may be in another
    /// collection.
    CloneTo {
        /// The copy.
        to: ObjectId,
    },
    /// Copies `len` bytes at `from_offset` of this object over `to` at `to_offset`; holes are copied as holes. What
    /// lies past this object's end reads as zeros.
    CloneRange {
        /// The object written to; created if missing.
        to: ObjectId,
        /// Where to read, in bytes.
        from_offset: u64,
        /// How many bytes.
        len: u64,
        /// Where to write, in bytes.
        to_offset: u64,
    },
    /// Gives this object another name; refuses the transaction if `to` exists.
    Rename {
        /// The new name; may be in another collection.
        to: ObjectId,
    },
}

impl Change {
    /// Sets an xattr to a number, 8 bytes little-endian.
    pub fn number(name: &'static [u8], value: u64) -> Self {
        Self::XattrSet { name: Bytes::from_static(name), value: crate::number::number(value) }
    }
}

/// Guards and operations that are applied together or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Conditions on the state before.
    pub guards: SmallVec<[Guard; 1]>,
    /// What to do, in order.
    pub ops: SmallVec<[Op; 2]>,
    /// When it counts as done.
    pub durability: Durability,
    /// How the bytes, omap values and slots that it writes are best stored.
    pub compression: Compression,
    /// Its writer says that space is given back by it, or because of it: a name is taken away before what it leads to
    /// is removed, a lock is taken that a discard needs. Where a store is full and refuses what adds, such a
    /// transaction goes on, out of what is kept back for that, if its record takes at most
    /// [`GIVING_BACK_BYTES_MAX`](crate::limits::GIVING_BACK_BYTES_MAX). One that only takes away needs no word for it.
    pub gives_back: bool,
    /// A store whose answers can be lost on the way sends it again until it is told what became of it, in a way that
    /// applies it once: [`Error::Unknown`] is answered only after some seconds. Others need not look at it.
    pub once: bool,
    /// What the store does where it would have to wait for room. A store on the other side of a network waits.
    pub when_busy: WhenBusy,
}

/// What a store does with a transaction for which it would have to wait: for the cleaner to make room on the device,
/// for what is written but not yet on it, or for memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenBusy {
    /// It waits, on the caller's thread.
    #[default]
    Wait,
    /// It refuses it with [`Error::Busy`], for callers that must not sleep: they await
    /// [`ObjectStore::room`](crate::ObjectStore::room), count that in these, and submit it again.
    Refuse(Waits),
}

impl Transaction {
    /// An empty transaction: durable, no guards, no operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty transaction with this durability.
    pub fn with(durability: Durability) -> Self {
        Self { durability, ..Self::default() }
    }

    /// The objects that it changes, or may make; some of them more than once.
    pub fn objects_changed(&self) -> Vec<ObjectId> {
        let mut objects = Vec::with_capacity(self.ops.len());
        for op in &self.ops {
            let Op::Object(object, change) = op else { continue };
            objects.push(object.clone());
            if let Change::CloneTo { to } | Change::CloneRange { to, .. } | Change::Rename { to } = change {
                objects.push(to.clone());
            }
        }
        objects
    }

    /// Has it be durable under every commit policy: see [`Durability::Always`].
    pub fn be_relied_on(&mut self) {
        self.durability = Durability::Always;
    }

    /// With this hint for what it writes.
    pub fn compress(self, compression: Compression) -> Self {
        Self { compression, ..self }
    }

    /// With the word that space is given back by it: see [`Transaction::gives_back`].
    pub fn giving_back(self) -> Self {
        Self { gives_back: true, ..self }
    }

    /// With the wish to be applied once though answers are lost: see [`Transaction::once`].
    pub fn once(self) -> Self {
        Self { once: true, ..self }
    }

    /// Adds a guard.
    pub fn guard(mut self, object: &ObjectId, condition: Condition) -> Self {
        self.push_guard(object, condition);
        self
    }

    /// Adds a guard, in place.
    pub fn push_guard(&mut self, object: &ObjectId, condition: Condition) {
        self.guards.push(Guard { object: object.clone(), condition });
    }

    /// Adds a change of an object.
    pub fn change(mut self, object: &ObjectId, change: Change) -> Self {
        self.push(object, change);
        self
    }

    /// Adds a change of an object, in place.
    pub fn push(&mut self, object: &ObjectId, change: Change) {
        self.ops.push(Op::Object(object.clone(), change));
    }

    /// Adds the creation of a collection.
    pub fn create_collection(mut self, collection: &Collection) -> Self {
        self.ops.push(Op::CreateCollection(collection.clone()));
        self
    }

    /// Adds the removal of a collection.
    pub fn remove_collection(mut self, collection: &Collection) -> Self {
        self.ops.push(Op::RemoveCollection(collection.clone()));
        self
    }

    /// Checks every name, key, value and range against [`crate::limits`].
    ///
    /// # Errors
    /// [`Error::TooLarge`] names the limit; [`Error::Invalid`] an empty name or a range that ends before it starts.
    pub fn check(&self) -> Result<()> {
        at_most("number of operations", self.ops.len(), "TRANSACTION_OPS_MAX", TRANSACTION_OPS_MAX)?;
        // What is compared is not written: it has a bound of its own.
        let mut total = 0usize;
        for guard in &self.guards {
            total += check_object(&guard.object)? + guard.condition.check()?;
        }
        at_most("guards of a transaction", total, "GUARDS_BYTES_MAX", GUARDS_BYTES_MAX)?;
        total = 0;
        for op in &self.ops {
            total += match op {
                Op::CreateCollection(collection) | Op::RemoveCollection(collection) => check_collection(collection)?,
                Op::Object(object, change) => check_object(object)? + change.check()?,
            };
        }
        at_most("transaction", total, "TRANSACTION_BYTES_MAX", TRANSACTION_BYTES_MAX)
    }
}

fn at_most(what: &'static str, len: usize, limit: &'static str, max: usize) -> Result<()> {
    if len > max {
        return Err(Error::TooLarge { what, len: len as u64, limit, max: max as u64 });
    }
    Ok(())
}

fn check_collection(collection: &Collection) -> Result<usize> {
    let len = collection.name().len();
    if len == 0 {
        return Err(Error::Invalid { what: "collection name", why: "it is empty".into() });
    }
    at_most("collection name", len, "COLLECTION_BYTES_MAX", COLLECTION_BYTES_MAX)?;
    Ok(len)
}

fn check_object(object: &ObjectId) -> Result<usize> {
    let len = object.name().len();
    if len == 0 {
        return Err(Error::Invalid { what: "object name", why: "it is empty".into() });
    }
    at_most("object name", len, "OBJECT_NAME_BYTES_MAX", OBJECT_NAME_BYTES_MAX)?;
    Ok(len + check_collection(object.collection())?)
}

fn check_xattr(name: &Bytes) -> Result<usize> {
    at_most("xattr name", name.len(), "XATTR_NAME_BYTES_MAX", XATTR_NAME_BYTES_MAX)?;
    Ok(name.len())
}

fn check_key(key: &Bytes) -> Result<usize> {
    at_most("omap key", key.len(), "OMAP_KEY_BYTES_MAX", OMAP_KEY_BYTES_MAX)?;
    Ok(key.len())
}

fn check_value(value: &Bytes) -> Result<usize> {
    at_most("value", value.len(), "VALUE_BYTES_MAX", VALUE_BYTES_MAX)?;
    Ok(value.len())
}

fn check_span(offset: u64, len: u64) -> Result<usize> {
    match offset.checked_add(len) {
        Some(end) if end <= OBJECT_BYTES_MAX => Ok(0),
        _ => Err(Error::TooLarge {
            what: "end of the byte range",
            len: offset.saturating_add(len),
            limit: "OBJECT_BYTES_MAX",
            max: OBJECT_BYTES_MAX,
        }),
    }
}

impl Condition {
    fn check(&self) -> Result<usize> {
        match self {
            Self::Exists | Self::Absent | Self::SizeEquals { .. } => Ok(0),
            Self::SlotAbsent { .. } | Self::SlotPresent { .. } => Ok(8),
            Self::XattrEquals { name, value } => Ok(check_xattr(name)? + check_value(value)?),
            Self::XattrAbsent { name } | Self::XattrCompare { name, .. } => check_xattr(name),
            Self::OmapAbsent { key } | Self::OmapPresent { key } => check_key(key),
            Self::OmapEquals { key, value } => Ok(check_key(key)? + check_value(value)?),
            Self::SlotEquals { value, .. } => check_value(value),
        }
    }
}

impl Change {
    /// Whether it makes an object that is missing: whatever adds does. (A clone, clone-range or rename makes its
    /// target.)
    pub fn creates(&self) -> bool {
        match self {
            Self::Touch
            | Self::Write { .. }
            | Self::Zero { .. }
            | Self::XattrSet { .. }
            | Self::OmapSet { .. }
            | Self::SlotSet { .. } => true,
            Self::Truncate { size } => *size > 0,
            Self::Remove
            | Self::XattrRemove { .. }
            | Self::OmapRemove { .. }
            | Self::OmapRemoveRange { .. }
            | Self::OmapClear
            | Self::SlotRemove { .. }
            | Self::SlotRemoveRange { .. }
            | Self::CloneTo { .. }
            | Self::CloneRange { .. }
            | Self::Rename { .. } => false,
        }
    }

    fn check(&self) -> Result<usize> {
        match self {
            Self::Touch | Self::Remove | Self::OmapClear => Ok(0),
            Self::Write { offset, data } => {
                at_most("write", data.len(), "VALUE_BYTES_MAX", VALUE_BYTES_MAX)?;
                check_span(*offset, data.len() as u64)?;
                Ok(data.len())
            }
            Self::Zero { offset, len } => check_span(*offset, *len),
            Self::Truncate { size } => check_span(*size, 0),
            Self::XattrSet { name, value } => {
                at_most("xattr value", value.len(), "XATTR_VALUE_BYTES_MAX", XATTR_VALUE_BYTES_MAX)?;
                Ok(check_xattr(name)? + value.len())
            }
            Self::XattrRemove { name } => check_xattr(name),
            Self::OmapSet { key, value } => Ok(check_key(key)? + check_value(value)?),
            Self::OmapRemove { key } => check_key(key),
            Self::OmapRemoveRange { start, end } => {
                if end.as_ref().is_some_and(|end| end < start) {
                    return Err(Error::Invalid { what: "omap range", why: "it ends before it starts".into() });
                }
                Ok(check_key(start)? + end.as_ref().map_or(Ok(0), check_key)?)
            }
            Self::SlotSet { value, .. } => Ok(8 + check_value(value)?),
            Self::SlotRemove { .. } => Ok(8),
            Self::SlotRemoveRange { start, end } => {
                if end < start {
                    return Err(Error::Invalid {
                        what: "slot range",
                        why: format!("{start}..{end} ends before it starts"),
                    });
                }
                Ok(16)
            }
            Self::CloneTo { to } | Self::Rename { to } => check_object(to),
            Self::CloneRange { to, from_offset, len, to_offset } => {
                check_span(*from_offset, *len)?;
                check_span(*to_offset, *len)?;
                check_object(to)
            }
        }
    }
}

/// Which omap entries a scan returns, and in which order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OmapScan {
    /// Only keys at or above this; from the first key if absent.
    pub start: Option<Bytes>,
    /// Only keys below this; to the last key if absent.
    pub end: Option<Bytes>,
    /// From high keys to low ones.
    pub reverse: bool,
    /// At most so many entries, and never more than [`crate::limits::SCAN_ENTRIES_MAX`].
    pub limit: usize,
    /// Leave values empty: keys are enough.
    pub keys_only: bool,
}

/// In which order slots or omap keys come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// By index or key.
    #[default]
    Key,
    /// By the commit that last wrote each entry, oldest first.
    Commit,
}

/// Which slots a scan returns: `range`, in key order, up to `limit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotScan {
    /// Only these slots; an end of `u64::MAX` includes that slot.
    pub range: Range<u64>,
    /// From high slots to low ones.
    pub reverse: bool,
    /// At most so many entries, and never more than [`crate::limits::SCAN_ENTRIES_MAX`].
    pub limit: usize,
    /// Leave values empty: indexes are enough.
    pub keys_only: bool,
}

/// A place in commit order from which [`ObjectStore::commit_scan`](crate::ObjectStore::commit_scan) goes on. Opaque,
/// valid while the store is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommitCursor(pub u64, pub u64);

/// One live entry met in commit order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitEntry {
    /// A slot of an object.
    Slot(ObjectId, u64, Bytes),
    /// An omap entry of an object.
    Omap(ObjectId, Bytes, Bytes),
}

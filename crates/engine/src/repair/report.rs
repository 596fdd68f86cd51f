//! What a repair tells: how the contents were found, what is lost, and what the repair came to.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use esker_store::ObjectId;

/// How the contents of a damaged store were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// It opened: only values can be missing.
    #[default]
    Opened,
    /// It did not open: a checkpoint and the log after it were read without what does not hold.
    Replayed,
    /// No superblock was left: the newest checkpoint was searched for. Where the log goes on after it is not known
    /// exactly.
    Searched,
    /// No checkpoint was left either: all that stands on the device was put in order. What was deleted may be back.
    Rebuilt,
}

impl Level {
    /// Its name: `opened`, `replayed`, `searched`, `rebuilt`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Replayed => "replayed",
            Self::Searched => "searched",
            Self::Rebuilt => "rebuilt",
        }
    }

    /// Whether data that had been deleted may be in the repaired store.
    pub fn may_bring_back(self) -> bool {
        self >= Self::Searched
    }
}

/// What a damaged part of the device held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A slot.
    Slot(u64),
    /// A key of the omap.
    OmapKey(Bytes),
    /// A stretch of bytes, a hole now.
    Bytes {
        /// Offset in the object.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// An attribute.
    Xattr(Bytes),
    /// A part of the index of a space: what it led to is missing, or shows what it was before.
    Part(&'static str),
    /// The object with this number, whose name is lost.
    Object(u64),
    /// Operations of the transaction with this sequence number: what they changed shows what it was before.
    Transaction(u64),
    /// A part of the log, or of the checkpoint, that is not known to belong to one object.
    Place,
}

/// Something that was not copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Whose it was, where that is known.
    pub object: Option<ObjectId>,
    /// What it was.
    pub what: What,
    /// Where it stands on the device, in bytes.
    pub offset: u64,
    /// Why it is lost.
    pub reason: String,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::Slot(slot) => write!(f, "slot {slot}")?,
            What::OmapKey(key) => write!(f, "key {}", key.escape_ascii())?,
            What::Bytes { offset, len } => write!(f, "{len} bytes at {offset}")?,
            What::Xattr(name) => write!(f, "attribute {}", name.escape_ascii())?,
            What::Part(part) => write!(f, "{part}")?,
            What::Object(number) => write!(f, "object number {number}")?,
            What::Transaction(seq) => write!(f, "part of transaction {seq}")?,
            What::Place => write!(f, "part of the store")?,
        }
        if let Some(object) = &self.object {
            write!(f, " of {object}")?;
        }
        write!(f, " (device offset {}): {}", self.offset, self.reason)
    }
}

/// What a repair came to.
#[derive(Clone, Debug, Default)]
pub struct RepairReport {
    /// How the contents were found.
    pub level: Level,
    /// Whether it is certain where the log ended: the store had been closed cleanly. If not, damage at the very end of
    /// the log cannot be told from what was being written when the store was left.
    pub end_known: bool,
    /// Bytes at the end of the log that do not hold: what was being written when the store was left, or damage.
    pub torn_bytes: u64,
    /// Collections copied.
    pub collections: u64,
    /// Objects copied.
    pub objects: u64,
    /// Slots, keys of omaps and stretches of bytes copied.
    pub entries: u64,
    /// Bytes of values copied.
    pub bytes: u64,
    /// How many things were lost: each was told to the caller.
    pub lost: u64,
    /// How long it took.
    pub elapsed: Duration,
}

impl RepairReport {
    /// All figures by name.
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        vec![
            ("level", self.level.name().to_string()),
            ("deleted_may_be_back", self.level.may_bring_back().to_string()),
            ("end_known", self.end_known.to_string()),
            ("torn_bytes", self.torn_bytes.to_string()),
            ("collections", self.collections.to_string()),
            ("objects", self.objects.to_string()),
            ("entries", self.entries.to_string()),
            ("bytes", self.bytes.to_string()),
            ("lost", self.lost.to_string()),
            ("elapsed_ms", self.elapsed.as_millis().to_string()),
        ]
    }
}

/// Told whatever is lost.
pub(super) type Losses<'a> = dyn FnMut(Lost) + 'a;

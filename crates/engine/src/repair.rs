//! Repair: what can be read of a damaged store, copied into a new one, and a list of what could not.
//!
//! ```text
//! opens            → its index                                        → Level::Opened
//! does not open    → a checkpoint, as far as it holds → the log after it, without what does not hold  → Level::Replayed
//! no superblock    → the newest checkpoint that is found whole → the log after it     → Level::Searched
//! no checkpoint    → all operations that hold, in the order in which they were committed → Level::Rebuilt
//!   → values, verified, in commit order → a new store → checked
//! ```
//!
//! Invariants:
//! 1. Nothing is written to the damaged store.
//! 2. A value is copied only if its checksum holds, and under the name that it was written for.
//! 3. What a damaged operation would have replaced is not shown in its stead: where the operation still says what it was about,
//!    that is missing and listed. Where it does not, the transaction is listed.

mod copy;
mod rebuild;
mod replay;
mod scan;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_device::Device;
use esker_store::{Change, Condition, Durability, Error, ObjectId, ObjectStore, Result, Transaction};

use crate::check::check;
use crate::engine::Engine;
use crate::format::{Superblock, store_seed};
use crate::objects::Objects;
use crate::open::{FormatOptions, Options};
use crate::reader::Reader;
use crate::segments::Segments;

/// How the contents of a damaged store were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// It opened: only values can be missing.
    #[default]
    Opened,
    /// It did not open: a checkpoint and the log after it were read without what does not hold.
    Replayed,
    /// No superblock was left: the newest checkpoint was searched for. Where the log goes on after it is not known exactly.
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
    /// Whether it is certain where the log ended: the store had been closed cleanly. If not, damage at the very end of the log cannot
    /// be told from what was being written when the store was left.
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

/// How a damaged store is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Segment size in bytes.
    pub segment_bytes: u64,
    /// Length that it used, as far as known, in bytes, also where it was cut off since: a store of that length takes
    /// what is copied, unless objects share data.
    pub device_len: u64,
}

/// What a repair asks of its caller.
pub struct Hooks<'a> {
    /// Told of everything that is lost.
    pub lost: &'a mut dyn FnMut(&Lost),
    /// Told how far it is: what is done, how much of it, and of how much.
    pub progress: &'a mut dyn FnMut(&'static str, u64, u64),
    /// The value to be put in the place of one that is lost, for faces in which its absence would mean something else.
    pub mark: &'a dyn Fn(&ObjectId, &What) -> Option<Bytes>,
    /// The new store is full: makes its device longer; false if it cannot be.
    pub lengthen: &'a mut dyn FnMut() -> bool,
}

/// Told whatever is lost.
type Losses<'a> = dyn FnMut(Lost) + 'a;

/// What was found of a store, ready to be copied.
struct Source {
    device: Arc<dyn Device>,
    shape: Superblock,
    seed: u32,
    segments: Arc<Segments>,
    reader: Arc<Reader>,
    objects: Arc<Objects>,
    torn_bytes: u64,
}

/// How the damaged store on `device` is laid out.
///
/// # Errors
/// [`Error::Invalid`] if nothing of a store is there, or its format is newer, with its number; [`Error::Io`].
pub fn shape(device: &dyn Device) -> Result<Shape> {
    let found = scan::shapes(device)?;
    let newest = found.newest();
    Ok(Shape { segment_bytes: newest.segment_bytes, device_len: found.recorded_len })
}

/// Copies what can be read of the damaged store on `from` to a new store on `to`, which is overwritten, and asks and
/// tells the caller what [`Hooks`] says. `from` is only read; its index is taken into memory, with up to a hundred
/// bytes for each entry. Objects that shared data share none in the new store, so it may have to be longer.
///
/// The new store was checked when this returns. Its objects have the same names, sizes, holes and contents, and its entries
/// the same commit order, as far as the damage allows.
///
/// # Errors
/// [`Error::Invalid`] as for [`shape`], and for a device that does not fit; [`Error::Full`] if `to` is too short;
/// [`Error::Io`] and [`Error::Stopped`] of `to`. `to` is not to be used then.
pub fn repair(from: &Arc<dyn Device>, to: &Arc<dyn Device>, uuid: [u8; 16], hooks: Hooks<'_>) -> Result<RepairReport> {
    let Hooks { lost, progress, mark, lengthen } = hooks;
    let began = Instant::now();
    let found = scan::shapes(&**from)?;
    let segment_bytes = found.newest().segment_bytes;
    Engine::format(&**to, &FormatOptions { segment_bytes, uuid })?;
    let mut report = RepairReport::default();
    let mut count = 0;
    let mut marks = Vec::new();
    let mut losses = |loss: Lost| {
        count += 1;
        if let Some(object) = &loss.object
            && let Some(value) = mark(object, &loss.what)
        {
            marks.push((object.clone(), loss.what.clone(), value));
        }
        lost(&loss);
    };
    let len = from.geometry().len;
    if len < found.recorded_len {
        let recorded = found.recorded_len;
        let reason = format!("the device ends there, the store was {recorded} bytes long: what stood behind is gone");
        losses(Lost { object: None, what: What::Place, offset: len, reason });
    }
    let (level, source) = match opened(from, &found) {
        Some(source) => (Level::Opened, source),
        None => rebuild::salvage(from, &found, &mut losses, progress),
    };
    report.level = level;
    report.torn_bytes = source.torn_bytes;
    report.end_known = found.real && found.newest().clean && !level.may_bring_back();
    let options = Options { recent_bytes: 4 * segment_bytes, cache_bytes: 1 << 20, ..Options::default() };
    let engine = Engine::open(Arc::clone(to), options)?;
    copy::Copy { source: &source, to: &engine, lost: &mut losses, report: &mut report }.all(progress, lengthen)?;
    marks.into_iter().try_for_each(|(object, what, value)| put_mark(&engine, &object, what, value, lengthen))?;
    engine.close()?;
    drop(engine);
    report.lost = count;
    let checked = check(Arc::clone(to), true, &mut |done, total| progress("checking", done, total))?;
    if let Some(damage) = checked.damage.first() {
        let what = format!("the repaired store: {}", damage.what);
        return Err(Error::Corrupt { offset: damage.offset, what });
    }
    report.elapsed = began.elapsed();
    tracing::info!(level = report.level.name(), objects = report.objects, lost = report.lost, "store repaired");
    Ok(report)
}

/// Puts a value in the place of one that is lost, unless something stands there.
fn put_mark(
    to: &Engine,
    object: &ObjectId,
    what: What,
    value: Bytes,
    lengthen: &mut dyn FnMut() -> bool,
) -> Result<()> {
    let (condition, change) = match what {
        What::Slot(index) => (Condition::SlotAbsent { index }, Change::SlotSet { index, value }),
        What::OmapKey(key) => (Condition::OmapAbsent { key: key.clone() }, Change::OmapSet { key, value }),
        _ => return Ok(()),
    };
    let txn = Transaction::with(Durability::Applied).guard(object, condition).change(object, change);
    loop {
        match to.submit(txn.clone()).wait() {
            Err(Error::Full { .. }) if lengthen() => {
                to.grow()?;
            }
            // A later one of the same name, or the object has gone with its collection.
            Err(Error::GuardFailed { .. } | Error::NoCollection { .. }) => return Ok(()),
            done => return done.map(drop),
        }
    }
}

/// The store, if it opens. Why it does not is found again, piece by piece, by whoever goes on.
fn opened(from: &Arc<dyn Device>, found: &scan::Shapes) -> Option<Source> {
    let options = Options { read_only: true, recent_bytes: 0, cache_bytes: 16 << 20, ..Options::default() };
    let engine = Engine::open(Arc::clone(from), options).ok()?;
    let shape = *found.newest();
    Some(Source {
        device: Arc::clone(from),
        seed: store_seed(&shape.uuid),
        shape,
        segments: Arc::clone(&engine.segments),
        reader: Arc::clone(&engine.reader),
        objects: Arc::clone(&engine.objects),
        torn_bytes: engine.recovery().torn_bytes,
    })
}

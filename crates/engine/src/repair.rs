//! Repair: what can be read of a damaged store, copied into a new one, and a list of what could not.
//!
//! ```text
//! opens            → its index                                        → Level::Opened
//! does not open    → a checkpoint, as far as it holds → the log after it, without what does not hold → Level::Replayed
//! no superblock    → the newest checkpoint that is found whole → the log after it     → Level::Searched
//! no checkpoint    → all operations that hold, in the order in which they were committed → Level::Rebuilt
//!   → values, verified, in commit order → a new store → checked
//! ```
//!
//! Invariants:
//! 1. Nothing is written to the damaged store.
//! 2. A value is copied only if its checksum holds, and under the name that it was written for.
//! 3. What a damaged operation would have replaced is not shown in its stead: where the operation still says what it
//!    was about, that is missing and listed. Where it does not, the transaction is listed.

mod copy;
mod rebuild;
mod replay;
mod report;
mod scan;
mod source;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use esker_device::Device;
use esker_store::{Change, Condition, Durability, Error, ObjectId, ObjectStore, Result, Transaction};

pub use self::report::{Level, Lost, RepairReport, What};
use self::source::Source;
use crate::check::check;
use crate::engine::Engine;
use crate::format::store_seed;
use crate::open::{FormatOptions, Options};

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
/// The new store was checked when this returns. Its objects have the same names, sizes, holes and contents, and its
/// entries the same commit order, as far as the damage allows.
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

/// The store, if it opens. Why it does not is found again, piece by piece, by the caller, which goes on without it.
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

//! Operations on a pool that are waited for, and what their failures mean.
//!
//! Invariant: a call ends when librados tells of it, which it does within `rados_osd_op_timeout`.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use esker_store::limits::SCAN_BYTES_MAX;
use esker_store::{Collection, Error, ObjectId, Result};
use parking_lot::Mutex;

use crate::encode::{self, STORE, TOMB};
use crate::native::{Compare, Failed, Found, Pool, Read, Write, flags};

/// Numbers of errors, as Linux has them.
pub(crate) mod code {
    pub(crate) const NOT_THERE: i32 = 2;
    pub(crate) const THERE: i32 = 17;
    pub(crate) const INVALID: i32 = 22;
    pub(crate) const TOO_LARGE: i32 = 27;
    pub(crate) const NO_SPACE: i32 = 28;
    /// The object has an earlier version.
    pub(crate) const OTHER_VERSION: i32 = 34;
    /// The object has a later version.
    pub(crate) const LATER_VERSION: i32 = 75;
    pub(crate) const NOT_SUPPORTED: i32 = 95;
    pub(crate) const SHUT_OUT: i32 = 108;
    pub(crate) const TIMED_OUT: i32 = 110;
    pub(crate) const QUOTA: i32 = 122;
    /// A comparison does not hold.
    pub(crate) const CANCELED: i32 = 125;
}

impl Failed {
    /// Whether the operation may have been done: its answer did not come, or the library has sent it again and a client
    /// that is shut out is refused whatever was done before.
    pub(crate) fn is_unknown(self) -> bool {
        matches!(self.code, code::TIMED_OUT | code::SHUT_OUT)
    }
}

/// An operation that was not done is known not to have been if its answer came within this time, if nothing else is
/// said. An OSD forgets an operation after some 3,000 later ones of its placement group (`osd_pg_log_dups_tracked`).
/// When the library sends one again whose answer was lost with the connection, it may be refused because of what it
/// has changed itself. So many are not done within a second while a connection is lost and made again.
pub(crate) const SURE: Duration = Duration::from_secs(1);
/// Most omap keys that an OSD lists at once.
pub(crate) const PAGE: u64 = 1_024;

/// Values that are asked for at once of an object of which none were scanned: 16 MiB, if each has 1 MiB.
const FIRST_PAGE: u64 = 16;
/// Values that are likely to fill a scan's answer where none were scanned.
const FIRST_LIKELY: u64 = 256;
/// So many times as many as were found at once are asked for next, at most.
const WIDER: u64 = 8;
/// Objects of which it is kept what their pages were like, at most.
const PAGED_MAX: usize = 4_096;

/// What pages of values of one object were like.
#[derive(Clone, Copy)]
struct Paged {
    /// Bytes of a value, as of late.
    mean: usize,
    /// Most values of a page.
    values: u64,
}

impl Paged {
    /// With one more page.
    fn with(before: Option<Self>, values: usize, bytes: usize) -> Self {
        let (mean, values) = (bytes / values.max(1), values as u64);
        before.map_or(Self { mean, values }, |before| Self {
            mean: mean.max((3 * before.mean + mean) / 4),
            values: values.max(before.values),
        })
    }

    /// Values that are likely to fill a scan's answer.
    fn fit(self) -> u64 {
        ((SCAN_BYTES_MAX / self.mean.max(1)) as u64).clamp(1, PAGE)
    }

    /// Those that are asked for at once.
    fn next(self) -> u64 {
        self.fit().min(self.values.saturating_mul(WIDER).max(FIRST_PAGE))
    }
}

/// A pool and a namespace of it.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) pool: Pool,
    /// By the names of objects.
    paged: Arc<Mutex<HashMap<CString, Paged>>>,
    /// Where some objects are kept instead.
    data: Option<Arc<Data>>,
    /// Whether objects there may have omap keys.
    pub(crate) has_keys: bool,
    sure_ms: Arc<AtomicU64>,
}

/// The pool of objects that have bytes and short xattrs only.
struct Data {
    link: Link,
    holds: Vec<(Collection, Vec<u8>)>,
}

impl Link {
    pub(crate) fn new(pool: Pool) -> Self {
        let sure_ms = Arc::new(AtomicU64::new(SURE.as_millis() as u64));
        Self { pool, paged: Arc::default(), data: None, has_keys: true, sure_ms }
    }

    /// An operation that was not done is known not to have been if its answer came within this time.
    pub(crate) fn sure(&self) -> Duration {
        Duration::from_millis(self.sure_ms.load(Ordering::Relaxed))
    }

    /// Of all clones of this.
    pub(crate) fn set_sure(&self, time: Duration) {
        self.sure_ms.store(time.as_millis() as u64, Ordering::Relaxed);
    }

    /// With a pool for the objects of these collections whose names begin so.
    pub(crate) fn with_data(self, pool: Pool, holds: Vec<(Collection, Vec<u8>)>) -> Self {
        let link = Self { has_keys: false, sure_ms: Arc::clone(&self.sure_ms), ..Self::new(pool) };
        Self { data: Some(Arc::new(Data { link, holds })), ..self }
    }

    /// Where an object is.
    pub(crate) fn of(&self, id: &ObjectId) -> &Self {
        let held = |(collection, prefix): &(Collection, Vec<u8>)| {
            collection == id.collection() && id.name().starts_with(prefix)
        };
        match &self.data {
            Some(data) if data.holds.iter().any(held) => &data.link,
            _ => self,
        }
    }

    /// Waits until nothing is under way.
    pub(crate) fn wait(&self) {
        self.pool.wait();
        if let Some(data) = &self.data {
            data.link.pool.wait();
        }
    }

    /// Waits until no notify and no new watch is under way, or until then.
    pub(crate) fn wait_until(&self, until: Instant) {
        self.pool.wait_until(until);
        if let Some(data) = &self.data {
            data.link.pool.wait_until(until);
        }
    }

    /// How many entries of up to `limit` are asked for at once, so that an answer is not many times as long as a scan's
    /// may be: an OSD would give a gigabyte. Of an object that was not scanned few are, whatever others have in them.
    pub(crate) fn at_once(&self, object: &CStr, limit: usize, keys_only: bool) -> u64 {
        let most =
            if keys_only { PAGE } else { self.paged.lock().get(object).map_or(FIRST_PAGE, |paged| paged.next()) };
        (limit as u64).clamp(1, most)
    }

    /// How many entries of up to `limit` are likely to fill a scan's answer, and may be more than are asked for.
    pub(crate) fn likely(&self, object: &CStr, limit: usize, keys_only: bool) -> u64 {
        let most =
            if keys_only { PAGE } else { self.paged.lock().get(object).map_or(FIRST_LIKELY, |paged| paged.fit()) };
        (limit as u64).clamp(1, most)
    }

    /// Notes how many values were read at once, and how long they are.
    pub(crate) fn note_values(&self, object: &CStr, found: &Found) {
        let bytes: usize = found.omap.iter().map(|(_, value)| value.len()).sum();
        if bytes == 0 {
            return;
        }
        let mut all = self.paged.lock();
        let paged = Paged::with(all.get(object).copied(), found.omap.len(), bytes);
        if let Some(known) = all.get_mut(object) {
            *known = paged;
            return;
        }
        if all.len() >= PAGED_MAX {
            all.clear();
        }
        all.insert(object.to_owned(), paged);
    }

    /// Does an operation that changes something, and waits for it.
    pub(crate) fn write(&self, object: &CStr, write: Write) -> std::result::Result<u64, Failed> {
        let (tell, told) = channel();
        self.pool.write(object, write, flags::FULL_TRY, move |outcome| {
            let _ = tell.send(outcome);
        });
        told.recv().unwrap_or(Err(Failed { code: code::TIMED_OUT, guard: None }))
    }

    /// Does an operation that reads, and waits for it.
    pub(crate) fn read(&self, object: &CStr, parts: impl FnOnce(&mut Read)) -> std::result::Result<Found, Failed> {
        self.begin(object, parts).found()
    }

    /// Reads several objects of this pool, all at once.
    pub(crate) fn read_all(
        &self,
        objects: &[CString],
        parts: impl Fn(&mut Read),
    ) -> Vec<std::result::Result<Found, Failed>> {
        let begun: Vec<_> = objects.iter().map(|object| self.begin(object, &parts)).collect();
        begun.into_iter().map(Begun::found).collect()
    }

    /// Whether these objects are there, each looked for where it is kept.
    pub(crate) fn look_all(&self, ids: &[ObjectId]) -> Vec<Result<bool>> {
        let begun: Vec<_> = ids
            .iter()
            .map(|id| {
                let object = encode::object(id);
                let begun = self.of(id).begin(&object, |read| read.compare_xattr(TOMB, Compare::Equal, b""));
                (object, begun)
            })
            .collect();
        begun.into_iter().map(|(object, begun)| Ok(found_in(begun.found(), &object)?.is_some())).collect()
    }

    /// Whether an object is there.
    pub(crate) fn is_there(&self, id: &ObjectId) -> Result<bool> {
        let object = encode::object(id);
        Ok(self.of(id).look(&object, |_| ())?.is_some())
    }

    fn begin(&self, object: &CStr, parts: impl FnOnce(&mut Read)) -> Begun {
        let mut read = Read::new();
        parts(&mut read);
        let (tell, told) = channel();
        self.pool.read(object, read, move |outcome| {
            let _ = tell.send(outcome);
        });
        Begun(told)
    }

    /// What is said where the object of the store is missing, which was there when the store was opened.
    pub(crate) fn gone() -> Error {
        Error::Stopped { cause: "the store on Ceph is gone: its pool was deleted, or its objects".into() }
    }

    /// Looks whether the store is still there: in a pool that is deleted every object is missing.
    pub(crate) fn check_there(&self) -> Result<()> {
        match self.read(STORE, |read| read.stat()) {
            Ok(_) => Ok(()),
            Err(failed) if failed.code == code::NOT_THERE => Err(Self::gone()),
            Err(failed) => Err(error(failed, "reading", STORE)),
        }
    }

    /// Reads an object of the waist; `None` if it is missing.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Stopped`].
    pub(crate) fn look(&self, object: &CStr, parts: impl FnOnce(&mut Read)) -> Result<Option<Found>> {
        let found = self.read(object, |read| {
            read.compare_xattr(TOMB, Compare::Equal, b"");
            parts(read);
        });
        found_in(found, object)
    }
}

/// A read that is under way.
struct Begun(Receiver<std::result::Result<Found, Failed>>);

impl Begun {
    fn found(self) -> std::result::Result<Found, Failed> {
        self.0.recv().unwrap_or(Err(Failed { code: code::TIMED_OUT, guard: None }))
    }
}

/// What a read of an object of the waist has found.
pub(crate) fn found_in(found: std::result::Result<Found, Failed>, object: &CStr) -> Result<Option<Found>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Failed { code: code::NOT_THERE | code::CANCELED, .. }) => Ok(None),
        Err(failed) => Err(error(failed, "reading", object)),
    }
}

/// Why something failed of which it is known that it changed nothing.
pub(crate) fn error(failed: Failed, doing: &str, object: &CStr) -> Error {
    let object = object.to_bytes().escape_ascii();
    match failed.code {
        code::NO_SPACE | code::QUOTA => Error::Full { needed: 0, free: 0 },
        code::SHUT_OUT => Error::Stopped {
            cause: format!("{doing} {object}: Ceph has shut this client out (it is on the blocklist)").into(),
        },
        _ => Error::io(format!("{doing} {object} on Ceph"), std::io::Error::from_raw_os_error(failed.code)),
    }
}

/// Why an operation failed that changes something: it may have been done if its answer was lost.
pub(crate) fn write_error(failed: Failed, object: &CStr) -> Error {
    match failed.code {
        code::TIMED_OUT => Error::Unknown {
            cause: format!("Ceph did not answer in time: writing {}", object.to_bytes().escape_ascii()),
        },
        code::TOO_LARGE => {
            Error::Invalid { what: "object", why: "Ceph takes none so large (osd_max_object_size)".into() }
        }
        _ => error(failed, "writing", object),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Failure: a scan of an object with values of 1 MiB asked for 1,024 of them. Cause: how many it asked for came of
    // the values of all objects, which were short. Fix: it comes of the values of that object.
    #[test]
    fn a_page_is_as_long_as_those_of_its_own_object_say() {
        let link = Link::new(Pool::nowhere());
        let page = |count: u64, len: usize| Found {
            omap: (0..count).map(|n| (vec![n as u8], vec![1; len])).collect(),
            ..Found::default()
        };
        let (short, long) = (c"short", c"long");
        // Pages of short values grow fast.
        for expected in [16, 128, 1_024, 1_024] {
            assert_eq!(link.at_once(short, 65_536, false), expected);
            link.note_values(short, &page(expected, 100));
        }
        assert_eq!((link.at_once(short, 10, false), link.at_once(short, 0, false)), (10, 1));
        // What others have says nothing.
        assert_eq!(link.at_once(long, 65_536, false), 16);
        assert_eq!(link.at_once(long, 65_536, true), PAGE);
        link.note_values(long, &page(16, 1 << 20));
        assert_eq!(link.at_once(long, 65_536, false), 16);
        link.note_values(long, &page(4, 16 << 20));
        assert_eq!(link.at_once(long, 65_536, false), 1);
        // Keys alone say nothing either.
        link.note_values(c"keys", &page(9, 0));
        assert_eq!(link.at_once(c"keys", 65_536, false), 16);
        for number in 0..2 * PAGED_MAX {
            link.note_values(&encode::object(&ObjectId::new("c".into(), number.to_string())), &page(1, 1));
        }
        assert!(link.paged.lock().len() <= PAGED_MAX);
    }
}

//! What this face keeps in the store: names of objects and keys, the state of an image, the record of a snapshot.
//!
//! Pure encode and decode, no I/O. Numbers in values are little-endian; numbers in names and keys are such that byte
//! order is number order.
//!
//! Invariants:
//! 1. Decoding checks every bound that later arithmetic relies on, so stored bytes never make it overflow.
//! 2. A version above `VERSION` is refused with its number.
//! Format: docs/format.md#what-the-volume-face-keeps-in-the-store

use bytes::Bytes;
pub use esker_store::names::{LABEL_BYTES_MAX as OWNER_BYTES_MAX, NAME_BYTES_MAX};
pub(crate) use esker_store::number::{first_number as key_number, number, number_from, prefixed};
use esker_store::number::{last_number, numbered, u32_at, u64_at};
use esker_store::{Collection, Directory, Fence, ObjectId, Registry};

use crate::layout::IMAGE_BYTES_MAX;
use crate::{Error, Layout, Result};

/// Version of the records of snapshots and of the state of an image that is finished.
pub(crate) const VERSION: u32 = 1;
/// Version of the state of an image that is being imported: programs that do not know of such refuse it by this number.
const VERSION_MAKING: u32 = 2;
/// The highest version that this code reads.
const VERSION_MAX: u32 = 2;
/// The collection of all images.
pub const COLLECTION: &str = "volume";
/// What the names of all objects that hold the bytes of images begin with: they have bytes, and xattrs with short
/// names.
pub const DATA_NAMES: &[u8] = b"d/";
/// Xattr of a header: number that grows with every change of the state, 8 bytes little-endian; every write guards it.
pub(crate) const GENERATION: &[u8] = b"generation";
/// Xattr of a header: [`State`].
pub(crate) const STATE: &[u8] = b"state";
/// Xattr of a header: name of the session of who has the lock, where the store fences by sessions.
pub(crate) const SESSION: &[u8] = b"session";
/// Xattr of a data object: newest snapshot at its last first write, 8 bytes little-endian; absent means 0.
pub(crate) const SEQ: &[u8] = b"seq";
/// Xattr of the directory: the last image id given, 8 bytes little-endian.
pub(crate) const NEXT_ID: &[u8] = b"next";

fn object(name: String) -> ObjectId {
    ObjectId::new(Collection::from(COLLECTION), name)
}

/// The directory of images.
pub(crate) fn registry() -> Registry {
    Registry {
        directory: Directory {
            object: object("directory".into()),
            what: "directory of images",
            names: b"n",
            ids: Some(b'i'),
        },
        last_id: NEXT_ID,
        left: b'r',
    }
}

pub(crate) fn header(image: u64) -> ObjectId {
    object(format!("h/{image:016x}"))
}

/// The omap of all clones of an image's data objects.
pub(crate) fn clones(image: u64) -> ObjectId {
    object(format!("c/{image:016x}"))
}

pub(crate) fn data_prefix(image: u64) -> String {
    format!("d/{image:016x}/")
}

pub(crate) fn data(image: u64, number: u64) -> ObjectId {
    object(format!("d/{image:016x}/{number:016x}"))
}

/// The number of a data object by its name.
pub(crate) fn data_number(image: u64, name: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(name.strip_prefix(data_prefix(image).as_bytes())?).ok()?;
    u64::from_str_radix(digits, 16).ok()
}

pub(crate) fn clones_prefix(image: u64) -> String {
    format!("s/{image:016x}/")
}

/// What object `number` was for the snapshots up to `upper`.
pub(crate) fn clone_of(image: u64, number: u64, upper: u64) -> ObjectId {
    object(format!("s/{image:016x}/{number:016x}/{upper:016x}"))
}

/// Key of the clones' omap: object number, newest snapshot that the clone is for. The value is the newest that it is
/// not for, 8 bytes.
pub(crate) fn clone_key(number: u64, upper: u64) -> Bytes {
    [number.to_be_bytes(), upper.to_be_bytes()].concat().into()
}

pub(crate) fn read_clone(key: &[u8], value: &[u8]) -> Result<(u64, u64, u64)> {
    let damaged = || Error::Damaged { what: "list of clones".into(), why: format!("{key:?} = {value:?}") };
    let (number, upper) = key.split_at_checked(8).filter(|(_, upper)| upper.len() == 8).ok_or_else(damaged)?;
    let read = || Some((last_number(number)?, last_number(upper)?, number_from(value)?));
    read().ok_or_else(damaged)
}

/// Key of the record of a snapshot, in a header.
pub(crate) fn snap_key(snap: u64) -> Bytes {
    numbered(b's', snap)
}

/// Key of the id of a snapshot by its name, in a header.
pub(crate) fn snap_name_key(name: &str) -> Bytes {
    prefixed(b'n', name.as_bytes())
}

/// Key that says that image `child` has this snapshot as parent, in a header.
pub(crate) fn child_key(snap: u64, child: u64) -> Bytes {
    prefixed(b'c', &[snap.to_be_bytes(), child.to_be_bytes()].concat())
}

/// Key of a removed snapshot whose clones are still to be looked through, in a header.
pub(crate) fn trim_key(snap: u64) -> Bytes {
    numbered(b't', snap)
}

/// Key of metadata that belongs to the user, in a header.
pub(crate) fn meta_key(key: &str) -> Bytes {
    prefixed(b'm', key.as_bytes())
}

/// `/` and `@` are not allowed in it, nor are the names `.` and `..`, which no tool that makes files of images could
/// use.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<()> {
    let bad = |c: char| matches!(c, '/' | '@') || c.is_control();
    let checked = esker_store::names::check_name(name, ("NAME_BYTES_MAX", NAME_BYTES_MAX), bad);
    let folder = || if matches!(name, "." | "..") { Err(format!("{name:?} is the name of a folder")) } else { Ok(()) };
    checked.and_then(|()| folder()).map_err(|why| Error::Invalid { what, why })
}

/// Where an image's data comes from that it does not have itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParentLink {
    pub(crate) image: u64,
    pub(crate) snap: u64,
    /// First so many bytes of the image for which it holds.
    pub(crate) overlap: u64,
}

/// What is kept of an image in its header. `generation` grows with every change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) generation: u64,
    pub(crate) size: u64,
    pub(crate) layout: Layout,
    pub(crate) created_ms: u64,
    /// The last snapshot id given.
    pub(crate) snap_seq: u64,
    /// The newest snapshot that there is, 0 without any.
    pub(crate) newest: u64,
    /// Data may lie up to here though the image is smaller: shrinking was not finished. 0 if not.
    pub(crate) dirty_end: u64,
    /// Snapshot that the image is being rolled back to, 0 if not.
    pub(crate) rollback: u64,
    pub(crate) parent: Option<ParentLink>,
    pub(crate) lock_epoch: u64,
    /// Empty: not locked.
    pub(crate) lock_owner: String,
    pub(crate) removing: bool,
    /// It is being imported, or its import was interrupted.
    pub(crate) making: bool,
}

/// Fields of the state of an image: name, offset, bytes.
pub(crate) const STATE_LAYOUT: &[(&str, usize, usize)] = &[
    ("version", 0, 4),
    ("flags", 4, 4),
    ("generation", 8, 8),
    ("size", 16, 8),
    ("object_bytes", 24, 8),
    ("stripe_unit", 32, 8),
    ("stripe_count", 40, 8),
    ("created_ms", 48, 8),
    ("snap_seq", 56, 8),
    ("newest", 64, 8),
    ("dirty_end", 72, 8),
    ("rollback", 80, 8),
    ("parent_image", 88, 8),
    ("parent_snap", 96, 8),
    ("overlap", 104, 8),
    ("lock_epoch", 112, 8),
];
const STATE_FIXED: usize = 120;
const FLAG_REMOVING: u32 = 1;
const FLAG_MAKING: u32 = 2;

/// Fields of the record of a snapshot: name, offset, bytes.
pub(crate) const SNAP_LAYOUT: &[(&str, usize, usize)] = &[
    ("version", 0, 4),
    ("flags", 4, 4),
    ("size", 8, 8),
    ("created_ms", 16, 8),
    ("parent_image", 24, 8),
    ("parent_snap", 32, 8),
    ("overlap", 40, 8),
    ("children", 48, 8),
];
const SNAP_FIXED: usize = 56;
const FLAG_PROTECTED: u32 = 1;

/// Fields of a structure: name, offset, bytes.
pub type Described = &'static [(&'static str, usize, usize)];

fn parent(bytes: &[u8], at: usize, size: u64) -> std::result::Result<Option<ParentLink>, String> {
    let link = ParentLink { image: u64_at(bytes, at), snap: u64_at(bytes, at + 8), overlap: u64_at(bytes, at + 16) };
    if link.image == 0 {
        return Ok(None);
    }
    if link.snap == 0 || link.overlap > size {
        return Err(format!("{link:?} of an image of {size} bytes"));
    }
    Ok(Some(link))
}

impl State {
    /// Its exclusive lock.
    pub(crate) fn fence(&self) -> Fence<'_> {
        Fence { epoch: self.lock_epoch, owner: &self.lock_owner }
    }

    pub(crate) fn encode(&self) -> Bytes {
        let link = self.parent.unwrap_or_default();
        let mut out = Vec::with_capacity(STATE_FIXED + self.lock_owner.len());
        let version = if self.making { VERSION_MAKING } else { VERSION };
        let flags = if self.removing { FLAG_REMOVING } else { 0 } | if self.making { FLAG_MAKING } else { 0 };
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&flags.to_le_bytes());
        let Layout { object_bytes, stripe_unit, stripe_count } = self.layout;
        for value in [
            self.generation,
            self.size,
            object_bytes,
            stripe_unit,
            stripe_count,
            self.created_ms,
            self.snap_seq,
            self.newest,
            self.dirty_end,
            self.rollback,
            link.image,
            link.snap,
            link.overlap,
            self.lock_epoch,
        ] {
            out.extend_from_slice(&value.to_le_bytes());
        }
        out.extend_from_slice(self.lock_owner.as_bytes());
        out.into()
    }

    pub(crate) fn decode(image: u64, bytes: &[u8]) -> Result<Self> {
        let damaged = |why: String| Error::Damaged { what: format!("header of image {image:016x}"), why };
        if bytes.len() < STATE_FIXED || bytes.len() > STATE_FIXED + OWNER_BYTES_MAX {
            return Err(damaged(format!("{} bytes", bytes.len())));
        }
        version("an image", u32_at(bytes, 0))?;
        let size = u64_at(bytes, 16);
        let layout =
            Layout { object_bytes: u64_at(bytes, 24), stripe_unit: u64_at(bytes, 32), stripe_count: u64_at(bytes, 40) };
        layout.check().map_err(|error| damaged(error.to_string()))?;
        let state = Self {
            generation: u64_at(bytes, 8),
            size,
            layout,
            created_ms: u64_at(bytes, 48),
            snap_seq: u64_at(bytes, 56),
            newest: u64_at(bytes, 64),
            dirty_end: u64_at(bytes, 72),
            rollback: u64_at(bytes, 80),
            parent: parent(bytes, 88, size).map_err(damaged)?,
            lock_epoch: u64_at(bytes, 112),
            lock_owner: String::from_utf8(bytes[STATE_FIXED..].to_vec())
                .map_err(|_| damaged("the owner of its lock is no text".into()))?,
            removing: u32_at(bytes, 4) & FLAG_REMOVING != 0,
            making: u32_at(bytes, 4) & FLAG_MAKING != 0,
        };
        if size > IMAGE_BYTES_MAX || state.dirty_end > IMAGE_BYTES_MAX || state.newest > state.snap_seq {
            return Err(damaged(format!("{state:?}")));
        }
        // They grow by one with each change; none of them gets there by that.
        if [state.generation, state.snap_seq, state.lock_epoch].contains(&u64::MAX) {
            return Err(damaged(format!("{state:?}")));
        }
        Ok(state)
    }
}

/// What is kept of a snapshot, in the header of its image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapRecord {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) created_ms: u64,
    pub(crate) parent: Option<ParentLink>,
    /// Images that have it as parent.
    pub(crate) children: u64,
    pub(crate) protected: bool,
}

impl SnapRecord {
    pub(crate) fn encode(&self) -> Bytes {
        let link = self.parent.unwrap_or_default();
        let mut out = Vec::with_capacity(SNAP_FIXED + self.name.len());
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&if self.protected { FLAG_PROTECTED } else { 0 }.to_le_bytes());
        for value in [self.size, self.created_ms, link.image, link.snap, link.overlap, self.children] {
            out.extend_from_slice(&value.to_le_bytes());
        }
        out.extend_from_slice(self.name.as_bytes());
        out.into()
    }

    pub(crate) fn decode(image: u64, snap: u64, bytes: &[u8]) -> Result<Self> {
        let damaged = |why: String| Error::Damaged { what: format!("snapshot {snap} of image {image:016x}"), why };
        if bytes.len() <= SNAP_FIXED || bytes.len() > SNAP_FIXED + NAME_BYTES_MAX {
            return Err(damaged(format!("{} bytes", bytes.len())));
        }
        version("a snapshot", u32_at(bytes, 0))?;
        let size = u64_at(bytes, 8);
        if size > IMAGE_BYTES_MAX {
            return Err(damaged(format!("size {size}")));
        }
        Ok(Self {
            name: String::from_utf8(bytes[SNAP_FIXED..].to_vec()).map_err(|_| damaged("its name is no text".into()))?,
            size,
            created_ms: u64_at(bytes, 16),
            parent: parent(bytes, 24, size).map_err(damaged)?,
            children: u64_at(bytes, 48),
            protected: u32_at(bytes, 4) & FLAG_PROTECTED != 0,
        })
    }
}

fn version(what: &'static str, found: u32) -> Result<()> {
    if found > VERSION_MAX { Err(Error::Newer { what, found, max: VERSION_MAX }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State {
            generation: 1,
            size: 9 << 20,
            created_ms: 3,
            snap_seq: 7,
            newest: 6,
            dirty_end: 10 << 20,
            rollback: 5,
            parent: Some(ParentLink { image: 2, snap: 4, overlap: 8 << 20 }),
            lock_epoch: 11,
            lock_owner: "ada".into(),
            removing: true,
            making: true,
            ..State::default()
        }
    }

    #[test]
    fn records_come_back_as_they_were() {
        let state = state();
        assert_eq!(State::decode(1, &state.encode()).unwrap(), state);
        let snap = SnapRecord {
            name: "s".into(),
            size: 5,
            created_ms: 6,
            parent: Some(ParentLink { image: 1, snap: 2, overlap: 3 }),
            children: 4,
            protected: true,
        };
        assert_eq!(SnapRecord::decode(1, 2, &snap.encode()).unwrap(), snap);
        assert_eq!(read_clone(&clone_key(3, 5), &number(4)).unwrap(), (3, 5, 4));
        assert_eq!(data_number(7, data(7, 0xabc).name()), Some(0xabc));
    }

    #[test]
    fn stored_bytes_never_panic_and_newer_versions_are_refused_with_their_number() {
        let good = state().encode();
        for len in 0..good.len() {
            let _ = State::decode(1, &good[..len]);
            let _ = SnapRecord::decode(1, 1, &good[..len]);
            let _ = read_clone(&good[..len], &good[..len.min(9)]);
        }
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = good.to_vec();
                bad[at] = value;
                let _ = State::decode(1, &bad);
                let _ = SnapRecord::decode(1, 1, &bad);
            }
        }
        let mut newer = good.to_vec();
        newer[0] = 9;
        assert!(matches!(State::decode(1, &newer), Err(Error::Newer { found: 9, max: 2, .. })));
        // A finished image is read by programs that know nothing of imports.
        assert_eq!((State { making: false, ..state() }.encode()[0], good[0]), (1, 2));
    }

    #[test]
    fn layout_tables_leave_no_gap() {
        for (table, fixed) in [(STATE_LAYOUT, STATE_FIXED), (SNAP_LAYOUT, SNAP_FIXED)] {
            let end = table.iter().fold(0, |end, (name, offset, bytes)| {
                assert_eq!(*offset, end, "{name}");
                offset + bytes
            });
            assert_eq!(end, fixed);
        }
    }
}

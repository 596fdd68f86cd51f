//! Identity: what a reader asked for, compared with what stands at its place.
//!
//! index → place and [`Asked`] → header and key found there → the same, or [`Error::Corrupt`] with both
//!
//! A place says nothing of what stands there. A checksum proves that the bytes are what was written at that place, not
//! that they are what the reader wants: an index that points wrong, or a segment that was used again too early, gives
//! whole operations of something else. So every read is compared, from the device, from the cache and from memory.
//!
//! Invariant: no value leaves the reader that was written for another object, space, slot, key or offset.

use std::fmt;

use esker_store::{Error, Result};

use crate::format::{Kind, Loc, OpHeader, Role};

/// What a reader wants of the operation at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked<'a> {
    /// Number of the object; `None` if the object shares data, which may have been written for another.
    pub object: Option<u64>,
    /// Which of the object's values.
    pub what: Sought<'a>,
}

/// Which value of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought<'a> {
    /// A slot.
    Slot(u64),
    /// A key of the omap.
    Omap(&'a [u8]),
    /// Data. The offset in the object that the payload's first byte was written to; `None` where a range was taken to
    /// another offset.
    Data(Option<u64>),
    /// A piece of a checkpoint.
    Piece(Role),
}

impl Sought<'_> {
    /// The same, to be kept.
    pub fn keep(self) -> SoughtLater {
        match self {
            Sought::Slot(slot) => SoughtLater::Other(Sought::Slot(slot)),
            Sought::Data(at) => SoughtLater::Other(Sought::Data(at)),
            Sought::Piece(role) => SoughtLater::Other(Sought::Piece(role)),
            Sought::Omap(key) => SoughtLater::Omap(key.into()),
        }
    }
}

/// A [`Sought`] that is looked for when its call has returned.
#[derive(Debug)]
pub enum SoughtLater {
    /// A key of the omap.
    Omap(Box<[u8]>),
    /// What holds no bytes.
    Other(Sought<'static>),
}

impl SoughtLater {
    /// What is sought.
    pub fn sought(&self) -> Sought<'_> {
        match self {
            Self::Omap(key) => Sought::Omap(key),
            Self::Other(sought) => *sought,
        }
    }
}

impl<'a> Asked<'a> {
    /// A piece of a checkpoint, of an object, or of none with number 0.
    pub fn piece(object: u64, role: Role) -> Self {
        Self { object: Some(object), what: Sought::Piece(role) }
    }

    /// Whether an operation is it, as far as its header tells: all but the key of an omap.
    #[inline]
    fn is_header(&self, header: &OpHeader) -> bool {
        self.object.is_none_or(|object| object == header.object)
            && match self.what {
                Sought::Slot(slot) => header.kind == Kind::SlotSet && header.argument == slot,
                Sought::Omap(_) => header.kind == Kind::OmapSet,
                Sought::Data(at) => header.kind == Kind::Write && at.is_none_or(|at| at == header.argument),
                Sought::Piece(role) => header.kind == Kind::Index && header.argument == role.argument(),
            }
    }

    /// Whether an operation is it; `key` is the operation's key as it stands there.
    #[inline]
    pub fn is(&self, header: &OpHeader, key: &[u8]) -> bool {
        self.is_header(header)
            && match self.what {
                Sought::Omap(sought) => header.strip_key(key).0 == sought,
                _ => true,
            }
    }

    /// Compares, given the operation's bytes as far as its key.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the place and both identities.
    #[inline]
    pub fn compare(&self, loc: Loc, header: &OpHeader, operation: &[u8]) -> Result<()> {
        let key = operation.get(header.key_start()..header.key_end()).unwrap_or_default();
        if self.is(header, key) { Ok(()) } else { Err(self.mismatch(loc, header, key)) }
    }

    /// Says what stands there instead.
    #[cold]
    pub fn mismatch(&self, loc: Loc, header: &OpHeader, key: &[u8]) -> Error {
        let found = match header.kind {
            Kind::SlotSet => format!("slot {}", header.argument),
            Kind::OmapSet => format!("key {}", header.strip_key(key).0.escape_ascii()),
            Kind::Write => format!("data of offset {}", header.argument),
            Kind::Index => match Role::from_argument(header.argument) {
                Some(role) => format!("piece {role:?} of a checkpoint"),
                None => format!("piece {:#x} of a checkpoint", header.argument),
            },
            kind => format!("a {kind:?}"),
        };
        let what = format!("{self} was asked for, and {found} of object number {} stands there", header.object);
        Error::Corrupt { offset: loc.offset(), what }
    }
}

impl fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            Sought::Slot(slot) => write!(f, "slot {slot}")?,
            Sought::Omap(key) => write!(f, "key {}", key.escape_ascii())?,
            Sought::Data(Some(at)) => write!(f, "data of offset {at}")?,
            Sought::Data(None) => write!(f, "data")?,
            Sought::Piece(role) => write!(f, "piece {role:?} of a checkpoint")?,
        }
        match self.object {
            Some(object) => write!(f, " of object number {object}"),
            None => write!(f, " of an object that shares data"),
        }
    }
}

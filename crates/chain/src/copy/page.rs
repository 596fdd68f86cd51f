//! Pages: the state of a store in pieces, in the one order that both sides go through.
//!
//! collections by name → in each its objects by name → of each: attributes and size, bytes, omap, slots
//!
//! Invariant: pages of one object's omap follow each other without a gap, and so do those of its slots: each begins
//! above the last key of the one before. Above the last page, and between chunks of bytes, there is nothing.

use std::ops::Range;

use bytes::Bytes;
use esker_store::{Collection, ObjectId};

/// A run of one object's space. It also says how far a walk over pages has come: all pages up to it are done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Span {
    /// The collection itself.
    Collection(Collection),
    /// The object itself, its size and all of its xattrs.
    Object {
        /// The object.
        object: ObjectId,
        /// Size of its bytes space, in bytes.
        size: u64,
    },
    /// A chunk of its bytes that holds data.
    Bytes {
        /// The object.
        object: ObjectId,
        /// The chunk in bytes, cut to the object's size.
        range: Range<u64>,
    },
    /// The omap keys `after < key <= to`.
    Omap {
        /// The object.
        object: ObjectId,
        /// The last key of the page before; `None`: this is the first page.
        after: Option<Bytes>,
        /// The last key of this page.
        to: Bytes,
    },
    /// The slots `after < index <= to`.
    Slots {
        /// The object.
        object: ObjectId,
        /// The last slot of the page before; `None`: this is the first page.
        after: Option<u64>,
        /// The last slot of this page.
        to: u64,
    },
}

impl Span {
    /// The collection that it is, or is in.
    pub fn collection(&self) -> &Collection {
        match self {
            Self::Collection(collection) => collection,
            Self::Object { object, .. }
            | Self::Bytes { object, .. }
            | Self::Omap { object, .. }
            | Self::Slots { object, .. } => object.collection(),
        }
    }

    /// The object that it is of; `None` for a collection.
    pub fn object(&self) -> Option<&ObjectId> {
        match self {
            Self::Collection(_) => None,
            Self::Object { object, .. }
            | Self::Bytes { object, .. }
            | Self::Omap { object, .. }
            | Self::Slots { object, .. } => Some(object),
        }
    }
}

/// A part of the source's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Which part.
    pub span: Span,
    /// [`Content::digest`](super::Content::digest) of what the source holds there; 0 for a collection.
    pub digest: u128,
    /// About the bytes of names, keys and payload that it holds there: [`Content::bytes`](super::Content::bytes).
    pub bytes: u64,
}

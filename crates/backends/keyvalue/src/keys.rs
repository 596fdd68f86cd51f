//! How things are named in the ordered store. Numbers in keys are big-endian, so that they order as numbers.
//!
//! ```text
//! m                              the last commit and the next number             names
//! c collection                   a collection                                    names
//! n len collection name          an object's head (see records)                  names
//! d tag number                   a space that is gone, its entries not yet       names
//! f file                         bytes of that file that extents point to        names
//! e number offset                an extent of a file                             names
//! x number name                  an xattr                                        entries
//! o number key                   an omap entry                                   entries
//! s number index                 a slot                                          entries
//! b number strip                 a strip of bytes                                strips
//! ```
//!
//! The last column is the family. `number` (8 bytes) is a space's own: a space that is cleared goes on under a new
//! number, and what stood under the old one is taken away later, where no scan meets it.
//!
//! Invariants:
//! 1. A number is given once.
//! 2. Between two spaces of a family no key of a third stands.

use bytes::{BufMut, Bytes, BytesMut};
use esker_store::{Collection, ObjectId};

/// Families that an engine may keep apart.
#[cfg(feature = "rocksdb")]
pub const FAMILIES: usize = 3;

/// The record of the last commit.
pub const META: &[u8] = b"m";

/// A kind of space, as its keys begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Tag {
    /// Extents in files.
    Extents = b'e',
    /// Extended attributes.
    Xattrs = b'x',
    /// Ordered keys.
    Omap = b'o',
    /// Numbered records.
    Slots = b's',
    /// Strips of bytes.
    Strips = b'b',
}

impl Tag {
    /// The tag that a key begins with.
    pub fn of(byte: u8) -> Option<Self> {
        [Self::Extents, Self::Xattrs, Self::Omap, Self::Slots, Self::Strips].into_iter().find(|tag| *tag as u8 == byte)
    }
}

/// Which family a key belongs to, below `FAMILIES`.
#[cfg(feature = "rocksdb")]
pub fn family(key: &[u8]) -> usize {
    match key.first() {
        Some(b'x' | b'o' | b's') => 1,
        Some(b'b') => 2,
        _ => 0,
    }
}

/// A collection's key.
pub fn collection(collection: &Collection) -> Bytes {
    [b"c", &collection.name()[..]].concat().into()
}

/// What the keys of a collection's objects begin with.
pub fn names(collection: &Collection) -> Bytes {
    let name = collection.name();
    // Names are checked to be at most 255 bytes; a longer one names nothing, and its key is no object's.
    [&[b'n', name.len().min(255) as u8], &name[..]].concat().into()
}

/// An object's key.
pub fn name(object: &ObjectId) -> Bytes {
    let collection = object.collection().name();
    let mut key = BytesMut::with_capacity(2 + collection.len() + object.name().len());
    key.put_u8(b'n');
    key.put_u8(collection.len().min(255) as u8);
    key.put_slice(collection);
    key.put_slice(object.name());
    key.freeze()
}

/// The key of `rest` in a space.
pub fn entry(tag: Tag, number: u64, rest: &[u8]) -> Bytes {
    let mut key = BytesMut::with_capacity(9 + rest.len());
    key.put_u8(tag as u8);
    key.put_u64(number);
    key.put_slice(rest);
    key.freeze()
}

/// The key of a numbered thing in a space.
pub fn numbered(tag: Tag, number: u64, at: u64) -> Bytes {
    entry(tag, number, &at.to_be_bytes())
}

/// The first key behind a space.
pub fn space_end(tag: Tag, number: u64) -> Bytes {
    after_all(&entry(tag, number, &[]))
}

/// The first key behind all that begin so.
pub fn after_all(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 255 {
            end.push(last + 1);
            break;
        }
    }
    end.into()
}

/// The least key above this one.
pub fn next(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

/// What is behind tag and number.
pub fn rest(key: &[u8]) -> &[u8] {
    key.get(9..).unwrap_or_default()
}

/// What is behind tag and number, as a number.
pub fn rest_number(key: &[u8]) -> Option<u64> {
    rest(key).try_into().ok().map(u64::from_be_bytes)
}

/// The record of a space that is gone.
pub fn dead(tag: Tag, number: u64) -> Bytes {
    let mut key = BytesMut::with_capacity(10);
    key.put_u8(b'd');
    key.put_u8(tag as u8);
    key.put_u64(number);
    key.freeze()
}

/// The space that such a record names.
pub fn dead_space(key: &[u8]) -> Option<(Tag, u64)> {
    Some((Tag::of(*key.get(1)?)?, u64::from_be_bytes(key.get(2..)?.try_into().ok()?)))
}

/// A file's record.
pub fn file(file: u64) -> Bytes {
    [&b"f"[..], &file.to_be_bytes()].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_what_they_name() {
        let object = |collection: &'static str, object: &'static str| ObjectId::new(collection.into(), object);
        assert!(name(&object("c", "a")) < name(&object("c", "b")));
        assert!(name(&object("c", "z")) < after_all(&names(&"c".into())));
        assert!(!name(&object("cc", "z")).starts_with(&names(&"c".into())));
        assert!(numbered(Tag::Slots, 1, 255) < numbered(Tag::Slots, 1, 256));
        assert!(numbered(Tag::Slots, 1, u64::MAX) < space_end(Tag::Slots, 1));
        assert!(space_end(Tag::Slots, 1) <= numbered(Tag::Slots, 2, 0));
        assert_eq!(after_all(&[1, 255]), vec![2]);
        assert_eq!(dead_space(&dead(Tag::Omap, 77)), Some((Tag::Omap, 77)));
        assert_eq!(rest_number(&numbered(Tag::Strips, 9, 4)), Some(4));
    }
}

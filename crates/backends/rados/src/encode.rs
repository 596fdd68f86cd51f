//! How names, keys and values of the waist stand in RADOS.
//!
//! ```text
//! object    o collection SEPARATOR name; longer than RADOS takes: p and the same in pieces of 7 bits
//! shard     i collection SEPARATOR two digits: the names of the objects of a collection
//! xattr     u name, where that is short; else an omap value under x name END
//! omap      o key END | slot: s and 16 hexadecimal digits of 2^64 - 1 - index | x name END
//! shard     omap: n name, escaped in another way, NAME_END token: an object of this name was made under this token
//! value     of 8 bytes in an xattr: 00, big-endian; every other: 01, as it is
//! ```
//!
//! Names and keys are escaped: 00 is 01 01, and 01 is 01 02, so that none holds a NUL and their order stays. In shards
//! 00 is 01 02, and 01 is 01 03: what ends a name there is less than all that it may go on with.
//!
//! Invariants:
//! 1. Two names are encoded alike only if they are the same, and omap keys stand in the order of what they encode.
//! 2. No value is stored empty: one that is not there compares as an empty one.
//! 3. The start of a scan, encoded without END, stands before its key and behind every key before it.

use std::ffi::CString;

use bytes::Bytes;
use esker_store::{Collection, ObjectId};

/// Behind a collection's name; no escaped byte is followed by it.
const SEPARATOR: [u8; 2] = [1, 3];
/// Ends an omap key that may be the beginning of others.
const END: u8 = 1;
/// RADOS takes names of 2,048 bytes.
const NAME_BYTES_MAX: usize = 2_000;
/// Longest escaped name of an xattr that is one of RADOS too: it takes 100 bytes, with what stands before.
const XATTR_NAME_BYTES_MAX: usize = 90;
/// Before a value of 8 bytes, which is a number.
const NUMBER: u8 = 0;
/// Before every other value.
pub(crate) const VALUE: u8 = 1;

/// Objects that hold the names of a collection.
pub(crate) const SHARDS: u32 = 16;
/// The object of the store itself, and of its collections.
pub(crate) const STORE: &std::ffi::CStr = c"store";
/// The xattr of an object that only keeps a late client from making it: it counts as missing.
pub(crate) const TOMB: &std::ffi::CStr = c"tomb";
/// The xattr of an object that tells where its name stands: an [`Entry`].
pub(crate) const NAMED: &std::ffi::CStr = c"named";
/// Ends a name in a shard; its token follows.
const NAME_END: [u8; 2] = [1, 1];

fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    for byte in bytes {
        match byte {
            0 => out.extend_from_slice(&[1, 1]),
            1 => out.extend_from_slice(&[1, 2]),
            other => out.push(*other),
        }
    }
}

/// What was escaped up to the first END or SEPARATOR, or to the end.
fn unescape(escaped: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.iter();
    while let Some(byte) = rest.next() {
        match (byte, (*byte == 1).then(|| rest.next())) {
            (1, Some(Some(1))) => bytes.push(0),
            (1, Some(Some(2))) => bytes.push(1),
            (1, _) => break,
            (other, _) => bytes.push(*other),
        }
    }
    bytes
}

/// Bytes without NUL.
fn c_string(bytes: Vec<u8>) -> CString {
    debug_assert!(!bytes.contains(&0), "{bytes:?}");
    CString::new(bytes).unwrap_or_default()
}

fn full_name(kind: u8, collection: &Collection, name: &[u8]) -> CString {
    let mut full = vec![kind];
    escape(collection.name(), &mut full);
    full.extend_from_slice(&SEPARATOR);
    escape(name, &mut full);
    if full.len() <= NAME_BYTES_MAX {
        return c_string(full);
    }
    // Of these bytes there are at most 255 + 3 + 1,024.
    let mut plain = vec![kind, collection.name().len() as u8];
    plain.extend_from_slice(collection.name());
    plain.extend_from_slice(name);
    let mut packed = vec![b'p'];
    let (mut held, mut bits) = (0u32, 0);
    for byte in plain {
        held = held << 8 | u32::from(byte);
        bits += 8;
        while bits >= 7 {
            bits -= 7;
            packed.push(0x80 | (held >> bits & 0x7f) as u8);
        }
    }
    packed.push(0x80 | (held << (7 - bits) & 0x7f) as u8);
    c_string(packed)
}

/// The name of an object.
pub(crate) fn object(id: &ObjectId) -> CString {
    full_name(b'o', id.collection(), id.name())
}

/// The name of one of the [`SHARDS`] of a collection.
pub(crate) fn shard(collection: &Collection, number: u32) -> CString {
    full_name(b'i', collection, format!("{number:02}").as_bytes())
}

/// Where the name of an object stands: in a shard that its maker chose, under a token that no other has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) shard: u32,
    pub(crate) token: u128,
    /// Where the object stands there was a tomb: it becomes one again when it is removed.
    pub(crate) on_tomb: bool,
}

impl Entry {
    /// As it stands in [`NAMED`].
    pub(crate) fn encode(self) -> Vec<u8> {
        format!("{}{:02}{:032x}", if self.on_tomb { 't' } else { 'n' }, self.shard, self.token).into_bytes()
    }

    pub(crate) fn decode(stored: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(stored).ok().filter(|text| text.len() == 35 && text.is_ascii())?;
        let on_tomb = match text.as_bytes()[0] {
            b'n' => false,
            b't' => true,
            _ => return None,
        };
        let shard = text[1..3].parse().ok().filter(|shard| *shard < SHARDS)?;
        Some(Self { shard, token: u128::from_str_radix(&text[3..], 16).ok()?, on_tomb })
    }

    /// Its key in the shard.
    pub(crate) fn key(self, name: &[u8]) -> Vec<u8> {
        let mut key = before_name(name);
        key.extend_from_slice(format!("{:032x}", self.token).as_bytes());
        key
    }
}

/// Stands before the entries of a name in a shard, and behind those of all names before it.
fn before_name(name: &[u8]) -> Vec<u8> {
    let mut key = vec![kind::NAME];
    for byte in name {
        match byte {
            0 | 1 => key.extend_from_slice(&[1, 2 + byte]),
            other => key.push(*other),
        }
    }
    key.extend_from_slice(&NAME_END);
    key
}

/// Stands behind the entries of a name in a shard, and before those of all names behind it.
pub(crate) fn behind_name(name: &[u8]) -> CString {
    let mut key = before_name(name);
    key.push(0xff);
    c_string(key)
}

/// The name of an entry's key.
pub(crate) fn name_of(key: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(key.len());
    let mut rest = key.iter().skip(1);
    while let Some(byte) = rest.next() {
        match (byte, (*byte == 1).then(|| rest.next())) {
            (1, Some(Some(escaped @ 2..=3))) => name.push(escaped - 2),
            (1, _) => break,
            (other, _) => name.push(*other),
        }
    }
    name
}

/// Where an xattr stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Xattr {
    /// In the xattr of this name.
    Own(CString),
    /// Under this omap key.
    Omap(Vec<u8>),
}

/// Where the xattr of this name stands.
pub(crate) fn xattr(name: &[u8]) -> Xattr {
    let mut own = vec![b'u'];
    escape(name, &mut own);
    if own.len() <= XATTR_NAME_BYTES_MAX {
        return Xattr::Own(c_string(own));
    }
    Xattr::Omap(omap_key(b'x', name))
}

/// The name of an xattr that stands as one.
pub(crate) fn xattr_name(own: &[u8]) -> Option<Bytes> {
    Some(unescape(own.strip_prefix(b"u")?).into())
}

fn omap_key(kind: u8, key: &[u8]) -> Vec<u8> {
    let mut encoded = vec![kind];
    escape(key, &mut encoded);
    encoded.push(END);
    encoded
}

/// Kinds of omap keys, by what they begin with.
pub(crate) mod kind {
    /// Keys of the waist's omap.
    pub(crate) const OMAP: u8 = b'o';
    /// Slots.
    pub(crate) const SLOT: u8 = b's';
    /// Xattrs with long names.
    pub(crate) const XATTR: u8 = b'x';
    /// Entries of names, in shards.
    pub(crate) const NAME: u8 = b'n';
}

/// Before all keys of a kind.
pub(crate) fn first_of(kind: u8) -> CString {
    c_string(vec![kind])
}

/// Behind all keys of a kind.
pub(crate) fn end_of(kind: u8) -> Vec<u8> {
    vec![kind + 1]
}

/// An omap key.
pub(crate) fn omap(key: &[u8]) -> Vec<u8> {
    omap_key(kind::OMAP, key)
}

/// Stands before an omap key and behind all before it.
pub(crate) fn before_omap(key: &[u8]) -> CString {
    let mut encoded = omap(key);
    encoded.pop();
    c_string(encoded)
}

/// Stands before an encoded omap key, slot or xattr, and behind all before it.
pub(crate) fn before(key: &[u8]) -> CString {
    match slot_of(key) {
        Some(index) => before_slot(index),
        // Behind its END no other key stands between.
        None => c_string(key[..key.len().saturating_sub(1)].to_vec()),
    }
}

/// The key that an encoded one encodes, of an omap key or an xattr.
pub(crate) fn key_of(encoded: &[u8]) -> Bytes {
    unescape(encoded.get(1..).unwrap_or_default()).into()
}

/// A slot. The last is the first.
pub(crate) fn slot(index: u64) -> Vec<u8> {
    format!("s{:016x}", u64::MAX - index).into_bytes()
}

/// Stands before this slot, and behind all that have higher numbers.
pub(crate) fn before_slot(index: u64) -> CString {
    c_string(index.checked_add(1).map_or_else(|| vec![kind::SLOT], slot))
}

/// The number of a slot.
pub(crate) fn slot_of(encoded: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(encoded.strip_prefix(b"s")?).ok()?;
    Some(u64::MAX - u64::from_str_radix(digits, 16).ok()?)
}

/// The value of an xattr.
pub(crate) fn xattr_value(value: &[u8]) -> Vec<u8> {
    match <[u8; 8]>::try_from(value) {
        Ok(number) => number_value(u64::from_le_bytes(number)),
        Err(_) => self::value(value),
    }
}

/// A number in an xattr: they compare as bytes.
pub(crate) fn number_value(number: u64) -> Vec<u8> {
    let mut encoded = vec![NUMBER];
    encoded.extend_from_slice(&number.to_be_bytes());
    encoded
}

/// Above every number in an xattr, and at most every other value.
pub(crate) const ABOVE_NUMBERS: &[u8] = &[VALUE];

/// A value of the omap or a slot.
pub(crate) fn value(value: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(1 + value.len());
    encoded.push(VALUE);
    encoded.extend_from_slice(value);
    encoded
}

/// The value that an encoded one encodes; `None` for one that no client stores.
pub(crate) fn value_of(encoded: &[u8]) -> Option<Bytes> {
    match encoded.split_first()? {
        (&NUMBER, number) => Some(Bytes::copy_from_slice(&u64::from_be_bytes(number.try_into().ok()?).to_le_bytes())),
        (&VALUE, value) => Some(Bytes::copy_from_slice(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(collection: &'static str, name: &[u8]) -> ObjectId {
        ObjectId::new(Collection::from(collection), name.to_vec())
    }

    #[test]
    fn names_are_alike_only_if_they_are_the_same() {
        let names = [&b"a"[..], b"a\0", b"a\x01", b"a\x01\x01", b"\0a", b"\x01\x03a", b"a\x03", b"\xff"];
        let mut seen = std::collections::BTreeSet::new();
        for collection in ["c", "c\x01\x03a", "c\0"] {
            for name in names {
                assert!(seen.insert(object(&id(collection, name))), "{collection:?} {name:?}");
            }
        }
        for long in [vec![0; 1_024], vec![1; 1_024], [vec![0; 1_023], vec![1]].concat()] {
            let name = object(&id("c", &long));
            assert!(name.as_bytes().len() <= 2_048 && seen.insert(name));
        }
        let longest = ObjectId::new(Collection::new(vec![0; 255]), vec![0; 1_024]);
        assert!(object(&longest).as_bytes().len() <= 2_048);
    }

    #[test]
    fn keys_stand_in_their_order_and_scans_begin_before_their_start() {
        let keys =
            [&b""[..], b"\0", b"\0\0", b"\0\x01", b"\x01", b"\x01\0", b"\x02", b"a", b"a\0", b"a\x01", b"ab", b"b"];
        for (place, key) in keys.iter().enumerate() {
            let encoded = omap(key);
            assert_eq!(key_of(&encoded), key);
            assert!(!encoded.contains(&0));
            for before in &keys[..place] {
                assert!(omap(before) < encoded, "{before:?} {key:?}");
                assert!(omap(before).as_slice() < before_omap(key).as_bytes(), "{before:?} {key:?}");
            }
            assert!(before_omap(key).as_bytes() < encoded.as_slice());
            assert!(first_of(kind::OMAP).as_bytes() < encoded.as_slice() && encoded < end_of(kind::OMAP));
        }
        for index in [0, 1, 9, 1 << 20, u64::MAX - 1, u64::MAX] {
            assert_eq!(slot_of(&slot(index)), Some(index));
            assert!(before_slot(index).as_bytes() < slot(index).as_slice());
            assert!(
                index == u64::MAX
                    || slot(index + 1) < slot(index) && slot(index + 1).as_slice() <= before_slot(index).as_bytes()
            );
        }
    }

    #[test]
    fn entries_of_names_stand_in_the_order_of_their_names() {
        let names =
            [&b""[..], b"\0", b"\0\0", b"\0\x01", b"\x01", b"\x01\0", b"\x02", b"a", b"a\0", b"a\x01", b"ab", b"b"];
        let entries = [0, u128::MAX].map(|token| Entry { shard: 15, token, on_tomb: token == 0 });
        for (place, name) in names.iter().enumerate() {
            let keys = entries.map(|entry| entry.key(name));
            for (entry, key) in entries.iter().zip(&keys) {
                assert_eq!((name_of(key), Entry::decode(&entry.encode())), (name.to_vec(), Some(*entry)));
                assert!(!key.contains(&0) && key.as_slice() < behind_name(name).as_bytes());
                assert!(first_of(kind::NAME).as_bytes() < key.as_slice() && *key < end_of(kind::NAME));
            }
            assert!(keys[0] < keys[1]);
            if let Some(next) = names.get(place + 1) {
                assert!(behind_name(name).as_bytes() < entries[0].key(next).as_slice(), "{name:?} {next:?}");
            }
        }
        for wrong in [&b""[..], b"n15", b"n160123456789abcdef0123456789abcdef", b"x150123456789abcdef0123456789abcdef"]
        {
            assert_eq!(Entry::decode(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn values_come_back_and_none_is_empty() {
        for raw in [&b""[..], b"\0", b"1234567", b"12345678", b"\xff\xff\xff\xff\xff\xff\xff\xff", b"123456789"] {
            assert_eq!(value_of(&xattr_value(raw)).unwrap(), raw);
            assert_eq!(value_of(&value(raw)).unwrap(), raw);
        }
        assert!(xattr_value(&1u64.to_le_bytes()) < xattr_value(&256u64.to_le_bytes()));
        assert!(number_value(u64::MAX).as_slice() < ABOVE_NUMBERS && ABOVE_NUMBERS <= value(b"").as_slice());
        assert!(value_of(b"").is_none() && value_of(b"\0short").is_none() && value_of(b"\x07").is_none());
    }

    #[test]
    fn long_names_of_xattrs_stand_in_the_omap() {
        let Xattr::Own(own) = xattr(b"epoch\0") else { panic!("a short name") };
        assert_eq!(xattr_name(own.as_bytes()).unwrap(), &b"epoch\0"[..]);
        let Xattr::Omap(key) = xattr(&[0; 60]) else { panic!("a long name") };
        assert_eq!(key_of(&key), vec![0; 60]);
        assert!(xattr_name(TOMB.to_bytes()).is_none() && xattr_name(NAMED.to_bytes()).is_none());
    }
}

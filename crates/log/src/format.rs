//! What this face keeps in the store: names of objects and keys, and the bytes of an entry.
//!
//! Pure encode and decode, no I/O. Numbers in values are little-endian; numbers in names and keys are such that byte
//! order is number order.
//!
//! Invariants:
//! 1. An entry's checksum covers its place in the log, so that what answers for another position is told from what was
//!    asked for.
//! 2. Decoding checks every length before it is used; stored bytes never make arithmetic overflow.
//! Format: docs/format.md#what-the-log-face-keeps-in-the-store

use bytes::{BufMut, Bytes, BytesMut};
pub use esker_store::names::{LABEL_BYTES_MAX, NAME_BYTES_MAX};
pub(crate) use esker_store::number::{last_number as key_number, number, number_from, prefixed};
use esker_store::number::{numbered, u32_at, u64_at};
use esker_store::{Collection, Compare, Condition, Directory, ObjectId, ObjectStore, Registry, prefix};
use smallvec::SmallVec;

use crate::nonce::Nonce;
use crate::{Error, Result};

/// Longest name of a stream, in bytes. Shortest: 1.
pub const STREAM_BYTES_MAX: usize = 64;
/// Most streams that an entry belongs to.
pub const STREAMS_MAX: usize = 16;
/// Bytes of an entry's header, before the names of its streams.
pub const ENTRY_HEADER_BYTES: usize = 40;

pub(crate) const COLLECTION: &str = "log";
/// Xattr of a data object: the epoch at which it was sealed last, 8 bytes little-endian. Writes of an older epoch are
/// refused.
pub(crate) const EPOCH: &[u8] = b"epoch";
/// Xattr of a data object: local positions below are trimmed, 8 bytes little-endian; absent means 0.
/// `u64::MAX`: the object is about to go.
pub(crate) const TRIM: &[u8] = b"trim";
/// Xattr of a head: a number that grows with every change of the view, 8 bytes little-endian.
pub(crate) const VERSION: &[u8] = b"version";
/// Xattr of a head: the view.
pub(crate) const VIEW: &[u8] = b"view";
/// Xattr of the directory: the last log id given, 8 bytes little-endian.
pub(crate) const LAST_ID: &[u8] = b"last";

fn object(name: String) -> ObjectId {
    ObjectId::new(Collection::from(COLLECTION), name)
}

/// The objects whose names begin with `prefix`, in order.
pub(crate) fn objects<'a>(
    store: &'a dyn ObjectStore,
    prefix: &str,
) -> impl Iterator<Item = esker_store::Result<ObjectId>> + use<'a> {
    prefix::objects(store, &Collection::from(COLLECTION), prefix.as_bytes(), None)
}

/// The directory of logs. What is noted beside an id that is made or removed is the time, 8 bytes: see docs/format.md.
pub(crate) fn registry() -> Registry {
    Registry {
        directory: Directory { object: object("directory".into()), what: "directory of logs", names: b"n", ids: None },
        last_id: LAST_ID,
        left: b'u',
    }
}

pub(crate) fn head(log: u64) -> ObjectId {
    object(format!("h/{log:016x}"))
}

/// A checkpoint of a state machine: its pieces are the bytes of the object.
pub(crate) fn checkpoint(log: u64, name: &str) -> ObjectId {
    object(format!("m/{log:016x}/{name}"))
}

pub(crate) fn checkpoint_prefix(log: u64) -> String {
    format!("m/{log:016x}/")
}

pub(crate) fn data_prefix(log: u64) -> String {
    format!("d/{log:016x}/")
}

pub(crate) fn data(log: u64, stripe: u64, column: u32) -> ObjectId {
    object(format!("d/{log:016x}/{stripe:016x}/{column:08x}"))
}

/// Stripe and column of a data object by its name.
pub(crate) fn data_place(log: u64, name: &[u8]) -> Option<(u64, u32)> {
    let rest = std::str::from_utf8(name.strip_prefix(data_prefix(log).as_bytes())?).ok()?;
    let (stripe, column) = rest.split_once('/')?;
    Some((u64::from_str_radix(stripe, 16).ok()?, u32::from_str_radix(column, 16).ok()?))
}

/// Key of an entry, where entries stand in the omap.
pub(crate) fn entry_key(local: u64) -> Bytes {
    numbered(b'e', local)
}

/// Key that says that an entry belongs to a stream; the value is empty.
pub(crate) fn stream_key(stream: &[u8], local: u64) -> Bytes {
    let mut key = BytesMut::with_capacity(10 + stream.len());
    key.put_u8(b's');
    key.put_u8(stream.len() as u8);
    key.put_slice(stream);
    key.put_u64(local);
    key.freeze()
}

/// Key of an entry by its writer and number; the value is its position, 8 bytes.
pub(crate) fn nonce_key(nonce: Nonce) -> Bytes {
    prefixed(b'w', &[nonce.writer.to_be_bytes(), nonce.number.to_be_bytes()].concat())
}

/// Key of a consumer's position, in a head.
pub(crate) fn consumer_key(name: &str) -> Bytes {
    prefixed(b'c', name.as_bytes())
}

/// Key of the last number of a writer whose entries were trimmed away, in a head; the value has 8 bytes.
pub(crate) fn writer_key(writer: u64) -> Bytes {
    numbered(b'w', writer)
}

/// Key of the opening of a named writer, in a head; the value is the head's version with it, 8 bytes.
pub(crate) fn opened_key(writer: u64) -> Bytes {
    numbered(b'f', writer)
}

/// `/` and control characters are not allowed in a name.
pub(crate) fn check_name(what: &'static str, name: &str, limit: (&str, usize)) -> Result<()> {
    let checked = esker_store::names::check_name(name, limit, |c| c == '/' || c.is_control());
    checked.map_err(|why| Error::invalid(what, why))
}

/// The limit of names of owners, writers and consumers.
pub(crate) const LABEL: (&str, usize) = ("LABEL_BYTES_MAX", LABEL_BYTES_MAX);

/// Names of the streams of an entry.
pub type Streams = SmallVec<[Bytes; 1]>;

/// What stands at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// An entry, its data behind the header.
    Data = 1,
    /// A position that was given up.
    Filled = 2,
    /// A position whose entry was given up.
    Trimmed = 3,
    /// An entry whose data stands in the bytes of the object.
    Placed = 4,
}

/// An entry's header with what stands behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub kind: Kind,
    pub position: u64,
    pub nonce: Nonce,
    pub time_ms: u64,
    pub streams: Streams,
    /// The data, or of `Placed` where it stands: offset u64, length u32, CRC32C of it u32.
    pub body: Bytes,
}

/// Fields of fixed place: name, offset, bytes.
pub type Described = &'static [(&'static str, usize, usize)];

pub(crate) const ENTRY_LAYOUT: Described = &[
    ("kind", 0, 1),
    ("streams", 1, 1),
    ("reserved", 2, 2),
    ("crc32c", 4, 4),
    ("position", 8, 8),
    ("writer", 16, 8),
    ("number", 24, 8),
    ("time_ms", 32, 8),
];

pub(crate) const PLACED_LAYOUT: Described = &[("offset", 0, 8), ("len", 8, 4), ("crc32c", 12, 4)];

impl Stored {
    pub(crate) fn mark(kind: Kind, position: u64, time_ms: u64) -> Self {
        Self { kind, position, nonce: Nonce::default(), time_ms, streams: Streams::new(), body: Bytes::new() }
    }

    pub(crate) fn encode(&self) -> Bytes {
        let streams: usize = self.streams.iter().map(|stream| 1 + stream.len()).sum();
        let mut bytes = BytesMut::with_capacity(ENTRY_HEADER_BYTES + streams + self.body.len());
        bytes.put_u8(self.kind as u8);
        bytes.put_u8(self.streams.len() as u8);
        bytes.put_u16_le(0);
        bytes.put_u32_le(0);
        bytes.put_u64_le(self.position);
        bytes.put_u64_le(self.nonce.writer);
        bytes.put_u64_le(self.nonce.number);
        bytes.put_u64_le(self.time_ms);
        for stream in &self.streams {
            bytes.put_u8(stream.len() as u8);
            bytes.put_slice(stream);
        }
        bytes.put_slice(&self.body);
        let crc = crc32c::crc32c(&bytes);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes.freeze()
    }

    /// The streams' names as they stand in what was encoded.
    pub(crate) fn names_in(&self, encoded: &Bytes) -> Streams {
        let mut at = ENTRY_HEADER_BYTES;
        let names = self.streams.iter().map(|stream| {
            let start = at + 1;
            at = start + stream.len();
            encoded.slice(start..at)
        });
        names.collect()
    }

    /// What `bytes` say of `position`; the reason if they do not hold.
    pub(crate) fn decode(position: u64, bytes: &Bytes) -> std::result::Result<Self, String> {
        let short = || format!("{} bytes, too few for an entry", bytes.len());
        if bytes == LOST_MARK {
            return Err("it was lost in a repair of the store".into());
        }
        let (header, _) = bytes.split_first_chunk::<ENTRY_HEADER_BYTES>().ok_or_else(short)?;
        let word = |at: usize| u64_at(header, at);
        let found = u32_at(header, 4);
        let crc = crc32c::crc32c_append(crc32c::crc32c(&header[..4]), &[0; 4]);
        let crc = crc32c::crc32c_append(crc, &bytes[8..]);
        if crc != found {
            return Err(format!("checksum mismatch: expected {found:#010x}, found {crc:#010x}"));
        }
        if word(8) != position {
            return Err(format!("it holds position {}", word(8)));
        }
        let kind = match header[0] {
            1 => Kind::Data,
            2 => Kind::Filled,
            3 => Kind::Trimmed,
            4 => Kind::Placed,
            other => return Err(format!("unknown kind {other}")),
        };
        let mut at = ENTRY_HEADER_BYTES;
        let mut streams = Streams::new();
        for _ in 0..header[1] {
            let len = usize::from(*bytes.get(at).ok_or_else(short)?);
            if at + 1 + len > bytes.len() {
                return Err(short());
            }
            streams.push(bytes.slice(at + 1..at + 1 + len));
            at += 1 + len;
        }
        let nonce = Nonce { writer: word(16), number: word(24) };
        Ok(Self { kind, position, nonce, time_ms: word(32), streams, body: bytes.slice(at..) })
    }
}

/// What a repair puts where an entry was that it could not read: a position that reads as lost, and not as a hole.
const LOST_MARK: &[u8] = b"esker: lost in a repair";

/// The value that says, in the place of one that is lost, that an entry stood there; `None` if no entry of a log did.
///
/// `name` is that of an object of the collection `log`; `key` the omap key, or `None` for a slot.
pub fn lost_mark(id: &ObjectId, key: Option<&[u8]>) -> Option<Bytes> {
    let data = id.collection().name() == COLLECTION.as_bytes() && id.name().starts_with(b"d/");
    let entry = key.is_none_or(|key| key.len() == 9 && key[0] == b'e');
    (data && entry).then_some(Bytes::from_static(LOST_MARK))
}

/// Where the data of a `Placed` entry stands in the object's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub offset: u64,
    pub len: u32,
    pub crc: u32,
}

impl Placed {
    pub(crate) fn encode(self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(16);
        bytes.put_u64_le(self.offset);
        bytes.put_u32_le(self.len);
        bytes.put_u32_le(self.crc);
        bytes.freeze()
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let body: &[u8; 16] = body.try_into().ok()?;
        let (offset, len, crc) = (u64_at(body, 0), u32_at(body, 8), u32_at(body, 12));
        // An object ends below 2^60, so that offset and length never overflow.
        (offset <= esker_store::limits::OBJECT_BYTES_MAX).then_some(Self { offset, len, crc })
    }
}

/// No newer epoch has been at the object; it may be missing.
pub(crate) fn newer_absent(epoch: u64) -> Condition {
    Condition::compare(EPOCH, Compare::LessOrEqual, epoch, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Stored {
        Stored {
            kind: Kind::Data,
            position: 7,
            nonce: Nonce { writer: 1, number: 2 },
            time_ms: 3,
            streams: ["a", "orders"].into_iter().map(Bytes::from).collect(),
            body: "data".into(),
        }
    }

    #[test]
    fn an_entry_is_read_back_and_no_flipped_bit_goes_unnoticed() {
        let bytes = entry().encode();
        assert_eq!(Stored::decode(7, &bytes), Ok(entry()));
        assert_eq!(entry().names_in(&bytes), entry().streams);
        assert!(Stored::decode(8, &bytes).unwrap_err().contains("position 7"));
        for bit in 0..bytes.len() * 8 {
            let mut broken = bytes.to_vec();
            broken[bit / 8] ^= 1 << (bit % 8);
            assert!(Stored::decode(7, &broken.into()).is_err(), "bit {bit}");
        }
        for end in 0..bytes.len() {
            assert!(Stored::decode(7, &bytes.slice(..end)).is_err(), "cut to {end}");
        }
    }

    #[test]
    fn keys_sort_as_their_numbers() {
        assert!(entry_key(255) < entry_key(256));
        assert_eq!(key_number(&stream_key(b"s", 9)), Some(9));
        assert_eq!(data_place(5, data(5, 6, 7).name()), Some((6, 7)));
        assert_eq!(data_place(4, data(5, 6, 7).name()), None);
    }
}

//! Operations: the steps of a record, each with its key and payload beside its own checksums.
//!
//! header (32 or 20 bytes) → key → block checksums (payloads above 4 KiB only) → payload
//! → zeros to a multiple of 8
//!
//! The short header says the same as the long one, of what most operations are: a change of an object with a low
//! number, a key and a payload that are not long, and an argument that is low.
//!
//! The index points at an operation's header, so that a value is read and verified alone, without the rest of
//! its record.
//!
//! Invariants:
//! 1. `payload_crc` is the CRC32C of the payload, or, above [`CRC_BLOCK_BYTES`], of the array of the CRC32Cs of
//!    its blocks: a small read of a large payload verifies a small read.
//! 2. `crc` covers header and key and starts from the place.
//! 3. Kinds are explicit and never reused.
//! 4. Decoding tells the form by the first byte's highest bit; in memory [`OP_FLAG_SHORT`] says which it is, and of
//!    what is to be written whether it may be short.
//! Format: docs/format.md#operation-header

use super::{RECORD_ALIGN, SHORT_NUMBER_END, crc, place_seed, read_u32, read_u64, round_up, write_u32, write_u64};

/// Bytes of a long operation header.
pub const OP_HEADER_BYTES: usize = 32;
/// Bytes of a short one.
pub const SHORT_OP_HEADER_BYTES: usize = 20;
/// The writer asked only for `Durability::Applied`.
pub const OP_FLAG_APPLIED: u8 = 1;
/// The cleaner has moved it: the key ends with the sequence number of the transaction that it comes from (8 bytes) and
/// its place among that transaction's operations (4 bytes); behind a short header 6 bytes and 2.
pub const OP_FLAG_MOVED: u8 = 2;
/// The payload is compressed: see [`Compressed`](super::Compressed). Only of writes, omap sets and slot sets.
pub const OP_FLAG_COMPRESSED: u8 = 4;
/// The header is short, or may be. Stands nowhere on the device.
pub const OP_FLAG_SHORT: u8 = 1 << 7;
/// The flags that stand there.
const STORED_FLAGS: u8 = OP_FLAG_APPLIED | OP_FLAG_MOVED | OP_FLAG_COMPRESSED;
/// Of the first byte of a short header: this bit, then three flags, then four bits of the kind less one.
const SHORT_MARK: u8 = 1 << 7;
const SHORT_FLAGS_AT: u32 = 4;
/// The last kind of which there are short headers.
const SHORT_KIND_MAX: u8 = 16;
const SHORT_KEY_BYTES_MAX: usize = u8::MAX as usize;
/// Bytes that [`OP_FLAG_MOVED`] adds to a key, and to one behind a short header.
const MOVED_BYTES: usize = 12;
const SHORT_MOVED_BYTES: usize = 8;
/// Payloads above this have one checksum per this many bytes.
pub const CRC_BLOCK_BYTES: usize = 4096;

pub(super) const LAYOUT: &[(&str, usize, usize)] = &[
    ("kind", 0, 1),
    ("flags", 1, 1),
    ("key_len", 2, 2),
    ("payload_len", 4, 4),
    ("object", 8, 8),
    ("argument", 16, 8),
    ("payload_crc", 24, 4),
    ("crc", 28, 4),
];

pub(super) const SHORT_LAYOUT: &[(&str, usize, usize)] = &[
    ("kind and flags", 0, 1),
    ("key_len", 1, 1),
    ("payload_len", 2, 2),
    ("object", 4, 4),
    ("argument", 8, 4),
    ("payload_crc", 12, 4),
    ("crc", 16, 4),
];

/// What an operation does. The comment says what `object`, `argument`, key and payload are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// key: name of the collection
    CreateCollection = 1,
    /// key: name of the collection
    RemoveCollection = 2,
    /// object: its new number; key: length of the collection's name (1 byte), the name, the object's name
    CreateObject = 3,
    /// object
    RemoveObject = 4,
    /// object; argument: byte offset; payload: data
    Write = 5,
    /// object; argument: byte offset; payload: length (8 bytes)
    Zero = 6,
    /// object; argument: size in bytes
    Truncate = 7,
    /// object; key: name; payload: value
    XattrSet = 8,
    /// object; key: name
    XattrRemove = 9,
    /// object; key; payload: value
    OmapSet = 10,
    /// object; key
    OmapRemove = 11,
    /// object; key: first key removed; argument: 1 if the payload holds the first key that stays, else 0
    OmapRemoveRange = 12,
    /// object
    OmapClear = 13,
    /// object; argument: slot; payload: value
    SlotSet = 14,
    /// object; argument: slot
    SlotRemove = 15,
    /// object; argument: first slot; payload: end (8 bytes)
    SlotRemoveRange = 16,
    /// object; argument: form and number of entries; payload: slots and the places that their values were moved to
    RelocateSlots = 17,
    /// object; argument: form and number of entries; payload: omap keys and the places that their values were moved to
    RelocateOmap = 18,
    /// object; argument: form and number of entries; payload: stretches of bytes and the places that they were moved to
    RelocateExtents = 19,
    /// object: the source; argument: number of the copy, made just before
    Clone = 20,
    /// object: the source; payload: number of the target, first byte of the source, length, first byte of the target
    /// (8 bytes each)
    CloneRange = 21,
    /// object; key: its new name, as in `CreateObject`
    Rename = 22,
    /// Part of a checkpoint. object: number of the object, or 0; argument: see [`Role`](super::Role)
    Index = 23,
}

impl Kind {
    /// About how long replaying one takes on a machine of 2023 with an index of millions of entries, in nanoseconds: of
    /// relocations one entry.
    pub fn replay_ns(self) -> u64 {
        match self {
            Self::SlotSet | Self::SlotRemove | Self::RelocateSlots => 400,
            Self::Write | Self::Zero | Self::Truncate | Self::RelocateExtents => 1_000,
            Self::OmapSet | Self::OmapRemove | Self::RelocateOmap => 1_500,
            Self::Clone | Self::CloneRange => 10_000,
            _ => 2_000,
        }
    }

    /// Whether replaying one passes all entries of its object.
    pub fn walks_all(self) -> bool {
        matches!(self, Self::Clone | Self::RemoveObject | Self::OmapClear)
    }

    /// The kind with this number.
    pub fn from_u8(kind: u8) -> Option<Self> {
        Some(match kind {
            1 => Self::CreateCollection,
            2 => Self::RemoveCollection,
            3 => Self::CreateObject,
            4 => Self::RemoveObject,
            5 => Self::Write,
            6 => Self::Zero,
            7 => Self::Truncate,
            8 => Self::XattrSet,
            9 => Self::XattrRemove,
            10 => Self::OmapSet,
            11 => Self::OmapRemove,
            12 => Self::OmapRemoveRange,
            13 => Self::OmapClear,
            14 => Self::SlotSet,
            15 => Self::SlotRemove,
            16 => Self::SlotRemoveRange,
            17 => Self::RelocateSlots,
            18 => Self::RelocateOmap,
            19 => Self::RelocateExtents,
            20 => Self::Clone,
            21 => Self::CloneRange,
            22 => Self::Rename,
            23 => Self::Index,
            _ => return None,
        })
    }
}

/// The start of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpHeader {
    /// What it does.
    pub kind: Kind,
    /// `OP_FLAG_*`.
    pub flags: u8,
    /// Bytes of the key.
    pub key_len: u16,
    /// Bytes of the payload.
    pub payload_len: u32,
    /// Number of the object.
    pub object: u64,
    /// Meaning depends on the kind.
    pub argument: u64,
    /// See the file's invariant 1.
    pub payload_crc: u32,
}

impl OpHeader {
    /// Bytes of the block checksums before the payload.
    pub fn crcs_bytes(&self) -> usize {
        crcs_bytes(self.payload_len as usize)
    }

    /// Where the key starts in the operation.
    #[inline]
    pub const fn key_start(&self) -> usize {
        if self.flags & OP_FLAG_SHORT != 0 { SHORT_OP_HEADER_BYTES } else { OP_HEADER_BYTES }
    }

    /// Where the key ends in the operation.
    #[inline]
    pub const fn key_end(&self) -> usize {
        self.key_start() + self.key_len as usize
    }

    /// The key proper, and where in commit order it comes from if the cleaner has moved it, given the operation's
    /// bytes.
    pub fn key<'a>(&self, operation: &'a [u8]) -> (&'a [u8], Option<(u64, u32)>) {
        self.strip_key(&operation[self.key_start()..self.key_end()])
    }

    /// The same, given the key as it stands in the operation.
    #[inline]
    pub fn strip_key<'a>(&self, key: &'a [u8]) -> (&'a [u8], Option<(u64, u32)>) {
        if self.flags & OP_FLAG_MOVED == 0 {
            return (key, None);
        }
        if self.flags & OP_FLAG_SHORT != 0 {
            return match key.split_last_chunk::<SHORT_MOVED_BYTES>() {
                Some((key, origin)) => {
                    let origin = u64::from_le_bytes(*origin);
                    (key, Some((origin % SHORT_NUMBER_END, (origin / SHORT_NUMBER_END) as u32)))
                }
                None => (key, None),
            };
        }
        match key.split_last_chunk::<MOVED_BYTES>() {
            Some((key, origin)) => (key, Some((read_u64(origin, 0), read_u32(origin, 8)))),
            None => (key, None),
        }
    }

    /// The key of a copy that the cleaner makes of an operation with a payload of this length, which comes from there
    /// in commit order. From here on the header is that of the copy.
    pub fn move_from(&mut self, (seq, place): (u64, u32), key: &[u8], payload_len: usize) -> Vec<u8> {
        self.flags |= OP_FLAG_MOVED | OP_FLAG_SHORT;
        let mut moved = Vec::with_capacity(key.len() + MOVED_BYTES);
        moved.extend_from_slice(key);
        let low = seq < SHORT_NUMBER_END && place <= u16::MAX.into();
        if low && self.is_short_with(key.len() + SHORT_MOVED_BYTES, payload_len) {
            moved.extend_from_slice(&(seq + u64::from(place) * SHORT_NUMBER_END).to_le_bytes());
        } else {
            self.flags &= !OP_FLAG_SHORT;
            moved.extend_from_slice(&seq.to_le_bytes());
            moved.extend_from_slice(&place.to_le_bytes());
        }
        moved
    }

    /// Where the payload starts in the operation.
    pub fn payload_start(&self) -> usize {
        self.key_end() + self.crcs_bytes()
    }

    /// Where the payload ends in the operation.
    pub fn payload_end(&self) -> usize {
        self.payload_start() + self.payload_len as usize
    }

    /// Bytes of the whole operation with its padding.
    pub fn total_bytes(&self) -> u64 {
        round_up(self.payload_end() as u64, RECORD_ALIGN)
    }

    /// Reads the header's fields without verifying it: for bytes that never left this process's memory.
    #[inline]
    pub fn decode_trusted(bytes: &[u8]) -> Option<Self> {
        if bytes.first().is_some_and(|first| first & SHORT_MARK != 0) {
            let bytes = bytes.get(..SHORT_OP_HEADER_BYTES)?;
            return Some(Self {
                kind: Kind::from_u8((bytes[0] & ((1 << SHORT_FLAGS_AT) - 1)) + 1)?,
                flags: (bytes[0] >> SHORT_FLAGS_AT) & STORED_FLAGS | OP_FLAG_SHORT,
                key_len: bytes[1].into(),
                payload_len: u16::from_le_bytes([bytes[2], bytes[3]]).into(),
                object: read_u32(bytes, 4).into(),
                argument: read_u32(bytes, 8).into(),
                payload_crc: read_u32(bytes, 12),
            });
        }
        let bytes = bytes.get(..OP_HEADER_BYTES)?;
        Some(Self {
            kind: Kind::from_u8(bytes[0])?,
            flags: bytes[1] & !OP_FLAG_SHORT,
            key_len: u16::from_le_bytes([bytes[2], bytes[3]]),
            payload_len: read_u32(bytes, 4),
            object: read_u64(bytes, 8),
            argument: read_u64(bytes, 16),
            payload_crc: read_u32(bytes, 24),
        })
    }

    /// Reads and verifies header and key of the operation at the start of `bytes`, which stands at device offset
    /// `offset` in a segment of this generation. The payload is not looked at, and may be missing from `bytes`.
    pub fn decode(bytes: &[u8], store_seed: u32, generation: u32, offset: u64) -> Option<Self> {
        let header = Self::decode_trusted(bytes)?;
        let key = bytes.get(header.key_start()..header.key_end())?;
        let crc_at = header.key_start() - 4;
        let crc = crc::crc32c_append(place_seed(store_seed, generation, offset), &bytes[..crc_at]);
        (crc::crc32c_append(crc, key) == read_u32(bytes, crc_at)).then_some(header)
    }

    /// Whether the operation with a key and a payload of these lengths has a short header.
    fn is_short_with(&self, key_len: usize, payload_len: usize) -> bool {
        self.flags & OP_FLAG_SHORT != 0
            && (self.object | self.argument) <= u32::MAX.into()
            && key_len <= SHORT_KEY_BYTES_MAX
            && payload_len <= CRC_BLOCK_BYTES
            && self.kind as u8 <= SHORT_KIND_MAX
    }

    /// Bytes of the operation with a key and a payload of these lengths, padding included.
    pub fn bytes_with(&self, key_len: usize, payload_len: usize) -> u64 {
        let header = if self.is_short_with(key_len, payload_len) { SHORT_OP_HEADER_BYTES } else { OP_HEADER_BYTES };
        round_up((header + key_len + crcs_bytes(payload_len) + payload_len) as u64, RECORD_ALIGN)
    }
}

fn crcs_bytes(payload_len: usize) -> usize {
    if payload_len > CRC_BLOCK_BYTES { payload_len.div_ceil(CRC_BLOCK_BYTES) * 4 } else { 0 }
}

/// A payload with its checksums, made before any lock is taken.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    crc: u32,
    block_crcs: Vec<u8>,
}

impl OpHeader {
    /// The checksums of a payload that was verified, given the operation's bytes from this header on.
    pub fn sums(&self, operation: &[u8]) -> Payload {
        let block_crcs = operation[self.key_end()..self.payload_start()].to_vec();
        Payload { crc: self.payload_crc, block_crcs }
    }
}

/// Checksums a payload.
pub fn checksum_payload(payload: &[u8]) -> Payload {
    if payload.len() <= CRC_BLOCK_BYTES {
        return Payload { crc: crc::crc32c(payload), block_crcs: Vec::new() };
    }
    let mut block_crcs = Vec::with_capacity(crcs_bytes(payload.len()));
    for block in payload.chunks(CRC_BLOCK_BYTES) {
        block_crcs.extend_from_slice(&crc::crc32c(block).to_le_bytes());
    }
    Payload { crc: crc::crc32c(&block_crcs), block_crcs }
}

/// Bytes of an operation with a key and a payload of these lengths, padding included, where its header is long.
pub fn operation_bytes(key_len: usize, payload_len: usize) -> u64 {
    round_up((OP_HEADER_BYTES + key_len + crcs_bytes(payload_len) + payload_len) as u64, RECORD_ALIGN)
}

/// Writes an operation to the start of `bytes`, which stands at `offset` in a segment of `generation`; returns its
/// length, [`OpHeader::bytes_with`]. `header.payload_crc`, `key_len` and `payload_len` are filled in here, and the
/// form.
#[expect(clippy::too_many_arguments, reason = "the parts of an operation and its place, all of them plain")]
pub fn encode_operation(
    mut header: OpHeader,
    key: &[u8],
    payload: &[u8],
    sums: &Payload,
    bytes: &mut [u8],
    store_seed: u32,
    generation: u32,
    offset: u64,
) -> u64 {
    header.key_len = key.len() as u16;
    header.payload_len = payload.len() as u32;
    let (stored, short) = (header.flags & STORED_FLAGS, header.is_short_with(key.len(), payload.len()));
    header.flags = if short { stored | OP_FLAG_SHORT } else { stored };
    let total = header.total_bytes() as usize;
    let bytes = &mut bytes[..total];
    if short {
        bytes[0] = SHORT_MARK | stored << SHORT_FLAGS_AT | (header.kind as u8 - 1);
        bytes[1] = key.len() as u8;
        bytes[2..4].copy_from_slice(&(payload.len() as u16).to_le_bytes());
        write_u32(bytes, 4, header.object as u32);
        write_u32(bytes, 8, header.argument as u32);
        write_u32(bytes, 12, sums.crc);
    } else {
        bytes[0] = header.kind as u8;
        bytes[1] = stored;
        bytes[2..4].copy_from_slice(&header.key_len.to_le_bytes());
        write_u32(bytes, 4, header.payload_len);
        write_u64(bytes, 8, header.object);
        write_u64(bytes, 16, header.argument);
        write_u32(bytes, 24, sums.crc);
    }
    let (key_start, key_end) = (header.key_start(), header.key_end());
    let crc = crc::crc32c_append(place_seed(store_seed, generation, offset), &bytes[..key_start - 4]);
    write_u32(bytes, key_start - 4, crc::crc32c_append(crc, key));
    bytes[key_start..key_end].copy_from_slice(key);
    let payload_start = key_end + sums.block_crcs.len();
    bytes[key_end..payload_start].copy_from_slice(&sums.block_crcs);
    bytes[payload_start..payload_start + payload.len()].copy_from_slice(payload);
    bytes[payload_start + payload.len()..].fill(0);
    total as u64
}

/// Whether the payload of a verified header holds, given the operation's bytes from its header on.
pub fn verify_payload(header: &OpHeader, operation: &[u8]) -> bool {
    let Some(payload) = operation.get(header.payload_start()..header.payload_end()) else { return false };
    if payload.len() <= CRC_BLOCK_BYTES {
        return crc::crc32c(payload) == header.payload_crc;
    }
    let crcs = &operation[header.key_end()..header.payload_start()];
    crc::crc32c(crcs) == header.payload_crc
        && payload
            .chunks(CRC_BLOCK_BYTES)
            .zip(crcs.chunks(4))
            .all(|(block, crc)| crc::crc32c(block).to_le_bytes() == crc)
}

/// Whether `blocks`, the payload's bytes from block number `first_block` on (whole blocks, the last may be short),
/// hold against the block checksums `crcs`, which must have been verified against the header by the caller's
/// comparison of their CRC32C with `payload_crc`.
pub fn verify_payload_part(crcs: &[u8], first_block: usize, blocks: &[u8]) -> bool {
    blocks.chunks(CRC_BLOCK_BYTES).enumerate().all(|(i, block)| {
        crcs.get((first_block + i) * 4..(first_block + i) * 4 + 4)
            .is_some_and(|crc| crc::crc32c(block).to_le_bytes() == crc)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: Kind) -> OpHeader {
        OpHeader { kind, flags: OP_FLAG_SHORT, key_len: 0, payload_len: 0, object: 4, argument: 9, payload_crc: 0 }
    }

    fn round_trip(header: OpHeader, key: &[u8], payload_len: usize, key_start: usize) {
        let payload: Vec<u8> = (0..payload_len).map(|i| (i * 7) as u8).collect();
        let sums = checksum_payload(&payload);
        let mut bytes = vec![0xff; header.bytes_with(key.len(), payload_len) as usize];
        let len = encode_operation(header, key, &payload, &sums, &mut bytes, 5, 6, 64);
        assert_eq!(len, bytes.len() as u64);
        let decoded = OpHeader::decode(&bytes, 5, 6, 64).unwrap();
        let flags = if key_start == SHORT_OP_HEADER_BYTES { OP_FLAG_SHORT } else { 0 };
        let lens = (key.len() as u16, payload_len as u32);
        let expected = OpHeader {
            key_len: lens.0,
            payload_len: lens.1,
            payload_crc: sums.crc,
            flags: header.flags & STORED_FLAGS | flags,
            ..header
        };
        assert_eq!((decoded, decoded.key_start(), decoded.total_bytes()), (expected, key_start, len));
        assert_eq!(decoded.key(&bytes).0, key);
        assert!(verify_payload(&decoded, &bytes));
        assert_eq!(&bytes[decoded.payload_start()..decoded.payload_end()], &payload[..]);
        assert_eq!(OpHeader::decode(&bytes, 5, 7, 64), None);
        let last = decoded.payload_end() * 8 - 1;
        for bit in (0..last).step_by(if payload_len > 100 { 1009 } else { 1 }) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let found = OpHeader::decode(&bytes, 5, 6, 64).is_some_and(|header| verify_payload(&header, &bytes));
            assert!(!found, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn an_operation_survives_the_round_trip_and_no_flipped_bit_does() {
        for len in [0, 1, 4, 8, 100, 4096] {
            round_trip(header(Kind::OmapSet), b"key", len, SHORT_OP_HEADER_BYTES);
        }
        for len in [4097, 8192, 100_000] {
            round_trip(header(Kind::OmapSet), b"key", len, OP_HEADER_BYTES);
        }
    }

    #[test]
    fn what_does_not_fit_a_short_header_has_a_long_one() {
        let (set, low) = (header(Kind::OmapSet), u64::from(u32::MAX));
        let flags = OP_FLAG_APPLIED | OP_FLAG_COMPRESSED | OP_FLAG_SHORT;
        for (header, key_len, fits) in [
            (OpHeader { object: low, argument: low, flags, ..set }, 255, true),
            (set, 256, false),
            (OpHeader { flags: 0, ..set }, 3, false),
            (OpHeader { object: low + 1, flags, ..set }, 3, false),
            (OpHeader { argument: low + 1, ..set }, 3, false),
            (OpHeader { kind: Kind::SlotRemoveRange, ..set }, 0, true),
            (OpHeader { kind: Kind::RelocateSlots, ..set }, 0, false),
            (OpHeader { kind: Kind::Index, ..set }, 0, false),
        ] {
            let key_start = if fits { SHORT_OP_HEADER_BYTES } else { OP_HEADER_BYTES };
            round_trip(header, &vec![b'k'; key_len], 4, key_start);
        }
        let mut bytes = [0; 64];
        let len =
            encode_operation(header(Kind::SlotSet), b"", b"abcd", &checksum_payload(b"abcd"), &mut bytes, 0, 0, 0);
        assert_eq!(len, 24);
    }

    #[test]
    fn where_a_copy_comes_from_stands_behind_its_key() {
        let last = SHORT_NUMBER_END - 1;
        for (origin, key_len, payload_len, short) in [
            ((7, 3), 3, 4, true),
            ((last, u16::MAX.into()), 247, 4096, true),
            ((last + 1, 0), 3, 4, false),
            ((7, u32::from(u16::MAX) + 1), 3, 4, false),
            ((7, 3), 248, 4, false),
            ((u64::MAX, u32::MAX), 3, 5000, false),
        ] {
            let mut copy = OpHeader { flags: OP_FLAG_APPLIED, ..header(Kind::OmapSet) };
            let key = vec![b'k'; key_len];
            let long_key = copy.move_from(origin, &key, payload_len);
            let mut bytes = vec![0; copy.bytes_with(long_key.len(), payload_len) as usize];
            let payload = vec![7; payload_len];
            encode_operation(copy, &long_key, &payload, &checksum_payload(&payload), &mut bytes, 5, 6, 64);
            let decoded = OpHeader::decode(&bytes, 5, 6, 64).unwrap();
            assert_eq!(decoded.flags, OP_FLAG_APPLIED | OP_FLAG_MOVED | if short { OP_FLAG_SHORT } else { 0 });
            assert_eq!(decoded.key(&bytes), (&key[..], Some(origin)), "{origin:?}, {key_len}, {payload_len}");
            // Moved again from elsewhere.
            let mut again = decoded;
            assert_eq!(again.move_from(origin, &key, payload_len), long_key);
            assert_eq!(again.flags, decoded.flags);
        }
    }

    #[test]
    fn a_part_of_a_large_payload_is_verified_alone() {
        let payload = vec![9; 20_000];
        let sums = checksum_payload(&payload);
        assert!(verify_payload_part(&sums.block_crcs, 1, &payload[4096..12288]));
        assert!(verify_payload_part(&sums.block_crcs, 4, &payload[16384..]));
        let mut bad = payload[4096..8192].to_vec();
        bad[5] ^= 1;
        assert!(!verify_payload_part(&sums.block_crcs, 1, &bad));
    }
}

//! Bytes on the device: pure encode and decode, no I/O.
//!
//! superblocks → segments (header block, then groups of records) → records (header, then operations)
//!
//! Invariants:
//! 1. Little-endian, fixed widths, never `usize`; one encode and one decode per structure.
//! 2. Every checksum is CRC32C seeded with the store and the place ([`place_seed`]), so that a stale,
//!    misdirected or foreign write is told from a good one.
//! 3. Decoding never panics and never allocates more than it was given.
//!
//! Format: docs/format.md

mod checkpoint;
mod compressed;
mod crc;
mod field;
mod loc;
mod name;
mod operation;
mod record;
mod relocate;
mod segment;
mod superblock;

pub use checkpoint::{
    Head, PAGE_SLOTS, PARTS, PageList, Role, Root, SegmentEntry, Space, decode_slot_page, each_extent, each_omap,
    each_place, each_slot, encode_slot_page, push_extent, push_omap, push_slot, slot_page_bytes,
};
pub use compressed::{
    COMPRESSED_HEADER_BYTES, Codec, Compressed, RAW_BYTES_MAX, UNIT_BYTES_MAX, UNIT_BYTES_MIN, compress_payload,
    decompress_payload, place_of, raw_len,
};
pub use field::{FORMAT_VERSION, place_seed, round_up, store_seed};
pub(crate) use field::{read_u32, read_u64, write_u32, write_u64};
pub use loc::{
    DEVICE_BYTES_MAX, LOC_FLAG_BITS, LOC_FLAGS_MAX, LOC_TAIL_BITS, LOC_UNIT_BYTES, Loc, SPAN_BYTES_MAX, WEIGHT_WHOLE,
};
pub(crate) use name::clone_range_payload;
pub use name::{clone_range_words, decode_name, encode_name};
pub use operation::{
    CRC_BLOCK_BYTES, Kind, OP_FLAG_APPLIED, OP_FLAG_COMPRESSED, OP_FLAG_SHORT, OP_HEADER_BYTES, OpHeader, Payload,
    SHORT_OP_HEADER_BYTES, checksum_payload, encode_operation, operation_bytes, verify_payload, verify_payload_part,
};
pub use record::{
    RECORD_ALIGN, RECORD_FLAG_APPLIED, RECORD_FLAG_GROUP_END, RECORD_HEADER_BYTES, RecordHeader, SHORT_NUMBER_END,
    SHORT_RECORD_HEADER_BYTES, record_bytes, short_flag,
};
pub use relocate::{Relocated, Relocations, each_relocated, relocated_entries};
pub use segment::{SEGMENT_HEADER_BYTES, SegmentHeader, Stream};
pub use superblock::{
    GENERATION_MAX, LOG_SEGMENTS_MIN, NUMBER_MAX, OBJECT_NUMBER_MAX, ReplayFrom, SUPERBLOCK_BYTES, Superblock,
    SuperblockError,
};

/// One structure's name and its fields: name, offset in bytes, width in bytes.
pub type Layout = (&'static str, &'static [(&'static str, usize, usize)]);

/// The layouts of all fixed structures, which docs/format.md must repeat (a test compares them).
pub fn layouts() -> Vec<Layout> {
    vec![
        ("superblock", superblock::LAYOUT),
        ("segment header", segment::LAYOUT),
        ("record header", record::LAYOUT),
        ("short record header", record::SHORT_LAYOUT),
        ("operation header", operation::LAYOUT),
        ("short operation header", operation::SHORT_LAYOUT),
        ("compressed payload", compressed::LAYOUT),
    ]
}

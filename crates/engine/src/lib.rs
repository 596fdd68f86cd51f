//! The append-only log engine: implements [`ObjectStore`](esker_store::ObjectStore) on a
//! [`Device`](esker_device::Device).
//!
//! submit → guards → reserve in the open group → encode once → index → commit thread: append, sync, mark
//!
//! Modules in import order; each imports only those before it:
//! `format` → `compress` → `policy` → `pool` → `gather` → `stages` → `watch` → `superblocks` → `readers` → `sharing` →
//! `buffer` → `segments` → `index` → `cache` → `reader` → `spaces` → `objects` → `pages` → `commit` →
//! `cold` → `checkpoint` → `clean` → `evict` → `keeper` → `load` → `recover` → `replay` →
//! this file with `engine`, `open`, `submit`, `read`, `object_store`, `walk`, `view`, `check`, `scrub`, `backup`,
//! `repair` and `stats`.
//!
//! Invariants:
//! 1. Nothing is overwritten in place, superblocks included.
//! 2. Log order and index order agree: both are fixed under the object's lock.
//! 3. No lock is held over device I/O, other than the committer's own.
//! 4. Every byte that comes from the device is verified before it is used.

mod backup;
mod buffer;
pub mod cache;
mod check;
mod checkpoint;
mod clean;
mod cold;
mod commit;
mod compress;
mod engine;
mod evict;
pub mod format;
pub mod gather;
mod index;
mod keeper;
mod load;
mod object_store;
mod objects;
mod open;
mod pages;
mod policy;
mod pool;
mod prefetch;
mod read;
mod reader;
mod readers;
mod readings;
mod recover;
mod repair;
mod replay;
mod rooms;
mod scrub;
mod segments;
mod sharing;
mod spaces;
mod stages;
mod stats;
mod submit;
mod superblocks;
mod view;
mod walk;
mod watch;

pub use backup::{BackupReport, Pruned, RestoreReport, VerifyReport, backups, prune, restore, restored_len, verify};
pub use cache::{CachePolicy, CachePolicyError};
pub use check::{CheckReport, Damage, DumpItem, DumpOptions, check, dump};
pub use compress::CompressOptions;
pub use engine::Engine;
pub use keeper::GrowReport;
pub use open::{FormatOptions, Options, Progress, Stage, segment_bytes_within};
pub use policy::{CommitPolicy, PolicyError};
pub use reader::CacheUses;
pub use recover::RecoveryReport;
pub use repair::{Hooks as RepairHooks, Level, Lost, RepairReport, Shape, What, repair, shape};
pub use scrub::{ScrubReport, ScrubStatus};
pub use stages::{Histogram, Latency, NoHistogram};
pub use stats::{CACHE_USERS_MAX, Health, Stats};
pub use superblocks::used_bytes;

/// Arbitrary bytes through every decoder, for fuzzing: must return, whatever it is given.
pub fn fuzz_decode(bytes: &[u8]) {
    // The outcome does not matter, only that there is one.
    let _ = format::Superblock::decode(bytes);
    let _ = format::SegmentHeader::decode(bytes, &[0; 16], 0);
    if let Some(record) = format::RecordHeader::decode(bytes, 0, 0) {
        let body = bytes.get(record.header_bytes()..).unwrap_or_default();
        let _ = reader::each_operation(&record, 0, body, 0, |_, _, _| Ok(()));
    }
    if let Some(header) = format::OpHeader::decode_trusted(bytes) {
        let _ = format::verify_payload(&header, bytes);
        let _ = format::raw_len(&header, bytes);
    }
    if let Some((count, list)) = bytes.split_first() {
        for kind in [format::Kind::RelocateSlots, format::Kind::RelocateOmap, format::Kind::RelocateExtents] {
            for form in 0..3 {
                let _ = format::each_relocated(kind, u64::from(*count) << 8 | form, list, |_| ());
            }
        }
    }
    if let Some(raw) = format::decompress_payload(bytes) {
        assert!(raw.len() <= format::RAW_BYTES_MAX, "a decoder allocated {} bytes", raw.len());
    }
}

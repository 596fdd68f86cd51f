//! Snapshots: the store as it is at one commit, read-only, beside the store that goes on.
//!
//! checkpoint → its segments are held → loaded into an index of its own → an engine without log and keeper
//!
//! A snapshot costs a checkpoint and the loading of it, and memory for the pages of its index that were read; no
//! payload is copied. Until it is dropped the segments that were in use when it was made stay; those that were begun
//! since are cleaned and made free as always.
//!
//! Invariants:
//! 1. A snapshot shows exactly what the transactions up to its commit have made, all of it durable.
//! 2. Nothing of it is counted in the store: neither live bytes nor changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use esker_device::Device;
use esker_store::limits::TRANSACTION_BYTES_MAX;
use esker_store::{CommitSeq, DurableMark, Error, Result};
use parking_lot::Mutex;

use crate::compress::Compress;
use crate::engine::Engine;
use crate::load::{load, load_root};
use crate::objects::Objects;
use crate::reader::Reader;
use crate::recover::RecoveryReport;
use crate::segments::{Lsn, Segments};

/// Memory for values that are read through a snapshot, in bytes; of several that live at once each later one gets less.
pub const VIEW_CACHE_BYTES: u64 = 32 << 20;
/// Memory for index pages of a snapshot when it is made, in bytes, and less in the same way; what is read later stays.
pub const VIEW_INDEX_BYTES: u64 = 64 << 20;

impl Engine {
    /// The store as it is now, with memory of its own for values and index pages, in bytes. See
    /// [`ObjectStore::snapshot`](esker_store::ObjectStore::snapshot).
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Full`] without room for a checkpoint; [`Error::Stopped`]; [`Error::Io`];
    /// [`Error::Corrupt`].
    pub fn view(&self, cache_bytes: u64, index_bytes: u64) -> Result<(CommitSeq, Self)> {
        let held = self.keeper()?.hold()?;
        let superblock = held.superblock;
        if superblock.root == 0 {
            return Err(Error::Invalid { what: "snapshot", why: "the store has no checkpoint".into() });
        }
        let segment_bytes = superblock.segment_bytes;
        let segments = Arc::new(Segments::new(segment_bytes, superblock.log_segments(), 0, 0));
        for usage in &held.segments {
            segments.place(usage.segment, usage.generation, 0, usage.age, usage.cold);
            let replayed = !usage.cold && usage.generation == superblock.replay.generation;
            // The log goes on in this one.
            let end = if replayed { segments.within(superblock.replay.offset) } else { usage.end };
            segments.set_end(usage.segment, end.min(segment_bytes));
        }
        let device = Arc::clone(&self.device);
        let reading = Arc::clone(&device) as Arc<dyn Device>;
        let cache = (self.reader.cache_policy(), cache_bytes);
        let reader = Arc::new(Reader::new(reading, Arc::clone(&segments), self.seed, cache));
        let objects = Arc::new(Objects::default());
        let root = load_root(&superblock, &reader, &segments)?;
        let loaded = load(root, &reader, &segments, &objects, index_bytes, &|_, _| ())?;
        let seq = superblock.replay.seq;
        let mut view = Self {
            device,
            segments,
            reader,
            objects,
            log: None,
            keeper: None,
            rooms: None,
            mark: DurableMark::new(Lsn::MAX, Box::new(|| {})),
            pool: self.pool.clone(),
            reads_ahead: self.reads_ahead,
            page_pool: self.page_pool.clone(),
            twin: None,
            readings: Arc::default(),
            seed: self.seed,
            compress: Compress::new(self.compress.options())?,
            times: Arc::default(),
            next_number: Arc::new(AtomicU64::new(loaded.next_number)),
            names_lsn: Arc::default(),
            record_bytes_max: self.record_bytes_max.min(TRANSACTION_BYTES_MAX as u64),
            full_since_open: false,
            superblocks: Arc::clone(&self.superblocks),
            recovery: RecoveryReport { last_seq: seq, clean: true, ..RecoveryReport::default() },
            scrub: Arc::default(),
            saved: None,
            furthest: Arc::default(),
            held: Some(Arc::new(held)),
            closed: AtomicBool::new(false),
            threads: Mutex::default(),
        };
        view.make_twin()?;
        Ok((CommitSeq(seq), view))
    }
}

//! What the engine tells of itself.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use crate::cache::CachePolicy;
use crate::commit::Gate;
use crate::engine::Engine;
use crate::index::SLOT_WIDTH_MAX;
use crate::reader::CacheUses;
use crate::scrub::ScrubStatus;
use crate::segments::DamageLevel;
use crate::stages::{Histogram, Latency};

/// So many users of the cache are told by name.
pub const CACHE_USERS_MAX: usize = 100;

/// How an open store stands.
#[derive(Clone, Debug)]
pub enum Health {
    /// It takes writes.
    Running,
    /// It takes what gives space back, and reads.
    Full,
    /// It reads what is durable, and takes nothing: this was the cause.
    Stopped(esker_store::Error),
}

/// Figures of an open store, at one moment. Counters count since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Objects.
    pub objects: u64,
    /// Filled slots.
    pub slot_keys: u64,
    /// Memory of the slots' index in bytes.
    pub slot_index_bytes: u64,
    /// Dense pages of slots in memory, by the bytes that each of their 512 slots takes: those of `n` bytes at index
    /// `n`, which is 2 to 8.
    pub slot_pages: [u64; SLOT_WIDTH_MAX + 1],
    /// Pages with so few slots in memory that they are lists, of 16 bytes and more for each slot.
    pub slot_pages_sparse: u64,
    /// Omap keys.
    pub omap_keys: u64,
    /// Memory of the omap index in bytes, keys included.
    pub omap_index_bytes: u64,
    /// Memory of the extents' index in bytes.
    pub extent_index_bytes: u64,
    /// Memory of the attributes in bytes.
    pub xattr_bytes: u64,
    /// Bytes of index pages in memory, which the budget limits; what clones share counts for each.
    pub index_page_bytes: u64,
    /// Index pages that are not in memory.
    pub index_cold_pages: u64,
    /// Index pages that were read back.
    pub index_page_reads: u64,
    /// Index pages that have left memory.
    pub index_pages_dropped: u64,
    /// Transactions appended; what the cleaner writes to the log is not one.
    pub records: u64,
    /// Bytes of log appended, the cleaner's too.
    pub record_bytes: u64,
    /// Of those, keys and payloads of transactions as they are stored.
    pub payload_bytes: u64,
    /// Of those, what the cleaner has written about what it moved.
    pub relocation_bytes: u64,
    /// Syncs of the device.
    pub syncs: u64,
    /// Device writes.
    pub device_writes: u64,
    /// Bytes written to the device.
    pub device_write_bytes: u64,
    /// Device reads.
    pub device_reads: u64,
    /// Bytes read from the device.
    pub device_read_bytes: u64,
    /// Values found in the cache of values read before.
    pub cache_hits: u64,
    /// Values that were looked for there, not found, and read from the device or decompressed.
    pub cache_misses: u64,
    /// Bytes in that cache.
    pub cache_bytes: u64,
    /// The most bytes that there may be in it.
    pub cache_bytes_max: u64,
    /// Which values stay in it.
    pub cache_policy: CachePolicy,
    /// Payloads that were stored compressed.
    pub compressed_kept: u64,
    /// Payloads that a hint asked to compress and that did not get small enough.
    pub compressed_refused: u64,
    /// Raw bytes of those stored compressed.
    pub compressed_raw_bytes: u64,
    /// Bytes that those take.
    pub compressed_stored_bytes: u64,
    /// Raw bytes that were decompressed for readers.
    pub unpacked_bytes: u64,
    /// Segments whose buffers are in memory, and spare buffers.
    pub buffered_segments: u64,
    /// The most bytes of these, as it is now: [`Options::recent_bytes`](crate::Options::recent_bytes) and what the
    /// cache does not use. Log that is not written, and two buffers for segments to come, may be beside.
    pub recent_bytes_max: u64,
    /// Bytes of buffers that only values which were handed out keep.
    pub handed_out_bytes: u64,
    /// Segment size in bytes.
    pub segment_bytes: u64,
    /// Segments that can hold log.
    pub segments: u64,
    /// Of those, free.
    pub free_segments: u64,
    /// Segments that hold nothing, and that the file system had no room for when it was asked: not free.
    pub bare_segments: u64,
    /// Snapshots and backups that keep the segments which were in use when they began.
    pub snapshots: u64,
    /// Bytes of the segments that nothing else keeps.
    pub pinned_bytes: u64,
    /// Bytes that objects point to; what several share counts once, as far as that is known since the store was opened.
    pub live_bytes: u64,
    /// Bytes of the last checkpoint on the device.
    pub checkpoint_bytes: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// 1 while the checkpoint before the newest is kept, for opening should the newest not hold; 0 where room is short.
    pub checkpoint_before_kept: u64,
    /// Bytes that the last checkpoint wrote: what had changed.
    pub checkpoint_write_bytes: u64,
    /// Bytes that all checkpoints wrote.
    pub checkpoint_all_bytes: u64,
    /// How long the last checkpoint took, in microseconds.
    pub checkpoint_us: u64,
    /// Segments cleaned.
    pub cleaned_segments: u64,
    /// Bytes copied by cleaning.
    pub cleaned_copy_bytes: u64,
    /// Segments made free again.
    pub freed_segments: u64,
    /// Segments in use in which something does not hold; they are not written, and what holds is moved elsewhere.
    pub damaged_segments: u64,
    /// Values that the cleaner found not to hold; each was named in the log.
    pub lost_values: u64,
    /// How long compactions have rested beside clients, in microseconds.
    pub compact_rested_us: u64,
    /// Bytes written to cold segments: copies and checkpoints.
    pub cold_write_bytes: u64,
    /// 0: writes are let in; 1: they wait for the cleaner; 2: refused, the device is full.
    pub gate: u64,
    /// Last commit sequence number.
    pub last_seq: u64,
    /// Calls of the device that took longer than `Options::slow_io`.
    pub slow_calls: u64,
    /// Reads of the device that failed and were tried again.
    pub read_retries: u64,
    /// Calls of the device that have not come back for longer than that.
    pub hanging_calls: u64,
    /// How long the oldest call under way has been, in milliseconds.
    pub oldest_call_ms: u64,
    /// 0: the store's file is where it was; 1: it was removed; 2: its path leads to another file.
    pub store_file: u64,
    /// How far the scrubber is.
    pub scrub: ScrubStatus,
    /// Times of device reads.
    pub read_latency: Latency,
    /// Times of device writes.
    pub write_latency: Latency,
    /// Times of syncs.
    pub sync_latency: Latency,
}

impl Stats {
    /// Index memory per slot key in bytes; 0 without slot keys.
    pub fn slot_index_bytes_per_key(&self) -> f64 {
        if self.slot_keys == 0 { 0.0 } else { self.slot_index_bytes as f64 / self.slot_keys as f64 }
    }

    /// Dense pages of slots by name: of those of each width how many there are.
    fn slot_pages_by_width(&self) -> [(&'static str, u64); 7] {
        let names = [
            "slot_pages_2_bytes",
            "slot_pages_3_bytes",
            "slot_pages_4_bytes",
            "slot_pages_5_bytes",
            "slot_pages_6_bytes",
            "slot_pages_7_bytes",
            "slot_pages_8_bytes",
        ];
        std::array::from_fn(|at| (names[at], self.slot_pages[at + 2]))
    }

    /// Bytes of log that are headers, checksums and alignment of transactions.
    pub fn header_bytes(&self) -> u64 {
        self.record_bytes.saturating_sub(self.payload_bytes + self.relocation_bytes)
    }

    /// Bytes written to the log's segments that are no records: ends of groups, what fills the last block of one, and
    /// headers of segments. Less what is not written yet.
    pub fn padding_bytes(&self) -> u64 {
        self.device_write_bytes.saturating_sub(self.record_bytes)
    }

    /// Bytes written to the device for each byte of transactions; 0 before the first.
    pub fn write_amplification(&self) -> f64 {
        let written = self.device_write_bytes + self.cold_write_bytes;
        if self.record_bytes == 0 { 0.0 } else { written as f64 / self.record_bytes as f64 }
    }

    /// Bytes stored for each raw byte of what is stored compressed; 1 before the first.
    pub fn compression_ratio(&self) -> f64 {
        if self.compressed_raw_bytes == 0 {
            return 1.0;
        }
        self.compressed_stored_bytes as f64 / self.compressed_raw_bytes as f64
    }

    /// All figures by name, as INFO shows them.
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        let mut entries: Vec<(&'static str, String)> = [
            ("objects", self.objects),
            ("slot_keys", self.slot_keys),
            ("slot_index_bytes", self.slot_index_bytes),
            ("omap_keys", self.omap_keys),
            ("omap_index_bytes", self.omap_index_bytes),
            ("extent_index_bytes", self.extent_index_bytes),
            ("xattr_bytes", self.xattr_bytes),
            ("index_page_bytes", self.index_page_bytes),
            ("index_cold_pages", self.index_cold_pages),
            ("index_page_reads", self.index_page_reads),
            ("index_pages_dropped", self.index_pages_dropped),
            ("records", self.records),
            ("record_bytes", self.record_bytes),
            ("payload_bytes", self.payload_bytes),
            ("header_bytes", self.header_bytes()),
            ("relocation_bytes", self.relocation_bytes),
            ("padding_bytes", self.padding_bytes()),
            ("checkpoint_all_bytes", self.checkpoint_all_bytes),
            ("syncs", self.syncs),
            ("device_writes", self.device_writes),
            ("device_write_bytes", self.device_write_bytes),
            ("device_reads", self.device_reads),
            ("device_read_bytes", self.device_read_bytes),
            ("cache_hits", self.cache_hits),
            ("cache_misses", self.cache_misses),
            ("cache_bytes", self.cache_bytes),
            ("cache_bytes_max", self.cache_bytes_max),
            ("compressed_kept", self.compressed_kept),
            ("compressed_refused", self.compressed_refused),
            ("compressed_raw_bytes", self.compressed_raw_bytes),
            ("compressed_stored_bytes", self.compressed_stored_bytes),
            ("unpacked_bytes", self.unpacked_bytes),
            ("buffered_segments", self.buffered_segments),
            ("recent_bytes_max", self.recent_bytes_max),
            ("handed_out_bytes", self.handed_out_bytes),
            ("segment_bytes", self.segment_bytes),
            ("segments", self.segments),
            ("free_segments", self.free_segments),
            ("bare_segments", self.bare_segments),
            ("snapshots", self.snapshots),
            ("pinned_bytes", self.pinned_bytes),
            ("live_bytes", self.live_bytes),
            ("checkpoint_bytes", self.checkpoint_bytes),
            ("checkpoints", self.checkpoints),
            ("checkpoint_before_kept", self.checkpoint_before_kept),
            ("checkpoint_write_bytes", self.checkpoint_write_bytes),
            ("checkpoint_us", self.checkpoint_us),
            ("cleaned_segments", self.cleaned_segments),
            ("cleaned_copy_bytes", self.cleaned_copy_bytes),
            ("freed_segments", self.freed_segments),
            ("damaged_segments", self.damaged_segments),
            ("lost_values", self.lost_values),
            ("compact_rested_us", self.compact_rested_us),
            ("cold_write_bytes", self.cold_write_bytes),
            ("gate", self.gate),
            ("last_seq", self.last_seq),
            ("slow_calls", self.slow_calls),
            ("read_retries", self.read_retries),
            ("hanging_calls", self.hanging_calls),
            ("oldest_call_ms", self.oldest_call_ms),
            ("store_file", self.store_file),
            ("device_read_p50_us", self.read_latency.p50_us),
            ("device_read_p99_us", self.read_latency.p99_us),
            ("device_read_max_us", self.read_latency.max_us),
            ("device_write_p50_us", self.write_latency.p50_us),
            ("device_write_p99_us", self.write_latency.p99_us),
            ("device_write_max_us", self.write_latency.max_us),
            ("sync_p50_us", self.sync_latency.p50_us),
            ("sync_p99_us", self.sync_latency.p99_us),
            ("sync_max_us", self.sync_latency.max_us),
        ]
        .map(|(name, value)| (name, value.to_string()))
        .into();
        entries.extend(self.scrub.entries().map(|(name, value)| (name, value.to_string())));
        entries.push(("cache_policy", self.cache_policy.to_string()));
        entries.push(("compression_ratio", format!("{:.3}", self.compression_ratio())));
        entries.push(("write_amplification", format!("{:.3}", self.write_amplification())));
        let pages = self.slot_pages_by_width().map(|(name, pages)| (name, pages.to_string()));
        entries.splice(3..3, pages.into_iter().chain([("slot_pages_sparse", self.slot_pages_sparse.to_string())]));
        entries.insert(3, ("slot_index_bytes_per_key", format!("{:.2}", self.slot_index_bytes_per_key())));
        entries
    }
}

impl Engine {
    /// How the store stands. Costs a look at two numbers.
    pub fn health(&self) -> Health {
        match (self.mark.failure(), &self.log) {
            (Some(cause), _) => Health::Stopped(cause),
            (None, Some(log)) if log.gate() == Gate::Full => Health::Full,
            (None, _) => Health::Running,
        }
    }

    /// How long each stage of a write, of a read and of what goes on behind them took, since the store was opened, in
    /// the order of the stages.
    pub fn stages(&self) -> Vec<(&'static str, Histogram)> {
        let reads = &self.reader.counters;
        let mut stages = vec![("prepare", &self.times.prepare), ("apply", &self.times.apply)];
        if let Some(log) = &self.log {
            let log = &log.counters;
            stages.extend([("room", &log.room), ("queue", &log.queue)]);
        }
        stages.extend([("write", &self.device.writes), ("sync", &self.device.syncs)]);
        if let Some(log) = &self.log {
            stages.push(("wake", &log.counters.wake));
        }
        stages.extend([("lookup", &self.times.lookup), ("device_read", &self.device.reads)]);
        stages.extend([("verify", &reads.verify), ("decompress", &reads.decompress)]);
        if let Some(keeper) = &self.keeper {
            stages.extend([("clean", &keeper.counters.clean_times), ("checkpoint", &keeper.counters.checkpoint_times)]);
        }
        stages.into_iter().map(|(name, times)| (name, times.histogram())).collect()
    }

    /// How often values were found in the cache and how often not, by the collection of their object and what its name
    /// begins with up to a `/`: faces put the namespace, table, log or disk there. The [`CACHE_USERS_MAX`] that use it
    /// most come first, most first; the rest, and what was removed meanwhile, together as `others`. Values that clones
    /// share count for the object that they were written for. Walks all objects.
    pub fn cache_uses(&self) -> Vec<(String, CacheUses)> {
        let table = &self.reader.counters.cache_uses;
        let mut names: BTreeMap<u64, String> = BTreeMap::new();
        table.retain(|object, _| {
            names.insert(object, String::new());
            true
        });
        self.objects.for_each(|object| {
            if let Some(name) = names.get_mut(&object.state.read().number) {
                let id = &object.id;
                *name = id.collection().name().escape_ascii().to_string();
                if let Some(slash) = id.name().iter().position(|byte| *byte == b'/') {
                    *name += &format!("/{}", id.name()[..slash].escape_ascii());
                }
            }
        });
        let mut users: BTreeMap<&str, CacheUses> = BTreeMap::new();
        table.retain(|object, uses| {
            // One that came after the first look is told the next time.
            let Some(name) = names.get(&object) else { return true };
            if !name.is_empty() {
                *users.entry(name).or_default() += uses;
            }
            !name.is_empty()
        });
        let mut users: Vec<_> = users.into_iter().map(|(name, uses)| (name.to_string(), uses)).collect();
        users.sort_by_key(|(_, uses)| std::cmp::Reverse(uses.hits + uses.misses));
        let mut others = table.others();
        users.drain(users.len().min(CACHE_USERS_MAX)..).for_each(|(_, uses)| others += uses);
        users.push(("others".into(), others));
        users
    }

    /// The engine's figures. Walks all objects: cheap for a command, not for every request.
    pub fn stats(&self) -> Stats {
        let (cache_bytes, cache_bytes_max) = self.reader.cached_bytes();
        let cache_uses = self.reader.counters.cache_uses.all();
        let mut stats = Stats {
            segment_bytes: self.segments.segment_bytes,
            segments: self.segments.log_segments(),
            free_segments: self.segments.free_segments(),
            bare_segments: self.segments.bare_segments(),
            buffered_segments: self.segments.buffers_with_spares(),
            recent_bytes_max: self.segments.recent_bytes_max(),
            handed_out_bytes: self.segments.handed_out.bytes(),
            device_reads: self.reader.counters.device_reads.load(Ordering::Relaxed),
            device_read_bytes: self.reader.counters.device_read_bytes.load(Ordering::Relaxed),
            cache_hits: cache_uses.hits,
            cache_misses: cache_uses.misses,
            cache_bytes,
            cache_bytes_max,
            cache_policy: self.reader.cache_policy(),
            compressed_kept: self.compress.kept.load(Ordering::Relaxed),
            compressed_refused: self.compress.refused.load(Ordering::Relaxed),
            compressed_raw_bytes: self.compress.raw_bytes.load(Ordering::Relaxed),
            compressed_stored_bytes: self.compress.stored_bytes.load(Ordering::Relaxed),
            unpacked_bytes: self.reader.counters.unpacked_bytes.load(Ordering::Relaxed),
            objects: self.objects.len() as u64,
            slow_calls: self.device.slow_calls.load(Ordering::Relaxed),
            read_retries: self.device.read_retries.load(Ordering::Relaxed),
            read_latency: self.device.reads.latency(),
            write_latency: self.device.writes.latency(),
            sync_latency: self.device.syncs.latency(),
            hanging_calls: self.device.hanging().calls,
            oldest_call_ms: self.device.hanging().oldest_ms,
            store_file: self.device.whereabouts_seen(),
            scrub: self.scrub_status(),
            ..Stats::default()
        };
        self.objects.for_each(|object| {
            let state = object.state.read();
            let [slots, omap, extents, xattrs] = state.memory_bytes();
            stats.slot_keys += state.slots.len();
            stats.slot_index_bytes += slots;
            let dense = state.slots.widths();
            stats.slot_pages.iter_mut().zip(dense).for_each(|(pages, more)| *pages += more);
            stats.slot_pages_sparse += state.slots.sparse_pages();
            stats.omap_keys += state.omap.len();
            stats.omap_index_bytes += omap;
            stats.extent_index_bytes += extents;
            stats.xattr_bytes += xattrs;
            stats.index_cold_pages += state.cold_pages();
        });
        stats.index_page_bytes = self.objects.page_bytes();
        stats.index_page_reads = self.objects.page_reads();
        if let Some(log) = &self.log {
            (stats.records, stats.record_bytes) = log.appended();
            (stats.payload_bytes, stats.relocation_bytes) = log.appended_kinds();
            stats.syncs = log.counters.syncs.load(Ordering::Relaxed);
            stats.device_writes = log.counters.writes.load(Ordering::Relaxed);
            stats.device_write_bytes = log.counters.written_bytes.load(Ordering::Relaxed);
            stats.last_seq = log.last_seq();
        }
        for usage in self.segments.in_use() {
            stats.live_bytes += usage.once;
            stats.damaged_segments += u64::from(usage.damage != DamageLevel::None);
            stats.checkpoint_bytes += usage.index;
        }
        if let (Some(keeper), Some(log)) = (&self.keeper, &self.log) {
            let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
            (stats.snapshots, stats.pinned_bytes) = keeper.holds();
            stats.checkpoints = load(&keeper.counters.checkpoints);
            stats.checkpoint_before_kept = self.superblocks.before_kept().into();
            stats.index_pages_dropped = load(&keeper.counters.pages_dropped);
            stats.checkpoint_write_bytes = load(&keeper.counters.checkpoint_bytes);
            stats.checkpoint_all_bytes = load(&keeper.counters.checkpoint_all_bytes);
            stats.checkpoint_us = load(&keeper.counters.checkpoint_us);
            stats.cleaned_segments = load(&keeper.counters.cleaned);
            stats.cleaned_copy_bytes = load(&keeper.counters.copied_bytes);
            stats.freed_segments = load(&keeper.counters.freed);
            stats.lost_values = load(&keeper.counters.lost);
            stats.compact_rested_us = load(&keeper.counters.rested_us);
            stats.cold_write_bytes = load(&keeper.cold().written_bytes);
            stats.gate = log.gate() as u64;
        }
        stats
    }
}

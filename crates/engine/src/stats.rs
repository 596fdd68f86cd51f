//! What the engine tells of itself.

use std::sync::atomic::Ordering;

use crate::open::Engine;
use crate::watch::Latency;

/// Figures of an open store, at one moment. Counters count since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Objects.
    pub objects: u64,
    /// Filled slots.
    pub slot_keys: u64,
    /// Memory of the slots' index in bytes.
    pub slot_index_bytes: u64,
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
    /// Bytes in that cache.
    pub cache_bytes: u64,
    /// Segments whose buffers are in memory.
    pub buffered_segments: u64,
    /// Segment size in bytes.
    pub segment_bytes: u64,
    /// Segments that can hold log.
    pub segments: u64,
    /// Of those, free.
    pub free_segments: u64,
    /// Bytes that objects point to; what two objects share counts twice.
    pub live_bytes: u64,
    /// Bytes of the last checkpoint on the device.
    pub checkpoint_bytes: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Bytes that the last checkpoint wrote: what had changed.
    pub checkpoint_write_bytes: u64,
    /// How long the last checkpoint took, in microseconds.
    pub checkpoint_us: u64,
    /// Segments cleaned.
    pub cleaned_segments: u64,
    /// Bytes copied by cleaning.
    pub cleaned_copy_bytes: u64,
    /// Segments made free again.
    pub freed_segments: u64,
    /// Segments that could not be cleaned because something in them does not hold.
    pub damaged_segments: u64,
    /// Bytes written to cold segments: copies and checkpoints.
    pub cold_write_bytes: u64,
    /// Syncs of cold segments.
    pub cold_syncs: u64,
    /// 0: writes are let in; 1: they wait for the cleaner; 2: refused, the device is full.
    pub gate: u64,
    /// Last commit sequence number.
    pub last_seq: u64,
    /// Calls of the device that took longer than `Options::slow_io`.
    pub slow_calls: u64,
    /// Reads of the device that failed and were tried again.
    pub read_retries: u64,
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

    /// Bytes written to the device for each byte of transactions; 0 before the first.
    pub fn write_amplification(&self) -> f64 {
        let written = self.device_write_bytes + self.cold_write_bytes;
        if self.record_bytes == 0 { 0.0 } else { written as f64 / self.record_bytes as f64 }
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
            ("syncs", self.syncs),
            ("device_writes", self.device_writes),
            ("device_write_bytes", self.device_write_bytes),
            ("device_reads", self.device_reads),
            ("device_read_bytes", self.device_read_bytes),
            ("cache_hits", self.cache_hits),
            ("cache_bytes", self.cache_bytes),
            ("buffered_segments", self.buffered_segments),
            ("segment_bytes", self.segment_bytes),
            ("segments", self.segments),
            ("free_segments", self.free_segments),
            ("live_bytes", self.live_bytes),
            ("checkpoint_bytes", self.checkpoint_bytes),
            ("checkpoints", self.checkpoints),
            ("checkpoint_write_bytes", self.checkpoint_write_bytes),
            ("checkpoint_us", self.checkpoint_us),
            ("cleaned_segments", self.cleaned_segments),
            ("cleaned_copy_bytes", self.cleaned_copy_bytes),
            ("freed_segments", self.freed_segments),
            ("damaged_segments", self.damaged_segments),
            ("cold_write_bytes", self.cold_write_bytes),
            ("cold_syncs", self.cold_syncs),
            ("gate", self.gate),
            ("last_seq", self.last_seq),
            ("slow_calls", self.slow_calls),
            ("read_retries", self.read_retries),
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
        entries.push(("write_amplification", format!("{:.3}", self.write_amplification())));
        entries.insert(3, ("slot_index_bytes_per_key", format!("{:.2}", self.slot_index_bytes_per_key())));
        entries
    }
}

impl Engine {
    /// The engine's figures. Walks all objects: cheap for a command, not for every request.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            segment_bytes: self.segments.segment_bytes,
            segments: self.segments.log_segments(),
            free_segments: self.segments.free_segments(),
            buffered_segments: self.segments.buffers(),
            device_reads: self.reader.counters.device_reads.load(Ordering::Relaxed),
            device_read_bytes: self.reader.counters.device_read_bytes.load(Ordering::Relaxed),
            cache_hits: self.reader.counters.cache_hits.load(Ordering::Relaxed),
            cache_bytes: self.reader.cached_bytes(),
            objects: self.objects.len() as u64,
            slow_calls: self.device.slow_calls.load(Ordering::Relaxed),
            read_retries: self.device.read_retries.load(Ordering::Relaxed),
            read_latency: self.device.reads.latency(),
            write_latency: self.device.writes.latency(),
            sync_latency: self.device.syncs.latency(),
            ..Stats::default()
        };
        self.objects.for_each(|object| {
            let state = object.state.read();
            let [slots, omap, extents, xattrs] = state.memory_bytes();
            stats.slot_keys += state.slots.len();
            stats.slot_index_bytes += slots;
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
            stats.syncs = log.counters.syncs.load(Ordering::Relaxed);
            stats.device_writes = log.counters.writes.load(Ordering::Relaxed);
            stats.device_write_bytes = log.counters.written_bytes.load(Ordering::Relaxed);
            stats.last_seq = log.last_seq();
        }
        for usage in self.segments.in_use() {
            stats.live_bytes += usage.live;
            stats.checkpoint_bytes += usage.index;
        }
        if let (Some(keeper), Some(log)) = (&self.keeper, &self.log) {
            let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
            stats.checkpoints = load(&keeper.counters.checkpoints);
            stats.index_pages_dropped = load(&keeper.counters.pages_dropped);
            stats.checkpoint_write_bytes = load(&keeper.counters.checkpoint_bytes);
            stats.checkpoint_us = load(&keeper.counters.checkpoint_us);
            stats.cleaned_segments = load(&keeper.counters.cleaned);
            stats.cleaned_copy_bytes = load(&keeper.counters.copied_bytes);
            stats.freed_segments = load(&keeper.counters.freed);
            stats.damaged_segments = load(&keeper.counters.damaged);
            stats.cold_write_bytes = load(&keeper.cold().written_bytes);
            stats.cold_syncs = load(&keeper.cold().syncs);
            stats.gate = log.gate() as u64;
        }
        stats
    }
}

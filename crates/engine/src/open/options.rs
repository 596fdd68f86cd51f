//! How an engine runs, and what is told while it is opened.

use std::sync::Arc;
use std::time::Duration;

use crate::cache::CachePolicy;
use crate::compress::CompressOptions;
use crate::policy::CommitPolicy;

/// How an engine runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// When the log is synced. `adaptive` by default; may be changed with
    /// [`Engine::set_policy`](crate::Engine::set_policy).
    pub policy: CommitPolicy,
    /// Memory for the newest segments, in bytes; at least two segments. They have what [`Options::cache_bytes`] does
    /// not use beside it, unless this is 0. 128 MiB by default.
    pub recent_bytes: u64,
    /// Memory for values read from the device, in bytes; as long as there are fewer, the newest segments have the rest.
    /// 256 MiB by default.
    pub cache_bytes: u64,
    /// Which of those values stay when there are more. `clock` by default.
    pub cache_policy: CachePolicy,
    /// Memory for index pages, in bytes, at least 1 MiB: above it pages that were not used lately leave memory and are
    /// read back when they are needed. Pages that changed since the last checkpoint stay, and checkpoints are written
    /// more often for that. Names, attributes, and the inner pages and directories that lead to pages are not counted.
    /// No limit by default.
    pub index_bytes: u64,
    /// Open without writing a byte; `submit` answers [`Error::ReadOnly`](esker_store::Error::ReadOnly). Off by default.
    pub read_only: bool,
    /// Longest time that a write which no caller waits for stays unsynced under `adaptive`, `batch` and `group`. 1 s by
    /// default.
    pub async_flush: Duration,
    /// Bytes that writers may be ahead of the device; above it they wait. 256 MiB by default.
    pub pending_bytes_max: u64,
    /// Values of 16 KiB and more that were just written are handed out where they stand, and keep their segment in
    /// memory. When so many bytes are kept beside [`Options::recent_bytes`], values are copied; so are those in memory
    /// that the cache lends. 256 MiB by default.
    pub pinned_bytes_max: u64,
    /// Calls of the device that take longer are logged with their stage and counted. 1 s by default.
    pub slow_io: Duration,
    /// What is compressed of transactions that ask for it, and what of that is kept.
    pub compress: CompressOptions,
    /// Bytes per second that are read and verified in the background; 0 is off. 8 MiB by default. May be changed with
    /// [`Engine::set_scrub_rate`](crate::Engine::set_scrub_rate).
    pub scrub_bytes_per_s: u64,
    /// How long after opening the scrubber begins. 30 s by default.
    pub scrub_after: Duration,
    /// A checkpoint is written when replaying the log after the last one would take so long, with the loading of it:
    /// opening after a crash takes about that. 3 s by default; a shorter time writes more. Zero: only the log's length
    /// counts.
    pub recovery_time: Duration,
    /// Is told how far opening has come, from several threads. None by default.
    pub progress: Option<Progress>,
    /// Run a commit thread (default). Without one, a waiting writer commits: for deterministic simulation.
    pub commit_thread: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: CommitPolicy::default(),
            recent_bytes: 128 << 20,
            cache_bytes: 256 << 20,
            cache_policy: CachePolicy::default(),
            index_bytes: u64::MAX,
            read_only: false,
            async_flush: Duration::from_secs(1),
            pending_bytes_max: 256 << 20,
            pinned_bytes_max: 256 << 20,
            slow_io: Duration::from_secs(1),
            compress: CompressOptions::default(),
            scrub_bytes_per_s: 8 << 20,
            scrub_after: Duration::from_secs(30),
            recovery_time: Duration::from_secs(3),
            progress: None,
            commit_thread: true,
        }
    }
}

impl Options {
    /// These, with no setting larger than what fits into so many bytes of memory together with the others: a sixteenth
    /// each for [`Options::recent_bytes`], [`Options::pending_bytes_max`], [`Options::pinned_bytes_max`] and
    /// [`Options::cache_bytes`], and for [`Options::index_bytes`] an eighth, or a third from 8 GiB on: pages that
    /// change while a checkpoint is written are there twice. The engine takes a few segments beside: they should have
    /// [`segment_bytes_within`] at most.
    pub fn within(mut self, memory_bytes: u64) -> Self {
        const MIB: u64 = 1 << 20;
        let part = |parts: u64| (memory_bytes / parts / MIB).max(1) * MIB;
        let Self { recent_bytes, pending_bytes_max, pinned_bytes_max, cache_bytes, .. } = &mut self;
        for bytes in [recent_bytes, pending_bytes_max, pinned_bytes_max, cache_bytes] {
            *bytes = (*bytes).min(part(16));
        }
        self.index_bytes = self.index_bytes.min(if memory_bytes >= 8 << 30 { part(3) } else { part(8) });
        self
    }

    /// These, with `memory_bytes` shared out among all settings of memory, whatever they were: the defaults, as
    /// [`Options::within`] has them, with an eighth for [`Options::index_bytes`], and for [`Options::cache_bytes`] what
    /// [`Options::memory_bytes_max`] leaves of four fifths: 12 % of 1 GiB, 33 % of 8 GiB, 47 % of 64 GiB. A fifth is
    /// left to what serves the store. For segments of [`segment_bytes_within`] or 64 MiB, whichever is less.
    pub fn sharing(self, memory_bytes: u64) -> Self {
        let Self { recent_bytes, cache_bytes, pending_bytes_max, pinned_bytes_max, .. } =
            Self::default().within(memory_bytes);
        let mut options = Self { recent_bytes, cache_bytes, pending_bytes_max, pinned_bytes_max, ..self };
        options.index_bytes = (memory_bytes / 8).max(1 << 20);
        let segment_bytes = segment_bytes_within(memory_bytes).min(64 << 20);
        let others = options.memory_bytes_max(segment_bytes) - options.cache_bytes;
        options.cache_bytes = options.cache_bytes.max((memory_bytes / 5 * 4).saturating_sub(others));
        options
    }

    /// What an engine takes at most with these settings and segments of so many bytes, in bytes: recent segments, twice
    /// what is pending, values that are handed out, the cache, and the index, twice while a checkpoint is written;
    /// segments that are ready, spare, or read to be cleaned, and copies.
    pub fn memory_bytes_max(&self, segment_bytes: u64) -> u64 {
        let index = self.index_bytes.saturating_add(self.index_bytes / 4).saturating_add(2 << 20).saturating_mul(2);
        [self.recent_bytes, self.pending_bytes_max, self.pending_bytes_max, self.pinned_bytes_max, self.cache_bytes]
            .into_iter()
            .chain([index, 6 * segment_bytes, 6 * segment_bytes.min(4 << 20)])
            .fold(0, u64::saturating_add)
    }
}

/// The largest segments, in bytes, that an engine with so many bytes of memory should have: a 64th, at least 1 MiB.
pub fn segment_bytes_within(memory_bytes: u64) -> u64 {
    1 << (memory_bytes / 64).max(1 << 20).ilog2()
}

/// What opening is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Loading the checkpoint.
    Checkpoint,
    /// Replaying the log after it.
    Log,
}

/// Is told how far opening has come: the stage, and how much of it is done, of how much.
#[derive(Clone)]
pub struct Progress(pub Arc<dyn Fn(Stage, u64, u64) + Send + Sync>);

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress")
    }
}

//! Kinds of runs: which device, which failures, how long.
//!
//! Invariant: what a kind leaves open is drawn from the run's randomness, so that seed and kind describe the run.

use std::time::Duration;

use esker_engine::{CommitPolicy, CompressOptions, Options};

use crate::fault::{Faults, Shape};

/// Segment size of all runs, in bytes.
pub const SEGMENT_BYTES: u64 = 64 << 10;
/// Segments of a device that is not meant to fill up.
const SEGMENTS: u64 = 48;
/// The same, for images and their snapshots.
const VOLUME_SEGMENTS: u64 = 128;
/// Of a zoned device so many zones may be partly written at once. `None`: no limit, because the engine leaves the
/// zones of sealed segments partly written until it writes there again. Devices allow 14 and more.
pub const OPEN_ZONES_MAX: Option<usize> = None;

/// What a run is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Power cuts at any I/O.
    Plain,
    /// The same on a zoned device.
    Zoned,
    /// A device of 32 to 48 segments that fills up. On fewer the reserve is too small for a checkpoint of metadata as
    /// large as here, if crashes come one after the other.
    Small,
    /// The same on a zoned device.
    SmallZoned,
    /// A device whose space comes and goes: reserving fails with `NoSpace`.
    Thin,
    /// Reads, writes and syncs fail.
    Errors,
    /// Clean stops, few failures.
    Remount,
    /// Power cuts and failures under volumes instead of plain transactions.
    Volume,
    /// Processes on a shared log: see [`crate::logs`].
    Log,
    /// What is on the device changes by itself: see `rot.rs`.
    Rot,
    /// Clones and snapshots beside cleaning, with all threads of the engine: see `threaded/clones.rs`.
    Clones,
    /// A panic at any call of the device, in any thread: see `threaded/panics.rs`.
    Panics,
    /// Openings that are cut off at any of their calls: see `opening.rs`.
    Opening,
    /// Faces that fill and empty a store on a device or a file system that is full, in most runs with all threads of
    /// the engine: see `full`.
    Full,
    /// Processes on the key-value face: see [`crate::kvs`].
    Kv,
    /// Processes on the map: see [`crate::maps`].
    Map,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 16] = [
        Self::Plain,
        Self::Zoned,
        Self::Small,
        Self::Errors,
        Self::Thin,
        Self::SmallZoned,
        Self::Remount,
        Self::Volume,
        Self::Log,
        Self::Rot,
        Self::Clones,
        Self::Panics,
        Self::Opening,
        Self::Full,
        Self::Kv,
        Self::Map,
    ];

    /// The kind of a seed's run, unless another is asked for.
    pub fn of_seed(seed: u64) -> Self {
        Self::ALL[(seed % Self::ALL.len() as u64) as usize]
    }

    /// The kind's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Zoned => "zoned",
            Self::Small => "small",
            Self::SmallZoned => "small-zoned",
            Self::Thin => "thin",
            Self::Errors => "errors",
            Self::Remount => "remount",
            Self::Volume => "volume",
            Self::Log => "log",
            Self::Rot => "rot",
            Self::Clones => "clones",
            Self::Panics => "panics",
            Self::Opening => "opening",
            Self::Full => "full",
            Self::Kv => "kv",
            Self::Map => "map",
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether the engine's threads run: then the schedule is the machine's, and the same seed may give another trace.
    pub fn has_threads(self) -> bool {
        matches!(self, Self::Clones | Self::Panics | Self::Full)
    }

    /// Whether the device is meant to fill up.
    pub fn fills(self) -> bool {
        matches!(self, Self::Small | Self::SmallZoned | Self::Thin)
    }

    /// A random device of this kind.
    pub(crate) fn shape(self, rng: &mut fastrand::Rng) -> Shape {
        let zoned = match self {
            Self::Zoned | Self::SmallZoned => true,
            Self::Errors | Self::Remount | Self::Volume | Self::Rot => rng.u8(0..4) == 0,
            _ => false,
        };
        let segments = match self {
            Self::Small | Self::SmallZoned => rng.u64(32..=48),
            Self::Volume => VOLUME_SEGMENTS,
            _ => SEGMENTS,
        };
        let zone_bytes = SEGMENT_BYTES >> rng.u32(0..3);
        let space_bytes = (self == Self::Thin).then(|| SEGMENT_BYTES * rng.u64(6..16));
        Shape {
            zone_bytes: zoned.then_some(zone_bytes),
            open_zones_max: OPEN_ZONES_MAX.filter(|_| zoned),
            space_bytes,
            ..Shape::plain(segments * SEGMENT_BYTES)
        }
    }

    /// Most steps of one life.
    pub(crate) fn steps_max(self) -> usize {
        if self.fills() { 200 } else { 60 }
    }

    /// What fails during one life.
    pub(crate) fn faults(self, rng: &mut fastrand::Rng) -> Faults {
        let mut faults = Faults::default();
        let write = (1, 30);
        let cut = match self {
            Self::Volume => 120,
            _ if self.fills() => 240,
            _ => 60,
        };
        // Of 16 lives, so many see a failed write, a failed sync, a power cut, or nothing.
        let (failed_writes, failed_syncs, cuts) = match self {
            Self::Small | Self::SmallZoned | Self::Thin => (1, 1, 7),
            Self::Errors => (4, 4, 3),
            Self::Remount => (0, 1, 1),
            Self::Volume => (1, 1, 11),
            _ => (2, 2, 10),
        };
        let draw = rng.u64(0..16);
        if draw < failed_writes {
            faults.failed_write_at = Some(rng.u64(write.0..write.1));
        } else if draw < failed_writes + failed_syncs {
            faults.failed_sync_at = Some(rng.u64(1..20));
        } else if draw < failed_writes + failed_syncs + cuts {
            faults.power_cut_at = Some(rng.u64(1..cut));
        }
        faults
    }

    /// Of 16 lives that reached their end, so many stop cleanly.
    pub(crate) fn clean_stops(self) -> u64 {
        if self == Self::Remount { 14 } else { 4 }
    }

    /// What fails while the store opens, if anything does.
    pub(crate) fn opening_faults(self, rng: &mut fastrand::Rng) -> Option<Faults> {
        let often = if self == Self::Remount { 16 } else { 5 };
        if rng.u64(0..often) != 0 {
            return None;
        }
        let mut faults = Faults::default();
        match if self == Self::Errors { rng.u8(0..4) } else { 3 } {
            0 => faults.failed_write_at = Some(rng.u64(1..4)),
            1 => faults.failed_sync_at = Some(rng.u64(1..4)),
            2 => (faults.failed_read_at, faults.failed_reads_more) = (Some(rng.u64(1..60)), 1),
            _ => faults.power_cut_at = Some(rng.u64(1..8)),
        }
        Some(faults)
    }
}

/// Random options of an engine without threads.
pub(crate) fn options(rng: &mut fastrand::Rng) -> Options {
    Options {
        commit_thread: false,
        recent_bytes: if rng.bool() { 0 } else { 1 << 20 },
        // None, or enough to throw nothing out: which values a full cache throws out is not the seed's choice.
        cache_bytes: if rng.bool() { 0 } else { 16 << 20 },
        // None: what a checkpoint has of the index is read when it is needed.
        index_bytes: rng.choice([0, u64::MAX]).unwrap_or(0),
        // Little room makes the log append without a sync, much lets segments be sealed before they are written.
        pending_bytes_max: rng.choice([4 << 10, 32 << 10, 4 * SEGMENT_BYTES]).unwrap_or(4 << 10),
        policy: policy(rng),
        compress: CompressOptions {
            bytes_min: rng.choice([1, 512]).unwrap_or(512),
            unit_bytes: rng.choice([4 << 10, 64 << 10]).unwrap_or(4 << 10),
            ..CompressOptions::default()
        },
        ..Options::default()
    }
}

/// A random commit policy; sometimes one that acknowledges before the sync.
pub(crate) fn policy(rng: &mut fastrand::Rng) -> CommitPolicy {
    match rng.u8(0..12) {
        0 => CommitPolicy::Periodic { interval: Duration::from_secs(1) },
        1 => CommitPolicy::Group { window: Duration::from_millis(1) },
        2..6 => CommitPolicy::Batch,
        _ => CommitPolicy::Adaptive,
    }
}

//! How much memory this process may have, and the settings that fit into it.
//!
//! limits of its cgroup and of those above | memory of the machine → the smallest → [`Options::within`]
//!
//! Invariant: what cannot be read limits nothing.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, fs};

use esker_engine::{Options, segment_bytes_within};

use crate::units::{ByteSize, UnitError};

/// Segments that a store has by default where memory is no matter, in bytes.
const SEGMENT_BYTES: u64 = 64 << 20;

/// Memory that is shared out by [`Builder::memory_bytes`](crate::Builder::memory_bytes), as text: a [`ByteSize`] of at
/// least [`MemorySize::MIN`], or 0, which says nothing of it.
///
/// ```
/// use esker::{ByteSize, MemorySize};
/// assert_eq!("8g".parse::<MemorySize>().unwrap(), MemorySize(ByteSize(8 << 30)));
/// assert!("8m".parse::<MemorySize>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySize(pub ByteSize);

impl MemorySize {
    /// The least memory that is shared out.
    pub const MIN: ByteSize = ByteSize(64 << 20);
}

/// A size of memory is no size, or too little.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemorySizeError {
    /// No size.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// Less than [`MemorySize::MIN`].
    #[error("{0} of memory is too little to share out: at least {min}", min = MemorySize::MIN)]
    Little(ByteSize),
}

impl FromStr for MemorySize {
    type Err = MemorySizeError;

    fn from_str(text: &str) -> Result<Self, MemorySizeError> {
        match text.parse()? {
            size if size > ByteSize(0) && size < Self::MIN => Err(MemorySizeError::Little(size)),
            size => Ok(Self(size)),
        }
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Memory in bytes that this process may have: the smallest limit of its cgroup and those above it (version 1 and 2),
/// or the machine's. `None` where neither is known.
pub fn memory_bytes() -> Option<u64> {
    limit_of(&Mounted { cgroups: "/sys/fs/cgroup".into(), proc: "/proc".into() })
}

/// The engine's default settings, those of memory no larger than what fits into [`memory_bytes`].
pub fn engine_options() -> Options {
    let options = Options::default();
    match memory_bytes() {
        Some(bytes) => options.within(bytes),
        None => options,
    }
}

/// Segment size in bytes of a store that is made, where nothing is said of it.
pub fn default_segment_bytes() -> u64 {
    memory_bytes().map_or(SEGMENT_BYTES, |bytes| segment_bytes_within(bytes).min(SEGMENT_BYTES))
}

/// Below so many bytes of memory the allocator is to keep little.
const SCARCE_BYTES: u64 = 4 << 30;

/// Has the process's allocator give freed memory back where memory is scarce: what there is, or what is `given` to the
/// stores. For a program, before it starts threads.
pub fn heed_memory_limit(given: Option<u64>) {
    if given.into_iter().chain(memory_bytes()).any(|bytes| bytes < SCARCE_BYTES) {
        esker_device::give_freed_memory_back();
    }
}

/// Has the process's allocator give back what it keeps of freed memory, for a program after a peak.
pub fn give_kept_memory_back() {
    esker_device::give_kept_memory_back();
}

/// Where limits are read.
struct Mounted {
    cgroups: PathBuf,
    proc: PathBuf,
}

fn limit_of(mounted: &Mounted) -> Option<u64> {
    let groups = fs::read_to_string(mounted.proc.join("self/cgroup")).unwrap_or_default();
    let mut limits: Vec<u64> = groups.lines().flat_map(|line| limits_in(mounted, line)).collect();
    let machine = fs::read_to_string(mounted.proc.join("meminfo")).unwrap_or_default();
    let total = machine.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|total| total.trim().strip_suffix("kB")).and_then(|kib| kib.trim().parse::<u64>().ok());
    limits.extend(kib.map(|kib| kib << 10));
    limits.into_iter().min()
}

/// What one line of /proc/self/cgroup, ID:CONTROLLERS:PATH, leads to.
fn limits_in(mounted: &Mounted, line: &str) -> Vec<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { return Vec::new() };
    let (root, file) = match controllers {
        "" => (mounted.cgroups.clone(), "memory.max"),
        some if some.split(',').any(|controller| controller == "memory") => {
            (mounted.cgroups.join("memory"), "memory.limit_in_bytes")
        }
        _ => return Vec::new(),
    };
    // In a container the path may be the host's, and its own group be mounted as the root.
    let below = Path::new(path.trim_start_matches('/'));
    below.ancestors().filter_map(|group| limit_at(&root.join(group).join(file))).collect()
}

/// "max" of version 2 is no number, and version 1 says a number that no machine has.
fn limit_at(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(files: &[(&str, &str)]) -> Option<u64> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        limit_of(&Mounted { cgroups: folder.path().join("cgroup"), proc: folder.path().join("proc") })
    }

    const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal:       24550000 kB\nMemFree:  1 kB\n");

    #[test]
    fn the_smallest_limit_above_a_process_counts() {
        let groups = ("proc/self/cgroup", "0::/system.slice/esker.service\n");
        let own = ("cgroup/system.slice/esker.service/memory.max", "536870912\n");
        assert_eq!(limit(&[MACHINE, groups, own]), Some(512 << 20));
        let above = ("cgroup/system.slice/memory.max", "268435456\n");
        assert_eq!(limit(&[MACHINE, groups, own, above]), Some(256 << 20));
        let none = ("cgroup/system.slice/esker.service/memory.max", "max\n");
        assert_eq!(limit(&[MACHINE, groups, none]), Some(24_550_000 << 10));
    }

    #[test]
    fn version_1_is_heeded_too() {
        let groups = ("proc/self/cgroup", "9:cpu,cpuacct:/\n4:memory:/docker/ab:cd\n0::/\n");
        let own = ("cgroup/memory/docker/ab:cd/memory.limit_in_bytes", "134217728\n");
        assert_eq!(limit(&[MACHINE, groups, own]), Some(128 << 20));
        // Where the path is the host's, the container's own group is the root.
        let root = ("cgroup/memory/memory.limit_in_bytes", "67108864\n");
        assert_eq!(limit(&[MACHINE, groups, root]), Some(64 << 20));
        let none = ("cgroup/memory/docker/ab:cd/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit(&[MACHINE, groups, none]), Some(24_550_000 << 10));
    }

    #[test]
    fn what_cannot_be_read_limits_nothing() {
        assert_eq!(limit(&[]), None);
        assert_eq!(limit(&[("proc/meminfo", "MemTotal: much\n"), ("proc/self/cgroup", "memory\n:\n")]), None);
    }

    #[test]
    fn settings_fit_into_what_there_is() {
        for mib in [128, 256, 512, 1_024, 4_096, 1 << 20] {
            let (bytes, options) = (mib << 20, Options::default().within(mib << 20));
            let segment = segment_bytes_within(bytes).min(SEGMENT_BYTES);
            let taken = options.memory_bytes_max(segment);
            assert!(taken <= bytes * 9 / 10, "{taken} bytes of {bytes}");
        }
        assert_eq!(Options::default().within(4 << 30).cache_bytes, Options::default().cache_bytes);
    }

    #[test]
    fn memory_that_is_given_is_shared_out() {
        for mib in [64, 100, 128, 256, 512, 1_024, 4_096, 65_536] {
            let (bytes, options) = (mib << 20, Options::default().sharing(mib << 20));
            let segment = segment_bytes_within(bytes).min(SEGMENT_BYTES);
            let taken = options.memory_bytes_max(segment);
            assert!(taken <= bytes * 9 / 10, "{taken} bytes of {bytes}");
            assert!(taken >= bytes * 79 / 100, "{taken} bytes of {bytes} is little");
            assert!(options.cache_bytes >= bytes / 16, "{options:?}");
        }
        let many = Options::default().sharing(64 << 30);
        assert!(many.cache_bytes > (64 << 30) / 5 * 2, "{many:?}");
    }
}

//! The C library's allocator: how much of what was freed it keeps.
//!
//! little memory, nothing said of the allocator → the same program again, with what glibc reads when it starts

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Below so many bytes of memory the allocator is to keep little.
const SCARCE_BYTES: u64 = 4 << 30;
/// Where glibc looks for its settings, once, when a program starts.
const VARIABLE: &str = "GLIBC_TUNABLES";
/// Blocks from 128 KiB on are given back as soon as they are freed, and all threads share two arenas.
const SETTINGS: &str = "glibc.malloc.mmap_threshold=131072:glibc.malloc.trim_threshold=131072:glibc.malloc.arena_max=2";

/// Has the allocator of this process keep little of what is freed, where memory is scarce: without that glibc's kept as
/// much as was allocated. Starts the program again, in the same process, unless [`VARIABLE`] is set; if that does not
/// work, goes on as it is. To be called before anything else has been done.
pub fn heed_memory_limit() {
    let scarce = esker::memory_bytes().is_some_and(|bytes| bytes < SCARCE_BYTES);
    if !scarce || std::env::var_os(VARIABLE).is_some() {
        return;
    }
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "esker".into());
    let Ok(program) = std::env::current_exe() else { return };
    let _ = Command::new(program).arg0(name).args(arguments).env(VARIABLE, SETTINGS).exec();
}

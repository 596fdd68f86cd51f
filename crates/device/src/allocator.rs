//! The C library's allocator: how much of what was freed it keeps.

#![expect(unsafe_code, reason = "a call into the C library")]

/// Has the process's allocator give memory back rather than keep it for later: blocks from 128 KiB on as soon as they
/// are freed, and no more than two arenas for all threads. Without it glibc's kept as much as was allocated. For a
/// program that has little memory, before it starts threads; other allocators do not heed it.
pub fn give_freed_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const BLOCK_BYTES: i32 = 128 << 10;
        let settings =
            [(libc::M_MMAP_THRESHOLD, BLOCK_BYTES), (libc::M_TRIM_THRESHOLD, BLOCK_BYTES), (libc::M_ARENA_MAX, 2)];
        for (parameter, value) in settings {
            // SAFETY: sets a parameter of the allocator under its own lock; no memory is passed. What it refuses stays
            // as it was.
            unsafe { libc::mallopt(parameter, value) };
        }
    }
}

/// Has the process's allocator give back now what it keeps of freed memory. Takes a while where it keeps much: not for
/// threads that answer. Other allocators than glibc's do not heed it.
pub fn give_kept_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: works on the allocator's own memory under its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

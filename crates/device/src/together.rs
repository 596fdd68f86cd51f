//! Reads of a file that are under way together, by one thread: io_uring.
//!
//! blocks → [`Ring::begin`] … → [`Ring::wait`] (one call of the kernel begins them all, and waits for the first)
//!        → [`Ring::next_done`] → the blocks, filled or not
//!
//! Rings are kept: a thread takes one for its reads and gives it back. Where the kernel has none, or does not let this
//! process have one, there is none to be taken.
//!
//! Invariant: memory that the kernel may still write into stays: a ring that is dropped waits for what is under way.

#![expect(unsafe_code, reason = "the kernel is given pointers into memory that stays until it is done")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, types};
use libc::{EAGAIN, EBUSY, EMFILE, ENFILE, ENOMEM};
use parking_lot::Mutex;

use crate::Blocks;

/// So many reads are under way at a time, of one thread.
const TOGETHER_MAX: usize = 64;
/// So many rings are kept.
const RINGS_MAX: usize = 16;

/// See the module.
#[derive(Default)]
pub(crate) struct Rings {
    idle: Mutex<Vec<Ring>>,
    /// There are none to be had.
    none: AtomicBool,
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rings").field("none", &self.none).finish_non_exhaustive()
    }
}

impl Rings {
    /// As where the kernel lets no process have one.
    #[cfg(test)]
    pub(crate) fn refused() -> Self {
        Self { none: AtomicBool::new(true), ..Self::default() }
    }

    /// One that is idle, or a new one.
    pub(crate) fn take(&self) -> Option<Ring> {
        if self.none.load(Ordering::Relaxed) {
            return None;
        }
        if let Some(ring) = self.idle.lock().pop() {
            return Some(ring);
        }
        // Fewer interruptions of a thread that waits anyway; older kernels do not know of it.
        let quiet = IoUring::builder().setup_coop_taskrun().build(TOGETHER_MAX as u32);
        match quiet.or_else(|_| IoUring::new(TOGETHER_MAX as u32)).and_then(that_reads) {
            Ok(ring) => Some(Ring { ring, slots: Vec::new(), free: Vec::new(), under_way: 0 }),
            Err(error) => {
                // One that may open no more files may have one later, as where memory is short.
                let is_for_good = !matches!(error.raw_os_error(), Some(EMFILE | ENFILE | ENOMEM | EAGAIN | EBUSY));
                self.none.store(is_for_good, Ordering::Relaxed);
                None
            }
        }
    }

    /// One that is idle.
    pub(crate) fn give_back(&self, ring: Ring) {
        let mut idle = self.idle.lock();
        if idle.len() < RINGS_MAX {
            idle.push(ring);
        }
    }
}

/// The ring, if it knows of reads, which the first kernels that had one did not, and may be entered: nothing that is
/// under way could be waited for otherwise.
fn that_reads(mut ring: IoUring) -> io::Result<IoUring> {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    if !probe.is_supported(opcode::Read::CODE) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: it has no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.map_err(io::Error::other)?;
    loop {
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => {
                other?;
                break;
            }
        }
    }
    let is_done = ring.completion().next().is_some();
    if is_done { Ok(ring) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// Reads that one thread has under way.
pub(crate) struct Ring {
    ring: IoUring,
    /// What is under way, by the number that the kernel is given.
    slots: Vec<Option<(u64, Blocks)>>,
    free: Vec<usize>,
    under_way: usize,
}

impl Ring {
    pub(crate) fn has_room(&self) -> bool {
        self.under_way < TOGETHER_MAX
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    /// Begins to fill the blocks, with the next [`Ring::wait`]. There has to be room.
    pub(crate) fn begin(&mut self, file: &File, number: u64, mut blocks: Blocks) {
        let whole = blocks.whole_mut();
        let len = u32::try_from(whole.len()).unwrap_or(u32::MAX);
        let read = opcode::Read::new(types::Fd(file.as_raw_fd()), whole.as_mut_ptr(), len).offset(blocks.first());
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        // Where it stands in memory does not change with this.
        self.slots[slot] = Some((number, blocks));
        self.under_way += 1;
        let entry = read.build().user_data(slot as u64);
        // SAFETY: the memory stays in its slot until the kernel has said that it is done with it; a file that is closed
        // meanwhile the kernel keeps.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            // Full of what the kernel has not taken yet.
            self.submit(0);
        }
    }

    fn submit(&mut self, wait_for: usize) {
        if let Err(error) = self.ring.submit_and_wait(wait_for)
            && error.kind() != io::ErrorKind::Interrupted
        {
            // Short of memory, or not seen yet; what is under way has to be waited for all the same.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Begins what has not begun, and waits until one is done, if any is under way.
    pub(crate) fn wait(&mut self) {
        if !self.ring.completion().is_empty() && !self.ring.submission().is_empty() {
            // Else the device would have less and less to do while one after the other is done.
            self.submit(0);
        }
        while self.under_way > 0 && self.ring.completion().is_empty() {
            self.submit(1);
        }
    }

    /// One that is done: its number, its memory, and how many bytes were read.
    pub(crate) fn next_done(&mut self) -> Option<(u64, Blocks, io::Result<usize>)> {
        let done = self.ring.completion().next()?;
        let slot = done.user_data() as usize;
        let (number, blocks) = self.slots.get_mut(slot)?.take()?;
        self.free.push(slot);
        self.under_way -= 1;
        let read = usize::try_from(done.result()).map_err(|_| io::Error::from_raw_os_error(-done.result()));
        Some((number, blocks, read))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.under_way > 0 {
            self.wait();
            while self.next_done().is_some() {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use super::*;
    use crate::BlockPool;

    #[test]
    fn each_read_is_told_what_it_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::options().read(true).write(true).create_new(true).open(folder.path().join("file")).unwrap();
        file.write_all_at(&(0..200 * 4096).map(|at| (at / 4096) as u8).collect::<Vec<_>>(), 0).unwrap();
        let (rings, pool) = (Rings::default(), Arc::new(BlockPool::default()));
        let blocks = |number: u64| pool.take(number * 4096, 4096, u64::MAX).unwrap();
        // Where this kernel has none there is nothing to be seen here.
        let Some(mut ring) = rings.take() else { return };
        let mut told = vec![None; 201];
        let mut next = 0;
        while told.iter().any(Option::is_none) {
            while ring.has_room() && next <= 200 {
                ring.begin(&file, next, blocks(next));
                next += 1;
            }
            ring.wait();
            while let Some((number, blocks, read)) = ring.next_done() {
                let expected = if number == 200 { 0 } else { number as u8 };
                assert!(number == 200 || blocks.iter().all(|byte| *byte == expected), "{number}");
                assert!(told[number as usize].replace(read.unwrap()).is_none());
            }
        }
        assert!(ring.is_idle());
        assert!(told.iter().enumerate().all(|(at, read)| *read == Some(if at == 200 { 0 } else { 4096 })));
        // One that is not open for reading.
        let file = File::options().write(true).open(folder.path().join("file")).unwrap();
        ring.begin(&file, 7, blocks(0));
        ring.wait();
        let (number, _, read) = ring.next_done().unwrap();
        assert_eq!((number, read.unwrap_err().raw_os_error()), (7, Some(libc::EBADF)));
        rings.give_back(ring);
        assert_eq!(rings.idle.lock().len(), 1);
    }
}

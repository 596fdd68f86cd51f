//! Memory that the device reads into: whole blocks, aligned to them, used again.
//!
//! place → [`BlockPool::take`] → blocks around it → device → the place alone, which gives the memory back
//!
//! Invariant: what is kept for the next read is bounded; what is longer than a read of a value is not kept.

#![expect(unsafe_code, reason = "memory that is aligned to blocks")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// A file device reads past the page cache in blocks of so many bytes.
const READ_BLOCK_BYTES: u64 = 4 << 10;

/// Lengths in bytes, and how many of each are kept: 21 MiB in all, once so many reads were under way.
const KEPT: [(usize, usize); 7] = [
    (16 << 10, 64),
    (40 << 10, 16),
    (72 << 10, 32),
    (144 << 10, 16),
    (272 << 10, 8),
    (528 << 10, 8),
    ((1 << 20) + (64 << 10), 8),
];
/// Less than this is copied out of its blocks, so that a small value does not keep a large piece of memory.
const COPIED_BYTES_MAX: usize = 32 << 10;

/// Bytes aligned to blocks.
struct Aligned {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain bytes, owned by this value.
unsafe impl Send for Aligned {}
// SAFETY: as above; they are changed by who has it for itself only.
unsafe impl Sync for Aligned {}

impl Aligned {
    fn new(len: usize) -> std::io::Result<Self> {
        let short = || std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        let layout = Layout::from_size_align(len.max(1), READ_BLOCK_BYTES as usize).map_err(|_| short())?;
        // SAFETY: of a size that is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(short)?;
        Ok(Self { start, layout })
    }

    fn len(&self) -> usize {
        self.layout.size()
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: allocated with this length, and zeroed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; exclusive by `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len()) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Memory that is used again: see [`Blocks`].
#[derive(Default)]
pub struct BlockPool([Mutex<Vec<Aligned>>; KEPT.len()]);

impl std::fmt::Debug for BlockPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockPool").finish_non_exhaustive()
    }
}

/// Bytes of a device, in the whole blocks that they stand in: what a read fills that may go past the operating system's
/// cache.
pub struct Blocks {
    /// There until it is dropped.
    memory: Option<Aligned>,
    /// Device offset of the first block.
    first: u64,
    /// Where the place is.
    range: Range<usize>,
    /// How long the blocks are.
    whole: usize,
    pool: Arc<BlockPool>,
}

impl BlockPool {
    /// Memory for `len` bytes from `offset` of a device of `device_len`. It holds anything.
    ///
    /// # Errors
    /// The operating system's, when memory is short.
    pub fn take(self: &Arc<Self>, offset: u64, len: u64, device_len: u64) -> std::io::Result<Blocks> {
        let first = offset - offset % READ_BLOCK_BYTES;
        let end = (offset + len).next_multiple_of(READ_BLOCK_BYTES).min(device_len.max(offset + len));
        let (skip, whole) = ((offset - first) as usize, (end - first) as usize);
        let memory = match KEPT.iter().position(|(bytes, _)| whole <= *bytes) {
            Some(class) => {
                let kept = self.0[class].lock().pop();
                kept.map_or_else(|| Aligned::new(KEPT[class].0), Ok)?
            }
            None => Aligned::new(whole)?,
        };
        let range = skip..skip + len as usize;
        Ok(Blocks { memory: Some(memory), first, range, whole, pool: Arc::clone(self) })
    }
}

impl Blocks {
    /// Device offset of the first block.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Whether the place begins at this device offset.
    pub fn is_at(&self, offset: u64) -> bool {
        self.first + self.range.start as u64 == offset
    }

    /// Bytes of memory that this keeps.
    pub fn memory_bytes(&self) -> usize {
        self.memory.as_ref().map_or(0, Aligned::len)
    }

    /// All of the blocks.
    pub fn whole_mut(&mut self) -> &mut [u8] {
        let whole = self.whole;
        self.memory.as_mut().map_or(&mut [], |memory| &mut memory.bytes_mut()[..whole])
    }

    /// The place alone.
    pub fn place_mut(&mut self) -> &mut [u8] {
        let range = self.range.clone();
        &mut self.whole_mut()[range]
    }

    /// The place, which has its memory for itself if it is to be kept for long.
    pub fn into_bytes(self, is_kept: bool) -> Bytes {
        let copied = if is_kept { KEPT[KEPT.len() - 1].0 } else { COPIED_BYTES_MAX };
        if self.range.len() <= copied { Bytes::copy_from_slice(&self) } else { Bytes::from_owner(self) }
    }
}

impl std::fmt::Debug for Blocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocks").field("first", &self.first).field("range", &self.range).finish_non_exhaustive()
    }
}

impl Deref for Blocks {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| &memory.bytes()[self.range.clone()])
    }
}

impl AsRef<[u8]> for Blocks {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let class = KEPT.iter().position(|(bytes, _)| memory.len() == *bytes);
        let Some((class, most)) = class.map(|class| (class, KEPT[class].1)) else { return };
        let mut kept = self.pool.0[class].lock();
        if kept.len() < most {
            kept.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_stands_in_whole_blocks_that_end_with_the_device() {
        let pool = Arc::new(BlockPool::default());
        for (offset, len, device_len, expected) in [
            (0, 1, 1 << 30, (0, 4096)),
            (4095, 2, 1 << 30, (0, 8192)),
            (9000, 1 << 20, 1 << 30, (8192, (1 << 20) + 4096)),
            (8192, 4096, 12_288, (8192, 4096)),
            // Of a device of smaller blocks.
            (8192, 512, 8704, (8192, 512)),
        ] {
            let mut blocks = pool.take(offset, len, device_len).unwrap();
            let first = blocks.first();
            assert_eq!((first, blocks.whole_mut().len()), expected, "{offset} {len}");
            assert!((blocks.whole_mut().as_ptr() as u64).is_multiple_of(READ_BLOCK_BYTES));
            assert!(blocks.len() as u64 == len && blocks.is_at(offset) && !blocks.is_at(offset + 1));
            blocks.whole_mut().fill(1);
            blocks.place_mut().fill(7);
            assert!(blocks.iter().all(|byte| *byte == 7));
            assert_eq!(blocks.whole_mut().iter().filter(|byte| **byte == 7).count() as u64, len);
        }
    }

    #[test]
    fn memory_is_used_again_and_what_is_kept_is_bounded() {
        let pool = Arc::new(BlockPool::default());
        let kept = |class: usize| pool.0[class].lock().len();
        let take = |len: usize| pool.take(100, len as u64, 1 << 40).unwrap();
        let many: Vec<_> = (0..100).map(|_| take(4096)).collect();
        assert_eq!(kept(0), 0);
        drop(many);
        assert_eq!(kept(0), KEPT[0].1);
        let again = take(4096);
        assert_eq!(kept(0), KEPT[0].1 - 1);
        drop(again);
        // A value that shares the memory gives it back with its last part.
        let value = take(1 << 20).into_bytes(false);
        let part = value.slice(5..7);
        drop(value);
        assert_eq!(kept(6), 0);
        drop(part);
        assert_eq!(kept(6), 1);
        // What is kept for long, or small, has its own.
        let copies = [take(100).into_bytes(false), take(1 << 20).into_bytes(true)];
        assert_eq!((kept(0), kept(6)), (KEPT[0].1, 1));
        drop(copies);
        drop(take(8 << 20));
        assert_eq!((0..KEPT.len()).map(kept).sum::<usize>(), KEPT[0].1 + 1);
    }
}

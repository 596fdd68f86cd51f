//! Which reads go past the page cache: those of places that were not read before, and that no run of reads leads to.
//!
//! a place read for the first time → past the page cache: one read of the device, and nothing that others use leaves
//! read again                      → through it, and nothing else with it: what is read often stays in memory
//! one of several close together   → through it, and the kernel reads ahead
//!
//! Invariants:
//! 1. A wrong guess costs time only: both ways give the same bytes.
//! 2. A bit for each block of the device, of pages that are only there once one of their bits is set: 32 KiB for each
//!    GiB that is read. No lock is taken.
//! 3. No more blocks are known than there is memory for: as others are noted, some are forgotten.

#![expect(unsafe_code, reason = "zeros that take no memory until they are written")]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Blocks that have a bit of their own, at most: those of 4 TiB. The bits of a longer device stand for several.
const KNOWN_MAX: u64 = 1 << 30;
/// Words that are looked at for bits to forget, for each block that is noted.
const FORGET_WORDS: usize = 8;
/// Regions that runs are looked for in, as a power of two.
const REGION_BITS: u32 = 8;
/// Length of a region in bytes, as a power of two.
const REGION_SHIFT: u32 = 20;
/// So many small reads close together are a run ...
const RUN_READS: u64 = 3;
/// ... if not more than so many others came between two of them.
const RUN_WITHIN: u32 = 64;
/// Of larger reads, in bytes, the device gives as much one by one as the kernel does ahead.
const RUN_BYTES_MAX: u64 = 32 << 10;
const BLOCK_SHIFT: u32 = 12;

/// How a read of a place goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Past the page cache.
    Past,
    /// Through it, alone.
    Alone,
    /// Through it, with what follows.
    Ahead,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Places {
    /// Bits by the block that a place starts in.
    known: Box<[AtomicU64]>,
    /// How many are set, and how many may be.
    set: AtomicU64,
    set_max: u64,
    /// The word whose bits are forgotten next.
    hand: AtomicU64,
    /// By a hash of the region: its number's low 24 bits, the reads in it (8), and when the last was (32).
    regions: Box<[AtomicU64]>,
    small_reads: AtomicU32,
}

fn mixed(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// So many zeros, of memory that the system gives when it is written first.
fn zeros(words: usize) -> Box<[AtomicU64]> {
    let zeros = vec![0_u64; words].into_boxed_slice();
    // SAFETY: of the same size, alignment and validity, and owned here alone.
    unsafe { Box::from_raw(Box::into_raw(zeros) as *mut [AtomicU64]) }
}

/// Bytes of memory of this machine.
fn memory_bytes() -> u64 {
    rustix::system::sysinfo().totalram * u64::from(rustix::system::sysinfo().mem_unit)
}

impl Places {
    /// Of a device of so many bytes: nothing is known.
    pub(crate) fn new(device_bytes: u64) -> Self {
        Self::with_memory(device_bytes, memory_bytes())
    }

    fn with_memory(device_bytes: u64, memory_bytes: u64) -> Self {
        let blocks = (device_bytes >> BLOCK_SHIFT).clamp(64, KNOWN_MAX);
        Self {
            known: zeros(blocks.div_ceil(64) as usize),
            set: AtomicU64::new(0),
            set_max: (memory_bytes >> BLOCK_SHIFT).max(1),
            hand: AtomicU64::new(0),
            regions: std::iter::repeat_with(AtomicU64::default).take(1 << REGION_BITS).collect(),
            small_reads: AtomicU32::new(0),
        }
    }

    fn known(&self, offset: u64) -> (&AtomicU64, u64) {
        let block = offset >> BLOCK_SHIFT;
        (&self.known[(block / 64) as usize % self.known.len()], 1 << (block % 64))
    }

    fn is_known(&self, offset: u64) -> bool {
        let (word, bit) = self.known(offset);
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// Reads of this place go through the page cache from now on. Its first block and its last stand for all: one of
    /// them alone may have come with a neighbour.
    pub(crate) fn note(&self, offset: u64, len: u64) {
        self.note_block(offset);
        let last = offset + len.saturating_sub(1);
        if last >> BLOCK_SHIFT != offset >> BLOCK_SHIFT {
            self.note_block(last);
        }
    }

    fn note_block(&self, offset: u64) {
        let (word, bit) = self.known(offset);
        if word.load(Ordering::Relaxed) & bit != 0 || word.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return;
        }
        if self.set.fetch_add(1, Ordering::Relaxed) >= self.set_max {
            self.forget();
        }
    }

    /// Forgets a few, which left the page cache long ago.
    fn forget(&self) {
        for _ in 0..FORGET_WORDS {
            let at = self.hand.fetch_add(1, Ordering::Relaxed) as usize % self.known.len();
            // Memory that was not written stays away.
            if self.known[at].load(Ordering::Relaxed) != 0 {
                let gone = self.known[at].swap(0, Ordering::Relaxed).count_ones();
                self.set.fetch_sub(gone.into(), Ordering::Relaxed);
                return;
            }
        }
    }

    fn region(&self, number: u64) -> &AtomicU64 {
        &self.regions[(mixed(number) >> (64 - REGION_BITS)) as usize]
    }

    /// Reads close together that lead to this one.
    fn run(&self, number: u64, now: u32) -> u64 {
        let entry = self.region(number).load(Ordering::Relaxed);
        let is_it = entry >> 40 == number & 0xff_ffff && now.wrapping_sub(entry as u32) <= RUN_WITHIN;
        if is_it { entry >> 32 & 0xff } else { 0 }
    }

    /// How a read that may not wait goes: past the page cache if that is not expected to have the place.
    pub(crate) fn way_now(&self, offset: u64, len: u64) -> Way {
        self.way(offset, len, false)
    }

    /// How a read goes; it is noted.
    pub(crate) fn way_noted(&self, offset: u64, len: u64) -> Way {
        self.way(offset, len, true)
    }

    fn way(&self, offset: u64, len: u64, is_noted: bool) -> Way {
        let number = offset >> REGION_SHIFT;
        let mut is_run = false;
        if len <= RUN_BYTES_MAX {
            let now = self.small_reads.load(Ordering::Relaxed);
            let reads = self.run(number, now);
            is_run = reads >= RUN_READS;
            // What the page cache gives keeps a run going, and begins none.
            if is_noted || is_run {
                let now = now.wrapping_add(1);
                self.small_reads.store(now, Ordering::Relaxed);
                let entry = |number: u64, reads: u64| (number & 0xff_ffff) << 40 | reads << 32 | u64::from(now);
                self.region(number).store(entry(number, (reads + 1).min(0xff)), Ordering::Relaxed);
                let next = (offset + len + (1 << (REGION_SHIFT - 2))) >> REGION_SHIFT;
                if is_run && next != number && self.run(next, now) < RUN_READS {
                    self.region(next).store(entry(next, RUN_READS), Ordering::Relaxed);
                }
            }
        }
        let is_known = self.is_known(offset) && self.is_known(offset + len.saturating_sub(1));
        if is_noted && !is_known {
            self.note(offset, len);
        }
        match (is_run, is_known) {
            (true, _) => Way::Ahead,
            (false, true) => Way::Alone,
            (false, false) => Way::Past,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_place_is_read_past_the_page_cache_once() {
        let places = Places::new(1 << 41);
        for number in 0..1000 {
            // Far apart, in no order.
            let offset = (number * 7919 % 1000) * 5 * MIB + 100;
            assert_eq!(places.way_now(offset, 4096), Way::Past);
            assert_eq!(places.way_noted(offset, 4096), Way::Past);
        }
        for number in 0..1000 {
            let offset = number * 5 * MIB + 100;
            assert_eq!(places.way_now(offset, 4096), Way::Alone, "{number}");
            assert_eq!(places.way_noted(offset, 4096), Way::Alone);
        }
        places.note(MIB, MIB);
        assert_eq!(places.way_now(MIB + 7, MIB - 7), Way::Alone);
        // Of two that share a block the second is not known by the first, as a payload is not by its header.
        places.note(6 * MIB, 4096);
        assert_eq!(places.way_noted(6 * MIB + 100, MIB), Way::Past);
        assert_eq!(places.way_noted(6 * MIB + 100, MIB), Way::Alone);
    }

    #[test]
    fn no_more_is_known_than_there_is_memory_for() {
        const BLOCKS: u64 = 100_000;
        let places = Places::with_memory(BLOCKS << BLOCK_SHIFT, 1000 << BLOCK_SHIFT);
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..5 * BLOCKS {
            places.note(rng.u64(..BLOCKS) << BLOCK_SHIFT, 4096);
        }
        let known = (0..BLOCKS).filter(|block| places.is_known(block << BLOCK_SHIFT)).count() as u64;
        assert_eq!(known, places.set.load(Ordering::Relaxed));
        assert!((500..4_000).contains(&known), "{known}");
        // The last is known; one past the end, where the device has grown, has the bit of another.
        places.note(7 << BLOCK_SHIFT, 4096);
        assert!(places.is_known(7 << BLOCK_SHIFT));
        places.note((BLOCKS + 3) << BLOCK_SHIFT, 4096);
        assert!(places.is_known((BLOCKS + 3) << BLOCK_SHIFT));
    }

    #[test]
    fn the_kernel_reads_ahead_of_small_reads_in_order_also_beside_others() {
        let places = Places::new(1 << 41);
        let mut past = 0;
        for number in 0..10_000_u64 {
            // Eight threads take turns: not quite in order; and one read elsewhere for each.
            let offset = (number ^ 5) * 4200;
            past += u64::from(places.way_noted(offset, 4200) == Way::Past);
            places.way_noted(1 << 40 | mixed(number) >> 24 & !0xfff, 4200);
        }
        assert!(past < 300, "{past} of 10,000");
    }

    #[test]
    fn reads_all_over_a_disk_are_no_run() {
        let places = Places::new(1 << 41);
        let ahead =
            (0..20_000).filter(|number| places.way_noted(mixed(*number) >> 30 & !0xfff, 4200) == Way::Ahead).count();
        assert!(ahead < 200, "{ahead} of 20,000 on 16 GiB");
        // Nor are large ones in order: the device gives as much one by one.
        let far = 1 << 40;
        assert!((0..100).all(|number| places.way_noted(far + number * MIB, MIB) == Way::Past));
    }
}

//! Telling the processor what will be looked at: it fetches several places at a time, where looks that follow one
//! another wait for each.

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Has the processor fetch these items, if it has such a word.
#[inline]
pub fn prefetch<T>(items: &[T]) {
    prefetch_at(items.as_ptr().cast(), size_of_val(items));
}

/// The same of `len` bytes from an address on, whatever stands there.
#[inline]
pub fn prefetch_at(start: *const u8, len: usize) {
    for at in (0..len).step_by(LINE_BYTES) {
        prefetch_line(start.wrapping_add(at));
    }
}

/// The same of one.
#[inline]
pub fn prefetch_one<T>(item: &T) {
    prefetch(std::slice::from_ref(item));
}

#[inline]
#[cfg(target_arch = "x86_64")]
fn prefetch_line(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint, which reads nothing and faults nowhere.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}

#[inline]
#[cfg(not(target_arch = "x86_64"))]
fn prefetch_line(_at: *const u8) {}

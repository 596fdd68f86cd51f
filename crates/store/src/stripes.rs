//! A table of locks: writers of one process that want the same thing come one after another instead of failing each
//! other's guards.
//!
//! hash → stripe → held until dropped; several → in rising order, each once
//!
//! Invariants:
//! 1. Stripes are taken in rising order, each once: no deadlock among those who take all of theirs at once. One that is
//!    only tried may come in any order.
//! 2. They are an optimisation: what is read and then written stands under guards, whatever other processes do.
//! 3. No stripe is held while its holder waits for durability.

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

/// One lock to a cache line.
#[derive(Default)]
#[repr(align(64))]
struct Line(Mutex<()>);

/// The locks.
pub struct Stripes {
    lines: Box<[Line]>,
}

/// One that is held, or several. Dropping it lets them go.
#[must_use = "what is dropped is not held"]
pub struct Held<'a> {
    lines: SmallVec<[(usize, MutexGuard<'a, ()>); 2]>,
    /// Of each line that is held one of these bits is set: where it is not, the line is not held.
    bits: Bits,
}

/// A set of stripes, by their number's last bits.
#[derive(Clone, Copy, Default)]
struct Bits([u64; 4]);

impl Bits {
    /// Sets the bit of a stripe; whether it was set.
    fn set(&mut self, stripe: usize) -> bool {
        let (word, bit) = (&mut self.0[stripe / 64 % 4], 1 << (stripe % 64));
        let was = *word & bit != 0;
        *word |= bit;
        was
    }
}

impl<'a> Held<'a> {
    fn new(lines: SmallVec<[(usize, MutexGuard<'a, ()>); 2]>) -> Self {
        let mut bits = Bits::default();
        for (stripe, _) in &lines {
            bits.set(*stripe);
        }
        Self { lines, bits }
    }
}

/// Room for lines, once there are more than there is room for without memory: they come one by one.
const LINES: usize = 16;

impl Stripes {
    /// So many stripes, at least one.
    pub fn new(count: usize) -> Self {
        Self { lines: (0..count.max(1)).map(|_| Line::default()).collect() }
    }

    /// The stripe of a hash.
    pub fn of(&self, hash: u64) -> usize {
        (hash % self.lines.len() as u64) as usize
    }

    /// Holds one stripe.
    pub fn one(&self, stripe: usize) -> Held<'_> {
        let mut lines = SmallVec::new();
        lines.push((stripe, self.lines[stripe].0.lock()));
        Held::new(lines)
    }

    /// Holds several, in any order and any number of times.
    pub fn many(&self, stripes: impl IntoIterator<Item = usize>) -> Held<'_> {
        let mut stripes: SmallVec<[usize; 8]> = stripes.into_iter().collect();
        stripes.sort_unstable();
        stripes.dedup();
        Held::new(stripes.into_iter().map(|stripe| (stripe, self.lines[stripe].0.lock())).collect())
    }

    /// Holds several as [`Stripes::many`] does, if others hold none of them; `None`: they do, and none is held.
    pub fn try_many(&self, stripes: impl IntoIterator<Item = usize>) -> Option<Held<'_>> {
        let mut stripes: SmallVec<[usize; 8]> = stripes.into_iter().collect();
        stripes.sort_unstable();
        stripes.dedup();
        let lines = stripes.into_iter().map(|stripe| Some((stripe, self.lines[stripe].0.try_lock()?)));
        Some(Held::new(lines.collect::<Option<_>>()?))
    }

    /// Holds one more, of these stripes, if no other holds it: `held` may have it already. It is never waited for, so
    /// that it may come in any order. False: another holds it, and `held` has what it had.
    pub fn try_more<'a>(&'a self, held: &mut Held<'a>, stripe: usize) -> bool {
        // A bit that stays set where the lock is not had costs a look.
        if held.bits.set(stripe) && held.lines.iter().any(|(own, _)| *own == stripe) {
            return true;
        }
        let Some(line) = self.lines[stripe].0.try_lock() else { return false };
        if held.lines.len() == held.lines.inline_size() {
            held.lines.reserve(LINES);
        }
        held.lines.push((stripe, line));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stripe_is_taken_once_and_in_any_order() {
        let stripes = Stripes::new(8);
        let free = |stripe: usize| stripes.lines[stripe].0.try_lock().is_some();
        let held = stripes.many([5, 1, 5]);
        assert_eq!((0..8).filter(|stripe| !free(*stripe)).collect::<Vec<_>>(), [1, 5]);
        drop(held);
        let one = stripes.one(stripes.of(13));
        assert!(!free(5));
        drop(one);
        assert!((0..8).all(free));
    }

    #[test]
    fn more_is_held_in_any_order_and_never_waited_for() {
        let stripes = Stripes::new(8);
        let free = |stripe: usize| stripes.lines[stripe].0.try_lock().is_some();
        let other = stripes.one(2);
        let mut held = stripes.many([5, 6]);
        assert!(stripes.try_more(&mut held, 1) && stripes.try_more(&mut held, 5) && stripes.try_more(&mut held, 1));
        assert!(!stripes.try_more(&mut held, 2));
        assert_eq!((0..8).filter(|stripe| !free(*stripe)).collect::<Vec<_>>(), [1, 2, 5, 6]);
        drop(held);
        assert!(!free(2) && [1, 5, 6].into_iter().all(free));
        drop(other);
    }

    #[test]
    fn stripes_of_one_bit_are_told_apart() {
        let stripes = Stripes::new(1_024);
        let other = stripes.one(517);
        let mut held = stripes.many([5]);
        assert!(stripes.try_more(&mut held, 261) && stripes.try_more(&mut held, 5));
        assert!(!stripes.try_more(&mut held, 517) && !stripes.try_more(&mut held, 517));
        assert!(stripes.try_more(&mut held, 5) && stripes.try_more(&mut held, 261));
        assert!(stripes.lines[261].0.try_lock().is_none(), "it was said to be held");
        drop(other);
        assert!(stripes.try_more(&mut held, 517) && stripes.lines[517].0.try_lock().is_none());
    }

    #[test]
    fn what_is_only_tried_holds_all_or_none() {
        let stripes = Stripes::new(8);
        let held = stripes.one(5);
        assert!(stripes.try_many([1, 5]).is_none());
        assert!(stripes.lines[1].0.try_lock().is_some());
        drop(held);
        let tried = stripes.try_many([5, 1, 5]);
        assert!(tried.is_some() && stripes.lines[5].0.try_lock().is_none());
    }
}

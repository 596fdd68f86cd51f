//! Locks of read-modify-write: stripes of keys, and a gate for callers that need every key to stand still.
//!
//! one key or several → gate shared → stripes in rising order;   everything → gate exclusive, no stripes
//!
//! Invariants:
//! 1. Gate before stripes, stripes in rising order, each once: no deadlock. A transaction that comes to more keys only
//!    tries their stripes.
//! 2. The gate is [`GATES`] locks: sharing it takes one, chosen by the key, so that writers on different cores
//!    do not fight over one cache line; excluding takes all, in rising order.
//! 3. No lock is held while its holder waits for durability.

use esker_store::{Held as HeldStripes, Stripes};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use smallvec::SmallVec;

use crate::Key;

/// Number of stripes.
pub(crate) const STRIPES: usize = 1_024;
const GATES: usize = 16;

#[derive(Default)]
#[repr(align(64))]
struct Line<T>(T);

/// The locks of one [`Kv`](crate::Kv).
pub(crate) struct Locks {
    stripes: Stripes,
    gates: Box<[Line<RwLock<()>>]>,
}

/// One stripe and the gate, shared.
pub(crate) struct HeldOne<'a> {
    _stripe: HeldStripes<'a>,
    _gate: RwLockReadGuard<'a, ()>,
}

/// What a transaction over several keys, or over everything, holds. Dropping it unlocks.
pub(crate) enum Held<'a> {
    Keys(HeldStripes<'a>, #[expect(dead_code, reason = "it is held for its drop")] RwLockReadGuard<'a, ()>),
    All(#[expect(dead_code, reason = "they are held for their drop")] SmallVec<[RwLockWriteGuard<'a, ()>; GATES]>),
}

impl Locks {
    pub(crate) fn new() -> Self {
        Self { stripes: Stripes::new(STRIPES), gates: (0..GATES).map(|_| Line::default()).collect() }
    }

    pub(crate) fn one(&self, stripe: usize) -> HeldOne<'_> {
        let gate = self.gates[stripe % GATES].0.read();
        HeldOne { _stripe: self.stripes.one(stripe), _gate: gate }
    }

    pub(crate) fn many(&self, stripes: impl Iterator<Item = usize>) -> Held<'_> {
        let stripes: SmallVec<[usize; 8]> = stripes.collect();
        let gate = self.gates[stripes.iter().min().map_or(0, |stripe| stripe % GATES)].0.read();
        let held = match stripes[..] {
            [stripe] => self.stripes.one(stripe),
            _ => self.stripes.many(stripes),
        };
        Held::Keys(held, gate)
    }

    /// Has `held` hold these stripes as well, if no other does: nothing is waited for. False: another holds one of
    /// them; those before it may be held by now.
    pub(crate) fn try_more<'a>(&'a self, held: &mut Held<'a>, mut stripes: impl Iterator<Item = usize>) -> bool {
        match held {
            Held::Keys(held, _) => stripes.all(|stripe| self.stripes.try_more(held, stripe)),
            Held::All(_) => true,
        }
    }

    /// As [`Locks::many`], if nothing of it is held by others.
    pub(crate) fn try_many(&self, stripes: impl Iterator<Item = usize>) -> Option<Held<'_>> {
        let stripes: SmallVec<[usize; 8]> = stripes.collect();
        let gate = self.gates[stripes.iter().min().map_or(0, |stripe| stripe % GATES)].0.try_read()?;
        Some(Held::Keys(self.stripes.try_many(stripes)?, gate))
    }

    pub(crate) fn all(&self) -> Held<'_> {
        Held::All(self.gates.iter().map(|gate| gate.0.write()).collect())
    }
}

/// The stripe of a key in the namespace with this seed.
pub(crate) fn stripe_of(seed: u64, key: Key<'_>) -> usize {
    (spread(seed, key) >> (64 - STRIPES.ilog2())) as usize
}

/// A hash of a key, whose upper bits spread. It resists no stranger who looks for keys that meet.
pub(crate) fn spread(seed: u64, key: Key<'_>) -> u64 {
    // Multiply and rotate, as in FxHash: it only has to spread, an unlucky pair merely waits for each other.
    const FACTOR: u64 = 0x517c_c1b7_2722_0a95;
    let mut hash = seed;
    let mut mix = |word: u64| hash = (hash.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    match key {
        Key::Int(key) => mix(key),
        Key::Bytes(key) => {
            let (words, rest) = key.as_chunks::<8>();
            for word in words {
                mix(u64::from_le_bytes(*word));
            }
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            mix(u64::from_le_bytes(last));
            mix(key.len() as u64);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_spread_and_stay_in_range() {
        let mut used = vec![0u32; STRIPES];
        for key in 0..100_000u64 {
            used[stripe_of(7, Key::Int(key))] += 1;
            used[stripe_of(7, Key::Bytes(format!("key:{key}").as_bytes()))] += 1;
        }
        assert!(used.iter().all(|&n| (60..600).contains(&n)), "{:?}..{:?}", used.iter().min(), used.iter().max());
    }
}

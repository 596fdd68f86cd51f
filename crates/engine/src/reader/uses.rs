//! How often values were found in the cache and how often not, by the object that they were written for.
//!
//! reader → object's number → its row → counts; walk over all objects → rows → names (`Engine::cache_uses`)
//!
//! Invariant: every use is counted once: in its object's row, or among the others where no row is left.

use std::sync::atomic::{AtomicU64, Ordering};

/// Objects that have a row; uses of more are counted together.
const ROWS: usize = 1 << ROW_BITS;
const ROW_BITS: u32 = 10;
/// Rows that are looked at for an object.
const PROBES: usize = 8;

/// Hits and misses of the cache: of values, and of pieces of checkpoints, which are read in the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUses {
    /// Values that were found.
    pub hits: u64,
    /// Values that were looked for, not found, and read from the device or decompressed.
    pub misses: u64,
}

impl std::ops::AddAssign for CacheUses {
    fn add_assign(&mut self, other: Self) {
        self.hits += other.hits;
        self.misses += other.misses;
    }
}

#[derive(Default)]
struct UseRow {
    /// Number of the object; 0 where the row is free.
    object: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl UseRow {
    fn uses(&self) -> CacheUses {
        CacheUses { hits: self.hits.load(Ordering::Relaxed), misses: self.misses.load(Ordering::Relaxed) }
    }
}

/// See the module.
pub struct UseTable {
    rows: Box<[UseRow]>,
    others: UseRow,
}

impl Default for UseTable {
    fn default() -> Self {
        Self { rows: (0..ROWS).map(|_| UseRow::default()).collect(), others: UseRow::default() }
    }
}

impl UseTable {
    #[inline]
    fn row(&self, object: u64) -> &UseRow {
        let first = (object.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - ROW_BITS)) as usize;
        // Pieces of checkpoints that are of no object have number 0, and no row.
        for step in 0..if object == 0 { 0 } else { PROBES } {
            let row = &self.rows[(first + step) % ROWS];
            let there = match row.object.load(Ordering::Relaxed) {
                0 => {
                    row.object.compare_exchange(0, object, Ordering::Relaxed, Ordering::Relaxed).unwrap_or_else(|it| it)
                }
                there => there,
            };
            // 0: this thread has just taken it.
            if there == object || there == 0 {
                return row;
            }
        }
        &self.others
    }

    /// A value of this object was found.
    #[inline]
    pub fn hit(&self, object: u64) {
        self.row(object).hits.fetch_add(1, Ordering::Relaxed);
    }

    /// A value of this object was not.
    pub fn miss(&self, object: u64) {
        self.row(object).misses.fetch_add(1, Ordering::Relaxed);
    }

    /// All uses.
    pub fn all(&self) -> CacheUses {
        let mut all = self.others.uses();
        self.rows.iter().for_each(|row| all += row.uses());
        all
    }

    /// Calls `f` with the number of each object that has a row, and its uses; an object may come twice. Where it says
    /// false the row is free again, and its uses are among the others.
    pub fn retain(&self, mut f: impl FnMut(u64, CacheUses) -> bool) {
        for row in &self.rows {
            let object = row.object.load(Ordering::Relaxed);
            if object == 0 || f(object, row.uses()) {
                continue;
            }
            for (count, other) in [(&row.hits, &self.others.hits), (&row.misses, &self.others.misses)] {
                other.fetch_add(count.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            }
            // A use that is counted just now is counted for the next object of this row.
            row.object.store(0, Ordering::Relaxed);
        }
    }

    /// Uses of objects that have no row.
    pub fn others(&self) -> CacheUses {
        self.others.uses()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_use_is_counted_once() {
        for objects in [3, 500, 5_000] {
            let table = UseTable::default();
            let mut rng = fastrand::Rng::with_seed(objects);
            let mut expected = CacheUses::default();
            for step in 0..50_000 {
                let object = rng.u64(..objects);
                if rng.bool() {
                    table.hit(object);
                    expected.hits += 1;
                } else {
                    table.miss(object);
                    expected.misses += 1;
                }
                if step % 10_000 == 9_999 {
                    // Those of even numbers are gone.
                    table.retain(|object, _| object % 2 == 1);
                    assert_eq!(table.all(), expected);
                }
            }
            let mut found: BTreeMap<u64, CacheUses> = BTreeMap::new();
            table.retain(|object, uses| {
                *found.entry(object).or_default() += uses;
                true
            });
            let mut sum = table.others();
            found.values().for_each(|uses| sum += *uses);
            assert_eq!(sum, expected);
            assert!(found.keys().all(|object| object % 2 == 1), "the others have left");
            assert!(objects > 3 || found.len() == 1, "{found:?}");
        }
    }

    #[test]
    fn threads_count_for_their_object() {
        let table = UseTable::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..40_000).for_each(|step| table.hit(1 + step % 100)));
            }
        });
        let mut found: BTreeMap<u64, u64> = BTreeMap::new();
        table.retain(|object, uses| {
            *found.entry(object).or_default() += uses.hits;
            true
        });
        assert!(found.len() == 100 && found.values().all(|hits| *hits == 1_600), "{found:?}");
    }
}

//! The places of a page with few slots: a sorted list of (place, packed place).
//!
//! place → binary search → entry
//!
//! Invariants:
//! 1. Entries are sorted by place, each place once.
//! 2. How many there are the page knows: the list is as long as there is room, and what is beyond means nothing.

/// The list. Every call is told its `len`, the number of entries.
#[derive(Clone, Default)]
pub(super) struct Sparse(Box<[(u16, u64)]>);

impl Sparse {
    /// The filled ones of a page's places.
    pub fn of(raws: &[u64]) -> Self {
        Self(raws.iter().zip(0..).filter(|(raw, _)| **raw != 0).map(|(raw, place)| (place, *raw)).collect())
    }

    /// All entries.
    #[inline]
    pub fn entries(&self, len: usize) -> &[(u16, u64)] {
        &self.0[..len]
    }

    #[inline]
    fn find(&self, len: usize, place: usize) -> Result<usize, usize> {
        let entries = self.entries(len);
        // Slots are filled in order, most of them.
        if entries.last().is_none_or(|last| usize::from(last.0) < place) {
            return Err(len);
        }
        entries.binary_search_by_key(&(place as u16), |entry| entry.0)
    }

    /// Zero for an empty slot.
    #[inline]
    pub fn get(&self, len: usize, place: usize) -> u64 {
        self.find(len, place).map_or(0, |found| self.0[found].1)
    }

    /// Fills a slot; the old place comes back, zero for an empty slot. `None`, and nothing has changed, when there
    /// would be more than `max` entries.
    pub fn set(&mut self, len: usize, max: usize, place: usize, raw: u64) -> Option<u64> {
        match self.find(len, place) {
            Ok(found) => Some(std::mem::replace(&mut self.0[found].1, raw)),
            Err(_) if len == max => None,
            Err(at) => {
                if len == self.0.len() {
                    self.resize(len, (2 * len).max(1));
                }
                self.0.copy_within(at..len, at + 1);
                self.0[at] = (place as u16, raw);
                Some(0)
            }
        }
    }

    /// Empties a slot and says what it held, zero for nothing.
    pub fn take(&mut self, len: usize, place: usize) -> u64 {
        let Ok(found) = self.find(len, place) else { return 0 };
        let old = self.0[found].1;
        self.0.copy_within(found + 1..len, found);
        old
    }

    /// Gives back room when less than a quarter of it is used.
    pub fn settle(&mut self, len: usize) {
        if self.0.len() > 4 * len {
            self.resize(len, len);
        }
    }

    fn resize(&mut self, len: usize, room: usize) {
        let mut list = Vec::with_capacity(room);
        list.extend_from_slice(self.entries(len));
        list.resize(room, (0, 0));
        self.0 = list.into_boxed_slice();
    }

    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

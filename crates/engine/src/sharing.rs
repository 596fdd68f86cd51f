//! Sharing: which objects may have entries in a segment that were written for other objects, or for other offsets.
//!
//! clone, clone-range, relocation of what was shared → noted by segment → the cleaner asks for its victim's sharers
//!
//! An entry of an object's own is found by the record that wrote it. One that came by a clone is not: for those the
//! cleaner looks at the index of the objects that are noted here, and at no others.
//!
//! Invariants:
//! 1. An object that has such an entry in a segment is noted there, or not known yet. It may be noted where it has none
//!    any more.
//! 2. An object is not known from opening until the store has looked at its index once.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

#[derive(Default)]
struct State {
    by_segment: HashMap<u64, HashSet<u64>>,
    unknown: HashSet<u64>,
    /// Objects of which it cannot be found out where they share.
    anywhere: HashSet<u64>,
    /// Whether some objects may have lent data, and it cannot be found out which.
    lenders_unknown: bool,
}

/// See the module. Objects by number, segments too.
#[derive(Default)]
pub struct Sharing(Mutex<State>);

impl Sharing {
    /// An object has got an entry in these segments that was not written for it.
    pub fn note(&self, number: u64, segments: impl IntoIterator<Item = u64>) {
        let mut state = self.0.lock();
        for segment in segments {
            state.by_segment.entry(segment).or_default().insert(number);
        }
    }

    /// An object that shares data was loaded, and where is not known.
    pub fn note_unknown(&self, number: u64) {
        self.0.lock().unknown.insert(number);
    }

    /// Objects of which it is not known yet where they share.
    pub fn unknown(&self) -> Vec<u64> {
        self.0.lock().unknown.iter().copied().collect()
    }

    /// All segments where the object shares are noted.
    pub fn is_known(&self, number: u64) {
        self.0.lock().unknown.remove(&number);
    }

    /// Where the object shares cannot be found out: it counts for all segments.
    pub fn cannot_be_known(&self, number: u64) {
        let mut state = self.0.lock();
        state.unknown.remove(&number);
        state.anywhere.insert(number);
    }

    /// The objects that may share what stands in a segment, in order, those that are not known among them.
    pub fn of(&self, segment: u64) -> Vec<u64> {
        let state = self.0.lock();
        let noted = state.by_segment.get(&segment).into_iter().flatten();
        let mut all: Vec<u64> = noted.chain(&state.unknown).chain(&state.anywhere).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether any object may share what stands in a segment.
    pub fn is_shared(&self, segment: u64) -> bool {
        let state = self.0.lock();
        !state.unknown.is_empty() || !state.anywhere.is_empty() || state.by_segment.contains_key(&segment)
    }

    /// An object has nothing in these segments any more. Whether it was noted in any of them.
    pub fn remove(&self, number: u64, segments: impl IntoIterator<Item = u64>) -> bool {
        let mut state = self.0.lock();
        let mut was = false;
        for segment in segments {
            if let Some(noted) = state.by_segment.get_mut(&segment) {
                was |= noted.remove(&number);
                if noted.is_empty() {
                    state.by_segment.remove(&segment);
                }
            }
        }
        was
    }

    /// Some objects may have lent data, and it cannot be found out which.
    pub fn lenders_are_unknown(&self) {
        self.0.lock().lenders_unknown = true;
    }

    /// Whether it is known of all objects where they share, and whether others share what they have.
    pub fn all_known(&self) -> bool {
        let state = self.0.lock();
        state.unknown.is_empty() && state.anywhere.is_empty() && !state.lenders_unknown
    }

    /// A segment is free.
    pub fn forget(&self, segment: u64) {
        self.0.lock().by_segment.remove(&segment);
    }
}

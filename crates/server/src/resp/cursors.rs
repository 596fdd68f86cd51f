//! Cursors of SCAN and HSCAN: numbers for clients, keys for us.
//!
//! Keys are kept in order, and a scan goes on behind the last key it showed, so that every key that is there all the
//! time is shown once. A number cannot hold a key, so the server remembers which number stands for which key.
//!
//! Invariant: at most [`CURSORS_MAX`] are remembered, the youngest; an older one is refused, never misread.

use std::collections::{HashMap, VecDeque};

use esker_kv::OwnedKey;
use parking_lot::Mutex;

/// Most cursors remembered.
pub(crate) const CURSORS_MAX: usize = 8_192;

/// Where a scan goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(crate) database: u8,
    /// The id of the hash whose fields are scanned, if not keys.
    pub(crate) hash: Option<u64>,
    /// The last key shown.
    pub(crate) after: OwnedKey,
}

/// The cursors of a server.
pub(crate) struct Cursors {
    places: Mutex<Places>,
}

struct Places {
    last: u64,
    by_cursor: HashMap<u64, Place>,
    by_age: VecDeque<u64>,
}

impl Cursors {
    /// `epoch` tells this run of the server from earlier ones, whose cursors are unknown to it.
    pub(crate) fn new(epoch: u64) -> Self {
        let last = (epoch & 0xff_ffff) << 28;
        Self { places: Mutex::new(Places { last, by_cursor: HashMap::new(), by_age: VecDeque::new() }) }
    }

    /// A number for this place: never 0, below 2^53.
    pub(super) fn put(&self, place: Place) -> u64 {
        let mut places = self.places.lock();
        places.last += 1;
        let cursor = places.last;
        if places.by_age.len() == CURSORS_MAX
            && let Some(oldest) = places.by_age.pop_front()
        {
            places.by_cursor.remove(&oldest);
        }
        places.by_age.push_back(cursor);
        places.by_cursor.insert(cursor, place);
        cursor
    }

    /// The place that the number stands for.
    pub(super) fn get(&self, cursor: u64) -> Option<Place> {
        self.places.lock().by_cursor.get(&cursor).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_cursors_are_forgotten_not_misread() {
        let cursors = Cursors::new(3);
        let place = |n: u64| Place { database: 0, hash: None, after: OwnedKey::Int(n) };
        let all: Vec<u64> = (0..CURSORS_MAX as u64 + 1).map(|n| cursors.put(place(n))).collect();
        assert_eq!(cursors.get(all[0]), None);
        assert_eq!(cursors.get(all[1]), Some(place(1)));
        assert_eq!(Cursors::new(4).get(all[1]), None);
        assert!(all.iter().all(|cursor| *cursor > 0 && *cursor < 1 << 53));
    }
}

//! Entries that were written or met a moment ago, for followers: the newest positions, as many as fit.
//!
//! append → [`Recents::keep`] → lowest positions go, once it is full · follower → [`Recents::get`]
//!
//! Invariants:
//! 1. Nothing is kept that is trimmed, as far as this process knows: [`Recents::trim`] or [`Recents::forget`] comes
//!    before a trim is
//!    answered, and what its writer brings late is not kept then.
//! 2. What is kept stays within its bound in bytes. What leaves first is what stands lowest: followers go upwards, and
//!    who has fallen behind reads
//! from the store. (A cache that keeps what was asked for before is of no use here: a follower asks for each position
//! once, and newest entries left it before their follower came.)

use std::collections::{BTreeMap, VecDeque};

use esker_store::Barrier;
use parking_lot::Mutex;

use crate::cells::Found;

/// Trimmed positions that are known, so that a writer that was faster than its own note does not bring them back.
const FORGOTTEN_MAX: usize = 64;
/// Bytes that an entry takes beside its data, about.
const ENTRY_BYTES: u64 = 128;
/// And for the name of a stream beside that.
const NAME_BYTES: u64 = 32;

/// What stands at a position, and when it may be shown.
#[derive(Clone)]
pub(crate) struct Recent {
    pub found: Found,
    pub barrier: Option<Barrier>,
}

impl Recent {
    fn bytes(&self) -> u64 {
        let Found::Entry(entry) = &self.found else { return ENTRY_BYTES };
        let names = entry.streams.iter().map(|name| NAME_BYTES + name.len() as u64).sum::<u64>();
        ENTRY_BYTES + entry.data.len() as u64 + names
    }
}

#[derive(Default)]
struct Kept {
    by_position: BTreeMap<u64, Recent>,
    bytes: u64,
    /// All below is trimmed: it is not kept any more.
    trimmed: u64,
    /// Positions that were trimmed by themselves, the last of them.
    forgotten: VecDeque<u64>,
}

/// The newest positions of a log.
pub(crate) struct Recents {
    kept: Mutex<Kept>,
    bytes_max: u64,
}

impl Recents {
    /// Keeps at most about `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { kept: Mutex::default(), bytes_max }
    }

    pub(crate) fn keep(&self, position: u64, recent: Recent) {
        let mut kept = self.kept.lock();
        if position < kept.trimmed || kept.forgotten.contains(&position) {
            return;
        }
        kept.bytes += recent.bytes();
        if let Some(before) = kept.by_position.insert(position, recent) {
            kept.bytes -= before.bytes();
        }
        while kept.bytes > self.bytes_max
            && let Some((_, lowest)) = kept.by_position.pop_first()
        {
            kept.bytes -= lowest.bytes();
        }
    }

    pub(crate) fn get(&self, position: u64) -> Option<Recent> {
        self.kept.lock().by_position.get(&position).cloned()
    }

    /// The first position from `from` on that holds no durable entry of other streams than this; at most `most` are
    /// passed.
    pub(crate) fn pass(&self, stream: &[u8], from: u64, most: usize) -> u64 {
        let kept = self.kept.lock();
        let mut next = from;
        for (position, recent) in kept.by_position.range(from..).take(most) {
            let Found::Entry(entry) = &recent.found else { break };
            let is_durable = recent.barrier.as_ref().is_none_or(|barrier| matches!(barrier.state(), Some(Ok(()))));
            if *position != next || !is_durable || entry.streams.iter().any(|name| name == stream) {
                break;
            }
            next += 1;
        }
        next
    }

    /// Whether the position was trimmed by itself a moment ago, so that no writer will bring it.
    pub(crate) fn has_forgotten(&self, position: u64) -> bool {
        self.kept.lock().forgotten.contains(&position)
    }

    /// Nothing is kept: no follower is left.
    pub(crate) fn clear(&self) {
        let mut kept = self.kept.lock();
        kept.by_position.clear();
        kept.bytes = 0;
    }

    /// The lowest position that is kept.
    pub(crate) fn lowest(&self) -> Option<u64> {
        self.kept.lock().by_position.first_key_value().map(|(position, _)| *position)
    }

    /// All below `position` is trimmed.
    pub(crate) fn trim(&self, position: u64) {
        let mut kept = self.kept.lock();
        let kept = &mut *kept;
        if position <= kept.trimmed {
            return;
        }
        kept.trimmed = position;
        while let Some(lowest) = kept.by_position.first_entry().filter(|lowest| *lowest.key() < position) {
            kept.bytes -= lowest.remove().bytes();
        }
    }

    /// The position is trimmed.
    pub(crate) fn forget(&self, position: u64) {
        let mut kept = self.kept.lock();
        if kept.forgotten.len() == FORGOTTEN_MAX {
            kept.forgotten.pop_front();
        }
        kept.forgotten.push_back(position);
        if let Some(before) = kept.by_position.remove(&position) {
            kept.bytes -= before.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::cells::Entry;
    use crate::format::Streams;
    use crate::nonce::Nonce;

    fn entry(position: u64, bytes: usize) -> Recent {
        let (data, nonce) = (Bytes::from(vec![0; bytes]), Nonce { writer: 1, number: position });
        let found = Found::Entry(Entry { position, data, streams: Streams::new(), nonce, time_ms: 0 });
        Recent { found, barrier: None }
    }

    #[test]
    fn the_newest_are_kept_whoever_asked_for_others() {
        let recents = Recents::new(10 * (ENTRY_BYTES + 1_000));
        for position in 0..100 {
            recents.keep(position, entry(position, 1_000));
            // As a follower that has come so far, and one that is far behind.
            assert!(recents.get(position).is_some());
            recents.get(position / 2);
        }
        let there: Vec<u64> = (0..100).filter(|position| recents.get(*position).is_some()).collect();
        assert_eq!(there, (90..100).collect::<Vec<_>>());
        // What comes late, or again, is counted once.
        recents.keep(95, entry(95, 1_000));
        recents.keep(3, entry(3, 10));
        assert!(recents.get(90).is_some() && recents.get(3).is_none());
        recents.forget(95);
        recents.keep(95, entry(95, 1_000));
        recents.keep(100, entry(100, 1_000));
        assert!(recents.get(90).is_some() && recents.get(95).is_none());
        recents.keep(101, entry(101, 20_000));
        assert!(recents.get(101).is_none() && recents.get(100).is_none(), "more than may be kept");
        assert_eq!(recents.kept.lock().bytes, 0);
    }
}

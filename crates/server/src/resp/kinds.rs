//! Which keys may hold a hash, and which are watched: what a writer asks that does not look at what it overwrites.
//!
//! key → digest → a bit: it may hold a hash | a count of those who watch it
//! database, key → digest → a word: it was seen to hold none
//!
//! Keys of one bit or count, in any database, are taken for each other: their writers look once more than they need to.
//! What was seen is known by the whole digest, of 64 bits and with the database.
//!
//! Invariants:
//! 1. The bit of a key is set before the key is made a hash, and never cleared: where it is not set, no key of this bit
//!    has been made a hash since the store was opened.
//! 2. A digest is among those seen only once what is stored of its key was seen to be no hash, under the key's lock.
//!    Only these tell of keys that a store had when it was opened.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Bits of keys that may hold a hash: 1 MiB once all are in use.
const BITS: u64 = 1 << 23;
/// Digests of keys that were seen to hold none: 8 MiB once all are in use.
const SEEN: u64 = 1 << 20;
/// Counts of watchers.
const WATCHED: u64 = 1 << 10;
/// Words that are allocated together.
const CHUNK: usize = 1 << 10;

/// Words that are zero until they are written, and cost little memory until then.
struct Words(Box<[OnceLock<Box<[AtomicU64]>>]>);

impl Words {
    fn new(words: u64) -> Self {
        Self((0..words as usize / CHUNK).map(|_| OnceLock::new()).collect())
    }

    fn get(&self, index: u64) -> u64 {
        let (chunk, at) = (index as usize / CHUNK, index as usize % CHUNK);
        self.0[chunk].get().map_or(0, |words| words[at].load(Ordering::Relaxed))
    }

    fn of(&self, index: u64) -> &AtomicU64 {
        let (chunk, at) = (index as usize / CHUNK, index as usize % CHUNK);
        &self.0[chunk].get_or_init(|| (0..CHUNK).map(|_| AtomicU64::new(0)).collect())[at]
    }
}

/// What is known of the kinds of keys, of all databases together.
pub(crate) struct Kinds {
    seeds: RandomState,
    /// There may be a hash, of any key.
    any: AtomicBool,
    /// The store may have had hashes when it was opened.
    earlier: AtomicBool,
    hashes: Words,
    seen: Words,
    watchers: AtomicUsize,
    watched: Box<[AtomicU32]>,
}

impl Kinds {
    /// Of a store in which any key may hold a hash, until [`Kinds::none_yet`].
    pub(crate) fn new() -> Self {
        Self {
            seeds: RandomState::new(),
            any: AtomicBool::new(true),
            earlier: AtomicBool::new(true),
            hashes: Words::new(BITS / 64),
            seen: Words::new(SEEN),
            watchers: AtomicUsize::new(0),
            watched: (0..WATCHED).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// The store has just been opened and holds no hash.
    pub(crate) fn none_yet(&self) {
        self.any.store(false, Ordering::SeqCst);
        self.earlier.store(false, Ordering::SeqCst);
    }

    fn digest(&self, key: &[u8]) -> u64 {
        self.seeds.hash_one(key)
    }

    /// There may be a hash, of any key.
    pub(crate) fn any_hash(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// What its digest is among those seen.
    fn digest_in(&self, database: u8, key: &[u8]) -> u64 {
        // Zero is what was never written.
        self.seeds.hash_one((database, key)).max(1)
    }

    /// Whether the key may hold a hash. To be asked under the key's lock, or under that of the writers who do not look.
    pub(crate) fn may_be_hash(&self, database: u8, key: &[u8]) -> bool {
        self.any.load(Ordering::SeqCst) && self.may_be(database, key, self.digest(key))
    }

    fn may_be(&self, database: u8, key: &[u8], digest: u64) -> bool {
        let (word, bit) = bit_of(digest);
        if self.hashes.get(word) & bit != 0 {
            return true;
        }
        self.earlier.load(Ordering::SeqCst) && {
            let digest = self.digest_in(database, key);
            self.seen.get(digest % SEEN) != digest
        }
    }

    /// Whether a writer has to look at the key: it may hold a hash, or be watched.
    pub(crate) fn has_to_look(&self, database: u8, key: &[u8]) -> bool {
        let (any, watchers) = (self.any.load(Ordering::SeqCst), self.watchers.load(Ordering::SeqCst));
        if !any && watchers == 0 {
            return false;
        }
        let digest = self.digest(key);
        any && self.may_be(database, key, digest) || watchers > 0 && self.count(digest).load(Ordering::SeqCst) > 0
    }

    /// What is stored of the key was seen to be no hash, under its lock.
    pub(crate) fn saw_no_hash(&self, database: u8, key: &[u8]) {
        if self.earlier.load(Ordering::SeqCst) {
            let digest = self.digest_in(database, key);
            self.seen.of(digest % SEEN).store(digest, Ordering::Relaxed);
        }
    }

    /// Whether it is known already that the key may be made a hash.
    pub(crate) fn expects_hash(&self, key: &[u8]) -> bool {
        let (word, bit) = bit_of(self.digest(key));
        self.any.load(Ordering::SeqCst) && self.hashes.get(word) & bit != 0
    }

    /// The key may be made a hash from now on.
    pub(crate) fn expect_hash(&self, key: &[u8]) {
        let (word, bit) = bit_of(self.digest(key));
        self.hashes.of(word).fetch_or(bit, Ordering::SeqCst);
        self.any.store(true, Ordering::SeqCst);
    }

    /// The key is watched once more.
    pub(crate) fn expect_watcher(&self, key: &[u8]) {
        self.count(self.digest(key)).fetch_add(1, Ordering::SeqCst);
        self.watchers.fetch_add(1, Ordering::SeqCst);
    }

    /// The key is watched once less.
    pub(crate) fn forget_watcher(&self, key: &[u8]) {
        self.watchers.fetch_sub(1, Ordering::SeqCst);
        self.count(self.digest(key)).fetch_sub(1, Ordering::SeqCst);
    }

    /// Keys that are watched, each as often as it is.
    pub(crate) fn watchers(&self) -> usize {
        self.watchers.load(Ordering::Relaxed)
    }

    fn count(&self, digest: u64) -> &AtomicU32 {
        &self.watched[(digest % WATCHED) as usize]
    }
}

/// Word and bit of a digest, by its upper part: the lower one chooses other places.
fn bit_of(digest: u64) -> (u64, u64) {
    let bit = (digest >> 32) % BITS;
    (bit / 64, 1 << (bit % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Vec<u8> {
        format!("key:{number}").into_bytes()
    }

    #[test]
    fn only_what_was_made_a_hash_may_be_one() {
        let kinds = Kinds::new();
        kinds.none_yet();
        assert!(!kinds.any_hash() && !kinds.may_be_hash(0, b"h"));
        assert!(!kinds.expects_hash(b"h"));
        kinds.expect_hash(b"h");
        assert!(
            kinds.any_hash() && kinds.may_be_hash(0, b"h") && kinds.has_to_look(0, b"h") && kinds.expects_hash(b"h")
        );
        kinds.saw_no_hash(0, b"h");
        assert!(kinds.may_be_hash(0, b"h"), "what it holds may change");
        let others = (0..10_000).filter(|number| kinds.may_be_hash(0, &key(*number))).count();
        assert!(others < 10, "{others} of 10,000 are taken for it");
    }

    #[test]
    fn where_there_may_have_been_hashes_only_what_was_seen_is_none() {
        let kinds = Kinds::new();
        assert!((0..1_000).all(|number| kinds.may_be_hash(0, &key(number)) && kinds.has_to_look(0, &key(number))));
        (0..1_000).for_each(|number| kinds.saw_no_hash(0, &key(number)));
        let known = (0..1_000).filter(|number| !kinds.has_to_look(0, &key(*number))).count();
        // Of two in one place the later one is known.
        assert!(known > 950, "{known} of 1,000");
        assert!((0..1_000).all(|number| kinds.may_be_hash(1, &key(number))), "of another database nothing is known");
        assert!((1_000..2_000).all(|number| kinds.may_be_hash(0, &key(number))));
        kinds.expect_hash(&key(7));
        kinds.saw_no_hash(0, &key(7));
        assert!(kinds.may_be_hash(0, &key(7)));
    }

    #[test]
    fn a_writer_looks_at_what_is_watched_and_not_longer() {
        let kinds = Kinds::new();
        kinds.none_yet();
        kinds.expect_watcher(b"w");
        kinds.expect_watcher(b"w");
        assert!(kinds.has_to_look(0, b"w") && !kinds.may_be_hash(0, b"w"));
        let others = (0..1_000).filter(|number| kinds.has_to_look(0, &key(*number))).count();
        assert!(others < 20, "{others} of 1,000 are taken for it");
        kinds.forget_watcher(b"w");
        assert!(kinds.has_to_look(0, b"w"));
        kinds.forget_watcher(b"w");
        assert!(!kinds.has_to_look(0, b"w") && kinds.watchers() == 0);
    }
}

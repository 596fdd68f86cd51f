//! Cursors of SCAN and HSCAN: numbers for clients, keys for the server.
//!
//! Keys are kept in order, and a scan goes on behind the last key that it showed, so that every key that is there all
//! the time is shown. A number of 53 bits, which is what all clients take, holds a short key whole. Of a longer one it
//! holds the first bytes and a hash of it all, under which the server remembers the key until [`CURSORS_MAX`] others
//! have come: with that a scan goes on just behind it, and without (after a restart, or many other scans) where those
//! first bytes begin. So a cursor is valid for ever, and leaves nothing out; it may show again what begins as its key
//! does.
//!
//! ```text
//! 52 51 | 50 ..
//!  0  1 | hash (35 bits) · first 2 bytes of a byte key     1  0 | the int key (51 bits)
//!  1  1 | length (3 bits) · a byte key of up to 6 bytes    0  0 | hash (35 bits) · highest 16 bits of an int key
//! ```
//!
//! Invariants:
//! 1. At most [`CURSORS_MAX`] keys are remembered, at most [`CLIENT_MAX`] of one client: for one more the oldest goes.
//! 2. A number means one key, in every run of every server of a store: another's is found with a chance of one in 2^22,
//! for a cursor from before a restart, and never otherwise.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use bytes::Bytes;
use esker_kv::OwnedKey;
use parking_lot::Mutex;

/// Most keys remembered.
pub(crate) const CURSORS_MAX: usize = 8_192;
/// Most of them of one client.
pub(crate) const CLIENT_MAX: usize = 1_024;

const KIND_SHIFT: u32 = 51;
const HASHED_INT: u64 = 0;
const HASHED_BYTES: u64 = 1;
const WHOLE_INT: u64 = 2;
const WHOLE_BYTES: u64 = 3;
/// Of a hashed byte key.
const HEAD_BYTES: usize = 2;
/// Of a hashed int key: its highest bits.
const HEAD_BITS: u32 = 16;
const WHOLE_BYTES_MAX: usize = 6;

/// Where a scan goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resume {
    /// Behind this key.
    After(OwnedKey),
    /// With this one, or the first above it.
    From(OwnedKey),
}

/// Whose scan it is: the database, and the id of the hash whose fields are scanned, if not keys.
pub(crate) type Of = (u8, Option<u64>);

/// The cursors of a server.
#[derive(Default)]
pub(crate) struct Cursors {
    kept: Mutex<Kept>,
}

struct Remembered {
    of: Of,
    key: OwnedKey,
    client: u64,
    /// Tells this time of remembering from others.
    turn: u64,
}

#[derive(Default)]
struct Kept {
    turns: u64,
    by_cursor: HashMap<u64, Remembered>,
    /// Cursors with their turns, oldest first; some are remembered no more, or again.
    by_age: VecDeque<(u64, u64)>,
    /// The same for each client.
    by_client: HashMap<u64, VecDeque<(u64, u64)>>,
}

impl Cursors {
    /// A number for the place behind `key`, the last that was shown to `client`: never 0, below 2^53.
    pub(crate) fn put(&self, client: u64, of: Of, key: OwnedKey) -> u64 {
        let (kind, head) = match &key {
            OwnedKey::Int(key) if *key < 1 << KIND_SHIFT => return WHOLE_INT << KIND_SHIFT | key,
            OwnedKey::Bytes(key) if key.len() <= WHOLE_BYTES_MAX => {
                return WHOLE_BYTES << KIND_SHIFT | (key.len() as u64) << 48 | number(key);
            }
            OwnedKey::Int(key) => (HASHED_INT, key >> (64 - HEAD_BITS)),
            OwnedKey::Bytes(key) => (HASHED_BYTES, number(&key[..HEAD_BYTES])),
        };
        // The same in every process: its keys are fixed.
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((of, &key));
        // From 1 on, since a cursor is never 0.
        let hash = (hash >> (64 - KIND_SHIFT + HEAD_BITS)).max(1);
        let cursor = kind << KIND_SHIFT | hash << HEAD_BITS | head;
        // It may be a piece of a transaction's memory.
        let key = key.as_key().to_owned_key();
        self.kept.lock().remember(cursor, of, key, client);
        cursor
    }

    /// Where the scan of `of` goes on that was given this number, which may be any.
    pub(crate) fn place(&self, of: Of, cursor: u64) -> Option<Resume> {
        if let Some(kept) = self.kept.lock().by_cursor.get(&cursor)
            && kept.of == of
        {
            return Some(Resume::After(kept.key.clone()));
        }
        let rest = cursor & ((1 << KIND_SHIFT) - 1);
        match cursor >> KIND_SHIFT {
            HASHED_INT => Some(Resume::From(OwnedKey::Int((rest & ((1 << HEAD_BITS) - 1)) << (64 - HEAD_BITS)))),
            HASHED_BYTES => Some(Resume::From(OwnedKey::Bytes(head(rest, HEAD_BYTES)))),
            WHOLE_INT => Some(Resume::After(OwnedKey::Int(rest))),
            WHOLE_BYTES => {
                let len = (rest >> 48) as usize;
                (len <= WHOLE_BYTES_MAX).then(|| Resume::After(OwnedKey::Bytes(head(rest, len))))
            }
            _ => None,
        }
    }
}

impl Kept {
    fn remember(&mut self, cursor: u64, of: Of, key: OwnedKey, client: u64) {
        if let Some(kept) = self.by_cursor.get(&cursor)
            && (kept.of != of || kept.key != key)
        {
            // Of two keys with one number the first stays: the other's scan goes on at its head.
            return;
        }
        self.turns += 1;
        let turn = self.turns;
        let own = self.by_client.entry(client).or_default();
        own.push_back((cursor, turn));
        if own.len() > CLIENT_MAX
            && let Some(oldest) = own.pop_front()
        {
            self.forget(oldest);
        }
        if let Some(before) = self.by_cursor.insert(cursor, Remembered { of, key, client, turn }) {
            self.disown(before.client, cursor, before.turn);
        }
        self.by_age.push_back((cursor, turn));
        while self.by_cursor.len() > CURSORS_MAX {
            let Some((cursor, turn)) = self.by_age.pop_front() else { break };
            if let Some(client) = self.forget((cursor, turn)) {
                self.disown(client, cursor, turn);
            }
        }
        if self.by_age.len() > 2 * CURSORS_MAX {
            let kept = &self.by_cursor;
            self.by_age.retain(|(cursor, turn)| kept.get(cursor).is_some_and(|kept| kept.turn == *turn));
        }
    }

    /// Forgets what was remembered at this turn, if it is; whose it was.
    fn forget(&mut self, (cursor, turn): (u64, u64)) -> Option<u64> {
        let is = self.by_cursor.get(&cursor).is_some_and(|kept| kept.turn == turn);
        is.then(|| self.by_cursor.remove(&cursor).map(|kept| kept.client)).flatten()
    }

    /// Takes a cursor from a client's list.
    fn disown(&mut self, client: u64, cursor: u64, turn: u64) {
        if let Some(own) = self.by_client.get_mut(&client) {
            // Mostly it is the first.
            if own.front() == Some(&(cursor, turn)) {
                own.pop_front();
            } else {
                own.retain(|one| *one != (cursor, turn));
            }
            if own.is_empty() {
                self.by_client.remove(&client);
            }
        }
    }
}

/// Up to six bytes as a number.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The lowest `len` bytes of a number.
fn head(number: u64, len: usize) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes()[8 - len..])
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: Of = (0, None);

    #[test]
    fn a_cursor_is_below_2_to_the_53_and_goes_on_behind_its_key_or_where_that_begins() {
        let (cursors, later) = (Cursors::default(), Cursors::default());
        let bytes = |text: &[u8]| OwnedKey::Bytes(Bytes::copy_from_slice(text));
        let short = [bytes(b""), bytes(b"\0"), bytes(b"a"), bytes(b"\xff\xff\xff\xff\xff\xff"), OwnedKey::Int(0)];
        for key in short.into_iter().chain([OwnedKey::Int(7), OwnedKey::Int((1 << 51) - 1)]) {
            let cursor = cursors.put(1, KEYS, key.clone());
            assert!(cursor > 0 && cursor < 1 << 53, "{cursor}");
            for cursors in [&cursors, &later] {
                assert_eq!(cursors.place(KEYS, cursor), Some(Resume::After(key.clone())));
            }
        }
        let long = [
            (bytes(b"session:1234"), bytes(b"se")),
            (bytes(b"\0\0\0\0\0\0\0"), bytes(b"\0\0")),
            (bytes(&[255; 300]), bytes(&[255; 2])),
            (OwnedKey::Int(1 << 51), OwnedKey::Int(1 << 51 >> 48 << 48)),
            (OwnedKey::Int(u64::MAX), OwnedKey::Int(u64::MAX >> 48 << 48)),
        ];
        for (key, head) in long {
            let cursor = cursors.put(1, (3, Some(9)), key.clone());
            assert!(cursor > 0 && cursor < 1 << 53, "{cursor}");
            assert_eq!(cursors.place((3, Some(9)), cursor), Some(Resume::After(key)));
            // In another database, of another hash, and of another run of the server.
            assert_eq!(cursors.place((2, Some(9)), cursor), Some(Resume::From(head.clone())));
            assert_eq!(cursors.place((3, Some(8)), cursor), Some(Resume::From(head.clone())));
            assert_eq!(later.place((3, Some(9)), cursor), Some(Resume::From(head)));
        }
        assert_eq!(cursors.place(KEYS, u64::MAX), None);
        assert_eq!(cursors.place(KEYS, WHOLE_BYTES << 51 | 7 << 48), None);
    }

    /// Failure: 8,192 scans of one client made another's cursor invalid.
    #[test]
    fn many_scans_of_one_client_leave_those_of_others_where_they_are() {
        let cursors = Cursors::default();
        let key = |n: u64| OwnedKey::Bytes(format!("a long key {n}").into());
        let quiet: Vec<u64> = (0..10).map(|n| cursors.put(1, KEYS, key(n))).collect();
        let busy: Vec<u64> = (0..3 * CURSORS_MAX as u64).map(|n| cursors.put(2, KEYS, key(100 + n))).collect();
        for (n, cursor) in quiet.iter().enumerate() {
            assert_eq!(cursors.place(KEYS, *cursor), Some(Resume::After(key(n as u64))));
        }
        assert_eq!(cursors.place(KEYS, busy[0]), Some(Resume::From(OwnedKey::Bytes("a ".into()))));
        assert!(matches!(cursors.place(KEYS, busy[busy.len() - 1]), Some(Resume::After(_))));
        assert_eq!(cursors.kept.lock().by_cursor.len(), CLIENT_MAX + 10);
    }

    /// Failure: where each call came over a connection of its own, the cursor that was just given was the next to be
    /// forgotten, and the scan never ended. Fix: the oldest goes.
    #[test]
    fn a_cursor_that_was_just_given_is_remembered_however_many_clients_there_are() {
        let cursors = Cursors::default();
        let key = |n: u64| OwnedKey::Bytes(format!("a long key {n}").into());
        for client in 0..100_000 {
            let cursor = cursors.put(client, KEYS, key(client % 50_000));
            cursors.put(1_000_000 + client, KEYS, key(60_000 + client));
            assert_eq!(cursors.place(KEYS, cursor), Some(Resume::After(key(client % 50_000))));
        }
        let kept = cursors.kept.lock();
        assert!(kept.by_cursor.len() <= CURSORS_MAX && kept.by_age.len() <= 2 * CURSORS_MAX);
        assert_eq!(kept.by_client.values().map(VecDeque::len).sum::<usize>(), kept.by_cursor.len());
    }

    /// Failure: a number of an earlier run, or of another server, stood for another key of this one, further on: what
    /// was between was left out. Fix: a number is that of a key, wherever it is made.
    #[test]
    fn a_number_of_another_run_is_never_taken_for_another_key() {
        let (old, new) = (Cursors::default(), Cursors::default());
        let key = |n: u64| OwnedKey::Bytes(format!("a long key {n}").into());
        let given: Vec<u64> = (0..20_000).map(|n| old.put(n, KEYS, key(n))).collect();
        for n in 0..20_000 {
            new.put(n, KEYS, key(n + 10_000));
        }
        for (n, cursor) in given.iter().enumerate() {
            match new.place(KEYS, *cursor) {
                Some(Resume::From(head)) => assert_eq!(head, OwnedKey::Bytes("a ".into())),
                place => assert_eq!(place, Some(Resume::After(key(n as u64)))),
            }
        }
    }
}

//! Cursors of SCAN and HSCAN: numbers for clients, keys for the server.
//!
//! Keys are kept in order, and a scan goes on behind the last key that it showed, so that every key that is there all
//! the time is shown. A number of 53 bits, which is what all clients take, holds a short key whole. Of a longer one it
//! holds the first bytes, and a mark under which the server remembers the whole key for a while: with that a scan goes on
//! just behind it, and without (after a restart, or many other scans) where those first bytes begin. So a cursor is valid
//! for ever, and leaves nothing out; it may show again what begins as its key does.
//!
//! ```text
//! 52 51 | 50 ..
//!  0  1 | mark (27 bits) · first 3 bytes of a byte key      1  0 | the int key (51 bits)
//!  1  1 | length (3 bits) · a byte key of up to 6 bytes     0  0 | mark (26 bits, from 1) · highest 25 bits of an int key
//! ```
//!
//! Invariants:
//! 1. At most [`CURSORS_MAX`] keys are remembered: for one more, one of the client that has most of them is forgotten.
//! 2. A key is found only by the mark it was remembered under, with the first bytes it has: never another's.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use esker_kv::OwnedKey;
use parking_lot::Mutex;

/// Most keys remembered.
pub(crate) const CURSORS_MAX: usize = 8_192;

const KIND_SHIFT: u32 = 51;
const MARKED_INT: u64 = 0;
const MARKED_BYTES: u64 = 1;
const WHOLE_INT: u64 = 2;
const WHOLE_BYTES: u64 = 3;
/// Of a marked byte key.
const HEAD_BYTES: usize = 3;
/// Of a marked int key: its highest bits.
const HEAD_BITS: u32 = 25;
const WHOLE_BYTES_MAX: usize = 6;

/// Where a scan goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Behind this key.
    After(OwnedKey),
    /// With this one, or the first above it.
    From(OwnedKey),
}

/// Whose scan it is: the database, and the id of the hash whose fields are scanned, if not keys.
pub(crate) type Of = (u8, Option<u64>);

/// The cursors of a server.
pub(crate) struct Cursors {
    kept: Mutex<Kept>,
}

struct Kept {
    next_mark: u64,
    by_cursor: HashMap<u64, (Of, OwnedKey)>,
    /// Cursors of each client, oldest first.
    by_client: HashMap<u64, VecDeque<u64>>,
}

impl Cursors {
    /// `epoch` tells this run of the server from earlier ones, so that what those remembered is not taken for its own.
    pub(crate) fn new(epoch: u64) -> Self {
        let kept = Kept { next_mark: epoch << 13, by_cursor: HashMap::new(), by_client: HashMap::new() };
        Self { kept: Mutex::new(kept) }
    }

    /// A number for the place behind `key`, the last that was shown to `client`: never 0, below 2^53.
    pub(crate) fn put(&self, client: u64, of: Of, key: OwnedKey) -> u64 {
        let head = match &key {
            OwnedKey::Int(key) if *key < 1 << KIND_SHIFT => return WHOLE_INT << KIND_SHIFT | key,
            OwnedKey::Bytes(key) if key.len() <= WHOLE_BYTES_MAX => {
                return WHOLE_BYTES << KIND_SHIFT | (key.len() as u64) << 48 | number(key);
            }
            OwnedKey::Int(key) => key >> (64 - HEAD_BITS),
            OwnedKey::Bytes(key) => number(&key[..HEAD_BYTES]),
        };
        let (kind, head_bits) = match &key {
            OwnedKey::Int(_) => (MARKED_INT, HEAD_BITS),
            OwnedKey::Bytes(_) => (MARKED_BYTES, 8 * HEAD_BYTES as u32),
        };
        let mut kept = self.kept.lock();
        let kept = &mut *kept;
        let mark_max = (1 << (KIND_SHIFT - head_bits)) - 1;
        kept.next_mark += 1;
        // From 1 on, since a cursor is never 0.
        let cursor = kind << KIND_SHIFT | (kept.next_mark % mark_max + 1) << head_bits | head;
        if kept.by_cursor.len() >= CURSORS_MAX {
            kept.forget_one(client);
        }
        if kept.by_cursor.insert(cursor, (of, key)).is_none() {
            kept.by_client.entry(client).or_default().push_back(cursor);
        }
        cursor
    }

    /// Where the scan of `of` goes on that was given this number, which may be any.
    pub(crate) fn place(&self, of: Of, cursor: u64) -> Option<Place> {
        if let Some((kept_of, key)) = self.kept.lock().by_cursor.get(&cursor)
            && *kept_of == of
        {
            return Some(Place::After(key.clone()));
        }
        let rest = cursor & ((1 << KIND_SHIFT) - 1);
        match cursor >> KIND_SHIFT {
            MARKED_INT => Some(Place::From(OwnedKey::Int((rest & ((1 << HEAD_BITS) - 1)) << (64 - HEAD_BITS)))),
            MARKED_BYTES => Some(Place::From(OwnedKey::Bytes(head(rest, HEAD_BYTES)))),
            WHOLE_INT => Some(Place::After(OwnedKey::Int(rest))),
            WHOLE_BYTES => {
                let len = (rest >> 48) as usize;
                (len <= WHOLE_BYTES_MAX).then(|| Place::After(OwnedKey::Bytes(head(rest, len))))
            }
            _ => None,
        }
    }
}

impl Kept {
    /// Forgets the oldest cursor of the client that has most of them; of `client`, if none has more.
    fn forget_one(&mut self, client: u64) {
        let own = self.by_client.get(&client).map_or(0, VecDeque::len);
        let most =
            self.by_client.iter().max_by_key(|(_, cursors)| cursors.len()).map(|(id, cursors)| (*id, cursors.len()));
        let loser = most.filter(|(_, len)| *len > own).map_or(client, |(id, _)| id);
        if let Some(cursors) = self.by_client.get_mut(&loser) {
            if let Some(oldest) = cursors.pop_front() {
                self.by_cursor.remove(&oldest);
            }
            if cursors.is_empty() {
                self.by_client.remove(&loser);
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
        let (cursors, later) = (Cursors::new(3), Cursors::new(4));
        let bytes = |text: &[u8]| OwnedKey::Bytes(Bytes::copy_from_slice(text));
        let short = [bytes(b""), bytes(b"\0"), bytes(b"a"), bytes(b"\xff\xff\xff\xff\xff\xff"), OwnedKey::Int(0)];
        for key in short.into_iter().chain([OwnedKey::Int(7), OwnedKey::Int((1 << 51) - 1)]) {
            let cursor = cursors.put(1, KEYS, key.clone());
            assert!(cursor > 0 && cursor < 1 << 53, "{cursor}");
            for cursors in [&cursors, &later] {
                assert_eq!(cursors.place(KEYS, cursor), Some(Place::After(key.clone())));
            }
        }
        let long = [
            (bytes(b"session:1234"), bytes(b"ses")),
            (bytes(b"\0\0\0\0\0\0\0"), bytes(b"\0\0\0")),
            (bytes(&[255; 300]), bytes(&[255; 3])),
            (OwnedKey::Int(1 << 51), OwnedKey::Int(1 << 51 >> 39 << 39)),
            (OwnedKey::Int(u64::MAX), OwnedKey::Int(u64::MAX >> 39 << 39)),
        ];
        for (key, head) in long {
            let cursor = cursors.put(1, (3, Some(9)), key.clone());
            assert!(cursor > 0 && cursor < 1 << 53, "{cursor}");
            assert_eq!(cursors.place((3, Some(9)), cursor), Some(Place::After(key)));
            // In another database, of another hash, and of another run of the server.
            assert_eq!(cursors.place((2, Some(9)), cursor), Some(Place::From(head.clone())));
            assert_eq!(cursors.place((3, Some(8)), cursor), Some(Place::From(head.clone())));
            assert_eq!(later.place((3, Some(9)), cursor), Some(Place::From(head)));
        }
        assert_eq!(cursors.place(KEYS, u64::MAX), None);
        assert_eq!(cursors.place(KEYS, WHOLE_BYTES << 51 | 7 << 48), None);
    }

    /// Failure: 8,192 scans of one client made another's cursor invalid.
    #[test]
    fn many_scans_of_one_client_leave_those_of_others_where_they_are() {
        let cursors = Cursors::new(1);
        let key = |n: u64| OwnedKey::Bytes(format!("a long key {n}").into());
        let quiet: Vec<u64> = (0..10).map(|n| cursors.put(1, KEYS, key(n))).collect();
        let busy: Vec<u64> = (0..3 * CURSORS_MAX as u64).map(|n| cursors.put(2, KEYS, key(100 + n))).collect();
        for (n, cursor) in quiet.iter().enumerate() {
            assert_eq!(cursors.place(KEYS, *cursor), Some(Place::After(key(n as u64))));
        }
        assert_eq!(cursors.place(KEYS, busy[0]), Some(Place::From(OwnedKey::Bytes("a l".into()))));
        assert!(matches!(cursors.place(KEYS, busy[busy.len() - 1]), Some(Place::After(_))));
        let kept = cursors.kept.lock();
        assert_eq!(kept.by_cursor.len(), CURSORS_MAX);
        assert_eq!(kept.by_client.values().map(VecDeque::len).sum::<usize>(), CURSORS_MAX);
    }
}

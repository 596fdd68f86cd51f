//! The expiry index: what of something is to go, and when.
//!
//! time, big-endian ++ what expires → nothing, in the omap of an object of its own; what is due is a range of it,
//! oldest first
//!
//! Invariant: whatever expires has its entry, written in the transaction that writes it; an entry may be of what was
//! since renewed or removed, so who finds it due looks at the thing itself.

use bytes::Bytes;

use crate::{Change, Completion, ObjectId, ObjectStore, OmapScan, Transaction, prefix};

/// The entry of `what`, which expires at a time in unix milliseconds.
pub fn entry(at_ms: u64, what: &[u8]) -> Bytes {
    [&at_ms.to_be_bytes()[..], what].concat().into()
}

/// The time of an entry, and what expires then.
pub fn split(entry: &Bytes) -> Option<(u64, Bytes)> {
    let (at_ms, _) = entry.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*at_ms), entry.slice(8..)))
}

/// At most `limit` entries above `after` that are due at `now_ms`, oldest first.
pub fn due(
    store: &dyn ObjectStore,
    index: &ObjectId,
    now_ms: u64,
    after: Option<&[u8]>,
    limit: usize,
) -> Completion<Vec<Bytes>> {
    let end = now_ms.checked_add(1).map(|end| Bytes::copy_from_slice(&end.to_be_bytes()));
    let scan = OmapScan { start: after.map(prefix::just_above), end, limit, keys_only: true, reverse: false };
    store.omap_scan(index, &scan).map(|found| found.into_iter().map(|(entry, _)| entry).collect())
}

/// Adds what puts the entry `new`, if any, in the place of `old`. Does nothing if they are the same.
pub fn replace(txn: &mut Transaction, index: &ObjectId, old: Option<Bytes>, new: Option<Bytes>) {
    if old == new {
        return;
    }
    txn.ops.extend(old.map(|key| crate::Op::Object(index.clone(), Change::OmapRemove { key })));
    let set = |key| crate::Op::Object(index.clone(), Change::OmapSet { key, value: Bytes::new() });
    txn.ops.extend(new.map(set));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_sort_by_time_and_come_back() {
        assert!(entry(255, b"z") < entry(256, b"a"));
        assert_eq!(split(&entry(7, b"what")), Some((7, "what".into())));
        assert_eq!(split(&"7 bytes".into()), None);
    }

    #[test]
    fn an_entry_is_replaced_only_by_another() {
        let index = ObjectId::new("c".into(), "expiry");
        let ops = |old: Option<u64>, new: Option<u64>| {
            let mut txn = Transaction::new();
            let [old, new] = [old, new].map(|at| at.map(|at| entry(at, b"k")));
            replace(&mut txn, &index, old, new);
            txn.ops.len()
        };
        assert_eq!(
            [ops(None, None), ops(Some(1), Some(1)), ops(Some(1), None), ops(None, Some(2)), ops(Some(1), Some(2))],
            [0, 0, 1, 1, 2]
        );
    }
}

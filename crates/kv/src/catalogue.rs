//! The catalogue: which namespaces there are, and of what kind.
//!
//! name → [`Record`], in the omap of object `namespaces` of collection `kv`: kind as one byte (1 int, 2 bytes); then,
//! unless all of them are 0, compression as another (0 none, 1 lz4, 2 zstd); then 1 if the namespace is being removed.
//! That of a namespace in partitions has all three, and then the bits and the id of its layout (1 and 8 bytes,
//! big-endian). Ids are counted in xattr `ids`, and given once.
//! Its xattr `r/NAME` grows with each transaction that makes objects of ranges of an int namespace; it begins with a
//! number that no namespace had before (xattr `firsts`), shifted by 32 bits, so that it is never one of an earlier
//! namespace of that name.
//!
//! Invariants:
//! 1. A record is made only where there is none, so that the kind of a name changes only by removing it.
//! 2. An object of a namespace is made under a guard of its record, which says that it is not being removed.

use bytes::Bytes;
use esker_store::number::{number, number_from};
use esker_store::{
    Barrier, Change, Collection, Compare, Completion, Compression, Condition, Directory, Error, Guard, ObjectId,
    ObjectStore, Op, Result, Transaction,
};

use crate::Kind;
use crate::layout::Layout;

pub(crate) const COLLECTION: &str = "kv";
/// Bits of what counts a namespace's ranges that are of that namespace alone.
const RANGES_BITS: u32 = 32;

pub(crate) fn object() -> ObjectId {
    ObjectId::new(Collection::from(COLLECTION), Bytes::from_static(b"namespaces"))
}

/// The names. They lead to records, not to ids: what is removed is found by the name, and *removing* is said by the
/// record.
pub(crate) fn directory() -> Directory {
    Directory { object: object(), what: "namespace catalogue", names: b"", ids: None }
}

/// What the catalogue says about a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub kind: Kind,
    pub compression: Compression,
    /// Nothing is added to it any more.
    pub removing: bool,
    pub layout: Layout,
}

/// The number that the catalogue knows a compression by. Never reused.
pub(crate) fn stored_compression(compression: Compression) -> u8 {
    match compression {
        Compression::None => 0,
        Compression::Lz4 => 1,
        Compression::Zstd => 2,
    }
}

/// The compression that the catalogue knows by this number.
pub(crate) fn compression_from_stored(number: u8) -> Option<Compression> {
    Compression::ALL.iter().map(|(one, _)| *one).find(|one| stored_compression(*one) == number)
}

impl Record {
    pub(crate) fn encode(self) -> Bytes {
        let bytes = [self.kind as u8, stored_compression(self.compression), u8::from(self.removing)];
        if let Layout::Parted { id, bits } = self.layout {
            return [&bytes[..], &[bits], &id.to_be_bytes()].concat().into();
        }
        let len = bytes.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1);
        Bytes::copy_from_slice(&bytes[..len])
    }

    pub(crate) fn decode(name: &[u8], stored: &[u8]) -> Result<Self> {
        let unreadable = || Error::Corrupt {
            offset: 0,
            what: format!("namespace catalogue: {} of kind {stored:?}", name.escape_ascii()),
        };
        let (kind, compression, removing, layout) = match stored {
            [kind] => (*kind, 0, 0, Layout::Whole),
            [kind, compression] => (*kind, *compression, 0, Layout::Whole),
            [kind, compression, removing @ 0..=1] => (*kind, *compression, *removing, Layout::Whole),
            [kind, compression, removing @ 0..=1, bits, id @ ..] => {
                let id = u64::from_be_bytes(id.try_into().map_err(|_| unreadable())?);
                (*kind, *compression, *removing, Layout::Parted { id, bits: *bits })
            }
            _ => return Err(unreadable()),
        };
        let kind = Kind::from_stored(kind).ok_or_else(unreadable)?;
        let compression = compression_from_stored(compression).ok_or_else(unreadable)?;
        if !layout.fits(kind) {
            return Err(unreadable());
        }
        Ok(Self { kind, compression, removing: removing == 1, layout })
    }

    /// The guard that the catalogue still says so.
    pub(crate) fn still(self, name: &str) -> Guard {
        directory().leads_to(name, self.encode())
    }
}

/// What a namespace answers once it was removed.
pub(crate) fn gone(name: &str) -> Error {
    Error::Invalid { what: "namespace", why: format!("{name} was removed") }
}

/// What a namespace of one kind answers about keys of the other.
pub(crate) fn wrong_kind(name: &str, own: Kind, what: &'static str, kind: Kind) -> Error {
    Error::Invalid { what, why: format!("namespace {name} holds {own} keys, not {kind} keys") }
}

/// The record of a name.
pub(crate) fn find(store: &dyn ObjectStore, name: &str) -> Completion<Option<Record>> {
    let found = directory().find(store, name);
    let name = name.to_owned();
    found.then(move |stored| stored?.map(|stored| Record::decode(name.as_bytes(), &stored)).transpose())
}

/// All records, in name order.
pub(crate) fn all(store: &dyn ObjectStore) -> Result<Vec<(String, Record)>> {
    let record = |entry: Result<(Bytes, Bytes)>| {
        let (name, stored) = entry?;
        let record = Record::decode(&name, &stored)?;
        let text = std::str::from_utf8(&name).map_err(|_| Error::Corrupt {
            offset: 0,
            what: format!("namespace catalogue: {} is no text", name.escape_ascii()),
        })?;
        Ok((text.to_owned(), record))
    };
    directory().all(store, "").map(record).collect()
}

/// Counts the namespaces that lie in partitions.
const IDS: &[u8] = b"ids";

/// Adds what gives an id that no namespace in partitions had before.
pub(crate) fn give_id(txn: &mut Transaction, store: &dyn ObjectStore) -> Result<u64> {
    let last = last_given(store).wait()?;
    let id = last.unwrap_or(0) + 1;
    txn.guards.push(is_still(Bytes::from_static(IDS), last));
    txn.push(&object(), Change::number(IDS, id));
    Ok(id)
}

/// The last id that a namespace in partitions was given; `None` before the first.
pub(crate) fn last_given(store: &dyn ObjectStore) -> Completion<Option<u64>> {
    counted(store, IDS)
}

/// Counts the namespaces in which a first range was made.
const FIRSTS: &[u8] = b"firsts";

fn made_name(name: &str) -> Bytes {
    format!("r/{name}").into()
}

fn counted(store: &dyn ObjectStore, name: &[u8]) -> Completion<Option<u64>> {
    let shown = name.escape_ascii().to_string();
    let damaged = move || Error::Corrupt { offset: 0, what: format!("namespace catalogue: {shown} is not 8 bytes") };
    store
        .xattr(&object(), name)
        .then(move |stored| stored?.map(|stored| number_from(&stored).ok_or_else(damaged)).transpose())
}

/// What grows when an object of a range is made in a namespace; `None` before the first. Of a namespace that was
/// removed and made
/// again it is another.
pub(crate) fn ranges_made(store: &dyn ObjectStore, name: &str) -> Completion<Option<u64>> {
    counted(store, &made_name(name))
}

fn is_still(name: Bytes, number: Option<u64>) -> Guard {
    let condition = match number {
        None => Condition::XattrAbsent { name },
        Some(value) => Condition::XattrCompare { name, compare: Compare::Equal, value, absent_holds: false },
    };
    Guard { object: object(), condition }
}

/// The guard that no object of a range was made since [`ranges_made`] said so.
pub(crate) fn none_made(name: &str, made: Option<u64>) -> Guard {
    is_still(made_name(name), made)
}

/// Adds what counts that objects of ranges are made, with its guards. The number of the first is taken from those of
/// all namespaces, so that it
/// is never one of an earlier namespace of that name.
pub(crate) fn count_made(
    txn: &mut Transaction,
    store: &dyn ObjectStore,
    name: &str,
    barrier: &mut Option<Barrier>,
) -> Result<()> {
    let made = ranges_made(store, name).applied(barrier)?;
    txn.guards.push(none_made(name, made));
    let next = match made {
        Some(made) => made + 1,
        None => {
            let firsts = Bytes::from_static(FIRSTS);
            // One for each namespace that the transaction makes the first range in.
            let own = txn.ops.iter().rev().find_map(|op| match op {
                Op::Object(_, Change::XattrSet { name, value }) if *name == firsts => number_from(value),
                _ => None,
            });
            let first = match own {
                Some(own) => own + 1,
                None => {
                    let stored = counted(store, FIRSTS).applied(barrier)?;
                    txn.guards.push(is_still(firsts.clone(), stored));
                    stored.unwrap_or(0) + 1
                }
            };
            txn.push(&object(), Change::number(FIRSTS, first));
            first << RANGES_BITS
        }
    };
    txn.push(&object(), Change::XattrSet { name: made_name(name), value: number(next) });
    Ok(())
}

/// Adds what forgets a namespace.
pub(crate) fn forget(txn: &mut Transaction, name: &str) {
    directory().unset(txn, name);
    txn.push(&object(), Change::XattrRemove { name: made_name(name) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_these_bytes() {
        let check_laid = |kind, compression, removing, layout, bytes: &[u8]| {
            let record = Record { kind, compression, removing, layout };
            assert_eq!(&record.encode()[..], bytes);
            assert_eq!(Record::decode(b"n", bytes).unwrap(), record);
        };
        let check = |kind, compression, removing, bytes: &[u8]| {
            check_laid(kind, compression, removing, Layout::Whole, bytes);
        };
        // The first two as stores of before compression, and of before removing in steps, have them.
        check(Kind::Int, Compression::None, false, &[1]);
        check(Kind::Bytes, Compression::Zstd, false, &[2, 2]);
        check(Kind::Int, Compression::None, true, &[1, 0, 1]);
        check(Kind::Bytes, Compression::Lz4, true, &[2, 1, 1]);
        let parted = |id, bits| Layout::Parted { id, bits };
        check_laid(Kind::Bytes, Compression::None, false, parted(0x0102, 6), &[2, 0, 0, 6, 0, 0, 0, 0, 0, 0, 1, 2]);
        check_laid(Kind::Int, Compression::Zstd, true, parted(3, 16), &[1, 2, 1, 16, 0, 0, 0, 0, 0, 0, 0, 3]);
        let (far, too_far) = ([2, 0, 0, 15, 0, 0, 0, 0, 0, 0, 0, 1], [1, 0, 0, 33, 0, 0, 0, 0, 0, 0, 0, 1]);
        for bad in [&[][..], &[3], &[1, 3], &[1, 0, 2], &[1, 0, 1, 0], &far, &too_far, &far[..11]] {
            assert!(matches!(Record::decode(b"n", bad), Err(Error::Corrupt { .. })), "{bad:?}");
        }
    }
}

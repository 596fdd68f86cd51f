//! What this face keeps in a store: names of objects and keys.
//!
//! Format: docs/format.md#what-the-map-face-keeps-in-the-store

use bytes::Bytes;
use esker_store::{Collection, ObjectId};

pub(crate) const COLLECTION: &str = "map";
/// Xattr of the catalogue: the last table id given, 8 bytes little-endian.
pub(crate) const LAST_ID: &[u8] = b"last";
/// Xattr of the catalogue: the key that page tokens are authenticated with, 32 bytes.
pub(crate) const SECRET: &[u8] = b"secret";
/// Xattr of a table's head: its generation, 8 bytes little-endian; guarded by every mutation.
pub(crate) const GENERATION: &[u8] = b"generation";

fn object(name: impl Into<Bytes>) -> ObjectId {
    ObjectId::new(Collection::from(COLLECTION), name)
}

pub(crate) fn catalogue() -> ObjectId {
    object("catalogue")
}

pub(crate) fn head(table: u64) -> ObjectId {
    object(format!("h/{table:016x}"))
}

pub(crate) fn partition_prefix(table: u64) -> Vec<u8> {
    format!("p/{table:016x}/").into_bytes()
}

pub(crate) fn partition(table: u64, key: &[u8]) -> ObjectId {
    object([&partition_prefix(table), key].concat())
}

pub(crate) fn index_prefix(table: u64, index: u16) -> Vec<u8> {
    format!("x/{table:016x}/{index:04x}/").into_bytes()
}

/// The rows of one value of an index.
pub(crate) fn index(table: u64, index: u16, value: &[u8]) -> ObjectId {
    object([&index_prefix(table, index), value].concat())
}

/// All objects of all indexes of a table.
pub(crate) fn indexes_prefix(table: u64) -> Vec<u8> {
    format!("x/{table:016x}/").into_bytes()
}

/// When rows of a table expire.
pub(crate) fn expiry(table: u64) -> ObjectId {
    object([&indexes_prefix(table), &b"expiry"[..]].concat())
}

/// Key of a row in the expiry index: the time in unix milliseconds, then the key of an index entry.
pub(crate) fn expiry_key(at_ms: u64, partition: &[u8], clustering: &[u8]) -> Bytes {
    [&at_ms.to_be_bytes()[..], &index_key(partition, clustering)].concat().into()
}

/// The time, the partition key and the clustering key.
pub(crate) fn split_expiry_key(key: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let (at_ms, rest) = key.split_first_chunk::<8>()?;
    let (partition, clustering) = split_index_key(rest)?;
    Some((u64::from_be_bytes(*at_ms), partition, clustering))
}

/// Key of an index entry: length of the partition key, that, the clustering key.
pub(crate) fn index_key(partition: &[u8], clustering: &[u8]) -> Bytes {
    [&(partition.len() as u16).to_be_bytes(), partition, clustering].concat().into()
}

pub(crate) fn split_index_key(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = key.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))
}

pub(crate) fn namespace_key(namespace: &str) -> Bytes {
    [b"n", namespace.as_bytes()].concat().into()
}

/// Key of a table's schema, in the catalogue. Names contain no control characters.
pub(crate) fn table_key(namespace: &str, table: &str) -> Bytes {
    [b"t", namespace.as_bytes(), &[0], table.as_bytes()].concat().into()
}

/// The table whose schema stands under a key of the catalogue.
pub(crate) fn table_of(key: &[u8]) -> Option<crate::TableName> {
    let key = std::str::from_utf8(key.strip_prefix(b"t")?).ok()?;
    let (namespace, table) = key.split_once('\0')?;
    Some(crate::TableName::new(namespace, table))
}

pub(crate) fn tables_prefix(namespace: &str) -> Bytes {
    [b"t", namespace.as_bytes(), &[0]].concat().into()
}

/// Key that says that a table's objects are to be removed, or (with an index) those of an index.
pub(crate) fn garbage_key(table: u64, index: Option<u16>) -> Bytes {
    let index = index.map_or(Vec::new(), |index| index.to_be_bytes().to_vec());
    [&b"g"[..], &table.to_be_bytes(), &index].concat().into()
}

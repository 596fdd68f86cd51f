//! What this face keeps in a store: names of objects and keys.
//!
//! Format: docs/format.md#what-the-map-face-keeps-in-the-store

use bytes::Bytes;
use esker_store::{Collection, Directory, ObjectId, Registry, due};

use crate::TableName;

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

fn directory(names: &'static [u8]) -> Directory {
    Directory { object: catalogue(), what: "catalogue", names, ids: None }
}

/// Tables: a name leads to its schema, and what a table or an index leaves is noted by the table's number.
pub(crate) fn tables() -> Registry {
    Registry { directory: directory(b"t"), last_id: LAST_ID, left: b'g' }
}

/// Namespaces: a name leads to the number of the table that was made in it last.
pub(crate) fn namespaces() -> Directory {
    directory(b"n")
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
    due::entry(at_ms, &index_key(partition, clustering))
}

/// Key of an index entry: length of the partition key, that, the clustering key.
pub(crate) fn index_key(partition: &[u8], clustering: &[u8]) -> Bytes {
    [&(partition.len() as u16).to_be_bytes(), partition, clustering].concat().into()
}

/// The partition key and the clustering key.
pub(crate) fn split_index_key(key: &Bytes) -> Option<(Bytes, Bytes)> {
    let (len, rest) = key.split_first_chunk::<2>()?;
    let (partition, clustering) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
    Some((key.slice_ref(partition), key.slice_ref(clustering)))
}

/// What the names of the tables of a namespace begin with. Names contain no control characters.
pub(crate) fn tables_of(namespace: &str) -> String {
    format!("{namespace}\0")
}

/// The name of a table among all tables.
pub(crate) fn table_name(name: &TableName) -> String {
    format!("{}\0{}", name.namespace, name.table)
}

/// The table of such a name.
pub(crate) fn table_of(name: &str) -> Option<TableName> {
    let (namespace, table) = name.split_once('\0')?;
    Some(TableName::new(namespace, table))
}

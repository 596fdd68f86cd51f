//! Names of things: collections, objects, and the commit sequence.
//!
//! An [`ObjectId`] is a hash beside one reference-counted allocation, so that faces keep it and stores look it up
//! without hashing or copying the name again, and without a look at what all threads count in.
//!
//! Invariant: two ids are equal exactly when collection and name are equal; order is by collection, then name.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;

/// Place of a transaction in commit order, counted from 1. It grows with each transaction of a store and is
/// kept across restarts; it need not be dense.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitSeq(pub u64);

/// Name of a collection: 1 to [`COLLECTION_BYTES_MAX`](crate::limits::COLLECTION_BYTES_MAX) bytes, any values.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Collection(Bytes);

impl Collection {
    /// Makes a collection name; the store checks its length where a transaction enters.
    pub fn new(name: impl Into<Bytes>) -> Self {
        Self(name.into())
    }

    /// The name's bytes.
    pub fn name(&self) -> &Bytes {
        &self.0
    }
}

impl fmt::Debug for Collection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Display for Collection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl From<&'static str> for Collection {
    fn from(name: &'static str) -> Self {
        Self(Bytes::from_static(name.as_bytes()))
    }
}

/// Name of an object: a collection and a name inside it. Cloning costs one reference count.
#[derive(Clone)]
pub struct ObjectId {
    hash: u64,
    names: Arc<Names>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Names {
    collection: Collection,
    name: Bytes,
}

impl ObjectId {
    /// Names the object `name` (1 to [`OBJECT_NAME_BYTES_MAX`](crate::limits::OBJECT_NAME_BYTES_MAX) bytes) of
    /// `collection`.
    pub fn new(collection: Collection, name: impl Into<Bytes>) -> Self {
        let name = name.into();
        let mut hasher = std::hash::DefaultHasher::new();
        (&collection, &name).hash(&mut hasher);
        Self { hash: hasher.finish(), names: Arc::new(Names { collection, name }) }
    }

    /// The collection that the object is in.
    pub fn collection(&self) -> &Collection {
        &self.names.collection
    }

    /// The object's name inside its collection.
    pub fn name(&self) -> &Bytes {
        &self.names.name
    }

    /// A 64-bit hash of the whole id, computed once. Not stable across versions: never store it.
    pub fn hash64(&self) -> u64 {
        self.hash
    }
}

impl PartialEq for ObjectId {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && (Arc::ptr_eq(&self.names, &other.names) || self.names == other.names)
    }
}

impl Eq for ObjectId {}

impl PartialOrd for ObjectId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ObjectId {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.names, &other.names) { Ordering::Equal } else { self.names.cmp(&other.names) }
    }
}

impl Hash for ObjectId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.collection(), self.name().escape_ascii())
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A hasher that passes through the hash that an [`ObjectId`] already carries.
#[derive(Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// A hash map keyed by [`ObjectId`] that does not hash names again.
pub type ObjectMap<V> = std::collections::HashMap<ObjectId, V, BuildHasherDefault<IdHasher>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_equal_by_content_and_ordered_by_collection_then_name() {
        let a = ObjectId::new("c".into(), "a");
        assert_eq!(a, ObjectId::new("c".into(), "a"));
        assert!(a < ObjectId::new("c".into(), "b"));
        assert!(ObjectId::new("d".into(), "a") > ObjectId::new("c".into(), "z"));
        assert_eq!(format!("{a}"), "c/a");
    }
}

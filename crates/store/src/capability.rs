//! What a backend can and cannot do. A face that needs something says so in its constructor's error.

/// Abilities of an [`ObjectStore`](crate::ObjectStore).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Name of the backend, for messages.
    pub backend: &'static str,
    /// One transaction may touch several objects of a collection atomically.
    pub atomic_across_objects: bool,
    /// One transaction may touch several collections atomically.
    pub atomic_across_collections: bool,
    /// Slots are kept natively, not as omap keys.
    pub native_slots: bool,
    /// [`commit_scan`](crate::ObjectStore::commit_scan) works.
    pub commit_order: bool,
    /// `CloneTo`, `CloneRange` and `Rename` work.
    pub clone: bool,
    /// They copy no payload.
    pub cheap_clone: bool,
    /// What was acknowledged as durable survives the process (false for memory).
    pub persistent: bool,
    /// [`Compression`](crate::Compression) hints are taken; else they change nothing.
    pub compresses: bool,
    /// Largest transaction in bytes of names, keys and payload; at most [`crate::limits::TRANSACTION_BYTES_MAX`].
    pub transaction_bytes_max: u64,
    /// Most operations of a transaction; at most [`crate::limits::TRANSACTION_OPS_MAX`]. Where it is less, so many are
    /// taken whatever they are, with its guards counted among them; the backend may take more of those that it joins.
    pub transaction_ops_max: u64,
    /// Largest object in bytes; at most [`crate::limits::OBJECT_BYTES_MAX`].
    pub object_bytes_max: u64,
    /// [`extents`](crate::ObjectStore::extents) tells to the byte what was written; else it may call zeros beside it
    /// data, and zeros that were written a hole.
    pub exact_extents: bool,
    /// Scans go backwards too; else one that is asked to is refused ([`last_omap`](crate::prefix::last_omap) does
    /// without).
    pub reverse_scans: bool,
    /// [`watch`](crate::ObjectStore::watch) and [`notify`](crate::ObjectStore::notify) work; else who waits for others
    /// looks again and again.
    pub watches: bool,
    /// [`session`](crate::ObjectStore::session) and [`shut_out`](crate::ObjectStore::shut_out) work.
    pub sessions: bool,
    /// It is on the other side of a network: an outcome, of a submit above all, may take as long as the other side
    /// takes; reads are begun. A face whose threads may not wait has others write.
    pub afar: bool,
}

//! A store in front of another: what is not said otherwise goes to the one behind.
//!
//! call → [`Forward::before`] → the store behind → [`Forward::after`] → answer
//!
//! For stores that watch, hold up or refuse calls, tests' doubles above all: they say what differs and nothing else.
//!
//! Invariant: every call that only reads passes `before` and `after`, so that none is forgotten.

use std::ops::Range;

use bytes::Bytes;

use crate::{
    Barrier, Capability, Changed, Collection, CommitCursor, CommitEntry, CommitSeq, Completion, DataRun, Incarnation,
    ObjectId, ObjectStore, OmapScan, Parts, Result, Session, SlotScan, Snapshot, Soon, Stall, Stat, Transaction, Waits,
    Watching,
};

/// What differs from the store behind. Implementing this implements [`ObjectStore`].
pub trait Forward: Send + Sync {
    /// The store behind.
    fn behind(&self) -> &dyn ObjectStore;

    /// Called before each read, with its object where it is of one.
    ///
    /// # Errors
    /// What the read is answered with instead.
    fn before(&self, _object: Option<&ObjectId>) -> Result<()> {
        Ok(())
    }

    /// Called after each read: what its answer waits for as well.
    ///
    /// # Errors
    /// What the read is answered with instead.
    fn after(&self) -> Result<Option<Barrier>> {
        Ok(None)
    }

    /// As [`ObjectStore::capability`].
    fn capability(&self) -> Capability {
        self.behind().capability()
    }

    /// As [`ObjectStore::submit`].
    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        self.behind().submit(txn)
    }

    /// As [`ObjectStore::room`].
    fn room(&self, stall: Stall) -> Completion<()> {
        self.behind().room(stall)
    }

    /// As [`ObjectStore::stall`].
    fn stall(&self, waits: Waits) -> Option<Stall> {
        self.behind().stall(waits)
    }

    /// As [`ObjectStore::incarnation`].
    fn incarnation(&self) -> Incarnation {
        self.behind().incarnation()
    }

    /// As [`ObjectStore::watch`].
    ///
    /// # Errors
    /// As there.
    fn watch(&self, object: &ObjectId, changed: Changed) -> Result<Box<dyn Watching>> {
        self.behind().watch(object, changed)
    }

    /// As [`ObjectStore::notify`].
    fn notify(&self, object: &ObjectId) {
        self.behind().notify(object);
    }

    /// As [`ObjectStore::session`].
    ///
    /// # Errors
    /// As there.
    fn session(&self) -> Result<Session> {
        self.behind().session()
    }

    /// As [`ObjectStore::shut_out`].
    ///
    /// # Errors
    /// As there.
    fn shut_out(&self, session: &[u8]) -> Result<()> {
        self.behind().shut_out(session)
    }

    /// As [`ObjectStore::sync`].
    fn sync(&self) -> Completion<CommitSeq> {
        self.behind().sync()
    }

    /// As [`ObjectStore::snapshot`].
    ///
    /// # Errors
    /// As there.
    fn snapshot(&self) -> Result<Snapshot> {
        self.behind().snapshot()
    }

    /// As [`ObjectStore::xattr`].
    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        self.behind().xattr(object, name)
    }

    /// As [`ObjectStore::omap_get`].
    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        self.behind().omap_get(object, key)
    }

    /// As [`ObjectStore::omap_get_many`].
    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        self.behind().omap_get_many(object, keys)
    }

    /// As [`ObjectStore::omap_has_many`].
    fn omap_has_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<bool>> {
        self.behind().omap_has_many(object, keys)
    }

    /// As [`ObjectStore::omap_scan`].
    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        self.behind().omap_scan(object, scan)
    }

    /// As [`ObjectStore::slot_get`].
    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        self.behind().slot_get(object, index)
    }

    /// As [`ObjectStore::will_get`].
    fn will_get(&self, object: &ObjectId, soon: Soon<'_>) {
        self.behind().will_get(object, soon);
    }

    /// As [`ObjectStore::bring`].
    fn bring(&self, parts: &mut dyn Parts) -> bool {
        self.behind().bring(parts)
    }

    /// As [`ObjectStore::slot_scan`].
    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        self.behind().slot_scan(object, scan)
    }

    /// As [`ObjectStore::collections`].
    fn collections(&self) -> Completion<Vec<Collection>> {
        self.behind().collections()
    }

    /// As [`ObjectStore::list`].
    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        self.behind().list(collection, after, limit)
    }
}

fn forwarded<F: Forward + ?Sized, T>(
    store: &F,
    object: Option<&ObjectId>,
    read: impl FnOnce() -> Completion<T>,
) -> Completion<T> {
    if let Err(error) = store.before(object) {
        return Completion::ready(Err(error));
    }
    let answer = read();
    match store.after() {
        Ok(barrier) => answer.behind(barrier),
        Err(error) => Completion::ready(Err(error)),
    }
}

impl<F: Forward> ObjectStore for F {
    fn capability(&self) -> Capability {
        Forward::capability(self)
    }
    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        Forward::submit(self, txn)
    }
    fn room(&self, stall: Stall) -> Completion<()> {
        Forward::room(self, stall)
    }
    fn stall(&self, waits: Waits) -> Option<Stall> {
        Forward::stall(self, waits)
    }
    fn incarnation(&self) -> Incarnation {
        Forward::incarnation(self)
    }
    fn watch(&self, object: &ObjectId, changed: Changed) -> Result<Box<dyn Watching>> {
        Forward::watch(self, object, changed)
    }
    fn notify(&self, object: &ObjectId) {
        Forward::notify(self, object);
    }
    fn session(&self) -> Result<Session> {
        Forward::session(self)
    }
    fn shut_out(&self, session: &[u8]) -> Result<()> {
        Forward::shut_out(self, session)
    }
    fn sync(&self) -> Completion<CommitSeq> {
        Forward::sync(self)
    }
    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        forwarded(self, Some(object), || Forward::behind(self).stat(object))
    }
    fn size(&self, object: &ObjectId) -> Completion<Option<u64>> {
        forwarded(self, Some(object), || Forward::behind(self).size(object))
    }
    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        forwarded(self, Some(object), || Forward::behind(self).read(object, range))
    }
    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        forwarded(self, Some(object), || Forward::behind(self).extents(object, range))
    }
    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        forwarded(self, Some(object), || Forward::xattr(self, object, name))
    }
    fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>> {
        forwarded(self, Some(object), || Forward::behind(self).xattrs(object))
    }
    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        forwarded(self, Some(object), || Forward::omap_get(self, object, key))
    }
    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        forwarded(self, Some(object), || Forward::omap_get_many(self, object, keys))
    }
    fn omap_has_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<bool>> {
        forwarded(self, Some(object), || Forward::omap_has_many(self, object, keys))
    }
    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        forwarded(self, Some(object), || Forward::omap_scan(self, object, scan))
    }
    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        forwarded(self, Some(object), || Forward::slot_get(self, object, index))
    }
    fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>> {
        forwarded(self, Some(object), || Forward::behind(self).slot_get_many(object, indexes))
    }
    fn will_get(&self, object: &ObjectId, soon: Soon<'_>) {
        Forward::will_get(self, object, soon);
    }

    fn bring(&self, parts: &mut dyn Parts) -> bool {
        Forward::bring(self, parts)
    }
    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        forwarded(self, Some(object), || Forward::slot_scan(self, object, scan))
    }
    fn commit_scan(
        &self,
        collection: &Collection,
        name_prefix: &[u8],
        after: CommitCursor,
        limit: usize,
    ) -> Completion<(Vec<CommitEntry>, Option<CommitCursor>)> {
        forwarded(self, None, || Forward::behind(self).commit_scan(collection, name_prefix, after, limit))
    }
    fn collections(&self) -> Completion<Vec<Collection>> {
        forwarded(self, None, || Forward::collections(self))
    }
    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        forwarded(self, None, || Forward::list(self, collection, after, limit))
    }
    fn snapshot(&self) -> Result<Snapshot> {
        Forward::snapshot(self)
    }
}

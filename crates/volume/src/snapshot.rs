//! Snapshots: made by one change of the header, read through clones of objects, removed in the background; rollback.
//!
//! create → header: `snap_seq` grows, a record, a name → the next write of each object clones it (`write`)
//! remove → header: the record becomes a mark → [`Volumes::work`](crate::Volumes::work) removes the clones that no
//! snapshot sees
//!
//! Invariants:
//! 1. A clone for the snapshots above `from` up to `upper` stays as long as one of them is there.
//! 2. A protected snapshot is not removed, one that has children stays protected.
//! 3. While a rollback is not finished no client writes; doing it again finishes it.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use esker_store::{
    Change, Compare, Completion, Condition, Durability, Error as StoreError, ObjectStore, OmapScan, Retry, Transaction,
    prefix,
};

use crate::format::{self, ParentLink, SEQ, SnapRecord, State};
use crate::header::{self, push_forget, same_record};
use crate::image::{self, Chunk, Extent, Live, joined};
use crate::progress::Progress;
use crate::source::{self, Point};
use crate::{Error, Image, Result};

const NEEDS: &str = "clone objects in the transaction that writes them, which snapshots of volumes need";

/// What a snapshot is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its number, from 1, growing, never given twice in an image.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Size of the image at that moment, in bytes.
    pub size: u64,
    /// When it was made, in unix milliseconds.
    pub created_ms: u64,
    /// Whether it may not be removed, and may be cloned.
    pub protected: bool,
    /// Images that are clones of it.
    pub children: u64,
}

impl SnapshotInfo {
    fn new(id: u64, record: SnapRecord) -> Self {
        let SnapRecord { name, size, created_ms, children, protected, .. } = record;
        Self { id, name, size, created_ms, protected, children }
    }
}

/// A snapshot, open for reading.
#[derive(Clone)]
pub struct Snapshot {
    store: Arc<dyn ObjectStore>,
    image: String,
    name: String,
    pub(crate) point: Point,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot({}@{})", self.image, self.name)
    }
}

impl Snapshot {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number in the image.
    pub fn id(&self) -> u64 {
        self.point.snap
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.point.size
    }

    /// How the image is cut into objects.
    pub fn layout(&self) -> crate::Layout {
        self.point.layout
    }

    /// As [`Image::read`].
    ///
    /// # Errors
    /// As there; [`Error::NoSnapshot`] once it was removed.
    pub fn read(&self, offset: u64, len: u64) -> Result<Completion<Vec<Chunk>>> {
        let read = image::read(&*self.store, &self.point, offset, len)?;
        self.check_alive()?;
        Ok(read)
    }

    /// As [`Image::read_bytes`].
    ///
    /// # Errors
    /// As [`Snapshot::read`].
    pub fn read_bytes(&self, offset: u64, len: u64) -> Result<Bytes> {
        Ok(joined(self.read(offset, len)?.wait()?))
    }

    /// As [`Image::extents`].
    ///
    /// # Errors
    /// As [`Snapshot::read`].
    pub fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>> {
        let extents = image::extents(&*self.store, &self.point, offset, len)?;
        self.check_alive()?;
        Ok(extents)
    }

    /// After reading: what was read counts only if the snapshot was still there.
    pub(crate) fn check_alive(&self) -> Result<()> {
        let key = format::snap_key(self.point.snap);
        match self.store.omap_get(&format::header(self.point.image), &key).wait()? {
            Some(_) => Ok(()),
            None => Err(Error::NoSnapshot { image: self.image.clone(), name: self.name.clone() }),
        }
    }
}

impl Image {
    pub(crate) fn require_snapshots(&self) -> Result<()> {
        let capability = self.inner.capability;
        self.require(capability.atomic_across_objects && capability.clone, NEEDS)
    }

    /// Makes a snapshot of the image as it is now; durable on return, and so is what it shows. Costs one change of the
    /// header, however large the image is, and may be done while another handle has the image locked and writes to it.
    /// `now_ms` is unix milliseconds.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::Invalid`] for a bad name; [`Error::Refused`] during a rollback; [`Error::Fenced`];
    /// `Unsupported` where the backend cannot clone objects or is not atomic across them; the store's.
    pub fn snapshot_create(&self, name: &str, now_ms: u64) -> Result<Snapshot> {
        self.require_snapshots()?;
        format::check_name("snapshot name", name)?;
        let mut made = State::default();
        self.change(|state, txn| {
            self.check_fence(state)?;
            self.check_rollback(state)?;
            self.push_snapshot(state, txn, name, now_ms)?;
            made = state.clone();
            Ok(())
        })?;
        let live = self.live();
        if live.state.parent != made.parent {
            return self.snapshot(name).map_err(|error| self.unseen(&error));
        }
        let point = Point { snap: made.newest, size: made.size, layout: made.layout, ..live.point.clone() };
        let (store, image) = (Arc::clone(&self.inner.store), self.inner.name.clone());
        Ok(Snapshot { store, image, name: name.to_owned(), point })
    }

    /// Adds a snapshot to a change of the header.
    pub(crate) fn push_snapshot(
        &self,
        state: &mut State,
        txn: &mut Transaction,
        name: &str,
        now_ms: u64,
    ) -> Result<()> {
        let header = format::header(self.inner.id);
        self.check_no_snapshot(name)?;
        state.snap_seq += 1;
        state.newest = state.snap_seq;
        let record = SnapRecord {
            name: name.to_owned(),
            size: state.size,
            created_ms: now_ms,
            parent: state.parent,
            children: 0,
            protected: false,
        };
        let value = format::number(state.snap_seq);
        txn.push(&header, Change::OmapSet { key: format::snap_name_key(name), value });
        let key = format::snap_key(state.snap_seq);
        txn.push(&header, Change::OmapSet { key, value: record.encode() });
        Ok(())
    }

    pub(crate) fn check_no_snapshot(&self, name: &str) -> Result<()> {
        let key = format::snap_name_key(name);
        match self.store().omap_get(&format::header(self.inner.id), &key).wait()? {
            Some(_) => Err(Error::Exists { what: "snapshot", name: name.to_owned() }),
            None => Ok(()),
        }
    }

    pub(crate) fn check_rollback(&self, state: &State) -> Result<()> {
        if state.rollback == 0 {
            return Ok(());
        }
        let why = format!(
            "a rollback of image {} is not finished, or an increment is being imported into it or was interrupted; if \
             neither is going on, roll it back",
            self.inner.name
        );
        Err(Error::refused(why))
    }

    pub(crate) fn no_snapshot(&self, name: &str) -> Error {
        Error::NoSnapshot { image: self.inner.name.clone(), name: name.to_owned() }
    }

    /// Number and record of a snapshot by its name.
    pub(crate) fn find_snapshot(&self, name: &str) -> Result<(u64, SnapRecord)> {
        let found = self.store().omap_get(&format::header(self.inner.id), &format::snap_name_key(name)).wait()?;
        let id = found.as_deref().and_then(format::number_from).ok_or_else(|| self.no_snapshot(name))?;
        let record = header::snapshot(self.store(), self.inner.id, id)?.ok_or_else(|| self.no_snapshot(name))?;
        Ok((id, record))
    }

    /// Opens a snapshot for reading.
    ///
    /// # Errors
    /// [`Error::NoSnapshot`]; the store's.
    pub fn snapshot(&self, name: &str) -> Result<Snapshot> {
        let (id, _) = self.find_snapshot(name)?;
        let point = Point::snapshot(self.store(), self.inner.id, id, self.layout())?;
        let point = point.ok_or_else(|| self.no_snapshot(name))?;
        let (store, image) = (Arc::clone(&self.inner.store), self.inner.name.clone());
        Ok(Snapshot { store, image, name: name.to_owned(), point })
    }

    /// All snapshots, oldest first.
    ///
    /// # Errors
    /// The store's.
    pub fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        let entries = header::entries(self.store(), &format::header(self.inner.id), b's', false)?;
        let decode = |(key, value): (Bytes, Bytes)| {
            let id = format::key_number(&key).unwrap_or_default();
            Ok(SnapshotInfo::new(id, SnapRecord::decode(self.inner.id, id, &value)?))
        };
        entries.into_iter().map(decode).collect()
    }

    /// Changes the record of a snapshot in the header.
    pub(crate) fn change_snapshot(
        &self,
        name: &str,
        mut change: impl FnMut(u64, &mut SnapRecord, &mut Transaction) -> Result<()>,
    ) -> Result<()> {
        let header = format::header(self.inner.id);
        self.change(|state, txn| {
            self.check_fence(state)?;
            let (id, mut record) = self.find_snapshot(name)?;
            // Clones change it without a new generation.
            txn.push_guard(&header, same_record(id, &record));
            change(id, &mut record, txn)?;
            txn.push(&header, Change::OmapSet { key: format::snap_key(id), value: record.encode() });
            Ok(())
        })
    }

    /// Protects a snapshot from removal, so that it may be cloned. Does nothing if it is.
    ///
    /// # Errors
    /// [`Error::NoSnapshot`], [`Error::Fenced`]; the store's.
    pub fn snapshot_protect(&self, name: &str) -> Result<()> {
        self.change_snapshot(name, |_, record, _| {
            record.protected = true;
            Ok(())
        })
    }

    /// Takes the protection away. Does nothing if there is none.
    ///
    /// # Errors
    /// [`Error::Refused`] while it has clones; [`Error::NoSnapshot`], [`Error::Fenced`]; the store's.
    pub fn snapshot_unprotect(&self, name: &str) -> Result<()> {
        self.change_snapshot(name, |id, record, txn| {
            // What is protected cannot be removed.
            txn.gives_back = true;
            if record.children > 0 {
                let volumes = crate::Volumes { store: Arc::clone(&self.inner.store) };
                let children = volumes.children_of(self.inner.id, id)?.join(", ");
                let why = format!(
                    "snapshot {name} has {} clones ({children}); flatten or remove them first, and their snapshots from before that",
                    record.children
                );
                return Err(Error::refused(why));
            }
            record.protected = false;
            Ok(())
        })
    }

    /// Removes a snapshot. Its space comes back by [`Volumes::work`](crate::Volumes::work).
    ///
    /// # Errors
    /// [`Error::Refused`] if it is protected, or rolled back to just now; [`Error::NoSnapshot`], [`Error::Fenced`]; the
    /// store's.
    pub fn snapshot_remove(&self, name: &str) -> Result<()> {
        let header = format::header(self.inner.id);
        self.change(|state, txn| {
            self.check_fence(state)?;
            let (id, record) = self.find_snapshot(name)?;
            if record.protected {
                return Err(Error::refused(format!("snapshot {name} is protected; unprotect it first")));
            }
            if state.rollback == id {
                return Err(Error::refused(format!("a rollback to snapshot {name} is not finished; do it again")));
            }
            if state.newest == id {
                state.newest = header::snapshot_before(self.store(), self.inner.id, id)?.unwrap_or(0);
            }
            txn.push_guard(&header, same_record(id, &record));
            txn.push(&header, Change::OmapRemove { key: format::snap_key(id) });
            txn.push(&header, Change::OmapRemove { key: format::snap_name_key(name) });
            txn.push(&header, Change::OmapSet { key: format::trim_key(id), value: Bytes::new() });
            txn.gives_back = true;
            self.push_let_go(txn, record.parent, state, id)
        })
    }

    /// Adds what tells a parent that this image does not need it, if neither the image as it is in `state` nor any of
    /// its snapshots but `except` does. To be called in a change of the header, so that the snapshots are those of its
    /// generation.
    pub(crate) fn push_let_go(
        &self,
        txn: &mut Transaction,
        parent: Option<ParentLink>,
        state: &State,
        except: u64,
    ) -> Result<()> {
        let Some(link) = parent else { return Ok(()) };
        let same = |other: Option<ParentLink>| other.is_some_and(|o| (o.image, o.snap) == (link.image, link.snap));
        if same(state.parent) {
            return Ok(());
        }
        for (key, value) in header::entries(self.store(), &format::header(self.inner.id), b's', false)? {
            let id = format::key_number(&key).unwrap_or_default();
            if id != except && same(SnapRecord::decode(self.inner.id, id, &value)?.parent) {
                return Ok(());
            }
        }
        push_forget(self.store(), txn, link, self.inner.id)
    }

    /// Removes the clones that only removed snapshots saw. Returns false if `progress` stopped it.
    pub(crate) fn trim_snapshots(&self, progress: Progress<'_>) -> Result<bool> {
        let header = format::header(self.inner.id);
        let removed = header::entries(self.store(), &header, b't', true)?;
        if removed.is_empty() {
            return Ok(true);
        }
        // Snapshots made from now on, and the clones that are made for them, are above this: not to be judged by the
        // list below.
        let Some(youngest) = header::load(self.store(), self.inner.id)?.map(|state| state.snap_seq) else {
            return Ok(true);
        };
        let live = header::entries(self.store(), &header, b's', true)?;
        let live: BTreeSet<u64> = live.iter().filter_map(|(key, _)| format::key_number(key)).collect();
        self.relies_on_what_is_there();
        let clones = format::clones(self.inner.id);
        let mut done = 0;
        for page in prefix::omap_pages(self.store(), &clones, OmapScan::of(b"").at_once(1_000)) {
            let page = page?;
            let mut txn = Transaction::with(Durability::Applied);
            for (key, value) in &page {
                let (number, upper, below) = format::read_clone(key, value)?;
                if upper <= youngest && below < upper && live.range(below + 1..=upper).next().is_none() {
                    let clone = format::clone_of(self.inner.id, number, upper);
                    txn.push(&clone, Change::Remove);
                    txn.push(&clones, Change::OmapRemove { key: key.clone() });
                }
            }
            if !txn.ops.is_empty() {
                self.submit(txn, self.held()).0?;
            }
            done += page.len() as u64;
            if !progress(done, done) {
                return Ok(false);
            }
        }
        // Without the marks [`Volumes::work`](crate::Volumes::work) would not look for those clones again.
        self.flush().wait()?;
        let mut txn = Transaction::new();
        for (key, _) in removed {
            txn.push(&header, Change::OmapRemove { key });
        }
        self.store().submit(txn).wait()?;
        Ok(true)
    }

    /// Makes the image what it was at a snapshot, size and parent too. Other snapshots stay as they are. Meanwhile
    /// reads and writes of the image are refused. Interrupted, it is finished by doing it again; `progress` returning
    /// false interrupts it. Returns whether it is finished.
    ///
    /// # Errors
    /// [`Error::NoSnapshot`]; [`Error::Refused`] if a rollback to another snapshot is not finished; [`Error::Locked`];
    /// the store's.
    pub fn rollback(&self, name: &str, progress: Progress<'_>) -> Result<bool> {
        let (mut id, mut record) = self.find_snapshot(name)?;
        self.change(|state, _| {
            self.check_lock(state)?;
            // What the name means under this generation: it may have been given anew.
            (id, record) = self.find_snapshot(name)?;
            if state.rollback != 0 && state.rollback != id {
                let why = format!("a rollback to snapshot number {} is not finished; do that again", state.rollback);
                return Err(Error::refused(why));
            }
            state.rollback = id;
            Ok(())
        })?;
        let mut retry = Retry::default();
        loop {
            retry.attempt(|| self.data())?;
            let live = self.live();
            if live.state.rollback != id {
                // Another client that did it too has finished it, and what was written since is not ours to take back.
                return self.finish_shrinking(&mut |_, _| true);
            }
            match self.roll_back_all(&live, id, progress)? {
                Some(true) => {}
                Some(false) => return Ok(false),
                None => continue,
            }
            self.flush().wait()?;
            let mut outdated = false;
            let done = self.change(|state, txn| {
                outdated = state.generation != live.state.generation;
                if outdated {
                    return Err(Error::refused("the image was changed meanwhile"));
                }
                self.check_lock(state)?;
                let before = state.parent;
                state.dirty_end = state.dirty_end.max(state.size).max(record.size);
                state.size = record.size;
                state.parent = record.parent;
                state.rollback = 0;
                txn.gives_back = true;
                self.push_let_go(txn, before, state, 0)
            });
            if outdated {
                self.refresh()?;
                continue;
            }
            done?;
            return self.finish_shrinking(&mut |_, _| true);
        }
    }

    /// Rolls every object back under the generation in `live`. `None`: the header was changed meanwhile; some were not.
    fn roll_back_all(&self, live: &Live, id: u64, progress: Progress<'_>) -> Result<Option<bool>> {
        self.check_lock(&live.state)?;
        self.relies_on_what_is_there();
        let then = Point::snapshot(self.store(), self.inner.id, id, live.state.layout)?;
        let then = then.ok_or_else(|| self.no_snapshot(&format!("number {id}")))?;
        let numbers = source::candidates(self.store(), &then, true)?;
        let total = numbers.len() as u64;
        for (done, number) in numbers.into_iter().enumerate() {
            if !self.roll_back_object(live, &then, number)? {
                self.refresh()?;
                return Ok(None);
            }
            if !progress(done as u64 + 1, total) {
                return Ok(Some(false));
            }
        }
        Ok(Some(true))
    }

    /// Makes one object what it was. False if the header is not the one in `live` any more.
    fn roll_back_object(&self, live: &Live, then: &Point, number: u64) -> Result<bool> {
        let head = format::data(self.inner.id, number);
        let newest = live.state.newest;
        let mut retry = Retry::default();
        loop {
            retry.attempt(|| self.data())?;
            let source = source::with_source(self.store(), then, number, |_| Ok(()))?.map(|(source, ())| source);
            let there = self.store().stat(&head).wait()?;
            if source.as_ref().is_some_and(|source| source.id == head) || (source.is_none() && there.is_none()) {
                return Ok(true);
            }
            let mut txn = Transaction::with(Durability::Applied);
            txn = header::guarded(txn, self.inner.id, live.state.generation);
            match there {
                None => txn.push_guard(&head, Condition::Absent),
                Some(_) => {
                    txn.push_guard(&head, Condition::Exists);
                    let seq = source::seq(self.store(), &head)?;
                    txn.push_guard(&head, Condition::compare(SEQ, Compare::Equal, seq, seq == 0));
                    if seq < newest {
                        // Later snapshots see what is there now.
                        txn.push(&head, Change::CloneTo { to: format::clone_of(self.inner.id, number, newest) });
                        let key = format::clone_key(number, newest);
                        let value = format::number(seq);
                        txn.push(&format::clones(self.inner.id), Change::OmapSet { key, value });
                    }
                }
            }
            match &source {
                Some(source) => self.push_copy(&mut txn, source, &head)?,
                None => txn.push(&head, Change::Truncate { size: 0 }),
            }
            txn.push(&head, Change::number(SEQ, newest));
            match self.submit(txn, self.held()).0 {
                Ok(_) => return Ok(true),
                Err(StoreError::GuardFailed { index: 0 }) => return Ok(false),
                Err(StoreError::GuardFailed { .. } | StoreError::NoObject { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// What others change too, as errors call it.
    pub(crate) fn data(&self) -> String {
        format!("data of image {}", self.inner.name)
    }

    /// Calls `visit` with the number of every data object of the image itself, in order, until it returns false.
    pub(crate) fn each_own(&self, visit: &mut dyn FnMut(u64) -> Result<bool>) -> Result<bool> {
        source::each_own(self.store(), self.inner.id, visit)
    }

    /// Calls `visit` with every number under which the image, any of its snapshots, or (if `parents`) what `point`
    /// stands on may have data.
    pub(crate) fn each_candidate(
        &self,
        point: &Point,
        parents: bool,
        visit: &mut dyn FnMut(u64) -> Result<bool>,
    ) -> Result<bool> {
        for number in source::candidates(self.store(), point, parents)? {
            if !visit(number)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

//! The volumes of a store: the directory of images, making, opening, renaming, removing.
//!
//! name → directory → id → header → [`Image`]
//!
//! Removing an image takes its name at once; its objects go in the background ([`Volumes::work`]), which may be stopped at any time and goes on later.
//!
//! Invariants:
//! 1. A header stands before its name leads to it. Ids are never given twice.
//! 2. An image that is being removed is in the directory until its last object is gone.

use std::sync::Arc;

use bytes::Bytes;
use esker_store::{
    Capability, Change, Collection, Compare, Condition, Durability, Error as StoreError, ObjectId, ObjectStore,
    Transaction, Unsynced,
};

use crate::format::{self, COLLECTION, NEXT_ID, State};
use crate::header::{self, ATTEMPTS_MAX, push_forget, push_guard};
use crate::layout::IMAGE_BYTES_MAX;
use crate::progress::Progress;
use crate::source::names_from;
use crate::{Error, Image, Layout, Result};

/// What the store lets volumes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// A write over several objects is one transaction, and the exclusive lock fences late writers. Else each object is written by itself, and there are no locks.
    pub atomic_writes: bool,
    /// Snapshots, clones and rollback. They need atomicity across objects and clones of objects.
    pub snapshots: bool,
    /// They copy no data.
    pub cheap_snapshots: bool,
    /// What was flushed survives the process.
    pub persistent: bool,
}

impl From<Capability> for Abilities {
    fn from(capability: Capability) -> Self {
        let snapshots = capability.atomic_across_objects && capability.clone;
        Self {
            atomic_writes: capability.atomic_across_objects,
            snapshots,
            cheap_snapshots: snapshots && capability.cheap_clone,
            persistent: capability.persistent,
        }
    }
}

/// The images of a store. Cloning costs a reference count.
#[derive(Clone)]
pub struct Volumes {
    pub(crate) store: Arc<dyn ObjectStore>,
}

impl Volumes {
    /// Opens the face, making collection `volume` if it is missing. Any backend does; see [`Volumes::abilities`] for what it can.
    ///
    /// # Errors
    /// The store's.
    pub fn open(store: Arc<dyn ObjectStore>) -> Result<Self> {
        let collection = Collection::from(COLLECTION);
        if !store.collections().wait()?.contains(&collection) {
            store.submit(Transaction::new().giving_back().create_collection(&collection)).wait()?;
        }
        Ok(Self { store })
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// What the store lets volumes do.
    pub fn abilities(&self) -> Abilities {
        self.store.capability().into()
    }

    /// Makes an empty image of `size` bytes, at most [`IMAGE_BYTES_MAX`]. `now_ms` is the time in unix milliseconds.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::Invalid`] for a bad name, size or layout; the store's.
    pub fn create(&self, name: &str, size: u64, layout: Layout, now_ms: u64) -> Result<Image> {
        layout.check()?;
        check_size(size)?;
        let state = State { size, layout, created_ms: now_ms, ..State::default() };
        self.make(name, &state, |_, _| Ok(()))
    }

    /// Makes an image that nobody else can open, and that is [finished](Image::finish) when all is in it. One that
    /// never is can
    /// be removed by its name.
    ///
    /// # Errors
    /// Those of [`Volumes::create`].
    pub(crate) fn begin(&self, name: &str, size: u64, layout: Layout, now_ms: u64) -> Result<Image> {
        layout.check()?;
        check_size(size)?;
        let state = State { size, layout, created_ms: now_ms, making: true, ..State::default() };
        self.make(name, &state, |_, _| Ok(()))
    }

    /// Makes an image with this state, and what else belongs to it.
    pub(crate) fn make(
        &self,
        name: &str,
        state: &State,
        mut more: impl FnMut(u64, &mut Transaction) -> Result<()>,
    ) -> Result<Image> {
        format::check_name("image name", name)?;
        let directory = format::directory();
        let atomic = self.store.capability().atomic_across_objects;
        for _ in 0..ATTEMPTS_MAX {
            if let Some(id) = self.find(name)? {
                let name = name.to_owned();
                let unfinished = header::load(&*self.store, id)?.is_some_and(|state| state.making && !state.removing);
                return Err(if unfinished {
                    Error::Unfinished { name }
                } else {
                    Error::Exists { what: "image", name }
                });
            }
            let last = self.store.xattr(&directory, NEXT_ID).wait()?;
            let last = last.as_deref().and_then(format::number_from).unwrap_or(0);
            let damaged = || Error::Damaged { what: "directory of images".into(), why: "no ids are left".into() };
            let id = last.checked_add(1).ok_or_else(damaged)?;
            let next = Bytes::from_static(NEXT_ID);
            let same = Condition::XattrCompare {
                name: next.clone(),
                compare: Compare::Equal,
                value: last,
                absent_holds: last == 0,
            };
            let mut txn = Transaction::new().once();
            push_guard(&mut txn, &directory, same);
            txn.push(&directory, Change::XattrSet { name: next, value: format::number(id) });
            if !atomic {
                // The id first: two that make images at once must not write the same header.
                match self.store.submit(std::mem::take(&mut txn)).wait() {
                    Ok(_) => {}
                    Err(StoreError::GuardFailed { .. }) => continue,
                    Err(error) => return Err(error.into()),
                }
                header::put(&mut txn, id, state);
                self.store.submit(std::mem::take(&mut txn)).wait()?;
            } else {
                header::put(&mut txn, id, state);
            }
            push_guard(&mut txn, &directory, Condition::OmapAbsent { key: format::name_key(name) });
            more(id, &mut txn)?;
            self.push_name(&mut txn, id, name);
            match self.store.submit(txn).wait() {
                Ok(_) => return Image::open(&self.store, id, name),
                Err(StoreError::GuardFailed { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Contended { what: "the directory of images".into(), attempts: ATTEMPTS_MAX })
    }

    fn push_name(&self, txn: &mut Transaction, id: u64, name: &str) {
        let directory = format::directory();
        txn.push(&directory, Change::OmapSet { key: format::name_key(name), value: format::number(id) });
        let value = Bytes::copy_from_slice(name.as_bytes());
        txn.push(&directory, Change::OmapSet { key: format::id_key(id), value });
    }

    fn find(&self, name: &str) -> Result<Option<u64>> {
        let found = self.store.omap_get(&format::directory(), &format::name_key(name)).wait()?;
        let damaged = || Error::Damaged { what: "directory of images".into(), why: format!("id of {name}") };
        found.map(|bytes| format::number_from(&bytes).ok_or_else(damaged)).transpose()
    }

    /// The name of an image by its id.
    pub(crate) fn name_of(&self, id: u64) -> Result<String> {
        let found = self.store.omap_get(&format::directory(), &format::id_key(id)).wait()?;
        Ok(found.map_or_else(|| format!("{id:016x}"), |name| String::from_utf8_lossy(&name).into_owned()))
    }

    /// Opens an image, for reading and writing.
    ///
    /// # Errors
    /// [`Error::NoImage`]; [`Error::Unfinished`] while it is imported; [`Error::Damaged`] and [`Error::Newer`] for a
    /// header that cannot be read; the store's.
    pub fn image(&self, name: &str) -> Result<Image> {
        let id = self.find(name)?.ok_or_else(|| Error::NoImage { name: name.to_owned() })?;
        let image = Image::open(&self.store, id, name)?;
        if image.live().state.making {
            return Err(Error::Unfinished { name: name.to_owned() });
        }
        Ok(image)
    }

    /// The names of all images, in order.
    ///
    /// # Errors
    /// The store's.
    pub fn list(&self) -> Result<Vec<String>> {
        let entries = header::entries(&*self.store, &format::directory(), b'n', true)?;
        Ok(entries.into_iter().map(|(key, _)| String::from_utf8_lossy(&key[1..]).into_owned()).collect())
    }

    /// Gives an image another name. Open handles go on working.
    ///
    /// # Errors
    /// [`Error::NoImage`], [`Error::Exists`], [`Error::Invalid`] for a bad name; the store's.
    pub fn rename(&self, name: &str, to: &str) -> Result<()> {
        format::check_name("image name", to)?;
        let directory = format::directory();
        let id = self.find(name)?.ok_or_else(|| Error::NoImage { name: name.to_owned() })?;
        let mut txn = Transaction::new();
        let same = Condition::OmapEquals { key: format::name_key(name), value: format::number(id) };
        push_guard(&mut txn, &directory, same);
        push_guard(&mut txn, &directory, Condition::OmapAbsent { key: format::name_key(to) });
        txn.push(&directory, Change::OmapRemove { key: format::name_key(name) });
        self.push_name(&mut txn, id, to);
        match self.store.submit(txn).wait() {
            Ok(_) => Ok(()),
            Err(StoreError::GuardFailed { index: 0 }) => Err(Error::NoImage { name: name.to_owned() }),
            Err(StoreError::GuardFailed { .. }) => Err(Error::Exists { what: "image", name: to.to_owned() }),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes an image: its name at once, its objects by [`Volumes::work`]. Handles that are open answer with [`Error::NoImage`] from then on.
    ///
    /// # Errors
    /// [`Error::NoImage`]; [`Error::Refused`] while it has snapshots; [`Error::Locked`] while it is locked; the store's.
    pub fn remove(&self, name: &str) -> Result<()> {
        let id = self.find(name)?.ok_or_else(|| Error::NoImage { name: name.to_owned() })?;
        self.remove_by_id(name, id)
    }

    /// As [`Volumes::remove`], if the name still is that image's.
    pub(crate) fn remove_by_id(&self, name: &str, id: u64) -> Result<()> {
        let take = |txn: &mut Transaction| {
            let directory = format::directory();
            let same = Condition::OmapEquals { key: format::name_key(name), value: format::number(id) };
            push_guard(txn, &directory, same);
            txn.push(&directory, Change::OmapRemove { key: format::name_key(name) });
            txn.push(&directory, Change::OmapRemove { key: format::id_key(id) });
            txn.push(&directory, Change::OmapSet { key: format::removing_key(id), value: Bytes::new() });
            txn.gives_back = true;
        };
        let atomic = self.store.capability().atomic_across_objects;
        if !atomic {
            let mut txn = Transaction::new();
            take(&mut txn);
            self.store.submit(txn).wait()?;
        }
        header::change(&*self.store, id, name, |state, txn| {
            if state.newest > 0 {
                return Err(Error::refused(format!("image {name} has snapshots; remove them first")));
            }
            if !state.lock_owner.is_empty() {
                let (owner, epoch) = (state.lock_owner.clone(), state.lock_epoch);
                return Err(Error::Locked { image: name.to_owned(), owner, epoch });
            }
            state.removing = true;
            txn.gives_back = true;
            if atomic {
                if self.find(name)? != Some(id) {
                    return Err(Error::NoImage { name: name.to_owned() });
                }
                take(txn);
                if let Some(link) = state.parent {
                    // Nothing of it is read any more.
                    push_forget(&*self.store, txn, link, id)?;
                }
            }
            Ok(())
        })
        .map(drop)
    }

    /// Does what was left for the background: removes the objects of removed images, gives the space of removed snapshots back, finishes
    /// shrinking. Stopped (by `progress`, an error or the end of the process) it goes on at the next call. Returns whether everything is done.
    ///
    /// # Errors
    /// The store's.
    pub fn work(&self, progress: Progress<'_>) -> Result<bool> {
        for (key, _) in header::entries(&*self.store, &format::directory(), b'r', true)? {
            let Some(id) = format::key_number(&key) else { continue };
            if !self.remove_objects(id, progress)? {
                return Ok(false);
            }
        }
        for name in self.list()? {
            let image = match self.image(&name) {
                Err(Error::NoImage { .. } | Error::Unfinished { .. }) => continue,
                other => other?,
            };
            if !image.trim_snapshots(progress)? {
                return Ok(false);
            }
            match image.finish_shrinking(progress) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                // Its owner does that.
                Err(Error::Locked { .. } | Error::Refused { .. } | Error::NoImage { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Removes what is left of an image; its header and its place in the directory last.
    fn remove_objects(&self, id: u64, progress: Progress<'_>) -> Result<bool> {
        let (mut removed, unsynced) = (0, Unsynced::default());
        for prefix in [format!("s/{id:016x}/"), format::data_prefix(id)] {
            loop {
                let names = names_from(&*self.store, &prefix, None)?;
                if names.is_empty() {
                    break;
                }
                removed += names.len() as u64;
                let objects = names.into_iter().map(|name| ObjectId::new(Collection::from(COLLECTION), name));
                self.submit_each(objects.map(|object| (object, Change::Remove)), &unsynced)?;
                if !progress(removed, removed) {
                    return Ok(false);
                }
            }
        }
        // The directory forgets it when it is gone for good.
        unsynced.sync(&*self.store)?;
        let last = [format::clones(id), format::header(id)].map(|object| (object, Change::Remove));
        let done = (format::directory(), Change::OmapRemove { key: format::removing_key(id) });
        self.submit_each(last.into_iter().chain([done]), &unsynced)?;
        unsynced.sync(&*self.store)?;
        Ok(true)
    }

    /// Submits changes, to be synced later: together where the backend can, else one by one.
    fn submit_each(&self, changes: impl Iterator<Item = (ObjectId, Change)>, unsynced: &Unsynced) -> Result<()> {
        let atomic = self.store.capability().atomic_across_objects;
        let submit = |txn| {
            let written = unsynced.begin(&*self.store);
            self.store.submit(txn).wait()?;
            written.applied();
            Ok(())
        };
        let mut txn = Transaction::with(Durability::Applied);
        for (object, change) in changes {
            txn.push(&object, change);
            if !atomic {
                submit(std::mem::replace(&mut txn, Transaction::with(Durability::Applied)))?;
            }
        }
        if txn.ops.is_empty() { Ok(()) } else { submit(txn) }
    }
}

pub(crate) fn check_size(size: u64) -> Result<()> {
    if size > IMAGE_BYTES_MAX {
        let why = format!("{size} bytes exceed IMAGE_BYTES_MAX = {IMAGE_BYTES_MAX}");
        return Err(Error::Invalid { what: "image size", why });
    }
    Ok(())
}

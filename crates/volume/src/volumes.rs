//! The volumes of a store: the directory of images, making, opening, renaming, removing.
//!
//! name → directory → id → header → [`Image`]
//!
//! Removing an image takes its name at once; its objects go in the background ([`Volumes::work`]), which may be stopped
//! at any time and goes on later.
//!
//! Invariants:
//! 1. A header stands before its name leads to it. Ids are never given twice.
//! 2. An image that is being removed is in the directory until its last object is gone.

use std::sync::Arc;

use bytes::Bytes;
use esker_store::registry::{Renamed, open_collection, remove_objects};
use esker_store::{Attempt, Capability, Collection, ObjectStore, Transaction, change_guarded, prefix};

use crate::format::{self, COLLECTION, ParentLink, State};
use crate::header::{self, push_forget};
use crate::image::Live;
use crate::layout::IMAGE_BYTES_MAX;
use crate::progress::Progress;
use crate::source::{HEAD, Parent, Point};
use crate::{Error, Image, Layout, Result};

/// What the store lets volumes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// A write over several objects is one transaction. Else each object is written by itself.
    pub atomic_writes: bool,
    /// There is the exclusive lock, which fences late owners.
    pub locks: bool,
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
            locks: capability.atomic_across_objects || capability.sessions,
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
    /// Opens the face, making collection `volume` if it is missing. Any backend does; see [`Volumes::abilities`] for
    /// what it can.
    ///
    /// # Errors
    /// The store's.
    pub fn open(store: Arc<dyn ObjectStore>) -> Result<Self> {
        open_collection(&*store, &COLLECTION.into(), Transaction::new())?;
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
        self.check_layout(&layout)?;
        check_size(size)?;
        let state = State { size, layout, created_ms: now_ms, ..State::default() };
        self.make(name, &state, None, |_, _| Ok(()))
    }

    fn check_layout(&self, layout: &Layout) -> Result<()> {
        layout.check()?;
        let capability = self.store.capability();
        if layout.object_bytes > capability.object_bytes_max {
            let (bytes, max) = (layout.object_bytes, capability.object_bytes_max);
            let why =
                format!("{bytes} bytes for an object: {} takes at most {max} (object_bytes_max)", capability.backend);
            return Err(Error::Invalid { what: "image layout", why });
        }
        Ok(())
    }

    /// Makes an image that no other client can open, and that is [finished](Image::finish) when all is in it. One that
    /// never is can be removed by its name.
    ///
    /// # Errors
    /// Those of [`Volumes::create`].
    pub(crate) fn begin(&self, name: &str, size: u64, layout: Layout, now_ms: u64) -> Result<Image> {
        self.check_layout(&layout)?;
        check_size(size)?;
        let state = State { size, layout, created_ms: now_ms, making: true, ..State::default() };
        self.make(name, &state, None, |_, _| Ok(()))
    }

    /// Makes an image with this state, over this parent, and what else belongs to it.
    pub(crate) fn make(
        &self,
        name: &str,
        state: &State,
        parent: Option<Point>,
        mut more: impl FnMut(u64, &mut Transaction) -> Result<()>,
    ) -> Result<Image> {
        format::check_name("image name", name)?;
        let (store, registry) = (&*self.store, format::registry());
        let id = change_guarded(
            store,
            || format!("the {}", registry.what),
            || {
                if let Some(id) = self.find(name)? {
                    let name = name.to_owned();
                    let unfinished = header::load(store, id)?.is_some_and(|state| state.making && !state.removing);
                    return Err(if unfinished {
                        Error::Unfinished { name }
                    } else {
                        Error::Exists { what: "image", name }
                    });
                }
                let mut txn = Transaction::new().once();
                let id = if store.capability().atomic_across_objects {
                    let id = registry.give_id(store, &mut txn)?;
                    header::put(&mut txn, id, state);
                    id
                } else {
                    // The id first: two that make images at once must not write the same header.
                    let id = registry.new_id(store, &std::mem::take(&mut txn), |_, _| ())?;
                    header::put(&mut txn, id, state);
                    store.submit(std::mem::take(&mut txn)).wait()?;
                    id
                };
                txn.guards.push(registry.is_free(name));
                more(id, &mut txn)?;
                registry.set(&mut txn, name, format::number(id));
                Ok(Attempt::Submit(txn, id))
            },
        )?;
        // Nothing is looked at behind it: it is made.
        let over = |(link, point): (ParentLink, Point)| Arc::new(Parent { point, overlap: link.overlap });
        let parent = state.parent.zip(parent).map(over);
        let point = Point { image: id, snap: HEAD, size: state.size, layout: state.layout, parent };
        Ok(Image::with(&self.store, id, name, Live { state: state.clone(), point }))
    }

    fn find(&self, name: &str) -> Result<Option<u64>> {
        Ok(format::registry().id(&*self.store, name)?)
    }

    /// The name of an image by its id.
    pub(crate) fn name_of(&self, id: u64) -> Result<String> {
        let found = format::registry().name(&*self.store, id)?;
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
        Ok(format::registry().names(&*self.store, "", None, usize::MAX).collect::<esker_store::Result<_>>()?)
    }

    /// Gives an image another name. Open handles go on working.
    ///
    /// # Errors
    /// [`Error::NoImage`], [`Error::Exists`], [`Error::Invalid`] for a bad name; the store's.
    pub fn rename(&self, name: &str, to: &str) -> Result<()> {
        format::check_name("image name", to)?;
        match format::registry().rename(&*self.store, name, to)? {
            Renamed::Done => Ok(()),
            Renamed::Missing => Err(Error::NoImage { name: name.to_owned() }),
            Renamed::Taken => Err(Error::Exists { what: "image", name: to.to_owned() }),
        }
    }

    /// Removes an image: its name at once, its objects by [`Volumes::work`]. Handles that are open answer with
    /// [`Error::NoImage`] from then on.
    ///
    /// # Errors
    /// [`Error::NoImage`]; [`Error::Refused`] while it has snapshots; [`Error::Locked`] while it is locked; the
    /// store's.
    pub fn remove(&self, name: &str) -> Result<()> {
        let id = self.find(name)?.ok_or_else(|| Error::NoImage { name: name.to_owned() })?;
        self.remove_by_id(name, id)
    }

    /// As [`Volumes::remove`], if the name still is that image's.
    pub(crate) fn remove_by_id(&self, name: &str, id: u64) -> Result<()> {
        let take = |txn: &mut Transaction| format::registry().unlink(txn, name, id, Bytes::new());
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

    /// Does what was left for the background: removes the objects of removed images, gives the space of removed
    /// snapshots back, finishes shrinking. Stopped (by `progress`, an error or the end of the process) it goes on at
    /// the next call. Returns whether everything is done.
    ///
    /// # Errors
    /// The store's.
    pub fn work(&self, progress: Progress<'_>) -> Result<bool> {
        for left in format::registry().leftovers(&*self.store) {
            if !self.finish_removing(left?.id, progress)? {
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
    fn finish_removing(&self, id: u64, progress: Progress<'_>) -> Result<bool> {
        let (store, collection) = (&*self.store, Collection::from(COLLECTION));
        let below = |prefix: String| prefix::objects(store, &collection, prefix.as_bytes(), None);
        let data = below(format::clones_prefix(id)).chain(below(format::data_prefix(id)));
        let all = data.chain([format::clones(id), format::header(id)].map(Ok));
        if !remove_objects(store, all, &mut |removed| progress(removed, removed))? {
            return Ok(false);
        }
        let mut txn = Transaction::new();
        format::registry().forget(&mut txn, id, &[]);
        store.submit(txn).wait()?;
        Ok(true)
    }
}

pub(crate) fn check_size(size: u64) -> Result<()> {
    if size > IMAGE_BYTES_MAX {
        let why = format!("{size} bytes exceed IMAGE_BYTES_MAX = {IMAGE_BYTES_MAX}");
        return Err(Error::Invalid { what: "image size", why });
    }
    Ok(())
}

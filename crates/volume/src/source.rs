//! Where the data of a point is: an image as it is now, or one of its snapshots, or what they stand on.
//!
//! point, object number → clone for that snapshot | the object itself | the same of the parent | nothing
//!
//! A data object carries `seq`, the newest snapshot when it was last written first; the first write after a snapshot
//! clones it and puts the clone into one ordered map per image. So the clone that a snapshot sees is one lookup,
//! however many there are.
//!
//! Invariants:
//! 1. A snapshot's data never changes: it is in the object itself until that is written, and in its clone from then on.
//!    A reader of the object looks afterwards whether it was written meanwhile, and then reads the clone.
//! 2. An object that exists hides the parent's, even if it is empty.
//! 3. What lies past the size of a point, or past the overlap with its parent, is never shown.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use esker_store::{Barrier, Collection, Completion, DataRun, ObjectId, ObjectStore, OmapScan, prefix};

use crate::format::{self, COLLECTION, ParentLink, SEQ, State};
use crate::{Error, Layout, Result, header};

/// Most images that a clone may stand on, one over the other. `flatten` makes a chain shorter.
pub const CHAIN_DEPTH_MAX: usize = 16;

/// The image as it is now, where a snapshot's number is asked for.
pub(crate) const HEAD: u64 = 0;

/// An image at one moment, with all that it stands on.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) image: u64,
    pub(crate) snap: u64,
    pub(crate) size: u64,
    pub(crate) layout: Layout,
    pub(crate) parent: Option<Arc<Parent>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Parent {
    pub(crate) point: Point,
    pub(crate) overlap: u64,
}

/// An object that holds data of a point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) id: ObjectId,
    /// First so many bytes of it are the point's, at most.
    pub(crate) visible: u64,
    /// The snapshot for which it holds as long as the object's `seq` is below it; `HEAD` for a clone or an image as it
    /// is.
    pub(crate) while_before: u64,
}

impl Point {
    pub(crate) fn head(store: &dyn ObjectStore, image: u64, state: &State) -> Result<Self> {
        let parent = load_parent(store, state.parent, CHAIN_DEPTH_MAX)?;
        Ok(Self { image, snap: HEAD, size: state.size, layout: state.layout, parent })
    }

    pub(crate) fn snapshot(store: &dyn ObjectStore, image: u64, snap: u64, layout: Layout) -> Result<Option<Self>> {
        let Some(record) = header::snapshot(store, image, snap)? else { return Ok(None) };
        let parent = load_parent(store, record.parent, CHAIN_DEPTH_MAX)?;
        Ok(Some(Self { image, snap, size: record.size, layout, parent }))
    }

    /// Images below this one.
    pub(crate) fn depth(&self) -> usize {
        self.parent.as_ref().map_or(0, |parent| 1 + parent.point.depth())
    }

    /// First so many bytes of the object of which the parent knows.
    pub(crate) fn overlap(&self, number: u64) -> u64 {
        self.parent.as_ref().map_or(0, |parent| self.layout.prefix(number, parent.overlap))
    }
}

fn load_parent(store: &dyn ObjectStore, link: Option<ParentLink>, depth: usize) -> Result<Option<Arc<Parent>>> {
    let Some(link) = link else { return Ok(None) };
    let damaged =
        |why: &str| Error::Damaged { what: format!("parent {:016x}@{}", link.image, link.snap), why: why.to_owned() };
    let depth = depth.checked_sub(1).ok_or_else(|| damaged("the chain is longer than CHAIN_DEPTH_MAX"))?;
    let state = header::load(store, link.image)?.ok_or_else(|| damaged("the image does not exist"))?;
    let record = header::snapshot(store, link.image, link.snap)?.ok_or_else(|| damaged("no such snapshot"))?;
    let parent = load_parent(store, record.parent, depth)?;
    let point = Point { image: link.image, snap: link.snap, size: record.size, layout: state.layout, parent };
    Ok(Some(Arc::new(Parent { point, overlap: link.overlap })))
}

/// The clone of an object that a snapshot sees.
pub(crate) fn find_clone(store: &dyn ObjectStore, image: u64, number: u64, snap: u64) -> Result<Option<ObjectId>> {
    let scan = OmapScan {
        start: Some(format::clone_key(number, snap)),
        end: Some(format::clone_key(number, u64::MAX)),
        limit: 1,
        ..OmapScan::default()
    };
    let found = store.omap_scan(&format::clones(image), &scan).wait()?;
    let Some((key, value)) = found.first() else { return Ok(None) };
    let (_, upper, from) = format::read_clone(key, value)?;
    Ok((from < snap).then(|| format::clone_of(image, number, upper)))
}

/// The newest snapshot of which an object's content is not; 0 also where the object is missing.
pub(crate) fn seq(store: &dyn ObjectStore, object: &ObjectId) -> Result<u64> {
    let found = store.xattr(object, SEQ).wait()?;
    let damaged = || Error::Damaged { what: format!("object {object}"), why: "its seq is not 8 bytes".into() };
    found.map_or(Ok(0), |bytes| format::number_from(&bytes).ok_or_else(damaged))
}

fn exists(store: &dyn ObjectStore, object: &ObjectId) -> Result<bool> {
    Ok(store.size(object).wait()?.is_some())
}

/// What of one image, not of its parents, a point sees of an object, and what `look` says of it.
fn own<T>(
    store: &dyn ObjectStore,
    point: &Point,
    number: u64,
    look: &mut impl FnMut(&ObjectId) -> Result<T>,
) -> Result<Option<(ObjectId, u64, T)>> {
    let head = format::data(point.image, number);
    if point.snap == HEAD {
        // Without a parent a missing object looks like an empty one.
        let there = point.parent.is_none() || exists(store, &head)?;
        return if there { look(&head).map(|seen| Some((head, HEAD, seen))) } else { Ok(None) };
    }
    loop {
        if let Some(clone) = find_clone(store, point.image, number, point.snap)? {
            let seen = look(&clone)?;
            return Ok(Some((clone, HEAD, seen)));
        }
        let there = exists(store, &head)?;
        let seen = if there { Some(look(&head)?) } else { None };
        let seq = seq(store, &head)?;
        // Written, and cloned, while we looked?
        if find_clone(store, point.image, number, point.snap)?.is_some() {
            continue;
        }
        return Ok(seen.filter(|_| seq < point.snap).map(|seen| (head, point.snap, seen)));
    }
}

/// Finds the object that holds what `point` sees of `number`, and what `look` says of it while it is that.
pub(crate) fn with_source<T>(
    store: &dyn ObjectStore,
    point: &Point,
    number: u64,
    mut look: impl FnMut(&ObjectId) -> Result<T>,
) -> Result<Option<(Source, T)>> {
    loop {
        let (mut at, mut visible) = (point, point.layout.prefix(number, point.size));
        let found = loop {
            if visible == 0 {
                break None;
            }
            if let Some((id, while_before, seen)) = own(store, at, number, &mut look)? {
                break Some((Source { id, visible, while_before }, seen));
            }
            let Some(parent) = &at.parent else { break None };
            visible = visible.min(at.overlap(number)).min(parent.point.layout.prefix(number, parent.point.size));
            at = &parent.point;
        };
        // Flattened, or written first, while we looked at the parents? What they had may be gone.
        let moved = point.snap == HEAD && at.image != point.image && exists(store, &format::data(point.image, number))?;
        if !moved {
            return Ok(found);
        }
    }
}

/// Bytes of one object as a point sees them; shorter where it ends, `None` where there is nothing.
pub(crate) fn read(
    store: &dyn ObjectStore,
    point: &Point,
    number: u64,
    offset: u64,
    len: u64,
) -> Result<(Option<Bytes>, Option<Barrier>)> {
    let found = with_source(store, point, number, |id| {
        let (bytes, barrier) = store.read(id, offset..offset + len).into_parts();
        Ok((bytes?, barrier))
    })?;
    let Some((source, (bytes, barrier))) = found else { return Ok((None, None)) };
    let visible = source.visible.saturating_sub(offset).min(bytes.len() as u64) as usize;
    Ok((Some(bytes.slice(..visible)).filter(|bytes| !bytes.is_empty()), barrier))
}

/// Runs of data of one object as a point sees them.
pub(crate) fn extents(
    store: &dyn ObjectStore,
    point: &Point,
    number: u64,
    offset: u64,
    len: u64,
) -> Result<Vec<DataRun>> {
    let found = with_source(store, point, number, |id| Ok(store.extents(id, offset..offset + len).wait()?))?;
    let Some((source, mut runs)) = found else { return Ok(Vec::new()) };
    runs.retain_mut(|run| {
        run.len = run.len.min(source.visible.saturating_sub(run.offset));
        run.len > 0
    });
    Ok(runs)
}

/// Makes an outcome wait for several barriers.
pub(crate) fn behind<T>(value: T, barrier: Option<Barrier>) -> Completion<T> {
    Completion::after(Ok(value), barrier)
}

/// Calls `visit` with the number of every data object of an image itself, in order, until it returns false.
pub(crate) fn each_own(
    store: &dyn ObjectStore,
    image: u64,
    visit: &mut dyn FnMut(u64) -> Result<bool>,
) -> Result<bool> {
    for name in prefix::names(store, &Collection::from(COLLECTION), format::data_prefix(image).as_bytes(), None) {
        if let Some(number) = format::data_number(image, &name?)
            && !visit(number)?
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Numbers under which the image of `point`, any of its snapshots, or (if `parents`) what it stands on may have data.
pub(crate) fn candidates(store: &dyn ObjectStore, point: &Point, parents: bool) -> Result<BTreeSet<u64>> {
    let mut numbers = BTreeSet::new();
    let mut at = Some(point);
    while let Some(point) = at {
        each_own(store, point.image, &mut |number| {
            numbers.insert(number);
            Ok(true)
        })?;
        let keys = OmapScan::of(b"").keys().at_once(10_000);
        for entry in prefix::omap(store, &format::clones(point.image), keys) {
            numbers.insert(format::read_clone(&entry?.0, &[0; 8])?.0);
        }
        at = point.parent.as_ref().filter(|_| parents).map(|parent| &parent.point);
    }
    Ok(numbers)
}

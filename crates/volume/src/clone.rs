//! Clones: images that stand on a protected snapshot and copy an object when they first write it; flattening; what an
//! image is.
//!
//! clone → one transaction: header of the child, entry in the header of the parent → writes copy objects (`write`) →
//! flatten copies the rest
//!
//! A child has its parent's layout, so an object of the one is an object of the other, and copying is a clone of an
//! object.
//!
//! Invariants:
//! 1. A snapshot counts its children, and stays protected while there are any.
//! 2. A child is one as long as the image itself or any of its snapshots stands on the parent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use esker_store::{Change, Condition, Durability, Transaction, submit_guarded};

use crate::format::{self, ParentLink, State};
use crate::header::{self, same_record};
use crate::progress::Progress;
use crate::source::CHAIN_DEPTH_MAX;
use crate::write::{Act, Writer};
use crate::{Error, Image, Info, Result, Volumes};

const NEEDS: &str = "clone objects in the transaction that writes them, which clones of volumes need";

impl Volumes {
    /// Makes image `child` as a clone of a protected snapshot: it shows what the snapshot shows and takes no space.
    /// Costs a change of two headers, however large the image is. `now_ms` is unix milliseconds.
    ///
    /// # Errors
    /// [`Error::Refused`] if the snapshot is not protected, or the chain of clones would be longer than
    /// [`CHAIN_DEPTH_MAX`]; [`Error::NoImage`], [`Error::NoSnapshot`], [`Error::Exists`]; `Unsupported` as for
    /// [`Image::snapshot_create`]; the store's.
    pub fn clone_image(&self, image: &str, snapshot: &str, child: &str, now_ms: u64) -> Result<Image> {
        let parent = self.image(image)?;
        let capability = parent.inner.capability;
        parent.require(capability.atomic_across_objects && capability.clone, NEEDS)?;
        let point = parent.snapshot(snapshot)?.point;
        if point.depth() + 1 > CHAIN_DEPTH_MAX {
            let why =
                format!("{image} stands on {} images; CHAIN_DEPTH_MAX = {CHAIN_DEPTH_MAX}: flatten it", point.depth());
            return Err(Error::refused(why));
        }
        let link = ParentLink { image: point.image, snap: point.snap, overlap: point.size };
        let (size, layout) = (point.size, point.layout);
        let state = State { size, layout, created_ms: now_ms, parent: Some(link), ..State::default() };
        let header = format::header(point.image);
        self.make(child, &state, Some(point.clone()), |id, txn| {
            let (snap, mut record) = parent.find_snapshot(snapshot)?;
            if !record.protected || snap != point.snap {
                return Err(Error::refused(format!("snapshot {image}@{snapshot} is not protected; protect it first")));
            }
            let key = format::snap_key(snap);
            txn.push_guard(&header, same_record(snap, &record));
            record.children = record.children.saturating_add(1);
            txn.push(&header, Change::OmapSet { key, value: record.encode() });
            txn.push(&header, Change::OmapSet { key: format::child_key(snap, id), value: Bytes::new() });
            Ok(())
        })
    }

    /// The names of the images that are clones of a snapshot.
    ///
    /// # Errors
    /// [`Error::NoImage`], [`Error::NoSnapshot`]; the store's.
    pub fn children(&self, image: &str, snapshot: &str) -> Result<Vec<String>> {
        let image = self.image(image)?;
        let (snap, _) = image.find_snapshot(snapshot)?;
        self.children_of(image.id(), snap)
    }

    pub(crate) fn children_of(&self, image: u64, snap: u64) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for (key, _) in header::entries(&*self.store, &format::header(image), b'c', true)? {
            if format::key_number(&key) == Some(snap)
                && let Some(child) = key.get(9..).and_then(|rest| rest.try_into().ok())
            {
                names.push(self.name_of(u64::from_be_bytes(child))?);
            }
        }
        Ok(names)
    }
}

impl Image {
    /// Copies what the image still has from its parent, so that it stands alone. Others may write meanwhile, one that
    /// has it
    /// locked too. Interrupted (also by `progress`, with
    /// false), it goes on when called again. Returns whether it is finished. The parent stays needed by snapshots that
    /// were made before.
    ///
    /// # Errors
    /// Those of [`Image::write`].
    pub fn flatten(&self, progress: Progress<'_>) -> Result<bool> {
        self.refresh()?;
        let live = self.live();
        self.check_fence(&live.state)?;
        self.check_rollback(&live.state)?;
        let Some(parent) = &live.point.parent else { return Ok(true) };
        self.relies_on_what_is_there();
        let mut numbers = BTreeSet::new();
        self.each_candidate(&parent.point, true, &mut |number| {
            if live.point.overlap(number) > 0 {
                numbers.insert(number);
            }
            Ok(true)
        })?;
        let total = numbers.len() as u64;
        for (done, number) in numbers.into_iter().enumerate() {
            if self.store().size(&format::data(self.inner.id, number)).wait()?.is_none() {
                let acts = BTreeMap::from([(number, Act::Own)]);
                self.apply(&acts, Durability::Applied, Writer::Work)?;
            }
            if !progress(done as u64 + 1, total) {
                return Ok(false);
            }
        }
        self.flush().wait()?;
        self.change(|state, txn| {
            self.check_fence(state)?;
            self.check_rollback(state)?;
            // Copied was for this parent, and what is smaller now needs no more than was copied.
            let mut before = None;
            if state.parent.map(|link| (link.image, link.snap)) == live.state.parent.map(|link| (link.image, link.snap))
            {
                before = state.parent.take();
            }
            self.push_let_go(txn, before, state, 0)
        })?;
        Ok(true)
    }

    /// What the image is, looked up now.
    ///
    /// # Errors
    /// [`Error::NoImage`]; the store's.
    pub fn info(&self) -> Result<Info> {
        self.refresh()?;
        let live = self.live();
        let state = &live.state;
        let volumes = Volumes { store: Arc::clone(&self.inner.store) };
        let snapshot_name = |image, snap| -> Result<String> {
            let record = header::snapshot(self.store(), image, snap)?;
            Ok(record.map_or_else(|| format!("{snap}"), |record| record.name))
        };
        let parent = match state.parent {
            Some(link) => Some((volumes.name_of(link.image)?, snapshot_name(link.image, link.snap)?, link.overlap)),
            None => None,
        };
        let rollback = match state.rollback {
            0 => None,
            snap => Some(snapshot_name(self.inner.id, snap)?),
        };
        Ok(Info {
            name: volumes.name_of(self.inner.id)?,
            id: self.inner.id,
            size: state.size,
            layout: state.layout,
            created_ms: state.created_ms,
            parent,
            depth: live.point.depth(),
            lock: self.lock_info(),
            rollback,
        })
    }

    /// Bytes that are stored for the image itself: neither holes nor what its parent has.
    ///
    /// # Errors
    /// The store's.
    pub fn stored_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        self.each_own(&mut |number| {
            let runs = self.store().extents(&format::data(self.inner.id, number), 0..u64::MAX).wait()?;
            bytes += runs.iter().map(|run| run.len).sum::<u64>();
            Ok(true)
        })?;
        Ok(bytes)
    }

    /// Sets a value of the image's metadata, which belongs to its users; `None` removes it. Keys and values are text of
    /// at most 4,000 and 65,536 bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key or value too long; the store's.
    pub fn set_meta(&self, key: &str, value: Option<&str>) -> Result<()> {
        if key.is_empty() || key.len() > 4_000 || value.is_some_and(|value| value.len() > 65_536) {
            let why = "keys have 1 to 4000 bytes, values up to 65536".to_owned();
            return Err(Error::Invalid { what: "metadata", why });
        }
        let header = format::header(self.inner.id);
        let key = format::meta_key(key);
        let change = match value {
            Some(value) => Change::OmapSet { key, value: Bytes::copy_from_slice(value.as_bytes()) },
            None => Change::OmapRemove { key },
        };
        let txn = Transaction::new().guard(&header, Condition::Exists).change(&header, change);
        match submit_guarded(self.store(), txn)? {
            None => Ok(()),
            Some(_) => Err(Error::NoImage { name: self.inner.name.clone() }),
        }
    }

    /// The image's metadata, by key.
    ///
    /// # Errors
    /// The store's.
    pub fn meta(&self) -> Result<Vec<(String, String)>> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let entries = header::entries(self.store(), &format::header(self.inner.id), b'm', false)?;
        Ok(entries.into_iter().map(|(key, value)| (text(&key[1..]), text(&value))).collect())
    }
}

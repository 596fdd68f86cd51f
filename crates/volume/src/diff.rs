//! Differences between two points of an image: from nothing or a snapshot, to a later snapshot or the image as it is.
//!
//! objects that either may have → where each point has it (`source`) → the same place: nothing changed → else compare
//! what is there
//!
//! Invariants:
//! 1. An extent's bytes are the later point's; what no extent covers is the same at both points (zeros, where the later
//!    one is longer).
//! 2. Objects that did not change since are not read. Memory is bounded by a set of objects.

use std::collections::BTreeSet;

use bytes::Bytes;
use esker_store::ObjectStore;

use crate::image::Extent;
use crate::source::{self, HEAD, Point, Source, candidates};
use crate::{Error, Image, Result, header};

/// Bytes that are compared, and reported as changed, together: 4 KiB, at multiples of it in each object.
pub const DIFF_BLOCK_BYTES: u64 = 4 << 10;

/// Which objects may differ between two points, and the points.
pub(crate) struct Diff<'a> {
    pub(crate) store: &'a dyn ObjectStore,
    pub(crate) from: Option<Point>,
    pub(crate) to: Point,
    numbers: BTreeSet<u64>,
}

impl<'a> Diff<'a> {
    pub(crate) fn new(store: &'a dyn ObjectStore, from: Option<Point>, to: Point) -> Result<Self> {
        let base =
            |point: &Point| point.parent.as_ref().map(|parent| (parent.point.image, parent.point.snap, parent.overlap));
        // What neither has itself is the parents', and the same if these are.
        let parents = from.as_ref().is_none_or(|from| base(from) != base(&to));
        let mut numbers = candidates(store, &to, parents)?;
        if let Some(from) = from.as_ref().filter(|_| parents) {
            numbers.extend(candidates(store, from, true)?);
        }
        numbers.retain(|number| to.layout.prefix(*number, to.size) > 0);
        Ok(Self { store, from, to, numbers })
    }

    /// Objects to look at.
    pub(crate) fn objects(&self) -> u64 {
        self.numbers.len() as u64
    }

    /// Calls `visit` with the extents of one set of objects after the other, in image order, and how many objects are
    /// done; until it returns false.
    pub(crate) fn each_set(&self, visit: &mut dyn FnMut(&[Extent], u64) -> Result<bool>) -> Result<bool> {
        let count = self.to.layout.stripe_count;
        let mut numbers = self.numbers.iter().peekable();
        let mut done = 0;
        while let Some(set) = numbers.peek().map(|number| *number / count) {
            let mut runs: Vec<Extent> = Vec::new();
            while let Some(number) = numbers.next_if(|number| **number / count == set) {
                self.object(*number, &mut runs)?;
                done += 1;
            }
            runs.sort_unstable_by_key(|run| run.offset);
            let mut joined: Vec<Extent> = Vec::new();
            for run in runs {
                match joined.last_mut() {
                    Some(last) if last.data == run.data && last.offset + last.len == run.offset => last.len += run.len,
                    _ => joined.push(run),
                }
            }
            if !visit(&joined, done)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn locate(&self, point: &Point, number: u64) -> Result<Option<Source>> {
        Ok(source::with_source(self.store, point, number, |_| Ok(()))?.map(|(source, ())| source))
    }

    /// Adds what changed in one object.
    fn object(&self, number: u64, runs: &mut Vec<Extent>) -> Result<()> {
        let end = self.to.layout.prefix(number, self.to.size);
        let mut add = |offset: u64, len: u64, data: bool| {
            for (offset, len) in self.to.layout.image_runs(number, offset, len) {
                runs.push(Extent { offset, len, data });
            }
        };
        let Some(from) = &self.from else {
            for run in source::extents(self.store, &self.to, number, 0, end)? {
                add(run.offset, run.len, true);
            }
            return Ok(());
        };
        let place = |source: Option<Source>| source.map(|source| (source.id, source.visible));
        let same_end = from.layout.prefix(number, from.size).min(end);
        let before = self.locate(from, number)?;
        let after = self.locate(&self.to, number)?;
        if same_end == end && place(before) == place(after) {
            return Ok(());
        }
        let old = self.bytes(from, number, same_end)?;
        let new = self.bytes(&self.to, number, end)?;
        let holes = source::extents(self.store, &self.to, number, 0, end)?;
        let mut at = 0;
        while at < end {
            let next = (at / DIFF_BLOCK_BYTES + 1).saturating_mul(DIFF_BLOCK_BYTES).min(end);
            if !same(&old, &new, at, next) {
                let data = holes.iter().any(|run| run.offset < next && at < run.offset + run.len);
                add(at, next - at, data);
            }
            at = next;
        }
        Ok(())
    }

    fn bytes(&self, point: &Point, number: u64, len: u64) -> Result<Bytes> {
        let (bytes, barrier) = source::read(self.store, point, number, 0, len)?;
        if let Some(barrier) = barrier {
            barrier.wait()?;
        }
        Ok(bytes.unwrap_or_default())
    }
}

/// Whether both are the same from `start` to `end`; what they do not have are zeros.
fn same(a: &[u8], b: &[u8], start: u64, end: u64) -> bool {
    let part =
        |bytes: &[u8]| -> std::ops::Range<usize> { (start as usize).min(bytes.len())..(end as usize).min(bytes.len()) };
    let (a, b) = (&a[part(a)], &b[part(b)]);
    let shorter = a.len().min(b.len());
    a[..shorter] == b[..shorter] && a[shorter..].iter().chain(&b[shorter..]).all(|byte| *byte == 0)
}

impl Image {
    /// The points of a diff: `from` a snapshot, or nothing; `to` a snapshot that is not older, or the image as it is.
    pub(crate) fn diff_points(&self, from: Option<&str>, to: Option<&str>) -> Result<(Option<Point>, Point)> {
        self.refresh()?;
        let from = from.map(|name| self.snapshot(name)).transpose()?.map(|snapshot| snapshot.point);
        let to = match to {
            Some(name) => self.snapshot(name)?.point,
            None => {
                let live = self.live();
                self.check_rollback(&live.state)?;
                live.point.clone()
            }
        };
        if let Some(from) = &from
            && to.snap != HEAD
            && from.snap > to.snap
        {
            let why = "the first snapshot is younger than the second".to_owned();
            return Err(Error::Invalid { what: "points of a diff", why });
        }
        Ok((from, to))
    }

    /// Fails if a point that was read is not what it was: a snapshot is gone, or the image stands on something else.
    pub(crate) fn check_points(&self, from: Option<&Point>, to: &Point) -> Result<()> {
        for point in from.into_iter().chain([to]) {
            if point.snap != HEAD {
                if header::snapshot(self.store(), point.image, point.snap)?.is_none() {
                    return Err(self.no_snapshot(&format!("number {} any more", point.snap)));
                }
                continue;
            }
            self.refresh()?;
            let live = self.live();
            self.check_rollback(&live.state)?;
            let ground =
                |point: &Point| (point.size, point.parent.as_ref().map(|p| (p.point.image, p.point.snap, p.overlap)));
            if ground(point) != ground(&live.point) {
                let name = &self.inner.name;
                return Err(Error::refused(format!("image {name} was resized or flattened meanwhile; do it again")));
            }
        }
        Ok(())
    }

    /// Tells the extents in which `to` (a snapshot, or the image as it is) differs from `from` (an older snapshot, or
    /// nothing: then all data of `to`), in image order. Bytes are compared in blocks of [`DIFF_BLOCK_BYTES`]; an extent
    /// without data is zeros at `to`. `visit` returns false to stop. What others write meanwhile to the image as it is
    /// may be in it or not.
    ///
    /// # Errors
    /// [`Error::NoSnapshot`]; [`Error::Invalid`] if `from` is younger than `to`; the store's, and those of `visit`.
    pub fn diff(
        &self,
        from: Option<&str>,
        to: Option<&str>,
        visit: &mut dyn FnMut(Extent) -> Result<bool>,
    ) -> Result<()> {
        let (first, second) = self.diff_points(from, to)?;
        let diff = Diff::new(self.store(), first.clone(), second.clone())?;
        diff.each_set(&mut |extents, _| {
            for extent in extents {
                if !visit(*extent)? {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        self.check_points(first.as_ref(), &second)
    }
}

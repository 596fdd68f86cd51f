//! Comparing a copy with its source: everything readable is read from both, and the first difference ends it.
//!
//! Invariant: what is compared goes into one checksum, in order, so that two stores of the same content have the same.

use bytes::Bytes;
use esker_store::{DataRun, ObjectId, ObjectStore};

use super::mark::{Mark, Space};
use super::walk::{READ_BYTES, Runs, names, omap, slots};
use super::{CopyProgress, VerifyReport};
use crate::{Error, Result};

/// Reads `from` and `to` in full and compares them; then `to` is no half copy any more. For what stands on the device
/// rather than in memory, close and open `to` between copying and this.
///
/// # Errors
/// [`Error::CopyDiffers`] names the first difference, and leaves the mark; [`Error::NoCopy`] if `to` is not a copy that
/// came to its end.
pub fn verify_copy(
    from: &dyn ObjectStore,
    to: &dyn ObjectStore,
    progress: &mut dyn FnMut(CopyProgress),
) -> Result<VerifyReport> {
    if Mark::read(to)?.is_none_or(|mark| mark.place.space != Space::All) {
        return Err(Error::NoCopy);
    }
    let mut compare = Compare { from, to, progress, shown: CopyProgress::default(), crc: 0 };
    let (collections, copied) = (super::contents(from)?, super::contents(to)?);
    if collections != copied {
        return Err(differs(format!("collections: {} in the source, {} in the copy", collections.len(), copied.len())));
    }
    for collection in &collections {
        for name in names(from, collection, None) {
            name?;
            compare.shown.objects_total += 1;
        }
    }
    for collection in &collections {
        compare.digest(b'C', &[collection.name()]);
        let mut copied = names(to, collection, None);
        for name in names(from, collection, None) {
            let id = ObjectId::new(collection.clone(), name?);
            same(copied.next().transpose()?.as_ref() == Some(id.name()), || {
                format!("{id}: not in the copy in its place")
            })?;
            compare.object(&id)?;
        }
        same(copied.next().is_none(), || format!("{collection}: the copy has more objects"))?;
    }
    Mark::end(to)?;
    let CopyProgress { objects, bytes, .. } = compare.shown;
    Ok(VerifyReport { collections: collections.len() as u64, objects, bytes, crc: compare.crc })
}

fn differs(what: String) -> Error {
    Error::CopyDiffers { what }
}

fn same(holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(differs(what())) }
}

/// Runs of data with those that touch joined.
struct Joined<'a> {
    runs: Runs<'a>,
    next: Option<DataRun>,
}

impl Iterator for Joined<'_> {
    type Item = Result<DataRun>;

    fn next(&mut self) -> Option<Result<DataRun>> {
        loop {
            match (self.runs.next(), &mut self.next) {
                (None, next) => return next.take().map(Ok),
                (Some(Err(error)), _) => return Some(Err(error)),
                (Some(Ok(run)), Some(next)) if next.offset + next.len == run.offset => next.len += run.len,
                (Some(Ok(run)), next) => {
                    if let Some(done) = next.replace(run) {
                        return Some(Ok(done));
                    }
                }
            }
        }
    }
}

struct Compare<'a> {
    from: &'a dyn ObjectStore,
    to: &'a dyn ObjectStore,
    progress: &'a mut dyn FnMut(CopyProgress),
    shown: CopyProgress,
    crc: u32,
}

impl Compare<'_> {
    /// Takes parts into the checksum, with their kind and lengths, so that no two contents look alike.
    fn digest(&mut self, kind: u8, parts: &[&[u8]]) {
        self.crc = crc32c::crc32c_append(self.crc, &[kind]);
        for part in parts {
            self.crc = crc32c::crc32c_append(self.crc, &(part.len() as u64).to_le_bytes());
            self.crc = crc32c::crc32c_append(self.crc, part);
        }
    }

    fn object(&mut self, id: &ObjectId) -> Result<()> {
        let (from, to) = (self.from, self.to);
        let (stat, copied) = (from.stat(id).wait()?, to.stat(id).wait()?);
        same(stat == copied, || format!("{id}: {stat:?} in the source, {copied:?} in the copy"))?;
        let size = stat.unwrap_or_default().size;
        self.digest(b'N', &[id.name(), &size.to_le_bytes()]);
        self.bytes(id, size)?;
        let xattrs = from.xattrs(id).wait()?;
        same(xattrs == to.xattrs(id).wait()?, || format!("{id}: attributes differ"))?;
        for (name, value) in &xattrs {
            self.count(name.len() + value.len());
            self.digest(b'A', &[name, value]);
        }
        let mut copied = omap(to, id, None);
        for entry in omap(from, id, None) {
            let (key, value) = entry?;
            let found = copied.next().transpose()?;
            same(found.as_ref() == Some(&(key.clone(), value.clone())), || {
                format!("{id}: omap key {}", key.escape_ascii())
            })?;
            self.count(key.len() + value.len());
            self.digest(b'O', &[&key, &value]);
        }
        same(copied.next().is_none(), || format!("{id}: the copy has more omap keys"))?;
        let mut copied = slots(to, id, None);
        for entry in slots(from, id, None) {
            let (index, value) = entry?;
            let found = copied.next().transpose()?;
            same(found.as_ref() == Some(&(index, value.clone())), || format!("{id}: slot {index}"))?;
            self.count(8 + value.len());
            self.digest(b'S', &[&index.to_le_bytes(), &value]);
        }
        same(copied.next().is_none(), || format!("{id}: the copy has more slots"))?;
        self.shown.objects += 1;
        (self.progress)(self.shown);
        Ok(())
    }

    fn bytes(&mut self, id: &ObjectId, size: u64) -> Result<()> {
        let joined = |store| Joined { runs: Runs::new(store, id, 0..size), next: None };
        let mut copied = joined(self.to);
        for run in joined(self.from) {
            let run = run?;
            let found = copied.next().transpose()?;
            same(found == Some(run), || format!("{id}: data at {run:?} in the source, {found:?} in the copy"))?;
            self.digest(b'E', &[&run.offset.to_le_bytes(), &run.len.to_le_bytes()]);
            let (mut offset, end) = (run.offset, run.offset + run.len);
            while offset < end {
                let piece = offset..end.min(offset + READ_BYTES);
                let data: Bytes = self.from.read(id, piece.clone()).wait()?;
                let whole = data.len() as u64 == piece.end - piece.start;
                same(whole && data == self.to.read(id, piece.clone()).wait()?, || format!("{id}: bytes {piece:?}"))?;
                self.count(data.len());
                self.crc = crc32c::crc32c_append(self.crc, &data);
                offset = piece.end;
                (self.progress)(self.shown);
            }
        }
        same(copied.next().is_none(), || format!("{id}: the copy has more data"))
    }

    fn count(&mut self, bytes: usize) {
        self.shown.bytes += bytes as u64;
    }
}

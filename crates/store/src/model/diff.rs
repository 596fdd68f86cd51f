//! Comparing a store with the model: everything readable, through every read call, first difference wins.
//!
//! Invariant: a difference names the object, the space and the place, so that a failing seed can be understood.

use bytes::Bytes;

use super::object::Object;
use super::state::Model;
use crate::{Collection, DataRun, Error, ObjectId, ObjectStore, OmapScan, SlotScan};

/// Largest span of bytes read at once.
const READ_BYTES: u64 = 1 << 20;
/// Objects up to this size are read whole, holes included; of larger ones the data and a little around it.
const WHOLE_BYTES: u64 = 4 << 20;

/// A difference, or a read that failed.
struct Difference(String);

type Check = Result<(), Difference>;

impl From<(&str, Error)> for Difference {
    fn from((what, error): (&str, Error)) -> Self {
        Self(format!("{what} failed: {error}"))
    }
}

fn same<T: PartialEq + std::fmt::Debug>(place: impl FnOnce() -> String, expected: &T, found: &T) -> Check {
    if expected == found {
        return Ok(());
    }
    Err(Difference(format!("{}: expected {}, found {}", place(), short(expected), short(found))))
}

/// A value's debug form, cut to what a person reads.
fn short(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    if text.len() <= 400 {
        return text;
    }
    let cut = (0..=400).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}… ({} characters)", &text[..cut], text.len())
}

/// The first place where two lists differ.
fn same_list<T: PartialEq + std::fmt::Debug>(place: &str, expected: &[T], found: &[T]) -> Check {
    for (at, (expected, found)) in expected.iter().zip(found).enumerate() {
        same(|| format!("{place}, entry {at}"), expected, found)?;
    }
    let (place, shorter) =
        (format!("{place}, entry {}", expected.len().min(found.len())), expected.len().min(found.len()));
    same(|| place, &expected.get(shorter), &found.get(shorter))
}

impl Model {
    /// The first difference between what the store shows and what the model holds, in words; `None` if they agree.
    /// A read that fails is a difference.
    pub fn diff(&self, store: &dyn ObjectStore) -> Option<String> {
        self.compare(store).err().map(|difference| difference.0)
    }

    fn compare(&self, store: &dyn ObjectStore) -> Check {
        let found = store.collections().wait().map_err(|error| ("collections", error))?;
        let expected: Vec<Collection> = self.collections.iter().cloned().collect();
        same_list("collections", &expected, &found)?;
        for collection in &expected {
            let names: Vec<Bytes> =
                self.objects.keys().filter(|id| id.collection() == collection).map(|id| id.name().clone()).collect();
            same_list(&format!("objects of {collection}"), &names, &list(store, collection)?)?;
        }
        for (id, object) in &self.objects {
            compare_object(store, id, object)?;
        }
        Ok(())
    }

    /// The first difference between the store and the model in these objects alone, whether they should exist or not.
    pub fn diff_objects<'a>(
        &self,
        store: &dyn ObjectStore,
        ids: impl IntoIterator<Item = &'a ObjectId>,
    ) -> Option<String> {
        let compare = |id: &ObjectId| match self.objects.get(id) {
            Some(object) => compare_object(store, id, object),
            None => {
                let found = store.stat(id).wait().map_err(|error| ("stat", error))?;
                same(|| format!("{id}: stat"), &None, &found)
            }
        };
        ids.into_iter().find_map(|id| compare(id).err()).map(|difference| difference.0)
    }
}

fn list(store: &dyn ObjectStore, collection: &Collection) -> Result<Vec<Bytes>, Difference> {
    let mut names: Vec<Bytes> = Vec::new();
    loop {
        let page = store.list(collection, names.last().map(|name| &name[..]), 1000).wait();
        let page = page.map_err(|error| ("list", error))?;
        if page.is_empty() {
            return Ok(names);
        }
        names.extend(page);
    }
}

fn compare_object(store: &dyn ObjectStore, id: &ObjectId, object: &Object) -> Check {
    let stat = store.stat(id).wait().map_err(|error| ("stat", error))?;
    same(|| format!("{id}: stat"), &Some(object.stat()), &stat)?;
    compare_bytes(store, id, object)?;

    let xattrs = store.xattrs(id).wait().map_err(|error| ("xattrs", error))?;
    let expected: Vec<_> = object.xattrs.clone().into_iter().collect();
    same_list(&format!("{id}: xattrs"), &expected, &xattrs)?;

    let omap = omap(store, id)?;
    let expected: Vec<_> = object.omap.clone().into_iter().collect();
    same_list(&format!("{id}: omap"), &expected, &omap)?;
    let mut keys: Vec<Bytes> = object.omap.keys().cloned().collect();
    keys.push(Bytes::from_static(b"no such key"));
    let found = store.omap_get_many(id, &keys).wait().map_err(|error| ("omap_get_many", error))?;
    let expected: Vec<_> = keys.iter().map(|key| object.omap.get(key).cloned()).collect();
    same_list(&format!("{id}: omap_get_many"), &expected, &found)?;
    let found = store.omap_has_many(id, &keys).wait().map_err(|error| ("omap_has_many", error))?;
    let expected: Vec<bool> = expected.iter().map(Option::is_some).collect();
    same_list(&format!("{id}: omap_has_many"), &expected, &found)?;

    let slots = slots(store, id)?;
    let expected: Vec<_> = object.slots.clone().into_iter().collect();
    same_list(&format!("{id}: slots"), &expected, &slots)?;
    let indexes: Vec<u64> = object.slots.keys().flat_map(|index| [*index, index.wrapping_add(1)]).collect();
    let found = store.slot_get_many(id, &indexes).wait().map_err(|error| ("slot_get_many", error))?;
    let expected: Vec<_> = indexes.iter().map(|index| object.slots.get(index).cloned()).collect();
    same_list(&format!("{id}: slot_get_many"), &expected, &found)
}

/// Runs of a store that does not tell them exactly: all that is not zero, within the object.
fn told_about(id: &ObjectId, object: &Object, runs: &[DataRun], found: &[DataRun]) -> Check {
    if let Some(run) = found.iter().find(|run| run.len == 0 || run.offset + run.len > object.size) {
        return Err(Difference(format!("{id}: {run:?} is told of an object of {} bytes", object.size)));
    }
    for run in runs {
        for (at, byte) in (run.offset..).zip(object.read(run.offset, run.offset + run.len)) {
            let inside = found.iter().any(|told| (told.offset..told.offset + told.len).contains(&at));
            if byte != 0 && !inside {
                return Err(Difference(format!("{id}: byte {at} is told as a hole: {found:?}")));
            }
        }
    }
    Ok(())
}

fn compare_bytes(store: &dyn ObjectStore, id: &ObjectId, object: &Object) -> Check {
    let runs = object.runs();
    let found = store.extents(id, 0..u64::MAX).wait().map_err(|error| ("extents", error))?;
    if store.capability().exact_extents {
        same_list(&format!("{id}: extents"), &runs, &found)?;
    } else {
        told_about(id, object, &runs, &found)?;
    }
    let spans: Vec<DataRun> = if object.size <= WHOLE_BYTES {
        vec![DataRun { offset: 0, len: object.size + 1 }]
    } else {
        let around = |run: &DataRun| {
            let offset = run.offset.saturating_sub(10);
            DataRun { offset, len: run.offset + run.len + 10 - offset }
        };
        runs.iter().map(around).chain([DataRun { offset: object.size - 10, len: 20 }]).collect()
    };
    for span in spans {
        let mut at = span.offset;
        while at < span.offset + span.len {
            let end = (at + READ_BYTES).min(span.offset + span.len);
            let found = store.read(id, at..end).wait().map_err(|error| ("read", error))?;
            let expected = object.read(at, end);
            if expected != found {
                let place = expected.iter().zip(&found).position(|(a, b)| a != b);
                let place = place.unwrap_or(expected.len().min(found.len()));
                return Err(Difference(format!(
                    "{id}: read {at}..{end} differs at offset {}: expected {:?} ({} bytes), found {:?} ({} bytes)",
                    at + place as u64,
                    &expected[place..expected.len().min(place + 8)],
                    expected.len(),
                    &found[place..found.len().min(place + 8)],
                    found.len(),
                )));
            }
            at = end;
        }
    }
    Ok(())
}

fn omap(store: &dyn ObjectStore, id: &ObjectId) -> Result<Vec<(Bytes, Bytes)>, Difference> {
    let mut scan = OmapScan { limit: 1000, ..OmapScan::default() };
    let mut entries: Vec<(Bytes, Bytes)> = Vec::new();
    loop {
        let page = store.omap_scan(id, &scan).wait().map_err(|error| ("omap_scan", error))?;
        let Some((last, _)) = page.last() else { return Ok(entries) };
        // The least key above the last one.
        scan.start = Some([&last[..], &[0]].concat().into());
        entries.extend(page);
    }
}

fn slots(store: &dyn ObjectStore, id: &ObjectId) -> Result<Vec<(u64, Bytes)>, Difference> {
    let mut scan = SlotScan { range: 0..u64::MAX, reverse: false, limit: 1000, keys_only: false };
    let mut entries: Vec<(u64, Bytes)> = Vec::new();
    loop {
        let page = store.slot_scan(id, &scan).wait().map_err(|error| ("slot_scan", error))?;
        let Some((last, _)) = page.last() else { return Ok(entries) };
        let next = last.checked_add(1);
        entries.extend(page);
        match next {
            Some(next) => scan.range.start = next,
            None => return Ok(entries),
        }
    }
}

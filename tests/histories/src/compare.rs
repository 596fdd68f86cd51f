//! Whether stores that no server has open hold the same objects, whatever their devices look like.
//!
//! store → each object, in order: size, bytes, attributes, ordered keys, slots → a line for each → compared
//!
//! What a chain notes of itself is another for each replica, and is left out.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Bound;

use clap::Args;
use esker::Store;
use esker::objects::limits::SCAN_ENTRIES_MAX;
use esker::objects::{Collection, ObjectId, ObjectStore, OmapScan, SlotScan};

use crate::terms::Failure;

/// What chains note of themselves.
const OWN: &[u8] = b"esker.chain";
/// So much of an object is read at once.
const READ_BYTES: u64 = 1 << 20;
/// So many names of objects are listed at once.
const LIST: usize = 1_000;
/// Most differences that are named.
const NAMED_MAX: usize = 10;

/// What is compared.
#[derive(Args, Clone, Debug)]
pub struct CompareSettings {
    /// Locations of the stores.
    #[arg(required = true, num_args = 2..)]
    stores: Vec<String>,
}

/// What a store holds: how many entries and bytes each object has, and their digest.
type Contents = BTreeMap<String, (u64, u64, u64)>;

#[derive(Default)]
struct Sum {
    digest: DefaultHasher,
    entries: u64,
    bytes: u64,
}

impl Sum {
    fn take(&mut self, kind: u8, key: &[u8], value: &[u8]) {
        (kind, key, value).hash(&mut self.digest);
        self.entries += 1;
        self.bytes += (key.len() + value.len()) as u64;
    }
}

fn object(store: &dyn ObjectStore, id: &ObjectId) -> Result<(u64, u64, u64), Failure> {
    let mut sum = Sum::default();
    let stat = store.stat(id).wait()?.ok_or_else(|| format!("{id:?} is listed and not there"))?;
    sum.take(0, b"", &stat.size.to_le_bytes());
    for from in (0..stat.size).step_by(READ_BYTES as usize) {
        let bytes = store.read(id, from..(from + READ_BYTES).min(stat.size)).wait()?;
        sum.take(1, &from.to_le_bytes(), &bytes);
    }
    let mut xattrs = store.xattrs(id).wait()?;
    xattrs.sort();
    xattrs.iter().for_each(|(name, value)| sum.take(2, name, value));
    let mut start = None;
    loop {
        let scan = OmapScan { start, end: None, reverse: false, limit: SCAN_ENTRIES_MAX, keys_only: false };
        let page = store.omap_scan(id, &scan).wait()?;
        page.iter().for_each(|(key, value)| sum.take(3, key, value));
        let Some((last, _)) = page.last() else { break };
        // The least key above it.
        start = Some([&last[..], &[0]].concat().into());
    }
    let mut from = Bound::Included(0);
    while let Bound::Included(first) = from {
        let scan = SlotScan { range: first..u64::MAX, reverse: false, limit: SCAN_ENTRIES_MAX, keys_only: false };
        let page = store.slot_scan(id, &scan).wait()?;
        page.iter().for_each(|(slot, value)| sum.take(4, &slot.to_le_bytes(), value));
        from = page.last().and_then(|(last, _)| last.checked_add(1)).map_or(Bound::Unbounded, Bound::Included);
    }
    Ok((sum.entries, sum.bytes, sum.digest.finish()))
}

fn contents(location: &str) -> Result<Contents, Failure> {
    let store = Store::builder().expire_interval(std::time::Duration::ZERO).open(location)?;
    let (objects, mut held) = (store.objects(), Contents::new());
    for collection in objects.collections().wait()? {
        if collection.name().as_ref() == OWN {
            continue;
        }
        held.insert(format!("{collection:?}"), (0, 0, 0));
        let mut after = None;
        loop {
            let names = objects.list(&collection, after.as_deref(), LIST).wait()?;
            for name in &names {
                let id = ObjectId::new(Collection::clone(&collection), name.clone());
                held.insert(format!("{id:?}"), object(&*objects, &id)?);
            }
            after = match names.last() {
                Some(last) => Some(last.to_vec()),
                None => break,
            };
        }
    }
    Ok(held)
}

/// Prints what the first holds, and fails where another holds something else.
pub fn compare(settings: &CompareSettings) -> Result<(), Failure> {
    let mut first: Option<(&String, Contents)> = None;
    let mut differ = Vec::new();
    for location in &settings.stores {
        let held = contents(location).map_err(|error| format!("{location}: {error}"))?;
        let Some((name, other)) = &first else {
            let (entries, bytes) = held.values().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            println!("{location}: {} objects and collections, {entries} entries, {bytes} bytes", held.len());
            first = Some((location, held));
            continue;
        };
        for object in other.keys().chain(held.keys().filter(|object| !other.contains_key(*object))) {
            if other.get(object) != held.get(object) {
                let (there, here) = (other.get(object), held.get(object));
                differ.push(format!("{object}: {there:?} in {name}, {here:?} in {location}"));
            }
        }
    }
    if differ.is_empty() {
        return Ok(());
    }
    let more = differ.len().saturating_sub(NAMED_MAX);
    differ.truncate(NAMED_MAX);
    Err(format!("not the same:\n{}\nand {more} more", differ.join("\n")).into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_differs_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let stores: Vec<String> = ["a", "b"].map(|name| folder.path().join(name).display().to_string()).into();
        let put = |location: &String, value: &str| {
            let store = Store::open(&format!("{location}?size=64m")).unwrap();
            let keys = store.kv().unwrap().namespace("n", esker::kv::Kind::Bytes).unwrap();
            keys.put(esker::kv::Key::Bytes(b"k"), value).wait().unwrap();
            store.close().unwrap();
        };
        stores.iter().for_each(|store| put(store, "one"));
        compare(&CompareSettings { stores: stores.clone() }).unwrap();
        put(&stores[1], "two");
        assert!(compare(&CompareSettings { stores }).unwrap_err().to_string().starts_with("not the same"));
    }
}

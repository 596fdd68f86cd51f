//! An ordered map in memory: the reference for [`Ordered`], and what the default build is tested with.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use esker_store::Result;
use parking_lot::RwLock;

use crate::ordered::{Batch, Cursor, Entry, Ordered};

/// Keys and values in memory, gone with the process.
#[derive(Debug, Default)]
pub struct Tree {
    map: RwLock<BTreeMap<Bytes, Bytes>>,
}

impl Tree {
    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }
}

/// What stood in the range when the cursor was made.
struct Found {
    entries: Vec<(Bytes, Bytes)>,
    at: usize,
}

impl Cursor for Found {
    fn next(&mut self) -> Result<Option<Entry<'_>>> {
        self.at += 1;
        Ok(self.entries.get(self.at - 1).map(|(key, value)| (&key[..], &value[..])))
    }
}

impl Ordered for Tree {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.map.read().get(key).cloned())
    }

    fn cursor(&self, start: &[u8], end: &[u8], reverse: bool) -> Result<Box<dyn Cursor + '_>> {
        let mut entries: Vec<(Bytes, Bytes)> = Vec::new();
        if start < end {
            let map = self.map.read();
            let range = map.range::<[u8], _>((Bound::Included(start), Bound::Excluded(end)));
            entries.extend(range.map(|(key, value)| (key.clone(), value.clone())));
        }
        if reverse {
            entries.reverse();
        }
        Ok(Box::new(Found { entries, at: 0 }))
    }

    fn write(&self, batch: &Batch, _sync: bool) -> Result<()> {
        let mut map = self.map.write();
        for (start, end) in &batch.ranges {
            let mut taken = map.split_off(start);
            map.append(&mut taken.split_off(end));
        }
        for (key, value) in &batch.entries {
            match value {
                Some(value) => map.insert(key.clone(), value.clone()),
                None => map.remove(key),
            };
        }
        Ok(())
    }

    fn removes_ranges(&self) -> bool {
        true
    }

    fn compact(&self, _start: &[u8], _end: &[u8]) {}

    fn persistent(&self) -> bool {
        false
    }
}

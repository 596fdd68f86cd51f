//! Stores of every kind in temporary folders, for the suites that every backend passes.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::path::Path;
use std::sync::Arc;

use esker_keyvalue::{Batch, Cursor, KeyValueStore, Kind, Options, Ordered, StripLen, Tree};
use esker_store::contract::{Harness, Opened};
use esker_store::{ObjectStore, Result};

/// Options with this strip; small writes go to files too, so that newstore has something to do.
pub fn options(strip: StripLen) -> Options {
    Options { strip: Some(strip), cache_bytes: 8 << 20, large_bytes: 3_000, ..Options::default() }
}

/// Makes stores of a kind in temporary folders.
pub struct InFolder {
    pub kind: Kind,
    pub strip: StripLen,
}

struct Folder {
    store: Option<KeyValueStore>,
    kind: Kind,
    options: Options,
    folder: tempfile::TempDir,
}

impl Harness for InFolder {
    fn fresh(&self) -> Box<dyn Opened> {
        let folder = tempfile::tempdir().unwrap();
        let options = options(self.strip);
        let store = Some(open(self.kind, folder.path(), &options));
        Box::new(Folder { store, kind: self.kind, options, folder })
    }
}

pub fn open(kind: Kind, path: &Path, options: &Options) -> KeyValueStore {
    KeyValueStore::open(kind, path, options).unwrap_or_else(|error| panic!("{error}"))
}

impl Opened for Folder {
    fn store(&self) -> &dyn ObjectStore {
        self.store.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        drop(self.store.take());
        self.store = Some(open(self.kind, self.folder.path(), &self.options));
    }
}

/// A tree that outlives its store, so that reopening can be tested without a disk.
pub struct Kept(pub Arc<Tree>);

impl Ordered for Kept {
    fn get(&self, key: &[u8]) -> Result<Option<bytes::Bytes>> {
        self.0.get(key)
    }
    fn cursor(&self, start: &[u8], end: &[u8], reverse: bool) -> Result<Box<dyn Cursor + '_>> {
        self.0.cursor(start, end, reverse)
    }
    fn write(&self, batch: &Batch, sync: bool) -> Result<()> {
        self.0.write(batch, sync)
    }
    fn removes_ranges(&self) -> bool {
        self.0.removes_ranges()
    }
    fn compact(&self, start: &[u8], end: &[u8]) {
        self.0.compact(start, end);
    }
    fn persistent(&self) -> bool {
        true
    }
}

/// Makes stores on trees.
pub struct OnTree {
    pub strip: StripLen,
}

struct Rooted {
    store: Option<KeyValueStore>,
    tree: Arc<Tree>,
    options: Options,
}

impl Harness for OnTree {
    fn fresh(&self) -> Box<dyn Opened> {
        let (tree, options) = (Arc::new(Tree::new()), options(self.strip));
        let store = Some(KeyValueStore::over(Box::new(Kept(Arc::clone(&tree))), &options).unwrap());
        Box::new(Rooted { store, tree, options })
    }
}

impl Opened for Rooted {
    fn store(&self) -> &dyn ObjectStore {
        self.store.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        drop(self.store.take());
        self.store = Some(KeyValueStore::over(Box::new(Kept(Arc::clone(&self.tree))), &self.options).unwrap());
    }
}

/// Every harness of this build, with its name.
pub fn harnesses(strip: StripLen) -> Vec<(String, Box<dyn Harness>)> {
    let mut all: Vec<(String, Box<dyn Harness>)> = vec![(format!("tree, strip {strip}"), Box::new(OnTree { strip }))];
    for kind in [Kind::RocksDb, Kind::LevelDb, Kind::NewStore] {
        if kind.is_built_in() {
            all.push((format!("{}, strip {strip}", kind.name()), Box::new(InFolder { kind, strip })));
        }
    }
    all
}

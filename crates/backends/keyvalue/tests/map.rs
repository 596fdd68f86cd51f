//! The map's suite on RocksDB and LevelDB, where they are built in.

#![cfg(any(feature = "rocksdb", feature = "leveldb"))]
#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_keyvalue::{KeyValueStore, Kind, Options};
use esker_map::contract::{Harness, Opened};
use esker_map::{MapStorage, TableName, Waist};
use tempfile::TempDir;

struct In(Kind);

struct InFolder {
    map: Waist,
    time: Arc<AtomicU64>,
    _folder: TempDir,
}

fn open(store: Arc<KeyValueStore>, time: &Arc<AtomicU64>) -> Waist {
    let time = Arc::clone(time);
    Waist::open(store, Arc::new(move || time.load(Ordering::SeqCst)), [3; 32]).unwrap()
}

impl Harness for In {
    fn fresh(&self) -> Box<dyn Opened> {
        let folder = tempfile::tempdir().unwrap();
        let store =
            KeyValueStore::open(self.0, folder.path(), &Options { create: true, ..Options::default() }).unwrap();
        let time = Arc::default();
        Box::new(InFolder { map: open(Arc::new(store), &time), time, _folder: folder })
    }

    fn rounds(&self) -> u64 {
        300
    }
}

impl Opened for InFolder {
    fn storage(&self) -> Arc<dyn MapStorage> {
        Arc::new(self.map.clone())
    }

    fn another(&self) -> Arc<dyn MapStorage> {
        let time = Arc::clone(&self.time);
        let clock = Arc::new(move || time.load(Ordering::SeqCst));
        Arc::new(Waist::open(Arc::clone(self.map.store()), clock, [4; 32]).unwrap())
    }

    fn now_ms(&self) -> u64 {
        self.time.load(Ordering::SeqCst)
    }

    fn set_ms(&self, now_ms: u64) {
        self.time.store(now_ms, Ordering::SeqCst);
    }

    fn sweep(&self, table: &TableName) {
        self.map.sweep(table).unwrap();
    }
}

#[cfg(feature = "rocksdb")]
mod rocksdb {
    esker_map::map_suite!(super::In(super::Kind::RocksDb));
}

#[cfg(feature = "leveldb")]
mod leveldb {
    esker_map::map_suite!(super::In(super::Kind::LevelDb));
}

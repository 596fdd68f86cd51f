//! File stores on temporary folders, for the suites that every backend passes.
//!
//! Checkpoints come often and folders are split early, so that little stores meet both.

use esker_file::{FileStore, Options};
use esker_store::ObjectStore;
use esker_store::contract::{Harness, Opened};

/// Makes stores on temporary folders.
pub struct OnFolder;

struct Store {
    folder: tempfile::TempDir,
    store: Option<FileStore>,
}

pub fn options() -> Options {
    Options { checkpoint_bytes: 100_000, folder_files_max: 3, ..Options::default() }
}

impl Harness for OnFolder {
    fn fresh(&self) -> Box<dyn Opened> {
        let folder = tempfile::tempdir().unwrap();
        let store = Some(FileStore::open(folder.path(), options()).unwrap());
        Box::new(Store { folder, store })
    }
}

impl Opened for Store {
    fn store(&self) -> &dyn ObjectStore {
        self.store.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        self.store.take().unwrap().close().unwrap();
        self.store = Some(FileStore::open(self.folder.path(), options()).unwrap());
    }
}

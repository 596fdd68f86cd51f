//! [`FileStore`]: opening and closing, and the reads.
//!
//! [`FileStore::open`] → marker, table, journal → [`Core::recover`] → reads from a snapshot of the table and from files
//!
//! Invariants:
//! 1. A read of rows sees one snapshot; a read of files holds off the application of the next group meanwhile.
//! 2. When [`FileStore::close`] returns, nothing of the store is open and the folder is free.

use std::ops::{Bound, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use esker_store::limits::{OBJECT_BYTES_MAX, SCAN_BYTES_MAX, SCAN_ENTRIES_MAX, TRANSACTION_BYTES_MAX, Together};
use esker_store::{
    Capability, Collection, CommitCursor, CommitEntry, CommitSeq, Completion, DataRun, Error as StoreError, ObjectId,
    ObjectStore, OmapScan, Result, SlotScan, Stat, Transaction,
};
use parking_lot::RwLock;
use redb::{Database, ReadOnlyTable, ReadableDatabase};

use crate::Error;
use crate::commit::Core;
use crate::data::{Data, OBJECTS, STAGING};
use crate::files::{Files, FolderFiles};
use crate::journal::Journal;
use crate::marker::{KIND, MARKER, Marker, VERSION};
use crate::options::Options;
use crate::table::{self, Head, Position, Read, Row, TABLE, failed, key, key_end};
use crate::table_file::TableFile;

/// Name of the table's file.
const TABLE_FILE: &str = "table";
/// Name of the journal's file.
const JOURNAL_FILE: &str = "journal";

/// An object store on plain files.
pub struct FileStore {
    core: RwLock<Option<Arc<Core>>>,
    files: Arc<dyn Files>,
    made: bool,
    syncs: Arc<AtomicU64>,
}

impl std::fmt::Debug for FileStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileStore").field("files", &self.files).finish_non_exhaustive()
    }
}

impl FileStore {
    /// Opens the store in the folder `path`, making it if there is none (see [`Options::create`]).
    ///
    /// # Errors
    /// All of [`Error`]'s. A folder that holds something else is left as it is.
    pub fn open(path: &Path, options: Options) -> std::result::Result<Self, Error> {
        let io = |what, source| Error::Io { what, path: path.to_path_buf(), source };
        if !path.exists() {
            if !options.create {
                return Err(Error::NotFound { path: path.to_path_buf() });
            }
            make_folder(path).map_err(|source| io("making", source))?;
        }
        if !path.is_dir() {
            return Err(Error::Foreign { path: path.to_path_buf(), found: "a file".into() });
        }
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path).map_err(|source| io("reading", source))? {
            names.push(entry.map_err(|source| io("reading", source))?.file_name().to_string_lossy().into_owned());
        }
        // The lock and the marker's first draft are all that the making of a store leaves before its marker.
        names.retain(|name| name != "lock" && *name != format!("{MARKER}.new"));
        if !names.is_empty() && !names.iter().any(|name| name == MARKER) {
            names.sort();
            names.truncate(5);
            return Err(Error::Foreign { path: path.to_path_buf(), found: names.join(", ") });
        }
        let syncs = Arc::<AtomicU64>::default();
        let mut store = Self::open_on(Arc::new(FolderFiles::new(path, Arc::clone(&syncs))), path, options)?;
        store.syncs = syncs;
        if store.made {
            // The folder's own name, even if another process made it.
            sync_folder(&parent(path)).map_err(|source| io("syncing the folder above", source))?;
        }
        Ok(store)
    }

    /// Opens the store in `files`; `path` is for messages.
    ///
    /// # Errors
    /// As [`FileStore::open`].
    pub fn open_on(files: Arc<dyn Files>, path: &Path, options: Options) -> std::result::Result<Self, Error> {
        let io = |what| move |source| Error::Io { what, path: path.to_path_buf(), source };
        if !files.lock().map_err(io("locking"))? {
            return Err(Error::InUse { path: path.to_path_buf() });
        }
        let opened = Self::open_locked(Arc::clone(&files), path, options);
        if opened.is_err() {
            files.unlock();
        }
        opened
    }

    fn open_locked(files: Arc<dyn Files>, path: &Path, options: Options) -> std::result::Result<Self, Error> {
        let io = |what| move |source| Error::Io { what, path: path.to_path_buf(), source };
        let marker = Marker::read(&*files).map_err(io("reading the marker of"))?;
        match &marker {
            Some(marker) if marker.kind != KIND => {
                return Err(Error::Foreign {
                    path: path.to_path_buf(),
                    found: format!("a store of kind {}", marker.kind),
                });
            }
            Some(marker) if marker.version > VERSION => {
                return Err(Error::Newer { path: path.to_path_buf(), found: marker.version, known: VERSION });
            }
            Some(marker) if !marker.whole && !options.create => {
                return Err(Error::HalfMade { path: path.to_path_buf() });
            }
            None if !options.create => return Err(Error::NotFound { path: path.to_path_buf() }),
            _ => {}
        }
        let making = marker.is_none_or(|marker| !marker.whole);
        if making {
            make(&*files).map_err(io("making"))?;
        }
        // A process that died may have left names that are not durable, the marker's among them.
        files.sync_folder("").map_err(io("syncing"))?;
        let frozen = Arc::new(AtomicBool::new(false));
        let missing = |what| io(what)(std::io::ErrorKind::NotFound.into());
        let table_file = files.open(TABLE_FILE, making).map_err(io("opening the table of"))?;
        let table_file = table_file.ok_or_else(|| missing("opening the table of"))?;
        // A sync that failed before the process died may have left what is only in memory.
        table_file.forget().map_err(io("opening the table of"))?;
        let table_file = TableFile::new(table_file, Arc::clone(&frozen));
        let cache_bytes = usize::try_from(options.cache_bytes).unwrap_or(usize::MAX);
        let db = Database::builder().set_cache_size(cache_bytes).create_with_backend(table_file).map_err(failed)?;
        let journal = files.open(JOURNAL_FILE, making).map_err(io("opening the journal of"))?;
        let journal = journal.ok_or_else(|| missing("opening the journal of"))?;
        let (position, folders) = start(&db)?;
        let data = Data::new(Arc::clone(&files), folders);
        let journal = Journal::new(journal, position.generation);
        let core = Core::recover(db, data, journal, position, options, frozen)?;
        if making {
            files.sync_folder("").map_err(io("syncing"))?;
            let marker = Marker { kind: KIND.into(), version: VERSION, whole: true };
            marker.write(&*files).map_err(io("writing the marker of"))?;
        }
        Ok(Self { core: RwLock::new(Some(Arc::new(core))), files, made: making, syncs: Arc::default() })
    }

    /// Syncs of files and folders since the store was opened with [`FileStore::open`].
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Whether opening made the store.
    pub fn made(&self) -> bool {
        self.made
    }

    /// Closes the store: a last checkpoint, after which opening has nothing to do again. Calls under way are waited
    /// for, later ones are refused. Does nothing the second time.
    ///
    /// # Errors
    /// The failure that stopped the store, if one has.
    pub fn close(&self) -> Result<()> {
        let Some(core) = self.core.write().take() else { return Ok(()) };
        while Arc::strong_count(&core) > 1 {
            std::thread::sleep(Duration::from_micros(100));
        }
        let finished = core.finish();
        drop(core);
        self.files.unlock();
        finished
    }

    fn core(&self) -> Result<Arc<Core>> {
        self.core.read().clone().ok_or(StoreError::Closed)
    }

    /// Looks at the rows of an object, as they are at one moment; a missing one looks like an empty one.
    fn look<R: Default>(
        &self,
        object: &ObjectId,
        look: impl FnOnce(&ReadOnlyTable<Row, Row>, &Head) -> Result<R>,
    ) -> Completion<R> {
        Completion::ready(self.core().and_then(|core| {
            let table = snapshot(&core)?;
            table::head(&table, object)?.map_or(Ok(R::default()), |head| look(&table, &head))
        }))
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "closing the store failed");
        }
    }
}

/// The folder that holds a path's last name.
fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        Some(_) => ".".into(),
        None => path.to_path_buf(),
    }
}

/// The folders that get a new name when `path` is made.
fn growing_folders(path: &Path) -> Vec<PathBuf> {
    path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).map(parent).collect()
}

fn sync_folder(path: &Path) -> std::io::Result<()> {
    std::fs::File::open(path)?.sync_all()
}

/// Makes a folder and those above it, and makes their names durable.
fn make_folder(path: &Path) -> std::io::Result<()> {
    let growing = growing_folders(path);
    std::fs::create_dir_all(path)?;
    growing.iter().try_for_each(|folder| sync_folder(folder))
}

/// Makes the files and folders of a new store.
fn make(files: &dyn Files) -> std::io::Result<()> {
    Marker { kind: KIND.into(), version: VERSION, whole: false }.write(files)?;
    // What an interrupted making left.
    files.remove(TABLE_FILE)?;
    files.remove(JOURNAL_FILE)?;
    files.make_folder(OBJECTS)?;
    files.make_folder(STAGING)
}

/// What the table knows about where to begin.
fn start(db: &Database) -> Result<(Position, Vec<(String, table::Folder)>)> {
    let mut write = db.begin_write().map_err(failed)?;
    write.set_quick_repair(true);
    let start = {
        let table = write.open_table(TABLE).map_err(failed)?;
        (Position::read(&table)?, table::folders(&table)?)
    };
    // Makes the table where it is new.
    write.commit().map_err(failed)?;
    Ok(start)
}

fn snapshot(core: &Core) -> Result<ReadOnlyTable<Row, Row>> {
    core.db.begin_read().map_err(failed)?.open_table(TABLE).map_err(failed)
}

/// Entries of a range, as a scan asks for them.
fn scan<K>(
    table: &impl Read,
    range: (Bound<&[u8]>, Bound<&[u8]>),
    (reverse, limit, keys_only): (bool, usize, bool),
    parse: impl Fn(&[u8]) -> Option<K>,
) -> Result<Vec<(K, Bytes)>> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    let limit = limit.min(SCAN_ENTRIES_MAX);
    if limit == 0 {
        return Ok(found);
    }
    table.rows(range, reverse, &mut |key, value| {
        let value = if keys_only { &[] } else { value };
        bytes += key.len() - 9 + value.len();
        let Some(key) = parse(&key[9..]) else {
            return Err(StoreError::Corrupt {
                offset: 0,
                what: "a row of the table: its key has the wrong length".into(),
            });
        };
        found.push((key, Bytes::copy_from_slice(value)));
        Ok(found.len() < limit && bytes < SCAN_BYTES_MAX)
    })?;
    Ok(found)
}

impl ObjectStore for FileStore {
    fn capability(&self) -> Capability {
        Capability {
            backend: "file",
            atomic_across_objects: true,
            atomic_across_collections: true,
            native_slots: false,
            commit_order: false,
            clone: true,
            cheap_clone: false,
            persistent: true,
            compresses: false,
            transaction_bytes_max: TRANSACTION_BYTES_MAX as u64,
            transaction_ops_max: esker_store::limits::TRANSACTION_OPS_MAX as u64,
            object_bytes_max: OBJECT_BYTES_MAX,
            exact_extents: true,
            reverse_scans: true,
            watches: false,
            sessions: false,
            afar: false,
        }
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        Completion::ready(self.core().and_then(|core| core.submit(txn)))
    }

    fn sync(&self) -> Completion<CommitSeq> {
        // What is applied is durable already.
        Completion::ready(self.core().and_then(|core| {
            let seq = core.seq();
            core.stopped().map_or(Ok(seq), Err)
        }))
    }

    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        self.look(object, |_, head| Ok(Some(head.stat)))
    }

    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        if range.start > range.end {
            let why = format!("{}..{} ends before it starts", range.start, range.end);
            return Completion::ready(Err(StoreError::Invalid { what: "byte range", why }));
        }
        let max = TRANSACTION_BYTES_MAX as u64;
        let read = |core: Arc<Core>| {
            let data = core.data.read();
            core.torn().map_or(Ok(()), Err)?;
            let table = snapshot(&core)?;
            let Some(head) = table::head(&table, object)? else { return Ok(Bytes::new()) };
            let end = range.end.min(head.stat.size);
            let len = end.saturating_sub(range.start);
            if len > max {
                return Err(StoreError::TooLarge { what: "read", len, limit: "TRANSACTION_BYTES_MAX", max });
            }
            if len == 0 {
                return Ok(Bytes::new());
            }
            let range = range.start..end;
            data.read(head.number, range.clone(), &table::runs(&table, head.number, &range)?)
        };
        Completion::ready(self.core().and_then(read))
    }

    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        self.look(object, |table, head| {
            if range.start >= range.end { Ok(Vec::new()) } else { table::runs(table, head.number, &range) }
        })
    }

    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        self.look(object, |table, head| table.row(&key(b'A', head.number, name)))
    }

    fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>> {
        self.look(object, |table, head| {
            let mut found = Vec::new();
            table::each_of(table, b'A', head.number, &mut |name, value| {
                found.push((Bytes::copy_from_slice(name), Bytes::copy_from_slice(value)));
                Ok(true)
            })?;
            Ok(found)
        })
    }

    fn omap_get(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        self.look(object, |table, head| table.row(&key(b'O', head.number, name)))
    }

    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        let found = self.look(object, |table, head| {
            Together::gather(keys.iter().map(|name| table.row(&key(b'O', head.number, name))))
        });
        let len = keys.len();
        found.map(move |found| if found.is_empty() { vec![None; len] } else { found })
    }

    fn omap_scan(&self, object: &ObjectId, wanted: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        self.look(object, |table, head| {
            let first = key(b'O', head.number, wanted.start.as_deref().unwrap_or_default());
            let end = wanted.end.as_ref().map_or_else(|| key_end(b'O', head.number), |end| key(b'O', head.number, end));
            if first >= end {
                return Ok(Vec::new());
            }
            let range = (Bound::Included(&first[..]), Bound::Excluded(&end[..]));
            let how = (wanted.reverse, wanted.limit, wanted.keys_only);
            scan(table, range, how, |name| Some(Bytes::copy_from_slice(name)))
        })
    }

    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        self.look(object, |table, head| table.row(&key(b'S', head.number, &index.to_be_bytes())))
    }

    fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>> {
        let found = self.look(object, |table, head| {
            let slot = |index: &u64| table.row(&key(b'S', head.number, &index.to_be_bytes()));
            Together::gather(indexes.iter().map(slot))
        });
        let len = indexes.len();
        found.map(move |found| if found.is_empty() { vec![None; len] } else { found })
    }

    fn slot_scan(&self, object: &ObjectId, wanted: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        self.look(object, |table, head| {
            let Range { start, end } = wanted.range;
            if start > end || (start == end && end != u64::MAX) {
                return Ok(Vec::new());
            }
            let (first, last) =
                (key(b'S', head.number, &start.to_be_bytes()), key(b'S', head.number, &end.to_be_bytes()));
            let last = if end == u64::MAX { Bound::Included(&last[..]) } else { Bound::Excluded(&last[..]) };
            let how = (wanted.reverse, wanted.limit, wanted.keys_only);
            scan(table, (Bound::Included(&first), last), how, |key| key.try_into().ok().map(u64::from_be_bytes))
        })
    }

    fn commit_scan(
        &self,
        _collection: &Collection,
        _name_prefix: &[u8],
        _after: CommitCursor,
        _limit: usize,
    ) -> Completion<(Vec<CommitEntry>, Option<CommitCursor>)> {
        Completion::ready(Err(StoreError::Unsupported { backend: "file", what: "scan in commit order" }))
    }

    fn collections(&self) -> Completion<Vec<Collection>> {
        Completion::ready(self.core().and_then(|core| table::collections(&snapshot(&core)?)))
    }

    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        Completion::ready(self.core().and_then(|core| {
            let table = snapshot(&core)?;
            if !table::has_collection(&table, collection)? {
                return Err(StoreError::NoCollection { collection: collection.to_string() });
            }
            table::list(&table, collection, after, limit.min(SCAN_ENTRIES_MAX))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_folder_that_gets_a_new_name_is_synced() {
        let there = tempfile::tempdir().expect("a folder for the test");
        let at = |name: &str| there.path().join(name);
        assert_eq!(growing_folders(&at("a/b/c")), [at("a/b"), at("a"), there.path().to_path_buf()]);
        assert!(growing_folders(there.path()).is_empty());
        assert_eq!(growing_folders(Path::new("no-such-folder/b")), [Path::new("no-such-folder"), Path::new(".")]);
        make_folder(&at("a/b/c")).expect("made");
        assert!(at("a/b/c").is_dir());
    }
}

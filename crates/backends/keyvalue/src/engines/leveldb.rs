//! LevelDB through its C interface (leveldb/c.h, Debian libleveldb-dev 1.23).
//!
//! LevelDB does not sync a log file that it has filled when it goes on to the next, so a synced write says nothing
//! about unsynced ones before it. This backend therefore syncs every group of transactions (see the module `commit`).
//!
//! Invariants:
//! 1. Pointers are made in `open` and freed once, in `drop`, after every cursor that needs them.
//! 2. A cursor never steps over damage: LevelDB's iterators go on behind a block that does not hold, and stay valid, so
//!    they are asked for their failure at every step.

use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::path::Path;
use std::ptr;

use bytes::Bytes;
use esker_store::Result;

use super::foreign::{Opaque, c_path, failure, slice, taken};
use crate::ordered::{Batch, Cursor, Entry, Ordered};

unsafe extern "C" {
    fn leveldb_options_create() -> Opaque;
    fn leveldb_options_destroy(options: Opaque);
    fn leveldb_options_set_create_if_missing(options: Opaque, on: c_uchar);
    fn leveldb_options_set_paranoid_checks(options: Opaque, on: c_uchar);
    fn leveldb_options_set_write_buffer_size(options: Opaque, bytes: usize);
    fn leveldb_options_set_max_open_files(options: Opaque, files: c_int);
    fn leveldb_options_set_cache(options: Opaque, cache: Opaque);
    fn leveldb_options_set_filter_policy(options: Opaque, policy: Opaque);
    fn leveldb_options_set_compression(options: Opaque, kind: c_int);
    fn leveldb_filterpolicy_create_bloom(bits_per_key: c_int) -> Opaque;
    fn leveldb_filterpolicy_destroy(policy: Opaque);
    fn leveldb_cache_create_lru(capacity: usize) -> Opaque;
    fn leveldb_cache_destroy(cache: Opaque);
    fn leveldb_readoptions_create() -> Opaque;
    fn leveldb_readoptions_destroy(options: Opaque);
    fn leveldb_readoptions_set_verify_checksums(options: Opaque, on: c_uchar);
    fn leveldb_writeoptions_create() -> Opaque;
    fn leveldb_writeoptions_destroy(options: Opaque);
    fn leveldb_writeoptions_set_sync(options: Opaque, on: c_uchar);
    fn leveldb_open(options: Opaque, name: *const c_char, error: *mut *mut c_char) -> Opaque;
    fn leveldb_close(db: Opaque);
    fn leveldb_get(
        db: Opaque,
        options: Opaque,
        key: *const c_char,
        key_len: usize,
        value_len: *mut usize,
        error: *mut *mut c_char,
    ) -> *mut c_char;
    fn leveldb_writebatch_create() -> Opaque;
    fn leveldb_writebatch_destroy(batch: Opaque);
    fn leveldb_writebatch_put(
        batch: Opaque,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
    );
    fn leveldb_writebatch_delete(batch: Opaque, key: *const c_char, len: usize);
    fn leveldb_write(db: Opaque, options: Opaque, batch: Opaque, error: *mut *mut c_char);
    fn leveldb_create_iterator(db: Opaque, options: Opaque) -> Opaque;
    fn leveldb_iter_destroy(iterator: Opaque);
    fn leveldb_iter_valid(iterator: Opaque) -> c_uchar;
    fn leveldb_iter_seek(iterator: Opaque, key: *const c_char, len: usize);
    fn leveldb_iter_seek_to_last(iterator: Opaque);
    fn leveldb_iter_next(iterator: Opaque);
    fn leveldb_iter_prev(iterator: Opaque);
    fn leveldb_iter_key(iterator: Opaque, len: *mut usize) -> *const c_char;
    fn leveldb_iter_value(iterator: Opaque, len: *mut usize) -> *const c_char;
    fn leveldb_iter_get_error(iterator: Opaque, error: *mut *mut c_char);
    fn leveldb_compact_range(db: Opaque, start: *const c_char, start_len: usize, end: *const c_char, end_len: usize);
    fn leveldb_free(pointer: *mut c_void);
}

/// Write buffer in bytes: the log that opening may have to replay is at most twice this.
const WRITE_BUFFER_BYTES: usize = 64 << 20;
/// Table files that may be open.
const OPEN_FILES_MAX: c_int = 5_000;

/// An open database.
pub struct LevelDb {
    db: Opaque,
    options: Opaque,
    cache: Opaque,
    filter: Opaque,
    read: Opaque,
    write_synced: Opaque,
    write_unsynced: Opaque,
}

// SAFETY: LevelDB's database, caches and option objects may be used by several threads at once (its documentation,
// "Concurrency"); the option objects are not changed after opening.
unsafe impl Send for LevelDb {}
// SAFETY: as above.
unsafe impl Sync for LevelDb {}

impl LevelDb {
    /// Opens the database in the folder `path`, making it if it does not exist, with a block cache of `cache_bytes`.
    ///
    /// # Errors
    /// LevelDB's own words.
    pub fn open(path: &Path, cache_bytes: usize) -> std::result::Result<Self, String> {
        let path = c_path(path)?;
        let mut error = ptr::null_mut();
        // SAFETY: every object is made here, and freed by `drop` after the database is closed; the path outlives the
        // call.
        let opened = unsafe {
            let options = leveldb_options_create();
            let cache = leveldb_cache_create_lru(cache_bytes);
            let filter = leveldb_filterpolicy_create_bloom(10);
            leveldb_options_set_create_if_missing(options, 1);
            // Or damage inside the log is left out in silence, and compactions give damaged blocks new checksums.
            leveldb_options_set_paranoid_checks(options, 1);
            leveldb_options_set_write_buffer_size(options, WRITE_BUFFER_BYTES);
            leveldb_options_set_max_open_files(options, OPEN_FILES_MAX);
            leveldb_options_set_cache(options, cache);
            leveldb_options_set_filter_policy(options, filter);
            leveldb_options_set_compression(options, 0);
            let read = leveldb_readoptions_create();
            leveldb_readoptions_set_verify_checksums(read, 1);
            let write_synced = leveldb_writeoptions_create();
            leveldb_writeoptions_set_sync(write_synced, 1);
            let write_unsynced = leveldb_writeoptions_create();
            let db = leveldb_open(options, path.as_ptr(), &mut error);
            Self { db, options, cache, filter, read, write_synced, write_unsynced }
        };
        // SAFETY: the call left null or a string of its own.
        unsafe { taken(error, leveldb_free) }?;
        Ok(opened)
    }
}

impl Drop for LevelDb {
    fn drop(&mut self) {
        // SAFETY: all were made by `open`; cursors borrow `self`.
        unsafe {
            if !self.db.is_null() {
                leveldb_close(self.db);
            }
            leveldb_readoptions_destroy(self.read);
            leveldb_writeoptions_destroy(self.write_synced);
            leveldb_writeoptions_destroy(self.write_unsynced);
            leveldb_options_destroy(self.options);
            leveldb_cache_destroy(self.cache);
            leveldb_filterpolicy_destroy(self.filter);
        }
    }
}

impl Ordered for LevelDb {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let (mut error, mut len) = (ptr::null_mut(), 0);
        // SAFETY: the key outlives the call; the value is LevelDB's copy for us, freed here after ours is made.
        unsafe {
            let value = leveldb_get(self.db, self.read, key.as_ptr().cast(), key.len(), &mut len, &mut error);
            taken(error, leveldb_free).map_err(|message| failure("get", "LevelDB", message))?;
            if value.is_null() {
                return Ok(None);
            }
            let copy = Bytes::copy_from_slice(slice(value, len));
            leveldb_free(value.cast());
            Ok(Some(copy))
        }
    }

    fn cursor(&self, start: &[u8], end: &[u8], reverse: bool) -> Result<Box<dyn Cursor + '_>> {
        let (start, end): (Box<[u8]>, Box<[u8]>) = (start.into(), end.into());
        // SAFETY: the iterator is freed by the cursor, which borrows `self`.
        let iterator = unsafe { leveldb_create_iterator(self.db, self.read) };
        Ok(Box::new(Walk { _db: self, iterator, start, end, reverse, fresh: true }))
    }

    fn write(&self, batch: &Batch, sync: bool) -> Result<()> {
        debug_assert!(batch.ranges.is_empty(), "LevelDB removes no ranges");
        let mut error = ptr::null_mut();
        // SAFETY: keys and values are copied into the batch by each call; the batch is freed here.
        unsafe {
            let all = leveldb_writebatch_create();
            for (key, value) in &batch.entries {
                let at = key.as_ptr().cast();
                match value {
                    Some(value) => leveldb_writebatch_put(all, at, key.len(), value.as_ptr().cast(), value.len()),
                    None => leveldb_writebatch_delete(all, at, key.len()),
                }
            }
            let options = if sync { self.write_synced } else { self.write_unsynced };
            leveldb_write(self.db, options, all, &mut error);
            leveldb_writebatch_destroy(all);
            taken(error, leveldb_free).map_err(|message| failure("write", "LevelDB", message))
        }
    }

    fn removes_ranges(&self) -> bool {
        false
    }

    fn compact(&self, start: &[u8], end: &[u8]) {
        let (from, to) = (start.as_ptr().cast(), end.as_ptr().cast());
        // SAFETY: the keys outlive the call.
        unsafe { leveldb_compact_range(self.db, from, start.len(), to, end.len()) }
    }

    fn persistent(&self) -> bool {
        true
    }
}

struct Walk<'a> {
    _db: &'a LevelDb,
    iterator: Opaque,
    start: Box<[u8]>,
    end: Box<[u8]>,
    reverse: bool,
    /// It stands nowhere yet.
    fresh: bool,
}

impl Walk<'_> {
    /// Goes to the first entry, or on to the next.
    ///
    /// # Safety
    /// The iterator lives, and the caller holds no reference to its current entry.
    unsafe fn step(&mut self) {
        // SAFETY: by the caller's promise; the ends outlive the calls.
        unsafe {
            match (std::mem::take(&mut self.fresh), self.reverse) {
                (true, false) => leveldb_iter_seek(self.iterator, self.start.as_ptr().cast(), self.start.len()),
                (true, true) => {
                    leveldb_iter_seek(self.iterator, self.end.as_ptr().cast(), self.end.len());
                    if leveldb_iter_valid(self.iterator) != 0 {
                        leveldb_iter_prev(self.iterator);
                    } else {
                        leveldb_iter_seek_to_last(self.iterator);
                    }
                }
                (false, _) if leveldb_iter_valid(self.iterator) == 0 => {}
                (false, false) => leveldb_iter_next(self.iterator),
                (false, true) => leveldb_iter_prev(self.iterator),
            }
        }
    }
}

impl Cursor for Walk<'_> {
    fn next(&mut self) -> Result<Option<Entry<'_>>> {
        // SAFETY: the iterator is ours; its key and value stay where they are until it moves, which needs `self` again.
        unsafe {
            self.step();
            // Valid or not: it may stand behind a damaged block that it has stepped over.
            let mut error = ptr::null_mut();
            leveldb_iter_get_error(self.iterator, &mut error);
            taken(error, leveldb_free).map_err(|message| failure("scan", "LevelDB", message))?;
            if leveldb_iter_valid(self.iterator) == 0 {
                return Ok(None);
            }
            let (mut key_len, mut value_len) = (0, 0);
            let key = leveldb_iter_key(self.iterator, &mut key_len);
            let value = leveldb_iter_value(self.iterator, &mut value_len);
            let key = slice(key, key_len);
            let inside = *key >= *self.start && *key < *self.end;
            Ok(inside.then(|| (key, slice(value, value_len))))
        }
    }
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `cursor`, freed once.
        unsafe { leveldb_iter_destroy(self.iterator) }
    }
}

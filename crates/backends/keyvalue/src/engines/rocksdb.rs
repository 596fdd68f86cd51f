//! RocksDB through its C interface (rocksdb/c.h, Debian librocksdb-dev 7.8).
//!
//! Three column families besides the empty default: names and records (small, often rewritten), keyed entries (omap,
//! slots, xattrs), and strips of bytes (large: more and larger write buffers, larger blocks). One write-ahead log
//! covers all, so a batch is atomic across them.
//!
//! Invariant: pointers are made in `open` and freed once, in `drop`, after every cursor and value that needs them.

use std::ffi::{c_char, c_double, c_int, c_uchar, c_void};
use std::path::Path;
use std::ptr;

use bytes::Bytes;
use esker_store::Result;

use super::foreign::{Opaque, c_path, failure, slice, taken};
use crate::keys::{self, FAMILIES};
use crate::ordered::{Batch, Cursor, Entry, Ordered};

unsafe extern "C" {
    fn rocksdb_options_create() -> Opaque;
    fn rocksdb_options_destroy(options: Opaque);
    fn rocksdb_options_increase_parallelism(options: Opaque, threads: c_int);
    fn rocksdb_options_set_create_if_missing(options: Opaque, on: c_uchar);
    fn rocksdb_options_set_create_missing_column_families(options: Opaque, on: c_uchar);
    fn rocksdb_options_set_write_buffer_size(options: Opaque, bytes: usize);
    fn rocksdb_options_set_max_write_buffer_number(options: Opaque, number: c_int);
    fn rocksdb_options_set_compression(options: Opaque, kind: c_int);
    fn rocksdb_options_set_max_total_wal_size(options: Opaque, bytes: u64);
    fn rocksdb_options_set_recycle_log_file_num(options: Opaque, number: usize);
    fn rocksdb_options_set_wal_recovery_mode(options: Opaque, mode: c_int);
    fn rocksdb_options_set_max_bytes_for_level_base(options: Opaque, bytes: u64);
    fn rocksdb_options_set_target_file_size_base(options: Opaque, bytes: u64);
    fn rocksdb_options_set_block_based_table_factory(options: Opaque, table: Opaque);
    fn rocksdb_block_based_options_create() -> Opaque;
    fn rocksdb_block_based_options_destroy(table: Opaque);
    fn rocksdb_block_based_options_set_block_cache(table: Opaque, cache: Opaque);
    fn rocksdb_block_based_options_set_block_size(table: Opaque, bytes: usize);
    fn rocksdb_block_based_options_set_filter_policy(table: Opaque, policy: Opaque);
    fn rocksdb_filterpolicy_create_bloom_full(bits_per_key: c_double) -> Opaque;
    fn rocksdb_cache_create_lru(capacity: usize) -> Opaque;
    fn rocksdb_cache_destroy(cache: Opaque);
    fn rocksdb_readoptions_create() -> Opaque;
    fn rocksdb_readoptions_destroy(options: Opaque);
    fn rocksdb_readoptions_set_iterate_upper_bound(options: Opaque, key: *const c_char, len: usize);
    fn rocksdb_writeoptions_create() -> Opaque;
    fn rocksdb_writeoptions_destroy(options: Opaque);
    fn rocksdb_writeoptions_set_sync(options: Opaque, on: c_uchar);
    fn rocksdb_open_column_families(
        options: Opaque,
        name: *const c_char,
        count: c_int,
        names: *const *const c_char,
        family_options: *const Opaque,
        handles: *mut Opaque,
        error: *mut *mut c_char,
    ) -> Opaque;
    fn rocksdb_column_family_handle_destroy(handle: Opaque);
    fn rocksdb_close(db: Opaque);
    fn rocksdb_get_pinned_cf(
        db: Opaque,
        options: Opaque,
        family: Opaque,
        key: *const c_char,
        len: usize,
        error: *mut *mut c_char,
    ) -> Opaque;
    fn rocksdb_pinnableslice_value(slice: Opaque, len: *mut usize) -> *const c_char;
    fn rocksdb_pinnableslice_destroy(slice: Opaque);
    fn rocksdb_writebatch_create() -> Opaque;
    fn rocksdb_writebatch_destroy(batch: Opaque);
    fn rocksdb_writebatch_put_cf(
        batch: Opaque,
        family: Opaque,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
    );
    fn rocksdb_writebatch_delete_cf(batch: Opaque, family: Opaque, key: *const c_char, len: usize);
    fn rocksdb_writebatch_delete_range_cf(
        batch: Opaque,
        family: Opaque,
        start: *const c_char,
        start_len: usize,
        end: *const c_char,
        end_len: usize,
    );
    fn rocksdb_write(db: Opaque, options: Opaque, batch: Opaque, error: *mut *mut c_char);
    fn rocksdb_create_iterator_cf(db: Opaque, options: Opaque, family: Opaque) -> Opaque;
    fn rocksdb_iter_destroy(iterator: Opaque);
    fn rocksdb_iter_valid(iterator: Opaque) -> c_uchar;
    fn rocksdb_iter_seek(iterator: Opaque, key: *const c_char, len: usize);
    fn rocksdb_iter_seek_to_last(iterator: Opaque);
    fn rocksdb_iter_next(iterator: Opaque);
    fn rocksdb_iter_prev(iterator: Opaque);
    fn rocksdb_iter_key(iterator: Opaque, len: *mut usize) -> *const c_char;
    fn rocksdb_iter_value(iterator: Opaque, len: *mut usize) -> *const c_char;
    fn rocksdb_iter_get_error(iterator: Opaque, error: *mut *mut c_char);
    fn rocksdb_compact_range_cf(
        db: Opaque,
        family: Opaque,
        start: *const c_char,
        start_len: usize,
        end: *const c_char,
        end_len: usize,
    );
    fn rocksdb_free(pointer: *mut c_void);
}

/// Recovery stops at the first record of the log that does not hold: a prefix, never a patchwork.
const POINT_IN_TIME: c_int = 2;
/// Each family's write buffer in bytes, how many of them, and its block size. Strips take most of what is written.
const SIZES: [(usize, c_int, usize); FAMILIES] =
    [(32 << 20, 4, 4 << 10), (32 << 20, 4, 4 << 10), (64 << 20, 4, 16 << 10)];
/// Log beyond which the oldest write buffers are written out, so that opening replays no more than this. In bytes.
const LOG_BYTES_MAX: u64 = 512 << 20;

/// An open database.
pub struct RocksDb {
    db: Opaque,
    families: [Opaque; FAMILIES + 1],
    options: [Opaque; FAMILIES + 1],
    cache: Opaque,
    read: Opaque,
    write_synced: Opaque,
    write_unsynced: Opaque,
}

// SAFETY: RocksDB's database, families and caches may be used by several threads at once; the option objects are not
// changed after opening.
unsafe impl Send for RocksDb {}
// SAFETY: as above.
unsafe impl Sync for RocksDb {}

impl RocksDb {
    /// Opens the database in the folder `path`, making it if it does not exist, with a block cache of `cache_bytes`.
    ///
    /// # Errors
    /// RocksDB's own words.
    pub fn open(path: &Path, cache_bytes: usize) -> std::result::Result<Self, String> {
        let path = c_path(path)?;
        let processors = std::thread::available_parallelism().map_or(2, |n| n.get()) as c_int;
        let mut error = ptr::null_mut();
        let names = [c"default", c"names", c"entries", c"strips"].map(|name| name.as_ptr());
        // SAFETY: every object is made here, and freed by `drop` after the database is closed. The table options take
        // over the filter policy, the options copy the table options; path and names outlive the call.
        let opened = unsafe {
            let cache = rocksdb_cache_create_lru(cache_bytes);
            let options: [Opaque; FAMILIES + 1] = std::array::from_fn(|number| {
                let options = rocksdb_options_create();
                let (buffer, buffers, block) = SIZES[number.saturating_sub(1)];
                rocksdb_options_set_create_if_missing(options, 1);
                rocksdb_options_set_create_missing_column_families(options, 1);
                rocksdb_options_increase_parallelism(options, processors);
                rocksdb_options_set_write_buffer_size(options, buffer);
                rocksdb_options_set_max_write_buffer_number(options, buffers);
                rocksdb_options_set_compression(options, 0);
                rocksdb_options_set_max_total_wal_size(options, LOG_BYTES_MAX);
                // A log file that is written over needs no metadata of the file system synced: but then the tail of an
                // older log stands behind the newer one, and the mode of recovery must not take it for damage.
                rocksdb_options_set_recycle_log_file_num(options, 0);
                rocksdb_options_set_wal_recovery_mode(options, POINT_IN_TIME);
                rocksdb_options_set_max_bytes_for_level_base(options, 4 * buffer as u64);
                rocksdb_options_set_target_file_size_base(options, buffer as u64);
                let table = rocksdb_block_based_options_create();
                rocksdb_block_based_options_set_block_cache(table, cache);
                rocksdb_block_based_options_set_block_size(table, block);
                rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom_full(10.0));
                rocksdb_options_set_block_based_table_factory(options, table);
                rocksdb_block_based_options_destroy(table);
                options
            });
            let write_synced = rocksdb_writeoptions_create();
            rocksdb_writeoptions_set_sync(write_synced, 1);
            let write_unsynced = rocksdb_writeoptions_create();
            let mut families = [ptr::null_mut(); FAMILIES + 1];
            let db = rocksdb_open_column_families(
                options[0],
                path.as_ptr(),
                names.len() as c_int,
                names.as_ptr(),
                options.as_ptr(),
                families.as_mut_ptr(),
                &mut error,
            );
            Self { db, families, options, cache, read: rocksdb_readoptions_create(), write_synced, write_unsynced }
        };
        // SAFETY: the call left null or a string of its own.
        unsafe { taken(error, rocksdb_free) }?;
        Ok(opened)
    }

    fn family(&self, key: &[u8]) -> Opaque {
        self.families[1 + keys::family(key)]
    }
}

impl Drop for RocksDb {
    fn drop(&mut self) {
        // SAFETY: all were made by `open`; values and cursors borrow `self` or were made from what outlives the
        // database.
        unsafe {
            if !self.db.is_null() {
                for family in self.families {
                    rocksdb_column_family_handle_destroy(family);
                }
                rocksdb_close(self.db);
            }
            rocksdb_readoptions_destroy(self.read);
            rocksdb_writeoptions_destroy(self.write_synced);
            rocksdb_writeoptions_destroy(self.write_unsynced);
            for options in self.options {
                rocksdb_options_destroy(options);
            }
            rocksdb_cache_destroy(self.cache);
        }
    }
}

impl Ordered for RocksDb {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let (mut error, mut len) = (ptr::null_mut(), 0);
        // SAFETY: the key outlives the call; the slice's bytes live until it is destroyed, which is after the copy. (A
        // pinned slice must not outlive the database, which a value handed out could.)
        unsafe {
            let pinned =
                rocksdb_get_pinned_cf(self.db, self.read, self.family(key), key.as_ptr().cast(), key.len(), &mut error);
            taken(error, rocksdb_free).map_err(|message| failure("get", "RocksDB", message))?;
            if pinned.is_null() {
                return Ok(None);
            }
            let value = rocksdb_pinnableslice_value(pinned, &mut len);
            let value = Bytes::copy_from_slice(slice(value, len));
            rocksdb_pinnableslice_destroy(pinned);
            Ok(Some(value))
        }
    }

    fn cursor(&self, start: &[u8], end: &[u8], reverse: bool) -> Result<Box<dyn Cursor + '_>> {
        let (start, end): (Box<[u8]>, Box<[u8]>) = (start.into(), end.into());
        // SAFETY: the iterator and its options are freed by the cursor, which holds the upper bound and borrows `self`.
        let cursor = unsafe {
            let options = rocksdb_readoptions_create();
            rocksdb_readoptions_set_iterate_upper_bound(options, end.as_ptr().cast(), end.len());
            let iterator = rocksdb_create_iterator_cf(self.db, options, self.family(&start));
            Walk { _db: self, iterator, options, start, _end: end, reverse, fresh: true }
        };
        Ok(Box::new(cursor))
    }

    fn write(&self, batch: &Batch, sync: bool) -> Result<()> {
        let mut error = ptr::null_mut();
        // SAFETY: keys and values are copied into the batch by each call; the batch is freed here.
        unsafe {
            let all = rocksdb_writebatch_create();
            for (start, end) in &batch.ranges {
                let (from, to) = (start.as_ptr().cast(), end.as_ptr().cast());
                rocksdb_writebatch_delete_range_cf(all, self.family(start), from, start.len(), to, end.len());
            }
            for (key, value) in &batch.entries {
                let (at, family) = (key.as_ptr().cast(), self.family(key));
                match value {
                    Some(value) => {
                        let (bytes, len) = (value.as_ptr().cast(), value.len());
                        rocksdb_writebatch_put_cf(all, family, at, key.len(), bytes, len);
                    }
                    None => rocksdb_writebatch_delete_cf(all, family, at, key.len()),
                }
            }
            let options = if sync { self.write_synced } else { self.write_unsynced };
            rocksdb_write(self.db, options, all, &mut error);
            rocksdb_writebatch_destroy(all);
            taken(error, rocksdb_free).map_err(|message| failure("write", "RocksDB", message))
        }
    }

    fn removes_ranges(&self) -> bool {
        true
    }

    fn compact(&self, start: &[u8], end: &[u8]) {
        let (from, to) = (start.as_ptr().cast(), end.as_ptr().cast());
        // SAFETY: the keys outlive the call.
        unsafe { rocksdb_compact_range_cf(self.db, self.family(start), from, start.len(), to, end.len()) }
    }

    fn persistent(&self) -> bool {
        true
    }
}

struct Walk<'a> {
    _db: &'a RocksDb,
    iterator: Opaque,
    options: Opaque,
    start: Box<[u8]>,
    /// The iterator looks at it as long as it lives.
    _end: Box<[u8]>,
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
        // SAFETY: by the caller's promise; the start outlives the call.
        unsafe {
            match (std::mem::take(&mut self.fresh), self.reverse) {
                (true, true) => rocksdb_iter_seek_to_last(self.iterator),
                (true, false) => rocksdb_iter_seek(self.iterator, self.start.as_ptr().cast(), self.start.len()),
                (false, _) if rocksdb_iter_valid(self.iterator) == 0 => {}
                (false, true) => rocksdb_iter_prev(self.iterator),
                (false, false) => rocksdb_iter_next(self.iterator),
            }
        }
    }
}

impl Cursor for Walk<'_> {
    fn next(&mut self) -> Result<Option<Entry<'_>>> {
        // SAFETY: the iterator is ours; its key and value stay where they are until it moves, which needs `self` again.
        unsafe {
            self.step();
            if rocksdb_iter_valid(self.iterator) == 0 {
                let mut error = ptr::null_mut();
                rocksdb_iter_get_error(self.iterator, &mut error);
                return taken(error, rocksdb_free)
                    .map(|()| None)
                    .map_err(|message| failure("scan", "RocksDB", message));
            }
            let (mut key_len, mut value_len) = (0, 0);
            let key = rocksdb_iter_key(self.iterator, &mut key_len);
            let value = rocksdb_iter_value(self.iterator, &mut value_len);
            let key = slice(key, key_len);
            Ok((*key >= *self.start).then(|| (key, slice(value, value_len))))
        }
    }
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `cursor`, freed once.
        unsafe {
            rocksdb_iter_destroy(self.iterator);
            rocksdb_readoptions_destroy(self.options);
        }
    }
}

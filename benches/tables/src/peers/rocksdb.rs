//! RocksDB through its C interface (rocksdb/c.h, Debian librocksdb-dev 7.8), plain and with blob files.
//!
//! Keys are big-endian, so that counting up is ascending for its comparator.

use std::ffi::{c_char, c_double, c_int, c_uchar, c_void};
use std::ptr;

use anyhow::{Context, Result};

use super::{c_error, c_path};
use crate::peer::{Peer, Session, Settings, Sync};

pub const SETUP: &str = "7.8: 4 write buffers of 64 MiB, increase_parallelism(processors), LRU block cache = --cache, \
    bloom filter 10 bits, no compression, else defaults; write-ahead log on; synced: WriteOptions.sync; get: get_pinned, \
    looked at in place; flush and compact_range before reads";
pub const SETUP_BLOB: &str =
    "as rocksdb, with enable_blob_files, min_blob_size 512, blob cache = the block cache, blob garbage collection on";

type Opaque = *mut c_void;

unsafe extern "C" {
    fn rocksdb_options_create() -> Opaque;
    fn rocksdb_options_destroy(options: Opaque);
    fn rocksdb_options_increase_parallelism(options: Opaque, threads: c_int);
    fn rocksdb_options_set_create_if_missing(options: Opaque, on: c_uchar);
    fn rocksdb_options_set_write_buffer_size(options: Opaque, bytes: usize);
    fn rocksdb_options_set_max_write_buffer_number(options: Opaque, number: c_int);
    fn rocksdb_options_set_compression(options: Opaque, kind: c_int);
    fn rocksdb_options_set_blob_compression_type(options: Opaque, kind: c_int);
    fn rocksdb_options_set_enable_blob_files(options: Opaque, on: c_uchar);
    fn rocksdb_options_set_min_blob_size(options: Opaque, bytes: u64);
    fn rocksdb_options_set_enable_blob_gc(options: Opaque, on: c_uchar);
    fn rocksdb_options_set_blob_gc_age_cutoff(options: Opaque, part: c_double);
    fn rocksdb_options_set_blob_gc_force_threshold(options: Opaque, part: c_double);
    fn rocksdb_options_set_blob_cache(options: Opaque, cache: Opaque);
    fn rocksdb_options_set_block_based_table_factory(options: Opaque, table: Opaque);
    fn rocksdb_block_based_options_create() -> Opaque;
    fn rocksdb_block_based_options_destroy(table: Opaque);
    fn rocksdb_block_based_options_set_block_cache(table: Opaque, cache: Opaque);
    fn rocksdb_block_based_options_set_filter_policy(table: Opaque, policy: Opaque);
    fn rocksdb_filterpolicy_create_bloom_full(bits_per_key: c_double) -> Opaque;
    fn rocksdb_cache_create_lru(capacity: usize) -> Opaque;
    fn rocksdb_cache_destroy(cache: Opaque);
    fn rocksdb_readoptions_create() -> Opaque;
    fn rocksdb_readoptions_destroy(options: Opaque);
    fn rocksdb_writeoptions_create() -> Opaque;
    fn rocksdb_writeoptions_destroy(options: Opaque);
    fn rocksdb_writeoptions_set_sync(options: Opaque, on: c_uchar);
    fn rocksdb_flushoptions_create() -> Opaque;
    fn rocksdb_flushoptions_destroy(options: Opaque);
    fn rocksdb_open(options: Opaque, name: *const c_char, error: *mut *mut c_char) -> Opaque;
    fn rocksdb_close(db: Opaque);
    fn rocksdb_put(
        db: Opaque,
        options: Opaque,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_get_pinned(
        db: Opaque,
        options: Opaque,
        key: *const c_char,
        key_len: usize,
        error: *mut *mut c_char,
    ) -> Opaque;
    fn rocksdb_pinnableslice_value(slice: Opaque, len: *mut usize) -> *const c_char;
    fn rocksdb_pinnableslice_destroy(slice: Opaque);
    fn rocksdb_flush(db: Opaque, options: Opaque, error: *mut *mut c_char);
    fn rocksdb_compact_range(
        db: Opaque,
        start: *const c_char,
        start_len: usize,
        limit: *const c_char,
        limit_len: usize,
    );
    fn rocksdb_free(pointer: *mut c_void);
}

/// How values are kept in blob files.
#[derive(Clone, Copy, Debug)]
pub struct BlobFiles {
    /// Compaction moves values out of this part of the blob files, the oldest.
    pub gc_age_cutoff: f64,
    /// When so much of the oldest blob files is garbage, compactions are made for its sake; 1 never does.
    pub gc_force_threshold: f64,
}

impl Default for BlobFiles {
    /// RocksDB's own.
    fn default() -> Self {
        Self { gc_age_cutoff: 0.25, gc_force_threshold: 1.0 }
    }
}

struct Rocksdb {
    db: Opaque,
    options: Opaque,
    cache: Opaque,
    read: Opaque,
    write: Opaque,
}

// SAFETY: RocksDB's database and caches may be used by several threads at once; the option objects are not changed
// after opening.
unsafe impl Send for Rocksdb {}
// SAFETY: as above.
unsafe impl std::marker::Sync for Rocksdb {}

pub fn open(settings: &Settings<'_>, blob_files: Option<BlobFiles>) -> Result<Box<dyn Peer>> {
    let path = c_path(&settings.dir.join("rocksdb"))?;
    let processors = std::thread::available_parallelism().map_or(2, |n| n.get()) as c_int;
    let mut error = ptr::null_mut();
    // SAFETY: every object is made here, and freed here or by `drop` after the database is closed. The table options
    // take over the filter policy, the options copy the table options; the path outlives the call.
    let peer = unsafe {
        let options = rocksdb_options_create();
        let cache = rocksdb_cache_create_lru(settings.cache_bytes as usize);
        rocksdb_options_increase_parallelism(options, processors);
        rocksdb_options_set_create_if_missing(options, 1);
        rocksdb_options_set_write_buffer_size(options, 64 << 20);
        rocksdb_options_set_max_write_buffer_number(options, 4);
        rocksdb_options_set_compression(options, 0);
        if let Some(blob_files) = blob_files {
            rocksdb_options_set_enable_blob_files(options, 1);
            rocksdb_options_set_min_blob_size(options, 512);
            rocksdb_options_set_enable_blob_gc(options, 1);
            rocksdb_options_set_blob_gc_age_cutoff(options, blob_files.gc_age_cutoff);
            rocksdb_options_set_blob_gc_force_threshold(options, blob_files.gc_force_threshold);
            rocksdb_options_set_blob_compression_type(options, 0);
            rocksdb_options_set_blob_cache(options, cache);
        }
        let table = rocksdb_block_based_options_create();
        rocksdb_block_based_options_set_block_cache(table, cache);
        rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom_full(10.0));
        rocksdb_options_set_block_based_table_factory(options, table);
        rocksdb_block_based_options_destroy(table);
        let write = rocksdb_writeoptions_create();
        rocksdb_writeoptions_set_sync(write, u8::from(settings.sync == Sync::Each));
        let read = rocksdb_readoptions_create();
        let db = rocksdb_open(options, path.as_ptr(), &mut error);
        Rocksdb { db, options, cache, read, write }
    };
    // SAFETY: `rocksdb_open` left null or a string of its own.
    unsafe { c_error(error, rocksdb_free) }.context("rocksdb_open")?;
    Ok(Box::new(peer))
}

impl Peer for Rocksdb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Handle(self)))
    }

    fn settle(&self) -> Result<()> {
        let mut error = ptr::null_mut();
        // SAFETY: the database is open; the options live for the call; null means the ends.
        unsafe {
            let options = rocksdb_flushoptions_create();
            rocksdb_flush(self.db, options, &mut error);
            rocksdb_flushoptions_destroy(options);
            c_error(error, rocksdb_free).context("rocksdb_flush")?;
            rocksdb_compact_range(self.db, ptr::null(), 0, ptr::null(), 0);
        }
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Drop for Rocksdb {
    fn drop(&mut self) {
        // SAFETY: all were made by `open`, and no session outlives the peer.
        unsafe {
            if !self.db.is_null() {
                rocksdb_close(self.db);
            }
            rocksdb_readoptions_destroy(self.read);
            rocksdb_writeoptions_destroy(self.write);
            rocksdb_options_destroy(self.options);
            rocksdb_cache_destroy(self.cache);
        }
    }
}

struct Handle<'a>(&'a Rocksdb);

impl Session for Handle<'_> {
    fn put(&mut self, key: u32, value: &[u8]) -> Result<()> {
        let (key, mut error) = (key.to_be_bytes(), ptr::null_mut());
        // SAFETY: key and value outlive the call, the error is null or its own string.
        unsafe {
            let (key, bytes) = (key.as_ptr().cast(), value.as_ptr().cast());
            rocksdb_put(self.0.db, self.0.write, key, 4, bytes, value.len(), &mut error);
            c_error(error, rocksdb_free)
        }
    }

    fn get(&mut self, key: u32, _: &mut [u8], look: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let (key, mut error, mut len) = (key.to_be_bytes(), ptr::null_mut(), 0);
        // SAFETY: the key outlives the call; the slice's bytes live until it is destroyed.
        unsafe {
            let slice = rocksdb_get_pinned(self.0.db, self.0.read, key.as_ptr().cast(), 4, &mut error);
            c_error(error, rocksdb_free)?;
            if slice.is_null() {
                return Ok(false);
            }
            let value = rocksdb_pinnableslice_value(slice, &mut len);
            look(std::slice::from_raw_parts(value.cast(), len));
            rocksdb_pinnableslice_destroy(slice);
        }
        Ok(true)
    }
}

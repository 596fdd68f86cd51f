//! LevelDB through its C interface (leveldb/c.h, Debian libleveldb-dev 1.23).
//!
//! Keys are big-endian, so that counting up is ascending for its comparator.

use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::ptr;

use anyhow::{Context, Result, ensure};

use super::{c_error, c_path};
use crate::peer::{Peer, Session, Settings, Sync};

pub const SETUP: &str = "1.23: write buffer 64 MiB, LRU block cache = --cache, bloom filter 10 bits, no compression, \
    max_open_files 5,000, else defaults; synced: WriteOptions.sync; get: its malloc'ed copy is looked at in place; \
    compact_range before reads";

type Opaque = *mut c_void;

unsafe extern "C" {
    fn leveldb_options_create() -> Opaque;
    fn leveldb_options_destroy(options: Opaque);
    fn leveldb_options_set_create_if_missing(options: Opaque, on: c_uchar);
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
    fn leveldb_writeoptions_create() -> Opaque;
    fn leveldb_writeoptions_destroy(options: Opaque);
    fn leveldb_writeoptions_set_sync(options: Opaque, on: c_uchar);
    fn leveldb_open(options: Opaque, name: *const c_char, error: *mut *mut c_char) -> Opaque;
    fn leveldb_close(db: Opaque);
    fn leveldb_put(
        db: Opaque,
        options: Opaque,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        error: *mut *mut c_char,
    );
    fn leveldb_get(
        db: Opaque,
        options: Opaque,
        key: *const c_char,
        key_len: usize,
        value_len: *mut usize,
        error: *mut *mut c_char,
    ) -> *mut c_char;
    fn leveldb_compact_range(
        db: Opaque,
        start: *const c_char,
        start_len: usize,
        limit: *const c_char,
        limit_len: usize,
    );
    fn leveldb_free(pointer: *mut c_void);
}

struct Leveldb {
    db: Opaque,
    options: Opaque,
    cache: Opaque,
    filter: Opaque,
    read: Opaque,
    write: Opaque,
}

// SAFETY: LevelDB's database, caches and option objects may be used by several threads at once (its documentation,
// "Concurrency"); the option objects are not changed after opening.
unsafe impl Send for Leveldb {}
// SAFETY: as above.
unsafe impl std::marker::Sync for Leveldb {}

pub fn open(settings: &Settings<'_>) -> Result<Box<dyn Peer>> {
    let path = c_path(&settings.dir.join("leveldb"))?;
    let mut error = ptr::null_mut();
    // SAFETY: every object is made here, and freed by `drop` after the database is closed; the path outlives the call.
    let peer = unsafe {
        let options = leveldb_options_create();
        let cache = leveldb_cache_create_lru(settings.cache_bytes as usize);
        let filter = leveldb_filterpolicy_create_bloom(10);
        leveldb_options_set_create_if_missing(options, 1);
        leveldb_options_set_write_buffer_size(options, 64 << 20);
        leveldb_options_set_max_open_files(options, 5_000);
        leveldb_options_set_cache(options, cache);
        leveldb_options_set_filter_policy(options, filter);
        leveldb_options_set_compression(options, 0);
        let write = leveldb_writeoptions_create();
        leveldb_writeoptions_set_sync(write, u8::from(settings.sync == Sync::Each));
        let read = leveldb_readoptions_create();
        let db = leveldb_open(options, path.as_ptr(), &mut error);
        Leveldb { db, options, cache, filter, read, write }
    };
    // SAFETY: `leveldb_open` left null or a string of its own.
    unsafe { c_error(error, leveldb_free) }.context("leveldb_open")?;
    Ok(Box::new(peer))
}

impl Peer for Leveldb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Handle(self)))
    }

    fn settle(&self) -> Result<()> {
        // SAFETY: the database is open; null means the ends.
        unsafe { leveldb_compact_range(self.db, ptr::null(), 0, ptr::null(), 0) };
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Drop for Leveldb {
    fn drop(&mut self) {
        // SAFETY: all were made by `open`, and no session outlives the peer.
        unsafe {
            if !self.db.is_null() {
                leveldb_close(self.db);
            }
            leveldb_readoptions_destroy(self.read);
            leveldb_writeoptions_destroy(self.write);
            leveldb_options_destroy(self.options);
            leveldb_cache_destroy(self.cache);
            leveldb_filterpolicy_destroy(self.filter);
        }
    }
}

struct Handle<'a>(&'a Leveldb);

impl Session for Handle<'_> {
    fn put(&mut self, key: u32, value: &[u8]) -> Result<()> {
        let (key, mut error) = (key.to_be_bytes(), ptr::null_mut());
        // SAFETY: key and value outlive the call, the error is null or its own string.
        unsafe {
            let (key, bytes) = (key.as_ptr().cast(), value.as_ptr().cast());
            leveldb_put(self.0.db, self.0.write, key, 4, bytes, value.len(), &mut error);
            c_error(error, leveldb_free)
        }
    }

    fn get(&mut self, key: u32, buffer: &mut [u8], look: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let (key, mut error, mut len) = (key.to_be_bytes(), ptr::null_mut(), 0);
        // SAFETY: the key outlives the call; the value is `len` bytes of malloc'ed memory that is ours to free.
        unsafe {
            let value = leveldb_get(self.0.db, self.0.read, key.as_ptr().cast(), 4, &mut len, &mut error);
            c_error(error, leveldb_free)?;
            if value.is_null() {
                return Ok(false);
            }
            ensure!(len <= buffer.len(), "a value of {len} bytes where {} were written", buffer.len());
            look(std::slice::from_raw_parts(value.cast(), len));
            leveldb_free(value.cast());
        }
        Ok(true)
    }
}

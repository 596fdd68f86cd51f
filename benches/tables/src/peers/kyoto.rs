//! Kyoto Cabinet's file hash database through its C interface (kclangc.h, Debian libkyotocabinet-dev 1.2).

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;

use anyhow::{Result, bail};

use crate::peer::{Peer, Session, Settings, Sync};

pub const SETUP: &str = "1.2.79 HashDB: two buckets per key, memory map = --cache, else defaults; synced: KCOAUTOSYNC; \
    get: kcdbgetbuf straight into the reader's buffer";

type Db = *mut c_void;

const WRITER: u32 = 1 << 1;
const CREATE: u32 = 1 << 2;
const AUTOSYNC: u32 = 1 << 5;
/// KCENOREC: there is no record.
const NO_RECORD: i32 = 7;

unsafe extern "C" {
    fn kcdbnew() -> Db;
    fn kcdbdel(db: Db);
    fn kcdbopen(db: Db, path: *const c_char, mode: u32) -> i32;
    fn kcdbclose(db: Db) -> i32;
    fn kcdbecode(db: Db) -> i32;
    fn kcdbemsg(db: Db) -> *const c_char;
    fn kcdbset(db: Db, key: *const c_char, key_len: usize, value: *const c_char, value_len: usize) -> i32;
    fn kcdbgetbuf(db: Db, key: *const c_char, key_len: usize, buffer: *mut c_char, buffer_len: usize) -> i32;
}

struct Kyoto {
    db: Db,
}

// SAFETY: a database object may be used by several threads at once (it takes its own locks).
unsafe impl Send for Kyoto {}
// SAFETY: as above.
unsafe impl std::marker::Sync for Kyoto {}

impl Kyoto {
    fn error<T>(&self, what: &str) -> Result<T> {
        // SAFETY: the object is alive; the message is a constant or thread-local string.
        let text = unsafe { CStr::from_ptr(kcdbemsg(self.db)) }.to_string_lossy().into_owned();
        bail!("{what}: {text}")
    }
}

pub fn open(settings: &Settings<'_>) -> Result<Box<dyn Peer>> {
    let mut path = settings.dir.join("kyoto.kch").as_os_str().as_bytes().to_vec();
    let buckets = 2 * u64::from(settings.keys.max(1_000));
    path.extend_from_slice(format!("#bnum={buckets}#msiz={}", settings.cache_bytes).as_bytes());
    let path = CString::new(path)?;
    let sync = if settings.sync == Sync::Each { AUTOSYNC } else { 0 };
    // SAFETY: the object is deleted by `drop`; the path outlives the call.
    unsafe {
        let peer = Kyoto { db: kcdbnew() };
        if kcdbopen(peer.db, path.as_ptr(), WRITER | CREATE | sync) == 0 {
            return peer.error("kcdbopen");
        }
        Ok(Box::new(peer))
    }
}

impl Peer for Kyoto {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Handle(self)))
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        // SAFETY: the database is open and no session is left.
        if unsafe { kcdbclose(self.db) } == 0 { self.error("kcdbclose") } else { Ok(()) }
    }
}

impl Drop for Kyoto {
    fn drop(&mut self) {
        // SAFETY: made by `open`; deleting closes what is open.
        unsafe { kcdbdel(self.db) };
    }
}

struct Handle<'a>(&'a Kyoto);

impl Session for Handle<'_> {
    fn put(&mut self, key: u32, value: &[u8]) -> Result<()> {
        let key = key.to_be_bytes();
        // SAFETY: key and value outlive the call.
        let done = unsafe { kcdbset(self.0.db, key.as_ptr().cast(), 4, value.as_ptr().cast(), value.len()) };
        if done == 0 { self.0.error("kcdbset") } else { Ok(()) }
    }

    fn get(&mut self, key: u32, buffer: &mut [u8], look: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let key = key.to_be_bytes();
        // SAFETY: the key outlives the call; at most `buffer.len()` bytes are written to the buffer.
        let len = unsafe { kcdbgetbuf(self.0.db, key.as_ptr().cast(), 4, buffer.as_mut_ptr().cast(), buffer.len()) };
        match usize::try_from(len) {
            Ok(len) if len <= buffer.len() => look(&buffer[..len]),
            Ok(len) => bail!("a value of {len} bytes where {} were written", buffer.len()),
            // SAFETY: the object is alive.
            Err(_) if unsafe { kcdbecode(self.0.db) } == NO_RECORD => return Ok(false),
            Err(_) => return self.0.error("kcdbgetbuf"),
        }
        Ok(true)
    }
}

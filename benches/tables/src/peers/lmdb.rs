//! LMDB (lmdb.h, Debian liblmdb-dev 0.9.24).
//!
//! One write transaction per put. Readers keep a read transaction and renew it for every get, so that a get sees the
//! newest data as it does with every other peer.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use anyhow::{Context, Result, bail};

use super::c_path;
use crate::peer::{Peer, Session, Settings, Sync, land};

pub const SETUP: &str = "0.9.24: MDB_INTEGERKEY, MDB_NOTLS, a map large enough from the start; page cache: \
    MDB_NOSYNC|MDB_WRITEMAP (safe when the process dies); synced: no flags, one transaction per put; get: read \
    transaction renewed for each get, copied once from the map";

type Opaque = *mut c_void;

const NOSYNC: c_uint = 0x1_0000;
const RDONLY: c_uint = 0x2_0000;
const WRITEMAP: c_uint = 0x8_0000;
const NOTLS: c_uint = 0x20_0000;
const INTEGERKEY: c_uint = 0x08;
const CREATE: c_uint = 0x4_0000;
const NOTFOUND: c_int = -30_798;

#[repr(C)]
struct Val {
    len: usize,
    data: *mut c_void,
}

unsafe extern "C" {
    fn mdb_strerror(code: c_int) -> *const c_char;
    fn mdb_env_create(env: *mut Opaque) -> c_int;
    fn mdb_env_open(env: Opaque, path: *const c_char, flags: c_uint, mode: c_uint) -> c_int;
    fn mdb_env_close(env: Opaque);
    fn mdb_env_set_mapsize(env: Opaque, bytes: usize) -> c_int;
    fn mdb_txn_begin(env: Opaque, parent: Opaque, flags: c_uint, txn: *mut Opaque) -> c_int;
    fn mdb_txn_commit(txn: Opaque) -> c_int;
    fn mdb_txn_abort(txn: Opaque);
    fn mdb_txn_reset(txn: Opaque);
    fn mdb_txn_renew(txn: Opaque) -> c_int;
    fn mdb_dbi_open(txn: Opaque, name: *const c_char, flags: c_uint, dbi: *mut c_uint) -> c_int;
    fn mdb_put(txn: Opaque, dbi: c_uint, key: *mut Val, data: *mut Val, flags: c_uint) -> c_int;
    fn mdb_get(txn: Opaque, dbi: c_uint, key: *mut Val, data: *mut Val) -> c_int;
}

struct Lmdb {
    env: Opaque,
    dbi: c_uint,
}

// SAFETY: an environment may be used by several threads at once; transactions stay with their sessions.
unsafe impl Send for Lmdb {}
// SAFETY: as above.
unsafe impl std::marker::Sync for Lmdb {}

fn check(what: &'static str, code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: `mdb_strerror` returns a string that lives as long as the thread does not call it again.
    let text = unsafe { CStr::from_ptr(mdb_strerror(code)) }.to_string_lossy().into_owned();
    bail!("{what}: {text}")
}

pub fn open(settings: &Settings<'_>) -> Result<Box<dyn Peer>> {
    let path = c_path(settings.dir)?;
    let map_bytes = 2 * settings.data_bytes() + 256 * u64::from(settings.keys) + (1 << 30);
    let flags = match settings.sync {
        Sync::None => NOTLS | NOSYNC | WRITEMAP,
        Sync::Each => NOTLS,
    };
    let mut peer = Lmdb { env: ptr::null_mut(), dbi: 0 };
    let mut txn = ptr::null_mut();
    // SAFETY: the environment is made here and closed by `drop`; the path outlives the call; the transaction ends here.
    unsafe {
        check("mdb_env_create", mdb_env_create(&mut peer.env))?;
        check("mdb_env_set_mapsize", mdb_env_set_mapsize(peer.env, map_bytes.next_multiple_of(1 << 20) as usize))?;
        check("mdb_env_open", mdb_env_open(peer.env, path.as_ptr(), flags, 0o600))?;
        check("mdb_txn_begin", mdb_txn_begin(peer.env, ptr::null_mut(), 0, &mut txn))?;
        check("mdb_dbi_open", mdb_dbi_open(txn, ptr::null(), INTEGERKEY | CREATE, &mut peer.dbi))?;
        check("mdb_txn_commit", mdb_txn_commit(txn))?;
    }
    Ok(Box::new(peer))
}

impl Peer for Lmdb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Handle { peer: self, reader: ptr::null_mut() }))
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Drop for Lmdb {
    fn drop(&mut self) {
        if !self.env.is_null() {
            // SAFETY: made by `open`; no session, so no transaction, outlives the peer.
            unsafe { mdb_env_close(self.env) };
        }
    }
}

struct Handle<'a> {
    peer: &'a Lmdb,
    reader: Opaque,
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if !self.reader.is_null() {
            // SAFETY: begun by this session, and not used any more.
            unsafe { mdb_txn_abort(self.reader) };
        }
    }
}

impl Session for Handle<'_> {
    fn put(&mut self, mut key: u32, value: &[u8]) -> Result<()> {
        let mut key = Val { len: 4, data: (&raw mut key).cast() };
        let mut data = Val { len: value.len(), data: value.as_ptr().cast_mut().cast() };
        let mut txn = ptr::null_mut();
        // SAFETY: key and value outlive the calls and are only read; the transaction ends here on every path.
        unsafe {
            check("mdb_txn_begin", mdb_txn_begin(self.peer.env, ptr::null_mut(), 0, &mut txn))?;
            let code = mdb_put(txn, self.peer.dbi, &mut key, &mut data, 0);
            if code != 0 {
                mdb_txn_abort(txn);
                return check("mdb_put", code);
            }
            check("mdb_txn_commit", mdb_txn_commit(txn)).context("put")
        }
    }

    fn get(&mut self, mut key: u32, buffer: &mut [u8], look: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let mut key = Val { len: 4, data: (&raw mut key).cast() };
        let mut data = Val { len: 0, data: ptr::null_mut() };
        // SAFETY: the key outlives the call; the value lies in the map and stays while the transaction is not reset.
        // The transaction belongs to this session alone (MDB_NOTLS).
        unsafe {
            if self.reader.is_null() {
                check("mdb_txn_begin", mdb_txn_begin(self.peer.env, ptr::null_mut(), RDONLY, &mut self.reader))?;
            } else {
                check("mdb_txn_renew", mdb_txn_renew(self.reader))?;
            }
            let code = mdb_get(self.reader, self.peer.dbi, &mut key, &mut data);
            let landed = match code {
                0 => land(std::slice::from_raw_parts(data.data.cast(), data.len), buffer).map(Some),
                NOTFOUND => Ok(None),
                code => check("mdb_get", code).map(|()| None),
            };
            mdb_txn_reset(self.reader);
            Ok(landed?.map(look).is_some())
        }
    }
}

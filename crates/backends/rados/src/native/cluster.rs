//! A cluster, its pools, and operations on their way.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::library::{
    Handle, rados_aio_create_completion2, rados_aio_get_return_value, rados_aio_get_version, rados_aio_read_op_operate,
    rados_aio_release, rados_aio_write_op_operate, rados_blocklist_add, rados_buffer_free, rados_cluster_fsid,
    rados_conf_read_file, rados_conf_set, rados_connect, rados_create, rados_getaddrs, rados_ioctx_create,
    rados_ioctx_destroy, rados_ioctx_get_id, rados_ioctx_set_namespace, rados_set_pool_full_try, rados_shutdown,
};
use super::operation::{Failed, Found, Read, Write};

/// Flags of an operation.
pub mod flags {
    /// Where the cluster or the pool is full the operation fails, and does not wait until it is not.
    pub const FULL_TRY: i32 = 64;
}

thread_local! {
    /// Whether this thread is one of librados that tells of an operation.
    pub(super) static TELLS: Cell<bool> = const { Cell::new(false) };
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct ConnectError {
    /// What failed, with the setting, file or pool.
    pub what: String,
    /// Why.
    #[source]
    pub source: std::io::Error,
}

fn checked(code: c_int, what: impl FnOnce() -> String) -> Result<(), ConnectError> {
    if code >= 0 {
        return Ok(());
    }
    Err(ConnectError { what: what(), source: std::io::Error::from_raw_os_error(-code) })
}

fn no_nul(text: &str) -> Result<CString, ConnectError> {
    CString::new(text).map_err(|_| ConnectError {
        what: format!("{text:?} has a NUL in it"),
        source: std::io::ErrorKind::InvalidInput.into(),
    })
}

/// A connection to a cluster. Dropping the last of it and of its pools ends it.
pub struct Cluster(Handle);

// SAFETY: librados may be called by any thread.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

impl Cluster {
    /// Connects as `user` (`None`: admin), with the settings of the file (`None`: where Ceph looks for it), and others
    /// that go before them.
    ///
    /// # Errors
    /// [`ConnectError`]: the file cannot be read, a setting is none of Ceph's, no monitor answers within
    /// `client_mount_timeout`, the key is wrong.
    pub fn connect(
        user: Option<&str>,
        file: Option<&Path>,
        settings: &[(&str, &str)],
    ) -> Result<Arc<Self>, ConnectError> {
        let user = user.map(no_nul).transpose()?;
        let file = file.map(|file| no_nul(&file.to_string_lossy())).transpose()?;
        let pointer = |text: &Option<CString>| text.as_ref().map_or(null(), |text| text.as_ptr());
        let mut handle = null_mut();
        // SAFETY: the pointers hold for the call.
        checked(unsafe { rados_create(&raw mut handle, pointer(&user)) }, || "making a client of Ceph".into())?;
        // Ends it where something below fails.
        let cluster = Arc::new(Self(handle));
        // SAFETY: as above, and the handle lives.
        checked(unsafe { rados_conf_read_file(handle, pointer(&file)) }, || {
            format!("reading Ceph's configuration {}", file.as_ref().map_or("".into(), |file| file.to_string_lossy()))
        })?;
        for (option, value) in settings {
            let (name, text) = (no_nul(option)?, no_nul(value)?);
            // SAFETY: as above.
            let code = unsafe { rados_conf_set(handle, name.as_ptr(), text.as_ptr()) };
            checked(code, || format!("setting {option} to {value:?}"))?;
        }
        // SAFETY: as above.
        checked(unsafe { rados_connect(handle) }, || "connecting to Ceph".into())?;
        Ok(cluster)
    }

    /// The address that OSDs know this client by: no other has it, unless a process id and a random number come again.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn address(&self) -> Result<String, ConnectError> {
        let mut text = null_mut();
        // SAFETY: the handle lives, and the pointer is written.
        checked(unsafe { rados_getaddrs(self.0, &raw mut text) }, || "asking for this client's address".into())?;
        // SAFETY: it is a string of the library's, which is given back after it was copied.
        let address = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        // SAFETY: as above.
        unsafe { rados_buffer_free(text) };
        Ok(address)
    }

    /// What tells the cluster from every other: 36 characters.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn id(&self) -> Result<String, ConnectError> {
        let mut buffer = [0u8; 64];
        // SAFETY: the handle lives, and the buffer is as long as is said.
        let code = unsafe { rados_cluster_fsid(self.0, buffer.as_mut_ptr().cast(), buffer.len()) };
        checked(code, || "asking for the cluster's id".into())?;
        let len = buffer.iter().position(|byte| *byte == 0).unwrap_or(buffer.len());
        Ok(String::from_utf8_lossy(&buffer[..len]).into_owned())
    }

    /// Has OSDs refuse all of the client with this address for so many seconds, and waits until this client knows it:
    /// whatever it does afterwards makes the OSDs that it asks know it first.
    ///
    /// # Errors
    /// [`ConnectError`]: that is no address, or no monitor has answered in time, and it may be refused or not.
    pub fn shut_out(&self, address: &str, seconds: u32) -> Result<(), ConnectError> {
        let text = no_nul(address)?;
        // SAFETY: the handle lives; the library copies the string, and does not change it.
        let code = unsafe { rados_blocklist_add(self.0, text.as_ptr().cast_mut(), seconds) };
        checked(code, || format!("shutting out client {address:?}"))
    }

    /// A pool, and in it the objects of this namespace alone.
    ///
    /// # Errors
    /// [`ConnectError`]: there is no such pool.
    pub fn pool(self: &Arc<Self>, name: &str, namespace: &str) -> Result<Pool, ConnectError> {
        let (pool, space) = (no_nul(name)?, no_nul(namespace)?);
        let mut handle = null_mut();
        // SAFETY: the cluster's handle lives, and the pointers hold for the call.
        checked(unsafe { rados_ioctx_create(self.0, pool.as_ptr(), &raw mut handle) }, || format!("pool {name:?}"))?;
        let cluster = Some(Arc::clone(self));
        let opened =
            Opened { handle, cluster, count: Arc::default(), endless: Arc::default(), namespace: namespace.to_owned() };
        // SAFETY: both live. Watches and their ends are given no flags: a full pool would keep them until it has room.
        unsafe {
            rados_ioctx_set_namespace(handle, space.as_ptr());
            rados_set_pool_full_try(handle);
        }
        Ok(Pool(Arc::new(opened)))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let handle = self.0 as usize;
        let end = move || {
            // SAFETY: no other thread has the handle any more.
            unsafe { rados_shutdown(handle as Handle) };
        };
        // It waits for the threads that tell, so none of them can wait for it.
        if TELLS.get() {
            drop(std::thread::spawn(end));
        } else {
            end();
        }
    }
}

/// Operations that are begun and not told of.
#[derive(Default)]
pub(super) struct Count {
    under_way: Mutex<usize>,
    none: Condvar,
}

impl Count {
    pub(super) fn begin(&self) {
        *self.under_way.lock() += 1;
    }

    pub(super) fn end(&self) {
        let mut under_way = self.under_way.lock();
        *under_way -= 1;
        if *under_way == 0 {
            self.none.notify_all();
        }
    }

    fn wait(&self) {
        let mut under_way = self.under_way.lock();
        while *under_way > 0 {
            self.none.wait(&mut under_way);
        }
    }

    fn wait_until(&self, until: Instant) {
        let mut under_way = self.under_way.lock();
        while *under_way > 0 && !self.none.wait_until(&mut under_way, until).timed_out() {}
    }
}

struct Opened {
    handle: Handle,
    /// Lives as long as its pools.
    cluster: Option<Arc<Cluster>>,
    count: Arc<Count>,
    /// Of what the library ends when an OSD answers, however late. Each holds the pool.
    endless: Arc<Count>,
    namespace: String,
}

// SAFETY: librados may be called by any thread.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Drop for Opened {
    fn drop(&mut self) {
        let (handle, cluster, count) = (self.handle as usize, self.cluster.take(), Arc::clone(&self.count));
        let end = move || {
            // The library ends each within its time.
            count.wait();
            // SAFETY: the last owner of the handle drops it, and nothing is under way.
            unsafe { rados_ioctx_destroy(handle as Handle) };
            drop(cluster);
        };
        // A thread that tells cannot wait for others to.
        if TELLS.get() {
            drop(std::thread::spawn(end));
        } else {
            // A process that ends while threads of the library run is killed by it: they are gone when this returns.
            end();
        }
    }
}

/// A pool of a cluster.
#[derive(Clone)]
pub struct Pool(Arc<Opened>);

pub(super) type Told = Box<dyn FnOnce(c_int, u64) + Send>;

/// What an operation needs while it is under way.
struct UnderWay {
    told: Told,
    count: Arc<Count>,
}

unsafe extern "C" fn tell(completion: Handle, argument: *mut c_void) {
    // SAFETY: it is what `start` gave, and this is called once.
    let under_way = unsafe { Box::from_raw(argument.cast::<UnderWay>()) };
    // SAFETY: the operation is over; only this call releases it.
    let (code, version) = unsafe {
        let outcome = (rados_aio_get_return_value(completion), rados_aio_get_version(completion));
        rados_aio_release(completion);
        outcome
    };
    TELLS.set(true);
    // A panic must not go through the library: it ends here, with what the closure held.
    let UnderWay { told, count } = *under_way;
    let _ = catch_unwind(AssertUnwindSafe(move || told(code, version)));
    count.end();
}

impl Pool {
    /// Whether this is a thread of librados that tells of operations: it must not wait for others.
    pub fn tells() -> bool {
        TELLS.get()
    }

    /// One that no operation may be begun on.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Self {
        let (handle, namespace) = (null_mut(), String::new());
        let opened = Opened { handle, cluster: None, count: Arc::default(), endless: Arc::default(), namespace };
        let pool = Self(Arc::new(opened));
        // The library is not given it back.
        std::mem::forget(pool.clone());
        pool
    }

    /// Its number in the cluster, which no other pool has or had.
    pub fn id(&self) -> i64 {
        // SAFETY: the handle lives.
        unsafe { rados_ioctx_get_id(self.0.handle) }
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.0.namespace
    }

    /// The cluster that it is of.
    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.0.cluster.as_ref()
    }

    /// Another pool of the cluster, and in it the same namespace.
    ///
    /// # Errors
    /// [`ConnectError`]: there is no such pool.
    pub fn beside(&self, name: &str) -> Result<Self, ConnectError> {
        let cluster = self.cluster().ok_or_else(|| ConnectError {
            what: format!("pool {name:?}"),
            source: std::io::ErrorKind::NotConnected.into(),
        })?;
        cluster.pool(name, &self.0.namespace)
    }

    /// Waits until nothing is under way.
    pub fn wait(&self) {
        self.0.count.wait();
    }

    pub(super) fn handle(&self) -> Handle {
        self.0.handle
    }

    /// Waits until no notify and no new watch is under way, or until then.
    pub fn wait_until(&self, until: Instant) {
        self.0.endless.wait_until(until);
    }

    /// Begins what `operate` asks for with a completion; `told` is called once, by any thread, also if it cannot begin.
    pub(super) fn start(&self, operate: impl FnOnce(Handle, Handle) -> c_int, told: Told) {
        self.start_in(&self.0.count, operate, told);
    }

    /// As [`Pool::start`], of what the library may never tell of: `told` holds the pool.
    pub(super) fn start_endless(&self, operate: impl FnOnce(Handle, Handle) -> c_int, told: Told) {
        self.start_in(&self.0.endless, operate, told);
    }

    /// Counts what a thread of librados does here, until it has let go of all.
    pub(super) fn count(&self) -> Arc<Count> {
        Arc::clone(&self.0.count)
    }

    fn start_in(&self, count: &Arc<Count>, operate: impl FnOnce(Handle, Handle) -> c_int, told: Told) {
        count.begin();
        let argument = Box::into_raw(Box::new(UnderWay { told, count: Arc::clone(count) }));
        let mut completion = null_mut();
        // SAFETY: the argument is a box that `tell` or this takes back.
        let mut code = unsafe { rados_aio_create_completion2(argument.cast(), tell, &raw mut completion) };
        if code >= 0 {
            code = operate(self.0.handle, completion);
            if code < 0 {
                // SAFETY: it was not begun, so the library does not have it.
                unsafe { rados_aio_release(completion) };
            }
        }
        if code < 0 {
            // SAFETY: it was not begun, so `tell` will not be called with it.
            let UnderWay { told, count } = *unsafe { Box::from_raw(argument) };
            count.end();
            told(code, 0);
        }
    }

    /// Does a compound operation on an object. `told` is called once, by a thread of librados that must not be kept:
    /// with the version of the object after it.
    pub fn write(
        &self,
        object: &CStr,
        write: Write,
        flags: i32,
        told: impl FnOnce(Result<u64, Failed>) + Send + 'static,
    ) {
        let handle = write.handle();
        // SAFETY: the pool lives, and the operation too: what is told holds it.
        let operate =
            |pool, done| unsafe { rados_aio_write_op_operate(handle, pool, done, object.as_ptr(), null(), flags) };
        self.start(operate, Box::new(move |code, version| told(write.outcome(code, version))));
    }

    /// As [`Pool::write`], of an operation that reads.
    pub fn read(&self, object: &CStr, read: Read, told: impl FnOnce(Result<Found, Failed>) + Send + 'static) {
        let handle = read.handle();
        // SAFETY: as above.
        let operate = |pool, done| unsafe { rados_aio_read_op_operate(handle, pool, done, object.as_ptr(), 0) };
        self.start(operate, Box::new(move |code, version| told(read.outcome(code, version))));
    }
}

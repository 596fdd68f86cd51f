//! The functions of librados that are used, as `rados/librados.h` of 16.2 declares them.

use std::ffi::{c_char, c_int, c_uchar, c_void};

pub type Handle = *mut c_void;
pub type Callback = unsafe extern "C" fn(completion: Handle, argument: *mut c_void);
pub type Notified =
    unsafe extern "C" fn(argument: *mut c_void, notify: u64, cookie: u64, notifier: u64, data: *mut c_void, len: usize);
pub type Lost = unsafe extern "C" fn(argument: *mut c_void, cookie: u64, error: c_int);

unsafe extern "C" {
    pub fn rados_create(cluster: *mut Handle, id: *const c_char) -> c_int;
    pub fn rados_conf_read_file(cluster: Handle, path: *const c_char) -> c_int;
    pub fn rados_conf_set(cluster: Handle, option: *const c_char, value: *const c_char) -> c_int;
    pub fn rados_connect(cluster: Handle) -> c_int;
    pub fn rados_shutdown(cluster: Handle);
    pub fn rados_cluster_fsid(cluster: Handle, buffer: *mut c_char, len: usize) -> c_int;
    pub fn rados_getaddrs(cluster: Handle, addresses: *mut *mut c_char) -> c_int;
    pub fn rados_buffer_free(buffer: *mut c_char);
    pub fn rados_blocklist_add(cluster: Handle, address: *mut c_char, seconds: u32) -> c_int;
    pub fn rados_ioctx_create(cluster: Handle, pool: *const c_char, pool_handle: *mut Handle) -> c_int;
    pub fn rados_ioctx_get_id(pool: Handle) -> i64;
    pub fn rados_ioctx_destroy(pool: Handle);
    pub fn rados_ioctx_set_namespace(pool: Handle, namespace: *const c_char);
    pub fn rados_set_pool_full_try(pool: Handle);

    pub fn rados_aio_create_completion2(argument: *mut c_void, complete: Callback, completion: *mut Handle) -> c_int;
    pub fn rados_aio_release(completion: Handle);
    pub fn rados_aio_get_return_value(completion: Handle) -> c_int;
    pub fn rados_aio_get_version(completion: Handle) -> u64;
    pub fn rados_aio_write_op_operate(
        op: Handle,
        pool: Handle,
        completion: Handle,
        object: *const c_char,
        modified: *const c_void,
        flags: c_int,
    ) -> c_int;
    pub fn rados_aio_read_op_operate(
        op: Handle,
        pool: Handle,
        completion: Handle,
        object: *const c_char,
        flags: c_int,
    ) -> c_int;

    pub fn rados_aio_watch2(
        pool: Handle,
        object: *const c_char,
        completion: Handle,
        cookie: *mut u64,
        notified: Notified,
        lost: Lost,
        timeout_s: u32,
        argument: *mut c_void,
    ) -> c_int;
    pub fn rados_aio_unwatch(pool: Handle, cookie: u64, completion: Handle) -> c_int;
    pub fn rados_aio_notify(
        pool: Handle,
        object: *const c_char,
        completion: Handle,
        buffer: *const c_char,
        len: c_int,
        timeout_ms: u64,
        reply: *mut *mut c_char,
        reply_len: *mut usize,
    ) -> c_int;
    pub fn rados_notify_ack(
        pool: Handle,
        object: *const c_char,
        notify: u64,
        cookie: u64,
        buffer: *const c_char,
        len: c_int,
    ) -> c_int;

    pub fn rados_create_write_op() -> Handle;
    pub fn rados_release_write_op(op: Handle);
    pub fn rados_write_op_assert_exists(op: Handle);
    pub fn rados_write_op_assert_version(op: Handle, version: u64);
    pub fn rados_write_op_create(op: Handle, exclusive: c_int, category: *const c_char);
    pub fn rados_write_op_cmpxattr(op: Handle, name: *const c_char, compare: u8, value: *const c_char, len: usize);
    pub fn rados_write_op_omap_cmp2(
        op: Handle,
        key: *const c_char,
        compare: u8,
        value: *const c_char,
        key_len: usize,
        value_len: usize,
        outcome: *mut c_int,
    );
    pub fn rados_write_op_setxattr(op: Handle, name: *const c_char, value: *const c_char, len: usize);
    pub fn rados_write_op_rmxattr(op: Handle, name: *const c_char);
    pub fn rados_write_op_write(op: Handle, buffer: *const c_char, len: usize, offset: u64);
    pub fn rados_write_op_append(op: Handle, buffer: *const c_char, len: usize);
    pub fn rados_write_op_zero(op: Handle, offset: u64, len: u64);
    pub fn rados_write_op_truncate(op: Handle, size: u64);
    pub fn rados_write_op_remove(op: Handle);
    pub fn rados_write_op_omap_set2(
        op: Handle,
        keys: *const *const c_char,
        values: *const *const c_char,
        key_lens: *const usize,
        value_lens: *const usize,
        count: usize,
    );
    pub fn rados_write_op_omap_rm_keys2(op: Handle, keys: *const *const c_char, key_lens: *const usize, count: usize);
    pub fn rados_write_op_omap_rm_range2(
        op: Handle,
        begin: *const c_char,
        begin_len: usize,
        end: *const c_char,
        end_len: usize,
    );

    pub fn rados_create_read_op() -> Handle;
    pub fn rados_release_read_op(op: Handle);
    pub fn rados_read_op_stat(op: Handle, size: *mut u64, modified: *mut i64, outcome: *mut c_int);
    pub fn rados_read_op_read(
        op: Handle,
        offset: u64,
        len: usize,
        buffer: *mut c_char,
        read: *mut usize,
        outcome: *mut c_int,
    );
    pub fn rados_read_op_cmpxattr(op: Handle, name: *const c_char, compare: u8, value: *const c_char, len: usize);
    pub fn rados_read_op_omap_get_keys2(
        op: Handle,
        start_after: *const c_char,
        limit: u64,
        iterator: *mut Handle,
        more: *mut c_uchar,
        outcome: *mut c_int,
    );
    pub fn rados_read_op_getxattrs(op: Handle, iterator: *mut Handle, outcome: *mut c_int);
    pub fn rados_read_op_omap_get_vals2(
        op: Handle,
        start_after: *const c_char,
        prefix: *const c_char,
        limit: u64,
        iterator: *mut Handle,
        more: *mut c_uchar,
        outcome: *mut c_int,
    );
    pub fn rados_read_op_omap_get_vals_by_keys2(
        op: Handle,
        keys: *const *const c_char,
        count: usize,
        key_lens: *const usize,
        iterator: *mut Handle,
        outcome: *mut c_int,
    );
    pub fn rados_omap_get_next2(
        iterator: Handle,
        key: *mut *mut c_char,
        value: *mut *mut c_char,
        key_len: *mut usize,
        value_len: *mut usize,
    ) -> c_int;
    pub fn rados_omap_get_end(iterator: Handle);
    pub fn rados_getxattrs_next(
        iterator: Handle,
        name: *mut *const c_char,
        value: *mut *const c_char,
        len: *mut usize,
    ) -> c_int;
    pub fn rados_getxattrs_end(iterator: Handle);
}

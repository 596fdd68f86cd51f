//! Compound operations on one object.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::{null, null_mut};

use super::library::{
    Handle, rados_create_read_op, rados_create_write_op, rados_getxattrs_end, rados_getxattrs_next, rados_omap_get_end,
    rados_omap_get_next2, rados_read_op_cmpxattr, rados_read_op_getxattrs, rados_read_op_omap_get_keys2,
    rados_read_op_omap_get_vals_by_keys2, rados_read_op_omap_get_vals2, rados_read_op_read, rados_read_op_stat,
    rados_release_read_op, rados_release_write_op, rados_write_op_append, rados_write_op_assert_exists,
    rados_write_op_assert_version, rados_write_op_cmpxattr, rados_write_op_create, rados_write_op_omap_cmp2,
    rados_write_op_omap_rm_keys2, rados_write_op_omap_rm_range2, rados_write_op_omap_set2, rados_write_op_remove,
    rados_write_op_rmxattr, rados_write_op_setxattr, rados_write_op_truncate, rados_write_op_write,
    rados_write_op_zero,
};

/// How two byte strings are compared. Of an xattr the argument stands on the left, of an omap value what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Compare {
    /// Equal.
    Equal = 1,
    /// Not equal; of xattrs only.
    NotEqual = 2,
    /// Greater.
    Greater = 3,
    /// Greater or equal; of xattrs only.
    AtLeast = 4,
    /// Less.
    Less = 5,
    /// Less or equal; of xattrs only.
    AtMost = 6,
}

/// Why an operation was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", std::io::Error::from_raw_os_error(self.code))]
pub struct Failed {
    /// The operating system's number of the error.
    pub code: i32,
    /// Which of the comparisons did not hold, counted in their order, if that is known: one of an omap value is, one of
    /// an xattr where the operation has a [mark](Write::marked_by).
    pub guard: Option<usize>,
}

/// A number that the library writes before it tells of the operation.
struct Slot(*mut c_int);

// SAFETY: it is read only when the library has told.
unsafe impl Send for Slot {}

impl Slot {
    fn new() -> Self {
        Self(Box::into_raw(Box::new(0)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and the operation is over or was never begun.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// ECANCELED: a comparison did not hold.
const CANCELED: c_int = 125;

fn bytes(of: &[u8]) -> *const c_char {
    of.as_ptr().cast()
}

/// A comparison, with what the library writes of it.
enum Guard {
    Omap(Slot),
    /// Of an xattr the library tells nothing. The slot of the mark behind it stays 0 where the OSD does not come to it;
    /// where it does, it puts there what came of the last comparison of an xattr, which is 1.
    Xattr(Option<Slot>),
}

/// A compound operation that changes an object: its parts in the order in which they are added.
pub struct Write {
    op: Handle,
    guards: Vec<Guard>,
    mark: Option<Vec<u8>>,
}

// SAFETY: one thread at a time has it.
unsafe impl Send for Write {}

impl Default for Write {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        // SAFETY: no other thread has it, and it is not under way.
        unsafe { rados_release_write_op(self.op) };
    }
}

impl Write {
    /// An operation that does nothing.
    pub fn new() -> Self {
        // SAFETY: it takes nothing.
        Self { op: unsafe { rados_create_write_op() }, guards: Vec::new(), mark: None }
    }

    /// One that tells which comparison of an xattr has failed, by a look at an omap key that no object has.
    pub fn marked_by(key: &[u8]) -> Self {
        let mut marked = Self::new();
        marked.mark = Some(key.to_vec());
        marked
    }

    pub(super) fn handle(&self) -> Handle {
        self.op
    }

    pub(super) fn outcome(self, code: c_int, version: u64) -> Result<u64, Failed> {
        if code >= 0 {
            return Ok(version);
        }
        // SAFETY: the library has told of the operation, and writes no more.
        let told = |slot: &Slot| unsafe { *slot.0 };
        let fails = |guard: &Guard| matches!(guard, Guard::Omap(slot) if told(slot) < 0);
        let is_not_passed = |guard: &Guard| matches!(guard, Guard::Xattr(Some(mark)) if told(mark) == 0);
        let omap = self.guards.iter().position(fails);
        let guard = omap.or_else(|| self.guards.iter().position(is_not_passed));
        Err(Failed { code: -code, guard: guard.filter(|_| code == -CANCELED) })
    }

    /// The object is there.
    pub fn assert_exists(&mut self) {
        // SAFETY: the operation lives.
        unsafe { rados_write_op_assert_exists(self.op) };
    }

    /// The object has this version.
    pub fn assert_version(&mut self, version: u64) {
        // SAFETY: as above.
        unsafe { rados_write_op_assert_version(self.op, version) };
    }

    /// Makes the object; if it is `exclusive`, it must not be there.
    pub fn create(&mut self, exclusive: bool) {
        // SAFETY: as above; no category is given.
        unsafe { rados_write_op_create(self.op, c_int::from(exclusive), null()) };
    }

    /// The xattr compares so: `value`, `compare`, what is stored; one that is not there as an empty one.
    pub fn compare_xattr(&mut self, name: &CStr, compare: Compare, value: &[u8]) {
        // SAFETY: as above; what is pointed to is copied.
        unsafe { rados_write_op_cmpxattr(self.op, name.as_ptr(), compare as u8, bytes(value), value.len()) };
        let mark = self.mark.take();
        let slot = mark.as_ref().map(|key| self.look_at(key, Compare::Equal, b""));
        self.mark = mark;
        self.guards.push(Guard::Xattr(slot));
    }

    /// The omap value compares so: what is stored, `compare`, `value`; one that is not there as an empty one.
    pub fn compare_omap(&mut self, key: &[u8], compare: Compare, value: &[u8]) {
        let slot = self.look_at(key, compare, value);
        self.guards.push(Guard::Omap(slot));
    }

    fn look_at(&mut self, key: &[u8], compare: Compare, value: &[u8]) -> Slot {
        let slot = Slot::new();
        // SAFETY: as above; the slot lives as long as the operation.
        unsafe {
            rados_write_op_omap_cmp2(self.op, bytes(key), compare as u8, bytes(value), key.len(), value.len(), slot.0);
        }
        slot
    }

    /// Sets an xattr.
    pub fn set_xattr(&mut self, name: &CStr, value: &[u8]) {
        // SAFETY: as above.
        unsafe { rados_write_op_setxattr(self.op, name.as_ptr(), bytes(value), value.len()) };
    }

    /// Removes an xattr.
    pub fn remove_xattr(&mut self, name: &CStr) {
        // SAFETY: as above.
        unsafe { rados_write_op_rmxattr(self.op, name.as_ptr()) };
    }

    /// Writes data.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        // SAFETY: as above.
        unsafe { rados_write_op_write(self.op, bytes(data), data.len(), offset) };
    }

    /// Writes data at the end.
    pub fn append(&mut self, data: &[u8]) {
        // SAFETY: as above.
        unsafe { rados_write_op_append(self.op, bytes(data), data.len()) };
    }

    /// Makes bytes zero.
    pub fn zero(&mut self, offset: u64, len: u64) {
        // SAFETY: as above.
        unsafe { rados_write_op_zero(self.op, offset, len) };
    }

    /// Gives the object this size.
    pub fn truncate(&mut self, size: u64) {
        // SAFETY: as above.
        unsafe { rados_write_op_truncate(self.op, size) };
    }

    /// Removes the object.
    pub fn remove(&mut self) {
        // SAFETY: as above.
        unsafe { rados_write_op_remove(self.op) };
    }

    /// Sets omap values.
    pub fn set_omap(&mut self, entries: &[(&[u8], &[u8])]) {
        let (keys, values): (Vec<_>, Vec<_>) = entries.iter().map(|(key, value)| (bytes(key), bytes(value))).unzip();
        let (key_lens, value_lens): (Vec<_>, Vec<_>) =
            entries.iter().map(|(key, value)| (key.len(), value.len())).unzip();
        // SAFETY: as above; the four lists are as long as is said.
        unsafe {
            rados_write_op_omap_set2(
                self.op,
                keys.as_ptr(),
                values.as_ptr(),
                key_lens.as_ptr(),
                value_lens.as_ptr(),
                entries.len(),
            );
        }
    }

    /// Removes omap keys.
    pub fn remove_omap(&mut self, keys: &[&[u8]]) {
        let (all, lens): (Vec<_>, Vec<_>) = keys.iter().map(|key| (bytes(key), key.len())).unzip();
        // SAFETY: as above.
        unsafe { rados_write_op_omap_rm_keys2(self.op, all.as_ptr(), lens.as_ptr(), keys.len()) };
    }

    /// Removes the omap keys from `begin` on, before `end`.
    pub fn remove_omap_range(&mut self, begin: &[u8], end: &[u8]) {
        // SAFETY: as above.
        unsafe { rados_write_op_omap_rm_range2(self.op, bytes(begin), begin.len(), bytes(end), end.len()) };
    }
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Version of the object.
    pub version: u64,
    /// Size in bytes, if it was asked for.
    pub size: u64,
    /// Data, if it was asked for; shorter where the object ends.
    pub data: Vec<u8>,
    /// Omap entries that were asked for, in order.
    pub omap: Vec<(Vec<u8>, Vec<u8>)>,
    /// There are more in the range that was asked for.
    pub more: bool,
    /// Xattrs, by name.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The first omap key behind each place that was asked about, in their order.
    pub behind: Vec<Option<Vec<u8>>>,
}

/// What the library writes to.
struct Answers {
    size: u64,
    modified: i64,
    data: Vec<u8>,
    read: usize,
    omap: Handle,
    more: u8,
    xattrs: Handle,
    /// Of each part.
    codes: [c_int; 4],
    /// From boxes, which the operation owns.
    behind: Vec<*mut Behind>,
}

/// What the library writes to of one look for a key.
struct Behind {
    omap: Handle,
    more: u8,
    code: c_int,
}

/// A compound operation that reads an object: each part at most once, unless it says otherwise; all of one moment.
pub struct Read {
    op: Handle,
    answers: *mut Answers,
}

// SAFETY: one thread at a time has it.
unsafe impl Send for Read {}

impl Default for Read {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        // SAFETY: no other thread has it, and it is not under way.
        unsafe { rados_release_read_op(self.op) };
        // SAFETY: it came from a box.
        let answers = unsafe { Box::from_raw(self.answers) };
        // SAFETY: as above.
        let behind = answers.behind.iter().map(|behind| unsafe { Box::from_raw(*behind) }.omap);
        for omap in behind.chain([answers.omap]) {
            if !omap.is_null() {
                // SAFETY: the library has made it, and it is ended once.
                unsafe { rados_omap_get_end(omap) };
            }
        }
        if !answers.xattrs.is_null() {
            // SAFETY: as above.
            unsafe { rados_getxattrs_end(answers.xattrs) };
        }
    }
}

impl Read {
    /// An operation that reads nothing: it fails where the object is not there.
    pub fn new() -> Self {
        let answers = Answers {
            size: 0,
            modified: 0,
            data: Vec::new(),
            read: 0,
            omap: null_mut(),
            more: 0,
            xattrs: null_mut(),
            codes: [0; 4],
            behind: Vec::new(),
        };
        // SAFETY: it takes nothing.
        Self { op: unsafe { rados_create_read_op() }, answers: Box::into_raw(Box::new(answers)) }
    }

    pub(super) fn handle(&self) -> Handle {
        self.op
    }

    /// The xattr compares so, as in [`Write::compare_xattr`]: else nothing is read.
    pub fn compare_xattr(&mut self, name: &CStr, compare: Compare, value: &[u8]) {
        // SAFETY: the operation lives; what is pointed to is copied.
        unsafe { rados_read_op_cmpxattr(self.op, name.as_ptr(), compare as u8, bytes(value), value.len()) };
    }

    /// As [`Read::omap`], without the values.
    pub fn omap_names(&mut self, after: &CStr, limit: u64) {
        // SAFETY: what is pointed to lives as long as the operation.
        unsafe {
            let answers = self.answers;
            rados_read_op_omap_get_keys2(
                self.op,
                after.as_ptr(),
                limit,
                &raw mut (*answers).omap,
                &raw mut (*answers).more,
                &raw mut (*answers).codes[2],
            );
        }
    }

    /// Asks for the first omap key behind `after`, without its value; as often as is wanted.
    pub fn omap_name_behind(&mut self, after: &CStr) {
        let behind = Box::into_raw(Box::new(Behind { omap: null_mut(), more: 0, code: 0 }));
        // SAFETY: what is pointed to lives as long as the operation; no other thread has the answers meanwhile.
        unsafe {
            (*self.answers).behind.push(behind);
            rados_read_op_omap_get_keys2(
                self.op,
                after.as_ptr(),
                1,
                &raw mut (*behind).omap,
                &raw mut (*behind).more,
                &raw mut (*behind).code,
            );
        }
    }

    /// Asks for the size.
    pub fn stat(&mut self) {
        // SAFETY: what is pointed to lives as long as the operation.
        unsafe {
            let answers = self.answers;
            rados_read_op_stat(
                self.op,
                &raw mut (*answers).size,
                &raw mut (*answers).modified,
                &raw mut (*answers).codes[0],
            );
        }
    }

    /// Asks for data.
    pub fn data(&mut self, offset: u64, len: usize) {
        // SAFETY: as above; no other thread has the answers meanwhile.
        unsafe {
            let answers = self.answers;
            (*answers).data = vec![0; len];
            let buffer = (*answers).data.as_mut_ptr().cast();
            rados_read_op_read(self.op, offset, len, buffer, &raw mut (*answers).read, &raw mut (*answers).codes[1]);
        }
    }

    /// Asks for up to `limit` omap entries behind `after`; the OSD gives 1,024 at most.
    pub fn omap(&mut self, after: &CStr, limit: u64) {
        // SAFETY: as above.
        unsafe {
            let answers = self.answers;
            rados_read_op_omap_get_vals2(
                self.op,
                after.as_ptr(),
                null(),
                limit,
                &raw mut (*answers).omap,
                &raw mut (*answers).more,
                &raw mut (*answers).codes[2],
            );
        }
    }

    /// Asks for the entries of these omap keys that are there.
    pub fn omap_keys(&mut self, keys: &[&[u8]]) {
        let (all, lens): (Vec<_>, Vec<_>) = keys.iter().map(|key| (bytes(key), key.len())).unzip();
        // SAFETY: as above; the lists are as long as is said, and are copied.
        unsafe {
            let answers = self.answers;
            rados_read_op_omap_get_vals_by_keys2(
                self.op,
                all.as_ptr(),
                keys.len(),
                lens.as_ptr(),
                &raw mut (*answers).omap,
                &raw mut (*answers).codes[2],
            );
        }
    }

    /// Asks for all xattrs.
    pub fn xattrs(&mut self) {
        // SAFETY: as above.
        unsafe {
            let answers = self.answers;
            rados_read_op_getxattrs(self.op, &raw mut (*answers).xattrs, &raw mut (*answers).codes[3]);
        }
    }

    pub(super) fn outcome(self, code: c_int, version: u64) -> Result<Found, Failed> {
        // SAFETY: the library has told of the operation, and writes no more.
        let answers = unsafe { &mut *self.answers };
        // SAFETY: as above.
        let behind = answers.behind.iter().map(|behind| unsafe { (**behind).code });
        let failed = [code].into_iter().chain(answers.codes).chain(behind).find(|code| *code < 0);
        if let Some(code) = failed {
            return Err(Failed { code: -code, guard: None });
        }
        let mut data = std::mem::take(&mut answers.data);
        data.truncate(answers.read);
        let mut found = Found { version, size: answers.size, data, more: answers.more != 0, ..Found::default() };
        while let Some(entry) = next_entry(answers.omap)? {
            found.omap.push(entry);
        }
        for behind in &answers.behind {
            // SAFETY: as above.
            let listed = unsafe { (**behind).omap };
            found.behind.push(next_entry(listed)?.map(|(key, _)| key));
        }
        while !answers.xattrs.is_null() {
            let (mut name, mut value, mut len) = (null(), null(), 0);
            // SAFETY: as above.
            let code = unsafe { rados_getxattrs_next(answers.xattrs, &raw mut name, &raw mut value, &raw mut len) };
            if code < 0 {
                return Err(Failed { code: -code, guard: None });
            }
            if name.is_null() {
                break;
            }
            // SAFETY: as above; a name ends at its NUL.
            found.xattrs.push(unsafe { (CStr::from_ptr(name).to_bytes().to_vec(), copied(value, len)) });
        }
        Ok(found)
    }
}

/// A key and its value.
type Pair = (Vec<u8>, Vec<u8>);

/// The next entry of what the library has listed.
fn next_entry(listed: Handle) -> Result<Option<Pair>, Failed> {
    if listed.is_null() {
        return Ok(None);
    }
    let (mut key, mut value, mut key_len, mut value_len) = (null_mut(), null_mut(), 0, 0);
    // SAFETY: the library made the iterator; the four are written.
    let code =
        unsafe { rados_omap_get_next2(listed, &raw mut key, &raw mut value, &raw mut key_len, &raw mut value_len) };
    if code < 0 {
        return Err(Failed { code: -code, guard: None });
    }
    if key.is_null() {
        return Ok(None);
    }
    // SAFETY: what is pointed to is as long as is said until the next call.
    Ok(Some(unsafe { (copied(key, key_len), copied(value, value_len)) }))
}

/// # Safety
/// `from` points to `len` bytes, or `len` is 0.
unsafe fn copied(from: *const c_char, len: usize) -> Vec<u8> {
    if len == 0 {
        return Vec::new();
    }
    // SAFETY: the caller says so.
    unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) }.to_vec()
}

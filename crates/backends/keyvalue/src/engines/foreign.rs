//! What the bindings to C libraries share: their error strings and their memory.

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use esker_store::Error;

/// A pointer to something of the library's own.
pub type Opaque = *mut c_void;

/// Takes an error string over from a library that gave it (null means success) and frees it with the library's `free`.
///
/// # Safety
/// `text` is null or a string that `free` may be called with, which only the caller holds.
pub unsafe fn taken(text: *mut c_char, free: unsafe extern "C" fn(*mut c_void)) -> Result<(), String> {
    if text.is_null() {
        return Ok(());
    }
    // SAFETY: by the caller's promise it is a string, and ours to free.
    unsafe {
        let message = CStr::from_ptr(text).to_string_lossy().into_owned();
        free(text.cast());
        Err(message)
    }
}

/// A path as C takes it.
pub fn c_path(path: &Path) -> Result<CString, String> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| "the path holds a zero byte".to_string())
}

/// A failure as the waist tells it. Both libraries begin their messages with the kind of failure.
pub fn failure(what: &str, library: &str, message: String) -> Error {
    if message.starts_with("Corruption") {
        return Error::Corrupt { offset: 0, what: format!("{library}, {what}: {message}") };
    }
    Error::io(format!("{library}, {what}"), std::io::Error::other(message))
}

/// Bytes of a library.
///
/// # Safety
/// `len` bytes at `at` stay as they are for as long as the caller uses what is returned.
pub unsafe fn slice<'a>(at: *const c_char, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: by the caller's promise.
    unsafe { std::slice::from_raw_parts(at.cast(), len) }
}

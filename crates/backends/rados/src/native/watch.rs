//! Watches of objects, and notifies that reach them.
//!
//! watch → (notify of any client → answered at once → [`Ear::notified`]) · cut off → [`Ear::lost`] → unwatch
//!
//! The library sets these no time: of a watch or a notify it tells when an OSD has answered, however late. So neither
//! is among what [`Pool::wait`] waits for, and each holds its pool until it is told of ([`Pool::wait_until`]).
//!
//! Invariants:
//! 1. The library is given the number of an ear, and no pointer to it: what it calls after an unwatch finds none.
//! 2. When an unwatch was waited for ([`Pool::wait`]) no call of its ear is running, and none holds the pool.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::cluster::{Pool, TELLS};
use super::library::{rados_aio_notify, rados_aio_unwatch, rados_aio_watch2, rados_buffer_free, rados_notify_ack};
use super::operation::Failed;

/// Is told of a watched object, by threads of librados that must not be kept.
pub trait Ear: Send + Sync {
    /// A client has notified of it.
    fn notified(&self);

    /// The watch hears no more, and may have missed something: it is to be ended.
    fn lost(&self);
}

/// A watch that an OSD keeps. It ends by [`Pool::unwatch`] alone.
#[derive(Debug)]
pub struct Watch {
    cookie: u64,
    ear: usize,
}

/// Who heard a notify.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Watches that have answered.
    pub answered: u32,
    /// Watches that have not.
    pub silent: u32,
}

impl Heard {
    /// Reads a reply: a count of answers, each with 16 bytes of who and a payload behind its length; a count of those
    /// that were silent.
    fn decode(reply: &[u8]) -> Option<Self> {
        let (answered, mut rest) = number(reply)?;
        for _ in 0..answered {
            let (payload, behind) = number(rest.get(16..)?)?;
            rest = behind.get(payload as usize..)?;
        }
        Some(Self { answered, silent: number(rest)?.0 })
    }
}

fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_le_bytes(*number), rest))
}

struct Listening {
    pool: Pool,
    object: CString,
    ear: Arc<dyn Ear>,
}

static LAST: AtomicUsize = AtomicUsize::new(0);
static LISTENING: Mutex<BTreeMap<usize, Arc<Listening>>> = Mutex::new(BTreeMap::new());

/// Does what the library tells of a watch.
fn hear(argument: *mut c_void, hear: impl FnOnce(&Listening)) {
    TELLS.set(true);
    let all = LISTENING.lock();
    let Some(listening) = all.get(&(argument as usize)).cloned() else { return };
    // Before an unwatch ends that comes meanwhile.
    let count = listening.pool.count();
    count.begin();
    drop(all);
    // A panic must not go through the library: it ends here, with what the closure held.
    let _ = catch_unwind(AssertUnwindSafe(move || hear(&listening)));
    count.end();
}

fn end(ear: usize) {
    let ended = LISTENING.lock().remove(&ear);
    // It may hold the last of a pool.
    drop(ended);
}

unsafe extern "C" fn notified(
    argument: *mut c_void,
    notify: u64,
    cookie: u64,
    _notifier: u64,
    _data: *mut c_void,
    _len: usize,
) {
    hear(argument, |listening| {
        let object = listening.object.as_ptr();
        // SAFETY: the pool lives, and the string. What it sends is not waited for.
        unsafe { rados_notify_ack(listening.pool.handle(), object, notify, cookie, null(), 0) };
        listening.ear.notified();
    });
}

unsafe extern "C" fn lost(argument: *mut c_void, _cookie: u64, _error: c_int) {
    hear(argument, |listening| listening.ear.lost());
}

/// Where the library puts a reply.
struct Reply {
    buffer: *mut c_char,
    len: usize,
}

/// Owned while a notify is under way.
struct ReplySlot(*mut Reply);

// SAFETY: it is read only when the library has told.
unsafe impl Send for ReplySlot {}

impl ReplySlot {
    fn new() -> Self {
        Self(Box::into_raw(Box::new(Reply { buffer: null_mut(), len: 0 })))
    }

    /// What the reply says, if there is one.
    fn heard(self) -> Option<Heard> {
        // SAFETY: the operation is over or was never begun, so the library does not write it.
        let Reply { buffer, len } = unsafe { self.0.read() };
        if buffer.is_null() {
            return None;
        }
        // SAFETY: the library has put `len` bytes there.
        Heard::decode(unsafe { std::slice::from_raw_parts(buffer.cast(), len) })
    }
}

impl Drop for ReplySlot {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and the operation is over or was never begun.
        let Reply { buffer, .. } = *unsafe { Box::from_raw(self.0) };
        if !buffer.is_null() {
            // SAFETY: it is the library's, and was not given back.
            unsafe { rados_buffer_free(buffer) };
        }
    }
}

/// As of [`ReplySlot`]: where the library puts a watch's number.
struct CookieSlot(*mut u64);

// SAFETY: it is read only when the library has told.
unsafe impl Send for CookieSlot {}

impl CookieSlot {
    fn new() -> Self {
        Self(Box::into_raw(Box::new(0)))
    }

    fn cookie(&self) -> u64 {
        // SAFETY: it came from a box, and the operation is over.
        unsafe { self.0.read() }
    }
}

impl Drop for CookieSlot {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and the operation is over or was never begun.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl Pool {
    /// Watches an object that is there. An OSD keeps the watch for `keep_s` seconds when it does not hear of this
    /// client. `told` is called once, by a thread of librados that must not be kept; where no OSD answers, not at all.
    pub fn watch(
        &self,
        object: &CStr,
        keep_s: u32,
        ear: Arc<dyn Ear>,
        told: impl FnOnce(Result<Watch, Failed>) + Send + 'static,
    ) {
        let ear_number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let listening = Arc::new(Listening { pool: self.clone(), object: object.to_owned(), ear });
        LISTENING.lock().insert(ear_number, listening);
        let slot = CookieSlot::new();
        let cookie = slot.0;
        let operate = |pool, done| {
            let argument = ear_number as *mut c_void;
            // SAFETY: the pool lives, and the string; what is told owns where the number goes.
            unsafe { rados_aio_watch2(pool, object.as_ptr(), done, cookie, notified, lost, keep_s, argument) }
        };
        let pool = self.clone();
        let told = move |code: c_int, _| {
            let outcome = if code >= 0 {
                Ok(Watch { cookie: slot.cookie(), ear: ear_number })
            } else {
                end(ear_number);
                Err(Failed { code: -code, guard: None })
            };
            told(outcome);
            drop(pool);
        };
        self.start_endless(operate, Box::new(told));
    }

    /// Ends a watch. It is over, as far as this client goes, whatever becomes of the operation.
    pub fn unwatch(&self, watch: Watch) {
        let Watch { cookie, ear } = watch;
        // SAFETY: the pool lives; the watch was told of, and is ended once.
        let operate = |pool, done| unsafe { rados_aio_unwatch(pool, cookie, done) };
        self.start(operate, Box::new(move |_, _| end(ear)));
    }

    /// Notifies those who watch an object, each of which has `answer_s` seconds to answer. `told` is called once, by a
    /// thread of librados that must not be kept, when all have answered or their time is over; where no OSD answers,
    /// not at all.
    pub fn notify(&self, object: &CStr, answer_s: u32, told: impl FnOnce(Result<Heard, Failed>) + Send + 'static) {
        let slot = ReplySlot::new();
        let reply = slot.0;
        let operate = |pool, done| {
            // SAFETY: the pool lives, and the string; what is told owns where the reply goes. Places of fields are
            // taken, nothing is read.
            unsafe {
                let (buffer, len) = (&raw mut (*reply).buffer, &raw mut (*reply).len);
                let answer_ms = u64::from(answer_s) * 1_000;
                rados_aio_notify(pool, object.as_ptr(), done, null(), 0, answer_ms, buffer, len)
            }
        };
        let pool = self.clone();
        let told = move |code: c_int, _| {
            // Where some were silent it has failed, and says so in the reply.
            told(slot.heard().ok_or(Failed { code: -code, guard: None }));
            drop(pool);
        };
        self.start_endless(operate, Box::new(told));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_tells_who_has_answered_and_who_has_not() {
        let decode = |parts: &[&[u8]]| Heard::decode(&parts.concat());
        let (none, one, two) = (&0u32.to_le_bytes()[..], &1u32.to_le_bytes()[..], &2u32.to_le_bytes()[..]);
        let who = &[7; 16][..];
        assert_eq!(decode(&[none, none]), Some(Heard { answered: 0, silent: 0 }));
        assert_eq!(decode(&[none, one, who]), Some(Heard { answered: 0, silent: 1 }));
        assert_eq!(decode(&[two, who, none, who, two, b"ab", one, who]), Some(Heard { answered: 2, silent: 1 }));
        for cut in [&[][..], &[none, &[0, 0]], &[one, who], &[one, who, two, b"a"], &[one, who, none]] {
            assert_eq!(decode(cut), None, "{cut:?}");
        }
        assert_eq!(Heard::decode(&[0xff; 64]), None);
    }
}

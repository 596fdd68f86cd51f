//! Whether the pool is full: an OSD counts bytes of objects, and none of keys, so writes of keys pass it by until it
//! drops them without an answer.
//!
//! keys that are written → now and then a byte is appended to an object of its own → refused: the pool is full
//!
//! Invariant: where keys are written, no more than [`PROBE_BYTES`] or [`PROBE_EVERY`] passes without a probe begun.

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use esker_store::{Error, Result};
use parking_lot::Mutex;

use crate::link::{Link, code};
use crate::native::{Write, flags};

/// Bytes of keys that are written between two probes, at most.
const PROBE_BYTES: usize = 16 << 20;
/// Time between two probes while keys are written, at most.
const PROBE_EVERY: Duration = Duration::from_secs(2);
/// The object that is appended to.
const PROBED: &CStr = c"probe";
/// It begins anew after so many bytes of one client.
const PROBED_BYTES: u32 = 10_000;

struct State {
    bytes: usize,
    last: Instant,
    under_way: bool,
    probes: u32,
}

/// What is known of a pool.
pub(crate) struct Fullness {
    link: Link,
    state: Mutex<State>,
    is_full: AtomicBool,
}

impl Fullness {
    pub(crate) fn new(link: Link) -> Arc<Self> {
        let state = State { bytes: 0, last: Instant::now(), under_way: false, probes: 0 };
        Arc::new(Self { link, state: Mutex::new(state), is_full: AtomicBool::new(false) })
    }

    /// Called before so many bytes of keys are written.
    ///
    /// # Errors
    /// [`Error::Full`]: the last probe was refused.
    pub(crate) fn admit(self: &Arc<Self>, bytes: usize) -> Result<()> {
        let mut state = self.state.lock();
        state.bytes += bytes;
        let probes = !state.under_way && (state.bytes >= PROBE_BYTES || state.last.elapsed() >= PROBE_EVERY);
        if probes {
            (state.under_way, state.bytes) = (true, 0);
            state.probes += 1;
            let begins_anew = state.probes.is_multiple_of(PROBED_BYTES);
            drop(state);
            self.probe(begins_anew);
        }
        if self.is_full.load(Ordering::SeqCst) { Err(Error::Full { needed: bytes as u64, free: 0 }) } else { Ok(()) }
    }

    fn probe(self: &Arc<Self>, begins_anew: bool) {
        let mut write = Write::new();
        write.create(false);
        if begins_anew {
            write.truncate(0);
        }
        write.append(&[0]);
        let own = Arc::clone(self);
        self.link.pool.write(PROBED, write, flags::FULL_TRY, move |outcome| {
            match outcome {
                Ok(_) => own.is_full.store(false, Ordering::SeqCst),
                Err(failed) if matches!(failed.code, code::NO_SPACE | code::QUOTA) => {
                    if !own.is_full.swap(true, Ordering::SeqCst) {
                        tracing::warn!("the pool on Ceph is full: what adds to it is refused");
                    }
                }
                // Nothing is known of it.
                Err(_) => {}
            }
            let mut state = own.state.lock();
            (state.under_way, state.last) = (false, Instant::now());
        });
    }
}

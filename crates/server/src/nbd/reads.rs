//! Reads that wait for the device: which thread of a connection carries out which.
//!
//! ```text
//! the thread that leads → [`Reads::gather`] → few threads read: it reads all that has gathered, without the lead
//!                                           → else it receives on; a thread that has done its reads takes them
//! a client that waits for each read → [`Reads::is_lone`]: carried out with the lead, since giving it away wakes a
//!                                     thread for nothing
//! ```
//!
//! Where the export brings what is read, many reads at a time, few threads read: as many as can run at the same time,
//! and two at least. Where it does not, or its reads are waited for all the same (compressed data, index pages that are
//! not in memory), each read is one thread's to wait for: for a while, since that may change.
//!
//! Invariants:
//! 1. What has gathered is taken by a thread that reads; while none does, nothing is left there.
//! 2. A client wrongly taken for one that waits is found out within [`LOOK_EVERY`] of its reads.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

use parking_lot::Mutex;

use crate::nbd::wire::Request;

/// So many reads that a thread takes at most, ...
const TAKEN_MAX: usize = 32;
/// ... where each is waited for, ...
const TAKEN_APART_MAX: usize = 8;
/// ... and so many bytes, if they are several.
const TAKEN_BYTES_MAX: u32 = 512 << 10;
/// After so many reads that came alone the client is taken for one that waits.
const IN_A_ROW: u32 = 32;
/// The thread that leads looks every so many reads whether another waits.
const LOOK_EVERY: u64 = 4;
/// So many reads are waited for one by one before the export is asked again to bring them.
const APART_READS: u32 = 1_024;
/// Of a new connection: of an export that brings nothing one thread would have all that it takes to wait for.
const FIRST_APART_READS: u32 = 32;
/// A read that was brought and takes longer than this was waited for all the same; one of many bytes takes longer.
const WAITED: Duration = Duration::from_micros(100);
/// One that was counts for so many that were not, ...
const WAITED_WEIGHT: u32 = 8;
/// ... and when they have come to this, reads are waited for one by one.
const WAITED_MAX: u32 = 128;

#[derive(Default)]
struct State {
    gathered: VecDeque<Request>,
    /// Threads that read.
    readers: usize,
}

/// See the module.
pub(super) struct Reads {
    state: Mutex<State>,
    /// Threads at most, and of these that can run at the same time.
    threads: usize,
    at_once: usize,
    /// Reads that are still waited for one by one.
    apart: AtomicU32,
    waited: AtomicU32,
    received: AtomicU64,
    /// Reads carried out with the lead.
    lone: AtomicU64,
    in_a_row: AtomicU32,
}

/// Reads that a thread carries out without the lead.
pub(super) struct Taken {
    pub(super) reads: Vec<Request>,
    received: u64,
    alone: bool,
}

impl Reads {
    pub(super) fn new(threads: usize) -> Self {
        // One that reads waits for the device meanwhile; one is left to lead, if there are so many.
        let at_once = available_parallelism().map_or(2, Into::into).clamp(2, threads.saturating_sub(1).max(2));
        Self {
            state: Mutex::default(),
            threads,
            at_once,
            apart: AtomicU32::new(FIRST_APART_READS),
            waited: AtomicU32::new(0),
            received: AtomicU64::new(0),
            lone: AtomicU64::new(0),
            in_a_row: AtomicU32::new(0),
        }
    }

    /// A request has come.
    pub(super) fn note(&self) {
        self.received.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether each read is one thread's to wait for.
    pub(super) fn is_apart(&self) -> bool {
        self.apart.load(Ordering::Relaxed) > 0
    }

    /// The export does not bring what is read.
    pub(super) fn brought_none(&self) {
        self.apart.store(APART_READS, Ordering::Relaxed);
        self.waited.store(0, Ordering::Relaxed);
    }

    /// So many reads were waited for one by one.
    pub(super) fn spend(&self, reads: usize) {
        let left = self.apart.load(Ordering::Relaxed).saturating_sub(u32::try_from(reads).unwrap_or(u32::MAX));
        self.apart.store(left, Ordering::Relaxed);
    }

    /// A read that was brought took so long to carry out.
    pub(super) fn took(&self, bytes: u32, took: Duration) {
        let old = self.waited.load(Ordering::Relaxed);
        // Verifying and sending takes about half a nanosecond for a byte.
        if took <= WAITED + Duration::from_nanos(u64::from(bytes) / 2) {
            self.waited.store(old.saturating_sub(1), Ordering::Relaxed);
        } else if old >= WAITED_MAX {
            self.brought_none();
        } else {
            self.waited.store(old + WAITED_WEIGHT, Ordering::Relaxed);
        }
    }

    /// Some more; what the caller carries out of all, having given the lead away.
    pub(super) fn gather(&self, reads: impl IntoIterator<Item = Request>) -> Option<Taken> {
        let readers_max = if self.is_apart() { self.threads } else { self.at_once };
        let mut state = self.state.lock();
        state.gathered.extend(reads);
        if state.readers >= readers_max {
            return None;
        }
        let taken = self.take(&mut state)?;
        state.readers += 1;
        Some(taken)
    }

    /// Some more, of which the caller, which reads, takes its part beside what it has taken.
    pub(super) fn more_yet(&self, reads: impl IntoIterator<Item = Request>) -> Vec<Request> {
        let mut state = self.state.lock();
        state.gathered.extend(reads);
        self.take(&mut state).map_or_else(Vec::new, |taken| taken.reads)
    }

    /// Some more; what the caller, which has carried out what it took, carries out next.
    pub(super) fn more(&self, reads: impl IntoIterator<Item = Request>) -> Option<Taken> {
        let mut state = self.state.lock();
        state.gathered.extend(reads);
        let taken = self.take(&mut state);
        if taken.is_none() {
            state.readers -= 1;
        }
        taken
    }

    fn take(&self, state: &mut State) -> Option<Taken> {
        let most = if self.is_apart() {
            state.gathered.len().div_ceil(self.threads.max(1)).min(TAKEN_APART_MAX)
        } else {
            TAKEN_MAX
        };
        let first = state.gathered.pop_front()?;
        let alone = state.readers == 0 && state.gathered.is_empty();
        let (mut bytes, mut reads) = (first.len, vec![first]);
        while reads.len() < most
            && let Some(next) = state.gathered.front()
            && next.len <= TAKEN_BYTES_MAX.saturating_sub(bytes)
        {
            bytes += next.len;
            reads.extend(state.gathered.pop_front());
        }
        Some(Taken { reads, received: self.received.load(Ordering::Relaxed), alone })
    }

    /// To be called before the answers are sent: the client sends its next then.
    pub(super) fn answered(&self, taken: &Taken) {
        if taken.alone && self.received.load(Ordering::Relaxed) == taken.received {
            let next = self.in_a_row.load(Ordering::Relaxed).saturating_add(1);
            self.in_a_row.store(next, Ordering::Relaxed);
        } else {
            self.came_together();
        }
    }

    /// Whether a read that has come is better carried out with the lead.
    pub(super) fn is_lone(&self) -> bool {
        self.in_a_row.load(Ordering::Relaxed) >= IN_A_ROW && self.state.lock().readers == 0
    }

    /// Whether the thread that leads is to look, before it answers a read that it has carried out, if another waits.
    pub(super) fn looks(&self) -> bool {
        self.lone.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK_EVERY)
    }

    /// One came before another was answered.
    pub(super) fn came_together(&self) {
        self.in_a_row.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::wire::command;

    fn read(len: u32) -> Request {
        Request { flags: 0, command: command::READ, cookie: 0, offset: 0, len }
    }

    fn lens(taken: &Taken) -> Vec<u32> {
        taken.reads.iter().map(|read| read.len).collect()
    }

    #[test]
    fn few_threads_read_what_gathers_meanwhile() {
        let reads = Reads { at_once: 2, apart: AtomicU32::new(0), ..Reads::new(8) };
        let first = reads.gather([read(1)]).unwrap();
        let second = reads.gather([read(2)]).unwrap();
        assert_eq!((lens(&first), lens(&second)), (vec![1], vec![2]));
        assert!(reads.gather([read(3), read(4)]).is_none());
        assert!(reads.gather([read(TAKEN_BYTES_MAX - 7), read(1)]).is_none());
        assert_eq!(lens(&reads.more([]).unwrap()), [3, 4, TAKEN_BYTES_MAX - 7], "no more bytes than may be");
        // The next to come is read with what is left, by one more thread only if there may be one.
        assert!(reads.gather([]).is_none());
        assert_eq!(lens(&reads.more([]).unwrap()), [1]);
        assert!(reads.more([]).is_none() && reads.more([]).is_none());
        assert_eq!(lens(&reads.gather([read(1 << 20), read(5)]).unwrap()), [1 << 20]);
        assert_eq!(lens(&reads.more([]).unwrap()), [5]);
    }

    #[test]
    fn where_the_export_brings_nothing_each_thread_has_its_share() {
        let reads = Reads { at_once: 2, ..Reads::new(4) };
        reads.brought_none();
        let all = (0..4).map(|_| read(1));
        assert_eq!(reads.gather(all).unwrap().reads.len(), 1);
        assert!((0..3).all(|_| reads.gather([]).is_some_and(|taken| taken.reads.len() == 1)));
        assert!(reads.gather([read(1)]).is_none());
        // After a while it is asked again.
        reads.spend(APART_READS as usize - 1);
        assert!(reads.is_apart());
        reads.spend(2);
        assert!(!reads.is_apart() && reads.more([]).is_some());
    }

    #[test]
    fn reads_that_were_brought_and_are_waited_for_all_the_same_go_apart() {
        let reads = Reads { apart: AtomicU32::new(0), ..Reads::new(8) };
        let (quick, slow) = (Duration::from_micros(20), Duration::from_micros(300));
        // A few among many are no reason, nor is one of many bytes.
        for number in 0..1_000 {
            reads.took(4096, if number % 20 == 0 { slow } else { quick });
            reads.took(1 << 20, slow);
        }
        assert!(!reads.is_apart());
        (0..40).for_each(|_| reads.took(4096, slow));
        assert!(reads.is_apart());
    }

    #[test]
    fn a_client_that_waits_is_known_until_it_does_not() {
        let reads = Reads { apart: AtomicU32::new(0), ..Reads::new(8) };
        let one = || {
            reads.note();
            let taken = reads.gather([read(1)]).unwrap();
            reads.answered(&taken);
            assert!(reads.more([]).is_none());
        };
        (0..IN_A_ROW - 1).for_each(|_| one());
        assert!(!reads.is_lone());
        one();
        assert!(reads.is_lone());
        // Another comes meanwhile.
        reads.note();
        let first = reads.gather([read(1)]).unwrap();
        assert!(!reads.is_lone());
        reads.note();
        reads.answered(&first);
        assert!(reads.more([]).is_none() && !reads.is_lone());
        (0..IN_A_ROW).for_each(|_| one());
        assert!(reads.is_lone());
        // Several at once.
        let several = reads.gather([read(1), read(1)]).unwrap();
        reads.answered(&several);
        assert!(reads.more([]).is_none() && !reads.is_lone());
        (0..IN_A_ROW).for_each(|_| one());
        reads.came_together();
        assert!(!reads.is_lone());
    }
}

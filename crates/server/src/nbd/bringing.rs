//! Reads of one thread while the export brings them: each is answered as it comes, and what the client sends meanwhile
//! is taken too.
//!
//! taken → [`Ranges::next`] → export → [`Ranges::came`] → answer → sent before the export waits → received, taken …
//!
//! Invariants:
//! 1. The thread does not wait for the device with a reply in hand.
//! 2. It ends after [`GIVEN_MAX`] reads, so that it sees what has changed of the disk, and when answers are to be settled.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::thread::Scope;
use std::time::Instant;

use bytes::Bytes;
use esker_volume::Ranges;

use crate::nbd::reads::Taken;
use crate::nbd::reply::Replies;
use crate::nbd::transmission::{BATCH_BYTES, LARGE_BYTES, Transmission, payload_held, smoothed};
use crate::nbd::wire::Request;

/// So many reads are given to the export in one call.
const GIVEN_MAX: u64 = 1_024;

/// See the module.
pub(super) struct Bringing<'a, 't, 's, 'e> {
    connection: &'s Transmission<'t>,
    replies: &'a mut Replies,
    scope: &'s Scope<'s, 'e>,
    /// What the thread took, until it has answered one.
    pub(super) first: Option<&'a Taken>,
    /// Not given to the export yet.
    reads: VecDeque<Request>,
    /// Given, with when; none where it was answered.
    given: VecDeque<Option<(Request, Instant)>>,
    /// So many were given before these.
    before: u64,
}

impl<'a, 't, 's, 'e> Bringing<'a, 't, 's, 'e> {
    pub(super) fn new(
        connection: &'s Transmission<'t>,
        replies: &'a mut Replies,
        scope: &'s Scope<'s, 'e>,
        first: &'a Taken,
        reads: VecDeque<Request>,
    ) -> Self {
        Self { connection, replies, scope, first: Some(first), reads, given: VecDeque::new(), before: 0 }
    }

    /// What was not answered.
    pub(super) fn left(&mut self) -> VecDeque<Request> {
        let given = self.given.drain(..).flatten().map(|(request, _)| request);
        given.chain(self.reads.drain(..)).collect()
    }
}

impl Ranges for Bringing<'_, '_, '_, '_> {
    fn next(&mut self) -> Option<(u64, u64)> {
        let given = self.before + self.given.len() as u64;
        if self.reads.is_empty() && given > 0 {
            let ends = given >= GIVEN_MAX || self.connection.has_to_settle() || self.connection.reads.is_apart();
            if ends {
                return None;
            }
            // Answered, the client sends more.
            self.connection.send(self.replies);
            self.reads.extend(self.connection.reads.more_yet(self.connection.receive_reads()));
        }
        let request = self.reads.pop_front()?;
        self.given.push_back(Some((request, Instant::now())));
        Some((request.offset, request.len.into()))
    }

    fn waits(&mut self) {
        self.connection.send(self.replies);
    }

    fn came(&mut self, number: u64) {
        let at = number.checked_sub(self.before).and_then(|at| usize::try_from(at).ok());
        let given = at.and_then(|at| self.given.get_mut(at)).and_then(Option::take);
        let Some((request, since)) = given else { return };
        while self.given.front().is_some_and(Option::is_none) {
            self.given.pop_front();
            self.before += 1;
        }
        let (usual, began) = (self.connection.read_ns.load(Ordering::Relaxed), Instant::now());
        self.connection.answer((&request, payload_held(&request)), Bytes::new(), self.replies, self.scope);
        self.connection.reads_begun.fetch_sub(1, Ordering::SeqCst);
        self.connection.reads.took(request.len, began.elapsed());
        if request.len < LARGE_BYTES {
            // What was brought takes no time; alone it would have waited for so long.
            self.connection.read_ns.store(smoothed(usual, since.elapsed()), Ordering::Relaxed);
        }
        if let Some(first) = self.first.take() {
            self.connection.reads.answered(first);
        }
        if self.replies.len() > BATCH_BYTES {
            self.connection.send(self.replies);
        }
    }
}

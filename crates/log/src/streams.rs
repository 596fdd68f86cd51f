//! Streams: the entries of one name, in order, without reading the others.
//!
//! first hole (a walk over the index, no entries) → all before it is decided → keys of the stream in each object →
//! positions, sorted → entries
//!
//! That an entry belongs to a stream stands in a key beside it, written in the same transaction. So a stream needs no
//! sequencer that knows it, an entry belongs to all of its streams or is not there, and losing the sequencer loses
//! nothing.
//!
//! Invariant: a stream is read only as far as every position of the log is decided, so that nothing comes to stand
//! before what was delivered. Source: the service of Tango's streams (Balakrishnan et al., 2013), without its back
//! pointers.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_store::{OmapScan, prefix};
use event_listener::Listener;

use crate::cells::Found;
use crate::follow::{Delivery, Follow, GapKind};
use crate::format;
use crate::log::Log;
use crate::waking::Following;
use crate::{Error, Result};

/// Positions that one round looks through.
const ROUND: u64 = 1 << 20;

impl Log {
    /// The positions of a stream inside `range`, in order, as far as they are written; also those of entries that were
    /// trimmed by themselves since. Reads no entries.
    ///
    /// # Errors
    /// The store's.
    pub fn stream_positions(&self, stream: &[u8], range: Range<u64>) -> Result<Vec<u64>> {
        let view = if range.end > self.view().end() { self.refresh()? } else { self.view() };
        let (start, end) = (range.start.max(view.trimmed), range.end);
        let mut all = Vec::new();
        for one in view.stripes() {
            if one.end <= start || one.start >= end {
                continue;
            }
            for column in 0..one.width {
                let object = view.object(self.inner.id, &one, column);
                let (low, high) = (one.locals_below(column, start), one.locals_below(column, end));
                let (start, end) = (format::stream_key(stream, low), format::stream_key(stream, high));
                let scan = OmapScan { start: Some(start), end: Some(end), ..OmapScan::of(b"s").keys() };
                for entry in prefix::omap(self.store(), &object, scan) {
                    let local = format::key_number(&entry?.0);
                    all.extend(local.and_then(|local| one.position(column, local)));
                }
            }
        }
        all.sort_unstable();
        Ok(all)
    }

    /// Follows one stream from position `from` of the log.
    pub fn follow_stream(&self, stream: impl Into<Bytes>, from: u64, how: Follow) -> StreamFollower {
        let (stream, known, _following) = (stream.into(), VecDeque::new(), self.inner.shared.waking.follow());
        StreamFollower { log: self.clone(), stream, how, next: from, known, hole: None, _following }
    }
}

/// A reader that goes with a stream.
pub struct StreamFollower {
    log: Log,
    stream: Bytes,
    how: Follow,
    /// Everything below was looked through.
    next: u64,
    /// Positions of the stream, to be read.
    known: VecDeque<u64>,
    hole: Option<(u64, u64)>,
    _following: Following,
}

impl StreamFollower {
    /// Everything of the stream below this position of the log was delivered.
    pub fn position(&self) -> u64 {
        self.known.front().copied().unwrap_or(self.next)
    }

    /// The stream's next entry, if it is there; a gap for what was lost, or trimmed before it was delivered: of the
    /// log, where all below a position is trimmed, whichever streams its entries had. `None`: nothing up to the tail.
    ///
    /// # Errors
    /// The store's.
    pub fn poll(&mut self) -> Result<Option<Delivery>> {
        loop {
            while let Some(position) = self.known.front().copied() {
                let found = self.log.read(position)?.wait()?;
                self.known.pop_front();
                match found {
                    Found::Entry(entry) => return Ok(Some(Delivery::Entry(entry))),
                    Found::Lost(why) => {
                        let positions = position..position + 1;
                        return Ok(Some(Delivery::Gap { positions, kind: GapKind::Lost(why) }));
                    }
                    Found::Trimmed => {
                        // Of what is known to be the stream's, or with all that stood below.
                        let end = self.log.view().trimmed.clamp(position + 1, self.next.max(position + 1));
                        while self.known.front().is_some_and(|known| *known < end) {
                            self.known.pop_front();
                        }
                        return Ok(Some(Delivery::Gap { positions: position..end, kind: GapKind::Trimmed }));
                    }
                    // Nothing of the stream stands there any more.
                    Found::Filled | Found::Hole | Found::BeyondTail => {}
                }
            }
            // First: what is written after the look is told.
            self.log.watch_head();
            let tail = self.log.tail()?.position;
            let trimmed = self.log.view().trimmed.min(tail);
            if self.next < trimmed {
                let positions = self.next..trimmed;
                self.next = trimmed;
                return Ok(Some(Delivery::Gap { positions, kind: GapKind::Trimmed }));
            }
            let end = tail.min(self.next + ROUND);
            if self.next >= end {
                self.hole = None;
                return Ok(None);
            }
            let decided = self.log.first_hole(self.next, end)?;
            if decided == self.next {
                if !self.wait_or_fill(decided)? {
                    return Ok(None);
                }
                continue;
            }
            let known = self.log.stream_positions(&self.stream, self.next..decided)?;
            // What was trimmed before its keys were looked for is told first: nothing in it was met.
            if self.log.refresh()?.trimmed > self.next {
                continue;
            }
            (self.known, self.next) = (known.into(), decided);
        }
    }

    /// Whether to look again at once.
    fn wait_or_fill(&mut self, position: u64) -> Result<bool> {
        let now = self.log.now_ms();
        let since = match self.hole {
            Some((at, since)) if at == position => since,
            _ => self.hole.insert((position, now)).1,
        };
        let Some(patience) = self.how.fill_after_ms else { return Ok(false) };
        if now.saturating_sub(since) < patience {
            return Ok(false);
        }
        self.hole = None;
        match self.log.fill(position) {
            Ok(()) | Err(Error::Taken { .. } | Error::Trimmed { .. }) => Ok(true),
            Err(Error::PastTail { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// As [`Follower::patience`](crate::Follower::patience).
    pub fn patience(&self) -> Duration {
        self.log.patience(&self.how, self.hole)
    }

    /// The stream's next entry, waited for up to `timeout`. `None`: nothing came.
    ///
    /// # Errors
    /// As [`StreamFollower::poll`].
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Delivery>> {
        let began = Instant::now();
        loop {
            let listener = self.log.listen();
            if let Some(delivery) = self.poll()? {
                return Ok(Some(delivery));
            }
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            listener.wait_timeout(self.patience().min(left));
        }
    }
}

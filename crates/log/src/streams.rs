//! Streams: the entries of one name, in order, without reading the others.
//!
//! written here, and durable → entry, or one of other streams · else: first hole (a walk over the index, no entries)
//! → all before it is decided → keys of the stream in each object → positions, sorted → entries
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
use crate::follow::{Attending, Delivery, Follow, GapKind, Next, Step};
use crate::format;
use crate::log::Log;
use crate::{Error, Result};

/// Positions that one round looks through.
const ROUND: u64 = 1 << 20;
/// Recent entries of other streams that one call of [`StreamFollower::poll_recent`] passes at most: some ten
/// microseconds.
const PASSED_MAX: usize = 1_024;

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
        let (stream, known, _attending) = (stream.into(), VecDeque::new(), Attending::to(self));
        let (hole, keeps_up) = (None, false);
        StreamFollower { log: self.clone(), stream, how, next: from, known, hole, keeps_up, _attending }
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
    /// Whether what stands below `next` was met in what was written here a moment ago.
    keeps_up: bool,
    _attending: Attending,
}

impl StreamFollower {
    /// Everything of the stream below this position of the log was delivered.
    pub fn position(&self) -> u64 {
        self.known.front().copied().unwrap_or(self.next)
    }

    /// The stream's next entry, if it is there; a gap for what was lost, or trimmed before it was delivered: of the
    /// log, where all below a position is trimmed, whichever streams its entries had. `None`: nothing up to the tail.
    /// Waits for the sync of an entry that was written a moment ago.
    ///
    /// # Errors
    /// The store's. After one the follower goes on where it was.
    pub fn poll(&mut self) -> Result<Option<Delivery>> {
        self.poll_next(true)
    }

    /// As [`StreamFollower::poll`], but `None` as well where what comes next is just being written here, or not durable
    /// yet: for a caller that has deliveries to hand on, which are not to wait for a later sync.
    ///
    /// # Errors
    /// As [`StreamFollower::poll`].
    pub fn poll_durable(&mut self) -> Result<Option<Delivery>> {
        self.poll_next(false)
    }

    /// What of the stream was written in this process a moment ago and is durable, as
    /// [`Follower::poll_recent`](crate::Follower::poll_recent) has it of the whole log. It may have passed entries of
    /// other streams and have nothing to hand out: [`StreamFollower::position`] tells.
    ///
    /// # Errors
    /// The store's, if it stopped before the log's next entry was durable.
    pub fn poll_recent(&mut self, limit: usize, bytes_max: usize) -> Result<(Vec<Delivery>, Next)> {
        let (mut handed, mut bytes, mut passed) = (Vec::new(), 0, 0);
        // It may wait for the store: that is for a caller that may.
        let looks = self.log.is_to_look_out() || !self.known.is_empty();
        while !looks && handed.len() < limit && bytes < bytes_max && passed < PASSED_MAX {
            let next = self.log.inner.shared.recent.pass(&self.stream, self.next, PASSED_MAX - passed);
            if next > self.next {
                passed += (next - self.next) as usize;
                (self.next, self.hole, self.keeps_up) = (next, None, true);
                continue;
            }
            match self.log.step_recent(self.next, self.keeps_up && self.hole.is_none()) {
                Ok(Step::Entry(entry)) => {
                    (self.hole, self.keeps_up) = (None, true);
                    self.next += 1;
                    if entry.streams.contains(&self.stream) {
                        bytes += entry.data.len();
                        handed.push(Delivery::Entry(entry));
                    } else {
                        passed += 1;
                    }
                }
                Ok(Step::Else(next)) => return Ok((handed, next)),
                // What came before it is delivered first; it is met again.
                Err(_) if !handed.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok((handed, Next::Look))
    }

    fn poll_next(&mut self, waits: bool) -> Result<Option<Delivery>> {
        self.log.look_out()?;
        // The tail, once something was waited for or passed: where others always write, there is always more.
        let mut goal = None;
        loop {
            while let Some(position) = self.known.front().copied() {
                let (found, barrier) = self.log.read(position)?.into_parts();
                match barrier {
                    Some(barrier) if waits => barrier.wait()?,
                    Some(barrier) if barrier.state().transpose()?.is_none() => return Ok(None),
                    Some(_) | None => {}
                }
                let found = found?;
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
            if goal.is_some_and(|goal| self.next >= goal) {
                return Ok(None);
            }
            let before = self.next;
            let (mut handed, next) = self.poll_recent(1, 1)?;
            match (handed.pop(), next) {
                (Some(delivery), _) => return Ok(Some(delivery)),
                (None, Next::Await(_) | Next::Hole) if !waits => return Ok(None),
                // One sync, and no later one: what was written since waits for its own.
                (None, Next::Await(barrier)) => {
                    self.aim(&mut goal)?;
                    barrier.wait()?;
                    continue;
                }
                (None, Next::Look) if self.next > before => {
                    self.aim(&mut goal)?;
                    continue;
                }
                (None, Next::Tail | Next::Hole | Next::Look) => {}
            }
            // First: what is written after the look is told.
            self.log.watch_head();
            let tail = self.log.tail()?.position;
            goal.get_or_insert(tail);
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
            (self.known, self.next, self.keeps_up) = (known.into(), decided, false);
        }
    }

    /// Notes the tail as `goal`, unless there is one.
    fn aim(&self, goal: &mut Option<u64>) -> Result<()> {
        if goal.is_none() {
            *goal = Some(self.log.handed_tail()?.position);
        }
        Ok(())
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

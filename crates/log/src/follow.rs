//! Following: every position in order, from anywhere to the tail and on, without polling where the writers are in this
//! process, or the store tells of others.
//!
//! written here, and durable → entry · else: tail → read ahead → positions in order → entry or gap · hole: wait for its
//! writer, then fill it · at the tail: wait
//!
//! A follower is pulled: what is read ahead is bounded, and who does not pull costs nothing.
//!
//! Invariants:
//! 1. Positions come in order, each once: as an entry, or inside a gap that says why there is none.
//! 2. Nothing is passed over: a position that is undecided holds the follower up until it is decided.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use esker_store::Barrier;
use event_listener::Listener;

use crate::cells::{Entry, Found};
use crate::log::Log;
use crate::recent::Recent;
use crate::waking::Following;
use crate::{Error, Result};

/// How often to look where positions are handed out by this process: whether another has taken over since.
const LOOK_LED_MS: u64 = 1_000;
/// How often to look where the store tells of what others write: what it has missed is found so late.
const LOOK_WATCHED_MS: u64 = 500;

/// Why a follower has no entry for a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GapKind {
    /// Given up before anything was written.
    Filled,
    /// Given up later.
    Trimmed,
    /// An entry stood there and cannot be read: why. Data loss.
    Lost(String),
}

/// What a follower is handed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// An entry.
    Entry(Entry),
    /// Positions without entries.
    Gap {
        /// Which.
        positions: Range<u64>,
        /// Why.
        kind: GapKind,
    },
    /// The log was sealed, and everything in it was delivered.
    End {
        /// The tail.
        tail: u64,
    },
}

impl Delivery {
    /// Bytes of its data.
    fn data_len(&self) -> usize {
        match self {
            Self::Entry(entry) => entry.data.len(),
            Self::Gap { .. } | Self::End { .. } => 0,
        }
    }
}

/// Where what `poll_recent` of a follower hands out ends.
#[derive(Debug)]
pub enum Next {
    /// At an entry that is not durable yet: call again when it is.
    Await(Barrier),
    /// At the tail, as far as it is known here: wait for [`Log::listen`], and look with [`Follower::poll`] after
    /// [`Follower::patience`].
    Tail,
    /// At a position that this process has handed out and that is not written yet, while others above it may be: wait
    /// for [`Log::listen`], and look with [`Follower::poll`] after a few milliseconds: its writer may have failed.
    Hole,
    /// At something that only [`Follower::poll`] can tell: an end, a gap, an entry of another process or of some time
    /// ago. Or at the limit.
    Look,
}

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At a position.
    Position(u64),
    /// At the first entry of this time or later, in unix milliseconds.
    TimeMs(u64),
    /// At the tail: only what comes.
    Tail,
    /// At the first position that is not trimmed.
    First,
}

/// How to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follow {
    /// Bytes of data to read ahead, about. Default: 1 MiB.
    pub ahead_bytes: usize,
    /// A hole is filled after so many milliseconds; `None` waits for ever and writes nothing. Default: 200.
    pub fill_after_ms: Option<u64>,
    /// How often to look for what other processes write where nothing tells of it, in milliseconds. Where the store
    /// watches objects writers tell: then a follower looks every 500 ms, or every `look_ms` if that is longer, and
    /// every `look_ms` again while the store is cut off from the head. Writers through another server's objects do not
    /// tell, nor do older programs. A follower in the process that hands out positions
    /// looks every second, or every `look_ms` if that is longer. Default: 20.
    pub look_ms: u64,
}

impl Default for Follow {
    fn default() -> Self {
        Self { ahead_bytes: 1 << 20, fill_after_ms: Some(200), look_ms: 20 }
    }
}

/// A reader that goes with the log.
pub struct Follower {
    log: Log,
    how: Follow,
    next: u64,
    ahead: VecDeque<Delivery>,
    /// The hole that is waited for, and since when.
    hole: Option<(u64, u64)>,
    /// Whether what stands below `next` was handed out from what was written here a moment ago.
    keeps_up: bool,
    ended: bool,
    _attending: Attending,
}

/// A follower, as long as this lives: recent entries are kept for it, and the head is watched.
pub(crate) struct Attending {
    log: Log,
    _following: Following,
}

impl Attending {
    pub(crate) fn to(log: &Log) -> Self {
        log.inner.shared.followers.fetch_add(1, Ordering::Relaxed);
        Self { log: log.clone(), _following: log.inner.shared.waking.follow() }
    }
}

impl Drop for Attending {
    fn drop(&mut self) {
        let shared = &self.log.inner.shared;
        if shared.followers.fetch_sub(1, Ordering::Relaxed) == 1 {
            // What the next one meets was not written a moment ago.
            shared.recent.clear();
        }
    }
}

/// What a follower that asks neither the store nor the sequencer finds at its position.
pub(crate) enum Step {
    /// An entry that is durable.
    Entry(Entry),
    /// Nothing to hand out.
    Else(Next),
}

impl Log {
    /// Follows the log from `start`.
    ///
    /// # Errors
    /// The store's.
    pub fn follow(&self, start: Start, how: Follow) -> Result<Follower> {
        let next = match start {
            Start::Position(position) => position,
            Start::TimeMs(time) => self.position_at(time)?,
            Start::Tail => self.tail()?.position,
            Start::First => self.refresh()?.trimmed,
        };
        let (ahead, hole, keeps_up, ended) = (VecDeque::new(), None, false, false);
        let _attending = Attending::to(self);
        Ok(Follower { log: self.clone(), how, next, ahead, hole, keeps_up, ended, _attending })
    }

    /// What stands at `position`, if it was written in this process a moment ago. `keeps_up`: all below was met that
    /// way, and no hole is waited for.
    ///
    /// # Errors
    /// The store's, if it stopped before the entry was durable.
    pub(crate) fn step_recent(&self, position: u64, keeps_up: bool) -> Result<Step> {
        let view = self.peek();
        if position < view.trimmed {
            return Ok(Step::Else(Next::Look));
        }
        let Some(Recent { found, barrier }) = self.recent(position) else {
            // As far as this handle knows no other one hands out positions: then nothing stands at the tail.
            return Ok(Step::Else(match self.leader(&view) {
                None => Next::Look,
                Some(leader) if leader.tail().position <= position => Next::Tail,
                // What is kept leaves from below: if something below is there, this was not written yet, or is trimmed.
                Some(_)
                    if keeps_up && self.keeps_below(position) && !self.inner.shared.recent.has_forgotten(position) =>
                {
                    Next::Hole
                }
                Some(_) => Next::Look,
            }));
        };
        let Found::Entry(entry) = found else { return Ok(Step::Else(Next::Look)) };
        match barrier.map(|barrier| (barrier.state(), barrier)) {
            None | Some((Some(Ok(())), _)) => Ok(Step::Entry(entry)),
            Some((None, barrier)) => Ok(Step::Else(Next::Await(barrier))),
            Some((Some(Err(error)), _)) => Err(error.into()),
        }
    }

    /// How long nothing will come that is not told of. `hole`: a position that is waited for, and since when.
    pub(crate) fn patience(&self, how: &Follow, hole: Option<(u64, u64)>) -> Duration {
        let waking = &self.inner.shared.waking;
        let led_here = self.leader(&self.view()).is_some();
        let look = match led_here {
            true => LOOK_LED_MS.max(how.look_ms),
            false if waking.is_live() => LOOK_WATCHED_MS.max(how.look_ms),
            false => how.look_ms,
        };
        let fill = match (hole, how.fill_after_ms) {
            (Some((_, since)), Some(patience)) => (since + patience).saturating_sub(self.now_ms()).max(1),
            _ => u64::MAX,
        };
        Duration::from_millis(look.min(fill))
    }
}

impl Follower {
    /// The position after the last that was delivered.
    pub fn position(&self) -> u64 {
        match self.ahead.front() {
            Some(Delivery::Entry(entry)) => entry.position,
            Some(Delivery::Gap { positions, .. }) => positions.start,
            Some(Delivery::End { .. }) | None => self.next,
        }
    }

    /// What comes next, if it is there. `None`: nothing yet. Waits for the sync of an entry that was written here a
    /// moment ago.
    ///
    /// # Errors
    /// The store's. After one the follower goes on where it was.
    pub fn poll(&mut self) -> Result<Option<Delivery>> {
        self.poll_next(true)
    }

    /// As [`Follower::poll`], but `None` as well where what comes next is just being written here, or not durable yet:
    /// for a caller that has deliveries to hand on, which are not to wait for a later sync.
    ///
    /// # Errors
    /// As [`Follower::poll`].
    pub fn poll_durable(&mut self) -> Result<Option<Delivery>> {
        self.poll_next(false)
    }

    fn poll_next(&mut self, waits: bool) -> Result<Option<Delivery>> {
        self.log.look_out()?;
        loop {
            let (mut handed, next) = self.poll_recent(1, 1)?;
            match (handed.pop(), next) {
                (Some(delivery), _) => return Ok(Some(delivery)),
                (None, Next::Await(_) | Next::Hole) if !waits => return Ok(None),
                // One sync, and no later one: what was written since waits for its own.
                (None, Next::Await(barrier)) => barrier.wait()?,
                (None, Next::Tail | Next::Hole | Next::Look) => break,
            }
        }
        if self.ended {
            return Ok(None);
        }
        // One that catches up does not wait for the sync of the newest entry.
        let tail = match self.log.inner.shared.written.load(Ordering::SeqCst) {
            known if known > self.next => known,
            _ => {
                // First: what is written after the look is told.
                self.log.watch_head();
                self.log.tail()?.position
            }
        };
        if self.next >= tail {
            self.hole = None;
            let sealed = self.log.view().sealed;
            if let Some(tail) = sealed.filter(|tail| self.next >= *tail) {
                self.ended = true;
                return Ok(Some(Delivery::End { tail }));
            }
            return Ok(None);
        }
        self.read_ahead(tail)?;
        Ok(self.ahead.pop_front())
    }

    /// What was written in this process a moment ago and is durable, up to `limit` deliveries and about `bytes_max` of
    /// data, and what to do where that ends. Asks neither the store nor the sequencer, so that it never waits: twice a
    /// second it leaves looking to [`Follower::poll`].
    ///
    /// # Errors
    /// The store's, if it stopped before the next entry was durable.
    pub fn poll_recent(&mut self, limit: usize, bytes_max: usize) -> Result<(Vec<Delivery>, Next)> {
        let (mut handed, mut bytes) = (Vec::new(), 0);
        // It may wait for the store: that is for a caller that may.
        let due = self.log.is_to_look_out();
        while !due && handed.len() < limit && bytes < bytes_max {
            if let Some(delivery) = self.ahead.pop_front() {
                bytes += delivery.data_len();
                handed.push(delivery);
                continue;
            }
            if self.ended {
                break;
            }
            match self.log.step_recent(self.next, self.keeps_up && self.hole.is_none()) {
                Ok(Step::Entry(entry)) => {
                    (self.hole, self.keeps_up) = (None, true);
                    bytes += entry.data.len();
                    self.next += 1;
                    handed.push(Delivery::Entry(entry));
                }
                Ok(Step::Else(next)) => return Ok((handed, next)),
                // What came before it is delivered first; it is met again.
                Err(_) if !handed.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok((handed, Next::Look))
    }

    fn read_ahead(&mut self, tail: u64) -> Result<()> {
        self.keeps_up = false;
        let trimmed = self.log.view().trimmed.min(tail);
        if self.next < trimmed {
            self.ahead.push_back(Delivery::Gap { positions: self.next..trimmed, kind: GapKind::Trimmed });
            self.next = trimmed;
            return Ok(());
        }
        let found = self.log.read_range(self.next..tail, self.how.ahead_bytes)?.wait()?;
        for one in found {
            let position = self.next;
            let kind = match one {
                Found::Entry(entry) => {
                    self.ahead.push_back(Delivery::Entry(entry));
                    self.next += 1;
                    continue;
                }
                Found::Filled => GapKind::Filled,
                Found::Trimmed => GapKind::Trimmed,
                Found::Lost(why) => GapKind::Lost(why),
                Found::Hole | Found::BeyondTail => {
                    if self.ahead.is_empty() {
                        self.wait_or_fill(position)?;
                    }
                    return Ok(());
                }
            };
            self.next += 1;
            match self.ahead.back_mut() {
                Some(Delivery::Gap { positions, kind: last }) if *last == kind && positions.end == position => {
                    positions.end = position + 1;
                }
                _ => self.ahead.push_back(Delivery::Gap { positions: position..position + 1, kind }),
            }
        }
        Ok(())
    }

    /// A hole is first waited for, then filled.
    fn wait_or_fill(&mut self, position: u64) -> Result<()> {
        let now = self.log.now_ms();
        let since = match self.hole {
            Some((at, since)) if at == position => since,
            _ => self.hole.insert((position, now)).1,
        };
        let Some(patience) = self.how.fill_after_ms else { return Ok(()) };
        if now.saturating_sub(since) < patience {
            return Ok(());
        }
        self.hole = None;
        match self.log.fill(position) {
            Ok(()) | Err(Error::Taken { .. } | Error::Trimmed { .. } | Error::PastTail { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// How long nothing will come that is not told of: until the hole is to be filled, or others' writes are to be
    /// looked for.
    pub fn patience(&self) -> Duration {
        self.log.patience(&self.how, self.hole)
    }

    /// What comes next, waited for up to `timeout`. `None`: nothing came.
    ///
    /// # Errors
    /// As [`Follower::poll`].
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Delivery>> {
        let began = Instant::now();
        loop {
            let listener = self.log.listen();
            if let Some(delivery) = self.poll()? {
                return Ok(Some(delivery));
            }
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() || self.ended {
                return Ok(None);
            }
            listener.wait_timeout(self.patience().min(left));
        }
    }

    /// The log that is followed.
    pub fn log(&self) -> &Log {
        &self.log
    }
}

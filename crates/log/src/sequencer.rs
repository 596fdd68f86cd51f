//! Handing out positions: a counter under an epoch, here or elsewhere.
//!
//! [`Log::lead`](crate::Log::lead) → [`Leader`] → [`Token`] → a write that guards the token's epoch
//!
//! A sequencer is an optimisation: it saves writers from racing for positions. What makes positions write-once is the
//! guard in the object, and what makes a lost sequencer harmless is sealing: the handle that takes over raises the
//! epoch, seals the objects at the end, and counts on from what stands there. Positions that were handed out and never
//! written are holes, which readers fill.
//!
//! Invariant: a token of epoch E lies at or above what was found when E was sealed, so no write of an older epoch can
//! still land there. Source: Balakrishnan et al., CORFU: A Shared Log Design for Flash Clusters (2012), section 3.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::view::POSITIONS_MAX;
use crate::{Error, Result};

/// Positions handed out, from `position` on, valid under `epoch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The epoch that writes must guard.
    pub epoch: u64,
    /// The first position.
    pub position: u64,
}

/// The tail of a log: the position that is handed out next, as known under an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The epoch under which it is known.
    pub epoch: u64,
    /// Every entry stands below. What a sequencer tells has been handed out, and may never be written;
    /// [`Log::tail`](crate::Log::tail) is written.
    pub position: u64,
}

/// A sequencer of logs somewhere else, as a client sees it.
///
/// Errors: [`Error::NotTail`] if `expected` is not the tail; [`Error::NoSequencer`] if it does not answer or is not the
/// log's.
pub trait Sequencer: Send + Sync {
    /// Hands out `count` positions of log `log` (its id), only at `expected` if that is given. The caller knows the log
    /// to be at `epoch` or later; a sequencer of an older epoch has been deposed and takes over anew first.
    fn next(&self, log: u64, epoch: u64, count: u32, expected: Option<u64>) -> Result<Token>;

    /// The position that is handed out next.
    fn tail(&self, log: u64, epoch: u64) -> Result<Tail>;
}

/// Finds sequencers by the address that a log's view names.
pub trait Connect: Send + Sync {
    /// A sequencer at `address`. Called again after it failed.
    fn connect(&self, address: &str) -> Result<Arc<dyn Sequencer>>;
}

/// The right to hand out the positions of a log, held since it was taken over at an epoch.
#[derive(Debug)]
pub struct Leader {
    epoch: u64,
    next: AtomicU64,
}

impl Leader {
    pub(crate) fn new(epoch: u64, tail: u64) -> Arc<Self> {
        Arc::new(Self { epoch, next: AtomicU64::new(tail) })
    }

    /// The epoch that it was taken over at.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The position that is handed out next.
    pub fn tail(&self) -> Tail {
        Tail { epoch: self.epoch, position: self.next.load(Ordering::SeqCst) }
    }

    /// Hands out `count` positions; only at `expected`, if that is given.
    ///
    /// # Errors
    /// [`Error::NotTail`]; [`Error::Invalid`] at the end of all positions.
    pub fn next(&self, count: u32, expected: Option<u64>) -> Result<Token> {
        let count = u64::from(count);
        let taken = match expected {
            Some(expected) => self
                .next
                .compare_exchange(expected, expected.saturating_add(count), Ordering::SeqCst, Ordering::SeqCst)
                .map_err(|tail| Error::NotTail { expected, tail })?,
            None => self.next.fetch_add(count, Ordering::SeqCst),
        };
        if taken >= POSITIONS_MAX {
            return Err(Error::invalid("position", format!("{taken}: logs end at {POSITIONS_MAX}")));
        }
        Ok(Token { epoch: self.epoch, position: taken })
    }
}

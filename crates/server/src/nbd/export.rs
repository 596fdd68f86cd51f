//! What the protocol serves: a disk behind a small object-safe trait, and the list of those that there are.
//!
//! name → [`Exports::open`] → `Arc<dyn Export>` → reads, writes, flushes of all its connections
//!
//! Invariants:
//! 1. A write that was answered is seen by every later read and covered by every later flush, of any connection: an
//!    export keeps nothing apart per connection.
//! 2. A barrier says when an answer may be given; a call without one may be answered at once.

use std::sync::Arc;

use bytes::Bytes;
use esker_store::{Barrier, Completion};
use esker_volume::Ranges;

use crate::nbd::wire::code;

/// What a call gives, and the barrier that has to be reached before the client is told of it.
#[derive(Debug)]
pub struct Done<T = ()> {
    /// The outcome.
    pub value: T,
    /// What it waits for; `None` if for nothing.
    pub barrier: Option<Barrier>,
    /// What it waits for as well, where the store has only begun it.
    pub later: Option<Completion<()>>,
}

impl<T> Done<T> {
    /// An outcome that may be told at once.
    pub fn now(value: T) -> Self {
        Self::behind(value, None)
    }

    /// An outcome that may be told once `barrier` is reached.
    pub fn behind(value: T, barrier: Option<Barrier>) -> Self {
        Self { value, barrier, later: None }
    }
}

/// A piece of what was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes.
    Data(Bytes),
    /// So many zeros that take no space.
    Hole(u64),
}

/// A run of bytes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes, above 0.
    pub len: u64,
    /// Takes no space.
    pub hole: bool,
    /// Reads as zeros.
    pub zero: bool,
}

/// Block sizes in bytes, powers of two in growing order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Requests are multiples of it.
    pub min: u32,
    /// Requests that are multiples of it go best.
    pub preferred: u32,
}

impl Default for BlockSizes {
    /// Any byte, preferably 4 KiB.
    fn default() -> Self {
        Self { min: 1, preferred: 4_096 }
    }
}

/// Why a request failed. Each has an error of the protocol.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The request makes no sense. The client mends it.
    #[error("{0}")]
    Invalid(String),
    /// The export is read-only, or another owner holds its lock. Use another export, or get the lock.
    #[error("{0}")]
    NotPermitted(String),
    /// No room for it, or past the end. Free space, or grow.
    #[error("{0}")]
    Full(String),
    /// Not possible, or not fast where that was asked for. Do it another way.
    #[error("{0}")]
    Unsupported(String),
    /// Reading or writing failed. See the store.
    #[error("{0}")]
    Io(String),
    /// The store is stopping. Come back later.
    #[error("{0}")]
    Stopping(String),
    /// The store takes no part any more, or what became of the request is not known. See the store; where it is one of
    /// several that hold the same, come back, and send the request again.
    #[error("{0}")]
    Gone(String),
}

impl Fault {
    /// The protocol's error, of [`code`].
    pub fn code(&self) -> u32 {
        match self {
            Self::Invalid(_) => code::INVAL,
            Self::NotPermitted(_) => code::PERM,
            Self::Full(_) => code::NOSPC,
            Self::Unsupported(_) => code::NOTSUP,
            Self::Io(_) | Self::Gone(_) => code::IO,
            Self::Stopping(_) => code::SHUTDOWN,
        }
    }
}

impl From<esker_store::Error> for Fault {
    fn from(error: esker_store::Error) -> Self {
        use esker_store::Error;
        let text = error.to_string();
        match error {
            Error::Full { .. } => Self::Full(text),
            Error::ReadOnly => Self::NotPermitted(text),
            Error::Unsupported { .. } => Self::Unsupported(text),
            Error::Closed => Self::Stopping(text),
            Error::Stopped { .. } | Error::NotServing { .. } | Error::Unknown { .. } => Self::Gone(text),
            Error::Invalid { .. } | Error::TooLarge { .. } => Self::Invalid(text),
            _ => Self::Io(text),
        }
    }
}

/// Outcome of a call on an export.
pub type Outcome<T = ()> = std::result::Result<Done<T>, Fault>;

/// A disk that clients attach. Offsets and lengths are bytes; the server has checked that they lie inside.
pub trait Export: Send + Sync {
    /// Bytes.
    fn size(&self) -> u64;

    /// Block sizes.
    fn block_sizes(&self) -> BlockSizes {
        BlockSizes::default()
    }

    /// Whether writes are refused.
    fn read_only(&self) -> bool;

    /// A line for people, or nothing.
    fn description(&self) -> String {
        String::new()
    }

    /// Reads: pieces in order that together are `len` long.
    fn read(&self, offset: u64, len: u32) -> Outcome<Vec<Piece>>;

    /// Brings ranges into memory that the calling thread reads next, many under way at the same time, and tells of each
    /// as it comes. A hint; false, and nothing was asked for, where that is not done: there several threads read faster
    /// than one.
    fn bring(&self, ranges: &mut dyn Ranges) -> bool {
        let _ = ranges;
        false
    }

    /// Writes. With `fua` the barrier is reached when it is durable; without, it may be answered when it is applied.
    fn write(&self, offset: u64, data: Bytes, fua: bool) -> Outcome;

    /// Makes a range read as zeros: a hole, or, with `no_hole`, zeros that take space. With `fast`, only if that costs
    /// less than writing them.
    ///
    /// # Errors
    /// [`Fault::Unsupported`] if `fast` is not possible.
    fn zero(&self, offset: u64, len: u64, no_hole: bool, fast: bool, fua: bool) -> Outcome;

    /// Gives the space of a range back.
    fn discard(&self, offset: u64, len: u64, fua: bool) -> Outcome;

    /// The barrier is reached when everything answered so far, on any connection, is durable.
    fn flush(&self) -> Outcome;

    /// What a range is made of: at most `limit` extents in order from `offset`, at least one; together at most `len`
    /// long.
    fn extents(&self, offset: u64, len: u64, limit: usize) -> Outcome<Vec<Extent>>;
}

/// The disks that there are.
pub trait Exports: Send + Sync {
    /// Their names and a line for people, in order.
    fn list(&self) -> std::result::Result<Vec<(String, String)>, Fault>;

    /// The export that a client means by `name`. The empty name is the default one.
    ///
    /// # Errors
    /// [`OpenError`].
    fn resolve(&self, name: &str) -> std::result::Result<String, OpenError> {
        Ok(name.to_string())
    }

    /// Opens the export of a resolved name, to look at it, or to read it, or to write it without being the only one.
    /// All connections to a name share what they must share.
    ///
    /// # Errors
    /// [`OpenError`].
    fn open(&self, name: &str) -> std::result::Result<Arc<dyn Export>, OpenError>;

    /// Opens it for a client that stays and may write, and keeps others than this server from writing until all such
    /// clients have left.
    ///
    /// # Errors
    /// [`OpenError`]: refused if others write it.
    fn attach(&self, name: &str) -> std::result::Result<Arc<dyn Export>, OpenError> {
        self.open(name)
    }
}

/// Why an export cannot be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// There is none of that name. Choose another.
    #[error("no export {0:?}")]
    Unknown(String),
    /// It is there and cannot be had now: locked, damaged, or the store refuses. The text says why.
    #[error("{0}")]
    Refused(String),
}

//! A command with its arguments, kept to be run later: by EXEC, or again when what it reads is here; and what is noted
//! of it.

use std::time::{Duration, Instant};

use crate::resp::parse::{Args, Span};
use crate::resp::slowlog::KeptArgs;

/// A command waiting to be run.
pub(crate) struct Queued {
    /// Its place among all commands.
    pub(crate) command: usize,
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

impl Queued {
    pub(crate) fn new(command: usize, args: Args<'_>) -> Self {
        let (bytes, spans) = args.to_owned_parts();
        Self { command, bytes, spans }
    }

    pub(crate) fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.spans)
    }

    /// Memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len() + self.spans.len() * size_of::<Span>() + size_of::<Self>()
    }
}

/// A queued command that EXEC has run.
pub(crate) struct Ran {
    pub(crate) queued: Queued,
    pub(crate) took: Duration,
    pub(crate) failed: bool,
    /// The database that it left the session in.
    pub(crate) database: u8,
}

/// A command whose values are on their way.
pub(crate) struct Begun {
    /// Its place among all commands.
    pub(crate) command: usize,
    pub(crate) began: Instant,
    /// What the slow log would show of it; nothing if that was off.
    pub(crate) args: Option<KeptArgs>,
}

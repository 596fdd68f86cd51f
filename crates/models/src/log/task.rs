//! What a process has under way, and what it does next.

use super::view::View;

/// A position that was handed out, or a tail that was told, and the epoch under which it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// The epoch.
    pub epoch: u8,
    /// The position.
    pub position: u8,
}

/// An entry on its way to a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    /// The entry's number.
    pub entry: u8,
    /// Its position.
    pub token: Token,
    /// Whether a try ended without an answer.
    pub unanswered: bool,
}

/// What a process takes over for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// To lead.
    Lead,
    /// To append an entry.
    Append(u8),
    /// To find out what became of an append.
    Resolve(Job),
    /// To begin a stripe at the tail; it leads afterwards if it did so before.
    Reshape {
        /// Whether it led.
        leads: bool,
    },
    /// To close the log.
    Seal,
}

/// What is done once a position has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grown {
    /// It is written.
    Write(Job),
    /// It is filled, by this tail.
    Fill {
        /// The position.
        position: u8,
        /// The tail.
        tail: Token,
    },
    /// It is filled to find out what became of an append.
    Resolve(Job, Token),
}

/// What a stripe is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Making {
    /// Positions beyond the last stripe.
    Grow(Grown),
    /// A change of shape at the tail.
    Reshape {
        /// The tail.
        tail: u8,
        /// Whether the process led before.
        leads: bool,
    },
}

/// What a tail is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asked {
    /// To be told, no lower than this.
    Tail {
        /// One above what was decided when it was asked.
        floor: u8,
    },
    /// To tell a hole from what was not handed out.
    Read {
        /// The position.
        position: u8,
        /// Whether it was decided when the reading began.
        decided: bool,
    },
    /// To fill a position.
    Fill(u8),
}

/// How far a seal has come: by the view at which the epoch was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sealing {
    /// The view.
    pub view: View,
    /// What it is for.
    pub why: Why,
    /// The run that it is at.
    pub run: u8,
    /// The column that it is at.
    pub column: u8,
    /// The highest position so far.
    pub last: Option<u8>,
    /// Whether that is known: later runs are only sealed.
    pub found: bool,
}

/// What a process does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Nothing is under way.
    Idle,
    /// Asks for a position for an entry.
    Token(u8),
    /// Writes an entry, or looks at the view because the token is newer.
    Write(Job),
    /// The epoch's guard refused the write: looks at the view and the object.
    Refused(Job),
    /// The token is outdated: looks at the view.
    Stale(Job),
    /// Reads where an unanswered write was tried.
    ResolveRead(Job),
    /// Nothing is there: asks the leader for the tail.
    ResolveTail(Job),
    /// Fills it.
    ResolveFill(Job, Token),
    /// Looks at the view before making a stripe.
    Grow(u8, Grown),
    /// Makes an object of the next stripe of a view.
    Make(View, u8, Making),
    /// Publishes a view made from this one.
    Publish(View, Making),
    /// Raises the epoch.
    Raise(Why),
    /// Seals an object.
    Seal(Sealing),
    /// Reads the highest position of an object.
    Last(Sealing),
    /// Reads the head at the end of a seal.
    Settled(Sealing),
    /// Publishes that the log is closed at a tail.
    Close(View, u8),
    /// Reads the head's version, and the view if it is newer.
    TailLook(Asked),
    /// Asks the leader.
    TailAsk(Asked),
    /// Looks for the last entry: by a view, in a run's column.
    TailWritten(Asked, View, u8, u8, Option<u8>),
    /// Reads a position by the view at hand; whether it was decided before.
    Read(u8, bool),
    /// Nothing was there: reads the view again.
    ReadView(u8, bool),
    /// And the position.
    ReadAgain(u8, bool),
    /// Writes a mark under a tail.
    Fill(u8, Token),
    /// The mark's epoch is over: looks at the view.
    FillDeposed(u8),
}

//! What a record is for, whether writes are let in, and what the log asks its cleaner.

/// What a record is for, which decides how far it may use up the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Adds something: refused when only the reserve is left.
    Write,
    /// Adds a little so that space can be given back: may use a first part of the reserve.
    GiveBack,
    /// Only takes away: may use part of the reserve, because it makes space.
    TakeAway,
    /// The cleaner's: may use all there is.
    Keep,
}

/// Whether writes are let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Gate {
    /// Yes.
    Open = 0,
    /// Not until the cleaner has made space.
    Wait = 1,
    /// No: there is nothing to clean.
    Full = 2,
}

/// What the log knows of its cleaner.
pub trait Cleaner: Send + Sync {
    /// Has it look what is to be done, soon.
    fn wake(&self);

    /// Free segments that writes have to leave alone, and those that what takes away has to, by what the index takes
    /// now.
    fn reserve(&self) -> [u64; 2];
}

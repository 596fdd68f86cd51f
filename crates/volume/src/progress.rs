//! What long work tells its caller, and how the caller stops it.

/// What is told to the caller that waits for long work: how much is done, and of how much. Returns false to stop it.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

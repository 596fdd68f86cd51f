//! What kinds with several processes share: turns, a server that restarts, lines that lose answers, notes of what was
//! done.
//!
//! processes ([`inhabit`]) → [`wire`] (turns of [`baton`], losses, [`breakage`]) → [`server`] (power cuts, restarts) →
//! engine · [`notes`] → check
//!
//! Invariant: whatever happens between processes is drawn by the baton, so that the seed describes it.

pub(crate) mod baton;
pub(crate) mod breakage;
pub(crate) mod inhabit;
pub(crate) mod net;
pub(crate) mod notes;
pub(crate) mod once;
pub(crate) mod server;
pub(crate) mod setting;
pub(crate) mod wire;

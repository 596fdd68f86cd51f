//! Deterministic simulation: the real engine on a device that fails, checked against a model.
//!
//! seed → [`fault::FaultyDevice`] + [`history::History`] → [`crash::run`] → outcome, trace
//!
//! Invariant: everything random comes from the seed; the same seed gives the same trace.

#![forbid(unsafe_code)]

pub mod crash;
pub mod fault;
pub mod history;

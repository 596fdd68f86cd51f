//! Models of protocols, small enough that every interleaving of their steps can be tried.
//!
//! [`chain::ChainModel`] or [`log::Protocol`] (bounds, breakage) → stateright: all states that can be reached
//! → rules → none is broken, or the steps to where one is
//!
//! The model of the log is no test of the code: it is a test of what the code is meant to do, by steps that are cut
//! where the code touches the store or another process. That of a chain runs the code of its protocol, and has models
//! of what stands around it. `esker-sim` runs the code itself, on interleavings that a seed picks.
//!
//! Invariant: each model says which files it follows and what it leaves out, and is shown to find what it is for by
//! breaking its rules on purpose.

#![forbid(unsafe_code)]

pub mod chain;
pub mod log;

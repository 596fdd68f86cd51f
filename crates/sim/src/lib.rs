//! Deterministic simulation: the real engine on a device that fails, checked against a model.
//!
//! seed → [`kind::Kind`] → [`fault::FaultyDevice`] + [`history::History`] → [`crash::run`] → outcome, trace
//!
//! Invariant: everything random comes from the seed; the same seed and kind give the same trace, but for the kinds in
//! which all threads of the engine run ([`kind::Kind::has_threads`]): there they give the same operations.

#![forbid(unsafe_code)]

pub mod crash;
pub mod fault;
mod full;
pub mod generate;
pub mod history;
mod image;
pub mod kind;
pub mod kvs;
pub mod lasting;
mod life;
pub mod linear;
pub mod logs;
pub mod maps;
pub mod model;
mod opening;
pub mod outcome;
mod rot;
mod shared;
mod threaded;
mod volume;

//! The seeded model test: random transactions on a store and on the plainest model of it, compared after every step.
//!
//! seed → [`Generator`] → transaction → store and [`Model`] → same outcome? same state? → next step, or reopen
//!
//! The model shares no code with any backend. The simulator uses the same parts: it applies to the model what a
//! crashed store acknowledged, and asks [`Model::diff`] what is different.
//!
//! Invariants:
//! 1. The same seed and options give the same transactions, whatever the store does.
//! 2. Every failure names its seed and step.

mod diff;
mod generator;
mod object;
mod run;
mod state;

pub use generator::{Generator, GeneratorOptions};
pub use run::{run, run_with};
pub use state::{Model, same_error};

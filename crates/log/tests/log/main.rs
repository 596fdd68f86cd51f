//! The log's promises, on several stores and in every layout.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod appending;
mod checking;
mod following;
mod machines;
mod promises;
mod racing;
mod space;
mod support;
mod taking_over;

//! The gRPC server against a client of the same library, over loopback: what is promised, bounded and refused.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod appends;
mod errors;
mod follows;
mod frames;
mod held;
mod maps;
mod objects;
mod python;
mod running;
mod security;
mod strangers;
mod users;

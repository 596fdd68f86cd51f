//! Connections between the servers of a cluster: the letters of replicas, and the copies that bring others up.
//!
//! ```text
//! Node → Links → queue of the server and chain → one gRPC stream → thread of the stream → Node::hear
//! Node → Links::copy → offered, and told by a letter → the other pulls what differs → Node::copied
//! ```
//!
//! Invariants:
//! 1. Letters of one chain to one server arrive in the order in which they were sent; where a stream ends, what was on
//!    its way and what waited for it is lost, and the node is told once there is another stream.
//! 2. What waits for a slow server is bounded: above the bound its stream is ended. So is what a server has not heard.
//! 3. One copy at a time is put in place of what a store holds.
//! 4. Only loopback addresses are listened on, unless servers show each other certificates.
//! 5. Connections are bounded, those on which no request has come in number and time: they keep a peer out
//!    only if so many come, again and again, while it shows its certificate.
//!
//! Format: crates/wire/proto/esker/chain/v1/replication.proto

#![forbid(unsafe_code)]

mod copies;
mod error;
mod hub;
mod letters;
mod outgoing;
mod peers;
mod pulling;
mod reach;
mod service;
mod spans;
mod unheard;
mod visitors;

pub use error::{Error, Result};
pub use peers::{Asked, Config, Peers, TlsFiles, connect};
pub use visitors::{CONNECTIONS_MAX, STRANGERS_MAX};

//! Sockets and protocols in front of the faces.
//!
//! socket → protocol parse → command → `kv` transaction, a request of a disk, or a call of a log → barrier → reply
//!
//! Invariants:
//! 1. No reply leaves before everything that it depends on is as durable as its writer asked for.
//! 2. Bytes from a socket are answered or refused; they never panic, never hang a thread, and never take memory
//!    beyond the limits of [`resp::Config`], [`nbd::Config`], [`grpc::Config`] and [`thrift::Config`].

#![forbid(unsafe_code)]

pub mod front;
pub mod grpc;
pub mod http;
pub mod nbd;
pub mod resp;
pub mod thrift;
pub mod trace;

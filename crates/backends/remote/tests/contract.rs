//! The contract suite on a store that is reached over the network: the engine in memory, behind a server on loopback.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

esker_store::contract_suite!(support::Served);

//! The contract suite on a store that is reached over the network: the engine in memory, behind a server on loopback.

mod support;

esker_store::contract_suite!(support::Served);

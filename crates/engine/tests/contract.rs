//! The contract on the engine, on a device in memory, plain and zoned.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use support::OnMemory;

fn harness(zoned: bool) -> OnMemory {
    OnMemory { len: 4 << 30, segment_bytes: 64 << 20, zoned, index_bytes: if zoned { 0 } else { u64::MAX } }
}

mod plain {
    esker_store::contract_suite!(super::harness(false));
}

mod zoned {
    esker_store::contract_suite!(super::harness(true));
}

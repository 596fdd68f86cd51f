//! The contract on the engine, on a device in memory, plain, zoned, and with everything compressed.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use esker_engine::CompressOptions;
use esker_store::Compression;
use support::{OnMemory, eager};

fn harness(zoned: bool) -> OnMemory {
    let index_bytes = if zoned { 0 } else { u64::MAX };
    OnMemory { len: 4 << 30, segment_bytes: 64 << 20, zoned, index_bytes, compress: CompressOptions::default() }
}

fn compressing(codec: Compression) -> OnMemory {
    OnMemory { compress: eager(codec), ..harness(false) }
}

mod plain {
    esker_store::contract_suite!(super::harness(false));
}

mod zoned {
    esker_store::contract_suite!(super::harness(true));
}

mod lz4 {
    esker_store::contract_suite!(super::compressing(super::Compression::Lz4));
}

mod zstd {
    esker_store::contract_suite!(super::compressing(super::Compression::Zstd));
}

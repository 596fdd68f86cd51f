//! The contract on the engine, on a device in memory: plain, zoned, with everything compressed, with each cache policy.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use esker_engine::{CachePolicy, CompressOptions};
use esker_store::Compression;
use support::{OnMemory, eager};

fn harness(zoned: bool) -> OnMemory {
    let index_bytes = if zoned { 0 } else { u64::MAX };
    let (compress, cache_policy) = (CompressOptions::default(), CachePolicy::default());
    OnMemory { len: 4 << 30, segment_bytes: 64 << 20, zoned, index_bytes, compress, cache_policy }
}

fn compressing(codec: Compression) -> OnMemory {
    OnMemory { compress: eager(codec), ..harness(false) }
}

fn caching(cache_policy: CachePolicy) -> OnMemory {
    OnMemory { cache_policy, ..harness(false) }
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

mod clock {
    esker_store::contract_suite!(super::caching(super::CachePolicy::Clock));
}

mod lru {
    esker_store::contract_suite!(super::caching(super::CachePolicy::Lru));
}

mod arc {
    esker_store::contract_suite!(super::caching(super::CachePolicy::Arc));
}

mod s3_fifo {
    esker_store::contract_suite!(super::caching(super::CachePolicy::S3Fifo));
}

mod tiny_lfu {
    esker_store::contract_suite!(super::caching(super::CachePolicy::TinyLfu));
}

//! The contract on a tree in memory and, where they are built in, on RocksDB, LevelDB and newstore; with strips and
//! without.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

mod tree {
    use super::support::OnTree;
    esker_store::contract_suite!(OnTree { strip: esker_keyvalue::StripLen::Bytes(4096) });
}

mod tree_with_short_strips {
    use super::support::OnTree;
    esker_store::contract_suite!(OnTree { strip: esker_keyvalue::StripLen::Bytes(512) });
}

mod tree_without_strips {
    use super::support::OnTree;
    esker_store::contract_suite!(OnTree { strip: esker_keyvalue::StripLen::None });
}

#[cfg(feature = "rocksdb")]
mod rocksdb {
    use super::support::InFolder;
    use esker_keyvalue::{Kind, StripLen};
    esker_store::contract_suite!(InFolder { kind: Kind::RocksDb, strip: StripLen::Bytes(4096) });
}

#[cfg(feature = "rocksdb")]
mod newstore {
    use super::support::InFolder;
    use esker_keyvalue::{Kind, StripLen};
    esker_store::contract_suite!(InFolder { kind: Kind::NewStore, strip: StripLen::Bytes(4096) });
}

#[cfg(feature = "leveldb")]
mod leveldb {
    use super::support::InFolder;
    use esker_keyvalue::{Kind, StripLen};
    esker_store::contract_suite!(InFolder { kind: Kind::LevelDb, strip: StripLen::Bytes(4096) });
}

#[cfg(feature = "leveldb")]
mod leveldb_without_strips {
    use super::support::InFolder;
    use esker_keyvalue::{Kind, StripLen};
    esker_store::contract_suite!(InFolder { kind: Kind::LevelDb, strip: StripLen::None });
}

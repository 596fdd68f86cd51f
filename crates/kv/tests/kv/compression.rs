//! The compression of a namespace: kept in the catalogue, passed on with what is written, and nothing that a reader
//! notices.

use std::sync::Arc;

use bytes::Bytes;
use esker_kv::{Compression, Durability, Entry, Error, Key, Kind, Kv, ManualClock};
use esker_memory::MemoryStore;
use esker_store::{Change, Collection, ObjectId, ObjectStore, Transaction};

fn open(store: &Arc<MemoryStore>) -> Kv {
    Kv::open(Arc::clone(store) as Arc<dyn ObjectStore>, Arc::new(ManualClock::new(crate::NOON_MS))).unwrap()
}

fn catalogue() -> ObjectId {
    ObjectId::new(Collection::from("kv"), "namespaces")
}

#[test]
fn a_namespace_remembers_its_compression_and_old_catalogues_stay_readable() {
    let store = Arc::new(MemoryStore::new());
    let kv = open(&store);
    for (name, compression, stored) in [
        ("a", Compression::None, &b"\x01"[..]),
        ("b", Compression::Lz4, b"\x01\x01"),
        ("c", Compression::Zstd, b"\x01\x02"),
    ] {
        let namespace = kv.namespace_with(name, Kind::Int, compression).unwrap();
        assert_eq!(namespace.compression(), compression);
        let found = store.omap_get(&catalogue(), name.as_bytes()).wait().unwrap();
        assert_eq!(found.as_deref(), Some(stored));
    }
    assert_eq!(kv.namespace_with("b", Kind::Int, Compression::Zstd).unwrap().compression(), Compression::Lz4);
    kv.set_compression("a", Compression::Zstd).unwrap();
    kv.set_compression("c", Compression::None).unwrap();
    drop(kv);
    let kv = open(&store);
    let compression = |name| kv.namespace(name, Kind::Int).unwrap().compression();
    assert_eq!(["a", "b", "c"].map(compression), [Compression::Zstd, Compression::Lz4, Compression::None]);
    assert_eq!(store.omap_get(&catalogue(), b"c").wait().unwrap().as_deref(), Some(&b"\x01"[..]));
    assert!(matches!(kv.set_compression("d", Compression::Lz4), Err(Error::NoNamespace { .. })));
}

#[test]
fn a_compression_that_is_not_known_is_an_error_that_names_the_namespace() {
    for stored in [&b"\x01\x03"[..], b"\x01\x01\x02", b""] {
        let store = Arc::new(MemoryStore::new());
        open(&store).namespace("odd", Kind::Int).unwrap();
        let set = Change::OmapSet { key: Bytes::from("odd"), value: Bytes::copy_from_slice(stored) };
        store.submit(Transaction::new().change(&catalogue(), set)).wait().unwrap();
        let opened = Kv::open(Arc::clone(&store) as Arc<dyn ObjectStore>, Arc::new(ManualClock::new(crate::NOON_MS)));
        let error = opened.err().unwrap().to_string();
        assert!(error.contains("odd"), "{error}");
    }
}

#[test]
fn what_is_written_with_a_compression_reads_the_same() {
    let kv = open(&Arc::new(MemoryStore::new()));
    let namespace = kv.namespace_with("n", Kind::Bytes, Compression::Zstd).unwrap();
    let value = Bytes::from("gravel ".repeat(1_000));
    namespace.put("a", &value).wait().unwrap();
    let mut txn = kv.begin(&[(&namespace, Key::Bytes(b"b"))]);
    txn.put(&namespace, "b", Entry::new(value.clone()));
    txn.commit(Durability::Durable).wait().unwrap();
    for key in ["a", "b"] {
        assert_eq!(namespace.get(key).wait().unwrap(), Some(value.clone()));
    }
}

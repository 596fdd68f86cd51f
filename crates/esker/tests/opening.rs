//! Opening a store by path or URL: what is made, what is found again, what is refused.

use std::process::Command;
use std::sync::Arc;

use esker::kv::{Entry, Kind, ManualClock};
use esker::{Bytes, Durability, Error, Store};

fn folder() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let path = folder.path().join("data").display().to_string();
    (folder, path)
}

/// Small enough that tests take no space.
const SMALL: &str = "?size=64m&segment=1m";

#[test]
fn a_folder_path_makes_a_store_in_it_that_is_found_again() {
    let (_folder, path) = folder();
    let location = format!("{path}{SMALL}");
    let store = Store::open(&location).unwrap();
    assert!(store.created());
    assert_eq!(store.path().unwrap().file_name().unwrap(), esker::DEVICE_FILE);
    let names = store.kv().unwrap().namespace("names", Kind::Bytes).unwrap();
    names.put("ada", "countess").wait().unwrap();
    store.close().unwrap();

    let store = Store::open(&format!("esker:{path}")).unwrap();
    assert!(!store.created());
    assert!(store.engine().unwrap().recovery().clean);
    let names = store.kv().unwrap().namespace("names", Kind::Bytes).unwrap();
    assert_eq!(names.get("ada").wait().unwrap(), Some(Bytes::from("countess")));
}

#[test]
fn a_path_that_ends_in_esker_is_the_device_itself() {
    let (_folder, path) = folder();
    let file = format!("{path}.esker");
    let store = Store::open(&format!("{file}{SMALL}")).unwrap();
    assert_eq!(store.path().unwrap().to_str(), Some(file.as_str()));
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 64 << 20);
}

#[test]
fn a_default_store_is_sparse_and_leaves_room_on_the_disk() {
    use std::os::unix::fs::MetadataExt;
    let (_folder, path) = folder();
    let store = Store::open(&path).unwrap();
    let metadata = std::fs::metadata(store.path().unwrap()).unwrap();
    assert!(metadata.len() <= esker::DEVICE_BYTES_DEFAULT);
    // Six segments of 64 MiB: four that are kept for when the file system is full, and such as are open or ready. They
    // are taken one after the other, beside this.
    assert!(metadata.blocks() * 512 <= 512 << 20, "{} bytes are taken", metadata.blocks() * 512);
}

#[test]
fn a_second_opening_is_refused_until_the_first_is_closed() {
    let (_folder, path) = folder();
    let location = format!("{path}{SMALL}");
    let store = Store::open(&location).unwrap();
    let error = Store::open(&location).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    assert!(error.to_string().contains("in use by another process"), "{error}");
    drop(store);
    Store::open(&location).unwrap();
}

#[test]
fn what_was_acknowledged_is_there_after_the_process_died() {
    const MARK: &str = "ESKER_TEST_DIES";
    if let Ok(location) = std::env::var(MARK) {
        let store = Store::open(&location).unwrap();
        let numbers = store.kv().unwrap().namespace("numbers", Kind::Int).unwrap();
        for number in 0..500u64 {
            numbers.put(number, number.to_string()).wait().unwrap();
        }
        std::process::abort();
    }
    let (_folder, path) = folder();
    let location = format!("{path}{SMALL}");
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_was_acknowledged_is_there_after_the_process_died"])
        .env(MARK, &location)
        .output()
        .unwrap()
        .status;
    assert!(!status.success());
    let store = Store::open(&location).unwrap();
    assert!(!store.engine().unwrap().recovery().clean);
    let numbers = store.kv().unwrap().namespace("numbers", Kind::Int).unwrap();
    for number in 0..500u64 {
        assert_eq!(numbers.get(number).wait().unwrap(), Some(Bytes::from(number.to_string())));
    }
}

#[test]
fn an_interrupted_creation_is_replaced_by_the_next() {
    let (_folder, path) = folder();
    std::fs::create_dir(&path).unwrap();
    std::fs::write(format!("{path}/store.esker.new"), b"half a superblo").unwrap();
    let store = Store::open(&format!("{path}{SMALL}")).unwrap();
    assert!(store.created());
    assert!(!std::path::Path::new(&format!("{path}/store.esker.new")).exists());
}

#[test]
fn a_store_that_is_not_to_be_made_is_not_made() {
    let (_folder, path) = folder();
    for location in [format!("{path}?create=false"), format!("{path}?read_only=true")] {
        let error = Store::open(&location).unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
    }
    assert!(!std::path::Path::new(&path).exists());
}

#[test]
fn a_foreign_file_is_an_error_and_stays_as_it_is() {
    let (_folder, path) = folder();
    let file = format!("{path}.esker");
    let content = vec![7u8; 8 << 20];
    std::fs::write(&file, &content).unwrap();
    assert!(matches!(Store::open(&file), Err(Error::Store(_))));
    std::fs::write(&file, b"").unwrap();
    assert!(matches!(Store::open(&file), Err(Error::Store(_))));
    std::fs::write(&file, &content).unwrap();
    assert!(matches!(Store::builder().format(&file, false, false, &mut |_, _| {}), Err(Error::Exists { .. })));
    assert_eq!(std::fs::read(&file).unwrap(), content);
}

#[test]
fn format_makes_a_store_of_the_size_that_was_asked_for() {
    let (_folder, path) = folder();
    let (mut done, mut total) = (0, 0);
    let builder = Store::builder().size(32 << 20).segment_bytes(1 << 20);
    let made = builder.format(&path, false, true, &mut |now, all| (done, total) = (now, all)).unwrap();
    assert_eq!((made.len, made.segment_bytes), (32 << 20, 1 << 20));
    assert_eq!((done, total), (32 << 20, 32 << 20));
    let report = Store::builder().check(&path, true, &mut |_, _| {}).unwrap();
    assert_eq!(report.records, 0);
    Store::builder().size(16 << 20).segment_bytes(1 << 20).format(&path, true, false, &mut |_, _| {}).unwrap();
    assert_eq!(std::fs::metadata(&made.path).unwrap().len(), 16 << 20);
}

#[test]
fn unknown_and_bad_options_are_errors_that_say_what_is_expected() {
    for (location, expected) in [
        ("memory:?colour=red", "expected one of size, segment"),
        ("x?size=big", "size=big"),
        ("x?policy=sometimes", "batch"),
        ("x?cache_policy=mru", "expected clock, lru, arc, s3-fifo or w-tinylfu"),
        ("x?create=perhaps", "create=perhaps"),
        ("swift:pool", "memory:"),
    ] {
        let error = Store::open(location).unwrap_err().to_string();
        assert!(error.contains(expected), "{location}: {error}");
    }
}

#[test]
fn the_cache_s_policy_is_an_option() {
    let (_folder, path) = folder();
    let policy = |options: &str| {
        let store = Store::open(&format!("{path}{SMALL}{options}")).unwrap();
        let policy = store.engine().unwrap().stats().cache_policy;
        store.close().unwrap();
        policy
    };
    assert_eq!(policy(""), esker::CachePolicy::default());
    for expected in esker::CachePolicy::ALL {
        assert_eq!(policy(&format!("&cache_policy={expected}")), expected);
    }
}

#[test]
fn expired_keys_are_removed_in_the_background() {
    let (_folder, path) = folder();
    let clock = Arc::new(ManualClock::new(1_000));
    let store = Store::builder()
        .clock(Arc::clone(&clock) as Arc<dyn esker::kv::Clock>)
        .expire_interval(std::time::Duration::from_millis(5))
        .open(&format!("{path}{SMALL}"))
        .unwrap();
    let cache = store.kv().unwrap().namespace("cache", Kind::Bytes).unwrap();
    let entry = Entry { value: "x".into(), expires_ms: Some(2_000), tag: 0 };
    cache.put_with("a", entry, Durability::Applied).wait().unwrap();
    assert_eq!(cache.len().wait().unwrap(), 1);
    clock.set(2_000);
    assert_eq!(cache.get("a").wait().unwrap(), None);
    let started = std::time::Instant::now();
    while cache.len().wait().unwrap() > 0 {
        assert!(started.elapsed().as_secs() < 20, "the expired key is still stored");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    store.close().unwrap();
}

#[test]
fn a_closed_store_refuses_further_writes() {
    let (_folder, path) = folder();
    let store = Store::open(&format!("{path}{SMALL}")).unwrap();
    let names = store.kv().unwrap().namespace("names", Kind::Bytes).unwrap();
    store.close().unwrap();
    store.close().unwrap();
    assert!(names.put("a", "b").wait().is_err());
}

#[test]
fn values_of_a_namespace_that_asks_for_it_are_stored_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let location = format!("{}?size=256m&compress_min=1k", folder.path().join("data").display());
    let value = "{\"gravel\":\"everything once, in order\"}".repeat(100);
    for round in 0..2 {
        let store = Store::open(&location).unwrap();
        let kv = store.kv().unwrap();
        let packed = kv.namespace_with("packed", esker::kv::Kind::Int, esker::Compression::Lz4).unwrap();
        let plain = kv.namespace("plain", esker::kv::Kind::Int).unwrap();
        for namespace in [&packed, &plain] {
            // The first write makes the object, in a second attempt.
            namespace.put(round + 10, &value[..1_000]).wait().unwrap();
            namespace.put(round, &value).wait().unwrap();
            assert_eq!(namespace.get(0).wait().unwrap().as_deref(), Some(value.as_bytes()));
        }
        let stats = store.engine().unwrap().stats();
        assert_eq!((stats.compressed_kept, stats.compressed_refused), (1, 0), "round {round}");
        assert!(stats.compression_ratio() < 0.2, "{}", stats.compression_ratio());
        store.close().unwrap();
    }
    let refused = Store::open(&format!("{location}&compress_ratio=2")).err().unwrap().to_string();
    assert!(refused.contains("ratio_max is 2"), "{refused}");
    let refused = Store::open(&format!("{location}&compress=brotli")).err().unwrap().to_string();
    assert!(refused.contains("none, lz4 or zstd"), "{refused}");
}

#[test]
fn a_store_on_files_is_made_found_again_and_told_from_others() {
    let (_folder, path) = folder();
    let location = format!("file:{path}?checkpoint=1m&folder_files=64");
    let store = Store::open(&location).unwrap();
    assert!(store.created() && store.engine().is_none());
    assert_eq!((store.backend(), store.path().unwrap().to_str()), ("file", Some(path.as_str())));
    let names = store.kv().unwrap().namespace("names", Kind::Bytes).unwrap();
    names.put("ada", "countess").wait().unwrap();
    let error = Store::open(&location).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    let error = store.compact(&mut |_, _| true).unwrap_err().to_string();
    assert!(error.contains("this one is file"), "{error}");
    store.close().unwrap();

    let store = Store::open(&location).unwrap();
    assert!(!store.created());
    let names = store.kv().unwrap().namespace("names", Kind::Bytes).unwrap();
    assert_eq!(names.get("ada").wait().unwrap(), Some(Bytes::from("countess")));
    store.close().unwrap();
    for (location, expected) in [
        (path.clone(), "found file, expected a store of kind esker"),
        (format!("rocksdb:{path}"), "found file, expected a store of kind rocksdb"),
        (format!("file:{path}?strip=16k"), "expected one of checkpoint, folder_files, cache, create, expire"),
        (format!("file:{path}?checkpoint=much"), "checkpoint=much"),
    ] {
        let error = Store::open(&location).unwrap_err().to_string();
        assert!(error.contains(expected), "{location}: {error}");
    }
    let check = Store::builder().check(&format!("file:{path}"), true, &mut |_, _| {}).unwrap_err();
    assert!(matches!(check, Error::NoEngine { backend: "file", .. }), "{check}");
}

#[test]
fn folders_that_are_not_what_the_location_says_are_errors_that_say_what_was_found() {
    let (_folder, path) = folder();
    let inside = |name: &str| format!("{path}/{name}");
    Store::open(&format!("{}{SMALL}", inside("engine"))).unwrap().close().unwrap();
    for name in ["files", "newer", "half", "odd"] {
        Store::open(&format!("file:{}", inside(name))).unwrap().close().unwrap();
    }
    std::fs::write(inside("newer/STORE"), "esker-store file 7 whole\n").unwrap();
    std::fs::write(inside("half/STORE"), "esker-store file 1 making\n").unwrap();
    std::fs::write(inside("odd/STORE"), "something else\n").unwrap();
    for (name, files) in [
        ("rocks", &["CURRENT", "MANIFEST-1", "OPTIONS-2"][..]),
        ("level", &["CURRENT", "MANIFEST-1"]),
        ("letters", &["ada"]),
    ] {
        std::fs::create_dir(inside(name)).unwrap();
        for file in files {
            std::fs::write(format!("{}/{file}", inside(name)), b"").unwrap();
        }
    }
    type Check = fn(&Error) -> bool;
    let cases: [(&str, &str, Check); 8] = [
        ("file:", "engine", |error| matches!(error, Error::OtherBackend { found, .. } if found == "esker")),
        ("file:", "rocks", |error| matches!(error, Error::OtherBackend { found, .. } if found == "rocksdb")),
        (
            "",
            "level",
            |error| matches!(error, Error::OtherBackend { found, expected: "esker", .. } if found == "leveldb"),
        ),
        ("file:", "letters", |error| matches!(error, Error::OtherBackend { found, .. } if found == "ada")),
        ("file:", "newer", |error| matches!(error, Error::Newer { found: 7, known: 1, .. })),
        ("file:", "half", |error| matches!(error, Error::HalfMade { .. })),
        ("file:", "odd", |error| matches!(error, Error::Io { .. })),
        ("file:", "nothing", |error| matches!(error, Error::NotFound { .. })),
    ];
    for (scheme, name, check) in cases {
        let error = Store::open(&format!("{scheme}{}?create=false", inside(name))).unwrap_err();
        assert!(check(&error), "{scheme}{name}: {error:?}");
    }
    // A half-made store was never written to: it is made anew where it may be.
    Store::open(&format!("file:{}", inside("half"))).unwrap().close().unwrap();
    Store::open(&format!("file:{}?create=false", inside("half"))).unwrap();
}

#[cfg(not(any(feature = "rocksdb", feature = "leveldb")))]
#[test]
fn a_backend_that_is_not_part_of_the_program_says_how_to_build_it() {
    let (_folder, path) = folder();
    for (scheme, feature) in [("rocksdb", "rocksdb"), ("leveldb", "leveldb"), ("newstore", "rocksdb")] {
        let error = Store::open(&format!("{scheme}:{path}")).unwrap_err();
        assert!(matches!(error, Error::NotBuilt { .. }), "{error}");
        assert!(error.to_string().contains(&format!("--features {feature}")), "{error}");
        assert!(!std::path::Path::new(&path).exists());
    }
}

#[cfg(feature = "leveldb")]
#[test]
fn a_closed_leveldb_store_is_opened_again_beside_its_faces_and_its_damage_is_told() {
    let (_folder, path) = folder();
    let location = format!("leveldb:{path}");
    let store = Store::open(&location).unwrap();
    let numbers = store.kv().unwrap().namespace("numbers", Kind::Int).unwrap();
    for number in 0..2_000u64 {
        numbers.put(number, number.to_string()).wait().unwrap();
    }
    store.close().unwrap();
    let again = Store::open(&location).unwrap();
    let found = again.kv().unwrap().namespace("numbers", Kind::Int).unwrap().get(1_999).wait().unwrap();
    assert_eq!(found.as_deref(), Some(&b"1999"[..]));
    assert!(numbers.get(1_999).wait().is_err());
    again.close().unwrap();
    let manifest = std::fs::read_dir(format!("{path}/db"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.display().to_string().contains("MANIFEST-"))
        .unwrap();
    let mut bytes = std::fs::read(&manifest).unwrap();
    bytes[10] ^= 1;
    std::fs::write(&manifest, bytes).unwrap();
    let error = Store::open(&location).unwrap_err();
    assert!(matches!(error, Error::Store(esker::objects::Error::Corrupt { .. })), "{error:?}");
}

//! Links the system's libraries, as the features ask for them.

fn main() {
    for (feature, library) in [("CARGO_FEATURE_ROCKSDB", "rocksdb"), ("CARGO_FEATURE_LEVELDB", "leveldb")] {
        if std::env::var_os(feature).is_some() {
            println!("cargo:rustc-link-lib=dylib={library}");
        }
    }
    println!("cargo:rerun-if-changed=build.rs");
}

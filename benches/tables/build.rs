//! Links the peers: Debian's librocksdb-dev, libleveldb-dev, libkyotocabinet-dev and liblmdb-dev.

fn main() {
    for library in ["rocksdb", "leveldb", "kyotocabinet", "lmdb"] {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}

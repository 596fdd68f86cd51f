//! Links the system's librados, if the feature asks for it.

fn main() {
    if std::env::var_os("CARGO_FEATURE_LIBRADOS").is_some() {
        println!("cargo:rustc-link-lib=dylib=rados");
    }
    println!("cargo:rerun-if-changed=build.rs");
}

//! Generates messages, clients and services from the published `.proto` files, without `protoc`.
//!
//! proto/ → protox → descriptors (kept for reflection) → prost and tonic → `OUT_DIR`

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = [
        "esker/chain/v1/keys.proto",
        "esker/chain/v1/moving.proto",
        "esker/chain/v1/pair.proto",
        "esker/chain/v1/replication.proto",
        "esker/log/v1/log.proto",
        "esker/log/v1/sequencer.proto",
        "esker/map/v1/map.proto",
        "esker/store/v1/objects.proto",
    ];
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_source_info(true).open_files(files)?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;
    let mut methods: Vec<String> = Vec::new();
    for file in compiler.file_descriptor_set().file {
        for service in &file.service {
            let of = |method: &str| format!("/{}.{}/{method}", file.package(), service.name());
            methods.extend(service.method.iter().map(|method| of(method.name())));
        }
    }
    methods.sort_unstable();
    std::fs::write(out.join("methods.rs"), format!("&{methods:?}"))?;
    tonic_prost_build::configure().bytes(".").compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

//! Generates the client's side of the server's published `.proto` files, without `protoc`.
//!
//! proto/ (the server's folder) → protox → descriptors → prost and tonic → `OUT_DIR`

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = ["esker/log/v1/sequencer.proto", "esker/map/v1/map.proto", "esker/store/v1/objects.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().bytes(".").build_server(false).compile_fds(descriptors)?;
    Ok(())
}

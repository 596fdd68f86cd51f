//! A foreign client: Python with grpcio, and stubs that its own tools make from the published files.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::running::Running;

fn python(packages: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("python3");
    command.args(arguments).env("PYTHONPATH", packages);
    command.output().unwrap_or_else(|error| panic!("python3: {error}"))
}

/// A folder with grpcio and its tools in it; why there is none, if so.
fn packages() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("grpcio");
    if folder.join("grpc_tools").exists() {
        return Ok(folder);
    }
    let into = folder.display().to_string();
    let arguments =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", &into, "grpcio", "grpcio-tools"];
    match Command::new("python3").args(arguments).output() {
        Ok(output) if output.status.success() => Ok(folder),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("pip failed").to_owned()),
        Err(error) => Err(format!("python3: {error}")),
    }
}

#[test]
fn a_python_client_appends_follows_and_tells_errors_apart() {
    let packages = match packages() {
        Ok(packages) => packages,
        Err(why) => return println!("skipped: grpcio cannot be installed: {why}"),
    };
    let stubs = tempfile::tempdir().unwrap();
    let proto = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/proto");
    let (include, out, services) = (
        format!("-I{proto}"),
        format!("--python_out={}", stubs.path().display()),
        format!("--grpc_python_out={}", stubs.path().display()),
    );
    let file = format!("{proto}/esker/log/v1/log.proto");
    let made = python(&packages, &["-m", "grpc_tools.protoc", &include, &out, &services, &file]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let server = Running::in_memory();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/grpc/client.py");
    let mut command = Command::new("python3");
    let path = std::env::join_paths([stubs.path(), &packages]).unwrap();
    let output = command.args([script, &server.address.to_string()]).env("PYTHONPATH", path).output().unwrap();
    let (said, erred) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.trim() == "ok", "{said}{erred}");
}

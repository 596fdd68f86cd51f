//! The program as scripts call it: what it cannot do it says, with a code.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::process::Command;

#[test]
fn a_program_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_histories"));
    command.current_dir(folder.path()).args(["record", "--esker", "nowhere/esker"]);
    let done = command.output().unwrap();
    assert_eq!(done.status.code(), Some(1));
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(said.contains("nowhere/esker") && said.contains("build it first"), "{said}");
}

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

#[test]
fn a_cluster_that_is_not_there_leaves_a_history_of_errors_that_changed_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_histories"));
    command.current_dir(folder.path()).args([
        "cluster",
        "--seconds",
        "1",
        "--settle",
        "0",
        "--clients",
        "2",
        "--nodes",
    ]);
    let done = command.args([&gone, "--out", "here"]).output().unwrap();
    assert_eq!(done.status.code(), Some(1));
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(said.contains("at the end"), "{said}");
    let lines = std::fs::read_to_string(folder.path().join("here/kv.jsonl")).unwrap();
    assert!(!lines.is_empty() && lines.lines().all(|line| line.contains("\"outcome\":\"error\"")), "{lines}");
}

//! `esker copy` as a process: what it prints, what it refuses, and that kill -9 in the middle only costs time.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use esker::objects::{Change, Collection, ObjectId, Transaction};
use esker::{Bytes, Store};

fn esker(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_esker"));
    command.args(arguments).current_dir(folder).env_remove("RUST_LOG").env_remove("ESKER_CONFIG");
    command
}

/// Runs a command that must end with `code`; what it printed to stdout and stderr.
fn run(folder: &Path, arguments: &[&str], code: i32) -> (String, String) {
    let output = esker(folder, arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{stderr}");
    (stdout, stderr)
}

fn json(folder: &Path, from: &str, to: &str) -> serde_json::Value {
    serde_json::from_str(&run(folder, &["copy", "--json", from, to], 0).0).unwrap()
}

const ENGINE: &str = "?size=512m&segment=8m";

fn fill(folder: &Path, location: &str, objects: u64, bytes: usize) {
    let store = Store::open(&location.replacen(':', &format!(":{}/", folder.display()), 1)).unwrap();
    let objects_of = store.objects();
    objects_of.submit(Transaction::new().create_collection(&"c".into())).wait().unwrap();
    for number in 0..objects {
        let id = ObjectId::new(Collection::from("c"), number.to_string());
        let mut data = vec![0; bytes];
        fastrand::Rng::with_seed(number).fill(&mut data);
        let mut txn = Transaction::with(esker::Durability::Applied);
        txn.push(&id, Change::Write { offset: number * 7, data: data.into() });
        for key in 0..50 {
            txn.push(&id, Change::OmapSet { key: format!("{key}").into(), value: Bytes::from_static(b"value") });
            txn.push(&id, Change::SlotSet { index: key, value: Bytes::from_static(b"record") });
        }
        objects_of.submit(txn).wait().unwrap();
    }
    store.close().unwrap();
}

#[test]
fn stores_are_copied_between_backends_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run(folder, &["kv", "--store", &format!("a{ENGINE}"), "put", "greeting", "hello"], 0);
    let first = json(folder, "a", "file:b");
    assert_eq!(first["resumed"], false);
    assert!(first["from"].as_str().unwrap().starts_with("esker:/"), "{first}");
    assert_eq!(run(folder, &["kv", "--store", "file:b", "get", "greeting"], 0).0, "hello");
    let back = json(folder, "file:b", &format!("esker:c{ENGINE}"));
    assert_eq!((&back["crc32c"], &back["bytes"]), (&first["crc32c"], &first["bytes"]));
    assert_eq!(run(folder, &["kv", "--store", "c", "get", "greeting"], 0).0, "hello");
    let (printed, _) = run(folder, &["copy", "c", "memory:"], 0);
    assert!(printed.contains(first["crc32c"].as_str().unwrap()), "{printed}");

    for (arguments, code, expected) in [
        (["copy", "a", "file:b"], 1, "not empty"),
        (["copy", "file:none", "file:d"], 3, "there is no store at none"),
        (["copy", "a", "cassandra:d"], 2, "expected esker:PATH, file:PATH"),
        (["copy", "a", "a"], 5, "in use"),
        (["copy", "file:a", "file:d"], 1, "found esker, expected a store of kind file"),
        (["copy", "a", "leveldb:d"], 2, "--features leveldb"),
    ] {
        let (_, stderr) = run(folder, &arguments, code);
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

fn killed_and_resumed(from: &str, to: &str) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fill(folder, from, 250, 200_000);
    let whole = json(folder, from, "file:whole");
    let (mut kills, mut interrupted) = (0, 0);
    let last = loop {
        let mut child =
            esker(folder, &["copy", "--json", from, to]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let patience = Duration::from_millis(if kills < 8 { 30 + 25 * kills } else { 60_000 });
        let started = Instant::now();
        while started.elapsed() < patience && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        kills += 1;
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
            interrupted += 1;
        }
        let output = child.wait_with_output().unwrap();
        if let Some(code) = output.status.code() {
            if code == 1 && interrupted > 0 && String::from_utf8_lossy(&output.stderr).contains("no half copy") {
                // The one before was killed when it had done all and not yet ended: nothing is left to go on with.
                assert_eq!(json(folder, to, "file:compared")["crc32c"], whole["crc32c"]);
                return killed_and_resumed(from, to);
            }
            assert_eq!(code, 0, "{}", String::from_utf8_lossy(&output.stderr));
            break serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap();
        }
    };
    println!("{from} to {to}: killed {interrupted} times; the last run: {last}");
    assert!(interrupted > 0 && last["resumed"] == true, "the copy was not killed in the middle");
    assert!(last["copied_bytes"].as_u64() < last["bytes"].as_u64(), "{last}");
    assert_eq!(last["crc32c"], whole["crc32c"]);
    assert_eq!((&last["objects"], &last["bytes"]), (&whole["objects"], &whole["bytes"]));
    run(folder, &["copy", from, to], 1);
}

#[test]
fn a_copy_that_is_killed_goes_on_and_ends_equal() {
    killed_and_resumed("file:from", &format!("esker:to{ENGINE}"));
    killed_and_resumed(&format!("esker:from{ENGINE}"), "file:to?checkpoint=4m");
}

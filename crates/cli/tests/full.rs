//! A file system that is full under a sparse store, and a server on it: writes and deletes go on, the server starts
//! again, and uses the room that others give back.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

#[path = "support/resp.rs"]
mod resp;
mod support;

use std::path::Path;

use resp::{Client, Running};
use support::{apart, esker, output, run, soon};

/// Room on the file system, in MiB; the store is made for ten times as much.
const ROOM: u64 = 100;
const VALUE_BYTES: usize = 100_000;

fn value(key: u64, life: u64) -> String {
    let mark = format!("{key} {life} ");
    let mut value = mark.repeat(VALUE_BYTES / mark.len() + 1);
    value.truncate(VALUE_BYTES);
    value
}

fn serve(folder: &Path) -> Running {
    Running::start(folder, &["--store", "data"])
}

/// Sets until it is refused; the first key that was.
fn fill(client: &mut Client, from: u64, life: u64) -> u64 {
    (from..20_000).find(|key| set(client, *key, life).is_err()).expect("it is full some day")
}

fn set(client: &mut Client, key: u64, life: u64) -> Result<(), String> {
    match client.call(&["SET", &format!("key{key}"), &value(key, life)]).as_str() {
        "+OK" => Ok(()),
        refused => Err(refused.into()),
    }
}

#[test]
fn a_full_file_system_under_a_sparse_store_is_used_to_the_end_and_emptied() {
    let ran = apart("a_full_file_system_under_a_sparse_store_is_used_to_the_end_and_emptied", || {
        let outside = tempfile::tempdir().unwrap();
        let folder = outside.path().join("small");
        std::fs::create_dir(&folder).unwrap();
        run("mount", &["-t", "tmpfs", "-o", &format!("size={ROOM}m"), "none", folder.to_str().unwrap()]);
        std::fs::create_dir(folder.join("data")).unwrap();
        let formatted = esker(&folder).args(["format", "data/store.esker", "--size", "1g", "--segment", "1m"]).output();
        let formatted = formatted.unwrap();
        assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));

        // 20 MB of values, overwritten again and again.
        let mut server = serve(&folder);
        let mut client = server.client();
        for life in 0..15 {
            for key in 0..200 {
                set(&mut client, key, life).unwrap_or_else(|refused| panic!("life {life}, key {key}: {refused}"));
            }
        }
        for key in 0..200 {
            assert!(client.call(&["GET", &format!("key{key}")]) == value(key, 14), "key {key}");
        }
        // Full to the end, killed, started again, and emptied.
        for round in 0..3 {
            let filled = fill(&mut client, 200, round);
            assert!(filled > 450, "round {round}: full with {filled} keys");
            server.signal(if round == 0 { "-TERM" } else { "-KILL" });
            server = serve(&folder);
            client = server.client();
            for key in 200..filled {
                assert!(client.call(&["GET", &format!("key{key}")]) == value(key, round), "round {round}, key {key}");
            }
            if round == 2 {
                assert_eq!(client.call(&["FLUSHDB"]), "+OK");
            } else {
                for key in 200..filled {
                    assert_eq!(client.call(&["DEL", &format!("key{key}")]), ":1", "round {round}, key {key}");
                }
            }
        }
        // What was emptied is there for others, who take it, and give it back.
        let other = folder.join("other");
        let half = format!("{}m", ROOM / 2);
        soon("others can use what was given back", || {
            output("fallocate", &["--length", &half, other.to_str().unwrap()]).status.success()
        });
        let half = fill(&mut client, 0, 7);
        std::fs::remove_file(other).unwrap();
        // The device is asked each second: what is deleted and cleaned meanwhile lets some writes in before that.
        let mut whole = half;
        soon("room that is there again is found", || {
            whole = fill(&mut client, whole, 7);
            whole > half + 200
        });
        assert_eq!(client.call(&["FLUSHDB"]), "+OK");
        assert_eq!(server.signal("-TERM"), 0);
    });
    if !ran {
        eprintln!("skipped: namespaces cannot be made here");
    }
}

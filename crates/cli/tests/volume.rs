//! `esker volume` as a process: a disk's life from making to removing, what it prints, what it refuses.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

fn run(folder: &Path, arguments: &[&str], code: i32) -> (Vec<u8>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_esker"));
    command.args(["volume", "--store", "disks?size=512m&segment=8m"]).args(arguments).current_dir(folder);
    command.env_remove("RUST_LOG").env_remove("ESKER_CONFIG").stdin(Stdio::null());
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{stderr}");
    (output.stdout, stderr)
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    let with: Vec<&str> = ["--json"].iter().chain(arguments).copied().collect();
    serde_json::from_slice(&run(folder, &with, 0).0).unwrap()
}

#[test]
fn a_disk_is_imported_snapshotted_cloned_exported_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut raw = vec![0u8; 20 << 20];
    for (number, at) in [0usize, 5 << 20, 9 << 20].into_iter().enumerate() {
        raw[at..at + 100_000].fill(number as u8 + 1);
    }
    std::fs::write(folder.join("raw"), &raw).unwrap();
    run(folder, &["create", "empty", "1g", "--stripe-unit", "64k", "--stripe-count", "4"], 0);
    assert!(json(folder, &["import", "--raw", "raw", "disk"])["data_bytes"].as_u64().unwrap() < 400_000);
    let info = json(folder, &["info", "disk"]);
    assert_eq!((&info["size"], &info["object_size"]), (&Value::from(20 << 20), &Value::from(4 << 20)), "{info}");
    assert!(info["stored"].as_u64().unwrap() < 400_000, "{info}");
    assert_eq!(json(folder, &["ls"]).as_array().unwrap().len(), 2);

    run(folder, &["snap", "create", "disk@a"], 0);
    let text = run(folder, &["clone", "disk@a", "child"], 1).1;
    assert!(text.contains("not protected"), "{text}");
    run(folder, &["snap", "protect", "disk@a"], 0);
    run(folder, &["clone", "disk@a", "child"], 0);
    assert_eq!(json(folder, &["snap", "children", "disk@a"]), Value::from(vec!["child"]));
    let text = run(folder, &["snap", "rm", "disk@a"], 1).1;
    assert!(text.contains("is protected; unprotect it first"), "{text}");

    let bench = json(folder, &["bench", "disk", "--seconds", "1", "--threads", "2", "--pattern", "seq"]);
    assert!(bench["requests"].as_u64().unwrap() > 0, "{bench}");
    let bench = ["bench", "disk", "--io-total", "1m", "--through", "both", "--threads", "8", "--connections", "3"];
    for more in [&[][..], &["--durable"], &["--io", "read", "--pattern", "seq"]] {
        let both = json(folder, &[&bench, more].concat());
        for (run, through) in both["runs"].as_array().unwrap().iter().zip(["library", "nbd"]) {
            assert!(run["through"] == through && run["requests"] == 256, "{both}");
        }
        assert!(both["nbd_to_library"].as_f64().unwrap() > 0.0, "{both}");
    }
    run(folder, &["snap", "create", "disk@b"], 0);
    let diff = String::from_utf8(run(folder, &["diff", "disk@b", "--from", "a"], 0).0).unwrap();
    assert!(diff.lines().count() > 0 && diff.lines().all(|line| line.split('\t').count() == 3), "{diff}");
    run(folder, &["export", "disk@a", "full"], 0);
    run(folder, &["export", "disk@b", "increment", "--from", "a"], 0);
    run(folder, &["export", "disk@b", "--raw", "b"], 0);
    let text = run(folder, &["export", "disk@b", "full"], 1).1;
    assert!(text.contains("full: "), "{text}");
    run(folder, &["import", "full", "copy"], 0);
    run(folder, &["import", "increment", "copy"], 0);
    assert!(run(folder, &["export", "copy", "--raw", "-"], 0).0 == std::fs::read(folder.join("b")).unwrap());
    assert!(run(folder, &["export", "child", "--raw", "-"], 0).0 == raw);
    run(folder, &["snap", "rollback", "disk@a"], 0);
    assert!(run(folder, &["export", "disk", "--raw", "-"], 0).0 == raw);

    run(folder, &["flatten", "child"], 0);
    assert_eq!(json(folder, &["info", "child"])["parent"], Value::Null);
    run(folder, &["snap", "unprotect", "disk@a"], 0);
    for snapshot in ["disk@a", "disk@b", "copy@a", "copy@b"] {
        run(folder, &["snap", "rm", snapshot], 0);
    }
    let epoch = json(folder, &["lock", "add", "disk", "me"])["epoch"].to_string();
    assert_eq!(epoch, "4", "a server had it for each of three runs");
    let text = run(folder, &["rm", "disk"], 1).1;
    assert!(text.contains("locked by me (epoch 4)"), "{text}");
    run(folder, &["lock", "break", "disk", &epoch], 0);
    assert_eq!(json(folder, &["lock", "ls", "disk"]), Value::Null);
    let text = run(folder, &["resize", "disk", "5m"], 1).1;
    assert!(text.contains("has data at 5242880"), "{text}");
    run(folder, &["resize", "disk", "5m", "--allow-shrink"], 0);
    run(folder, &["meta", "set", "disk", "owner", "ada"], 0);
    run(folder, &["rename", "disk", "disc"], 0);
    assert_eq!(json(folder, &["meta", "ls", "disc"])["owner"], "ada");
    for image in ["disc", "child", "copy", "empty"] {
        run(folder, &["rm", image], 0);
    }
    assert_eq!(json(folder, &["ls"]), Value::Array(vec![]));
}

#[test]
fn mistakes_have_their_exit_codes_and_name_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run(folder, &["create", "disk", "1m"], 0);
    std::fs::write(folder.join("noise"), [7; 500]).unwrap();
    for (arguments, code, expected) in [
        (&["info", "none"][..], 3, "image none does not exist"),
        (&["create", "disk", "1m"], 1, "exists already"),
        (&["create", "a/b", "1m"], 2, "contains '/'"),
        (&["create", "x", "1m", "--object-size", "3m"], 2, "object size"),
        (&["snap", "create", "disk"], 2, "expected IMAGE@SNAPSHOT"),
        (&["export", "disk@none", "file"], 3, "no snapshot none"),
        (&["import", "noise", "new"], 4, "no export of a volume"),
        (&["import", "missing", "new"], 1, "missing: "),
        (&["bench", "disk", "--io-size", "2m"], 2, "requests of 2097152 bytes"),
        (
            &["bench", "disk", "--threads", "2", "--connections", "3"],
            2,
            "3 connections: expected 1 to as many as threads, 2",
        ),
        (&["bench", "nbd+unix:///disk?socket=none"], 1, "cannot connect to nbd+unix:///?socket=none"),
        (&["resize", "disk", "1"], 0, ""),
    ] {
        let (_, stderr) = run(folder, arguments, code);
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    assert!(!folder.join("file").exists(), "a failed export leaves its file");
}

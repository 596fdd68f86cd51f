//! `esker bench objects` and `esker report` as a person uses them.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::path::Path;
use std::process::{Command, Output};

fn esker(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_esker")).current_dir(folder).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

#[test]
fn every_phase_is_measured_on_every_backend_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [
        ["bench", "objects", "--backends", "memory:,esker:stores?size=1g&segment=16m"],
        ["--sizes", "4k,64k", "--in-flight", "1,3"],
        ["--seconds", "0.05", "--warm-up", "0.02"],
        ["--image", "8m", "--seed", "7"],
        ["--data", "1m", "--objects", "50"],
    ];
    let mut arguments = arguments.concat();
    arguments.extend(["--json", "run.json"]);
    let output = esker(folder.path(), &arguments);
    assert!(output.status.success(), "{}", text(&output));
    let run: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("run.json")).unwrap()).unwrap();
    let cells = run["cells"].as_array().unwrap();
    // Write and both reads at two sizes, both overwrites, omap, create, list, delete: each at two numbers in flight,
    // twice.
    assert_eq!(cells.len(), (3 * 2 + 2 + 4) * 2 * 2);
    for cell in cells {
        assert!(cell["operations"].as_u64().unwrap() > 0, "{cell}");
        let (p50, max) = (cell["latency"]["p50_us"].as_f64().unwrap(), cell["latency"]["max_us"].as_f64().unwrap());
        assert!(p50 > 0.0 && p50 <= max, "{cell}");
        assert!(cell["backend"] != "memory" || cell["syncs"].is_null(), "{cell}");
    }
    let synced = cells.iter().find(|cell| cell["backend"] != "memory" && cell["phase"] == "write").unwrap();
    assert!(synced["syncs"].as_u64().unwrap() > 0, "durable writes without a sync: {synced}");
    // The stores are gone, and nothing else.
    assert_eq!(std::fs::read_dir(folder.path().join("stores")).unwrap().count(), 0);

    let output = esker(folder.path(), &["report", "run.json", "-o", "run.html"]);
    assert!(output.status.success(), "{}", text(&output));
    let page = std::fs::read_to_string(folder.path().join("run.html")).unwrap();
    assert!(
        page.matches("<svg").count() > 20 && page.contains("overwrite-rand"),
        "{} plots",
        page.matches("<svg").count()
    );
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_expected() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        (["--backends", "tape:x"], "expected esker:PATH, file:PATH, rocksdb:PATH"),
        (["--sizes", "37m"], "VALUE_BYTES_MAX"),
        (["--seconds", "0"], "--seconds"),
        (["--warm-up", "nan"], "--warm-up"),
        (["--backends", "leveldb:x?strap=4k"], "expected one of strip"),
    ] {
        let output = esker(folder.path(), &[&["bench", "objects"][..], &arguments[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output));
        assert!(text(&output).contains(expected), "{arguments:?}: {}", text(&output));
    }
    std::fs::write(folder.path().join("bad.json"), "{}").unwrap();
    assert_eq!(esker(folder.path(), &["report", "bad.json"]).status.code(), Some(2));
    assert_eq!(esker(folder.path(), &["report", "missing.json"]).status.code(), Some(3));
}

//! `esker bench log` and its report, as a person uses them.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn esker(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_esker")).current_dir(folder).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

#[test]
fn every_layout_and_part_is_measured_and_drawn_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [
        ["bench", "log", "--backends", "memory:,esker:stores?size=512m&segment=8m"],
        ["--parts", "append,tokens,network,takeover,open,trim", "--sizes", "256,32k"],
        ["--seconds", "0.1", "--in-flight", "3"],
        ["--raw", "4m", "--slots", "64"],
        ["--warm-up", "0.05", "--seed", "2"],
        ["--open", "3k", "--trim", "8m"],
        ["--threads", "2", "--json", "run.json"],
        ["--deaths", "1", "--width", "2"],
    ];
    let output = esker(folder.path(), &arguments.concat());
    assert!(output.status.success(), "{}", text(&output));
    let printed = text(&output);
    assert!(printed.contains("v3/v2") && printed.contains("1.36"), "{printed}");
    let run: Value = serde_json::from_slice(&std::fs::read(folder.path().join("run.json")).unwrap()).unwrap();
    let cells = run["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 2 * 2 * 3, "sizes, backends, layouts");
    for cell in cells {
        assert!(cell["operations"].as_u64().unwrap() > 0, "{cell}");
        let on_disk = cell["backend"].as_str().unwrap().starts_with("esker");
        assert!(!on_disk || cell["syncs"].as_u64().unwrap() > 0, "durable appends without a sync: {cell}");
    }
    let tables = run["tables"].as_array().unwrap();
    // Ratios, positions here and over the network, taking over from sessions and processes, opening (on disk only),
    // trimming.
    let rows: Vec<usize> = tables.iter().map(|table| table["rows"].as_array().unwrap().len()).collect();
    assert_eq!(rows, [4, 2 * 4, 2 * 5, 2 * 2, 2, 1, 2], "{tables:#?}");
    let ratio = tables[0]["rows"].as_array().unwrap().iter().find(|row| row[0] != "memory").unwrap();
    assert!(
        ratio[6].as_f64().unwrap() > 0.0 && [11, 13, 15].iter().all(|disk| ratio[*disk].as_f64().unwrap() > 0.0),
        "{ratio}"
    );
    let killed = tables[4]["rows"][1][2].as_f64().unwrap();
    assert!((500.0..10_000.0).contains(&killed), "taken over {killed} ms after a death, at a lease of 500 ms");
    let opened = &tables[5]["rows"][0];
    assert_eq!(opened[1], 3_000, "{opened}");
    assert_eq!(std::fs::read_dir(folder.path().join("stores")).unwrap().count(), 0, "something is left");

    let output = esker(folder.path(), &["report", "run.json", "-o", "run.html"]);
    assert!(output.status.success(), "{}", text(&output));
    let page = std::fs::read_to_string(folder.path().join("run.html")).unwrap();
    assert!(page.contains("slots over stream (v3/v2)") && page.contains("ratio of appends per second"));
    assert!(page.matches("<table>").count() == 1 + 7, "cells and seven tables");
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        (["--backends", "tape:x"], "expected esker:PATH, file:PATH, rocksdb:PATH"),
        (["--sizes", "9m"], "ENTRY_BYTES_MAX"),
        (["--seconds", "0"], "--seconds"),
        (["--open", "ten"], "expected a number such as"),
        (["--layouts", "tape"], "expected omap, stream or slots"),
        (["--width", "2000"], "WIDTH_MAX"),
    ] {
        let output = esker(folder.path(), &[&["bench", "log", "--parts", "tokens"][..], &arguments[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output));
        assert!(text(&output).contains(expected), "{arguments:?}: {}", text(&output));
    }
}

//! The binary as scripts see it: what goes to stdout, and the exit codes.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Small enough that tests take no space.
const SMALL: &str = "data?size=64m&segment=1m";

fn esker(folder: &Path, arguments: &[&str]) -> Output {
    with_input(folder, arguments, b"")
}

fn with_input(folder: &Path, arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_esker"))
        .args(arguments)
        .current_dir(folder)
        .env_remove("RUST_LOG")
        .env_remove("ESKER_CONFIG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let written = child.stdin.take().expect("stdin is a pipe").write_all(input);
    let output = child.wait_with_output().expect("the binary ends");
    // A command that reads no input may have ended before it was written.
    drop(written);
    output
}

/// Runs a command that must end with `code`, and returns what it printed.
fn run(folder: &Path, arguments: &[&str], code: i32) -> String {
    let output = esker(folder, arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{stderr}");
    String::from_utf8(output.stdout).expect("stdout is text")
}

#[test]
fn keys_are_put_read_listed_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run(folder, &["kv", "--store", SMALL, "put", "b", "two"], 0);
    run(folder, &["kv", "--store", SMALL, "put", "a", "one"], 0);
    assert_eq!(run(folder, &["kv", "--store", "data", "get", "a"], 0), "one");
    assert_eq!(run(folder, &["kv", "--store", "data", "scan"], 0), "a\tone\nb\ttwo\n");
    assert_eq!(run(folder, &["kv", "--store", "data", "scan", "--reverse", "--keys", "--limit", "1"], 0), "b\n");
    assert_eq!(run(folder, &["kv", "--store", "data", "del", "a", "zz"], 0), "1\n");
    assert_eq!(run(folder, &["kv", "--store", "data", "get", "a"], 3), "");
    assert_eq!(run(folder, &["kv", "--store", "data", "del", "a"], 3), "0\n");
}

#[test]
fn what_scan_prints_load_reads_back() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let lines: Vec<u8> = (0..5_000).flat_map(|n| format!("key-{n:05}\tvalue {n}\n").into_bytes()).collect();
    assert!(with_input(folder, &["kv", "--store", SMALL, "load"], &lines).status.success());
    let listed = run(folder, &["kv", "--store", "data", "scan", "--json"], 0);
    assert_eq!(listed.lines().count(), 5_000);
    let copied =
        with_input(folder, &["kv", "--store", "copy?size=64m&segment=1m", "load", "--json"], listed.as_bytes());
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    assert_eq!(run(folder, &["kv", "--store", "copy", "scan"], 0).into_bytes(), lines);
    let bad = with_input(folder, &["kv", "--store", "copy", "load"], b"a\tb\nno tab\n");
    assert_eq!(bad.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&bad.stderr).contains("line 2"), "{bad:?}");
}

#[test]
fn integer_namespaces_take_numbers_only() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run(folder, &["kv", "--store", SMALL, "-n", "numbers", "--int", "put", "7", "seven"], 0);
    assert_eq!(run(folder, &["kv", "--store", "data", "-n", "numbers", "get", "7"], 0), "seven");
    run(folder, &["kv", "--store", "data", "-n", "numbers", "get", "seven"], 2);
    run(folder, &["kv", "--store", "data", "-n", "absent", "get", "7"], 3);
}

#[test]
fn exit_codes_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run(folder, &["kv", "--store", "nowhere", "get", "a"], 3);
    run(folder, &["check", "--store", "nowhere"], 3);
    run(folder, &["check", "--store", "swift:pool"], 2);
    run(folder, &["check", "--colour"], 2);
    run(folder, &["check", "--log", "=x=,", "--store", "nowhere"], 2);
    run(folder, &["format", "data", "--size", "64m", "--segment", "1m"], 0);
    run(folder, &["format", "data"], 1);
    run(folder, &["format", "data", "--size", "32m", "--segment", "1m", "--force"], 0);
    run(folder, &["check", "--store", "data"], 0);
    let store = esker::Store::open(folder.join("data").to_str().unwrap()).unwrap();
    run(folder, &["kv", "--store", "data", "get", "a"], 5);
    run(folder, &["check", "--store", "data"], 5);
    run(folder, &["format", "data", "--force"], 5);
    store.close().unwrap();
}

#[test]
fn damage_is_exit_code_4_and_names_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for n in 0..3 {
        run(folder, &["kv", "--store", SMALL, "put", "key", &format!("a value to be damaged {n}")], 0);
    }
    let file = folder.join("data/store.esker");
    let mut image = std::fs::read(&file).unwrap();
    let at = image.windows(23).position(|window| window == b"a value to be damaged 2").unwrap();
    image[at] ^= 1;
    std::fs::write(&file, image).unwrap();
    let output = esker(folder, &["check", "--store", "data"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    assert!(stderr.contains("offset"), "{stderr}");
}

#[test]
fn check_and_dump_print_json_that_programs_can_read() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run(folder, &["kv", "--store", SMALL, "put", "a", "one"], 0);
    let report: serde_json::Value =
        serde_json::from_str(&run(folder, &["check", "--store", "data", "--json"], 0)).unwrap();
    assert_eq!(report["clean"], true);
    assert!(report["entries"].as_u64().unwrap() >= 1 && report["damaged"] == 0, "{report}");
    let dumped = run(folder, &["dump", "--store", "data", "--operations", "--json"], 0);
    let items: Vec<String> = dumped
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["item"].as_str().unwrap().to_string())
        .collect();
    for item in ["superblock", "segment", "record", "operation"] {
        assert!(items.iter().any(|found| found == item), "no {item} in {dumped}");
    }
    assert!(run(folder, &["dump", "--store", "data"], 0).starts_with("superblock version="));
}

#[test]
fn a_configuration_with_an_unknown_key_is_refused_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("bad.toml"), "[store]\nplace = \"x\"\n").unwrap();
    let output = esker(folder, &["--config", "bad.toml", "check"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("place"), "{output:?}");
    run(folder, &["--config", "absent.toml", "check"], 2);

    let printed = run(folder, &["config"], 0);
    std::fs::write(folder.join("default.toml"), printed).unwrap();
    run(folder, &["--config", "default.toml", "check"], 3);
    std::fs::write(folder.join("good.toml"), "[store]\nlocation = \"data?size=64m&segment=1m\"\n").unwrap();
    run(folder, &["--config", "good.toml", "kv", "put", "a", "b"], 0);
    assert_eq!(run(folder, &["kv", "get", "a", "--store", "data"], 0), "b");
}

#[test]
fn completions_exist_for_every_shell() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(run(folder.path(), &["completions", shell], 0).contains("esker"), "{shell}");
    }
}

#[test]
fn bench_prints_figures_that_add_up() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for kind in ["int", "bytes"] {
        let arguments = [
            "bench",
            "kv",
            "--keys",
            "2000",
            "--ops",
            "2000",
            "--threads",
            "3",
            "--in-flight",
            "8",
            "--kind",
            kind,
            "--json",
        ];
        let result: serde_json::Value = serde_json::from_str(&run(folder, &arguments, 0)).unwrap();
        assert_eq!(result["phases"][0]["put"]["count"], 2000);
        let mix = &result["phases"][1];
        assert_eq!(mix["put"]["count"].as_u64().unwrap() + mix["get"]["count"].as_u64().unwrap(), 2000);
    }
    assert!(!folder.join("esker-bench-data").exists());
}

#[test]
fn compact_gives_the_space_of_what_was_overwritten_back() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run(folder, &["compact", "--store", "nowhere"], 3);
    run(folder, &["compact", "--store", "memory:"], 1);
    let value = "v".repeat(500);
    let lines = |round: u32, keys: u32| -> Vec<u8> {
        (0..keys).flat_map(|key| format!("{key}\t{round}{value}\n").into_bytes()).collect()
    };
    assert!(with_input(folder, &["kv", "--store", SMALL, "load"], &lines(0, 12_000)).status.success());
    // A third of every segment stays: nothing becomes free without a copy.
    let odd: Vec<String> = (0..12_000).filter(|key| key % 3 != 0).map(|key| key.to_string()).collect();
    let mut arguments = vec!["kv", "--store", "data", "del"];
    arguments.extend(odd.iter().map(String::as_str));
    run(folder, &arguments, 0);
    let result: serde_json::Value =
        serde_json::from_str(&run(folder, &["compact", "--store", "data", "--json"], 0)).unwrap();
    assert!(result["freed_segments"].as_u64().unwrap() >= 3, "{result}");
    assert!(result["copied_bytes"].as_u64().unwrap() >= 1_500_000, "{result}");
    assert_eq!(
        result["freed_bytes"].as_u64().unwrap(),
        result["freed_segments"].as_u64().unwrap() * result["segment_bytes"].as_u64().unwrap()
    );
    assert!(run(folder, &["compact", "--store", "data"], 0).contains("freed   "));
    run(folder, &["check", "--store", "data"], 0);
    assert_eq!(run(folder, &["kv", "--store", "data", "scan", "--keys"], 0).lines().count(), 4_000);
}

#[test]
fn a_store_is_backed_up_pruned_and_restored() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&run(folder, &[arguments, &["--json"]].concat(), 0)).unwrap()
    };
    run(folder, &["backup", "nowhere", "backups"], 3);
    run(folder, &["restore", "backups", "copy"], 1);
    run(folder, &["kv", "--store", SMALL, "put", "a", "one"], 0);
    assert_eq!(json(&["backup", "data", "backups"])["sequence"], 1);
    run(folder, &["kv", "--store", "data", "put", "a", "two"], 0);
    assert!(run(folder, &["backup", "data", "backups"], 0).starts_with("backup 2 of "));
    run(folder, &["restore", "backups", "copy"], 0);
    assert_eq!(run(folder, &["kv", "--store", "copy", "get", "a"], 0), "two");
    run(folder, &["restore", "backups", "copy", "--at", "1"], 1);
    assert_eq!(json(&["restore", "backups", "copy", "--at", "1", "--force"])["sequence"], 1);
    assert_eq!(run(folder, &["kv", "--store", "copy", "get", "a"], 0), "one");
    run(folder, &["check", "--store", "copy"], 0);
    let pruned = json(&["backup", "data", "backups", "--prune", "2"]);
    assert_eq!((&pruned["sequence"], &pruned["pruned_backups"]), (&3.into(), &1.into()), "{pruned}");
    let gone = esker(folder, &["restore", "backups", "old", "--at", "1"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("only 2, 3"), "{gone:?}");
    assert!(!folder.join("old/store.esker").exists());
    run(folder, &["restore", "backups", "old", "--size", "96m"], 0);
    assert_eq!(std::fs::metadata(folder.join("old/store.esker")).unwrap().len(), 96 << 20);
    assert_eq!(run(folder, &["kv", "--store", "old", "get", "a"], 0), "two");
    // A damaged backup does not take the place of a store, whatever was forced.
    let manifest = std::fs::read_to_string(folder.join("backups/backup-00000003.manifest")).unwrap();
    let file = manifest.lines().rev().find_map(|line| line.strip_prefix("segment ")?.rsplit(' ').next()).unwrap();
    let file = folder.join("backups/segments").join(file);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[4000] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let verified = esker(folder, &["backup", "verify", "backups"]);
    assert_eq!(verified.status.code(), Some(4), "{verified:?}");
    let told = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(
        told.contains("backup 3 is DAMAGED") && told.contains(file.file_name().unwrap().to_str().unwrap()),
        "{told}"
    );
    let refused = esker(folder, &["restore", "backups", "old", "--force"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains(file.file_name().unwrap().to_str().unwrap()));
    assert_eq!(run(folder, &["kv", "--store", "old", "get", "a"], 0), "two");
}

#[test]
fn a_damaged_store_is_repaired_and_what_was_lost_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let lines: Vec<u8> = (0..500).flat_map(|n| format!("key-{n:03}\tvalue number {n:03}\n").into_bytes()).collect();
    assert!(with_input(folder, &["kv", "--store", SMALL, "load"], &lines).status.success());
    run(folder, &["kv", "--store", "data", "-n", "numbers", "--int", "put", "7", "seven"], 0);
    // Nothing is damaged: a plain copy.
    assert!(run(folder, &["repair", "data", "whole"], 0).contains("0 lost"));
    assert_eq!(run(folder, &["kv", "--store", "whole", "scan"], 0).into_bytes(), lines);
    let file = folder.join("data/store.esker");
    let healthy = std::fs::read(&file).unwrap();
    let damage = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut image = healthy.clone();
        change(&mut image);
        std::fs::write(&file, &image).unwrap();
        image
    };
    // A value.
    let image = damage(&|image| {
        let at = image.windows(16).position(|window| window == b"value number 123").unwrap();
        image[at] ^= 1;
    });
    let listed = run(folder, &["repair", "data", "copy", "--json"], 6);
    let lines_of: Vec<serde_json::Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines_of.len(), 2, "{listed}");
    assert_eq!(lines_of[0]["lost"]["key"], "key-123");
    assert_eq!((&lines_of[1]["report"]["lost"], &lines_of[1]["report"]["level"]), (&1.into(), &"opened".into()));
    assert_eq!(run(folder, &["kv", "--store", "copy", "scan"], 0).lines().count(), 499);
    assert_eq!(run(folder, &["kv", "--store", "copy", "-n", "numbers", "get", "7"], 0), "seven");
    assert!(std::fs::read(&file).unwrap() == image, "the damaged store was written to");
    // All superblocks.
    damage(&|image| image[..128 << 10].fill(0));
    run(folder, &["check", "--store", "data"], 1);
    let text = run(folder, &["repair", "data", "searched.esker"], 0);
    assert!(text.contains("may be back"), "{text}");
    assert_eq!(run(folder, &["kv", "--store", "searched.esker", "scan"], 0).into_bytes(), lines);
    // What cannot be done.
    run(folder, &["repair", "data", "copy"], 1);
    run(folder, &["repair", "data", "data"], 2);
    run(folder, &["repair", "data", "data/store.esker"], 2);
    run(folder, &["repair", "nowhere", "other"], 3);
    run(folder, &["repair", "memory:", "other"], 1);
    run(folder, &["repair", "data", "short", "--size", "1m"], 1);
    std::fs::write(folder.join("text.esker"), vec![b'x'; 1 << 20]).unwrap();
    let refused = esker(folder, &["repair", "text.esker", "other"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not an Esker store"), "{refused:?}");
    damage(&|_| ());
    let store = esker::Store::open(folder.join("data").to_str().unwrap()).unwrap();
    run(folder, &["repair", "data", "other"], 5);
    store.close().unwrap();
    assert!(!folder.join("other").join("store.esker").exists() && !folder.join("short/store.esker").exists());
}

/// Failure: three of four truncated stores could not be repaired, and a half store was left that passed a check. Cause:
/// the new store was made as long as what was left. Fix: as long as the store had been, and longer where that is not
/// enough.
#[test]
fn a_truncated_store_is_repaired_into_one_that_takes_what_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    const CUTS: u64 = 40;
    let value = "x".repeat(9_000);
    for part in 0..12 {
        let line = |n: u32| format!("key-{n:03}\t{value}{n:03}\n").into_bytes();
        let lines: Vec<u8> = (part * 50..part * 50 + 50).flat_map(line).collect();
        let loaded = with_input(folder, &["kv", "--store", "data?size=24m&segment=1m", "load"], &lines);
        assert!(loaded.status.success(), "{loaded:?}");
    }
    let file = folder.join("data/store.esker");
    let whole = std::fs::read(&file).unwrap();
    let (mut all, mut some) = (0, 0);
    for cut in 0..CUTS {
        let len = (whole.len() as u64 * (cut + 1) / (CUTS + 1)) / 4096 * 4096 + cut % 10 * 100;
        std::fs::write(&file, &whole[..len as usize]).unwrap();
        let to = format!("repaired-{cut}");
        let repaired = esker(folder, &["repair", "data", &to, "--json"]);
        let told = String::from_utf8_lossy(&repaired.stdout).into_owned();
        assert_eq!(repaired.status.code(), Some(6), "cut to {len}: {repaired:?}");
        let lines = told.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let lost: Vec<serde_json::Value> =
            lines.map(|mut line| line["lost"].take()).filter(|lost| !lost.is_null()).collect();
        assert!(lost[0]["reason"].as_str().unwrap().contains("the device ends there"), "cut to {len}: {told}");
        let named: std::collections::BTreeSet<&str> = lost.iter().filter_map(|lost| lost["key"].as_str()).collect();
        // What was lost with more than one key: an object, a page of its index, a transaction, a part of the log, the
        // name of the database, or every checkpoint.
        let alone = |lost: &serde_json::Value| lost["what"] == "key" && lost["object"] == "kv/db0/bytes";
        let more = told.contains("\"level\":\"rebuilt\"") || !lost[1..].iter().all(alone);
        let scanned = esker(folder, &["kv", "--store", &to, "scan"]);
        let code = scanned.status.code().unwrap();
        assert!(code == 0 || code == 3 && more, "cut to {len}: {scanned:?}: {told}");
        let found = String::from_utf8_lossy(&scanned.stdout).into_owned();
        let found: std::collections::BTreeMap<&str, &str> =
            found.lines().filter_map(|line| line.split_once('\t')).collect();
        for n in 0..600 {
            let key = format!("key-{n:03}");
            match found.get(&key[..]) {
                Some(found) => {
                    assert_eq!(*found, format!("{value}{n:03}"), "cut to {len}");
                    assert!(!named.contains(&key[..]), "cut to {len}: {key} was said to be lost");
                }
                None => {
                    assert!(more || named.contains(&key[..]), "cut to {len}: {key} is silently missing: {told}");
                }
            }
        }
        all += usize::from(found.len() == 600);
        some += usize::from(!found.is_empty() && found.len() < 600);
        run(folder, &["check", "--store", &to], 0);
        std::fs::remove_dir_all(folder.join(&to)).unwrap();
    }
    assert!(all + some > 4, "{all} whole, {some} in part");
    let short = esker(folder, &["repair", "data", "short", "--size", "2m"]);
    assert_eq!(short.status.code(), Some(1), "{short:?}");
    assert!(!folder.join("short/store.esker").exists() && !folder.join("short/store.esker.new").exists());
}

//! `esker serve` as its users see it: what it prints, that it answers, and what is left after it was stopped or killed.

#[path = "support/resp.rs"]
mod resp;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use resp::{Client, Running};

const SMALL: &str = "data?size=64m&segment=1m";

#[test]
fn a_server_makes_its_store_answers_and_stops_cleanly_on_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Running::start(folder.path(), &["--store", SMALL]);
    assert!(
        server.printed[0].contains("store.esker") && server.printed[0].contains("made just now"),
        "{:?}",
        server.printed
    );
    let port = server.address.port().to_string();
    assert!(server.printed.last().unwrap().contains(&format!("redis-cli -p {port}")), "{:?}", server.printed);
    let mut client = server.client();
    assert_eq!(client.call(&["SET", "greeting", "hello"]), "+OK");
    assert_eq!(client.call(&["GET", "greeting"]), "hello");
    let info = client.call(&["INFO"]);
    for figure in ["commit_policy:adaptive", "slot_index_bytes_per_key:", "recovery_ms:"] {
        assert!(info.contains(figure), "{figure} is not in {info}");
    }
    assert_eq!(server.signal("-TERM"), 0);

    let server = Running::start(folder.path(), &["--store", "data"]);
    assert!(server.printed[0].contains("closed cleanly"), "{:?}", server.printed);
    assert_eq!(server.client().call(&["GET", "greeting"]), "hello");
}

#[test]
fn acknowledged_writes_survive_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Running::start(folder.path(), &["--store", SMALL, "--int-db", "1"]);
    let mut client = server.client();
    assert_eq!(client.call(&["SELECT", "1"]), "+OK");
    for number in 0..300 {
        assert_eq!(client.call(&["SET", &number.to_string(), &format!("value {number}")]), "+OK");
    }
    server.signal("-KILL");
    let server = Running::start(folder.path(), &["--store", "data", "--int-db", "1"]);
    assert!(server.printed[0].contains("recovered"), "{:?}", server.printed);
    let mut client = server.client();
    client.call(&["SELECT", "1"]);
    for number in 0..300 {
        assert_eq!(client.call(&["GET", &number.to_string()]), format!("value {number}"));
    }
}

#[test]
fn the_policy_is_switched_while_clients_write() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(folder.path(), &["--store", SMALL, "--policy", "group:1ms"]);
    let mut client = server.client();
    for policy in ["periodic:1s", "batch", "adaptive", "group:500us"] {
        assert_eq!(client.call(&["CONFIG", "SET", "policy", policy]), "+OK");
        assert_eq!(client.call(&["SET", "policy", policy]), "+OK");
        assert!(client.call(&["INFO"]).contains(&format!("commit_policy:{policy}")));
    }
    let refused = client.call(&["CONFIG", "SET", "policy", "sometimes"]);
    assert!(refused.starts_with('-') && refused.contains("batch"), "{refused}");
    assert_eq!(client.call(&["CONFIG", "SET", "policy", "periodic:1s"]), "+OK");
    assert_eq!(client.call(&["CONFIG", "SET", "appendfsync", "always"]), "+OK");
    assert!(client.call(&["INFO"]).contains("commit_policy:adaptive"));
}

#[test]
fn values_are_compressed_from_the_start_that_asks_for_it_until_one_that_says_no() {
    let folder = tempfile::tempdir().unwrap();
    let value = "gravel and sand, ".repeat(200);
    let kept = |client: &mut Client| {
        let info = client.call(&["INFO", "esker"]);
        let line = info.lines().find_map(|line| line.strip_prefix("compressed_kept:")).expect("INFO tells");
        line.trim().parse::<u64>().unwrap()
    };
    for (start, arguments, expected) in [
        ("before", &[][..], 0),
        ("asked", &["--compress", "lz4"][..], 2),
        ("remembered", &[][..], 2),
        ("no more", &["--compress", "none"][..], 0),
    ] {
        let mut server = Running::start(folder.path(), &[&["--store", SMALL], arguments].concat());
        let mut client = server.client();
        assert_eq!(client.call(&["SET", start, &value]), "+OK");
        assert_eq!(client.call(&["HSET", "hash", start, &value]), ":1");
        assert_eq!(client.call(&["GET", "before"]), value);
        assert_eq!(kept(&mut client), expected, "{start}");
        let stages = client.call(&["INFO", "esker_stages"]);
        for stage in ["apply:timed=", "sync:timed=", "sync_histogram:max_ns="] {
            assert!(stages.contains(stage), "{stages}");
        }
        assert_eq!(server.signal("-TERM"), 0);
    }
}

#[test]
fn the_cache_s_policy_is_set_and_its_uses_are_told_by_namespace() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Running::start(folder.path(), &["--store", SMALL]);
    let mut client = server.client();
    assert!(client.call(&["INFO", "esker"]).contains("cache_policy:clock"));
    for number in 0..20 {
        assert_eq!(client.call(&["SET", &format!("key-{number}"), &format!("value {number}")]), "+OK");
    }
    assert_eq!(server.signal("-TERM"), 0);
    let server = Running::start(folder.path(), &["--store", SMALL, "--cache-policy", "arc"]);
    let mut client = server.client();
    for number in (0..3).flat_map(|_| 0..20) {
        assert_eq!(client.call(&["GET", &format!("key-{number}")]), format!("value {number}"));
    }
    let info = client.call(&["INFO", "esker"]);
    assert!(info.contains("cache_policy:arc"), "{info}");
    let (_, uses) = info.lines().filter_map(|line| line.split_once(":hits=")).next().expect("INFO tells");
    let (hits, misses) = uses.trim().split_once(",misses=").unwrap();
    // Opening reads pieces of the checkpoint by the same cache.
    assert!(hits.parse::<u64>().unwrap() >= 40 && misses.parse::<u64>().unwrap() >= 20, "{info}");
    assert!(info.contains("cache_uses_kv/"), "{info}");
}

/// The first line of a server's log with these arguments, and whether it is JSON that tells the same.
fn first_logged(folder: &Path, arguments: &[&str]) -> (String, bool) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_esker"))
        .args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:", "--log", "info"])
        .args(arguments)
        .current_dir(folder)
        .env_remove("ESKER_CONFIG")
        .env_remove("ESKER_PASSWORD")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut lines = BufReader::new(child.stderr.take().expect("stderr is a pipe")).lines().map_while(Result::ok);
    let line = lines.find(|line| line.contains("listening")).expect("the server says that it listens");
    child.kill().expect("the server runs");
    child.wait().expect("the server ends");
    let object = serde_json::from_str::<serde_json::Value>(&line).unwrap_or_default();
    let is = |key: &str, value: &str| object[key].as_str().is_some_and(|have| have.starts_with(value));
    let json = is("level", "INFO") && is("message", "listening") && is("address", "127.0.0.1:");
    (line, json && object["timestamp"].is_string())
}

#[test]
fn the_log_is_text_or_json_as_the_file_or_the_flag_says() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("json.toml"), "[log]\nformat = 'json'\n").unwrap();
    for (arguments, json) in [
        (&[][..], false),
        (&["--log-format", "json"], true),
        (&["--config", "json.toml"], true),
        (&["--config", "json.toml", "--log-format", "text"], false),
    ] {
        let (line, is_json) = first_logged(folder.path(), arguments);
        assert_eq!(is_json, json, "{arguments:?}: {line}");
    }
    let refused = Command::new(env!("CARGO_BIN_EXE_esker")).args(["config", "--log-format", "xml"]).output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && told.contains("text or json"), "{told}");
}

#[test]
fn a_password_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("secret"), "open sesame\n").unwrap();
    let server = Running::start(folder.path(), &["--store", "memory:", "--password-file", "secret"]);
    let mut client = server.client();
    assert!(client.call(&["GET", "a"]).starts_with("-NOAUTH"));
    assert!(client.call(&["AUTH", "guess"]).starts_with("-WRONGPASS"));
    assert_eq!(client.call(&["AUTH", "open sesame"]), "+OK");
    assert_eq!(client.call(&["SET", "a", "b"]), "+OK");
}

#[test]
fn a_second_server_on_the_same_store_is_refused_with_exit_code_5() {
    let folder = tempfile::tempdir().unwrap();
    let _first = Running::start(folder.path(), &["--store", SMALL]);
    let second = Command::new(env!("CARGO_BIN_EXE_esker"))
        .args(["serve", "--listen", "127.0.0.1:0", "--store", "data"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&second.stderr).contains("in use by another process"));
}

#[test]
fn without_a_password_other_machines_are_not_served() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_esker"))
        .args(["serve", "--listen", "0.0.0.0:0", "--store", "memory:"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("password"));
}

#[test]
fn shutdown_ends_the_server_cleanly() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Running::start(folder.path(), &["--store", SMALL]);
    let mut client = server.client();
    assert_eq!(client.call(&["SET", "a", "b"]), "+OK");
    client.send(&["SHUTDOWN"]);
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let server = Running::start(folder.path(), &["--store", "data"]);
    assert!(server.printed[0].contains("closed cleanly"), "{:?}", server.printed);
}

fn stat(folder: &Path, arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_esker"))
        .arg("stat")
        .args(arguments)
        .current_dir(folder)
        .env_remove("ESKER_CONFIG")
        .env_remove("ESKER_PASSWORD")
        .output()
        .expect("the binary runs")
}

#[test]
fn stat_shows_a_running_server_once_or_in_intervals() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("secret"), "open sesame\n").unwrap();
    let server =
        Running::start(folder, &["--store", SMALL, "--password-file", "secret", "--unix-socket", "esker.sock"]);
    let mut client = server.client();
    assert_eq!(client.call(&["AUTH", "open sesame"]), "+OK");
    let address = server.address.to_string();
    let password = ["--password-file", "secret"];
    let once = stat(folder, &[&[address.as_str()], &password[..]].concat());
    assert!(once.status.success(), "{once:?}");
    let table = String::from_utf8(once.stdout).unwrap();
    assert!(table.contains("txn/s") && table.contains("open") && table.lines().count() == 2, "{table}");
    let refused = stat(folder, &[&address]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("NOAUTH"), "{refused:?}");
    let writer = std::thread::spawn(move || {
        for number in 0..400 {
            client.call(&["SET", &format!("key-{number}"), "value"]);
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let intervals = ["./esker.sock", "--json", "--interval", "200ms", "--count", "3"];
    let lines = stat(folder, &[&intervals[..], &password[..]].concat());
    writer.join().unwrap();
    let lines = String::from_utf8(lines.stdout).unwrap();
    let objects: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), 3, "{lines}");
    assert!(objects.iter().any(|object| object["transactions_per_s"].as_f64().unwrap() > 0.0), "{lines}");
    assert!(objects[0]["free_segments"].as_u64().unwrap() > 0, "{lines}");
}

#[test]
fn stat_of_a_server_without_an_engine_or_of_none_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let server = Running::start(folder.path(), &["--store", "memory:"]);
    let output = stat(folder.path(), &[&server.address.to_string()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("in memory"), "{output:?}");
    assert_eq!(stat(folder.path(), &["nowhere"]).status.code(), Some(2));
    assert_eq!(stat(folder.path(), &["./absent.sock"]).status.code(), Some(1));
}

#[test]
fn a_running_server_makes_a_backup_that_can_be_restored() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Running::start(folder, &["--store", SMALL, "--backup-folder", "backups"]);
    let mut client = server.client();
    for number in 0..500 {
        assert_eq!(client.call(&["SET", &format!("key-{number}"), &format!("value {number}")]), "+OK");
    }
    assert_eq!(client.call(&["ESKER.BACKUP"]), "+Backup started");
    let mut info = String::new();
    while !info.contains("backup_last_status:ok") {
        assert!(!info.contains("backup_in_progress:0") || info.contains("backup_last_status:none"), "{info}");
        std::thread::sleep(Duration::from_millis(10));
        info = client.call(&["INFO", "esker"]);
    }
    assert!(info.contains("backup_last_sequence:1"), "{info}");
    client.call(&["SET", "key-0", "later"]);
    let restored = Command::new(env!("CARGO_BIN_EXE_esker"))
        .args(["restore", "backups", "copy"])
        .current_dir(folder)
        .env_remove("ESKER_CONFIG")
        .output()
        .unwrap();
    assert!(restored.status.success(), "{restored:?}");
    let copy = Running::start(folder, &["--store", "copy"]);
    assert!(copy.printed[0].contains("closed cleanly"), "{:?}", copy.printed);
    let mut client = copy.client();
    for number in 0..500 {
        assert_eq!(client.call(&["GET", &format!("key-{number}")]), format!("value {number}"));
    }
    assert!(client.call(&["ESKER.BACKUP"]).contains("--backup-folder"));
}

fn run(folder: &Path, arguments: &[&str], code: i32) -> (String, String) {
    let ended = Command::new(env!("CARGO_BIN_EXE_esker"))
        .args(arguments)
        .current_dir(folder)
        .env_remove("ESKER_CONFIG")
        .env_remove("ESKER_PASSWORD")
        .output()
        .expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&ended.stdout), text(&ended.stderr));
    assert_eq!(ended.status.code(), Some(code), "{arguments:?}\n{stdout}\n{stderr}");
    (stdout, stderr)
}

#[test]
fn a_running_server_checks_its_store_while_others_write() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Running::start(folder, &["--store", SMALL]);
    let address = server.address.to_string();
    let mut client = server.client();
    assert!(client.call(&["ESKER.CHECK", "STATUS"]).starts_with("status none"));
    assert!(client.call(&["ESKER.CHECK", "NOW"]).starts_with("-ERR syntax"));
    for key in 0..2_000 {
        client.send(&["SET", &format!("key {key}"), &"a value of some length ".repeat(20)]);
    }
    (0..2_000).for_each(|_| assert_eq!(client.reply(), "+OK"));
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = server.client();
            let mut round = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                assert_eq!(client.call(&["SET", &format!("key {}", round % 2_000), "short"]), "+OK");
                round += 1;
            }
        });
        for arguments in [&["--json"][..], &["--json", "--quick"]] {
            let (report, _) = run(folder, &[&["check", "--address", &address], arguments].concat(), 0);
            let report: serde_json::Value = serde_json::from_str(&report).unwrap();
            assert_eq!((&report["damaged"], &report["deep"]), (&0.into(), &(arguments.len() == 1).into()), "{report}");
            assert!(report["entries"].as_u64().unwrap() >= 2_000, "{report}");
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let info = client.call(&["INFO", "esker"]);
    assert!(info.contains("check_in_progress:0") && info.contains("check_last_status:ok"), "{info}");
    run(folder, &["check", "--address", &address, "--store", "data"], 2);
    run(folder, &["check", "--store", "data"], 5);
}

#[test]
fn a_running_server_compacts_its_store_while_others_write() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut server = Running::start(folder, &["--store", SMALL]);
    let address = server.address.to_string();
    let mut client = server.client();
    assert!(client.call(&["ESKER.COMPACT", "STATUS"]).starts_with("status none"));
    assert!(client.call(&["ESKER.COMPACT", "NOW"]).starts_with("-ERR syntax"));
    let value = "v".repeat(700);
    let set_all = |client: &mut Client, round: u32, keys: &[u32]| {
        keys.iter().for_each(|key| client.send(&["SET", &format!("key {key}"), &format!("{round} {key} {value}")]));
        keys.iter().for_each(|_| assert_eq!(client.reply(), "+OK"));
    };
    // Of each segment two thirds are dead, and nothing becomes free without a copy.
    let (all, dead): (Vec<u32>, Vec<u32>) = ((0..12_000).collect(), (0..12_000).filter(|key| key % 3 != 0).collect());
    set_all(&mut client, 0, &all);
    dead.iter().for_each(|key| client.send(&["DEL", &format!("key {key}")]));
    dead.iter().for_each(|_| assert_eq!(client.reply(), ":1"));
    let done = std::sync::atomic::AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut client, mut round) = (server.client(), 0);
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                round += 1;
                set_all(&mut client, round, &[0, 3, 6]);
            }
            round
        });
        let (result, _) = run(folder, &["compact", "--address", &address, "--json"], 0);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let result: serde_json::Value = serde_json::from_str(&result).unwrap();
        let figure = |name: &str| result[name].as_u64().unwrap();
        assert!(figure("freed_segments") >= 3 && figure("copied_bytes") >= 1_500_000, "{result}");
        assert_eq!(figure("freed_bytes"), figure("freed_segments") * figure("segment_bytes"));
        writer.join().unwrap()
    });
    let info = client.call(&["INFO", "esker"]);
    assert!(info.contains("compact_in_progress:0") && info.contains("compact_last_status:ok"), "{info}");
    for key in (0..12_000).step_by(3) {
        let round = if key <= 6 { rounds } else { 0 };
        assert_eq!(client.call(&["GET", &format!("key {key}")]), format!("{round} {key} {value}"));
    }
    let (told, _) = run(folder, &["compact", "--address", &address], 0);
    assert!(told.contains("freed   "), "{told}");
    run(folder, &["compact", "--address", &address, "--store", "data"], 2);
    // It holds up no end of the server.
    assert_eq!(client.call(&["ESKER.COMPACT"]), "+Compaction started");
    assert_eq!(server.signal("-TERM"), 0);
    run(folder, &["check", "--store", "data"], 0);
}

#[test]
fn a_running_server_names_the_damage_that_its_check_found() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = Running::start(folder, &["--store", SMALL]);
    assert_eq!(server.client().call(&["SET", "key", "a value to be damaged"]), "+OK");
    let file = folder.join("data/store.esker");
    let image = std::fs::read(&file).unwrap();
    let at = image.windows(21).position(|window| window == b"a value to be damaged").unwrap();
    let opened = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&opened, b"b", at as u64).unwrap();
    let (stdout, stderr) = run(folder, &["check", "--address", &server.address.to_string()], 4);
    assert!(stdout.contains("damaged  1"), "{stdout}");
    assert!(stderr.contains("key") && stderr.contains("device offset"), "{stderr}");
    run(folder, &["check", "--address", &server.address.to_string(), "--quick"], 0);
}

#[test]
fn a_full_server_takes_writes_again_when_its_file_has_grown() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut server = Running::start(folder, &["--store", "data?size=16m&segment=1m"]);
    let mut client = server.client();
    let value = "v".repeat(100_000);
    let refused = (0..200).find(|key| client.call(&["SET", &key.to_string(), &value]) != "+OK").expect("it is full");
    assert!(client.call(&["SET", "more", &value]).contains("full"));
    let address = server.address.to_string();
    let (same, _) = run(folder, &["grow", "--address", &address], 0);
    assert!(same.starts_with("0 segments more"), "{same}");
    run(folder, &["grow", "data", "--size", "32m"], 5);
    std::fs::OpenOptions::new().write(true).open(folder.join("data/store.esker")).unwrap().set_len(32 << 20).unwrap();
    let (grown, _) = run(folder, &["grow", "--address", &address, "--json"], 0);
    let grown: serde_json::Value = serde_json::from_str(&grown).unwrap();
    assert_eq!((&grown["added_segments"], &grown["device_bytes"]), (&16.into(), &(32 << 20).into()));
    (refused..refused + 60).for_each(|key| assert_eq!(client.call(&["SET", &key.to_string(), &value]), "+OK"));
    assert_eq!(server.signal("-TERM"), 0);
    run(folder, &["check", "--store", "data"], 0);

    // Without a server the file is made longer by the command itself.
    let (grown, _) = run(folder, &["grow", "data", "--size", "40m"], 0);
    assert_eq!(grown, "8 segments more; the store uses 41943040 bytes\n");
    run(folder, &["grow", "data", "--size", "20m"], 2);
    run(folder, &["grow", "nowhere", "--size", "20m"], 3);
    run(folder, &["grow"], 2);
    let server = Running::start(folder, &["--store", "data"]);
    assert_eq!(server.client().call(&["GET", &(refused + 59).to_string()]), value);
}

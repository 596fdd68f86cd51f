//! `esker log` as a process: entries in and out in every format, following, giving up, damage, mistakes.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

const STORE: &str = "data?size=256m&segment=4m";

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_esker"));
    command.args(["log", "--store", STORE]).args(arguments).current_dir(folder);
    command.env_remove("RUST_LOG").env_remove("ESKER_CONFIG").stdin(Stdio::null());
    command
}

fn feed(folder: &Path, arguments: &[&str], stdin: &[u8], code: i32) -> (Vec<u8>, String) {
    let mut command = command(folder, arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut pipe, stdin) = (child.stdin.take().unwrap(), stdin.to_vec());
    // A command that refuses its input does not read all of it.
    let writer = std::thread::spawn(move || drop(pipe.write_all(&stdin)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{stderr}");
    (output.stdout, stderr)
}

fn run(folder: &Path, arguments: &[&str], code: i32) -> (Vec<u8>, String) {
    feed(folder, arguments, b"", code)
}

fn text(folder: &Path, arguments: &[&str]) -> String {
    String::from_utf8(run(folder, arguments, 0).0).unwrap()
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    let with: Vec<&str> = ["--json"].iter().chain(arguments).copied().collect();
    serde_json::from_slice(&run(folder, &with, 0).0).unwrap()
}

fn values(bytes: &[u8]) -> Vec<Value> {
    bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

fn lines(range: std::ops::Range<u64>) -> String {
    range.map(|number| format!("entry {number}\n")).collect()
}

#[test]
fn what_is_appended_is_read_in_order_in_every_layout_and_format() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for layout in ["omap", "stream", "slots"] {
        run(
            folder,
            &["create", layout, "--layout", layout, "--width", "3", "--slots", "1000", "--inline-bytes", "64"],
            0,
        );
        // More than a stripe, and more than one batch.
        let positions = feed(folder, &["append", layout, "--positions"], lines(0..5_000).as_bytes(), 0).0;
        let expected: String = (0..5_000).map(|position| format!("{position}\n")).collect();
        assert!(String::from_utf8(positions).unwrap() == expected, "{layout}: positions are not 0 to 4999");
        assert!(text(folder, &["cat", layout]) == lines(0..5_000), "{layout}");
        assert_eq!(text(folder, &["cat", layout, "--from", "4990", "--to", "4992"]), lines(4_990..4_992));
        assert_eq!(text(folder, &["tail", layout, "-n", "3"]), lines(4_997..5_000));

        // What lines cannot hold: line breaks, no text, nothing at all, large.
        let large = vec![0xfe; 200_000];
        let odd: [&[u8]; 4] = [b"two\nlines", &[0xff, 0, 10], b"", &large];
        let frames: Vec<u8> =
            odd.iter().flat_map(|data| [&(data.len() as u32).to_be_bytes()[..], data].concat()).collect();
        feed(folder, &["append", layout, "--format", "frames", "--stream", "odd"], &frames, 0);
        assert!(run(folder, &["cat", layout, "--from", "5000", "--format", "frames"], 0).0 == frames, "{layout}");
        assert!(run(folder, &["cat", layout, "--stream", "odd", "--format", "frames"], 0).0 == frames, "{layout}");
        let entries = run(folder, &["cat", layout, "--from", "5000", "--format", "json"], 0).0;
        let found = values(&entries);
        assert_eq!((&found[0]["data"], &found[0]["position"]), (&json!("two\nlines"), &json!(5_000)), "{layout}");
        assert_eq!((&found[1]["data_base64"], &found[1]["streams"]), (&json!("/wAK"), &json!(["odd"])), "{layout}");
        // The JSON of one log is the input of another.
        run(folder, &["create", "copy", "--layout", layout], 0);
        feed(folder, &["append", "copy", "--format", "json"], &entries, 0);
        assert!(run(folder, &["cat", "copy", "--stream", "odd", "--format", "frames"], 0).0 == frames, "{layout}");
        let checked = json(folder, &["check", "--deep", layout]);
        assert_eq!((&checked[0]["entries"], &checked[0]["holes"]), (&json!(5_004), &json!(0)), "{checked}");
        run(folder, &["rm", "copy"], 0);
    }
    let names: Vec<String> =
        json(folder, &["ls"]).as_array().unwrap().iter().map(|log| log["name"].as_str().unwrap().into()).collect();
    assert_eq!(names, ["omap", "slots", "stream"]);
    let checked = run(folder, &["check"], 0).0;
    assert_eq!(String::from_utf8(checked).unwrap().lines().count(), 3);
}

#[test]
fn an_expected_tail_and_a_numbered_writer_append_once() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run(folder, &["create", "log"], 0);
    feed(folder, &["append", "log", "--expected", "0"], lines(0..300).as_bytes(), 0);
    let (_, stderr) = feed(folder, &["append", "log", "--expected", "0"], b"late\n", 1);
    assert!(stderr.contains("the tail is at 300, not at 0") && stderr.contains("0 entries before it"), "{stderr}");
    assert_eq!(json(folder, &["info", "log"])["tail"], 300);

    let numbered = |number: &str, input: String| {
        let arguments = ["--json", "append", "log", "--writer", "me", "--number", number];
        serde_json::from_slice::<Value>(&feed(folder, &arguments, input.as_bytes(), 0).0).unwrap()
    };
    assert_eq!(numbered("0", lines(0..10))["repeated"], 0);
    // The same file again after a crash, with more in it: only what is new is written.
    let again = numbered("0", lines(0..15));
    assert_eq!(
        (&again["entries"], &again["repeated"], &again["last"]),
        (&json!(15), &json!(10), &json!(314)),
        "{again}"
    );
    assert_eq!(text(folder, &["cat", "log", "--from", "300"]), lines(0..15));
    let (_, stderr) = feed(folder, &["append", "log", "--writer", "me", "--number", "99"], b"x\n", 2);
    assert!(stderr.contains("the writer's next number is 15"), "{stderr}");
}

#[test]
fn what_is_given_up_is_told_as_a_gap_and_its_space_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run(folder, &["create", "log", "--width", "2", "--slots", "8"], 0);
    feed(folder, &["append", "log"], lines(0..64).as_bytes(), 0);
    run(folder, &["trim", "log", "40"], 0);
    run(folder, &["trim", "log", "41"], 0);
    assert!(json(folder, &["trim", "log", "--to", "36"])["objects_removed"].as_u64().unwrap() >= 4);
    let (out, stderr) = run(folder, &["cat", "log", "--from", "0"], 0);
    assert_eq!(String::from_utf8(out).unwrap(), lines(36..40) + &lines(42..64));
    assert!(
        stderr.contains("positions 0 to 35: trimmed") && stderr.contains("positions 40 to 41: trimmed"),
        "{stderr}"
    );
    let found = values(&run(folder, &["cat", "log", "--from", "0", "--to", "37", "--format", "json"], 0).0);
    assert_eq!(found[0], json!({"gap": "trimmed", "from": 0, "to": 36}));
    assert_eq!(found[1]["position"], 36);
    // From the first there is no gap, and by time there is nothing older than the log.
    assert!(text(folder, &["cat", "log"]).starts_with("entry 36\n"));
    assert!(text(folder, &["cat", "log", "--from", "time:-1h"]).starts_with("entry 36\n"));
    assert_eq!(text(folder, &["cat", "log", "--from", "time:99999999999999"]), "");

    run(folder, &["set", "log", "--retain-positions", "10"], 0);
    assert_eq!(json(folder, &["retain"])[0]["trimmed"], 54);
    assert_eq!(text(folder, &["cat", "log"]), lines(54..64));
    run(folder, &["reshape", "log", "--width", "5", "--slots", "100"], 0);
    feed(folder, &["append", "log"], lines(64..70).as_bytes(), 0);
    assert_eq!(text(folder, &["tail", "log", "-n", "7"]), lines(63..70));
    let info = json(folder, &["info", "log"]);
    assert_eq!(
        (&info["width"], &info["retain_positions"], &info["tail"]),
        (&json!(5), &json!(10), &json!(70)),
        "{info}"
    );
    assert_eq!(json(folder, &["seal", "log"])["tail"], 70);
    let (_, stderr) = feed(folder, &["append", "log"], b"late\n", 1);
    assert!(stderr.contains("sealed at position 70"), "{stderr}");
    run(folder, &["rename", "log", "old"], 0);
    run(folder, &["check", "old"], 0);
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn tail_follows_until_it_is_interrupted_and_its_consumer_goes_on_there() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run(folder, &["create", "log"], 0);
    feed(folder, &["append", "log"], lines(0..20).as_bytes(), 0);
    assert_eq!(text(folder, &["tail", "log", "-f", "--count", "5", "--from", "first", "--consumer", "c"]), lines(0..5));
    assert_eq!(text(folder, &["consumer", "get", "log", "c"]), "5\n");

    let mut tail = command(folder, &["tail", "log", "-f", "--consumer", "c"]);
    let mut tail = Killed(tail.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap());
    let mut out = BufReader::new(tail.0.stdout.take().unwrap());
    for number in 5..20 {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, format!("entry {number}\n"));
    }
    // It holds the store, and says so to others.
    assert!(run(folder, &["ls"], 5).1.contains("another process"));
    let pid = tail.0.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), tail.0.wait().unwrap().code()), ("", Some(0)));
    assert_eq!(json(folder, &["consumer", "ls", "log"]), json!({"c": 20}));

    feed(folder, &["append", "log"], lines(20..22).as_bytes(), 0);
    assert_eq!(text(folder, &["cat", "log", "--consumer", "c"]), lines(20..22));
    assert_eq!(text(folder, &["cat", "log", "--consumer", "c"]), "");
    run(folder, &["consumer", "set", "log", "c", "21"], 0);
    assert_eq!(text(folder, &["tail", "log", "--consumer", "c"]), lines(21..22));
    run(folder, &["consumer", "rm", "log", "c"], 0);
    run(folder, &["consumer", "get", "log", "c"], 3);
    // A sealed log ends a follower.
    run(folder, &["seal", "log"], 0);
    assert_eq!(text(folder, &["tail", "log", "-f", "-n", "1"]), lines(21..22));
}

#[test]
fn an_append_is_durable_when_its_position_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run(folder, &["create", "log"], 0);
    let mut append = command(folder, &["append", "log", "--positions"]);
    let mut append = Killed(append.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut stdin = append.0.stdin.take().unwrap();
    let mut out = BufReader::new(append.0.stdout.take().unwrap());
    for number in 0..20 {
        // One line at a time: a position comes without any more input.
        stdin.write_all(format!("entry {number}\n").as_bytes()).unwrap();
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, format!("{number}\n"));
    }
    append.0.kill().unwrap();
    append.0.wait().unwrap();
    assert_eq!(text(folder, &["cat", "log"]), lines(0..20));
    run(folder, &["check", "log"], 0);
}

#[test]
fn a_damaged_entry_is_told_as_data_loss_with_exit_code_4_and_hides_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run(folder, &["create", "log"], 0);
    let needle = |number: u64| format!("needle {number} {}", "x".repeat(6_000));
    let input: String = (0..10).map(|number| needle(number) + "\n").collect();
    feed(folder, &["append", "log"], input.as_bytes(), 0);
    // One bit, on the device, of entry 7.
    let path = folder.join("data/store.esker");
    let bytes = std::fs::read(&path).unwrap();
    let wanted = needle(7);
    let at =
        bytes.windows(wanted.len()).position(|window| window == wanted.as_bytes()).expect("the entry is on the device");
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(at as u64 + 100)).unwrap();
    file.write_all(b"y").unwrap();
    drop((file, bytes));

    let (out, stderr) = run(folder, &["cat", "log"], 4);
    let expected: String = (0..10).filter(|number| *number != 7).map(|number| needle(number) + "\n").collect();
    assert!(String::from_utf8(out).unwrap() == expected, "another entry is missing, or the damaged one is shown");
    assert!(stderr.contains("data loss at position 7: corrupt at device offset"), "{stderr}");
    let found = values(&run(folder, &["cat", "log", "--format", "json"], 4).0);
    assert_eq!((&found[7]["gap"], &found[7]["from"], found.len()), (&json!("lost"), &json!(7), 10));
    run(folder, &["tail", "log", "-f", "--from", "5", "--count", "4"], 4);
    run(folder, &["check", "log"], 4);
}

#[test]
fn mistakes_have_their_exit_codes_and_name_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run(folder, &["ls"], 3);
    run(folder, &["create", "log", "--entry-bytes", "100"], 0);
    let long = "x".repeat(101);
    for (arguments, stdin, code, expected) in [
        (&["cat", "none"][..], "", 3, "log none does not exist"),
        (&["append", "none"], "x\n", 3, "log none does not exist"),
        (&["create", "log"], "", 1, "log log exists already"),
        (&["create", "a/b"], "", 2, "contains '/'"),
        (&["create", "x", "--layout", "tape"], "", 2, "expected omap, stream or slots"),
        (&["create", "x", "--width", "0"], "", 2, "WIDTH_MAX"),
        (&["create", "x", "--slots", "99999999"], "", 2, "SLOTS_MAX"),
        (&["create", "x", "--entry-bytes", "9m"], "", 2, "ENTRY_BYTES_MAX"),
        (&["create", "x", "--entry-bytes", "5g"], "", 2, "--entry-bytes 5g: at most 8m"),
        (&["append", "log"], &long, 2, "entry 1 of stdin: more than 100 bytes exceed the log's entry_bytes_max = 100"),
        (&["append", "log", "--stream", ""], "x\n", 2, "STREAM_BYTES_MAX"),
        (&["append", "log", "--format", "json"], "[1]\n", 2, "entry 1 of stdin"),
        (&["append", "log", "--format", "frames"], "\u{7f}xxx", 2, "exceed the log's entry_bytes_max = 100"),
        (&["append", "log", "--writer", "a/b"], "x\n", 2, "contains '/'"),
        (&["cat", "log", "--from", "yesterday"], "", 2, "expected a position, first, tail, time:"),
        (&["cat", "log", "--from", "9", "--to", "first"], "", 2, "--from 9 is after --to 0"),
        (&["trim", "log", "0"], "", 2, "position 0 is past the tail at 0"),
        (&["trim", "log", "--to", "18446744073709551615"], "", 2, "past the tail at 0"),
        (&["trim", "log"], "", 2, "<POSITION>"),
        (&["fill", "log", "7"], "", 2, "position 7 is past the tail at 0"),
        (&["consumer", "set", "log", "c", "7"], "", 2, "past the tail at 0"),
        (&["set", "log", "--object-bytes", "1"], "", 2, "expected the largest entry (100)"),
        (&["rename", "none", "x"], "", 3, "log none does not exist"),
        (&["rm", "none"], "", 3, "log none does not exist"),
    ] {
        let (_, stderr) = feed(folder, arguments, stdin.as_bytes(), code);
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    // What came before the mistake is in the log, and told.
    let (_, stderr) = feed(folder, &["append", "log"], format!("{}{long}\n", lines(0..7)).as_bytes(), 2);
    assert!(stderr.contains("entry 8 of stdin") && stderr.contains("7 entries before it are in the log"), "{stderr}");
    assert_eq!(text(folder, &["cat", "log"]), lines(0..7));
    run(folder, &["fill", "log", "3"], 1);
}

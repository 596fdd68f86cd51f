//! A server's life under its operator: what it takes anew while it runs, who its users are, and how it ends.

#[path = "support/resp.rs"]
mod resp;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use resp::Running;

const SMALL: &str = "data?size=64m&segment=1m";

fn esker(folder: &Path, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_esker"))
        .args(arguments)
        .current_dir(folder)
        .env_remove("ESKER_CONFIG")
        .env("ESKER_PASSWORD", "of the environment")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends")
}

fn printed(folder: &Path, arguments: &[&str], input: &str) -> String {
    let output = esker(folder, arguments, input);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
}

fn hang_up(server: &Running) {
    let sent = Command::new("kill").args(["-HUP", &server.child.id().to_string()]).status().expect("kill runs");
    assert!(sent.success());
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn users_are_made_by_the_tools_and_taken_anew_by_a_signal_and_by_a_command() {
    let folder = tempfile::tempdir().unwrap();
    let hash = printed(folder.path(), &["password"], "ann's\n");
    assert!(hash.starts_with("$argon2id$"), "{hash}");
    let user = |name: &str, role: &str| format!("[[user]]\nname = '{name}'\nrole = '{role}'\npasswords = ['{hash}']\n");
    let file = folder.path().join("users.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write(&user("op", "operator"));
    let server = Running::start(folder.path(), &["--store", SMALL, "--users-file", "users.toml"]);
    let login = |name: &str| server.client().call(&["AUTH", name, "ann's"]) == "+OK";
    assert!(login("op") && !login("ann"));
    let mut op = server.client();
    assert_eq!(op.call(&["AUTH", "op", "ann's"]), "+OK");
    // By a signal.
    write(&[user("op", "operator"), user("ann", "reader")].concat());
    hang_up(&server);
    eventually("ann is let in", || login("ann"));
    // What cannot be read changes nothing, by neither way.
    write("[[user]]\nname = 'op'\nrole = 'king'\n");
    hang_up(&server);
    let address = server.address.to_string();
    let ask = |more: &[&str]| esker(folder.path(), &[&["reload", "--address", &address][..], more].concat(), "");
    let refused = ask(&["--user", "op", "--password", "ann's"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("king"), "{said}");
    assert!(login("ann") && login("op"));
    // By a command, which is for operators.
    write(&[user("op", "operator"), user("bob", "writer")].concat());
    let refused = ask(&["--user", "ann", "--password", "ann's"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("NOPERM"));
    assert!(!login("bob"));
    assert!(ask(&["--user", "op", "--password", "ann's"]).status.success());
    assert!(login("bob") && !login("ann"));
    assert_eq!(op.call(&["PING"]), "+PONG");
}

#[test]
fn a_password_in_a_file_is_taken_anew_and_one_in_the_environment_breaks_no_command_on_a_store() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("password"), "first\n").unwrap();
    let server = Running::start(folder.path(), &["--store", SMALL, "--password-file", "password"]);
    let login = |password: &str| server.client().call(&["AUTH", password]) == "+OK";
    assert!(login("first") && !login("second"));
    let mut client = server.client();
    assert_eq!(client.call(&["AUTH", "first"]), "+OK");
    std::fs::write(folder.path().join("password"), "second\n").unwrap();
    hang_up(&server);
    eventually("the new password counts", || login("second"));
    assert!(!login("first"));
    assert_eq!(client.call(&["SET", "k", "v"]), "+OK");
    // An emptied file would let every client in.
    std::fs::write(folder.path().join("password"), "").unwrap();
    hang_up(&server);
    std::thread::sleep(Duration::from_millis(300));
    assert!(login("second") && server.client().call(&["PING"]).starts_with("-NOAUTH"));
    drop(server);
    printed(folder.path(), &["check", "--store", "data"], "");
    printed(folder.path(), &["kv", "--store", "data", "get", "k"], "");
}

#[test]
fn all_protocols_end_within_the_drain_and_a_second_signal_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let start = |drain: &str| {
        let protocols = ["--nbd", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--drain", drain];
        let server = Running::start(folder.path(), &[&["--store", SMALL][..], &protocols].concat());
        let mut client = server.client();
        assert_eq!(client.call(&["SET", "k", &"v".repeat(1 << 19)]), "+OK");
        // Replies that are not read keep the server waiting for its client.
        for _ in 0..128 {
            client.send(&["GET", "k"]);
        }
        // What it has not read by the signal it does not answer; and what the socket takes it is soon done with. So it
        // has to hold replies that no client takes.
        let held = || {
            let clients = server.client().call(&["CLIENT", "LIST"]);
            let fields = clients.split_whitespace().filter_map(|field| field.strip_prefix("omem="));
            fields.filter_map(|bytes| bytes.parse::<u64>().ok()).max().unwrap_or(0)
        };
        let mut before = 0;
        eventually("replies wait for their client", || {
            std::thread::sleep(Duration::from_millis(200));
            let now = held();
            std::mem::replace(&mut before, now) == now && now > 0
        });
        (server, client)
    };
    let (mut server, client) = start("1s");
    let began = Instant::now();
    assert_eq!(server.signal("-TERM"), 0);
    assert!(began.elapsed() >= Duration::from_secs(1));
    drop(client);
    let (mut server, client) = start("5m");
    let sent = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    std::thread::sleep(Duration::from_millis(500));
    assert!(server.child.try_wait().unwrap().is_none(), "it waits for its client");
    let began = Instant::now();
    assert_ne!(server.signal("-TERM"), 0);
    assert!(began.elapsed() < Duration::from_secs(60), "it waited for its client");
    drop(client);
    // Nothing that was acknowledged is lost by that.
    let server = Running::start(folder.path(), &["--store", "data"]);
    assert_eq!(server.client().call(&["STRLEN", "k"]), ":524288");
}

#[test]
fn what_cannot_be_served_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("users.toml"), "[[user]]\nname = 'a b'\nrole = 'reader'\n").unwrap();
    let refused = |config: &str, expected: &str| {
        std::fs::write(folder.path().join("esker.toml"), config).unwrap();
        let output = esker(folder.path(), &["--config", "esker.toml", "serve", "--store", SMALL], "");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(expected), "{config}: {said}");
    };
    refused("[serve]\nusers_file = 'users.toml'\n", "spaces");
    refused("[serve]\nusers_file = 'nothing.toml'\n", "nothing.toml");
    refused("[serve]\ndrain = '10ms'\n", "1s to 1h");
    refused("[serve]\nunix_socket_mode = '999'\n", "octal");
    refused("[serve]\nunix_socket = 'socket'\nunix_socket_group = 'no such group'\n", "no such group");
    refused("[store]\nusers_file = 'users.toml'\n", "it belongs in [serve]");
    refused("[serve]\nlocation = 'x'\n", "it belongs in [store]");
}

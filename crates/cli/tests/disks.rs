//! `esker serve --nbd`: volumes of a real store, attached by real clients, in a process that may be killed.
//!
//! Programs that are not installed are skipped with a line that says so; `scripts/test` installs them.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use esker::volume::Durability;
use esker_server::nbd::{Client, Place};

use support::{MIB, Running, esker, have, make, open, run};

#[test]
fn images_and_snapshots_are_listed_copied_and_survive_a_restart() {
    if !have("nbdinfo") || !have("nbdcopy") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    make(folder, 64 * MIB);
    let path = |name: &str| folder.join(name).to_str().unwrap().to_string();
    {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::create(path("there")).unwrap();
        file.set_len(64 * MIB).unwrap();
        for at in (0..64).step_by(5) {
            file.write_all_at(&vec![at as u8 + 1; MIB as usize], at * MIB).unwrap();
        }
    }
    let mut server = Running::start(folder, &[]);
    run("nbdcopy", &["--flush", "--destination-is-zero", &path("there"), &server.disk("disk")]);
    assert_eq!(server.signal("-TERM"), Some(0));

    let store = open(folder);
    let disk = store.volumes().unwrap().image("disk").unwrap();
    assert_eq!(disk.stored_bytes().unwrap(), 13 * MIB, "holes take no space");
    disk.snapshot_create("before", 1).unwrap();
    disk.write(0, vec![0xEE; 4_096].into(), Durability::Durable).unwrap().wait().unwrap();
    store.close().unwrap();

    let mut server = Running::start(folder, &["--nbd-read-only", "disk"]);
    let listed = run("nbdinfo", &["--list", &server.uri]);
    assert!(listed.contains("export=\"disk\"") && listed.contains("export=\"disk@before\""), "{listed}");
    assert_eq!(listed.matches("is_read_only: true").count(), 2, "{listed}");
    std::fs::File::create(path("back")).unwrap().set_len(64 * MIB).unwrap();
    run("nbdcopy", &[&server.disk("disk@before"), &path("back")]);
    assert!(std::fs::read(path("there")).unwrap() == std::fs::read(path("back")).unwrap(), "the snapshot differs");
    run("nbdcopy", &[&server.disk("disk"), &path("back")]);
    let back = std::fs::read(path("back")).unwrap();
    assert!(back[..4_096] == [0xEE; 4_096] && back[4_096..] == std::fs::read(path("there")).unwrap()[4_096..]);
    let map = run("nbdinfo", &["--map", &server.disk("disk")]);
    assert_eq!(map.lines().filter(|line| line.contains("data")).count(), 13, "{map}");
    let refused = Command::new("nbdcopy").args([&path("there"), &server.disk("disk")]).output().unwrap();
    assert!(!refused.status.success(), "it is read-only");
    assert_eq!(server.signal("-INT"), Some(0));
}

#[test]
fn a_unix_socket_serves_disks_and_goes_with_the_server() {
    if !have("nbdinfo") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    make(folder, MIB);
    let socket: PathBuf = folder.join("nbd.sock");
    let mut server = Running::start(folder, &["--nbd-unix-socket", socket.to_str().unwrap()]);
    let uri = format!("nbd+unix:///disk?socket={}", socket.display());
    assert_eq!(run("nbdinfo", &["--size", &uri]).trim(), MIB.to_string());
    let bench =
        ["volume", "--json", "bench", &uri, "--io-size", "64k", "--io-total", "4m", "--durable", "--threads", "8"];
    let output = esker(folder).args(bench).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("\"requests\": 64,"), "{output:?}");
    // The only image is also the one without a name.
    assert_eq!(run("nbdinfo", &["--size", &server.uri]).trim(), MIB.to_string());
    assert_eq!(server.signal("-TERM"), Some(0));
    assert!(!socket.exists());
}

#[test]
fn disks_for_other_machines_need_client_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let serve = |arguments: &[&str]| {
        let serve = ["serve", "--listen", "127.0.0.1:0", "--store", "memory:"];
        let output = esker(folder.path()).args(serve).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, why) = serve(&["--nbd", "0.0.0.0:0"]);
    assert!(code == Some(2) && why.contains("client certificates"), "{why}");
    let (code, why) = serve(&["--nbd", "127.0.0.1:0", "--nbd-tls", "perhaps"]);
    assert!(code == Some(2) && why.contains("required, allowed or off"), "{why}");
}

#[test]
fn snapshots_of_a_disk_in_use_are_taken_through_the_server_and_its_lock_stays() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    make(folder, 8 * MIB);
    let socket = folder.join("grpc.sock");
    let server = Running::start(folder, &["--grpc-unix-socket", socket.to_str().unwrap(), "--grpc-objects"]);
    let place = |export: &str| server.disk(export).parse::<Place>().unwrap();
    let mut client = Client::connect(&place("disk"), Some(Duration::from_secs(20))).unwrap();
    client.write(0, b"before", false).unwrap();

    let store = format!("grpc+unix:{}", socket.display());
    let volume = |arguments: &[&str]| {
        let output = esker(folder).args(["volume", "--store", &store]).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), said)
    };
    let taken = volume(&["snap", "create", "disk@now"]);
    assert!(taken.0, "{}", taken.1);
    client.write(0, b"after!", true).unwrap();
    let refused = volume(&["resize", "disk", "4m"]);
    assert!(!refused.0 && refused.1.contains("locked by nbd/"), "{}", refused.1);
    let grown = volume(&["resize", "disk", "16m"]);
    assert!(grown.0, "{}", grown.1);
    let more = Client::connect(&place("disk"), Some(Duration::from_secs(20))).unwrap();
    assert_eq!(more.size(), 16 * MIB, "a client that attaches now sees it");
    drop(more);
    assert!(volume(&["lock", "ls", "disk"]).1.contains("nbd/"), "the lock of the server is still there");
    assert!(volume(&["snap", "protect", "disk@now"]).0);
    client.write(0, b"again!", true).unwrap();
    let mut snapshot = Client::connect(&place("disk@now"), Some(Duration::from_secs(20))).unwrap();
    assert_eq!(snapshot.read(0, 6).unwrap(), b"before");
    assert_eq!(client.read(0, 6).unwrap(), b"again!");
}

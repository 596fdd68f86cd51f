//! `esker serve --nbd`: volumes of a real store, attached by real clients, in a process that may be killed.
//!
//! Programs that are not installed are skipped with a line that says so; `scripts/test` installs them.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use esker::volume::{Durability, Layout};

const MIB: u64 = 1 << 20;

/// A store with an image `disk` in `folder`/data.
fn make(folder: &Path, size: u64) {
    let store = open(folder);
    store.volumes().unwrap().create("disk", size, Layout::default(), 0).unwrap();
    store.close().unwrap();
}

fn open(folder: &Path) -> esker::Store {
    esker::Store::open(&format!("{}?size=2g", folder.join("data").display())).unwrap()
}

struct Running {
    child: Child,
    uri: String,
    /// Open as long as the server prints.
    _printed: BufReader<ChildStdout>,
}

impl Running {
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_esker"))
            .args(["serve", "--listen", "127.0.0.1:0", "--nbd", "127.0.0.1:0", "--store", "data"])
            .args(arguments)
            .current_dir(folder)
            .env_remove("ESKER_CONFIG")
            .env("RUST_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut printed = BufReader::new(child.stdout.take().unwrap());
        let mut lines = printed.by_ref().lines().map_while(Result::ok);
        let uri = lines.find_map(|line| line.strip_prefix("disks      ").map(str::to_string));
        Self { child, uri: uri.expect("the server says where the disks are"), _printed: printed }
    }

    fn disk(&self, name: &str) -> String {
        format!("{}{name}", self.uri)
    }

    fn signal(&mut self, signal: &str) -> Option<i32> {
        let killed = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn have(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: {program} is not installed");
    }
    there
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new("timeout").arg("60").arg(program).args(arguments).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{printed}\n{complained}", output.status);
    printed
}

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
fn what_was_flushed_before_kill_9_is_there_afterwards() {
    if !have("fio") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    make(folder, 32 * MIB);
    for round in 0..3 {
        let mut server = Running::start(folder, if round == 1 { &["--nbd-durable", "*"] } else { &[] });
        let uri = format!("--uri={}", server.disk("disk"));
        let verified = [
            "--name=t",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bs=4k",
            "--iodepth=16",
            "--size=16m",
            "--verify=crc32c",
            "--verify_state_save=0",
            "--randrepeat=1",
        ];
        run("fio", &[&verified[..], &["--do_verify=0"]].concat());
        if round != 1 {
            // A flush on any connection covers what was answered on others before.
            let flushed =
                ["--name=f", "--ioengine=nbd", &uri, "--rw=write", "--bs=4k", "--offset=16m", "--size=8k", "--fsync=1"];
            run("fio", &flushed);
        }
        let mut other = Command::new("fio")
            .args(["--name=u", "--ioengine=nbd", &uri, "--rw=randwrite", "--bs=64k", "--iodepth=16"])
            .args(["--size=16m", "--offset=16m", "--time_based", "--runtime=30"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        server.signal("-KILL");
        other.wait().unwrap();
        let server = Running::start(folder, &[]);
        let uri = format!("--uri={}", server.disk("disk"));
        let mut again = verified;
        again[2] = &uri;
        run("fio", &[&again[..], &["--verify_only", "--verify_fatal=1"]].concat());
    }
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
    // The only image is also the one without a name.
    assert_eq!(run("nbdinfo", &["--size", &server.uri]).trim(), MIB.to_string());
    assert_eq!(server.signal("-TERM"), Some(0));
    assert!(!socket.exists());
}

#[test]
fn disks_for_other_machines_need_client_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let serve = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_esker"))
            .args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:"])
            .args(arguments)
            .current_dir(folder.path())
            .env_remove("ESKER_CONFIG")
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, why) = serve(&["--nbd", "0.0.0.0:0"]);
    assert!(code == Some(2) && why.contains("client certificates"), "{why}");
    let (code, why) = serve(&["--nbd", "127.0.0.1:0", "--nbd-tls", "perhaps"]);
    assert!(code == Some(2) && why.contains("required, allowed or off"), "{why}");
}

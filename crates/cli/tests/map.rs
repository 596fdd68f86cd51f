//! `esker volume map` and `unmap`: disks as files, by nbdfuse.
//!
//! Mounts and processes live in namespaces of their own where that is possible, so that none is left whatever ends a
//! test. Skipped, with a line that says so, where there is no FUSE; `scripts/test` installs the programs.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

#[path = "../../server/tests/certificates/mod.rs"]
mod certificates;
mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use support::{MIB, Mapped, Running, apart, can_map, esker, make, open, send, soon};

fn volume(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = esker(folder).args(["volume", "--store", "data"]).args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn written(folder: &Path, image: &str, offset: u64, len: u64) -> Vec<u8> {
    let store = open(folder);
    let bytes = store.volumes().unwrap().image(image).unwrap().read_bytes(offset, len).unwrap();
    store.close().unwrap();
    bytes.to_vec()
}

fn opened(mapped: &Mapped) -> File {
    File::options().read(true).write(true).open(&mapped.file).unwrap()
}

#[test]
fn a_mapped_image_is_a_file_and_durable_when_the_command_has_ended() {
    if can_map() && !apart("a_mapped_image_is_a_file_and_durable_when_the_command_has_ended", mapped) {
        mapped();
    }
}

fn mapped() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    make(folder, 64 * MIB);
    let mapped = Mapped::start(folder, "disk", "file", &[]);
    assert_eq!(std::fs::metadata(&mapped.file).unwrap().len(), 64 * MIB);
    let file = opened(&mapped);
    file.write_all_at(b"written and not synced", 5 * MIB + 17).unwrap();
    drop(file);
    let (code, said) = volume(folder, &["info", "disk"]);
    assert!(code == Some(5) && said.contains("in use"), "{said}");
    let (code, said) = volume(folder, &["map", "disk", "--mountpoint", "other"]);
    assert!(code == Some(5), "{said}");
    assert!(!folder.join("other").exists(), "a file that was made in vain is removed");
    assert_eq!(mapped.end(), Some(0));
    assert!(!folder.join("file").exists(), "the file that was made goes with the disk");
    assert_eq!(written(folder, "disk", 5 * MIB + 17, 22), b"written and not synced");
    assert_eq!(open(folder).volumes().unwrap().image("disk").unwrap().lock_info(), None);
}

#[test]
fn a_disk_in_use_is_not_taken_away_unless_asked_twice() {
    if can_map() && !apart("a_disk_in_use_is_not_taken_away_unless_asked_twice", in_use) {
        in_use();
    }
}

fn in_use() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    make(folder, 8 * MIB);
    std::fs::File::create(folder.join("file")).unwrap();
    let mut mapped = Mapped::start(folder, "disk", "file", &[]);
    let file = opened(&mapped);
    let (code, said) = volume(folder, &["unmap", "file"]);
    assert!(code == Some(1) && said.contains("in use"), "{said}");
    send(&mapped.child, "-TERM");
    std::thread::sleep(Duration::from_millis(300));
    file.write_all_at(b"still there", 0).unwrap();
    assert!(mapped.child.try_wait().unwrap().is_none(), "it waits");
    drop(file);
    assert_eq!(mapped.child.wait().unwrap().code(), Some(0));
    assert!(folder.join("file").exists(), "the file was there before");
    assert_eq!(written(folder, "disk", 0, 11), b"still there");

    let mut mapped = Mapped::start(folder, "disk", "file", &[]);
    let file = opened(&mapped);
    send(&mapped.child, "-TERM");
    std::thread::sleep(Duration::from_millis(300));
    send(&mapped.child, "-TERM");
    assert_eq!(mapped.child.wait().unwrap().code(), Some(1));
    assert!(file.write_all_at(b"too late", 0).and_then(|()| file.sync_all()).is_err());

    // unmap returns when everything is over: the store may be opened at once.
    let mut mapped = Mapped::start(folder, "disk", "file", &[]);
    opened(&mapped).write_all_at(b"unmapped", 100).unwrap();
    let (code, said) = volume(folder, &["unmap", "file"]);
    assert!(code == Some(0), "{said}");
    assert_eq!(written(folder, "disk", 100, 8), b"unmapped");
    assert_eq!(mapped.child.wait().unwrap().code(), Some(0));
}

#[test]
fn snapshots_and_disks_of_a_running_server_are_mapped_too() {
    if can_map() && !apart("snapshots_and_disks_of_a_running_server_are_mapped_too", of_a_server) {
        of_a_server();
    }
}

fn of_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    make(folder, 8 * MIB);
    let mapped = Mapped::start(folder, "disk", "file", &[]);
    opened(&mapped).write_all_at(b"then", 0).unwrap();
    assert_eq!(mapped.end(), Some(0));
    assert_eq!(volume(folder, &["snap", "create", "disk@a"]).0, Some(0));

    let socket = folder.join("nbd.sock");
    let server = Running::start(folder, &["--nbd-unix-socket", socket.to_str().unwrap()]);
    let unix = format!("nbd+unix:///disk?socket={}", socket.display());
    for (uri, text) in [(&server.disk("disk"), b"by TCP"), (&unix, b"bysock")] {
        let mapped = Mapped::start(folder, uri, "file", &[]);
        opened(&mapped).write_all_at(text, 100).unwrap();
        assert_eq!(mapped.end(), Some(0));
        let mapped = Mapped::start(folder, uri, "file", &["--read-only"]);
        let mut found = [0; 6];
        File::open(&mapped.file).unwrap().read_exact_at(&mut found, 100).unwrap();
        assert_eq!(found, *text);
        assert!(File::options().write(true).open(&mapped.file).and_then(|file| file.write_at(b"x", 0)).is_err());
        assert_eq!(mapped.end(), Some(0));
        let mapped = Mapped::start(folder, uri, "file", &["--snapshot", "a"]);
        let file = File::open(&mapped.file).unwrap();
        let mut found = [0; 200];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found[..4] == *b"then" && found[100..] == [0; 100]);
        drop(file);
        assert_eq!(mapped.end(), Some(0));
    }
    // A server that goes away takes the disk with it, and that is said.
    let mut mapped = Mapped::start(folder, &unix, "file", &["--reconnect", "1s"]);
    let mut server = server;
    server.signal("-KILL");
    soon("the disk is dead", || File::open(&mapped.file).and_then(|file| file.read_at(&mut [0; 4_096], 0)).is_err());
    send(&mapped.child, "-TERM");
    assert_eq!(mapped.child.wait().unwrap().code(), Some(1), "the last flush failed");
    // One that comes again goes on with the disk, if all that was written was flushed.
    let mut server = Running::start(folder, &["--nbd-unix-socket", socket.to_str().unwrap()]);
    let mut mapped = Mapped::start(folder, &unix, "file", &[]);
    let file = opened(&mapped);
    file.write_all_at(b"synced", 300).and_then(|()| file.sync_all()).unwrap();
    server.signal("-KILL");
    let mut server = Running::start(folder, &["--nbd-unix-socket", socket.to_str().unwrap()]);
    file.write_all_at(b"behind", 306).and_then(|()| file.sync_all()).unwrap();
    let mut found = [0; 12];
    file.read_exact_at(&mut found, 300).unwrap();
    assert_eq!(found, *b"syncedbehind");
    // If not, the disk fails: the server would say that all is durable.
    file.write_all_at(b"lost", 400).unwrap();
    server.signal("-KILL");
    let mut server = Running::start(folder, &["--nbd-unix-socket", socket.to_str().unwrap()]);
    assert!(file.sync_all().is_err() && file.write_all_at(b"more", 400).is_err());
    drop(file);
    send(&mapped.child, "-TERM");
    assert_eq!(mapped.child.wait().unwrap().code(), Some(1), "another server has flushed");
    assert_eq!(server.signal("-TERM"), Some(0));

    // The bench goes on too.
    let mut server = Running::start(folder, &["--nbd-unix-socket", socket.to_str().unwrap()]);
    let mut bench = esker(folder);
    bench.args(["volume", "bench", &unix, "--seconds", "4", "--threads", "4", "--connections", "2", "--json"]);
    let bench = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    server.signal("-KILL");
    let mut server = Running::start(folder, &["--nbd-unix-socket", socket.to_str().unwrap()]);
    let done = bench.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    let told: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert!(told["reconnects"].as_u64() >= Some(2) && told["requests"].as_u64() > Some(4), "{told}");
    assert_eq!(server.signal("-TERM"), Some(0));
    let (code, said) = volume(folder, &["bench", &unix, "--seconds", "1", "--reconnect", "0s"]);
    assert!(code == Some(1) && said.contains("cannot connect"), "{said}");

    // By TLS, the last flush as well.
    certificates::make(folder);
    let mut server = Running::start(folder, &["--tls-cert", "server-cert.pem", "--tls-key", "server-key.pem"]);
    let plain = server.disk("disk");
    let encrypted = plain.replace("nbd:", "nbds:").replace("127.0.0.1", "localhost");
    let encrypted = format!("{encrypted}?tls-certificates={}", folder.display());
    let mapped = Mapped::start(folder, &encrypted, "file", &[]);
    opened(&mapped).write_all_at(b"by TLS", 100).unwrap();
    assert_eq!(mapped.end(), Some(0));
    let (code, said) =
        volume(folder, &["bench", &encrypted, "--io-size", "4k", "--threads", "2", "--seconds", "1", "--io", "read"]);
    assert!(code == Some(0), "{said}");
    let (code, said) = volume(folder, &["bench", &plain, "--seconds", "1", "--io", "read"]);
    assert!(code == Some(1) && said.contains("STARTTLS"), "{said}");
    assert_eq!(server.signal("-TERM"), Some(0));

    let mapped = Mapped::start(folder, "disk@a", "file", &[]);
    let mut found = [0; 4];
    File::open(&mapped.file).unwrap().read_exact_at(&mut found, 0).unwrap();
    assert_eq!(found, *b"then");
    assert_eq!(mapped.end(), Some(0));
    assert_eq!(written(folder, "disk", 100, 6), b"by TLS");
}

/// A process that ends with this.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).unwrap();
    }
}

/// Negotiates an export of 1 MiB as any server does, and hangs up at the first request.
fn hang_up(mut stream: UnixStream) -> std::io::Result<()> {
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
    let mut head = [0; 4 + 16];
    stream.read_exact(&mut head)?;
    let mut asked = vec![0; u32::from_be_bytes(head[16..].try_into().unwrap()) as usize];
    stream.read_exact(&mut asked)?;
    for (kind, data) in [(3u32, &b"\0\0\0\0\0\0\0\x10\0\0\x01\x0d"[..]), (1, b"")] {
        let reply = [&0x3_e889_0455_65a9u64.to_be_bytes()[..], &head[12..16], &kind.to_be_bytes()];
        stream.write_all(&[&reply.concat()[..], &(data.len() as u32).to_be_bytes(), data].concat())?;
    }
    stream.read_exact(&mut [0; 28])
}

/// Failure: the bench never ended. Cause: a connection that could be made counted as a server that had come again.
#[test]
fn a_bench_of_a_server_that_answers_nothing_ends() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let listener = UnixListener::bind(folder.join("socket")).unwrap();
    std::thread::spawn(move || {
        // A client that has given up is gone before it has said all.
        listener.incoming().for_each(|stream| drop(std::thread::spawn(|| hang_up(stream.unwrap()))));
    });
    let uri = format!("nbd+unix:///disk?socket={}", folder.join("socket").display());
    let arguments = ["bench", &uri, "--io-size", "4k", "--seconds", "1", "--io", "read", "--reconnect", "1s"];
    let (code, said) = volume(folder, &arguments);
    assert!(code == Some(1) && said.contains("connection lost"), "{said}");
}

#[test]
fn what_cannot_be_mapped_is_refused_with_what_helps() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    make(folder, MIB);
    std::fs::write(folder.join("full"), "of words").unwrap();
    std::fs::write(folder.join("raw"), vec![0; MIB as usize]).unwrap();
    let check = |arguments: &[&str], path: Option<&str>, expected_code: i32, expected: &str| {
        let mut command = esker(folder);
        command.args(["volume", "--store", "data"]).args(arguments).stdout(Stdio::null());
        if let Some(path) = path {
            command.env("PATH", path);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(expected_code) && said.contains(expected), "{arguments:?}: {said}");
    };
    check(&["map", "disk"], Some("/nowhere"), 1, "apt-get install libnbd-bin fuse3");
    check(&["map", "nbd://[", "--mountpoint", "f"], None, 2, "expected nbd://HOST");
    check(&["map", "disk", "--device", "d", "--mountpoint", "f"], None, 2, "cannot be used with");
    if !Path::new("/usr/sbin/nbd-client").exists() {
        check(&["map", "disk", "--device", "/dev/nbd0"], None, 1, "apt-get install nbd-client");
    }
    if can_map() {
        check(&["map", "disk", "--mountpoint", "full"], None, 2, "not an empty file");
        check(&["map", "none", "--mountpoint", "f"], None, 3, "image none does not exist");
        check(&["map", "disk@none", "--mountpoint", "f"], None, 3, "no snapshot none");
        check(&["map", "disk@a", "--snapshot", "b"], None, 2, "names a snapshot already");
        check(&["map", "nbd+unix:///disk?socket=none", "--mountpoint", "f"], None, 1, "cannot connect to");
        // A flush there covers one connection.
        if let Ok(server) = Command::new("qemu-nbd")
            .args(["--persistent", "-f", "raw", "-k"])
            .arg(folder.join("qemu"))
            .arg(folder.join("raw"))
            .spawn()
        {
            let server = Ended(server);
            soon("qemu-nbd listens", || UnixStream::connect(folder.join("qemu")).is_ok());
            let uri = format!("nbd+unix:///?socket={}", folder.join("qemu").display());
            check(&["map", &uri, "--mountpoint", "f"], None, 1, "CAN_MULTI_CONN");
            drop(server);
        }
        check(&["unmap", "full"], None, 1, "not mapped");
        assert!(!folder.join("f").exists(), "a file that was made in vain is removed");
    }
}

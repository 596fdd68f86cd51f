//! Real clients against the NBD server, plain and encrypted: nbdinfo, nbdcopy, qemu-img, qemu-io, fio.
//!
//! A client that is not installed is skipped with a line that says so; `scripts/test` installs them all.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod certificates;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use esker_server::front::Users;
use esker_server::nbd::{Address, Client, Config, MemoryDisk, MemoryDisks, Place, Server, TlsMode};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// A server of two disks in memory: `disk`, and `frozen`, which is read-only.
struct Running {
    folder: tempfile::TempDir,
    disk: Arc<MemoryDisk>,
    uri: String,
    encrypted: bool,
    handle: esker_server::nbd::Handle,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn start(size: u64, encrypted: bool) -> Self {
        Self::with(size, encrypted, None)
    }

    /// With the users of this file, if any.
    fn with(size: u64, encrypted: bool, users: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(MemoryDisk::new(size));
        let disks = MemoryDisks(vec![
            ("disk".into(), Arc::clone(&disk)),
            ("frozen".into(), Arc::new(MemoryDisk::read_only(MIB))),
        ]);
        let config = Config {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            unix_socket: Some(folder.path().join("nbd.sock")),
            tls: encrypted.then(|| certificates::make(folder.path())),
            tls_mode: TlsMode::Required,
            users: users.map(|text| {
                let file = folder.path().join("users.toml");
                std::fs::write(&file, text).unwrap();
                Users::open(&file, None, None).unwrap()
            }),
            ..Config::default()
        };
        let server = Server::bind(config, Arc::new(disks)).unwrap();
        let Address::Tcp(address) = server.addresses()[0].clone() else { panic!("the first address is TCP") };
        let uri = if encrypted {
            format!("nbds://localhost:{}/disk?tls-certificates={}", address.port(), folder.path().display())
        } else {
            format!("nbd://{address}/disk")
        };
        let handle = server.handle();
        let thread = Some(std::thread::spawn(move || server.run().unwrap()));
        Self { folder, disk, uri, encrypted, handle, thread }
    }

    /// The disk by the unix socket, encrypted if the server can be.
    fn by_socket(&self) -> String {
        let (scheme, socket) = (if self.encrypted { "nbds" } else { "nbd" }, self.folder.path().join("nbd.sock"));
        format!("{scheme}+unix://localhost/disk?socket={}", socket.display())
    }

    /// Where qemu's tools find the disk: options in front, and the image.
    fn qemu(&self) -> (Vec<String>, String) {
        if !self.encrypted {
            return (Vec::new(), self.uri.clone());
        }
        let port = self.uri.split(['/', ':']).nth(4).unwrap();
        let object = format!("tls-creds-x509,id=tls,endpoint=client,dir={}", self.folder.path().display());
        let image = format!(
            "driver=raw,file.driver=nbd,file.host=localhost,file.port={port},file.export=disk,file.tls-creds=tls"
        );
        (vec!["--object".into(), object, "--image-opts".into()], image)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.shutdown();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Whether a program is there; if not, the test is skipped and says so.
fn have(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: {program} is not installed");
    }
    there
}

/// Runs a program that must succeed; what it printed.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new("timeout").arg("20").arg(program).args(arguments).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{printed}\n{complained}", output.status);
    printed
}

fn qemu(server: &Running, program: &str, command: &[&str], more: &[&str]) -> String {
    let (options, image) = server.qemu();
    let mut arguments: Vec<&str> = command.to_vec();
    arguments.extend(options.iter().map(String::as_str));
    arguments.extend(more);
    arguments.push(&image);
    run(program, &arguments)
}

/// A file with data in some places and holes in others, seeded.
fn sparse_file(path: &Path, size: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(path).unwrap();
    file.set_len(size).unwrap();
    let mut random = fastrand::Rng::with_seed(5);
    for at in (0..size).step_by(3 * MIB as usize) {
        let data: Vec<u8> = std::iter::repeat_with(|| random.u8(1..)).take(MIB as usize).collect();
        file.write_all_at(&data[..data.len().min((size - at) as usize)], at).unwrap();
    }
}

fn both(size: u64, check: impl Fn(&Running)) {
    for encrypted in [false, true] {
        check(&Running::start(size, encrypted));
    }
}

#[test]
fn nbdinfo_lists_exports_and_shows_what_they_can_do() {
    if !have("nbdinfo") {
        return;
    }
    both(64 * MIB, |server| {
        let shown = run("nbdinfo", &[&server.uri]);
        for line in [
            "protocol: newstyle-fixed",
            "export-size: 67108864 (64M)",
            "is_read_only: false",
            "can_multi_conn: true",
            "can_fua: true",
            "can_flush: true",
            "can_trim: true",
            "can_zero: true",
            "can_fast_zero: true",
            "can_cache: true",
            "can_df: true",
            "block_size_preferred: 4096",
            "block_size_maximum: 33554432",
            "base:allocation",
        ] {
            assert!(shown.contains(line), "{line} is missing in\n{shown}");
        }
        let listed = run("nbdinfo", &["--list", &server.uri.replace("/disk", "/")]);
        assert!(listed.contains("export=\"disk\"") && listed.contains("export=\"frozen\""), "{listed}");
        assert!(listed.contains("is_read_only: true"), "{listed}");
        assert_eq!(shown.contains("with TLS"), server.encrypted, "{shown}");
    });
}

#[test]
fn a_client_without_a_certificate_is_refused_and_with_one_is_not() {
    if !have("nbdinfo") {
        return;
    }
    let server = Running::start(MIB, true);
    let folder = server.folder.path();
    let bare = folder.join("bare");
    std::fs::create_dir(&bare).unwrap();
    std::fs::copy(folder.join("ca-cert.pem"), bare.join("ca-cert.pem")).unwrap();
    let path = |folder: &Path| folder.to_str().unwrap().to_string();
    run("nbdinfo", &["--size", &server.uri]);
    let refused = server.uri.replace(&path(folder), &path(&bare));
    let output = Command::new("timeout").args(["20", "nbdinfo", "--size", &refused]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let output = Command::new("timeout").args(["20", "nbdinfo", "--size", &server.uri.replace("nbds", "nbd")]).output();
    assert_eq!(output.unwrap().status.code(), Some(1), "in the clear");
}

#[test]
fn the_own_client_speaks_tls_and_refuses_servers_that_it_cannot_check() {
    let server = Running::start(MIB, true);
    let by_socket = server.by_socket() + &format!("&tls-certificates={}", server.folder.path().display());
    for (number, uri) in [&server.uri, &by_socket].into_iter().enumerate() {
        let place: Place = uri.parse().unwrap();
        assert_eq!(place.to_string().parse::<Place>().unwrap(), place);
        let mut client = Client::connect(&place, Some(PATIENCE)).unwrap();
        assert_eq!(client.size(), MIB);
        let data = vec![number as u8 + 1; 300 << 10];
        client.write(4_096, &data, true).unwrap();
        assert_eq!(client.read(4_096, data.len() as u32).unwrap(), data);
        client.flush().unwrap();
    }
    let refused = |uri: &str, expected: &str| {
        let failed = Client::connect(&uri.parse().unwrap(), Some(PATIENCE)).err().unwrap();
        let mut said = failed.to_string();
        let mut cause = std::error::Error::source(&failed);
        while let Some(error) = cause {
            said = format!("{said}: {error}");
            cause = error.source();
        }
        assert!(said.contains(expected), "{uri}: {said}");
    };
    let other = tempfile::tempdir().unwrap();
    certificates::make(other.path());
    let theirs = server.uri.replace(&server.folder.path().display().to_string(), &other.path().display().to_string());
    refused(&theirs, "certificate");
    refused(&format!("{}&tls-hostname=elsewhere", server.uri), "elsewhere");
    refused(&server.uri.replace("tls-certificates=", "tls-certificates=/nowhere"), "ca-cert.pem");
    refused(&server.uri.split('?').next().unwrap().replace("nbds", "nbd"), "STARTTLS");
    let plain = Running::start(MIB, false);
    let folder = server.folder.path().display();
    refused(&format!("{}?tls-certificates={folder}", plain.uri.replace("nbd:", "nbds:")), "does not encrypt");
}

#[test]
fn a_unix_socket_is_encrypted_for_those_who_ask() {
    if !have("nbdinfo") {
        return;
    }
    both(MIB, |server| {
        let certificates = format!("&tls-certificates={}", server.folder.path().display());
        let uri = server.by_socket() + if server.encrypted { &certificates } else { "" };
        let shown = run("nbdinfo", &[&uri]);
        assert_eq!(shown.contains("with TLS"), server.encrypted, "{shown}");
        // Who is on this machine may do without.
        run("nbdinfo", &["--size", &server.by_socket().replace("nbds", "nbd")]);
    });
}

#[test]
fn nbdcopy_brings_a_disk_there_and_back_with_its_holes() {
    if !have("nbdcopy") {
        return;
    }
    both(64 * MIB, |server| {
        let path = |name: &str| server.folder.path().join(name).to_str().unwrap().to_string();
        sparse_file(path("there").as_ref(), 64 * MIB);
        run("nbdcopy", &["--destination-is-zero", &path("there"), &server.uri]);
        assert_eq!(server.disk.used_bytes(), 22 * MIB, "holes of the file are holes of the disk");
        std::fs::File::create(path("back")).unwrap().set_len(64 * MIB).unwrap();
        run("nbdcopy", &[&server.uri, &path("back")]);
        assert_eq!(std::fs::read(path("there")).unwrap(), std::fs::read(path("back")).unwrap());
        use std::os::unix::fs::MetadataExt;
        let taken = std::fs::metadata(path("back")).unwrap().blocks() * 512;
        assert!((22 * MIB..24 * MIB).contains(&taken), "{taken} bytes taken");
        let map = run("nbdinfo", &["--map", &server.uri]);
        assert_eq!(map.lines().count(), 43, "{map}");
        assert!(map.contains("hole,zero"), "{map}");
        // Over data that is there already, zeros are written as such.
        std::fs::File::create(path("empty")).unwrap().set_len(64 * MIB).unwrap();
        run("nbdcopy", &["--flush", &path("empty"), &server.uri]);
        assert_eq!(server.disk.used_bytes(), 0);
        assert!(server.disk.flushes() > 0);
    });
}

#[test]
fn qemu_converts_maps_and_compares() {
    if !have("qemu-img") || !have("qemu-io") {
        return;
    }
    both(32 * MIB, |server| {
        let path = |name: &str| server.folder.path().join(name).to_str().unwrap().to_string();
        sparse_file(path("raw").as_ref(), 32 * MIB);
        let info = qemu(server, "qemu-img", &["info"], &[]);
        assert!(info.contains("32 MiB (33554432 bytes)"), "{info}");
        let (options, image) = server.qemu();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let compared: Vec<&str> = if server.encrypted {
            let target = ["--target-image-opts", "--image-opts", "driver=raw,file.driver=file,file.filename="];
            let source = format!("{}{}", target[2], path("raw"));
            run("qemu-img", &[&["convert", "-n"], &options[..2], &target[..2], &[&source, &image]].concat());
            run("qemu-img", &[&["compare"], &options[..], &[&source, &image]].concat());
            Vec::new()
        } else {
            run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &path("raw"), &image]);
            vec!["compare", "-f", "raw", "-F", "raw"]
        };
        if !compared.is_empty() {
            run("qemu-img", &[&compared[..], &[&path("raw"), &image]].concat());
        }
        let map = qemu(server, "qemu-img", &["map", "--output=json"], &[]);
        assert!(map.matches("\"data\": true").count() == 11 && map.contains("\"zero\": true"), "{map}");

        for commands in [
            &["write -P 0x5a 1M 1M", "read -P 0x5a 1M 1M", "flush"][..],
            &["write -f -P 0x11 12345k 4k", "read -P 0x11 12345k 4k"],
            &["write -z 1M 512k", "read -P 0 1M 512k", "read -P 0x5a 1536k 512k"],
            &["write -z -u 1536k 512k", "read -P 0 1M 1M"],
            &["discard 12M 1M", "read -P 0 12M 1M"],
            &["aio_write -P 1 0 64k", "aio_write -P 2 64k 64k", "aio_flush", "read -P 1 0 64k", "read -P 2 64k 64k"],
        ] {
            let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
            let format = if server.encrypted { &[][..] } else { &["-f", "raw"] };
            let said = qemu(server, "qemu-io", &[], &[format, &commands].concat());
            assert!(!said.contains("failed") && !said.contains("error"), "{said}");
        }
    });
}

#[test]
fn fio_finds_what_it_wrote_between_trims() {
    if !have("fio") {
        return;
    }
    // fio's engine allows no certificates in the address; libnbd takes them from the home folder then.
    both(64 * MIB, |server| {
        let by_tcp = format!("--uri={}", server.uri.split('?').next().unwrap());
        let by_socket = format!("--uri={}", server.by_socket());
        let pki = server.folder.path().join(".pki");
        std::fs::create_dir(&pki).unwrap();
        std::os::unix::fs::symlink(server.folder.path(), pki.join("libnbd")).unwrap();
        let home = format!("HOME={}", server.folder.path().display());
        // For root libnbd looks elsewhere: another user then, who may see the folder.
        let root = run("id", &["-u"]).trim() == "0";
        let other: &[&str] = if root { &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] } else { &[] };
        run("chmod", &["-R", "a+rX", server.folder.path().to_str().unwrap()]);
        run("chmod", &["a+w", server.folder.path().join("nbd.sock").to_str().unwrap()]);
        for (uri, mode, more) in [
            (&by_tcp, "randwrite", &["--verify=crc32c", "--do_verify=1", "--fsync=64"][..]),
            // Some of the blocks that are to be verified are trimmed instead, and must be zeros then.
            (
                &by_tcp,
                "randwrite",
                &[
                    "--verify=crc32c",
                    "--verify_backlog=64",
                    "--trim_percentage=30",
                    "--trim_verify_zero=1",
                    "--trim_backlog=64",
                ],
            ),
            (&by_tcp, "randtrimwrite", &[]),
            (&by_tcp, "randrw", &["--verify=crc32c", "--fsync=16", "--bsrange=4k-256k"]),
            (&by_socket, "randwrite", &["--verify=crc32c", "--do_verify=1", "--fsync=64"]),
        ] {
            let name = format!("--rw={mode}");
            let fixed = [
                "--name=t",
                "--ioengine=nbd",
                uri,
                &name,
                "--bs=4k",
                "--iodepth=32",
                "--size=64m",
                "--io_size=32m",
                "--randseed=7",
                "--group_reporting",
                "--verify_fatal=1",
                "--randrepeat=1",
                "--verify_state_save=0",
            ];
            let said = run("env", &[&[home.as_str()][..], other, &["fio"], &fixed[..], more].concat());
            assert!(said.contains("err= 0"), "{said}");
        }
    });
}

#[test]
fn the_name_in_a_clients_certificate_says_which_disks_it_may_use_and_how() {
    if !have("nbdinfo") {
        return;
    }
    let user = |role: &str, names: &str, certificate: &str| {
        format!("[[user]]\nname = 'ann'\nrole = '{role}'\nnames = ['{names}']\ncertificates = ['{certificate}']\n")
    };
    let info = |text: &str, arguments: &[&str]| {
        let server = Running::with(MIB, true, Some(text));
        let mut arguments = arguments.to_vec();
        arguments.push(&server.uri);
        let output = Command::new("timeout").arg("20").arg("nbdinfo").args(arguments).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (served, text) = info(&user("writer", "di*", "client"), &[]);
    assert!(served && text.contains("is_read_only: false"), "{text}");
    let (served, text) = info(&user("reader", "disk", "client"), &[]);
    assert!(served && text.contains("is_read_only: true"), "{text}");
    for other in [user("writer", "other", "client"), user("writer", "*", "stranger"), String::new()] {
        let (served, text) = info(&other, &[]);
        assert!(!served, "{other}: {text}");
    }
    // A list shows what may be used.
    let (served, text) = info(&user("writer", "disk", "client"), &["--list"]);
    assert!(served && text.contains("export=\"disk\"") && !text.contains("frozen"), "{text}");
}

//! `esker serve` on sockets that a supervisor has bound: clients that come before the server are answered, addresses of
//! the settings are not listened on, and sockets of other names or kinds are refused. And without the Redis protocol.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

/// Binds a socket for each name, says where, and becomes the program, as a supervisor does.
const SUPERVISOR: &str = "
import fcntl, os, socket, sys
names, how, program = sys.argv[1], sys.argv[2], sys.argv[3:]
sockets = []
for number, name in enumerate(names.split(':')):
    if name == 'nbd':
        one = socket.socket(socket.AF_UNIX)
        one.bind('passed.socket')
        print('passed.socket')
    else:
        one = socket.socket()
        one.bind(('127.0.0.1', 0))
        print('127.0.0.1:%d' % one.getsockname()[1])
    if how != 'deaf':
        one.listen(16)
    sockets.append(fcntl.fcntl(one.fileno(), fcntl.F_DUPFD, 100))
print(flush=True)
if how == 'wait':
    sys.stdin.readline()
for number, one in enumerate(sockets):
    os.dup2(one, 3 + number, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(sockets)), LISTEN_FDNAMES=names)
os.execv(program[0], program)
";

struct Supervised {
    child: Child,
    places: Vec<String>,
    printed: BufReader<ChildStdout>,
}

impl Supervised {
    fn start(folder: &Path, names: &str, how: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", SUPERVISOR, names, how, env!("CARGO_BIN_EXE_esker"), "serve"])
            .args(["--store", "data?size=64m&segment=1m", "--log", "warn"])
            .args(arguments)
            .current_dir(folder)
            .env_remove("ESKER_CONFIG")
            .env_remove("ESKER_PASSWORD")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut printed = BufReader::new(child.stdout.take().unwrap());
        let lines = printed.by_ref().lines().map_while(Result::ok);
        let places = lines.take_while(|line| !line.is_empty()).collect();
        Self { child, places, printed }
    }

    fn connect(&self, number: usize) -> TcpStream {
        let stream = TcpStream::connect(&self.places[number]).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn begins_with(stream: &mut impl Read, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(expected));
}

#[test]
fn clients_that_come_before_the_server_are_answered_on_passed_sockets() {
    let folder = tempfile::tempdir().unwrap();
    // The settings name an address that the server cannot listen on, which shows that it does not try.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let arguments = ["--listen", &taken, "--http", &taken, "--nbd", &taken, "--grpc", &taken, "--grpc-objects"];
    let mut server = Supervised::start(folder.path(), "resp:http:nbd:grpc", "wait", &arguments);
    let (mut resp, mut http) = (server.connect(0), server.connect(1));
    let mut nbd = UnixStream::connect(folder.path().join("passed.socket")).unwrap();
    nbd.set_read_timeout(Some(PATIENCE)).unwrap();
    let grpc = format!("grpc://{}", server.places[3]);
    http.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    server.child.stdin.take().unwrap().write_all(b"\n").unwrap();
    begins_with(&mut http, b"HTTP/1.1 200");
    begins_with(&mut nbd, b"NBDMAGICIHAVEOPT");
    // One that asks while the store is opened is told so.
    resp.write_all(b"SET k v\r\nGET k\r\n").unwrap();
    begins_with(&mut resp, b"+OK\r\n$1\r\nv\r\n");
    let made = Command::new(env!("CARGO_BIN_EXE_esker"))
        .args(["log", "create", "orders", "--store", &grpc])
        .env_remove("ESKER_CONFIG")
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let sent = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let mut rest = String::new();
    server.printed.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("passed.socket") && !rest.contains(&taken), "{rest}");
    // The socket is the supervisor's: the server leaves its file.
    assert!(folder.path().join("passed.socket").exists());
}

#[test]
fn sockets_that_nothing_can_be_served_on_are_named() {
    let check = |names: &str, how: &str, arguments: &[&str], expected: &str| {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Supervised::start(folder.path(), names, how, arguments);
        let code = server.child.wait().unwrap().code();
        let mut said = String::new();
        server.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(code == Some(2) && said.contains(expected), "{names}: {code:?}: {said}");
    };
    check(
        "redis",
        "go",
        &[],
        "\"redis\" was passed: FileDescriptorName= is one of resp, resp-tls, nbd, grpc, thrift, http, https",
    );
    check("grpc", "deaf", &[], "\"grpc\" was passed: it does not listen");
    check("resp-tls", "go", &[], "certificate");
    check("https", "go", &[], "certificate");
    check("resp", "go", &["--no-resp"], "resp = false");
}

#[test]
fn a_server_without_the_redis_protocol_serves_the_others_and_ends_on_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Supervised::start(folder.path(), "http:nbd", "go", &["--no-resp"]);
    let mut nbd = UnixStream::connect(folder.path().join("passed.socket")).unwrap();
    nbd.set_read_timeout(Some(PATIENCE)).unwrap();
    begins_with(&mut nbd, b"NBDMAGIC");
    let mut http = server.connect(0);
    http.write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    begins_with(&mut http, b"HTTP/1.1 200");
    let sent = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let mut rest = String::new();
    server.printed.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("listening"), "{rest}");

    let mut nothing = Command::new(env!("CARGO_BIN_EXE_esker"));
    nothing.args(["serve", "--no-resp"]).current_dir(folder.path()).env_remove("ESKER_CONFIG");
    let output = nothing.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("nothing is served"), "{said}");
}

//! A server process that may be killed, and the programs of others, for the tests of disks in this folder.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use esker::volume::Layout;

pub const MIB: u64 = 1 << 20;

/// A number from the environment.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// A store with an image `disk` in `folder`/data.
pub fn make(folder: &Path, size: u64) {
    let store = open(folder);
    store.volumes().unwrap().create("disk", size, Layout::default(), 0).unwrap();
    store.close().unwrap();
}

pub fn open(folder: &Path) -> esker::Store {
    esker::Store::open(&format!("{}?size=2g", folder.join("data").display())).unwrap()
}

/// The binary, in `folder`, undisturbed by the environment.
pub fn esker(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_esker"));
    command.current_dir(folder).env_remove("ESKER_CONFIG").env("RUST_LOG", "warn");
    command
}

/// `esker serve` of `folder`/data, ended when dropped.
pub struct Running {
    pub child: Child,
    pub uri: String,
    /// Open as long as the server prints.
    _printed: BufReader<ChildStdout>,
}

impl Running {
    pub fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut child = esker(folder)
            .args(["serve", "--listen", "127.0.0.1:0", "--nbd", "127.0.0.1:0", "--store", "data"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut printed = BufReader::new(child.stdout.take().unwrap());
        let mut lines = printed.by_ref().lines().map_while(Result::ok);
        let uri = lines.find_map(|line| line.strip_prefix("disks      ").map(str::to_string));
        Self { child, uri: uri.expect("the server says where the disks are"), _printed: printed }
    }

    pub fn disk(&self, name: &str) -> String {
        format!("{}{name}", self.uri)
    }

    pub fn signal(&mut self, signal: &str) -> Option<i32> {
        send(&self.child, signal);
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

pub fn send(child: &Child, signal: &str) {
    let killed = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
}

/// Whether a program is there; if not, the test is skipped and says so.
pub fn have(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: {program} is not installed");
    }
    there
}

pub fn output(program: &str, arguments: &[&str]) -> Output {
    Command::new("timeout").arg("120").arg(program).args(arguments).output().unwrap()
}

/// Runs a program that must succeed; what it printed.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = output(program, arguments);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{printed}\n{complained}", output.status);
    printed
}

/// Waits for what follows from an act that is not answered.
pub fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "not so: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// `esker volume map`, undone when dropped.
pub struct Mapped {
    pub child: Child,
    pub file: std::path::PathBuf,
    _printed: BufReader<ChildStdout>,
}

impl Mapped {
    /// Maps `image` (of `folder`/data, or an address) to `folder`/`file`.
    pub fn start(folder: &Path, image: &str, file: &str, more: &[&str]) -> Self {
        let mut child = esker(folder)
            .args(["volume", "--store", "data", "map", image, "--mountpoint", file])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut printed = BufReader::new(child.stdout.take().unwrap());
        let mut lines = printed.by_ref().lines().map_while(Result::ok);
        let at = lines.find_map(|line| line.strip_prefix("at         ").map(str::to_string));
        let mapped = Self { child, file: folder.join(file), _printed: printed };
        assert!(at.is_some(), "the command does not say where the disk is");
        mapped
    }

    /// Ends it as Ctrl-C does; its exit code.
    pub fn end(mut self) -> Option<i32> {
        send(&self.child, "-INT");
        self.child.wait().unwrap().code()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let Ok(Some(_)) = self.child.try_wait() {
            return;
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("fusermount3").arg("-uz").arg(&self.file).output();
    }
}

/// Whether disks can be mapped to files here; if not, the test is skipped and says so.
pub fn can_map() -> bool {
    let fuse = Path::new("/dev/fuse").exists();
    if !fuse {
        eprintln!("skipped: there is no /dev/fuse");
    }
    fuse && have("nbdfuse") && have("fusermount3")
}

/// Set in the process that is inside the namespaces.
const INSIDE: &str = "ESKER_INSIDE";

/// Runs `test`, which is the body of the test of that name, in namespaces of mounts and processes that end with this
/// process, however it ends; `false` if that is not possible here, and it was not run.
pub fn apart(name: &str, test: impl FnOnce()) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        test();
        return true;
    }
    let apart = ["--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"];
    let possible = Command::new("setpriv").args(apart).arg("true").output();
    if !possible.is_ok_and(|output| output.status.success()) {
        return false;
    }
    let mut command = Command::new("setpriv");
    command.args(apart).arg(std::env::current_exe().unwrap());
    let output = command.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").output().unwrap();
    for bytes in [&output.stdout, &output.stderr] {
        // Sums are this process's to tell.
        let told = String::from_utf8_lossy(bytes);
        told.lines().filter(|line| !line.starts_with("test result")).for_each(|line| println!("{line}"));
    }
    assert!(output.status.success(), "{name}: {}", output.status);
    true
}

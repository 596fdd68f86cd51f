//! The programs that make a disk of an export: nbdfuse, a file without the kernel's client, and nbd-client, a block
//! device with it.
//!
//! [`Tool`] (looked for, and said what to install) → [`Tool::attach`] → [`Attached`] → detach → ended
//!
//! Invariants:
//! 1. A file that holds anything is not mapped over. One that was made for mapping is removed.
//! 2. Who maps to a file holds a lock on it until the disk is gone and flushed; who unmaps waits for that.
//! 3. A device that is mounted, or part of another, is not detached.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use esker_server::nbd::{Address, Place};
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::commands::serve::disks::client_failure;
use crate::exit::{Code, Failure};

/// How long attaching may take.
const ATTACH: Duration = Duration::from_secs(30);
/// How long unmapping waits for the disk to be flushed and its store closed.
const UNMAP: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(20);
/// Where programs of the system are that the search path of a user may lack.
const SYSTEM: [&str; 2] = ["/usr/sbin", "/sbin"];

/// What is mapped, and how.
pub(super) struct Export {
    pub(super) uri: String,
    pub(super) read_only: bool,
    pub(super) connections: u8,
}

/// A program that is there, and what it maps to.
pub(super) enum Tool {
    Fuse { program: PathBuf, unmount: PathBuf, file: Target },
    Kernel { program: PathBuf, device: PathBuf },
}

/// A file that is mapped over.
pub(super) struct Target {
    path: PathBuf,
    /// Keeps the lock.
    _file: File,
    made: bool,
}

/// What is mapped now.
pub(super) struct Attached {
    tool: Tool,
    /// nbdfuse; nbd-client ends when it is done.
    child: Option<Child>,
}

/// Why something is not detached.
pub(super) enum Detached {
    InUse(String),
    Failed(Failure),
}

fn failed(why: impl Into<String>) -> Failure {
    Failure::new(Code::Failure, why)
}

fn program(name: &str, install: &str) -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM.iter().map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
        .ok_or_else(|| failed(format!("{name} is not installed: {install}")))
}

const INSTALL_NBDFUSE: &str =
    "apt-get install libnbd-bin fuse3 (in later Debians: nbdfuse fuse3), or map to a --device by nbd-client";
const INSTALL_FUSE: &str = "apt-get install fuse3";
const INSTALL_NBD_CLIENT: &str =
    "apt-get install nbd-client, or map to a file by nbdfuse (Debian: libnbd-bin, in later ones nbdfuse, and fuse3)";

impl Tool {
    /// A file, by nbdfuse.
    pub(super) fn fuse(path: &Path) -> Result<Self, Failure> {
        let program = program("nbdfuse", INSTALL_NBDFUSE)?;
        let unmount = fusermount()?;
        if !Path::new("/dev/fuse").exists() {
            return Err(failed("the kernel has no FUSE now: modprobe fuse"));
        }
        Ok(Self::Fuse { program, unmount, file: Target::new(path)? })
    }

    /// A block device, by nbd-client.
    pub(super) fn kernel(device: &Path) -> Result<Self, Failure> {
        let program = program("nbd-client", INSTALL_NBD_CLIENT)?;
        match std::fs::metadata(device) {
            Ok(found) if found.file_type().is_block_device() => {}
            Ok(_) => return Err(Failure::usage(format!("{} is no block device", device.display()))),
            Err(error) => {
                let why = format!("{}: {error}; the kernel's client is there after: modprobe nbd", device.display());
                return Err(failed(why));
            }
        }
        if is_connected(device) {
            return Err(failed(format!("{} is mapped already; take another", device.display())));
        }
        Ok(Self::Kernel { program, device: device.to_path_buf() })
    }

    /// Attaches the export; `stop` says whether to give up.
    pub(super) fn attach(
        self,
        export: &Export,
        folder: &Path,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Attached, Failure> {
        let (mut command, ready) = match &self {
            Self::Fuse { program, file, .. } => {
                let ready = folder.join("nbdfuse.pid");
                let mut command = Command::new(program);
                command.arg("--connections").arg(export.connections.to_string()).arg("--pidfile").arg(&ready);
                command.args(export.read_only.then_some("--readonly")).arg(&file.path).arg(&export.uri);
                (command, Some(ready))
            }
            Self::Kernel { program, device } => {
                let place: Place = export.uri.parse().map_err(client_failure)?;
                let mut command = Command::new(program);
                command.args(kernel_arguments(&place, device, export));
                (command, None)
            }
        };
        // A group of its own: Ctrl-C is for this process, which detaches first.
        let mut child = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let name = command.get_program().display().to_string();
        let began = Instant::now();
        loop {
            let is_ready = match &ready {
                Some(file) => std::fs::metadata(file).is_ok_and(|file| file.len() > 0),
                None => false,
            };
            match child.try_wait()? {
                Some(status) if ready.is_none() && status.success() => return Ok(Attached { tool: self, child: None }),
                Some(status) => return Err(failed(format!("{name} did not attach {}: {status}", export.uri))),
                None if is_ready => return Ok(Attached { tool: self, child: Some(child) }),
                None => {}
            }
            let stopped = stop();
            if stopped || began.elapsed() > ATTACH {
                // It may end by itself just now.
                let _ = child.kill();
                let _ = child.wait();
                let why = if stopped { "stopped by a signal" } else { "not attached within 30 seconds" };
                return Err(failed(format!("{name}: {why}")));
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// The arguments of nbd-client, without an own address of the kernel's side: it ends when the device is connected.
fn kernel_arguments(place: &Place, device: &Path, export: &Export) -> Vec<String> {
    let device = device.display().to_string();
    let mut arguments = match &place.address {
        Address::Tcp(address) => vec![address.ip().to_string(), address.port().to_string(), device],
        Address::Unix(path) => vec!["-unix".into(), path.display().to_string(), device],
    };
    arguments.extend(["-name".into(), place.export.clone(), "-connections".into(), export.connections.to_string()]);
    arguments.extend(["-block-size".into(), "512".into()]);
    arguments.extend(export.read_only.then(|| "-readonly".into()));
    arguments
}

fn fusermount() -> Result<PathBuf, Failure> {
    program("fusermount3", INSTALL_FUSE)
}

/// Whether the kernel's client has a connection for a device.
fn is_connected(device: &Path) -> bool {
    let name = device.file_name().unwrap_or_default();
    Path::new("/sys/block").join(name).join("pid").exists()
}

impl Target {
    fn new(path: &Path) -> Result<Self, Failure> {
        let named = |error: std::io::Error| match error.kind() {
            ErrorKind::NotConnected => {
                failed(format!("{0}: left by a map that was killed: esker volume unmap {0}", path.display()))
            }
            _ => failed(format!("{}: {error}", path.display())),
        };
        let (file, made) = match OpenOptions::new().read(true).write(true).create_new(true).open(path) {
            Ok(file) => (file, true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let found = std::fs::metadata(path).map_err(named)?;
                if !found.is_file() || found.len() > 0 {
                    let why =
                        format!("{} is there and not an empty file: name another by --mountpoint", path.display());
                    return Err(Failure::usage(why));
                }
                (File::open(path).map_err(named)?, false)
            }
            Err(error) => return Err(named(error)),
        };
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| failed(format!("{} is just being mapped or unmapped", path.display())))?;
        Ok(Self { path: std::fs::canonicalize(path).map_err(named)?, _file: file, made })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.made {
            // Still mapped over, or gone: then it stays as it is.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Attached {
    /// The file or device.
    pub(super) fn path(&self) -> &Path {
        match &self.tool {
            Tool::Fuse { file, .. } => &file.path,
            Tool::Kernel { device, .. } => device,
        }
    }

    /// What `mount` needs to be told.
    pub(super) fn mount_options(&self) -> &'static str {
        match &self.tool {
            Tool::Fuse { .. } => " -o loop",
            Tool::Kernel { .. } => "",
        }
    }

    /// Whether the disk is gone.
    ///
    /// # Errors
    /// If the program says that it failed.
    pub(super) fn has_ended(&mut self) -> Result<bool, Failure> {
        let Some(child) = &mut self.child else { return Ok(!is_connected(self.path())) };
        match child.try_wait()? {
            None => Ok(false),
            Some(status) if status.success() => Ok(true),
            Some(status) => {
                // Killed, or ended by its own defect when the server went away: the mount would stay, and no
                // process would get an answer.
                self.give_up();
                Err(failed(format!("nbdfuse ended: {status}")))
            }
        }
    }

    /// Begins to detach, if no process uses the disk.
    pub(super) fn detach(&self) -> Result<(), Detached> {
        match &self.tool {
            Tool::Fuse { unmount, file, .. } => detach_file(unmount, &file.path),
            Tool::Kernel { program, device } => detach_device(program, device),
        }
    }

    /// Detaches a disk that is in use.
    pub(super) fn give_up(&mut self) {
        match &self.tool {
            Tool::Fuse { unmount, file, .. } => {
                let _ = quiet(Command::new(unmount).arg("-uz").arg(&file.path));
            }
            Tool::Kernel { program, device } => {
                let _ = quiet(Command::new(program).arg("-d").arg(device));
            }
        }
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None))) {
            self.give_up();
        }
    }
}

/// Runs a command; what it complained of if it failed.
fn quiet(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let complaint = String::from_utf8_lossy(&output.stderr).trim().to_string();
    if output.status.success() { Ok(()) } else { Err(complaint) }
}

/// Unmounts a file; the kernel refuses one that is open or under a loop device.
fn detach_file(unmount: &Path, path: &Path) -> Result<(), Detached> {
    quiet(Command::new(unmount).arg("-u").arg(path)).map_err(Detached::InUse)
}

fn detach_device(program: &Path, device: &Path) -> Result<(), Detached> {
    // nbd-client would take away a mounted device; opened like this, it must have no other user.
    let alone = OpenOptions::new().read(true).custom_flags(OFlags::EXCL.bits() as i32).open(device);
    match alone {
        Ok(file) => drop(file),
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            return Err(Detached::InUse("mounted, or part of another device".into()));
        }
        Err(error) => return Err(Detached::Failed(failed(format!("{}: {error}", device.display())))),
    }
    quiet(Command::new(program).arg("-d").arg(device)).map_err(|why| Detached::Failed(failed(why)))
}

/// Unmaps what another process maps, and waits until it has flushed and closed everything.
pub(super) fn unmap(path: &Path) -> Result<(), Failure> {
    let is_device = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    let detached = if is_device {
        let program = program("nbd-client", INSTALL_NBD_CLIENT)?;
        if !is_connected(path) {
            return Err(failed(format!("{} is not mapped", path.display())));
        }
        detach_device(&program, path)
    } else {
        detach_file(&fusermount()?, path)
    };
    detached.map_err(|detached| match detached {
        Detached::InUse(why) => failed(format!("{} is not mapped, or in use: {why}", path.display())),
        Detached::Failed(failure) => failure,
    })?;
    let began = Instant::now();
    while began.elapsed() < UNMAP {
        let over = if is_device {
            !is_connected(path)
        } else {
            match File::open(path) {
                Err(error) => error.kind() == ErrorKind::NotFound,
                // The process that mapped it holds the lock to its end, also to a bad one.
                Ok(file) => flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok(),
            }
        };
        if over {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
    Err(failed(format!("{} is unmapped, but the process that mapped it does not end", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_client_is_told_where_the_export_is() {
        for (uri, read_only, expected) in [
            (
                "nbd+unix:///disk@a?socket=/run/x.sock",
                true,
                "-unix /run/x.sock /dev/nbd3 -name disk@a -connections 4 -block-size 512 -readonly",
            ),
            ("nbd://[::1]/disk", false, "::1 10809 /dev/nbd3 -name disk -connections 4 -block-size 512"),
        ] {
            let export = Export { uri: uri.into(), read_only, connections: 4 };
            let arguments = kernel_arguments(&uri.parse().unwrap(), "/dev/nbd3".as_ref(), &export);
            assert_eq!(arguments.join(" "), expected);
        }
    }

    #[test]
    fn what_is_missing_is_said_with_the_package_that_has_it() {
        let error = program("no-such-program", INSTALL_NBDFUSE).unwrap_err().to_string();
        assert!(error.contains("no-such-program is not installed: apt-get install libnbd-bin fuse3"), "{error}");
    }
}

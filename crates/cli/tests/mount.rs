//! ext4 and XFS on a mapped disk: a tree unpacked and compared, a snapshot taken while a program writes, a clone of it
//! mounted, rollback.
//!
//! Mounts, loop devices and all processes live in namespaces of their own, which end with the test whatever ends it.
//! Skipped, with a line that says so, where that or FUSE is not possible; `scripts/test` installs the programs.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use esker::volume::Layout;
use esker_server::nbd::{Config, Handle, Locking, Place, Server, VolumeExports};

use support::{MIB, Mapped, apart, can_map, have, open, output, run, soon};

/// Files that are synced before the snapshot, and written after it.
const FILES: u64 = 60;

fn can_mount(program: &str, package: &str) -> bool {
    let there = |path: &str, what: &str| {
        let there = Path::new(path).exists();
        if !there {
            eprintln!("skipped: {what}");
        }
        there
    };
    there(program, &format!("{package} is not installed"))
        && there("/dev/loop-control", "there are no loop devices")
        && can_map()
        && have("fstrim")
}

/// A file system, and what is special about it.
struct Kind {
    make: &'static [&'static str],
    /// Options for mounting a copy beside the original.
    copy: &'static str,
    check: &'static [&'static str],
    /// Says whether a journal has to be replayed.
    journal: Option<(&'static [&'static str], &'static str)>,
}

/// The store's server inside this process, so that a snapshot can be taken beside it.
struct Serving {
    exports: Arc<VolumeExports>,
    socket: PathBuf,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    fn start(store: &esker::Store, folder: &Path) -> Self {
        let locking = Locking { owner: "nbd/test".into(), alone: true };
        let exports = Arc::new(VolumeExports::new(store.volumes().unwrap(), locking));
        let socket = folder.join("nbd.sock");
        let config = Config { unix_socket: Some(socket.clone()), ..Config::default() };
        let server = Server::bind(config, Arc::clone(&exports) as Arc<_>).unwrap();
        let handle = server.handle();
        let thread = Some(std::thread::spawn(move || server.run().unwrap()));
        Self { exports, socket, handle, thread }
    }

    fn map(&self, folder: &Path, image: &str) -> Mapped {
        let address = esker_server::nbd::Address::Unix(self.socket.clone());
        let place = Place::new(address, image);
        Mapped::start(folder, &place.to_string(), &format!("{image}.raw"), &[])
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.handle.shutdown();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

/// A mounted file system.
struct Mounted(PathBuf);

impl Mounted {
    fn new(disk: &Path, at: PathBuf, options: &str) -> Self {
        std::fs::create_dir_all(&at).unwrap();
        run("mount", &["-o", options, text(disk), text(&at)]);
        Self(at)
    }

    fn end(self) {
        // The program that wrote has just closed the last file.
        soon("no program uses it any more", || output("umount", &[text(&self.0)]).status.success());
        std::mem::forget(self);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What file `number` of the writer holds.
fn content(number: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(number);
    let len = rng.usize(1..40_000);
    std::iter::repeat_with(|| rng.u8(..)).take(len).collect()
}

/// Writes and syncs one file after another.
fn write_files(folder: &Path, synced: &AtomicU64, stop: &AtomicBool) {
    std::fs::create_dir_all(folder).unwrap();
    for number in 1.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let mut file = std::fs::File::create(folder.join(number.to_string())).unwrap();
        file.write_all(&content(number)).unwrap();
        file.sync_all().unwrap();
        synced.store(number, Ordering::SeqCst);
    }
}

/// What was synced before the snapshot is there as it was; what came after it was begun, `after` and later, is not.
fn check_files(folder: &Path, synced: u64, after: u64) {
    for number in 1..=synced {
        let found = std::fs::read(folder.join(number.to_string())).unwrap();
        assert!(found == content(number), "file {number} of {synced} that were synced differs");
    }
    assert!(!folder.join(after.to_string()).exists(), "file {after} was made after the snapshot");
}

fn same_tree(one: &Path, other: &Path) {
    run("diff", &["-r", "--no-dereference", text(one), text(other)]);
}

fn go(kind: &Kind) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let store = open(folder);
    let volumes = store.volumes().unwrap();
    volumes.create("disk", 512 * MIB, Layout::default(), 0).unwrap();
    let serving = Serving::start(&store, folder);
    let check = |disk: &Path| {
        let (program, arguments) = kind.check.split_first().unwrap();
        run(program, &[arguments, &[text(disk)]].concat())
    };

    let disk = serving.map(folder, "disk");
    let (program, arguments) = kind.make.split_first().unwrap();
    run(program, &[arguments, &[text(&disk.file)]].concat());
    let mounted = Mounted::new(&disk.file, folder.join("mounted"), "loop");
    let tree = mounted.0.join("tree");
    std::fs::create_dir(&tree).unwrap();
    let archive = folder.join("tree.tar");
    run("tar", &["-C", text(source), "-cf", text(&archive), "crates", "docs"]);
    run("tar", &["-C", text(&tree), "-xf", text(&archive)]);
    let unpacked = folder.join("unpacked");
    std::fs::create_dir(&unpacked).unwrap();
    run("tar", &["-C", text(&unpacked), "-xf", text(&archive)]);
    run("sync", &["-f", text(&tree)]);
    same_tree(&unpacked, &tree);

    let (synced, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let reached = |number: u64| soon("files are written", || synced.load(Ordering::SeqCst) >= number);
    let (before, after) = std::thread::scope(|scope| {
        scope.spawn(|| write_files(&mounted.0.join("files"), &synced, &stop));
        reached(FILES);
        let before = synced.load(Ordering::SeqCst);
        serving.exports.image("disk").unwrap().snapshot_create("live", 0).unwrap();
        let after = synced.load(Ordering::SeqCst) + 2;
        reached(after + FILES);
        stop.store(true, Ordering::SeqCst);
        (before, after)
    });
    println!("snapshot after {before} synced files, {} in the end", synced.load(Ordering::SeqCst));

    // A clone of the snapshot, beside the original that goes on.
    serving.exports.image("disk").unwrap().snapshot_protect("live").unwrap();
    volumes.clone_image("disk", "live", "copy", 0).unwrap();
    let copy = serving.map(folder, "copy");
    if let Some((command, said)) = kind.journal {
        let (program, arguments) = command.split_first().unwrap();
        let state = run(program, &[arguments, &[text(&copy.file)]].concat());
        assert!(state.contains(said), "the journal of a snapshot that was taken in use needs replay: {state}");
    }
    let second = Mounted::new(&copy.file, folder.join("copied"), kind.copy);
    check_files(&second.0.join("files"), before, after);
    same_tree(&unpacked, &second.0.join("tree"));
    std::fs::write(second.0.join("own"), "and writable").unwrap();
    second.end();
    check(&copy.file);
    assert_eq!(copy.end(), Some(0));

    assert!(mounted.0.join("files").join(after.to_string()).exists() && !mounted.0.join("own").exists());
    mounted.end();
    check(&disk.file);
    assert_eq!(disk.end(), Some(0));

    // Back to the snapshot: no client has the disk, so its lock is free.
    let image = volumes.image("disk").unwrap();
    soon("the lock is free", || image.refresh().is_ok() && image.lock_info().is_none());
    assert!(image.rollback("live", &mut |_, _| true).unwrap());
    let disk = serving.map(folder, "disk");
    let mounted = Mounted::new(&disk.file, folder.join("mounted"), "loop");
    check_files(&mounted.0.join("files"), before, after);
    same_tree(&unpacked, &mounted.0.join("tree"));

    // What is deleted is discarded through all layers.
    let taken = || serving.exports.image("disk").unwrap().stored_bytes().unwrap();
    let big = mounted.0.join("big");
    std::fs::write(&big, vec![0x5a; 32 * MIB as usize]).unwrap();
    run("sync", &["-f", text(&big)]);
    let full = taken();
    std::fs::remove_file(&big).unwrap();
    run("sync", &["-f", text(&mounted.0)]);
    // XFS frees the blocks of a removed file a little later, by itself.
    soon("the blocks of the removed file are discarded", || {
        run("fstrim", &[text(&mounted.0)]);
        taken() + 28 * MIB < full
    });
    mounted.end();
    check(&disk.file);
    assert_eq!(disk.end(), Some(0));
    drop(serving);
    store.close().unwrap();
}

#[test]
fn ext4_on_a_mapped_disk_goes_through_snapshot_clone_and_rollback() {
    let test = || {
        if !can_mount("/sbin/mkfs.ext4", "e2fsprogs") {
            return;
        }
        go(&Kind {
            make: &["mkfs.ext4", "-q", "-F"],
            copy: "loop",
            check: &["e2fsck", "-fn"],
            journal: Some((&["dumpe2fs", "-h"], "needs_recovery")),
        });
    };
    if !apart("ext4_on_a_mapped_disk_goes_through_snapshot_clone_and_rollback", test) {
        eprintln!("skipped: mounts need root and namespaces");
    }
}

#[test]
fn xfs_on_a_mapped_disk_goes_through_snapshot_clone_and_rollback() {
    let test = || {
        if !can_mount("/sbin/mkfs.xfs", "xfsprogs") {
            return;
        }
        go(&Kind {
            make: &["mkfs.xfs", "-q", "-f"],
            copy: "loop,nouuid",
            check: &["xfs_repair", "-n", "-f"],
            journal: None,
        });
    };
    if !apart("xfs_on_a_mapped_disk_goes_through_snapshot_clone_and_rollback", test) {
        eprintln!("skipped: mounts need root and namespaces");
    }
}

//! SIGKILL of a real process under load: what it acknowledged is there afterwards, and the state is a prefix of commit
//! order.
//!
//! `ESKER_KILL_ROUNDS` sets the rounds (4 by default).

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use esker_file::{Error, FileStore, Options};
use esker_store::{Change, Compare, Condition, Error as StoreError, ObjectId, ObjectStore, SlotScan, Transaction};

/// Set in the process that is to die: the store's folder.
const MARK: &str = "ESKER_TEST_DIES";
const THREADS: u64 = 4;

fn open(path: &Path) -> FileStore {
    FileStore::open(path, Options { checkpoint_bytes: 1 << 20, folder_files_max: 8, ..Options::default() }).unwrap()
}

fn id(name: impl Into<Bytes>) -> ObjectId {
    ObjectId::new("c".into(), name)
}

fn count(store: &FileStore) -> u64 {
    let count = store.xattr(&id("counter"), b"n").wait().unwrap();
    count.map_or(0, |count| u64::from_le_bytes(count[..].try_into().unwrap()))
}

fn content(number: u64) -> Vec<u8> {
    let mut content = vec![0; 3_000 + number as usize % 5_000];
    fastrand::Rng::with_seed(number).fill(&mut content);
    content
}

/// Transaction `number` in commit order: only after all before it. Its bytes, at times a clone of them, a slot, the
/// count.
fn transaction(number: u64) -> Transaction {
    let object = id(format!("object {}", number % 40));
    let copy = id(format!("copy {}", number % 7));
    let (name, value) = (Bytes::from_static(b"n"), Bytes::copy_from_slice(&(number + 1).to_le_bytes()));
    let condition = Condition::XattrCompare {
        name: name.clone(),
        compare: Compare::Equal,
        value: number,
        absent_holds: number == 0,
    };
    let txn = Transaction::new()
        .create_collection(&"c".into())
        .guard(&id("counter"), condition)
        .change(&id("counter"), Change::XattrSet { name, value })
        .change(&id("log"), Change::SlotSet { index: number, value: number.to_string().into() })
        .change(&object, Change::Truncate { size: 0 })
        .change(&object, Change::Write { offset: 0, data: content(number).into() });
    if number.is_multiple_of(5) { txn.change(&object, Change::CloneTo { to: copy }) } else { txn }
}

/// Writes until it is killed, and tells of each acknowledged number.
fn load(path: &Path) {
    let store = open(path);
    println!("ready");
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let next = count(&store);
                    match store.submit(transaction(next)).wait() {
                        Ok(_) => println!("done {next}"),
                        Err(StoreError::GuardFailed { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
}

fn verify(store: &FileStore, acknowledged: u64) -> u64 {
    let count = count(store);
    assert!(count >= acknowledged, "{acknowledged} transactions were acknowledged, {count} are there");
    let mut slots = Vec::new();
    while slots.len() < count as usize {
        let range = slots.len() as u64..u64::MAX;
        let page = store.slot_scan(&id("log"), &SlotScan { range, reverse: false, limit: 10_000, keys_only: true });
        let page = page.wait().unwrap();
        assert!(!page.is_empty(), "{} of {count} slots are there", slots.len());
        slots.extend(page.into_iter().map(|(index, _)| index));
    }
    assert!(slots.into_iter().eq(0..count), "the slots are not those of the first {count} transactions");
    for number in count.saturating_sub(40)..count {
        let found = store.read(&id(format!("object {}", number % 40)), 0..1 << 20).wait().unwrap();
        assert!(found == content(number), "object of transaction {number}, {count} are there");
        if number.is_multiple_of(5) && number + 35 >= count {
            let found = store.read(&id(format!("copy {}", number % 7)), 0..1 << 20).wait().unwrap();
            assert!(found == content(number), "copy of transaction {number}, {count} are there");
        }
    }
    count
}

/// A file system in a file, mounted until this is dropped.
struct Mounted {
    folder: tempfile::TempDir,
}

impl Mounted {
    /// `None` where that is not possible, with a line that says so.
    fn new(make: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let (disk, at) = (folder.path().join("disk"), folder.path().join("mounted"));
        std::fs::File::create(&disk).unwrap().set_len(512 << 20).unwrap();
        std::fs::create_dir(&at).unwrap();
        let made = Command::new(make[0]).args(&make[1..]).arg(&disk).stdout(Stdio::null()).status();
        let mounted = made.is_ok_and(|status| status.success())
            && Command::new("mount")
                .args(["-o", "loop"])
                .arg(&disk)
                .arg(&at)
                .status()
                .is_ok_and(|status| status.success());
        if !mounted {
            eprintln!("skipped: {} or mounting is not possible here", make[0]);
        }
        mounted.then_some(Self { folder })
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("mounted")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let status = Command::new("umount").arg(self.path()).status();
        assert!(status.is_ok_and(|status| status.success()) || std::thread::panicking(), "cannot unmount");
    }
}

/// Kills the writer so many times, which is this test's process started again.
fn survives(test: &str, path: &Path, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut total = 0;
    let rounds = std::env::var("ESKER_KILL_ROUNDS").ok().and_then(|value| value.parse().ok()).unwrap_or(4);
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(MARK, path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("ready"))).unwrap().unwrap();
        let refused = FileStore::open(path, Options::default());
        assert!(matches!(refused, Err(Error::InUse { .. })), "a second process got in: {refused:?}");
        let reader = std::thread::spawn(move || {
            let numbers = lines.map_while(Result::ok).filter_map(|line| line.strip_prefix("done ")?.parse().ok());
            numbers.max().map_or(0, |last: u64| last + 1)
        });
        std::thread::sleep(Duration::from_millis(rng.u64(50..600)));
        child.kill().unwrap();
        child.wait().unwrap();
        let acknowledged = reader.join().unwrap();
        let store = open(path);
        let found = verify(&store, acknowledged.max(total));
        println!("round {round}: {acknowledged} acknowledged, {found} found");
        total = found;
        store.close().unwrap();
    }
    assert!(total > 30, "only {total} transactions in all");
}

#[test]
fn acknowledged_writes_survive_kill_9_under_load() {
    if let Ok(path) = std::env::var(MARK) {
        load(Path::new(&path));
    }
    let folder = tempfile::tempdir().unwrap();
    survives("acknowledged_writes_survive_kill_9_under_load", &folder.path().join("store"), 5);
}

#[test]
fn acknowledged_writes_survive_on_ext4() {
    if let Ok(path) = std::env::var(MARK) {
        load(Path::new(&path));
    }
    let Some(mounted) = Mounted::new(&["mkfs.ext4", "-q", "-F"]) else { return };
    survives("acknowledged_writes_survive_on_ext4", &mounted.path().join("store"), 6);
}

#[test]
fn acknowledged_writes_survive_on_xfs() {
    if let Ok(path) = std::env::var(MARK) {
        load(Path::new(&path));
    }
    let Some(mounted) = Mounted::new(&["mkfs.xfs", "-q", "-f"]) else { return };
    survives("acknowledged_writes_survive_on_xfs", &mounted.path().join("store"), 7);
}

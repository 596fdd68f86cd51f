//! A file system in memory that does only what it promises: what was not synced may be lost, in any part and order,
//! writes may be torn, and operations may fail. Everything follows from a seed.
//!
//! operations → what a process sees; [`FaultyFiles::crash`] → what a power cut leaves
//!
//! Invariants:
//! 1. Content that was synced survives, and so do names once their folder was synced.
//! 2. Of each 512 bytes written since, a crash keeps the new or the old. Names go back to some moment since their
//!    folder's last sync.
//! 3. A rename leaves the old name or the new one. Folders themselves survive.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, Result};
use std::sync::Arc;

use esker_file::files::{FileIo, Files};
use fastrand::Rng;
use parking_lot::Mutex;

const SECTOR: u64 = 512;

/// Sparse bytes, by sectors.
#[derive(Clone, Debug, Default)]
struct Content {
    len: u64,
    sectors: BTreeMap<u64, [u8; SECTOR as usize]>,
}

#[derive(Debug, Default)]
struct Inode {
    now: Content,
    synced: Content,
    /// Sectors that differ, perhaps, from what was synced, and will be synced next.
    touched: BTreeSet<u64>,
    /// Sectors that a sync has failed to write and left as if it had.
    false_clean: BTreeSet<u64>,
}

type Names = BTreeMap<String, usize>;

#[derive(Clone, Debug)]
enum NameOp {
    Add(String, usize),
    Remove(String),
    Rename(String, String, usize),
}

#[derive(Debug)]
struct State {
    inodes: Vec<Inode>,
    names: Names,
    synced_names: Names,
    /// Changes of names since their folder was synced, in order, by folder.
    unsynced: Vec<(String, NameOp)>,
    rng: Rng,
    /// Writing operations until the power goes; nothing works afterwards.
    until_crash: Option<u64>,
    /// Writing operations until one fails; the next ones work.
    until_failure: Option<u64>,
    failed: Option<&'static str>,
    /// Writing operations until one panics; the next ones work.
    until_panic: Option<u64>,
    /// Writes to object files while the journal held something unsynced.
    unsynced_applied: u64,
}

/// The file system. Clones are the same one.
#[derive(Clone, Debug)]
pub struct FaultyFiles(Arc<Mutex<State>>);

#[derive(Debug)]
struct FaultyFile {
    state: Arc<Mutex<State>>,
    inode: usize,
}

/// Cuts a range at sectors: sector, place in it, place in the range, length.
fn pieces(offset: u64, total: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let place = offset + at as u64;
        let within = (place % SECTOR) as usize;
        let len = (SECTOR as usize - within).min(total - at);
        let piece = (place / SECTOR, within, at, len);
        at += len;
        (len > 0).then_some(piece)
    })
}

fn folder_of(path: &str) -> String {
    path.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_string())
}

impl Content {
    fn write(&mut self, offset: u64, data: &[u8], touched: &mut BTreeSet<u64>) {
        for (sector, within, at, len) in pieces(offset, data.len()) {
            let bytes = self.sectors.entry(sector).or_insert([0; SECTOR as usize]);
            bytes[within..within + len].copy_from_slice(&data[at..at + len]);
            touched.insert(sector);
        }
        self.len = self.len.max(offset + data.len() as u64);
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let end = (offset + buffer.len() as u64).min(self.len);
        let total = end.saturating_sub(offset) as usize;
        for (sector, within, at, len) in pieces(offset, total) {
            match self.sectors.get(&sector) {
                Some(bytes) => buffer[at..at + len].copy_from_slice(&bytes[within..within + len]),
                None => buffer[at..at + len].fill(0),
            }
        }
        total
    }

    fn set_len(&mut self, len: u64, touched: &mut BTreeSet<u64>) {
        if len < self.len {
            let first = len / SECTOR;
            let cut: Vec<u64> = self.sectors.range(first..).map(|(sector, _)| *sector).collect();
            for sector in cut {
                touched.insert(sector);
                if sector == first && !len.is_multiple_of(SECTOR) {
                    if let Some(bytes) = self.sectors.get_mut(&sector) {
                        bytes[(len % SECTOR) as usize..].fill(0);
                    }
                } else {
                    self.sectors.remove(&sector);
                }
            }
        }
        self.len = len;
    }
}

fn apply(names: &mut Names, op: &NameOp) {
    match op {
        NameOp::Add(path, inode) => drop(names.insert(path.clone(), *inode)),
        NameOp::Remove(path) => drop(names.remove(path)),
        NameOp::Rename(from, to, inode) => {
            names.remove(from);
            names.insert(to.clone(), *inode);
        }
    }
}

impl State {
    /// Counts an operation that writes; fails it if its time has come.
    fn step(&mut self, what: &'static str) -> Result<()> {
        if self.until_crash == Some(0) {
            return Err(Error::other("the power is gone"));
        }
        if let Some(left) = &mut self.until_crash {
            *left -= 1;
        }
        if self.until_failure == Some(0) {
            self.until_failure = None;
            self.failed = Some(what);
            return Err(Error::other("a fault of the test"));
        }
        if let Some(left) = &mut self.until_failure {
            *left -= 1;
        }
        if self.until_panic == Some(0) {
            (self.until_panic, self.failed) = (None, Some(what));
            panic!("a panic of the test");
        }
        if let Some(left) = &mut self.until_panic {
            *left -= 1;
        }
        Ok(())
    }

    fn name_of(&self, inode: usize) -> String {
        self.names.iter().find(|(_, at)| **at == inode).map_or(String::new(), |(name, _)| name.clone())
    }

    fn name(&mut self, folder: String, op: NameOp) {
        apply(&mut self.names, &op);
        self.unsynced.push((folder, op));
    }
}

impl FaultyFiles {
    /// An empty file system.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            inodes: Vec::new(),
            names: Names::new(),
            synced_names: Names::new(),
            unsynced: Vec::new(),
            rng: Rng::with_seed(seed),
            until_crash: None,
            until_failure: None,
            failed: None,
            until_panic: None,
            unsynced_applied: 0,
        })))
    }

    /// The power goes before the writing operation after so many more.
    pub fn crash_after(&self, operations: u64) {
        self.0.lock().until_crash = Some(operations);
    }

    /// The writing operation after so many more fails, once. What it should have done is done in part or not at all.
    pub fn fail_after(&self, operations: u64) {
        self.0.lock().until_failure = Some(operations);
    }

    /// The writing operation after so many more panics, once.
    pub fn panic_after(&self, operations: u64) {
        self.0.lock().until_panic = Some(operations);
    }

    /// Which kind of operation has failed.
    pub fn failed(&self) -> Option<&'static str> {
        self.0.lock().failed
    }

    /// Writes to object files while the journal held something that was not synced.
    pub fn unsynced_applied(&self) -> u64 {
        self.0.lock().unsynced_applied
    }

    /// Number of files under `prefix`.
    pub fn count(&self, prefix: &str) -> usize {
        self.0.lock().names.keys().filter(|name| name.starts_with(prefix)).count()
    }

    /// The process is gone, the power is not: everything is as it was seen last.
    pub fn revive(&self) {
        let mut state = self.0.lock();
        (state.until_crash, state.until_failure, state.until_panic) = (None, None, None);
    }

    /// Flips a bit of a file at `offset`, durably.
    pub fn flip(&self, path: &str, offset: u64) {
        let mut state = self.0.lock();
        let inode = state.names[path];
        let inode = &mut state.inodes[inode];
        for content in [&mut inode.now, &mut inode.synced] {
            let mut byte = [0];
            content.read(offset, &mut byte);
            content.write(offset, &[byte[0] ^ 16], &mut Default::default());
        }
    }

    /// What a power cut leaves; the old file system's handles must not be used any more.
    pub fn crash(&self) -> Self {
        let mut state = self.0.lock();
        let state = &mut *state;
        let rng = &mut state.rng;
        let mut inodes = Vec::new();
        for inode in &state.inodes {
            let mut kept = inode.synced.clone();
            // All, nothing, or any part of what was not synced.
            let chance = [0, 25, 50, 75, 100][rng.usize(..5)];
            for sector in &inode.touched {
                if rng.u8(..100) < chance {
                    match inode.now.sectors.get(sector) {
                        Some(bytes) => drop(kept.sectors.insert(*sector, *bytes)),
                        None => drop(kept.sectors.remove(sector)),
                    }
                    kept.len = kept.len.max(((sector + 1) * SECTOR).min(inode.now.len));
                }
            }
            if rng.u8(..100) < chance {
                kept.set_len(inode.now.len, &mut Default::default());
            }
            inodes.push(Inode { now: kept.clone(), synced: kept, ..Inode::default() });
        }
        let mut folders: BTreeMap<&String, Vec<&NameOp>> = BTreeMap::new();
        for (folder, op) in &state.unsynced {
            folders.entry(folder).or_default().push(op);
        }
        let keep: BTreeMap<&String, usize> =
            folders.iter().map(|(folder, ops)| (*folder, rng.usize(..=ops.len()))).collect();
        let (mut names, mut done) = (state.synced_names.clone(), BTreeMap::new());
        for (folder, op) in &state.unsynced {
            let done: &mut usize = done.entry(folder).or_default();
            if *done < keep[folder] {
                apply(&mut names, op);
            }
            *done += 1;
        }
        let after = Self::new(rng.u64(..));
        *after.0.lock() = State {
            inodes,
            synced_names: names.clone(),
            names,
            unsynced: Vec::new(),
            rng: rng.fork(),
            until_crash: None,
            until_failure: None,
            failed: None,
            until_panic: None,
            unsynced_applied: 0,
        };
        after
    }
}

impl Files for FaultyFiles {
    fn open(&self, path: &str, create: bool) -> Result<Option<Arc<dyn FileIo>>> {
        let mut state = self.0.lock();
        if state.until_crash == Some(0) {
            return Err(Error::other("the power is gone"));
        }
        let inode = match state.names.get(path).copied() {
            Some(inode) => inode,
            None if create => {
                state.step("create")?;
                state.inodes.push(Inode::default());
                let inode = state.inodes.len() - 1;
                state.name(folder_of(path), NameOp::Add(path.to_string(), inode));
                inode
            }
            None => return Ok(None),
        };
        Ok(Some(Arc::new(FaultyFile { state: Arc::clone(&self.0), inode })))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut state = self.0.lock();
        state.step("rename")?;
        let Some(inode) = state.names.get(from).copied() else { return Err(std::io::ErrorKind::NotFound.into()) };
        // Durable with the folder that it goes to, whatever became of the old name until then.
        state.unsynced.retain(|(_, op)| !matches!(op, NameOp::Add(path, _) if path == from));
        state.name(folder_of(to), NameOp::Rename(from.to_string(), to.to_string(), inode));
        Ok(())
    }

    fn remove(&self, path: &str) -> Result<()> {
        let mut state = self.0.lock();
        state.step("remove")?;
        if state.names.contains_key(path) {
            state.name(folder_of(path), NameOp::Remove(path.to_string()));
        }
        Ok(())
    }

    fn make_folder(&self, _path: &str) -> Result<()> {
        self.0.lock().step("make a folder")
    }

    fn list(&self, path: &str) -> Result<Vec<String>> {
        let state = self.0.lock();
        let names = state.names.keys().filter(|name| folder_of(name) == path);
        Ok(names.map(|name| name.rsplit('/').next().unwrap().to_string()).collect())
    }

    fn sync_folder(&self, path: &str) -> Result<()> {
        let mut state = self.0.lock();
        state.step("sync a folder")?;
        let State { unsynced, synced_names, .. } = &mut *state;
        unsynced.retain(|(folder, op)| {
            if folder == path {
                apply(synced_names, op);
            }
            folder != path
        });
        Ok(())
    }

    fn lock(&self) -> Result<bool> {
        Ok(true)
    }

    fn unlock(&self) {}
}

impl FileIo for FaultyFile {
    fn len(&self) -> Result<u64> {
        Ok(self.state.lock().inodes[self.inode].now.len)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let state = self.state.lock();
        if state.until_crash == Some(0) {
            return Err(Error::other("the power is gone"));
        }
        Ok(state.inodes[self.inode].now.read(offset, buffer))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        let (name, journal) = (state.name_of(self.inode), state.names.get("journal").copied());
        if name.starts_with("objects/") && journal.is_some_and(|journal| !state.inodes[journal].touched.is_empty()) {
            state.unsynced_applied += 1;
        }
        let stepped = state.step("write");
        // A write that fails, or that the power cut meets, is done in part.
        let done = if stepped.is_ok() { data.len() } else { state.rng.usize(..=data.len()) };
        let dead = state.until_crash == Some(0) && stepped.is_err();
        let Inode { now, touched, .. } = &mut state.inodes[self.inode];
        if !dead {
            now.write(offset, &data[..done], touched);
        }
        stepped
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.step("set the length")?;
        let Inode { now, touched, .. } = &mut state.inodes[self.inode];
        now.set_len(len, touched);
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.step("punch")?;
        let Inode { now, touched, .. } = &mut state.inodes[self.inode];
        let end = (offset + len).min(now.len);
        let met: Vec<u64> = now.sectors.range(offset / SECTOR..=end / SECTOR).map(|(sector, _)| *sector).collect();
        for sector in met {
            let (first, last) = (offset.max(sector * SECTOR), end.min((sector + 1) * SECTOR));
            if first < last {
                now.write(first, &vec![0; (last - first) as usize], touched);
            }
        }
        Ok(())
    }

    fn forget(&self) -> Result<()> {
        let mut state = self.state.lock();
        let Inode { now, synced, touched, false_clean } = &mut state.inodes[self.inode];
        for sector in std::mem::take(false_clean) {
            if touched.contains(&sector) {
                continue;
            }
            match synced.sectors.get(&sector) {
                Some(bytes) => drop(now.sectors.insert(sector, *bytes)),
                None => drop(now.sectors.remove(&sector)),
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.state.lock();
        let stepped = state.step("sync");
        if stepped.is_err() && state.until_crash == Some(0) {
            return stepped;
        }
        let State { inodes, rng, .. } = &mut *state;
        let Inode { now, synced, touched, false_clean } = &mut inodes[self.inode];
        for sector in std::mem::take(touched) {
            // After a sync that failed the system takes all for clean, what it wrote and what it did not.
            if stepped.is_err() && rng.bool() {
                false_clean.insert(sector);
                continue;
            }
            match now.sectors.get(&sector) {
                Some(bytes) => drop(synced.sectors.insert(sector, *bytes)),
                None => drop(synced.sectors.remove(&sector)),
            }
        }
        synced.len = now.len;
        stepped
    }
}

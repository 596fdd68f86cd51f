//! The files that hold objects' bytes: where they stand, what is done to them, and what of it is not durable yet.
//!
//! [`FileOp`] → [`Data::execute`] → written, not synced → [`Data::sync`] (at a checkpoint) → durable
//!
//! A file is named after its object's number and part, and stands in a folder below `objects` that follows from a hash
//! of both, one digit of the hash for each level. A folder with too many files is split into up to sixteen.
//!
//! Operations are done again after a crash, in order, from the last checkpoint. Writing again is harmless. Copying is
//! not: its source may have changed since. So a copy is made under another name, synced, and given its own name durably
//! before the next operation begins; where the name is there already, the copy is not made again.
//!
//! Invariants:
//! 1. Every file that was written since the last checkpoint stays open until it is synced, so that no failure of
//!    writing it back is missed.
//! 2. What lies in a hole of its object has no meaning in a file.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use esker_store::{DataRun, Error, Result};
use parking_lot::Mutex;

use crate::apply::{FileOp, PART_BYTES};
use crate::files::{FileIo, Files};
use crate::table::{self, Folder, FolderState, Rows};

/// The folder of all object files.
pub const OBJECTS: &str = "objects";
/// The folder of copies in the making.
pub const STAGING: &str = "staging";
/// Clean files that are kept open.
const CLEAN_FILES_MAX: usize = 128;
/// Files that wait to be synced, at most: all of them are open.
const DIRTY_FILES_MAX: usize = 400;
/// Bytes that are copied at a time.
const COPY_BYTES: u64 = 1 << 20;

type Key = (u64, u64);

/// Object files.
#[derive(Debug)]
pub struct Data {
    files: Arc<dyn Files>,
    folders: BTreeMap<String, Folder>,
    changed_folders: BTreeSet<String>,
    clean: Mutex<HashMap<Key, Arc<dyn FileIo>>>,
    dirty: HashMap<Key, Arc<dyn FileIo>>,
    dirty_folders: BTreeSet<String>,
    unlinked_folders: BTreeSet<String>,
}

/// An error of a file operation, with its place.
fn io(what: &str, path: &str, error: std::io::Error) -> Error {
    Error::io(format!("{what} {path}"), error)
}

/// Spreads numbers, which follow each other, over folders.
fn hash(number: u64, part: u64) -> u64 {
    let mut hash = number.wrapping_add(part.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash ^= hash >> 29;
    hash = hash.wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 32)
}

fn file_name(key: Key) -> String {
    format!("{:016x}.{:x}", key.0, key.1)
}

fn parse_name(name: &str) -> Option<Key> {
    let (number, part) = name.split_once('.')?;
    Some((u64::from_str_radix(number, 16).ok()?, u64::from_str_radix(part, 16).ok()?))
}

fn digit(key: Key, level: usize) -> char {
    char::from_digit((hash(key.0, key.1) >> (level * 4) & 15) as u32, 16).unwrap_or('0')
}

fn full(folder: &str) -> String {
    if folder.is_empty() { OBJECTS.to_string() } else { format!("{OBJECTS}/{folder}") }
}

fn below(folder: &str, digit: char) -> String {
    if folder.is_empty() { digit.to_string() } else { format!("{folder}/{digit}") }
}

fn level(folder: &str) -> usize {
    folder.len().div_ceil(2)
}

/// Cuts `range` where files end: part, offset in it, offset in the range, length.
fn pieces(range: Range<u64>) -> impl Iterator<Item = (u64, u64, u64, u64)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let len = (PART_BYTES - at % PART_BYTES).min(range.end.checked_sub(at)?);
        let piece = (at / PART_BYTES, at % PART_BYTES, at - range.start, len);
        at += len;
        (len > 0).then_some(piece)
    })
}

impl Data {
    /// The object files in `files`, whose folders are as their rows say.
    pub fn new(files: Arc<dyn Files>, folders: Vec<(String, Folder)>) -> Self {
        Self {
            files,
            folders: folders.into_iter().collect(),
            changed_folders: BTreeSet::new(),
            clean: Mutex::default(),
            dirty: HashMap::new(),
            dirty_folders: BTreeSet::new(),
            unlinked_folders: BTreeSet::new(),
        }
    }

    /// Files written since the last sync.
    pub fn dirty_files(&self) -> usize {
        self.dirty.len()
    }

    /// The folder that a file stands in.
    fn folder_of(&self, key: Key) -> String {
        let mut folder = String::new();
        while self.folders.get(&folder).is_some_and(|folder| folder.state != FolderState::Whole) {
            folder = below(&folder, digit(key, level(&folder)));
        }
        folder
    }

    /// Where a file may stand as well while a folder above it is half split. The next opening ends the split; until
    /// then a store that has stopped is read like this.
    fn paths_before_split(&self, key: Key) -> Vec<String> {
        let (mut paths, mut folder) = (Vec::new(), String::new());
        while let Some(row) = self.folders.get(&folder)
            && row.state != FolderState::Whole
        {
            if row.state == FolderState::Splitting {
                paths.push(format!("{}/{}", full(&folder), file_name(key)));
            }
            folder = below(&folder, digit(key, level(&folder)));
        }
        paths
    }

    fn path_of(&self, key: Key) -> String {
        format!("{}/{}", full(&self.folder_of(key)), file_name(key))
    }

    /// An existing file, for reading.
    fn existing(&self, key: Key) -> Result<Option<Arc<dyn FileIo>>> {
        if let Some(file) = self.dirty.get(&key) {
            return Ok(Some(Arc::clone(file)));
        }
        let mut clean = self.clean.lock();
        if let Some(file) = clean.get(&key) {
            return Ok(Some(Arc::clone(file)));
        }
        let mut file = None;
        for path in std::iter::once(self.path_of(key)).chain(self.paths_before_split(key)) {
            file = self.files.open(&path, false).map_err(|error| io("opening", &path, error))?;
            if file.is_some() {
                break;
            }
        }
        if let Some(file) = &file {
            if clean.len() >= CLEAN_FILES_MAX
                && let Some(any) = clean.keys().next().copied()
            {
                clean.remove(&any);
            }
            clean.insert(key, Arc::clone(file));
        }
        Ok(file)
    }

    /// A file, for writing; made if it is not there.
    fn writable(&mut self, key: Key) -> Result<Arc<dyn FileIo>> {
        if let Some(file) = self.dirty.get(&key) {
            return Ok(Arc::clone(file));
        }
        let file = match self.existing(key)? {
            Some(file) => file,
            None => {
                let path = self.path_of(key);
                let file = self.files.open(&path, true).map_err(|error| io("making", &path, error))?;
                file.ok_or_else(|| io("making", &path, std::io::ErrorKind::NotFound.into()))?
            }
        };
        if self.dirty.len() >= DIRTY_FILES_MAX {
            self.sync_files()?;
        }
        self.clean.lock().remove(&key);
        self.dirty.insert(key, Arc::clone(&file));
        Ok(file)
    }

    /// Reads `range` of an object whose data inside it is `runs`; all else is zeros.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where a file or the end of one is missing; [`Error::Io`].
    pub fn read(&self, number: u64, range: Range<u64>, runs: &[DataRun]) -> Result<Bytes> {
        let mut buffer = BytesMut::zeroed((range.end - range.start) as usize);
        for run in runs {
            let at = (run.offset - range.start) as usize;
            self.read_run(number, run.offset, &mut buffer[at..at + run.len as usize])?;
        }
        Ok(buffer.freeze())
    }

    fn read_run(&self, number: u64, offset: u64, buffer: &mut [u8]) -> Result<()> {
        for (part, from, at, len) in pieces(offset..offset + buffer.len() as u64) {
            let key = (number, part);
            let missing = |what: &str| {
                let what = format!("{}: {what} at {offset} of part {part}", self.path_of(key));
                Error::Corrupt { offset, what }
            };
            let file = self.existing(key)?.ok_or_else(|| missing("the file is missing"))?;
            let buffer = &mut buffer[at as usize..(at + len) as usize];
            let read = file.read_at(from, buffer).map_err(|error| io("reading", &self.path_of(key), error))?;
            if read < buffer.len() {
                return Err(missing("the file ends before its data"));
            }
        }
        Ok(())
    }

    /// Does what an operation says, and the same again where it was done before.
    ///
    /// # Errors
    /// [`Error::Io`], and those of reading the source of a copy. The files are then half-way.
    pub fn execute(&mut self, op: &FileOp) -> Result<()> {
        match op {
            FileOp::New { number, part } => {
                let folder = self.folder_of((*number, *part));
                self.folders.entry(folder.clone()).or_default().files += 1;
                // Even where the file is there: it may be from before a crash that left its name not durable.
                self.dirty_folders.insert(folder.clone());
                self.changed_folders.insert(folder);
                Ok(())
            }
            FileOp::Write { number, offset, data } => self.write(*number, *offset, data),
            FileOp::Punch { number, run } => self.punch(*number, run),
            FileOp::Copy { from, to, runs } => self.copy(*from, *to, runs),
            FileOp::CopyRange { at, from, to, runs, from_offset, to_offset } => {
                let name = format!("{STAGING}/{:016x}-{:x}", at.0.0, at.1);
                let staged = self.stage(&name, *from, runs)?;
                let mut done = 0;
                for run in runs {
                    let mut left = run.len;
                    while left > 0 {
                        let mut buffer = vec![0; COPY_BYTES.min(left) as usize];
                        let read = staged.read_at(done, &mut buffer).map_err(|error| io("reading", &name, error))?;
                        if read < buffer.len() {
                            let what = format!("{name}: the file ends before its data");
                            return Err(Error::Corrupt { offset: done, what });
                        }
                        let offset = run.offset - from_offset + to_offset + (run.len - left);
                        self.write(*to, offset, &buffer)?;
                        done += buffer.len() as u64;
                        left -= buffer.len() as u64;
                    }
                }
                Ok(())
            }
        }
    }

    fn write(&mut self, number: u64, offset: u64, data: &[u8]) -> Result<()> {
        for (part, to, at, len) in pieces(offset..offset + data.len() as u64) {
            let file = self.writable((number, part))?;
            let written = file.write_at(to, &data[at as usize..(at + len) as usize]);
            written.map_err(|error| io("writing", &self.path_of((number, part)), error))?;
        }
        Ok(())
    }

    fn punch(&mut self, number: u64, run: &DataRun) -> Result<()> {
        for (part, at, _, len) in pieces(run.offset..run.offset + run.len) {
            if let Some(file) = self.existing((number, part))? {
                let punched = file.punch(at, len);
                punched.map_err(|error| io("punching a hole into", &self.path_of((number, part)), error))?;
            }
        }
        Ok(())
    }

    /// Writes `fill`'s data under the name `path`, which it gets only durably and whole.
    fn durably(
        &self,
        path: &str,
        folder: &str,
        fill: impl FnOnce(&dyn FileIo) -> Result<()>,
    ) -> Result<Arc<dyn FileIo>> {
        let temporary = format!("{STAGING}/new");
        let failed = |error| io("making", path, error);
        let file = self.files.open(&temporary, true).map_err(failed)?;
        let file = file.ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))?;
        file.set_len(0).map_err(failed)?;
        fill(&*file)?;
        file.sync().map_err(failed)?;
        self.files.rename(&temporary, path).map_err(failed)?;
        self.files.sync_folder(folder).map_err(failed)?;
        Ok(file)
    }

    fn copy(&mut self, from: u64, to: u64, runs: &[DataRun]) -> Result<()> {
        let mut parts: BTreeMap<u64, Vec<DataRun>> = BTreeMap::new();
        for run in runs {
            for (part, _, at, len) in pieces(run.offset..run.offset + run.len) {
                parts.entry(part).or_default().push(DataRun { offset: run.offset + at, len });
            }
        }
        for (part, runs) in parts {
            // Made before a crash: its source may have changed since. The next operation needs the name to be durable.
            if self.existing((to, part))?.is_some() {
                self.sync_folder(&full(&self.folder_of((to, part))))?;
                continue;
            }
            let path = self.path_of((to, part));
            self.durably(&path, &full(&self.folder_of((to, part))), |file| {
                self.copy_runs(from, &runs, |offset, data| file.write_at(offset % PART_BYTES, data), &path)
            })?;
        }
        Ok(())
    }

    /// The staging file of a copy, made if it is not there.
    fn stage(&self, name: &str, from: u64, runs: &[DataRun]) -> Result<Arc<dyn FileIo>> {
        if let Some(file) = self.files.open(name, false).map_err(|error| io("opening", name, error))? {
            self.sync_folder(STAGING)?;
            return Ok(file);
        }
        self.durably(name, STAGING, |file| {
            let mut end = 0;
            let write = |_, data: &[u8]| {
                let at = end;
                end += data.len() as u64;
                file.write_at(at, data)
            };
            self.copy_runs(from, runs, write, name)
        })
    }

    fn copy_runs(
        &self,
        from: u64,
        runs: &[DataRun],
        mut write: impl FnMut(u64, &[u8]) -> std::io::Result<()>,
        path: &str,
    ) -> Result<()> {
        for run in runs {
            let (mut offset, end) = (run.offset, run.offset + run.len);
            while offset < end {
                let mut buffer = vec![0; COPY_BYTES.min(end - offset) as usize];
                self.read_run(from, offset, &mut buffer)?;
                write(offset, &buffer).map_err(|error| io("writing", path, error))?;
                offset += buffer.len() as u64;
            }
        }
        Ok(())
    }

    /// Writes the rows of folders that have changed.
    pub fn save_folders(&mut self, table: &mut Rows<'_>) -> Result<()> {
        for path in std::mem::take(&mut self.changed_folders) {
            table::set_folder(table, &path, self.folders.get(&path).copied().unwrap_or_default())?;
        }
        Ok(())
    }

    /// Makes everything that was done to files durable.
    ///
    /// # Errors
    /// [`Error::Io`]; what is durable is then unknown, and nothing that depends on it may be thrown away.
    pub fn sync(&mut self) -> Result<()> {
        self.sync_files()?;
        for folder in std::mem::take(&mut self.dirty_folders) {
            self.sync_folder(&full(&folder))?;
        }
        Ok(())
    }

    /// The files alone. Their names wait for the checkpoint.
    fn sync_files(&mut self) -> Result<()> {
        for (key, file) in &self.dirty {
            file.sync().map_err(|error| io("syncing", &self.path_of(*key), error))?;
        }
        self.dirty.clear();
        Ok(())
    }

    fn sync_folder(&self, folder: &str) -> Result<()> {
        self.files.sync_folder(folder).map_err(|error| io("syncing the folder", folder, error))
    }

    /// Marks folders with more than `files_max` files to be split; they are once the mark is durable.
    pub fn mark_full_folders(&mut self, files_max: u64) -> Vec<String> {
        let is_full = |folder: &Folder| folder.files > files_max && folder.state == FolderState::Whole;
        let full: Vec<String> = self
            .folders
            .iter()
            .filter(|(path, folder)| is_full(folder) && level(path) < 16)
            .map(|(path, _)| path.clone())
            .collect();
        for path in &full {
            if let Some(folder) = self.folders.get_mut(path) {
                folder.state = FolderState::Splitting;
            }
            self.changed_folders.insert(path.clone());
        }
        full
    }

    /// Folders whose split was begun.
    pub fn half_split(&self) -> Vec<String> {
        let half = self.folders.iter().filter(|(_, folder)| folder.state == FolderState::Splitting);
        half.map(|(path, _)| path.clone()).collect()
    }

    /// Moves the files of a folder that is marked into the folders below it. May be begun again after a crash.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn split(&mut self, folder: &str) -> Result<()> {
        let path = full(folder);
        let failed = |error| io("splitting the folder", &path, error);
        let mut made = BTreeSet::new();
        for name in self.files.list(&path).map_err(failed)? {
            let Some(key) = parse_name(&name) else { continue };
            let to = below(folder, digit(key, level(folder)));
            if made.insert(to.clone()) {
                self.files.make_folder(&full(&to)).map_err(failed)?;
            }
            self.files.rename(&format!("{path}/{name}"), &format!("{}/{name}", full(&to))).map_err(failed)?;
        }
        // All sixteen, so that new files find theirs; the ones above may have been made before a crash.
        for digit in "0123456789abcdef".chars() {
            let to = below(folder, digit);
            self.files.make_folder(&full(&to)).map_err(failed)?;
            self.sync_folder(&full(&to))?;
            let files = self.files.list(&full(&to)).map_err(failed)?.len() as u64;
            self.folders.insert(to.clone(), Folder { files, state: FolderState::Whole });
            self.changed_folders.insert(to);
        }
        self.sync_folder(&path)?;
        self.folders.insert(folder.to_string(), Folder { files: 0, state: FolderState::Split });
        self.changed_folders.insert(folder.to_string());
        Ok(())
    }

    /// Removes a file that nothing uses.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn unlink(&mut self, key: Key) -> Result<()> {
        self.clean.lock().remove(&key);
        self.dirty.remove(&key);
        let folder = self.folder_of(key);
        let path = format!("{}/{}", full(&folder), file_name(key));
        self.files.remove(&path).map_err(|error| io("removing", &path, error))?;
        self.unlinked_folders.insert(folder.clone());
        if let Some(row) = self.folders.get_mut(&folder) {
            row.files = row.files.saturating_sub(1);
            self.changed_folders.insert(folder);
        }
        Ok(())
    }

    /// Makes the removals durable.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync_unlinked(&mut self) -> Result<()> {
        for folder in std::mem::take(&mut self.unlinked_folders) {
            self.sync_folder(&full(&folder))?;
        }
        Ok(())
    }

    /// Removes what copies have left in the staging folder. They are not needed after a checkpoint.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn clear_staging(&self) -> Result<()> {
        let failed = |error| io("clearing", STAGING, error);
        for name in self.files.list(STAGING).map_err(failed)? {
            self.files.remove(&format!("{STAGING}/{name}")).map_err(failed)?;
        }
        Ok(())
    }
}

//! Backups: a checkpoint and the segments that it needs, copied into a folder while the store serves.
//!
//! ```text
//! checkpoint, held → segments in use → each verified, and copied unless the folder has it → manifest
//! FOLDER/segments/GENERATION-NUMBER.seg             a sealed segment: it never changes, so later backups share it
//! FOLDER/segments/GENERATION-NUMBER-LENGTH.seg      the start of one that is still being written
//! FOLDER/backup-SEQUENCE.manifest                   one backup
//! ```
//!
//! A backup shows the store as it was at one moment, between two transactions. Only names of collections without
//! objects may be of a little later.
//!
//! Invariants:
//! 1. Nothing that a manifest names changes or goes before the manifest goes.
//! 2. What is copied was verified: damage ends the backup, with its place.
//! 3. What a backup finds in the folder and uses is read and verified: a file of an earlier one that does not hold is
//!    copied again from the store, which mends the earlier one as well.
//! 4. What an interrupted backup has copied is used by the next, or removed by it.

mod manifest;
mod restore;
mod verify;

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use esker_device::Device;
use esker_store::{Error, Result};

pub use manifest::backups;
use manifest::{Manifest, Piece, damaged, failed, sync_folder, write_durably};
pub use restore::{RestoreReport, restore, restored_len};
pub use verify::{VerifyReport, verify};

use crate::engine::Engine;
use crate::format::{Loc, RecordHeader, SHORT_RECORD_HEADER_BYTES, SegmentHeader, round_up};
use crate::keeper::Held;
use crate::pages::each_page;
use crate::reader::each_operation;
use crate::segments::Usage;
use crate::superblocks::device_error;

/// What a backup did.
#[derive(Clone, Debug, Default)]
pub struct BackupReport {
    /// Its number in the folder.
    pub sequence: u64,
    /// Its manifest.
    pub manifest: PathBuf,
    /// Last sequence number that it holds.
    pub last_seq: u64,
    /// Segments that it consists of.
    pub segments: u64,
    /// Bytes that it consists of.
    pub bytes: u64,
    /// Segments that were copied; the folder held the others.
    pub copied_segments: u64,
    /// Bytes that were copied.
    pub copied_bytes: u64,
    /// Files of earlier backups that did not hold and were copied again: of the copied segments.
    pub mended_segments: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// What pruning removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Backups.
    pub backups: u64,
    /// Files that no backup names any more.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

fn segments_of(folder: &Path) -> PathBuf {
    folder.join("segments")
}

/// One backup or pruning at a time: the lock goes with the file.
fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let file = File::create(&path).map_err(|error| failed("locking", &path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(damaged(folder, "another backup into this folder is under way: wait for it"))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(failed("locking", &path, error)),
    }
}

impl Engine {
    /// Copies the store as it is now into `folder`, which is made if it is not there. Reads and writes go on meanwhile.
    /// What earlier backups in the folder have copied is not copied again. `progress(done, total)` is told bytes.
    ///
    /// While it runs the segments that were in use when it began stay: writes that need more space than is left beside
    /// them are refused with [`Error::Full`] until it is done.
    ///
    /// # Errors
    /// [`Error::Corrupt`] names the place of damage; the backup is not made then. [`Error::Invalid`] if the folder
    /// holds backups of another store, or another backup into it is under way. [`Error::ReadOnly`], [`Error::Full`]
    /// without room for the checkpoint, [`Error::Stopped`], [`Error::Io`].
    pub fn backup(&self, folder: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<BackupReport> {
        let began = Instant::now();
        let pieces_folder = segments_of(folder);
        std::fs::create_dir_all(&pieces_folder).map_err(|error| failed("making", &pieces_folder, error))?;
        let _lock = lock(folder)?;
        let before = backups(folder)?;
        let mut known = HashMap::new();
        for sequence in &before {
            let manifest = Manifest::read(folder, *sequence)?;
            if manifest.superblock.uuid != self.superblocks.newest().uuid {
                return Err(damaged(folder, "it holds backups of another store: use a folder of its own"));
            }
            known.extend(manifest.pieces.into_iter().map(|piece| (piece.file.clone(), piece)));
        }
        // While the backup holds no segments yet, so that no writer waits for this.
        let mut sound = HashMap::new();
        for piece in known.values() {
            let used = self.segments.generation(piece.segment) == piece.generation;
            if used && piece.file == sealed_name(piece.generation, piece.segment) {
                sound.insert(piece.file.clone(), piece.damage(&pieces_folder)?);
            }
        }
        let held = self.keeper()?.hold_to_copy()?;
        let mut report = BackupReport {
            sequence: before.last().map_or(1, |last| last + 1),
            last_seq: held.superblock.replay.seq,
            ..BackupReport::default()
        };
        let used = held.segments.iter().map(|usage| sealed_name(usage.generation, usage.segment));
        let needed: BTreeSet<String> = known.keys().cloned().chain(used).collect();
        sweep(&pieces_folder, &needed)?;
        let mut copier =
            Copier { engine: self, held: &held, folder: &pieces_folder, known, sound, far: None, mended: 0 };
        let total = held.segments.iter().map(|usage| copier.end(usage)).sum();
        let (mut done, mut pieces) = (0, Vec::with_capacity(held.segments.len()));
        for usage in &held.segments {
            progress(done, total);
            let (piece, copied) = match copier.piece(usage) {
                Ok(made) => made,
                Err(error) => {
                    // What the next one cannot use would be in its way. The first error counts.
                    let _ = sweep(&pieces_folder, &needed);
                    return Err(error);
                }
            };
            if copied {
                report.copied_segments += 1;
                report.copied_bytes += piece.len;
            }
            report.segments += 1;
            report.bytes += piece.len;
            done += copier.end(usage);
            pieces.push(piece);
        }
        report.mended_segments = copier.mended;
        progress(total, total);
        let superblock = held.superblock;
        let root = Loc::from_raw(superblock.root).map_or(0, |root| root.offset());
        if !pieces.iter().any(|piece| holds(piece, root, superblock.segment_bytes)) {
            return Err(Error::Corrupt { offset: root, what: "the checkpoint's root is gone".into() });
        }
        drop(held);
        sync_folder(&pieces_folder)?;
        let manifest = Manifest { sequence: report.sequence, superblock, pieces };
        report.manifest = manifest.write(folder)?;
        report.elapsed = began.elapsed();
        tracing::info!(
            sequence = report.sequence,
            segments = report.segments,
            copied_bytes = report.copied_bytes,
            elapsed_ms = report.elapsed.as_millis() as u64,
            "backup made"
        );
        Ok(report)
    }
}

/// The file of a sealed segment.
fn sealed_name(generation: u32, segment: u64) -> String {
    format!("{generation:010}-{segment}.seg")
}

/// Removes the files of segments that are not to be kept. How many, and their bytes.
fn sweep(segments: &Path, keep: &BTreeSet<String>) -> Result<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    for entry in std::fs::read_dir(segments).map_err(|error| failed("reading", segments, error))? {
        let entry = entry.map_err(|error| failed("reading", segments, error))?;
        let name = entry.file_name();
        let ours = name.to_str().filter(|name| name.ends_with(".seg") || name.ends_with(".new"));
        if ours.is_some_and(|name| !keep.contains(name)) {
            bytes += entry.metadata().map(|metadata| metadata.len()).unwrap_or(0);
            std::fs::remove_file(entry.path()).map_err(|error| failed("removing", &entry.path(), error))?;
            files += 1;
        }
    }
    Ok((files, bytes))
}

/// Whether a piece has what stands at this device offset.
fn holds(piece: &Piece, offset: u64, segment_bytes: u64) -> bool {
    let base = piece.segment * segment_bytes;
    (base..base + piece.len).contains(&offset)
}

struct Copier<'a> {
    engine: &'a Engine,
    held: &'a Held,
    folder: &'a Path,
    /// What earlier backups have, by file name.
    known: HashMap<String, Piece>,
    /// What was found of those that this backup may use: why they do not hold.
    sound: HashMap<String, Option<String>>,
    /// The furthest place in each segment that the index points to.
    far: Option<HashMap<u64, u64>>,
    /// Files of earlier backups that did not hold.
    mended: u64,
}

impl Copier<'_> {
    fn is_replay(&self, usage: &Usage) -> bool {
        !usage.cold && usage.generation == self.held.superblock.replay.generation
    }

    /// The first byte of a segment that does not count.
    fn end(&self, usage: &Usage) -> u64 {
        let base = usage.segment * self.held.superblock.segment_bytes;
        if self.is_replay(usage) { self.held.superblock.replay.offset.saturating_sub(base) } else { usage.end }
    }

    /// The file of a segment, and whether it was copied now.
    fn piece(&mut self, usage: &Usage) -> Result<(Piece, bool)> {
        let grows = self.is_replay(usage) || self.held.open_cold == Some(usage.segment);
        let Usage { segment, generation, .. } = *usage;
        let file = sealed_name(generation, segment);
        let mut mends = None;
        if !grows {
            if let Some(piece) = self.known.get(&file) {
                let damage = match self.sound.remove(&file) {
                    Some(damage) => damage,
                    None => piece.damage(self.folder)?,
                };
                match damage {
                    None => return Ok((piece.clone(), false)),
                    Some(why) => {
                        tracing::error!(file, why, "a file of an earlier backup does not hold and is copied again");
                        mends = Some(piece.clone());
                    }
                }
            } else if let Some(piece) = self.left_behind(usage, &file)? {
                return Ok((piece, false));
            }
        }
        let segment_bytes = self.held.superblock.segment_bytes;
        let base = segment * segment_bytes;
        let end = self.end(usage);
        let mut bytes = vec![0; end as usize];
        let read = self.engine.device.read(base, &mut bytes);
        read.map_err(|error| device_error(&format!("reading segment {segment} at {base}"), error))?;
        let len = self.verified(usage, &bytes)?;
        let far = if grows { None } else { self.far(segment)? };
        if let Some(far) = far.filter(|far| *far >= base + len) {
            return Err(Error::Corrupt { offset: far, what: "the record that the index points to is gone".into() });
        }
        let bytes = &bytes[..len as usize];
        let file = if grows { format!("{generation:010}-{segment}-{len}.seg") } else { file };
        let piece = Piece { segment, generation, len, crc: crc32c::crc32c(bytes), file };
        match (self.known.get(&piece.file), &mends) {
            (Some(known), None) if *known == piece && piece.damage(self.folder)?.is_none() => {
                return Ok((piece, false));
            }
            (_, Some(known)) if *known != piece => {
                let path = self.folder.join(&piece.file);
                return Err(damaged(
                    &path,
                    "it does not hold, and the store has another content by now: use another folder",
                ));
            }
            (Some(_), _) => self.mended += 1,
            (None, _) => {}
        }
        write_durably(&self.folder.join(&piece.file), &[bytes])?;
        Ok((piece, true))
    }

    /// A sealed segment that a backup which did not come to its end has copied.
    fn left_behind(&self, usage: &Usage, file: &str) -> Result<Option<Piece>> {
        let path = self.folder.join(file);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("reading", &path, error)),
        };
        let len = bytes.len() as u64;
        if len > self.end(usage) || self.verified(usage, &bytes).ok() != Some(len) {
            // Not what it should be, and nothing depends on it: it is copied again.
            return Ok(None);
        }
        let Usage { segment, generation, .. } = *usage;
        Ok(Some(Piece { segment, generation, len, crc: crc32c::crc32c(&bytes), file: file.into() }))
    }

    fn far(&mut self, segment: u64) -> Result<Option<u64>> {
        if let Some(far) = &self.far {
            return Ok(far.get(&segment).copied());
        }
        let engine = self.engine;
        let mut objects = Vec::new();
        engine.objects.for_each(|object| objects.push(std::sync::Arc::clone(object)));
        let mut far = self.held.furthest.clone();
        for object in objects {
            // Nothing is made free while a backup runs: what is not in memory can be read.
            let (number, spaces) = object.numbered_spaces();
            each_page(&engine.reader, number, &spaces, &mut |page| {
                page.each_place(|offset, _| {
                    let furthest = far.entry(engine.segments.segment_of(offset)).or_insert(0);
                    *furthest = offset.max(*furthest);
                });
                Ok(())
            })?;
        }
        let found = far.get(&segment).copied();
        self.far = Some(far);
        Ok(found)
    }

    /// Verifies the start of a segment, and returns where its last record ends.
    fn verified(&self, usage: &Usage, bytes: &[u8]) -> Result<u64> {
        let superblock = &self.held.superblock;
        let (base, block) = (usage.segment * superblock.segment_bytes, u64::from(superblock.block_bytes));
        let damage = |offset: u64, what: &str| Error::Corrupt { offset: base + offset, what: what.into() };
        let header = SegmentHeader::decode(bytes, &superblock.uuid, usage.segment);
        if header.is_none_or(|header| header.generation != usage.generation) {
            return Err(damage(0, "segment header does not hold"));
        }
        // Where the log left a segment is known; how far a cold one was written is not.
        let exact = !usage.cold && self.end(usage) < superblock.segment_bytes;
        let (end, mut at, mut len, mut gap) = (bytes.len() as u64, block, block, None);
        while at + SHORT_RECORD_HEADER_BYTES as u64 <= end {
            let rest = &bytes[at as usize..];
            let record = RecordHeader::decode(rest, self.engine.seed, base + at);
            let of_this_life = |record: &RecordHeader| record.generation == usage.generation;
            if let Some(record) = record.filter(of_this_life) {
                if u64::from(record.len) > end - at {
                    return Err(damage(at, "record is longer than its segment"));
                }
                if let Some(gap) = gap {
                    return Err(damage(gap, "what stands here does not hold, and a good record follows"));
                }
                let body = &rest[record.header_bytes()..record.len as usize];
                each_operation(&record, base + at, body, self.engine.seed, |_, _, _| Ok(()))?;
                at += u64::from(record.len);
                len = at;
                continue;
            }
            let next = round_up(at + 1, block);
            let padded = rest[..(next.min(end) - at) as usize].iter().all(|byte| *byte == 0);
            if at % block != 0 && padded {
                at = next;
                continue;
            }
            let was_of_this_life = RecordHeader::claimed_generation(rest) == Some(usage.generation);
            if exact || at % block != 0 || was_of_this_life {
                return Err(damage(at, "record header checksum mismatch"));
            }
            gap.get_or_insert(at);
            at = next;
        }
        Ok(len)
    }
}

/// Removes all backups of `folder` but the newest `keep`, at least one, and the files that no backup names any more.
///
/// # Errors
/// [`Error::Invalid`] if a manifest that stays does not hold (nothing is removed then), or a backup into the folder is
/// under way; [`Error::Io`].
pub fn prune(folder: &Path, keep: u64) -> Result<Pruned> {
    let _lock = lock(folder)?;
    let mut old = backups(folder)?;
    let stay = old.split_off(old.len().saturating_sub(keep.max(1).try_into().unwrap_or(usize::MAX)));
    let mut needed = BTreeSet::new();
    for sequence in stay {
        needed.extend(Manifest::read(folder, sequence)?.pieces.into_iter().map(|piece| piece.file));
    }
    let mut pruned = Pruned::default();
    for sequence in old {
        let path = Manifest::path(folder, sequence);
        std::fs::remove_file(&path).map_err(|error| failed("removing", &path, error))?;
        pruned.backups += 1;
    }
    // No manifest must come back whose files are gone.
    sync_folder(folder)?;
    (pruned.files, pruned.bytes) = sweep(&segments_of(folder), &needed)?;
    Ok(pruned)
}

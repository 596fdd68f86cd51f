//! Restoring: a backup's segments back to their places on a fresh device, and a superblock that names their checkpoint.
//!
//! ```text
//! manifest → superblocks cleared → files, verified → their places → a new segment where the log goes on → superblock
//! ```
//!
//! The log goes on in a new segment, of a generation that is raised by a random number: what the restored store writes
//! is never taken for what the lost one wrote after the backup, by a later backup into the same folder least of all.
//!
//! Invariant: until the last write the device holds no store; after it, all of it.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use esker_device::Device;
use esker_store::{Error, Result};

use super::manifest::{Manifest, Piece, backups, damaged, failed};
use super::segments_of;
use crate::format::{ReplayFrom, SegmentHeader, Stream, Superblock, round_up};
use crate::superblocks::device_error;

/// Files are read and written so many bytes at a time, a multiple of every block size.
const CHUNK_BYTES: usize = 4 << 20;
/// Generations grow by less than this when a store is restored.
const GENERATIONS_PASSED_MAX: u32 = 1 << 24;

/// What restoring did.
#[derive(Clone, Copy, Debug, Default)]
pub struct RestoreReport {
    /// The backup's number.
    pub sequence: u64,
    /// Last sequence number that it holds.
    pub last_seq: u64,
    /// Segments.
    pub segments: u64,
    /// Bytes.
    pub bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
}

fn manifest_of(folder: &Path, sequence: Option<u64>) -> Result<Manifest> {
    let all = backups(folder)?;
    let newest = all.last().copied().ok_or_else(|| damaged(folder, "there is no backup in it"))?;
    let sequence = sequence.unwrap_or(newest);
    if !all.contains(&sequence) {
        let known: Vec<String> = all.iter().map(u64::to_string).collect();
        return Err(damaged(folder, &format!("there is no backup {sequence} in it, only {}", known.join(", "))));
    }
    Manifest::read(folder, sequence)
}

/// Length of the device that a backup needs, in bytes: the backup `sequence` of `folder`, or the newest.
///
/// # Errors
/// [`Error::Invalid`] if there is no such backup, or its manifest does not hold; [`Error::Io`].
pub fn restored_len(folder: &Path, sequence: Option<u64>) -> Result<u64> {
    Ok(manifest_of(folder, sequence)?.superblock.device_len)
}

/// Writes the backup `sequence` of `folder`, or the newest, to `device`, which is overwritten. The store on it is then
/// what it was when the backup was made. `salt` is a random number, a new one for each call. `progress(done, total)` is
/// told bytes.
///
/// # Errors
/// [`Error::Invalid`] names the file of the backup that is missing, cut short or damaged, or says why the device does
/// not fit; [`Error::Full`] without a free segment; [`Error::Io`]. The device holds no store then.
pub fn restore(
    folder: &Path,
    sequence: Option<u64>,
    device: &dyn Device,
    salt: u32,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<RestoreReport> {
    let began = Instant::now();
    let manifest = manifest_of(folder, sequence)?;
    let superblock = manifest.superblock;
    fits(device, &superblock)?;
    let (segment_bytes, block) = (superblock.segment_bytes, u64::from(superblock.block_bytes));
    let log_segments = superblock.log_segments_of(device.geometry().len);
    let mut pieces: HashMap<u64, &Piece> = manifest.pieces.iter().map(|piece| (piece.segment, piece)).collect();
    for piece in &manifest.pieces {
        let path = segments_of(folder).join(&piece.file);
        let len = std::fs::metadata(&path).map_err(|error| failed("reading", &path, error))?.len();
        if len != piece.len {
            return Err(damaged(&path, &format!("it is {len} bytes long, the backup has {}", piece.len)));
        }
        if !log_segments.contains(&piece.segment) {
            let (segment, Range { start, end }) = (piece.segment, &log_segments);
            return Err(damaged(&path, &format!("it is of segment {segment}, the device has {start} to {end}")));
        }
    }
    let next = log_segments.clone().find(|segment| !pieces.contains_key(segment));
    let next = next.ok_or(Error::Full { needed: segment_bytes, free: 0 })?;
    let newest = manifest.pieces.iter().map(|piece| piece.generation).max().unwrap_or(0);
    let generation = newest.checked_add(1 + salt % GENERATIONS_PASSED_MAX);
    let generation = generation.ok_or_else(|| damaged(folder, "the store's generations are used up"))?;
    let wrote = |error| device_error("restoring", error);
    write_superblocks(device, &superblock, None)?;
    let total = manifest.pieces.iter().map(|piece| piece.len).sum();
    let mut report = RestoreReport {
        sequence: manifest.sequence,
        last_seq: superblock.replay.seq,
        segments: manifest.pieces.len() as u64,
        ..RestoreReport::default()
    };
    let mut start = vec![0; 2 * block as usize];
    for segment in log_segments {
        let offset = segment * segment_bytes;
        device.read(offset, &mut start).map_err(wrote)?;
        // What is left of another life must not be taken for a part of this one.
        if start.iter().any(|byte| *byte != 0) || device.geometry().zone_bytes.is_some() {
            device.discard(offset, segment_bytes).map_err(wrote)?;
        }
        if let Some(piece) = pieces.remove(&segment) {
            write_piece(folder, piece, device, offset, block)?;
            report.bytes += piece.len;
            progress(report.bytes, total);
        }
    }
    let offset = next * segment_bytes;
    device.reserve(offset, segment_bytes).map_err(wrote)?;
    device.prefill(offset, segment_bytes).map_err(wrote)?;
    let replay = superblock.replay;
    let header = SegmentHeader {
        generation,
        uuid: superblock.uuid,
        segment: next,
        previous_end: replay.offset,
        first_seq: replay.seq + 1,
        group: replay.group + 1,
        previous_generation: replay.generation,
        stream: Stream::Log,
    };
    let mut head = vec![0; block as usize];
    header.encode(&mut head);
    device.write(offset, &head).map_err(wrote)?;
    device.sync().map_err(wrote)?;
    let restored = Superblock {
        sequence: superblock.sequence + 1,
        device_len: device.geometry().len,
        clean: true,
        end_generation: generation,
        end_offset: offset + block,
        end_seq: replay.seq,
        replay: ReplayFrom { generation, offset: offset + block, ..replay },
        ..superblock
    };
    write_superblocks(device, &superblock, Some(restored))?;
    report.elapsed = began.elapsed();
    Ok(report)
}

/// Whether the store of a backup can be on this device.
fn fits(device: &dyn Device, superblock: &Superblock) -> Result<()> {
    let geometry = device.geometry();
    let refuse = |why: String| Err(Error::Invalid { what: "device", why: format!("{} {why}", device.name()) });
    if geometry.len < superblock.device_len {
        return refuse(format!("is {} bytes long, the backup needs {}", geometry.len, superblock.device_len));
    }
    let area = geometry.zone_bytes.unwrap_or(crate::superblocks::SUPERBLOCK_SEGMENT_BYTES);
    if geometry.block_bytes != superblock.block_bytes || area != superblock.superblock_segment_bytes {
        return refuse("has another block or zone size than the store of the backup".into());
    }
    Ok(())
}

/// Writes a superblock to both places, or clears them.
fn write_superblocks(device: &dyn Device, shape: &Superblock, superblock: Option<Superblock>) -> Result<()> {
    let wrote = |error| device_error("restoring a superblock", error);
    let area = shape.superblock_segment_bytes;
    let zoned = device.geometry().zone_bytes.is_some();
    for half in 0..2 {
        let start = half * area;
        if superblock.is_none() {
            device.discard(start, area).map_err(wrote)?;
        }
        let mut bytes = vec![0; area.min(1 << 20) as usize];
        if let Some(superblock) = superblock {
            superblock.encode(&mut bytes);
        }
        // On a zoned device the rest of the zone has to stay unwritten.
        let len = match (zoned, superblock) {
            (true, None) => continue,
            (true, Some(_)) => shape.block_bytes as usize,
            (false, _) => bytes.len(),
        };
        device.write(start, &bytes[..len]).map_err(wrote)?;
    }
    device.sync().map_err(wrote)
}

/// Writes one segment from its file, which must be what it was.
fn write_piece(folder: &Path, piece: &Piece, device: &dyn Device, offset: u64, block: u64) -> Result<()> {
    let path = segments_of(folder).join(&piece.file);
    let mut file = File::open(&path).map_err(|error| failed("reading", &path, error))?;
    let (mut crc, mut at) = (0, 0);
    let mut chunk = vec![0; CHUNK_BYTES];
    while at < piece.len {
        let len = (piece.len - at).min(CHUNK_BYTES as u64) as usize;
        file.read_exact(&mut chunk[..len]).map_err(|error| failed("reading", &path, error))?;
        crc = crc32c::crc32c_append(crc, &chunk[..len]);
        let padded = round_up(len as u64, block) as usize;
        chunk[len..padded].fill(0);
        let written = device.write(offset + at, &chunk[..padded]);
        written.map_err(|error| device_error(&format!("restoring segment {}", piece.segment), error))?;
        at += len as u64;
    }
    if crc != piece.crc {
        let why = format!("it was damaged: its checksum is {crc:08x}, the backup has {:08x}", piece.crc);
        return Err(damaged(&path, &why));
    }
    Ok(())
}

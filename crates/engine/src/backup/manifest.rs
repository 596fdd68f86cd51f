//! Manifests: what one backup consists of, as text that a person can read.
//!
//! ```text
//! esker backup 2
//! NAME VALUE                                          geometry of the store and the superblock that names its checkpoint
//! segment NUMBER GENERATION LENGTH CRC32C FILE        one for each segment
//! crc CRC32C                                          of all lines before
//! ```
//!
//! Invariants:
//! 1. A manifest is written last: whatever it names was durable before.
//! 2. A file that a manifest names never changes.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use esker_store::{Error, Result};

use crate::format::{FORMAT_VERSION, ReplayFrom, Superblock};

const FIRST_LINE: &str = "esker backup 2";
/// Of backups before stores of version 6, which programs before that read: there is nothing in them that these do not
/// know.
const OLDER_FIRST_LINE: &str = "esker backup 1";
/// A manifest beyond this is none of ours.
const MANIFEST_BYTES_MAX: u64 = 1 << 30;

/// One segment of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Its number on the device.
    pub segment: u64,
    /// Its generation.
    pub generation: u32,
    /// Bytes of it that were copied; zeros follow.
    pub len: u64,
    /// CRC32C of these.
    pub crc: u32,
    /// The file's name in the folder `segments`.
    pub file: String,
}

/// One backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    /// Its number in the folder, from 1.
    pub sequence: u64,
    /// The store as it was.
    pub superblock: Superblock,
    /// Its segments.
    pub pieces: Vec<Piece>,
}

impl Manifest {
    /// The file that it is in.
    pub fn path(folder: &Path, sequence: u64) -> PathBuf {
        folder.join(format!("backup-{sequence:08}.manifest"))
    }

    fn encode(&self) -> String {
        let block = &self.superblock;
        let mut text = format!("{FIRST_LINE}\n");
        let uuid: String = block.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        text.push_str(&format!("sequence {}\nuuid {uuid}\n", self.sequence));
        for (name, value) in [
            ("block_bytes", u64::from(block.block_bytes)),
            ("segment_bytes", block.segment_bytes),
            ("superblock_segment_bytes", block.superblock_segment_bytes),
            ("device_len", block.device_len),
            ("superblock", block.sequence),
            ("root", block.root),
            ("root_generation", u64::from(block.root_generation)),
            ("replay_generation", u64::from(block.replay.generation)),
            ("replay_offset", block.replay.offset),
            ("replay_seq", block.replay.seq),
            ("replay_group", block.replay.group),
        ] {
            text.push_str(&format!("{name} {value}\n"));
        }
        for piece in &self.pieces {
            let Piece { segment, generation, len, crc, file } = piece;
            text.push_str(&format!("segment {segment} {generation} {len} {crc:08x} {file}\n"));
        }
        let crc = crc32c::crc32c(text.as_bytes());
        text.push_str(&format!("crc {crc:08x}\n"));
        text
    }

    fn decode(text: &str) -> Option<Self> {
        let (body, crc) = text.strip_suffix('\n')?.rsplit_once('\n')?;
        let crc = u32::from_str_radix(crc.strip_prefix("crc ")?, 16).ok()?;
        if crc32c::crc32c(&text.as_bytes()[..body.len() + 1]) != crc {
            return None;
        }
        let mut lines = body.lines();
        let first = lines.next()?;
        if first != FIRST_LINE && first != OLDER_FIRST_LINE {
            return None;
        }
        let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let sequence = value("sequence")?.parse().ok()?;
        let hex = value("uuid")?;
        let mut uuid = [0; 16];
        for (at, byte) in uuid.iter_mut().enumerate() {
            *byte = u8::from_str_radix(hex.get(at * 2..at * 2 + 2)?, 16).ok()?;
        }
        let mut number = |name: &str| value(name)?.parse::<u64>().ok();
        let block_bytes = u32::try_from(number("block_bytes")?).ok()?;
        let [segment_bytes, superblock_segment_bytes, device_len] =
            [number("segment_bytes")?, number("superblock_segment_bytes")?, number("device_len")?];
        let [superblock_sequence, root] = [number("superblock")?, number("root")?];
        let root_generation = u32::try_from(number("root_generation")?).ok()?;
        let replay = ReplayFrom {
            generation: u32::try_from(number("replay_generation")?).ok()?,
            offset: number("replay_offset")?,
            seq: number("replay_seq")?,
            group: number("replay_group")?,
        };
        let superblock = Superblock {
            version: FORMAT_VERSION,
            block_bytes,
            uuid,
            sequence: superblock_sequence,
            segment_bytes,
            superblock_segment_bytes,
            device_len,
            end_generation: replay.generation,
            clean: false,
            before_kept: false,
            end_offset: replay.offset,
            end_seq: replay.seq,
            root,
            root_generation,
            replay,
        };
        let shaped = block_bytes.is_power_of_two()
            && segment_bytes.is_power_of_two()
            && segment_bytes >= 2 * u64::from(block_bytes)
            && segment_bytes <= 1 << 30
            && superblock_segment_bytes >= u64::from(block_bytes);
        let pieces: Option<Vec<Piece>> = lines.map(piece).collect();
        let pieces = pieces.filter(|pieces| {
            let inside = |piece: &Piece| piece.len <= segment_bytes && piece.segment < device_len / segment_bytes;
            shaped && pieces.iter().all(inside)
        })?;
        Some(Self { sequence, superblock, pieces })
    }

    /// Writes it so that it is there as a whole or not at all.
    pub fn write(&self, folder: &Path) -> Result<PathBuf> {
        let path = Self::path(folder, self.sequence);
        write_durably(&path, &[self.encode().as_bytes()])?;
        sync_folder(folder)?;
        Ok(path)
    }

    /// Reads the manifest of this number.
    pub fn read(folder: &Path, sequence: u64) -> Result<Self> {
        let path = Self::path(folder, sequence);
        let metadata = std::fs::metadata(&path).map_err(|error| failed("reading", &path, error))?;
        let read = if metadata.len() > MANIFEST_BYTES_MAX {
            None
        } else {
            let bytes = std::fs::read(&path).map_err(|error| failed("reading", &path, error))?;
            String::from_utf8(bytes).ok()
        };
        let manifest = read.and_then(|text| Self::decode(&text)).filter(|manifest| manifest.sequence == sequence);
        manifest.ok_or_else(|| damaged(&path, "it is no manifest that this program knows, or it was damaged"))
    }
}

impl Piece {
    /// Why its file, among the segments' in `folder`, is not what it was; `None` if it is.
    ///
    /// # Errors
    /// [`Error::Io`]: it is there and cannot be read.
    pub fn damage(&self, folder: &Path) -> Result<Option<String>> {
        let path = folder.join(&self.file);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Some("it is missing".into())),
            Err(error) => return Err(failed("reading", &path, error)),
        };
        let (mut crc, mut len, mut chunk) = (0, 0, vec![0; 1 << 20]);
        loop {
            match file.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => {
                    crc = crc32c::crc32c_append(crc, &chunk[..read]);
                    len += read as u64;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed("reading", &path, error)),
            }
        }
        if len != self.len {
            return Ok(Some(format!("it is {len} bytes long, the backup has {}", self.len)));
        }
        Ok((crc != self.crc).then(|| format!("its checksum is {crc:08x}, the backup has {:08x}", self.crc)))
    }
}

fn piece(line: &str) -> Option<Piece> {
    let mut words = line.strip_prefix("segment ")?.splitn(5, ' ');
    let piece = Piece {
        segment: words.next()?.parse().ok()?,
        generation: words.next()?.parse().ok()?,
        len: words.next()?.parse().ok()?,
        crc: u32::from_str_radix(words.next()?, 16).ok()?,
        file: words.next()?.to_string(),
    };
    // A name leads nowhere else.
    let plain = piece.file.ends_with(".seg") && !piece.file.contains(['/', '\0']);
    plain.then_some(piece)
}

/// Numbers of the backups in a folder, ascending.
///
/// # Errors
/// [`Error::Io`] if the folder cannot be read.
pub fn backups(folder: &Path) -> Result<Vec<u64>> {
    let entries = std::fs::read_dir(folder).map_err(|error| failed("reading", folder, error))?;
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.map_err(|error| failed("reading", folder, error))?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("backup-")?.strip_suffix(".manifest"));
        found.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    found.sort_unstable();
    Ok(found)
}

/// Writes a file under another name, makes it durable and gives it its name.
pub(super) fn write_durably(path: &Path, parts: &[&[u8]]) -> Result<()> {
    let unfinished = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&unfinished)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()?;
        std::fs::rename(&unfinished, path)
    };
    write().map_err(|error| failed("writing", path, error))
}

/// Makes the names in a folder durable.
pub(super) fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| failed("syncing", folder, error))
}

pub(super) fn failed(what: &str, path: &Path, error: std::io::Error) -> Error {
    Error::io(format!("{what} {}", path.display()), error)
}

pub(super) fn damaged(path: &Path, why: &str) -> Error {
    Error::Invalid { what: "backup", why: format!("{}: {why}", path.display()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_survives_the_round_trip_and_no_changed_byte_does() {
        let replay = ReplayFrom { generation: 7, offset: 7 << 16, seq: 99, group: 12 };
        let superblock = Superblock {
            version: FORMAT_VERSION,
            block_bytes: 4096,
            uuid: [0xab; 16],
            sequence: 5,
            segment_bytes: 1 << 16,
            superblock_segment_bytes: 1 << 16,
            device_len: 1 << 22,
            end_generation: 7,
            clean: false,
            before_kept: false,
            end_offset: 7 << 16,
            end_seq: 99,
            root: 1234,
            root_generation: 6,
            replay,
        };
        let piece = Piece { segment: 4, generation: 7, len: 5000, crc: 0xdead_beef, file: "0000000007-4.seg".into() };
        let manifest = Manifest { sequence: 3, superblock, pieces: vec![piece] };
        let text = manifest.encode();
        assert_eq!(Manifest::decode(&text), Some(manifest));
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let changed = String::from_utf8(bytes).unwrap();
            assert_eq!(Manifest::decode(&changed), None, "byte {at}");
            assert_eq!(Manifest::decode(&text[..at]), None, "cut at {at}");
        }
    }
}

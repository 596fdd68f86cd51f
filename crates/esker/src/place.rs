//! Where the engine's device is, and how it comes into being.
//!
//! path → device file ([`device_path`]) → opened, or made beside it as `NAME.new`, formatted, then renamed
//!
//! Invariants:
//! 1. A file under its final name is a whole store: a crash while one is made leaves only `NAME.new`, which the next
//!    attempt replaces.
//! 2. A block device is never formatted without being asked to.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_device::{Device, FileDevice, OpenMode};
use esker_engine::{Engine, FormatOptions};

use crate::releasable::Releasable;
use crate::{Error, Result};

/// The device's name inside a store folder.
pub const DEVICE_FILE: &str = "store.esker";
/// Length of a device file that is made without a size, if the disk has room (64 GiB; it is sparse).
pub const DEVICE_BYTES_DEFAULT: u64 = 64 << 30;
/// Part of the free disk that a device file without a size takes at most, in percent.
pub const FREE_PERCENT_MAX: u64 = 90;
/// Segments that the smallest device file holds.
pub const SEGMENTS_MIN: u64 = 4;

/// A device file's length is a multiple of this.
const BLOCK_BYTES: u64 = 4_096;

/// What was made.
#[derive(Clone, Debug)]
pub struct Made {
    /// The device.
    pub path: PathBuf,
    /// Its length in bytes.
    pub len: u64,
    /// Segment size in bytes.
    pub segment_bytes: u64,
    /// About how many bytes of values it holds before it is full.
    pub usable_bytes: u64,
    /// The store's id, in hexadecimal.
    pub uuid: String,
}

/// The device that a path stands for: the path itself if it is a file, a block device, or ends in `.esker`;
/// else the file [`DEVICE_FILE`] in the folder.
pub(crate) fn device_path(path: &Path) -> PathBuf {
    let is_folder = match path.metadata() {
        Ok(metadata) => metadata.is_dir(),
        Err(_) => path.extension().is_none_or(|extension| extension != "esker"),
    };
    if is_folder { path.join(DEVICE_FILE) } else { path.to_path_buf() }
}

pub(crate) fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Whether two paths lead to one file, whatever they are called.
pub(crate) fn is_same_file(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()));
    a == b || place(a).is_some_and(|a| place(b) == Some(a))
}

/// Opens a device that exists.
pub(crate) fn open_device(path: &Path, read_only: bool) -> Result<Arc<Releasable>> {
    let mode = if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    let device = FileDevice::open(path, mode).map_err(|error| named(path, error))?;
    Ok(Arc::new(Releasable::new(device)))
}

/// Makes a device file with a store on it, under its final name only when it is whole.
pub(crate) fn make_file(
    path: &Path,
    size: Option<u64>,
    segment_bytes: u64,
    preallocate: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Made, Arc<Releasable>)> {
    let folder = folder_of(path)?;
    let len = match size {
        Some(size) => size - size % BLOCK_BYTES,
        None => length_for(folder, path, segment_bytes)?,
    };
    fill_file(path, len, false, |device| {
        if preallocate {
            take_space(device, len, progress)?;
        }
        format_device(path, device, segment_bytes)
    })
}

/// The folder of a device file, which is made if it is not there.
fn folder_of(path: &Path) -> Result<&Path> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(|source| Error::Io {
        what: "create",
        path: folder.to_path_buf(),
        source,
    })?;
    Ok(folder)
}

/// Makes a device file of `len` bytes that `fill` puts a store on, under its final name only when it is whole; what has
/// this name goes only then, and only with `replace`.
pub(crate) fn fill_file<T>(
    path: &Path,
    len: u64,
    replace: bool,
    fill: impl FnOnce(&Arc<FileDevice>) -> Result<T>,
) -> Result<(T, Arc<Releasable>)> {
    let folder = folder_of(path)?;
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let unfinished = PathBuf::from(unfinished);
    if unfinished.exists() {
        // What an interrupted attempt left; in use if another process is at it just now.
        drop(open_device(&unfinished, false)?);
        remove(&unfinished)?;
    }
    let device = FileDevice::open(&unfinished, OpenMode::Create { len }).map_err(|error| named(path, error))?;
    let device = Arc::new(device);
    let make = || -> Result<T> {
        if !replace && path.exists() {
            // Another process has made it since; ours must not replace it.
            return Err(Error::Exists { path: path.to_path_buf() });
        }
        let made = fill(&device)?;
        std::fs::rename(&unfinished, path).map_err(|source| Error::Io {
            what: "rename",
            path: unfinished.clone(),
            source,
        })?;
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|source| Error::Io { what: "sync", path: folder.to_path_buf(), source })?;
        Ok(made)
    };
    let made = make();
    if made.is_err() {
        // The first error counts; a leftover is replaced by the next attempt anyway.
        let _ = std::fs::remove_file(&unfinished);
    }
    drop(device);
    Ok((made?, open_device(path, false)?))
}

/// Formats a device.
pub(crate) fn format_device(path: &Path, device: &dyn Device, segment_bytes: u64) -> Result<Made> {
    let uuid = random_id()?;
    let segment_bytes = segment_for(device.geometry().len, segment_bytes);
    let options = FormatOptions { segment_bytes, uuid };
    Engine::format(device, &options)?;
    let uuid = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let (len, usable_bytes) = (device.geometry().len, options.usable_bytes(device.geometry().len));
    Ok(Made { path: path.to_path_buf(), len, segment_bytes, usable_bytes, uuid })
}

/// Segments of at most this size, but so small that a store has enough of them for the cleaner to work with.
fn segment_for(len: u64, segment_bytes: u64) -> u64 {
    const SEGMENTS_WANTED: u64 = 128;
    /// Fewer do where segments would be so small that larger values do not fit.
    const SEGMENTS_DO: u64 = 32;
    const SEGMENT_BYTES_WANTED: u64 = 8 << 20;
    const SEGMENT_BYTES_MIN: u64 = 1 << 20;
    let mut fit = segment_bytes;
    let small = |fit: u64| len / fit < if fit > SEGMENT_BYTES_WANTED { SEGMENTS_WANTED } else { SEGMENTS_DO };
    while fit > SEGMENT_BYTES_MIN && small(fit) {
        fit /= 2;
    }
    fit
}

/// Makes a device file `len` bytes long, in whole blocks.
pub(crate) fn lengthen(path: &Path, len: u64) -> Result<()> {
    let lengthened = File::options().write(true).open(path).and_then(|file| {
        file.set_len(len - len % BLOCK_BYTES)?;
        file.sync_all()
    });
    lengthened.map_err(|source| Error::Io { what: "lengthen", path: path.to_path_buf(), source })
}

/// Takes the device's space from the file system, a step at a time.
pub(crate) fn take_space(device: &dyn Device, len: u64, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
    const STEP_BYTES: u64 = 1 << 30;
    let mut offset = 0;
    while offset < len {
        let step = STEP_BYTES.min(len - offset);
        device.reserve(offset, step)?;
        offset += step;
        progress(offset, len);
    }
    Ok(())
}

pub(crate) fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path).map_err(|source| Error::Io { what: "remove", path: path.to_path_buf(), source })
}

/// The default length: 64 GiB, or 90 % of the free disk if that is less, in whole segments.
fn length_for(folder: &Path, path: &Path, segment_bytes: u64) -> Result<u64> {
    let disk = rustix::fs::statvfs(folder).map_err(|error| Error::Io {
        what: "measure the free space of",
        path: folder.to_path_buf(),
        source: error.into(),
    })?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let len = (free / 100 * FREE_PERCENT_MAX).min(DEVICE_BYTES_DEFAULT);
    let len = len - len % segment_bytes.max(1);
    let needed = SEGMENTS_MIN.saturating_mul(segment_bytes);
    if len < needed {
        return Err(Error::NoRoom { path: path.to_path_buf(), free, needed });
    }
    Ok(len)
}

/// A random number.
pub(crate) fn random_number() -> Result<u32> {
    let [a, b, c, d, ..] = random_id()?;
    Ok(u32::from_le_bytes([a, b, c, d]))
}

/// A random 128-bit id. The one place that takes randomness from the operating system.
pub(crate) fn random_id() -> Result<[u8; 16]> {
    const SOURCE: &str = "/dev/urandom";
    let mut id = [0; 16];
    let read = File::open(SOURCE).and_then(|mut file| file.read_exact(&mut id));
    read.map_err(|source| Error::Io { what: "read", path: SOURCE.into(), source })?;
    Ok(id)
}

/// Turns the device errors that callers act upon into this crate's.
fn named(path: &Path, error: esker_device::Error) -> Error {
    match error {
        esker_device::Error::InUse { .. } => Error::InUse { path: path.to_path_buf() },
        esker_device::Error::Exists { .. } => Error::Exists { path: path.to_path_buf() },
        esker_device::Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Error::NotFound { path: path.to_path_buf() }
        }
        error => Error::Device(error),
    }
}

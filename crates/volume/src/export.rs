//! Images as streams: full and incremental in a format with checksums, and raw.
//!
//! diff → chunks of data and zeros, each with a checksum that continues the one before → end | the way back: check,
//! then write
//!
//! Invariants:
//! 1. No chunk is written before its checksum was checked; a missing, repeated or moved chunk fails it.
//! 2. What comes from a stream never panics and allocates no more than [`CHUNK_BYTES_MAX`] at once.
//! 3. An increment is applied only to an image that is what its first snapshot is, and no other client writes it
//!    meanwhile.
//! 4. No reader reads what was imported in part.
//! Format: docs/format.md#exported-volumes

use std::io::{ErrorKind, Read, Write};

use bytes::Bytes;
use esker_store::number::{u32_at, u64_at};

use crate::diff::Diff;
use crate::format;
use crate::header::{self, same_record};
use crate::image::{Extent, joined};
use crate::layout::IMAGE_BYTES_MAX;
use crate::progress::Progress;
use crate::write::Writer;
use crate::{Durability, Error, Image, Layout, NAME_BYTES_MAX, Result, Volumes, image};

/// Most data in one chunk of an export, in bytes (1 MiB).
pub const CHUNK_BYTES_MAX: u64 = 1 << 20;
/// Owner of the lock of an image into which an increment is imported. One that is left by a process that was killed can
/// be
/// broken.
pub const IMPORT_OWNER: &str = "esker import";
/// Version of the format that is written, and the highest that is read.
pub const EXPORT_VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"ESKERVOL";
const FLAG_FROM: u32 = 1;
const FLAG_TO: u32 = 2;

/// Fields of the head of an export: name, offset, bytes. The two names and a checksum follow.
pub(crate) const EXPORT_LAYOUT: &[(&str, usize, usize)] = &[
    ("magic", 0, 8),
    ("version", 8, 4),
    ("flags", 12, 4),
    ("size", 16, 8),
    ("object_bytes", 24, 8),
    ("stripe_unit", 32, 8),
    ("stripe_count", 40, 8),
    ("from_len", 48, 4),
    ("to_len", 52, 4),
];
const HEAD_BYTES: usize = 56;

/// Fields of the head of a chunk: name, offset, bytes. Its data follows.
pub(crate) const CHUNK_LAYOUT: &[(&str, usize, usize)] =
    &[("kind", 0, 4), ("crc", 4, 4), ("offset", 8, 8), ("len", 16, 8)];
const CHUNK_HEAD_BYTES: usize = 24;

const DATA: u32 = 1;
const ZEROS: u32 = 2;
const END: u32 = 3;

/// What stands at the start of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportHead {
    /// Size of the image in bytes.
    pub size: u64,
    /// How the image was cut into objects.
    pub layout: Layout,
    /// The snapshot that it is an increment of.
    pub from: Option<String>,
    /// The snapshot that it shows.
    pub to: Option<String>,
}

/// What was exported or imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transferred {
    /// Bytes of data.
    pub data_bytes: u64,
    /// Bytes of zeros that were told as such.
    pub zero_bytes: u64,
    /// Chunks in the stream.
    pub chunks: u64,
}

impl Transferred {
    fn add(&mut self, kind: u32, len: u64) {
        self.chunks += 1;
        if kind == DATA {
            self.data_bytes += len;
        } else {
            self.zero_bytes += len;
        }
    }
}

fn damaged(why: impl Into<String>) -> Error {
    Error::Damaged { what: "export".into(), why: why.into() }
}

impl ExportHead {
    fn encode(&self) -> Vec<u8> {
        let (from, to) = (self.from.as_deref().unwrap_or(""), self.to.as_deref().unwrap_or(""));
        let flags = if self.from.is_some() { FLAG_FROM } else { 0 } | if self.to.is_some() { FLAG_TO } else { 0 };
        let mut out = Vec::with_capacity(HEAD_BYTES + from.len() + to.len() + 4);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&EXPORT_VERSION.to_le_bytes());
        out.extend_from_slice(&flags.to_le_bytes());
        for value in [self.size, self.layout.object_bytes, self.layout.stripe_unit, self.layout.stripe_count] {
            out.extend_from_slice(&value.to_le_bytes());
        }
        out.extend_from_slice(&(from.len() as u32).to_le_bytes());
        out.extend_from_slice(&(to.len() as u32).to_le_bytes());
        out.extend_from_slice(from.as_bytes());
        out.extend_from_slice(to.as_bytes());
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the head of an export, and its checksum, which that of the first chunk continues.
    fn read(source: &mut dyn Read) -> Result<(Self, u32)> {
        let mut head = vec![0; HEAD_BYTES];
        fill(source, &mut head, "head")?;
        if &head[..8] != MAGIC {
            return Err(damaged("it does not begin with ESKERVOL: it is no export of a volume"));
        }
        let version = u32_at(&head, 8);
        if version > EXPORT_VERSION {
            return Err(Error::Newer { what: "the export", found: version, max: EXPORT_VERSION });
        }
        let (from_len, to_len) = (u32_at(&head, 48) as usize, u32_at(&head, 52) as usize);
        if from_len > NAME_BYTES_MAX || to_len > NAME_BYTES_MAX {
            return Err(damaged(format!("names of {from_len} and {to_len} bytes exceed NAME_BYTES_MAX")));
        }
        let mut rest = vec![0; from_len + to_len + 4];
        fill(source, &mut rest, "head")?;
        head.extend_from_slice(&rest);
        let (bytes, stored) = head.split_at(HEAD_BYTES + from_len + to_len);
        let crc = crc32c::crc32c(bytes);
        if u32_at(stored, 0) != crc {
            return Err(damaged(format!("checksum of the head: expected {:#x}, found {crc:#x}", u32_at(stored, 0))));
        }
        let text = |range: std::ops::Range<usize>| {
            String::from_utf8(bytes[range].to_vec()).map_err(|_| damaged("the name of a snapshot is no text"))
        };
        let flags = u32_at(bytes, 12);
        let layout =
            Layout { object_bytes: u64_at(bytes, 24), stripe_unit: u64_at(bytes, 32), stripe_count: u64_at(bytes, 40) };
        layout.check()?;
        let from = text(HEAD_BYTES..HEAD_BYTES + from_len)?;
        let to = text(HEAD_BYTES + from_len..HEAD_BYTES + from_len + to_len)?;
        let size = u64_at(bytes, 16);
        if size > IMAGE_BYTES_MAX {
            return Err(damaged(format!("size {size} exceeds IMAGE_BYTES_MAX = {IMAGE_BYTES_MAX}")));
        }
        let from = (flags & FLAG_FROM != 0).then_some(from);
        let to = (flags & FLAG_TO != 0).then_some(to);
        Ok((Self { size, layout, from, to }, crc))
    }
}

fn fill(source: &mut dyn Read, bytes: &mut [u8], what: &str) -> Result<()> {
    source.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => damaged(format!("it ends inside {what}")),
        _ => Error::stream("reading the export", error),
    })
}

/// Writes chunks, each checksum continuing the one before.
struct Chunks<'a> {
    sink: &'a mut dyn Write,
    crc: u32,
}

impl Chunks<'_> {
    fn put(&mut self, kind: u32, offset: u64, len: u64, data: &[u8]) -> Result<()> {
        let mut head = [0; CHUNK_HEAD_BYTES];
        head[..4].copy_from_slice(&kind.to_le_bytes());
        head[8..16].copy_from_slice(&offset.to_le_bytes());
        head[16..].copy_from_slice(&len.to_le_bytes());
        self.crc = chunk_crc(self.crc, &head, data);
        head[4..8].copy_from_slice(&self.crc.to_le_bytes());
        let written = self.sink.write_all(&head).and_then(|()| self.sink.write_all(data));
        written.map_err(|error| Error::stream(format!("writing the export of {len} bytes at {offset}"), error))
    }
}

fn chunk_crc(before: u32, head: &[u8; CHUNK_HEAD_BYTES], data: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(before, &head[..4]);
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &head[8..]), data)
}

fn stopped(what: &str) -> Error {
    Error::refused(format!("{what} was stopped"))
}

impl Image {
    /// Exports a snapshot (`to`), or the image as it is, whole or as what changed since snapshot `from`. `progress` is
    /// told objects.
    ///
    /// # Errors
    /// Those of [`Image::diff`]; [`Error::Stream`] when `sink` fails; [`Error::Refused`] when `progress` stops it.
    pub fn export(
        &self,
        from: Option<&str>,
        to: Option<&str>,
        sink: &mut dyn Write,
        progress: Progress<'_>,
    ) -> Result<Transferred> {
        let (first, point) = self.diff_points(from, to)?;
        let text = |name: Option<&str>| name.map(str::to_owned);
        let head = ExportHead { size: point.size, layout: point.layout, from: text(from), to: text(to) }.encode();
        sink.write_all(&head).map_err(|error| Error::stream("writing the head of the export", error))?;
        let mut chunks = Chunks { sink, crc: u32_at(&head, head.len() - 4) };
        let mut done = Transferred::default();
        let diff = Diff::new(self.store(), first.clone(), point.clone())?;
        let total = diff.objects();
        let finished = diff.each_set(&mut |extents, objects| {
            for extent in extents {
                self.export_extent(&point, *extent, &mut chunks, &mut done)?;
            }
            // Said for each part, so that nothing of a snapshot that was removed meanwhile passes for its data.
            self.check_points(first.as_ref(), &point)?;
            Ok(progress(objects, total))
        })?;
        if !finished {
            return Err(stopped("the export"));
        }
        chunks.put(END, done.chunks, done.data_bytes, &[])?;
        chunks.sink.flush().map_err(|error| Error::stream("writing the export", error))?;
        Ok(done)
    }

    fn export_extent(
        &self,
        point: &crate::source::Point,
        extent: Extent,
        chunks: &mut Chunks<'_>,
        done: &mut Transferred,
    ) -> Result<()> {
        if !extent.data {
            done.add(ZEROS, extent.len);
            return chunks.put(ZEROS, extent.offset, extent.len, &[]);
        }
        let mut at = extent.offset;
        while at < extent.offset + extent.len {
            let len = CHUNK_BYTES_MAX.min(extent.offset + extent.len - at);
            let data = joined(image::read(self.store(), point, at, len)?.wait()?);
            done.add(DATA, len);
            chunks.put(DATA, at, len, &data)?;
            at += len;
        }
        Ok(())
    }

    /// Calls `visit` with all data of a snapshot, or of the image as it is, in pieces of at most [`CHUNK_BYTES_MAX`] in
    /// order; what lies between is zeros. `progress` is told bytes of the image.
    ///
    /// # Errors
    /// [`Error::NoSnapshot`]; [`Error::Stream`] when `visit` fails; [`Error::Refused`] when `progress` stops it; the
    /// store's.
    pub fn export_raw(
        &self,
        snapshot: Option<&str>,
        visit: &mut dyn FnMut(u64, &Bytes) -> std::io::Result<()>,
        progress: Progress<'_>,
    ) -> Result<Transferred> {
        let (_, point) = self.diff_points(None, snapshot)?;
        let mut done = Transferred::default();
        let diff = Diff::new(self.store(), None, point.clone())?;
        let finished = diff.each_set(&mut |extents, _| {
            for extent in extents {
                let mut at = extent.offset;
                while at < extent.offset + extent.len {
                    let len = CHUNK_BYTES_MAX.min(extent.offset + extent.len - at);
                    let data = joined(image::read(self.store(), &point, at, len)?.wait()?);
                    visit(at, &data).map_err(|error| Error::stream(format!("writing {len} bytes at {at}"), error))?;
                    done.add(DATA, len);
                    at += len;
                }
            }
            self.check_points(None, &point)?;
            Ok(progress(extents.last().map_or(0, |last| last.offset + last.len), point.size))
        })?;
        if finished { Ok(done) } else { Err(stopped("the export")) }
    }

    /// Writes what `source` has, from the start of the image on, and nothing where that is zeros. `progress` is told
    /// bytes. Ends durable.
    ///
    /// # Errors
    /// [`Error::Stream`] when `source` fails; [`Error::PastEnd`] if it is longer than the image; those of
    /// [`Image::write`].
    pub fn import_raw(&self, source: &mut dyn Read, progress: Progress<'_>) -> Result<Transferred> {
        let mut done = Transferred::default();
        let (mut at, size) = (0, self.size());
        loop {
            let mut buffer = vec![0; CHUNK_BYTES_MAX as usize];
            let mut len = 0;
            while len < buffer.len() {
                match source.read(&mut buffer[len..]) {
                    Ok(0) => break,
                    Ok(read) => len += read,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(Error::stream(format!("reading at {at}"), error)),
                }
            }
            if len == 0 {
                break;
            }
            buffer.truncate(len);
            for (start, end, data) in runs(&buffer) {
                if data {
                    let bytes = Bytes::copy_from_slice(&buffer[start..end]);
                    self.write(at + start as u64, bytes, Durability::Applied)?.wait()?;
                } else {
                    image::check_range(at + start as u64, (end - start) as u64, size)?;
                }
                done.add(if data { DATA } else { ZEROS }, (end - start) as u64);
            }
            at += len as u64;
            if !progress(at, size) {
                return Err(stopped("the import"));
            }
        }
        self.flush().wait()?;
        Ok(done)
    }
}

/// Runs of blocks of 4 KiB that are zeros or not.
fn runs(bytes: &[u8]) -> Vec<(usize, usize, bool)> {
    let mut runs: Vec<(usize, usize, bool)> = Vec::new();
    for (number, block) in bytes.chunks(4096).enumerate() {
        let (start, data) = (number * 4096, block.iter().any(|byte| *byte != 0));
        match runs.last_mut() {
            Some((_, end, last)) if *last == data => *end += block.len(),
            _ => runs.push((start, start + block.len(), data)),
        }
    }
    runs
}

/// Fails unless the stream ends here.
fn check_end(source: &mut dyn Read) -> Result<()> {
    loop {
        match source.read(&mut [0]) {
            Ok(0) => return Ok(()),
            Ok(_) => return Err(damaged("bytes follow its end: it is not one export")),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::stream("reading behind the end of the export", error)),
        }
    }
}

impl Volumes {
    /// Imports an export as a new image (a full one) or into an image (an increment), and makes the snapshot that it
    /// shows, if it names one. All of
    /// it or nothing: until it is done the image is [unfinished](Error::Unfinished), or, of an increment, locked by
    /// [`IMPORT_OWNER`], and neither is
    /// read. An image whose import failed is removed; one that took part of an increment is rolled back to the snapshot
    /// before, which a process that
    /// was killed leaves to [`Image::rollback`]. `progress` is told bytes of the image. Ends durable.
    ///
    /// # Errors
    /// [`Error::Damaged`] and [`Error::Newer`] for what is wrong with the stream, [`Error::Stream`] when it fails;
    /// [`Error::Exists`],
    /// [`Error::Unfinished`] and [`Error::NoImage`]; [`Error::NoSnapshot`] and [`Error::Refused`] for an increment of
    /// something else;
    /// [`Error::Locked`]; those of writing.
    pub fn import(
        &self,
        name: &str,
        source: &mut dyn Read,
        now_ms: u64,
        progress: Progress<'_>,
    ) -> Result<(Image, Transferred)> {
        let (head, crc) = ExportHead::read(source)?;
        if let Some(from) = &head.from {
            let image = self.image(name)?;
            // No other client writes between the look at what the image is and the end.
            image.lock(IMPORT_OWNER)?;
            let done = image.import_increment(from, &head, source, crc, now_ms, progress);
            let unlocked = image.unlock();
            return done.and_then(|done| unlocked.map(|()| (image, done)));
        }
        let image = self.begin(name, head.size, head.layout, now_ms)?;
        let imported = image.import_chunks(source, &head, crc, None, progress);
        let finished = imported.and_then(|done| image.finish(head.to.as_deref(), now_ms).map(|()| done));
        self.or_removed(image, finished)
    }

    /// Makes an image of `size` bytes of what `source` has, from the start of the image on; zeros take no space. All of
    /// it or
    /// nothing, as [`Volumes::import`]. `progress` is told bytes. Ends durable.
    ///
    /// # Errors
    /// Those of [`Volumes::create`] and [`Image::import_raw`]; [`Error::Unfinished`].
    pub fn import_raw(
        &self,
        name: &str,
        size: u64,
        layout: Layout,
        source: &mut dyn Read,
        now_ms: u64,
        progress: Progress<'_>,
    ) -> Result<(Image, Transferred)> {
        let image = self.begin(name, size, layout, now_ms)?;
        let imported = image.import_raw(source, progress);
        let finished = imported.and_then(|done| image.finish(None, now_ms).map(|()| done));
        self.or_removed(image, finished)
    }

    /// An image with what was imported into it; where that failed, it is removed.
    fn or_removed(&self, image: Image, done: Result<Transferred>) -> Result<(Image, Transferred)> {
        match done {
            Ok(done) => Ok((image, done)),
            Err(error) => {
                // The import's own error is the one to tell.
                let _ = self.remove_by_id(image.name(), image.id());
                Err(error)
            }
        }
    }
}

impl Image {
    /// Ends the making of an image, with a snapshot if it is to have one.
    fn finish(&self, snapshot: Option<&str>, now_ms: u64) -> Result<()> {
        if let Some(name) = snapshot {
            self.require_snapshots()?;
            format::check_name("snapshot name", name)?;
        }
        let finished = self.change(|state, txn| {
            state.making = false;
            snapshot.map_or(Ok(()), |name| self.push_snapshot(state, txn, name, now_ms))
        });
        finished.or_else(|error| match header::load(self.store(), self.inner.id) {
            // It was done, though the answer was lost or looking at it failed. Others may use the image already.
            Ok(Some(state)) if !state.making && !state.removing => Ok(()),
            _ => Err(error),
        })
    }

    /// Writes an increment of snapshot `from` into the image, which this handle has locked.
    fn import_increment(
        &self,
        from: &str,
        export: &ExportHead,
        source: &mut dyn Read,
        crc: u32,
        now_ms: u64,
        progress: Progress<'_>,
    ) -> Result<Transferred> {
        self.finish_shrinking(&mut |_, _| true)?;
        self.check_is(from)?;
        if let Some(to) = &export.to {
            format::check_name("snapshot name", to)?;
            self.check_no_snapshot(to)?;
        }
        let mut id = 0;
        let begun = self.change(|state, txn| {
            self.check_lock(state)?;
            self.check_rollback(state)?;
            let (found, record) = self.find_snapshot(from)?;
            txn.push_guard(&format::header(self.inner.id), same_record(found, &record));
            id = found;
            // From here on it is what a rollback that was not finished is: no reader reads it, and finishing the
            // rollback makes it what it was.
            state.rollback = id;
            state.size = state.size.max(export.size);
            Ok(())
        });
        let imported = begun.and_then(|()| self.import_chunks(source, export, crc, Some(id), progress));
        let (mut is_whole, mut bytes) = (false, Transferred::default());
        let done = imported.and_then(|done| {
            (is_whole, bytes) = (true, done);
            self.change(|state, txn| {
                self.check_lock(state)?;
                if state.rollback != id {
                    return Err(Error::refused(format!("the import into image {} was taken back", self.inner.name)));
                }
                state.rollback = 0;
                if export.size < state.size {
                    state.dirty_end = state.size;
                    state.size = export.size;
                    if let Some(parent) = &mut state.parent {
                        parent.overlap = parent.overlap.min(export.size);
                    }
                }
                export.to.as_deref().map_or(Ok(()), |to| self.push_snapshot(state, txn, to, now_ms))
            })
        });
        let error = match done {
            Ok(()) => {
                // What is cut off goes in the background, if not now.
                let _ = self.finish_shrinking(&mut |_, _| true);
                return Ok(bytes);
            }
            Err(error) => error,
        };
        // An answer may have been lost, or looking at what was done have failed: the mark tells. While this handle has
        // the lock no other client takes it away.
        match header::load(self.store(), self.inner.id) {
            Ok(Some(state)) if state.rollback == id && id != 0 => {
                // The import's own error is the one to tell; the rollback may be done again by hand.
                let _ = self.rollback(from, &mut |_, _| true);
                Err(error)
            }
            Ok(Some(state)) if is_whole && state.lock_epoch == self.held() => Ok(bytes),
            _ => Err(error),
        }
    }

    /// Fails unless the image is what its snapshot is.
    fn check_is(&self, snapshot: &str) -> Result<()> {
        let size = self.snapshot(snapshot)?.size();
        let mut same = self.size() == size;
        self.diff(Some(snapshot), None, &mut |_| {
            same = false;
            Ok(false)
        })?;
        if same {
            return Ok(());
        }
        let name = &self.inner.name;
        let why =
            format!("image {name} was changed since {name}@{snapshot}, which the increment goes on from; roll it back");
        Err(Error::refused(why))
    }

    fn import_chunks(
        &self,
        source: &mut dyn Read,
        export: &ExportHead,
        mut crc: u32,
        from: Option<u64>,
        progress: Progress<'_>,
    ) -> Result<Transferred> {
        let mut done = Transferred::default();
        loop {
            let mut head = [0; CHUNK_HEAD_BYTES];
            fill(source, &mut head, "the head of a chunk")?;
            let (kind, offset, len) = (u32_at(&head, 0), u64_at(&head, 8), u64_at(&head, 16));
            let place = || format!("chunk {} (kind {kind}, {len} bytes at {offset})", done.chunks);
            if !matches!(kind, DATA | ZEROS | END) {
                return Err(damaged(format!("{}: unknown kind", place())));
            }
            if kind == DATA && len > CHUNK_BYTES_MAX {
                return Err(damaged(format!("{}: exceeds CHUNK_BYTES_MAX = {CHUNK_BYTES_MAX}", place())));
            }
            let mut data = vec![0; if kind == DATA { len as usize } else { 0 }];
            fill(source, &mut data, "a chunk")?;
            crc = chunk_crc(crc, &head, &data);
            if u32_at(&head, 4) != crc {
                let stored = u32_at(&head, 4);
                return Err(damaged(format!("{}: checksum: expected {stored:#x}, found {crc:#x}", place())));
            }
            if kind == END {
                if (offset, len) != (done.chunks, done.data_bytes) {
                    return Err(damaged(format!("{}: {} chunks were there", place(), done.chunks)));
                }
                check_end(source)?;
                self.flush().wait()?;
                return Ok(done);
            }
            image::check_range(offset, len, export.size).map_err(|error| damaged(format!("{}: {error}", place())))?;
            let writer = |at, len| from.map_or(Writer::User(at, len), Writer::Import);
            if kind == DATA {
                self.write_by(writer(offset, len), offset, data.into(), Durability::Applied)?.wait()?;
            } else {
                self.zero_runs(offset, offset + len, Durability::Applied, writer)?.map_or(Ok(()), |at| at.wait())?;
            }
            done.add(kind, len);
            if !progress(offset + len, export.size) {
                return Err(stopped("the import"));
            }
        }
    }
}

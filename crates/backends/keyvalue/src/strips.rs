//! The bytes of an object: strips in the ordered store, and below them extents in files.
//!
//! write: small → strips (a strip that is covered is not read first); large, where there are files → a file and an
//! extent
//!
//! Invariants:
//! 1. What a strip holds lies over what an extent holds; a large write and a hole take both away.
//! 2. Neither holds anything at or past the object's size.

use bytes::{Bytes, BytesMut};
use esker_store::{DataRun, Error, Result};

use crate::draft::Draft;
use crate::keys::{self, Tag};
use crate::records::{Extent, Strip, corrupt, decode_number, encode_number};

/// Largest object of a store without strips: it is one value, read and written whole (256 MiB of data).
pub const WHOLE_VALUE_BYTES_MAX: u64 = 256 << 20;
/// Up to so many strips are looked up one by one; more are scanned.
const LOOKUPS_MAX: u64 = 4;
/// Data is copied in pieces of this size.
const COPY_BYTES: u64 = 4 << 20;

impl Draft<'_> {
    /// Strip numbers that meet `start..end`, which is not empty.
    fn strips_of(&self, start: u64, end: u64) -> (u64, u64) {
        (start / self.state.strip_bytes, (end - 1) / self.state.strip_bytes)
    }

    fn strip(&self, number: u64, index: u64) -> Result<Strip> {
        let key = keys::numbered(Tag::Strips, number, index);
        Ok(self.get(&key)?.map(|value| Strip::decode(&key, value)).transpose()?.unwrap_or_default())
    }

    fn set_strip(&mut self, number: u64, index: u64, strip: &Strip) -> Result<()> {
        let len = strip.data_bytes() as u64;
        if self.state.strip_bytes == u64::MAX && len > WHOLE_VALUE_BYTES_MAX {
            let (limit, max) = ("WHOLE_VALUE_BYTES_MAX", WHOLE_VALUE_BYTES_MAX);
            return Err(Error::TooLarge { what: "object in one value", len, limit, max });
        }
        self.put(keys::numbered(Tag::Strips, number, index), strip.encode());
        Ok(())
    }

    /// Visits the strips that meet `start..end`, which is not empty.
    fn each_strip(&self, number: u64, start: u64, end: u64, visit: &mut dyn FnMut(u64, Strip)) -> Result<()> {
        let (first, last) = self.strips_of(start, end);
        if last - first < LOOKUPS_MAX {
            for index in first..=last {
                visit(index, self.strip(number, index)?);
            }
            return Ok(());
        }
        let from = keys::numbered(Tag::Strips, number, first);
        let to = keys::next(&keys::numbered(Tag::Strips, number, last));
        self.scan(&from, &to, false, &mut |key, value| {
            let index = keys::rest_number(key).ok_or_else(|| corrupt("strip", key))?;
            visit(index, Strip::decode(key, Bytes::copy_from_slice(value))?);
            Ok(true)
        })
    }

    /// The extents that meet `start..end`, in order.
    fn extents_in(&self, number: u64, start: u64, end: u64) -> Result<Vec<Extent>> {
        let mut found = Vec::new();
        if self.state.files.is_none() || start >= end {
            return Ok(found);
        }
        // One that begins before may reach into the range; extents do not overlap, so it is the last before it.
        let (from, at) = (keys::numbered(Tag::Extents, number, 0), keys::numbered(Tag::Extents, number, start));
        self.scan(&from, &at, true, &mut |key, value| {
            let extent = Extent::decode(key, value)?;
            found.extend((extent.end() > start).then_some(extent));
            Ok(false)
        })?;
        self.scan(&at, &keys::numbered(Tag::Extents, number, end), false, &mut |key, value| {
            found.push(Extent::decode(key, value)?);
            Ok(true)
        })?;
        Ok(found)
    }

    /// Lays `data` (not empty) at `offset`; `size` is the object's before.
    pub fn write_bytes(&mut self, number: u64, size: u64, offset: u64, data: Bytes) -> Result<()> {
        let end = offset + data.len() as u64;
        if let Some(files) = &self.state.files
            && data.len() >= self.state.large_bytes
        {
            let file = self.state.number();
            self.outcome.new_files.push(file);
            files.create(file, &data)?;
            self.punch(number, size, offset, end)?;
            let extent = Extent { offset, len: data.len() as u64, file, file_offset: 0 };
            self.put(keys::numbered(Tag::Extents, number, offset), Some(extent.encode()));
            self.put(keys::file(file), Some(encode_number(extent.len)));
            return Ok(());
        }
        let (first, last) = self.strips_of(offset, end);
        for index in first..=last {
            let start = index * self.state.strip_bytes;
            let stop = start.saturating_add(self.state.strip_bytes);
            let (from, to) = (offset.max(start), end.min(stop));
            // A strip that is covered, or lies past the end, holds nothing that stays.
            let fresh = (from == start && to == stop) || start >= size;
            let mut strip = if fresh { Strip::default() } else { self.strip(number, index)? };
            strip.write(from, data.slice((from - offset) as usize..(to - offset) as usize));
            self.set_strip(number, index, &strip)?;
        }
        Ok(())
    }

    /// Makes `start..end` a hole; `size` is the object's before.
    pub fn punch(&mut self, number: u64, size: u64, start: u64, end: u64) -> Result<()> {
        let end = end.min(size);
        if start >= end {
            return Ok(());
        }
        let mut met = Vec::new();
        self.each_strip(number, start, end, &mut |index, strip| met.push((index, strip)))?;
        for (index, mut strip) in met {
            if !strip.runs().is_empty() {
                strip.punch(start, end);
                self.set_strip(number, index, &strip)?;
            }
        }
        for extent in self.extents_in(number, start, end)? {
            self.put(keys::numbered(Tag::Extents, number, extent.offset), None);
            let mut kept = 0;
            for (from, to) in [(extent.offset, start), (end, extent.end())] {
                if from < to {
                    let part = extent.cut(from, to);
                    kept += part.len;
                    self.put(keys::numbered(Tag::Extents, number, part.offset), Some(part.encode()));
                }
            }
            self.release(extent.file, extent.len - kept)?;
        }
        Ok(())
    }

    /// Takes bytes of a file out of use; an unused file goes.
    fn release(&mut self, file: u64, len: u64) -> Result<()> {
        let key = keys::file(file);
        let used = self.get(&key)?.map(|value| decode_number(&key, &value)).transpose()?.unwrap_or(0);
        if used > len {
            self.put(key, Some(encode_number(used - len)));
        } else {
            self.put(key, None);
            self.outcome.unused_files.push(file);
        }
        Ok(())
    }

    /// The bytes of `start..end`, holes as zeros.
    pub fn read_bytes(&self, number: u64, start: u64, end: u64) -> Result<Bytes> {
        if start >= end {
            return Ok(Bytes::new());
        }
        let mut out = BytesMut::zeroed((end - start) as usize);
        if let Some(files) = &self.state.files {
            for extent in self.extents_in(number, start, end)? {
                let part = extent.cut(start, end);
                let at = (part.offset - start) as usize;
                files.read(part.file, part.file_offset, &mut out[at..at + part.len as usize])?;
            }
        }
        self.each_strip(number, start, end, &mut |_, strip| {
            for (offset, data) in strip.runs() {
                let (from, to) = (start.max(*offset), end.min(offset + data.len() as u64));
                if from < to {
                    let part = &data[(from - offset) as usize..(to - offset) as usize];
                    out[(from - start) as usize..(to - start) as usize].copy_from_slice(part);
                }
            }
        })?;
        Ok(out.freeze())
    }

    /// The runs of data in `start..end`, joined.
    pub fn data_runs(&self, number: u64, start: u64, end: u64) -> Result<Vec<DataRun>> {
        if start >= end {
            return Ok(Vec::new());
        }
        let extents = self.extents_in(number, start, end)?;
        let mut parts: Vec<(u64, u64)> = extents.iter().map(|extent| (extent.offset, extent.end())).collect();
        self.each_strip(number, start, end, &mut |_, strip| {
            parts.extend(strip.runs().iter().map(|(offset, data)| (*offset, offset + data.len() as u64)));
        })?;
        parts.sort_unstable();
        let mut runs: Vec<DataRun> = Vec::new();
        for (from, to) in parts {
            let (from, to) = (from.max(start), to.min(end));
            match runs.last_mut() {
                Some(last) if last.offset + last.len >= from => last.len = last.len.max(to.saturating_sub(last.offset)),
                _ if from < to => runs.push(DataRun { offset: from, len: to - from }),
                _ => {}
            }
        }
        Ok(runs)
    }

    /// The data of `start..end` in pieces, by offset, as far as there is `room`.
    pub fn pieces(&self, number: u64, start: u64, end: u64, room: &mut Room) -> Result<Vec<(u64, Bytes)>> {
        let mut pieces = Vec::new();
        for run in self.data_runs(number, start, end)? {
            room.take(run.len)?;
            let mut at = run.offset;
            while at < run.offset + run.len {
                let to = (at + COPY_BYTES).min(run.offset + run.len);
                pieces.push((at, self.read_bytes(number, at, to)?));
                at = to;
            }
        }
        Ok(pieces)
    }
}

/// Most bytes that one transaction may copy by clone and clone-range: they stand in memory until it is committed (256
/// MiB).
pub const CLONE_BYTES_MAX: u64 = 256 << 20;

/// What a transaction may still copy.
pub struct Room(u64);

impl Default for Room {
    fn default() -> Self {
        Self(CLONE_BYTES_MAX)
    }
}

impl Room {
    /// Takes `len` bytes of it.
    ///
    /// # Errors
    /// [`Error::TooLarge`] with `CLONE_BYTES_MAX`.
    pub fn take(&mut self, len: u64) -> Result<()> {
        self.0 = self.0.checked_sub(len).ok_or(Error::TooLarge {
            what: "copy",
            len: (CLONE_BYTES_MAX - self.0).saturating_add(len),
            limit: "CLONE_BYTES_MAX",
            max: CLONE_BYTES_MAX,
        })?;
        Ok(())
    }
}

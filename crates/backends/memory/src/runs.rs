//! The bytes space of an object: runs of data by offset, and a size.
//!
//! Invariants:
//! 1. Runs are not empty, do not overlap, and end at or before `size`.
//! 2. What no run covers is a hole and reads as zeros.
//! 3. Neighbouring runs may stand apart in the map; [`Runs::data`] joins them.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use esker_store::DataRun;

/// Sparse bytes. Cloning shares the data.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    size: u64,
    runs: BTreeMap<u64, Bytes>,
}

impl Runs {
    /// Size in bytes, holes included.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Puts `data` at `offset`. Empty data changes nothing.
    pub fn write(&mut self, offset: u64, data: Bytes) {
        if data.is_empty() {
            return;
        }
        let end = offset + data.len() as u64;
        self.punch(offset..end);
        self.size = self.size.max(end);
        self.runs.insert(offset, data);
    }

    /// Makes `len` bytes from `offset` a hole and grows to its end. An empty range changes nothing.
    pub fn zero(&mut self, offset: u64, len: u64) {
        if len > 0 {
            self.punch(offset..offset + len);
            self.size = self.size.max(offset + len);
        }
    }

    /// Cuts off what lies past `size`, or adds a hole.
    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.punch(size..self.size);
        }
        self.size = size;
    }

    /// The bytes of `range`, cut to the size.
    pub fn read(&self, range: Range<u64>) -> Bytes {
        let end = range.end.min(self.size);
        if range.start >= end {
            return Bytes::new();
        }
        let range = range.start..end;
        let len = (range.end - range.start) as usize;
        let mut parts = self.parts(&range);
        let first = parts.next();
        match &first {
            Some((_, data)) if data.len() == len => return data.clone(),
            None => return BytesMut::zeroed(len).freeze(),
            Some(_) => {}
        }
        let mut bytes = BytesMut::zeroed(len);
        for (offset, data) in first.into_iter().chain(parts) {
            let at = (offset - range.start) as usize;
            bytes[at..at + data.len()].copy_from_slice(&data);
        }
        bytes.freeze()
    }

    /// The runs of data inside `range`, cut to it, neighbours joined.
    pub fn data(&self, range: Range<u64>) -> Vec<DataRun> {
        let mut found: Vec<DataRun> = Vec::new();
        for (offset, data) in self.parts(&range) {
            let len = data.len() as u64;
            match found.last_mut() {
                Some(last) if last.offset + last.len == offset => last.len += len,
                _ => found.push(DataRun { offset, len }),
            }
        }
        found
    }

    /// Copies `len` bytes at `from_offset` of `source` over this at `to_offset`, holes as holes.
    pub fn copy_from(&mut self, source: &Self, from_offset: u64, len: u64, to_offset: u64) {
        self.zero(to_offset, len);
        for (offset, data) in source.parts(&(from_offset..from_offset + len)) {
            self.write(to_offset + (offset - from_offset), data);
        }
    }

    /// The runs that meet `range`, cut to it.
    fn parts(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, Bytes)> {
        let Range { start, end } = *range;
        // A run that begins before the range may reach into it.
        let from = self.runs.range(..=start).next_back().map_or(start, |(offset, _)| *offset);
        self.runs.range(from..end.max(from)).filter_map(move |(offset, data)| {
            let (cut_start, cut_end) = (start.max(*offset), end.min(offset + data.len() as u64));
            (cut_start < cut_end)
                .then(|| (cut_start, data.slice((cut_start - offset) as usize..(cut_end - offset) as usize)))
        })
    }

    /// Takes the data of `range` away; the size stays.
    fn punch(&mut self, range: Range<u64>) {
        let from = self.runs.range(..=range.start).next_back().map_or(range.start, |(offset, _)| *offset);
        let met: Vec<u64> = self.runs.range(from..range.end.max(from)).map(|(offset, _)| *offset).collect();
        for offset in met {
            let Some(data) = self.runs.remove(&offset) else { continue };
            let end = offset + data.len() as u64;
            if offset < range.start {
                let keep = (range.start.min(end) - offset) as usize;
                self.runs.insert(offset, data.slice(..keep));
            }
            if end > range.end {
                let skip = (range.end.max(offset) - offset) as usize;
                self.runs.insert(range.end.max(offset), data.slice(skip..));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_punch_inside_a_run_leaves_both_ends() {
        let mut runs = Runs::default();
        runs.write(10, Bytes::from_static(b"abcdefgh"));
        runs.zero(12, 3);
        assert_eq!(&runs.read(0..100)[8..], b"\0\0ab\0\0\0fgh");
        assert_eq!(runs.data(0..100), [DataRun { offset: 10, len: 2 }, DataRun { offset: 15, len: 3 }]);
    }

    #[test]
    fn a_punch_beside_a_run_leaves_it_whole() {
        let mut runs = Runs::default();
        runs.write(0, Bytes::from_static(b"abc"));
        runs.zero(5, 2);
        runs.zero(3, 1);
        assert_eq!(runs.read(0..9), Bytes::from_static(b"abc\0\0\0\0"));
        assert_eq!(runs.data(0..9), [DataRun { offset: 0, len: 3 }]);
    }

    #[test]
    fn neighbouring_runs_are_told_as_one() {
        let mut runs = Runs::default();
        runs.write(0, Bytes::from_static(b"abc"));
        runs.write(3, Bytes::from_static(b"def"));
        assert_eq!(runs.data(1..5), [DataRun { offset: 1, len: 4 }]);
    }
}

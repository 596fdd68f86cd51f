//! An accepted transaction → rows of the table, and what is to be done to files.
//!
//! journal record or submitted transaction → [`apply`] → rows (in a table transaction that is not committed yet) and
//! [`FileOp`]s in order → files → the table transaction is committed
//!
//! Invariants:
//! 1. The same transactions on the same table give the same rows, numbers and file operations: replay does what the
//!    first run did.
//! 2. A file operation names files by number and holds its data, its runs and its place in the journal, so that it can
//!    be done again without looking at the table.

use std::collections::BTreeSet;
use std::ops::{Bound, Range};

use bytes::Bytes;
use esker_store::{Change, CommitSeq, Condition, DataRun, ObjectId, Op, Result, Transaction};

use crate::table::{self, Head, Position, Read, Rows, key, key_end};

/// Bytes of an object that one file holds (1 TiB): below the largest file of the common file systems.
pub const PART_BYTES: u64 = 1 << 40;
/// Rows that a clone copies at a time, and bytes of them.
const CLONE_ROWS: usize = 1_000;
const CLONE_BYTES: usize = 4 << 20;

/// Something to be done to files.
#[derive(Clone, Debug)]
pub enum FileOp {
    /// A file of data that is new.
    New { number: u64, part: u64 },
    /// Data of an object.
    Write { number: u64, offset: u64, data: Bytes },
    /// What is a hole now.
    Punch { number: u64, run: DataRun },
    /// Fills the files of a new object with the data of another.
    Copy { from: u64, to: u64, runs: Vec<DataRun> },
    /// Copies runs of an object to another place, by way of a staging file that only this operation has.
    CopyRange { at: (CommitSeq, u32), from: u64, to: u64, runs: Vec<DataRun>, from_offset: u64, to_offset: u64 },
}

/// Whether a guard's condition holds for the object.
pub fn holds(table: &impl Read, id: &ObjectId, condition: &Condition) -> Result<bool> {
    let Some(head) = table::head(table, id)? else {
        return Ok(match condition {
            Condition::Absent
            | Condition::XattrAbsent { .. }
            | Condition::OmapAbsent { .. }
            | Condition::SlotAbsent { .. } => true,
            Condition::XattrCompare { absent_holds, .. } => *absent_holds,
            _ => false,
        });
    };
    let xattr = |name: &[u8]| table.row(&key(b'A', head.number, name));
    let omap = |name: &[u8]| table.row(&key(b'O', head.number, name));
    let slot = |index: &u64| table.row(&key(b'S', head.number, &index.to_be_bytes()));
    Ok(match condition {
        Condition::Exists => true,
        Condition::Absent => false,
        Condition::XattrEquals { name, value } => xattr(name)?.as_ref() == Some(value),
        Condition::XattrAbsent { name } => xattr(name)?.is_none(),
        Condition::XattrCompare { name, compare, value, absent_holds } => match xattr(name)? {
            None => *absent_holds,
            Some(stored) => {
                <[u8; 8]>::try_from(&stored[..]).is_ok_and(|stored| compare.holds(u64::from_le_bytes(stored), *value))
            }
        },
        Condition::OmapAbsent { key } => omap(key)?.is_none(),
        Condition::OmapPresent { key } => omap(key)?.is_some(),
        Condition::OmapEquals { key, value } => omap(key)?.as_ref() == Some(value),
        Condition::SlotAbsent { index } => slot(index)?.is_none(),
        Condition::SlotPresent { index } => slot(index)?.is_some(),
        Condition::SlotEquals { index, value } => slot(index)?.as_ref() == Some(value),
        Condition::SizeEquals { size } => head.stat.size == *size,
    })
}

/// Applies a transaction that was accepted, as number `position.seq + 1`.
///
/// # Errors
/// Only those of the table's file; the table transaction must then be thrown away.
pub fn apply(table: &mut Rows<'_>, position: &mut Position, txn: &Transaction, ops: &mut Vec<FileOp>) -> Result<()> {
    position.seq += 1;
    for (index, op) in txn.ops.iter().enumerate() {
        let mut step = Step { table, position, ops, index: index as u32 };
        match op {
            Op::CreateCollection(collection) => table::set_collection(step.table, collection, true)?,
            Op::RemoveCollection(collection) => table::set_collection(step.table, collection, false)?,
            Op::Object(id, change) => step.change(id, change)?,
        }
    }
    Ok(())
}

struct Step<'a, 'txn> {
    table: &'a mut Rows<'txn>,
    position: &'a mut Position,
    ops: &'a mut Vec<FileOp>,
    index: u32,
}

fn all(letter: u8, number: u64) -> [Vec<u8>; 2] {
    [key(letter, number, &[]), key_end(letter, number)]
}

impl Step<'_, '_> {
    fn change(&mut self, id: &ObjectId, change: &Change) -> Result<()> {
        match change {
            Change::Remove => return self.remove(id),
            Change::CloneTo { to } => return if id == to { Ok(()) } else { self.clone_to(id, to) },
            Change::CloneRange { to, from_offset, len, to_offset } => {
                return self.clone_range(id, to, *from_offset, *len, *to_offset);
            }
            Change::Rename { to } => return self.rename(id, to),
            _ => {}
        }
        let found = table::head(self.table, id)?;
        let mut head = match found {
            Some(head) => head,
            None if change.creates() => self.new_head(),
            None => return Ok(()),
        };
        self.inside(&mut head, change)?;
        if found != Some(head) { table::set_head(self.table, id, &head) } else { Ok(()) }
    }

    fn new_head(&mut self) -> Head {
        let number = self.position.next_number;
        self.position.next_number += 1;
        Head { number, ..Head::default() }
    }

    /// A change of one object's spaces.
    fn inside(&mut self, head: &mut Head, change: &Change) -> Result<()> {
        let number = head.number;
        match change {
            Change::Write { offset, data } if !data.is_empty() => {
                let end = offset + data.len() as u64;
                self.data(number, &(*offset..end))?;
                self.ops.push(FileOp::Write { number, offset: *offset, data: data.clone() });
                head.stat.size = head.stat.size.max(end);
            }
            Change::Zero { offset, len } if *len > 0 => {
                self.hole(number, &(*offset..offset + len))?;
                head.stat.size = head.stat.size.max(offset + len);
            }
            Change::Truncate { size } => {
                self.hole(number, &(*size..u64::MAX))?;
                head.stat.size = *size;
            }
            Change::XattrSet { name, value } => {
                head.stat.xattrs += u64::from(!table::set(self.table, &key(b'A', number, name), value)?);
            }
            Change::XattrRemove { name } => {
                head.stat.xattrs -= u64::from(table::unset(self.table, &key(b'A', number, name))?);
            }
            Change::OmapSet { key: name, value } => {
                head.stat.omap_keys += u64::from(!table::set(self.table, &key(b'O', number, name), value)?);
            }
            Change::OmapRemove { key: name } => {
                head.stat.omap_keys -= u64::from(table::unset(self.table, &key(b'O', number, name))?);
            }
            Change::OmapRemoveRange { start, end } => {
                let last = end.as_ref().map_or_else(|| key_end(b'O', number), |end| key(b'O', number, end));
                head.stat.omap_keys -= self.take_range(&key(b'O', number, start), Bound::Excluded(&last))?;
            }
            Change::OmapClear => {
                let [first, end] = all(b'O', number);
                head.stat.omap_keys -= self.take_range(&first, Bound::Excluded(&end))?;
            }
            Change::SlotSet { index, value } => {
                let row = key(b'S', number, &index.to_be_bytes());
                head.stat.slots += u64::from(!table::set(self.table, &row, value)?);
            }
            Change::SlotRemove { index } => {
                head.stat.slots -= u64::from(table::unset(self.table, &key(b'S', number, &index.to_be_bytes()))?);
            }
            Change::SlotRemoveRange { start, end } => {
                let last = key(b'S', number, &end.to_be_bytes());
                let last = if *end == u64::MAX { Bound::Included(&last[..]) } else { Bound::Excluded(&last[..]) };
                head.stat.slots -= self.take_range(&key(b'S', number, &start.to_be_bytes()), last)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Removes the rows from `first` to `end`, of which there may be none.
    fn take_range(&mut self, first: &[u8], end: Bound<&[u8]>) -> Result<u64> {
        let (Bound::Included(last) | Bound::Excluded(last)) = end else { return Ok(0) };
        if first > last || (first == last && end == Bound::Excluded(last)) {
            return Ok(0);
        }
        table::unset_range(self.table, (Bound::Included(first), end))
    }

    /// Makes `range` data, and sees to the files that hold it.
    fn data(&mut self, number: u64, range: &Range<u64>) -> Result<()> {
        table::add_run(self.table, number, range)?;
        self.parts(number, [range.clone()])
    }

    fn hole(&mut self, number: u64, range: &Range<u64>) -> Result<()> {
        for run in table::clear_run(self.table, number, range)? {
            self.ops.push(FileOp::Punch { number, run });
        }
        Ok(())
    }

    /// Sees to the rows of the files that hold `ranges`.
    fn parts(&mut self, number: u64, ranges: impl IntoIterator<Item = Range<u64>>) -> Result<()> {
        let mut parts = BTreeSet::new();
        for range in ranges {
            parts.extend(range.start / PART_BYTES..=(range.end - 1) / PART_BYTES);
        }
        for part in parts {
            if self.table.row(&key(b'P', number, &part.to_be_bytes()))?.is_none() {
                table::set(self.table, &key(b'P', number, &part.to_be_bytes()), b"")?;
                self.ops.push(FileOp::New { number, part });
            }
        }
        Ok(())
    }

    fn remove(&mut self, id: &ObjectId) -> Result<()> {
        let Some(head) = table::head(self.table, id)? else { return Ok(()) };
        table::unset_head(self.table, id)?;
        for letter in [b'A', b'O', b'S', b'E'] {
            let [first, end] = all(letter, head.number);
            self.take_range(&first, Bound::Excluded(&end))?;
        }
        let mut parts = Vec::new();
        table::each_of(self.table, b'P', head.number, &mut |part, _| {
            parts.push(Bytes::copy_from_slice(part));
            Ok(true)
        })?;
        for part in parts {
            table::unset(self.table, &key(b'P', head.number, &part))?;
            table::set(self.table, &key(b'D', head.number, &part), b"")?;
        }
        Ok(())
    }

    fn clone_to(&mut self, id: &ObjectId, to: &ObjectId) -> Result<()> {
        self.remove(to)?;
        let source = table::head(self.table, id)?.unwrap_or_default();
        let copy = Head { stat: source.stat, ..self.new_head() };
        for letter in [b'A', b'O', b'S', b'E'] {
            self.copy_rows(letter, source.number, copy.number)?;
        }
        table::set_head(self.table, to, &copy)?;
        let runs = table::runs(self.table, source.number, &(0..u64::MAX))?;
        if runs.is_empty() {
            return Ok(());
        }
        self.parts(copy.number, runs.iter().map(|run| run.offset..run.offset + run.len))?;
        self.ops.push(FileOp::Copy { from: source.number, to: copy.number, runs });
        Ok(())
    }

    /// Copies rows, some at a time.
    fn copy_rows(&mut self, letter: u8, from: u64, to: u64) -> Result<()> {
        let [mut first, end] = all(letter, from);
        loop {
            let (mut rows, mut bytes) = (Vec::new(), 0);
            self.table.rows((Bound::Included(&first), Bound::Excluded(&end)), false, &mut |key, value| {
                rows.push((key.to_vec(), value.to_vec()));
                bytes += key.len() + value.len();
                Ok(rows.len() < CLONE_ROWS && bytes < CLONE_BYTES)
            })?;
            let Some((last, _)) = rows.last() else { return Ok(()) };
            first = [last, &[0][..]].concat();
            for (row, value) in &rows {
                table::set(self.table, &key(letter, to, &row[9..]), value)?;
            }
        }
    }

    fn clone_range(&mut self, id: &ObjectId, to: &ObjectId, from_offset: u64, len: u64, to_offset: u64) -> Result<()> {
        let source = table::head(self.table, id)?.unwrap_or_default();
        let mut target = match table::head(self.table, to)? {
            Some(head) => head,
            None => self.new_head(),
        };
        if len > 0 {
            let runs = table::runs(self.table, source.number, &(from_offset..from_offset + len))?;
            let moved = |run: &DataRun| {
                let offset = run.offset - from_offset + to_offset;
                offset..offset + run.len
            };
            let cleared = table::clear_run(self.table, target.number, &(to_offset..to_offset + len))?;
            for run in &runs {
                table::add_run(self.table, target.number, &moved(run))?;
            }
            self.parts(target.number, runs.iter().map(moved))?;
            let at = (CommitSeq(self.position.seq), self.index);
            let (from, number) = (source.number, target.number);
            // Punched afterwards, since the source may be this object: only what is a hole in the end.
            if !runs.is_empty() {
                self.ops.push(FileOp::CopyRange { at, from, to: number, runs: runs.clone(), from_offset, to_offset });
            }
            for run in cleared {
                let data = table::runs(self.table, number, &(run.offset..run.offset + run.len))?;
                let mut offset = run.offset;
                for next in data.iter().map(|data| (data.offset, data.offset + data.len)) {
                    self.punch(number, offset..next.0);
                    offset = next.1;
                }
                self.punch(number, offset..run.offset + run.len);
            }
            target.stat.size = target.stat.size.max(to_offset + len);
        }
        table::set_head(self.table, to, &target)
    }

    fn punch(&mut self, number: u64, range: Range<u64>) {
        if range.start < range.end {
            let run = DataRun { offset: range.start, len: range.end - range.start };
            self.ops.push(FileOp::Punch { number, run });
        }
    }

    fn rename(&mut self, id: &ObjectId, to: &ObjectId) -> Result<()> {
        let head = table::head(self.table, id)?.unwrap_or_default();
        table::unset_head(self.table, id)?;
        table::set_head(self.table, to, &head)
    }
}

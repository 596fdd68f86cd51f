//! What is kept beside the files: one ordered table of keys and values, and what its rows mean.
//!
//! | row | key after the letter | value |
//! |---|---|---|
//! | `M` | | transactions applied, generation of the journal, next number: 8 bytes each |
//! | `C` | collection | |
//! | `N` | length of the collection's name (1), collection, object | number, size, xattrs, omap keys, slots: 8 bytes each |
//! | `A` | number, name | xattr |
//! | `O` | number, key | omap value |
//! | `S` | number, slot | slot value |
//! | `E` | number, offset | length of the run of data, 8 bytes |
//! | `P` | number, part | : a file of data exists |
//! | `D` | number, part | : a file that nothing uses, to be unlinked |
//! | `F` | path of a folder in `objects` | files in it (8), 1 while it is being split, 2 once it has been (1) |
//!
//! Numbers in keys are big-endian, so that rows sort by them; numbers in values are little-endian.
//!
//! Invariants:
//! 1. Runs of data of an object neither overlap nor touch, and end at or before its size.
//! 2. A number names one life of one object and is never given again; renaming keeps it, cloning takes a new one.
//! 3. The counts of a head are the numbers of rows.

use std::ops::{Bound, Range};

use bytes::{Buf, BufMut, Bytes};
use esker_store::{Collection, DataRun, Error, ObjectId, Result, Stat};
use redb::{ReadableTable, StorageError, Table, TableDefinition};

/// The table's rows.
pub type Row = &'static [u8];
/// The one table of the file.
pub const TABLE: TableDefinition<Row, Row> = TableDefinition::new("esker");

/// An [`Error`] for what went wrong in the table's file.
pub fn failed(error: impl Into<redb::Error>) -> Error {
    match error.into() {
        redb::Error::Corrupted(what) => Error::Corrupt { offset: 0, what: format!("the table: {what}") },
        redb::Error::Io(source) => Error::io("reading or writing the table", source),
        other => Error::io("reading or writing the table", std::io::Error::other(other)),
    }
}

fn storage(error: StorageError) -> Error {
    failed(error)
}

/// Takes a row's key and value; false ends the walk.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<bool> + 'a;

/// Reading rows, in a transaction or in a snapshot.
pub trait Read {
    /// A row's value.
    fn row(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// Gives rows of `range` to `visit`, in key order or backwards, until it returns false.
    fn rows(&self, range: (Bound<&[u8]>, Bound<&[u8]>), reverse: bool, visit: &mut Visit<'_>) -> Result<()>;
}

impl<T: ReadableTable<Row, Row>> Read for T {
    fn row(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.get(key).map_err(storage)?.map(|value| Bytes::copy_from_slice(value.value())))
    }

    fn rows(&self, range: (Bound<&[u8]>, Bound<&[u8]>), reverse: bool, visit: &mut Visit<'_>) -> Result<()> {
        let mut rows = self.range::<&[u8]>(range).map_err(storage)?;
        loop {
            let next = if reverse { rows.next_back() } else { rows.next() };
            let Some(row) = next else { return Ok(()) };
            let (key, value) = row.map_err(storage)?;
            if !visit(key.value(), value.value())? {
                return Ok(());
            }
        }
    }
}

/// The table while it is being changed.
pub type Rows<'txn> = Table<'txn, Row, Row>;

/// Sets a row; whether it was there before.
pub fn set(table: &mut Rows<'_>, key: &[u8], value: &[u8]) -> Result<bool> {
    Ok(table.insert(key, value).map_err(storage)?.is_some())
}

/// Removes a row; whether it was there.
pub fn unset(table: &mut Rows<'_>, key: &[u8]) -> Result<bool> {
    Ok(table.remove(key).map_err(storage)?.is_some())
}

/// Removes all rows of a range; how many there were.
pub fn unset_range(table: &mut Rows<'_>, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<u64> {
    let mut removed = 0;
    table
        .retain_in::<&[u8], _>(range, |_, _| {
            removed += 1;
            false
        })
        .map_err(storage)?;
    Ok(removed)
}

fn corrupt(what: &str) -> Error {
    Error::Corrupt { offset: 0, what: format!("a row of the table: {what}") }
}

fn numbers<const N: usize>(value: &[u8]) -> Result<[u64; N]> {
    let mut fields = value;
    if value.len() != N * 8 {
        return Err(corrupt("it has the wrong length"));
    }
    Ok(std::array::from_fn(|_| fields.get_u64_le()))
}

fn joined<const N: usize>(numbers: [u64; N]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// How far the store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Transactions applied.
    pub seq: u64,
    /// Generation of the journal.
    pub generation: u64,
    /// The next object's number.
    pub next_number: u64,
}

impl Position {
    /// Reads it; that of a new store where there is none.
    pub fn read(table: &impl Read) -> Result<Self> {
        let Some(value) = table.row(b"M")? else { return Ok(Self { seq: 0, generation: 1, next_number: 1 }) };
        let [seq, generation, next_number] = numbers(&value)?;
        Ok(Self { seq, generation, next_number })
    }

    /// Writes it.
    pub fn write(self, table: &mut Rows<'_>) -> Result<()> {
        set(table, b"M", &joined([self.seq, self.generation, self.next_number])).map(drop)
    }
}

/// An object's row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The object's number.
    pub number: u64,
    /// What it is.
    pub stat: Stat,
}

fn collection_key(collection: &Collection) -> Vec<u8> {
    [b"C", &collection.name()[..]].concat()
}

/// The key of an object's row; names longer than the limits give one that no object has.
pub fn object_key(collection: &Collection, name: &[u8]) -> Vec<u8> {
    let len = u8::try_from(collection.name().len()).unwrap_or(0);
    [b"N", &[len][..], collection.name(), name].concat()
}

/// `letter`, number, rest.
pub fn key(letter: u8, number: u64, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(9 + rest.len());
    key.put_u8(letter);
    key.put_u64(number);
    key.put_slice(rest);
    key
}

/// The key after the last of `letter` and `number`.
pub fn key_end(letter: u8, number: u64) -> Vec<u8> {
    number.checked_add(1).map_or_else(|| vec![letter + 1], |next| key(letter, next, &[]))
}

/// Gives all rows of `letter` and `number` to `visit`, the key without these two.
pub fn each_of(table: &impl Read, letter: u8, number: u64, visit: &mut Visit<'_>) -> Result<()> {
    let (start, end) = (key(letter, number, &[]), key_end(letter, number));
    table.rows((Bound::Included(&start), Bound::Excluded(&end)), false, &mut |key, value| visit(&key[9..], value))
}

/// Whether the collection exists.
pub fn has_collection(table: &impl Read, collection: &Collection) -> Result<bool> {
    Ok(table.row(&collection_key(collection))?.is_some())
}

/// Creates or removes a collection.
pub fn set_collection(table: &mut Rows<'_>, collection: &Collection, exists: bool) -> Result<()> {
    let key = collection_key(collection);
    if exists { set(table, &key, b"").map(drop) } else { unset(table, &key).map(drop) }
}

/// The collections in name order.
pub fn collections(table: &impl Read) -> Result<Vec<Collection>> {
    let mut found = Vec::new();
    table.rows((Bound::Included(b"C"), Bound::Excluded(b"D")), false, &mut |key, _| {
        found.push(Collection::new(Bytes::copy_from_slice(&key[1..])));
        Ok(true)
    })?;
    Ok(found)
}

/// Names of up to `limit` objects of a collection, above `after`.
pub fn list(table: &impl Read, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Result<Vec<Bytes>> {
    let first = object_key(collection, after.unwrap_or_default());
    let prefix_len = 2 + collection.name().len();
    let mut found = Vec::new();
    if limit == 0 {
        return Ok(found);
    }
    // No object has an empty name, so that nothing is lost where there is no `after`.
    table.rows((Bound::Excluded(&first), Bound::Excluded(b"O")), false, &mut |key, _| {
        if key.get(..prefix_len) != Some(&first[..prefix_len]) {
            return Ok(false);
        }
        found.push(Bytes::copy_from_slice(&key[prefix_len..]));
        Ok(found.len() < limit)
    })?;
    Ok(found)
}

/// Number of objects in a collection, counted up to `limit`.
pub fn count_objects(table: &impl Read, collection: &Collection, limit: u64) -> Result<u64> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    Ok(list(table, collection, None, limit)?.len() as u64)
}

/// The object's row, if it exists.
pub fn head(table: &impl Read, id: &ObjectId) -> Result<Option<Head>> {
    let Some(value) = table.row(&object_key(id.collection(), id.name()))? else { return Ok(None) };
    let [number, size, xattrs, omap_keys, slots] = numbers(&value)?;
    Ok(Some(Head { number, stat: Stat { size, omap_keys, slots, xattrs } }))
}

/// Writes the object's row.
pub fn set_head(table: &mut Rows<'_>, id: &ObjectId, head: &Head) -> Result<()> {
    let Stat { size, omap_keys, slots, xattrs } = head.stat;
    let value = joined([head.number, size, xattrs, omap_keys, slots]);
    set(table, &object_key(id.collection(), id.name()), &value).map(drop)
}

/// Removes the object's row.
pub fn unset_head(table: &mut Rows<'_>, id: &ObjectId) -> Result<()> {
    unset(table, &object_key(id.collection(), id.name())).map(drop)
}

fn run_of(key: &[u8], value: &[u8]) -> Result<Range<u64>> {
    let offset = <[u8; 8]>::try_from(key).map(u64::from_be_bytes).map_err(|_| corrupt("an offset has no 8 bytes"))?;
    let [len] = numbers(value)?;
    let end = offset.checked_add(len).ok_or_else(|| corrupt("a run of data ends past every offset"))?;
    Ok(offset..end)
}

/// The runs of data of object `number` that meet or touch `range`, whole.
fn runs_near(table: &impl Read, number: u64, range: &Range<u64>) -> Result<Vec<Range<u64>>> {
    let mut found = Vec::new();
    let (first, at, end) =
        (key(b'E', number, &[]), key(b'E', number, &range.start.to_be_bytes()), key_end(b'E', number));
    table.rows((Bound::Included(&first), Bound::Excluded(&at)), true, &mut |key, value| {
        let run = run_of(&key[9..], value)?;
        if run.end >= range.start {
            found.push(run);
        }
        Ok(false)
    })?;
    table.rows((Bound::Included(&at), Bound::Excluded(&end)), false, &mut |key, value| {
        let run = run_of(&key[9..], value)?;
        let meets = run.start <= range.end;
        if meets {
            found.push(run);
        }
        Ok(meets)
    })?;
    Ok(found)
}

/// The runs of data of object `number` inside `range`, cut to it.
pub fn runs(table: &impl Read, number: u64, range: &Range<u64>) -> Result<Vec<DataRun>> {
    let cut = |run: Range<u64>| run.start.max(range.start)..run.end.min(range.end);
    let near = runs_near(table, number, range)?.into_iter().map(cut).filter(|run| run.start < run.end);
    Ok(near.map(|run| DataRun { offset: run.start, len: run.end - run.start }).collect())
}

fn set_run(table: &mut Rows<'_>, number: u64, run: &Range<u64>) -> Result<()> {
    set(table, &key(b'E', number, &run.start.to_be_bytes()), &(run.end - run.start).to_le_bytes()).map(drop)
}

fn unset_run(table: &mut Rows<'_>, number: u64, run: &Range<u64>) -> Result<()> {
    unset(table, &key(b'E', number, &run.start.to_be_bytes())).map(drop)
}

/// Makes `range` a hole; returns the data that was there.
pub fn clear_run(table: &mut Rows<'_>, number: u64, range: &Range<u64>) -> Result<Vec<DataRun>> {
    let mut cleared = Vec::new();
    if range.start >= range.end {
        return Ok(cleared);
    }
    for run in runs_near(table, number, range)? {
        let cut = run.start.max(range.start)..run.end.min(range.end);
        if cut.start >= cut.end {
            continue;
        }
        unset_run(table, number, &run)?;
        for rest in [run.start..cut.start, cut.end..run.end] {
            if rest.start < rest.end {
                set_run(table, number, &rest)?;
            }
        }
        cleared.push(DataRun { offset: cut.start, len: cut.end - cut.start });
    }
    Ok(cleared)
}

/// Makes `range` data, joined with its neighbours.
pub fn add_run(table: &mut Rows<'_>, number: u64, range: &Range<u64>) -> Result<()> {
    if range.start >= range.end {
        return Ok(());
    }
    let mut joined = range.clone();
    for run in runs_near(table, number, range)? {
        // The usual case of an overwrite changes nothing.
        if run.start <= range.start && range.end <= run.end {
            return Ok(());
        }
        unset_run(table, number, &run)?;
        joined = joined.start.min(run.start)..joined.end.max(run.end);
    }
    set_run(table, number, &joined)
}

/// How far a folder of object files is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FolderState {
    /// Files stand in it.
    #[default]
    Whole,
    /// Files are on their way into the folders in it.
    Splitting,
    /// Files stand in the folders in it.
    Split,
}

/// A folder's row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Folder {
    /// Files in it, about: those made again after a crash may count twice.
    pub files: u64,
    /// How far it is.
    pub state: FolderState,
}

/// All folders that have a row.
pub fn folders(table: &impl Read) -> Result<Vec<(String, Folder)>> {
    let mut found = Vec::new();
    table.rows((Bound::Included(b"F"), Bound::Excluded(b"G")), false, &mut |key, value| {
        let path = std::str::from_utf8(&key[1..]).map_err(|_| corrupt("a folder's path is no text"))?;
        let state = match value.get(8) {
            Some(0) => FolderState::Whole,
            Some(1) => FolderState::Splitting,
            Some(2) => FolderState::Split,
            _ => return Err(corrupt("a folder's state is unknown")),
        };
        let [files] = numbers(&value[..8])?;
        found.push((path.to_string(), Folder { files, state }));
        Ok(true)
    })?;
    Ok(found)
}

/// Writes a folder's row.
pub fn set_folder(table: &mut Rows<'_>, path: &str, folder: Folder) -> Result<()> {
    let state = match folder.state {
        FolderState::Whole => 0,
        FolderState::Splitting => 1,
        FolderState::Split => 2,
    };
    let mut value = joined([folder.files]);
    value.push(state);
    set(table, &[b"F", path.as_bytes()].concat(), &value).map(drop)
}

//! `esker map import` and `export`: whole tables from and to CSV or JSON lines.
//!
//! file or stdin → rows, checked by the schema → lists of puts, several under way · scan of all → rows → file or stdout
//!
//! Invariants:
//! 1. Rows are put in order, in lists that are there whole or not at all: what an interrupted import leaves is a first
//!    part of its input, and the same import again completes it.
//! 2. A row that makes no sense is told by its number, and nothing behind the lists before it is put.
//! 3. Memory holds one list of rows, and those whose durability is awaited.
//! 4. When a row expires stands in a column [`EXPIRES`] beside the table's own. Where a file has none, or nothing in
//!    it, rows stay as they are in that.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use esker::Durability;
use esker::map::{Change, Completion, Condition, DataType, Key, Mutation, NEVER_MS, Over, Record, Scan, Table, Value};
use indicatif::ProgressBar;
use serde_json::Value as Json;

use super::context::{Context, Name};
use super::rows::{Format, Sink, each, names};
use super::value::{from_cell, from_json};
use crate::exit::Failure;
use crate::progress;

/// Rows of a list, at most.
const LIST_ROWS: usize = 1_000;
/// Bytes of input after which a list is put.
const LIST_BYTES: usize = 1 << 20;
/// Lists whose durability is awaited, at most.
const UNDER_WAY_MAX: usize = 16;
/// Longest line of JSON, in bytes.
const LINE_BYTES_MAX: usize = 64 << 20;

/// Names the time at which a row goes by itself, unless the table has a column of that name.
const EXPIRES: &str = "@expires";

/// What stands in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Comma-separated with a header; null is \N, what is absent is empty, and a backslash stands before what is empty
    /// or begins with one
    Csv,
    /// One object per line; null is null, what is absent is left out
    Json,
}

/// The arguments of `esker map import`.
#[derive(Args)]
#[command(
    after_help = "What stands under @expires is when the row goes by itself: 2024-02-29T13:37:00Z, or unix milliseconds. Null: never. Absent, or without\n\
that column: a row that is there goes when it was to go, a new one stays."
)]
pub(super) struct Import {
    /// The table
    #[arg(value_name = "TABLE")]
    name: Name,
    /// The file; stdin without one
    file: Option<PathBuf>,
    /// What stands in it; by default as its name ends, csv if that says nothing
    #[arg(long, value_enum)]
    format: Option<Kind>,
}

/// The arguments of `esker map export`.
#[derive(Args)]
pub(super) struct Export {
    /// The table
    #[arg(value_name = "TABLE")]
    name: Name,
    /// The file; stdout without one
    file: Option<PathBuf>,
    /// How rows are written; by default as the file's name ends, csv if that says nothing
    #[arg(long, value_enum)]
    format: Option<Kind>,
    /// Leave out when rows expire, which stands under @expires otherwise
    #[arg(long)]
    no_expiry: bool,
}

fn kind(given: Option<Kind>, file: Option<&PathBuf>) -> Kind {
    let json = file.and_then(|file| file.extension()).is_some_and(|end| end == "json" || end == "jsonl");
    given.unwrap_or(if json { Kind::Json } else { Kind::Csv })
}

/// Counts bytes on a bar as they are read.
struct Counted<R> {
    input: R,
    bar: ProgressBar,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.bytes += read as u64;
        self.bar.set_position(self.bytes);
        Ok(read)
    }
}

/// Puts rows in lists.
struct Lists<'a> {
    context: &'a Context,
    name: &'a Name,
    table: &'a Table,
    list: Vec<Mutation>,
    bytes: usize,
    under_way: VecDeque<Completion<()>>,
    rows: u64,
}

/// Whether a name is that of the expiry, and not one of the table's columns.
fn is_expiry(table: &Table, name: &str) -> bool {
    name == EXPIRES && table.column(EXPIRES).is_err()
}

impl Lists<'_> {
    /// The type of what stands under a name.
    fn type_of(&self, name: &str) -> Result<DataType, Failure> {
        if is_expiry(self.table, name) {
            return Ok(DataType::TimestampTz);
        }
        Ok(self.table.column(name)?.data_type)
    }

    /// When a row goes, as it stands in a file.
    fn expiry(&self, value: Option<Value>) -> Result<u64, Failure> {
        match value {
            None => Ok(NEVER_MS),
            Some(Value::TimestampTz(ms)) if ms >= 0 => Ok(ms.unsigned_abs()),
            Some(other) => Err(self.bad(format!("{EXPIRES} {other}: expected a time from 1970 on"))),
        }
    }

    /// Adds a row: the columns that are there, with a value or null, and about how long it was.
    fn add(&mut self, columns: Vec<(String, Option<Value>)>, bytes: usize) -> Result<(), Failure> {
        let (mut key, mut others, mut expires_ms) = (Key::default(), Vec::new(), None);
        for (name, value) in columns {
            if is_expiry(self.table, &name) {
                expires_ms = Some(self.expiry(value)?);
                continue;
            }
            if !self.table.is_key(self.table.column(&name)?.id) {
                others.push((name, value));
                continue;
            }
            let why = || Failure::usage(format!("row {}: column {name} is part of the key and null", self.rows + 1));
            let value = value.ok_or_else(why)?;
            key.0.push((name, value));
        }
        self.rows += 1;
        let change = Change::Put { columns: others, expires_ms };
        self.list.push(Mutation { table: self.name.0.clone(), key, change, condition: Condition::Always });
        self.bytes += bytes;
        if self.list.len() >= LIST_ROWS || self.bytes >= LIST_BYTES { self.put() } else { Ok(()) }
    }

    fn put(&mut self) -> Result<(), Failure> {
        if self.list.is_empty() {
            return Ok(());
        }
        if self.under_way.len() >= UNDER_WAY_MAX
            && let Some(done) = self.under_way.pop_front()
        {
            done.wait()?;
        }
        let first = self.rows - self.list.len() as u64 + 1;
        let list = std::mem::take(&mut self.list);
        self.bytes = 0;
        self.put_rows(&list, first)
    }

    /// Puts rows together, or where that is too much for the storage, in halves.
    fn put_rows(&mut self, rows: &[Mutation], first: u64) -> Result<(), Failure> {
        match self.context.map.mutate(rows, Durability::Durable) {
            Ok(put) => self.under_way.push_back(put),
            Err(esker::map::Error::Store(esker::objects::Error::TooLarge { .. })) if rows.len() > 1 => {
                let (before, after) = rows.split_at(rows.len() / 2);
                self.put_rows(before, first)?;
                self.put_rows(after, first + before.len() as u64)?;
            }
            Err(error) => {
                let failure = Failure::from(error);
                return Err(failure.within(format!("rows {first} to {}", first + rows.len() as u64 - 1)));
            }
        }
        Ok(())
    }

    /// Puts what is left, and waits until all is durable.
    fn end(mut self) -> Result<u64, Failure> {
        self.put()?;
        self.under_way.into_iter().try_for_each(Completion::wait)?;
        Ok(self.rows)
    }

    fn bad(&self, why: impl std::fmt::Display) -> Failure {
        Failure::usage(format!("row {}: {why}", self.rows + 1))
    }
}

impl Import {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let table = context.table(&self.name)?;
        let bar;
        let input: Box<dyn Read> = match &self.file {
            None => {
                bar = progress::spinner("bytes read");
                Box::new(std::io::stdin().lock())
            }
            Some(path) => {
                let open = || -> std::io::Result<(File, u64)> {
                    let file = File::open(path)?;
                    let len = file.metadata()?.len();
                    Ok((file, len))
                };
                let (file, len) = open().map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
                bar = progress::bytes("importing", len);
                Box::new(file)
            }
        };
        let input = Counted { input, bar: bar.clone(), bytes: 0 };
        let input = BufReader::with_capacity(1 << 20, input);
        let lists = Lists {
            context,
            name: &self.name,
            table: &table,
            list: Vec::new(),
            bytes: 0,
            under_way: VecDeque::new(),
            rows: 0,
        };
        let done = match kind(self.format, self.file.as_ref()) {
            Kind::Csv => import_csv(lists, input),
            Kind::Json => import_json(lists, input),
        };
        bar.finish_and_clear();
        let rows = done?;
        context.tell(&serde_json::json!({"rows": rows}), &format!("{rows} rows\n"))
    }
}

fn import_csv(mut lists: Lists<'_>, input: impl Read) -> Result<u64, Failure> {
    let mut reader = csv::Reader::from_reader(input);
    let bad = |error: csv::Error| Failure::usage(format!("CSV: {error}"));
    let header = reader.headers().map_err(bad)?.clone();
    let mut types = Vec::with_capacity(header.len());
    for (number, name) in header.iter().enumerate() {
        if header.iter().take(number).any(|other| other == name) {
            return Err(Failure::usage(format!("column {name} stands twice in the header")));
        }
        types.push(lists.type_of(name)?);
    }
    let mut row = csv::StringRecord::new();
    while reader.read_record(&mut row).map_err(bad)? {
        let mut columns = Vec::with_capacity(types.len());
        for ((name, data_type), text) in header.iter().zip(&types).zip(&row) {
            let value = from_cell(*data_type, text).map_err(|why| lists.bad(format!("column {name}: {why}")))?;
            if let Some(value) = value {
                columns.push((name.to_owned(), value));
            }
        }
        lists.add(columns, row.as_slice().len())?;
    }
    lists.end()
}

fn import_json(mut lists: Lists<'_>, mut input: impl BufRead) -> Result<u64, Failure> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut input).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line)?;
        if read > LINE_BYTES_MAX {
            return Err(lists.bad(format!("a line of more than {LINE_BYTES_MAX} bytes")));
        }
        if read == 0 {
            return lists.end();
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let Json::Object(object) = serde_json::from_slice(&line).map_err(|error| lists.bad(error))? else {
            return Err(lists.bad("expected an object with columns"));
        };
        let mut columns = Vec::with_capacity(object.len());
        for (name, value) in object {
            let data_type = lists.type_of(&name)?;
            let value = from_json(data_type, &value).map_err(|why| lists.bad(format!("column {name}: {why}")))?;
            columns.push((name, value));
        }
        lists.add(columns, line.len())?;
    }
}

impl Export {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let table = context.table(&self.name)?;
        let format = match kind(self.format, self.file.as_ref()) {
            Kind::Csv => Format::Csv,
            Kind::Json => Format::Json,
        };
        let expiry = !self.no_expiry;
        if expiry && !is_expiry(&table, EXPIRES) {
            let why = format!("table {} has a column {EXPIRES}: only with --no-expiry", self.name.0);
            return Err(Failure::usage(why));
        }
        let out: Box<dyn Write> = match &self.file {
            None => Box::new(std::io::stdout().lock()),
            Some(path) => {
                let file = File::create(path);
                Box::new(file.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?)
            }
        };
        let bar = progress::spinner("rows exported");
        let mut names = names(&table, &[]);
        if expiry {
            names.push(EXPIRES.into());
        }
        let mut sink = Sink::new(BufWriter::with_capacity(256 << 10, out), format, names)?;
        let written = each(context, Scan::new(&self.name.0, Over::All), None, |record| {
            bar.inc(1);
            sink.row(&if expiry { with_expiry(record) } else { record })
        });
        bar.finish_and_clear();
        written?;
        sink.flush()
    }
}

/// A row with its expiry as one more column.
fn with_expiry(mut record: Record) -> Record {
    if let Some(at_ms) = record.expires_ms {
        let at_ms = i64::try_from(at_ms).unwrap_or(i64::MAX);
        record.columns.push((EXPIRES.into(), Some(Value::TimestampTz(at_ms))));
    }
    record
}

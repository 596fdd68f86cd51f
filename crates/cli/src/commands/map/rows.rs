//! `esker map put`, `get`, `scan` and `delete`.
//!
//! text → key and values by the schema → one call of the face → rows as lines, CSV or JSON
//!
//! Invariant: a condition that does not hold is exit code 1, with the row that was met on stdout.

use std::io::{BufWriter, StdoutLock, Write};

use clap::{Args, ValueEnum};
use esker::Durability;
use esker::Period;
use esker::kv::{Clock, SystemClock};
use esker::map::{
    Bound, Change, Condition, Error, Filter, Get as MapGet, Key, Mutation, Over, Record, Scan, Table, Values,
};
use serde_json::json;

use super::context::{Context, Name, Ordered, no_row};
use super::value::{assignments, cell, conditions, record_json};
use crate::commands::{print, quiet_pipe};
use crate::exit::{Code, Failure};

/// How rows are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// COLUMN=VALUE, separated by tabs; null is \N, what is absent is left out
    #[default]
    Lines,
    /// Comma-separated with a header; null is \N, what is absent is empty, and a backslash stands before what is empty
    /// or begins with one
    Csv,
    /// One object per line; null is null, what is absent is left out
    Json,
}

/// What must hold of the row before it is changed.
#[derive(Args)]
struct If {
    /// Only if the row exists
    #[arg(long)]
    if_exists: bool,
    /// Only if the row does not exist
    #[arg(long, conflicts_with = "if_exists")]
    if_not_exists: bool,
    /// Only if the row exists and this holds: COLUMN =|!=|<|<=|>|>=|like|not like VALUE, COLUMN is null, COLUMN is not
    /// null; may be given several times
    #[arg(long = "if", value_name = "CONDITION", conflicts_with = "if_not_exists")]
    holds: Vec<String>,
}

impl If {
    fn condition(&self, table: &Table) -> Result<Condition, Failure> {
        Ok(match (self.if_exists, self.if_not_exists) {
            _ if !self.holds.is_empty() => Condition::If(conditions(table, &self.holds)?),
            (true, _) => Condition::Exists,
            (false, true) => Condition::NotExists,
            (false, false) => Condition::Always,
        })
    }
}

/// The arguments of `esker map put`.
#[derive(Args)]
pub struct Put {
    /// The table
    #[arg(value_name = "TABLE")]
    name: Name,
    /// Columns of the key, all of them, and those to set
    #[arg(required = true, value_name = "COLUMN=VALUE")]
    values: Vec<String>,
    /// Set this column to null; may be given several times
    #[arg(long, value_name = "COLUMN")]
    null: Vec<String>,
    /// The row goes by itself after this time, such as 24h
    #[arg(long, value_name = "PERIOD")]
    expire: Option<Period>,
    #[command(flatten)]
    when: If,
}

/// The arguments of `esker map delete`.
#[derive(Args)]
pub struct Delete {
    /// The table
    #[arg(value_name = "TABLE")]
    name: Name,
    /// Columns of the key, all of them
    #[arg(required = true, value_name = "COLUMN=VALUE")]
    key: Vec<String>,
    #[command(flatten)]
    when: If,
}

/// The arguments of `esker map get`.
#[derive(Args)]
pub struct Get {
    /// The table
    #[arg(value_name = "TABLE")]
    name: Name,
    /// Columns of the key, all of them
    #[arg(required = true, value_name = "COLUMN=VALUE")]
    key: Vec<String>,
    /// Columns to print beside those of the key; all unless given
    #[arg(long, value_delimiter = ',', value_name = "COLUMN")]
    columns: Vec<String>,
}

/// The arguments of `esker map scan`.
#[derive(Args)]
#[command(
    after_help = "Bounds are on the first columns of the clustering key; given several times, all but the last must be equal:\n\
  esker map scan shop.orders customer=1 --from at=10 --before at=20 --reverse --limit 5"
)]
pub struct ScanArguments {
    /// The table
    #[arg(value_name = "TABLE")]
    name: Name,
    /// Columns of the partition key, all of them; none: all rows
    #[arg(value_name = "COLUMN=VALUE")]
    partition: Vec<String>,
    /// Rows whose column, which has an index, has this value
    #[arg(long, value_name = "COLUMN=VALUE", conflicts_with_all = ["partition", "from", "after", "to", "before"])]
    index: Option<String>,
    /// From these values on
    #[arg(long, value_name = "COLUMN=VALUE", conflicts_with = "after")]
    from: Vec<String>,
    /// Above these values
    #[arg(long, value_name = "COLUMN=VALUE")]
    after: Vec<String>,
    /// Up to these values
    #[arg(long, value_name = "COLUMN=VALUE", conflicts_with = "before")]
    to: Vec<String>,
    /// Below these values
    #[arg(long, value_name = "COLUMN=VALUE")]
    before: Vec<String>,
    /// Only rows for which this holds: COLUMN =|!=|<|<=|>|>=|like|not like VALUE, COLUMN is null, COLUMN is not null;
    /// may be given several times
    #[arg(long = "where", value_name = "CONDITION")]
    holds: Vec<String>,
    /// Against the order of the clustering key
    #[arg(long)]
    reverse: bool,
    /// In this order instead; null and absent come first
    #[arg(long, value_delimiter = ',', value_name = "COLUMN[:desc]")]
    order_by: Vec<Ordered>,
    /// At most so many rows
    #[arg(long)]
    limit: Option<u64>,
    /// Columns to print beside those of the key; all unless given
    #[arg(long, value_delimiter = ',', value_name = "COLUMN")]
    columns: Vec<String>,
    /// How rows are written
    #[arg(long, value_enum)]
    format: Option<Format>,
}

/// Splits values into those of the key and the others.
pub fn split(table: &Table, values: Values) -> Result<(Key, Values), Failure> {
    let mut key = Values::new();
    let mut others = Values::new();
    for (name, value) in values {
        if table.is_key(table.column(&name)?.id) { key.push((name, value)) } else { others.push((name, value)) }
    }
    Ok((Key(key), others))
}

fn mutate(context: &Context, mutation: Mutation) -> Result<(), Failure> {
    let mutated = context.map.mutate(&[mutation], Durability::Durable);
    match mutated {
        Ok(done) => {
            done.wait()?;
            if context.json { print("{\"applied\":true}\n") } else { Ok(()) }
        }
        Err(error @ Error::ConditionFailed { .. }) => {
            if let Error::ConditionFailed { current, .. } = &error {
                let row = current.as_deref().map(record_json);
                match (context.json, current) {
                    (true, _) => print(&format!("{}\n", json!({"applied": false, "current": row})))?,
                    (false, Some(current)) => print(&(line(current) + "\n"))?,
                    (false, None) => {}
                }
            }
            Err(Failure::new(Code::Failure, "the condition does not hold; nothing was changed"))
        }
        Err(error) => Err(error.into()),
    }
}

impl Put {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let table = context.table(&self.name)?;
        let (key, values) = split(&table, assignments(&table, &self.values)?)?;
        let mut columns: Vec<_> = values.into_iter().map(|(name, value)| (name, Some(value))).collect();
        columns.extend(self.null.into_iter().map(|name| (name, None)));
        let after = |Period(time): Period| SystemClock.now_ms().saturating_add(time.as_millis() as u64);
        let change = Change::Put { columns, expires_ms: self.expire.map(after) };
        let condition = self.when.condition(&table)?;
        mutate(context, Mutation { table: self.name.0, key, change, condition })
    }
}

impl Delete {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let table = context.table(&self.name)?;
        let key = Key(assignments(&table, &self.key)?);
        let condition = self.when.condition(&table)?;
        mutate(context, Mutation::delete(&self.name.0, key).when(condition))
    }
}

impl Get {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let table = context.table(&self.name)?;
        let key = Key(assignments(&table, &self.key)?);
        let get = MapGet { columns: self.columns, ..MapGet::new(&self.name.0, key) };
        let record = context.map.get(&get)?.ok_or_else(|| no_row(&self.name))?;
        if context.json { print(&format!("{}\n", record_json(&record))) } else { print(&(line(&record) + "\n")) }
    }
}

impl ScanArguments {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let table = context.table(&self.name)?;
        let bound = |inclusive: &[String], exclusive: &[String]| -> Result<Option<Bound>, Failure> {
            let texts = if inclusive.is_empty() { exclusive } else { inclusive };
            if texts.is_empty() {
                return Ok(None);
            }
            Ok(Some(Bound { values: assignments(&table, texts)?, inclusive: exclusive.is_empty() }))
        };
        let (low, high) = (bound(&self.from, &self.after)?, bound(&self.to, &self.before)?);
        let over = match &self.index {
            Some(text) => {
                let (name, value) = super::value::assignment(&table, text)?;
                Over::Index(name, value)
            }
            None if self.partition.is_empty() && (low.is_some() || high.is_some()) => {
                return Err(Failure::usage("bounds are of one partition: give all columns of its key"));
            }
            None if self.partition.is_empty() => Over::All,
            None => Over::Partition { key: assignments(&table, &self.partition)?, low, high },
        };
        let filter = if self.holds.is_empty() { Filter::always() } else { conditions(&table, &self.holds)? };
        let order_by = self.order_by.into_iter().map(|one| (one.name, one.order)).collect();
        let names = names(&table, &self.columns);
        let scan =
            Scan { reverse: self.reverse, columns: self.columns, filter, order_by, ..Scan::new(&self.name.0, over) };
        let format = self.format.unwrap_or(if context.json { Format::Json } else { Format::Lines });
        let out = BufWriter::with_capacity(256 << 10, std::io::stdout().lock());
        let mut sink: Sink<BufWriter<StdoutLock<'_>>> = Sink::new(out, format, names)?;
        each(context, scan, self.limit, |record| sink.row(&record))?;
        sink.flush()
    }
}

/// Columns in the order in which rows have them: those of the key, then the others that are wanted.
pub fn names(table: &Table, wanted: &[String]) -> Vec<String> {
    let named = |id: u16| table.columns.iter().find(|column| column.id == id).map(|column| column.name.clone());
    let key = table.partition_key.iter().copied().chain(table.clustering_key.iter().map(|(id, _)| *id));
    let others = table.columns.iter().filter(|column| !table.is_key(column.id));
    let others = others.filter(|column| wanted.is_empty() || wanted.contains(&column.name));
    key.filter_map(named).chain(others.map(|column| column.name.clone())).collect()
}

/// Hands on each row of a scan, page after page.
pub(super) fn each(
    context: &Context,
    mut scan: Scan,
    limit: Option<u64>,
    mut row: impl FnMut(Record) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut left = limit.unwrap_or(u64::MAX);
    while left > 0 {
        scan.limit = if limit.is_some() { usize::try_from(left).unwrap_or(usize::MAX) } else { 0 };
        let page = context.map.scan(&scan)?;
        left = left.saturating_sub(page.records.len() as u64);
        page.records.into_iter().try_for_each(&mut row)?;
        scan.page = page.next;
        if scan.page.is_none() {
            break;
        }
    }
    Ok(())
}

fn line(record: &Record) -> String {
    // A tab or a line feed in a text would end its column: JSON's escapes are known to every reader.
    let plain = |text: String| {
        if text.contains(['\t', '\n', '\r']) { serde_json::Value::from(text).to_string() } else { text }
    };
    let column =
        |(name, value): &(String, Option<esker::map::Value>)| format!("{name}={}", plain(cell(Some(value.as_ref()))));
    record.columns.iter().map(column).collect::<Vec<_>>().join("\t")
}

/// Writes rows.
pub(super) enum Sink<W: Write> {
    /// As lines.
    Lines(W),
    /// As CSV of these columns.
    Csv(Box<csv::Writer<W>>, Vec<String>),
    /// As JSON lines.
    Json(W),
}

fn csv_failure(error: csv::Error) -> Failure {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => match quiet_pipe(Err(error)) {
            Err(failure) => failure,
            Ok(()) => Failure::new(Code::Failure, "CSV cannot be written"),
        },
        other => Failure::new(Code::Failure, format!("CSV: {other:?}")),
    }
}

impl<W: Write> Sink<W> {
    /// Writes to `out` rows that have some of these columns.
    pub fn new(out: W, format: Format, names: Vec<String>) -> Result<Self, Failure> {
        Ok(match format {
            Format::Lines => Self::Lines(out),
            Format::Json => Self::Json(out),
            Format::Csv => {
                let mut writer = csv::Writer::from_writer(out);
                writer.write_record(&names).map_err(csv_failure)?;
                Self::Csv(Box::new(writer), names)
            }
        })
    }

    /// Writes a row.
    pub fn row(&mut self, record: &Record) -> Result<(), Failure> {
        match self {
            Self::Lines(out) => quiet_pipe(writeln!(out, "{}", line(record))),
            Self::Json(out) => quiet_pipe(writeln!(out, "{}", record_json(record))),
            Self::Csv(writer, names) => {
                let cells = names.iter().map(|name| cell(record.get(name)));
                writer.write_record(cells).map_err(csv_failure)
            }
        }
    }

    /// Writes out what is kept back.
    pub fn flush(&mut self) -> Result<(), Failure> {
        quiet_pipe(match self {
            Self::Lines(out) | Self::Json(out) => out.flush(),
            Self::Csv(writer, _) => writer.flush(),
        })
    }
}

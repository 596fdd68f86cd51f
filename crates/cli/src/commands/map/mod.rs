//! `esker map`: tables of records, of a store that no server has open or of a running server.
//!
//! arguments → storage ([`esker::Store::map`], or a server's by its address) → schema of the table → text as typed
//! values → rows on stdout
//!
//! Invariants:
//! 1. Only `create` makes a namespace, a table, or a store.
//! 2. What is printed as lines, CSV or JSON tells null from absent, and `import` reads it as the same rows.

mod context;
mod rows;
mod transfer;
mod value;

use clap::{Args, Subcommand};
use esker::map::{Alter, DataType, Order, Schema};
use serde_json::{Value, json};

use self::context::{Context, Name, Ordered};
use super::StoreArgument;
use crate::config::Settings;
use crate::exit::Failure;

/// The arguments of `esker map`.
#[derive(Args)]
#[command(
    after_help = "Tables are written NAMESPACE.TABLE, values COLUMN=VALUE by the column's type: true, 5, 0.5, text, blobs in hexadecimal,\n\
dates 2024-02-29, times 13:37:00.5, timestamps 2024-02-29T13:37:00 (timestamptz with Z or +01:00), or the number that is stored.\n\
--store grpc://HOST:PORT reaches the map of a running server (`esker serve --grpc`)."
)]
pub struct MapArguments {
    #[command(flatten)]
    store: StoreArgument,

    /// Print results as JSON
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a table, and its namespace if that is missing
    #[command(
        after_help = "Example: esker map create shop.orders customer:int at:bigint item:text --partition customer --clustering at:desc --index item"
    )]
    Create {
        /// The table
        #[arg(value_name = "TABLE")]
        name: Name,
        /// Its columns: boolean, int, bigint, float, double, text, blob, date, time, timestamp or timestamptz
        #[arg(required = true, value_name = "COLUMN:TYPE")]
        columns: Vec<Typed>,
        /// Columns of the partition key, in order
        #[arg(long, required = true, value_delimiter = ',', value_name = "COLUMN")]
        partition: Vec<String>,
        /// Columns of the clustering key, in order, each followed by :desc where it falls
        #[arg(long, value_delimiter = ',', value_name = "COLUMN[:desc]")]
        clustering: Vec<Ordered>,
        /// Columns with a secondary index
        #[arg(long, value_delimiter = ',', value_name = "COLUMN")]
        index: Vec<String>,
    },
    /// Show a table's columns, key and indexes
    Describe {
        /// The table
        #[arg(value_name = "TABLE")]
        name: Name,
    },
    /// List the tables of a namespace, or of all
    Ls {
        /// The namespace
        namespace: Option<String>,
    },
    /// Drop a table with its rows, or an empty namespace
    Drop {
        /// The table
        #[arg(value_name = "TABLE", required_unless_present = "namespace")]
        name: Option<Name>,
        /// Drop this namespace instead; it must have no tables
        #[arg(long, conflicts_with = "name")]
        namespace: Option<String>,
    },
    /// Remove all rows of a table
    Truncate {
        /// The table
        #[arg(value_name = "TABLE")]
        name: Name,
    },
    /// Give a table another name in its namespace
    Rename {
        /// The table
        #[arg(value_name = "TABLE")]
        name: Name,
        /// Its new name
        to: String,
    },
    /// Add, drop or rename a column, or give it a wider type
    #[command(subcommand)]
    Column(ColumnAction),
    /// Add or drop a secondary index
    #[command(subcommand)]
    Index(IndexAction),
    /// Set columns of a row, and make it if it is missing
    Put(rows::Put),
    /// Print a row; exit code 3 if there is none
    Get(rows::Get),
    /// Print rows in order
    Scan(rows::ScanArguments),
    /// Remove a row
    Delete(rows::Delete),
    /// Put rows from CSV with a header, or from JSON lines
    Import(transfer::Import),
    /// Write all rows as CSV with a header, or as JSON lines
    Export(transfer::Export),
    /// Remove rows that have expired; no read shows them before either
    Sweep {
        /// The table
        #[arg(value_name = "TABLE")]
        name: Name,
    },
}

#[derive(Subcommand)]
enum ColumnAction {
    /// Add a column, absent in all rows
    Add {
        /// The table
        #[arg(value_name = "TABLE")]
        name: Name,
        /// The column
        #[arg(value_name = "COLUMN:TYPE")]
        column: Typed,
    },
    /// Drop a column with what it holds
    Drop {
        /// The table
        #[arg(value_name = "TABLE")]
        name: Name,
        /// The column
        column: String,
    },
    /// Give a column another name
    Rename {
        /// The table
        #[arg(value_name = "TABLE")]
        name: Name,
        /// The column
        column: String,
        /// Its new name
        to: String,
    },
    /// Give a column a type that takes all its values: int to bigint or double, float to double, anything but blob to
    /// text
    Type {
        /// The table
        #[arg(value_name = "TABLE")]
        name: Name,
        /// The column
        #[arg(value_name = "COLUMN:TYPE")]
        column: Typed,
    },
}

#[derive(Subcommand)]
enum IndexAction {
    /// Index a column, rows that there are included
    Add {
        /// The table
        #[arg(value_name = "TABLE")]
        name: Name,
        /// The column
        column: String,
    },
    /// Drop a column's index
    Drop {
        /// The table
        #[arg(value_name = "TABLE")]
        name: Name,
        /// The column
        column: String,
    },
}

/// `COLUMN:TYPE`.
#[derive(Clone, Debug)]
struct Typed {
    name: String,
    data_type: DataType,
}

impl std::str::FromStr for Typed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, data_type) = text.rsplit_once(':').ok_or_else(|| format!("{text:?}: expected COLUMN:TYPE"))?;
        let data_type = data_type.parse().map_err(|error: esker::map::Error| error.to_string())?;
        Ok(Self { name: name.into(), data_type })
    }
}

impl MapArguments {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let location = self.store.location(settings);
        let makes = matches!(self.action, Action::Create { .. });
        let context = Context::open(settings, &location, makes, self.json)?;
        let result = act(&context, self.action);
        let closed = context.store.as_ref().map_or(Ok(()), esker::Store::close);
        result?;
        Ok(closed?)
    }
}

fn act(context: &Context, action: Action) -> Result<(), Failure> {
    let map = &context.map;
    match action {
        Action::Create { name, columns, partition, clustering, index } => {
            let mut schema =
                columns.into_iter().fold(Schema::new(), |schema, one| schema.column(one.name, one.data_type));
            schema = partition.into_iter().fold(schema, Schema::partition);
            schema = clustering.into_iter().fold(schema, |schema, one| schema.clustering(one.name, one.order));
            schema = index.into_iter().fold(schema, Schema::index);
            let made = match map.create_namespace(&name.0.namespace) {
                Ok(()) => true,
                Err(esker::map::Error::Exists { .. }) => false,
                Err(error) => return Err(error.into()),
            };
            if let Err(error) = map.create_table(&name.0, &schema) {
                if made {
                    // Its error would hide why.
                    let _ = map.drop_namespace(&name.0.namespace);
                }
                return Err(error.into());
            }
            if context.json { describe(context, &name) } else { Ok(()) }
        }
        Action::Describe { name } => describe(context, &name),
        Action::Ls { namespace } => list(context, namespace),
        Action::Drop { name: Some(name), .. } => Ok(map.drop_table(&name.0)?),
        Action::Drop { name: None, namespace } => Ok(map.drop_namespace(&namespace.unwrap_or_default())?),
        Action::Truncate { name } => Ok(map.truncate_table(&name.0)?),
        Action::Rename { name, to } => Ok(map.rename_table(&name.0, &to)?),
        Action::Column(action) => {
            let (name, change) = match action {
                ColumnAction::Add { name, column } => (name, Alter::AddColumn(column.name, column.data_type)),
                ColumnAction::Drop { name, column } => (name, Alter::DropColumn(column)),
                ColumnAction::Rename { name, column, to } => (name, Alter::RenameColumn(column, to)),
                ColumnAction::Type { name, column } => (name, Alter::ChangeType(column.name, column.data_type)),
            };
            Ok(map.alter_table(&name.0, &change)?)
        }
        Action::Index(IndexAction::Add { name, column }) => Ok(map.create_index(&name.0, &column)?),
        Action::Index(IndexAction::Drop { name, column }) => Ok(map.drop_index(&name.0, &column)?),
        Action::Put(put) => put.run(context),
        Action::Get(get) => get.run(context),
        Action::Scan(scan) => scan.run(context),
        Action::Delete(delete) => delete.run(context),
        Action::Import(import) => import.run(context),
        Action::Export(export) => export.run(context),
        Action::Sweep { name } => {
            let Some(store) = &context.store else {
                return Err(Failure::usage(
                    "sweep works on a store, not on a server, which does that by itself (map_sweep)",
                ));
            };
            let removed = store.map()?.sweep(&name.0)?;
            context.tell(&json!({"removed": removed}), &format!("{removed} rows removed\n"))
        }
    }
}

fn describe(context: &Context, name: &Name) -> Result<(), Failure> {
    let table = context.table(name)?;
    let named = |id: u16| table.columns.iter().find(|column| column.id == id).map_or("", |column| &column.name);
    let order = |order: Order| if order == Order::Desc { "desc" } else { "asc" };
    let role = |id: u16| {
        if let Some(number) = table.partition_key.iter().position(|one| *one == id) {
            return format!("partition key {}", number + 1);
        }
        if let Some(number) = table.clustering_key.iter().position(|(one, _)| *one == id) {
            return format!("clustering key {} {}", number + 1, order(table.clustering_key[number].1));
        }
        table.index_of(id).map_or("", |index| if index.building { "index being built" } else { "indexed" }).to_owned()
    };
    let text: String = table
        .columns
        .iter()
        .map(|column| {
            format!("{}\t{}\t{}", column.name, column.data_type, role(column.id)).trim_end().to_owned() + "\n"
        })
        .collect();
    let columns = table.columns.iter().map(|column| json!({"name": column.name, "type": column.data_type.name()}));
    let clustering = table.clustering_key.iter().map(|(id, rises)| json!({"name": named(*id), "order": order(*rises)}));
    let indexes = |building| {
        let some = table.indexes.iter().filter(|index| index.building == building);
        some.map(|index| named(index.column)).collect::<Vec<_>>()
    };
    let value = json!({
        "namespace": name.0.namespace,
        "table": name.0.table,
        "id": table.id,
        "generation": table.generation,
        "columns": columns.collect::<Vec<_>>(),
        "partition_key": table.partition_key.iter().map(|id| named(*id)).collect::<Vec<_>>(),
        "clustering_key": clustering.collect::<Vec<_>>(),
        "indexes": indexes(false),
        "indexes_being_built": indexes(true),
    });
    context.tell(&value, &text)
}

fn list(context: &Context, namespace: Option<String>) -> Result<(), Failure> {
    let namespaces = match namespace {
        Some(namespace) => vec![namespace],
        None => context.map.namespaces()?,
    };
    let (mut values, mut text) = (Vec::new(), String::new());
    for namespace in namespaces {
        let tables = context.map.tables(&namespace)?;
        for table in &tables {
            text += &format!("{namespace}.{table}\n");
        }
        values.push(json!({"namespace": namespace, "tables": tables}));
    }
    context.tell(&Value::Array(values), &text)
}

//! Answers and failures of the server as the map face's types.
//!
//! Invariant: of a change whose answer was lost, or that failed in the store, the error is [`Error::Unknown`]; a reader
//! is told of the loss.

use std::io;

use esker_map::{Atomicity, Column, DataType, Error, Index, MapCapability, Order, PageToken, Record, Table, Value};
use esker_store::Error as StoreError;
use tonic::{Code, Status};

use crate::decode::{kept, text};
use crate::proto::map as proto;

/// Names of the metadata with an error's name, and with the name that is missing or taken.
const ERROR: &str = "esker-error";
const NAME: &str = "esker-name-bin";

fn told(status: &Status) -> Option<&str> {
    status.metadata().get(ERROR)?.to_str().ok()
}

/// Whether the service itself has answered.
pub(super) fn is_told(status: &Status) -> bool {
    told(status).is_some()
}

/// An answer that does not fit the question.
pub(super) fn nonsense(what: &str) -> Status {
    Status::internal(format!("{what}: the server's answer does not fit the question"))
}

/// What a failed call of `what` means; `changes` where it may have changed something.
pub(super) fn error(what: &'static str, status: &Status, changes: bool) -> Error {
    let message = text(status);
    let name = || {
        let bytes = status.metadata().get_bin(NAME).and_then(|name| name.to_bytes().ok());
        bytes.and_then(|bytes| String::from_utf8(bytes.to_vec()).ok()).unwrap_or_else(|| message.clone())
    };
    let failed = |kind| {
        let source = io::Error::new(kind, message.clone());
        Error::Store(StoreError::io(format!("{what} at the server"), source))
    };
    let missing = |what| Error::Missing { what, name: name() };
    let exists = |what| Error::Exists { what, name: name() };
    match told(status) {
        Some("no-namespace") => missing("namespace"),
        Some("no-table") => missing("table"),
        Some("no-column") => missing("column"),
        Some("no-index") => missing("index"),
        Some("namespace-exists") => exists("namespace"),
        Some("table-exists") => exists("table"),
        Some("column-exists") => exists("column"),
        Some("index-exists") => exists("index"),
        Some("invalid") => Error::Invalid { what, why: message },
        Some("page-token") => Error::Invalid { what: "page token", why: message },
        Some("not-empty") => Error::Invalid { what: "namespace", why: message },
        Some("contended") => Error::Contended { what: format!("{what} at the server ({message})"), attempts: 1 },
        Some("uncertain") => Error::Unknown { cause: message },
        Some("unsupported") => Error::Unsupported { storage: "the server", what: kept(&message) },
        Some("read-only") => Error::Store(StoreError::ReadOnly),
        Some("full") => failed(io::ErrorKind::StorageFull),
        Some("busy") => failed(io::ErrorKind::ResourceBusy),
        Some("damaged") => Error::Damaged { what: "the server's store".into(), why: message },
        _ => match status.code() {
            Code::Unauthenticated | Code::PermissionDenied => failed(io::ErrorKind::PermissionDenied),
            Code::Unimplemented => Error::Unsupported { storage: "the server", what: kept(&message) },
            Code::OutOfRange => Error::Invalid { what, why: message },
            _ if changes => Error::Unknown { cause: format!("{what} at the server: {message}") },
            Code::DeadlineExceeded => failed(io::ErrorKind::TimedOut),
            _ => failed(io::ErrorKind::ConnectionAborted),
        },
    }
}

pub(super) fn capability(able: &proto::CapabilityResponse) -> MapCapability {
    let atomicity = match able.atomicity() {
        proto::Atomicity::Storage => Atomicity::Storage,
        proto::Atomicity::Partition => Atomicity::Partition,
        proto::Atomicity::Record | proto::Atomicity::Unspecified => Atomicity::Record,
    };
    MapCapability {
        storage: "grpc",
        atomicity,
        indexes: able.indexes,
        filters: able.filters,
        expiry: able.expiry,
        persistent: able.persistent,
    }
}

fn data_type(number: i32) -> Option<DataType> {
    use proto::DataType as P;
    Some(match P::try_from(number).ok()? {
        P::Boolean => DataType::Boolean,
        P::Int => DataType::Int,
        P::Bigint => DataType::BigInt,
        P::Float => DataType::Float,
        P::Double => DataType::Double,
        P::Text => DataType::Text,
        P::Blob => DataType::Blob,
        P::Date => DataType::Date,
        P::Time => DataType::Time,
        P::Timestamp => DataType::Timestamp,
        P::Timestamptz => DataType::TimestampTz,
        P::Unspecified => return None,
    })
}

/// A table; its columns and indexes are numbered as they are listed.
pub(super) fn table(answer: proto::DescribeTableResponse) -> Option<Table> {
    let schema = answer.schema?;
    let mut columns = Vec::with_capacity(schema.columns.len());
    for (number, column) in schema.columns.into_iter().enumerate() {
        let id = u16::try_from(number).ok()?;
        columns.push(Column { id, name: column.name, data_type: data_type(column.r#type)? });
    }
    let numbered = |name: &String| columns.iter().find(|column| column.name == *name).map(|column| column.id);
    let clustering = |column: &proto::ClusteringColumn| {
        let order = match proto::Order::try_from(column.order).ok()? {
            proto::Order::Asc => Order::Asc,
            proto::Order::Desc => Order::Desc,
        };
        Some((numbered(&column.name)?, order))
    };
    let partition_key = schema.partition_key.iter().map(numbered).collect::<Option<Vec<_>>>()?;
    let clustering_key = schema.clustering_key.iter().map(clustering).collect::<Option<Vec<_>>>()?;
    let first = columns.len() as u16;
    let index = |(id, name)| Some(Index { id, column: numbered(name)?, building: false });
    let indexes = (first..).zip(&schema.indexes).map(index).collect::<Option<Vec<_>>>()?;
    let next = first.checked_add(indexes.len() as u16)?;
    Some(Table { id: answer.id, generation: answer.generation, columns, partition_key, clustering_key, indexes, next })
}

/// A value; the inner `None` is null, the outer one absent.
fn value(value: proto::Value) -> Option<Option<Value>> {
    use proto::value::Value as P;
    Some(Some(match value.value? {
        P::Null(_) => return Some(None),
        P::Boolean(value) => Value::Boolean(value),
        P::Int(value) => Value::Int(value),
        P::Bigint(value) => Value::BigInt(value),
        P::Float(value) => Value::Float(value),
        P::Double(value) => Value::Double(value),
        P::Text(value) => Value::Text(value),
        P::Blob(value) => Value::Blob(value),
        P::Date(value) => Value::Date(value),
        P::Time(value) => Value::Time(value),
        P::Timestamp(value) => Value::Timestamp(value),
        P::Timestamptz(value) => Value::TimestampTz(value),
    }))
}

pub(super) fn record(record: proto::Record) -> Option<Record> {
    let column = |column: proto::Column| Some((column.name, value(column.value?)?));
    let columns = record.columns.into_iter().map(column).collect::<Option<_>>()?;
    Some(Record { columns, expires_ms: record.expires_ms })
}

/// A row of a scan; `None` if it has more cells than there are columns.
pub(super) fn row(columns: &[String], row: proto::Row) -> Option<Record> {
    if row.cells.len() > columns.len() {
        return None;
    }
    let cell = |(name, cell): (&String, proto::Value)| Some((name.clone(), value(cell)?));
    Some(Record { columns: columns.iter().zip(row.cells).filter_map(cell).collect(), expires_ms: row.expires_ms })
}

/// A token of the server's.
pub(super) fn token(token: bytes::Bytes) -> PageToken {
    PageToken(token.to_vec())
}

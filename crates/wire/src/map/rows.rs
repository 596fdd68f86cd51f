//! Rows that reads answer with: as records, and as cells of a scan under names that stand once.

use esker_map::{NAME_BYTES_MAX, PageToken, Record, Value};

use super::value::{decode_column, decode_value, encode_column, encode_value};
use crate::proto::map as proto;
use crate::{Error, Result};

/// A row.
pub fn encode_record(record: Record) -> proto::Record {
    let columns = record.columns.into_iter().map(|(name, value)| encode_column(name, value));
    proto::Record { columns: columns.collect(), expires_ms: record.expires_ms }
}

/// A row.
///
/// # Errors
/// [`Error::Malformed`] if one of its columns has no value.
pub fn decode_record(message: proto::Record) -> Result<Record> {
    let columns = message.columns.into_iter().map(decode_column).collect::<Result<_>>()?;
    Ok(Record { columns, expires_ms: message.expires_ms })
}

/// A cell of a scan's row: the outer `None` is a column that is absent, the inner one null.
pub fn encode_cell(cell: Option<Option<Value>>) -> proto::Value {
    cell.map_or_else(proto::Value::default, encode_value)
}

/// A cell of a scan's row: the outer `None` is a column that is absent, the inner one null.
pub fn decode_cell(message: proto::Value) -> Option<Option<Value>> {
    decode_value(message)
}

/// About how many bytes a cell takes in a message.
pub fn cell_bytes(cell: &proto::Value) -> usize {
    use proto::value::Value as P;
    match &cell.value {
        Some(P::Text(text)) => 6 + text.len(),
        Some(P::Blob(bytes)) => 6 + bytes.len(),
        _ => 9,
    }
}

/// A row of a scan, whose cells have the names `columns`.
///
/// # Errors
/// [`Error::Malformed`] if it has more cells than there are names, or one of these is too long.
pub fn decode_row(columns: &[String], row: proto::Row) -> Result<Record> {
    if row.cells.len() > columns.len() {
        let why = format!("{} cells under {} names", row.cells.len(), columns.len());
        return Err(Error::malformed("Row.cells", why));
    }
    // Each row has its own names: a long one would be many times in memory.
    if let Some(name) = columns.iter().find(|name| name.len() > NAME_BYTES_MAX) {
        let why = format!("a name of {} bytes, NAME_BYTES_MAX is {NAME_BYTES_MAX}", name.len());
        return Err(Error::malformed("ScanResponse.columns", why));
    }
    let cell = |(name, cell): (&String, proto::Value)| Some((name.clone(), decode_cell(cell)?));
    Ok(Record { columns: columns.iter().zip(row.cells).filter_map(cell).collect(), expires_ms: row.expires_ms })
}

/// Where a scan goes on; nothing where it does not.
pub fn encode_token(token: Option<&PageToken>) -> bytes::Bytes {
    token.map_or_else(Default::default, |token| token.0.clone().into())
}

/// Where a scan goes on, if it does.
pub fn decode_token(token: &bytes::Bytes) -> Option<PageToken> {
    (!token.is_empty()).then(|| PageToken(token.to_vec()))
}

//! Tables by their names.

use esker_map::TableName;

use crate::proto::map as proto;
use crate::{Error, Result};

/// A table by its name, as requests have it.
pub fn encode_table_name(name: &TableName) -> Option<proto::Table> {
    Some(proto::Table { namespace: name.namespace.clone(), table: name.table.clone() })
}

/// The table that the field `field` of a request names.
///
/// # Errors
/// [`Error::Malformed`] if it names none.
pub fn decode_table_name(field: &'static str, message: Option<proto::Table>) -> Result<TableName> {
    let message = message.ok_or_else(|| Error::malformed(field, "the request names no table"))?;
    Ok(TableName::new(message.namespace, message.table))
}

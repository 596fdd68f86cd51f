//! A record: a row as its users see it, with the names of its columns.

use crate::value::Value;

/// An expiry that never comes: what a put sets to make a row stay that was to expire.
pub const NEVER_MS: u64 = u64::MAX;

/// A row as its users see it: columns that are there, in the table's order, key columns first. A column may hold null.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Names and values; `None` is null.
    pub columns: Vec<(String, Option<Value>)>,
    /// When the row goes by itself, in unix milliseconds; `None`: it does not.
    pub expires_ms: Option<u64>,
}

impl Record {
    /// A column: absent, null, or a value.
    pub fn get(&self, name: &str) -> Option<Option<&Value>> {
        self.columns.iter().find(|(column, _)| column == name).map(|(_, value)| value.as_ref())
    }

    /// A column's value; `None` for null and absent.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.get(name).flatten()
    }
}

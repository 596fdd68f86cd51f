//! The guard of a table's generation, which every change of the table or of its rows carries.

use esker_store::{Compare, Condition, Transaction};

use crate::names::{self, GENERATION};
use crate::schema::Table;

/// The guard that every mutation of a table carries.
pub(crate) fn guarded(txn: &mut Transaction, table: &Table) {
    txn.push_guard(&names::head(table.id), Condition::compare(GENERATION, Compare::Equal, table.generation, false));
}

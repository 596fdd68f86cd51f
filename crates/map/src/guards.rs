//! The guard of a table's generation, which every change of the table or of its rows carries.

use bytes::Bytes;
use esker_store::{Compare, Condition, Guard, Transaction};

use crate::names::{self, GENERATION};
use crate::schema::Table;

/// How often something is tried again because somebody else changed it meanwhile.
pub(crate) const ATTEMPTS_MAX: u32 = 1_000;

fn generation_is(generation: u64) -> Condition {
    let name = Bytes::from_static(GENERATION);
    Condition::XattrCompare { name, compare: Compare::Equal, value: generation, absent_holds: false }
}

/// The guard that every mutation of a table carries.
pub(crate) fn guarded(txn: &mut Transaction, table: &Table) {
    let guard = Guard { object: names::head(table.id), condition: generation_is(table.generation) };
    txn.guards.push(guard);
}

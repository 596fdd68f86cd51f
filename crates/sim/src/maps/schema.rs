//! The schema of the table.
//!
//! Invariant: x and g are there whatever happens to the table; only y comes and goes.

use esker_map::{DataType, Order, Schema};

/// The table without y, with or without an index of g.
pub(crate) fn schema(indexed: bool) -> Schema {
    let schema = Schema::new()
        .column("p", DataType::Int)
        .column("c", DataType::Int)
        .column("x", DataType::Int)
        .column("g", DataType::Int)
        .partition("p")
        .clustering("c", Order::Asc);
    if indexed { schema.index("g") } else { schema }
}

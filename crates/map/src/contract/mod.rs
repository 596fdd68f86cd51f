//! The contract: what every [`MapStorage`] promises, as tests that every storage passes unchanged.
//!
//! storage's `tests/` → [`map_suite!`](crate::map_suite) → one `#[test]` per promise → [`Harness`]
//!
//! What a storage lacks by its own [`MapCapability`](crate::MapCapability) has to be refused; that is tested instead.
//!
//! Invariants:
//! 1. Each test works on a storage of its own, under a clock that it moves itself.
//! 2. Every test of these files is in the macro's list (a test here holds this).

#![allow(clippy::unwrap_used, reason = "a test that fails")]

pub mod races;
pub mod rows;
pub mod scans;
pub mod schemas;
pub mod types;

use std::sync::Arc;

use crate::{DataType, Durability, Key, MapStorage, Mutation, Order, Record, Scan, Schema, TableName, Value};

/// Makes storages to test.
pub trait Harness: Send + Sync {
    /// A new, empty storage, with its clock at 0.
    fn fresh(&self) -> Box<dyn Opened>;

    /// How many rounds a random test goes; less where each takes long.
    fn rounds(&self) -> u64 {
        1_500
    }
}

/// A storage that is open.
pub trait Opened: Send + Sync {
    /// The storage.
    fn storage(&self) -> Arc<dyn MapStorage>;

    /// Another handle to the same storage, which knows only what stands there, as that of another process.
    fn another(&self) -> Arc<dyn MapStorage>;

    /// The time of its handles, in unix milliseconds.
    fn now_ms(&self) -> u64;

    /// Moves that time.
    fn set_ms(&self, now_ms: u64);

    /// Removes the rows of a table that have expired, where that is done on demand.
    fn sweep(&self, _table: &TableName) {}

    /// Fails if there is anything left of tables after the last was dropped.
    fn check_empty(&self) {}
}

/// Makes one `#[test]` per promise of the contract, run with the [`Harness`](crate::contract::Harness) that the
/// expression gives. Attributes after it go to every test.
///
/// ```ignore
/// esker_map::map_suite!(MyHarness::new());
/// esker_map::map_suite!(MyHarness::new(); #[ignore = "needs a server"]);
/// ```
#[macro_export]
macro_rules! map_suite {
    ($harness:expr $(; $(#[$attribute:meta])+)?) => {
        $crate::map_suite! { @tests [$($(#[$attribute])+)?] ($harness)
            rows: rows_are_merged_read_and_deleted_and_null_is_not_absent;
            rows: conditions_are_met_or_the_row_is_told;
            rows: lists_in_a_partition_are_atomic;
            rows: lists_over_partitions_are_atomic_or_refused;
            rows: rows_expire_by_themselves_and_come_back_new;
            rows: bad_input_is_refused_by_name;
            scans: scans_keep_to_their_bounds_in_either_order;
            scans: nothing_lies_beyond_the_last_key;
            scans: pages_go_on_where_they_ended_also_after_a_restart_and_only_for_their_scan;
            scans: filters_projections_and_other_orders_are_evaluated;
            schemas: indexes_are_never_stale_whatever_is_done;
            schemas: schemas_change_under_rows;
            schemas: a_dropped_table_made_anew_is_another_one;
            schemas: names_are_kept_as_they_are_written;
            types: values_of_all_types_are_read_back;
            types: keys_of_all_types_sort_as_their_values;
            types: keys_of_several_columns_are_told_apart;
            races: counters_incremented_by_many_under_conditions_lose_nothing;
            races: rows_of_a_partition_change_together_for_all_readers;
        }
    };
    (@tests $attributes:tt $harness:tt $($file:ident: $name:ident;)*) => {
        $($crate::map_suite! { @test $attributes $harness $file $name })*
    };
    (@test [$($attribute:tt)*] ($harness:expr) $file:ident $name:ident) => {
        #[test]
        $($attribute)*
        fn $name() {
            $crate::contract::$file::$name(&$harness);
        }
    };
}

/// Runs a test on a fresh storage with namespace `ns`.
fn with(harness: &dyn Harness, test: impl Fn(&dyn MapStorage, &dyn Opened)) {
    let opened = harness.fresh();
    let storage = opened.storage();
    storage.create_namespace("ns").unwrap();
    test(&*storage, &*opened);
}

fn table() -> TableName {
    TableName::new("ns", "t")
}

/// Partition p, clustering a rising, b falling; x indexed, y, z.
fn schema() -> Schema {
    Schema::new()
        .column("p", DataType::Text)
        .column("a", DataType::Int)
        .column("b", DataType::BigInt)
        .column("x", DataType::Int)
        .column("y", DataType::Text)
        .column("z", DataType::Double)
        .partition("p")
        .clustering("a", Order::Asc)
        .clustering("b", Order::Desc)
        .index("x")
}

fn key(p: &str, a: i32, b: i64) -> Key {
    Key::of("p", p).and("a", a).and("b", b)
}

fn put(map: &dyn MapStorage, key: Key, columns: &[(&str, Value)]) {
    let columns = columns.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    map.mutate(&[Mutation::put(&table(), key, columns)], Durability::Applied).unwrap().wait().unwrap();
}

/// All rows of a scan, page after page.
fn all(map: &dyn MapStorage, scan: Scan) -> Vec<Record> {
    let mut records = Vec::new();
    let mut page = None;
    loop {
        let found = map.scan(&Scan { page, ..scan.clone() }).unwrap();
        records.extend(found.records);
        page = found.next;
        if page.is_none() {
            return records;
        }
    }
}

/// The clustering keys of rows.
fn ab(records: &[Record]) -> Vec<(i32, i64)> {
    let number = |record: &Record| match (record.value("a"), record.value("b")) {
        (Some(Value::Int(a)), Some(Value::BigInt(b))) => (*a, *b),
        other => panic!("{other:?}"),
    };
    records.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_test_of_the_contract_is_in_the_list() {
        let list = include_str!("mod.rs");
        let files = [
            ("races", include_str!("races.rs")),
            ("rows", include_str!("rows.rs")),
            ("scans", include_str!("scans.rs")),
            ("schemas", include_str!("schemas.rs")),
            ("types", include_str!("types.rs")),
        ];
        for (file, text) in files {
            for rest in text.split("\npub fn ").skip(1) {
                let name = rest.split('(').next().unwrap();
                assert!(list.contains(&format!("{file}: {name};")), "{file}: {name} is not in the list");
            }
        }
    }
}

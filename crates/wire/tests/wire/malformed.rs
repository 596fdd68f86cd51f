//! Messages that make no sense give an error that names the field: never a panic, never a guess.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use esker_map::{COLUMNS_MAX, MUTATIONS_MAX};
use esker_store::{Collection, Compression, limits};
use esker_wire::proto::{log as log_proto, map as map_proto, store as store_proto};
use esker_wire::{Error, Result, log, map, store};
use proptest::prelude::*;
use prost::Message;

/// An outcome is an error that names `field` and has `part` in its text.
#[track_caller]
fn check<T: Debug>(outcome: Result<T>, field: &str, part: &str) {
    let error = outcome.expect_err(field);
    let (Error::Malformed { field: named, .. } | Error::TooMany { field: named, .. }) = &error;
    assert_eq!(*named, field, "{error}");
    let text = error.to_string();
    assert!(text.contains(field) && text.contains(part), "{text:?} has no {part:?}");
}

fn object() -> store_proto::ObjectId {
    store_proto::ObjectId { collection: Bytes::from_static(b"c"), name: Bytes::from_static(b"o") }
}

fn guard(object: u32, condition: Option<store_proto::guard::Condition>) -> store_proto::SubmitRequest {
    let guards = vec![store_proto::Guard { object, condition }];
    store_proto::SubmitRequest { objects: vec![self::object()], guards, ..Default::default() }
}

fn op(object: u32, op: Option<store_proto::op::Op>) -> store_proto::SubmitRequest {
    let ops = vec![store_proto::Op { object, op }];
    store_proto::SubmitRequest { objects: vec![self::object()], ops, ..Default::default() }
}

#[test]
fn transactions_that_make_no_sense_are_refused() {
    use store_proto::guard::Condition as Is;
    use store_proto::op::Op as Does;
    use store_proto::{CloneRange, Nothing, XattrCompare};
    let decode = store::decode_transaction;
    check(decode(guard(0, None)), "Guard.condition", "no condition");
    check(decode(guard(1, Some(Is::Exists(Nothing {})))), "Guard.object", "object 1 of 1");
    check(decode(guard(u32::MAX, Some(Is::Exists(Nothing {})))), "Guard.object", "of 1");
    let unknown = XattrCompare { compare: 99, ..Default::default() };
    check(decode(guard(0, Some(Is::XattrCompare(unknown)))), "XattrCompare.compare", "99");
    check(decode(op(0, None)), "Op.op", "empty");
    check(decode(op(7, Some(Does::Touch(Nothing {})))), "Op.object", "object 7 of 1");
    check(decode(op(0, Some(Does::CloneTo(3)))), "Op.clone_to", "object 3");
    check(decode(op(0, Some(Does::Rename(4)))), "Op.rename", "object 4");
    let range = CloneRange { to: 5, from_offset: u64::MAX, len: u64::MAX, to_offset: u64::MAX };
    check(decode(op(0, Some(Does::CloneRange(range)))), "CloneRange.to", "object 5");
    let both = store_proto::SubmitRequest { applied_only: true, always: true, ..Default::default() };
    check(decode(both), "SubmitRequest.always", "exclude each other");
    let many = vec![store_proto::Op::default(); limits::TRANSACTION_OPS_MAX + 1];
    let many = store_proto::SubmitRequest { ops: many, ..Default::default() };
    check(decode(many), "SubmitRequest.ops", "TRANSACTION_OPS_MAX");
    let many = vec![store_proto::Guard::default(); limits::TRANSACTION_OPS_MAX + 1];
    let many = store_proto::SubmitRequest { guards: many, ..Default::default() };
    check(decode(many), "SubmitRequest.guards", "TRANSACTION_OPS_MAX");
}

#[test]
fn a_hint_that_is_not_known_is_no_hint() {
    let hinted = store_proto::SubmitRequest { compression: 99, ..Default::default() };
    assert_eq!(store::decode_transaction(hinted).map(|txn| txn.compression), Ok(Compression::None));
}

#[test]
fn reads_of_no_object_are_refused() {
    check(store::decode_object_request(Default::default()), "ObjectRequest.object", "no object");
    check(store::decode_range_request(Default::default()), "RangeRequest.object", "no object");
    check(store::decode_xattr_request(Default::default()), "XattrRequest.object", "no object");
    check(store::decode_omap_get(Default::default()), "OmapGetRequest.object", "no object");
    check(store::decode_omap_scan(Default::default()), "OmapScanRequest.object", "no object");
    check(store::decode_slot_get(Default::default()), "SlotGetRequest.object", "no object");
    check(store::decode_slot_scan(Default::default()), "SlotScanRequest.object", "no object");
}

#[test]
fn answers_that_do_not_fit_the_question_are_refused() {
    let data = store_proto::ReadResponse { data: Bytes::from_static(b"four") };
    check(store::decode_data(&(10..13), data.clone()), "ReadResponse.data", "4 bytes, of 3");
    let (start, end) = (13, 10);
    check(store::decode_data(&(start..end), data), "ReadResponse.data", "of 0");
    let values = store::encode_values([None, None]);
    check(store::decode_values(3, values.clone()), "ValuesResponse.values", "2 values, of 3");
    check(store::decode_value(values), "ValuesResponse.values", "of 1");
    let part = store_proto::CommitScanResponse { entries: vec![Default::default()], ..Default::default() };
    check(store::decode_commit_part(&Collection::from("c"), part), "CommitEntry.entry", "neither");
    check(store::decode_error(Default::default()), "StoreError.error", "none that is known");
}

fn named(name: &str) -> map_proto::ColumnType {
    map_proto::ColumnType { name: name.into(), r#type: map_proto::DataType::Int.into() }
}

fn described(schema: map_proto::Schema) -> map_proto::DescribeTableResponse {
    map_proto::DescribeTableResponse { schema: Some(schema), id: 1, generation: 1 }
}

#[test]
fn schemas_that_make_no_sense_are_refused() {
    use map_proto::alter_table_request::Change;
    check(map::decode_schema(None), "CreateTableRequest.schema", "no schema");
    for number in [0, 99, -1] {
        let column = map_proto::ColumnType { name: "x".into(), r#type: number };
        let schema = map_proto::Schema { columns: vec![column.clone()], ..Default::default() };
        check(map::decode_schema(Some(schema.clone())), "ColumnType.type", "\"x\"");
        check(map::decode_table(described(schema)), "ColumnType.type", "is not known");
        check(map::decode_alter(Some(Change::AddColumn(column.clone()))), "ColumnType.type", "is not known");
        check(map::decode_alter(Some(Change::ChangeType(column))), "ColumnType.type", "is not known");
    }
    let clustering_key = vec![map_proto::ClusteringColumn { name: "x".into(), order: 7 }];
    let schema = map_proto::Schema { columns: vec![named("x")], clustering_key, ..Default::default() };
    check(map::decode_schema(Some(schema.clone())), "ClusteringColumn.order", "order 7");
    check(map::decode_table(described(schema)), "ClusteringColumn.order", "order 7");
    check(map::decode_alter(None), "AlterTableRequest.change", "no change");
    check(map::decode_table_name("GetRequest.table", None), "GetRequest.table", "no table");
}

/// Failure: the client counted the columns and indexes of a table in 16 bits. An answer of a server with 65,536 of them
/// began to number indexes at 0 again, or ended in a panic. Cause: `as u16` behind the last number. Fix: a table with
/// more columns than there may be is refused.
#[test]
fn tables_that_make_no_sense_are_refused() {
    check(map::decode_table(Default::default()), "DescribeTableResponse.schema", "no schema");
    for count in [COLUMNS_MAX + 1, 1 << 16, (1 << 16) + 1] {
        let schema = map_proto::Schema { columns: vec![named("x"); count], ..Default::default() };
        check(map::decode_table(described(schema)), "Schema.columns", "COLUMNS_MAX");
        let (columns, indexes) = (vec![named("x")], vec!["x".into(); count]);
        let schema = map_proto::Schema { columns, indexes, ..Default::default() };
        check(map::decode_table(described(schema)), "Schema.indexes", "COLUMNS_MAX");
    }
    let nobody = || vec!["y".to_owned()];
    let one = || map_proto::Schema { columns: vec![named("x")], ..Default::default() };
    let schema = map_proto::Schema { partition_key: nobody(), ..one() };
    check(map::decode_table(described(schema)), "Schema.partition_key", "\"y\" is not listed");
    let clustering_key = vec![map_proto::ClusteringColumn { name: "y".into(), order: 0 }];
    let schema = map_proto::Schema { clustering_key, ..one() };
    check(map::decode_table(described(schema)), "Schema.clustering_key", "\"y\" is not listed");
    let schema = map_proto::Schema { indexes: nobody(), ..one() };
    check(map::decode_table(described(schema)), "Schema.indexes", "\"y\" is not listed");
}

fn filtered(filter: Option<map_proto::filter::Filter>) -> map_proto::GetRequest {
    let table = Some(map_proto::Table::default());
    map_proto::GetRequest { table, filter: Some(map_proto::Filter { filter }), ..Default::default() }
}

fn cell(value: Option<map_proto::value::Value>) -> Option<map_proto::Value> {
    Some(map_proto::Value { value })
}

#[test]
fn filters_that_make_no_sense_are_refused() {
    use map_proto::filter::Filter as F;
    use map_proto::value::Value as V;
    let decode = |filter| map::decode_get(filtered(filter));
    check(decode(None), "Filter.filter", "a filter says nothing");
    let comparison = |compare, value| F::Compare(map_proto::Comparison { column: "x".into(), compare, value });
    for value in [None, cell(None)] {
        check(decode(Some(comparison(1, value))), "Comparison.value", "\"x\" has no value");
    }
    check(decode(Some(comparison(1, cell(Some(V::Null(map_proto::Null {})))))), "Comparison.value", "null");
    for number in [0, 99, i32::MIN] {
        check(decode(Some(comparison(number, cell(Some(V::Int(1)))))), "Comparison.compare", &number.to_string());
    }
    let like = map_proto::Like { escape: "ab".into(), ..Default::default() };
    check(decode(Some(F::Like(like))), "Like.escape", "one character");
    let nest = |depth: usize| {
        (1..depth).fold(F::IsNull("x".into()), |inner, _| {
            F::All(map_proto::Filters { filters: vec![map_proto::Filter { filter: Some(inner) }] })
        })
    };
    assert!(decode(Some(nest(map::FILTER_DEPTH_MAX))).is_ok());
    check(decode(Some(nest(map::FILTER_DEPTH_MAX + 1))), "Filters.filters", "FILTER_DEPTH_MAX");
    check(decode(Some(nest(5_000))), "Filters.filters", "FILTER_DEPTH_MAX");
}

#[test]
fn reads_of_rows_that_make_no_sense_are_refused() {
    use map_proto::scan_request::Over;
    let table = || Some(map_proto::Table::default());
    let nothing = || vec![map_proto::Column { name: "k".into(), value: None }];
    check(map::decode_get(Default::default()), "GetRequest.table", "no table");
    let get = map_proto::GetRequest { table: table(), key: nothing(), ..Default::default() };
    check(map::decode_get(get), "GetRequest.key", "\"k\" has no value");
    let get = map_proto::GetRequest { table: table(), consistency: 9, ..Default::default() };
    check(map::decode_get(get), "GetRequest.consistency", "9");
    let scan = |over| map_proto::ScanRequest { table: table(), over, ..Default::default() };
    let all = || Some(Over::All(map_proto::AllRows {}));
    check(map::decode_scan(scan(None)), "ScanRequest.over", "not over what");
    let unnamed = map_proto::ScanRequest { table: None, ..scan(all()) };
    check(map::decode_scan(unnamed), "ScanRequest.table", "no table");
    check(map::decode_scan(map_proto::ScanRequest { consistency: -1, ..scan(all()) }), "ScanRequest.consistency", "-1");
    let order_by = vec![map_proto::OrderBy { column: "x".into(), order: 3 }];
    check(map::decode_scan(map_proto::ScanRequest { order_by, ..scan(all()) }), "OrderBy.order", "order 3");
    let key = map_proto::PartitionRange { key: nothing(), ..Default::default() };
    check(map::decode_scan(scan(Some(Over::Partition(key)))), "PartitionRange.key", "no value");
    for high in [false, true] {
        let bound = Some(map_proto::Bound { values: nothing(), exclusive: false });
        let (low, high) = if high { (None, bound) } else { (bound, None) };
        let bounded = map_proto::PartitionRange { low, high, ..Default::default() };
        check(map::decode_scan(scan(Some(Over::Partition(bounded)))), "Bound.values", "no value");
    }
    let index = map_proto::Column { name: "k".into(), value: None };
    check(map::decode_scan(scan(Some(Over::Index(index)))), "ScanRequest.index", "no value");
    let boundless = map_proto::ScanRequest { limit: u64::MAX, ..scan(all()) };
    assert_eq!(map::decode_scan(boundless).map(|scan| scan.limit), Ok(usize::MAX));
}

#[test]
fn mutations_that_make_no_sense_are_refused() {
    use map_proto::condition::Condition as If;
    use map_proto::mutation::Change;
    let delete = || Some(Change::Delete(map_proto::Delete {}));
    let table = || Some(map_proto::Table::default());
    let of = |change| map_proto::Mutation { table: table(), change, ..Default::default() };
    check(map::decode_mutation(of(None)), "Mutation.change", "neither put nor delete");
    check(map::decode_mutation(map_proto::Mutation { table: None, ..of(delete()) }), "Mutation.table", "no table");
    let nothing = || vec![map_proto::Column { name: "k".into(), value: cell(None) }];
    check(map::decode_mutation(map_proto::Mutation { key: nothing(), ..of(delete()) }), "Mutation.key", "no value");
    let put = map_proto::Put { columns: nothing(), ..Default::default() };
    check(map::decode_mutation(of(Some(Change::Put(put)))), "Column.value", "\"k\" has no value");
    for condition in [None, Some(If::Exists(false)), Some(If::NotExists(false))] {
        let condition = Some(map_proto::Condition { condition });
        check(map::decode_mutation(map_proto::Mutation { condition, ..of(delete()) }), "Condition.condition", "exists");
    }
    let both = map_proto::MutateRequest { applied_only: true, always: true, ..Default::default() };
    check(map::decode_mutate(both), "MutateRequest.always", "exclude each other");
    let many = map_proto::MutateRequest { mutations: vec![of(None); MUTATIONS_MAX + 1], ..Default::default() };
    check(map::decode_mutate(many), "MutateRequest.mutations", "MUTATIONS_MAX");
    check(map::decode_outcome(Default::default()), "MutateResponse.outcome", "neither");
    let row = map_proto::Row { cells: vec![Default::default(); 2], expires_ms: None };
    check(map::decode_row(&["x".to_owned()], row), "Row.cells", "2 cells under 1 names");
    let record = map_proto::Record { columns: nothing(), expires_ms: None };
    check(map::decode_record(record), "Column.value", "no value");
}

#[test]
fn entries_of_logs_that_make_no_sense_are_refused() {
    let layout = log_proto::Options { layout: 99, ..Default::default() };
    check(log::decode_options(Some(layout), Default::default()), "Options.layout", "99");
    let compression = log_proto::Options { compression: 99, ..Default::default() };
    check(log::decode_options(Some(compression), Default::default()), "Options.compression", "99");
    check(log::decode_found(Default::default()), "Found.found", "neither");
    for (number, part) in [(0, "no kind"), (99, "99")] {
        let found = Some(log_proto::found::Found::Gap(number));
        check(log::decode_found(log_proto::Found { found, why: String::new() }), "Found.gap", part);
    }
    check(log::decode_delivery(Default::default()), "Delivery.what", "neither");
    for number in [0, log_proto::Gap::Hole.into(), log_proto::Gap::BeyondTail.into(), 99] {
        let gap = log_proto::GapRange { gap: number, ..Default::default() };
        let what = Some(log_proto::delivery::What::Gap(gap));
        check(log::decode_delivery(log_proto::Delivery { what }), "GapRange.gap", "gap");
    }
}

/// Decodes `bytes` as message `M` and that as a type; whatever comes of it, nothing panics.
fn survives<M: Message + Default, T>(bytes: &[u8], decode: impl FnOnce(M) -> T) {
    if let Ok(message) = M::decode(bytes) {
        let outcome = catch_unwind(AssertUnwindSafe(|| drop(decode(message))));
        assert!(outcome.is_ok(), "{} of {bytes:?}", std::any::type_name::<M>());
    }
}

/// Bytes that look like messages: fields of low numbers and all kinds, one inside another.
fn fields() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![0..4u64, any::<u64>(), Just(u64::MAX)];
    let leaf = prop_oneof![
        (1..14u32, number).prop_map(|(field, number)| {
            let mut bytes = Vec::new();
            prost::encoding::uint64::encode(field, &number, &mut bytes);
            bytes
        }),
        (1..14u32, prop::collection::vec(any::<u8>(), 0..6)).prop_map(|(field, data)| {
            let mut bytes = Vec::new();
            prost::encoding::bytes::encode(field, &data, &mut bytes);
            bytes
        }),
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        (1..14u32, prop::collection::vec(inner, 0..5)).prop_map(|(field, parts)| {
            let mut bytes = Vec::new();
            prost::encoding::bytes::encode(field, &parts.concat(), &mut bytes);
            bytes
        })
    })
}

proptest! {
    #[test]
    fn no_message_makes_a_decoder_panic(parts in prop::collection::vec(fields(), 0..8)) {
        let bytes = parts.concat();
        survives(&bytes, store::decode_transaction);
        survives(&bytes, store::decode_range_request);
        survives(&bytes, store::decode_omap_scan);
        survives(&bytes, store::decode_slot_scan);
        survives(&bytes, store::decode_commit_scan);
        survives(&bytes, store::decode_list);
        survives(&bytes, store::decode_error);
        survives(&bytes, |answer| store::decode_data(&(3..u64::MAX), answer));
        survives(&bytes, |answer| store::decode_values(1, answer));
        survives(&bytes, |answer| store::decode_commit_part(&Collection::from("c"), answer));
        survives(&bytes, |answer| store::decode_capability("some", &answer));
        survives(&bytes, map::decode_table);
        survives(&bytes, |schema| map::decode_schema(Some(schema)));
        survives(&bytes, |request: map_proto::AlterTableRequest| map::decode_alter(request.change));
        survives(&bytes, map::decode_get);
        survives(&bytes, map::decode_scan);
        survives(&bytes, map::decode_mutate);
        survives(&bytes, map::decode_outcome);
        survives(&bytes, map::decode_record);
        survives(&bytes, |row| map::decode_row(&["x".to_owned()], row));
        survives(&bytes, |answer| map::decode_capability("some", &answer));
        survives(&bytes, |options| log::decode_options(Some(options), Default::default()));
        survives(&bytes, log::decode_found);
        survives(&bytes, log::decode_delivery);
    }
}

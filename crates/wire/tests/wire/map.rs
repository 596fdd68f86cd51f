//! Values, schemas, filters, reads, mutations, rows and errors of the map, there and back.

use bytes::Bytes;
use esker_map::{
    Alter, Atomicity, Bound, Change, Column, Compare, Condition, DataType, Durability, Error, Filter, Get, Index, Key,
    MapCapability, Mutation, Order, Over, PageToken, Record, Scan, Schema, Table, TableName, Value, Values,
};
use esker_store::Error as StoreError;
use esker_wire::map::{self as wire, FILTER_DEPTH_MAX};
use esker_wire::proto::map as proto;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::{bytes, sent, text};

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<bool>().prop_map(Value::Boolean),
        any::<i32>().prop_map(Value::Int),
        any::<i64>().prop_map(Value::BigInt),
        any::<u32>().prop_map(|bits| Value::Float(f32::from_bits(bits))),
        any::<u64>().prop_map(|bits| Value::Double(f64::from_bits(bits))),
        text().prop_map(Value::Text),
        bytes().prop_map(Value::Blob),
        any::<i32>().prop_map(Value::Date),
        any::<i64>().prop_map(Value::Time),
        any::<i64>().prop_map(Value::Timestamp),
        any::<i64>().prop_map(Value::TimestampTz),
    ]
}

fn values() -> impl Strategy<Value = Values> {
    vec((text(), value()), 0..4)
}

fn data_type() -> impl Strategy<Value = DataType> {
    prop::sample::select(DataType::ALL.map(|(one, _)| one).to_vec())
}

fn order() -> impl Strategy<Value = Order> {
    prop::sample::select(vec![Order::Asc, Order::Desc])
}

fn name() -> impl Strategy<Value = TableName> {
    (text(), text()).prop_map(|(namespace, table)| TableName { namespace, table })
}

fn compare() -> impl Strategy<Value = Compare> {
    use Compare as C;
    prop::sample::select(vec![C::Equal, C::NotEqual, C::Less, C::LessOrEqual, C::Greater, C::GreaterOrEqual])
}

/// At most as deep as filters may be.
fn filter() -> impl Strategy<Value = Filter> {
    let leaf = prop_oneof![
        (text(), compare(), value()).prop_map(|(column, compare, value)| Filter::Compare(column, compare, value)),
        text().prop_map(Filter::IsNull),
        text().prop_map(Filter::IsNotNull),
        (text(), text(), option::of(any::<char>()), any::<bool>())
            .prop_map(|(column, pattern, escape, negated)| Filter::Like { column, pattern, escape, negated }),
    ];
    leaf.prop_recursive(FILTER_DEPTH_MAX as u32 - 1, 24, 3, |inner| {
        prop_oneof![vec(inner.clone(), 0..3).prop_map(Filter::All), vec(inner, 0..3).prop_map(Filter::Any)]
    })
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        Just(Condition::Always),
        Just(Condition::Exists),
        Just(Condition::NotExists),
        filter().prop_map(Condition::If),
    ]
}

fn columns() -> impl Strategy<Value = Vec<(String, Option<Value>)>> {
    vec((text(), option::of(value())), 0..5)
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let put = (columns(), option::of(any::<u64>()));
    let put = put.prop_map(|(columns, expires_ms)| Change::Put { columns, expires_ms });
    let change = prop_oneof![3 => put, 1 => Just(Change::Delete)];
    (name(), values(), change, condition()).prop_map(|(table, key, change, condition)| Mutation {
        table,
        key: Key(key),
        change,
        condition,
    })
}

fn durability() -> impl Strategy<Value = Durability> {
    prop::sample::select(vec![Durability::Durable, Durability::Always, Durability::Applied])
}

fn over() -> impl Strategy<Value = Over> {
    let bound = || option::of((values(), any::<bool>()).prop_map(|(values, inclusive)| Bound { values, inclusive }));
    prop_oneof![
        (values(), bound(), bound()).prop_map(|(key, low, high)| Over::Partition { key, low, high }),
        (text(), value()).prop_map(|(column, value)| Over::Index(column, value)),
        Just(Over::All),
    ]
}

fn scan() -> impl Strategy<Value = Scan> {
    let token = option::of(vec(any::<u8>(), 1..9).prop_map(PageToken));
    let how = (any::<bool>(), any::<usize>(), vec((text(), order()), 0..3), token);
    (name(), over(), vec(text(), 0..3), filter(), how).prop_map(
        |(table, over, columns, filter, (reverse, limit, order_by, page))| Scan {
            table,
            over,
            reverse,
            columns,
            filter,
            order_by,
            limit,
            page,
        },
    )
}

fn record() -> impl Strategy<Value = Record> {
    (columns(), option::of(any::<u64>())).prop_map(|(columns, expires_ms)| Record { columns, expires_ms })
}

/// A table whose columns and indexes are numbered as they are listed.
fn table() -> impl Strategy<Value = Table> {
    let columns = prop::collection::btree_map(text(), data_type(), 1..8);
    let picked = || vec((any::<prop::sample::Index>(), order()), 0..4);
    (any::<(u64, u64)>(), columns, picked(), picked(), picked()).prop_map(
        |((id, generation), columns, partition, clustering, indexed)| {
            let numbered = (0..).zip(columns);
            let columns: Vec<_> = numbered.map(|(id, (name, data_type))| Column { id, name, data_type }).collect();
            let one = |index: &prop::sample::Index| columns[index.index(columns.len())].id;
            let first = columns.len() as u16;
            let indexes: Vec<_> = (first..)
                .zip(&indexed)
                .map(|(id, (column, _))| Index { id, column: one(column), building: false })
                .collect();
            Table {
                id,
                generation,
                partition_key: partition.iter().map(|(column, _)| one(column)).collect(),
                clustering_key: clustering.iter().map(|(column, order)| (one(column), *order)).collect(),
                next: first + indexes.len() as u16,
                indexes,
                columns,
            }
        },
    )
}

/// Errors of a call of "get", as they come back.
fn error() -> impl Strategy<Value = Error> {
    let kinds = || prop::sample::select(vec!["namespace", "table", "column", "index"]);
    prop_oneof![
        (kinds(), text()).prop_map(|(what, name)| Error::Missing { what, name }),
        (kinds(), text()).prop_map(|(what, name)| Error::Exists { what, name }),
        text().prop_map(|why| Error::Invalid { what: "get", why }),
        text().prop_map(|why| Error::Invalid { what: "page token", why }),
        (text(), any::<u32>()).prop_map(|(what, attempts)| Error::Contended { what, attempts }),
        text().prop_map(|cause| Error::Unknown { cause }),
        Just(Error::Unsupported { storage: "some", what: "do this" }),
        (text(), text()).prop_map(|(what, why)| Error::Damaged { what, why }),
        Just(Error::Store(StoreError::ReadOnly)),
    ]
}

proptest! {
    #[test]
    fn values_come_back(cell in option::of(option::of(value()))) {
        let message = sent(&wire::encode_cell(cell.clone()));
        prop_assert!(wire::cell_bytes(&message) > 0);
        prop_assert_eq!(wire::decode_cell(message), cell);
    }

    #[test]
    fn records_come_back(record in record()) {
        prop_assert_eq!(wire::decode_record(sent(&wire::encode_record(record.clone()))), Ok(record));
    }

    #[test]
    fn rows_of_scans_come_back(
        cells in vec((text(), option::of(option::of(value()))), 0..6),
        expires_ms in option::of(any::<u64>()),
    ) {
        let names: Vec<_> = cells.iter().map(|(name, _)| name.clone()).collect();
        let told = cells.iter().map(|(_, cell)| wire::encode_cell(cell.clone())).collect();
        let row = sent(&proto::Row { cells: told, expires_ms });
        let columns = cells.into_iter().filter_map(|(name, cell)| Some((name, cell?))).collect();
        prop_assert_eq!(wire::decode_row(&names, row), Ok(Record { columns, expires_ms }));
    }

    #[test]
    fn tokens_come_back(token in option::of(vec(any::<u8>(), 1..20).prop_map(PageToken))) {
        prop_assert_eq!(wire::decode_token(&wire::encode_token(token.as_ref())), token);
    }

    #[test]
    fn schemas_come_back(
        columns in vec((text(), data_type()), 0..6),
        partition in vec(text(), 0..3),
        clustering in vec((text(), order()), 0..3),
        indexes in vec(text(), 0..3),
    ) {
        let schema = columns.into_iter().fold(Schema::new(), |schema, (name, data_type)| schema.column(name, data_type));
        let schema = partition.into_iter().fold(schema, Schema::partition);
        let schema = clustering.into_iter().fold(schema, |schema, (name, order)| schema.clustering(name, order));
        let schema = indexes.into_iter().fold(schema, Schema::index);
        let told = wire::decode_schema(Some(sent(&wire::encode_schema(&schema)))).unwrap();
        prop_assert_eq!(format!("{told:?}"), format!("{schema:?}"));
    }

    #[test]
    fn tables_come_back(table in table()) {
        prop_assert_eq!(wire::decode_table(sent(&wire::encode_table(&table))), Ok(table));
    }

    #[test]
    fn changes_of_tables_come_back(one in text(), other in text(), data_type in data_type()) {
        for change in [
            Alter::AddColumn(one.clone(), data_type),
            Alter::DropColumn(one.clone()),
            Alter::RenameColumn(one.clone(), other),
            Alter::ChangeType(one, data_type),
        ] {
            let request = proto::AlterTableRequest { change: Some(wire::encode_alter(&change)), ..Default::default() };
            prop_assert_eq!(wire::decode_alter(sent(&request).change), Ok(change));
        }
    }

    #[test]
    fn names_of_tables_come_back(name in name()) {
        let request = proto::DropTableRequest { table: wire::encode_table_name(&name), if_exists: false };
        prop_assert_eq!(wire::decode_table_name("DropTableRequest.table", sent(&request).table), Ok(name));
    }

    #[test]
    fn gets_come_back(table in name(), key in values(), columns in vec(text(), 0..3), filter in filter()) {
        let get = Get { table, key: Key(key), columns, filter };
        prop_assert_eq!(wire::decode_get(sent(&wire::encode_get(&get))), Ok(get));
    }

    #[test]
    fn scans_come_back(scan in scan()) {
        prop_assert_eq!(wire::decode_scan(sent(&wire::encode_scan(&scan))), Ok(scan));
    }

    #[test]
    fn mutations_come_back(mutations in vec(mutation(), 0..4), durability in durability()) {
        let message = sent(&wire::encode_mutate(&mutations, durability));
        prop_assert_eq!(wire::decode_mutate(message), Ok((mutations, durability)));
    }

    #[test]
    fn outcomes_come_back(mutation in any::<u32>(), current in option::of(record())) {
        let (mutation, current) = (mutation as usize, current.map(Box::new));
        let message = wire::encode_outcome(Err(Error::ConditionFailed { mutation, current: current.clone() })).unwrap();
        match wire::decode_outcome(sent(&message)) {
            Ok(Err(Error::ConditionFailed { mutation: which, current: row })) => {
                prop_assert_eq!((which, row), (mutation, current));
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn capabilities_come_back(flags in any::<[bool; 4]>(), which in 0..3usize) {
        let [indexes, filters, expiry, persistent] = flags;
        let atomicity = [Atomicity::Record, Atomicity::Partition, Atomicity::Storage][which];
        let able = MapCapability { storage: "some", atomicity, indexes, filters, expiry, persistent };
        prop_assert_eq!(wire::decode_capability("some", &sent(&wire::encode_capability(able))), able);
    }

    #[test]
    fn errors_come_back(error in error()) {
        let named = wire::name_error(&error);
        let told = wire::decode_named("get", named.name, named.about.clone(), &error.to_string()).unwrap();
        prop_assert_eq!(std::mem::discriminant(&told), std::mem::discriminant(&error));
        let again = wire::name_error(&told);
        prop_assert_eq!(&again, &named, "{:?} came back as {:?}", error, told);
        let kind = |error: &Error| match error {
            Error::Missing { what, .. } | Error::Exists { what, .. } => Some(*what),
            _ => None,
        };
        prop_assert_eq!(kind(&told), kind(&error));
    }
}

#[test]
fn applied_is_an_outcome_and_other_errors_are_none() {
    let message = wire::encode_outcome(Ok(())).unwrap();
    assert!(matches!(wire::decode_outcome(sent(&message)), Ok(Ok(()))));
    let refused = wire::encode_outcome(Err(Error::Unknown { cause: "x".into() }));
    assert!(matches!(refused, Err(Error::Unknown { .. })));
}

#[test]
fn failures_of_the_store_are_told_as_far_as_callers_differ() {
    let told = |error: StoreError| {
        let error = Error::Store(error);
        let named = wire::name_error(&error);
        wire::decode_named("get", named.name, named.about, &error.to_string())
    };
    let full = told(StoreError::Full { needed: 2, free: 1 });
    let Some(Error::Store(StoreError::Io { source, .. })) = full else { panic!("{full:?}") };
    assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
    let damaged = told(StoreError::Corrupt { offset: 1, what: "x".into() });
    assert!(matches!(damaged, Some(Error::Damaged { .. })), "{damaged:?}");
    let unknown = told(StoreError::Unknown { cause: "x".into() });
    assert!(matches!(unknown, Some(Error::Unknown { .. })), "{unknown:?}");
    // Of these the caller knows what it was doing: whether something may have changed.
    assert!(told(StoreError::Closed).is_none() && told(StoreError::Stopped { cause: "x".into() }).is_none());
}

#[test]
fn a_name_that_is_not_told_is_the_message() {
    let told = wire::decode_named("get", "no-table", None, "table shop.orders does not exist");
    assert!(matches!(told, Some(Error::Missing { what: "table", name }) if name.contains("shop.orders")));
}

#[test]
fn an_index_that_is_being_built_is_not_told() {
    let mut table =
        Schema::new().column("a", DataType::Int).column("b", DataType::Int).partition("a").build(7).unwrap();
    table.begin_index("b").unwrap();
    let told = wire::decode_table(wire::encode_table(&table)).unwrap();
    assert_eq!((told.id, told.indexes.len(), told.next), (7, 0, 2));
}

#[test]
fn a_blob_is_as_long_as_it_says() {
    let long = wire::encode_cell(Some(Some(Value::Blob(Bytes::from_static(&[0; 100])))));
    assert!(wire::cell_bytes(&long) >= 100);
}

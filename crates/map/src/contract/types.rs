//! Contract: values of all types, in columns and in keys.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use bytes::Bytes;

use super::{Harness, all, with};
use crate::{DAY_NANOS, DataType, Durability, Get, Key, Mutation, Order, Over, Scan, Schema, TableName, Value};

/// Values of a type in their order, the extremes among them.
fn values(data_type: DataType) -> Vec<Value> {
    let texts = ["", "\u{0}", "\u{0}\u{1}", "A", "a", "a\u{0}", "aa", "b", "~", "é", "日本", "\u{10ffff}"];
    match data_type {
        DataType::Boolean => [false, true].map(Value::Boolean).to_vec(),
        DataType::Int => [i32::MIN, -1, 0, 1, i32::MAX].map(Value::Int).to_vec(),
        DataType::BigInt => [i64::MIN, -1, 0, 1, i64::MAX].map(Value::BigInt).to_vec(),
        DataType::Float => {
            [f32::NEG_INFINITY, f32::MIN, -1.5, -0.0, 0.0, f32::MIN_POSITIVE, 1.5, f32::MAX, f32::INFINITY]
                .map(Value::Float)
                .to_vec()
        }
        DataType::Double => {
            [f64::NEG_INFINITY, f64::MIN, -1.5, -0.0, 0.0, f64::MIN_POSITIVE, 1.5, f64::MAX, f64::INFINITY]
                .map(Value::Double)
                .to_vec()
        }
        DataType::Text => texts.map(Value::from).to_vec(),
        DataType::Blob => {
            let blobs: [&[u8]; 6] = [&[], &[0], &[0, 1], &[1], &[127], &[255, 255]];
            blobs.map(|bytes| Value::Blob(Bytes::copy_from_slice(bytes))).to_vec()
        }
        DataType::Date => [i32::MIN, -719_162, 0, 20_000, i32::MAX].map(Value::Date).to_vec(),
        DataType::Time => [0, 1, DAY_NANOS - 1].map(Value::Time).to_vec(),
        DataType::Timestamp => {
            [i64::MIN, -62_135_596_800_000, 0, 1_700_000_000_000, i64::MAX].map(Value::Timestamp).to_vec()
        }
        DataType::TimestampTz => [i64::MIN, -1, 0, 1, 253_402_300_799_999, i64::MAX].map(Value::TimestampTz).to_vec(),
    }
}

/// Every type's values, null and absence are read back as they were put; not-a-number too.
pub fn values_of_all_types_are_read_back(harness: &dyn Harness) {
    with(harness, |map, _| {
        let table = TableName::new("ns", "values");
        let mut schema = Schema::new().column("id", DataType::Int).partition("id");
        for (data_type, name) in DataType::ALL {
            schema = schema.column(name, data_type);
        }
        map.create_table(&table, &schema).unwrap();
        let most = DataType::ALL.iter().map(|(data_type, _)| values(*data_type).len()).max().unwrap();
        for number in 0..most {
            let key = Key::of("id", number as i32);
            let of = |data_type: DataType| values(data_type)[number % values(data_type).len()].clone();
            let columns: Vec<_> =
                DataType::ALL.iter().map(|(data_type, name)| ((*name).to_owned(), of(*data_type))).collect();
            let put = Mutation::put(&table, key.clone(), columns);
            map.mutate(&[put], Durability::Durable).unwrap().wait().unwrap();
            let row = map.get(&Get::new(&table, key.clone())).unwrap().unwrap();
            for (data_type, name) in DataType::ALL {
                assert_eq!(row.value(name), Some(&of(data_type)), "{name}");
            }
            let scanned = all(map, Scan::partition(&table, key));
            assert_eq!(scanned, [row]);
        }
        let nan = vec![("double".into(), f64::NAN.into()), ("float".into(), Value::Float(f32::NAN))];
        map.mutate(&[Mutation::put(&table, Key::of("id", -1), nan)], Durability::Durable).unwrap().wait().unwrap();
        let row = map.get(&Get::new(&table, Key::of("id", -1))).unwrap().unwrap();
        assert!(matches!(row.value("double"), Some(Value::Double(value)) if value.is_nan()), "{row:?}");
        assert_eq!(row.get("int"), None);
    });
}

/// Rows come in the order of their clustering keys, of each type, rising and falling.
pub fn keys_of_all_types_sort_as_their_values(harness: &dyn Harness) {
    with(harness, |map, _| {
        for (data_type, name) in DataType::ALL {
            let order = if (data_type as u8).is_multiple_of(2) { Order::Asc } else { Order::Desc };
            let table = TableName::new("ns", name);
            let schema =
                Schema::new().column("p", DataType::Int).column("c", data_type).partition("p").clustering("c", order);
            map.create_table(&table, &schema).unwrap();
            let mut values = values(data_type);
            for value in values.iter().rev() {
                let put = Mutation::put(&table, Key::of("p", 1).and("c", value.clone()), Vec::new());
                map.mutate(&[put], Durability::Applied).unwrap().wait().unwrap();
            }
            if order == Order::Desc {
                values.reverse();
            }
            for reverse in [false, true] {
                let scan = Scan { reverse, ..Scan::partition(&table, Key::of("p", 1)) };
                let found: Vec<_> = all(map, scan).iter().map(|row| row.value("c").unwrap().clone()).collect();
                assert_eq!(found, values, "{name} {order:?} {reverse}");
                values.reverse();
            }
        }
    });
}

/// A partition key of several columns: every combination is a partition of its own.
pub fn keys_of_several_columns_are_told_apart(harness: &dyn Harness) {
    with(harness, |map, _| {
        let table = TableName::new("ns", "parts");
        let schema = Schema::new()
            .column("d", DataType::Double)
            .column("a", DataType::Text)
            .column("b", DataType::Blob)
            .column("x", DataType::Int)
            .partition("a")
            .partition("b")
            .partition("d");
        map.create_table(&table, &schema).unwrap();
        let mut expected = Vec::new();
        for a in ["", "a", "ab", "\u{0}"] {
            for b in [&b""[..], b"b", b"bb", b"\0"] {
                for d in [0.0, 2.5] {
                    let key = Key::of("b", Bytes::from_static(b)).and("a", a).and("d", d);
                    let x = expected.len() as i32;
                    let put = Mutation::put(&table, key.clone(), vec![("x".into(), x.into())]);
                    map.mutate(&[put], Durability::Applied).unwrap().wait().unwrap();
                    expected.push((key, x));
                }
            }
        }
        for (key, x) in &expected {
            let row = map.get(&Get::new(&table, key.clone())).unwrap().unwrap();
            assert_eq!(row.value("x"), Some(&Value::Int(*x)), "{key:?}");
            assert_eq!(all(map, Scan::partition(&table, key.clone())), [row]);
        }
        assert_eq!(all(map, Scan { limit: 5, ..Scan::new(&table, Over::All) }).len(), expected.len());
    });
}

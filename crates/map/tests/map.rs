//! The map's promises on the memory backend and on the engine.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_device::MemoryDevice;
use esker_engine::{Engine, FormatOptions, Options};
use esker_map::{
    Alter, Bound, Change, Compare, Condition, DataType, Durability, Error, Filter, Get, Key, MapStorage, Mutation,
    Order, Over, PageToken, Record, Scan, Schema, TableName, Value, Waist,
};
use esker_memory::MemoryStore;
use esker_store::ObjectStore;
use esker_store::contract::PerObject;

#[derive(Clone, Default)]
struct Time(Arc<AtomicU64>);

fn open(store: Arc<dyn ObjectStore>, time: &Time) -> Waist {
    let time = time.clone();
    Waist::open(store, Arc::new(move || time.0.load(Ordering::SeqCst)), [3; 32]).unwrap()
}

fn engine() -> Arc<dyn ObjectStore> {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    Engine::format(&*device, &FormatOptions { segment_bytes: 1 << 20, uuid: [5; 16] }).unwrap();
    Arc::new(Engine::open(device, Options::default()).unwrap())
}

fn everywhere(test: impl Fn(Waist, Time)) {
    for store in [Arc::new(MemoryStore::new()) as Arc<dyn ObjectStore>, engine()] {
        let time = Time::default();
        let map = open(store, &time);
        map.create_namespace("ns").unwrap();
        test(map, time);
    }
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

fn put(map: &Waist, key: Key, columns: &[(&str, Value)]) {
    let columns = columns.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    map.mutate(&[Mutation::put(&table(), key, columns)], Durability::Applied).unwrap().wait().unwrap();
}

fn all(map: &Waist, scan: Scan) -> Vec<Record> {
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

fn ab(records: &[Record]) -> Vec<(i32, i64)> {
    let number = |record: &Record| match (record.value("a"), record.value("b")) {
        (Some(Value::Int(a)), Some(Value::BigInt(b))) => (*a, *b),
        other => panic!("{other:?}"),
    };
    records.iter().map(number).collect()
}

#[test]
fn rows_are_merged_read_and_deleted_and_null_is_not_absent() {
    everywhere(|map, _| {
        map.create_table(&table(), &schema()).unwrap();
        let get = |columns: &[&str]| {
            let columns = columns.iter().map(|name| (*name).to_owned()).collect();
            map.get(&Get { columns, ..Get::new(&table(), key("p", 1, 2)) }).unwrap()
        };
        assert_eq!(get(&[]), None);
        put(&map, key("p", 1, 2), &[("x", 5.into())]);
        put(&map, key("p", 1, 2), &[("y", "text".into())]);
        let record = get(&[]).unwrap();
        assert_eq!((record.value("x"), record.value("y")), (Some(&5.into()), Some(&"text".into())));
        assert_eq!(record.get("z"), None, "absent");
        let null = Change::Put { columns: vec![("z".into(), None)], expires_ms: None };
        let null = Mutation { table: table(), key: key("p", 1, 2), change: null, condition: Condition::Always };
        map.mutate(&[null], Durability::Durable).unwrap().wait().unwrap();
        assert_eq!(get(&[]).unwrap().get("z"), Some(None), "null");
        let names: Vec<_> = get(&["y"]).unwrap().columns.into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["p", "a", "b", "y"]);
        let delete = Mutation::delete(&table(), key("p", 1, 2));
        map.mutate(std::slice::from_ref(&delete), Durability::Durable).unwrap().wait().unwrap();
        map.mutate(&[delete], Durability::Durable).unwrap().wait().unwrap();
        assert_eq!(get(&[]), None);
        // A row of nothing but its key is a row.
        put(&map, key("p", 1, 2), &[]);
        assert_eq!(get(&[]).unwrap().columns.len(), 3);
    });
}

#[test]
fn conditions_are_met_or_the_row_is_told() {
    everywhere(|map, _| {
        map.create_table(&table(), &schema()).unwrap();
        let at = || key("p", 1, 1);
        let try_put = |x: i32, condition| {
            let put = Mutation::put(&table(), at(), vec![("x".into(), x.into())]).when(condition);
            map.mutate(&[put], Durability::Applied).map(|done| done.wait().unwrap())
        };
        let x_is = |x: i32| Condition::If(Filter::Compare("x".into(), Compare::Equal, x.into()));
        let failed = |result: Result<(), Error>| match result {
            Err(Error::ConditionFailed { mutation: 0, current }) => current.map(|row| row.value("x").cloned()),
            other => panic!("{other:?}"),
        };
        assert_eq!(failed(try_put(1, Condition::Exists)), None);
        assert_eq!(failed(try_put(1, x_is(1))), None);
        let is_null = Condition::If(Filter::IsNull("x".into()));
        assert_eq!(failed(try_put(1, is_null.clone())), None, "a condition on a missing row fails, this one too");
        try_put(1, Condition::NotExists).unwrap();
        assert_eq!(failed(try_put(2, Condition::NotExists)), Some(Some(1.into())));
        assert_eq!(failed(try_put(2, x_is(9))), Some(Some(1.into())));
        assert_eq!(failed(try_put(2, is_null.clone())), Some(Some(1.into())));
        try_put(2, x_is(1)).unwrap();
        try_put(3, Condition::If(Filter::IsNull("y".into()))).unwrap();
        // Of a list nothing is done if one fails, and later ones see earlier ones.
        let step = |x: i32, from: i32| Mutation::put(&table(), at(), vec![("x".into(), x.into())]).when(x_is(from));
        map.mutate(&[step(4, 3), step(5, 4)], Durability::Applied).unwrap().wait().unwrap();
        let other = Mutation::put(&table(), key("q", 9, 9), vec![("x".into(), 0.into())]);
        match map.mutate(&[other, step(6, 5), step(7, 5)], Durability::Applied) {
            Err(Error::ConditionFailed { mutation: 2, current }) => {
                assert_eq!(current.unwrap().value("x"), Some(&6.into()), "as the list had left it");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(map.get(&Get::new(&table(), key("q", 9, 9))).unwrap(), None);
        assert_eq!(map.get(&Get::new(&table(), at())).unwrap().unwrap().value("x"), Some(&5.into()));
        let empty = Mutation::delete(&table(), at()).when(Condition::If(Filter::always()));
        assert!(matches!(map.mutate(&[empty], Durability::Applied), Err(Error::Invalid { .. })));
        let delete = Mutation::delete(&table(), at()).when(x_is(5));
        map.mutate(&[delete], Durability::Applied).unwrap().wait().unwrap();
    });
}

#[test]
fn scans_keep_to_their_bounds_in_either_order() {
    everywhere(|map, _| {
        map.create_table(&table(), &schema()).unwrap();
        for a in 0..6 {
            for b in [-5i64, 0, 7, i64::MAX] {
                put(&map, key("p", a, b), &[("x", a.into())]);
                put(&map, key("other", a, b), &[]);
            }
        }
        let bound = |values: &[(&str, Value)], inclusive| {
            Some(Bound {
                values: values.iter().map(|(name, value)| ((*name).into(), value.clone())).collect(),
                inclusive,
            })
        };
        let scan = |low, high, reverse| {
            let over = Over::Partition { key: vec![("p".into(), "p".into())], low, high };
            ab(&all(&map, Scan { reverse, ..Scan::new(&table(), over) }))
        };
        let everything: Vec<(i32, i64)> =
            (0..6).flat_map(|a| [i64::MAX, 7, 0, -5].into_iter().map(move |b| (a, b))).collect();
        assert_eq!(scan(None, None, false), everything);
        for low_inclusive in [false, true] {
            for high_inclusive in [false, true] {
                for reverse in [false, true] {
                    let within = |value: i64, low: i64, high: i64| {
                        (value > low || low_inclusive && value == low)
                            && (value < high || high_inclusive && value == high)
                    };
                    let expect = |keep: &dyn Fn(&(i32, i64)) -> bool| {
                        let mut kept: Vec<_> = everything.iter().copied().filter(|row| keep(row)).collect();
                        if reverse {
                            kept.reverse();
                        }
                        kept
                    };
                    let low = bound(&[("a", 1.into())], low_inclusive);
                    let high = bound(&[("a", 4.into())], high_inclusive);
                    assert_eq!(scan(low, high, reverse), expect(&|row| within(row.0.into(), 1, 4)));
                    let low = bound(&[("a", 2.into()), ("b", 0i64.into())], low_inclusive);
                    let high = bound(&[("a", 2.into()), ("b", i64::MAX.into())], high_inclusive);
                    let expected = expect(&|row| row.0 == 2 && within(row.1, 0, i64::MAX));
                    assert_eq!(scan(low.clone(), high.clone(), reverse), expected);
                    let above = |value: i64| value > 0 || low_inclusive && value == 0;
                    assert_eq!(scan(low, None, reverse), expect(&|row| row.0 == 2 && above(row.1)));
                    let below = |value: i64| high_inclusive || value < i64::MAX;
                    assert_eq!(scan(None, high, reverse), expect(&|row| row.0 == 2 && below(row.1)));
                }
            }
        }
        let invalid = |low, high| {
            let over = Over::Partition { key: vec![("p".into(), "p".into())], low, high };
            assert!(matches!(map.scan(&Scan::new(&table(), over)), Err(Error::Invalid { .. })));
        };
        invalid(bound(&[("b", 1i64.into())], true), None);
        invalid(bound(&[("a", 1i64.into())], true), None);
        invalid(bound(&[], true), None);
        invalid(bound(&[("a", 1.into())], true), bound(&[("a", 2.into()), ("b", 1i64.into())], true));
    });
}

#[test]
fn pages_go_on_where_they_ended_also_after_a_restart_and_only_for_their_scan() {
    everywhere(|map, time| {
        map.create_table(&table(), &schema()).unwrap();
        for number in 0..50 {
            put(&map, key(&format!("p{}", number % 7), number, 0), &[("x", (number % 3).into())]);
        }
        let over_index = Over::Index("x".into(), 1.into());
        for over in [Over::All, over_index, Over::Partition { key: Key::of("p", "p3").0, low: None, high: None }] {
            let whole = all(&map, Scan::new(&table(), over.clone()));
            let mut pages = Vec::new();
            let mut scan = Scan { limit: 3, ..Scan::new(&table(), over) };
            // Another handle, as after a restart.
            let again = open(Arc::clone(map.store()), &time);
            loop {
                let page = again.scan(&scan).unwrap();
                assert!(page.records.len() <= 3);
                pages.extend(page.records);
                let Some(token) = page.next else { break };
                let other = Scan { filter: Filter::IsNull("y".into()), page: Some(token.clone()), ..scan.clone() };
                assert!(matches!(again.scan(&other), Err(Error::Invalid { .. })), "a token of another scan");
                let mut broken = token.clone();
                let at = pages.len() % broken.0.len();
                broken.0[at] ^= 1;
                assert!(matches!(again.scan(&Scan { page: Some(broken), ..scan.clone() }), Err(Error::Invalid { .. })));
                scan.page = Some(token);
            }
            assert_eq!(pages, whole);
            assert!(whole.len() > 3);
        }
        let short = Scan { page: Some(PageToken(vec![1, 2])), ..Scan::new(&table(), Over::All) };
        assert!(matches!(map.scan(&short), Err(Error::Invalid { .. })));
    });
}

#[test]
fn filters_projections_and_other_orders_are_evaluated() {
    everywhere(|map, _| {
        map.create_table(&table(), &schema()).unwrap();
        for (number, name) in ["tea", "coffee", "milk", "cocoa"].into_iter().enumerate() {
            let number = number as i32;
            put(&map, key(name, number, 0), &[("x", (10 - number).into()), ("y", name.into())]);
        }
        put(&map, key("none", 9, 0), &[]);
        let names = |scan: Scan| {
            let text = |record: &Record| match record.value("p") {
                Some(Value::Text(text)) => text.clone(),
                other => panic!("{other:?}"),
            };
            all(&map, scan).iter().map(text).collect::<Vec<_>>()
        };
        let scan = || Scan::new(&table(), Over::All);
        let like = |pattern: &str, negated| Filter::Like {
            column: "y".into(),
            pattern: pattern.into(),
            escape: Some('\\'),
            negated,
        };
        assert_eq!(names(Scan { filter: like("co%", false), ..scan() }), ["cocoa", "coffee"]);
        assert_eq!(names(Scan { filter: like("co%", true), ..scan() }), ["milk", "tea"]);
        let compare = |compare, x: i32| Filter::Compare("x".into(), compare, x.into());
        let either = Filter::Any(vec![
            Filter::All(vec![compare(Compare::Greater, 7), compare(Compare::LessOrEqual, 9)]),
            Filter::IsNull("x".into()),
        ]);
        assert_eq!(names(Scan { filter: either, ..scan() }), ["coffee", "milk", "none"]);
        assert_eq!(names(Scan { filter: Filter::Any(Vec::new()), ..scan() }), Vec::<String>::new());
        let by_x = || vec![("x".to_owned(), Order::Asc)];
        assert_eq!(names(Scan { order_by: by_x(), ..scan() }), ["none", "cocoa", "milk", "coffee", "tea"]);
        let falling = vec![("x".to_owned(), Order::Desc)];
        let two = Scan { order_by: falling, limit: 2, columns: vec!["y".into()], ..scan() };
        assert_eq!(names(two.clone()), ["tea", "coffee"]);
        assert_eq!(all(&map, two)[0].get("x"), None, "not asked for");
        let unknown = Scan { filter: Filter::IsNull("nope".into()), ..scan() };
        assert!(matches!(map.scan(&unknown), Err(Error::Missing { what: "column", .. })));
        let wrong = Scan { filter: Filter::Compare("x".into(), Compare::Equal, "text".into()), ..scan() };
        assert!(matches!(map.scan(&wrong), Err(Error::Invalid { .. })));
    });
}

#[test]
fn indexes_are_never_stale_whatever_is_done() {
    everywhere(|map, time| {
        map.create_table(&table(), &schema()).unwrap();
        let mut rng = fastrand::Rng::with_seed(4);
        let mut model: BTreeMap<(i32, i64), (Option<i32>, u64)> = BTreeMap::new();
        for round in 0..1_500u64 {
            let at = (rng.i32(..8), rng.i64(..3));
            let row = key("p", at.0, at.1);
            let now = time.0.load(Ordering::SeqCst);
            model.retain(|_, (_, expires)| *expires > now);
            match rng.u8(..10) {
                0 => time.0.store(now + 5, Ordering::SeqCst),
                1 | 2 => {
                    map.mutate(&[Mutation::delete(&table(), row)], Durability::Applied).unwrap().wait().unwrap();
                    model.remove(&at);
                }
                3 => {
                    let x = rng.i32(..4);
                    let change = Change::Put { columns: vec![("x".into(), Some(x.into()))], expires_ms: Some(now + 8) };
                    let put = Mutation { table: table(), key: row, change, condition: Condition::Always };
                    map.mutate(&[put], Durability::Applied).unwrap().wait().unwrap();
                    model.insert(at, (Some(x), now + 8));
                }
                4 => {
                    let change = Change::Put { columns: vec![("x".into(), None)], expires_ms: None };
                    let put = Mutation { table: table(), key: row, change, condition: Condition::Always };
                    map.mutate(&[put], Durability::Applied).unwrap().wait().unwrap();
                    let expires = model.get(&at).map_or(u64::MAX, |(_, expires)| *expires);
                    model.insert(at, (None, expires));
                }
                5 if round % 50 == 5 => {
                    map.sweep(&table()).unwrap();
                }
                6 if round % 100 == 6 => {
                    map.drop_index(&table(), "x").unwrap();
                    map.create_index(&table(), "x").unwrap();
                }
                _ => {
                    let x = rng.i32(..4);
                    put(&map, row, &[("x", x.into())]);
                    let expires = model.get(&at).map_or(u64::MAX, |(_, expires)| *expires);
                    model.insert(at, (Some(x), expires));
                }
            }
            let now = time.0.load(Ordering::SeqCst);
            let x = rng.i32(..4);
            let mut found = ab(&all(&map, Scan::new(&table(), Over::Index("x".into(), x.into()))));
            found.sort_unstable();
            let expected: Vec<_> = model
                .iter()
                .filter(|(_, (found, expires))| *found == Some(x) && *expires > now)
                .map(|(at, _)| *at)
                .collect();
            assert_eq!(found, expected, "round {round}, x = {x}");
        }
    });
}

#[test]
fn schemas_change_under_rows() {
    everywhere(|map, time| {
        map.create_table(&table(), &schema()).unwrap();
        put(&map, key("p", 1, 1), &[("x", 5.into()), ("y", "old".into()), ("z", 1.5.into())]);
        let other = open(Arc::clone(map.store()), &time);
        let alter = |change| map.alter_table(&table(), &change);
        alter(Alter::DropColumn("y".into())).unwrap();
        alter(Alter::AddColumn("y".into(), DataType::Int)).unwrap();
        alter(Alter::RenameColumn("z".into(), "zz".into())).unwrap();
        alter(Alter::ChangeType("zz".into(), DataType::Text)).unwrap();
        alter(Alter::AddColumn("w".into(), DataType::Blob)).unwrap();
        put(&map, key("p", 1, 1), &[("w", Bytes::from_static(&[0, 171]).into())]);
        alter(Alter::ChangeType("w".into(), DataType::Text)).unwrap();
        // A handle that has seen the old schema writes by the new one.
        let put = Mutation::put(&table(), key("p", 1, 1), vec![("y".into(), 7.into())]);
        other.mutate(&[put], Durability::Applied).unwrap().wait().unwrap();
        let record = map.get(&Get::new(&table(), key("p", 1, 1))).unwrap().unwrap();
        assert_eq!((record.value("y"), record.value("zz")), (Some(&7.into()), Some(&"1.5".into())));
        assert_eq!(record.value("w"), Some(&"00ab".into()));
        assert!(matches!(alter(Alter::DropColumn("a".into())), Err(Error::Invalid { .. })));
        assert!(matches!(alter(Alter::DropColumn("x".into())), Err(Error::Invalid { .. })), "it has an index");
        assert!(matches!(alter(Alter::ChangeType("zz".into(), DataType::Int)), Err(Error::Invalid { .. })));
        assert!(matches!(alter(Alter::AddColumn("x".into(), DataType::Int)), Err(Error::Exists { .. })));
        map.rename_table(&table(), "u").unwrap();
        let renamed = TableName::new("ns", "u");
        assert!(map.get(&Get::new(&renamed, key("p", 1, 1))).unwrap().is_some());
        assert!(matches!(other.get(&Get::new(&table(), key("p", 1, 1))), Err(Error::Missing { .. })));
        let late = Mutation::put(&table(), key("p", 1, 1), Vec::new());
        assert!(matches!(other.mutate(&[late], Durability::Applied), Err(Error::Missing { .. })));
        map.truncate_table(&renamed).unwrap();
        assert_eq!(map.get(&Get::new(&renamed, key("p", 1, 1))).unwrap(), None);
        assert!(all(&map, Scan::new(&renamed, Over::Index("x".into(), 5.into()))).is_empty());
        assert!(matches!(map.drop_namespace("ns"), Err(Error::Invalid { .. })));
        map.drop_table(&renamed).unwrap();
        assert_eq!(map.tables("ns").unwrap(), Vec::<String>::new());
        map.drop_namespace("ns").unwrap();
        assert_eq!(map.namespaces().unwrap(), Vec::<String>::new());
        let left = map.store().list(&"map".into(), None, 100).wait().unwrap();
        assert_eq!(left, ["catalogue"]);
    });
}

#[test]
fn counters_incremented_by_many_under_conditions_lose_nothing() {
    everywhere(|map, time| {
        map.create_table(&table(), &schema()).unwrap();
        put(&map, key("p", 0, 0), &[("x", 0.into())]);
        // Two handles each with locks of their own, as two processes have.
        let handles = [map.clone(), open(Arc::clone(map.store()), &time)];
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let map = handles[number % 2].clone();
                std::thread::spawn(move || {
                    for _ in 0..100 {
                        loop {
                            let row = map.get(&Get::new(&table(), key("p", 0, 0))).unwrap().unwrap();
                            let Some(Value::Int(x)) = row.value("x") else { panic!("{row:?}") };
                            let same = Condition::If(Filter::Compare("x".into(), Compare::Equal, Value::Int(*x)));
                            let next = vec![("x".into(), Value::Int(x + 1))];
                            let next = Mutation::put(&table(), key("p", 0, 0), next).when(same);
                            match map.mutate(&[next], Durability::Applied) {
                                Ok(done) => break done.wait().unwrap(),
                                Err(Error::ConditionFailed { .. }) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let row = map.get(&Get::new(&table(), key("p", 0, 0))).unwrap().unwrap();
        assert_eq!(row.value("x"), Some(&400.into()));
    });
}

#[test]
fn bad_input_is_refused_by_name() {
    everywhere(|map, _| {
        map.create_table(&table(), &schema()).unwrap();
        let refused = |key: Key, columns: Vec<(String, Value)>, named: &str| {
            let error = map.mutate(&[Mutation::put(&table(), key, columns)], Durability::Applied).unwrap_err();
            assert!(error.to_string().contains(named), "{error} does not name {named}");
        };
        refused(Key::of("p", "p").and("a", 1), Vec::new(), "column b is missing");
        refused(Key::of("p", 1).and("a", 1).and("b", 1i64), Vec::new(), "column p is text, not int");
        refused(key("p", 1, 1).and("x", 1), Vec::new(), "column x");
        refused(key(&"k".repeat(1_000), 1, 1), Vec::new(), "KEY_BYTES_MAX = 900");
        refused(key("p", 1, 1), vec![("x".into(), "text".into())], "column x is int, not text");
        refused(key("p", 1, 1), vec![("nope".into(), 1.into())], "column nope");
        refused(key("p", 1, 1), vec![("a".into(), 1.into())], "column a is part of the key");
        assert!(matches!(map.mutate(&[], Durability::Applied), Err(Error::Invalid { .. })));
        let unknown = Get::new(&TableName::new("ns", "nope"), key("p", 1, 1));
        assert!(matches!(map.get(&unknown), Err(Error::Missing { what: "table", .. })));
        let no_key = Schema::new().column("x", DataType::Int);
        assert!(matches!(map.create_table(&TableName::new("ns", "u"), &no_key), Err(Error::Invalid { .. })));
        let twice = schema().clustering("p", Order::Asc);
        assert!(matches!(map.create_table(&TableName::new("ns", "u"), &twice), Err(Error::Invalid { .. })));
        assert!(matches!(map.create_table(&TableName::new("no", "u"), &schema()), Err(Error::Missing { .. })));
        assert!(matches!(map.create_table(&table(), &schema()), Err(Error::Exists { .. })));
    });
}

#[test]
fn a_store_of_single_object_transactions_is_refused_by_name() {
    let map = open(Arc::new(PerObject(MemoryStore::new())), &Time::default());
    map.create_namespace("ns").unwrap();
    match map.create_table(&table(), &schema()) {
        Err(error @ Error::Unsupported { .. }) => assert!(error.to_string().starts_with("lacking cannot")),
        other => panic!("{other:?}"),
    }
}

//! Contract: rows, conditions and input that is refused.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use super::{Harness, all, key, put, schema, table, with};
use crate::{
    Atomicity, Change, Compare, Condition, DataType, Durability, Error, Filter, Get, Key, Mutation, NEVER_MS, Order,
    Over, Scan, Schema, TableName, Value,
};

/// Puts merge, deletes remove, null and absent are told apart, and a row of nothing but its key is a row.
pub fn rows_are_merged_read_and_deleted_and_null_is_not_absent(harness: &dyn Harness) {
    with(harness, |map, _| {
        map.create_table(&table(), &schema()).unwrap();
        let get = |columns: &[&str]| {
            let columns = columns.iter().map(|name| (*name).to_owned()).collect();
            map.get(&Get { columns, ..Get::new(&table(), key("p", 1, 2)) }).unwrap()
        };
        assert_eq!(get(&[]), None);
        put(map, key("p", 1, 2), &[("x", 5.into())]);
        put(map, key("p", 1, 2), &[("y", "text".into())]);
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
        put(map, key("p", 1, 2), &[]);
        assert_eq!(get(&[]).unwrap().columns.len(), 3);
    });
}

/// A condition that does not hold changes nothing and tells the row; of a list each sees what those before it did.
pub fn conditions_are_met_or_the_row_is_told(harness: &dyn Harness) {
    with(harness, |map, _| {
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
        let other = Mutation::put(&table(), key("p", 9, 9), vec![("x".into(), 0.into())]);
        match map.mutate(&[other, step(6, 5), step(7, 5)], Durability::Applied) {
            Err(Error::ConditionFailed { mutation: 2, current }) => {
                assert_eq!(current.unwrap().value("x"), Some(&6.into()), "as the list had left it");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(map.get(&Get::new(&table(), key("p", 9, 9))).unwrap(), None);
        assert_eq!(map.get(&Get::new(&table(), at())).unwrap().unwrap().value("x"), Some(&5.into()));
        let empty = Mutation::delete(&table(), at()).when(Condition::If(Filter::always()));
        assert!(matches!(map.mutate(&[empty], Durability::Applied), Err(Error::Invalid { .. })));
        let delete = Mutation::delete(&table(), at()).when(x_is(5));
        map.mutate(&[delete], Durability::Applied).unwrap().wait().unwrap();
    });
}

/// What is wrong is named, with its limit.
pub fn bad_input_is_refused_by_name(harness: &dyn Harness) {
    with(harness, |map, _| {
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

/// A list over rows of one partition is applied whole or not at all, a row named twice included.
pub fn lists_in_a_partition_are_atomic(harness: &dyn Harness) {
    with(harness, |map, _| {
        map.create_table(&table(), &schema()).unwrap();
        let set = |a: i32, x: i32| Mutation::put(&table(), key("p", a, 0), vec![("x".into(), x.into())]);
        let rows = || {
            let found = all(map, Scan::partition(&table(), Key::of("p", "p")));
            found.iter().map(|row| (row.value("a").cloned().unwrap(), row.value("x").cloned())).collect::<Vec<_>>()
        };
        map.mutate(&[set(1, 1), set(2, 2), set(3, 3), set(2, 20)], Durability::Durable).unwrap().wait().unwrap();
        let three = vec![(1.into(), Some(1.into())), (2.into(), Some(20.into())), (3.into(), Some(3.into()))];
        assert_eq!(rows(), three);
        let missing = set(9, 9).when(Condition::Exists);
        match map.mutate(&[set(1, 100), Mutation::delete(&table(), key("p", 2, 0)), missing], Durability::Durable) {
            Err(Error::ConditionFailed { mutation: 2, current: None }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(rows(), three, "nothing was changed");
        // A row that is deleted and put again in one list is new.
        let again = [Mutation::delete(&table(), key("p", 1, 0)), set(1, 5).when(Condition::NotExists)];
        map.mutate(&again, Durability::Durable).unwrap().wait().unwrap();
        let gone = [
            Mutation::delete(&table(), key("p", 2, 0)).when(Condition::Exists),
            set(3, 4),
            Mutation::delete(&table(), key("p", 7, 0)),
        ];
        map.mutate(&gone, Durability::Durable).unwrap().wait().unwrap();
        assert_eq!(rows(), [(1.into(), Some(5.into())), (3.into(), Some(4.into()))]);
        let many: Vec<_> = (100..400).map(|a| set(a, a)).collect();
        map.mutate(&many, Durability::Durable).unwrap().wait().unwrap();
        assert_eq!(rows().len(), 302);
    });
}

/// A list over partitions and tables is applied whole where the storage can; else it is refused, and nothing is
/// changed.
pub fn lists_over_partitions_are_atomic_or_refused(harness: &dyn Harness) {
    with(harness, |map, _| {
        let other = TableName::new("ns", "u");
        map.create_table(&table(), &schema()).unwrap();
        map.create_table(&other, &schema()).unwrap();
        let set = |table: &TableName, p: &str| Mutation::put(table, key(p, 1, 1), vec![("x".into(), 1.into())]);
        let there = |one: &Mutation| map.get(&Get::new(&one.table, one.key.clone())).unwrap().is_some();
        for list in [[set(&table(), "p"), set(&table(), "q")], [set(&table(), "r"), set(&other, "r")]] {
            let result = map.mutate(&list, Durability::Durable).map(|done| done.wait().unwrap());
            match (map.capability().atomicity, result) {
                (Atomicity::Storage, Ok(())) => assert!(list.iter().all(there)),
                (Atomicity::Storage, Err(error)) => panic!("{error}"),
                (_, Err(Error::Unsupported { .. })) => assert!(!list.iter().any(there), "refused and yet done"),
                // Several storages behind one, and both rows in the same.
                (_, Ok(())) => assert!(map.capability().storage == "multi"),
                (_, Err(error)) => panic!("{error}"),
            }
        }
    });
}

/// An expired row is absent for reads, scans, conditions and indexes; a put after that begins anew.
pub fn rows_expire_by_themselves_and_come_back_new(harness: &dyn Harness) {
    with(harness, |map, opened| {
        map.create_table(&table(), &schema()).unwrap();
        let put_until = |x: i32, expires_ms| {
            let change = Change::Put { columns: vec![("x".into(), Some(x.into()))], expires_ms };
            let put = Mutation { table: table(), key: key("p", 1, 1), change, condition: Condition::Always };
            map.mutate(&[put], Durability::Durable).unwrap().wait().unwrap();
        };
        let x = || map.get(&Get::new(&table(), key("p", 1, 1))).unwrap().map(|row| row.value("x").cloned());
        let indexed = |x: i32| all(map, Scan::new(&table(), Over::Index("x".into(), x.into()))).len();
        opened.set_ms(1_000);
        put_until(1, Some(2_000));
        put(map, key("p", 1, 1), &[("y", "kept".into())]);
        opened.set_ms(1_999);
        assert_eq!((x(), indexed(1)), (Some(Some(1.into())), 1));
        let expiries = || -> Vec<Option<u64>> {
            let scanned = all(map, Scan::partition(&table(), Key::of("p", "p"))).into_iter().map(|row| row.expires_ms);
            scanned.chain([map.get(&Get::new(&table(), key("p", 1, 1))).unwrap().unwrap().expires_ms]).collect()
        };
        assert_eq!(expiries(), [Some(2_000); 2], "rows say when they go");
        let absent = Mutation::delete(&table(), key("p", 1, 1)).when(Condition::NotExists);
        match map.mutate(&[absent], Durability::Durable) {
            Err(Error::ConditionFailed { current: Some(row), .. }) => assert_eq!(row.expires_ms, Some(2_000)),
            other => panic!("{:?}", other.map(drop)),
        }
        opened.set_ms(2_000);
        assert_eq!((x(), indexed(1)), (None, 0));
        assert!(all(map, Scan::partition(&table(), Key::of("p", "p"))).is_empty());
        let expected = Mutation::delete(&table(), key("p", 1, 1)).when(Condition::Exists);
        assert!(matches!(
            map.mutate(&[expected], Durability::Durable),
            Err(Error::ConditionFailed { current: None, .. })
        ));
        put_until(2, None);
        let row = map.get(&Get::new(&table(), key("p", 1, 1))).unwrap().unwrap();
        assert_eq!((row.value("x"), row.get("y")), (Some(&2.into()), None), "of the old row nothing is left");
        opened.set_ms(1 << 50);
        assert_eq!((x(), indexed(2)), (Some(Some(2.into())), 1), "it does not expire");
        assert_eq!(expiries(), [None; 2]);
        put_until(3, Some(1 << 51));
        assert_eq!(x(), Some(Some(3.into())));
        put_until(4, Some(NEVER_MS));
        opened.set_ms(1 << 52);
        assert_eq!((x(), expiries()), (Some(Some(4.into())), vec![None; 2]), "it does not expire any more");
    });
}

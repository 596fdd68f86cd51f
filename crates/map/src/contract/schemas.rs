//! Contract: schemas that change, and indexes.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::collections::BTreeMap;

use super::{Harness, ab, all, key, put, schema, table, with};
use crate::{Alter, Change, Condition, DataType, Durability, Error, Get, Mutation, Over, Scan, TableName};

/// Random changes, expiry, index dropped and made anew: an index scan finds what a model has.
pub fn indexes_are_never_stale_whatever_is_done(harness: &dyn Harness) {
    with(harness, |map, opened| {
        map.create_table(&table(), &schema()).unwrap();
        let mut rng = fastrand::Rng::with_seed(4);
        let mut model: BTreeMap<(i32, i64), (Option<i32>, u64)> = BTreeMap::new();
        for round in 0..harness.rounds() {
            let at = (rng.i32(0..8), rng.i64(0..3));
            let row = key("p", at.0, at.1);
            let now = opened.now_ms();
            model.retain(|_, (_, expires)| *expires > now);
            match rng.u8(..10) {
                0 => opened.set_ms(now + 5),
                1 | 2 => {
                    map.mutate(&[Mutation::delete(&table(), row)], Durability::Applied).unwrap().wait().unwrap();
                    model.remove(&at);
                }
                3 => {
                    let x = rng.i32(0..4);
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
                    opened.sweep(&table());
                }
                6 if round % 50 == 6 => {
                    map.drop_index(&table(), "x").unwrap();
                    map.create_index(&table(), "x").unwrap();
                }
                _ => {
                    let x = rng.i32(0..4);
                    put(map, row, &[("x", x.into())]);
                    let expires = model.get(&at).map_or(u64::MAX, |(_, expires)| *expires);
                    model.insert(at, (Some(x), expires));
                }
            }
            let now = opened.now_ms();
            let x = rng.i32(0..4);
            let mut found = ab(&all(map, Scan::new(&table(), Over::Index("x".into(), x.into()))));
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

/// Columns added, dropped, renamed and widened, tables renamed, truncated and dropped, with rows in them and a second
/// handle that saw the old schema.
pub fn schemas_change_under_rows(harness: &dyn Harness) {
    with(harness, |map, opened| {
        map.create_table(&table(), &schema()).unwrap();
        put(map, key("p", 1, 1), &[("x", 5.into()), ("y", "old".into()), ("z", 1.5.into())]);
        let other = opened.another();
        assert!(other.get(&Get::new(&table(), key("p", 1, 1))).unwrap().is_some());
        let alter = |change| map.alter_table(&table(), &change);
        alter(Alter::DropColumn("y".into())).unwrap();
        alter(Alter::AddColumn("y".into(), DataType::Int)).unwrap();
        alter(Alter::RenameColumn("z".into(), "zz".into())).unwrap();
        alter(Alter::ChangeType("zz".into(), DataType::Text)).unwrap();
        alter(Alter::AddColumn("w".into(), DataType::Blob)).unwrap();
        put(map, key("p", 1, 1), &[("w", bytes::Bytes::from_static(&[0, 171]).into())]);
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
        map.rename_table(&table(), "renamed").unwrap();
        let renamed = TableName::new("ns", "renamed");
        assert!(map.get(&Get::new(&renamed, key("p", 1, 1))).unwrap().is_some());
        assert!(matches!(other.get(&Get::new(&table(), key("p", 1, 1))), Err(Error::Missing { .. })));
        let late = Mutation::put(&table(), key("p", 1, 1), Vec::new());
        assert!(matches!(other.mutate(&[late], Durability::Applied), Err(Error::Missing { .. })));
        map.truncate_table(&renamed).unwrap();
        assert_eq!(map.get(&Get::new(&renamed, key("p", 1, 1))).unwrap(), None);
        assert!(all(map, Scan::new(&renamed, Over::Index("x".into(), 5.into()))).is_empty());
        assert!(matches!(map.drop_namespace("ns"), Err(Error::Invalid { .. })));
        map.drop_table(&renamed).unwrap();
        assert_eq!(map.tables("ns").unwrap(), Vec::<String>::new());
        map.drop_namespace("ns").unwrap();
        assert_eq!(map.namespaces().unwrap(), Vec::<String>::new());
        opened.check_empty();
    });
}

/// Dropped and made anew under the same name, a table has none of its rows, also for a handle that knew the old one.
pub fn a_dropped_table_made_anew_is_another_one(harness: &dyn Harness) {
    with(harness, |map, opened| {
        let other = opened.another();
        for round in 0..3 {
            map.create_table(&table(), &schema()).unwrap();
            assert_eq!(other.get(&Get::new(&table(), key("p", 1, 1))).unwrap(), None, "round {round}");
            put(&*other, key("p", 1, 1), &[("x", round.into())]);
            assert!(map.get(&Get::new(&table(), key("p", 1, 1))).unwrap().is_some());
            assert_eq!(map.tables("ns").unwrap(), ["t"]);
            map.drop_table(&table()).unwrap();
            assert!(matches!(
                other.get(&Get::new(&table(), key("p", 1, 1))),
                Err(Error::Missing { what: "table", .. })
            ));
            assert!(matches!(map.drop_table(&table()), Err(Error::Missing { what: "table", .. })));
        }
    });
}

/// Names of any letters, words that mean something elsewhere, and names that differ in case only.
pub fn names_are_kept_as_they_are_written(harness: &dyn Harness) {
    with(harness, |map, _| {
        map.create_namespace("名前").unwrap();
        assert!(matches!(map.create_namespace("名前"), Err(Error::Exists { what: "namespace", .. })));
        map.create_namespace("NS").unwrap();
        assert_eq!(map.namespaces().unwrap(), ["NS", "ns", "名前"]);
        assert!(matches!(map.create_namespace(""), Err(Error::Invalid { .. })));
        assert!(matches!(map.create_namespace(&"n".repeat(129)), Err(Error::Invalid { .. })));
        assert!(matches!(map.tables("nowhere"), Err(Error::Missing { what: "namespace", .. })));
        let names = ["Select", "select", "a table; drop table t", "表"];
        let namespace = "名前";
        for (number, name) in names.into_iter().enumerate() {
            let table = TableName::new(namespace, name);
            let schema = crate::Schema::new()
                .column("from", DataType::Int)
                .column("From", DataType::Int)
                .column("値 \"'", DataType::Text)
                .partition("from")
                .clustering("From", crate::Order::Asc);
            map.create_table(&table, &schema).unwrap();
            let key = crate::Key::of("from", 1).and("From", number as i32);
            let put = Mutation::put(&table, key.clone(), vec![("値 \"'".into(), "'; --".into())]);
            map.mutate(&[put], Durability::Durable).unwrap().wait().unwrap();
            assert_eq!(map.get(&Get::new(&table, key)).unwrap().unwrap().value("値 \"'"), Some(&"'; --".into()));
        }
        let mut sorted = names.to_vec();
        sorted.sort_unstable();
        assert_eq!(map.tables(namespace).unwrap(), sorted);
        for name in names {
            map.drop_table(&TableName::new(namespace, name)).unwrap();
        }
        map.drop_namespace(namespace).unwrap();
        assert!(matches!(map.drop_namespace(namespace), Err(Error::Missing { what: "namespace", .. })));
    });
}

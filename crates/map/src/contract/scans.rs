//! Contract: scans, their bounds, pages, filters and orders.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use super::{Harness, ab, all, key, put, schema, table, with};
use crate::{
    Bound, Compare, DataType, Durability, Error, Filter, Key, Mutation, Order, Over, PageToken, Record, Scan, Schema,
    TableName, Value,
};

/// Every combination of bounds and orders, with a rising and a falling clustering column.
pub fn scans_keep_to_their_bounds_in_either_order(harness: &dyn Harness) {
    with(harness, |map, _| {
        map.create_table(&table(), &schema()).unwrap();
        for a in 0..6 {
            for b in [-5i64, 0, 7, i64::MAX] {
                put(map, key("p", a, b), &[("x", a.into())]);
                put(map, key("other", a, b), &[]);
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
            ab(&all(map, Scan { reverse, ..Scan::new(&table(), over) }))
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

/// Failure: a scan below `false`, exclusive, of a falling boolean gave all rows of the partition. Cause: the key of
/// `false` is all ones then, no key follows it, and "no key" was taken for no bound. Fix: the range is empty.
pub fn nothing_lies_beyond_the_last_key(harness: &dyn Harness) {
    with(harness, |map, _| {
        for (data_type, least, greater) in [
            (DataType::Boolean, Value::Boolean(false), Value::Boolean(true)),
            (DataType::Int, Value::Int(i32::MIN), Value::Int(0)),
        ] {
            let name = TableName::new("ns", data_type.name());
            let schema = Schema::new().column("p", DataType::Int).column("c", data_type).partition("p");
            map.create_table(&name, &schema.clustering("c", Order::Desc)).unwrap();
            for value in [&least, &greater] {
                let put = Mutation::put(&name, Key::of("p", 1).and("c", value.clone()), Vec::new());
                map.mutate(&[put], Durability::Applied).unwrap().wait().unwrap();
            }
            for (inclusive, expected) in [(false, 0), (true, 1)] {
                for reverse in [false, true] {
                    let high = Bound { values: vec![("c".into(), least.clone())], inclusive };
                    let over = Over::Partition { key: Key::of("p", 1).0, low: None, high: Some(high) };
                    let found = all(map, Scan { reverse, ..Scan::new(&name, over) });
                    let count = found.len();
                    assert_eq!(count, expected, "{data_type}, inclusive {inclusive}, reverse {reverse}: {found:?}");
                }
            }
        }
    });
}

/// Pages of another handle continue each other without a gap; foreign and broken tokens are refused.
pub fn pages_go_on_where_they_ended_also_after_a_restart_and_only_for_their_scan(harness: &dyn Harness) {
    with(harness, |map, opened| {
        map.create_table(&table(), &schema()).unwrap();
        for number in 0..50 {
            put(map, key(&format!("p{}", number % 7), number, 0), &[("x", (number % 3).into())]);
        }
        let over_index = Over::Index("x".into(), 1.into());
        for over in [Over::All, over_index, Over::Partition { key: Key::of("p", "p3").0, low: None, high: None }] {
            let whole = all(map, Scan::new(&table(), over.clone()));
            let mut pages = Vec::new();
            let mut scan = Scan { limit: 3, ..Scan::new(&table(), over) };
            // Another handle, as after a restart.
            let again = opened.another();
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

/// Filters, LIKE, projections and other orders.
pub fn filters_projections_and_other_orders_are_evaluated(harness: &dyn Harness) {
    with(harness, |map, _| {
        map.create_table(&table(), &schema()).unwrap();
        for (number, name) in ["tea", "coffee", "milk", "cocoa"].into_iter().enumerate() {
            let number = number as i32;
            put(map, key(name, number, 0), &[("x", (10 - number).into()), ("y", name.into())]);
        }
        put(map, key("none", 9, 0), &[]);
        let names = |scan: Scan| {
            let text = |record: &Record| match record.value("p") {
                Some(Value::Text(text)) => text.clone(),
                other => panic!("{other:?}"),
            };
            let sorted = !scan.order_by.is_empty();
            let mut names: Vec<_> = all(map, scan).iter().map(text).collect();
            if !sorted {
                // Partitions come in the storage's own order.
                names.sort_unstable();
            }
            names
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
        assert_eq!(all(map, two)[0].get("x"), None, "not asked for");
        let unknown = Scan { filter: Filter::IsNull("nope".into()), ..scan() };
        assert!(matches!(map.scan(&unknown), Err(Error::Missing { what: "column", .. })));
        let wrong = Scan { filter: Filter::Compare("x".into(), Compare::Equal, "text".into()), ..scan() };
        assert!(matches!(map.scan(&wrong), Err(Error::Invalid { .. })));
    });
}

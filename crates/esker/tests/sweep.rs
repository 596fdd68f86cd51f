//! Expired rows of the map go in the background where that is asked for, no faster than asked for.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::time::{Duration, Instant};

use esker::kv::{Clock, SystemClock};
use esker::map::{Change, Condition, DataType, Key, MapStorage, Mutation, Schema, TableName};
use esker::{Durability, Store};

const LATE: Duration = Duration::from_secs(20);

fn table() -> TableName {
    TableName::new("n", "t")
}

/// Puts rows that have expired already, and one that has not.
fn fill(store: &Store, rows: i64) {
    let map = store.map().unwrap();
    map.create_namespace("n").unwrap();
    map.create_table(&table(), &Schema::new().column("k", DataType::BigInt).partition("k")).unwrap();
    let now = SystemClock.now_ms();
    let put = |k: i64| {
        let expires_ms = Some(if k == rows { now + 3_600_000 } else { now });
        let change = Change::Put { columns: Vec::new(), expires_ms };
        Mutation { table: table(), key: Key::of("k", k), change, condition: Condition::Always }
    };
    let list: Vec<_> = (0..=rows).map(put).collect();
    map.mutate(&list, Durability::Applied).unwrap().wait().unwrap();
}

/// How many rows are stored, expired ones too.
fn stored(store: &Store) -> usize {
    store
        .objects()
        .list(&"map".into(), None, 60_000)
        .wait()
        .unwrap()
        .iter()
        .filter(|name| name.starts_with(b"p/"))
        .count()
}

#[test]
fn rows_that_have_expired_go_in_the_background_at_the_rate_that_was_asked_for() {
    let store = Store::open("memory:?map_sweep=200").unwrap();
    fill(&store, 500);
    let began = Instant::now();
    let mut first = None;
    while store.sweep_figures().removed < 500 {
        if store.sweep_figures().removed > 0 {
            first.get_or_insert_with(Instant::now);
        }
        assert!(began.elapsed() < LATE, "{:?}", store.sweep_figures());
        std::thread::sleep(Duration::from_millis(5));
    }
    // 200 rows, a second, 200 rows, a second, 100 rows.
    let took = first.unwrap().elapsed();
    assert!(took > Duration::from_millis(1_900), "500 rows in {took:?} at 200 a second");
    let figures = store.sweep_figures();
    assert_eq!((figures.rate, figures.steps, figures.renewed, figures.failures), (200, 3, 0, 0));
    let map = store.map().unwrap();
    assert_eq!(map.sweep(&table()).unwrap(), 0);
    let began = Instant::now();
    store.close().unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "closing does not wait for the next round");
}

#[test]
fn nothing_goes_by_itself_where_nobody_asked_for_it() {
    let store = Store::open("memory:").unwrap();
    fill(&store, 10);
    std::thread::sleep(Duration::from_millis(1_200));
    assert_eq!(store.sweep_figures(), esker::SweepFigures::default());
    assert_eq!(stored(&store), 11);
    assert_eq!(store.map().unwrap().sweep(&table()).unwrap(), 10);
    let error = Store::open("memory:?map_sweep=fast").unwrap_err().to_string();
    assert!(error.contains("map_sweep") && error.contains("fast"), "{error}");
}

//! What a change of the map costs the log, by the engine's own counters.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;
use std::time::Duration;

use esker_device::{Device, MemoryDevice, Pace, SlowDevice};
use esker_engine::{CommitPolicy, Engine, FormatOptions, Options};
use esker_map::{
    Compare, Condition, DataType, Durability, Error, Filter, Key, MapStorage, Mutation, Schema, TableName, Waist,
};
use esker_store::ObjectStore;

fn open(policy: CommitPolicy, pace: Pace) -> (Arc<Engine>, Waist) {
    let device = MemoryDevice::new(256 << 20);
    Engine::format(&device, &FormatOptions { segment_bytes: 1 << 20, uuid: [5; 16] }).unwrap();
    let device = Arc::new(SlowDevice::new(device, pace)) as Arc<dyn Device>;
    let engine = Arc::new(Engine::open(device, Options { policy, ..Options::default() }).unwrap());
    let map = Waist::open(Arc::clone(&engine) as Arc<dyn ObjectStore>, Arc::new(|| 0), [3; 32]).unwrap();
    map.create_namespace("ns").unwrap();
    let schema = Schema::new()
        .column("p", DataType::Int)
        .column("x", DataType::Int)
        .column("y", DataType::Text)
        .partition("p")
        .index("x");
    for table in [table(), other()] {
        map.create_table(&table, &schema).unwrap();
    }
    (engine, map)
}

fn table() -> TableName {
    TableName::new("ns", "t")
}

fn other() -> TableName {
    TableName::new("ns", "u")
}

fn put(p: i32, x: i32) -> Mutation {
    Mutation::put(&table(), Key::of("p", p), vec![("x".into(), x.into())])
}

fn x_is(x: i32) -> Condition {
    Condition::If(Filter::Compare("x".into(), Compare::Equal, x.into()))
}

/// Records and syncs so far.
fn counts(engine: &Engine) -> (u64, u64) {
    let stats = engine.stats();
    (stats.records, stats.syncs)
}

#[test]
fn a_conditional_update_costs_one_record_and_one_sync() {
    for policy in [CommitPolicy::Batch, CommitPolicy::Adaptive] {
        let (engine, map) = open(policy, Pace::Own);
        let costs_one = |what: &str, list: &[Mutation]| {
            let (records, syncs) = counts(&engine);
            map.mutate(list, Durability::Durable).unwrap().wait().unwrap();
            assert_eq!(counts(&engine), (records + 1, syncs + 1), "{policy}: {what}");
        };
        costs_one("a row if there is none, with its index", &[put(1, 0).when(Condition::NotExists)]);
        for x in 0..100 {
            costs_one("a row if a column has a value, with its index", &[put(1, x + 1).when(x_is(x))]);
        }
        let elsewhere = Mutation::put(&other(), Key::of("p", 7), vec![("y".into(), "text".into())]);
        let list = [put(1, 0).when(x_is(100)), put(2, 0), elsewhere.when(Condition::NotExists)];
        costs_one("rows of two partitions and two tables", &list);
        costs_one("a row that goes", &[Mutation::delete(&table(), Key::of("p", 1)).when(x_is(0))]);
    }
}

#[test]
fn a_condition_that_fails_costs_no_record_and_no_sync() {
    let (engine, map) = open(CommitPolicy::Batch, Pace::Own);
    map.mutate(&[put(1, 5)], Durability::Durable).unwrap().wait().unwrap();
    let before = counts(&engine);
    for condition in [x_is(4), Condition::NotExists] {
        let failed = map.mutate(&[put(1, 6).when(condition)], Durability::Durable).map(drop);
        assert!(matches!(failed, Err(Error::ConditionFailed { .. })));
    }
    assert_eq!(counts(&engine), before);
}

#[test]
fn clients_of_different_rows_share_syncs_and_not_records() {
    const CLIENTS: i32 = 16;
    const UPDATES: i32 = 40;
    let (engine, map) = open(CommitPolicy::Adaptive, Pace::Takes(Duration::from_millis(2)));
    let rows: Vec<_> = (0..CLIENTS).map(|p| put(p, 0)).collect();
    map.mutate(&rows, Durability::Durable).unwrap().wait().unwrap();
    let before = counts(&engine);
    std::thread::scope(|scope| {
        for p in 0..CLIENTS {
            let map = &map;
            scope.spawn(move || {
                for x in 0..UPDATES {
                    map.mutate(&[put(p, x + 1).when(x_is(x))], Durability::Durable).unwrap().wait().unwrap();
                }
            });
        }
    });
    let after = counts(&engine);
    let (records, syncs) = (after.0 - before.0, after.1 - before.1);
    assert_eq!(records, (CLIENTS * UPDATES) as u64);
    assert!(syncs * 2 <= records, "{syncs} syncs for {records} records of {CLIENTS} clients");
}

//! The promises of transactions, one at a time, on the memory backend and on the engine, atomic over everything, a
//! partition, or a row; and on Cassandra.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use esker_device::MemoryDevice;
use esker_engine::{Engine, FormatOptions, Options as EngineOptions};
use esker_map::{
    Alter, Atomicity, Bound, Compare, Condition, DataType, Error as MapError, Filter, Get, Key, MapStorage, Mutation,
    Order, Over, ROW_BYTES_MAX, Record, Scan, Schema, TableName, Value,
};
use esker_transaction::{Error, Isolation, Options, Transaction, Transactions};
use support::*;

const ISOLATIONS: [Isolation; 2] = [Isolation::Snapshot, Isolation::Serializable];

fn run(storage: Arc<dyn MapStorage>, isolation: Isolation, test: fn(Transactions, Time)) {
    let time = Time::default();
    time.pass(1_000);
    let transactions = open(storage, &time, options(isolation));
    make_table(&transactions);
    test(transactions, time);
}

/// Each promise is a test on all storages in this process, and one on Cassandra.
macro_rules! promises {
    ($($name:ident)*) => {
        mod here {
            use super::*;

            $(#[test]
            fn $name() {
                for storage in [memory as fn() -> Arc<dyn MapStorage>, engine] {
                    for atomicity in ATOMICITIES {
                        for isolation in ISOLATIONS {
                            run(Arc::new(Tap::new(storage(), atomicity)), isolation, super::$name);
                        }
                    }
                }
            })*
        }

        mod cassandra {
            use super::*;

            $(#[test]
            #[ignore = "needs a node: scripts/cassandra run"]
            fn $name() {
                for isolation in ISOLATIONS {
                    run(support::cassandra::fresh(), isolation, super::$name);
                }
            })*
        }
    };
}

promises! {
    what_is_committed_is_seen_whole_and_what_is_not_is_not_seen
    puts_merge_nothing_is_null_and_a_row_made_again_begins_empty
    an_update_is_never_lost
    write_skew_is_refused_when_serializable_and_read_skew_always
    phantoms_are_refused_at_every_place_of_a_range
    scans_show_own_writes_in_their_places
    what_an_index_finds_is_validated
    conditions_are_of_what_the_transaction_sees
    transactions_that_are_too_old_are_refused
    columns_and_indexes_come_and_go_between_transactions
    traces_of_deleted_rows_and_old_records_are_swept
    rows_written_around_transactions_are_read_and_taken_over
    rows_that_make_no_sense_are_damage_and_not_taken_for_something_else
}

fn get(txn: &mut Transaction, p: i32, c: i32) -> Option<i64> {
    txn.get(&Get::new(&table(), key(p, c))).unwrap().map(|record| x_of(&record))
}

fn put(txn: &mut Transaction, p: i32, c: i32, value: i64) {
    txn.put(&table(), key(p, c), x(value)).unwrap();
}

fn set(transactions: &Transactions, rows: &[(i32, i32, i64)]) {
    let mut txn = transactions.begin();
    rows.iter().for_each(|(p, c, value)| put(&mut txn, *p, *c, *value));
    txn.commit().unwrap();
}

fn partition(p: i32) -> Scan {
    Scan::partition(&table(), Key::of("p", p))
}

fn cx(records: &[Record]) -> Vec<(i32, i64)> {
    let c = |record: &Record| match record.value("c") {
        Some(Value::Int(c)) => *c,
        other => panic!("{other:?}"),
    };
    records.iter().map(|record| (c(record), x_of(record))).collect()
}

fn conflicts(done: Result<(), Error>) {
    assert!(matches!(&done, Err(error @ Error::Conflict { .. }) if error.is_retryable()), "{done:?}");
}

fn what_is_committed_is_seen_whole_and_what_is_not_is_not_seen(transactions: Transactions, _: Time) {
    let mut txn = transactions.begin();
    put(&mut txn, 1, 1, 10);
    put(&mut txn, 2, 1, 20);
    assert_eq!(get(&mut txn, 1, 1), Some(10), "own write");
    assert_eq!(get(&mut transactions.begin(), 1, 1), None);
    txn.commit().unwrap();
    let mut txn = transactions.begin();
    assert_eq!((get(&mut txn, 1, 1), get(&mut txn, 2, 1)), (Some(10), Some(20)));
    txn.delete(&table(), key(1, 1)).unwrap();
    assert_eq!(get(&mut txn, 1, 1), None);
    put(&mut txn, 2, 1, 21);
    txn.rollback();
    let mut txn = transactions.begin();
    assert_eq!((get(&mut txn, 1, 1), get(&mut txn, 2, 1)), (Some(10), Some(20)));
    txn.delete(&table(), key(1, 1)).unwrap();
    put(&mut txn, 2, 1, 22);
    txn.commit().unwrap();
    let mut txn = transactions.begin();
    assert_eq!((get(&mut txn, 1, 1), get(&mut txn, 2, 1)), (None, Some(22)));
    txn.commit().unwrap();
}

fn puts_merge_nothing_is_null_and_a_row_made_again_begins_empty(transactions: Transactions, _: Time) {
    let row = |txn: &mut Transaction| txn.get(&Get::new(&table(), key(1, 1))).unwrap();
    set(&transactions, &[(1, 1, 5)]);
    let mut txn = transactions.begin();
    txn.put(&table(), key(1, 1), vec![("y".into(), "text".into())]).unwrap();
    txn.commit().unwrap();
    let record = row(&mut transactions.begin()).unwrap();
    let names: Vec<_> = record.columns.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["p", "c", "x", "y"], "metadata is not shown");
    assert_eq!((record.value("x"), record.value("y")), (Some(&5i64.into()), Some(&"text".into())));
    let mut txn = transactions.begin();
    txn.delete(&table(), key(1, 1)).unwrap();
    txn.put(&table(), key(1, 1), vec![("y".into(), "new".into())]).unwrap();
    assert_eq!(row(&mut txn).unwrap().get("x"), Some(None));
    txn.commit().unwrap();
    assert_eq!(row(&mut transactions.begin()).unwrap().get("x"), Some(None), "null");
    let mut txn = transactions.begin();
    txn.delete(&table(), key(1, 1)).unwrap();
    txn.commit().unwrap();
    assert_eq!(row(&mut transactions.begin()), None);
    set(&transactions, &[(1, 1, 6)]);
    let record = row(&mut transactions.begin()).unwrap();
    assert_eq!((record.value("x"), record.get("y")), (Some(&6i64.into()), Some(None)));
}

fn an_update_is_never_lost(transactions: Transactions, _: Time) {
    set(&transactions, &[(1, 1, 1)]);
    let (mut a, mut b) = (transactions.begin(), transactions.begin());
    let (from_a, from_b) = (get(&mut a, 1, 1).unwrap(), get(&mut b, 1, 1).unwrap());
    put(&mut a, 1, 1, from_a + 1);
    put(&mut b, 1, 1, from_b + 1);
    a.commit().unwrap();
    conflicts(b.commit());
    // Nor where both found nothing.
    let (mut a, mut b) = (transactions.begin(), transactions.begin());
    assert_eq!((get(&mut a, 1, 2), get(&mut b, 1, 2)), (None, None));
    put(&mut a, 1, 2, 1);
    put(&mut b, 1, 2, 2);
    a.commit().unwrap();
    conflicts(b.commit());
    // Nor where the row has come and gone since.
    let mut c = transactions.begin();
    assert_eq!(get(&mut c, 1, 3), None);
    put(&mut c, 1, 3, 1);
    set(&transactions, &[(1, 3, 9)]);
    let mut delete = transactions.begin();
    delete.delete(&table(), key(1, 3)).unwrap();
    delete.commit().unwrap();
    conflicts(c.commit());
    let mut txn = transactions.begin();
    assert_eq!((get(&mut txn, 1, 1), get(&mut txn, 1, 2), get(&mut txn, 1, 3)), (Some(2), Some(1), None));
}

fn write_skew_is_refused_when_serializable_and_read_skew_always(transactions: Transactions, _: Time) {
    for (p, q) in [(1, 2), (3, 3)] {
        set(&transactions, &[(p, 1, 1), (q, 2, 1)]);
        let serializable = || transactions.begin_with(Isolation::Serializable);
        let (mut a, mut b) = (serializable(), serializable());
        get(&mut a, p, 1);
        get(&mut b, q, 2);
        put(&mut a, q, 2, 0);
        put(&mut b, p, 1, 0);
        a.commit().unwrap();
        conflicts(b.commit());
        // Reads around another's commit.
        let mut reader = transactions.begin();
        get(&mut reader, p, 1);
        set(&transactions, &[(p, 1, 7), (q, 2, 7)]);
        assert_eq!(get(&mut reader, q, 2), Some(7));
        assert_ne!(get(&mut reader, p, 1), Some(7), "as first read");
        conflicts(reader.commit());
    }
}

fn phantoms_are_refused_at_every_place_of_a_range(transactions: Transactions, _: Time) {
    let bound = |c: i32| Some(Bound { values: vec![("c".into(), c.into())], inclusive: true });
    let range = |low, high| Over::Partition { key: vec![("p".into(), 1.into())], low, high };
    set(&transactions, &[(1, 2, 2), (1, 4, 4), (1, 6, 6), (1, 8, 8)]);
    let scan = |over, reverse, limit| Scan { reverse, limit, ..Scan::new(&table(), over) };
    // What is scanned, then what others write at (with or without conflict).
    type Case = (Scan, Vec<(i32, i32)>, i32, bool);
    let two = vec![(2, 2), (4, 4)];
    let cases: Vec<Case> = vec![
        (scan(range(None, None), false, 0), vec![(2, 2), (4, 4), (6, 6), (8, 8)], 1, true),
        (scan(range(None, None), false, 0), vec![(2, 2), (4, 4), (6, 6), (8, 8)], 9, true),
        (scan(range(bound(2), bound(4)), false, 0), two.clone(), 3, true),
        (scan(range(bound(2), bound(4)), false, 0), two.clone(), 5, false),
        (scan(range(bound(2), bound(4)), false, 0), two.clone(), 1, false),
        (scan(range(None, None), false, 2), two.clone(), 3, true),
        (scan(range(None, None), false, 2), two.clone(), 1, true),
        (scan(range(None, None), false, 2), two.clone(), 5, false),
        (scan(range(None, None), true, 2), vec![(8, 8), (6, 6)], 9, true),
        (scan(range(None, None), true, 2), vec![(8, 8), (6, 6)], 5, false),
        (scan(range(bound(10), bound(20)), false, 0), vec![], 15, true),
        (scan(range(bound(10), bound(20)), false, 0), vec![], 9, false),
        (scan(Over::All, false, 0), vec![(2, 2), (4, 4), (6, 6), (8, 8)], 5, true),
    ];
    for (scan, expected, other, conflict) in cases {
        for removed in [false, true] {
            let mut txn = transactions.begin_with(Isolation::Serializable);
            let seen = cx(&txn.scan(&scan).unwrap());
            assert_eq!(seen.iter().map(|(c, x)| (*c, *x as i32)).collect::<Vec<_>>(), expected, "{scan:?}");
            put(&mut txn, 5, 5, 1);
            set(&transactions, &[(1, other, 99)]);
            if removed {
                // Gone again, and yet it was there.
                let mut delete = transactions.begin();
                delete.delete(&table(), key(1, other)).unwrap();
                delete.commit().unwrap();
            }
            let done = txn.commit();
            assert_eq!(done.is_err(), conflict, "{scan:?}, {other}, removed: {removed}: {done:?}");
            let mut delete = transactions.begin();
            delete.delete(&table(), key(1, other)).unwrap();
            delete.delete(&table(), key(5, 5)).unwrap();
            delete.commit().unwrap();
        }
    }
}

fn scans_show_own_writes_in_their_places(transactions: Transactions, _: Time) {
    set(&transactions, &[(1, 2, 2), (1, 4, 4), (1, 6, 6), (2, 1, 21)]);
    let mut txn = transactions.begin();
    put(&mut txn, 1, 1, 1);
    put(&mut txn, 1, 4, 40);
    put(&mut txn, 1, 9, 9);
    txn.delete(&table(), key(1, 6)).unwrap();
    let mut scan = |scan: Scan| cx(&txn.scan(&scan).unwrap());
    assert_eq!(scan(partition(1)), [(1, 1), (2, 2), (4, 40), (9, 9)]);
    assert_eq!(scan(Scan { reverse: true, ..partition(1) }), [(9, 9), (4, 40), (2, 2), (1, 1)]);
    assert_eq!(scan(Scan { limit: 1, ..partition(1) }), [(1, 1)]);
    assert_eq!(scan(Scan { limit: 3, ..partition(1) }), [(1, 1), (2, 2), (4, 40)]);
    assert_eq!(scan(Scan { limit: 1, reverse: true, ..partition(1) }), [(9, 9)]);
    let above = Filter::Compare("x".into(), Compare::Greater, 8i64.into());
    assert_eq!(scan(Scan { filter: above.clone(), ..partition(1) }), [(4, 40), (9, 9)]);
    let all = Scan::new(&table(), Over::All);
    assert_eq!(scan(all.clone()), [(1, 1), (2, 2), (4, 40), (9, 9), (1, 21)]);
    assert_eq!(scan(Scan { limit: 2, ..all.clone() }), [(1, 1), (2, 2)]);
    let falling = vec![("x".into(), Order::Desc)];
    assert_eq!(scan(Scan { order_by: falling, limit: 2, ..all }), [(4, 40), (1, 21)]);
    assert_eq!(cx(&txn.look_up(&table(), "x", &40i64.into()).unwrap()), [(4, 40)]);
    assert_eq!(cx(&txn.look_up(&table(), "x", &4i64.into()).unwrap()), []);
    assert_eq!(cx(&txn.look_up(&table(), "x", &2i64.into()).unwrap()), [(2, 2)]);
    txn.commit().unwrap();
    let mut txn = transactions.begin();
    assert_eq!(cx(&txn.scan(&partition(1)).unwrap()), [(1, 1), (2, 2), (4, 40), (9, 9)]);
    let columns = vec!["y".into()];
    let names: Vec<_> = txn.scan(&Scan { columns, limit: 1, ..partition(1) }).unwrap()[0].columns.clone();
    assert_eq!(names.into_iter().map(|(name, _)| name).collect::<Vec<_>>(), ["p", "c", "y"]);
}

fn what_an_index_finds_is_validated(transactions: Transactions, _: Time) {
    set(&transactions, &[(1, 1, 7), (2, 1, 7), (3, 1, 8)]);
    for (row, conflict) in [((1, 1, 9), true), ((2, 1, 7), true), ((4, 4, 9), false)] {
        let mut txn = transactions.begin();
        assert_eq!(txn.look_up(&table(), "x", &7i64.into()).unwrap().len(), 2);
        put(&mut txn, 5, 5, 1);
        set(&transactions, &[row]);
        assert_eq!(txn.commit().is_err(), conflict, "{row:?}");
        set(&transactions, &[(1, 1, 7), (2, 1, 7), (3, 1, 8)]);
    }
    let mut txn = transactions.begin();
    let by_index = Scan::new(&table(), Over::Index("x".into(), 7i64.into()));
    assert!(txn.scan(&by_index).unwrap_err().to_string().contains("look it up"));
    assert!(matches!(txn.look_up(&table(), "y", &"a".into()), Err(Error::Map(MapError::Missing { .. }))));
}

fn conditions_are_of_what_the_transaction_sees(transactions: Transactions, _: Time) {
    let mut txn = transactions.begin();
    let insert = || Mutation::put(&table(), key(1, 1), x(1)).when(Condition::NotExists);
    txn.mutate(&insert()).unwrap();
    match txn.mutate(&insert()) {
        Err(Error::Map(MapError::ConditionFailed { current: Some(row), .. })) => assert_eq!(x_of(&row), 1),
        other => panic!("{other:?}"),
    }
    let is = |value: i64| Condition::If(Filter::Compare("x".into(), Compare::Equal, value.into()));
    txn.mutate(&Mutation::put(&table(), key(1, 1), x(2)).when(is(1))).unwrap();
    assert!(txn.mutate(&Mutation::delete(&table(), key(1, 1)).when(is(1))).is_err());
    assert!(txn.mutate(&Mutation::delete(&table(), key(9, 1)).when(Condition::Exists)).is_err());
    txn.commit().unwrap();
    assert_eq!(get(&mut transactions.begin(), 1, 1), Some(2));
}

#[test]
fn bad_input_is_an_error_that_names_it() {
    let transactions = open(memory(), &Time::default(), Options::default());
    transactions.create_table(&table(), &schema()).unwrap();
    let storage = Arc::clone(transactions.storage());
    let plain = TableName::new("ns", "plain");
    storage.create_table(&plain, &Schema::new().column("p", DataType::Int).partition("p")).unwrap();
    let mut txn = transactions.begin();
    let said = |error: Result<(), Error>| error.unwrap_err().to_string();
    let y = |value: Value| vec![("y".into(), value)];
    let mut check = |expected: &str, work: &dyn Fn(&mut Transaction) -> Result<(), Error>| {
        let said = said(work(&mut txn));
        assert!(said.contains(expected), "{said:?} does not contain {expected:?}");
    };
    check("ns.plain", &|txn| txn.get(&Get::new(&plain, Key::of("p", 1))).map(drop));
    check("ns.none", &|txn| txn.delete(&TableName::new("ns", "none"), key(1, 1)));
    check("column c is missing", &|txn| txn.delete(&table(), Key::of("p", 1)));
    check("column x is not part", &|txn| txn.delete(&table(), key(1, 1).and("x", 1i64)));
    check("twice", &|txn| txn.delete(&table(), key(1, 1).and("p", 1)));
    check("column y is text", &|txn| txn.put(&table(), key(1, 1), y(5.into())));
    check("column z", &|txn| txn.put(&table(), key(1, 1), vec![("z".into(), 5.into())]));
    check("tx_id", &|txn| txn.put(&table(), key(1, 1), vec![("tx_id".into(), "me".into())]));
    check("column p is part of the key", &|txn| txn.put(&table(), key(1, 1), vec![("p".into(), 5.into())]));
    check("before_x", &|txn| txn.look_up(&table(), "before_x", &1i64.into()).map(drop));
    check("tx_state", &|txn| txn.scan(&Scan { filter: Filter::IsNull("tx_state".into()), ..partition(1) }).map(drop));
    let reserved = Schema::new().column("p", DataType::Int).column("before_p", DataType::Int).partition("p");
    check("before_p", &|_| transactions.create_table(&TableName::new("ns", "u"), &reserved));
    txn.commit().unwrap();
}

fn transactions_that_are_too_old_are_refused(transactions: Transactions, time: Time) {
    let mut txn = transactions.begin();
    put(&mut txn, 1, 1, 1);
    time.pass(600_001);
    let error = txn.commit().unwrap_err();
    assert!(matches!(error, Error::Expired { age_ms: 600_001, limit_ms: 600_000 }) && error.is_retryable());
    assert_eq!(get(&mut transactions.begin(), 1, 1), None);
}

fn columns_and_indexes_come_and_go_between_transactions(transactions: Transactions, _: Time) {
    set(&transactions, &[(1, 1, 1)]);
    let mut old = transactions.begin();
    put(&mut old, 1, 1, 2);
    transactions.alter_table(&table(), &Alter::AddColumn("z".into(), DataType::Int)).unwrap();
    conflicts(old.commit());
    transactions.create_index(&table(), "z").unwrap();
    let mut txn = transactions.begin();
    txn.put(&table(), key(1, 1), vec![("z".into(), 5.into())]).unwrap();
    txn.commit().unwrap();
    assert_eq!(transactions.begin().look_up(&table(), "z", &5.into()).unwrap().len(), 1);
    transactions.drop_index(&table(), "z").unwrap();
    transactions.alter_table(&table(), &Alter::ChangeType("z".into(), DataType::BigInt)).unwrap();
    transactions.alter_table(&table(), &Alter::RenameColumn("z".into(), "w".into())).unwrap();
    let mut txn = transactions.begin();
    let row = txn.get(&Get::new(&table(), key(1, 1))).unwrap().unwrap();
    assert_eq!(row.value("w"), Some(&5i64.into()));
    transactions.alter_table(&table(), &Alter::DropColumn("w".into())).unwrap();
    set(&transactions, &[(1, 1, 3)]);
    assert_eq!(get(&mut transactions.begin(), 1, 1), Some(3));
}

#[test]
fn one_mutation_commits_what_the_storage_can_do_at_once() {
    // Writes of the storage by atomicity: rows of one partition, rows of two, of one partition with another row read,
    // of one with a range read.
    let expected = [
        (Atomicity::Storage, Isolation::Serializable, [1, 1, 1, 3]),
        (Atomicity::Partition, Isolation::Serializable, [1, 5, 3, 3]),
        (Atomicity::Record, Isolation::Serializable, [5, 5, 5, 5]),
        (Atomicity::Storage, Isolation::Snapshot, [1, 1, 1, 1]),
        (Atomicity::Partition, Isolation::Snapshot, [1, 5, 1, 1]),
    ];
    for (atomicity, isolation, expected) in expected {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let hook: Hook = Box::new(move |writes| {
            counted.fetch_add(usize::from(writes), Ordering::SeqCst);
            Fate::Made
        });
        let storage = Arc::new(Tap { inner: memory(), atomicity, hook });
        let transactions = open(storage, &Time::default(), options(isolation));
        transactions.create_table(&table(), &schema()).unwrap();
        let work: [&dyn Fn(&mut Transaction); 4] = [
            &|txn| [1, 2].into_iter().for_each(|c| put(txn, 1, c, 1)),
            &|txn| [1, 2].into_iter().for_each(|p| put(txn, p, 1, 1)),
            &|txn| {
                get(txn, 9, 9);
                [1, 2].into_iter().for_each(|c| put(txn, 1, c, 2));
            },
            &|txn| {
                txn.scan(&partition(1)).unwrap();
                [1, 2].into_iter().for_each(|c| put(txn, 1, c, 3));
            },
        ];
        for (number, work) in work.iter().enumerate() {
            let mut txn = transactions.begin();
            work(&mut txn);
            count.store(0, Ordering::SeqCst);
            txn.commit().unwrap();
            let writes = count.load(Ordering::SeqCst);
            assert_eq!(writes, expected[number], "{atomicity:?} {isolation:?}, transaction {number}");
        }
    }
}

fn traces_of_deleted_rows_and_old_records_are_swept(transactions: Transactions, time: Time) {
    set(&transactions, &[(1, 1, 1), (2, 1, 1)]);
    let mut txn = transactions.begin();
    txn.delete(&table(), key(1, 1)).unwrap();
    put(&mut txn, 3, 1, 1);
    txn.commit().unwrap();
    let stored = || {
        let rows = transactions.storage().scan(&Scan::new(&table(), Over::All)).unwrap().records.len();
        let state = TableName::new("coordinator", "state");
        let records = transactions.storage().scan(&Scan::new(&state, Over::All)).unwrap().records;
        // One says up to when records were removed.
        let of_transactions = |record: &&Record| record.value("tx_id") != Some(&"forgotten".into());
        (rows, records.iter().filter(of_transactions).count())
    };
    let (rows, records) = stored();
    assert_eq!(rows, 3, "one of them is the trace of a deleted one");
    assert_eq!(transactions.sweep().unwrap(), 0);
    time.pass(1_200_001);
    assert_eq!(transactions.sweep().unwrap(), 1 + records as u64);
    assert_eq!(stored(), (2, 0));
    let mut txn = transactions.begin();
    assert_eq!((get(&mut txn, 1, 1), get(&mut txn, 2, 1), get(&mut txn, 3, 1)), (None, Some(1), Some(1)));
}

fn rows_written_around_transactions_are_read_and_taken_over(transactions: Transactions, _: Time) {
    let columns = vec![("x".into(), 4i64.into())];
    let plain = Mutation::put(&table(), key(1, 1), columns);
    let done = transactions.storage().mutate(&[plain], esker_map::Durability::Durable).unwrap();
    done.wait().unwrap();
    let (mut a, mut b) = (transactions.begin(), transactions.begin());
    assert_eq!((get(&mut a, 1, 1), get(&mut b, 1, 1)), (Some(4), Some(4)));
    put(&mut a, 1, 1, 5);
    put(&mut b, 1, 1, 6);
    a.commit().unwrap();
    conflicts(b.commit());
    assert_eq!(get(&mut transactions.begin(), 1, 1), Some(5));
}

/// Failure: a row of more than half of what a row may have could be written once, and neither updated nor deleted by a
/// transaction that prepares rows, since its before-image did not fit. See the map's `ROW_BYTES_MAX`.
#[test]
fn the_largest_row_is_updated_deleted_and_taken_back_in_two_phases() {
    let device = Arc::new(MemoryDevice::new(4 << 30));
    Engine::format(&*device, &FormatOptions { segment_bytes: 64 << 20, uuid: [5; 16] }).unwrap();
    let storage = waist(Arc::new(Engine::open(device, EngineOptions::default()).unwrap()));
    // Each row is prepared by itself.
    let tap: Arc<dyn MapStorage> = Arc::new(Tap::new(storage, Atomicity::Record));
    let time = Time::default();
    time.pass(1_000);
    let transactions = open(Arc::clone(&tap), &time, options(Isolation::Serializable));
    let wide = TableName::new("ns", "wide");
    let schema = Schema::new().column("p", DataType::Int).column("b", DataType::Blob).partition("p");
    transactions.create_table(&wide, &schema).unwrap();
    let blob = |byte: u8| Value::Blob(vec![byte; ROW_BYTES_MAX - 1_000].into());
    let both = |byte: u8| {
        let mut txn = transactions.begin();
        for p in [1, 2] {
            txn.put(&wide, Key::of("p", p), vec![("b".into(), blob(byte))]).unwrap();
        }
        txn
    };
    let read = |p: i32| {
        let found = transactions.begin().get(&Get::new(&wide, Key::of("p", p))).unwrap();
        found.and_then(|record| record.value("b").cloned())
    };
    both(1).commit().unwrap();
    both(2).commit().unwrap();
    assert!([1, 2].iter().all(|p| read(*p) == Some(blob(2))));
    // A row that another changed meanwhile: the first, which is prepared, is taken back.
    let mut late = both(3);
    assert!(late.get(&Get::new(&wide, Key::of("p", 2))).unwrap().is_some());
    let mut other = transactions.begin();
    other.put(&wide, Key::of("p", 2), vec![("b".into(), blob(4))]).unwrap();
    other.commit().unwrap();
    conflicts(late.commit());
    assert!(read(1) == Some(blob(2)) && read(2) == Some(blob(4)));
    let mut txn = transactions.begin();
    [1, 2].iter().for_each(|p| txn.delete(&wide, Key::of("p", *p)).unwrap());
    txn.commit().unwrap();
    assert!(read(1).is_none() && read(2).is_none());
}

fn rows_that_make_no_sense_are_damage_and_not_taken_for_something_else(transactions: Transactions, _: Time) {
    set(&transactions, &[(1, 1, 1)]);
    let broken: [(&str, Option<Value>); 3] =
        [("tx_state", Some(9.into())), ("tx_state", Some(4.into())), ("tx_id", None)];
    for (column, value) in broken {
        let state = if column == "tx_id" { vec![("tx_state".into(), Some(1.into()))] } else { Vec::new() };
        let columns = [state, vec![(column.into(), value)]].concat();
        let change = esker_map::Change::Put { columns, expires_ms: None };
        let around = Mutation { table: table(), key: key(1, 1), change, condition: Condition::Always };
        transactions.storage().mutate(&[around], esker_map::Durability::Durable).unwrap().wait().unwrap();
        let mut txn = transactions.begin();
        assert!(matches!(txn.get(&Get::new(&table(), key(1, 1))), Err(Error::Damaged { .. })));
        assert!(matches!(txn.scan(&partition(1)), Err(Error::Damaged { .. })));
        put(&mut txn, 1, 1, 5);
        assert!(matches!(txn.commit(), Err(Error::Damaged { .. })));
    }
}

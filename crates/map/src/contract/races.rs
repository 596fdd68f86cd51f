//! Contract: many writers, of several handles.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;

use super::{Harness, key, put, schema, table, with};
use crate::{Compare, Condition, Durability, Error, Filter, Get, Mutation, Value};

/// Conditional increments through two handles lose nothing.
pub fn counters_incremented_by_many_under_conditions_lose_nothing(harness: &dyn Harness) {
    with(harness, |map, opened| {
        map.create_table(&table(), &schema()).unwrap();
        put(map, key("p", 0, 0), &[("x", 0.into())]);
        // Two handles each with locks of their own, as two processes have.
        let handles = [opened.storage(), opened.another()];
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let map = Arc::clone(&handles[number % 2]);
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

/// Writers move amounts between rows of one partition, in lists with conditions; whatever a reader sees in one page,
/// the sum is the same at the end, and no writer is told that an amount was moved that was not.
pub fn rows_of_a_partition_change_together_for_all_readers(harness: &dyn Harness) {
    const ROWS: i32 = 3;
    const START: i32 = 100;
    with(harness, |map, opened| {
        map.create_table(&table(), &schema()).unwrap();
        (0..ROWS).for_each(|row| put(map, key("p", row, 0), &[("x", START.into())]));
        let handles = [opened.storage(), opened.another()];
        let moved: i64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4u64)
                .map(|number| {
                    let map = Arc::clone(&handles[number as usize % 2]);
                    scope.spawn(move || {
                        let mut rng = fastrand::Rng::with_seed(number);
                        let x = |row: i32| match map
                            .get(&Get::new(&table(), key("p", row, 0)))
                            .unwrap()
                            .unwrap()
                            .value("x")
                        {
                            Some(Value::Int(x)) => *x,
                            other => panic!("{other:?}"),
                        };
                        let mut into_first = 0i64;
                        for _ in 0..30 {
                            let (from, to) = (rng.i32(0..ROWS), rng.i32(0..ROWS));
                            if from == to {
                                continue;
                            }
                            let (left, right) = (x(from), x(to));
                            let set = |row, was: i32, x: i32| {
                                Mutation::put(&table(), key("p", row, 0), vec![("x".into(), x.into())])
                                    .when(Condition::If(Filter::Compare("x".into(), Compare::Equal, was.into())))
                            };
                            match map
                                .mutate(&[set(from, left, left - 1), set(to, right, right + 1)], Durability::Applied)
                            {
                                Ok(done) => {
                                    done.wait().unwrap();
                                    into_first += i64::from(to == 0) - i64::from(from == 0);
                                }
                                Err(Error::ConditionFailed { .. }) => {}
                                Err(error) => panic!("seed {number}: {error}"),
                            }
                        }
                        into_first
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        let x = |row: i32| match map.get(&Get::new(&table(), key("p", row, 0))).unwrap().unwrap().value("x") {
            Some(Value::Int(x)) => i64::from(*x),
            other => panic!("{other:?}"),
        };
        assert_eq!((0..ROWS).map(x).sum::<i64>(), i64::from(ROWS * START));
        assert_eq!(x(0), i64::from(START) + moved, "what its writers were told");
    });
}

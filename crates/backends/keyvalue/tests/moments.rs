//! What happens while groups are on their way: listings show one moment, and what dies meanwhile is swept.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use esker_keyvalue::{Batch, Cursor, KeyValueStore, Options, Ordered, Tree};
use esker_store::{Change, Durability, ObjectId, ObjectStore, Result, Transaction};
use support::Kept;

/// A tree whose writes take a while, so that transactions gather behind them.
struct Slow(Kept);

impl Ordered for Slow {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.0.get(key)
    }
    fn cursor(&self, start: &[u8], end: &[u8], reverse: bool) -> Result<Box<dyn Cursor + '_>> {
        self.0.cursor(start, end, reverse)
    }
    fn write(&self, batch: &Batch, sync: bool) -> Result<()> {
        std::thread::sleep(Duration::from_millis(2));
        self.0.write(batch, sync)
    }
    fn removes_ranges(&self) -> bool {
        true
    }
    fn compact(&self, _: &[u8], _: &[u8]) {}
    fn persistent(&self) -> bool {
        true
    }
}

fn slow() -> (KeyValueStore, Arc<Tree>) {
    let tree = Arc::new(Tree::new());
    let store = KeyValueStore::over(Box::new(Slow(Kept(Arc::clone(&tree)))), &Options::default()).unwrap();
    store.submit(Transaction::new().create_collection(&"c".into())).wait().unwrap();
    (store, tree)
}

fn object(number: u64) -> ObjectId {
    ObjectId::new("c".into(), format!("{number:04}"))
}

#[test]
fn a_listing_shows_one_moment() {
    let (store, _) = slow();
    store.submit(Transaction::new().change(&object(0), Change::Touch)).wait().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut rng, mut at) = (fastrand::Rng::with_seed(3), 0);
            for step in 0..600 {
                let to = (at + rng.u64(1..50)) % 50;
                let durability = if step % 3 == 0 { Durability::Durable } else { Durability::Applied };
                let txn = Transaction::with(durability).change(&object(at), Change::Rename { to: object(to) });
                store.submit(txn).wait().unwrap();
                at = to;
            }
            done.store(true, Ordering::SeqCst);
        });
        while !done.load(Ordering::SeqCst) {
            // What is shown is looked at, not when it may be shown to others.
            let (names, _) = store.list(&"c".into(), None, 100).into_parts();
            let names = names.unwrap();
            assert_eq!(names.len(), 1, "seed 3: one object under several names, or none: {names:?}");
        }
    });
}

#[test]
fn what_dies_while_the_sweeper_runs_leaves_nothing() {
    let (store, tree) = slow();
    for number in 0..200 {
        // Enough strips for a range, made and gone in one transaction: its entries and the sweeper's range meet in a
        // group.
        let data = vec![1; 600_000];
        let txn = Transaction::new().change(&object(number), Change::Write { offset: 0, data: data.into() });
        let (outcome, _) = store.submit(txn.change(&object(number), Change::Remove)).into_parts();
        outcome.unwrap();
    }
    let count = || {
        let mut count = 0;
        for (start, end) in [(b"b", b"c"), (b"d", b"m"), (b"n", b"y")] {
            let mut cursor = tree.cursor(start, end, false).unwrap();
            while cursor.next().unwrap().is_some() {
                count += 1;
            }
        }
        count
    };
    for _ in 0..300 {
        store.sync().wait().unwrap();
        if count() == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} keys are left", count());
}

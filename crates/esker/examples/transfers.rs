//! Money is moved between accounts by transactions, in one phase and in two, and without any: how often, how long, and
//! with how many syncs.
//!
//! `cargo run --release -p esker --example transfers -- FOLDER [SECONDS]`
//!
//! Each client has two accounts of its own, so none waits for another's rows. Every commit is durable.
//!
//! - mutate: one mutation of the storage writes both accounts, unread
//! - one phase: both accounts are read by key and written; reads and writes are one mutation
//! - two phases: a range is read besides, which no client writes; rows are prepared, the range is looked at again, a
//!   record decides

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use esker::map::{DataType, Get, Key, MapStorage, Mutation, Order, Scan, Schema, TableName, Value};
use esker::transaction::{Options, Transactions};
use esker::{Durability, Store};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
/// What a client does, given its number.
type Work<'a> = &'a (dyn Fn(i32) -> Outcome<()> + Sync);

fn key(client: i32, account: i32) -> Key {
    Key::of("client", client).and("account", account)
}

fn transfer(transactions: &Transactions, table: &TableName, client: i32, with_range: bool) -> Outcome<()> {
    Ok(transactions.run(100, |txn| {
        for (account, amount) in [(0, -1), (1, 1)] {
            let row = txn.get(&Get::new(table, key(client, account)))?;
            let balance = match row.as_ref().and_then(|row| row.value("balance")) {
                Some(Value::BigInt(balance)) => *balance,
                _ => 0,
            };
            txn.put(table, key(client, account), vec![("balance".into(), (balance + amount).into())])?;
        }
        if with_range {
            txn.scan(&Scan::partition(table, Key::of("client", -1)))?;
        }
        Ok(())
    })?)
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("where? name a folder")?;
    let seconds = arguments.next().map_or(Ok(3), |seconds| seconds.parse())?;
    let store = Store::open(&folder)?;
    let map = store.map()?;
    let transactions = store.transactions(Options::default())?;
    if !map.namespaces()?.iter().any(|name| name == "bank") {
        map.create_namespace("bank")?;
        let schema = Schema::new()
            .column("client", DataType::Int)
            .column("account", DataType::Int)
            .column("balance", DataType::BigInt)
            .partition("client")
            .clustering("account", Order::Asc);
        transactions.create_table(&TableName::new("bank", "accounts"), &schema)?;
        map.create_table(&TableName::new("bank", "plain"), &schema)?;
    }
    let (table, plain) = (TableName::new("bank", "accounts"), TableName::new("bank", "plain"));
    // What changes nothing is not written.
    let next = AtomicI64::new(0);
    let mutate = |client: i32| -> Outcome<()> {
        let balance = next.fetch_add(1, Ordering::Relaxed);
        let put = |account| Mutation::put(&plain, key(client, account), vec![("balance".into(), balance.into())]);
        Ok(map.mutate(&[put(0), put(1)], Durability::Durable)?.wait().map_err(esker::map::Error::from)?)
    };
    let one = |client: i32| transfer(&transactions, &table, client, false);
    let two = |client: i32| transfer(&transactions, &table, client, true);
    let kinds: [(&str, Work<'_>); 3] = [("mutate", &mutate), ("one phase", &one), ("two phases", &two)];
    println!("{:<12} {:>7} {:>9} {:>10} {:>10} {:>12}", "", "clients", "per s", "p50 us", "p99 us", "syncs each");
    for clients in [1, 16] {
        for (name, work) in kinds {
            let stop = Arc::new(AtomicBool::new(false));
            let syncs = store.syncs().unwrap_or(0);
            let began = Instant::now();
            let mut times = thread::scope(|scope| -> Outcome<Vec<Duration>> {
                let running: Vec<_> = (0..clients)
                    .map(|client| {
                        let stop = Arc::clone(&stop);
                        scope.spawn(move || -> Outcome<Vec<Duration>> {
                            let mut times = Vec::new();
                            while !stop.load(Ordering::Relaxed) {
                                let began = Instant::now();
                                work(client)?;
                                times.push(began.elapsed());
                            }
                            Ok(times)
                        })
                    })
                    .collect();
                thread::sleep(Duration::from_secs(seconds));
                stop.store(true, Ordering::Relaxed);
                let mut all = Vec::new();
                for client in running {
                    all.extend(client.join().map_err(|_| "a client failed")??);
                }
                Ok(all)
            })?;
            let elapsed = began.elapsed().as_secs_f64();
            times.sort_unstable();
            let at = |part: f64| times.get((times.len() as f64 * part) as usize).map_or(0, Duration::as_micros);
            let each = (store.syncs().unwrap_or(0) - syncs) as f64 / times.len().max(1) as f64;
            let rate = times.len() as f64 / elapsed;
            println!("{name:<12} {clients:>7} {rate:>9.0} {:>10} {:>10} {each:>12.2}", at(0.5), at(0.99));
        }
    }
    store.close()?;
    Ok(())
}

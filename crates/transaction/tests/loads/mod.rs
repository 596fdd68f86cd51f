//! What clients do in histories: append numbers to lists and read them, and move money between accounts.

#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, reason = "tests fail")]

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use esker_map::{Get, Key, Over, Record, Scan, Value};
use esker_transaction::{Error, Transaction};

use crate::checker::{Op, Outcome};
use crate::support::turns::Life;
use crate::support::{key, table, x, x_of};

/// What a client was told of a commit; a dead one was told nothing.
pub fn outcome(life: &Life, done: &Result<(), Error>) -> Outcome {
    match done {
        Ok(()) => Outcome::Committed,
        _ if life.dead.load(Ordering::SeqCst) => Outcome::Unknown,
        Err(Error::Unknown { .. }) => Outcome::Unknown,
        Err(_) => Outcome::Refused,
    }
}

pub const LISTS: u64 = 6;

pub fn list_key(list: u64) -> Key {
    key((list % 2) as i32, list as i32)
}

pub fn numbers(record: &Record) -> Vec<u64> {
    match record.value("y") {
        Some(Value::Text(text)) => text.split(' ').map(|number| number.parse().unwrap()).collect(),
        other => panic!("y is {other:?}"),
    }
}

pub fn read_list(txn: &mut Transaction, list: u64) -> Result<Vec<u64>, Error> {
    Ok(txn.get(&Get::new(&table(), list_key(list)))?.map_or(Vec::new(), |record| numbers(&record)))
}

/// All lists of a scan, empty ones too.
pub fn scan_lists(txn: &mut Transaction, over: Over, lists: impl Iterator<Item = u64>) -> Result<Vec<Op>, Error> {
    let mut found = BTreeMap::new();
    for record in txn.scan(&Scan::new(&table(), over))? {
        let Some(Value::Int(list)) = record.value("c") else { panic!("{record:?}") };
        found.insert(*list as u64, numbers(&record));
    }
    Ok(lists.map(|list| Op::Read(list, found.get(&list).cloned().unwrap_or_default())).collect())
}

pub fn append_and_read(rng: &mut fastrand::Rng, txn: &mut Transaction, next: &mut u64) -> Result<Vec<Op>, Error> {
    let mut ops = Vec::new();
    for _ in 0..rng.usize(1..=3) {
        let list = rng.u64(..LISTS);
        match rng.u8(..8) {
            0..3 => ops.push(Op::Read(list, read_list(txn, list)?)),
            3..6 => {
                let mut values = read_list(txn, list)?;
                ops.push(Op::Read(list, values.clone()));
                *next += 1;
                values.push(*next);
                ops.push(Op::Append(list, *next));
                let text = values.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
                txn.put(&table(), list_key(list), vec![("y".into(), text.into())])?;
            }
            6 => {
                let partition = list % 2;
                let over =
                    Over::Partition { key: vec![("p".into(), (partition as i32).into())], low: None, high: None };
                ops.extend(scan_lists(txn, over, (0..LISTS).filter(|list| list % 2 == partition))?);
            }
            _ => ops.extend(scan_lists(txn, Over::All, 0..LISTS)?),
        }
    }
    Ok(ops)
}

pub const ACCOUNTS: i32 = 6;
pub const MONEY: i64 = 600;

pub fn balance(txn: &mut Transaction, account: i32) -> Result<i64, Error> {
    Ok(txn.get(&Get::new(&table(), key(account % 2, account)))?.map_or(0, |record| x_of(&record)))
}

/// Accounts without money are closed.
pub fn set_balance(txn: &mut Transaction, account: i32, balance: i64) -> Result<(), Error> {
    let key = key(account % 2, account);
    if balance == 0 { txn.delete(&table(), key) } else { txn.put(&table(), key, x(balance)) }
}

pub fn all_money(txn: &mut Transaction) -> Result<i64, Error> {
    Ok(txn.scan(&Scan::new(&table(), Over::All))?.iter().map(x_of).sum())
}

/// Moves money from one account to another, or says how much there is in all.
pub fn transfer_or_audit(rng: &mut fastrand::Rng, txn: &mut Transaction) -> Result<Option<i64>, Error> {
    let (from, to) = (rng.i32(0..ACCOUNTS), rng.i32(0..ACCOUNTS));
    let by_key = rng.bool();
    if from == to {
        let sum = if by_key { (0..ACCOUNTS).map(|account| balance(txn, account)).sum() } else { all_money(txn) };
        return sum.map(Some);
    }
    let (has, had) = (balance(txn, from)?, balance(txn, to)?);
    // All of it often, so that accounts come and go.
    let amount = if by_key { has } else { rng.i64(0..=has) };
    set_balance(txn, from, has - amount)?;
    set_balance(txn, to, had + amount)?;
    Ok(None)
}

//! Conditional updates as benches make them: each client has rows of its own, and counts them up in turn.
//!
//! row → the number that its client left there → put of the next number, if it is still that
//!
//! Invariants:
//! 1. Each update has a condition on what the one before it left.
//! 2. A row has been counted up as often as its client was told: [`Rows::check`] looks.

use esker::Durability;
use esker::map::{Compare, Condition, Error, Filter, Get, Key, MapStorage, Mutation, TableName, Value};

use crate::exit::{Code, Failure};

/// The column that is counted up.
pub const COUNTED: &str = "n";

/// Rows of one client, with bigint column [`COUNTED`].
pub struct Rows<'a> {
    map: &'a dyn MapStorage,
    table: TableName,
    key: Box<dyn Fn(u64) -> Key + Send + 'a>,
    /// What stands in each row; none where that has to be read.
    counts: Vec<Option<i64>>,
    next: usize,
}

impl<'a> Rows<'a> {
    /// `number` rows, from 1, whose keys are told by `key`.
    pub fn new(map: &'a dyn MapStorage, table: &TableName, number: u64, key: impl Fn(u64) -> Key + Send + 'a) -> Self {
        Self { map, table: table.clone(), key: Box::new(key), counts: vec![None; number.max(1) as usize], next: 0 }
    }

    fn read(&self, row: usize) -> Result<i64, Error> {
        let key = (self.key)(row as u64);
        let found = self.map.get(&Get::new(&self.table, key.clone()))?;
        match found.as_ref().and_then(|record| record.value(COUNTED)) {
            Some(Value::BigInt(count)) => Ok(*count),
            _ => Err(Error::damaged(format!("row {:?} of {}", key.0, self.table), "it is not there")),
        }
    }

    /// Reads what stands in the row that is next, if that is not known.
    pub fn ready(&mut self) -> Result<(), Error> {
        if self.counts[self.next].is_none() {
            self.counts[self.next] = Some(self.read(self.next)?);
        }
        Ok(())
    }

    /// Reads what stands in all rows of which that is not known.
    pub fn all_ready(&mut self) -> Result<(), Error> {
        for row in 0..self.counts.len() {
            if self.counts[row].is_none() {
                self.counts[row] = Some(self.read(row)?);
            }
        }
        Ok(())
    }

    /// Counts the next row up, and waits until that is acknowledged. After an error the row is read again when it has
    /// its turn.
    pub fn update(&mut self) -> Result<(), Error> {
        self.ready()?;
        let (row, count) = (self.next, self.counts[self.next].take().unwrap_or_default());
        self.next = (row + 1) % self.counts.len();
        let is = Filter::Compare(COUNTED.into(), Compare::Equal, count.into());
        let values = vec![(COUNTED.into(), (count + 1).into())];
        let put = Mutation::put(&self.table, (self.key)(row as u64), values).when(Condition::If(is));
        self.map.mutate(std::slice::from_ref(&put), Durability::Durable)?.wait()?;
        self.counts[row] = Some(count + 1);
        Ok(())
    }

    /// Whether every row holds what its client left there.
    pub fn check(&self) -> Result<(), Failure> {
        for (row, count) in self.counts.iter().enumerate() {
            let Some(count) = count else { continue };
            let found = self.read(row)?;
            if found != *count {
                let key = (self.key)(row as u64).0;
                return Err(Failure::new(Code::Damage, format!("row {key:?} has {found} updates instead of {count}")));
            }
        }
        Ok(())
    }
}

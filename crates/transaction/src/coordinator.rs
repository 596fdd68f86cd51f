//! The coordinator's table: one record per transaction that needed it, written once.
//!
//! A transaction is committed from the instant at which its record says so: the first record that is put stays, whoever puts it. So its client and those who
//! want it out of the way may both try, and both learn what was decided.
//!
//! | column | type | what it is |
//! |---|---|---|
//! | `tx_id` | text, partition key | the transaction |
//! | `tx_state` | int | 3 committed, 4 aborted |
//! | `tx_created_at` | bigint | when that was decided, unix milliseconds |
//!
//! Invariant: a decision that this returns is durable, and is the only one that there will ever be.

use std::sync::Arc;

use esker_map::{
    Condition, DataType, Durability, Error as MapError, Get, Key, MapStorage, Mutation, Over, Record, Scan, Schema,
    TableName, Value,
};

use crate::layout::{ID, STATE, State};
use crate::{Error, Result};

/// The table in the namespace.
const TABLE: &str = "state";
const CREATED_AT: &str = "tx_created_at";

/// What was decided about a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub committed: bool,
    pub at_ms: i64,
}

#[derive(Clone)]
pub(crate) struct Coordinator {
    storage: Arc<dyn MapStorage>,
    table: TableName,
}

fn unless_exists(made: esker_map::Result<()>) -> Result<()> {
    match made {
        Err(MapError::Exists { .. }) => Ok(()),
        made => Ok(made?),
    }
}

impl Coordinator {
    /// Makes the table if it is missing.
    pub(crate) fn open(storage: Arc<dyn MapStorage>, namespace: &str) -> Result<Self> {
        let table = TableName::new(namespace, TABLE);
        match storage.table(&table) {
            Ok(_) => {}
            Err(MapError::Missing { .. }) => {
                unless_exists(storage.create_namespace(namespace))?;
                let schema = Schema::new()
                    .column(ID, DataType::Text)
                    .column(STATE, DataType::Int)
                    .column(CREATED_AT, DataType::BigInt)
                    .partition(ID);
                unless_exists(storage.create_table(&table, &schema))?;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(Self { storage, table })
    }

    fn decision(&self, record: &Record) -> Result<Decision> {
        let committed = match record.value(STATE) {
            Some(Value::Int(number)) if *number == State::Committed as i32 => true,
            Some(Value::Int(number)) if *number == State::Aborted as i32 => false,
            other => return Err(Error::damaged(format!("record of table {}", self.table), format!("state {other:?}"))),
        };
        let at_ms = match record.value(CREATED_AT) {
            Some(Value::BigInt(at_ms)) => *at_ms,
            _ => 0,
        };
        Ok(Decision { committed, at_ms })
    }

    /// What was decided, if anything was.
    pub(crate) fn read(&self, id: &str) -> Result<Option<Decision>> {
        let found = self.storage.get(&Get::new(&self.table, Key::of(ID, id)))?;
        found.map(|record| self.decision(&record)).transpose()
    }

    /// Decides, unless that was done before. Returns what is decided.
    ///
    /// After an error nothing is known; calling it again tells.
    pub(crate) fn decide(&self, id: &str, committed: bool, now_ms: i64) -> Result<Decision> {
        let state = if committed { State::Committed } else { State::Aborted };
        let columns = vec![(STATE.into(), Value::Int(state as i32)), (CREATED_AT.into(), Value::BigInt(now_ms))];
        let put = Mutation::put(&self.table, Key::of(ID, id), columns).when(Condition::NotExists);
        match self.storage.mutate(&[put], Durability::Durable) {
            Ok(done) => {
                done.wait().map_err(MapError::from)?;
                Ok(Decision { committed, at_ms: now_ms })
            }
            Err(MapError::ConditionFailed { current, .. }) => match current {
                Some(record) => self.decision(&record),
                None => Err(Error::damaged(format!("table {}", self.table), "a record was there and was not")),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the records of before `until_ms`. Returns their number.
    pub(crate) fn forget(&self, until_ms: i64) -> Result<u64> {
        let mut scan = Scan::new(&self.table, Over::All);
        let mut removed = 0;
        loop {
            let page = self.storage.scan(&scan)?;
            for record in page.records {
                let Some(Value::Text(id)) = record.value(ID) else { continue };
                if self.decision(&record)?.at_ms < until_ms {
                    let delete = Mutation::delete(&self.table, Key::of(ID, id.as_str()));
                    self.storage.mutate(&[delete], Durability::Applied)?.wait().map_err(MapError::from)?;
                    removed += 1;
                }
            }
            match page.next {
                Some(next) => scan.page = Some(next),
                None => return Ok(removed),
            }
        }
    }
}

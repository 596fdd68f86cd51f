//! The coordinator's table: one record per transaction that needed it, written once.
//!
//! A transaction is committed from the instant at which its record says so: the first record that is put stays, no
//! matter which client puts it. So its client and those who want it out of the way may both try, and both learn what
//! was decided.
//!
//! | column | type | what it is |
//! |---|---|---|
//! | `tx_id` | text, partition key | the transaction |
//! | `tx_state` | int | 3 committed, 4 aborted, 6 taken for dead: aborted by others, and its client may not know |
//! | `tx_created_at` | bigint | when that was decided, unix milliseconds |
//!
//! A sweep removes records that are old. Before it does, it puts the time up to which it removes into the record named
//! `forgotten`: of a transaction that began earlier a missing record says nothing.
//!
//! Invariants:
//! 1. A decision that this returns is durable, and is the only one that there will ever be.
//! 2. The record of a transaction that others aborted is not removed before its client has seen it: a client that was
//!    held up for however long finds it, and does not commit.

use std::sync::Arc;

use esker_map::{
    Compare, Condition, DataType, Durability, Error as MapError, Filter, Get, Key, MapStorage, Mutation, Over, Record,
    Scan, Schema, TableName, Value,
};

use crate::layout::{ID, STATE, State};
use crate::{Error, Result};

/// The table in the namespace.
const TABLE: &str = "state";
const CREATED_AT: &str = "tx_created_at";
/// The record with the time up to which records were removed. No transaction has this name.
const FORGOTTEN: &str = "forgotten";

/// What a client wants decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Its own transaction is committed.
    Commit,
    /// Its own transaction is not.
    Abort,
    /// Another's is not.
    Bury,
}

/// What was decided about a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub committed: bool,
    /// Not committed, by others, and its client has not seen that.
    pub by_others: bool,
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
        let (committed, by_others) = match record.value(STATE) {
            Some(Value::Int(number)) if *number == State::Committed as i32 => (true, false),
            Some(Value::Int(number)) if *number == State::Aborted as i32 => (false, false),
            Some(Value::Int(number)) if *number == State::TakenForDead as i32 => (false, true),
            other => return Err(Error::damaged(format!("record of table {}", self.table), format!("state {other:?}"))),
        };
        let at_ms = match record.value(CREATED_AT) {
            Some(Value::BigInt(at_ms)) => *at_ms,
            _ => 0,
        };
        Ok(Decision { committed, by_others, at_ms })
    }

    /// What was decided, if anything was.
    pub(crate) fn read(&self, id: &str) -> Result<Option<Decision>> {
        let found = self.storage.get(&Get::new(&self.table, Key::of(ID, id)))?;
        found.map(|record| self.decision(&record)).transpose()
    }

    /// Decides, unless that was done before. Returns what is decided.
    ///
    /// After an error nothing is known; calling it again tells.
    pub(crate) fn decide(&self, id: &str, wish: Wish, now_ms: i64) -> Result<Decision> {
        let state = match wish {
            Wish::Commit => State::Committed,
            Wish::Abort => State::Aborted,
            Wish::Bury => State::TakenForDead,
        };
        let put = self.put(id, state, now_ms).when(Condition::NotExists);
        match self.storage.mutate(&[put], Durability::Always) {
            Ok(done) => {
                done.wait().map_err(MapError::from)?;
                Ok(Decision { committed: wish == Wish::Commit, by_others: wish == Wish::Bury, at_ms: now_ms })
            }
            Err(MapError::ConditionFailed { current, .. }) => match current {
                Some(record) => self.decision(&record),
                None => Err(Error::damaged(format!("table {}", self.table), "a record was there and was not")),
            },
            Err(error) => Err(error.into()),
        }
    }

    fn put(&self, id: &str, state: State, at_ms: i64) -> Mutation {
        let columns = vec![(STATE.into(), Value::Int(state as i32)), (CREATED_AT.into(), Value::BigInt(at_ms))];
        Mutation::put(&self.table, Key::of(ID, id), columns)
    }

    /// Called by a client that has seen that others aborted its transaction, and will not try to commit it again: its
    /// record may be removed with the others. If that fails it stays.
    pub(crate) fn seen(&self, id: &str, decision: Decision) {
        let others = Filter::Compare(STATE.into(), Compare::Equal, Value::Int(State::TakenForDead as i32));
        let put = self.put(id, State::Aborted, decision.at_ms).when(Condition::If(others));
        let _ = self.storage.mutate(&[put], Durability::Applied);
    }

    /// Up to when records were removed, in unix milliseconds: what a transaction that began earlier came to may have
    /// been
    /// forgotten.
    pub(crate) fn forgotten_ms(&self) -> Result<i64> {
        match self.storage.get(&Get::new(&self.table, Key::of(ID, FORGOTTEN)))? {
            Some(record) => Ok(self.decision(&record)?.at_ms),
            None => Ok(i64::MIN),
        }
    }

    fn raise_forgotten(&self, until_ms: i64) -> Result<()> {
        // A state that programs before this record was there take for one of a transaction.
        let put = self.put(FORGOTTEN, State::Aborted, until_ms);
        let lower = Condition::If(Filter::Compare(CREATED_AT.into(), Compare::Less, Value::BigInt(until_ms)));
        for condition in [Condition::NotExists, lower] {
            match self.storage.mutate(&[put.clone().when(condition)], Durability::Always) {
                Ok(done) => return Ok(done.wait().map_err(MapError::from)?),
                Err(MapError::ConditionFailed { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Removes the records of before `until_ms` that no client needs any more. Returns their number.
    pub(crate) fn forget(&self, until_ms: i64) -> Result<u64> {
        self.raise_forgotten(until_ms)?;
        let mut scan = Scan::new(&self.table, Over::All);
        let mut removed = 0;
        loop {
            let page = self.storage.scan(&scan)?;
            for record in page.records {
                let Some(Value::Text(id)) = record.value(ID) else { continue };
                let decision = self.decision(&record)?;
                if id != FORGOTTEN && !decision.by_others && decision.at_ms < until_ms {
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

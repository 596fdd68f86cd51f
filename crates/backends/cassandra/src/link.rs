//! The link to the cluster: one session of the driver, statements prepared once, and what its errors mean to a writer.
//!
//! statement and values → [`Link::page`], [`Link::conditional`] → rows, or a [`Fault`]
//!
//! The driver is asynchronous and our callers are not: what they ask is done on their threads, with a runtime of the
//! process behind it ([`ask`]).
//!
//! Invariants:
//! 1. A conditional write is sent once. The driver tries reads again, never those.
//! 2. An error after which it is not certain that nothing was written is [`Fault::Unknown`].

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::errors::{DbError, ExecutionError, PrepareError, RequestAttemptError};
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::response::PagingState;
use scylla::response::query_result::QueryResult;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency};
use scylla::value::{CqlValue, Row};
use tokio::runtime::Runtime;

use crate::cql::{Cell, Cells, text};
use crate::options::Options;
use crate::place::Place;
use crate::{Error, Result};

/// Threads that talk to clusters, in a process.
const THREADS: usize = 2;
/// Statements that are kept prepared; beyond that all are forgotten.
const PREPARED_MAX: usize = 4_096;

fn runtime() -> std::io::Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let made = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("esker-cassandra")
        .enable_all()
        .build()?;
    Ok(RUNTIME.get_or_init(|| made))
}

/// Does `future` on this thread, with timers and sockets of the process's runtime. Callers may be in a runtime of their
/// own.
pub(crate) fn ask<T>(future: impl Future<Output = T>) -> std::io::Result<T> {
    let _entered = runtime()?.enter();
    // A caller in a task of its own has a budget of steps there, which is not ours to use up.
    Ok(pollster::block_on(tokio::task::unconstrained(future)))
}

/// What became of a request that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The statement makes no sense (any more), or is not allowed: nothing was done.
    Refused(String),
    /// No server could do it: nothing was done.
    Unavailable(String),
    /// It may have been done, or be done later.
    Unknown(String),
}

impl Fault {
    fn of_attempt(error: &RequestAttemptError) -> Self {
        let said = error.to_string();
        match error {
            RequestAttemptError::DbError(error, _) => match error {
                DbError::SyntaxError
                | DbError::Invalid
                | DbError::AlreadyExists { .. }
                | DbError::AuthenticationError
                | DbError::Unauthorized
                | DbError::ConfigError
                | DbError::FunctionFailure { .. }
                | DbError::Unprepared { .. }
                | DbError::ProtocolError => Self::Refused(said),
                DbError::Unavailable { .. } | DbError::IsBootstrapping => Self::Unavailable(said),
                _ => Self::Unknown(said),
            },
            RequestAttemptError::SerializationError(_) | RequestAttemptError::CqlRequestSerialization(_) => {
                Self::Refused(said)
            }
            RequestAttemptError::UnableToAllocStreamId => Self::Unavailable(said),
            _ => Self::Unknown(said),
        }
    }
}

impl From<&PrepareError> for Fault {
    fn from(error: &PrepareError) -> Self {
        match error {
            PrepareError::AllAttemptsFailed { first_attempt } => match Self::of_attempt(first_attempt) {
                // To prepare changes nothing.
                Self::Unknown(said) => Self::Unavailable(said),
                other => other,
            },
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl From<ExecutionError> for Fault {
    fn from(error: ExecutionError) -> Self {
        let said = error.to_string();
        match &error {
            ExecutionError::BadQuery(_) => Self::Refused(said),
            ExecutionError::EmptyPlan | ExecutionError::ConnectionPoolError(_) => Self::Unavailable(said),
            ExecutionError::PrepareError(error) => error.into(),
            ExecutionError::LastAttemptError(error) => Self::of_attempt(error),
            _ => Self::Unknown(said),
        }
    }
}

/// How a read is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    One,
    Quorum,
    Serial,
}

/// A part of a result, and where it goes on.
pub(crate) struct Rows {
    pub rows: Vec<Cells>,
    pub next: Option<Vec<u8>>,
}

pub(crate) struct Link {
    session: Session,
    prepared: Mutex<HashMap<String, PreparedStatement>>,
    timeout: Duration,
}

fn rows(result: QueryResult) -> std::result::Result<Vec<Cells>, Fault> {
    let odd = |error: &dyn std::fmt::Display| Fault::Unknown(format!("an answer that is not understood: {error}"));
    if !result.is_rows() {
        return Ok(Vec::new());
    }
    let rows = result.into_rows_result().map_err(|error| odd(&error))?;
    let all = rows.rows::<Row>().map_err(|error| odd(&error))?;
    all.map(|row| row.map(|row| row.columns).map_err(|error| odd(&error))).collect()
}

impl Link {
    pub async fn connect(place: &Place, options: &Options) -> Result<Self> {
        let mut builder = SessionBuilder::new()
            .known_nodes(&place.nodes)
            .connection_timeout(options.timeout)
            .schema_agreement_timeout(options.timeout.max(Duration::from_secs(30)))
            // Nothing here asks for the driver's picture of tables.
            .fetch_schema_metadata(false);
        if let Some((user, password)) = &options.user {
            builder = builder.user(user, password);
        }
        let session = builder
            .build()
            .await
            .map_err(|error| Error::Unreachable { nodes: place.nodes.join(","), why: error.to_string() })?;
        Ok(Self { session, prepared: Mutex::default(), timeout: options.timeout })
    }

    /// The nodes of the cluster, as far as they are known.
    pub fn nodes(&self) -> usize {
        self.session.get_cluster_state().get_nodes_info().len()
    }

    async fn prepare(&self, cql: &str) -> std::result::Result<PreparedStatement, Fault> {
        if let Some(prepared) = self.prepared.lock().get(cql) {
            return Ok(prepared.clone());
        }
        let mut prepared = self.session.prepare(cql).await.map_err(|error| Fault::from(&error))?;
        prepared.set_request_timeout(Some(self.timeout));
        let mut kept = self.prepared.lock();
        if kept.len() >= PREPARED_MAX {
            kept.clear();
        }
        kept.insert(cql.to_owned(), prepared.clone());
        Ok(prepared)
    }

    /// Reads at most `size` rows of a statement's result, from the beginning or from where an earlier part ended.
    pub async fn page(
        &self,
        cql: &str,
        values: Vec<Cell>,
        read: Read,
        size: usize,
        from: Option<&[u8]>,
    ) -> std::result::Result<Rows, Fault> {
        let mut prepared = self.prepare(cql).await?;
        prepared.set_consistency(match read {
            Read::One => Consistency::One,
            Read::Quorum => Consistency::Quorum,
            Read::Serial => Consistency::Serial,
        });
        prepared.set_is_idempotent(true);
        prepared.set_page_size(size.clamp(1, i32::MAX as usize) as i32);
        let state = from.map_or_else(PagingState::start, PagingState::new_from_raw_bytes);
        let (result, state) = self.session.execute_single_page(&prepared, values, state).await.map_err(Fault::from)?;
        let next = match state.into_paging_control_flow() {
            std::ops::ControlFlow::Break(()) => None,
            std::ops::ControlFlow::Continue(state) => state.as_bytes_slice().map(|bytes| bytes.to_vec()),
        };
        Ok(Rows { rows: rows(result)?, next })
    }

    /// Does conditional writes of one partition as one lightweight transaction; whether they were applied.
    pub async fn conditional(&self, writes: Vec<(String, Vec<Cell>)>) -> std::result::Result<bool, Fault> {
        let result = if let [(cql, values)] = &writes[..] {
            let mut prepared = self.prepare(cql).await?;
            prepared.set_consistency(Consistency::Quorum);
            prepared.set_serial_consistency(Some(SerialConsistency::Serial));
            prepared.set_retry_policy(Some(Arc::new(FallthroughRetryPolicy)));
            self.session.execute_unpaged(&prepared, values.clone()).await
        } else {
            let mut batch = Batch::new(BatchType::Unlogged);
            batch.set_consistency(Consistency::Quorum);
            batch.set_serial_consistency(Some(SerialConsistency::Serial));
            batch.set_retry_policy(Some(Arc::new(FallthroughRetryPolicy)));
            batch.set_request_timeout(Some(self.timeout));
            let mut all = Vec::with_capacity(writes.len());
            for (cql, values) in writes {
                batch.append_statement(self.prepare(&cql).await?);
                all.push(values);
            }
            self.session.batch(&batch, all).await
        };
        let rows = rows(result.map_err(Fault::from)?)?;
        match rows.first().and_then(|row| row.first()) {
            Some(Some(CqlValue::Boolean(applied))) => Ok(*applied),
            other => Err(Fault::Unknown(format!("an answer that does not say whether it was applied: {other:?}"))),
        }
    }

    /// Changes the schema of the cluster, and waits until all nodes that are up have it.
    pub async fn define(&self, cql: &str) -> std::result::Result<(), Fault> {
        let mut statement = scylla::statement::unprepared::Statement::new(cql);
        statement.set_request_timeout(Some(self.timeout.max(Duration::from_secs(60))));
        self.session.query_unpaged(statement, &[]).await.map(drop).map_err(Fault::from)
    }

    /// Whether all nodes have built an index.
    pub async fn index_is_built(&self, keyspace: &str, index: &str) -> std::result::Result<bool, Fault> {
        const BUILT: &str = "SELECT index_name FROM system.\"IndexInfo\" WHERE table_name = ? AND index_name = ?";
        let nodes = self.session.get_cluster_state();
        for node in nodes.get_nodes_info() {
            let mut prepared = self.prepare(BUILT).await?;
            prepared.set_consistency(Consistency::One);
            prepared.set_is_idempotent(true);
            let target = NodeIdentifier::Node(Arc::clone(node));
            prepared.set_load_balancing_policy(Some(SingleTargetLoadBalancingPolicy::new(target, None)));
            let values = vec![text(keyspace), text(index)];
            let result = self.session.execute_unpaged(&prepared, values).await.map_err(Fault::from)?;
            if rows(result)?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use scylla::errors::WriteType;

    use super::*;

    #[test]
    fn an_error_after_which_it_may_have_been_written_is_unknown() {
        let db = |error| Fault::from(ExecutionError::from(RequestAttemptError::DbError(error, String::new())));
        let consistency = Consistency::Quorum;
        let timeout = DbError::WriteTimeout { consistency, received: 1, required: 2, write_type: WriteType::Cas };
        assert!(matches!(db(timeout), Fault::Unknown(_)));
        let read = DbError::ReadTimeout { consistency, received: 1, required: 2, data_present: false };
        assert!(matches!(db(read), Fault::Unknown(_)));
        assert!(matches!(db(DbError::ServerError), Fault::Unknown(_)));
        // What newer servers call an unknown outcome of a conditional write.
        assert!(matches!(db(DbError::Other(0x1700)), Fault::Unknown(_)));
        assert!(matches!(Fault::from(ExecutionError::RequestTimeout(Duration::from_secs(1))), Fault::Unknown(_)));
        assert!(matches!(db(DbError::Unavailable { consistency, required: 2, alive: 1 }), Fault::Unavailable(_)));
        assert!(matches!(Fault::from(ExecutionError::EmptyPlan), Fault::Unavailable(_)));
        assert!(matches!(db(DbError::Invalid), Fault::Refused(_)));
    }
}

//! One session with ZooKeeper, made anew when it has ended; and calls over it, each with an end.
//!
//! call → session there? connected? (made or waited for) → request → answer, a refusal, or an error, in time
//!
//! A request that was handed to the session and not answered may be carried out later, when the connection is back: so
//! none is handed over while there is no connection, and where the answer to a write does not come, the error is
//! [`Error::Unknown`]. A new session is made only once the old one has ended, so that nothing that waits in the old one
//! overtakes the new.
//!
//! Invariant: a call ends by its deadline.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use zookeeper_client as zk;

use crate::error::{Error, Result};
use crate::location::Location;

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// After how long without a word ZooKeeper ends the session, and with it the manager's office. ZooKeeper keeps it
    /// within 2 and 20 of its ticks.
    pub session: Duration,
    /// How long a call may take in all; half the period of leases is a good bound.
    pub call: Duration,
}

/// Shared by the clones of a coordinator.
#[derive(Clone)]
pub(crate) struct Session(Arc<Inner>);

struct Inner {
    location: Location,
    options: Options,
    attempt: Mutex<Option<Attempt>>,
}

/// What became of connecting: nothing yet, a session, or an error. It goes on when the call that began it has ended, so
/// that a slow one is not begun again and again.
type Attempt = watch::Receiver<Option<std::result::Result<zk::Client, zk::Error>>>;

/// One call, over a session that was connected when it began.
pub(crate) struct Call {
    pub client: zk::Client,
    session: Session,
    deadline: Instant,
}

/// What ZooKeeper says of a node that is not as the request has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Absent,
    Exists,
    OtherVersion,
}

impl Session {
    pub fn new(location: Location, options: Options) -> Self {
        Self(Arc::new(Inner { location, options, attempt: Mutex::new(None) }))
    }

    pub fn location(&self) -> &Location {
        &self.0.location
    }

    /// Begins a call: its time runs from now.
    pub async fn call(&self) -> Result<Call> {
        self.call_until(self.deadline()).await
    }

    /// When a call that begins now has to end.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.0.options.call
    }

    /// Begins a call, which ends at `deadline`.
    pub async fn call_until(&self, deadline: Instant) -> Result<Call> {
        match timeout_at(deadline, self.connected()).await {
            Ok(Ok(client)) => Ok(Call { client, session: self.clone(), deadline }),
            Ok(Err(error)) => Err(self.unreachable(&error.to_string())),
            Err(_) => Err(self.unreachable("there is no connection")),
        }
    }

    /// The session, as soon as it is connected.
    async fn connected(&self) -> std::result::Result<zk::Client, zk::Error> {
        loop {
            let client = self.current().await?;
            let mut watcher = client.state_watcher();
            let mut state = watcher.state();
            while !state.is_terminated() {
                if state == zk::SessionState::SyncConnected {
                    return Ok(client);
                }
                state = watcher.changed().await;
            }
        }
    }

    /// The session that has not ended; a new one where there is none.
    async fn current(&self) -> std::result::Result<zk::Client, zk::Error> {
        let mut attempt = self.attempt();
        let outcome = attempt.wait_for(Option::is_some).await.map_err(|_| zk::Error::ClientClosed)?;
        outcome.clone().unwrap_or(Err(zk::Error::ClientClosed))
    }

    /// The attempt that is under way or whose session has not ended; a new one where there is none.
    fn attempt(&self) -> Attempt {
        let mut held = self.0.attempt.lock();
        if let Some(attempt) = &*held {
            let usable = match &*attempt.borrow() {
                // Its task is gone where the runtime was that it ran in.
                None => attempt.has_changed().is_ok(),
                Some(Ok(client)) => !client.state().is_terminated(),
                Some(Err(_)) => false,
            };
            if usable {
                return attempt.clone();
            }
        }
        let connector = zk::Client::connector().with_session_timeout(self.0.options.session);
        let (told, attempt) = watch::channel(None);
        let servers = self.0.location.servers();
        tokio::spawn(async move {
            let outcome = connector.connect(&servers).await;
            // No coordinator may be left that waits for it.
            let _ = told.send(Some(outcome));
        });
        held.insert(attempt).clone()
    }

    fn unreachable(&self, reason: &str) -> Error {
        let (location, bound) = (self.0.location.to_string(), self.0.options.call);
        Error::Unreachable { location, bound, reason: reason.to_string() }
    }
}

impl Call {
    /// Reads from `node`, or carries out what may as well be carried out twice or later.
    pub async fn read<T>(
        &self,
        node: &str,
        request: impl Future<Output = std::result::Result<T, zk::Error>>,
    ) -> Result<std::result::Result<T, Refusal>> {
        match timeout_at(self.deadline, request).await {
            Ok(Ok(answer)) => Ok(Ok(answer)),
            Ok(Err(error)) => match sorted(node, &error) {
                Sorted::Refusal(refusal) => Ok(Err(refusal)),
                Sorted::Final(error) => Err(error),
                Sorted::Lost => Err(self.session.unreachable(&error.to_string())),
            },
            Err(_) => Err(self.session.unreachable("no answer came")),
        }
    }

    /// Writes `node`.
    pub async fn write<T>(
        &self,
        node: &str,
        request: impl Future<Output = std::result::Result<T, zk::Error>>,
    ) -> Result<std::result::Result<T, Refusal>> {
        match timeout_at(self.deadline, request).await {
            Ok(Ok(answer)) => Ok(Ok(answer)),
            Ok(Err(error)) => match sorted(node, &error) {
                Sorted::Refusal(refusal) => Ok(Err(refusal)),
                Sorted::Final(error) => Err(error),
                Sorted::Lost => Err(unknown(node, &error.to_string())),
            },
            Err(_) => Err(unknown(node, "no answer came in time")),
        }
    }

    /// Writes all or nothing, `node` among it. The refusal is that of the step with this number, from 0.
    pub async fn multi(
        &self,
        node: &str,
        writer: &mut zk::MultiWriter<'_>,
    ) -> Result<std::result::Result<(), (usize, Refusal)>> {
        let mut at = 0;
        let commit = writer.commit();
        let request = async {
            commit.await.map(|_| ()).map_err(|error| match error {
                zk::MultiWriteError::OperationFailed { index, source } => {
                    at = index;
                    source
                }
                zk::MultiWriteError::RequestFailed { source } => source,
            })
        };
        let answer = self.write(node, request).await?;
        Ok(answer.map_err(|refusal| (at, refusal)))
    }

    /// Creates `node` and those above it where they are absent, each empty.
    pub async fn ensure(&self, node: &str) -> Result<()> {
        match self.write(node, self.client.mkdir(node, &persistent())).await? {
            Ok(()) => Ok(()),
            Err(refusal) => Err(Error::Refused { node: node.to_string(), reason: format!("{refusal:?}") }),
        }
    }
}

/// How all nodes are created but the manager's.
pub(crate) fn persistent() -> zk::CreateOptions<'static> {
    zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all())
}

/// A request that could not be put together: a path that ZooKeeper would not take.
pub(crate) fn unsent(node: &str, error: &zk::Error) -> Error {
    Error::Refused { node: node.to_string(), reason: error.to_string() }
}

enum Sorted {
    Refusal(Refusal),
    Final(Error),
    Lost,
}

fn sorted(node: &str, error: &zk::Error) -> Sorted {
    match error {
        zk::Error::NoNode => Sorted::Refusal(Refusal::Absent),
        zk::Error::NodeExists => Sorted::Refusal(Refusal::Exists),
        zk::Error::BadVersion => Sorted::Refusal(Refusal::OtherVersion),
        zk::Error::NoAuth
        | zk::Error::InvalidAcl
        | zk::Error::QuotaExceeded
        | zk::Error::Unimplemented
        | zk::Error::BadArguments(_)
        | zk::Error::NoChildrenForEphemerals
        | zk::Error::NotReadOnly => Sorted::Final(unsent(node, error)),
        _ => Sorted::Lost,
    }
}

fn unknown(node: &str, reason: &str) -> Error {
    Error::Unknown { node: node.to_string(), reason: reason.to_string() }
}

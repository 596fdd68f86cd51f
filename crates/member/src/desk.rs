//! Who answers for the chains that this server heads, where servers of other chains ask.
//!
//! [`Desk::set`] at the beginning and end of each term as head → [`Desk::of`] of a chain → what answers
//!
//! Invariant: a server answers for a chain only while it heads it, and only to servers of its own cluster.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tonic::Status;

/// What answers, by chain.
pub(crate) struct Desk<T: ?Sized> {
    cluster: String,
    answers: RwLock<HashMap<String, Arc<T>>>,
}

impl<T: ?Sized> Desk<T> {
    /// Of this cluster.
    pub(crate) fn new(cluster: &str) -> Arc<Self> {
        Arc::new(Self { cluster: cluster.to_owned(), answers: RwLock::default() })
    }

    /// From now on this one answers for the chain; `None`: none does.
    pub(crate) fn set(&self, chain: &str, answers: Option<Arc<T>>) {
        let mut all = self.answers.write();
        match answers {
            Some(answers) => drop(all.insert(chain.to_owned(), answers)),
            None => drop(all.remove(chain)),
        }
    }

    /// What answers for a chain: `FAILED_PRECONDITION` where nothing does.
    pub(crate) fn of(&self, chain: &str) -> Result<Arc<T>, Status> {
        let answers = self.answers.read().get(chain).cloned();
        answers.ok_or_else(|| {
            Status::failed_precondition(format!("this server does not answer for the chain {chain} now"))
        })
    }

    /// Refuses a server of another cluster.
    pub(crate) fn check(&self, cluster: &str) -> Result<(), Status> {
        if cluster == self.cluster {
            return Ok(());
        }
        Err(Status::failed_precondition(format!("this is the cluster {}, and not {cluster}", self.cluster)))
    }
}

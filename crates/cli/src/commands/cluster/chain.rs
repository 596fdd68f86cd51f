//! The chain that a command is about, and words for what becomes of it.

use std::time::Duration;

use esker_chain::Place;
use esker_cluster::Coordinator;

use crate::exit::{Code, Failure};

/// Most servers of a chain.
pub const SERVERS_MAX: usize = 5;

/// A chain, and the coordinator that knows of it.
pub struct Chain {
    /// Who decides which servers are in it.
    pub coordinator: Coordinator,
    /// Its name.
    pub name: String,
    /// How long a lease lasts.
    pub lease: Duration,
}

/// What an error of the coordinator means for a command.
pub fn failure(error: esker_cluster::Error) -> Failure {
    let code = match &error {
        esker_cluster::Error::Exists(_) | esker_cluster::Error::Name(_) => Code::Usage,
        esker_cluster::Error::NoChain(_) => Code::NotFound,
        esker_cluster::Error::Unknown { .. } => Code::Unknown,
        _ => Code::Failure,
    };
    Failure::of(code, &error)
}

/// The word for how a server stands.
pub fn word(place: Option<Place>) -> &'static str {
    match place {
        Some(Place::Serving) => "serving",
        Some(Place::Syncing) => "syncing",
        Some(Place::Waiting) => "waiting",
        Some(Place::Offline) => "offline",
        Some(Place::LastServing) => "last serving",
        None => "no member",
    }
}

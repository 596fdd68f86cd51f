//! A chain as the commands about it see it, and the words for how its servers stand.
//!
//! coordinator, name → each command
//!
//! Invariant: what the coordinator refuses keeps its reason, and has an exit code by what a script does about it.

use std::time::Duration;

use esker_chain::Place;
use esker_cluster::Coordinator;

use crate::exit::{Code, Failure};

/// Most servers of a chain.
pub(super) const SERVERS_MAX: usize = 5;

/// A chain, and the coordinator that knows of it.
pub(super) struct Chain {
    /// Where its table stands.
    pub(super) coordinator: Coordinator,
    /// What it is called.
    pub(super) name: String,
    /// How long a lease lasts.
    pub(super) lease: Duration,
}

/// What the coordinator said, with its exit code.
pub(super) fn failure(error: esker_cluster::Error) -> Failure {
    let code = match &error {
        esker_cluster::Error::Exists(_) | esker_cluster::Error::SlotsExist | esker_cluster::Error::Name(_) => {
            Code::Usage
        }
        esker_cluster::Error::NoChain(_) | esker_cluster::Error::NoSlots => Code::NotFound,
        esker_cluster::Error::Unknown { .. } => Code::Unknown,
        _ => Code::Failure,
    };
    Failure::of(code, &error)
}

/// The word for how a server stands.
pub(super) fn word(place: Option<Place>) -> &'static str {
    match place {
        Some(Place::Serving) => "serving",
        Some(Place::Syncing) => "syncing",
        Some(Place::Waiting) => "waiting",
        Some(Place::Offline) => "offline",
        Some(Place::LastServing) => "last serving",
        None => "no member",
    }
}

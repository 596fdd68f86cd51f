//! Chains of replicas in virtual time: servers, streams, stores, clients, and what goes wrong with them, by seed.
//!
//! ```text
//! seed → Setting → World: clients → replicas ↔ replicas · managers → coordinator ← servers · faults
//!      → acknowledged order, histories, counts, trace → checked at each change, and once all is quiet
//! ```
//!
//! Replicas, leases and what managers make of them are the code itself (`esker_chain::Replica`, `Lease`,
//! `esker_cluster::Sight`); what nodes, members and peers do around it is written down again here, as events. Each
//! chain has a coordinator of its own, since a server registers once there.
//!
//! What it leaves out: that copies move only what differs, and that stores do more than append.
//!
//! Invariant: the same setting gives the same trace.

#![forbid(unsafe_code)]

mod checks;
mod clients;
mod coordinator;
mod counts;
mod disk;
mod faults;
mod history;
mod managing;
mod membership;
mod network;
mod operation;
mod serving;
mod setting;
mod slot;
mod world;

pub use counts::Counts;
pub use history::{Asked, History, Looked};
pub use operation::Write;
pub use setting::{Breakage, Fault, MS, Micros, SECOND, Setting};
pub use world::World;

/// Runs a setting to its end: what was counted, and the digest of what happened.
///
/// # Errors
/// The promise that was found broken.
pub fn run(setting: Setting) -> Result<(Counts, u64), String> {
    let mut world = World::new(setting, None);
    world.run();
    match world.violation() {
        Some(violation) => Err(violation.to_owned()),
        None => Ok((world.counts().clone(), world.trace())),
    }
}

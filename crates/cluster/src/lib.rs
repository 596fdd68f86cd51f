//! What the servers of replicated chains and their manager agree upon, kept in ZooKeeper.
//!
//! ```text
//! server:  register → incarnation; renew (only under the table that it goes by) → lease; table → what it does
//! manager: sync → tables, leases, in step → next table → one multi: leases stand, table is the same → set
//! ```
//!
//! [`Location`] → [`Coordinator`] → nodes below one root; [`Manager`] → [`Coordinator::change`]
//!
//! Nothing here is on the way of a write. Only persistent nodes decide: the one ephemeral node says which server takes
//! the trouble to manage, and two that think they do are no danger to each other.
//!
//! Invariants:
//! 1. A table is taken only in place of the one before it, and only while each renewal that its maker counted upon is
//!    the last of its server.
//! 2. A renewal is taken only while the table is the one that its server goes by, and from the start of the server that
//!    has registered last.
//! 3. No call hangs: it ends within [`Options::call`], and [`Error::Unknown`] says that a write may yet be carried out.

#![forbid(unsafe_code)]

mod changes;
mod coordinator;
mod error;
mod location;
mod manage;
mod records;
mod registry;
mod session;
mod sight;
mod slots;

pub use changes::Changes;
pub use coordinator::{Coordinator, First, Freshness, Renewed, Standing};
pub use error::{Error, Result};
pub use location::{Location, LocationError};
pub use manage::{Manager, Seen, SeenChain};
pub use records::{LeaseRecord, Progress, Served, ServerRecord, TableStamp, WishesStamp};
pub use registry::{Instance, InstanceChanges, InstanceError, Instances, check_service};
pub use session::Options;
pub use sight::{Proposal, Sight, View};
pub use slots::{ChainSlots, Due, SLOTS, Slots};

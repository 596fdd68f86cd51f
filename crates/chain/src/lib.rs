//! Chain replication: a store on several machines, whose every acknowledged write is on all of them.
//!
//! ```text
//! writer → head: guards, order → operation → next → … → tail
//!              ← acknowledged: durable there and on all behind it ←
//! manager: who is heard of → next table → the coordinator compares and sets it → replicas
//! ```
//!
//! [`Replica::step`] (event) → effects that its [`Node`] carries out
//! [`next_table`] (table, who is heard of) → table
//! [`copy::bring_up`] (store, source) → the store holds what the source holds
//!
//! What a replica does, what the manager changes and when a lease has run out are pure steps: no clock, no socket, no
//! store. The same code runs in the model checker (`esker-models`) and in nodes, so that what was explored is what
//! runs; only what readers are told a node decides by object, and the model by number ([`Clean`]). Replication by
//! chains is van Renesse's and Schneider's (OSDI 2004); reads at every replica follow CRAQ (Terrace and Freedman,
//! USENIX 2009); the states of members follow 3FS.
//!
//! Invariants:
//! 1. An acknowledged operation is durable on every serving member of the table in which it was acknowledged, and on
//!    every member that is made serving later.
//! 2. Of two serving members the one nearer to the tail holds a prefix of what the other holds.
//! 3. A member answers only under a lease of the table that it goes by; a table without it is made only once that lease
//!    has run out, or it has given it up.

#![forbid(unsafe_code)]

pub mod copy;
mod dirty;
mod lease;
mod making;
mod manage;
mod node;
mod operation;
mod replica;
mod standing;
mod store;
mod table;
mod wishes;

pub use lease::{Lease, Renewals};
pub use manage::{Heard, next_table};
pub use node::{Copying, Links, Node};
pub use operation::Operation;
pub use replica::{Clean, Effect, Event, Message, Regard, Replica, Weight};
pub use standing::{COLLECTION, Standing};
pub use store::ChainStore;
pub use table::{Incarnation, Member, Place, ServerId, Table};
pub use wishes::Wishes;

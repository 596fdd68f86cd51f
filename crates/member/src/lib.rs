//! A server of a cluster: it is a member of chains, with a store for each, among its peers, under its coordinator.
//!
//! ```text
//! Host::start → Member::join, for each chain → a life: register → node → table, lease, servers, again and
//!            again → taken out → next
//! Pair::start → without a coordinator: a primary, or its standby → a role changes where its store keeps that
//! Host::set_taker, Host::calls → slots of keys go from one chain to another
//! Host::set_answers, Host::ask_keys → keys of one chain, asked for by clients of another
//! Member::view → who heads the chain, how this server stands → the faces are opened where it heads the chain
//! ```
//!
//! Invariants:
//! 1. A node lives for one start: what a table has taken out answers all who wait that they do not know, and its server
//!    comes back as another start with what its store holds.
//! 2. A server whose node has failed renews nothing: it gives its lease up, so that others go on at once.
//! 3. A server that is asked to leave does so as at a planned stop, and is another start after it.
//! 4. A lease counts from before the renewal was sent.

#![forbid(unsafe_code)]

mod asking;
mod desk;
mod error;
mod host;
mod life;
mod member;
mod moving;
pub mod pair;
mod view;

/// What heads of chains send one another: while slots of keys go from one chain to another, and for clients.
pub mod messages {
    pub use esker_wire::proto::chain::{
        AskKeysRequest, AskKeysResponse, BeginMoveRequest, PutKeysRequest, SettleEachSlotRequest, SlotEpoch,
        TakeSlotsRequest,
    };
}

pub use asking::{Answering, AnswersKeys, Unanswered};
pub use error::{Error, Result};
pub use host::{Announced, Host, HostConfig, Wanted};
pub use member::{Config, Member};
pub use moving::{Answer, IsOver, MoveCalls, Takes};
pub use view::{Peer, View};

//! What keeps a server from being a member, or one of a pair.

use crate::pair::Role;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a server is no member of its chain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The coordinator cannot be used, or says no.
    #[error(transparent)]
    Coordinator(#[from] esker_cluster::Error),
    /// Peers cannot be listened to.
    #[error(transparent)]
    Peers(#[from] esker_peers::Error),
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] esker_store::Error),
    /// Another process has registered as this server: end it, or choose another number.
    #[error("another process has registered as server {server}: it is served once")]
    Superseded {
        /// Which.
        server: u32,
    },
    /// The store is another chain's: name that one's, or an empty one.
    #[error("the store of the chain {chain} holds a replica of the chain {other}: each chain has a store of its own")]
    OtherChain {
        /// That it was to be a replica of.
        chain: String,
        /// That it is of.
        other: String,
    },
    /// Its thread panicked, which is a defect of this program: the log says where. Start the process anew.
    #[error("the thread that keeps this server in the chain {chain} panicked")]
    Panicked {
        /// Which.
        chain: String,
    },
    /// This store was a primary's. Make it the standby of the server that took its place.
    #[error(
        "this store's server was deposed: another was promoted, with epoch {epoch}. Make it the standby of that one: \
         esker serve --follow grpc://{}",
        if .by.is_empty() { "HOST:PORT" } else { .by.as_str() }
    )]
    Deposed {
        /// Of the promotion.
        epoch: u64,
        /// Where the new primary is reached, as `HOST:PORT`; empty: not known.
        by: String,
    },
    /// This store is a standby's. Have it follow, or promote it.
    #[error(
        "this store is the standby of grpc://{peer}: serve it with --follow, or make it the primary first: \
         esker standby promote"
    )]
    IsStandby {
        /// Its primary.
        peer: String,
    },
    /// What the store holds is part of a copy. Let it be brought up first.
    #[error(
        "this store holds part of a copy, which is no state of its primary: it cannot be a primary. Have it follow \
         {} until the copy is whole",
        if .peer.is_empty() { "one".to_owned() } else { format!("grpc://{peer}") }
    )]
    Part {
        /// Its primary; empty: none.
        peer: String,
    },
    /// Only a standby is promoted.
    #[error("only a standby is promoted: this server is {}, with epoch {epoch}", role.word())]
    NotStandby {
        /// What it is.
        role: Role,
        /// Its epoch.
        epoch: u64,
    },
    /// This store was a primary's. Promote the standby, or insist.
    #[error(
        "this store was a primary's, and another was promoted over it, with epoch {epoch}. It has everything that it \
         acknowledged: --force makes it the primary again, and what the other has acknowledged since is lost"
    )]
    WasPrimary {
        /// Of the promotion.
        epoch: u64,
    },
    /// The primary was killed, or changed beside its pair, since the standby had its state from it. Let it be brought
    /// up, or insist.
    #[error(
        "the primary has begun anew since this standby had its state from it, or was changed without it: what this one \
         lacks of it is not known. Let it follow until the copy is whole, or go on with --force: {cost}"
    )]
    OtherLife {
        /// What insisting may cost.
        cost: String,
    },
    /// Another store of the pair was promoted before. Follow that one, or insist.
    #[error(
        "another store of this pair was promoted already, with epoch {epoch}: have this one follow that. --force \
         promotes this one with a higher epoch, and what the other has acknowledged is lost"
    )]
    Promoted {
        /// Of that promotion.
        epoch: u64,
    },
    /// The primary has more. Have it send that, or insist.
    #[error("this standby lacks {lacks} operations of its primary: let it catch up, or give them up with --force")]
    Lacks {
        /// How many.
        lacks: u64,
    },
    /// The primary was not told. Tell it, or insist.
    #[error("the primary was not told to answer no more{why}. If it is gone for good, --force goes on: {cost}")]
    NotFenced {
        /// Why not, with what leads up to it; empty: it was not to be.
        why: String,
        /// What insisting may cost.
        cost: String,
    },
    /// The server that is to be followed is of another pair.
    #[error(
        "grpc://{address} is the primary of another pair than this store is of: --replace puts what it holds in the \
         place of what is here"
    )]
    OtherPair {
        /// Where it is.
        address: String,
    },
    /// This store is a primary's, and the server that it is to follow was not promoted over it.
    #[error(
        "this store is a primary's, with epoch {epoch}, and grpc://{address} has epoch {theirs}: it was not promoted \
         over this one. Start this one without --follow, or promote the other; --replace takes what it holds all the \
         same"
    )]
    Newer {
        /// That of this store.
        epoch: u64,
        /// That of the other.
        theirs: u64,
        /// Where the other is.
        address: String,
    },
    /// The store holds what was never of the pair.
    #[error(
        "this store holds data and was never a standby: --replace puts what grpc://{address} holds in the place of it"
    )]
    Holds {
        /// The primary.
        address: String,
    },
    /// Writes of this store are acknowledged only with a standby.
    #[error(
        "this store's primary acknowledges nothing without its standby: serve it with --standby sync, or with \
         --standby async, which ends that, or end its pair first: esker standby release --store PATH"
    )]
    InStep,
    /// This store is a primary's, and the other of its pair may be promoted, or answer still. Serve it as one of a
    /// pair, or dissolve that.
    #[error(
        "this store is the primary's of a pair, the other of which is grpc://{peer}: serve it with --standby async or \
         --standby sync, or end the pair first: esker standby release --store PATH"
    )]
    Paired {
        /// The other.
        peer: String,
    },
    /// Threads cannot be had. Try again.
    #[error("starting the threads of a member: {0}")]
    Io(#[from] std::io::Error),
}

//! The bounds of the model, and what is broken on purpose.

/// Most servers.
pub const SERVERS_MAX: usize = 3;

/// The bounds of what is explored, and what is broken on purpose.
#[derive(Clone, Copy, Debug)]
pub struct ChainModel {
    /// Servers, all of them members at first.
    pub servers: u8,
    /// Operations that writers want done, each once.
    pub operations: u8,
    /// The last version of the table.
    pub versions: u64,
    /// Starts of servers, beside the first.
    pub restarts: u8,
    /// Connections that break while something is on its way.
    pub cuts: u8,
    /// Leases that run out.
    pub expiries: u8,
    /// Operations that a member keeps, at most, for one that is being brought up.
    pub kept_max: usize,
    /// What is wrong.
    pub breakage: Option<Flaw>,
}

/// A way in which the protocol can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Replicas take messages of any version of the table.
    AnyVersion,
    /// The manager takes a server for gone whose lease has not run out: as if an ephemeral node were a fence.
    EphemeralFence,
    /// Replicas answer without a lease.
    NoLease,
    /// A server that was started again goes on as the member that it was.
    OldStart,
    /// Where the last that served is gone, another takes its place.
    StaleServes,
    /// What is not known to be acknowledged is dropped at a change.
    Forgets,
    /// A copy is told to be newer than it is.
    OldCopy,
    /// A writer that tries again is not recognised.
    NoOutcomes,
    /// Readers are told what is not acknowledged.
    DirtyReads,
    /// A member serves before it is in step.
    NotInStep,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::AnyVersion,
        Self::EphemeralFence,
        Self::NoLease,
        Self::OldStart,
        Self::StaleServes,
        Self::Forgets,
        Self::OldCopy,
        Self::NoOutcomes,
        Self::DirtyReads,
        Self::NotInStep,
    ];
}

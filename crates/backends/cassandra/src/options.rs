//! What callers say when they open a map on Cassandra, and how recent what they read has to be.

use std::time::Duration;

/// How a map on Cassandra is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Copies of each row, for keyspaces that are made; 0 (the default): one on each node, up to 3.
    pub replication: u32,
    /// How long an answer is waited for. 10 s by default.
    pub timeout: Duration,
    /// How much longer Cassandra keeps rows that expired or were deleted (their version, in the latter case): longer
    /// than clocks differ, and than a request may be under way. 1 h by default, at least 1 s.
    pub forget: Duration,
    /// User and password, where the cluster asks for them.
    pub user: Option<(String, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Self { replication: 0, timeout: Duration::from_secs(10), forget: Duration::from_secs(3_600), user: None }
    }
}

/// Random bytes that a storage needs when it is opened.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    /// The key of page tokens, if the catalogue has none yet.
    pub secret: [u8; 32],
    /// What tells the writes of this handle from those of others: never the same for two.
    pub handle: [u8; 8],
}

/// How recent what is read has to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// Whatever one replica has (`ONE`).
    Eventual,
    /// Everything that was acknowledged (`QUORUM`).
    #[default]
    Acknowledged,
    /// That too, and of one row or partition also what was under way is finished first (`SERIAL`). Other scans are as
    /// [`Consistency::Acknowledged`].
    Serial,
}

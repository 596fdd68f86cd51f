//! Where a server listens, as the registry names it.
//!
//! `HOST:PORT` of an instance → address → what a connection is made to
//!
//! Invariant: what is displayed resolves, also where the host is an address of IPv6.

use std::fmt;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Its name or address; one of IPv6 stands in brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

//! What the servers of `esker serve` share: addresses as people write them, failures as exit codes.

use std::net::{SocketAddr, ToSocketAddrs};

use esker_server::resp::Error;

use crate::exit::{Code, Failure};

/// Addresses as they are written, looked up.
pub fn addresses(texts: &[String]) -> Result<Vec<SocketAddr>, Failure> {
    let mut addresses = Vec::new();
    for text in texts {
        let found = text.to_socket_addrs().map_err(|error| {
            Failure::usage(format!(
                "address {text:?}: {error}; expected HOST:PORT such as 127.0.0.1:6379 or [::1]:6379"
            ))
        })?;
        addresses.extend(found);
    }
    Ok(addresses)
}

pub(super) fn failure(error: Error) -> Failure {
    match error {
        Error::Kv(error) => error.into(),
        Error::Store(error) => error.into(),
        Error::Config(_) | Error::NoPassword(_) | Error::Tls { .. } => Failure::of(Code::Usage, &error),
        error => Failure::of(Code::Failure, &error),
    }
}

//! Random bytes for secrets, from the operating system.

use std::io;

/// Fills `bytes`.
pub(crate) fn fill(bytes: &mut [u8]) -> io::Result<()> {
    getrandom::fill(bytes).map_err(|error| io::Error::other(format!("no random bytes: {error}")))
}

/// A token for a client of gRPC, and its hash as the users file wants it.
///
/// # Errors
/// Where the operating system has no random bytes.
pub fn token() -> io::Result<(String, String)> {
    let mut bytes = [0; 32];
    fill(&mut bytes)?;
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let token = hex(&bytes);
    let hash = format!("sha256:{}", hex(&super::users::digest(token.as_bytes())));
    Ok((token, hash))
}

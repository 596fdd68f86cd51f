//! A process from its first life to its last.
//!
//! turn → live → killed, or left without an answer: live again · done, or a promise is broken: gone
//!
//! Invariant: a process that is gone has given its turn to the others.

use crate::shared::baton::{Baton, Gone};

/// Lives as process `me` until `live` says that it is done. It says `false` if the store did not let it begin; then,
/// and when it was killed, it lives again. The first promise that it finds broken goes to `broken`, and stops all
/// processes.
pub(crate) fn inhabit(
    baton: &Baton,
    me: usize,
    mut live: impl FnMut() -> Result<bool, String>,
    broken: impl Fn(String),
) {
    baton.enter(me);
    while !baton.stopped() {
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut live)) {
            Ok(Ok(true)) => break,
            Ok(Ok(false)) => {}
            Ok(Err(why)) => {
                broken(format!("process {me}: {why}"));
                baton.stop();
            }
            // Killed: it begins anew.
            Err(cause) if cause.is::<Gone>() => {}
            Err(_) => {
                broken(format!("process {me} panicked"));
                baton.stop();
            }
        }
    }
    baton.leave(me);
}

//! Memory of calls in a cluster of several chains, by the chain that keeps their keys.
//!
//! a call whose chains are known → its chain's share: its long message, what another chain is to give it → answered
//!
//! Invariants:
//! 1. A call that a chain holds up takes nothing from calls about keys of other chains: neither what they find nor,
//!    once it is whole, what they have sent.
//! 2. One that waits for its share with a long message gives that up after [`MESSAGE_WAIT`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout_at;

use super::encode::Exception;
use super::memory::{ANSWER_BYTES_MAX, UNIT_BYTES, units};
use super::unreadable::MESSAGE_BYTES_MAX;

/// What a share has at least: one message and one answer, each as long as any.
const SHARE_BYTES_MIN: usize = MESSAGE_BYTES_MAX + ANSWER_BYTES_MAX;
/// A whole message waits so long with the memory that those have which are still to come: more than a share takes to
/// turn over where its chain is not held up, and little of the time that such a message waits.
const MESSAGE_WAIT: Duration = Duration::from_secs(5);

/// Whose keys a call is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Whose {
    /// This server's chain.
    Own,
    /// Another one.
    Other(Arc<str>),
    /// Several: they are held up where one of these is.
    Several,
}

/// Memory of calls, apart for each chain that is asked, and for calls about several.
pub(super) struct Shares {
    units_each: usize,
    /// As many as there are chains, and two.
    of: Mutex<HashMap<Whose, Arc<Semaphore>>>,
}

impl Shares {
    /// Beside so much memory of the server's: each share is a quarter of it, of at least [`SHARE_BYTES_MIN`].
    pub(super) fn of(bytes_max: usize) -> Self {
        let bytes = (bytes_max / 4).max(SHARE_BYTES_MIN);
        Self { units_each: bytes.div_ceil(UNIT_BYTES).min(Semaphore::MAX_PERMITS), of: Mutex::default() }
    }

    fn share(&self, whose: &Whose) -> Arc<Semaphore> {
        let mut of = self.of.lock();
        if let Some(share) = of.get(whose) {
            return Arc::clone(share);
        }
        let share = Arc::new(Semaphore::new(self.units_each));
        of.insert(whose.clone(), Arc::clone(&share));
        share
    }

    /// Bytes that are held now.
    pub(super) fn held_bytes(&self) -> usize {
        let held = |share: &Arc<Semaphore>| self.units_each.saturating_sub(share.available_permits());
        self.of.lock().values().map(held).sum::<usize>() * UNIT_BYTES
    }

    /// Memory for so many bytes that are to be found, or as many as there are, once it is there.
    ///
    /// # Errors
    /// It is not, until then.
    pub(super) async fn to_find(
        &self,
        whose: &Whose,
        bytes: usize,
        until: Instant,
    ) -> Result<OwnedSemaphorePermit, Exception> {
        let units = units(bytes).min(u32::try_from(self.units_each).unwrap_or(u32::MAX));
        match timeout_at(until.into(), self.share(whose).acquire_many_owned(units)).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(lacking(whose)),
        }
    }

    /// Memory for a message of so many bytes, which has come and is counted as such until then.
    ///
    /// # Errors
    /// It is not there soon.
    pub(super) async fn to_keep(&self, whose: &Whose, bytes: usize) -> Result<OwnedSemaphorePermit, Exception> {
        self.to_find(whose, bytes, Instant::now() + MESSAGE_WAIT).await
    }
}

fn lacking(whose: &Whose) -> Exception {
    let of = match whose {
        Whose::Own => "this server's chain".to_owned(),
        Whose::Other(chain) => format!("the chain {chain}"),
        Whose::Several => "several chains".to_owned(),
    };
    let why = format!("other clients hold the memory for calls about keys of {of} (thrift_memory)");
    Exception::internal(format!("{why}; nothing was done: try again"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn each_chain_has_a_share_of_its_own() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let shares = Shares::of(0);
            let (b, c) = (Whose::Other("b".into()), Whose::Other("c".into()));
            let all = shares.to_keep(&b, SHARE_BYTES_MIN).await.unwrap();
            let soon = || Instant::now() + Duration::from_millis(20);
            let error = shares.to_find(&b, 1, soon()).await.unwrap_err();
            assert!(error.message.contains("chain b"), "{error:?}");
            for other in [&c, &Whose::Own, &Whose::Several] {
                // More than there is: all of it.
                let held = shares.to_find(other, usize::MAX, soon()).await.unwrap();
                assert_eq!(held.num_permits() * UNIT_BYTES, SHARE_BYTES_MIN);
            }
            assert_eq!(shares.held_bytes(), SHARE_BYTES_MIN);
            drop(all);
            assert!(shares.to_find(&b, 1, soon()).await.is_ok());
            assert_eq!(shares.held_bytes(), 0);
        });
    }
}

//! Calls about keys that this chain keeps, while their slots may go to other chains.
//!
//! call → its slots: closed ones are waited for → done here → what was only read counts if they are still here
//! · else it is another chain's
//!
//! Invariant: what is answered was this chain's when it was done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_kv::{OwnedKey, SLOTS};
use tokio::time::timeout_at;

use super::call::Asked;
use super::encode::{Exception, Given};
use super::ring::{Sharing, Sight, Stand};
use super::service::{KeyService, Stopped};
use crate::resp::SlotRecords;

/// It is looked so much later whether the chains are seen.
const AGAIN: Duration = Duration::from_millis(20);
/// How often a page is read anew where slots came or went meanwhile.
const PAGE_ATTEMPTS: usize = 256;

/// Why nothing is done before the chains were seen.
pub(super) const UNKNOWN: &str = "it is not known yet which chain keeps which keys";

/// What a call has come to.
#[derive(Debug)]
pub(super) enum Kept<T> {
    /// It is done.
    Done(T),
    /// Nothing was done: another chain keeps some of its keys, or will.
    Elsewhere,
}

/// Pairs in the order of keys, of the slots that this chain keeps.
#[derive(Debug)]
pub(super) struct KeptPage {
    pub(super) pairs: Vec<(OwnedKey, Bytes)>,
    /// The last key that was looked at; `None`: there are none behind it.
    pub(super) last: Option<OwnedKey>,
    /// From the first slot to the last.
    pub(super) spans: Vec<(u16, u16)>,
}

/// A slot is closed for longer than a call waits.
fn lasts(slot: Option<u16>) -> Exception {
    let what = slot.map_or("slots of its keys go".into(), |slot| format!("slot {slot} of its keys goes"));
    Exception::internal(format!("{what} to another chain, which lasts; nothing was done: try again"))
}

/// Waits until slots are not closed any more, or `until`; whether they are this chain's, as far as that is known then.
async fn are_here(sharing: &Sharing, slots: &[u16], all: bool, until: Instant) -> Result<bool, Exception> {
    loop {
        match sharing.stand(slots.iter().copied(), all) {
            Stand::Here => return Ok(true),
            Stand::Elsewhere => return Ok(false),
            Stand::Lasts(slot) => return Err(lasts(Some(slot))),
            Stand::Waits(woken) => {
                if timeout_at(until.into(), woken.arrived()).await.is_err() {
                    return Ok(false);
                }
            }
        }
    }
}

/// Whether the same is recorded of these slots.
fn are_as_before(before: &Arc<SlotRecords>, now: &Arc<SlotRecords>, slots: &[u16]) -> bool {
    Arc::ptr_eq(before, now) || slots.iter().all(|slot| before.get(slot) == now.get(slot))
}

impl KeyService {
    /// A call about keys that it names, if this chain keeps all of them; closed slots are waited for `until` then.
    pub(super) async fn run_kept(self: &Arc<Self>, asked: Asked, until: Instant) -> Result<Kept<Given>, Exception> {
        let Some(sharing) = self.sharing() else { return self.run_alone(asked).await.map(Kept::Done) };
        let slots = asked.slots();
        loop {
            let before = sharing.records();
            if !are_here(sharing, &slots, false, until).await? {
                return Ok(Kept::Elsewhere);
            }
            match self.run(asked.clone()).await {
                Ok(given) if asked.writes() => return Ok(Kept::Done(given)),
                // What only reads holds no lock: a slot may have gone meanwhile, and come back.
                Ok(given)
                    if matches!(sharing.stand(slots.iter().copied(), false), Stand::Here)
                        && are_as_before(&before, &sharing.records(), &slots) =>
                {
                    return Ok(Kept::Done(given));
                }
                Err(Stopped::Told(exception)) => return Err(exception),
                Ok(_) | Err(Stopped::Gone) => {}
            }
            if Instant::now() >= until {
                return Ok(Kept::Elsewhere);
            }
        }
    }

    /// A call that goes to no other chain.
    pub(super) async fn run_alone(self: &Arc<Self>, asked: Asked) -> Result<Given, Exception> {
        self.run(asked).await.map_err(|stopped| match stopped {
            Stopped::Told(exception) => exception,
            Stopped::Gone => lasts(None),
        })
    }

    /// A page of the keys that this chain keeps; of no slots where that is not known, or some are closed, `until` then.
    pub(super) async fn page_kept(
        self: &Arc<Self>,
        after: Option<OwnedKey>,
        limit: usize,
        until: Instant,
    ) -> Result<KeptPage, Exception> {
        let whole = vec![(0, (SLOTS - 1) as u16)];
        let Some(sharing) = self.sharing() else {
            let (pairs, last) = self.scan(after, limit).await.map_err(|stopped| match stopped {
                Stopped::Told(exception) => exception,
                Stopped::Gone => lasts(None),
            })?;
            return Ok(KeptPage { pairs, last, spans: whole });
        };
        let none = || Ok(KeptPage { pairs: Vec::new(), last: None, spans: Vec::new() });
        let mut attempts = 0;
        while attempts < PAGE_ATTEMPTS {
            if attempts > 0 && Instant::now() >= until {
                return none();
            }
            if !are_here(sharing, &[], true, until).await? {
                if Instant::now() >= until {
                    return none();
                }
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            attempts += 1;
            let before = (sharing.moving.gate().generation(), sharing.ring.sight());
            let (mut pairs, last) = match self.scan(after.clone(), limit).await {
                Ok(found) => found,
                Err(Stopped::Told(exception)) => return Err(exception),
                // Since it was looked, the chains are not seen any more: that is waited for as before.
                Err(Stopped::Gone) => continue,
            };
            let gate = sharing.moving.gate();
            if gate.is_closed() || before != (gate.generation(), sharing.ring.sight()) {
                continue;
            }
            let keepers = match before.1 {
                Sight::Shared(keepers) => keepers,
                Sight::Alone => return Ok(KeptPage { pairs, last, spans: whole }),
                Sight::Unknown => continue,
            };
            // What was left of an attempt to move it here, or is to be removed, is not this chain's.
            pairs.retain(|(key, _)| keepers.of(key.as_key().slot()).is_none());
            return Ok(KeptPage { pairs, last, spans: keepers.own().map(|own| (own.first, own.last)).collect() });
        }
        Err(lasts(None))
    }
}

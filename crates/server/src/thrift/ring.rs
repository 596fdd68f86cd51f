//! The chains that share the keys of a cluster, and with them the namespace that Thrift serves.
//!
//! key → slot → [`Keepers`] → this chain, unless its slot is going · another chain, whose head is asked
//!
//! Invariants:
//! 1. What changes a key asks while it holds the key's lock; what only reads asks again when it has read.
//! 2. Whether a slot is closed is looked at before whose it is: a slot that has gone is told of before those who wait
//!    for it are woken.

use std::fmt;
use std::sync::Arc;

use esker_kv::{Completion, OwnedKey, SLOTS};
use esker_wire::proto::chain::{AskKeysRequest, AskKeysResponse};

use crate::resp::moving::gate::{Held, Space};
use crate::resp::moving::spaces::bytes_of;
use crate::resp::{Moving, SlotRecords};

/// Slots from the first to the last, and the chain that keeps them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    /// The first slot.
    pub first: u16,
    /// The last slot.
    pub last: u16,
    /// The chain; `None`: that of this server.
    pub chain: Option<Arc<str>>,
}

/// Which chain keeps which slots, as it is known at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keepers(Vec<Keeper>);

impl Keepers {
    /// By slot; `None`: they do not hold each slot once, in order.
    pub fn new(keepers: Vec<Keeper>) -> Option<Self> {
        let mut next = 0;
        for keeper in &keepers {
            if u64::from(keeper.first) != next || keeper.last < keeper.first {
                return None;
            }
            next = u64::from(keeper.last) + 1;
        }
        (next == SLOTS).then_some(Self(keepers))
    }

    /// The chain that keeps a slot; `None`: that of this server.
    pub(super) fn of(&self, slot: u16) -> Option<&Arc<str>> {
        self.0.get(self.0.partition_point(|keeper| keeper.last < slot))?.chain.as_ref()
    }

    /// The slots that the chain of this server keeps.
    pub fn own(&self) -> impl Iterator<Item = &Keeper> {
        self.0.iter().filter(|keeper| keeper.chain.is_none())
    }

    /// All chains that keep some; `None` is that of this server.
    pub(super) fn chains(&self) -> Vec<Option<Arc<str>>> {
        let mut chains: Vec<_> = self.0.iter().map(|keeper| keeper.chain.clone()).collect();
        chains.sort_unstable();
        chains.dedup();
        chains
    }
}

/// What is known of who keeps keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    /// This server's chain keeps all of them.
    Alone,
    /// Several chains do.
    Shared(Arc<Keepers>),
    /// Nothing yet: no key is touched.
    Unknown,
}

/// Why another chain has not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskError {
    /// Nothing was done: it can be asked again.
    NotAsked(String),
    /// It is not known what was done.
    Unknown(String),
}

/// What is on its way from another chain.
pub type Asking = std::pin::Pin<Box<dyn Future<Output = Result<AskKeysResponse, AskError>> + Send>>;

/// The chains that keys are shared with.
pub trait Ring: Send + Sync {
    /// Which chain keeps which slots. Each call asks: it has to be cheap, and must not wait for anything.
    fn sight(&self) -> Sight;

    /// Other chains that have a head and may come to keep slots: they share them with this chain and have none any
    /// more, or are to have some.
    fn beside(&self) -> Vec<Arc<str>>;

    /// Asks the head of a chain, once. `chain` and `cluster` of the request are for it to fill in.
    fn ask(&self, chain: &str, request: AskKeysRequest) -> Asking;
}

/// What a service shares keys by.
#[derive(Clone)]
pub struct Sharing {
    /// The slots that go to other chains and come from them.
    pub moving: Moving,
    /// The chains.
    pub ring: Arc<dyn Ring>,
}

impl fmt::Debug for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharing").field("sight", &self.ring.sight()).finish_non_exhaustive()
    }
}

/// What becomes of a call with keys of some slots.
pub(super) enum Stand {
    /// It is done here.
    Here,
    /// Another chain keeps some of them.
    Elsewhere,
    /// A slot is going: it is looked again when this is there.
    Waits(Completion<()>),
    /// This slot is going, and it is not known how long that takes.
    Lasts(u16),
}

impl Sharing {
    /// What becomes of a call with keys of these slots. `all`: it is about all that this chain keeps.
    pub(super) fn stand(&self, slots: impl Iterator<Item = u16> + Clone, all: bool) -> Stand {
        match self.moving.gate().hold(slots.clone(), all) {
            Some(Held::Wait(woken)) => return Stand::Waits(woken),
            Some(Held::Refused(slot)) => return Stand::Lasts(slot),
            None => {}
        }
        match self.ring.sight() {
            Sight::Alone => Stand::Here,
            Sight::Shared(keepers) if slots.into_iter().all(|slot| keepers.of(slot).is_none()) => Stand::Here,
            Sight::Shared(_) | Sight::Unknown => Stand::Elsewhere,
        }
    }

    /// Notes a key that is put, for those who move its slot.
    pub(super) fn note(&self, key: &OwnedKey) {
        let gate = self.moving.gate();
        if gate.gathers() {
            gate.note(Space::Thrift, || key.as_key().slot(), &bytes_of(key));
        }
    }

    /// What is recorded of slots now.
    pub(super) fn records(&self) -> Arc<SlotRecords> {
        self.moving.gate().records()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper(first: u16, last: u16, chain: Option<&str>) -> Keeper {
        Keeper { first, last, chain: chain.map(Arc::from) }
    }

    #[test]
    fn each_slot_has_one_keeper() {
        let keepers =
            Keepers::new(vec![keeper(0, 9, None), keeper(10, 99, Some("b")), keeper(100, 16_383, None)]).unwrap();
        let of = |slot| keepers.of(slot).map(|chain| &**chain);
        assert_eq!([of(0), of(9), of(10), of(99), of(100), of(16_383)], [None, None, Some("b"), Some("b"), None, None]);
        assert_eq!(keepers.own().map(|own| (own.first, own.last)).collect::<Vec<_>>(), [(0, 9), (100, 16_383)]);
        assert_eq!(keepers.chains(), [None, Some("b".into())]);
        for wrong in [
            vec![],
            vec![keeper(0, 16_382, None)],
            vec![keeper(1, 16_383, None)],
            vec![keeper(0, 9, None), keeper(9, 16_383, None)],
            vec![keeper(0, 16_384, None)],
        ] {
            assert_eq!(Keepers::new(wrong.clone()), None, "{wrong:?}");
        }
    }
}

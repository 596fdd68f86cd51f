//! Slots that go from one chain to another, where several chains share the keys of one cluster.
//!
//! ```text
//! the chain that keeps them                                     the chain that is to
//! gather: keys of the slots, and those that come to be      →   begin: what is left of them there is removed
//! close: a few slots at a time; their commands wait
//! read: keys with their values                              →   put
//!                                                           →   take: they are here, in the next epoch
//! give: keys are removed, the slots are gone; commands are run anew, and redirected
//! the plan is stopped before any has come                   →   give up: what is left of them is removed
//! ```
//!
//! Both write down how it stands ([`SlotRecord`]), in the same transactions that change the keys: a head that takes
//! over finds it, and asks the other chain whether it has taken what was closed ([`Moving::settle`]). The coordinator
//! is told afterwards.
//!
//! Invariants:
//! 1. A slot is answered by one chain at a time: by neither from the time that it is closed until it is taken.
//! 2. Slots that were not taken when a new head of their chain asked are never taken by what was begun before.
//! 3. Keys are removed where they were only once the other chain has taken their slot for good.

pub(crate) mod arrivals;
mod coming;
mod error;
pub(crate) mod gate;
mod leaving;
pub(crate) mod records;
pub(crate) mod spaces;

use std::sync::Arc;
use std::time::Duration;

pub use error::MoveError;
pub use leaving::Closed;
pub use records::{SlotEpoch, SlotRecord, SlotRecords, SlotState};

use esker_kv::Scan;

use crate::resp::keyspace::is_of_redis;
use crate::resp::moving::records::SERVER;
use crate::resp::shared::Shared;

/// What moves slots from and to the chain that a server heads.
#[derive(Clone)]
pub struct Moving(pub(super) Arc<Shared>);

impl Moving {
    /// What is recorded of slots.
    pub fn records(&self) -> Arc<SlotRecords> {
        self.0.keyspace.gate.records()
    }

    /// The server stops.
    pub fn is_over(&self) -> bool {
        self.0.is_stopping()
    }

    /// Waits so long, or until the server stops.
    pub fn wait(&self, within: Duration) {
        let mut held = self.0.stop_lock.lock();
        if !self.0.is_stopping() {
            self.0.stopped.wait_for(&mut held, within);
        }
    }

    /// The keys, with the locks that those who move their slots wait for.
    pub(crate) fn kv(&self) -> &esker_kv::Kv {
        &self.0.keyspace.kv
    }

    /// What is asked before keys are touched.
    pub(crate) fn gate(&self) -> &gate::Gate {
        &self.0.keyspace.gate
    }

    /// The namespace that is served by Thrift, with the kind of its keys behind a colon; empty: none is.
    pub fn thrift(&self) -> String {
        self.0.keyspace.thrift_kind().map_or(String::new(), |(name, kind)| format!("{name}:{kind}"))
    }

    /// Refuses keys that would not go with their slots.
    fn check_namespaces(&self) -> Result<(), MoveError> {
        let keyspace = &self.0.keyspace;
        let served = keyspace.thrift_kind().map(|(name, _)| name.as_str());
        for (name, kind) in keyspace.kv.namespaces()? {
            if is_of_redis(&name) || served == Some(&name) {
                continue;
            }
            let found = keyspace.kv.namespace(&name, kind)?.scan(&Scan::all().keys().limited(1)).wait()?;
            if !found.is_empty() {
                return Err(MoveError::Unserved(name));
            }
        }
        Ok(())
    }

    fn server(&self) -> esker_kv::Result<esker_kv::Namespace> {
        self.0.keyspace.kv.namespace(SERVER, esker_kv::Kind::Bytes)
    }

    /// Records of these slots are others now; `None`: there is none any more. What redirects clients knows before those
    /// who wait do.
    fn change<'r>(&self, records: impl IntoIterator<Item = (u16, Option<&'r SlotRecord>)>) {
        let gate = &self.0.keyspace.gate;
        let _alone = gate.changing.lock();
        let mut next = (*gate.records()).clone();
        for (slot, record) in records {
            match record {
                Some(record) => next.insert(slot, record.clone()),
                None => next.remove(&slot),
            };
        }
        let next = Arc::new(next);
        if let Some(cluster) = &self.0.config.cluster {
            cluster.tell(self.0.cluster_number, &next);
        }
        gate.set(next);
    }
}

//! The chain that slots come to: what is left there of them is removed, keys are put, the slots are taken; or it is
//! given up, and what is left of them is removed then.
//!
//! Invariants:
//! 1. Steps of moves are taken one at a time.
//! 2. A move that is forgotten, by a question, with its head, or because it was given up, takes no slot any more.
//! 3. As long as anything is recorded of slots, a chain that shares none answers for no key: what stands in slots that
//!    are coming, if none has come, is left of moves, and of no client of its own.

use std::collections::BTreeMap;

use bytes::Bytes;
use esker_kv::{Durability, Entry, Key, Namespace, Txn};
use esker_wire::proto::chain as proto;

use crate::resp::cluster::ClusterView;
use crate::resp::config::DATABASES;
use crate::resp::keyspace::{Database, Head};
use crate::resp::moving::arrivals::Arrival;
use crate::resp::moving::gate::{Located, Space};
use crate::resp::moving::records::{self, SlotEpoch, SlotRecords, SlotState};
use crate::resp::moving::spaces::Spaces;
use crate::resp::moving::{MoveError, Moving};

type Result<T> = std::result::Result<T, MoveError>;

/// Records that are written in one transaction.
const RECORDS: usize = 1_024;
/// The key that is written when it is asked what the chain keeps.
const SETTLED: &str = "settled";
/// Keys that are removed in one transaction.
const REMOVE_KEYS: usize = 512;

impl Moving {
    /// These slots will come from the chain `from`, which serves this namespace by Thrift ([`Moving::thrift`]), each in
    /// this epoch: removes what is left of them here. Goes through all keys once. A chain that has had no slot yet is
    /// refused as long as it has keys that were not left by moves.
    ///
    /// # Errors
    /// [`MoveError::Kept`], [`MoveError::HasKeys`], [`MoveError::Thrift`], [`MoveError::Unserved`]; the store's.
    pub fn begin(&self, called: u64, (from, thrift): (&str, &str), slots: &[SlotEpoch]) -> Result<()> {
        let _alone = self.0.coming.beginning.lock();
        let own = self.thrift();
        if thrift != own {
            return Err(MoveError::Thrift { theirs: thrift.to_owned(), own });
        }
        self.check_namespaces()?;
        // Puts and takes hold it until they are done: none of these slots comes between the look and the records.
        let mut begun = self.0.coming.begun.lock();
        let records = self.records();
        let view = self.0.config.cluster.as_ref().map(|cluster| cluster.view());
        for (slot, epoch) in slots {
            let here = records.get(slot).filter(|record| record.state != SlotState::Coming);
            // What it has given is not removed here yet.
            if here.is_some_and(|record| record.state == SlotState::Leaving) {
                return Err(MoveError::Leaving(*slot));
            }
            let is_newer = here.is_some_and(|record| record.epoch >= *epoch);
            if is_newer || view.as_ref().is_some_and(|view| view.heads_since(*slot, *epoch)) {
                return Err(MoveError::Kept { slot: *slot, epoch: *epoch });
            }
        }
        let wanted: BTreeMap<u16, u64> = slots.iter().copied().collect();
        if view.as_ref().is_none_or(|view| !view.is_shared()) {
            return Err(MoveError::Alone);
        }
        // What was begun before for one of them is over.
        begun.retain(|_, arrival| arrival.slots.keys().all(|slot| !wanted.contains_key(slot)));
        let has_had_any = records.values().any(|record| record.state != SlotState::Coming);
        let shares = has_had_any || view.as_ref().is_some_and(|view| view.heads_any());
        // From now on the chain takes no key of its own clients, though the plan is stopped meanwhile: what is in these
        // slots then was there before, or is left of moves.
        let next = self.noted(slots, SlotState::Coming, from);
        self.change(next.iter().map(|(slot, record)| (*slot, Some(record))));
        drop(begun);
        let mut others = 0;
        // Writers that had not heard yet that the slots are shared.
        self.fence();
        let removed = self.remove_left(&mut |slot| {
            // Until it has had a slot all its keys are of clients of its own, but for those of slots that are coming.
            let is_own = !shares && !records.contains_key(&slot);
            others += u64::from(is_own);
            !is_own && wanted.contains_key(&slot)
        });
        let refused = if others > 0 { Err(MoveError::HasKeys(others)) } else { removed };
        if let Err(error) = refused {
            self.change(slots.iter().map(|(slot, _)| (*slot, records.get(slot))));
            return Err(error);
        }
        // Where that fails half-way they stay known: the next head finds some of them.
        for part in slots.chunks(RECORDS) {
            self.keep(part.iter().map(|(slot, _)| (*slot, next.get(slot))), Durability::Always)?;
        }
        let clears = self.0.keyspace.gate.clears();
        self.0.coming.begun.lock().insert(called, Arrival { from: from.to_owned(), slots: wanted, clears });
        Ok(())
    }

    /// Where the chain shares no slots, and some were to come until that was given up before any had: removes what is
    /// left of them here, and then what is recorded of them, after which the chain answers for its keys by itself. How
    /// many slots these were; what it has removed is durable when this returns. Goes through all keys if there are any.
    ///
    /// # Errors
    /// [`MoveError::Over`] where the server stops; the store's. Then the chain goes on to answer for no key.
    pub fn give_up(&self) -> Result<usize> {
        let are_given_up = |records: &SlotRecords| {
            let is_shared = self.0.config.cluster.as_ref().is_none_or(|cluster| cluster.view().is_shared());
            !is_shared && !records.is_empty() && records.values().all(|record| record.state == SlotState::Coming)
        };
        if !are_given_up(&self.records()) {
            return Ok(0);
        }
        let _alone = self.0.coming.beginning.lock();
        let slots = {
            // Puts and takes hold it until they are done.
            let mut begun = self.0.coming.begun.lock();
            let records = self.records();
            if !are_given_up(&records) {
                return Ok(0);
            }
            begun.clear();
            records
        };
        self.remove_left(&mut |slot| slots.contains_key(&slot))?;
        let numbers: Vec<u16> = slots.keys().copied().collect();
        for part in numbers.chunks(RECORDS) {
            self.keep(part.iter().map(|slot| (*slot, None)), Durability::Always)?;
        }
        self.change(numbers.iter().map(|slot| (*slot, None)));
        Ok(numbers.len())
    }

    /// Removes the keys of slots of which `is_left` says so. Goes through all keys.
    fn remove_left(&self, is_left: &mut dyn FnMut(u16) -> bool) -> Result<()> {
        let mut left = Vec::new();
        Spaces::of(&self.0.keyspace)?.each_key(&|| !self.is_over(), &mut |space, slot, key| {
            if is_left(slot) {
                left.push((space, Bytes::copy_from_slice(key)));
            }
            if left.len() >= REMOVE_KEYS {
                self.remove(&std::mem::take(&mut left))?;
            }
            Ok(())
        })?;
        self.remove(&left)
    }

    fn remove(&self, keys: &[Located]) -> Result<()> {
        let (keyspace, spaces) = (&self.0.keyspace, Spaces::of(&self.0.keyspace)?);
        let located: Vec<(&Namespace, Key<'_>)> = keys.iter().map(|key| spaces.locate(key)).collect::<Result<_>>()?;
        keyspace.kv.transact(&located, Durability::Applied, |txn| {
            txn.give_back();
            keys.iter().try_for_each(|key| spaces.remove(txn, key))
        })
    }

    /// Puts keys of slots that come; `first`: they are the first of a batch.
    ///
    /// # Errors
    /// [`MoveError::NoMove`], [`MoveError::OtherSlot`], [`MoveError::Malformed`]; the store's.
    pub fn put(&self, called: u64, first: bool, parts: &[proto::KeyPart]) -> Result<()> {
        let keyspace = &self.0.keyspace;
        let mut arrivals = self.0.coming.begun.lock();
        let arrival = arrivals.get_mut(&called).ok_or(MoveError::NoMove(called))?;
        if first {
            arrival.clears = keyspace.gate.clears();
        }
        let spaces = Spaces::of(keyspace)?;
        let mut opened = Vec::with_capacity(parts.len());
        for part in parts {
            let index = u8::try_from(part.database).ok().filter(|index| usize::from(*index) < DATABASES);
            let index = index.ok_or(MoveError::Malformed("KeyPart.database: expected one of 0 to 15"))?;
            let what = part.what.as_ref().ok_or(MoveError::Malformed("KeyPart.what: it says nothing"))?;
            let space = match what {
                proto::key_part::What::ThriftValue(_) => Space::Thrift,
                proto::key_part::What::Value(_) | proto::key_part::What::Fields(_) => Space::Database(index),
            };
            let key = (space, part.key.clone());
            let slot = spaces.slot_of(&key)?;
            if !arrival.slots.contains_key(&slot) {
                return Err(MoveError::OtherSlot(slot));
            }
            if matches!(what, proto::key_part::What::Fields(_)) {
                keyspace.expect_hash(&part.key);
            }
            opened.push((key, part, what));
        }
        let located: Vec<(&Namespace, Key<'_>)> =
            opened.iter().map(|(key, ..)| spaces.locate(key)).collect::<Result<_>>()?;
        let database_of = |(space, _): &Located| match space {
            Space::Database(index) => Ok(keyspace.database(*index)?),
            Space::Thrift => Err(MoveError::Malformed("KeyPart.what: a value of a database")),
        };
        keyspace.kv.transact(&located, Durability::Applied, |txn| {
            opened.iter().try_for_each(|(key, part, what)| match what {
                proto::key_part::What::Value(value) => {
                    Ok(keyspace.put_string(txn, database_of(key)?, &part.key, value, part.expires_ms)?)
                }
                proto::key_part::What::Fields(fields) => self.put_fields(txn, database_of(key)?, part, fields),
                proto::key_part::What::ThriftValue(value) => {
                    let (namespace, key) = spaces.locate(key)?;
                    txn.put_value(namespace, key, value, part.expires_ms, 0);
                    Ok(())
                }
            })
        })
    }

    fn put_fields(
        &self,
        txn: &mut Txn<'_>,
        database: &Database,
        part: &proto::KeyPart,
        fields: &proto::HashFields,
    ) -> Result<()> {
        let (keyspace, key) = (&self.0.keyspace, &part.key[..]);
        let before = if fields.more { keyspace.get(txn, database, key)? } else { None };
        let mut head = match before {
            Some(entry) => Head::decode(&entry.value)?,
            // It has expired here, between two parts of it.
            None if fields.more && part.expires_ms.is_some_and(|at| at <= txn.now_ms()) => return Ok(()),
            None if fields.more => return Err(MoveError::Malformed("HashFields.more: there are none before them")),
            None => {
                keyspace.remove(txn, database, key)?;
                Head { id: keyspace.new_id(database, key)?, fields: 0 }
            }
        };
        head.fields += fields.pairs.len() as u64;
        for pair in &fields.pairs {
            txn.put(&database.fields, &head.field_key(&pair.key)[..], Entry::new(pair.value.clone()));
        }
        Ok(keyspace.place(txn, database, key, head.entry(part.expires_ms))?)
    }

    /// The chain keeps these slots from now on: all their keys were put. False: a database was cleared meanwhile, and
    /// they are to be put again. It is durable when this returns.
    ///
    /// # Errors
    /// [`MoveError::NoMove`], [`MoveError::OtherSlot`]; the store's: whether it keeps them [`Moving::settle`] tells.
    pub fn take(&self, called: u64, slots: &[SlotEpoch]) -> Result<bool> {
        let (keyspace, server) = (&self.0.keyspace, self.server()?);
        let mut arrivals = self.0.coming.begun.lock();
        let arrival = arrivals.get_mut(&called).ok_or(MoveError::NoMove(called))?;
        if let Some((slot, _)) = slots.iter().find(|(slot, epoch)| arrival.slots.get(slot) != Some(epoch)) {
            return Err(MoveError::OtherSlot(*slot));
        }
        let next = self.noted(slots, SlotState::Here, &arrival.from);
        // No database is cleared between the look and the commit.
        let mut txn = keyspace.kv.begin_exclusive();
        if keyspace.gate.clears() != arrival.clears {
            return Ok(false);
        }
        txn.give_back();
        records::write(&mut txn, &server, next.iter().map(|(slot, record)| (*slot, Some(record))));
        txn.commit(Durability::Always).wait()?;
        for (slot, _) in slots {
            arrival.slots.remove(slot);
        }
        let is_over = arrival.slots.is_empty();
        if is_over {
            arrivals.remove(&called);
        }
        self.change(next.iter().map(|(slot, record)| (*slot, Some(record))));
        Ok(true)
    }

    /// Which of these slots the chain keeps, in this epoch or a later one. The others it never will by a move that has
    /// begun.
    ///
    /// # Errors
    /// The store's: it is not known.
    pub fn settle(&self, slots: &[SlotEpoch]) -> Result<Vec<SlotEpoch>> {
        let mut arrivals = self.0.coming.begun.lock();
        let records = self.records();
        let is_here = |(slot, epoch): &&SlotEpoch| {
            // Also where it has gone on to another since.
            records.get(slot).is_some_and(|record| match record.state {
                SlotState::Here => record.epoch >= *epoch,
                SlotState::Leaving | SlotState::Gone | SlotState::Coming => record.epoch > *epoch,
            })
        };
        let here: Vec<SlotEpoch> = slots.iter().filter(is_here).copied().collect();
        if here.len() == slots.len() {
            return Ok(here);
        }
        arrivals.retain(|_, arrival| !slots.iter().any(|(slot, _)| arrival.slots.contains_key(slot)));
        // A head that is none any more would not know what its successor has taken: this it cannot have acknowledged.
        let server = self.server()?;
        server.put_with(SETTLED, Entry::default(), Durability::Always).wait()?;
        Ok(here)
    }
}

impl ClusterView {
    /// Whether the own node heads this slot, in this epoch or a later one.
    fn heads_since(&self, slot: u16, epoch: u64) -> bool {
        self.heads_slot(slot).is_some_and(|since| since >= epoch)
    }
}

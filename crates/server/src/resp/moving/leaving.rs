//! The chain that gives slots away: which keys there are in them, closing a few, reading their keys, giving them.
//!
//! Invariant: what is closed stays closed until it is given, or was found not to be taken and is opened again.

use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_kv::{Durability, Entry, Key, Namespace, Scan};
use esker_wire::proto::chain as proto;
use esker_wire::proto::store::Pair;

use crate::resp::keyspace::{Database, HASH, Head};
use crate::resp::moving::gate::{Located, Space};
use crate::resp::moving::records::{self, SlotEpoch, SlotRecord, SlotRecords, SlotState};
use crate::resp::moving::spaces::Spaces;
use crate::resp::moving::{MoveError, Moving};

type Result<T> = std::result::Result<T, MoveError>;

/// Keys that are gathered at once, in bytes of memory, about.
const GATHERED_BYTES_MAX: usize = 64 << 20;
/// Keys that are removed in one transaction.
const GIVE_KEYS: usize = 512;
/// Fields of a hash that are read at once, and their bytes.
const FIELDS: usize = 1_024;
const FIELDS_BYTES: usize = 1 << 20;
/// Bytes of keys and values that are put at once; one value may be more.
const PUT_BYTES: usize = 1 << 20;
/// Parts of them.
const PUT_PARTS: usize = 512;
/// Reads that wait for the device may take so long before a slot is opened again.
const READERS: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(1);

/// Slots that are closed, with all keys that they have.
#[derive(Debug)]
pub struct Closed {
    slots: Vec<SlotEpoch>,
    to: String,
    keys: Vec<Located>,
}

impl Closed {
    /// The slots, each with the epoch in which it will be at the other chain.
    pub fn slots(&self) -> &[SlotEpoch] {
        &self.slots
    }

    /// How many keys they have.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }
}

impl Moving {
    /// Waits for writers that have asked before whether they may go on.
    pub(super) fn fence(&self) {
        let keyspace = &self.0.keyspace;
        drop(keyspace.kv.begin_exclusive());
        keyspace.wait_for_blind_writers();
    }

    /// Finds the keys of these slots, and from now on those that come to be. Of many keys it may be those of the lower
    /// slots only: see [`Moving::gathered`]. Goes through all keys once.
    ///
    /// # Errors
    /// [`MoveError::Over`] where `goes_on` says no, [`MoveError::Unserved`]; the store's.
    pub fn gather(&self, slots: &[u16], goes_on: &dyn Fn() -> bool) -> Result<()> {
        let keyspace = &self.0.keyspace;
        self.check_namespaces()?;
        keyspace.gate.gather(slots.iter().copied(), GATHERED_BYTES_MAX);
        self.fence();
        Spaces::of(keyspace)?.each_key(goes_on, &mut |space, slot, key| {
            keyspace.gate.note(space, || slot, key);
            Ok(())
        })
    }

    /// How many keys there are of a slot; `None`: they are not gathered.
    pub fn gathered(&self, slot: u16) -> Option<usize> {
        self.0.keyspace.gate.gathered(|gathered| gathered.count(slot)).flatten()
    }

    /// Notes no keys any more.
    pub fn end_gathering(&self) {
        self.0.keyspace.gate.end_gathering();
    }

    /// Closes slots whose keys are gathered, each with the epoch in which it will be at the chain `to`: their commands
    /// wait. It is durable when this returns.
    ///
    /// # Errors
    /// [`MoveError::Readers`], and the slots are open again; the store's: whether they are closed the records say.
    pub fn close(&self, slots: &[SlotEpoch], to: &str) -> Result<Closed> {
        let gate = &self.0.keyspace.gate;
        let before = gate.records();
        let next = self.noted(slots, SlotState::Leaving, to);
        self.change(next.iter().map(|(slot, record)| (*slot, Some(record))));
        self.fence();
        let (readers, since) = (gate.readers(), Instant::now());
        while readers.upgrade().is_some() {
            if since.elapsed() > READERS {
                self.change(slots.iter().map(|(slot, _)| (*slot, before.get(slot))));
                return Err(MoveError::Readers(READERS));
            }
            std::thread::sleep(LOOK);
        }
        self.keep(next.iter().map(|(slot, record)| (*slot, Some(record))), Durability::Always)?;
        let taken = gate.gathered(|gathered| slots.iter().map(|(slot, _)| gathered.take(*slot)).collect::<Vec<_>>());
        let keys: Option<Vec<_>> = taken.into_iter().flatten().collect();
        let keys = keys.ok_or(MoveError::Malformed("a slot was closed whose keys are not gathered"))?;
        Ok(Closed { slots: slots.to_vec(), to: to.to_owned(), keys: keys.into_iter().flatten().collect() })
    }

    /// What is left closed by a head before, or by an attempt that failed, by chain; without the keys.
    pub fn left_closed(&self) -> Vec<(String, Vec<SlotEpoch>)> {
        let mut all = std::collections::BTreeMap::<String, Vec<SlotEpoch>>::new();
        for (slot, record) in self.records().iter().filter(|(_, record)| record.state == SlotState::Leaving) {
            all.entry(record.chain.clone()).or_default().push((*slot, record.epoch));
        }
        all.into_iter().collect()
    }

    /// Finds the keys of slots that were left closed. Goes through all keys.
    ///
    /// # Errors
    /// [`MoveError::Over`] where `goes_on` says no; the store's.
    pub fn find(&self, slots: Vec<SlotEpoch>, to: String, goes_on: &dyn Fn() -> bool) -> Result<Closed> {
        let wanted: std::collections::BTreeSet<u16> = slots.iter().map(|(slot, _)| *slot).collect();
        let mut keys = Vec::new();
        Spaces::of(&self.0.keyspace)?.each_key(goes_on, &mut |space, slot, key| {
            if wanted.contains(&slot) {
                keys.push((space, Bytes::copy_from_slice(key)));
            }
            Ok(())
        })?;
        Ok(Closed { slots, to, keys })
    }

    /// Tells clients of closed slots, who wait, that it may last.
    pub fn tell_that_it_lasts(&self) {
        self.0.keyspace.gate.refuse();
    }

    /// Reads the keys of closed slots, and has `put` send them; whether they are the first. Bytes of keys and values.
    ///
    /// # Errors
    /// The store's; those of `put`.
    pub fn read<E: From<MoveError>>(
        &self,
        closed: &Closed,
        put: &mut dyn FnMut(bool, Vec<proto::KeyPart>) -> std::result::Result<(), E>,
    ) -> std::result::Result<u64, E> {
        let mut sending = Sending { parts: Vec::new(), bytes: 0, all: 0, first: true, put };
        let spaces = Spaces::of(&self.0.keyspace)?;
        for located in &closed.keys {
            let (space, key) = located;
            let (namespace, in_it) = spaces.locate(located)?;
            // It may have been removed, or have expired.
            let Some(entry) = namespace.entry(in_it).wait().map_err(MoveError::from)? else { continue };
            match space {
                Space::Database(index) if entry.tag == HASH => {
                    let database = self.0.keyspace.database(*index).map_err(MoveError::from)?;
                    self.read_hash(database, key, &entry, &mut sending)?;
                }
                _ => {
                    let (bytes, value) = (key.len() + entry.value.len(), entry.value.clone());
                    let what = match space {
                        Space::Database(_) => proto::key_part::What::Value(value),
                        Space::Thrift => proto::key_part::What::ThriftValue(value),
                    };
                    sending.add(part(*space, key, &entry, what), bytes)?;
                }
            }
        }
        sending.end()
    }

    fn read_hash<E: From<MoveError>>(
        &self,
        database: &Database,
        key: &Bytes,
        entry: &Entry,
        sending: &mut Sending<'_, E>,
    ) -> std::result::Result<(), E> {
        let head = Head::decode(&entry.value).map_err(MoveError::from)?;
        let id = head.id.to_be_bytes();
        let mut scan = Scan { bytes_max: FIELDS_BYTES, ..Scan::prefix(Bytes::copy_from_slice(&id)).limited(FIELDS) };
        let mut more = false;
        loop {
            let page = self.0.keyspace.kv.begin(&[]).scan(&database.fields, &scan).map_err(MoveError::from)?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            scan = scan.after(last.clone());
            let field = |(key, entry): (esker_kv::OwnedKey, Entry)| {
                let key = key.as_bytes().and_then(|key| key.get(id.len()..).map(|_| key.slice(id.len()..)));
                Pair { key: key.unwrap_or_default(), value: entry.value }
            };
            let pairs: Vec<Pair> = page.into_iter().map(field).collect();
            let bytes = pairs.iter().map(|pair| pair.key.len() + pair.value.len()).sum::<usize>() + key.len();
            let what = proto::key_part::What::Fields(proto::HashFields { more, pairs });
            sending.add(part(Space::Database(database.index), key, entry, what), bytes)?;
            more = true;
        }
    }

    /// The slots are at the other chain for good: removes their keys, and has commands that wait redirected.
    ///
    /// # Errors
    /// The store's: then they are still closed, and are to be given once more.
    pub fn give(&self, closed: &Closed) -> Result<()> {
        let keyspace = &self.0.keyspace;
        let next = self.noted(&closed.slots, SlotState::Gone, &closed.to);
        let (server, spaces) = (self.server()?, Spaces::of(keyspace)?);
        let chunks: Vec<&[Located]> = closed.keys.chunks(GIVE_KEYS).collect();
        let last = chunks.len().saturating_sub(1);
        for at in 0..=last {
            let keys = chunks.get(at).copied().unwrap_or_default();
            let located: Vec<(&Namespace, Key<'_>)> =
                keys.iter().map(|key| spaces.locate(key)).collect::<Result<_>>()?;
            let durability = if at == last { Durability::Always } else { Durability::Applied };
            keyspace.kv.transact(&located, durability, |txn| {
                txn.give_back();
                keys.iter().try_for_each(|key| spaces.remove(txn, key))?;
                if at == last {
                    records::write(txn, &server, next.iter().map(|(slot, record)| (*slot, Some(record))));
                }
                Ok::<_, MoveError>(())
            })?;
        }
        self.change(next.iter().map(|(slot, record)| (*slot, Some(record))));
        Ok(())
    }

    /// The slots were not taken, and never will be by what was begun: opens them again.
    ///
    /// # Errors
    /// The store's: then they are still closed.
    pub fn reopen(&self, slots: &[SlotEpoch], to: &str) -> Result<()> {
        // As it was: in the epoch before.
        let before: Vec<SlotEpoch> = slots.iter().map(|(slot, epoch)| (*slot, epoch.saturating_sub(1))).collect();
        let next = self.noted(&before, SlotState::Here, to);
        self.keep(next.iter().map(|(slot, record)| (*slot, Some(record))), Durability::Always)?;
        self.change(next.iter().map(|(slot, record)| (*slot, Some(record))));
        Ok(())
    }

    /// Records that these slots stand so.
    pub(super) fn noted(&self, slots: &[SlotEpoch], state: SlotState, chain: &str) -> SlotRecords {
        slots
            .iter()
            .map(|(slot, epoch)| (*slot, SlotRecord { state, epoch: *epoch, chain: chain.to_owned() }))
            .collect()
    }

    /// Writes these records down.
    pub(super) fn keep<'r>(
        &self,
        records: impl Iterator<Item = (u16, Option<&'r SlotRecord>)>,
        durability: Durability,
    ) -> Result<()> {
        let (server, all) = (self.server()?, records.collect::<Vec<_>>());
        self.0.keyspace.kv.transact(&[], durability, |txn| {
            txn.give_back();
            records::write(txn, &server, all.iter().copied());
            Ok::<_, MoveError>(())
        })
    }
}

fn part(space: Space, key: &Bytes, entry: &Entry, what: proto::key_part::What) -> proto::KeyPart {
    let database = match space {
        Space::Database(index) => u32::from(index),
        Space::Thrift => 0,
    };
    proto::KeyPart { database, key: key.clone(), expires_ms: entry.expires_ms, what: Some(what) }
}

/// Parts that are put together.
struct Sending<'p, E> {
    parts: Vec<proto::KeyPart>,
    bytes: usize,
    all: u64,
    first: bool,
    put: &'p mut dyn FnMut(bool, Vec<proto::KeyPart>) -> std::result::Result<(), E>,
}

impl<E> Sending<'_, E> {
    fn add(&mut self, part: proto::KeyPart, bytes: usize) -> std::result::Result<(), E> {
        if !self.parts.is_empty() && (self.bytes + bytes > PUT_BYTES || self.parts.len() >= PUT_PARTS) {
            self.send()?;
        }
        self.parts.push(part);
        self.bytes += bytes;
        self.all += bytes as u64;
        Ok(())
    }

    fn send(&mut self) -> std::result::Result<(), E> {
        let first = std::mem::replace(&mut self.first, false);
        self.bytes = 0;
        (self.put)(first, std::mem::take(&mut self.parts))
    }

    fn end(mut self) -> std::result::Result<u64, E> {
        // Also where there is no key: the other chain begins a batch with it.
        if self.first || !self.parts.is_empty() {
            self.send()?;
        }
        Ok(self.all)
    }
}

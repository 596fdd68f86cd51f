//! What a chain keeps of slots that go to another chain, or have come from one.
//!
//! ```text
//! namespace `server`, key "slot/" ++ slot u16 BE → state u8 ++ epoch u64 LE ++ name of the other chain
//! ```
//!
//! Invariant: of a record and what the coordinator says of a slot, what has the higher epoch is newer. So a slot is
//! answered by one chain at a time, whenever the coordinator is told of it.

use std::collections::BTreeMap;

use esker_kv::{Kind, Kv, Namespace, Result, SLOTS, Scan, Txn};

/// The namespace that they are in.
pub(crate) const SERVER: &str = "server";
/// What their keys begin with.
const PREFIX: &[u8] = b"slot/";

/// How a slot stands at a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// It is going to another chain: commands with its keys wait.
    Leaving,
    /// Another chain keeps it.
    Gone,
    /// It is coming from another chain, which keeps it still.
    Coming,
    /// It has come from another chain, and this one keeps it.
    Here,
}

/// What a chain knows of a slot by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRecord {
    /// How it stands.
    pub state: SlotState,
    /// How often the slot has gone to another chain, once it has.
    pub epoch: u64,
    /// The other chain.
    pub chain: String,
}

/// What a chain knows of slots by itself.
pub type SlotRecords = BTreeMap<u16, SlotRecord>;

/// A slot, and its epoch once it has gone to another chain.
pub type SlotEpoch = (u16, u64);

impl SlotRecord {
    fn encode(&self) -> Vec<u8> {
        let state = match self.state {
            SlotState::Leaving => 1,
            SlotState::Gone => 2,
            SlotState::Coming => 3,
            SlotState::Here => 4,
        };
        [&[state], &self.epoch.to_le_bytes()[..], self.chain.as_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (state, rest) = bytes.split_first()?;
        let (epoch, chain) = rest.split_first_chunk::<8>()?;
        let state = match state {
            1 => SlotState::Leaving,
            2 => SlotState::Gone,
            3 => SlotState::Coming,
            4 => SlotState::Here,
            _ => return None,
        };
        let chain = String::from_utf8(chain.to_vec()).ok().filter(|chain| !chain.is_empty())?;
        Some(Self { state, epoch: u64::from_le_bytes(*epoch), chain })
    }
}

/// The key of a slot's record.
pub(crate) fn key_of(slot: u16) -> Vec<u8> {
    [PREFIX, &slot.to_be_bytes()].concat()
}

fn damaged(key: &[u8]) -> esker_kv::Error {
    let what = format!("record of a slot: namespace {SERVER}, key {:?}", String::from_utf8_lossy(key));
    esker_store::Error::Corrupt { offset: 0, what }.into()
}

/// All that are kept.
pub(crate) fn load(kv: &Kv) -> Result<SlotRecords> {
    let server = match kv.existing(SERVER, Kind::Bytes) {
        Ok(server) => server,
        Err(esker_kv::Error::NoNamespace { .. }) => return Ok(SlotRecords::new()),
        // It waits, as opening does.
        Err(esker_kv::Error::OnItsWay) => kv.namespace(SERVER, Kind::Bytes)?,
        Err(error) => return Err(error),
    };
    let mut records = SlotRecords::new();
    for (key, entry) in server.scan(&Scan::prefix(PREFIX)).wait()? {
        let key = key.as_bytes().map_or(&[][..], |key| key);
        let slot = key.strip_prefix(PREFIX).and_then(|slot| <[u8; 2]>::try_from(slot).ok()).map(u16::from_be_bytes);
        let slot = slot.filter(|slot| u64::from(*slot) < SLOTS).ok_or_else(|| damaged(key))?;
        records.insert(slot, SlotRecord::decode(&entry.value).ok_or_else(|| damaged(key))?);
    }
    Ok(records)
}

/// That of one slot, of what is kept under its key.
pub(crate) fn of_kept(slot: u16, kept: Option<&[u8]>) -> Result<Option<SlotRecord>> {
    kept.map(|value| SlotRecord::decode(value).ok_or_else(|| damaged(&key_of(slot)))).transpose()
}

/// Has a transaction put these in place of what is kept of their slots; `None`: nothing is kept any more.
pub(crate) fn write<'r>(
    txn: &mut Txn<'_>,
    server: &Namespace,
    records: impl IntoIterator<Item = (u16, Option<&'r SlotRecord>)>,
) {
    for (slot, record) in records {
        match record {
            Some(record) => txn.put(server, &key_of(slot)[..], esker_kv::Entry::new(record.encode())),
            None => txn.remove(server, &key_of(slot)[..]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were() {
        for state in [SlotState::Leaving, SlotState::Gone, SlotState::Coming, SlotState::Here] {
            let record = SlotRecord { state, epoch: 7, chain: "b".into() };
            assert_eq!(SlotRecord::decode(&record.encode()), Some(record));
        }
        let gone = SlotRecord { state: SlotState::Gone, epoch: 258, chain: "users-2".into() };
        assert_eq!(gone.encode(), b"\x02\x02\x01\0\0\0\0\0\0users-2");
        for damaged in [&b""[..], b"\x02\x02\x01", b"\x05\x02\x01\0\0\0\0\0\0b", b"\x01\x02\x01\0\0\0\0\0\0"] {
            assert_eq!(SlotRecord::decode(damaged), None, "{damaged:?}");
        }
        assert_eq!(key_of(258), b"slot/\x01\x02");
    }
}

//! Other storages of maps beside the engine: opened with a table of their own, asked what they count, cleared.
//!
//! `--peer NAME=LOCATION` → [`OpenPeer::open`] → [`OpenPeer::subject`] … → [`OpenPeer::close`]
//!
//! Invariant: what is removed is the namespace that was made here.

use std::str::FromStr;

use esker::OpenMap;
use esker::map::TableName;

use super::measure::{Subject, clear, fill};
use crate::exit::Failure;

/// Another storage of maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name in tables.
    pub name: String,
    /// Where it is, as `OpenMap` reads it.
    pub location: String,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, location)) if !name.is_empty() && location.contains(':') => {
                Ok(Self { name: name.into(), location: location.into() })
            }
            _ => Err(format!("{text:?}: expected NAME=LOCATION, such as batch=cassandra://127.0.0.1:9042/bench")),
        }
    }
}

/// How to ask for the number of records in a peer's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRecords {
    /// The peer's name.
    pub name: String,
    /// A command for the shell, which prints the number and nothing else.
    pub command: String,
}

impl PeerRecords {
    /// The number now; none if the command fails or prints anything else.
    pub fn ask(&self) -> Option<u64> {
        let output = std::process::Command::new("sh").args(["-c", &self.command]).output().ok()?;
        output.status.success().then_some(())?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    }
}

impl FromStr for PeerRecords {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, command)) if !name.is_empty() && !command.is_empty() => {
                Ok(Self { name: name.into(), command: command.into() })
            }
            _ => Err(format!("{text:?}: expected NAME=COMMAND")),
        }
    }
}

type Counter = Box<dyn Fn() -> Option<u64> + Send + Sync>;

/// Another storage that is open.
pub struct OpenPeer {
    /// Its name in tables.
    pub name: String,
    map: OpenMap,
    table: TableName,
    records: Counter,
    syncs: Counter,
}

impl OpenPeer {
    /// Opens it, and makes a table with `rows` rows.
    pub fn open(peer: &Peer, records: Option<PeerRecords>, rows: u64) -> Result<Self, Failure> {
        let table = TableName::new(format!("bench_commit_{}", std::process::id()), "rows");
        let map = OpenMap::open(&peer.location)?;
        fill(&**map.storage(), &table, rows).inspect_err(|_| drop(clear(&**map.storage(), &table)))?;
        let stores = || map.store().cloned();
        let (own, syncs) = (stores(), stores());
        let records: Counter = match records {
            Some(records) => Box::new(move || records.ask()),
            None => Box::new(move || Some(own.as_ref()?.engine()?.stats().records)),
        };
        let syncs: Counter = Box::new(move || syncs.as_ref()?.syncs());
        Ok(Self { name: peer.name.clone(), map, table, records, syncs })
    }

    /// What is measured of it. `device`: see [`Subject::device`].
    pub fn subject<'a>(&'a self, device: Option<&'a str>) -> Subject<'a> {
        Subject {
            name: &self.name,
            map: &**self.map.storage(),
            table: &self.table,
            records: &*self.records,
            syncs: &*self.syncs,
            device,
        }
    }

    /// Removes what was made there, and lets go of it.
    pub fn close(&self) -> Result<(), Failure> {
        clear(&**self.map.storage(), &self.table)?;
        Ok(self.map.close()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_a_name_and_a_location() {
        let peer: Peer = "group 10 ms=cassandra://h:1/p?replication=3".parse().unwrap();
        assert_eq!((peer.name.as_str(), peer.location.as_str()), ("group 10 ms", "cassandra://h:1/p?replication=3"));
        assert!("cassandra".parse::<Peer>().is_err() && "=memory:".parse::<Peer>().is_err());
    }

    #[test]
    fn records_are_what_the_command_prints_if_it_is_a_number() {
        let records = |text: &str| text.parse::<PeerRecords>().unwrap().ask();
        assert_eq!(records("a=echo 12"), Some(12));
        assert_eq!((records("a=echo twelve"), records("a=echo 12; exit 1")), (None, None));
        assert!("a=".parse::<PeerRecords>().is_err());
    }
}

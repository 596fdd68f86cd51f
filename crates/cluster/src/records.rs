//! What stands in the coordinator's nodes, as JSON.
//!
//! record → JSON → node → JSON → record, checked
//!
//! Invariant: what makes no sense is an error that names the node, and is never taken for something else.

use std::collections::{BTreeMap, BTreeSet};

use esker_chain::{Incarnation, Member, Place, ServerId, Table, Wishes};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Where a server is reached, and what store it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The identity of its store: another one after its disk was replaced.
    pub store: String,
    /// `HOST:PORT` at which other servers of its chains reach it.
    pub peer: String,
    /// `HOST:PORT` of the Redis face.
    pub resp: Option<String>,
    /// `HOST:PORT` of gRPC.
    pub grpc: Option<String>,
    /// `HOST:PORT` of NBD.
    pub nbd: Option<String>,
    /// `HOST:PORT` of HTTP.
    pub http: Option<String>,
    /// `HOST:PORT` of Thrift.
    pub thrift: Option<String>,
}

/// A server as its last start has registered it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRecord {
    /// Which start.
    pub incarnation: Incarnation,
    /// What that start serves.
    pub served: Served,
}

/// A server's lease of a chain, as it was last renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Which start of the server renewed it.
    pub incarnation: Incarnation,
    /// It was given up since.
    pub gave_up: bool,
    /// The version of the table that the server went by.
    pub table_version: u64,
    /// The number of the renewal: grows with each, and with giving up.
    pub renewal: u64,
    /// When it was renewed or given up, by the coordinator's clock: milliseconds since 1970.
    pub at_ms: u64,
    /// How far the server was then.
    pub progress: Progress,
}

/// How far a server is in its chain: for those who look, nothing rests on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The last operation that it has applied.
    #[serde(default)]
    pub applied: u64,
    /// The last that it knows to be acknowledged.
    #[serde(default)]
    pub committed: u64,
    /// Bytes that the copy for it has gone through, while one is on its way.
    #[serde(default)]
    pub copied_bytes: Option<u64>,
}

/// Which table was read: the next is taken only in place of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableStamp {
    /// [`Table::version`].
    pub version: u64,
    /// How often the node was written.
    pub(crate) node: i32,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct ServerJson {
    pub incarnation: u64,
    store: String,
    peer: String,
    resp: Option<String>,
    grpc: Option<String>,
    nbd: Option<String>,
    http: Option<String>,
    // Servers of before have none.
    #[serde(default)]
    thrift: Option<String>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct LeaseJson {
    pub incarnation: u64,
    pub gave_up: bool,
    pub table_version: u64,
    #[serde(flatten)]
    pub progress: Progress,
}

/// What operators have asked for.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct WishesJson {
    #[serde(default)]
    remove: BTreeSet<u32>,
    #[serde(default)]
    drain: BTreeSet<u32>,
    #[serde(default)]
    promote: Option<u32>,
    #[serde(default)]
    apart: BTreeMap<u32, u64>,
}

impl WishesJson {
    pub fn of(wishes: &Wishes) -> Self {
        let numbers = |servers: &BTreeSet<ServerId>| servers.iter().map(|server| server.0).collect();
        Self {
            remove: numbers(&wishes.remove),
            drain: numbers(&wishes.drain),
            promote: wishes.promote.map(|server| server.0),
            apart: wishes.apart.iter().map(|(server, version)| (server.0, *version)).collect(),
        }
    }

    pub fn wishes(self) -> Wishes {
        let servers = |numbers: BTreeSet<u32>| numbers.into_iter().map(ServerId).collect();
        Wishes {
            remove: servers(self.remove),
            drain: servers(self.drain),
            promote: self.promote.map(ServerId),
            apart: self.apart.into_iter().map(|(server, version)| (ServerId(server), version)).collect(),
        }
    }
}

/// Which wishes were read: others are taken only in place of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WishesStamp(pub(crate) Option<i32>);

/// Version 0 is that of no table: none was told yet.
#[derive(Serialize, Deserialize)]
pub(crate) struct InStepJson {
    pub server: u32,
    pub version: u64,
}

#[derive(Serialize, Deserialize)]
struct TableJson {
    version: u64,
    members: Vec<MemberJson>,
}

#[derive(Serialize, Deserialize)]
struct MemberJson {
    server: u32,
    incarnation: u64,
    place: PlaceJson,
    since: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PlaceJson {
    Serving,
    Syncing,
    Waiting,
    Offline,
    LastServing,
}

impl From<Place> for PlaceJson {
    fn from(place: Place) -> Self {
        match place {
            Place::Serving => Self::Serving,
            Place::Syncing => Self::Syncing,
            Place::Waiting => Self::Waiting,
            Place::Offline => Self::Offline,
            Place::LastServing => Self::LastServing,
        }
    }
}

impl From<PlaceJson> for Place {
    fn from(place: PlaceJson) -> Self {
        match place {
            PlaceJson::Serving => Self::Serving,
            PlaceJson::Syncing => Self::Syncing,
            PlaceJson::Waiting => Self::Waiting,
            PlaceJson::Offline => Self::Offline,
            PlaceJson::LastServing => Self::LastServing,
        }
    }
}

impl ServerJson {
    pub fn of(incarnation: Incarnation, served: &Served) -> Self {
        let Served { store, peer, resp, grpc, nbd, http, thrift } = served.clone();
        Self { incarnation: incarnation.0, store, peer, resp, grpc, nbd, http, thrift }
    }

    pub fn record(self) -> ServerRecord {
        let Self { incarnation, store, peer, resp, grpc, nbd, http, thrift } = self;
        let served = Served { store, peer, resp, grpc, nbd, http, thrift };
        ServerRecord { incarnation: Incarnation(incarnation), served }
    }
}

/// The JSON of a record.
pub(crate) fn encoded(node: &str, record: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(record).map_err(|error| Error::Damaged { node: node.to_string(), reason: error.to_string() })
}

/// The record that stands in a node as JSON.
pub(crate) fn decoded<T: DeserializeOwned>(node: &str, data: &[u8]) -> Result<T> {
    serde_json::from_slice(data).map_err(|error| Error::Damaged { node: node.to_string(), reason: error.to_string() })
}

/// The JSON of a table.
pub(crate) fn table_encoded(node: &str, table: &Table) -> Result<Vec<u8>> {
    let member = |member: &Member| MemberJson {
        server: member.server.0,
        incarnation: member.incarnation.0,
        place: member.place.into(),
        since: member.since,
    };
    encoded(node, &TableJson { version: table.version, members: table.members.iter().map(member).collect() })
}

/// The table that stands in a node as JSON: in order, each server once, nothing of a later version.
pub(crate) fn table_decoded(node: &str, data: &[u8]) -> Result<Table> {
    let TableJson { version, members } = decoded(node, data)?;
    let member = |member: MemberJson| Member {
        server: ServerId(member.server),
        incarnation: Incarnation(member.incarnation),
        place: member.place.into(),
        since: member.since,
    };
    let table = Table { version, members: members.into_iter().map(member).collect() };
    match fault(&table) {
        Some(reason) => Err(Error::Damaged { node: node.to_string(), reason: reason.to_string() }),
        None => Ok(table),
    }
}

/// What keeps this from being a table, if anything does.
pub(crate) fn fault(table: &Table) -> Option<&'static str> {
    let members = &table.members;
    let twice = |(at, member): (usize, &Member)| members[..at].iter().any(|other| other.server == member.server);
    if table.version == 0 {
        Some("a table has a version from 1")
    } else if members.iter().enumerate().any(twice) {
        Some("a server is a member twice")
    } else if members.iter().any(|member| member.since > table.version) {
        Some("a member stands so since a later version")
    } else if !members.is_sorted_by_key(|member| member.place) {
        Some("the members are not in the order of their places")
    } else if members.iter().filter(|member| member.place == Place::Syncing).count() > 1 {
        Some("two members are brought up at once")
    } else {
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn table() -> Table {
        let places = [Place::Serving, Place::Syncing, Place::Waiting, Place::Offline, Place::LastServing];
        let member = |(number, place): (usize, &Place)| Member {
            server: ServerId(number as u32),
            incarnation: Incarnation(7),
            place: *place,
            since: 2,
        };
        Table { version: 3, members: places.iter().enumerate().map(member).collect() }
    }

    #[test]
    fn a_table_comes_back_as_it_was() {
        let data = table_encoded("/t", &table()).unwrap();
        assert_eq!(table_decoded("/t", &data).unwrap(), table());
        assert!(String::from_utf8(data).unwrap().contains(r#""place":"last-serving""#));
    }

    #[test]
    fn a_server_comes_back_as_it_was_and_one_of_before_is_read() {
        let at = |port: &str| Some(format!("h:{port}"));
        let served = Served {
            store: "s".into(),
            peer: "h:1".into(),
            resp: at("2"),
            grpc: at("3"),
            nbd: at("4"),
            http: None,
            thrift: at("5"),
        };
        let data = encoded("/s", &ServerJson::of(Incarnation(7), &served)).unwrap();
        assert_eq!(decoded::<ServerJson>("/s", &data).unwrap().record().served, served);
        let old = br#"{"incarnation":7,"store":"s","peer":"h:1","resp":"h:2","grpc":"h:3","nbd":"h:4","http":null}"#;
        assert_eq!(decoded::<ServerJson>("/s", old).unwrap().record().served, Served { thrift: None, ..served });
    }

    #[test]
    fn wishes_come_back_as_they_were_and_old_leases_are_read() {
        let wishes = Wishes {
            remove: [ServerId(3)].into(),
            drain: [ServerId(4)].into(),
            promote: Some(ServerId(2)),
            apart: [(ServerId(5), 9)].into(),
        };
        let data = encoded("/w", &WishesJson::of(&wishes)).unwrap();
        assert_eq!(decoded::<WishesJson>("/w", &data).unwrap().wishes(), wishes);
        assert_eq!(decoded::<WishesJson>("/w", b"{}").unwrap().wishes(), Wishes::default());
        let old = br#"{"incarnation":7,"gave_up":false,"table_version":3}"#;
        assert_eq!(decoded::<LeaseJson>("/l", old).unwrap().progress, Progress::default());
        let progress = Progress { applied: 9, committed: 8, copied_bytes: Some(7) };
        let data = encoded("/l", &LeaseJson { incarnation: 7, gave_up: false, table_version: 3, progress }).unwrap();
        assert_eq!(decoded::<LeaseJson>("/l", &data).unwrap().progress, progress);
    }

    #[test]
    fn what_is_no_table_is_an_error_that_names_the_node() {
        let good = String::from_utf8(table_encoded("/t", &table()).unwrap()).unwrap();
        for (from, to) in [
            (r#""version":3"#, r#""version":0"#),
            (r#""server":4"#, r#""server":0"#),
            (r#""since":2"#, r#""since":9"#),
            (r#""waiting""#, r#""serving""#),
            (r#""waiting""#, r#""syncing""#),
            (r#""waiting""#, r#""elsewhere""#),
            ("}", ""),
        ] {
            assert!(good.contains(from), "{from}");
            let error = table_decoded("/t", good.replacen(from, to, 1).as_bytes()).unwrap_err();
            assert!(matches!(&error, Error::Damaged { node, .. } if node == "/t"), "{from} → {to}: {error}");
        }
    }
}

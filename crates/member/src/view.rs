//! How a chain stands, as one of its servers sees it.

use std::collections::BTreeMap;

use esker_chain::{Incarnation, Place, ServerId, Table};
use esker_cluster::ServerRecord;

/// Another server, or this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number.
    pub server: ServerId,
    /// How it stands in the chain; `None`: it is no member.
    pub place: Option<Place>,
    /// Where it is reached, as it has registered last.
    pub record: Option<ServerRecord>,
}

/// What a server knows.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Of the table; grows with each change of it. 0: none was read.
    pub version: u64,
    /// Members in the table's order, then servers that are none.
    pub peers: Vec<Peer>,
    /// The head, if there is one.
    pub head: Option<ServerId>,
    /// This server heads the chain. It answers only under a lease beside that.
    pub heads: bool,
    /// How this server stands, in this start.
    pub place: Option<Place>,
    /// Which start this is; `None`: it is not registered yet.
    pub incarnation: Option<Incarnation>,
    /// The last operation that is applied here.
    pub applied: u64,
    /// The last that is known here to be acknowledged.
    pub committed: u64,
    /// Bytes of operations that are kept for the one behind.
    pub kept_bytes: u64,
    /// Bytes that the copy for this server has gone through, while one is on its way.
    pub copied_bytes: Option<u64>,
    /// How long the lease lasts still, in milliseconds; 0: there is none.
    pub lease_ms: u64,
    /// What went wrong last with the coordinator, or with the node.
    pub trouble: Option<String>,
}

impl View {
    /// Who stands how by this table.
    pub fn peers(table: &Table, servers: &BTreeMap<ServerId, ServerRecord>) -> Vec<Peer> {
        let members = table.members.iter().map(|member| Peer {
            server: member.server,
            place: Some(member.place),
            record: servers.get(&member.server).cloned(),
        });
        let others = servers.iter().filter(|(server, _)| table.member(**server).is_none());
        let others = others.map(|(server, record)| Peer { server: *server, place: None, record: Some(record.clone()) });
        members.chain(others).collect()
    }
}

//! The keys of one namespace, wherever they are.
//!
//! call → place of its key → servers, those that keep it first → the first that is reached → answer
//! batch → the servers of each key → a call for each, of so many keys → answers in the order of the question
//!
//! Invariants:
//! 1. A write is sent once.
//! 2. A call ends after patience, and the time that one answer may take.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_cluster::Location;
use esker_kv::Kind;
use thrift::{ApplicationError, ApplicationErrorKind};

use crate::address::Address;
use crate::connections::{Client, Connections, Connector, connect};
use crate::error::{Error, Result};
use crate::generated::zdb::{DataType, TEskerKeysSyncClient, TZDBServiceSyncClient};
use crate::registry::Registry;
use crate::table::{Table, place_of};

/// Keys of one call to a server.
const BATCH_MAX: usize = 4_096;

/// How a ring calls.
pub struct Options {
    /// For how long a call looks for a server that it can reach; 10 s if nothing else is said.
    pub patience: Duration,
    /// How connections are made; another may speak TLS. Over TCP if nothing else is said.
    pub connector: Connector,
}

impl Default for Options {
    fn default() -> Self {
        Self { patience: Duration::from_secs(10), connector: Box::new(connect) }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("patience", &self.patience).finish_non_exhaustive()
    }
}

/// The keys of one namespace. Threads may share it. Keys and values are text.
///
/// Each call may end in [`Error::Key`], [`Error::Refused`] with what a server has answered, and [`Error::Unreachable`];
/// those that write in [`Error::Unknown`].
pub struct Ring {
    kind: Kind,
    patience: Duration,
    connections: Arc<Connections>,
    registry: Registry,
}

/// Whether a call changes anything.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    Read,
    Write,
}

/// What became of a call to one server.
enum Asked<T> {
    Answered(std::result::Result<T, ApplicationError>),
    Unanswered(thrift::Error),
}

impl Ring {
    /// Of the servers that register below `node` of a ZooKeeper, whose root is not looked at. Nothing is waited for:
    /// the first calls are, for as long as patience lasts, until the registry is read.
    ///
    /// # Errors
    /// [`Error::Registry`] where that can be no node, [`Error::Thread`].
    pub fn new(zookeeper: &Location, node: &str, kind: Kind, options: Options) -> Result<Self> {
        let connections = Arc::new(Connections::new(options.connector));
        let known = Arc::clone(&connections);
        let told = move |table: &Table| known.keep(|address| table.has(address));
        let registry = Registry::new(zookeeper, node, Box::new(told))?;
        Ok(Self { kind, patience: options.patience, connections, registry })
    }

    /// Where a key is, as it was registered last; empty while none is.
    ///
    /// # Errors
    /// [`Error::Key`].
    pub fn servers_of(&self, key: &str) -> Result<Vec<Address>> {
        Ok(self.registry.table().keepers_of(place_of(self.kind, key)?).to_vec())
    }

    /// Nodes of the registry that are no instances of the service.
    pub fn strange(&self) -> Vec<String> {
        self.registry.table().strange.clone()
    }

    /// The value; none where there is no such key.
    ///
    /// # Errors
    /// [`Error`].
    pub fn get(&self, key: &str) -> Result<Option<String>> {
        self.call(key, Act::Read, |client| match client.get(key.to_owned()) {
            Err(thrift::Error::Application(error)) if error.kind == ApplicationErrorKind::MissingResult => Ok(None),
            answer => answer.map(Some),
        })
    }

    /// Whether there is such a key.
    ///
    /// # Errors
    /// [`Error`].
    pub fn has(&self, key: &str) -> Result<bool> {
        self.call(key, Act::Read, |client| client.has(key.to_owned()))
    }

    /// Writes a value.
    ///
    /// # Errors
    /// [`Error`].
    pub fn put(&self, key: &str, value: &str) -> Result<()> {
        self.call(key, Act::Write, |client| client.put(key.to_owned(), value.to_owned())).map(drop)
    }

    /// Whether there was such a key.
    ///
    /// # Errors
    /// [`Error`].
    pub fn remove(&self, key: &str) -> Result<bool> {
        Ok(self.call(key, Act::Write, |client| client.remove(key.to_owned()))? == 0)
    }

    /// Writes a value if the key is absent, and says whether it did.
    ///
    /// # Errors
    /// [`Error`].
    pub fn add(&self, key: &str, value: &str) -> Result<bool> {
        self.call(key, Act::Write, |client| client.add(key.to_owned(), value.to_owned()))
    }

    /// Writes a value if the key is present, and says whether it did.
    ///
    /// # Errors
    /// [`Error`].
    pub fn update(&self, key: &str, value: &str) -> Result<bool> {
        self.call(key, Act::Write, |client| client.update(key.to_owned(), value.to_owned()))
    }

    /// Writes a value if that which is there is `expected`, none for no such key, and says whether it did.
    ///
    /// # Errors
    /// [`Error`].
    pub fn compare_and_set(&self, key: &str, expected: Option<&str>, value: &str) -> Result<bool> {
        // The generated client cannot leave an argument out.
        let Some(expected) = expected else { return self.add(key, value) };
        self.call(key, Act::Write, |client| {
            client.compare_and_set(key.to_owned(), expected.to_owned(), value.to_owned())
        })
    }

    /// The pairs that are there, in the order in which they were asked for.
    ///
    /// # Errors
    /// [`Error`].
    pub fn multi_get(&self, keys: &[&str]) -> Result<Vec<DataType>> {
        let mut found = HashMap::new();
        for part in self.parts(keys)? {
            let pairs = self.call(&part[0], Act::Read, |client| client.multi_get(part.clone()))?;
            found.extend(pairs.into_iter().map(|pair| (pair.key, pair.value)));
        }
        let pair = |key: &&str| Some(DataType { key: (*key).to_owned(), value: found.get(*key)?.clone() });
        Ok(keys.iter().filter_map(pair).collect())
    }

    /// All or none of the pairs of one chain; where an error comes, those of other chains may be written. Of a key that
    /// is given twice the last counts.
    ///
    /// # Errors
    /// [`Error`].
    pub fn multi_put(&self, pairs: &[(&str, &str)]) -> Result<()> {
        let values: HashMap<&str, &str> = pairs.iter().copied().collect();
        let keys: Vec<_> = pairs.iter().map(|(key, _)| *key).collect();
        for part in self.parts(&keys)? {
            let pair =
                |key: &String| Some(DataType { key: key.clone(), value: (*values.get(key.as_str())?).to_owned() });
            let data: Vec<_> = part.iter().filter_map(pair).collect();
            self.call(&part[0], Act::Write, |client| client.multi_put(data.clone()))?;
        }
        Ok(())
    }

    /// How many of these there were, which are removed; of one chain all or none.
    ///
    /// # Errors
    /// [`Error`].
    pub fn remove_many(&self, keys: &[&str]) -> Result<u64> {
        let mut removed = 0;
        for part in self.parts(keys)? {
            let count = self.call(&part[0], Act::Write, |client| client.remove_many(part.clone()))?;
            removed += u64::try_from(count).unwrap_or(0);
        }
        Ok(removed)
    }

    /// The keys, each once, by the servers that keep them, as many as one call may have. No part is empty.
    fn parts(&self, keys: &[&str]) -> Result<Vec<Vec<String>>> {
        let table = self.registry.table();
        let mut by_servers: BTreeMap<&[Address], Vec<String>> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for key in keys {
            let place = place_of(self.kind, key)?;
            if seen.insert(*key) {
                by_servers.entry(table.keepers_of(place)).or_default().push((*key).to_owned());
            }
        }
        Ok(by_servers.values().flat_map(|keys| keys.chunks(BATCH_MAX)).map(<[String]>::to_vec).collect())
    }

    fn call<T>(&self, key: &str, act: Act, ask: impl Fn(&mut Client) -> thrift::Result<T>) -> Result<T> {
        let place = place_of(self.kind, key)?;
        let (until, mut last) = (Instant::now() + self.patience, None);
        loop {
            let table = self.registry.table();
            for server in self.connections.in_order(table.order_for(place)) {
                if last.is_some() && Instant::now() >= until {
                    break;
                }
                let client = match self.connections.take(&server) {
                    Ok(client) => client,
                    Err(error) => {
                        last = Some(format!("{server}: {error}"));
                        continue;
                    }
                };
                match self.asked(&server, client, &ask) {
                    Asked::Answered(answer) => return answer.map_err(Error::Refused),
                    Asked::Unanswered(source) if act == Act::Write => return Err(Error::Unknown { server, source }),
                    Asked::Unanswered(source) => last = Some(format!("{server}: {source}")),
                }
            }
            if Instant::now() >= until {
                let last = last.unwrap_or_else(|| "none is registered".to_owned());
                let trouble = self.registry.trouble();
                let last = if trouble.is_empty() { last } else { format!("{last}; {trouble}") };
                return Err(Error::Unreachable { key: key.to_owned(), patience: self.patience, last });
            }
            // Another may register meanwhile.
            self.registry.wait(&table, until);
        }
    }

    fn asked<T>(
        &self,
        server: &Address,
        mut client: Client,
        ask: impl Fn(&mut Client) -> thrift::Result<T>,
    ) -> Asked<T> {
        use ApplicationErrorKind as Kind;
        match ask(&mut client) {
            Ok(answer) => {
                self.connections.give(server, client);
                Asked::Answered(Ok(answer))
            }
            Err(thrift::Error::Application(error)) if error.kind == Kind::Unknown => {
                self.connections.give(server, client);
                Asked::Answered(Err(error))
            }
            // The server may close the connection after these.
            Err(thrift::Error::Application(error))
                if matches!(error.kind, Kind::UnknownMethod | Kind::InternalError | Kind::ProtocolError) =>
            {
                Asked::Answered(Err(error))
            }
            // Others are found here: what came is no answer to this call.
            Err(error) => {
                self.connections.end(server);
                Asked::Unanswered(error)
            }
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("kind", &self.kind).field("table", &self.registry.table()).finish_non_exhaustive()
    }
}

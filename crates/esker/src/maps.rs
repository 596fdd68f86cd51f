//! Maps by their location: on Cassandra, or on any store.
//!
//! `cassandra://node1:9042,node2/prefix?replication=3` → Cassandra · everything else → [`Store`] → its map
//!
//! Invariant: an option that does not exist is an error before anything is connected.

use std::sync::Arc;

use esker_map::MapStorage;

use crate::{Error, Result, Store};

/// What the location of a map on Cassandra begins with.
const CASSANDRA: &str = "cassandra://";

/// A map that was opened by its location, with what is below it.
pub struct OpenMap {
    storage: Arc<dyn MapStorage>,
    store: Option<Store>,
}

impl OpenMap {
    /// Opens a map: `cassandra://HOST:PORT,…/PREFIX` (with cargo feature `cassandra`), or a store's, by any location
    /// that [`Store::open`] takes.
    ///
    /// Options of `cassandra://`: `replication` (copies of each row, for keyspaces that are made; one on each node, up
    /// to 3), `timeout` (10s), `forget` (how much longer Cassandra keeps what expired or was deleted; 1h), `user` and
    /// `password_file`. Nothing on the way to Cassandra is encrypted, the password neither.
    ///
    /// ```
    /// use esker::map::MapStorage;
    ///
    /// let map = esker::OpenMap::open("memory:")?;
    /// map.storage().create_namespace("shop")?;
    /// assert_eq!(map.storage().namespaces()?, ["shop"]);
    /// map.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Store::open`] and [`Store::map`]; [`Error::NotBuilt`] without the feature; [`Error::BadOption`],
    /// [`Error::UnknownOption`].
    pub fn open(location: &str) -> Result<Self> {
        if let Some(place) = location.strip_prefix(CASSANDRA) {
            return Ok(Self { storage: cassandra(place)?, store: None });
        }
        let store = Store::open(location)?;
        Ok(Self { storage: Arc::new(store.map()?), store: Some(store) })
    }

    /// The map.
    pub fn storage(&self) -> &Arc<dyn MapStorage> {
        &self.storage
    }

    /// The store below it, if it is one.
    pub fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// Makes everything durable and lets go of the store.
    ///
    /// # Errors
    /// Those of [`Store::close`].
    pub fn close(&self) -> Result<()> {
        self.store.as_ref().map_or(Ok(()), Store::close)
    }
}

#[cfg(not(feature = "cassandra"))]
fn cassandra(_place: &str) -> Result<Arc<dyn MapStorage>> {
    Err(Error::NotBuilt { scheme: "cassandra", feature: "cassandra" })
}

#[cfg(feature = "cassandra")]
fn cassandra(text: &str) -> Result<Arc<dyn MapStorage>> {
    use esker_cassandra::{Cassandra, Options, Random};
    use esker_kv::{Clock, SystemClock};

    use crate::Period;

    let (place, query) = text.split_once('?').unwrap_or((text, ""));
    let place = place.parse()?;
    let mut options = Options::default();
    let (mut user, mut password) = (None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let expected = "options as key=value, joined by &";
        let (key, value) = pair.split_once('=').ok_or_else(|| Error::Location { found: pair.into(), expected })?;
        let bad = |why: String| Error::BadOption { key: key.into(), found: value.into(), why };
        let period = || value.parse::<Period>().map(|period| period.0).map_err(|error| bad(error.to_string()));
        match key {
            "replication" => {
                let known = value.parse().ok().filter(|copies| (1..=100).contains(copies));
                options.replication = known.ok_or_else(|| bad("expected 1 to 100".into()))?;
            }
            "timeout" => options.timeout = period()?,
            "forget" => options.forget = period()?,
            "user" => user = Some(value.to_owned()),
            "password_file" => {
                let io = |source| Error::Io { what: "read", path: value.into(), source };
                let text = std::fs::read_to_string(value).map_err(io)?;
                password = Some(text.lines().next().unwrap_or_default().to_owned());
            }
            "authorities" | "certificate" | "key" => {
                return Err(bad("connections to Cassandra cannot be encrypted (0013-map-on-cassandra.md)".into()));
            }
            _ => {
                let expected = "replication, timeout, forget, user, password_file".into();
                return Err(Error::UnknownOption { key: key.into(), expected });
            }
        }
    }
    options.user = user.map(|user| (user, password.unwrap_or_default()));
    let mut random = Random { secret: [0; 32], handle: [0; 8] };
    for bytes in [&mut random.secret[..], &mut random.handle] {
        getrandom::fill(bytes).map_err(|error| Error::Random { why: error.to_string() })?;
    }
    let clock = Arc::new(|| SystemClock.now_ms());
    Ok(Arc::new(Cassandra::open(&place, options, clock, random)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_on_cassandra_is_refused_with_its_reason_before_anything_is_connected() {
        let check = |location: &str, named: &str| {
            let error = OpenMap::open(location).map(drop).unwrap_err().to_string();
            assert!(error.contains(named), "{location}: {error}");
        };
        if cfg!(feature = "cassandra") {
            check("cassandra://127.0.0.1:1", "keyspace-prefix");
            check("cassandra://127.0.0.1:1/p?replication=0", "1 to 100");
            check("cassandra://127.0.0.1:1/p?copies=3", "replication, timeout");
            check("cassandra://127.0.0.1:1/p?timeout", "key=value");
            for option in ["authorities", "certificate", "key"] {
                check(&format!("cassandra://127.0.0.1:1/p?{option}=ca.pem"), "cannot be encrypted");
            }
        } else {
            check("cassandra://127.0.0.1:1/p", "cassandra");
        }
        check("nothing:x", "expected");
    }
}

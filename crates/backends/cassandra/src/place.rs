//! Where a map on Cassandra is: nodes and the prefix of its keyspaces.
//!
//! `node1:9042,node2/shop` → [`Place`]

use crate::{Error, Result};

/// The port where it is not said.
const PORT: u16 = 9042;
/// Longest prefix of keyspaces, in bytes: the number of a namespace has to fit behind it in Cassandra's 48.
pub const PREFIX_BYTES_MAX: usize = 24;

/// Nodes of a cluster, and what the names of our keyspaces begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// `host:port` of some nodes: the others are found through them.
    pub nodes: Vec<String>,
    /// A lower-case letter, then lower-case letters, digits and underscores; at most [`PREFIX_BYTES_MAX`].
    pub prefix: String,
}

impl std::str::FromStr for Place {
    type Err = Error;

    /// Reads `host:port,host:port/prefix`. Without a port it is 9042; an IPv6 address stands in brackets.
    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: String| Error::Place { found: text.into(), why };
        let (nodes, prefix) =
            text.split_once('/').ok_or_else(|| bad("expected host:port,host:port/keyspace-prefix".into()))?;
        let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if !(1..=PREFIX_BYTES_MAX).contains(&prefix.len())
            || !prefix.starts_with(|c: char| c.is_ascii_lowercase())
            || !prefix.chars().all(letter)
        {
            let why = format!(
                "the prefix {prefix:?}: expected a letter of a-z and up to {PREFIX_BYTES_MAX} bytes of a-z, 0-9 and _ (PREFIX_BYTES_MAX)"
            );
            return Err(bad(why));
        }
        let nodes = nodes
            .split(',')
            .map(|node| {
                let port =
                    |port: &str| port.parse().map_err(|_| bad(format!("the port {port:?}: expected 1 to 65535")));
                let (host, port) = match (node.rfind(':'), node.rfind(']')) {
                    (Some(colon), bracket) if bracket.is_none_or(|bracket| bracket < colon) => {
                        (&node[..colon], port(&node[colon + 1..])?)
                    }
                    _ => (node, PORT),
                };
                if host.is_empty() || port == 0 {
                    return Err(bad(format!("the node {node:?}: expected host or host:port")));
                }
                Ok(format!("{host}:{port}"))
            })
            .collect::<Result<_>>()?;
        Ok(Self { nodes, prefix: prefix.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_documented() {
        let check = |text: &str, nodes: &[&str], prefix: &str| {
            let place: Place = text.parse().unwrap();
            assert_eq!(
                (place.nodes, place.prefix.as_str()),
                (nodes.iter().map(|node| (*node).to_owned()).collect(), prefix)
            );
        };
        check("localhost/shop", &["localhost:9042"], "shop");
        check("10.0.0.1:19042,node2/a_1", &["10.0.0.1:19042", "node2:9042"], "a_1");
        check("[::1]:19042,[::1]/x", &["[::1]:19042", "[::1]:9042"], "x");
    }

    #[test]
    fn what_is_wrong_with_a_place_is_named() {
        let long = format!("host/{}", "p".repeat(PREFIX_BYTES_MAX + 1));
        for (text, named) in [
            ("host", "keyspace-prefix"),
            ("host/", "PREFIX_BYTES_MAX"),
            ("host/Shop", "\"Shop\""),
            ("host/1shop", "\"1shop\""),
            ("host/s;drop", "\"s;drop\""),
            (&long, "PREFIX_BYTES_MAX"),
            ("/shop", "node \"\""),
            ("a,,b/shop", "node \"\""),
            ("host:port/shop", "\"port\""),
            ("host:70000/shop", "\"70000\""),
            ("host:0/shop", "host:0"),
        ] {
            let error = text.parse::<Place>().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}

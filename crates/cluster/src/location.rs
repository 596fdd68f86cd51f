//! Where the coordinator is: `zk://host:port,host,host/root/node`.
//!
//! text → hosts (port 2181 where none is given), root node (`/esker` where none is given) → text
//!
//! Invariant: what is displayed parses to the same.

use std::fmt;
use std::str::FromStr;

const SCHEME: &str = "zk://";
const PORT_DEFAULT: u16 = 2181;
const ROOT_DEFAULT: &str = "/esker";

/// The servers of a ZooKeeper ensemble, and the node that everything stands below.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    hosts: Vec<(String, u16)>,
    root: String,
}

/// Why a text is no location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no place of a coordinator ({reason}); one looks like zk://host1:2181,host2,host3/esker")]
pub struct LocationError {
    text: String,
    reason: String,
}

impl Location {
    /// The node that everything stands below: begins with `/`, does not end with it.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The servers as ZooKeeper's clients take them: `host:port`, with commas between.
    pub fn servers(&self) -> String {
        let servers: Vec<_> = self.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        servers.join(",")
    }
}

impl FromStr for Location {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Self, LocationError> {
        let error = |reason: String| LocationError { text: text.to_string(), reason };
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| error(format!("it does not begin with {SCHEME}")))?;
        let (servers, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let hosts = servers.split(',').map(|server| host(server).map_err(error)).collect::<Result<_, _>>()?;
        let root = match path.trim_end_matches('/') {
            "" => ROOT_DEFAULT.to_string(),
            path => path.to_string(),
        };
        for segment in root.split('/').skip(1) {
            let bad = |letter: char| letter.is_control() || letter.is_whitespace();
            if segment.is_empty() || segment == "." || segment == ".." || segment.contains(bad) {
                return Err(error(format!("`{segment}` cannot be a part of a node's path")));
            }
        }
        if root == "/zookeeper" || root.starts_with("/zookeeper/") {
            return Err(error("what is below /zookeeper is ZooKeeper's own".into()));
        }
        Ok(Self { hosts, root })
    }
}

/// The host and port of one server.
fn host(server: &str) -> Result<(String, u16), String> {
    let (host, port) = match server.split_once(':') {
        Some((host, port)) => match port.parse() {
            Ok(port) if port > 0 => (host, port),
            _ => return Err(format!("`{port}` is no port: a number from 1 to 65535")),
        },
        None => (server, PORT_DEFAULT),
    };
    let good = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    if host.is_empty() || !host.chars().all(good) {
        return Err(format!("`{host}` is no host: a name or an IPv4 address"));
    }
    Ok((host.to_string(), port))
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}{}", self.servers(), self.root)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn ports_and_the_root_have_defaults() {
        for (text, shown) in [
            ("zk://h1:2181,h2,h3/esker/path", "zk://h1:2181,h2:2181,h3:2181/esker/path"),
            ("zk://127.0.0.1:7", "zk://127.0.0.1:7/esker"),
            ("zk://a.example/", "zk://a.example:2181/esker"),
            ("zk://a/x/", "zk://a:2181/x"),
        ] {
            let location: Location = text.parse().unwrap();
            assert_eq!(location.to_string(), shown);
            assert_eq!(shown.parse(), Ok(location), "what is shown parses to the same");
        }
    }

    #[test]
    fn what_is_no_location_is_told_why() {
        for (text, why) in [
            ("h1:2181/esker", "does not begin with zk://"),
            ("zk://", "`` is no host"),
            ("zk://a,,b/x", "`` is no host"),
            ("zk://a:0/x", "`0` is no port"),
            ("zk://a:70000/x", "`70000` is no port"),
            ("zk://a:/x", "`` is no port"),
            ("zk://a b/x", "`a b` is no host"),
            ("zk://a//x", "`` cannot be a part"),
            ("zk://a/x/../y", "`..` cannot be a part"),
            ("zk://a/zookeeper/x", "ZooKeeper's own"),
        ] {
            let error = text.parse::<Location>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(text), "{error}");
        }
    }
}

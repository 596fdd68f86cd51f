//! Instances of a service as clients of Zing Database look for them: nodes that are gone with their server's session.
//!
//! `SERVICE/PROTOCOL_MARK:HOST:PORT`, which holds the same text → [`Instance`] → the keys from the mark before up
//! to its own are there
//!
//! Invariants:
//! 1. A server changes no node but those of its own address.
//! 2. What is no instance is named, and keeps none from being found.
//!
//! Source: Zing Database: high-performance key-value store for large-scale storage service (2015), 2.6.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use zookeeper_client as zk;

use crate::coordinator::Coordinator;
use crate::error::{Error, Result};
use crate::session::{Call, Session};

/// Longest protocol, in bytes.
const PROTOCOL_BYTES_MAX: usize = 64;

/// A server of a service: it has the keys below its mark, down to the next lower mark of another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    /// The end of its keys: the first key, or slot, that it does not have.
    pub mark: u64,
    /// How it is spoken to, such as `thriftbinary`.
    pub protocol: String,
    /// Its name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// What cannot be an instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no instance of a service: one looks like thriftbinary_10000000:10.0.0.1:9901")]
pub struct InstanceError {
    text: String,
}

impl InstanceError {
    /// What is none.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mark, protocol, host, port } = self;
        write!(f, "{protocol}_{mark}:{host}:{port}")
    }
}

impl FromStr for Instance {
    type Err = InstanceError;

    /// As it is displayed, or with a blank or a colon between protocol and mark, as the paper prints it.
    fn from_str(text: &str) -> std::result::Result<Self, InstanceError> {
        let parsed = || {
            let at = text.find(['_', ' ', ':'])?;
            let (protocol, rest) = (&text[..at], &text[at + 1..]);
            let (mark, rest) = rest.split_once(':')?;
            let (host, port) = rest.rsplit_once(':')?;
            let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
            let fits = (1..=PROTOCOL_BYTES_MAX).contains(&protocol.len()) && !host.is_empty();
            let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            if !fits || !is_plain(protocol) || !is_plain(host) || !digits(mark) || !digits(port) {
                return None;
            }
            let port = port.parse().ok().filter(|port| *port > 0)?;
            Some(Self { mark: mark.parse().ok()?, protocol: protocol.into(), host: host.into(), port })
        };
        parsed().ok_or_else(|| InstanceError { text: text.to_owned() })
    }
}

/// What stands below the node of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instances {
    /// By mark.
    pub found: Vec<Instance>,
    /// Nodes that are none, and why.
    pub strange: Vec<InstanceError>,
}

impl Instances {
    /// What these names of nodes tell.
    fn named(names: &[String]) -> Self {
        let mut told = Self::default();
        for name in names {
            match name.parse() {
                Ok(instance) => told.found.push(instance),
                Err(error) => told.strange.push(error),
            }
        }
        told.found.sort_unstable();
        told.strange.sort_unstable_by(|one, other| one.text.cmp(&other.text));
        told
    }
}

/// Waits for changes of what stands below the node of a service.
pub struct InstanceChanges {
    session: Session,
    service: String,
    seen: Option<Instances>,
}

impl InstanceChanges {
    /// What stands there, as soon as it is other than this last returned; the first time at once. It may wait for ever.
    /// Dropping it while it waits loses nothing.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Unreachable`]; then what changed meanwhile is told later.
    pub async fn next(&mut self) -> Result<Instances> {
        loop {
            let (call, service) = (self.session.call().await?, self.service.as_str());
            let (names, watch) = match call.read(service, call.client.list_and_watch_children(service)).await? {
                Ok((names, watch)) => (names, watch),
                Err(_) => match call.read(service, call.client.check_and_watch_stat(service)).await? {
                    Ok((None, watch)) => (Vec::new(), watch),
                    // It was made between the two.
                    _ => continue,
                },
            };
            let now = Instances::named(&names);
            if self.seen.as_ref() != Some(&now) {
                self.seen = Some(now.clone());
                return Ok(now);
            }
            // Also where the session has ended: it is looked again in the next.
            watch.changed().await;
        }
    }
}

/// Refuses what cannot be the node of a service: a path from the root, not below `/zookeeper`.
///
/// # Errors
/// [`Error::Refused`].
pub fn check_service(service: &str) -> Result<()> {
    let bad = |letter: char| letter.is_control() || letter.is_whitespace();
    let parts = service.strip_prefix('/').map(|rest| rest.split('/').collect::<Vec<_>>()).unwrap_or_default();
    let fits = |part: &&str| !part.is_empty() && *part != "." && *part != ".." && !part.contains(bad);
    if parts.is_empty() || !parts.iter().all(fits) || parts[0] == "zookeeper" {
        let reason = "the node of a service is a path such as /data/zdb".to_owned();
        return Err(Error::Refused { node: service.to_owned(), reason });
    }
    Ok(())
}

impl Coordinator {
    /// The instances below the node of a service; none, where there is no such node.
    ///
    /// # Errors
    /// [`Error::Refused`] where that can be no node, [`Error::Unreachable`].
    pub async fn instances(&self, service: &str) -> Result<Instances> {
        check_service(service)?;
        let call = self.call().await?;
        Ok(Instances::named(&children(&call, service).await?))
    }

    /// The changes of what stands below the node of a service.
    ///
    /// # Errors
    /// [`Error::Refused`] where that can be no node.
    pub fn instance_changes(&self, service: &str) -> Result<InstanceChanges> {
        check_service(service)?;
        Ok(InstanceChanges { session: self.session().clone(), service: service.to_owned(), seen: None })
    }

    /// Has these instances stand below the node of a service, for as long as the session lasts, and no others at their
    /// addresses and those of `before`. To be called again and again: a session may end.
    ///
    /// # Errors
    /// [`Error::Refused`] where that can be no node, [`Error::Unreachable`], [`Error::Unknown`].
    pub async fn announce(
        &self,
        service: &str,
        wanted: &BTreeSet<Instance>,
        before: &BTreeSet<Instance>,
    ) -> Result<()> {
        check_service(service)?;
        let call = self.call().await?;
        let own: BTreeSet<(&str, u16)> =
            wanted.iter().chain(before).map(|instance| (instance.host.as_str(), instance.port)).collect();
        let mut there: BTreeMap<Instance, String> = BTreeMap::new();
        for name in children(&call, service).await? {
            let Ok(instance) = name.parse::<Instance>() else { continue };
            if own.contains(&(instance.host.as_str(), instance.port)) {
                there.insert(instance, name);
            }
        }
        let session = call.client.session_id().0;
        let mut stands = BTreeSet::new();
        for (instance, name) in &there {
            let call = self.call().await?;
            let node = format!("{service}/{name}");
            let owner = call.read(&node, call.client.check_stat(&node)).await?.ok().flatten();
            let is_ours = owner.is_some_and(|stat| stat.ephemeral_owner == session);
            if wanted.contains(instance) && is_ours {
                stands.insert(instance);
            } else {
                // Whether it is gone already does not matter.
                let _ = call.write(&node, call.client.delete(&node, None)).await?;
            }
        }
        let missing: Vec<_> = wanted.iter().filter(|instance| !stands.contains(instance)).collect();
        if !missing.is_empty() {
            self.call().await?.ensure(service).await?;
        }
        for instance in missing {
            let (call, text) = (self.call().await?, instance.to_string());
            let node = format!("{service}/{text}");
            let ephemeral = zk::CreateMode::Ephemeral.with_acls(zk::Acls::anyone_all());
            // One that another start of this server has made meanwhile is replaced the next time.
            let _ = call.write(&node, call.client.create(&node, text.as_bytes(), &ephemeral)).await?;
        }
        Ok(())
    }
}

async fn children(call: &Call, service: &str) -> Result<Vec<String>> {
    Ok(call.read(service, call.client.list_children(service)).await?.unwrap_or_default())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_read_in_each_spelling_and_written_in_one() {
        let instance =
            Instance { mark: 10_000_000, protocol: "thriftbinary".into(), host: "20.192.5.18".into(), port: 9_901 };
        assert_eq!(instance.to_string(), "thriftbinary_10000000:20.192.5.18:9901");
        for text in [
            "thriftbinary_10000000:20.192.5.18:9901",
            "thriftbinary 10000000:20.192.5.18:9901",
            "thriftbinary:10000000:20.192.5.18:9901",
        ] {
            assert_eq!(text.parse(), Ok(instance.clone()), "{text}");
        }
        let other: Instance = "thriftbinary_1:[::1]:9901".parse().unwrap();
        assert_eq!((other.host.as_str(), other.port), ("[::1]", 9_901));
    }

    #[test]
    fn nonsense_is_named() {
        for text in [
            "",
            "_",
            "thriftbinary",
            "thriftbinary_10",
            "thriftbinary_10:host",
            "thriftbinary_10::9901",
            "thriftbinary_ten:host:9901",
            "thriftbinary_+10:host:9901",
            "thriftbinary_99999999999999999999:host:9901",
            "thriftbinary_10:host:0",
            "thriftbinary_10:host:70000",
            "thriftbinary_10:ho st:9901",
            "_10:host:9901",
            &format!("{}_10:host:9901", "p".repeat(65)),
        ] {
            let error = text.parse::<Instance>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
        for service in ["", "data", "/", "/data/", "/data//zdb", "/data/../zdb", "/zookeeper/x", "/a b"] {
            assert!(check_service(service).is_err(), "{service}");
        }
        assert!(check_service("/data/zdb").is_ok());
    }
}

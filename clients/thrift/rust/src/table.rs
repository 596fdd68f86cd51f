//! What stood in the registry at one time: marks, and the servers of each.
//!
//! instances → mark → servers → those of the first mark behind a place, then all others
//!
//! Invariant: a place has servers unless there are none.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use esker_cluster::Instances;
use esker_kv::{Kind, RANGE_KEYS, SLOTS, slot_of};

use crate::address::Address;
use crate::error::{Error, Result};

/// The protocol of the instances that a ring calls.
const PROTOCOL: &str = "thriftbinary";

/// Marks and their servers. Does not change.
#[derive(Debug, Default)]
pub(crate) struct Table {
    by_mark: BTreeMap<u64, Vec<Address>>,
    /// Nodes that are no instances that a ring can call.
    pub strange: Vec<String>,
}

impl Table {
    pub fn new(instances: Instances) -> Self {
        let mut table = Self::default();
        table.strange.extend(instances.strange.iter().map(|error| error.text().to_owned()));
        for instance in instances.found {
            if instance.protocol == PROTOCOL {
                let address = Address { host: instance.host, port: instance.port };
                table.by_mark.entry(instance.mark).or_default().push(address);
            } else {
                table.strange.push(instance.to_string());
            }
        }
        table.strange.sort_unstable();
        table
    }

    /// The servers of the first mark behind a place; behind the last mark the ring begins anew.
    pub fn keepers_of(&self, place: u64) -> &[Address] {
        self.from(place).next().map_or(&[], Vec::as_slice)
    }

    /// All servers, those that keep a place first, each once: any of them answers.
    pub fn order_for(&self, place: u64) -> Vec<Address> {
        let mut seen = BTreeSet::new();
        self.from(place).flatten().filter(|address| seen.insert(*address)).cloned().collect()
    }

    pub fn has(&self, address: &Address) -> bool {
        self.by_mark.values().any(|servers| servers.contains(address))
    }

    fn from(&self, place: u64) -> impl Iterator<Item = &Vec<Address>> {
        let behind = self.by_mark.range((Bound::Excluded(place), Bound::Unbounded));
        behind.chain(self.by_mark.range(..=place)).map(|(_, servers)| servers)
    }
}

/// Where a key is on the ring: a number below the last mark for int keys, a slot for others.
///
/// # Errors
/// [`Error::Key`].
pub(crate) fn place_of(kind: Kind, key: &str) -> Result<u64> {
    if kind == Kind::Bytes {
        return Ok(slot_of(key.as_bytes()).into());
    }
    let plain = key.bytes().all(|byte| byte.is_ascii_digit()) && (key.len() == 1 || !key.starts_with('0'));
    let number: Option<u64> = key.parse().ok().filter(|_| plain);
    number.map(|number| number % (SLOTS * RANGE_KEYS)).ok_or_else(|| Error::Key(key.to_owned()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn table(names: &[&str]) -> Table {
        let mut instances = Instances::default();
        for name in names {
            match name.parse() {
                Ok(instance) => instances.found.push(instance),
                Err(error) => instances.strange.push(error),
            }
        }
        Table::new(instances)
    }

    fn hosts(addresses: &[Address]) -> Vec<&str> {
        addresses.iter().map(|address| address.host.as_str()).collect()
    }

    #[test]
    fn the_first_mark_behind_a_place_has_it_and_the_others_follow() {
        let ring = table(&["thriftbinary_10:a:1", "thriftbinary_20:b:1", "thriftbinary_20:c:1", "thriftbinary_30:a:1"]);
        for (place, keepers, order) in [
            (0, &["a"][..], &["a", "b", "c"][..]),
            (9, &["a"], &["a", "b", "c"]),
            (10, &["b", "c"], &["b", "c", "a"]),
            (29, &["a"], &["a", "b", "c"]),
            (30, &["a"], &["a", "b", "c"]),
        ] {
            assert_eq!(hosts(ring.keepers_of(place)), keepers, "{place}");
            assert_eq!(hosts(&ring.order_for(place)), order, "{place}");
        }
        assert!(ring.has(&Address { host: "c".into(), port: 1 }) && !ring.has(&Address { host: "c".into(), port: 2 }));
        assert_eq!((table(&[]).keepers_of(7), table(&[]).order_for(7)), (&[][..], Vec::new()));
    }

    #[test]
    fn what_a_ring_cannot_call_is_strange() {
        let ring = table(&["nonsense", "http_7:h:80", "thriftbinary_7:[::1]:9901"]);
        assert_eq!(ring.strange, ["http_7:h:80", "nonsense"]);
        assert_eq!(ring.keepers_of(0)[0].to_string(), "[::1]:9901");
    }

    #[test]
    fn int_keys_are_numbers() {
        for (key, place) in [("0", 0), ("7", 7), ("1073741824", 0), ("18446744073709551615", (1 << 30) - 1)] {
            assert_eq!(place_of(Kind::Int, key).unwrap(), place, "{key}");
        }
        for key in ["", "x", "07", "+7", "-1", "7 ", "18446744073709551616"] {
            let error = place_of(Kind::Int, key).unwrap_err().to_string();
            assert!(error.contains(&format!("{key:?}")), "{error}");
        }
        // As CLUSTER KEYSLOT of redis-server 7.0 tells them.
        assert_eq!((place_of(Kind::Bytes, "foo").unwrap(), place_of(Kind::Bytes, "07").is_ok()), (12_182, true));
    }
}

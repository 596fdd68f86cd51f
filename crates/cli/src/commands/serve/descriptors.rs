//! File descriptors: the limit is raised, and the servers' limits are kept within it.
//!
//! Invariant: the process may open what the limits allow together. The server refuses a connection by a limit, with its
//! name, and never for want of descriptors, which would keep all protocols from accepting.

use esker_server::{grpc, http, nbd, resp, thrift};
use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors for the store, the threads, the listeners and what they need meanwhile.
const OWN: usize = 96;
/// Each limit is at least this.
const LEAST: usize = 4;

/// Raises the limit of descriptors to what the system allows; what it is then.
pub fn raise() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::warn!(%error, "the limit of file descriptors cannot be raised");
            limit.current
        }
    };
    current.map_or(usize::MAX, |current| usize::try_from(current).unwrap_or(usize::MAX))
}

/// What each store of the process has of so many descriptors: equal parts of what connections of peers leave, if there
/// are peers.
pub fn part(descriptors: usize, stores: usize, has_peers: bool) -> usize {
    let peers = if has_peers { esker_peers::CONNECTIONS_MAX + esker_peers::STRANGERS_MAX } else { 0 };
    descriptors.saturating_sub(peers) / stores.max(1)
}

/// Lowers the limits, all in the same proportion, to what fits `descriptors`, with HTTP served on so many addresses;
/// then returns words that say what they are.
pub fn fit(
    descriptors: usize,
    resp: &mut resp::Config,
    nbd: Option<&mut nbd::Config>,
    grpc: Option<&mut grpc::Config>,
    thrift: Option<&mut thrift::Config>,
    http_doors: usize,
) -> Option<String> {
    let mut limits: Vec<(&str, &mut usize)> =
        vec![("max_clients", &mut resp.clients_max), ("unauthenticated clients", &mut resp.strangers_max)];
    if let Some(nbd) = nbd {
        limits.push(("nbd_connections", &mut nbd.connections_max));
        // Twice, until the threads of those that made room have ended.
        limits.push(("negotiating NBD clients", &mut nbd.strangers_max));
    }
    if let Some(grpc) = grpc {
        limits.push(("grpc_connections", &mut grpc.connections_max));
        limits.push(("gRPC clients without a request", &mut grpc.strangers_max));
    }
    if let Some(thrift) = thrift {
        limits.push(("thrift_connections", &mut thrift.connections_max));
        limits.push(("Thrift clients without a call", &mut thrift.strangers_max));
    }
    let own = OWN + http_doors * http::CONNECTIONS_MAX;
    let room = descriptors.saturating_sub(own);
    let wanted: usize =
        limits.iter().map(|(name, max)| **max * if name.starts_with("negotiating") { 2 } else { 1 }).sum();
    if wanted <= room {
        return None;
    }
    for (_, max) in &mut limits {
        **max = (max.saturating_mul(room) / wanted).max(LEAST).min(**max);
    }
    let now: Vec<String> = limits.iter().map(|(name, max)| format!("{max} {name}")).collect();
    Some(now.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_kept_within_the_descriptors_there_are() {
        let configs = || {
            let (resp, nbd, grpc) = (resp::Config::default(), nbd::Config::default(), grpc::Config::default());
            (resp, nbd, grpc, thrift::Config::default())
        };
        let (mut resp, mut nbd, mut grpc, mut thrift) = configs();
        assert_eq!(fit(20_000, &mut resp, Some(&mut nbd), Some(&mut grpc), Some(&mut thrift), 1), None);
        assert_eq!((resp.clients_max, nbd.connections_max, grpc.strangers_max), (10_000, 256, 1_024));
        for descriptors in [1_024, 4_096] {
            let (mut resp, mut nbd, mut grpc, mut thrift) = configs();
            let all = (&mut resp, Some(&mut nbd), Some(&mut grpc), Some(&mut thrift));
            let line = fit(descriptors, all.0, all.1, all.2, all.3, 1).unwrap();
            let all = resp.clients_max
                + resp.strangers_max
                + nbd.connections_max
                + 2 * nbd.strangers_max
                + grpc.connections_max
                + grpc.strangers_max
                + thrift.connections_max
                + thrift.strangers_max
                + http::CONNECTIONS_MAX;
            assert!(all + OWN <= descriptors && all > descriptors / 2, "{all} of {descriptors}: {line}");
            assert!(line.contains(&format!("{} max_clients", resp.clients_max)), "{line}");
        }
        assert_eq!((part(4_096, 1, false), part(4_320, 2, true), part(64, 1, true)), (4_096, 2_000, 0));
        let (mut resp, ..) = configs();
        assert!(fit(64, &mut resp, None, None, None, 0).is_some());
        assert_eq!((resp.clients_max, resp.strangers_max), (LEAST, LEAST));
    }
}

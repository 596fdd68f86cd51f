//! CLUSTER, as clients of Redis Cluster use it to find the nodes; READONLY, READWRITE, ASKING.
//!
//! the cluster's view → slots by node, in the forms of Redis 7.0
//!
//! Invariant: one reply is made from one view.

use std::fmt::Write as _;
use std::sync::Arc;

use esker_kv::{SLOTS, slot_of};

use crate::resp::cluster::{ClusterNode, ClusterView, SlotRange};
use crate::resp::commands::{Call, Outcome, Refusal, help, subcommand};

pub(crate) fn cluster(call: &mut Call<'_>) -> Outcome {
    subcommand(
        call,
        "cluster",
        &[
            ("countkeysinslot", 3, count_keys_in_slot),
            ("help", 2, show_help),
            ("info", 2, info),
            ("keyslot", 3, key_slot),
            ("myid", 2, my_id),
            ("nodes", 2, nodes),
            ("shards", 2, shards),
            ("slots", 2, slots),
        ],
    )
}

/// READONLY: replicas may answer its reads.
pub(crate) fn readonly(call: &mut Call<'_>) -> Outcome {
    view(call)?;
    call.session.reads_replicas = true;
    call.reply.ok();
    Ok(())
}

/// READWRITE: heads alone may.
pub(crate) fn readwrite(call: &mut Call<'_>) -> Outcome {
    view(call)?;
    call.session.reads_replicas = false;
    call.reply.ok();
    Ok(())
}

/// ASKING: slots are not moved, so that it changes nothing.
pub(crate) fn asking(call: &mut Call<'_>) -> Outcome {
    view(call)?;
    call.reply.ok();
    Ok(())
}

fn view(call: &Call<'_>) -> Result<Arc<ClusterView>, Refusal> {
    let cluster = call.shared.config.cluster.as_ref();
    Ok(cluster.ok_or("ERR This instance has cluster support disabled")?.view())
}

fn show_help(call: &mut Call<'_>) -> Outcome {
    view(call)?;
    let lines = [
        "INFO",
        "    Return information about the cluster.",
        "KEYSLOT <key>",
        "    Return the hash slot for <key>.",
        "MYID",
        "    Return the node id.",
        "NODES",
        "    Return cluster configuration seen by node. Output format:",
        "    <id> <ip:port> <flags> <master> <pings> <pongs> <epoch> <link> <slot> ...",
        "SLOTS",
        "    Return information about slots range mappings. Each range is made of:",
        "    start, end, master and replicas IP addresses, ports and ids",
        "SHARDS",
        "    Return information about slot range mappings and the nodes associated with them.",
    ];
    help(call, "CLUSTER", &lines)
}

fn key_slot(call: &mut Call<'_>) -> Outcome {
    view(call)?;
    call.reply.int(slot_of(call.arg(2)).into());
    Ok(())
}

fn my_id(call: &mut Call<'_>) -> Outcome {
    let view = view(call)?;
    call.reply.bulk(view.me().id.as_bytes());
    Ok(())
}

/// The keys of a slot lie among those of others: to count them all would have to be read.
fn count_keys_in_slot(call: &mut Call<'_>) -> Outcome {
    view(call)?;
    let slot = call.int_arg(2)?;
    if !u64::try_from(slot).is_ok_and(|slot| slot < SLOTS) {
        return Err("ERR Invalid slot".into());
    }
    Err("ERR keys are not counted by slot".into())
}

fn info(call: &mut Call<'_>) -> Outcome {
    let view = view(call)?;
    let sum = |counts: fn(&SlotRange, &[ClusterNode]) -> bool| -> u64 {
        view.ranges().iter().filter(|range| counts(range, view.nodes())).map(SlotRange::slots).sum()
    };
    let assigned = sum(|_, _| true);
    let served = sum(|range, nodes| range.head.is_some_and(|head| nodes[head].is_up));
    let is_head = |node: &usize| view.ranges().iter().any(|range| range.head == Some(*node));
    let heads = (0..view.nodes().len()).filter(is_head).count();
    let text = format!(
        "cluster_state:{}\r\ncluster_slots_assigned:{assigned}\r\ncluster_slots_ok:{served}\r\n\
         cluster_slots_pfail:0\r\ncluster_slots_fail:{}\r\ncluster_known_nodes:{}\r\ncluster_size:{heads}\r\n\
         cluster_current_epoch:{epoch}\r\ncluster_my_epoch:{epoch}\r\ncluster_stats_messages_sent:0\r\n\
         cluster_stats_messages_received:0\r\ntotal_cluster_links_buffer_limit_exceeded:0\r\n",
        if served == SLOTS { "ok" } else { "fail" },
        assigned - served,
        view.nodes().len(),
        epoch = view.epoch(),
    );
    call.reply.verbatim(&text);
    Ok(())
}

/// A line for each node. There is no bus between nodes, so that its port is 0, nor are there pings.
fn nodes(call: &mut Call<'_>) -> Outcome {
    let (view, tls) = (view(call)?, call.session.client.is_tls);
    let mut text = String::new();
    for (index, node) in view.nodes().iter().enumerate() {
        let is_me = node.id == view.me().id;
        let heads = || view.ranges().iter().filter(|range| range.head == Some(index));
        let followed = view.ranges().iter().find(|range| range.replicas.contains(&index));
        let followed = followed.filter(|_| heads().next().is_none());
        let head = followed.and_then(|range| range.head).map_or("-", |head| view.nodes()[head].id.as_str());
        // Nothing fails to be written to a string.
        let _ = write!(
            text,
            "{} {}:{}@0 {}{}{} {head} 0 0 {} {}",
            node.id,
            node.host,
            node.port_for(tls),
            if is_me { "myself," } else { "" },
            if followed.is_some() { "slave" } else { "master" },
            if node.is_up || is_me { "" } else { ",fail" },
            view.epoch(),
            if node.is_up || is_me { "connected" } else { "disconnected" },
        );
        for SlotRange { first, last, .. } in heads() {
            let _ = if first == last { write!(text, " {first}") } else { write!(text, " {first}-{last}") };
        }
        text.push('\n');
    }
    call.reply.verbatim(&text);
    Ok(())
}

/// The ranges that have a head, and of their replicas those that are up.
fn slots(call: &mut Call<'_>) -> Outcome {
    let view = view(call)?;
    let nodes = view.nodes();
    let led = || view.ranges().iter().filter_map(|range| Some((range, range.head?)));
    call.reply.array(led().count());
    for (range, head) in led() {
        let up: Vec<usize> = range.replicas.iter().copied().filter(|replica| nodes[*replica].is_up).collect();
        call.reply.array(3 + up.len());
        call.reply.int(range.first.into());
        call.reply.int(range.last.into());
        for node in std::iter::once(head).chain(up) {
            let node = &nodes[node];
            call.reply.array(4);
            call.reply.bulk(node.host.as_bytes());
            call.reply.int(node.port_for(call.session.client.is_tls).into());
            call.reply.bulk(node.id.as_bytes());
            call.reply.map(0);
        }
    }
    Ok(())
}

/// Ranges that the same nodes keep are one shard; a node that keeps none is one of its own.
fn shards(call: &mut Call<'_>) -> Outcome {
    let view = view(call)?;
    let mut shards: Vec<(Option<usize>, &[usize], Vec<&SlotRange>)> = Vec::new();
    for range in view.ranges() {
        let same = shards.iter_mut().find(|(head, replicas, _)| *head == range.head && *replicas == range.replicas);
        match same {
            Some((.., ranges)) => ranges.push(range),
            None => shards.push((range.head, &range.replicas, vec![range])),
        }
    }
    let is_idle =
        |node: &usize| !view.ranges().iter().any(|range| range.head == Some(*node) || range.replicas.contains(node));
    shards.extend((0..view.nodes().len()).filter(is_idle).map(|node| (Some(node), &[][..], Vec::new())));
    call.reply.array(shards.len());
    for (head, replicas, ranges) in shards {
        call.reply.map(2);
        call.reply.bulk(b"slots");
        call.reply.array(2 * ranges.len());
        for range in ranges {
            call.reply.int(range.first.into());
            call.reply.int(range.last.into());
        }
        call.reply.bulk(b"nodes");
        call.reply.array(usize::from(head.is_some()) + replicas.len());
        let named = head.into_iter().map(|head| (head, "master"));
        for (node, role) in named.chain(replicas.iter().map(|replica| (*replica, "replica"))) {
            shard_node(call, &view.nodes()[node], role);
        }
    }
    Ok(())
}

fn shard_node(call: &mut Call<'_>, node: &ClusterNode, role: &str) {
    let ports = [("port", Some(node.port).filter(|port| *port > 0)), ("tls-port", node.tls_port)];
    let ports = ports.into_iter().filter_map(|(name, port)| Some((name, port?)));
    call.reply.map(6 + ports.clone().count());
    call.reply.bulk(b"id");
    call.reply.bulk(node.id.as_bytes());
    for (name, port) in ports {
        call.reply.bulk(name.as_bytes());
        call.reply.int(port.into());
    }
    let health = if node.is_up { "online" } else { "fail" };
    for (name, value) in [("ip", node.host.as_str()), ("endpoint", &node.host), ("role", role)] {
        call.reply.bulk(name.as_bytes());
        call.reply.bulk(value.as_bytes());
    }
    call.reply.bulk(b"replication-offset");
    call.reply.int(0);
    call.reply.bulk(b"health");
    call.reply.bulk(health.as_bytes());
}

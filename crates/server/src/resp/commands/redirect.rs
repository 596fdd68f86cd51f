//! Whether a command is run by this node of a cluster; if not, the client is told which node to ask.
//!
//! Invariants:
//! 1. Without a cluster nothing is looked at but that there is none.
//! 2. A node whose store takes no writes runs nothing that writes.

use crate::resp::cluster::{ClusterView, Route};
use crate::resp::commands::{Call, Command, Outcome, READ, WRITE};
use crate::resp::queued::Queued;

/// Whether it looks at, or changes, keys that it does not name.
fn is_of_all_keys(command: &Command) -> bool {
    command.keys.0 == 0 && command.flags & (READ | WRITE) != 0
}

/// Refuses a command that another node runs, or none.
#[inline]
pub(crate) fn redirect(call: &Call<'_>, command: &Command) -> Outcome {
    match &call.shared.config.cluster {
        Some(cluster) if command.keys.0 != 0 || is_of_all_keys(command) => {
            let view = cluster.view();
            if call.shared.config.reading.is_some() && is_read_here(call, command, &view) {
                return Ok(());
            }
            let route = if is_of_all_keys(command) { view.route_all() } else { view.route(command.keys_of(call.args)) };
            refuse(call, &route)
        }
        _ => Ok(()),
    }
}

/// Whether a replica answers it: it only reads, outside MULTI, which has to see one moment, and of a client that asked
/// for it; as in Redis, what names no keys is of the node that is asked.
fn is_read_here(call: &Call<'_>, command: &Command, view: &ClusterView) -> bool {
    let session = &call.session;
    let reads = command.flags & (READ | WRITE) == READ && session.queue.is_none();
    let asked = command.keys.0 == 0 || session.reads_replicas && view.keeps(command.keys_of(call.args));
    // One that its head has not made yet, or not whole, is the head's.
    reads && asked && call.shared.keyspace.database(session.database).is_ok()
}

/// Refuses queued commands that another node runs by now, or none: all of them as if they were one.
pub(crate) fn redirect_queue(call: &Call<'_>, queue: &[Queued]) -> Outcome {
    let Some(cluster) = &call.shared.config.cluster else { return Ok(()) };
    let view = cluster.view();
    let command = |queued: &Queued| &call.commands[queued.command];
    refuse(call, &view.route(queue.iter().flat_map(|queued| command(queued).keys_of(queued.args()))))?;
    if queue.iter().any(|queued| is_of_all_keys(command(queued))) { refuse(call, &view.route_all()) } else { Ok(()) }
}

fn refuse(call: &Call<'_>, route: &Route<'_>) -> Outcome {
    match route {
        Route::Here => Ok(()),
        Route::To(slot, node) => {
            let port = node.port_for(call.session.client.is_tls);
            Err(format!("MOVED {slot} {}:{port}", node.host).into())
        }
        Route::Apart => Err("CROSSSLOT Keys in request don't hash to the same slot".into()),
        Route::Nowhere => Err("CLUSTERDOWN The cluster is down".into()),
    }
}

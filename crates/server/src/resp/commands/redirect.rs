//! Whether a command is run by this node of a cluster; if not, the client is told which node to ask.
//!
//! Invariants:
//! 1. Without a cluster nothing is looked at but that there is none.
//! 2. A node whose store takes no writes runs nothing that writes.
//! 3. While a slot goes to another chain commands with its keys wait: see [`crate::resp::moving`].

use crate::resp::awaited::Awaited;
use crate::resp::cluster::{ClusterView, Route};
use crate::resp::commands::{Call, Command, Outcome, READ, Refusal, WRITE, again};
use crate::resp::moving::gate::Held;
use crate::resp::moving::records::{self, SERVER, SlotState};
use crate::resp::queued::Queued;

/// Whether it looks at, or changes, keys that it does not name.
fn is_of_all_keys(command: &Command) -> bool {
    command.keys.0 == 0 && command.flags & (READ | WRITE) != 0
}

/// Refuses a command that another node runs, or none; has it wait where that is not known now.
#[inline]
pub(crate) fn redirect(call: &mut Call<'_>, command: &Command) -> Outcome {
    match &call.shared.config.cluster {
        Some(cluster) if command.keys.0 != 0 || is_of_all_keys(command) => {
            let view = cluster.view();
            if call.shared.config.reading.is_some() && is_read_here(call, command, &view) {
                return Ok(());
            }
            let route = if is_of_all_keys(command) { view.route_all() } else { view.route(command.keys_of(call.args)) };
            refuse(call, &route)?;
            // What is queued waits with EXEC.
            if call.session.queue.is_some() { Ok(()) } else { hold(call, command) }
        }
        _ => Ok(()),
    }
}

/// Has a command wait whose keys are in a slot that is going to another chain.
fn hold(call: &mut Call<'_>, command: &Command) -> Outcome {
    let all = is_of_all_keys(command) && command.flags & WRITE != 0;
    let held = call.shared.keyspace.gate.hold(command.keys_of(call.args).map(esker_kv::slot_of), all);
    wait(call, held)
}

fn wait(call: &mut Call<'_>, held: Option<Held>) -> Outcome {
    match held {
        None => Ok(()),
        Some(Held::Wait(woken)) => {
            call.session.awaited = Some(Awaited::Value(woken, again(call)));
            Err(Refusal::OnItsWay)
        }
        Some(Held::Refused(slot)) => {
            Err(format!("TRYAGAIN Slot {slot} goes to another chain, which does not answer").into())
        }
    }
}

/// Once a command holds the locks of its keys, or has read them: whether they are still this node's.
pub(crate) fn still_here(call: &mut Call<'_>, command: &Command) -> Outcome {
    let Some(cluster) = &call.shared.config.cluster else { return Ok(()) };
    if call.shared.config.reading.is_some() {
        return has_not_gone(call, command, &cluster.view());
    }
    hold(call, command)?;
    if command.keys.0 == 0 { Ok(()) } else { refuse(call, &cluster.view().route(command.keys_of(call.args))) }
}

/// At a replica that has read keys: nothing but what was left of their slots may have been there. Its head knows more.
fn has_not_gone(call: &mut Call<'_>, command: &Command, view: &ClusterView) -> Outcome {
    if command.keys.0 == 0 || !view.has_others() {
        return Ok(());
    }
    let to_head = |call: &Call<'_>| refuse(call, &view.route(command.keys_of(call.args)));
    let server = match call.shared.keyspace.kv.existing(SERVER, esker_kv::Kind::Bytes) {
        Ok(server) => server,
        // Nothing was ever noted.
        Err(esker_kv::Error::NoNamespace { .. }) => return Ok(()),
        Err(_) => return to_head(call),
    };
    for slot in command.keys_of(call.args).map(esker_kv::slot_of) {
        let kept = server.get(&records::key_of(slot)[..]);
        if !kept.is_here() {
            return to_head(call);
        }
        let (kept, barrier) = kept.into_parts();
        call.behind(barrier);
        let record = records::of_kept(slot, kept?.as_deref())?;
        if record.is_some_and(|record| record.state != SlotState::Here && record.epoch > view.epoch_of(slot)) {
            return to_head(call);
        }
    }
    Ok(())
}

/// Whether what a command has begun to read has to be here before it is known to count.
pub(crate) fn reads_then_looks(call: &Call<'_>) -> bool {
    let shared = call.shared;
    shared.config.reading.is_some() && shared.config.cluster.as_ref().is_some_and(|cluster| cluster.view().has_others())
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

/// Refuses queued commands that another node runs by now, or none: all of them as if they were one. Has EXEC wait where
/// that is not known now.
pub(crate) fn redirect_queue(call: &mut Call<'_>, queue: &[Queued]) -> Outcome {
    let Some(cluster) = &call.shared.config.cluster else { return Ok(()) };
    let (view, commands) = (cluster.view(), call.commands);
    let command = |queued: &Queued| &commands[queued.command];
    let keys = || queue.iter().flat_map(|queued| command(queued).keys_of(queued.args()));
    refuse(call, &view.route(keys()))?;
    if queue.iter().any(|queued| is_of_all_keys(command(queued))) {
        refuse(call, &view.route_all())?;
    }
    let gate = &call.shared.keyspace.gate;
    let clears = queue.iter().any(|queued| is_of_all_keys(command(queued)) && command(queued).flags & WRITE != 0);
    let slots = || keys().map(esker_kv::slot_of);
    let held = gate.hold(slots(), false).or_else(|| if clears { gate.hold(slots(), true) } else { None });
    wait(call, held)
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

//! The side of `esker volume bench` that goes through NBD: connections that share the requests in flight.
//!
//! Invariant: requests that a batch of replies makes room for go out together, as clients with a queue send them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use esker_server::nbd::wire::{command, flag};
use esker_server::nbd::{Client, ClientError, Place};

use super::plan::{Bench, Figures, Kind, Latencies, Plan, Step, latencies, together};
use crate::commands::serve::disks::client_failure;
use crate::exit::Failure;

/// How long a reply may take.
const WITHIN: Option<Duration> = Some(Duration::from_secs(60));

/// Runs the bench against an export.
pub(super) fn run(bench: &Bench, place: &Place) -> Result<Figures, Failure> {
    let mut first = Client::connect(place, WITHIN).map_err(client_failure)?;
    bench.check(first.size())?;
    let plan = Plan::new(bench, first.size());
    let began = Instant::now();
    let latencies = together(bench.connections, |connection| {
        let depth = bench.threads / bench.connections + u64::from(connection < bench.threads % bench.connections);
        let mut client = Client::connect(place, WITHIN).map_err(client_failure)?;
        drive(&plan, &mut client, connection, depth as usize)
    })?;
    if bench.io != Kind::Read {
        // It covers what was answered on all connections.
        first.flush().map_err(client_failure)?;
    }
    Ok(Figures { through: "nbd", latencies, elapsed: began.elapsed(), syncs: None })
}

fn drive(plan: &Plan<'_>, client: &mut Client, connection: u64, depth: usize) -> Result<Latencies, Failure> {
    let mut rng = plan.rng(connection);
    let data = plan.data(&mut rng);
    let (what, command, payload) = match plan.bench.io {
        Kind::Write => ("WRITE", command::WRITE, &data[..]),
        Kind::Read => ("READ", command::READ, &[][..]),
    };
    let flags = if plan.bench.durable && plan.bench.io == Kind::Write { flag::FUA } else { 0 };
    let mut latencies = latencies()?;
    let mut under_way: HashMap<u64, Step> = HashMap::with_capacity(depth);
    let mut over = false;
    loop {
        while !over && under_way.len() < depth {
            let Some(step) = plan.next(&mut rng) else {
                over = true;
                break;
            };
            let sent = client.send(command, flags, step.offset, data.len() as u32, payload);
            under_way.insert(sent.map_err(client_failure)?, step);
        }
        if under_way.is_empty() {
            return Ok(latencies);
        }
        let reply = client.receive().map_err(client_failure)?;
        if let Some(step) = under_way.remove(&reply.cookie) {
            if reply.error != 0 {
                return Err(client_failure(ClientError::Failed { what, code: reply.error }));
            }
            latencies.saturating_record(step.at.elapsed().as_nanos() as u64);
        }
    }
}

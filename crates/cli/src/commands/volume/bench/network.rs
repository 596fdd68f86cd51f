//! The side of `esker volume bench` that goes through NBD: connections that share the requests in flight.
//!
//! A connection that is lost is made anew, and what was under way is asked again: its time goes on.
//!
//! Invariant: requests that a batch of replies makes room for go out together, as clients with a queue send them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use esker_server::nbd::wire::{command, flag};
use esker_server::nbd::{Client, ClientError, Place};

use super::plan::{Bench, Figures, Kind, Latencies, Plan, Step, latencies, together};
use crate::commands::serve::disks::client_failure;
use crate::exit::{Code, Failure};

/// How long a reply may take.
const WITHIN: Option<Duration> = Some(Duration::from_secs(60));
/// A server that is gone is asked again after this.
const AGAIN: Duration = Duration::from_millis(100);

/// The disk, which may go away for a while.
struct Disk<'b> {
    place: &'b Place,
    size: u64,
    patience: Duration,
    /// Connections that were made anew.
    anew: AtomicU64,
}

impl Disk<'_> {
    /// A connection in the place of one that was lost; `since`: nothing was answered any more from then on.
    fn again(&self, lost: ClientError, since: Instant) -> Result<Client, Failure> {
        let until = since + self.patience;
        let mut why = lost;
        while Instant::now() < until {
            std::thread::sleep(AGAIN);
            match Client::connect(self.place, WITHIN) {
                Ok(client) if client.size() == self.size => {
                    self.anew.fetch_add(1, Ordering::Relaxed);
                    return Ok(client);
                }
                Ok(client) => {
                    let (was, is) = (self.size, client.size());
                    let why = format!("{} had {was} bytes and has {is}: it is another by now", self.place);
                    return Err(Failure::new(Code::Failure, why));
                }
                Err(error) => why = error,
            }
        }
        Err(client_failure(why))
    }
}

/// Whether a new connection may help.
fn is_lost(error: &ClientError) -> bool {
    matches!(error, ClientError::Lost(_))
}

/// Runs the bench against an export.
pub(super) fn run(bench: &Bench, place: &Place) -> Result<Figures, Failure> {
    let mut first = Client::connect(place, WITHIN).map_err(client_failure)?;
    bench.check(first.size())?;
    let disk = Disk { place, size: first.size(), patience: bench.reconnect.0, anew: AtomicU64::new(0) };
    let plan = Plan::new(bench, disk.size);
    let began = Instant::now();
    let latencies = together(bench.connections, |connection| {
        let depth = bench.threads / bench.connections + u64::from(connection < bench.threads % bench.connections);
        let client = Client::connect(place, WITHIN).map_err(client_failure)?;
        drive(&plan, &disk, client, connection, depth as usize)
    })?;
    if bench.io != Kind::Read {
        // It covers what was answered on all connections.
        match first.flush() {
            Err(error) if is_lost(&error) => disk.again(error, Instant::now())?.flush(),
            flushed => flushed,
        }
        .map_err(client_failure)?;
    }
    let reconnects = disk.anew.into_inner();
    Ok(Figures { through: "nbd", latencies, elapsed: began.elapsed(), syncs: None, reconnects })
}

fn drive(
    plan: &Plan<'_>,
    disk: &Disk<'_>,
    mut client: Client,
    connection: u64,
    depth: usize,
) -> Result<Latencies, Failure> {
    let mut rng = plan.rng(connection);
    let data = plan.data(&mut rng);
    let mut latencies = latencies()?;
    let mut asked = Asked { under_way: HashMap::with_capacity(depth), again: Vec::new(), over: false, silent: None };
    loop {
        match asked.run(plan, &mut client, &mut rng, &data, depth, &mut latencies) {
            Ok(()) => return Ok(latencies),
            Err(error) if is_lost(&error) => {
                asked.again.extend(asked.under_way.drain().map(|(_, step)| step));
                // A server that takes requests and answers none is waited for no longer than one that is gone.
                client = disk.again(error, *asked.silent.get_or_insert_with(Instant::now))?;
            }
            Err(error) => return Err(client_failure(error)),
        }
    }
}

/// The requests of one connection.
struct Asked {
    under_way: HashMap<u64, Step>,
    /// Those that a connection was lost with.
    again: Vec<Step>,
    /// Whether the plan has no further one.
    over: bool,
    /// When a connection was lost, if nothing was answered since.
    silent: Option<Instant>,
}

impl Asked {
    /// Goes on until all is answered.
    fn run(
        &mut self,
        plan: &Plan<'_>,
        client: &mut Client,
        rng: &mut fastrand::Rng,
        data: &[u8],
        depth: usize,
        latencies: &mut Latencies,
    ) -> Result<(), ClientError> {
        let (what, command, payload) = match plan.bench.io {
            Kind::Write => ("WRITE", command::WRITE, data),
            Kind::Read => ("READ", command::READ, &[][..]),
        };
        let flags = if plan.bench.durable && plan.bench.io == Kind::Write { flag::FUA } else { 0 };
        loop {
            while self.under_way.len() < depth {
                let next = || if self.over { None } else { plan.next(rng) };
                let Some(step) = self.again.pop().or_else(next) else {
                    self.over = true;
                    break;
                };
                match client.send(command, flags, step.offset, data.len() as u32, payload) {
                    Ok(cookie) => self.under_way.insert(cookie, step),
                    Err(error) => {
                        self.again.push(step);
                        return Err(error);
                    }
                };
            }
            if self.under_way.is_empty() {
                return Ok(());
            }
            let reply = client.receive()?;
            self.silent = None;
            if let Some(step) = self.under_way.remove(&reply.cookie) {
                if reply.error != 0 {
                    return Err(ClientError::Failed { what, code: reply.error });
                }
                latencies.saturating_record(step.at.elapsed().as_nanos() as u64);
            }
        }
    }
}

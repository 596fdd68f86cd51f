//! `esker volume bench`: writes or reads an image through the library, through NBD, or through both in one run.
//!
//! [`Plan`] (which places, how long) → library: threads with one request in flight each │ NBD: connections that share
//! as many → [`Figures`]
//!
//! Through NBD the server is inside this process, or, for an address, that which is there.
//!
//! Invariants:
//! 1. The same seed gives the same places, whatever they are reached through.
//! 2. A figure counts what was answered; writes that need a flush at the end have it within the time that is counted.

mod network;
mod plan;

use std::time::Instant;

use esker::volume::Image;
use esker::{Bytes, Durability};
use esker_server::nbd::Place;
use serde_json::{Value, json};

pub(super) use self::plan::Bench;
use self::plan::{Figures, Kind, Latencies, Plan, Through, latencies, together};
use super::context::Context;
use super::inside::Inside;
use crate::commands::serve::disks::client_failure;
use crate::commands::tell;
use crate::exit::Failure;

impl Bench {
    /// Whether a running server's export is meant.
    pub(super) fn is_elsewhere(&self) -> bool {
        Place::is_meant(&self.image)
    }

    pub(super) fn elsewhere(self, json: bool) -> Result<(), Failure> {
        let place: Place = self.image.parse().map_err(client_failure)?;
        let figures = network::run(&self, &place)?;
        self.told(&[figures], None, json)
    }

    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let image = context.image(&self.image)?;
        self.check(image.size())?;
        if self.io != Kind::Read {
            context.release_left(&self.image)?;
        }
        let mut runs = Vec::new();
        if self.through != Through::Nbd {
            let before = context.store.syncs();
            let image = context.image(&self.image)?;
            let figures = self.library(&image)?;
            runs.push(Figures { syncs: since(context, before), ..figures });
        }
        if self.through != Through::Library {
            let inside = Inside::start(context, esker_server::nbd::Config::default())?;
            let before = context.store.syncs();
            let figures = network::run(&self, &inside.place(&self.image))?;
            runs.push(Figures { syncs: since(context, before), ..figures });
            inside.stop()?;
        }
        self.told(&runs, Some(context.store.backend()), context.json)
    }

    /// Refuses what cannot be done with an image of `size` bytes.
    fn check(&self, size: u64) -> Result<(), Failure> {
        let io = self.io_size.0;
        let max = size.min(esker::volume::ATOMIC_BYTES_MAX);
        if io == 0 || io > max || self.threads == 0 {
            let why =
                format!("requests of {io} bytes by {} threads: expected 1 to {max} bytes, and a thread", self.threads);
            return Err(Failure::usage(why));
        }
        if !(1..=self.threads).contains(&self.connections) {
            let why = format!("{} connections: expected 1 to as many as threads, {}", self.connections, self.threads);
            return Err(Failure::usage(why));
        }
        Ok(())
    }

    fn library(&self, image: &Image) -> Result<Figures, Failure> {
        let plan = Plan::new(self, image.size());
        let began = Instant::now();
        let drive = |thread: u64| -> Result<Latencies, Failure> {
            let mut rng = plan.rng(thread);
            let data = Bytes::from(plan.data(&mut rng));
            let durability = if self.durable { Durability::Durable } else { Durability::Applied };
            let mut latencies = latencies()?;
            while let Some(step) = plan.next(&mut rng) {
                if self.io == Kind::Write {
                    image.write(step.offset, data.clone(), durability)?.wait()?;
                } else {
                    drop(image.read(step.offset, self.io_size.0)?.wait()?);
                }
                latencies.saturating_record(step.at.elapsed().as_nanos() as u64);
            }
            Ok(latencies)
        };
        let latencies = together(self.threads, drive)?;
        if self.io != Kind::Read {
            image.flush().wait()?;
        }
        Ok(Figures { through: "library", latencies, elapsed: began.elapsed(), syncs: None, reconnects: 0 })
    }

    fn told(&self, runs: &[Figures], backend: Option<&str>, json: bool) -> Result<(), Failure> {
        let mut values: Vec<Value> = runs.iter().map(|figures| self.value(figures, backend)).collect();
        let mut text: String = runs.iter().map(|figures| self.line(figures, backend)).collect();
        let value = match (runs, values.len()) {
            ([library, nbd], _) => {
                let ratio = self.iops(nbd) / self.iops(library).max(f64::MIN_POSITIVE);
                text += &format!("through NBD as many times as through the library: {ratio:.2}\n");
                json!({"runs": values, "nbd_to_library": ratio})
            }
            _ => values.pop().unwrap_or_default(),
        };
        tell(json, &value, &text)
    }

    fn iops(&self, figures: &Figures) -> f64 {
        figures.latencies.len() as f64 / figures.elapsed.as_secs_f64()
    }

    fn value(&self, figures: &Figures, backend: Option<&str>) -> Value {
        let micros = |quantile: f64| figures.latencies.value_at_quantile(quantile) as f64 / 1e3;
        let iops = self.iops(figures);
        let io_bytes = self.io_size.0;
        json!({
            "image": self.image, "backend": backend, "through": figures.through, "io": name(&self.io),
            "pattern": name(&self.pattern), "io_bytes": io_bytes, "threads": self.threads,
            "connections": (figures.through == "nbd").then_some(self.connections), "durable": self.durable,
            "requests": figures.latencies.len(), "elapsed_ms": figures.elapsed.as_millis() as u64, "iops": iops,
            "bytes_per_second": iops * io_bytes as f64, "p50_us": micros(0.5), "p99_us": micros(0.99),
            "max_us": figures.latencies.max() as f64 / 1e3, "syncs": figures.syncs, "reconnects": figures.reconnects,
        })
    }

    fn line(&self, figures: &Figures, backend: Option<&str>) -> String {
        let micros = |quantile: f64| figures.latencies.value_at_quantile(quantile) as f64 / 1e3;
        let iops = self.iops(figures);
        let (io, pattern, io_bytes) = (name(&self.io), name(&self.pattern), self.io_size.0);
        let durable = match (self.io, self.durable) {
            (Kind::Read, _) => "",
            (_, true) => ", durable each",
            (_, false) => ", flushed at the end",
        };
        let syncs = figures.syncs.map_or(String::new(), |syncs| format!(", {syncs} syncs"));
        let reconnects = match figures.reconnects {
            0 => String::new(),
            anew => format!(", connections lost and made anew: {anew}; what was not flushed then may be lost"),
        };
        format!(
            "{pattern} {io} of {io_bytes} bytes by {} through {}{}{durable}: {iops:.0}/s, {:.1} MiB/s, p50 {:.1} µs, p99 {:.1} µs{syncs}{reconnects}\n",
            self.threads,
            figures.through,
            backend.map_or(String::new(), |backend| format!(" on {backend}")),
            iops * io_bytes as f64 / f64::from(1 << 20),
            micros(0.5),
            micros(0.99),
        )
    }
}

fn name(value: &dyn std::fmt::Debug) -> String {
    format!("{value:?}").to_lowercase()
}

fn since(context: &Context, before: Option<u64>) -> Option<u64> {
    context.store.syncs().zip(before).map(|(after, before)| after - before)
}

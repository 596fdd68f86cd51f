//! What `esker serve --http` tells: first that the store is being opened, then how it and the servers stand.
//!
//! Invariant: no figure has a label that tells a key, a client or an address.

use std::collections::HashMap;
use std::sync::Arc;

use esker::engine::Engine;
use esker_server::http::{Config, Error, Figure, Running, Server, Source, Value};
use esker_server::resp::Health;
use esker_server::{grpc, nbd, resp, thrift};

use super::passed::Sockets;
use super::seat::Seat;
use super::shared::{Front, addresses, token};
use crate::config::ServeSettings;
use crate::exit::{Code, Failure};

/// Figures of the engine that only grow; the others go up and down.
const COUNTERS: &[&str] = &[
    "cache_hits",
    "cache_misses",
    "checkpoint_write_bytes",
    "checkpoints",
    "cleaned_copy_bytes",
    "cleaned_segments",
    "cold_write_bytes",
    "compact_rested_us",
    "compressed_kept",
    "compressed_raw_bytes",
    "compressed_refused",
    "compressed_stored_bytes",
    "device_read_bytes",
    "device_reads",
    "device_write_bytes",
    "device_writes",
    "freed_segments",
    "index_page_reads",
    "index_pages_dropped",
    "lost_values",
    "payload_bytes",
    "read_retries",
    "record_bytes",
    "records",
    "relocation_bytes",
    "scrub_read_bytes",
    "scrub_rounds",
    "slow_calls",
    "syncs",
    "unpacked_bytes",
];

/// Powers of two of nanoseconds that times of stages are told by: 1 us to 17 s.
const STAGE_POWERS: std::ops::RangeInclusive<u32> = 10..=34;

/// What is told: of each store, and of one that is being opened until it is served.
pub struct Watched {
    seats: Vec<Arc<Seat>>,
}

impl Watched {
    /// Of these stores.
    pub fn new(seats: Vec<Arc<Seat>>) -> Self {
        Self { seats }
    }
}

/// What a store's servers are at.
fn state(seat: &Seat) -> &'static str {
    seat.serving().map_or("starting", |serving| serving.resp.health().name())
}

/// Whether a store is served, and what has to be ready beside that.
fn ready_of(seat: &Seat) -> Result<(), String> {
    let Some(serving) = seat.serving() else { return Err("the store is being opened".into()) };
    match serving.resp.health() {
        Health::Running => seat.told_beside().map_or(Ok(()), |beside| (beside.ready)()),
        health => Err(health.cause().to_string()),
    }
}

/// The figures of a store.
fn figures_of(seat: &Seat) -> Vec<Figure> {
    let state = state(seat);
    let mut figures: Vec<_> = ["starting", "running", "full", "stopped"]
        .into_iter()
        .map(|name| {
            let is = f64::from(u8::from(name == state));
            Figure::new("esker_state", "1 for the state that the store is in", Value::Gauge(is)).labelled("state", name)
        })
        .collect();
    figures.extend(seat.told_beside().iter().flat_map(|beside| (beside.figures)()));
    if let Some(serving) = seat.serving() {
        figures.extend(serving.resp.figures());
        figures.extend(serving.store.engine().iter().flat_map(|engine| of_engine(engine)));
        figures.extend(of_sweep(&serving.store.sweep_figures()));
        figures.extend(serving.grpc.iter().flat_map(grpc::Handle::figures));
        figures.extend(serving.nbd.iter().flat_map(nbd::Handle::figures));
        figures.extend(serving.thrift.iter().flat_map(thrift::Handle::figures));
    }
    match seat.chain() {
        None => figures,
        Some(chain) => figures.into_iter().map(|figure| figure.labelled("chain", chain)).collect(),
    }
}

/// The same with those of one name one behind the other, in the order of the names' first.
fn by_name(figures: Vec<Figure>) -> Vec<Figure> {
    let mut places = HashMap::new();
    let mut families: Vec<Vec<Figure>> = Vec::new();
    for figure in figures {
        let place = *places.entry(figure.name.clone()).or_insert(families.len());
        if place == families.len() {
            families.push(Vec::new());
        }
        families[place].push(figure);
    }
    families.concat()
}

impl Source for Watched {
    fn ready(&self) -> Result<(), String> {
        self.seats.iter().try_for_each(|seat| {
            ready_of(seat).map_err(|why| seat.chain().map_or(why.clone(), |chain| format!("chain {chain}: {why}")))
        })
    }

    fn figures(&self) -> Vec<Figure> {
        let version = env!("CARGO_PKG_VERSION");
        let build = Figure::new("esker_build_info", "1, with the version of the program", Value::Gauge(1.0));
        let mut figures = vec![build.labelled("version", version)];
        figures.extend(of_process());
        figures.extend(crate::otlp::figures());
        figures.extend(self.seats.iter().flat_map(|seat| figures_of(seat)));
        if self.seats.len() > 1 { by_name(figures) } else { figures }
    }
}

fn of_engine(engine: &Engine) -> Vec<Figure> {
    let mut figures: Vec<Figure> = engine
        .stats()
        .entries()
        .into_iter()
        // Shares of times are what the histograms below are for.
        .filter(|(name, _)| !["_p50_us", "_p99_us", "_max_us"].iter().any(|end| name.ends_with(end)))
        .filter_map(|(name, value)| {
            let value: f64 = value.parse().ok()?;
            // Prometheus counts time in seconds.
            let (stem, unit) = [("_us", 1e6), ("_ms", 1e3), ("_s", 1.0)]
                .into_iter()
                .find_map(|(end, unit)| Some((name.strip_suffix(end)?, unit)))
                .map_or((name, None), |(stem, unit)| (stem, Some(unit)));
            let shown = unit.map_or_else(|| name.to_string(), |_| format!("{stem}_seconds"));
            let value = value / unit.unwrap_or(1.0);
            let value = if COUNTERS.contains(&name) { Value::Counter(value) } else { Value::Gauge(value) };
            Some(Figure::new(format!("esker_engine_{shown}"), format!("{name} of INFO esker"), value))
        })
        .collect();
    for (name, uses) in engine.cache_uses() {
        for (outcome, count) in [("hit", uses.hits), ("miss", uses.misses)] {
            let help = "Values that were looked for in the cache, by what the names of their objects begin with";
            let figure = Figure::new("esker_engine_cache_uses", help, Value::Counter(count as f64));
            figures.push(figure.labelled("of", name.as_str()).labelled("outcome", outcome));
        }
    }
    let seconds = |ns: u64| ns as f64 / 1e9;
    figures.extend(engine.stages().into_iter().map(|(name, times)| {
        // The same buckets at all times: monitors compare them with those before.
        let mut buckets: Vec<(f64, u64)> = STAGE_POWERS.map(|power| (seconds(1 << power), 0)).collect();
        for (ns, count) in &times.buckets {
            let power = u64::BITS - ns.saturating_sub(1).leading_zeros();
            let last = buckets.len() - 1;
            buckets[(power.saturating_sub(*STAGE_POWERS.start()) as usize).min(last)].1 += count;
        }
        let help = "How long stages of writes and reads took; of those done very often one of some is timed";
        Figure::new("esker_engine_stage_seconds", help, Value::Times(buckets)).labelled("stage", name)
    }));
    figures
}

/// What the system says of the process, under the names that all exporters use.
fn of_process() -> Vec<Figure> {
    let mut figures = Vec::new();
    let page = rustix::param::page_size() as f64;
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = status.split(' ').filter_map(|pages| pages.parse::<f64>().ok());
    if let (Some(virtual_pages), Some(resident)) = (pages.next(), pages.next()) {
        let resident = Value::Gauge(resident * page);
        figures.push(Figure::new("process_resident_memory_bytes", "Memory that the process has", resident));
        let taken = Value::Gauge(virtual_pages * page);
        figures.push(Figure::new("process_virtual_memory_bytes", "Addresses that the process has", taken));
    }
    let count = |folder: &str| std::fs::read_dir(folder).map(|entries| entries.count() as f64);
    if let Ok(open) = count("/proc/self/fd") {
        figures.push(Figure::new("process_open_fds", "File descriptors that are open", Value::Gauge(open)));
    }
    if let Ok(threads) = count("/proc/self/task") {
        figures.push(Figure::new("process_threads", "Threads of the process", Value::Gauge(threads)));
    }
    figures
}

/// What is listened on for those who watch.
pub fn config(settings: &ServeSettings, front: &Front, sockets: &Sockets) -> Result<Config, Failure> {
    let passed = !sockets.http.is_empty() || !sockets.https.is_empty();
    let own = |texts: &[String]| if passed { Ok(Vec::new()) } else { addresses(texts) };
    let config = Config {
        listen: own(&settings.http_listen)?,
        tls_listen: own(&settings.https_listen)?,
        passed: sockets.http.clone(),
        tls_passed: sockets.https.clone(),
        tls: front.tls.clone(),
        token: token(&settings.http_token_file)?,
    };
    config.check().map_err(failure)?;
    Ok(config)
}

/// Listens and answers, and says where; nothing if there is no address.
pub fn start(config: &Config, watched: &Arc<Watched>) -> Result<Option<Running>, Failure> {
    if config.doors() == 0 {
        return Ok(None);
    }
    let server = Server::bind(config).map_err(failure)?;
    for address in server.addresses() {
        say!("http       {address} (/livez, /readyz, /metrics)");
    }
    server.start(Arc::clone(watched) as Arc<dyn Source>).map(Some).map_err(failure)
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Open(_) | Error::Config(_) | Error::Tls(_) => Failure::of(Code::Usage, &error),
        error => Failure::of(Code::Failure, &error),
    }
}

/// What the removal of expired rows has done.
fn of_sweep(swept: &esker::SweepFigures) -> Vec<Figure> {
    let counter = |name: &str, help: &str, value: u64| {
        Figure::new(format!("esker_map_sweep_{name}"), help, Value::Counter(value as f64))
    };
    let rate = Value::Gauge(swept.rate as f64);
    vec![
        Figure::new("esker_map_sweep_rate", "Expired rows of the map that may be removed per second", rate),
        counter("rows", "Expired rows of the map that were removed", swept.removed),
        counter("renewed", "Rows of the map that had been written anew when they were to be removed", swept.renewed),
        counter("steps", "Steps of the removal of expired rows", swept.steps),
        counter("failures", "Steps of the removal of expired rows that failed", swept.failures),
    ]
}

/// Whether writes are taken, for health checks by gRPC.
pub fn ready(handle: &resp::Handle) -> esker_server::grpc::Ready {
    let handle = handle.clone();
    Arc::new(move || handle.health() == Health::Running)
}

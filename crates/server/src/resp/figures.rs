//! What the Redis protocol's server has counted, as figures for monitors.

use std::sync::atomic::Ordering;

use crate::http::{Figure, Value};
use crate::resp::commands::Table;
use crate::resp::shared::{LoopStats, Shared};

pub(crate) fn of(shared: &Shared) -> Vec<Figure> {
    let sum = |counter: fn(&LoopStats) -> &std::sync::atomic::AtomicU64| {
        shared.loops.iter().map(|stats| counter(stats).load(Ordering::Relaxed)).sum::<u64>() as f64
    };
    let counter = |name: &str, help: &str, value: f64| Figure::new(name, help, Value::Counter(value));
    let gauge = |name: &str, help: &str, value: f64| Figure::new(name, help, Value::Gauge(value));
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed) as f64;
    let clients = shared.clients.all();
    let held = |figure: fn(&crate::resp::clients::ClientEntry) -> usize| {
        clients.iter().map(|client| figure(client) as f64).sum::<f64>()
    };
    let saved = shared.saves.last();
    let mut figures = vec![
        counter("esker_resp_commands", "Commands run", sum(|stats| &stats.commands)),
        counter("esker_resp_errors", "Commands answered with an error", sum(|stats| &stats.errors)),
        counter("esker_resp_keyspace_hits", "Keys that were there when they were read", sum(|stats| &stats.hits)),
        counter("esker_resp_keyspace_misses", "Keys that were not there", sum(|stats| &stats.misses)),
        counter("esker_resp_input_bytes", "Bytes received", sum(|stats| &stats.input_bytes)),
        counter("esker_resp_output_bytes", "Bytes sent", sum(|stats| &stats.output_bytes)),
        counter("esker_resp_connections_accepted", "Connections accepted", load(&shared.connections)),
        counter("esker_resp_connections_rejected", "Clients refused by max_clients", load(&shared.rejected)),
        counter(
            "esker_resp_strangers_sent_away",
            "Connections closed before they were authenticated, to make room or for their time",
            shared.strangers.sent_away() as f64,
        ),
        counter(
            "esker_resp_clients_evicted",
            "Clients disconnected because all together held more than clients_bytes_max",
            load(&shared.evicted),
        ),
        gauge("esker_resp_clients_held_bytes", "Memory held for all clients", shared.clients.held_bytes() as f64),
        gauge(
            "esker_resp_clients_held_bytes_max",
            "Most memory held for all clients (clients_bytes_max)",
            shared.settings.clients_bytes_max.load(Ordering::Relaxed) as f64,
        ),
        gauge("esker_resp_strangers", "Connections that are not authenticated yet", shared.strangers.len() as f64),
        gauge("esker_resp_connections", "Connections open", clients.len() as f64),
        gauge(
            "esker_resp_connections_max",
            "Most clients at once (max_clients)",
            shared.settings.clients_max.load(Ordering::Relaxed) as f64,
        ),
        gauge(
            "esker_resp_client_input_bytes",
            "Bytes of commands that are not whole yet or wait",
            held(|client| client.input_bytes.load(Ordering::Relaxed)),
        ),
        gauge(
            "esker_resp_client_output_bytes",
            "Bytes of replies that are not sent yet",
            held(|client| client.output_bytes.load(Ordering::Relaxed)),
        ),
        counter("esker_resp_expired_keys", "Expired keys removed", load(&shared.expired)),
        gauge("esker_resp_last_save_timestamp_seconds", "Unix time of the last save", saved.saved_s as f64),
        gauge("esker_resp_last_save_failed", "1 if the last save failed", f64::from(u8::from(saved.failed))),
        gauge("esker_uptime_seconds", "Seconds since the server started", shared.started.elapsed().as_secs_f64()),
        counter("esker_resp_slow_commands", "Commands that the slow log has taken in", shared.slowlog.total() as f64),
        gauge("esker_resp_monitors", "Clients that are told every command", shared.monitors.len() as f64),
    ];
    figures.extend(of_commands(shared));
    figures
}

/// Times and failures of the commands that were called, one family behind the other.
fn of_commands(shared: &Shared) -> impl Iterator<Item = Figure> {
    let (mut times, mut failures) = (Vec::new(), Vec::new());
    for (index, command) in Table::commands().iter().enumerate() {
        let Some(figures) = shared.command_stats.figures(index) else { continue };
        // The last has all that took longer, too.
        let mut buckets: Vec<(f64, u64)> =
            figures.by_power().map(|(power, count)| ((1u64 << power) as f64 / 1e9, count)).collect();
        if let Some(last) = buckets.last_mut() {
            last.0 = f64::INFINITY;
        }
        let value = Value::Summed(buckets, figures.total_ns as f64 / 1e9);
        let help = "How long commands took on their event loop, and until the values that they read were there";
        times.push(Figure::new("esker_resp_command_seconds", help, value).labelled("command", command.name));
        let failed = Value::Counter(figures.failed as f64);
        failures.push(
            Figure::new("esker_resp_command_failures", "Commands that were run and answered with an error", failed)
                .labelled("command", command.name),
        );
    }
    times.into_iter().chain(failures)
}

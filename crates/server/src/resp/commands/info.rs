//! INFO: figures for people and monitors, in the sections of Redis, the engine's own behind them.

use std::sync::atomic::Ordering;

use crate::resp::commands::connection::REDIS_VERSION;
use crate::resp::commands::{Call, Command, Outcome, is};
use crate::resp::engine::Health;
use crate::resp::shared::{LoopStats, Shared};

type Section = (String, Vec<(String, String)>);

/// Sections that INFO shows only if they, or all, are asked for, as in Redis.
const EXTRA: [&str; 2] = ["Commandstats", "Latencystats"];

pub(crate) fn info(call: &mut Call<'_>) -> Outcome {
    let wanted: Vec<&[u8]> = call.args.from(1).collect();
    let asked = |word: &str| wanted.iter().any(|name| is(name, word));
    let (all, default) = (asked("all") || asked("everything"), wanted.is_empty() || asked("default"));
    let mut text = String::new();
    for (name, lines) in sections(call.shared, call.commands) {
        let shown = all || default && !EXTRA.contains(&name.as_str()) || asked(&name);
        if !shown {
            continue;
        }
        if !text.is_empty() {
            text += "\r\n";
        }
        text += &format!("# {name}\r\n");
        for (key, value) in lines {
            text += &format!("{key}:{value}\r\n");
        }
    }
    call.reply.verbatim(&text);
    Ok(())
}

fn section(name: &str, lines: &[(&str, String)]) -> Section {
    (name.to_owned(), lines.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect())
}

/// `Commandstats`, a line for each command that was called or refused; `Latencystats`, one for each that was called.
fn command_sections(shared: &Shared, commands: &[Command]) -> [Section; 2] {
    let (mut costs, mut latencies) = (Vec::new(), Vec::new());
    for (index, command) in commands.iter().enumerate() {
        let Some(figures) = shared.command_stats.figures(index) else { continue };
        let (calls, us) = (figures.calls(), figures.total_ns as f64 / 1e3);
        let value = format!(
            "calls={calls},usec={},usec_per_call={:.2},rejected_calls={},failed_calls={}",
            figures.total_ns / 1_000,
            if calls == 0 { 0.0 } else { us / calls as f64 },
            figures.rejected,
            figures.failed,
        );
        costs.push((format!("cmdstat_{}", command.name), value));
        if calls > 0 {
            let us = |permille| figures.at_most_ns(permille) as f64 / 1e3;
            let value = format!("p50={:.3},p99={:.3},p99.9={:.3}", us(500), us(990), us(999));
            latencies.push((format!("latency_percentiles_usec_{}", command.name), value));
        }
    }
    [("Commandstats".to_owned(), costs), ("Latencystats".to_owned(), latencies)]
}

/// What clients look at to tell a node that serves from one that follows.
fn replication(shared: &Shared) -> Vec<(&'static str, String)> {
    let view = shared.config.cluster.as_ref().map(|cluster| cluster.view());
    let mut lines = match view.as_ref().filter(|view| !view.heads_any()) {
        None => vec![("role", "master".to_owned())],
        Some(view) => {
            let head = view.head();
            vec![
                ("role", "slave".to_owned()),
                ("master_host", head.map_or_else(String::new, |head| head.host.clone())),
                ("master_port", head.map_or(0, |head| head.port_for(false)).to_string()),
                ("master_link_status", if head.is_some_and(|head| head.is_up) { "up" } else { "down" }.to_owned()),
            ]
        }
    };
    lines.push(("connected_slaves", "0".to_owned()));
    lines
}

fn sections(shared: &Shared, commands: &[Command]) -> Vec<Section> {
    let sum = |counter: fn(&LoopStats) -> u64| shared.loops.iter().map(counter).sum::<u64>().to_string();
    let uptime_s = shared.started.elapsed().as_secs();
    let memory_bytes = memory_bytes();
    let clients = shared.clients.all();
    let (health, saved) = (shared.engine.health(), shared.saves.last());
    let status = |failed: bool| if failed { "err" } else { "ok" };
    let deepest = |figure: fn(&crate::resp::clients::ClientEntry) -> usize| {
        clients.iter().map(|client| figure(client)).max().unwrap_or(0).to_string()
    };
    let mut sections = vec![
        section(
            "Server",
            &[
                ("redis_version", REDIS_VERSION.into()),
                ("redis_mode", if shared.config.cluster.is_some() { "cluster" } else { "standalone" }.into()),
                ("server_name", "esker".into()),
                ("esker_version", env!("CARGO_PKG_VERSION").into()),
                ("os", std::env::consts::OS.into()),
                ("arch_bits", usize::BITS.to_string()),
                ("process_id", std::process::id().to_string()),
                ("run_id", shared.run_id.clone()),
                ("tcp_port", shared.port.to_string()),
                ("uptime_in_seconds", uptime_s.to_string()),
                ("uptime_in_days", (uptime_s / 86_400).to_string()),
                ("io_threads_active", shared.loops.len().to_string()),
            ],
        ),
        section(
            "Clients",
            &[
                ("connected_clients", clients.len().to_string()),
                ("maxclients", shared.settings.clients_max.load(Ordering::Relaxed).to_string()),
                ("client_recent_max_input_buffer", deepest(|client| client.input_bytes.load(Ordering::Relaxed))),
                ("client_recent_max_output_buffer", deepest(|client| client.output_bytes.load(Ordering::Relaxed))),
                ("blocked_clients", "0".into()),
                ("total_watched_keys", shared.keyspace.watched().to_string()),
            ],
        ),
        section(
            "Memory",
            &[
                ("used_memory", memory_bytes.to_string()),
                ("used_memory_human", format!("{:.2}M", memory_bytes as f64 / f64::from(1 << 20))),
                ("used_memory_rss", memory_bytes.to_string()),
                ("maxmemory", "0".into()),
                ("maxmemory_policy", "noeviction".into()),
            ],
        ),
        section(
            "Persistence",
            &[
                ("loading", "0".into()),
                ("rdb_changes_since_last_save", "0".into()),
                ("rdb_bgsave_in_progress", u8::from(saved.under_way).to_string()),
                ("rdb_last_save_time", saved.saved_s.to_string()),
                ("rdb_last_bgsave_status", status(saved.failed).into()),
                ("aof_enabled", "1".into()),
                ("aof_rewrite_in_progress", "0".into()),
                ("aof_last_write_status", status(matches!(health, Health::Stopped(_))).into()),
                ("engine_state", health.name().into()),
                ("engine_cause", health.cause().replace(['\r', '\n'], " ")),
                ("appendfsync", shared.fsync().name().into()),
            ],
        ),
        section(
            "Stats",
            &[
                ("total_connections_received", shared.connections.load(Ordering::Relaxed).to_string()),
                ("total_commands_processed", sum(|stats| stats.commands.load(Ordering::Relaxed))),
                ("total_net_input_bytes", sum(|stats| stats.input_bytes.load(Ordering::Relaxed))),
                ("total_net_output_bytes", sum(|stats| stats.output_bytes.load(Ordering::Relaxed))),
                ("evicted_clients", shared.evicted.load(Ordering::Relaxed).to_string()),
                ("clients_held_bytes", shared.clients.held_bytes().to_string()),
                ("unauthenticated_connections", shared.strangers.len().to_string()),
                ("unauthenticated_sent_away", shared.strangers.sent_away().to_string()),
                ("rejected_connections", shared.rejected.load(Ordering::Relaxed).to_string()),
                ("expired_keys", shared.expired.load(Ordering::Relaxed).to_string()),
                ("expired_hashes_swept", shared.keyspace.swept.load(Ordering::Relaxed).to_string()),
                ("evicted_keys", "0".into()),
                ("keyspace_hits", sum(|stats| stats.hits.load(Ordering::Relaxed))),
                ("keyspace_misses", sum(|stats| stats.misses.load(Ordering::Relaxed))),
                ("total_error_replies", sum(|stats| stats.errors.load(Ordering::Relaxed))),
            ],
        ),
        section("Replication", &replication(shared)),
    ];
    sections.extend(command_sections(shared, commands));
    sections.push(section("Cluster", &[("cluster_enabled", u8::from(shared.config.cluster.is_some()).to_string())]));
    let databases = shared.keyspace.open_databases().filter_map(|database| {
        let keys = database.len_now()?;
        (keys > 0).then(|| (format!("db{}", database.index), format!("keys={keys},expires=0,avg_ttl=0")))
    });
    sections.push(("Keyspace".into(), databases.collect()));
    for line in shared.engine.info() {
        match sections.last_mut() {
            Some((name, lines)) if *name == line.section => lines.push((line.key, line.value)),
            _ => sections.push((line.section, vec![(line.key, line.value)])),
        }
    }
    sections
}

/// Resident memory of the process, 0 where the system does not tell.
fn memory_bytes() -> u64 {
    const PAGE_BYTES: u64 = 4_096;
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * PAGE_BYTES
}

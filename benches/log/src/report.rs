//! Figures of all rounds, their medians, and how the peers compare.
//!
//! [`Report::add`] → medians by number of writers and peer → text, JSON
//!
//! Invariant: ratios are of medians of one run, to Redis with as many writers.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use esker_bench_figures::median;
use serde::Serialize;

use crate::cell::Figures;
use crate::target::Peer;

/// A run.
pub struct Report {
    run: Run,
    cells: BTreeMap<(u32, Peer), Vec<Figures>>,
}

/// How it was set up.
#[derive(Clone, Serialize)]
struct Run {
    entry_bytes: u64,
    seconds: f64,
    rounds: usize,
    /// That the writers share; none: each has its own.
    connections: Option<u32>,
    processors: usize,
    /// Name of a peer → what it was asked for.
    peers: BTreeMap<&'static str, &'static str>,
    lines: Vec<Line>,
}

/// One line.
#[derive(Clone, Serialize)]
struct Line {
    writers: u32,
    peer: Peer,
    median: Figures,
    /// To Redis.
    rate_ratio: Option<f64>,
    /// The follower's 99th percentile to that of appends.
    follow_over_append_p99: f64,
    /// In the order in which they were measured.
    rounds: Vec<Figures>,
}

fn medians(rounds: &[Figures]) -> Figures {
    let of = |field: fn(&Figures) -> f64| median(rounds.iter().map(field)).unwrap_or(f64::NAN);
    Figures {
        rate: of(|one| one.rate),
        append_p50_us: of(|one| one.append_p50_us),
        append_p99_us: of(|one| one.append_p99_us),
        follow_p50_us: of(|one| one.follow_p50_us),
        follow_p99_us: of(|one| one.follow_p99_us),
        server_us: of(|one| one.server_us),
        client_us: of(|one| one.client_us),
    }
}

impl Report {
    /// A run without figures yet.
    pub fn new(entry_bytes: u64, seconds: f64, rounds: usize, connections: Option<u32>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        let (peers, lines) = (BTreeMap::new(), Vec::new());
        let run = Run { entry_bytes, seconds, rounds, connections, processors, peers, lines };
        Self { run, cells: BTreeMap::new() }
    }

    /// Adds a cell of a round.
    pub fn add(&mut self, peer: Peer, writers: u32, figures: Figures) {
        self.run.peers.insert(peer.name(), peer.setup());
        self.cells.entry((writers, peer)).or_default().push(figures);
    }

    fn lines(&self) -> Vec<Line> {
        let rate = |writers, peer| self.cells.get(&(writers, peer)).map(|rounds| medians(rounds).rate);
        self.cells
            .iter()
            .map(|((writers, peer), rounds)| {
                let median = medians(rounds);
                Line {
                    writers: *writers,
                    peer: *peer,
                    median,
                    rate_ratio: rate(*writers, Peer::Redis).filter(|rate| *rate > 0.0).map(|redis| median.rate / redis),
                    follow_over_append_p99: median.follow_p99_us / median.append_p99_us.max(1e-9),
                    rounds: rounds.clone(),
                }
            })
            .collect()
    }

    /// For people: a table in Markdown, and how the peers were set up.
    pub fn text(&self) -> String {
        let shared = match self.run.connections {
            None => "a connection for each writer".to_owned(),
            Some(connections) => format!("at most {connections} connections"),
        };
        let mut out = format!(
            "durable appends of {} bytes, {shared}, {} s each, medians of {} rounds; times in µs; the last two: processor time per append\n\n\
             | writers | peer | appends/s | lowest..highest | to redis | append p50 | p99 | follower p50 | p99 | p99 to p99 | server | clients |\n\
             |--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
            self.run.entry_bytes, self.run.seconds, self.run.rounds
        );
        for line in self.lines() {
            let Figures { rate, append_p50_us, append_p99_us, follow_p50_us, follow_p99_us, server_us, client_us } =
                line.median;
            let rates = || line.rounds.iter().map(|one| one.rate);
            let (lowest, highest) = (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max));
            let ratio = line.rate_ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}x"));
            out += &format!(
                "| {} | {} | {rate:.0} | {lowest:.0}..{highest:.0} | {ratio} | {append_p50_us:.0} | {append_p99_us:.0} | {follow_p50_us:.0} | {follow_p99_us:.0} | {:.2} | {server_us:.1} | {client_us:.1} |\n",
                line.writers,
                line.peer.name(),
                line.follow_over_append_p99
            );
        }
        out += "\nSet up:\n";
        for (name, setup) in &self.run.peers {
            out += &format!("- {name}: {setup}\n");
        }
        out
    }

    /// For programs.
    ///
    /// # Errors
    /// That the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let run = Run { lines: self.lines(), ..self.run.clone() };
        std::fs::write(path, serde_json::to_vec_pretty(&run)?).with_context(|| path.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_medians() {
        let mut report = Report::new(1_024, 1.0, 3, None);
        for rate in [10.0, 1_000.0, 20.0] {
            let figures = Figures {
                rate,
                append_p50_us: 1.0,
                append_p99_us: 2.0,
                follow_p50_us: 1.0,
                follow_p99_us: 3.0,
                server_us: 5.0,
                client_us: 7.0,
            };
            report.add(Peer::Redis, 16, figures);
            report.add(Peer::Esker, 16, Figures { rate: rate * 2.0, ..figures });
        }
        let lines = report.lines();
        assert_eq!((lines[1].peer, lines[1].rate_ratio, lines[1].median.rate), (Peer::Esker, Some(2.0), 40.0));
        assert_eq!(lines[1].follow_over_append_p99, 1.5);
        assert!(report.text().contains("| 16 | esker | 40 | 20..2000 | 2.00x |"), "{}", report.text());
    }
}

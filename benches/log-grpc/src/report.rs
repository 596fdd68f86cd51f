//! Figures of all rounds, their medians, and how the peers compare.
//!
//! [`Report::add`] → medians by peer and number of writers → text, JSON
//!
//! Invariant: ratios are of medians of one run, to Redis with as many writers.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::cell::Figures;
use crate::target::Peer;

/// A run.
pub struct Report {
    entry_bytes: u64,
    seconds: f64,
    rounds: usize,
    cells: BTreeMap<(u64, Peer), Vec<Figures>>,
}

/// One line.
#[derive(Serialize)]
struct Line {
    writers: u64,
    peer: Peer,
    median: Figures,
    /// Lowest and highest rate of the rounds.
    rates: [f64; 2],
    /// To Redis.
    rate_ratio: Option<f64>,
    /// The follower's 99th percentile to that of appends.
    follow_over_append_p99: f64,
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    let middle = figures.len() / 2;
    if figures.len() % 2 == 1 { figures[middle] } else { (figures[middle - 1] + figures[middle]) / 2.0 }
}

fn medians(rounds: &[Figures]) -> Figures {
    let of = |field: fn(&Figures) -> f64| median(rounds.iter().map(field).collect());
    Figures {
        rate: of(|one| one.rate),
        append_p50_us: of(|one| one.append_p50_us),
        append_p99_us: of(|one| one.append_p99_us),
        follow_p50_us: of(|one| one.follow_p50_us),
        follow_p99_us: of(|one| one.follow_p99_us),
    }
}

impl Report {
    /// A run without figures yet.
    pub fn new(entry_bytes: u64, seconds: f64, rounds: usize) -> Self {
        Self { entry_bytes, seconds, rounds, cells: BTreeMap::new() }
    }

    /// Adds a cell of a round.
    pub fn add(&mut self, peer: Peer, writers: u64, figures: Figures) {
        self.cells.entry((writers, peer)).or_default().push(figures);
    }

    fn lines(&self) -> Vec<Line> {
        let rate = |writers, peer| self.cells.get(&(writers, peer)).map(|rounds| medians(rounds).rate);
        self.cells
            .iter()
            .map(|((writers, peer), rounds)| {
                let median = medians(rounds);
                let rates = rounds.iter().map(|one| one.rate);
                Line {
                    writers: *writers,
                    peer: *peer,
                    median,
                    rates: [rates.clone().fold(f64::INFINITY, f64::min), rates.fold(0.0, f64::max)],
                    rate_ratio: rate(*writers, Peer::Redis).filter(|rate| *rate > 0.0).map(|redis| median.rate / redis),
                    follow_over_append_p99: median.follow_p99_us / median.append_p99_us.max(1e-9),
                }
            })
            .collect()
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = format!(
            "durable appends of {} bytes, {} s each, medians of {} rounds; times in µs\n\
             writers  peer           /s  (lowest–highest)   to redis  append p50      p99  follower p50      p99  p99/p99\n",
            self.entry_bytes, self.seconds, self.rounds
        );
        for line in self.lines() {
            let Figures { rate, append_p50_us, append_p99_us, follow_p50_us, follow_p99_us } = line.median;
            let range = format!("{:.0}–{:.0}", line.rates[0], line.rates[1]);
            let ratio = line.rate_ratio.map_or("–".into(), |ratio| format!("{ratio:.2}"));
            let peer = match line.peer {
                Peer::Redis => "redis",
                Peer::Esker => "esker",
                Peer::EskerUnary => "esker unary",
                Peer::Kafka => "kafka",
            };
            out += &format!(
                "{:>7}  {peer:<11} {rate:>8.0}  {range:>17}  {ratio:>8}  {append_p50_us:>10.0} {append_p99_us:>8.0}  {follow_p50_us:>12.0} {follow_p99_us:>8.0}  {:>7.2}\n",
                line.writers, line.follow_over_append_p99
            );
        }
        out
    }

    /// For programs.
    pub fn write(&self, path: &Path) -> Result<()> {
        #[derive(Serialize)]
        struct Run {
            entry_bytes: u64,
            seconds: f64,
            rounds: usize,
            processors: usize,
            lines: Vec<Line>,
        }
        let run = Run {
            entry_bytes: self.entry_bytes,
            seconds: self.seconds,
            rounds: self.rounds,
            processors: std::thread::available_parallelism().map_or(1, |count| count.get()),
            lines: self.lines(),
        };
        std::fs::write(path, serde_json::to_vec_pretty(&run)?).with_context(|| path.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_medians() {
        let mut report = Report::new(1_024, 1.0, 3);
        for rate in [10.0, 1_000.0, 20.0] {
            let figures =
                Figures { rate, append_p50_us: 1.0, append_p99_us: 2.0, follow_p50_us: 1.0, follow_p99_us: 3.0 };
            report.add(Peer::Redis, 16, figures);
            report.add(Peer::Esker, 16, Figures { rate: rate * 2.0, ..figures });
        }
        let lines = report.lines();
        assert_eq!((lines[1].peer, lines[1].rate_ratio), (Peer::Esker, Some(2.0)));
        assert_eq!((lines[1].rates, lines[1].follow_over_append_p99), ([20.0, 2_000.0], 1.5));
        assert_eq!(report.text().lines().count(), 4);
    }
}

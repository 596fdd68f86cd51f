//! What a policy did in a cell, and the file that keeps it.

use std::path::Path;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::cell::Cell;

/// Figures of one run.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Puts acknowledged per second.
    pub per_second: f64,
    /// Puts per sync.
    pub per_sync: f64,
    /// Latency of a put, mean.
    pub mean_us: f64,
    /// Half of them took at most this.
    pub p50_us: f64,
    /// All but one in a hundred took at most this.
    pub p99_us: f64,
}

impl Figures {
    /// Of puts whose latencies in nanoseconds are in `latencies`, acknowledged within `seconds` with so many syncs.
    pub fn new(latencies: &Histogram<u64>, seconds: f64, syncs: u64) -> Self {
        let puts = latencies.len() as f64;
        Self {
            per_second: puts / seconds,
            per_sync: puts / syncs.max(1) as f64,
            mean_us: latencies.mean() / 1e3,
            p50_us: latencies.value_at_quantile(0.5) as f64 / 1e3,
            p99_us: latencies.value_at_quantile(0.99) as f64 / 1e3,
        }
    }

    /// An empty histogram of nanoseconds.
    pub fn histogram() -> Histogram<u64> {
        Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("these bounds are in order")
    }
}

/// A cell under a policy: medians of several runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The cell.
    pub cell: Cell,
    /// The policy, as text.
    pub policy: String,
    /// Medians.
    pub figures: Figures,
    /// Least and most puts per second of a run.
    pub per_second_range: [f64; 2],
    /// Least and most mean latency of a run.
    pub mean_us_range: [f64; 2],
    /// Number of runs.
    pub runs: usize,
}

impl Outcome {
    /// Each figure's median over `runs`, of which there is at least one.
    pub fn of(cell: Cell, policy: String, runs: &[Figures]) -> Self {
        let sorted = |of: fn(&Figures) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let median = |of| sorted(of)[runs.len() / 2];
        let range = |of| {
            let values = sorted(of);
            [values[0], values[values.len() - 1]]
        };
        Self {
            cell,
            policy,
            figures: Figures {
                per_second: median(|f| f.per_second),
                per_sync: median(|f| f.per_sync),
                mean_us: median(|f| f.mean_us),
                p50_us: median(|f| f.p50_us),
                p99_us: median(|f| f.p99_us),
            },
            per_second_range: range(|f| f.per_second),
            mean_us_range: range(|f| f.mean_us),
            runs: runs.len(),
        }
    }
}

/// How the figures came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Events in virtual time.
    Simulated,
    /// The engine.
    Measured,
}

/// The content of a results file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Results {
    /// How the figures came about.
    pub source: Source,
    /// Cells in the order of the grid, within a cell the policies in theirs.
    pub outcomes: Vec<Outcome>,
}

impl Results {
    /// Reads a file that [`Results::save`] wrote.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Writes the file at `path`.
    pub fn save(&self, path: &Path) -> Result<()> {
        std::fs::write(path, serde_json::to_string_pretty(self)?).with_context(|| path.display().to_string())
    }

    /// The cells, each with its outcomes.
    pub fn cells(&self) -> Vec<Compared<'_>> {
        let groups = self.outcomes.chunk_by(|a, b| a.cell == b.cell);
        groups.map(|outcomes| Compared { cell: outcomes[0].cell, outcomes }).collect()
    }
}

/// A cell under all policies.
pub struct Compared<'a> {
    /// The cell.
    pub cell: Cell,
    /// One per policy.
    pub outcomes: &'a [Outcome],
}

impl Compared<'_> {
    /// What `policy` did.
    pub fn of(&self, policy: &str) -> Option<&Outcome> {
        self.outcomes.iter().find(|outcome| outcome.policy == policy)
    }

    /// The best of those that `adaptive` is measured by. `periodic` acknowledges before the sync: it is not one of
    /// them.
    ///
    /// Best is the lowest mean latency: with a given think time that is the highest throughput, too, and it tells
    /// policies apart where the rate is given.
    pub fn best_other(&self) -> Option<&Outcome> {
        let others = self.outcomes.iter().filter(|o| o.policy != "adaptive" && !o.policy.starts_with("periodic"));
        others.min_by(|a, b| a.figures.mean_us.total_cmp(&b.figures.mean_us))
    }

    /// Throughput of `adaptive` by that of the best other; by latency, inverted, where the rate is given.
    pub fn adaptive_by_best(&self) -> Option<f64> {
        let (adaptive, best) = (self.of("adaptive")?, self.best_other()?);
        Some(if self.cell.load.paced {
            best.figures.mean_us / adaptive.figures.mean_us
        } else {
            adaptive.figures.per_second / best.figures.per_second
        })
    }

    /// Half the spread of the two's runs, as a part of the median: what a difference has to exceed to mean anything.
    pub fn noise(&self) -> Option<f64> {
        let half = |outcome: &Outcome| {
            let (figure, [low, high]) = if self.cell.load.paced {
                (outcome.figures.mean_us, outcome.mean_us_range)
            } else {
                (outcome.figures.per_second, outcome.per_second_range)
            };
            (high - low) / 2.0 / figure
        };
        Some(half(self.of("adaptive")?) + half(self.best_other()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{Disk, Load, Spread};

    #[test]
    fn periodic_is_not_compared() {
        let load = Load { clients: 2, puts: 1, think_us: 0, spread: Spread::Fixed, paced: false };
        let cell = Cell { disk: Disk::Takes(1_000), load };
        let outcome = |policy: &str, per_second: f64| {
            let figures = Figures { per_second, mean_us: 1e6 / per_second, ..Figures::default() };
            Outcome::of(cell, policy.into(), &[figures])
        };
        let outcomes = vec![
            outcome("adaptive", 90.0),
            outcome("batch", 50.0),
            outcome("group:1ms", 100.0),
            outcome("periodic:10ms", 900.0),
        ];
        let results = Results { source: Source::Simulated, outcomes };
        let cells = results.cells();
        assert_eq!(cells.len(), 1);
        assert_eq!(cells[0].best_other().unwrap().policy, "group:1ms");
        assert!((cells[0].adaptive_by_best().unwrap() - 0.9).abs() < 1e-9);
    }
}

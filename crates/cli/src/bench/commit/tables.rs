//! Results of `esker bench commit` as tables and plots.
//!
//! runs of a policy or a storage → their median → rows beside each other, with ratios to the first policy; other
//! storages also beside each policy
//!
//! Invariant: ratios are of figures of the same device, load and round.

use esker::CommitPolicy;
use serde_json::Value as Json;

use super::cell::{Disk, Load};
use super::measure::Outcome;
use crate::bench::objects::outcome::{Cell, Plot, Table};

/// What was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Measured {
    /// The map on the engine under a policy.
    Policy(CommitPolicy),
    /// Another storage, by its name.
    Peer(String),
}

/// All that got one load on one device.
pub struct Compared {
    /// The device.
    pub disk: Disk,
    /// The load.
    pub load: Load,
    /// What was measured, in order, with its runs.
    runs: Vec<(Measured, Vec<Outcome>)>,
}

impl Compared {
    /// Nothing yet.
    pub fn new(disk: Disk, load: Load) -> Self {
        Self { disk, load, runs: Vec::new() }
    }

    /// Adds a run.
    pub fn add(&mut self, measured: Measured, outcome: Outcome) {
        match self.runs.iter_mut().find(|(other, _)| *other == measured) {
            Some((_, runs)) => runs.push(outcome),
            None => self.runs.push((measured, vec![outcome])),
        }
    }

    /// Its name in results.
    pub fn phase(&self) -> String {
        format!("update if, device {}", self.disk)
    }

    /// The medians of all runs so far.
    fn medians(&self) -> Vec<(&Measured, &Outcome)> {
        let figure = |outcome: &Outcome| match self.load {
            Load::Closed(_) => outcome.cell.rate(),
            Load::Rate(_) => outcome.cell.latency.mean_us,
        };
        let mut medians = Vec::with_capacity(self.runs.len());
        for (measured, runs) in &self.runs {
            let mut sorted: Vec<&Outcome> = runs.iter().collect();
            sorted.sort_by(|a, b| figure(a).total_cmp(&figure(b)));
            medians.push((measured, sorted[sorted.len() / 2]));
        }
        medians
    }

    /// The cells of the medians, for the report.
    pub fn cells(&self) -> impl Iterator<Item = Cell> {
        self.medians().into_iter().map(|(_, outcome)| outcome.cell.clone())
    }

    /// The first policy: what ratios are to.
    fn base(&self) -> Option<&Outcome> {
        self.medians().into_iter().find(|(measured, _)| matches!(measured, Measured::Policy(_))).map(|(_, of)| of)
    }

    fn row(&self, outcome: &Outcome) -> Vec<Json> {
        let cell = &outcome.cell;
        let number = |value: Option<f64>| value.filter(|value| value.is_finite()).map_or(Json::Null, Json::from);
        let ms = |us: f64| Json::from(us / 1e3);
        let base = self.base().map(|base| &base.cell);
        let each = |total: Option<u64>| number(total.map(|total| cell.each(total as f64)));
        vec![
            self.load.to_string().into(),
            cell.backend.clone().into(),
            cell.rate().into(),
            number(base.map(|base| cell.rate() / base.rate())),
            ms(cell.latency.mean_us),
            number(base.map(|base| cell.latency.mean_us / base.latency.mean_us)),
            ms(cell.latency.p50_us),
            ms(cell.latency.p99_us),
            each(outcome.records),
            each(cell.syncs),
            number(records_per_sync(outcome)),
            number(cell.syncs.map(|syncs| syncs as f64 / cell.seconds)),
            each(cell.device_flushes),
            outcome.failed.into(),
        ]
    }
}

fn records_per_sync(outcome: &Outcome) -> Option<f64> {
    let syncs = outcome.cell.syncs.filter(|syncs| *syncs > 0)?;
    Some(outcome.records? as f64 / syncs as f64)
}

fn disks(cells: &[Compared]) -> Vec<Disk> {
    let mut disks: Vec<Disk> = Vec::new();
    for cell in cells {
        if !disks.contains(&cell.disk) {
            disks.push(cell.disk);
        }
    }
    disks
}

/// A table for each device, and one of the other storages beside the policies.
pub fn tables(cells: &[Compared]) -> Vec<Table> {
    let mut tables: Vec<Table> = disks(cells).into_iter().map(|disk| of_disk(disk, cells)).collect();
    tables.extend(beside(cells));
    tables
}

fn of_disk(disk: Disk, cells: &[Compared]) -> Table {
    let first = cells.iter().find_map(Compared::base).map_or("the first", |base| base.cell.backend.as_str());
    let by = format!("by {first}");
    let columns = [
        "load",
        "policy",
        "updates/s",
        by.as_str(),
        "mean ms",
        by.as_str(),
        "p50 ms",
        "p99 ms",
        "records each",
        "syncs each",
        "records/sync",
        "syncs/s",
        "disk flushes each",
        "failed",
    ];
    let cells = cells.iter().filter(|cell| cell.disk == disk);
    Table {
        title: match disk {
            Disk::OWN => "rows of the map updated if a column has the expected value, on the disk as it is".into(),
            disk => format!("the same, on a device with syncs of {disk}"),
        },
        columns: columns.map(str::to_owned).to_vec(),
        rows: cells.flat_map(|cell| cell.medians().into_iter().map(|(_, outcome)| cell.row(outcome))).collect(),
    }
}

/// Each other storage with each policy beside it.
fn beside(cells: &[Compared]) -> Option<Table> {
    let mut columns = vec!["load".to_owned(), "storage".into(), "updates/s".into(), "mean ms".into()];
    let mut rows = Vec::new();
    for cell in cells {
        let medians = cell.medians();
        let peers = medians.iter().filter(|(measured, _)| matches!(measured, Measured::Peer(_)));
        for (_, peer) in peers {
            let peer = &peer.cell;
            let mut row = vec![cell.load.to_string().into(), peer.backend.clone().into()];
            row.extend([Json::from(peer.rate()), (peer.latency.mean_us / 1e3).into()]);
            for (measured, outcome) in &medians {
                let Measured::Policy(policy) = measured else { continue };
                let names = [format!("{policy}: rate by its"), format!("{policy}: its latency by it")];
                if !columns.contains(&names[0]) {
                    columns.extend(names);
                }
                let of = &outcome.cell;
                row.push((of.rate() / peer.rate().max(1e-9)).into());
                row.push((peer.latency.mean_us / of.latency.mean_us.max(1e-9)).into());
            }
            rows.push(row);
        }
    }
    rows.iter_mut().for_each(|row| row.resize(columns.len(), Json::Null));
    let title = "other storages of the map, and how many times as fast it is on the engine under each policy".into();
    (!rows.is_empty()).then_some(Table { title, columns, rows })
}

/// For each device: latencies over the given rate, and records per sync over the clients.
pub fn plots(cells: &[Compared]) -> Vec<Plot> {
    type Figure = (&'static str, &'static str, bool, fn(&Outcome) -> Option<f64>);
    let figures: [Figure; 4] = [
        ("mean latency at a given rate", "ms", true, |of| Some(of.cell.latency.mean_us / 1e3)),
        ("p99 at a given rate", "ms", true, |of| Some(of.cell.latency.p99_us / 1e3)),
        ("mean latency", "ms", false, |of| Some(of.cell.latency.mean_us / 1e3)),
        ("records per sync", "records per sync", false, records_per_sync),
    ];
    let mut plots = Vec::new();
    for disk in disks(cells) {
        for (title, unit, rates, figure) in figures {
            let chosen = cells.iter().filter(|cell| cell.disk == disk && matches!(cell.load, Load::Rate(_)) == rates);
            let mut labels = Vec::new();
            let mut lines: Vec<(String, Vec<(usize, f64)>)> = Vec::new();
            for (place, cell) in chosen.enumerate() {
                labels.push(match cell.load {
                    Load::Closed(number) | Load::Rate(number) => number.to_string(),
                });
                for (_, outcome) in cell.medians() {
                    let Some(value) = figure(outcome) else { continue };
                    let name = &outcome.cell.backend;
                    match lines.iter_mut().find(|(line, _)| line == name) {
                        Some((_, points)) => points.push((place, value)),
                        None => lines.push((name.clone(), vec![(place, value)])),
                    }
                }
            }
            if lines.is_empty() {
                continue;
            }
            plots.push(Plot {
                title: format!("{title}, device {disk}"),
                axis: if rates { "updates per second in all" } else { "clients" }.into(),
                labels,
                unit: unit.into(),
                lines,
            });
        }
    }
    plots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::objects::outcome::Latency;

    fn outcome(name: &str, per_second: u64, mean_us: f64, syncs: Option<u64>) -> Outcome {
        let cell = Cell {
            backend: name.into(),
            phase: String::new(),
            object_bytes: 0,
            in_flight: 16,
            seconds: 2.0,
            operations: 2 * per_second,
            payload_bytes: 0,
            latency: Latency { mean_us, ..Latency::default() },
            device_write_bytes: None,
            syncs,
            device_flushes: None,
            cpu_seconds: 0.0,
        };
        Outcome { records: syncs.map(|_| cell.operations), cell, failed: 0 }
    }

    fn compared() -> Compared {
        let mut cell = Compared::new(Disk::OWN, Load::Closed(16));
        for (per_second, mean_us) in [(900, 17_000.0), (1_000, 16_000.0), (5_000, 3_000.0)] {
            cell.add(Measured::Policy(CommitPolicy::Batch), outcome("batch", per_second, mean_us, Some(500)));
        }
        cell.add(Measured::Policy(CommitPolicy::Adaptive), outcome("adaptive", 2_000, 8_000.0, Some(250)));
        cell.add(Measured::Peer("other".into()), outcome("other", 100, 160_000.0, None));
        cell
    }

    #[test]
    fn medians_are_shown_with_ratios_to_the_first_policy() {
        let tables = tables(&[compared()]);
        let row = |at: usize| &tables[0].rows[at];
        let column = |name: &str| tables[0].columns.iter().position(|column| column == name).unwrap();
        assert_eq!((row(0)[1].as_str(), row(0)[2].as_f64()), (Some("batch"), Some(1_000.0)), "the median of three");
        assert_eq!((row(1)[3].as_f64(), row(1)[5].as_f64()), (Some(2.0), Some(0.5)));
        assert_eq!(row(1)[column("records each")].as_f64(), Some(1.0));
        assert_eq!(row(1)[column("records/sync")].as_f64(), Some(16.0));
        assert_eq!(row(1)[column("syncs/s")].as_f64(), Some(125.0));
        assert!(row(2)[column("syncs each")].is_null(), "the peer does not count them");
        assert!(tables.iter().all(|table| table.rows.iter().all(|row| row.len() == table.columns.len())));
    }

    #[test]
    fn other_storages_stand_beside_every_policy() {
        let tables = tables(&[compared()]);
        let row = &tables[1].rows[0];
        assert_eq!(row[1].as_str(), Some("other"));
        let numbers: Vec<_> = row[4..].iter().map(|value| value.as_f64().unwrap()).collect();
        assert_eq!(numbers, [10.0, 10.0, 20.0, 20.0]);
    }

    #[test]
    fn plots_have_a_line_for_each() {
        let mut rate = Compared::new(Disk::OWN, Load::Rate(400));
        rate.add(Measured::Policy(CommitPolicy::Batch), outcome("batch", 400, 5_000.0, Some(100)));
        let plots = plots(&[compared(), rate]);
        let titles: Vec<_> = plots.iter().map(|plot| (plot.title.as_str(), plot.lines.len())).collect();
        let expected = [
            ("mean latency at a given rate, device own", 1),
            ("p99 at a given rate, device own", 1),
            ("mean latency, device own", 3),
            ("records per sync, device own", 2),
        ];
        assert_eq!(titles, expected);
        assert_eq!(plots[0].labels, ["400"]);
    }
}

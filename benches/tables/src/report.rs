//! Figures of several rounds: medians, ranges, ratios; as a table and as JSON.
//!
//! Invariant: a table never mixes groups, so page cache and synced figures do not stand side by side.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context, Result};
use esker_bench_figures::median;
use serde::Serialize;

use crate::units::short;

/// What a column is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Ours: the numerator of every ratio.
    Ours,
    /// Measured against.
    Rival,
    /// Shown for scale only.
    Scale,
}

/// A column of the tables.
#[derive(Clone, Debug, Serialize)]
pub struct Column {
    /// The name.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// How it was set up.
    pub setup: String,
}

/// The rates of one column in one row.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Middle of the rounds, calls per second.
    pub median: f64,
    /// The slowest round.
    pub min: f64,
    /// The fastest round.
    pub max: f64,
    /// All rounds in order.
    pub rounds: Vec<f64>,
    /// Ours over this one, by the medians.
    pub ratio: Option<f64>,
}

/// A workload: a row of a table.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// What was done.
    pub name: String,
    /// By column name.
    pub cells: BTreeMap<String, Cell>,
    /// The rival with the best median.
    pub best: Option<String>,
    /// Ours over the best rival.
    pub ratio_to_best: Option<f64>,
}

/// A table: rows that may be compared with each other.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Group {
    /// Its title.
    pub name: String,
    /// Its rows.
    pub rows: Vec<Row>,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// How the run was set up: flag and value.
    pub setup: BTreeMap<String, String>,
    /// The columns in order.
    pub columns: Vec<Column>,
    /// The tables in order.
    pub groups: Vec<Group>,
}

impl Report {
    /// Adds one measurement; groups and rows come in the order of their first measurement.
    pub fn add(&mut self, group: &str, row: &str, column: &str, rate: f64) {
        let group = entry(&mut self.groups, |g| g.name == group, || Group { name: group.into(), rows: Vec::new() });
        let row = entry(&mut group.rows, |r| r.name == row, || Row { name: row.into(), ..Row::default() });
        let empty = || Cell { median: 0.0, min: f64::MAX, max: 0.0, rounds: Vec::new(), ratio: None };
        let cell = row.cells.entry(column.into()).or_insert_with(empty);
        cell.rounds.push(rate);
        cell.min = cell.min.min(rate);
        cell.max = cell.max.max(rate);
        cell.median = median(cell.rounds.iter().copied()).unwrap_or(rate);
    }

    /// Works out ratios and best rivals.
    pub fn finish(&mut self) {
        let named = |role| self.columns.iter().filter(move |c| c.role == role).map(|c| c.name.clone());
        let ours: Option<String> = named(Role::Ours).next();
        let rivals: Vec<String> = named(Role::Rival).collect();
        for row in self.groups.iter_mut().flat_map(|group| &mut group.rows) {
            let median = |name: &String| row.cells.get(name).map(|cell| cell.median);
            let our_median = ours.as_ref().and_then(median);
            row.best = rivals
                .iter()
                .filter_map(|name| median(name).map(|median| (name, median)))
                .max_by(|a, b| a.1.total_cmp(&b.1))
                .map(|(name, _)| name.clone());
            let best = row.best.as_ref().and_then(median);
            row.ratio_to_best = our_median.zip(best).map(|(ours, best)| ours / best.max(1e-9));
            for (name, cell) in &mut row.cells {
                cell.ratio =
                    our_median.filter(|_| Some(name) != ours.as_ref()).map(|ours| ours / cell.median.max(1e-9));
            }
        }
    }

    /// Prints every table: under each median its range and the ratio of ours to it.
    pub fn print(&self) {
        for group in &self.groups {
            println!("\n## {} (operations/s: median, min..max over rounds, ratio of ours to it)\n", group.name);
            let mut lines: Vec<Vec<String>> = Vec::new();
            let shown: Vec<&str> = self
                .columns
                .iter()
                .map(|column| column.name.as_str())
                .filter(|name| group.rows.iter().any(|row| row.cells.contains_key(*name)))
                .collect();
            let mut head = vec!["workload".to_owned()];
            head.extend(shown.iter().map(|name| (*name).to_owned()));
            head.push("best rival".into());
            lines.push(head);
            for row in &group.rows {
                let part = |text: fn(&Cell) -> String| -> Vec<String> {
                    shown.iter().map(|name| row.cells.get(*name).map(text).unwrap_or_default()).collect()
                };
                let best = row.best.clone().unwrap_or_default();
                let ratio = row.ratio_to_best.map(|ratio| format!("{ratio:.2}x")).unwrap_or_default();
                let medians = part(|cell| short(cell.median));
                let ranges = part(|cell| format!("{}..{}", short(cell.min), short(cell.max)));
                let ratios = part(|cell| cell.ratio.map(|ratio| format!("{ratio:.2}x")).unwrap_or_default());
                lines.push([vec![row.name.clone()], medians, vec![best]].concat());
                if row.cells.values().any(|cell| cell.rounds.len() > 1) {
                    lines.push([vec![String::new()], ranges, vec![String::new()]].concat());
                }
                if row.ratio_to_best.is_some() {
                    lines.push([vec![String::new()], ratios, vec![ratio]].concat());
                }
            }
            print_aligned(&lines);
        }
        println!("\nSet up:");
        for column in &self.columns {
            println!("- {}: {}", column.name, column.setup);
        }
    }

    /// Writes everything as JSON.
    pub fn write_json(&self, path: &Path) -> Result<()> {
        let context = || format!("{}", path.display());
        let file = BufWriter::new(File::create(path).with_context(context)?);
        serde_json::to_writer_pretty(file, self).with_context(context)
    }
}

fn entry<T>(list: &mut Vec<T>, is: impl Fn(&T) -> bool, new: impl Fn() -> T) -> &mut T {
    let index = list.iter().position(is).unwrap_or_else(|| {
        list.push(new());
        list.len() - 1
    });
    &mut list[index]
}

/// Prints a table in Markdown: first and last column to the left, figures to the right.
pub fn print_aligned(lines: &[Vec<String>]) {
    let columns = lines.first().map_or(0, Vec::len);
    let widths: Vec<usize> =
        (0..columns).map(|column| lines.iter().map(|line| line[column].len()).max().unwrap_or(0)).collect();
    for (number, line) in lines.iter().enumerate() {
        let mut text = String::from("|");
        for (column, cell) in line.iter().enumerate() {
            let width = widths[column];
            match column == 0 || column + 1 == columns {
                true => text.push_str(&format!(" {cell:<width$} |")),
                false => text.push_str(&format!(" {cell:>width$} |")),
            }
        }
        println!("{text}");
        if number == 0 {
            let rules = widths.iter().enumerate().map(|(column, width)| match column == 0 || column + 1 == columns {
                true => format!("{}-|", "-".repeat(width + 1)),
                false => format!("{}:|", "-".repeat(width + 1)),
            });
            println!("|{}", rules.collect::<String>());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios_are_those_of_the_rounds() {
        let column = |name: &str, role| Column { name: name.into(), role, setup: String::new() };
        let mut report = Report {
            columns: vec![column("a", Role::Rival), column("b", Role::Rival), column("us", Role::Ours)],
            ..Report::default()
        };
        for (name, rates) in [("a", [3.0, 1.0, 2.0]), ("b", [9.0, 1.0, 1.0]), ("us", [6.0, 6.0, 5.0])] {
            for rate in rates {
                report.add("group", "row", name, rate);
            }
        }
        report.finish();
        let row = &report.groups[0].rows[0];
        assert_eq!((row.cells["a"].median, row.cells["a"].min, row.cells["a"].max), (2.0, 1.0, 3.0));
        assert_eq!(row.best.as_deref(), Some("a"));
        assert_eq!(row.ratio_to_best, Some(3.0));
        assert_eq!(row.cells["b"].ratio, Some(6.0));
        assert_eq!(row.cells["us"].ratio, None);
    }
}

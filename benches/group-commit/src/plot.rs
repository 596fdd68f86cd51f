//! Results as SVG.
//!
//! For each file: throughput and latency over clients by policy, a panel for each sync and think time; a map of how
//! `adaptive` stands to the best other policy in each cell; latencies on the device of 200 syncs a second.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use esker_bench_figures::{Area, BAND, FONT, drawn, heading, plain};
use plotters::prelude::*;

use crate::cell::{Cell, Disk, Load, Spread};
use crate::outcome::{Compared, Figures, Results, Source};
use crate::report::{self, think};

const PANEL: (u32, u32) = (270, 190);

/// Arguments of `plot`.
#[derive(Args)]
pub struct Plot {
    /// Files that `simulate` and `measure` wrote
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Folder for the plots
    #[arg(long)]
    out: PathBuf,
}

impl Plot {
    /// Draws the plots and prints the tables.
    pub fn run(&self) -> Result<()> {
        std::fs::create_dir_all(&self.out).with_context(|| self.out.display().to_string())?;
        for file in &self.files {
            let results = Results::load(file)?;
            let name = match results.source {
                Source::Simulated => "simulated",
                Source::Measured => "measured",
            };
            let cells = results.cells();
            let path = |what: &str| self.out.join(format!("{name}-{what}.svg"));
            let title = |what: &str| format!("{what}, {name}");
            panels(&path("throughput"), &title("puts per second over clients"), &cells, |f| f.per_second)?;
            panels(&path("latency"), &title("mean latency in ms over clients"), &cells, |f| f.mean_us / 1e3)?;
            map(&path("map"), &title("throughput of adaptive by that of the best other policy"), &cells)?;
            limited(&path("limited"), &title("mean latency in ms, 200 syncs per second"), &cells)?;
            print!("{}", report::tables(&results));
        }
        Ok(())
    }
}

fn colour(policy: &str) -> RGBColor {
    match policy {
        "adaptive" => RGBColor(214, 39, 40),
        "batch" => RGBColor(31, 119, 180),
        "group:1ms" => RGBColor(44, 160, 44),
        "group:2ms" => RGBColor(148, 103, 189),
        "group:5ms" => RGBColor(255, 127, 14),
        "group:10ms" => RGBColor(140, 86, 75),
        _ => RGBColor(170, 170, 170),
    }
}

fn policies<'a>(cells: &[&Compared<'a>]) -> Vec<&'a str> {
    cells.first().map_or_else(Vec::new, |cell| cell.outcomes.iter().map(|o| o.policy.as_str()).collect())
}

/// Each policy with its colour.
fn legend<'a>(policies: &[&'a str]) -> Vec<(&'a str, RGBColor)> {
    policies.iter().map(|policy| (*policy, colour(policy))).collect()
}

fn in_the_grid(cell: &Compared<'_>) -> bool {
    !cell.cell.load.paced && !matches!(cell.cell.disk, Disk::Limited { .. })
}

/// What a load is besides its number of clients. Without a think time there is nothing to spread.
fn kind(load: &Load) -> Load {
    let spread = if load.think_us == 0 { Spread::Fixed } else { load.spread };
    Load { clients: 0, spread, ..*load }
}

/// The kinds of loads of `cells`, in order.
fn thinks(cells: &[&Compared<'_>]) -> Vec<Load> {
    let all = cells.iter().map(|c| kind(&c.cell.load));
    let mut thinks: Vec<Load> = all.collect::<BTreeSet<_>>().into_iter().collect();
    // The plot has room for one spread.
    if let Some(last) = thinks.iter().map(|load| load.spread).max() {
        thinks.retain(|load| load.spread == last || load.think_us == 0);
    }
    thinks
}

fn panels(path: &Path, title: &str, cells: &[Compared<'_>], figure: fn(&Figures) -> f64) -> Result<()> {
    let cells: Vec<_> = cells.iter().filter(|cell| in_the_grid(cell)).collect();
    let disks: Vec<Disk> = cells.iter().map(|c| c.cell.disk).collect::<BTreeSet<_>>().into_iter().collect();
    let thinks = thinks(&cells);
    if cells.is_empty() {
        return Ok(());
    }
    let size = ((PANEL.0 * thinks.len() as u32).max(720), BAND + PANEL.1 * disks.len() as u32);
    let root = SVGBackend::new(path, size).into_drawing_area();
    drawn(root.fill(&WHITE))?;
    let (top, rest) = root.split_vertically(BAND);
    let policies = policies(&cells);
    heading(&top, title, &legend(&policies), 100)?;
    for (index, area) in rest.split_evenly((disks.len(), thinks.len())).iter().enumerate() {
        let (disk, load) = (disks[index / thinks.len()], thinks[index % thinks.len()]);
        let mut row: Vec<_> = cells.iter().filter(|c| c.cell.disk == disk && kind(&c.cell.load) == load).collect();
        row.sort_by_key(|c| c.cell.load.clients);
        row.dedup_by_key(|c| c.cell.load.clients);
        panel(area, &format!("sync {disk}, think {}", think(&Cell { disk, load })), &row, &policies, figure)?;
    }
    drawn(root.present())
}

fn panel(
    area: &Area<'_>,
    title: &str,
    row: &[&&Compared<'_>],
    policies: &[&str],
    figure: fn(&Figures) -> f64,
) -> Result<()> {
    // What is acknowledged before the sync would stretch the axis: it is drawn as far as it fits.
    let durable = row.iter().flat_map(|c| c.outcomes).filter(|o| !o.policy.starts_with("periodic"));
    let values: Vec<f64> = durable.map(|o| figure(&o.figures)).filter(|value| *value > 0.0).collect();
    if values.is_empty() {
        return Ok(());
    }
    let low = values.iter().copied().fold(f64::INFINITY, f64::min) * 0.8;
    let high = values.iter().copied().fold(0.0, f64::max) * 1.3;
    let last = (row.len() - 1).max(1) as f64;
    let mut chart = drawn(
        ChartBuilder::on(area)
            .margin(6)
            .caption(title, (FONT, 12))
            .x_label_area_size(18)
            .y_label_area_size(38)
            .build_cartesian_2d(0.0..last, (low..high).log_scale()),
    )?;
    let clients = |x: &f64| row.get(x.round() as usize).map_or_else(String::new, |c| c.cell.load.clients.to_string());
    let mut mesh = chart.configure_mesh();
    plain(&mut mesh);
    mesh.x_labels(row.len()).x_label_formatter(&clients).y_labels(5).y_label_formatter(&|y| report::short(*y));
    drawn(mesh.draw())?;
    for policy in policies.iter().rev() {
        let points = row.iter().enumerate().filter_map(|(x, cell)| {
            let value = figure(&cell.of(policy)?.figures);
            (low..=high).contains(&value).then_some((x as f64, value))
        });
        let width = if *policy == "adaptive" { 3 } else { 1 };
        drawn(chart.draw_series(LineSeries::new(points, colour(policy).stroke_width(width))))?;
    }
    Ok(())
}

/// From red (half as good) by white (as good) to green (twice as good).
fn shade(ratio: f64) -> RGBColor {
    let away = ratio.log2().clamp(-1.0, 1.0);
    // Small differences are to be seen: colours grow fast at first.
    let part = away.abs().powf(0.7);
    let mix = |to: f64| (255.0 + (to - 255.0) * part) as u8;
    if away < 0.0 { RGBColor(mix(230.0), mix(60.0), mix(60.0)) } else { RGBColor(mix(60.0), mix(175.0), mix(90.0)) }
}

fn map(path: &Path, title: &str, cells: &[Compared<'_>]) -> Result<()> {
    let cells: Vec<_> = cells.iter().filter(|cell| in_the_grid(cell)).collect();
    let thinks = thinks(&cells);
    let column_of = |c: &Compared<'_>| (c.cell.disk, kind(&c.cell.load));
    let columns: BTreeSet<(Disk, Load)> = cells.iter().map(|c| column_of(c)).collect();
    let columns: Vec<_> = columns.into_iter().filter(|(_, load)| thinks.contains(load)).collect();
    let mut rows: Vec<u64> = cells.iter().map(|c| c.cell.load.clients).collect::<BTreeSet<_>>().into_iter().collect();
    // The device of 200 syncs a second adds numbers of clients to one column only.
    rows.retain(|clients| cells.iter().filter(|c| c.cell.load.clients == *clients).count() > 1);
    if columns.is_empty() {
        return Ok(());
    }
    let dense = columns.len() > 20;
    let (width, height) = if dense { (24, 20) } else { (58, 26) };
    let (left, top) = (60, 62);
    let size = ((left + width * columns.len() as i32 + 8).max(480), top + height * rows.len() as i32 + 8);
    let root = SVGBackend::new(path, (size.0 as u32, size.1 as u32)).into_drawing_area();
    drawn(root.fill(&WHITE))?;
    drawn(root.draw(&Text::new(title.to_owned(), (8, 6), (FONT, 15).into_font())))?;
    let small = (FONT, if dense { 8 } else { 11 }).into_font();
    for (text, y) in [("sync ms", 30), ("think ms", 46)] {
        drawn(root.draw(&Text::new(text, (8, y), (FONT, 11).into_font())))?;
    }
    for (index, (disk, load)) in columns.iter().enumerate() {
        let x = left + width * index as i32 + 2;
        if index == 0 || columns[index - 1].0 != *disk {
            let sync = if *disk == Disk::Own { disk.to_string() } else { (disk.cycle_us() as f64 / 1e3).to_string() };
            drawn(root.draw(&Text::new(sync, (x, 30), (FONT, 11).into_font())))?;
        }
        drawn(root.draw(&Text::new((load.think_us as f64 / 1e3).to_string(), (x, 46), (FONT, 11).into_font())))?;
    }
    for (index, clients) in rows.iter().enumerate() {
        let y = top + height * index as i32;
        drawn(root.draw(&Text::new(clients.to_string(), (8, y + height / 2 - 6), (FONT, 11).into_font())))?;
        for (column, (disk, load)) in columns.iter().enumerate() {
            let found = cells.iter().find(|c| column_of(c) == (*disk, *load) && c.cell.load.clients == *clients);
            let Some(ratio) = found.and_then(|c| c.adaptive_by_best()) else { continue };
            let x = left + width * column as i32;
            let corners = [(x, y), (x + width - 2, y + height - 2)];
            drawn(root.draw(&Rectangle::new(corners, shade(ratio).filled())))?;
            let at = (x + 3, y + height / 2 - if dense { 5 } else { 7 });
            drawn(root.draw(&Text::new(format!("{ratio:.2}"), at, small.clone())))?;
        }
    }
    drawn(root.present())
}

/// Bars by load and policy, the two devices of 200 syncs a second below each other.
fn limited(path: &Path, title: &str, cells: &[Compared<'_>]) -> Result<()> {
    let device = |c: &&Compared<'_>| matches!(c.cell.disk, Disk::Limited { .. });
    let loads: BTreeSet<Load> = cells.iter().filter(device).map(|c| c.cell.load).collect();
    let sames = |c: &&Compared<'_>| loads.contains(&c.cell.load) && c.cell.disk.cycle_us() == 5_000;
    let cells: Vec<_> = cells.iter().filter(sames).collect();
    let disks: Vec<Disk> = cells.iter().map(|c| c.cell.disk).collect::<BTreeSet<_>>().into_iter().collect();
    if loads.is_empty() {
        return Ok(());
    }
    let mut policies = policies(&cells);
    policies.retain(|policy| !policy.starts_with("periodic"));
    let bar = 13;
    let group = bar * policies.len() as i32 + 16;
    let (left, high, below) = (44, 150, 40);
    let size = ((left + group * loads.len() as i32 + 8).max(700), BAND as i32 + (high + below) * disks.len() as i32);
    let root = SVGBackend::new(path, (size.0 as u32, size.1 as u32)).into_drawing_area();
    drawn(root.fill(&WHITE))?;
    heading(&root, title, &legend(&policies), 100)?;
    let durable = cells.iter().flat_map(|c| c.outcomes).filter(|o| !o.policy.starts_with("periodic"));
    let most = durable.map(|o| o.figures.mean_us).fold(0.0, f64::max) * 1.05;
    for (row, disk) in disks.iter().enumerate() {
        let bottom = BAND as i32 + (high + below) * row as i32 + high;
        drawn(root.draw(&Text::new(disk.to_string(), (8, bottom - high), (FONT, 12).into_font())))?;
        for step in [0.0, 5.0, 10.0, 15.0] {
            let y = bottom - (step * 1e3 / most * f64::from(high - 14)) as i32;
            if y > bottom - high {
                drawn(root.draw(&PathElement::new(vec![(left, y), (size.0 - 8, y)], BLACK.mix(0.15))))?;
                drawn(root.draw(&Text::new(step.to_string(), (left - 18, y - 6), (FONT, 10).into_font())))?;
            }
        }
        for (column, load) in loads.iter().enumerate() {
            let x = left + group * column as i32;
            let cell = Cell { disk: *disk, load: *load };
            let Some(found) = cells.iter().find(|c| c.cell == cell) else { continue };
            let name = if load.paced { think(&cell) } else { format!("{} clients", load.clients) };
            drawn(root.draw(&Text::new(name, (x, bottom + 4), (FONT, 10).into_font())))?;
            for (index, policy) in policies.iter().enumerate() {
                let Some(outcome) = found.of(policy) else { continue };
                let y = bottom - (outcome.figures.mean_us / most * f64::from(high - 14)) as i32;
                let from = x + bar * index as i32;
                drawn(root.draw(&Rectangle::new([(from, y), (from + bar - 2, bottom)], colour(policy).filled())))?;
            }
        }
    }
    drawn(root.present())
}

//! The report's table as SVG: appends per second, and the 99th percentiles of appends and of the follower, over the
//! number of writers.
//!
//! Invariant: what is drawn is read from the table, as it is printed and as docs/measurements keep it, so that the two
//! never differ.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, ensure};
use esker_bench_figures::{Area, BAND, FONT, colour, drawn, heading, plain};
use plotters::prelude::*;

const PANEL: (u32, u32) = (300, 240);
/// What is drawn, and its column of the table.
const PANELS: [(&str, usize); 3] = [("appends per second", 2), ("append p99, µs", 6), ("follower p99, µs", 8)];
/// Columns of the table.
const COLUMNS: usize = 12;

/// One row: writers, peer, and all columns as numbers, NaN where there is none.
struct Row<'a> {
    writers: u32,
    peer: &'a str,
    figures: Vec<f64>,
}

/// The cells of a row, if the line is one with as many as the table has.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim_end().strip_prefix('|')?.strip_suffix('|')?;
    let cells: Vec<&str> = inner.split('|').map(str::trim).collect();
    (cells.len() == COLUMNS).then_some(cells)
}

/// The rows of the first table of [`crate::report::Report::text`]'s form in a text.
fn rows(text: &str) -> Vec<Row<'_>> {
    let table = text
        .lines()
        .map(cells)
        .skip_while(|cells| cells.as_ref().is_none_or(|cells| cells[..2] != ["writers", "peer"]));
    let figures = |cells: &[&str]| cells.iter().map(|cell| cell.parse().unwrap_or(f64::NAN)).collect();
    // Behind the header and the line below it.
    table
        .skip(2)
        .map_while(|cells| cells)
        .filter_map(|cells| Some(Row { writers: cells[0].parse().ok()?, peer: cells[1], figures: figures(&cells) }))
        .collect()
}

/// Draws the table in `text` to `path`.
///
/// # Errors
/// There is no table in it; the file cannot be written.
pub fn draw(path: &Path, text: &str) -> Result<()> {
    let rows = rows(text);
    ensure!(!rows.is_empty(), "no table of writers and peers to draw");
    let mut peers: Vec<&str> = Vec::new();
    for row in &rows {
        if !peers.contains(&row.peer) {
            peers.push(row.peer);
        }
    }
    let root = SVGBackend::new(path, (PANEL.0 * PANELS.len() as u32, BAND + PANEL.1)).into_drawing_area();
    drawn(root.fill(&WHITE))?;
    let (top, rest) = root.split_vertically(BAND);
    let legend: Vec<_> = peers.iter().enumerate().map(|(index, peer)| (*peer, colour(index))).collect();
    heading(&top, "durable appends by gRPC and peers, over writers", &legend, 110)?;
    for (area, (title, column)) in rest.split_evenly((1, PANELS.len())).iter().zip(PANELS) {
        panel(area, title, column, &rows, &peers)?;
    }
    drawn(root.present())
}

fn panel(area: &Area<'_>, title: &str, column: usize, rows: &[Row<'_>], peers: &[&str]) -> Result<()> {
    // On a logarithmic axis there is no zero.
    let of = |row: &Row<'_>| Some(row.figures[column]).filter(|value| *value > 0.0);
    let (low, high) = rows
        .iter()
        .filter_map(of)
        .fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
    ensure!(high > 0.0, "no figures of {title}");
    let places: BTreeMap<u32, f64> = {
        let mut writers: Vec<u32> = rows.iter().map(|row| row.writers).collect();
        writers.sort_unstable();
        writers.dedup();
        writers.into_iter().enumerate().map(|(place, writers)| (writers, place as f64)).collect()
    };
    let last = (places.len() - 1).max(1) as f64;
    let mut chart = drawn(
        ChartBuilder::on(area)
            .margin(8)
            .caption(title, (FONT, 13))
            .x_label_area_size(20)
            .y_label_area_size(52)
            .build_cartesian_2d(-0.1..last + 0.1, (low * 0.7..high * 1.4).log_scale()),
    )?;
    let name = |x: &f64| {
        let found = places.iter().find(|(_, place)| (*place - x).abs() < 0.01);
        found.map_or_else(String::new, |(writers, _)| writers.to_string())
    };
    let short = |y: &f64| match *y {
        y if y >= 1e6 => format!("{} M", y / 1e6),
        y if y >= 1e3 => format!("{} k", y / 1e3),
        y => format!("{y}"),
    };
    let mut mesh = chart.configure_mesh();
    plain(&mut mesh);
    mesh.x_labels(12).x_label_formatter(&name).y_labels(6).y_label_formatter(&short);
    drawn(mesh.draw())?;
    for (index, peer) in peers.iter().enumerate() {
        let colour = colour(index);
        let own = rows.iter().filter(|row| row.peer == *peer);
        let mut points: Vec<(f64, f64)> = own.filter_map(|row| Some((places[&row.writers], of(row)?))).collect();
        points.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        drawn(chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2))))?;
        drawn(chart.draw_series(points.into_iter().map(|point| Circle::new(point, 3, colour.filled()))))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "text | with | bars\n\n\
        | writers | peer | appends/s | range | to redis | p50, µs | p99 | p50 | p99 | p99 to p99 | server, µs | clients, µs |\n\
        |--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n\
        | 1 | redis | 3428 | 1..2 | 1.00x | 275 | 496 | 321 | 701 | 1.41 | 132.2 | 61.9 |\n\
        | 64 | esker | 40 | 1..2 |  | 5 | 6.5 | 7 | 8 | 1 | 2 | 3 |\n\n\
        | 9 | other | 40 | 1..2 |  | 5 | 6.5 | 7 | 8 | 1 | 2 | 3 |\n";

    #[test]
    fn the_figures_of_the_table_are_read_and_no_others() {
        let rows = rows(TABLE);
        let read: Vec<_> =
            rows.iter().map(|row| (row.writers, row.peer, PANELS.map(|(_, column)| row.figures[column]))).collect();
        assert_eq!(read, [(1, "redis", [3428.0, 496.0, 701.0]), (64, "esker", [40.0, 6.5, 8.0])]);
    }

    #[test]
    fn a_text_without_a_table_is_not_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plot.svg");
        assert!(draw(&path, "| a | b |\n").is_err());
        draw(&path, TABLE).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        assert!(svg.matches("<circle").count() == 6 && svg.contains("follower p99"), "{svg}");
    }
}

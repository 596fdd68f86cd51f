//! Results as SVG: throughput and p99.9 over time, a panel for each fill level; write amplification by fill level.

use std::path::Path;

use anyhow::{Context, Result};
use esker_bench_figures::{BAND, FONT, colour, drawn, heading, plain};
use plotters::prelude::*;

use super::results::{Results, Sample, Summary, time};
use super::theory;
use crate::units::short;

const PANEL: (u32, u32) = (360, 200);
/// Pixels from one name of the legend to the next.
const APART: u32 = 170;

/// Draws everything into a folder.
pub fn all(folder: &Path, results: &Results) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let title = "overwrites per second over seconds, by fill level";
    over_time(&folder.join("throughput.svg"), title, results, |s| s.ops_per_s, &|y| short(*y))?;
    let title = "p99.9 latency of each second over seconds, by fill level";
    over_time(&folder.join("p999.svg"), title, results, |s| s.p999_us, &|y| time(*y))?;
    amplification(&folder.join("amplification.svg"), results)
}

fn names(results: &Results) -> Vec<(String, RGBColor)> {
    results.columns.iter().enumerate().map(|(index, name)| (name.clone(), colour(index))).collect()
}

fn over_time(
    path: &Path,
    title: &str,
    results: &Results,
    figure: fn(&Sample) -> f64,
    label: &dyn Fn(&f64) -> String,
) -> Result<()> {
    let fills = results.fills();
    let shown = |value: &f64| *value > 0.0;
    let values = || results.runs.iter().flat_map(|run| &run.samples).map(figure).filter(shown);
    let (low, high) = (values().fold(f64::INFINITY, f64::min) * 0.8, values().fold(0.0, f64::max) * 1.3);
    if !low.is_finite() {
        return Ok(());
    }
    let rows = fills.len().div_ceil(2);
    let root = SVGBackend::new(path, (2 * PANEL.0, BAND + PANEL.1 * rows as u32)).into_drawing_area();
    drawn(root.fill(&WHITE))?;
    let (top, rest) = root.split_vertically(BAND);
    heading(&top, title, &names(results), APART)?;
    for (area, fill) in rest.split_evenly((rows, 2)).iter().zip(&fills) {
        let runs = || results.runs.iter().filter(|run| run.fill == *fill);
        let last = runs().flat_map(|run| run.samples.last()).map(|s| s.second).fold(1.0, f64::max);
        let mut chart = drawn(
            ChartBuilder::on(area)
                .margin(6)
                .caption(format!("{fill} %"), (FONT, 12))
                .x_label_area_size(18)
                .y_label_area_size(48)
                .build_cartesian_2d(0.0..last, (low..high).log_scale()),
        )?;
        let mut mesh = chart.configure_mesh();
        plain(&mut mesh);
        mesh.x_labels(7).x_label_formatter(&|x| format!("{x:.0}")).y_labels(6).y_label_formatter(label);
        drawn(mesh.draw())?;
        for (index, store) in results.columns.iter().enumerate().rev() {
            let Some(run) = results.run(store, *fill) else { continue };
            // A second in which nothing was answered stands at the bottom.
            let points = run.samples.iter().map(|s| (s.second, figure(s).max(low)));
            drawn(chart.draw_series(LineSeries::new(points, colour(index).stroke_width(2))))?;
        }
    }
    drawn(root.present())
}

fn amplification(path: &Path, results: &Results) -> Result<()> {
    let summaries = || results.runs.iter().filter_map(|run| run.summary.as_ref());
    let most = summaries().map(|s| s.amplification).fold(6.0, f64::max) * 1.1;
    let root = SVGBackend::new(path, (2 * PANEL.0, 360)).into_drawing_area();
    drawn(root.fill(&WHITE))?;
    let (top, rest) = root.split_vertically(BAND);
    let mut legend = names(results);
    legend.push(("theory (line: of fill)".into(), BLACK));
    heading(&top, "bytes written over bytes of payload, by fill level in % of the size", &legend, APART)?;
    let mut chart = drawn(
        ChartBuilder::on(&rest)
            .margin(8)
            .x_label_area_size(20)
            .y_label_area_size(36)
            .build_cartesian_2d(40.0..96.0, 0.0..most),
    )?;
    let mut mesh = chart.configure_mesh();
    plain(&mut mesh);
    mesh.x_labels(12).x_label_formatter(&|x| format!("{x:.0}")).y_label_formatter(&|y| format!("{y:.0}"));
    drawn(mesh.draw())?;
    let line = (400..=950).map(|tenth| f64::from(tenth) / 10.0);
    let line = line.map(|fill| (fill, theory::write_amplification(fill / 100.0))).filter(|(_, y)| *y <= most);
    drawn(chart.draw_series(LineSeries::new(line, BLACK.mix(0.6))))?;
    let points = |store: &str, figure: fn(&Summary) -> Option<f64>| -> Vec<(f64, f64)> {
        let run = |fill: &u32| results.run(store, *fill)?.summary.as_ref().and_then(figure);
        results.fills().iter().filter_map(|fill| Some((f64::from(*fill), run(fill)?))).collect()
    };
    for (index, store) in results.columns.iter().enumerate() {
        let measured = points(store, |s| Some(s.amplification));
        drawn(chart.draw_series(LineSeries::new(measured.iter().copied(), colour(index).stroke_width(2))))?;
        drawn(chart.draw_series(measured.iter().map(|point| Circle::new(*point, 4, colour(index).filled()))))?;
        // Hollow: what theory says for the utilisation that the cleaner meets.
        let expected = points(store, |s| s.theory);
        drawn(chart.draw_series(expected.iter().map(|point| Circle::new(*point, 4, BLACK.stroke_width(1)))))?;
    }
    drawn(root.present())
}

//! `esker report`: files of `esker bench objects`, `log`, `map` and `commit` as one page with plots, which needs
//! nothing but itself.
//!
//! files → cells → for each phase: plots over the object's size and over the number in flight, then its table → HTML
//!
//! Invariants:
//! 1. The page loads nothing from anywhere, and every text of a file is escaped.
//! 2. Each axis is named with its unit; a point is one cell of a file, none is made up between.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use plotters::prelude::*;

use super::objects::outcome::{Cell, FORMAT, Plot, Run, Table, size};
use crate::commands::print;
use crate::exit::{Code, Failure};

/// Width and height of a plot in its own units; the page scales it.
const PLOT: (u32, u32) = (560, 340);
const FONT: &str = "sans-serif";
/// What the page looks like, on a phone, on a desk and on paper.
const STYLE: &str = "body{font:16px/1.5 sans-serif;margin:1rem auto;max-width:72rem;padding:0 1rem;color:#222;background:#fff}\
    h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2rem;border-bottom:1px solid #ccc}\
    .plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,28rem),1fr));gap:1rem}\
    figure{margin:0}svg{width:100%;height:auto}.wide{overflow-x:auto}\
    table{border-collapse:collapse;font-size:.8rem;font-variant-numeric:tabular-nums}\
    th,td{padding:.15rem .5rem;text-align:right;white-space:nowrap;border-bottom:1px solid #e5e5e5}\
    th:nth-child(3),td:nth-child(3){text-align:left}\
    @media print{body{max-width:none;font-size:10pt}figure,tr{break-inside:avoid}.wide{overflow:visible}table{font-size:6.5pt}}";

/// The arguments of `esker report`.
#[derive(Args)]
pub struct Report {
    /// Files that `esker bench objects`, `log`, `map` or `commit` wrote with `--json`
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The page to write
    #[arg(long, short, default_value = "report.html")]
    out: PathBuf,
}

/// What is drawn over an axis.
#[derive(Clone, Copy)]
struct Figure {
    title: &'static str,
    unit: &'static str,
    of: fn(&Cell) -> Option<f64>,
}

const FIGURES: [Figure; 4] = [
    Figure { title: "operations", unit: "operations per second", of: |cell| Some(cell.rate()) },
    Figure { title: "bandwidth", unit: "payload, MB/s", of: |cell| Some(cell.megabytes_per_s()) },
    Figure { title: "latency p99", unit: "99th percentile, µs", of: |cell| Some(cell.latency.p99_us) },
    Figure { title: "device bytes", unit: "device bytes per byte of payload", of: Cell::amplification },
];

/// One plot's horizontal axis: places with their names.
struct Axis {
    name: String,
    labels: Vec<String>,
}

/// A backend's points: place on the axis, value.
type Line = (String, Vec<(usize, f64)>);

impl Report {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        let mut runs = Vec::new();
        for file in &self.files {
            let text = std::fs::read_to_string(file)
                .map_err(|error| Failure::new(Code::NotFound, format!("{}: {error}", file.display())))?;
            let bad = |why: String| Failure::usage(format!("{}: {why}", file.display()));
            let run: Run = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
            if run.format > FORMAT {
                return Err(bad(format!("format {}, newer than {FORMAT}, the newest known here", run.format)));
            }
            let name = file.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            runs.push((name, run));
        }
        std::fs::write(&self.out, page(&runs)?)
            .map_err(|error| Failure::new(Code::Failure, format!("{}: {error}", self.out.display())))?;
        print(&format!("{}\n", self.out.display()))
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn page(runs: &[(String, Run)]) -> Result<String, Failure> {
    let mut body = String::new();
    for (name, run) in runs {
        body.push_str(&format!("<h1>{}</h1>\n<p>Every operation waits until it is {}. In flight: {}. At most {} s a cell, after {} s that do not count where it writes, {} processors, {} MB of data to read, {} MB to overwrite; contents are random. Device bytes are those of the process during the phase.</p>\n",
            escape(name), escape(&run.durability), escape(&run.in_flight), run.seconds, run.warm_up, run.processors, run.data_bytes / 1_000_000, run.image_bytes / 1_000_000));
        let mut phases: Vec<&str> = Vec::new();
        for cell in &run.cells {
            if !phases.contains(&cell.phase.as_str()) {
                phases.push(&cell.phase);
            }
        }
        for phase in phases {
            let cells: Vec<&Cell> = run.cells.iter().filter(|cell| cell.phase == phase).collect();
            body.push_str(&format!("<h2>{}</h2>\n<div class=\"plots\">\n", escape(phase)));
            for plot in plots(&cells)? {
                body.push_str(&format!("<figure>{plot}</figure>\n"));
            }
            body.push_str("</div>\n");
            body.push_str(&rows(&cells));
        }
        if !run.plots.is_empty() {
            body.push_str("<h2>comparison</h2>\n<div class=\"plots\">\n");
            for Plot { title, axis, labels, unit, lines } in &run.plots {
                let axis = Axis { name: axis.clone(), labels: labels.clone() };
                // A file may have been written by hand: a point without a place is none, nor is what no logarithm has.
                let drawable = |(place, value): &&(usize, f64)| *place < labels.len() && *value > 0.0;
                let lines: Vec<Line> = lines
                    .iter()
                    .map(|(name, points)| (name.clone(), points.iter().filter(drawable).copied().collect()))
                    .collect();
                if let Some(plot) = drawn(title, &axis, unit, &lines)? {
                    body.push_str(&format!("<figure>{plot}</figure>\n"));
                }
            }
            body.push_str("</div>\n");
        }
        body.extend(run.tables.iter().map(table));
    }
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Objects: measurements</title>\n<style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    ))
}

/// The plots of one phase.
fn plots(cells: &[&Cell]) -> Result<Vec<String>, Failure> {
    let sizes: Vec<u64> = cells.iter().map(|cell| cell.object_bytes).collect::<BTreeSet<_>>().into_iter().collect();
    let numbers: Vec<u64> = cells.iter().map(|cell| cell.in_flight).collect::<BTreeSet<_>>().into_iter().collect();
    let mut found = Vec::new();
    if sizes.len() > 1 {
        let axis = Axis { name: "object size".into(), labels: sizes.iter().map(|bytes| size(*bytes)).collect() };
        for in_flight in &numbers {
            let part: Vec<&Cell> = cells.iter().copied().filter(|cell| cell.in_flight == *in_flight).collect();
            for figure in FIGURES {
                let lines = lines(&part, figure, |cell| sizes.iter().position(|bytes| *bytes == cell.object_bytes));
                found.extend(drawn(&format!("{}, {in_flight} in flight", figure.title), &axis, figure.unit, &lines)?);
            }
        }
    }
    if numbers.len() > 1 || sizes.len() == 1 {
        let axis = Axis { name: "operations in flight".into(), labels: numbers.iter().map(u64::to_string).collect() };
        for bytes in &sizes {
            let part: Vec<&Cell> = cells.iter().copied().filter(|cell| cell.object_bytes == *bytes).collect();
            for figure in FIGURES {
                let lines = lines(&part, figure, |cell| numbers.iter().position(|number| *number == cell.in_flight));
                let of = if *bytes == 0 { String::new() } else { format!(", objects of {}", size(*bytes)) };
                found.extend(drawn(&format!("{}{of}", figure.title), &axis, figure.unit, &lines)?);
            }
        }
    }
    Ok(found)
}

/// A line for each backend that has any point.
fn lines(cells: &[&Cell], figure: Figure, place: impl Fn(&Cell) -> Option<usize>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for cell in cells {
        // On a logarithmic axis there is no zero.
        let point = (figure.of)(cell).filter(|value| *value > 0.0).and_then(|value| Some((place(cell)?, value)));
        let Some(point) = point else { continue };
        match lines.iter_mut().find(|(backend, _)| *backend == cell.backend) {
            Some((_, points)) => points.push(point),
            None => lines.push((cell.backend.clone(), vec![point])),
        }
    }
    for (_, points) in &mut lines {
        points.sort_unstable_by_key(|point| point.0);
    }
    lines
}

/// A value on an axis, short.
fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{} M", value / 1e6),
        value if value >= 1e3 => format!("{} k", value / 1e3),
        value => format!("{value}"),
    }
}

fn drawn(title: &str, axis: &Axis, unit: &str, lines: &[Line]) -> Result<Option<String>, Failure> {
    let values = || lines.iter().flat_map(|(_, points)| points.iter().map(|point| point.1));
    if values().next().is_none() {
        return Ok(None);
    }
    // Whole decades, so that the axis has named ends.
    let low = 10f64.powf(values().fold(f64::INFINITY, f64::min).log10().floor());
    let high = 10f64.powf(values().fold(0.0, f64::max).log10().ceil()).max(low * 10.0);
    let mut svg = String::new();
    let failed = |error: String| Failure::new(Code::Failure, format!("drawing {title}: {error}"));
    {
        let area = SVGBackend::with_string(&mut svg, PLOT).into_drawing_area();
        let last = axis.labels.len() as f64 - 1.0;
        // Room on the right for the names of the backends, where they hide no point.
        let right = last + 0.3 + (last + 0.6) * 0.45;
        let chart = ChartBuilder::on(&area)
            .caption(title, (FONT, 17))
            .margin(8)
            .x_label_area_size(42)
            .y_label_area_size(62)
            .build_cartesian_2d(-0.3..right, (low..high).log_scale());
        let mut chart = chart.map_err(|error| failed(error.to_string()))?;
        let name = |place: &f64| {
            let nearest = place.round();
            let named = (place - nearest).abs() < 0.01 && nearest >= 0.0;
            if named { axis.labels.get(nearest as usize).cloned().unwrap_or_default() } else { String::new() }
        };
        let mesh = chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(3 * axis.labels.len() + 2)
            .x_label_formatter(&name)
            .y_label_formatter(&|value| short(*value))
            .x_desc(&axis.name)
            .y_desc(unit)
            .label_style((FONT, 13))
            .light_line_style(RGBColor(238, 238, 238))
            .draw();
        mesh.map_err(|error| failed(error.to_string()))?;
        for (number, (backend, points)) in lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let points: Vec<(f64, f64)> = points.iter().map(|(place, value)| (*place as f64, *value)).collect();
            let line = chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)));
            line.map_err(|error| failed(error.to_string()))?
                .label(backend.clone())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(3)));
            let dots = points.into_iter().map(|point| Circle::new(point, 3, colour.filled()));
            chart.draw_series(dots).map_err(|error| failed(error.to_string()))?;
        }
        let legend = chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(RGBColor(200, 200, 200))
            .label_font((FONT, 12))
            .position(SeriesLabelPosition::UpperRight)
            .draw();
        legend.map_err(|error| failed(error.to_string()))?;
        area.present().map_err(|error| failed(error.to_string()))?;
    }
    // The page scales by the view box; a fixed size would not fit a phone.
    let fixed = format!("width=\"{}\" height=\"{}\" viewBox", PLOT.0, PLOT.1);
    Ok(Some(svg.replacen(&fixed, "role=\"img\" viewBox", 1)))
}

/// Told apart in colour and in grey.
const COLOURS: [RGBColor; 12] = [
    RGBColor(214, 39, 40),
    RGBColor(31, 119, 180),
    RGBColor(44, 160, 44),
    RGBColor(255, 127, 14),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(23, 190, 207),
    RGBColor(100, 100, 100),
    RGBColor(227, 119, 194),
    RGBColor(188, 189, 34),
    RGBColor(0, 0, 0),
    RGBColor(0, 0, 140),
];

/// The cells of one phase as a table; ratios are to the first backend.
fn rows(cells: &[&Cell]) -> String {
    let mut out = String::from(
        "<div class=\"wide\"><table><thead><tr><th>object</th><th>in flight</th><th>backend</th><th>MB/s</th><th>ops/s</th><th>ratio</th><th>mean µs</th><th>p50 µs</th><th>p99 µs</th><th>p99.9 µs</th><th>max µs</th><th>device B/B</th><th>syncs/op</th><th>CPU µs/op</th></tr></thead><tbody>\n",
    );
    let or_dash = |figure: Option<f64>| figure.map_or("–".into(), |figure| format!("{figure:.2}"));
    for cell in cells {
        let first = cells.iter().find(|other| other.beside(cell)).map_or(0.0, |first| first.rate());
        let numbers =
            [cell.latency.mean_us, cell.latency.p50_us, cell.latency.p99_us, cell.latency.p999_us, cell.latency.max_us];
        let latencies: String = numbers.iter().map(|number| format!("<td>{number:.0}</td>")).collect();
        out.push_str(&format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.1}</td><td>{:.0}</td><td>{:.2}</td>{latencies}<td>{}</td><td>{}</td><td>{:.0}</td></tr>\n",
            size(cell.object_bytes),
            cell.in_flight,
            escape(&cell.backend),
            cell.megabytes_per_s(),
            cell.rate(),
            cell.rate() / first.max(1e-9),
            or_dash(cell.amplification()),
            or_dash(cell.syncs.map(|syncs| cell.each(syncs as f64))),
            cell.each(cell.cpu_seconds) * 1e6,
        ));
    }
    out.push_str("</tbody></table></div>\n");
    out
}

fn table(table: &Table) -> String {
    let cells = |name: &str, cells: Vec<String>| -> String {
        cells.iter().map(|cell| format!("<{name}>{}</{name}>", escape(cell))).collect()
    };
    let rows =
        table.rows.iter().map(|row| format!("<tr>{}</tr>\n", cells("td", row.iter().map(Table::shown).collect())));
    format!(
        "<h2>{}</h2>\n<div class=\"wide\"><table><thead><tr>{}</tr></thead><tbody>\n{}</tbody></table></div>\n",
        escape(&table.title),
        cells("th", table.columns.clone()),
        rows.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::objects::outcome::Latency;

    fn run() -> Run {
        let cell = |backend: &str, object_bytes, operations| Cell {
            backend: backend.into(),
            phase: "write".into(),
            object_bytes,
            in_flight: 16,
            seconds: 2.0,
            operations,
            payload_bytes: operations * object_bytes,
            latency: Latency { mean_us: 10.0, p50_us: 9.0, p99_us: 20.0, p999_us: 30.0, max_us: 40.0 },
            device_write_bytes: Some(3 * operations * object_bytes),
            syncs: Some(5),
            device_flushes: None,
            cpu_seconds: 0.5,
        };
        Run {
            format: FORMAT,
            durability: "durable".into(),
            in_flight: "threads".into(),
            seconds: 2.0,
            warm_up: 1.0,
            data_bytes: 1,
            image_bytes: 1,
            processors: 2,
            seed: 1,
            cells: vec![
                cell("a<b>", 4096, 1000),
                cell("c", 4096, 500),
                cell("a<b>", 1 << 20, 10),
                cell("c", 1 << 20, 9),
            ],
            tables: vec![Table {
                title: "ratio & more".into(),
                columns: vec!["size".into(), "v2/v1".into()],
                rows: vec![vec!["<4k>".into(), 2.456.into()], vec!["8k".into(), serde_json::Value::Null]],
            }],
            plots: vec![Plot {
                title: "ratios".into(),
                axis: "entry size".into(),
                labels: vec!["4 KiB".into()],
                unit: "ratio of rates".into(),
                lines: vec![("v2/v1".into(), vec![(0, 2.4), (7, 1.0), (0, 0.0)])],
            }],
        }
    }

    #[test]
    fn the_page_stands_alone_names_its_axes_and_escapes() {
        let page = page(&[("run & run".into(), run())]).unwrap();
        for expected in [
            "<svg",
            "operations per second",
            "payload, MB/s",
            "99th percentile, µs",
            "object size",
            "4 KiB",
            "1 MiB",
            "run &amp; run",
            "ratio of rates",
            "<td>&lt;4k&gt;</td><td>2.46</td>",
            "ratio &amp; more",
        ] {
            assert!(page.contains(expected), "{expected:?} is not on the page");
        }
        assert!(!page.contains("a<b>"), "a name was not escaped");
        for loads in ["<script", "<link", "src=", "@import", "url("] {
            assert!(!page.contains(loads), "the page loads something: {loads}");
        }
        assert!(page.contains("<td>0.50</td>"), "the ratio to the first backend");
        assert!(page.contains("<td>3.00</td>"), "device bytes per byte of payload");
    }

    #[test]
    fn a_run_survives_its_file() {
        let text = serde_json::to_string(&run()).unwrap();
        let read: Run = serde_json::from_str(&text).unwrap();
        assert_eq!(read.cells.len(), 4);
        assert_eq!(read.cells[0].backend, "a<b>");
    }
}

//! Results as Markdown tables.

use std::fmt::Write;

use crate::cell::{Cell, Disk, Spread};
use crate::outcome::{Compared, Outcome, Results, Source};

/// Below this a difference counts as none, whatever the runs' own spread says.
pub const NOISE_MIN: f64 = 0.03;

/// Three digits.
pub fn short(number: f64) -> String {
    match number {
        n if n >= 99_950.0 => format!("{:.0}k", n / 1e3),
        n if n >= 9_995.0 => format!("{:.1}k", n / 1e3),
        n if n >= 99.5 => format!("{n:.0}"),
        n if n >= 9.95 => format!("{n:.1}"),
        n => format!("{n:.2}"),
    }
}

fn ms(us: f64) -> String {
    short(us / 1e3)
}

/// What the clients do between puts.
pub fn think(cell: &Cell) -> String {
    let load = cell.load;
    if load.paced {
        let per_second = load.clients as f64 * 1e6 / load.think_us as f64;
        return format!("{per_second:.0}/s × {} puts", load.puts);
    }
    match (load.think_us, load.spread) {
        (0, _) => "0".into(),
        (us, spread) => format!("{} ms {}", us as f64 / 1e3, spread.name()),
    }
}

/// All tables.
pub fn tables(results: &Results) -> String {
    let mut text = String::new();
    let cells = results.cells();
    text.push_str("\n| sync | think | clients | adaptive/s | batch/s | best other | its /s | adaptive by batch | by best | noise | records per sync: adaptive, batch | mean ms: adaptive, batch, best | p50 | p99 |\n");
    text.push_str("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for cell in &cells {
        // What a table row needs is there unless the policies were chosen otherwise.
        if let (Some(adaptive), Some(batch), Some(best)) = (cell.of("adaptive"), cell.of("batch"), cell.best_other()) {
            row(&mut text, cell, adaptive, batch, best);
        }
    }
    text.push_str(&summary(&cells, results.source));
    text.push_str(&periodic(&cells));
    text
}

fn row(text: &mut String, cell: &Compared<'_>, adaptive: &Outcome, batch: &Outcome, best: &Outcome) {
    let (a, b, o) = (&adaptive.figures, &batch.figures, &best.figures);
    let by_best = cell.adaptive_by_best().unwrap_or(f64::NAN);
    let noise = cell.noise().unwrap_or(0.0);
    let line = format!(
        "| {} | {} | {} | {} | {} | {} | {} | {:.2} | {:.2}{} | {:.0} % | {}, {} | {}, {}, {} | {}, {}, {} | {}, {}, {} |",
        cell.cell.disk,
        think(&cell.cell),
        cell.cell.load.clients,
        short(a.per_second),
        short(b.per_second),
        best.policy,
        short(o.per_second),
        a.per_second / b.per_second,
        by_best,
        if by_best < 1.0 - noise.max(NOISE_MIN) { " !" } else { "" },
        noise * 100.0,
        short(a.per_sync),
        short(b.per_sync),
        ms(a.mean_us),
        ms(b.mean_us),
        ms(o.mean_us),
        ms(a.p50_us),
        ms(b.p50_us),
        ms(o.p50_us),
        ms(a.p99_us),
        ms(b.p99_us),
        ms(o.p99_us),
    );
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{line}");
}

fn median(mut values: Vec<f64>) -> Option<[f64; 3]> {
    values.sort_by(f64::total_cmp);
    Some([*values.first()?, values[values.len() / 2], *values.last()?])
}

/// The regimes: how `adaptive` stands to the best other and to `batch`.
fn summary(cells: &[Compared<'_>], source: Source) -> String {
    let mut text = String::from(
        "\n| regime | cells | adaptive by best: least, median | cells below noise | by batch: least, median, most |\n|---|---|---|---|---|\n",
    );
    let limited = |cell: &Cell| matches!(cell.disk, Disk::Limited { .. });
    type Regime = (&'static str, fn(&Cell) -> bool);
    let regimes: [Regime; 6] = [
        ("one client", |c| c.load.clients == 1),
        ("return at once (think 0), 2 clients and more", |c| {
            c.load.think_us == 0 && c.load.clients > 1 && c.disk.cycle_us() > 0
        }),
        ("return within half a sync", |c| {
            c.returns_within_a_sync() && c.load.think_us > 0 && c.load.think_us * 2 <= c.disk.cycle_us()
        }),
        ("return within a sync, but not half", |c| {
            c.returns_within_a_sync() && c.load.think_us * 2 > c.disk.cycle_us()
        }),
        ("return after a sync or later", |c| {
            !c.load.paced && c.load.clients > 1 && c.load.think_us > 0 && !c.returns_within_a_sync()
        }),
        ("rate given", |c| c.load.paced),
    ];
    for (name, belongs) in regimes {
        for only_limited in [false, true] {
            let chosen: Vec<_> =
                cells.iter().filter(|c| belongs(&c.cell) && limited(&c.cell) == only_limited).collect();
            let by_best = median(chosen.iter().filter_map(|c| c.adaptive_by_best()).collect());
            let by_batch = chosen.iter().filter_map(|c| {
                let (a, b) = (c.of("adaptive")?.figures, c.of("batch")?.figures);
                Some(if c.cell.load.paced { b.mean_us / a.mean_us } else { a.per_second / b.per_second })
            });
            let below = chosen.iter().filter(|c| {
                c.adaptive_by_best().is_some_and(|ratio| ratio < 1.0 - c.noise().unwrap_or(0.0).max(NOISE_MIN))
            });
            let below = below.count();
            if let (Some([least, middle, _]), Some([low, mid, high])) = (by_best, median(by_batch.collect())) {
                let of = if only_limited { ", limited device" } else { "" };
                let _ = writeln!(
                    text,
                    "| {name}{of} | {} | {least:.2}, {middle:.2} | {below} | {low:.2}, {mid:.2}, {high:.2} |",
                    chosen.len()
                );
            }
        }
    }
    let noise = match source {
        Source::Simulated => "the runs' spread over seeds",
        Source::Measured => "the runs' spread",
    };
    let _ = writeln!(text, "\nBelow noise: by more than {noise} and more than {:.0} %.", NOISE_MIN * 100.0);
    text
}

/// `periodic`, apart, for it acknowledges what a power cut takes back.
fn periodic(cells: &[Compared<'_>]) -> String {
    let mut text = String::new();
    let rows = cells.iter().filter(|c| !c.cell.load.paced && matches!(c.cell.load.spread, Spread::Exponential));
    for cell in rows {
        let Some(found) = cell.outcomes.iter().find(|o| o.policy.starts_with("periodic")) else { continue };
        if text.is_empty() {
            let _ = writeln!(
                text,
                "\n| {} (not durable when acknowledged): sync | think | clients | per second | records per sync | mean us | p99 us |\n|---|---|---|---|---|---|---|",
                found.policy
            );
        }
        let f = &found.figures;
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            cell.cell.disk,
            think(&cell.cell),
            cell.cell.load.clients,
            short(f.per_second),
            short(f.per_sync),
            short(f.mean_us),
            short(f.p99_us)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(short(123_456.0), "123k");
        assert_eq!(short(12_345.0), "12.3k");
        assert_eq!(short(9.876), "9.88");
        assert_eq!(short(0.0), "0.00");
    }
}

//! LATENCY: histograms of all commands, and what took longer than `latency-monitor-threshold`.

use std::fmt::Write as _;

use crate::resp::command_stats::CommandFigures;
use crate::resp::commands::{Call, Outcome, help, is, subcommand};

pub(crate) fn latency(call: &mut Call<'_>) -> Outcome {
    subcommand(
        call,
        "latency",
        &[
            ("doctor", 2, doctor),
            ("help", 2, show_help),
            ("histogram", -2, histogram),
            ("history", 3, history),
            ("latest", 2, latest),
            ("reset", -2, reset),
        ],
    )
}

fn show_help(call: &mut Call<'_>) -> Outcome {
    let lines = [
        "DOCTOR",
        "    Return a human readable latency analysis report.",
        "HISTORY <event>",
        "    Return time-latency samples for the <event> class.",
        "LATEST",
        "    Return the latest latency samples for all events.",
        "RESET [<event> ...]",
        "    Reset latency data of one or more <event> classes.",
        "    (default: reset all data for all event classes)",
        "HISTOGRAM [COMMAND ...]",
        "    Return a cumulative distribution of latencies in the format of a histogram for the specified command names.",
        "    If no commands are specified then all histograms are replied.",
    ];
    help(call, "LATENCY", &lines)
}

/// The upper end of a bucket in microseconds. Redis tells that of its own histograms, which have 128 buckets for each
/// power of two, so that monitors that compare servers find the same ends.
fn end_us(power: u32) -> i64 {
    ((1i64 << power) + (1 << (power - 7)) - 1) / 1_000
}

/// LATENCY HISTOGRAM [command ...]: calls up to the end of each bucket that has some. A command that is named more than
/// once is shown once, so that a long line of names makes no longer reply than none.
fn histogram(call: &mut Call<'_>) -> Outcome {
    let commands = call.commands;
    let wanted: Vec<usize> = if call.args.len() == 2 {
        (0..commands.len()).collect()
    } else {
        let mut indices = Vec::new();
        for name in call.args.from(2) {
            let index = commands.iter().position(|command| is(name, command.name));
            indices.extend(index.filter(|index| !indices.contains(index)));
        }
        indices
    };
    let figures = |index: usize| call.shared.command_stats.figures(index).filter(|figures| figures.calls() > 0);
    let found: Vec<(usize, CommandFigures)> =
        wanted.into_iter().filter_map(|index| Some((index, figures(index)?))).collect();
    call.reply.map(found.len());
    for (index, figures) in found {
        let (mut sum, mut ends) = (0, Vec::new());
        for (power, count) in figures.by_power().filter(|(_, count)| *count > 0) {
            sum += count;
            ends.push((end_us(power), sum));
        }
        call.reply.bulk(commands[index].name.as_bytes());
        call.reply.map(2);
        call.reply.bulk(b"calls");
        call.reply.int(figures.calls() as i64);
        call.reply.bulk(b"histogram_usec");
        call.reply.map(ends.len());
        for (end, sum) in ends {
            call.reply.int(end);
            call.reply.int(sum as i64);
        }
    }
    call.check_output()
}

fn latest(call: &mut Call<'_>) -> Outcome {
    let events = call.shared.spikes.all();
    call.reply.array(events.len());
    for (name, history) in events {
        let (at_s, ms) = history.samples.back().copied().unwrap_or_default();
        call.reply.array(4);
        call.reply.bulk(name.as_bytes());
        for number in [at_s, ms, history.max_ms] {
            call.reply.int(number as i64);
        }
    }
    Ok(())
}

fn history(call: &mut Call<'_>) -> Outcome {
    let found = call.shared.spikes.all().into_iter().find(|(name, _)| call.arg(2) == name.as_bytes());
    let samples = found.map(|(_, history)| history.samples).unwrap_or_default();
    call.reply.array(samples.len());
    for (at_s, ms) in samples {
        call.reply.array(2);
        call.reply.int(at_s as i64);
        call.reply.int(ms as i64);
    }
    Ok(())
}

/// LATENCY RESET [event ...]: how many events had samples.
fn reset(call: &mut Call<'_>) -> Outcome {
    let all = call.args.len() == 2;
    let args = call.args;
    let reset = call.shared.spikes.reset(|name| all || args.from(2).any(|arg| arg == name.as_bytes()));
    call.reply.int(reset as i64);
    Ok(())
}

fn doctor(call: &mut Call<'_>) -> Outcome {
    let (threshold_ms, events) = (call.shared.spikes.threshold_ms(), call.shared.spikes.all());
    let mut text = match (threshold_ms, events.is_empty()) {
        (0, true) => {
            "Latency monitoring is off. CONFIG SET latency-monitor-threshold <milliseconds> notes commands that \
                      take so long; LATENCY HISTOGRAM has the times of all commands without it.\n"
                .to_owned()
        }
        (0, false) => "Latency monitoring is off; these are from before.\n".to_owned(),
        (_, true) => format!("No command has taken {threshold_ms} ms or longer.\n"),
        (_, false) => format!("Commands that took {threshold_ms} ms or longer:\n"),
    };
    for (name, history) in events {
        let (count, sum) = (history.samples.len() as u64, history.samples.iter().map(|(_, ms)| ms).sum::<u64>());
        let (at_s, ms) = history.samples.back().copied().unwrap_or_default();
        let (average, max_ms) = (sum / count.max(1), history.max_ms);
        let _ = writeln!(
            text,
            "{name}: seconds with any {count}, on average {average} ms, at worst {max_ms} ms; the last at {at_s} with \
             {ms} ms. SLOWLOG GET may show which they were."
        );
    }
    call.reply.verbatim(&text);
    Ok(())
}

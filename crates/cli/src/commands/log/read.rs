//! `esker log cat` and `esker log tail`: entries out of the log.
//!
//! from, to (positions, times, ends) → ranges → entries and gaps → [`Sink`] · tail -f: follower → the same, until a
//! signal
//!
//! Invariants:
//! 1. Every position of the range is told: as an entry, or in a gap that says why there is none (of a stream: every
//!    lost one).
//! 2. A consumer's position is kept only after what is below it was written to stdout.

use std::io::{BufWriter, StdoutLock};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use esker::Period;
use esker::log::{Delivery, Follow, Follower, Found, GapKind, Log, Start, StreamFollower};

use super::context::Context;
use super::wire::{Format, Gap, Sink};
use crate::exit::{Code, Failure};

/// Bytes that are read at once, about.
const READ_BYTES: usize = 4 << 20;
/// Positions of a stream that are looked up at once.
const STREAM_POSITIONS: u64 = 1 << 20;
/// How long a follower waits before it looks whether it should stop.
const LOOK: Duration = Duration::from_millis(100);
/// How often the position of a consumer is kept.
const KEEP: Duration = Duration::from_secs(1);

/// A place in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    First,
    Tail,
    Position(u64),
    TimeMs(u64),
    Ago(Duration),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "{text:?}: expected a position, first, tail, time:UNIX_MILLISECONDS or time:-PERIOD such as time:-10m"
            )
        };
        match text {
            "first" => Ok(Self::First),
            "tail" => Ok(Self::Tail),
            _ => match text.strip_prefix("time:") {
                Some(time) => match time.strip_prefix('-') {
                    Some(ago) => ago.parse().map(|Period(ago)| Self::Ago(ago)).map_err(|_| bad()),
                    None => time.parse().map(Self::TimeMs).map_err(|_| bad()),
                },
                None => text.parse().map(Self::Position).map_err(|_| bad()),
            },
        }
    }
}

impl Place {
    fn position(self, context: &Context, log: &Log) -> Result<u64, Failure> {
        Ok(match self {
            Self::First => log.refresh()?.trimmed,
            Self::Tail => log.tail()?.position,
            Self::Position(position) => position,
            Self::TimeMs(time) => log.position_at(time)?,
            Self::Ago(ago) => log.position_at(context.now_ms().saturating_sub(ago.as_millis() as u64))?,
        })
    }
}

/// What `cat` and `tail` share.
#[derive(Args)]
struct Shape {
    /// The log
    #[arg(value_name = "LOG")]
    name: String,
    /// Only the entries of this stream
    #[arg(long, value_name = "NAME")]
    stream: Option<String>,
    /// How entries are written; gaps are told on stderr, with json among the entries
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Go on where this consumer was, and keep how far it came
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
}

/// The arguments of `esker log cat`.
#[derive(Args)]
#[command(
    after_help = "Places: a position, first, tail, time:UNIX_MILLISECONDS (the first entry of that time or later), time:-10m (ten minutes ago).\n\
Exit code 4 if an entry cannot be read: data loss."
)]
pub struct Cat {
    #[command(flatten)]
    shape: Shape,
    /// Where to begin; first, unless a consumer goes on
    #[arg(long, value_name = "PLACE")]
    from: Option<Place>,
    /// Where to end, before this place
    #[arg(long, value_name = "PLACE", default_value = "tail")]
    to: Place,
}

/// The arguments of `esker log tail`.
#[derive(Args)]
#[command(
    after_help = "With -f it goes on until Ctrl-C or --count. A position at which nothing comes to stand is filled after --fill-after."
)]
pub struct Tail {
    #[command(flatten)]
    shape: Shape,
    /// Go on with what is appended
    #[arg(short, long)]
    follow: bool,
    /// Begin with so many entries before the tail
    #[arg(short = 'n', long, default_value_t = 10)]
    entries: u64,
    /// Begin here instead
    #[arg(long, value_name = "PLACE", conflicts_with = "entries")]
    from: Option<Place>,
    /// End after so many entries
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// How long a hole is waited for before it is filled; 0 waits for ever
    #[arg(long, default_value = "200ms", requires = "follow")]
    fill_after: Period,
}

type Out = Sink<BufWriter<StdoutLock<'static>>>;

impl Shape {
    fn sink(&self) -> Out {
        Sink::new(BufWriter::with_capacity(256 << 10, std::io::stdout().lock()), self.format)
    }

    /// Where to begin: as asked for, else where the consumer was.
    fn start(&self, context: &Context, log: &Log, from: Option<Place>) -> Result<Option<u64>, Failure> {
        match (from, &self.consumer) {
            (Some(from), _) => Ok(Some(from.position(context, log)?)),
            (None, Some(consumer)) => Ok(log.consumer(consumer)?),
            (None, None) => Ok(None),
        }
    }

    /// Writes what stands from `from` to `to`, at most `limit` entries; where it ended.
    fn copy(&self, log: &Log, from: u64, to: u64, limit: u64, out: &mut Out) -> Result<u64, Failure> {
        match &self.stream {
            Some(stream) => copy_stream(log, stream, from, to, limit, out),
            None => copy_all(log, from, to, limit, out),
        }
    }

    /// Keeps how far the consumer came, after everything below was written out.
    fn keep(&self, log: &Log, position: u64, out: &mut Out) -> Result<(), Failure> {
        out.flush()?;
        if let Some(consumer) = &self.consumer {
            log.set_consumer(consumer, position)?;
        }
        Ok(())
    }
}

fn loss(out: &Out) -> Result<(), Failure> {
    match out.lost {
        0 => Ok(()),
        lost => Err(Failure::new(Code::Damage, format!("{lost} entries cannot be read: data loss"))),
    }
}

fn copy_all(log: &Log, from: u64, to: u64, limit: u64, out: &mut Out) -> Result<u64, Failure> {
    let mut at = from;
    let most = out.entries.saturating_add(limit);
    while at < to && out.entries < most {
        let trimmed = log.view().trimmed.min(to);
        if at < trimmed {
            out.gap(at..trimmed, Gap::Kind(GapKind::Trimmed))?;
            at = trimmed;
            continue;
        }
        for found in log.read_range(at..to, READ_BYTES)?.wait()? {
            let gap = match found {
                Found::Entry(entry) => {
                    out.entry(&entry)?;
                    at += 1;
                    if out.entries == most {
                        return Ok(at);
                    }
                    continue;
                }
                Found::BeyondTail => return Ok(at),
                Found::Hole => Gap::Hole,
                Found::Filled => Gap::Kind(GapKind::Filled),
                Found::Trimmed => Gap::Kind(GapKind::Trimmed),
                Found::Lost(why) => Gap::Kind(GapKind::Lost(why)),
            };
            out.gap(at..at + 1, gap)?;
            at += 1;
        }
    }
    Ok(at)
}

fn copy_stream(log: &Log, stream: &str, from: u64, to: u64, limit: u64, out: &mut Out) -> Result<u64, Failure> {
    let mut at = from.max(log.view().trimmed);
    let to = to.min(log.tail()?.position);
    let most = out.entries.saturating_add(limit);
    while at < to {
        let end = to.min(at + STREAM_POSITIONS);
        for position in log.stream_positions(stream.as_bytes(), at..end)? {
            match log.read(position)?.wait()? {
                Found::Entry(entry) => out.entry(&entry)?,
                Found::Lost(why) => out.gap(position..position + 1, Gap::Kind(GapKind::Lost(why)))?,
                // Trimmed since it was looked up.
                _ => {}
            }
            if out.entries == most {
                return Ok(position + 1);
            }
        }
        at = end;
    }
    Ok(at.max(from))
}

impl Cat {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let log = context.log(&self.shape.name)?;
        let from = match self.shape.start(context, &log, self.from)? {
            Some(from) => from,
            None => Place::First.position(context, &log)?,
        };
        let to = self.to.position(context, &log)?;
        if from > to && self.from.is_some() {
            return Err(Failure::usage(format!("--from {from} is after --to {to}")));
        }
        let mut out = self.shape.sink();
        let end = self.shape.copy(&log, from, to, u64::MAX, &mut out)?;
        self.shape.keep(&log, end, &mut out)?;
        loss(&out)
    }
}

enum Source {
    All(Follower),
    Stream(StreamFollower),
}

impl Source {
    fn next(&mut self, timeout: Duration) -> Result<Option<Delivery>, Failure> {
        Ok(match self {
            Self::All(follower) => follower.next(timeout)?,
            Self::Stream(follower) => follower.next(timeout)?,
        })
    }

    fn position(&self) -> u64 {
        match self {
            Self::All(follower) => follower.position(),
            Self::Stream(follower) => follower.position(),
        }
    }
}

impl Tail {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let log = context.log(&self.shape.name)?;
        let from = match self.shape.start(context, &log, self.from)? {
            Some(from) => from,
            None => self.before_tail(&log)?,
        };
        let mut out = self.shape.sink();
        if self.follow {
            self.follow(&log, from, &mut out)?;
        } else {
            let tail = log.tail()?.position;
            let end = self.shape.copy(&log, from, tail, self.count.unwrap_or(u64::MAX), &mut out)?;
            self.shape.keep(&log, end, &mut out)?;
        }
        loss(&out)
    }

    /// The position at which the last entries begin.
    fn before_tail(&self, log: &Log) -> Result<u64, Failure> {
        let tail = log.tail()?.position;
        let first = log.refresh()?.trimmed;
        let Some(stream) = &self.shape.stream else {
            return Ok(tail.saturating_sub(self.entries).max(first));
        };
        let mut found = 0;
        let mut end = tail;
        while end > first {
            let start = end.saturating_sub(STREAM_POSITIONS).max(first);
            let positions = log.stream_positions(stream.as_bytes(), start..end)?;
            let missing = self.entries - found;
            if positions.len() as u64 >= missing {
                return Ok(if missing == 0 { end } else { positions[positions.len() - missing as usize] });
            }
            found += positions.len() as u64;
            end = start;
        }
        Ok(first)
    }

    fn follow(&self, log: &Log, from: u64, out: &mut Out) -> Result<(), Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
        let patience = self.fill_after.0.as_millis() as u64;
        let how = Follow { fill_after_ms: (patience > 0).then_some(patience), ..Follow::default() };
        let mut source = match &self.shape.stream {
            Some(stream) => Source::Stream(log.follow_stream(stream.clone(), from, how)),
            None => Source::All(log.follow(Start::Position(from), how)?),
        };
        let mut kept = Instant::now();
        while !stop.load(Ordering::Relaxed) && self.count.is_none_or(|count| out.entries < count) {
            // What is at hand is written at once; what was written goes out before the wait for more.
            let delivery = match source.next(Duration::ZERO)? {
                Some(delivery) => Some(delivery),
                None => {
                    out.flush()?;
                    source.next(LOOK)?
                }
            };
            match delivery {
                Some(Delivery::Entry(entry)) => out.entry(&entry)?,
                Some(Delivery::Gap { positions, kind }) => out.gap(positions, Gap::Kind(kind))?,
                Some(Delivery::End { tail }) => {
                    out.flush()?;
                    eprintln!("esker: the log is sealed at position {tail}");
                    break;
                }
                None => {}
            }
            if self.shape.consumer.is_some() && kept.elapsed() >= KEEP {
                self.shape.keep(log, source.position(), out)?;
                kept = Instant::now();
            }
        }
        self.shape.keep(log, source.position(), out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_positions_ends_and_times() {
        for (text, expected) in [
            ("17", Some(Place::Position(17))),
            ("first", Some(Place::First)),
            ("tail", Some(Place::Tail)),
            ("time:1700000000000", Some(Place::TimeMs(1_700_000_000_000))),
            ("time:-10m", Some(Place::Ago(Duration::from_secs(600)))),
            ("time:-1 fortnight", None),
            ("time:", None),
            ("-1", None),
            ("last", None),
        ] {
            assert_eq!(text.parse::<Place>().ok(), expected, "{text}");
        }
    }
}

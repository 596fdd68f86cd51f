//! `esker compact`: cleans what holds dead data, so that its space comes back now and not when it runs short; or has a
//! running server do so.
//!
//! a store that no server has open → cleaned here   |   a server → ESKER.COMPACT → INFO   → what was gained
//!
//! Invariant: interrupted at any time, by a signal too, the store is whole and keeps what was gained until then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use esker::engine::Stats;

use super::server::{self, ServerArguments};
use super::{StoreArgument, builder, check, print};
use crate::config::Settings;
use crate::exit::{Code, Failure};
use crate::progress;

/// The arguments of `esker compact`.
#[derive(Args)]
#[command(
    after_help = "Esker cleans by itself when space runs short. A running server compacts beside its clients, once it is asked; a signal ends \
the command and not the server's work."
)]
pub struct Compact {
    #[command(flatten)]
    store: StoreArgument,
    #[command(flatten)]
    server: ServerArguments,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Compact {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        if self.server.address.is_some() {
            if self.store.given().is_some() {
                return Err(Failure::usage(
                    "--store and --address exclude each other: a server compacts its own store",
                ));
            }
            return tell(&self.ask(settings)?, self.json);
        }
        let location = self.store.location(settings);
        let store = builder(settings).create(false).expire_interval(Duration::ZERO).open(&location)?;
        let done = self.compact(&store);
        let closed = store.close().map_err(Failure::from);
        done.and(closed)
    }

    fn compact(&self, store: &esker::Store) -> Result<(), Failure> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
        }
        let bar = progress::count("compacting", 0);
        let mut segments = 0;
        let compact = || {
            store.compact(&mut |done, total| {
                segments = done;
                bar.set_length(total);
                bar.set_position(done);
                !interrupted.load(Ordering::Relaxed)
            })
        };
        let gained = gained(&|| store.engine().map(|engine| engine.stats()).unwrap_or_default(), compact)?;
        bar.finish_and_clear();
        tell(&gained.into_iter().collect(), self.json)?;
        if interrupted.load(Ordering::Relaxed) {
            return Err(Failure::new(Code::Failure, format!("interrupted after {segments} segments")));
        }
        Ok(())
    }

    /// Has a server compact its store.
    fn ask(&self, settings: &Settings) -> Result<BTreeMap<&'static str, u64>, Failure> {
        let mut client = self.server.connect(settings)?;
        client.call(&["ESKER.COMPACT"])?;
        server::follow(&mut client, "compact", &progress::count("compacting", 0))?;
        let found = check::parse(&client.call(&["ESKER.COMPACT", "STATUS"])?)?;
        let figure = |name: &'static str| {
            let text = found.figures.iter().find(|(found, _)| found == name);
            let value = text.and_then(|(_, text)| text.parse().ok());
            value.map(|value| (name, value)).ok_or_else(|| {
                Failure::new(Code::Failure, format!("the server does not tell {name}: is it of an earlier version?"))
            })
        };
        FIGURES.into_iter().map(figure).collect()
    }
}

/// What is told of a compaction.
const FIGURES: [&str; 10] = [
    "segment_bytes",
    "segments",
    "free_segments_before",
    "free_segments_after",
    "freed_segments",
    "freed_bytes",
    "live_bytes",
    "cleaned_segments",
    "copied_bytes",
    "elapsed_ms",
];

/// What `compact` gains, by the figures before and after it: [`FIGURES`], with their values.
pub(super) fn gained<E>(
    stats: &dyn Fn() -> Stats,
    compact: impl FnOnce() -> Result<(), E>,
) -> Result<[(&'static str, u64); FIGURES.len()], E> {
    let (began, before) = (Instant::now(), stats());
    compact()?;
    let after = stats();
    let freed = after.free_segments.saturating_sub(before.free_segments);
    let values = [
        after.segment_bytes,
        after.segments,
        before.free_segments,
        after.free_segments,
        freed,
        freed * after.segment_bytes,
        after.live_bytes,
        after.cleaned_segments.saturating_sub(before.cleaned_segments),
        after.cleaned_copy_bytes.saturating_sub(before.cleaned_copy_bytes),
        u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
    ];
    let mut named = FIGURES.into_iter().zip(values);
    Ok(std::array::from_fn(|_| named.next().unwrap_or_default()))
}

fn tell(figures: &BTreeMap<&'static str, u64>, as_json: bool) -> Result<(), Failure> {
    if as_json {
        return print(&format!("{:#}\n", serde_json::json!(figures)));
    }
    let figure = |name: &str| figures.get(name).copied().unwrap_or_default();
    let line = |name: &str, free: u64| {
        let bytes = free.saturating_mul(figure("segment_bytes"));
        format!("{name}  {free} of {} segments free, {bytes} bytes\n", figure("segments"))
    };
    print(&format!(
        "{}{}freed   {} segments, {} bytes; {} bytes copied\n",
        line("before", figure("free_segments_before")),
        line("after ", figure("free_segments_after")),
        figure("freed_segments"),
        figure("freed_bytes"),
        figure("copied_bytes"),
    ))
}

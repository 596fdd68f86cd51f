//! `esker compact`: cleans what holds dead data, so that its space comes back now and not when it runs short.
//!
//! Invariant: interrupted at any time, by a signal too, the store is whole and keeps what was gained until then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;

use super::{StoreArgument, builder, print};
use crate::config::Settings;
use crate::exit::{Code, Failure};
use crate::progress;

/// The arguments of `esker compact`.
#[derive(Args)]
pub struct Compact {
    #[command(flatten)]
    store: StoreArgument,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Compact {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let location = self.store.location(settings);
        let store = builder(settings).create(false).expire_interval(Duration::ZERO).open(&location)?;
        let done = self.compact(&store);
        let closed = store.close().map_err(Failure::from);
        done.and(closed)
    }

    fn compact(&self, store: &esker::Store) -> Result<(), Failure> {
        let began = Instant::now();
        let stats = || store.engine().map(|engine| engine.stats()).unwrap_or_default();
        let before = stats();
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
        }
        let bar = progress::count("compacting", 0);
        let mut segments = 0;
        store.compact(&mut |done, total| {
            segments = done;
            bar.set_length(total);
            bar.set_position(done);
            !interrupted.load(Ordering::Relaxed)
        })?;
        bar.finish_and_clear();
        let after = stats();
        let freed = after.free_segments.saturating_sub(before.free_segments);
        let copied = after.cleaned_copy_bytes - before.cleaned_copy_bytes;
        if self.json {
            let result = serde_json::json!({
                "segment_bytes": after.segment_bytes,
                "segments": after.segments,
                "free_segments_before": before.free_segments,
                "free_segments_after": after.free_segments,
                "freed_segments": freed,
                "freed_bytes": freed * after.segment_bytes,
                "live_bytes": after.live_bytes,
                "cleaned_segments": after.cleaned_segments - before.cleaned_segments,
                "copied_bytes": copied,
                "elapsed_ms": began.elapsed().as_millis() as u64,
            });
            print(&format!("{result:#}\n"))?;
        } else {
            let line = |name: &str, free: u64| {
                format!("{name}  {free} of {} segments free, {} bytes\n", after.segments, free * after.segment_bytes)
            };
            print(&format!(
                "{}{}freed   {freed} segments, {} bytes; {copied} bytes copied\n",
                line("before", before.free_segments),
                line("after ", after.free_segments),
                freed * after.segment_bytes,
            ))?;
        }
        if interrupted.load(Ordering::Relaxed) {
            return Err(Failure::new(Code::Failure, format!("interrupted after {segments} segments")));
        }
        Ok(())
    }
}

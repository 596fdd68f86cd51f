//! `esker copy`: a whole store into another of any backend, verified.
//!
//! Invariants:
//! 1. An interrupted copy leaves a target that only the same copy goes on with.
//! 2. Exit code 0 means that everything was read again from both stores and is the same.

use std::time::{Duration, Instant};

use clap::Args;
use esker::{CopyProgress, Store};
use indicatif::ProgressBar;

use super::{builder, print};
use crate::config::Settings;
use crate::exit::Failure;
use crate::progress;

/// The arguments of `esker copy`.
#[derive(Args)]
#[command(
    after_help = "Copies all collections, objects, bytes with their holes, attributes, ordered keys and slots, between any two backends, then \
reads both again and compares. No server may have either open. Interrupted at any time, the same command goes on where it was; a target \
that holds anything else is refused."
)]
pub struct Copy {
    /// The store that is read: a path or a URL
    from: String,
    /// The store that is made: a path or a URL, such as `file:PATH` or `esker:PATH?size=10g`
    to: String,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Copy {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let open = |location: &str, create: bool| {
            builder(settings).create(create).expire_interval(Duration::ZERO).open(location)
        };
        let began = Instant::now();
        let from = open(&self.from, false)?;
        let to = open(&self.to, true)?;
        let bar = progress::count("copying", 0);
        let copied = esker::copy(&*from.objects(), &*to.objects(), &name(&from), &mut shown(&bar, "copying"));
        bar.finish_and_clear();
        // Opened again, so that what is compared comes from the device.
        let reopen = copied.is_ok() && to.path().is_some();
        let to = if reopen {
            to.close()?;
            // Some backends keep their folder until they are dropped.
            drop(to);
            open(&self.to, false)?
        } else {
            to
        };
        let report = copied?;
        let bar = progress::count("comparing", report.objects);
        let verified = esker::verify_copy(&*from.objects(), &*to.objects(), &mut shown(&bar, "comparing"));
        bar.finish_and_clear();
        to.close()?;
        from.close()?;
        let verified = verified?;
        if self.json {
            let result = serde_json::json!({
                "from": name(&from),
                "to": name(&to),
                "collections": verified.collections,
                "objects": verified.objects,
                "bytes": verified.bytes,
                "crc32c": format!("{:08x}", verified.crc),
                "copied_bytes": report.bytes,
                "transactions": report.transactions,
                "resumed": report.resumed,
                "elapsed_ms": began.elapsed().as_millis() as u64,
            });
            return print(&format!("{result:#}\n"));
        }
        print(&format!(
            "copied and compared {} collections, {} objects, {} bytes; content checksum {:08x}\n",
            verified.collections, verified.objects, verified.bytes, verified.crc
        ))
    }
}

/// A store's backend and place, the same whichever way it was named.
fn name(store: &Store) -> String {
    let path = store.path().map(|path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf()));
    format!("{}:{}", store.backend(), path.unwrap_or_default().display())
}

fn shown<'a>(bar: &'a ProgressBar, what: &'a str) -> impl FnMut(CopyProgress) + 'a {
    move |progress| {
        bar.set_length(progress.objects_total);
        bar.set_position(progress.objects);
        bar.set_message(format!("{what}, {} so far,", indicatif::HumanBytes(progress.bytes)));
    }
}

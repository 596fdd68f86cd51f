//! `esker format`: makes a new store on a file or a block device.
//!
//! Invariant: what is there already is only overwritten with `--force`.

use std::path::PathBuf;

use clap::Args;

use super::{StoreArgument, builder, print};
use crate::config::Settings;
use crate::exit::Failure;
use crate::progress;

/// The arguments of `esker format`.
#[derive(Args)]
pub struct Format {
    /// The store: a folder, a file or a block device
    path: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgument,
    /// Length of a file that is made, such as 10g; a block device is used whole
    #[arg(long)]
    size: Option<esker::ByteSize>,
    /// Segment size, a power of two such as 64m
    #[arg(long)]
    segment: Option<esker::ByteSize>,
    /// Take the file's space now, so that the disk cannot fill up under the store
    #[arg(long)]
    preallocate: bool,
    /// Overwrite what is there
    #[arg(long)]
    force: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Format {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let location =
            self.path.as_ref().map_or_else(|| self.store.location(settings), |path| path.display().to_string());
        let mut builder = builder(settings);
        if let Some(size) = self.size {
            builder = builder.size(size.0);
        }
        if let Some(segment) = self.segment {
            builder = builder.segment_bytes(segment.0);
        }
        let bar = progress::bytes("taking space", 0);
        let made = builder.format(&location, self.force, self.preallocate, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        })?;
        bar.finish_and_clear();
        if self.json {
            let made = serde_json::json!({
                "path": made.path, "len": made.len, "segment_bytes": made.segment_bytes,
                "usable_bytes": made.usable_bytes, "uuid": made.uuid,
            });
            return print(&format!("{made:#}\n"));
        }
        print(&format!(
            "made a store of {} bytes in segments of {} at {}; it is full with about {} bytes of values ({} %)\n",
            made.len,
            esker::ByteSize(made.segment_bytes),
            made.path.display(),
            made.usable_bytes,
            made.usable_bytes * 100 / made.len.max(1)
        ))
    }
}

//! `esker volume diff`, `export` and `import`.
//!
//! Invariants:
//! 1. A file that an export failed to write is removed; one that exists is not overwritten.
//! 2. Raw exports to files are sparse; to stdout holes are written as zeros.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clap::Args;
use esker::ByteSize;
use esker::volume::{Image, Layout, Transferred};
use serde_json::json;

use super::context::{Context, split};
use crate::commands::quiet_pipe;
use crate::exit::Failure;
use crate::progress;

/// The arguments of `esker volume diff`.
#[derive(Args)]
pub struct Diff {
    /// IMAGE or IMAGE@SNAPSHOT
    image: String,
    /// The older snapshot; without it all data is listed
    #[arg(long, value_name = "SNAPSHOT")]
    from: Option<String>,
}

/// The arguments of `esker volume export`.
#[derive(Args)]
#[command(
    after_help = "Without --raw the stream carries checksums, and with --from only what changed since that snapshot."
)]
pub(super) struct Export {
    /// IMAGE or IMAGE@SNAPSHOT
    image: String,
    /// The file, which must not exist; - for stdout
    file: PathBuf,
    /// Only what changed since this snapshot
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "raw")]
    from: Option<String>,
    /// The bytes of the disk and nothing else
    #[arg(long)]
    raw: bool,
}

/// The arguments of `esker volume import`.
#[derive(Args)]
pub(super) struct Import {
    /// The file; - for stdin
    file: PathBuf,
    /// The image: made, or (for an increment) one that is what the increment goes on from
    image: String,
    /// The file is the bytes of a disk and nothing else; zeros take no space
    #[arg(long)]
    raw: bool,
    /// Size of the image, where the file does not tell it (raw from stdin); at least what is read
    #[arg(long, requires = "raw")]
    size: Option<ByteSize>,
    /// Size of a data object, for a raw file
    #[arg(long, default_value = "4m", requires = "raw")]
    object_size: ByteSize,
}

fn is_stdio(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn named(path: &Path) -> impl Fn(std::io::Error) -> Failure + '_ {
    move |error| Failure::new(crate::exit::Code::Failure, format!("{}: {error}", path.display()))
}

impl Diff {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let (name, to) = split(&self.image);
        let image = context.image(name)?;
        let mut out = BufWriter::new(std::io::stdout().lock());
        let mut broken = None;
        image.diff(self.from.as_deref(), to, &mut |extent| {
            let kind = if extent.data { "data" } else { "zero" };
            let line = match context.json {
                true => format!("{}\n", json!({"offset": extent.offset, "length": extent.len, "kind": kind})),
                false => format!("{}\t{}\t{kind}\n", extent.offset, extent.len),
            };
            broken = out.write_all(line.as_bytes()).err();
            Ok(broken.is_none())
        })?;
        quiet_pipe(broken.map_or_else(|| out.flush(), Err))
    }
}

impl Export {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let (name, snapshot) = split(&self.image);
        let image = context.image(name)?;
        if is_stdio(&self.file) {
            let mut out = BufWriter::with_capacity(1 << 20, std::io::stdout().lock());
            let done = if self.raw {
                raw_stream(&image, snapshot, &mut out)?
            } else {
                self.stream(&image, snapshot, &mut out)?
            };
            quiet_pipe(out.flush())?;
            eprintln!("{} bytes of data", done.data_bytes);
            return Ok(());
        }
        let file = OpenOptions::new().write(true).create_new(true).open(&self.file).map_err(named(&self.file))?;
        let written = if self.raw {
            raw_file(&image, snapshot, &file)
        } else {
            self.stream(&image, snapshot, &mut BufWriter::with_capacity(1 << 20, &file))
        };
        let done = written.and_then(|done| file.sync_all().map(|()| done).map_err(named(&self.file)));
        let done = done.inspect_err(|_| {
            // The export's own error is the one to tell.
            let _ = std::fs::remove_file(&self.file);
        })?;
        context.tell(told(&done), &format!("exported {} bytes of data\n", done.data_bytes))
    }

    fn stream(&self, image: &Image, snapshot: Option<&str>, sink: &mut dyn Write) -> Result<Transferred, Failure> {
        let bar = progress::count("exporting", 0);
        let done = image.export(self.from.as_deref(), snapshot, sink, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
            true
        });
        bar.finish_and_clear();
        Ok(done?)
    }
}

fn told(done: &Transferred) -> serde_json::Value {
    json!({"data_bytes": done.data_bytes, "zero_bytes": done.zero_bytes, "chunks": done.chunks})
}

fn size_of(image: &Image, snapshot: Option<&str>) -> Result<u64, Failure> {
    Ok(match snapshot {
        Some(name) => image.snapshot(name)?.size(),
        None => image.size(),
    })
}

fn raw_file(image: &Image, snapshot: Option<&str>, file: &File) -> Result<Transferred, Failure> {
    let size = size_of(image, snapshot)?;
    file.set_len(size)?;
    let bar = progress::bytes("exporting", size);
    let done = image.export_raw(snapshot, &mut |at, data| file.write_all_at(data, at), &mut |at, _| {
        bar.set_position(at);
        true
    });
    bar.finish_and_clear();
    Ok(done?)
}

fn raw_stream(image: &Image, snapshot: Option<&str>, out: &mut dyn Write) -> Result<Transferred, Failure> {
    let size = size_of(image, snapshot)?;
    let bar = progress::bytes("exporting", size);
    let mut end = 0;
    let mut write = |at: u64, data: &[u8]| {
        std::io::copy(&mut std::io::repeat(0).take(at - end), out)?;
        end = at + data.len() as u64;
        out.write_all(data)
    };
    let done = image.export_raw(snapshot, &mut |at, data| write(at, data), &mut |at, _| {
        bar.set_position(at);
        true
    });
    bar.finish_and_clear();
    let done = done?;
    quiet_pipe(write(size, &[]))?;
    Ok(done)
}

impl Import {
    /// The image that it makes or changes.
    pub(super) fn image(&self) -> &str {
        &self.image
    }

    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let (mut source, len): (Box<dyn Read>, u64) = if is_stdio(&self.file) {
            (Box::new(std::io::stdin().lock()), 0)
        } else {
            let file = File::open(&self.file).map_err(named(&self.file))?;
            let len = file.metadata().map_err(named(&self.file))?.len();
            (Box::new(BufReader::with_capacity(1 << 20, file)), len)
        };
        let bar = progress::bytes("importing", len);
        let mut shown = |done: u64, total: u64| {
            bar.set_length(total);
            bar.set_position(done);
            true
        };
        let done = if self.raw {
            let size = self.size.map_or(len, |size| size.0);
            if size == 0 {
                return Err(Failure::usage("a raw image from stdin needs --size"));
            }
            let layout = Layout { object_bytes: self.object_size.0, stripe_unit: self.object_size.0, stripe_count: 1 };
            context.volumes.import_raw(&self.image, size, layout, &mut *source, context.now_ms(), &mut shown)
        } else {
            context.volumes.import(&self.image, &mut *source, context.now_ms(), &mut shown)
        };
        bar.finish_and_clear();
        let done = match done {
            Ok((_, done)) => done,
            Err(error) => {
                context.clean()?;
                return Err(error.into());
            }
        };
        context.tell(told(&done), &format!("imported {} bytes of data\n", done.data_bytes))
    }
}

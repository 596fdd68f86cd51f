//! `esker repair`: what can be read of a damaged store, copied into a new one, and a list of what could not.
//!
//! Invariants:
//! 1. The damaged store is opened read-only; the new one appears under its name only when it is whole.
//! 2. What is lost goes to stdout as it is found, a line for each; exit code 6 means that there is such a line.

use std::io::{BufWriter, Write};

use clap::Args;
use esker::engine::{Lost, RepairReport, What};
use serde_json::{Value, json};

use super::{builder, json_object, quiet_pipe};
use crate::config::Settings;
use crate::exit::{Code, Failure};
use crate::progress;

/// The arguments of `esker repair`.
#[derive(Args)]
#[command(
    after_help = "FROM is only read, and no server may have it open. Where it does not open, the best checkpoint that is left and the log after \
it are used, without what does not hold; without superblocks the newest checkpoint is searched for; without any checkpoint all that \
stands on the device is put in order. In the last two cases deleted data may come back, and the report says so.\n\nExit code 0: \
everything was copied. Exit code 6: TO is whole, and what is missing in it was listed.\n\nObjects that share data in FROM (clones) \
share none in TO, which may have to be longer then: --size."
)]
pub struct Repair {
    /// The damaged store: a folder, a file or a block device
    from: String,
    /// The store that is made: a folder or a file that holds none yet, or an empty block device
    to: String,
    /// Length of the file that is made, such as 10g; without it, that of FROM
    #[arg(long)]
    size: Option<esker::ByteSize>,
    /// One JSON object per line: `{"lost": …}` for each thing that was lost, `{"report": …}` at the end
    #[arg(long)]
    json: bool,
}

impl Repair {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let mut out = BufWriter::new(std::io::stdout().lock());
        let mut written = Ok(());
        let bar = progress::count("repairing", 0);
        let repaired = builder(settings).repair(
            &self.from,
            &self.to,
            self.size.map(|size| size.0),
            &mut |lost| {
                if written.is_ok() {
                    written = if self.json { writeln!(out, "{}", as_json(lost)) } else { writeln!(out, "lost {lost}") };
                }
            },
            &mut |stage, done, total| {
                bar.set_message(stage);
                bar.set_length(total);
                bar.set_position(done);
            },
        );
        bar.finish_and_clear();
        if repaired.is_err() {
            quiet_pipe(out.flush())?;
        }
        let (path, report) = repaired?;
        let last = if self.json {
            let mut figures = json_object(report.entries());
            figures["path"] = json!(path);
            format!("{}\n", json!({ "report": figures }))
        } else {
            text(&path.display().to_string(), &report)
        };
        quiet_pipe(written.and_then(|()| out.write_all(last.as_bytes())).and_then(|()| out.flush()))?;
        if report.lost == 0 {
            return Ok(());
        }
        Err(Failure::new(Code::Lost, format!("{} things were lost; the rest is in {}", report.lost, path.display())))
    }
}

fn text(path: &str, report: &RepairReport) -> String {
    let mut text = format!(
        "repaired to {path}: {} collections, {} objects, {} entries, {} bytes; {} lost\n",
        report.collections, report.objects, report.entries, report.bytes, report.lost
    );
    if report.level.may_bring_back() {
        text.push_str(
            "WARNING: no superblock or no checkpoint was left that holds: data that had been deleted may be back\n",
        );
    }
    if !report.end_known {
        text.push_str(
            "the store had not been closed cleanly: damage at the very end of its log looks like a write that was under way\n",
        );
    }
    if report.torn_bytes > 0 {
        text.push_str(&format!("{} bytes at the end of the log do not hold and were left out\n", report.torn_bytes));
    }
    text
}

fn as_json(lost: &Lost) -> Value {
    let mut fields = match &lost.what {
        What::Slot(slot) => json!({ "what": "slot", "slot": slot }),
        What::OmapKey(key) => json!({ "what": "key", "key": key.escape_ascii().to_string() }),
        What::Bytes { offset, len } => json!({ "what": "bytes", "offset": offset, "len": len }),
        What::Xattr(name) => json!({ "what": "attribute", "name": name.escape_ascii().to_string() }),
        What::Part(part) => json!({ "what": "part", "part": part }),
        What::Object(number) => json!({ "what": "object", "number": number }),
        What::Transaction(seq) => json!({ "what": "transaction", "seq": seq }),
        _ => json!({ "what": "place" }),
    };
    if let Some(object) = &lost.object {
        fields["object"] = json!(object.to_string());
    }
    fields["device_offset"] = json!(lost.offset);
    fields["reason"] = json!(lost.reason);
    json!({ "lost": fields })
}

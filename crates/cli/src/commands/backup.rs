//! `esker backup` and `esker restore`: a store into a folder, piece by piece, and back.
//!
//! Invariants:
//! 1. An interrupted backup leaves no backup, but its finished files, which the next one uses.
//! 2. Restoring never overwrites a store without `--force`.
//! 3. A server makes backups only where its operator said.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use esker::engine::{self, Engine};

use super::{builder, print};
use crate::config::Settings;
use crate::exit::{Code, Failure};
use crate::progress;

/// The arguments of `esker backup`.
#[derive(Args)]
#[command(
    after_help = "The folder holds each segment once: a later backup into it copies only what is new, and an interrupted one \
is gone on with. Every record is verified while it is copied.\n\nThis command opens the store, so no server may have it open. A running server \
makes backups itself: start it with\n  esker serve --backup-folder FOLDER\nand ask for one with\n  redis-cli ESKER.BACKUP"
)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Backup {
    #[command(subcommand)]
    verify: Option<Verify>,
    /// The store: a folder, a file or a block device
    #[arg(required = true)]
    store: Option<String>,
    /// Where backups go; made if it does not exist
    #[arg(required = true)]
    folder: Option<PathBuf>,
    /// Afterwards keep only so many backups, the newest, and remove what only older ones need
    #[arg(long, value_name = "KEEP", value_parser = clap::value_parser!(u64).range(1..))]
    prune: Option<u64>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// What else can be done with backups.
#[derive(clap::Subcommand)]
enum Verify {
    /// Read all backups of a folder and say which can be restored
    Verify {
        /// The folder with the backups
        folder: PathBuf,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
}

impl Verify {
    fn run(self) -> Result<(), Failure> {
        let Self::Verify { folder, json } = self;
        let bar = progress::bytes("verifying", 0);
        let verified = engine::verify(&folder, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        let report = verified?;
        if json {
            let damaged =
                report.damaged.iter().map(|(sequence, why)| serde_json::json!({ "sequence": sequence, "why": why }));
            let result = serde_json::json!({
                "whole": report.whole,
                "damaged": damaged.collect::<Vec<_>>(),
                "files": report.files,
                "bytes": report.bytes,
                "elapsed_ms": report.elapsed.as_millis() as u64,
            });
            print(&format!("{result:#}\n"))?;
        } else {
            let mut text = String::new();
            report.whole.iter().for_each(|sequence| text.push_str(&format!("backup {sequence} can be restored\n")));
            report
                .damaged
                .iter()
                .for_each(|(sequence, why)| text.push_str(&format!("backup {sequence} is DAMAGED: {why}\n")));
            print(&format!("{text}{} files, {} bytes read\n", report.files, report.bytes))?;
        }
        match report.damaged.len() {
            0 => Ok(()),
            count => Err(Failure::new(Code::Damage, format!("{count} backups do not hold"))),
        }
    }
}

impl Backup {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        if let Some(verify) = self.verify {
            return verify.run();
        }
        let (Some(store), Some(folder)) = (&self.store, &self.folder) else {
            return Err(Failure::usage("expected a store and a folder"));
        };
        let store_at = store;
        let store = builder(settings).create(false).expire_interval(Duration::ZERO).open(store_at)?;
        let bar = progress::bytes("backing up", 0);
        let made = store.backup(folder, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        let closed = store.close();
        let report = made?;
        closed?;
        let pruned = match self.prune {
            Some(keep) => Some(engine::prune(folder, keep)?),
            None => None,
        };
        if self.json {
            let mut result = serde_json::json!({
                "sequence": report.sequence,
                "manifest": report.manifest,
                "last_seq": report.last_seq,
                "segments": report.segments,
                "bytes": report.bytes,
                "copied_segments": report.copied_segments,
                "copied_bytes": report.copied_bytes,
                "mended_segments": report.mended_segments,
                "elapsed_ms": report.elapsed.as_millis() as u64,
            });
            if let Some(pruned) = pruned {
                result["pruned_backups"] = pruned.backups.into();
                result["pruned_files"] = pruned.files.into();
                result["pruned_bytes"] = pruned.bytes.into();
            }
            return print(&format!("{result:#}\n"));
        }
        print(&format!(
            "backup {} of {} segments, {} bytes; copied {} segments, {} bytes\n",
            report.sequence, report.segments, report.bytes, report.copied_segments, report.copied_bytes
        ))?;
        if report.mended_segments > 0 {
            let mended = report.mended_segments;
            print(&format!("{mended} files of earlier backups did not hold and were copied again\n"))?;
        }
        match pruned {
            Some(pruned) => print(&format!(
                "removed {} older backups, {} files, {} bytes\n",
                pruned.backups, pruned.files, pruned.bytes
            )),
            None => Ok(()),
        }
    }
}

/// The arguments of `esker restore`.
#[derive(Args)]
pub struct Restore {
    /// The folder with the backups
    folder: PathBuf,
    /// The store that is made: a folder, a file or a block device
    store: String,
    /// The backup of this number; the newest without it
    #[arg(long, value_name = "SEQ")]
    at: Option<u64>,
    /// Length of the file that is made, such as 10g; without it, that of the store which was backed up
    #[arg(long)]
    size: Option<esker::ByteSize>,
    /// Overwrite what is there
    #[arg(long)]
    force: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Restore {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let mut builder = esker::Store::builder().segment_bytes(settings.store.segment.0.0);
        if let Some(size) = self.size {
            builder = builder.size(size.0);
        }
        let bar = progress::bytes("restoring", 0);
        let restored = builder.restore(&self.folder, self.at, &self.store, self.force, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        let (path, report) = restored?;
        if self.json {
            let result = serde_json::json!({
                "path": path,
                "sequence": report.sequence,
                "last_seq": report.last_seq,
                "segments": report.segments,
                "bytes": report.bytes,
                "elapsed_ms": report.elapsed.as_millis() as u64,
            });
            return print(&format!("{result:#}\n"));
        }
        print(&format!(
            "restored backup {} to {}: {} segments, {} bytes\n",
            report.sequence,
            path.display(),
            report.segments,
            report.bytes
        ))
    }
}

/// Backups that a running server makes in the background, one at a time.
pub struct Backups {
    folder: PathBuf,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    running: AtomicBool,
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
    /// Number of the last backup that was made; 0 before the first.
    sequence: AtomicU64,
    /// How the last one ended.
    ended: Mutex<String>,
}

impl Backups {
    /// Backups into this folder.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, state: Arc::default() }
    }

    /// Starts one.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn start(&self, engine: &Arc<Engine>) -> Result<(), String> {
        let (engine, folder, state) = (Arc::clone(engine), self.folder.clone(), Arc::clone(&self.state));
        if state.running.swap(true, Ordering::AcqRel) {
            return Err("a backup is under way; INFO esker tells how far it is".into());
        }
        let run = move || {
            let made = engine.backup(&folder, &mut |done, total| {
                state.done_bytes.store(done, Ordering::Relaxed);
                state.total_bytes.store(total, Ordering::Relaxed);
            });
            let ended = match made {
                Ok(report) => {
                    state.sequence.store(report.sequence, Ordering::Relaxed);
                    "ok".to_string()
                }
                Err(error) => {
                    let failure = Failure::from(error).to_string();
                    tracing::error!(error = failure, "the backup failed");
                    failure.replace(['\r', '\n'], " ")
                }
            };
            *state.ended.lock().unwrap_or_else(PoisonError::into_inner) = ended;
            state.running.store(false, Ordering::Release);
        };
        let spawned = std::thread::Builder::new().name("esker-backup".into()).spawn(run);
        spawned.map(drop).map_err(|error| {
            self.state.running.store(false, Ordering::Release);
            format!("no thread for a backup: {error}")
        })
    }

    /// How far the backup is, and how the last one ended, for INFO.
    pub fn figures(&self) -> [(&'static str, String); 5] {
        let state = &*self.state;
        let ended = state.ended.lock().unwrap_or_else(PoisonError::into_inner).clone();
        [
            ("backup_in_progress", u64::from(state.running.load(Ordering::Acquire)).to_string()),
            ("backup_done_bytes", state.done_bytes.load(Ordering::Relaxed).to_string()),
            ("backup_total_bytes", state.total_bytes.load(Ordering::Relaxed).to_string()),
            ("backup_last_sequence", state.sequence.load(Ordering::Relaxed).to_string()),
            ("backup_last_status", if ended.is_empty() { "none".into() } else { ended }),
        ]
    }
}

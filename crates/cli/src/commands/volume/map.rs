//! `esker volume map` and `unmap`: an image as a file or a block device of this machine, for as long as the command
//! runs.
//!
//! image → server inside this process → [`Tool`] (nbdfuse or nbd-client) → file or device → mount; signal → detach →
//! flush → store closes
//!
//! The export of a running server is mapped the same way: the server inside passes all on to it, by TLS where the
//! address says so, over its restarts where nothing can be lost by them.
//!
//! Invariants:
//! 1. What is mapped is detached before the store closes, and never while it is in use: a first signal waits for that,
//!    a second does not.
//! 2. The tool gets no signal of the terminal: it would drop a disk that is mounted.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use esker_server::nbd::{Config, Export as _, Forwarded, ForwardedDisk, Place};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::context::{Context, split};
use super::inside::Inside;
use super::tool::{Attached, Detached, Export, Tool};
use crate::commands::serve::disks::client_failure;
use crate::commands::tell;
use crate::exit::{Code, Failure};

/// How often signals and the tool are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long the tool may take to end.
const FLUSH: Duration = Duration::from_secs(60);

/// The arguments of `esker volume map`.
#[derive(Args)]
#[command(
    after_help = "The disk is there until Ctrl-C, SIGTERM or `esker volume unmap`, and durable when the command has ended. \
    A file needs nbdfuse (Debian: libnbd-bin or nbdfuse, and fuse3), a device nbd-client and the kernel's module nbd. \
    File systems are mounted with `mount -o loop FILE FOLDER` or `mount DEVICE FOLDER`."
)]
pub struct Map {
    /// IMAGE or IMAGE@SNAPSHOT, or the address of a running server's: nbd://HOST:PORT/IMAGE or
    /// nbd+unix:///IMAGE?socket=PATH, by TLS nbds://HOST:PORT/IMAGE?tls-certificates=FOLDER
    image: String,
    /// The snapshot, read-only
    #[arg(long)]
    snapshot: Option<String>,
    /// Map to this block device, such as /dev/nbd0, by nbd-client
    #[arg(long, value_name = "DEVICE", conflicts_with = "mountpoint")]
    device: Option<PathBuf>,
    /// Map to this file, by nbdfuse; made if it does not exist. Without it: the image's name in the current folder
    #[arg(long, value_name = "FILE")]
    mountpoint: Option<PathBuf>,
    /// Refuse writes, and take no lock
    #[arg(long)]
    read_only: bool,
    /// Connections that share the work
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
    connections: u8,
    /// How long a running server that is gone is waited for, such as 60s; if what was written and not flushed may be
    /// lost with it, the disk fails at once
    #[arg(long, value_name = "TIME", default_value_t = esker::Period(Duration::from_secs(60)))]
    reconnect: esker::Period,
}

/// The arguments of `esker volume unmap`.
#[derive(Args)]
pub struct Unmap {
    /// The file or device that `map` named
    mapped: PathBuf,
}

impl Map {
    /// Whether a running server's export is meant.
    pub(super) fn is_elsewhere(&self) -> bool {
        Place::is_meant(&self.image)
    }

    /// Maps an image of the store.
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let (image, snapshot) = self.names()?;
        let tool = self.tool(&image, snapshot.as_deref())?;
        let opened = context.image(&image)?;
        if let Some(snapshot) = &snapshot {
            opened.snapshot(snapshot)?;
        } else if !self.read_only {
            context.release_left(&image)?;
            if let Some(lock) = context.image(&image)?.lock_info() {
                let why = format!(
                    "image {image} is locked by {} (epoch {}): map it with --read-only, or break the lock",
                    lock.owner, lock.epoch
                );
                return Err(Failure::new(Code::Failure, why));
            }
        }
        let name = snapshot.map_or(image.clone(), |snapshot| format!("{image}@{snapshot}"));
        let read_only = if self.read_only { vec![image] } else { Vec::new() };
        let inside = Inside::start(context, Config { read_only, ..Config::default() })?;
        let export = self.export(inside.place(&name).to_string());
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let mut attached = tool.attach(&export, inside.folder(), &mut || signals.pending().next().is_some())?;
        let stayed = stay(&mut attached, &mut signals, &export.uri, &name, context.json);
        let stopped = inside.stop();
        // Before the mapping is gone, which `unmap` waits for.
        let closed = context.store.close().map_err(Failure::from);
        drop(attached);
        stayed.and(stopped).and(closed)
    }

    /// Maps an export of a running server.
    pub(super) fn elsewhere(self, json: bool) -> Result<(), Failure> {
        let uri = match &self.snapshot {
            None => self.image.clone(),
            Some(snapshot) => {
                let (path, query) = self.image.split_once('?').unwrap_or((&self.image, ""));
                let mark = if query.is_empty() { "" } else { "?" };
                format!("{path}@{snapshot}{mark}{query}")
            }
        };
        let place: Place = uri.parse().map_err(client_failure)?;
        let (image, snapshot) = split(&place.export);
        let tool = self.tool(image, snapshot)?;
        let (name, reads) = (place.export.clone(), self.read_only || snapshot.is_some());
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let forwarded = Arc::new(Forwarded::connect(place, self.reconnect.0).map_err(client_failure)?);
        if !reads && forwarded.read_only() {
            eprintln!("{} is served read-only: another process has it locked, or its server says so", self.image);
        }
        let read_only = if self.read_only { vec![name.clone()] } else { Vec::new() };
        let exports = Arc::new(ForwardedDisk(Arc::clone(&forwarded)));
        let inside = Inside::serve(exports, Config { read_only, ..Config::default() })?;
        let export = self.export(inside.place(&name).to_string());
        let mut attached = tool.attach(&export, inside.folder(), &mut || signals.pending().next().is_some())?;
        let stayed = stay(&mut attached, &mut signals, &uri, &self.image, json);
        let stopped = inside.stop();
        let flushed = if reads { Ok(()) } else { forwarded.flush().map(drop) };
        drop(attached);
        stayed.and(stopped).and(flushed.map_err(|fault| Failure::new(Code::Failure, fault.to_string())))
    }

    fn names(&self) -> Result<(String, Option<String>), Failure> {
        let (image, snapshot) = split(&self.image);
        match (snapshot, &self.snapshot) {
            (Some(_), Some(_)) => Err(Failure::usage(format!("{:?} names a snapshot already", self.image))),
            (named, given) => Ok((image.to_string(), named.map(str::to_string).or_else(|| given.clone()))),
        }
    }

    fn tool(&self, image: &str, snapshot: Option<&str>) -> Result<Tool, Failure> {
        match (&self.device, &self.mountpoint) {
            (Some(device), _) => Tool::kernel(device),
            (None, Some(file)) => Tool::fuse(file),
            (None, None) => {
                let name = match (image, snapshot) {
                    ("", _) => "disk".to_string(),
                    (image, Some(snapshot)) => format!("{image}@{snapshot}"),
                    (image, None) => image.to_string(),
                };
                Tool::fuse(name.as_ref())
            }
        }
    }

    fn export(&self, uri: String) -> Export {
        Export { uri, read_only: self.read_only, connections: self.connections }
    }
}

impl Unmap {
    pub(super) fn run(self) -> Result<(), Failure> {
        super::tool::unmap(&self.mapped)
    }
}

/// Stays until a user detaches the disk, a signal comes, or the tool ends.
fn stay(attached: &mut Attached, signals: &mut Signals, uri: &str, name: &str, json: bool) -> Result<(), Failure> {
    let (at, mount) = (attached.path().display().to_string(), attached.mount_options());
    let text = format!(
        "mapped     {name}\nat         {at}\ntry        mount{mount} {at} FOLDER\nend        Ctrl-C, or esker volume unmap {at}\n"
    );
    tell(json, &json!({"mapped": name, "at": at, "uri": uri}), &text)?;
    let mut asked = 0;
    let mut told = false;
    loop {
        asked += signals.pending().count();
        if attached.has_ended()? {
            return Ok(());
        }
        if asked > 1 {
            attached.give_up();
            let why = format!("{at} was detached while it was in use; what was not written back to it is lost");
            return Err(Failure::new(Code::Failure, why));
        }
        if asked == 1 {
            match attached.detach() {
                Ok(()) => return until_ended(attached),
                Err(Detached::InUse(why)) => {
                    if !told {
                        eprintln!("{at} is in use ({why}): unmount it; waiting for that, or for a second signal");
                    }
                    told = true;
                }
                Err(Detached::Failed(failure)) => return Err(failure),
            }
        }
        std::thread::sleep(LOOK);
    }
}

fn until_ended(attached: &mut Attached) -> Result<(), Failure> {
    let began = Instant::now();
    while !attached.has_ended()? {
        if began.elapsed() > FLUSH {
            attached.give_up();
            return Err(Failure::new(Code::Failure, "the program that maps the disk does not end"));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

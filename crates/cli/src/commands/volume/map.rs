//! `esker volume map` and `unmap`: an image as a file or a block device of this machine, for as long as the command
//! runs.
//!
//! image → server inside this process → [`Tool`] (nbdfuse or nbd-client) → file or device → mount; signal → detach →
//! flush → store closes
//!
//! The export of a running server is mapped the same way, without the server inside.
//!
//! Invariants:
//! 1. What is mapped is detached before the store closes, and never while it is in use: a first signal waits for that,
//!    a second does not.
//! 2. The tool gets no signal of the terminal: it would drop a disk that is mounted.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use esker_server::nbd::{Client, ClientError, Config, Place};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::context::{Context, split};
use super::inside::{Inside, private_folder};
use super::tool::{Attached, Detached, Export, Tool};
use crate::commands::serve::disks::client_failure;
use crate::commands::tell;
use crate::exit::{Code, Failure};

/// How often signals and the tool are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long the server has for the last flush.
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
        // Before whoever waits for what is mapped to be gone.
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
        let folder = private_folder()?;
        let export = self.export(uri.clone());
        let reads = self.read_only || snapshot.is_some();
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        // It is there before the tool is, so that both are served alike, and stays: it ends when the server does.
        let watch = || {
            let unwatched = |error: &ClientError| {
                let why = Failure::of(Code::Failure, error);
                eprintln!("nobody watches whether the server of {} is restarted meanwhile: {why}", self.image);
            };
            Client::connect(&place, Some(FLUSH)).inspect_err(unwatched).ok()
        };
        let watch = if reads { None } else { watch() };
        if watch.as_ref().is_some_and(Client::read_only) {
            eprintln!("{} is served read-only: another process has it locked, or its server says so", self.image);
        }
        let mut attached = tool.attach(&export, folder.path(), &mut || signals.pending().next().is_some())?;
        stay(&mut attached, &mut signals, &export.uri, &self.image, json)?;
        if !reads {
            flush_last(watch, &place)?;
        }
        drop(attached);
        Ok(())
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

/// Has the server make durable what the tool has written to the disk, by the connection that was there all the time if
/// there is one: a server that came in the place of another would say that all is durable, and know nothing of what
/// that one has lost.
fn flush_last(watch: Option<Client>, place: &Place) -> Result<(), Failure> {
    let afresh = || Client::connect(place, Some(FLUSH))?.flush();
    let Some(mut client) = watch else { return afresh().map_err(client_failure) };
    let cause = match client.flush() {
        Ok(()) => return Ok(()),
        Err(ClientError::Lost(cause)) => cause,
        Err(error) => return Err(client_failure(error)),
    };
    let server = format!("the server of {:?}", place.export);
    let why = if cause.kind() == ErrorKind::WouldBlock {
        format!(
            "{server} has not answered the last flush within {} s: what was written may not be durable",
            FLUSH.as_secs()
        )
    } else {
        // Perhaps only the connection is gone: then this makes durable what is there.
        let now = match afresh() {
            Ok(()) => "what it has now is synced".to_owned(),
            Err(error) => format!("what it has now could not be synced ({})", Failure::of(Code::Failure, &error)),
        };
        format!(
            "{server} went away, or was restarted, or the connection to it was cut, while the disk was mapped ({cause}): \
             what was written and not synced before may be lost; {now}"
        )
    };
    Err(Failure::new(Code::Failure, why))
}

/// Stays until somebody detaches, a signal comes, or the tool ends.
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

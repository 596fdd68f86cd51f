//! The NBD side of `esker serve`: its flags and settings, and the server of the store's volumes.
//!
//! Invariant: where nothing of NBD is asked for, the store's volumes are not touched.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use clap::Args;
use esker::kv::{Clock, SystemClock};
use esker_server::front::Passed;
use esker_server::nbd::{self, ClientError, Config, Handle, Locking, SERVER_OWNER, Server, TlsMode, VolumeExports};

use super::shared::{Front, addresses};
use crate::config::ServeSettings;
use crate::exit::{Code, Failure};

/// The flags of `esker serve` that begin with nbd.
#[derive(Args, Default)]
pub struct NbdFlags {
    /// Address to serve the store's volumes on as disks by NBD, such as 127.0.0.1:10809; may be given several times.
    /// An image is the export of its name, a snapshot the read-only export IMAGE@SNAPSHOT
    #[arg(long = "nbd", value_name = "ADDRESS")]
    nbd_listen: Vec<String>,
    /// Unix socket to serve disks on
    #[arg(long = "nbd-unix-socket", value_name = "PATH")]
    nbd_unix_socket: Option<String>,
    /// With a certificate, whether NBD clients must use TLS: required, allowed or off; never over the unix socket
    #[arg(long = "nbd-tls", value_name = "MODE")]
    nbd_tls: Option<String>,
    /// Export whose writes are acknowledged only when durable, or * for all; may be given several times
    #[arg(long = "nbd-durable", value_name = "EXPORT")]
    nbd_durable: Vec<String>,
    /// Export that refuses writes, or * for all; may be given several times
    #[arg(long = "nbd-read-only", value_name = "EXPORT")]
    nbd_read_only: Vec<String>,
    /// Export that is written without its exclusive lock, or * for all; for a cluster's file system; may be given
    /// several times
    #[arg(long = "nbd-unlocked", value_name = "EXPORT")]
    nbd_unlocked: Vec<String>,
}

impl NbdFlags {
    /// Puts the flags over the configuration.
    pub fn apply(self, serve: &mut ServeSettings) {
        let over = |target: &mut Vec<String>, flags: Vec<String>| {
            if !flags.is_empty() {
                *target = flags;
            }
        };
        over(&mut serve.nbd_listen, self.nbd_listen);
        over(&mut serve.nbd_durable, self.nbd_durable);
        over(&mut serve.nbd_read_only, self.nbd_read_only);
        over(&mut serve.nbd_unlocked, self.nbd_unlocked);
        if let Some(path) = self.nbd_unix_socket {
            serve.nbd_unix_socket = path;
        }
        if let Some(mode) = self.nbd_tls {
            serve.nbd_tls = mode;
        }
    }
}

/// The NBD server's configuration; `None` if it is not asked for.
pub fn config(
    settings: &ServeSettings,
    store: &str,
    front: &Front,
    passed: Vec<Passed>,
) -> Result<Option<Config>, Failure> {
    let tls = front.tls_for(&settings.nbd_tls_client_ca);
    let unix_socket = Some(settings.nbd_unix_socket.as_str()).filter(|path| !path.is_empty()).map(PathBuf::from);
    let listen = addresses(&settings.nbd_listen)?;
    // A supervisor that passes sockets for a protocol says where that is listened on.
    let (listen, unix_socket) = if passed.is_empty() { (listen, unix_socket) } else { (Vec::new(), None) };
    let (tls, tls_mode) = match settings.nbd_tls.as_str() {
        "required" => (tls, TlsMode::Required),
        "allowed" => (tls, TlsMode::Allowed),
        "off" => (None, TlsMode::Allowed),
        other => return Err(Failure::usage(format!("nbd_tls = {other:?}: expected required, allowed or off"))),
    };
    if listen.is_empty() && unix_socket.is_none() && passed.is_empty() {
        return Ok(None);
    }
    let number = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let config = Config {
        listen,
        unix_socket,
        unix_access: front.unix.clone(),
        passed,
        users: front.users.clone(),
        linger: front.linger / 2,
        tls,
        tls_mode,
        connections_max: number(settings.nbd_connections),
        in_flight_max: number(settings.nbd_in_flight),
        in_flight_bytes_max: number(settings.nbd_in_flight_bytes.0.0),
        threads_per_connection: threads(settings.nbd_threads, store),
        durable: settings.nbd_durable.clone(),
        read_only: settings.nbd_read_only.clone(),
        unlocked: settings.nbd_unlocked.clone(),
        ..Config::default()
    };
    config.check().map_err(failure)?;
    Ok(Some(config))
}

/// Threads of a connection, for disks of the store at a location.
fn threads(wanted: u64, store: &str) -> usize {
    let is_far = ["rados:", "grpc:", "grpc+unix:"].iter().any(|scheme| store.starts_with(scheme));
    match wanted {
        0 if is_far => 64,
        0 => 8,
        wanted => usize::try_from(wanted).unwrap_or(usize::MAX),
    }
}

/// How a process locks the images that its clients write: under a name that no other has, now or later.
///
/// A second process that opens a store of this machine is refused ([`esker::Error::InUse`]); so the lock of another
/// server that is found in it is that of one that was killed. Not so where the store is another server's or on Ceph, or
/// this one serves its objects: then `alone` is false.
pub fn locking(alone: bool) -> Locking {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let owner = format!("{SERVER_OWNER}{host}/{}/{}", std::process::id(), SystemClock.now_ms());
    Locking { owner, alone }
}

/// The exit code of what the NBD server says.
pub fn failure(error: nbd::Error) -> Failure {
    match error {
        nbd::Error::Config(_) | nbd::Error::NoCertificates(_) | nbd::Error::Tls(_) => Failure::of(Code::Usage, &error),
        error => Failure::of(Code::Failure, &error),
    }
}

/// The exit code of what an NBD client is told.
pub fn client_failure(error: ClientError) -> Failure {
    match error {
        ClientError::Uri { .. } | ClientError::Tls { .. } => Failure::of(Code::Usage, &error),
        error => Failure::of(Code::Failure, &error),
    }
}

/// A running NBD server.
pub struct Disks {
    handle: Handle,
    thread: JoinHandle<nbd::Result<()>>,
}

impl Disks {
    /// Listens and says where. `alone` is for [`locking`]; `stop` is called if it ends by itself.
    pub fn start(
        store: &esker::Store,
        config: Config,
        alone: bool,
        stop: impl FnOnce() + Send + 'static,
    ) -> Result<Self, Failure> {
        let volumes = store.volumes()?;
        let example = volumes.list().map_err(esker::Error::from)?.into_iter().next();
        let encrypted = config.tls.is_some() && config.tls_mode == TlsMode::Required;
        let exports = VolumeExports::new(volumes, locking(alone));
        let server = Server::bind(config, Arc::new(exports)).map_err(failure)?;
        for address in server.addresses() {
            say!("disks      {address}");
        }
        if let (Some(address), false) = (server.addresses().first(), encrypted) {
            say!("try        nbdinfo '{}'", address.uri(example.as_deref().unwrap_or("IMAGE")));
        }
        let handle = server.handle();
        let thread = std::thread::Builder::new().name("esker-nbd-accept".into()).spawn(move || {
            let ended = server.run();
            if let Err(error) = &ended {
                tracing::error!(%error, "the NBD server ended");
                stop();
            }
            ended
        })?;
        Ok(Self { handle, thread })
    }

    /// What tells of it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits for its end, once it was told to stop.
    pub fn stop(self) -> Result<(), Failure> {
        self.handle.shutdown();
        match self.thread.join() {
            Ok(ended) => ended.map_err(failure),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::threads;

    #[test]
    fn disks_of_a_store_behind_a_network_have_more_threads_unless_it_is_said() {
        for (location, own) in [("esker:data", 8), ("data", 8), ("rados:pool/name?conf=c", 64), ("grpc://host:1", 64)] {
            assert_eq!((threads(0, location), threads(3, location)), (own, 3), "{location}");
        }
    }
}

//! The gRPC side of `esker serve`: its flags and settings, and the server of the store's logs and its map.
//!
//! Invariant: where nothing of gRPC is asked for, the store's logs and map are not touched.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use clap::Args;
use esker_server::front::Passed;
use esker_server::grpc::{self, Address, Config, Faces, Handle, Ready, Server};

pub use super::shared::token;
use super::shared::{Front, addresses};
use crate::config::ServeSettings;
use crate::exit::{Code, Failure};

/// The flags of `esker serve` that begin with grpc.
#[derive(Args, Default)]
pub struct GrpcFlags {
    /// Address to serve the store's logs and its map on by gRPC, such as 127.0.0.1:7400; may be given several times.
    /// Speaks TLS where there is a certificate
    #[arg(long = "grpc", value_name = "ADDRESS")]
    grpc_listen: Vec<String>,
    /// Unix socket to serve gRPC on
    #[arg(long = "grpc-unix-socket", value_name = "PATH")]
    grpc_unix_socket: Option<String>,
    /// File whose first line gRPC clients have to send as `authorization: Bearer TOKEN`
    #[arg(long = "grpc-token-file", value_name = "FILE")]
    grpc_token_file: Option<String>,
    /// Serve the objects below all faces as well, for other processes of Esker (`--store grpc://HOST:PORT`): every
    /// client that reaches them may change everything
    #[arg(long = "grpc-objects")]
    grpc_objects: bool,
    /// Expired rows of the map that are removed per second in the background, at most; 0 means none
    #[arg(long, value_name = "ROWS")]
    map_sweep: Option<u64>,
    /// Authorities (PEM) that certificates of the logs' sequencers are checked with; without it they are reached
    /// without TLS
    #[arg(long = "grpc-sequencer-authorities", value_name = "FILE")]
    grpc_sequencer_authorities: Option<String>,
}

impl GrpcFlags {
    /// Puts the flags over the configuration.
    pub fn apply(self, serve: &mut ServeSettings) {
        if !self.grpc_listen.is_empty() {
            serve.grpc_listen = self.grpc_listen;
        }
        if let Some(path) = self.grpc_unix_socket {
            serve.grpc_unix_socket = path;
        }
        if let Some(file) = self.grpc_token_file {
            serve.grpc_token_file = file;
        }
        serve.grpc_objects |= self.grpc_objects;
        if let Some(rows) = self.map_sweep {
            serve.map_sweep = rows;
        }
        if let Some(file) = self.grpc_sequencer_authorities {
            serve.grpc_sequencer_authorities = file;
        }
    }
}

/// How the server reaches sequencers of its logs: with the token that it asks for itself, as its clients do. `None`
/// where nothing is said about it.
pub fn sequencers(settings: &ServeSettings) -> Result<Option<esker::remote::Options>, Failure> {
    let authorities = Some(&settings.grpc_sequencer_authorities).filter(|file| !file.is_empty()).map(PathBuf::from);
    let token = token(&settings.grpc_token_file)?;
    let said = authorities.is_some() || token.is_some();
    Ok(said.then(|| esker::remote::Options { token, authorities, ..esker::remote::Options::default() }))
}

/// The gRPC server's configuration; `None` if it is not asked for.
pub fn config(settings: &ServeSettings, front: &Front, passed: Vec<Passed>) -> Result<Option<Config>, Failure> {
    let tls = front.tls_for(&settings.grpc_tls_client_ca);
    let unix_socket = Some(settings.grpc_unix_socket.as_str()).filter(|path| !path.is_empty()).map(PathBuf::from);
    let listen = addresses(&settings.grpc_listen)?;
    // A supervisor that passes sockets for a protocol says where that is listened on.
    let (listen, unix_socket) = if passed.is_empty() { (listen, unix_socket) } else { (Vec::new(), None) };
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
        linger: front.linger,
        tls,
        token: token(&settings.grpc_token_file)?,
        objects: settings.grpc_objects,
        connections_max: number(settings.grpc_connections),
        in_flight_max: number(settings.grpc_in_flight),
        followers_max: number(settings.grpc_followers),
        ..Config::default()
    };
    config.check().map_err(failure)?;
    Ok(Some(config))
}

/// What a gRPC server's error means for the command.
pub fn failure(error: grpc::Error) -> Failure {
    match error {
        grpc::Error::Config(_) | grpc::Error::Open(_) | grpc::Error::Tls(_) => Failure::of(Code::Usage, &error),
        error => Failure::of(Code::Failure, &error),
    }
}

/// A running gRPC server.
pub struct Rpc {
    handle: Handle,
    thread: JoinHandle<grpc::Result<()>>,
}

impl Rpc {
    /// Listens and says where. `stop` is called if it ends by itself.
    /// `ready` says whether writes are taken.
    pub fn start(
        store: &esker::Store,
        config: Config,
        ready: Ready,
        stop: impl FnOnce() + Send + 'static,
    ) -> Result<Self, Failure> {
        let objects = config.objects.then(|| store.objects());
        let open = config.token.is_none() && config.tls.is_none();
        let shown = if objects.is_some() { " (logs, map, and all objects)" } else { "" };
        let map = Some(Arc::new(store.map()?) as _);
        let faces = Faces { logs: Some(store.logs()?), map, objects, sequencers: None, ready: Some(ready) };
        let server = Server::bind(config, faces).map_err(failure)?;
        for address in server.addresses() {
            say!("grpc       {address}{shown}");
        }
        if let (Some(Address::Tcp(address)), true) = (server.addresses().first(), open) {
            say!("try        grpcurl -plaintext {address} list");
        }
        Self::run(server, stop)
    }

    /// Runs a server on a thread of its own.
    pub fn run(server: Server, stop: impl FnOnce() + Send + 'static) -> Result<Self, Failure> {
        let handle = server.handle();
        let thread = std::thread::Builder::new().name("esker-grpc-serve".into()).spawn(move || {
            let ended = server.run();
            if let Err(error) = &ended {
                tracing::error!(%error, "the gRPC server ended");
                stop();
            }
            ended
        })?;
        Ok(Self { handle, thread })
    }

    /// What tells it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Stops it once what is under way is answered.
    pub fn stop(self) -> Result<(), Failure> {
        self.handle.shutdown();
        match self.thread.join() {
            Ok(ended) => ended.map_err(failure),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

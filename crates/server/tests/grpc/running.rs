//! A server that runs for a test, and clients of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use esker_log::{Logs, Session};
use esker_map::Waist;
use esker_server::grpc::{Address, Config, Faces, Handle, Ready, Result, Server};
use esker_store::ObjectStore;
use esker_wire::proto::log as proto;
use esker_wire::proto::log::log_client::LogClient;
use esker_wire::proto::map::map_client::MapClient;
use tonic::transport::Channel;

/// A server that stops with its test.
pub struct Running {
    pub address: SocketAddr,
    handle: Handle,
    thread: Option<JoinHandle<Result<()>>>,
}

/// Options for a server of a test: a free port of loopback.
pub fn near() -> Config {
    Config { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], ..Config::default() }
}

impl Running {
    /// Serves the logs and the map of a store, and its objects if the configuration says so.
    pub fn start(store: Arc<dyn ObjectStore>, config: Config) -> Self {
        Self::watched(store, config, None)
    }

    /// The same, with what says whether writes are taken.
    pub fn watched(store: Arc<dyn ObjectStore>, config: Config, ready: Option<Ready>) -> Self {
        let session = Session::new(Arc::new(|| 1_700_000_000_000), 7);
        let logs = Some(Logs::open(Arc::clone(&store), session).unwrap());
        let map = Waist::open(Arc::clone(&store), Arc::new(|| 1_700_000_000_000), [9; 32]).unwrap();
        let faces = Faces { logs, map: Some(Arc::new(map)), objects: Some(store), sequencers: None, ready };
        let server = Server::bind(config, faces).unwrap();
        let address = match &server.addresses()[0] {
            Address::Tcp(address) | Address::Tls(address) => *address,
            Address::Unix(path) => panic!("{}", path.display()),
        };
        let handle = server.handle();
        Self { address, handle, thread: Some(std::thread::spawn(move || server.run())) }
    }

    /// What tells it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// A server over a new store in memory.
    pub fn in_memory() -> Self {
        Self::start(Arc::new(esker_memory::MemoryStore::new()), near())
    }

    /// A client with a connection of its own.
    pub async fn client(&self) -> LogClient<Channel> {
        let endpoint = Channel::from_shared(format!("http://{}", self.address)).unwrap();
        LogClient::new(endpoint.connect().await.unwrap())
    }

    /// A client of the map with a connection of its own.
    pub async fn map(&self) -> MapClient<Channel> {
        let endpoint = Channel::from_shared(format!("http://{}", self.address)).unwrap();
        MapClient::new(endpoint.connect().await.unwrap()).max_decoding_message_size(20 << 20)
    }

    /// A client, and a log.
    pub async fn with_log(&self, log: &str) -> LogClient<Channel> {
        let mut client = self.client().await;
        client.create(proto::CreateRequest { log: log.into(), options: None }).await.unwrap();
        client
    }

    /// Stops it; streams of clients end.
    pub fn stop(&mut self) -> Result<()> {
        self.handle.shutdown();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let stopped = self.stop();
            assert!(std::thread::panicking() || stopped.is_ok(), "{stopped:?}");
        }
    }
}

/// A request that appends `data`.
pub fn entry(log: &str, data: impl Into<bytes::Bytes>) -> proto::AppendRequest {
    let record = Some(proto::Record { data: data.into(), streams: Vec::new() });
    proto::AppendRequest { log: log.into(), record, ..Default::default() }
}

/// A request to follow from the first position.
pub fn from_first(log: &str) -> proto::FollowRequest {
    let start = Some(proto::follow_request::Start::First(true));
    proto::FollowRequest { log: log.into(), start, ..Default::default() }
}

/// All that a follower is handed until it ends.
pub async fn all(mut stream: tonic::Streaming<proto::FollowResponse>) -> Vec<proto::delivery::What> {
    let mut all = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        all.extend(message.deliveries.into_iter().filter_map(|one| one.what));
    }
    all
}

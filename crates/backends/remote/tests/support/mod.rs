//! Engines on devices in memory, behind servers on loopback: opened over the network.

#![allow(dead_code, reason = "not every suite uses all of it")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use esker_device::{Device, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options};
use esker_remote::{Place, RemoteStore};
use esker_server::grpc::{self, Address, Config, Faces, Handle, Sequencers, Server};
use esker_store::ObjectStore;
use esker_store::contract::{Harness, Opened};

/// A server that runs until it is stopped.
pub struct Running {
    pub address: SocketAddr,
    handle: Handle,
    thread: Option<JoinHandle<grpc::Result<()>>>,
}

impl Running {
    /// Serves objects, sequencers, or both, at a port.
    pub fn start(port: u16, objects: Option<Arc<dyn ObjectStore>>, sequencers: Option<Sequencers>) -> Self {
        let config = Config {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], port))],
            objects: objects.is_some(),
            ..Config::default()
        };
        let server = Server::bind(config, Faces { objects, sequencers, ..Faces::default() }).unwrap();
        let Address::Tcp(address) = server.addresses()[0] else { panic!("{:?}", server.addresses()) };
        let handle = server.handle();
        Self { address, handle, thread: Some(std::thread::spawn(move || server.run())) }
    }

    pub fn place(&self) -> Place {
        Place::Tcp(self.address.to_string())
    }

    pub fn stop(&mut self) {
        self.handle.shutdown();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.thread.is_some() && !std::thread::panicking() {
            self.stop();
        }
    }
}

/// Opens the store of a server.
pub fn open(place: Place) -> RemoteStore {
    RemoteStore::connect(place, &esker_remote::Options::default()).unwrap()
}

/// Makes engines of a gigabyte or more that are reached over loopback.
pub struct Served;

struct Store {
    device: Arc<MemoryDevice>,
    engine: Arc<Engine>,
    server: Running,
    remote: RemoteStore,
}

/// A device in memory, formatted.
pub fn device() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(4 << 30));
    Engine::format(&*device, &FormatOptions { segment_bytes: 64 << 20, uuid: [3; 16] }).unwrap();
    device
}

/// An engine on it.
pub fn engine(device: &Arc<MemoryDevice>) -> Arc<Engine> {
    let options = Options { recent_bytes: 0, cache_bytes: 1 << 20, ..Options::default() };
    Arc::new(Engine::open(Arc::clone(device) as Arc<dyn Device>, options).unwrap())
}

impl Harness for Served {
    fn fresh(&self) -> Box<dyn Opened> {
        let device = device();
        let engine = engine(&device);
        let server = Running::start(0, Some(Arc::clone(&engine) as _), None);
        let remote = open(server.place());
        Box::new(Store { device, engine, server, remote })
    }
}

impl Opened for Store {
    fn store(&self) -> &dyn ObjectStore {
        &self.remote
    }

    /// The server goes away, and comes back at the same port; the client stays.
    fn reopen(&mut self) {
        self.server.stop();
        self.engine.close().unwrap();
        self.engine = engine(&self.device);
        self.server = Running::start(self.server.address.port(), Some(Arc::clone(&self.engine) as _), None);
    }
}

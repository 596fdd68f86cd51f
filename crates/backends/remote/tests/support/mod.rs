//! Engines on devices in memory, behind servers on loopback: opened over the network.

#![allow(dead_code, reason = "not every suite uses all of it")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
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

/// Lets bytes through both ways until it is told to lose so many of the server's answers: then it closes the connection
/// with the first byte of one.
pub struct Wire {
    pub address: String,
    pub lose: Arc<AtomicU32>,
    pub lost: Arc<AtomicBool>,
}

impl Wire {
    pub fn to(server: &Running) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (lose, lost) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (target, losing, done) = (server.address, Arc::clone(&lose), Arc::clone(&lost));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(target) else { continue };
                let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || drop(std::io::copy(&mut from_client, &mut to_server)));
                let (mut from_server, mut to_client) = (server, client);
                let (losing, done) = (Arc::clone(&losing), Arc::clone(&done));
                std::thread::spawn(move || {
                    let mut buffer = [0; 65_536];
                    while let Ok(len @ 1..) = from_server.read(&mut buffer) {
                        let one_less = |left: u32| left.checked_sub(1);
                        if is_answer(&buffer[..len])
                            && losing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
                        {
                            done.store(true, Ordering::SeqCst);
                            break;
                        }
                        if to_client.write_all(&buffer[..len]).is_err() {
                            break;
                        }
                    }
                    let _ = to_client.shutdown(std::net::Shutdown::Both);
                    let _ = from_server.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        Self { address, lose, lost }
    }
}

/// Whether there is more in it than what keeps the connection: a frame of headers.
fn is_answer(mut bytes: &[u8]) -> bool {
    while let [a, b, c, kind, rest @ ..] = bytes {
        if *kind == 1 {
            return true;
        }
        let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        bytes = rest.get(5 + len..).unwrap_or_default();
    }
    false
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

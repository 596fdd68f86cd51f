//! Servers of the chains a and b on a real ZooKeeper, and what stands between them and a client.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../../../../crates/cluster/tests/support/mod.rs"]
pub mod zookeeper;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use esker_ring::{Kind, Options, Ring};
use tempfile::TempDir;
use zookeeper::ZooKeeper;

pub const NODE: &str = "/data/zdb";
const PATIENCE: Duration = Duration::from_secs(60);

pub fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "not so: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The `esker` to start.
fn esker(folder: &Path) -> Command {
    let binary = std::env::var("ESKER_BIN").expect("ESKER_BIN is the `esker` to start: see clients/thrift/test");
    let mut command = Command::new(binary);
    // Settings of the machine's own are not for the servers of tests.
    std::env::vars().filter(|(name, _)| name.starts_with("ESKER")).for_each(|(name, _)| {
        command.env_remove(name);
    });
    command.current_dir(folder).stdin(Stdio::null());
    command
}

/// A ZooKeeper, and processes that are killed when this is dropped.
pub struct Chains {
    pub zookeeper: ZooKeeper,
    /// Where each server serves by Thrift: chain a, chain b.
    pub thrift: BTreeMap<usize, [u16; 2]>,
    folder: TempDir,
    running: BTreeMap<usize, Child>,
    writer: tokio::runtime::Runtime,
}

impl Chains {
    /// A ZooKeeper alone.
    pub fn none() -> Self {
        let (folder, zookeeper) = (TempDir::new().unwrap(), ZooKeeper::start());
        let config = format!("[cluster]\nlocation = '{}'\nlease = '2s'\n", zookeeper.location());
        std::fs::write(folder.path().join("esker.toml"), config).unwrap();
        let writer = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { zookeeper, thrift: BTreeMap::new(), folder, running: BTreeMap::new(), writer }
    }

    /// Servers 1 to `count`, all of both chains; the first server that `spread` names for a chain is its head.
    pub fn of(namespace: &str, spread: [&str; 2], count: usize) -> Self {
        let mut chains = Self::none();
        // One that was not answered in time may have been made.
        soon("the chains are made", || {
            let done = chains.output(&["cluster", "spread", spread[0], spread[1]]);
            done.status.success() || String::from_utf8_lossy(&done.stderr).contains("already")
        });
        let location = chains.zookeeper.location().to_string();
        for server in 1..=count {
            let (ports, number) = ([free_port(), free_port()], server.to_string());
            chains.thrift.insert(server, ports);
            let of_b = format!("chain=b,store=b{server}?size=64m&segment=1m,listen=127.0.0.1:{}", free_port());
            let (store, of_clients) = (format!("a{server}?size=64m&segment=1m"), address(free_port()));
            let (of_servers, by_thrift) = (address(free_port()), address(ports[0]));
            let replica = format!("{of_b},thrift={}", address(ports[1]));
            let options = [
                ("--server-id", number.as_str()),
                ("--config", "esker.toml"),
                ("--cluster", &location),
                ("--chain", "a"),
                ("--store", &store),
                ("--listen", &of_clients),
                ("--peer-listen", &of_servers),
                ("--thrift", &by_thrift),
                ("--thrift-namespace", namespace),
                ("--thrift-registry", NODE),
                ("--replica", &replica),
            ];
            chains.start(server, &options.map(|(name, value)| [name, value]).concat());
        }
        chains
    }

    /// A server that is alone, and where it serves byte keys by Thrift.
    pub fn alone(&mut self) -> u16 {
        let port = free_port();
        self.start(0, &["--no-resp", "--store", "alone?size=64m&segment=1m", "--thrift", &address(port)]);
        soon("it serves", || TcpStream::connect(address(port)).is_ok());
        port
    }

    fn start(&mut self, server: usize, arguments: &[&str]) {
        let log = File::create(self.folder.path().join(format!("log{server}"))).unwrap();
        let child = esker(self.folder.path())
            .args(["serve", "--log", "warn"])
            .args(arguments)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        self.running.insert(server, child.unwrap());
    }

    fn output(&self, words: &[&str]) -> Output {
        esker(self.folder.path()).args(words).args(["--config", "esker.toml"]).output().unwrap()
    }

    /// A command that must succeed.
    pub fn esker(&self, words: &[&str]) {
        let done = self.output(words);
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    pub fn kill(&mut self, server: usize) {
        let mut child = self.running.remove(&server).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub fn ring(&self, kind: Kind, options: Options) -> Ring {
        Ring::new(&self.zookeeper.location(), NODE, kind, options).unwrap()
    }

    /// Has a node stand below the service's, as another program would.
    pub fn register(&self, name: &str) {
        let servers = self.zookeeper.location().servers();
        self.writer.block_on(async {
            let client = zookeeper_client::Client::connect(&servers).await.unwrap();
            let persistent = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
            client.mkdir(NODE, &persistent).await.unwrap();
            client.create(&format!("{NODE}/{name}"), b"", &persistent).await.unwrap();
        });
    }

    pub fn unregister(&self, name: &str) {
        let servers = self.zookeeper.location().servers();
        self.writer.block_on(async {
            let client = zookeeper_client::Client::connect(&servers).await.unwrap();
            client.delete(&format!("{NODE}/{name}"), None).await.unwrap();
        });
    }
}

impl Drop for Chains {
    fn drop(&mut self) {
        for (server, child) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
            if std::thread::panicking() {
                let log = std::fs::read_to_string(self.folder.path().join(format!("log{server}")));
                eprintln!("server {server}:\n{}", log.unwrap_or_default());
            }
        }
    }
}

fn address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// Stands before a server, counts calls in frames, and loses answers if it is told to.
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Relayed>,
}

#[derive(Default)]
struct Relayed {
    calls: AtomicUsize,
    loses: AtomicBool,
    closed: AtomicBool,
}

impl Relay {
    pub fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, shared) = (listener.local_addr().unwrap(), Arc::new(Relayed::default()));
        let relayed = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if relayed.closed.load(Ordering::SeqCst) {
                    return;
                }
                let relayed = Arc::clone(&relayed);
                // One of the two goes: that is what ends it.
                std::thread::spawn(move || client.and_then(|client| relayed.relay(client, server)));
            }
        });
        Self { address, shared }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// How many calls came since this was last asked.
    pub fn calls(&self) -> usize {
        self.shared.calls.swap(0, Ordering::SeqCst)
    }

    /// From now on calls are done, and the connection is closed instead of an answer; or they are answered again.
    pub fn loses(&self, does: bool) {
        self.shared.loses.store(does, Ordering::SeqCst);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        // It wakes the listener, which ends.
        let _ = TcpStream::connect(self.address);
        soon("it does not listen", || TcpStream::connect(self.address).is_err());
    }
}

impl Relayed {
    fn relay(&self, mut client: TcpStream, server: u16) -> io::Result<()> {
        let mut server = TcpStream::connect(("127.0.0.1", server))?;
        loop {
            let call = frame(&mut client)?;
            self.calls.fetch_add(1, Ordering::SeqCst);
            server.write_all(&call)?;
            let answer = frame(&mut server)?;
            if self.loses.load(Ordering::SeqCst) {
                return Ok(());
            }
            client.write_all(&answer)?;
        }
    }
}

/// A frame with its length.
fn frame(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    stream.read_exact(&mut bytes)?;
    let len = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    assert!(len < 1 << 20, "a frame of {len} bytes");
    stream.take(len.into()).read_to_end(&mut bytes)?;
    Ok(bytes)
}

//! Servers of one or several chains on a real ZooKeeper, and clients that go where they are told to.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../../server/tests/support/by_thrift.rs"]
pub mod by_thrift;
#[path = "../../../cluster/tests/support/mod.rs"]
pub mod zookeeper;

mod ports;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use ports::free;
use serde_json::Value;
use tempfile::TempDir;
use zookeeper::ZooKeeper;

/// Long enough that a hand-over which waits for a lease is told from one that does not.
pub const LEASE: Duration = Duration::from_secs(2);
/// A planned hand-over interrupts writers for less than half a lease, on a machine that has other things to do.
pub const PLANNED_MAX: Duration = Duration::from_secs(1);
pub const PATIENCE: Duration = Duration::from_secs(40);
/// Keys of one question.
pub const ASKED: usize = 400;

/// Ends writers also where the test that waits for them has failed.
pub struct Ends<'o>(pub &'o AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// `esker` with this ZooKeeper in its configuration.
pub fn command(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_esker"));
    command.current_dir(folder).env("ESKER_CONFIG", "esker.toml").env_remove("ESKER_PASSWORD").stdin(Stdio::null());
    command
}

pub fn configure(folder: &Path, zookeeper: &ZooKeeper) {
    let text = format!("[cluster]\nlocation = '{}'\nlease = '{}s'\n", zookeeper.location(), LEASE.as_secs());
    std::fs::write(folder.join("esker.toml"), text).unwrap();
}

pub fn cluster(folder: &Path, arguments: &[&str]) -> Output {
    command(folder).arg("cluster").args(arguments).output().unwrap()
}

/// A command that must succeed; what it printed.
pub fn done(folder: &Path, arguments: &[&str]) -> String {
    let output = cluster(folder, arguments);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {}: {complained}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

pub fn json(folder: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&done(folder, &[arguments, &["--json"]].concat())).unwrap()
}

/// A connection, and what is asked on it.
pub struct Client(BufReader<TcpStream>);

impl Client {
    pub fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// A reply of one line.
    pub fn call(&mut self, words: &[&str]) -> std::io::Result<String> {
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        self.0.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        match self.0.read_line(&mut line)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}

impl Client {
    /// As a cluster's clients ask replicas, which may only begin to answer them.
    pub fn of_replica(address: SocketAddr) -> Self {
        let mut client = Self::connect(address).unwrap();
        assert_eq!(client.call(&["READONLY"]).unwrap(), "+OK");
        client
    }

    /// A value.
    pub fn value(&mut self, words: &[&str]) -> String {
        let said = self.call(words).unwrap();
        let Some(len) = said.strip_prefix('$') else { return said };
        let mut value = vec![0; len.parse::<usize>().unwrap() + 2];
        self.0.read_exact(&mut value).unwrap();
        value.truncate(value.len() - 2);
        String::from_utf8(value).unwrap()
    }
}

/// A client of the chain: it goes where it is told to, or to another server where it is told nothing.
pub struct Roaming {
    pub addresses: Vec<SocketAddr>,
    pub at: usize,
    pub client: Option<Client>,
}

impl Roaming {
    pub fn new(addresses: Vec<SocketAddr>) -> Self {
        Self { addresses, at: 0, client: None }
    }

    /// Asks until it is answered, or `until`; `None`: it was not answered.
    pub fn ask(&mut self, words: &[&str], until: Instant) -> Option<String> {
        while Instant::now() < until {
            let client = match &mut self.client {
                Some(client) => Ok(client),
                None => Client::connect(self.addresses[self.at]).map(|client| self.client.insert(client)),
            };
            match client.and_then(|client| client.call(words)) {
                Ok(reply) if !reply.starts_with('-') => return Some(reply),
                Ok(reply) => {
                    let moved = reply.strip_prefix("-MOVED ").and_then(|moved| moved.rsplit_once(' '));
                    let moved = moved.and_then(|(_, address)| address.parse().ok());
                    if let Some(at) = moved.and_then(|to| self.addresses.iter().position(|address| *address == to)) {
                        (self.at, self.client) = (at, None);
                        continue;
                    }
                }
                Err(_) => (self.at, self.client) = ((self.at + 1) % self.addresses.len(), None),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }
}

#[derive(Default)]
pub struct Written {
    pub acknowledged: Vec<String>,
    /// The longest time between two acknowledged writes since this was last asked.
    pub gap: Duration,
}

/// Writes one key after the other, and notes which are acknowledged.
pub struct Writer {
    pub written: Arc<Mutex<Written>>,
    pub over: Arc<AtomicBool>,
    pub task: Option<JoinHandle<()>>,
}

impl Writer {
    pub fn start(addresses: Vec<SocketAddr>) -> Self {
        let (written, over) = (Arc::new(Mutex::new(Written::default())), Arc::new(AtomicBool::new(false)));
        let (notes, ends) = (Arc::clone(&written), Arc::clone(&over));
        let task = std::thread::spawn(move || {
            let (mut client, mut last) = (Roaming::new(addresses), Instant::now());
            for number in 0_u64.. {
                let key = format!("key{number}");
                while client.ask(&["SET", &key, &key], Instant::now() + LEASE).is_none() {
                    if ends.load(Ordering::SeqCst) {
                        return;
                    }
                }
                let mut notes = notes.lock().unwrap();
                notes.acknowledged.push(key);
                notes.gap = notes.gap.max(last.elapsed());
                drop(notes);
                last = Instant::now();
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self { written, over, task: Some(task) }
    }

    /// The longest time without a write since this was last asked.
    pub fn gap(&self) -> Duration {
        // What is under way is counted by what comes after it.
        let before = self.written.lock().unwrap().acknowledged.len();
        soon("writes go on", || self.written.lock().unwrap().acknowledged.len() > before + 1);
        std::mem::take(&mut self.written.lock().unwrap().gap)
    }

    pub fn acknowledged(&self) -> Vec<String> {
        self.written.lock().unwrap().acknowledged.clone()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = self.task.take().map(JoinHandle::join);
    }
}

pub fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "not so: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A ZooKeeper, and servers that are killed when this is dropped.
pub struct Servers {
    pub folder: TempDir,
    pub _zookeeper: ZooKeeper,
    pub running: BTreeMap<u32, Child>,
    /// For clients, and for the other servers.
    pub addresses: BTreeMap<u32, (SocketAddr, SocketAddr)>,
    /// Chains beside the first, with the address of each of their servers for clients.
    pub further: BTreeMap<&'static str, BTreeMap<u32, SocketAddr>>,
    /// Where each server serves int keys by Thrift, of each chain, the first in front; none: it does not.
    pub thrift: BTreeMap<u32, Vec<SocketAddr>>,
}

impl Servers {
    pub fn new(count: u32) -> Self {
        Self::of_chains(count, &[])
    }

    /// Each server has a replica of each of these chains as well.
    pub fn of_chains(count: u32, further: &[&'static str]) -> Self {
        Self::made(count, further, false)
    }

    /// And all serve `users:int` by Thrift, and register below `/data/zdb`.
    pub fn by_thrift(count: u32, further: &[&'static str]) -> Self {
        Self::made(count, further, true)
    }

    fn made(count: u32, further: &[&'static str], by_thrift: bool) -> Self {
        let (folder, zookeeper) = (TempDir::new().unwrap(), ZooKeeper::start());
        configure(folder.path(), &zookeeper);
        let addresses = (1..=count).map(|server| (server, (free(), free()))).collect();
        let own = |chain: &&'static str| (*chain, (1..=count).map(|server| (server, free())).collect());
        let ports = |server| (server, (0..=further.len()).map(|_| free()).collect());
        let thrift = if by_thrift { (1..=count).map(ports).collect() } else { BTreeMap::new() };
        let further = further.iter().map(own).collect();
        let running = BTreeMap::new();
        let mut servers = Self { folder, _zookeeper: zookeeper, running, addresses, further, thrift };
        (1..=count).for_each(|server| servers.start(server));
        servers
    }

    pub fn start(&mut self, server: u32) {
        let (clients, peers) = self.addresses[&server];
        let thrift = self.thrift.get(&server).map_or(&[][..], Vec::as_slice);
        let (location, number) = (format!("d{server}?size=64m&segment=1m"), server.to_string());
        let log = File::options().create(true).append(true).open(self.folder.path().join(format!("log{server}")));
        std::fs::write(
            self.folder.path().join(format!("s{server}.toml")),
            format!(
                "{}server_id = {number}\npeer_listen = '{peers}'\n",
                std::fs::read_to_string(self.folder.path().join("esker.toml")).unwrap()
            ),
        )
        .unwrap();
        let mut child = command(self.folder.path())
            .env("ESKER_CONFIG", format!("s{server}.toml"))
            .args(["serve", "--store", &location, "--listen", &clients.to_string(), "--log", "info", "--threads", "2"])
            .args(thrift.first().into_iter().flat_map(|address| {
                let address = format!("--thrift={address}");
                [&address, "--thrift-namespace=users:int", "--thrift-registry=/data/zdb"].map(str::to_owned)
            }))
            .args(self.further.iter().enumerate().map(|(at, (chain, addresses))| {
                let (size, listen) = ("size=64m&segment=1m", addresses[&server]);
                let thrift = thrift.get(at + 1).map_or(String::new(), |address| format!(",thrift={address}"));
                format!("--replica=chain={chain},store={chain}{server}?{size},listen={listen}{thrift}")
            }))
            .stdout(Stdio::piped())
            .stderr(log.unwrap())
            .spawn()
            .unwrap();
        // It prints until it ends.
        let mut printed = child.stdout.take().unwrap();
        std::thread::spawn(move || printed.read_to_end(&mut Vec::new()));
        self.running.insert(server, child);
    }

    pub fn kill(&mut self, server: u32) {
        let mut child = self.running.remove(&server).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.values().map(|(clients, _)| *clients).collect()
    }

    pub fn done(&self, arguments: &[&str]) -> String {
        done(self.folder.path(), arguments)
    }

    pub fn status(&self) -> Value {
        json(self.folder.path(), &["status"])
    }

    /// Waits until these serve, and no others.
    pub fn serve(&self, servers: &[u64]) {
        self.serve_in("main", servers);
    }

    /// The same, in a chain.
    pub fn serve_in(&self, chain: &str, servers: &[u64]) {
        let mut last = Value::Null;
        let began = Instant::now();
        loop {
            let status = json(self.folder.path(), &["--chain", chain, "status"]);
            let rows = status["servers"].as_array().unwrap();
            let mut serving: Vec<_> = rows.iter().filter(|row| row["place"] == "serving").collect();
            serving.sort_by_key(|row| row["server"].as_u64());
            if serving.iter().map(|row| row["server"].as_u64().unwrap()).eq(servers.iter().copied()) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{servers:?} should serve {chain}: {last:#}");
            last = status;
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn head(&self) -> u64 {
        self.status()["head"].as_u64().unwrap()
    }

    /// In which version of the table a server came to stand as it does.
    pub fn since(&self, server: u32) -> Option<u64> {
        let status = self.status();
        status["servers"].as_array().unwrap().iter().find(|row| row["server"] == server)?["since"].as_u64()
    }

    /// Has every key that was acknowledged, by what the head says.
    pub fn have_all(&self, writer: &Writer, after: &str) {
        let keys = writer.acknowledged();
        let mut client = Roaming::new(self.addresses());
        for keys in keys.chunks(ASKED) {
            let words: Vec<_> = std::iter::once("EXISTS").chain(keys.iter().map(String::as_str)).collect();
            let reply = client.ask(&words, Instant::now() + PATIENCE).unwrap();
            assert_eq!(reply, format!(":{}", keys.len()), "after {after}, of {} from {}", keys.len(), keys[0]);
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for server in self.addresses.keys() {
                let log = std::fs::read_to_string(self.folder.path().join(format!("log{server}"))).unwrap_or_default();
                let last: Vec<_> = log.lines().rev().take(30).collect();
                eprintln!("server {server}:\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n"));
            }
        }
        for child in self.running.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

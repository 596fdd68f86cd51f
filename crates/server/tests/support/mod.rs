//! A server in this process and a client that sees raw replies, for the tests of this folder.
//!
//! Invariant: every reply that the client reads is decoded by the `redis-protocol` crate as well, which knows nothing
//! of our writer.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod by_thrift;
pub mod two;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use esker_kv::{Clock, Kv, SystemClock};
use esker_memory::MemoryStore;
use esker_server::resp::{Address, Config, EngineInfo, Handle, NoEngineInfo, Server};
use esker_store::ObjectStore;

/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A running server, stopped when dropped.
pub struct Running {
    pub addresses: Vec<Address>,
    pub handle: Handle,
    pub store: Arc<MemoryStore>,
    thread: Option<JoinHandle<esker_server::resp::Result<()>>>,
}

/// A configuration for tests: any free port of loopback.
pub fn config() -> Config {
    Config { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], threads: 2, ..Config::default() }
}

impl Running {
    pub fn start(config: Config) -> Self {
        Self::start_on(Arc::new(MemoryStore::new()), config, Arc::new(SystemClock), Arc::new(NoEngineInfo))
    }

    pub fn start_on(store: Arc<MemoryStore>, config: Config, clock: Arc<dyn Clock>, info: Arc<dyn EngineInfo>) -> Self {
        Self::start_over(Arc::clone(&store), store, config, clock, info)
    }

    /// On a store that stands around another.
    pub fn start_over(
        store: Arc<MemoryStore>,
        seen: Arc<dyn ObjectStore>,
        config: Config,
        clock: Arc<dyn Clock>,
        info: Arc<dyn EngineInfo>,
    ) -> Self {
        let kv = Kv::open(seen, clock).unwrap();
        let server = Server::bind(config, kv, info).unwrap();
        let (addresses, handle) = (server.addresses().to_vec(), server.handle());
        let thread = Some(std::thread::spawn(move || server.run()));
        Self { addresses, handle, store, thread }
    }

    /// The first plain TCP address.
    pub fn address(&self) -> SocketAddr {
        self.addresses
            .iter()
            .find_map(|address| if let Address::Tcp(tcp) = address { Some(*tcp) } else { None })
            .unwrap()
    }

    pub fn client(&self) -> Client<TcpStream> {
        Client::connect(self.address())
    }

    /// Waits until the server has ended by itself.
    pub fn join(mut self) -> Arc<MemoryStore> {
        self.thread.take().unwrap().join().unwrap().unwrap();
        Arc::clone(&self.store)
    }

    /// Stops it and returns its store.
    pub fn stop(self) -> Arc<MemoryStore> {
        self.handle.shutdown();
        self.join()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.shutdown();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap().unwrap();
            }
        }
    }
}

/// A client of any stream.
pub struct Client<S> {
    pub stream: S,
    buffer: Vec<u8>,
    pub resp3: bool,
    /// Not this project's server: its replies are not held against the crate.
    pub foreign: bool,
}

impl Client<TcpStream> {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self::over(stream)
    }
}

/// A command as clients send it.
pub fn encode<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend_from_slice(format!("${}\r\n", arg.as_ref().len()).as_bytes());
        bytes.extend_from_slice(arg.as_ref());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl<S: Read + Write> Client<S> {
    pub fn over(stream: S) -> Self {
        Self { stream, buffer: Vec::new(), resp3: false, foreign: false }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
        self.stream.flush().unwrap();
    }

    /// The next reply, raw; `None` if the connection has ended.
    pub fn reply(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(len) = frame_len(&self.buffer) {
                let reply: Vec<u8> = self.buffer.drain(..len).collect();
                self.check_with_crate(&reply);
                return Some(reply);
            }
            let mut chunk = [0; 65_536];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(len) => self.buffer.extend_from_slice(&chunk[..len]),
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                    return None;
                }
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return None,
                Err(error) => panic!("no reply: {error}; have {}", self.buffer.escape_ascii()),
            }
        }
    }

    fn check_with_crate(&self, reply: &[u8]) {
        if self.foreign {
            return;
        }
        let decoded = if self.resp3 {
            redis_protocol::resp3::decode::complete::decode(reply).map(|found| found.map(|(_, len)| len))
        } else {
            redis_protocol::resp2::decode::decode(reply).map(|found| found.map(|(_, len)| len))
        };
        assert_eq!(decoded.unwrap(), Some(reply.len()), "redis-protocol disagrees on {}", reply.escape_ascii());
    }

    /// Sends a command and returns its reply, raw.
    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Vec<u8> {
        self.send(&encode(args));
        if args.first().is_some_and(|name| name.as_ref().eq_ignore_ascii_case(b"hello")) && args.len() > 1 {
            self.resp3 = args[1].as_ref() == b"3";
        }
        self.reply().unwrap_or_else(|| panic!("disconnected by {}", encode(args).escape_ascii()))
    }

    /// As [`Client::call`], split at blanks, the reply as text.
    pub fn run(&mut self, line: &str) -> String {
        let args: Vec<&str> = line.split_whitespace().collect();
        String::from_utf8_lossy(&self.call(&args)).into_owned()
    }

    /// Checks one command and its reply.
    pub fn check(&mut self, line: &str, expected: &str) {
        assert_eq!(self.run(line), expected, "{line}");
    }

    /// Asserts that the server ends the connection, perhaps after some replies, which are returned.
    pub fn expect_end(&mut self) -> Vec<u8> {
        let started = Instant::now();
        let mut rest = Vec::new();
        while let Some(reply) = self.reply() {
            rest.extend(reply);
            assert!(started.elapsed() < PATIENCE, "the connection goes on");
        }
        rest
    }
}

/// Length of the reply at the start of `bytes`, if it is whole.
pub fn frame_len(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let number = || std::str::from_utf8(&bytes[1..line]).unwrap().parse::<i64>().unwrap();
    let mut at = line + 2;
    match bytes[0] {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => Some(at),
        b'$' | b'=' | b'!' => {
            let len = number();
            if len >= 0 {
                at += len as usize + 2;
            }
            (bytes.len() >= at).then_some(at)
        }
        kind @ (b'*' | b'%' | b'~' | b'>') => {
            let elements = number().max(0) * if kind == b'%' { 2 } else { 1 };
            for _ in 0..elements {
                at += frame_len(bytes.get(at..)?)?;
            }
            Some(at)
        }
        other => panic!("no reply begins with {:?}: {}", char::from(other), bytes.escape_ascii()),
    }
}

/// The elements of an array, set or map, raw; a map's key and value are one element each.
pub fn elements(reply: &[u8]) -> Vec<Vec<u8>> {
    let mut at = reply.windows(2).position(|pair| pair == b"\r\n").unwrap() + 2;
    let mut found = Vec::new();
    while at < reply.len() {
        let len = frame_len(&reply[at..]).unwrap();
        found.push(reply[at..at + len].to_vec());
        at += len;
    }
    found
}

/// Waits until `done` says so.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

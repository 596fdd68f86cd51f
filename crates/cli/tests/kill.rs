//! kill -9 of the real server under load: every acknowledged write is there afterwards, with the right value.
//!
//! `ESKER_KILL_ROUNDS` sets the rounds (3 by default), `ESKER_KILL_CLIENTS` the clients (32).

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const KEYS_PER_CLIENT: u64 = 40;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts the server and waits until it answers; also how long that took.
    fn start(store: &std::path::Path) -> (Self, Duration) {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let began = Instant::now();
        let child = Command::new(env!("CARGO_BIN_EXE_esker"))
            .args(["serve", "--store"])
            .arg(store)
            .args(["--listen", &address.to_string(), "--threads", "2"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { child, address };
        while Client::connect(address).and_then(|mut client| client.call(&[b"PING"])).as_deref() != Some(b"+PONG") {
            assert!(began.elapsed() < Duration::from_secs(60), "the server does not answer");
            std::thread::sleep(Duration::from_millis(2));
        }
        (server, began.elapsed())
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(address: SocketAddr) -> Option<Self> {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_nodelay(true).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
        Some(Self(BufReader::new(stream)))
    }

    /// Sends a command; the reply, or `None` once the server is gone.
    fn call(&mut self, words: &[&[u8]]) -> Option<Vec<u8>> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&request).ok()?;
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).ok().filter(|len| *len > 0)?;
        if line[0] != b'$' || line.starts_with(b"$-1") {
            return line.ends_with(b"\r\n").then(|| line[..line.len() - 2].to_vec());
        }
        let len: usize = std::str::from_utf8(&line[1..line.len() - 2]).unwrap().parse().unwrap();
        let mut value = vec![0; len + 2];
        self.0.read_exact(&mut value).ok()?;
        value.truncate(len);
        Some(value)
    }
}

/// The value that version `version` of a key has: the version, then bytes that follow from both.
fn value(client: u64, key: u64, version: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(client << 40 ^ key << 32 ^ version);
    let mut value = format!("{version}:").into_bytes();
    let len = rng.usize(0..if version.is_multiple_of(50) { 20_000 } else { 300 });
    value.extend(std::iter::repeat_with(|| rng.u8(..)).take(len));
    value
}

/// Versions of each key of a client: the last acknowledged, and the last sent.
type Versions = Vec<(u64, u64)>;

fn load(address: SocketAddr, client: u64, mut versions: Versions, stop: &AtomicBool) -> Versions {
    let mut rng = fastrand::Rng::with_seed(client ^ versions[0].1);
    let Some(mut connection) = Client::connect(address) else { return versions };
    while !stop.load(Ordering::Relaxed) {
        let key = rng.u64(0..KEYS_PER_CLIENT);
        let version = versions[key as usize].1 + 1;
        versions[key as usize].1 = version;
        let name = format!("client{client}:key{key}");
        match connection.call(&[b"SET", name.as_bytes(), &value(client, key, version)]) {
            Some(reply) => {
                assert_eq!(reply, b"+OK", "{}", reply.escape_ascii());
                versions[key as usize].0 = version;
            }
            None => break,
        }
    }
    versions
}

/// Checks every key, and takes what is found as the new truth.
fn verify(address: SocketAddr, client: u64, versions: &mut Versions) -> u64 {
    let mut connection = Client::connect(address).unwrap();
    let mut found_keys = 0;
    for (key, (acknowledged, sent)) in versions.iter_mut().enumerate() {
        let key = key as u64;
        let found = connection.call(&[b"GET", format!("client{client}:key{key}").as_bytes()]).unwrap();
        if found == b"$-1" {
            assert_eq!(
                *acknowledged, 0,
                "client {client} key {key}: version {acknowledged} was acknowledged and is gone"
            );
            continue;
        }
        let version: u64 = String::from_utf8_lossy(found.split(|byte| *byte == b':').next().unwrap()).parse().unwrap();
        assert!(
            (*acknowledged..=*sent).contains(&version),
            "client {client} key {key}: version {version} found, {acknowledged} acknowledged, {sent} sent"
        );
        assert!(found == value(client, key, version), "client {client} key {key}: wrong value of version {version}");
        (*acknowledged, *sent) = (version, version);
        found_keys += 1;
    }
    found_keys
}

#[test]
fn acknowledged_writes_survive_kill_9_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let (rounds, clients) = (setting("ESKER_KILL_ROUNDS", 3), setting("ESKER_KILL_CLIENTS", 32));
    let mut all: Vec<Versions> = vec![vec![(0, 0); KEYS_PER_CLIENT as usize]; clients as usize];
    let mut restarts = Vec::new();
    let mut rng = fastrand::Rng::with_seed(9);
    for round in 0..rounds {
        let (server, _) = Server::start(&store);
        let address = server.address;
        let stop = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..clients)
            .map(|client| {
                let (versions, stop) = (all[client as usize].clone(), Arc::clone(&stop));
                std::thread::spawn(move || load(address, client, versions, &stop))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(rng.u64(100..700)));
        server.kill();
        stop.store(true, Ordering::Relaxed);
        all = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let acknowledged: u64 = all.iter().flatten().map(|(acknowledged, _)| acknowledged).sum();
        let (server, restart) = Server::start(&store);
        let found: u64 = (0..clients).map(|client| verify(server.address, client, &mut all[client as usize])).sum();
        println!(
            "round {round}: {acknowledged} versions acknowledged so far, {found} keys verified, restarted in {restart:?}"
        );
        restarts.push(restart);
        server.kill();
    }
    restarts.sort();
    println!(
        "{rounds} rounds of kill -9 under {clients} clients; restart: median {:?}, longest {:?}",
        restarts[restarts.len() / 2],
        restarts[restarts.len() - 1]
    );
    assert!(all.iter().flatten().any(|(acknowledged, _)| *acknowledged > 0), "nothing was ever acknowledged");
}

//! Connections to a server that does not head its chain: their bytes are passed on to the one that does.
//!
//! client → this server's address → connection to the same protocol of the head → bytes, both ways → one closes
//!
//! So clients of NBD, gRPC and Thrift need one address, and reach the head through any server: when the head changes
//! their connection ends, and they make another.
//!
//! Invariants:
//! 1. Who the client is, the head finds out: bytes are passed on as they are, TLS included.
//! 2. Connections are bounded, and end with the relay.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// So many connections are passed on for one protocol at a time; others are closed.
const CONNECTIONS_MAX: usize = 256;
/// New connections are looked for so often.
const LOOK: Duration = Duration::from_millis(5);
/// How long the head may take to answer, and a client waits for there to be one.
const CONNECT: Duration = Duration::from_secs(3);

/// Where the head serves a protocol now, as `HOST:PORT`.
pub type Head = Arc<dyn Fn() -> Option<String> + Send + Sync>;

#[derive(Default)]
struct Open {
    next: AtomicU64,
    /// Both ends of each connection.
    streams: Mutex<HashMap<u64, Vec<TcpStream>>>,
    ended: AtomicBool,
}

/// Passes connections on until it is dropped.
pub struct Relay {
    open: Arc<Open>,
    accepting: Option<JoinHandle<()>>,
}

impl Relay {
    /// Takes connections of this socket, which does not block.
    ///
    /// # Errors
    /// Those of the system.
    pub fn start(what: &'static str, listener: TcpListener, head: Head) -> io::Result<Self> {
        let open = Arc::new(Open::default());
        let own = Arc::clone(&open);
        let accepting = std::thread::Builder::new().name("esker-relay".into()).spawn(move || {
            while !own.ended.load(Ordering::SeqCst) {
                match listener.accept() {
                    Ok((client, _)) => pass_on(what, client, &head, &own),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(LOOK),
                    Err(error) => {
                        tracing::debug!(%error, "cannot accept; trying again soon");
                        std::thread::sleep(LOOK * 20);
                    }
                }
            }
        })?;
        Ok(Self { open, accepting: Some(accepting) })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.open.ended.store(true, Ordering::SeqCst);
        if let Some(accepting) = self.accepting.take()
            && accepting.join().is_err()
        {
            tracing::error!("the thread of a relay panicked");
        }
        for (_, streams) in self.open.streams.lock().drain() {
            close(&streams);
        }
    }
}

fn close(streams: &[TcpStream]) {
    for stream in streams {
        // It may be closed already.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Connects to the head in a thread of its own, and passes bytes on.
fn pass_on(what: &'static str, client: TcpStream, head: &Head, open: &Arc<Open>) {
    let number = open.next.fetch_add(1, Ordering::Relaxed);
    let Ok(end) = client.try_clone() else { return };
    {
        let mut streams = open.streams.lock();
        if streams.len() >= CONNECTIONS_MAX {
            tracing::warn!(what, max = CONNECTIONS_MAX, "a connection is refused: too many are passed on to the head");
            return;
        }
        streams.insert(number, vec![end]);
    }
    let (head, own) = (Arc::clone(head), Arc::clone(open));
    let spawned = std::thread::Builder::new().name("esker-relay-one".into()).spawn(move || {
        if let Err(error) = relay(&client, &head, &own, number) {
            tracing::debug!(what, %error, "a connection that was passed on to the head has ended");
        }
        if let Some(streams) = own.streams.lock().remove(&number) {
            close(&streams);
        }
    });
    if spawned.is_err() {
        open.streams.lock().remove(&number);
    }
}

fn relay(client: &TcpStream, head: &Head, open: &Open, number: u64) -> io::Result<()> {
    let server = connect(head, open)?;
    for stream in [client, &server] {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
    }
    match open.streams.lock().get_mut(&number) {
        Some(streams) => streams.push(server.try_clone()?),
        None => return Ok(()),
    }
    std::thread::scope(|scope| {
        scope.spawn(|| copy(client, &server));
        copy(&server, client);
    });
    Ok(())
}

/// Bytes one way; their end is told on.
fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    let copied = io::copy(&mut from, &mut to);
    // Where one way has failed the other is over as well.
    let how = if copied.is_ok() { Shutdown::Write } else { Shutdown::Both };
    let _ = to.shutdown(how);
    if copied.is_err() {
        let _ = from.shutdown(Shutdown::Both);
    }
}

fn connect(head: &Head, open: &Open) -> io::Result<TcpStream> {
    let until = Instant::now() + CONNECT;
    loop {
        let tried = match head() {
            Some(address) => address
                .to_socket_addrs()?
                .next()
                .ok_or_else(|| io::Error::from(ErrorKind::NotFound))
                .and_then(|address| TcpStream::connect_timeout(&address, CONNECT)),
            None => Err(io::Error::new(ErrorKind::NotConnected, "the chain has no head that serves this")),
        };
        match tried {
            Ok(stream) => return Ok(stream),
            Err(error) if open.ended.load(Ordering::SeqCst) || Instant::now() >= until => return Err(error),
            Err(_) => std::thread::sleep(LOOK * 10),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    fn listener() -> TcpListener {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    }

    #[test]
    fn bytes_go_both_ways_until_an_end_closes_or_the_relay_ends() {
        let head = TcpListener::bind("127.0.0.1:0").unwrap();
        let (own, at) = (listener(), head.local_addr().unwrap().to_string());
        let address = own.local_addr().unwrap();
        let relay = Relay::start("test", own, Arc::new(move || Some(at.clone()))).unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"question").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let (mut served, _) = head.accept().unwrap();
        let mut asked = String::new();
        served.read_to_string(&mut asked).unwrap();
        served.write_all(b"answer").unwrap();
        drop(served);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!((asked.as_str(), answer.as_str()), ("question", "answer"));

        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"x").unwrap();
        let (mut served, _) = head.accept().unwrap();
        served.read_exact(&mut [0]).unwrap();
        drop(relay);
        assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
        assert!(matches!(served.read(&mut [0]), Ok(0) | Err(_)));
    }

    #[test]
    fn a_connection_waits_for_a_head() {
        let head = TcpListener::bind("127.0.0.1:0").unwrap();
        let (own, at) = (listener(), head.local_addr().unwrap().to_string());
        let address = own.local_addr().unwrap();
        let known = Arc::new(AtomicBool::new(false));
        let is_known = Arc::clone(&known);
        let found: Head = Arc::new(move || is_known.load(Ordering::SeqCst).then(|| at.clone()));
        let _relay = Relay::start("test", own, found).unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"x").unwrap();
        std::thread::sleep(Duration::from_millis(100));
        known.store(true, Ordering::SeqCst);
        head.accept().unwrap().0.read_exact(&mut [0]).unwrap();
    }
}

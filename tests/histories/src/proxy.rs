//! A network that loses answers: connections go through a port of this program, which sometimes ends one when an
//! answer comes.
//!
//! client → [`Proxy`] → server · answer (an HTTP/2 frame of headers): forwarded, or late, or lost with its connection,
//! before its first byte or in the middle
//!
//! Invariant: bytes of a connection come in order and unchanged, or not at all.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::terms::Failure;

const CONNECT: Duration = Duration::from_secs(1);
/// Of so many answers one is lost or late.
const ANSWERS: u32 = 150;
/// The longest that an answer is late, in milliseconds.
const LATE_MS_MAX: u64 = 200;
/// Bytes of the head of an HTTP/2 frame, and the kind of frames that an answer begins with.
const FRAME_HEAD: usize = 9;
const HEADERS: u8 = 1;
const DATA: u8 = 0;

struct Shared {
    target: SocketAddr,
    seed: u64,
    /// Nothing is done to answers any more.
    calm: AtomicBool,
    /// Both ends of each connection, by its number.
    open: Mutex<HashMap<u64, [TcpStream; 2]>>,
    connections: AtomicU64,
    dropped: AtomicU64,
    late: AtomicU64,
}

/// A port that forwards. It does so until the program ends.
#[derive(Clone)]
pub struct Proxy {
    /// Where it is reached.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

/// What is done to an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Forward,
    /// It comes after so many milliseconds.
    Late(u64),
    /// Nothing of it comes.
    Lost,
    /// Its first part comes.
    Cut,
}

impl Proxy {
    /// A port that leads to `target`.
    pub fn new(target: SocketAddr, seed: u64) -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let shared = Shared {
            target,
            seed,
            calm: AtomicBool::new(false),
            open: Mutex::default(),
            connections: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            late: AtomicU64::new(0),
        };
        let proxy = Self { address: listener.local_addr()?, shared: Arc::new(shared) };
        let accepting = proxy.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let proxy = accepting.clone();
                // Who cannot be forwarded is not: the client sees its connection end.
                std::thread::spawn(move || proxy.forward(client));
            }
        });
        Ok(proxy)
    }

    /// Answers that were lost, and answers that were late.
    pub fn done(&self) -> (u64, u64) {
        (self.shared.dropped.load(Ordering::Relaxed), self.shared.late.load(Ordering::Relaxed))
    }

    /// Does nothing to answers from now on.
    pub fn calm_down(&self) {
        self.shared.calm.store(true, Ordering::Relaxed);
    }

    /// Ends all connections.
    pub fn cut(&self) {
        self.open().values().flatten().for_each(end);
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, [TcpStream; 2]>> {
        self.shared.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forward(&self, client: TcpStream) -> std::io::Result<()> {
        let server = TcpStream::connect_timeout(&self.shared.target, CONNECT)?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
        }
        let number = self.shared.connections.fetch_add(1, Ordering::Relaxed);
        let rng = fastrand::Rng::with_seed(self.shared.seed.wrapping_mul(1_000_003).wrapping_add(number));
        let (proxy, back) = (self.clone(), [server.try_clone()?, client.try_clone()?]);
        self.open().insert(number, [client.try_clone()?, server.try_clone()?]);
        let answering = std::thread::spawn(move || {
            // However it ends, the connection does.
            let _ = proxy.answers(&back[0], &back[1], rng);
            back.iter().for_each(end);
        });
        let (mut from, mut to) = (&client, &server);
        let copied = std::io::copy(&mut from, &mut to);
        [&client, &server].into_iter().for_each(end);
        // Neither side has the connection any more when both ways have ended: one that still writes to it is told.
        let _ = answering.join();
        self.open().remove(&number);
        copied.map(drop)
    }

    fn fate(&self, rng: &mut fastrand::Rng) -> Fate {
        if self.shared.calm.load(Ordering::Relaxed) || rng.u32(0..ANSWERS) > 0 {
            return Fate::Forward;
        }
        match rng.u8(0..4) {
            0 | 1 => Fate::Lost,
            2 => Fate::Cut,
            _ => Fate::Late(rng.u64(1..=LATE_MS_MAX)),
        }
    }

    /// Forwards answers frame by frame, until one is lost or a side ends the connection.
    fn answers(&self, mut server: &TcpStream, mut client: &TcpStream, mut rng: fastrand::Rng) -> std::io::Result<()> {
        let (mut waiting, mut buffer, mut cut) = (Vec::new(), vec![0; 64 << 10], false);
        loop {
            let read = server.read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            waiting.extend_from_slice(&buffer[..read]);
            let mut at = 0;
            while let Some(frame) = frame(&waiting[at..]) {
                at += frame.len();
                if cut && frame[3] == DATA {
                    // Half a frame of data, and then the end.
                    return client.write_all(&frame[..frame.len() / 2]);
                }
                if frame[3] == HEADERS && !cut {
                    match self.fate(&mut rng) {
                        Fate::Forward => {}
                        Fate::Late(ms) => {
                            self.shared.late.fetch_add(1, Ordering::Relaxed);
                            std::thread::sleep(Duration::from_millis(ms));
                        }
                        Fate::Lost => {
                            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
                            return Ok(());
                        }
                        Fate::Cut => {
                            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
                            cut = true;
                        }
                    }
                }
                client.write_all(frame)?;
            }
            waiting.drain(..at);
        }
    }
}

/// Ends a connection, if it has not ended.
fn end(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}

/// The first frame, if all of it is there.
fn frame(bytes: &[u8]) -> Option<&[u8]> {
    let head = bytes.get(..FRAME_HEAD)?;
    let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    bytes.get(..FRAME_HEAD + len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_one_when_all_of_it_is_there() {
        let bytes = [0, 0, 3, HEADERS, 4, 0, 0, 0, 1, 7, 8, 9, 0];
        for end in 0..12 {
            assert_eq!(frame(&bytes[..end]), None, "{end} bytes");
        }
        assert_eq!(frame(&bytes), Some(&bytes[..12]));
    }

    #[test]
    fn answers_come_unchanged_until_one_is_lost() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy::new(server.local_addr().unwrap(), 1).unwrap();
        let answer =
            [&[0, 0, 2, HEADERS, 4, 0, 0, 0, 1, 5, 6][..], &[0, 0, 4, DATA, 0, 0, 0, 0, 1, 1, 2, 3, 4]].concat();
        let mut client = TcpStream::connect(proxy.address).unwrap();
        let (mut asked, _) = server.accept().unwrap();
        client.write_all(b"ask").unwrap();
        let mut question = [0; 3];
        asked.read_exact(&mut question).unwrap();
        assert_eq!(&question, b"ask");
        let sender = std::thread::spawn({
            let answer = answer.clone();
            move || while asked.write_all(&answer).is_ok() {}
        });
        let mut got = Vec::new();
        // It ends by a loss, and a reset is an end too.
        let _ = client.read_to_end(&mut got);
        sender.join().unwrap();
        assert!(proxy.done().0 > 0, "an answer was lost");
        let whole: Vec<u8> = answer.iter().copied().cycle().take(got.len()).collect();
        assert_eq!(got, whole);
    }
}

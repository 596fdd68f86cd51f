//! Target `thrift`: calls in all protocols, damaged; the codec alone, whole and in pieces, and a server over loopback.
//!
//! Invariants:
//! 1. The codec returns, and says the same of a stream however it is cut.
//! 2. It never asks for more than a message may have, and takes no more than it was given.
//! 3. A server closes the connection of a stream that ended, and goes on serving others.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use esker_kv::{Kind, Kv, SystemClock};
use esker_server::thrift::{Address, Config, Decoded, Decoder, MESSAGE_BYTES_MAX, Message, Server, Unreadable};

use crate::Target;
use crate::mutate::mutate;

/// Methods, with the fields that each has: `t`ext, `l`ist of texts, `p`airs, `n`umber.
const METHODS: [(&str, &str); 16] = [
    ("get", "t"),
    ("multiGet", "l"),
    ("remove", "t"),
    ("put", "tt"),
    ("multiPut", "p"),
    ("has", "t"),
    ("add", "tt"),
    ("update", "tt"),
    ("compareAndSet", "ttt"),
    ("removeMany", "l"),
    ("iterate", "tn"),
    ("iterateInserted", "tn"),
    ("count", ""),
    ("mode", ""),
    ("setMode", "n"),
    ("none", "tn"),
];

pub struct Thrift {
    addresses: [std::net::SocketAddr; 2],
}

impl Thrift {
    pub fn new() -> Self {
        let addresses = [Kind::Bytes, Kind::Int].map(|kind| {
            let store = Arc::new(esker_memory::MemoryStore::new());
            let kv = Kv::open(store, Arc::new(SystemClock)).expect("a store in memory opens");
            let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], kind, ..Config::default() };
            let server = Server::bind(config, kv, None).expect("loopback can be listened on");
            let Address::Tcp(address) = server.addresses()[0] else { panic!("TCP was asked for") };
            std::thread::spawn(move || server.run());
            address
        });
        Self { addresses }
    }

    /// Sends a stream and reads until the server hangs up.
    fn converse(&self, stream: &[u8]) {
        let address = self.addresses[stream.len() % 2];
        let mut socket = TcpStream::connect(address).expect("the server takes connections");
        socket.set_read_timeout(Some(Duration::from_secs(8))).expect("a time limit");
        socket.set_write_timeout(Some(Duration::from_secs(8))).expect("a time limit");
        let mut answers = Vec::new();
        // The server may hang up in the middle of it.
        if socket.write_all(stream).is_ok() {
            let _ = socket.shutdown(Shutdown::Write);
        }
        if let Err(error) = socket.read_to_end(&mut answers)
            && matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
        {
            panic!("the server neither answers nor hangs up")
        }
    }
}

/// What a message is: kind, number, bytes, name.
type Seen = (u8, i32, usize, Vec<u8>);

fn seen(message: &Message, input: &[u8]) -> Seen {
    (message.kind as u8, message.sequence, message.len, message.method(input).to_vec())
}

/// The messages of a stream that comes in pieces of so many bytes, and what is wrong behind them, if something is.
fn decoded(input: &[u8], piece: usize) -> (Vec<Seen>, Option<Unreadable>) {
    let (mut decoder, mut messages) = (Decoder::new(), Vec::new());
    let (mut start, mut end) = (0, piece.min(input.len()));
    loop {
        match decoder.next(&input[start..end]) {
            Ok(Decoded::Message(message)) => {
                assert!((1..=end - start).contains(&message.len), "it takes what it was not given");
                messages.push(seen(&message, &input[start..end]));
                start += message.len;
            }
            Ok(Decoded::Busy) => {}
            Ok(Decoded::Nothing(len)) => {
                assert!((1..=end - start).contains(&len), "it takes what it was not given");
                start += len;
            }
            Ok(Decoded::More(more)) => {
                assert!((1..=MESSAGE_BYTES_MAX + 4).contains(&more), "{more} bytes more");
                if end == input.len() {
                    return (messages, None);
                }
                end = (end + piece).min(input.len());
            }
            Err(malformed) => return (messages, Some(malformed)),
        }
    }
}

struct Builder<'r> {
    out: Vec<u8>,
    compact: bool,
    random: &'r mut fastrand::Rng,
}

impl Builder<'_> {
    fn len(&mut self, len: usize) {
        if self.compact {
            // Two bytes do for what is made here.
            let low = len as u8 & 0x7f;
            let more = len >= 0x80;
            self.out.push(low | u8::from(more) << 7);
            if more {
                self.out.push((len >> 7) as u8);
            }
        } else {
            self.out.extend((len as u32).to_be_bytes());
        }
    }

    fn text(&mut self) {
        let text = match self.random.u8(0..4) {
            0 => self.random.u16(..).to_string().into_bytes(),
            1 => b"key".to_vec(),
            2 => vec![b'i'; 17],
            _ => vec![b'x'; self.random.usize(0..200)],
        };
        self.len(text.len());
        self.out.extend(text);
    }

    fn field(&mut self, binary: u8, compact: u8, id: u8) {
        if self.compact {
            self.out.push(1 << 4 | compact);
        } else {
            self.out.extend([binary, 0, id]);
        }
    }

    fn elements(&mut self, binary: u8, compact: u8) -> usize {
        let count = self.random.usize(0..10);
        if self.compact {
            self.out.push((count as u8) << 4 | compact);
        } else {
            self.out.push(binary);
            self.len(count);
        }
        count
    }

    fn fields(&mut self, kinds: &str) {
        for (at, kind) in kinds.bytes().enumerate() {
            let id = at as u8 + 1;
            match kind {
                b't' => {
                    self.field(11, 8, id);
                    self.text();
                }
                b'n' => {
                    self.field(8, 5, id);
                    let number = self.random.u8(0..64);
                    if self.compact {
                        self.out.push(number);
                    } else {
                        self.out.extend(i32::from(number).to_be_bytes());
                    }
                }
                b'l' => {
                    self.field(15, 9, id);
                    for _ in 0..self.elements(11, 8) {
                        self.text();
                    }
                }
                _ => {
                    self.field(15, 9, id);
                    for _ in 0..self.elements(12, 12) {
                        self.fields("tt");
                    }
                }
            }
        }
        self.out.push(0);
    }
}

/// A call in one of the three protocols.
fn call(dialect: u8, random: &mut fastrand::Rng) -> Vec<u8> {
    let (method, fields) = METHODS[random.usize(0..METHODS.len())];
    let kind = if random.u8(0..8) == 0 { 4 } else { 1 };
    let mut builder = Builder { out: Vec::new(), compact: dialect == 2, random };
    match dialect {
        0 => {
            builder.out.extend([0x80, 1, 0, kind]);
            builder.len(method.len());
            builder.out.extend(method.as_bytes());
            builder.out.extend([0, 0, 0, 1]);
        }
        1 => {
            builder.len(method.len());
            builder.out.extend(method.as_bytes());
            builder.out.extend([kind, 0, 0, 0, 1]);
        }
        _ => {
            builder.out.extend([0x82, kind << 5 | 1, 1]);
            builder.len(method.len());
            builder.out.extend(method.as_bytes());
        }
    }
    builder.fields(fields);
    builder.out
}

/// The error without what depends on how much had come: of a protocol that is not served, the bytes after the first.
fn alike(mut error: Unreadable) -> Unreadable {
    if let Unreadable::NoThrift { first } = &mut error {
        first[1..].fill(0);
    }
    error
}

impl Target for Thrift {
    fn input(&mut self, random: &mut fastrand::Rng) -> Vec<u8> {
        let (dialect, framed) = (random.u8(0..3), random.bool());
        let mut stream = Vec::new();
        for _ in 0..random.usize(1..6) {
            let mut message = call(dialect, random);
            if framed && random.u8(0..8) == 0 {
                message.extend(call(dialect, random));
            }
            if framed {
                stream.extend((message.len() as u32).to_be_bytes());
            }
            stream.extend(message);
        }
        if random.u8(0..8) != 0 {
            mutate(&mut stream, random);
        }
        stream
    }

    fn run(&mut self, input: &[u8]) -> bool {
        let (messages, malformed) = decoded(input, input.len().max(1));
        for piece in [1, 7] {
            if input.len() / piece <= 1 << 16 {
                let pieces = decoded(input, piece);
                assert_eq!(
                    (pieces.0, pieces.1.map(alike)),
                    (messages.clone(), malformed.map(alike)),
                    "in pieces of {piece}"
                );
            }
        }
        // One in some: sockets are much slower than the codec.
        if input.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)) % 8 == 0 {
            self.converse(input);
        }
        malformed.is_none() && !messages.is_empty()
    }
}

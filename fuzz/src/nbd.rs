//! Target `nbd`: a server of a disk in memory, fed damaged negotiations and requests over a socket pair's worth of
//! loopback.
//!
//! Invariants:
//! 1. Decoders return, whatever they are given, and what they accept comes out as it went in.
//! 2. A server goes on serving others after any stream, and closes the connection of one that ended.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use esker_server::nbd::wire::{
    self, Contexts, Info, OPTION_HEADER_BYTES, OptionHeader, REQUEST_BYTES, Request, option,
};
use esker_server::nbd::{Address, Config, MemoryDisk, MemoryDisks, Server};

use crate::Target;
use crate::mutate::mutate;

const SIZE: u64 = 1 << 20;

pub struct Nbd {
    address: std::net::SocketAddr,
}

impl Nbd {
    pub fn new() -> Self {
        let disks = MemoryDisks(vec![("disk".into(), Arc::new(MemoryDisk::new(SIZE)))]);
        let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
        let server = Server::bind(config, Arc::new(disks)).expect("loopback can be listened on");
        let Address::Tcp(address) = server.addresses()[0] else { panic!("TCP was asked for") };
        std::thread::spawn(move || server.run());
        Self { address }
    }

    /// Sends a stream and reads until the server hangs up.
    fn converse(&self, stream: &[u8]) -> std::io::Result<usize> {
        let mut socket = TcpStream::connect(self.address)?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        socket.set_write_timeout(Some(Duration::from_secs(5)))?;
        let mut replies = Vec::new();
        // The server may hang up in the middle of it.
        if socket.write_all(stream).is_ok() {
            let _ = socket.shutdown(Shutdown::Write);
        }
        match socket.read_to_end(&mut replies) {
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                panic!("the server neither answers nor hangs up")
            }
            _ => Ok(replies.len()),
        }
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

impl Target for Nbd {
    fn input(&mut self, random: &mut fastrand::Rng) -> Vec<u8> {
        let mut stream = 3u32.to_be_bytes().to_vec();
        if random.u8(0..4) != 0 {
            wire::put_option(&mut stream, option::STRUCTURED_REPLY, &[]);
        }
        for _ in 0..random.usize(0..3) {
            let mut data = Vec::new();
            let option = [option::LIST, option::INFO, option::LIST_META_CONTEXT, option::SET_META_CONTEXT, 99];
            let option = option[random.usize(0..5)];
            if option != option::LIST {
                text(&mut data, if random.bool() { "disk" } else { "" });
            }
            match option {
                option::INFO => data.extend_from_slice(&[0, 1, 0, random.u8(0..5)]),
                option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                    data.extend_from_slice(&1u32.to_be_bytes());
                    text(&mut data, ["base:allocation", "base:", "x"][random.usize(0..3)]);
                }
                _ => {}
            }
            wire::put_option(&mut stream, option, &data);
        }
        let mut data = Vec::new();
        text(&mut data, "disk");
        data.extend_from_slice(&[0, 0]);
        wire::put_option(&mut stream, option::GO, &data);
        for cookie in 0..random.u64(0..12) {
            let command = random.u16(0..9);
            let (offset, len) = (random.u64(0..SIZE + 4_096), random.u32(0..16_384));
            Request { flags: 1 << random.u16(0..6), command, cookie, offset, len }.encode(&mut stream);
            if command == wire::command::WRITE {
                stream.resize(stream.len() + len as usize, random.u8(..));
            }
        }
        if random.u8(0..8) != 0 {
            mutate(&mut stream, random);
        }
        stream
    }

    fn run(&mut self, input: &[u8]) -> bool {
        for at in 0..input.len().min(256) {
            let rest = &input[at..];
            if let Some(Ok(request)) = rest.first_chunk::<REQUEST_BYTES>().map(Request::decode) {
                let mut again = Vec::new();
                request.encode(&mut again);
                assert_eq!(again, rest[..REQUEST_BYTES]);
            }
            let _ = rest.first_chunk::<OPTION_HEADER_BYTES>().map(OptionHeader::decode);
            let _ = Info::decode(rest);
            let _ = Contexts::decode(rest, at % 2 == 0);
        }
        // More than the greeting means that something was understood.
        self.converse(input).is_ok_and(|len| len > 18)
    }
}

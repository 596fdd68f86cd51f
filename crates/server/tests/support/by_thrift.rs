//! A client of the strict binary protocol of Thrift, framed, that sees raw answers.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::PATIENCE;

/// Kinds of messages.
pub const REPLY: u8 = 2;
pub const EXCEPTION: u8 = 3;

/// A client of the strict binary protocol, framed.
pub struct Client(pub TcpStream);

pub fn text(id: u8, text: &[u8]) -> Vec<u8> {
    [&[11, 0, id][..], &(text.len() as u32).to_be_bytes(), text].concat()
}

/// A message without its frame.
pub fn message(kind: u8, method: &str, fields: &[u8]) -> Vec<u8> {
    [&[0x80, 1, 0, kind, 0, 0, 0, method.len() as u8][..], method.as_bytes(), &[0, 0, 0, 9], fields, &[0]].concat()
}

pub fn framed(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u32).to_be_bytes()[..], message].concat()
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        Self::reach(address).unwrap()
    }

    /// One of a server that may not be there.
    pub fn reach(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(stream))
    }

    /// Calls a server that may go meanwhile.
    pub fn try_call(&mut self, method: &str, fields: &[u8]) -> std::io::Result<(u8, Vec<u8>)> {
        self.0.write_all(&framed(&message(1, method, fields)))?;
        self.read_answer()
    }

    fn read_answer(&mut self) -> std::io::Result<(u8, Vec<u8>)> {
        let mut len = [0; 4];
        self.0.read_exact(&mut len)?;
        let mut answer = vec![0; u32::from_be_bytes(len) as usize];
        self.0.read_exact(&mut answer)?;
        Ok((answer[3], answer))
    }

    pub fn send(&mut self, method: &str, fields: &[u8]) {
        self.0.write_all(&framed(&message(1, method, fields))).unwrap();
    }

    /// The kind of an answer, and what it holds.
    pub fn answer(&mut self) -> (u8, Vec<u8>) {
        self.read_answer().unwrap()
    }

    pub fn call(&mut self, method: &str, fields: &[u8]) -> (u8, Vec<u8>) {
        self.send(method, fields);
        self.answer()
    }

    pub fn put(&mut self, key: &str, value: &[u8]) {
        let (kind, answer) = self.call("put", &[text(1, key.as_bytes()), text(2, value)].concat());
        assert_eq!(kind, REPLY, "{}", String::from_utf8_lossy(&answer));
    }

    pub fn get(&mut self, key: &str) -> Vec<u8> {
        let (kind, answer) = self.call("get", &text(1, key.as_bytes()));
        assert_eq!(kind, REPLY, "{}", String::from_utf8_lossy(&answer));
        let value = &answer[4 + 4 + 3 + 4..];
        if value == [0] { b"missing".to_vec() } else { value[7..value.len() - 1].to_vec() }
    }

    /// That the connection ends, and how long that took.
    pub fn ends(&mut self) -> Duration {
        let (since, mut rest) = (Instant::now(), [0; 4096]);
        loop {
            match self.0.read(&mut rest) {
                Ok(0) => return since.elapsed(),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return since.elapsed(),
                Err(error) => panic!("the connection does not end: {error}"),
            }
        }
    }
}

pub fn contains(answer: &[u8], text: &str) -> bool {
    answer.windows(text.len()).any(|window| window == text.as_bytes())
}

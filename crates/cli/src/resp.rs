//! The client's side of the Redis protocol, as much as asking a running server takes.
//!
//! Invariant: a reply is read no further than its end and never beyond [`REPLY_BYTES_MAX`].

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::exit::{Code, Failure};

/// A longer reply is none of the server's.
const REPLY_BYTES_MAX: usize = 16 << 20;
/// How long connecting, and each wait for a byte, may take.
const WAIT: Duration = Duration::from_secs(10);

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection to a server.
pub struct Client {
    address: String,
    stream: BufReader<Box<dyn Stream>>,
}

impl Client {
    /// Connects to `HOST:PORT`, or to a unix socket if `address` has a slash.
    ///
    /// # Errors
    /// Names the address.
    pub fn connect(address: &str, password: Option<&str>) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::new(Code::Failure, format!("server {address}: {error}"));
        let stream: Box<dyn Stream> = if address.contains('/') {
            let stream = UnixStream::connect(address).map_err(failed)?;
            stream.set_read_timeout(Some(WAIT)).and_then(|()| stream.set_write_timeout(Some(WAIT))).map_err(failed)?;
            Box::new(stream)
        } else {
            let all = address.to_socket_addrs().map_err(|error| {
                Failure::usage(format!("address {address:?}: {error}; expected HOST:PORT or the path of a socket"))
            })?;
            let mut connected = Err(std::io::Error::other("no such address"));
            for one in all {
                connected = TcpStream::connect_timeout(&one, WAIT);
                if connected.is_ok() {
                    break;
                }
            }
            let stream = connected.map_err(failed)?;
            stream.set_read_timeout(Some(WAIT)).and_then(|()| stream.set_write_timeout(Some(WAIT))).map_err(failed)?;
            Box::new(stream)
        };
        let mut client = Self { address: address.to_string(), stream: BufReader::new(stream) };
        if let Some(password) = password {
            client.call(&["AUTH", password])?;
        }
        Ok(client)
    }

    /// Sends a command and returns what its reply says.
    ///
    /// # Errors
    /// What the server refuses, in its words; a reply that is neither a line nor a string; a lost connection.
    pub fn call(&mut self, words: &[&str]) -> Result<String, Failure> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        let replied = self.stream.get_mut().write_all(request.as_bytes()).and_then(|()| reply(&mut self.stream));
        match replied {
            Ok(Ok(text)) => Ok(text),
            Ok(Err(refused)) => Err(Failure::new(Code::Failure, format!("server {}: {refused}", self.address))),
            Err(error) => Err(Failure::new(Code::Failure, format!("server {}: {error}", self.address))),
        }
    }
}

/// One reply: what it says, or why the server refuses.
fn reply(stream: &mut impl BufRead) -> std::io::Result<Result<String, String>> {
    let odd = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_string());
    let mut line = String::new();
    stream.take(REPLY_BYTES_MAX as u64).read_line(&mut line)?;
    let Some(line) = line.strip_suffix("\r\n") else {
        return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the connection ended"));
    };
    let Some((kind, rest)) = line.split_at_checked(1) else { return Err(odd("an empty reply")) };
    match kind {
        "+" | ":" => Ok(Ok(rest.to_string())),
        "-" => Ok(Err(rest.to_string())),
        "$" => {
            let len = rest.parse::<usize>().ok().filter(|len| *len <= REPLY_BYTES_MAX);
            let len = len.ok_or_else(|| odd("a reply without a length"))?;
            let mut content = vec![0; len + 2];
            stream.read_exact(&mut content)?;
            content.truncate(len);
            String::from_utf8(content).map(Ok).map_err(|_| odd("a reply that is no text"))
        }
        _ => Err(odd("a reply of another kind: does a Redis server listen there?")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_to_their_end_and_no_further() {
        let mut stream = BufReader::new(&b"+OK\r\n$5\r\na\r\nbc\r\n:7\r\n-ERR no\r\n*1\r\n$999999999\r\n$4\r\nab"[..]);
        assert_eq!(reply(&mut stream).unwrap(), Ok("OK".to_string()));
        assert_eq!(reply(&mut stream).unwrap(), Ok("a\r\nbc".to_string()));
        assert_eq!(reply(&mut stream).unwrap(), Ok("7".to_string()));
        assert_eq!(reply(&mut stream).unwrap(), Err("ERR no".to_string()));
        for _ in 0..4 {
            assert!(reply(&mut stream).is_err());
        }
    }
}

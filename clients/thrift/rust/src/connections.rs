//! Connections to servers: a call has one to itself while it lasts, and leaves it to the next.
//!
//! address → one that lies idle, or a new one → call → idle again, or ended with those beside it
//!
//! Invariant: what lies idle has no call under way, so that closing it leaves no outcome unknown.

use std::collections::HashMap;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thrift::TConfiguration;
use thrift::protocol::{TBinaryInputProtocol, TBinaryOutputProtocol};
use thrift::transport::TFramedWriteTransport;

use crate::address::Address;
use crate::frames::Frames;
use crate::generated::zdb::EskerKeysSyncClient;

/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// How long an answer may take. A server waits ten seconds for other chains.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// How long a server that was not reached is asked after the others.
const REST: Duration = Duration::from_secs(3);
/// Longest string of an answer, in bytes: a value, with its message.
const STRING_BYTES_MAX: usize = 17 << 20;
/// Longest list of an answer.
const LIST_MAX: usize = 4_096;

/// What is read from a server, and what is written to it.
pub type Halves = (Box<dyn Read + Send>, Box<dyn Write + Send>);

/// Makes a connection to an address, on which frames of the binary protocol are exchanged.
pub type Connector = Box<dyn Fn(&Address) -> io::Result<Halves> + Send + Sync>;

/// The client that the compiler has generated.
pub(crate) type Client = EskerKeysSyncClient<
    TBinaryInputProtocol<Frames<BufReader<Box<dyn Read + Send>>>>,
    TBinaryOutputProtocol<TFramedWriteTransport<BufWriter<Box<dyn Write + Send>>>>,
>;

/// A connection over TCP.
///
/// # Errors
/// Those of the name's resolution and of the connection, which may take 3 s.
pub fn connect(address: &Address) -> io::Result<Halves> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for found in address.to_string().to_socket_addrs()? {
        match TcpStream::connect_timeout(&found, CONNECT_MAX) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(ANSWER_MAX))?;
                stream.set_write_timeout(Some(ANSWER_MAX))?;
                return Ok((Box::new(stream.try_clone()?), Box::new(stream)));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

pub(crate) struct Connections {
    connector: Connector,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    idle: HashMap<Address, Vec<Client>>,
    unreached: HashMap<Address, Instant>,
}

impl Connections {
    pub fn new(connector: Connector) -> Self {
        Self { connector, known: Mutex::default() }
    }

    /// One that lies idle, or a new one.
    pub fn take(&self, address: &Address) -> io::Result<Client> {
        let lying = self.known.lock().idle.get_mut(address).and_then(Vec::pop);
        if let Some(client) = lying {
            return Ok(client);
        }
        let made = (self.connector)(address);
        let mut known = self.known.lock();
        match made {
            Ok((from, to)) => {
                known.unreached.remove(address);
                let limits = TConfiguration::builder()
                    .max_string_size(Some(STRING_BYTES_MAX))
                    .max_container_size(Some(LIST_MAX))
                    .build()
                    .map_err(io::Error::other)?;
                let from = TBinaryInputProtocol::with_config(Frames::new(BufReader::new(from)), true, limits);
                let to = TBinaryOutputProtocol::new(TFramedWriteTransport::new(BufWriter::new(to)), true);
                Ok(EskerKeysSyncClient::new(from, to))
            }
            Err(error) => {
                known.unreached.insert(address.clone(), Instant::now());
                Err(error)
            }
        }
    }

    /// Leaves a connection, whose last call was answered, to the next.
    pub fn give(&self, address: &Address, client: Client) {
        self.known.lock().idle.entry(address.clone()).or_default().push(client);
    }

    /// Ends the connections that lie idle to a server, one of which has failed: it may have gone.
    pub fn end(&self, address: &Address) {
        let ended = self.known.lock().idle.remove(address);
        drop(ended);
    }

    /// Ends the connections that lie idle to other servers than such.
    pub fn keep(&self, such: impl Fn(&Address) -> bool) {
        let mut ended = Vec::new();
        let mut known = self.known.lock();
        let gone: Vec<_> = known.idle.keys().filter(|address| !such(address)).cloned().collect();
        gone.iter().for_each(|address| ended.extend(known.idle.remove(address)));
        known.unreached.retain(|address, _| such(address));
        drop(known);
        drop(ended);
    }

    /// Puts those last that were not reached a moment ago.
    pub fn in_order(&self, mut servers: Vec<Address>) -> Vec<Address> {
        let mut known = self.known.lock();
        known.unreached.retain(|_, since| since.elapsed() < REST);
        servers.sort_by_key(|address| known.unreached.contains_key(address));
        servers
    }
}

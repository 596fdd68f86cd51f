//! A client of the Redis protocol that goes after the head of a chain, and tells what it cannot know.
//!
//! commands → the node that answered last → MOVED? → the node that is named → replies, or why there are none

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A node that does not take a connection within this is not there.
const CONNECT: Duration = Duration::from_millis(500);
/// What is not answered within this is given up: what becomes of it is not known.
const ANSWER: Duration = Duration::from_secs(4);
/// One command is sent to so many nodes at most.
const MOVES_MAX: usize = 5;
/// Longest bulk string that is taken.
const BULK_BYTES_MAX: i64 = 1 << 20;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A simple string.
    Simple(String),
    /// An error.
    Error(String),
    /// An integer.
    Number(i64),
    /// A string, or none.
    Bulk(Option<String>),
    /// Several, or none.
    Array(Option<Vec<Reply>>),
}

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Nothing was sent.
    Unsent(String),
    /// It was sent, at least in part.
    Sent(String),
}

/// A connection.
struct Connection {
    stream: BufReader<TcpStream>,
}

/// A client, with one connection at a time.
pub struct RedisClient {
    nodes: Vec<SocketAddr>,
    password: String,
    /// Of the node that is asked next.
    next: usize,
    connection: Option<Connection>,
    /// Replicas may answer it.
    reads_replicas: bool,
}

/// A word of a command.
pub type Command<'c> = &'c [&'c str];

/// Whether this error says that nothing was done: by a node that is not the head, not open yet, or full.
pub fn did_nothing(error: &str) -> bool {
    let code = error.split(' ').next().unwrap_or_default();
    matches!(code, "MOVED" | "CLUSTERDOWN" | "TRYAGAIN" | "READONLY" | "LOADING" | "EXECABORT" | "OOM")
}

impl RedisClient {
    /// A client of these nodes, which asks the one of this number first.
    pub fn new(nodes: Vec<SocketAddr>, password: String, first: usize) -> Self {
        Self { next: first % nodes.len().max(1), nodes, password, connection: None, reads_replicas: false }
    }

    /// The same, which replicas may answer.
    pub fn reading_replicas(self) -> Self {
        Self { reads_replicas: true, ..self }
    }

    /// The replies to these commands, sent together. Where the first is answered by MOVED they are sent to the node
    /// that is named: none of them was done. With `here` they are sent on the connection that there is, or not at all.
    pub fn ask(&mut self, commands: &[Command<'_>], here: bool) -> Result<Vec<Reply>, Lost> {
        let mut moves = 0;
        loop {
            if here && self.connection.is_none() {
                return Err(Lost::Unsent("the connection is gone".into()));
            }
            let connection = self.connected()?;
            let replies = match connection.ask(commands) {
                Ok(replies) => replies,
                Err(error) => {
                    self.give_up();
                    return Err(Lost::Sent(error.to_string()));
                }
            };
            let error = replies.iter().find_map(|reply| match reply {
                Reply::Error(error) => Some(error.clone()),
                _ => None,
            });
            let Some(error) = error.filter(|error| did_nothing(error)) else { return Ok(replies) };
            moves += 1;
            let to = error.strip_prefix("MOVED ").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
            match to.and_then(|to: SocketAddr| self.nodes.iter().position(|node| *node == to)) {
                Some(at) => (self.next, self.connection) = (at, None),
                None => self.give_up(),
            }
            let is_alone = commands.len() == 1 && !here;
            if to.is_none() || moves >= MOVES_MAX || !is_alone {
                return Ok(replies);
            }
        }
    }

    /// The next node is asked next.
    pub fn give_up(&mut self) {
        self.connection = None;
        self.next = (self.next + 1) % self.nodes.len().max(1);
    }

    fn connected(&mut self) -> Result<&mut Connection, Lost> {
        if self.connection.is_none() {
            let Some(node) = self.nodes.get(self.next).copied() else { return Err(Lost::Unsent("no node".into())) };
            match Connection::open(node, &self.password, self.reads_replicas) {
                Ok(connection) => self.connection = Some(connection),
                Err(error) => {
                    self.give_up();
                    return Err(Lost::Unsent(error.to_string()));
                }
            }
        }
        self.connection.as_mut().ok_or_else(|| Lost::Unsent("no connection".into()))
    }
}

fn odd(what: impl std::fmt::Display) -> std::io::Error {
    std::io::Error::other(format!("no reply of the Redis protocol: {what}"))
}

impl Connection {
    fn open(node: SocketAddr, password: &str, reads_replicas: bool) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&node, CONNECT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        let mut connection = Self { stream: BufReader::new(stream) };
        if !password.is_empty() {
            connection.is_taken(&["AUTH", password])?;
        }
        if reads_replicas {
            connection.is_taken(&["READONLY"])?;
        }
        Ok(connection)
    }

    fn is_taken(&mut self, command: Command<'_>) -> std::io::Result<()> {
        match self.ask(&[command])?.first() {
            Some(Reply::Simple(_)) => Ok(()),
            other => Err(std::io::Error::other(format!("{}: {other:?}", command[0]))),
        }
    }

    fn ask(&mut self, commands: &[Command<'_>]) -> std::io::Result<Vec<Reply>> {
        let mut sent = Vec::new();
        for command in commands {
            sent.extend(format!("*{}\r\n", command.len()).into_bytes());
            for word in *command {
                sent.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
            }
        }
        self.stream.get_mut().write_all(&sent)?;
        commands.iter().map(|_| self.reply()).collect()
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        line.strip_suffix("\r\n").map(str::to_owned).ok_or_else(|| odd(format!("{line:?}")))
    }

    fn reply(&mut self) -> std::io::Result<Reply> {
        let line = self.line()?;
        let (mark, rest) = line.split_at_checked(1).ok_or_else(|| odd("an empty line"))?;
        let number = || rest.parse::<i64>().map_err(|_| odd(&line));
        Ok(match mark {
            "+" => Reply::Simple(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Number(number()?),
            "$" => match number()? {
                -1 => Reply::Bulk(None),
                len @ 0..=BULK_BYTES_MAX => {
                    let mut bytes = vec![0; len as usize + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(len as usize);
                    Reply::Bulk(Some(String::from_utf8(bytes).map_err(odd)?))
                }
                _ => return Err(odd(&line)),
            },
            "*" => match number()? {
                -1 => Reply::Array(None),
                len @ 0..=1_024 => Reply::Array(Some((0..len).map(|_| self.reply()).collect::<Result<_, _>>()?)),
                _ => return Err(odd(&line)),
            },
            _ => return Err(odd(&line)),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A node that answers each connection's first bytes by the next of these, then closes it.
    fn node(answers: Vec<String>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 4_096]).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        address
    }

    #[test]
    fn what_is_moved_is_asked_where_it_is_and_what_is_not_answered_is_known_for_sent() {
        let head = node(vec!["$2\r\nab\r\n".into(), "$9\r\nab".into()]);
        let other = node(vec![format!("-MOVED 17 {head}\r\n")]);
        let mut client = RedisClient::new(vec![other, head], String::new(), 0);
        assert_eq!(client.ask(&[&["GET", "k"]], false), Ok(vec![Reply::Bulk(Some("ab".into()))]));
        client.connection = None;
        assert!(matches!(client.ask(&[&["SET", "k", "v"]], false), Err(Lost::Sent(_))));
        assert_eq!(client.nodes[client.next], other, "another is asked next");
    }

    #[test]
    fn what_takes_no_connection_is_sent_nothing() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut client = RedisClient::new(vec![gone], String::new(), 3);
        assert!(matches!(client.ask(&[&["SET", "k", "v"]], false), Err(Lost::Unsent(_))));
        assert!(matches!(client.ask(&[&["EXEC"]], true), Err(Lost::Unsent(_))));
        assert!(did_nothing("CLUSTERDOWN The cluster is down") && did_nothing("TRYAGAIN Slot 1 goes"));
        assert!(!did_nothing("UNKNOWN it may be done"));
        assert!(did_nothing("OOM the device is full: 192 bytes needed, 0 bytes free"));
    }

    #[test]
    fn several_replies_are_read_in_order() {
        let address = node(vec!["+OK\r\n+QUEUED\r\n*2\r\n:7\r\n$-1\r\n".into()]);
        let mut client = RedisClient::new(vec![address], String::new(), 0);
        let replies = client.ask(&[&["MULTI"], &["INCR", "k"], &["EXEC"]], false).unwrap();
        assert_eq!(replies[2], Reply::Array(Some(vec![Reply::Number(7), Reply::Bulk(None)])));
    }
}

//! While the store is opened: the addresses are bound, and every command is answered with `-LOADING` and how far
//! opening is.
//!
//! sockets → [`Loading::wait`], again and again → [`Server::on`](super::Server::on) with the same sockets
//!
//! Invariants:
//! 1. No address refuses a connection between the first bind and the server's end.
//! 2. Connections, and what each may have sent without an answer, are bounded: no client has been authenticated yet.

use std::time::Duration;

use mio::{Events, Poll, Token};

use crate::resp::config::{Config, Error, Result};
use crate::resp::listen::Listener;
use crate::resp::parse::{Limits, Parser, Step, UNAUTHENTICATED_ARG_BYTES_MAX};
use crate::resp::transport::{Arrived, Transport};

/// So many connections wait at most; others are closed at once.
const CLIENTS_MAX: usize = 256;
/// A connection that has sent so many bytes without a whole command is closed.
const UNPARSED_BYTES_MAX: usize = 4 * UNAUTHENTICATED_ARG_BYTES_MAX;
/// So many bytes of a connection are read at a time, before the others have their turn and the caller its own.
const READ_BYTES: usize = 4096;
/// Sockets that are ready are told in parts of so many.
const EVENTS: usize = 256;

struct Waiting {
    transport: Transport,
    parser: Parser,
    unparsed: Vec<u8>,
    unsent: Vec<u8>,
}

/// Bound sockets of a server whose store is being opened.
pub struct Loading {
    poll: Poll,
    events: Events,
    pub(crate) listeners: Vec<Listener>,
    clients: Vec<Option<Waiting>>,
    /// Tokens of sockets that have more, of which the poll does not tell again.
    more: Vec<usize>,
    /// Listeners that could not accept, for want of descriptors: they are tried again after the next wait.
    later: Vec<usize>,
}

/// What a connection needs next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The poll tells when something has arrived.
    Event,
    /// Another turn: more has arrived.
    Turn,
    /// It is to be closed.
    Close,
}

impl Loading {
    /// Listens on everything that the configuration names.
    ///
    /// # Errors
    /// What [`Config::check`] refuses; [`Error::Listen`], [`Error::Tls`], [`Error::Io`](Error::Io).
    pub fn bind(config: &Config) -> Result<Self> {
        config.check()?;
        let mut listeners = Listener::open_all(config)?;
        let poll = Poll::new().map_err(failed("making a poll"))?;
        for (number, listener) in listeners.iter_mut().enumerate() {
            listener.register(poll.registry(), Token(number)).map_err(failed("registering a listener"))?;
        }
        Ok(Self {
            poll,
            events: Events::with_capacity(EVENTS),
            listeners,
            clients: Vec::new(),
            more: Vec::new(),
            later: Vec::new(),
        })
    }

    /// Answers the clients that ask within this time: `-LOADING` and these words, one line. Of what one client has sent
    /// it reads so little at a time that it returns whatever clients do.
    ///
    /// # Errors
    /// [`Error::Io`] if the poll fails.
    pub fn wait(&mut self, within: Duration, words: &str) -> Result<()> {
        let mut ready = std::mem::take(&mut self.more);
        let within = if ready.is_empty() { within } else { Duration::ZERO };
        match self.poll.poll(&mut self.events, Some(within)) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => self.events.clear(),
            polled => polled.map_err(failed("polling"))?,
        }
        ready.append(&mut self.later);
        for event in &self.events {
            let token = event.token().0;
            if !ready.contains(&token) {
                ready.push(token);
            }
        }
        let answer = format!("-LOADING {words}\r\n");
        for number in ready {
            match number.checked_sub(self.listeners.len()) {
                None => self.accept(number),
                Some(client) => {
                    let Some(waiting) = &mut self.clients[client] else { continue };
                    match waiting.serve(&answer) {
                        Next::Event => {}
                        Next::Turn => self.more.push(number),
                        Next::Close => {
                            waiting.transport.close();
                            self.clients[client] = None;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self, listener: usize) {
        for _ in 0..CLIENTS_MAX {
            let accepted = match self.listeners[listener].accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                // Such as a want of descriptors: it is tried again, for the poll does not tell again.
                Err(_) => return self.later.push(listener),
            };
            let place = match self.clients.iter().position(Option::is_none) {
                Some(place) => place,
                None if self.clients.len() < CLIENTS_MAX => {
                    self.clients.push(None);
                    self.clients.len() - 1
                }
                None => continue,
            };
            let mut transport = accepted.transport;
            if transport.register(self.poll.registry(), Token(self.listeners.len() + place)).is_ok() {
                self.clients[place] =
                    Some(Waiting { transport, parser: Parser::default(), unparsed: Vec::new(), unsent: Vec::new() });
            }
        }
        self.more.push(listener);
    }

    /// The sockets, for the server that goes on with them. Who has waited so far is disconnected.
    pub(crate) fn into_listeners(mut self) -> Result<Vec<Listener>> {
        for listener in &mut self.listeners {
            listener.deregister(self.poll.registry()).map_err(failed("handing a listener on"))?;
        }
        Ok(self.listeners)
    }
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Io { what, source }
}

impl Waiting {
    /// Answers some of what has arrived.
    fn serve(&mut self, answer: &str) -> Next {
        let mut space = [0; READ_BYTES];
        let next = match self.transport.read(&mut space) {
            Ok(Arrived::Bytes(len, more)) => {
                self.unparsed.extend_from_slice(&space[..len]);
                if !self.answer(answer) || self.unparsed.len() + self.unsent.len() > UNPARSED_BYTES_MAX {
                    return Next::Close;
                }
                if more { Next::Turn } else { Next::Event }
            }
            Ok(Arrived::Nothing) => Next::Event,
            Ok(Arrived::End) | Err(_) => return Next::Close,
        };
        while !self.unsent.is_empty() {
            match self.transport.write(&self.unsent) {
                Ok(0) => break,
                Ok(len) => drop(self.unsent.drain(..len)),
                Err(_) => return Next::Close,
            }
        }
        if self.transport.flush().is_ok() { next } else { Next::Close }
    }

    fn answer(&mut self, answer: &str) -> bool {
        let limits = Limits {
            arg_bytes_max: UNAUTHENTICATED_ARG_BYTES_MAX,
            command_bytes_max: UNPARSED_BYTES_MAX,
            unauthenticated: true,
        };
        let mut parsed = 0;
        let holds = loop {
            match self.parser.next(&self.unparsed[parsed..], &limits) {
                Ok(Step::Command(len)) => {
                    parsed += len;
                    self.unsent.extend_from_slice(answer.as_bytes());
                }
                Ok(Step::Nothing(len)) => parsed += len,
                Ok(Step::Incomplete) => break true,
                Err(_) => break false,
            }
        };
        self.unparsed.drain(..parsed);
        holds
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use super::*;

    fn loading() -> (Loading, std::net::SocketAddr) {
        let config = Config { listen: vec!["127.0.0.1:0".parse().unwrap()], ..Config::default() };
        let loading = Loading::bind(&config).unwrap();
        let crate::resp::Address::Tcp(address) = loading.listeners[0].address else { panic!("a TCP address") };
        (loading, address)
    }

    #[test]
    fn a_client_that_sends_without_end_keeps_neither_the_caller_nor_others_waiting() {
        for flood in [&b"\r\n"[..], b"*0\r\n", b"PING\r\n"] {
            let (mut loading, address) = loading();
            let ended = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut stream = TcpStream::connect(address).unwrap();
                    let bytes = flood.repeat(4_096);
                    // One that is closed for what it sends comes again.
                    while !ended.load(Ordering::Relaxed) {
                        if stream.write_all(&bytes).is_err() {
                            let Ok(again) = TcpStream::connect(address) else { break };
                            stream = again;
                        }
                    }
                });
                let mut polite = None;
                for _ in 0..200 {
                    let began = Instant::now();
                    loading.wait(Duration::from_millis(10), "for a test").unwrap();
                    assert!(began.elapsed() < Duration::from_secs(2), "one call took {:?}", began.elapsed());
                    let stream: &mut TcpStream = polite.get_or_insert_with(|| {
                        let mut stream = TcpStream::connect(address).unwrap();
                        stream.write_all(b"PING\r\n").unwrap();
                        stream.set_nonblocking(true).unwrap();
                        stream
                    });
                    let mut answer = [0; 64];
                    if let Ok(len) = stream.read(&mut answer) {
                        assert_eq!(&answer[..len], b"-LOADING for a test\r\n");
                        ended.store(true, Ordering::Relaxed);
                        break;
                    }
                }
                let answered = ended.swap(true, Ordering::Relaxed);
                // The flood may be stuck in writing.
                drop(loading);
                assert!(answered, "the other client was not answered beside {flood:?}");
            });
        }
    }
}

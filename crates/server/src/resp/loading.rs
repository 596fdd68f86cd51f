//! While the store is opened: the addresses are bound, and every command is answered with `-LOADING` and how far
//! opening is.
//!
//! sockets → [`Loading::wait`], again and again → [`Server::on`](super::Server::on) with the same sockets
//!
//! Invariants:
//! 1. No address refuses a connection between the first bind and the server's end.
//! 2. Connections, and what each may have sent without an answer, are bounded: nobody has been authenticated yet.

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
        Ok(Self { poll, events: Events::with_capacity(EVENTS), listeners, clients: Vec::new() })
    }

    /// Answers the clients that ask within this time: `-LOADING` and these words, one line.
    ///
    /// # Errors
    /// [`Error::Io`] if the poll fails.
    pub fn wait(&mut self, within: Duration, words: &str) -> Result<()> {
        match self.poll.poll(&mut self.events, Some(within)) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return Ok(()),
            polled => polled.map_err(failed("polling"))?,
        }
        let ready: Vec<usize> = self.events.iter().map(|event| event.token().0).collect();
        let answer = format!("-LOADING {words}\r\n");
        for number in ready {
            match number.checked_sub(self.listeners.len()) {
                None => self.accept(number),
                Some(client) => {
                    if let Some(waiting) = &mut self.clients[client]
                        && !waiting.serve(&answer)
                    {
                        waiting.transport.close();
                        self.clients[client] = None;
                    }
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self, listener: usize) {
        // An error is the next event's: there is nobody to tell.
        while let Ok(accepted) = self.listeners[listener].accept() {
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
    /// Answers what has arrived; false if the connection is to be closed.
    fn serve(&mut self, answer: &str) -> bool {
        let mut space = [0; 4096];
        loop {
            match self.transport.read(&mut space) {
                Ok(Arrived::Bytes(len, more)) => {
                    self.unparsed.extend_from_slice(&space[..len]);
                    if !self.answer(answer) || self.unparsed.len() + self.unsent.len() > UNPARSED_BYTES_MAX {
                        return false;
                    }
                    if !more {
                        break;
                    }
                }
                Ok(Arrived::Nothing) => break,
                Ok(Arrived::End) | Err(_) => return false,
            }
        }
        while !self.unsent.is_empty() {
            match self.transport.write(&self.unsent) {
                Ok(0) => break,
                Ok(len) => drop(self.unsent.drain(..len)),
                Err(_) => return false,
            }
        }
        self.transport.flush().is_ok()
    }

    fn answer(&mut self, answer: &str) -> bool {
        let limits = Limits {
            arg_bytes_max: UNAUTHENTICATED_ARG_BYTES_MAX,
            command_bytes_max: UNPARSED_BYTES_MAX,
            unauthenticated: true,
        };
        loop {
            match self.parser.next(&self.unparsed, &limits) {
                Ok(Step::Command(len)) => {
                    self.unparsed.drain(..len);
                    self.unsent.extend_from_slice(answer.as_bytes());
                }
                Ok(Step::Nothing(len)) => drop(self.unparsed.drain(..len)),
                Ok(Step::Incomplete) => return true,
                Err(_) => return false,
            }
        }
    }
}

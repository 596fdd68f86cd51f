//! A disk of another server as an export of this one: for programs that speak with a server less well than the client
//! here does, by TLS or over its restarts.
//!
//! request → a connection that is idle, or a new one → the other server → answer
//!
//! A connection that is lost is made anew, and what was not answered is asked again: a request may be done twice. A
//! server that lives on while one of its connections is cut may come to what that brought later than to a newer write
//! of the same place; no client of the protocol can know, and the kernel's does the same. What was answered and not
//! flushed is another matter: the server may have been restarted without it. One more connection, the anchor, over
//! which nothing is sent but flushes, tells: while it holds, the server is the same. A new anchor begins a new epoch.
//!
//! Invariants:
//! 1. Once the server may have lost what it has answered, every request fails, for good: the next flush is no success.
//! 2. A write counts as answered only in the epoch that it was asked in, and while that has an anchor; else it is asked
//!    again.
//! 3. No lock but that of the anchor is held while the other server answers.
//! 4. A connection is used in the epoch that it was made in only.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;

use super::client::{Client, ClientError, Place};
use super::export::{Done, Export, Exports, Extent, Fault, OpenError, Outcome, Piece};
use super::wire::{code, command, export_flag, flag};

/// A server that is gone is asked again after this.
const AGAIN: Duration = Duration::from_millis(200);
/// Longest time for an answer: a server that waits for its device takes its time.
const ANSWER: Duration = Duration::from_secs(120);
/// Zeros are written in parts of so many bytes where the server does not make them itself.
const ZEROS: usize = 1 << 20;

/// A disk of another server.
pub struct Forwarded {
    place: Place,
    patience: Duration,
    size: u64,
    flags: u16,
    /// Connections that no request uses, each with the epoch that it was made in.
    idle: Mutex<Vec<(Client, u64)>>,
    /// The connection for flushes alone; `None` while it is being made anew.
    anchor: Mutex<Option<Client>>,
    state: Mutex<State>,
}

/// What is known of durability.
#[derive(Default)]
struct State {
    epoch: u64,
    /// Whether the epoch's anchor was lost and there is no other yet: what is answered meanwhile, no anchor vouches
    /// for.
    adrift: bool,
    /// Writes that were answered, and how many of them a flush covers.
    answered: u64,
    flushed: u64,
    /// Why every request fails.
    lost: Option<String>,
}

impl State {
    fn holds(&self) -> Result<(), Fault> {
        self.lost.as_ref().map_or(Ok(()), |why| Err(Fault::Io(why.clone())))
    }
}

impl Forwarded {
    /// Connects to the disk. A server that goes away is waited for as long as `patience`, by each request.
    ///
    /// # Errors
    /// Those of [`Client::connect`]; [`ClientError::Refused`] where a flush would not cover other connections.
    pub fn connect(place: Place, patience: Duration) -> Result<Self, ClientError> {
        let anchor = Client::connect(&place, Some(ANSWER))?;
        let (size, flags) = (anchor.size(), anchor.flags());
        if flags & (export_flag::SEND_FLUSH | export_flag::READ_ONLY | export_flag::CAN_MULTI_CONN)
            == export_flag::SEND_FLUSH
        {
            let why =
                "its server does not say that a flush covers what other connections have written (CAN_MULTI_CONN)";
            return Err(ClientError::Refused { export: place.export, why: why.into() });
        }
        let (idle, state) = (Mutex::default(), Mutex::default());
        Ok(Self { place, patience, size, flags, idle, anchor: Mutex::new(Some(anchor)), state })
    }

    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// A new connection to the same disk.
    fn fresh(&self) -> Result<Client, ClientError> {
        let client = Client::connect(&self.place, Some(ANSWER))?;
        if client.size() != self.size || client.flags() != self.flags {
            let (export, was, is) = (self.place.export.clone(), self.size, client.size());
            let why = format!("it is another by now: it had {was} bytes and has {is}, or its server does other things");
            return Err(ClientError::Refused { export, why });
        }
        Ok(client)
    }

    fn take(&self) -> Result<(Client, u64), ClientError> {
        let epoch = self.state.lock().epoch;
        loop {
            let idle = self.idle.lock().pop();
            match idle {
                Some(idle) if idle.1 == epoch => return Ok(idle),
                // Of a server before this one.
                Some(_) => {}
                None => return Ok((self.fresh()?, epoch)),
            }
        }
    }

    /// Keeps a connection for others, while its epoch goes on.
    fn keep(&self, client: Client, epoch: u64) {
        let goes_on = {
            let state = self.state.lock();
            state.epoch == epoch && !state.adrift
        };
        if goes_on {
            self.idle.lock().push((client, epoch));
        }
    }

    /// Asks until there is an answer, or a reason to give up; the answer and the epoch that it was asked in.
    fn ask<T>(&self, mut ask: impl FnMut(&mut Client) -> Result<T, ClientError>) -> Result<(T, u64), Fault> {
        let until = Instant::now() + self.patience;
        loop {
            self.state.lock().holds()?;
            let failed = match self.take() {
                Ok((mut client, epoch)) => match ask(&mut client) {
                    Ok(answer) => {
                        self.keep(client, epoch);
                        return Ok((answer, epoch));
                    }
                    Err(ClientError::Failed { what, code }) => {
                        self.keep(client, epoch);
                        return Err(fault(what, code));
                    }
                    Err(error) => error,
                },
                Err(error) => error,
            };
            self.look_after(&failed, until)?;
        }
    }

    /// After a connection was lost: makes sure that nothing which was answered is lost with it, and that there is an
    /// anchor.
    fn look_after(&self, failed: &ClientError, until: Instant) -> Result<(), Fault> {
        let mut anchor = self.anchor.lock();
        self.state.lock().holds()?;
        if let Some(client) = anchor.as_mut() {
            let answered = self.state.lock().answered;
            match client.flush() {
                Ok(()) => {
                    let mut state = self.state.lock();
                    state.flushed = state.flushed.max(answered);
                }
                Err(ClientError::Failed { what, code }) => return Err(fault(what, code)),
                Err(_) => {
                    *anchor = None;
                    self.condemn(failed)?;
                }
            }
        }
        while anchor.is_none() {
            // What is left of the server before is not used again.
            let before = std::mem::take(&mut *self.idle.lock());
            drop(before);
            match self.fresh() {
                Ok(client) => {
                    *anchor = Some(client);
                    let mut state = self.state.lock();
                    state.epoch += 1;
                    state.adrift = false;
                    drop(state);
                    tracing::info!(export = self.place.export, "connected anew");
                }
                Err(error) if Instant::now() >= until => {
                    let export = &self.place.export;
                    return Err(Fault::Io(format!("the server of {export:?} is not there: {error}")));
                }
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
        drop(anchor);
        if Instant::now() >= until {
            return Err(Fault::Io(format!("the server of {:?} does not answer: {failed}", self.place.export)));
        }
        std::thread::sleep(AGAIN / 10);
        Ok(())
    }

    /// The anchor is lost: if something was answered and not flushed, so may that be.
    fn condemn(&self, failed: &ClientError) -> Result<(), Fault> {
        let mut state = self.state.lock();
        state.adrift = true;
        if state.answered > state.flushed {
            let export = &self.place.export;
            let why = format!(
                "the server of {export:?} went away, or was restarted, or the connection to it was cut, while the disk \
                 was mapped ({failed}): what was written and not flushed before may be lost"
            );
            tracing::error!(export, why, "the disk fails from here on");
            state.lost = Some(why);
        }
        state.holds()
    }

    fn write_with(&self, fua: bool, mut write: impl FnMut(&mut Client, u16) -> Result<(), ClientError>) -> Outcome {
        let durable = fua && self.has(export_flag::SEND_FUA);
        let until = Instant::now() + self.patience;
        loop {
            let ((), epoch) = self.ask(|client| write(client, if durable { flag::FUA } else { 0 }))?;
            let mut state = self.state.lock();
            if durable {
                break;
            }
            if state.epoch == epoch && !state.adrift {
                state.answered += 1;
                break;
            }
            drop(state);
            self.look_after(&ClientError::Lost(std::io::ErrorKind::NotConnected.into()), until)?;
        }
        if fua && !durable { self.flush() } else { Ok(Done::now(())) }
    }
}

/// What a server's error is here.
fn fault(what: &str, error: u32) -> Fault {
    let said = format!("{what}: the server says {error}");
    match error {
        code::PERM => Fault::NotPermitted(said),
        code::NOSPC => Fault::Full(said),
        code::INVAL => Fault::Invalid(said),
        code::NOTSUP => Fault::Unsupported(said),
        code::SHUTDOWN => Fault::Stopping(said),
        _ => Fault::Io(said),
    }
}

impl Export for Forwarded {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_only(&self) -> bool {
        self.has(export_flag::READ_ONLY)
    }

    fn description(&self) -> String {
        format!("of {}", self.place)
    }

    fn read(&self, offset: u64, len: u32) -> Outcome<Vec<Piece>> {
        let (data, _) = self.ask(|client| client.read(offset, len).map(Bytes::copy_from_slice))?;
        Ok(Done::now(vec![Piece::Data(data)]))
    }

    fn write(&self, offset: u64, data: Bytes, fua: bool) -> Outcome {
        self.write_with(fua, |client, flags| {
            client.call("WRITE", command::WRITE, flags, offset, data.len() as u32, &data)
        })
    }

    fn zero(&self, offset: u64, len: u64, no_hole: bool, fast: bool, fua: bool) -> Outcome {
        if self.has(export_flag::SEND_WRITE_ZEROES) && (!fast || self.has(export_flag::SEND_FAST_ZERO)) {
            let how = if no_hole { flag::NO_HOLE } else { 0 } | if fast { flag::FAST_ZERO } else { 0 };
            return self.write_with(fua, |client, flags| {
                client.call("WRITE_ZEROES", command::WRITE_ZEROES, flags | how, offset, len as u32, &[])
            });
        }
        if fast {
            return Err(Fault::Unsupported("zeros that take space are no faster than writes".into()));
        }
        let zeros = Bytes::from(vec![0; ZEROS.min(len as usize)]);
        let mut at = offset;
        while at < offset + len {
            let part = zeros.slice(..zeros.len().min((offset + len - at) as usize));
            at += part.len() as u64;
            self.write(at - part.len() as u64, part, false)?;
        }
        if fua { self.flush() } else { Ok(Done::now(())) }
    }

    fn discard(&self, offset: u64, len: u64, fua: bool) -> Outcome {
        if !self.has(export_flag::SEND_TRIM) {
            // Space need not be given back.
            return Ok(Done::now(()));
        }
        self.write_with(fua, |client, flags| client.call("TRIM", command::TRIM, flags, offset, len as u32, &[]))
    }

    fn flush(&self) -> Outcome {
        if !self.has(export_flag::SEND_FLUSH) {
            // Then what is answered is durable.
            return Ok(Done::now(()));
        }
        let until = Instant::now() + self.patience;
        loop {
            let mut anchor = self.anchor.lock();
            let answered = {
                let state = self.state.lock();
                state.holds()?;
                state.answered
            };
            let failed = match anchor.as_mut().map(Client::flush) {
                Some(Ok(())) => {
                    let mut state = self.state.lock();
                    state.flushed = state.flushed.max(answered);
                    return Ok(Done::now(()));
                }
                Some(Err(ClientError::Failed { what, code })) => return Err(fault(what, code)),
                Some(Err(error)) => {
                    *anchor = None;
                    self.condemn(&error)?;
                    error
                }
                None => ClientError::Lost(std::io::ErrorKind::NotConnected.into()),
            };
            drop(anchor);
            self.look_after(&failed, until)?;
        }
    }

    fn extents(&self, _: u64, len: u64, _: usize) -> Outcome<Vec<Extent>> {
        // It is not asked: all may be data.
        Ok(Done::now(vec![Extent { len, hole: false, zero: false }]))
    }
}

/// The one disk, under the name that it has on its server.
pub struct ForwardedDisk(pub Arc<Forwarded>);

impl Exports for ForwardedDisk {
    fn list(&self) -> Result<Vec<(String, String)>, Fault> {
        Ok(vec![(self.0.place.export.clone(), self.0.description())])
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Export>, OpenError> {
        if name != self.0.place.export {
            return Err(OpenError::Unknown(name.into()));
        }
        Ok(Arc::clone(&self.0) as Arc<dyn Export>)
    }
}

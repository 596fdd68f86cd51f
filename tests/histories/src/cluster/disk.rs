//! A client of the disks of a cluster: NBD, through any server.
//!
//! One disk answers writes once they are durable on all; the other when its head has applied them, and FLUSH makes them
//! durable. A place is some blocks that follow each other; a block is noted as the value that fills it, or nothing for
//! zeros.
//!
//! Invariants:
//! 1. What was sent and not answered, or answered with an error, is of unknown outcome; not if the error is that there
//!    is no room: one transaction takes all of a write, or nothing.
//! 2. A write to the second disk that was answered, and that no FLUSH on the same connection covers which was answered
//!    later, is of unknown outcome as well ([`settle`]): a head that ends may take it with it.
//! 3. Zeros are written to the first disk alone: what no read can show makes the checker try all that may have been.
//! 4. After a call that failed a client only reads until it is answered, so that outages leave few calls open.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use esker_server::nbd::wire::{code, command};
use esker_server::nbd::{Address, Client, ClientError, Place, Tls};

use super::door::{AFTER_ERROR, ANSWER, Door};
use super::places::{KEYS, Places};
use crate::client::{BLOCK_BYTES, block, value};
use crate::notes::{Answer, Call, Event, Held, Notes, Outcome};
use crate::terms::Failure;

/// The disks, which are there before clients begin: `durable` answers only what is durable.
pub const DISKS: [&str; 2] = ["durable", "flushed"];
/// From one place to the next.
const PLACE_BYTES: u64 = 1 << 20;
/// After so many calls another server is gone to.
const STAYS: u32 = 200;

/// A connection.
struct Opened {
    client: Client,
    /// Its number among those of this client, from 1.
    handle: u64,
}

/// Connections, one for each disk.
struct Caller {
    door: Door,
    rng: fastrand::Rng,
    opened: [Option<Opened>; DISKS.len()],
    handles: u64,
}

/// A client.
pub struct DiskWorker {
    me: u64,
    rng: fastrand::Rng,
    notes: Notes,
    caller: Caller,
    places: Places,
    pause: Duration,
    next_value: u64,
    /// It was not answered.
    fails: bool,
}

impl Caller {
    /// A connection to this disk.
    fn connected(&mut self, disk: usize) -> Result<&mut Opened, ClientError> {
        if self.opened[disk].is_none() {
            let node: SocketAddr = self.door.node(&mut self.rng);
            let tls = Tls { host: self.door.host.clone(), certificates: Some(self.door.certificates.clone()) };
            let place = Place { tls: Some(tls), ..Place::new(Address::Tcp(node), DISKS[disk]) };
            let client = Client::connect(&place, Some(ANSWER))?;
            self.handles += 1;
            self.opened[disk] = Some(Opened { client, handle: self.handles });
        }
        let gone = || ClientError::Lost(std::io::ErrorKind::NotConnected.into());
        self.opened[disk].as_mut().ok_or_else(gone)
    }

    /// Does something on the connection that there is, which is over if that fails.
    fn ask<T>(
        &mut self,
        disk: usize,
        act: impl FnOnce(&mut Client) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let gone = || ClientError::Lost(std::io::ErrorKind::NotConnected.into());
        let done = act(&mut self.opened[disk].as_mut().ok_or_else(gone)?.client);
        if done.is_err() {
            self.opened[disk] = None;
        }
        done
    }
}

fn call(name: &str, disk: usize, place: u64, keys: &[u64]) -> Call {
    Call { call: name.into(), place: format!("{}/{place}", DISKS[disk]), keys: keys.to_vec(), ..Call::default() }
}

fn offset(place: u64, keys: &[u64]) -> u64 {
    place * PLACE_BYTES + keys.first().copied().unwrap_or_default() * BLOCK_BYTES as u64
}

impl DiskWorker {
    /// A client of these servers; `me` is its number, and not that of another.
    pub fn new(me: u64, seed: u64, places: Places, notes: Notes, door: Door, pause: Duration) -> Self {
        let seed = seed.wrapping_mul(41).wrapping_add(me);
        let rng = fastrand::Rng::with_seed(seed);
        let caller = Caller { door, rng: rng.clone(), opened: [const { None }; DISKS.len()], handles: 0 };
        Self { me, rng, notes, caller, places, pause, next_value: 0, fails: false }
    }

    /// Works until then.
    pub fn work(&mut self, until: Instant) -> Result<(), Failure> {
        let own = (self.me % DISKS.len() as u64) as usize;
        while Instant::now() < until {
            let (place, old) = self.places.pick(&mut self.rng);
            if self.rng.u32(0..STAYS) == 0 {
                // What was written on the connection is durable then.
                self.flush(own)?;
                self.caller.opened[own] = None;
            }
            let keys = self.some_blocks();
            let answer = if old || self.fails || self.rng.u8(0..100) < 45 {
                let disk = if self.rng.u8(0..4) == 0 { 1 - own } else { own };
                self.read(disk, place, &keys)?
            } else if self.rng.u8(0..100) < 20 {
                self.flush(own)?
            } else {
                self.write(own, place, &keys)?
            };
            self.fails = answer.outcome != Outcome::Ok;
            if self.fails {
                std::thread::sleep(AFTER_ERROR);
            }
            std::thread::sleep(self.pause);
        }
        Ok(())
    }

    /// Reads all that was ever used; each is tried again until it is answered, or it is `until`.
    pub fn read_back(&mut self, until: Instant) -> Result<(), Failure> {
        let keys: Vec<u64> = (0..KEYS).collect();
        for place in 0..self.places.count() {
            for (disk, name) in DISKS.iter().enumerate() {
                loop {
                    let answer = self.read(disk, place, &keys)?;
                    if answer.outcome == Outcome::Ok {
                        break;
                    }
                    if Instant::now() >= until {
                        let why = answer.why;
                        return Err(format!("what disk {name} holds is not told at the end: {why}").into());
                    }
                    std::thread::sleep(AFTER_ERROR);
                }
            }
        }
        Ok(())
    }

    /// Some blocks that follow each other.
    fn some_blocks(&mut self) -> Vec<u64> {
        let first = self.rng.u64(0..KEYS);
        (first..self.rng.u64(first + 1..=KEYS)).collect()
    }

    /// Makes a call on a connection: a new one, if there is none.
    fn note(
        &mut self,
        disk: usize,
        call: Call,
        is_flushed: bool,
        act: impl FnOnce(&mut Caller) -> Answer,
    ) -> Result<Answer, Failure> {
        let caller = &mut self.caller;
        let opened = caller.connected(disk).map(|opened| opened.handle);
        let handle = if is_flushed { opened.as_ref().copied().unwrap_or_default() } else { 0 };
        self.notes.note(&Call { handle, ..call }, || match opened {
            Ok(_) => act(caller),
            Err(error) => Answer::failed(Outcome::Error, &error),
        })
    }

    fn read(&mut self, disk: usize, place: u64, keys: &[u64]) -> Result<Answer, Failure> {
        let (at, len) = (offset(place, keys), (keys.len() * BLOCK_BYTES) as u32);
        self.note(disk, call("read", disk, place, keys), false, |caller| {
            let read = caller.ask(disk, |client| Ok(client.read(at, len)?.chunks(BLOCK_BYTES).map(value).collect()));
            read.map_or_else(|error| Answer::failed(Outcome::Error, &why(&error)), Answer::found)
        })
    }

    /// Writes values, or now and then zeros.
    fn write(&mut self, disk: usize, place: u64, keys: &[u64]) -> Result<Answer, Failure> {
        let is_zero = DISKS[disk] != "flushed" && self.rng.u8(0..16) == 0;
        let values: Vec<Held> = keys.iter().map(|_| (!is_zero).then(|| self.value())).collect();
        let (at, len) = (offset(place, keys), (keys.len() * BLOCK_BYTES) as u32);
        let bytes: Vec<u8> = values.iter().flatten().flat_map(|value| block(value)).collect();
        let noted = Call { values, ..call("write", disk, place, keys) };
        self.note(disk, noted, DISKS[disk] == "flushed", |caller| {
            done(caller.ask(disk, |client| {
                if !is_zero {
                    return client.write(at, &bytes, false);
                }
                client.send(command::WRITE_ZEROES, 0, at, len, &[])?;
                match client.receive()?.error {
                    0 => Ok(()),
                    code => Err(ClientError::Failed { what: "WRITE_ZEROES", code }),
                }
            }))
        })
    }

    fn flush(&mut self, disk: usize) -> Result<Answer, Failure> {
        let noted = Call { call: "flush".into(), place: DISKS[disk].into(), ..Call::default() };
        self.note(disk, noted, DISKS[disk] == "flushed", |caller| done(caller.ask(disk, Client::flush)))
    }

    fn value(&mut self) -> String {
        self.next_value += 1;
        format!("{}.{}", self.me, self.next_value)
    }
}

/// What a change came to that was sent.
fn done(asked: Result<(), ClientError>) -> Answer {
    match asked {
        Ok(()) => Answer::ok(),
        Err(error @ ClientError::Failed { code: code::NOSPC, .. }) => Answer::failed(Outcome::Error, &error),
        Err(error) => Answer::failed(Outcome::Unknown, &why(&error)),
    }
}

fn why(error: &ClientError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

/// Opens the writes that were answered before they were durable, and that no flush made durable which was answered
/// later on the same connection. What is left is durable, so that the checker need know of no connections.
pub fn settle(events: &mut [Event]) {
    let mut flushed: HashMap<(u64, u64), u64> = HashMap::new();
    for event in &*events {
        if event.call.call == "flush" && event.call.handle != 0 && event.answer.outcome == Outcome::Ok {
            let last = flushed.entry((event.process, event.call.handle)).or_default();
            *last = event.begin.max(*last);
        }
    }
    for event in events {
        if event.call.handle == 0 {
            continue;
        }
        let covered = flushed.get(&(event.process, event.call.handle)).copied().unwrap_or_default();
        if event.call.call == "write" && event.end.is_some_and(|end| end > covered) {
            event.end = None;
            event.answer = Answer::failed(Outcome::Unknown, &"it was not flushed");
        }
        event.call.handle = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(process: u64, name: &str, handle: u64, begin: u64) -> Event {
        let call = Call { call: name.into(), handle, ..Call::default() };
        Event { process, begin, end: Some(begin + 1), call, answer: Answer::ok() }
    }

    #[test]
    fn a_write_that_no_later_flush_of_its_connection_covers_is_open() {
        let refused = Event { answer: Answer::failed(Outcome::Unknown, &"lost"), ..event(1, "flush", 2, 90) };
        let mut events = [
            event(1, "write", 1, 10),
            event(1, "flush", 1, 20),
            event(1, "write", 1, 30),
            event(1, "write", 2, 40),
            event(2, "flush", 2, 50),
            event(1, "write", 0, 60),
            refused,
        ];
        settle(&mut events);
        let open = events.iter().map(|event| event.answer.outcome == Outcome::Unknown).collect::<Vec<_>>();
        assert_eq!(open, [false, false, true, true, false, false, true]);
        assert_eq!((events[2].end, events[0].end), (None, Some(11)));
        assert!(events.iter().all(|event| event.call.handle == 0));
    }
}

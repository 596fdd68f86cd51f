//! A client of a namespace of int keys by Thrift, through any server of any chain.
//!
//! place → four keys that follow each other, in a range of their own → a call, answered by the chain that has them
//! → what the answer says of it
//!
//! Invariants:
//! 1. What was sent and not answered is of unknown outcome, and so is an error that does not say that nothing was done.
//! 2. Keys of one place are of one range, and so of one chain: several of them are written all or none.
//! 3. After a call that failed a client only reads until it is answered, so that outages leave few calls open.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use esker::kv::{RANGE_KEYS, SLOTS};
use esker_server::nbd::Tls;

use super::door::{AFTER_ERROR, ANSWER, Door};
use super::places::{KEYS, Places};
use crate::notes::{Answer, Call, Held, Notes, Outcome};
use crate::terms::Failure;

/// From one place to the slot of the next: odd, so that each place has another.
const STEP: u64 = 4_099;
/// After so many calls another server is gone to.
const STAYS: u32 = 100;
/// Longest answer that is taken.
const ANSWER_BYTES_MAX: u32 = 1 << 20;
/// Kinds of messages, and types of fields.
const CALL: u8 = 1;
const REPLY: u8 = 2;
const TEXT: u8 = 11;
const STRUCT: u8 = 12;
const LIST: u8 = 15;

/// What a connection is.
trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

/// Why there is no answer.
enum Lost {
    Unsent(io::Error),
    Sent(io::Error),
}

/// What a call was answered.
enum Told {
    /// The bytes behind the head of the answer.
    Reply(Vec<u8>),
    Refused(String),
}

/// Arguments of a call.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn begin(mut self, kind: u8, id: u8) -> Self {
        self.0.extend([kind, 0, id]);
        self
    }

    fn string(mut self, text: &str) -> Self {
        self.0.extend((text.len() as u32).to_be_bytes());
        self.0.extend(text.as_bytes());
        self
    }

    fn text(self, id: u8, text: &str) -> Self {
        self.begin(TEXT, id).string(text)
    }

    fn keys(self, keys: &[String]) -> Self {
        let mut list = self.begin(LIST, 1);
        list.0.push(TEXT);
        list.0.extend((keys.len() as u32).to_be_bytes());
        keys.iter().fold(list, |list, key| list.string(key))
    }

    fn pairs(self, pairs: &[(String, String)]) -> Self {
        let mut list = self.begin(LIST, 1);
        list.0.push(STRUCT);
        list.0.extend((pairs.len() as u32).to_be_bytes());
        pairs.iter().fold(list, |list, (key, value)| {
            let mut list = list.text(1, key).text(2, value);
            list.0.push(0);
            list
        })
    }
}

/// What is left of an answer.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn string(&mut self) -> Option<String> {
        let len = self.u32()?;
        String::from_utf8(self.take(len as usize)?.to_vec()).ok()
    }

    /// The field of this type and number, or the end in its place.
    fn field(&mut self, kind: u8, id: u8) -> Option<bool> {
        let found = self.take(1)?[0];
        Some(found != 0 && (found, self.take(2)?) == (kind, &[0, id][..])).filter(|is| *is || found == 0)
    }
}

/// A connection, when there is one.
struct Caller {
    door: Door,
    rng: fastrand::Rng,
    stream: Option<Box<dyn Stream>>,
}

impl Caller {
    fn connect(&mut self) -> io::Result<&mut Box<dyn Stream>> {
        if self.stream.is_none() {
            let stream = TcpStream::connect_timeout(&self.door.node(&mut self.rng), ANSWER)?;
            stream.set_read_timeout(Some(ANSWER))?;
            stream.set_write_timeout(Some(ANSWER))?;
            stream.set_nodelay(true)?;
            let tls = Tls { host: self.door.host.clone(), certificates: Some(self.door.certificates.clone()) };
            self.stream = Some(Box::new(tls.encrypt(stream)?));
        }
        self.stream.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Calls a method; the connection is over where that fails.
    fn call(&mut self, method: &str, fields: Fields) -> Result<Told, Lost> {
        let mut message = vec![0x80, 1, 0, CALL];
        message.extend(Fields::default().string(method).0);
        message.extend([0, 0, 0, 9]);
        message.extend(fields.0);
        message.push(0);
        let framed = [&(message.len() as u32).to_be_bytes()[..], &message].concat();
        let stream = self.connect().map_err(Lost::Unsent)?;
        let asked = stream.write_all(&framed).and_then(|()| stream.flush()).and_then(|()| answer(stream));
        asked.map_err(|error| {
            self.stream = None;
            Lost::Sent(error)
        })
    }
}

fn answer(stream: &mut Box<dyn Stream>) -> io::Result<Told> {
    let strange = || io::Error::new(io::ErrorKind::InvalidData, "an answer that makes no sense");
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = u32::from_be_bytes(len);
    if len > ANSWER_BYTES_MAX {
        return Err(strange());
    }
    let mut bytes = vec![0; len as usize];
    stream.read_exact(&mut bytes)?;
    let mut rest = Rest(&bytes);
    let kind = rest.take(4).map(|head| head[3]);
    let _ = rest.string().and_then(|_| rest.u32()).ok_or_else(strange)?;
    if kind == Some(REPLY) {
        return Ok(Told::Reply(rest.0.to_vec()));
    }
    let why = rest.field(TEXT, 1).and_then(|_| rest.string()).ok_or_else(strange)?;
    Ok(Told::Refused(why))
}

/// A client.
pub struct ThriftWorker {
    me: u64,
    places: Places,
    rng: fastrand::Rng,
    notes: Notes,
    caller: Caller,
    pause: Duration,
    next_value: u64,
    /// It was not answered.
    fails: bool,
    /// What this client read last.
    known: HashMap<u64, Held>,
}

fn key(place: u64, key: u64) -> u64 {
    place * STEP % SLOTS * RANGE_KEYS + key
}

fn noted(call: &str, place: u64, keys: &[u64], values: &[Held]) -> Call {
    let place = format!("ints/{place}");
    Call { call: call.into(), place, keys: keys.to_vec(), values: values.to_vec(), ..Call::default() }
}

/// Whether a condition held.
fn whether(rest: &mut Rest<'_>) -> Option<Answer> {
    rest.field(2, 0)?.then_some(())?;
    Some(Answer::whether(rest.take(1)?[0] == 1))
}

impl ThriftWorker {
    /// A client of these servers; `me` is its number, and not that of another.
    pub fn new(me: u64, seed: u64, places: Places, notes: Notes, door: Door, pause: Duration) -> Self {
        let rng = fastrand::Rng::with_seed(seed.wrapping_mul(43).wrapping_add(me));
        let caller = Caller { door, rng: rng.clone(), stream: None };
        Self { me, places, rng, notes, caller, pause, next_value: 0, fails: false, known: HashMap::new() }
    }

    /// Works until then.
    pub fn work(&mut self, until: Instant) -> Result<(), Failure> {
        while Instant::now() < until {
            let (place, old) = self.places.pick(&mut self.rng);
            let answer = if old || self.fails {
                let keys = self.some_keys(1..=4);
                self.read(place, &keys)?
            } else {
                self.step(place)?
            };
            self.fails = !matches!(answer.outcome, Outcome::Ok | Outcome::Refused);
            if self.fails {
                std::thread::sleep(AFTER_ERROR);
            }
            if self.fails || self.rng.u32(0..STAYS) == 0 {
                self.caller.stream = None;
            }
            std::thread::sleep(self.pause);
        }
        Ok(())
    }

    /// Reads all that was ever used; each is tried again until it is answered, or it is `until`.
    pub fn read_back(&mut self, until: Instant) -> Result<(), Failure> {
        let keys: Vec<u64> = (0..KEYS).collect();
        for place in 0..self.places.count() {
            loop {
                let answer = self.read(place, &keys)?;
                if answer.outcome == Outcome::Ok {
                    break;
                }
                if Instant::now() >= until {
                    return Err(format!("what int keys hold is not told at the end: {}", answer.why).into());
                }
                self.caller.stream = None;
                std::thread::sleep(AFTER_ERROR);
            }
        }
        Ok(())
    }

    fn some_keys(&mut self, count: std::ops::RangeInclusive<usize>) -> Vec<u64> {
        let count = self.rng.usize(count);
        let mut keys: Vec<u64> = (0..KEYS).collect();
        self.rng.shuffle(&mut keys);
        keys.truncate(count);
        keys.sort_unstable();
        keys
    }

    fn value(&mut self) -> String {
        self.next_value += 1;
        format!("{}.{}", self.me, self.next_value)
    }

    /// Makes a call, and notes what it came to, by `told`.
    fn make(
        &mut self,
        call: &Call,
        method: &str,
        fields: Fields,
        told: impl FnOnce(&mut Rest<'_>) -> Option<Answer>,
    ) -> Result<Answer, Failure> {
        let caller = &mut self.caller;
        self.notes.note(call, || match caller.call(method, fields) {
            Ok(Told::Reply(reply)) => {
                told(&mut Rest(&reply)).unwrap_or_else(|| Answer::failed(Outcome::Fault, &format!("{reply:?}")))
            }
            Ok(Told::Refused(why)) if why.contains("nothing was done") => Answer::failed(Outcome::Error, &why),
            Ok(Told::Refused(why)) => Answer::failed(Outcome::Unknown, &why),
            Err(Lost::Unsent(error)) => Answer::failed(Outcome::Error, &error),
            Err(Lost::Sent(error)) => Answer::failed(Outcome::Unknown, &error),
        })
    }

    fn read(&mut self, place: u64, keys: &[u64]) -> Result<Answer, Failure> {
        let names: Vec<String> = keys.iter().map(|of| key(place, *of).to_string()).collect();
        let call = noted("get_many", place, keys, &[]);
        let answer = self.make(&call, "multiGet", Fields::default().keys(&names), |rest| {
            rest.field(LIST, 0)?.then_some(())?;
            rest.take(1)?;
            let mut found = HashMap::new();
            for _ in 0..rest.u32()? {
                rest.field(TEXT, 1)?;
                let name = rest.string()?;
                rest.field(TEXT, 2)?;
                found.insert(name, rest.string()?);
                rest.take(1)?;
            }
            Some(Answer::found(names.iter().map(|name| found.remove(name)).collect()))
        })?;
        self.known.extend(keys.iter().map(|of| key(place, *of)).zip(answer.found.iter().cloned()));
        Ok(answer)
    }

    fn step(&mut self, place: u64) -> Result<Answer, Failure> {
        let (own, value) = (self.rng.u64(0..KEYS), self.value());
        let (name, held) = (key(place, own).to_string(), [Some(value.clone())]);
        let fields = || Fields::default().text(1, &name);
        match self.rng.u8(0..100) {
            0..25 => self.make(&noted("put", place, &[own], &held), "put", fields().text(2, &value), |rest| {
                rest.field(8, 0)?.then(Answer::ok)
            }),
            25..45 => {
                let answer = self.make(&noted("get", place, &[own], &[]), "get", fields(), |rest| {
                    let found = rest.field(TEXT, 0)?;
                    Some(Answer::found(vec![if found { Some(rest.string()?) } else { None }]))
                })?;
                self.known.extend(answer.found.iter().map(|found| (key(place, own), found.clone())));
                Ok(answer)
            }
            45..50 => self.make(&noted("remove", place, &[own], &[]), "remove", fields(), |rest| {
                rest.field(8, 0)?.then_some(())?;
                Some(Answer::whether(rest.u32()? == 0))
            }),
            50..55 => self.make(&noted("has", place, &[own], &[]), "has", fields(), whether),
            55..62 => self.make(&noted("add", place, &[own], &held), "add", fields().text(2, &value), whether),
            62..68 => self.make(&noted("update", place, &[own], &held), "update", fields().text(2, &value), whether),
            68..84 => {
                let Some(known) = self.known.get(&key(place, own)).cloned() else { return self.read(place, &[own]) };
                let fields = known.iter().fold(fields(), |fields, known| fields.text(2, known)).text(3, &value);
                let call = Call { when: vec![known], ..noted("compare_and_set", place, &[own], &held) };
                self.make(&call, "compareAndSet", fields, whether)
            }
            84..92 => {
                let keys = self.some_keys(2..=3);
                let values: Vec<String> = keys.iter().map(|_| self.value()).collect();
                let pairs: Vec<(String, String)> =
                    keys.iter().map(|of| key(place, *of).to_string()).zip(values.iter().cloned()).collect();
                let held: Vec<Held> = values.into_iter().map(Some).collect();
                let call = noted("put_many", place, &keys, &held);
                self.make(&call, "multiPut", Fields::default().pairs(&pairs), |_| Some(Answer::ok()))
            }
            _ => {
                let keys = self.some_keys(2..=4);
                self.read(place, &keys)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_place_are_of_one_range_and_places_are_apart() {
        let ranges: std::collections::BTreeSet<u64> = (0..SLOTS).map(|place| key(place, 0) / RANGE_KEYS).collect();
        assert_eq!(ranges.len() as u64, SLOTS);
        assert!((0..100).all(|place| key(place, KEYS - 1) / RANGE_KEYS == key(place, 0) / RANGE_KEYS));
    }

    #[test]
    fn answers_are_read_to_their_end_or_make_no_sense() {
        assert_eq!(whether(&mut Rest(&[2, 0, 0, 1, 0])), Some(Answer::ok()));
        assert_eq!(whether(&mut Rest(&[2, 0, 0, 0, 0])), Some(Answer::refused()));
        for strange in [&[][..], &[0], &[2, 0, 0], &[2, 0, 1, 1, 0], &[8, 0, 0, 1, 0]] {
            assert_eq!(whether(&mut Rest(strange)), None, "{strange:?}");
        }
        assert_eq!(Rest(&[0, 0, 0, 9, b'x']).string(), None);
    }
}

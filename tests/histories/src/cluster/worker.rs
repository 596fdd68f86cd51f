//! One client of a cluster: a thread that calls by chance, and notes what it was told.
//!
//! place → keys of texts and counters, all of one chain → a call, sent to its head → what the answer says of it
//!
//! Invariants:
//! 1. What was sent and not answered is of unknown outcome, and so is every error that does not say by its code that
//!    nothing was done.
//! 2. After a call that failed a client only reads of that chain until it is answered, so that outages leave few calls
//!    open.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::parts::Parts;
use super::places::{KEYS, Places};
use super::redis::{Command, Lost, RedisClient, Reply, did_nothing};
use crate::notes::{Answer, Call, Held, Notes, Outcome};
use crate::terms::Failure;

/// Where a call fails, the next one waits.
const AFTER_ERROR: Duration = Duration::from_millis(20);

/// What a place holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Texts,
    Counters,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Texts, Self::Counters];

    fn name(self) -> &'static str {
        match self {
            Self::Texts => "texts",
            Self::Counters => "counters",
        }
    }
}

/// A group of keys.
struct Group {
    kind: Kind,
    number: u64,
    /// Between the braces of all its keys.
    tag: String,
    /// Which of the chains keeps it.
    part: usize,
}

impl Group {
    fn key(&self, key: u64) -> String {
        format!("{{{}}}/{}/{key}", self.tag, self.kind.name())
    }

    fn call(&self, call: &str, keys: &[u64], values: &[Held]) -> Call {
        Call {
            call: call.into(),
            place: format!("{}/{}", self.kind.name(), self.number),
            keys: keys.to_vec(),
            values: values.to_vec(),
            ..Call::default()
        }
    }
}

/// The way to a chain.
pub struct Way {
    pub client: RedisClient,
    /// Reads are asked of this one, where replicas may answer them.
    pub reader: Option<RedisClient>,
    /// What was asked last was not answered.
    pub fails: bool,
}

/// A client.
pub struct Worker {
    pub me: u64,
    pub places: Places,
    pub rng: fastrand::Rng,
    pub notes: Notes,
    /// To each chain, in the order of their slots; at least one.
    pub ways: Vec<Way>,
    pub pause: Duration,
    next_value: u64,
    /// What this client read last, by place, key and kind.
    known: HashMap<String, Held>,
}

/// What these replies say, where each of them is no error: by `answered`.
fn told(asked: Result<Vec<Reply>, Lost>, answered: impl FnOnce(&[Reply]) -> Option<Answer>) -> Answer {
    let replies = match asked {
        Ok(replies) => replies,
        Err(Lost::Unsent(why)) => return Answer::failed(Outcome::Error, &why),
        Err(Lost::Sent(why)) => return Answer::failed(Outcome::Unknown, &why),
    };
    // What was queued says why it was not, and EXEC what became of all.
    match replies.last() {
        Some(Reply::Error(error)) if did_nothing(error) => Answer::failed(Outcome::Error, error),
        // All keys of a command are of one chain.
        Some(Reply::Error(error)) if error.starts_with("CROSSSLOT") => Answer::failed(Outcome::Fault, error),
        Some(Reply::Error(error)) => Answer::failed(Outcome::Unknown, error),
        _ => answered(&replies).unwrap_or_else(|| Answer::failed(Outcome::Fault, &format!("{replies:?}"))),
    }
}

/// A condition held, or did not, by a number: 1 or 0.
fn counted(replies: &[Reply]) -> Option<Answer> {
    match replies {
        [Reply::Number(0)] => Some(Answer::refused()),
        [Reply::Number(1)] => Some(Answer::ok()),
        _ => None,
    }
}

/// A condition held, or did not, by OK or nothing.
fn set(replies: &[Reply]) -> Option<Answer> {
    match replies {
        [Reply::Simple(_)] => Some(Answer::ok()),
        [Reply::Bulk(None)] => Some(Answer::refused()),
        _ => None,
    }
}

fn found(replies: &[Reply]) -> Option<Answer> {
    match replies.last() {
        Some(Reply::Bulk(value)) => Some(Answer::found(vec![value.clone()])),
        Some(Reply::Array(Some(values))) => {
            let values = values.iter().map(|value| match value {
                Reply::Bulk(value) => Some(value.clone()),
                _ => None,
            });
            values.collect::<Option<Vec<Held>>>().map(Answer::found)
        }
        _ => None,
    }
}

impl Worker {
    pub fn new(me: u64, places: Places, seed: u64, notes: Notes, ways: Vec<Way>, pause: Duration) -> Self {
        let rng = fastrand::Rng::with_seed(seed.wrapping_mul(31).wrapping_add(me));
        Self { me, places, rng, notes, ways, pause, next_value: 0, known: HashMap::new() }
    }

    fn group(&self, kind: Kind, number: u64) -> Group {
        let parts = Parts(self.ways.len() as u64);
        Group { kind, number, tag: parts.tag(number), part: parts.of(number) }
    }

    fn value(&mut self) -> String {
        self.next_value += 1;
        format!("{}.{}", self.me, self.next_value)
    }

    fn some_keys(&mut self, count: std::ops::RangeInclusive<usize>) -> Vec<u64> {
        let count = self.rng.usize(count);
        let mut keys: Vec<u64> = (0..KEYS).collect();
        self.rng.shuffle(&mut keys);
        keys.truncate(count);
        keys.sort_unstable();
        keys
    }

    /// Works until then.
    pub fn work(&mut self, until: Instant) -> Result<(), Failure> {
        while Instant::now() < until {
            let kind = if self.rng.u8(0..4) == 0 { Kind::Counters } else { Kind::Texts };
            let (number, old) = self.places.pick(&mut self.rng);
            let group = self.group(kind, number);
            let answer = if old || self.ways[group.part].fails {
                let keys = self.some_keys(1..=4);
                self.read(&group, &keys)?
            } else {
                match kind {
                    Kind::Texts => self.step(&group)?,
                    Kind::Counters => self.count(&group)?,
                }
            };
            let fails = !matches!(answer.outcome, Outcome::Ok | Outcome::Refused);
            self.ways[group.part].fails = fails;
            if fails {
                std::thread::sleep(AFTER_ERROR);
            }
            std::thread::sleep(self.pause);
        }
        Ok(())
    }

    /// Reads all that was ever used; each is tried again until it is answered, or it is `until`.
    pub fn read_back(&mut self, until: Instant) -> Result<(), Failure> {
        let keys: Vec<u64> = (0..KEYS).collect();
        for number in 0..self.places.count() {
            for kind in Kind::ALL {
                let group = self.group(kind, number);
                loop {
                    let answer = self.read(&group, &keys)?;
                    if answer.outcome == Outcome::Ok {
                        break;
                    }
                    if Instant::now() >= until {
                        return Err(format!("what {} hold is not told at the end: {}", kind.name(), answer.why).into());
                    }
                    std::thread::sleep(AFTER_ERROR);
                }
            }
        }
        Ok(())
    }

    /// Makes a call that only reads.
    fn look(&mut self, group: &Group, call: &Call, command: Command<'_>) -> Result<Answer, Failure> {
        let Some(reader) = &mut self.ways[group.part].reader else { return self.make(group, call, command, found) };
        let answer = self.notes.note(call, || told(reader.ask(&[command], false), found))?;
        // Another is asked next now and then: who was sent to the head stays there.
        if answer.outcome != Outcome::Ok || self.rng.u8(0..50) == 0 {
            reader.give_up();
        }
        Ok(answer)
    }

    /// Makes a call of one command.
    fn make(
        &mut self,
        group: &Group,
        call: &Call,
        command: Command<'_>,
        answered: impl FnOnce(&[Reply]) -> Option<Answer>,
    ) -> Result<Answer, Failure> {
        let client = &mut self.ways[group.part].client;
        let answer = self.notes.note(call, || told(client.ask(&[command], false), answered))?;
        if !matches!(answer.outcome, Outcome::Ok | Outcome::Refused) {
            client.give_up();
        }
        Ok(answer)
    }

    fn read(&mut self, group: &Group, keys: &[u64]) -> Result<Answer, Failure> {
        let names: Vec<String> = keys.iter().map(|key| group.key(*key)).collect();
        let mut command = vec!["MGET"];
        command.extend(names.iter().map(String::as_str));
        let answer = self.look(group, &group.call("get_many", keys, &[]), &command)?;
        self.known.extend(names.into_iter().zip(answer.found.iter().cloned()));
        Ok(answer)
    }

    fn step(&mut self, group: &Group) -> Result<Answer, Failure> {
        let (key, value) = (self.rng.u64(0..KEYS), self.value());
        let name = group.key(key);
        let values = [Some(value.clone())];
        match self.rng.u8(0..100) {
            0..25 => self.make(group, &group.call("put", &[key], &values), &["SET", &name, &value], set),
            25..45 => {
                let answer = self.look(group, &group.call("get", &[key], &[]), &["GET", &name])?;
                self.known.extend(answer.found.iter().map(|found| (name.clone(), found.clone())));
                Ok(answer)
            }
            45..52 => self.make(group, &group.call("remove", &[key], &[]), &["DEL", &name], counted),
            52..60 => self.make(group, &group.call("add", &[key], &values), &["SET", &name, &value, "NX"], set),
            60..66 => self.make(group, &group.call("update", &[key], &values), &["SET", &name, &value, "XX"], set),
            66..72 => self.make(group, &group.call("transact", &[key], &values), &["SET", &name, &value, "GET"], found),
            72..84 => self.compare_and_set(group, key, &value),
            84..90 => {
                let keys = self.some_keys(2..=3);
                let values: Vec<Held> = keys.iter().map(|_| Some(self.value())).collect();
                let names: Vec<String> = keys.iter().map(|key| group.key(*key)).collect();
                let mut command = vec!["MSET"];
                for (name, value) in names.iter().zip(&values) {
                    command.extend([name.as_str(), value.as_deref().unwrap_or_default()]);
                }
                self.make(group, &group.call("put_many", &keys, &values), &command, set)
            }
            _ => {
                let keys = self.some_keys(2..=4);
                self.read(group, &keys)
            }
        }
    }

    /// Reads a key while it is watched, then writes it if no other has since.
    fn compare_and_set(&mut self, group: &Group, key: u64, value: &str) -> Result<Answer, Failure> {
        let name = group.key(key);
        // Where the head is somewhere else, this goes there, and is watched there.
        let client = &mut self.ways[group.part].client;
        let watched = client.ask(&[&["WATCH", &name]], false);
        let call = group.call("get", &[key], &[]);
        let read = self.notes.note(&call, || match watched {
            Ok(replies) if matches!(replies[..], [Reply::Simple(_)]) => {
                told(client.ask(&[&["GET", &name]], true), found)
            }
            Ok(replies) => Answer::failed(Outcome::Error, &format!("WATCH: {replies:?}")),
            Err(Lost::Unsent(why) | Lost::Sent(why)) => Answer::failed(Outcome::Error, &why),
        })?;
        let [held] = &read.found[..] else {
            client.give_up();
            return Ok(read);
        };
        let values = [Some(value.to_owned())];
        let call = Call { when: vec![held.clone()], ..group.call("compare_and_set", &[key], &values) };
        let mut changed = false;
        let answer = self.notes.note(&call, || {
            told(client.ask(&[&["MULTI"], &["SET", &name, value], &["EXEC"]], true), |replies| match replies.last() {
                Some(Reply::Array(None) | Reply::Bulk(None)) => {
                    changed = true;
                    // It was changed meanwhile; it need not be other than it was at any time since this was called.
                    Some(Answer::failed(Outcome::Error, &"changed since it was read"))
                }
                Some(Reply::Array(Some(done))) if matches!(done[..], [Reply::Simple(_)]) => Some(Answer::ok()),
                Some(Reply::Array(Some(done))) => match &done[..] {
                    [Reply::Error(error)] if did_nothing(error) => Some(Answer::failed(Outcome::Error, error)),
                    [Reply::Error(error)] => Some(Answer::failed(Outcome::Unknown, error)),
                    _ => None,
                },
                _ => None,
            })
        })?;
        if changed {
            return Ok(Answer::refused());
        }
        if answer.outcome != Outcome::Ok {
            // It may be in the middle of a transaction.
            client.give_up();
        }
        Ok(answer)
    }

    fn count(&mut self, group: &Group) -> Result<Answer, Failure> {
        let key = self.rng.u64(0..KEYS);
        let name = group.key(key);
        match self.rng.u8(0..100) {
            0..60 => {
                self.make(group, &group.call("increment", &[key], &[]), &["INCR", &name], |replies| match replies {
                    [Reply::Number(number)] => u64::try_from(*number).ok().map(Answer::number),
                    _ => None,
                })
            }
            60..64 => self.make(group, &group.call("remove", &[key], &[]), &["DEL", &name], counted),
            64..82 => self.look(group, &group.call("get", &[key], &[]), &["GET", &name]),
            _ => {
                let keys = self.some_keys(2..=4);
                self.read(group, &keys)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_of_unknown_outcome_but_where_it_says_that_nothing_was_done() {
        let outcome = |asked| told(asked, set).outcome;
        let error = |text: &str| Ok(vec![Reply::Error(text.into())]);
        assert_eq!(outcome(error("MOVED 1 127.0.0.1:1")), Outcome::Error);
        assert_eq!(outcome(error("CLUSTERDOWN The cluster is down")), Outcome::Error);
        assert_eq!(outcome(error("MISCONF its lease has run out")), Outcome::Unknown);
        assert_eq!(outcome(error("CROSSSLOT Keys in request don't hash to the same slot")), Outcome::Fault);
        assert_eq!(outcome(Err(Lost::Sent("closed".into()))), Outcome::Unknown);
        assert_eq!(outcome(Err(Lost::Unsent("refused".into()))), Outcome::Error);
        assert_eq!(outcome(Ok(vec![Reply::Simple("OK".into())])), Outcome::Ok);
        assert_eq!(outcome(Ok(vec![Reply::Bulk(None)])), Outcome::Refused);
        assert_eq!(outcome(Ok(vec![Reply::Number(3)])), Outcome::Fault);
    }
}

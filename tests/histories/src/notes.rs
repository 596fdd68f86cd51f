//! What a process called and was told, in a file that outlives it, and the lines that the checker reads.
//!
//! [`Notes`] (a line for the begin of a call, one for its answer) → [`events`] → one line of JSON for each call
//!
//! Invariants:
//! 1. Who was killed leaves a begin without an answer: that call is of unknown outcome, and open.
//! 2. Times are those of the machine's monotonic clock in nanoseconds, the same for all processes.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::terms::Failure;

/// The time.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A value or that there is none.
pub type Held = Option<String>;

/// What became of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It was done, and answered.
    Ok,
    /// Its condition did not hold: nothing was changed.
    Refused,
    /// An error by which nothing was changed, or nothing was read.
    Error,
    /// The client does not know.
    #[default]
    Unknown,
    /// An error that no client should ever be told of: damage.
    Fault,
}

/// What is called, on what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Call {
    /// Its name.
    pub call: String,
    /// What the checker looks at by itself: a group of keys, a partition, a log, an image.
    pub place: String,
    /// Keys in that place: numbers of keys, rows, positions, blocks.
    pub keys: Vec<u64>,
    /// What is written, for each key.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Held>,
    /// Conditions, for each key.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<Held>,
    /// A number that goes with the call: an epoch, a position.
    #[serde(skip_serializing_if = "is_zero")]
    pub held: u64,
    /// Who holds what is synced later: the number of a handle, for writes that are only applied and for flushes.
    #[serde(skip_serializing_if = "is_zero")]
    pub handle: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What was told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// What became of the call.
    pub outcome: Outcome,
    /// Values, for each key, or the row that a condition met.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub found: Vec<Held>,
    /// A number: how many, a position, an epoch.
    #[serde(skip_serializing_if = "is_zero")]
    pub number: u64,
    /// The error's text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
}

impl Answer {
    /// Done, and nothing more to say.
    pub fn ok() -> Self {
        Self { outcome: Outcome::Ok, ..Self::default() }
    }

    /// The condition did not hold.
    pub fn refused() -> Self {
        Self { outcome: Outcome::Refused, ..Self::default() }
    }

    /// Done or refused.
    pub fn whether(done: bool) -> Self {
        if done { Self::ok() } else { Self::refused() }
    }

    /// Done, with these values.
    pub fn found(found: Vec<Held>) -> Self {
        Self { found, ..Self::ok() }
    }

    /// Done, with this number.
    pub fn number(number: u64) -> Self {
        Self { number, ..Self::ok() }
    }

    /// An error.
    pub fn failed(outcome: Outcome, why: &dyn std::fmt::Display) -> Self {
        Self { outcome, why: why.to_string(), ..Self::default() }
    }
}

/// A call with its answer, as the checker reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// Who called.
    pub process: u64,
    /// When it was called.
    pub begin: u64,
    /// When it was answered; none: it is open.
    pub end: Option<u64>,
    /// What was called.
    #[serde(flatten)]
    pub call: Call,
    /// What was told.
    #[serde(flatten)]
    pub answer: Answer,
}

/// How many calls ended how, in the order of [`Outcome`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub ok: u64,
    pub refused: u64,
    pub errors: u64,
    pub unknown: u64,
    pub faults: u64,
}

impl Tally {
    /// Counts one more.
    pub fn count(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Ok => &mut self.ok,
            Outcome::Refused => &mut self.refused,
            Outcome::Error => &mut self.errors,
            Outcome::Unknown => &mut self.unknown,
            Outcome::Fault => &mut self.faults,
        } += 1;
    }

    /// All calls.
    pub fn calls(&self) -> u64 {
        self.ok + self.refused + self.errors + self.unknown + self.faults
    }

    /// With those of another.
    pub fn and(self, other: Self) -> Self {
        Self {
            ok: self.ok + other.ok,
            refused: self.refused + other.refused,
            errors: self.errors + other.errors,
            unknown: self.unknown + other.unknown,
            faults: self.faults + other.faults,
        }
    }
}

/// Marks of the lines of a process's file.
const BEGINS: &str = "b ";
const ENDS: &str = "e ";

/// The file of a process.
pub struct Notes {
    file: File,
    /// What was noted.
    pub tally: Tally,
}

impl Notes {
    /// A new file.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        Ok(Self { file: File::create(path)?, tally: Tally::default() })
    }

    /// Makes a call, and notes it before and its answer after.
    pub fn note(&mut self, call: &Call, act: impl FnOnce() -> Answer) -> Result<Answer, Failure> {
        self.line(BEGINS, &(now(), call))?;
        let answer = act();
        let end = now();
        if answer.outcome != Outcome::Unknown {
            self.line(ENDS, &(end, &answer))?;
        }
        self.tally.count(answer.outcome);
        Ok(answer)
    }

    fn line(&mut self, mark: &str, what: &impl Serialize) -> Result<(), Failure> {
        let line = format!("{mark}{}\n", serde_json::to_string(what)?);
        Ok(self.file.write_all(line.as_bytes())?)
    }
}

/// The calls in the file of a process. A last line that was not ended is none.
pub fn events(process: u64, text: &str) -> Result<Vec<Event>, Failure> {
    let mut events: Vec<Event> = Vec::new();
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        if let Some(begun) = line.strip_prefix(BEGINS) {
            let (begin, call): (u64, Call) = serde_json::from_str(begun)?;
            events.push(Event { process, begin, call, ..Event::default() });
        } else if let (Some(ended), Some(event)) = (line.strip_prefix(ENDS), events.last_mut()) {
            let (end, answer): (u64, Answer) = serde_json::from_str(ended)?;
            (event.end, event.answer) = (Some(end), answer);
        } else {
            return Err(format!("notes of process {process}: {line:?} is neither begin nor end of a call").into());
        }
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_whose_answer_nobody_noted_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        let mut notes = Notes::create(&path).unwrap();
        let call = Call { call: "get".into(), place: "bytes/1".into(), keys: vec![2], ..Call::default() };
        let answered = notes.note(&call, || Answer::found(vec![None, Some("1.0.7".into())])).unwrap();
        notes.note(&call, || Answer::failed(Outcome::Unknown, &"lost")).unwrap();
        notes.file.write_all(b"b [17, {\"ca").unwrap();
        let events = events(3, &std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(events.len(), 2);
        assert_eq!((&events[0].answer, &events[0].call), (&answered, &call));
        assert!(events[0].end.unwrap() >= events[0].begin);
        assert_eq!((events[1].end, events[1].answer.outcome), (None, Outcome::Unknown));
        assert_eq!((notes.tally.ok, notes.tally.unknown, notes.tally.calls()), (1, 1, 2));
        let line = serde_json::to_string(&events[0]).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), events[0]);
    }
}

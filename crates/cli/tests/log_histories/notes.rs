//! What a process did and was told, in a file that outlives it.
//!
//! [`Notes`] (one line for the begin of an append, one for its answer; one for each other act) → [`events`]
//!
//! Invariants:
//! 1. The begin of an append stands in the file before its first call, so that a process that is killed leaves it as
//!    unanswered.
//! 2. Times are those of the machine's monotonic clock in nanoseconds, the same for all processes.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use esker_sim::logs::history::{Act, Appended, Event, Payload, Seen};

/// The time.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The file of a process.
pub struct Notes {
    file: File,
    waiting: String,
}

/// Bytes of notes that wait to be written together, where that may be.
const WAITING_BYTES: usize = 8 << 10;

impl Notes {
    pub fn create(path: &Path) -> Self {
        Self { file: File::create(path).unwrap(), waiting: String::new() }
    }

    fn write(&mut self, line: &str) {
        self.file.write_all(line.as_bytes()).unwrap();
    }

    /// An append begins.
    pub fn begins(&mut self, payload: Payload) {
        self.write(&format!("b {} {payload}\n", now()));
    }

    /// It was answered. An append of unknown outcome was not.
    pub fn answered(&mut self, payload: Payload, result: Appended) {
        match result {
            Appended::At(position) => self.write(&format!("a {} {payload} {position}\n", now())),
            Appended::Refused => self.write(&format!("r {} {payload}\n", now())),
            Appended::Unknown => {}
        }
    }

    /// A position was read.
    pub fn read(&mut self, begin: u64, end: u64, position: u64, seen: &Seen) {
        let seen = match seen {
            Seen::Entry(payload) => format!("e {payload}"),
            Seen::Filled => "f".into(),
            Seen::Trimmed => "t".into(),
            Seen::Nothing => "n".into(),
        };
        self.waiting += &format!("s {begin} {end} {position} {seen}\n");
        if self.waiting.len() > WAITING_BYTES {
            self.flush();
        }
    }

    /// The tail was told.
    pub fn tail(&mut self, begin: u64, end: u64, tail: u64) {
        self.waiting += &format!("l {begin} {end} {tail}\n");
    }

    pub fn flush(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        self.write(&waiting);
    }
}

/// The events in the notes of a process. A last line that was not ended is none.
pub fn events(process: usize, text: &str) -> Vec<Event> {
    let mut events = Vec::new();
    let mut appends = HashMap::new();
    let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    for line in lines {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| -> u64 { fields[at].parse().unwrap_or_else(|_| panic!("notes: {line:?}")) };
        let append =
            |payload, result| Act::Append { payloads: vec![payload], durable: true, number: None, under: 0, result };
        match fields[0] {
            "b" => {
                appends.insert(number(2), events.len());
                let act = append(number(2), Appended::Unknown);
                events.push(Event { process, begin: number(1), end: u64::MAX, act });
            }
            kind @ ("a" | "r") => {
                let event: &mut Event = &mut events[appends[&number(2)]];
                event.end = number(1);
                let result = if kind == "a" { Appended::At(number(3)) } else { Appended::Refused };
                event.act = append(number(2), result);
            }
            "s" => {
                let seen = match fields[4] {
                    "e" => Seen::Entry(number(5)),
                    "f" => Seen::Filled,
                    "t" => Seen::Trimmed,
                    _ => Seen::Nothing,
                };
                let act = Act::Read { position: number(3), seen, keeps: true };
                events.push(Event { process, begin: number(1), end: number(2), act });
            }
            "l" => events.push(Event { process, begin: number(1), end: number(2), act: Act::Tail(number(3)) }),
            _ => panic!("notes: {line:?}"),
        }
    }
    events
}

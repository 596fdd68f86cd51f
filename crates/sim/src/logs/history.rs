//! Histories of a log: what processes did and were told, held against what a log is.
//!
//! events (begin, end, act) → what was seen at each position → the rules → the first rule that is broken
//!
//! A log decides each position once, so a history is linearizable if and only if a few rules hold of single events and
//! of pairs, and no search over orders is needed: positions are the order. (1) Of appends the order by position is a
//! linearization exactly if no append that ended before another began stands above it: a total order extends the order
//! in real time if no pair contradicts. (2) A position is a register that is written once: its reads are linearizable
//! exactly if all see one value, none sees it before its append began, and none misses what was seen before it began.
//! (3) Being filled and being trimmed are such values too, save that what is trimmed follows any other. (4) The tail is
//! above everything that was decided before it was asked for; how far above is not bounded, since positions may be
//! handed out and never written.
//!
//! Invariants:
//! 1. Times are unique: of two events that are not concurrent one ended before the other began.
//! 2. An event that was not answered ends never, and may have happened at any time after it began.

use std::collections::HashMap;

/// What an entry holds: a number that no other entry has.
pub type Payload = u64;

/// What was seen at a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// This entry.
    Entry(Payload),
    /// It was given up.
    Filled,
    /// It was trimmed.
    Trimmed,
    /// Nothing yet.
    Nothing,
}

/// How an append ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// Its first entry stands there.
    At(u64),
    /// It is not in the log and never will be.
    Refused,
    /// The process was not told.
    Unknown,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Entries were appended at consecutive positions.
    Append {
        /// They.
        payloads: Vec<Payload>,
        /// Whether a power cut may not take them back.
        durable: bool,
        /// Writer and number, of a named writer's.
        number: Option<(u64, u64)>,
        /// Which ownership of the log it was done under; 0: none.
        under: u64,
        /// How it ended.
        result: Appended,
    },
    /// A writer was told that its number stands at a position.
    Known {
        /// Writer and number.
        number: (u64, u64),
        /// Where.
        position: u64,
    },
    /// A position was read.
    Read {
        /// Which.
        position: u64,
        /// What was seen.
        seen: Seen,
        /// The reader keeps recent entries, and may be told of one that was trimmed since.
        keeps: bool,
    },
    /// The tail was asked for.
    Tail(u64),
    /// A position was trimmed, or all below one.
    Trim {
        /// The first position.
        from: u64,
        /// The position after the last.
        to: u64,
        /// Whether it is known to be done.
        done: bool,
    },
    /// A reader of the stream (of all entries with an odd payload) found none of its entries in a range.
    Passed {
        /// The first position.
        from: u64,
        /// The position after the last.
        to: u64,
    },
    /// The log was sealed at its tail.
    Seal(u64),
    /// The log was, or may have been, taken by an only writer.
    Own {
        /// A number for it.
        id: u64,
        /// Whether it is known to be done.
        done: bool,
    },
    /// An only writer let go, or may have.
    Release,
    /// Power was lost: what was not durable may be gone.
    PowerLoss,
}

/// Something that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The process that did it.
    pub process: usize,
    /// When it began.
    pub begin: u64,
    /// When it was answered; `u64::MAX`: never.
    pub end: u64,
    /// What.
    pub act: Act,
}

/// What was written.
struct Written {
    begin: u64,
    durable: bool,
    number: Option<(u64, u64)>,
    refused: bool,
}

/// One look at a position.
struct Look<'a> {
    event: &'a Event,
    seen: Seen,
    keeps: bool,
}

/// The history, ordered for the rules.
struct Rules<'a> {
    events: &'a [Event],
    losses: Vec<u64>,
    written: HashMap<Payload, Written>,
    looks: HashMap<u64, Vec<Look<'a>>>,
    trims: Vec<(&'a Event, u64, u64, bool)>,
}

/// Holds a history against the rules.
///
/// # Errors
/// The first rule that is broken, with the events that break it.
pub fn check(events: &[Event]) -> Result<(), String> {
    let mut rules =
        Rules { events, losses: Vec::new(), written: HashMap::new(), looks: HashMap::new(), trims: Vec::new() };
    rules.gather()?;
    rules.positions()?;
    rules.payloads()?;
    rules.order()?;
    rules.streams()?;
    rules.seals()?;
    rules.owners()
}

impl<'a> Rules<'a> {
    fn gather(&mut self) -> Result<(), String> {
        for event in self.events {
            match &event.act {
                Act::Append { payloads, durable, number, result, .. } => {
                    for (place, payload) in payloads.iter().enumerate() {
                        let refused = *result == Appended::Refused;
                        let written = Written { begin: event.begin, durable: *durable, number: *number, refused };
                        if self.written.insert(*payload, written).is_some() {
                            return Err(format!("payload {payload} was appended twice: the history is not one"));
                        }
                        if let Appended::At(first) = result {
                            self.look(first + place as u64, event, Seen::Entry(*payload), false);
                        }
                    }
                }
                Act::Read { position, seen, keeps } => self.look(*position, event, seen.clone(), *keeps),
                Act::Trim { from, to, done } => self.trims.push((event, *from, *to, *done)),
                Act::PowerLoss => self.losses.push(event.begin),
                _ => {}
            }
        }
        Ok(())
    }

    fn look(&mut self, position: u64, event: &'a Event, seen: Seen, keeps: bool) {
        self.looks.entry(position).or_default().push(Look { event, seen, keeps });
    }

    fn lost_between(&self, from: u64, to: u64) -> bool {
        self.losses.iter().any(|at| (from..to).contains(at))
    }

    /// Whether what `earlier` saw may be gone by the time of `later`: it was not durable, and power was lost in
    /// between.
    fn may_be_gone(&self, earlier: &Look<'_>, later: &Look<'_>) -> bool {
        let Seen::Entry(payload) = earlier.seen else { return false };
        let durable = self.written.get(&payload).is_none_or(|written| written.durable);
        !durable && self.lost_between(earlier.event.begin, later.event.end)
    }

    fn trim_begun(&self, position: u64, before: u64) -> bool {
        self.trims.iter().any(|(event, from, to, _)| (*from..*to).contains(&position) && event.begin < before)
    }

    fn trim_done(&self, position: u64, before: u64) -> bool {
        let all = &self.trims;
        all.iter().any(|(event, from, to, done)| *done && (*from..*to).contains(&position) && event.end < before)
    }

    /// Each position is decided once, and stays so.
    fn positions(&self) -> Result<(), String> {
        for (position, looks) in &self.looks {
            for look in looks {
                match &look.seen {
                    Seen::Entry(payload) => {
                        let Some(written) = self.written.get(payload) else {
                            return Err(format!(
                                "position {position} holds {payload}, which no process wrote: {:?}",
                                look.event
                            ));
                        };
                        if written.refused {
                            return Err(format!(
                                "position {position} holds {payload}, whose append was refused: {:?}",
                                look.event
                            ));
                        }
                        if look.event.end < written.begin {
                            return Err(format!(
                                "position {position} held {payload} before it was appended: {:?}",
                                look.event
                            ));
                        }
                    }
                    Seen::Trimmed if !self.trim_begun(*position, look.event.end) => {
                        return Err(format!("position {position} is trimmed, by no process: {:?}", look.event));
                    }
                    Seen::Nothing if self.trim_done(*position, look.event.begin) => {
                        return Err(format!("position {position} was trimmed and is not any more: {:?}", look.event));
                    }
                    Seen::Trimmed | Seen::Nothing | Seen::Filled => {}
                }
                let value = matches!(look.seen, Seen::Entry(_) | Seen::Filled);
                if value && !look.keeps && self.trim_done(*position, look.event.begin) {
                    return Err(format!(
                        "position {position} was trimmed before, and was shown again: {:?}",
                        look.event
                    ));
                }
            }
            for one in looks {
                for other in looks {
                    if std::ptr::eq(one, other) {
                        continue;
                    }
                    let later = one.event.begin < other.event.begin;
                    let excused = if later { self.may_be_gone(one, other) } else { self.may_be_gone(other, one) };
                    if excused {
                        continue;
                    }
                    let two = matches!(one.seen, Seen::Entry(_) | Seen::Filled)
                        && matches!(other.seen, Seen::Entry(_) | Seen::Filled)
                        && one.seen != other.seen;
                    let missed =
                        one.seen != Seen::Nothing && other.seen == Seen::Nothing && one.event.end < other.event.begin;
                    if two || missed {
                        return Err(format!(
                            "position {position} has two values over time: {:?} and {:?}",
                            one.event, other.event
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Each entry stands at one position, and each number of a writer too.
    fn payloads(&self) -> Result<(), String> {
        let (mut places, mut numbers) = (HashMap::new(), HashMap::new());
        let mut number_at = |number: (u64, u64), position: u64| match numbers.insert(number, position) {
            Some(before) if before != position => {
                Err(format!("number {} of writer {} stands at {before} and at {position}", number.1, number.0))
            }
            _ => Ok(()),
        };
        for (position, looks) in &self.looks {
            for look in looks {
                let Seen::Entry(payload) = look.seen else { continue };
                if let Some(before) = places.insert(payload, *position)
                    && before != *position
                {
                    return Err(format!("entry {payload} stands at {before} and at {position}: {:?}", look.event));
                }
                if let Some(number) = self.written.get(&payload).and_then(|written| written.number) {
                    number_at(number, *position)?;
                }
            }
        }
        for event in self.events {
            if let Act::Known { number, position } = event.act {
                number_at(number, position)?;
            }
        }
        Ok(())
    }

    /// What begins after something was decided stands above it, and so does the tail.
    fn order(&self) -> Result<(), String> {
        // (known at, one above the highest position, what may take it back)
        let mut floors: Vec<(u64, u64, bool, u64)> = Vec::new();
        for (position, looks) in &self.looks {
            for look in looks {
                let durable = match look.seen {
                    Seen::Nothing => continue,
                    // All below something may be trimmed; that is said by its own event.
                    Seen::Trimmed => continue,
                    Seen::Filled => true,
                    Seen::Entry(payload) => self.written.get(&payload).is_none_or(|written| written.durable),
                };
                floors.push((look.event.end, position + 1, durable, look.event.begin));
            }
        }
        for (event, _, to, done) in &self.trims {
            if *done {
                floors.push((event.end, *to, true, event.begin));
            }
        }
        floors.sort_unstable();
        let mut later: Vec<(&Event, u64)> = Vec::new();
        for event in self.events {
            match &event.act {
                Act::Append { result: Appended::At(first), .. } => later.push((event, *first)),
                Act::Tail(tail) => later.push((event, *tail)),
                _ => {}
            }
        }
        later.sort_by_key(|(event, _)| event.begin);
        let (mut at, mut floor, mut soft) = (0, 0, Vec::new());
        for (event, position) in later {
            while let Some((known, above, durable, begin)) = floors.get(at).filter(|(known, ..)| *known < event.begin) {
                if *durable {
                    floor = floor.max(*above);
                } else {
                    soft.push((*begin, *above));
                }
                let _ = known;
                at += 1;
            }
            let soft_floor =
                soft.iter().filter(|(begin, _)| !self.lost_between(*begin, event.end)).map(|(_, above)| *above);
            let least = floor.max(soft_floor.max().unwrap_or(0));
            if position < least {
                return Err(format!("everything below {least} was decided before: {event:?}"));
            }
        }
        Ok(())
    }

    /// A stream leaves none of its entries out.
    fn streams(&self) -> Result<(), String> {
        for event in self.events {
            let Act::Passed { from, to } = event.act else { continue };
            for position in from..to {
                let entry = self.looks.get(&position).into_iter().flatten().find(|look| {
                    let durable = |payload| self.written.get(payload).is_none_or(|written| written.durable);
                    matches!(&look.seen, Seen::Entry(payload) if payload % 2 == 1 && durable(payload))
                });
                if let Some(entry) = entry
                    && !self.trim_begun(position, event.end)
                {
                    return Err(format!("the stream left out {:?}: {event:?}", entry.event));
                }
            }
        }
        Ok(())
    }

    /// A sealed log ends where it was sealed.
    fn seals(&self) -> Result<(), String> {
        for seal in self.events {
            let Act::Seal(end) = seal.act else { continue };
            for event in self.events {
                let broken = match event.act {
                    Act::Seal(other) => other != end,
                    // What a power cut has taken back did not stand in the log when it was sealed.
                    Act::Append { durable: false, .. } if self.lost_between(event.begin, seal.end) => false,
                    Act::Append { result: Appended::At(first), .. } => first >= end || event.begin > seal.end,
                    Act::Tail(tail) => event.begin > seal.end && tail != end,
                    _ => false,
                };
                if broken {
                    return Err(format!("after {seal:?}: {event:?}"));
                }
            }
        }
        Ok(())
    }

    /// While it is sure that one owns the log, no other process writes.
    fn owners(&self) -> Result<(), String> {
        for own in self.events {
            let Act::Own { id, done: true } = own.act else { continue };
            let changes = self.events.iter().filter(|event| {
                let changes =
                    matches!(event.act, Act::Release) || matches!(event.act, Act::Own { id: other, .. } if other != id);
                changes && event.end > own.begin
            });
            let until = changes.map(|event| event.begin).min().unwrap_or(u64::MAX);
            for event in self.events {
                if let Act::Append { result: Appended::At(_), under, .. } = event.act
                    && under != id
                    && event.begin > own.end
                    && event.end < until
                {
                    return Err(format!("while {own:?}, another wrote: {event:?}"));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(begin: u64, end: u64, payload: Payload, result: Appended) -> Event {
        let act = Act::Append { payloads: vec![payload], durable: true, number: None, under: 0, result };
        Event { process: 0, begin, end, act }
    }

    fn read(begin: u64, end: u64, position: u64, seen: Seen) -> Event {
        Event { process: 1, begin, end, act: Act::Read { position, seen, keeps: false } }
    }

    fn act(begin: u64, end: u64, act: Act) -> Event {
        Event { process: 2, begin, end, act }
    }

    fn trim(begin: u64, end: u64, from: u64, to: u64) -> Event {
        act(begin, end, Act::Trim { from, to, done: true })
    }

    fn applied(begin: u64, end: u64, payload: Payload, at: u64) -> Event {
        let mut event = append(begin, end, payload, Appended::At(at));
        if let Act::Append { durable, .. } = &mut event.act {
            *durable = false;
        }
        event
    }

    fn numbered(begin: u64, end: u64, payload: Payload, at: u64) -> Event {
        let mut event = append(begin, end, payload, Appended::At(at));
        if let Act::Append { number, .. } = &mut event.act {
            *number = Some((7, 3));
        }
        event
    }

    #[test]
    fn right_histories_are_accepted() {
        use Appended::{At, Refused, Unknown};
        for history in [
            // Concurrent appends in either order.
            vec![append(1, 9, 20, At(1)), append(2, 8, 22, At(0)), act(10, 11, Act::Tail(2))],
            // One that was not answered, seen much later.
            vec![append(1, u64::MAX, 20, Unknown), read(5, 6, 0, Seen::Nothing), read(7, 8, 0, Seen::Entry(20))],
            vec![
                append(1, 2, 20, At(0)),
                trim(3, 6, 0, 1),
                read(4, 5, 0, Seen::Entry(20)),
                read(7, 8, 0, Seen::Trimmed),
            ],
            vec![append(1, 2, 20, Refused), read(3, 4, 0, Seen::Filled), append(5, 6, 22, At(1))],
            // Applied only, and taken back by a power cut.
            vec![applied(1, 2, 20, 0), act(3, 3, Act::PowerLoss), append(4, 5, 22, At(0))],
            vec![append(1, 2, 20, At(0)), act(3, 4, Act::Seal(1)), act(5, 6, Act::Tail(1))],
            vec![append(1, 2, 20, At(0)), act(3, 4, Act::Passed { from: 0, to: 1 })],
        ] {
            assert_eq!(check(&history), Ok(()), "{history:?}");
        }
    }

    #[test]
    fn wrong_histories_are_rejected() {
        use Appended::{At, Refused};
        for (why, history) in [
            ("lost", vec![append(1, 2, 20, At(0)), read(3, 4, 0, Seen::Nothing)]),
            ("lost below the tail", vec![append(1, 2, 20, At(4)), act(3, 4, Act::Tail(4))]),
            ("lost and filled", vec![append(1, 2, 20, At(0)), read(3, 4, 0, Seen::Filled)]),
            ("duplicated", vec![append(1, 2, 20, At(0)), read(3, 4, 1, Seen::Entry(20))]),
            ("reordered", vec![append(1, 2, 20, At(1)), append(3, 4, 22, At(0))]),
            (
                "below what was read",
                vec![append(1, 9, 20, At(1)), read(2, 3, 1, Seen::Entry(20)), append(4, 5, 22, At(0))],
            ),
            ("two values", vec![append(1, 9, 20, At(0)), append(2, 8, 22, At(0))]),
            ("refused and there", vec![append(1, 2, 20, Refused), read(3, 4, 0, Seen::Entry(20))]),
            ("of no process", vec![read(3, 4, 0, Seen::Entry(20))]),
            ("from the future", vec![read(1, 2, 0, Seen::Entry(20)), append(3, 4, 20, At(0))]),
            ("filled, then written", vec![read(1, 2, 0, Seen::Filled), append(3, 4, 20, At(0))]),
            ("trimmed by no process", vec![append(1, 2, 20, At(0)), read(3, 4, 0, Seen::Trimmed)]),
            ("back from trimming", vec![append(1, 2, 20, At(0)), trim(3, 4, 0, 1), read(5, 6, 0, Seen::Entry(20))]),
            ("free from trimming", vec![append(1, 2, 20, At(0)), trim(3, 4, 0, 1), read(5, 6, 0, Seen::Nothing)]),
            ("below what is trimmed", vec![trim(1, 2, 0, 5), append(3, 4, 20, At(3))]),
            ("applied, lost without a power cut", vec![applied(1, 2, 20, 0), read(4, 5, 0, Seen::Nothing)]),
            (
                "durable, lost by a power cut",
                vec![append(1, 2, 20, At(0)), act(3, 3, Act::PowerLoss), read(4, 5, 0, Seen::Nothing)],
            ),
            ("after the seal", vec![act(1, 2, Act::Seal(0)), append(3, 4, 20, At(0))]),
            ("sealed twice", vec![act(1, 2, Act::Seal(0)), act(3, 4, Act::Seal(1))]),
            ("a number twice", vec![numbered(1, 2, 20, 0), numbered(3, 4, 22, 1)]),
            ("a number elsewhere", vec![numbered(1, 2, 20, 0), act(3, 4, Act::Known { number: (7, 3), position: 1 })]),
            ("left out of its stream", vec![append(1, 2, 21, At(0)), act(3, 4, Act::Passed { from: 0, to: 1 })]),
            ("written beside the owner", vec![act(1, 2, Act::Own { id: 1, done: true }), append(3, 4, 20, At(0))]),
        ] {
            assert!(check(&history).is_err(), "{why}: {history:?}");
        }
    }
}

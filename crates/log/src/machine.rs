//! Replicated state machines: a state that is what the log's entries make of it, in every process that applies them.
//!
//! open: newest checkpoint → entries after it · propose: append → apply up to it · read: apply up to the tail
//! checkpoint: state → object → (all checkpoints of the log) → trim what none of them needs
//!
//! Invariants:
//! 1. Entries are applied in order, each once; a lost entry stops the replica with its position. What was trimmed
//!    before it was applied is in a checkpoint, which is loaded, or stops the replica too.
//! 2. A checkpoint counts only when it is whole: what says so is written last. The one before it stays until then.
//! 3. Of two replicas that write one checkpoint at once, one is refused: a whole one is replaced only by who saw it to
//!    be the older.
//! Source: Schneider, state machine approach (1990); Tango (2013).

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use esker_store::number::{u32_at, u64_at};
use esker_store::{Change, Condition, Durability, Error as StoreError, ObjectId, Transaction, submit_guarded};

use crate::follow::{Delivery, Follow, Follower, GapKind, Start};
use crate::format;
use crate::log::{Log, Record};
use crate::streams::StreamFollower;
use crate::{Error, Result};

/// Longest name of a replicated state, in bytes.
pub const MACHINE_NAME_BYTES_MAX: usize = 128;
/// Largest saved state, in bytes (1 GiB).
pub const SAVED_BYTES_MAX: usize = 1 << 30;
/// Bytes written at once.
const PIECE: usize = 4 << 20;
/// Xattr of a checkpoint: position, length and CRC32C of the state; it is there when the state is.
const WHOLE: &[u8] = b"whole";
/// Xattr of a checkpoint: who writes it, 16 bytes that no other writer has. Guarded by each piece.
const WRITING: &[u8] = b"writing";
/// How long a read waits for positions below it to be decided before it looks again.
const WAIT: Duration = Duration::from_millis(500);

/// A state that commands change, the same in all replicas: no clock, no randomness.
pub trait Machine {
    /// What a command gives to the caller that proposed it.
    type Output;
    /// Applies the command at `position`.
    fn apply(&mut self, position: u64, command: &[u8]) -> Self::Output;
    /// The state as bytes.
    fn save(&self) -> Bytes;
    /// Becomes the state that was saved.
    ///
    /// # Errors
    /// Why the bytes are not a state.
    fn load(&mut self, saved: &[u8]) -> std::result::Result<(), String>;
}

enum Source {
    Log(Follower),
    Stream(StreamFollower),
}

/// A machine with its place in the log.
pub struct Replica<M> {
    log: Log,
    name: String,
    stream: Option<Bytes>,
    machine: M,
    source: Source,
    applied: u64,
}

impl<M: Machine> Replica<M> {
    /// Opens the replica of state `name`: loads its newest checkpoint, if there is one; entries come with the first
    /// call. With `stream` it lives on the entries of that stream only, so that several states share a log.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name; [`Error::Damaged`] if the log was trimmed past the checkpoint, or the state
    /// does not load; the store's.
    pub fn open(log: &Log, name: &str, stream: Option<&str>, mut machine: M) -> Result<Self> {
        format::check_name("name of a state", name, ("MACHINE_NAME_BYTES_MAX", MACHINE_NAME_BYTES_MAX))?;
        let applied = load_newest(log, name, &mut machine, 0)?;
        let stream = stream.map(|stream| Bytes::copy_from_slice(stream.as_bytes()));
        let source = source(log, stream.as_ref(), applied)?;
        Ok(Self { log: log.clone(), name: name.to_owned(), stream, machine, source, applied })
    }

    /// Goes on from a checkpoint that holds what was trimmed below `end` before it was applied here.
    fn reload(&mut self, end: u64) -> Result<()> {
        self.applied = load_newest(&self.log, &self.name, &mut self.machine, self.applied)?;
        self.source = source(&self.log, self.stream.as_ref(), self.applied)?;
        if self.applied < end {
            let why =
                format!("positions up to {end} were trimmed before they were applied, and no checkpoint holds them");
            return Err(Error::damaged(format!("state {}", self.name), why));
        }
        Ok(())
    }

    /// Applies everything up to `end`, and gives what the entry at `end - 1` gave if it is the state's. After an error
    /// what it met is met again.
    fn apply_to(&mut self, end: u64) -> Result<Option<M::Output>> {
        let done = self.apply_next_to(end);
        if done.is_err() {
            self.source = source(&self.log, self.stream.as_ref(), self.applied)?;
        }
        done
    }

    fn apply_next_to(&mut self, end: u64) -> Result<Option<M::Output>> {
        let mut last = None;
        while self.applied < end {
            let delivery = match &mut self.source {
                Source::Log(follower) => follower.next(WAIT)?,
                Source::Stream(follower) => {
                    // What is delivered is below the follower's position; nothing of the stream may be left below
                    // `end`.
                    let next = follower.poll()?;
                    if next.is_none() {
                        if follower.position() >= end {
                            self.applied = self.applied.max(end);
                            break;
                        }
                        follower.next(WAIT)?
                    } else {
                        next
                    }
                }
            };
            match delivery {
                Some(Delivery::Entry(entry)) => {
                    let output = self.machine.apply(entry.position, &entry.data);
                    self.applied = entry.position + 1;
                    if self.applied == end {
                        last = Some(output);
                    }
                }
                Some(Delivery::Gap { positions, kind: GapKind::Filled }) => self.applied = positions.end,
                Some(Delivery::Gap { positions, kind: GapKind::Trimmed }) => self.reload(positions.end)?,
                Some(Delivery::Gap { positions, kind: GapKind::Lost(why) }) => {
                    return Err(Error::damaged(format!("position {}", positions.start), why));
                }
                Some(Delivery::End { tail }) => {
                    self.applied = self.applied.max(tail);
                    break;
                }
                None => {}
            }
        }
        Ok(last)
    }

    /// Appends a command, durably, and applies everything up to it; what it gave.
    ///
    /// # Errors
    /// As [`Log::append`]; [`Error::Proposed`] if the command is in the log and this replica could not apply it: all
    /// others do, so it is
    /// not to be proposed again.
    pub fn propose(&mut self, command: impl Into<Bytes>) -> Result<M::Output> {
        let mut record = Record::from(command.into());
        record.streams.extend(self.stream.clone());
        let position = self.log.append(record)?.wait()?;
        let output = self.apply_to(position + 1).and_then(|output| {
            // A checkpoint that was loaded has it applied already.
            let why = || format!("position {position} was passed over");
            output.ok_or_else(|| Error::damaged(format!("state {}", self.name), why()))
        });
        output.map_err(|cause| Error::Proposed { position, cause: Box::new(cause) })
    }

    /// Applies everything that is in the log now, and shows the state: a linearizable read.
    ///
    /// # Errors
    /// [`Error::Damaged`] if an entry is lost; the store's.
    pub fn read(&mut self) -> Result<&M> {
        let tail = self.log.tail()?.position;
        self.apply_to(tail)?;
        Ok(&self.machine)
    }

    /// The state as far as it is applied here.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// Everything below is applied.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Saves the state, durably. The one saved before stays until this one is whole.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a state above [`SAVED_BYTES_MAX`]; [`StoreError::Contended`] if another replica writes
    /// one; the store's.
    pub fn checkpoint(&self) -> Result<()> {
        let saved = self.machine.save();
        if saved.len() > SAVED_BYTES_MAX {
            let why = format!("{} bytes exceed SAVED_BYTES_MAX = {SAVED_BYTES_MAX}", saved.len());
            return Err(Error::invalid("state", why));
        }
        let there = checkpoints(&self.log, Some(&self.name))?;
        let newest = there.iter().max_by_key(|(_, whole)| whole.position);
        let even = object(&self.log, &self.name, 0);
        let side = u8::from(newest.is_some_and(|(object, _)| *object == even));
        let object = object(&self.log, &self.name, side);
        let seen = there.iter().find(|(other, _)| *other == object).map(|(_, whole)| whole.encode());
        let contended =
            || StoreError::Contended { what: format!("the checkpoint of state {}", self.name), attempts: 1 };
        let store = self.log.store();
        let name = Bytes::from_static(WHOLE);
        let as_seen = match store.xattr(&object, WHOLE).wait()? {
            Some(value) if Some(value.as_ref()) == seen.as_deref() => Condition::XattrEquals { name, value },
            None if seen.is_none() => Condition::XattrAbsent { name },
            _ => return Err(contended().into()),
        };
        let nonce = self.log.next_nonces(1);
        let mine = Bytes::from([nonce.writer.to_le_bytes(), nonce.number.to_le_bytes()].concat());
        let writing = Bytes::from_static(WRITING);
        let still_mine = Condition::XattrEquals { name: writing.clone(), value: mine.clone() };
        let submit = |durability, condition: &Condition, changes: Vec<Change>| {
            let mut txn = Transaction::with(durability).guard(&object, condition.clone());
            for change in changes {
                txn.push(&object, change);
            }
            submit_guarded(store, txn)?.map_or(Ok(()), |_| Err(Error::from(contended())))
        };
        submit(Durability::Durable, &as_seen, vec![Change::Remove, Change::XattrSet { name: writing, value: mine }])?;
        for (number, piece) in saved.chunks(PIECE).enumerate() {
            let (offset, data) = ((number * PIECE) as u64, saved.slice_ref(piece));
            submit(Durability::Durable, &still_mine, vec![Change::Write { offset, data }])?;
        }
        let whole = Whole { position: self.applied, len: saved.len() as u64, crc: crc32c::crc32c(&saved) };
        let change = Change::XattrSet { name: Bytes::from_static(WHOLE), value: whole.encode() };
        // The log is trimmed by it: no crash is to take it back, nor what it covers.
        submit(Durability::Always, &still_mine, vec![change])
    }

    /// Trims what no state on this log needs any more: all below the oldest of their newest checkpoints. Returns the
    /// position.
    ///
    /// # Errors
    /// The store's.
    pub fn trim(&self) -> Result<u64> {
        let mut newest: std::collections::BTreeMap<Bytes, u64> = std::collections::BTreeMap::new();
        for (object, whole) in checkpoints(&self.log, None)? {
            let name = object.name().slice(..object.name().len() - 2);
            let position = newest.entry(name).or_default();
            *position = whole.position.max(*position);
        }
        let to = newest.values().copied().min().unwrap_or(0);
        if to > 0 {
            self.log.trim_to(to)?;
        }
        Ok(to)
    }
}

fn source(log: &Log, stream: Option<&Bytes>, applied: u64) -> Result<Source> {
    Ok(match stream {
        Some(stream) => Source::Stream(log.follow_stream(stream.clone(), applied, Follow::default())),
        None => Source::Log(log.follow(Start::Position(applied), Follow::default())?),
    })
}

/// Loads the newest checkpoint of a state, if it is above `applied`. Everything below what it returns is applied, and
/// nothing above is trimmed.
fn load_newest<M: Machine>(log: &Log, name: &str, machine: &mut M, applied: u64) -> Result<u64> {
    let mut applied = applied;
    loop {
        let all = checkpoints(log, Some(name))?.into_iter();
        let newest = all.filter(|(_, whole)| whole.position > applied).max_by_key(|(_, whole)| whole.position);
        if let Some((object, whole)) = &newest {
            match read_checkpoint(log, object, *whole) {
                Ok(saved) => {
                    machine.load(&saved).map_err(|why| Error::damaged(format!("checkpoint {object}"), why))?;
                    applied = whole.position;
                }
                // Another replica writes the next in its place, after one that is newer was whole.
                Err(_) if log.store().xattr(object, WHOLE).wait()?.as_deref() != Some(&whole.encode()[..]) => continue,
                Err(error) => return Err(error),
            }
        }
        let trimmed = log.refresh()?.trimmed;
        if applied >= trimmed {
            return Ok(applied);
        }
        if newest.is_none() {
            let why = format!("the log is trimmed to {trimmed}, the newest checkpoint is at {applied}");
            return Err(Error::damaged(format!("state {name}"), why));
        }
    }
}

#[derive(Clone, Copy)]
struct Whole {
    position: u64,
    len: u64,
    crc: u32,
}

impl Whole {
    fn encode(self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(20);
        bytes.put_u64_le(self.position);
        bytes.put_u64_le(self.len);
        bytes.put_u32_le(self.crc);
        bytes.freeze()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 20] = bytes.try_into().ok()?;
        Some(Self { position: u64_at(bytes, 0), len: u64_at(bytes, 8), crc: u32_at(bytes, 16) })
    }
}

fn object(log: &Log, name: &str, side: u8) -> ObjectId {
    format::checkpoint(log.id(), &format!("{name}.{side}"))
}

/// The whole checkpoints of one state, or of all on the log.
fn checkpoints(log: &Log, name: Option<&str>) -> Result<Vec<(ObjectId, Whole)>> {
    let objects = match name {
        Some(name) => vec![object(log, name, 0), object(log, name, 1)],
        None => {
            let all = format::objects(log.store(), &format::checkpoint_prefix(log.id()));
            all.collect::<esker_store::Result<Vec<_>>>()?
        }
    };
    let mut all = Vec::new();
    for object in objects {
        let whole = log.store().xattr(&object, WHOLE).wait()?;
        if let Some(whole) = whole.as_deref().and_then(Whole::decode) {
            all.push((object, whole));
        }
    }
    Ok(all)
}

fn read_checkpoint(log: &Log, object: &ObjectId, whole: Whole) -> Result<Bytes> {
    let damaged = |why: String| Error::damaged(format!("checkpoint {object}"), why);
    if whole.len > SAVED_BYTES_MAX as u64 {
        return Err(damaged(format!("{} bytes exceed SAVED_BYTES_MAX = {SAVED_BYTES_MAX}", whole.len)));
    }
    let mut saved = BytesMut::with_capacity(whole.len as usize);
    while (saved.len() as u64) < whole.len {
        let start = saved.len() as u64;
        let piece = log.store().read(object, start..whole.len.min(start + PIECE as u64)).wait()?;
        if piece.is_empty() {
            break;
        }
        saved.extend_from_slice(&piece);
    }
    if saved.len() as u64 != whole.len || crc32c::crc32c(&saved) != whole.crc {
        return Err(damaged(format!("{} of {} bytes do not match their checksum", saved.len(), whole.len)));
    }
    Ok(saved.freeze())
}

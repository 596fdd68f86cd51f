//! Appending: a position, one transaction, and what its refusal means.
//!
//! records → token (epoch, position) → places → one transaction: guards (epoch, trim, absent) and changes → applied
//! → epoch stale: read the view, take a new token · taken: ours? else a new token · no place yet: add a stripe
//!
//! An entry costs one round trip. Its position is decided by the store: of two writes to one position one is refused,
//! no matter which sequencer handed it out.
//!
//! Invariants:
//! 1. An entry is written at one position only: a new token is taken only after the old position was found decided by
//!    another writer, or its epoch sealed.
//! 2. A batch has consecutive positions, all or none.
//! Source: CORFU (2012), section 3; ZLog.

use std::cell::Cell;
use std::ops::ControlFlow;

use bytes::Bytes;
use esker_store::{Barrier, Change, Completion, Durability, Error as StoreError, ObjectId, Retry, Transaction};
use parking_lot::MutexGuard;
use smallvec::SmallVec;

use crate::batch::Batch;
use crate::cells::{self, Entry, Found, Guarded, Guards};
use crate::format::{self, Kind, Placed, STREAM_BYTES_MAX, STREAMS_MAX, Stored, Streams};
use crate::log::{Log, Record};
use crate::nonce::Nonce;
use crate::options::Layout;
use crate::sequencer::{Tail, Token};
use crate::view::{Stripe, View};
use crate::{Error, Result};

/// Most entries in a batch.
pub const BATCH_MAX: usize = 4_096;
/// Bytes of a batch's data together, at most (16 MiB).
pub const BATCH_BYTES_MAX: usize = 16 << 20;
/// How often a write is tried again at the same position when the store does not answer.
const RETRIES: u32 = 3;

/// What became of a write at a position.
pub(crate) enum Outcome {
    Written(Option<Barrier>),
    /// Something else stands there.
    Taken,
    Trimmed,
    /// The token's epoch is over.
    Stale,
    /// A batch would stand in several objects, over which the store's transactions do not reach.
    Apart,
}

/// Where an entry of a batch goes.
#[derive(Clone, Copy)]
struct At {
    stripe: Stripe,
    column: u32,
    /// Its number in the batch.
    number: usize,
    local: u64,
}

impl At {
    fn object(&self) -> (u64, u32) {
        (self.stripe.id, self.column)
    }
}

impl Log {
    /// Appends an entry; it is durable when the completion says so. The value is its position.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an entry above the log's limit; [`Error::Sealed`]; [`Error::Fenced`];
    /// [`Error::NoSequencer`]; [`Error::Uncertain`]; the store's.
    pub fn append(&self, record: impl Into<Record>) -> Result<Completion<u64>> {
        self.append_with(&[record.into()], Durability::Durable)
    }

    /// Appends entries at consecutive positions, all or none. The value is the position of the first.
    ///
    /// # Errors
    /// As [`Log::append`]; [`Error::Invalid`] for none, or more than [`BATCH_MAX`] or [`BATCH_BYTES_MAX`];
    /// [`Error::Unsupported`] for more than one where the log's entries go round objects and the backend is atomic per
    /// object only.
    pub fn append_batch(&self, records: &[Record]) -> Result<Completion<u64>> {
        self.append_with(records, Durability::Durable)
    }

    /// As [`Log::append_batch`], durable or only applied.
    ///
    /// # Errors
    /// As [`Log::append_batch`].
    pub fn append_with(&self, records: &[Record], durability: Durability) -> Result<Completion<u64>> {
        let nonce = self.next_nonces(records.len());
        self.append_new(&self.batch(records, nonce, durability), None)
    }

    /// Appends entries only if the tail is at `expected`: so their first position is `expected`.
    ///
    /// # Errors
    /// As [`Log::append_batch`]; [`Error::NotTail`] if it is not.
    pub fn append_at(&self, expected: u64, records: &[Record]) -> Result<Completion<u64>> {
        let nonce = self.next_nonces(records.len());
        self.append_new(&self.batch(records, nonce, Durability::Durable), Some(expected))
    }

    /// Whether the entry that [`Error::Uncertain`] told of is at its position. After `false` it never will be: what is
    /// free there is filled, or sealed against it. An entry that was trimmed by itself counts as being there.
    ///
    /// # Errors
    /// [`Error::Trimmed`] if it cannot be told any more, because everything there was trimmed away; [`Error::Damaged`]
    /// if what stands there cannot be read; as [`Log::fill`]; the store's.
    pub fn resolve(&self, position: u64, nonce: Nonce) -> Result<bool> {
        loop {
            match self.read(position)?.wait()? {
                Found::Entry(entry) => return Ok(entry.nonce == nonce),
                Found::Filled => return Ok(false),
                Found::Trimmed => return self.resolve_trimmed(position, nonce),
                Found::Lost(why) => return Err(Error::damaged(format!("position {position}"), why)),
                Found::Hole | Found::BeyondTail => {}
            }
            let tail = self.led_tail()?;
            if position >= tail.position {
                // Handed out under an older epoch, and sealed since: it cannot come any more.
                return Ok(false);
            }
            match self.fill_under(tail, position) {
                Ok(()) => return Ok(false),
                Err(Error::Taken { .. } | Error::Trimmed { .. } | Error::Deposed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// What the mark says that was left of a trimmed position.
    fn resolve_trimmed(&self, position: u64, nonce: Nonce) -> Result<bool> {
        let view = self.refresh()?;
        if position >= view.trimmed
            && let Some(stripe) = view.stripe(position)
        {
            let (column, local) = stripe.locate(position);
            let object = view.object(self.inner.id, &stripe, column);
            let (mut stands, _) = cells::get_each(self.store(), view.options.layout, &object, &[local])?;
            if let Some(Ok(Some(bytes))) = stands.pop()
                && let Ok(stored) = Stored::decode(position, &bytes)
            {
                return Ok(stored.nonce == nonce);
            }
        }
        Err(Error::Trimmed { position })
    }

    pub(crate) fn batch<'a>(&self, records: &'a [Record], nonce: Nonce, durability: Durability) -> Batch<'a> {
        Batch { records, nonce, fence: None, durability, time_ms: self.now_ms(), found: Cell::new(false) }
    }

    fn check_batch(&self, batch: &Batch<'_>) -> Result<()> {
        let (view, records) = (self.peek(), batch.records);
        if records.is_empty() || records.len() > BATCH_MAX {
            return Err(Error::invalid(
                "batch",
                format!("{} entries, expected 1 to {BATCH_MAX} (BATCH_MAX)", records.len()),
            ));
        }
        let max = view.options.entry_bytes_max as usize;
        let mut bytes = 0;
        for record in records {
            bytes += record.data.len();
            if record.data.len() > max {
                let why = format!("{} bytes exceed the log's entry_bytes_max = {max}", record.data.len());
                return Err(Error::invalid("entry", why));
            }
            if record.streams.len() > STREAMS_MAX {
                let why = format!("{} exceed STREAMS_MAX = {STREAMS_MAX}", record.streams.len());
                return Err(Error::invalid("number of streams", why));
            }
            if let Some(bad) = record.streams.iter().find(|name| name.is_empty() || name.len() > STREAM_BYTES_MAX) {
                let why = format!("{} bytes, expected 1 to {STREAM_BYTES_MAX} (STREAM_BYTES_MAX)", bad.len());
                return Err(Error::invalid("stream name", why));
            }
        }
        if bytes > BATCH_BYTES_MAX {
            return Err(Error::invalid("batch", format!("{bytes} bytes exceed BATCH_BYTES_MAX = {BATCH_BYTES_MAX}")));
        }
        self.check_shape(&view, records.len())
    }

    /// Refuses as many entries as never stand in one object, and must.
    fn check_shape(&self, view: &View, count: usize) -> Result<()> {
        if self.needs_several(view, count) && self.needs_several(&*self.refresh()?, count) {
            return Err(Error::Unsupported {
                backend: self.inner.capability.backend,
                what: "append so many entries at once: they stand in several objects, and its transactions reach over one",
            });
        }
        Ok(())
    }

    /// Gives up what is left of an object that has not room for `count` more entries, so that the next batch begins
    /// with another: batches of a length that their objects' does not divide would meet the end of one for ever.
    fn pass_object(&self, from: u64, count: u64) -> Result<()> {
        let view = self.view();
        let Some(stripe) = view.stripe(from).filter(|stripe| stripe.width == 1) else { return Ok(()) };
        let left = stripe.end - from;
        if left < count {
            match self.token(left as u32, Some(from)) {
                Ok(token) => self.give_up(token, left),
                // Others were handed out what is left, or some of it.
                Err(Error::NotTail { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether `count` entries never stand in one object, and must.
    fn needs_several(&self, view: &View, count: usize) -> bool {
        let options = &view.options;
        count > 1
            && !self.inner.capability.atomic_across_objects
            && (options.width > 1 || count > options.slots as usize)
    }

    pub(crate) fn append_new(&self, batch: &Batch<'_>, expected: Option<u64>) -> Result<Completion<u64>> {
        self.check_batch(batch)?;
        let mut retry = Retry::default();
        loop {
            retry.attempt(|| format!("appending to log {}", self.inner.name))?;
            let token = match self.token(batch.records.len() as u32, expected) {
                // Told by a leader that may be deposed, of what may never be written.
                Err(Error::NotTail { expected, .. }) => match self.not_tail(expected)? {
                    Some(error) => return Err(error),
                    None => continue,
                },
                token => token?,
            };
            if let Some(fence) = batch.fence {
                fence.check(self, token.epoch)?;
            }
            match self.write_surely(token, batch)? {
                ControlFlow::Break(done) => return Ok(done),
                ControlFlow::Continue(()) if expected.is_some() => {
                    let (expected, tail) = (token.position, self.tail()?.position);
                    if tail != expected {
                        return Err(Error::NotTail { expected, tail });
                    }
                }
                ControlFlow::Continue(()) => {}
            }
        }
    }

    /// Writes at the token's position until it is known what became of it; goes on where another position is needed.
    fn write_surely(&self, token: Token, batch: &Batch<'_>) -> Result<ControlFlow<Completion<u64>>> {
        let position = token.position;
        let done = |barrier| {
            let completion = Completion::after(Ok(position), barrier);
            Ok(ControlFlow::Break(completion))
        };
        let mut tries = 0;
        // What a try ended with of which it is not known whether it was applied. After one, no other error may be told
        // than that.
        let mut unanswered: Option<StoreError> = None;
        loop {
            let outcome = self.write_at(token, batch);
            let outcome = match outcome {
                Ok(Outcome::Written(barrier)) => return done(barrier),
                Err(Error::Store(cause @ (StoreError::Io { .. } | StoreError::Unknown { .. }))) if tries < RETRIES => {
                    tries += 1;
                    unanswered = Some(cause);
                    continue;
                }
                Err(Error::Store(cause)) if cause.is_unknown() || matches!(cause, StoreError::Io { .. }) => {
                    // It may stand there.
                    self.tell();
                    return Err(Error::Uncertain { position, nonce: batch.nonce, cause });
                }
                other => other,
            };
            let forgotten = || {
                // The client sends again what got no answer. A store far away that has forgotten by then that it
                // applied it finds it in its own way.
                let may_be_ours = self.inner.capability.afar && matches!(outcome, Ok(Outcome::Taken));
                may_be_ours
                    .then(|| StoreError::Unknown { cause: "the position is taken, perhaps by this entry".into() })
            };
            if let Some(cause) = unanswered.or_else(forgotten) {
                // Taken: by ourselves, perhaps. Trimmed, or sealed: after we came, perhaps.
                return match outcome.and_then(|_| self.resolve(position, batch.nonce)) {
                    Ok(true) => match self.read(position) {
                        Ok(found) => {
                            self.tell();
                            batch.found.set(true);
                            done(found.into_parts().1)
                        }
                        Err(_) => Err(Error::Uncertain { position, nonce: batch.nonce, cause }),
                    },
                    Ok(false) => Ok(ControlFlow::Continue(())),
                    Err(_) => {
                        self.tell();
                        Err(Error::Uncertain { position, nonce: batch.nonce, cause })
                    }
                };
            }
            let outcome = match outcome {
                // Nothing was written, and a smaller batch may fit: followers are not to wait for these positions.
                Err(Error::Store(cause @ (StoreError::Full { .. } | StoreError::TooLarge { .. })))
                    if batch.records.len() > 1 =>
                {
                    self.give_up(token, batch.records.len() as u64);
                    return Err(cause.into());
                }
                other => other?,
            };
            match outcome {
                Outcome::Stale => {
                    let view = self.refresh()?;
                    self.check_writer(&view)?;
                }
                Outcome::Apart => {
                    let count = batch.records.len() as u64;
                    self.give_up(token, count);
                    // The log may have been given another shape since.
                    self.check_shape(&self.view(), batch.records.len())?;
                    self.pass_object(position + count, count)?;
                }
                Outcome::Written(_) | Outcome::Taken | Outcome::Trimmed => {}
            }
            return Ok(ControlFlow::Continue(()));
        }
    }

    /// Fills positions that are not going to be written, so that followers need not wait for them. What fails here
    /// followers do.
    fn give_up(&self, token: Token, count: u64) {
        let tail = Tail { epoch: token.epoch, position: token.position + count };
        for position in token.position..tail.position {
            if self.fill_under(tail, position).is_err() {
                return;
            }
        }
    }

    /// Writes a batch at its position, once.
    pub(crate) fn write_at(&self, token: Token, batch: &Batch<'_>) -> Result<Outcome> {
        let count = batch.records.len() as u64;
        let end = token.position + count;
        let mut retry = Retry::default();
        loop {
            retry.attempt(|| format!("position {}", token.position))?;
            let mut view = self.view();
            if view.epoch < token.epoch {
                view = self.refresh()?;
            }
            if view.epoch > token.epoch {
                return Ok(Outcome::Stale);
            }
            if token.position < view.trimmed {
                return Ok(Outcome::Trimmed);
            }
            if view.end() < end {
                self.grow(end - 1)?;
                continue;
            }
            if let Some(outcome) = self.try_write(&view, token, batch)? {
                if let Outcome::Written(_) = outcome {
                    self.look_ahead(&view, end);
                }
                return Ok(outcome);
            }
        }
    }

    /// One transaction. `None`: what it stood on has changed, try again.
    fn try_write(&self, view: &View, token: Token, batch: &Batch<'_>) -> Result<Option<Outcome>> {
        let layout = view.options.layout;
        let mut placed: SmallVec<[At; 1]> = SmallVec::with_capacity(batch.records.len());
        for number in 0..batch.records.len() {
            let Some(stripe) = view.stripe(token.position + number as u64) else { return Ok(None) };
            let (column, local) = stripe.locate(token.position + number as u64);
            placed.push(At { stripe, column, number, local });
        }
        // In the order of objects: batches do not wait for each other in a ring.
        placed.sort_by_key(At::object);
        let objects =
            || placed.chunk_by(|one, other| one.object() == other.object()).map(|entries| (entries[0], entries));
        if objects().count() > 1 && !self.inner.capability.atomic_across_objects {
            // From the next object on they fit.
            return Ok(Some(Outcome::Apart));
        }
        let in_bytes = |record: &Record| record.data.len() > view.options.inline_bytes_max as usize;
        let ends: Vec<_> = if layout == Layout::Stream && batch.records.iter().any(in_bytes) {
            objects().map(|(at, _)| self.end_of(at.stripe.id, at.column)).collect()
        } else {
            Vec::new()
        };
        let mut ends: Vec<MutexGuard<'_, Option<u64>>> = ends.iter().map(|end| end.lock()).collect();
        let mut guards = Guards {
            txn: Transaction::with(batch.durability).compress(view.options.compression),
            meaning: SmallVec::new(),
        };
        guards.txn.guards.reserve_exact(2 * objects().count() + placed.len());
        let mut grown = Vec::new();
        // What followers are handed; without followers no reader looks at it.
        let mut kept: SmallVec<[(Streams, Bytes); 1]> = SmallVec::new();
        if self.followed() {
            kept.resize(batch.records.len(), Default::default());
        }
        for (place, (first, entries)) in objects().enumerate() {
            let object = self.object(&first.stripe, first.column);
            guards.epoch(&object, token.epoch);
            guards.untrimmed(&object, first.local);
            for at in entries {
                guards.absent(&object, layout, at.local);
            }
            let mut end = None;
            for At { number, local, .. } in entries.iter().copied() {
                let record = &batch.records[number];
                let nonce = batch.nonce(number);
                let mut stored = Stored {
                    kind: Kind::Data,
                    position: token.position + number as u64,
                    nonce,
                    time_ms: batch.time_ms,
                    streams: record.streams.clone(),
                    body: record.data.clone(),
                };
                if layout == Layout::Stream && in_bytes(record) {
                    let offset = match end {
                        Some(end) => end,
                        None => match *ends[place] {
                            Some(end) => end,
                            None => self.inner.store.size(&object).wait()?.unwrap_or(0),
                        },
                    };
                    if end.is_none() {
                        guards.size(&object, offset);
                    }
                    let (len, crc) = (record.data.len() as u32, crc32c::crc32c(&record.data));
                    stored.kind = Kind::Placed;
                    stored.body = Placed { offset, len, crc }.encode();
                    guards.txn.push(&object, Change::Write { offset, data: record.data.clone() });
                    end = Some(offset + u64::from(len));
                }
                let value = stored.encode();
                if let Some(kept) = kept.get_mut(number) {
                    // What is encoded has its own length, whereas the caller's data and names may be pieces of a buffer
                    // that is many times as long.
                    let inline = stored.kind == Kind::Data;
                    let data =
                        if inline { value.slice(value.len() - record.data.len()..) } else { record.data.clone() };
                    *kept = (stored.names_in(&value), data);
                }
                guards.txn.push(&object, cells::set(layout, local, value));
                for stream in &record.streams {
                    let key = format::stream_key(stream, local);
                    guards.txn.push(&object, Change::OmapSet { key, value: Bytes::new() });
                }
                if batch.fence.is_some() {
                    let value = format::number(stored.position);
                    guards.txn.push(&object, Change::OmapSet { key: format::nonce_key(nonce), value });
                }
            }
            if let Some(end) = end {
                grown.push((place, end));
            }
        }
        let (submitted, barrier) = self.inner.store.submit(guards.txn).into_parts();
        match submitted {
            Ok(_) => {
                let mut full = false;
                for (place, end) in &grown {
                    *ends[*place] = Some(*end);
                    full |= *end >= view.options.object_bytes_max;
                }
                drop(ends);
                self.written(token, batch, kept, barrier.as_ref());
                if full {
                    // The entry stands; the next writer will meet the error.
                    let _ = self.begin_stripe(view);
                }
                Ok(Some(Outcome::Written(barrier)))
            }
            Err(StoreError::GuardFailed { index }) => match self.refused(&guards.meaning, index) {
                Guarded::Epoch => {
                    drop(ends);
                    self.refused_epoch(token, objects().map(|(at, _)| at.object()))
                }
                Guarded::Trim => Ok(Some(Outcome::Trimmed)),
                Guarded::Absent => Ok(Some(Outcome::Taken)),
                Guarded::Size | Guarded::Other => {
                    ends.iter_mut().for_each(|end| **end = None);
                    Ok(None)
                }
            },
            Err(error) => {
                // Whether the bytes were appended is not known.
                ends.iter_mut().for_each(|end| **end = None);
                Err(error.into())
            }
        }
    }

    /// The epoch's guard failed: a newer epoch, or the object is gone with what was trimmed.
    fn refused_epoch(&self, token: Token, objects: impl Iterator<Item = (u64, u32)>) -> Result<Option<Outcome>> {
        let view = self.refresh()?;
        if view.epoch > token.epoch {
            return Ok(Some(Outcome::Stale));
        }
        if token.position < view.trimmed {
            return Ok(Some(Outcome::Trimmed));
        }
        for (stripe, column) in objects {
            let object = format::data(self.inner.id, stripe, column);
            match cells::epoch_of(self.store(), &object)? {
                // Sealed by another handle, whose view is not there yet, or no longer.
                Some(epoch) if epoch > token.epoch => return Ok(Some(Outcome::Stale)),
                Some(_) => {}
                None => return Err(self.missing(&object)),
            }
        }
        Ok(None)
    }

    fn missing(&self, object: &ObjectId) -> Error {
        Error::damaged(format!("log {}", self.inner.name), format!("object {object} is missing"))
    }

    /// Called where a guard failed of a position's object, in a stripe that the view has.
    ///
    /// # Errors
    /// [`Error::Damaged`]: the object is missing, and no trim has taken it.
    pub(crate) fn check_made(&self, position: u64, object: &ObjectId) -> Result<()> {
        let is_missing = cells::epoch_of(self.store(), object)?.is_none();
        if is_missing && position >= self.refresh()?.trimmed { Err(self.missing(object)) } else { Ok(()) }
    }

    fn written(
        &self,
        token: Token,
        batch: &Batch<'_>,
        kept: SmallVec<[(Streams, Bytes); 1]>,
        barrier: Option<&Barrier>,
    ) {
        for (number, (streams, data)) in kept.into_iter().enumerate() {
            let position = token.position + number as u64;
            let (nonce, time_ms) = (batch.nonce(number), batch.time_ms);
            let entry = Entry { position, data, streams, nonce, time_ms };
            self.keep(position, Found::Entry(entry), barrier.cloned());
        }
        self.wrote(token.position + batch.records.len() as u64);
    }

    /// Makes the next stripe before it is needed.
    fn look_ahead(&self, view: &View, end: u64) {
        let Some(last) = view.runs.last() else { return };
        if view.end() - end < last.per_stripe() / 2 && self.inner.growing.try_lock().is_some() {
            // The append that needs it will meet the error.
            let _ = self.grow(view.end());
        }
    }
}

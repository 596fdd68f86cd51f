//! A writer with a name: each of its numbered entries is in the log once, whatever is retried, and by whichever
//! process.
//!
//! name → epoch raised, noted in the head, every object sealed (what an earlier process still has under way is refused)
//! → last number found → numbered appends
//!
//! A key beside each entry tells its writer and number, written with it. A number that is there already is not written
//! again.
//!
//! Invariants:
//! 1. One number of a writer stands at one position.
//! 2. Two processes under one name do not both write: the later one's opening fences the earlier. Before a writer
//!    writes under an epoch it reads, once, that the head still notes its own opening: a later one raises the epoch
//!    with its note, and seals, so that the write is refused.
//! 3. An append whose fate is not known is decided before its number is used again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use esker_store::number::first_number;
use esker_store::{
    Change, Completion, Condition, Durability, ObjectId, OmapScan, Retry, Transaction, prefix, submit_guarded,
};
use parking_lot::Mutex;

use crate::batch::{Batch, Fence};
use crate::format::{self, LABEL, TRIM};
use crate::log::{Log, Record};
use crate::nonce::Nonce;
use crate::seal::{Reach, TakenOver, mix};
use crate::{Error, Result, head};

/// A writer whose entries are numbered.
pub struct Writer {
    log: Log,
    id: u64,
    fence: Fence,
    numbers: Mutex<Numbers>,
}

struct Numbers {
    next: u64,
}

impl Log {
    /// Opens the writer `name`: finds what it wrote last, and refuses what an earlier process of that name still has
    /// under way. Other writers go on by themselves.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name; [`Error::Sealed`]; [`Error::Fenced`]; the store's.
    pub fn writer(&self, name: &str) -> Result<Writer> {
        format::check_name("writer", name, LABEL)?;
        let id = writer_id(name);
        let key = format::opened_key(id);
        let latest = Arc::clone(self.inner.openings.lock().entry(id).or_default());
        let opening = &latest.version;
        let mut held = None;
        let (version, epoch) = if self.inner.held == 0 {
            let TakenOver { view, tail, version } =
                self.take_over(Reach::All, Some(&key), |view| self.check_writer(view))?;
            let leader = crate::Leader::new(view.epoch, tail);
            let (nobody, epoch) = (view.sequencer.is_empty(), view.epoch);
            self.met(view);
            if nobody || self.inner.session.connect.is_none() {
                self.lead_with(&leader);
            }
            (version, epoch)
        } else {
            // All objects were sealed as this handle became the only writer. What it has under way itself is waited for
            // instead.
            let mut opening = opening.write();
            let view = head::change_with(self.store(), self.inner.id, &self.inner.name, Some(&key), |view| {
                self.check_writer(view)?;
                Ok(true)
            })?;
            *opening = view.version;
            held = Some(opening);
            // What is still on its way may be written under the same epoch: only deciding its position keeps it out.
            let mut doubt = latest.doubt.lock();
            if let Some((number, position)) = *doubt {
                match self.resolve(position, Nonce { writer: id, number }) {
                    Ok(_) | Err(Error::Trimmed { .. }) => *doubt = None,
                    Err(error) => return Err(error),
                }
            }
            (view.version, view.epoch)
        };
        let last = self.last_number(id)?;
        if held.take().is_none() {
            let mut opening = opening.write();
            *opening = version.max(*opening);
            // All objects are sealed: what was on its way is not written any more.
            *latest.doubt.lock() = None;
        }
        let verified = AtomicU64::new(0);
        let fence = Fence { key, name: name.to_owned(), version, epoch, latest: Arc::clone(&latest), verified };
        let numbers = Numbers { next: last.map_or(0, |last| last + 1) };
        Ok(Writer { log: self.clone(), id, fence, numbers: Mutex::new(numbers) })
    }

    fn last_number(&self, writer: u64) -> Result<Option<u64>> {
        let mut last = None;
        // All that are there, also those that the view has let go and that are not remembered yet.
        self.each_object(u64::MAX, |object| {
            let scan = OmapScan {
                start: Some(format::nonce_key(Nonce { writer, number: 0 })),
                end: Some(prefix::just_above(&format::nonce_key(Nonce { writer, number: u64::MAX }))),
                keys_only: true,
                ..OmapScan::default()
            };
            let found = prefix::last_omap(self.store(), object, scan)?;
            last = last.max(found.and_then(|(key, _)| format::key_number(&key)));
            Ok(())
        })?;
        // Afterwards: what goes meanwhile is remembered before.
        let remembered = self.store().omap_get(&format::head(self.inner.id), &format::writer_key(writer)).wait()?;
        Ok(last.max(remembered.as_deref().and_then(format::number_from)))
    }

    /// Calls `act` with the data objects of stripes below `end`, whether or not the view leads to them, in order.
    pub(crate) fn each_object(&self, end: u64, mut act: impl FnMut(&ObjectId) -> Result<()>) -> Result<()> {
        self.objects_below(end).try_for_each(|object| act(&object?))
    }

    /// The data objects of stripes below `end`, in order.
    pub(crate) fn objects_below(&self, end: u64) -> impl Iterator<Item = esker_store::Result<ObjectId>> + use<'_> {
        let id = self.inner.id;
        let is_below = move |name: &[u8]| format::data_place(id, name).is_some_and(|(stripe, _)| stripe < end);
        let all = format::objects(self.store(), &format::data_prefix(id));
        all.take_while(move |object| object.as_ref().map_or(true, |object| is_below(object.name())))
    }

    /// Notes in the head the last numbers of writers whose entries stand in objects of stripes below `first`, which are
    /// about to go. Before that it refuses all further writes to them, so that no number is missed.
    pub(crate) fn remember_writers(&self, first: u64) -> Result<()> {
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        self.each_object(first, |object| {
            let all = Change::number(TRIM, u64::MAX);
            let txn = Transaction::with(Durability::Always).giving_back().guard(object, Condition::Exists);
            let txn = txn.change(object, all);
            // A guard that fails: gone already, others trim too.
            submit_guarded(self.store(), txn)?;
            for entry in prefix::omap(self.store(), object, OmapScan::of(b"w").keys()) {
                let (key, _) = entry?;
                if let (Some(writer), Some(number)) = (first_number(&key), format::key_number(&key)) {
                    let known = last.entry(writer).or_default();
                    *known = number.max(*known);
                }
            }
            Ok(())
        })?;
        let head = format::head(self.inner.id);
        for (writer, number) in last {
            let key = format::writer_key(writer);
            let mut retry = Retry::default();
            loop {
                retry.attempt(|| format!("the last number of a writer of log {}", self.inner.name))?;
                let now = self.store().omap_get(&head, &key).wait()?;
                if now.as_deref().and_then(format::number_from).is_some_and(|now| now >= number) {
                    break;
                }
                let same = Condition::omap_is(key.clone(), now);
                let set = Change::OmapSet { key: key.clone(), value: format::number(number) };
                let txn = Transaction::new().giving_back();
                let txn = txn.guard(&head, Condition::Exists).guard(&head, same).change(&head, set);
                match submit_guarded(self.store(), txn)? {
                    None => break,
                    Some(0) => return Err(Error::NoLog { name: self.inner.name.clone() }),
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Where a numbered entry stands, newest stripes first.
    fn position_of(&self, nonce: Nonce) -> Result<Option<u64>> {
        let view = self.refresh()?;
        let key = format::nonce_key(nonce);
        for stripe in view.stripes_from_last() {
            for column in 0..stripe.width {
                let object = view.object(self.inner.id, &stripe, column);
                if let Some(found) = self.store().omap_get(&object, &key).wait()? {
                    return Ok(format::number_from(&found));
                }
            }
        }
        Ok(None)
    }
}

impl Writer {
    /// The number of the next entry.
    pub fn next_number(&self) -> u64 {
        self.numbers.lock().next
    }

    /// Appends the entry of number `number`, if it is not in the log already. The value is its position, and whether it
    /// was surely written now: not if it was there before, nor if an answer was lost and it was found, since another
    /// process of the name may have written it. Numbers count up: the next one, or one that was used.
    ///
    /// # Errors
    /// As [`Log::append`]; [`Error::Fenced`] if the writer was opened again since; [`Error::Invalid`] for a number that
    /// leaves others out; [`Error::Trimmed`] for one whose entry was trimmed away, with its objects. After
    /// [`Error::Uncertain`] the same number finds out.
    pub fn append(&self, number: u64, record: impl Into<Record>) -> Result<Completion<(u64, bool)>> {
        let latest = self.fence.latest.version.read();
        if *latest != self.fence.version {
            return Err(self.fence.fenced(&self.log, self.log.view().epoch));
        }
        let mut numbers = self.numbers.lock();
        let nonce = Nonce { writer: self.id, number };
        let doubt = self.fence.latest.doubt.lock().filter(|(of, _)| *of == number);
        if number == numbers.next
            && let Some((_, position)) = doubt
        {
            let there = match self.log.resolve(position, nonce) {
                // It cannot be told from what is left of the position, but from what the writer left beside it.
                Err(Error::Trimmed { .. }) => self.log.last_number(self.id)?.is_some_and(|last| last >= number),
                other => other?,
            };
            *self.fence.latest.doubt.lock() = None;
            numbers.next += u64::from(there);
        }
        if number < numbers.next {
            let position = self.log.position_of(nonce)?.ok_or(Error::Trimmed { position: self.log.view().trimmed })?;
            // It may not be durable yet.
            let (_, barrier) = self.log.read(position)?.into_parts();
            return Ok(Completion::after(Ok((position, false)), barrier));
        }
        if number > numbers.next {
            return Err(Error::invalid("number of an entry", format!("{number}: expected at most {}", numbers.next)));
        }
        let records = [record.into()];
        let fence = Some(&self.fence);
        let batch = Batch { fence, ..self.log.batch(&records, nonce, Durability::Durable) };
        let done = match self.log.append_new(&batch, None) {
            Err(error @ Error::Uncertain { position, .. }) => {
                *self.fence.latest.doubt.lock() = Some((number, position));
                return Err(error);
            }
            other => other?,
        };
        numbers.next += 1;
        let new = !batch.found.get();
        Ok(done.map(move |position| (position, new)))
    }
}

/// The number that stands for a writer's name in entries: FNV-1a, spread.
fn writer_id(name: &str) -> u64 {
    let fnv = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    mix(fnv)
}

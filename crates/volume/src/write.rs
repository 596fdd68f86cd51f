//! Writing: what each data object needs done before it may change, and everything in one transaction.
//!
//! range → pieces per object → guards (generation of the header, each object current) and changes → submit
//! → a guard fails: look at the state, at the objects → the same with what was found: clone for the snapshots, copy
//! from the parent
//!
//! A write that finds its objects current costs one submit and no look. Which handles may write, what size the image
//! has and which snapshots there are stands in the header under one generation; every write guards it. So a snapshot is
//! one moment for all writers, and a writer whose lock was taken over is refused in the same round trip, however late
//! he comes.
//!
//! Invariants:
//! 1. An object is cloned for the snapshots, or copied from the parent, in the transaction that writes it first.
//! 2. Up to [`ATOMIC_BYTES_MAX`] bytes of a write are one transaction, where the backend is atomic across objects; else
//!    each object is one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use esker_store::{
    Barrier, Change, Compare, Completion, Condition, Durability, Error as StoreError, Retry, Transaction,
};

use crate::format::{self, SEQ};
use crate::header;
use crate::image::{Image, Live, check_range, check_request};
use crate::source::{self, Source, candidates};
use crate::{Error, Result};

/// Bytes of a write that are applied together or not at all, where the backend can (16 MiB). Larger writes are several.
pub const ATOMIC_BYTES_MAX: u64 = 16 << 20;

/// Zeros to write: they take neither space in the program nor memory.
static ZEROS: [u8; ATOMIC_BYTES_MAX as usize] = [0; ATOMIC_BYTES_MAX as usize];
/// Where a range spans more sets of objects than this, those that are there are listed instead of looking for each.
const SETS_MAX: u64 = 1_024;

/// Runs in an object: offset and length.
type Runs = Vec<(u64, u64)>;

/// What is to be done to a data object.
#[derive(Debug)]
pub(crate) enum Act {
    Write(Vec<(u64, Bytes)>),
    Zero(Runs),
    /// Only what must come before a change.
    Own,
}

/// Who writes, and thus what is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writer {
    /// A user, inside the image from `offset` on for `len` bytes.
    User(u64, u64),
    /// Finishes shrinking to this size: writes past the end, as long as that is the end.
    Trim(u64),
    /// Work that leaves what the image shows as it is. Done beside the lock of others: their next write sees it.
    Work,
    /// Imports an increment of the snapshot of this number.
    Import(u64),
}

/// How a data object is found.
enum Found {
    /// No snapshot needs anything of it; so many bytes.
    Current(u64),
    /// Its content belongs to snapshots too: its `seq` and bytes.
    Old(u64, u64),
    /// It does not exist; what a parent has of it.
    Absent(Option<Source>),
}

impl Image {
    /// Writes `data` at `offset`, any alignment, at most [`REQUEST_BYTES_MAX`](crate::REQUEST_BYTES_MAX) bytes. It is
    /// applied (seen by every reader) when the call returns; where the backend is not atomic across objects it may only
    /// be begun then, and is applied when it completes. `Applied` completes at once and is durable after the next
    /// [`Image::flush`]; `Durable` completes when durable (FUA).
    ///
    /// # Errors
    /// [`Error::PastEnd`]; [`Error::Locked`] and [`Error::Fenced`]; [`Error::Refused`] during a rollback; the store's.
    /// Of a write larger than [`ATOMIC_BYTES_MAX`] (or over several objects, where the backend is not atomic across
    /// them) a first part may be there.
    pub fn write(&self, offset: u64, data: Bytes, durability: Durability) -> Result<Completion<()>> {
        let writer = Writer::User(offset, data.len() as u64);
        self.write_by(writer, offset, data, durability)
    }

    pub(crate) fn write_by(
        &self,
        writer: Writer,
        offset: u64,
        data: Bytes,
        durability: Durability,
    ) -> Result<Completion<()>> {
        let len = data.len() as u64;
        check_request(len)?;
        check_range(offset, len, self.refreshed_size(offset, len)?)?;
        let most = ATOMIC_BYTES_MAX.min(self.inner.capability.transaction_bytes_max / 2).max(1);
        let (mut barrier, mut done) = (None, 0);
        let mut begun = Vec::new();
        loop {
            let part = most.min(len - done);
            let layout = self.live().state.layout;
            let mut acts: BTreeMap<u64, Act> = BTreeMap::new();
            for piece in layout.pieces(offset + done, part) {
                let start = (piece.image_offset - offset) as usize;
                let bytes = data.slice(start..start + piece.len as usize);
                match acts.entry(piece.object).or_insert_with(|| Act::Write(Vec::new())) {
                    Act::Write(writes) => writes.push((piece.object_offset, bytes)),
                    _ => unreachable!("only writes are put in"),
                }
            }
            if !self.inner.capability.atomic_across_objects {
                // No guard is needed: there are no snapshots and no clones there.
                let (held, _) = self.permitted(writer)?;
                for (number, act) in &acts {
                    let Act::Write(writes) = act else { continue };
                    let mut txn = Transaction::with(durability);
                    push_writes(&mut txn, &format::data(self.inner.id, *number), writes);
                    let one = self.begin(txn, held);
                    if matches!(one.outcome(), Some(Err(_))) {
                        one.into_parts().0?;
                    } else {
                        begun.push(one);
                    }
                }
                done += part;
                if done >= len {
                    return Ok(Completion::all(begun).map(|_| ()));
                }
                continue;
            }
            barrier = Barrier::later(barrier, self.apply(&acts, durability, writer)?);
            done += part;
            if done >= len {
                return Ok(source::behind((), barrier));
            }
        }
    }

    /// Makes `len` bytes at `offset` read as zeros and gives their space back. Whole objects go; works in several
    /// transactions, each of a set of objects. Durability is as for [`Image::write`].
    ///
    /// # Errors
    /// As [`Image::write`].
    pub fn discard(&self, offset: u64, len: u64, durability: Durability) -> Result<Completion<()>> {
        check_range(offset, len, self.refreshed_size(offset, len)?)?;
        let barrier = self.zero_runs(offset, offset + len, durability, Writer::User)?;
        Ok(source::behind((), barrier))
    }

    /// Makes `len` bytes at `offset` read as zeros: as [`Image::discard`], or, if `allocate`, with zeros that take the
    /// space, written in several transactions of at most [`ATOMIC_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// As [`Image::write`].
    pub fn zero(&self, offset: u64, len: u64, allocate: bool, durability: Durability) -> Result<Completion<()>> {
        if !allocate {
            return self.discard(offset, len, durability);
        }
        check_range(offset, len, self.refreshed_size(offset, len)?)?;
        let (mut at, mut barrier) = (offset, None);
        while at < offset + len {
            let part = ATOMIC_BYTES_MAX.min(offset + len - at);
            let zeros = Bytes::from_static(&ZEROS[..part as usize]);
            let (written, later) = self.write(at, zeros, durability)?.into_parts();
            written?;
            barrier = Barrier::later(barrier, later);
            at += part;
        }
        Ok(source::behind((), barrier))
    }

    /// The size, looked up again if the range does not fit what was seen last.
    fn refreshed_size(&self, offset: u64, len: u64) -> Result<u64> {
        if check_range(offset, len, self.size()).is_err() {
            self.refresh()?;
        }
        Ok(self.size())
    }

    /// Zeros the bytes from `start` to `end`, a set of objects after another.
    pub(crate) fn zero_runs(
        &self,
        start: u64,
        end: u64,
        durability: Durability,
        writer: impl Fn(u64, u64) -> Writer,
    ) -> Result<Option<Barrier>> {
        let layout = self.live().state.layout;
        let (mut at, mut barrier) = (start, None);
        if (end - start) / layout.set_bytes() > SETS_MAX {
            return self.zero_listed(start, end, durability, writer(start, end - start));
        }
        while at < end {
            let next = (at / layout.set_bytes() + 1).saturating_mul(layout.set_bytes()).min(end);
            let runs = layout.by_object(at, next - at);
            let acts = runs.into_iter().map(|(number, runs)| (number, Act::Zero(runs))).collect();
            barrier = Barrier::later(barrier, self.apply(&acts, durability, writer(at, next - at))?);
            at = next;
        }
        Ok(barrier)
    }

    /// Zeros the bytes from `start` to `end` of all objects that there are.
    fn zero_listed(&self, start: u64, end: u64, durability: Durability, writer: Writer) -> Result<Option<Barrier>> {
        self.refresh()?;
        let live = self.live();
        // Refused, or found durable, also where there is nothing.
        let mut barrier = self.apply(&BTreeMap::new(), durability, writer)?;
        for number in candidates(self.store(), &live.point, true)? {
            let from = live.point.layout.prefix(number, start);
            let len = live.point.layout.prefix(number, end) - from;
            if len > 0 {
                let acts = BTreeMap::from([(number, Act::Zero(vec![(from, len)]))]);
                barrier = Barrier::later(barrier, self.apply(&acts, durability, writer)?);
            }
        }
        Ok(barrier)
    }

    /// Does `acts` in one transaction (or, where the backend is not atomic across objects, one for each object).
    pub(crate) fn apply(
        &self,
        acts: &BTreeMap<u64, Act>,
        durability: Durability,
        writer: Writer,
    ) -> Result<Option<Barrier>> {
        let atomic = self.inner.capability.atomic_across_objects;
        if atomic || acts.len() <= 1 {
            return self.apply_together(acts.iter(), durability, writer);
        }
        let mut barrier = None;
        for act in acts {
            let one = self.apply_together(std::iter::once(act), durability, writer)?;
            barrier = Barrier::later(barrier, one);
        }
        Ok(barrier)
    }

    fn apply_together<'a>(
        &self,
        acts: impl Iterator<Item = (&'a u64, &'a Act)> + Clone,
        durability: Durability,
        writer: Writer,
    ) -> Result<Option<Barrier>> {
        let fenced = self.inner.capability.atomic_across_objects;
        let mut look = false;
        let mut refreshed = false;
        let mut retry = Retry::default();
        loop {
            let (held, live) = self.permitted(writer)?;
            let mut txn = Transaction::with(durability);
            if fenced {
                txn = header::guarded(txn, self.inner.id, live.state.generation);
            }
            for (number, act) in acts.clone() {
                self.build(&mut txn, &live, *number, act, look)?;
            }
            if txn.ops.is_empty() {
                // That nothing is to be changed was seen in a state that may be gone, with this handle's lock.
                if held != 0 && self.fences_by_session() && !refreshed {
                    refreshed = true;
                    self.refresh()?;
                    continue;
                }
                match fenced.then(|| self.submit(txn, held).0) {
                    Some(Err(StoreError::GuardFailed { .. })) => {
                        self.refresh()?;
                        retry.again(|| self.data())?;
                        continue;
                    }
                    Some(Err(error)) => return Err(error.into()),
                    Some(Ok(_)) | None => {}
                }
                // What makes it unnecessary may be in the log's memory only.
                let wanted = (durability != Durability::Applied).then(|| self.flush().into_parts());
                let Some((seq, barrier)) = wanted else { return Ok(None) };
                seq?;
                return Ok(barrier);
            }
            match self.submit(txn, held) {
                (Ok(_), barrier) => return Ok(barrier),
                (Err(StoreError::GuardFailed { index: 0 }), _) if fenced => self.refresh()?,
                // The first look is no retry: no other writer need have caused it.
                (Err(StoreError::GuardFailed { .. } | StoreError::NoObject { .. }), _) if !look => {
                    look = true;
                    continue;
                }
                (Err(StoreError::GuardFailed { .. } | StoreError::NoObject { .. }), _) => {}
                (Err(error), _) => return Err(error.into()),
            }
            retry.again(|| self.data())?;
        }
    }

    /// The epoch of the lock under which this handle may write now, 0 without, and the state by which it may.
    fn permitted(&self, writer: Writer) -> Result<(u64, Arc<Live>)> {
        let mut refreshed = self.inner.outdated.swap(false, Ordering::SeqCst);
        if refreshed {
            self.refresh().inspect_err(|_| self.inner.outdated.store(true, Ordering::SeqCst))?;
        }
        loop {
            let (held, live) = (self.held(), self.live());
            let Err(error) = self.check_writer(&live, writer) else { return Ok((held, live)) };
            // What was seen may be old, also older than the lock that is held.
            let fenced = matches!(error, Error::Fenced { .. }) && live.state.lock_epoch >= self.held();
            if refreshed || fenced {
                return Err(error);
            }
            refreshed = true;
            self.refresh()?;
        }
    }

    fn check_writer(&self, live: &Live, writer: Writer) -> Result<()> {
        let state = &live.state;
        let image = || self.inner.name.clone();
        let held = self.held();
        if held != 0 && (state.lock_epoch != held || state.lock_owner.is_empty()) {
            return Err(Error::Fenced { image: image(), held, found: state.lock_epoch });
        }
        if held == 0 && !state.lock_owner.is_empty() && writer != Writer::Work {
            return Err(Error::Locked { image: image(), owner: state.lock_owner.clone(), epoch: state.lock_epoch });
        }
        if let Writer::Import(from) = writer {
            let begun = state.rollback == from;
            let why = || Error::refused(format!("the import into image {} was taken back meanwhile", image()));
            return if begun { Ok(()) } else { Err(why()) };
        }
        self.check_rollback(state)?;
        match writer {
            Writer::User(offset, len) => check_range(offset, len, state.size),
            Writer::Trim(size) if state.size != size => {
                Err(Error::refused(format!("image {} was resized meanwhile", self.inner.name)))
            }
            Writer::Trim(_) | Writer::Work | Writer::Import(_) => Ok(()),
        }
    }

    /// Adds what `act` needs to the transaction.
    fn build(&self, txn: &mut Transaction, live: &Live, number: u64, act: &Act, look: bool) -> Result<()> {
        let image = self.inner.id;
        let newest = live.state.newest;
        let head = format::data(image, number);
        // Whether others look at the object, or at what is in its place while it is missing.
        let shared = newest > 0 || live.point.overlap(number) > 0;
        let set_seq = || Change::number(SEQ, newest);
        if !look && let Act::Write(writes) = act {
            if shared {
                txn.push_guard(&head, current(newest));
            }
            push_writes(txn, &head, writes);
            return Ok(());
        }
        let found = self.find(live, number)?;
        let size = match &found {
            Found::Current(size) | Found::Old(_, size) => *size,
            Found::Absent(source) => source.as_ref().map_or(0, |source| source.visible),
        };
        let all = live.state.layout.prefix(number, live.state.size);
        let whole =
            matches!(act, Act::Zero(runs) if runs.iter().any(|(start, len)| *start == 0 && *len >= all.max(size)));
        match found {
            Found::Current(_) if matches!(act, Act::Own) => return Ok(()),
            Found::Current(_) if shared => txn.push_guard(&head, current(newest)),
            Found::Current(_) => {}
            Found::Old(before, _) => {
                txn.push_guard(&head, Condition::Exists);
                txn.push_guard(&head, Condition::compare(SEQ, Compare::Equal, before, before == 0));
                let clone = format::clone_of(image, number, newest);
                let value = format::number(before);
                txn.push(&head, Change::CloneTo { to: clone });
                txn.push(&format::clones(image), Change::OmapSet { key: format::clone_key(number, newest), value });
                txn.push(&head, set_seq());
            }
            // There is nothing to take away.
            Found::Absent(None) if matches!(act, Act::Zero(_) | Act::Own) => return Ok(()),
            Found::Absent(source) => {
                txn.push_guard(&head, Condition::Absent);
                match source.filter(|_| !whole) {
                    Some(source) => self.push_copy(txn, &source, &head)?,
                    None => txn.push(&head, Change::Touch),
                }
                txn.push(&head, set_seq());
            }
        }
        txn.gives_back |= matches!(act, Act::Zero(_));
        match act {
            Act::Write(writes) => push_writes(txn, &head, writes),
            // Where others look, an empty object says that there is nothing.
            Act::Zero(_) if whole && shared => txn.push(&head, Change::Truncate { size: 0 }),
            Act::Zero(_) if whole => txn.push(&head, Change::Remove),
            Act::Zero(runs) => {
                for (offset, len) in runs.iter().filter(|(offset, _)| *offset < size) {
                    txn.push(&head, Change::Zero { offset: *offset, len: (*len).min(size - offset) });
                }
            }
            Act::Own => {}
        }
        Ok(())
    }

    /// Adds the copying of what a parent, or a snapshot, has to `to`, as long as it is there.
    pub(crate) fn push_copy(&self, txn: &mut Transaction, source: &Source, to: &esker_store::ObjectId) -> Result<()> {
        txn.push_guard(&source.id, Condition::Exists);
        if source.while_before > 0 {
            txn.push_guard(&source.id, Condition::compare(SEQ, Compare::Less, source.while_before, true));
        }
        txn.push(&source.id, Change::CloneTo { to: to.clone() });
        // What lies past the overlap, or past the snapshot's size, belongs to no image.
        let size = self.store().size(&source.id).wait()?.unwrap_or(0);
        if size > source.visible {
            txn.push(to, Change::Truncate { size: source.visible });
        }
        Ok(())
    }

    fn find(&self, live: &Live, number: u64) -> Result<Found> {
        let head = format::data(self.inner.id, number);
        if let Some(stat) = self.store().stat(&head).wait()? {
            let seq = source::seq(self.store(), &head)?;
            return Ok(if seq >= live.state.newest { Found::Current(stat.size) } else { Found::Old(seq, stat.size) });
        }
        let source = source::with_source(self.store(), &live.point, number, |_| Ok(()))?;
        // Without a parent a missing object is found as an empty one.
        Ok(Found::Absent(source.map(|(source, ())| source).filter(|source| source.id != head)))
    }
}

/// What holds of an object that may be written as it is.
fn current(newest: u64) -> Condition {
    if newest == 0 { Condition::Exists } else { Condition::compare(SEQ, Compare::GreaterOrEqual, newest, false) }
}

fn push_writes(txn: &mut Transaction, head: &esker_store::ObjectId, writes: &[(u64, Bytes)]) {
    for (offset, data) in writes {
        txn.push(head, Change::Write { offset: *offset, data: data.clone() });
    }
}

//! Entries in commit order: the order of the transactions that wrote them, wherever the cleaner has put them since.
//!
//! ```text
//! segments that may hold what comes after the cursor, by the oldest thing in each → their operations → those that the
//!   index points to → the first few by (transaction, operation) → values
//! ```
//!
//! No second index is kept. A page of the answer costs the segments whose ranges of sequence numbers reach into it: one
//! or two as long as nothing was moved, more where the cleaner has mixed old and new.
//!
//! Invariants:
//! 1. A page holds whole groups of entries with one place in the order: what objects share is not cut in two.
//! 2. An entry that the cleaner moves while a page is made is neither missed nor shown twice: the page is made again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use esker_device::Device;
use esker_store::limits::SCAN_BYTES_MAX;
use esker_store::{Collection, CommitCursor, CommitEntry, Error, Result};

use crate::engine::Engine;
use crate::format::{Kind, Loc, OpHeader, RECORD_HEADER_BYTES, RecordHeader, SHORT_RECORD_HEADER_BYTES, round_up};
use crate::objects::Object;
use crate::pages::{Page as IndexPage, bring, each_page};
use crate::reader::{Asked, Sought};
use crate::segments::{DamageLevel, Lsn, Usage};
use crate::superblocks::device_error;

/// Entries of a page, where the next begins, and what has to be durable before they are shown.
pub(crate) type Walked = (Vec<CommitEntry>, Option<CommitCursor>, Lsn);

/// Transaction and operation.
type Place = (u64, u32);

/// So many times a page is made again because something was moved; then the cleaner has to wait.
const TRIES: usize = 3;

struct Found {
    object: Arc<Object>,
    kind: Kind,
    slot: u64,
    key: Bytes,
    loc: Loc,
    /// The object number that the value was written for, where that is known.
    owner: Option<u64>,
}

struct Page {
    limit: usize,
    after: Place,
    found: BTreeMap<Place, Vec<Found>>,
    count: usize,
    /// Something was left out at the end.
    more: bool,
}

impl Page {
    fn add(&mut self, place: Place, found: Vec<Found>) {
        self.count += found.len();
        self.found.entry(place).or_default().extend(found);
        while let Some(last) = self.found.last_entry() {
            if self.count - last.get().len() < self.limit {
                break;
            }
            self.count -= last.remove().len();
            self.more = true;
        }
    }

    fn wants(&self, place: Place) -> bool {
        place > self.after
            && (self.count < self.limit || self.found.last_key_value().is_some_and(|last| place <= *last.0))
    }
}

impl Engine {
    /// A page of live entries in commit order.
    pub(crate) fn walk(
        &self,
        collection: &Collection,
        name_prefix: &[u8],
        after: CommitCursor,
        limit: usize,
    ) -> Result<Walked> {
        // No reader that waits for the keeper may be pinned: the keeper waits for readers.
        self.find_cold_ends()?;
        let Some(keeper) = &self.keeper else { return self.walk_once(collection, name_prefix, after, limit) };
        keeper.a_walk_goes_on();
        for _ in 0..TRIES {
            let before = keeper.moves();
            // What looks damaged may only be on its way.
            let walked = self.walk_once(collection, name_prefix, after, limit);
            if before.is_multiple_of(2) && keeper.moves() == before || matches!(walked, Err(Error::Io { .. })) {
                return walked;
            }
        }
        keeper.while_nothing_moves(|| self.walk_once(collection, name_prefix, after, limit))
    }

    fn walk_once(
        &self,
        collection: &Collection,
        name_prefix: &[u8],
        after: CommitCursor,
        limit: usize,
    ) -> Result<Walked> {
        let _pinned = self.segments.pin();
        let objects: HashMap<u64, Arc<Object>> = {
            let names = self.objects.names.read();
            let Some(objects) = names.get(collection) else { return Ok((Vec::new(), None, 0)) };
            let found = objects.range::<Bytes, _>(Bytes::copy_from_slice(name_prefix)..);
            let found = found.take_while(|(name, _)| name.starts_with(name_prefix));
            found.map(|(_, object)| (object.state.read().number, Arc::clone(object))).collect()
        };
        let copied = objects.values().map(|object| object.state.read().copied_lsn).max().unwrap_or(0);
        let sharing: Vec<_> = objects.values().filter(|object| object.state.read().shares).cloned().collect();
        // What is in the open group is written out first, so that the walk reads nothing that is being written.
        if let Some(log) = &self.log {
            log.commit(false);
        }
        let (last_generation, last_end) = match &self.log {
            Some(log) => {
                #[cfg(test)]
                tests::before_look();
                let reached = log.reached();
                // What was cut and never became whole may stand below.
                if let Some(failure) = self.mark.failure() {
                    return Err(failure);
                }
                reached
            }
            None => (u32::MAX, 0),
        };
        let mut in_use = self.segments.in_use();
        in_use.retain(|usage| usage.cold || usage.generation <= last_generation);
        let ranges = ranges(&in_use, |usage| self.segments.range(usage));
        let after = (after.0, after.1 as u32);
        let mut page = Page { limit: limit.max(1), after, found: BTreeMap::new(), count: 0, more: false };
        for (usage, (first, last)) in ranges {
            if last < after.0 {
                continue;
            }
            if page.count >= page.limit && page.found.last_key_value().is_some_and(|(place, _)| first > place.0) {
                page.more = true;
                break;
            }
            let end = if usage.generation == last_generation { last_end } else { usage.end };
            match self.walk_segment(&usage, end, &objects, &sharing, &mut page) {
                // It was about to be made free when this walk began, and was used again: what it held before was dead.
                Err(Error::Corrupt { .. }) if !self.is_still(&usage) => {}
                walked => walked?,
            }
        }
        self.page_values(page, copied)
    }

    fn walk_segment(
        &self,
        usage: &Usage,
        end: u64,
        objects: &HashMap<u64, Arc<Object>>,
        sharing: &[Arc<Object>],
        page: &mut Page,
    ) -> Result<()> {
        let base = usage.segment * self.segments.segment_bytes;
        let block = u64::from(self.device.geometry().block_bytes);
        let mut window = Window { engine: self, base, end, start: 0, bytes: Vec::new() };
        let (mut at, mut first, mut last) = (block, u64::MAX, 0);
        // Before it is read: more may come into one that is written until then.
        let mut whole = usage.cold && self.is_written(usage.segment);
        let (mut gap, mut last_seq) = (None, None);
        while at + SHORT_RECORD_HEADER_BYTES as u64 <= end {
            let head = window.get(at, (RECORD_HEADER_BYTES as u64).min(end - at))?;
            let record = RecordHeader::decode(head, self.seed, base + at);
            let fits =
                |record: &RecordHeader| record.generation == usage.generation && u64::from(record.len) <= end - at;
            let Some(record) = record.filter(fits) else {
                // Records of cold segments begin at blocks: what follows one up to the next fills its last block.
                if !usage.cold || at.is_multiple_of(block) {
                    gap.get_or_insert(at);
                }
                at = round_up(at + 1, block);
                continue;
            };
            // The end of a group is followed by zeros up to the next block; then no sequence number is left out.
            let follows = last_seq.is_some_and(|last| record.seq == last + u64::from(!record.ends_group()));
            last_seq = Some(record.seq);
            if let Some(gap) = gap.take().filter(|_| usage.cold || !follows) {
                self.nothing_in(objects, base + gap..base + at)?;
                whole = false;
            }
            let mut op_at = at + record.header_bytes() as u64;
            for number in 0..record.op_count {
                let head = window.get(op_at, (1 << 13).min(end.saturating_sub(op_at)))?;
                let Some(header) = OpHeader::decode(head, self.seed, usage.generation, base + op_at) else {
                    // A crash may have torn a batch of a cold segment that nothing points to yet.
                    self.nothing_in(objects, base + op_at..base + at + u64::from(record.len))?;
                    whole = false;
                    break;
                };
                let (key, origin) = header.key(head);
                let place = origin.unwrap_or((record.seq, number));
                if matches!(header.kind, Kind::SlotSet | Kind::OmapSet) {
                    (first, last) = (first.min(place.0), last.max(place.0));
                    if page.wants(place) {
                        // Values that several objects share were written for one of them.
                        let owner = objects.get(&header.object);
                        let own = |object: &&Arc<Object>| owner.is_some_and(|owner| Arc::ptr_eq(owner, object));
                        let sharers = sharing.iter().filter(|object| !own(object));
                        let mut found = Vec::new();
                        for object in owner.into_iter().chain(sharers) {
                            found.extend(self.find(object, &header, key, base + op_at)?);
                        }
                        if !found.is_empty() {
                            page.add(place, found);
                        }
                    } else {
                        page.more |= place > page.after;
                    }
                }
                op_at += header.total_bytes();
            }
            at += u64::from(record.len);
        }
        // What the log is writing ends with zeros; as far as it stands in memory nothing has rotted, and memory was
        // looked at.
        let open = !usage.cold && self.log.as_ref().is_some_and(|log| log.open_generation() <= usage.generation);
        let in_memory = |gap: u64| open && self.segments.with_unwaited(base + gap, |_, _| ()).is_some();
        if let Some(gap) = gap.filter(|gap| !in_memory(*gap)) {
            let ends = usage.cold && whole && self.nothing_behind(usage, gap) && self.is_still(usage);
            if ends {
                self.segments.set_end(usage.segment, gap);
            } else {
                self.nothing_in(objects, base + gap..base + end)?;
                whole = false;
            }
        }
        if whole {
            self.segments.set_range(usage.segment, usage.generation, first, last);
        }
        Ok(())
    }

    /// Whether a segment holds what it held when it was listed.
    fn is_still(&self, usage: &Usage) -> bool {
        self.segments.generation(usage.segment) == usage.generation
    }

    /// Whether more may come into a cold segment.
    fn is_written(&self, segment: u64) -> bool {
        self.keeper.as_ref().is_none_or(|keeper| !keeper.writes(segment))
    }

    /// Finds out, once, up to where something points into each cold segment of which the checkpoint does not say how
    /// far it was written: the one that was open then, and all that a store of version 3 has.
    pub(crate) fn find_cold_ends(&self) -> Result<()> {
        let unknown =
            |usage: &Usage| usage.cold && usage.end >= self.segments.segment_bytes && self.is_written(usage.segment);
        if self.furthest.lock().is_some() || !self.segments.in_use().iter().any(unknown) {
            return Ok(());
        }
        // Before the lock: the keeper, which has the pieces, has a lock of its own.
        let pieces = self.pieces_in(&(0..u64::MAX));
        let mut furthest = self.furthest.lock();
        if furthest.is_some() {
            return Ok(());
        }
        let all = self.segments.in_use().into_iter().filter(unknown);
        let mut found: HashMap<u64, (u32, u64)> = all.map(|usage| (usage.segment, (usage.generation, 0))).collect();
        for (.., loc) in pieces {
            if let Some((_, far)) = found.get_mut(&self.segments.segment_of(loc.offset())) {
                *far = loc.offset().max(*far);
            }
        }
        let mut objects = Vec::new();
        self.objects.for_each(|object| objects.push(Arc::clone(object)));
        for object in objects {
            let _pinned = self.segments.pin();
            let (number, spaces) = object.numbered_spaces();
            each_page(&self.reader, number, &spaces, &mut |page| {
                page.each_place(|offset, _| {
                    if let Some((_, far)) = found.get_mut(&self.segments.segment_of(offset)) {
                        *far = offset.max(*far);
                    }
                });
                Ok(())
            })?;
        }
        *furthest = Some(found);
        Ok(())
    }

    /// Whether nothing points to what stands behind an offset in a cold segment that is not written any more, as far as
    /// that was found out.
    pub(crate) fn nothing_behind(&self, usage: &Usage, end: u64) -> bool {
        let furthest = self.furthest.lock();
        let known = furthest.as_ref().and_then(|furthest| furthest.get(&usage.segment));
        let base = usage.segment * self.segments.segment_bytes;
        known.is_some_and(|(generation, far)| *generation == usage.generation && *far < base + end)
    }

    /// Sees to it that nothing is left out where no record can be read.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: something points there.
    fn nothing_in(&self, objects: &HashMap<u64, Arc<Object>>, range: std::ops::Range<u64>) -> Result<()> {
        if !self.any_points_into(objects, &range)? {
            return Ok(());
        }
        let what = "what stands there does not hold, and entries point there".into();
        Err(Error::Corrupt { offset: range.start, what })
    }

    /// Whether slots or omap of one of the objects have anything in this range of the device.
    fn any_points_into(&self, objects: &HashMap<u64, Arc<Object>>, range: &std::ops::Range<u64>) -> Result<bool> {
        let mut found = false;
        for object in objects.values() {
            let (number, spaces) = object.numbered_spaces();
            each_page(&self.reader, number, &spaces, &mut |page| {
                if !matches!(page, IndexPage::Extents(_)) {
                    page.each_place(|offset, _| found |= range.contains(&offset));
                }
                Ok(())
            })?;
        }
        Ok(found)
    }

    /// The entry that the operation at `offset` made, if the object still has it there.
    fn find(&self, object: &Arc<Object>, header: &OpHeader, key: &[u8], offset: u64) -> Result<Option<Found>> {
        let (loc, owner) = loop {
            let state = object.state.read();
            let looked = match header.kind {
                Kind::SlotSet => state.slots.get(header.argument),
                _ => state.omap.get(key),
            };
            match looked {
                Ok(loc) => break (loc, state.owner(state.number)),
                Err(missing) => {
                    drop(state);
                    bring(&self.reader, &self.objects, object, &[missing])?;
                }
            }
        };
        let found = |loc| Found {
            object: Arc::clone(object),
            kind: header.kind,
            slot: header.argument,
            key: Bytes::copy_from_slice(key),
            loc,
            owner,
        };
        Ok(loc.filter(|loc| loc.offset() == offset).map(found))
    }

    fn page_values(&self, page: Page, copied: Lsn) -> Result<Walked> {
        let mut entries = Vec::with_capacity(page.count);
        let (mut wait_to, mut bytes, mut more) = (copied, 0, page.more);
        let mut last = page.after;
        for (place, group) in page.found {
            if bytes >= SCAN_BYTES_MAX {
                more = true;
                break;
            }
            for found in group {
                let what = match found.kind {
                    Kind::SlotSet => Sought::Slot(found.slot),
                    _ => Sought::Omap(&found.key),
                };
                let asked = Asked { object: found.owner, what };
                let value = self.reader.fetch(found.loc, &asked, self.mark.durable())?;
                wait_to = wait_to.max(value.wait_to);
                bytes += value.value.len() + found.key.len();
                let id = found.object.id.clone();
                entries.push(match found.kind {
                    Kind::SlotSet => CommitEntry::Slot(id, found.slot, value.value),
                    _ => CommitEntry::Omap(id, found.key, value.value),
                });
            }
            last = place;
        }
        Ok((entries, more.then_some(CommitCursor(last.0, u64::from(last.1))), wait_to))
    }
}

/// Segments with the first and last transaction that they may hold something of, by the first.
fn ranges(in_use: &[Usage], range: impl Fn(&Usage) -> (u64, u64)) -> Vec<(Usage, (u64, u64))> {
    let mut log: Vec<&Usage> = in_use.iter().filter(|usage| !usage.cold).collect();
    log.sort_unstable_by_key(|usage| usage.generation);
    // Where the header of the next is lost, it is not known what that one begins with.
    let begins = |next: &&Usage| if next.damage >= DamageLevel::Header { u64::MAX } else { next.age };
    let lasts = log.iter().skip(1).map(begins).chain([u64::MAX]);
    let mut ranges: Vec<_> = log.iter().zip(lasts).map(|(usage, last)| (**usage, (usage.age, last))).collect();
    ranges.extend(in_use.iter().filter(|usage| usage.cold).map(|usage| (*usage, range(usage))));
    ranges.sort_unstable_by_key(|(_, range)| range.0);
    ranges
}

/// A piece of a segment that is being walked: from its buffer if that is in memory, else read in large steps.
struct Window<'a> {
    engine: &'a Engine,
    base: u64,
    end: u64,
    start: u64,
    bytes: Vec<u8>,
}

const WINDOW_BYTES: u64 = 1 << 20;

impl Window<'_> {
    fn get(&mut self, at: u64, len: u64) -> Result<&[u8]> {
        let end = self.start + self.bytes.len() as u64;
        if at + len > self.end {
            return Err(Error::Corrupt { offset: self.base + at, what: "record reaches past the log's end".into() });
        }
        if at < self.start || at + len > end {
            let take = WINDOW_BYTES.max(len).min(self.end - at) as usize;
            self.start = at;
            self.bytes.resize(take, 0);
            let bytes = &mut self.bytes;
            let copied = self.engine.segments.with_unwaited(self.base + at, |buffer, start| {
                // SAFETY: the walk stays below the written end, whose writers have all finished.
                bytes.copy_from_slice(unsafe { buffer.range(start, take) });
            });
            if copied.is_none() {
                let read = self.engine.device.read(self.base + at, &mut self.bytes);
                read.map_err(|error| device_error(&format!("walking the log at {}", self.base + at), error))?;
                self.take_memory();
            }
        }
        let from = (at - self.start) as usize;
        Ok(&self.bytes[from..from + len as usize])
    }

    /// What has been read and also stands in memory is as memory has it: the device may have lost it.
    fn take_memory(&mut self) {
        let end = self.start + self.bytes.len() as u64;
        self.engine.segments.with_unwaited(self.base + end - 1, |buffer, last| {
            let from = (buffer.from as u64).max(self.start);
            let at = (from - self.start) as usize;
            let len = self.bytes.len() - at;
            // SAFETY: as above.
            self.bytes[at..].copy_from_slice(unsafe { buffer.range(last + 1 - len, len) });
        });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::mpsc::channel;

    use esker_store::{Change, Durability, ObjectStore, Transaction};

    use super::*;
    use crate::submit::tests::{applied, object, submit_in_two_steps, with_object};

    thread_local! {
        /// What happens between a walk's commit and its look at how far the log is written.
        static BEFORE_LOOK: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    }

    pub(super) fn before_look() {
        if let Some(hook) = BEFORE_LOOK.take() {
            hook();
        }
    }

    // Failure: a walk told of damage where there was none. Cause: it read a segment that the log had left up to its
    // end, and a writer had not filled its record there. Fix: it reads what is written.
    #[test]
    fn a_walk_reads_only_what_is_written_though_the_log_is_in_the_next_segment() {
        let (_device, engine) = with_object();
        let engine = Arc::new(engine);
        let ((stands, stood), (go, goes_on)) = (channel(), channel());
        let hooked = Arc::clone(&engine);
        let hook = move || {
            let (engine, writing) = (&hooked, Arc::clone(&hooked));
            std::thread::spawn(move || submit_in_two_steps(&writing, applied(0, "after", true), stands, goes_on));
            stood.recv().unwrap();
            let log = engine.log.as_ref().unwrap();
            let value = Bytes::from(vec![7; 10_000]);
            let more = || Transaction {
                durability: Durability::Applied,
                ..Transaction::new().change(&object(), Change::SlotSet { index: 3, value: value.clone() })
            };
            while !log.leave_segment() {
                engine.submit(more()).wait().unwrap();
            }
            engine.submit(more()).wait().unwrap();
        };
        BEFORE_LOOK.set(Some(Box::new(hook)));
        let walked = engine.walk(&"c".into(), b"", CommitCursor::default(), 100);
        go.send(true).unwrap();
        // The slot that is kept, and not what is written over.
        assert_eq!(walked.unwrap().0.len(), 1);
        assert!(BEFORE_LOOK.take().is_none(), "no walk came to its look");
    }
}

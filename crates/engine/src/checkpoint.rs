//! Checkpoints: the index as it was at one place of the log, so that opening costs what came after that place.
//!
//! ```text
//! end the epoch (one sync; none at a clean stop) → changed objects as they were at that place
//!   → changed pages, lists, heads, table, root
//!   → cold segments, synced → log synced → superblock → what the checkpoint replaced counts no longer
//! ```
//!
//! Runs while transactions go on: a transaction that changes an object which the checkpoint has not taken yet leaves
//! behind what it was ([`Objects::enter`](crate::objects::Objects::enter)), which costs a list of page references.
//!
//! Invariants:
//! 1. A superblock names a checkpoint only when all of it is durable, and all of the log before its place.
//! 2. What a named checkpoint needs stays where it is until the one after the next is named, unless room is short,
//!    which the superblock says then: should the newest not hold, the one before it and the log after that say the
//!    same.
//! 3. Only what changed since the last checkpoint is written, with the lists that lead to it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use esker_store::{Error, ObjectId, Result};

use crate::cold::Cold;
use crate::commit::{EpochEnd, Log};
use crate::format::{
    Head, Loc, PARTS, PageList, ReplayFrom, Role, Root, SegmentEntry, Space, Stream, encode_slot_page, push_extent,
    push_omap, push_slot,
};
use crate::index::PageId;
use crate::objects::{Object, Objects, Spaces};
use crate::reader::Reader;
use crate::segments::{GENERATION_LOST, Segments, Usage};
use crate::spaces::{INLINE_BYTES_MAX, INLINE_SLOT_BYTES};
use crate::superblocks::Superblocks;

/// Heads in one part of the table.
pub const TABLE_PART: u64 = 4096;

/// The pages of one space of one object, as the last checkpoint has them.
#[derive(Clone, Debug)]
pub struct SavedSpace {
    /// Pages by number.
    pub pages: BTreeMap<u64, Loc>,
    /// Where the list of them is.
    pub list: Loc,
}

/// What the last checkpoint holds and where.
#[derive(Default)]
pub struct Saved {
    /// Heads by object number, in parts of [`TABLE_PART`].
    pub table: BTreeMap<u64, BTreeMap<u64, Loc>>,
    /// Where each part of the table is.
    pub parts: BTreeMap<u64, Loc>,
    /// Spaces that have pages, by object number.
    pub spaces: BTreeMap<u64, [Option<SavedSpace>; 3]>,
    /// The parts of pieces that are too large for one operation, by the offset of the list of them.
    pub large: HashMap<u64, Vec<Loc>>,
    /// The root.
    pub root: Option<Loc>,
    /// Parts of the table that have to be written again.
    pub dirty_parts: BTreeSet<u64>,
    /// Objects whose pages all have to be written again, because a checkpoint that did not come to its end had begun
    /// with them.
    rewrite: BTreeSet<u64>,
    /// What the checkpoint that is named by the superblock has, and the one being made has not any more.
    replaced: Vec<Loc>,
    /// What the checkpoint before the one that is named by the superblock has, and that one has not any more.
    retired: Vec<Loc>,
    /// How far the scrubber has come: see [`Root::scrub`].
    pub scrub: (u64, u64),
}

/// What the engine's background work needs.
pub struct Parts {
    /// Segments of the device.
    pub segments: Arc<Segments>,
    /// Reads what the index points to.
    pub reader: Arc<Reader>,
    /// All objects.
    pub objects: Arc<Objects>,
    /// The log.
    pub log: Arc<Log>,
    /// Superblocks.
    pub superblocks: Arc<Superblocks>,
    /// Number of the next object.
    pub next_number: Arc<std::sync::atomic::AtomicU64>,
}

/// What a checkpoint did.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckpointReport {
    /// Objects that had changed.
    pub objects: u64,
    /// Pages of them that had changed.
    pub pages: u64,
    /// Bytes written for all that.
    pub bytes: u64,
    /// Generation of the segment where the log goes on: older ones are not replayed any more.
    pub generation: u32,
}

/// What is to be expected of the next checkpoint.
pub struct Forecast {
    /// Bytes that it writes, at most, if nothing changes until then.
    pub written: u64,
    /// Bytes of the last one that it leaves where they are, by segment.
    pub stays: HashMap<u64, u64>,
}

/// One checkpoint being written.
struct Run<'a> {
    saved: &'a mut Saved,
    parts: &'a Parts,
    cold: &'a mut Cold,
    age: u64,
    /// The epoch that ended where the checkpoint stands.
    epoch: u32,
    report: CheckpointReport,
    /// Called after each piece with the bytes written so far.
    pace: &'a mut dyn FnMut(u64),
}

impl Saved {
    /// Writes a checkpoint of all that changed since the last; its superblock says whether what the last one needs is
    /// kept. `pace` is told the bytes written so far, and may wait.
    ///
    /// # Errors
    /// [`Error::Full`](esker_store::Error::Full): the last checkpoint still counts, and the next one goes on with what
    /// this one has not come to. [`Error::Stopped`](esker_store::Error::Stopped): the device failed, and the log has to
    /// stop.
    pub fn checkpoint(
        &mut self,
        parts: &Parts,
        cold: &mut Cold,
        before_kept: &dyn Fn() -> bool,
        pace: &mut dyn FnMut(u64),
    ) -> Result<CheckpointReport> {
        let _span = tracing::trace_span!(target: "esker_trace", "checkpoint").entered();
        // What one that was put off has left in memory is looked up on the device from here on.
        cold.write_batch()?;
        let EpochEnd { from: replay, epoch, last } = parts.log.end_epoch()?;
        let mut touched = parts.objects.take_touched(epoch);
        touched.sort_unstable();
        touched.dedup();
        let report = CheckpointReport { generation: replay.generation, ..CheckpointReport::default() };
        let mut run = Run { saved: self, parts, cold, age: replay.seq, epoch, report, pace };
        let mut left = touched.iter();
        let mut written = Ok(());
        for number in left.by_ref() {
            written = run.object(*number, parts.objects.capture(*number, epoch));
            if written.is_err() {
                run.saved.rewrite.insert(*number);
                parts.objects.put_off(*number, epoch);
                parts.objects.note(*number, epoch + 1);
                break;
            }
            run.saved.rewrite.remove(number);
        }
        if let Err(error) = written {
            for number in left {
                if parts.objects.put_off(*number, epoch) {
                    run.saved.rewrite.insert(*number);
                }
                parts.objects.note(*number, epoch + 1);
            }
            return Err(error);
        }
        let root = run.table_and_root(replay)?;
        run.cold.write_batch()?;
        // Where the log stands in it is of a later moment than the rest. One sync is for both: they stand on one
        // device.
        parts.log.commit(true);
        if let Some(failure) = parts.log.mark().failure() {
            return Err(failure);
        }
        let root_generation = parts.segments.generation(parts.segments.segment_of(root.offset()));
        // Asked before the superblocks' lock is taken.
        let before_kept = before_kept();
        parts
            .superblocks
            .write(|superblock| {
                superblock.root = root.raw();
                superblock.root_generation = root_generation;
                superblock.replay = replay;
                // The log goes no further: what the superblock says of its end is the whole truth.
                superblock.clean = last;
                superblock.before_kept = before_kept;
                superblock.end_generation = replay.generation;
                superblock.end_offset = replay.offset;
                superblock.end_seq = replay.seq;
            })
            .map_err(|error| Error::Stopped { cause: error.to_string().into() })?;
        let report = run.report;
        parts.objects.collections_saved(epoch);
        let retired = std::mem::take(&mut self.replaced);
        self.give_up(parts);
        self.retired = retired;
        Ok(report)
    }

    /// Whether pieces that only the checkpoint before the newest has begin in a range of the device.
    pub fn has_retired_in(&self, range: &std::ops::Range<u64>) -> bool {
        self.retired.iter().any(|loc| range.contains(&loc.offset()))
    }

    /// Gives up the pieces of the checkpoint before that newer ones have not.
    pub fn give_up(&mut self, parts: &Parts) {
        for loc in self.retired.drain(..) {
            parts.segments.add_index(loc.offset(), -(loc.span_bytes() as i64));
        }
    }

    /// Whether an object's pages tell what has changed since the last checkpoint.
    pub fn knows(&self, number: u64) -> bool {
        !self.rewrite.contains(&number)
    }

    /// The pieces of the last checkpoint, and the parts of large ones, that begin in a range of the device, with the
    /// numbers of their objects.
    pub fn pieces_in(&self, range: &std::ops::Range<u64>) -> Vec<(u64, Role, Loc)> {
        let mut found = Vec::new();
        let mut add = |object: u64, role: Role, loc: Loc| {
            let parts = self.large.get(&loc.offset()).into_iter().flatten();
            let places = std::iter::once(loc.with_flags(0)).chain(parts.copied());
            found.extend(places.filter(|loc| range.contains(&loc.offset())).map(|loc| (object, role, loc)));
        };
        self.root.iter().for_each(|loc| add(0, Role::Root, *loc));
        self.parts.iter().for_each(|(part, loc)| add(0, Role::Table(*part), *loc));
        for heads in self.table.values() {
            heads.iter().for_each(|(number, loc)| add(*number, Role::Head, *loc));
        }
        for (number, spaces) in &self.spaces {
            for (space, saved) in Space::ALL.into_iter().zip(spaces) {
                let Some(saved) = saved else { continue };
                add(*number, Role::List(space), saved.list);
                saved.pages.iter().for_each(|(page, loc)| add(*number, Role::Page(space, *page), *loc));
            }
        }
        found
    }

    /// Whether the last checkpoint has this piece at this place.
    pub fn holds(&self, object: u64, role: Role, offset: u64) -> bool {
        let is = |loc: Option<&Loc>| loc.is_some_and(|loc| loc.offset() == offset || loc.flags() & PARTS != 0);
        let space = |space: Space| self.spaces.get(&object).and_then(|spaces| spaces[space as usize].as_ref());
        match role {
            Role::Root => false,
            Role::Table(part) => is(self.parts.get(&part)),
            Role::Head => is(self.table.get(&(object / TABLE_PART)).and_then(|part| part.get(&object))),
            Role::List(of) => is(space(of).map(|space| &space.list)),
            Role::Page(of, number) => is(space(of).and_then(|space| space.pages.get(&number))),
        }
    }
}

/// A page takes at most so many bytes of a checkpoint.
const PAGE_BYTES: u64 = 4096 + 40;
/// An entry of a list of pages or of heads takes so many.
const ENTRY_BYTES: u64 = 16;
/// What a list, a part of the table or the root takes beside its entries, about.
const PIECE_BYTES: u64 = 512;
/// And a head beside its names, attributes and entries.
const HEAD_BYTES: u64 = 96;

impl Saved {
    /// What the next checkpoint will write, from what has changed by now. Looks at every piece of the last one, and at
    /// the pages of each object that has changed.
    pub fn forecast(&self, parts: &Parts) -> Forecast {
        let touched = parts.objects.touched_so_far(parts.log.epoch());
        let mut changed: BTreeMap<u64, [Vec<u64>; 3]> = BTreeMap::new();
        for number in touched.into_iter().chain(self.rewrite.iter().copied()) {
            let object = parts.objects.numbered(number);
            changed.insert(number, Space::ALL.map(|space| self.changed_pages(parts, number, space, object.as_deref())));
        }
        let span = |loc: Option<&Loc>| {
            let part_of = |loc: &Loc| self.large.get(&loc.offset()).into_iter().flatten().map(|part| part.span_bytes());
            loc.map_or(0, |loc| loc.span_bytes() + part_of(loc).sum::<u64>())
        };
        let mut written = span(self.root.as_ref()) + parts.segments.log_segments() * 2 * ENTRY_BYTES + PIECE_BYTES;
        let mut table_parts = self.dirty_parts.clone();
        for (number, pages) in &changed {
            table_parts.insert(number / TABLE_PART);
            let Some(object) = parts.objects.numbered(*number) else { continue };
            written += head_bytes(&object, parts.segments.segment_bytes) + ENTRY_BYTES;
            for (space, pages) in Space::ALL.into_iter().zip(pages) {
                let saved = self.saved_space(*number, space);
                let listed = saved.map_or(0, |saved| saved.pages.len()) + pages.len();
                written += if listed == 0 { 0 } else { listed as u64 * ENTRY_BYTES + PIECE_BYTES };
                // What was small may have grown.
                let bytes = |page: &u64| match saved.and_then(|saved| saved.pages.get(page)) {
                    Some(loc) => (2 * loc.span_bytes()).min(PAGE_BYTES).max(loc.span_bytes()),
                    None => PAGE_BYTES,
                };
                written += pages.iter().map(bytes).sum::<u64>();
            }
        }
        written += table_parts.iter().map(|part| span(self.parts.get(part)) + PIECE_BYTES).sum::<u64>();
        let mut stays: HashMap<u64, u64> = HashMap::new();
        let mut stay = |loc: Loc| {
            let parts_of = self.large.get(&loc.offset()).into_iter().flatten().copied();
            for loc in std::iter::once(loc.with_flags(0)).chain(parts_of) {
                *stays.entry(parts.segments.segment_of(loc.offset())).or_default() += loc.span_bytes();
            }
        };
        self.parts.iter().filter(|(part, _)| !table_parts.contains(part)).for_each(|(_, loc)| stay(*loc));
        for (number, loc) in self.table.values().flatten() {
            if !changed.contains_key(number) {
                stay(*loc);
            }
        }
        for (number, spaces) in &self.spaces {
            let changed = changed.get(number);
            for (space, saved) in Space::ALL.into_iter().zip(spaces) {
                let Some(saved) = saved else { continue };
                let pages = changed.map_or(&[][..], |changed| &changed[space as usize]);
                if changed.is_none() {
                    stay(saved.list);
                }
                let there = saved.pages.iter().filter(|(page, _)| pages.binary_search(page).is_err());
                there.for_each(|(_, loc)| stay(*loc));
            }
        }
        Forecast { written, stays }
    }

    fn saved_space(&self, number: u64, space: Space) -> Option<&SavedSpace> {
        self.spaces.get(&number).and_then(|spaces| spaces[space as usize].as_ref())
    }

    /// The pages of an object that the next checkpoint writes or leaves out, sorted; all of one that is gone.
    fn changed_pages(&self, parts: &Parts, number: u64, space: Space, object: Option<&Object>) -> Vec<u64> {
        let saved = || self.saved_space(number, space).into_iter().flat_map(|saved| saved.pages.keys().copied());
        let Some(object) = object else { return saved().collect() };
        let state = object.state.read();
        // Without a list all are written, those of a clone of what has not changed too.
        let is_new = self.saved_space(number, space).is_none();
        if is_new && inline_bytes(space, &state.spaces, inline_max(parts.segments.segment_bytes)).is_some() {
            return Vec::new();
        }
        let all = is_new || self.rewrite.contains(&number);
        let mut pages = if all { state.spaces.pages(space) } else { dirty_pages(space, &state.spaces) };
        pages.retain(|page| state.spaces.cold_page(space, *page).is_none());
        drop(state);
        pages.sort_unstable();
        pages
    }
}

impl Run<'_> {
    /// Writes a piece; what stood in its place before is replaced. When this fails, what was there still is.
    fn put(&mut self, object: u64, role: Role, payload: &[u8], before: Option<Loc>) -> Result<Loc> {
        let (loc, places) = self.cold.append_index(object, role, payload, self.age)?;
        self.replace(before);
        if places.len() > 1 {
            let parts = places.iter().copied().filter(|part| part.offset() != loc.offset());
            self.saved.large.insert(loc.offset(), parts.collect());
        }
        for place in places {
            self.report.bytes += place.span_bytes();
            self.parts.segments.add_index(place.offset(), place.span_bytes() as i64);
        }
        (self.pace)(self.report.bytes);
        Ok(loc)
    }

    /// All places that a piece takes, which is not in the checkpoint any more.
    fn places_of(&mut self, piece: Option<Loc>) -> Vec<Loc> {
        let Some(loc) = piece else { return Vec::new() };
        let parts = self.saved.large.remove(&loc.offset()).unwrap_or_default();
        std::iter::once(loc).chain(parts).collect()
    }

    fn replace(&mut self, before: Option<Loc>) {
        let places = self.places_of(before);
        self.saved.replaced.extend(places);
    }

    fn drop_space(&mut self, number: u64, space: Space) -> Result<()> {
        let Some(spaces) = self.saved.spaces.get_mut(&number) else { return Ok(()) };
        let dropped = spaces[space as usize].take();
        if spaces.iter().all(Option::is_none) {
            self.saved.spaces.remove(&number);
        }
        if let Some(dropped) = dropped {
            self.replace(Some(dropped.list));
            dropped.pages.into_values().for_each(|loc| self.replace(Some(loc)));
        }
        Ok(())
    }

    fn object(&mut self, number: u64, captured: Option<(ObjectId, Spaces)>) -> Result<()> {
        self.report.objects += 1;
        let part = number / TABLE_PART;
        let before = self.saved.table.get(&part).and_then(|part| part.get(&number)).copied();
        let Some((id, spaces)) = captured else {
            Space::ALL.into_iter().try_for_each(|space| self.drop_space(number, space))?;
            self.replace(before);
            if before.is_some() {
                self.saved.dirty_parts.insert(part);
                let heads = self.saved.table.entry(part).or_default();
                heads.remove(&number);
            }
            return Ok(());
        };
        let xattrs = spaces.xattrs.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        let head = Head {
            number,
            collection: id.collection().name().to_vec(),
            name: id.name().to_vec(),
            size: spaces.size,
            shares: spaces.shares,
            shifted: spaces.shifted,
            xattrs,
            spaces: [
                self.space(number, Space::Slots, &spaces)?,
                self.space(number, Space::Omap, &spaces)?,
                self.space(number, Space::Extents, &spaces)?,
            ],
        };
        let loc = self.put(number, Role::Head, &head.encode(), before)?;
        self.saved.table.entry(part).or_default().insert(number, loc);
        self.saved.dirty_parts.insert(part);
        Ok(())
    }

    fn space(&mut self, number: u64, space: Space, spaces: &Spaces) -> Result<PageList> {
        let inline_max = inline_max(self.parts.segments.segment_bytes);
        if let Some(inline) = inline(space, spaces, inline_max) {
            self.drop_space(number, space)?;
            return Ok(if inline.is_empty() { PageList::Empty } else { PageList::Inline(inline) });
        }
        let known = self.saved.spaces.entry(number).or_default()[space as usize].take();
        let (mut pages, list) = match known {
            Some(known) => (known.pages, Some(known.list)),
            None => (BTreeMap::new(), None),
        };
        // Without a list nothing of it was saved before.
        let changed = if list.is_none() || self.saved.rewrite.contains(&number) {
            // What is not in memory has not changed: it stays where it is.
            let mut all = spaces.pages(space);
            all.extend(pages.keys());
            all.retain(|page| spaces.cold_page(space, *page).is_none());
            all.sort_unstable();
            all.dedup();
            all
        } else {
            dirty_pages(space, spaces)
        };
        let written = changed.into_iter().try_for_each(|page| {
            let before = pages.get(&page).copied();
            let payload = encode_page(space, spaces, page);
            if payload.is_empty() {
                self.replace(before);
                pages.remove(&page);
                return Ok(());
            }
            self.report.pages += 1;
            let loc = self.put(number, Role::Page(space, page), &payload, before)?;
            pages.insert(page, loc);
            Ok(())
        });
        let mut payload = Vec::with_capacity(pages.len() * 16);
        pages.iter().for_each(|(page, loc)| push_slot(&mut payload, *page, *loc));
        let written = written.and_then(|()| self.put(number, Role::List(space), &payload, list));
        let list = match (written, list) {
            (Ok(written), _) => written,
            (Err(error), Some(list)) => {
                self.saved.spaces.entry(number).or_default()[space as usize] = Some(SavedSpace { pages, list });
                return Err(error);
            }
            (Err(error), None) => {
                // Nothing leads to these pages: the next checkpoint writes them again.
                pages.into_values().for_each(|loc| self.replace(Some(loc)));
                return Err(error);
            }
        };
        let numbers = pages.last_key_value().map_or(0, |(page, _)| page + 1);
        self.saved.spaces.entry(number).or_default()[space as usize] = Some(SavedSpace { pages, list });
        Ok(PageList::Pages { numbers, list })
    }

    fn table_and_root(&mut self, replay: ReplayFrom) -> Result<Loc> {
        while let Some(part) = self.saved.dirty_parts.first().copied() {
            let before = self.saved.parts.get(&part).copied();
            let heads = self.saved.table.get(&part).filter(|heads| !heads.is_empty());
            let mut payload = Vec::new();
            match heads {
                Some(heads) => heads.iter().for_each(|(number, loc)| push_slot(&mut payload, *number, *loc)),
                None => {
                    self.replace(before);
                    self.saved.table.remove(&part);
                    self.saved.parts.remove(&part);
                    self.saved.dirty_parts.remove(&part);
                    continue;
                }
            }
            let loc = self.put(0, Role::Table(part), &payload, before)?;
            self.saved.parts.insert(part, loc);
            self.saved.dirty_parts.remove(&part);
        }
        let collections = self.parts.objects.collections_at(self.epoch);
        let in_use = self.parts.segments.in_use();
        // The log goes on meanwhile: what it has come to since is no part of the checkpoint, and not of a backup of it.
        // Nor is what no reader can read: the next opening finds out again that something points there.
        let known = |usage: &&Usage| usage.generation != GENERATION_LOST;
        let in_use = in_use.iter().filter(known);
        let in_use = in_use.filter(|usage| usage.cold || usage.generation <= replay.generation);
        let root = Root {
            next_number: self.parts.next_number.load(std::sync::atomic::Ordering::Acquire),
            collections,
            replay: Some(replay),
            segments: in_use.map(held).collect(),
            scrub: self.saved.scrub,
            table: self.saved.parts.iter().map(|(part, loc)| (*part, *loc)).collect(),
        };
        let before = self.saved.root;
        let loc = self.put(0, Role::Root, &root.encode(), before)?;
        self.saved.root = Some(loc);
        Ok(loc)
    }
}

/// A segment's row of the table.
fn held(usage: &Usage) -> SegmentEntry {
    let Usage { segment, generation, end, live, .. } = *usage;
    let stream = if usage.cold { Stream::Cold } else { Stream::Log };
    SegmentEntry { segment, generation, stream, end, live_bytes: live }
}

/// So many bytes of a space may stand in its object's head.
fn inline_max(segment_bytes: u64) -> u64 {
    INLINE_BYTES_MAX.min(segment_bytes / 512)
}

/// What an object's head takes, about.
fn head_bytes(object: &Object, segment_bytes: u64) -> u64 {
    let state = object.state.read();
    let xattrs: usize = state.spaces.xattrs.iter().map(|(name, value)| name.len() + value.len() + 6).sum();
    let names = object.id.name().len() + object.id.collection().name().len();
    let inline = |space| inline_bytes(space, &state.spaces, inline_max(segment_bytes)).unwrap_or(0);
    HEAD_BYTES + (names + xattrs) as u64 + Space::ALL.map(inline).iter().sum::<u64>()
}

/// What the entries of a space take at most in its object's head, if they may stand there.
fn inline_bytes(space: Space, spaces: &Spaces, max: u64) -> Option<u64> {
    match space {
        Space::Slots => Some(spaces.slots.len() * INLINE_SLOT_BYTES).filter(|bytes| *bytes <= max),
        // How long their keys are only a look at each would tell.
        Space::Omap if spaces.omap.is_empty() => Some(0),
        Space::Omap => Some(max).filter(|max| spaces.omap.page_count() <= 1 && spaces.omap.len() * 10 <= *max),
        Space::Extents => Some(spaces.extents.count() * 24).filter(|bytes| *bytes <= max),
    }
}

/// All entries of a space, if they are few and in memory.
fn inline(space: Space, spaces: &Spaces, max: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    match space {
        Space::Slots if spaces.slots.len() * INLINE_SLOT_BYTES <= max => {
            for entry in spaces.slots.scan(0..u64::MAX, false) {
                entry.map(|(slot, loc)| push_slot(&mut bytes, slot, loc)).ok()?;
            }
        }
        Space::Omap if spaces.omap.page_count() <= 1 && spaces.omap.len() * 10 <= max => {
            for entry in spaces.omap.scan(Bound::Unbounded, Bound::Unbounded, false) {
                entry.map(|(key, loc)| push_omap(&mut bytes, key, loc)).ok()?;
            }
        }
        Space::Extents if spaces.extents.count() * 24 <= max => {
            for entry in spaces.extents.iter() {
                let (at, extent) = entry.ok()?;
                push_extent(&mut bytes, at, extent.loc, extent.len, extent.skip);
            }
        }
        _ => return None,
    }
    (bytes.len() as u64 <= max).then_some(bytes)
}

fn dirty_pages(space: Space, spaces: &Spaces) -> Vec<u64> {
    match space {
        Space::Slots => spaces.slots.dirty_pages().collect(),
        Space::Omap => spaces.omap.dirty_pages().map(u64::from).collect(),
        Space::Extents => spaces.extents.dirty_pages().map(u64::from).collect(),
    }
}

fn encode_page(space: Space, spaces: &Spaces, page: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    match space {
        Space::Slots => return encode_slot_page(spaces.slots.page_slots(page)),
        Space::Omap => {
            spaces.omap.page_entries(page as PageId).for_each(|(key, loc)| push_omap(&mut bytes, key, loc));
        }
        Space::Extents => {
            let extents = spaces.extents.page_extents(page as PageId);
            extents.for_each(|(at, extent)| push_extent(&mut bytes, at, extent.loc, extent.len, extent.skip));
        }
    }
    bytes
}

//! From a device that does not open to an index: a checkpoint as far as it holds and the log after it, or all that is
//! there.
//!
//! superblocks, or roots that are found → the one that loses least → its checkpoint → links → replay
//! no root that holds → operations of all segments, by the transaction that they come from → index
//!
//! Invariant: of several checkpoints the newest counts that loses nothing; if all lose something, the one that loses
//! least.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use esker_device::Device;
use esker_store::{Collection, ObjectId};

use super::replay::{Link, Tolerant, clashes};
use super::report::{Level, Losses, Lost, What};
use super::scan::{FoundHeaders, Shapes, headers, read_around};
use super::source::Source;
use crate::cache::CachePolicy;
use crate::format::{
    Head, Kind, Loc, OpHeader, PAGE_SLOTS, PageList, ReplayFrom, Role, Root, SegmentHeader, Space, Stream, Superblock,
    decode_slot_page, each_extent, each_omap, each_place, place_of, raw_len, store_seed, verify_payload,
};
use crate::load::fill_inline;
use crate::objects::{Objects, Spaces};
use crate::pages::whole;
use crate::reader::{Reader, SegmentView};
use crate::recover::generation_of;
use crate::replay::Replayer;
use crate::segments::Segments;

/// So many checkpoints are tried.
const CANDIDATES_MAX: usize = 8;

/// Makes an index of what is on the device; what cannot be read is listed.
pub fn salvage(
    from: &Arc<dyn Device>,
    found: &Shapes,
    lost: &mut Losses<'_>,
    progress: &mut dyn FnMut(&'static str, u64, u64),
) -> (Level, Source) {
    let work = Work::new(from, found.newest());
    let mut best: Option<(usize, Checkpoint)> = None;
    let (mut level, mut candidates) = (Level::Replayed, work.named(found));
    loop {
        for superblock in candidates {
            let Some(checkpoint) = work.load(&superblock) else { continue };
            let damage = checkpoint.lost.len();
            if best.as_ref().is_none_or(|(least, _)| damage < *least) {
                best = Some((damage, checkpoint));
            }
            if damage == 0 {
                break;
            }
        }
        if best.is_some() || level == Level::Searched {
            break;
        }
        level = Level::Searched;
        candidates = work.searched(progress);
    }
    let Some((_, checkpoint)) = best else {
        let objects = work.rebuilt(lost, progress);
        return (Level::Rebuilt, work.source(Arc::new(objects)));
    };
    let Checkpoint { superblock, objects, next_number, links, lost: pieces, pages } = checkpoint;
    pieces.into_iter().for_each(&mut *lost);
    let newest = *found.newest();
    let total = links.len() as u64;
    let mut tolerant = Tolerant::new(from, superblock, work.seed, &objects, &work.segments, next_number, lost);
    for (number, link) in links.iter().enumerate() {
        progress("replaying", number as u64, total);
        if !tolerant.segment(link) {
            break;
        }
    }
    let (seq, torn_bytes) = tolerant.finish();
    if !pages.is_empty() {
        work.name_keys(&pages, &objects, lost, progress);
    }
    if found.real && seq < newest.end_seq {
        let reason = format!("the log was durable up to transaction {}, but ends after {seq}", newest.end_seq);
        lost(Lost { object: None, what: What::Place, offset: newest.end_offset, reason });
    }
    (level, Source { torn_bytes, ..work.source(Arc::new(objects)) })
}

/// A checkpoint as far as it holds, and the log after it.
struct Checkpoint {
    superblock: Superblock,
    objects: Objects,
    next_number: u64,
    links: Vec<Link>,
    lost: Vec<Lost>,
    pages: Vec<LostPage>,
}

/// A page of an object's slots or omap that does not hold; without its number all of that space.
struct LostPage {
    number: u64,
    space: Space,
    page: Option<u64>,
}

impl LostPage {
    /// Whether the operation may have set a key of the page.
    fn may_have(&self, op: &OpHeader) -> bool {
        op.object == self.number
            && match self.space {
                Space::Slots => {
                    let page = |at: u64| op.argument / PAGE_SLOTS as u64 == at;
                    op.kind == Kind::SlotSet && self.page.is_none_or(page)
                }
                Space::Omap => op.kind == Kind::OmapSet,
                Space::Extents => false,
            }
    }
}

struct Work {
    device: Arc<dyn Device>,
    shape: Superblock,
    seed: u32,
    headers: FoundHeaders,
    segments: Arc<Segments>,
    reader: Arc<Reader>,
}

fn piece(object: Option<&ObjectId>, what: What, offset: u64, reason: impl Into<String>) -> Lost {
    Lost { object: object.cloned(), what, offset, reason: reason.into() }
}

impl Work {
    fn new(device: &Arc<dyn Device>, shape: &Superblock) -> Self {
        let mut headers = headers(&**device, shape);
        let seed = store_seed(&shape.uuid);
        let log_segments = shape.log_segments_of(device.geometry().len);
        let segments = Arc::new(Segments::new(shape.segment_bytes, log_segments, 0, 0));
        for header in &headers.known {
            segments.place(header.segment, header.generation, 0, header.first_seq, header.stream == Stream::Cold);
        }
        // A segment whose header is lost still says of each record which generation it is.
        let mut bytes = vec![0; shape.segment_bytes as usize];
        for segment in &headers.headless {
            let base = segment * shape.segment_bytes;
            read_around(&**device, base, &mut bytes);
            let generation = generation_of(&bytes, base, u64::from(shape.block_bytes), seed);
            let Some((generation, cold)) = generation else { continue };
            let block = u64::from(shape.block_bytes);
            let view = SegmentView { bytes: &bytes, base, generation, end: shape.segment_bytes, block, seed };
            // The end of a group has the number of the record before it.
            let first_seq =
                view.records().next().map(|(record, ..)| record.seq + u64::from(!cold && record.ends_group()));
            segments.place(*segment, generation, 0, 0, cold);
            headers.known.push(SegmentHeader {
                generation,
                uuid: shape.uuid,
                segment: *segment,
                previous_end: 0,
                first_seq: first_seq.unwrap_or(0),
                group: 0,
                previous_generation: 0,
                stream: if cold { Stream::Cold } else { Stream::Log },
            });
        }
        headers.known.sort_unstable_by_key(|header| header.generation);
        headers.known.dedup_by_key(|header| header.generation);
        let reader = Reader::new(Arc::clone(device), Arc::clone(&segments), seed, (CachePolicy::default(), 16 << 20));
        Self { device: Arc::clone(device), shape: *shape, seed, headers, segments, reader: Arc::new(reader) }
    }

    fn source(self, objects: Arc<Objects>) -> Source {
        let Self { device, shape, seed, segments, reader, .. } = self;
        Source { device, shape, seed, segments, reader, objects, torn_bytes: 0 }
    }

    /// The checkpoints that superblocks name, newest first.
    fn named(&self, found: &Shapes) -> Vec<Superblock> {
        let mut named: Vec<Superblock> = Vec::new();
        for superblock in found.superblocks.iter().filter(|_| found.real) {
            let known = named.iter().any(|known| (known.root, known.replay) == (superblock.root, superblock.replay));
            if !known && named.len() < CANDIDATES_MAX {
                named.push(*superblock);
            }
        }
        named
    }

    /// Checkpoints whose roots are found in cold segments, newest first, and where the log goes on after each at the
    /// earliest.
    fn searched(&self, progress: &mut dyn FnMut(&'static str, u64, u64)) -> Vec<Superblock> {
        let mut roots: Vec<(u32, u64, Superblock)> = Vec::new();
        self.each_operation(progress, &mut |header, op, offset, payload_holds| {
            let root = header.stream == Stream::Cold && op.kind == Kind::Index && payload_holds;
            if root && Role::from_argument(op.argument) == Some(Role::Root) {
                let loc = Loc::new(offset, op.total_bytes(), 0);
                let superblock = Superblock { root: loc.raw(), root_generation: header.generation, ..self.shape };
                roots.push((header.generation, offset, superblock));
            }
        });
        roots.sort_unstable_by_key(|(generation, offset, _)| std::cmp::Reverse((*generation, *offset)));
        roots.truncate(CANDIDATES_MAX);
        roots.into_iter().map(|(.., superblock)| self.with_replay(superblock)).collect()
    }

    /// The log goes on after everything that the checkpoint points to.
    fn with_replay(&self, mut superblock: Superblock) -> Superblock {
        let objects = Objects::default();
        let mut last = (0, 0);
        if let Some(root) = self.root(&superblock) {
            if let Some(replay) = root.replay {
                return Superblock { replay, ..superblock };
            }
            last = root.segments.iter().map(|held| (held.generation, held.end)).max().unwrap_or(last);
            self.pieces(&root, &objects, &mut Vec::new(), &mut Vec::new());
        }
        objects.for_each(|object| {
            let walked = object.state.read().spaces.each_place(|offset, _| {
                let segment = self.segments.segment_of(offset);
                if self.segments.usage(segment).is_some_and(|usage| !usage.cold) {
                    last = last.max((self.segments.generation(segment), self.segments.within(offset)));
                }
            });
            walked.expect("a store that is repaired has its whole index in memory");
        });
        let known = self.log().find(|header| header.generation == last.0);
        let base = known.map_or(0, |header| header.segment * self.shape.segment_bytes);
        superblock.replay = ReplayFrom { generation: last.0, offset: base + self.after(base, last), seq: 0, group: 0 };
        superblock
    }

    /// Offset in a segment behind the record that holds what stands at an offset in it.
    fn after(&self, base: u64, (generation, within): (u32, u64)) -> u64 {
        let mut bytes = vec![0; self.shape.segment_bytes as usize];
        read_around(&*self.device, base, &mut bytes);
        let (end, block) = (self.shape.segment_bytes, u64::from(self.shape.block_bytes));
        let view = SegmentView { bytes: &bytes, base, generation, end, block, seed: self.seed };
        let ends = view.records().map(|(record, offset, _)| offset - base + u64::from(record.len));
        ends.into_iter().find(|end| *end > within).unwrap_or(within)
    }

    fn log(&self) -> impl DoubleEndedIterator<Item = &SegmentHeader> {
        self.headers.known.iter().filter(|header| header.stream == Stream::Log)
    }

    fn root(&self, superblock: &Superblock) -> Option<Root> {
        let loc = Loc::from_raw(superblock.root)?;
        Root::decode(&whole(&self.reader, loc, 0, Role::Root).ok()?)
    }

    /// Loads what holds of the checkpoint that a superblock names; `None` if its root does not.
    fn load(&self, superblock: &Superblock) -> Option<Checkpoint> {
        let (objects, mut lost, mut pages) = (Objects::default(), Vec::new(), Vec::new());
        let mut next_number = 1;
        if superblock.root != 0 {
            let root = self.root(superblock)?;
            next_number = root.next_number;
            self.pieces(&root, &objects, &mut lost, &mut pages);
        } else if self.log().next().is_some_and(|first| {
            first.generation > superblock.replay.generation.max(1) && first.first_seq > superblock.replay.seq + 1
        }) {
            // The start of the log is gone, and no checkpoint stands for it.
            return None;
        }
        let links = self.links(superblock, &mut lost);
        Some(Checkpoint { superblock: *superblock, objects, next_number, links, lost, pages })
    }

    fn pieces(&self, root: &Root, objects: &Objects, lost: &mut Vec<Lost>, pages: &mut Vec<LostPage>) {
        for name in &root.collections {
            objects.names.write().entry(Collection::new(name.clone())).or_default();
        }
        for (number, loc) in &root.table {
            let mut heads = Vec::new();
            let found = whole(&self.reader, *loc, 0, Role::Table(*number));
            let holds = found.is_ok_and(|bytes| each_place(&bytes, |number, head| heads.push((number, head))));
            if !holds {
                let reason = format!(
                    "part {number} of the checkpoint's table, with the names of up to 4096 objects, does not hold"
                );
                lost.push(piece(None, What::Place, loc.offset(), reason));
                continue;
            }
            for (number, loc) in heads {
                let head = whole(&self.reader, loc, number, Role::Head).ok().and_then(|bytes| Head::decode(&bytes));
                match head.filter(|head| head.number == number) {
                    Some(head) => self.object(head, objects, lost, pages),
                    None => {
                        let reason = "the object's head in the checkpoint does not hold";
                        lost.push(piece(None, What::Object(number), loc.offset(), reason));
                    }
                }
            }
        }
    }

    fn object(&self, head: Head, objects: &Objects, lost: &mut Vec<Lost>, gone: &mut Vec<LostPage>) {
        let id = ObjectId::new(Collection::new(head.collection), head.name);
        let mut spaces = Spaces { size: head.size, shares: head.shares, shifted: head.shifted, ..Spaces::default() };
        spaces.xattrs = head.xattrs.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        for (space, list) in Space::ALL.into_iter().zip(head.spaces) {
            let part = |what: &'static str, offset: u64| {
                let reason = format!("part of the index of its {} does not hold", name_of(space));
                piece(Some(&id), What::Part(what), offset, reason)
            };
            match list {
                PageList::Empty => {}
                PageList::Inline(bytes) => {
                    if !fill_inline(space, &bytes, &mut spaces) {
                        lost.push(part(name_of(space), 0));
                    }
                }
                PageList::Pages { list, .. } => {
                    let mut pages = Vec::new();
                    let found = whole(&self.reader, list, head.number, Role::List(space));
                    if !found.is_ok_and(|bytes| each_place(&bytes, |number, loc| pages.push((number, loc)))) {
                        lost.push(part(name_of(space), list.offset()));
                        gone.push(LostPage { number: head.number, space, page: None });
                        continue;
                    }
                    for (number, loc) in pages {
                        let found = whole(&self.reader, loc, head.number, Role::Page(space, number));
                        if !found.is_ok_and(|bytes| fill_page(space, number, &bytes, &mut spaces)) {
                            lost.push(part(page_of(space), loc.offset()));
                            let page = Some(number);
                            gone.push(LostPage { number: head.number, space, page });
                        }
                    }
                }
            }
        }
        name_object(objects, &id, head.number, spaces, &self.segments);
    }

    /// Names the keys that lost pages may have led to, by the operations that set them and are still there. Some of
    /// them may have been removed since.
    fn name_keys(
        &self,
        pages: &[LostPage],
        objects: &Objects,
        lost: &mut Losses<'_>,
        progress: &mut dyn FnMut(&'static str, u64, u64),
    ) {
        let mut named: BTreeMap<(ObjectId, u64, Bytes), u64> = BTreeMap::new();
        self.each_bytes(progress, &mut |_, op, operation, offset, _| {
            for page in pages.iter().filter(|page| page.may_have(op)) {
                let key = op.key(operation).0;
                // The log may have removed it since, or given it another name.
                let Some(object) = objects.numbered(page.number) else { continue };
                let state = object.state.read();
                let there = match op.kind {
                    Kind::SlotSet => state.slots.get(op.argument).is_ok_and(|loc| loc.is_some()),
                    _ => state.omap.get(key).is_ok_and(|loc| loc.is_some()),
                };
                if !there {
                    let slot = if op.kind == Kind::SlotSet { op.argument } else { u64::MAX };
                    named.insert((object.id.clone(), slot, Bytes::copy_from_slice(key)), offset);
                }
            }
        });
        let reason = "the page of the index that may have led to it is lost; it may have been removed before";
        for ((object, slot, key), offset) in named {
            let what = if slot == u64::MAX { What::OmapKey(key) } else { What::Slot(slot) };
            lost(piece(Some(&object), what, offset, reason));
        }
    }

    /// The log's segments after a checkpoint, oldest first.
    fn links(&self, superblock: &Superblock, lost: &mut Vec<Lost>) -> Vec<Link> {
        let replay = superblock.replay;
        let mut links: Vec<Link> = Vec::new();
        let mut after: Option<&SegmentHeader> = None;
        for header in self.log().rev().filter(|header| header.generation >= replay.generation) {
            let follows = |after: &SegmentHeader| after.previous_generation == header.generation;
            if let Some(after) = after
                && after.previous_generation != 0
                && !follows(after)
            {
                if header.generation > after.previous_generation {
                    // Begun and given up: the log goes past it.
                    continue;
                }
                lost.push(self.missing(after.previous_generation));
            }
            if after.is_some_and(|after| after.previous_generation == 0 && header.first_seq >= after.first_seq) {
                // The next one's header is lost, and this one was given up before it: its transactions come again
                // there.
                continue;
            }
            let end = after.filter(|after| follows(after)).map(|after| self.segments.within(after.previous_end));
            let base = header.segment * self.shape.segment_bytes;
            let begins = if header.generation == replay.generation { replay.offset.saturating_sub(base) } else { 0 };
            let exact = superblock.clean && superblock.end_generation == header.generation && after.is_none();
            let end = end.or_else(|| exact.then(|| superblock.end_offset.saturating_sub(base)));
            let (segment, generation) = (header.segment, header.generation);
            let before_seq = after.map_or(u64::MAX, |after| after.first_seq);
            links.push(Link { segment, generation, begins, end, followed: after.is_some(), before_seq });
            after = Some(header);
            if header.previous_generation == 0 && header.generation == replay.generation.max(1) {
                break;
            }
        }
        let first = links.last().map_or(0, |link| link.generation);
        if first > replay.generation.max(1) {
            lost.push(self.missing(replay.generation.max(1)));
        }
        links.reverse();
        links
    }

    fn missing(&self, generation: u32) -> Lost {
        let reason = format!("the segment of the log with generation {generation} is not to be found");
        piece(None, What::Place, 0, reason)
    }

    /// Runs `f` on every operation of every segment whose header holds: the segment's, the operation's, its place, and
    /// whether its payload holds.
    fn each_operation(
        &self,
        progress: &mut dyn FnMut(&'static str, u64, u64),
        f: &mut dyn FnMut(&SegmentHeader, &OpHeader, u64, bool),
    ) {
        self.each_bytes(progress, &mut |header, op, operation, offset, _| {
            f(header, op, offset, verify_payload(op, operation));
        });
    }

    fn each_bytes(&self, progress: &mut dyn FnMut(&'static str, u64, u64), f: &mut EachOperation<'_>) {
        let mut bytes = vec![0; self.shape.segment_bytes as usize];
        let total = self.headers.known.len() as u64;
        for (number, header) in self.headers.known.iter().enumerate() {
            progress("searching", number as u64, total);
            let base = header.segment * self.shape.segment_bytes;
            read_around(&*self.device, base, &mut bytes);
            let (end, block) = (self.shape.segment_bytes, u64::from(self.shape.block_bytes));
            let generation = header.generation;
            let view = SegmentView { bytes: &bytes, base, generation, end, block, seed: self.seed };
            for (record, offset, body) in view.records().filter(|(record, ..)| !record.ends_group()) {
                let (mut rest, mut at) = (body, offset + record.header_bytes() as u64);
                for place in 0..record.op_count {
                    let Some(op) = OpHeader::decode(rest, self.seed, generation, at) else { break };
                    let Some(operation) = rest.get(..op.total_bytes() as usize) else { break };
                    f(header, &op, operation, at, (record.seq, place));
                    rest = &rest[operation.len()..];
                    at += op.total_bytes();
                }
            }
        }
    }

    /// All that stands on the device, in the order in which it was committed.
    fn rebuilt(&self, lost: &mut Losses<'_>, progress: &mut dyn FnMut(&'static str, u64, u64)) -> Objects {
        let mut events: BTreeMap<(u64, u32), Vec<Event>> = BTreeMap::new();
        let mut heads: HashMap<u64, (u64, Head)> = HashMap::new();
        let mut collections = Vec::new();
        self.each_bytes(progress, &mut |header, op, operation, at, place| {
            let holds = verify_payload(op, operation);
            let (key, origin) = op.key(operation);
            let payload = operation.get(op.payload_start()..op.payload_end()).unwrap_or_default();
            if op.kind == Kind::Index {
                match Role::from_argument(op.argument).filter(|_| holds) {
                    Some(Role::Head) => {
                        // Headers go by generation: a later one replaces an earlier one.
                        if let Some(head) = Head::decode(payload) {
                            heads.insert(head.number, (header.first_seq, head));
                        }
                    }
                    Some(Role::Root) => {
                        if let Some(root) = Root::decode(payload) {
                            collections = root.collections;
                        }
                    }
                    _ => {}
                }
                return;
            }
            let relocates = matches!(op.kind, Kind::RelocateSlots | Kind::RelocateOmap | Kind::RelocateExtents);
            if relocates || header.stream == Stream::Cold && origin.is_none() {
                return;
            }
            let is_value = matches!(op.kind, Kind::SlotSet | Kind::OmapSet | Kind::Write);
            let raw_len = raw_len(op, payload);
            let loc = place_of(op, payload, at, op.payload_end() as u64);
            let payload = if is_value { Bytes::new() } else { Bytes::copy_from_slice(payload) };
            let event = Event { header: *op, key: Bytes::copy_from_slice(key), payload, raw_len, loc, holds };
            events.entry(origin.unwrap_or(place)).or_default().push(event);
        });
        let objects = Objects::default();
        for name in collections {
            objects.names.write().entry(Collection::new(name)).or_default();
        }
        let mut put = Rebuild { work: self, objects: &objects, heads: &heads, gone: HashSet::new(), lost };
        let mut by_head: Vec<(u64, u64)> = heads.iter().map(|(number, (seq, _))| (*seq, *number)).collect();
        by_head.sort_unstable();
        let mut next_head = by_head.into_iter().peekable();
        for (order, same) in events {
            while let Some((_, number)) = next_head.next_if(|(seq, _)| *seq < order.0) {
                put.head(number);
            }
            put.events(order, same);
        }
        next_head.for_each(|(_, number)| put.head(number));
        objects
    }
}

type EachOperation<'a> = dyn FnMut(&SegmentHeader, &OpHeader, &[u8], u64, (u64, u32)) + 'a;

/// An operation that was found.
struct Event {
    header: OpHeader,
    key: Bytes,
    payload: Bytes,
    /// Length of the value before it was compressed, if that is known.
    raw_len: Option<u32>,
    loc: Loc,
    holds: bool,
}

struct Rebuild<'a, 'l> {
    work: &'a Work,
    objects: &'a Objects,
    heads: &'a HashMap<u64, (u64, Head)>,
    /// Objects that were removed, or are lost and were listed.
    gone: HashSet<u64>,
    lost: &'a mut Losses<'l>,
}

impl Rebuild<'_, '_> {
    /// What a checkpoint knew of an object: its name, size and attributes.
    fn head(&mut self, number: u64) {
        if self.gone.contains(&number) || !self.known(number) {
            return;
        }
        let Some((_, head)) = self.heads.get(&number) else { return };
        if let Some(object) = self.objects.numbered(number) {
            let mut state = object.state.write();
            state.spaces.size = head.size;
            state.spaces.xattrs =
                head.xattrs.iter().map(|(name, value)| (name.clone().into(), value.clone().into())).collect();
            if head.shares {
                state.spaces.shares = true;
                let reason = "what it shared with other objects cannot be told without a checkpoint";
                (self.lost)(piece(Some(&object.id), What::Part("shared data"), 0, reason));
            }
        }
    }

    /// Whether an object is there, or can be made from its head.
    fn known(&mut self, number: u64) -> bool {
        if self.objects.numbered(number).is_some() {
            return true;
        }
        let Some((_, head)) = self.heads.get(&number).filter(|_| !self.gone.contains(&number)) else { return false };
        let id = ObjectId::new(Collection::new(head.collection.clone()), head.name.clone());
        let taken = self.objects.get(&id).is_some_and(|object| object.state.read().number != 0);
        if taken {
            return false;
        }
        name_object(self.objects, &id, number, Spaces::default(), &self.work.segments);
        true
    }

    /// The operations that have one place in the order: one, or one and its copies.
    fn events(&mut self, order: (u64, u32), same: Vec<Event>) {
        let any_holds = same.iter().any(|event| event.holds);
        for event in same {
            let Event { header, key, payload, raw_len, loc, holds } = event;
            let at = loc.offset();
            let is_value = matches!(header.kind, Kind::SlotSet | Kind::OmapSet | Kind::Write);
            // A copy that does not hold is no loss. A value of which no copy holds is listed when it is to be copied.
            if !holds && (any_holds || !is_value) {
                if !any_holds {
                    let reason = format!("a {:?} of it does not hold", header.kind);
                    (self.lost)(piece(None, What::Transaction(order.0), at, reason));
                }
                continue;
            }
            let of_object =
                !matches!(header.kind, Kind::CreateCollection | Kind::RemoveCollection | Kind::CreateObject);
            if of_object && !self.known(header.object) {
                // What belonged to an object that was removed is no loss.
                if self.gone.insert(header.object) {
                    let reason = "its name is not to be found, or was given to another";
                    (self.lost)(piece(None, What::Object(header.object), at, reason));
                }
                continue;
            }
            if clashes(self.objects, &header, &key) {
                continue;
            }
            if raw_len.is_none() && header.kind == Kind::Write {
                let reason = "how much a compressed write of it has covered is not known";
                (self.lost)(piece(None, What::Transaction(order.0), at, reason));
            }
            let raw_len = raw_len.unwrap_or(header.payload_len);
            let mut replayer = Replayer::new(self.objects, &self.work.segments, None, 0, 1);
            if let Err(error) = replayer.value(&header, &key, &payload, (raw_len, loc)) {
                (self.lost)(piece(None, What::Transaction(order.0), at, error.to_string()));
            } else if header.kind == Kind::RemoveObject {
                self.gone.insert(header.object);
            }
        }
    }
}

/// Enters an object under its name and number.
fn name_object(objects: &Objects, id: &ObjectId, number: u64, spaces: Spaces, segments: &Segments) {
    let mut names = objects.names.write();
    let object = objects.get_or_insert(id);
    spaces.account(segments, true);
    let mut state = object.state.write();
    state.number = number;
    state.spaces = spaces;
    drop(state);
    names.entry(id.collection().clone()).or_default().insert(id.name().clone(), Arc::clone(&object));
    objects.set_number(number, Some(&object));
}

fn name_of(space: Space) -> &'static str {
    ["slots", "omap", "bytes"][space as usize]
}

fn page_of(space: Space) -> &'static str {
    ["a page of the slots", "a page of the omap", "a page of the bytes"][space as usize]
}

/// The entries of one page; whether they hold.
fn fill_page(space: Space, number: u64, bytes: &[u8], spaces: &mut Spaces) -> bool {
    match space {
        Space::Slots => decode_slot_page(number, bytes, |slot, loc| {
            spaces.slots.set(slot, loc);
        }),
        Space::Omap => each_omap(bytes, |key, loc| {
            spaces.omap.insert(key, loc);
        }),
        Space::Extents => {
            let mut holds = true;
            let whole = each_extent(bytes, |offset, loc, len, skip| {
                let fits = len > 0 && skip.checked_add(len).is_some() && offset.checked_add(len.into()).is_some();
                holds &= fits;
                if fits {
                    spaces.extents.write(offset, len, loc, skip, |_, _| ());
                }
            });
            holds && whole
        }
    }
}

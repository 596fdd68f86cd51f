//! Loading a checkpoint: root → table → heads → pages, many reads at a time, every piece verified.
//!
//! Invariants:
//! 1. Every byte is verified before it is used, and every list is checked against what it leads to.
//! 2. What is loaded is counted as live, so that the counts are exact from the start.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use esker_store::limits::OMAP_KEY_BYTES_MAX;
use esker_store::{Collection, Error, ObjectId, Result};
use parking_lot::Mutex;

use crate::checkpoint::{Saved, SavedSpace};
use crate::format::{
    Head, Loc, PARTS, PageList, Role, Root, Space, Superblock, each_extent, each_omap, each_place, each_slot,
};
use crate::index::{Extent, Extents, PageId, SavedLeaf, SlotPage, Slots, Tree, extents_hold};
use crate::objects::Objects;
use crate::pages::{Page, damaged, parts_of, read_many, whole};
use crate::reader::{Asked, Reader};
use crate::segments::Segments;
use crate::spaces::Spaces;

/// Threads that load.
const THREADS: usize = 8;
/// Pieces that one thread takes at a time.
const CHUNK: usize = 256;

/// The entries of a page of the omap or of extents took at least so much of the device at some time.
const PAGE_DEVICE_BYTES_MIN: u64 = 64;

/// The parts of large pieces, by the offset of the list of them.
type Large = Mutex<HashMap<u64, Vec<Loc>>>;

/// What was loaded.
pub struct Loaded {
    /// Where the checkpoint has what.
    pub saved: Saved,
    /// Number of the next object.
    pub next_number: u64,
}

/// Reads the root of the checkpoint that `superblock` names.
///
/// # Errors
/// [`Error::Corrupt`] with the place, also if it stands in another generation than the superblock says, or is of a
/// later moment. [`Error::Io`].
pub fn load_root(superblock: &Superblock, reader: &Reader, segments: &Segments) -> Result<(Loc, Root)> {
    let loc = Loc::from_raw(superblock.root).ok_or_else(|| damaged(0, "the superblock names no checkpoint"))?;
    let segment = segments.segment_of(loc.offset());
    let generation = segments.generation(segment);
    if generation != superblock.root_generation {
        let named = superblock.root_generation;
        let what = format!(
            "the superblock names a checkpoint in generation {named}; segment {segment} is of generation {generation}"
        );
        return Err(Error::Corrupt { offset: loc.offset(), what });
    }
    let root = Root::decode(&whole(reader, loc, 0, Role::Root)?);
    let root = root.ok_or_else(|| damaged(loc.offset(), "the checkpoint's root"))?;
    let replay = superblock.replay;
    if root.replay.is_some_and(|from| from.generation > replay.generation || from.seq > replay.seq) {
        return Err(damaged(loc.offset(), "the place where the checkpoint says that the log goes on"));
    }
    Ok((loc, root))
}

/// Loads the checkpoint of this root into `objects`; of its pages at most `index_bytes` stay in memory.
///
/// # Errors
/// [`Error::Corrupt`] with the place; [`Error::Io`].
pub fn load(
    (root_loc, root): (Loc, Root),
    reader: &Reader,
    segments: &Segments,
    objects: &Objects,
    index_bytes: u64,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Loaded> {
    let large = Large::default();
    count(reader, segments, &large, root_loc, 0, Role::Root)?;
    for name in &root.collections {
        objects.names.write().entry(Collection::new(name.clone())).or_default();
    }
    let mut saved = Saved::default();
    saved.root = Some(root_loc);
    saved.scrub = root.scrub;
    let mut heads = Vec::new();
    for (part, loc) in root.table {
        count(reader, segments, &large, loc, 0, Role::Table(part))?;
        let mut table = BTreeMap::new();
        if !each_place(&whole(reader, loc, 0, Role::Table(part))?, |number, head| {
            table.insert(number, head);
        }) {
            return Err(damaged(loc.offset(), "part of the checkpoint's table"));
        }
        heads.extend(table.iter().map(|(number, loc)| (*number, *loc)));
        saved.table.insert(part, table);
        saved.parts.insert(part, loc);
    }
    heads.sort_unstable_by_key(|(_, loc)| loc.offset());
    let spaces = Mutex::new(&mut saved.spaces);
    let to = Target { reader, segments, objects, large: &large, index_bytes, kept_bytes: AtomicU64::new(0) };
    let (done, total) = (AtomicUsize::new(0), heads.len());
    in_parallel(heads.chunks(CHUNK), |chunk| {
        let wanted: Vec<_> = chunk.iter().map(|(number, loc)| (*loc, *number, Role::Head)).collect();
        for ((number, loc), bytes) in chunk.iter().zip(read_many(reader, &wanted)?) {
            count(reader, segments, &large, *loc, *number, Role::Head)?;
            let head = Head::decode(&bytes).filter(|head| head.number == *number);
            let head = head.ok_or_else(|| damaged(loc.offset(), "an object's head in the checkpoint"))?;
            let pages = object(head, &to)?;
            if pages.iter().any(Option::is_some) {
                spaces.lock().insert(*number, pages);
            }
        }
        let done = done.fetch_add(chunk.len(), Ordering::Relaxed) + chunk.len();
        progress(done as u64, total as u64);
        Ok(())
    })?;
    saved.large = large.into_inner();
    Ok(Loaded { saved, next_number: root.next_number })
}

/// Where what is loaded goes.
struct Target<'a> {
    reader: &'a Reader,
    segments: &'a Segments,
    objects: &'a Objects,
    large: &'a Large,
    /// Budget for index pages, in bytes, and how much of it is used.
    index_bytes: u64,
    kept_bytes: AtomicU64,
}

fn object(head: Head, to: &Target<'_>) -> Result<[Option<SavedSpace>; 3]> {
    let Target { reader, segments, objects, large, .. } = *to;
    let mut lists = [None, None, None];
    let mut spaces = Spaces { size: head.size, shares: head.shares, shifted: head.shifted, ..Spaces::default() };
    spaces.xattrs = head.xattrs.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    for (space, list) in Space::ALL.into_iter().zip(head.spaces) {
        let holds = match list {
            PageList::Empty => true,
            PageList::Inline(bytes) => {
                let mut few = Spaces::default();
                let holds = fill_inline(space, &bytes, &mut few);
                if holds {
                    few.account(segments, true);
                }
                match space {
                    Space::Slots => spaces.slots = few.slots,
                    Space::Omap => spaces.omap = few.omap,
                    Space::Extents => spaces.extents = few.extents,
                }
                holds
            }
            PageList::Pages { numbers, list } => {
                let role = Role::List(space);
                count(reader, segments, large, list, head.number, role)?;
                let mut pages = BTreeMap::new();
                let holds = each_place(&whole(reader, list, head.number, role)?, |number, loc| {
                    pages.insert(number, loc);
                });
                // So many pages would not fit on the device, whatever little stood on each.
                let most = segments.device_bytes() / PAGE_DEVICE_BYTES_MIN;
                let last = pages.last_key_value().map(|(last, _)| *last);
                let fits = last.is_none_or(|last| last < numbers) && (space == Space::Slots || numbers <= most);
                if holds && fits {
                    fill_pages((head.number, space), &pages, numbers, &mut spaces, to)?;
                }
                lists[space as usize] = Some(SavedSpace { pages, list });
                holds && fits
            }
        };
        if !holds {
            let what = format!("the {space:?} of object {} in the checkpoint", head.number);
            return Err(damaged(superblock_place(&lists), &what));
        }
    }
    spaces.clear_dirty();
    let collection = Collection::new(head.collection);
    let id = ObjectId::new(collection.clone(), head.name);
    let mut names = objects.names.write();
    let object = objects.get_or_insert(&id);
    let mut state = object.state.write();
    if state.exists() {
        return Err(damaged(0, &format!("the checkpoint has {id} twice; one of the two")));
    }
    state.number = head.number;
    if spaces.shares {
        segments.sharing.note_unknown(head.number);
    }
    state.spaces = spaces;
    objects.count(&mut state);
    drop(state);
    names.entry(collection).or_default().insert(id.name().clone(), std::sync::Arc::clone(&object));
    objects.set_number(head.number, Some(&object));
    Ok(lists)
}

fn superblock_place(lists: &[Option<SavedSpace>; 3]) -> u64 {
    lists.iter().flatten().last().map_or(0, |list| list.list.offset())
}

/// The entries of a small space that stand in its object's head; whether they hold.
pub fn fill_inline(space: Space, bytes: &[u8], spaces: &mut Spaces) -> bool {
    match space {
        Space::Slots => each_slot(bytes, |slot, loc| {
            spaces.slots.set(slot, loc);
        }),
        Space::Omap => {
            let mut fits = true;
            let whole = each_omap(bytes, |key, loc| {
                fits &= key.len() <= OMAP_KEY_BYTES_MAX;
                if fits {
                    spaces.omap.insert(key, loc);
                }
            });
            whole && fits
        }
        Space::Extents => {
            let mut leaf = SavedLeaf::new();
            let holds = each_extent(bytes, |offset, loc, len, skip| {
                leaf.push(&offset.to_be_bytes(), Extent { loc, len, skip });
            });
            let holds = holds && extents_hold(&leaf);
            let pages = leaf.finish(None).map(|page| (0, page)).into_iter().collect();
            Extents::from_pages(pages, 1).filter(|_| holds).map(|extents| spaces.extents = extents).is_some()
        }
    }
}

/// Fills a space with its pages, counts what they point to as live, and keeps those in memory that the budget has room
/// for.
fn fill_pages(
    (object, space): (u64, Space),
    pages: &BTreeMap<u64, Loc>,
    numbers: u64,
    spaces: &mut Spaces,
    to: &Target<'_>,
) -> Result<()> {
    let mut by_place: Vec<(u64, Loc)> = pages.iter().map(|(number, loc)| (*number, *loc)).collect();
    by_place.sort_unstable_by_key(|(_, loc)| loc.offset());
    let (omap, extents) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let slots = Mutex::new(Slots::new());
    let bad = |loc: Loc| damaged(loc.offset(), &format!("a page of {space:?} in the checkpoint"));
    in_parallel(by_place.chunks(CHUNK), |chunk| {
        let wanted: Vec<_> = chunk.iter().map(|(number, loc)| (*loc, object, Role::Page(space, *number))).collect();
        let mut live: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for ((number, loc), bytes) in chunk.iter().zip(read_many(to.reader, &wanted)?) {
            count(to.reader, to.segments, to.large, *loc, object, Role::Page(space, *number))?;
            let page = Page::decode(space, *number, &bytes).ok_or_else(|| bad(*loc))?;
            page.each_place(|offset, weight| {
                live.entry(to.segments.segment_of(offset)).or_insert((offset, 0)).1 += weight;
            });
            let cold = |heap_bytes: usize| {
                let taken = to.kept_bytes.fetch_add(heap_bytes as u64, Ordering::Relaxed);
                (taken >= to.index_bytes).then_some(*loc)
            };
            match page {
                Page::Slots(entries) => {
                    let whole = SlotPage::of(&entries);
                    let cold = cold(whole.heap_bytes());
                    let mut slots = slots.lock();
                    slots.add(*number, whole);
                    cold.into_iter().for_each(|loc| {
                        slots.let_go(*number, loc);
                    });
                }
                Page::Omap(leaf) => {
                    let cold = cold(leaf.heap_bytes());
                    omap.lock().push((*number as PageId, leaf.finish(cold).ok_or_else(|| bad(*loc))?));
                }
                Page::Extents(leaf) => {
                    let cold = cold(leaf.heap_bytes());
                    extents.lock().push((*number as PageId, leaf.finish(cold).ok_or_else(|| bad(*loc))?));
                }
            }
        }
        live.into_values().for_each(|(offset, weight)| to.segments.add_live_weight(offset, weight));
        Ok(())
    })?;
    let first = by_place.first().map_or(Loc::new(0, 8, 0), |(_, loc)| *loc);
    let numbers = PageId::try_from(numbers).unwrap_or(PageId::MAX);
    match space {
        Space::Slots => spaces.slots = slots.into_inner(),
        Space::Omap => spaces.omap = Tree::from_leaves(omap.into_inner(), numbers).ok_or_else(|| bad(first))?,
        Space::Extents => {
            spaces.extents = Extents::from_pages(extents.into_inner(), numbers).ok_or_else(|| bad(first))?;
        }
    }
    Ok(())
}

/// Runs `work` on every chunk, on several threads when there are several chunks; the first error ends it.
fn in_parallel<'a, T: Sync + 'a>(
    chunks: impl Iterator<Item = &'a [T]>,
    work: impl Fn(&'a [T]) -> Result<()> + Sync,
) -> Result<()> {
    let chunks: Vec<&[T]> = chunks.collect();
    if chunks.len() <= 1 {
        return chunks.into_iter().try_for_each(work);
    }
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    let (next, failed_at, work, chunks) = (&next, &failed, &work, &chunks);
    std::thread::scope(|scope| {
        for _ in 0..THREADS.min(chunks.len()) {
            scope.spawn(move || {
                while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if failed_at.lock().is_some() {
                        return;
                    }
                    if let Err(error) = work(chunk) {
                        failed_at.lock().get_or_insert(error);
                        return;
                    }
                }
            });
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// Counts a piece of the checkpoint, with its parts.
fn count(reader: &Reader, segments: &Segments, large: &Large, loc: Loc, object: u64, role: Role) -> Result<()> {
    segments.add_index(loc.offset(), loc.span_bytes() as i64);
    if loc.flags() & PARTS != 0 {
        let list = reader.fetch(loc.with_flags(0), &Asked::piece(object, role), u64::MAX)?.value;
        let parts = parts_of(loc, &list)?;
        parts.iter().for_each(|part| segments.add_index(part.offset(), part.span_bytes() as i64));
        large.lock().insert(loc.offset(), parts);
    }
    Ok(())
}

//! Index pages on their way back into memory: read from the last checkpoint, verified, put where they were.
//!
//! ```text
//! look under the object's lock → a page is missing → unlock → read → lock → put it back → look again
//! ```
//!
//! Invariants:
//! 1. No lock is held while a page is read.
//! 2. Who brings a page back has been pinned since it was found missing, or is the cleaner, so that what stands at its
//!    place is still the page.

use bytes::Bytes;
use esker_store::{Error, Result};

use crate::format::{Loc, PARTS, Role, Space, WEIGHT_WHOLE, decode_slot_page, each_extent, each_omap};
use crate::index::{Extent, Missing, PageId, SavedLeaf, SlotPage, extents_hold};
use crate::objects::{Object, Objects};
use crate::reader::{Asked, Reader};
use crate::spaces::Spaces;

/// So many pages are read before they are put back.
const CHUNK: usize = 256;
const ORDER: &str = "a page has its entries in order";

/// What stands on a page.
pub enum Page {
    /// Slots and their places.
    Slots(Vec<(u64, Loc)>),
    /// Keys and their places.
    Omap(SavedLeaf<Loc>),
    /// Offsets and their extents.
    Extents(SavedLeaf<Extent>),
}

impl Page {
    /// Page `number` of a space; `None` unless it holds together.
    pub fn decode(space: Space, number: u64, bytes: &[u8]) -> Option<Self> {
        match space {
            Space::Slots => {
                let mut slots = Vec::new();
                decode_slot_page(number, bytes, |slot, loc| slots.push((slot, loc))).then_some(Self::Slots(slots))
            }
            Space::Omap => {
                let (mut leaf, mut holds) = (SavedLeaf::new(), true);
                holds &= each_omap(bytes, |key, loc| holds &= leaf.push(key, loc));
                holds.then_some(Self::Omap(leaf))
            }
            Space::Extents => {
                let (mut leaf, mut holds) = (SavedLeaf::new(), true);
                holds &= each_extent(bytes, |offset, loc, len, skip| {
                    holds &= leaf.push(&offset.to_be_bytes(), Extent { loc, len, skip });
                });
                (holds && extents_hold(&leaf)).then_some(Self::Extents(leaf))
            }
        }
    }

    /// Runs `f` on the offset and the bytes, in 4096ths, of whatever the entries point to.
    pub fn each_place(&self, mut f: impl FnMut(u64, u64)) {
        match self {
            Self::Slots(slots) => slots.iter().for_each(|(_, loc)| f(loc.offset(), loc.span_bytes() * WEIGHT_WHOLE)),
            Self::Omap(leaf) => leaf.entries().for_each(|(_, loc)| f(loc.offset(), loc.span_bytes() * WEIGHT_WHOLE)),
            Self::Extents(leaf) => {
                leaf.entries().for_each(|(_, at)| f(at.loc.offset(), u64::from(at.len) * at.loc.weight()));
            }
        }
    }

    fn restore(self, spaces: &mut Spaces, missing: Missing) -> bool {
        match self {
            Self::Slots(slots) => spaces.slots.restore(missing.page, missing.loc, SlotPage::of(&slots)),
            Self::Omap(leaf) => spaces.omap.restore(missing.page as PageId, missing.loc, leaf),
            Self::Extents(leaf) => spaces.extents.restore(missing.page as PageId, missing.loc, leaf),
        }
    }
}

/// Brings pages of one object back into memory.
///
/// # Errors
/// [`Error::Corrupt`] with the place, [`Error::Io`].
pub fn bring(reader: &Reader, objects: &Objects, object: &Object, missing: &[Missing]) -> Result<()> {
    let (number, mut by_place) = {
        let state = object.state.read();
        // Others may have brought some back since.
        let cold = |missing: &&Missing| state.spaces.cold_page(missing.space, missing.page) == Some(missing.loc);
        (state.number, missing.iter().filter(cold).copied().collect::<Vec<_>>())
    };
    by_place.sort_unstable_by_key(|missing| missing.loc.offset());
    by_place.dedup();
    for chunk in by_place.chunks(CHUNK) {
        let pages = read_pages(reader, number, chunk)?;
        let mut state = object.state.write();
        for (page, missing) in pages.into_iter().zip(chunk) {
            if !page.restore(&mut state.spaces, *missing) {
                return Err(damaged(missing.loc.offset(), &not_it(missing)));
            }
        }
        objects.count(&mut state);
        objects.pages_read(chunk.len() as u64);
    }
    Ok(())
}

/// Reads pages, sorted by offset.
fn read_pages(reader: &Reader, number: u64, missing: &[Missing]) -> Result<Vec<Page>> {
    let pieces = missing.iter().map(|missing| (missing.loc, number, Role::Page(missing.space, missing.page)));
    let pages = read_many(reader, &pieces.collect::<Vec<_>>())?.into_iter().zip(missing).map(|(bytes, missing)| {
        Page::decode(missing.space, missing.page, &bytes).ok_or_else(|| damaged(missing.loc.offset(), &not_it(missing)))
    });
    pages.collect()
}

/// Runs `f` on every page of `spaces`, those of object `number`, one after another; those that are not in memory are
/// read, verified, and not kept.
///
/// # Errors
/// [`Error::Corrupt`] with the place, [`Error::Io`]; those of `f`.
pub fn each_page(reader: &Reader, number: u64, spaces: &Spaces, f: &mut dyn FnMut(&Page) -> Result<()>) -> Result<()> {
    for space in Space::ALL {
        for at in spaces.pages(space) {
            f(&page(reader, number, spaces, space, at)?)?;
        }
    }
    Ok(())
}

/// One page of `spaces`, those of object `number`, from memory or read.
///
/// # Errors
/// [`Error::Corrupt`] with the place, [`Error::Io`].
pub fn page(reader: &Reader, number: u64, spaces: &Spaces, space: Space, at: u64) -> Result<Page> {
    if let Some(loc) = spaces.cold_page(space, at) {
        let mut read = read_pages(reader, number, &[Missing { space, page: at, loc }])?;
        return read.pop().ok_or_else(|| damaged(loc.offset(), "a page of the checkpoint"));
    }
    Ok(match space {
        Space::Slots => Page::Slots(spaces.slots.page_slots(at).collect()),
        Space::Omap => {
            let mut leaf = SavedLeaf::new();
            spaces.omap.page_entries(at as PageId).for_each(|(key, loc)| assert!(leaf.push(key, loc), "{ORDER}"));
            Page::Omap(leaf)
        }
        Space::Extents => {
            let mut leaf = SavedLeaf::new();
            spaces.extents.page_extents(at as PageId).for_each(|(offset, extent)| {
                assert!(leaf.push(&offset.to_be_bytes(), extent), "{ORDER}");
            });
            Page::Extents(leaf)
        }
    })
}

/// Pieces of a checkpoint by place, object number and role, sorted by place: neighbours are read together.
///
/// # Errors
/// [`Error::Corrupt`] with the place, [`Error::Io`].
pub fn read_many(reader: &Reader, wanted: &[(Loc, u64, Role)]) -> Result<Vec<Bytes>> {
    let (mut locs, mut asked) = (Vec::with_capacity(wanted.len()), Vec::with_capacity(wanted.len()));
    for (loc, object, role) in wanted {
        locs.push(*loc);
        asked.push(Asked::piece(*object, *role));
    }
    let mut pieces = Vec::with_capacity(wanted.len());
    for ((piece, loc), asked) in reader.fetch_run(&locs, &asked)?.into_iter().zip(&locs).zip(&asked) {
        pieces.push(if loc.flags() & PARTS == 0 { piece } else { join(reader, *loc, asked, &piece)? });
    }
    Ok(pieces)
}

/// One piece, its parts joined.
///
/// # Errors
/// As [`read_many`].
pub fn whole(reader: &Reader, loc: Loc, object: u64, role: Role) -> Result<Bytes> {
    let asked = Asked::piece(object, role);
    let piece = reader.fetch(loc.with_flags(0), &asked, u64::MAX)?.value;
    if loc.flags() & PARTS == 0 { Ok(piece) } else { join(reader, loc, &asked, &piece) }
}

/// The places of a piece's parts, as its list has them: each once, none of them a list itself.
pub fn parts_of(loc: Loc, list: &[u8]) -> Result<Vec<Loc>> {
    let parts: Option<Vec<Loc>> =
        list.chunks(8).map(|raw| Loc::from_raw(raw.try_into().map_or(0, u64::from_le_bytes))).collect();
    let parts = parts.filter(|parts| {
        let mut offsets: Vec<u64> = parts.iter().map(|part| part.offset()).collect();
        offsets.sort_unstable();
        let once = offsets.windows(2).all(|two| two[0] < two[1]) && !offsets.contains(&loc.offset());
        once && parts.iter().all(|part| part.flags() == 0)
    });
    parts.ok_or_else(|| damaged(loc.offset(), "a list of parts"))
}

fn join(reader: &Reader, loc: Loc, asked: &Asked<'_>, list: &[u8]) -> Result<Bytes> {
    let mut joined = Vec::new();
    for part in parts_of(loc, list)? {
        joined.extend_from_slice(&reader.fetch(part, asked, u64::MAX)?.value);
    }
    Ok(joined.into())
}

fn not_it(missing: &Missing) -> String {
    format!("page {} of {:?} in the checkpoint", missing.page, missing.space)
}

/// A piece of the checkpoint that is not what it should be.
pub fn damaged(offset: u64, what: &str) -> Error {
    Error::Corrupt { offset, what: format!("{what} does not hold") }
}

//! Checkpoints: the index as it stands in cold segments.
//!
//! ```text
//! root → table parts (object number → head) → heads (an object, its attributes, its small spaces)
//!                                             → page lists (page number → page) → pages (key → place)
//! ```
//!
//! Each of these is one or several [`Kind::Index`](super::Kind::Index) operations, told apart by their argument.
//!
//! Invariants:
//! 1. Decoding never panics and allocates no more than the bytes it was given allow.
//! 2. A place is a packed [`Loc`]; none is zero.
//! Format: docs/format.md#checkpoints

use esker_store::limits::{COLLECTION_BYTES_MAX, OBJECT_BYTES_MAX, OBJECT_NAME_BYTES_MAX};

use super::{GENERATION_MAX, Loc, NUMBER_MAX, OBJECT_NUMBER_MAX, ReplayFrom, Stream};

/// Flag of a place: what stands there is a list of places, of the parts of a larger piece.
pub const PARTS: u8 = 1;

/// One of the spaces that pages are kept of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Space {
    /// Slots.
    Slots = 0,
    /// Omap.
    Omap = 1,
    /// Extents of the bytes.
    Extents = 2,
}

impl Space {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Slots, Self::Omap, Self::Extents];
}

/// What a piece of a checkpoint is: the argument of its operation. The high byte tells the role, the rest a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The root; one.
    Root,
    /// Part of the table of heads, with its number.
    Table(u64),
    /// An object's head.
    Head,
    /// The page list of a space.
    List(Space),
    /// A page of a space, with its number.
    Page(Space, u64),
}

const NUMBER_BITS: u32 = 56;

impl Role {
    /// The argument.
    pub fn argument(self) -> u64 {
        let (role, number) = match self {
            Self::Root => (0, 0),
            Self::Table(number) => (1, number),
            Self::Head => (2, 0),
            Self::List(space) => (3 + space as u64, 0),
            Self::Page(space, number) => (6 + space as u64, number),
        };
        role << NUMBER_BITS | number
    }

    /// The role of an argument.
    pub fn from_argument(argument: u64) -> Option<Self> {
        let number = argument & ((1 << NUMBER_BITS) - 1);
        Some(match argument >> NUMBER_BITS {
            0 => Self::Root,
            1 => Self::Table(number),
            2 => Self::Head,
            role @ 3..=5 => Self::List(Space::ALL[role as usize - 3]),
            role @ 6..=8 => Self::Page(Space::ALL[role as usize - 6], number),
            _ => return None,
        })
    }
}

/// Reads values off the front of bytes.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn loc(&mut self) -> Option<Loc> {
        self.u64().and_then(Loc::from_raw)
    }

    fn short(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Runs `f` until nothing is left; whether it never failed.
    fn each(&mut self, mut f: impl FnMut(&mut Self) -> Option<()>) -> bool {
        while !self.is_empty() {
            if f(self).is_none() {
                return false;
            }
        }
        true
    }
}

fn put_short(bytes: &mut Vec<u8>, value: &[u8]) {
    bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
    bytes.extend_from_slice(value);
}

/// Slots in a page of slots.
pub const PAGE_SLOTS: usize = 512;
/// Bytes of a page of slots that is written as an array; one with fewer slots is a list, which is never so long.
const DENSE_BYTES: usize = PAGE_SLOTS * 8;
/// Bytes of an entry of the list.
const SPARSE_BYTES: usize = 10;

/// Adds an entry: a slot of no page in particular.
pub fn push_slot(bytes: &mut Vec<u8>, slot: u64, loc: Loc) {
    bytes.extend_from_slice(&slot.to_le_bytes());
    bytes.extend_from_slice(&loc.raw().to_le_bytes());
}

/// Adds an entry of the omap.
pub fn push_omap(bytes: &mut Vec<u8>, key: &[u8], loc: Loc) {
    put_short(bytes, key);
    bytes.extend_from_slice(&loc.raw().to_le_bytes());
}

/// Adds an extent.
pub fn push_extent(bytes: &mut Vec<u8>, offset: u64, loc: Loc, len: u32, skip: u32) {
    bytes.extend_from_slice(&offset.to_le_bytes());
    bytes.extend_from_slice(&loc.raw().to_le_bytes());
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(&skip.to_le_bytes());
}

/// Bytes of a page with so many filled slots.
pub fn slot_page_bytes(slots: usize) -> usize {
    (slots * SPARSE_BYTES).min(DENSE_BYTES)
}

/// The filled slots of page `number`, in order: an array if that is shorter than a list.
pub fn encode_slot_page(slots: impl Iterator<Item = (u64, Loc)>) -> Vec<u8> {
    let mut list = Vec::with_capacity(DENSE_BYTES);
    for (slot, loc) in slots {
        list.extend_from_slice(&((slot % PAGE_SLOTS as u64) as u16).to_le_bytes());
        list.extend_from_slice(&loc.raw().to_le_bytes());
    }
    if list.len() < DENSE_BYTES {
        return list;
    }
    let mut dense = vec![0; DENSE_BYTES];
    for entry in list.chunks_exact(SPARSE_BYTES) {
        let at = usize::from(u16::from_le_bytes([entry[0], entry[1]])) * 8;
        dense[at..at + 8].copy_from_slice(&entry[2..]);
    }
    dense
}

/// The slots of page `number`; whether the page holds.
pub fn decode_slot_page(number: u64, page: &[u8], mut slot: impl FnMut(u64, Loc)) -> bool {
    let Some(first) = number.checked_mul(PAGE_SLOTS as u64) else { return false };
    if page.len() == DENSE_BYTES {
        for (at, raw) in page.chunks_exact(8).enumerate() {
            let raw = super::read_u64(raw, 0);
            match Loc::from_raw(raw) {
                Some(loc) => slot(first + at as u64, loc),
                None if raw == 0 => {}
                None => return false,
            }
        }
        return true;
    }
    page.len().is_multiple_of(SPARSE_BYTES)
        && page.chunks_exact(SPARSE_BYTES).all(|entry| {
            let at = u64::from(u16::from_le_bytes([entry[0], entry[1]]));
            let loc = Loc::from_raw(super::read_u64(&entry[2..], 0));
            loc.filter(|_| at < PAGE_SLOTS as u64).map(|loc| slot(first + at, loc)).is_some()
        })
}

/// Slots of no page in particular; whether the list holds.
pub fn each_slot(bytes: &[u8], mut slot: impl FnMut(u64, Loc)) -> bool {
    let mut cursor = Cursor(bytes);
    cursor.each(|cursor| {
        slot(cursor.u64()?, cursor.loc()?);
        Some(())
    })
}

/// Entries of the omap, in order; whether the list holds.
pub fn each_omap(bytes: &[u8], mut entry: impl FnMut(&[u8], Loc)) -> bool {
    let mut cursor = Cursor(bytes);
    cursor.each(|cursor| {
        entry(cursor.short()?, cursor.loc()?);
        Some(())
    })
}

/// Extents, in order: offset, place, length, skip; whether the list holds.
pub fn each_extent(bytes: &[u8], mut extent: impl FnMut(u64, Loc, u32, u32)) -> bool {
    let mut cursor = Cursor(bytes);
    cursor.each(|cursor| {
        extent(cursor.u64()?, cursor.loc()?, cursor.u32()?, cursor.u32()?);
        Some(())
    })
}

/// Pages or other pieces by number; whether the list holds.
pub fn each_place(bytes: &[u8], place: impl FnMut(u64, Loc)) -> bool {
    each_slot(bytes, place)
}

/// Where a space of an object is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PageList {
    /// It is empty.
    #[default]
    Empty,
    /// All its entries.
    Inline(Vec<u8>),
    /// A list of its pages elsewhere. `numbers` is above every page's number.
    Pages {
        /// One more than the highest number of a page.
        numbers: u64,
        /// Where the list is.
        list: Loc,
    },
}

/// An object as a checkpoint holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Its number.
    pub number: u64,
    /// Its collection's name.
    pub collection: Vec<u8>,
    /// Its name.
    pub name: Vec<u8>,
    /// Size of its bytes.
    pub size: u64,
    /// Whether it shares data with other objects.
    pub shares: bool,
    /// Whether extents that it shares may have been written for another offset.
    pub shifted: bool,
    /// Its attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Its spaces, in the order of [`Space::ALL`].
    pub spaces: [PageList; 3],
}

impl Head {
    /// The head as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 + self.name.len());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        put_short(&mut bytes, &self.collection);
        put_short(&mut bytes, &self.name);
        bytes.extend_from_slice(&self.size.to_le_bytes());
        bytes.push(u8::from(self.shares) | u8::from(self.shares && !self.shifted) << 1);
        bytes.extend_from_slice(&(self.xattrs.len() as u32).to_le_bytes());
        for (name, value) in &self.xattrs {
            put_short(&mut bytes, name);
            bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
            bytes.extend_from_slice(value);
        }
        for space in &self.spaces {
            match space {
                PageList::Empty => bytes.push(0),
                PageList::Inline(entries) => {
                    bytes.push(1);
                    bytes.extend_from_slice(&(entries.len() as u32).to_le_bytes());
                    bytes.extend_from_slice(entries);
                }
                PageList::Pages { numbers, list } => {
                    bytes.push(2);
                    bytes.extend_from_slice(&numbers.to_le_bytes());
                    bytes.extend_from_slice(&list.raw().to_le_bytes());
                }
            }
        }
        bytes
    }

    /// The head that these bytes are; `None` if they are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut cursor = Cursor(bytes);
        let mut head = Self {
            number: cursor.u64().filter(|number| (1..OBJECT_NUMBER_MAX).contains(number))?,
            collection: cursor.short().filter(|name| name.len() <= COLLECTION_BYTES_MAX)?.to_vec(),
            name: cursor.short().filter(|name| name.len() <= OBJECT_NAME_BYTES_MAX)?.to_vec(),
            size: cursor.u64().filter(|size| *size <= OBJECT_BYTES_MAX)?,
            ..Self::default()
        };
        (head.shares, head.shifted) = match cursor.u8()? {
            0 => (false, false),
            // Before version 4 checkpoints did not note whether offsets were kept.
            1 => (true, true),
            3 => (true, false),
            _ => return None,
        };
        for _ in 0..cursor.u32()? {
            let name = cursor.short()?.to_vec();
            let len = cursor.u32()? as usize;
            head.xattrs.push((name, cursor.take(len)?.to_vec()));
        }
        for space in &mut head.spaces {
            *space = match cursor.u8()? {
                0 => PageList::Empty,
                1 => {
                    let len = cursor.u32()? as usize;
                    PageList::Inline(cursor.take(len)?.to_vec())
                }
                2 => PageList::Pages { numbers: cursor.u64()?, list: cursor.loc()? },
                _ => return None,
            };
        }
        cursor.is_empty().then_some(head)
    }
}

/// A segment that was in use when a checkpoint was written: a row of its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentEntry {
    /// Its number.
    pub segment: u64,
    /// Its generation.
    pub generation: u32,
    /// What it holds.
    pub stream: Stream,
    /// Where the log left it, as an offset in it; the segment's length or more while that is not known.
    pub end: u64,
    /// Bytes that objects pointed to then, about: transactions went on meanwhile.
    pub live_bytes: u64,
}

/// Bytes of a row of the table of segments.
const HELD_BYTES: usize = 29;
/// Stands where version 3 and older have the number of the next object, which is never so high.
const ROOT_MARK: u64 = u64::MAX;

/// The start of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Root {
    /// Number of the next object.
    pub next_number: u64,
    /// Where the log goes on after what the checkpoint covers; of version 3 and older not known here.
    pub replay: Option<ReplayFrom>,
    /// Names of all collections.
    pub collections: Vec<Vec<u8>>,
    /// The segments that were in use, each once; of version 3 and older only those of log before the checkpoint, and of
    /// their bytes nothing is known.
    pub segments: Vec<SegmentEntry>,
    /// How far the scrubber has come: the round, and the segment that is looked at next.
    pub scrub: (u64, u64),
    /// Parts of the table of heads, by number.
    pub table: Vec<(u64, Loc)>,
}

impl Root {
    /// The root as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(128 + self.segments.len() * HELD_BYTES);
        let replay = self.replay.unwrap_or_default();
        bytes.extend_from_slice(&ROOT_MARK.to_le_bytes());
        bytes.extend_from_slice(&self.next_number.to_le_bytes());
        bytes.extend_from_slice(&replay.generation.to_le_bytes());
        for word in [replay.offset, replay.seq, replay.group, self.scrub.0, self.scrub.1] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&(self.collections.len() as u32).to_le_bytes());
        self.collections.iter().for_each(|name| put_short(&mut bytes, name));
        bytes.extend_from_slice(&(self.segments.len() as u32).to_le_bytes());
        for held in &self.segments {
            bytes.extend_from_slice(&held.segment.to_le_bytes());
            bytes.extend_from_slice(&held.generation.to_le_bytes());
            bytes.push(u8::from(held.stream == Stream::Cold));
            bytes.extend_from_slice(&held.end.to_le_bytes());
            bytes.extend_from_slice(&held.live_bytes.to_le_bytes());
        }
        for (number, loc) in &self.table {
            bytes.extend_from_slice(&number.to_le_bytes());
            bytes.extend_from_slice(&loc.raw().to_le_bytes());
        }
        bytes
    }

    /// The root that these bytes are; `None` if they are none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut cursor = Cursor(bytes);
        let first = cursor.u64()?;
        let mut root = Self { next_number: first, ..Self::default() };
        if first == ROOT_MARK {
            root.next_number = cursor.u64().filter(|number| *number <= NUMBER_MAX)?;
            root.replay = Some(ReplayFrom {
                generation: cursor.u32()?,
                offset: cursor.u64()?,
                seq: cursor.u64()?,
                group: cursor.u64()?,
            });
            root.scrub = (cursor.u64()?, cursor.u64()?);
        }
        for _ in 0..cursor.u32()? {
            root.collections.push(cursor.short().filter(|name| name.len() <= COLLECTION_BYTES_MAX)?.to_vec());
        }
        for _ in 0..cursor.u32()? {
            let (segment, generation) = (cursor.u64()?, cursor.u32()?);
            let (stream, end, live_bytes) = match first {
                ROOT_MARK => {
                    let stream = match cursor.u8()? {
                        0 => Stream::Log,
                        1 => Stream::Cold,
                        _ => return None,
                    };
                    (stream, cursor.u64()?, cursor.u64()?)
                }
                _ => (Stream::Log, cursor.u64()?, 0),
            };
            root.segments.push(SegmentEntry { segment, generation, stream, end, live_bytes });
        }
        if root.segments.iter().any(|held| !(1..=GENERATION_MAX).contains(&held.generation)) {
            return None;
        }
        let ascending = root.segments.windows(2).all(|two| two[0].segment < two[1].segment);
        if first == ROOT_MARK && !ascending {
            return None;
        }
        while !cursor.is_empty() {
            root.table.push((cursor.u64()?, cursor.loc()?));
        }
        Some(root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_roots_survive_the_round_trip_and_short_ones_are_refused() {
        let loc = Loc::new(4096, 100, 3);
        let head = Head {
            number: 7,
            collection: b"c".to_vec(),
            name: b"object".to_vec(),
            size: 1 << 40,
            shares: true,
            shifted: false,
            xattrs: vec![(b"a".to_vec(), b"value".to_vec()), (b"b".to_vec(), vec![])],
            spaces: [PageList::Empty, PageList::Inline(vec![1, 2, 3]), PageList::Pages { numbers: 9, list: loc }],
        };
        let bytes = head.encode();
        assert_eq!(Head::decode(&bytes), Some(head));
        (0..bytes.len()).for_each(|len| assert_eq!(Head::decode(&bytes[..len]), None));
        let root = Root {
            next_number: 9,
            replay: Some(ReplayFrom { generation: 7, offset: 8, seq: 9, group: 10 }),
            collections: vec![b"c".to_vec(), vec![]],
            segments: vec![
                SegmentEntry { segment: 4, generation: 5, stream: Stream::Log, end: 6, live_bytes: 7 },
                SegmentEntry { segment: 5, generation: 4, stream: Stream::Cold, end: u64::MAX, live_bytes: 0 },
            ],
            scrub: (2, 3),
            table: vec![(0, loc), (5, loc)],
        };
        let bytes = root.encode();
        // What follows the table of segments is a list whose end is the piece's.
        (0..bytes.len() - 32).for_each(|len| assert_eq!(Root::decode(&bytes[..len]), None));
        assert_eq!(Root::decode(&bytes), Some(root.clone()));
        let twice = Root { segments: vec![root.segments[0]; 2], ..root };
        assert_eq!(Root::decode(&twice.encode()), None);
    }

    #[test]
    fn pages_survive_the_round_trip() {
        let loc = Loc::new(4096, 100, 0);
        for count in [1, 100, 409, 410, 512] {
            let slots: Vec<_> = (0..count).map(|at| (5 * PAGE_SLOTS as u64 + at, loc)).collect();
            let page = encode_slot_page(slots.iter().copied());
            let mut found = Vec::new();
            assert!(decode_slot_page(5, &page, |slot, loc| found.push((slot, loc))));
            assert_eq!(found, slots);
            assert!(!decode_slot_page(5, &page[1..], |_, _| ()), "cut short");
        }
        let (mut omap, mut extents, mut slots) = (Vec::new(), Vec::new(), Vec::new());
        push_omap(&mut omap, b"key", loc);
        push_extent(&mut extents, 1 << 40, loc, 5, 6);
        push_slot(&mut slots, 77, loc);
        assert!(each_omap(&omap, |key, at| assert_eq!((key, at), (&b"key"[..], loc))));
        assert!(each_extent(&extents, |offset, at, len, skip| {
            assert_eq!((offset, at, len, skip), (1 << 40, loc, 5, 6));
        }));
        assert!(each_slot(&slots, |slot, at| assert_eq!((slot, at), (77, loc))));
        assert!(!each_omap(&omap[1..], |_, _| ()) && !each_extent(&extents[1..], |_, _, _, _| ()));
    }

    #[test]
    fn roles_survive_the_round_trip() {
        for role in [Role::Root, Role::Table(5), Role::Head, Role::List(Space::Omap), Role::Page(Space::Extents, 77)] {
            assert_eq!(Role::from_argument(role.argument()), Some(role));
        }
        assert_eq!(Role::from_argument(u64::MAX), None);
    }
}

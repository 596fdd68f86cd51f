//! Payload of the records by which the cleaner says where values are now.
//!
//! Two forms, told apart by the operation's argument. [`WIDE`], up to format version 4: entries of fixed width.
//! [`PACKED`]: what an entry has in common with the one before is left out, because copies stand one behind the other
//! and a cleaner's entries are a good part of a full store's log.
//!
//! Invariant: an entry is only written while the index points at the value's old place, under the object's lock.
//! Format: docs/format.md#relocations

use super::{Kind, Loc, read_u32, read_u64};

/// The argument of relocations whose entries have fixed widths.
const WIDE: u64 = 0;
/// The low byte of the argument of relocations whose entries are packed; how many they are stands in the rest.
const PACKED: u64 = 1;
const FORM_BITS: u32 = 8;

/// Control byte: the place begins where the one before ends.
const FOLLOWS: u8 = 1;
/// Control byte: length and flags of the place are those of the one before.
const ALIKE: u8 = 2;
/// Bits of a packed [`Loc`] that are its length and its flags.
const REST_BITS: u32 = 20;
const REST_MASK: u64 = (1 << REST_BITS) - 1;
/// Bytes that a number of 64 bits takes at most, seven bits in each.
const VARINT_BYTES_MAX: usize = 10;

/// One value's new place, as a packed [`Loc`](super::Loc).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relocated<'a> {
    /// Slot and place.
    Slot(u64, u64),
    /// Key and place.
    Omap(&'a [u8], u64),
    /// A stretch of bytes.
    Extent {
        /// Offset in the object.
        offset: u64,
        /// Place.
        place: u64,
        /// Length in bytes.
        len: u32,
        /// First byte within the payload at the place.
        skip: u32,
    },
}

impl Relocated<'_> {
    fn place(&self) -> u64 {
        match self {
            Self::Slot(_, place) | Self::Omap(_, place) | Self::Extent { place, .. } => *place,
        }
    }
}

/// What the next entry is told against: the packed place of the one before and where that ends, in units of 8 bytes,
/// and its slot or offset.
#[derive(Clone, Copy, Default)]
struct Before {
    place: u64,
    ends: u64,
    at: u64,
}

impl Before {
    fn of(place: u64, at: u64) -> Self {
        let ends = Loc::from_raw(place).map_or(0, |loc| (loc.offset() + loc.span_bytes()) / super::LOC_UNIT_BYTES);
        Self { place, ends, at }
    }
}

/// Gathers entries of one kind, in the order in which they are to be applied.
#[derive(Default)]
pub struct Relocations {
    payload: Vec<u8>,
    before: Before,
    entries: u64,
}

impl Relocations {
    /// Adds an entry.
    pub fn push(&mut self, entry: Relocated<'_>) {
        let place = entry.place();
        let (begins, rest) = (place >> REST_BITS, place & REST_MASK);
        let follows = begins == self.before.ends;
        let alike = rest == self.before.place & REST_MASK;
        let payload = &mut self.payload;
        payload.push((u8::from(follows) * FOLLOWS) | (u8::from(alike) * ALIKE));
        if !follows {
            put_varint(payload, zigzag(begins.wrapping_sub(self.before.ends)));
        }
        if !alike {
            put_varint(payload, rest);
        }
        let mut at = 0;
        match entry {
            Relocated::Slot(slot, _) => {
                put_varint(payload, zigzag(slot.wrapping_sub(self.before.at)));
                at = slot;
            }
            Relocated::Omap(key, _) => {
                put_varint(payload, key.len() as u64);
                payload.extend_from_slice(key);
            }
            Relocated::Extent { offset, len, skip, .. } => {
                put_varint(payload, zigzag(offset.wrapping_sub(self.before.at)));
                put_varint(payload, len.into());
                put_varint(payload, skip.into());
                at = offset.wrapping_add(len.into());
            }
        }
        self.before = Before::of(place, at);
        self.entries += 1;
    }

    /// Entries so far.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// The operation's argument: the form, and how many entries there are.
    pub fn argument(&self) -> u64 {
        self.entries << FORM_BITS | PACKED
    }

    /// The operation's payload.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }
}

/// About how many entries relocations with this argument and so many bytes have.
pub fn relocated_entries(argument: u64, bytes: u64) -> u64 {
    if argument == WIDE { bytes / 24 } else { (argument >> FORM_BITS).min(bytes) }
}

/// Runs `f` on every entry of a payload of this kind, in the form that `argument` says; whether the payload was a whole
/// list. Where it was not, `f` has had the entries before.
pub fn each_relocated(kind: Kind, argument: u64, payload: &[u8], mut f: impl FnMut(Relocated<'_>)) -> bool {
    if argument == WIDE {
        return each_wide(kind, payload, f);
    }
    let mut left = (argument >> FORM_BITS) as i64;
    let counted = |entry: Relocated<'_>| {
        left -= 1;
        f(entry);
    };
    argument & ((1 << FORM_BITS) - 1) == PACKED && each_packed(kind, payload, counted).is_some() && left == 0
}

fn each_wide(kind: Kind, mut payload: &[u8], mut f: impl FnMut(Relocated<'_>)) -> bool {
    while !payload.is_empty() {
        let (entry, len) = match kind {
            Kind::RelocateSlots if payload.len() >= 16 => {
                (Relocated::Slot(read_u64(payload, 0), read_u64(payload, 8)), 16)
            }
            Kind::RelocateOmap if payload.len() >= 2 => {
                let key_len = usize::from(u16::from_le_bytes([payload[0], payload[1]]));
                let Some(key) = payload.get(2..2 + key_len).filter(|_| payload.len() >= 10 + key_len) else {
                    return false;
                };
                (Relocated::Omap(key, read_u64(payload, 2 + key_len)), 10 + key_len)
            }
            Kind::RelocateExtents if payload.len() >= 24 => {
                let (offset, place) = (read_u64(payload, 0), read_u64(payload, 8));
                (Relocated::Extent { offset, place, len: read_u32(payload, 16), skip: read_u32(payload, 20) }, 24)
            }
            _ => return false,
        };
        f(entry);
        payload = &payload[len..];
    }
    true
}

/// `None` if it is no whole list.
fn each_packed(kind: Kind, mut payload: &[u8], mut f: impl FnMut(Relocated<'_>)) -> Option<()> {
    let mut before = Before::default();
    while let Some((control, rest)) = payload.split_first() {
        payload = rest;
        if control & !(FOLLOWS | ALIKE) != 0 {
            return None;
        }
        let begins = match control & FOLLOWS {
            0 => before.ends.wrapping_add(unzigzag(take_varint(&mut payload)?)),
            _ => before.ends,
        };
        let rest = if control & ALIKE == 0 { take_varint(&mut payload)? } else { before.place & REST_MASK };
        if rest > REST_MASK || begins >= 1 << (u64::BITS - REST_BITS) {
            return None;
        }
        let place = begins << REST_BITS | rest;
        let (entry, at) = match kind {
            Kind::RelocateSlots => {
                let slot = before.at.wrapping_add(unzigzag(take_varint(&mut payload)?));
                (Relocated::Slot(slot, place), slot)
            }
            Kind::RelocateOmap => {
                let len = usize::try_from(take_varint(&mut payload)?).ok().filter(|len| *len <= payload.len())?;
                let key;
                (key, payload) = payload.split_at(len);
                (Relocated::Omap(key, place), 0)
            }
            Kind::RelocateExtents => {
                let offset = before.at.wrapping_add(unzigzag(take_varint(&mut payload)?));
                let len = u32::try_from(take_varint(&mut payload)?).ok()?;
                let skip = u32::try_from(take_varint(&mut payload)?).ok()?;
                (Relocated::Extent { offset, place, len, skip }, offset.wrapping_add(len.into()))
            }
            _ => return None,
        };
        f(entry);
        before = Before::of(place, at);
    }
    Some(())
}

/// A difference as a number that is small if it is near 0, on either side.
fn zigzag(difference: u64) -> u64 {
    let signed = difference as i64;
    ((signed << 1) ^ (signed >> 63)) as u64
}

fn unzigzag(number: u64) -> u64 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

/// Seven bits in a byte, the lowest first; the eighth says that more follow.
fn put_varint(payload: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        payload.push(number as u8 | 0x80);
        number >>= 7;
    }
    payload.push(number as u8);
}

fn take_varint(payload: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for (place, byte) in payload.iter().take(VARINT_BYTES_MAX).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if place == VARINT_BYTES_MAX - 1 && bits > 1 {
            return None;
        }
        number |= bits << (7 * place);
        if byte & 0x80 == 0 {
            *payload = &payload[place + 1..];
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(entries: &[Relocated<'_>]) -> (u64, Vec<u8>) {
        let mut relocations = Relocations::default();
        entries.iter().for_each(|entry| relocations.push(*entry));
        assert_eq!(relocations.entries(), entries.len() as u64);
        let (argument, payload) = (relocations.argument(), relocations.payload().to_vec());
        assert_eq!(relocated_entries(argument, payload.len() as u64), entries.len() as u64);
        (argument, payload)
    }

    fn wide(entries: &[Relocated<'_>]) -> Vec<u8> {
        let mut payload = Vec::new();
        for entry in entries {
            match entry {
                Relocated::Slot(slot, place) => {
                    payload.extend_from_slice(&slot.to_le_bytes());
                    payload.extend_from_slice(&place.to_le_bytes());
                }
                Relocated::Omap(key, place) => {
                    payload.extend_from_slice(&(key.len() as u16).to_le_bytes());
                    payload.extend_from_slice(key);
                    payload.extend_from_slice(&place.to_le_bytes());
                }
                Relocated::Extent { offset, place, len, skip } => {
                    payload.extend_from_slice(&offset.to_le_bytes());
                    payload.extend_from_slice(&place.to_le_bytes());
                    payload.extend_from_slice(&len.to_le_bytes());
                    payload.extend_from_slice(&skip.to_le_bytes());
                }
            }
        }
        payload
    }

    fn round_trip(kind: Kind, entries: &[Relocated<'_>]) {
        for (argument, payload) in [(WIDE, wide(entries)), packed(entries)] {
            let mut found = 0;
            assert!(each_relocated(kind, argument, &payload, |entry| {
                assert_eq!(entry, entries[found], "form {argument}");
                found += 1;
            }));
            assert_eq!(found, entries.len());
            assert!(!each_relocated(kind, argument, &payload[..payload.len() - 1], |_| ()), "cut short");
            assert!(!each_relocated(kind, 2, &payload, |_| ()), "a form that is none");
            assert!(!each_relocated(kind, argument + (1 << FORM_BITS), &payload, |_| ()), "one more than there are");
        }
    }

    #[test]
    fn relocations_survive_the_round_trip() {
        round_trip(Kind::RelocateSlots, &[Relocated::Slot(7, 99), Relocated::Slot(u64::MAX, 1)]);
        round_trip(Kind::RelocateSlots, &[Relocated::Slot(0, u64::MAX), Relocated::Slot(u64::MAX, 1 << 63)]);
        round_trip(Kind::RelocateOmap, &[Relocated::Omap(b"", 5), Relocated::Omap(b"key", 99)]);
        let extent = Relocated::Extent { offset: 1 << 50, place: 3, len: 4, skip: 5 };
        let last = Relocated::Extent { offset: u64::MAX, place: 3, len: u32::MAX, skip: u32::MAX };
        round_trip(Kind::RelocateExtents, &[extent, extent, last, extent]);
    }

    #[test]
    fn any_entries_survive_the_round_trip() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2_000 {
            let mut number = || random.u64(..) >> random.u32(..64);
            let (mut slots, mut extents) = (Vec::new(), Vec::new());
            for _ in 0..8 {
                slots.push(Relocated::Slot(number(), number()));
                let (len, skip) = (number() as u32, number() as u32);
                extents.push(Relocated::Extent { offset: number(), place: number(), len, skip });
            }
            round_trip(Kind::RelocateSlots, &slots);
            round_trip(Kind::RelocateExtents, &extents);
        }
    }

    #[test]
    fn copies_that_stand_one_behind_the_other_take_a_quarter() {
        let entries: Vec<_> = (0..512)
            .map(|n: u64| Relocated::Slot(n * 7919 % (1 << 20), Loc::new(n * 1072 + (1 << 40), 1072, 0).raw()))
            .collect();
        let (packed, wide) = (packed(&entries).1.len(), wide(&entries).len());
        assert!(packed * 4 <= wide + 64, "{packed} bytes of {wide}");
    }

    #[test]
    fn arbitrary_bytes_are_a_list_or_not() {
        let mut random = fastrand::Rng::with_seed(11);
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..random.usize(..40)).map(|_| random.u8(..) >> random.u32(..8)).collect();
            for kind in [Kind::RelocateSlots, Kind::RelocateOmap, Kind::RelocateExtents, Kind::Write] {
                let mut entries = 0;
                let whole = each_packed(kind, &bytes, |_| entries += 1).is_some();
                assert!(entries <= bytes.len());
                if kind == Kind::Write {
                    assert!(!whole || bytes.is_empty(), "another kind has none");
                }
            }
        }
        // A list that is one survives another round.
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..random.usize(..12)).map(|_| random.u8(..) >> random.u32(..8)).collect();
            for kind in [Kind::RelocateSlots, Kind::RelocateOmap, Kind::RelocateExtents] {
                let (mut again, mut places) = (Relocations::default(), Vec::new());
                let both = |entry: Relocated<'_>| {
                    places.push(entry.place());
                    again.push(entry);
                };
                if each_packed(kind, &bytes, both).is_some() {
                    let mut found = Vec::new();
                    assert!(each_relocated(kind, again.argument(), again.payload(), |entry| found.push(entry.place())));
                    assert_eq!(found, places);
                }
            }
        }
        assert!(each_packed(Kind::RelocateSlots, &[0xff; 64], |_| ()).is_none(), "a number without an end");
    }
}

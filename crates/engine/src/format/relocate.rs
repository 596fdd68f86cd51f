//! Relocations: what the cleaner writes to the log once it has moved values, so that replay finds them.
//!
//! The payload is a list of entries, each packed: slot and place; or length of the key, key and place; or offset, place,
//! length and skip.
//!
//! Invariant: an entry is only written while the index points at the value's old place, under the object's lock.
//! Format: docs/format.md#relocations

use super::{Kind, read_u32, read_u64};

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

/// Adds an entry to a payload.
pub fn push_relocated(payload: &mut Vec<u8>, entry: Relocated<'_>) {
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

/// Runs `f` on every entry of a payload of this kind; whether the payload was a whole list.
pub fn each_relocated(kind: Kind, mut payload: &[u8], mut f: impl FnMut(Relocated<'_>)) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(kind: Kind, entries: &[Relocated<'_>]) {
        let mut payload = Vec::new();
        entries.iter().for_each(|entry| push_relocated(&mut payload, *entry));
        let mut found = 0;
        assert!(each_relocated(kind, &payload, |entry| {
            assert_eq!(entry, entries[found]);
            found += 1;
        }));
        assert_eq!(found, entries.len());
        assert!(!each_relocated(kind, &payload[..payload.len() - 1], |_| ()), "cut short");
    }

    #[test]
    fn relocations_survive_the_round_trip() {
        round_trip(Kind::RelocateSlots, &[Relocated::Slot(7, 99), Relocated::Slot(u64::MAX, 1)]);
        round_trip(Kind::RelocateOmap, &[Relocated::Omap(b"", 5), Relocated::Omap(b"key", 99)]);
        let extent = Relocated::Extent { offset: 1 << 50, place: 3, len: 4, skip: 5 };
        round_trip(Kind::RelocateExtents, &[extent, extent]);
    }
}

//! Sharers: which objects a segment has to be looked for in, beside those that its records name.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use esker_store::{Error, Result};

use super::{Clean, Entry, each_entry};
use crate::checkpoint::Parts;
use crate::format::{Loc, WEIGHT_WHOLE};
use crate::objects::Object;
use crate::pages::each_page;

/// Of so many places that were shared before the store was opened it is found out how often they count.
const PLACES_MAX: usize = 2 << 20;

impl Clean<'_> {
    /// See [`learn_sharers`].
    pub(super) fn learn_sharers(&self) -> Result<()> {
        learn_sharers(self.parts)
    }

    /// The objects that may share what stands in a segment.
    pub(super) fn sharers(&self, segment: u64) -> Vec<Arc<Object>> {
        let sharing = &self.parts.segments.sharing;
        let mut sharers = Vec::new();
        for number in sharing.of(segment) {
            match self.parts.objects.numbered(number) {
                Some(object) => sharers.push(object),
                None => drop(sharing.remove(number, Some(segment))),
            }
        }
        sharers
    }
}

/// Looks once at the index of the objects that shared data when the store was opened, for where that stands, and at
/// that of all others, for what they have of it. An object whose index cannot be read counts as one that shares
/// anything.
///
/// # Errors
/// [`Error::Stopped`].
pub fn learn_sharers(parts: &Parts) -> Result<()> {
    let segments = &parts.segments;
    let unknown: HashSet<u64> = segments.sharing.unknown().into_iter().collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let mut places = Places::default();
    for number in &unknown {
        let Some(object) = parts.objects.numbered(*number) else {
            segments.sharing.is_known(*number);
            continue;
        };
        let mut met = HashSet::new();
        let walked = each_place_of(parts, &object, &mut |loc, weight| {
            met.insert(segments.segment_of(loc.offset()));
            places.add(loc, weight, true);
        });
        segments.sharing.note(*number, met);
        if walked? {
            segments.sharing.is_known(*number);
        } else {
            segments.sharing.cannot_be_known(*number);
        }
    }
    let mut others = Vec::new();
    parts.objects.for_each(|object| others.push(Arc::clone(object)));
    for object in others.into_iter().filter(|object| !unknown.contains(&object.state.read().number)) {
        let mut lent = false;
        let walked = each_place_of(parts, &object, &mut |loc, weight| lent |= places.add(loc, weight, false))?;
        if !walked {
            segments.sharing.lenders_are_unknown();
        }
        if lent {
            object.state.write().lent = true;
        }
    }
    if places.cut_short {
        segments.sharing.lenders_are_unknown();
    }
    let mut again: HashMap<u64, u64> = HashMap::new();
    for (offset, (all, whole)) in places.places {
        // Each may have another part of it: only what is more than the whole counts more than once for certain.
        *again.entry(segments.segment_of(offset)).or_default() += all.saturating_sub(whole);
    }
    again.into_iter().for_each(|(segment, weight)| segments.counts_again(segment, weight));
    Ok(())
}

/// Runs `f` on each place that an object has an entry at, and on how much of it, in 4096ths of a byte. False if its
/// index does not hold, or cannot be read.
fn each_place_of(parts: &Parts, object: &Object, f: &mut dyn FnMut(Loc, u64)) -> Result<bool> {
    let (number, spaces) = object.numbered_spaces();
    if number == 0 {
        return Ok(true);
    }
    let walked = each_page(&parts.reader, number, &spaces, &mut |page| {
        each_entry(page, &mut |entry, loc| {
            f(
                loc,
                match entry {
                    Entry::Extent(_, len, _) => u64::from(len) * loc.weight(),
                    Entry::Slot(_) | Entry::Omap(_) => loc.span_bytes() * WEIGHT_WHOLE,
                },
            );
        });
        Ok(())
    });
    match walked {
        Err(Error::Corrupt { .. } | Error::Io { .. }) => Ok(false),
        walked => walked.map(|()| true),
    }
}

/// What all objects have of a place, and the whole of it, by its offset; in 4096ths of a byte.
#[derive(Default)]
struct Places {
    places: HashMap<u64, (u64, u64)>,
    /// Some had no room.
    cut_short: bool,
}

impl Places {
    /// Adds to a place that is there, or if it is `new` and there is room for more. Whether it did.
    fn add(&mut self, loc: Loc, weight: u64, new: bool) -> bool {
        let room = new && self.places.len() < PLACES_MAX;
        let place = match self.places.entry(loc.offset()) {
            MapEntry::Occupied(place) => place.into_mut(),
            MapEntry::Vacant(place) if room => place.insert((0, loc.span_bytes() * WEIGHT_WHOLE)),
            MapEntry::Vacant(_) => {
                self.cut_short |= new;
                return false;
            }
        };
        place.0 += weight;
        true
    }
}

//! Sharers: which objects a segment has to be looked for in, beside those that its records name.

use std::collections::HashMap;
use std::sync::Arc;

use esker_store::{Error, Result};

use super::{Clean, Entry, each_entry};
use crate::format::WEIGHT_WHOLE;
use crate::objects::Object;
use crate::pages::each_page;

/// Of so many places that were shared before the store was opened it is found out how often they count.
const PLACES_MAX: usize = 16 << 20;

impl Clean<'_> {
    /// The objects that may share what stands in a segment.
    pub(super) fn sharers(&self, segment: u64) -> Vec<Arc<Object>> {
        let sharing = &self.parts.segments.sharing;
        let mut sharers = Vec::new();
        for number in sharing.of(segment) {
            match self.parts.objects.numbered(number) {
                Some(object) => sharers.push(object),
                None => sharing.remove(number, segment),
            }
        }
        sharers
    }

    /// Looks once at the index of the objects that shared data when the store was opened, for where that stands, and at that of
    /// all others, for what they have of it.
    pub(super) fn learn_sharers(&self) -> Result<()> {
        let segments = &self.parts.segments;
        let unknown = segments.sharing.unknown();
        if unknown.is_empty() {
            return Ok(());
        }
        // By place: what all objects have of it, and the one that has most.
        let mut places: HashMap<u64, (u64, u64)> = HashMap::new();
        for number in &unknown {
            let Some(object) = self.parts.objects.numbered(*number) else {
                segments.sharing.is_known(*number);
                continue;
            };
            let Some(own) = self.places_of(&object, |_| true)? else { continue };
            segments.sharing.note(*number, own.keys().map(|offset| segments.segment_of(*offset)));
            segments.sharing.is_known(*number);
            for (offset, weight) in own {
                if places.len() < PLACES_MAX || places.contains_key(&offset) {
                    let (all, most) = places.entry(offset).or_default();
                    (*all, *most) = (*all + weight, weight.max(*most));
                }
            }
        }
        let mut others = Vec::new();
        self.parts.objects.for_each(|object| others.push(Arc::clone(object)));
        for object in others.into_iter().filter(|object| !unknown.contains(&object.state.read().number)) {
            let Some(own) = self.places_of(&object, |offset| places.contains_key(&offset))? else { continue };
            if !own.is_empty() {
                object.state.write().lent = true;
            }
            for (offset, weight) in own {
                if let Some((all, most)) = places.get_mut(&offset) {
                    (*all, *most) = (*all + weight, weight.max(*most));
                }
            }
        }
        let mut again: HashMap<u64, u64> = HashMap::new();
        for (offset, (all, most)) in places {
            *again.entry(segments.segment_of(offset)).or_default() += all - most;
        }
        again.into_iter().for_each(|(segment, weight)| segments.counts_again(segment, weight));
        Ok(())
    }

    /// The places that an object has entries at, and how much of each, in 4096ths of a byte. `None` if its index does not hold, or
    /// cannot be read.
    fn places_of(&self, object: &Object, wanted: impl Fn(u64) -> bool) -> Result<Option<HashMap<u64, u64>>> {
        let (number, spaces) = object.numbered_spaces();
        let mut places = HashMap::new();
        if number == 0 {
            return Ok(Some(places));
        }
        let walked = each_page(&self.parts.reader, number, &spaces, &mut |page| {
            each_entry(page, &mut |entry, loc| {
                if wanted(loc.offset()) {
                    let weight = match entry {
                        Entry::Extent(_, len, _) => u64::from(len) * loc.weight(),
                        Entry::Slot(_) | Entry::Omap(_) => loc.span_bytes() * WEIGHT_WHOLE,
                    };
                    *places.entry(loc.offset()).or_default() += weight;
                }
            });
            Ok(())
        });
        match walked {
            Err(Error::Corrupt { .. } | Error::Io { .. }) => Ok(None),
            walked => walked.map(|()| Some(places)),
        }
    }
}

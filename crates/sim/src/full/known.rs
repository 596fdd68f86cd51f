//! What may stand at each place of the faces: a list of possible values, of which the last is the newest.
//!
//! begin → possible, beside what was there → answered as durable → certain, with all before it; refused → taken back
//!
//! Invariant: a place that was never begun holds nothing.

use std::collections::BTreeMap;

/// A place that holds one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// A key of the namespace of byte keys.
    Key(u64),
    /// A key of the namespace of integers.
    Int(u64),
    /// A block of a disk.
    Block(u8, u64),
    /// A position of the log.
    Entry(u64),
}

/// All places, and what may stand there.
#[derive(Default)]
pub(super) struct Known {
    places: BTreeMap<Place, Vec<Option<u32>>>,
    /// Those with more than one possible value.
    loose: Vec<Place>,
}

impl Known {
    /// From now on this may stand there.
    pub fn begin(&mut self, place: Place, value: Option<u32>) {
        self.places.entry(place).or_insert_with(|| vec![None]).push(value);
        self.loose.push(place);
    }

    /// What was begun last was refused, and changed nothing.
    pub fn refused(&mut self, place: Place) {
        if let Some(values) = self.places.get_mut(&place) {
            values.pop();
        }
    }

    /// Everything so far is durable.
    pub fn durable(&mut self) {
        for place in self.loose.drain(..) {
            let newest = self.places.get(&place).and_then(|values| values.last().copied()).flatten();
            match newest {
                Some(_) => self.places.insert(place, vec![newest]),
                None => self.places.remove(&place),
            };
        }
    }

    /// What was found there; no other value is possible any more.
    ///
    /// # Errors
    /// It cannot stand there.
    pub fn found(&mut self, place: Place, value: Option<u32>) -> Result<(), String> {
        let possible = self.places.get(&place).map_or(&[None][..], Vec::as_slice);
        if !possible.contains(&value) {
            return Err(format!("{place:?} holds {value:?}, possible: {possible:?}"));
        }
        match value {
            Some(_) => self.places.insert(place, vec![value]),
            None => self.places.remove(&place),
        };
        Ok(())
    }

    /// What was found there is what was written last.
    ///
    /// # Errors
    /// It is something else.
    pub fn newest(&self, place: Place, value: Option<u32>) -> Result<(), String> {
        let newest = self.places.get(&place).and_then(|values| values.last().copied()).flatten();
        if newest == value { Ok(()) } else { Err(format!("{place:?} holds {value:?}, written last: {newest:?}")) }
    }

    /// Places at which something may stand.
    pub fn places(&self) -> Vec<Place> {
        self.places.keys().copied().collect()
    }

    /// Those of them for which `is` says so.
    pub fn those(&self, is: impl Fn(&Place) -> bool) -> Vec<Place> {
        self.places.keys().copied().filter(is).collect()
    }
}

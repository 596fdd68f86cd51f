//! What is applied here and not known to be acknowledged: who reads it waits.
//!
//! operation → place in line, noted for its objects → applied → acknowledged, or refused → the line moves
//! → who waits for a place behind which nothing is open goes on
//!
//! Places are numbers of their own: an operation that is refused has had one, and leaves none open.
//!
//! Invariant: an object is noted before its store changes it, so that no reader sees a change that is not noted.

use std::collections::{HashMap, VecDeque};

use esker_store::{Change, Durability, ObjectId, Op, Transaction};
use parking_lot::Mutex;

/// What one operation changes.
struct Changed {
    place: u64,
    /// Its number; `None`: it was refused.
    seq: Option<u64>,
    objects: Vec<ObjectId>,
    /// It makes or removes a collection.
    collections: bool,
}

#[derive(Default)]
struct Noted {
    /// The place of the last operation that changes each.
    objects: HashMap<ObjectId, u64>,
    /// The place of the last that changes collections.
    collections: u64,
    line: VecDeque<Changed>,
    /// The last place that was given.
    last: u64,
    /// Up to this place nothing is open.
    settled: u64,
}

impl Noted {
    /// Lets the line move up to the first operation that is not acknowledged.
    fn settle(&mut self, committed: u64) -> u64 {
        while let Some(changed) = self.line.pop_front_if(|changed| changed.seq.is_none_or(|seq| seq <= committed)) {
            for object in changed.objects {
                if self.objects.get(&object) == Some(&changed.place) {
                    self.objects.remove(&object);
                }
            }
            self.settled = changed.place;
        }
        self.settled
    }
}

/// Changes that are not acknowledged.
#[derive(Default)]
pub(crate) struct Dirty(Mutex<Noted>);

impl Dirty {
    /// Operation `seq` is about to be applied; its place. Where its readers need not wait they see its objects as they
    /// were: what it copies is as dirty as what it copies from.
    pub(crate) fn note(&self, seq: u64, txn: &Transaction) -> u64 {
        let (mut objects, mut collections) = (Vec::new(), false);
        let waits = txn.durability != Durability::Applied;
        if waits {
            objects = txn.objects_changed();
            collections = txn.ops.iter().any(|op| !matches!(op, Op::Object(..)));
        }
        let mut noted = self.0.lock();
        noted.last += 1;
        let place = noted.last;
        if !waits {
            noted.copy(txn);
        }
        for object in &objects {
            noted.objects.insert(object.clone(), place);
        }
        if collections {
            noted.collections = place;
        }
        noted.line.push_back(Changed { place, seq: Some(seq), objects, collections });
        place
    }

    /// The operation at this place, the last, was refused. Answers up to where nothing is open.
    pub(crate) fn withdraw(&self, place: u64, committed: u64) -> u64 {
        let mut noted = self.0.lock();
        let noted = &mut *noted;
        let Some(changed) = noted.line.pop_back_if(|changed| changed.place == place) else { return noted.settled };
        for object in changed.objects {
            match noted.line.iter().rev().find(|before| before.objects.contains(&object)) {
                Some(before) => drop(noted.objects.insert(object, before.place)),
                None => drop(noted.objects.remove(&object)),
            }
        }
        if changed.collections {
            let before = noted.line.iter().rev().find(|before| before.collections);
            noted.collections = before.map_or(0, |before| before.place);
        }
        noted.line.push_back(Changed { place, seq: None, objects: Vec::new(), collections: false });
        noted.settle(committed)
    }

    /// Operations up to this one are acknowledged. Answers up to where nothing is open.
    pub(crate) fn settle(&self, committed: u64) -> u64 {
        self.0.lock().settle(committed)
    }

    /// Nothing that was noted is of what is here any more. Answers up to where nothing is open.
    pub(crate) fn clear(&self) -> u64 {
        let mut noted = self.0.lock();
        let last = noted.last;
        *noted = Noted { last, settled: last, ..Noted::default() };
        last
    }

    /// Anything may have been changed by operations up to `seq`: readers of all of it wait until that is acknowledged.
    pub(crate) fn note_all(&self, seq: u64) {
        let mut noted = self.0.lock();
        noted.last += 1;
        let place = noted.last;
        noted.collections = place;
        noted.line.push_back(Changed { place, seq: Some(seq), objects: Vec::new(), collections: true });
    }

    /// The place that a reader of these objects waits for; one behind which nothing is open, if for none.
    pub(crate) fn last_of<'o>(&self, objects: impl IntoIterator<Item = &'o ObjectId>) -> u64 {
        let noted = self.0.lock();
        let of_objects = objects.into_iter().filter_map(|object| noted.objects.get(object)).copied().max();
        of_objects.unwrap_or(0).max(noted.collections)
    }

    /// The place that a reader of everything waits for.
    pub(crate) fn last(&self) -> u64 {
        self.0.lock().last
    }
}

impl Noted {
    fn copy(&mut self, txn: &Transaction) {
        for op in &txn.ops {
            let Op::Object(from, Change::CloneTo { to } | Change::CloneRange { to, .. } | Change::Rename { to }) = op
            else {
                continue;
            };
            let Some(place) = self.objects.get(from).copied() else { continue };
            if let Some(changed) = self.line.iter_mut().find(|changed| changed.place == place) {
                changed.objects.push(to.clone());
                let last = self.objects.entry(to.clone()).or_insert(place);
                *last = (*last).max(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_store::Collection;

    fn object(name: &'static str) -> ObjectId {
        ObjectId::new(Collection::from("c"), name)
    }

    fn touch(name: &'static str) -> Transaction {
        Transaction::new().change(&object(name), Change::Touch)
    }

    #[test]
    fn an_object_is_dirty_until_its_last_change_is_acknowledged() {
        let dirty = Dirty::default();
        let last = |name| dirty.last_of([&object(name)]);
        assert_eq!(dirty.note(1, &touch("a").change(&object("b"), Change::Touch)), 1);
        assert_eq!(dirty.note(2, &Transaction::new().change(&object("a"), Change::Rename { to: object("d") })), 2);
        assert_eq!((last("a"), last("b"), last("d"), last("x"), dirty.last()), (2, 1, 2, 0, 2));
        assert_eq!(dirty.settle(1), 1);
        assert_eq!((last("a"), last("b"), last("d")), (2, 0, 2));
        assert_eq!(dirty.settle(2), 2);
        assert_eq!((last("a"), last("d")), (0, 0));
    }

    #[test]
    fn what_is_refused_leaves_no_place_open() {
        let dirty = Dirty::default();
        let last = |name| dirty.last_of([&object(name)]);
        assert_eq!(dirty.note(1, &touch("a")), 1);
        assert_eq!(dirty.note(2, &touch("a").create_collection(&Collection::from("e"))), 2);
        assert_eq!((last("a"), last("x")), (2, 2), "whether an object can be there at all is not known yet");
        // Who looked meanwhile waits for place 2.
        assert_eq!(dirty.withdraw(2, 0), 0, "the first is open");
        assert_eq!((last("a"), last("x")), (1, 0));
        assert_eq!(dirty.note(2, &touch("b")), 3);
        assert_eq!(dirty.settle(1), 2);
        assert_eq!(dirty.withdraw(3, 1), 3, "nothing is open before it");
        assert_eq!((last("a"), last("b"), dirty.last()), (0, 0, 3));
    }

    #[test]
    fn a_copy_is_as_dirty_as_what_it_is_of() {
        let dirty = Dirty::default();
        let last = |name| dirty.last_of([&object(name)]);
        dirty.note(1, &touch("a"));
        let copies = Transaction::with(Durability::Applied).change(&object("a"), Change::CloneTo { to: object("b") });
        dirty.note(2, &copies.change(&object("c"), Change::Touch));
        assert_eq!((last("b"), last("c")), (1, 0));
        dirty.settle(1);
        assert_eq!(last("b"), 0);
    }
}

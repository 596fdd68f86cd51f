//! What is applied here and not known to be acknowledged: who reads it waits.
//!
//! operation → place in line, noted for the keys, or objects, that it changes → applied
//! → acknowledged, or refused → the line moves
//! → who waits for a place behind which nothing is open goes on
//!
//! Places are numbers of their own: an operation that is refused has had one, and leaves none open.
//!
//! Invariants:
//! 1. What is changed is noted before its store changes it, so that no reader sees a change that is not noted.
//! 2. Two keys may be taken for one, by their hashes: then a reader waits without need.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use esker_store::{Change, Durability, ObjectId, Op, Transaction};
use parking_lot::Mutex;
use smallvec::SmallVec;

/// What is read of an object: a hash of one of its keys for each key, or anything in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of it, or what lies between two keys.
    Any,
    /// These.
    Keys(SmallVec<[u64; 1]>),
}

/// A key of an object, as it is noted.
#[derive(Clone, Copy, Hash)]
enum Name<'n> {
    Omap(&'n [u8]),
    Slot(u64),
    Xattr(&'n [u8]),
}

impl Name<'_> {
    fn noted(self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

impl Part {
    pub(crate) fn omap<'k>(keys: impl IntoIterator<Item = &'k [u8]>) -> Self {
        Self::Keys(keys.into_iter().map(|key| Name::Omap(key).noted()).collect())
    }

    pub(crate) fn slots<'k>(indexes: impl IntoIterator<Item = &'k u64>) -> Self {
        Self::Keys(indexes.into_iter().map(|index| Name::Slot(*index).noted()).collect())
    }

    pub(crate) fn xattr(name: &[u8]) -> Self {
        Self::Keys(SmallVec::from_elem(Name::Xattr(name).noted(), 1))
    }
}

/// The one key that a change changes; `None`: it changes more, or what has no keys.
fn key_of(change: &Change) -> Option<u64> {
    let name = match change {
        Change::OmapSet { key, .. } | Change::OmapRemove { key } => Name::Omap(key),
        Change::SlotSet { index, .. } | Change::SlotRemove { index } => Name::Slot(*index),
        Change::XattrSet { name, .. } | Change::XattrRemove { name } => Name::Xattr(name),
        _ => return None,
    };
    Some(name.noted())
}

/// What an operation changes: of these objects these keys, or all.
type Changes = Vec<(ObjectId, Option<u64>)>;

fn changes(txn: &Transaction) -> Changes {
    let mut all = Changes::with_capacity(txn.ops.len());
    for op in &txn.ops {
        let Op::Object(object, change) = op else { continue };
        all.push((object.clone(), key_of(change)));
        if let Change::CloneTo { to } | Change::CloneRange { to, .. } | Change::Rename { to } = change {
            all.push((to.clone(), None));
        }
    }
    all
}

/// What one operation changes.
struct Changed {
    place: u64,
    /// Its number; `None`: it was refused.
    seq: Option<u64>,
    objects: Changes,
    /// It makes or removes a collection.
    collections: bool,
}

/// The places of the last operations that change an object.
#[derive(Default)]
struct Last {
    /// Anything in it.
    any: u64,
    /// All of it.
    whole: u64,
    /// Each key.
    keys: HashMap<u64, u64>,
}

impl Last {
    fn note(&mut self, key: Option<u64>, place: u64) {
        self.any = self.any.max(place);
        let of = key.map_or(&mut self.whole, |key| self.keys.entry(key).or_default());
        *of = place.max(*of);
    }

    fn of(&self, part: &Part) -> u64 {
        let Part::Keys(keys) = part else { return self.any };
        let of_keys = keys.iter().filter_map(|key| self.keys.get(key)).copied().max();
        of_keys.unwrap_or(0).max(self.whole)
    }
}

#[derive(Default)]
struct Noted {
    objects: HashMap<ObjectId, Last>,
    /// The place of the last that changes collections.
    collections: u64,
    line: VecDeque<Changed>,
    /// The last place that was given.
    last: u64,
    /// Up to this place nothing is open.
    settled: u64,
}

impl Noted {
    /// Lets the line move up to the first operation that is not acknowledged. `told` is called with where it moves to
    /// before any note is taken away: a reader who finds none finds the writer told as well.
    fn settle(&mut self, committed: u64, told: impl FnOnce(u64)) -> u64 {
        let is_settled = |changed: &Changed| changed.seq.is_none_or(|seq| seq <= committed);
        let Some(last) = self.line.iter().take_while(|changed| is_settled(changed)).last() else { return self.settled };
        told(last.place);
        while let Some(changed) = self.line.pop_front_if(|changed| is_settled(changed)) {
            for (object, key) in changed.objects {
                let Some(last) = self.objects.get_mut(&object) else { continue };
                if last.any == changed.place {
                    self.objects.remove(&object);
                } else if let Some(key) = key
                    && last.keys.get(&key) == Some(&changed.place)
                {
                    last.keys.remove(&key);
                }
            }
            self.settled = changed.place;
        }
        self.settled
    }

    /// Takes the place of an operation that was refused from what it would have changed. Goes through the line once.
    fn unnote(&mut self, changes: Changes) {
        let mut before: HashMap<ObjectId, Last> = HashMap::new();
        for (object, _) in &changes {
            before.entry(object.clone()).or_default();
        }
        for changed in &self.line {
            for (object, key) in &changed.objects {
                if let Some(last) = before.get_mut(object) {
                    last.note(*key, changed.place);
                }
            }
        }
        for (object, last) in before {
            match last.any {
                0 => drop(self.objects.remove(&object)),
                _ => drop(self.objects.insert(object, last)),
            }
        }
    }

    fn note(&mut self, object: &ObjectId, key: Option<u64>, place: u64) {
        match self.objects.get_mut(object) {
            Some(last) => last.note(key, place),
            None => self.objects.entry(object.clone()).or_default().note(key, place),
        }
    }

    fn copy(&mut self, txn: &Transaction) {
        for op in &txn.ops {
            let Op::Object(from, Change::CloneTo { to } | Change::CloneRange { to, .. } | Change::Rename { to }) = op
            else {
                continue;
            };
            let Some(place) = self.objects.get(from).map(|last| last.any) else { continue };
            if let Some(changed) = self.line.iter_mut().find(|changed| changed.place == place) {
                changed.objects.push((to.clone(), None));
                self.note(to, None, place);
            }
        }
    }
}

/// Changes that are not acknowledged.
#[derive(Default)]
pub(crate) struct Dirty {
    noted: Mutex<Noted>,
    /// The last place that was given.
    last: AtomicU64,
}

impl Dirty {
    /// Operation `seq` is about to be applied; its place. Where its readers need not wait they see its objects as they
    /// were: what it copies is as dirty as what it copies from.
    pub(crate) fn note(&self, seq: u64, txn: &Transaction) -> u64 {
        let (mut objects, mut collections) = (Vec::new(), false);
        let waits = txn.durability != Durability::Applied;
        if waits {
            objects = changes(txn);
            collections = txn.ops.iter().any(|op| !matches!(op, Op::Object(..)));
        }
        let mut noted = self.noted.lock();
        let place = self.next(&mut noted);
        if !waits {
            noted.copy(txn);
        }
        for (object, key) in &objects {
            noted.note(object, *key, place);
        }
        if collections {
            noted.collections = place;
        }
        noted.line.push_back(Changed { place, seq: Some(seq), objects, collections });
        place
    }

    fn next(&self, noted: &mut Noted) -> u64 {
        noted.last += 1;
        self.last.store(noted.last, Ordering::SeqCst);
        noted.last
    }

    /// The operation at this place, the last, was refused. Answers up to where nothing is open, as `told` is before.
    pub(crate) fn withdraw(&self, place: u64, committed: u64, told: impl FnOnce(u64)) -> u64 {
        let mut noted = self.noted.lock();
        let noted = &mut *noted;
        let Some(changed) = noted.line.pop_back_if(|changed| changed.place == place) else { return noted.settled };
        noted.unnote(changed.objects);
        if changed.collections {
            let before = noted.line.iter().rev().find(|before| before.collections);
            noted.collections = before.map_or(0, |before| before.place);
        }
        noted.line.push_back(Changed { place, seq: None, objects: Vec::new(), collections: false });
        noted.settle(committed, told)
    }

    /// Operations up to this one are acknowledged. Answers up to where nothing is open, as `told` is before.
    pub(crate) fn settle(&self, committed: u64, told: impl FnOnce(u64)) -> u64 {
        self.noted.lock().settle(committed, told)
    }

    /// Nothing that was noted is of what is here any more. Answers up to where nothing is open.
    pub(crate) fn clear(&self) -> u64 {
        let mut noted = self.noted.lock();
        let last = noted.last;
        *noted = Noted { last, settled: last, ..Noted::default() };
        last
    }

    /// Anything may have been changed by operations up to `seq`: readers of all of it wait until that is acknowledged.
    pub(crate) fn note_all(&self, seq: u64) {
        let mut noted = self.noted.lock();
        let place = self.next(&mut noted);
        noted.collections = place;
        noted.line.push_back(Changed { place, seq: Some(seq), objects: Vec::new(), collections: true });
    }

    /// The place that a reader of this part of an object waits for; one behind which nothing is open, if for none.
    pub(crate) fn last_of(&self, object: &ObjectId, part: &Part) -> u64 {
        let noted = self.noted.lock();
        noted.objects.get(object).map_or(0, |last| last.of(part)).max(noted.collections)
    }

    /// The place that a reader of these objects waits for.
    pub(crate) fn last_of_all<'o>(&self, objects: impl IntoIterator<Item = &'o ObjectId>) -> u64 {
        let noted = self.noted.lock();
        let of_objects = objects.into_iter().filter_map(|object| noted.objects.get(object)).map(|last| last.any).max();
        of_objects.unwrap_or(0).max(noted.collections)
    }

    /// The place that a reader of everything waits for.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::SeqCst)
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
        let last = |name| dirty.last_of_all([&object(name)]);
        assert_eq!(dirty.note(1, &touch("a").change(&object("b"), Change::Touch)), 1);
        assert_eq!(dirty.note(2, &Transaction::new().change(&object("a"), Change::Rename { to: object("d") })), 2);
        assert_eq!((last("a"), last("b"), last("d"), last("x"), dirty.last()), (2, 1, 2, 0, 2));
        assert_eq!(dirty.settle(1, |_| {}), 1);
        assert_eq!((last("a"), last("b"), last("d")), (2, 0, 2));
        let mut told = Vec::new();
        assert_eq!(dirty.settle(1, |place| told.push(place)), 1);
        assert_eq!(dirty.settle(2, |place| told.push(place)), 2);
        assert_eq!(told, [2], "once, and only of what moves");
        assert_eq!((last("a"), last("d")), (0, 0));
    }

    #[test]
    fn what_is_refused_leaves_no_place_open() {
        let dirty = Dirty::default();
        let last = |name| dirty.last_of_all([&object(name)]);
        assert_eq!(dirty.note(1, &touch("a")), 1);
        assert_eq!(dirty.note(2, &touch("a").create_collection(&Collection::from("e"))), 2);
        assert_eq!((last("a"), last("x")), (2, 2), "whether an object can be there at all is not known yet");
        // Who looked meanwhile waits for place 2.
        assert_eq!(dirty.withdraw(2, 0, |_| {}), 0, "the first is open");
        assert_eq!((last("a"), last("x")), (1, 0));
        assert_eq!(dirty.note(2, &touch("b")), 3);
        assert_eq!(dirty.settle(1, |_| {}), 2);
        assert_eq!(dirty.withdraw(3, 1, |_| {}), 3, "nothing is open before it");
        assert_eq!((last("a"), last("b"), dirty.last()), (0, 0, 3));
    }

    #[test]
    fn a_copy_is_as_dirty_as_what_it_is_of() {
        let dirty = Dirty::default();
        let last = |name| dirty.last_of_all([&object(name)]);
        dirty.note(1, &touch("a"));
        let copies = Transaction::with(Durability::Applied).change(&object("a"), Change::CloneTo { to: object("b") });
        dirty.note(2, &copies.change(&object("c"), Change::Touch));
        assert_eq!((last("b"), last("c")), (1, 0));
        dirty.settle(1, |_| {});
        assert_eq!(last("b"), 0);
    }

    #[test]
    fn who_reads_another_key_of_an_object_does_not_wait() {
        let dirty = Dirty::default();
        let (a, key) = (object("a"), |key: &'static str| Part::omap([key.as_bytes()]));
        let set = |key: &'static str| Change::OmapSet { key: key.into(), value: "v".into() };
        dirty.note(1, &Transaction::new().change(&a, set("k")));
        dirty.note(2, &Transaction::new().change(&a, set("l")).change(&a, Change::SlotRemove { index: 7 }));
        let last = |part: &Part| dirty.last_of(&a, part);
        assert_eq!((last(&key("k")), last(&key("l")), last(&key("m")), last(&Part::Any)), (1, 2, 0, 2));
        assert_eq!(
            (last(&Part::omap([&b"m"[..], b"k"])), last(&Part::slots(&[7])), last(&Part::slots(&[8]))),
            (1, 2, 0)
        );
        assert_eq!((last(&Part::xattr(b"k")), dirty.last_of(&object("b"), &Part::Any)), (0, 0), "another space");
        // Whatever changes more than keys changes all of them.
        dirty.note(3, &Transaction::new().change(&a, Change::OmapClear));
        assert_eq!((last(&key("m")), last(&key("k")), last(&Part::slots(&[8]))), (3, 3, 3));
        assert_eq!(dirty.withdraw(3, 0, |_| {}), 0);
        assert_eq!((last(&key("m")), last(&key("k")), last(&Part::Any)), (0, 1, 2));
        dirty.note(3, &Transaction::new().change(&a, set("k")));
        assert_eq!(last(&key("k")), 4);
        assert_eq!(dirty.withdraw(4, 0, |_| {}), 0);
        assert_eq!((last(&key("k")), last(&Part::Any)), (1, 2), "as it was");
        assert_eq!(dirty.settle(1, |_| {}), 1);
        assert_eq!((last(&key("k")), last(&key("l"))), (0, 2));
        assert_eq!(dirty.settle(2, |_| {}), 4);
        assert!(dirty.noted.lock().objects.is_empty());
    }
}

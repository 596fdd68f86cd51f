//! The registry: names that lead to ids, or to records, and what is still being made or removed.
//!
//! making (its id is noted) → live (a name leads to it) → removing (no name leads to it, its id is noted) → gone
//!
//! All of it stands in one object, so that each step is a transaction of one object: a store that is atomic per object
//! only will do. What a name leads to is made before the name, and goes after it; what a crash leaves half made or half
//! removed is noted, and collected by its id, which may stop at any time and goes on later.
//!
//! Where a face keeps it and under which keys is the face's: its stored bytes are in docs/format.md.
//!
//! Invariants:
//! 1. An id is given once: the last one that was given is guarded where the next is.
//! 2. A name is given only where it is free, and taken away only from what it was read to lead to.
//! 3. A note of what is being removed goes after the last of its objects, when they are gone for good
//!    ([`remove_objects`]).
//! 4. What is read here no crash takes back, whatever the store's commit policy: others remove things because of it
//!    ([`Durability::Always`]).

use std::ops::Deref;

use bytes::Bytes;

use crate::number::{first_number, number, number_from, numbered};
use crate::retry::{Attempt, Retry, change_guarded, submit_guarded};
use crate::{
    Change, Collection, Compare, Completion, Condition, Durability, Error, Guard, Incarnation, ObjectId, ObjectStore,
    OmapScan, Result, Transaction, Unsynced, prefix,
};

/// Objects that one transaction removes, at most: few enough for what a full store keeps back for those who remove.
const REMOVE_OBJECTS: usize = 512;

/// Names, and what each leads to: where a face keeps them.
#[derive(Clone, Debug)]
pub struct Directory {
    /// The object in whose omap they stand.
    pub object: ObjectId,
    /// What it is called where something is wrong with it.
    pub what: &'static str,
    /// What keys of names begin with.
    pub names: &'static [u8],
    /// What keys of ids begin with under which the names that lead to them stand, if they do.
    pub ids: Option<u8>,
}

/// A directory of what has ids, and of what is being made or removed.
#[derive(Clone, Debug)]
pub struct Registry {
    /// Its names.
    pub directory: Directory,
    /// Xattr of the last id that was given, 8 bytes little-endian; absent: none yet.
    pub last_id: &'static [u8],
    /// What keys of ids that are being made or removed begin with.
    pub left: u8,
}

impl Deref for Registry {
    type Target = Directory;

    fn deref(&self) -> &Directory {
        &self.directory
    }
}

/// Something that is being made or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// Its id.
    pub id: u64,
    /// What its key holds behind the id.
    pub part: Bytes,
    /// What was noted.
    pub value: Bytes,
}

/// What came of renaming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renamed {
    /// The new name leads to what the old one did.
    Done,
    /// There is no such name.
    Missing,
    /// The new name is taken.
    Taken,
}

/// Makes a collection, with `txn`, if it is missing.
///
/// # Errors
/// The store's.
pub fn open_collection(store: &dyn ObjectStore, collection: &Collection, mut txn: Transaction) -> Result<()> {
    if !store.collections().wait()?.contains(collection) {
        txn.be_relied_on();
        store.submit(txn.giving_back().create_collection(collection)).wait()?;
    }
    Ok(())
}

/// Removes objects, as many at once as the store can, and has it synced: who then forgets them forgets what is gone for
/// good, though the store be restarted meanwhile. `on` is told how many went, and says whether to go on. Returns
/// whether all are gone for good: not where the store was restarted, after which some may be there again.
///
/// # Errors
/// The store's; what went before stays gone.
pub fn remove_objects(
    store: &dyn ObjectStore,
    mut objects: impl Iterator<Item = Result<ObjectId>>,
    on: &mut dyn FnMut(u64) -> bool,
) -> Result<bool> {
    let at_once = if store.capability().atomic_across_objects { REMOVE_OBJECTS } else { 1 };
    let (unsynced, mut gone) = (Unsynced::default(), 0);
    // What is found gone already may be so by another, who has not had it synced.
    unsynced.begin(store).applied();
    let lives = store.incarnation() != Incarnation::LOCAL;
    loop {
        let some: Vec<ObjectId> = objects.by_ref().take(REMOVE_OBJECTS).collect::<Result<_>>()?;
        if some.is_empty() {
            return match if gone > 0 || lives { unsynced.sync(store) } else { Ok(()) } {
                // The caller, which keeps the note of them, comes to it again.
                Err(Error::Restarted) => Ok(false),
                done => done.map(|()| true),
            };
        }
        for together in some.chunks(at_once) {
            let mut txn = Transaction::with(Durability::Applied);
            together.iter().for_each(|object| txn.push(object, Change::Remove));
            let written = unsynced.begin(store);
            store.submit(txn).wait()?;
            written.applied();
        }
        gone += some.len() as u64;
        if !on(gone) {
            return Ok(false);
        }
    }
}

impl Directory {
    /// The key of a name.
    pub fn key(&self, name: &str) -> Bytes {
        [self.names, name.as_bytes()].concat().into()
    }

    fn damaged(&self, why: impl std::fmt::Display) -> Error {
        Error::Corrupt { offset: 0, what: format!("{}: {why}", self.what) }
    }

    /// What a name leads to.
    pub fn find(&self, store: &dyn ObjectStore, name: &str) -> Completion<Option<Bytes>> {
        store.omap_get(&self.object, &self.key(name))
    }

    /// The id that a name leads to.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is none; the store's.
    pub fn id(&self, store: &dyn ObjectStore, name: &str) -> Result<Option<u64>> {
        let found = self.find(store, name).wait()?;
        found.map(|id| number_from(&id).ok_or_else(|| self.damaged(format!("id of {name}")))).transpose()
    }

    /// The name that leads to an id, where that is kept.
    ///
    /// # Errors
    /// The store's.
    pub fn name(&self, store: &dyn ObjectStore, id: u64) -> Result<Option<Bytes>> {
        let Some(ids) = self.ids else { return Ok(None) };
        store.omap_get(&self.object, &numbered(ids, id)).wait()
    }

    /// The names that begin with `first`, in order, without that, and what they lead to.
    pub fn all<'a>(
        &self,
        store: &'a dyn ObjectStore,
        first: &str,
    ) -> impl Iterator<Item = Result<(Bytes, Bytes)>> + use<'a> {
        self.scan(store, first, OmapScan::of(self.key(first)))
    }

    /// The names alone, as text: those above `after`, at most `limit` of them.
    pub fn names<'a>(
        &self,
        store: &'a dyn ObjectStore,
        first: &str,
        after: Option<&str>,
        limit: usize,
    ) -> impl Iterator<Item = Result<String>> + use<'a> {
        let mut scan = OmapScan::of(self.key(first)).keys();
        scan.limit = scan.limit.min(limit);
        if let Some(after) = after {
            scan.start = Some(prefix::just_above(&[&self.key(first), after.as_bytes()].concat()));
        }
        let what = self.what;
        let text = move |name: Result<(Bytes, Bytes)>| {
            let (name, _) = name?;
            let damaged = |name| Error::Corrupt { offset: 0, what: format!("{what}: the name {name:?} is no text") };
            String::from_utf8(name.to_vec()).map_err(|_| damaged(name))
        };
        self.scan(store, first, scan).take(limit).map(text)
    }

    fn scan<'a>(
        &self,
        store: &'a dyn ObjectStore,
        first: &str,
        scan: OmapScan,
    ) -> impl Iterator<Item = Result<(Bytes, Bytes)>> + use<'a> {
        let begun = self.names.len() + first.len();
        prefix::omap(store, &self.object, scan).map(move |entry| entry.map(|(key, value)| (key.slice(begun..), value)))
    }

    /// The guard that a name is free.
    pub fn is_free(&self, name: &str) -> Guard {
        Guard { object: self.object.clone(), condition: Condition::OmapAbsent { key: self.key(name) } }
    }

    /// The guard that a name leads to this.
    pub fn leads_to(&self, name: &str, value: Bytes) -> Guard {
        Guard { object: self.object.clone(), condition: Condition::OmapEquals { key: self.key(name), value } }
    }

    /// Adds what lets a name lead to something.
    pub fn set(&self, txn: &mut Transaction, name: &str, value: Bytes) {
        txn.be_relied_on();
        if let (Some(ids), Some(id)) = (self.ids, number_from(&value)) {
            txn.push(&self.object, Change::OmapSet { key: self.key(name), value });
            let name = Bytes::copy_from_slice(name.as_bytes());
            txn.push(&self.object, Change::OmapSet { key: numbered(ids, id), value: name });
        } else {
            txn.push(&self.object, Change::OmapSet { key: self.key(name), value });
        }
    }

    /// Adds what takes a name away.
    pub fn unset(&self, txn: &mut Transaction, name: &str) {
        txn.be_relied_on();
        txn.push(&self.object, Change::OmapRemove { key: self.key(name) });
    }

    /// Gives what a name leads to another name.
    ///
    /// # Errors
    /// [`Error::Contended`]; the store's.
    pub fn rename(&self, store: &dyn ObjectStore, from: &str, to: &str) -> Result<Renamed> {
        let mut retry = Retry::default();
        loop {
            retry.attempt(|| format!("the name {from}"))?;
            let Some(value) = self.find(store, from).wait()? else { return Ok(Renamed::Missing) };
            let mut txn = Transaction::new();
            txn.guards.extend([self.leads_to(from, value.clone()), self.is_free(to)]);
            self.unset(&mut txn, from);
            self.set(&mut txn, to, value);
            match submit_guarded(store, txn)? {
                None => return Ok(Renamed::Done),
                Some(1) => return Ok(Renamed::Taken),
                Some(_) => {}
            }
        }
    }
}

impl Registry {
    /// Adds what gives a new id, with the guard that it is one; it is returned.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the last is unreadable or none is left; the store's.
    pub fn give_id(&self, store: &dyn ObjectStore, txn: &mut Transaction) -> Result<u64> {
        let last = store.xattr(&self.object, self.last_id).wait()?;
        let last = last.map_or(Some(0), |last| number_from(&last)).ok_or_else(|| self.damaged("its last id"))?;
        let id = last.checked_add(1).ok_or_else(|| self.damaged("no ids are left"))?;
        txn.be_relied_on();
        txn.push_guard(&self.object, Condition::compare(self.last_id, Compare::Equal, last, last == 0));
        txn.push(&self.object, Change::number(self.last_id, id));
        Ok(id)
    }

    /// Gives a new id, with `txn` and what `also` adds to it.
    ///
    /// # Errors
    /// As [`Registry::give_id`]; [`Error::Contended`].
    pub fn new_id(
        &self,
        store: &dyn ObjectStore,
        txn: &Transaction,
        also: impl Fn(&mut Transaction, u64),
    ) -> Result<u64> {
        change_guarded(
            store,
            || format!("the {}", self.what),
            || {
                let mut txn = txn.clone();
                let id = self.give_id(store, &mut txn)?;
                also(&mut txn, id);
                Ok(Attempt::Submit(txn, id))
            },
        )
    }

    /// Adds the note that something is being made or removed, or a part of it.
    pub fn note(&self, txn: &mut Transaction, id: u64, part: &[u8], value: Bytes) {
        txn.be_relied_on();
        let key = [&numbered(self.left, id), part].concat().into();
        txn.push(&self.object, Change::OmapSet { key, value });
    }

    /// Adds what forgets such a note.
    pub fn forget(&self, txn: &mut Transaction, id: u64, part: &[u8]) {
        txn.be_relied_on();
        let key = [&numbered(self.left, id), part].concat().into();
        txn.push(&self.object, Change::OmapRemove { key });
    }

    /// The guard that such a note still says so.
    fn is_noted(&self, id: u64, part: &[u8], value: Bytes) -> Guard {
        let key = [&numbered(self.left, id), part].concat().into();
        Guard { object: self.object.clone(), condition: Condition::OmapEquals { key, value } }
    }

    /// Makes the note of something that is being made one that it is to be removed: from then on no name comes to
    /// [lead](Registry::link) to it. False if the note has gone, or says something else: then it is not to be touched.
    ///
    /// # Errors
    /// The store's.
    pub fn condemn(&self, store: &dyn ObjectStore, left: &Leftover, value: Bytes) -> Result<bool> {
        let mut txn = Transaction::new().giving_back();
        txn.guards.push(self.is_noted(left.id, &left.part, left.value.clone()));
        self.note(&mut txn, left.id, &left.part, value);
        Ok(submit_guarded(store, txn)?.is_none())
    }

    /// What is being made or removed, by id.
    pub fn leftovers<'a>(&self, store: &'a dyn ObjectStore) -> impl Iterator<Item = Result<Leftover>> + use<'a> {
        prefix::omap(store, &self.object, OmapScan::of([self.left])).filter_map(|entry| {
            let read =
                |(key, value): (Bytes, Bytes)| Some(Leftover { id: first_number(&key)?, part: key.slice(9..), value });
            entry.map(read).transpose()
        })
    }

    /// Lets a name lead to something of which the note still says `noted`, that it is being made, and forgets the note.
    /// False if the name is taken, or it was [condemned](Registry::condemn).
    ///
    /// # Errors
    /// The store's; after one that is [unknown](Error::is_unknown) the name may lead to it.
    pub fn link(&self, store: &dyn ObjectStore, name: &str, id: u64, noted: Bytes) -> Result<bool> {
        let mut txn = Transaction::new();
        txn.guards.extend([self.is_free(name), self.is_noted(id, &[], noted)]);
        self.set(&mut txn, name, number(id));
        self.forget(&mut txn, id, &[]);
        Ok(submit_guarded(store, txn)?.is_none())
    }

    /// Adds what takes the name of something away and notes that it is to be removed, with the guard that the name
    /// leads to it.
    pub fn unlink(&self, txn: &mut Transaction, name: &str, id: u64, value: Bytes) {
        txn.guards.push(self.leads_to(name, number(id)));
        self.unset(txn, name);
        if let Some(ids) = self.ids {
            txn.push(&self.object, Change::OmapRemove { key: numbered(ids, id) });
        }
        self.note(txn, id, &[], value);
        txn.gives_back = true;
    }
}

//! Collections and the names of their objects: RADOS lists objects in no order.
//!
//! ```text
//! store                    omap: collections → making, live or removing, with a token of its own
//! shards of a collection   omap: entries, a name with a token of its maker; xattr: the token of the collection
//!
//! making → its shards, each with its token → live → removing → its shards sealed → no record
//! ```
//!
//! Invariants:
//! 1. An object that is there has an entry in the shard that it names, under the token that it names: the entry is
//!    added before the object is made, and dropped once the object is gone, or was not made under this token and never
//!    will be. A crash leaves entries without objects, and no more.
//! 2. An entry is only added to a shard that has the token of the collection; a collection is removed with its shards
//!    sealed, once what is named in each is gone for good: where no object is there is a tomb, so that a maker who is
//!    late finds it. Shards stay, so that none can be made late.
//! 3. What is said of a collection changes only from what was read of it: a call that is late changes no later one.

use std::ffi::{CStr, CString};

use bytes::Bytes;
use esker_store::{Collection, Error, ObjectId, Result};

use crate::encode::{self, SHARDS, STORE, TOMB, kind};
use crate::link::{Link, PAGE, code, error, write_error};
use crate::native::{Compare, Failed, Found, Read, Write};

/// How often what others change is looked at again before it is given up.
const ATTEMPTS: usize = 20;
/// The xattr of a shard that holds the token of its collection.
pub(crate) const TOKEN: &CStr = c"token";
/// Objects that are looked at at once.
const LOOKS: usize = 64;

/// A token that no other client has, as a value.
///
/// # Errors
/// [`Error::Io`]: the system gives no random numbers.
pub(crate) fn token() -> Result<Vec<u8>> {
    let mut token = vec![0; 16];
    getrandom::fill(&mut token)
        .map_err(|error| Error::io("random numbers", std::io::Error::other(error.to_string())))?;
    Ok(encode::value(&token))
}

/// What becomes of a collection. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum State {
    Making = 1,
    Live = 2,
    Removing = 3,
}

/// What the store says about a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    state: State,
    token: Vec<u8>,
}

impl Record {
    fn encode(&self) -> Vec<u8> {
        [&[encode::VALUE, self.state as u8], &self.token[..]].concat()
    }

    fn decode(stored: &[u8]) -> Option<Self> {
        let state = match stored.get(1)? {
            1 => State::Making,
            2 => State::Live,
            3 => State::Removing,
            _ => return None,
        };
        Some(Self { state, token: stored[2..].to_vec() })
    }

    fn become_(&self, state: State) -> Self {
        Self { state, token: self.token.clone() }
    }
}

fn damaged(collection: &Collection, stored: &[u8]) -> Error {
    Error::Corrupt { offset: 0, what: format!("collection {collection} on Ceph: {}", stored.escape_ascii()) }
}

/// What the record of a collection says.
fn decoded(collection: &Collection, stored: &[u8]) -> Result<Record> {
    Record::decode(stored).ok_or_else(|| damaged(collection, stored))
}

pub(crate) fn no_collection(collection: &Collection) -> Error {
    Error::NoCollection { collection: collection.to_string() }
}

fn contended(collection: &Collection) -> Error {
    Error::Contended { what: format!("collection {collection}"), attempts: ATTEMPTS as u32 }
}

fn record(link: &Link, collection: &Collection) -> Result<Option<Record>> {
    let key = encode::omap(collection.name());
    match link.read(STORE, |read| read.omap_keys(&[&key])) {
        Ok(found) => found.omap.first().map(|(_, stored)| decoded(collection, stored)).transpose(),
        Err(failed) => Err(read_error(failed)),
    }
}

/// Puts `to` in the place of `from`; false if it is another by now.
fn replace(link: &Link, collection: &Collection, from: Option<&Record>, to: Option<&Record>) -> Result<bool> {
    let key = encode::omap(collection.name());
    let mut write = Write::new();
    write.assert_exists();
    write.compare_omap(&key, Compare::Equal, &from.map_or_else(Vec::new, Record::encode));
    match to {
        Some(to) => write.set_omap(&[(&key, &to.encode())]),
        None => write.remove_omap(&[&key]),
    }
    match link.write(STORE, write) {
        Ok(_) => Ok(true),
        Err(failed) if failed.code == code::CANCELED => Ok(false),
        Err(failed) if failed.code == code::NOT_THERE => Err(Link::gone()),
        Err(failed) => Err(write_error(failed, STORE)),
    }
}

/// Makes a collection, or what is missing of it; one that is half removed is removed first.
///
/// # Errors
/// [`Error::Contended`].
pub(crate) fn create(link: &Link, collection: &Collection) -> Result<()> {
    for _ in 0..ATTEMPTS {
        match record(link, collection)? {
            None => {
                let made = Record { state: State::Making, token: token()? };
                replace(link, collection, None, Some(&made))?;
            }
            Some(making) if making.state == State::Making => {
                make_shards(link, collection, &making)?;
                replace(link, collection, Some(&making), Some(&making.become_(State::Live)))?;
            }
            Some(live) if live.state == State::Live => return Ok(()),
            Some(removing) => match remove_rest(link, collection, &removing) {
                // It is there again.
                Ok(()) | Err(Error::NotEmpty { .. }) => {}
                Err(error) => return Err(error),
            },
        }
    }
    Err(contended(collection))
}

fn make_shards(link: &Link, collection: &Collection, making: &Record) -> Result<()> {
    for number in 0..SHARDS {
        let shard = encode::shard(collection, number);
        for attempt in 0.. {
            let mut write = Write::new();
            write.create(true);
            write.set_xattr(TOKEN, &making.token);
            match link.write(&shard, write) {
                Ok(_) => break,
                Err(failed) if failed.code == code::THERE => {}
                Err(failed) => return Err(write_error(failed, &shard)),
            }
            let found = match link.read(&shard, |read| read.xattrs()) {
                Ok(found) => found,
                Err(failed) if failed.code == code::NOT_THERE && attempt < ATTEMPTS => continue,
                Err(failed) => return Err(error(failed, "reading", &shard)),
            };
            let seen = token_in(&found);
            if seen == making.token {
                break;
            }
            // Looked at after the token was: what is of another than this is of one that is gone.
            if record(link, collection)?.as_ref() != Some(making) {
                return Ok(());
            }
            // Its names stay: one without an object does no harm.
            let mut write = Write::new();
            write.compare_xattr(TOKEN, Compare::Equal, &seen);
            write.set_xattr(TOKEN, &making.token);
            match link.write(&shard, write) {
                Ok(_) => break,
                Err(failed) if matches!(failed.code, code::NOT_THERE | code::CANCELED) && attempt < ATTEMPTS => {}
                Err(failed) => return Err(write_error(failed, &shard)),
            }
        }
    }
    Ok(())
}

/// What a shard's token is when its collection is removed.
fn sealed(token: &[u8]) -> Vec<u8> {
    [token, b" sealed"].concat()
}

/// Why a token was not read.
pub(crate) enum Unread {
    /// Ceph has not answered, or not well.
    Failed(Failed),
    /// This is stored.
    Damaged(Vec<u8>),
}

impl Unread {
    pub(crate) fn error(&self, collection: &Collection) -> Error {
        match self {
            Self::Failed(failed) => read_error(*failed),
            Self::Damaged(stored) => damaged(collection, stored),
        }
    }
}

/// Reads the token of a collection that is there, or is being made. `told` is called once, by a thread of librados.
pub(crate) fn read_token(
    link: &Link,
    collection: &Collection,
    told: impl FnOnce(std::result::Result<Option<Vec<u8>>, Unread>) + Send + 'static,
) {
    let mut read = Read::new();
    read.omap_keys(&[&encode::omap(collection.name())]);
    link.pool.read(STORE, read, move |found| {
        let token = |(_, stored): &(Vec<u8>, Vec<u8>)| match Record::decode(stored) {
            Some(record) => Ok(Some(record).filter(|record| record.state != State::Removing)),
            None => Err(Unread::Damaged(stored.clone())),
        };
        let found = found.map_err(Unread::Failed).and_then(|found| found.omap.first().map_or(Ok(None), token));
        told(found.map(|record| record.map(|record| record.token)));
    });
}

/// Why the store's object could not be read.
fn read_error(failed: Failed) -> Error {
    if failed.code == code::NOT_THERE { Link::gone() } else { error(failed, "reading", STORE) }
}

fn token_in(found: &Found) -> Vec<u8> {
    let token = found.xattrs.iter().find(|(name, _)| name == TOKEN.to_bytes());
    token.map_or_else(Vec::new, |(_, token)| token.clone())
}

/// Whether there is such a collection.
pub(crate) fn is_there(link: &Link, collection: &Collection) -> Result<bool> {
    Ok(record(link, collection)?.is_some_and(|record| record.state == State::Live))
}

/// The collections, in name order.
pub(crate) fn collections(link: &Link) -> Result<Vec<Collection>> {
    let mut all = Vec::new();
    let mut after = encode::first_of(kind::OMAP);
    loop {
        let found = match link.read(STORE, |read| read.omap(&after, PAGE)) {
            Ok(found) => found,
            Err(failed) => return Err(read_error(failed)),
        };
        for (key, stored) in &found.omap {
            let collection = Collection::new(encode::key_of(key));
            if decoded(&collection, stored)?.state == State::Live {
                all.push(collection);
            }
        }
        match next(&found) {
            Some(next) => after = next,
            None => return Ok(all),
        }
    }
}

/// Behind what was found, if there is more.
fn next(found: &Found) -> Option<CString> {
    let (last, _) = found.omap.last().filter(|_| found.more)?;
    CString::new(last.clone()).ok()
}

/// Removes a collection that holds no object.
///
/// # Errors
/// [`Error::NotEmpty`]; [`Error::Contended`]; [`Error::Unknown`]: it is half removed.
pub(crate) fn remove(link: &Link, collection: &Collection) -> Result<()> {
    for _ in 0..ATTEMPTS {
        let Some(found) = record(link, collection)? else { return Ok(()) };
        let removing = found.become_(State::Removing);
        if found.state != State::Removing {
            let is_gone = |id: &ObjectId| Ok(!link.is_there(id)?);
            for number in 0..SHARDS {
                empty(link, collection, &encode::shard(collection, number), is_gone)?;
            }
            if !replace(link, collection, Some(&found), Some(&removing))? {
                continue;
            }
        }
        return remove_rest(link, collection, &removing).map_err(|error| match error {
            Error::NotEmpty { .. } | Error::Unknown { .. } => error,
            error => Error::Unknown { cause: format!("collection {collection} is removed in part: {error}") },
        });
    }
    Err(contended(collection))
}

/// Seals the shards of a collection that is being removed, and then removes what is said of it; if an object was made
/// in it meanwhile, it is made whole again.
fn remove_rest(link: &Link, collection: &Collection, removing: &Record) -> Result<()> {
    for number in 0..SHARDS {
        let shard = encode::shard(collection, number);
        let mut attempts = 0;
        loop {
            let version = match empty(link, collection, &shard, |id| bury(link, id)) {
                Ok(Some(version)) => version,
                Ok(None) => break,
                Err(error @ Error::NotEmpty { .. }) => {
                    // With another token: another who removes it is late.
                    let making = Record { state: State::Making, token: token()? };
                    if replace(link, collection, Some(removing), Some(&making))? {
                        make_shards(link, collection, &making)?;
                        replace(link, collection, Some(&making), Some(&making.become_(State::Live)))?;
                    }
                    return Err(error);
                }
                Err(error) => return Err(error),
            };
            let mut write = Write::new();
            write.assert_version(version);
            write.compare_xattr(TOKEN, Compare::Equal, &removing.token);
            write.set_xattr(TOKEN, &sealed(&removing.token));
            write.remove_omap_range(encode::first_of(kind::NAME).as_bytes(), &encode::end_of(kind::NAME));
            match link.write(&shard, write) {
                Ok(_) => break,
                // It is sealed, or of a later one: another goes on with it.
                Err(failed) if matches!(failed.code, code::NOT_THERE | code::CANCELED) => break,
                Err(failed) if matches!(failed.code, code::OTHER_VERSION | code::LATER_VERSION) => {
                    attempts += 1;
                    if attempts == ATTEMPTS {
                        return Err(contended(collection));
                    }
                }
                Err(failed) => return Err(write_error(failed, &shard)),
            }
        }
    }
    // Another has done it, if it is another by now.
    replace(link, collection, Some(removing), None).map(drop)
}

/// The version of a shard whose names have no objects, as `is_gone` says; `None` if it is missing.
///
/// # Errors
/// [`Error::NotEmpty`].
fn empty(
    link: &Link,
    collection: &Collection,
    shard: &CStr,
    is_gone: impl Fn(&ObjectId) -> Result<bool>,
) -> Result<Option<u64>> {
    let mut after = encode::first_of(kind::NAME);
    let mut version = None;
    loop {
        let found = match link.read(shard, |read| read.omap_names(&after, PAGE)) {
            Ok(found) => found,
            Err(failed) if failed.code == code::NOT_THERE => return Ok(None),
            Err(failed) => return Err(error(failed, "reading", shard)),
        };
        for (key, _) in &found.omap {
            let object = ObjectId::new(collection.clone(), encode::name_of(key));
            if !is_gone(&object)? {
                return Err(Error::NotEmpty { collection: collection.to_string() });
            }
        }
        // Of a shard that changes meanwhile the first version is the one that counts.
        let version = *version.get_or_insert(found.version);
        match next(&found) {
            Some(next) => after = next,
            None => return Ok(Some(version)),
        }
    }
}

/// Puts a tomb where no object is, for good: who is to make one under a token of before finds it. False if an object is
/// there.
fn bury(link: &Link, id: &ObjectId) -> Result<bool> {
    let (link, object) = (link.of(id), encode::object(id));
    for _ in 0..ATTEMPTS {
        let mut write = Write::new();
        write.create(true);
        write.set_xattr(TOMB, &token()?);
        match link.write(&object, write) {
            Ok(_) => return Ok(true),
            Err(failed) if failed.code == code::THERE => {}
            // A tomb is all that may have been made.
            Err(failed) => return Err(error(failed, "writing", &object)),
        }
        match link.read(&object, |read| read.xattrs()) {
            Ok(found) => return Ok(found.xattrs.iter().any(|(name, _)| name == TOMB.to_bytes())),
            Err(failed) if failed.code == code::NOT_THERE => {}
            Err(failed) => return Err(error(failed, "reading", &object)),
        }
    }
    Err(contended(id.collection()))
}

/// Names of the objects of a collection above `after`, in order, at most `limit`.
///
/// # Errors
/// [`Error::NoCollection`].
pub(crate) fn list(link: &Link, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Result<Vec<Bytes>> {
    if !is_there(link, collection)? {
        return Err(no_collection(collection));
    }
    let mut names = Vec::new();
    let mut behind = after.map_or_else(|| encode::first_of(kind::NAME), encode::behind_name);
    while names.len() < limit {
        // As many of each shard as may be needed, and how far that is all there are.
        let wanted = (limit - names.len()).min(PAGE as usize);
        let mut found: Vec<Vec<u8>> = Vec::new();
        let mut whole_to: Option<Vec<u8>> = None;
        let shards: Vec<CString> = (0..SHARDS).map(|number| encode::shard(collection, number)).collect();
        let pages = link.read_all(&shards, |read| read.omap_names(&behind, wanted as u64));
        for (shard, page) in shards.iter().zip(pages) {
            let page = match page {
                Ok(page) => page,
                Err(failed) if failed.code == code::NOT_THERE => continue,
                Err(failed) => return Err(error(failed, "reading", shard)),
            };
            if page.more
                && let Some((last, _)) = page.omap.last()
            {
                whole_to = Some(whole_to.map_or_else(|| last.clone(), |to| to.min(last.clone())));
            }
            found.extend(page.omap.into_iter().map(|(key, _)| key));
        }
        found.sort_unstable();
        if let Some(to) = &whole_to {
            found.retain(|key| key <= to);
        }
        let Some(last) = found.last().cloned() else { break };
        let mut found: Vec<Vec<u8>> = found.iter().map(|key| encode::name_of(key)).collect();
        // Several have wanted to make it; the one before may be of the page before.
        found.dedup();
        found.retain(|name| names.last().is_none_or(|last: &Bytes| name[..] > last[..]));
        for some in found.chunks(LOOKS) {
            if names.len() == limit {
                break;
            }
            let some: Vec<ObjectId> = some.iter().map(|name| ObjectId::new(collection.clone(), name.clone())).collect();
            for (id, found) in some.iter().zip(link.look_all(&some)) {
                if found? && names.len() < limit {
                    names.push(id.name().clone());
                }
            }
        }
        if whole_to.is_none() {
            break;
        }
        behind = CString::new(last).unwrap_or_default();
    }
    Ok(names)
}

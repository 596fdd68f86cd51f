//! Collections and the names of their objects: RADOS lists objects in no order.
//!
//! ```text
//! store                    omap: collections → making, live or removing, with a token of its own
//! shards of a collection   omap: names of objects → a token of who added it; xattr: the token of the collection
//!
//! making → its shards, each with its token → live → removing → no shards → gone
//! ```
//!
//! Invariants:
//! 1. An object that is there has its name in its shard: the name is added before the object shows, and removed once it
//!    shows no more, under the token that was there before. A crash leaves names without objects, and no more.
//! 2. A name is only added to a shard that is there; a collection is removed with its shards, once what is named in
//!    each is gone for good. A client that meets one half made or half removed goes on with it.
//! 3. What is said of a collection changes only from what was read of it: a call that is late changes no later one.

use std::ffi::{CStr, CString};

use bytes::Bytes;
use esker_store::{Collection, Error, ObjectId, Result};

use crate::encode::{self, NASCENT, SHARDS, STORE, kind};
use crate::link::{Link, PAGE, code, error, found_in, write_error};
use crate::native::{Compare, Found, Write};

/// How often what others change is looked at again before it is given up.
const ATTEMPTS: usize = 20;
/// The xattr of a shard that holds the token of its collection.
const TOKEN: &CStr = c"token";
/// Objects that are looked at at once.
const LOOKS: usize = 64;

/// A token that no other client has.
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

    fn decode(collection: &Collection, stored: &[u8]) -> Result<Self> {
        let state = match stored.get(1) {
            Some(1) => Some(State::Making),
            Some(2) => Some(State::Live),
            Some(3) => Some(State::Removing),
            _ => None,
        };
        let damaged = || Error::Corrupt {
            offset: 0,
            what: format!("collection {collection} on Ceph: {}", stored.escape_ascii()),
        };
        Ok(Self { state: state.ok_or_else(damaged)?, token: stored.get(2..).unwrap_or_default().to_vec() })
    }

    fn become_(&self, state: State) -> Self {
        Self { state, token: self.token.clone() }
    }
}

fn no_collection(collection: &Collection) -> Error {
    Error::NoCollection { collection: collection.to_string() }
}

fn contended(collection: &Collection) -> Error {
    Error::Contended { what: format!("collection {collection}"), attempts: ATTEMPTS as u32 }
}

fn record(link: &Link, collection: &Collection) -> Result<Option<Record>> {
    let key = encode::omap(collection.name());
    match link.read(STORE, |read| read.omap_keys(&[&key])) {
        Ok(found) => found.omap.first().map(|(_, stored)| Record::decode(collection, stored)).transpose(),
        Err(failed) if failed.code == code::NOT_THERE => Err(Link::gone()),
        Err(failed) => Err(error(failed, "reading", STORE)),
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
            Err(failed) if failed.code == code::NOT_THERE => return Err(Link::gone()),
            Err(failed) => return Err(error(failed, "reading", STORE)),
        };
        for (key, stored) in &found.omap {
            let collection = Collection::new(encode::key_of(key));
            if Record::decode(&collection, stored)?.state == State::Live {
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
            for number in 0..SHARDS {
                empty(link, collection, &encode::shard(collection, number))?;
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

/// Removes the shards of a collection that is being removed, and then what is said of it; if an object was made in it
/// meanwhile, it is made whole again.
fn remove_rest(link: &Link, collection: &Collection, removing: &Record) -> Result<()> {
    for number in 0..SHARDS {
        let shard = encode::shard(collection, number);
        let mut attempts = 0;
        loop {
            let version = match empty(link, collection, &shard) {
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
            write.remove();
            match link.write(&shard, write) {
                Ok(_) => break,
                // It is of a later one: this one was removed by another.
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

/// The version of a shard whose names have no objects; `None` if it is missing.
fn empty(link: &Link, collection: &Collection, shard: &CStr) -> Result<Option<u64>> {
    let mut after = encode::first_of(kind::OMAP);
    let mut version = None;
    loop {
        let found = match link.read(shard, |read| read.omap_names(&after, PAGE)) {
            Ok(found) => found,
            Err(failed) if failed.code == code::NOT_THERE => return Ok(None),
            Err(failed) => return Err(error(failed, "reading", shard)),
        };
        for (name, _) in &found.omap {
            let object = encode::object(&ObjectId::new(collection.clone(), encode::key_of(name)));
            // Its maker, if there is one, finds that it is gone, and then that the collection is.
            if !fence(link, collection, &object)? {
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

/// Removes an object that is being made or removed; false if it shows.
fn fence(link: &Link, collection: &Collection, object: &CStr) -> Result<bool> {
    for _ in 0..ATTEMPTS {
        let found = match link.read(object, |read| read.xattrs()) {
            Ok(found) => found,
            Err(failed) if failed.code == code::NOT_THERE => return Ok(true),
            Err(failed) => return Err(error(failed, "reading", object)),
        };
        let nascent = found.xattrs.iter().find(|(name, _)| name == NASCENT.to_bytes());
        let Some((_, token)) = nascent else { return Ok(false) };
        let mut write = Write::new();
        write.compare_xattr(NASCENT, Compare::Equal, token);
        write.remove();
        match link.write(object, write) {
            Ok(_) => return Ok(true),
            Err(failed) if failed.code == code::NOT_THERE => return Ok(true),
            // It shows by now, or another has taken it over.
            Err(failed) if failed.code == code::CANCELED => {}
            // An object that does not show is all that may have been changed.
            Err(failed) => return Err(error(failed, "writing", object)),
        }
    }
    Err(contended(collection))
}

/// Adds the name of an object, with a token.
///
/// # Errors
/// [`Error::NoCollection`].
pub(crate) fn add(link: &Link, id: &ObjectId, token: &[u8]) -> Result<()> {
    let shard = encode::shard_of(id);
    let mut write = Write::new();
    write.assert_exists();
    write.set_omap(&[(&encode::omap(id.name()), token)]);
    match link.write(&shard, write) {
        Ok(_) => Ok(()),
        Err(failed) if failed.code == code::NOT_THERE => Err(no_collection(id.collection())),
        // Only a name was added, if anything.
        Err(failed) => Err(error(failed, "writing", &shard)),
    }
}

/// The token of an object's name.
pub(crate) fn token_of(link: &Link, id: &ObjectId) -> Result<Option<Vec<u8>>> {
    let (shard, key) = (encode::shard_of(id), encode::omap(id.name()));
    match link.read(&shard, |read| read.omap_keys(&[&key])) {
        Ok(found) => Ok(found.omap.into_iter().next().map(|(_, token)| token)),
        Err(failed) if failed.code == code::NOT_THERE => Ok(None),
        Err(failed) => Err(error(failed, "reading", &shard)),
    }
}

/// Removes the name of an object that shows no more, if no client has added it since. A failure leaves it there.
pub(crate) fn drop_name(link: &Link, id: &ObjectId, token: &[u8]) {
    let (shard, key) = (encode::shard_of(id), encode::omap(id.name()));
    let mut write = Write::new();
    write.compare_omap(&key, Compare::Equal, token);
    write.remove_omap(&[&key]);
    let _ = link.write(&shard, write);
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
    let mut behind = after.map_or_else(
        || encode::first_of(kind::OMAP),
        // Behind its own key, which ends it.
        |after| CString::new(encode::omap(after)).unwrap_or_default(),
    );
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
        for some in found.chunks(LOOKS) {
            if names.len() == limit {
                break;
            }
            let some: Vec<Bytes> = some.iter().map(|key| encode::key_of(key)).collect();
            let objects: Vec<CString> =
                some.iter().map(|name| encode::object(&ObjectId::new(collection.clone(), name.clone()))).collect();
            let looks = link.read_all(&objects, |read| read.compare_xattr(NASCENT, Compare::Equal, b""));
            for ((name, object), look) in some.into_iter().zip(&objects).zip(looks) {
                if found_in(look, object)?.is_some() && names.len() < limit {
                    names.push(name);
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

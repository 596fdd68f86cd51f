//! Collections and the names of their objects: RADOS lists objects in no order.
//!
//! ```text
//! store                    omap: collections
//! shards of a collection   omap: names of objects → a token of who added it
//! ```
//!
//! Invariants:
//! 1. An object that is there has its name in its shard: the name is added before the object shows, and removed once it
//!    shows no more, under the token that was there before. A crash leaves names without objects, and no more.
//! 2. A name is only added to a shard that is there; a collection is removed with its shards.

use std::ffi::{CStr, CString};

use bytes::Bytes;
use esker_store::{Collection, Error, ObjectId, Result};

use crate::encode::{self, NASCENT, SHARDS, STORE, kind};
use crate::link::{Link, PAGE, code, error, write_error};
use crate::native::{Compare, Found, Write};

/// How often a collection that others write to is looked through again before its removal is given up.
const ATTEMPTS: usize = 20;

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

/// Makes a collection, or what is missing of it.
pub(crate) fn create(link: &Link, collection: &Collection) -> Result<()> {
    for number in 0..SHARDS {
        let shard = encode::shard(collection, number);
        let mut write = Write::new();
        write.create(false);
        link.write(&shard, write).map_err(|failed| write_error(failed, &shard))?;
    }
    let mut write = Write::new();
    write.set_omap(&[(&encode::omap(collection.name()), &encode::value(b""))]);
    link.write(STORE, write).map_err(|failed| write_error(failed, STORE))?;
    Ok(())
}

/// Whether there is such a collection.
pub(crate) fn is_there(link: &Link, collection: &Collection) -> Result<bool> {
    let key = encode::omap(collection.name());
    match link.read(STORE, |read| read.omap_keys(&[&key])) {
        Ok(found) => Ok(!found.omap.is_empty()),
        Err(failed) if failed.code == code::NOT_THERE => Ok(false),
        Err(failed) => Err(error(failed, "reading", STORE)),
    }
}

fn no_collection(collection: &Collection) -> Error {
    Error::NoCollection { collection: collection.to_string() }
}

/// The collections, in name order.
pub(crate) fn collections(link: &Link) -> Result<Vec<Collection>> {
    let mut all = Vec::new();
    let mut after = encode::first_of(kind::OMAP);
    loop {
        let found = match link.read(STORE, |read| read.omap_names(&after, PAGE)) {
            Ok(found) => found,
            Err(failed) if failed.code == code::NOT_THERE => return Ok(all),
            Err(failed) => return Err(error(failed, "reading", STORE)),
        };
        all.extend(found.omap.iter().map(|(key, _)| Collection::new(encode::key_of(key))));
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
/// [`Error::NotEmpty`]; [`Error::Contended`].
pub(crate) fn remove(link: &Link, collection: &Collection) -> Result<()> {
    if !is_there(link, collection)? {
        return Ok(());
    }
    for _ in 0..ATTEMPTS {
        let mut versions = Vec::new();
        for number in 0..SHARDS {
            let shard = encode::shard(collection, number);
            versions.push((empty(link, collection, &shard)?, shard));
        }
        let mut gone = true;
        for (version, shard) in &versions {
            let Some(version) = version else { continue };
            let mut write = Write::new();
            write.assert_version(*version);
            write.remove();
            match link.write(shard, write) {
                Ok(_) => {}
                Err(failed) if failed.code == code::NOT_THERE => {}
                Err(failed) if matches!(failed.code, code::OTHER_VERSION | code::LATER_VERSION) => gone = false,
                Err(failed) => return Err(write_error(failed, shard)),
            }
        }
        if gone {
            let mut write = Write::new();
            write.remove_omap(&[&encode::omap(collection.name())]);
            link.write(STORE, write).map_err(|failed| write_error(failed, STORE))?;
            return Ok(());
        }
        // A name was added meanwhile: the shards that went are made again.
        create(link, collection)?;
    }
    Err(Error::Contended { what: format!("removing collection {collection}"), attempts: ATTEMPTS as u32 })
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
            if link.look(&object, |_| {})?.is_some() {
                return Err(Error::NotEmpty { collection: collection.to_string() });
            }
            // Its maker, if there is one, finds that it is gone, and then that the collection is.
            fence(link, &object)?;
        }
        // Of a shard that changes meanwhile the first version is the one that counts.
        let version = *version.get_or_insert(found.version);
        match next(&found) {
            Some(next) => after = next,
            None => return Ok(Some(version)),
        }
    }
}

/// Removes an object that is being made or removed.
fn fence(link: &Link, object: &CStr) -> Result<()> {
    let Ok(found) = link.read(object, |read| read.xattrs()) else { return Ok(()) };
    let Some((_, token)) = found.xattrs.iter().find(|(name, _)| name == NASCENT.to_bytes()) else { return Ok(()) };
    let mut write = Write::new();
    write.compare_xattr(NASCENT, Compare::Equal, token);
    write.remove();
    match link.write(object, write) {
        Err(failed) if !matches!(failed.code, code::NOT_THERE | code::CANCELED) => Err(write_error(failed, object)),
        _ => Ok(()),
    }
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
        for number in 0..SHARDS {
            let shard = encode::shard(collection, number);
            let page = match link.read(&shard, |read| read.omap_names(&behind, wanted as u64)) {
                Ok(page) => page,
                Err(failed) if failed.code == code::NOT_THERE => continue,
                Err(failed) => return Err(error(failed, "reading", &shard)),
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
        for key in found {
            let name = encode::key_of(&key);
            let object = encode::object(&ObjectId::new(collection.clone(), name.clone()));
            if names.len() < limit && link.look(&object, |_| {})?.is_some() {
                names.push(name);
            }
        }
        if whole_to.is_none() {
            break;
        }
        behind = CString::new(last).unwrap_or_default();
    }
    Ok(names)
}

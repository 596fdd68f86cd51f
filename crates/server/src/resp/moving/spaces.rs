//! Where the keys of slots are: in databases of the Redis protocol, and in the namespace that Thrift serves.
//!
//! [`Located`] → namespace and key in it → read, put or removed
//!
//! Invariant: a key is of the slot that its clients take it for: a byte key by its hash, an int key of Thrift's by its
//! range. Int keys of a database are hashed as the text that clients send.

use bytes::Bytes;
use esker_kv::{Key, Kind, Namespace, OwnedKey, Scan, Txn};

use crate::resp::keyspace::{Keyspace, key_text};
use crate::resp::moving::MoveError;
use crate::resp::moving::gate::{Located, Space};

type Result<T> = std::result::Result<T, MoveError>;

/// What is called with a key: where it is, its slot, and itself.
type EachKey<'e> = dyn FnMut(Space, u16, &[u8]) -> Result<()> + 'e;

/// Keys that are looked at with one call.
const PAGE_KEYS: usize = 4_096;

/// All of them.
pub(super) struct Spaces<'k> {
    keyspace: &'k Keyspace,
    thrift: Option<Namespace>,
}

/// A key of Thrift's namespace as it is located.
pub(crate) fn bytes_of(key: &OwnedKey) -> Bytes {
    match key {
        OwnedKey::Bytes(key) => key.clone(),
        OwnedKey::Int(key) => Bytes::copy_from_slice(&key.to_be_bytes()),
    }
}

impl<'k> Spaces<'k> {
    pub(super) fn of(keyspace: &'k Keyspace) -> Result<Self> {
        Ok(Self { keyspace, thrift: keyspace.thrift()? })
    }

    /// That which Thrift serves.
    ///
    /// # Errors
    /// It serves none.
    pub(super) fn thrift(&self) -> Result<&Namespace> {
        self.thrift.as_ref().ok_or(MoveError::Malformed("a key of a namespace that no server of this chain serves"))
    }

    /// Where a key is.
    ///
    /// # Errors
    /// [`MoveError::Malformed`]; the store's.
    pub(super) fn locate<'s>(&'s self, (space, key): &'s Located) -> Result<(&'s Namespace, Key<'s>)> {
        let Space::Database(index) = *space else {
            let thrift = self.thrift()?;
            let int = || <[u8; 8]>::try_from(&key[..]).map(u64::from_be_bytes);
            return match thrift.kind() {
                Kind::Bytes => Ok((thrift, Key::Bytes(key))),
                Kind::Int => Ok((thrift, Key::Int(int().map_err(|_| MoveError::Malformed("an int key of 8 bytes"))?))),
            };
        };
        Ok(self.keyspace.database(index)?.locate(key))
    }

    /// The slot of a key.
    ///
    /// # Errors
    /// Those of [`Spaces::locate`].
    pub(super) fn slot_of(&self, key: &Located) -> Result<u16> {
        match key.0 {
            Space::Database(_) => Ok(esker_kv::slot_of(&key.1)),
            Space::Thrift => Ok(self.locate(key)?.1.slot()),
        }
    }

    /// Has a transaction that holds the key remove it, with all that belongs to it.
    pub(super) fn remove(&self, txn: &mut Txn<'_>, key: &Located) -> Result<()> {
        match key.0 {
            Space::Database(index) => {
                self.keyspace.remove(txn, self.keyspace.database(index)?, &key.1)?;
            }
            Space::Thrift => {
                let (namespace, key) = self.locate(key)?;
                txn.remove(namespace, key);
            }
        }
        Ok(())
    }

    /// Calls `each` with all keys that there are, and their slots.
    ///
    /// # Errors
    /// [`MoveError::Over`] where `goes_on` says no; those of `each`; the store's.
    pub(super) fn each_key(&self, goes_on: &dyn Fn() -> bool, each: &mut EachKey<'_>) -> Result<()> {
        for database in self.keyspace.open_databases() {
            for namespace in database.namespaces() {
                each_of(namespace, goes_on, &mut |key| {
                    let text = key_text(key);
                    each(Space::Database(database.index), esker_kv::slot_of(&text), &text)
                })?;
            }
        }
        let Some(thrift) = &self.thrift else { return Ok(()) };
        each_of(thrift, goes_on, &mut |key| each(Space::Thrift, key.as_key().slot(), &bytes_of(key)))
    }
}

fn each_of(
    namespace: &Namespace,
    goes_on: &dyn Fn() -> bool,
    each: &mut dyn FnMut(&OwnedKey) -> Result<()>,
) -> Result<()> {
    let mut scan = Scan::all().keys().limited(PAGE_KEYS);
    loop {
        if !goes_on() {
            return Err(MoveError::Over);
        }
        let page = namespace.scan(&scan).wait()?;
        page.iter().try_for_each(|(key, _)| each(key))?;
        match page.last() {
            Some((last, _)) => scan = scan.after(last.clone()),
            None => return Ok(()),
        }
    }
}

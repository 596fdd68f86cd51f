//! [`RadosStore`]: the waist on a pool of a Ceph cluster.
//!
//! [`RadosStore::open`] → format of the store → submits ([`crate::submits`], [`crate::change`], [`crate::names`]),
//! reads ([`crate::reads`])
//!
//! Invariants:
//! 1. What was acknowledged is durable: OSDs acknowledge what they have synced. A sync only waits for what is under
//!    way.
//! 2. A submit of an object is begun when the call returns, or waits for one before it that Ceph has not answered, and
//!    ends within a time. Collections are made and removed while the caller waits.

use std::ffi::CStr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use esker_store::limits::TRANSACTION_BYTES_MAX;
use esker_store::{
    Capability, Change, Changed, Collection, CommitCursor, CommitEntry, CommitSeq, Completion, DataRun, Error,
    ObjectId, ObjectStore, OmapScan, Op, Result, Session, SlotScan, Stat, Transaction, Watching,
};

use crate::encode::{self, STORE};
use crate::entries::Entries;
use crate::fold::{Data, Fold};
use crate::link::{Link, code, error, write_error};
use crate::native::{Pool, Read, Write};
use crate::notices::Notices;
use crate::options::{DataPool, OpenError, Options};
use crate::submits::Submits;
use crate::{change, names, reads};

const BACKEND: &str = "rados";
/// The xattr of the store's object that tells its format.
const FORMAT: &CStr = c"format";
/// The xattr of the object in the store's place in a data pool: the number of the pool that the store is in.
const CLAIM: &CStr = c"claim";
/// The xattr of the store's object that tells its data pool.
const DATA: &CStr = c"data";
/// The format that this code writes.
const VERSION: u64 = 2;

/// Largest object that OSDs take by default (`osd_max_object_size`), in bytes, and one less: no write begins, and no
/// truncation ends, there.
const OBJECT_BYTES_MAX: u64 = (128 << 20) - 1;

/// OSDs refuse a client that was shut out for so long: 30 days. A client that has slept for longer has no connection.
const SHUT_OUT_SECONDS: u32 = 30 * 24 * 60 * 60;

/// An object store on a pool of a Ceph cluster, in one namespace of it.
pub struct RadosStore {
    link: Link,
    entries: Arc<Entries>,
    submits: Arc<Submits>,
    notices: Arc<Notices>,
    /// How it was opened, if that is known: it can be opened again.
    opened_by: Option<(String, Options)>,
}

impl RadosStore {
    /// Opens the store in the pool's namespace; `None` if there is none and `create` does not say to make it. `data`:
    /// the data pool of a store that is made; one that is there has the one that it was made with.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(pool: Pool, create: bool, data: Option<&DataPool>) -> std::result::Result<Option<Self>, OpenError> {
        let mut link = Link::new(pool);
        if create {
            make(&link, data)?;
        }
        let found = match link.read(STORE, Read::xattrs) {
            Ok(found) => found,
            Err(failed) if failed.code == code::NOT_THERE && !create => return Ok(None),
            Err(failed) => return Err(error(failed, "reading", STORE).into()),
        };
        let stored = |name: &CStr| {
            found.xattrs.iter().find(|(found, _)| found == name.to_bytes()).map(|(_, value)| value.as_slice())
        };
        if let Some(claim) = stored(CLAIM) {
            let why = format!("it holds the data of disks of the store of this name in {}", claimant(claim));
            return Err(Error::Invalid { what: "store on Ceph", why }.into());
        }
        if stored(FORMAT) != Some(&encode::number_value(VERSION)) {
            let why = format!("it has another format than {VERSION}, which is the one known here");
            return Err(Error::Invalid { what: "store on Ceph", why }.into());
        }
        let has = stored(DATA).map(DataPool::decode).transpose()?;
        if let Some(wanted) = data
            && has.as_ref().is_none_or(|has| has.pool != wanted.pool)
        {
            let has = has.map_or_else(|| "none".into(), |has| format!("{:?}", has.pool));
            let why = format!("it was made with {has}, which stays; {:?} was asked for", wanted.pool);
            return Err(Error::Invalid { what: "data pool of the store", why }.into());
        }
        if let Some(DataPool { pool, holds }) = has {
            let data = Link::new(link.pool.beside(&pool)?);
            check_claim(&link, &data, &pool)?;
            link = link.with_data(data.pool, holds);
        }
        let entries = Entries::new(link.clone());
        let submits = Submits::new(link.clone(), Arc::clone(&entries));
        let notices = Notices::new(link.clone());
        Ok(Some(Self { link, entries, submits, notices, opened_by: None }))
    }

    /// As [`Options::sure_within`], from now on.
    pub fn set_sure_within(&self, time: Duration) {
        self.link.set_sure(time);
    }

    pub(crate) fn opened_by(mut self, place: &str, options: &Options) -> Self {
        // It is there, with the data pool that it has.
        self.notices.set_timeout(options.timeout);
        self.set_sure_within(options.sure_within);
        let again = Options { create: false, data: None, ..options.clone() };
        self.opened_by = Some((place.to_owned(), again));
        self
    }

    /// What the names of all sessions of this store begin with: a copy of the store has others.
    fn sessions_begin(&self) -> Result<String> {
        let pool = &self.link.pool;
        let cluster = pool.cluster().ok_or_else(Link::gone)?;
        let id = cluster.id().map_err(|error| Error::io("asking Ceph for its id", std::io::Error::other(error)))?;
        Ok(format!("{id}/{}/{}/", pool.id(), pool.namespace()))
    }

    fn begin(&self, txn: Transaction) -> Result<Completion<CommitSeq>> {
        txn.check()?;
        let mut object: Option<&ObjectId> = None;
        let mut changes: Vec<&Change> = Vec::new();
        let guarded = txn.guards.iter().map(|guard| &guard.object);
        let changed = txn.ops.iter().filter_map(|op| if let Op::Object(object, _) = op { Some(object) } else { None });
        for other in guarded.chain(changed) {
            if *object.get_or_insert(other) != other {
                return Err(Error::Unsupported { backend: BACKEND, what: "change several objects at once" });
            }
        }
        for op in &txn.ops {
            if let Op::Object(_, change) = op {
                changes.push(change);
            }
        }
        let Some(fold) = Fold::of(changes.into_iter()) else {
            return Err(Error::Unsupported { backend: BACKEND, what: "clone or rename objects" });
        };
        for step in &fold.data {
            let end = match step {
                Data::Write { offset, data } => offset + data.len() as u64,
                Data::Zero { offset, len } => offset + len,
                Data::Truncate { size } => *size,
            };
            if end > OBJECT_BYTES_MAX {
                let limit = "osd_max_object_size";
                return Err(Error::TooLarge { what: "object", len: end, limit, max: OBJECT_BYTES_MAX });
            }
        }
        let object = object.cloned();
        if let Some(object) = &object
            && !self.link.of(object).has_keys
            && !(fold.has_no_keys() && txn.guards.iter().all(|guard| change::key_of(&guard.condition).is_none()))
        {
            return Err(Error::Unsupported { backend: BACKEND, what: "keep keys and slots in a data pool" });
        }
        let collections = txn.ops.iter().filter(|op| !matches!(op, Op::Object(..))).count();
        if collections > 0 {
            self.change_collections(&txn, object.as_ref(), collections)?;
        }
        Ok(match object {
            Some(object) => self.submits.begin(object, txn.guards.into_vec(), fold, txn.gives_back),
            None => Completion::ready(Ok(self.submits.next_seq())),
        })
    }

    /// Makes and removes collections, which the caller waits for.
    fn change_collections(&self, txn: &Transaction, object: Option<&ObjectId>, count: usize) -> Result<()> {
        if let Some(object) = object {
            let makes = |op: &Op| matches!(op, Op::CreateCollection(collection) if collection == object.collection());
            if !txn.ops.iter().take(count).all(makes) {
                return Err(Error::Unsupported { backend: BACKEND, what: "change objects and collections at once" });
            }
            // Its collection is made only if the guards hold.
            change::change(&self.link, &self.entries, object, &txn.guards, &Fold::default(), None)?;
        } else if count > 1 && txn.ops.iter().any(|op| matches!(op, Op::RemoveCollection(_))) {
            return Err(Error::Unsupported { backend: BACKEND, what: "change several collections at once" });
        }
        for op in &txn.ops {
            match op {
                Op::CreateCollection(collection) => names::create(&self.link, collection)?,
                Op::RemoveCollection(collection) => names::remove(&self.link, collection)?,
                Op::Object(..) => {}
            }
        }
        Ok(())
    }
}

/// Makes the store's object, if there is none.
fn make(link: &Link, data: Option<&DataPool>) -> std::result::Result<(), OpenError> {
    match link.read(STORE, Read::stat) {
        Ok(_) => return Ok(()),
        Err(failed) if failed.code == code::NOT_THERE => {}
        Err(failed) => return Err(error(failed, "reading", STORE).into()),
    }
    let mut write = Write::new();
    write.create(true);
    write.set_xattr(FORMAT, &encode::number_value(VERSION));
    if let Some(data) = data {
        claim(link, &Link::new(link.pool.beside(&data.pool)?), &data.pool)?;
        write.set_xattr(DATA, &data.encode());
    }
    // Refused by pools of erasure codes.
    write.remove_omap(&[b"none"]);
    match link.write(STORE, write) {
        Ok(_) => Ok(()),
        Err(failed) if failed.code == code::THERE => Ok(()),
        Err(failed) if failed.code == code::NOT_SUPPORTED => {
            let why = "the pool keeps no omap: it is erasure-coded. Keep the store in a replicated one, and the bytes \
                of disks here (data_pool)";
            Err(Error::Invalid { what: "pool of Ceph", why: why.into() }.into())
        }
        Err(failed) => Err(write_error(failed, STORE).into()),
    }
}

/// Who has claimed a namespace of a data pool, by what stands in [`CLAIM`].
fn claimant(claim: &[u8]) -> String {
    let number = encode::value_of(claim).and_then(|value| Some(i64::from_le_bytes(value[..].try_into().ok()?)));
    number.map_or_else(|| "an unknown pool".into(), |number| format!("pool number {number}"))
}

fn own_claim(link: &Link) -> Vec<u8> {
    encode::number_value(link.pool.id() as u64)
}

/// Claims the namespace in the data pool for the store, since stores of the same name in other pools would have the
/// same objects there; and looks whether they can be overwritten, which erasure-coded pools refuse until they are told
/// otherwise.
fn claim(link: &Link, data: &Link, name: &str) -> Result<()> {
    if data.pool.id() == link.pool.id() {
        let why = format!("{name:?} is the pool of the store itself: leave data_pool out");
        return Err(Error::Invalid { what: "data pool of Ceph", why });
    }
    let mut write = Write::new();
    write.create(true);
    write.set_xattr(CLAIM, &own_claim(link));
    write.write(0, b"data");
    match data.write(STORE, write) {
        Ok(_) => {}
        // A client has begun to make this store, or another.
        Err(failed) if failed.code == code::THERE => check_claim(link, data, name)?,
        Err(failed) => return Err(write_error(failed, STORE)),
    }
    let mut write = Write::new();
    write.write(0, b"data");
    match data.write(STORE, write) {
        Ok(_) => Ok(()),
        Err(failed) if failed.code == code::NOT_SUPPORTED => {
            let mut write = Write::new();
            write.remove();
            // What is left only keeps others from using the name.
            let _ = data.write(STORE, write);
            let why = format!(
                "it takes no overwrites: `ceph osd pool set {name} allow_ec_overwrites true`, with OSDs on BlueStore"
            );
            Err(Error::Invalid { what: "data pool of Ceph", why })
        }
        Err(failed) => Err(write_error(failed, STORE)),
    }
}

/// Whether the namespace in the data pool is the store's.
fn check_claim(link: &Link, data: &Link, name: &str) -> Result<()> {
    let invalid = |why| Err(Error::Invalid { what: "data pool of Ceph", why });
    let found = match data.read(STORE, Read::xattrs) {
        Ok(found) => found,
        Err(failed) if failed.code == code::NOT_THERE => {
            return invalid(format!("{name:?} does not know of the store: it is another pool than it was made with"));
        }
        Err(failed) => return Err(error(failed, "reading", STORE)),
    };
    match found.xattrs.iter().find(|(name, _)| name == CLAIM.to_bytes()) {
        Some((_, claim)) if *claim == own_claim(link) => Ok(()),
        Some((_, claim)) => invalid(format!(
            "{name:?} holds the data of the store of this name in {}: choose another name",
            claimant(claim)
        )),
        None => invalid(format!("{name:?} holds a store of this name itself: choose another name")),
    }
}

impl Drop for RadosStore {
    fn drop(&mut self) {
        let (link, submits, notices) = (self.link.clone(), Arc::clone(&self.submits), Arc::clone(&self.notices));
        let end = move || {
            // Each ends within a time, and may begin operations until then.
            let _ = submits.sync().wait();
            submits.close();
            notices.close();
            link.wait();
        };
        // A thread that tells cannot wait for others to, nor one that works on submits or notices for those to end.
        if Pool::tells() || Submits::works() || Notices::works() {
            drop(std::thread::spawn(end));
        } else {
            end();
        }
    }
}

impl ObjectStore for RadosStore {
    fn capability(&self) -> Capability {
        Capability {
            backend: BACKEND,
            atomic_across_objects: false,
            atomic_across_collections: false,
            native_slots: true,
            commit_order: false,
            clone: false,
            cheap_clone: false,
            persistent: true,
            compresses: false,
            transaction_bytes_max: TRANSACTION_BYTES_MAX as u64,
            transaction_ops_max: change::OPS_MAX as u64,
            object_bytes_max: OBJECT_BYTES_MAX,
            exact_extents: false,
            reverse_scans: true,
            watches: true,
            sessions: self.opened_by.is_some(),
            afar: true,
        }
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        self.begin(txn).unwrap_or_else(|error| Completion::ready(Err(error)))
    }

    fn watch(&self, object: &ObjectId, changed: Changed) -> Result<Box<dyn Watching>> {
        self.notices.watch(object, changed)
    }

    fn notify(&self, object: &ObjectId) {
        self.notices.notify(object);
    }

    /// A client of the cluster of its own, by whose address OSDs can be told to refuse it.
    fn session(&self) -> Result<Session> {
        let Some((place, options)) = &self.opened_by else {
            return Err(Error::Unsupported { backend: BACKEND, what: "open a store again that was given a pool" });
        };
        let what = || format!("opening rados:{place} once more");
        let store = Self::connect(place, options).map_err(|error| match error {
            OpenError::Store(error) => error,
            other => Error::io(what(), std::io::Error::other(other)),
        })?;
        let cluster = store.link.pool.cluster().ok_or_else(Link::gone)?;
        let address = cluster.address().map_err(|error| Error::io(what(), std::io::Error::other(error)))?;
        let name = Bytes::from(store.sessions_begin()? + &address);
        Ok(Session { store: Arc::new(store), name })
    }

    fn shut_out(&self, session: &[u8]) -> Result<()> {
        let begin = self.sessions_begin()?;
        let address = std::str::from_utf8(session).ok().and_then(|session| session.strip_prefix(&begin));
        let address = address.ok_or_else(|| Error::Invalid {
            what: "session on Ceph",
            why: format!("{:?} is none of this store", session.escape_ascii().to_string()),
        })?;
        let cluster = self.link.pool.cluster().ok_or_else(Link::gone)?;
        cluster.shut_out(address, SHUT_OUT_SECONDS).map_err(|error| {
            let invalid = error.source.raw_os_error() == Some(code::INVALID);
            let why = error.to_string();
            if invalid { Error::Invalid { what: "session on Ceph", why } } else { Error::Unknown { cause: why } }
        })
    }

    fn sync(&self) -> Completion<CommitSeq> {
        self.submits.sync()
    }

    fn stat(&self, object: &ObjectId) -> Completion<Option<Stat>> {
        Completion::ready(reads::stat(&self.link, object))
    }

    fn size(&self, object: &ObjectId) -> Completion<Option<u64>> {
        reads::size(&self.link, object)
    }

    fn read(&self, object: &ObjectId, range: Range<u64>) -> Completion<Bytes> {
        reads::bytes(&self.link, object, range, OBJECT_BYTES_MAX)
    }

    fn extents(&self, object: &ObjectId, range: Range<u64>) -> Completion<Vec<DataRun>> {
        Completion::ready(reads::extents(&self.link, object, range, OBJECT_BYTES_MAX))
    }

    fn xattr(&self, object: &ObjectId, name: &[u8]) -> Completion<Option<Bytes>> {
        reads::xattr(&self.link, object, name)
    }

    fn xattrs(&self, object: &ObjectId) -> Completion<Vec<(Bytes, Bytes)>> {
        Completion::ready(reads::xattrs(&self.link, object))
    }

    fn omap_get(&self, object: &ObjectId, key: &[u8]) -> Completion<Option<Bytes>> {
        reads::value(&self.link, object, &encode::omap(key))
    }

    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        reads::values(&self.link, object, keys.iter().map(|key| encode::omap(key)).collect())
    }

    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        reads::omap(&self.link, object, scan)
    }

    fn slot_get(&self, object: &ObjectId, index: u64) -> Completion<Option<Bytes>> {
        reads::value(&self.link, object, &encode::slot(index))
    }

    fn slot_get_many(&self, object: &ObjectId, indexes: &[u64]) -> Completion<Vec<Option<Bytes>>> {
        reads::values(&self.link, object, indexes.iter().map(|index| encode::slot(*index)).collect())
    }

    fn slot_scan(&self, object: &ObjectId, scan: &SlotScan) -> Completion<Vec<(u64, Bytes)>> {
        reads::slots(&self.link, object, scan)
    }

    fn commit_scan(
        &self,
        _: &Collection,
        _: &[u8],
        _: CommitCursor,
        _: usize,
    ) -> Completion<(Vec<CommitEntry>, Option<CommitCursor>)> {
        Completion::ready(Err(Error::Unsupported { backend: BACKEND, what: "scan in commit order" }))
    }

    fn collections(&self) -> Completion<Vec<Collection>> {
        Completion::ready(names::collections(&self.link))
    }

    fn list(&self, collection: &Collection, after: Option<&[u8]>, limit: usize) -> Completion<Vec<Bytes>> {
        Completion::ready(names::list(&self.link, collection, after, limit))
    }
}

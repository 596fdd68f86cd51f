//! Databases on namespaces: where a key is kept, strings and hashes, what goes when a key goes.
//!
//! Database N: strings and heads of hashes in `dbN` (bytes) or, for a plain u64 key of a database configured so, in
//! `dbN.int`; fields of hashes in `dbN.fields`.
//!
//! ```text
//! entry of a key     tag 0: the string | tag 1: id u64 LE, number of fields u64 LE
//! dbN.fields         id u64 BE, field → value
//!                    0 u64 BE, expiry u64 BE (unix ms), id u64 BE → key of the hash that expires then
//! server             "epoch" → u64 LE, one more at each start: upper 24 bits of new ids, lower 40 count from 1
//! ```
//!
//! Where `dbN` lies in partitions, fields are its companion, so that they change with their head: the lower bits of an
//! id are the number of its key's partition, and what would begin with 0 begins with that number.
//!
//! Invariants:
//! 1. A hash has at least one field, and its id was never used before in this store.
//! 2. A hash that expires has exactly one key under id 0; whatever changes its expiry, name or existence changes that
//!    key.
//! 3. Fields are removed with their head, in the same transaction; those of an expired one by
//!    [`sweep`](Keyspace::sweep).
//! 4. All of these changes happen under the stripe of the hash's key.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use esker_kv::{Compression, Durability, Entry, Key, Kind, Kv, Namespace, OwnedKey, Result, Scan, Txn};
use esker_store::number::{number, number_from};
use parking_lot::RwLock;

use crate::resp::config::{Config, DATABASES};
use crate::resp::kinds::Kinds;
use crate::resp::moving::gate::Gate;
use crate::resp::moving::records;
use crate::resp::number::{i64_text, parse_u64, push_u64};
use crate::resp::watch::Watches;

/// Tag of a string's entry.
pub(crate) const STRING: u8 = 0;
/// Tag of the head of a hash.
pub(crate) const HASH: u8 = 1;

/// Lower bits of an id count within one start of the server.
const ID_COUNT_BITS: u32 = 40;
/// Hashes swept at once.
const SWEEP_ENTRIES: usize = 256;

/// One of the databases.
pub(crate) struct Database {
    pub(crate) index: u8,
    bytes: Namespace,
    int: Option<Namespace>,
    pub(crate) fields: Namespace,
    /// Bits of the numbers of partitions; 0: it lies whole.
    partition_bits: u32,
    /// It is known at once how many keys there are.
    counts_now: bool,
}

impl Database {
    fn open(kv: &Kv, index: u8, int: bool, (reading, compression): (bool, Option<Compression>)) -> Result<Self> {
        let open = |name: String, kind| {
            if reading {
                return kv.existing(&name, kind);
            }
            let namespace = kv.namespace_with(&name, kind, compression.unwrap_or_default())?;
            compression.map_or(Ok(()), |compression| kv.set_compression(&name, compression))?;
            Ok::<_, esker_kv::Error>(namespace)
        };
        let bytes = open(format!("db{index}"), Kind::Bytes)?;
        if int && !kv.is_whole() {
            let (backend, what) = (kv.store().capability().backend, "keep int keys beside others in a database");
            return Err(esker_store::Error::Unsupported { backend, what }.into());
        }
        if reading
            && !int
            && !matches!(open(format!("db{index}.int"), Kind::Int), Err(esker_kv::Error::NoNamespace { .. }))
        {
            let why = format!("database {index} may hold int keys: name it among the int databases, as its head does");
            return Err(esker_store::Error::Invalid { what: "configuration", why }.into());
        }
        let int = if int { Some(open(format!("db{index}.int"), Kind::Int)?) } else { None };
        let partition_bits = bytes.partition(b"").map_or(0, |(_, bits)| bits);
        let fields = match kv.companion(&bytes) {
            Some(fields) => fields,
            None => open(format!("db{index}.fields"), Kind::Bytes)?,
        };
        let counts_now = partition_bits == 0 && !kv.is_afar();
        Ok(Self { index, bytes, int, fields, partition_bits, counts_now })
    }

    /// Where the key is kept.
    pub(crate) fn locate<'k>(&self, key: &'k [u8]) -> (&Namespace, Key<'k>) {
        if let Some(int) = &self.int
            && let Some(number) = parse_u64(key)
        {
            return (int, Key::Int(number));
        }
        (&self.bytes, Key::Bytes(key))
    }

    /// Where keys are kept that are no numbers, or all.
    pub(crate) fn bytes(&self) -> &Namespace {
        &self.bytes
    }

    /// Namespaces of keys, in the order in which scans visit them.
    pub(crate) fn namespaces(&self) -> impl DoubleEndedIterator<Item = &Namespace> {
        self.int.iter().chain(std::iter::once(&self.bytes))
    }

    /// Number of keys, with those that expired and were not removed yet.
    pub(crate) fn len(&self, txn: &mut Txn<'_>) -> Result<u64> {
        self.namespaces().try_fold(0, |sum, namespace| Ok(sum + txn.len(namespace)?))
    }

    /// Number of keys as last written, without waiting; `None` in partitions, where it costs to read them
    /// all, and where the store is far away.
    pub(crate) fn len_now(&self) -> Option<u64> {
        let count = || self.namespaces().map(|namespace| namespace.len().into_parts().0.unwrap_or(0)).sum();
        self.counts_now.then(count)
    }

    /// Whether two keys are in one partition.
    pub(crate) fn are_together(&self, one: &[u8], other: &[u8]) -> bool {
        self.bytes.partition(one) == self.bytes.partition(other)
    }

    /// Whether there is no hash.
    fn has_no_fields(&self) -> Result<bool> {
        Ok(self.fields.scan(&Scan::all().keys().limited(1)).wait()?.is_empty())
    }

    /// What keys of the times at which hashes expire begin with, for each partition.
    fn expiry_leads(&self) -> std::ops::Range<u64> {
        0..1 << self.partition_bits
    }

    /// The place of a hash in the list of those that expire.
    fn expiry_key(&self, head: Head, expires_ms: u64) -> [u8; 24] {
        let lead = head.id & ((1 << self.partition_bits) - 1);
        let mut key = [0; 24];
        key[..8].copy_from_slice(&lead.to_be_bytes());
        key[8..16].copy_from_slice(&expires_ms.to_be_bytes());
        key[16..].copy_from_slice(&head.id.to_be_bytes());
        key
    }
}

/// The head of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) id: u64,
    pub(crate) fields: u64,
}

impl Head {
    pub(crate) fn decode(value: &[u8]) -> Result<Self> {
        let corrupt = || esker_store::Error::Corrupt {
            offset: 0,
            what: format!("head of a hash: {} bytes instead of 16", value.len()),
        };
        let (words, rest) = value.as_chunks::<8>();
        let ([id, fields], []) = (words, rest) else { return Err(corrupt().into()) };
        Ok(Self { id: u64::from_le_bytes(*id), fields: u64::from_le_bytes(*fields) })
    }

    pub(crate) fn entry(self, expires_ms: Option<u64>) -> Entry {
        let mut value = [0; 16];
        value[..8].copy_from_slice(&self.id.to_le_bytes());
        value[8..].copy_from_slice(&self.fields.to_le_bytes());
        Entry { value: Bytes::copy_from_slice(&value), expires_ms, tag: HASH }
    }

    /// The key of a field.
    pub(crate) fn field_key(self, field: &[u8]) -> smallvec::SmallVec<[u8; 64]> {
        let mut key = smallvec::SmallVec::from_slice(&self.id.to_be_bytes());
        key.extend_from_slice(field);
        key
    }
}

/// A key as text, whatever namespace it came from.
pub(crate) fn key_text(key: &OwnedKey) -> Bytes {
    match key {
        OwnedKey::Bytes(bytes) => bytes.clone(),
        OwnedKey::Int(number) => {
            let mut text = Vec::new();
            push_u64(&mut text, *number);
            text.into()
        }
    }
}

/// Whether the Redis protocol keeps something else than plain values under this name.
pub(crate) fn is_of_redis(namespace: &str) -> bool {
    let numbered = namespace.strip_prefix("db").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    numbered || namespace == records::SERVER
}

/// All databases.
pub(crate) struct Keyspace {
    pub(crate) kv: Kv,
    databases: [OnceLock<Database>; DATABASES],
    int: [bool; DATABASES],
    compression: Option<Compression>,
    /// Nothing is written.
    reading: bool,
    /// That which Thrift serves, with the keys of the same slots; opened when it is asked for.
    thrift: Option<(String, Kind)>,
    pub(crate) watches: Watches,
    /// What commands ask while slots go from one chain to another.
    pub(crate) gate: Gate,
    /// Held shared by writers that do not look at what they overwrite; held exclusively to forbid them.
    blind: RwLock<()>,
    is_afar: bool,
    kinds: Kinds,
    next_id: AtomicU64,
    epoch: u64,
    /// Hashes whose fields were removed after they had expired.
    pub(crate) swept: AtomicU64,
}

impl Keyspace {
    /// Opens the databases that exist, and database 0; counts this start. Where nothing is written, it does neither:
    /// databases are opened when they are asked for.
    pub(crate) fn open(kv: Kv, config: &Config) -> Result<Self> {
        let reading = config.reading.is_some();
        let epoch = if reading { 0 } else { count_start(&kv, &kv.namespace(records::SERVER, Kind::Bytes)?)? };
        // A replica looks at what it is sent.
        let kept = if reading { records::SlotRecords::new() } else { records::load(&kv)? };
        let mut int = [false; DATABASES];
        for index in &config.int_databases {
            int[usize::from(*index)] = true;
        }
        let keyspace = Self {
            databases: std::array::from_fn(|_| OnceLock::new()),
            int,
            compression: config.compression,
            reading,
            thrift: config.thrift_namespace.clone(),
            watches: Watches::new(),
            gate: Gate::new(kept),
            blind: RwLock::new(()),
            is_afar: kv.is_afar(),
            kinds: Kinds::new(),
            next_id: AtomicU64::new(1),
            epoch,
            swept: AtomicU64::new(0),
            kv,
        };
        if reading {
            return Ok(keyspace);
        }
        keyspace.database(0)?;
        for (name, _) in keyspace.kv.namespaces()? {
            let Some((index, int)) = database_of(&name) else { continue };
            if int && !keyspace.int[usize::from(index)] && keyspace.kv.namespace(&name, Kind::Int)?.len().wait()? > 0 {
                let why = format!("database {index} holds int keys: name it among the int databases");
                return Err(esker_store::Error::Invalid { what: "configuration", why }.into());
            }
            keyspace.database(index)?;
        }
        let mut none_yet = true;
        for database in keyspace.open_databases() {
            none_yet &= database.has_no_fields()?;
        }
        if none_yet {
            keyspace.kinds.none_yet();
        }
        Ok(keyspace)
    }

    /// The namespace that Thrift serves with keys of the same slots, if it serves one.
    pub(crate) fn thrift(&self) -> Result<Option<Namespace>> {
        self.thrift.as_ref().map(|(name, kind)| self.kv.namespace(name, *kind)).transpose()
    }

    /// What it is called, and the kind of its keys.
    pub(crate) fn thrift_kind(&self) -> Option<&(String, Kind)> {
        self.thrift.as_ref()
    }

    /// Runs `write` if it may overwrite the key of this database without looking at it: it holds no hash, and is not
    /// watched.
    /// Not on a store that is far away: a writer that waits for it would keep out those that come to make a hash or to
    /// watch.
    /// `generation`: that of the gate when it was looked whose the key is.
    pub(crate) fn blindly<T>(
        &self,
        (database, key): (u8, &[u8]),
        generation: u64,
        write: impl FnOnce() -> T,
    ) -> Option<T> {
        if self.is_afar {
            return None;
        }
        let _held = self.blind.read();
        if self.kinds.has_to_look(database, key)
            || self.gate.gathers()
            || self.gate.is_closed()
            || self.gate.generation() != generation
        {
            return None;
        }
        Some(write())
    }

    /// Waits for those that overwrite keys without looking at them now.
    pub(crate) fn wait_for_blind_writers(&self) {
        drop(self.blind.write());
    }

    /// To be called for each key that a transaction may make a hash, before it begins: while it is held, waiting here
    /// could be for ever.
    pub(crate) fn expect_hash(&self, key: &[u8]) {
        if !self.kinds.expects_hash(key) {
            let _held = self.blind.write();
            self.kinds.expect_hash(key);
        }
    }

    /// The same where nothing may be waited for, if nothing has to be.
    pub(crate) fn expect_hash_now(&self, key: &[u8]) -> bool {
        if !self.kinds.expects_hash(key) {
            let Some(_held) = self.blind.try_write() else { return false };
            self.kinds.expect_hash(key);
        }
        true
    }

    /// To be called before a watcher of the key registers.
    pub(crate) fn expect_watcher(&self, key: &[u8]) {
        let _held = self.blind.write();
        self.kinds.expect_watcher(key);
    }

    /// Keys that are watched, each as often as it is.
    pub(crate) fn watched(&self) -> usize {
        self.kinds.watchers()
    }

    pub(crate) fn forget_watcher(&self, key: &[u8]) {
        self.kinds.forget_watcher(key);
    }

    /// How often this store was started, with this time.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The database of this index, below [`DATABASES`]; made at its first use, but where nothing is written.
    pub(crate) fn database(&self, index: u8) -> Result<&Database> {
        let place = &self.databases[usize::from(index)];
        if let Some(database) = place.get() {
            return Ok(database);
        }
        let (int, how) = (self.int[usize::from(index)], (self.reading, self.compression));
        let database = Database::open(&self.kv, index, int, how)?;
        // Two may have opened it at once: both opened the same namespaces, one of them stays.
        Ok(place.get_or_init(|| database))
    }

    /// The database of this index, if it was used.
    pub(crate) fn database_if_open(&self, index: u8) -> Option<&Database> {
        self.databases.get(usize::from(index))?.get()
    }

    /// Databases used so far.
    pub(crate) fn open_databases(&self) -> impl Iterator<Item = &Database> {
        self.databases.iter().filter_map(OnceLock::get)
    }

    /// An id for a new hash under this key.
    pub(crate) fn new_id(&self, database: &Database, key: &[u8]) -> Result<u64> {
        let (partition, bits) = database.bytes.partition(key).unwrap_or((0, 0));
        let count = self.next_id.fetch_add(1, Ordering::Relaxed);
        let last = 1 << (ID_COUNT_BITS - bits);
        if count >= last {
            let why = format!("{last} hashes were made since the server started: restart it");
            return Err(esker_store::Error::Invalid { what: "hash id", why }.into());
        }
        Ok(self.epoch << ID_COUNT_BITS | count << bits | partition)
    }

    /// The live entry of a key.
    pub(crate) fn get(&self, txn: &mut Txn<'_>, database: &Database, key: &[u8]) -> Result<Option<Entry>> {
        let (namespace, key) = database.locate(key);
        txn.get(namespace, key)
    }

    /// Writes a string over whatever is there.
    pub(crate) fn put_string(
        &self,
        txn: &mut Txn<'_>,
        database: &Database,
        key: &[u8],
        value: &[u8],
        expires_ms: Option<u64>,
    ) -> Result<()> {
        if self.kinds.may_be_hash(database.index, key) {
            let old = self.get(txn, database, key)?;
            let (namespace, located) = database.locate(key);
            match old {
                Some(old) if old.tag == HASH => self.drop_fields(txn, database, &old)?,
                // What the transaction itself has written may never be stored; and far away another process may make
                // a hash at any time.
                _ if self.is_afar || txn.has_written(namespace, located)? => {}
                _ => self.kinds.saw_no_hash(database.index, key),
            }
        }
        self.watches.touch(database.index, key);
        self.gate.note_in(database.index, key);
        let (namespace, key) = database.locate(key);
        txn.put_value(namespace, key, value, expires_ms, STRING);
        Ok(())
    }

    /// Writes a string over a string, or over nothing.
    pub(crate) fn rewrite_string(
        &self,
        txn: &mut Txn<'_>,
        database: &Database,
        key: &[u8],
        value: &[u8],
        expires_ms: Option<u64>,
    ) {
        self.watches.touch(database.index, key);
        self.gate.note_in(database.index, key);
        let (namespace, key) = database.locate(key);
        txn.put_value(namespace, key, value, expires_ms, STRING);
    }

    /// Writes an entry over one of the same type and, if it is a hash, the same id and expiry.
    pub(crate) fn rewrite(&self, txn: &mut Txn<'_>, database: &Database, key: &[u8], entry: Entry) {
        debug_assert!(
            entry.tag != HASH || self.kinds.may_be_hash(database.index, key),
            "a writer that does not look could overwrite it"
        );
        self.watches.touch(database.index, key);
        self.gate.note_in(database.index, key);
        let (namespace, key) = database.locate(key);
        txn.put(namespace, key, entry);
    }

    /// Writes `entry`, which stood under `key` or stands nowhere, under `key`, over nothing or over itself.
    pub(crate) fn place(&self, txn: &mut Txn<'_>, database: &Database, key: &[u8], entry: Entry) -> Result<()> {
        if entry.tag == HASH
            && let Some(at) = entry.expires_ms
        {
            let head = Head::decode(&entry.value)?;
            txn.put(&database.fields, &database.expiry_key(head, at)[..], Entry::new(Bytes::copy_from_slice(key)));
        }
        self.rewrite(txn, database, key, entry);
        Ok(())
    }

    /// Takes the entry of a key away but leaves its fields, for [`Keyspace::place`] to put it elsewhere.
    pub(crate) fn take(&self, txn: &mut Txn<'_>, database: &Database, key: &[u8], entry: &Entry) -> Result<()> {
        self.forget_expiry(txn, database, entry)?;
        self.watches.touch(database.index, key);
        let (namespace, key) = database.locate(key);
        txn.remove(namespace, key);
        Ok(())
    }

    /// Changes when the key expires.
    pub(crate) fn set_expiry(
        &self,
        txn: &mut Txn<'_>,
        database: &Database,
        key: &[u8],
        entry: Entry,
        expires_ms: Option<u64>,
    ) -> Result<()> {
        self.forget_expiry(txn, database, &entry)?;
        self.place(txn, database, key, entry.expiring(expires_ms))
    }

    /// Removes a key with all that belongs to it, and says whether it was there.
    pub(crate) fn remove(&self, txn: &mut Txn<'_>, database: &Database, key: &[u8]) -> Result<bool> {
        let Some(old) = self.get(txn, database, key)? else { return Ok(false) };
        self.drop_fields(txn, database, &old)?;
        self.watches.touch(database.index, key);
        let (namespace, key) = database.locate(key);
        txn.remove(namespace, key);
        Ok(true)
    }

    /// Removes all keys of a database. The transaction has to be exclusive.
    pub(crate) fn clear(&self, txn: &mut Txn<'_>, database: &Database) -> Result<()> {
        self.gate.note_clear();
        for key in self.watches.keys(database.index) {
            // Reading it would be a guard, and a clear in partitions has none.
            if database.partition_bits > 0 || self.get(txn, database, &key)?.is_some() {
                self.watches.touch(database.index, &key);
            }
        }
        for namespace in database.namespaces() {
            txn.clear(namespace);
        }
        txn.clear(&database.fields);
        Ok(())
    }

    fn drop_fields(&self, txn: &mut Txn<'_>, database: &Database, old: &Entry) -> Result<()> {
        if old.tag == HASH {
            self.forget_expiry(txn, database, old)?;
            txn.remove_prefix(&database.fields, &Head::decode(&old.value)?.id.to_be_bytes());
        }
        Ok(())
    }

    fn forget_expiry(&self, txn: &mut Txn<'_>, database: &Database, old: &Entry) -> Result<()> {
        if old.tag == HASH
            && let Some(at) = old.expires_ms
        {
            txn.remove(&database.fields, &database.expiry_key(Head::decode(&old.value)?, at)[..]);
        }
        Ok(())
    }

    /// Removes the fields of hashes that have expired.
    pub(crate) fn sweep(&self) -> Result<()> {
        let now_ms = self.kv.clock().now_ms();
        if !self.kinds.any_hash() {
            return Ok(());
        }
        for database in self.open_databases() {
            for lead in database.expiry_leads() {
                self.sweep_from(database, lead, now_ms)?;
            }
        }
        Ok(())
    }

    fn sweep_from(&self, database: &Database, lead: u64, now_ms: u64) -> Result<()> {
        let start = lead.to_be_bytes();
        let end = [start, now_ms.saturating_add(1).to_be_bytes()].concat();
        let scan = Scan::range(&start[..], &end[..]).limited(SWEEP_ENTRIES);
        loop {
            let (due, _) = database.fields.scan(&scan).into_parts();
            let due = due?;
            for (index_key, entry) in &due {
                self.sweep_one(database, index_key, &entry.value)?;
            }
            if due.len() < SWEEP_ENTRIES {
                return Ok(());
            }
        }
    }

    fn sweep_one(&self, database: &Database, index_key: &OwnedKey, key: &[u8]) -> Result<()> {
        let (words, _) = index_key.as_bytes().map_or(&[][..], |index_key| index_key).as_chunks::<8>();
        let [_, expires_ms, id] = words else {
            let what = format!("expiry of hashes: key {index_key:?} in {}", database.fields.name());
            return Err(esker_store::Error::Corrupt { offset: 0, what }.into());
        };
        let (namespace, located) = database.locate(key);
        let mut txn = self.kv.begin(&[(namespace, located)]);
        // It may have been removed, or moved to another time or name, a moment ago; or the clock went back.
        let index_entry = txn.get(&database.fields, index_key)?;
        if index_entry.is_none_or(|entry| entry.value != key) || txn.now_ms() < u64::from_be_bytes(*expires_ms) {
            return Ok(());
        }
        txn.remove(&database.fields, index_key);
        txn.remove_prefix(&database.fields, id);
        if txn.get(namespace, located)?.is_none() {
            txn.remove(namespace, located);
        }
        match txn.commit(Durability::Applied).into_parts().0 {
            Ok(()) => {}
            // Another process changed it a moment ago; the next round decides anew.
            Err(esker_store::Error::GuardFailed { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        self.swept.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Counts a start of a server, and returns how many there were with this one.
fn count_start(kv: &Kv, server: &Namespace) -> Result<u64> {
    kv.transact(&[(server, Key::Bytes(b"epoch"))], Durability::Always, |txn| {
        // A server starts on a full store.
        txn.give_back();
        let last = txn.get(server, "epoch")?.map_or(Some(0), |entry| number_from(&entry.value));
        let damaged = || esker_store::Error::Corrupt { offset: 0, what: "server epoch is not 8 bytes".into() };
        let epoch = last.ok_or_else(damaged)? + 1;
        if epoch >= 1 << (64 - ID_COUNT_BITS) {
            let why = format!("this store was started {epoch} times, more than ids of hashes allow");
            return Err(esker_store::Error::Invalid { what: "server epoch", why }.into());
        }
        txn.put(server, "epoch", Entry::new(number(epoch)));
        Ok(epoch)
    })
}

fn database_of(name: &str) -> Option<(u8, bool)> {
    let rest = name.strip_prefix("db")?;
    let (number, kind) = rest.split_once('.').unwrap_or((rest, ""));
    let index: u8 = number.parse().ok().filter(|index| usize::from(*index) < DATABASES)?;
    (i64_text(i64::from(index)) == number.as_bytes() && matches!(kind, "" | "int" | "fields"))
        .then_some((index, kind == "int"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_namespaces_tell_their_database() {
        let check = |name: &str, expected| assert_eq!(database_of(name), expected, "{name}");
        check("db0", Some((0, false)));
        check("db15.fields", Some((15, false)));
        check("db3.int", Some((3, true)));
        for other in ["db16", "db01", "db", "dbx", "db1.x", "server"] {
            check(other, None);
        }
    }

    #[test]
    fn heads_have_these_bytes() {
        let head = Head { id: 1 << 40 | 1, fields: 2 };
        let entry = head.entry(Some(7));
        assert_eq!(&entry.value[..], b"\x01\0\0\0\0\x01\0\0\x02\0\0\0\0\0\0\0");
        assert_eq!(Head::decode(&entry.value).unwrap(), head);
        assert_eq!(&head.field_key(b"f")[..], b"\0\0\x01\0\0\0\0\x01f");
        assert!(Head::decode(b"short").is_err());
    }
}

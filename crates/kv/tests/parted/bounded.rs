//! What calls over several partitions ask of them at once is bounded, however many there are and whatever they hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use esker_kv::{Durability, Entry, Key, Kind, Kv, ManualClock, Namespace, OwnedKey, Scan};
use esker_memory::MemoryStore;
use esker_store::contract::PerObject;
use esker_store::limits::{GET_MANY_BYTES_MAX, SCAN_BYTES_MAX};
use esker_store::{
    Change, CommitSeq, Completion, Error, Forward, ObjectId, ObjectStore, OmapScan, Transaction, deferred, prefix,
};

use parking_lot::Mutex;

use crate::{NOON_MS, bytes, nth};

type Hook = Box<dyn FnOnce(&MemoryStore) + Send>;

/// A store that answers when it is waited for, and counts. What it holds under `large` keys it shows as the largest
/// value there is, which all of them share.
struct Watched {
    store: PerObject<MemoryStore>,
    clock: Arc<ManualClock>,
    largest: Bytes,
    /// Begins of keys, behind the letter, whose values are large.
    large: Vec<&'static str>,
    /// Bytes of values that it gave away.
    given: AtomicU64,
    /// Scans of expiry indexes; those under way, and the most that ever were.
    looks: AtomicUsize,
    under_way: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    /// Milliseconds that each look takes.
    look_ms: AtomicU64,
    /// Whether calls for several keys answer that their values are too large.
    refuses_many: AtomicBool,
    /// Done once, before a call for several keys.
    before_many: Mutex<Option<Hook>>,
}

impl Watched {
    fn shown(&self, key: &[u8], stored: Bytes) -> Bytes {
        let is_large =
            key.first() == Some(&b'e') && self.large.iter().any(|begin| key[1..].starts_with(begin.as_bytes()));
        let shown = if is_large { self.largest.clone() } else { stored };
        self.given.fetch_add(shown.len() as u64, Ordering::SeqCst);
        shown
    }

    /// Bytes that `call` has it give away.
    fn given_by<T>(&self, call: impl FnOnce() -> T) -> (T, u64) {
        let before = self.given.load(Ordering::SeqCst);
        let done = call();
        (done, self.given.load(Ordering::SeqCst) - before)
    }
}

impl Forward for Watched {
    fn behind(&self) -> &dyn ObjectStore {
        &self.store
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        Forward::submit(&self.store, txn)
    }

    fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
        if let Some(hook) = self.before_many.lock().take() {
            hook(&self.store.0);
        }
        let found = self.store.0.omap_get_many(object, keys).wait().unwrap();
        let shown = keys.iter().zip(found).map(|(key, stored)| stored.map(|stored| self.shown(key, stored)));
        let shown: Vec<_> = shown.collect();
        if self.refuses_many.load(Ordering::SeqCst) && keys.len() > 1 {
            let (len, max) = (1 << 40, GET_MANY_BYTES_MAX as u64);
            return Completion::ready(Err(Error::TooLarge { what: "values", len, limit: "GET_MANY_BYTES_MAX", max }));
        }
        deferred("values", None, move || (Ok(shown), None)).1
    }

    fn omap_scan(&self, object: &ObjectId, scan: &OmapScan) -> Completion<Vec<(Bytes, Bytes)>> {
        let mut found = Forward::omap_scan(&self.store, object, scan).wait().unwrap();
        if !scan.keys_only {
            found.iter_mut().for_each(|(key, stored)| *stored = self.shown(key, stored.clone()));
        }
        if scan.start.as_ref().is_none_or(|start| !start.starts_with(b"x")) {
            return deferred("entries", None, move || (Ok(found), None)).1;
        }
        self.looks.fetch_add(1, Ordering::SeqCst);
        self.clock.advance(self.look_ms.load(Ordering::SeqCst));
        self.most.fetch_max(self.under_way.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let under_way = Arc::clone(&self.under_way);
        deferred("places", None, move || {
            under_way.fetch_sub(1, Ordering::SeqCst);
            (Ok(found), None)
        })
        .1
    }
}

fn watched(kind: Kind, large: &[&'static str]) -> (Arc<Watched>, Kv, Namespace) {
    let clock = Arc::new(ManualClock::new(NOON_MS));
    let watched = Arc::new(Watched {
        store: PerObject(MemoryStore::new()),
        clock: Arc::clone(&clock),
        largest: vec![0; 16 << 20].into(),
        large: large.to_vec(),
        given: AtomicU64::new(0),
        looks: AtomicUsize::new(0),
        under_way: Arc::default(),
        most: Arc::default(),
        look_ms: AtomicU64::new(0),
        refuses_many: AtomicBool::new(false),
        before_many: Mutex::new(None),
    });
    let kv = Kv::open(Arc::clone(&watched) as Arc<dyn ObjectStore>, clock).unwrap();
    let namespace = kv.namespace("n", kind).unwrap();
    (watched, kv, namespace)
}

const RANGES: u64 = 300;
const PARTITIONS: usize = 64;
const LARGEST: u64 = 16 << 20;

/// Failure: each page of a scan of keys looked at the expiry indexes of all ranges, all at once, where the look took
/// more than a second. Cause: what is due was asked of the whole namespace, and its time ran from before the look.
#[test]
fn a_page_of_numbers_looks_at_the_index_of_its_own_range() {
    let (store, _kv, namespace) = watched(Kind::Int, &[]);
    for range in 0..RANGES {
        let expires_ms = (range % 3 == 0).then_some(NOON_MS + 1);
        let entry = Entry::new("v").expiring(expires_ms);
        namespace.put_with(range << 16 | 7, entry, Durability::Applied).wait().unwrap();
    }
    store.clock.advance(10);
    store.look_ms.store(2_000, Ordering::SeqCst);
    let first: Vec<_> = namespace.iter(Scan::all().keys()).take(2).map(|found| found.unwrap().0).collect();
    assert_eq!(first, [OwnedKey::Int(1 << 16 | 7), OwnedKey::Int(2 << 16 | 7)]);
    let looks = store.looks.swap(0, Ordering::SeqCst);
    assert!(looks <= 4, "{looks} looks for the keys of three ranges");
    let found: Vec<_> = namespace.iter(Scan::all().keys()).map(|found| found.unwrap().0).collect();
    let wanted = (0..RANGES).filter(|range| range % 3 > 0).map(|range| OwnedKey::Int(range << 16 | 7));
    assert!(found.into_iter().eq(wanted));
    // Where something was found it is asked whether there is more.
    let looks = store.looks.load(Ordering::SeqCst) as u64;
    assert!(looks <= RANGES + RANGES.div_ceil(3), "{looks} looks");
    assert!(store.most.load(Ordering::SeqCst) <= PARTITIONS, "{:?} looks at once", store.most);
}

#[test]
fn slow_looks_are_not_made_anew_for_each_page() {
    let (store, _kv, namespace) = watched(Kind::Bytes, &[]);
    for n in 0..3_000 {
        namespace.put_with(&nth(Kind::Bytes, n), Entry::new("v"), Durability::Applied).wait().unwrap();
    }
    store.look_ms.store(2_000, Ordering::SeqCst);
    assert_eq!(namespace.iter(Scan::all().keys()).count(), 3_000);
    assert_eq!(store.looks.swap(0, Ordering::SeqCst), PARTITIONS);
    assert_eq!(store.most.load(Ordering::SeqCst), PARTITIONS);
    // What a key is given of time is heeded once a second has passed.
    store.look_ms.store(0, Ordering::SeqCst);
    let mut walk = namespace.iter(Scan::all().keys());
    walk.next().unwrap().unwrap();
    namespace.expire_at(&nth(Kind::Bytes, 2_999), Some(NOON_MS)).wait().unwrap();
    store.clock.advance(1_001);
    assert_eq!(walk.count(), 2_998);
}

/// Failure: the first page of a scan asked each of 64 partitions for 32 entries, with their values: 32 GiB, if each
/// has 16 MiB. Cause: the length of a value was guessed, and the guess held for all partitions at once.
#[test]
fn a_page_asks_all_partitions_together_for_what_an_answer_may_hold() {
    let (store, kv, namespace) = watched(Kind::Bytes, &["key:"]);
    let keys: Vec<OwnedKey> = (0..400).map(|n| nth(Kind::Bytes, n)).collect();
    keys.iter().for_each(|key| namespace.put(key, "v").wait().unwrap());
    let mut walk = namespace.iter(Scan::all());
    for (at, key) in keys.iter().enumerate() {
        let (found, given) = store.given_by(|| walk.next().unwrap().unwrap());
        assert_eq!((&found.0, found.1.value.len() as u64), (key, LARGEST - 1));
        // Of the first nothing is known.
        let most = if at == 0 { 4 * LARGEST } else { SCAN_BYTES_MAX as u64 };
        assert!(given <= most, "{given} bytes for key {at}");
    }
    assert!(walk.next().is_none());
    let mut txn = kv.begin(&[]);
    let (page, given) = store.given_by(|| txn.scan(&namespace, &Scan { bytes_max: 1, ..Scan::all() }).unwrap());
    assert_eq!(page[0].0, keys[0]);
    assert!(given <= 4 * LARGEST, "{given} bytes");
}

#[test]
fn values_that_become_larger_on_the_way_are_asked_for_a_few_at_once() {
    let (store, _kv, namespace) = watched(Kind::Bytes, &["key:003"]);
    for n in 0..600 {
        namespace.put(&nth(Kind::Bytes, n), "v").wait().unwrap();
    }
    // One page, in which the larger begin.
    let mut walk = namespace.iter(Scan::all());
    let (_, given) = store.given_by(|| walk.next().unwrap().unwrap());
    assert!(given <= 64 * LARGEST + 4 * LARGEST, "{given} bytes");
    let mut met = 1;
    loop {
        let (found, given) = store.given_by(|| walk.next());
        assert!(given <= 64 * LARGEST + 4 * LARGEST, "{given} bytes");
        let Some(found) = found else { break };
        assert_eq!(found.unwrap().0, nth(Kind::Bytes, met));
        met += 1;
    }
    assert_eq!(met, 600);
}

#[test]
fn a_page_whose_keys_all_go_before_their_values_are_read_does_not_end_the_scan() {
    let (store, _kv, namespace) = watched(Kind::Bytes, &[]);
    for n in 0..1_000 {
        namespace.put(&nth(Kind::Bytes, n), "v").wait().unwrap();
    }
    let remove = |store: &MemoryStore| {
        for object in prefix::objects(store, &"kv".into(), b"n/parts/", None) {
            let (start, end) = (Bytes::from_static(b"e"), Some(Bytes::from_static(b"ekey:00800")));
            let range = Change::OmapRemoveRange { start, end };
            store.submit(Transaction::new().change(&object.unwrap(), range)).wait().unwrap();
        }
    };
    *store.before_many.lock() = Some(Box::new(remove));
    let found: Vec<_> = namespace.iter(Scan::all()).map(|found| found.unwrap().0).collect();
    assert!(found.into_iter().eq((800..1_000).map(|n| nth(Kind::Bytes, n))));
}

/// Failure: one call for several keys could hold 256 MiB of each partition. Cause: each answer of the store was
/// bounded, and not all of them together.
#[test]
fn values_of_several_partitions_are_bounded_together() {
    let (store, kv, namespace) = watched(Kind::Bytes, &["key:"]);
    let keys: Vec<OwnedKey> = (0..400).map(|n| nth(Kind::Bytes, n)).collect();
    keys.iter().for_each(|key| namespace.put(key, "v").wait().unwrap());
    namespace.put("small", "v").wait().unwrap();
    let all = crate::keys(&keys);
    let too_large = |outcome: Result<usize, Error>| match outcome {
        Err(Error::TooLarge { limit: "GET_MANY_BYTES_MAX", .. }) => {}
        other => panic!("{other:?}"),
    };
    // The largest there are: as many keys as one answer may hold are asked for first, and of what is left.
    let (outcome, given) = store.given_by(|| namespace.get_many(&all).wait().map(|found| found.len()));
    too_large(outcome);
    assert!(given <= 2 * GET_MANY_BYTES_MAX as u64, "{given} bytes");
    let mut txn = kv.begin(&[]);
    let (outcome, given) = store.given_by(|| match txn.get_many(&namespace, &all) {
        Ok(found) => Ok(found.len()),
        Err(esker_kv::Error::Store(error)) => Err(error),
        Err(error) => panic!("{error}"),
    });
    too_large(outcome);
    assert!(given <= 2 * GET_MANY_BYTES_MAX as u64, "{given} bytes");
    // As many as fit are answered with, each in its place, absent ones and others between.
    let mut asked: Vec<Key<'_>> = all[..12].to_vec();
    asked.insert(3, "small".into());
    asked.insert(7, "absent".into());
    let lens: Vec<_> =
        namespace.get_many(&asked).wait().unwrap().iter().map(|found| found.as_ref().map(Bytes::len)).collect();
    let mut wanted = vec![Some(LARGEST as usize - 1); 14];
    (wanted[3], wanted[7]) = (Some(1), None);
    assert_eq!(lens, wanted);
    // Some hundred small ones take a few turns.
    for n in 0..500 {
        namespace.put(format!("s{n}").as_str(), n.to_string()).wait().unwrap();
    }
    let small: Vec<OwnedKey> = (0..500).map(|n| OwnedKey::from(format!("s{n}").as_str())).collect();
    let found = namespace.get_many(&crate::keys(&small)).wait().unwrap();
    assert!(found.into_iter().eq((0..500).map(|n| Some(bytes(n.to_string())))));
}

/// Failure: a scan of keys answered that values are too large. Cause: it read all values of the keys that were due, for
/// the expiries before them.
#[test]
fn keys_that_are_due_are_told_apart_however_large_their_values_are() {
    let (store, _kv, namespace) = watched(Kind::Bytes, &[]);
    for n in 0..60 {
        // Those of a third are given more time, of which the index does not know.
        let key = nth(Kind::Bytes, n);
        let entry = Entry::new("v").expiring((n % 3 > 0).then_some(NOON_MS + 1));
        namespace.put_with(&key, entry, Durability::Applied).wait().unwrap();
        if n % 3 == 1 {
            namespace.put_with(&key, Entry::new("v"), Durability::Applied).wait().unwrap();
        }
    }
    store.clock.advance(10);
    store.refuses_many.store(true, Ordering::SeqCst);
    let found: Vec<_> = namespace.iter(Scan::all().keys()).map(|found| found.unwrap().0).collect();
    assert!(found.into_iter().eq((0..60).filter(|n| n % 3 < 2).map(|n| nth(Kind::Bytes, n))));
}

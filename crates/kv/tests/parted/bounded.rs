//! What calls over several partitions ask of them at once is bounded, however many there are and whatever they hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use esker_kv::{Key, Kind, Kv, ManualClock, Namespace, OwnedKey};
use esker_memory::MemoryStore;
use esker_store::contract::PerObject;
use esker_store::limits::GET_MANY_BYTES_MAX;
use esker_store::{CommitSeq, Completion, Error, Forward, ObjectId, ObjectStore, OmapScan, Transaction, deferred};

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

const LARGEST: u64 = 16 << 20;

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

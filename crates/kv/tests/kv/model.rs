//! Model test: random calls on both kinds against a plain map, with time passing, restarts and transactions.

use std::collections::BTreeMap;

use esker_kv::{Durability, Entry, Kind, Namespace, OwnedKey, Scan};
use fastrand::Rng;

use crate::{KINDS, NOON_MS, bytes, fresh};

const SEEDS: u64 = 400;
const STEPS: usize = 300;

type Model = BTreeMap<OwnedKey, Entry>;

fn live(model: &Model, now_ms: u64, key: &OwnedKey) -> Option<Entry> {
    model.get(key).filter(|entry| !entry.is_expired(now_ms)).cloned()
}

fn random_key(rng: &mut Rng, kind: Kind) -> OwnedKey {
    match kind {
        Kind::Int => {
            let edge = 1u64 << 20;
            let near = [0, edge, 7 * edge, 128 * edge, 1 << 50, u64::MAX - 1];
            OwnedKey::Int(near[rng.usize(..near.len())].wrapping_add(rng.u64(..5)).wrapping_sub(2))
        }
        Kind::Bytes => {
            let len = rng.usize(..4);
            OwnedKey::Bytes((0..len).map(|_| [0, b'a', b'b', 0xff][rng.usize(..4)]).collect())
        }
    }
}

fn random_entry(rng: &mut Rng, now_ms: u64) -> Entry {
    let expires_ms = rng.bool().then(|| now_ms + rng.u64(..40) - 5);
    Entry::new(rng.u64(..6).to_string()).tagged(rng.u8(..16)).expiring(expires_ms)
}

fn random_scan(rng: &mut Rng, kind: Kind) -> Scan {
    let maybe = |rng: &mut Rng| rng.bool().then(|| random_key(rng, kind));
    let (start, end, after) = (maybe(rng), maybe(rng), maybe(rng));
    let prefix = maybe(rng).and_then(|key| key.as_bytes().cloned());
    let limit = if rng.bool() { usize::MAX } else { rng.usize(..6) };
    Scan { start, end, prefix, reverse: rng.bool(), limit, keys_only: rng.u8(..4) == 0, after, ..Scan::default() }
}

fn model_scan(model: &Model, now_ms: u64, scan: &Scan) -> Vec<(OwnedKey, Entry)> {
    let inside = |key: &OwnedKey| {
        scan.start.as_ref().is_none_or(|start| key >= start)
            && scan.end.as_ref().is_none_or(|end| key < end)
            && scan.prefix.as_ref().is_none_or(|prefix| key.as_bytes().unwrap().starts_with(prefix))
            && scan.after.as_ref().is_none_or(|after| if scan.reverse { key < after } else { key > after })
    };
    let mut found: Vec<_> = model
        .iter()
        .filter(|(key, entry)| inside(key) && !entry.is_expired(now_ms))
        .map(|(key, entry)| (key.clone(), if scan.keys_only { Entry::default() } else { entry.clone() }))
        .collect();
    if scan.reverse {
        found.reverse();
    }
    found.truncate(scan.limit);
    found
}

/// One random call on the namespace and the model; their answers must agree.
fn step(rng: &mut Rng, ns: &Namespace, model: &mut Model, now_ms: u64) {
    let key = random_key(rng, ns.kind());
    let old = live(model, now_ms, &key);
    let value = bytes(rng.u64(..6).to_string());
    match rng.u8(..14) {
        0 => assert_eq!(ns.entry(&key).wait().unwrap(), old),
        1 => {
            ns.put(&key, value.clone()).wait().unwrap();
            model.insert(key, Entry::new(value));
        }
        2 | 3 => {
            let entry = random_entry(rng, now_ms);
            ns.put_with(&key, entry.clone(), Durability::Applied).wait().unwrap();
            model.insert(key, entry);
        }
        4 => {
            assert_eq!(ns.remove(&key).wait().unwrap(), old.is_some());
            // An expired entry may stay until its time is worked off.
            if old.is_some() {
                model.remove(&key);
            }
        }
        5 => {
            assert_eq!(ns.add(&key, value.clone()).wait().unwrap(), old.is_none());
            if old.is_none() {
                model.insert(key, Entry::new(value));
            }
        }
        6 => {
            assert_eq!(ns.update(&key, value.clone()).wait().unwrap(), old.is_some());
            if let Some(old) = old {
                model.insert(key, Entry { value, ..old });
            }
        }
        7 => {
            let expected = rng.bool().then(|| rng.u64(..6).to_string());
            let hit = old.as_ref().map(|old| &old.value[..]) == expected.as_ref().map(String::as_bytes);
            let expected = expected.as_ref().map(String::as_bytes);
            assert_eq!(ns.compare_and_set(&key, expected, value.clone()).wait().unwrap(), hit);
            if hit {
                model.insert(key, Entry { value, ..old.unwrap_or_default() });
            }
        }
        8 => {
            let at = rng.bool().then(|| now_ms + rng.u64(..40) - 5);
            assert_eq!(ns.expire_at(&key, at).wait().unwrap(), old.is_some());
            if let Some(old) = old {
                model.insert(key, old.expiring(at));
            }
        }
        9 => {
            let entries: Vec<_> =
                (0..rng.usize(..6)).map(|n| (random_key(rng, ns.kind()), bytes(n.to_string()))).collect();
            let borrowed: Vec<_> = entries.iter().map(|(key, value)| (key.as_key(), value.clone())).collect();
            ns.put_many(&borrowed).wait().unwrap();
            model.extend(entries.into_iter().map(|(key, value)| (key, Entry::new(value))));
        }
        10 => {
            let owned: Vec<_> = (0..rng.usize(..6)).map(|_| random_key(rng, ns.kind())).collect();
            let wanted: Vec<_> = owned.iter().map(|key| live(model, now_ms, key).map(|entry| entry.value)).collect();
            assert_eq!(ns.get_many(&crate::keys(&owned)).wait().unwrap(), wanted);
            let gone = owned.iter().filter(|key| live(model, now_ms, key).and_then(|_| model.remove(*key)).is_some());
            let gone = gone.count() as u64;
            assert_eq!(ns.remove_many(&crate::keys(&owned)).wait().unwrap(), gone);
        }
        11 if rng.u8(..8) == 0 => {
            ns.clear().wait().unwrap();
            model.clear();
        }
        _ => {
            let scan = random_scan(rng, ns.kind());
            assert_eq!(ns.scan(&scan).wait().unwrap(), model_scan(model, now_ms, &scan), "{scan:?}");
            let iterated: Vec<_> = ns.iter(scan.clone()).map(Result::unwrap).collect();
            assert_eq!(iterated, model_scan(model, now_ms, &scan), "iterated {scan:?}");
        }
    }
}

/// One random transaction of several steps, committed or dropped.
fn transact(rng: &mut Rng, kv: &esker_kv::Kv, ns: &Namespace, model: &mut Model, now_ms: u64) {
    let mut txn = kv.begin_exclusive();
    let mut own = model.clone();
    for _ in 0..rng.usize(1..8) {
        let key = random_key(rng, ns.kind());
        match rng.u8(..10) {
            0 | 1 => assert_eq!(txn.get(ns, &key).unwrap(), live(&own, now_ms, &key)),
            2..=4 => {
                let entry = random_entry(rng, now_ms);
                txn.put(ns, &key, entry.clone());
                own.insert(key, entry);
            }
            5 => {
                txn.remove(ns, &key);
                own.remove(&key);
            }
            6 if ns.kind() == Kind::Bytes => {
                let prefix = key.as_bytes().unwrap();
                txn.remove_prefix(ns, prefix);
                own.retain(|key, _| !key.as_bytes().unwrap().starts_with(prefix));
            }
            7 if rng.u8(..4) == 0 => {
                txn.clear(ns);
                own.clear();
            }
            8 => {
                let owned: Vec<_> = (0..rng.usize(..6)).map(|_| random_key(rng, ns.kind())).collect();
                let wanted: Vec<_> = owned.iter().map(|key| live(&own, now_ms, key)).collect();
                assert_eq!(txn.get_many(ns, &crate::keys(&owned)).unwrap(), wanted);
            }
            _ => {
                let scan = random_scan(rng, ns.kind());
                assert_eq!(txn.scan(ns, &scan).unwrap(), model_scan(&own, now_ms, &scan), "in a transaction: {scan:?}");
            }
        }
        let live_len = own.values().filter(|entry| !entry.is_expired(now_ms)).count() as u64;
        assert!((live_len..=own.len() as u64 + 64).contains(&txn.len(ns).unwrap()));
    }
    if rng.u8(..4) > 0 {
        txn.commit(Durability::Durable).wait().unwrap();
        *model = own;
    }
}

/// After all that is due was removed, the length is exactly the model's.
fn settle(kv: &esker_kv::Kv, ns: &Namespace, model: &mut Model, now_ms: u64) {
    kv.expire_due(usize::MAX).unwrap();
    model.retain(|_, entry| !entry.is_expired(now_ms));
    assert_eq!(ns.len().wait().unwrap(), model.len() as u64);
    assert_eq!(kv.begin_exclusive().len(ns).unwrap(), model.len() as u64);
    if crate::PARTED {
        assert!(ns.insertion_iter().next().unwrap().is_err(), "partitions have no order between them");
        return;
    }
    let mut inserted: Vec<_> = ns.insertion_iter().map(|found| found.unwrap()).collect();
    inserted.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(inserted, model_scan(model, now_ms, &Scan::all()));
}

#[test]
fn random_calls_answer_as_a_plain_map_does() {
    let first: u64 = std::env::var("ESKER_SEED").map_or(1, |seed| seed.parse().unwrap());
    let seeds = if std::env::var("ESKER_SEED").is_ok() { 1 } else { SEEDS };
    for seed in first..first + seeds {
        for kind in KINDS {
            let run = std::panic::catch_unwind(|| {
                let mut rng = Rng::with_seed(seed);
                let mut fresh = fresh();
                let mut model = Model::new();
                let mut now_ms = NOON_MS;
                for _ in 0..STEPS {
                    let ns = fresh.namespace(kind);
                    match rng.u8(..20) {
                        0..=3 => transact(&mut rng, &fresh.kv, &ns, &mut model, now_ms),
                        4 => {
                            now_ms += rng.u64(..20);
                            fresh.clock.set(now_ms);
                        }
                        5 => settle(&fresh.kv, &ns, &mut model, now_ms),
                        6 => fresh.reopen(),
                        _ => step(&mut rng, &ns, &mut model, now_ms),
                    }
                }
            });
            if let Err(cause) = run {
                eprintln!("kind {kind}, repeat with: ESKER_SEED={seed} cargo test -p esker-kv random_calls");
                std::panic::resume_unwind(cause);
            }
        }
    }
}

//! A client of the key-value face: an int namespace and one of bytes, single keys, several at once, transactions.
//!
//! place → namespace and four keys → a call by chance, its condition from what was read last

use std::collections::HashMap;

use bytes::Bytes;
use esker::kv::{Entry, Error, Key, Kind, Namespace};
use esker::objects::Error as StoreError;
use esker::{Durability, Kv, Store};

use super::actor::{Client, KEYS, failed, text};
use crate::notes::{Answer, Call, Held, Outcome};
use crate::terms::{Breakage, Failure};

/// Names of the namespaces.
const INT: &str = "numbers";
const BYTES: &str = "texts";

pub(super) fn prepare(store: &Store) -> Result<(), Failure> {
    let kv = store.kv()?;
    kv.namespace(INT, Kind::Int)?;
    kv.namespace(BYTES, Kind::Bytes)?;
    Ok(())
}

/// A namespace, and a group of its keys.
struct Group<'a> {
    namespace: &'a Namespace,
    place: String,
    number: u64,
    names: Vec<Vec<u8>>,
}

impl<'a> Group<'a> {
    fn new(namespaces: &'a [Namespace; 2], which: bool, number: u64) -> Self {
        let namespace = &namespaces[usize::from(which)];
        // On Ceph keys of one tag lie in one partition, and so do keys of a group of integers.
        let names = (0..KEYS).map(|key| format!("{{{number}}}/{key}").into_bytes()).collect();
        Self { namespace, place: format!("{}/{number}", namespace.name()), number, names }
    }

    fn key(&self, key: u64) -> Key<'_> {
        match self.namespace.kind() {
            Kind::Int => Key::Int(self.number * KEYS + key),
            Kind::Bytes => Key::Bytes(&self.names[key as usize]),
        }
    }

    fn keys(&self, keys: &[u64]) -> Vec<Key<'_>> {
        keys.iter().map(|key| self.key(*key)).collect()
    }

    fn call(&self, call: &str, keys: &[u64], values: &[Held]) -> Call {
        Call {
            call: call.into(),
            place: self.place.clone(),
            keys: keys.to_vec(),
            values: values.to_vec(),
            ..Call::default()
        }
    }

    fn get(&self, key: u64) -> Answer {
        let got = self.namespace.get(self.key(key)).wait();
        got.map_or_else(|error| failed(&error), |got| Answer::found(vec![shown(got)]))
    }

    fn get_many(&self, keys: &[u64]) -> Answer {
        let got = self.namespace.get_many(&self.keys(keys)).wait();
        got.map_or_else(|error| failed(&error), |got| Answer::found(got.into_iter().map(shown).collect()))
    }
}

fn shown(value: Option<Bytes>) -> Held {
    value.map(|value| text(&value))
}

fn whether(done: Result<bool, StoreError>) -> Answer {
    done.map_or_else(|error| failed(&error), Answer::whether)
}

fn open(client: &Client) -> Result<Option<(Store, Kv, [Namespace; 2])>, Failure> {
    let location = client.role.location.clone();
    client.opened(|| -> Result<_, Failure> {
        let store = Store::open(&location)?;
        let kv = store.kv()?;
        let namespaces = [kv.namespace(INT, Kind::Int)?, kv.namespace(BYTES, Kind::Bytes)?];
        Ok((store, kv, namespaces))
    })
}

pub(super) fn play(client: &mut Client) -> Result<(), Failure> {
    let Some((_store, kv, namespaces)) = open(client)? else { return Ok(()) };
    if client.role.last {
        let keys: Vec<u64> = (0..KEYS).collect();
        for number in 0..client.places() {
            for which in [false, true] {
                let group = Group::new(&namespaces, which, number);
                client.must(&group.call("get_many", &keys, &[]), || group.get_many(&keys))?;
            }
        }
        return Ok(());
    }
    let mut known = HashMap::new();
    while client.goes_on() {
        let which = client.rng.bool();
        if let Some(old) = client.old_place() {
            let group = Group::new(&namespaces, which, old);
            let keys = client.some_keys(1..=4);
            client.note(&group.call("get_many", &keys, &[]), || group.get_many(&keys))?;
            continue;
        }
        let group = Group::new(&namespaces, which, client.place());
        step(client, &kv, &group, &mut known)?;
    }
    Ok(())
}

/// What this client read last, by place and key.
type Known = HashMap<(String, u64), Held>;

fn step(client: &mut Client, kv: &Kv, group: &Group<'_>, known: &mut Known) -> Result<(), Failure> {
    let (key, value) = (client.rng.u64(0..KEYS), client.value());
    let written: Bytes = value.clone().into();
    let place = (group.place.clone(), key);
    let values = [Some(value)];
    let name = group.key(key);
    match client.rng.u8(0..100) {
        0..20 => put(client, group, key, &values)?,
        20..42 => {
            let stale = client.broken(Breakage::Stale) && client.rng.u8(0..10) == 0;
            let before = known.get(&place).cloned().filter(|_| stale);
            let answer = client.note(&group.call("get", &[key], &[]), || match before {
                Some(before) => Answer::found(vec![before]),
                None => group.get(key),
            })?;
            known.extend(answer.found.into_iter().map(|found| (place.clone(), found)));
        }
        42..46 => {
            let had = || group.namespace.has(name).wait();
            client.note(&group.call("has", &[key], &[]), || whether(had()))?;
        }
        46..53 => {
            let removed = || group.namespace.remove(name).wait();
            client.note(&group.call("remove", &[key], &[]), || whether(removed()))?;
        }
        53..60 => {
            let added = || group.namespace.add(name, written).wait();
            client.note(&group.call("add", &[key], &values), || whether(added()))?;
        }
        60..66 => {
            let updated = || group.namespace.update(name, written).wait();
            client.note(&group.call("update", &[key], &values), || whether(updated()))?;
        }
        66..78 => {
            let expected = known.get(&place).cloned().unwrap_or_default();
            let call = Call { when: vec![expected.clone()], ..group.call("compare_and_set", &[key], &values) };
            let hides = client.broken(Breakage::Refused);
            let answer = client.note(&call, || {
                let expected = expected.as_deref().map(str::as_bytes);
                let answer = whether(group.namespace.compare_and_set(name, expected, written).wait());
                if hides && answer == Answer::ok() { Answer::refused() } else { answer }
            })?;
            if answer == Answer::ok() {
                known.insert(place, values.into_iter().next().flatten());
            }
        }
        78..84 => {
            let keys = client.some_keys(2..=3);
            let values: Vec<Held> = keys.iter().map(|_| Some(client.value())).collect();
            let bytes = |value: &Held| Bytes::from(value.clone().unwrap_or_default());
            let entries: Vec<(Key<'_>, Bytes)> =
                keys.iter().zip(&values).map(|(key, value)| (group.key(*key), bytes(value))).collect();
            client.note(&group.call("put_many", &keys, &values), || {
                let done = group.namespace.put_many(&entries).wait();
                done.map_or_else(|error| failed(&error), |()| Answer::ok())
            })?;
        }
        84..91 => {
            let keys = client.some_keys(2..=4);
            let answer = client.note(&group.call("get_many", &keys, &[]), || group.get_many(&keys))?;
            for (key, found) in keys.into_iter().zip(answer.found) {
                known.insert((group.place.clone(), key), found);
            }
        }
        91..94 => {
            let keys = client.some_keys(2..=3);
            client.note(&group.call("remove_many", &keys, &[]), || {
                let done = group.namespace.remove_many(&group.keys(&keys)).wait();
                done.map_or_else(|error| failed(&error), Answer::number)
            })?;
        }
        _ => transact(client, kv, group)?,
    }
    Ok(())
}

fn put(client: &mut Client, group: &Group<'_>, key: u64, values: &[Held; 1]) -> Result<(), Failure> {
    let value = values[0].clone().unwrap_or_default();
    let lost = client.broken(Breakage::Lost) && client.rng.u8(0..10) == 0;
    client.note(&group.call("put", &[key], values), || {
        if lost {
            return Answer::ok();
        }
        let done = group.namespace.put(group.key(key), &value).wait();
        done.map_or_else(|error| failed(&error), |()| Answer::ok())
    })?;
    if client.broken(Breakage::Twice) && client.rng.u8(0..3) == 0 {
        std::thread::sleep(std::time::Duration::from_millis(30));
        // It is not noted: the history does not know of it.
        let _ = group.namespace.put(group.key(key), &value).wait();
    }
    Ok(())
}

/// Reads two keys and writes both, if no other client changed them meanwhile.
fn transact(client: &mut Client, kv: &Kv, group: &Group<'_>) -> Result<(), Failure> {
    let keys = client.some_keys(2..=2);
    let removes = client.rng.u8(0..4) == 0;
    let values: Vec<Held> = vec![Some(client.value()), (!removes).then(|| client.value())];
    client.note(&group.call("transact", &keys, &values), || {
        let named: Vec<(&Namespace, Key<'_>)> = keys.iter().map(|key| (group.namespace, group.key(*key))).collect();
        let done = kv.transact(&named, Durability::Durable, |txn| {
            let mut found = Vec::new();
            for ((namespace, key), value) in named.iter().zip(&values) {
                found.push(shown(txn.get(namespace, *key)?.map(|entry| entry.value)));
                match value {
                    Some(value) => txn.put(namespace, *key, Entry::new(value.clone())),
                    None => txn.remove(namespace, *key),
                }
            }
            Ok::<_, Error>(found)
        });
        match done {
            Ok(found) => Answer::found(found),
            Err(Error::Store(error)) => failed(&error),
            Err(error) => Answer::failed(Outcome::Fault, &error),
        }
    })?;
    Ok(())
}

//! Thrift's service where several chains share the keys: two servers, each the head of a chain, and keys that go from
//! one to the other.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use esker_kv::{Kind, Kv, SLOTS, SystemClock};
use esker_memory::MemoryStore;
use esker_server::http::Value;
use esker_server::resp::{SlotEpoch, SlotState};
use esker_server::thrift::{Address, AskError, Asking, Config, Handle, Keeper, Keepers, Ring, Server, Sharing, Sight};
use esker_wire::proto::chain::{AskKeysRequest, AskKeysResponse, KeyError};
use parking_lot::Mutex;
use support::PATIENCE;
use support::by_thrift::{Client, EXCEPTION, REPLY, contains, text};
use support::two::{Known, Two, kept, name};
use tokio::sync::Semaphore;

/// The first key of each of the first slots.
const RANGE: u64 = 65_536;

/// What one of the servers asks the other.
struct Other {
    known: Arc<Known>,
    handles: Arc<Mutex<Vec<Handle>>>,
    /// The other cannot be reached; or its answers get lost.
    unreached: AtomicBool,
    lost: AtomicBool,
    /// The other does nothing until it does not hang any more.
    hangs: Arc<AtomicBool>,
    /// What the other says at last, whatever it is asked.
    says: Mutex<Option<AskKeysResponse>>,
    /// As between two servers, calls have a number of places.
    places: Arc<Semaphore>,
    /// Of the next looks at the chains, the lowest bit first, those that see none.
    unseen: AtomicU64,
}

const PLACES: usize = 4;

impl Ring for Other {
    fn sight(&self) -> Sight {
        let next = |unseen: u64| (unseen > 0).then_some(unseen >> 1);
        if self.unseen.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).unwrap_or(0) & 1 == 1 {
            return Sight::Unknown;
        }
        let (own, records) = (self.known.own, self.known.records.load());
        if !self.known.shares.load(Ordering::SeqCst) {
            return if records.is_empty() { Sight::Alone } else { Sight::Unknown };
        }
        let mut keepers: Vec<Keeper> = Vec::new();
        for slot in 0..SLOTS as u16 {
            let of = kept(own, slot, &records).0;
            let chain = (of != own).then(|| Arc::from(name(of)));
            match keepers.last_mut() {
                Some(last) if last.chain == chain => last.last = slot,
                _ => keepers.push(Keeper { first: slot, last: slot, chain }),
            }
        }
        Sight::Shared(Arc::new(Keepers::new(keepers).unwrap()))
    }

    fn beside(&self) -> Vec<Arc<str>> {
        let (own, records) = (self.known.own, self.known.records.load());
        let has_none = (0..SLOTS as u16).all(|slot| kept(own, slot, &records).0 == own);
        has_none.then(|| Arc::from(name(1 - own))).into_iter().collect()
    }

    fn ask(&self, chain: &str, request: AskKeysRequest) -> Asking {
        let other = 1 - self.known.own;
        assert_eq!(chain, name(other));
        if self.unreached.load(Ordering::SeqCst) {
            return Box::pin(std::future::ready(Err(AskError::NotAsked("the other is not reached".into()))));
        }
        let (handle, lost) = (self.handles.lock()[other].clone(), self.lost.load(Ordering::SeqCst));
        let said = self.says.lock().clone();
        let (hangs, places) = (Arc::clone(&self.hangs), Arc::clone(&self.places));
        Box::pin(async move {
            while hangs.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            if let Some(said) = said {
                tokio::time::sleep(Duration::from_millis(50)).await;
                return Ok(said);
            }
            let _place = places.acquire().await.unwrap();
            let answer = handle.answer(request).await;
            if lost { Err(AskError::Unknown("the answer is lost".into())) } else { Ok(answer) }
        })
    }
}

struct Both {
    /// Stopped last.
    two: Two,
    addresses: Vec<SocketAddr>,
    handles: Arc<Mutex<Vec<Handle>>>,
    rings: Vec<Arc<Other>>,
    threads: Vec<JoinHandle<()>>,
}

impl Both {
    fn start(kind: Kind) -> Self {
        Self::with_memory(kind, Config::default().memory_bytes_max)
    }

    fn with_memory(kind: Kind, memory_bytes_max: usize) -> Self {
        let two = Two::serving(Some(("users".into(), kind)));
        let handles = Arc::new(Mutex::new(Vec::new()));
        let (mut addresses, mut rings, mut threads) = (Vec::new(), Vec::new(), Vec::new());
        for own in 0..2 {
            let known = Arc::clone(&two.known[own]);
            let (unreached, lost, hangs, says, unseen) = Default::default();
            let (places, others) = (Arc::new(Semaphore::new(PLACES)), Arc::clone(&handles));
            let ring = Arc::new(Other { known, handles: others, unreached, lost, hangs, says, places, unseen });
            let sharing = Sharing { moving: two.moving(own), ring: Arc::clone(&ring) as Arc<dyn Ring> };
            let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
            let (namespace, message_seconds) = ("users".into(), 10);
            let config = Config { listen, namespace, kind, memory_bytes_max, message_seconds, ..Config::default() };
            // Another one, with locks of its own, that is not to count.
            let kv = Kv::open(Arc::new(MemoryStore::new()), Arc::new(SystemClock)).unwrap();
            let server = Server::bind(config, kv, Some(sharing)).unwrap();
            let Address::Tcp(address) = server.addresses()[0] else { panic!("{:?}", server.addresses()) };
            addresses.push(address);
            rings.push(ring);
            handles.lock().push(server.handle());
            threads.push(std::thread::spawn(move || server.run()));
        }
        Self { two, addresses, handles, rings, threads }
    }

    fn client(&self, index: usize) -> Client {
        Client::connect(self.addresses[index])
    }

    fn figure(&self, index: usize, name: &str) -> f64 {
        let name = format!("esker_thrift_{name}");
        let figures = self.handles.lock()[index].figures();
        match figures.into_iter().find(|figure| figure.name == name).unwrap().value {
            Value::Gauge(value) | Value::Counter(value) => value,
            other => panic!("{other:?}"),
        }
    }

    fn passed_on(&self, index: usize) -> f64 {
        self.figure(index, "passed_on")
    }

    /// Waits until this server has asked the other for so much.
    fn asked(&self, index: usize, count: f64) {
        let until = Instant::now() + PATIENCE;
        let asked = || self.passed_on(index) >= count;
        while !asked() {
            assert!(Instant::now() < until, "it has not asked for {count}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        self.handles.lock().iter().for_each(Handle::shutdown);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

/// A list of strings as the first field.
fn list(keys: &[String]) -> Vec<u8> {
    let mut field = vec![15, 0, 1, 11];
    field.extend((keys.len() as u32).to_be_bytes());
    for key in keys {
        field.extend((key.len() as u32).to_be_bytes());
        field.extend(key.as_bytes());
    }
    field
}

/// A list of pairs as the first field.
fn pairs(pairs: &[(String, String)]) -> Vec<u8> {
    let mut field = vec![15, 0, 1, 12];
    field.extend((pairs.len() as u32).to_be_bytes());
    for (key, value) in pairs {
        field.extend([text(1, key.as_bytes()), text(2, value.as_bytes()), vec![0]].concat());
    }
    field
}

fn told(client: &mut Client, method: &str, fields: &[u8]) -> Vec<u8> {
    let (kind, answer) = client.call(method, fields);
    assert_eq!(kind, REPLY, "{method}: {}", String::from_utf8_lossy(&answer));
    answer
}

/// The number at the end of an answer, of so many bytes.
fn number(answer: &[u8], bytes: usize) -> i64 {
    let at = &answer[answer.len() - 1 - bytes..answer.len() - 1];
    at.iter().fold(0, |number, byte| number << 8 | i64::from(*byte))
}

/// All keys, page by page.
fn all_keys(client: &mut Client, limit: i32) -> Vec<String> {
    let (mut cursor, mut found) = (Vec::new(), Vec::new());
    loop {
        let fields = [text(1, &cursor), vec![8, 0, 2], limit.to_be_bytes().to_vec()].concat();
        let answer = told(client, "iterate", &fields);
        // Behind the head of the answer: the page, its list of pairs, each with key and value.
        let mut rest = &answer[4 + 4 + "iterate".len() + 4 + 3..];
        assert_eq!(rest[..4], [15, 0, 1, 12]);
        let count = u32::from_be_bytes(rest[4..8].try_into().unwrap());
        rest = &rest[8..];
        let string = |rest: &mut &[u8]| {
            let len = u32::from_be_bytes(rest[3..7].try_into().unwrap()) as usize;
            let string = rest[7..7 + len].to_vec();
            *rest = &rest[7 + len..];
            string
        };
        for _ in 0..count {
            found.push(String::from_utf8(string(&mut rest)).unwrap());
            string(&mut rest);
            rest = &rest[1..];
        }
        if rest[0] == 0 {
            return found;
        }
        cursor = string(&mut rest);
    }
}

#[test]
fn int_keys_go_by_range_and_each_server_answers_for_all() {
    let both = Both::start(Kind::Int);
    let (mut a, mut b) = (both.client(0), both.client(1));
    let keys: Vec<String> =
        (0..8).flat_map(|range| [0, 7, RANGE - 1].map(|at| range * RANGE + at)).map(|key| key.to_string()).collect();
    let all: Vec<_> = keys.iter().map(|key| (key.clone(), format!("value {key}"))).collect();
    told(&mut a, "multiPut", &pairs(&all[..20]));
    all[20..].iter().for_each(|(key, value)| b.put(key, value.as_bytes()));
    // The second to fourth range, and the last one with keys.
    both.two.go(0, &[(1, 1), (2, 1), (3, 1), (7, 1)]);
    let of = |index: usize| {
        both.two.moving(index).records().values().filter(|record| record.state == SlotState::Here).count()
    };
    assert_eq!((of(0), of(1)), (0, 4));
    for client in [&mut a, &mut b] {
        for (key, value) in &all {
            assert_eq!(client.get(key), value.as_bytes(), "{key}");
        }
        assert_eq!(number(&told(client, "count", &[]), 8), 24);
        for limit in [1, 5, 24, 1_000] {
            assert_eq!(all_keys(client, limit), keys, "{limit}");
        }
        let asked: Vec<String> = [&keys[3], &keys[0], "5", &keys[23], &keys[0]].map(|key| (*key).to_owned()).to_vec();
        let found = told(client, "multiGet", &list(&asked));
        let at = |key: &String| {
            let value = format!("value {key}");
            found.windows(value.len()).position(|part| part == value.as_bytes()).unwrap()
        };
        assert!(at(&keys[3]) < at(&keys[0]) && at(&keys[0]) < at(&keys[23]));
        assert_eq!(number(&told(client, "has", &text(1, keys[4].as_bytes())), 1), 1);
        let exchange = [text(1, keys[4].as_bytes()), text(2, b"other"), text(3, b"new")].concat();
        assert_eq!(number(&told(client, "compareAndSet", &exchange), 1), 0);
        let (kind, refused) = client.call("get", &text(1, b"x7"));
        assert!(kind == EXCEPTION && contains(&refused, "x7"));
    }
    // Across both chains.
    let removed = told(&mut b, "removeMany", &list(&[keys[0].clone(), keys[3].clone(), "5".into()]));
    assert_eq!(number(&removed, 8), 2);
    assert_eq!(number(&told(&mut a, "count", &[]), 8), 22);
    assert_eq!(number(&told(&mut a, "remove", &text(1, keys[4].as_bytes())), 4), 0);
    assert_eq!(b.get(&keys[4]), b"missing");
    let mode = |client: &mut Client| number(&told(client, "mode", &[]), 4);
    told(&mut a, "setMode", &[8, 0, 1, 0, 0, 0, 2]);
    assert_eq!((mode(&mut a), mode(&mut b)), (2, 2));

    // And back, with a key that was written meanwhile.
    told(&mut a, "multiPut", &pairs(&[(keys[4].clone(), "again".into()), (keys[0].clone(), "again".into())]));
    both.two.go(1, &[(1, 2), (2, 2)]);
    assert_eq!(
        (a.get(&keys[4]), b.get(&keys[4]), b.get(&keys[0])),
        (b"again".to_vec(), b"again".to_vec(), b"again".to_vec())
    );
    assert_eq!(all_keys(&mut b, 3).len(), 23);
}

#[test]
fn byte_keys_go_with_the_slots_of_redis_cluster() {
    let both = Both::start(Kind::Bytes);
    let (mut a, mut b) = (both.client(0), both.client(1));
    let mut redis = both.two.client(0);
    // foo is of slot 12182, bar of 5061.
    for key in ["foo", "{foo}2", "bar"] {
        a.put(key, key.as_bytes());
        redis.call(&["SET", key, "of redis"]);
    }
    both.two.go(0, &[(12_182, 1)]);
    for client in [&mut a, &mut b] {
        assert_eq!(
            (client.get("foo"), client.get("{foo}2"), client.get("bar")),
            (b"foo".to_vec(), b"{foo}2".to_vec(), b"bar".to_vec())
        );
        assert_eq!(all_keys(client, 2), ["bar", "foo", "{foo}2"]);
    }
    redis.check("GET foo", &both.two.moved(12_182, 1));
    both.two.client(1).check("GET foo", "$8\r\nof redis\r\n");
}

#[test]
fn no_increment_is_lost_while_slots_go_to_and_fro() {
    const COUNTERS: u64 = 6;
    let both = Both::start(Kind::Int);
    let key = |counter: u64| (counter % 3 * RANGE + counter).to_string();
    let mut first = both.client(0);
    (0..COUNTERS).for_each(|counter| first.put(&key(counter), b"0"));
    let over = AtomicBool::new(false);
    let counted: BTreeMap<u64, u64> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|writer: usize| {
                let (both, over) = (&both, &over);
                scope.spawn(move || {
                    let (mut client, mut done) = (both.client(writer % 2), BTreeMap::new());
                    let mut counter = writer as u64;
                    while !over.load(Ordering::SeqCst) {
                        counter = (counter + 1) % COUNTERS;
                        let name = key(counter);
                        loop {
                            let now = client.get(&name);
                            let next =
                                (String::from_utf8(now.clone()).unwrap().parse::<u64>().unwrap() + 1).to_string();
                            let fields = [text(1, name.as_bytes()), text(2, &now), text(3, next.as_bytes())].concat();
                            if number(&told(&mut client, "compareAndSet", &fields), 1) == 1 {
                                break;
                            }
                        }
                        *done.entry(counter).or_insert(0) += 1;
                    }
                    done
                })
            })
            .collect();
        let pages = {
            let (both, over) = (&both, &over);
            scope.spawn(move || {
                let (mut client, mut pages) = (both.client(0), 0);
                while !over.load(Ordering::SeqCst) {
                    assert_eq!(all_keys(&mut client, 4).len() as u64, COUNTERS);
                    pages += 1;
                }
                pages
            })
        };
        for epoch in 1..=40 {
            let slots: Vec<SlotEpoch> = (0..2).map(|slot| (slot, epoch)).collect();
            both.two.go((epoch as usize + 1) % 2, &slots);
            std::thread::sleep(Duration::from_millis(5));
        }
        over.store(true, Ordering::SeqCst);
        assert!(pages.join().unwrap() > 0);
        let mut all = BTreeMap::new();
        for writer in writers {
            writer.join().unwrap().into_iter().for_each(|(counter, count)| *all.entry(counter).or_insert(0) += count);
        }
        all
    });
    assert!(counted.values().sum::<u64>() > 40, "{counted:?}");
    for (counter, count) in counted {
        assert_eq!(first.get(&key(counter)), count.to_string().as_bytes(), "counter {counter}");
    }
}

#[test]
fn a_call_waits_for_closed_slots_and_for_a_chain_that_is_not_reached() {
    let both = Both::start(Kind::Int);
    let (mut a, mut b) = (both.client(0), both.client(1));
    a.put("7", b"v");
    let called = both.two.begin(0, &[(0, 1)]);
    let closed = both.two.moving(0).close(&[(0, 1)], "b").unwrap();
    let waits = std::thread::spawn(move || {
        a.put("7", b"w");
        a
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waits.is_finished(), "it was written while its slot was closed");
    both.two.put(0, called, &closed);
    assert!(both.two.moving(1).take(called, &[(0, 1)]).unwrap());
    // What it was has come already: the other chain answers before the first one knows that it may.
    assert_eq!(b.get("7"), b"v");
    both.two.moving(0).give(&closed).unwrap();
    let mut a = waits.join().unwrap();
    assert_eq!((a.get("7"), b.get("7")), (b"w".to_vec(), b"w".to_vec()));

    both.rings[0].unreached.store(true, Ordering::SeqCst);
    let waits = std::thread::spawn(move || {
        a.put("7", b"x");
        a
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waits.is_finished());
    both.rings[0].unreached.store(false, Ordering::SeqCst);
    let mut a = waits.join().unwrap();
    assert_eq!(b.get("7"), b"x");
    // What may have been done is not done again, and said.
    both.rings[0].lost.store(true, Ordering::SeqCst);
    let (kind, answer) = a.call("put", &[text(1, b"7"), text(2, b"y")].concat());
    assert!(kind == EXCEPTION && contains(&answer, "not known whether it was done"), "{answer:?}");
    assert_eq!(b.get("7"), b"y");
    both.rings[0].lost.store(false, Ordering::SeqCst);
    assert_eq!(a.get("7"), b"y");
}

#[test]
fn a_chain_is_asked_for_no_keys_but_its_own() {
    let both = Both::start(Kind::Int);
    let ask = |index: usize, request: AskKeysRequest| {
        let handle = both.handles.lock()[index].clone();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(handle.answer(request))
    };
    let get = |namespace: &str, key: &str| {
        let method = esker_wire::proto::chain::KeyMethod::Get.into();
        let keys = vec![key.to_owned().into()];
        AskKeysRequest { namespace: namespace.into(), method, keys, bytes_max: 1, ..AskKeysRequest::default() }
    };
    both.client(0).put("7", b"v");
    let here = AskKeysResponse { value: Some("v".into()), ..AskKeysResponse::default() };
    assert_eq!(ask(0, get("users:int", "7")), here);
    assert_eq!(ask(1, get("users:int", "7")), AskKeysResponse { elsewhere: true, ..AskKeysResponse::default() });
    for (request, part) in [(get("users:bytes", "7"), "users:int"), (get("users:int", "x7"), "x7")] {
        let error = ask(0, request).error.unwrap();
        assert!(error.message.contains(part), "{error:?}");
    }
    // Of another namespace nothing can come.
    let refused = both.two.moving(1).begin(9, ("a", "users:bytes"), &[(0, 1)]).unwrap_err().to_string();
    assert!(refused.contains("users:bytes") && refused.contains("users:int"), "{refused}");
}

#[test]
fn what_several_chains_find_is_no_more_than_one_answer_may_be() {
    const LEN: usize = 12 << 20;
    let both = Both::start(Kind::Int);
    let mut a = both.client(0);
    both.two.go(0, &[(1, 1)]);
    let keys: Vec<String> = [0, 1, 2].into_iter().chain(RANGE..RANGE + 3).map(|key| key.to_string()).collect();
    keys.iter().for_each(|key| a.put(key, &vec![b'v'; LEN]));
    // More than half of an answer is the other chain's.
    let found = told(&mut a, "multiGet", &list(&keys[2..]));
    assert!((4 * LEN..4 * LEN + 1_024).contains(&found.len()), "{}", found.len());
    let (kind, answer) = a.call("multiGet", &list(&keys));
    assert!(kind == EXCEPTION && contains(&answer, "ANSWER_BYTES_MAX"), "{:?}", &answer[..answer.len().min(200)]);
    assert_eq!(a.get(&keys[5]).len(), LEN);
}

/// What a stopped plan had left was served as the chain's own, and the next plan removed what its clients had put.
#[test]
fn a_chain_whose_move_was_given_up_serves_what_its_clients_put_and_nothing_else() {
    let both = Both::start(Kind::Int);
    both.client(0).put("1", b"left");
    let called = both.two.begin(0, &[(0, 1)]);
    let closed = both.two.moving(0).close(&[(0, 1)], "b").unwrap();
    both.two.put(0, called, &closed);
    both.two.known[1].share(false);
    // It waits until there is nothing left of it.
    let mut b = both.client(1);
    b.send("get", &text(1, b"1"));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(both.two.moving(1).give_up().unwrap(), 1);
    let (kind, answer) = b.answer();
    assert!(kind == REPLY && !contains(&answer, "left"), "{answer:?}");
    b.put("2", b"own");
    both.two.known[1].share(true);
    let serves = both.two.moving(1).thrift();
    let error = both.two.moving(1).begin(7, ("a", &serves), &[(0, 1)]).unwrap_err();
    assert!(error.to_string().contains("holds 1 keys"), "{error}");
    both.two.known[1].share(false);
    assert_eq!((b.get("1"), b.get("2")), (b"missing".to_vec(), b"own".to_vec()));
    both.two.moving(0).reopen(closed.slots(), "b").unwrap();
    assert_eq!(both.client(0).get("1"), b"left");
}

/// A page was refused as of slots that go where the chains were not seen between two looks.
#[test]
fn a_page_is_read_anew_where_the_chains_are_not_seen_for_a_moment() {
    const LOOKS: u32 = 10;
    let both = Both::start(Kind::Int);
    let (mut a, slots) = (both.client(0), [(0, 1), (2, 1)]);
    let keys: Vec<String> = (0..4).map(|slot: u64| (slot * RANGE).to_string()).collect();
    keys.iter().for_each(|key| a.put(key, b"v"));
    both.two.go(0, &slots);
    for one in 0..LOOKS {
        for other in one..LOOKS {
            both.rings[0].unseen.store(1 << one | 1 << other, Ordering::SeqCst);
            assert_eq!(all_keys(&mut a, 100), keys, "looks {one} and {other}");
        }
    }
}

#[test]
fn what_the_own_chain_finds_of_a_call_of_several_has_its_share_too() {
    let both = Both::start(Kind::Int);
    let mut a = both.client(0);
    a.put("7", &vec![b'v'; 12 << 20]);
    both.two.go(0, &[(1, 1)]);
    let several = list(&["7".to_owned(), RANGE.to_string()]);
    assert!(told(&mut a, "multiGet", &several).len() > 12 << 20);
    // With the own value it was more than there was memory for: both are read anew, with memory for all of it.
    assert_eq!(both.passed_on(0), 2.0);
    both.rings[0].hangs.store(true, Ordering::SeqCst);
    a.send("multiGet", &several);
    both.asked(0, 3.0);
    assert!(both.figure(0, "memory_bytes") < f64::from(12 << 20));
    both.rings[0].hangs.store(false, Ordering::SeqCst);
    assert!(a.answer().1.len() > 12 << 20);
}

#[test]
fn only_keys_that_are_put_are_noted_while_their_slots_are_gathered() {
    let both = Both::start(Kind::Int);
    let mut a = both.client(0);
    a.put("1", b"v");
    both.two.moving(0).gather(&[0], &|| true).unwrap();
    let count = || both.two.moving(0).gathered(0);
    assert_eq!(count(), Some(1));
    let missing: Vec<String> = (10..30).map(|key| key.to_string()).collect();
    told(&mut a, "multiGet", &list(&missing));
    told(&mut a, "removeMany", &list(&missing));
    let refused = [text(1, b"40"), text(2, b"other"), text(3, b"new")].concat();
    assert_eq!(number(&told(&mut a, "compareAndSet", &refused), 1), 0);
    assert_eq!(number(&told(&mut a, "update", &[text(1, b"41"), text(2, b"v")].concat()), 1), 0);
    assert_eq!(count(), Some(1));
    told(&mut a, "multiPut", &pairs(&[("2".into(), "v".into()), ("3".into(), "v".into())]));
    assert_eq!(number(&told(&mut a, "add", &[text(1, b"42"), text(2, b"v")].concat()), 1), 1);
    assert_eq!(count(), Some(4));
}

#[test]
fn what_may_have_been_done_is_told_before_what_was_not() {
    let both = Both::start(Kind::Int);
    let mut a = both.client(0);
    both.two.go(0, &[(1, 1)]);
    both.two.begin(0, &[(0, 1)]);
    let closed = both.two.moving(0).close(&[(0, 1)], "b").unwrap();
    both.two.moving(0).tell_that_it_lasts();
    both.rings[0].lost.store(true, Ordering::SeqCst);
    let all = [("1".to_owned(), "v".to_owned()), ((RANGE + 1).to_string(), "v".to_owned())];
    let (kind, answer) = a.call("multiPut", &pairs(&all));
    assert!(kind == EXCEPTION && contains(&answer, "not known whether it was done"), "{answer:?}");
    // Of one chain alone it is known.
    let (kind, answer) = a.call("put", &[text(1, b"1"), text(2, b"v")].concat());
    assert!(kind == EXCEPTION && contains(&answer, "nothing was done"), "{answer:?}");
    both.rings[0].lost.store(false, Ordering::SeqCst);
    // The other says so itself.
    let message = "it stops; it is not known".into();
    let unknown = KeyError { kind: 6, message, unknown: true, undone: false };
    *both.rings[0].says.lock() = Some(AskKeysResponse { error: Some(unknown), ..AskKeysResponse::default() });
    let (kind, answer) = a.call("multiPut", &pairs(&all));
    assert!(kind == EXCEPTION && contains(&answer, "it stops; it is not known"), "{answer:?}");
    *both.rings[0].says.lock() = None;
    let (kind, answer) = a.call("multiPut", &pairs(&all));
    assert!(kind == EXCEPTION && contains(&answer, "some may be done"), "{answer:?}");
    assert!(!contains(&answer, "nothing was done: "), "{answer:?}");
    both.two.moving(0).reopen(closed.slots(), "b").unwrap();
    told(&mut a, "multiPut", &pairs(&all));
}

#[test]
fn a_chain_that_has_no_head_for_a_moment_is_waited_for() {
    let both = Both::start(Kind::Int);
    let mut a = both.client(0);
    both.two.go(0, &[(1, 1)]);
    let message = "nothing was done: the lease has run out".into();
    let none = KeyError { kind: 6, message, unknown: false, undone: true };
    *both.rings[0].says.lock() = Some(AskKeysResponse { error: Some(none), ..AskKeysResponse::default() });
    let key = (RANGE + 1).to_string();
    a.send("put", &[text(1, key.as_bytes()), text(2, b"v")].concat());
    both.asked(0, 3.0);
    *both.rings[0].says.lock() = None;
    assert_eq!(a.answer().0, REPLY);
    *both.rings[0].says.lock() = Some(AskKeysResponse {
        error: Some(KeyError { message: "its own".into(), kind: 6, unknown: false, undone: false }),
        ..AskKeysResponse::default()
    });
    let (kind, answer) = a.call("put", &[text(1, key.as_bytes()), text(2, b"v")].concat());
    assert!(kind == EXCEPTION && contains(&answer, "its own"), "another error is told at once: {answer:?}");
}

#[test]
fn a_chain_of_ones_own_that_has_no_head_for_a_moment_is_waited_for() {
    let both = Both::start(Kind::Int);
    both.two.go(0, &[(1, 1)]);
    both.client(0).put("7", b"v");
    // Of this server's chain, and of the other's, asked by this one.
    for (headless, key) in [(0, "7".to_owned()), (1, (RANGE + 7).to_string())] {
        let key = text(1, key.as_bytes());
        let put = [key.clone(), text(2, b"w")].concat();
        told(&mut both.client(0), "put", &put);
        let known = &both.two.known[headless];
        known.has_head.store(false, Ordering::SeqCst);
        let calls = [("get", key.clone()), ("has", key.clone()), ("put", put), ("count", Vec::new()), ("remove", key)];
        let mut clients: Vec<_> = calls.iter().map(|_| both.client(0)).collect();
        for (client, (method, fields)) in clients.iter_mut().zip(&calls) {
            client.send(method, fields);
        }
        std::thread::sleep(Duration::from_millis(300));
        known.has_head.store(true, Ordering::SeqCst);
        for (client, (method, _)) in clients.iter_mut().zip(&calls) {
            let (kind, answer) = client.answer();
            assert!(kind == REPLY, "{method}, chain {headless}: {}", String::from_utf8_lossy(&answer));
        }
    }
}

#[test]
fn a_server_that_stops_tells_those_who_wait_for_a_head_that_nothing_was_done() {
    let both = Both::start(Kind::Int);
    both.two.known[0].has_head.store(false, Ordering::SeqCst);
    let mut client = both.client(0);
    client.send("put", &[text(1, b"7"), text(2, b"v")].concat());
    while both.two.known[0].refused.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    both.handles.lock()[0].shutdown();
    let (kind, answer) = client.answer();
    assert!(kind == EXCEPTION && contains(&answer, "nothing was done: this server stops"), "{answer:?}");
}

#[test]
fn a_server_that_stops_does_nothing_more_for_other_chains() {
    let both = Both::start(Kind::Int);
    both.client(0).put("7", b"v");
    let handle = both.handles.lock()[0].clone();
    handle.shutdown();
    let method = esker_wire::proto::chain::KeyMethod::Put.into();
    let (keys, values) = (vec!["7".into()], vec!["w".into()]);
    let put = AskKeysRequest { namespace: "users:int".into(), method, keys, values, ..AskKeysRequest::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let answer = runtime.block_on(handle.answer(put));
    assert_eq!(answer, AskKeysResponse { elsewhere: true, ..AskKeysResponse::default() });
}

#[test]
fn a_chain_that_does_not_answer_takes_no_memory_from_calls_about_keys_of_others() {
    const EACH: usize = 8;
    // Five values may be read at once, and one long message come.
    let both = Both::with_memory(Kind::Int, 193 << 20);
    let long = vec![b'v'; 12 << 20];
    let mut a = both.client(0);
    a.put("7", &long);
    both.two.go(0, &[(1, 1)]);
    both.rings[0].hangs.store(true, Ordering::SeqCst);
    let key = text(1, RANGE.to_string().as_bytes());
    let put = [key.clone(), text(2, &long)].concat();
    let several = list(&["7".to_owned(), RANGE.to_string()]);
    let calls = [("get", &key), ("remove", &key), ("put", &put), ("multiGet", &several)];
    let mut waiting: Vec<(&str, Client)> = (0..EACH * calls.len())
        .map(|number| {
            let (method, fields) = calls[number % calls.len()];
            let mut client = both.client(0);
            client.0.set_write_timeout(Some(PATIENCE)).unwrap();
            client.send(method, fields);
            (method, client)
        })
        .collect();
    both.asked(0, waiting.len() as f64);
    // While all of them wait.
    assert_eq!(a.get("7").len(), long.len());
    a.put("8", &long);
    assert!(contains(&told(&mut a, "multiGet", &list(&["8".into(), "9".into()])), "vvv"));
    assert_eq!(number(&told(&mut a, "remove", &text(1, b"7")), 4), 0);
    both.rings[0].hangs.store(false, Ordering::SeqCst);
    for (method, client) in &mut waiting {
        let (kind, answer) = client.answer();
        // Of the long answers that are ready at once some find no memory.
        let told = ["does not answer", "for an answer of"].iter().any(|why| contains(&answer, why));
        assert!(kind == REPLY || told, "{method}: {}", String::from_utf8_lossy(&answer[..answer.len().min(300)]));
    }
}

#[test]
fn what_another_chain_is_only_to_read_is_not_waited_for_for_ever() {
    let both = Both::start(Kind::Int);
    both.two.go(0, &[(1, 1)]);
    both.rings[0].hangs.store(true, Ordering::SeqCst);
    let (mut one, mut page) = (both.client(0), both.client(0));
    one.send("get", &text(1, RANGE.to_string().as_bytes()));
    page.send("iterate", &[text(1, b""), vec![8, 0, 2, 0, 0, 0, 9]].concat());
    for client in [&mut one, &mut page] {
        let (kind, answer) = client.answer();
        assert!(kind == EXCEPTION && contains(&answer, "does not answer, for 10 s"), "{answer:?}");
    }
    both.rings[0].hangs.store(false, Ordering::SeqCst);
}

#[test]
fn the_mode_is_set_also_where_slots_may_go_to() {
    let both = Both::start(Kind::Int);
    let (mut a, mut b) = (both.client(0), both.client(1));
    let mut set = |own: usize, mode: u8| {
        let clients = [&mut a, &mut b];
        told(clients[own], "setMode", &[8, 0, 1, 0, 0, 0, mode]);
        for (index, client) in clients.into_iter().enumerate() {
            assert_eq!(number(&told(client, "mode", &[]), 4), i64::from(mode), "of {index}, set at {own}");
        }
    };
    // The second keeps no slot yet.
    set(0, 2);
    set(0, 1);
    set(1, 2);
    // What is asynchronous there was made safe before its slots come.
    set(0, 1);
    both.two.go(0, &[(1, 1)]);
    set(0, 2);
    // It has given its last away.
    both.two.go(1, &[(1, 2)]);
    set(0, 1);
}

#[test]
fn calls_about_closed_slots_hold_up_no_others_between_two_servers() {
    let both = Both::start(Kind::Int);
    let mut a = both.client(0);
    both.two.go(0, &[(1, 1), (2, 1)]);
    let [closing, open] = [RANGE, 2 * RANGE].map(|key| key.to_string());
    a.put(&open, b"v");
    let called = both.two.begin(1, &[(1, 2)]);
    let closed = both.two.moving(1).close(&[(1, 2)], "a").unwrap();
    let mut waiting: Vec<_> = (0..4 * PLACES).map(|_| both.client(0)).collect();
    let calls = [
        ("put", [text(1, closing.as_bytes()), text(2, b"w")].concat()),
        ("iterate", [text(1, b""), vec![8, 0, 2, 0, 0, 0, 9]].concat()),
    ];
    for (number, client) in waiting.iter_mut().enumerate() {
        let (method, fields) = &calls[number % calls.len()];
        client.send(method, fields);
    }
    both.asked(0, 6.0 * PLACES as f64);
    for _ in 0..10 {
        assert_eq!(a.get(&open), b"v");
    }
    both.two.put(1, called, &closed);
    assert!(both.two.moving(0).take(called, &[(1, 2)]).unwrap());
    both.two.moving(1).give(&closed).unwrap();
    for client in &mut waiting {
        let (kind, answer) = client.answer();
        assert_eq!(kind, REPLY, "{}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(both.client(1).get(&closing), b"w");
}

#[test]
fn counts_and_modes_wait_for_a_chain_that_is_not_reached() {
    let both = Both::start(Kind::Int);
    both.client(0).put("7", b"v");
    both.two.go(0, &[(1, 1)]);
    both.client(0).put(&RANGE.to_string(), b"v");
    let unreached = &both.rings[0].unreached;
    let calls = [("count", Vec::new()), ("setMode", vec![8, 0, 1, 0, 0, 0, 2])];
    let mut waiting = calls.clone().map(|(method, fields)| {
        unreached.store(true, Ordering::SeqCst);
        let mut client = both.client(0);
        client.send(method, &fields);
        client
    });
    std::thread::sleep(Duration::from_millis(100));
    unreached.store(false, Ordering::SeqCst);
    let answers = waiting.each_mut().map(Client::answer);
    assert_eq!(answers.each_ref().map(|(kind, _)| *kind), [REPLY, REPLY]);
    assert_eq!(number(&answers[0].1, 8), 2);
    assert_eq!(number(&told(&mut both.client(1), "mode", &[]), 4), 2);
    // Not for ever, and then it is said where it was set.
    unreached.store(true, Ordering::SeqCst);
    for ((method, fields), client) in calls.iter().zip(&mut waiting) {
        client.send(method, fields);
    }
    for (client, part) in
        waiting.iter_mut().zip(["not reached, for 10 s", "the mode is set at 1 of 2 chains: the other"])
    {
        let (kind, answer) = client.answer();
        assert!(kind == EXCEPTION && contains(&answer, part), "{}", String::from_utf8_lossy(&answer));
    }
}

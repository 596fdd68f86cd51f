//! Entries of names in the shards of their collections: many in one operation.
//!
//! ```text
//! makers → one operation under way for a collection, on a shard in turn → each is told
//!               │ others come meanwhile
//!               └→ the next operation, with all of them
//! ```
//!
//! Invariants:
//! 1. Each maker has a token of its own, and so an entry of its own: who drops it takes none from another.
//! 2. An entry that may have been added is dropped only by who knows that no object is, or will be, made under it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::channel;

use esker_store::{Collection, Error, ObjectId, Result};
use parking_lot::Mutex;

use crate::encode::{self, Entry, SHARDS};
use crate::link::{Link, code, error};
use crate::names::{self, TOKEN};
use crate::native::{Compare, Failed, Write, flags};

/// Entries of one operation, at most.
const AT_ONCE: usize = 512;
/// How often an entry is tried again under another token of its collection.
const TRIES: u32 = 5;
/// Collections whose tokens are remembered, at most.
const TOKENS: usize = 1_024;

type Told = Box<dyn FnOnce(Result<Entry>) + Send>;

/// A maker that waits for its entry.
struct Maker {
    name: bytes::Bytes,
    token: u128,
    told: Told,
    tries: u32,
}

/// Makers of a collection.
#[derive(Default)]
struct Queue {
    waiting: Vec<Maker>,
    shard: u32,
}

/// The entries of a store.
pub(crate) struct Entries {
    link: Link,
    /// Those of collections with an operation under way.
    queues: Mutex<HashMap<Collection, Queue>>,
    /// The tokens of collections, as they were when they were last read.
    tokens: Mutex<HashMap<Collection, Vec<u8>>>,
}

impl Entries {
    pub(crate) fn new(link: Link) -> Arc<Self> {
        Arc::new(Self { link, queues: Mutex::default(), tokens: Mutex::default() })
    }

    /// Adds an entry for an object that is to be made. `told` is called once, by this thread or one of librados.
    pub(crate) fn add(self: &Arc<Self>, id: &ObjectId, told: impl FnOnce(Result<Entry>) + Send + 'static) {
        let mut token = [0; 16];
        if let Err(failed) = getrandom::fill(&mut token) {
            told(Err(Error::io("random numbers", std::io::Error::other(failed.to_string()))));
            return;
        }
        let (name, token) = (id.name().clone(), u128::from_le_bytes(token));
        let maker = Maker { name, token, told: Box::new(told), tries: 0 };
        let collection = id.collection();
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.get_mut(collection) {
            queue.waiting.push(maker);
            return;
        }
        let shard = fastrand::u32(0..SHARDS);
        queues.insert(collection.clone(), Queue { waiting: vec![maker], shard });
        drop(queues);
        self.begin(collection.clone());
    }

    /// As [`Entries::add`], and waits for it: on no thread of librados.
    pub(crate) fn add_and_wait(self: &Arc<Self>, id: &ObjectId) -> Result<Entry> {
        let (tell, told) = channel();
        self.add(id, move |added| {
            let _ = tell.send(added);
        });
        told.recv().unwrap_or_else(|_| Err(error(LATE, "writing", &encode::shard(id.collection(), 0))))
    }

    /// Begins the next operation of a collection, if there are makers.
    fn begin(self: &Arc<Self>, collection: Collection) {
        let known = self.tokens.lock().get(&collection).cloned();
        match known {
            Some(token) => self.add_all(collection, token),
            None => {
                let own = Arc::clone(self);
                names::read_token(&self.link, &collection.clone(), move |found| match found {
                    Ok(Some(token)) => {
                        let mut tokens = own.tokens.lock();
                        if tokens.len() >= TOKENS {
                            tokens.clear();
                        }
                        tokens.insert(collection.clone(), token.clone());
                        drop(tokens);
                        own.add_all(collection, token);
                    }
                    Ok(None) => own.refuse(&collection, || names::no_collection(&collection)),
                    Err(unread) => own.refuse(&collection, || unread.error(&collection)),
                });
            }
        }
    }

    /// Tells all makers that there are that they fail.
    fn refuse(&self, collection: &Collection, error: impl Fn() -> Error) {
        let queue = self.queues.lock().remove(collection).unwrap_or_default();
        for maker in queue.waiting {
            (maker.told)(Err(error()));
        }
    }

    fn add_all(self: &Arc<Self>, collection: Collection, token: Vec<u8>) {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(&collection) else { return };
        if queue.waiting.is_empty() {
            queues.remove(&collection);
            return;
        }
        let rest = queue.waiting.split_off(queue.waiting.len().min(AT_ONCE));
        let makers = std::mem::replace(&mut queue.waiting, rest);
        let number = queue.shard;
        queue.shard = (number + 1) % SHARDS;
        drop(queues);
        let shard = encode::shard(&collection, number);
        let entry = move |maker: &Maker| Entry { shard: number, token: maker.token, on_tomb: false };
        let keys: Vec<Vec<u8>> = makers.iter().map(|maker| entry(maker).key(&maker.name)).collect();
        let mut write = Write::new();
        write.compare_xattr(TOKEN, Compare::Equal, &token);
        write.set_omap(&keys.iter().map(|key| (&key[..], &[encode::VALUE][..])).collect::<Vec<_>>());
        let own = Arc::clone(self);
        self.link.pool.write(&shard.clone(), write, flags::FULL_TRY, move |outcome| {
            let again = matches!(outcome, Err(Failed { code: code::NOT_THERE | code::CANCELED, .. }));
            let mut told: Vec<(Told, Result<Entry>)> = Vec::new();
            if again {
                // The collection is another by now, or is gone.
                own.tokens.lock().remove(&collection);
                let mut queues = own.queues.lock();
                let waiting = &mut queues.entry(collection.clone()).or_default().waiting;
                for maker in makers {
                    if maker.tries == TRIES {
                        told.push((maker.told, Err(names::no_collection(&collection))));
                    } else {
                        waiting.push(Maker { tries: maker.tries + 1, ..maker });
                    }
                }
            } else {
                for maker in makers {
                    // Only entries were added, if anything.
                    let added = outcome.map(|_| entry(&maker)).map_err(|failed| error(failed, "writing", &shard));
                    told.push((maker.told, added));
                }
            }
            own.begin(collection);
            for (told, added) in told {
                told(added);
            }
        });
    }

    /// Drops the entry of an object that is not there, and will not be under this token. A failure leaves it there.
    pub(crate) fn drop_entry(&self, id: &ObjectId, entry: Entry, told: impl FnOnce() + Send + 'static) {
        let mut write = Write::new();
        write.assert_exists();
        write.remove_omap(&[&entry.key(id.name())]);
        let shard = encode::shard(id.collection(), entry.shard);
        self.link.pool.write(&shard, write, flags::FULL_TRY, move |_| told());
    }

    /// As [`Entries::drop_entry`], and waits for it: on no thread of librados.
    pub(crate) fn drop_and_wait(&self, id: &ObjectId, entry: Entry) {
        let (tell, told) = channel::<()>();
        self.drop_entry(id, entry, move || drop(tell));
        // Ends with what tells.
        let _ = told.recv();
    }
}

const LATE: Failed = Failed { code: code::TIMED_OUT, guard: None };

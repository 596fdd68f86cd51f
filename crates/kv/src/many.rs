//! Values of several keys that stand in several objects: who is asked for which, and for how many at once.
//!
//! keys → [`Asked`], one for each object → turns: the next begins once the values of the one before are counted →
//! values, in the order of the keys
//!
//! Invariants:
//! 1. The values of an answer have [`GET_MANY_BYTES_MAX`] bytes together, in however many objects they stand; else the
//!    answer is the store's `TooLarge`, as it is where all stand in one.
//! 2. Each turn asks one object at least; the keys of one object are asked for at one moment.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use esker_store::limits::{GET_MANY_BYTES_MAX, Together};
use esker_store::{Applied, Barrier, Completion, Error, Later, ObjectId, ObjectStore};

use crate::VALUE_BYTES_MAX;

/// Keys that a first turn asks for, of which nothing is known: the largest values of so many may be answered with.
pub(crate) const FIRST_KEYS: usize = GET_MANY_BYTES_MAX / (VALUE_BYTES_MAX + 16);
/// How many times as many keys a turn asks for as the one before, at most: what is known of few values says little of
/// very many.
const GROWTH: usize = 4;

/// Keys of one object.
pub(crate) enum Places {
    Omap(Vec<Bytes>),
    Slots(Vec<u64>),
}

/// What one object is asked for.
pub(crate) struct Asked {
    pub object: ObjectId,
    pub places: Places,
    /// Where each of the keys stands among those of all objects.
    pub at: Vec<usize>,
}

impl Asked {
    fn begin(&self, store: &dyn ObjectStore) -> Completion<Vec<Option<Bytes>>> {
        match &self.places {
            Places::Omap(keys) => store.omap_get_many(&self.object, keys),
            Places::Slots(indexes) => store.slot_get_many(&self.object, indexes),
        }
    }
}

/// The values of `len` keys. A first turn asks for `first` of them, or for all that the first object is asked for if
/// those are more; later ones for [`GROWTH`] times as many as the one before, if so many fit what is left and none is
/// larger than the largest before.
pub(crate) fn values(
    store: &Arc<dyn ObjectStore>,
    len: usize,
    asked: Vec<Asked>,
    first: usize,
) -> Completion<Vec<Option<Bytes>>> {
    let mut turns = Turns {
        store: Arc::clone(store),
        rest: asked.into_iter(),
        at: Vec::new(),
        under_way: Completion::ready(Ok(Vec::new())),
        found: vec![None; len],
        together: Together::default(),
        bytes: 0,
        largest: 1,
        keys: 0,
        barrier: None,
    };
    turns.begin(first);
    while turns.under_way.is_here() {
        if let Some((outcome, barrier)) = turns.next() {
            return Completion::after(outcome, barrier);
        }
    }
    Completion::later(Box::new(turns))
}

struct Turns {
    store: Arc<dyn ObjectStore>,
    rest: std::vec::IntoIter<Asked>,
    /// Of the turn under way, by objects.
    at: Vec<Vec<usize>>,
    under_way: Completion<Vec<Vec<Option<Bytes>>>>,
    found: Vec<Option<Bytes>>,
    together: Together,
    /// As `together` counts them.
    bytes: usize,
    /// Bytes of the largest value found.
    largest: usize,
    /// Of the turn under way.
    keys: usize,
    barrier: Option<Barrier>,
}

impl Turns {
    /// Begins a turn of so many keys, or of one object if that is asked for more.
    fn begin(&mut self, keys_max: usize) {
        let mut begun = Vec::new();
        self.at.clear();
        self.keys = 0;
        while let Some(asked) = self.rest.as_slice().first()
            && (begun.is_empty() || self.keys + asked.at.len() <= keys_max)
            && let Some(asked) = self.rest.next()
        {
            self.keys += asked.at.len();
            begun.push(asked.begin(&*self.store));
            self.at.push(asked.at);
        }
        self.under_way = Completion::all(begun);
    }

    /// Counts what the turn under way has found and begins the next; the outcome, if there is none.
    fn next(&mut self) -> Option<Applied<Vec<Option<Bytes>>>> {
        let under_way = std::mem::replace(&mut self.under_way, Completion::ready(Err(Error::Closed)));
        let counted = under_way.applied(&mut self.barrier).and_then(|values| self.count(values));
        if let Err(error) = counted {
            return Some((Err(error), self.barrier.take()));
        }
        if self.rest.len() == 0 {
            return Some((Ok(std::mem::take(&mut self.found)), self.barrier.take()));
        }
        self.begin((GROWTH * self.keys).min((GET_MANY_BYTES_MAX - self.bytes) / self.largest));
        None
    }

    fn count(&mut self, values: Vec<Vec<Option<Bytes>>>) -> esker_store::Result<()> {
        for (at, values) in self.at.iter().zip(values) {
            for (at, value) in at.iter().zip(values) {
                let len = value.as_ref().map_or(0, Bytes::len);
                self.together.add(len)?;
                self.bytes += len;
                self.largest = self.largest.max(len);
                self.found[*at] = value;
            }
        }
        Ok(())
    }
}

impl Later<Vec<Option<Bytes>>> for Turns {
    fn wait(mut self: Box<Self>) -> Applied<Vec<Option<Bytes>>> {
        loop {
            if let Some(outcome) = self.next() {
                return outcome;
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Applied<Vec<Option<Bytes>>>> {
        while self.under_way.poll_arrived(cx).is_ready() {
            if let Some(outcome) = self.next() {
                return Poll::Ready(outcome);
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use esker_memory::MemoryStore;
    use esker_store::{Change, Forward, Transaction};

    use super::*;

    /// An answer that is there when it is asked about twice.
    struct Second(Option<Applied<Vec<Option<Bytes>>>>, bool);

    impl Later<Vec<Option<Bytes>>> for Second {
        fn wait(mut self: Box<Self>) -> Applied<Vec<Option<Bytes>>> {
            self.0.take().unwrap()
        }

        fn poll(&mut self, _: &mut Context<'_>) -> Poll<Applied<Vec<Option<Bytes>>>> {
            if std::mem::replace(&mut self.1, true) { Poll::Ready(self.0.take().unwrap()) } else { Poll::Pending }
        }
    }

    struct Slow(Arc<MemoryStore>);

    impl Forward for Slow {
        fn behind(&self) -> &dyn ObjectStore {
            &*self.0
        }

        fn omap_get_many(&self, object: &ObjectId, keys: &[Bytes]) -> Completion<Vec<Option<Bytes>>> {
            let answer = self.0.omap_get_many(object, keys).into_parts();
            Completion::later(Box::new(Second(Some(answer), false)))
        }
    }

    #[test]
    fn a_task_that_polls_gets_what_a_thread_gets_that_waits() {
        let memory = Arc::new(MemoryStore::new());
        let object = |n: usize| ObjectId::new("c".into(), format!("{n}"));
        let mut txn = Transaction::new().create_collection(&"c".into());
        for n in 0..9 {
            txn.push(&object(n % 3), Change::OmapSet { key: n.to_string().into(), value: n.to_string().into() });
        }
        memory.submit(txn).wait().unwrap();
        let asked = || {
            let of = |n: usize| Asked {
                object: object(n),
                places: Places::Omap(vec![n.to_string().into(), "none".into(), (n + 3).to_string().into()]),
                at: vec![n, 5 - n, 6 + n],
            };
            (0..3).map(of).collect::<Vec<_>>()
        };
        let wanted = ["0", "1", "2", "", "", "", "3", "4", "5"];
        let wanted: Vec<_> = wanted.iter().map(|text| (!text.is_empty()).then(|| Bytes::from(*text))).collect();
        let here: Arc<dyn ObjectStore> = memory.clone();
        let slow: Arc<dyn ObjectStore> = Arc::new(Slow(memory));
        // A first turn asks one object at least.
        for (first, turns) in [(1, 2), (3, 2), (8, 2), (9, 1)] {
            assert!(values(&here, 9, asked(), first).is_here());
            assert_eq!(values(&here, 9, asked(), first).wait().unwrap(), wanted);
            assert_eq!(values(&slow, 9, asked(), first).wait().unwrap(), wanted);
            let (mut polled, mut polls) = (values(&slow, 9, asked(), first), 1);
            while polled.poll_arrived(&mut Context::from_waker(Waker::noop())).is_pending() {
                polls += 1;
            }
            assert_eq!((polled.wait().unwrap(), polls), (wanted.clone(), turns + 1), "first {first}");
        }
    }
}

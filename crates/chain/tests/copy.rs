//! Bringing stores up: whatever the target held, afterwards every read of both gives the same.
//!
//! seed → two stores with histories of their own → `bring_up` → everything is compared

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod copies;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use copies::{Store, engine, fill, history, memory, same, wild};
use esker_chain::copy::{Content, Options, Page, Report, Source, Span, StoreSource, bring_up};
use esker_memory::MemoryStore;
use esker_store::contract::PerObject;
use esker_store::model::{Generator, GeneratorOptions};
use esker_store::{
    Change, Collection, CommitSeq, Completion, Durability, Error, Forward, ObjectId, ObjectStore, Result, Transaction,
    limits,
};
use fastrand::Rng;

fn object(name: &'static str) -> ObjectId {
    ObjectId::new(Collection::from("c"), name)
}

fn source(store: &Store) -> StoreSource {
    StoreSource::new(store.snapshot().unwrap().store, [])
}

fn copied(target: &dyn ObjectStore, source: &dyn Source) -> Result<Report> {
    bring_up(target, source, &[], Options { rate_bytes_per_s: None, in_flight: 3 }, &mut |_| true)
}

/// Copies, compares, and copies again, which finds nothing to do.
fn copy(target: &dyn ObjectStore, from: &Store, what: &str) -> Report {
    let source = source(from);
    let report = copied(target, &source).unwrap();
    same(&**from, target, what);
    let again = copied(target, &source).unwrap();
    assert_eq!((again.pages_fetched, again.bytes_fetched, again.removed), (0, 0, 0), "{what}: a second time");
    report
}

/// Each way of two stores to stand on memory and on the engine.
fn pairs() -> [(&'static str, Store, Store); 4] {
    pairs_with(256 << 20, 8 << 20)
}

fn pairs_with(device_bytes: u64, segment_bytes: u64) -> [(&'static str, Store, Store); 4] {
    let engine = || engine(device_bytes, segment_bytes);
    [
        ("memory to memory", memory(), memory()),
        ("memory to engine", memory(), engine()),
        ("engine to memory", engine(), memory()),
        ("engine to engine", engine(), engine()),
    ]
}

#[test]
fn any_state_is_brought_to_any_other() {
    for seed in 0..12 {
        for (what, from, to) in pairs() {
            wild(&*from, &mut Rng::with_seed(seed), 120);
            // Another history, or the beginning of the same, or what came later.
            match seed % 3 {
                0 => wild(&*to, &mut Rng::with_seed(seed + 1_000), 120),
                1 => wild(&*to, &mut Rng::with_seed(seed), 90),
                _ => {
                    let mut rng = Rng::with_seed(seed);
                    wild(&*to, &mut rng, 120);
                    wild(&*to, &mut rng, 20);
                }
            }
            copy(&*to, &from, &format!("seed {seed}, {what}"));
        }
    }
}

#[test]
fn an_empty_store_is_brought_to_any_state_and_back() {
    for seed in 20..24 {
        for (what, from, to) in pairs() {
            let what = format!("seed {seed}, {what}");
            wild(&*from, &mut Rng::with_seed(seed), 100);
            let report = copy(&*to, &from, &what);
            assert_eq!(report.removed, 0, "{what}: there was nothing to remove");
            let nothing = memory();
            copy(&*to, &nothing, &what);
            assert_eq!(to.collections().wait().unwrap(), []);
        }
    }
}

/// The histories that backends are tested with: huge sparse objects, clones, names at their limits.
#[test]
fn what_the_model_generates_is_what_the_copy_holds() {
    for seed in 0..16 {
        for (what, from, to) in pairs() {
            let mut generator = Generator::new(seed, GeneratorOptions::default());
            history(&*from, &mut generator, 150);
            let other = if seed % 2 == 0 { seed } else { seed + 500 };
            history(&*to, &mut Generator::new(other, GeneratorOptions::default()), 100);
            copy(&*to, &from, &format!("seed {seed}, {what}"));
            let difference = generator.model().diff(&*to);
            assert_eq!(difference, None, "seed {seed}, {what}");
        }
    }
}

/// A store whose transactions are of one object of one collection.
#[test]
fn a_target_that_changes_one_object_at_a_time_is_brought_up() {
    for seed in 0..8 {
        let from = memory();
        wild(&*from, &mut Rng::with_seed(seed), 120);
        let below = MemoryStore::new();
        wild(&below, &mut Rng::with_seed(seed + 50), 120);
        copy(&PerObject(below), &from, &format!("seed {seed}"));
    }
}

/// 10,000 keys of 100 bytes in about 5 pages.
fn keys(store: &Store) {
    fill(&**store, "c", 10_000, |number| {
        (object("keys"), Change::OmapSet { key: key(number), value: vec![number as u8; 100].into() })
    });
}

fn key(number: u64) -> Bytes {
    format!("{number:08}").into()
}

#[test]
fn one_key_of_many_moves_one_page() {
    for (what, from, to) in pairs() {
        keys(&from);
        let report = copy(&*to, &from, what);
        assert!((6..=12).contains(&report.pages) && report.bytes_fetched > 1_000_000, "{what}: {report:?}");
        let change =
            |change| from.submit(Transaction::new().change(&object("keys"), change)).wait().map(|_| ()).unwrap();
        let moved = |bytes_max| {
            let report = copy(&*to, &from, what);
            assert!(report.pages_fetched == 1 && report.bytes_fetched <= bytes_max, "{what}: {report:?}");
        };
        change(Change::OmapSet { key: key(5_000), value: "changed".into() });
        moved(256 << 10);
        // All pages behind it are cut elsewhere, and hold the same.
        change(Change::OmapSet { key: Bytes::from("00001000 and more"), value: "new".into() });
        moved(257 << 10);
        change(Change::OmapRemove { key: key(20) });
        moved(256 << 10);
        // An attribute is moved without the keys, a size without anything.
        change(Change::XattrSet { name: "name".into(), value: "value".into() });
        moved(100);
        change(Change::Truncate { size: 100 << 20 });
        assert_eq!(copy(&*to, &from, what).pages_fetched, 0, "{what}");
    }
}

#[test]
fn one_byte_of_many_moves_one_chunk() {
    for (what, from, to) in pairs() {
        fill(&*from, "c", 10, |number| {
            (object("bytes"), Change::Write { offset: number << 20, data: vec![number as u8 + 1; 1 << 20].into() })
        });
        copy(&*to, &from, what);
        let write = Change::Write { offset: (5 << 20) - 1, data: "x".into() };
        from.submit(Transaction::new().change(&object("bytes"), write)).wait().unwrap();
        let report = copy(&*to, &from, what);
        assert_eq!((report.pages_fetched, report.removed), (1, 0), "{what}");
    }
}

/// Stopped after each of many pages, each time with another source before it goes on.
#[test]
fn a_copy_that_was_cut_goes_on_to_a_later_state() {
    for (what, from, to) in pairs() {
        let mut rng = Rng::with_seed(7);
        wild(&*to, &mut Rng::with_seed(8), 60);
        let mut stopped = 0;
        for cut in 1..40 {
            wild(&*from, &mut rng, 10);
            let source = source(&from);
            let ended = bring_up(&*to, &source, &[], Options::default(), &mut |progress| progress.pages < cut);
            match ended {
                Ok(_) => same(&*from, &*to, what),
                Err(Error::Stopped { .. }) => stopped += 1,
                Err(error) => panic!("{what}: {error}"),
            }
        }
        assert!(stopped > 20, "{what}: {stopped}");
        wild(&*from, &mut rng, 10);
        copy(&*to, &from, what);
    }
}

#[test]
fn collections_that_are_left_out_stay_as_they_are() {
    for (what, from, to) in pairs() {
        let put = |store: &Store, collection: &'static str, value: &'static str| {
            fill(&**store, collection, 3, |number| {
                let object = ObjectId::new(Collection::from(collection), format!("{value} {number}"));
                (object, Change::OmapSet { key: "key".into(), value: value.into() })
            });
        };
        for collection in ["a", "c", "e"] {
            put(&from, collection, "theirs");
            put(&to, collection, "ours");
        }
        put(&to, "b", "ours");
        let before = memory();
        ["b", "c", "e"].into_iter().for_each(|collection| put(&before, collection, "ours"));
        put(&before, "a", "theirs");
        // The source shows one that the target leaves out.
        let source = StoreSource::new(from.snapshot().unwrap().store, ["b".into(), "e".into()]);
        bring_up(&*to, &source, &["b".into(), "c".into(), "e".into()], Options::default(), &mut |_| true).unwrap();
        same(&*before, &*to, what);
        // The source leaves out what the target does not: for that it is not there.
        let source = StoreSource::new(from.snapshot().unwrap().store, ["b".into(), "c".into(), "e".into()]);
        bring_up(&*to, &source, &["b".into()], Options::default(), &mut |_| true).unwrap();
        assert_eq!(to.collections().wait().unwrap(), [Collection::from("a"), Collection::from("b")], "{what}");
    }
}

#[test]
fn what_is_as_large_as_it_may_be_is_copied() {
    let long = |first: u8, len: usize| Bytes::from([vec![first], vec![0xff; len - 1]].concat());
    for (what, from, to) in pairs_with(3 << 30, 64 << 20) {
        let names = [b'a', b'b', 0xff].map(|first| {
            let collection = Collection::new(long(first, limits::COLLECTION_BYTES_MAX));
            ObjectId::new(collection, long(first, limits::OBJECT_NAME_BYTES_MAX))
        });
        let submit = |store: &Store, object: &ObjectId, change| {
            let txn = Transaction::new().create_collection(object.collection()).change(object, change);
            store.submit(txn).wait().unwrap();
        };
        let value = |len: usize, byte: u8| Bytes::from(vec![byte; len]);
        for (number, object) in names.iter().enumerate() {
            let byte = number as u8 + 1;
            let key = |first| long(first, limits::OMAP_KEY_BYTES_MAX);
            let name = long(byte, limits::XATTR_NAME_BYTES_MAX);
            submit(&from, object, Change::XattrSet { name, value: value(limits::XATTR_VALUE_BYTES_MAX, byte) });
            submit(&from, object, Change::OmapSet { key: Bytes::new(), value: Bytes::new() });
            submit(&from, object, Change::OmapSet { key: key(0xff), value: value(300 << 10, byte) });
            submit(&from, object, Change::OmapSet { key: key(7), value: value(limits::VALUE_BYTES_MAX, byte) });
            for index in [0, 1 << 63, u64::MAX - 1, u64::MAX] {
                submit(&from, object, Change::SlotSet { index, value: value(200 << 10, byte) });
            }
            submit(&from, object, Change::Write { offset: (1 << 60) - 5, data: "end".into() });
            // The target has others between these, before them and behind them.
            if number > 0 {
                for first in [1, 7, 8, 0xfe] {
                    submit(&to, object, Change::OmapSet { key: key(first), value: value(10, 9) });
                }
                for index in [1, 2, u64::MAX - 2, u64::MAX] {
                    submit(&to, object, Change::SlotSet { index, value: "other".into() });
                }
                submit(&to, object, Change::XattrSet { name: long(9, 255), value: value(100, 9) });
                submit(&to, object, Change::Write { offset: 1 << 59, data: "other".into() });
            }
        }
        submit(&from, &names[0], Change::SlotSet { index: 5, value: value(limits::VALUE_BYTES_MAX, 3) });
        copy(&*to, &from, what);
    }
}

/// More names than a store lists at once, some of both, made and removed while they are listed.
#[test]
fn many_objects_are_made_and_removed() {
    for (what, from, to) in pairs() {
        let numbered = |number: u64| ObjectId::new(Collection::from("c"), format!("{number:06}"));
        fill(&*from, "c", 3_000, |number| (numbered(number * 2), Change::Touch));
        fill(&*to, "c", 3_000, |number| (numbered(number * 3), Change::Touch));
        fill(&*to, "d", 3_000, |number| (ObjectId::new("d".into(), format!("{number}")), Change::Touch));
        let report = copy(&*to, &from, what);
        // Of every third number up to 9,000 the even ones below 6,000 stay.
        assert_eq!((report.pages, report.pages_fetched, report.removed), (3_001, 0, 3_000 + 1 + 2_000), "{what}");
    }
}

#[test]
fn collections_between_those_of_the_source_go() {
    for (what, from, to) in pairs() {
        let one = |name: &'static str| move |_| (ObjectId::new(Collection::from(name), "o"), Change::Touch);
        ["b", "d", "f"].into_iter().for_each(|name| fill(&*from, name, 1, one(name)));
        ["a", "b", "c", "c2", "f", "g"].into_iter().for_each(|name| fill(&*to, name, 1, one(name)));
        // One without objects.
        fill(&*to, "e", 0, one("e"));
        assert_eq!(copy(&*to, &from, what).removed, 4 + 5, "{what}: objects and collections");
    }
}

/// Each end of ranges: what is there goes although no key of the source is above it.
#[test]
fn what_lies_behind_the_last_page_goes() {
    for (what, from, to) in pairs() {
        for store in [&from, &to] {
            fill(&**store, "c", 10, |number| (object("o"), Change::SlotSet { index: number, value: "same".into() }));
            fill(&**store, "c", 10, |number| (object("o"), Change::OmapSet { key: key(number), value: "same".into() }));
            fill(&**store, "c", 1, |_| (object("empty"), Change::Touch));
            fill(&**store, "c", 1, |_| (object("sized"), Change::Truncate { size: 10 << 20 }));
        }
        let last = || limits::OMAP_KEY_BYTES_MAX;
        let more = [
            (object("o"), Change::SlotSet { index: u64::MAX, value: "more".into() }),
            (object("o"), Change::OmapSet { key: vec![0xff; last()].into(), value: "more".into() }),
            (object("empty"), Change::SlotSet { index: u64::MAX, value: "more".into() }),
            (object("empty"), Change::OmapSet { key: Bytes::new(), value: "more".into() }),
            (object("empty"), Change::XattrSet { name: "more".into(), value: "more".into() }),
            (object("empty"), Change::Write { offset: 0, data: "more".into() }),
            (object("sized"), Change::Write { offset: (10 << 20) - 4, data: "more and beyond".into() }),
            (object("another"), Change::Touch),
        ];
        for (object, change) in more {
            to.submit(Transaction::new().change(&object, change)).wait().unwrap();
        }
        let report = copy(&*to, &from, what);
        assert_eq!(report.pages_fetched, 1, "{what}: the attributes of one");
    }
}

/// Many more keys than the source has between two of its keys.
#[test]
fn a_page_over_much_that_is_not_in_the_source_is_replaced() {
    for (what, from, to) in pairs() {
        for number in [0, u64::MAX] {
            let slot = Change::SlotSet { index: number, value: "ours".into() };
            let entry = Change::OmapSet { key: vec![number as u8; 4_000].into(), value: "ours".into() };
            let txn = Transaction::new().create_collection(&"c".into()).change(&object("o"), slot);
            from.submit(txn.change(&object("o"), entry)).wait().unwrap();
        }
        fill(&*to, "c", 40, |number| (object("o"), Change::SlotSet { index: number, value: vec![1; 90_000].into() }));
        fill(&*to, "c", 40, |number| {
            (object("o"), Change::OmapSet { key: key(number), value: vec![1; 90_000].into() })
        });
        copy(&*to, &from, what);
    }
}

#[test]
fn holes_are_holes_again() {
    for (what, from, to) in pairs() {
        let write = |store: &Store, offset: u64, len: usize| {
            let change = Change::Write { offset, data: vec![7; len].into() };
            let txn = Transaction::new().create_collection(&"c".into()).change(&object("sparse"), change);
            store.submit(txn).wait().unwrap();
        };
        // Holes inside a chunk, over whole chunks, before the end, and data of zeros.
        for (offset, len) in [(10, 10), (1_000, 1), ((1 << 20) - 1, 2), (50 << 20, 5_000)] {
            write(&from, offset, len);
        }
        let zeros = Change::Write { offset: 70 << 20, data: vec![0; 100].into() };
        from.submit(Transaction::new().change(&object("sparse"), zeros)).wait().unwrap();
        from.submit(Transaction::new().change(&object("sparse"), Change::Truncate { size: 90 << 20 })).wait().unwrap();
        for (offset, len) in [
            (0, 15),
            (900, 300),
            (2 << 20, 3 << 20),
            ((40 << 20) - 7, 20),
            (60 << 20, 1),
            (80 << 20, 7 << 20),
            (87 << 20, 5 << 20),
        ] {
            write(&to, offset, len);
        }
        copy(&*to, &from, what);
        // And where the chunks of both hold the same bytes, but not the same holes.
        let zeros = Change::Write { offset: 500, data: vec![0; 100].into() };
        to.submit(Transaction::new().change(&object("sparse"), zeros)).wait().unwrap();
        assert_eq!(copy(&*to, &from, what).pages_fetched, 1, "{what}");
        // The same bytes at another place of the chunk.
        for (store, offset) in [(&from, 10), (&to, 12)] {
            let write = Change::Write { offset, data: "data".into() };
            let txn = Transaction::new().change(&object("moved"), Change::Truncate { size: 100 });
            store.submit(txn.change(&object("moved"), write)).wait().unwrap();
        }
        assert_eq!(copy(&*to, &from, what).pages_fetched, 1, "{what}: moved");
    }
}

/// A device that has no room for both, and what is to be removed comes last.
#[test]
fn a_full_target_is_rid_of_what_the_source_does_not_have() {
    let (from, to) = (memory(), engine(96 << 20, 1 << 20));
    let data = |number: u64, seed: u64| -> Bytes {
        let mut rng = Rng::with_seed(seed + number);
        let mut data = vec![0; 400 << 10];
        rng.fill(&mut data);
        data.into()
    };
    fill(&*from, "c", 70, |number| {
        (object("a"), Change::Write { offset: number * (400 << 10), data: data(number, 100) })
    });
    fill(&*to, "c", 110, |number| (object("z"), Change::SlotSet { index: number, value: data(number, 900) }));
    let report = copy(&*to, &from, "a device of 96 MiB");
    assert!(report.pages > report.pages_fetched && report.removed > 0, "{report:?}");
    // What the source has does not fit at all.
    fill(&*from, "c", 200, |number| (object("b"), Change::Write { offset: number << 19, data: data(number, 300) }));
    assert!(matches!(copied(&*to, &source(&from)), Err(Error::Full { .. })));
}

/// A source that can be told to lie or to fail, and counts.
struct Odd<F> {
    source: StoreSource,
    content: F,
    lists: AtomicUsize,
}

impl<F: Fn(&Page, Content) -> Result<Content> + Send + Sync> Source for Odd<F> {
    fn pages(&self, after: Option<&Span>, max: usize) -> Result<Vec<Page>> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        // Small batches, so that each place is one to go on from.
        self.source.pages(after, max.min(2))
    }

    fn content(&self, page: &Page) -> Result<Content> {
        (self.content)(page, self.source.content(page)?)
    }
}

fn odd<F: Fn(&Page, Content) -> Result<Content> + Send + Sync>(store: &Store, content: F) -> Odd<F> {
    Odd { source: source(store), content, lists: AtomicUsize::new(0) }
}

#[test]
fn a_walk_goes_on_from_every_page() {
    for seed in 60..66 {
        let (from, to) = (engine(256 << 20, 8 << 20), memory());
        wild(&*from, &mut Rng::with_seed(seed), 120);
        let whole = source(&from).pages(None, usize::MAX).unwrap();
        let mut listed = Vec::new();
        while let Some(page) = source(&from).pages(listed.last().map(|page: &Page| &page.span), 1).unwrap().pop() {
            listed.push(page);
        }
        let ended = source(&from).pages(listed.last().map(|page| &page.span), 1).unwrap();
        assert_eq!((ended, listed.len() > 20, &listed), (Vec::new(), true, &whole), "seed {seed}");
        let odd = odd(&from, |_, content| Ok(content));
        copied(&*to, &odd).unwrap();
        assert!(odd.lists.load(Ordering::SeqCst) > listed.len() / 3);
        same(&*from, &*to, &format!("seed {seed}"));
    }
}

#[test]
fn what_the_source_fails_with_is_what_the_copy_fails_with() {
    let from = memory();
    wild(&*from, &mut Rng::with_seed(3), 100);
    let to = memory();
    let calls = AtomicU64::new(0);
    let fails = odd(
        &from,
        |_, content| {
            if calls.fetch_add(1, Ordering::SeqCst) < 5 { Ok(content) } else { Err(Error::Closed) }
        },
    );
    assert!(matches!(copied(&*to, &fails), Err(Error::Closed)));
    let panics = odd(&from, |page, content| {
        assert!(page.bytes < 20_000, "on purpose");
        Ok(content)
    });
    assert!(matches!(copied(&*to, &panics), Err(Error::Stopped { .. })));
    copy(&*to, &from, "afterwards");

    // A listing that fails, and one that panics.
    struct Listing(bool);
    impl Source for Listing {
        fn pages(&self, _: Option<&Span>, _: usize) -> Result<Vec<Page>> {
            assert!(!self.0, "on purpose");
            Err(Error::Restarted)
        }
        fn content(&self, _: &Page) -> Result<Content> {
            Err(Error::Closed)
        }
    }
    assert!(matches!(copied(&*to, &Listing(false)), Err(Error::Restarted)));
    assert!(matches!(copied(&*to, &Listing(true)), Err(Error::Stopped { .. })));
    same(&*from, &*to, "nothing was removed");
}

#[test]
fn contents_that_are_not_those_of_their_pages_are_refused() {
    let from = memory();
    keys(&from);
    fill(&*from, "c", 10, |index| (object("o"), Change::SlotSet { index, value: "value".into() }));
    fill(&*from, "c", 2, |number| (object("o"), Change::Write { offset: number * 100, data: "value".into() }));
    let flipped = |bytes: &Bytes| Bytes::from(bytes.iter().map(|byte| byte ^ 1).collect::<Vec<_>>());
    let lies: [fn(&Content) -> bool; 3] = [
        |content| matches!(content, Content::Omap(_)),
        |content| matches!(content, Content::Slots(_)),
        |content| matches!(content, Content::Bytes { .. }),
    ];
    for lie in lies {
        let source = odd(&from, |_, content| {
            Ok(match content {
                content if !lie(&content) => content,
                Content::Omap(entries) => Content::Omap(entries.into_iter().map(|(k, v)| (k, flipped(&v))).collect()),
                Content::Slots(entries) => Content::Slots(entries.into_iter().skip(1).collect()),
                Content::Bytes { runs, data } => Content::Bytes { runs, data: flipped(&data) },
                content => content,
            })
        });
        let ended = copied(&*memory(), &source);
        assert!(matches!(ended, Err(Error::Invalid { .. })), "{ended:?}");
    }
}

/// Pages as they come.
struct Pages(Vec<Page>, StoreSource);

impl Source for Pages {
    fn pages(&self, after: Option<&Span>, _: usize) -> Result<Vec<Page>> {
        Ok(if after.is_none() { self.0.clone() } else { Vec::new() })
    }

    fn content(&self, page: &Page) -> Result<Content> {
        self.1.content(page)
    }
}

#[test]
fn pages_out_of_order_are_refused() {
    let from = memory();
    wild(&*from, &mut Rng::with_seed(90), 150);
    let pages = source(&from).pages(None, usize::MAX).unwrap();
    let to = memory();
    copied(&*to, &Pages(pages.clone(), source(&from))).unwrap();
    same(&*from, &*to, "in order");
    for at in 1..pages.len() {
        let mut swapped = pages.clone();
        swapped.swap(at - 1, at);
        let mut doubled = pages.clone();
        doubled.insert(at, pages[at - 1].clone());
        for (what, wrong) in [("swapped", swapped), ("doubled", doubled)] {
            let ended = copied(&*memory(), &Pages(wrong, source(&from)));
            // A collection without objects that comes late, or another's beginning, are found at the next page.
            let refused = matches!(ended, Err(Error::Invalid { .. }));
            assert!(refused, "{what} at {at}: {:?} {:?}: {ended:?}", pages[at - 1].span, pages[at].span);
        }
    }
}

/// Notes what is written, and whether it was synced.
struct Noting {
    store: MemoryStore,
    submits: AtomicU64,
    unsynced: AtomicU64,
}

impl Forward for Noting {
    fn behind(&self) -> &dyn ObjectStore {
        &self.store
    }

    fn capability(&self) -> esker_store::Capability {
        let below = ObjectStore::capability(&self.store);
        esker_store::Capability { transaction_bytes_max: 300 << 10, transaction_ops_max: 7, ..below }
    }

    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        assert!(!txn.ops.is_empty() && txn.ops.len() <= 7 && txn.durability == Durability::Applied);
        let payload = txn.ops.iter().map(|op| match op {
            esker_store::Op::Object(_, Change::OmapSet { value, .. } | Change::SlotSet { value, .. }) => value.len(),
            esker_store::Op::Object(_, Change::Write { data, .. }) => data.len(),
            _ => 0,
        });
        assert!(payload.sum::<usize>() <= 300 << 10);
        self.submits.fetch_add(1, Ordering::SeqCst);
        self.unsynced.fetch_add(1, Ordering::SeqCst);
        ObjectStore::submit(&self.store, txn)
    }

    fn sync(&self) -> Completion<CommitSeq> {
        self.unsynced.store(0, Ordering::SeqCst);
        ObjectStore::sync(&self.store)
    }
}

#[test]
fn transactions_are_as_small_as_the_target_wants_them_and_synced_at_the_end() {
    let from = memory();
    keys(&from);
    let to = Noting { store: MemoryStore::new(), submits: AtomicU64::new(0), unsynced: AtomicU64::new(0) };
    copy(&to, &from, "small transactions");
    assert!(to.submits.load(Ordering::SeqCst) >= 10_000 / 7);
    assert_eq!(to.unsynced.load(Ordering::SeqCst), 0);
}

/// Contents on their way at once, as many as were agreed.
#[test]
fn contents_are_fetched_ahead() {
    let from = memory();
    keys(&from);
    fill(&*from, "c", 12, |number| (object("o"), Change::Write { offset: number << 20, data: "value".into() }));
    for in_flight in [0, 1, 4] {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let slow = odd(&from, |_, content| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(10));
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(content)
        });
        let to = memory();
        let options = Options { rate_bytes_per_s: None, in_flight };
        bring_up(&*to, &slow, &[], options, &mut |_| true).unwrap();
        same(&*from, &*to, "slow");
        let most = most.load(Ordering::SeqCst);
        assert!(most <= in_flight.max(1) && (in_flight < 4 || most > 1), "{most} of {in_flight}");
    }
}

#[test]
fn a_rate_is_kept_to_and_a_wait_can_be_ended() {
    let from = memory();
    keys(&from);
    let to = memory();
    let with = |rate| Options { rate_bytes_per_s: Some(rate), in_flight: 4 };
    let refused = bring_up(&*to, &source(&from), &[], with(0), &mut |_| true);
    assert!(matches!(refused, Err(Error::Invalid { .. })));
    // At a byte per second it would take days.
    let mut calls = 0;
    let mut some = |_| {
        calls += 1;
        calls < 10
    };
    let ended = bring_up(&*to, &source(&from), &[], with(1), &mut some);
    assert!(matches!(ended, Err(Error::Stopped { .. })), "{ended:?}");
    let began = std::time::Instant::now();
    let report = bring_up(&*to, &source(&from), &[], with(4 << 20), &mut |_| true).unwrap();
    // The last page is not waited for.
    let least = (report.bytes_fetched.saturating_sub(256 << 10)) as f64 / f64::from(4 << 20);
    assert!(began.elapsed().as_secs_f64() >= least && least > 0.1, "{report:?} in {:?}", began.elapsed());
    same(&*from, &*to, "paced");
}

#[test]
fn progress_ends_with_what_the_report_says() {
    let from: Store = Arc::new(MemoryStore::new());
    keys(&from);
    let (to, mut last, mut bytes) = (memory(), (0, 0, 0), 0);
    let report = bring_up(&*to, &source(&from), &[], Options::default(), &mut |progress| {
        let now = (progress.pages, progress.pages_fetched, progress.bytes_fetched);
        assert!(now.0 >= last.0 && now.1 >= last.1 && now.2 >= last.2 && progress.bytes >= bytes);
        (last, bytes) = (now, progress.bytes);
        true
    })
    .unwrap();
    assert_eq!(last, (report.pages, report.pages_fetched, report.bytes_fetched));
    assert!(bytes >= 1_000_000 && report.pages_fetched + 2 == report.pages, "{report:?}");
}

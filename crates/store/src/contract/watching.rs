//! Watching objects: who watches one is called after a notify of it.
//!
//! Invariant: a call is waited for, up to `LONG`; that none comes is looked at only behind one that has come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::Harness;
use super::actions::*;
use crate::{Change, Error, ObjectId, ObjectStore, Watching};

const LONG: Duration = Duration::from_secs(10);

/// Calls, as they come.
struct Calls {
    watching: Box<dyn Watching>,
    calls: Receiver<()>,
}

impl Calls {
    /// Forgets the calls that have come.
    fn forget(&self) {
        while self.calls.try_recv().is_ok() {}
    }

    #[track_caller]
    fn wait(&self) {
        self.calls.recv_timeout(LONG).expect("who watches is called");
    }
}

/// A watching of an object that is there.
#[track_caller]
fn watch(store: &dyn ObjectStore, object: &ObjectId) -> Calls {
    let (call, calls) = channel();
    let changed = move || {
        let _ = call.send(());
    };
    let watching = store.watch(object, Arc::new(changed));
    let watching = watching.unwrap_or_else(|error| panic!("{error}"));
    assert!(watching.is_live());
    Calls { watching, calls }
}

/// Whether the store watches; says so where it does not.
fn watches(store: &dyn ObjectStore) -> bool {
    let capability = store.capability();
    if !capability.watches {
        println!("skipped: {} cannot watch objects", capability.backend);
    }
    capability.watches
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A call comes after each notify, and the change that it is of can be read then.
pub fn who_watches_is_called_after_a_notify(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    if !watches(store) {
        return;
    }
    let object = object("watched");
    change(store, &object, [xattr_set("number", "0")]);
    let calls = watch(store, &object);
    for number in 1..5u8 {
        change(store, &object, [xattr_set("number", [number])]);
        calls.forget();
        store.notify(&object);
        calls.wait();
        let found = store.xattr(&object, b"number").wait().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(found.as_deref(), Some(&[number][..]));
    }
}

/// Several notifies may come as one call; behind the last there is one.
pub fn of_many_notifies_the_last_is_heard(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    if !watches(store) {
        return;
    }
    let object = object("watched");
    change(store, &object, [write(0, "x")]);
    let calls = watch(store, &object);
    let last = Arc::new(AtomicBool::new(false));
    let (call, after_last) = channel();
    let noted = Arc::clone(&last);
    let noting = store.watch(
        &object,
        Arc::new(move || {
            if noted.load(Ordering::SeqCst) {
                let _ = call.send(());
            }
        }),
    );
    let noting = noting.unwrap_or_else(|error| panic!("{error}"));
    for round in 0..20 {
        last.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..25).for_each(|_| store.notify(&object)));
            }
        });
        last.store(true, Ordering::SeqCst);
        store.notify(&object);
        after_last.recv_timeout(LONG).unwrap_or_else(|_| panic!("the last notify of round {round} was not heard"));
    }
    calls.wait();
    drop(noting);
}

/// Each watcher of the object is called, and no watcher of another object.
pub fn several_watch_one_object_and_each_its_own(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    if !watches(store) {
        return;
    }
    let (one, other) = (object("one"), object_in(AWAY, "one"));
    change(store, &one, [write(0, "x")]);
    change(store, &other, [write(0, "x")]);
    let (first, second, of_other) = (watch(store, &one), watch(store, &one), watch(store, &other));
    store.notify(&one);
    first.wait();
    second.wait();
    assert!(of_other.calls.try_recv().is_err(), "the object of another collection was not notified of");
    store.notify(&other);
    of_other.wait();
    drop(first);
    second.forget();
    store.notify(&one);
    second.wait();
}

/// No call begins after the drop.
pub fn a_watching_that_was_dropped_is_called_no_more(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    if !watches(store) {
        return;
    }
    let object = object("watched");
    change(store, &object, [write(0, "x")]);
    let staying = watch(store, &object);
    for _ in 0..20 {
        let Calls { watching, calls } = watch(store, &object);
        store.notify(&object);
        drop(watching);
        // One that had begun may end.
        std::thread::sleep(Duration::from_millis(20));
        while calls.try_recv().is_ok() {}
        staying.forget();
        store.notify(&object);
        staying.wait();
        assert!(calls.try_recv().is_err(), "called after the drop");
    }
}

/// There has to be an object; to notify of one that is missing does nothing.
pub fn an_object_that_is_missing_is_not_watched(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    if !watches(store) {
        return;
    }
    for missing in [object("missing"), object_in("no collection", "missing")] {
        let watched = store.watch(&missing, Arc::new(|| ()));
        assert!(matches!(watched.map(drop), Err(Error::NoObject { .. })), "{missing}");
        store.notify(&missing);
    }
    let object = object("removed");
    change(store, &object, [write(0, "x")]);
    change(store, &object, [Change::Remove]);
    assert!(matches!(store.watch(&object, Arc::new(|| ())).map(drop), Err(Error::NoObject { .. })));
}

/// The watching of an object that is removed is not live, and becomes so again with the object.
pub fn an_object_that_goes_and_comes_again_is_watched_again(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    if !watches(store) {
        return;
    }
    let object = object("watched");
    change(store, &object, [omap_set("key", "value")]);
    let (calls, dropped) = (watch(store, &object), watch(store, &object));
    change(store, &object, [Change::Remove]);
    until("the watching of what is gone is not live", || !calls.watching.is_live());
    drop(dropped);
    store.notify(&object);
    change(store, &object, [omap_set("key", "another")]);
    until("it is live again", || calls.watching.is_live());
    calls.wait();
    calls.forget();
    store.notify(&object);
    calls.wait();
}

/// Where the store cannot, it says so, and to notify does nothing.
pub fn watching_is_refused_where_it_is_missing(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    if store.capability().watches {
        return;
    }
    let object = object("watched");
    change(store, &object, [write(0, "x")]);
    assert!(matches!(store.watch(&object, Arc::new(|| ())).map(drop), Err(Error::Unsupported { .. })));
    store.notify(&object);
}

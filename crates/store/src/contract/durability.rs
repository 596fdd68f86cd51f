//! Durability: the two stages of a submit, sync, and what a reopened store holds.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use super::actions::*;
use super::{Harness, Opened};
use crate::{Change, CommitSeq, Condition, Durability, Error, ObjectId, ObjectStore, Transaction};

/// Each transaction that changes something comes after the one before.
pub fn commit_sequence_grows(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let mut last = CommitSeq(0);
    for number in 0..50u64 {
        let durability = if number % 3 == 0 { Durability::Applied } else { Durability::Durable };
        let txn = Transaction::with(durability).change(&object("o"), slot_set(number, "v"));
        let seq = got(store.submit(txn));
        assert!(seq > last, "{seq:?} after {last:?}");
        last = seq;
        if number % 10 == 0 {
            let refused = guarded(&object("o"), [Condition::Absent]).change(&object("o"), Change::Touch);
            refusal(store, refused);
        }
    }
    assert!(got(store.sync()) >= last);
}

/// Asynchronous writes are there for every reader when submit returns.
pub fn an_applied_write_is_readable_at_once(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    for number in 0..20u64 {
        let value = number.to_string();
        let txn = Transaction::with(Durability::Applied)
            .change(&object("o"), slot_set(number, &value))
            .change(&object("o"), omap_set("k", &value))
            .change(&object("o"), write(number, "x"));
        let (outcome, _) = store.submit(txn).into_parts();
        assert!(outcome.is_ok());
        assert_eq!(got(store.slot_get(&object("o"), number)), Some(bytes(&value)));
        assert_eq!(got(store.omap_get(&object("o"), b"k")), Some(bytes(&value)));
        assert_eq!(got(store.stat(&object("o"))).map(|stat| stat.size), Some(number + 1));
    }
}

/// Its own writer can go on from a durable write without waiting for it: reads, guards and operations see it.
pub fn a_durable_write_is_readable_by_its_writer_before_it_is_durable(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let o = object("o");
    let mut barriers = Vec::new();
    for number in 0..20u64 {
        let mut txn = Transaction::new().change(&o, slot_set(0, number.to_string()));
        if number > 0 {
            let value = bytes((number - 1).to_string());
            txn = txn.guard(&o, Condition::SlotEquals { index: 0, value });
        }
        let (outcome, barrier) = store.submit(txn).into_parts();
        assert!(outcome.is_ok(), "step {number}: {outcome:?}");
        barriers.extend(barrier);
        let (value, _) = store.slot_get(&o, 0).into_parts();
        assert_eq!(value.ok().flatten(), Some(bytes(number.to_string())));
    }
    for barrier in barriers {
        assert!(barrier.wait().is_ok());
    }
}

/// After sync, everything submitted before is durable, whatever it asked for.
pub fn sync_covers_everything_before_it(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let mut barriers = Vec::new();
    let mut last = CommitSeq(0);
    for number in 0..30u64 {
        let durability = if number % 2 == 0 { Durability::Applied } else { Durability::Durable };
        let txn = Transaction::with(durability).change(&object("o"), slot_set(number, "v"));
        let (outcome, barrier) = store.submit(txn).into_parts();
        last = last.max(outcome.unwrap_or_else(|error| panic!("{error}")));
        barriers.extend(barrier);
    }
    assert!(got(store.sync()) >= last);
    for barrier in barriers {
        assert!(matches!(barrier.state(), Some(Ok(()))), "sync returned before {barrier:?} was reached");
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            // Not for ever: stores without a commit thread commit when a caller waits.
            Poll::Pending => std::thread::park_timeout(std::time::Duration::from_millis(20)),
        }
    }
}

/// A task can wait for them as a thread can.
pub fn completions_are_futures(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let o = object("o");
    for number in 0..10u64 {
        let txn = Transaction::new().change(&o, slot_set(number, "v"));
        assert!(block_on(store.submit(txn)).is_ok());
        assert_eq!(block_on(store.slot_get(&o, number)).ok().flatten(), Some(bytes("v")));
    }
    let failing = guarded(&o, [Condition::Absent]);
    assert!(matches!(block_on(store.submit(failing)), Err(Error::GuardFailed { index: 0 })));
    assert!(block_on(store.sync()).is_ok());
}

/// What a reader was shown, in a value, in an absence or in a failed guard, is durable.
pub fn readers_wait_for_durable_writes(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    let o = object("o");
    change(store, &o, filled());
    type Look<'a> = Box<dyn Fn() + 'a>;
    let looks: Vec<(&str, Change, Look<'_>)> = vec![
        ("slot", slot_set(1, "v"), Box::new(|| assert!(got(store.slot_get(&o, 1)).is_some()))),
        ("slots", slot_set(2, "v"), Box::new(|| drop(whole_slots(store, &o)))),
        ("slot removed", Change::SlotRemove { index: 1 }, Box::new(|| assert!(got(store.slot_get(&o, 1)).is_none()))),
        ("omap", omap_set("k", "v"), Box::new(|| assert!(got(store.omap_get(&o, b"k")).is_some()))),
        ("many", omap_set("k", "w"), Box::new(|| drop(got(store.omap_get_many(&o, &[bytes("k")]))))),
        ("has", omap_set("new", "w"), Box::new(|| assert_eq!(got(store.omap_has_many(&o, &[bytes("new")])), [true]))),
        ("omap scan", omap_set("l", "v"), Box::new(|| drop(whole_omap(store, &o)))),
        ("omap cleared", Change::OmapClear, Box::new(|| assert!(whole_omap(store, &o).is_empty()))),
        ("xattr", xattr_set("x", "v"), Box::new(|| assert!(got(store.xattr(&o, b"x")).is_some()))),
        ("xattrs", xattr_set("y", "v"), Box::new(|| drop(got(store.xattrs(&o))))),
        ("bytes", write(0, "bytes"), Box::new(|| assert_eq!(got(store.read(&o, 0..5)), "bytes"))),
        ("hole", Change::Zero { offset: 0, len: 3 }, Box::new(|| assert_eq!(got(store.read(&o, 0..5)), "\0\0\0es"))),
        ("size", Change::Truncate { size: 9 }, Box::new(|| assert!(got(store.stat(&o)).is_some()))),
        ("end", Change::Truncate { size: 2 }, Box::new(|| assert_eq!(got(store.read(&o, 0..5)).len(), 2))),
        ("extents", write(10, "x"), Box::new(|| drop(runs(store, &o, 0..100)))),
        (
            "failed guard",
            slot_set(7, "v"),
            Box::new(|| drop(refusal(store, guarded(&o, [Condition::SlotAbsent { index: 7 }])))),
        ),
        ("removed object", Change::Remove, Box::new(|| assert!(!exists(store, &o)))),
        ("created object", Change::Touch, Box::new(|| drop(got(store.list(&HOME.into(), None, 10))))),
        ("guard that holds", slot_set(8, "v"), {
            Box::new(|| ok(store, guarded(&o, [Condition::SlotPresent { index: 8 }])))
        }),
    ];
    for (name, changed, look) in looks {
        let (outcome, barrier) = store.submit(changes(&o, [changed])).into_parts();
        assert!(outcome.is_ok(), "{name}: {outcome:?}");
        look();
        if let Some(barrier) = barrier {
            assert!(matches!(barrier.state(), Some(Ok(()))), "{name}: a reader was shown what is not durable");
        }
    }
}

/// Who copies or moves what is not durable yet, and asks for *applied* alone, shows it to others no earlier.
pub fn readers_of_an_applied_copy_wait_for_what_was_copied(harness: &dyn Harness) {
    let opened = furnished(harness);
    let store = opened.store();
    if !store.capability().clone {
        return skip(store, "clone");
    }
    type Copy = fn(&ObjectId) -> Change;
    let copies: [(&str, bool, Copy); 3] = [
        ("clone", true, |to| Change::CloneTo { to: to.clone() }),
        ("clone of a range", false, |to| Change::CloneRange { to: to.clone(), from_offset: 0, len: 5, to_offset: 0 }),
        ("rename", true, |to| Change::Rename { to: to.clone() }),
    ];
    type Look = fn(&dyn ObjectStore, &ObjectId);
    let looks: [(&str, bool, Look); 8] = [
        ("bytes", false, |store, copy| assert_eq!(got(store.read(copy, 0..5)), "fresh")),
        ("size", false, |store, copy| assert!(got(store.stat(copy)).is_some())),
        ("extents", false, |store, copy| assert!(!runs(store, copy, 0..100).is_empty())),
        ("slot", true, |store, copy| assert_eq!(got(store.slot_get(copy, 77)), Some(bytes("fresh")))),
        ("slots", true, |store, copy| drop(whole_slots(store, copy))),
        ("omap", true, |store, copy| assert_eq!(got(store.omap_get(copy, b"fresh")), Some(bytes("fresh")))),
        ("xattr", true, |store, copy| assert_eq!(got(store.xattr(copy, b"fresh")), Some(bytes("fresh")))),
        ("failed guard", true, |store, copy| {
            drop(refusal(store, guarded(copy, [Condition::SlotAbsent { index: 77 }])));
        }),
    ];
    for round in 0..3 {
        for (copied, whole, change_to) in &copies {
            for (looked, _, look) in looks.iter().filter(|look| *whole || !look.1) {
                let context = format!("{copied}, {looked}, round {round}");
                let (from, to) = (object(&format!("{context}: source")), object(&format!("{context}: copy")));
                change(store, &from, filled());
                let fresh =
                    [write(0, "fresh"), slot_set(77, "fresh"), omap_set("fresh", "fresh"), xattr_set("fresh", "fresh")];
                let (outcome, barrier) = store.submit(changes(&from, fresh)).into_parts();
                assert!(outcome.is_ok(), "{context}: {outcome:?}");
                let copy = Transaction::with(Durability::Applied).change(&from, change_to(&to));
                let (outcome, _) = store.submit(copy).into_parts();
                assert!(outcome.is_ok(), "{context}: {outcome:?}");
                look(store, &to);
                if let Some(barrier) = barrier {
                    let reached = matches!(barrier.state(), Some(Ok(())));
                    assert!(reached, "{context}: a reader was shown what is not durable");
                }
            }
        }
    }
}

#[track_caller]
fn persistent(harness: &dyn Harness) -> Option<Box<dyn Opened>> {
    let opened = furnished(harness);
    let able = opened.store().capability().persistent;
    if !able {
        skip(opened.store(), "be reopened");
    }
    able.then_some(opened)
}

/// All spaces, several objects and collections.
pub fn everything_durable_is_there_after_reopening(harness: &dyn Harness) {
    let Some(mut opened) = persistent(harness) else { return };
    let store = opened.store();
    let large: Vec<u8> = (0..200_001u32).map(|at| (at * 13 / 5) as u8).collect();
    for number in 0..20 {
        let o = object_in(if number % 3 == 0 { AWAY } else { HOME }, &format!("object {number}"));
        change(store, &o, filled());
        change(store, &o, [write(number * 1000, &large[..number as usize * 10_000]), omap_set("big", &large)]);
        change(store, &o, [Change::Zero { offset: number * 1000 + 100, len: 4096 }, slot_set(number, "v")]);
    }
    ok(store, Transaction::new().create_collection(&"empty".into()));
    let before = snapshot(store);
    opened.reopen();
    assert!(snapshot(opened.store()) == before, "the reopened store differs");
    opened.reopen();
    assert!(snapshot(opened.store()) == before, "the store differs when reopened twice");
    change(opened.store(), &object("object 1"), [omap_set("after", "reopening")]);
    assert_eq!(got(opened.store().omap_get(&object("object 1"), b"after")), Some(bytes("reopening")));
}

/// Keys, slots, bytes, objects and collections that were removed.
pub fn removed_things_stay_removed_after_reopening(harness: &dyn Harness) {
    let Some(mut opened) = persistent(harness) else { return };
    let store = opened.store();
    for name in ["shrunk", "removed", "made again"] {
        change(store, &object(name), filled());
    }
    let steps = [
        Change::Truncate { size: 4 },
        Change::XattrRemove { name: bytes("a") },
        omap_remove("key 1"),
        Change::OmapRemoveRange { start: bytes(""), end: Some(bytes("k")) },
        Change::SlotRemove { index: 0 },
    ];
    change(store, &object("shrunk"), steps);
    change(store, &object("removed"), [Change::Remove]);
    change(store, &object("made again"), [Change::Remove]);
    change(store, &object("made again"), [slot_set(5, "new")]);
    ok(store, Transaction::new().remove_collection(&AWAY.into()));
    let before = snapshot(store);
    opened.reopen();
    assert_eq!(snapshot(opened.store()), before);
    assert_eq!(whole_slots(opened.store(), &object("made again")), [(5, bytes("new"))]);
    assert_eq!(got(opened.store().collections()), [HOME.into()]);
}

/// Applied, then synced.
pub fn synced_asynchronous_writes_are_there_after_reopening(harness: &dyn Harness) {
    let Some(mut opened) = persistent(harness) else { return };
    let store = opened.store();
    for number in 0..100u64 {
        let txn = Transaction::with(Durability::Applied).change(&object("o"), slot_set(number, number.to_string()));
        got(store.submit(txn));
    }
    got(store.sync());
    opened.reopen();
    let expected: Vec<_> = (0..100u64).map(|number| (number, bytes(number.to_string()))).collect();
    assert_eq!(whole_slots(opened.store(), &object("o")), expected);
}

/// A sequence number is not given twice.
pub fn commit_sequence_grows_across_reopening(harness: &dyn Harness) {
    let Some(mut opened) = persistent(harness) else { return };
    let mut last = CommitSeq(0);
    for number in 0..5u64 {
        for part in 0..3 {
            let seq = got(opened.store().submit(changes(&object("o"), [slot_set(number * 3 + part, "v")])));
            assert!(seq > last, "{seq:?} after {last:?}, opened {number} times before");
            last = seq;
        }
        opened.reopen();
    }
}

/// A little more each time, over many openings.
pub fn many_reopenings_lose_nothing(harness: &dyn Harness) {
    let Some(mut opened) = persistent(harness) else { return };
    let o = object("o");
    for number in 0..12u64 {
        let text = format!("{number},");
        let size = got(opened.store().stat(&o)).map_or(0, |stat| stat.size);
        let steps = [write(size, &text), omap_set(&text, &text), slot_set(number, &text), xattr_set("last", &text)];
        change(opened.store(), &o, steps);
        opened.reopen();
        let expected: String = (0..=number).map(|number| format!("{number},")).collect();
        assert_eq!(contents(opened.store(), &o), expected);
        let stat = got(opened.store().stat(&o));
        assert_eq!(stat.map(|stat| (stat.omap_keys, stat.slots)), Some((number + 1, number + 1)));
    }
}

//! Power loss and failing operations at any moment, on a file system that keeps only what was synced.
//!
//! One seed alone: `ESKER_CRASH_SEED=17 cargo test -p esker-file --test crash`; `ESKER_CRASH_SEEDS` sets how many.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

#[path = "support/faulty.rs"]
mod faulty;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use esker_file::{FileStore, Options};
use esker_store::model::{Generator, GeneratorOptions, Model, same_error};
use esker_store::{Change, Error, ObjectId, ObjectStore, Transaction};
use faulty::FaultyFiles;

fn options() -> Options {
    Options { checkpoint_bytes: 40_000, folder_files_max: 3, cache_bytes: 1 << 20, ..Options::default() }
}

fn open(files: &FaultyFiles) -> Result<FileStore, esker_file::Error> {
    FileStore::open_on(Arc::new(files.clone()), Path::new("a store in memory"), options())
}

fn seeds(count: u64) -> Vec<u64> {
    let setting = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
    match setting("ESKER_CRASH_SEED") {
        Some(seed) => vec![seed],
        None => (0..setting("ESKER_CRASH_SEEDS").unwrap_or(count)).collect(),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Power,
    Operation,
}

/// Lives of one store, each ended by a fault; after each it must be as it was after some prefix of commit order that
/// holds all that was acknowledged. As there is one writer, that is: with the last transaction or without it.
fn lives(seed: u64, fault: Fault, failures: &mut BTreeMap<&'static str, u64>) {
    let mut rng = fastrand::Rng::with_seed(seed);
    // Clones and small files are what is hard here.
    let generated = GeneratorOptions { value_bytes_max: 9_000, live_bytes_max: 200 << 10, ..Default::default() };
    let mut generator = Generator::new(seed, generated);
    let mut files = FaultyFiles::new(seed);
    let mut model = Model::new();
    for life in 0..5 {
        let fail = |why: String| -> ! { panic!("crash test failed: seed {seed}, life {life}: {why}") };
        let most = if rng.bool() { 60 } else { 900 };
        let after = rng.u64(..most);
        match fault {
            Fault::Power => files.crash_after(after),
            Fault::Operation => files.fail_after(after),
        }
        let mut candidates = vec![model.clone()];
        if let Ok(store) = open(&files) {
            generator.reset(model.clone());
            let mut cause = None;
            for _ in 0..rng.usize(1..80) {
                let txn = generator.next();
                let mut next = model.clone();
                let expected = next.apply(&txn);
                match (store.submit(txn.clone()).wait(), expected) {
                    (Ok(_), Ok(())) if cause.is_none() => {
                        model = next;
                        candidates = vec![model.clone()];
                    }
                    (Err(error), Err(expected)) if same_error(&error, &expected) => {}
                    (Err(Error::Stopped { cause: found }), expected) => {
                        // The first cause, on every call; nothing of later ones is applied.
                        if cause.is_none() && expected.is_ok() {
                            candidates.push(next);
                        }
                        if cause.get_or_insert(found.clone()) != &found {
                            fail(format!("the cause changed to {found}"));
                        }
                    }
                    (found, expected) => fail(format!("expected {expected:?}, found {found:?}\n{txn:#?}")),
                }
                // The failed call may have been answered before a checkpoint failed: then the next one is refused.
                if cause.is_none()
                    && rng.u8(..10) == 0
                    && let Some(difference) = model.diff(&store)
                    && files.failed().is_none()
                    && fault == Fault::Operation
                {
                    fail(difference);
                }
            }
        }
        assert_eq!(files.unsynced_applied(), 0, "seed {seed}: a file was written before the journal was synced");
        if let Some(what) = files.failed() {
            *failures.entry(what).or_default() += 1;
        }
        // A dead process leaves what was written where it is; the power may go later. Recovery itself may be cut short,
        // any number of times.
        loop {
            if rng.bool() {
                files = files.crash();
            } else {
                files.revive();
            }
            if rng.u8(..3) > 0 {
                break;
            }
            files.crash_after(rng.u64(..80));
            drop(open(&files));
        }
        let store = match open(&files) {
            Ok(store) => store,
            Err(error) => fail(format!("opening after the crash: {error}")),
        };
        let differences: Vec<_> = candidates.iter().filter_map(|candidate| candidate.diff(&store)).collect();
        if differences.len() == candidates.len() {
            fail(format!("the state is that of no prefix: {differences:#?}"));
        }
        model = candidates.into_iter().find(|candidate| candidate.diff(&store).is_none()).unwrap();
        store.close().unwrap();
    }
}

#[test]
fn acknowledged_writes_survive_power_loss_and_recovery_is_a_prefix() {
    for seed in seeds(150) {
        lives(seed, Fault::Power, &mut BTreeMap::new());
    }
}

#[test]
fn a_failed_operation_stops_the_store_with_the_first_cause_and_loses_nothing() {
    let mut failures = BTreeMap::new();
    for seed in seeds(150) {
        lives(seed, Fault::Operation, &mut failures);
    }
    println!("operations that failed: {failures:?}");
}

/// The clone/update/clone problem, at every moment: a copy that is made again after its source was changed must not
/// hold the change.
#[test]
fn a_clone_is_not_made_again_from_a_source_that_has_changed() {
    let id = |name: &'static str| ObjectId::new("c".into(), name);
    let write =
        |name, text: &'static str| Transaction::new().change(&id(name), Change::Write { offset: 0, data: text.into() });
    let clone = |from, to| Transaction::new().change(&id(from), Change::CloneTo { to: id(to) });
    let range = |from, to: &'static str, offset| {
        let change = Change::CloneRange { to: id(to), from_offset: 0, len: 6, to_offset: offset };
        Transaction::new().change(&id(from), change)
    };
    let steps = [
        Transaction::new().create_collection(&"c".into()),
        write("a", "first!"),
        clone("a", "b"),
        write("a", "second"),
        clone("b", "d"),
        range("a", "b", 3),
        write("a", "third!"),
        range("b", "b", 1),
        write("b", "fourth"),
        clone("a", "b").change(&id("a"), Change::Remove),
    ];
    // Large enough that nothing but the journal tells what was done.
    let options = Options { checkpoint_bytes: 1 << 30, ..options() };
    let open = |files: &FaultyFiles| {
        FileStore::open_on(Arc::new(files.clone()), Path::new("a store in memory"), options.clone())
    };
    let mut moments = 0;
    for seed in 0..3 {
        for after in 0.. {
            let files = FaultyFiles::new(seed * 1_000 + after);
            let (mut model, mut next) = (Model::new(), Model::new());
            // What the copies are made from is older than the journal, so that replay does not make it anew.
            let store = open(&files).unwrap();
            for txn in &steps[..2] {
                store.submit(txn.clone()).wait().unwrap();
                model.apply(txn).unwrap();
                next.apply(txn).unwrap();
            }
            store.close().unwrap();
            let store = open(&files).unwrap();
            files.crash_after(after);
            let mut survived = true;
            for txn in &steps[2..] {
                next.apply(txn).unwrap();
                if store.submit(txn.clone()).wait().is_err() {
                    survived = false;
                    break;
                }
                model.apply(txn).unwrap();
            }
            if survived {
                files.crash_after(0);
            }
            drop(store);
            let store = open(&files.crash()).unwrap();
            let differences = [model.diff(&store), next.diff(&store)];
            assert!(differences.iter().any(Option::is_none), "seed {seed}, power lost after {after}: {differences:#?}");
            moments += 1;
            if survived {
                break;
            }
        }
    }
    assert!(moments > 100, "{moments}");
}

/// Failure: after a failed write of the journal reads of rows could fail too. Cause: the table's file was frozen before
/// the transaction that had made it longer was given up, which makes it shorter again. Fix: given up first.
#[test]
fn rows_are_read_after_a_transaction_that_grew_the_table_has_failed() {
    let id = ObjectId::new("c".into(), "o");
    let mut failures = 0;
    for after in 0.. {
        let files = FaultyFiles::new(after);
        let store = open(&files).unwrap();
        let set = |key: &'static str, len| Change::OmapSet { key: key.into(), value: vec![7; len].into() };
        let txn = Transaction::new().create_collection(&"c".into()).change(&id, set("before", 10));
        store.submit(txn).wait().unwrap();
        files.fail_after(after);
        let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let large = keys.iter().fold(Transaction::new(), |txn, key| txn.change(&id, set(key, 1 << 20)));
        match store.submit(large).wait() {
            // After a failure of the table's own file redb refuses reads as well.
            Err(Error::Stopped { cause }) if cause.contains("writing the journal") => {
                let found = store.omap_get(&id, b"before").wait();
                assert_eq!(found.unwrap(), Some(vec![7; 10].into()), "failed after {after}");
                failures += 1;
            }
            Err(_) => {}
            Ok(_) if files.failed().is_some() => {}
            Ok(_) => break,
        }
    }
    assert!(failures > 1, "the journal failed {failures} times");
}

/// Failure: after a split that failed half-way, reads of files that had not moved yet told of damage. Cause: they were
/// looked for below only. Fix: while a folder is half split, its files are looked for in it as well.
#[test]
fn a_split_that_fails_half_way_leaves_every_object_readable() {
    let id = |number: u64| ObjectId::new("c".into(), number.to_string());
    let mut half_way = 0;
    for after in 0.. {
        let files = FaultyFiles::new(after);
        let store = open(&files).unwrap();
        let txn = Transaction::new().create_collection(&"c".into());
        let write = |number| Change::Write { offset: 0, data: vec![number as u8; 100].into() };
        store.submit((0..12).fold(txn, |txn, number| txn.change(&id(number), write(number)))).wait().unwrap();
        files.fail_after(after);
        // Enough for a checkpoint, which splits the folder.
        let large = Transaction::new().change(&id(0), Change::Write { offset: 200, data: vec![9; 50_000].into() });
        // It may be answered before the checkpoint fails; the next one is not.
        let _ = store.submit(large).wait();
        let stopped = store.submit(Transaction::new().change(&id(0), Change::Touch)).wait().is_err();
        assert_eq!(stopped, files.failed().is_some(), "failed after {after}: {:?}", files.failed());
        for number in 0..12 {
            match store.read(&id(number), 0..100).wait() {
                Ok(found) => assert_eq!(found, vec![number as u8; 100], "failed after {after}: object {number}"),
                // Other failures may leave half a group in the files.
                Err(Error::Stopped { .. }) if stopped && files.failed() != Some("rename") => {}
                Err(error) => panic!("failed after {after}, {:?}: object {number}: {error}", files.failed()),
            }
        }
        half_way += u64::from(files.failed() == Some("rename"));
        drop(store);
        files.revive();
        let store = open(&files).unwrap();
        for number in 0..12 {
            assert_eq!(store.read(&id(number), 0..100).wait().unwrap(), vec![number as u8; 100], "reopened, {after}");
        }
        if !stopped {
            break;
        }
    }
    assert!(half_way > 4, "{half_way} splits failed at a rename");
}

#[test]
fn removed_objects_leave_no_file_behind() {
    let files = FaultyFiles::new(1);
    let store = open(&files).unwrap();
    let id = |number: u64| ObjectId::new("c".into(), number.to_string());
    let mut txn = Transaction::new().create_collection(&"c".into());
    for number in 0..200 {
        txn.push(&id(number), Change::Write { offset: (number % 3) << 40, data: vec![7; 100].into() });
        txn.push(&id(number), Change::CloneTo { to: id(number + 1_000) });
        txn.push(&id(number), Change::CloneRange { to: id(number), from_offset: 0, len: 50, to_offset: 200 });
    }
    store.submit(txn).wait().unwrap();
    assert_eq!(files.count("objects/"), 400);
    store.close().unwrap();
    assert!(files.count("objects/0") + files.count("objects/f") > 0, "no folder was split");
    let store = open(&files).unwrap();
    let all =
        (0..200).chain(1_000..1_200).fold(Transaction::new(), |txn, number| txn.change(&id(number), Change::Remove));
    store.submit(all).wait().unwrap();
    store.close().unwrap();
    assert_eq!((files.count("objects/"), files.count("staging/")), (0, 0));
    drop(open(&files.crash()).unwrap());
}

#[test]
fn a_damaged_journal_record_is_not_taken_for_its_end() {
    let files = FaultyFiles::new(1);
    let store = open(&files).unwrap();
    files.crash_after(1_000);
    for name in ["a", "b", "c"] {
        store.submit(Transaction::new().create_collection(&name.into())).wait().unwrap();
    }
    files.crash_after(0);
    drop(store);
    let files = files.crash();
    // The second record's payload.
    files.flip("journal", 4096 + 40);
    match open(&files) {
        Err(esker_file::Error::Store(Error::Corrupt { offset: 4096, .. })) => {}
        other => panic!("{other:?}"),
    }
    files.flip("journal", 4096 + 40);
    assert_eq!(open(&files).unwrap().collections().wait().unwrap().len(), 3);
}

/// Failure: the writers beside a thread that panicked waited for ever. Cause: it had led a group, and no other thread
/// led after it. Fix: the store stops, and tells all of the group, and all who come after, why.
#[test]
fn a_panic_of_whoever_leads_a_group_is_told_to_everybody() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some("a panic of the test") {
            before(panic);
        }
    }));
    let (mut told, mut moments) = (0, 0);
    for after in 0.. {
        let files = FaultyFiles::new(after);
        let store = Arc::new(open(&files).unwrap());
        store.submit(Transaction::new().create_collection(&"c".into())).wait().unwrap();
        files.panic_after(after);
        let (tell, ended) = std::sync::mpsc::channel();
        for writer in 0..3u64 {
            let (store, tell) = (Arc::clone(&store), tell.clone());
            std::thread::spawn(move || {
                let write = |number: u64| {
                    let id = ObjectId::new("c".into(), format!("{writer} {number}"));
                    let data = Change::Write { offset: 0, data: vec![number as u8; 3_000].into() };
                    let row = Change::OmapSet { key: "a".into(), value: vec![7; 100].into() };
                    store.submit(Transaction::new().change(&id, data).change(&id, row)).wait()
                };
                let all: Vec<_> = (0..12).map(write).collect();
                tell.send((writer, all)).unwrap();
            });
        }
        let ended: Vec<_> =
            (0..3).map(|_| ended.recv_timeout(std::time::Duration::from_secs(120)).expect("a writer hangs")).collect();
        let panicked = files.failed().is_some();
        drop(store);
        files.revive();
        let store = open(&files).unwrap();
        for (writer, all) in ended {
            for (number, outcome) in all.into_iter().enumerate() {
                match outcome {
                    Ok(_) => {
                        let id = ObjectId::new("c".into(), format!("{writer} {number}"));
                        assert_eq!(store.read(&id, 0..3_000).wait().unwrap(), vec![number as u8; 3_000], "{after}");
                    }
                    Err(Error::Stopped { cause }) => {
                        assert!(cause.contains("panicked: a panic of the test"), "{after}: {cause}");
                        told += 1;
                    }
                    Err(error) => panic!("{after}: {error}"),
                }
            }
        }
        if !panicked {
            break;
        }
        moments += 1;
    }
    assert!(told > 0 && moments > 20, "{told} told of {moments} panics");
}

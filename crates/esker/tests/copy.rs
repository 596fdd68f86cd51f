//! Copying stores between backends: equal content, whatever it is, and going on after an interruption.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::atomic::{AtomicU64, Ordering};

use esker::objects::model::{Generator, GeneratorOptions, Model};
use esker::objects::{
    Capability, Change, Collection, CommitSeq, Completion, Error as StoreError, ObjectId, ObjectStore, Op, Transaction,
};
use esker::{Bytes, CopyProgress, CopyReport, Error, Store, VerifyReport, copy, verify_copy};

const BACKENDS: [&str; 3] = ["memory", "file", "esker"];

fn open(backend: &str, folder: &tempfile::TempDir, name: &str) -> Store {
    let path = folder.path().join(name).display().to_string();
    let location = match backend {
        "memory" => "memory:".to_string(),
        "esker" => format!("esker:{path}?size=256m&segment=8m"),
        other => format!("{other}:{path}?checkpoint=1m"),
    };
    Store::open(&location).unwrap()
}

/// Everything that a generator makes, and a little that it does not.
fn furnish(store: &dyn ObjectStore, seed: u64) -> Model {
    let mut generator = Generator::new(seed, GeneratorOptions::default());
    let mut model = Model::new();
    let mut submit = |txn: Transaction| {
        if model.apply(&txn).is_ok() {
            store.submit(txn).wait().unwrap();
        }
    };
    for _ in 0..150 {
        submit(generator.next());
    }
    let id = ObjectId::new("large".into(), vec![0xff; 1_024]);
    let mut txn = Transaction::new().create_collection(&"empty".into()).create_collection(&"large".into());
    txn.push(&id, Change::Truncate { size: 1 << 60 });
    txn.push(&id, Change::Write { offset: (1 << 60) - 9, data: "the end".into() });
    txn.push(&id, Change::SlotSet { index: u64::MAX, value: Bytes::new() });
    txn.push(&ObjectId::new("large".into(), "touched"), Change::Touch);
    submit(txn);
    // More than one transaction and one page of each.
    for part in 0..3u64 {
        let data: Vec<u8> = (0..3_000_000u64).map(|at| (at * (part + 7) / 3) as u8).collect();
        let mut txn = Transaction::new().change(&id, Change::Write { offset: part * 3_000_001, data: data.into() });
        for number in 0..1_500 {
            let index = part * 1_500 + number;
            txn.push(&id, Change::SlotSet { index, value: vec![1; 900].into() });
            txn.push(&id, Change::OmapSet { key: format!("{index:06}").into(), value: vec![2; 900].into() });
        }
        submit(txn);
    }
    model
}

fn whole(from: &dyn ObjectStore, to: &dyn ObjectStore) -> esker::Result<(CopyReport, VerifyReport)> {
    let report = copy(from, to, "the source", &mut |_| {})?;
    Ok((report, verify_copy(from, to, &mut |_| {})?))
}

#[test]
fn a_copy_has_the_content_of_its_source_on_every_backend() {
    let folder = tempfile::tempdir().unwrap();
    for (seed, from_backend) in BACKENDS.into_iter().enumerate() {
        let from = open(from_backend, &folder, &format!("from {from_backend}"));
        let model = furnish(&*from.objects(), seed as u64);
        let mut crcs = Vec::new();
        for to_backend in BACKENDS {
            let to = open(to_backend, &folder, &format!("{from_backend} to {to_backend}"));
            let (report, verified) = whole(&*from.objects(), &*to.objects()).unwrap();
            assert!(!report.resumed && report.transactions > 3, "{report:?}");
            assert_eq!((report.objects, report.bytes), (verified.objects, verified.bytes));
            assert_eq!(model.diff(&*to.objects()), None, "seed {seed}, {from_backend} to {to_backend}");
            crcs.push(verified.crc);
            to.close().unwrap();
        }
        assert!(crcs.iter().all(|crc| *crc == crcs[0]), "{crcs:?}");
    }
}

#[test]
fn a_target_that_holds_something_is_refused_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (open("memory", &folder, ""), open("file", &folder, "to"));
    furnish(&*from.objects(), 1);
    to.objects().submit(Transaction::new().create_collection(&"mine".into())).wait().unwrap();
    let error = whole(&*from.objects(), &*to.objects()).unwrap_err();
    assert!(matches!(&error, Error::TargetNotEmpty { found } if found == "mine"), "{error}");
    assert_eq!(to.objects().collections().wait().unwrap(), [Collection::from("mine")]);
    let error = verify_copy(&*from.objects(), &*to.objects(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::NoCopy), "{error}");

    let half = open("memory", &folder, "");
    copy(&*from.objects(), &*half.objects(), "the source", &mut |_| {}).unwrap();
    let error = copy(&*from.objects(), &*half.objects(), "another", &mut |_| {}).unwrap_err();
    assert!(matches!(&error, Error::OtherCopy { found, .. } if found == "the source"), "{error}");
    let error = copy(&*half.objects(), &*open("memory", &folder, "").objects(), "half", &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::HalfCopy), "{error}");
}

#[test]
fn a_difference_is_found_in_every_space_and_leaves_the_mark() {
    let folder = tempfile::tempdir().unwrap();
    let id = ObjectId::new("c".into(), "o");
    let changes = [
        Change::Write { offset: 3, data: "x".into() },
        Change::Zero { offset: 2, len: 1 },
        // Reads the same, but is data where the source has a hole.
        Change::Write { offset: 10, data: "\0".into() },
        Change::Truncate { size: 11 },
        Change::XattrSet { name: "a".into(), value: "x".into() },
        Change::OmapSet { key: "k".into(), value: "x".into() },
        Change::OmapRemove { key: "k".into() },
        Change::SlotSet { index: 4, value: "x".into() },
        Change::Remove,
        Change::CloneTo { to: ObjectId::new("c".into(), "p") },
    ];
    for change in changes {
        let (from, to) = (open("memory", &folder, ""), open("memory", &folder, ""));
        let txn = Transaction::new()
            .create_collection(&"c".into())
            .change(&id, Change::Write { offset: 0, data: "0123456789".into() })
            .change(&id, Change::Truncate { size: 20 })
            .change(&id, Change::XattrSet { name: "a".into(), value: "b".into() })
            .change(&id, Change::OmapSet { key: "k".into(), value: "v".into() })
            .change(&id, Change::SlotSet { index: 4, value: "v".into() });
        from.objects().submit(txn).wait().unwrap();
        copy(&*from.objects(), &*to.objects(), "s", &mut |_| {}).unwrap();
        to.objects().submit(Transaction::new().change(&id, change.clone())).wait().unwrap();
        for _ in 0..2 {
            let error = verify_copy(&*from.objects(), &*to.objects(), &mut |_| {}).unwrap_err();
            assert!(matches!(error, Error::CopyDiffers { .. }), "{change:?}: {error}");
        }
    }
}

/// A store that refuses transactions once so many have gone through.
struct Failing {
    store: std::sync::Arc<dyn ObjectStore>,
    left: AtomicU64,
    largest: AtomicU64,
}

impl Failing {
    fn payload(txn: &Transaction) -> u64 {
        let len = |op: &Op| match op {
            Op::Object(_, Change::Write { data, .. }) => data.len(),
            Op::Object(_, Change::OmapSet { key, value }) => key.len() + value.len(),
            Op::Object(_, Change::SlotSet { value, .. }) => 8 + value.len(),
            _ => 0,
        };
        txn.ops.iter().map(len).sum::<usize>() as u64
    }
}

impl ObjectStore for Failing {
    fn capability(&self) -> Capability {
        Capability { transaction_bytes_max: 400_000, ..self.store.capability() }
    }
    fn submit(&self, txn: Transaction) -> Completion<CommitSeq> {
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err() {
            return Completion::ready(Err(StoreError::Closed));
        }
        self.largest.fetch_max(Self::payload(&txn), Ordering::SeqCst);
        self.store.submit(txn)
    }
    esker_store::forward_reads!(store);
}

/// At every transaction, twice over. What was copied before is not copied again.
#[test]
fn a_copy_that_is_interrupted_anywhere_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let from = open("memory", &folder, "");
    let model = furnish(&*from.objects(), 5);
    let from = from.objects();
    let run = |to: &Failing, transactions| {
        to.left.store(transactions, Ordering::SeqCst);
        let mut last = CopyProgress::default();
        let outcome = copy(&*from, to, "s", &mut |progress| last = progress);
        (outcome, last)
    };
    let target = || Failing { store: open("memory", &folder, "").objects(), left: 0.into(), largest: 0.into() };
    let to = target();
    let (outcome, last) = run(&to, u64::MAX);
    let total = outcome.unwrap();
    assert_eq!((last.objects, last.objects_total), (total.objects, total.objects));
    assert!(total.transactions > 40, "{total:?}");
    assert!(to.largest.load(Ordering::SeqCst) < 400_000, "a transaction of {:?} bytes", to.largest);
    for first in 0..total.transactions {
        let to = target();
        assert!(run(&to, first + 1).0.is_err());
        let second = (total.transactions - first) / 3;
        let (again, _) = run(&to, second);
        assert!(again.is_err());
        let report = run(&to, u64::MAX).0.unwrap();
        assert!(report.resumed);
        // Where it begins again, transactions may be cut otherwise.
        let left = total.transactions - first - second + 2;
        assert!(report.transactions <= left, "{report:?} after {first} of {total:?}");
        verify_copy(&*from, &*to.store, &mut |_| {}).unwrap();
        assert_eq!(model.diff(&*to.store), None, "interrupted after {first}");
    }
}

//! Transactions that change nothing: their answers depend on changes that others have made, and wait for those.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::sync::Arc;

use esker_device::{Device, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::{Change, ObjectId, ObjectStore, Transaction};

/// Failure: a process was told that a collection was there which another had just made, a power cut took it, and the
/// process went on without it. Cause: a transaction without an effect waited for the changes of its objects, and a
/// collection, or an object that is not there, is none. Fix: it waits for the last change of names too.
#[test]
fn they_wait_for_the_change_that_left_nothing_to_do() {
    let device = Arc::new(MemoryDevice::new(32 << 20));
    Engine::format(&*device, &FormatOptions { segment_bytes: 1 << 20, uuid: [5; 16] }).unwrap();
    // Nothing is synced before a caller waits for it.
    let options = Options { commit_thread: false, ..Options::default() };
    let engine = Engine::open(device as Arc<dyn Device>, options).unwrap();
    let object = ObjectId::new("c".into(), "o");
    let make = || Transaction::new().create_collection(&"c".into());
    let touch = || Transaction::new().change(&object, Change::Touch);
    let remove = || Transaction::new().change(&object, Change::Remove);
    for (name, first, again) in [
        ("a collection that was just made", make(), make()),
        ("an object that was just made", touch(), touch()),
        ("an object that was just removed", remove(), remove()),
    ] {
        let (done, durable) = engine.submit(first).into_parts();
        done.unwrap();
        let durable = durable.unwrap_or_else(|| panic!("{name}: a durable change waits"));
        assert!(durable.state().is_none(), "{name}");
        let (done, barrier) = engine.submit(again).into_parts();
        done.unwrap();
        let barrier = barrier.unwrap_or_else(|| panic!("{name}: nothing is waited for"));
        assert!(barrier.state().is_none() && barrier.position() >= durable.position(), "{name}");
        barrier.wait().unwrap();
        assert!(durable.state().is_some(), "{name}");
    }
}

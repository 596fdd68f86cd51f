//! `full_device_recovers`, through every face: a client empties through a face what it has filled through it.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

#[path = "support/emptying.rs"]
mod emptying;

use emptying::{a_full_store_is_attached_to_for_ever, every_face_can_be_emptied};
use esker::Store;

#[test]
fn every_face_can_be_emptied_where_the_store_is_full() {
    for shape in ["?size=64m&segment=1m", "?size=64m&segment=4m", "?size=40m&segment=2m"] {
        let folder = tempfile::tempdir().unwrap();
        let location = format!("{}{shape}", folder.path().join("data").display());
        let open = || Store::open(&location).unwrap_or_else(|error| panic!("opening {shape}: {error}"));
        every_face_can_be_emptied(open(), &mut |store| {
            store.close().unwrap_or_else(|error| panic!("closing {shape}: {error}"));
            open()
        });
    }
}

#[test]
fn a_disk_on_a_full_store_is_attached_to_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let location = format!("{}?size=32m&segment=1m&policy=periodic:1ms", folder.path().join("data").display());
    let store = Store::open(&location).unwrap();
    a_full_store_is_attached_to_for_ever(&store, 20_000);
    store.close().unwrap();
}

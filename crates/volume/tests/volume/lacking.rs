//! A backend that is not atomic across objects and clones nothing: what works, and what is refused by name.

use std::sync::Arc;

use esker_memory::MemoryStore;
use esker_store::Error as StoreError;
use esker_store::contract::PerObject;
use esker_volume::{Durability, Error, Layout, Volumes};
use fastrand::Rng;

use crate::support::{SMALL, write};

#[test]
fn what_a_backend_cannot_do_is_refused_by_name_and_the_rest_works() {
    let volumes = Volumes::open(Arc::new(PerObject(MemoryStore::new()))).unwrap();
    let abilities = volumes.abilities();
    assert!(!abilities.atomic_writes && !abilities.snapshots && !abilities.persistent);
    let large = Layout { object_bytes: 16 << 20, ..Layout::default() };
    let refused = volumes.create("large", 1 << 20, large, 0).unwrap_err().to_string();
    assert!(refused.contains("16777216") && refused.contains("8388608 (object_bytes_max)"), "{refused}");
    let image = volumes.create("disk", 1 << 20, SMALL, 0).unwrap();
    let unsupported = |result: Result<(), Error>, what: &str| match result {
        Err(Error::Store(error @ StoreError::Unsupported { .. })) => {
            let text = error.to_string();
            assert!(text.starts_with("lacking cannot ") && text.contains(what), "{text}");
        }
        other => panic!("{other:?}"),
    };
    unsupported(image.snapshot_create("s", 0).map(drop), "snapshots");
    unsupported(image.lock("me").map(drop), "exclusive lock");
    unsupported(image.take_over("me").map(drop), "exclusive lock");
    unsupported(volumes.clone_image("disk", "s", "child", 0).map(drop), "clones");

    let mut model = vec![0u8; 1 << 20];
    let mut rng = Rng::with_seed(5);
    for _ in 0..300 {
        let offset = rng.u64(..1 << 20);
        let len = rng.u64(..=(200_000).min((1 << 20) - offset));
        let range = offset as usize..(offset + len) as usize;
        if rng.u8(..3) == 0 {
            image.discard(offset, len, Durability::Applied).unwrap().wait().unwrap();
            model[range].fill(0);
        } else {
            let byte = rng.u8(1..);
            write(&image, offset, vec![byte; len as usize]);
            model[range].fill(byte);
        }
    }
    assert!(image.read_bytes(0, 1 << 20).unwrap() == model);
    image.resize(100_000, true).unwrap();
    image.resize(1 << 20, false).unwrap();
    model[100_000..].fill(0);
    assert!(image.read_bytes(0, 1 << 20).unwrap() == model);
    volumes.rename("disk", "disc").unwrap();
    volumes.remove("disc").unwrap();
    assert!(volumes.work(&mut |_, _| true).unwrap());
    let left = volumes.store().list(&"volume".into(), None, 10).wait().unwrap();
    assert_eq!(left, ["directory"]);
}

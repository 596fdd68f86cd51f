//! Power loss on the engine: what the device holds at any moment is opened again.
//!
//! Invariant of the writer here: write number n fills a block with n, so an image tells which writes it has seen.

use std::sync::Arc;

use bytes::Bytes;
use esker_device::MemoryDevice;
use esker_store::ObjectStore;
use esker_volume::{Durability, Volumes};
use fastrand::Rng;

use crate::support::{SMALL, device, engine_on, write};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;

fn reopened(image: &[u8]) -> Volumes {
    let device = Arc::new(MemoryDevice::from_image(image));
    Volumes::open(engine_on(&device) as Arc<dyn ObjectStore>).unwrap()
}

/// The number that each block holds; whole blocks only.
fn numbers(bytes: &Bytes) -> Vec<u64> {
    let number = |block: &[u8]| {
        let words: Vec<u64> = block.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        assert!(words.iter().all(|word| *word == words[0]), "a torn block: {words:?}");
        words[0]
    };
    bytes.chunks(BLOCK as usize).map(number).collect()
}

fn block(number: u64) -> Bytes {
    number.to_le_bytes().repeat(BLOCK as usize / 8).into()
}

/// Whether `found` is what the writes up to some number between `flushed` and `last` leave.
fn is_a_prefix(found: &[u64], history: &[(u64, u64)], flushed: u64, last: u64) -> bool {
    (flushed..=last).any(|upto| {
        let mut expected = vec![0; BLOCKS as usize];
        for (number, at) in history.iter().take_while(|(number, _)| *number <= upto) {
            expected[*at as usize] = *number;
        }
        expected == found
    })
}

#[test]
fn flushed_writes_survive_and_the_rest_is_a_prefix() {
    for seed in 0..12 {
        let mut rng = Rng::with_seed(seed);
        let device = device(64 << 20);
        let volumes = Volumes::open(engine_on(&device) as Arc<dyn ObjectStore>).unwrap();
        let image = volumes.create("disk", BLOCKS * BLOCK, SMALL, 0).unwrap();
        let mut history = Vec::new();
        let (mut flushed, mut snaps) = (0, Vec::new());
        for number in 1..=200u64 {
            let at = rng.u64(..BLOCKS);
            let durable = rng.u8(..20) == 0;
            let durability = if durable { Durability::Durable } else { Durability::Applied };
            history.push((number, at));
            image.write(at * BLOCK, block(number), durability).unwrap().wait().unwrap();
            if durable {
                flushed = number;
            }
            match rng.u8(..30) {
                0 => {
                    image.flush().wait().unwrap();
                    flushed = number;
                }
                1 => {
                    image.snapshot_create(&format!("s{number}"), 0).unwrap();
                    snaps.push((number, numbers(&image.read_bytes(0, BLOCKS * BLOCK).unwrap())));
                    flushed = number;
                }
                _ => {}
            }
            if rng.u8(..6) == 0 {
                let after = reopened(&device.image());
                let disk = after.image("disk").unwrap();
                let found = numbers(&disk.read_bytes(0, BLOCKS * BLOCK).unwrap());
                assert!(
                    is_a_prefix(&found, &history, flushed, number),
                    "seed {seed}: after write {number}, flushed {flushed}, found {found:?}"
                );
                for (at, expected) in &snaps {
                    let snap = disk.snapshot(&format!("s{at}")).unwrap();
                    let found = numbers(&snap.read_bytes(0, BLOCKS * BLOCK).unwrap());
                    assert_eq!(&found, expected, "seed {seed}: snapshot at write {at} after write {number}");
                }
            }
        }
    }
}

#[test]
fn interrupted_work_goes_on_after_a_crash() {
    let device = device(128 << 20);
    let volumes = Volumes::open(engine_on(&device) as Arc<dyn ObjectStore>).unwrap();
    let disk = volumes.create("disk", 2 << 20, SMALL, 0).unwrap();
    let first: Bytes = (0..2u64 << 20).map(|at| (at / 4096 % 251) as u8 + 1).collect::<Vec<_>>().into();
    write(&disk, 0, first.clone());
    disk.snapshot_create("base", 0).unwrap();
    disk.snapshot_protect("base").unwrap();
    write(&disk, 100, vec![0xEE; 1 << 20]);
    let changed = disk.read_bytes(0, 2 << 20).unwrap();
    disk.snapshot_create("later", 0).unwrap();
    let child = volumes.clone_image("disk", "base", "child", 0).unwrap();

    assert!(!child.flatten(&mut |done, _| done < 7).unwrap());
    let after = reopened(&device.image());
    let again = after.image("child").unwrap();
    assert!(again.info().unwrap().parent.is_some());
    assert_eq!(again.read_bytes(0, 2 << 20).unwrap(), first);
    assert!(again.flatten(&mut |_, _| true).unwrap());
    assert_eq!(again.info().unwrap().parent, None);
    assert_eq!(again.read_bytes(0, 2 << 20).unwrap(), first);
    after.image("disk").unwrap().snapshot_unprotect("base").unwrap();

    assert!(!disk.rollback("base", &mut |done, _| done < 5).unwrap());
    let after = reopened(&device.image());
    let again = after.image("disk").unwrap();
    assert_eq!(again.info().unwrap().rollback.as_deref(), Some("base"));
    assert!(again.write(0, "x".into(), Durability::Applied).is_err());
    assert!(again.rollback("later", &mut |_, _| true).is_err());
    assert!(again.rollback("base", &mut |_, _| true).unwrap());
    assert_eq!(again.read_bytes(0, 2 << 20).unwrap(), first);
    assert_eq!(again.snapshot("later").unwrap().read_bytes(0, 2 << 20).unwrap(), changed);

    assert!(child.flatten(&mut |_, _| true).unwrap());
    volumes.remove("child").unwrap();
    assert!(!volumes.work(&mut |_, _| false).unwrap());
    let after = reopened(&device.image());
    assert_eq!(after.list().unwrap(), ["disk"]);
    assert!(after.work(&mut |_, _| true).unwrap());
    let names = after.store().list(&"volume".into(), None, 1_000).wait().unwrap();
    assert!(!names.iter().any(|name| name.starts_with(b"d/0000000000000002")), "objects of a removed image are left");
}

//! Pictures with their thumbnails as objects: bytes, an attribute and a list of tags, changed together or not at all.
//!
//! `cargo run --example thumbnails -- ./pictures`

use esker::Store;
use esker::objects::{Change, Condition, Error, ObjectId, Transaction};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let store = Store::open(&path)?;
    let objects = store.objects();
    objects.submit(Transaction::new().create_collection(&"pictures".into())).wait()?;

    let picture = ObjectId::new("pictures".into(), "sunset.jpg");
    let version = |number: u8| bytes::Bytes::copy_from_slice(&[number]);
    let write = |number: u8, body: Vec<u8>| {
        let before = match number {
            1 => Condition::Absent,
            _ => Condition::XattrEquals { name: "version".into(), value: version(number - 1) },
        };
        // All of it is in the store, or nothing, and only over the version that its writer has seen.
        let txn = Transaction::new()
            .guard(&picture, before)
            .change(&picture, Change::Write { offset: 0, data: body.into() })
            .change(&picture, Change::XattrSet { name: "version".into(), value: version(number) })
            .change(&picture, Change::OmapSet { key: "tag:evening".into(), value: "".into() });
        objects.submit(txn).wait()
    };
    // An earlier run may have left it.
    objects.submit(Transaction::new().change(&picture, Change::Remove)).wait()?;
    write(1, vec![0xff; 100_000])?;
    write(2, vec![0xfe; 100_000])?;
    match write(2, vec![0; 10]) {
        Err(Error::GuardFailed { index }) => println!("the second writer is told that guard {index} failed"),
        other => println!("{other:?}"),
    }
    let middle = objects.read(&picture, 50_000..50_004).wait()?;
    println!("version {:?}, bytes {middle:?}", objects.xattr(&picture, b"version").wait()?);

    store.close()?;
    Ok(())
}

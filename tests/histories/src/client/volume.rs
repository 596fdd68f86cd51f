//! A client of volumes: writes under the lock of an image, which clients take over from each other, reads and flushes.
//!
//! Two clients write to an image in turn, all read all images. A place is the first blocks of one data object. A write
//! is durable when it is answered, or applied only and durable after a flush by its handle: what lies between, a kill
//! may take back, and the flush must say so.
//!
//! A block is noted as the value that fills it, or nothing for zeros.

use bytes::Bytes;
use esker::volume::{Error, Image, Layout, Volumes};
use esker::{Durability, Store};

use super::actor::{Client, KEYS, PLACES, failed as store_failed, outcome_of};
use crate::notes::{Answer, Call, Held, Outcome};
use crate::terms::Failure;

/// Images, and clients that write to one.
const IMAGES: u64 = 4;
/// Of a block, which is noted as one value.
pub const BLOCK_BYTES: usize = 4_096;
const OBJECT_BYTES: u64 = 4 << 20;
const IMAGE_BYTES: u64 = 1 << 40;
/// Writes of a holder until it looks whether to take the lock anew: one of so many calls does.
const TAKES: u32 = 40;

fn name(image: u64) -> String {
    format!("disk{image}")
}

pub(super) fn prepare(store: &Store) -> Result<(), Failure> {
    let volumes = store.volumes()?;
    let layout = Layout { object_bytes: OBJECT_BYTES, stripe_unit: OBJECT_BYTES, ..Layout::default() };
    for image in 0..IMAGES {
        volumes.create(&name(image), IMAGE_BYTES, layout, 0)?;
    }
    Ok(())
}

fn failed(error: &Error) -> Answer {
    let outcome = match error {
        Error::Fenced { .. } => Outcome::Refused,
        Error::Store(error) => outcome_of(error),
        _ => Outcome::Fault,
    };
    Answer::failed(outcome, error)
}

/// A block full of a value, told from others by its end: the value, a space, and again.
pub fn block(value: &str) -> Bytes {
    let mut block = format!("{value} ").repeat(BLOCK_BYTES / (value.len() + 1) + 1).into_bytes();
    block.truncate(BLOCK_BYTES);
    block.into()
}

/// The value of a block. One that is not all of one value is shown as torn, and matches nothing.
pub fn value(bytes: &[u8]) -> Held {
    if bytes.iter().all(|byte| *byte == 0) {
        return None;
    }
    let first = bytes.split(|byte| *byte == b' ').next().and_then(|value| std::str::from_utf8(value).ok());
    let whole = first.filter(|value| block(value) == bytes);
    Some(whole.map_or_else(|| format!("torn: {}", String::from_utf8_lossy(bytes)), str::to_owned))
}

/// An image under the lock of this client.
struct Writer {
    image: Image,
    epoch: u64,
    /// Number of the handle, from 1: whose writes a flush covers.
    handle: u64,
}

fn offset(place: u64, block: u64) -> u64 {
    place * OBJECT_BYTES + block * BLOCK_BYTES as u64
}

fn call(name: &str, image: u64, place: u64, keys: &[u64]) -> Call {
    Call { call: name.into(), place: format!("{}/{place}", self::name(image)), keys: keys.to_vec(), ..Call::default() }
}

fn read(image: &Image, place: u64, keys: &[u64]) -> Answer {
    let (first, len) = (keys.first().copied().unwrap_or_default(), (keys.len() * BLOCK_BYTES) as u64);
    let read = image.read_bytes(offset(place, first), len);
    read.map_or_else(|error| failed(&error), |bytes| Answer::found(bytes.chunks(BLOCK_BYTES).map(value).collect()))
}

pub(super) fn play(client: &mut Client) -> Result<(), Failure> {
    let location = client.role.location.clone();
    let opened = client.opened(|| -> Result<_, Failure> {
        let store = Store::open(&location)?;
        let volumes = store.volumes()?;
        let images = (0..IMAGES).map(|image| volumes.image(&name(image))).collect::<Result<Vec<_>, _>>()?;
        Ok((images, volumes, store))
    });
    let Some((images, volumes, _store)) = opened? else { return Ok(()) };
    if client.role.last {
        let keys: Vec<u64> = (0..KEYS).collect();
        for place in 0..client.places() / PLACES {
            for (number, image) in (0..).zip(&images) {
                client.must(&call("read", number, place, &keys), || read(image, place, &keys))?;
            }
        }
        return Ok(());
    }
    let own = client.role.me % IMAGES;
    let (mut writer, mut handles) = (None, 0);
    while client.goes_on() {
        if client.rng.u8(0..100) < 40 {
            let other = if client.rng.bool() { own } else { client.rng.u64(0..IMAGES) };
            let place = client.old_place().unwrap_or_else(|| client.place()) / PLACES;
            let keys = run(client);
            client.note(&call("read", other, place, &keys), || read(&images[other as usize], place, &keys))?;
        } else {
            handles += 1;
            write(client, &volumes, own, &mut writer, handles)?;
        }
    }
    Ok(())
}

/// Some blocks that follow each other.
fn run(client: &mut Client) -> Vec<u64> {
    let first = client.rng.u64(0..KEYS);
    (first..client.rng.u64(first + 1..=KEYS)).collect()
}

/// Takes the lock, writes, discards or flushes.
fn write(
    client: &mut Client,
    volumes: &Volumes,
    own: u64,
    slot: &mut Option<Writer>,
    handles: u64,
) -> Result<(), Failure> {
    let owner = format!("{}.{}", client.role.me, client.role.life);
    let place = client.place() / PLACES;
    let anew = client.rng.u32(0..TAKES) == 0;
    let Some(writer) = slot.as_ref().filter(|_| !anew) else {
        // A new handle: what the old one did not flush it never will.
        let Ok(image) = volumes.image(&name(own)) else { return Ok(()) };
        let locked = Call { call: "take_over".into(), place: name(own), ..Call::default() };
        let answer =
            client.note(&locked, || image.take_over(&owner).map_or_else(|error| failed(&error), Answer::number))?;
        let taken = answer.outcome == Outcome::Ok;
        *slot = taken.then_some(Writer { image, epoch: answer.number, handle: handles });
        return Ok(());
    };
    let chance = client.rng.u8(0..100);
    if chance < 15 {
        let flushed = Call { call: "flush".into(), place: name(own), handle: writer.handle, ..Call::default() };
        client.note(&flushed, || match writer.image.flush().wait() {
            Ok(_) => Answer::ok(),
            Err(esker::objects::Error::Restarted) => Answer::refused(),
            Err(error) => store_failed(&error),
        })?;
        return Ok(());
    }
    let keys = run(client);
    let len = (keys.len() * BLOCK_BYTES) as u64;
    let at = offset(place, keys.first().copied().unwrap_or_default());
    let durable = client.rng.bool();
    let durability = if durable { Durability::Durable } else { Durability::Applied };
    let discards = chance < 22;
    let values: Vec<Held> = keys.iter().map(|_| (!discards).then(|| client.value())).collect();
    let handle = if durable { 0 } else { writer.handle };
    let write = Call { values, held: writer.epoch, handle, ..call("write", own, place, &keys) };
    let answer = client.note(&write, || {
        let data: Vec<u8> = write.values.iter().flatten().flat_map(|value| block(value)).collect();
        let done = if discards {
            writer.image.discard(at, len, durability)
        } else {
            writer.image.write(at, data.into(), durability)
        };
        match done.and_then(|done| Ok(done.wait()?)) {
            Ok(()) => Answer::ok(),
            Err(error) => failed(&error),
        }
    })?;
    // By an error too: a discard that finds nothing to do flushes, and then tells of what a restart took.
    if !matches!(answer.outcome, Outcome::Ok | Outcome::Unknown) {
        *slot = None;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_tells_its_value_and_a_torn_one_does_not() {
        let (one, other) = (block("1.0.12"), block("1.0.13"));
        assert_eq!((one.len(), value(&one)), (BLOCK_BYTES, Some("1.0.12".into())));
        assert_eq!(value(&[0; BLOCK_BYTES]), None);
        let torn = [&one[..2_048], &other[2_048..]].concat();
        assert!(value(&torn).is_some_and(|shown| shown.starts_with("torn: ")));
    }
}

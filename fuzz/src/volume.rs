//! Target `volume`: what volumes keep in a store (headers, records of snapshots, the list of clones) and streams of
//! exported images, damaged.
//!
//! kind, bytes → put in the place of the good ones, or imported → everything that reads them is called
//!
//! Invariants:
//! 1. Whatever is stored, every call returns: an error, or something by which no later arithmetic fails.
//! 2. Streams of half of the inputs have their checksums made right again, so that the damage behind them is reached.

use std::sync::Arc;

use bytes::Bytes;
use esker_memory::MemoryStore;
use esker_store::{Change, Collection, ObjectId, ObjectStore, Transaction};
use esker_volume::{Durability, Error, Image, Layout, Volumes};

use crate::Target;
use crate::mutate::mutate;

const LAYOUT: Layout = Layout { object_bytes: 64 << 10, stripe_unit: 16 << 10, stripe_count: 2 };
const SIZE: u64 = 300_000;

/// What an input is; its first byte.
const STATE: u8 = 0;
const SNAPSHOT: u8 = 1;
const CLONES: u8 = 2;
const STREAM: u8 = 3;
const INCREMENT: u8 = 4;
const KINDS: u8 = 5;

const EXPORT_HEAD_BYTES: usize = 56;
const CHUNK_HEAD_BYTES: usize = 24;

pub struct Volume {
    state: Bytes,
    snapshot: Bytes,
    clones: Vec<u8>,
    streams: [Vec<u8>; 2],
}

fn object(name: &str) -> ObjectId {
    ObjectId::new(Collection::from("volume"), name.to_owned())
}

fn header() -> ObjectId {
    object("h/0000000000000001")
}

fn clones() -> ObjectId {
    object("c/0000000000000001")
}

fn snapshot_key() -> Bytes {
    [&b"s"[..], &1u64.to_be_bytes()].concat().into()
}

/// An image with two snapshots, one of them with a clone.
fn fresh() -> Result<(Volumes, Image), Error> {
    let volumes = Volumes::open(Arc::new(MemoryStore::new()) as Arc<dyn ObjectStore>)?;
    let image = volumes.create("disk", SIZE, LAYOUT, 1)?;
    let write = |offset: u64, byte: u8| -> Result<(), Error> {
        Ok(image.write(offset, vec![byte; 20_000].into(), Durability::Applied)?.wait()?)
    };
    write(10_000, 1)?;
    image.snapshot_create("one", 2)?;
    write(20_000, 2)?;
    write(250_000, 3)?;
    image.snapshot_create("two", 3)?;
    write(15_000, 4)?;
    image.snapshot_protect("one")?;
    let child = volumes.clone_image("disk", "one", "child", 4)?;
    child.write(12_000, vec![5; 9_000].into(), Durability::Applied)?.wait()?;
    Ok((volumes, image))
}

fn head_len(stream: &[u8]) -> Option<usize> {
    let len = |at: usize| stream.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_le_bytes);
    EXPORT_HEAD_BYTES.checked_add(len(48)? as usize)?.checked_add(len(52)? as usize)
}

/// Makes the checksums of a stream right, as far as its lengths can be followed.
fn check_again(stream: &mut [u8]) -> Option<()> {
    let mut at = head_len(stream)?;
    let mut crc = crc32c::crc32c(stream.get(..at)?);
    stream.get_mut(at..at + 4)?.copy_from_slice(&crc.to_le_bytes());
    at += 4;
    loop {
        let head = stream.get(at..at + CHUNK_HEAD_BYTES)?;
        let kind = u32::from_le_bytes(head[..4].try_into().ok()?);
        let len = if kind == 1 { u64::from_le_bytes(head[16..24].try_into().ok()?) } else { 0 };
        let data = at + CHUNK_HEAD_BYTES;
        let end = data.checked_add(usize::try_from(len).ok()?)?;
        crc = crc32c::crc32c_append(crc, &stream[at..at + 4]);
        crc = crc32c::crc32c_append(crc, &stream[at + 8..data]);
        crc = crc32c::crc32c_append(crc, stream.get(data..end)?);
        stream[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        at = end;
    }
}

impl Volume {
    pub fn new() -> Self {
        Self::try_new().expect("a store in memory takes an image")
    }

    fn try_new() -> Result<Self, Error> {
        let (volumes, image) = fresh()?;
        let mut streams = [Vec::new(), Vec::new()];
        image.export(None, Some("two"), &mut streams[0], &mut |_, _| true)?;
        image.export(Some("two"), None, &mut streams[1], &mut |_, _| true)?;
        let store = volumes.store();
        let mut pairs = Vec::new();
        for (key, value) in
            store.omap_scan(&clones(), &esker_store::OmapScan { limit: 9, ..Default::default() }).wait()?
        {
            pairs.extend_from_slice(&key);
            pairs.extend_from_slice(&value);
        }
        Ok(Self {
            state: store.xattr(&header(), b"state").wait()?.unwrap_or_default(),
            snapshot: store.omap_get(&header(), &snapshot_key()).wait()?.unwrap_or_default(),
            clones: pairs,
            streams,
        })
    }

    /// Calls everything that there is on an image; says whether it could be opened and read.
    fn use_all(volumes: &Volumes) -> bool {
        let image = match volumes.image("disk") {
            Ok(image) => image,
            Err(_) => return false,
        };
        let size = image.size();
        let read = image.read_bytes(0, size.min(SIZE)).is_ok();
        let ends = [0, 10_000, 60_000, size.saturating_sub(5), u64::MAX - 3];
        for offset in ends {
            let _ = image.read_bytes(offset, 10);
            let _ = image.extents(offset, 70_000.min(size.saturating_sub(offset)));
            let _ = image.write(offset, Bytes::from_static(b"0123456789"), Durability::Applied).map(drop);
            let _ = image.discard(offset, size.saturating_sub(offset), Durability::Applied).map(drop);
        }
        let _ = image.info();
        let _ = image.snapshots();
        let _ = image.stored_bytes();
        for name in ["one", "two"] {
            if let Ok(snapshot) = image.snapshot(name) {
                let _ = snapshot.read_bytes(0, snapshot.size().min(SIZE));
                let _ = snapshot.extents(0, snapshot.size().min(SIZE));
            }
            let _ = volumes.children("disk", name);
            let _ = image.diff(Some(name), None, &mut |_| Ok(true));
        }
        let _ = image.diff(None, Some("two"), &mut |_| Ok(true));
        let _ = image.export(Some("one"), Some("two"), &mut std::io::sink(), &mut |_, _| true);
        if let Ok(child) = volumes.image("child") {
            let _ = child.read_bytes(0, child.size().min(SIZE));
            let _ = child.write(100_000, Bytes::from_static(b"x"), Durability::Applied).map(drop);
            let _ = child.flatten(&mut |_, _| true);
        }
        let _ = image.take_over("somebody");
        let _ = image.snapshot_create("three", 0);
        let _ = image.rollback("one", &mut |_, _| true);
        let _ = image.resize(100_000, true);
        let _ = image.resize(SIZE, true);
        let _ = image.snapshot_unprotect("one");
        for name in ["one", "two", "three"] {
            let _ = image.snapshot_remove(name);
        }
        let _ = volumes.work(&mut |_, _| true);
        let _ = image.unlock();
        let _ = volumes.remove("disk");
        let _ = volumes.work(&mut |_, _| true);
        read
    }
}

impl Target for Volume {
    fn input(&mut self, random: &mut fastrand::Rng) -> Vec<u8> {
        let kind = random.u8(0..KINDS);
        let mut bytes = match kind {
            STATE => self.state.to_vec(),
            SNAPSHOT => self.snapshot.to_vec(),
            CLONES => self.clones.clone(),
            _ => self.streams[usize::from(kind - STREAM)].clone(),
        };
        if random.u8(0..4) == 0 && matches!(kind, STATE | SNAPSHOT) {
            // One field at a value where arithmetic ends.
            let at = random.usize(0..bytes.len() / 8) * 8;
            let edge = [0, 1, 1 << 54, (1 << 54) + 1, 1 << 63, u64::MAX - 1, u64::MAX][random.usize(0..7)];
            bytes[at..at + 8].copy_from_slice(&u64::to_le_bytes(edge));
        } else {
            mutate(&mut bytes, random);
        }
        if random.bool() && kind >= STREAM {
            // It may end early: then it is as far as it goes.
            let _ = check_again(&mut bytes);
        }
        bytes.insert(0, kind);
        bytes
    }

    fn run(&mut self, input: &[u8]) -> bool {
        let Some((kind, bytes)) = input.split_first() else { return false };
        let Ok((volumes, image)) = fresh() else { return false };
        let value = Bytes::copy_from_slice(bytes);
        let mut txn = Transaction::new();
        match *kind {
            STATE => txn.push(&header(), Change::XattrSet { name: Bytes::from_static(b"state"), value }),
            SNAPSHOT => txn.push(&header(), Change::OmapSet { key: snapshot_key(), value }),
            CLONES => {
                txn.push(&clones(), Change::OmapClear);
                for pair in bytes.chunks(24) {
                    let (key, value) = pair.split_at(pair.len().min(16));
                    let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
                    txn.push(&clones(), Change::OmapSet { key, value });
                }
            }
            STREAM => return volumes.import("copy", &mut &bytes[..], 9, &mut |_, _| true).is_ok(),
            INCREMENT => {
                if image.rollback("two", &mut |_, _| true).is_err() {
                    return false;
                }
                return volumes.import("disk", &mut &bytes[..], 9, &mut |_, _| true).is_ok();
            }
            _ => return false,
        }
        // A record may be too large for the store: that is refused there.
        volumes.store().submit(txn).wait().is_ok() && Self::use_all(&volumes)
    }
}

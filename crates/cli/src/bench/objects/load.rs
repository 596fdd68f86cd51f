//! What the threads do in each phase, and what is measured of it.
//!
//! [`Drive::run`]: threads ([`Load`]) → operations until the time is over or nothing is left → histogram, counters
//!
//! Invariants:
//! 1. An operation is done when it is durable (or its answer may be shown): every thread waits for its own.
//! 2. The same seed gives the same contents and the same random choices per thread; only their number differs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use esker::Bytes;
use esker::objects::{Change, Collection, ObjectId, ObjectStore, Transaction};

use super::outcome::Cell;
use super::target::Opened;
use super::threads::Load;
use crate::exit::{Code, Failure};

/// The collection that everything is in.
const COLLECTION: &str = "bench";
/// Names that one page of a listing asks for.
pub const LIST_NAMES: usize = 1_000;
/// Bytes of an overwrite.
pub const OVERWRITE_BYTES: u64 = 4 << 10;
/// Bytes of an object that is overwritten.
pub const IMAGE_OBJECT_BYTES: u64 = 4 << 20;
/// Bytes of an omap value; its key has 16.
pub const OMAP_VALUE_BYTES: usize = 100;
/// Objects that omap keys are spread over.
const OMAP_OBJECTS: u64 = 16;

/// A phase of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Phase {
    /// New objects, each written whole
    Write,
    /// Objects read whole, one after another
    ReadSeq,
    /// Objects read whole, at random
    ReadRand,
    /// 4 KiB writes into 4 MiB objects, one after another
    OverwriteSeq,
    /// 4 KiB writes into 4 MiB objects, at random
    OverwriteRand,
    /// New omap keys of 16 bytes with values of 100
    Omap,
    /// New objects without data, with one attribute
    Create,
    /// Names, a thousand at once
    List,
    /// Objects go
    Delete,
}

impl Phase {
    /// Whether a store changes in it for as long as it takes.
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::OverwriteSeq | Self::OverwriteRand | Self::Omap | Self::Create)
    }

    /// Its name on the command line and in results.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
    }
}

/// Objects, and bytes of them, that are under way while a store is filled.
const FILL_OBJECTS_MAX: u64 = 256;
const FILL_BYTES_MAX: u64 = 32 << 20;

/// A phase on an open store.
pub struct Drive<'a> {
    /// The store.
    pub opened: &'a Opened,
    /// What is done.
    pub phase: Phase,
    /// Bytes of an object.
    pub object_bytes: u64,
    /// Objects that are there (none for phases that make them).
    pub objects: u64,
    /// Number of the first operation.
    pub first: u64,
    /// Threads.
    pub in_flight: u64,
    /// Longest time.
    pub time: Duration,
    /// Seed.
    pub seed: u64,
    /// Where the device's flushes are counted: its line of /proc/diskstats.
    pub device: Option<&'a str>,
}

/// Random contents, of which every object gets another part.
pub struct Contents(Bytes);

impl Contents {
    /// Contents for objects of at most `bytes`.
    pub fn new(bytes: u64, seed: u64) -> Self {
        let mut data = vec![0; bytes as usize + (1 << 20)];
        fastrand::Rng::with_seed(seed).fill(&mut data);
        Self(data.into())
    }

    /// `len` bytes for the thing of this number.
    pub fn part(&self, number: u64, len: u64) -> Bytes {
        let at = (number.wrapping_mul(7_919) % (1 << 20)) as usize;
        self.0.slice(at..at + len as usize)
    }
}

fn object(number: u64) -> ObjectId {
    ObjectId::new(COLLECTION.into(), format!("object {number:012}"))
}

/// Makes `count` objects of `bytes`, quickly, and makes them durable.
pub fn fill(store: &dyn ObjectStore, contents: &Contents, count: u64, bytes: u64) -> Result<(), Failure> {
    create_collection(store)?;
    let mut begun = VecDeque::new();
    let under_way_max = (FILL_BYTES_MAX / bytes.max(1)).clamp(1, FILL_OBJECTS_MAX) as usize;
    for number in 0..count {
        let txn = Transaction::with(esker::Durability::Applied);
        let data = contents.part(number, bytes);
        begun.push_back(store.submit(txn.change(&object(number), Change::Write { offset: 0, data })));
        if begun.len() == under_way_max
            && let Some(first) = begun.pop_front()
        {
            first.wait()?;
        }
    }
    begun.into_iter().try_for_each(|done| done.wait().map(drop))?;
    store.sync().wait()?;
    Ok(())
}

/// Makes the collection.
pub fn create_collection(store: &dyn ObjectStore) -> Result<(), Failure> {
    let collection = Collection::from(COLLECTION);
    store.submit(Transaction::new().create_collection(&collection)).wait()?;
    Ok(())
}

impl Drive<'_> {
    /// Runs the phase: what was measured, and the number of the operation that would have been next.
    pub fn run(&self, backend: &str, contents: &Contents) -> Result<(Cell, u64), Failure> {
        let next = AtomicU64::new(self.first);
        let load = Load {
            syncs: &|| self.opened.store.syncs(),
            backend,
            phase: self.phase.name(),
            object_bytes: self.object_bytes,
            in_flight: self.in_flight,
            threads: self.in_flight,
            time: self.time,
            device: self.device,
        };
        let cell = load.run(|thread, tally| {
            let mut random = fastrand::Rng::with_seed(self.seed.wrapping_mul(1_000_003).wrapping_add(thread));
            let mut after: Option<Bytes> = None;
            while tally.goes_on() {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let started = Instant::now();
                let Some(bytes) = self.operation(number, &mut random, &mut after, contents)? else { break };
                tally.done(started, bytes);
            }
            Ok(())
        })?;
        Ok((cell, next.into_inner()))
    }

    /// Does one operation; its payload, or `None` when nothing is left to do.
    fn operation(
        &self,
        number: u64,
        random: &mut fastrand::Rng,
        after: &mut Option<Bytes>,
        contents: &Contents,
    ) -> Result<Option<u64>, Failure> {
        let store = &self.opened.objects;
        let change = |object: &ObjectId, change: Change| -> Result<(), Failure> {
            store.submit(Transaction::new().change(object, change)).wait()?;
            Ok(())
        };
        let overwrite = |block: u64| -> Result<Option<u64>, Failure> {
            let per_object = IMAGE_OBJECT_BYTES / OVERWRITE_BYTES;
            let data = contents.part(number, OVERWRITE_BYTES);
            let offset = block % per_object * OVERWRITE_BYTES;
            change(&object(block / per_object), Change::Write { offset, data })?;
            Ok(Some(OVERWRITE_BYTES))
        };
        let read = |number: u64| -> Result<Option<u64>, Failure> {
            let data = store.read(&object(number), 0..self.object_bytes).wait()?;
            if data != contents.part(number, self.object_bytes) {
                let message = format!("object {number} is not what was written");
                return Err(Failure::new(Code::Damage, message));
            }
            Ok(Some(self.object_bytes))
        };
        let blocks = self.objects * IMAGE_OBJECT_BYTES / OVERWRITE_BYTES;
        match self.phase {
            Phase::Write => {
                let data = contents.part(number, self.object_bytes);
                change(&object(number), Change::Write { offset: 0, data })?;
                Ok(Some(self.object_bytes))
            }
            Phase::ReadSeq => read(number % self.objects),
            Phase::ReadRand => read(random.u64(..self.objects)),
            Phase::OverwriteSeq => overwrite(number % blocks),
            Phase::OverwriteRand => overwrite(random.u64(..blocks)),
            Phase::Omap => {
                let key = Bytes::from(format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
                let value = contents.part(number, OMAP_VALUE_BYTES as u64);
                let bytes = (key.len() + value.len()) as u64;
                change(&object(number % OMAP_OBJECTS), Change::OmapSet { key, value })?;
                Ok(Some(bytes))
            }
            Phase::Create => {
                let value = contents.part(number, 64);
                change(&object(number), Change::XattrSet { name: "header".into(), value })?;
                Ok(Some(64))
            }
            Phase::List => {
                let names = store.list(&COLLECTION.into(), after.as_deref(), LIST_NAMES).wait()?;
                let bytes = names.iter().map(|name| name.len() as u64).sum();
                // Around again at the end, so that there is something to list for as long as it takes.
                *after = names.into_iter().next_back();
                Ok(Some(bytes))
            }
            Phase::Delete if number >= self.objects => Ok(None),
            Phase::Delete => {
                change(&object(number), Change::Remove)?;
                Ok(Some(0))
            }
        }
    }
}

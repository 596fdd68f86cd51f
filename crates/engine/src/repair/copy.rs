//! Copying what was found into a new store, in commit order.
//!
//! entries of all objects → where in commit order they were written → values, verified → transactions → sizes
//!
//! Invariant: a value that does not hold, or is not what its entry says, is listed and not copied; of large writes the
//! blocks that hold are copied.

use std::ops::Range;

use bytes::Bytes;
use esker_store::{Change, Compression, Durability, Error, ObjectId, ObjectStore, Result, Transaction};

use super::report::{Losses, Lost, RepairReport, What};
use super::scan::read_around;
use super::source::Source;
use crate::check::{Expected, entries_of, is_what};
use crate::engine::Engine;
use crate::format::{CRC_BLOCK_BYTES, Codec, Compressed, Loc, OP_FLAG_COMPRESSED, OpHeader, decompress_payload};
use crate::pages::each_page;
use crate::reader::SegmentView;
use crate::spaces::Spaces;

/// Entries and bytes of values that are in memory at a time.
const CHUNK_ENTRIES: usize = 4096;
/// As they are stored: compressed ones take more in memory.
const CHUNK_BYTES: u64 = 4 << 20;
/// A transaction is written when it has grown to this.
const TXN_BYTES: usize = 1 << 20;
const TXN_OPS: usize = 1000;

/// Transaction and place in it.
type Order = (u64, u32);

struct Item {
    order: Order,
    loc: Loc,
    object: u32,
    entry: Expected,
}

struct Found {
    id: ObjectId,
    number: u64,
    /// What says whose data it may have; without pages.
    shares: Spaces,
    size: u64,
}

/// A copy under way.
pub struct Copy<'a, 'l> {
    pub source: &'a Source,
    pub to: &'a Engine,
    pub lost: &'a mut Losses<'l>,
    pub report: &'a mut RepairReport,
}

/// A transaction that is being filled.
struct Batch<'a> {
    to: &'a Engine,
    txn: Transaction,
    bytes: usize,
    lengthen: &'a mut dyn FnMut() -> bool,
}

impl Batch<'_> {
    fn push(&mut self, id: &ObjectId, change: Change, bytes: usize) -> Result<()> {
        // Headers and checksums come on top, and small segments take small transactions.
        let most = TXN_BYTES.min(self.to.transaction_bytes_max() as usize / 2);
        if self.bytes + bytes > most || self.txn.ops.len() >= TXN_OPS {
            self.flush()?;
        }
        self.txn.push(id, change);
        self.bytes += bytes;
        Ok(())
    }

    /// What comes next is compressed as it was.
    fn compress(&mut self, compression: Compression) -> Result<()> {
        if self.txn.compression != compression {
            self.flush()?;
            self.txn.compression = compression;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let next = Transaction::with(Durability::Applied).compress(self.txn.compression);
        let txn = std::mem::replace(&mut self.txn, next);
        self.bytes = 0;
        if txn.ops.is_empty() {
            return Ok(());
        }
        loop {
            match self.to.submit(txn.clone()).wait() {
                Err(Error::Full { .. }) if (self.lengthen)() => {
                    self.to.grow()?;
                }
                done => return done.map(drop),
            }
        }
    }
}

impl Copy<'_, '_> {
    /// Copies everything; `lengthen` is asked for a longer device when the new store is full.
    pub fn all(
        &mut self,
        progress: &mut dyn FnMut(&'static str, u64, u64),
        lengthen: &mut dyn FnMut() -> bool,
    ) -> Result<()> {
        let mut batch = Batch { to: self.to, txn: Transaction::with(Durability::Applied), bytes: 0, lengthen };
        let (objects, mut items) = self.names(&mut batch)?;
        batch.flush()?;
        items.sort_unstable_by_key(|item| item.loc.offset());
        self.find_orders(&mut items, progress);
        items.sort_by_key(|item| (item.order, item.object));
        let total = items.len() as u64;
        let mut rest = &items[..];
        while !rest.is_empty() {
            progress("copying", total - rest.len() as u64, total);
            let mut bytes = 0;
            let fits = |item: &&Item| {
                bytes += match item.entry {
                    Expected::Extent(_, len, _) => item.loc.span_bytes().max(len.into()),
                    _ => item.loc.span_bytes(),
                };
                bytes <= CHUNK_BYTES
            };
            let len = rest.iter().take(CHUNK_ENTRIES).take_while(fits).count().max(1);
            self.copy_some(&objects, &rest[..len], &mut batch)?;
            rest = &rest[len..];
        }
        for object in &objects {
            // The last write may be lost, or there is a hole at the end.
            batch.push(&object.id, Change::Truncate { size: object.size }, 64)?;
        }
        batch.flush()?;
        progress("copying", total, total);
        Ok(())
    }

    /// Makes collections and objects with their attributes, and gathers all entries.
    fn names(&mut self, batch: &mut Batch<'_>) -> Result<(Vec<Found>, Vec<Item>)> {
        let (mut objects, mut items) = (Vec::new(), Vec::new());
        for (collection, names) in &*self.source.objects.names.read() {
            self.to.submit(Transaction::new().create_collection(collection)).wait()?;
            self.report.collections += 1;
            for object in names.values() {
                let state = object.state.read();
                let id = object.id.clone();
                batch.push(&id, Change::Touch, id.name().len())?;
                for (name, value) in &state.xattrs {
                    let change = Change::XattrSet { name: name.clone(), value: value.clone() };
                    batch.push(&id, change, name.len() + value.len())?;
                }
                let number = objects.len() as u32;
                each_page(&self.source.reader, state.number, &state.spaces, &mut |page| {
                    let entries = entries_of(std::slice::from_ref(page)).into_iter();
                    items.extend(entries.map(|(loc, entry)| Item { order: (0, 0), loc, object: number, entry }));
                    Ok(())
                })?;
                let Spaces { shares, shifted, .. } = state.spaces;
                let shares = Spaces { shares, shifted, ..Spaces::default() };
                objects.push(Found { id, number: state.number, shares, size: state.spaces.size });
                self.report.objects += 1;
            }
        }
        Ok((objects, items))
    }

    /// Finds out where in commit order what stands at each place was written. `items` are sorted by place.
    fn find_orders(&self, items: &mut [Item], progress: &mut dyn FnMut(&'static str, u64, u64)) {
        let segment_bytes = self.source.shape.segment_bytes;
        let (mut done, total) = (0, items.len() as u64);
        let mut bytes = vec![0; segment_bytes as usize];
        for group in items.chunk_by_mut(|a, b| a.loc.offset() / segment_bytes == b.loc.offset() / segment_bytes) {
            let segment = group[0].loc.offset() / segment_bytes;
            read_around(&*self.source.device, segment * segment_bytes, &mut bytes);
            let orders = self.orders_in(segment, &bytes);
            for item in group.iter_mut() {
                let before = orders.partition_point(|(offset, _)| *offset <= item.loc.offset());
                item.order = match before.checked_sub(1).map(|at| orders[at]) {
                    Some((offset, order)) if offset == item.loc.offset() => order,
                    // Its record cannot be walked: right after what stands before it.
                    Some((_, order)) => (order.0, u32::MAX),
                    None => (0, 0),
                };
            }
            done += group.len() as u64;
            progress("ordering", done, total);
        }
    }

    /// The operations of a segment, by place.
    fn orders_in(&self, segment: u64, bytes: &[u8]) -> Vec<(u64, Order)> {
        let source = self.source;
        let (base, seed) = (segment * source.shape.segment_bytes, source.seed);
        let generation = source.segments.generation(segment);
        let block = u64::from(source.shape.block_bytes);
        let view = SegmentView { bytes, base, generation, end: bytes.len() as u64, block, seed };
        let mut orders = Vec::new();
        for (record, offset, body) in view.records() {
            let (mut rest, mut at) = (body, offset + record.header_bytes() as u64);
            for number in 0..record.op_count {
                let Some(header) = OpHeader::decode(rest, seed, generation, at) else { break };
                let (_, origin) = header.key(rest);
                orders.push((at, origin.unwrap_or((record.seq, number))));
                let Some(after) = rest.get(header.total_bytes() as usize..) else { break };
                rest = after;
                at += header.total_bytes();
            }
        }
        orders.sort_unstable();
        orders
    }

    fn copy_some(&mut self, objects: &[Found], items: &[Item], batch: &mut Batch<'_>) -> Result<()> {
        let mut by_place: Vec<usize> = (0..items.len()).collect();
        by_place.sort_by_key(|at| items[*at].loc.offset());
        let mut values: Vec<Option<std::result::Result<Value, String>>> = Vec::new();
        values.resize_with(items.len(), || None);
        let locs: Vec<Loc> = by_place.iter().map(|at| items[*at].loc).collect();
        let mut next = by_place.iter();
        let mut take = |found: Result<(OpHeader, &[u8])>| {
            if let Some(at) = next.next() {
                let item = &items[*at];
                values[*at] = Some(value_of(item, &objects[item.object as usize], found));
            }
            Ok(())
        };
        // A device that cannot be read in one place ends the run: the rest is read one by one.
        let _ = self.source.reader.verify_run(&locs, &mut take);
        for (item, value) in items.iter().zip(values) {
            let object = &objects[item.object as usize];
            let value = match value {
                Some(value) => value,
                None => {
                    let mut value = Err("it cannot be read".to_string());
                    let take = &mut |found: Result<(OpHeader, &[u8])>| {
                        value = value_of(item, object, found);
                        Ok(())
                    };
                    match self.source.reader.verify_run(&[item.loc], take) {
                        Err(error) => Err(error.to_string()),
                        Ok(()) => value,
                    }
                }
            };
            match value {
                Ok((value, compression)) => {
                    batch.compress(compression)?;
                    self.put(object, item, value, batch)?;
                }
                Err(reason) => self.lose(object, item, reason, batch)?,
            }
        }
        Ok(())
    }

    fn put(&mut self, object: &Found, item: &Item, value: Bytes, batch: &mut Batch<'_>) -> Result<()> {
        let len = value.len();
        let (change, key_len) = match &item.entry {
            Expected::Slot(index) => (Change::SlotSet { index: *index, value }, 0),
            Expected::Omap(key) => (Change::OmapSet { key: key.clone(), value }, key.len()),
            Expected::Extent(offset, ..) => (Change::Write { offset: *offset, data: value }, 0),
        };
        self.report.entries += 1;
        self.report.bytes += len as u64;
        batch.push(&object.id, change, len + key_len + 64)
    }

    /// Lists what does not hold; of a large write the blocks that do are copied.
    fn lose(&mut self, object: &Found, item: &Item, reason: String, batch: &mut Batch<'_>) -> Result<()> {
        let mut tell = |what: What| {
            (self.lost)(Lost {
                object: Some(object.id.clone()),
                what,
                offset: item.loc.offset(),
                reason: reason.clone(),
            });
        };
        let (offset, len, skip) = match &item.entry {
            Expected::Slot(slot) => {
                tell(What::Slot(*slot));
                return Ok(());
            }
            Expected::Omap(key) => {
                tell(What::OmapKey(key.clone()));
                return Ok(());
            }
            Expected::Extent(offset, len, skip) => (*offset, *len, *skip),
        };
        let asked = item.entry.asked(item.loc, object.number, &object.shares);
        let mut bad: Option<Range<u64>> = None;
        let mut at = 0;
        while at < len {
            // In steps of the blocks that have checksums of their own.
            let take = (CRC_BLOCK_BYTES as u32 - (skip + at) % CRC_BLOCK_BYTES as u32).min(len - at);
            let place = offset + u64::from(at);
            match self.source.reader.fetch_part(item.loc, &asked, skip + at, take, u64::MAX) {
                Ok(part) => {
                    self.report.bytes += u64::from(take);
                    batch.push(&object.id, Change::Write { offset: place, data: part.value }, take as usize + 64)?;
                    if let Some(range) = bad.take() {
                        tell(What::Bytes { offset: range.start, len: range.end - range.start });
                    }
                }
                Err(_) => bad = Some(bad.map_or(place, |range| range.start)..place + u64::from(take)),
            }
            at += take;
        }
        if let Some(range) = bad {
            tell(What::Bytes { offset: range.start, len: range.end - range.start });
        }
        Ok(())
    }
}

/// A value, and how it was compressed.
type Value = (Bytes, Compression);

/// The value that an entry points to, or why there is none.
fn value_of(item: &Item, object: &Found, found: Result<(OpHeader, &[u8])>) -> std::result::Result<Value, String> {
    let (header, operation) = found.map_err(|error| match error {
        Error::Corrupt { what, .. } => what,
        other => other.to_string(),
    })?;
    is_what(item.loc, &item.entry, object.number, &object.shares, &header, operation).map_err(|error| match error {
        Error::Corrupt { what, .. } => what,
        other => other.to_string(),
    })?;
    let payload = &operation[header.payload_start()..header.payload_end()];
    let unpacked;
    let (value, compression) = match header.flags & OP_FLAG_COMPRESSED {
        0 => (payload, Compression::None),
        _ => {
            unpacked = decompress_payload(payload).ok_or("its compressed value does not hold")?;
            let codec = Compressed::decode(payload, payload.len()).map(|decoded| decoded.codec);
            let hint = if codec == Some(Codec::Lz4) { Compression::Lz4 } else { Compression::Zstd };
            (&unpacked[..], hint)
        }
    };
    let range = match item.entry {
        Expected::Extent(_, len, skip) => skip as usize..skip as usize + len as usize,
        _ => 0..value.len(),
    };
    // A copy, so that a part does not keep the whole.
    let part = value.get(range).ok_or("the value is shorter than the index says")?;
    Ok((Bytes::copy_from_slice(part), compression))
}

//! The log after a checkpoint, without what does not hold.
//!
//! links → records → operations that hold → index; where a record does not hold, the next that does is looked for
//!
//! Invariant: the end of the log is where opening would find it: a record behind a gap counts only if its group proves
//! that the gap had been durable.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use esker_device::Device;
use esker_store::ObjectId;

use super::report::{Losses, Lost, What};
use super::scan::read_around;
use crate::format::{
    Kind, OpHeader, RecordHeader, SHORT_RECORD_HEADER_BYTES, Superblock, place_of, raw_len, round_up, verify_payload,
};
use crate::objects::Objects;
use crate::replay::Replayer;
use crate::segments::Segments;

/// A segment of the log that is to be replayed.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Its number.
    pub segment: u64,
    /// Its generation.
    pub generation: u32,
    /// Offset in it where replay begins.
    pub begins: u64,
    /// Offset in it at which the log leaves it, if known.
    pub end: Option<u64>,
    /// Whether the log goes on after it.
    pub followed: bool,
    /// Transactions from this one on stand in the next segment.
    pub before_seq: u64,
}

/// Replays what holds.
pub struct Tolerant<'a> {
    device: Arc<dyn Device>,
    shape: Superblock,
    seed: u32,
    objects: &'a Objects,
    replayer: Replayer<'a>,
    lost: &'a mut Losses<'a>,
    /// Last sequence number.
    seq: u64,
    /// Bytes at the end of the log that do not hold and are taken for what was being written.
    torn_bytes: u64,
    group: u64,
    group_ended: bool,
    /// Objects that were made on the way.
    made: HashSet<u64>,
    /// Objects that operations were for and that are not known: no loss if they are removed further on.
    missing: BTreeMap<u64, Lost>,
}

impl<'a> Tolerant<'a> {
    /// A replay on top of `objects`, which is what the store was at `shape.replay`.
    pub fn new(
        device: &Arc<dyn Device>,
        shape: Superblock,
        seed: u32,
        objects: &'a Objects,
        segments: &'a Segments,
        next_number: u64,
        lost: &'a mut Losses<'a>,
    ) -> Self {
        Self {
            device: Arc::clone(device),
            seed,
            objects,
            replayer: Replayer::new(objects, segments, None, 0, next_number),
            lost,
            seq: shape.replay.seq,
            group: shape.replay.group,
            group_ended: true,
            torn_bytes: 0,
            made: HashSet::new(),
            missing: BTreeMap::new(),
            shape,
        }
    }

    fn lose(&mut self, object: Option<ObjectId>, what: What, offset: u64, reason: impl Into<String>) {
        (self.lost)(Lost { object, what, offset, reason: reason.into() });
    }

    /// Replays one segment; false if the log ends in it.
    pub fn segment(&mut self, link: &Link) -> bool {
        let len = self.shape.segment_bytes;
        let base = link.segment * len;
        let mut bytes = vec![0; len as usize];
        read_around(&*self.device, base, &mut bytes);
        let stop = link.end.unwrap_or(len).min(len);
        let block = u64::from(self.shape.block_bytes);
        let mut at = link.begins.max(block);
        while at + SHORT_RECORD_HEADER_BYTES as u64 <= stop {
            if let Some(record) = self.record_at(&bytes, base, at, stop, link) {
                let end = at + u64::from(record.len);
                if !record.ends_group() {
                    self.operations(
                        &bytes,
                        base,
                        at + record.header_bytes() as u64..end,
                        link.generation,
                        record.seq,
                        false,
                    );
                }
                (self.seq, self.group, self.group_ended) = (record.seq, record.group, record.ends_group());
                at = end;
                continue;
            }
            let next_block = round_up(at + 1, block).min(stop);
            let blank =
                |range: Range<u64>| bytes[range.start as usize..range.end as usize].iter().all(|byte| *byte == 0);
            if at % block != 0 && blank(at..next_block) {
                at = next_block;
                continue;
            }
            // Durable for certain: all of a segment that the log has left, and what a later group follows.
            let proves = if link.followed { 0 } else { self.group + 1 + u64::from(self.group_ended) };
            let next = (at + 8..stop).step_by(8).find(|at| {
                let record = self.record_at(&bytes, base, *at, stop, link);
                record.is_some_and(|record| record.group >= proves)
            });
            if next.is_none() && (link.end.is_none() || blank(at..stop)) {
                let last = bytes[at as usize..].iter().rposition(|byte| *byte != 0);
                self.torn_bytes += last.map_or(0, |last| last as u64 + 1);
                return link.followed;
            }
            let end = next.unwrap_or(stop);
            let reason = format!("a record after transaction {} does not hold", self.seq);
            self.lose(None, What::Transaction(self.seq + 1), base + at, reason);
            self.operations(&bytes, base, at..end, link.generation, self.seq + 1, true);
            at = end;
        }
        true
    }

    fn record_at(&self, bytes: &[u8], base: u64, at: u64, stop: u64, link: &Link) -> Option<RecordHeader> {
        let record = RecordHeader::decode(&bytes[at as usize..], self.seed, base + at)?;
        let in_order = if record.ends_group() { record.seq >= self.seq } else { record.seq > self.seq };
        let fits = u64::from(record.len) <= stop - at && record.generation == link.generation;
        (fits && in_order && record.seq < link.before_seq && record.group >= self.group).then_some(record)
    }

    /// Applies the operations in a range of a segment that hold; where one does not, the next is looked for. With
    /// `told` the caller has listed the transaction already.
    fn operations(&mut self, bytes: &[u8], base: u64, range: Range<u64>, generation: u32, seq: u64, told: bool) {
        let (mut at, mut told_here) = (range.start, told);
        while at < range.end {
            let rest = &bytes[at as usize..range.end as usize];
            let header = OpHeader::decode(rest, self.seed, generation, base + at);
            let Some(header) = header.filter(|header| header.total_bytes() <= rest.len() as u64) else {
                if !told_here && rest.iter().take(8).any(|byte| *byte != 0) {
                    told_here = true;
                    self.lose(None, What::Transaction(seq), base + at, "an operation's header does not hold");
                }
                at += 8;
                continue;
            };
            told_here = told;
            let operation = &rest[..header.total_bytes() as usize];
            self.operation(&header, operation, base + at, seq);
            at += header.total_bytes();
        }
    }

    fn operation(&mut self, header: &OpHeader, operation: &[u8], at: u64, seq: u64) {
        let (key, _) = header.key(operation);
        let is_value = matches!(header.kind, Kind::SlotSet | Kind::OmapSet | Kind::Write);
        // A value that does not hold is found when it is copied; until then it hides what was there before it.
        if !is_value && !verify_payload(header, operation) {
            let object = self.objects.numbered(header.object);
            let id = object.as_ref().map(|object| object.id.clone());
            if let (Kind::XattrSet, Some(object)) = (header.kind, object) {
                object.state.write().spaces.xattrs.remove(key);
                self.lose(id, What::Xattr(Bytes::copy_from_slice(key)), at, "its value does not hold");
            } else {
                self.lose(id, What::Transaction(seq), at, format!("a {:?} of it does not hold", header.kind));
            }
            return;
        }
        let payload = &operation[header.payload_start()..header.payload_end()];
        // A copy is made of a new object: one that is known already has been made before the checkpoint.
        let copied = header.kind == Kind::Clone && !self.made.contains(&header.argument);
        if clashes(self.objects, header, key) || copied && self.objects.numbered(header.argument).is_some() {
            return;
        }
        let copies = matches!(header.kind, Kind::Clone | Kind::CloneRange);
        let of_object = !matches!(header.kind, Kind::CreateCollection | Kind::RemoveCollection | Kind::CreateObject);
        if of_object && !copies && self.objects.numbered(header.object).is_none() {
            if header.kind == Kind::RemoveObject {
                self.missing.remove(&header.object);
            } else {
                let reason = "its name is not to be found";
                let what = What::Object(header.object);
                let lost = Lost { object: None, what, offset: at, reason: reason.into() };
                self.missing.entry(header.object).or_insert(lost);
            }
            return;
        }
        // A value whose length is not known hides what was there all the same.
        let known = raw_len(header, payload);
        if known.is_none() && header.kind == Kind::Write {
            self.lose(None, What::Transaction(seq), at, "how much a compressed write of it has covered is not known");
        }
        let place = place_of(header, payload, at, header.payload_end() as u64);
        match self.replayer.value(header, key, payload, (known.unwrap_or(header.payload_len), place)) {
            Ok(()) if header.kind == Kind::CreateObject => {
                self.made.insert(header.object);
            }
            Ok(()) => {}
            Err(error) => self.lose(None, What::Transaction(seq), at, error.to_string()),
        }
    }

    /// Tells of the objects that stayed unknown; the last sequence number, and bytes of a torn end.
    pub fn finish(self) -> (u64, u64) {
        self.missing.into_values().for_each(self.lost);
        (self.seq, self.torn_bytes)
    }
}

/// Whether an operation has been done already, or would put one object in the place of another: only where replay
/// begins before the place that the checkpoint covers, or after a damage.
pub fn clashes(objects: &Objects, header: &OpHeader, key: &[u8]) -> bool {
    let taken_by = |key: &[u8]| {
        let id = crate::format::decode_name(key)?;
        let number = objects.get(&id)?.state.read().number;
        (number != 0).then_some(number)
    };
    match header.kind {
        Kind::CreateObject => objects.numbered(header.object).is_some() || taken_by(key).is_some(),
        Kind::Rename => taken_by(key).is_some(),
        Kind::RemoveCollection => {
            let names = objects.names.read();
            names.get(&esker_store::Collection::new(key.to_vec())).is_some_and(|objects| !objects.is_empty())
        }
        _ => false,
    }
}

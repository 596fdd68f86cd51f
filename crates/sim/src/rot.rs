//! Rot: what stands on the device changes by itself, at any moment, and the store goes on living with it.
//!
//! ```text
//! lives → rot, at rest or under the open store → a life that writes, cleans, checkpoints → closed or left
//!   → opened → …
//! ```
//!
//! Checked: whatever is read is what the model holds, or an error that names damage; nothing is silently missing, and
//! nothing else is there. A store may refuse to open, for damage. Where the log was not closed, rot of its last group
//! cannot be told from a torn end: so much, and no more, may be taken back.
//!
//! A run in four lets only superblocks rot, both copies of the newest, and roots of checkpoints, after power cuts at
//! any I/O: nothing at all may be lost by that. Where the checkpoint before is needed and the newest superblock says
//! that it is not kept, room was short, and the store may refuse to open.

use std::sync::Arc;

use esker_device::Device;
use esker_engine::{Engine, check, format};
use esker_store::{Error, ObjectId, ObjectStore, OmapScan, SlotScan};

use crate::crash::Run;
use crate::fault::{FaultyDevice, Image, Survival};
use crate::image::{BLOCK_BYTES, SECTOR_BYTES};
use crate::kind::SEGMENT_BYTES;
use crate::model::ModelObject;
use crate::outcome::Outcome;

/// Lives with rot in one run.
const ROUNDS: usize = 4;
/// Steps of one life at most.
const STEPS_MAX: usize = 60;

/// What has happened to the device.
#[derive(Clone, Copy, Debug)]
enum Rot {
    /// A bit has flipped.
    Flip,
    /// A sector or a block is all zeros.
    Zeros,
    /// A block holds what it held before.
    Stale,
    /// A block was written to another's place.
    Misdirected,
}

/// What has rotted of the newest superblock.
struct Newest {
    what: String,
    /// Opening has to go back to the checkpoint before.
    needs_kept: bool,
    /// The superblock says that this is kept.
    kept: bool,
}

/// How reading went.
#[derive(Clone, Copy, Debug, Default)]
struct Judged {
    served: u64,
    named: u64,
}

impl Image {
    /// Lets something rot; `before` is what the device held at some time. What was done, and where.
    fn rot(&mut self, rng: &mut fastrand::Rng, before: &[u8]) -> Option<String> {
        let blocks = self.bytes.len() / BLOCK_BYTES;
        let segments = self.bytes.len() / SEGMENT_BYTES as usize;
        let in_segment = SEGMENT_BYTES as usize / BLOCK_BYTES;
        let with_content = |image: &Self, block: usize| {
            image.bytes[block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES].iter().any(|byte| *byte != 0)
        };
        let any = self.place_with_content(rng)? / BLOCK_BYTES;
        // Headers and superblocks are few, and matter most.
        let block = match rng.u8(0..4) {
            0 => rng.usize(2..segments) * in_segment,
            1 => rng.usize(0..2 * in_segment),
            _ => any,
        };
        let block = if with_content(self, block) { block } else { any };
        let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
        let rot = rng.choice([Rot::Flip, Rot::Flip, Rot::Zeros, Rot::Stale, Rot::Misdirected])?;
        match rot {
            Rot::Flip => {
                let filled: Vec<usize> = range.clone().filter(|at| self.bytes[*at] != 0).collect();
                let at = if rng.bool() { rng.choice(filled)? } else { rng.usize(range.clone()) };
                self.flip_bit(at, rng.u8(0..8));
                return Some(format!("a bit of byte {at} was flipped"));
            }
            Rot::Zeros => {
                let sector = rng.usize(0..BLOCK_BYTES / SECTOR_BYTES) * SECTOR_BYTES;
                let zeros =
                    if rng.bool() { range.clone() } else { range.start + sector..range.start + sector + SECTOR_BYTES };
                self.bytes[zeros].fill(0);
            }
            Rot::Stale => self.bytes[range.clone()].copy_from_slice(&before[range.clone()]),
            Rot::Misdirected => {
                let to = rng.usize(0..blocks) * BLOCK_BYTES;
                self.bytes.copy_within(range.clone(), to);
                return Some(format!("the block at {} was written over the one at {to}", range.start));
            }
        }
        Some(format!("{rot:?} at {}", range.start))
    }

    /// The blocks that superblocks stand in, and where.
    fn superblock_blocks(&self) -> impl Iterator<Item = (&[u8], usize)> {
        let area = self.shape.zone_bytes.unwrap_or(SEGMENT_BYTES) as usize;
        (0..2 * area).step_by(BLOCK_BYTES).map(|at| (&self.bytes[at..at + BLOCK_BYTES], at))
    }

    fn superblocks_rotten(&self) -> bool {
        use format::{Superblock, SuperblockError};
        self.superblock_blocks()
            .any(|(bytes, _)| Superblock::decode(bytes).is_err_and(|error| error != SuperblockError::Empty))
    }

    /// The superblocks that hold, and where they stand, newest first.
    fn superblocks(&self) -> Vec<(format::Superblock, usize)> {
        let decode = |(bytes, at)| Some((format::Superblock::decode(bytes).ok()?, at));
        let mut found: Vec<_> = self.superblock_blocks().filter_map(decode).collect();
        found.sort_by_key(|(superblock, _)| std::cmp::Reverse(superblock.sequence));
        found
    }

    /// Lets all copies of the newest superblock rot, or the root of the checkpoint that it names.
    fn rot_newest(&mut self, rng: &mut fastrand::Rng) -> Option<Newest> {
        let superblocks = self.superblocks();
        let newest = superblocks.first()?.0;
        // One that has rotted before may have named a later checkpoint.
        let kept = newest.before_kept && !self.superblocks_rotten();
        // The first one has none before it.
        let before = superblocks.iter().map(|found| found.0).find(|found| found.sequence < newest.sequence)?;
        if let Some(root) = format::Loc::from_raw(newest.root).filter(|_| rng.u8(0..3) == 0) {
            self.flip_bit(root.offset() as usize + rng.usize(0..format::OP_HEADER_BYTES), rng.u8(0..8));
            let what = format!("the checkpoint of superblock {} is gone", newest.sequence);
            return Some(Newest { what, needs_kept: true, kept });
        }
        for (superblock, at) in superblocks {
            if superblock.sequence == newest.sequence {
                self.flip_bit(at + rng.usize(0..format::SUPERBLOCK_BYTES), rng.u8(0..8));
            }
        }
        let what = format!("superblock {} is gone", newest.sequence);
        Some(Newest { what, needs_kept: before.root != newest.root, kept })
    }
}

impl Run {
    /// Rounds in which superblocks and roots rot and nothing else.
    pub(crate) fn rot_superblocks(mut self, mut image: Image) -> Result<Outcome, String> {
        for round in 0..2 * ROUNDS {
            image = self.round(image).map_err(|broken| format!("round {round}: {broken}"))?;
            let mut rotten = image.clone();
            if let Some(Newest { what, needs_kept, kept }) = rotten.rot_newest(&mut self.rng) {
                // The one before it may not say that the store was closed.
                self.stopped_cleanly = false;
                let device = Arc::new(FaultyDevice::new(rotten.clone(), 0));
                if needs_kept && !kept {
                    // Room was short: the one before was given up, which the newest had told. What is left of it may
                    // open, with values and headers that are named.
                    match self.open(&device) {
                        Ok(_) => {}
                        Err(Error::Corrupt { .. }) => self.outcome.refused_to_open += 1,
                        Err(error) => return Err(format!("round {round}, {what}: {error}")),
                    }
                    continue;
                }
                image = self.round(rotten).map_err(|broken| format!("round {round}, {what}: {broken}"))?;
            }
        }
        Ok(self.outcome)
    }

    /// Rounds in which anything rots.
    pub(crate) fn rot_anything(mut self, mut image: Image) -> Result<Outcome, String> {
        for round in 0..self.rng.usize(1..3) {
            image = self.round(image).map_err(|broken| format!("round {round}: {broken}"))?;
        }
        // What must be there after the next opening, whatever has rotted.
        let mut floor = self.owed;
        for round in 0..ROUNDS {
            let before = image.bytes.clone();
            let lived = self.rotten_round(image, &before, &mut floor);
            match lived.map_err(|broken| format!("rotten round {round}: {broken}"))? {
                Some(next) => image = next,
                None => {
                    self.outcome.refused_to_open += 1;
                    break;
                }
            }
        }
        Ok(self.outcome)
    }

    /// One opening and one life; `None` if the store does not open any more.
    fn rotten_round(&mut self, mut image: Image, before: &[u8], floor: &mut usize) -> Result<Option<Image>, String> {
        let mut story = Vec::new();
        // What a power cut has left may end with a group that rot cannot be told from.
        let at_rest = self.rng.bool() && (image.rotten || self.stopped_cleanly);
        self.stopped_cleanly = false;
        if at_rest {
            story.extend(image.rot(&mut self.rng, before));
            image.rotten = true;
        }
        let told = |story: &[String], why: String| format!("{}: {why}", story.join(", "));
        let device = Arc::new(FaultyDevice::new(image, self.rng.u64(..)));
        let checked =
            (self.rng.u8(0..3) == 0).then(|| check(Arc::clone(&device) as Arc<dyn Device>, true, &mut |_, _| {}));
        let engine = match self.open(&device) {
            Ok(engine) => engine,
            Err(Error::Corrupt { .. }) if device.is_rotten() => {
                if checked.as_ref().is_some_and(|report| report.as_ref().is_ok_and(|report| report.damaged == 0)) {
                    return Err(told(&story, "the store does not open, but the check finds nothing".into()));
                }
                self.done(&device);
                return Ok(None);
            }
            // Where it cannot go on in a damaged segment and has no other.
            Err(error) => return Err(told(&story, format!("opening: {error}"))),
        };
        let prefix = self.history.up_to(engine.recovery().last_seq);
        if self.history.up_to_change(prefix) < *floor {
            let why = format!("acknowledged_writes_survive: {floor} transactions must be there, {prefix} are");
            return Err(told(&story, why));
        }
        self.outcome.taken_back += (self.history.len() - prefix) as u64;
        self.history.truncate(prefix);
        self.owed = prefix;
        let judged = self.judge(&engine).map_err(|why| told(&story, format!("after opening: {why}")))?;
        if judged.named > 0 && checked.is_some_and(|report| report.is_ok_and(|report| report.damaged == 0)) {
            return Err(told(&story, "values do not hold, but the check finds nothing".into()));
        }
        self.taste.copies = engine.capability().clone;
        self.maintain_percent = self.rng.choice([10, 40]).unwrap_or(10);
        for part in 0..2 {
            if part == 1 && !at_rest {
                let mut image = device.image();
                story.extend(image.rot(&mut self.rng, before));
                device.replace(image);
            }
            let steps = self.rng.usize(1..STEPS_MAX);
            let lived = self.live(&engine, &device, steps).map_err(|why| told(&story, why))?;
            if !lived {
                return Err(told(&story, "the store has stopped, though the device takes what is written".into()));
            }
            let judged = self.judge(&engine).map_err(|why| told(&story, format!("after a life: {why}")))?;
            self.outcome.served += judged.served;
            self.outcome.named += judged.named;
        }
        let has_log = engine.stats().last_seq > 0;
        let closed = has_log && self.rng.bool() && engine.close().is_ok();
        if closed {
            *floor = self.history.len();
        } else {
            // The last group may be taken for torn; here are two.
            for _ in 0..2 {
                *floor = self.history.len();
                let txn = crate::generate::one_write(&mut self.rng, 100);
                self.submit(&engine, &device, txn).map_err(|why| told(&story, why))?;
                let synced = engine.sync().wait();
                synced.map_err(|error| told(&story, format!("sync: {error}")))?;
            }
            self.outcome.crashes += 1;
        }
        self.owed = self.history.len();
        device.cut_power();
        drop(engine);
        self.done(&device);
        Ok(Some(device.image_after_power_cut(Survival::None)))
    }

    /// Reads everything: right, or an error that names damage.
    fn judge(&mut self, engine: &Engine) -> Result<Judged, String> {
        let now = Arc::clone(self.history.now());
        let mut judged = Judged::default();
        let collections: Vec<_> = engine.collections().wait().map_err(|error| format!("collections: {error}"))?;
        if !collections.iter().eq(&now.collections) {
            return Err(format!("collections {collections:?}, expected {:?}", now.collections));
        }
        for collection in &now.collections {
            let names = engine.list(collection, None, usize::MAX).wait().map_err(|error| format!("list: {error}"))?;
            let expected = now.objects.keys().filter(|id| id.collection() == collection).map(ObjectId::name);
            if !names.iter().eq(expected) {
                return Err(format!("objects of {collection} are {names:?}"));
            }
        }
        for (id, object) in &now.objects {
            self.judge_object(engine, id, object, &mut judged).map_err(|why| format!("{id}: {why}"))?;
        }
        match self.in_commit_order(engine) {
            Err(unread) if !matches!(unread.error, Some(Error::Corrupt { .. })) => return Err(unread.why),
            _ => {}
        }
        Ok(judged)
    }

    fn judge_object(
        &mut self,
        engine: &Engine,
        id: &ObjectId,
        object: &ModelObject,
        judged: &mut Judged,
    ) -> Result<(), String> {
        let mut one = |what: &str, right: Result<bool, Error>| match right {
            Ok(true) => {
                judged.served += 1;
                Ok(())
            }
            Ok(false) => Err(format!("reads_are_verified: {what} is wrong")),
            Err(Error::Corrupt { .. }) => {
                judged.named += 1;
                Ok(())
            }
            Err(error) => Err(format!("{what}: {error}")),
        };
        let stat = engine.stat(id).wait();
        let told = (object.bytes.len() as u64, object.omap.len() as u64, object.slots.len() as u64);
        let as_told =
            |stat: Option<esker_store::Stat>| stat.map(|stat| (stat.size, stat.omap_keys, stat.slots)) == Some(told);
        one("stat", stat.map(as_told))?;
        for (name, value) in &object.xattrs {
            one("an attribute", engine.xattr(id, name).wait().map(|found| found.as_ref() == Some(value)))?;
        }
        for (key, entry) in &object.omap {
            let found = engine.omap_get(id, key).wait();
            one(&format!("key {}", key.escape_ascii()), found.map(|found| found.as_ref() == Some(&entry.value)))?;
        }
        for (slot, entry) in &object.slots {
            let found = engine.slot_get(id, *slot).wait();
            one(&format!("slot {slot}"), found.map(|found| found.as_ref() == Some(&entry.value)))?;
        }
        for _ in 0..4 {
            let slot = crate::generate::slot(&mut self.rng);
            let expected = object.slots.get(&slot).map(|entry| entry.value.clone());
            one("a slot", engine.slot_get(id, slot).wait().map(|found| found == expected))?;
            let key = crate::generate::key(&mut self.rng);
            let expected = object.omap.get(&key).map(|entry| entry.value.clone());
            one("a key", engine.omap_get(id, &key).wait().map(|found| found == expected))?;
        }
        let keys = engine.omap_scan(id, &OmapScan { limit: usize::MAX, ..OmapScan::default() }).wait();
        let all = || object.omap.iter().map(|(key, entry)| (key.clone(), entry.value.clone()));
        one("a scan of keys", keys.map(|found| found.into_iter().eq(all())))?;
        let scan = SlotScan { range: 0..u64::MAX, reverse: false, limit: usize::MAX, keys_only: false };
        let all = || object.slots.iter().map(|(slot, entry)| (*slot, entry.value.clone()));
        one("a scan of slots", engine.slot_scan(id, &scan).wait().map(|found| found.into_iter().eq(all())))?;
        one("its extents", engine.extents(id, 0..u64::MAX).wait().map(|found| found == object.runs()))?;
        for at in (0..object.bytes.len()).step_by(BLOCK_BYTES) {
            let end = object.bytes.len().min(at + BLOCK_BYTES);
            let found = engine.read(id, at as u64..end as u64).wait();
            one(&format!("data at {at}"), found.map(|found| found[..] == object.bytes[at..end]))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Shape;

    #[test]
    fn rot_changes_one_block_at_most_and_no_empty_device() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut image = Image::blank(Shape::plain(1 << 20));
        let before = image.bytes.clone();
        assert!(image.rot(&mut rng, &before).is_none());
        image.bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 7) as u8);
        let (sample, mut changed) = (image.bytes.clone(), 0);
        for _ in 0..200 {
            let mut rotten = image.clone();
            assert!(rotten.rot(&mut rng, &before).is_some());
            let blocks =
                rotten.bytes.chunks(BLOCK_BYTES).zip(sample.chunks(BLOCK_BYTES)).filter(|(a, b)| a != b).count();
            assert!(blocks <= 1, "{blocks} blocks have changed");
            changed += blocks;
        }
        assert!(changed > 150, "{changed}");
    }
}

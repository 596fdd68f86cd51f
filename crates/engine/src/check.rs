//! Read-only walks: `check` proves that what is on the device holds, `dump` shows it.
//!
//! Invariant: neither writes a byte to the device.

mod damage;

pub use damage::Damage;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_device::Device;
use esker_store::{Error, ObjectId, Result};

use crate::engine::Engine;
use crate::format::{
    Kind, Loc, OP_FLAG_COMPRESSED, OpHeader, RecordHeader, SegmentHeader, Space, Stream, Superblock, WEIGHT_WHOLE,
    decompress_payload, raw_len, store_seed,
};
use crate::index::{Extent, offset_of};
use crate::objects::Object;
use crate::open::Options;
use crate::pages::{Page, page};
use crate::reader::{Asked, SegmentView, Sought, each_operation};
use crate::recover::{find_chain, find_headers};
use crate::segments;
use crate::spaces::Spaces;
use crate::superblocks::{device_error, find_superblock};

/// Places that are read and verified together.
const RUN: usize = 1024;
/// Index pages that are looked at together.
const PAGES_AT_ONCE: usize = 256;
/// Damaged places that a report names; more are only counted.
const DAMAGE_MAX: usize = 1000;

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Whether every value was read, or only what opening reads.
    pub deep: bool,
    /// Format version of the store.
    pub version: u32,
    /// Whether the store had been closed cleanly.
    pub clean: bool,
    /// Segments in use.
    pub segments: u64,
    /// Of those, cold ones.
    pub cold_segments: u64,
    /// Free segments.
    pub free_segments: u64,
    /// Transactions of the log that the checkpoint does not cover.
    pub records: u64,
    /// Bytes of a torn last group, which opening cuts off.
    pub torn_bytes: u64,
    /// Objects.
    pub objects: u64,
    /// Entries of slots, omap and extents; with `deep` each was found to point at what it should, whole.
    pub entries: u64,
    /// Bytes that entries point to.
    pub live_bytes: u64,
    /// Bytes of the checkpoint.
    pub index_bytes: u64,
    /// Superblock copies that do not hold. The store opens with another copy.
    pub damaged_superblocks: u64,
    /// Checkpoints that do not hold. The store opens with an older one and the log after it.
    pub checkpoints_passed_over: u64,
    /// Segments in use of which something is known not to hold.
    pub damaged_segments: u64,
    /// Last sequence number.
    pub last_seq: u64,
    /// Places that do not hold, the first thousand of them.
    pub damage: Vec<Damage>,
    /// How many places do not hold.
    pub damaged: u64,
    /// How long the check took.
    pub elapsed: Duration,
}

impl CheckReport {
    /// All figures by name.
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        vec![
            ("deep", self.deep.to_string()),
            ("version", self.version.to_string()),
            ("clean", self.clean.to_string()),
            ("segments", self.segments.to_string()),
            ("cold_segments", self.cold_segments.to_string()),
            ("free_segments", self.free_segments.to_string()),
            ("records", self.records.to_string()),
            ("torn_bytes", self.torn_bytes.to_string()),
            ("objects", self.objects.to_string()),
            ("entries", self.entries.to_string()),
            ("live_bytes", self.live_bytes.to_string()),
            ("index_bytes", self.index_bytes.to_string()),
            ("damaged_superblocks", self.damaged_superblocks.to_string()),
            ("checkpoints_passed_over", self.checkpoints_passed_over.to_string()),
            ("damaged_segments", self.damaged_segments.to_string()),
            ("damaged", self.damaged.to_string()),
            ("last_seq", self.last_seq.to_string()),
            ("elapsed_ms", self.elapsed.as_millis().to_string()),
        ]
    }

    fn damage(&mut self, offset: u64, what: String) {
        self.damaged += 1;
        if self.damage.len() < DAMAGE_MAX {
            self.damage.push(Damage { offset, what });
        }
    }
}

impl std::fmt::Display for CheckReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.entries().iter().try_for_each(|(name, value)| writeln!(f, "{name:>20}  {value}"))
    }
}

/// Checks the store on `device`: what opening reads (superblocks, segment headers, checkpoint, the log after it), that
/// the counts of live bytes are what the index adds up to, and with `deep` that every entry of the index points to a
/// whole value which is its own. `progress(done, total)` is told entries. Takes as much memory as opening the store:
/// its index.
///
/// # Errors
/// What opening would refuse: [`Corrupt`](esker_store::Error::Corrupt) with the place of damage that the store does not
/// open with. Damage behind the index is in the report.
pub fn check(device: Arc<dyn Device>, deep: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
    let options = Options { read_only: true, cache_bytes: 16 << 20, recent_bytes: 0, ..Options::default() };
    let engine = Engine::open(device, options)?;
    engine.check(deep, progress)
}

/// An entry of the index, to be compared with what stands at its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// A slot.
    Slot(u64),
    /// A key of the omap.
    Omap(Bytes),
    /// Offset in the object, length, and first byte in the payload.
    Extent(u64, u32, u32),
}

impl Expected {
    /// What a reader of the entry asks for.
    pub(crate) fn asked(&self, loc: Loc, number: u64, spaces: &Spaces) -> Asked<'_> {
        let what = match self {
            Self::Slot(slot) => Sought::Slot(*slot),
            Self::Omap(key) => Sought::Omap(key),
            Self::Extent(at, len, skip) => {
                Sought::Data(spaces.written_at(*at, &Extent { loc, len: *len, skip: *skip }))
            }
        };
        Asked { object: spaces.owner(number), what }
    }
}

/// What stands on some pages of an object's index, and where it points to.
pub(crate) fn entries_of(pages: &[Page]) -> Vec<(Loc, Expected)> {
    let mut entries = Vec::new();
    for page in pages {
        match page {
            Page::Slots(slots) => entries.extend(slots.iter().map(|(slot, loc)| (*loc, Expected::Slot(*slot)))),
            Page::Omap(leaf) => {
                entries.extend(leaf.entries().map(|(key, loc)| (loc, Expected::Omap(Bytes::copy_from_slice(key)))));
            }
            Page::Extents(leaf) => entries.extend(
                leaf.entries()
                    .map(|(key, extent)| (extent.loc, Expected::Extent(offset_of(key), extent.len, extent.skip))),
            ),
        }
    }
    entries
}

impl Engine {
    /// As [`check`], of an open store, while it serves: what changes meanwhile is checked as it is when its turn comes,
    /// a few hundred pages of an object's index at a time.
    /// The counts of live bytes are compared only in a store that is open read-only, where nothing changes.
    ///
    /// # Errors
    /// [`Error::Io`](esker_store::Error::Io).
    pub fn check(&self, deep: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
        let began = Instant::now();
        let recovery = self.recovery();
        let mut report = CheckReport {
            deep,
            version: self.superblocks.newest().version,
            clean: recovery.clean,
            records: recovery.records,
            torn_bytes: recovery.torn_bytes,
            damaged_superblocks: recovery.damaged_superblocks,
            checkpoints_passed_over: recovery.checkpoints_passed_over,
            last_seq: self.log.as_ref().map_or(recovery.last_seq, |log| log.last_seq()),
            free_segments: self.segments.free_segments(),
            ..CheckReport::default()
        };
        let read_only = self.log.is_none();
        let mut objects = Vec::new();
        self.objects.for_each(|object| objects.push(Arc::clone(object)));
        let count = |spaces: &Spaces| spaces.slots.len() + spaces.omap.len() + spaces.extents.count();
        let total = objects.iter().map(|object| count(&object.state.read())).sum();
        let mut live = HashMap::new();
        let mut written = self.log.as_ref().map_or((u32::MAX, 0), |log| log.reached());
        for object in &objects {
            report.objects += 1;
            for space in Space::ALL {
                let mut from = Some(0);
                while let Some(first) = from {
                    from = self.check_pages(object, space, first, &mut live, &mut written, &mut report)?;
                    progress(report.entries.min(total), total);
                }
            }
        }
        progress(total, total);
        live.values_mut().for_each(|weight| *weight = weight.div_ceil(WEIGHT_WHOLE));
        for usage in self.segments.in_use() {
            report.segments += 1;
            report.cold_segments += u64::from(usage.cold);
            report.index_bytes += usage.index;
            report.live_bytes += usage.live;
            if usage.damage != segments::DamageLevel::None {
                report.damaged_segments += 1;
                let (segment, generation, live) = (usage.segment, usage.generation, usage.live);
                let what = match usage.damage {
                    segments::DamageLevel::Whole => "neither its header nor any record of it holds",
                    segments::DamageLevel::Header => "its header does not hold; what stands behind it is served",
                    _ => "something in it does not hold",
                };
                let what = format!("segment {segment} (generation {generation}, {live} bytes live): {what}");
                report.damage(segment * self.segments.segment_bytes, what);
            }
            let found = live.remove(&usage.segment).unwrap_or(0);
            if read_only && found != usage.live {
                let offset = usage.segment * self.segments.segment_bytes;
                report.damage(offset, format!("{} bytes count as live, the index has {found}", usage.live));
            }
        }
        if read_only {
            for (segment, bytes) in live.into_iter().filter(|(_, bytes)| *bytes > 0) {
                let offset = segment * self.segments.segment_bytes;
                report.damage(offset, format!("the index points to {bytes} bytes of a free segment"));
            }
        }
        report.elapsed = began.elapsed();
        Ok(report)
    }

    /// Looks at some pages of an object's index from number `first` on, as they are now, and with `deep` reads
    /// everything that they point to. Where to go on, if there are more. Between two calls segments can be made free.
    fn check_pages(
        &self,
        object: &Arc<Object>,
        space: Space,
        first: u64,
        live: &mut HashMap<u64, u64>,
        written: &mut (u32, u64),
        report: &mut CheckReport,
    ) -> Result<Option<u64>> {
        let _pinned = self.segments.pin();
        let (number, spaces) = object.numbered_spaces();
        let mut numbers = spaces.pages(space).into_iter().skip_while(|number| *number < first);
        let mut pages = Vec::new();
        for at in numbers.by_ref().take(PAGES_AT_ONCE) {
            match page(&self.reader, number, &spaces, space, at) {
                Err(Error::Corrupt { offset, what }) => {
                    report.damage(offset, format!("the index of {}: {what}", object.id));
                }
                page => pages.push(page?),
            }
        }
        for page in &pages {
            page.each_place(|offset, weight| {
                *live.entry(self.segments.segment_of(offset)).or_insert(0u64) += weight;
                report.entries += 1;
            });
        }
        if report.deep {
            self.check_values(object, number, &spaces, &pages, written, report)?;
        }
        Ok(numbers.next())
    }

    /// Reads everything that some pages of an object's index point to. `written`: how far the log was when it was last
    /// asked, which waits for a sync that is under way.
    fn check_values(
        &self,
        object: &Arc<Object>,
        number: u64,
        spaces: &Spaces,
        pages: &[Page],
        written: &mut (u32, u64),
        report: &mut CheckReport,
    ) -> Result<()> {
        let mut entries = entries_of(pages);
        if let Some(log) = &self.log {
            // What was just written may stand in memory only.
            let place = |loc: Loc| {
                let segment = self.segments.segment_of(loc.offset());
                (self.segments.generation(segment), self.segments.within(loc.offset()))
            };
            // Cold segments are numbered with those of the log, and are written before the index points to them.
            if entries.iter().any(|(loc, _)| place(*loc) >= *written) {
                log.commit(false);
                *written = log.reached();
            }
        }
        entries.sort_by_key(|(loc, _)| loc.offset());
        for run in entries.chunks(RUN) {
            let places: Vec<Loc> = run.iter().map(|(loc, _)| *loc).collect();
            let mut at = 0;
            self.reader.verify_run(&places, &mut |found| {
                let (loc, expected) = &run[at];
                at += 1;
                match found {
                    Err(Error::Corrupt { offset, what }) => {
                        report.damage(offset, format!("{}: {what}", describe(&object.id, expected)));
                        Ok(())
                    }
                    Err(other) => Err(other),
                    Ok((header, operation)) => {
                        if let Err(Error::Corrupt { offset, what }) =
                            is_what(*loc, expected, number, spaces, &header, operation)
                        {
                            report.damage(offset, format!("{}: {what}", describe(&object.id, expected)));
                        }
                        Ok(())
                    }
                }
            })?;
        }
        Ok(())
    }
}

/// Compares what stands at a place with what the entry says.
///
/// # Errors
/// [`Error::Corrupt`] says what stands there instead, or that it is shorter than the entry or does not decompress.
pub(crate) fn is_what(
    loc: Loc,
    expected: &Expected,
    number: u64,
    spaces: &Spaces,
    header: &OpHeader,
    operation: &[u8],
) -> Result<()> {
    expected.asked(loc, number, spaces).compare(loc, header, operation)?;
    let wrong = |what: &str| Err(Error::Corrupt { offset: loc.offset(), what: what.into() });
    let payload = &operation[header.payload_start()..header.payload_end()];
    let Some(raw_len) = raw_len(header, payload) else { return wrong("its payload is not compressed as it says") };
    if header.flags & OP_FLAG_COMPRESSED != 0 && decompress_payload(payload).is_none() {
        return wrong("its payload does not decompress");
    }
    match expected {
        Expected::Extent(_, len, skip) if u64::from(*skip) + u64::from(*len) > u64::from(raw_len) => {
            wrong("its payload is shorter than the index says")
        }
        _ => Ok(()),
    }
}

pub(crate) fn describe(id: &ObjectId, expected: &Expected) -> String {
    match expected {
        Expected::Slot(slot) => format!("slot {slot} of {id}"),
        Expected::Omap(key) => format!("key {} of {id}", key.escape_ascii()),
        Expected::Extent(at, len, _) => format!("{len} bytes at {at} of {id}"),
    }
}

/// What [`dump`] shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct DumpOptions {
    /// Show records.
    pub records: bool,
    /// Show the operations of records as well.
    pub operations: bool,
    /// Only the segment with this generation.
    pub generation: Option<u32>,
    /// Stop after so many records; 0 for no end.
    pub records_max: u64,
}

/// One thing on the device.
#[derive(Clone, Debug)]
pub enum DumpItem {
    /// The superblock that counts.
    Superblock(Superblock),
    /// A segment of the log.
    Segment(SegmentHeader),
    /// A record and its device offset.
    Record(RecordHeader, u64),
    /// An operation, its device offset and its key.
    Operation(OpHeader, u64, Vec<u8>),
}

impl DumpItem {
    /// What kind of thing it is.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Superblock(_) => "superblock",
            Self::Segment(_) => "segment",
            Self::Record(..) => "record",
            Self::Operation(..) => "operation",
        }
    }

    /// Its fields by name.
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Superblock(block) => vec![
                ("version", block.version.to_string()),
                ("sequence", block.sequence.to_string()),
                ("uuid", block.uuid.iter().map(|byte| format!("{byte:02x}")).collect()),
                ("block_bytes", block.block_bytes.to_string()),
                ("segment_bytes", block.segment_bytes.to_string()),
                ("device_len", block.device_len.to_string()),
                ("clean", block.clean.to_string()),
                ("checkpoint_before_kept", block.before_kept.to_string()),
                ("end_generation", block.end_generation.to_string()),
                ("end_offset", block.end_offset.to_string()),
                ("end_seq", block.end_seq.to_string()),
                ("checkpoint", if block.root == 0 { "none".into() } else { block.replay.offset.to_string() }),
                ("replay_generation", block.replay.generation.to_string()),
                ("replay_offset", block.replay.offset.to_string()),
            ],
            Self::Segment(header) => vec![
                ("generation", header.generation.to_string()),
                ("segment", header.segment.to_string()),
                ("stream", if header.stream == Stream::Cold { "cold" } else { "log" }.to_string()),
                ("first_seq", header.first_seq.to_string()),
                ("group", header.group.to_string()),
                ("previous_generation", header.previous_generation.to_string()),
                ("previous_end", header.previous_end.to_string()),
            ],
            Self::Record(header, offset) => vec![
                ("offset", offset.to_string()),
                ("seq", header.seq.to_string()),
                ("group", header.group.to_string()),
                ("len", header.len.to_string()),
                ("operations", header.op_count.to_string()),
                ("applied_only", header.applied_only().to_string()),
            ],
            Self::Operation(header, offset, key) => vec![
                ("offset", offset.to_string()),
                ("kind", format!("{:?}", header.kind)),
                ("object", header.object.to_string()),
                ("argument", header.argument.to_string()),
                ("key", name_of(header.kind, key)),
                ("payload_len", header.payload_len.to_string()),
                ("compressed", (header.flags & OP_FLAG_COMPRESSED != 0).to_string()),
            ],
        }
    }
}

fn name_of(kind: Kind, key: &[u8]) -> String {
    match key.split_first() {
        Some((len, names)) if kind == Kind::CreateObject && names.len() >= usize::from(*len) => {
            let (collection, name) = names.split_at(usize::from(*len));
            format!("{}/{}", collection.escape_ascii(), name.escape_ascii())
        }
        _ => key.escape_ascii().to_string(),
    }
}

/// Shows what is on `device`: the superblock, and all segments in the order in which they were begun, cold ones too.
///
/// # Errors
/// What opening would refuse before the log; records that do not hold are left out.
pub fn dump(device: &dyn Device, options: DumpOptions, sink: &mut dyn FnMut(DumpItem)) -> Result<()> {
    let found = find_superblock(device)?;
    sink(DumpItem::Superblock(found.superblock));
    let chain = find_chain(&find_headers(device, &found.superblock)?, &found.superblock)?;
    let mut headers: Vec<SegmentHeader> = chain.links.iter().map(|link| link.header).chain(chain.others).collect();
    headers.sort_unstable_by_key(|header| header.generation);
    let seed = store_seed(&found.superblock.uuid);
    let segment_bytes = found.superblock.segment_bytes;
    let block = u64::from(found.superblock.block_bytes);
    let mut shown = 0;
    let mut bytes = Vec::new();
    for header in headers {
        if options.generation.is_some_and(|generation| generation != header.generation) {
            continue;
        }
        sink(DumpItem::Segment(header));
        if !options.records && !options.operations {
            continue;
        }
        let base = header.segment * segment_bytes;
        bytes.resize(segment_bytes as usize, 0);
        let read = device.read(base, &mut bytes);
        read.map_err(|error| device_error(&format!("reading segment {} at {base}", header.segment), error))?;
        let (generation, end) = (header.generation, segment_bytes);
        let view = SegmentView { bytes: &bytes, base, generation, end, block, seed };
        for (record, at, body) in view.records() {
            if !record.ends_group() {
                shown += 1;
                sink(DumpItem::Record(record, at));
                if options.operations {
                    // An operation that does not hold ends the record.
                    let _ = each_operation(&record, at, body, seed, |op, bytes, at| {
                        sink(DumpItem::Operation(*op, at, op.key(bytes).0.to_vec()));
                        Ok(())
                    });
                }
                if options.records_max != 0 && shown >= options.records_max {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

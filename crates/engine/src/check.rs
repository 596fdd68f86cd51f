//! Read-only walks: `check` proves that what is on the device holds, `dump` shows it.
//!
//! Invariant: neither writes a byte, and neither needs the store to be opened.

use std::sync::Arc;
use std::time::Duration;

use esker_device::Device;
use esker_store::Result;

use crate::format::{FORMAT_VERSION, Kind, OpHeader, RecordHeader, SegmentHeader, Superblock, store_seed};
use crate::recover::{FoundSuperblock, RecoveryReport, Replay, Walk, each_operation, find_chain, find_superblock};
use crate::segments::SegmentBuffer;

/// What a check found. An error of [`check`] is damage that ends it; this is what holds.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Whether every record was read, or only superblocks and segment headers.
    pub deep: bool,
    /// Format version of the store.
    pub version: u32,
    /// Whether the store had been closed cleanly.
    pub clean: bool,
    /// Segments of the log.
    pub segments: u64,
    /// Transactions that hold.
    pub records: u64,
    /// Operations that hold.
    pub operations: u64,
    /// Bytes of log that hold.
    pub bytes: u64,
    /// Bytes of a torn last group, which opening will cut off.
    pub torn_bytes: u64,
    /// Superblock copies that do not hold. The store opens with another copy.
    pub damaged_superblocks: u64,
    /// Last sequence number.
    pub last_seq: u64,
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
            ("records", self.records.to_string()),
            ("operations", self.operations.to_string()),
            ("bytes", self.bytes.to_string()),
            ("torn_bytes", self.torn_bytes.to_string()),
            ("damaged_superblocks", self.damaged_superblocks.to_string()),
            ("last_seq", self.last_seq.to_string()),
            ("elapsed_ms", self.elapsed.as_millis().to_string()),
        ]
    }
}

impl std::fmt::Display for CheckReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.entries().iter().try_for_each(|(name, value)| writeln!(f, "{name:>20}  {value}"))
    }
}

struct Nothing;

impl Replay for Nothing {
    fn segment(&mut self, _: &SegmentHeader, _: &Arc<SegmentBuffer>) {}
    fn record(&mut self, _: &RecordHeader, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// Checks the store on `device`: superblocks and segment headers, and with `deep` every record and payload.
/// `progress(done, total)` is told bytes.
///
/// # Errors
/// As opening would: [`Corrupt`](esker_store::Error::Corrupt) with the place of the first damage, or what opening would refuse.
pub fn check(device: &dyn Device, deep: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
    let found = find_superblock(device)?;
    let chain = find_chain(device, &found.superblock)?;
    let report = if deep {
        let (end, report) = Walk::new(device, &found).run(&chain, &mut Nothing, progress)?;
        (end.seq, report)
    } else {
        let report = RecoveryReport {
            segments: chain.links.len() as u64,
            clean: found.superblock.clean,
            damaged_superblocks: found.damaged,
            ..RecoveryReport::default()
        };
        (found.superblock.end_seq, report)
    };
    let (last_seq, report) = report;
    Ok(CheckReport {
        deep,
        version: FORMAT_VERSION,
        clean: report.clean,
        segments: report.segments,
        records: report.records,
        operations: report.operations,
        bytes: report.bytes,
        torn_bytes: report.torn_bytes,
        damaged_superblocks: report.damaged_superblocks,
        last_seq,
        elapsed: report.elapsed,
    })
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
                ("version", FORMAT_VERSION.to_string()),
                ("sequence", block.sequence.to_string()),
                ("uuid", block.uuid.iter().map(|byte| format!("{byte:02x}")).collect()),
                ("block_bytes", block.block_bytes.to_string()),
                ("segment_bytes", block.segment_bytes.to_string()),
                ("device_len", block.device_len.to_string()),
                ("clean", block.clean.to_string()),
                ("end_generation", block.end_generation.to_string()),
                ("end_offset", block.end_offset.to_string()),
                ("end_seq", block.end_seq.to_string()),
            ],
            Self::Segment(header) => vec![
                ("generation", header.generation.to_string()),
                ("segment", header.segment.to_string()),
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

struct Dump<'a> {
    options: DumpOptions,
    seed: u32,
    shown: u64,
    generation: u32,
    sink: &'a mut dyn FnMut(DumpItem),
}

impl Dump<'_> {
    fn wants(&self) -> bool {
        self.options.generation.is_none_or(|generation| generation == self.generation)
            && (self.options.records_max == 0 || self.shown < self.options.records_max)
    }
}

impl Replay for Dump<'_> {
    fn segment(&mut self, header: &SegmentHeader, _: &Arc<SegmentBuffer>) {
        self.generation = header.generation;
        if self.wants() {
            (self.sink)(DumpItem::Segment(*header));
        }
    }

    fn record(&mut self, header: &RecordHeader, offset: u64, operations: &[u8]) -> Result<()> {
        if !self.wants() {
            return Ok(());
        }
        self.shown += 1;
        (self.sink)(DumpItem::Record(*header, offset));
        if !self.options.operations {
            return Ok(());
        }
        let sink = &mut self.sink;
        each_operation(header, offset, operations, self.seed, |op, bytes, at| {
            let key = bytes[op.key_start()..op.key_start() + usize::from(op.key_len)].to_vec();
            sink(DumpItem::Operation(*op, at, key));
            Ok(())
        })
    }
}

/// Shows what is on `device`, in log order.
///
/// # Errors
/// As [`check`]; what came before the damage has been shown.
pub fn dump(device: &dyn Device, options: DumpOptions, sink: &mut dyn FnMut(DumpItem)) -> Result<()> {
    let found: FoundSuperblock = find_superblock(device)?;
    sink(DumpItem::Superblock(found.superblock));
    let chain = find_chain(device, &found.superblock)?;
    if !options.records && !options.operations {
        for link in &chain.links {
            if options.generation.is_none_or(|generation| generation == link.header.generation) {
                sink(DumpItem::Segment(link.header));
            }
        }
        return Ok(());
    }
    let seed = store_seed(&found.superblock.uuid);
    let mut dump = Dump { options, seed, shown: 0, generation: 0, sink };
    Walk::new(device, &found).run(&chain, &mut dump, &mut |_, _| {}).map(|_| ())
}

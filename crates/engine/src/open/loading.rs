//! What a store holds when it is opened: a checkpoint, the log after it, and what each segment is.
//!
//! ```text
//! superblocks, newest first → segment headers → root → its table of segments → chain
//!   → the rest of the checkpoint → replay → which segments something points to
//! ```
//!
//! Where a checkpoint does not hold, the one before it and the log after that say the same, as long as all of it is
//! there.
//!
//! Invariants:
//! 1. A segment is free only if the checkpoint and the log have nothing in it, never because it cannot be read.
//! 2. A segment whose header is lost is what the table of segments says, or failing that what its records say.

use std::collections::HashSet;
use std::sync::Arc;

use esker_device::Device;
use esker_store::{Error, Result};

use crate::buffer::SegmentBuffer;
use crate::checkpoint::Saved;
use crate::format::{Root, Stream, Superblock, store_seed};
use crate::load::{load, load_root};
use crate::objects::Objects;
use crate::reader::Reader;
use crate::recover::{Chain, End, Headers, RecoveryReport, Walk, find_chain, find_headers, generation_of};
use crate::replay::Replayer;
use crate::replay::parallel::{Workers, replay};
use crate::segments::{DamageLevel, GENERATION_LOST, Lsn, Segments, Usage};
use crate::superblocks::{FoundSuperblock, device_error};

use super::{Options, Progress, Stage};

/// What opening has found.
pub(super) struct Found {
    /// Names the checkpoint that was loaded, and says of the store and of the log's end what the newest says.
    pub superblock: Superblock,
    pub segments: Arc<Segments>,
    pub reader: Arc<Reader>,
    pub objects: Arc<Objects>,
    pub saved: Saved,
    pub next_number: u64,
    pub chain: Chain,
    pub end: End,
    pub last: Option<Arc<SegmentBuffer>>,
    pub base_lsn: Lsn,
    pub recovery: RecoveryReport,
    /// Segments that nothing points to, but that a checkpoint which an older superblock names may need: free after the
    /// next checkpoint.
    pub free_later: Vec<u64>,
}

/// Loads the newest checkpoint that holds, and replays the log after it.
///
/// # Errors
/// Those of the newest, if none holds.
pub(super) fn find(device: &Arc<dyn Device>, superblocks: &FoundSuperblock, options: &Options) -> Result<Found> {
    let headers = find_headers(&**device, &superblocks.superblock)?;
    let mut first = None;
    for (passed_over, superblock) in (0..).zip(superblocks.candidates()) {
        match find_from(device, superblocks, &headers, superblock, options) {
            Ok(mut found) => {
                found.recovery.checkpoints_passed_over = passed_over;
                return Ok(found);
            }
            // What cannot be read may be read of the one before.
            Err(error @ (Error::Corrupt { .. } | Error::Io { .. })) => {
                tracing::error!(%error, "a checkpoint or the log after it does not hold");
                first.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    Err(first.unwrap_or_else(|| Error::Corrupt { offset: 0, what: "no superblock names a checkpoint".into() }))
}

fn find_from(
    device: &Arc<dyn Device>,
    superblocks: &FoundSuperblock,
    headers: &Headers,
    superblock: Superblock,
    options: &Options,
) -> Result<Found> {
    let seed = store_seed(&superblock.uuid);
    let mut chain = find_chain(headers, &superblock)?;
    let (recent, pinned) = (options.recent_bytes, options.pinned_bytes_max);
    let segments = Arc::new(Segments::new(superblock.segment_bytes, superblock.log_segments(), recent, pinned));
    place(&segments, &chain);
    let cache = (options.cache_policy, options.cache_bytes);
    let reader = Arc::new(Reader::new(Arc::clone(device), Arc::clone(&segments), seed, cache));
    let objects = Arc::new(Objects::default());
    let (mut saved, mut next_number, mut known) = (Saved::default(), 1, HashSet::new());
    let tell = |stage, done, total| {
        if let Some(Progress(told)) = &options.progress {
            told(stage, done, total);
        }
    };
    let began = std::time::Instant::now();
    if superblock.root != 0 {
        place_root(&segments, &superblock);
        let root = load_root(&superblock, &reader, &segments)?;
        take_table(&segments, &mut chain, &superblock, &root.1)?;
        known.extend(root.1.segments.iter().map(|held| held.segment));
        let loaded = load(root, &reader, &segments, &objects, options.index_bytes, &|done, total| {
            tell(Stage::Checkpoint, done, total)
        })?;
        (saved, next_number) = (loaded.saved, loaded.next_number);
    }
    let load = began.elapsed();
    // Positions of what is replayed stand above those of everything else, which is durable.
    let base_lsn = superblock.segment_bytes;
    let replayer = Replayer::new(&objects, &segments, Some(&reader), base_lsn, next_number);
    let walk = Walk::new(&**device, &superblock, superblocks.damaged);
    let workers = if options.commit_thread { Workers::of_machine() } else { Workers::NONE };
    let mut told = |done, total| tell(Stage::Log, done, total);
    let (end, mut recovery, replayer) = replay(walk, &chain, replayer, workers, &mut told)?;
    (recovery.load, recovery.replay_ns) = (load, replayer.expected_ns);
    let (last, base_lsn, next_number) = replayer.finish();
    // Superblocks stand twice from the first on, and none is cleared before its half is full.
    let full = superblock.superblock_segment_bytes / u64::from(superblock.block_bytes);
    let gone = superblocks.free_blocks.iter().position(|free| *free == Some(0));
    if let Some(half) = gone.filter(|_| end.generation == 0 && superblock.root == 0 && superblock.sequence < full) {
        let what = "no log, and no superblock where the second copies stand: what the store held is gone, or its \
                    formatting was cut short";
        return Err(Error::Corrupt { offset: half as u64 * superblock.superblock_segment_bytes, what: what.into() });
    }
    if end.generation == 0 && superblock.root == 0 && superblocks.superblock.end_generation != 0 {
        // The header of a segment was durable before the superblock that names it.
        let FoundSuperblock { superblock: newest, .. } = superblocks;
        let what = format!(
            "no segment of log is found; the superblock says that it had come to generation {}",
            newest.end_generation
        );
        return Err(Error::Corrupt { offset: newest.end_offset, what });
    }
    if end.generation > 0 {
        // What a torn end has left behind this place counts for nothing, even if the log goes on elsewhere.
        segments.set_end(end.segment, end.offset);
    }
    // All of it was read from the device; only where the log goes on is not whole yet.
    segments.log_is_written(base_lsn);
    place_lost(&**device, &segments, &mut chain, &superblock, seed)?;
    let mut free_later = Vec::new();
    for usage in segments.in_use() {
        let tail = usage.generation >= superblock.replay.generation.max(1) && !usage.cold;
        let alive = usage.live > 0 || usage.index > 0;
        if !tail && !alive {
            if known.contains(&usage.segment) && headers.stands_in(usage.segment) {
                free_later.push(usage.segment);
            } else {
                segments.release(usage.segment, true);
            }
            continue;
        }
        if usage.cold {
            // What has died in it is not known: it was probably nearly full.
            let filled = (usage.live + usage.index).max(superblock.segment_bytes / 4 * 3);
            segments.add_filled(usage.segment, filled);
        }
        if usage.damage != DamageLevel::None {
            recovery.damaged_segments += 1;
            tracing::error!(
                segment = usage.segment,
                generation = usage.generation,
                live_bytes = usage.live,
                readable = usage.damage != DamageLevel::Whole,
                "the header of a segment in use does not hold"
            );
        }
    }
    segments.free_unplaced(|segment| headers.stands_in(segment));
    Ok(Found {
        superblock,
        segments,
        reader,
        objects,
        saved,
        next_number,
        chain,
        end,
        last,
        base_lsn,
        recovery,
        free_later,
    })
}

/// Says which segment holds what, by the headers.
fn place(segments: &Segments, chain: &Chain) {
    for other in &chain.others {
        segments.place(other.segment, other.generation, 0, other.first_seq, other.stream == Stream::Cold);
    }
    for (number, link) in chain.links.iter().enumerate() {
        segments.place(link.header.segment, link.header.generation, 0, link.header.first_seq, false);
        if number == 0 && chain.begin_lost {
            segments.note_damage(link.header.segment, link.header.generation, DamageLevel::Header);
        }
    }
    let headers = || chain.others.iter().chain(chain.links.iter().map(|link| &link.header));
    for next in headers().filter(|header| header.stream == Stream::Log && header.previous_generation != 0) {
        let before = segments.segment_of(next.previous_end);
        if segments.generation(before) == next.previous_generation {
            segments.set_end(before, segments.within(next.previous_end));
        }
    }
}

/// The superblock says which generation the checkpoint's root stands in, so that it is found where the header is lost.
fn place_root(segments: &Segments, superblock: &Superblock) {
    let Some(root) = crate::format::Loc::from_raw(superblock.root) else { return };
    let segment = segments.segment_of(root.offset());
    if superblock.log_segments().contains(&segment) && segments.generation(segment) == 0 {
        place_damaged(segments, segment, superblock.root_generation, true);
    }
}

fn place_damaged(segments: &Segments, segment: u64, generation: u32, cold: bool) {
    segments.place(segment, generation, 0, 0, cold);
    segments.note_damage(segment, generation, DamageLevel::Header);
}

/// Compares the checkpoint's table of segments with their headers, and goes by the table where a header is lost.
///
/// # Errors
/// [`Error::Corrupt`] where the two say different things of where the log goes through a segment.
fn take_table(segments: &Segments, chain: &mut Chain, superblock: &Superblock, root: &Root) -> Result<()> {
    let on_device = superblock.log_segments();
    let wrong = |segment: u64, what: String| {
        Err(Error::Corrupt {
            offset: segment.saturating_mul(superblock.segment_bytes),
            what: format!("segment {segment}: {what}"),
        })
    };
    let whole = root.replay.is_some();
    for held in &root.segments {
        let (segment, generation, cold) = (held.segment, held.generation, held.stream == Stream::Cold);
        if !on_device.contains(&segment) || generation == 0 {
            let count = on_device.end;
            return wrong(segment, format!("the checkpoint has it with generation {generation}, of {count} segments"));
        }
        let placed = segments.generation(segment);
        // Before version 4 only log was told, and an opening did not look.
        if whole && placed < generation {
            place_damaged(segments, segment, generation, cold);
            chain.generation_max = chain.generation_max.max(generation);
        }
        let Some(usage) = segments.usage(segment).filter(|usage| usage.generation == generation) else {
            // It was used again since the checkpoint.
            continue;
        };
        if whole && usage.cold != cold {
            if chain.links.iter().any(|link| link.header.segment == segment) {
                return wrong(segment, "the log passes through it, and the checkpoint has it as cold".into());
            }
            // The checkpoint knows what it points to: this header counts as lost.
            place_damaged(segments, segment, generation, cold);
            segments.set_end(segment, held.end);
            continue;
        }
        let covered = cold || root.replay.is_none_or(|replay| generation < replay.generation);
        if held.end >= superblock.segment_bytes || !covered {
            continue;
        }
        if whole && !cold && usage.end < superblock.segment_bytes && usage.end != held.end {
            let (by_checkpoint, by_header) = (held.end, usage.end);
            return wrong(
                segment,
                format!("the log left it at {by_checkpoint} by the checkpoint, at {by_header} by the next header"),
            );
        }
        segments.set_end(segment, held.end);
    }
    Ok(())
}

/// Places the segments that something points to and that neither a header nor the table knows, by what their records
/// say.
///
/// # Errors
/// [`Error::Io`].
fn place_lost(
    device: &dyn Device,
    segments: &Segments,
    chain: &mut Chain,
    superblock: &Superblock,
    seed: u32,
) -> Result<()> {
    // A segment that the table knows may have been used again since, and have lost its header after that.
    let by_table = |usage: &Usage| usage.damage == DamageLevel::Header && (usage.live > 0 || usage.index > 0);
    let by_table = segments.in_use().into_iter().filter(by_table).map(|usage| usage.segment);
    for segment in by_table.chain(segments.pointed_to_unplaced()) {
        let base = segment * superblock.segment_bytes;
        let mut bytes = vec![0; superblock.segment_bytes as usize];
        let read = device.read(base, &mut bytes);
        read.map_err(|error| device_error(&format!("reading segment {segment} at {base}"), error))?;
        let found = generation_of(&bytes, base, u64::from(superblock.block_bytes), seed);
        let placed = segments.generation(segment);
        let taken = |generation: u32| {
            segments.in_use().iter().any(|usage| usage.generation == generation && usage.segment != segment)
        };
        if placed != 0 && found.is_none_or(|(generation, _)| generation <= placed) {
            continue;
        }
        match found.filter(|(generation, _)| (1..GENERATION_LOST).contains(generation) && !taken(*generation)) {
            Some((generation, cold)) => {
                place_damaged(segments, segment, generation, cold);
                chain.generation_max = chain.generation_max.max(generation);
            }
            None if placed != 0 => {}
            None => {
                segments.place(segment, GENERATION_LOST, 0, 0, true);
                segments.note_damage(segment, GENERATION_LOST, DamageLevel::Whole);
            }
        }
    }
    Ok(())
}

//! Scrubbing: everything that stands on the device is read and verified, in the background, before a reader needs it.
//!
//! ```text
//! segments in use, by number → read from the medium at the set rate → records and operations verified
//!   → what does not hold and something points to: named, noted, and left to the cleaner, which moves the rest
//! ```
//!
//! A round goes over all segments once. Where it has come to stands in each checkpoint, so that it goes on after a
//! restart.
//!
//! Invariants:
//! 1. Nothing is written but superblocks of which a copy has rotted, and no lock is held over another read.
//! 2. A segment that was used again while it was read is passed over: what was found is of its former life.
//! 3. A place that does not hold and that nothing points to is no damage: a torn end, or what has died since.

mod state;

pub(crate) use state::Scrub;
pub use state::ScrubStatus;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use esker_device::Device;
use esker_store::{Error, Result};

use crate::buffer::SegmentBuffer;
use crate::check::{Damage, describe, entries_of, is_what};
use crate::engine::Engine;
use crate::format::{
    Loc, OP_HEADER_BYTES, OpHeader, RECORD_HEADER_BYTES, RecordHeader, Role, SHORT_RECORD_HEADER_BYTES, SegmentHeader,
    Superblock, SuperblockError, round_up, verify_payload,
};
use crate::pages::each_page;
use crate::reader::Asked;
use crate::segments::{self, Usage};
use crate::superblocks::{device_error, read_half};

/// So much is read at a time.
const WINDOW_BYTES: u64 = 1 << 20;
/// An operation's header with the longest key.
const KEYED_HEADER_BYTES_MAX: u64 = OP_HEADER_BYTES as u64 + u16::MAX as u64;
/// Damaged places that are remembered; more are only counted.
const DAMAGE_MAX: usize = 1000;
/// A round begins at most so often.
const ROUND_PAUSE: Duration = Duration::from_secs(24 * 3600);

/// What scrubbing once found.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    /// Segments read.
    pub segments: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Records verified.
    pub records: u64,
    /// Operations verified.
    pub operations: u64,
    /// Superblock copies that do not hold.
    pub damaged_superblocks: u64,
    /// Places that do not hold and that something points to, the first thousand.
    pub damage: Vec<Damage>,
    /// How many there are.
    pub damaged: u64,
    /// Places that do not hold and that nothing points to.
    pub dead: u64,
    /// How long it took.
    pub elapsed: Duration,
}

impl ScrubReport {
    /// All figures by name.
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        vec![
            ("segments", self.segments.to_string()),
            ("bytes", self.bytes.to_string()),
            ("records", self.records.to_string()),
            ("operations", self.operations.to_string()),
            ("damaged_superblocks", self.damaged_superblocks.to_string()),
            ("damaged", self.damaged.to_string()),
            ("dead_places", self.dead.to_string()),
            ("elapsed_ms", self.elapsed.as_millis().to_string()),
        ]
    }

    fn damage(&mut self, offset: u64, what: String) {
        self.damaged += 1;
        tracing::error!(offset, what, "scrubbing found damage");
        if self.damage.len() < DAMAGE_MAX {
            self.damage.push(Damage { offset, what });
        }
    }
}

/// What goes on beside reading: told the bytes that were read; false to end.
type Pace<'a> = dyn FnMut(u64) -> bool + 'a;

impl Engine {
    /// How far the scrubber is.
    pub fn scrub_status(&self) -> ScrubStatus {
        self.scrub.status()
    }

    /// What the scrubber has found since the store was opened, the first thousand.
    pub fn scrub_found(&self) -> Vec<Damage> {
        self.scrub.found.lock().clone()
    }

    /// Changes how many bytes a second are scrubbed; 0 pauses, at once.
    pub fn set_scrub_rate(&self, bytes_per_s: u64) {
        self.scrub.rate.store(bytes_per_s, Ordering::Relaxed);
        self.scrub.changed.notify_all();
    }

    /// Reads and verifies everything once, as fast as the device can. `progress(done, total)` is told bytes; it returns
    /// false to end early.
    ///
    /// # Errors
    /// [`Error::Io`]: the device's.
    pub fn scrub_once(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<ScrubReport> {
        let began = Instant::now();
        let mut report = ScrubReport { damaged_superblocks: self.scrub_superblocks(), ..ScrubReport::default() };
        self.find_cold_ends()?;
        let all = self.segments.in_use();
        let total = all.iter().map(|usage| self.scrubbed_end(usage)).sum();
        let mut done = 0;
        for usage in all {
            let mut goes_on = true;
            let before = done;
            self.scrub_segment(&usage, &mut report, &mut |bytes| {
                done += bytes;
                goes_on = progress(done.min(total), total);
                goes_on
            })?;
            if !goes_on {
                break;
            }
            done = before + self.scrubbed_end(&usage);
        }
        progress(total, total);
        self.scrub.read_bytes.fetch_add(report.bytes, Ordering::Relaxed);
        self.note_found(&report);
        report.elapsed = began.elapsed();
        Ok(report)
    }

    fn note_found(&self, report: &ScrubReport) {
        self.scrub.damaged.fetch_add(report.damaged, Ordering::Relaxed);
        let mut found = self.scrub.found.lock();
        let room = DAMAGE_MAX.saturating_sub(found.len());
        for damage in report.damage.iter().take(room) {
            if !found.contains(damage) {
                found.push(damage.clone());
            }
        }
        drop(found);
        if report.damaged > 0
            && let Some(keeper) = &self.keeper
        {
            // It moves what holds.
            keeper.wake();
        }
    }

    /// The next checkpoint says how far it is.
    fn note_scrubbed(&self, place: (u64, u64)) {
        if let Some(keeper) = &self.keeper {
            keeper.note_scrubbed(place);
        }
    }

    /// Superblock copies that do not hold. What is needed of them is written again.
    fn scrub_superblocks(&self) -> u64 {
        let superblock = self.superblocks.newest();
        let block = superblock.block_bytes as usize;
        let mut damaged = 0;
        for half in 0..2 {
            let (area, unreadable) = read_half(&*self.device, half, &superblock);
            let holds = |bytes: &[u8]| matches!(Superblock::decode(bytes), Ok(_) | Err(SuperblockError::Empty));
            damaged += unreadable + area.chunks(block).filter(|bytes| !holds(bytes)).count() as u64;
        }
        if damaged > 0
            && self.keeper.is_some()
            && self.mark.failure().is_none()
            && let Err(error) = self.superblocks.mend()
        {
            tracing::error!(%error, "a copy of a superblock that does not hold was not written again");
        }
        damaged
    }

    /// Up to where a segment is scrubbed: what is being written is not.
    fn scrubbed_end(&self, usage: &Usage) -> u64 {
        if let Some(log) = &self.log
            && !usage.cold
        {
            let (generation, end) = log.reached();
            return match usage.generation.cmp(&generation) {
                std::cmp::Ordering::Less => usage.end,
                std::cmp::Ordering::Equal => end,
                std::cmp::Ordering::Greater => 0,
            };
        }
        let writing = self.keeper.as_ref().filter(|keeper| usage.cold && keeper.writes(usage.segment));
        match writing {
            _ if usage.damage == segments::DamageLevel::Whole => 0,
            Some(keeper) => keeper.cold_reached(usage.generation),
            None => usage.end,
        }
    }

    /// Reads and verifies one segment. One that cannot be read is damage as well.
    fn scrub_segment(&self, usage: &Usage, report: &mut ScrubReport, pace: &mut Pace<'_>) -> Result<()> {
        match self.scrub_readable(usage, report, pace) {
            Err(error @ Error::Io { .. }) => {
                if self.segments.note_damage(usage.segment, usage.generation, segments::DamageLevel::Part) {
                    let at = usage.segment * self.segments.segment_bytes;
                    report.damage(at, format!("segment {} cannot be read: {error}", usage.segment));
                }
                self.tell_keeper(usage);
                Ok(())
            }
            other => other,
        }
    }

    fn scrub_readable(&self, usage: &Usage, report: &mut ScrubReport, pace: &mut Pace<'_>) -> Result<()> {
        let end = self.scrubbed_end(usage);
        if end == 0 {
            return Ok(());
        }
        let base = usage.segment * self.segments.segment_bytes;
        let block = u64::from(self.device.geometry().block_bytes);
        let mut medium = Medium { engine: self, base, end, start: 0, len: 0, buffer: None, read: 0 };
        let mut wrong: Vec<(u64, u64)> = Vec::new();
        let uuid = self.superblocks.newest().uuid;
        let head = medium.get(0, block)?;
        let header = head.and_then(|head| SegmentHeader::decode(head, &uuid, usage.segment));
        let header_holds = header.is_some_and(|header| header.generation == usage.generation);
        let (mut at, mut gap, mut last_seq, mut told) = (block, None, None, 0);
        while at + SHORT_RECORD_HEADER_BYTES as u64 <= end {
            if medium.read >= told + WINDOW_BYTES {
                if !pace(medium.read - told) {
                    return Ok(());
                }
                told = medium.read;
            }
            let head = medium.get(at, (RECORD_HEADER_BYTES as u64).min(end - at))?;
            let record = head.and_then(|head| RecordHeader::decode(head, self.seed, base + at));
            let fits =
                |record: &RecordHeader| record.generation == usage.generation && u64::from(record.len) <= end - at;
            let Some(record) = record.filter(fits) else {
                if !usage.cold || at.is_multiple_of(block) {
                    gap.get_or_insert(at);
                }
                at = round_up(at + 1, block);
                continue;
            };
            // The end of a group is followed by zeros up to the next block; then no sequence number is left out.
            let follows = last_seq.is_some_and(|last| record.seq == last + u64::from(!record.ends_group()));
            last_seq = Some(record.seq);
            if let Some(gap) = gap.take().filter(|_| usage.cold || !follows) {
                wrong.push((gap, at));
            }
            report.records += 1;
            let (mut op_at, ends) = (at + record.header_bytes() as u64, at + u64::from(record.len));
            for _ in 0..record.op_count {
                let head = medium.get(op_at, KEYED_HEADER_BYTES_MAX.min(ends - op_at))?;
                let header = head.and_then(|head| OpHeader::decode(head, self.seed, usage.generation, base + op_at));
                let Some(header) = header.filter(|header| header.total_bytes() <= ends - op_at) else {
                    wrong.push((op_at, ends));
                    break;
                };
                let len = header.total_bytes();
                if !medium.get(op_at, len)?.is_some_and(|operation| verify_payload(&header, operation)) {
                    wrong.push((op_at, op_at + len));
                }
                report.operations += 1;
                op_at += len;
            }
            at = ends;
        }
        let tail = gap.map(|gap| (gap, end));
        // What was written last may end within a block, followed by nothing: that is no damage, if nothing points
        // there.
        let open = self.log.as_ref().is_some_and(|log| !usage.cold && log.open_generation() <= usage.generation);
        let no_damage = u64::from(open && tail.is_some());
        // How far a cold segment was written is not always known: nothing points behind its last record.
        let ends = tail.filter(|(gap, _)| usage.cold && self.nothing_behind(usage, *gap));
        match ends {
            Some((gap, _)) if self.segments.generation(usage.segment) == usage.generation && end == usage.end => {
                self.segments.set_end(usage.segment, gap);
            }
            _ => wrong.extend(tail),
        }
        report.segments += 1;
        report.bytes += medium.read;
        pace(medium.read - told);
        if wrong.is_empty() && (header_holds || usage.damage >= segments::DamageLevel::Header) {
            return Ok(());
        }
        self.name_damage(usage, header_holds, (&wrong, no_damage), &mut medium, report)?;
        if wrong.len() as u64 > no_damage || !header_holds {
            self.tell_keeper(usage);
        }
        Ok(())
    }

    /// Tells the keeper of damage, named or not. The caller has no pin: the keeper may wait for readers.
    fn tell_keeper(&self, usage: &Usage) {
        if let Some(keeper) = &self.keeper {
            keeper.note_damage(usage);
        }
    }

    /// The pieces of the last checkpoint in a range of the device.
    pub(crate) fn pieces_in(&self, range: &std::ops::Range<u64>) -> Vec<(u64, Role, Loc)> {
        match (&self.keeper, &self.saved) {
            (Some(keeper), _) => keeper.pieces_in(range),
            (None, Some(saved)) => saved.pieces_in(range),
            (None, None) => Vec::new(),
        }
    }

    /// Finds out what stands at places that do not hold.
    fn name_damage(
        &self,
        usage: &Usage,
        header_holds: bool,
        (wrong, no_damage): (&[(u64, u64)], u64),
        medium: &mut Medium<'_>,
        report: &mut ScrubReport,
    ) -> Result<()> {
        let now = self.segments.usage(usage.segment).filter(|now| now.generation == usage.generation);
        let Some(now) = now else { return Ok(()) };
        if now.live == 0 && now.index == 0 {
            return Ok(());
        }
        let base = usage.segment * self.segments.segment_bytes;
        let before = report.damaged;
        if !header_holds && now.damage < segments::DamageLevel::Header {
            report.damage(base, format!("the header of segment {} (generation {})", now.segment, now.generation));
            self.segments.note_damage(now.segment, now.generation, segments::DamageLevel::Header);
        }
        let inside = |offset: u64| wrong.iter().any(|(from, to)| (base + from..base + to).contains(&offset));
        let mut objects = Vec::new();
        self.objects.for_each(|object| objects.push(Arc::clone(object)));
        for object in objects {
            let _pinned = self.segments.pin();
            if self.segments.generation(usage.segment) != usage.generation {
                // It was made free meanwhile, and may hold something else by now.
                return Ok(());
            }
            let (number, spaces) = object.numbered_spaces();
            let mut entries = Vec::new();
            let walked = each_page(&self.reader, number, &spaces, &mut |page| {
                let all = entries_of(std::slice::from_ref(page)).into_iter();
                entries.extend(all.filter(|(loc, _)| inside(loc.offset())));
                Ok(())
            });
            if let Err(error) = walked {
                tracing::error!(object = %object.id, %error, "what a damaged place held cannot be told: the index does not hold");
            }
            entries.sort_by_key(|(loc, _)| loc.offset());
            for (loc, entry) in &entries {
                let verified = medium.verified(*loc, usage.generation)?;
                let verified =
                    verified.and_then(|(header, operation)| is_what(*loc, entry, number, &spaces, &header, operation));
                if let Err(error) = verified {
                    report.damage(loc.offset(), format!("{}: {error}", describe(&object.id, entry)));
                }
            }
        }
        let pieces = self.pieces_in(&(base..base + self.segments.segment_bytes));
        let _pinned = self.segments.pin();
        if self.segments.generation(usage.segment) != usage.generation {
            return Ok(());
        }
        for (object, role, loc) in pieces.into_iter().filter(|(.., loc)| inside(loc.offset())) {
            let verified = medium.verified(loc, usage.generation)?;
            let asked = Asked::piece(object, role);
            if let Err(error) = verified.and_then(|(header, operation)| asked.compare(loc, &header, operation)) {
                report.damage(loc.offset(), format!("{asked}: {error}"));
            }
        }
        if report.damaged == before {
            report.dead += wrong.len() as u64 - no_damage;
            return Ok(());
        }
        self.segments.note_damage(now.segment, now.generation, segments::DamageLevel::Part);
        Ok(())
    }
}

/// What the scrubber's thread has: a store as a snapshot has it, without threads of its own.
pub(crate) struct Scrubber {
    pub(crate) engine: Arc<Engine>,
    pub(crate) scrub: Arc<Scrub>,
    /// How long after opening it begins or goes on: a store has other work then.
    pub(crate) after: Duration,
}

impl Scrubber {
    /// The thread's life: one segment after another, round after round, until [`Scrub::stop`].
    pub(crate) fn run(&self) {
        let scrub = &*self.scrub;
        let mut pause = self.after;
        loop {
            let slept = Instant::now();
            while slept.elapsed() < pause {
                if !scrub.sleep(pause.saturating_sub(slept.elapsed()).min(Duration::from_secs(1))) {
                    return;
                }
            }
            let began = Instant::now();
            match self.round() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => tracing::warn!(%error, "scrubbing was put off"),
            }
            pause = ROUND_PAUSE.saturating_sub(began.elapsed());
        }
    }

    /// Goes on with a round, or begins one; false if it was ended.
    fn round(&self) -> Result<bool> {
        let (engine, scrub) = (&self.engine, &*self.scrub);
        if !scrub.pace(0) {
            return Ok(false);
        }
        let mut report = ScrubReport { damaged_superblocks: engine.scrub_superblocks(), ..ScrubReport::default() };
        if report.damaged_superblocks > 0 {
            tracing::error!(copies = report.damaged_superblocks, "superblock copies do not hold; others do");
        }
        engine.find_cold_ends()?;
        let first = scrub.next.load(Ordering::Relaxed);
        let bytes = |usages: &[Usage]| usages.iter().map(|usage| engine.scrubbed_end(usage)).sum::<u64>();
        let (before, left): (Vec<_>, Vec<_>) =
            engine.segments.in_use().into_iter().partition(|usage| usage.segment < first);
        let mut done = bytes(&before);
        scrub.total_bytes.store(done + bytes(&left), Ordering::Relaxed);
        scrub.running.store(true, Ordering::Relaxed);
        let mut goes_on = true;
        for usage in left {
            scrub.done_bytes.store(done, Ordering::Relaxed);
            scrub.next.store(usage.segment, Ordering::Relaxed);
            engine.note_scrubbed(scrub.place());
            // It may have been used again since the round began.
            let Some(usage) = engine.segments.usage(usage.segment) else { continue };
            let scrubbed = engine.scrub_segment(&usage, &mut report, &mut |bytes| {
                scrub.done_bytes.fetch_add(bytes, Ordering::Relaxed);
                scrub.read_bytes.fetch_add(bytes, Ordering::Relaxed);
                goes_on = scrub.pace(bytes);
                goes_on
            });
            engine.note_found(&report);
            (report.damaged, report.damage) = (0, Vec::new());
            if !goes_on {
                scrub.running.store(false, Ordering::Relaxed);
                return Ok(false);
            }
            if let Err(error) = scrubbed {
                tracing::warn!(segment = usage.segment, %error, "a segment was not scrubbed");
            }
            done += engine.scrubbed_end(&usage);
        }
        scrub.next.store(0, Ordering::Relaxed);
        scrub.rounds.fetch_add(1, Ordering::Relaxed);
        engine.note_scrubbed(scrub.place());
        scrub.done_bytes.store(done, Ordering::Relaxed);
        scrub.running.store(false, Ordering::Relaxed);
        tracing::info!(
            bytes = report.bytes,
            segments = report.segments,
            dead = report.dead,
            "a round of scrubbing has ended"
        );
        Ok(true)
    }
}

/// A segment as the medium has it, read in windows.
struct Medium<'a> {
    engine: &'a Engine,
    base: u64,
    end: u64,
    start: u64,
    len: u64,
    buffer: Option<SegmentBuffer>,
    /// Bytes read.
    read: u64,
}

impl Medium<'_> {
    /// The operation at a place, or that it does not hold.
    fn verified(&mut self, loc: Loc, generation: u32) -> Result<Result<(OpHeader, &[u8])>> {
        let damaged = |what: &str| Err(Error::Corrupt { offset: loc.offset(), what: what.into() });
        let (base, seed) = (self.base, self.engine.seed);
        let len = loc.span_bytes().min((base + self.end).saturating_sub(loc.offset()));
        let Some(bytes) = self.get(loc.offset() - base, len)? else {
            return Ok(damaged("it lies behind the segment's end"));
        };
        Ok(match OpHeader::decode(bytes, seed, generation, loc.offset()) {
            None => damaged("operation header checksum mismatch"),
            Some(header) if !verify_payload(&header, bytes) => damaged("payload checksum mismatch"),
            Some(header) => Ok((header, bytes)),
        })
    }

    /// Bytes of the segment; `None` past its end.
    fn get(&mut self, at: u64, len: u64) -> Result<Option<&[u8]>> {
        let block = u64::from(self.engine.device.geometry().block_bytes);
        if at + len > round_up(self.end, block) {
            return Ok(None);
        }
        if at < self.start || at + len > self.start + self.len {
            let start = at / block * block;
            let wanted = WINDOW_BYTES.max(round_up(at + len - start, block));
            let take = wanted.min(round_up(self.end, block) - start);
            if self.buffer.as_ref().is_none_or(|buffer| (buffer.len() as u64) < take) {
                let made = SegmentBuffer::new(take.max(WINDOW_BYTES) as usize);
                self.buffer = Some(made.map_err(|error| Error::io("allocating a buffer to scrub with", error))?);
            }
            let Some(buffer) = &mut self.buffer else { return Ok(None) };
            (self.start, self.len) = (start, take);
            let bytes = &mut buffer.whole_mut()[..take as usize];
            let read = self.engine.device.read_medium(self.base + start, bytes);
            read.map_err(|error| device_error(&format!("scrubbing at {}", self.base + start), error))?;
            self.read += take;
        }
        let from = (at - self.start) as usize;
        Ok(self
            .buffer
            .as_mut()
            .map(|buffer| &buffer.whole_mut()[from..from + len as usize])
            .map(|bytes| bytes as &[u8]))
    }
}

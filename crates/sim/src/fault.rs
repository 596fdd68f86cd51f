//! A device that loses power, fails and fills up, as its seed and its run say.
//!
//! write, discard → pending (readable) → sync → durable; a power cut keeps of what is pending whatever the mode and
//! the seed leave (see [`Survival`])
//!
//! Invariants:
//! 1. What a sync that returned `Ok` covered is never lost, discards included; what it did not cover may be.
//! 2. A zoned device takes writes at write pointers only, and resets whole zones only.
//! 3. Space that [`Device::reserve`] gave is there for writes, also after a power cut.
//! 4. What a failed sync covered is in doubt for good: a later sync does not make it durable.
//! 5. The same seed and the same calls give the same outcome and the same trace.

use esker_device::{Device, Error, Geometry, Result};
use parking_lot::Mutex;

pub use crate::image::{BLOCK_BYTES, Image, SECTOR_BYTES, Shape, Survival};
use crate::image::{Pending, PendingChange};

/// Which of its I/Os the device fails, counted from the next one as 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Power goes at this write, sync or discard; it and all that follow fail.
    pub power_cut_at: Option<u64>,
    /// This write fails, once.
    pub failed_write_at: Option<u64>,
    /// This sync fails, once.
    pub failed_sync_at: Option<u64>,
    /// This read fails.
    pub failed_read_at: Option<u64>,
    /// And so many reads after it.
    pub failed_reads_more: u64,
}

/// What the device has done since [`FaultyDevice::set_faults`]; the trace: since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Reads that failed because they were told to.
    pub failed_reads: u64,
    /// Writes and syncs that failed because they were told to.
    pub failed_changes: u64,
    /// Times that space was refused.
    pub refused_space: u64,
    /// Most zones that were partly written at once.
    pub open_zones: usize,
    /// A hash of every call and its arguments, in order but for reads.
    pub trace: u64,
}

struct State {
    current: Image,
    durable: Image,
    pending: Vec<Pending>,
    faults: Faults,
    changes: u64,
    power_off: bool,
    counts: Counts,
    /// Of reads, in no order: opening reads from several threads.
    read_trace: u64,
    rng: fastrand::Rng,
}

/// The device.
pub struct FaultyDevice {
    shape: Shape,
    state: Mutex<State>,
}

impl FaultyDevice {
    /// A device that holds `image`, all of it durable.
    pub fn new(image: Image, seed: u64) -> Self {
        let shape = image.shape;
        let state = State {
            current: image.clone(),
            durable: image,
            pending: Vec::new(),
            faults: Faults::default(),
            changes: 0,
            power_off: false,
            counts: Counts::default(),
            read_trace: 0,
            rng: fastrand::Rng::with_seed(seed),
        };
        Self { shape, state: Mutex::new(state) }
    }

    /// Sets what will fail, counted from now.
    pub fn set_faults(&self, faults: Faults) {
        let mut state = self.state.lock();
        state.faults = faults;
        state.changes = 0;
        let counts = state.counts;
        state.counts = Counts { trace: counts.trace, open_zones: counts.open_zones, ..Counts::default() };
    }

    /// What the device has done since [`FaultyDevice::set_faults`].
    pub fn counts(&self) -> Counts {
        let state = self.state.lock();
        Counts { trace: state.counts.trace ^ state.read_trace, ..state.counts }
    }

    /// Whether power has gone.
    pub fn power_is_off(&self) -> bool {
        self.state.lock().power_off
    }

    /// Cuts the power now.
    pub fn cut_power(&self) {
        self.state.lock().power_off = true;
    }

    /// Makes the reads after the next `spared` ones fail, so many of them.
    pub fn fail_reads(&self, spared: u64, failing: u64) {
        let mut state = self.state.lock();
        state.faults.failed_read_at = (failing > 0).then_some(state.counts.reads + spared + 1);
        state.faults.failed_reads_more = failing.saturating_sub(1);
    }

    /// Whether a write or a sync has failed, or power has gone: then the store may have stopped.
    pub fn has_failed(&self) -> bool {
        let state = self.state.lock();
        state.power_off || state.counts.failed_changes > 0
    }

    /// What kind of device it is, with the limit of space in force.
    pub fn shape(&self) -> Shape {
        self.state.lock().current.shape
    }

    /// Bytes that take space now.
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().current.used_bytes()
    }

    /// Changes how many bytes may be taken; those that are taken stay.
    pub fn set_space(&self, bytes: Option<u64>) {
        let mut state = self.state.lock();
        state.current.shape.space_bytes = bytes;
        state.durable.shape.space_bytes = bytes;
    }

    /// Flips one bit at rest, under whatever is open on the device.
    pub fn flip_bit(&self, at: usize, bit: u8) {
        let mut state = self.state.lock();
        state.current.flip_bit(at, bit);
        state.durable.flip_bit(at, bit);
    }

    /// Puts another content in place at rest, under whatever is open on the device: rot.
    pub fn replace(&self, image: Image) {
        let mut state = self.state.lock();
        for (at, (new, old)) in image.bytes.iter().zip(&state.current.bytes.clone()).enumerate() {
            if new != old {
                state.current.bytes[at] = *new;
                state.durable.bytes[at] = *new;
            }
        }
        state.current.rotten = true;
        state.durable.rotten = true;
    }

    /// Whether something has changed by itself.
    pub fn is_rotten(&self) -> bool {
        self.state.lock().current.rotten
    }

    /// What is on the device while power is on, pending writes included.
    pub fn image(&self) -> Image {
        self.state.lock().current.clone()
    }

    /// What is on the device after the power was cut now.
    pub fn image_after_power_cut(&self, survival: Survival) -> Image {
        let mut state = self.state.lock();
        let State { current, durable, pending, rng, .. } = &mut *state;
        let mut image = durable.clone();
        image.survive(pending, survival, rng);
        image.allocated.copy_from_slice(&current.allocated);
        image.allocate_content();
        image
    }

    fn failed(&self, what: &'static str, offset: u64, why: &str) -> Error {
        Error::Io { name: self.name(), what, offset, source: std::io::Error::other(why.to_owned()) }
    }

    fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.shape.len => Ok(()),
            _ => Err(Error::OutOfRange { name: self.name(), offset, len, device_len: self.shape.len }),
        }
    }

    fn check_aligned(&self, offset: u64, len: u64, unit: u64) -> Result<()> {
        if offset.is_multiple_of(unit) && len.is_multiple_of(unit) {
            return Ok(());
        }
        Err(Error::Unaligned { name: self.name(), offset, len, block_bytes: unit.min(u64::from(u32::MAX)) as u32 })
    }

    /// Each part of a write must begin at its zone's write pointer, and may not begin one zone too many.
    fn check_zones(&self, current: &Image, parts: &[(usize, usize)]) -> Result<()> {
        let Some(zone_bytes) = self.shape.zone_bytes else { return Ok(()) };
        let mut begun = 0;
        for (start, len) in parts {
            let (zone, within) = (*start as u64 / zone_bytes, *start as u64 % zone_bytes);
            let pointer = current.pointers[zone as usize];
            if within != pointer {
                let (offset, write_pointer) = (*start as u64, zone * zone_bytes + pointer);
                return Err(Error::NotSequential { name: self.name(), offset, write_pointer });
            }
            begun += usize::from(pointer == 0 && (*len as u64) < zone_bytes);
        }
        if begun > 0 && self.shape.open_zones_max.is_some_and(|max| current.open_zones() + begun > max) {
            return Err(self.failed("write", parts[0].0 as u64, "too many zones are open"));
        }
        Ok(())
    }

    /// A range cut at zone borders.
    fn parts(&self, offset: u64, len: u64) -> Vec<(usize, usize)> {
        let zone_bytes = self.shape.zone_bytes.unwrap_or(u64::MAX);
        let (mut at, end) = (offset, offset + len);
        let mut parts = Vec::new();
        while at < end {
            let next = end.min((at / zone_bytes + 1).saturating_mul(zone_bytes));
            parts.push((at as usize, (next - at) as usize));
            at = next;
        }
        parts
    }

    /// Whether the blocks of a range that take no space yet may be taken.
    fn check_space(&self, state: &mut State, offset: u64, len: u64) -> Result<()> {
        let Some(limit) = state.current.shape.space_bytes else { return Ok(()) };
        let range = offset as usize / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES as u64) as usize;
        let more = state.current.allocated[range].iter().filter(|taken| !**taken).count() * BLOCK_BYTES;
        if more == 0 || state.current.used_bytes() + more as u64 <= limit {
            return Ok(());
        }
        state.counts.refused_space += 1;
        Err(Error::NoSpace { name: self.name(), offset, len })
    }
}

impl State {
    fn trace(&mut self, what: u64, offset: u64, len: u64) {
        for word in [what, offset, len] {
            self.counts.trace = (self.counts.trace ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        }
    }

    fn trace_read(&mut self, offset: u64, len: u64) {
        let hash = (offset ^ len.rotate_left(40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.read_trace = self.read_trace.wrapping_add((hash ^ hash >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9));
    }

    /// Counts a change; true if power goes with it.
    fn change_cuts_power(&mut self) -> bool {
        self.changes += 1;
        if self.faults.power_cut_at == Some(self.changes) {
            self.power_off = true;
        }
        self.power_off
    }

    fn begin(&mut self, op: Pending) {
        self.current.apply(&op);
        self.pending.push(op);
    }

    /// Of a write that failed, any part may have reached the device: with zones a prefix, else any sector.
    fn begin_torn(&mut self, parts: &[(usize, usize)], data: &[u8], zoned: bool) {
        let base = parts.first().map_or(0, |(start, _)| *start);
        for (start, len) in parts {
            let data = &data[start - base..start - base + len];
            if zoned {
                let kept = self.rng.usize(0..=len / BLOCK_BYTES) * BLOCK_BYTES;
                if kept > 0 {
                    self.begin(Pending { start: *start, change: PendingChange::Write(data[..kept].to_vec()) });
                }
                if kept < *len {
                    return;
                }
                continue;
            }
            let mut torn = self.current.bytes[*start..start + len].to_vec();
            for at in (0..*len).step_by(SECTOR_BYTES) {
                if self.rng.bool() {
                    torn[at..at + SECTOR_BYTES].copy_from_slice(&data[at..at + SECTOR_BYTES]);
                }
            }
            self.begin(Pending { start: *start, change: PendingChange::Write(torn) });
        }
    }
}

impl Device for FaultyDevice {
    fn geometry(&self) -> Geometry {
        Geometry { block_bytes: BLOCK_BYTES as u32, len: self.shape.len, zone_bytes: self.shape.zone_bytes }
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut state = self.state.lock();
        state.counts.reads += 1;
        state.trace_read(offset, buffer.len() as u64);
        self.check_range(offset, buffer.len() as u64)?;
        if state.power_off {
            return Err(self.failed("read", offset, "power is off"));
        }
        let (reads, more) = (state.counts.reads, state.faults.failed_reads_more);
        if state.faults.failed_read_at.is_some_and(|at| (at..=at + more).contains(&reads)) {
            state.counts.failed_reads += 1;
            return Err(self.failed("read", offset, "injected"));
        }
        let start = offset as usize;
        buffer.copy_from_slice(&state.current.bytes[start..start + buffer.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        state.counts.writes += 1;
        state.counts.written_bytes += data.len() as u64;
        let len = data.len() as u64;
        state.trace(2, offset, len);
        self.check_range(offset, len)?;
        self.check_aligned(offset, len, BLOCK_BYTES as u64)?;
        if state.power_off {
            return Err(self.failed("write", offset, "power is off"));
        }
        let parts = self.parts(offset, len);
        self.check_zones(&state.current, &parts)?;
        self.check_space(&mut state, offset, len)?;
        let cut = state.change_cuts_power();
        if cut || state.faults.failed_write_at == Some(state.counts.writes) {
            state.counts.failed_changes += 1;
            state.begin_torn(&parts, data, self.shape.zone_bytes.is_some());
            return Err(self.failed("write", offset, if cut { "power is off" } else { "injected" }));
        }
        let base = offset as usize;
        for (start, len) in parts {
            let data = data[start - base..start - base + len].to_vec();
            state.begin(Pending { start, change: PendingChange::Write(data) });
        }
        state.counts.open_zones = state.counts.open_zones.max(state.current.open_zones());
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.counts.syncs += 1;
        state.trace(3, 0, 0);
        if state.power_off || state.change_cuts_power() {
            return Err(self.failed("sync", 0, "power is off"));
        }
        let failed = state.faults.failed_sync_at == Some(state.counts.syncs);
        let State { durable, pending, rng, counts, .. } = &mut *state;
        if failed {
            counts.failed_changes += 1;
            // In zones the order keeps what follows in doubt as well; elsewhere each operation is for itself: done,
            // or forgotten, so that no later sync covers it.
            if self.shape.zone_bytes.is_none() {
                pending.retain(|op| {
                    let fate = rng.u8(0..3);
                    if fate == 1 {
                        durable.apply(op);
                    }
                    fate == 2
                });
            }
            return Err(self.failed("sync", 0, "injected"));
        }
        for op in pending.drain(..) {
            durable.apply(&op);
        }
        Ok(())
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.trace(4, offset, len);
        self.check_range(offset, len)?;
        if state.power_off {
            return Err(self.failed("reserve", offset, "power is off"));
        }
        self.check_space(&mut state, offset, len)?;
        state.current.allocate(offset as usize, len as usize, true);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.counts.discards += 1;
        state.trace(5, offset, len);
        self.check_range(offset, len)?;
        self.check_aligned(offset, len, self.shape.zone_bytes.unwrap_or(BLOCK_BYTES as u64))?;
        if state.power_off {
            return Err(self.failed("discard", offset, "power is off"));
        }
        let cut = state.change_cuts_power();
        for (start, len) in self.parts(offset, len) {
            state.begin(Pending { start, change: PendingChange::Discard(len) });
        }
        if cut { Err(self.failed("discard", offset, "power is off")) } else { Ok(()) }
    }

    fn name(&self) -> String {
        "simulated device".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = BLOCK_BYTES as u64;

    fn device(shape: Shape) -> FaultyDevice {
        FaultyDevice::new(Image::blank(shape), 1)
    }

    fn zoned(open_zones_max: Option<usize>) -> FaultyDevice {
        device(Shape { zone_bytes: Some(4 * BLOCK), open_zones_max, ..Shape::plain(1 << 17) })
    }

    fn fill(bytes: &[u8]) -> Option<u8> {
        bytes.iter().all(|byte| *byte == bytes[0]).then_some(bytes[0])
    }

    #[test]
    fn only_what_was_synced_is_sure_to_survive() {
        let device = device(Shape::plain(1 << 16));
        device.write(0, &[1; 4096]).unwrap();
        device.sync().unwrap();
        device.write(4096, &[2; 8192]).unwrap();
        let none = device.image_after_power_cut(Survival::None).bytes;
        assert_eq!((fill(&none[..4096]), fill(&none[4096..])), (Some(1), Some(0)));
        let all = device.image_after_power_cut(Survival::All).bytes;
        assert_eq!(fill(&all[4096..12288]), Some(2));
        let some = device.image_after_power_cut(Survival::Sectors).bytes;
        let kept = some[4096..12288].chunks(SECTOR_BYTES).filter(|sector| sector[0] == 2).count();
        assert!((1..16).contains(&kept), "{kept} of 16 sectors");
    }

    #[test]
    fn power_goes_at_the_io_that_was_asked_for() {
        let device = device(Shape::plain(1 << 16));
        device.set_faults(Faults { power_cut_at: Some(2), ..Faults::default() });
        device.write(0, &[1; 4096]).unwrap();
        assert!(device.sync().is_err());
        assert!(device.power_is_off());
        assert!(device.write(0, &[1; 4096]).is_err());
        assert!(device.read(0, &mut [0; 1]).is_err());
    }

    #[test]
    fn a_discard_that_was_not_synced_may_be_undone_but_not_before_what_came_ahead_of_it() {
        let device = device(Shape::plain(1 << 16));
        device.write(0, &[1; 8192]).unwrap();
        device.sync().unwrap();
        device.write(8192, &[2; 4096]).unwrap();
        device.discard(0, 8192).unwrap();
        let mut now = [9; 8192];
        device.read(0, &mut now).unwrap();
        assert_eq!(fill(&now), Some(0));
        assert_eq!(fill(&device.image_after_power_cut(Survival::None).bytes[..8192]), Some(1));
        assert_eq!(fill(&device.image_after_power_cut(Survival::All).bytes[..8192]), Some(0));
        let (mut half, mut undone) = (0, 0);
        for _ in 0..100 {
            let image = device.image_after_power_cut(Survival::Prefix).bytes;
            half += usize::from(fill(&image[..8192]).is_none());
            undone += usize::from(fill(&image[..8192]) == Some(1));
            assert!(fill(&image[..8192]) == Some(1) || fill(&image[8192..12288]) == Some(2), "out of order");
        }
        assert!(half > 0 && undone > 0, "{half} half done, {undone} undone");
        device.sync().unwrap();
        assert_eq!(fill(&device.image_after_power_cut(Survival::None).bytes[..8192]), Some(0));
    }

    #[test]
    fn a_zone_takes_writes_at_its_pointer_and_resets_whole() {
        let device = zoned(None);
        device.write(0, &[1; 4096]).unwrap();
        assert!(matches!(device.write(0, &[1; 4096]), Err(Error::NotSequential { write_pointer: 4096, .. })));
        assert!(matches!(device.write(8192, &[1; 4096]), Err(Error::NotSequential { .. })));
        // Into the next zone.
        device.write(4096, &[1; 16384]).unwrap();
        assert!(matches!(device.discard(0, 4096), Err(Error::Unaligned { .. })));
        device.discard(0, 4 * BLOCK).unwrap();
        device.write(0, &[2; 4096]).unwrap();
        assert!(device.write(4 * BLOCK, &[2; 4096]).is_err());
    }

    #[test]
    fn a_zone_keeps_a_prefix_and_a_lost_reset_loses_what_followed() {
        let device = zoned(None);
        device.write(0, &[1; 8192]).unwrap();
        device.sync().unwrap();
        device.discard(0, 4 * BLOCK).unwrap();
        device.write(0, &[2; 4096]).unwrap();
        device.write(4096, &[3; 8192]).unwrap();
        let (mut old, mut partly) = (0, 0);
        for survival in [Survival::Prefix, Survival::Writes, Survival::Sectors].repeat(50) {
            let image = device.image_after_power_cut(survival);
            let blocks: Vec<_> = image.bytes[..4 * BLOCK_BYTES].chunks(BLOCK_BYTES).map(|b| fill(b).unwrap()).collect();
            let written = image.pointers[0] as usize / BLOCK_BYTES;
            if blocks[0] == 1 {
                old += 1;
                assert_eq!((blocks, written), (vec![1, 1, 0, 0], 2));
            } else {
                partly += usize::from(written == 2);
                let expected: Vec<_> = [2, 3, 3].into_iter().take(written).chain([0; 4]).take(4).collect();
                assert_eq!(blocks, expected);
            }
        }
        assert!(old > 0 && partly > 0);
    }

    #[test]
    fn only_so_many_zones_may_be_open() {
        let device = zoned(Some(2));
        device.write(0, &[1; 4096]).unwrap();
        device.write(4 * BLOCK, &[1; 4096]).unwrap();
        assert!(device.write(8 * BLOCK, &[1; 4096]).is_err());
        // A zone that is written whole at once was never open; one that fills up is not any more.
        device.write(8 * BLOCK, &[1; 16384]).unwrap();
        device.write(4096, &[1; 12288]).unwrap();
        device.write(12 * BLOCK, &[1; 4096]).unwrap();
        assert_eq!(device.counts().open_zones, 2);
        device.discard(12 * BLOCK, 4 * BLOCK).unwrap();
        device.write(16 * BLOCK, &[1; 4096]).unwrap();
    }

    #[test]
    fn space_that_is_taken_is_refused_until_it_is_discarded() {
        let device = device(Shape { space_bytes: Some(4 * BLOCK), ..Shape::plain(1 << 16) });
        device.reserve(0, 2 * BLOCK).unwrap();
        device.write(2 * BLOCK, &[1; 8192]).unwrap();
        assert!(matches!(device.write(4 * BLOCK, &[1; 4096]), Err(Error::NoSpace { .. })));
        assert!(matches!(device.reserve(3 * BLOCK, 2 * BLOCK), Err(Error::NoSpace { .. })));
        device.set_space(Some(0));
        device.write(0, &[1; 8192]).unwrap();
        device.set_space(Some(4 * BLOCK));
        device.discard(0, BLOCK).unwrap();
        device.write(4 * BLOCK, &[1; 4096]).unwrap();
        assert_eq!((device.used_bytes(), device.counts().refused_space), (4 * BLOCK, 2));
        assert_eq!(device.image_after_power_cut(Survival::None).used_bytes(), 4 * BLOCK, "reserved space stays");
    }

    #[test]
    fn a_later_sync_does_not_mend_a_failed_one() {
        let mut lost = 0;
        for seed in 0..20 {
            let device = FaultyDevice::new(Image::blank(Shape::plain(1 << 16)), seed);
            device.set_faults(Faults { failed_sync_at: Some(1), ..Faults::default() });
            device.write(0, &[1; 4096]).unwrap();
            assert!(device.sync().is_err());
            device.sync().unwrap();
            lost += usize::from(device.image_after_power_cut(Survival::All).bytes[0] == 0);
        }
        assert!((1..20).contains(&lost), "lost {lost} times of 20");
    }

    #[test]
    fn a_flipped_bit_is_there_at_once_and_for_good() {
        let device = device(Shape::plain(1 << 16));
        device.flip_bit(5000, 3);
        let mut byte = [0];
        device.read(5000, &mut byte).unwrap();
        assert_eq!((byte[0], device.image_after_power_cut(Survival::None).bytes[5000]), (8, 8));
    }
}

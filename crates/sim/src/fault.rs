//! A device that loses power and fails, as its seed says.
//!
//! write → pending (readable) → sync → durable; a power cut keeps of what is pending whatever the mode and the seed leave
//!
//! Invariants:
//! 1. What a sync that returned `Ok` covered is never lost; what it did not cover may be, at the grain of a sector.
//! 2. The same seed and the same calls give the same outcome and the same trace.

use esker_device::{Device, Error, Geometry, Result};
use parking_lot::Mutex;

/// Bytes that a power cut keeps or loses together.
pub const SECTOR_BYTES: usize = 512;
const BLOCK_BYTES: u32 = 4096;

/// What a power cut leaves of writes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// Nothing.
    None,
    /// Everything.
    All,
    /// The first writes, the last of them torn.
    Prefix,
    /// Some writes, whole, in no order.
    Writes,
    /// Some sectors, in no order.
    Sectors,
}

/// Which of its I/Os the device fails, counted from the next one as 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Power goes at this write, sync or discard; it and all that follow fail.
    pub power_cut_at: Option<u64>,
    /// This write fails, once.
    pub failed_write_at: Option<u64>,
    /// This sync fails, once.
    pub failed_sync_at: Option<u64>,
    /// This read fails, once.
    pub failed_read_at: Option<u64>,
}

/// What the device has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// A hash of every call and its arguments, in order.
    pub trace: u64,
}

struct State {
    current: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<(usize, usize)>,
    faults: Faults,
    changes: u64,
    power_off: bool,
    counts: Counts,
    rng: fastrand::Rng,
}

/// The device.
pub struct FaultyDevice {
    len: u64,
    state: Mutex<State>,
}

impl FaultyDevice {
    /// A device that holds `image`, all of it durable.
    pub fn new(image: Vec<u8>, seed: u64) -> Self {
        let state = State {
            current: image.clone(),
            durable: image,
            pending: Vec::new(),
            faults: Faults::default(),
            changes: 0,
            power_off: false,
            counts: Counts::default(),
            rng: fastrand::Rng::with_seed(seed),
        };
        Self { len: state.current.len() as u64, state: Mutex::new(state) }
    }

    /// Sets what will fail, counted from now.
    pub fn set_faults(&self, faults: Faults) {
        let mut state = self.state.lock();
        state.faults = faults;
        state.changes = 0;
        let counts = state.counts;
        state.counts = Counts { trace: counts.trace, ..Counts::default() };
    }

    /// What the device has done since [`FaultyDevice::set_faults`].
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// Whether power has gone.
    pub fn power_is_off(&self) -> bool {
        self.state.lock().power_off
    }

    /// What is on the device after the power was cut now.
    pub fn image_after_power_cut(&self, survival: Survival) -> Vec<u8> {
        let mut state = self.state.lock();
        let State { current, durable, pending, rng, .. } = &mut *state;
        let mut image = durable.clone();
        let kept_writes = rng.usize(0..=pending.len());
        for (number, (start, len)) in pending.iter().enumerate() {
            let whole = match survival {
                Survival::None => continue,
                Survival::All => true,
                Survival::Prefix if number < kept_writes => true,
                Survival::Prefix if number > kept_writes => continue,
                Survival::Prefix | Survival::Sectors => false,
                Survival::Writes => {
                    if rng.bool() {
                        continue;
                    }
                    true
                }
            };
            for sector in (*start..start + len).step_by(SECTOR_BYTES) {
                if whole || rng.bool() {
                    image[sector..sector + SECTOR_BYTES].copy_from_slice(&current[sector..sector + SECTOR_BYTES]);
                }
            }
        }
        image
    }

    fn failed(&self, what: &'static str, offset: u64, why: &str) -> Error {
        Error::Io { name: self.name(), what, offset, source: std::io::Error::other(why.to_owned()) }
    }
}

impl State {
    fn trace(&mut self, what: u64, offset: u64, len: u64) {
        for word in [what, offset, len] {
            self.counts.trace = (self.counts.trace ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        }
    }

    /// Counts a change; true if power goes with it.
    fn change_cuts_power(&mut self) -> bool {
        self.changes += 1;
        if self.faults.power_cut_at == Some(self.changes) {
            self.power_off = true;
        }
        self.power_off
    }
}

impl Device for FaultyDevice {
    fn geometry(&self) -> Geometry {
        Geometry { block_bytes: BLOCK_BYTES, len: self.len, zone_bytes: None }
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut state = self.state.lock();
        state.counts.reads += 1;
        state.trace(1, offset, buffer.len() as u64);
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.len);
        let Some(end) = end else {
            let len = buffer.len() as u64;
            return Err(Error::OutOfRange { name: self.name(), offset, len, device_len: self.len });
        };
        if state.power_off {
            return Err(self.failed("read", offset, "power is off"));
        }
        if state.faults.failed_read_at == Some(state.counts.reads) {
            return Err(self.failed("read", offset, "injected"));
        }
        buffer.copy_from_slice(&state.current[offset as usize..end as usize]);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        state.counts.writes += 1;
        state.counts.written_bytes += data.len() as u64;
        state.trace(2, offset, data.len() as u64);
        let len = data.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::OutOfRange { name: self.name(), offset, len, device_len: self.len });
        }
        if !offset.is_multiple_of(u64::from(BLOCK_BYTES)) || !len.is_multiple_of(u64::from(BLOCK_BYTES)) {
            return Err(Error::Unaligned { name: self.name(), offset, len, block_bytes: BLOCK_BYTES });
        }
        if state.power_off {
            return Err(self.failed("write", offset, "power is off"));
        }
        let cut = state.change_cuts_power();
        let failed = state.faults.failed_write_at == Some(state.counts.writes);
        let start = offset as usize;
        if cut || failed {
            // Of a write that failed, any sector may have reached the device.
            for at in (0..data.len()).step_by(SECTOR_BYTES) {
                if state.rng.bool() {
                    state.current[start + at..start + at + SECTOR_BYTES].copy_from_slice(&data[at..at + SECTOR_BYTES]);
                }
            }
            state.pending.push((start, data.len()));
            return Err(self.failed("write", offset, if cut { "power is off" } else { "injected" }));
        }
        state.current[start..start + data.len()].copy_from_slice(data);
        state.pending.push((start, data.len()));
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.counts.syncs += 1;
        state.trace(3, 0, 0);
        if state.power_off || state.change_cuts_power() {
            return Err(self.failed("sync", 0, "power is off"));
        }
        if state.faults.failed_sync_at == Some(state.counts.syncs) {
            return Err(self.failed("sync", 0, "injected"));
        }
        let State { current, durable, pending, .. } = &mut *state;
        for (start, len) in pending.drain(..) {
            durable[start..start + len].copy_from_slice(&current[start..start + len]);
        }
        Ok(())
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.trace(4, offset, len);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.trace(5, offset, len);
        if state.power_off || state.change_cuts_power() {
            return Err(self.failed("discard", offset, "power is off"));
        }
        let (start, len) = (offset as usize, len as usize);
        state.current[start..start + len].fill(0);
        state.pending.push((start, len));
        Ok(())
    }

    fn name(&self) -> String {
        "simulated device".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_synced_is_sure_to_survive() {
        let device = FaultyDevice::new(vec![0; 1 << 16], 1);
        device.write(0, &[1; 4096]).unwrap();
        device.sync().unwrap();
        device.write(4096, &[2; 8192]).unwrap();
        let none = device.image_after_power_cut(Survival::None);
        assert!(none[..4096].iter().all(|byte| *byte == 1) && none[4096..].iter().all(|byte| *byte == 0));
        let all = device.image_after_power_cut(Survival::All);
        assert!(all[4096..12288].iter().all(|byte| *byte == 2));
        let some = device.image_after_power_cut(Survival::Sectors);
        let kept = some[4096..12288].chunks(SECTOR_BYTES).filter(|sector| sector[0] == 2).count();
        assert!((1..16).contains(&kept), "{kept} of 16 sectors");
    }

    #[test]
    fn power_goes_at_the_io_that_was_asked_for() {
        let device = FaultyDevice::new(vec![0; 1 << 16], 1);
        device.set_faults(Faults { power_cut_at: Some(2), ..Faults::default() });
        device.write(0, &[1; 4096]).unwrap();
        assert!(device.sync().is_err());
        assert!(device.power_is_off());
        assert!(device.write(0, &[1; 4096]).is_err());
        assert!(device.read(0, &mut [0; 1]).is_err());
    }
}

//! A device whose syncs take a chosen time, and are counted: for measurements.
//!
//! write, read → the device below · sync → its own, or a sleep in its place
//!
//! Invariant: with [`Pace::Own`] everything reaches the device below. With another pace no sync does, so that one takes
//! what it is told to and no more: nothing is durable then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::{Device, Geometry, ReadStream, Result, Whereabouts};

/// How long a sync takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// What the device below needs.
    Own,
    /// Each takes so long.
    Takes(Duration),
    /// Each takes `takes`, and begins no sooner than a second's `per_second`-th part after the last one began: a rented
    /// volume that is sold by its operations.
    Limited {
        /// Syncs per second, from 1.
        per_second: u64,
        /// Time of one.
        takes: Duration,
    },
}

impl Pace {
    /// Least time from sync to sync, where the device below does not say.
    pub fn cycle(self) -> Option<Duration> {
        match self {
            Self::Own => None,
            Self::Takes(takes) => Some(takes),
            Self::Limited { per_second, takes } => Some(takes.max(apart(per_second))),
        }
    }
}

fn apart(per_second: u64) -> Duration {
    Duration::from_nanos(1_000_000_000 / per_second.max(1))
}

/// A device at a pace.
#[derive(Debug)]
pub struct SlowDevice<D> {
    device: D,
    pace: Pace,
    /// When the last sync began, where syncs are limited.
    began: Mutex<Option<Instant>>,
    syncs: AtomicU64,
    sync_ns: AtomicU64,
}

impl<D> SlowDevice<D> {
    /// `device` with syncs at `pace`.
    pub fn new(device: D, pace: Pace) -> Self {
        Self { device, pace, began: Mutex::default(), syncs: AtomicU64::new(0), sync_ns: AtomicU64::new(0) }
    }

    /// Number of syncs so far.
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Mean time that a sync took; zero before the first.
    pub fn mean_sync(&self) -> Duration {
        Duration::from_nanos(self.sync_ns.load(Ordering::Relaxed) / self.syncs().max(1))
    }
}

impl<D: Device> Device for SlowDevice<D> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.device.read(offset, buffer)
    }

    fn read_medium(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.device.read_medium(offset, buffer)
    }

    fn read_value(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.device.read_value(offset, buffer)
    }

    fn read_stream(&self, reads: &mut dyn ReadStream) {
        self.device.read_stream(reads);
    }

    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> bool {
        self.device.read_now(offset, buffer)
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.device.will_read(offset, len);
    }

    fn whereabouts(&self) -> Whereabouts {
        self.device.whereabouts()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.device.write(offset, data)
    }

    fn sync(&self) -> Result<()> {
        let now = Instant::now();
        match self.pace {
            Pace::Own => self.device.sync()?,
            Pace::Takes(takes) => std::thread::sleep(takes),
            Pace::Limited { per_second, takes } => {
                let mut began = self.began.lock();
                let begin = began.map_or(now, |last| now.max(last + apart(per_second)));
                *began = Some(begin);
                drop(began);
                std::thread::sleep((begin + takes).saturating_duration_since(Instant::now()));
            }
        }
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_ns.fetch_add(now.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        self.device.reserve(offset, len)
    }

    fn prefill(&self, offset: u64, len: u64) -> Result<()> {
        match self.pace {
            Pace::Own => self.device.prefill(offset, len),
            // It helps the device's own syncs, of which there are none; its writes would be in the way of what is
            // measured.
            Pace::Takes(_) | Pace::Limited { .. } => Ok(()),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.device.discard(offset, len)
    }

    fn refresh_len(&self) -> Result<u64> {
        self.device.refresh_len()
    }

    fn name(&self) -> String {
        self.device.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn syncs_come_no_faster_than_the_pace() {
        let check = |pace: Pace, syncs: u32| {
            let device = SlowDevice::new(MemoryDevice::new(1 << 20), pace);
            let began = Instant::now();
            (0..syncs).for_each(|_| device.sync().unwrap());
            assert_eq!(device.syncs(), u64::from(syncs));
            (began.elapsed(), device.mean_sync())
        };
        let ms = Duration::from_millis;
        let (took, mean) = check(Pace::Takes(ms(3)), 5);
        assert!(took >= ms(15) && mean >= ms(3), "{took:?}, {mean:?}");
        // The first begins at once, each other 10 ms after the one before it, and the last takes its own time.
        let (took, _) = check(Pace::Limited { per_second: 100, takes: ms(1) }, 4);
        assert!(took >= ms(31), "{took:?}");
        let (took, _) = check(Pace::Own, 1_000);
        assert!(took < ms(1_000), "{took:?}");
    }

    #[test]
    fn what_is_written_is_in_the_device_below() {
        let device = SlowDevice::new(MemoryDevice::new(1 << 20), Pace::Takes(Duration::ZERO));
        device.write(4096, &[7; 4096]).unwrap();
        let mut read = [0; 4];
        device.device.read(4096, &mut read).unwrap();
        assert_eq!((read, device.geometry().len), ([7; 4], 1 << 20));
    }
}

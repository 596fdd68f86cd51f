//! A device in memory, optionally zoned.
//!
//! Invariant: memory is taken only for what was written (in chunks of 64 KiB), so a long device costs nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::file::{check_alignment, check_range};
use crate::{Device, Error, Geometry, Result};

const CHUNK_BYTES: u64 = 64 << 10;
const BLOCK_BYTES: u32 = 4096;

/// A device that forgets everything when it is dropped. Every write is as durable as it gets at once.
#[derive(Debug)]
pub struct MemoryDevice {
    len: AtomicU64,
    /// What the length becomes when [`Device::refresh_len`] looks.
    longer: AtomicU64,
    zone_bytes: Option<u64>,
    state: RwLock<State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    chunks: BTreeMap<u64, Box<[u8]>>,
    /// Write pointers of zones, as offsets in the zone; absent means 0.
    written: BTreeMap<u64, u64>,
}

impl MemoryDevice {
    /// A device of `len` bytes of zeros, a multiple of 4,096.
    pub fn new(len: u64) -> Self {
        Self::with(len - len % u64::from(BLOCK_BYTES), None, State::default())
    }

    /// A device of zones of `zone_bytes` each, which takes writes only at their write pointers.
    pub fn zoned(len: u64, zone_bytes: u64) -> Self {
        assert!(zone_bytes >= u64::from(BLOCK_BYTES) && zone_bytes.is_multiple_of(u64::from(BLOCK_BYTES)));
        Self::with(len - len % zone_bytes, Some(zone_bytes), State::default())
    }

    fn with(len: u64, zone_bytes: Option<u64>, state: State) -> Self {
        Self { len: AtomicU64::new(len), longer: AtomicU64::new(len), zone_bytes, state: RwLock::new(state) }
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Makes the device `len` bytes long, in whole blocks or zones, as soon as [`Device::refresh_len`] looks; a length
    /// that is not above the present one changes nothing.
    pub fn lengthen(&self, len: u64) {
        let len = len - len % self.zone_bytes.unwrap_or(u64::from(BLOCK_BYTES));
        self.longer.fetch_max(len, Ordering::AcqRel);
    }

    /// A device that holds `image`.
    pub fn from_image(image: &[u8]) -> Self {
        let device = Self::new(image.len() as u64);
        for (number, chunk) in image[..device.len() as usize].chunks(CHUNK_BYTES as usize).enumerate() {
            if chunk.iter().any(|byte| *byte != 0) {
                device.state.write().put(number as u64 * CHUNK_BYTES, chunk);
            }
        }
        device
    }

    /// A device of its own with the same content and the same write pointers.
    pub fn snapshot(&self) -> Self {
        Self::with(self.len(), self.zone_bytes, self.state.read().clone())
    }

    /// A copy of everything on the device, `len` bytes.
    pub fn image(&self) -> Vec<u8> {
        let mut image = vec![0; self.len() as usize];
        self.get(0, &mut image);
        image
    }

    /// Bytes of memory that the content takes.
    pub fn memory_bytes(&self) -> u64 {
        self.state.read().chunks.len() as u64 * CHUNK_BYTES
    }

    fn get(&self, offset: u64, buffer: &mut [u8]) {
        let state = self.state.read();
        each_chunk(offset, buffer.len(), |chunk, start, range| {
            let part = &mut buffer[range];
            match state.chunks.get(&chunk) {
                Some(bytes) => part.copy_from_slice(&bytes[start..start + part.len()]),
                None => part.fill(0),
            }
        });
    }
}

impl State {
    fn put(&mut self, offset: u64, data: &[u8]) {
        each_chunk(offset, data.len(), |chunk, start, range| {
            let bytes = self.chunks.entry(chunk).or_insert_with(|| vec![0; CHUNK_BYTES as usize].into_boxed_slice());
            let part = &data[range];
            bytes[start..start + part.len()].copy_from_slice(part);
        });
    }

    /// Moves the write pointers of all zones in the range, or of none: then the offset that was refused and the
    /// pointer.
    fn advance(&mut self, offset: u64, len: u64, zone_bytes: u64) -> std::result::Result<(), (u64, u64)> {
        let mut moved = Vec::new();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let zone = at / zone_bytes;
            let pointer = self.written.get(&zone).copied().unwrap_or(0);
            if at % zone_bytes != pointer {
                return Err((at, zone * zone_bytes + pointer));
            }
            let next = end.min((zone + 1) * zone_bytes);
            moved.push((zone, pointer + next - at));
            at = next;
        }
        self.written.extend(moved);
        Ok(())
    }
}

/// Cuts a range of the device at chunk borders: chunk number, offset in the chunk, range in the caller's buffer.
fn each_chunk(offset: u64, len: usize, mut f: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut at = 0;
    while at < len {
        let place = offset + at as u64;
        let start = (place % CHUNK_BYTES) as usize;
        let take = (CHUNK_BYTES as usize - start).min(len - at);
        f(place / CHUNK_BYTES, start, at..at + take);
        at += take;
    }
}

impl Device for MemoryDevice {
    fn geometry(&self) -> Geometry {
        Geometry { block_bytes: BLOCK_BYTES, len: self.len(), zone_bytes: self.zone_bytes }
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        check_range(self, self.len(), offset, buffer.len() as u64)?;
        self.get(offset, buffer);
        Ok(())
    }

    fn read_now(&self, offset: u64, buffer: &mut [u8]) -> bool {
        self.read(offset, buffer).is_ok()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        check_range(self, self.len(), offset, data.len() as u64)?;
        check_alignment(self, offset, data.len() as u64)?;
        // One lock over pointer and content: two writers cannot both find the pointer where it is.
        let mut state = self.state.write();
        if let Some(zone_bytes) = self.zone_bytes {
            state
                .advance(offset, data.len() as u64, zone_bytes)
                .map_err(|(offset, write_pointer)| Error::NotSequential { name: self.name(), offset, write_pointer })?;
        }
        state.put(offset, data);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        check_range(self, self.len(), offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range(self, self.len(), offset, len)?;
        let zone_bytes = self.zone_bytes.unwrap_or(u64::from(BLOCK_BYTES));
        if !offset.is_multiple_of(zone_bytes) || !len.is_multiple_of(zone_bytes) {
            let block_bytes = zone_bytes.min(u64::from(u32::MAX)) as u32;
            return Err(Error::Unaligned { name: self.name(), offset, len, block_bytes });
        }
        let mut state = self.state.write();
        if self.zone_bytes.is_some() {
            state.written.retain(|zone, _| !(offset..offset + len).contains(&(zone * zone_bytes)));
        }
        each_chunk(offset, len as usize, |chunk, start, range| {
            if range.len() == CHUNK_BYTES as usize {
                state.chunks.remove(&chunk);
            } else if let Some(bytes) = state.chunks.get_mut(&chunk) {
                bytes[start..start + range.len()].fill(0);
            }
        });
        Ok(())
    }

    fn refresh_len(&self) -> Result<u64> {
        let len = self.longer.load(Ordering::Acquire);
        Ok(self.len.fetch_max(len, Ordering::AcqRel).max(len))
    }

    fn name(&self) -> String {
        "memory".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_the_rest_is_zeros() {
        let device = MemoryDevice::new(1 << 20);
        device.write(61_440, &[7; 8192]).unwrap();
        let mut buffer = vec![1; 16384];
        device.read(57_344, &mut buffer).unwrap();
        assert!(buffer[..4096].iter().chain(&buffer[12288..]).all(|byte| *byte == 0));
        assert!(buffer[4096..12288].iter().all(|byte| *byte == 7));
        device.discard(61_440, 4096).unwrap();
        device.read(61_440, &mut buffer[..8192]).unwrap();
        assert!(buffer[..4096].iter().all(|byte| *byte == 0) && buffer[4096..8192].iter().all(|byte| *byte == 7));
        assert_eq!(MemoryDevice::from_image(&device.image()).image(), device.image());
    }

    #[test]
    fn bad_places_are_refused() {
        let device = MemoryDevice::new(1 << 20);
        assert!(matches!(device.write(1 << 20, &[0; 4096]), Err(Error::OutOfRange { .. })));
        assert!(matches!(device.write(u64::MAX - 4095, &[0; 4096]), Err(Error::OutOfRange { .. })));
        assert!(matches!(device.write(512, &[0; 4096]), Err(Error::Unaligned { .. })));
        assert!(matches!(device.read((1 << 20) - 1, &mut [0; 2]), Err(Error::OutOfRange { .. })));
    }

    #[test]
    fn a_zone_takes_writes_only_at_its_write_pointer() {
        let device = MemoryDevice::zoned(1 << 20, 1 << 16);
        device.write(0, &[1; 4096]).unwrap();
        assert!(matches!(device.write(0, &[1; 4096]), Err(Error::NotSequential { write_pointer: 4096, .. })));
        assert!(matches!(device.write(8192, &[1; 4096]), Err(Error::NotSequential { .. })));
        device.write(4096, &[1; 4096]).unwrap();
        device.discard(0, 1 << 16).unwrap();
        device.write(0, &[2; 4096]).unwrap();
        assert!(matches!(device.discard(4096, 4096), Err(Error::Unaligned { .. })));
    }

    #[test]
    fn a_write_that_one_of_its_zones_refuses_changes_nothing() {
        let device = MemoryDevice::zoned(1 << 20, 1 << 16);
        device.write(1 << 16, &[1; 4096]).unwrap();
        let before = device.image();
        let refused = device.write(0, &[2; (1 << 16) + 4096]);
        assert!(matches!(refused, Err(Error::NotSequential { offset: 65_536, write_pointer: 69_632, .. })));
        assert_eq!(device.image(), before);
        device.write(0, &[3; 1 << 16]).unwrap();
        device.write((1 << 16) + 4096, &[4; 1 << 16]).unwrap();
        assert!(device.image()[(1 << 16) + 4096..2 * (1 << 16) + 4096].iter().all(|byte| *byte == 4));
    }

    #[test]
    fn a_snapshot_goes_its_own_way() {
        let device = MemoryDevice::zoned(1 << 20, 1 << 16);
        device.write(0, &[1; 4096]).unwrap();
        let snapshot = device.snapshot();
        device.write(4096, &[2; 4096]).unwrap();
        snapshot.write(4096, &[3; 4096]).unwrap();
        assert_eq!((device.image()[4096], snapshot.image()[4096], snapshot.image()[0]), (2, 3, 1));
    }

    #[test]
    fn a_long_device_takes_no_memory_for_what_was_not_written() {
        let device = MemoryDevice::new(1 << 50);
        device.write((1 << 50) - 4096, &[1; 4096]).unwrap();
        assert_eq!(device.memory_bytes(), CHUNK_BYTES);
        let image = [vec![0; 1 << 20], vec![1; 4096]].concat();
        assert_eq!(MemoryDevice::from_image(&image).memory_bytes(), CHUNK_BYTES);
        assert_eq!(MemoryDevice::from_image(&image).image(), image);
    }
}

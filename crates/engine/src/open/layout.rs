//! Laying out an empty store.
//!
//! options checked against the device → old heads cleared → superblocks → synced
//!
//! Invariant: what stood on the device before is never taken for a part of the new store.

use esker_device::Device;
use esker_store::{Error, Result};

use crate::engine::Engine;
use crate::format::{DEVICE_BYTES_MAX, FORMAT_VERSION, LOG_SEGMENTS_MIN, ReplayFrom, Superblock};
use crate::keeper::kept_back;
use crate::superblocks::{SUPERBLOCK_SEGMENT_BYTES, device_error};

/// Segments that are begun: of the log, and of what was moved.
const BEGUN_SEGMENTS: u64 = 2;
/// How full of values segments are in a full store: the rest is headers, and what is dead in segments that are not
/// worth cleaning.
const FILLED_PERCENT: u64 = 97;

/// How a store is laid out. Fixed when it is formatted.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Segment size in bytes, a power of two, 64 KiB to 1 GiB; 64 MiB by default. A transaction must fit in one.
    pub segment_bytes: u64,
    /// The store's id: random, so that another store's leftovers are told from this one's data.
    pub uuid: [u8; 16],
}

impl FormatOptions {
    /// Default layout with this id.
    pub fn new(uuid: [u8; 16]) -> Self {
        Self { segment_bytes: 64 << 20, uuid }
    }

    /// About how many bytes of values a store on a device of so many bytes holds before it is full: what is kept back,
    /// for an index of a hundredth of that, and what cleaning cannot win back, are not among them.
    pub fn usable_bytes(&self, device_bytes: u64) -> u64 {
        let segments = device_bytes / self.segment_bytes;
        let superblocks = (2 * SUPERBLOCK_SEGMENT_BYTES).div_ceil(self.segment_bytes);
        let log = segments.saturating_sub(superblocks);
        let kept = kept_back(log.div_ceil(100), log) + BEGUN_SEGMENTS;
        (log.saturating_sub(kept) * self.segment_bytes) / 100 * FILLED_PERCENT
    }
}

impl Engine {
    /// Makes an empty store on `device`, which is overwritten.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the setting that does not fit; [`Error::Io`].
    pub fn format(device: &dyn Device, options: &FormatOptions) -> Result<()> {
        let geometry = device.geometry();
        let invalid = |why: String| Err(Error::Invalid { what: "format option", why });
        let segment_bytes = options.segment_bytes;
        if !segment_bytes.is_power_of_two() || !(64 << 10..=1 << 30).contains(&segment_bytes) {
            return invalid(format!("segment_bytes is {segment_bytes}: expected a power of two from 64 KiB to 1 GiB"));
        }
        if segment_bytes < 8 * u64::from(geometry.block_bytes) {
            return invalid(format!(
                "segment_bytes is {segment_bytes}: less than 8 blocks of {}",
                geometry.block_bytes
            ));
        }
        if geometry.len > DEVICE_BYTES_MAX {
            return invalid(format!("the device has {} bytes; DEVICE_BYTES_MAX is {DEVICE_BYTES_MAX}", geometry.len));
        }
        if let Some(zone) = geometry.zone_bytes
            && !segment_bytes.is_multiple_of(zone)
        {
            return invalid(format!("segment_bytes is {segment_bytes}: not a multiple of the zone size {zone}"));
        }
        let superblock_segment_bytes = geometry.zone_bytes.unwrap_or(SUPERBLOCK_SEGMENT_BYTES);
        let superblock = Superblock {
            version: FORMAT_VERSION,
            block_bytes: geometry.block_bytes,
            uuid: options.uuid,
            sequence: 1,
            segment_bytes,
            superblock_segment_bytes,
            device_len: geometry.len,
            end_generation: 0,
            clean: true,
            before_kept: false,
            end_offset: 0,
            end_seq: 0,
            root: 0,
            root_generation: 0,
            replay: ReplayFrom::default(),
        };
        let log_segments = superblock.log_segments();
        if log_segments.end < log_segments.start + LOG_SEGMENTS_MIN {
            return invalid(format!(
                "the device has {} bytes: too short for superblocks and {LOG_SEGMENTS_MIN} segments of {segment_bytes}",
                geometry.len
            ));
        }
        let block = u64::from(geometry.block_bytes);
        // Old headers must not be taken for this store's; ids differ, but zeros are cheaper to tell.
        for segment in log_segments {
            let mut head = vec![0; block as usize];
            let offset = segment * segment_bytes;
            device.read(offset, &mut head).map_err(|error| device_error("formatting", error))?;
            if head.iter().any(|byte| *byte != 0) || geometry.zone_bytes.is_some() {
                device.discard(offset, segment_bytes).map_err(|error| device_error("formatting", error))?;
            }
        }
        for half in 0..2 {
            let start = half * superblock_segment_bytes;
            device.discard(start, superblock_segment_bytes).map_err(|error| device_error("formatting", error))?;
            let mut bytes = vec![0; superblock_segment_bytes.min(1 << 20) as usize];
            superblock.encode(&mut bytes);
            // On a zoned device the rest of the zone has to stay unwritten.
            let len = if geometry.zone_bytes.is_some() { block as usize } else { bytes.len() };
            device.write(start, &bytes[..len]).map_err(|error| device_error("formatting", error))?;
        }
        device.sync().map_err(|error| device_error("formatting", error))
    }
}

//! What a device holds: bytes, write pointers, space taken; and what a power cut leaves of what was on its way.
//!
//! durable image + pending operations + survival → image after the power cut
//!
//! Invariants:
//! 1. Without zones, a write that was not synced survives whole, in part at the grain of a sector, or not at all; so
//!    does a discard. Under [`Survival::Prefix`] both survive in their order.
//! 2. In a zone, what survives is a prefix of what was done there, at the grain of a block: a reset that was lost
//!    takes all later writes of its zone with it.

use std::collections::BTreeMap;

/// Bytes that a power cut keeps or loses together where there are no zones.
pub const SECTOR_BYTES: usize = 512;
/// Block of the simulated devices, and the step of their write pointers, in bytes.
pub const BLOCK_BYTES: usize = 4096;

/// What a power cut leaves of writes and discards that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// Nothing.
    None,
    /// Everything.
    All,
    /// The first operations, the last of them torn.
    Prefix,
    /// Some operations, whole, in no order; with zones, a prefix in each.
    Writes,
    /// Some sectors, in no order; with zones, a prefix in each.
    Sectors,
}

/// What kind of device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Length in bytes, a multiple of the zone (or the block).
    pub len: u64,
    /// Size of a zone in bytes, a multiple of the block; `None` for a device without zones.
    pub zone_bytes: Option<u64>,
    /// So many zones may be partly written at once; a write that would begin one more is refused. `None`: no limit.
    pub open_zones_max: Option<usize>,
    /// So many bytes may be taken (written or reserved, and not discarded). `None`: no limit but the length.
    pub space_bytes: Option<u64>,
}

impl Shape {
    /// A device without zones and without limits.
    pub fn plain(len: u64) -> Self {
        Self { len, zone_bytes: None, open_zones_max: None, space_bytes: None }
    }
}

/// The state of a device with nothing on its way.
#[derive(Clone, Debug)]
pub struct Image {
    /// What kind of device it is of.
    pub shape: Shape,
    /// The content.
    pub bytes: Vec<u8>,
    /// Write pointers of the zones, as offsets in them; empty without zones.
    pub pointers: Vec<u64>,
    /// Blocks that take space.
    pub allocated: Vec<bool>,
    /// Something has changed by itself: then the store may say that what it reads is damaged.
    pub rotten: bool,
}

/// An operation that was not synced yet. With zones it lies in one zone.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub start: usize,
    pub change: PendingChange,
}

#[derive(Clone, Debug)]
pub(crate) enum PendingChange {
    Write(Vec<u8>),
    Discard(usize),
}

impl Pending {
    fn len(&self) -> usize {
        match &self.change {
            PendingChange::Write(data) => data.len(),
            PendingChange::Discard(len) => *len,
        }
    }
}

impl Image {
    /// An empty device.
    pub fn blank(shape: Shape) -> Self {
        let zones = shape.zone_bytes.map_or(0, |zone_bytes| shape.len / zone_bytes);
        Self {
            shape,
            bytes: vec![0; shape.len as usize],
            pointers: vec![0; zones as usize],
            allocated: vec![false; shape.len as usize / BLOCK_BYTES],
            rotten: false,
        }
    }

    /// Bytes that take space.
    pub fn used_bytes(&self) -> u64 {
        self.allocated.iter().filter(|taken| **taken).count() as u64 * BLOCK_BYTES as u64
    }

    /// Zones that are partly written.
    pub fn open_zones(&self) -> usize {
        let Some(zone_bytes) = self.shape.zone_bytes else { return 0 };
        self.pointers.iter().filter(|pointer| (1..zone_bytes).contains(*pointer)).count()
    }

    /// Flips one bit of the content: damage at rest.
    pub fn flip_bit(&mut self, at: usize, bit: u8) {
        self.bytes[at] ^= 1 << bit;
    }

    /// A random byte of a sector that is not all zeros, if there is one.
    pub fn place_with_content(&self, rng: &mut fastrand::Rng) -> Option<usize> {
        if self.bytes.iter().all(|byte| *byte == 0) {
            return None;
        }
        loop {
            let at = rng.usize(0..self.bytes.len());
            let sector = at / SECTOR_BYTES * SECTOR_BYTES;
            if self.bytes[sector..sector + SECTOR_BYTES].iter().any(|byte| *byte != 0) {
                return Some(at);
            }
        }
    }

    /// Does all of an operation.
    pub(crate) fn apply(&mut self, op: &Pending) {
        match &op.change {
            PendingChange::Write(data) => {
                self.bytes[op.start..op.start + data.len()].copy_from_slice(data);
                self.allocate(op.start, data.len(), true);
            }
            PendingChange::Discard(len) => {
                self.bytes[op.start..op.start + len].fill(0);
                self.allocate(op.start, *len, false);
            }
        }
        if let Some(zone_bytes) = self.shape.zone_bytes {
            let zone = op.start / zone_bytes as usize;
            self.pointers[zone] = match &op.change {
                PendingChange::Write(data) => (op.start % zone_bytes as usize + data.len()) as u64,
                PendingChange::Discard(_) => 0,
            };
        }
    }

    /// Marks blocks as taking space or not.
    pub(crate) fn allocate(&mut self, start: usize, len: usize, taken: bool) {
        self.allocated[start / BLOCK_BYTES..(start + len).div_ceil(BLOCK_BYTES)].fill(taken);
    }

    /// Does any part of an operation that a power cut may leave.
    fn apply_torn(&mut self, op: &Pending, rng: &mut fastrand::Rng) {
        if self.shape.zone_bytes.is_some() {
            match &op.change {
                PendingChange::Write(data) => {
                    let kept = rng.usize(0..=data.len() / BLOCK_BYTES) * BLOCK_BYTES;
                    if kept > 0 {
                        let change = PendingChange::Write(data[..kept].to_vec());
                        self.apply(&Pending { start: op.start, change });
                    }
                }
                PendingChange::Discard(_) => {
                    if rng.bool() {
                        self.apply(op);
                    }
                }
            }
            return;
        }
        for at in (0..op.len()).step_by(SECTOR_BYTES) {
            if rng.bool() {
                let place = op.start + at..op.start + at + SECTOR_BYTES;
                match &op.change {
                    PendingChange::Write(data) => self.bytes[place].copy_from_slice(&data[at..at + SECTOR_BYTES]),
                    PendingChange::Discard(_) => self.bytes[place].fill(0),
                }
            }
        }
    }

    /// Does a random prefix of operations, the last of them torn.
    fn apply_prefix(&mut self, ops: &[&Pending], rng: &mut fastrand::Rng) {
        let whole = rng.usize(0..=ops.len());
        for op in &ops[..whole] {
            self.apply(op);
        }
        if let Some(op) = ops.get(whole) {
            self.apply_torn(op, rng);
        }
    }

    /// Does what a power cut leaves of `pending`.
    pub(crate) fn survive(&mut self, pending: &[Pending], survival: Survival, rng: &mut fastrand::Rng) {
        let all: Vec<&Pending> = pending.iter().collect();
        match (survival, self.shape.zone_bytes) {
            (Survival::None, _) => {}
            (Survival::All, _) => all.iter().for_each(|op| self.apply(op)),
            (Survival::Prefix, _) => self.apply_prefix(&all, rng),
            (Survival::Writes | Survival::Sectors, Some(zone_bytes)) => {
                let mut zones: BTreeMap<usize, Vec<&Pending>> = BTreeMap::new();
                for op in all {
                    zones.entry(op.start / zone_bytes as usize).or_default().push(op);
                }
                for ops in zones.values() {
                    self.apply_prefix(ops, rng);
                }
            }
            (Survival::Writes, None) => {
                for op in all {
                    if rng.bool() {
                        self.apply(op);
                    }
                }
            }
            (Survival::Sectors, None) => all.iter().for_each(|op| self.apply_torn(op, rng)),
        }
    }

    /// Marks as taken whatever holds something; for an image whose discards may have been lost.
    pub(crate) fn allocate_content(&mut self) {
        for (block, taken) in self.bytes.chunks(BLOCK_BYTES).zip(&mut self.allocated) {
            *taken |= block.iter().any(|byte| *byte != 0);
        }
    }
}

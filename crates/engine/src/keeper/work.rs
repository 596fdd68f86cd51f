//! What the keeper goes on from at its next look: only the thread that works has it.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use crate::buffer::SegmentBuffer;
use crate::checkpoint::Saved;
use crate::cold::Cold;
use crate::evict::Hand;
use crate::format::Superblock;

/// See the module.
pub(super) struct Work {
    pub cold: Cold,
    pub saved: Saved,
    /// Generation from which the log is replayed.
    pub floor: u32,
    /// Segments, by generation, that the checkpoint before the one that the store was opened with may need.
    pub kept: HashSet<u32>,
    /// Generation from which it would be replayed if the newest checkpoint did not hold: none from here on is made
    /// free.
    pub floor_before: u32,
    /// The log's last sequence number at the last checkpoint.
    pub covered: Option<u64>,
    /// Bytes of log at the last checkpoint.
    pub log_bytes: u64,
    /// Segments, by generation, that waited for the last checkpoint: those that still do, it did not make free.
    pub unfreed: HashSet<u32>,
    /// Bytes of relocations in it then.
    pub relocation_bytes: u64,
    /// What replaying it takes, as [`Log::replay_ns`](crate::commit::Log::replay_ns) counts, at the last checkpoint.
    pub replay_ns: u64,
    /// See [`RecoveryTime::replayed`](super::RecoveryTime::replayed); nothing from the first checkpoint on.
    pub replayed: (u64, u64),
    pub checkpoint_bytes: u64,
    /// Segments, by generation, that were cleaned and wait for the next checkpoint, and whether as a whole.
    pub spent: HashMap<u32, bool>,
    /// Segments, by generation, that nothing points to, and the end of the log that says so.
    pub dying: HashMap<u32, u64>,
    /// Segments, by generation, that hold something which cannot be moved.
    pub stuck: HashSet<u32>,
    /// How often a segment, by generation, could not be cleaned because something could not be read.
    pub unread: HashMap<u32, u32>,
    /// How often something still lived in a segment, by generation, that was cleaned as a whole.
    pub shared_tries: HashMap<u32, u32>,
    /// Bytes that were moved since writes last had to wait, and the bytes of transactions until then.
    pub effort: u64,
    pub effort_from: u64,
    /// What was seen when the device was found to be full.
    pub full_at: Option<Full>,
    /// See [`Giving`].
    pub giving: Giving,
    /// The log's last sequence number when no room was found for what takes away.
    pub hopeless: Option<u64>,
    pub asking: Asking,
    /// Checkpoints that are due because of damage, as long as room is not tight: see [`crate::clean::RENEWALS`].
    pub renew: u8,
    /// What `saved` says stands in the checkpoint that the superblock names.
    pub whole: bool,
    /// Which page is asked next to leave memory.
    pub hand: Hand,
    /// Where segments are read to be cleaned.
    pub scratch: Option<SegmentBuffer>,
}

impl Work {
    /// What goes on from a checkpoint that `superblock` names. With `kept`, segments of these generations, and the log
    /// from the generation `before` on, are kept for the checkpoint before it.
    pub fn new(
        cold: Cold,
        saved: Saved,
        superblock: &Superblock,
        kept: Option<(HashSet<u32>, u32)>,
        replayed: (u64, u64),
    ) -> Self {
        let floor = superblock.replay.generation.max(1);
        let (kept, floor_before) = match kept {
            Some((kept, before)) => (kept, before.min(superblock.replay.generation).max(1)),
            None => (HashSet::new(), floor),
        };
        Self {
            cold,
            saved,
            floor,
            floor_before,
            kept,
            covered: (superblock.root != 0).then_some(superblock.replay.seq),
            log_bytes: 0,
            unfreed: HashSet::new(),
            relocation_bytes: 0,
            replay_ns: 0,
            replayed,
            checkpoint_bytes: 0,
            spent: HashMap::new(),
            dying: HashMap::new(),
            stuck: HashSet::new(),
            unread: HashMap::new(),
            shared_tries: HashMap::new(),
            effort: 0,
            effort_from: 0,
            full_at: None,
            giving: Giving::default(),
            hopeless: None,
            asking: Asking::default(),
            renew: 0,
            whole: true,
            hand: Hand::default(),
            scratch: None,
        }
    }
}

/// When the device was last asked for blocks that it had not, and for how many.
#[derive(Default)]
pub(super) struct Asking {
    pub at: Option<Instant>,
    pub more: u64,
    /// How often a refused write had asked for another look then.
    pub asked: u64,
}

impl Asking {
    /// The device had some when it was last asked, and may have more.
    pub fn may_have_more(&self) -> bool {
        self.more > 0
    }
}

/// What was refused on a full device although it leads to giving back.
#[derive(Clone, Copy, Default)]
pub(super) struct Giving {
    /// How often up to the last look.
    pub refused: u64,
    /// The log's last sequence number when nothing more was found for it.
    pub hopeless: Option<u64>,
}

/// A device that was found to be full.
#[derive(Clone, Copy)]
pub(super) struct Full {
    /// Bytes that lived then.
    pub live: u64,
    /// Segments that were left then, or after the last checkpoint since.
    pub left: u64,
    /// The log's last sequence number then.
    pub seq: u64,
}

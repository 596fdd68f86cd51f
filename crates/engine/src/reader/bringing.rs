//! Reads of the device for those who read next: what is not in memory of parts of writes, many under way together.
//!
//! parts that are asked for → places that are missing → device → `Brought` → told when all of it has come
//!
//! Invariant: each that was asked for is told of once, when nothing of it is under way.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use esker_device::{BlockPool, Blocks, ReadStream};
use smallvec::SmallVec;

use super::brought::{Brought, Place};
use crate::index::Loc;

/// Gives parts of writes.
pub type Next<'n> = dyn FnMut() -> Option<SmallVec<[Part; 2]>> + 'n;

/// A part of a write: where it stands, in which life of the segment, bytes to skip, length.
pub type Part = (Loc, u32, u32, u32);

/// So many bytes are under way together at most, or one read.
const TOGETHER_BYTES_MAX: u64 = 8 << 20;

/// See the module.
pub(super) struct Bringing<'r> {
    /// What of a part is not in memory.
    missing: &'r dyn Fn(Part) -> Option<Place>,
    memory: &'r Arc<BlockPool>,
    device_len: u64,
    brought: &'r Brought,
    next: &'r mut Next<'r>,
    waits: &'r mut dyn FnMut(),
    came: &'r mut dyn FnMut(u64),
    /// How many were asked for.
    asked: u64,
    /// Of these, what is to be read.
    parts: VecDeque<(u64, Place)>,
    /// By the number of what was asked for: parts that have not come, and the places of those that are under way.
    under_way: HashMap<u64, SmallVec<[Place; 2]>>,
    bytes: u64,
}

impl<'r> Bringing<'r> {
    pub(super) fn new(
        missing: &'r dyn Fn(Part) -> Option<Place>,
        (memory, device_len, brought): (&'r Arc<BlockPool>, u64, &'r Brought),
        next: &'r mut Next<'r>,
        (waits, came): (&'r mut dyn FnMut(), &'r mut dyn FnMut(u64)),
    ) -> Self {
        Self {
            missing,
            memory,
            device_len,
            brought,
            next,
            waits,
            came,
            asked: 0,
            parts: VecDeque::new(),
            under_way: HashMap::new(),
            bytes: 0,
        }
    }
}

impl ReadStream for Bringing<'_> {
    fn next(&mut self) -> Option<(u64, Blocks)> {
        loop {
            if self.bytes >= TOGETHER_BYTES_MAX {
                return None;
            }
            let Some((number, place)) = self.parts.pop_front() else {
                let parts = (self.next)()?;
                let number = self.asked;
                self.asked += 1;
                let missing = parts.into_iter().filter_map(|part| (self.missing)(part));
                self.parts.extend(missing.map(|place| (number, place)));
                if self.parts.is_empty() {
                    (self.came)(number);
                } else {
                    self.under_way.insert(number, SmallVec::new());
                }
                continue;
            };
            match self.memory.take(place.offset, place.len, self.device_len) {
                Ok(blocks) => {
                    self.bytes += place.len;
                    self.under_way.entry(number).or_default().push(place);
                    return Some((number, blocks));
                }
                // Its reader says so.
                Err(_) if self.parts.is_empty() => self.end(number),
                Err(_) => {}
            }
        }
    }

    fn waits(&mut self) {
        (self.waits)();
    }

    fn came(&mut self, number: u64, blocks: Blocks, outcome: esker_device::Result<()>) {
        let is_it = |place: &Place| place.len == blocks.len() as u64 && blocks.is_at(place.offset);
        let under_way = self.under_way.entry(number).or_default();
        if let Some(at) = under_way.iter().position(is_it) {
            let place = under_way.swap_remove(at);
            self.bytes -= place.len;
            if outcome.is_ok() {
                self.brought.put(place, blocks);
            }
        }
        if !self.parts.iter().any(|(other, _)| *other == number) {
            self.end(number);
        }
    }
}

impl Bringing<'_> {
    /// Tells of one that was asked for, if nothing of it is under way.
    fn end(&mut self, number: u64) {
        if self.under_way.get(&number).is_none_or(|places| places.is_empty()) {
            self.under_way.remove(&number);
            (self.came)(number);
        }
    }
}

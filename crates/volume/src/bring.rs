//! Ranges of an image that are brought into memory: as parts of the objects that they stand in.
//!
//! [`Ranges`] → pieces → `ObjectStore::bring` → a range has come when its last piece has

use std::collections::VecDeque;
use std::ops::Range;

use esker_store::{ObjectId, Parts};

use crate::format;
use crate::source::Point;

/// Ranges that a thread reads next: see [`Image::bring`](crate::Image::bring).
pub trait Ranges {
    /// The next, offset and length in bytes, if there is one now; asked again when one has come.
    fn next(&mut self) -> Option<(u64, u64)>;

    /// The store is about to wait for the device.
    fn waits(&mut self) {}

    /// The range that was given as this one, counted from 0, has come: it may be read.
    fn came(&mut self, number: u64);
}

/// See the module.
pub(crate) struct Pieces<'p> {
    point: &'p Point,
    ranges: &'p mut dyn Ranges,
    asked: u64,
    /// Of the last that was asked for, what was not given yet.
    left: VecDeque<(ObjectId, Range<u64>)>,
    /// Of each piece that was given the range that it is of, in their order; none of one that has come.
    given: VecDeque<Option<u64>>,
    /// The place of the first of these.
    first: u64,
}

impl<'p> Pieces<'p> {
    pub(crate) fn new(point: &'p Point, ranges: &'p mut dyn Ranges) -> Self {
        Self { point, ranges, asked: 0, left: VecDeque::new(), given: VecDeque::new(), first: 0 }
    }
}

impl Parts for Pieces<'_> {
    fn next(&mut self) -> Option<(ObjectId, Range<u64>)> {
        while self.left.is_empty() {
            let (offset, len) = self.ranges.next()?;
            let number = self.asked;
            self.asked += 1;
            if len == 0 || offset.checked_add(len).is_none_or(|end| end > self.point.size) {
                // Its reader is told.
                self.ranges.came(number);
                continue;
            }
            let part = |object, start: u64, len: u64| (format::data(self.point.image, object), start..start + len);
            let pieces = self.point.layout.pieces(offset, len);
            self.left.extend(pieces.iter().map(|piece| part(piece.object, piece.object_offset, piece.len)));
        }
        self.given.push_back(Some(self.asked - 1));
        self.left.pop_front()
    }

    fn waits(&mut self) {
        self.ranges.waits();
    }

    fn came(&mut self, number: u64) {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let Some(range) = at.and_then(|at| self.given.get_mut(at)).and_then(Option::take) else { return };
        while self.given.front().is_some_and(Option::is_none) {
            self.given.pop_front();
            self.first += 1;
        }
        let is_last = self.asked - 1 == range && !self.left.is_empty();
        if !is_last && !self.given.contains(&Some(range)) {
            self.ranges.came(range);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;
    use crate::source::HEAD;

    #[derive(Default)]
    struct Given {
        ranges: VecDeque<(u64, u64)>,
        came: Vec<u64>,
    }

    impl Ranges for Given {
        fn next(&mut self) -> Option<(u64, u64)> {
            self.ranges.pop_front()
        }
        fn came(&mut self, number: u64) {
            self.came.push(number);
        }
    }

    #[test]
    fn a_range_has_come_when_all_its_pieces_have() {
        const MIB: u64 = 1 << 20;
        let layout = Layout::default();
        let object = layout.object_bytes;
        let point = Point { image: 7, snap: HEAD, size: 100 * object, layout, parent: None };
        let ranges = [(0, 10), (object - 5, 10), (200 * object, 1), (3, 0), (object - MIB, 2 * object)];
        let mut given = Given { ranges: ranges.into(), came: Vec::new() };
        let mut pieces = Pieces::new(&point, &mut given);
        let part = |number: u64, range: Range<u64>| Some((format::data(7, number), range));
        assert_eq!(pieces.next(), part(0, 0..10));
        assert_eq!(pieces.next(), part(0, object - 5..object));
        // Of a range whose second piece was not given yet the first has come.
        pieces.came(1);
        assert_eq!(pieces.next(), part(1, 0..5));
        assert_eq!(pieces.next(), part(0, object - MIB..object));
        assert_eq!(pieces.next(), part(1, 0..object));
        assert_eq!(pieces.next(), part(2, 0..object - MIB));
        assert_eq!(pieces.next(), None);
        for number in [4, 3, 0, 2, 5, 5, 77] {
            pieces.came(number);
        }
        assert_eq!(given.came, [2, 3, 0, 1, 4]);
    }
}

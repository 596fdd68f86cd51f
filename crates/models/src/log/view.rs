//! What stands in the store: the head with its view, the objects with their epochs and cells.
//!
//! position → run (one stripe) → column and local position → cell
//!
//! Invariant: equal states are equal bytes, so that the checker knows them as one: what is not in use is zero.

/// Most stripes of a view, trimmed away or cut ones included.
pub const STRIPES_MAX: usize = 6;
/// Most objects of a stripe.
pub const WIDTH_MAX: usize = 2;
/// Most positions of an object.
pub const SLOTS_MAX: usize = 2;

/// What stands at a position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cell {
    /// Nothing yet.
    #[default]
    Empty,
    /// It was given up.
    Filled,
    /// The entry of this number.
    Entry(u8),
}

/// A stripe, and the positions that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Run {
    /// First position.
    pub start: u8,
    /// Not included; less than the stripe would hold where it was cut.
    pub end: u8,
    /// Id of the stripe.
    pub stripe: u8,
}

/// A position's place: the object by its number, and the cell in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the object.
    pub object: usize,
    /// Local position.
    pub local: usize,
}

/// The view of the log, as the head has it or as a process remembers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct View {
    /// Grows with each change.
    pub version: u8,
    /// Writes of an older epoch are refused by what was sealed.
    pub epoch: u8,
    /// The tail, once the log was closed for good.
    pub sealed: Option<u8>,
    /// The process that hands out positions to all; `None`: a process that writes leads.
    pub sequencer: Option<u8>,
    /// The next stripe's id.
    pub next_stripe: u8,
    /// Number of runs.
    pub len: u8,
    pub(super) runs: [Run; STRIPES_MAX],
}

/// Objects of a stripe, and positions of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Objects, 1 to [`WIDTH_MAX`].
    pub width: u8,
    /// Positions, 1 to [`SLOTS_MAX`].
    pub slots: u8,
}

impl View {
    /// The runs, in order.
    pub fn runs(&self) -> &[Run] {
        &self.runs[..self.len as usize]
    }

    /// First position without a place.
    pub fn end(&self) -> u8 {
        self.runs().last().map_or(0, |run| run.end)
    }

    /// Where a position stands.
    pub fn place(&self, shape: Shape, position: u8) -> Option<Place> {
        let run = self.runs().iter().find(|run| (run.start..run.end).contains(&position))?;
        let within = position - run.start;
        Some(Place { object: object(run.stripe, within % shape.width), local: usize::from(within / shape.width) })
    }

    /// Adds a stripe at the end. False if there is no room for it in the model.
    pub fn add_stripe(&mut self, shape: Shape) -> bool {
        let (start, len) = (self.end(), self.len as usize);
        if len == STRIPES_MAX || self.next_stripe as usize == STRIPES_MAX {
            return false;
        }
        self.runs[len] = Run { start, end: start + shape.width * shape.slots, stripe: self.next_stripe };
        self.len += 1;
        self.next_stripe += 1;
        true
    }

    /// Takes the places of all positions from `tail` on away.
    pub fn cut(&mut self, tail: u8) {
        while self.len > 0 && self.runs[self.len as usize - 1].start >= tail {
            self.len -= 1;
            self.runs[self.len as usize] = Run::default();
        }
        if let Some(last) = self.len.checked_sub(1) {
            let last = &mut self.runs[last as usize];
            last.end = last.end.min(tail);
        }
    }
}

/// The number of an object.
pub fn object(stripe: u8, column: u8) -> usize {
    usize::from(stripe) * WIDTH_MAX + usize::from(column)
}

/// A data object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Object {
    /// The epoch that sealed it; 0: there is no such object.
    pub epoch: u8,
    /// Its cells.
    pub cells: [Cell; SLOTS_MAX],
}

/// The store: every field of it, and every object, changes by transactions of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Store {
    /// The head.
    pub head: View,
    /// Data objects by number.
    pub objects: [Object; STRIPES_MAX * WIDTH_MAX],
}

impl Store {
    /// What stands at a position by a view.
    pub fn cell(&self, view: &View, shape: Shape, position: u8) -> Cell {
        view.place(shape, position).map_or(Cell::Empty, |place| self.objects[place.object].cells[place.local])
    }

    /// The highest position of a run's column that holds something.
    pub fn last_in(&self, run: &Run, column: u8, shape: Shape) -> Option<u8> {
        let cells = &self.objects[object(run.stripe, column)].cells;
        let local = cells.iter().rposition(|cell| *cell != Cell::Empty)?;
        let position = run.start + u8::try_from(local).ok()? * shape.width + column;
        (position < run.end).then_some(position)
    }
}

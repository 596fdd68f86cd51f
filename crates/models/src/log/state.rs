//! The state of all processes and of the store, what a model lets them do, and what must hold.

use super::task::Step;
use super::view::{Cell, Shape, Store, View};

/// Most positions of a model.
pub const POSITIONS_MAX: usize = 6;

/// Most processes of a model.
pub const PROCESSES_MAX: usize = 4;

/// What must hold in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A position has one value: every process that was told one, by an answer or by reading, was told the same.
    OneValue,
    /// An entry whose append was answered stands at its position, by the head's view.
    NothingLost,
    /// An entry stands at one position only.
    Once,
    /// No tail that is told, and none that closes the log, lies at or below a position that was decided before it was
    /// asked for. (Above what was decided it may go back: positions that were handed out and never written are handed
    /// out again by the next sequencer.)
    TailStays,
    /// What one reader saw as written or filled, every reader that begins later sees so; and it is what the head's view
    /// leads to.
    ReadersAgree,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::OneValue, Self::NothingLost, Self::Once, Self::TailStays, Self::ReadersAgree];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneValue => "a position has one value",
            Self::NothingLost => "no acknowledged append is lost",
            Self::Once => "an entry stands at one position",
            Self::TailStays => "the tail never moves back",
            Self::ReadersAgree => "readers agree",
        }
    }
}

/// A rule of the protocol that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breakage {
    /// Appends do not guard the epoch.
    NoEpochGuard,
    /// Filling does not look whether something stands there.
    FillOverWritten,
    /// Taking over takes the tail from the first object of a stripe instead of the highest of all.
    SealWithoutMax,
    /// A sequencer that was started again goes on under its epoch from where that began.
    SequencerReuses,
    /// Appends do not look whether something stands there.
    WriteOverWritten,
    /// Taking over raises the epoch in the head and seals no object.
    TakeOverWithoutSeal,
    /// Filling is done under whatever epoch is newest.
    FillUnderNewest,
    /// A change of shape is published under the epoch that was raised to seal what was there.
    PublishUnderSeal,
    /// Views are replaced whatever they are by now.
    ViewWithoutCompare,
    /// An append whose answer was lost takes a new position at once.
    RetryElsewhere,
}

/// How far a model goes, and what it breaks.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// Processes, 1 to [`PROCESSES_MAX`].
    pub processes: u8,
    /// Entries that each appends.
    pub appends: u8,
    /// The highest epoch, from 1.
    pub epochs: u8,
    /// Positions that are handed out, up to [`POSITIONS_MAX`].
    pub positions: u8,
    /// Objects of a stripe, and positions of an object.
    pub shape: Shape,
    /// Whether views name a sequencer that all ask (process 0 at first). Otherwise a process that writes takes over.
    pub named: bool,
    /// Whether processes take over without need.
    pub take_overs: bool,
    /// Whether processes read, and fill what is missing.
    pub reads: bool,
    /// Whether processes ask for the tail.
    pub tails: bool,
    /// Changes of shape, all processes together.
    pub reshapes: u8,
    /// Whether processes close the log for good.
    pub seals: bool,
    /// Processes that are started again with empty memory, all together.
    pub restarts: u8,
    /// Appends that get no answer, all together.
    pub losses: u8,
    /// What is broken.
    pub breakage: Option<Breakage>,
}

impl Default for Protocol {
    fn default() -> Self {
        Self {
            processes: 2,
            appends: 1,
            epochs: 3,
            positions: 3,
            shape: Shape { width: 2, slots: 1 },
            named: false,
            take_overs: true,
            reads: false,
            tails: false,
            reshapes: 0,
            seals: false,
            restarts: 0,
            losses: 0,
            breakage: None,
        }
    }
}

/// The right to hand out positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leader {
    /// Since when.
    pub epoch: u8,
    /// The position that is handed out next.
    pub next: u8,
    /// Where the epoch began.
    pub began: u8,
}

/// A process: a handle of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// The view that it saw last.
    pub view: View,
    /// The positions that it hands out.
    pub leader: Option<Leader>,
    /// Entries that it has yet to append.
    pub appends: u8,
    /// What it does.
    pub step: Step,
}

/// What was told about a position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Decided {
    /// What stands there; empty: nothing was told.
    pub cell: Cell,
    /// Whether its append was answered.
    pub acknowledged: bool,
}

/// A state of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The objects.
    pub store: Store,
    /// The processes, as many as there are; others are idle.
    pub processes: [Option<Process>; PROCESSES_MAX],
    /// What was told, by position.
    pub decided: [Decided; POSITIONS_MAX],
    /// The first rule that a step was seen to break.
    pub broken: Option<Rule>,
    /// Left of [`Protocol::reshapes`].
    pub reshapes: u8,
    /// Left of [`Protocol::restarts`].
    pub restarts: u8,
    /// Left of [`Protocol::losses`].
    pub losses: u8,
}

impl State {
    /// One above the highest position that is decided.
    pub fn decided_end(&self) -> u8 {
        let last = self.decided.iter().rposition(|decided| decided.cell != Cell::Empty);
        last.map_or(0, |last| last as u8 + 1)
    }

    /// Notes what a process was told of a position.
    pub(super) fn told(&mut self, position: u8, cell: Cell, acknowledged: bool) {
        let decided = &mut self.decided[usize::from(position)];
        if decided.cell == Cell::Empty {
            decided.cell = cell;
        } else if decided.cell != cell {
            self.broken.get_or_insert(Rule::OneValue);
        }
        decided.acknowledged |= acknowledged;
    }
}

/// What a process begins to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Begun {
    /// To append its next entry.
    Append,
    /// To take over.
    TakeOver,
    /// To change the shape at the tail.
    Reshape,
    /// To close the log.
    Seal,
    /// To read a position.
    Read(u8),
    /// To fill a position.
    Fill(u8),
    /// To ask for the tail.
    Tail,
}

//! The shared log: sealing, proposing views, taking over, appending, filling, reading, with any process stopping anywhere.
//!
//! init → every step of every process, in every order ([`Protocol::actions`]) → [`State`] → [`Rule`]s
//!
//! It follows `crates/log`: `append.rs`, `read.rs`, `seal.rs`, `head.rs`, `sequencer.rs`, `trim.rs` (filling), `log.rs` (tokens, tails, growing), and
//! decision 0010. One step is one transaction or read of the store, or one question to another process; a process that takes no more steps has stopped,
//! and what it had under way comes as late as one likes. Processes keep the view that they saw last, as the code does, and ask the leader of
//! another process, which may be deposed without knowing it; so there are two sequencers whenever a newer one was there first.
//!
//! What it leaves out:
//! - Time. Whatever waits in the code (leases, holes before they are filled) may happen at once, or never.
//! - Trimming, and so objects that go; owners and named writers; streams; batches: an entry is a number.
//! - Layouts, and durability: what is applied is durable. `esker-sim` cuts the power.
//! - Threads inside a process: each does one thing at a time, save that its leader answers others at any time.
//! - Changing the head is one step where the code loads, changes and compares: nobody sees the difference. Where it makes objects or seals between loading
//!   and comparing, the model does so too.
//! - Growing in advance: stripes are made when they are needed.
//! - A stripe is a run, and all have one shape.
//! - What a lost answer hides is looked up by one read through the head's view; the code reads as it always does.
//!
//! Invariants: see [`Rule`].

mod step;
mod view;

use stateright::{Model, Property};

pub use step::{Asked, Grown, Job, Making, Sealing, Step, Token, Why};
pub use view::{Cell, Object, Place, Run, SLOTS_MAX, STRIPES_MAX, Shape, Store, View, WIDTH_MAX};

/// Most positions of a model.
pub const POSITIONS_MAX: usize = 6;
/// Most processes of a model.
pub const PROCESSES_MAX: usize = 4;

/// What must hold in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A position has one value: whoever was told one, by an answer or by reading, was told the same as all others.
    OneValue,
    /// An entry whose append was answered stands at its position, by the head's view.
    NothingLost,
    /// An entry stands at one position only.
    Once,
    /// No tail that is told, and none that closes the log, lies at or below a position that was decided before it was asked for. (Above what was decided it
    /// may go back: positions that were handed out and never written are handed out again by the next sequencer.)
    TailStays,
    /// What one reader saw as written or filled, every reader that begins later sees so; and it is what the head's view leads to.
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
    /// Whether views name a sequencer that all ask (process 0 at first). Otherwise whoever writes takes over.
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

    /// Notes what somebody was told of a position.
    fn told(&mut self, position: u8, cell: Cell, acknowledged: bool) {
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

/// A step, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A process begins something; its first step follows.
    Begin(u8, Begun),
    /// It takes its next step.
    Step(u8),
    /// It takes its next step, and does not hear the answer.
    LoseAnswer(u8),
    /// Its next step's request does not arrive, and it cannot tell.
    LoseRequest(u8),
    /// It is started again, with empty memory.
    Restart(u8),
}

impl Protocol {
    fn holds(&self, rule: Rule, state: &State) -> bool {
        if state.broken == Some(rule) {
            return false;
        }
        let head = &state.store.head;
        let mut decided = state.decided.iter().enumerate().filter(|(_, decided)| decided.cell != Cell::Empty);
        let stands =
            |position: usize, decided: &Decided| state.store.cell(head, self.shape, position as u8) == decided.cell;
        match rule {
            Rule::OneValue => true,
            Rule::NothingLost => decided.all(|(position, decided)| !decided.acknowledged || stands(position, decided)),
            Rule::ReadersAgree => decided.all(|(position, decided)| decided.acknowledged || stands(position, decided)),
            Rule::Once => {
                let cells = (0..head.end()).map(|position| state.store.cell(head, self.shape, position));
                let entries: Vec<_> = cells.filter(|cell| matches!(cell, Cell::Entry(_))).collect();
                entries.iter().enumerate().all(|(at, cell)| !entries[..at].contains(cell))
            }
            Rule::TailStays => {
                let end = state.decided_end();
                head.sealed.is_none_or(|tail| tail >= end)
            }
        }
    }

    /// The number of an entry that a process appends.
    fn entry(&self, process: usize, left: u8) -> u8 {
        process as u8 * self.appends + left
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut head = View { version: 1, epoch: 1, ..View::default() };
        assert!(head.add_stripe(self.shape), "a stripe fits");
        let mut objects = [Object::default(); STRIPES_MAX * WIDTH_MAX];
        for column in 0..self.shape.width {
            objects[usize::from(column)].epoch = 1;
        }
        head.sequencer = self.named.then_some(0);
        let process = Process { view: head, leader: None, appends: self.appends, step: Step::Idle };
        let mut processes = [None; PROCESSES_MAX];
        processes[..usize::from(self.processes)].fill(Some(process));
        if let (true, Some(first)) = (self.named, &mut processes[0]) {
            first.leader = Some(Leader { epoch: 1, next: 0, began: 0 });
        }
        vec![State {
            store: Store { head, objects },
            processes,
            decided: [Decided::default(); POSITIONS_MAX],
            broken: None,
            reshapes: self.reshapes,
            restarts: self.restarts,
            losses: self.losses,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for (number, process) in state.processes.iter().enumerate() {
            let (Some(process), number) = (process, number as u8) else { continue };
            if state.restarts > 0 {
                actions.push(Action::Restart(number));
            }
            if process.step != Step::Idle {
                actions.push(Action::Step(number));
                if state.losses > 0 && matches!(process.step, Step::Write(_)) {
                    actions.extend([Action::LoseAnswer(number), Action::LoseRequest(number)]);
                }
                continue;
            }
            let mut begin = |begun| actions.push(Action::Begin(number, begun));
            if process.appends > 0 {
                begin(Begun::Append);
            }
            if self.take_overs {
                begin(Begun::TakeOver);
            }
            if state.reshapes > 0 {
                begin(Begun::Reshape);
            }
            if self.seals {
                begin(Begun::Seal);
            }
            if self.tails {
                begin(Begun::Tail);
            }
            if self.reads {
                for position in 0..self.positions {
                    begin(Begun::Read(position));
                    begin(Begun::Fill(position));
                }
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        match action {
            Action::Begin(process, begun) => self.begin(&mut next, process.into(), begun)?,
            Action::Step(process) => self.step(&mut next, process.into(), step::Answer::Heard)?,
            Action::LoseAnswer(process) => self.step(&mut next, process.into(), step::Answer::Lost)?,
            Action::LoseRequest(process) => self.step(&mut next, process.into(), step::Answer::NeverCame)?,
            Action::Restart(process) => self.restart(&mut next, process.into())?,
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(Rule::OneValue.name(), |model: &Self, state: &State| model.holds(Rule::OneValue, state)),
            Property::always(Rule::NothingLost.name(), |model: &Self, state| model.holds(Rule::NothingLost, state)),
            Property::always(Rule::Once.name(), |model: &Self, state| model.holds(Rule::Once, state)),
            Property::always(Rule::TailStays.name(), |model: &Self, state| model.holds(Rule::TailStays, state)),
            Property::always(Rule::ReadersAgree.name(), |model: &Self, state| model.holds(Rule::ReadersAgree, state)),
        ]
    }
}

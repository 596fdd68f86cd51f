//! The shared log: sealing, proposing views, taking over, appending, filling, reading, with any process stopping
//! anywhere.
//!
//! init → every step of every process, in every order ([`Protocol::actions`]) → [`State`] → [`Rule`]s
//!
//! It follows `crates/log`: `append.rs`, `read.rs`, `seal.rs`, `head.rs`, `sequencer.rs`, `trim.rs` (filling),
//! `lead.rs` (tokens, tails), `log.rs` (growing), and decision 0010. One step is one transaction or read of the store,
//! or one question to another process; a process that takes no more steps has stopped, and what it had under way comes
//! as late as one likes. Processes keep the view that they saw last, as the code does, and ask the leader of another
//! process, which may be deposed without knowing it; so there are two sequencers whenever a newer one was there first.
//!
//! What it leaves out:
//! - Time. Whatever waits in the code (leases, holes before they are filled) may happen at once, or never.
//! - Trimming, and so objects that go; owners and named writers; streams; batches: an entry is a number.
//! - Layouts, and durability: what is applied is durable. `esker-sim` cuts the power.
//! - Threads inside a process: each does one thing at a time, save that its leader answers others at any time.
//! - Changing the head is one step where the code loads, changes and compares: no process sees the difference. Where it
//!   makes objects or seals between loading and comparing, the model does so too.
//! - Growing in advance: stripes are made when they are needed.
//! - A stripe is a run, and all have one shape.
//! - What a lost answer hides is looked up by one read through the head's view; the code reads as it always does.
//!
//! Invariants: see [`Rule`].

mod state;
mod step;
mod task;
mod view;

use stateright::{Model, Property};

pub use state::{Begun, Breakage, Decided, Leader, POSITIONS_MAX, PROCESSES_MAX, Process, Protocol, Rule, State};
pub use task::{Asked, Grown, Job, Making, Sealing, Step, Token, Why};
pub use view::{Cell, Object, Place, Run, SLOTS_MAX, STRIPES_MAX, Shape, Store, View, WIDTH_MAX};

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

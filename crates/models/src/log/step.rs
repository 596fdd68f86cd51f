//! The steps of a process: what it reads or writes next, and what it does then.
//!
//! append: token → write → (grow) → answered · refused: look at the view, take a new token · no answer: find out
//! taking over: raise the epoch → seal, last stripe first → highest position → head again → lead, or publish a shape,
//! or close read: by the view at hand → nothing there: tail → by the head's view · fill: tail → mark under the tail's
//! epoch
//!
//! Invariant: a step is one transaction or read of one object, or one question to another process.

use super::state::{Begun, Breakage, Leader, Process, Protocol, Rule, State};
use super::task::{Asked, Grown, Job, Making, Sealing, Step, Token, Why};
use super::view::{Cell, Object, View, object};

/// What a process hears of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// What became of it.
    Heard,
    /// Nothing, though it was done.
    Lost,
    /// Nothing, and it was not done.
    NeverCame,
}

impl Protocol {
    fn breaks(&self, breakage: Breakage) -> bool {
        self.breakage == Some(breakage)
    }

    pub(super) fn begin(&self, state: &mut State, me: usize, begun: Begun) -> Option<()> {
        let decided = |position: u8| state.decided[usize::from(position)].cell != Cell::Empty;
        let process = state.processes[me]?;
        let step = match begun {
            Begun::Append => {
                state.processes[me].as_mut()?.appends -= 1;
                Step::Token(self.entry(me, process.appends))
            }
            Begun::TakeOver => {
                let leads = process.leader.is_some_and(|leader| leader.epoch == process.view.epoch);
                if leads && process.view.sequencer == self.named.then_some(me as u8) {
                    return None;
                }
                Step::Raise(Why::Lead)
            }
            Begun::Reshape => {
                state.reshapes -= 1;
                let leads = process.leader.is_some_and(|leader| leader.epoch == process.view.epoch);
                Step::Raise(Why::Reshape { leads })
            }
            Begun::Seal => Step::Raise(Why::Seal),
            Begun::Read(position) => Step::Read(position, decided(position)),
            Begun::Fill(position) => Step::TailLook(Asked::Fill(position)),
            Begun::Tail => Step::TailLook(Asked::Tail { floor: state.decided_end() }),
        };
        state.processes[me].as_mut()?.step = step;
        self.step(state, me, Answer::Heard)
    }

    pub(super) fn restart(&self, state: &mut State, me: usize) -> Option<()> {
        let head = state.store.head;
        let process = state.processes[me].as_mut()?;
        let kept = process.leader.filter(|_| self.breaks(Breakage::SequencerReuses));
        let leader = kept.map(|leader| Leader { next: leader.began, ..leader });
        *process = Process { view: head, leader, step: Step::Idle, ..*process };
        state.restarts -= 1;
        Some(())
    }

    /// The next step of a process; `None` if it can only wait.
    pub(super) fn step(&self, state: &mut State, me: usize, answer: Answer) -> Option<()> {
        let process = state.processes[me]?;
        let next = match process.step {
            Step::Idle => return None,
            Step::Token(entry) => self.token(state, me, entry)?,
            Step::Write(job) => self.write(state, me, job, answer)?,
            Step::Refused(job) => {
                let view = self.look(state, me)?;
                let sealed = view.place(self.shape, job.token.position);
                let sealed = sealed.map_or(0, |place| state.store.objects[place.object].epoch);
                if view.epoch.max(sealed) > job.token.epoch { Step::Stale(job) } else { Step::Write(job) }
            }
            Step::Stale(job) => {
                let view = self.look(state, me)?;
                match view.sealed {
                    _ if job.unanswered => Step::ResolveRead(job),
                    Some(_) => Step::Idle,
                    None => Step::Token(job.entry),
                }
            }
            Step::ResolveRead(job) => match state.store.cell(&state.store.head, self.shape, job.token.position) {
                Cell::Entry(entry) if entry == job.entry => {
                    state.told(job.token.position, Cell::Entry(entry), true);
                    Step::Idle
                }
                Cell::Entry(_) | Cell::Filled => Step::Token(job.entry),
                Cell::Empty => Step::ResolveTail(job),
            },
            Step::ResolveTail(job) => {
                let view = self.look(state, me)?;
                let tail = match (self.leader_of(state, me), view.sealed, view.sequencer) {
                    (Some(leader), ..) => Some(leader.next),
                    (None, Some(tail), _) => Some(tail),
                    (None, None, None) => None,
                    // No sequencer answers: the append stays uncertain.
                    (None, None, Some(_)) => return self.go(state, me, Step::Idle),
                };
                match tail {
                    None => return self.raise(state, me, Why::Resolve(job)),
                    Some(tail) if job.token.position >= tail => Step::Token(job.entry),
                    Some(tail) => {
                        // The epoch of the process that told it.
                        let epoch = self.leader_of(state, me).map_or(view.epoch, |leader| leader.epoch);
                        Step::ResolveFill(job, Token { epoch, position: tail })
                    }
                }
            }
            Step::ResolveFill(job, tail) => {
                let view = process.view;
                let position = job.token.position;
                if view.epoch < tail.epoch {
                    self.look(state, me)?;
                    Step::ResolveFill(job, tail)
                } else if position >= view.end() {
                    return self.go(state, me, Step::Grow(position, Grown::Resolve(job, tail)));
                } else if self.mark(state, &view, position, tail.epoch)? == Marked::Done {
                    Step::Token(job.entry)
                } else {
                    Step::ResolveRead(job)
                }
            }
            Step::Grow(end, grown) => {
                let view = self.look(state, me)?;
                if view.end() > end {
                    written(grown)
                } else if view.sealed.is_some() {
                    Step::Idle
                } else {
                    Step::Make(view, 0, Making::Grow(grown))
                }
            }
            Step::Make(base, column, making) => self.make(state, base, column, making)?,
            Step::Publish(base, making) => self.publish(state, me, base, making)?,
            Step::Raise(why) => return self.raise(state, me, why),
            Step::Seal(sealing) => self.seal(state, sealing),
            Step::Last(sealing) => self.last(state, sealing),
            Step::Settled(sealing) => self.settled(state, me, sealing)?,
            Step::Close(base, tail) => {
                let head = &mut state.store.head;
                if head.version == base.version || self.breaks(Breakage::ViewWithoutCompare) {
                    *head = View { version: head.version + 1, sealed: Some(tail), ..base };
                    self.look(state, me)?;
                    Step::Idle
                } else {
                    Step::Raise(Why::Seal)
                }
            }
            Step::TailLook(asked) => {
                let view = self.look(state, me)?;
                let own = process.leader.is_some_and(|leader| leader.epoch == view.epoch);
                match (own, view.sealed, view.sequencer) {
                    (true, ..) => Step::TailAsk(asked),
                    (false, Some(tail), _) => self.tail_told(state, asked, Token { epoch: view.epoch, position: tail }),
                    (false, None, Some(_)) => Step::TailAsk(asked),
                    (false, None, None) => Step::TailWritten(asked, view, view.len - 1, 0, None),
                }
            }
            Step::TailAsk(asked) => match self.leader_of(state, me) {
                Some(leader) => self.tail_told(state, asked, Token { epoch: leader.epoch, position: leader.next }),
                None => Step::TailWritten(asked, process.view, process.view.len.checked_sub(1)?, 0, None),
            },
            Step::TailWritten(asked, view, run, column, last) => {
                let met = state.store.last_in(&view.runs()[usize::from(run)], column, self.shape);
                let last = last.max(met);
                if column + 1 < self.shape.width {
                    Step::TailWritten(asked, view, run, column + 1, last)
                } else if last.is_none() && run > 0 {
                    Step::TailWritten(asked, view, run - 1, 0, None)
                } else {
                    let position = last.map_or(0, |last| last + 1);
                    self.tail_told(state, asked, Token { epoch: view.epoch, position })
                }
            }
            Step::Read(position, decided) => {
                let view = process.view;
                if position >= view.end() {
                    let view = self.look(state, me)?;
                    if position >= view.end() { self.missed(state, decided) } else { Step::Read(position, decided) }
                } else {
                    match state.store.cell(&view, self.shape, position) {
                        Cell::Empty => Step::TailLook(Asked::Read { position, decided }),
                        cell => self.read(state, position, cell),
                    }
                }
            }
            Step::ReadView(position, decided) => {
                self.look(state, me)?;
                Step::ReadAgain(position, decided)
            }
            Step::ReadAgain(position, decided) => match state.store.cell(&process.view, self.shape, position) {
                Cell::Empty => self.missed(state, decided),
                cell => self.read(state, position, cell),
            },
            Step::Fill(position, tail) => {
                let view = process.view;
                if view.epoch < tail.epoch {
                    self.look(state, me)?;
                    Step::Fill(position, tail)
                } else if position >= view.end() {
                    return self.go(state, me, Step::Grow(position, Grown::Fill { position, tail }));
                } else {
                    let epoch = if self.breaks(Breakage::FillUnderNewest) { u8::MAX } else { tail.epoch };
                    match self.mark(state, &view, position, epoch)? {
                        Marked::Done => {
                            state.told(position, Cell::Filled, false);
                            Step::Idle
                        }
                        Marked::Deposed => Step::FillDeposed(position),
                        Marked::Taken => Step::Idle,
                    }
                }
            }
            Step::FillDeposed(position) => {
                self.look(state, me)?;
                Step::TailLook(Asked::Fill(position))
            }
        };
        state.processes[me].as_mut()?.step = next;
        Some(())
    }

    /// Goes on with another step at once: no other process was asked anything.
    fn go(&self, state: &mut State, me: usize, step: Step) -> Option<()> {
        state.processes[me].as_mut()?.step = step;
        if step == Step::Idle { Some(()) } else { self.step(state, me, Answer::Heard) }
    }

    /// Reads the head's view.
    fn look(&self, state: &mut State, me: usize) -> Option<View> {
        let head = state.store.head;
        state.processes[me].as_mut()?.view = head;
        Some(head)
    }

    /// Who hands out positions by a process's view, if he answers: itself, or the one that the view names.
    fn leader_of(&self, state: &State, me: usize) -> Option<Leader> {
        let process = state.processes[me]?;
        let own = process.leader.filter(|leader| leader.epoch == process.view.epoch);
        let named = || {
            let other = state.processes[usize::from(process.view.sequencer?)]?;
            other.leader.filter(|leader| leader.epoch >= process.view.epoch)
        };
        own.or_else(named)
    }

    fn token(&self, state: &mut State, me: usize, entry: u8) -> Option<Step> {
        let view = state.processes[me]?.view;
        if view.sealed.is_some() {
            return Some(Step::Idle);
        }
        if let Some(leader) = self.leader_of(state, me) {
            if leader.next >= self.positions {
                // Logs end somewhere.
                return Some(Step::Idle);
            }
            let token = Token { epoch: leader.epoch, position: leader.next };
            let given = state.processes.iter_mut().flatten().filter_map(|process| process.leader.as_mut());
            given.filter(|given| given.epoch == leader.epoch).for_each(|given| given.next += 1);
            return Some(Step::Write(Job { entry, token, unanswered: false }));
        }
        if view.sequencer.is_some() {
            // No sequencer answers there, or it has been deposed: waits until the view says more.
            self.look(state, me)?;
            return Some(Step::Token(entry));
        }
        self.raise(state, me, Why::Append(entry))?;
        Some(state.processes[me]?.step)
    }

    fn write(&self, state: &mut State, me: usize, mut job: Job, answer: Answer) -> Option<Step> {
        let view = state.processes[me]?.view;
        if view.epoch < job.token.epoch {
            self.look(state, me)?;
            return (answer == Answer::Heard).then_some(Step::Write(job));
        }
        if view.epoch > job.token.epoch || view.end() <= job.token.position {
            if answer != Answer::Heard {
                return None;
            }
            let stale = view.epoch > job.token.epoch;
            let step = if stale { Step::Stale(job) } else { Step::Grow(job.token.position, Grown::Write(job)) };
            self.go(state, me, step)?;
            return Some(state.processes[me]?.step);
        }
        if answer != Answer::Heard {
            state.losses -= 1;
            job.unanswered = true;
        }
        let refused = if answer == Answer::NeverCame { None } else { self.put(state, &view, job)? };
        Some(match (answer, refused) {
            (Answer::Lost | Answer::NeverCame, _) if self.breaks(Breakage::RetryElsewhere) => Step::Token(job.entry),
            (Answer::Lost | Answer::NeverCame, _) => Step::Write(job),
            (Answer::Heard, None) => {
                state.told(job.token.position, Cell::Entry(job.entry), true);
                Step::Idle
            }
            (Answer::Heard, Some(Marked::Taken)) if job.unanswered => Step::ResolveRead(job),
            (Answer::Heard, Some(Marked::Taken)) => Step::Token(job.entry),
            (Answer::Heard, Some(_)) => Step::Refused(job),
        })
    }

    /// The transaction of an append: why it was refused, if it was.
    fn put(&self, state: &mut State, view: &View, job: Job) -> Option<Option<Marked>> {
        let place = view.place(self.shape, job.token.position)?;
        let object = &mut state.store.objects[place.object];
        if object.epoch > job.token.epoch && !self.breaks(Breakage::NoEpochGuard) {
            return Some(Some(Marked::Deposed));
        }
        let cell = &mut object.cells[place.local];
        if *cell != Cell::Empty && !self.breaks(Breakage::WriteOverWritten) {
            return Some(Some(Marked::Taken));
        }
        *cell = Cell::Entry(job.entry);
        Some(None)
    }

    /// The transaction of a mark.
    fn mark(&self, state: &mut State, view: &View, position: u8, epoch: u8) -> Option<Marked> {
        let place = view.place(self.shape, position)?;
        let object = &mut state.store.objects[place.object];
        let cell = &mut object.cells[place.local];
        Some(if object.epoch > epoch {
            Marked::Deposed
        } else if *cell == Cell::Empty || self.breaks(Breakage::FillOverWritten) {
            *cell = Cell::Filled;
            Marked::Done
        } else {
            Marked::Taken
        })
    }

    /// The view that is published in the end.
    fn planned(&self, base: &View, making: Making) -> Option<View> {
        let mut next = *base;
        if let Making::Reshape { tail, .. } = making {
            next.cut(tail);
            if !self.breaks(Breakage::PublishUnderSeal) {
                next.epoch += 1;
            }
        }
        next.version += 1;
        next.add_stripe(self.shape).then_some(next)
    }

    fn make(&self, state: &mut State, base: View, column: u8, making: Making) -> Option<Step> {
        let next = self.planned(&base, making)?;
        let made = &mut state.store.objects[object(base.next_stripe, column)];
        if made.epoch <= next.epoch {
            *made = Object { epoch: next.epoch, ..*made };
        }
        let last = column + 1 == self.shape.width;
        Some(if last { Step::Publish(base, making) } else { Step::Make(base, column + 1, making) })
    }

    fn publish(&self, state: &mut State, me: usize, base: View, making: Making) -> Option<Step> {
        let next = self.planned(&base, making)?;
        let head = &mut state.store.head;
        if head.version != base.version && !self.breaks(Breakage::ViewWithoutCompare) {
            return Some(match making {
                Making::Grow(grown) => Step::Grow(end_of(grown), grown),
                Making::Reshape { leads, .. } => Step::Raise(Why::Reshape { leads }),
            });
        }
        *head = View { version: head.version + 1, ..next };
        self.look(state, me)?;
        Some(match making {
            Making::Grow(grown) => written(grown),
            Making::Reshape { tail, leads } => {
                if leads || next.sequencer.is_none() {
                    let leader = Leader { epoch: next.epoch, next: tail, began: tail };
                    state.processes[me].as_mut()?.leader = Some(leader);
                }
                Step::Idle
            }
        })
    }

    /// Raises the epoch in the head.
    fn raise(&self, state: &mut State, me: usize, why: Why) -> Option<()> {
        let head = &mut state.store.head;
        // A change of shape takes two.
        let needs = 1 + u8::from(matches!(why, Why::Reshape { .. }) && !self.breaks(Breakage::PublishUnderSeal));
        let mut step = Step::Idle;
        if head.sealed.is_none() && head.epoch + needs <= self.epochs {
            head.epoch += 1;
            head.version += 1;
            if matches!(why, Why::Lead | Why::Append(_) | Why::Resolve(_)) {
                let own = self.named && why == Why::Lead;
                head.sequencer = own.then_some(me as u8);
            }
            let run = head.len.checked_sub(1)?;
            let sealing = Sealing { view: *head, why, run, column: 0, last: None, found: false };
            step = if self.breaks(Breakage::TakeOverWithoutSeal) { Step::Last(sealing) } else { Step::Seal(sealing) };
        }
        state.processes[me].as_mut()?.step = step;
        Some(())
    }

    fn seal(&self, state: &mut State, sealing: Sealing) -> Step {
        let Sealing { view, why, run, column, found, .. } = sealing;
        let object = &mut state.store.objects[object(view.runs()[usize::from(run)].stripe, column)];
        if object.epoch > view.epoch {
            // Another process took over from us before we were done.
            return Step::Raise(why);
        }
        object.epoch = view.epoch;
        if column + 1 < self.shape.width {
            return Step::Seal(Sealing { column: column + 1, ..sealing });
        }
        match (found, run) {
            (false, _) => Step::Last(Sealing { column: 0, ..sealing }),
            (true, 0) => Step::Settled(sealing),
            (true, _) => Step::Seal(Sealing { column: 0, run: run - 1, ..sealing }),
        }
    }

    fn last(&self, state: &State, mut sealing: Sealing) -> Step {
        let Sealing { view, run, column, .. } = sealing;
        if column == 0 || !self.breaks(Breakage::SealWithoutMax) {
            let met = state.store.last_in(&view.runs()[usize::from(run)], column, self.shape);
            sealing.last = sealing.last.max(met);
        }
        if column + 1 < self.shape.width {
            return Step::Last(Sealing { column: column + 1, ..sealing });
        }
        sealing.found = sealing.last.is_some();
        // Where nothing of an older epoch may come any more, every object is sealed.
        if run == 0 || (sealing.found && sealing.why != Why::Seal) {
            return Step::Settled(sealing);
        }
        let next = Sealing { column: 0, run: run - 1, ..sealing };
        if self.breaks(Breakage::TakeOverWithoutSeal) { Step::Last(next) } else { Step::Seal(next) }
    }

    fn settled(&self, state: &mut State, me: usize, sealing: Sealing) -> Option<Step> {
        let now = state.store.head;
        if now.epoch != sealing.view.epoch {
            return Some(Step::Raise(sealing.why));
        }
        let tail = sealing.last.map_or(0, |last| last + 1);
        let then = match sealing.why {
            Why::Reshape { leads } => return Some(Step::Make(now, 0, Making::Reshape { tail, leads })),
            Why::Seal => return Some(Step::Close(now, tail)),
            Why::Lead => Step::Idle,
            Why::Append(entry) => Step::Token(entry),
            Why::Resolve(job) => Step::ResolveTail(job),
        };
        let process = state.processes[me].as_mut()?;
        process.view = now;
        process.leader = Some(Leader { epoch: now.epoch, next: tail, began: tail });
        Some(then)
    }

    /// What is done with a tail.
    fn tail_told(&self, state: &mut State, asked: Asked, tail: Token) -> Step {
        match asked {
            Asked::Tail { floor } => {
                if tail.position < floor {
                    state.broken.get_or_insert(Rule::TailStays);
                }
                Step::Idle
            }
            Asked::Read { position, decided } if position >= tail.position => self.missed(state, decided),
            Asked::Read { position, decided } => Step::ReadView(position, decided),
            Asked::Fill(position) if position >= tail.position => Step::Idle,
            Asked::Fill(position) => Step::Fill(position, tail),
        }
    }

    /// A reader was told what stands at a position.
    fn read(&self, state: &mut State, position: u8, cell: Cell) -> Step {
        state.told(position, cell, false);
        Step::Idle
    }

    /// A reader found nothing.
    fn missed(&self, state: &mut State, decided: bool) -> Step {
        if decided {
            state.broken.get_or_insert(Rule::ReadersAgree);
        }
        Step::Idle
    }
}

/// What became of a mark or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marked {
    Done,
    /// A newer epoch sealed the object.
    Deposed,
    /// Something stands there.
    Taken,
}

fn written(grown: Grown) -> Step {
    match grown {
        Grown::Write(job) => Step::Write(job),
        Grown::Fill { position, tail } => Step::Fill(position, tail),
        Grown::Resolve(job, tail) => Step::ResolveFill(job, tail),
    }
}

fn end_of(grown: Grown) -> u8 {
    match grown {
        Grown::Write(job) | Grown::Resolve(job, _) => job.token.position,
        Grown::Fill { position, .. } => position,
    }
}

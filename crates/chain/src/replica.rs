//! A replica: it takes operations in order, sends them on, and says when those behind it have them.
//!
//! ```text
//! head: applied by its store → Event::Applied ┐
//! others: Message::Forward → Effect::Apply    ┴→ kept, sent on → durable here, acknowledged from behind
//!       → the head: Effect::Committed · others: Message::Ack to the one before
//! new table → Begin to the one behind → At: how far it is → what it lacks, or a copy
//! copy: Effect::Copy → CopyBegins → a snapshot is made → CopyMade → Effect::Offer, what came behind it
//! ```
//!
//! Invariants:
//! 1. Operations are numbered from 1 without gaps; a replica applies them in that order, each once.
//! 2. What is sent on is kept until it is acknowledged from behind.
//! 3. A member that syncs counts once it has everything that was acknowledged: from then on nothing is without it.
//! 4. Messages of another version of the table change nothing.

use std::collections::VecDeque;

use crate::table::{Incarnation, Place, ServerId, Table};

/// What an operation takes of memory while it is kept.
pub trait Weight {
    /// In bytes.
    fn weight(&self) -> usize;
}

/// Operations of models: each is as heavy as another.
impl Weight for u8 {
    fn weight(&self) -> usize {
        1
    }
}

/// When the head waits for a member that is brought up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Regard {
    /// Once it is in step, as chains do.
    #[default]
    InStep,
    /// Never: it is sent everything, and what is acknowledged says nothing of it.
    Never,
    /// Always: nothing is acknowledged that it does not have, nor anything where there is none.
    Always,
}

/// What happens to a replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event<O> {
    /// The coordinator has this table.
    Table(Table),
    /// The head's store has applied an operation, as number [`Replica::next`].
    Applied(O),
    /// Operations up to this one are durable here.
    Durable(u64),
    /// A copy of what this server has begins to be put in place of what is here.
    Copying {
        /// Who sends it.
        from: ServerId,
        /// In which version of the table it was begun.
        version: u64,
        /// It is the state after this operation.
        seq: u64,
    },
    /// From now on a copy for this server is made of what this one has: see [`Effect::Copy`].
    CopyBegins(ServerId),
    /// It is made.
    CopyMade {
        /// The server that it is for.
        to: ServerId,
        /// In which version of the table it was begun.
        version: u64,
        /// It is the state after this operation.
        seq: u64,
    },
    /// It cannot be made.
    CopyNotMade(ServerId),
    /// The copy that was begun does not come to its end.
    CopyFailed,
    /// A copy is here, whole and durable, and so are the operations that came behind it.
    Copied {
        /// Who sent it.
        from: ServerId,
        /// In which version of the table it was begun.
        version: u64,
        /// What is here is the state after this operation.
        seq: u64,
    },
    /// A server has sent this.
    Message(ServerId, Message<O>),
    /// The connection to this server is new: what was sent to it may be lost.
    Reconnected(ServerId),
    /// From now on a member that is brought up is waited for so.
    Regard(Regard),
}

/// What a replica sends to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message<O> {
    /// From now on I send to you, in this version of the table.
    Begin {
        /// Of the table.
        version: u64,
        /// See [`Message::Forward`].
        committed: u64,
    },
    /// I have applied the operations up to this one, or put them by until a copy is whole; `None`: I have nothing that
    /// you may build on.
    At {
        /// Of the table.
        version: u64,
        /// The last.
        applied: Option<u64>,
    },
    /// The next operation.
    Forward {
        /// Of the table.
        version: u64,
        /// Its number.
        seq: u64,
        /// What it does.
        operation: O,
        /// The last that is known to be acknowledged to its writer.
        committed: u64,
    },
    /// Operations up to this one are durable with me and all behind me.
    Ack {
        /// Of the table.
        version: u64,
        /// The last.
        seq: u64,
    },
    /// Operations up to this one are acknowledged to their writers.
    Committed {
        /// Of the table.
        version: u64,
        /// The last.
        seq: u64,
    },
}

impl<O> Message<O> {
    fn version(&self) -> u64 {
        match self {
            Self::Begin { version, .. }
            | Self::At { version, .. }
            | Self::Forward { version, .. }
            | Self::Ack { version, .. }
            | Self::Committed { version, .. } => *version,
        }
    }
}

/// What a replica wants done, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect<O> {
    /// Apply this operation to the store as this number, and tell when it is durable.
    Apply(u64, O),
    /// Put this operation by, with this number: it is applied once the copy before it is whole.
    PutBy(u64, O),
    /// Send this.
    Send(ServerId, Message<O>),
    /// Operations up to this one are on every copy: their writers are told.
    Committed(u64),
    /// Make a copy of what is here for this server: [`Event::CopyBegins`], then the copy, of any state since, then
    /// [`Event::CopyMade`], with steps between them. It is not made where [`Replica::wants_copy`] says so.
    Copy(ServerId),
    /// Send this server the copy that was made: what makes its state the one after operation `seq`.
    Offer {
        /// The server that the copy is for.
        to: ServerId,
        /// After which operation.
        seq: u64,
    },
    /// What the store holds counts for nothing from now on, until a copy has come.
    Distrust,
    /// Ask the coordinator for the table: there is a newer one.
    Refresh,
    /// Tell the manager that this server is in step, in this version of the table.
    InStep(ServerId, u64),
}

/// What a reader finds at a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Clean {
    /// What it has may be told.
    Yes,
    /// The head has to be asked whether this operation is acknowledged.
    Ask(u64),
}

/// The one behind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Behind {
    server: ServerId,
    /// It has told how far it is, and is sent what comes.
    streaming: bool,
    /// It and all behind it have everything up to this.
    acked: u64,
    /// What is acknowledged waits for it.
    counts: bool,
    /// It is sent a copy, on this connection: of the state after this operation; of one not before it, while it is not
    /// made yet, and then it is sent nothing else.
    copying: Option<u64>,
    /// The copy is being made: what comes meanwhile is kept.
    making: bool,
}

/// A replica of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replica<O> {
    me: ServerId,
    incarnation: Incarnation,
    table: Table,
    applied: u64,
    durable: u64,
    /// It has told the one before, or writers, that everything up to this is done.
    told: u64,
    /// Known to be acknowledged to its writer.
    committed: u64,
    /// Sent on, or to be, and not acknowledged from behind; the last is `applied`.
    kept: VecDeque<O>,
    kept_bytes: usize,
    /// More is not kept for one that is being brought up: it is sent another copy then.
    kept_bytes_max: usize,
    behind: Option<Behind>,
    /// It has a state to build on.
    based: bool,
    /// A copy is being put in place, and operations put by behind it.
    by: Option<By>,
    /// When the one behind is waited for, where it does not serve.
    regard: Regard,
    /// What it has may be built on in the first table, though it is brought up.
    resumes: bool,
}

/// What is put by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct By {
    /// The next operation.
    next: u64,
    /// Of whose copy, and in which version of the table that was begun.
    from: ServerId,
    version: u64,
}

impl<O: Clone + Weight> Replica<O> {
    /// A replica whose store holds the operations up to `applied`, all durable. It keeps up to `kept_bytes_max` bytes
    /// of operations for a member that is being brought up.
    pub fn new(me: ServerId, incarnation: Incarnation, applied: u64, kept_bytes_max: usize) -> Self {
        Self {
            me,
            incarnation,
            table: Table::none(),
            applied,
            durable: applied,
            told: 0,
            committed: 0,
            kept: VecDeque::new(),
            kept_bytes: 0,
            kept_bytes_max,
            behind: None,
            based: true,
            by: None,
            regard: Regard::InStep,
            resumes: false,
        }
    }

    /// In the first table that it goes by it is brought up from where it is: all that it has came from the one before
    /// it, in that one's present start, so that the other has applied it as well.
    pub fn resume(&mut self) {
        self.resumes = true;
    }

    /// Up to where the one behind has everything, durably; `None`: there is none.
    pub fn acked(&self) -> Option<u64> {
        self.behind.as_ref().map(|behind| behind.acked)
    }

    /// The one behind, and up to where it has everything, durably.
    pub fn acked_by(&self) -> Option<(ServerId, u64)> {
        self.behind.as_ref().map(|behind| (behind.server, behind.acked))
    }

    /// The same, where what the store holds is part of a copy: it counts for nothing.
    pub fn unbased(self) -> Self {
        Self { applied: 0, durable: 0, based: false, ..self }
    }

    /// The table that it goes by.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// How it stands in that; `None`: not at all.
    pub fn place(&self) -> Option<Place> {
        self.table.start(self.me, self.incarnation).map(|member| member.place)
    }

    /// Whether it decides. It may only under a lease.
    pub fn is_head(&self) -> bool {
        self.place() == Some(Place::Serving) && self.table.head().is_some_and(|head| head.server == self.me)
    }

    /// The number of the next operation.
    pub fn next(&self) -> u64 {
        self.applied + 1
    }

    /// The last operation that is known to be acknowledged to its writer.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// Whether a reader may be told what it has, which was last written by operation `seq`. It may only under a lease,
    /// and where it serves.
    pub fn clean(&self, seq: u64) -> Clean {
        if seq <= self.committed { Clean::Yes } else { Clean::Ask(seq) }
    }

    /// Whether it has a state to build on: no copy is under way.
    pub fn is_based(&self) -> bool {
        self.based
    }

    /// The next operation that is put by, while a copy is put in place.
    pub fn next_by(&self) -> Option<u64> {
        self.by.map(|by| by.next)
    }

    /// Whether what this server sends in this version of the table, with this number, is the next to be applied.
    pub fn is_next(&self, from: ServerId, version: u64, seq: u64) -> bool {
        let is_before = self.table.predecessor(self.me).is_some_and(|before| before.server == from);
        let is_now = version == self.table.version && self.place().is_some();
        is_before && is_now && self.based && seq == self.applied + 1
    }

    /// What is kept for the one behind, in bytes.
    pub fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// The member that is brought up by this one and in step with it, and in which version of the table: what
    /// [`Effect::InStep`] has told, which may be lost on its way to the coordinator.
    pub fn in_step(&self) -> Option<(ServerId, u64)> {
        let behind = self.behind.as_ref().filter(|behind| behind.counts)?;
        let is_syncing = self.table.member(behind.server).is_some_and(|member| member.place == Place::Syncing);
        is_syncing.then_some((behind.server, self.table.version))
    }

    /// Takes one step.
    pub fn step(&mut self, event: Event<O>) -> Vec<Effect<O>> {
        let mut effects = Vec::new();
        match event {
            Event::Table(table) => self.adopt(table, &mut effects),
            Event::Applied(operation) => self.take(operation, &mut effects),
            Event::Durable(seq) => {
                self.durable = self.durable.max(seq.min(self.applied));
                self.advance(&mut effects);
            }
            Event::Copying { from, version, seq } => {
                // One that was offered twice: it was put in place already, and others may count on that.
                let has_it = self.based && self.applied >= seq;
                if self.is_brought_up_by(from, version) && !has_it {
                    self.distrust(&mut effects);
                    self.by = Some(By { next: seq + 1, from, version });
                }
            }
            Event::CopyBegins(to) => {
                if self.wants_copy(to)
                    && let Some(behind) = &mut self.behind
                {
                    behind.making = true;
                    self.keep_none();
                }
            }
            Event::CopyMade { to, version, seq } => self.offer(to, version, seq, &mut effects),
            Event::CopyNotMade(to) => {
                if let Some(behind) = self.behind.as_mut().filter(|behind| behind.server == to) {
                    behind.making = false;
                    self.bound_kept();
                    self.advance(&mut effects);
                }
            }
            Event::CopyFailed => self.by = None,
            Event::Copied { from, version, seq } => self.build_on(from, version, seq, &mut effects),
            Event::Message(from, message) => self.hear(from, message, &mut effects),
            Event::Reconnected(server) => {
                if self.behind.as_ref().is_some_and(|behind| behind.server == server) {
                    self.begin(&mut effects);
                    // A copy that was being made may have held up what is told.
                    self.advance(&mut effects);
                }
                if self.table.predecessor(self.me).is_some_and(|before| before.server == server) {
                    self.report(&mut effects);
                }
            }
            Event::Regard(regard) => {
                self.regard = regard;
                self.bound_kept();
                self.advance(&mut effects);
            }
        }
        effects
    }

    fn adopt(&mut self, table: Table, effects: &mut Vec<Effect<O>>) {
        if table.version <= self.table.version {
            return;
        }
        let before = self.table.start(self.me, self.incarnation).copied();
        let source = |table: &Table| table.predecessor(self.me).map(|before| (before.server, before.incarnation));
        let is_other = source(&self.table) != source(&table);
        self.table = table;
        let now = self.table.start(self.me, self.incarnation).copied();
        if is_other {
            // What another's copy holds may be more than what this one has.
            self.by = None;
        }
        // It may have missed tables in which it stood otherwise.
        let stays = before.zip(now).is_some_and(|(before, now)| (before.place, before.since) == (now.place, now.since));
        let now = now.map(|member| member.place);
        let resumes = std::mem::take(&mut self.resumes) && self.based;
        if now == Some(Place::Syncing) && !stays && !resumes {
            // What it has that others may not have is not to be built on.
            self.distrust(effects);
        }
        // What is acknowledged need not be durable here: who is brought up is not waited for.
        self.told = self.committed.min(self.durable);
        let successor = self.table.successor(self.me).filter(|_| now == Some(Place::Serving)).copied();
        self.behind = successor.map(|member| Behind {
            server: member.server,
            streaming: false,
            acked: if member.place == Place::Serving { self.applied - self.kept.len() as u64 } else { 0 },
            counts: member.place == Place::Serving,
            copying: None,
            making: false,
        });
        if self.behind.is_none() {
            self.keep_none();
        }
        self.begin(effects);
        self.advance(effects);
        // The one before may have asked before this one went by the table.
        self.report(effects);
    }

    fn distrust(&mut self, effects: &mut Vec<Effect<O>>) {
        (self.based, self.by) = (false, None);
        (self.applied, self.durable, self.committed, self.told) = (0, 0, 0, 0);
        effects.push(Effect::Distrust);
    }

    fn keep_none(&mut self) {
        self.kept.clear();
        self.kept_bytes = 0;
    }

    /// The number of the first operation that is kept, or would be.
    pub fn first_kept(&self) -> u64 {
        self.applied + 1 - self.kept.len() as u64
    }

    /// Tells the one before how far it is.
    fn report(&self, effects: &mut Vec<Effect<O>>) {
        let Some(before) = self.table.predecessor(self.me).filter(|_| self.place().is_some()) else { return };
        let version = self.table.version;
        let applied = if self.based { Some(self.applied) } else { self.by.map(|by| by.next - 1) };
        effects.push(Effect::Send(before.server, Message::At { version, applied }));
        if self.based && self.told > 0 {
            // It may have been told before it went by this table, and taken no notice.
            effects.push(Effect::Send(before.server, Message::Ack { version, seq: self.told }));
        }
    }

    /// Asks the one behind how far it is.
    fn begin(&mut self, effects: &mut Vec<Effect<O>>) {
        if let Some(behind) = &mut self.behind {
            (behind.streaming, behind.copying, behind.making) = (false, None, false);
            let begin = Message::Begin { version: self.table.version, committed: self.committed };
            effects.push(Effect::Send(behind.server, begin));
            self.bound_kept();
        }
    }

    /// Keeps an operation that was applied, and sends it on.
    fn take(&mut self, operation: O, effects: &mut Vec<Effect<O>>) {
        self.applied += 1;
        let (version, seq, committed) = (self.table.version, self.applied, self.committed);
        if let Some(behind) = &self.behind {
            if behind.streaming {
                let operation = operation.clone();
                effects.push(Effect::Send(behind.server, Message::Forward { version, seq, operation, committed }));
            }
            self.kept_bytes += operation.weight();
            self.kept.push_back(operation);
            self.bound_kept();
        }
    }

    /// Keeps none where that is too much; writers, asynchronous ones too, wait for room where nothing is acknowledged
    /// without the one behind, and while a copy is made for it: see [`Replica::advance`].
    fn bound_kept(&mut self) {
        let waits = self.behind.as_ref().is_some_and(|behind| behind.counts || behind.making);
        if !waits && self.regard != Regard::Always && self.kept_bytes > self.kept_bytes_max {
            self.keep_none();
        }
    }

    /// Operations up to this one need not be kept any more.
    fn keep_after(&mut self, seq: u64) {
        let known = (seq + 1).saturating_sub(self.first_kept()).min(self.kept.len() as u64) as usize;
        for operation in self.kept.drain(..known) {
            self.kept_bytes -= operation.weight();
        }
    }

    /// Tells what is durable here and on all behind.
    fn advance(&mut self, effects: &mut Vec<Effect<O>>) {
        if self.place() != Some(Place::Serving) && self.place() != Some(Place::Syncing) || !self.based {
            return;
        }
        if self.behind.as_ref().is_some_and(|behind| behind.making) && self.kept_bytes > self.kept_bytes_max {
            // What the copy does not hold is to be sent behind it. So writers wait until it is made.
            return;
        }
        let behind = match (&self.behind, self.regard) {
            (Some(behind), regard) if behind.counts || regard == Regard::Always => behind.acked,
            (None, Regard::Always) if self.is_head() => 0,
            _ => u64::MAX,
        };
        let done = self.durable.min(behind);
        if done <= self.told {
            return;
        }
        self.told = done;
        let version = self.table.version;
        if self.is_head() {
            self.committed = self.committed.max(done);
            effects.push(Effect::Committed(done));
            if done == self.applied {
                // While there is more to come, what comes tells of it.
                self.tell_committed(effects);
            }
        } else if let Some(before) = self.table.predecessor(self.me) {
            effects.push(Effect::Send(before.server, Message::Ack { version, seq: done }));
        }
    }

    fn hear(&mut self, from: ServerId, message: Message<O>, effects: &mut Vec<Effect<O>>) {
        let version = message.version();
        if self.place().is_none() {
            // What its last start was, it is not.
            return;
        }
        if version != self.table.version {
            if version > self.table.version {
                effects.push(Effect::Refresh);
            }
            return;
        }
        let is_before = self.table.predecessor(self.me).is_some_and(|before| before.server == from);
        let is_behind = self.behind.as_ref().is_some_and(|behind| behind.server == from);
        match message {
            Message::Begin { committed, .. } if is_before => {
                self.note(committed);
                self.report(effects);
            }
            Message::Forward { seq, operation, committed, .. } if is_before => {
                self.note(committed);
                self.receive(from, seq, operation, effects);
            }
            Message::Committed { seq, .. } if is_before => {
                self.note(seq);
                self.tell_committed(effects);
            }
            Message::At { applied, .. } if is_behind => self.stream(applied, effects),
            Message::Ack { seq, .. } if is_behind => self.acknowledge(seq, effects),
            _ => {}
        }
    }

    fn tell_committed(&self, effects: &mut Vec<Effect<O>>) {
        if let Some(behind) = self.behind.as_ref().filter(|behind| behind.streaming) {
            let committed = Message::Committed { version: self.table.version, seq: self.committed };
            effects.push(Effect::Send(behind.server, committed));
        }
    }

    fn note(&mut self, committed: u64) {
        self.committed = self.committed.max(committed);
    }

    fn receive(&mut self, from: ServerId, seq: u64, operation: O, effects: &mut Vec<Effect<O>>) {
        let version = self.table.version;
        if !self.based {
            match &mut self.by {
                Some(by) if seq == by.next => {
                    by.next += 1;
                    effects.push(Effect::PutBy(seq, operation));
                }
                Some(by) if seq > by.next => self.report(effects),
                // It is in the copy, or was sent before that was asked for.
                _ => {}
            }
        } else if seq == self.applied + 1 {
            effects.push(Effect::Apply(seq, operation.clone()));
            self.take(operation, effects);
        } else if seq > self.applied {
            // Something was lost on the way.
            effects.push(Effect::Send(from, Message::At { version, applied: Some(self.applied) }));
        } else if self.told > 0 {
            // So was the answer, perhaps.
            effects.push(Effect::Send(from, Message::Ack { version, seq: self.told }));
        }
    }

    /// Sends what the one behind lacks.
    fn stream(&mut self, applied: Option<u64>, effects: &mut Vec<Effect<O>>) {
        let (first, applied_here) = (self.first_kept(), self.applied);
        let Some(behind) = &mut self.behind else { return };
        match applied {
            Some(applied) if (first - 1..=applied_here).contains(&applied) => {
                (behind.streaming, behind.copying) = (true, None);
                self.send_after(applied, effects);
                if let Some(behind) = self.behind.as_mut().filter(|behind| behind.making) {
                    behind.making = false;
                    self.bound_kept();
                    self.advance(effects);
                }
            }
            // One that serves has everything that is not kept.
            _ if behind.counts => behind.streaming = true,
            since if behind.copying.is_some_and(|seq| since.is_none_or(|since| since < seq)) => {}
            _ => {
                self.want_copy(effects);
                self.advance(effects);
            }
        }
    }

    /// Has a copy made for the one behind.
    fn want_copy(&mut self, effects: &mut Vec<Effect<O>>) {
        if let Some(behind) = &mut self.behind {
            (behind.streaming, behind.copying, behind.making) = (false, Some(self.applied), false);
            effects.push(Effect::Copy(behind.server));
            self.keep_none();
        }
    }

    /// Whether a copy is to be made for this server, and is not made yet.
    pub fn wants_copy(&self, to: ServerId) -> bool {
        let behind = self.behind.as_ref().filter(|behind| behind.server == to);
        behind.is_some_and(|behind| behind.copying.is_some() && !behind.streaming)
    }

    /// Offers a copy of the state after operation `seq`, with what came behind it. One that was begun in another table
    /// is of no use, since another was asked for since; nor is one of before what is kept.
    fn offer(&mut self, to: ServerId, version: u64, seq: u64, effects: &mut Vec<Effect<O>>) {
        if version != self.table.version || !self.wants_copy(to) {
            return;
        }
        if !(self.first_kept() - 1..=self.applied).contains(&seq) {
            self.want_copy(effects);
            return self.advance(effects);
        }
        if let Some(behind) = &mut self.behind {
            (behind.streaming, behind.copying, behind.making) = (true, Some(seq), false);
        }
        effects.push(Effect::Offer { to, seq });
        self.keep_after(seq);
        self.send_after(seq, effects);
        self.bound_kept();
        match self.behind.as_ref().map(|behind| behind.acked) {
            // It had that before the copy was made, so it puts none in place and tells of nothing.
            Some(acked) if acked > 0 && acked >= seq => self.acknowledge(acked, effects),
            _ => self.advance(effects),
        }
    }

    /// Sends the one behind what is kept after operation `seq`.
    fn send_after(&self, seq: u64, effects: &mut Vec<Effect<O>>) {
        let (version, committed) = (self.table.version, self.committed);
        let Some(to) = self.behind.as_ref().map(|behind| behind.server) else { return };
        let numbered = (self.first_kept()..).zip(&self.kept);
        for (seq, operation) in numbered.filter(|(number, _)| *number > seq) {
            let operation = operation.clone();
            effects.push(Effect::Send(to, Message::Forward { version, seq, operation, committed }));
        }
        // It may have grown since the one behind was asked.
        self.tell_committed(effects);
    }

    fn acknowledge(&mut self, seq: u64, effects: &mut Vec<Effect<O>>) {
        let (seq, first) = (seq.min(self.applied), self.first_kept());
        let Some(behind) = &mut self.behind else { return };
        behind.acked = behind.acked.max(seq);
        // What lies between is in a copy that is on its way, or has to be.
        let has_all = seq >= self.told && seq + 1 >= first;
        if !behind.counts && behind.streaming && has_all && self.regard != Regard::Never {
            behind.counts = true;
            effects.push(Effect::InStep(behind.server, self.table.version));
        }
        self.keep_after(seq);
        if let Some(behind) = &mut self.behind
            && behind.copying.is_some_and(|copied| copied <= seq && behind.streaming)
        {
            // It has what the copy holds, by that or before that came.
            behind.copying = None;
        }
        self.advance(effects);
    }

    /// Whether this member syncs, by this version of the table, and this is the server that brings it up.
    pub fn is_brought_up_by(&self, from: ServerId, version: u64) -> bool {
        let is_before = self.table.predecessor(self.me).is_some_and(|before| before.server == from);
        is_before && version == self.table.version && self.place() == Some(Place::Syncing)
    }

    /// Goes on from a copy, and what was put by behind it.
    fn build_on(&mut self, from: ServerId, version: u64, seq: u64, effects: &mut Vec<Effect<O>>) {
        // The table may have changed since, but not who brings it up: see `adopt`.
        let Some(by) = self.by.filter(|by| (by.from, by.version) == (from, version) && !self.based) else { return };
        let version = self.table.version;
        let is_all = by.next == seq + 1;
        (self.based, self.by) = (true, None);
        (self.applied, self.durable) = (seq, seq);
        if !is_all {
            // The store has less than what came: what is missing is asked for.
            effects.push(Effect::Send(from, Message::At { version, applied: Some(seq) }));
        }
        self.told = seq;
        effects.push(Effect::Send(from, Message::Ack { version, seq }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Member;

    fn table(version: u64, last: Place) -> Table {
        let member =
            |server, place, since| Member { server: ServerId(server), incarnation: Incarnation(1), place, since };
        let members = vec![member(0, Place::Serving, 1), member(1, Place::Syncing, 1), member(2, last, version)];
        Table { version, members }
    }

    /// A head that has begun, with a member that is brought up and has told where it is.
    fn head(regard: Regard) -> Replica<u8> {
        let mut head = Replica::new(ServerId(0), Incarnation(1), 0, 3);
        head.step(Event::Regard(regard));
        head.step(Event::Table(table(1, Place::Offline)));
        head.step(Event::Message(ServerId(1), Message::At { version: 1, applied: Some(0) }));
        head
    }

    fn write(head: &mut Replica<u8>, seq: u64) -> Vec<Effect<u8>> {
        head.step(Event::Applied(7));
        head.step(Event::Durable(seq))
    }

    fn ack(head: &mut Replica<u8>, seq: u64) -> Vec<Effect<u8>> {
        head.step(Event::Message(ServerId(1), Message::Ack { version: 1, seq }))
    }

    /// A head that makes a copy for one that has nothing, and has kept more meanwhile than may be: the last is not
    /// told.
    fn making() -> Replica<u8> {
        let mut head = Replica::new(ServerId(0), Incarnation(1), 0, 3);
        head.step(Event::Table(table(1, Place::Offline)));
        head.step(Event::Message(ServerId(1), Message::At { version: 1, applied: None }));
        head.step(Event::CopyBegins(ServerId(1)));
        for seq in 1..=3 {
            assert!(write(&mut head, seq).contains(&Effect::Committed(seq)));
        }
        assert_eq!(write(&mut head, 4), []);
        head
    }

    /// Failure: writers waited for one whose link had opened again and that said nothing. Cause: the copy was given up,
    /// and what it had held up was neither told nor dropped.
    #[test]
    fn what_a_copy_held_up_is_told_where_it_is_given_up() {
        for event in [
            Event::Reconnected(ServerId(1)),
            Event::Table(table(2, Place::Offline)),
            Event::CopyNotMade(ServerId(1)),
            Event::CopyMade { to: ServerId(1), version: 1, seq: 2 },
        ] {
            let mut head = making();
            let told = head.step(event.clone());
            assert!(told.contains(&Effect::Committed(4)), "{event:?}: {told:?}");
            assert!(head.kept_bytes() <= 3, "{event:?}: {} bytes are kept", head.kept_bytes());
        }
    }

    #[test]
    fn one_that_has_what_the_copy_holds_is_in_step_once_that_is_offered() {
        let mut head = making();
        // It came by what was sent before.
        ack(&mut head, 4);
        let told = head.step(Event::CopyMade { to: ServerId(1), version: 1, seq: 4 });
        assert!(told.contains(&Effect::InStep(ServerId(1), 1)), "{told:?}");
    }

    #[test]
    fn a_member_that_is_never_waited_for_is_sent_everything_and_counts_for_nothing() {
        let mut head = head(Regard::Never);
        for seq in 1..=9 {
            assert!(write(&mut head, seq).contains(&Effect::Committed(seq)));
            assert!(head.kept_bytes() <= 3, "what is kept is bounded");
        }
        let effects = ack(&mut head, 9);
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::InStep(..))), "{effects:?}");
        assert_eq!((head.in_step(), head.acked()), (None, Some(9)));
        assert!(write(&mut head, 10).contains(&Effect::Committed(10)));
    }

    #[test]
    fn nothing_is_acknowledged_without_a_member_that_is_always_waited_for() {
        let mut head = head(Regard::Always);
        for seq in 1..=9 {
            assert!(!write(&mut head, seq).iter().any(|effect| matches!(effect, Effect::Committed(_))));
        }
        // It is another start of it: what waits is kept for that.
        let mut next = table(2, Place::Offline);
        (next.members[1].incarnation, next.members[1].since) = (Incarnation(2), 2);
        assert!(!head.step(Event::Table(next)).iter().any(|effect| matches!(effect, Effect::Committed(_))));
        let from = Message::At { version: 2, applied: Some(4) };
        let sent = head.step(Event::Message(ServerId(1), from));
        let sent = sent.iter().filter(|effect| matches!(effect, Effect::Send(_, Message::Forward { .. })));
        assert_eq!(sent.count(), 5);
        let acked = head.step(Event::Message(ServerId(1), Message::Ack { version: 2, seq: 7 }));
        assert!(acked.contains(&Effect::Committed(7)), "{acked:?}");
        // Where there is none, nothing is; until it is not to be waited for any more.
        let alone = Table { version: 3, members: vec![table(1, Place::Offline).members[0]] };
        assert!(!head.step(Event::Table(alone)).iter().any(|effect| matches!(effect, Effect::Committed(_))));
        assert!(head.step(Event::Regard(Regard::InStep)).contains(&Effect::Committed(9)));
    }

    #[test]
    fn a_member_resumes_once_and_only_from_a_state() {
        let resumed = |based: bool| {
            let member = Replica::<u8>::new(ServerId(1), Incarnation(1), 5, 3);
            let mut member = if based { member } else { member.unbased() };
            member.resume();
            let effects = member.step(Event::Table(table(1, Place::Offline)));
            (member, effects)
        };
        let (mut member, effects) = resumed(true);
        assert!(!effects.contains(&Effect::Distrust), "{effects:?}");
        assert!(effects.contains(&Effect::Send(ServerId(0), Message::At { version: 1, applied: Some(5) })));
        let mut next = table(2, Place::Offline);
        next.members[1].since = 2;
        assert!(member.step(Event::Table(next)).contains(&Effect::Distrust));
        assert!(resumed(false).1.contains(&Effect::Distrust));
    }

    #[test]
    fn what_is_acknowledged_without_it_a_member_does_not_acknowledge_before_it_is_durable() {
        let (before, mut member) = (ServerId(0), Replica::new(ServerId(1), Incarnation(1), 0, 1_000));
        member.step(Event::Table(table(1, Place::Offline)));
        member.step(Event::Copying { from: before, version: 1, seq: 0 });
        member.step(Event::Copied { from: before, version: 1, seq: 0 });
        let forward = Message::Forward { version: 1, seq: 1, operation: 7_u8, committed: 0 };
        assert!(member.step(Event::Message(before, forward)).contains(&Effect::Apply(1, 7)));
        member.step(Event::Message(before, Message::Committed { version: 1, seq: 1 }));
        let is_ack = |effect: &Effect<u8>| matches!(effect, Effect::Send(_, Message::Ack { seq: 1, .. }));
        let effects = member.step(Event::Table(table(2, Place::Waiting)));
        assert!(!effects.iter().any(is_ack), "{effects:?}");
        assert!(member.step(Event::Durable(1)).iter().any(is_ack));
    }
}

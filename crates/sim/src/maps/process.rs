//! A process on the map: opens it, does what its randomness says, and notes all that it did and was told.
//!
//! open → get, scan, mutate, alter, build an index, … → notes; killed at any call, it opens the map anew
//!
//! Invariants:
//! 1. A change is noted as unanswered before its first call.
//! 2. An answer that the interface does not allow breaks the run.

use std::sync::Arc;

use esker_map::{
    Alter, Change as MapChange, Compare, Condition, DataType, Durability, Error, Filter, Get, Key, MapStorage,
    Mutation, NEVER_MS, Over, Record, Scan, Sweeper, TableName, Value, Waist,
};
use esker_store::{Error as StoreError, ObjectStore};

use crate::lasting::{Deed, Lasts};
use crate::maps::model::{Change, Number, Row, TableAsk, TableCall, TableTold, Tables, What, When};
use crate::maps::schema::schema;
use crate::shared::notes::Diary;
use crate::shared::setting::{Setting, SimClock};
use crate::shared::wire::Wire;

/// Values of g: from 1 to this; 0 stands for none.
pub(crate) const GROUPS: i32 = 3;
/// Opens page tokens.
pub(crate) const SECRET: [u8; 32] = [7; 32];

/// The table.
pub(crate) fn name() -> TableName {
    TableName::new("n", "t")
}

/// What the processes of a run do.
pub(crate) struct TableHabits {
    pub tables: Tables,
    /// Whether lists change several rows.
    pub lists: bool,
    /// Whether rows expire.
    pub expire: bool,
    /// Whether some changes are only applied.
    pub applied: bool,
    /// Whether the index is dropped and made.
    pub indexes: bool,
}

impl TableHabits {
    pub(crate) fn new(rng: &mut fastrand::Rng) -> Self {
        let (partitions, rows) = (rng.usize(1..3), rng.usize(1..4));
        let mut one_in = |n: u8| rng.u8(0..n) == 0;
        let tables = Tables { partitions, rows, changes: one_in(3) };
        Self { tables, lists: one_in(2), expire: one_in(3), applied: one_in(2), indexes: one_in(2) }
    }
}

/// What processes share.
pub(crate) struct TableWorld<'a> {
    pub setting: &'a Setting,
    pub notes: Diary<Deed<TableCall>, TableTold>,
    pub habits: TableHabits,
}

/// The key of a row.
pub(crate) fn key_of(tables: &Tables, row: Number) -> Key {
    Key::of("p", (row / tables.rows) as i32).and("c", (row % tables.rows) as i32)
}

fn int(record: &Record, column: &str) -> Result<i32, String> {
    match record.value(column) {
        None => Ok(0),
        Some(Value::Int(number)) => Ok(*number),
        Some(other) => Err(format!("column {column} holds {other:?}")),
    }
}

/// The number of the row that a record is of.
pub(crate) fn number_of(tables: &Tables, record: &Record) -> Result<Number, String> {
    let (partition, row) = (int(record, "p")? as usize, int(record, "c")? as usize);
    if partition >= tables.partitions || row >= tables.rows {
        return Err(format!("a row that no process wrote: {record:?}"));
    }
    Ok(partition * tables.rows + row)
}

/// What stands in a record.
pub(crate) fn row_of(record: &Record) -> Result<Row, String> {
    let (x, g, y) = (int(record, "x")?, int(record, "g")?, int(record, "y")?);
    Ok(Row { x, g, y, expires_ms: record.expires_ms.unwrap_or(0) })
}

/// The rows with this g, by the index.
pub(crate) fn scan_index(map: &Waist, g: i32) -> esker_map::Result<Vec<Record>> {
    Ok(map.scan(&Scan::new(&name(), Over::Index("g".into(), g.into())))?.records)
}

/// One life of a process.
pub(crate) struct TableProcess<'a> {
    world: &'a TableWorld<'a>,
    me: usize,
    rng: fastrand::Rng,
    clock: Arc<SimClock>,
    map: Waist,
    sweeper: Sweeper,
}

type Step = Result<(), String>;

/// An answer, sorted by what its caller knows then.
enum Sorted<T> {
    Told(T),
    /// It cannot be, for what is missing or there.
    Cannot(TableTold),
    Refused,
    Unknown,
}

/// Whether a store may say so to a process that did nothing wrong.
fn excused(error: &StoreError) -> bool {
    use StoreError as E;
    matches!(error, E::Io { .. } | E::Unknown { .. } | E::Stopped { .. } | E::Full { .. } | E::Closed)
}

fn sorted<T>(answer: Result<T, Error>) -> Result<Sorted<T>, String> {
    Ok(match answer {
        Ok(value) => Sorted::Told(value),
        Err(Error::Unknown { .. }) => Sorted::Unknown,
        Err(Error::Store(error)) if error.is_unknown() => Sorted::Unknown,
        Err(Error::Store(error)) if excused(&error) => Sorted::Refused,
        Err(Error::Contended { .. }) => Sorted::Refused,
        Err(Error::Missing { what: "table", .. }) => Sorted::Cannot(TableTold::Missing),
        Err(Error::Missing { what: "column", .. }) => Sorted::Cannot(TableTold::NoColumn),
        Err(Error::Exists { what: "table" | "column", .. }) => Sorted::Cannot(TableTold::Exists),
        Err(error) => return Err(error.to_string()),
    })
}

impl<'a> TableProcess<'a> {
    /// Opens the map. `None`: the store did not answer.
    pub(crate) fn open(world: &'a TableWorld<'a>, me: usize) -> Result<Option<Self>, String> {
        let rng = fastrand::Rng::with_seed(world.setting.baton.draw(u64::MAX));
        let clock = SimClock::new(world.setting);
        let store: Arc<dyn ObjectStore> = Wire::new(&world.setting.net, me);
        let told = Arc::clone(&clock);
        match Waist::open(store, Arc::new(move || told.told_ms()), SECRET) {
            Ok(map) => {
                let sweeper = Sweeper::new(map.clone());
                Ok(Some(Self { world, me, rng, clock, map, sweeper }))
            }
            Err(Error::Store(error)) if excused(&error) => Ok(None),
            Err(error) => Err(format!("opening: {error}")),
        }
    }

    /// Goes on until nothing of `acts` is left.
    pub(crate) fn live(&mut self, acts: &mut u32) -> Step {
        while *acts > 0 {
            *acts -= 1;
            self.clock.pass(&mut self.rng, &self.world.setting.baton);
            self.act()?;
        }
        Ok(())
    }

    fn time(&self) -> u64 {
        self.world.setting.baton.time()
    }

    fn call(&self, ask: TableAsk) -> TableCall {
        TableCall { ask, now_ms: self.clock.now_ms() }
    }

    fn lasts(&mut self) -> Lasts {
        if self.world.habits.applied && self.rng.u8(0..3) == 0 { Lasts::UntilPowerLoss } else { Lasts::Durably }
    }

    fn number(&mut self) -> Number {
        let tables = &self.world.habits.tables;
        self.rng.usize(0..tables.partitions * tables.rows)
    }

    fn begin(&self, ask: TableAsk, lasts: Lasts) -> usize {
        self.world.notes.begin(self.me, self.time(), Deed::Ask(self.call(ask), lasts))
    }

    /// A change: asked for, and noted as it was answered.
    fn change(&mut self, ask: TableAsk, lasts: Lasts, answer: impl FnOnce(&Self) -> Result<TableTold, Error>) -> Step {
        let at = self.begin(ask.clone(), lasts);
        let answer = answer(self);
        match sorted(answer).map_err(|why| format!("{ask:?}: {why}"))? {
            Sorted::Told(told) | Sorted::Cannot(told) => self.world.notes.end(at, self.time(), told),
            Sorted::Unknown => {}
            Sorted::Refused => self.world.notes.refuse(at),
        }
        Ok(())
    }

    /// A read: noted if it was answered.
    fn look<T>(
        &mut self,
        answer: impl FnOnce(&Self) -> Result<T, Error>,
        told: impl FnOnce(T) -> Result<Vec<(TableAsk, TableTold)>, String>,
    ) -> Step {
        let begin = self.time();
        let answer = answer(self);
        let all = match sorted(answer).map_err(|why| format!("reading: {why}"))? {
            Sorted::Told(found) => told(found)?,
            Sorted::Cannot(cannot) => vec![(TableAsk::Nothing, cannot)],
            Sorted::Refused | Sorted::Unknown => return Ok(()),
        };
        let end = self.time();
        for (ask, told) in all {
            self.world.notes.note(self.me, (begin, end), Deed::Ask(self.call(ask), Lasts::Durably), told);
        }
        Ok(())
    }

    fn act(&mut self) -> Step {
        let changes = self.world.habits.tables.changes;
        let (made, indexed) = (self.rng.u8(0..3) > 0, self.rng.bool());
        match self.rng.u8(0..100) {
            0..3 if changes => self.change(TableAsk::Truncate, Lasts::Durably, |own| {
                own.map.truncate_table(&name()).map(|()| TableTold::Done)
            }),
            3..5 if changes => {
                self.change(TableAsk::Drop, Lasts::Durably, |own| own.map.drop_table(&name()).map(|()| TableTold::Done))
            }
            5..13 if changes => self.change(TableAsk::Create, Lasts::Durably, |own| {
                own.map.create_table(&name(), &schema(indexed)).map(|()| TableTold::Done)
            }),
            13..17 if changes => self.alter(made),
            17..25 if self.world.habits.indexes => self.index(made),
            25..28 if self.world.habits.expire => self.sweep(),
            28..38 => self.get(),
            38..48 => self.scan_partition(),
            48..52 => self.scan_all(),
            52..64 => self.scan_by_index(),
            _ => self.mutate(),
        }
    }

    fn alter(&mut self, adds: bool) -> Step {
        let (ask, alter) = match adds {
            true => (TableAsk::AddY, Alter::AddColumn("y".into(), DataType::Int)),
            false => (TableAsk::DropY, Alter::DropColumn("y".into())),
        };
        self.change(ask, Lasts::Durably, |own| own.map.alter_table(&name(), &alter).map(|()| TableTold::Done))
    }

    fn index(&mut self, makes: bool) -> Step {
        self.change(TableAsk::Nothing, Lasts::Durably, |own| {
            let done = if makes { own.map.create_index(&name(), "g") } else { own.map.drop_index(&name(), "g") };
            match done {
                // Others make it and drop it too.
                Err(Error::Exists { what: "index", .. } | Error::Missing { what: "index", .. }) => Ok(TableTold::Done),
                done => done.map(|()| TableTold::Done),
            }
        })
    }

    fn sweep(&mut self) -> Step {
        let tables = &self.world.habits.tables;
        let sweep = |row| self.begin(TableAsk::Sweep(row), Lasts::UntilPowerLoss);
        let noted: Vec<usize> = (0..tables.partitions * tables.rows).map(sweep).collect();
        let answer = if self.rng.bool() { self.sweeper.step(3).map(drop) } else { self.map.sweep(&name()).map(drop) };
        // What an error leaves open may come later, too.
        if let Sorted::Told(()) = sorted(answer).map_err(|why| format!("sweeping: {why}"))? {
            noted.into_iter().for_each(|at| self.world.notes.end(at, self.time(), TableTold::Done));
        }
        Ok(())
    }

    fn get(&mut self) -> Step {
        let row = self.number();
        let get = Get::new(&name(), key_of(&self.world.habits.tables, row));
        self.look(
            |own| own.map.get(&get),
            |found| {
                let found = found.as_ref().map(row_of).transpose()?;
                Ok(vec![(TableAsk::Get(row), TableTold::Row(found))])
            },
        )
    }

    fn scan_partition(&mut self) -> Step {
        let tables = &self.world.habits.tables;
        let partition = self.rng.usize(0..tables.partitions);
        let reverse = self.rng.bool();
        let scan = Scan { reverse, ..Scan::partition(&name(), Key::of("p", partition as i32)) };
        self.look(
            |own| own.map.scan(&scan),
            |page| {
                let rows = rows_of(tables, &page.records)?;
                Ok(vec![(TableAsk::Scan(partition), TableTold::Rows(part_of(tables, partition, &rows)))])
            },
        )
    }

    fn scan_all(&mut self) -> Step {
        let tables = &self.world.habits.tables;
        self.look(
            |own| own.map.scan(&Scan::new(&name(), Over::All)),
            |page| {
                let rows = rows_of(tables, &page.records)?;
                // A page may end anywhere, as where a row comes to stand behind what was just read: what is behind its
                // last row was not looked at.
                let last = page.records.last().map(|last| number_of(tables, last)).transpose()?;
                let looked_at = match page.next {
                    Some(_) => last.map_or(0, |last| last / tables.rows + 1),
                    None => tables.partitions,
                };
                // Partitions are of different moments.
                let of_one =
                    |partition| (TableAsk::Scan(partition), TableTold::Rows(part_of(tables, partition, &rows)));
                Ok((0..looked_at).map(of_one).collect())
            },
        )
    }

    /// Rows that an index leads to are each of a moment of its own.
    fn scan_by_index(&mut self) -> Step {
        let tables = &self.world.habits.tables;
        let g = self.rng.i32(1..GROUPS + 1);
        self.look(
            |own| match scan_index(&own.map, g) {
                Err(Error::Invalid { what: "index", .. } | Error::Missing { what: "index", .. }) => Ok(None),
                found => found.map(Some),
            },
            |found| {
                // There is none to go by, or it is being built.
                let Some(found) = found else { return Ok(Vec::new()) };
                let rows = rows_of(tables, &found)?;
                let told = |(number, row): (usize, &Option<Row>)| match row {
                    Some(row) if row.g != g => Err(format!("the index leads to {row:?} for {g}")),
                    Some(row) => Ok((TableAsk::Get(number), TableTold::Row(Some(*row)))),
                    None => Ok((TableAsk::NotAmong(number, g), TableTold::Done)),
                };
                rows.iter().enumerate().map(told).collect()
            },
        )
    }

    fn one_change(&mut self, row: Number) -> Change {
        let habits = &self.world.habits;
        let when = match self.rng.u8(0..10) {
            0..2 => When::Exists,
            2..4 => When::NotExists,
            4..7 => match self.map.get(&Get::new(&name(), key_of(&habits.tables, row))) {
                Ok(Some(found)) => When::XIs(int(&found, "x").unwrap_or(0)),
                _ => When::NotExists,
            },
            _ => When::Always,
        };
        let what = if self.rng.u8(0..4) == 0 {
            What::Delete
        } else {
            let expires_ms = match self.rng.u8(0..4) {
                0 if habits.expire => Some((self.clock.now_ms() + self.rng.u64(0..200)).saturating_sub(20)),
                1 if habits.expire => Some(0),
                _ => None,
            };
            // Times are unique, and so are values.
            let x = self.time() as i32;
            let g = (self.rng.u8(0..3) > 0).then(|| self.rng.i32(1..GROUPS + 1));
            let y = (habits.tables.changes && self.rng.u8(0..4) == 0).then_some(x);
            What::Put { x, g, y, expires_ms }
        };
        Change { row, when, what }
    }

    fn mutate(&mut self) -> Step {
        let first = self.number();
        let mut changes = vec![self.one_change(first)];
        while self.world.habits.lists && changes.len() < 4 && self.rng.bool() {
            let row = self.number();
            changes.push(self.one_change(row));
        }
        let lasts = self.lasts();
        let mutations: Vec<Mutation> =
            changes.iter().map(|change| mutation(&self.world.habits.tables, change)).collect();
        let how = if lasts == Lasts::Durably { Durability::Durable } else { Durability::Applied };
        self.change(TableAsk::Mutate(changes), lasts, |own| match own.map.mutate(&mutations, how) {
            Ok(done) => Ok(done.wait().map(|()| TableTold::Done)?),
            Err(Error::ConditionFailed { mutation, current }) => {
                let row = current.as_deref().map(row_of).transpose();
                // What cannot be read is no row of ours.
                Ok(TableTold::Failed(mutation, row.unwrap_or(Some(Row::default()))))
            }
            Err(error) => Err(error),
        })
    }
}

fn rows_of(tables: &Tables, records: &[Record]) -> Result<Vec<Option<Row>>, String> {
    let mut rows = vec![None; tables.partitions * tables.rows];
    for record in records {
        let number = number_of(tables, record)?;
        if rows[number].replace(row_of(record)?).is_some() {
            return Err(format!("a row is shown twice: {record:?}"));
        }
    }
    Ok(rows)
}

fn part_of(tables: &Tables, partition: usize, rows: &[Option<Row>]) -> Vec<Option<Row>> {
    tables.of_partition(partition).into_iter().map(|number| rows[number]).collect()
}

fn mutation(tables: &Tables, change: &Change) -> Mutation {
    let change_of = match change.what {
        What::Delete => MapChange::Delete,
        What::Put { x, g, y, expires_ms } => {
            let mut columns = vec![("x".to_owned(), Some(Value::Int(x)))];
            columns.extend(g.map(|g| ("g".to_owned(), Some(Value::Int(g)))));
            columns.extend(y.map(|y| ("y".to_owned(), Some(Value::Int(y)))));
            let expires_ms = expires_ms.map(|at| if at == 0 { NEVER_MS } else { at });
            MapChange::Put { columns, expires_ms }
        }
    };
    let condition = match change.when {
        When::Always => Condition::Always,
        When::Exists => Condition::Exists,
        When::NotExists => Condition::NotExists,
        When::XIs(x) => Condition::If(Filter::Compare("x".into(), Compare::Equal, x.into())),
    };
    Mutation { table: name(), key: key_of(tables, change.row), change: change_of, condition }
}

//! What the map face is, as a model: one table that is there or not, with rows in partitions, and a column that comes
//! and goes.
//!
//! call, with the time that its process went by → the states that it may leave
//!
//! Invariants:
//! 1. A row that has expired by the clock of who calls is none, for that call.
//! 2. A list of mutations is made whole, or tells the first whose condition does not hold.

use crate::lasting::Parted;
use crate::linear::Model;

/// A row: numbers in three columns (0: absent), and when it goes (unix milliseconds; 0: never).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Row {
    /// Of no other put.
    pub x: i32,
    /// Few values; there may be an index.
    pub g: i32,
    /// In the column that comes and goes.
    pub y: i32,
    /// When it goes.
    pub expires_ms: u64,
}

/// A number for a row, whatever its partition.
pub type Number = usize;

/// What must hold of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Nothing.
    Always,
    /// It is there.
    Exists,
    /// It is not.
    NotExists,
    /// It is there, and x is this.
    XIs(i32),
}

/// What is done to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Columns are set; those of `None` stay.
    Put {
        /// x.
        x: i32,
        /// g.
        g: Option<i32>,
        /// y.
        y: Option<i32>,
        /// When it goes; `Some(0)`: never any more.
        expires_ms: Option<u64>,
    },
    /// It is removed.
    Delete,
}

/// A change of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub row: Number,
    /// If.
    pub when: When,
    /// How.
    pub what: What,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableAsk {
    /// A row.
    Get(Number),
    /// The rows of a partition.
    Scan(usize),
    /// That a row is not among those with this g.
    NotAmong(Number, i32),
    /// Changes of rows, all or none.
    Mutate(Vec<Change>),
    /// A row removed if it has expired.
    Sweep(Number),
    /// The table made.
    Create,
    /// The table removed.
    Drop,
    /// All rows removed.
    Truncate,
    /// y added.
    AddY,
    /// y dropped.
    DropY,
    /// Anything that changes no row and no column, as of indexes.
    Nothing,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableTold {
    /// It is done, or so.
    Done,
    /// This row.
    Row(Option<Row>),
    /// These rows.
    Rows(Vec<Option<Row>>),
    /// The condition of this change does not hold, of this row.
    Failed(usize, Option<Row>),
    /// It is there already.
    Exists,
    /// There is no such table.
    Missing,
    /// There is no y.
    NoColumn,
}

/// What is asked, and when by the clock of who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableCall {
    /// What.
    pub ask: TableAsk,
    /// When, in unix milliseconds.
    pub now_ms: u64,
}

/// The table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Table {
    there: bool,
    has_y: bool,
    rows: Vec<Option<Row>>,
}

/// The face: how many rows each partition has, and whether the table changes.
pub struct Tables {
    /// Partitions.
    pub partitions: usize,
    /// Rows of each.
    pub rows: usize,
    /// Whether the table is dropped, truncated and altered: then all of it is judged together.
    pub changes: bool,
}

impl Tables {
    /// The rows of a partition.
    pub fn of_partition(&self, partition: usize) -> Vec<Number> {
        (partition * self.rows..(partition + 1) * self.rows).collect()
    }

    fn all(&self) -> usize {
        self.partitions * self.rows
    }

    fn asked(&self, ask: &TableAsk) -> Vec<Number> {
        match ask {
            TableAsk::Get(row) | TableAsk::NotAmong(row, _) | TableAsk::Sweep(row) => vec![*row],
            TableAsk::Scan(partition) => self.of_partition(*partition),
            TableAsk::Mutate(changes) => changes.iter().map(|change| change.row).collect(),
            TableAsk::Create
            | TableAsk::Drop
            | TableAsk::Truncate
            | TableAsk::AddY
            | TableAsk::DropY
            | TableAsk::Nothing => Vec::new(),
        }
    }
}

impl Row {
    fn at(self, now_ms: u64) -> Option<Self> {
        (self.expires_ms == 0 || self.expires_ms > now_ms).then_some(self)
    }
}

impl When {
    fn holds(self, row: Option<Row>) -> bool {
        match self {
            Self::Always => true,
            Self::Exists => row.is_some(),
            Self::NotExists => row.is_none(),
            Self::XIs(x) => row.is_some_and(|row| row.x == x),
        }
    }
}

impl What {
    fn of(self, row: Option<Row>) -> Option<Row> {
        let Self::Put { x, g, y, expires_ms } = self else { return None };
        let row = row.unwrap_or_default();
        let (g, y) = (g.unwrap_or(row.g), y.unwrap_or(row.y));
        Some(Row { x, g, y, expires_ms: expires_ms.unwrap_or(row.expires_ms) })
    }

    fn names_y(self) -> bool {
        matches!(self, Self::Put { y: Some(_), .. })
    }
}

/// A list of changes on a table: what is told, and the rows then.
fn mutate(rows: &[Option<Row>], changes: &[Change], now_ms: u64) -> (TableTold, Vec<Option<Row>>) {
    let mut next = rows.to_vec();
    // What has expired is none from the first change on.
    changes.iter().for_each(|change| next[change.row] = next[change.row].and_then(|row| row.at(now_ms)));
    for (number, change) in changes.iter().enumerate() {
        let row = next[change.row];
        if !change.when.holds(row) {
            return (TableTold::Failed(number, row), rows.to_vec());
        }
        next[change.row] = change.what.of(row);
    }
    (TableTold::Done, next)
}

impl Model for Tables {
    type State = Table;
    type Call = TableCall;
    type Answer = TableTold;

    fn start(&self) -> Table {
        Table { there: true, has_y: false, rows: vec![None; self.all()] }
    }

    fn step(&self, state: &Table, call: &TableCall, answer: Option<&TableTold>) -> Vec<Table> {
        let live = |row: Number| state.rows[row].and_then(|found| found.at(call.now_ms));
        let mut next = state.clone();
        let fits = match answer {
            Some(TableTold::Missing) => !state.there,
            Some(TableTold::NoColumn) => state.there && !state.has_y,
            Some(TableTold::Exists) => state.there && (call.ask == TableAsk::Create || state.has_y),
            _ => return self.done(state, call, answer, next, &live),
        };
        if !fits {
            return Vec::new();
        }
        next.there = state.there;
        vec![next]
    }

    fn only_reads(&self, call: &TableCall, answer: &TableTold) -> bool {
        use TableTold as T;
        let reads =
            matches!(call.ask, TableAsk::Get(_) | TableAsk::Scan(_) | TableAsk::NotAmong(..) | TableAsk::Nothing);
        reads || matches!(answer, T::Missing | T::NoColumn | T::Exists | T::Failed(..))
    }

    fn may_do_nothing(&self, call: &TableCall, answer: &TableTold) -> bool {
        matches!((&call.ask, answer), (TableAsk::Sweep(_), TableTold::Done))
    }
}

impl Tables {
    /// The states that a call may leave that was not refused for what is missing, or there.
    fn done(
        &self,
        state: &Table,
        call: &TableCall,
        answer: Option<&TableTold>,
        mut next: Table,
        live: &dyn Fn(Number) -> Option<Row>,
    ) -> Vec<Table> {
        if state.there == (call.ask == TableAsk::Create) {
            // Of a table that is not there nothing has expired.
            return if matches!(call.ask, TableAsk::Sweep(_)) { vec![next] } else { Vec::new() };
        }
        let told = match &call.ask {
            TableAsk::Get(row) => TableTold::Row(live(*row)),
            TableAsk::Scan(partition) => TableTold::Rows(self.of_partition(*partition).into_iter().map(live).collect()),
            TableAsk::NotAmong(row, g) if live(*row).is_some_and(|row| row.g == *g) => return Vec::new(),
            TableAsk::NotAmong(..) | TableAsk::Nothing => TableTold::Done,
            TableAsk::Mutate(changes) => {
                if !state.has_y && changes.iter().any(|change| change.what.names_y()) {
                    return Vec::new();
                }
                let (told, rows) = mutate(&state.rows, changes, call.now_ms);
                next.rows = rows;
                told
            }
            TableAsk::Sweep(row) => {
                if state.rows[*row].is_none() || live(*row).is_some() {
                    return vec![next];
                }
                // Or it is left for later.
                let left = next.clone();
                next.rows[*row] = None;
                return vec![left, next];
            }
            TableAsk::Create => {
                next = Table { there: true, has_y: false, rows: vec![None; self.all()] };
                TableTold::Done
            }
            TableAsk::Drop | TableAsk::Truncate => {
                next.rows.fill(None);
                if call.ask == TableAsk::Drop {
                    (next.there, next.has_y) = (false, false);
                }
                TableTold::Done
            }
            TableAsk::AddY | TableAsk::DropY => {
                if state.has_y == (call.ask == TableAsk::AddY) {
                    return Vec::new();
                }
                next.has_y = !state.has_y;
                next.rows.iter_mut().flatten().for_each(|row| row.y = 0);
                TableTold::Done
            }
        };
        if answer.is_none_or(|answer| *answer == told) { vec![next] } else { Vec::new() }
    }
}

impl Parted for Tables {
    fn shown(&self, call: &TableCall, told: &TableTold) -> Vec<usize> {
        match (&call.ask, told) {
            (TableAsk::Mutate(changes), TableTold::Failed(number, _)) => {
                changes.iter().take(number + 1).map(|change| change.row).collect()
            }
            (
                TableAsk::Get(_) | TableAsk::Scan(_) | TableAsk::NotAmong(..),
                TableTold::Done | TableTold::Row(_) | TableTold::Rows(_),
            ) => self.asked(&call.ask),
            _ => Vec::new(),
        }
    }

    fn same(&self, part: usize, one: &Table, other: &Table) -> bool {
        match one.rows.get(part) {
            Some(row) => *row == other.rows[part],
            None => (one.there, one.has_y) == (other.there, other.has_y),
        }
    }

    fn touched(&self, call: &TableCall) -> Vec<usize> {
        let mut touched = self.asked(&call.ask);
        if self.changes || touched.is_empty() {
            touched.push(self.all());
        }
        if matches!(call.ask, TableAsk::Drop | TableAsk::Create | TableAsk::Truncate | TableAsk::DropY | TableAsk::AddY)
        {
            touched.extend(0..self.all());
        }
        touched
    }
}

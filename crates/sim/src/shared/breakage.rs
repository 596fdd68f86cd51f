//! Wrong lines, stores and clocks, each made on purpose, for the checks of histories to find it.
//!
//! Invariant: without one of these nothing here is done.

use esker_store::{Change, Condition, Guard, Op, Transaction};

/// A promise that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A lost answer is told as an error after which nothing was applied.
    LostToldAsRefused,
    /// Changes do not look whether what they were decided on is there still.
    NoGuards,
    /// What was not answered is sent again as if it were new.
    SentAgainAsNew,
    /// Some reads are answered as they were before.
    OldAnswers,
    /// What is acknowledged as durable is only applied.
    DurableIsApplied,
    /// Reads show what is not durable, though its writer asked for that.
    ShownBeforeDurable,
    /// Transactions are applied in two parts.
    TornTransactions,
    /// Reads of several keys are made in two parts.
    TornReads,
    /// Writes do not look whether their namespace, or the schema of their table, is there still.
    NoSchemaGuards,
    /// The clock that the face is given stands still.
    ClockStands,
    /// Rows are written without the entries of their indexes.
    IndexForgotten,
}

impl Sabotage {
    /// Those that keys find.
    pub const OF_KEYS: [Self; 10] = [
        Self::LostToldAsRefused,
        Self::NoGuards,
        Self::SentAgainAsNew,
        Self::OldAnswers,
        Self::DurableIsApplied,
        Self::ShownBeforeDurable,
        Self::TornTransactions,
        Self::TornReads,
        Self::NoSchemaGuards,
        Self::ClockStands,
    ];
    /// Those that tables find.
    pub const OF_TABLES: [Self; 10] = [
        Self::LostToldAsRefused,
        Self::NoGuards,
        Self::OldAnswers,
        Self::DurableIsApplied,
        Self::ShownBeforeDurable,
        Self::TornTransactions,
        Self::TornReads,
        Self::NoSchemaGuards,
        Self::ClockStands,
        Self::IndexForgotten,
    ];

    /// What becomes of a transaction on its way.
    pub(crate) fn change(self, txn: &mut Transaction) {
        // A guard keeps its number: faces tell by it whose guard failed.
        let holds = || Condition::XattrAbsent { name: b"nobody sets this".as_slice().into() };
        let lift = |txn: &mut Transaction, which: &dyn Fn(&Guard) -> bool| {
            txn.guards.iter_mut().filter(|guard| which(guard)).for_each(|guard| guard.condition = holds());
        };
        match self {
            Self::NoGuards => lift(txn, &|guard| holds_rows(guard) && of_rows(&guard.condition)),
            Self::NoSchemaGuards => lift(txn, &|guard| {
                let exists = guard.condition == Condition::Exists;
                exists || !holds_rows(guard) && !guard.object.name().starts_with(b"operations")
            }),
            Self::DurableIsApplied => txn.durability = esker_store::Durability::Applied,
            Self::IndexForgotten => {
                let sets = |op: &Op| match op {
                    Op::Object(object, Change::OmapSet { .. }) => object.name().starts_with(b"x/"),
                    _ => false,
                };
                txn.ops.retain(|op| !sets(op));
            }
            _ => {}
        }
    }
}

/// Whether an object holds entries or rows, and not the catalogue of a face.
fn holds_rows(guard: &Guard) -> bool {
    let name = guard.object.name();
    !(name.starts_with(b"namespaces") || name.starts_with(b"catalogue") || name.starts_with(b"h/"))
}

fn of_rows(condition: &Condition) -> bool {
    matches!(
        condition,
        Condition::OmapAbsent { .. }
            | Condition::OmapPresent { .. }
            | Condition::OmapEquals { .. }
            | Condition::SlotAbsent { .. }
            | Condition::SlotPresent { .. }
            | Condition::SlotEquals { .. }
    )
}

//! What a run is: how many servers, what goes wrong how often, and what is broken on purpose.
//!
//! seed, servers → [`Setting`] → a run
//!
//! Invariant: a setting is all that a run depends upon.

use fastrand::Rng;

/// Virtual time, in microseconds since the run began.
pub type Micros = u64;

/// One millisecond.
pub const MS: Micros = 1_000;
/// One second.
pub const SECOND: Micros = 1_000_000;

/// Replicas of a chain.
pub const COPIES: usize = 3;

/// A promise that is broken on purpose, for the checks to find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breakage {
    /// Replicas answer without a lease.
    LeaseIgnored,
    /// The manager takes a server for gone long before its lease has run out.
    ManagerEarly,
    /// A member that is to put a copy in place of what it has goes on from what it has.
    DistrustIgnored,
    /// What is kept for the one behind is dropped, and no copy made in its stead.
    KeptDropped,
    /// Operations are told to be durable as soon as they are applied.
    AckBeforeDurable,
    /// Replicas take messages of any version of the table.
    OldVersions,
    /// Readers are told what is not acknowledged.
    DirtyReads,
    /// A server that was started again goes on as the member that it was.
    OldStart,
    /// A member serves before it is in step.
    NotInStep,
    /// A copy lacks the last operation that it is told to have.
    OldCopy,
}

impl Breakage {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::LeaseIgnored,
        Self::ManagerEarly,
        Self::DistrustIgnored,
        Self::KeptDropped,
        Self::AckBeforeDurable,
        Self::OldVersions,
        Self::DirtyReads,
        Self::OldStart,
        Self::NotInStep,
        Self::OldCopy,
    ];
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A stream between two servers breaks, in one direction or in both.
    Break,
    /// What one server sends to another does not arrive for a while.
    OneWayCut,
    /// Two servers do not reach one another for a while.
    Cut,
    /// A server reaches no other, and sometimes the coordinator neither.
    Isolation,
    /// A server does not reach the coordinator.
    NoCoordinator,
    /// A server stands still.
    Pause,
    /// The process of a server is killed.
    Kill,
    /// It is killed, and is there again long before its lease has run out.
    FastRestart,
    /// A server is told to stop, and hands over.
    Stop,
    /// Several machines lose power at once.
    PowerLoss,
    /// A store takes nothing for a while.
    FullDisk,
    /// The next sync of a store fails.
    SyncFails,
    /// Syncs of a server take very long for a while.
    SlowDisk,
    /// The office of the manager is taken from its holder.
    Office,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Break,
        Self::OneWayCut,
        Self::Cut,
        Self::Isolation,
        Self::NoCoordinator,
        Self::Pause,
        Self::Kill,
        Self::FastRestart,
        Self::Stop,
        Self::PowerLoss,
        Self::FullDisk,
        Self::SyncFails,
        Self::SlowDisk,
        Self::Office,
    ];
}

/// What a run is.
#[derive(Clone, Debug)]
pub struct Setting {
    /// What everything is drawn from.
    pub seed: u64,
    /// Servers, from 3; there are as many chains.
    pub servers: usize,
    /// How long a lease lasts.
    pub period: Micros,
    /// Faults come for so long.
    pub faulty_for: Micros,
    /// From one fault to the next, on average.
    pub between_faults: Micros,
    /// Those that come.
    pub faults: Vec<Fault>,
    /// A message between servers takes up to this.
    pub delay_max: Micros,
    /// A call of the coordinator takes up to this, each way.
    pub call_max: Micros,
    /// What is read of the coordinator may be so old.
    pub lag: Micros,
    /// A sync takes up to this.
    pub sync_max: Micros,
    /// A copy takes up to this.
    pub copy_max: Micros,
    /// Weight of operations that are kept for a member that is brought up.
    pub kept_bytes_max: usize,
    /// Of an operation.
    pub payload_bytes: u32,
    /// Clients of each chain.
    pub clients: usize,
    /// A client pauses for up to this between two operations.
    pub think_max: Micros,
    /// Operations of each client.
    pub operations: usize,
    /// Of 100 operations, how many are reads.
    pub reads: u32,
    /// Keys of each chain.
    pub keys: usize,
    /// Clocks run at rates other than that of time.
    pub skewed: bool,
    /// The first table has one member that was the last, and others that are brought up.
    pub begins_alone: bool,
    /// What is wrong.
    pub breakage: Option<Breakage>,
}

impl Setting {
    /// The setting of a seed, on so many servers.
    pub fn of(seed: u64, servers: usize) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5e77_1196);
        let period = *pick(&mut rng, &[800 * MS, 2 * SECOND]);
        let seconds = if servers > 20 { 4 } else { 12 };
        let faults: Vec<_> = Fault::ALL.into_iter().filter(|_| rng.u32(0..100) < 55).collect();
        let slow = rng.u32(0..4) == 0;
        let payload_bytes = *pick(&mut rng, &[1, 100, 4_000]);
        let kept = *pick(&mut rng, &[1, 3, 20, 10_000]);
        Self {
            seed,
            servers,
            period,
            faulty_for: seconds * period,
            between_faults: *pick(&mut rng, &[period / 8, period / 2, period, 3 * period])
                / (servers as u64 / 3).max(1),
            faults: if faults.is_empty() { vec![Fault::Kill, Fault::Pause] } else { faults },
            delay_max: if slow { period / 4 } else { *pick(&mut rng, &[MS, 5 * MS, 40 * MS]) },
            call_max: *pick(&mut rng, &[2 * MS, 10 * MS, period / 6]),
            lag: *pick(&mut rng, &[0, 0, 20 * MS, period / 2]),
            sync_max: *pick(&mut rng, &[MS, 10 * MS, period / 3]),
            copy_max: *pick(&mut rng, &[5 * MS, 100 * MS, period]),
            kept_bytes_max: kept * (payload_bytes as usize + crate::operation::STEP_BYTES),
            payload_bytes,
            clients: 2 + rng.usize(0..2),
            think_max: *pick(&mut rng, &[10 * MS, 60 * MS, 200 * MS]) * if servers > 20 { 4 } else { 1 },
            operations: 2_000,
            reads: *pick(&mut rng, &[20, 50, 80]),
            keys: 1 + rng.usize(0..3),
            skewed: rng.u32(0..4) != 0,
            begins_alone: rng.u32(0..4) == 0,
            breakage: None,
        }
    }

    /// A run in which nothing goes wrong, for counting: each client writes so many times, one after the other.
    pub fn quiet(seed: u64, servers: usize, payload_bytes: u32, operations: usize) -> Self {
        Self {
            faults: Vec::new(),
            faulty_for: 2 * SECOND,
            period: 2 * SECOND,
            delay_max: MS,
            call_max: 2 * MS,
            lag: 0,
            sync_max: 5 * MS,
            kept_bytes_max: 64 << 20,
            payload_bytes,
            clients: 2,
            think_max: 20 * MS,
            operations,
            reads: 0,
            skewed: false,
            begins_alone: false,
            ..Self::of(seed, servers)
        }
    }

    /// The number of servers that a seed is run on, if none is given: mostly few, since they meet more often then.
    pub fn servers_of(seed: u64) -> usize {
        let mut rng = Rng::with_seed(seed ^ 0x5e44_e125);
        match rng.u32(0..40) {
            0..=25 => 3,
            26..=32 => 4,
            33..=37 => rng.usize(5..10),
            38 => rng.usize(10..30),
            _ => rng.usize(30..=100),
        }
    }
}

fn pick<'o, T>(rng: &mut Rng, of: &'o [T]) -> &'o T {
    &of[rng.usize(0..of.len())]
}

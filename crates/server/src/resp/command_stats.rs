//! What each command costs: calls, time, refusals, failures and a histogram, by event loop and command.
//!
//! executor → [`LoopCommands`] of its loop → [`CommandStats::figures`], summed over the loops → INFO, LATENCY, monitors
//!
//! Every call is timed, none is sampled: the clock is read before the first command of a batch and after each, or after
//! a few brief ones of one name, of which each counts as its share. The time of a command is that of its run on the
//! event loop, as in Redis: waiting for durability is not part of it, waiting for a value that is read from the device
//! is; where threads beside the loops run it, waiting for the store is, and standing in line for a thread is not.
//!
//! Invariants:
//! 1. A loop's counters have one writer, the loop; they only grow, and take neither a lock nor a read-modify-write.
//! 2. CONFIG RESETSTAT changes no counter: it notes what they were, and that is subtracted from then on.
//! 3. Memory is taken for commands that were called: about a KiB for each command and loop, or thread beside them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Four buckets for each power of two of a nanosecond, up to 2³⁶ ns, which is 68 seconds.
const BUCKETS: usize = 140;
/// Powers of two of nanoseconds that histograms are told by: 1 µs to 17 s.
const TOLD_POWERS: std::ops::RangeInclusive<u32> = 10..=34;

/// The counters of one command on one loop.
struct Counters {
    failed: AtomicU64,
    rejected: AtomicU64,
    total_ns: AtomicU64,
    max_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// What one loop has counted, or one thread that runs commands beside them.
pub(crate) struct LoopCommands(Box<[OnceLock<Box<Counters>>]>);

/// What all loops have counted.
pub(crate) struct CommandStats {
    loops: Vec<LoopCommands>,
    /// What the counters were at the last reset, by command; empty before one.
    before: Mutex<Vec<CommandFigures>>,
}

/// What is told of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandFigures {
    /// Calls that failed.
    pub(crate) failed: u64,
    /// Calls refused before they were run.
    pub(crate) rejected: u64,
    /// Time of all calls.
    pub(crate) total_ns: u64,
    /// The longest call, or share, since the start, which a reset does not change.
    max_ns: u64,
    buckets: [u64; BUCKETS],
}

/// The bucket of a time: its power of two and the two bits after the first.
fn bucket_of(ns: u64) -> usize {
    if ns < 4 {
        return ns as usize;
    }
    let power = u64::BITS - ns.leading_zeros();
    let bucket = u64::from(power - 2) * 4 + ((ns >> (power - 3)) & 3);
    (bucket as usize).min(BUCKETS - 1)
}

/// The longest time of a bucket.
fn bucket_max_ns(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64;
    }
    let (power, quarter) = (bucket / 4 + 2, (bucket % 4) as u64);
    ((4 + quarter + 1) << (power - 3)) - 1
}

/// Adds without a read-modify-write: there is one writer.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

impl Counters {
    fn new() -> Self {
        Self {
            failed: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            total_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }
}

impl LoopCommands {
    fn of(&self, command: usize) -> &Counters {
        self.0[command].get_or_init(|| Box::new(Counters::new()))
    }

    /// Counts a call that was run and took so many nanoseconds. Called by this loop alone.
    #[inline]
    pub(crate) fn count(&self, command: usize, ns: u64, failed: bool) {
        let counters = self.of(command);
        if counters.max_ns.load(Ordering::Relaxed) < ns {
            counters.max_ns.store(ns, Ordering::Relaxed);
        }
        add(&counters.total_ns, ns);
        add(&counters.buckets[bucket_of(ns)], 1);
        if failed {
            add(&counters.failed, 1);
        }
    }

    /// Counts calls, as many as `calls`, that took so many nanoseconds together, and of which so many failed. Called by
    /// this loop alone.
    pub(crate) fn count_several(&self, command: usize, ns: u64, calls: u64, failed: u64) {
        let counters = self.of(command);
        let each = ns / calls.max(1);
        if counters.max_ns.load(Ordering::Relaxed) < each {
            counters.max_ns.store(each, Ordering::Relaxed);
        }
        add(&counters.total_ns, ns);
        add(&counters.buckets[bucket_of(each)], calls);
        if failed > 0 {
            add(&counters.failed, failed);
        }
    }

    /// Counts a call that was refused before it was run. Called by this loop alone.
    pub(crate) fn reject(&self, command: usize) {
        add(&self.of(command).rejected, 1);
    }
}

impl CommandStats {
    /// For so many event loops and commands.
    pub(crate) fn new(loops: usize, commands: usize) -> Self {
        let one = || LoopCommands((0..commands).map(|_| OnceLock::new()).collect());
        Self { loops: (0..loops).map(|_| one()).collect(), before: Mutex::default() }
    }

    /// The counters of an event loop.
    pub(crate) fn of_loop(&self, index: usize) -> &LoopCommands {
        &self.loops[index]
    }

    fn sum(&self, command: usize) -> CommandFigures {
        let mut sum = CommandFigures::none();
        for counters in self.loops.iter().filter_map(|one| one.0.get(command)?.get()) {
            let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            sum.failed += load(&counters.failed);
            sum.rejected += load(&counters.rejected);
            sum.total_ns += load(&counters.total_ns);
            sum.max_ns = sum.max_ns.max(load(&counters.max_ns));
            for (sum, counter) in sum.buckets.iter_mut().zip(&counters.buckets) {
                *sum += load(counter);
            }
        }
        sum
    }

    /// What was counted of a command since the last reset; nothing if it was neither called nor refused.
    pub(crate) fn figures(&self, command: usize) -> Option<CommandFigures> {
        // Summed under the lock: a reset in between would have counted more.
        let before = self.before.lock();
        let mut sum = self.sum(command);
        if let Some(before) = before.get(command) {
            sum.failed -= before.failed;
            sum.rejected -= before.rejected;
            sum.total_ns -= before.total_ns;
            for (sum, before) in sum.buckets.iter_mut().zip(&before.buckets) {
                *sum -= before;
            }
        }
        (sum.calls() > 0 || sum.rejected > 0).then_some(sum)
    }

    /// Forgets what was counted so far.
    pub(crate) fn reset(&self) {
        let commands = self.loops.first().map_or(0, |one| one.0.len());
        let mut before = self.before.lock();
        *before = (0..commands).map(|command| self.sum(command)).collect();
    }
}

impl CommandFigures {
    fn none() -> Self {
        Self { failed: 0, rejected: 0, total_ns: 0, max_ns: 0, buckets: [0; BUCKETS] }
    }

    /// Calls that were run.
    pub(crate) fn calls(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// `permille` of the calls took at most this: an upper bound, over by less than a quarter; 0 without calls.
    pub(crate) fn at_most_ns(&self, permille: u64) -> u64 {
        let (calls, mut seen) = (u128::from(self.calls()), 0);
        let reached = |count: &u64| {
            seen += u128::from(*count);
            seen * 1_000 >= calls * u128::from(permille)
        };
        match self.buckets.iter().position(reached) {
            Some(bucket) if calls > 0 => bucket_max_ns(bucket).min(self.max_ns),
            _ => 0,
        }
    }

    /// For each power of two of nanoseconds from 2¹⁰ on, its exponent and the calls that took less than it and not less
    /// than the one before; the last has all that took longer, too.
    pub(crate) fn by_power(&self) -> impl Iterator<Item = (u32, u64)> {
        TOLD_POWERS.map(|power| {
            let end = |power: u32| (power as usize - 1) * 4;
            let from = if power == *TOLD_POWERS.start() { 0 } else { end(power - 1) };
            let to = if power == *TOLD_POWERS.end() { BUCKETS } else { end(power) };
            (power, self.buckets[from..to].iter().sum())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_bucket_that_ends_at_or_above_it() {
        for ns in (0..5_000).chain((0..36).flat_map(|power| [1 << power, (1 << power) + 1, (2 << power) - 1])) {
            let bucket = bucket_of(ns);
            assert!(ns <= bucket_max_ns(bucket), "{ns} in {bucket}");
            assert!(bucket == 0 || ns > bucket_max_ns(bucket - 1), "{ns} in {bucket}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn loops_are_summed_and_a_reset_forgets() {
        let stats = CommandStats::new(2, 3);
        assert_eq!(stats.figures(1), None);
        stats.of_loop(0).count(1, 1_023, false);
        stats.of_loop(1).count(1, 1_024, true);
        stats.of_loop(1).count(1, 100_000_000_000, false);
        stats.of_loop(1).reject(2);
        let figures = stats.figures(1).unwrap();
        assert_eq!((figures.calls(), figures.failed, figures.rejected), (3, 1, 0));
        assert_eq!(figures.total_ns, 100_000_002_047);
        let counts: Vec<(u32, u64)> = figures.by_power().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [(10, 1), (11, 1), (34, 1)]);
        assert_eq!(stats.figures(2).map(|figures| (figures.calls(), figures.rejected)), Some((0, 1)));
        stats.reset();
        assert_eq!((stats.figures(1), stats.figures(2)), (None, None));
        stats.of_loop(0).count(1, 5, true);
        let figures = stats.figures(1).unwrap();
        assert_eq!((figures.calls(), figures.failed, figures.total_ns), (1, 1, 5));
    }

    #[test]
    fn percentiles_are_upper_bounds_within_a_quarter() {
        let stats = CommandStats::new(1, 1);
        for us in 1..=1_000 {
            stats.of_loop(0).count(0, us * 1_000, false);
        }
        let figures = stats.figures(0).unwrap();
        for permille in [500, 990, 999] {
            let (exact, told) = (permille * 1_000, figures.at_most_ns(permille));
            assert!(told >= exact && told < exact + exact / 4, "{told} for {exact}");
        }
        assert_eq!(figures.at_most_ns(1_000), 1_000_000);
    }
}

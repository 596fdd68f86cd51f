//! How long each stage of a write and of a read takes: histograms that cost next to nothing.
//!
//! stage → [`Times`], counts in buckets → [`Histogram`], at one moment → INFO, `esker stat`
//!
//! A look at the clock costs some 30 ns, which is more than a few per cent of a small write or read. So stages that run
//! on the caller's thread are timed once in [`SAMPLE`] calls of a thread ([`sampled`]); those of the device, of a
//! group, of the cleaner and of checkpoints each time.
//!
//! Invariants:
//! 1. Nothing here takes a lock.
//! 2. A quantile is an upper bound, and over by less than a quarter.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Of so many calls of a thread one is timed, on average, beginning with its first.
pub const SAMPLE: u32 = 64;
/// Four buckets for each power of two of a nanosecond, up to 2⁴⁰ ns, which is a quarter of an hour.
const BUCKETS: usize = 160;

thread_local! {
    static DICE: Cell<u64> = const { Cell::new(0) };
}

/// The time, for one call in [`SAMPLE`]. Which one is thrown for (a linear congruential generator, the same in each
/// thread): were they counted, of stages that take turns always the same one would be timed.
#[inline]
pub fn sampled() -> Option<Instant> {
    let dice = DICE.get();
    DICE.set(dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    (dice >> (u64::BITS - SAMPLE.trailing_zeros()) == 0).then(Instant::now)
}

/// Times of one stage.
#[derive(Debug)]
pub struct Times {
    buckets: [AtomicU64; BUCKETS],
    max_ns: AtomicU64,
}

impl Default for Times {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], max_ns: AtomicU64::new(0) }
    }
}

/// Times of a kind of device call, in microseconds; quantiles are upper bounds, over by less than a quarter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Half of the calls took at most this.
    pub p50_us: u64,
    /// All but one in a hundred took at most this.
    pub p99_us: u64,
    /// The longest, exactly.
    pub max_us: u64,
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

impl Times {
    /// Counts a time.
    pub fn add(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        if self.max_ns.load(Ordering::Relaxed) < ns {
            self.max_ns.fetch_max(ns, Ordering::Relaxed);
        }
    }

    /// Counts what has gone by since a time that [`sampled`] may have given.
    #[inline]
    pub fn add_since(&self, began: Option<Instant>) {
        if let Some(began) = began {
            self.add(began.elapsed());
        }
    }

    /// The figures so far.
    pub fn latency(&self) -> Latency {
        let histogram = self.histogram();
        let us = |ns: u64| ns / 1_000;
        Latency {
            p50_us: us(histogram.at_most_ns(50)),
            p99_us: us(histogram.at_most_ns(99)),
            max_us: us(histogram.max_ns),
        }
    }

    /// The counts so far.
    pub fn histogram(&self) -> Histogram {
        let counts = self.buckets.iter().enumerate().map(|(bucket, count)| (bucket, count.load(Ordering::Relaxed)));
        let buckets = counts.filter(|(_, count)| *count > 0).map(|(bucket, count)| (bucket_max_ns(bucket), count));
        Histogram { buckets: buckets.collect(), max_ns: self.max_ns.load(Ordering::Relaxed) }
    }
}

/// How often a stage took how long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Times up to this many nanoseconds, above the entry before, and how many there were; ascending, none empty.
    pub buckets: Vec<(u64, u64)>,
    /// The longest, exactly.
    pub max_ns: u64,
}

impl Histogram {
    /// How many were timed.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// `percent` of the times, 1 to 100, were at most so many nanoseconds; 0 without any.
    pub fn at_most_ns(&self, percent: u64) -> u64 {
        self.at_most_permille_ns(percent * 10)
    }

    /// As [`Histogram::at_most_ns`], in thousandths.
    pub fn at_most_permille_ns(&self, permille: u64) -> u64 {
        let (total, mut seen) = (u128::from(self.count()), 0);
        let bucket = self.buckets.iter().find(|(_, count)| {
            seen += u128::from(*count);
            seen * 1_000 >= total * u128::from(permille)
        });
        bucket.map_or(0, |(ns, _)| (*ns).min(self.max_ns))
    }

    /// What has been counted since an earlier moment. The longest is of all times, since one of a part is not known; a
    /// count that went back (the program was started anew) is taken as it is.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before: std::collections::HashMap<u64, u64> = earlier.buckets.iter().copied().collect();
        let more = |(ns, count): &(u64, u64)| {
            let count = count.checked_sub(before.get(ns).copied().unwrap_or(0)).unwrap_or(*count);
            (count > 0).then_some((*ns, count))
        };
        Self { buckets: self.buckets.iter().filter_map(more).collect(), max_ns: self.max_ns }
    }
}

/// As INFO shows it: `max_ns=17 le_ns=15:3,17:1`.
impl std::fmt::Display for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "max_ns={} le_ns=", self.max_ns)?;
        self.buckets
            .iter()
            .enumerate()
            .try_for_each(|(at, (ns, count))| write!(f, "{}{ns}:{count}", if at == 0 { "" } else { "," }))
    }
}

/// Reads what `Display` writes. What does not parse says so by an empty error: it came from a program of another
/// version.
impl std::str::FromStr for Histogram {
    type Err = NoHistogram;

    fn from_str(text: &str) -> Result<Self, NoHistogram> {
        let (max, counts) =
            text.strip_prefix("max_ns=").and_then(|rest| rest.split_once(" le_ns=")).ok_or(NoHistogram)?;
        let number = |text: &str| text.parse().map_err(|_| NoHistogram);
        let pair = |text: &str| {
            let (ns, count) = text.split_once(':').ok_or(NoHistogram)?;
            Ok((number(ns)?, number(count)?))
        };
        let buckets = counts.split(',').filter(|text| !text.is_empty()).map(pair).collect::<Result<_, _>>()?;
        Ok(Self { buckets, max_ns: number(max)? })
    }
}

/// A text that is no [`Histogram`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoHistogram;

/// Times of what callers' threads do, one call in [`SAMPLE`] of each.
#[derive(Debug, Default)]
pub struct CallTimes {
    /// Compressing and checksumming a transaction's payloads.
    pub prepare: Times,
    /// From there until it is applied: locks, guards, room in the open group, encoding, index.
    pub apply: Times,
    /// Looking at an object's index for a read.
    pub lookup: Times,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_all_times_without_gaps_and_are_a_quarter_wide_at_most() {
        let mut last = None;
        for bucket in 0..BUCKETS {
            let max = bucket_max_ns(bucket);
            assert_eq!(bucket_of(max), bucket, "{max} ns");
            if let Some(last) = last {
                assert_eq!(bucket_of(last + 1), bucket, "{} ns", last + 1);
                assert!((max - last) as f64 <= (last as f64 / 4.0).max(1.0) + 1.0, "{last}..{max}");
            }
            last = Some(max);
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_upper_bounds() {
        let times = Times::default();
        for us in 1..=1_000 {
            times.add(Duration::from_micros(us));
        }
        let histogram = times.histogram();
        assert_eq!((histogram.count(), histogram.max_ns), (1_000, 1_000_000));
        for percent in [1, 50, 90, 99, 100] {
            let (found, exact) = (histogram.at_most_ns(percent), percent * 10_000);
            assert!(found >= exact && found * 4 <= exact * 5, "{percent} %: {found} for {exact}");
        }
        assert_eq!(Times::default().latency(), Latency::default());
        let latency = times.latency();
        assert!((500..=625).contains(&latency.p50_us) && latency.max_us == 1_000, "{latency:?}");
        assert_eq!(histogram.to_string().parse(), Ok(histogram));
        let later = Histogram { buckets: vec![(7, 3), (9, 1)], max_ns: 8 };
        let earlier = Histogram { buckets: vec![(7, 1)], max_ns: 6 };
        assert_eq!(later.since(&earlier), Histogram { buckets: vec![(7, 2), (9, 1)], max_ns: 8 });
        assert_eq!(earlier.since(&later).buckets, [(7, 1)]);
        assert_eq!("max_ns=0 le_ns=".parse(), Ok(Histogram::default()));
        assert_eq!("max_ns=x le_ns=1".parse::<Histogram>(), Err(NoHistogram));
    }

    #[test]
    fn one_call_in_so_many_is_timed_of_each_stage() {
        let timed = std::thread::spawn(|| {
            let mut timed = [u32::from(sampled().is_some()), 0, 0];
            assert_eq!(timed[0], 1, "the first call of a thread is timed");
            (1..SAMPLE * 3_000).for_each(|call| timed[call as usize % 3] += u32::from(sampled().is_some()));
            timed
        });
        for timed in timed.join().unwrap() {
            assert!((800..1_200).contains(&timed), "{timed} of 1,000");
        }
    }
}

//! What `esker volume bench` is asked for, the requests that it makes of that, and what it counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use esker::ByteSize;
use hdrhistogram::Histogram;

use crate::exit::{Code, Failure};

/// Seconds of a run that is bounded by nothing else.
const SECONDS: u64 = 5;

/// The arguments of `esker volume bench`.
#[derive(Args)]
pub(in super::super) struct Bench {
    /// The image, or the address of a running server's, such as nbd://HOST/IMAGE; writing overwrites what it holds
    pub(super) image: String,
    /// What is done
    #[arg(long, value_enum, default_value_t = Kind::Write)]
    pub(super) io: Kind,
    /// Where
    #[arg(long, value_enum, default_value_t = Pattern::Rand)]
    pub(super) pattern: Pattern,
    /// Bytes of a request
    #[arg(long, default_value = "4k")]
    pub(super) io_size: ByteSize,
    /// Requests in flight
    #[arg(long, default_value_t = 16)]
    pub(super) threads: u64,
    /// How long; 5 unless --io-total is given
    #[arg(long)]
    pub(super) seconds: Option<u64>,
    /// How many bytes of requests, such as 1g
    #[arg(long, value_name = "SIZE")]
    pub(super) io_total: Option<ByteSize>,
    /// Each write is durable before the next; else all of them are after one flush at the end
    #[arg(long)]
    pub(super) durable: bool,
    /// Seed of the places
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// What the image is reached through; for an address always NBD
    #[arg(long, value_enum, default_value_t = Through::Library)]
    pub(super) through: Through,
    /// Connections that share the requests in flight, through NBD
    #[arg(long, default_value_t = 1)]
    pub(super) connections: u64,
    /// How long a running server that is gone is waited for, such as 60s; what was under way is asked again then, and
    /// its time has gone on
    #[arg(long, value_name = "TIME", default_value_t = esker::Period(Duration::from_secs(60)))]
    pub(super) reconnect: esker::Period,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    Write,
    Read,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Pattern {
    Rand,
    Seq,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Through {
    Library,
    Nbd,
    Both,
}

pub(super) type Latencies = Histogram<u64>;

/// The requests of a run.
pub(super) struct Plan<'b> {
    pub(super) bench: &'b Bench,
    pub(super) places: u64,
    pub(super) requests: u64,
    pub(super) end: Option<Instant>,
    pub(super) issued: AtomicU64,
}

/// One request.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) offset: u64,
    pub(super) at: Instant,
}

impl<'b> Plan<'b> {
    pub(super) fn new(bench: &'b Bench, size: u64) -> Self {
        let io = bench.io_size.0;
        let seconds = bench.seconds.or(bench.io_total.is_none().then_some(SECONDS));
        Self {
            bench,
            places: size / io,
            requests: bench.io_total.map_or(u64::MAX, |total| total.0 / io),
            end: seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
            issued: AtomicU64::new(0),
        }
    }

    pub(super) fn rng(&self, thread: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.bench.seed.wrapping_mul(1_000_003).wrapping_add(thread))
    }

    /// The next request of a thread; `None` at the end.
    pub(super) fn next(&self, rng: &mut fastrand::Rng) -> Option<Step> {
        let at = Instant::now();
        let issued = self.issued.fetch_add(1, Ordering::Relaxed);
        if issued >= self.requests || self.end.is_some_and(|end| at >= end) {
            return None;
        }
        let place = match self.bench.pattern {
            Pattern::Rand => rng.u64(..self.places),
            Pattern::Seq => issued % self.places,
        };
        Some(Step { offset: place * self.bench.io_size.0, at })
    }

    /// What is written.
    pub(super) fn data(&self, rng: &mut fastrand::Rng) -> Vec<u8> {
        let mut data = vec![0; self.bench.io_size.0 as usize];
        rng.fill(&mut data);
        data
    }
}

/// What a run came to.
pub(super) struct Figures {
    pub(super) through: &'static str,
    pub(super) latencies: Latencies,
    pub(super) elapsed: Duration,
    pub(super) syncs: Option<u64>,
    /// Connections that were lost and made anew.
    pub(super) reconnects: u64,
}

/// Does `drive` on so many threads; all their latencies, or the first failure.
pub(super) fn together(
    threads: u64,
    drive: impl Fn(u64) -> Result<Latencies, Failure> + Sync,
) -> Result<Latencies, Failure> {
    let results: Vec<Result<Latencies, Failure>> = std::thread::scope(|scope| {
        let drive = &drive;
        let started: Vec<_> = (0..threads).map(|thread| scope.spawn(move || drive(thread))).collect();
        started.into_iter().map(|thread| thread.join().expect("a bench thread does not panic")).collect()
    });
    let mut all = latencies()?;
    for result in results {
        // Adding histograms of equal bounds cannot fail.
        let _ = all.add(&result?);
    }
    Ok(all)
}

pub(super) fn latencies() -> Result<Latencies, Failure> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(|error| Failure::new(Code::Failure, error.to_string()))
}

//! `esker volume bench`: writes or reads an image inside this process.
//!
//! Each thread has one request in flight, at random or sequential places, for a number of requests or of seconds; latencies of each call until it completes.
//!
//! Invariant: the same seed gives the same places.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use esker::volume::Image;
use esker::{ByteSize, Bytes, Durability};
use hdrhistogram::Histogram;
use serde_json::json;

use super::Context;
use crate::exit::{Code, Failure};

/// The arguments of `esker volume bench`.
#[derive(Args)]
pub struct Bench {
    /// The image; writing overwrites what it holds
    image: String,
    /// What is done
    #[arg(long, value_enum, default_value_t = Kind::Write)]
    io: Kind,
    /// Where
    #[arg(long, value_enum, default_value_t = Pattern::Rand)]
    pattern: Pattern,
    /// Bytes of a request
    #[arg(long, default_value = "4k")]
    io_size: ByteSize,
    /// Requests in flight
    #[arg(long, default_value_t = 16)]
    threads: u64,
    /// How long
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Each write is durable before the next; else all of them are after one flush at the end
    #[arg(long)]
    durable: bool,
    /// Seed of the places
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Write,
    Read,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pattern {
    Rand,
    Seq,
}

type Latencies = Histogram<u64>;

impl Bench {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let image = context.image(&self.image)?;
        let (size, io) = (image.size(), self.io_size.0);
        if io == 0 || io > esker::volume::ATOMIC_BYTES_MAX || io > size || self.threads == 0 {
            let max = size.min(esker::volume::ATOMIC_BYTES_MAX);
            return Err(Failure::usage(format!(
                "requests of {io} bytes by {} threads: expected 1 to {max} bytes, and a thread",
                self.threads
            )));
        }
        let places = size / io;
        let next = AtomicU64::new(0);
        let syncs = context.store.syncs();
        let began = Instant::now();
        let end = began + Duration::from_secs(self.seconds);
        let results: Vec<Result<Latencies, Failure>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let (image, next, bench) = (image.clone(), &next, &self);
                    scope.spawn(move || bench.drive(&image, thread, places, next, end))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a bench thread does not panic")).collect()
        });
        if self.io == Kind::Write {
            image.flush().wait()?;
        }
        let elapsed = began.elapsed();
        let mut all = latencies()?;
        for result in results {
            // Adding histograms of equal bounds cannot fail.
            let _ = all.add(&result?);
        }
        let iops = all.len() as f64 / elapsed.as_secs_f64();
        let micros = |quantile: f64| all.value_at_quantile(quantile) as f64 / 1e3;
        let syncs = context.store.syncs().zip(syncs).map(|(after, before)| after - before);
        let name = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
        let value = json!({
            "image": self.image, "backend": context.store.backend(), "io": name(&self.io), "pattern": name(&self.pattern),
            "io_bytes": io, "threads": self.threads, "durable": self.durable, "requests": all.len(),
            "elapsed_ms": elapsed.as_millis() as u64, "iops": iops, "bytes_per_second": iops * io as f64,
            "p50_us": micros(0.5), "p99_us": micros(0.99), "max_us": all.max() as f64 / 1e3, "syncs": syncs,
        });
        let text = format!(
            "{} {} of {io} bytes by {} threads on {}, {}: {iops:.0}/s, {:.1} MiB/s, p50 {:.1} µs, p99 {:.1} µs, {} syncs\n",
            name(&self.pattern),
            name(&self.io),
            self.threads,
            context.store.backend(),
            if self.durable { "durable each" } else { "flushed at the end" },
            iops * io as f64 / f64::from(1 << 20),
            micros(0.5),
            micros(0.99),
            syncs.unwrap_or(0),
        );
        context.tell(value, &text)
    }

    fn drive(
        &self,
        image: &Image,
        thread: u64,
        places: u64,
        next: &AtomicU64,
        end: Instant,
    ) -> Result<Latencies, Failure> {
        let mut rng = fastrand::Rng::with_seed(self.seed.wrapping_mul(1_000_003).wrapping_add(thread));
        let io = self.io_size.0;
        let mut data = vec![0; io as usize];
        rng.fill(&mut data);
        let data = Bytes::from(data);
        let durability = if self.durable { Durability::Durable } else { Durability::Applied };
        let mut latencies = latencies()?;
        loop {
            let started = Instant::now();
            if started >= end {
                return Ok(latencies);
            }
            let place = match self.pattern {
                Pattern::Rand => rng.u64(..places),
                Pattern::Seq => next.fetch_add(1, Ordering::Relaxed) % places,
            };
            match self.io {
                Kind::Write => image.write(place * io, data.clone(), durability)?.wait()?,
                Kind::Read => drop(image.read(place * io, io)?.wait()?),
            }
            latencies.saturating_record(started.elapsed().as_nanos() as u64);
        }
    }
}

fn latencies() -> Result<Latencies, Failure> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(|error| Failure::new(Code::Failure, error.to_string()))
}

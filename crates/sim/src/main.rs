//! Runs seeds of the crash simulator: `esker-sim [--seeds N] [--from SEED] [--seed SEED]`.
//!
//! Prints the command that repeats a failing seed, and ends with 1 if any failed.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn argument(name: &str) -> Option<u64> {
    let arguments: Vec<String> = std::env::args().collect();
    let at = arguments.iter().position(|argument| argument == name)?;
    arguments.get(at + 1)?.parse().ok()
}

fn main() -> ExitCode {
    let (from, seeds) = match argument("--seed") {
        Some(seed) => (seed, 1),
        None => (argument("--from").unwrap_or(0), argument("--seeds").unwrap_or(1_000)),
    };
    let began = Instant::now();
    let (next, done, failed) = (AtomicU64::new(from), AtomicU64::new(0), AtomicU64::new(0));
    let (transactions, crashes, taken_back) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + seeds || failed.load(Ordering::Relaxed) >= 10 {
                        return;
                    }
                    match std::panic::catch_unwind(|| esker_sim::crash::run(seed)) {
                        Ok(Ok(outcome)) => {
                            transactions.fetch_add(outcome.transactions, Ordering::Relaxed);
                            crashes.fetch_add(outcome.crashes, Ordering::Relaxed);
                            taken_back.fetch_add(outcome.taken_back, Ordering::Relaxed);
                        }
                        Ok(Err(broken)) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                            println!(
                                "seed {seed}: {broken}\n  repeat: cargo run --release -p esker-sim -- --seed {seed}"
                            );
                        }
                        Err(_) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                            println!(
                                "seed {seed}: panicked\n  repeat: cargo run --release -p esker-sim -- --seed {seed}"
                            );
                        }
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            let mut shown = Instant::now();
            while done.load(Ordering::Relaxed) < seeds && failed.load(Ordering::Relaxed) < 10 {
                std::thread::sleep(Duration::from_millis(50));
                if shown.elapsed() >= Duration::from_secs(5) {
                    shown = Instant::now();
                    let done = done.load(Ordering::Relaxed);
                    eprintln!("{done} of {seeds} seeds, {:.0}/s", done as f64 / began.elapsed().as_secs_f64());
                }
            }
        });
    });
    let failed = failed.load(Ordering::Relaxed);
    println!(
        "{} seeds in {:.1} s: {} transactions, {} crashes, {} unacknowledged transactions taken back, {failed} seeds failed",
        done.load(Ordering::Relaxed),
        began.elapsed().as_secs_f64(),
        transactions.load(Ordering::Relaxed),
        crashes.load(Ordering::Relaxed),
        taken_back.load(Ordering::Relaxed),
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

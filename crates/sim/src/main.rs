//! Runs seeds of the crash simulator: `esker-sim [--seeds N] [--from SEED] [--seed SEED] [--kind KIND]`.
//!
//! Without `--kind` every seed chooses its own. Prints the command that repeats a failing seed, and ends with 1 if any
//! failed, 2 if the arguments are not understood.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use esker_sim::crash::run_as;
use esker_sim::kind::Kind;
use esker_sim::outcome::Outcome;

/// So many failing seeds end the program.
const FAILED_MAX: u64 = 10;
/// A run that takes longer hangs: it ends the program.
const RUN_TIME_MAX: Duration = Duration::from_secs(60);

struct Arguments {
    from: u64,
    seeds: u64,
    kind: Option<Kind>,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed = Arguments { from: 0, seeds: 1_000, kind: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse().map_err(|_| format!("{name} {value}: expected a number"));
        match name.as_str() {
            "--seed" => (parsed.from, parsed.seeds) = (number()?, 1),
            "--from" => parsed.from = number()?,
            "--seeds" => parsed.seeds = number()?,
            "--kind" => {
                let names: Vec<_> = Kind::ALL.into_iter().map(Kind::name).collect();
                let unknown = || format!("--kind {value}: expected one of {}", names.join(", "));
                parsed.kind = Some(Kind::named(&value).ok_or_else(unknown)?);
            }
            _ => return Err(format!("{name}: expected --seeds, --from, --seed or --kind")),
        }
    }
    Ok(parsed)
}

/// Sums over all runs.
#[derive(Default)]
struct Totals {
    outcome: Outcome,
    kinds: [u64; Kind::ALL.len()],
}

impl Totals {
    fn add(&mut self, kind: Kind, outcome: Outcome) {
        let all = &mut self.outcome;
        all.transactions += outcome.transactions;
        all.refused += outcome.refused;
        all.full += outcome.full;
        all.maintained += outcome.maintained;
        all.crashes += outcome.crashes;
        all.taken_back += outcome.taken_back;
        all.refused_to_open += outcome.refused_to_open;
        all.served += outcome.served;
        all.named += outcome.named;
        all.open_zones = all.open_zones.max(outcome.open_zones);
        let number = Kind::ALL.into_iter().position(|each| each == kind);
        self.kinds[number.unwrap_or_default()] += 1;
    }
}

/// Says what broke and how to see it again.
fn show(seed: u64, kind: Kind, broken: &str) {
    let name = kind.name();
    // Built as this one is: only one kind of build looks at overflows and asserts what is asserted for debugging.
    let release = if cfg!(debug_assertions) { "" } else { " --release" };
    println!(
        "seed {seed} ({name}): {broken}\n  repeat: cargo run{release} -p esker-sim -- --seed {seed} --kind {name}"
    );
}

fn main() -> ExitCode {
    let Arguments { from, seeds, kind } = match arguments() {
        Ok(arguments) => arguments,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    let began = Instant::now();
    let (next, done, failed) = (AtomicU64::new(from), AtomicU64::new(0), AtomicU64::new(0));
    let totals = Mutex::new(Totals::default());
    let running: Mutex<Vec<(u64, Kind, Instant)>> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from.saturating_add(seeds) || failed.load(Ordering::Relaxed) >= FAILED_MAX {
                        return;
                    }
                    let kind = kind.unwrap_or_else(|| Kind::of_seed(seed));
                    running.lock().expect("pushing does not panic").push((seed, kind, Instant::now()));
                    let broken = match std::panic::catch_unwind(|| run_as(kind, seed)) {
                        Ok(Ok(outcome)) => {
                            totals.lock().expect("adding does not panic").add(kind, outcome);
                            None
                        }
                        Ok(Err(broken)) => Some(broken),
                        Err(_) => Some("panicked".into()),
                    };
                    running.lock().expect("retaining does not panic").retain(|run| run.0 != seed);
                    if let Some(broken) = broken {
                        failed.fetch_add(1, Ordering::Relaxed);
                        show(seed, kind, &broken);
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            let mut shown = Instant::now();
            while done.load(Ordering::Relaxed) < seeds && failed.load(Ordering::Relaxed) < FAILED_MAX {
                std::thread::sleep(Duration::from_millis(50));
                let hanging = running
                    .lock()
                    .expect("looking does not panic")
                    .iter()
                    .find(|run| run.2.elapsed() > RUN_TIME_MAX)
                    .copied();
                if let Some((seed, kind, _)) = hanging {
                    show(seed, kind, &format!("still runs after {RUN_TIME_MAX:?}"));
                    std::process::exit(1);
                }
                if shown.elapsed() >= Duration::from_secs(5) {
                    shown = Instant::now();
                    let done = done.load(Ordering::Relaxed);
                    eprintln!("{done} of {seeds} seeds, {:.0}/s", done as f64 / began.elapsed().as_secs_f64());
                }
            }
        });
    });
    let failed = failed.load(Ordering::Relaxed);
    let totals = totals.into_inner().expect("adding does not panic");
    let counted: Vec<_> =
        Kind::ALL.into_iter().zip(totals.kinds).map(|(kind, count)| format!("{} {count}", kind.name())).collect();
    println!("runs that held: {}", counted.join(", "));
    let Outcome { transactions, refused, full, maintained, crashes, taken_back, open_zones, .. } = totals.outcome;
    let Outcome { refused_to_open, served, named, .. } = totals.outcome;
    if totals.outcome.served + totals.outcome.named + totals.outcome.refused_to_open > 0 {
        println!("rot: {served} values right, {named} named as damaged, {refused_to_open} stores that did not open");
    }
    println!(
        "{} seeds in {:.1} s: {transactions} transactions, {refused} refused by name, {full} for want of room, {maintained} times maintained, {crashes} crashes, {taken_back} unacknowledged transactions taken back, at most {open_zones} zones open, {failed} seeds failed",
        done.load(Ordering::Relaxed),
        began.elapsed().as_secs_f64(),
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

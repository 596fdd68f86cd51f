//! A small seeded mutation fuzzer for everything that decodes bytes from disk or socket.
//!
//! `cargo run --release -- TARGET --seconds N --seed S` → seeds of the target → mutations → the target → executions
//!
//! Invariants:
//! 1. The same target, seed and execution number give the same input, whatever the speed of the machine, so a
//!    failure is repeated with `--seed S --skip N --executions 1`.
//! 2. A target returns; a panic, an abort or a run above the time limit of one execution is a finding.

#![forbid(unsafe_code)]

mod compressed;
mod log;
mod mutate;
mod nbd;
mod record;
mod recovery;
mod resp;
mod structure;
mod thrift;
mod volume;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// One execution that takes longer is a finding.
const EXECUTION_MAX: Duration = Duration::from_secs(10);

/// Address space of the process, in bytes.
const MEMORY_BYTES_MAX: u64 = 3 << 30;

/// Something to be given bytes.
trait Target {
    /// The input number `number`, made from nothing but `random`.
    fn input(&mut self, random: &mut fastrand::Rng) -> Vec<u8>;

    /// Must return, whatever it is given. Says whether the input was accepted, so that a fuzzer that only makes
    /// garbage is noticed.
    fn run(&mut self, input: &[u8]) -> bool;
}

struct Arguments {
    target: String,
    seconds: u64,
    seed: u64,
    skip: u64,
    executions: u64,
    file: Option<String>,
}

const USAGE: &str =
    "usage: cargo run --release -- TARGET [--seconds N] [--seed S] [--skip N] [--executions N] [--file INPUT]
targets: compressed, log, nbd, record, recovery, resp, structure, thrift, volume
  --seconds     run so long (default 10)
  --seed        seed of all inputs (default 1)
  --skip        start at this execution
  --executions  stop after so many
  --file        run the target on this file instead";

fn arguments() -> Result<Arguments, String> {
    let mut given = std::env::args().skip(1);
    let target = given.next().ok_or("a target is missing")?;
    let mut arguments = Arguments { target, seconds: 10, seed: 1, skip: 0, executions: u64::MAX, file: None };
    while let Some(flag) = given.next() {
        let value = given.next().ok_or_else(|| format!("{flag} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{flag} {value}: expected a number"));
        match flag.as_str() {
            "--seconds" => arguments.seconds = number()?,
            "--seed" => arguments.seed = number()?,
            "--skip" => arguments.skip = number()?,
            "--executions" => arguments.executions = number()?,
            "--file" => arguments.file = Some(value),
            _ => return Err(format!("unknown flag {flag}")),
        }
    }
    Ok(arguments)
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut target: Box<dyn Target> = match arguments.target.as_str() {
        "compressed" => Box::new(compressed::CompressedPayload::new()),
        "log" => Box::new(log::LogBytes::new()),
        "nbd" => Box::new(nbd::Nbd::new()),
        "record" => Box::new(record::Record::new()),
        "recovery" => Box::new(recovery::Recovery::new()),
        "resp" => Box::new(resp::Resp::new()),
        "structure" => Box::new(structure::Structure::new()),
        "thrift" => Box::new(thrift::Thrift::new()),
        "volume" => Box::new(volume::Volume::new()),
        other => {
            eprintln!("unknown target {other:?}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if let Some(file) = &arguments.file {
        return match std::fs::read(file) {
            Ok(input) => {
                println!("{}: accepted: {}", file, target.run(&input));
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("{file}: {error}");
                ExitCode::from(2)
            }
        };
    }
    // A length that is believed shows as an allocation that is refused.
    let limit = rustix::process::Rlimit { current: Some(MEMORY_BYTES_MAX), maximum: Some(MEMORY_BYTES_MAX) };
    if let Err(error) = rustix::process::setrlimit(rustix::process::Resource::As, limit) {
        eprintln!("no limit of memory: {error}");
    }
    fuzz(&arguments, &mut *target)
}

fn fuzz(arguments: &Arguments, target: &mut dyn Target) -> ExitCode {
    let deadline = Instant::now() + Duration::from_secs(arguments.seconds);
    let (mut executions, mut accepted) = (0u64, 0u64);
    let started = Instant::now();
    while Instant::now() < deadline && executions < arguments.executions {
        let number = arguments.skip + executions;
        let mut random = fastrand::Rng::with_seed(arguments.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let input = target.input(&mut random);
        if arguments.target == "structure" {
            // An abort says nothing of its own.
            let _ = std::fs::write(std::env::temp_dir().join("esker-fuzz-execution"), number.to_string());
        }
        let began = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| target.run(&input)));
        executions += 1;
        let slow = began.elapsed() > EXECUTION_MAX;
        match outcome {
            Ok(ok) if !slow => accepted += u64::from(ok),
            outcome => {
                let file = format!("finding-{}-{}-{number}.bin", arguments.target, arguments.seed);
                let saved = std::fs::write(&file, &input).is_ok();
                let what = if outcome.is_err() { "a panic" } else { "a run above the time limit" };
                println!(
                    "{}: {what} in execution {number} ({} bytes{})",
                    arguments.target,
                    input.len(),
                    if saved { ", saved as the file below" } else { "" }
                );
                println!("  {file}");
                println!(
                    "  repeat: cargo run --release -- {} --seed {} --skip {number} --executions 1",
                    arguments.target, arguments.seed
                );
                return ExitCode::FAILURE;
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{}: {executions} executions in {seconds:.1} s ({:.0}/s), seed {}, {accepted} accepted, no finding",
        arguments.target,
        executions as f64 / seconds.max(1e-9),
        arguments.seed
    );
    ExitCode::SUCCESS
}

//! Runs seeds: `cargo run --release -p esker-chain-sim --example chains -- --seeds 0..1000 [--servers 3] [--lines 80]`.
//!
//! Prints what was counted; for a seed that breaks a promise, the promise and the last lines of what happened.

use std::process::ExitCode;

use esker_chain_sim::{Breakage, Counts, MS, Micros, Setting, World, run};

/// Seeds that break a promise, after which no more are tried.
const FAILED_MAX: u64 = 10;

fn main() -> ExitCode {
    let (mut seeds, mut servers, mut shown, mut breakage) = (0..1_000, None, 60, None);
    let (mut until, mut chain) = (Micros::MAX, None);
    let mut args = std::env::args().skip(1);
    while let (Some(name), value) = (args.next(), args.next().unwrap_or_default()) {
        let is_known = match name.as_str() {
            "--seeds" => {
                let ends = value.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
                let ends = ends.or_else(|| value.parse().ok().map(|seed: u64| (seed, seed + 1)));
                ends.map(|(from, to)| seeds = from..to).is_some()
            }
            "--servers" => value.parse().map(|count: usize| servers = Some(count.clamp(3, 100))).is_ok(),
            "--until" => value.parse().map(|ms: Micros| until = ms * MS).is_ok(),
            "--chain" => value.parse().map(|number: usize| chain = Some(number)).is_ok(),
            "--lines" => value.parse().map(|count: usize| shown = count).is_ok(),
            "--breakage" => {
                breakage = Breakage::ALL.into_iter().find(|one| format!("{one:?}") == value);
                breakage.is_some()
            }
            _ => false,
        };
        if !is_known {
            eprintln!(
                "{name} {value}: --seeds A..B, --servers 3 to 100, --lines N, --chain N, --until MS and --breakage NAME are known"
            );
            return ExitCode::FAILURE;
        }
    }
    let (mut sum, mut failed, mut held) = (Counts::default(), 0, 0);
    for seed in seeds {
        let setting = Setting { breakage, ..Setting::of(seed, servers.unwrap_or_else(|| Setting::servers_of(seed))) };
        match run(setting.clone()) {
            Ok((counts, _)) => {
                sum.add(&counts);
                held += 1;
            }
            Err(why) => {
                failed += 1;
                println!("seed {seed}, {} servers: {why}\n{setting:?}", setting.servers);
                let mut world = World::new(setting, Some(until));
                world.run();
                let is_of = |line: &&str| {
                    let Some(chain) = chain else { return true };
                    let slots = chain * 3..chain * 3 + 3;
                    let of_slot = slots.into_iter().any(|slot| line.contains(&format!("slot {slot}")));
                    let of_none = !line.contains("slot") && !line.contains("chain");
                    of_slot || of_none || line.contains(&format!("chain {chain}"))
                };
                let lines: Vec<_> = world.lines().filter(is_of).collect();
                let from = lines.len().saturating_sub(shown);
                lines[from..].iter().for_each(|line| println!("  {line}"));
                if failed == FAILED_MAX {
                    break;
                }
            }
        }
    }
    println!("{held} seeds held, {failed} did not\n{sum}");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! `esker ring`: which chain keeps which slots of keys, and which is to.
//!
//! ```text
//! status                        → shares, and how much of the plan has come true
//! move, split, merge, rebalance → what would go where → with --plan: told, no more
//!                               → the plan, compared and set → heads of chains carry it out → waited for
//! stop                          → no plan: what has gone stays where it is
//! instances                     → who has registered for Thrift's namespace, with the end of the keys of each
//! ```
//!
//! Invariant: a plan is told in slots before it is set, and names only chains that there are.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use esker_cluster::{Instance, Instances, SLOTS, Slots};
use serde_json::json;

use super::chain::{Chain, failure};
use crate::commands::tell;
use crate::config::Settings;
use crate::exit::{Code, Failure};
use crate::progress;

/// It is looked so often how far the plan is.
const LOOK: Duration = Duration::from_millis(200);

/// The arguments of `esker ring`.
#[derive(Args)]
pub struct RingArguments {
    /// The coordinator and the cluster's root in it, such as zk://h1,h2,h3/esker; without it the configuration's
    #[arg(long = "cluster", value_name = "URL", global = true)]
    location: Option<String>,
    #[command(subcommand)]
    command: RingCommand,
}

#[derive(Subcommand)]
enum RingCommand {
    /// Show how many slots each chain keeps, and what is to go where
    Status {
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show the servers that have registered for a namespace by Thrift, as clients of Zing Database find them
    Instances {
        /// The node that they are below, such as /data/zdb; without it the configuration's thrift_registry
        #[arg(value_name = "NODE")]
        node: Option<String>,
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Have slots go to a chain, which need not have any yet
    Move {
        /// The slots: one, or the first and the last, such as 0-99
        #[arg(value_name = "SLOTS", value_parser = slots)]
        slots: (u16, u16),
        /// The chain
        #[arg(long, value_name = "CHAIN")]
        to: String,
        #[command(flatten)]
        how: How,
    },
    /// Have half of a chain's slots go to another chain
    Split {
        /// The chain that has them
        #[arg(value_name = "CHAIN")]
        from: String,
        /// The other chain, which need not have any yet
        #[arg(long, value_name = "CHAIN")]
        to: String,
        #[command(flatten)]
        how: How,
    },
    /// Have all slots of a chain go to another chain
    Merge {
        /// The chain that has them
        #[arg(value_name = "CHAIN")]
        from: String,
        /// The other chain
        #[arg(long, value_name = "CHAIN")]
        to: String,
        #[command(flatten)]
        how: How,
    },
    /// Have even shares of the slots at these chains, and none at others, by as few moves as that takes
    Rebalance {
        /// The chains; without them those that share the slots now
        #[arg(value_name = "CHAIN")]
        chains: Vec<String>,
        #[command(flatten)]
        how: How,
    },
    /// Have no more slots go anywhere: those that have gone stay where they are
    Stop {
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
struct How {
    /// Show what would go where, and change nothing
    #[arg(long)]
    plan: bool,
    /// Do not wait until it is so
    #[arg(long)]
    no_wait: bool,
    /// Give up waiting once nothing has changed for so long, such as 90s: the plan stays
    #[arg(long, value_name = "TIME", default_value = "2m")]
    patience: esker::Period,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

/// Slots, as an argument.
fn slots(text: &str) -> Result<(u16, u16), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let slot = |text: &str| text.parse().ok().filter(|slot| *slot < SLOTS);
    let both = slot(first).zip(slot(last)).filter(|(first, last)| first <= last);
    both.ok_or_else(|| format!("{text:?}: expected a slot, or two as FIRST-LAST, from 0 to {}", SLOTS - 1))
}

/// What goes where, in runs of slots.
struct Going<'s> {
    first: u16,
    last: u16,
    from: &'s str,
    to: &'s str,
}

fn going(slots: &Slots) -> Vec<Going<'_>> {
    let chains = slots.shares();
    let mut all: Vec<_> =
        chains.iter().flat_map(|(chain, _)| slots.due_of(chain).map(move |due| (due.slot, *chain, due.to))).collect();
    all.sort_unstable();
    let mut runs: Vec<Going<'_>> = Vec::new();
    for (slot, from, to) in all {
        match runs.last_mut() {
            Some(run) if run.last + 1 == slot && (run.from, run.to) == (from, to) => run.last = slot,
            _ => runs.push(Going { first: slot, last: slot, from, to }),
        }
    }
    runs
}

/// How the slots stand, as text and as JSON.
fn shown(slots: &Slots) -> (String, serde_json::Value) {
    let (shares, planned, runs) = (slots.shares(), slots.planned_shares(), going(slots));
    let mut text = format!("{:<24}{:>7}{:>8}\n", "chain", "slots", "planned");
    let mut rows = Vec::new();
    for (chain, count) in &shares {
        let plan = planned.iter().find(|(of, _)| of == chain).map_or(0, |(_, count)| *count);
        // Writing to a string does not fail.
        let _ = writeln!(text, "{chain:<24}{count:>7}{plan:>8}");
        rows.push(json!({ "chain": chain, "slots": count, "planned": plan }));
    }
    for Going { first, last, from, to } in &runs {
        let _ = writeln!(text, "slots {first} to {last} are to go from {from} to {to}");
    }
    let due = slots.due();
    if due > 0 {
        let _ = writeln!(text, "{due} of {SLOTS} slots are to go");
    }
    let going: Vec<_> = runs
        .iter()
        .map(|Going { first, last, from, to }| json!({ "first": first, "last": last, "from": from, "to": to }))
        .collect();
    (text, json!({ "chains": rows, "going": going, "due": due }))
}

/// The instances of a service, as text and as JSON.
fn registered(node: &str, instances: &Instances) -> (String, serde_json::Value) {
    let Instances { found, strange } = instances;
    let mut text = format!("{:<20}{:<20}address\n", "below", "protocol");
    let row = |instance: &Instance| {
        let address = format!("{}:{}", instance.host, instance.port);
        json!({ "mark": instance.mark, "protocol": instance.protocol, "address": address })
    };
    for Instance { mark, protocol, host, port } in found {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{mark:<20}{protocol:<20}{host}:{port}");
    }
    for why in strange {
        let _ = writeln!(text, "{node}: {why}");
    }
    let rows: Vec<_> = found.iter().map(row).collect();
    let strange: Vec<_> = strange.iter().map(ToString::to_string).collect();
    (text, json!({ "instances": rows, "strange": strange }))
}

impl RingArguments {
    /// Runs the command.
    pub fn run(self, settings: &Settings) -> Result<(), Failure> {
        let (runtime, chain) = super::connect(self.location, None, settings)?;
        runtime.block_on(async {
            match self.command {
                RingCommand::Status { json } => {
                    let (text, value) = shown(&current(&chain).await?);
                    tell(json, &value, &text)
                }
                RingCommand::Instances { node, json } => {
                    let node = node.unwrap_or_else(|| settings.serve.thrift_registry.clone());
                    let found = chain.coordinator.instances(&node).await.map_err(failure)?;
                    let (text, value) = registered(&node, &found);
                    tell(json, &value, &text)
                }
                RingCommand::Stop { json } => {
                    let stopped = chain.coordinator.change_slots(|slots| Some(slots.without_plan())).await;
                    let (text, value) = shown(&stopped.map_err(failure)?);
                    tell(json, &value, &text)
                }
                RingCommand::Move { slots: (first, last), to, how } => {
                    let moved = |slots: &Slots| slots.with_plan(first..=last, &to);
                    how.run(&chain, std::slice::from_ref(&to), moved).await
                }
                RingCommand::Split { from, to, how } => {
                    how.run(&chain, &[from.clone(), to.clone()], |slots| half(slots, &from, &to)).await
                }
                RingCommand::Merge { from, to, how } => {
                    how.run(&chain, &[from.clone(), to.clone()], |slots| slots.with_plan(own(slots, &from), &to)).await
                }
                RingCommand::Rebalance { chains, how } => {
                    let even = |slots: &Slots| {
                        let all = slots.shares();
                        let sharing = all.iter().map(|(chain, _)| *chain);
                        let named: BTreeSet<&str> = if chains.is_empty() {
                            sharing.collect()
                        } else {
                            chains.iter().map(String::as_str).collect()
                        };
                        slots.with_even_plan(&named.into_iter().collect::<Vec<_>>())
                    };
                    how.run(&chain, &chains, even).await
                }
            }
        })
    }
}

async fn current(chain: &Chain) -> Result<Slots, Failure> {
    chain.coordinator.sync().await.map_err(failure)?;
    let slots = chain.coordinator.slots().await.map_err(failure)?;
    slots.ok_or_else(|| failure(esker_cluster::Error::NoSlots))
}

/// The slots of a chain.
fn own(slots: &Slots, chain: &str) -> Vec<u16> {
    slots.parts().iter().filter(|part| part.chain == chain).flat_map(|part| part.first..=part.last).collect()
}

/// The upper half of a chain's slots goes.
fn half(slots: &Slots, from: &str, to: &str) -> Option<Slots> {
    let own = own(slots, from);
    slots.with_plan(own.iter().skip(own.len().div_ceil(2)).copied(), to)
}

impl How {
    async fn run(self, chain: &Chain, named: &[String], plan: impl Fn(&Slots) -> Option<Slots>) -> Result<(), Failure> {
        let known = chain.coordinator.chains().await.map_err(failure)?;
        if let Some(unknown) = named.iter().find(|name| !known.contains(name)) {
            return Err(failure(esker_cluster::Error::NoChain(unknown.clone())));
        }
        let before = current(chain).await?;
        let planned = plan(&before).ok_or_else(|| Failure::usage("for so many chains there are not enough slots"))?;
        if self.plan {
            let (text, value) = shown(&planned);
            return tell(self.json, &value, &text);
        }
        let planned = chain.coordinator.change_slots(&plan).await.map_err(failure)?;
        let slots = if self.no_wait { planned } else { self.wait(chain, planned).await? };
        let (text, value) = shown(&slots);
        tell(self.json, &value, &text)
    }

    /// Waits until there is nothing that is to go.
    async fn wait(&self, chain: &Chain, planned: Slots) -> Result<Slots, Failure> {
        let all = planned.due();
        let bar = progress::count("slots go to other chains", all as u64);
        let (mut due, mut since) = (all, Instant::now());
        loop {
            let slots = current(chain).await;
            let left = slots.as_ref().map(Slots::due).unwrap_or(due);
            if let (Ok(slots), 0) = (slots, left) {
                bar.finish_and_clear();
                return Ok(slots);
            }
            if left != due {
                (due, since) = (left, Instant::now());
            }
            bar.set_position(all.saturating_sub(due) as u64);
            if since.elapsed() >= self.patience.0 {
                bar.finish_and_clear();
                let why = format!(
                    "{due} of {all} slots are still to go, and none has for {}: the log of the head of their chain says \
                     why. The plan stays: esker ring status",
                    self.patience
                );
                return Err(Failure::new(Code::Failure, why));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_one_or_a_first_and_a_last() {
        assert_eq!((slots("7"), slots("0-16383")), (Ok((7, 7)), Ok((0, 16_383))));
        for wrong in ["", "16384", "9-8", "1-", "a-b", "-1", "1-2-3"] {
            assert!(slots(wrong).unwrap_err().contains("0 to 16383"), "{wrong}");
        }
    }

    #[test]
    fn instances_are_told_by_mark_and_what_is_none_by_name() {
        let found = vec!["thriftbinary_65536:h:9901".parse().unwrap()];
        let strange = vec!["nonsense".parse::<Instance>().unwrap_err()];
        let (text, value) = registered("/data/zdb", &Instances { found, strange });
        assert!(text.contains("65536               thriftbinary        h:9901\n"), "{text}");
        assert!(text.contains("/data/zdb: \"nonsense\""), "{text}");
        assert_eq!(
            (value["instances"][0]["mark"].as_u64(), value["strange"].as_array().map(Vec::len)),
            (Some(65_536), Some(1))
        );
    }

    #[test]
    fn what_goes_where_is_told_in_runs() {
        let slots = Slots::even(&["a", "b"]).unwrap();
        let split = half(&slots, "a", "c").unwrap();
        let (text, value) = shown(&split);
        assert!(text.contains("slots 4096 to 8191 are to go from a to c\n4096 of 16384 slots are to go\n"), "{text}");
        assert_eq!(value["going"].as_array().map(Vec::len), Some(1));
        let merged = slots.with_plan(own(&slots, "b"), "a").unwrap();
        assert!(shown(&merged).0.contains("slots 8192 to 16383 are to go from b to a"));
        assert!(!shown(&slots).0.contains("are to go"));
        assert_eq!(half(&slots, "c", "a").unwrap(), slots, "it has none");
    }
}

//! What is compared: a device, a load on it, and the policies.
//!
//! Invariant: a cell is the same for all policies; only figures of one cell are compared with each other.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use esker_device::Pace;
use esker_engine::CommitPolicy;
use serde::{Deserialize, Serialize};

/// How long the device takes to sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disk {
    /// Each sync takes so long, in microseconds.
    Takes(u64),
    /// Each sync takes `takes_us`, and begins no sooner than a second's `per_second`-th part after the last one began.
    Limited {
        /// Syncs per second.
        per_second: u64,
        /// Time of one, in microseconds.
        takes_us: u64,
    },
    /// The file's own sync (`measure` only).
    Own,
}

impl Disk {
    /// What a device of this kind does.
    pub fn pace(self) -> Pace {
        match self {
            Self::Takes(us) => Pace::Takes(Duration::from_micros(us)),
            Self::Limited { per_second, takes_us } => {
                Pace::Limited { per_second, takes: Duration::from_micros(takes_us) }
            }
            Self::Own => Pace::Own,
        }
    }

    /// Time from sync to sync under load, in microseconds; 0 where only the file knows.
    pub fn cycle_us(self) -> u64 {
        self.pace().cycle().map_or(0, |cycle| cycle.as_micros() as u64)
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Takes(us) => write!(f, "{} ms", *us as f64 / 1e3),
            Self::Limited { per_second, takes_us } => write!(f, "{per_second}/s of {} ms", *takes_us as f64 / 1e3),
            Self::Own => f.write_str("own"),
        }
    }
}

/// How the times that clients think are spread around their mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// Always the mean
    Fixed,
    /// Evenly from half the mean to one and a half
    Even,
    /// Exponentially, as for independent arrivals
    Exponential,
}

impl Spread {
    /// One time for the mean `mean_us`, in nanoseconds.
    pub fn sample_ns(self, mean_us: u64, rng: &mut fastrand::Rng) -> u64 {
        let mean = mean_us as f64 * 1e3;
        let time = match self {
            Self::Fixed => mean,
            Self::Even => mean * (0.5 + rng.f64()),
            Self::Exponential => -mean * (1.0 - rng.f64()).ln(),
        };
        time as u64
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Even => "even",
            Self::Exponential => "exponential",
        }
    }
}

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Load {
    /// Clients, each with one put at a time.
    pub clients: u64,
    /// Puts that follow each other at once; then the client thinks.
    pub puts: u64,
    /// Mean time that a client thinks, in microseconds.
    pub think_us: u64,
    /// How it is spread.
    pub spread: Spread,
    /// The time counts from when the client should have begun last, so that the rate is fixed; else from when it was
    /// done.
    pub paced: bool,
}

/// A device and a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// The device.
    pub disk: Disk,
    /// The load.
    pub load: Load,
}

impl Cell {
    /// Whether clients come back faster than a sync takes, so that they could share every sync. Paced clients do not
    /// come back by themselves, except within their run of puts.
    pub fn returns_within_a_sync(&self) -> bool {
        !self.load.paced && self.load.think_us < self.disk.cycle_us() && self.load.clients > 1
    }

    /// Time of a round in microseconds: a sync, and a think time where syncs wait for it.
    pub fn round_us(&self) -> u64 {
        self.disk.cycle_us().max(200) + if self.load.paced { 0 } else { self.load.think_us }
    }
}

/// All policies that are compared, `periodic` last.
pub fn policies() -> Vec<CommitPolicy> {
    let group = |ms| CommitPolicy::Group { window: Duration::from_millis(ms) };
    let periodic = CommitPolicy::Periodic { interval: Duration::from_millis(10) };
    vec![CommitPolicy::Adaptive, CommitPolicy::Batch, group(1), group(2), group(5), group(10), periodic]
}

/// Which cells and policies to compare.
#[derive(Args)]
pub struct Grid {
    /// A small grid and short runs: a look in a minute
    #[arg(long)]
    pub quick: bool,
    /// Numbers of clients
    #[arg(long, value_delimiter = ',')]
    pub clients: Vec<u64>,
    /// Mean think times
    #[arg(long, value_delimiter = ',')]
    pub think: Vec<Time>,
    /// Sync times of the device, or `own` for the file's own
    #[arg(long, value_delimiter = ',')]
    pub sync: Vec<SyncTime>,
    /// How think times are spread
    #[arg(long, value_enum, value_delimiter = ',', default_value = "exponential")]
    pub spread: Vec<Spread>,
    /// Leave out the setting of 200 syncs per second
    #[arg(long)]
    pub no_limited: bool,
    /// Only the setting of 200 syncs per second
    #[arg(long, conflicts_with = "no_limited")]
    pub only_limited: bool,
    /// Only these policies
    #[arg(long, value_delimiter = ',')]
    pub policies: Vec<CommitPolicy>,
    /// Runs of each cell and policy; figures are their medians
    #[arg(long, default_value_t = 3)]
    pub runs: u64,
    /// Seed of the think times
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Grid {
    /// The policies asked for.
    pub fn policies(&self) -> Vec<CommitPolicy> {
        if self.policies.is_empty() { policies() } else { self.policies.clone() }
    }

    /// The cells asked for; what is not said is taken from `full`, or `quick`: clients, think times, sync times in us.
    pub fn cells(&self, full: [&[u64]; 3], quick: [&[u64]; 3]) -> Vec<Cell> {
        let [clients, think, sync] = if self.quick { quick } else { full };
        let clients = if self.clients.is_empty() { clients.to_vec() } else { self.clients.clone() };
        let think: Vec<u64> =
            if self.think.is_empty() { think.to_vec() } else { self.think.iter().map(|t| t.0).collect() };
        let disks: Vec<Disk> = if self.sync.is_empty() {
            sync.iter().map(|us| Disk::Takes(*us)).collect()
        } else {
            self.sync.iter().map(|sync| sync.0).collect()
        };
        let mut cells = Vec::new();
        if !self.only_limited {
            for spread in &self.spread {
                for disk in &disks {
                    for think_us in &think {
                        // Without a think time there is nothing to spread.
                        if *think_us == 0 && *spread != self.spread[0] {
                            continue;
                        }
                        cells.extend(clients.iter().map(|clients| Cell {
                            disk: *disk,
                            load: Load {
                                clients: *clients,
                                puts: 1,
                                think_us: *think_us,
                                spread: if *think_us == 0 { Spread::Fixed } else { *spread },
                                paced: false,
                            },
                        }));
                    }
                }
            }
        }
        if !self.no_limited {
            let more: Vec<_> = limited(self.quick).into_iter().filter(|cell| !cells.contains(cell)).collect();
            cells.extend(more);
        }
        cells
    }
}

/// A device of 200 I/O per second, as in Apollo Storage's measurement, under three kinds of load.
fn limited(quick: bool) -> Vec<Cell> {
    let closed = |clients| Load { clients, puts: 1, think_us: 0, spread: Spread::Fixed, paced: false };
    // So many a second in all, from 64 clients; four puts each as for one of Cassandra's conditional writes, or one.
    let paced = |per_second: u64, puts| Load {
        clients: 64,
        puts,
        think_us: 64_000_000 / per_second,
        spread: Spread::Exponential,
        paced: true,
    };
    let mut loads = vec![closed(8), closed(32), paced(500, 4)];
    if !quick {
        loads.extend([closed(128), paced(100, 4), paced(1_000, 4), paced(400, 1), paced(2_000, 1)]);
    }
    loads.sort_unstable();
    let mut cells = Vec::new();
    for disk in [Disk::Takes(5_000), Disk::Limited { per_second: 200, takes_us: 1_000 }] {
        cells.extend(loads.iter().map(|load| Cell { disk, load: *load }));
    }
    cells
}

/// A time such as `500us` or `10ms`, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Time(u64);

impl FromStr for Time {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let scale = match &text[number.len()..] {
            "us" => 1.0,
            "ms" => 1e3,
            "s" => 1e6,
            _ if text == "0" => 1.0,
            _ => bail!("{text}: expected a time such as 500us or 10ms"),
        };
        let number: f64 = number.parse().with_context(|| format!("{text}: expected a time such as 500us or 10ms"))?;
        Ok(Self((number * scale) as u64))
    }
}

/// A sync time, or `own`.
#[derive(Clone, Copy, Debug)]
pub struct SyncTime(Disk);

impl FromStr for SyncTime {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(Self(if text == "own" { Disk::Own } else { Disk::Takes(text.parse::<Time>()?.0) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!("0.1ms".parse::<Time>().unwrap().0, 100);
        assert_eq!("0".parse::<Time>().unwrap().0, 0);
        assert!("5".parse::<Time>().is_err() && "xms".parse::<Time>().is_err());
        assert_eq!("own".parse::<SyncTime>().unwrap().0, Disk::Own);
    }

    #[test]
    fn every_spread_has_its_mean() {
        let mut rng = fastrand::Rng::with_seed(7);
        for spread in [Spread::Fixed, Spread::Even, Spread::Exponential] {
            let sum: u64 = (0..20_000).map(|_| spread.sample_ns(1_000, &mut rng)).sum();
            let mean = sum as f64 / 20_000.0;
            assert!((970_000.0..1_030_000.0).contains(&mean), "{spread:?}: {mean}");
        }
    }
}

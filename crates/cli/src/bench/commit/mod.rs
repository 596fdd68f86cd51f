//! `esker bench commit`: conditional updates of rows of the map under each commit policy, on the disk and on slower
//! ones, beside other storages.
//!
//! rounds × devices × loads × (policies on fresh stores, other storages) → the median run of each → tables with ratios,
//! cells, plots → text, JSON → `esker report`
//!
//! The group commit of Apollo Storage was measured so, on Cassandra: conditional writes at given rates, on volumes of
//! 200 I/O per second. What of it concerns the engine alone, with more policies, think times and a simulation, is in
//! benches/group-commit.
//!
//! Invariants:
//! 1. All that is compared gets the same load from the same code, in turn within a round, so that what changes on the
//!    machine meets all of it.
//! 2. A store is fresh for each run; its folder goes, whatever happened.
//!
//! Source: Apollo Storage, Group Commit Log (2017)

mod cell;
mod measure;
mod peer;
mod tables;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use esker::device::{Device, FileDevice, OpenMode, SlowDevice};
use esker::engine::{Engine, FormatOptions, Options};
use esker::map::{TableName, Waist};
use esker::{CommitPolicy, ObjectStore};

use self::cell::{Disk, Load};
use self::measure::{Outcome, Run as LoadRun, Subject, fill};
use self::peer::{OpenPeer, Peer, PeerRecords};
use self::tables::{Compared, Measured};
use crate::bench::objects::outcome::{FORMAT, Run};
use crate::bench::objects::{disk_of, save};
use crate::commands::print;
use crate::exit::Failure;
use crate::progress;

/// Length of a store's file, which is sparse: longer than what the fastest run writes in a minute.
const FILE_BYTES: u64 = 16 << 30;

/// The arguments of `esker bench commit`.
#[derive(Args)]
pub struct CommitBench {
    /// Folder on the disk to measure on; what is made there is removed
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Commit policies; ratios are to the first
    #[arg(long, value_delimiter = ',', default_value = "batch,group:10ms,periodic:10s,adaptive")]
    policies: Vec<CommitPolicy>,
    /// Devices: own (the disk as it is), limited to a number of syncs a second (200/s), or with syncs of a given time
    /// (5ms)
    #[arg(long, value_delimiter = ',', default_value = "own,200/s")]
    devices: Vec<Disk>,
    /// Clients that update one row after another
    #[arg(long, value_delimiter = ',', default_value = "1,16,64", value_parser = clap::value_parser!(u64).range(1..=1_024))]
    clients: Vec<u64>,
    /// Updates per second in all, at random moments; 0: none
    #[arg(long, value_delimiter = ',', default_value = "100,400,2000", value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    rates: Vec<u64>,
    /// Clients that share a given rate
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1_024))]
    rate_clients: u64,
    /// Another storage of maps for the same load, on the disk that it is on: cassandra://HOST:PORT/PREFIX (with feature
    /// `cassandra`), or any that `esker map` knows; may be given several times
    #[arg(long = "peer", value_name = "NAME=LOCATION")]
    peers: Vec<Peer>,
    /// A command that prints how many records there are in a peer's log so far, run before and after each measured time
    #[arg(long = "peer-records", value_name = "NAME=COMMAND")]
    peer_records: Vec<PeerRecords>,
    /// Seconds for which 16 clients load each peer before anything is measured: a server that compiles while it runs is
    /// slow at first
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    peer_warm_up: f64,
    /// Measured time of each run, in seconds; a third of it goes before as a warm-up
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Runs of each; the median by updates per second, or by mean latency where the rate is given, is shown
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=99))]
    runs: u64,
    /// Seed of the moments at which updates are due
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also write the figures to this file, for `esker report`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Clients that warm another storage up.
const PEER_CLIENTS: u64 = 16;

impl CommitBench {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        if ![self.seconds, self.peer_warm_up].iter().all(|seconds| (0.0..=86_400.0).contains(seconds))
            || self.seconds == 0.0
        {
            return Err(Failure::usage("--seconds must be above 0, --peer-warm-up at least 0, both at most 86400"));
        }
        std::fs::create_dir_all(&self.dir)?;
        let names: Vec<&str> = self.peers.iter().map(|peer| peer.name.as_str()).collect();
        if let Some(twice) = names.iter().find(|name| names.iter().filter(|other| other == name).count() > 1) {
            return Err(Failure::usage(format!("--peer {twice} is given twice")));
        }
        if let Some(unknown) = self.peer_records.iter().find(|of| !names.contains(&of.name.as_str())) {
            return Err(Failure::usage(format!("--peer-records {}: there is no --peer of this name", unknown.name)));
        }
        let peers = self.open_peers()?;
        let measured = self.warm_up(&peers).and_then(|()| self.measure(&peers));
        // What another storage keeps goes even if the measurement failed; its error is the one that counts.
        let cleared = peers.iter().try_for_each(OpenPeer::close);
        let run = measured?;
        cleared?;
        let tables: Vec<String> = run.tables.iter().map(|table| table.text()).collect();
        print(&tables.join("\n"))
    }

    fn loads(&self) -> Vec<Load> {
        let rates = self.rates.iter().filter(|rate| **rate > 0).map(|rate| Load::Rate(*rate));
        self.clients.iter().map(|clients| Load::Closed(*clients)).chain(rates).collect()
    }

    /// The most clients that a load has.
    fn clients_max(&self) -> u64 {
        self.clients.iter().copied().chain([self.rate_clients]).max().unwrap_or(1)
    }

    fn open_peers(&self) -> Result<Vec<OpenPeer>, Failure> {
        let mut peers = Vec::with_capacity(self.peers.len());
        for peer in &self.peers {
            let records = self.peer_records.iter().find(|of| of.name == peer.name).cloned();
            match OpenPeer::open(peer, records, self.clients_max() * measure::OWN_ROWS) {
                Ok(open) => peers.push(open),
                Err(failure) => {
                    // Why it was not opened is the one to tell.
                    peers.iter().for_each(|peer: &OpenPeer| drop(peer.close()));
                    return Err(failure.within(&peer.name));
                }
            }
        }
        Ok(peers)
    }

    fn warm_up(&self, peers: &[OpenPeer]) -> Result<(), Failure> {
        let load = LoadRun {
            load: Load::Closed(PEER_CLIENTS.min(self.clients_max())),
            rate_clients: 1,
            time: Duration::from_secs_f64(self.peer_warm_up),
            seed: self.seed,
            phase: String::new(),
        };
        peers.iter().try_for_each(|peer| load.on(&peer.subject(None)).map(drop).map_err(|of| of.within(&peer.name)))
    }

    /// All runs: their results so far are in the file after each round.
    fn measure(&self, peers: &[OpenPeer]) -> Result<Run, Failure> {
        let mut cells: Vec<Compared> = Vec::new();
        for disk in &self.devices {
            cells.extend(self.loads().into_iter().map(|load| Compared::new(*disk, load)));
        }
        if !peers.is_empty() && !self.devices.contains(&Disk::OWN) {
            cells.extend(self.loads().into_iter().map(|load| Compared::new(Disk::OWN, load)));
        }
        let of = |cell: &Compared| {
            let policies = if self.devices.contains(&cell.disk) { self.policies.len() } else { 0 };
            policies + if cell.disk == Disk::OWN { peers.len() } else { 0 }
        };
        let bar = progress::count("runs", cells.iter().map(of).sum::<usize>() as u64 * self.runs);
        let mut run = self.results(&cells);
        for number in 0..self.runs {
            for cell in &mut cells {
                let load = LoadRun {
                    load: cell.load,
                    rate_clients: self.rate_clients,
                    time: Duration::from_secs_f64(self.seconds),
                    seed: self.seed.wrapping_add(number),
                    phase: cell.phase(),
                };
                if self.devices.contains(&cell.disk) {
                    for policy in &self.policies {
                        let outcome = self.on_engine(cell.disk, *policy, &load);
                        cell.add(Measured::Policy(*policy), outcome?);
                        bar.inc(1);
                    }
                }
                if cell.disk == Disk::OWN {
                    for peer in peers {
                        let outcome = self.on_peer(peer, &load).map_err(|failure| failure.within(&peer.name));
                        cell.add(Measured::Peer(peer.name.clone()), outcome?);
                        bar.inc(1);
                    }
                }
            }
            run = self.results(&cells);
            if let Some(file) = &self.json {
                save(file, &run, &bar)?;
            }
        }
        bar.finish_and_clear();
        Ok(run)
    }

    /// One run on a store of its own.
    fn on_engine(&self, disk: Disk, policy: CommitPolicy, load: &LoadRun) -> Result<Outcome, Failure> {
        let folder = tempfile::Builder::new().prefix("esker-bench-commit-").tempdir_in(&self.dir)?;
        let file = FileDevice::open(folder.path().join("store.esker"), OpenMode::Create { len: FILE_BYTES })?;
        Engine::format(&file, &FormatOptions::new(*b"esker-bench-comm"))?;
        let device = Arc::new(SlowDevice::new(file, disk.0));
        let options = Options { policy: CommitPolicy::Batch, ..Options::default() };
        let engine = Arc::new(Engine::open(Arc::clone(&device) as Arc<dyn Device>, options)?);
        let outcome = (|| {
            // Nothing expires, and no token is shown to a client.
            let map = Waist::open(Arc::clone(&engine) as Arc<dyn ObjectStore>, Arc::new(|| 0), [0; 32])?;
            let table = TableName::new("bench", "rows");
            fill(&map, &table, self.clients_max() * measure::OWN_ROWS)?;
            engine.sync().wait()?;
            engine.set_policy(policy);
            let flushed = if disk == Disk::OWN { disk_of(&self.dir) } else { None };
            let subject = Subject {
                name: &policy.to_string(),
                map: &map,
                table: &table,
                records: &|| Some(engine.stats().records),
                syncs: &|| Some(device.syncs()),
                device: flushed.as_deref(),
            };
            load.on(&subject)
        })();
        let closed = engine.close();
        let outcome = outcome?;
        closed?;
        Ok(outcome)
    }

    /// One run on another storage.
    fn on_peer(&self, peer: &OpenPeer, load: &LoadRun) -> Result<Outcome, Failure> {
        let flushed = disk_of(&self.dir);
        load.on(&peer.subject(flushed.as_deref()))
    }

    fn results(&self, cells: &[Compared]) -> Run {
        let clients = cells.iter().filter(|cell| matches!(cell.load, Load::Closed(_)));
        Run {
            format: FORMAT,
            durability: "acknowledged, which is durable but for periodic".into(),
            in_flight: "clients, each with one conditional update of a row under way".into(),
            seconds: self.seconds,
            warm_up: self.seconds / 3.0,
            data_bytes: 0,
            image_bytes: 0,
            processors: std::thread::available_parallelism().map_or(1, |n| n.get()),
            seed: self.seed,
            cells: clients.flat_map(Compared::cells).collect(),
            tables: tables::tables(cells),
            plots: tables::plots(cells),
        }
    }
}

//! Histories of the keys of a replicated chain: clients of the Redis protocol work on a cluster that others disturb.
//!
//! clients begin → `seconds` → they end → all is read back, as soon as the chain answers → one file
//!
//! `scripts/cluster-test` starts the cluster, disturbs it meanwhile, and has the file judged.

mod redis;
mod worker;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use crate::notes::{Event, Notes, Tally, events, now};
use crate::terms::Failure;
use redis::RedisClient;
use worker::Worker;

/// What is recorded of a cluster.
#[derive(Args, Clone, Debug)]
pub struct ClusterSettings {
    /// Where the nodes speak the Redis protocol, as ADDRESS:PORT.
    #[arg(long, value_delimiter = ',', required = true)]
    nodes: Vec<SocketAddr>,
    /// A file whose first line is the password.
    #[arg(long)]
    password_file: Option<PathBuf>,
    /// For how long clients work, in seconds.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// How long it may take afterwards until everything is read back, in seconds.
    #[arg(long, default_value_t = 120)]
    settle: u64,
    /// Clients.
    #[arg(long, default_value_t = 8)]
    clients: u64,
    /// Of the calls.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Pause of a client between two calls, in milliseconds.
    #[arg(long, default_value_t = 2)]
    pause_ms: u64,
    /// Where the history is written. Made if it is missing.
    #[arg(long, default_value = "histories")]
    out: PathBuf,
}

/// Records.
pub fn record(settings: &ClusterSettings) -> Result<(), Failure> {
    std::fs::create_dir_all(&settings.out)?;
    let folder = tempfile::tempdir_in(&settings.out)?;
    let password = match &settings.password_file {
        Some(file) => std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?,
        None => String::new(),
    };
    let password = password.lines().next().unwrap_or_default().to_owned();
    let (begin, began) = (now(), Instant::now());
    let until = began + Duration::from_secs(settings.seconds);
    let notes = |me: u64| folder.path().join(me.to_string());
    let worker = |me: u64| -> Result<Worker, Failure> {
        let client = RedisClient::new(settings.nodes.clone(), password.clone(), me as usize);
        let pause = Duration::from_millis(settings.pause_ms);
        Ok(Worker::new(me, begin, settings.seed, Notes::create(&notes(me))?, client, pause))
    };
    let mut workers = (0..settings.clients).map(worker).collect::<Result<Vec<_>, _>>()?;
    let done: Result<(), String> = std::thread::scope(|scope| {
        let works = |mut worker: Worker| move || worker.work(until).map_err(|error| error.to_string());
        let threads: Vec<_> = workers.drain(..).map(|worker| scope.spawn(works(worker))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a client panicked")?)
    });
    done?;
    let worked = began.elapsed();
    let last = settings.clients;
    let read = worker(last)?.read_back(Instant::now() + Duration::from_secs(settings.settle));
    let (mut history, mut sum) = (Vec::<Event>::new(), Tally::default());
    for me in 0..=last {
        history.extend(events(me, &std::fs::read_to_string(notes(me))?)?);
    }
    history.iter().for_each(|event| sum.count(event.answer.outcome));
    history.sort_by_key(|event| event.begin);
    let mut file = BufWriter::new(File::create(settings.out.join("kv.jsonl"))?);
    for event in &history {
        serde_json::to_writer(&mut file, event)?;
        file.write_all(b"\n")?;
    }
    file.flush()?;
    println!("kv     {}", crate::record::told(sum, worked));
    read
}

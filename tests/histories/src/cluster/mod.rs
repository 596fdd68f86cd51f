//! Histories of replicated chains: clients of the Redis protocol, of keys by Thrift, of logs by gRPC and of disks by
//! NBD work on a cluster that others disturb.
//!
//! clients begin → `seconds` → they end → all is read back, once the chain answers → one file for each face
//!
//! `scripts/cluster-test` starts the cluster, disturbs it meanwhile, and has the files judged.

mod disk;
mod door;
mod log;
mod parts;
mod places;
mod redis;
mod thrift;
mod worker;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use crate::notes::{Event, Notes, Tally, events};
use crate::terms::Failure;
use disk::DiskWorker;
use door::Door;
use log::LogWorker;
use places::Places;
use redis::RedisClient;
use thrift::ThriftWorker;
use worker::{Way, Worker};

/// What clients work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Works {
    /// Keys, by the Redis protocol.
    Kv,
    /// Int keys, by Thrift.
    Thrift,
    /// Logs, by gRPC.
    Log,
    /// The disks `durable` and `flushed`, by NBD.
    Disk,
}

/// What is recorded of a cluster.
#[derive(Args, Clone, Debug)]
pub struct ClusterSettings {
    /// Where the nodes speak the Redis protocol, as ADDRESS:PORT: those of the first chain, of the next, and so on.
    #[arg(long, value_delimiter = ',')]
    nodes: Vec<SocketAddr>,
    /// How many chains share the keys, evenly and in the order of the nodes.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=places::AT_A_TIME))]
    chains: u64,
    /// Where they serve int keys by Thrift, of whichever chain, with TLS.
    #[arg(long, value_delimiter = ',')]
    thrift: Vec<SocketAddr>,
    /// Where they serve logs by gRPC, with TLS.
    #[arg(long, value_delimiter = ',')]
    grpc: Vec<SocketAddr>,
    /// Where they serve disks by NBD, with TLS.
    #[arg(long, value_delimiter = ',')]
    nbd: Vec<SocketAddr>,
    /// What clients work on.
    #[arg(long, value_delimiter = ',', default_value = "kv")]
    faces: Vec<Works>,
    /// A folder with what clients of gRPC, NBD and Thrift need: ca-cert.pem, client-cert.pem, client-key.pem.
    #[arg(long, default_value = ".")]
    certificates: PathBuf,
    /// What the certificates of all servers name.
    #[arg(long, default_value = "esker")]
    host: String,
    /// A file whose first line is the password.
    #[arg(long)]
    password_file: Option<PathBuf>,
    /// For how long clients work, in seconds.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// How long it may take afterwards until everything is read back, in seconds.
    #[arg(long, default_value_t = 120)]
    settle: u64,
    /// Clients of keys, half of which read at replicas; half as many are of each other face.
    #[arg(long, default_value_t = 8)]
    clients: u64,
    /// Of the calls.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Pause of a client between two calls, in milliseconds.
    #[arg(long, default_value_t = 2)]
    pause_ms: u64,
    /// Where the histories are written. Made if it is missing.
    #[arg(long, default_value = "histories")]
    out: PathBuf,
}

/// A client of whichever face.
enum Client {
    Kv(Worker),
    Thrift(ThriftWorker),
    Log(LogWorker),
    Disk(DiskWorker),
}

impl Works {
    /// As histories of it are called.
    fn name(self) -> &'static str {
        match self {
            Self::Kv => "kv",
            Self::Thrift => "thrift",
            Self::Log => "log",
            Self::Disk => "volume",
        }
    }
}

impl Client {
    fn work(&mut self, until: Instant) -> Result<(), Failure> {
        match self {
            Self::Kv(worker) => worker.work(until),
            Self::Thrift(worker) => worker.work(until),
            Self::Log(worker) => worker.work(until),
            Self::Disk(worker) => worker.work(until),
        }
    }

    fn read_back(&mut self, until: Instant) -> Result<(), Failure> {
        match self {
            Self::Kv(worker) => worker.read_back(until),
            Self::Thrift(worker) => worker.read_back(until),
            Self::Log(worker) => worker.read_back(until),
            Self::Disk(worker) => worker.read_back(until),
        }
    }
}

/// A run, as its clients see it.
struct Run<'a> {
    settings: &'a ClusterSettings,
    folder: &'a Path,
    password: String,
    places: Places,
}

impl Run<'_> {
    fn notes(&self, works: Works, me: u64) -> PathBuf {
        self.folder.join(format!("{}-{me}", works.name()))
    }

    fn clients(&self, works: Works) -> u64 {
        if works == Works::Kv { self.settings.clients } else { self.settings.clients.div_ceil(2) }
    }

    fn door(&self, nodes: &[SocketAddr]) -> Door {
        let settings = self.settings;
        Door { nodes: nodes.to_vec(), certificates: settings.certificates.clone(), host: settings.host.clone() }
    }

    fn client(&self, works: Works, me: u64) -> Result<Client, Failure> {
        let settings = self.settings;
        let (notes, seed) = (Notes::create(&self.notes(works, me))?, settings.seed);
        let pause = Duration::from_millis(settings.pause_ms);
        Ok(match works {
            Works::Kv => {
                let client = |nodes: &[_]| RedisClient::new(nodes.to_vec(), self.password.clone(), me as usize);
                let of_chain = settings.nodes.len() / settings.chains as usize;
                let ways = settings.nodes.chunks_exact(of_chain).map(|nodes| Way {
                    // Any node may be asked, of whichever chain, and names the one that answers.
                    client: client(&settings.nodes),
                    // What one is told at a replica, and another by the head, has to fit together.
                    reader: (me % 2 == 1).then(|| client(nodes).reading_replicas()),
                    fails: false,
                });
                Client::Kv(Worker::new(me, self.places, seed, notes, ways.collect(), pause))
            }
            Works::Thrift => {
                let door = self.door(&settings.thrift);
                Client::Thrift(ThriftWorker::new(me, seed, self.places, notes, door, pause))
            }
            Works::Log => Client::Log(LogWorker::new(me, seed, notes, self.door(&settings.grpc), pause)?),
            Works::Disk => Client::Disk(DiskWorker::new(me, seed, self.places, notes, self.door(&settings.nbd), pause)),
        })
    }

    /// Reads all of a face back, and writes its history.
    fn end(&self, works: Works, worked: Duration) -> Result<(), Failure> {
        let settings = self.settings;
        let last = self.clients(works);
        let read = self.client(works, last)?.read_back(Instant::now() + Duration::from_secs(settings.settle));
        let (mut history, mut sum) = (Vec::<Event>::new(), Tally::default());
        for me in 0..=last {
            history.extend(events(me, &std::fs::read_to_string(self.notes(works, me))?)?);
        }
        if works == Works::Disk {
            disk::settle(&mut history);
        }
        history.iter().for_each(|event| sum.count(event.answer.outcome));
        history.sort_by_key(|event| event.begin);
        let name = works.name();
        let mut file = BufWriter::new(File::create(settings.out.join(format!("{name}.jsonl")))?);
        for event in &history {
            serde_json::to_writer(&mut file, event)?;
            file.write_all(b"\n")?;
        }
        file.flush()?;
        println!("{name:7}{}", crate::record::told(sum, worked));
        read
    }
}

/// Records.
pub fn record(settings: &ClusterSettings) -> Result<(), Failure> {
    for (works, nodes, flag) in [
        (Works::Kv, &settings.nodes, "--nodes"),
        (Works::Thrift, &settings.thrift, "--thrift"),
        (Works::Log, &settings.grpc, "--grpc"),
        (Works::Disk, &settings.nbd, "--nbd"),
    ] {
        if settings.faces.contains(&works) && nodes.is_empty() {
            return Err(format!("{flag} has to say where the servers are").into());
        }
    }
    if settings.faces.contains(&Works::Kv) && !settings.nodes.len().is_multiple_of(settings.chains as usize) {
        return Err(format!("--nodes: {} are not as many for each of {}", settings.nodes.len(), settings.chains).into());
    }
    std::fs::create_dir_all(&settings.out)?;
    let folder = tempfile::tempdir_in(&settings.out)?;
    let password = match &settings.password_file {
        Some(file) => std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?,
        None => String::new(),
    };
    let password = password.lines().next().unwrap_or_default().to_owned();
    let run = Run { settings, folder: folder.path(), password, places: Places::begin() };
    let began = Instant::now();
    let until = began + Duration::from_secs(settings.seconds);
    let mut clients = Vec::new();
    for works in &settings.faces {
        for me in 0..run.clients(*works) {
            clients.push(run.client(*works, me)?);
        }
    }
    if let Some(Client::Log(worker)) = clients.iter_mut().find(|client| matches!(client, Client::Log(_))) {
        worker.prepare(until)?;
    }
    let done: Result<(), String> = std::thread::scope(|scope| {
        let works = |mut client: Client| move || client.work(until).map_err(|error| error.to_string());
        let threads: Vec<_> = clients.drain(..).map(|client| scope.spawn(works(client))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a client panicked")?)
    });
    done?;
    let worked = began.elapsed();
    let ended: Vec<_> = settings.faces.iter().map(|works| run.end(*works, worked)).collect();
    ended.into_iter().collect()
}

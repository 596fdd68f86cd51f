//! `esker-bench-tables redis`: Redis and `esker serve` under redis-benchmark, in turn.
//!
//! for each round → each target: fresh folder → start → wait for PONG → redis-benchmark per pipeline depth → stop →
//! delete
//!
//! Invariants:
//! 1. Only one server runs at a time, on loopback, and it is stopped however the run ends.
//! 2. Safe (every write durable) and relaxed (durable within a second) go to different tables.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use esker_bench_figures::progress;

use crate::embedded::settle_device;
use crate::report::{Column, Report, Role};
use crate::units;

/// What an acknowledged write means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Safety {
    /// Durable: `appendfsync always` beside `--policy adaptive`.
    Safe,
    /// Durable within a second: `appendfsync everysec` beside `--policy periodic:1s`.
    Relaxed,
}

impl Safety {
    fn title(self) -> &'static str {
        match self {
            Self::Safe => "server, synced",
            Self::Relaxed => "server, synced every second",
        }
    }
}

/// The arguments of `redis`.
#[derive(Args, Debug)]
pub struct Redis {
    /// The esker binary; without it only Redis is measured
    #[arg(long)]
    esker: Option<PathBuf>,
    /// More arguments for `esker serve`
    #[arg(long, value_delimiter = ' ', allow_hyphen_values = true)]
    esker_arguments: Vec<String>,
    /// The redis-server binary
    #[arg(long, default_value = "redis-server")]
    redis_server: PathBuf,
    /// The redis-benchmark binary
    #[arg(long, default_value = "redis-benchmark")]
    redis_benchmark: PathBuf,
    /// What an acknowledged write means
    #[arg(long, value_enum, value_delimiter = ',', default_value = "safe,relaxed")]
    safety: Vec<Safety>,
    /// Commands, as redis-benchmark -t takes them
    #[arg(long, default_value = "set,get,incr,mset")]
    commands: String,
    /// Requests of every command
    #[arg(long, short = 'n', value_parser = units::count, default_value = "100k")]
    requests: u32,
    /// Connections
    #[arg(long, short = 'c', default_value_t = 32)]
    clients: u32,
    /// Requests in one pipeline
    #[arg(long, short = 'P', value_delimiter = ',', default_value = "1,16")]
    pipelines: Vec<u32>,
    /// Size of values in bytes
    #[arg(long, short = 'd', default_value_t = 3)]
    value_bytes: u32,
    /// Random keys out of so many; 0 means one key
    #[arg(long, short = 'r', value_parser = units::count, default_value = "100k")]
    keyspace: u32,
    /// Rounds; the figures are their medians
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Folder on the device to be measured; what is made there is deleted
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// File for all figures as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Redis,
    Esker,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Esker => "esker",
        }
    }
}

/// A server that is stopped when it goes out of scope.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), rustix::process::Signal::TERM);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(20) {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Redis {
    /// Measures and reports.
    pub fn run(self) -> Result<()> {
        let mut targets = vec![Target::Redis];
        if self.esker.is_some() {
            targets.push(Target::Esker);
        }
        let mut report = Report::default();
        for target in &targets {
            let (role, setup) = match target {
                Target::Redis => (
                    Role::Rival,
                    "appendonly yes, save off; synced: appendfsync always; every second: appendfsync everysec",
                ),
                Target::Esker => {
                    (Role::Ours, "esker serve; synced: --policy adaptive; every second: --policy periodic:1s")
                }
            };
            report.columns.push(Column { name: target.name().into(), role, setup: setup.into() });
        }
        report.setup = [
            ("commands", self.commands.clone()),
            ("requests", self.requests.to_string()),
            ("clients", self.clients.to_string()),
            ("value bytes", self.value_bytes.to_string()),
            ("keyspace", self.keyspace.to_string()),
            ("rounds", self.rounds.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let bar = progress((targets.len() * self.safety.len()) as u64 * u64::from(self.rounds));
        bar.enable_steady_tick(Duration::from_millis(500));
        for round in 0..self.rounds {
            for safety in &self.safety {
                let mut turn = targets.clone();
                turn.rotate_left(round as usize % targets.len());
                for target in turn {
                    bar.set_message(format!("{}, {}", target.name(), safety.title()));
                    self.measure(target, *safety, &mut report).with_context(|| target.name())?;
                    bar.inc(1);
                }
            }
        }
        bar.finish_and_clear();
        report.finish();
        report.print();
        self.json.as_ref().map_or(Ok(()), |path| report.write_json(path))
    }

    fn measure(&self, target: Target, safety: Safety, report: &mut Report) -> Result<()> {
        let folder = tempfile::Builder::new().prefix("esker-bench-tables-").tempdir_in(&self.dir).context("--dir")?;
        let address = free_address()?;
        let server = self.start(target, safety, folder.path(), address)?;
        for depth in &self.pipelines {
            for (command, rate) in self.benchmark(address, *depth)? {
                report.add(safety.title(), &format!("{command}, pipeline {depth}"), target.name(), rate);
            }
        }
        drop(server);
        folder.close()?;
        settle_device(&self.dir)
    }

    fn start(&self, target: Target, safety: Safety, folder: &Path, address: SocketAddr) -> Result<Server> {
        let mut command = match target {
            Target::Redis => {
                let mut command = Command::new(&self.redis_server);
                let fsync = if safety == Safety::Safe { "always" } else { "everysec" };
                command.args(["--bind", &address.ip().to_string(), "--port", &address.port().to_string()]);
                command.args(["--save", "", "--appendonly", "yes", "--appendfsync", fsync]).arg("--dir").arg(folder);
                command
            }
            Target::Esker => {
                let mut command = Command::new(self.esker.as_ref().context("--esker")?);
                let policy = if safety == Safety::Safe { "adaptive" } else { "periodic:1s" };
                command.arg("serve").arg("--store").arg(folder.join("store"));
                command.args(["--listen", &address.to_string(), "--policy", policy]).args(&self.esker_arguments);
                command
            }
        };
        let log = folder.join("log");
        let output = std::fs::File::create(&log)?;
        let child = command.stdin(Stdio::null()).stderr(output.try_clone()?).stdout(output).spawn();
        let mut server = Server(child.with_context(|| format!("start {:?}", command.get_program()))?);
        let begun = Instant::now();
        loop {
            if answers(address).unwrap_or(false) {
                return Ok(server);
            }
            let ended = server.0.try_wait()?;
            if ended.is_some() || begun.elapsed() > Duration::from_secs(30) {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                bail!("the server does not answer on {address} ({ended:?}); it said:\n{log}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs redis-benchmark once; a rate per command.
    fn benchmark(&self, address: SocketAddr, depth: u32) -> Result<Vec<(String, f64)>> {
        let mut command = Command::new(&self.redis_benchmark);
        command.args([
            "-h",
            &address.ip().to_string(),
            "-p",
            &address.port().to_string(),
            "-t",
            &self.commands,
            "--csv",
        ]);
        for (flag, value) in [
            ("-n", self.requests),
            ("-c", self.clients),
            ("-P", depth),
            ("-d", self.value_bytes),
            ("-r", self.keyspace),
        ] {
            if flag != "-r" || value > 0 {
                command.arg(flag).arg(value.to_string());
            }
        }
        let output = command.stdin(Stdio::null()).output().context("redis-benchmark")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "redis-benchmark: {}\n{text}{errors}", output.status);
        // An error reply ends a command's run early and is only said in passing.
        ensure!(!text.contains("rror from server"), "redis-benchmark: {text}{errors}");
        ensure!(!errors.contains("rror from server"), "redis-benchmark: {text}{errors}");
        parse_csv(&text)
    }
}

/// Lines of `"name","requests per second",…` below one with `"test"`.
fn parse_csv(text: &str) -> Result<Vec<(String, f64)>> {
    let mut rates = Vec::new();
    for line in text.lines().map(str::trim) {
        let mut cells = line.strip_prefix('"').into_iter().flat_map(|line| line.split("\",\""));
        let (Some(name), Some(rate)) = (cells.next(), cells.next()) else { continue };
        if let Ok(rate) = rate.trim_end_matches('"').parse() {
            rates.push((name.to_owned(), rate));
        }
    }
    ensure!(!rates.is_empty(), "redis-benchmark printed no figures:\n{text}");
    Ok(rates)
}

/// A loopback port that no process uses right now.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?)
}

/// Whether a server says PONG.
fn answers(address: SocketAddr) -> Result<bool> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(500))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"PING\r\n")?;
    let mut reply = [0; 7];
    stream.read_exact(&mut reply)?;
    Ok(&reply == b"+PONG\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_csv() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"99009.90\",\"0.286\"\n\"MSET (10 keys)\",\"5000.00\",\"6.1\"\n";
        let expected = vec![("SET".to_owned(), 99_009.90), ("MSET (10 keys)".to_owned(), 5_000.0)];
        assert_eq!(parse_csv(text).unwrap(), expected);
        assert!(parse_csv("nothing").is_err());
    }
}

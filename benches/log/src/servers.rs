//! Servers of the run: begun in a fresh folder, ended with their cell.
//!
//! peer → files, arguments → process → answers on its port → [`Running`]
//!
//! Each acknowledges an append when it is durable: Esker by its default policy, Redis with `appendfsync always` (and
//! without rewriting its file meanwhile), Kafka with `log.flush.interval.messages=1` and one replica.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::target::Peer;

/// A server answers within this.
const LATE: Duration = Duration::from_secs(60);
/// How long it has to stop.
const GRACE: Duration = Duration::from_secs(20);
/// Lines of what a server printed that are shown when something failed.
const SAID_LINES: usize = 20;

/// Where the programs are.
pub struct Servers {
    /// The esker binary.
    pub esker: PathBuf,
    /// The redis-server binary.
    pub redis: PathBuf,
    /// Folder of Kafka's jars.
    pub kafka: Option<PathBuf>,
}

/// A server that ends when dropped.
pub struct Running {
    child: Child,
    /// What it prints.
    output: PathBuf,
    /// Where it answers.
    pub address: SocketAddr,
}

impl Running {
    /// Time that its threads have spent on processors, all together.
    ///
    /// # Errors
    /// That it is gone.
    pub fn processor_time(&self) -> Result<Duration> {
        processor_time(&self.child.id().to_string()).context("the server is gone")
    }

    /// The end of what it printed.
    pub fn said(&self) -> String {
        let said = std::fs::read_to_string(&self.output).unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(SAID_LINES)..].join("\n")
    }
}

/// Time that the threads of this process have spent on processors.
///
/// # Errors
/// That the system does not tell.
pub fn own_processor_time() -> Result<Duration> {
    processor_time("self")
}

fn processor_time(process: &str) -> Result<Duration> {
    let path = format!("/proc/{process}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let ticks = ticks(&stat).with_context(|| format!("{path}: {stat:?}"))?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// User and system time in `/proc/PID/stat`: its fields 14 and 15, counted behind the name, which may hold anything.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

impl Drop for Running {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        // It may have ended already.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let began = Instant::now();
        while began.elapsed() < GRACE {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Servers {
    /// Begins a peer's server with its data in `folder`.
    ///
    /// # Errors
    /// That it cannot be started, or does not answer, with what it said.
    pub fn start(&self, peer: Peer, folder: &Path) -> Result<Running> {
        let address = free_address()?;
        let mut command = match peer {
            Peer::Esker | Peer::EskerFrames | Peer::EskerUnary => {
                let mut command = Command::new(&self.esker);
                command.args(["serve", "--listen", "127.0.0.1:0", "--grpc", &address.to_string(), "--store"]);
                command.arg(format!("{}?size=8g", folder.join("store").display())).env_remove("ESKER_CONFIG");
                command
            }
            Peer::Redis => {
                let mut command = Command::new(&self.redis);
                command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--save", ""]);
                command.args(["--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"]);
                command.arg("--dir").arg(folder);
                command
            }
            Peer::Kafka => self.kafka(folder, address)?,
        };
        let said = folder.join("said");
        let output = File::create(&said)?;
        let child = command.stdin(Stdio::null()).stderr(output.try_clone()?).stdout(output).spawn();
        let child = child.with_context(|| format!("start {:?}", command.get_program()))?;
        let mut running = Running { child, output: said, address };
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            let ended = running.child.try_wait()?;
            if ended.is_some() || began.elapsed() > LATE {
                bail!("no answer at {address} ({ended:?}); the server said:\n{}", running.said());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(running)
    }

    /// One node that is broker and controller.
    fn kafka(&self, folder: &Path, address: SocketAddr) -> Result<Command> {
        let jars = self.kafka.as_ref().context("--kafka: where its jars are")?;
        let controller = free_address()?;
        let data = folder.join("kafka");
        let properties = folder.join("server.properties");
        let text = format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@{controller}\n\
             listeners=PLAINTEXT://{address},CONTROLLER://{controller}\nadvertised.listeners=PLAINTEXT://{address}\n\
             controller.listener.names=CONTROLLER\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
             log.dirs={}\nnum.partitions=1\noffsets.topic.replication.factor=1\n\
             transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n\
             log.flush.interval.messages=1\n",
            data.display()
        );
        std::fs::write(&properties, text)?;
        let java = || {
            let mut command = Command::new("java");
            command.args(["-Xms1g", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp"]);
            command.arg(format!("{}/*", jars.display()));
            command
        };
        let formatted = java()
            .args(["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c"])
            .arg(&properties)
            .output()
            .context("java")?;
        ensure!(formatted.status.success(), "formatting: {}", String::from_utf8_lossy(&formatted.stderr));
        let mut command = java();
        command.arg("kafka.Kafka").arg(&properties);
        Ok(command)
    }
}

fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 700 55 0 0 20 0 9";
        assert_eq!(ticks(stat), Some(755));
        assert_eq!(ticks("42 (short) S 1"), None);
    }
}

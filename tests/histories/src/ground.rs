//! What clients work on: a server of ours behind a network that loses answers, or Ceph, with no server between.
//!
//! [`Ground`] → a location for clients, and one that nothing is done to → kill, begin again · cut, calm down
//!
//! Invariant: who asks for a kill is answered when the next life has begun.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::proxy::Proxy;
use crate::server::{self, Killed, Program};
use crate::terms::Failure;

/// An OSD that was killed is gone, and one that was begun is up, within this.
const LATE: Duration = Duration::from_secs(60);

/// Where the store is that clients work on.
pub enum Ground {
    /// A server on a store of its own.
    Server {
        /// It; none between a kill and the next life.
        server: Option<Killed>,
        address: SocketAddr,
        proxy: Proxy,
    },
    /// A store on Ceph, which each client opens.
    Ceph {
        /// The cluster's folder, as `scripts/ceph` makes it.
        folder: PathBuf,
        location: String,
    },
}

impl Ground {
    /// A server that begins now.
    pub fn server(program: &Program, seed: u64) -> Result<Self, Failure> {
        let (server, address) = server::serve(program, SocketAddr::from(([127, 0, 0, 1], 0)))?;
        Ok(Self::Server { server: Some(server), address, proxy: Proxy::new(address, seed)? })
    }

    /// A new store in the pool `bench` of a cluster that runs.
    pub fn ceph(folder: &Path) -> Result<Self, Failure> {
        let folder = folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?;
        let conf = folder.join("ceph.conf");
        let name = format!("histories-{:016x}", fastrand::u64(..));
        let location = format!("rados:bench/{name}?conf={}&timeout=5s", conf.display());
        Ok(Self::Ceph { folder, location })
    }

    /// Where clients reach it while faults are done.
    pub fn location(&self) -> String {
        match self {
            Self::Server { proxy, .. } => format!("grpc://{}?timeout=2s", proxy.address),
            Self::Ceph { location, .. } => location.clone(),
        }
    }

    /// Where it is reached with no network between that loses answers.
    pub fn plain_location(&self, timeout_s: u64) -> String {
        match self {
            Self::Server { address, .. } => format!("grpc://{address}?timeout={timeout_s}s"),
            Self::Ceph { location, .. } => location.clone(),
        }
    }

    /// Kills the server, or the OSD.
    pub fn kill(&mut self) -> Result<(), Failure> {
        match self {
            Self::Server { server, .. } => {
                if let Some(server) = server {
                    server.kill();
                }
            }
            Self::Ceph { folder, .. } => kill_osd(folder)?,
        }
        Ok(())
    }

    /// Begins its next life.
    pub fn begin(&mut self, program: &Program) -> Result<(), Failure> {
        match self {
            Self::Server { server, address, .. } => *server = Some(server::serve(program, *address)?.0),
            Self::Ceph { folder, .. } => begin_osd(folder)?,
        }
        Ok(())
    }

    /// Ends all connections; false if there is no network between that could.
    pub fn cut(&self) -> bool {
        let Self::Server { proxy, .. } = self else { return false };
        proxy.cut();
        true
    }

    /// Nothing is done to answers any more.
    pub fn calm_down(&self) {
        if let Self::Server { proxy, .. } = self {
            proxy.calm_down();
        }
    }

    /// How many answers were dropped, and how many came late.
    pub fn done(&self) -> (u64, u64) {
        match self {
            Self::Server { proxy, .. } => proxy.done(),
            Self::Ceph { .. } => (0, 0),
        }
    }
}

fn kill_osd(folder: &Path) -> Result<(), Failure> {
    let noted = folder.join("run/osd.0.pid");
    let text = std::fs::read_to_string(&noted).map_err(|error| format!("{}: {error}", noted.display()))?;
    let pid =
        text.trim().parse().ok().and_then(Pid::from_raw).ok_or_else(|| format!("{}: {text:?}", noted.display()))?;
    // It may have ended by itself; that it is gone is what counts.
    let _ = kill_process(pid, Signal::KILL);
    let (began, status) = (Instant::now(), format!("/proc/{}/status", pid.as_raw_nonzero()));
    // What its parent has not asked for yet is there, but dead.
    while std::fs::read_to_string(&status).is_ok_and(|status| !status.contains("State:\tZ")) {
        if began.elapsed() > LATE {
            return Err(format!("the OSD {} does not end", text.trim()).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn begin_osd(folder: &Path) -> Result<(), Failure> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/ceph");
    let status = Command::new(&script).arg("up").arg(folder).stdout(Stdio::null()).status()?;
    if !status.success() {
        return Err(format!("the OSD does not come back: {} up: {status}", script.display()).into());
    }
    Ok(())
}

//! A ZooKeeper of its own for a test: a child process in a folder that goes with it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(dead_code, reason = "each test file uses its own part")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use esker_cluster::{Coordinator, Location, Options, Served};
use tempfile::TempDir;

/// Where Debian's package `libzookeeper-java` puts them.
const JARS: [&str; 2] = ["/usr/share/java/zookeeper.jar", "/usr/share/java/zookeeper-jute.jar"];
const START_MAX: Duration = Duration::from_secs(60);

/// How long a session lasts in these tests, and a call: long enough for a machine that has other things to do.
const OPTIONS: Options = Options { session: Duration::from_secs(10), call: Duration::from_secs(10) };
/// The same where ZooKeeper goes away.
pub const OUTAGE: Options = Options { session: Duration::from_secs(2), call: Duration::from_millis(1_500) };

/// A ZooKeeper that is killed when this is dropped.
pub struct ZooKeeper {
    folder: TempDir,
    port: u16,
    child: Option<Child>,
}

impl ZooKeeper {
    /// Starts one, on a port that is free; fails the test where there is no Java or no ZooKeeper.
    pub fn start() -> Self {
        for jar in JARS {
            assert!(Path::new(jar).exists(), "{jar} is not there: install ZooKeeper (Debian: libzookeeper-java)");
        }
        let folder = TempDir::new().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        let config = format!(
            "dataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\ntickTime=200\nmaxSessionTimeout=60000\nadmin.enableServer=false\n\
             4lw.commands.whitelist=ruok\n",
            data.display()
        );
        fs::write(folder.path().join("zoo.cfg"), config).unwrap();
        let mut zookeeper = Self { folder, port, child: None };
        zookeeper.resume();
        zookeeper
    }

    /// Starts it again, on the same port and data.
    pub fn resume(&mut self) {
        let log = File::create(self.folder.path().join("log")).unwrap();
        let child = Command::new("java")
            .args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no", "-cp", &JARS.join(":")])
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(self.folder.path().join("zoo.cfg"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("java does not start, which these tests need in the PATH: {error}"));
        self.child = Some(child);
        let began = Instant::now();
        while !self.answers() {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            if ended.is_some() || began.elapsed() > START_MAX {
                let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
                panic!("ZooKeeper does not answer on port {} ({ended:?}):\n{log}", self.port);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills it, as a power cut would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Kills it, and takes all that it held.
    pub fn lose(&mut self) {
        self.kill();
        let data = self.folder.path().join("data");
        fs::remove_dir_all(&data).unwrap();
        fs::create_dir(&data).unwrap();
    }

    fn answers(&self) -> bool {
        let Ok(mut socket) = TcpStream::connect(("127.0.0.1", self.port)) else {
            return false;
        };
        let mut answer = String::new();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        socket.write_all(b"ruok").is_ok() && socket.read_to_string(&mut answer).is_ok() && answer == "imok"
    }

    /// A coordinator there, with a session of its own.
    pub fn coordinator(&self) -> Coordinator {
        Coordinator::new(self.location(), OPTIONS)
    }

    /// A coordinator there whose calls and sessions are short; connected.
    pub async fn hasty_coordinator(&self) -> Coordinator {
        let coordinator = Coordinator::new(self.location(), OUTAGE);
        let began = Instant::now();
        while let Err(error) = coordinator.sync().await {
            assert!(began.elapsed() < START_MAX, "{error}");
        }
        coordinator
    }

    /// Where it is, with a root of its own.
    pub fn location(&self) -> Location {
        format!("zk://127.0.0.1:{}/esker/test", self.port).parse().unwrap()
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a server with this store registers.
pub fn served(store: &str) -> Served {
    let peer = "127.0.0.1:7000".to_string();
    Served {
        store: store.into(),
        peer,
        resp: Some("127.0.0.1:6379".into()),
        grpc: None,
        nbd: None,
        http: None,
        thrift: None,
    }
}

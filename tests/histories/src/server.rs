//! The processes of the product: a server on a store of its own, and sequencers of logs.
//!
//! folder → `esker serve` → what it prints says where it listens · killed → begun again on the same store and address
//!
//! Invariant: who is dropped is dead.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::terms::Failure;

/// Who has to answer does so within this, on a busy machine too.
const LATE: Duration = Duration::from_secs(60);

/// The `esker` to start and the folder of its store.
#[derive(Clone, Debug)]
pub struct Program {
    pub esker: PathBuf,
    pub folder: PathBuf,
    /// Options of the store, as in a location.
    pub store: String,
}

impl Program {
    fn command(&self) -> Result<Command, Failure> {
        let log = std::fs::File::options().create(true).append(true).open(self.folder.join("server.log"))?;
        let mut command = Command::new(&self.esker);
        command.current_dir(&self.folder).env_remove("ESKER_CONFIG").env("RUST_LOG", "warn");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        Ok(command)
    }
}

/// A process that is killed when it is dropped.
pub struct Killed(Child);

impl Killed {
    /// Kills it now.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Whether it ended by itself.
    pub fn ended(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|status| status.is_some())
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a process prints, line by line.
fn lines(child: &mut Child) -> Receiver<String> {
    let (sender, lines) = channel();
    if let Some(printed) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(printed).lines().map_while(Result::ok) {
                // Who does not listen any more is not told; the pipe is still read.
                let _ = sender.send(line);
            }
        });
    }
    lines
}

/// Starts a server, and says where it listens once it does. Port 0: any.
pub fn serve(program: &Program, address: SocketAddr) -> Result<(Killed, SocketAddr), Failure> {
    let began = Instant::now();
    loop {
        let mut command = program.command()?;
        command.args(["serve", "--listen", "127.0.0.1:0", "--store", &program.store]);
        command.args(["--grpc", &address.to_string(), "--grpc-objects"]);
        let begun = command.spawn().map_err(|error| format!("{}: {error}", program.esker.display()))?;
        let mut server = Killed(begun);
        let said = lines(&mut server.0);
        while let Ok(line) = said.recv_timeout(LATE) {
            if let Some(rest) = line.strip_prefix("grpc       grpc://") {
                return Ok((server, rest.split(' ').next().unwrap_or_default().parse()?));
            }
        }
        // The address of the life before may not be free yet.
        server.kill();
        if began.elapsed() > LATE {
            return Err(format!("the server does not begin; see {}", log(&program.folder)).into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Starts a sequencer for a log of the store at `location`.
pub fn sequence(program: &Program, location: &str, log: &str) -> Result<Killed, Failure> {
    let mut command = program.command()?;
    command.args(["log", "sequencer", "--store", location, "--listen", "127.0.0.1:0", log]);
    let mut sequencer = Killed(command.spawn()?);
    drop(lines(&mut sequencer.0));
    Ok(sequencer)
}

/// Where the server writes what it has to say.
pub fn log(folder: &Path) -> String {
    folder.join("server.log").display().to_string()
}

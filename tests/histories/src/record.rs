//! A run: a server and clients, what is done to them, and the histories that they leave.
//!
//! prepare → clients begin → kills (server, clients, sequencers), pauses, cuts, lost answers → clients end →
//! the server is killed once more → everything is read back → one file for each face
//!
//! Invariants:
//! 1. A client that was not killed ends with success, or the run has failed.
//! 2. Each kill of the server is in the history of volumes: with it goes what was applied only.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use esker::Store;
use rustix::process::{Pid, Signal, kill_process};

use crate::client::{self, SEQUENCED};
use crate::ground::Ground;
use crate::notes::{Answer, Call, Event, Outcome, Tally, events, now};
use crate::server::{self, Killed, Program};
use crate::terms::{Breakage, Face, Failure};

/// Who has to end does so within this, on a busy machine too.
const LATE: Duration = Duration::from_secs(60);
/// Who is noted as having killed the server.
const KILLER: u64 = 999;
/// Numbers of the lives of a client follow this many numbers apart from those of the next.
const LIVES: u64 = 1_000;

/// What is recorded.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// For how long clients work, in seconds.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Clients of each face.
    #[arg(long, default_value_t = 8)]
    clients: u64,
    /// Faces that are worked on.
    #[arg(long, value_delimiter = ',', default_value = "kv,map,log,volume")]
    faces: Vec<Face>,
    /// Of calls, kills and losses; processes are not the seed's choice.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Pause of a client between two calls, in milliseconds.
    #[arg(long, default_value_t = 0)]
    pause_ms: u64,
    /// Where the histories are written, and what the server says. Made if it is missing.
    #[arg(long, default_value = "histories")]
    out: PathBuf,
    /// The program that is tested. Default: the one beside this.
    #[arg(long, env = "ESKER_BIN")]
    esker: Option<PathBuf>,
    /// Options of its store.
    #[arg(long, default_value = "data?size=4g")]
    store: String,
    /// Makes the histories wrong, so that the checker is seen to say so.
    #[arg(long)]
    broken: Option<Breakage>,
    /// No process is killed and nothing is lost.
    #[arg(long)]
    calm: bool,
    /// Clients work on this Ceph, and its OSD is killed: the folder of a cluster that `scripts/ceph` has started.
    #[arg(long, conflicts_with = "store")]
    ceph: Option<PathBuf>,
    /// Sequencers that compete for the log.
    #[arg(long, default_value_t = 1)]
    sequencers: usize,
}

/// What was done to the processes.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    servers: u64,
    clients: u64,
    sequencers: u64,
    pauses: u64,
    cuts: u64,
}

/// A client that runs.
struct Running {
    child: Child,
    /// It ends when this does.
    stdin: Option<ChildStdin>,
    face: Face,
    me: u64,
    life: u64,
}

/// A client that is paused.
struct Paused {
    me: u64,
    face: Face,
    until: Instant,
}

impl Running {
    fn signal(&self, signal: Signal) {
        // It may have ended, which its status tells.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The notes of one life of a client.
struct Noted {
    face: Face,
    process: u64,
    path: PathBuf,
    tally: Arc<Mutex<Tally>>,
}

struct Run<'a> {
    settings: &'a Settings,
    program: Program,
    begin: u64,
    ground: Ground,
    sequencers: Vec<Killed>,
    paused: Option<Paused>,
    clients: Vec<Running>,
    noted: Vec<Noted>,
    kills: Vec<Event>,
    done: Done,
    rng: fastrand::Rng,
}

/// The `esker` to start, if nothing else is said: the one built beside this program.
fn beside() -> PathBuf {
    std::env::current_exe().map(|own| own.with_file_name("esker")).unwrap_or_else(|_| "esker".into())
}

/// Records a run.
pub fn record(settings: &Settings) -> Result<(), Failure> {
    std::fs::create_dir_all(&settings.out)?;
    let folder = tempfile::tempdir_in(&settings.out)?;
    for face in &settings.faces {
        // Of a run before.
        let _ = std::fs::remove_file(history(&settings.out, *face));
    }
    let esker = settings.esker.clone().unwrap_or_else(beside);
    let esker = esker.canonicalize().map_err(|error| format!("{}: {error}; build it first", esker.display()))?;
    let program = Program { esker, folder: folder.path().canonicalize()?, store: settings.store.clone() };
    if settings.ceph.is_some() && settings.faces.contains(&Face::Map) {
        return Err("maps are not kept on Ceph: choose --faces from kv, log and volume".into());
    }
    println!("seed {} (processes are not the seed's choice), store of {}", settings.seed, program.esker.display());
    let ground = match &settings.ceph {
        Some(folder) => Ground::ceph(folder)?,
        None => Ground::server(&program, settings.seed)?,
    };
    {
        let store = Store::open(&ground.plain_location(10))?;
        settings.faces.iter().try_for_each(|face| client::prepare(*face, &store))?;
    }
    if settings.calm {
        ground.calm_down();
    }
    let mut run = Run {
        settings,
        program,
        begin: now(),
        ground,
        sequencers: Vec::new(),
        paused: None,
        clients: Vec::new(),
        noted: Vec::new(),
        kills: Vec::new(),
        done: Done::default(),
        rng: fastrand::Rng::with_seed(settings.seed),
    };
    let run_done = run.all();
    // Its folder goes with the run; what it said does not.
    let _ = std::fs::copy(run.program.folder.join("server.log"), settings.out.join("server.log"));
    run_done
}

fn history(out: &Path, face: Face) -> PathBuf {
    out.join(format!("{}.jsonl", face.name()))
}

impl Run<'_> {
    fn all(&mut self) -> Result<(), Failure> {
        self.begin_sequencers()?;
        for face in self.settings.faces.clone() {
            for me in 0..self.settings.clients {
                self.begin_client(face, me, 0)?;
            }
        }
        self.disturb()?;
        self.go_on();
        self.ground.calm_down();
        self.end_clients()?;
        let worked = Duration::from_nanos(now() - self.begin);
        println!("reading everything back after a last kill");
        self.kill_server(Duration::ZERO)?;
        self.read_back()?;
        self.write(worked)
    }

    /// Begins the sequencers that are missing.
    fn begin_sequencers(&mut self) -> Result<(), Failure> {
        if !self.settings.faces.contains(&Face::Log) {
            return Ok(());
        }
        // One that found no store when it began has ended: it is begun again, as a supervisor would.
        self.sequencers.retain_mut(|sequencer| !sequencer.ended());
        while self.sequencers.len() < self.settings.sequencers {
            let sequencer = server::sequence(&self.program, &self.ground.plain_location(1), SEQUENCED)?;
            self.sequencers.push(sequencer);
        }
        Ok(())
    }

    /// The command of a client, with a file for its notes.
    fn client(&self, face: Face, me: u64, life: u64, location: &str) -> Result<(Command, PathBuf), Failure> {
        let notes = self.program.folder.join(format!("{}-{me}-{life}", face.name()));
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["client", face.name(), "--location", location]).arg("--notes").arg(&notes);
        for (name, number) in [
            ("--me", me),
            ("--life", life),
            ("--begin", self.begin),
            ("--seed", self.settings.seed),
            ("--pause-ms", self.settings.pause_ms),
        ] {
            command.args([name, &number.to_string()]);
        }
        if let Some(broken) = self.settings.broken {
            command.args(["--broken", &format!("{broken:?}").to_lowercase()]);
        }
        command.env_remove("ESKER_CONFIG").stdout(Stdio::piped());
        Ok((command, notes))
    }

    fn begin_client(&mut self, face: Face, me: u64, life: u64) -> Result<(), Failure> {
        let (mut command, path) = self.client(face, me, life, &self.ground.location())?;
        let mut child = command.stdin(Stdio::piped()).spawn()?;
        let (stdin, tally) = (child.stdin.take(), Arc::new(Mutex::new(Tally::default())));
        let (said, told) = (child.stdout.take(), Arc::clone(&tally));
        std::thread::spawn(move || {
            for line in said.into_iter().flat_map(|said| BufReader::new(said).lines().map_while(Result::ok)) {
                let numbers: Vec<u64> = line.split(' ').filter_map(|number| number.parse().ok()).collect();
                if let [ok, refused, errors, unknown, faults] = numbers[..] {
                    *told.lock().unwrap_or_else(PoisonError::into_inner) =
                        Tally { ok, refused, errors, unknown, faults };
                }
            }
        });
        self.noted.push(Noted { face, process: me * LIVES + life, path, tally });
        self.clients.push(Running { child, stdin, face, me, life });
        Ok(())
    }

    /// Does faults until the time is over.
    fn disturb(&mut self) -> Result<(), Failure> {
        let (began, seconds) = (Instant::now(), self.settings.seconds);
        let in_ms =
            |rng: &mut fastrand::Rng, from: u64, to: u64| Instant::now() + Duration::from_millis(rng.u64(from..to));
        let mut at = [
            in_ms(&mut self.rng, 1_500, 3_000),
            in_ms(&mut self.rng, 1_000, 3_000),
            in_ms(&mut self.rng, 1_000, 2_000),
            in_ms(&mut self.rng, 4_000, 8_000),
            in_ms(&mut self.rng, 500, 2_000),
        ];
        // It takes an OSD some seconds to begin, and its clients as long to find it again.
        let every_ms = if self.settings.ceph.is_some() { (10_000, 25_000) } else { (2_000, 6_000) };
        let mut show = Instant::now();
        while began.elapsed() < Duration::from_secs(seconds) {
            std::thread::sleep(Duration::from_millis(20));
            if !self.settings.calm {
                let due = at.map(|at| Instant::now() >= at);
                if due[0] {
                    let down = Duration::from_millis(self.rng.u64(0..400));
                    self.kill_server(down)?;
                    at[0] = in_ms(&mut self.rng, every_ms.0, every_ms.1);
                }
                if due[1] && !self.clients.is_empty() {
                    self.kill_client()?;
                    at[1] = in_ms(&mut self.rng, 1_000, 4_000);
                }
                if due[2] {
                    self.done.cuts += u64::from(self.ground.cut());
                    at[2] = in_ms(&mut self.rng, 1_000, 5_000);
                }
                if due[3] && !self.sequencers.is_empty() {
                    self.sequencers.swap_remove(self.rng.usize(0..self.sequencers.len()));
                    self.done.sequencers += 1;
                    at[3] = in_ms(&mut self.rng, 4_000, 12_000);
                }
                if self.paused.as_ref().is_some_and(|paused| Instant::now() >= paused.until) {
                    self.go_on();
                    at[4] = in_ms(&mut self.rng, 500, 3_000);
                } else if due[4] && self.paused.is_none() && !self.clients.is_empty() {
                    self.pause();
                }
            }
            self.begin_sequencers()?;
            for client in &mut self.clients {
                if let Some(status) = client.child.try_wait()? {
                    return Err(format!("client {} of {} ended: {status}", client.me, client.face.name()).into());
                }
            }
            if Instant::now() >= show {
                self.show(began.elapsed());
                show += Duration::from_secs(if std::io::stdout().is_terminal() { 1 } else { 10 });
            }
        }
        self.show(began.elapsed());
        if std::io::stdout().is_terminal() {
            println!();
        }
        Ok(())
    }

    /// One line of progress; on a terminal always the same line.
    fn show(&self, elapsed: Duration) {
        let sum = self.noted.iter().fold(Tally::default(), |sum, noted| sum.and(tally(&noted.tally)));
        let Done { servers, clients, .. } = self.done;
        let (dropped, _) = self.ground.done();
        let line = format!(
            "{:>4} of {} s: {} calls, {} unknown, {} errors; killed: {servers} servers, {clients} clients; \
             {dropped} answers dropped",
            elapsed.as_secs(),
            self.settings.seconds,
            sum.calls(),
            sum.unknown,
            sum.errors,
        );
        if std::io::stdout().is_terminal() {
            print!("\r{line}   ");
            // A line that is not shown is not missed.
            let _ = std::io::stdout().flush();
        } else {
            println!("{line}");
        }
    }

    /// Stops a client where it stands, for a while.
    fn pause(&mut self) {
        let client = &self.clients[self.rng.usize(0..self.clients.len())];
        client.signal(Signal::STOP);
        let until = Instant::now() + Duration::from_millis(self.rng.u64(10..2_500));
        self.paused = Some(Paused { me: client.me, face: client.face, until });
        self.done.pauses += 1;
    }

    /// Has the client that is paused go on.
    fn go_on(&mut self) {
        let Some(paused) = self.paused.take() else { return };
        // One that was killed meanwhile, and begun anew, is not stopped.
        let of_it = |client: &&Running| (client.me, client.face) == (paused.me, paused.face);
        self.clients.iter().filter(of_it).for_each(|client| client.signal(Signal::CONT));
    }

    /// Kills the server, or the OSD, and begins it again after a while.
    fn kill_server(&mut self, down: Duration) -> Result<(), Failure> {
        let begin = now();
        self.ground.kill()?;
        // What was begun before is over: calls of clients that run on belong to the next life.
        let end = now();
        let call = Call { call: "crash".into(), ..Call::default() };
        let answer = Answer::ok();
        self.kills.push(Event { process: KILLER, begin, end: Some(end), call, answer });
        std::thread::sleep(down);
        self.ground.begin(&self.program)?;
        self.done.servers += 1;
        Ok(())
    }

    fn kill_client(&mut self) -> Result<(), Failure> {
        let victim = self.clients.swap_remove(self.rng.usize(0..self.clients.len()));
        let (face, me, life) = (victim.face, victim.me, victim.life + 1);
        drop(victim);
        self.done.clients += 1;
        self.begin_client(face, me, life)
    }

    /// Lets the clients finish what they are at.
    fn end_clients(&mut self) -> Result<(), Failure> {
        for client in &mut self.clients {
            client.stdin = None;
        }
        let began = Instant::now();
        for client in &mut self.clients {
            loop {
                match client.child.try_wait()? {
                    Some(status) if status.success() => break,
                    Some(status) => {
                        return Err(format!("client {} of {}: {status}", client.me, client.face.name()).into());
                    }
                    None if began.elapsed() > LATE => {
                        return Err(format!("client {} of {} does not end", client.me, client.face.name()).into());
                    }
                    None => std::thread::sleep(Duration::from_millis(10)),
                }
            }
        }
        Ok(())
    }

    /// Each face by one more client, without a proxy between.
    fn read_back(&mut self) -> Result<(), Failure> {
        for face in self.settings.faces.clone() {
            // An odd number: its map is one of its own.
            let me = self.settings.clients * 2 + 1;
            let (mut command, path) = self.client(face, me, 0, &self.ground.plain_location(2))?;
            let status = command.arg("--last").stdin(Stdio::null()).stdout(Stdio::null()).status()?;
            if !status.success() {
                return Err(format!("what {} holds cannot be read back: {status}", face.name()).into());
            }
            self.noted.push(Noted { face, process: me * LIVES, path, tally: Arc::default() });
        }
        Ok(())
    }

    /// Writes the histories, and prints what is in them.
    fn write(&self, worked: Duration) -> Result<(), Failure> {
        let mut all = Tally::default();
        for face in &self.settings.faces {
            let mut history = Vec::new();
            for noted in self.noted.iter().filter(|noted| noted.face == *face) {
                history.extend(events(noted.process, &std::fs::read_to_string(&noted.path)?)?);
            }
            let mut sum = Tally::default();
            history.iter().for_each(|event| sum.count(event.answer.outcome));
            if *face == Face::Volume {
                history.extend(self.kills.iter().cloned());
            }
            history.sort_by_key(|event| event.begin);
            let mut file = BufWriter::new(File::create(self::history(&self.settings.out, *face))?);
            for event in &history {
                serde_json::to_writer(&mut file, event)?;
                file.write_all(b"\n")?;
            }
            file.flush()?;
            println!("{:<7}{}", face.name(), told(sum, worked));
            let fault = history.iter().find(|event| event.answer.outcome == Outcome::Fault);
            if let Some(fault) = fault {
                println!("       a fault: {}", serde_json::to_string(fault)?);
            }
            all = all.and(sum);
        }
        println!("all    {}", told(all, worked));
        let Done { servers, clients, sequencers, pauses, cuts } = self.done;
        let (dropped, late) = self.ground.done();
        println!(
            "killed: {servers} servers, {clients} clients, {sequencers} sequencers; clients paused: {pauses} times; \
             answers dropped: {dropped}, late: {late}; all connections cut: {cuts} times"
        );
        Ok(())
    }
}

fn tally(shared: &Mutex<Tally>) -> Tally {
    *shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a tally says, in one line.
pub fn told(tally: Tally, worked: Duration) -> String {
    let calls = tally.calls();
    let rate = calls as f64 / worked.as_secs_f64();
    let Tally { ok, refused, errors, unknown, faults } = tally;
    format!(
        "{calls} calls ({rate:.0}/s): {ok} done, {refused} refused, {errors} errors that changed nothing, \
         {unknown} of unknown outcome, {faults} faults"
    )
}

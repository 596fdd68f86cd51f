//! The processes of a run, the network between them, and what is done to them.
//!
//! server ← [`Proxy`] ← writers, readers, sequencers (a link for each) · sequencers ← [`Proxy`] (a door for each) ←
//! writers, readers, server
//!
//! Invariants:
//! 1. Every fault that lasts has an end that is planned when it begins; [`World::undo_all`] ends them all.
//! 2. Who ended without being killed ended with success, or breaks the run.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::actors::{Kind, LOG, ROLE, Role};
use crate::proxy::{Proxy, Way};

/// Who has to answer does so within this, on a busy machine too.
pub const LATE: Duration = Duration::from_secs(60);
/// Sequencers: one leads, one stands by.
const SEQUENCERS: usize = 2;

fn esker(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_esker"));
    command.current_dir(folder).env_remove("ESKER_CONFIG").env("RUST_LOG", "off").stdout(Stdio::piped());
    // What is said while others are killed is of no interest.
    command.stderr(Stdio::null());
    command
}

/// What a process prints, line by line.
fn lines(child: &mut Child) -> Receiver<String> {
    let printed = BufReader::new(child.stdout.take().unwrap());
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in printed.lines().map_while(Result::ok) {
            // Who does not listen any more is not told; the pipe is still read.
            let _ = sender.send(line);
        }
    });
    lines
}

fn kill(child: &mut Child) {
    // It may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

struct Sequencer {
    child: Option<Child>,
    /// Its way to the store.
    link: Proxy,
    /// Where it is asked; what the log's view names.
    door: Proxy,
}

struct Actor {
    child: Child,
    stdin: Option<ChildStdin>,
    role: Role,
    link: Proxy,
    paused: bool,
}

/// What ends a fault.
#[derive(Clone, Copy, Debug)]
enum Undo {
    Server,
    Sequencer(usize),
    ResumeSequencer(usize),
    Resume(usize),
    Begin(usize),
    /// A link by its number, and whether connections are reset.
    Heal(usize, bool),
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    KillSequencer,
    PauseSequencer,
    KillServer,
    PauseWriter,
    PauseReader,
    KillWriter,
    CutBoth,
    CutTo,
    CutFrom,
    CutSequencer,
}

impl Fault {
    pub const ALL: [Self; 10] = [
        Self::KillSequencer,
        Self::CutTo,
        Self::PauseWriter,
        Self::KillServer,
        Self::CutFrom,
        Self::PauseSequencer,
        Self::CutBoth,
        Self::KillWriter,
        Self::CutSequencer,
        Self::PauseReader,
    ];
}

/// Everything that runs.
pub struct World {
    folder: PathBuf,
    /// Where the server listens, the same in all its lives.
    pub server_address: SocketAddr,
    server: Option<Child>,
    sequencers: Vec<Sequencer>,
    leading: Arc<AtomicUsize>,
    actors: Vec<Actor>,
    undo: Vec<(Instant, Undo)>,
    /// Notes of all lives of all actors.
    pub notes: Vec<(usize, PathBuf)>,
    /// How often each of [`Fault::ALL`] was done.
    pub done: [u32; Fault::ALL.len()],
}

impl World {
    /// Begins a server on a new store below `folder`, and makes the log; no other process runs yet.
    pub fn new(folder: &Path) -> Self {
        let (server, server_address) = start_server(folder, SocketAddr::from(([127, 0, 0, 1], 0)));
        Self {
            folder: folder.to_path_buf(),
            server_address,
            server: Some(server),
            sequencers: Vec::new(),
            leading: Arc::default(),
            actors: Vec::new(),
            undo: Vec::new(),
            notes: Vec::new(),
            done: [0; Fault::ALL.len()],
        }
    }

    /// The store of the server, without a network between.
    pub fn store(&self) -> String {
        format!("grpc://{}?timeout=5s", self.server_address)
    }

    pub fn begin_sequencers(&mut self) {
        for number in 0..SEQUENCERS {
            let (link, door) = (Proxy::new(Some(self.server_address)), Proxy::new(None));
            self.sequencers.push(Sequencer { child: None, link, door });
            self.begin_sequencer(number);
        }
    }

    fn begin_sequencer(&mut self, number: usize) {
        let sequencer = &mut self.sequencers[number];
        let store = format!("grpc://{}?timeout=1s", sequencer.link.address);
        let mut child = esker(&self.folder)
            .args(["log", "sequencer", "--store", &store, "--listen", "127.0.0.1:0"])
            .args(["--advertise", &sequencer.door.address.to_string(), LOG])
            .spawn()
            .unwrap();
        let (said, door, leading) = (lines(&mut child), sequencer.door.clone(), Arc::clone(&self.leading));
        std::thread::spawn(move || {
            for line in said {
                if let Some(rest) = line.strip_prefix("sequencer  ") {
                    door.lead_to(rest.split(' ').next().unwrap().parse().unwrap());
                } else if line.starts_with("leading") {
                    leading.store(number, Ordering::SeqCst);
                }
            }
        });
        sequencer.child = Some(child);
    }

    pub fn begin_actor(&mut self, kind: Kind) {
        let (me, link) = (self.actors.len(), Proxy::new(Some(self.server_address)));
        let role = Role { kind, me, life: 0, server: link.address.to_string(), notes: PathBuf::new() };
        let (child, stdin, role) = self.play(role);
        self.actors.push(Actor { child, stdin: Some(stdin), role, link, paused: false });
    }

    fn play(&mut self, mut role: Role) -> (Child, ChildStdin, Role) {
        role.notes = self.folder.join(format!("notes-{}-{}", role.me, role.life));
        self.notes.push((role.me, role.notes.clone()));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", crate::TEST, "--nocapture"]).env(ROLE, role.text()).env_remove("ESKER_CONFIG");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        (child, stdin, role)
    }

    /// Ends what is to end, begins anew the processes that ended in a fault that is over, and looks whether an actor
    /// ended that must not.
    pub fn look(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self.undo.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, undo) in due {
            self.undo(undo);
        }
        for number in 0..self.sequencers.len() {
            let ended = self.sequencers[number].child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_some());
            if ended {
                // It found no store when it began: it is begun again, as a supervisor would.
                self.begin_sequencer(number);
            }
        }
        for actor in &mut self.actors {
            let ended = actor.child.try_wait().unwrap();
            let killed = self.undo.iter().any(|(_, undo)| matches!(undo, Undo::Begin(me) if *me == actor.role.me));
            assert!(ended.is_none() || killed, "{:?}: {ended:?}", actor.role);
        }
    }

    fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Server => self.server = Some(start_server(&self.folder, self.server_address).0),
            Undo::Sequencer(number) => self.begin_sequencer(number),
            Undo::ResumeSequencer(number) => {
                if let Some(child) = &self.sequencers[number].child {
                    send(child, Signal::CONT);
                }
            }
            Undo::Resume(me) => {
                send(&self.actors[me].child, Signal::CONT);
                self.actors[me].paused = false;
            }
            Undo::Begin(me) => {
                let mut role = self.actors[me].role.clone();
                role.life += 1;
                let (child, stdin, role) = self.play(role);
                let actor = &mut self.actors[me];
                (actor.child, actor.stdin, actor.role) = (child, Some(stdin), role);
            }
            Undo::Heal(link, reset) => self.link(link).heal(reset),
        }
    }

    /// Ends all faults.
    pub fn undo_all(&mut self) {
        for (_, undo) in std::mem::take(&mut self.undo) {
            self.undo(undo);
        }
    }

    /// Links of actors, then of sequencers, then their doors.
    fn link(&self, number: usize) -> &Proxy {
        let (actors, sequencers) = (self.actors.len(), self.sequencers.len());
        if number < actors {
            &self.actors[number].link
        } else if number < actors + sequencers {
            &self.sequencers[number - actors].link
        } else {
            &self.sequencers[number - actors - sequencers].door
        }
    }

    /// Does a fault that ends after a while, unless it would meet one that lasts.
    pub fn strike(&mut self, fault: Fault, rng: &mut fastrand::Rng) {
        let lasts = Duration::from_millis(if rng.bool() { rng.u64(50..500) } else { rng.u64(500..2_500) });
        let end = Instant::now() + lasts;
        let leader = self.leading.load(Ordering::SeqCst);
        let (actors, sequencers) = (self.actors.len(), self.sequencers.len());
        let undo = match fault {
            Fault::KillSequencer => {
                let Some(mut child) = self.sequencers[leader].child.take() else { return };
                kill(&mut child);
                self.undo.retain(|(_, undo)| !matches!(undo, Undo::ResumeSequencer(number) if *number == leader));
                Undo::Sequencer(leader)
            }
            Fault::PauseSequencer => {
                let Some(child) = &self.sequencers[leader].child else { return };
                send(child, Signal::STOP);
                Undo::ResumeSequencer(leader)
            }
            Fault::KillServer => {
                let Some(mut server) = self.server.take() else { return };
                kill(&mut server);
                // Every actor stands still meanwhile.
                self.undo.push((Instant::now() + lasts / 4, Undo::Server));
                self.count(fault);
                return;
            }
            Fault::PauseWriter | Fault::PauseReader => {
                let Some(me) = self.any_actor(fault == Fault::PauseWriter, rng) else { return };
                send(&self.actors[me].child, Signal::STOP);
                self.actors[me].paused = true;
                Undo::Resume(me)
            }
            Fault::KillWriter => {
                let Some(me) = self.any_actor(true, rng) else { return };
                kill(&mut self.actors[me].child);
                Undo::Begin(me)
            }
            Fault::CutBoth | Fault::CutTo | Fault::CutFrom | Fault::CutSequencer => {
                let (links, all) = match fault {
                    Fault::CutSequencer => (actors + sequencers..actors + 2 * sequencers, 2),
                    _ => (0..actors + sequencers, 3),
                };
                let ways: &[Way] = match fault {
                    Fault::CutBoth => &[Way::To, Way::From],
                    Fault::CutTo => &[Way::To],
                    Fault::CutFrom => &[Way::From],
                    _ => [&[Way::To][..], &[Way::From], &[Way::To, Way::From]][rng.usize(0..3)],
                };
                for _ in 0..rng.usize(1..=all) {
                    let link = rng.usize(links.clone());
                    self.link(link).cut(ways);
                    self.undo.push((end, Undo::Heal(link, rng.bool())));
                }
                self.count(fault);
                return;
            }
        };
        self.undo.push((end, undo));
        self.count(fault);
    }

    fn count(&mut self, fault: Fault) {
        let number = Fault::ALL.iter().position(|each| *each == fault).unwrap();
        self.done[number] += 1;
    }

    /// One that runs.
    fn any_actor(&self, writes: bool, rng: &mut fastrand::Rng) -> Option<usize> {
        let killed = |me| self.undo.iter().any(|(_, undo)| matches!(undo, Undo::Begin(other) if *other == me));
        let all: Vec<_> = (0..self.actors.len())
            .filter(|me| self.actors[*me].role.kind.writes() == writes && !self.actors[*me].paused && !killed(*me))
            .collect();
        (!all.is_empty()).then(|| all[rng.usize(0..all.len())])
    }

    /// Lets the actors finish what they are at.
    pub fn end_actors(&mut self) {
        for actor in &mut self.actors {
            actor.stdin = None;
        }
        let began = Instant::now();
        for actor in &mut self.actors {
            loop {
                if let Some(status) = actor.child.try_wait().unwrap() {
                    assert!(status.success(), "{:?}: {status}", actor.role);
                    break;
                }
                assert!(began.elapsed() < LATE, "{:?} does not end", actor.role);
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let sequencers = self.sequencers.iter_mut().filter_map(|sequencer| sequencer.child.as_mut());
        let actors = self.actors.iter_mut().map(|actor| &mut actor.child);
        self.server.iter_mut().chain(sequencers).chain(actors).for_each(kill);
    }
}

/// A server, and where it listens once it does.
fn start_server(folder: &Path, address: SocketAddr) -> (Child, SocketAddr) {
    let began = Instant::now();
    loop {
        let mut child = esker(folder)
            .args(["serve", "--listen", "127.0.0.1:0", "--store", "data?size=2g"])
            .args(["--grpc", &address.to_string(), "--grpc-objects"])
            .spawn()
            .unwrap();
        let said = lines(&mut child);
        while let Ok(line) = said.recv_timeout(LATE) {
            if let Some(rest) = line.strip_prefix("grpc       grpc://") {
                return (child, rest.split(' ').next().unwrap().parse().unwrap());
            }
        }
        // The address of the life before may not be free yet.
        kill(&mut child);
        assert!(began.elapsed() < LATE, "the server does not begin");
        std::thread::sleep(Duration::from_millis(50));
    }
}

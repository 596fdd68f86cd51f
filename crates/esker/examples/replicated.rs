//! A map and a counter that every process has the same of: states that are what a shared log makes of them.
//!
//! `cargo run --example replicated -- ./replicated-data`
//!
//! propose: append command → apply everything up to it → its result       read: apply up to the tail → answer
//! checkpoint: state → store → trim what no state on the log needs any more
//!
//! Both states live on one log, each on a stream of its own. Two replicas of each stand for two processes: they know of
//! each other only through the log, and a third comes later and starts from the checkpoint.
//!
//! Invariant: commands are applied in the order of the log and by nothing but their bytes, so that all replicas agree.

use std::collections::BTreeMap;

use esker::log::{Log, Logs, Machine, Options, Replica};
use esker::{Bytes, Store};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A number that commands add to.
#[derive(Default)]
struct Counter(i64);

impl Machine for Counter {
    /// The number after it.
    type Output = i64;

    fn apply(&mut self, _position: u64, command: &[u8]) -> i64 {
        // A command that is no number changes nothing, in all replicas alike.
        self.0 = self.0.wrapping_add(command.try_into().map_or(0, i64::from_le_bytes));
        self.0
    }

    fn save(&self) -> Bytes {
        Bytes::copy_from_slice(&self.0.to_le_bytes())
    }

    fn load(&mut self, saved: &[u8]) -> std::result::Result<(), String> {
        self.0 = saved.try_into().map(i64::from_le_bytes).map_err(|_| format!("{} bytes, expected 8", saved.len()))?;
        Ok(())
    }
}

/// Keys and values. A command is `KEY=VALUE`, or `KEY` to remove it.
#[derive(Default)]
struct Map(BTreeMap<String, String>);

impl Machine for Map {
    /// What the key had before.
    type Output = Option<String>;

    fn apply(&mut self, _position: u64, command: &[u8]) -> Option<String> {
        let command = String::from_utf8_lossy(command);
        match command.split_once('=') {
            Some((key, value)) => self.0.insert(key.to_owned(), value.to_owned()),
            None => self.0.remove(&*command),
        }
    }

    fn save(&self) -> Bytes {
        self.0.iter().map(|(key, value)| format!("{key}={value}\n")).collect::<String>().into()
    }

    fn load(&mut self, saved: &[u8]) -> std::result::Result<(), String> {
        let text = std::str::from_utf8(saved).map_err(|error| error.to_string())?;
        let pair = |line: &str| line.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
        self.0 = text
            .lines()
            .map(|line| pair(line).ok_or_else(|| format!("no pair: {line:?}")))
            .collect::<std::result::Result<_, _>>()?;
        Ok(())
    }
}

/// The replicas of one process.
struct Process {
    users: Replica<Map>,
    visits: Replica<Counter>,
}

impl Process {
    fn start(store: &Store) -> Result<Self> {
        // A session of its own, as another process has it.
        let log: Log =
            Logs::open(store.objects(), store.log_session(None))?.log_or_create("states", Options::default())?;
        let users = Replica::open(&log, "users", Some("users"), Map::default())?;
        let visits = Replica::open(&log, "visits", Some("visits"), Counter::default())?;
        Ok(Self { users, visits })
    }
}

fn main() -> Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let store = Store::open(&path)?;
    let (mut one, mut two) = (Process::start(&store)?, Process::start(&store)?);

    one.users.propose("ada=admin")?;
    let before = two.users.propose("ada=guest")?;
    assert_eq!(before.as_deref(), Some("admin"), "what one wrote, two sees, in the order of the log");
    two.users.propose("grace=admin")?;
    println!("users: {:?}", one.users.read()?.0);

    let start = one.visits.read()?.0;
    for _ in 0..3 {
        one.visits.propose(Bytes::copy_from_slice(&1i64.to_le_bytes()))?;
        two.visits.propose(Bytes::copy_from_slice(&10i64.to_le_bytes()))?;
    }
    assert_eq!(one.visits.read()?.0, start + 33, "no command is lost, and none is applied twice");
    assert_eq!(two.visits.read()?.0, start + 33);
    println!("visits: {}", start + 33);

    // From here on neither state needs what is below.
    two.users.read()?;
    one.visits.checkpoint()?;
    two.users.checkpoint()?;
    println!("trimmed to position {}", one.visits.trim()?);

    let mut late = Process::start(&store)?;
    assert_eq!(late.users.read()?.0, two.users.read()?.0);
    assert_eq!(late.visits.read()?.0, start + 33);
    println!("a third process has the same");

    store.close()?;
    Ok(())
}

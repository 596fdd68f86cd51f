//! The exclusive lock of an image that clients write: who is let in, who is refused, and what is said when it is lost.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use esker_memory::MemoryStore;
use esker_server::nbd::{
    Address, Client, ClientError, Config, Exports, Handle, Locking, Place, Server, VolumeExports, wire::code,
};
use esker_volume::{Durability, Error, Layout, Volumes};

const WITHIN: Option<Duration> = Some(Duration::from_secs(20));

fn volumes() -> Volumes {
    let volumes = Volumes::open(Arc::new(MemoryStore::new())).unwrap();
    volumes.create("disk", 1 << 20, Layout::default(), 0).unwrap();
    volumes
}

/// A server of volumes under an owner's name.
struct Running {
    place: Place,
    exports: Arc<VolumeExports>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(volumes: &Volumes, owner: &str, alone: bool, config: Config) -> Self {
        let locking = Locking { owner: owner.into(), alone };
        let exports = Arc::new(VolumeExports::new(volumes.clone(), locking));
        let config = Config { listen: vec!["127.0.0.1:0".parse().unwrap()], ..config };
        let server = Server::bind(config, Arc::clone(&exports) as Arc<_>).unwrap();
        let place = Place::new(server.addresses()[0].clone(), "disk");
        let handle = server.handle();
        let thread = Some(std::thread::spawn(move || server.run().unwrap()));
        Self { place, exports, handle, thread }
    }

    fn one(volumes: &Volumes, owner: &str) -> Self {
        Self::start(volumes, owner, false, Config::default())
    }

    fn attach(&self) -> Client {
        Client::connect(&self.place, WITHIN).unwrap()
    }

    /// Why a client that attaches now may only read.
    fn refusal(&self) -> String {
        let mut client = self.attach();
        assert!(client.read_only(), "a client may write");
        client.read(0, 512).unwrap();
        assert_eq!(code_of(client.write(0, b"no", false)), code::PERM);
        drop(client);
        self.exports.attach("disk").unwrap().description()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.shutdown();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

fn owner(volumes: &Volumes) -> Option<String> {
    volumes.image("disk").unwrap().lock_info().map(|lock| lock.owner)
}

/// A client that leaves is not answered, so what follows from it takes a moment.
fn soon(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "not so: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn code_of(result: Result<(), ClientError>) -> u32 {
    match result {
        Ok(()) => 0,
        Err(ClientError::Failed { code, .. }) => code,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn while_clients_are_attached_nobody_but_their_server_writes() {
    let volumes = volumes();
    let (one, two) = (Running::one(&volumes, "nbd/one"), Running::one(&volumes, "nbd/two"));
    assert_eq!(owner(&volumes), None, "looking at exports locks nothing");
    let mut first = one.attach();
    assert_eq!(owner(&volumes).as_deref(), Some("nbd/one"));
    first.write(0, b"first", false).unwrap();
    // More connections to the same server are the same owner.
    let mut second = one.attach();
    second.write(5, b"second", true).unwrap();
    assert_eq!(first.read(0, 11).unwrap(), b"firstsecond");

    let why = two.refusal();
    assert!(why.contains("locked by nbd/one (epoch 1)") && why.contains("lock break disk 1"), "{why}");
    let other = volumes.image("disk").unwrap();
    assert!(matches!(other.write(0, "x".into(), Durability::Applied), Err(Error::Locked { .. })));
    assert!(matches!(other.resize(1, true), Err(Error::Locked { .. })));
    assert!(matches!(other.rollback("s", &mut |_, _| true), Err(Error::Locked { .. } | Error::NoSnapshot { .. })));
    assert!(matches!(volumes.remove("disk"), Err(Error::Locked { .. })));
    // What only the owner may do is done through the server.
    one.exports.image("disk").unwrap().resize(2 << 20, false).unwrap();
    // Snapshots may be taken beside it, and readers of snapshots disturb no writer.
    other.snapshot_create("s", 0).unwrap();
    first.write(0, b"FIRST", false).unwrap();
    let frozen = Place { export: "disk@s".into(), ..two.place.clone() };
    assert_eq!(Client::connect(&frozen, WITHIN).unwrap().read(0, 11).unwrap(), b"firstsecond");

    drop(first);
    second.write(5, b"SECOND", false).unwrap();
    assert_eq!(owner(&volumes).as_deref(), Some("nbd/one"), "one of two has left");
    drop(second);
    soon("the last one gave the lock back", || owner(&volumes).is_none());
    let mut third = two.attach();
    assert_eq!(third.read(0, 11).unwrap(), b"FIRSTSECOND");
    third.write(0, b"third", false).unwrap();
    assert!(one.refusal().contains("locked by nbd/two"));
    drop((two, third));
    assert_eq!(owner(&volumes), None, "a server that stops gives its locks back");
}

#[test]
fn attaching_and_leaving_all_the_time_never_refuses_the_same_server() {
    let volumes = volumes();
    let server = Running::one(&volumes, "nbd/one");
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let server = &server;
            scope.spawn(move || {
                for round in 0..50 {
                    let mut client = server.attach();
                    client.write(thread * 512, format!("{thread} {round}").as_bytes(), false).unwrap();
                }
            });
        }
    });
    soon("the last one gave the lock back", || owner(&volumes).is_none());
}

#[test]
fn late_writes_of_a_server_that_was_taken_over_are_refused_and_it_says_so() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).finish();
    // Others in this process are heard too; none of them loses a lock.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let volumes = volumes();
    let server = Running::one(&volumes, "nbd/late");
    let (mut client, mut idle) = (server.attach(), server.attach());
    client.write(0, b"mine", true).unwrap();
    let other = volumes.image("disk").unwrap();
    let epoch = other.take_over("nbd/other").unwrap();
    other.write(0, "new!".into(), Durability::Durable).unwrap().wait().unwrap();

    assert_eq!(code_of(client.write(0, b"late", false)), code::PERM);
    assert_eq!(code_of(client.write(4, b"late", true)), code::PERM);
    assert_eq!(code_of(idle.write(0, b"late", false)), code::PERM);
    assert_eq!(client.read(0, 8).unwrap(), b"new!\0\0\0\0", "reading goes on");
    assert!(server.refusal().contains("locked by nbd/other"));
    other.unlock().unwrap();
    // A client that attaches now starts from what is there; one from before does not know it, and stays out.
    let mut fresh = server.attach();
    fresh.write(0, b"next", false).unwrap();
    assert_eq!(code_of(client.write(0, b"late", false)), code::PERM);
    assert_eq!(fresh.read(0, 4).unwrap(), b"next");
    let said = log.text();
    let lines: Vec<_> = said.lines().filter(|line| line.contains("taken over or broken")).collect();
    assert_eq!(lines.len(), 1, "once, not with every write: {said}");
    let expected = format!("held={} found={epoch}", epoch - 1);
    assert!(lines[0].contains("ERROR") && lines[0].contains(&expected), "{said}");
    drop((client, idle));
    assert_eq!(code_of(fresh.write(0, b"more", true)), 0, "those who lost a lock give none back");
}

#[test]
fn the_lock_that_a_killed_server_left_is_broken_only_where_it_must_be_gone() {
    for (left_by, alone, lets_in) in
        [("nbd/killed", true, true), ("nbd/killed", false, false), ("ada", true, false), ("ada", false, false)]
    {
        let volumes = volumes();
        volumes.image("disk").unwrap().lock(left_by).unwrap();
        let server = Running::start(&volumes, "nbd/next", alone, Config::default());
        if lets_in {
            server.attach().write(0, b"data", true).unwrap();
        } else {
            assert!(server.refusal().contains(&format!("locked by {left_by}")), "{left_by}, {alone}");
        }
    }
}

#[test]
fn exports_that_nobody_writes_or_that_are_shared_take_no_lock() {
    let volumes = volumes();
    let only = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    let reading = Config { read_only: only(&["disk"]), ..Config::default() };
    let shared = Config { unlocked: only(&["*"]), ..Config::default() };
    let reading = Running::start(&volumes, "nbd/reading", false, reading);
    let shared = Running::start(&volumes, "nbd/shared", false, shared);
    let again = Running::start(&volumes, "nbd/again", false, Config { unlocked: only(&["disk"]), ..Config::default() });
    let mut reader = reading.attach();
    assert!(reader.read_only());
    let (mut one, mut two) = (shared.attach(), again.attach());
    one.write(0, b"one", false).unwrap();
    two.write(3, b"two", false).unwrap();
    assert_eq!(owner(&volumes), None);
    assert_eq!(reader.read(0, 6).unwrap(), b"onetwo");
    // The default export is the same export, with the same options.
    let default = Place { export: String::new(), ..reading.place.clone() };
    let mut reader = Client::connect(&default, WITHIN).unwrap();
    assert!(reader.read_only());
    assert_eq!(code_of(reader.write(0, b"x", false)), code::PERM);
    // A lock keeps those out too that want none.
    volumes.image("disk").unwrap().lock("ada").unwrap();
    assert_eq!(code_of(one.write(0, b"x", false)), code::PERM);
}

/// What is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'w> tracing_subscriber::fmt::MakeWriter<'w> for Log {
    type Writer = Self;

    fn make_writer(&'w self) -> Self {
        self.clone()
    }
}

#[test]
fn a_socket_with_spaces_in_its_name_is_reached_by_its_uri() {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("a socket?");
    let volumes = volumes();
    let config = Config { unix_socket: Some(path.clone()), ..Config::default() };
    let server = Running::start(&volumes, "nbd/one", false, config);
    let place = Place::new(Address::Unix(path), "disk");
    let place: Place = place.to_string().parse().unwrap();
    Client::connect(&place, WITHIN).unwrap().write(0, b"data", true).unwrap();
    drop(server);
}

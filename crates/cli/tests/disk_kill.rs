//! kill -9 of `esker serve --nbd` under writers with flushes: what a flush covered is there, no block is torn, and what
//! is lost is an end.
//!
//! `ESKER_ROUNDS` sets the rounds (4 by default).

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod support;

use std::collections::HashMap;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use esker_server::nbd::wire::{command, flag};
use esker_server::nbd::{Client, Place};

use support::{MIB, Running, esker, have, make, run, setting};

const BLOCK: usize = 4_096;
const BLOCKS: u64 = 16 << 10;
/// Most blocks of one write.
const RUN_MAX: u64 = 16;
const CONNECTIONS: u64 = 4;
const DEPTH: usize = 16;
/// Writes of a connection between flushes.
const BETWEEN_FLUSHES: u64 = 40;

/// A block that carries its number and version in every part of it.
fn fill(block: u64, version: u64, out: &mut [u8]) {
    let mut rng = fastrand::Rng::with_seed(block << 40 ^ version);
    out[..8].copy_from_slice(&block.to_le_bytes());
    out[8..16].copy_from_slice(&version.to_le_bytes());
    rng.fill(&mut out[16..]);
}

/// A write of some blocks, all in the same version, with the moments when it was sent and answered.
#[derive(Clone, Debug)]
struct Sent {
    first: u64,
    blocks: u64,
    version: u64,
    sent: u64,
    answered: Option<u64>,
}

/// What is known of the disk. Versions only grow; each block belongs to one connection.
struct Known {
    /// Of each block the last version that was answered.
    answered: Vec<AtomicU64>,
    /// Of each block the last version that must be there: a flush covered it, or it was durable when answered.
    durable: Mutex<Vec<u64>>,
    /// Of each block the last version that was sent.
    sent: Vec<AtomicU64>,
    /// Orders what is sent and answered on all connections.
    clock: AtomicU64,
}

impl Known {
    fn new() -> Self {
        let zeros = || (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
        let durable = Mutex::new(vec![0; BLOCKS as usize]);
        Self { answered: zeros(), durable, sent: zeros(), clock: AtomicU64::new(1) }
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn cover(&self, versions: impl Iterator<Item = (u64, u64)>) {
        let mut durable = self.durable.lock().unwrap();
        for (block, version) in versions {
            durable[block as usize] = durable[block as usize].max(version);
        }
    }
}

enum Request {
    Write {
        number: usize,
        durable: bool,
    },
    /// With what was answered, on all connections, when it was sent.
    Flush(Vec<u64>),
}

/// Writes until the server is gone; what was written, and how many flushes were answered.
fn write(place: &Place, connection: u64, seed: u64, known: &Known) -> (Vec<Sent>, u64) {
    let mut rng = fastrand::Rng::with_seed(seed << 8 ^ connection);
    let mut log: Vec<Sent> = Vec::new();
    let mut under_way: HashMap<u64, Request> = HashMap::new();
    let (mut flushes, mut since) = (0, 0);
    let Ok(mut client) = Client::connect(place, Some(Duration::from_secs(20))) else { return (log, 0) };
    let share = BLOCKS / CONNECTIONS;
    let mut data = Vec::new();
    loop {
        while under_way.len() < DEPTH {
            let sent = if since >= BETWEEN_FLUSHES {
                since = 0;
                let seen = known.answered.iter().map(|version| version.load(Ordering::SeqCst)).collect();
                client.send(command::FLUSH, 0, 0, 0, &[]).map(|cookie| (cookie, Request::Flush(seen)))
            } else {
                since += 1;
                let blocks = if rng.u8(..4) > 0 { 1 } else { rng.u64(1..=RUN_MAX) };
                let first = connection * share + rng.u64(..=share - blocks);
                // The order of two writes under way to one block would be the server's.
                let overlaps = |request: &Request| {
                    let Request::Write { number, .. } = request else { return false };
                    let other = &log[*number];
                    other.first < first + blocks && first < other.first + other.blocks
                };
                if under_way.values().any(overlaps) {
                    continue;
                }
                let version = known.now();
                data.resize(blocks as usize * BLOCK, 0);
                for (block, bytes) in (first..).zip(data.chunks_exact_mut(BLOCK)) {
                    fill(block, version, bytes);
                    known.sent[block as usize].store(version, Ordering::SeqCst);
                }
                let durable = rng.u8(..32) == 0;
                let flags = if durable { flag::FUA } else { 0 };
                log.push(Sent { first, blocks, version, sent: version, answered: None });
                let number = log.len() - 1;
                let sent = client.send(command::WRITE, flags, first * BLOCK as u64, data.len() as u32, &data);
                sent.map(|cookie| (cookie, Request::Write { number, durable }))
            };
            let Ok((cookie, request)) = sent else { return (log, flushes) };
            under_way.insert(cookie, request);
        }
        let Ok(reply) = client.receive() else { return (log, flushes) };
        // A server that is killed answers nothing; it never answers with an error.
        assert_eq!(reply.error, 0, "seed {seed}: {reply:?}");
        match under_way.remove(&reply.cookie) {
            Some(Request::Flush(seen)) => {
                known.cover((0..).zip(seen));
                flushes += 1;
            }
            Some(Request::Write { number, durable }) => {
                let write = &mut log[number];
                write.answered = Some(known.now());
                let blocks = write.first..write.first + write.blocks;
                for block in blocks.clone() {
                    known.answered[block as usize].store(write.version, Ordering::SeqCst);
                }
                if durable {
                    known.cover(blocks.map(|block| (block, write.version)));
                }
            }
            None => panic!("seed {seed}: a reply to nothing: {reply:?}"),
        }
    }
}

/// Reads the whole disk; the version of each block, none of which is torn or below what must be there.
fn verify(place: &Place, seed: u64, known: &Known) -> Vec<u64> {
    let mut client = Client::connect(place, Some(Duration::from_secs(60))).unwrap();
    let durable = known.durable.lock().unwrap();
    let mut expected = vec![0; BLOCK];
    let mut versions = Vec::with_capacity(BLOCKS as usize);
    for at in (0..BLOCKS).step_by(256) {
        let data = client.read(at * BLOCK as u64, 256 * BLOCK as u32).unwrap();
        for (block, bytes) in (at..).zip(data.chunks_exact(BLOCK)) {
            let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
            let (must, may) = (durable[block as usize], known.sent[block as usize].load(Ordering::SeqCst));
            assert!(
                (must..=may).contains(&version),
                "seed {seed}: block {block} has version {version}; {must} was flushed, {may} sent"
            );
            if version > 0 {
                fill(block, version, &mut expected);
            } else {
                expected.fill(0);
            }
            assert!(bytes == expected, "seed {seed}: block {block} is torn in version {version}");
            versions.push(version);
        }
    }
    versions
}

/// Nothing that was sent after a lost write was answered is there, whichever connections they were on.
fn check_that_an_end_is_lost(seed: u64, writes: &[Sent], versions: &[u64]) -> usize {
    let is_there = |write: &Sent| {
        // Later versions of a block hide whether this one was there.
        let mut seen = (write.first..write.first + write.blocks).map(|block| versions[block as usize]);
        seen.clone()
            .any(|version| version == write.version)
            .then_some(true)
            .or_else(|| seen.any(|version| version < write.version).then_some(false))
    };
    for write in writes {
        // A write of up to 16 MiB is one transaction: all of its blocks, or none.
        let mut seen = (write.first..write.first + write.blocks).map(|block| versions[block as usize]);
        let part = seen.clone().any(|version| version == write.version);
        assert!(!part || seen.all(|version| version >= write.version), "seed {seed}: {write:?} is there in part");
    }
    let lost: Vec<&Sent> = writes.iter().filter(|write| is_there(write) == Some(false)).collect();
    let answered = lost.iter().filter(|write| write.answered.is_some());
    let Some(first) = answered.min_by_key(|write| write.answered) else { return 0 };
    let late = writes.iter().find(|write| Some(write.sent) > first.answered && is_there(write) == Some(true));
    assert!(late.is_none(), "seed {seed}: {first:?} is lost, and {late:?}, which came later, is not");
    lost.len()
}

#[test]
fn what_a_flush_covered_survives_kill_9_untorn_and_what_is_lost_is_an_end() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    make(folder, BLOCKS * BLOCK as u64);
    let seed = setting("ESKER_SEED", 20_26);
    let mut rng = fastrand::Rng::with_seed(seed);
    let known = Known::new();
    let (mut all_writes, mut all_flushes, mut all_lost, mut slowest) = (0, 0, 0, Duration::ZERO);
    let place = |server: &Running| -> Place { server.disk("disk").parse().unwrap() };
    let rounds = setting("ESKER_ROUNDS", 4);
    for round in 0..rounds {
        let server = Running::start(folder, &[]);
        let at = place(&server);
        let life = Duration::from_millis(rng.u64(100..900));
        let (writes, flushes) = std::thread::scope(|scope| {
            let start = |connection| {
                let (at, known) = (&at, &known);
                scope.spawn(move || write(at, connection, seed << 16 | round, known))
            };
            let writers: Vec<_> = (0..CONNECTIONS).map(start).collect();
            std::thread::sleep(life);
            let mut server = server;
            server.signal("-KILL");
            let ended = writers.into_iter().map(|writer| writer.join().unwrap());
            ended.fold((Vec::new(), 0), |(mut all, sum), (writes, flushes)| {
                all.extend(writes);
                (all, sum + flushes)
            })
        });
        let began = Instant::now();
        let server = Running::start(folder, &[]);
        slowest = slowest.max(began.elapsed());
        let versions = verify(&place(&server), seed, &known);
        let lost = check_that_an_end_is_lost(seed, &writes, &versions);
        // What was found is the truth that the next round goes on from.
        for (block, version) in versions.into_iter().enumerate() {
            known.answered[block].store(version, Ordering::SeqCst);
            known.sent[block].store(version, Ordering::SeqCst);
            known.durable.lock().unwrap()[block] = version;
        }
        println!("round {round}: {} writes, {flushes} flushes in {life:?}, {lost} lost", writes.len());
        (all_writes, all_flushes, all_lost) = (all_writes + writes.len(), all_flushes + flushes, all_lost + lost);
    }
    println!(
        "{rounds} rounds, seed {seed}: {all_writes} writes, {all_flushes} flushes, {all_lost} lost after the last flush, slowest start {slowest:?}"
    );
    assert!(all_flushes > 0 && all_writes > 0, "nothing was tried");
}

#[test]
fn the_lock_of_a_killed_server_is_in_nobodys_way_and_that_of_a_person_is() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    make(folder, 8 * MIB);
    let volume = |arguments: &[&str]| {
        let output = esker(folder).args(["volume", "--store", "data"]).args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let kill_attached = || {
        let mut server = Running::start(folder, &[]);
        let mut client = Client::connect(&server.disk("disk").parse().unwrap(), None).unwrap();
        client.write(0, b"data", true).unwrap();
        server.signal("-KILL");
    };
    kill_attached();
    let (_, shown, _) = volume(&["lock", "ls", "disk"]);
    assert!(shown.contains(" nbd/"), "the lock is left: {shown}");
    let (code, _, said) = volume(&["resize", "disk", "16m"]);
    assert!(code == Some(0) && said.contains("broke the lock that a killed process left (nbd/"), "{said}");
    assert_eq!(volume(&["lock", "ls", "disk"]).1, "not locked\n");
    kill_attached();
    let mut server = Running::start(folder, &[]);
    let mut client = Client::connect(&server.disk("disk").parse().unwrap(), None).unwrap();
    assert_eq!((client.size(), client.read(0, 4).unwrap()), (16 * MIB, &b"data"[..]));
    client.write(0, b"more", false).unwrap();
    drop(client);
    assert_eq!(server.signal("-TERM"), Some(0));
    assert_eq!(volume(&["lock", "ls", "disk"]).1, "not locked\n", "a server that stops gives its locks back");

    let (code, _, said) = volume(&["lock", "add", "disk", "nbd/me"]);
    assert!(code == Some(2) && said.contains("those of servers"), "{said}");
    assert_eq!(volume(&["lock", "add", "disk", "ada"]).0, Some(0));
    let (code, _, said) = volume(&["resize", "disk", "12m"]);
    assert!(code == Some(1) && said.contains("locked by ada"), "{said}");
    let listed = volume(&["ls"]).1;
    assert!(listed.contains("locked by ada") && listed.contains("used"), "{listed}");
    // It can be read, and only ada writes it.
    let server = Running::start(folder, &[]);
    let mut client = Client::connect(&server.disk("disk").parse().unwrap(), None).unwrap();
    assert!(client.read_only());
    assert_eq!(client.read(0, 4).unwrap(), b"more");
    client.write(0, b"mine", true).unwrap_err();
}

#[test]
fn fio_finds_what_it_flushed_before_kill_9() {
    if !have("fio") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    make(folder, 32 * MIB);
    for round in 0..setting("ESKER_ROUNDS", 3) {
        let mut server = Running::start(folder, if round % 3 == 1 { &["--nbd-durable", "*"] } else { &[] });
        let uri = format!("--uri={}", server.disk("disk"));
        // Other data in each round, so that none is found which an earlier one left.
        let seeded = format!("--randseed={}", round + 1);
        let verified = [
            "--name=t",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bs=4k",
            "--iodepth=16",
            "--size=16m",
            "--verify=crc32c",
            "--verify_state_save=0",
            &seeded,
        ];
        run("fio", &[&verified[..], &["--do_verify=0"]].concat());
        if round % 3 != 1 {
            // A flush on any connection covers what was answered on others before.
            let flushed =
                ["--name=f", "--ioengine=nbd", &uri, "--rw=write", "--bs=4k", "--offset=16m", "--size=8k", "--fsync=1"];
            run("fio", &flushed);
        }
        let mut other = Command::new("fio")
            .args(["--name=u", "--ioengine=nbd", &uri, "--rw=randwrite", "--bs=64k", "--iodepth=16"])
            .args(["--size=16m", "--offset=16m", "--time_based", "--runtime=30"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(300));
        server.signal("-KILL");
        other.wait().unwrap();
        let server = Running::start(folder, &[]);
        let uri = format!("--uri={}", server.disk("disk"));
        let mut again = verified;
        again[2] = &uri;
        run("fio", &[&again[..], &["--verify_only", "--verify_fatal=1"]].concat());
    }
}

//! Histories of real processes: eight writers and four readers over the network, two sequencers and a server, while
//! sequencers, servers and writers are killed, processes are paused, the network is cut both ways and one way, and
//! stripes are reshaped and trimmed.
//!
//! processes → notes, timed by the machine's clock → [`esker_sim::logs::history::check`]. `ESKER_SECONDS` says for how
//! long (default 20).
//!
//! Invariant: an event's begin is taken before its first call, and its end after its answer, so that what did not
//! overlap is ordered.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod actors;
mod notes;
mod proxy;
mod world;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use esker::log::{Log, Options};
use esker_sim::logs::history::{Act, Appended, Event, Seen, check};

use actors::{Kind, LOG, seen};
use notes::now;
use world::{Fault, World};

/// The name of the test, by which this program begins itself with a role.
const TEST: &str = "a_history_of_processes_among_kills_pauses_and_cuts_is_that_of_a_log";
/// Who looks at the end.
const LAST: usize = 99;
/// Who reshapes and trims.
const SHAPER: usize = 98;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Tells to stop when it goes.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Reshapes and trims until told to stop; the trims, and the numbers of both.
fn shape(store: &str, seed: u64, stop: &AtomicBool) -> (Vec<Event>, [u32; 2]) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut events, mut done) = (Vec::new(), [0; 2]);
    let store = esker::Store::open(store).unwrap();
    let log = store.logs().unwrap().log(LOG).unwrap();
    while !stop.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(rng.u64(100..1_000)));
        if rng.u8(0..4) > 0 {
            // Where the server was killed meanwhile, it is not known whether it is done; the log goes on either way.
            done[0] += u32::from(log.reshape(rng.u32(1..7), rng.u32(8..2_000)).is_ok());
        } else if let Ok(tail) = log.tail() {
            let to = tail.position.saturating_sub(rng.u64(3_000..20_000));
            let begin = now();
            let trimmed = log.trim_to(to).is_ok();
            let end = if trimmed { now() } else { u64::MAX };
            events.push(Event { process: SHAPER, begin, end, act: Act::Trim { from: 0, to, done: trimmed } });
            done[1] += u32::from(trimmed);
        }
    }
    (events, done)
}

/// Everything that stands in the log, undisturbed.
fn look(log: &Log) -> Vec<Event> {
    let mut events = Vec::new();
    let mut note = |begin, act| events.push(Event { process: LAST, begin, end: now(), act });
    let begin = now();
    let tail = log.tail().unwrap().position;
    note(begin, Act::Tail(tail));
    let mut at = log.refresh().unwrap().trimmed;
    while at < tail {
        let begin = now();
        let found = log.read_range(at..tail, 1 << 20).unwrap().wait().unwrap();
        for one in &found {
            note(begin, Act::Read { position: at, seen: seen(one), keeps: false });
            at += 1;
        }
    }
    let begin = now();
    let found = log.read(tail).unwrap().wait().unwrap();
    note(begin, Act::Read { position: tail, seen: seen(&found), keeps: false });
    events
}

#[test]
fn a_history_of_processes_among_kills_pauses_and_cuts_is_that_of_a_log() {
    if actors::played() {
        return;
    }
    let seconds = setting("ESKER_SECONDS", 20);
    let seed = setting("ESKER_SEED", 1);
    println!("ESKER_SEED={seed} ESKER_SECONDS={seconds} (processes are not the seed's choice)");
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::new(folder.path());
    let options = Options { width: 3, slots: 500, ..Options::default() };
    esker::Store::open(&world.store()).unwrap().logs().unwrap().create(LOG, options).unwrap();
    world.begin_sequencers();
    for kind in [[Kind::WriterByStore; 6].as_slice(), &[Kind::WriterByService; 2]].concat() {
        world.begin_actor(kind);
    }
    for kind in [[Kind::ReaderByStore; 2], [Kind::ReaderByService; 2]].concat() {
        world.begin_actor(kind);
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    let stop = AtomicBool::new(false);
    let store = world.store();
    let (mut events, shaped) = std::thread::scope(|scope| {
        // So that a run that broke ends, and says why.
        let _stops = Stops(&stop);
        let shaper = scope.spawn(|| shape(&store, seed, &stop));
        let end = Instant::now() + Duration::from_secs(seconds);
        // Each once, then as it comes.
        let mut next: Vec<Fault> = Fault::ALL.into_iter().rev().collect();
        let mut at = Instant::now() + Duration::from_secs(1);
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
            world.look();
            if Instant::now() >= at {
                let fault = next.pop().unwrap_or_else(|| Fault::ALL[rng.usize(0..Fault::ALL.len())]);
                world.strike(fault, &mut rng);
                at = Instant::now() + Duration::from_millis(rng.u64(300..2_300));
            }
        }
        world.undo_all();
        stop.store(true, Ordering::SeqCst);
        shaper.join().unwrap()
    });
    // Every actor gets on again.
    std::thread::sleep(Duration::from_secs(2));
    world.look();
    world.end_actors();
    for (process, path) in &world.notes {
        events.extend(notes::events(*process, &std::fs::read_to_string(path).unwrap()));
    }
    let store = esker::Store::open(&world.store()).unwrap();
    let log = store.logs().unwrap().log(LOG).unwrap();
    events.extend(look(&log));
    report(&world, &events, shaped);
    check(&events).unwrap();
    assert_eq!(log.check(true, |_, _| true).unwrap().problems, Vec::<String>::new());
}

/// Prints what was done and seen, and proves that it was something.
fn report(world: &World, events: &[Event], [shapes, trims]: [u32; 2]) {
    let results = || {
        events.iter().filter_map(|event| match &event.act {
            Act::Append { result, .. } => Some((event, *result)),
            _ => None,
        })
    };
    let count = |wanted: fn(Appended) -> bool| results().filter(|(_, result)| wanted(*result)).count();
    let acknowledged = count(|result| matches!(result, Appended::At(_)));
    let (refused, unknown) = (count(|result| result == Appended::Refused), count(|result| result == Appended::Unknown));
    let reads = || {
        events.iter().filter_map(|event| match &event.act {
            Act::Read { position, seen, .. } => Some((event.process, *position, seen)),
            _ => None,
        })
    };
    let entries: HashSet<u64> =
        reads().filter_map(|(_, at, seen)| matches!(seen, Seen::Entry(_)).then_some(at)).collect();
    let filled: HashSet<u64> = reads().filter_map(|(_, at, seen)| (*seen == Seen::Filled).then_some(at)).collect();
    let longest = results().filter(|(event, _)| event.end < u64::MAX).map(|(event, _)| event.end - event.begin).max();
    println!(
        "{} events: {acknowledged} appends acknowledged, {refused} refused, {unknown} without an answer; {} reads of {} entries and {} filled positions; longest append {} ms",
        events.len(),
        reads().count(),
        entries.len(),
        filled.len(),
        longest.unwrap_or(0) / 1_000_000,
    );
    let faults: Vec<String> =
        Fault::ALL.iter().zip(world.done).map(|(fault, times)| format!("{fault:?} {times}")).collect();
    println!("{}; {shapes} changes of shape, {trims} trims", faults.join(", "));
    for process in 0..12 {
        let own = events.iter().filter(|event| event.process == process).count();
        assert!(own > 0, "process {process} did nothing");
    }
    assert!(world.done.iter().all(|times| *times > 0) && shapes > 0, "a fault is missing");
    assert!(acknowledged > 100, "{acknowledged} acknowledged");
}

//! Clones, clones of ranges, removals and snapshots beside the cleaner, on a small device that is nearly full.
//!
//! lives of one to three clients → power cut at any write → reopened → … → everything is removed → all space is back
//!
//! Checked in every run, beside what [`client`](super::client) checks:
//! - `full_device_recovers`: at the end a store that holds nothing has as many free segments as one that never held
//!   anything, but for what has been begun; in some runs it can be filled again as far as a new one.
//! - The deep check finds nothing.
//!
//! The seed gives the operations, not the schedule: see [`super`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_engine::Engine;
use esker_store::Error;

use super::client::{Client, Excuse, Manner, room};
use super::{Ended, INJECTED, begin, bounded, close, formatted, open, options, survival, undamaged};
use crate::fault::{Faults, FaultyDevice, Image};
use crate::outcome::Outcome;

/// Segments that an empty store may use: the log's open one and those made ready for it, superblocks' share of
/// checkpoints, the one before included, and the cleaner's open ones.
const EMPTY_USES: u64 = 12;
/// Space that does not come back for so long is stuck.
const STUCK: Duration = Duration::from_secs(15);

/// Runs one seed.
///
/// # Errors
/// The promise that was broken, and how.
pub(crate) fn run(seed: u64) -> Result<Outcome, String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut image = formatted(rng.u64(40..96), seed)?;
    let mut clients: Vec<Client> = (0..rng.u64(1..=3)).map(|number| Client::new(number, &mut rng)).collect();
    let mut outcome = Outcome::default();
    let level = rng.u64(45..86);
    for life in 0..rng.u64(1..=3) {
        (image, clients) = one_life(&mut rng, image, clients, level, &mut outcome)
            .map_err(|broken| format!("life {life}: {broken}"))?;
    }
    the_end(&mut rng, image, &mut clients).map_err(|broken| format!("at the end: {broken}"))?;
    for client in clients {
        outcome.transactions += client.transactions;
        outcome.full += client.full;
        outcome.taken_back += client.taken_back;
    }
    Ok(outcome)
}

/// What a device that has failed excuses.
pub(super) fn failed(device: &Arc<FaultyDevice>) -> Excuse {
    let device = Arc::clone(device);
    Arc::new(move |error| matches!(error, Error::Stopped { .. } | Error::Io { .. }) && device.has_failed())
}

/// All clients at once; ends when each has ended.
///
/// # Errors
/// A client hangs, or the promise that was broken.
pub(super) fn all_live(engine: &Arc<Engine>, clients: Vec<Client>, manner: &Manner) -> Result<Vec<Client>, String> {
    let mut begun = Vec::new();
    for (number, mut client) in clients.into_iter().enumerate() {
        let (engine, manner) = (Arc::clone(engine), manner.clone());
        begun.push(begin(&format!("client{number}"), move || {
            let lived = catch_unwind(AssertUnwindSafe(|| client.live(&engine, &manner)));
            drop(engine);
            let lived = lived.unwrap_or_else(|panic| {
                // A call of its own that was told to panic: it concerns this client only.
                let meant = panic.downcast_ref::<&str>().is_some_and(|said| *said == INJECTED)
                    || panic.downcast_ref::<String>().is_some_and(|said| said == INJECTED);
                if meant { Ok(()) } else { Err(format!("client{number} panicked")) }
            });
            (client, lived)
        })?);
    }
    let mut clients = Vec::new();
    let mut all = Ok(());
    for (number, one) in begun.into_iter().enumerate() {
        match one.end(&format!("client{number}"))? {
            Ended::Returned((client, lived)) => {
                all = all.and(lived);
                clients.push(client);
            }
            Ended::Panicked => return Err(format!("client{number} panicked")),
        }
    }
    all.map(|()| clients)
}

fn one_life(
    rng: &mut fastrand::Rng,
    image: Image,
    mut clients: Vec<Client>,
    level: u64,
    outcome: &mut Outcome,
) -> Result<(Image, Vec<Client>), String> {
    let device = Arc::new(FaultyDevice::new(image, rng.u64(..)));
    if rng.u8(0..8) == 0 {
        undamaged(&device, "before opening")?;
    }
    let options = options(rng);
    let acknowledges_applied = options.policy.acknowledges_applied();
    let engine = Arc::new(open(&device, options, "after a crash")?);
    for client in &mut clients {
        client.recovered(&engine)?;
    }
    // Of eight lives one ends in peace.
    let power_cut_at = (rng.u8(0..8) > 0).then(|| if rng.bool() { rng.u64(1..200) } else { rng.u64(1..1_000) });
    device.set_faults(Faults { power_cut_at, ..Faults::default() });
    let excuse = failed(&device);
    let manner = Manner { steps: rng.usize(50..400), level, snapshots: rng.u8(0..4) > 0, excuse, acknowledges_applied };
    let clients = all_live(&engine, clients, &manner)?;
    outcome.maintained += engine.stats().cleaned_segments;
    outcome.crashes += u64::from(device.power_is_off());
    let image = if !device.power_is_off() && rng.bool() {
        match close(engine)? {
            Err(error) if !device.has_failed() => return Err(format!("closing: {error}")),
            _ => device.image_after_power_cut(survival(rng)),
        }
    } else {
        device.cut_power();
        let image = device.image_after_power_cut(survival(rng));
        // What it says as it is closed without power does not matter.
        let _ = close(engine)?;
        image
    };
    Ok((image, clients))
}

/// Everything is removed, and all space comes back.
fn the_end(rng: &mut fastrand::Rng, image: Image, clients: &mut [Client]) -> Result<(), String> {
    let segments = image.shape.len / crate::kind::SEGMENT_BYTES;
    let device = Arc::new(FaultyDevice::new(image, rng.u64(..)));
    let engine = Arc::new(open(&device, options(rng), "at the end")?);
    for client in &mut *clients {
        client.recovered(&engine)?;
        client.removes_everything(&engine)?;
    }
    let returning = Arc::clone(&engine);
    match bounded("waiting for space", move || space_returns(&returning))? {
        Ended::Returned(returned) => returned?,
        Ended::Panicked => return Err("cleaning panicked".into()),
    }
    if rng.u8(0..4) == 0
        && let Some(client) = clients.first_mut()
    {
        let bytes = client.fills(&engine)?;
        // What a new store of that size takes at least, in values of 40 kB, beside what it keeps back.
        let least = (segments * 3 / 5).saturating_sub(16) * crate::kind::SEGMENT_BYTES * 7 / 10;
        if bytes < least {
            let room = room(&engine.stats());
            return Err(format!("full_device_recovers: emptied, it takes {bytes} bytes, {least} would do; {room}"));
        }
    }
    close(engine)?.map_err(|error| format!("closing: {error}"))?;
    undamaged(&device, "at the end")
}

/// An empty store is as free as a new one.
fn space_returns(engine: &Engine) -> Result<(), String> {
    let until = Instant::now() + STUCK;
    loop {
        for done in [engine.checkpoint(), engine.compact(&mut |_, _| true)] {
            match done {
                Ok(()) | Err(Error::Full { .. }) => {}
                Err(error) => return Err(format!("cleaning an empty store: {error}")),
            }
        }
        let stats = engine.stats();
        let used = stats.segments - stats.free_segments;
        if used <= EMPTY_USES && stats.live_bytes == 0 {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!(
                "full_device_recovers: an empty store uses {used} segments, {EMPTY_USES} would do; {}",
                room(&stats)
            ));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

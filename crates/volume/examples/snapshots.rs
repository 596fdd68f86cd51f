//! What a thousand snapshots cost: random 4 KiB writes and reads of two images on the engine, one without snapshots,
//! one with a thousand, in turns, on a device in memory; and how long a snapshot and a clone of a thin image of 1 TiB
//! take.
//!
//! `cargo run --release -p esker-volume --example snapshots`

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_device::{Device, MemoryDevice};
use esker_engine::{Engine, FormatOptions, Options};
use esker_store::ObjectStore;
use esker_volume::{Durability, Image, Layout, Volumes};

const IMAGE_BYTES: u64 = 64 << 20;
const BLOCK: u64 = 4096;
const SNAPSHOTS: u64 = 1_000;
const ROUNDS: u64 = 40;
const OPS: u64 = 5_000;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn writes(image: &Image, rng: &mut fastrand::Rng, data: &Bytes) -> Outcome<Duration> {
    let began = Instant::now();
    for _ in 0..OPS {
        image.write(rng.u64(..IMAGE_BYTES / BLOCK) * BLOCK, data.clone(), Durability::Applied)?.wait()?;
    }
    Ok(began.elapsed())
}

fn reads(image: &Image, rng: &mut fastrand::Rng) -> Outcome<Duration> {
    let began = Instant::now();
    for _ in 0..OPS {
        drop(image.read(rng.u64(..IMAGE_BYTES / BLOCK) * BLOCK, BLOCK)?.wait()?);
    }
    Ok(began.elapsed())
}

fn main() -> Outcome<()> {
    let device = Arc::new(MemoryDevice::new(4 << 30));
    Engine::format(&*device, &FormatOptions { segment_bytes: 16 << 20, uuid: [1; 16] })?;
    let engine = Engine::open(device as Arc<dyn Device>, Options::default())?;
    let volumes = Volumes::open(Arc::new(engine) as Arc<dyn ObjectStore>)?;
    let mut rng = fastrand::Rng::with_seed(7);
    let data = Bytes::from(vec![7; BLOCK as usize]);
    let images = [("none", 0), ("thousand", SNAPSHOTS)].map(|(name, snapshots)| {
        let image = volumes.create(name, IMAGE_BYTES, Layout::default(), 0)?;
        writes(&image, &mut rng, &data)?;
        for number in 0..snapshots {
            image.snapshot_create(&format!("s{number}"), 0)?;
            // Every snapshot has something of its own.
            image.write(number % 16 * (4 << 20), data.clone(), Durability::Applied)?.wait()?;
        }
        // The first writes after the last snapshot are paid before anything is measured.
        writes(&image, &mut rng, &data)?;
        Outcome::Ok(image)
    });
    let [none, thousand] = images;
    let images = [none?, thousand?];
    let mut spent = [[Duration::ZERO; 2]; 2];
    for round in 0..ROUNDS {
        for turn in 0..2 {
            let which = ((round + turn) % 2) as usize;
            spent[which][0] += writes(&images[which], &mut rng, &data)?;
            spent[which][1] += reads(&images[which], &mut rng)?;
        }
    }
    for (kind, name) in ["write", "read"].iter().enumerate() {
        let rate = |which: usize| (ROUNDS * OPS) as f64 / spent[which][kind].as_secs_f64();
        let (none, thousand) = (rate(0), rate(1));
        println!(
            "{name:<5} 4 KiB random: {none:.0}/s without, {thousand:.0}/s with 1,000 snapshots: {:.3}",
            thousand / none
        );
    }
    let huge = volumes.create("huge", 1 << 40, Layout::default(), 0)?;
    writes(&huge, &mut rng, &data)?;
    let began = Instant::now();
    huge.snapshot_create("s", 0)?;
    println!("snapshot of 1 TiB: {:?}", began.elapsed());
    huge.snapshot_protect("s")?;
    let began = Instant::now();
    volumes.clone_image("huge", "s", "clone", 0)?;
    println!("clone of it: {:?}", began.elapsed());
    Ok(())
}

//! `esker bench objects`: the same load on the objects of several backends in turn, in one process, on fresh stores.
//!
//! scenes (a phase, or phases that share a store) × backends → cells → table, JSON → `esker report`
//!
//! "In flight" are threads, each with one operation under way, for all backends; each operation is acknowledged when it
//! is durable. Backends take turns within a scene, so that what changes on the machine meets all of them.
//!
//! Invariants:
//! 1. All backends of a run are driven by the same code with the same arguments; every store is fresh for its scene.
//! 2. What a read phase reads is compared with what was written.

pub mod load;
pub mod outcome;
pub mod target;
pub mod threads;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use esker::ByteSize;
use indicatif::ProgressBar;

use self::load::{Contents, Drive, IMAGE_OBJECT_BYTES, Phase, create_collection, fill};
use self::outcome::{Cell, FORMAT, Run, table};
use self::target::{Opened, Target};
use crate::commands::print;
use crate::config::Settings;
use crate::exit::{Code, Failure};
use crate::progress;

/// The arguments of `esker bench objects`.
#[derive(Args)]
pub struct ObjectsBench {
    /// Backends, as locations: esker:PATH, memory:, file:PATH, rocksdb:PATH, leveldb:PATH, newstore:PATH; stores are
    /// made in new folders below PATH, or of rados:POOL/NAME under new names that begin with NAME
    #[arg(long, value_delimiter = ',', default_value = "esker:./esker-bench-objects")]
    backends: Vec<String>,
    /// Phases; all by default
    #[arg(long, value_delimiter = ',', value_enum)]
    phases: Vec<Phase>,
    /// Object sizes of the write and read phases, up to 16m
    #[arg(long, value_delimiter = ',', default_value = "4k,16k,64k,256k,1m,4m")]
    sizes: Vec<ByteSize>,
    /// Operations under way at once: threads that wait for their own
    #[arg(long, value_delimiter = ',', default_value = "1,5,10,16,20,30,128", value_parser = clap::value_parser!(u64).range(1..=1024))]
    in_flight: Vec<u64>,
    /// Longest time for each cell of the table, in seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Writes for so many seconds before a cell of a phase that writes is measured: the memory that a store fills at
    /// its start it then uses again, and a store that puts work off has begun with it
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// Payload that the read phases read from
    #[arg(long, default_value = "256m")]
    data: ByteSize,
    /// Payload that the overwrite phases write to, in objects of 4 MiB
    #[arg(long, default_value = "256m")]
    image: ByteSize,
    /// Objects that are listed and deleted, at least
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    objects: u64,
    /// Seed of contents and random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also write the figures to this file, for `esker report`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Phases that share a fresh store.
#[derive(Clone, Copy, Debug)]
enum Scene {
    Write { bytes: u64, in_flight: u64 },
    Read { bytes: u64 },
    Overwrite,
    Omap { in_flight: u64 },
    Names { in_flight: u64 },
}

impl ObjectsBench {
    fn wants(&self, phase: Phase) -> bool {
        self.phases.is_empty() || self.phases.contains(&phase)
    }

    fn scenes(&self) -> Vec<Scene> {
        let mut scenes = Vec::new();
        let sizes = || self.sizes.iter().map(|size| size.0);
        if self.wants(Phase::Write) {
            let cells = sizes().flat_map(|bytes| self.in_flight.iter().map(move |in_flight| (bytes, *in_flight)));
            scenes.extend(cells.map(|(bytes, in_flight)| Scene::Write { bytes, in_flight }));
        }
        if self.wants(Phase::ReadSeq) || self.wants(Phase::ReadRand) {
            scenes.extend(sizes().map(|bytes| Scene::Read { bytes }));
        }
        if self.wants(Phase::OverwriteSeq) || self.wants(Phase::OverwriteRand) {
            scenes.push(Scene::Overwrite);
        }
        if self.wants(Phase::Omap) {
            scenes.extend(self.in_flight.iter().map(|in_flight| Scene::Omap { in_flight: *in_flight }));
        }
        if [Phase::Create, Phase::List, Phase::Delete].into_iter().any(|phase| self.wants(phase)) {
            scenes.extend(self.in_flight.iter().map(|in_flight| Scene::Names { in_flight: *in_flight }));
        }
        scenes
    }

    /// Runs the command.
    pub fn run(&self, settings: &Settings) -> Result<(), Failure> {
        let largest = self.sizes.iter().map(|size| size.0).max().unwrap_or(0);
        let smallest = self.sizes.iter().map(|size| size.0).min().unwrap_or(1);
        let max = esker::objects::limits::VALUE_BYTES_MAX as u64;
        if largest > max || smallest == 0 {
            return Err(Failure::usage(format!("--sizes: expected 1 to {max} bytes (VALUE_BYTES_MAX)")));
        }
        if !self.seconds.is_finite() || self.seconds <= 0.0 || self.image.0 < IMAGE_OBJECT_BYTES {
            return Err(Failure::usage("--seconds must be above 0 and --image at least 4m"));
        }
        if !self.warm_up.is_finite() || self.warm_up < 0.0 {
            return Err(Failure::usage("--warm-up must be 0 or more"));
        }
        let targets = Target::parse_all(&self.backends)?;
        let contents = Contents::new(largest.max(IMAGE_OBJECT_BYTES), self.seed);
        let scenes = self.scenes();
        let bar = progress::count("scenes", (scenes.len() * targets.len()) as u64);
        let mut run = Run {
            format: FORMAT,
            durability: "durable".into(),
            in_flight: "threads".into(),
            seconds: self.seconds,
            warm_up: self.warm_up,
            data_bytes: self.data.0,
            image_bytes: self.image.0,
            processors: std::thread::available_parallelism().map_or(1, |n| n.get()),
            seed: self.seed,
            cells: Vec::new(),
            tables: Vec::new(),
            plots: Vec::new(),
        };
        for (number, scene) in scenes.iter().enumerate() {
            for target in &targets {
                let name = format!("bench-{}-{number}", std::process::id());
                let opened = target.fresh(&name, settings)?;
                let device = device_of(target);
                let played = self.play(*scene, target, &opened, device.as_deref(), &contents, &mut run.cells);
                // The store goes even if the scene failed; its error is the one that counts.
                let removed = opened.remove();
                played.and(removed)?;
                bar.inc(1);
            }
            if let Some(file) = &self.json {
                sort(&mut run.cells, &targets);
                save(file, &run, &bar)?;
            }
        }
        bar.finish_and_clear();
        sort(&mut run.cells, &targets);
        print(&table(&run.cells))
    }

    fn play(
        &self,
        scene: Scene,
        target: &Target,
        opened: &Opened,
        device: Option<&str>,
        contents: &Contents,
        cells: &mut Vec<Cell>,
    ) -> Result<(), Failure> {
        let time = Duration::from_secs_f64(self.seconds);
        let mut drive = |phase: Phase, object_bytes: u64, objects: u64, in_flight: u64| {
            let (seed, first) = (self.seed, 0);
            let mut drive = Drive { opened, phase, object_bytes, objects, first, in_flight, time, seed, device };
            if phase.writes() && self.warm_up > 0.0 {
                drive.time = Duration::from_secs_f64(self.warm_up);
                drive.first = drive.run(&target.label, contents)?.1;
                drive.time = time;
            }
            let (cell, next) = drive.run(&target.label, contents)?;
            if self.wants(phase) {
                cells.push(cell);
            }
            Result::<u64, Failure>::Ok(next)
        };
        let store = &*opened.objects;
        match scene {
            Scene::Write { bytes, in_flight } => {
                create_collection(store)?;
                drive(Phase::Write, bytes, 0, in_flight)?;
            }
            Scene::Read { bytes } => {
                let count = (self.data.0 / bytes).clamp(1, 1 << 17);
                fill(store, contents, count, bytes)?;
                for phase in [Phase::ReadSeq, Phase::ReadRand].into_iter().filter(|phase| self.wants(*phase)) {
                    for in_flight in &self.in_flight {
                        drive(phase, bytes, count, *in_flight)?;
                    }
                }
            }
            Scene::Overwrite => {
                let count = self.image.0 / IMAGE_OBJECT_BYTES;
                fill(store, contents, count, IMAGE_OBJECT_BYTES)?;
                for phase in [Phase::OverwriteSeq, Phase::OverwriteRand].into_iter().filter(|phase| self.wants(*phase))
                {
                    for in_flight in &self.in_flight {
                        drive(phase, IMAGE_OBJECT_BYTES, count, *in_flight)?;
                    }
                }
            }
            Scene::Omap { in_flight } => {
                create_collection(store)?;
                drive(Phase::Omap, 0, 0, in_flight)?;
            }
            Scene::Names { in_flight } => {
                create_collection(store)?;
                let made = drive(Phase::Create, 0, 0, in_flight)?;
                if !self.wants(Phase::List) && !self.wants(Phase::Delete) {
                    return Ok(());
                }
                if made < self.objects {
                    fill(store, contents, self.objects, 0)?;
                }
                if self.wants(Phase::List) {
                    drive(Phase::List, 0, 0, in_flight)?;
                }
                if self.wants(Phase::Delete) {
                    drive(Phase::Delete, 0, made.max(self.objects), in_flight)?;
                }
            }
        }
        Ok(())
    }
}

/// Cells of the same phase, size and number in flight stand together, backends in their order.
fn sort(cells: &mut [Cell], targets: &[Target]) {
    let phase = |cell: &Cell| Phase::value_variants().iter().position(|phase| phase.name() == cell.phase);
    let backend = |cell: &Cell| targets.iter().position(|target| target.label == cell.backend);
    cells.sort_by_key(|cell| (phase(cell), cell.object_bytes, cell.in_flight, backend(cell)));
}

/// Writes the figures to a file.
pub fn save(file: &PathBuf, run: &Run, bar: &ProgressBar) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(run).map_err(|error| Failure::new(Code::Failure, error.to_string()))?;
    std::fs::write(file, text).inspect_err(|_| bar.abandon())?;
    Ok(())
}

/// The disk that a location's path is on, `major:minor` as /proc/diskstats has it.
pub fn device_of(target: &Target) -> Option<String> {
    disk_of(target.path())
}

/// The disk that a path is on, in the same way.
pub fn disk_of(path: &Path) -> Option<String> {
    let device = std::fs::metadata(path).ok()?.dev();
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    Some(whole_disk(Path::new("/sys/dev/block"), device))
}

/// The disk that a partition is on: flushes are counted there alone. Anything else is its own. `devices` has a link for
/// each device, named `major:minor`.
fn whole_disk(devices: &Path, device: String) -> String {
    let at = devices.join(&device);
    if !at.join("partition").exists() {
        return device;
    }
    // The link leads to the partition's folder, which is in its disk's.
    std::fs::read_to_string(at.join("../dev")).map_or(device, |disk| disk.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_of_a_partition_are_looked_for_at_its_disk() {
        let folder = tempfile::tempdir().unwrap();
        let (block, sda) = (folder.path().join("block"), folder.path().join("devices/sda"));
        std::fs::create_dir_all(sda.join("sda1")).unwrap();
        std::fs::create_dir_all(&block).unwrap();
        std::fs::write(sda.join("dev"), "8:0\n").unwrap();
        std::fs::write(sda.join("sda1/dev"), "8:1\n").unwrap();
        std::fs::write(sda.join("sda1/partition"), "1\n").unwrap();
        std::os::unix::fs::symlink("../devices/sda", block.join("8:0")).unwrap();
        std::os::unix::fs::symlink("../devices/sda/sda1", block.join("8:1")).unwrap();
        for (device, disk) in [("8:1", "8:0"), ("8:0", "8:0"), ("254:0", "254:0")] {
            assert_eq!(whole_disk(&block, device.into()), disk);
        }
    }
}

//! Seeded runs over images with snapshots, clones, discards, resizes, rollbacks and flattening, against plain byte
//! vectors.
//!
//! seed → steps on a few images through two handles each → after each step a range, from time to time everything, is
//! compared
//!
//! Invariant: the same seed gives the same steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use esker_volume::{Durability, Error, Image, Layout, Volumes};
use fastrand::Rng;

use crate::support::{SMALL, STRIPED, engine, memory};

const IMAGES_MAX: usize = 5;
const BYTES_MAX: u64 = 600_000;

#[derive(Clone)]
struct Snap {
    name: String,
    data: Vec<u8>,
    protected: bool,
    /// Names of images that are clones of it, or have snapshots that are.
    children: Vec<String>,
}

struct Model {
    image: [Image; 2],
    data: Vec<u8>,
    snaps: Vec<Snap>,
}

pub struct Run {
    volumes: Volumes,
    rng: Rng,
    layout: Layout,
    images: BTreeMap<String, Model>,
    made: u32,
}

impl Run {
    pub fn new(volumes: Volumes, seed: u64, layout: Layout) -> Self {
        Self { volumes, rng: Rng::with_seed(seed), layout, images: BTreeMap::new(), made: 0 }
    }

    fn fresh(&mut self) -> String {
        self.made += 1;
        format!("n{}", self.made)
    }

    fn open(&self, name: &str) -> [Image; 2] {
        [self.volumes.image(name).unwrap(), self.volumes.image(name).unwrap()]
    }

    fn some_image(&mut self) -> Option<String> {
        let at = self.rng.usize(..self.images.len().max(1));
        self.images.keys().nth(at).cloned()
    }

    fn range(&mut self, size: u64) -> (u64, u64) {
        let offset = self.rng.u64(..=size);
        let most = if self.rng.u8(..4) == 0 { size } else { 30_000 };
        let len = self.rng.u64(..=most.min(size - offset));
        // Whole objects are special.
        if self.rng.u8(..4) == 0 {
            let object = self.layout.set_bytes_for_tests();
            let (start, end) = (offset / object * object, (offset + len).div_ceil(object) * object);
            return (start, end.min(size) - start);
        }
        (offset, len)
    }

    pub fn step(&mut self) -> String {
        let action = self.rng.u8(..100);
        let Some(name) = self.some_image().filter(|_| action > 2) else { return self.create() };
        let which = self.rng.usize(..2);
        let image = self.images[&name].image[which].clone();
        let size = self.images[&name].data.len() as u64;
        match action {
            ..=49 => {
                let (offset, len) = self.range(size);
                let mut data = vec![0; len as usize];
                self.rng.fill(&mut data);
                let durability = if self.rng.bool() { Durability::Applied } else { Durability::Durable };
                image.write(offset, data.clone().into(), durability).unwrap().wait().unwrap();
                let model = self.images.get_mut(&name).unwrap();
                model.data[offset as usize..(offset + len) as usize].copy_from_slice(&data);
                format!("write {name} {offset} {len}")
            }
            50..=61 => {
                let (offset, len) = self.range(size);
                let allocate = self.rng.u8(..4) == 0;
                image.zero(offset, len, allocate, Durability::Applied).unwrap().wait().unwrap();
                let model = self.images.get_mut(&name).unwrap();
                model.data[offset as usize..(offset + len) as usize].fill(0);
                format!("zero {name} {offset} {len} allocate={allocate}")
            }
            62..=66 => {
                let next = self.rng.u64(..BYTES_MAX);
                let model = self.images.get_mut(&name).unwrap();
                let stored = image.resize(next, false);
                if next < size && model.data[next as usize..].iter().any(|byte| *byte != 0) {
                    assert!(matches!(stored, Err(Error::Refused { .. })), "{stored:?}");
                    image.resize(next, true).unwrap();
                } else if !matches!(stored, Err(Error::Refused { .. })) {
                    stored.unwrap();
                } else {
                    // Zeros that were written are data too.
                    image.resize(next, true).unwrap();
                }
                model.data.resize(next as usize, 0);
                format!("resize {name} {size} to {next}")
            }
            67..=74 => {
                let snap = self.fresh();
                image.snapshot_create(&snap, 1).unwrap();
                let model = self.images.get_mut(&name).unwrap();
                model.snaps.push(Snap {
                    name: snap.clone(),
                    data: model.data.clone(),
                    protected: false,
                    children: vec![],
                });
                format!("snapshot {name}@{snap}")
            }
            75..=80 => self.remove_snapshot(&name, &image),
            81..=85 => self.clone_snapshot(&name, &image),
            86..=88 => {
                while !image.flatten(&mut |done, _| done % 3 != 0).unwrap() {
                    // Stopped: what was done stays done, but the count begins again; so let it run.
                    assert!(image.flatten(&mut |_, _| true).unwrap());
                }
                format!("flatten {name}")
            }
            89..=92 => {
                let count = self.images[&name].snaps.len();
                if count == 0 {
                    return "nothing to roll back to".into();
                }
                let snap = self.images[&name].snaps[self.rng.usize(..count)].clone();
                let stop = self.rng.u64(1..6);
                if !image.rollback(&snap.name, &mut |done, _| done < stop).unwrap() {
                    let refused = image.write(0, Bytes::from_static(b""), Durability::Applied).err().unwrap();
                    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
                    assert!(image.rollback(&snap.name, &mut |_, _| true).unwrap());
                }
                let model = self.images.get_mut(&name).unwrap();
                model.data = snap.data;
                format!("rollback {name}@{}", snap.name)
            }
            93..=94 => {
                assert!(self.volumes.work(&mut |_, _| true).unwrap());
                "work".into()
            }
            95..=96 => self.remove_image(&name),
            _ => self.diff_and_apply(&name),
        }
    }

    fn create(&mut self) -> String {
        if self.images.len() >= IMAGES_MAX {
            return "enough images".into();
        }
        let (name, size) = (self.fresh(), self.rng.u64(..BYTES_MAX));
        self.volumes.create(&name, size, self.layout, 0).unwrap();
        let model = Model { image: self.open(&name), data: vec![0; size as usize], snaps: Vec::new() };
        self.images.insert(name.clone(), model);
        format!("create {name} {size}")
    }

    fn remove_snapshot(&mut self, name: &str, image: &Image) -> String {
        let count = self.images[name].snaps.len();
        if count == 0 {
            return "no snapshot to remove".into();
        }
        let at = self.rng.usize(..count);
        let snap = self.images[name].snaps[at].clone();
        if snap.protected {
            assert!(matches!(image.snapshot_remove(&snap.name), Err(Error::Refused { .. })));
            match image.snapshot_unprotect(&snap.name) {
                Err(Error::Refused { why }) => {
                    assert!(!self.volumes.children(name, &snap.name).unwrap().is_empty(), "{why}");
                    return format!("{name}@{} has children", snap.name);
                }
                other => other.unwrap(),
            }
            assert!(self.volumes.children(name, &snap.name).unwrap().is_empty());
        }
        image.snapshot_remove(&snap.name).unwrap();
        self.images.get_mut(name).unwrap().snaps.remove(at);
        format!("remove {name}@{}", snap.name)
    }

    fn clone_snapshot(&mut self, name: &str, image: &Image) -> String {
        let count = self.images[name].snaps.len();
        if count == 0 || self.images.len() >= IMAGES_MAX {
            return "nothing to clone".into();
        }
        let at = self.rng.usize(..count);
        let child = self.fresh();
        let snap = self.images[name].snaps[at].clone();
        if !snap.protected {
            let refused = self.volumes.clone_image(name, &snap.name, &child, 0).err().unwrap();
            assert!(matches!(refused, Error::Refused { .. }), "{refused}");
            image.snapshot_protect(&snap.name).unwrap();
            self.images.get_mut(name).unwrap().snaps[at].protected = true;
        }
        match self.volumes.clone_image(name, &snap.name, &child, 0) {
            Err(Error::Refused { why }) if why.contains("CHAIN_DEPTH_MAX") => return "chain too long".into(),
            other => drop(other.unwrap()),
        }
        self.images.get_mut(name).unwrap().snaps[at].children.push(child.clone());
        let model = Model { image: self.open(&child), data: snap.data, snaps: Vec::new() };
        self.images.insert(child.clone(), model);
        format!("clone {name}@{} to {child}", snap.name)
    }

    fn remove_image(&mut self, name: &str) -> String {
        if !self.images[name].snaps.is_empty() {
            assert!(matches!(self.volumes.remove(name), Err(Error::Refused { .. })));
            return format!("{name} has snapshots");
        }
        self.volumes.remove(name).unwrap();
        let gone = self.images.remove(name).unwrap();
        let refused = gone.image[1].write(0, Bytes::new(), Durability::Applied);
        // A write of nothing needs no look; the next look tells.
        drop(refused);
        assert!(matches!(gone.image[1].refresh(), Err(Error::NoImage { .. })));
        format!("remove {name}")
    }

    fn diff_and_apply(&mut self, name: &str) -> String {
        let model = &self.images[name];
        let mut points: Vec<(Option<String>, Vec<u8>)> =
            model.snaps.iter().map(|snap| (Some(snap.name.clone()), snap.data.clone())).collect();
        points.push((None, model.data.clone()));
        let to = self.rng.usize(..points.len());
        let from = if self.rng.bool() { None } else { Some(self.rng.usize(..=to)) };
        let (from_data, from_name) = match from {
            Some(at) if points[at].0.is_some() => (points[at].1.clone(), points[at].0.clone()),
            _ => (Vec::new(), None),
        };
        let (to_name, expected) = points[to].clone();
        let image = &self.images[name].image[0];
        let mut applied = from_data;
        applied.resize(expected.len(), 0);
        let mut last = 0;
        image
            .diff(from_name.as_deref(), to_name.as_deref(), &mut |extent| {
                let range = extent.offset as usize..(extent.offset + extent.len) as usize;
                assert!(extent.len > 0 && range.end <= expected.len(), "{extent:?}");
                if self.layout.stripe_count == 1 {
                    assert!(extent.offset >= last, "extents come in order");
                    last = extent.offset + extent.len;
                }
                if !extent.data {
                    assert!(expected[range.clone()].iter().all(|byte| *byte == 0), "{extent:?} is no hole");
                }
                applied[range.clone()].copy_from_slice(&expected[range]);
                Ok(true)
            })
            .unwrap();
        assert!(applied == expected, "the diff of {name} from {from_name:?} to {to_name:?} misses something");
        format!("diff {name} {from_name:?} to {to_name:?}")
    }

    pub fn check_some(&mut self) {
        let Some(name) = self.some_image() else { return };
        let size = self.images[&name].data.len() as u64;
        let (offset, len) = self.range(size);
        let which = self.rng.usize(..2);
        let model = &self.images[&name];
        if size != model.image[which].size() {
            model.image[which].refresh().unwrap();
        }
        let found = model.image[which].read_bytes(offset, len).unwrap();
        assert!(
            found == model.data[offset as usize..(offset + len) as usize],
            "{name}: {len} bytes at {offset} differ"
        );
    }

    pub fn check_all(&self) {
        for (name, model) in &self.images {
            let image = self.volumes.image(name).unwrap();
            assert_eq!(image.size(), model.data.len() as u64, "size of {name}");
            compare(name, &image.read_bytes(0, image.size()).unwrap(), &model.data);
            let mut end = 0;
            for extent in image.extents(0, image.size()).unwrap() {
                assert_eq!(extent.offset, end, "{name}");
                end += extent.len;
                let range = extent.offset as usize..end as usize;
                assert!(
                    extent.data || model.data[range].iter().all(|byte| *byte == 0),
                    "{name}: {extent:?} is no hole"
                );
            }
            assert_eq!(end, image.size());
            let names: Vec<_> = image.snapshots().unwrap().into_iter().map(|snap| snap.name).collect();
            assert_eq!(names, model.snaps.iter().map(|snap| snap.name.clone()).collect::<Vec<_>>());
            for snap in &model.snaps {
                let stored = image.snapshot(&snap.name).unwrap();
                assert_eq!(stored.size(), snap.data.len() as u64);
                compare(&format!("{name}@{}", snap.name), &stored.read_bytes(0, stored.size()).unwrap(), &snap.data);
            }
        }
    }

    /// Removes everything, and nothing is left of it.
    pub fn remove_all(mut self) {
        for name in self.images.keys() {
            let image = self.volumes.image(name).unwrap();
            assert!(image.flatten(&mut |_, _| true).unwrap(), "{name}");
        }
        let mut left: Vec<String> = self.images.keys().cloned().collect();
        // Snapshots may stand on snapshots of other images: those go first.
        for _ in 0..=left.len() {
            left.retain(|name| {
                let image = self.volumes.image(name).unwrap();
                for snap in image.snapshots().unwrap() {
                    if snap.protected && image.snapshot_unprotect(&snap.name).is_err() {
                        continue;
                    }
                    image.snapshot_remove(&snap.name).unwrap();
                }
                self.volumes.remove(name).is_err()
            });
        }
        assert!(left.is_empty(), "{left:?} cannot be removed");
        self.images.clear();
        while !self.volumes.work(&mut |done, _| done % 2 == 0).unwrap() {}
        let objects = self.volumes.store().list(&"volume".into(), None, 1_000).wait().unwrap();
        let rest: Vec<_> = objects.iter().filter(|name| &name[..] != b"directory").collect();
        assert!(rest.is_empty(), "left after removing everything: {rest:?}");
    }
}

fn compare(what: &str, found: &[u8], expected: &[u8]) {
    if let Some(at) = found.iter().zip(expected).position(|(a, b)| a != b) {
        panic!("{what}: byte {at} is {:#x}, expected {:#x}", found[at], expected[at]);
    }
    assert_eq!(found.len(), expected.len(), "{what}");
}

trait SetBytes {
    fn set_bytes_for_tests(&self) -> u64;
}

impl SetBytes for Layout {
    fn set_bytes_for_tests(&self) -> u64 {
        self.object_bytes * self.stripe_count
    }
}

fn run(volumes: Volumes, seed: u64, layout: Layout, steps: u32) {
    let backend = volumes.store().capability().backend;
    let mut run = Run::new(volumes, seed, layout);
    let mut trace = Vec::new();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for step in 0..steps {
            let what = run.step();
            trace.push(what);
            run.check_some();
            if step % 25 == 24 {
                run.check_all();
            }
        }
        run.check_all();
    }));
    if let Err(panic) = outcome {
        let tail = trace.len().saturating_sub(40);
        eprintln!("seed {seed} on {backend}, {layout:?}, step {}:\n{}", trace.len(), trace[tail..].join("\n"));
        std::panic::resume_unwind(panic);
    }
    run.remove_all();
}

#[test]
fn images_are_what_plain_bytes_are_on_memory() {
    for seed in 0..20 {
        run(memory(), seed, if seed % 3 == 2 { STRIPED } else { SMALL }, 250);
    }
}

#[test]
fn images_are_what_plain_bytes_are_on_the_engine() {
    for seed in 100..106 {
        run(engine(), seed, if seed % 3 == 2 { STRIPED } else { SMALL }, 250);
    }
}

#[test]
fn images_are_what_plain_bytes_are_on_plain_files() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 200..202 {
        let path = folder.path().join(format!("{seed}"));
        let store = crate::support::file(&path);
        run(Volumes::open(store as Arc<dyn esker_store::ObjectStore>).unwrap(), seed, SMALL, 120);
    }
}

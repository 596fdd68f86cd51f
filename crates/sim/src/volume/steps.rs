//! What is done to images: writes, discards, zeros, flushes, snapshots, clones, rollbacks, resizes, locks, work,
//! maintenance.
//!
//! step → the states that it goes through → the call → owed, or the life has ended
//!
//! Invariant: an error that the state does not explain needs a cause that the device knows of; else it breaks the run.

use std::sync::Arc;

use bytes::Bytes;
use esker_volume::{Durability, Error, Image, Layout, Result as Outcome};

use super::disks::{Disk, Snap, World, children};
use super::{DisksRun, Open};
use crate::outcome::maintain;

const IMAGES_MAX: usize = 3;
const SNAPSHOTS_MAX: usize = 4;
/// Most bytes of an image: few objects of the smallest size.
const IMAGE_BYTES_MAX: u64 = 200 << 10;
const OBJECT_BYTES: u64 = 64 << 10;

const PLAIN: Layout = Layout { object_bytes: OBJECT_BYTES, stripe_unit: OBJECT_BYTES, stripe_count: 1 };
const STRIPED: Layout = Layout { object_bytes: OBJECT_BYTES, stripe_unit: 8 << 10, stripe_count: 2 };

/// What an image is asked to zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zeroing {
    Discard,
    Zero,
    Allocate,
}

impl DisksRun {
    /// One step; false if the life has ended.
    pub(super) fn step(&mut self, open: &mut Open) -> Result<bool, String> {
        let lives = self.any_step(open)?;
        self.told.push(format!("{} of {} owed", self.owed, self.past.len() - 1));
        Ok(lives)
    }

    /// Tells what is done, for the developer who looks for the cause of what broke.
    fn tell(&mut self, what: impl FnOnce() -> String) {
        self.told.push(what());
    }

    fn any_step(&mut self, open: &mut Open) -> Result<bool, String> {
        self.make_room(open);
        let world = self.now();
        let action = self.rng.u8(0..100);
        let at = self.rng.usize(0..world.len().max(1));
        let Some((name, disk)) = world.iter().nth(at).filter(|_| action > 2) else { return self.create(open, &world) };
        if disk.rolling.is_some() && action < 90 {
            return self.while_rolled_back(open, name, disk);
        }
        match action {
            0..=36 => self.write(open, name, disk),
            37..=45 => self.zero(open, name, disk),
            46..=50 => {
                self.tell(|| format!("flush {name}"));
                let flushed = open.handles[name][self.rng.usize(0..2)].flush().wait();
                match flushed {
                    Ok(_) => self.owed = self.past.len() - 1,
                    Err(_) if open.device.has_failed() => return Ok(false),
                    Err(error) => return Err(format!("flush of {name}: {error}")),
                }
                Ok(true)
            }
            51..=58 => self.snapshot(open, name, disk),
            59..=63 => self.snapshot_remove(open, &world, name, disk),
            64..=67 => self.clone_image(open, &world, name, disk),
            68..=70 => self.flatten(open, name, disk),
            71..=75 => self.roll_back(open, name, disk),
            76..=79 => self.resize(open, name, disk),
            80..=82 => self.lock(open, name, disk),
            83 => self.remove(open, name, disk),
            84..=89 => self.read(open, name, disk),
            90..=92 => {
                let left = self.rng.u64(0..6);
                let volumes = open.volumes.clone();
                self.tell(|| format!("work, stopped after {left}"));
                // It may find nothing to do; then it vouches for nothing.
                self.act(open, Vec::new(), false, || volumes.work(&mut |done, _| done < left * 2).map(drop))
            }
            93..=95 => match maintain(&open.engine, &mut self.rng) {
                Ok(done) => {
                    self.outcome.maintained += u64::from(done);
                    Ok(true)
                }
                Err(error) => {
                    let error = Error::Store(error);
                    if self.ends_life(&error, &open.device) { Ok(false) } else { Err(format!("maintenance: {error}")) }
                }
            },
            96..=97 => self.read_snapshots(open, &world),
            _ => match self.unchanged(open, "between two steps") {
                Err(_) if open.device.has_failed() => Ok(false),
                other => other.map(|()| true),
            },
        }
    }

    fn fresh(&mut self, kind: char) -> String {
        self.named += 1;
        format!("{kind}{:05}", self.named)
    }

    /// The handle to write with: any, or the one that holds the lock.
    fn writer(&mut self, open: &Open, name: &str) -> Image {
        let which = self.rng.usize(0..2);
        open.handles[name][open.holders.get(name).copied().unwrap_or(which)].clone()
    }

    /// Does what leads through `states`; false if the life has ended in it. If it is answered as durable, all states
    /// are owed.
    fn act(
        &mut self,
        open: &Open,
        states: Vec<World>,
        durable: bool,
        call: impl FnOnce() -> Outcome<()>,
    ) -> Result<bool, String> {
        self.outcome.transactions += states.len() as u64;
        self.past.extend(states.into_iter().map(Arc::new));
        match call() {
            Ok(()) if durable => self.owe(),
            Ok(()) => {}
            Err(error) if self.ends_life(&error, &open.device) => return Ok(false),
            Err(error) => return Err(format!("refused: {error}")),
        }
        Ok(true)
    }

    /// Something that has to be refused, and changes nothing.
    fn refused(
        &mut self,
        open: &Open,
        what: &str,
        outcome: Outcome<()>,
        by: impl Fn(&Error) -> bool,
    ) -> Result<bool, String> {
        match outcome {
            Err(error) if by(&error) => {
                self.outcome.refused += 1;
                Ok(true)
            }
            Err(error) if self.ends_life(&error, &open.device) => Ok(false),
            other => Err(format!("{what} should be refused: {other:?}")),
        }
    }

    /// The newest state with one image changed.
    fn with(&self, name: &str, change: impl FnOnce(&mut Disk)) -> World {
        let mut world = self.now();
        if let Some(disk) = world.get_mut(name) {
            change(Arc::make_mut(disk));
        }
        world
    }

    fn range(&mut self, size: u64) -> (u64, u64) {
        let offset = self.rng.u64(0..=size);
        let most = if self.rng.u8(0..4) == 0 { size } else { 20_000 };
        let len = self.rng.u64(0..=most.min(size - offset));
        match self.rng.u8(0..6) {
            // Whole objects are special.
            0 => {
                let (start, end) = (offset / OBJECT_BYTES, (offset + len).div_ceil(OBJECT_BYTES));
                (start * OBJECT_BYTES, (end * OBJECT_BYTES).min(size) - start * OBJECT_BYTES)
            }
            1 => (offset / 4096 * 4096, len.min(size - offset)),
            _ => (offset, len),
        }
    }

    fn durability(&mut self) -> Durability {
        if self.rng.u8(0..5) == 0 { Durability::Durable } else { Durability::Applied }
    }

    /// The states of changing a range in parts that end at `border(at)`.
    fn parts(&self, name: &str, range: (u64, u64), bytes: &[u8], border: impl Fn(u64) -> u64) -> Vec<World> {
        let (offset, end) = (range.0, range.0 + range.1);
        let (mut at, mut states, mut world) = (offset, Vec::new(), self.now());
        while at < end {
            let next = border(at).min(end);
            if let Some(disk) = world.get_mut(name) {
                Arc::make_mut(disk).fill(at, &bytes[(at - offset) as usize..(next - offset) as usize]);
            }
            states.push(world.clone());
            at = next;
        }
        states
    }

    fn write(&mut self, open: &Open, name: &str, disk: &Disk) -> Result<bool, String> {
        let (offset, len) = self.range(disk.data.len() as u64);
        self.number += 1;
        // No byte of it is zero.
        let word = [1, 255, 255 * 255].map(|digit| (self.number / digit % 255) as u8 + 1);
        let bytes: Bytes = word.into_iter().cycle().take(len as usize).collect();
        let durability = self.durability();
        let image = self.writer(open, name);
        let atomic = open.atomic_bytes;
        let states = self.parts(name, (offset, len), &bytes, |at| at + atomic);
        let waits = durability == Durability::Durable && self.rng.u8(0..4) != 0;
        self.tell(|| format!("write {name} {offset} {len} {word:?} {durability:?}, waits {waits}"));
        self.act(open, states, waits, || {
            let completion = image.write(offset, bytes, durability)?;
            if waits { Ok(completion.wait()?) } else { Ok(completion.into_parts().0?) }
        })
        .map_err(|broken| format!("write of {len} bytes at {offset} of {name}: {broken}"))
    }

    fn zero(&mut self, open: &Open, name: &str, disk: &Disk) -> Result<bool, String> {
        let (offset, len) = self.range(disk.data.len() as u64);
        let how = self.rng.choice([Zeroing::Discard, Zeroing::Zero, Zeroing::Allocate]).unwrap_or(Zeroing::Zero);
        let durability = self.durability();
        let image = self.writer(open, name);
        let (atomic, set) = (open.atomic_bytes, disk.layout.object_bytes * disk.layout.stripe_count);
        let allocates = how == Zeroing::Allocate;
        let border = |at: u64| if allocates { at + atomic } else { (at / set + 1) * set };
        let states = self.parts(name, (offset, len), &vec![0; len as usize], border);
        let waits = durability == Durability::Durable && len > 0;
        self.tell(|| format!("zero {name} {offset} {len} {how:?} {durability:?}"));
        self.act(open, states, waits, || {
            let completion = match how {
                Zeroing::Discard => image.discard(offset, len, durability)?,
                Zeroing::Zero | Zeroing::Allocate => image.zero(offset, len, allocates, durability)?,
            };
            if waits { Ok(completion.wait()?) } else { Ok(completion.into_parts().0?) }
        })
        .map_err(|broken| format!("zeroing {len} bytes at {offset} of {name}: {broken}"))
    }

    fn create(&mut self, open: &mut Open, world: &World) -> Result<bool, String> {
        if world.len() >= IMAGES_MAX {
            return Ok(true);
        }
        let name = self.fresh('i');
        let size = self.rng.u64(0..IMAGE_BYTES_MAX);
        let layout = if self.rng.u8(0..3) == 0 { STRIPED } else { PLAIN };
        self.tell(|| format!("create {name} of {size} bytes, stripes of {}", layout.stripe_count));
        let disk = Disk { data: Arc::new(vec![0; size as usize]), layout, ..Disk::default() };
        let next: World = world.clone().into_iter().chain([(name.clone(), Arc::new(disk))]).collect();
        let volumes = open.volumes.clone();
        let lives = self.act(open, vec![next], true, || volumes.create(&name, size, layout, 0).map(drop))?;
        if lives { self.reopen(open, &name) } else { Ok(false) }
    }

    /// Gives an image fresh handles.
    fn reopen(&mut self, open: &mut Open, name: &str) -> Result<bool, String> {
        match (open.volumes.image(name), open.volumes.image(name)) {
            (Ok(one), Ok(two)) => {
                open.handles.insert(name.to_owned(), [one, two]);
                Ok(true)
            }
            (Err(error), _) | (_, Err(error)) if self.ends_life(&error, &open.device) => Ok(false),
            (one, two) => Err(format!("opening {name}: {one:?}, {two:?}")),
        }
    }

    fn snapshot(&mut self, open: &mut Open, name: &str, disk: &Disk) -> Result<bool, String> {
        if disk.snaps.len() >= SNAPSHOTS_MAX {
            return Ok(true);
        }
        let snap_name = self.fresh('s');
        let snap = Snap { data: Arc::clone(&disk.data), protected: false, parent: disk.parent.clone() };
        self.tell(|| format!("snapshot {name}@{snap_name}"));
        let next = self.with(name, |disk| drop(disk.snaps.insert(snap_name.clone(), Arc::new(snap))));
        let image = self.writer(open, name);
        let mut made = None;
        let lives = self.act(open, vec![next], true, || {
            made = Some(image.snapshot_create(&snap_name, 0)?);
            Ok(())
        })?;
        if let Some(snapshot) = made.filter(|_| self.rng.bool()) {
            open.snapshots.push((name.to_owned(), snap_name, snapshot));
            if open.snapshots.len() > 3 {
                open.snapshots.remove(0);
            }
        }
        Ok(lives)
    }

    fn some_snapshot<'d>(&mut self, disk: &'d Disk) -> Option<(&'d String, &'d Arc<Snap>)> {
        let at = self.rng.usize(0..disk.snaps.len().max(1));
        disk.snaps.iter().nth(at)
    }

    fn snapshot_remove(&mut self, open: &Open, world: &World, name: &str, disk: &Disk) -> Result<bool, String> {
        let Some((snap_name, snap)) = self.some_snapshot(disk) else { return Ok(true) };
        let image = self.writer(open, name);
        if snap.protected {
            let outcome = image.snapshot_remove(snap_name);
            if !self.refused(open, "removing a protected snapshot", outcome, |e| matches!(e, Error::Refused { .. }))? {
                return Ok(false);
            }
            if !children(world, name, snap_name).is_empty() {
                let outcome = image.snapshot_unprotect(snap_name);
                return self
                    .refused(open, "unprotecting what has children", outcome, |e| matches!(e, Error::Refused { .. }));
            }
            let next = self.with(name, |disk| {
                if let Some(snap) = disk.snaps.get_mut(snap_name) {
                    Arc::make_mut(snap).protected = false;
                }
            });
            if !self.act(open, vec![next], true, || image.snapshot_unprotect(snap_name))? {
                return Ok(false);
            }
        }
        self.tell(|| format!("remove {name}@{snap_name}"));
        let next = self.with(name, |disk| drop(disk.snaps.remove(snap_name)));
        self.act(open, vec![next], true, || image.snapshot_remove(snap_name))
    }

    fn clone_image(&mut self, open: &mut Open, world: &World, name: &str, disk: &Disk) -> Result<bool, String> {
        let Some((snap_name, snap)) = self.some_snapshot(disk) else { return Ok(true) };
        let child = self.fresh('i');
        let volumes = open.volumes.clone();
        if !snap.protected {
            let outcome = volumes.clone_image(name, snap_name, &child, 0).map(drop);
            let by = |error: &Error| matches!(error, Error::Refused { .. });
            if !self.refused(open, "a clone of an unprotected snapshot", outcome, by)? {
                return Ok(false);
            }
            let image = self.writer(open, name);
            let next = self.with(name, |disk| {
                if let Some(snap) = disk.snaps.get_mut(snap_name) {
                    Arc::make_mut(snap).protected = true;
                }
            });
            if !self.act(open, vec![next], true, || image.snapshot_protect(snap_name))? {
                return Ok(false);
            }
        }
        if world.len() >= IMAGES_MAX {
            return Ok(true);
        }
        self.tell(|| format!("clone {name}@{snap_name} to {child}"));
        let parent = Some((name.to_owned(), snap_name.clone()));
        let disk = Disk { data: Arc::clone(&snap.data), layout: disk.layout, parent, ..Disk::default() };
        let next = self.now().into_iter().chain([(child.clone(), Arc::new(disk))]).collect();
        let lives = self.act(open, vec![next], true, || volumes.clone_image(name, snap_name, &child, 0).map(drop))?;
        if lives { self.reopen(open, &child) } else { Ok(false) }
    }

    /// Work that may be stopped in the middle: its last state comes only if it is finished.
    fn stoppable(
        &mut self,
        open: &Open,
        states: Vec<World>,
        call: impl FnOnce(&mut dyn FnMut(u64, u64) -> bool) -> Outcome<bool>,
    ) -> Result<bool, String> {
        let stop = if self.rng.bool() { u64::MAX } else { self.rng.u64(0..5) };
        let (before, begun) = (self.owed, states.len() - 1);
        let mut finished = true;
        let lives = self.act(open, states, true, || {
            finished = call(&mut |done, _| done < stop)?;
            Ok(())
        })?;
        if lives && !finished {
            self.past.pop();
            self.owed = before;
            if begun > 0 {
                // That it was begun stands in the header.
                self.owe();
            }
        }
        Ok(lives)
    }

    fn flatten(&mut self, open: &Open, name: &str, disk: &Disk) -> Result<bool, String> {
        if disk.parent.is_none() {
            return Ok(true);
        }
        self.tell(|| format!("flatten {name}"));
        let next = self.with(name, |disk| disk.parent = None);
        let image = self.writer(open, name);
        self.stoppable(open, vec![next], |progress| image.flatten(progress))
            .map_err(|broken| format!("flattening {name}: {broken}"))
    }

    fn roll_back(&mut self, open: &Open, name: &str, disk: &Disk) -> Result<bool, String> {
        let Some((snap_name, _)) = self.some_snapshot(disk) else { return Ok(true) };
        self.tell(|| format!("rollback {name}@{snap_name}"));
        let begun = self.with(name, |disk| disk.rolling = Some(snap_name.clone()));
        let mut ended = begun.clone();
        if let Some(disk) = ended.get_mut(name) {
            Arc::make_mut(disk).roll_back();
        }
        let image = self.writer(open, name);
        self.stoppable(open, vec![begun, ended], |progress| image.rollback(snap_name, progress))
            .map_err(|broken| format!("rolling {name} back to {snap_name}: {broken}"))
    }

    /// While a rollback is not finished: nothing is read or written; it is gone on with.
    fn while_rolled_back(&mut self, open: &Open, name: &str, disk: &Disk) -> Result<bool, String> {
        let image = self.writer(open, name);
        let by = |error: &Error| matches!(error, Error::Refused { .. });
        if self.rng.bool() {
            // A write of nothing looks at nothing.
            if !disk.data.is_empty() {
                let outcome = image.write(0, Bytes::from_static(b"w"), Durability::Applied).map(drop);
                if !self.refused(open, "a write during a rollback", outcome, by)? {
                    return Ok(false);
                }
            }
            let outcome = open.handles[name][self.rng.usize(0..2)].read(0, 0).map(drop);
            return self.refused(open, "a read during a rollback", outcome, by);
        }
        let Some(snap_name) = disk.rolling.clone() else { return Ok(true) };
        let next = self.with(name, |disk| disk.roll_back());
        self.tell(|| format!("rollback {name} goes on"));
        self.stoppable(open, vec![next], |progress| image.rollback(&snap_name, progress))
    }

    fn resize(&mut self, open: &Open, name: &str, disk: &Disk) -> Result<bool, String> {
        let size = self.rng.u64(0..IMAGE_BYTES_MAX);
        let image = self.writer(open, name);
        self.tell(|| format!("resize {name} to {size}"));
        let lost = disk.data.get(size as usize..).is_some_and(|cut| cut.iter().any(|byte| *byte != 0));
        if lost && self.rng.u8(0..4) == 0 {
            let by = |error: &Error| matches!(error, Error::Refused { .. });
            return self.refused(open, "shrinking below data", image.resize(size, false), by);
        }
        let next = self.with(name, |disk| Arc::make_mut(&mut disk.data).resize(size as usize, 0));
        self.act(open, vec![next], true, || image.resize(size, true))
            .map_err(|broken| format!("resizing {name} from {} to {size}: {broken}", disk.data.len()))
    }

    /// Takes the lock, from the handle that has it if one does, or gives it back.
    fn lock(&mut self, open: &mut Open, name: &str, disk: &Disk) -> Result<bool, String> {
        let held = open.holders.get(name).copied();
        if let Some(which) = held.filter(|_| self.rng.bool()) {
            let image = open.handles[name][which].clone();
            let next = self.with(name, |disk| disk.locked = false);
            open.holders.remove(name);
            self.tell(|| format!("unlock {name}"));
            return self.act(open, vec![next], true, || image.unlock());
        }
        let which = held.map_or(0, |held| 1 - held);
        let [taker, other] = [which, 1 - which].map(|which| open.handles[name][which].clone());
        self.tell(|| format!("take over {name}"));
        let next = self.with(name, |disk| disk.locked = true);
        if !self.act(open, vec![next], true, || taker.take_over("somebody").map(drop))? {
            return Ok(false);
        }
        open.holders.insert(name.to_owned(), which);
        if disk.data.is_empty() {
            return self.fresh_handle(open, name, 1 - which);
        }
        let outcome = other.write(0, Bytes::from_static(b"late"), Durability::Applied).map(drop);
        let by = |error: &Error| matches!(error, Error::Fenced { .. } | Error::Locked { .. } | Error::PastEnd { .. });
        if !self.refused(open, "a write without the lock", outcome, by)? {
            return Ok(false);
        }
        self.fresh_handle(open, name, 1 - which)
    }

    /// A handle that lost its lock writes no more; its holder opens the image again.
    fn fresh_handle(&mut self, open: &mut Open, name: &str, which: usize) -> Result<bool, String> {
        match open.volumes.image(name) {
            Ok(image) => {
                if let Some(handles) = open.handles.get_mut(name) {
                    handles[which] = image;
                }
                Ok(true)
            }
            Err(error) if self.ends_life(&error, &open.device) => Ok(false),
            Err(error) => Err(format!("opening {name} again: {error}")),
        }
    }

    fn remove(&mut self, open: &mut Open, name: &str, disk: &Disk) -> Result<bool, String> {
        let volumes = open.volumes.clone();
        if disk.locked || !disk.snaps.is_empty() {
            let by = |error: &Error| matches!(error, Error::Refused { .. } | Error::Locked { .. });
            return self.refused(open, "removing what is locked or has snapshots", volumes.remove(name), by);
        }
        self.tell(|| format!("remove {name}"));
        let mut next = self.now();
        next.remove(name);
        if !self.act(open, vec![next], true, || volumes.remove(name))? {
            return Ok(false);
        }
        let Some([gone, _]) = open.handles.remove(name) else { return Ok(true) };
        let by = |error: &Error| matches!(error, Error::NoImage { .. });
        self.refused(open, "reading a removed image", gone.read(0, 0).map(drop), by)
    }

    fn read(&mut self, open: &Open, name: &str, disk: &Disk) -> Result<bool, String> {
        let (offset, len) = self.range(disk.data.len() as u64);
        let image = &open.handles[name][self.rng.usize(0..2)];
        let expected = &disk.data[offset as usize..(offset + len) as usize];
        // As a server does: the answer may be given before it is durable, if its writer asked for no more.
        let read = image.read(offset, len).and_then(|read| Ok(read.wait()?));
        let chunks = match read {
            Ok(chunks) => chunks,
            Err(error) if self.ends_life(&error, &open.device) => return Ok(false),
            Err(error) => return Err(format!("reading {len} bytes at {offset} of {name}: {error}")),
        };
        let mut found = Vec::new();
        for chunk in chunks {
            match chunk {
                esker_volume::Chunk::Data(bytes) => found.extend_from_slice(&bytes),
                esker_volume::Chunk::Zeros(len) => found.resize(found.len() + len as usize, 0),
            }
        }
        if found != expected {
            let at = found.iter().zip(expected).position(|(a, b)| a != b);
            return Err(format!("{len} bytes at {offset} of {name}: {} came, different from byte {at:?}", found.len()));
        }
        let extents = match image.extents(offset, len) {
            Ok(extents) => extents,
            Err(error) if self.ends_life(&error, &open.device) => return Ok(false),
            Err(error) => return Err(format!("extents of {name}: {error}")),
        };
        let mut end = offset;
        for extent in &extents {
            let range = (extent.offset - offset) as usize..(extent.offset + extent.len - offset) as usize;
            if extent.offset != end || (!extent.data && expected[range].iter().any(|byte| *byte != 0)) {
                return Err(format!("{extent:?} of {name} is no hole, or out of order"));
            }
            end += extent.len;
        }
        if end == offset + len { Ok(true) } else { Err(format!("extents of {name} end at {end}")) }
    }

    /// Snapshots that were opened earlier show what they showed, or are gone.
    fn read_snapshots(&mut self, open: &Open, world: &World) -> Result<bool, String> {
        for (name, snap_name, snapshot) in &open.snapshots {
            let expected = world.get(name).and_then(|disk| disk.snaps.get(snap_name));
            let found = snapshot.read_bytes(0, snapshot.size());
            match (found, expected) {
                (Ok(found), Some(snap)) if found == **snap.data => {}
                (Err(Error::NoSnapshot { .. }), None) => {}
                (Err(error), _) if self.ends_life(&error, &open.device) => return Ok(false),
                (Err(error), _) => return Err(format!("reading {name}@{snap_name}: {error}")),
                (Ok(_), _) => return Err(format!("{name}@{snap_name} has changed, or is gone")),
            }
        }
        Ok(true)
    }
}

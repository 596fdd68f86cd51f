//! Steps on the faces of a store that is full, or about to be: what adds, what gives back, and what must be there.
//!
//! step → [`Known`](super::known::Known) → face → done, refused for want of room, or stopped
//!
//! Invariant: a step that adds is one transaction, so that one which is refused has changed nothing.

use std::time::Instant;

use bytes::Bytes;
use esker_kv::{Entry, Key};
use esker_log::{Found, Layout, Options as LogOptions};
use esker_store::{Durability, Error as StoreError, ObjectStore};
use esker_volume::Layout as Striping;

use super::known::Place;
use super::{Answer, DISKS, Fail, Filled, LOG, ONE_WRITE_BYTES, Open, REFUSED_FOR_GOOD, SPACES, TRIES};

/// Bytes of a disk's block.
const BLOCK_BYTES: u64 = 4_096;
/// Blocks of a disk's data object: no write crosses their borders.
const OBJECT_BLOCKS: u64 = 16;
/// Blocks of a write that is one transaction on so small segments.
const WRITE_BLOCKS_MAX: u64 = 5;
/// Blocks of a disk.
const BLOCKS: u64 = 160;
/// Keys to choose from in each namespace.
const KEYS: u64 = 150;

fn value(number: u32, len: u64) -> Bytes {
    number.to_le_bytes().into_iter().cycle().take(len as usize).collect()
}

fn number_of(bytes: &[u8]) -> Result<Option<u32>, String> {
    let first = bytes.first_chunk::<4>().ok_or("a value is shorter than its number")?;
    if bytes.iter().zip(first.iter().cycle()).any(|(a, b)| a != b) {
        return Err(format!("a value of {} bytes that no client wrote", bytes.len()));
    }
    let number = u32::from_le_bytes(*first);
    Ok((number > 0).then_some(number))
}

fn key_name(key: u64) -> String {
    format!("key{key:03}{}", "-".repeat((key * 5 % 60) as usize))
}

impl Filled {
    fn next(&mut self) -> u32 {
        self.number += 1;
        self.number
    }

    /// Whether the device excuses that a call fails so.
    fn excused(fail: &Fail, open: &Open) -> bool {
        // With a device that has failed a face may say so in words of its own.
        open.device.has_failed()
            && matches!(fail, Fail::Store(StoreError::Stopped { .. } | StoreError::Io { .. }) | Fail::Other(_))
    }

    /// What became of a step that adds, and of the places that it was to change.
    fn added(
        &mut self,
        open: &Open,
        what: String,
        places: &[Place],
        done: Result<bool, Fail>,
    ) -> Result<Answer, String> {
        let answer = match done {
            Ok(durable) => {
                if durable {
                    self.known.durable();
                }
                self.outcome.transactions += 1;
                Answer::Done
            }
            Err(Fail::Store(StoreError::Full { .. })) => {
                places.iter().for_each(|place| self.known.refused(*place));
                self.outcome.full += 1;
                if let Some(place) = places.first()
                    && self.rng.u8(0..4) == 0
                {
                    match Self::shows(open, *place) {
                        Ok(found) => self.known.newest(*place, found).map_err(|why| {
                            format!("transactions_are_atomic: {what} was refused for want of room, but {why}")
                        })?,
                        Err(fail) if Self::excused(&fail, open) => return Ok(Answer::Stopped),
                        Err(fail) => return Err(format!("reading after {what} was refused: {fail}")),
                    }
                }
                Answer::Full
            }
            Err(fail) if Self::excused(&fail, open) => Answer::Stopped,
            Err(fail) => return Err(format!("{what}: {fail}")),
        };
        self.told.push(format!("{what}: {answer:?}"));
        Ok(answer)
    }

    /// As [`Filled::gives`], of a step that may find nothing to do: then only a sync says what is durable.
    fn gives_something(
        &mut self,
        open: &mut Open,
        what: &str,
        mut step: impl FnMut(&mut Open) -> Result<(), Fail>,
    ) -> Result<Answer, String> {
        self.gives(open, what, |open| {
            step(open)?;
            Ok(open.engine.sync().wait().map(drop)?)
        })
    }

    /// A step that gives back, again and again until it is let through. What it answers is durable.
    fn gives(
        &mut self,
        open: &mut Open,
        what: &str,
        mut step: impl FnMut(&mut Open) -> Result<(), Fail>,
    ) -> Result<Answer, String> {
        let began = Instant::now();
        let mut tries = 0;
        loop {
            match step(open) {
                Ok(()) => {
                    self.known.durable();
                    self.outcome.transactions += 1;
                    self.told.push(format!("{what}: done"));
                    return Ok(Answer::Done);
                }
                Err(Fail::Store(StoreError::Full { .. })) => {
                    tries += 1;
                    self.outcome.refused += 1;
                    if if self.threads { began.elapsed() > REFUSED_FOR_GOOD } else { tries > TRIES } {
                        return Err(self.stuck(open, &format!("{what} is refused for good")));
                    }
                    self.helps(open);
                }
                Err(fail) if Self::excused(&fail, open) => return Ok(Answer::Stopped),
                Err(fail) => return Err(format!("{what}: {fail}")),
            }
        }
    }

    /// One value, durable.
    pub(super) fn writes_one(&mut self, open: &mut Open) -> Result<Answer, String> {
        let key = self.rng.u64(..KEYS);
        self.puts(open, 0, key, ONE_WRITE_BYTES, Durability::Durable)
    }

    fn puts(
        &mut self,
        open: &mut Open,
        space: usize,
        key: u64,
        len: u64,
        durability: Durability,
    ) -> Result<Answer, String> {
        let (name, kind) = SPACES[space];
        if open.spaces[space].is_none() {
            match open.kv.namespace(name, kind).map_err(Fail::from) {
                Ok(made) => open.spaces[space] = Some(made),
                Err(fail) => return self.added(open, format!("making {name}"), &[], Err(fail)),
            }
        }
        let Some(names) = open.spaces[space].clone() else { return Ok(Answer::Full) };
        let number = self.next();
        let place = if space == 0 { Place::Key(key) } else { Place::Int(key) };
        self.known.begin(place, Some(number));
        // Some expire one day, and so have an entry in the index of that.
        let entry = Entry::new(value(number, len)).expiring(key.is_multiple_of(4).then_some(1 << 40));
        let done = match space {
            0 => names.put_with(key_name(key).as_str(), entry, durability).wait(),
            _ => names.put_with(key, entry, durability).wait(),
        };
        let done = done.map(|()| durability == Durability::Durable).map_err(Fail::from);
        self.added(open, format!("put {place:?} of {len} bytes"), &[place], done)
    }

    /// A step that adds something.
    pub(super) fn adds(&mut self, open: &mut Open) -> Result<Answer, String> {
        let durability = if self.rng.bool() { Durability::Durable } else { Durability::Applied };
        match self.rng.u8(0..20) {
            0..10 => {
                let len = if self.rng.bool() { self.rng.u64(4..400) } else { self.rng.u64(400..24_000) };
                let (space, key) = (self.rng.usize(..2), self.rng.u64(..KEYS));
                self.puts(open, space, key, len, durability)
            }
            10..15 => self.writes_a_disk(open, durability),
            15 => self.takes_a_snapshot(open),
            _ => self.appends(open),
        }
    }

    fn writes_a_disk(&mut self, open: &mut Open, durability: Durability) -> Result<Answer, String> {
        let at = self.rng.usize(..2);
        if open.disks[at].is_none() {
            let striping = Striping {
                object_bytes: OBJECT_BLOCKS * BLOCK_BYTES,
                stripe_unit: OBJECT_BLOCKS * BLOCK_BYTES,
                stripe_count: 1,
            };
            let made = open.volumes.create(DISKS[at], BLOCKS * BLOCK_BYTES, striping, 0).map_err(Fail::from);
            let done = made.map(|made| open.disks[at] = Some(made)).map(|()| true);
            return self.added(open, format!("making {}", DISKS[at]), &[], done);
        }
        let Some(disk) = open.disks[at].clone() else { return Ok(Answer::Full) };
        let size = disk.size() / BLOCK_BYTES;
        if size < BLOCKS && self.rng.bool() {
            let done = disk.resize(BLOCKS * BLOCK_BYTES, false).map(|()| true).map_err(Fail::from);
            return self.added(open, format!("growing {}", DISKS[at]), &[], done);
        }
        let first = self.rng.u64(..size);
        let blocks = self.rng.u64(1..=(OBJECT_BLOCKS - first % OBJECT_BLOCKS).min(size - first).min(WRITE_BLOCKS_MAX));
        let number = self.next();
        let places: Vec<Place> = (first..first + blocks).map(|block| Place::Block(at as u8, block)).collect();
        places.iter().for_each(|place| self.known.begin(*place, Some(number)));
        let written = disk.write(first * BLOCK_BYTES, value(number, blocks * BLOCK_BYTES), durability);
        let done = written.map_err(Fail::from).and_then(|written| written.wait().map_err(Fail::from));
        let done = done.map(|()| durability == Durability::Durable);
        self.added(open, format!("write {} blocks {first} and {blocks} in all as {number}", DISKS[at]), &places, done)
    }

    fn takes_a_snapshot(&mut self, open: &mut Open) -> Result<Answer, String> {
        let at = self.rng.usize(..2);
        let Some(disk) = open.disks[at].clone() else { return Ok(Answer::Done) };
        match disk.snapshots() {
            Ok(snapshots) if snapshots.is_empty() => {}
            Ok(_) => return Ok(Answer::Done),
            Err(error) => return self.added(open, "looking for snapshots".into(), &[], Err(error.into())),
        }
        let done = disk.snapshot_create("s", 0).map(|_| true).map_err(Fail::from);
        self.added(open, format!("snapshot of {}", DISKS[at]), &[], done)
    }

    fn appends(&mut self, open: &mut Open) -> Result<Answer, String> {
        let Some(log) = open.log.clone() else {
            let layout = self.rng.choice([Layout::Omap, Layout::Stream, Layout::Slots]).unwrap_or_default();
            let options = LogOptions { layout, width: 2, slots: 16, inline_bytes_max: 100, ..LogOptions::default() };
            let made = open.logs.create(LOG, options).map_err(Fail::from);
            let done = made.map(|made| open.log = Some(made)).map(|()| true);
            return self.added(open, format!("making the log as {layout}"), &[], done);
        };
        let number = self.next();
        let len = self.rng.u64(4..9_000);
        let done = log.append(value(number, len)).map_err(Fail::from);
        let done = done.and_then(|done| done.wait().map_err(Fail::from));
        if let Ok(position) = &done {
            self.known.begin(Place::Entry(*position), Some(number));
        }
        self.added(open, format!("append {number}: {done:?}"), &[], done.map(|_| true))
    }

    /// A step that gives something back.
    pub(super) fn gives_back(&mut self, open: &mut Open) -> Result<Answer, String> {
        match self.rng.u8(0..24) {
            0..9 => self.removes_a_key(open),
            9..14 => self.discards(open),
            14 => {
                let at = self.rng.usize(..2);
                self.removes_snapshots(open, at)
            }
            15 => {
                let at = self.rng.usize(..2);
                self.shrinks(open, at)
            }
            16 if self.rng.bool() => {
                let at = self.rng.usize(..2);
                self.removes_a_disk(open, at)
            }
            17..22 => self.trims(open),
            22 if self.rng.u8(0..4) == 0 => self.deletes_the_log(open),
            23 if self.rng.u8(0..4) == 0 => {
                let at = self.rng.usize(..2);
                self.removes_a_namespace(open, at)
            }
            _ => Ok(Answer::Done),
        }
    }

    fn removes_a_key(&mut self, open: &mut Open) -> Result<Answer, String> {
        let keys = self.known.those(|place| matches!(place, Place::Key(_) | Place::Int(_)));
        let Some(place) = self.rng.choice(keys) else { return Ok(Answer::Done) };
        self.known.begin(place, None);
        let way = self.rng.u8(0..3);
        self.gives(open, &format!("removing {place:?} in way {way}"), |open| {
            let (space, key) = match place {
                Place::Key(key) => (0, key),
                Place::Int(key) => (1, key),
                _ => return Ok(()),
            };
            let Some(names) = &open.spaces[space] else { return Ok(()) };
            let name = key_name(key);
            let key = if space == 0 { Key::Bytes(name.as_bytes()) } else { Key::Int(key) };
            match way {
                0 => {
                    let mut txn = open.kv.begin(&[(names, key)]);
                    txn.get(names, key)?;
                    txn.remove(names, key);
                    txn.commit(Durability::Durable).wait()?;
                }
                1 => drop(names.remove_many(&[key]).wait()?),
                _ => drop(names.remove_with(key, Durability::Durable).wait()?),
            }
            Ok(())
        })
    }

    /// Attaches a disk, discards, and detaches it.
    fn discards(&mut self, open: &mut Open) -> Result<Answer, String> {
        let at = self.rng.usize(..2);
        let Some(disk) = open.disks[at].clone() else { return Ok(Answer::Done) };
        match disk.snapshots() {
            // What only a snapshot has is not to be discarded in part where the store is full (decision 0017).
            Ok(snapshots) if !snapshots.is_empty() => return self.removes_snapshots(open, at),
            Ok(_) => {}
            Err(error) => return self.added(open, "looking for snapshots".into(), &[], Err(error.into())),
        }
        let locks = self.rng.bool();
        if locks {
            let locked = self.gives(open, &format!("attaching {}", DISKS[at]), |_| Ok(disk.lock("me").map(drop)?))?;
            if locked != Answer::Done {
                return Ok(locked);
            }
        }
        let size = disk.size() / BLOCK_BYTES;
        let first = self.rng.u64(..size);
        let blocks = self.rng.u64(1..=size - first);
        for block in first..first + blocks {
            self.known.begin(Place::Block(at as u8, block), None);
        }
        let (offset, len) = (first * BLOCK_BYTES, blocks * BLOCK_BYTES);
        let zeros = self.rng.bool();
        let what = format!("discarding {} blocks {first} and {blocks} in all", DISKS[at]);
        let discarded = self.gives(open, &what, |_| {
            let done = if zeros {
                disk.zero(offset, len, false, Durability::Durable)?
            } else {
                disk.discard(offset, len, Durability::Durable)?
            };
            Ok(done.wait()?)
        })?;
        if !locks || discarded != Answer::Done {
            return Ok(discarded);
        }
        self.gives(open, &format!("detaching {}", DISKS[at]), |_| Ok(disk.unlock()?))
    }

    fn removes_snapshots(&mut self, open: &mut Open, at: usize) -> Result<Answer, String> {
        let Some(disk) = open.disks[at].clone() else { return Ok(Answer::Done) };
        self.gives_something(open, &format!("removing the snapshots of {}", DISKS[at]), |_| {
            for snapshot in disk.snapshots()? {
                match disk.snapshot_remove(&snapshot.name).map_err(Fail::from) {
                    Ok(()) | Err(Fail::Missing) => {}
                    Err(fail) => return Err(fail),
                }
            }
            Ok(())
        })
    }

    fn shrinks(&mut self, open: &mut Open, at: usize) -> Result<Answer, String> {
        let Some(disk) = open.disks[at].clone() else { return Ok(Answer::Done) };
        match self.removes_snapshots(open, at)? {
            Answer::Done => {}
            other => return Ok(other),
        }
        let size = disk.size() / BLOCK_BYTES;
        if size < 2 {
            return Ok(Answer::Done);
        }
        let to = self.rng.u64(1..size);
        for place in
            self.known.those(|place| matches!(place, Place::Block(of, block) if *of == at as u8 && *block >= to))
        {
            self.known.begin(place, None);
        }
        self.gives_something(open, &format!("shrinking {} to {to} blocks", DISKS[at]), |_| {
            Ok(disk.resize(to * BLOCK_BYTES, true)?)
        })
    }

    fn removes_a_disk(&mut self, open: &mut Open, at: usize) -> Result<Answer, String> {
        if open.disks[at].is_none() {
            return Ok(Answer::Done);
        }
        let snapshots = self.removes_snapshots(open, at)?;
        if snapshots != Answer::Done {
            return Ok(snapshots);
        }
        for place in self.known.those(|place| matches!(place, Place::Block(of, _) if *of == at as u8)) {
            self.known.begin(place, None);
        }
        open.disks[at] = None;
        self.gives_something(open, &format!("removing {}", DISKS[at]), |open| {
            match open.volumes.remove(DISKS[at]).map_err(Fail::from) {
                // The name went first, the time before.
                Ok(()) | Err(Fail::Missing) => {}
                Err(fail) => return Err(fail),
            }
            if open.volumes.work(&mut |_, _| true)? { Ok(()) } else { Err(Fail::Other("work does not end".into())) }
        })
    }

    fn trims(&mut self, open: &mut Open) -> Result<Answer, String> {
        let Some(log) = open.log.clone() else { return Ok(Answer::Done) };
        let entries = self.known.those(|place| matches!(place, Place::Entry(_)));
        let Some(place @ Place::Entry(position)) = self.rng.choice(entries.clone()) else { return Ok(Answer::Done) };
        if self.rng.bool() {
            self.known.begin(place, None);
            return self.gives(open, &format!("trimming {position}"), |_| Ok(log.trim(position)?));
        }
        for place in entries.into_iter().filter(|each| *each <= place) {
            self.known.begin(place, None);
        }
        self.gives(open, &format!("trimming to {}", position + 1), |_| Ok(log.trim_to(position + 1).map(drop)?))
    }

    fn deletes_the_log(&mut self, open: &mut Open) -> Result<Answer, String> {
        if open.log.is_none() {
            return Ok(Answer::Done);
        }
        for place in self.known.those(|place| matches!(place, Place::Entry(_))) {
            self.known.begin(place, None);
        }
        open.log = None;
        self.gives_something(open, "deleting the log", |open| match open.logs.delete(LOG).map_err(Fail::from) {
            Err(Fail::Missing) => Ok(()),
            other => other,
        })
    }

    fn removes_a_namespace(&mut self, open: &mut Open, at: usize) -> Result<Answer, String> {
        for place in self.known.those(|place| matches!((place, at), (Place::Key(_), 0) | (Place::Int(_), 1))) {
            self.known.begin(place, None);
        }
        open.spaces[at] = None;
        let (name, _) = SPACES[at];
        self.gives_something(open, &format!("removing {name}"), |open| {
            match open.kv.remove_namespace(name).map_err(Fail::from) {
                Err(Fail::Missing) => Ok(()),
                other => other,
            }
        })
    }

    /// Everything goes: key by key, in part; then what is left, whole.
    pub(super) fn empties(&mut self, open: &mut Open) -> Result<(), String> {
        let undisturbed = |answer: Answer| match answer {
            Answer::Done => Ok(()),
            other => Err(format!("an undisturbed store answers {other:?}")),
        };
        for _ in 0..self.rng.u32(0..60) {
            undisturbed(self.gives_back(open)?)?;
        }
        for at in 0..2 {
            undisturbed(self.removes_a_disk(open, at)?)?;
            undisturbed(self.removes_a_namespace(open, at)?)?;
        }
        undisturbed(self.deletes_the_log(open)?)?;
        self.compared(open)
    }

    /// Everything that is there is possible, and what must be there is.
    pub(super) fn compared(&mut self, open: &mut Open) -> Result<(), String> {
        self.compares(open).map_err(|fail| fail.to_string())
    }

    fn compares(&mut self, open: &mut Open) -> Result<(), Fail> {
        let spaces = open.kv.namespaces()?;
        for (at, (name, kind)) in SPACES.into_iter().enumerate() {
            let is_there = spaces.iter().any(|(known, _)| known == name);
            open.spaces[at] = if is_there { Some(open.kv.namespace(name, kind)?) } else { None };
        }
        for (at, name) in DISKS.into_iter().enumerate() {
            open.disks[at] = match open.volumes.image(name).map_err(Fail::from) {
                Ok(disk) => Some(disk),
                Err(Fail::Missing) => None,
                Err(fail) => return Err(fail),
            };
            if let Some(disk) = &open.disks[at]
                && let Some(lock) = disk.lock_info()
            {
                // The one who attached it is gone.
                let disk = disk.clone();
                self.gives(open, &format!("breaking the lock of {name}"), |_| Ok(disk.break_lock(lock.epoch)?))
                    .map_err(Fail::Other)?;
            }
        }
        open.log = match open.logs.log(LOG).map_err(Fail::from) {
            Ok(log) => Some(log),
            Err(Fail::Missing) => None,
            Err(fail) => return Err(fail),
        };
        for place in self.known.places() {
            let number = Self::shows(open, place)?;
            self.known.found(place, number).map_err(Fail::Other)?;
        }
        Ok(())
    }

    /// What stands at a place.
    fn shows(open: &Open, place: Place) -> Result<Option<u32>, Fail> {
        let bytes = match place {
            Place::Key(key) => match &open.spaces[0] {
                Some(names) => names.get(key_name(key).as_str()).wait()?,
                None => None,
            },
            Place::Int(key) => match &open.spaces[1] {
                Some(names) => names.get(key).wait()?,
                None => None,
            },
            Place::Block(at, block) => match &open.disks[usize::from(at)] {
                Some(disk) if (block + 1) * BLOCK_BYTES <= disk.size() => {
                    Some(disk.read_bytes(block * BLOCK_BYTES, BLOCK_BYTES)?)
                }
                _ => None,
            },
            Place::Entry(position) => match &open.log {
                Some(log) => match log.read(position)?.wait()? {
                    Found::Entry(entry) => Some(entry.data),
                    Found::Lost(why) => return Err(Fail::Other(format!("{place:?} is lost: {why}"))),
                    _ => None,
                },
                None => None,
            },
        };
        match bytes {
            Some(bytes) => number_of(&bytes).map_err(|why| Fail::Other(format!("{place:?}: {why}"))),
            None => Ok(None),
        }
    }
}

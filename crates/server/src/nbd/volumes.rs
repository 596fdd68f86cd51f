//! Volumes as exports: every image under its name, every snapshot read-only under `image@snapshot`.
//!
//! Each connection has a handle of its own. Handles of one image share nothing but the store: what one wrote the others read, and a
//! flush covers the whole store, so several connections to one image are as good as one.

use std::sync::Arc;

use bytes::Bytes;
use esker_store::Completion;
use esker_volume::{Chunk, Durability, Error, Image, Snapshot, Volumes};

use crate::nbd::export::{BlockSizes, Done, Export, Exports, Extent, Fault, OpenError, Outcome, Piece};

/// BLOCK_STATUS looks at an image in steps of this, so that a fragmented one costs no more than is told.
const EXTENTS_STEP_BYTES: u64 = 256 << 20;

/// What stands between the name of an image and of its snapshot.
const AT: char = '@';

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Store(error) => error.into(),
            Error::Locked { .. } | Error::Fenced { .. } | Error::Refused { .. } => Self::NotPermitted(text),
            Error::Invalid { .. } => Self::Invalid(text),
            // The server has compared with the size as it was; it shrank since.
            Error::PastEnd { .. } => Self::Full(text),
            _ => Self::Io(text),
        }
    }
}

fn outcome<T, U>(completion: Completion<T>, told: impl FnOnce(T) -> U) -> Outcome<U> {
    let (value, barrier) = completion.into_parts();
    Ok(Done { value: told(value?), barrier })
}

fn durability(fua: bool) -> Durability {
    if fua { Durability::Durable } else { Durability::Applied }
}

fn pieces(chunks: Vec<Chunk>) -> Vec<Piece> {
    let piece = |chunk| match chunk {
        Chunk::Data(data) => Piece::Data(data),
        Chunk::Zeros(len) => Piece::Hole(len),
    };
    chunks.into_iter().map(piece).collect()
}

/// At most `limit` extents of a range, looked up step by step.
fn extents(
    offset: u64,
    len: u64,
    limit: usize,
    look: impl Fn(u64, u64) -> esker_volume::Result<Vec<esker_volume::Extent>>,
) -> Outcome<Vec<Extent>> {
    let end = offset + len;
    let mut found: Vec<Extent> = Vec::new();
    let mut at = offset;
    while at < end {
        let step = EXTENTS_STEP_BYTES.min(end - at);
        for extent in look(at, step)? {
            if let Some(last) = found.last_mut().filter(|last| last.hole != extent.data) {
                last.len += extent.len;
            } else if found.len() == limit {
                return Ok(Done::now(found));
            } else {
                found.push(Extent { len: extent.len, hole: !extent.data, zero: !extent.data });
            }
        }
        at += step;
    }
    Ok(Done::now(found))
}

struct Disk(Image);

impl Export for Disk {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn block_sizes(&self) -> BlockSizes {
        BlockSizes::default()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn description(&self) -> String {
        format!("image of {} bytes", self.0.size())
    }

    fn read(&self, offset: u64, len: u32) -> Outcome<Vec<Piece>> {
        outcome(self.0.read(offset, len.into())?, pieces)
    }

    fn write(&self, offset: u64, data: Bytes, fua: bool) -> Outcome {
        outcome(self.0.write(offset, data, durability(fua))?, |()| ())
    }

    fn zero(&self, offset: u64, len: u64, no_hole: bool, fast: bool, fua: bool) -> Outcome {
        if no_hole && fast {
            return Err(Fault::Unsupported("zeros that take space are no faster than writes".into()));
        }
        outcome(self.0.zero(offset, len, no_hole, durability(fua))?, |()| ())
    }

    fn discard(&self, offset: u64, len: u64, fua: bool) -> Outcome {
        outcome(self.0.discard(offset, len, durability(fua))?, |()| ())
    }

    fn flush(&self) -> Outcome {
        outcome(self.0.flush(), |_| ())
    }

    fn extents(&self, offset: u64, len: u64, limit: usize) -> Outcome<Vec<Extent>> {
        extents(offset, len, limit, |offset, len| self.0.extents(offset, len))
    }
}

struct Frozen {
    snapshot: Snapshot,
    image: Image,
}

impl Frozen {
    fn refused<T>() -> Outcome<T> {
        Err(Fault::NotPermitted("a snapshot is read-only".into()))
    }
}

impl Export for Frozen {
    fn size(&self) -> u64 {
        self.snapshot.size()
    }

    fn read_only(&self) -> bool {
        true
    }

    fn description(&self) -> String {
        format!("snapshot {} of image {}", self.snapshot.name(), self.image.name())
    }

    fn read(&self, offset: u64, len: u32) -> Outcome<Vec<Piece>> {
        outcome(self.snapshot.read(offset, len.into())?, pieces)
    }

    fn write(&self, _: u64, _: Bytes, _: bool) -> Outcome {
        Self::refused()
    }

    fn zero(&self, _: u64, _: u64, _: bool, _: bool, _: bool) -> Outcome {
        Self::refused()
    }

    fn discard(&self, _: u64, _: u64, _: bool) -> Outcome {
        Self::refused()
    }

    fn flush(&self) -> Outcome {
        outcome(self.image.flush(), |_| ())
    }

    fn extents(&self, offset: u64, len: u64, limit: usize) -> Outcome<Vec<Extent>> {
        extents(offset, len, limit, |offset, len| self.snapshot.extents(offset, len))
    }
}

impl Exports for Volumes {
    fn list(&self) -> Result<Vec<(String, String)>, Fault> {
        let mut exports = Vec::new();
        for name in Volumes::list(self)? {
            let image = match self.image(&name) {
                Ok(image) => image,
                // Removed a moment ago.
                Err(Error::NoImage { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            let snapshots = image.snapshots()?;
            exports.push((name.clone(), format!("image of {} bytes", image.size())));
            exports.extend(snapshots.into_iter().map(|snapshot| {
                (format!("{name}{AT}{}", snapshot.name), format!("snapshot of {} bytes", snapshot.size))
            }));
        }
        Ok(exports)
    }

    /// The empty name is the only image, if there is one and no other.
    fn open(&self, name: &str) -> Result<Arc<dyn Export>, OpenError> {
        let refused = |error: Error| match error {
            Error::NoImage { .. } | Error::NoSnapshot { .. } | Error::Invalid { .. } => {
                OpenError::Unknown(name.to_string())
            }
            error => OpenError::Refused(error.to_string()),
        };
        let only;
        let found = if name.is_empty() {
            let mut names = Volumes::list(self).map_err(refused)?;
            if names.len() != 1 {
                return Err(OpenError::Unknown(format!("(none named, and there are {} images)", names.len())));
            }
            only = names.swap_remove(0);
            &only
        } else {
            name
        };
        let (image, snapshot) = found.split_once(AT).map_or((found, None), |(image, snapshot)| (image, Some(snapshot)));
        let image = self.image(image).map_err(refused)?;
        Ok(match snapshot {
            None => Arc::new(Disk(image)),
            Some(snapshot) => Arc::new(Frozen { snapshot: image.snapshot(snapshot).map_err(refused)?, image }),
        })
    }
}

//! Volumes as exports: every image under its name, every snapshot read-only under `image@snapshot`.
//!
//! Connections that may write an image share one handle, which holds the image's exclusive lock (see
//! [`attach`](super::attach)); others have handles of their own. All see the same: what one wrote the others read, and
//! a flush covers the whole store.

use std::sync::Arc;

use bytes::Bytes;
use esker_store::Completion;
use esker_volume::{Chunk, Durability, Error, Image, Ranges, Snapshot, Volumes};

use crate::nbd::attach::{Attached, Attachments, Locking};
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
    Ok(Done::behind(told(value?), barrier))
}

/// As the protocol has it, only what would grow a disk is told that there is no room past its end.
fn not_growing(error: Error) -> Fault {
    match error {
        Error::PastEnd { .. } => Fault::Invalid(error.to_string()),
        other => other.into(),
    }
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
        for extent in look(at, step).map_err(not_growing)? {
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

struct Disk {
    attached: Arc<Attached>,
    /// Why it can only be read, if so: another server, or a person, has it locked.
    reading: Option<String>,
}

impl Disk {
    fn written(attached: Arc<Attached>) -> Arc<dyn Export> {
        Arc::new(Self { attached, reading: None })
    }

    /// Changes the image, and tells what that came to.
    fn change(
        &self,
        change: impl FnOnce(&Image) -> esker_volume::Result<Completion<()>>,
        told: impl FnOnce(Error) -> Fault,
    ) -> Outcome {
        if let Some(why) = &self.reading {
            return Err(Fault::NotPermitted(why.clone()));
        }
        let done = change(&self.attached.image).inspect_err(|error| self.attached.note(error)).map_err(told)?;
        if done.is_here() {
            return outcome(done, |()| ());
        }
        Ok(Done { later: Some(done), ..Done::now(()) })
    }
}

impl Export for Disk {
    fn size(&self) -> u64 {
        self.attached.image.size()
    }

    fn block_sizes(&self) -> BlockSizes {
        BlockSizes::default()
    }

    fn read_only(&self) -> bool {
        self.reading.is_some()
    }

    fn description(&self) -> String {
        let why = self.reading.as_ref().map_or(String::new(), |why| format!(", read-only: {why}"));
        format!("image of {} bytes{why}", self.size())
    }

    fn read(&self, offset: u64, len: u32) -> Outcome<Vec<Piece>> {
        outcome(self.attached.image.read(offset, len.into()).map_err(not_growing)?, pieces)
    }

    fn bring(&self, ranges: &mut dyn Ranges) -> bool {
        self.attached.image.bring(ranges)
    }

    fn write(&self, offset: u64, data: Bytes, fua: bool) -> Outcome {
        self.change(|image| image.write(offset, data, durability(fua)), Fault::from)
    }

    fn zero(&self, offset: u64, len: u64, no_hole: bool, fast: bool, fua: bool) -> Outcome {
        if no_hole && fast {
            return Err(Fault::Unsupported("zeros that take space are no faster than writes".into()));
        }
        self.change(|image| image.zero(offset, len, no_hole, durability(fua)), Fault::from)
    }

    fn discard(&self, offset: u64, len: u64, fua: bool) -> Outcome {
        self.change(|image| image.discard(offset, len, durability(fua)), not_growing)
    }

    fn flush(&self) -> Outcome {
        outcome(self.attached.flush(), |_| ())
    }

    fn extents(&self, offset: u64, len: u64, limit: usize) -> Outcome<Vec<Extent>> {
        extents(offset, len, limit, |offset, len| self.attached.image.extents(offset, len))
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

/// The images and snapshots of a store, with the locks that its server holds for its clients.
pub struct VolumeExports {
    volumes: Volumes,
    attachments: Attachments,
}

impl VolumeExports {
    /// Serves `volumes`, whose images are locked as `locking` says while clients that may write are attached.
    pub fn new(volumes: Volumes, locking: Locking) -> Self {
        Self { volumes, attachments: Attachments::new(locking) }
    }

    /// An image, for what only its owner may do beside the clients, such as resizing: while any of them is attached by
    /// the handle that holds the lock, since others are refused then.
    ///
    /// # Errors
    /// Those of [`Volumes::image`].
    pub fn image(&self, name: &str) -> esker_volume::Result<Image> {
        let image = self.volumes.image(name)?;
        Ok(self.attachments.of(&image).map_or(image, |attached| attached.image.clone()))
    }

    fn snapshot(&self, name: &str, snapshot: &str) -> esker_volume::Result<Arc<dyn Export>> {
        let image = self.volumes.image(name)?;
        Ok(Arc::new(Frozen { snapshot: image.snapshot(snapshot)?, image }))
    }
}

/// The two names of `image@snapshot`; the second is missing in `image`.
fn split(name: &str) -> (&str, Option<&str>) {
    name.split_once(AT).map_or((name, None), |(image, snapshot)| (image, Some(snapshot)))
}

/// What would let a client write an image that is locked.
fn locked(name: &str, error: &Error) -> String {
    let epoch = if let Error::Locked { epoch, .. } = error { *epoch } else { 0 };
    format!("{error}: its owner must detach first; if there is none, break it: esker volume lock break {name} {epoch}")
}

fn refused(name: &str, error: Error) -> OpenError {
    match error {
        Error::NoImage { .. } | Error::NoSnapshot { .. } | Error::Invalid { .. } => {
            OpenError::Unknown(name.to_string())
        }
        error => OpenError::Refused(error.to_string()),
    }
}

impl Exports for VolumeExports {
    fn list(&self) -> Result<Vec<(String, String)>, Fault> {
        let mut exports = Vec::new();
        for name in self.volumes.list()? {
            let image = match self.volumes.image(&name) {
                Ok(image) => image,
                // Removed a moment ago.
                Err(Error::NoImage { .. }) => continue,
                Err(Error::Store(error)) => return Err(error.into()),
                // One that cannot be read hides no other.
                Err(error) => {
                    exports.push((name, error.to_string()));
                    continue;
                }
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
    fn resolve(&self, name: &str) -> Result<String, OpenError> {
        if !name.is_empty() {
            return Ok(name.to_string());
        }
        let mut names = self.volumes.list().map_err(|error| refused(name, error))?;
        match (names.pop(), names.len()) {
            (Some(only), 0) => Ok(only),
            (None, _) => Err(OpenError::Unknown("(none named, and there are no images)".into())),
            (Some(_), more) => Err(OpenError::Unknown(format!("(none named, and there are {} images)", more + 1))),
        }
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Export>, OpenError> {
        let opened = match split(name) {
            (image, Some(snapshot)) => self.snapshot(image, snapshot),
            (image, None) => self.volumes.image(image).map(|image| Disk::written(self.attachments.unlocked(image))),
        };
        opened.map_err(|error| refused(name, error))
    }

    fn attach(&self, name: &str) -> Result<Arc<dyn Export>, OpenError> {
        if split(name).1.is_some() {
            return self.open(name);
        }
        match self.attachments.attach(&self.volumes, name) {
            Ok(attached) => Ok(Disk::written(attached)),
            // It can be read beside its owner.
            Err(error @ Error::Locked { .. }) => {
                let image = self.volumes.image(name).map_err(|error| refused(name, error))?;
                let reading = Some(locked(name, &error));
                tracing::info!(image = name, %error, "served read-only");
                Ok(Arc::new(Disk { attached: Arc::new(Attached::unlocked(image)), reading }))
            }
            Err(error) => Err(refused(name, error)),
        }
    }
}

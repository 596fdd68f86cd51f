//! What the actions of `esker volume` share: the volumes, how results are told, how images and snapshots are named.

use esker::kv::{Clock, SystemClock};
use esker::volume::{IMPORT_OWNER, Image, Volumes};
use esker_server::nbd::SERVER_OWNER;
use serde_json::Value;

use crate::commands::tell;
use crate::exit::Failure;
use crate::progress;

/// What the actions share: the volumes, and how results are told.
pub(super) struct Context {
    pub(super) volumes: Volumes,
    pub(super) store: esker::Store,
    pub(super) json: bool,
}

impl Context {
    /// Prints `value` as JSON, or else `text`.
    pub(super) fn tell(&self, value: Value, text: &str) -> Result<(), Failure> {
        tell(self.json, &value, text)
    }

    /// Breaks the lock that a killed server or import left on an image that is to be changed, where this process has
    /// the
    /// store for itself.
    pub(super) fn release_left(&self, name: &str) -> Result<(), Failure> {
        if self.store.is_shared() {
            return Ok(());
        }
        // Without the image the action itself says what is wrong.
        let Ok(image) = self.volumes.image(name) else { return Ok(()) };
        let of_process = |owner: &str| owner.starts_with(SERVER_OWNER) || owner == IMPORT_OWNER;
        if let Some(lock) = image.lock_info().filter(|lock| of_process(&lock.owner)) {
            image.break_lock(lock.epoch)?;
            eprintln!("image {name}: broke the lock that a killed process left ({})", lock.owner);
        }
        Ok(())
    }

    pub(super) fn image(&self, name: &str) -> Result<Image, Failure> {
        Ok(self.volumes.image(name)?)
    }

    pub(super) fn now_ms(&self) -> u64 {
        SystemClock.now_ms()
    }

    /// Does work that tells how far it is, under a bar.
    pub(super) fn under_bar<T>(
        &self,
        what: &'static str,
        work: impl FnOnce(esker::volume::Progress<'_>) -> Result<T, esker::volume::Error>,
    ) -> Result<T, Failure> {
        let bar = progress::count(what, 0);
        let result = work(&mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
            true
        });
        bar.finish_and_clear();
        Ok(result?)
    }

    pub(super) fn clean(&self) -> Result<(), Failure> {
        self.under_bar("giving space back", |progress| self.volumes.work(progress)).map(drop)
    }
}

/// The two names of IMAGE@SNAPSHOT; the second is missing in IMAGE.
pub(super) fn split(name: &str) -> (&str, Option<&str>) {
    name.split_once('@').map_or((name, None), |(image, snapshot)| (image, Some(snapshot)))
}

/// The two names of IMAGE@SNAPSHOT.
pub(super) fn both(name: &str) -> Result<(&str, &str), Failure> {
    match split(name) {
        (image, Some(snapshot)) => Ok((image, snapshot)),
        _ => Err(Failure::usage(format!("{name:?}: expected IMAGE@SNAPSHOT"))),
    }
}
